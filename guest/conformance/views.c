/*
 * A program's view of its memory, and its advice about it: PAGEMAP_SCAN, smaps, and the kinds of
 * madvise(2) that remove or populate pages.
 *
 * With the argument "old" the features that Linux gained after 6.1 are left out.
 */
#include "promise.h"
#include <linux/falloc.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

enum { PAGE = 4096 };

static char *anonymous(int pages, int protection, int sharing)
{
	char *at = mmap(NULL, pages * PAGE, protection, sharing | MAP_ANONYMOUS, -1, 0);
	NEED(at != MAP_FAILED);
	return at;
}

static int is_there(char *at)
{
	unsigned char answer = 0;
	NEED(mincore(at, PAGE, &answer) == 0);
	return answer & 1;
}

struct scan {
	uint64_t size, flags, start, end, walk_end, out, room, most, inverted, all_of, any_of, told;
};
struct region {
	uint64_t start, end, categories;
};

enum { WPALLOWED = 1, WRITTEN = 2, OF_FILE = 4, PRESENT = 8, SWAPPED = 16, ZERO = 32, IS_HUGE = 64, SOFT_DIRTY = 128 };
#define SCAN 0xc0606610

static int pagemap;
static struct region found[8];

static struct scan wish(const char *at, int pages)
{
	memset(found, 0, sizeof found);
	return (struct scan){ .size = sizeof(struct scan), .start = (uintptr_t)at, .end = (uintptr_t)at + pages * PAGE,
		.out = (uintptr_t)found, .room = 8, .any_of = PRESENT | SWAPPED, .told = PRESENT | SWAPPED | OF_FILE | ZERO };
}

static int is_region(int which, const char *start, int pages, uint64_t categories)
{
	return found[which].start == (uintptr_t)start && found[which].end == (uintptr_t)start + pages * PAGE
		&& found[which].categories == categories;
}

