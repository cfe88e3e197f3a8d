/*
 * A disk that is larger than memory: its pages are read and evicted, pages that are used often
 * stay, and no byte is lost.
 *
 * Usage: cache DISK. DISK is written, and larger than the memory of the machine.
 */
#include <linux/fs.h>

#include "promise.h"

#define PAGE 4096UL

static unsigned char *buffer;

/* The first word of page `page` in generation `n`; the others follow from it. */
static uint64_t word_of(uint64_t page, uint64_t n)
{
	return (page * 0x9e3779b97f4a7c15 + n) | 1;
}

static void make_page(unsigned char *at, uint64_t page, uint64_t n)
{
	for (uint64_t i = 0; i < PAGE / 8; i += 8)
		((uint64_t *)at)[i] = word_of(page, n) + i;
}

static int is_page(const unsigned char *at, uint64_t page, uint64_t n)
{
	for (uint64_t i = 0; i < PAGE / 8; i += 8)
		if (((const uint64_t *)at)[i] != word_of(page, n) + i)
			return 0;
	return 1;
}

static int all_are(int disk, uint64_t pages, uint64_t n)
{
	for (uint64_t page = 0; page < pages; page += 16) {
		uint64_t some = pages - page < 16 ? pages - page : 16;
		if (pread(disk, buffer, some * PAGE, page * PAGE) != (ssize_t)(some * PAGE))
			return 0;
		for (uint64_t i = 0; i < some; i++)
			if (!is_page(buffer + i * PAGE, page + i, n))
				return 0;
	}
	return 1;
}

static void written_through_a_mapping(int disk, uint64_t pages)
{
	unsigned char *map = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, disk, 0);
	NEED(map != MAP_FAILED);
	for (uint64_t page = 0; page < pages; page++)
		make_page(map + page * PAGE, page, 1);
	int kept = 1;
	for (uint64_t page = 0; page < pages; page++)
		kept &= is_page(map + page * PAGE, page, 1);
	PROMISE("what was stored through a mapping of more than memory is there", kept);
	/* Every third page again, backwards: pages are read again, and evicted again with other
	 * bytes. */
	for (uint64_t page = pages - pages % 3; page > 0; page -= 3)
		make_page(map + (page - 1) * PAGE, page - 1, 2);
	PROMISE("it is stored by msync", msync(map, pages * PAGE, MS_SYNC) == 0);
	kept = 1;
	for (uint64_t page = 0; page < pages; page++)
		kept &= is_page(map + page * PAGE, page, page % 3 == 2 ? 2 : 1);
	PROMISE("and pages that changed after they had left and come back are right", kept);
	munmap(map, pages * PAGE);
}

static void written_by_calls(int disk, uint64_t pages)
{
	long most = 0;
	for (uint64_t page = 0; page < pages; page++) {
		make_page(buffer, page, 3);
		NEED(pwrite(disk, buffer, PAGE, page * PAGE) == (ssize_t)PAGE);
		if (page % 64 == 0) {
			long dirty = figure("/proc/meminfo", "Dirty") + figure("/proc/meminfo", "Writeback");
			most = dirty > most ? dirty : most;
		}
	}
	PROMISE("a writer does not fill memory with what no disk has", most > 0 && most < figure("/proc/meminfo", "MemTotal") / 2);
	PROMISE("fsync leaves nothing dirty", fsync(disk) == 0 && figure("/proc/meminfo", "Dirty") == 0);
	PROMISE("what was written is there", all_are(disk, pages, 3));
	int direct = open("/proc/self/fd/3", O_RDONLY | O_DIRECT);
	PROMISE("and on the disk", direct >= 0 && all_are(direct, pages, 3));
	close(direct);
}

static void used_pages_stay(int disk, uint64_t pages)
{
	enum { OFTEN = 256 };
	/* Pages that are read more than once count as used. Then the rest of the disk is read
	 * once; between these reads the used pages are read now and then. */
	for (int turn = 0; turn < 3; turn++)
		for (uint64_t page = 0; page < OFTEN; page++)
			NEED(pread(disk, buffer, PAGE, page * PAGE) == (ssize_t)PAGE);
	for (uint64_t page = OFTEN; page < pages; page++) {
		NEED(pread(disk, buffer, PAGE, page * PAGE) == (ssize_t)PAGE);
		if (page % 1024 == 0)
			for (uint64_t often = 0; often < OFTEN; often++)
				NEED(pread(disk, buffer, PAGE, often * PAGE) == (ssize_t)PAGE);
	}
	unsigned char *map = mmap(NULL, OFTEN * PAGE, PROT_READ, MAP_SHARED, disk, 0);
	static unsigned char there[OFTEN];
	NEED(map != MAP_FAILED && mincore(map, OFTEN * PAGE, there) == 0);
	int count = 0;
	for (int page = 0; page < OFTEN; page++)
		count += there[page] & 1;
	PROMISE("a file that passes by once does not drive out what is read again and again", count > OFTEN * 9 / 10);
	munmap(map, OFTEN * PAGE);
}

static void locked_pages_stay(int disk, uint64_t pages)
{
	enum { LOCKED = 64 };
	unsigned char *map = mmap(NULL, LOCKED * PAGE, PROT_READ, MAP_SHARED, disk, 0);
	NEED(map != MAP_FAILED);
	PROMISE("pages of a disk can be locked", mlock(map, LOCKED * PAGE) == 0);
	struct rusage before, after;
	PROMISE("reading past them", all_are(disk, pages, 3));
	getrusage(RUSAGE_SELF, &before);
	unsigned sum = 0;
	for (int page = 0; page < LOCKED; page++)
		sum += ((volatile unsigned char *)map)[page * PAGE];
	getrusage(RUSAGE_SELF, &after);
	PROMISE("takes none of them away", sum > 0 && after.ru_minflt == before.ru_minflt && after.ru_majflt == before.ru_majflt);
	munmap(map, LOCKED * PAGE);
}

static void dropped(void)
{
	FILE *drop = fopen("/proc/sys/vm/drop_caches", "we");
	long before = figure("/proc/meminfo", "Buffers") + figure("/proc/meminfo", "Cached");
	PROMISE("drop_caches takes a number", drop && fputs("1\n", drop) >= 0 && fclose(drop) == 0);
	long after = figure("/proc/meminfo", "Buffers") + figure("/proc/meminfo", "Cached");
	PROMISE("and clean pages go", after < before - 1024);
}

int main(int argc, char **argv)
{
	NEED(argc == 2);
	uint64_t bytes;
	int disk = open(argv[1], O_RDWR);
	NEED(disk == 3 && ioctl(disk, BLKGETSIZE64, &bytes) == 0);
	uint64_t pages = bytes / PAGE;
	NEED(posix_memalign((void **)&buffer, PAGE, 16 * PAGE) == 0);
	NEED(bytes / 1024 > (uint64_t)figure("/proc/meminfo", "MemTotal"));
	written_through_a_mapping(disk, pages);
	written_by_calls(disk, pages);
	used_pages_stay(disk, pages);
	locked_pages_stay(disk, pages);
	dropped();
	PROMISE("somebody looked for pages to give back", figure("/proc/vmstat", "pgscan_kswapd") + figure("/proc/vmstat", "pgscan_direct") > 0);
	PROMISE("found them", figure("/proc/vmstat", "pgsteal_file") > 0);
	PROMISE("and killed nobody", figure("/proc/vmstat", "oom_kill") == 0);
	return conclude();
}
