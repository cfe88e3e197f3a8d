/*
 * Swap, from swapon to the last byte.
 *
 * Usage: swap areas DISK     DISK, of 1 MiB or more, becomes a swap area again and again
 *        swap lost DISK      DISK, of 64 KiB, cannot read its page 5
 *        swap refused DISK   DISK, of 64 KiB, cannot write its page 5
 *        swap pressure N R   a machine with swap on: N programs use more memory than there is, R rounds long
 *        swap full           the same, and one of them more than memory and swap together
 *        swap shared N       the same, and N programs share more memory than there is, half of it a file in memory
 *        swap file           the same, and a file in memory that is larger than memory
 *        swap forks N        the same, and a program that uses more than memory has N children at once, of which each second is another program
 */
#include "promise.h"

#include <setjmp.h>
#include <sys/mount.h>
#include <sys/swap.h>

#define PAGE 4096UL
#define SECTORS (PAGE / 512)

static long figure(const char *file, const char *name)
{
	return figure_or(file, name, 0);
}

static unsigned char *memory(size_t pages)
{
	unsigned char *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(at != MAP_FAILED);
	return at;
}

/* What page `page` holds in generation `n`: its number at both ends, and something in between. */
static void fill(unsigned char *at, uint64_t page, uint64_t n)
{
	for (size_t i = 0; i < PAGE / 8; i += 16)
		((uint64_t *)at)[i] = page * 0x9e3779b97f4a7c15 + n * 0x2545f4914f6cdd1d + i;
	((uint64_t *)at)[PAGE / 8 - 1] = page ^ n << 32;
}

static int is_filled(const unsigned char *at, uint64_t page, uint64_t n)
{
	for (size_t i = 0; i < PAGE / 8; i += 16)
		if (((const uint64_t *)at)[i] != page * 0x9e3779b97f4a7c15 + n * 0x2545f4914f6cdd1d + i)
			return 0;
	return ((const uint64_t *)at)[PAGE / 8 - 1] == (page ^ n << 32);
}

static int all_filled(const unsigned char *at, size_t pages, uint64_t n)
{
	for (size_t page = 0; page < pages; page++)
		if (!is_filled(at + page * PAGE, page, n))
			return 0;
	return 1;
}

/* How many of the pages are swapped out, as pagemap has it. */
static size_t swapped(const unsigned char *at, size_t pages)
{
	size_t count = 0;
	int map = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	NEED(map >= 0);
	for (size_t page = 0; page < pages; page++) {
		uint64_t word;
		NEED(pread(map, &word, 8, ((uintptr_t)at / PAGE + page) * 8) == 8);
		count += word >> 62 & 1;
	}
	close(map);
	return count;
}

/* A header as mkswap writes it, and the signature `name`. */
static void make_swap(const char *disk, uint32_t version, uint32_t last, uint32_t bad_count, uint32_t bad, const char *name)
{
	static unsigned char page[PAGE];
	memset(page, 0, PAGE);
	memcpy(page + 1024, &version, 4);
	memcpy(page + 1028, &last, 4);
	memcpy(page + 1032, &bad_count, 4);
	memcpy(page + 1536, &bad, 4);
	memcpy(page + PAGE - 10, name, 10);
	int file = open(disk, O_RDWR | O_CLOEXEC);
	NEED(file >= 0 && pwrite(file, page, PAGE, 0) == (ssize_t)PAGE && fsync(file) == 0);
	close(file);
}

#define GOOD "SWAPSPACE2"

/* The line of /proc/swaps that is about `disk`: 1 and its figures, or 0. */
static int listed(const char *disk, long *size, long *used, int *priority)
{
	char line[256], name[128], kind[32];
	int found = 0;
	FILE *swaps = fopen("/proc/swaps", "re");
	NEED(swaps);
	while (fgets(line, sizeof line, swaps))
		if (sscanf(line, "%127s %31s %ld %ld %d", name, kind, size, used, priority) == 5 && !strcmp(name, disk) && !strcmp(kind, "partition")) {
			found = 1;
			break;
		}
	fclose(swaps);
	return found;
}

