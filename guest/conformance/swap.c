/*
 * Swap, from swapon to the last byte. For programs that use more memory than the machine has, see
 * pressure.c.
 *
 * Usage: swap areas DISK     DISK, of 1 MiB or more, becomes a swap area again and again
 *        swap lost DISK      DISK, of 64 KiB, cannot read its page 5
 *        swap refused DISK   DISK, of 64 KiB, cannot write its page 5
 */
#include "promise.h"

#include "numbered.h"

#include <setjmp.h>
#include <sys/swap.h>

/* Returns the number of pages that are swapped out, according to pagemap. */
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

/* Writes a header as mkswap does, with the signature `name`. */
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

/* Finds the line of /proc/swaps about `disk`; returns 1 and stores its figures, or returns 0. */
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

/* Returns the number of pages that are in memory, according to mincore. */
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

/* Shared memory, and files that are in memory only, are swapped out as programs' private pages
 * are. */
static void shared_areas(const char *disk)
{
	enum { PAGES = 100 };
	long size, used;
	int status, priority;
	unsigned char *at = shared_memory(PAGES);
	fill_all(at, PAGES, 6);
	IN_CHILD(status, NEED(all_filled(at, PAGES, 6) && madvise(at, PAGES * PAGE, MADV_PAGEOUT) == 0); _exit(smaps(at, "Rss") != PAGES * 4));
	PROMISE("shared memory that another maps, too, is not for one to send out", status == 0);
	PROMISE("else it goes", madvise(at, PAGES * PAGE, MADV_PAGEOUT) == 0 && smaps(at, "Rss") < PAGES);
	PROMISE("it can be asked for ahead of need", madvise(at, PAGES * PAGE, MADV_WILLNEED) == 0 && in_core(at, PAGES) > PAGES * 3 / 4 && smaps(at, "Rss") < PAGES);
	NEED(all_filled(at, PAGES, 6) && madvise(at, PAGES * PAGE, MADV_PAGEOUT) == 0);
	NEED(listed(disk, &size, &used, &priority));
	PROMISE("the list says so", used >= PAGES * 3);
	PROMISE("so does smaps, for whoever maps it", smaps(at, "Swap") >= PAGES * 3 && smaps(at, "SwapPss") == 0);
	IN_CHILD(status, int kept = all_filled(at, PAGES, 6); fill_all(at, PAGES, 7); _exit(!kept));
	PROMISE("a child finds it, and what the child stores is there for all", status == 0 && all_filled(at, PAGES, 7));
	madvise(at, PAGES * PAGE, MADV_PAGEOUT);
	munmap(at, PAGES * PAGE);

	int file = memfd_create("bytes", MFD_CLOEXEC);
	NEED(file >= 0 && ftruncate(file, PAGES * PAGE) == 0);
	at = map(PAGES, MAP_SHARED, file);
	fill_all(at, PAGES, 8);
	struct stat before, after;
	static unsigned char bytes[2 * PAGE];
	NEED(fstat(file, &before) == 0 && madvise(at, PAGES * PAGE, MADV_PAGEOUT) == 0);
	PROMISE("a file in memory goes, too, and is as long and as full as before",
		smaps(at, "Rss") < PAGES && fstat(file, &after) == 0 && after.st_size == before.st_size && after.st_blocks == before.st_blocks);
	PROMISE("it is no hole", lseek(file, 0, SEEK_DATA) == 0 && lseek(file, 0, SEEK_HOLE) == PAGES * (off_t)PAGE);
	PROMISE("it can be read", pread(file, bytes, PAGE, 40 * PAGE) == (ssize_t)PAGE && is_filled(bytes, 40, 8));
	memcpy(bytes, at + 50 * PAGE, PAGE);
	madvise(at, PAGES * PAGE, MADV_PAGEOUT);
	PROMISE("and written, in part", pwrite(file, "here", 4, 50 * PAGE + 1000) == 4 && !memcmp(at + 50 * PAGE, bytes, 1000) && !memcmp(at + 50 * PAGE + 1000, "here", 4) &&
					       !memcmp(at + 50 * PAGE + 1004, bytes + 1004, PAGE - 1004));
	madvise(at, PAGES * PAGE, MADV_PAGEOUT);
	NEED(ftruncate(file, 60 * PAGE + 10) == 0 && ftruncate(file, PAGES * PAGE) == 0);
	memset(bytes, 0, PAGE);
	fill(bytes + PAGE, 60, 8);
	PROMISE("what is cut off is gone", !memcmp(at + 61 * PAGE, bytes, PAGE) && !memcmp(at + 60 * PAGE + 10, bytes, PAGE - 10));
	PROMISE("and what is left of its page is not", !memcmp(at + 60 * PAGE, bytes + PAGE, 10));
	madvise(at, PAGES * PAGE, MADV_PAGEOUT);
	NEED(fallocate(file, 1 | 2 /* KEEP_SIZE, PUNCH_HOLE */, 10 * PAGE, 10 * PAGE) == 0);
	PROMISE("and so is what is punched out", !memcmp(at + 15 * PAGE, bytes, PAGE) && is_filled(at + 9 * PAGE, 9, 8) && is_filled(at + 20 * PAGE, 20, 8));
	madvise(at, PAGES * PAGE, MADV_PAGEOUT);
	PROMISE("swapoff brings it in", swapoff(disk) == 0 && is_filled(at + 30 * PAGE, 30, 8) && is_filled(at + 59 * PAGE, 59, 8) && smaps(at, "Swap") == 0);
	NEED(swapon(disk, 0) == 0 && madvise(at, PAGES * PAGE, MADV_PAGEOUT) == 0);
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
	char *stores;
	FAILS_WITH("or stores to it through a mapping", (long)(stores = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)), EPERM);
	if (stores != MAP_FAILED)
		munmap(stores, PAGE);
	PROMISE("it can be switched off", swapoff(disk) == 0 && !listed(disk, &size, &used, &priority));
	stores = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	int taken = swapon(disk, 0), why = errno;
	PROMISE("it is none while a mapping may store to it", stores != MAP_FAILED && taken == -1 && why == EBUSY);
	if (taken == 0)
		swapoff(disk);
	munmap(stores, PAGE);
	close(file);
	PROMISE("and on with a priority", swapon(disk, SWAP_FLAG_PREFER | 5) == 0 && listed(disk, &size, &used, &priority) && priority == 5);

	enum { PAGES = 100 };
	unsigned char *at = memory(PAGES);
	fill_all(at, PAGES, 1);
	long out = figure("/proc/vmstat", "pswpout");
	PROMISE("pages can be sent out", madvise(at, PAGES * PAGE, MADV_PAGEOUT) == 0);
	size_t gone = swapped(at, PAGES);
	PROMISE("and most go", gone > PAGES * 3 / 4);
	PROMISE("they are counted", figure("/proc/vmstat", "pswpout") - out >= (long)gone && figure("/proc/self/status", "VmSwap") >= (long)gone * 4);
	PROMISE("and are in the sum of smaps", figure("/proc/self/smaps_rollup", "Swap") >= (long)gone * 4
		&& figure("/proc/self/smaps_rollup", "SwapPss") >= (long)gone * 4);
	NEED(listed(disk, &size, &used, &priority));
	PROMISE("the list says so too", used >= (long)gone * 4 && used <= size);
	PROMISE("they come back as they were", all_filled(at, PAGES, 1) && swapped(at, PAGES) == 0);

	madvise(at, PAGES * PAGE, MADV_PAGEOUT);
	int status;
	IN_CHILD(status, int kept = all_filled(at, PAGES, 1); fill_all(at, PAGES, 2);
		_exit(!kept || !all_filled(at, PAGES, 2)));
	PROMISE("a child has swapped pages too, and its own from its first store on", status == 0 && all_filled(at, PAGES, 1));
	madvise(at, PAGES * PAGE, MADV_PAGEOUT);
	PROMISE("swapoff brings all of them in", swapoff(disk) == 0 && swapped(at, PAGES) == 0 && all_filled(at, PAGES, 1));
	FAILS_WITH("and then it is off", swapoff(disk), EINVAL);
	NEED(swapon(disk, 0) == 0);
	shared_areas(disk);
}

