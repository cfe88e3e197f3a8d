/*
 * Transparent huge pages: which memory gets pages of 2 MiB, and when. Covers the files of
 * /sys/kernel/mm/transparent_hugepage, the task that collapses small pages into large ones, and
 * their counters in /proc/vmstat. The machine has 512 MiB or more.
 */
#include "promise.h"
#include "setting.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { PAGE = 4096, PAGES = 512 };
static const size_t LARGE = 2 << 20;

#define ROOT "/sys/kernel/mm/transparent_hugepage/"

static int put(const char *name, const char *text)
{
	char path[200];
	snprintf(path, sizeof path, ROOT "%s", name);
	errno = stores(path, text);
	return errno == 0;
}

/* The text of a file; empty where there is none. */
static const char *get(const char *name)
{
	static char text[400];
	char path[200];
	snprintf(path, sizeof path, ROOT "%s", name);
	int file = open(path, O_RDONLY);
	ssize_t came = file < 0 ? 0 : read(file, text, sizeof text - 1);
	close(file);
	text[came > 0 ? came : 0] = 0;
	return text;
}

static long number(const char *name)
{
	return strtol(get(name), NULL, 10);
}

/* Sets a file to `text`; returns whether its text shows that choice in brackets afterwards. */
static int chosen(const char *name, const char *text)
{
	char shown[40];
	snprintf(shown, sizeof shown, "[%s]", text);
	return put(name, text) && strstr(get(name), shown) != NULL;
}

static int is_refused(const char *name, const char *text)
{
	return !put(name, text) && errno == EINVAL;
}

static long counter(const char *name)
{
	return figure_or("/proc/vmstat", name, -1);
}

/* Returns how many KiB of the area at `at` are mapped by large pages. */
static long large(const void *at)
{
	FILE *file = fopen("/proc/self/smaps", "r");
	char line[400];
	unsigned long start, end;
	int here = 0;
	long kilobytes = -1;
	while (file && fgets(line, sizeof line, file)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			here = start <= (uintptr_t)at && (uintptr_t)at < end;
		else if (here && sscanf(line, "AnonHugePages: %ld", &kilobytes) == 1)
			break;
	}
	if (file)
		fclose(file);
	return kilobytes;
}

