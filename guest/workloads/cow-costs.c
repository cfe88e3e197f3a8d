/*
 * What exact copy-on-write costs, row by row: a phase of the microscope for each, which counts the instructions of program and kernel
 * together, and none while a CPU waits. Says how often each row was done: `row NAME TIMES`.
 *
 *   freehold scope --kernel freehold|linux -m 1G --disk disk.img -- target/guest/workloads/cow-costs /dev/vda
 *
 * | row | one time is |
 * |---|---|
 * | reuse | a store to a page that was shared with a child and is so no more |
 * | copy | a store to a page that a child shares |
 * | fork-4k, fork-2m | fork, exit and wait with 256 MiB resident in pages of that size |
 * | vmsplice | a page of memory into a pipe, and out again unread |
 * | direct-read | 4 KiB of DISK with O_DIRECT |
 * | direct-write | 4 KiB to DISK with O_DIRECT |
 * | pin-fast, pin-locked | a page pinned and let go of, without the space's lock and with it (where there is a gup_test) |
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../tools/doorbell.h"

enum { PAGE = 4096, PAGES = 2048, FORKS = 4, TIMES = 512, SLOTS = 16 };
static const size_t LARGE = 2 << 20, ALL = 256 << 20;

#define NEED(condition)                                                     \
	do {                                                                \
		if (!(condition)) {                                         \
			fprintf(stderr, "cow-costs: %s: errno %d\n", #condition, errno); \
			exit(1);                                            \
		}                                                           \
	} while (0)

/* Rows are told at the end: nothing is printed while something is measured. */
static char told[1024];

static void begin(const char *row)
{
	NEED(doorbell_phase(row) == 0);
}

static void end(const char *row, long times)
{
	NEED(doorbell_phase("between") == 0);
	size_t length = strlen(told);
	snprintf(told + length, sizeof told - length, "row %s %ld\n", row, times);
}

static char *memory(size_t size, int advice)
{
	char *room = mmap(NULL, size + LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(room != MAP_FAILED);
	char *aligned = (char *)(((uintptr_t)room + LARGE - 1) & ~(LARGE - 1));
	madvise(aligned, size, advice);
	if (aligned > room)
		munmap(room, aligned - room);
	munmap(aligned + size, room + LARGE - aligned);
	return aligned;
}

static void store(volatile char *from, size_t size, size_t step)
{
	for (size_t at = 0; at < size; at += step)
		from[at]++;
}

static void fork_and_wait(void)
{
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0)
		_exit(0);
	NEED(waitpid(child, NULL, 0) == child);
}

static void stores(void)
{
	char *heap = memory(PAGES * PAGE, MADV_NOHUGEPAGE);
	store(heap, PAGES * PAGE, PAGE);
	fork_and_wait();
	begin("reuse");
	store(heap, PAGES * PAGE, PAGE);
	end("reuse", PAGES);

	int hold[2];
	NEED(pipe(hold) == 0);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		char byte;
		close(hold[1]);
		_exit(read(hold[0], &byte, 1) != 0);
	}
	close(hold[0]);
	/* The first store may pay for what all share, such as a page table. */
	store(heap, PAGE, PAGE);
	begin("copy");
	store(heap + PAGE, (PAGES - 1) * PAGE, PAGE);
	end("copy", PAGES - 1);
	close(hold[1]);
	NEED(waitpid(child, NULL, 0) == child);
	munmap(heap, PAGES * PAGE);
}

static void forks(const char *row, int advice)
{
	char *heap = memory(ALL, advice);
	store(heap, ALL, PAGE);
	fork_and_wait();
	begin(row);
	for (int i = 0; i < FORKS; i++)
		fork_and_wait();
	end(row, FORKS);
	munmap(heap, ALL);
}

static void lend(void)
{
	char *page = memory(SLOTS * PAGE, MADV_NOHUGEPAGE);
	store(page, SLOTS * PAGE, PAGE);
	int ends[2], nowhere = open("/dev/null", O_WRONLY);
	NEED(nowhere >= 0 && pipe(ends) == 0);
	for (int round = -1; round < TIMES / SLOTS; round++) {
		if (round == 0)
			begin("vmsplice");
		for (int i = 0; i < SLOTS; i++) {
			struct iovec run = { page + i * PAGE, PAGE };
			NEED(vmsplice(ends[1], &run, 1, 0) == PAGE);
		}
		NEED(splice(ends[0], NULL, nowhere, NULL, SLOTS * PAGE, 0) == SLOTS * PAGE);
	}
	end("vmsplice", TIMES);
	munmap(page, SLOTS * PAGE);
}

static void direct(const char *path)
{
	char *page = memory(PAGE, MADV_NOHUGEPAGE);
	int disk = open(path, O_RDWR | O_DIRECT);
	NEED(disk >= 0);
	store(page, PAGE, PAGE);
	for (int i = -8; i < TIMES; i++) {
		if (i == 0)
			begin("direct-read");
		NEED(pread(disk, page, PAGE, (i & 63) * PAGE) == PAGE);
	}
	end("direct-read", TIMES);
	for (int i = -8; i < TIMES; i++) {
		if (i == 0)
			begin("direct-write");
		NEED(pwrite(disk, page, PAGE, (i & 63) * PAGE) == PAGE);
	}
	end("direct-write", TIMES);
	munmap(page, PAGE);
}

/* As Linux' mm/gup_test.h has it. */
struct measurement {
	uint64_t get_us, put_us, at, size;
	uint32_t pages_per_call, gup_flags, test_flags, which[8];
};

static void pins(const char *row, unsigned request)
{
	int gup = open("/sys/kernel/debug/gup_test", O_RDWR);
	if (gup < 0)
		return;
	char *page = memory(TIMES * PAGE, MADV_NOHUGEPAGE);
	store(page, TIMES * PAGE, PAGE);
	struct measurement wish = { .at = (uintptr_t)page, .size = TIMES * PAGE, .pages_per_call = SLOTS, .gup_flags = 1 };
	begin(row);
	NEED(ioctl(gup, _IOWR('g', request, struct measurement), &wish) == 0 && wish.size == TIMES * PAGE);
	end(row, TIMES);
	munmap(page, TIMES * PAGE);
	close(gup);
}

int main(int count, char **arguments)
{
	stores();
	pins("pin-fast", 2);
	pins("pin-locked", 5);
	lend();
	if (count > 1)
		direct(arguments[1]);
	forks("fork-4k", MADV_NOHUGEPAGE);
	forks("fork-2m", MADV_HUGEPAGE);
	fputs(told, stdout);
	return 0;
}