static void scanning(void)
{
	char *at = anonymous(16, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	at[0] = at[PAGE] = at[5 * PAGE] = 1;
	(void)*(volatile char *)(at + 6 * PAGE);
	struct scan scan = wish(at, 16);
	PROMISE("pages that are alike are one region", ioctl(pagemap, SCAN, &scan) == 3 && is_region(0, at, 2, PRESENT)
		&& is_region(1, at + 5 * PAGE, 1, PRESENT) && is_region(2, at + 6 * PAGE, 1, PRESENT | ZERO));
	PROMISE("the walk went to the end", scan.walk_end == scan.end);
	scan = wish(at, 16);
	scan.room = 1;
	PROMISE("it ends where there is room for no more regions", ioctl(pagemap, SCAN, &scan) == 1 && is_region(0, at, 2, PRESENT)
		&& scan.walk_end == (uintptr_t)at + 5 * PAGE);
	scan = wish(at, 16);
	scan.most = 1;
	PROMISE("or where enough pages are found", ioctl(pagemap, SCAN, &scan) == 1 && is_region(0, at, 1, PRESENT)
		&& scan.walk_end == (uintptr_t)at + PAGE);
	scan = wish(at, 16);
	scan.inverted = scan.all_of = PRESENT;
	scan.any_of = 0;
	PROMISE("what is not there can be asked for", ioctl(pagemap, SCAN, &scan) == 2 && is_region(0, at + 2 * PAGE, 3, 0)
		&& is_region(1, at + 7 * PAGE, 9, 0));
	scan = wish(at, 16);
	scan.out = scan.room = 0;
	PROMISE("without room it only walks", ioctl(pagemap, SCAN, &scan) == 0 && scan.walk_end == scan.end);
	scan = wish(at, 16);
	scan.start = 0;
	scan.end = (1ULL << 47) - PAGE;
	scan.all_of = SWAPPED | OF_FILE;
	PROMISE("a whole address space is walked soon", ioctl(pagemap, SCAN, &scan) == 0 && scan.walk_end == scan.end);

	int file = memfd_create("scanned", 0);
	NEED(file >= 0 && ftruncate(file, PAGE) == 0);
	char *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	NEED(shared != MAP_FAILED);
	*shared = 1;
	scan = wish(shared, 1);
	PROMISE("a file's page is told from others", ioctl(pagemap, SCAN, &scan) == 1 && is_region(0, shared, 1, PRESENT | OF_FILE));
	munmap(shared, PAGE);
	close(file);

	scan = wish(at, 16);
	scan.size--;
	FAILS_WITH("a request of another size", ioctl(pagemap, SCAN, &scan), EINVAL);
	scan = wish(at, 16);
	scan.flags = 4;
	FAILS_WITH("a flag that there is not", ioctl(pagemap, SCAN, &scan), EINVAL);
	scan = wish(at, 16);
	scan.any_of = 1ULL << 40;
	FAILS_WITH("a category that there is not", ioctl(pagemap, SCAN, &scan), EINVAL);
	scan = wish(at + 8, 16);
	FAILS_WITH("an odd address", ioctl(pagemap, SCAN, &scan), EINVAL);
	scan = wish(at, 16);
	scan.end = scan.start - PAGE;
	FAILS_WITH("an end before the start", ioctl(pagemap, SCAN, &scan), EFAULT);
	scan = wish(at, 16);
	scan.out = 0;
	FAILS_WITH("room that is nowhere", ioctl(pagemap, SCAN, &scan), EINVAL);
	scan = wish(at, 16);
	scan.out = ~7ULL;
	FAILS_WITH("room that is the kernel's", ioctl(pagemap, SCAN, &scan), EFAULT);
	scan = wish(at, 16);
	scan.flags = 2;
	FAILS_WITH("memory that userfaultfd does not protect", ioctl(pagemap, SCAN, &scan), EPERM);
	FAILS_WITH("no request at all", ioctl(pagemap, SCAN, NULL), EFAULT);
	munmap(at, 16 * PAGE);
}

/* `at` has 8 pages of shared memory; each page holds its number plus 1. */
static void fill(char *at)
{
	for (int page = 0; page < 8; page++)
		at[page * PAGE] = page + 1;
}

static int holds(char *at, int page)
{
	return at[page * PAGE] == page + 1;
}

static void removing(void)
{
	int file = memfd_create("removed", 0), status;
	struct stat before, after;
	NEED(file >= 0 && ftruncate(file, 8 * PAGE) == 0);
	char *one = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	char *other = mmap(NULL, 8 * PAGE, PROT_READ, MAP_SHARED, file, 0);
	NEED(one != MAP_FAILED && other != MAP_FAILED);
	fill(one);
	NEED(holds(other, 2) && fstat(file, &before) == 0);
	PROMISE("MADV_REMOVE takes a file's pages from all who map it", madvise(one + 2 * PAGE, 3 * PAGE, MADV_REMOVE) == 0
		&& other[2 * PAGE] == 0 && one[4 * PAGE] == 0 && holds(other, 1) && holds(other, 5));
	char byte = 1;
	PROMISE("and from the file, which keeps its size", pread(file, &byte, 1, 3 * PAGE) == 1 && byte == 0 && fstat(file, &after) == 0
		&& after.st_size == before.st_size && after.st_blocks <= before.st_blocks);
	char *shared = anonymous(8, PROT_READ | PROT_WRITE, MAP_SHARED);
	fill(shared);
	IN_CHILD(status, _exit(madvise(shared + PAGE, PAGE, MADV_REMOVE)));
	PROMISE("and shared memory from those who share it", status == 0 && shared[PAGE] == 0 && holds(shared, 0) && holds(shared, 2));
	mprotect(shared, PAGE, PROT_READ);
	PROMISE("stores need not be allowed now", madvise(shared, PAGE, MADV_REMOVE) == 0 && shared[0] == 0);
	munmap(shared + 4 * PAGE, PAGE);
	FAILS_WITH("a hole in the mappings is said", madvise(shared, 8 * PAGE, MADV_REMOVE), ENOMEM);
	PROMISE("after what is on both sides went", shared[3 * PAGE] == 0 && shared[5 * PAGE] == 0);
	if (mlock(shared, PAGE) == 0)
		FAILS_WITH("locked memory", madvise(shared, PAGE, MADV_REMOVE), EINVAL);
	char *private = anonymous(1, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	FAILS_WITH("private memory", madvise(private, PAGE, MADV_REMOVE), EINVAL);
	FAILS_WITH("an odd address", madvise(one + 1, PAGE, MADV_REMOVE), EINVAL);
	char *view = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
	NEED(view != MAP_FAILED);
	FAILS_WITH("a private view of a file", madvise(view, PAGE, MADV_REMOVE), EACCES);
	munmap(one, 8 * PAGE);
	munmap(other, 8 * PAGE);
	munmap(view, PAGE);
	munmap(private, PAGE);
	munmap(shared, 8 * PAGE);
	close(file);
}

static void advice(void)
{
	char *at = anonymous(4, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	memset(at, 'a', 4 * PAGE);
	NEED(mlock(at, PAGE) == 0);
	FAILS_WITH("MADV_DONTNEED leaves locked memory alone", madvise(at, PAGE, MADV_DONTNEED), EINVAL);
	FAILS_WITH("so does MADV_FREE", madvise(at, PAGE, MADV_FREE), EINVAL);
	FAILS_WITH("and MADV_COLD", madvise(at, PAGE, 20), EINVAL);
	FAILS_WITH("and MADV_PAGEOUT", madvise(at, PAGE, MADV_PAGEOUT), EINVAL);
	PROMISE("MADV_DONTNEED_LOCKED does not", madvise(at, PAGE, MADV_DONTNEED_LOCKED) == 0 && at[0] == 0 && at[PAGE] == 'a');
	PROMISE("MADV_COLD keeps every byte", madvise(at + PAGE, PAGE, 20) == 0 && at[PAGE] == 'a');
	munmap(at, 4 * PAGE);

	at = anonymous(4, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	PROMISE("MADV_POPULATE_READ brings pages in", !is_there(at) && madvise(at, 4 * PAGE, MADV_POPULATE_READ) == 0 && is_there(at + 3 * PAGE));
	PROMISE("MADV_POPULATE_WRITE gives them frames", madvise(at, 4 * PAGE, MADV_POPULATE_WRITE) == 0 && is_there(at));
	munmap(at + 2 * PAGE, PAGE);
	FAILS_WITH("where a hole is, it is said", madvise(at, 4 * PAGE, MADV_POPULATE_READ), ENOMEM);
	munmap(at, 4 * PAGE);
	at = anonymous(1, PROT_READ, MAP_PRIVATE);
	FAILS_WITH("what cannot be written is not populated for it", madvise(at, PAGE, MADV_POPULATE_WRITE), EINVAL);
	munmap(at, PAGE);
	at = anonymous(1, PROT_WRITE, MAP_PRIVATE);
	FAILS_WITH("nor what may not be read for reading", madvise(at, PAGE, MADV_POPULATE_READ), EINVAL);
	munmap(at, PAGE);
	int file = memfd_create("short", 0);
	NEED(file >= 0 && ftruncate(file, PAGE) == 0);
	at = mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, file, 0);
	NEED(at != MAP_FAILED);
	FAILS_WITH("what is past the end of a file cannot be", madvise(at, 2 * PAGE, MADV_POPULATE_READ), EFAULT);
	munmap(at, 2 * PAGE);
	close(file);
	FAILS_WITH("an advice that there is not", madvise(NULL, PAGE, 4711), EINVAL);
}

/* Returns the number after `name` in the part of /proc/self/`file` about the area of `at` (in
 * the whole file if `at` is NULL); -1 for none. */
static long field(const char *file, const void *at, const char *name)
{
	char path[40], line[400];
	snprintf(path, sizeof path, "/proc/self/%s", file);
	FILE *text = fopen(path, "r");
	unsigned long start, end;
	int here = at == NULL;
	long value = -1;
	size_t len = strlen(name);
	while (text && value < 0 && fgets(line, sizeof line, text)) {
		if (at && sscanf(line, "%lx-%lx ", &start, &end) == 2)
			here = start <= (uintptr_t)at && (uintptr_t)at < end;
		else if (here && strncmp(line, name, len) == 0 && line[len] == ':')
			value = strtol(line + len + 1, NULL, 10);
	}
	if (text)
		fclose(text);
	return value;
}

static const char *names[] = { "Size", "KernelPageSize", "MMUPageSize", "Rss", "Pss", "Pss_Dirty", "Shared_Clean", "Shared_Dirty",
	"Private_Clean", "Private_Dirty", "Referenced", "Anonymous", "LazyFree", "AnonHugePages", "ShmemPmdMapped", "FilePmdMapped",
	"Shared_Hugetlb", "Private_Hugetlb", "Swap", "SwapPss", "Locked", "THPeligible" };
static const char *sums[] = { "Rss", "Pss", "Pss_Dirty", "Pss_Anon", "Pss_File", "Pss_Shmem", "Shared_Clean", "Shared_Dirty",
	"Private_Clean", "Private_Dirty", "Referenced", "Anonymous", "LazyFree", "AnonHugePages", "ShmemPmdMapped", "FilePmdMapped",
	"Shared_Hugetlb", "Private_Hugetlb", "Swap", "SwapPss", "Locked" };

static void areas(void)
{
	char *at = anonymous(4, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	at[0] = at[PAGE] = 1;
	int all = 1;
	for (size_t which = 0; which < sizeof names / sizeof *names; which++)
		all &= field("smaps", at, names[which]) >= 0;
	PROMISE("smaps has every field", all);
	all = 1;
	for (size_t which = 0; which < sizeof sums / sizeof *sums; which++)
		all &= field("smaps_rollup", NULL, sums[which]) >= 0;
	PROMISE("so has smaps_rollup", all);
	PROMISE("pages that are a program's own are private and dirty", field("smaps", at, "Private_Dirty") == field("smaps", at, "Rss")
		&& field("smaps", at, "Anonymous") == field("smaps", at, "Rss") && field("smaps", at, "Pss") == field("smaps", at, "Rss"));
	int status;
	IN_CHILD(status, _exit(field("smaps", at, "Shared_Dirty") == field("smaps", at, "Rss")
		&& field("smaps", at, "Pss") == field("smaps", at, "Rss") / 2 ? 0 : 1));
	PROMISE("after fork they are shared, half each", status == 0);
	NEED(mlock(at, PAGE) == 0);
	PROMISE("what is locked is told", field("smaps", at, "Locked") == 4);
	munmap(at, 4 * PAGE);

	/* Linux reclaims a few pages at a time. */
	at = anonymous(64, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	memset(at, 'a', 64 * PAGE);
	NEED(madvise(at, 64 * PAGE, MADV_FREE) == 0);
	PROMISE("what is given up is told, and in the sum", field("smaps", at, "LazyFree") >= 32 * 4
		&& field("smaps_rollup", NULL, "LazyFree") >= 32 * 4);
	munmap(at, 64 * PAGE);

	int file = memfd_create("shown", 0);
	NEED(file >= 0 && ftruncate(file, 2 * PAGE) == 0);
	char *shared = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	NEED(shared != MAP_FAILED);
	long before = field("smaps_rollup", NULL, "Pss_Shmem");
	shared[0] = shared[PAGE] = 1;
	PROMISE("a file in memory is none of a program's anonymous pages", field("smaps", shared, "Anonymous") == 0
		&& field("smaps", shared, "Rss") == 8);
	PROMISE("but shared memory", field("smaps_rollup", NULL, "Pss_Shmem") == before + 8);
	munmap(shared, 2 * PAGE);
	close(file);
}

int main(int count, char **arguments)
{
	pagemap = open("/proc/self/pagemap", O_RDONLY);
	NEED(pagemap >= 0);
	if (count < 2 || strcmp(arguments[1], "old") != 0)
		scanning();
	removing();
	advice();
	areas();
	return conclude();
}