/* 2 MiB of small pages, the first `pages` of them with their numbers in them. */
static char *small_pages(int pages)
{
	char *room = mmap(NULL, 2 * LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(room != MAP_FAILED);
	char *at = (char *)(((uintptr_t)room + LARGE - 1) & ~(LARGE - 1));
	if (at > room)
		munmap(room, at - room);
	munmap(at + LARGE, room + LARGE - at);
	NEED(madvise(at, LARGE, MADV_NOHUGEPAGE) == 0);
	for (int page = 0; page < pages; page++)
		*(int *)(at + page * PAGE) = page + 1;
	return at;
}

static int holds_numbers(char *at, int pages)
{
	for (int page = 0; page < PAGES; page++)
		if (*(int *)(at + page * PAGE) != (page < pages ? page + 1 : 0))
			return 0;
	return 1;
}

/* Waits until the task has made a large page. The task skips a busy process for one pass. */
static int becomes_large(char *at)
{
	return COMES_TRUE(large(at) == 2048);
}

/* Waits until the task has scanned all memory twice; returns whether `at` is still small. */
static int stays_small(char *at)
{
	long scans = number("khugepaged/full_scans") + 2;
	return COMES_TRUE(number("khugepaged/full_scans") >= scans) && large(at) == 0;
}

static void files(void)
{
	const char *words[] = { "never", "madvise", "always" };
	for (int which = 0; which < 3; which++)
		PROMISE("enabled takes its words", chosen("enabled", words[which]));
	const char *efforts[] = { "always", "defer", "defer+madvise", "never", "madvise" };
	int all = 1;
	for (int which = 0; which < 5; which++)
		all &= chosen("defrag", efforts[which]);
	PROMISE("defrag takes its words", all);
	PROMISE("and no others", is_refused("enabled", "sometimes") && is_refused("defrag", "ever"));
	PROMISE("shmem_enabled says what it is set to", chosen("shmem_enabled", "advise") && chosen("shmem_enabled", "never"));
	PROMISE("the size of a large page", number("hpage_pmd_size") == 2 << 20);
	const char *limits[] = { "khugepaged/max_ptes_none", "khugepaged/max_ptes_swap", "khugepaged/max_ptes_shared" };
	all = 1;
	for (int which = 0; which < 3; which++)
		all &= is_refused(limits[which], "512") && is_refused(limits[which], "-1") && is_refused(limits[which], "x")
			&& put(limits[which], "511\n") && number(limits[which]) == 511;
	PROMISE("limits of pages are up to 511", all);
	PROMISE("a look of no pages is refused", is_refused("khugepaged/pages_to_scan", "0"));
	PROMISE("sleeps are numbers", put("khugepaged/scan_sleep_millisecs", "10") && put("khugepaged/alloc_sleep_millisecs", "10")
		&& number("khugepaged/scan_sleep_millisecs") == 10 && is_refused("khugepaged/scan_sleep_millisecs", "4294967296"));
	PROMISE("counts are read only", !put("khugepaged/pages_collapsed", "0") && !put("khugepaged/full_scans", "0"));
}

static void task(void)
{
	NEED(put("enabled", "madvise"));
	/* On Linux the task scans memory only if an area was advised to have large pages. */
	char *other = small_pages(1);
	NEED(madvise(other, LARGE, MADV_HUGEPAGE) == 0 && becomes_large(other));
	long made = number("khugepaged/pages_collapsed"), events = counter("thp_collapse_alloc");
	char *at = small_pages(9);
	PROMISE("memory that is advised against stays small", stays_small(at));
	NEED(madvise(at, LARGE, MADV_HUGEPAGE) == 0);
	PROMISE("the task makes a large page where it is advised", becomes_large(at));
	PROMISE("of the same bytes", holds_numbers(at, 9));
	PROMISE("and counts it", number("khugepaged/pages_collapsed") > made && counter("thp_collapse_alloc") > events);
	munmap(at, LARGE);

	NEED(put("khugepaged/max_ptes_none", "256"));
	at = small_pages(255);
	NEED(madvise(at, LARGE, MADV_HUGEPAGE) == 0);
	long passed = counter("thp_scan_exceed_none_pte");
	PROMISE("not where more pages are empty than may be, which counts", COMES_TRUE(counter("thp_scan_exceed_none_pte") > passed) && stays_small(at));
	*(int *)(at + 255 * PAGE) = 256;
	PROMISE("but where as many are", becomes_large(at) && holds_numbers(at, 256));
	munmap(at, LARGE);
	NEED(put("khugepaged/max_ptes_none", "511"));

	NEED(put("khugepaged/max_ptes_shared", "3"));
	at = small_pages(8);
	passed = counter("thp_scan_exceed_share_pte");
	int status;
	IN_CHILD(status,
		for (int page = 4; page < 8; page++)
			*(int *)(at + page * PAGE) = page + 1;
		madvise(at, LARGE, MADV_HUGEPAGE);
		if (!COMES_TRUE(counter("thp_scan_exceed_share_pte") > passed) || !stays_small(at)) _exit(1);
		*(int *)(at + 3 * PAGE) = 4;
		_exit(becomes_large(at) && holds_numbers(at, 8) ? 0 : 2));
	PROMISE("nor where more are shared than may be, which counts too", status == 0);
	PROMISE("whose other owner keeps them", large(at) == 0 && holds_numbers(at, 8));
	munmap(at, LARGE);
	NEED(put("khugepaged/max_ptes_shared", "256"));

	NEED(put("enabled", "never"));
	at = small_pages(PAGES);
	NEED(madvise(at, LARGE, MADV_HUGEPAGE) == 0);
	sleep_ms(60);
	PROMISE("not where large pages are not wanted at all", large(at) == 0);
	PROMISE("a program that asks for its own gets it", madvise(at, LARGE, MADV_COLLAPSE) == 0 && large(at) == 2048
		&& holds_numbers(at, PAGES));
	munmap(at + LARGE - PAGE, PAGE);
	FAILS_WITH("where none has room it is told so", madvise(at, PAGE, MADV_COLLAPSE), EINVAL);
	munmap(at, LARGE - PAGE);
	munmap(other, LARGE);
}

static void counters(void)
{
	NEED(put("enabled", "madvise"));
	long faults = counter("thp_fault_alloc"), leaves = counter("thp_split_pmd");
	char *at = small_pages(0);
	NEED(madvise(at, LARGE, MADV_HUGEPAGE) == 0);
	*at = 1;
	PROMISE("a fault with a large page counts", large(at) == 2048 && counter("thp_fault_alloc") == faults + 1);
	/* The task must not make it large again at once. */
	NEED(put("enabled", "never"));
	NEED(madvise(at, PAGE, MADV_DONTNEED) == 0);
	PROMISE("taking it apart does", large(at) == 0 && counter("thp_split_pmd") == leaves + 1);
	munmap(at, LARGE);
}

/* Settings and counters per size, which only kernels after 6.1 have. */
static void size(void)
{
	const char *words[] = { "always", "madvise", "never", "inherit" };
	PROMISE("a size is as all are at first", strstr(get("hugepages-2048kB/enabled"), "[inherit]")
		&& strstr(get("hugepages-2048kB/shmem_enabled"), "[inherit]"));
	int all = 1;
	for (int which = 0; which < 4; which++)
		all &= chosen("hugepages-2048kB/enabled", words[which]);
	PROMISE("a size has its own setting", all && is_refused("hugepages-2048kB/enabled", "x"));
	NEED(put("enabled", "never") && put("hugepages-2048kB/enabled", "always"));
	long faults = number("hugepages-2048kB/stats/anon_fault_alloc");
	char *at = small_pages(0);
	NEED(madvise(at, LARGE, MADV_HUGEPAGE) == 0);
	*at = 1;
	PROMISE("which decides unless it says inherit", large(at) == 2048);
	PROMISE("and its own counts", number("hugepages-2048kB/stats/anon_fault_alloc") == faults + 1);
	munmap(at, LARGE);
	NEED(put("hugepages-2048kB/enabled", "inherit"));
	at = small_pages(0);
	NEED(madvise(at, LARGE, MADV_HUGEPAGE) == 0);
	*at = 1;
	PROMISE("as here", large(at) == 0);
	munmap(at, LARGE);
}

int main(int count, char **arguments)
{
	files();
	task();
	counters();
	if (count < 2 || strcmp(arguments[1], "old") != 0)
		size();
	return conclude();
}