/* Makes pages of generation 3 and has as many of them swapped out as fit on DISK, which becomes
 * a swap area of 15 pages. */
static unsigned char *sent_out(const char *disk, size_t pages)
{
	make_swap(disk, 1, 15, 0, 0, GOOD);
	NEED(swapon(disk, 0) == 0);
	unsigned char *at = memory(pages);
	fill_all(at, pages, 3);
	NEED(madvise(at, pages * PAGE, MADV_PAGEOUT) == 0);
	return at;
}

static sigjmp_buf back;

static void bus_error(int number, siginfo_t *info, void *context)
{
	(void)context;
	siglongjmp(back, number == SIGBUS && info->si_code == BUS_ADRERR ? 1 : 2);
}

/* The lost page belongs to a file in memory: a read fails, and an access to a mapping gets a
 * signal. */
static void lost_from_file(const char *disk)
{
	enum { PAGES = 64 };
	static unsigned char bytes[PAGE];
	NEED(swapon(disk, 0) == 0);
	int file = memfd_create("bytes", MFD_CLOEXEC);
	NEED(file >= 0 && ftruncate(file, PAGES * PAGE) == 0);
	unsigned char *at = map(PAGES, MAP_SHARED, file);
	fill_all(at, PAGES, 5);
	NEED(madvise(at, PAGES * PAGE, MADV_PAGEOUT) == 0);
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
	unsigned char *at = sent_out(disk, PAGES);
	size_t gone = swapped(at, PAGES);
	PROMISE("a full area takes what it can", gone >= 5 && gone <= 15);
	volatile int gone_for_good = 0, wrong = 0;
	unsigned char *volatile missing = at;
	for (volatile size_t page = 0; page < PAGES; page++) {
		int how = sigsetjmp(back, 1);
		if (how == 0) {
			wrong += !is_filled(at + page * PAGE, page, 3);
		} else if (how == 1) {
			gone_for_good++;
			missing = at + page * PAGE;
		} else {
			wrong++;
		}
	}
	PROMISE("a page that cannot be read is a bus error, and no other page is", gone_for_good == 1 && wrong == 0);
	int status;
	IN_CHILD(status, signal(SIGBUS, SIG_DFL); *(volatile unsigned char *)missing = 1);
	PROMISE("one that is not handled kills with SIGBUS", WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
	IN_CHILD(status, signal(SIGBUS, SIG_DFL); __asm__ volatile("mov %0, %%rsp; push %%rax" : : "r"(missing + PAGE / 2) : "memory"));
	PROMISE("so does a stack that is lost", WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
	IN_CHILD(status, __asm__ volatile("mov %0, %%rsp; push %%rax" : : "r"(missing + PAGE / 2) : "memory"));
	PROMISE("a handler that would need it cannot run: SIGSEGV", WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	int again = sigsetjmp(back, 1);
	if (again == 0)
		fill_all(at, PAGES, 4);
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
	unsigned char *at = sent_out(disk, PAGES);
	long out = figure("/proc/vmstat", "pswpout");
	PROMISE("a page that the disk does not take is the only one that stays", figure("/proc/meminfo", "SwapCached") == 4);
	NEED(madvise(at, PAGES * PAGE, MADV_PAGEOUT) == 0);
	PROMISE("it goes elsewhere the next time", figure("/proc/vmstat", "pswpout") == out + 1 && figure("/proc/meminfo", "SwapCached") == 0);
	PROMISE("the place that failed is not used again", listed(disk, &size, &used, &priority) && size == 14 * 4 && used == PAGES * 4);
	PROMISE("every page is as it was", all_filled(at, PAGES, 3));
	PROMISE("and swapoff finds nothing amiss", swapoff(disk) == 0 && all_filled(at, PAGES, 3));
}

int main(int argc, char **argv)
{
	NEED(argc == 3);
	if (!strcmp(argv[1], "areas"))
		areas(argv[2]);
	else if (!strcmp(argv[1], "lost"))
		lost(argv[2]);
	else if (!strcmp(argv[1], "refused"))
		refused(argv[2]);
	else
		NEED(!"such a mode");
	return conclude();
}
