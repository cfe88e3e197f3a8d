/*
 * Counts needless copies of pages: stores to a page that no other process shares, after which the
 * page lies in another frame (/proc/self/pagemap, so it needs root). No kernel counts this itself,
 * so the same program judges all of them.
 *
 * Usage: needless [MIB [PERCENT]]: patterns over MIB (default 32), then a mix of loads and stores
 * over PERCENT (default 140) of the machine's memory, which needs swap; 0 leaves it out.
 *
 * The patterns are those of usemem's anon-cow (a prefaulted area, forked to N processes that each
 * store to all of it, in order or at random), those that clear a leaf's right to write (clear_refs,
 * mprotect), and a fork whose child has gone.
 */
#include "../conformance/promise.h"

enum { PAGE = 4096, WORDS = PAGE / 8 };

static int pagemap;
static uint64_t state = 88172645463325252;

/* Totals to which the children add. */
static struct {
	uint64_t stores, copies;
} *shared;

static uint32_t roll(uint32_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 32) % below;
}

/* The frame of the page at `at`; 0 if it is not in memory. */
static uint64_t frame_of(const void *at)
{
	uint64_t entry;
	NEED(pread(pagemap, &entry, 8, (uintptr_t)at / PAGE * 8) == 8);
	return entry >> 63 ? entry & ((1ull << 55) - 1) : 0;
}

/* Stores to the page; returns 1 if it was in memory before and is in another frame now. */
static int store(volatile uint64_t *page, uint64_t value)
{
	uint64_t before = frame_of((void *)page);
	page[0] = value;
	uint64_t now = frame_of((void *)page);
	return before && now && now != before;
}

static uint64_t *area(size_t length)
{
	void *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(at != MAP_FAILED);
	madvise(at, length, MADV_NOHUGEPAGE);
	for (size_t i = 0; i < length / 8; i += WORDS)
		((uint64_t *)at)[i] = i;
	return at;
}

static void tell(const char *pattern, uint64_t stores, uint64_t copies, uint64_t needed)
{
	printf("%-28s %9lu stores %8lu copies %8lu needed %8ld needless\n", pattern, stores, copies, needed, (long)(copies - needed));
	fflush(stdout);
}

/* Every process stores to all pages while all of them live: each page needs a copy for every
 * process except one. */
static void usemem(const char *name, size_t length, int children, int at_random)
{
	size_t pages = length / PAGE;
	uint64_t *at = area(length);
	pthread_barrier_t *all = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_barrierattr_t between;
	NEED(all != MAP_FAILED && pthread_barrierattr_init(&between) == 0);
	pthread_barrierattr_setpshared(&between, PTHREAD_PROCESS_SHARED);
	NEED(pthread_barrier_init(all, &between, children + 1) == 0);
	shared->stores = shared->copies = 0;
	fflush(stdout);
	for (int child = 0; child <= children; child++) {
		pid_t pid = child < children ? fork() : 0;
		NEED(pid >= 0);
		if (pid)
			continue;
		/* The last process is the parent itself. */
		pagemap = open("/proc/self/pagemap", O_RDONLY);
		NEED(pagemap >= 0);
		state += child;
		pthread_barrier_wait(all);
		uint64_t copies = 0, step = at_random ? (2 * roll(pages / 2) + 1) : 1;
		for (size_t i = 0; i < pages; i++)
			copies += store(at + i * step % pages * WORDS, child);
		__atomic_fetch_add(&shared->stores, pages, __ATOMIC_RELAXED);
		__atomic_fetch_add(&shared->copies, copies, __ATOMIC_RELAXED);
		pthread_barrier_wait(all);
		if (child < children)
			_exit(0);
	}
	for (int child = 0; child < children; child++)
		NEED(wait(NULL) > 0);
	tell(name, shared->stores, shared->copies, (uint64_t)children * pages);
	munmap(at, length);
	munmap(all, PAGE);
}

static void alone(const char *name, size_t length, void (*before)(void *at, size_t length))
{
	uint64_t *at = area(length), copies = 0;
	size_t pages = length / PAGE;
	before(at, length);
	for (size_t i = 0; i < pages; i++)
		copies += store(at + i * WORDS, i);
	tell(name, pages, copies, 0);
	munmap(at, length);
}

static void clear_marks(void *at, size_t length)
{
	(void)at, (void)length;
	int fd = open("/proc/self/clear_refs", O_WRONLY);
	NEED(fd >= 0 && write(fd, "4", 1) == 1);
	close(fd);
}

static void protect(void *at, size_t length)
{
	NEED(mprotect(at, length, PROT_READ) == 0 && mprotect(at, length, PROT_READ | PROT_WRITE) == 0);
}

static void outlive_a_child(void *at, size_t length)
{
	(void)at, (void)length;
	int status;
	IN_CHILD(status, (void)0);
}

static void page_out_and_load(void *at, size_t length)
{
	madvise(at, length, MADV_PAGEOUT);
	for (size_t i = 0; i < length / 8; i += WORDS)
		(void)((volatile uint64_t *)at)[i];
}

/* Random loads and stores to more pages than memory has, by one process, so that no copy is ever
 * needed. */
static void mix(unsigned percent)
{
	size_t pages = sysconf(_SC_PHYS_PAGES) / 100 * percent, copies = 0, stores = 0;
	uint64_t *at = area(pages * PAGE);
	for (size_t turn = 0; turn < pages; turn++) {
		volatile uint64_t *page = at + (size_t)roll(pages) * WORDS;
		(void)page[1];
		if (roll(100) < 50)
			continue;
		copies += store(page, page[0]);
		stores++;
	}
	for (size_t i = 0; i < pages; i++)
		NEED(at[i * WORDS] == i * WORDS);
	tell("mix beyond memory", stores, copies, 0);
}

int main(int argc, char **argv)
{
	size_t length = (argc > 1 ? atol(argv[1]) : 32) << 20;
	unsigned percent = argc > 2 ? atoi(argv[2]) : 140;
	if (argc > 3 || length == 0 || percent > 1000) {
		fprintf(stderr, "usage: needless [MIB [PERCENT]]\n");
		return 2;
	}
	pagemap = open("/proc/self/pagemap", O_RDONLY);
	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(pagemap >= 0 && shared != MAP_FAILED);
	usemem("anon-cow-seq, 1 child", length, 1, 0);
	usemem("anon-cow-seq, 4 children", length / 4, 4, 0);
	usemem("anon-cow-rand, 1 child", length, 1, 1);
	usemem("anon-cow-rand, 4 children", length / 4, 4, 1);
	alone("clear_refs", length, clear_marks);
	alone("mprotect", length, protect);
	alone("a child that has gone", length, outlive_a_child);
	alone("page out, load, store", length, page_out_and_load);
	if (percent)
		mix(percent);
	return 0;
}
