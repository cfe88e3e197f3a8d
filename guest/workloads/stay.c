/*
 * stay MIB LIMIT: fills MIB of private and file memory, and a little shared memory. Frees three of
 * four pages of the first two, and waits up to 100 seconds until the machine has at most LIMIT MiB.
 * Prints the machine's memory in MiB with all pages and at the end, and whether every byte is
 * unchanged.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, EVERY = 4, SORTS = 3 };

static long total_mib(void)
{
	char line[128];
	long kib = 0;
	FILE *info = fopen("/proc/meminfo", "r");
	while (info && fgets(line, sizeof line, info))
		if (sscanf(line, "MemTotal: %ld kB", &kib) == 1)
			break;
	if (info)
		fclose(info);
	return kib / 1024;
}

static void fill(char *page, size_t number)
{
	for (size_t i = 0; i < PAGE / sizeof(uint64_t); i++)
		((uint64_t *)page)[i] = number * 0x9e3779b97f4a7c15u + i;
}

static int is_filled(const char *page, size_t number)
{
	for (size_t i = 0; i < PAGE / sizeof(uint64_t); i++)
		if (((const uint64_t *)page)[i] != number * 0x9e3779b97f4a7c15u + i)
			return 0;
	return 1;
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: stay MIB LIMIT, for example: stay 192 180\n");
		return 2;
	}
	size_t pages = strtoul(argv[1], NULL, 10) * (1 << 20) / PAGE / 2;
	size_t counts[SORTS] = { pages, pages / 8, pages };
	long limit = strtol(argv[2], NULL, 10);
	int file = memfd_create("stay", 0);
	if (file < 0 || ftruncate(file, (off_t)(pages * PAGE)) != 0)
		return 1;
	char *memory[SORTS] = {
		mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
		mmap(NULL, counts[1] * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0),
		mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0),
	};
	for (int sort = 0; sort < SORTS; sort++) {
		if (memory[sort] == MAP_FAILED)
			return 1;
		for (size_t n = 0; n < counts[sort]; n++)
			fill(memory[sort] + n * PAGE, n * SORTS + (size_t)sort);
	}
	long most = total_mib();
	for (size_t n = 0; n < pages; n++) {
		if (n % EVERY == 0)
			continue;
		madvise(memory[0] + n * PAGE, PAGE, MADV_DONTNEED);
		if (fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(n * PAGE), PAGE) != 0)
			return 1;
	}
	/* Half of the file's pages have no mapping. */
	munmap(memory[2] + pages / 2 * PAGE, (pages - pages / 2) * PAGE);
	/* Memory that the kernel is about to return is not counted for a moment, and may be kept
	 * after all. The total must therefore stay within the limit for a second. */
	for (int tries = 0, below = 0; below < 10 && tries < 1000; tries++) {
		usleep(100000);
		below = total_mib() <= limit ? below + 1 : 0;
	}
	long least = total_mib();
	int right = 1;
	memory[2] = mmap(NULL, pages * PAGE, PROT_READ, MAP_SHARED, file, 0);
	if (memory[2] == MAP_FAILED)
		return 1;
	for (int sort = 0; sort < SORTS; sort++)
		for (size_t n = 0; n < counts[sort]; n += EVERY)
			right &= is_filled(memory[sort] + n * PAGE, n * SORTS + (size_t)sort);
	printf("%ld MiB, then %ld MiB, every byte is %s\n", most, least, right ? "right" : "wrong");
	return !right;
}