static void refusals(const char *disk)
{
	int status;
	FAILS_WITH("swapon knows its flags", swapon(disk, 0x80000), EINVAL);
	FAILS_WITH("a path must be readable", swapon((char *)1, 0), EFAULT);
	FAILS_WITH("and lead somewhere", swapon("/dev/nowhere", 0), ENOENT);
	FAILS_WITH("a directory is no swap", swapon("/dev", 0), EISDIR);
	FAILS_WITH("nor is a character device", swapon("/dev/null", 0), EINVAL);
	int file = open("/dev/shm/swap", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	NEED(file >= 0 && ftruncate(file, 1 << 20) == 0);
	close(file);
	FAILS_WITH("nor is a file in memory", swapon("/dev/shm/swap", 0), EINVAL);
	unlink("/dev/shm/swap");
	make_swap(disk, 1, 200, 0, 0, "nothing at");
	FAILS_WITH("a disk without the signature is refused", swapon(disk, 0), EINVAL);
	make_swap(disk, 2, 200, 0, 0, GOOD);
	FAILS_WITH("so is another version", swapon(disk, 0), EINVAL);
	make_swap(disk, 1, 0, 0, 0, GOOD);
	FAILS_WITH("an area without a page", swapon(disk, 0), EINVAL);
	make_swap(disk, 1, 1 << 24, 0, 0, GOOD);
	FAILS_WITH("one that is longer than its disk", swapon(disk, 0), EINVAL);
	make_swap(disk, 1, 200, 638, 0, GOOD);
	FAILS_WITH("more bad pages than a header can name", swapon(disk, 0), EINVAL);
	make_swap(disk, 1, 200, 1, 201, GOOD);
	FAILS_WITH("a bad page outside", swapon(disk, 0), EINVAL);
	make_swap(disk, 1, 1, 1, 1, GOOD);
	FAILS_WITH("nothing but bad pages", swapon(disk, 0), EINVAL);
	make_swap(disk, 1, 200, 0, 0, GOOD);
	FAILS_WITH("swapoff of what is not on", swapoff(disk), EINVAL);
	IN_CHILD(status, NEED(setuid(1) == 0);
		_exit(!(swapon(disk, 0) == -1 && errno == EPERM && swapoff(disk) == -1 && errno == EPERM)));
	PROMISE("only the administrator may", status == 0);
}

/* A field of the area at `at` in /proc/self/smaps, in KiB. */
static long smaps(const void *at, const char *field)
{
	char line[256];
	unsigned long start, end;
	int here = 0;
	long value = -1, found;
	FILE *file = fopen("/proc/self/smaps", "re");
	NEED(file);
	while (fgets(line, sizeof line, file)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			here = start == (uintptr_t)at;
		else if (here && !strncmp(line, field, strlen(field)) && sscanf(line + strlen(field), ": %ld", &found) == 1)
			value = found;
	}
	fclose(file);
	return value;
}

/* How many of the pages are in memory, as mincore has it. */
static size_t in_core(void *at, size_t pages)
{
	unsigned char *map = malloc(pages);
	size_t count = 0;
	NEED(map && mincore(at, pages * PAGE, map) == 0);
	for (size_t page = 0; page < pages; page++)
		count += map[page] & 1;
	free(map);
	return count;
}

/* Shared memory, and files that are in memory only, go to the swap as programs' own pages do. */
static void shared_areas(const char *disk)
{
	enum { PAGES = 100 };
	long size, used;
	int status, priority;
	unsigned char *at = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(at != MAP_FAILED);
	for (size_t page = 0; page < PAGES; page++)
		fill(at + page * PAGE, page, 6);
	IN_CHILD(status, NEED(all_filled(at, PAGES, 6) && madvise(at, PAGES * PAGE, 21) == 0); _exit(smaps(at, "Rss") != PAGES * 4));
	PROMISE("shared memory that another maps, too, is not for one to send out", status == 0);
	PROMISE("else it goes", madvise(at, PAGES * PAGE, 21) == 0 && smaps(at, "Rss") < PAGES);
	PROMISE("it can be asked for ahead of need", madvise(at, PAGES * PAGE, MADV_WILLNEED) == 0 && in_core(at, PAGES) > PAGES * 3 / 4 && smaps(at, "Rss") < PAGES);
	NEED(all_filled(at, PAGES, 6) && madvise(at, PAGES * PAGE, 21) == 0);
	NEED(listed(disk, &size, &used, &priority));
	PROMISE("the list says so", used >= PAGES * 3);
	PROMISE("so does smaps, for whoever maps it", smaps(at, "Swap") >= PAGES * 3 && smaps(at, "SwapPss") == 0);
	IN_CHILD(status, int kept = all_filled(at, PAGES, 6); for (size_t page = 0; page < PAGES; page++) fill(at + page * PAGE, page, 7); _exit(!kept));
	PROMISE("a child finds it, and what the child stores is there for all", status == 0 && all_filled(at, PAGES, 7));
	madvise(at, PAGES * PAGE, 21);
	munmap(at, PAGES * PAGE);

	int file = memfd_create("bytes", MFD_CLOEXEC);
	NEED(file >= 0 && ftruncate(file, PAGES * PAGE) == 0);
	at = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	NEED(at != MAP_FAILED);
	for (size_t page = 0; page < PAGES; page++)
		fill(at + page * PAGE, page, 8);
	struct stat before, after;
	static unsigned char bytes[2 * PAGE];
	NEED(fstat(file, &before) == 0 && madvise(at, PAGES * PAGE, 21) == 0);
	PROMISE("a file in memory goes, too, and is as long and as full as before",
		smaps(at, "Rss") < PAGES && fstat(file, &after) == 0 && after.st_size == before.st_size && after.st_blocks == before.st_blocks);
	PROMISE("it is no hole", lseek(file, 0, SEEK_DATA) == 0 && lseek(file, 0, SEEK_HOLE) == PAGES * (off_t)PAGE);
	PROMISE("it can be read", pread(file, bytes, PAGE, 40 * PAGE) == (ssize_t)PAGE && is_filled(bytes, 40, 8));
	memcpy(bytes, at + 50 * PAGE, PAGE);
	madvise(at, PAGES * PAGE, 21);
	PROMISE("and written, in part", pwrite(file, "here", 4, 50 * PAGE + 1000) == 4 && !memcmp(at + 50 * PAGE, bytes, 1000) && !memcmp(at + 50 * PAGE + 1000, "here", 4) &&
					       !memcmp(at + 50 * PAGE + 1004, bytes + 1004, PAGE - 1004));
	madvise(at, PAGES * PAGE, 21);
	NEED(ftruncate(file, 60 * PAGE + 10) == 0 && ftruncate(file, PAGES * PAGE) == 0);
	memset(bytes, 0, PAGE);
	fill(bytes + PAGE, 60, 8);
	PROMISE("what is cut off is gone", !memcmp(at + 61 * PAGE, bytes, PAGE) && !memcmp(at + 60 * PAGE + 10, bytes, PAGE - 10));
	PROMISE("and what is left of its page is not", !memcmp(at + 60 * PAGE, bytes + PAGE, 10));
	madvise(at, PAGES * PAGE, 21);
	NEED(fallocate(file, 1 | 2 /* KEEP_SIZE, PUNCH_HOLE */, 10 * PAGE, 10 * PAGE) == 0);
	PROMISE("and so is what is punched out", !memcmp(at + 15 * PAGE, bytes, PAGE) && is_filled(at + 9 * PAGE, 9, 8) && is_filled(at + 20 * PAGE, 20, 8));
	madvise(at, PAGES * PAGE, 21);
	PROMISE("swapoff brings it in", swapoff(disk) == 0 && is_filled(at + 30 * PAGE, 30, 8) && is_filled(at + 59 * PAGE, 59, 8) && smaps(at, "Swap") == 0);
	NEED(swapon(disk, 0) == 0 && madvise(at, PAGES * PAGE, 21) == 0);
	munmap(at, PAGES * PAGE);
	close(file);
	NEED(listed(disk, &size, &used, &priority));
	PROMISE("a file that is no more leaves nothing in the swap", used <= 40);
	NEED(swapoff(disk) == 0);
}

static void areas(const char *disk)
{
	long size, used;
	int priority;
	refusals(disk);
	make_swap(disk, 1, 200, 2, 7, GOOD);
	FAILS_WITH("0 is no bad page", swapon(disk, 0), EINVAL);
	make_swap(disk, 1, 200, 1, 7, GOOD);
	PROMISE("a disk with a header becomes an area", swapon(disk, 0) == 0);
	FAILS_WITH("once", swapon(disk, 0), EBUSY);
	PROMISE("it is listed with what it can hold, behind all that somebody preferred",
		listed(disk, &size, &used, &priority) && size == 199 * 4 && used == 0 && priority < 0);
	FAILS_WITH("nobody else has it for himself", open(disk, O_RDWR | O_EXCL | O_CLOEXEC), EBUSY);
	int file = open(disk, O_RDWR | O_CLOEXEC);
	FAILS_WITH("or writes to it", write(file, GOOD, 10), ETXTBSY);
	close(file);
	PROMISE("it can be switched off", swapoff(disk) == 0 && !listed(disk, &size, &used, &priority));
	PROMISE("and on with a priority", swapon(disk, SWAP_FLAG_PREFER | 5) == 0 && listed(disk, &size, &used, &priority) && priority == 5);

	enum { PAGES = 100 };
	unsigned char *at = memory(PAGES);
	for (size_t page = 0; page < PAGES; page++)
		fill(at + page * PAGE, page, 1);
	long out = figure("/proc/vmstat", "pswpout");
	PROMISE("pages can be sent out", madvise(at, PAGES * PAGE, 21 /* MADV_PAGEOUT */) == 0);
	size_t gone = swapped(at, PAGES);
	PROMISE("and most go", gone > PAGES * 3 / 4);
	PROMISE("they are counted", figure("/proc/vmstat", "pswpout") - out >= (long)gone && figure("/proc/self/status", "VmSwap") >= (long)gone * 4);
	PROMISE("and are in the sum of smaps", figure("/proc/self/smaps_rollup", "Swap") >= (long)gone * 4
		&& figure("/proc/self/smaps_rollup", "SwapPss") >= (long)gone * 4);
	NEED(listed(disk, &size, &used, &priority));
	PROMISE("the list says so too", used >= (long)gone * 4 && used <= size);
	PROMISE("they come back as they were", all_filled(at, PAGES, 1) && swapped(at, PAGES) == 0);

	madvise(at, PAGES * PAGE, 21);
	int status;
	IN_CHILD(status, int kept = all_filled(at, PAGES, 1); for (size_t page = 0; page < PAGES; page++) fill(at + page * PAGE, page, 2);
		_exit(!kept || !all_filled(at, PAGES, 2)));
	PROMISE("a child has swapped pages too, and its own from its first store on", status == 0 && all_filled(at, PAGES, 1));
	madvise(at, PAGES * PAGE, 21);
	PROMISE("swapoff brings all of them in", swapoff(disk) == 0 && swapped(at, PAGES) == 0 && all_filled(at, PAGES, 1));
	FAILS_WITH("and then it is off", swapoff(disk), EINVAL);
	NEED(swapon(disk, 0) == 0);
	shared_areas(disk);
}

static sigjmp_buf back;

static void bus_error(int number, siginfo_t *info, void *context)
{
	(void)context;
	siglongjmp(back, number == SIGBUS && info->si_code == BUS_ADRERR ? 1 : 2);
}

/* The same of a file in memory: who reads it is told, who maps it gets a signal. */
static void lost_from_file(const char *disk)
{
	enum { PAGES = 64 };
	static unsigned char bytes[PAGE];
	NEED(swapon(disk, 0) == 0);
	int file = memfd_create("bytes", MFD_CLOEXEC);
	NEED(file >= 0 && ftruncate(file, PAGES * PAGE) == 0);
	unsigned char *at = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	NEED(at != MAP_FAILED);
	for (size_t page = 0; page < PAGES; page++)
		fill(at + page * PAGE, page, 5);
	NEED(madvise(at, PAGES * PAGE, 21) == 0);
	size_t gone = smaps(at, "Swap") / 4;
	PROMISE("a full area takes what it can of a file", gone >= 5 && gone <= 15);
	volatile size_t by_call = PAGES, by_store = PAGES, errors = 0, wrong = 0;
	for (volatile size_t page = 0; page < PAGES; page++) {
		ssize_t n = pread(file, bytes, PAGE, page * PAGE);
		if (n == -1 && errno == EIO) {
			by_call = page;
			errors++;
		} else
			wrong += n != (ssize_t)PAGE || !is_filled(bytes, page, 5);
	}
	PROMISE("a page of a file that cannot be read is an error, and no other page is", errors == 1 && wrong == 0);
	for (volatile size_t page = 0; page < PAGES; page++)
		if (sigsetjmp(back, 1) == 0)
			wrong += !is_filled(at + page * PAGE, page, 5);
		else
			by_store = page;
	PROMISE("the same page is a bus error through a mapping", by_store == by_call && by_call < PAGES && wrong == 0);
	PROMISE("swapoff gives up that page alone", swapoff(disk) == 0 && is_filled(at, 0, 5) && is_filled(at + (PAGES - 1) * PAGE, PAGES - 1, 5));
	PROMISE("a file that has lost a page can be cut", ftruncate(file, 0) == 0 && ftruncate(file, PAGES * PAGE) == 0 && at[PAGE * 5] == 0);
	munmap(at, PAGES * PAGE);
	close(file);
}

static void lost(const char *disk)
{
	enum { PAGES = 64 };
	struct sigaction action = { .sa_sigaction = bus_error, .sa_flags = SA_SIGINFO };
	sigaction(SIGBUS, &action, NULL);
	make_swap(disk, 1, 15, 0, 0, GOOD);
	NEED(swapon(disk, 0) == 0);
	unsigned char *at = memory(PAGES);
	for (size_t page = 0; page < PAGES; page++)
		fill(at + page * PAGE, page, 3);
	NEED(madvise(at, PAGES * PAGE, 21) == 0);
	size_t gone = swapped(at, PAGES);
	PROMISE("a full area takes what it can", gone >= 5 && gone <= 15);
	volatile int gone_for_good = 0, wrong = 0;
	for (volatile size_t page = 0; page < PAGES; page++) {
		int how = sigsetjmp(back, 1);
		if (how == 0)
			wrong += !is_filled(at + page * PAGE, page, 3);
		else if (how == 1)
			gone_for_good++;
		else
			wrong++;
	}
	PROMISE("a page that cannot be read is a bus error, and no other page is", gone_for_good == 1 && wrong == 0);
	int again = sigsetjmp(back, 1);
	if (again == 0)
		for (size_t page = 0; page < PAGES; page++)
			fill(at + page * PAGE, page, 4);
	PROMISE("storing to it is one too", again == 1);
	munmap(at, PAGES * PAGE);
	PROMISE("and nothing else is damaged", swapoff(disk) == 0);
	lost_from_file(disk);
}

static void refused(const char *disk)
{
	enum { PAGES = 8 };
	long size, used;
	int priority;
	make_swap(disk, 1, 15, 0, 0, GOOD);
	NEED(swapon(disk, 0) == 0);
	unsigned char *at = memory(PAGES);
	for (size_t page = 0; page < PAGES; page++)
		fill(at + page * PAGE, page, 3);
	NEED(madvise(at, PAGES * PAGE, 21) == 0);
	long out = figure("/proc/vmstat", "pswpout");
	PROMISE("a page that the disk does not take is the only one that stays", figure("/proc/meminfo", "SwapCached") == 4);
	NEED(madvise(at, PAGES * PAGE, 21) == 0);
	PROMISE("it goes elsewhere the next time", figure("/proc/vmstat", "pswpout") == out + 1 && figure("/proc/meminfo", "SwapCached") == 0);
	PROMISE("the place that failed is not used again", listed(disk, &size, &used, &priority) && size == 14 * 4 && used == PAGES * 4);
	PROMISE("every page is as it was", all_filled(at, PAGES, 3));
	PROMISE("and swapoff finds nothing amiss", swapoff(disk) == 0 && all_filled(at, PAGES, 3));
}

static int failed(const char *what, size_t where)
{
	fprintf(stderr, "%s: %zu (%s)\n", what, where, strerror(errno));
	return 1;
}

/* How many workers have filled their memory: all of it is in use at once before any of it is given back. */
static int *filled;

static void meet(int workers)
{
	__atomic_fetch_add(filled, 1, __ATOMIC_SEQ_CST);
	/* One that was killed never comes: then the promises at the end say so. */
	for (int64_t end = now_ms() + 60000; __atomic_load_n(filled, __ATOMIC_SEQ_CST) < workers && now_ms() < end;)
		sleep_ms(1);
}

/* Random stores and checks over `pages` pages, with forks whose children look at what they got, and marks of use cleared in between. */
static int mix(size_t pages, unsigned seed, int rounds, int workers)
{
	unsigned char *at = memory(pages);
	unsigned char *generation = calloc(pages, 1);
	uint64_t state = seed * 2654435761u + 1;
	for (size_t page = 0; page < pages; page++)
		fill(at + page * PAGE, page, generation[page] = 1);
	meet(workers);
	for (int round = 0; round < rounds; round++) {
		for (size_t step = 0; step < pages / 2; step++) {
			state = state * 6364136223846793005 + 1442695040888963407;
			/* Half of all steps go to a tenth of the pages. */
			size_t page = (state >> 33) % (state >> 63 ? pages / 10 : pages);
			if (!is_filled(at + page * PAGE, page, generation[page]))
				return failed("a page is wrong", page);
			if (state >> 62 & 1)
				fill(at + page * PAGE, page, ++generation[page]);
		}
		if (round % 2 == 0) {
			pid_t child = fork();
			if (child == 0) {
				for (size_t page = round; page < pages; page += 37) {
					if (!is_filled(at + page * PAGE, page, generation[page]))
						_exit(1);
					fill(at + page * PAGE, page, 255);
				}
				_exit(0);
			}
			int status = 1;
			if (child < 0)
				return failed("fork", round);
			if (waitpid(child, &status, 0) != child || status)
				return failed("a child's page is wrong", status);
		} else {
			int clear = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
			if (clear < 0 || write(clear, round % 4 == 1 ? "1" : "4", 1) != 1)
				return failed("clear_refs", round);
			close(clear);
		}
	}
	for (size_t page = 0; page < pages; page++)
		if (!is_filled(at + page * PAGE, page, generation[page]))
			return failed("a page is wrong in the end", page);
	munmap(at, pages * PAGE);
	free(generation);
	return 0;
}

static void pressure(int workers, int rounds)
{
	long total = figure("/proc/meminfo", "MemTotal"), swap = figure("/proc/meminfo", "SwapTotal");
	NEED(swap > total);
	/* 1.4 times the memory there is, shared out. */
	size_t pages = total * 14 / 10 / 4 / workers;
	filled = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(filled != MAP_FAILED);
	pid_t pids[16];
	for (int worker = 0; worker < workers; worker++) {
		fflush(stdout);
		pids[worker] = fork();
		NEED(pids[worker] >= 0);
		if (pids[worker] == 0)
			_exit(mix(pages, worker + 1, rounds, workers));
	}
	int kept = 1;
	for (int worker = 0; worker < workers; worker++) {
		int status;
		NEED(waitpid(pids[worker], &status, 0) == pids[worker]);
		kept &= status == 0;
	}
	PROMISE("programs that use 1.4 times the memory there is find every byte", kept);
	PROMISE("pages went out", figure("/proc/vmstat", "pswpout") > total / 4 / 4);
	PROMISE("and came in", figure("/proc/vmstat", "pswpin") > total / 4 / 8);
	PROMISE("kswapd looked for them", figure("/proc/vmstat", "pgscan_kswapd") > 0);
	PROMISE("pages were kept on write rather than copied", figure("/proc/vmstat", "pgreuse") > 0);
	PROMISE("none was copied without need", figure("/proc/vmstat", "cow_unneeded") == 0);
	PROMISE("nobody was killed", figure("/proc/vmstat", "oom_kill") == 0);
	PROMISE("and in the end the swap is empty", figure("/proc/meminfo", "SwapFree") + figure("/proc/meminfo", "SwapCached") >= swap - 2048);
}

/* The same without a deadline, unless one of them has failed: the bytes are wrong where not all have come. */
static void meet_all(int workers)
{
	__atomic_fetch_add(filled, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(filled, __ATOMIC_SEQ_CST) < workers)
		if (__atomic_load_n(filled + 1, __ATOMIC_SEQ_CST))
			_exit(1);
		else
			usleep(1000);
}

/* A file in a file system of its own that is memory only. */
static int file_in_memory(size_t pages)
{
	char options[40];
	snprintf(options, sizeof options, "size=%zuk", pages * 4 + 1024);
	NEED((mkdir("/large", 0755) == 0 || errno == EEXIST) && mount("none", "/large", "tmpfs", 0, options) == 0);
	int file = open("/large/file", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	NEED(file >= 0);
	return file;
}

/* Each worker has every so-manieth dozen of pages to itself to store to, and looks at those of the next one; at some of them in the file. */
static int together(unsigned char *at, size_t pages, int file, size_t of_file, int worker, int workers)
{
	enum { DOZEN = 12 };
	static unsigned char bytes[PAGE];
	int phase = 0, next = (worker + 1) % workers;
	for (int round = 1; round <= 2; round++) {
		for (size_t page = 0; page < pages; page++)
			if (page / DOZEN % workers == (size_t)worker)
				fill(at + page * PAGE, page, round);
		meet_all(workers * ++phase);
		for (size_t page = 0; page < pages; page++) {
			if (page / DOZEN % workers != (size_t)next)
				continue;
			int by_call = page >= of_file && page % 3 == 0;
			if (by_call && pread(file, bytes, PAGE, (page - of_file) * PAGE) != (ssize_t)PAGE)
				return failed("a shared page cannot be read", page);
			if (!is_filled(by_call ? bytes : at + page * PAGE, page, round))
				return failed("a shared page is wrong", page);
		}
		meet_all(workers * ++phase);
	}
	return 0;
}

/* Half of it is anonymous, half a file in memory. */
static void shared(int workers)
{
	long total = figure("/proc/meminfo", "MemTotal"), swap = figure("/proc/meminfo", "SwapTotal");
	size_t pages = total * 15 / 10 / 4, of_file = pages / 2;
	int kept = 1, file = file_in_memory(pages - of_file);
	NEED(swap > total && ftruncate(file, (pages - of_file) * PAGE) == 0);
	filled = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	unsigned char *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(filled != MAP_FAILED && at != MAP_FAILED);
	NEED(mmap(at + of_file * PAGE, (pages - of_file) * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED);
	fflush(stdout);
	for (int worker = 0; worker < workers; worker++) {
		pid_t pid = fork();
		NEED(pid >= 0);
		if (pid == 0)
			_exit(together(at, pages, file, of_file, worker, workers));
	}
	for (int status; wait(&status) > 0;)
		if (status) {
			kept = 0;
			__atomic_store_n(filled + 1, 1, __ATOMIC_SEQ_CST);
		}
	PROMISE("programs that share 1.5 times the memory there is find every byte", kept);
	PROMISE("so does who forked them", all_filled(at, pages, 2));
	PROMISE("pages went out", figure("/proc/vmstat", "pswpout") > total / 4 / 4);
	PROMISE("nobody was killed", figure("/proc/vmstat", "oom_kill") == 0);
	munmap(at, pages * PAGE);
	NEED(unlink("/large/file") == 0 && close(file) == 0);
	PROMISE("and in the end the swap is empty", figure("/proc/meminfo", "SwapFree") + figure("/proc/meminfo", "SwapCached") >= swap - 4096);
}

/* The first area in use. */
static const char *area_in_use(void)
{
	static char name[128];
	FILE *swaps = fopen("/proc/swaps", "re");
	NEED(swaps && fscanf(swaps, "%*[^\n] %127s", name) == 1);
	fclose(swaps);
	return name;
}

static void large_file(void)
{
	enum { RUN = 16 };
	static unsigned char bytes[RUN * PAGE];
	long total = figure("/proc/meminfo", "MemTotal"), swap = figure("/proc/meminfo", "SwapTotal");
	size_t pages = total * 15 / 10 / 4 / RUN * RUN, left = pages / 4, wrong = 0;
	int file = file_in_memory(pages);
	NEED(swap > total);
	for (size_t page = 0; page < pages; page += RUN) {
		for (size_t n = 0; n < RUN; n++)
			fill(bytes + n * PAGE, page + n, 1);
		if (write(file, bytes, sizeof bytes) != (ssize_t)sizeof bytes)
			break;
	}
	PROMISE("a file in memory can be larger than memory", lseek(file, 0, SEEK_CUR) == (off_t)(pages * PAGE));
	PROMISE("much of it is in the swap", figure("/proc/meminfo", "SwapFree") < swap - total / 2 && figure("/proc/meminfo", "Shmem") < total);
	for (size_t page = 0; page < pages; page += RUN) {
		NEED(pread(file, bytes, sizeof bytes, page * PAGE) == (ssize_t)sizeof bytes);
		for (size_t n = 0; n < RUN; n++)
			wrong += !is_filled(bytes + n * PAGE, page + n, 1);
	}
	PROMISE("it is read as it was written", wrong == 0);
	unsigned char *at = mmap(NULL, pages * PAGE, PROT_READ, MAP_SHARED, file, 0);
	NEED(at != MAP_FAILED);
	PROMISE("and so it is seen through a mapping", all_filled(at, pages, 1));
	PROMISE("nobody was killed", figure("/proc/vmstat", "oom_kill") == 0);
	NEED(ftruncate(file, left * PAGE) == 0);
	PROMISE("what is cut off leaves the swap", figure("/proc/meminfo", "SwapFree") + figure("/proc/meminfo", "SwapCached") >= swap - (long)left * 4 - 4096);
	PROMISE("swapoff brings back what is left", swapoff(area_in_use()) == 0 && figure("/proc/meminfo", "SwapTotal") == 0 && all_filled(at, left, 1));
}

static void full(void)
{
	long total = figure("/proc/meminfo", "MemTotal"), swap = figure("/proc/meminfo", "SwapTotal");
	NEED(swap > 0);
	unsigned char *mine = memory(256);
	for (size_t page = 0; page < 256; page++)
		fill(mine + page * PAGE, page, 9);
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		size_t pages = (total + swap) / 4 + 1024;
		for (size_t page = 0; page < pages; page++) {
			unsigned char *at = memory(1);
			fill(at, page, 1);
		}
		_exit(0);
	}
	int status;
	NEED(waitpid(child, &status, 0) == child);
	PROMISE("a program that wants more than memory and swap is killed", WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	PROMISE("it alone, once", figure("/proc/vmstat", "oom_kill") == 1);
	PROMISE("what others have is there", all_filled(mine, 256, 9));
	PROMISE("but not before the swap was full", figure("/proc/vmstat", "pswpout") >= swap / 4 * 9 / 10);
	fflush(stdout);
	child = fork();
	if (child == 0) {
		size_t pages = (total + swap) / 4 + 1024;
		unsigned char *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		for (size_t page = 0; at != MAP_FAILED && page < pages; page++)
			fill(at + page * PAGE, page, 1);
		_exit(0);
	}
	NEED(waitpid(child, &status, 0) == child);
	PROMISE("so is one that wants it as shared memory", WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	PROMISE("that one alone, once", figure("/proc/vmstat", "oom_kill") == 2);
	PROMISE("what others have is there still", all_filled(mine, 256, 9));
	PROMISE("and all of the swap is to be had again", figure("/proc/meminfo", "SwapFree") + figure("/proc/meminfo", "SwapCached") >= swap - 2048);
}

#define SPREAD (2UL << 20)

/* A child that needs page tables rather than pages, until somebody closes the other end of `end`. */
static int stay(int ready, int end)
{
	enum { PIECES = 32 };
	char byte = 1;
	unsigned char *at = mmap(NULL, PIECES * SPREAD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int kept = at != MAP_FAILED || !failed("mmap", PIECES * SPREAD);
	for (size_t piece = 0; kept && piece < PIECES; piece++)
		fill(at + piece * SPREAD, piece, 5);
	kept = kept && (write(ready, &byte, 1) == 1 || !failed("write", 1));
	/* Who waits for all of us waits for nobody who is gone. */
	close(ready);
	kept = kept && read(end, &byte, 1) == 0;
	for (size_t piece = 0; kept && piece < PIECES; piece++)
		kept = is_filled(at + piece * SPREAD, piece, 5);
	return !kept;
}

static void forks(int count)
{
	size_t pages = figure("/proc/meminfo", "MemTotal") * 12 / 10 / 4;
	unsigned char *at = memory(pages);
	for (size_t page = 0; page < pages; page++)
		fill(at + page * PAGE, page, 1);
	int ready[2], end[2], forked = 0, came = 0, kept = 0;
	NEED(pipe(ready) == 0 && pipe(end) == 0);
	fflush(stdout);
	for (int child = 0; child < count; child++) {
		pid_t pid = fork();
		forked += pid > 0;
		if (pid)
			continue;
		close(end[1]);
		close(ready[0]);
		if (child % 2) {
			char to[12], from[12];
			snprintf(to, sizeof to, "%d", ready[1]);
			snprintf(from, sizeof from, "%d", end[0]);
			execl("/proc/self/exe", "swap", "stay", to, from, NULL);
			_exit(failed("exec", child));
		}
		_exit(stay(ready[1], end[0]));
	}
	close(ready[1]);
	for (char byte; came < forked && read(ready[0], &byte, 1) == 1;)
		came++;
	PROMISE("no fork fails for want of memory that others could give", forked == count);
	PROMISE("nor does what the children need for themselves", came == forked);
	close(end[1]);
	for (int status; wait(&status) > 0;)
		kept += status == 0 || !failed("a child ended with status", status);
	PROMISE("and they keep it", kept == count);
	PROMISE("so does their parent", all_filled(at, pages, 1));
	PROMISE("pageblocks were made whole for it", figure("/proc/vmstat", "compact_success") > 0);
	PROMISE("nobody was killed", figure("/proc/vmstat", "oom_kill") == 0);
}

int main(int argc, char **argv)
{
	NEED(argc >= 2);
	if (!strcmp(argv[1], "areas") && argc == 3)
		areas(argv[2]);
	else if (!strcmp(argv[1], "lost") && argc == 3)
		lost(argv[2]);
	else if (!strcmp(argv[1], "refused") && argc == 3)
		refused(argv[2]);
	else if (!strcmp(argv[1], "pressure") && argc == 4)
		pressure(atoi(argv[2]), atoi(argv[3]));
	else if (!strcmp(argv[1], "full"))
		full();
	else if (!strcmp(argv[1], "shared") && argc == 3)
		shared(atoi(argv[2]));
	else if (!strcmp(argv[1], "file"))
		large_file();
	else if (!strcmp(argv[1], "forks") && argc == 3)
		forks(atoi(argv[2]));
	else if (!strcmp(argv[1], "stay") && argc == 4)
		return stay(atoi(argv[2]), atoi(argv[3]));
	else
		NEED(!"such a mode");
	return conclude();
}
