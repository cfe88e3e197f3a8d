/*
 * Merging of equal pages (KSM): MADV_MERGEABLE, /sys/kernel/mm/ksm, and the other places that show
 * merged pages. Promises about things that are newer than Linux 6.1 are checked where they exist.
 */
#include "promise.h"
#include "pages.h"

#include <sys/prctl.h>

#define SETTINGS "/sys/kernel/mm/ksm/"
#define FAILS(call, error) FAILS_WITH(#call " fails with " #error, call, error)
#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#define PR_GET_MEMORY_MERGE 68
#endif

/* The number in a file; -1 if there is no such file. */
static long number(const char *path)
{
	char text[64] = { 0 };
	int file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0)
		return -1;
	NEED(read(file, text, sizeof text - 1) > 0);
	close(file);
	return atol(text);
}

static long shows(const char *name)
{
	char path[64];
	snprintf(path, sizeof path, SETTINGS "%s", name);
	return number(path);
}

static int set(const char *name, const char *text)
{
	char path[64];
	snprintf(path, sizeof path, SETTINGS "%s", name);
	int file = open(path, O_WRONLY | O_CLOEXEC);
	if (file < 0)
		return -1;
	int done = write(file, text, strlen(text)) == (ssize_t)strlen(text) ? 0 : -1;
	int error = errno;
	close(file);
	errno = error;
	return done;
}

static int refuses(const char *name, const char *text, int error)
{
	char path[64];
	snprintf(path, sizeof path, SETTINGS "%s", name);
	return access(path, F_OK) != 0 || (set(name, text) == -1 && errno == error);
}

/* Lets the scan pass over all memory, begin to end, a few times. */
static void scan(void)
{
	long before = shows("full_scans");
	NEED(COMES_TRUE(shows("full_scans") >= before + 4));
}

/* Pages that differ from others by their first byte only. */
static char *fill(int pages, char value)
{
	char *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(at != MAP_FAILED);
	madvise(at, pages * PAGE, MADV_NOHUGEPAGE);
	memset(at, 'm', pages * PAGE);
	for (int page = 0; page < pages; page++)
		at[page * PAGE] = value;
	return at;
}

/* Whether all pages have one frame. */
static int is_one(const char *at, int pages)
{
	int same = 1;
	for (int page = 1; page < pages; page++)
		same &= frame(at + page * PAGE) == frame(at);
	return same;
}

static int are_apart(const char *at, int pages)
{
	int same = 0;
	for (int page = 0; page < pages; page++)
		for (int other = 0; other < page; other++)
			same |= frame(at + page * PAGE) == frame(at + other * PAGE);
	return !same;
}

/* Finds the part of smaps about the area at `at`. Returns kB of the row "KSM:" and whether its
 * flags have "mg". Linux before 6.6 has no such row: -1. */
static long row_of(const char *at, int *marked)
{
	char line[512];
	int inside = 0;
	long kib = -1;
	FILE *open = fopen("/proc/self/smaps", "re");
	NEED(open);
	while (fgets(line, sizeof line, open)) {
		unsigned long start, end;
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			inside = start <= (unsigned long)at && (unsigned long)at < end;
		if (inside && !strncmp(line, "KSM:", 4))
			kib = atol(line + 4);
		if (inside && !strncmp(line, "VmFlags:", 8))
			*marked = strstr(line, " mg") != NULL;
	}
	fclose(open);
	return kib;
}

static int is_marked_mergeable(const char *at)
{
	int marked = 0;
	row_of(at, &marked);
	return marked;
}

static int rows_say(const char *at, int pages)
{
	int marked;
	long kib = row_of(at, &marked), merging = number("/proc/self/ksm_merging_pages");
	return (kib == -1 || kib == pages * 4) && (merging == -1 || merging == pages);
}

static uint64_t frame_flags(const char *at)
{
	uint64_t word = 0;
	int file = open("/proc/kpageflags", O_RDONLY | O_CLOEXEC);
	NEED(file >= 0 && pread(file, &word, 8, frame(at) * 8) == 8);
	close(file);
	return word;
}

static void settings(void)
{
	PROMISE("nothing is merged before it is asked for", shows("run") == 0 && shows("pages_shared") == 0);
	PROMISE("Linux' first settings", shows("pages_to_scan") == 100 && shows("sleep_millisecs") == 20 && shows("use_zero_pages") == 0 && shows("max_page_sharing") == 256);
	PROMISE("run is 0, 1 or 2", refuses("run", "3", EINVAL) && refuses("run", "x", EINVAL) && refuses("run", "-1", EINVAL));
	PROMISE("numbers have 32 bits", refuses("pages_to_scan", "4294967296", EINVAL) && refuses("sleep_millisecs", "4294967296", EINVAL) && refuses("pages_to_scan", "-1", EINVAL));
	PROMISE("a merged page has two users or more", refuses("max_page_sharing", "1", EINVAL));
	PROMISE("a switch is 0 or 1", refuses("use_zero_pages", "2", EINVAL) && refuses("merge_across_nodes", "2", EINVAL));
	NEED(set("pages_to_scan", "1000\n") == 0);
	PROMISE("a setting is kept", shows("pages_to_scan") == 1000);
	if (shows("smart_scan") >= 0)
		NEED(set("smart_scan", "0") == 0);
	NEED(set("sleep_millisecs", "1") == 0);
}

static void marks(void)
{
	char *at = fill(3, 'a');
	FAILS(madvise(at + 1, PAGE, MADV_MERGEABLE), EINVAL);
	munmap(at + PAGE, PAGE);
	FAILS(madvise(at, 3 * PAGE, MADV_MERGEABLE), ENOMEM);
	PROMISE("but the memory around a hole is marked", is_marked_mergeable(at) && is_marked_mergeable(at + 2 * PAGE));
	NEED(mprotect(at, PAGE, PROT_READ) == 0);
	char *moved = mremap(at, PAGE, 2 * PAGE, MREMAP_MAYMOVE);
	NEED(moved != MAP_FAILED);
	PROMISE("mprotect and mremap keep the mark", is_marked_mergeable(moved + PAGE));
	int status;
	IN_CHILD(status, _exit(!is_marked_mergeable(moved)));
	PROMISE("a child inherits it", status == 0);
	NEED(madvise(moved, PAGE, MADV_UNMERGEABLE) == 0);
	PROMISE("MADV_UNMERGEABLE takes it from a part", !is_marked_mergeable(moved) && is_marked_mergeable(moved + PAGE));
	munmap(moved, 2 * PAGE);
	munmap(at + 2 * PAGE, PAGE);
	char *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(shared != MAP_FAILED);
	PROMISE("shared memory is passed over", madvise(shared, PAGE, MADV_MERGEABLE) == 0 && !is_marked_mergeable(shared));
	PROMISE("and was never mergeable", madvise(shared, PAGE, MADV_UNMERGEABLE) == 0);
	munmap(shared, PAGE);
}

static void merging(void)
{
	char *at = fill(3, 'a'), *other = fill(1, 'b');
	NEED(madvise(at, 3 * PAGE, MADV_MERGEABLE) == 0 && madvise(other, PAGE, MADV_MERGEABLE) == 0);
	PROMISE("the state is 1", set("run", "1") == 0 && shows("run") == 1);
	scan();
	PROMISE("equal pages get one frame", is_one(at, 3) && frame(other) != frame(at));
	PROMISE("and are counted", shows("pages_shared") == 1 && shows("pages_sharing") == 2);
	PROMISE("a page without an equal is counted, too", COMES_TRUE(shows("pages_unshared") == 1 && shows("pages_volatile") == 0));
	PROMISE("the process' files show them", rows_say(at, 3));
	PROMISE("the frame's flags are KSM, ANON and MMAP", (frame_flags(at) & (1ULL << 21 | 1 << 12 | 1 << 11)) == (1ULL << 21 | 1 << 12 | 1 << 11));
	PROMISE("max_page_sharing stays while there are merged pages", refuses("max_page_sharing", "300", EBUSY));
	long copies = figure_or("/proc/vmstat", "cow_ksm", -1);
	uint64_t merged = frame(at);
	at[0] = 'x';
	PROMISE("a store copies", frame(at) != merged && at[0] == 'x' && at[PAGE] == 'a' && at[1] == 'm');
	PROMISE("and is counted", copies < 0 || figure("/proc/vmstat", "cow_ksm") == copies + 1);
	struct child child = fork_child(at + PAGE);
	PROMISE("a child has its own bytes", tell(child, 'w') == 'c' && at[PAGE] == 'a' && at[2 * PAGE] == 'a');
	end(child);
	munmap(at + 2 * PAGE, PAGE);
	PROMISE("the last user has the frame still", frame(at + PAGE) == merged);
	at[PAGE] = 'y';
	PROMISE("and copies it, too", frame(at + PAGE) != merged && at[PAGE] == 'y' && at[PAGE + 1] == 'm');
	PROMISE("then nothing is merged", COMES_TRUE(shows("pages_shared") == 0 && shows("pages_sharing") == 0));
	munmap(at, 2 * PAGE);
	munmap(other, PAGE);
}

static void processes(void)
{
	char *at = fill(2, 'p');
	int ends[2], status;
	char byte;
	NEED(pipe(ends) == 0 && madvise(at, PAGE, MADV_MERGEABLE) == 0);
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		close(ends[1]);
		char *own = fill(1, 'p');
		madvise(own, PAGE, MADV_MERGEABLE);
		/* Until the parent lets it go. */
		int good = read(ends[0], &byte, 1) == 0 && own[0] == 'p';
		own[0] = 'q';
		_exit(!good || own[0] != 'q');
	}
	close(ends[0]);
	PROMISE("pages of two processes are merged", COMES_TRUE(shows("pages_shared") == 1));
	PROMISE("a page without the mark is not", frame(at) != frame(at + PAGE));
	close(ends[1]);
	NEED(waitpid(child, &status, 0) == child);
	PROMISE("one's store is not the other's", status == 0 && at[0] == 'p');
	munmap(at, 2 * PAGE);
	PROMISE("with its last user a merged page is gone", COMES_TRUE(shows("pages_shared") == 0));
}

static void pinned(void)
{
	char *at = fill(3, 'l'), *last = at + 2 * PAGE;
	int ends[2];
	NEED(lend(last, ends) && madvise(at, 3 * PAGE, MADV_MERGEABLE) == 0);
	scan();
	PROMISE("a page that a pipe has is not merged", frame(at) != frame(last) && is_one(at, 2));
	*last = 's';
	PROMISE("so the pipe shows the next store", lent(ends) == 's');
	*last = 'l';
	scan();
	PROMISE("afterwards it is", is_one(at, 3));
	NEED(lend(last, ends));
	*last = 't';
	/* A kernel may give the page a frame of its own before it lends it. */
	char seen = lent(ends);
	PROMISE("a store to a merged page that is lent is not the others'", (seen == 'l' || seen == 't') && at[0] == 'l');
	munmap(at, 3 * PAGE);
}

static void unmerging(void)
{
	char *at = fill(4, 'u');
	NEED(madvise(at, 4 * PAGE, MADV_MERGEABLE) == 0);
	scan();
	PROMISE("merged", is_one(at, 4));
	NEED(mprotect(at, PAGE, PROT_READ) == 0);
	PROMISE("MADV_UNMERGEABLE gives each page a frame", madvise(at, 2 * PAGE, MADV_UNMERGEABLE) == 0 && frame(at) != frame(at + PAGE) && frame(at) != frame(at + 2 * PAGE) && is_one(at + 2 * PAGE, 2));
	PROMISE("with the same bytes", at[0] == 'u' && at[PAGE] == 'u' && at[PAGE - 1] == 'm');
	PROMISE("the state 2 unmerges the others", set("run", "2") == 0 && are_apart(at, 4) && rows_say(at, 0));
	PROMISE("and keeps the mark", is_marked_mergeable(at + 2 * PAGE) && shows("pages_shared") == 0);
	NEED(set("run", "1") == 0);
	scan();
	PROMISE("so the state 1 merges again", is_one(at + 2 * PAGE, 2) && frame(at) != frame(at + PAGE));
	PROMISE("the state 0 leaves merged pages alone", set("run", "0") == 0 && is_one(at + 2 * PAGE, 2));
	at[2 * PAGE] = 'v';
	PROMISE("which a store copies as before", frame(at + 2 * PAGE) != frame(at + 3 * PAGE) && at[3 * PAGE] == 'u');
	NEED(set("run", "1") == 0);
	munmap(at, 4 * PAGE);
}

static void zeroes(void)
{
	char *at = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	volatile char *untouched = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(at != MAP_FAILED && untouched != MAP_FAILED && untouched[0] == 0);
	madvise(at, 3 * PAGE, MADV_NOHUGEPAGE);
	for (int page = 0; page < 3; page++)
		((volatile char *)at)[page * PAGE] = 0;
	NEED(set("use_zero_pages", "1") == 0 && madvise(at, 3 * PAGE, MADV_MERGEABLE) == 0);
	PROMISE("zeroes get the page of zeroes", COMES_TRUE(is_one(at, 3) && frame(at) == frame((char *)untouched)));
	PROMISE("which are no merged frames", shows("pages_shared") == 0);
	PROMISE("but counted", shows("ksm_zero_pages") == -1 || shows("ksm_zero_pages") == 3);
	at[0] = 'z';
	PROMISE("a store gets a frame of its own", at[0] == 'z' && at[1] == 0 && at[PAGE] == 0 && frame(at) != frame(at + PAGE));
	int status;
	IN_CHILD(status, at[PAGE] = 'c'; _exit(at[PAGE + 1] != 0));
	PROMISE("in a child, too", status == 0 && at[PAGE] == 0);
	PROMISE("MADV_UNMERGEABLE leaves zeroes", madvise(at, 3 * PAGE, MADV_UNMERGEABLE) == 0 && at[PAGE] == 0 && at[2 * PAGE + 5] == 0);
	if (shows("ksm_zero_pages") >= 0)
		PROMISE("in frames of their own", frame(at + PAGE) != frame(at + 2 * PAGE) && shows("ksm_zero_pages") == 0);
	NEED(set("use_zero_pages", "0") == 0);
	munmap(at, 3 * PAGE);
}

/* Whether all areas of a process are marked, by prctl. */
static void whole_process(void)
{
	if (prctl(PR_GET_MEMORY_MERGE, 0, 0, 0, 0) < 0)
		return;
	FAILS(prctl(PR_GET_MEMORY_MERGE, 1, 0, 0, 0), EINVAL);
	FAILS(prctl(PR_SET_MEMORY_MERGE, 1, 1, 0, 0), EINVAL);
	int status;
	IN_CHILD(status, {
		char *before = fill(2, 'w');
		int good = prctl(PR_GET_MEMORY_MERGE, 0, 0, 0, 0) == 0 && prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0) == 0;
		char *after = fill(1, 'w');
		good &= prctl(PR_GET_MEMORY_MERGE, 0, 0, 0, 0) == 1;
		good &= is_marked_mergeable(before) && is_marked_mergeable(after);
		pid_t inner = fork();
		if (inner == 0)
			_exit(prctl(PR_GET_MEMORY_MERGE, 0, 0, 0, 0) != 1);
		int ended;
		waitpid(inner, &ended, 0);
		good &= ended == 0;
		/* The child has inherited the parent's view of frames. */
		pagemap = open("/proc/self/pagemap", O_RDONLY);
		good &= COMES_TRUE(is_one(before, 2) && frame(before) == frame(after));
		good &= prctl(PR_SET_MEMORY_MERGE, 0, 0, 0, 0) == 0 && are_apart(before, 2);
		good &= !is_marked_mergeable(before) && prctl(PR_GET_MEMORY_MERGE, 0, 0, 0, 0) == 0;
		_exit(!good);
	});
	PROMISE("PR_SET_MEMORY_MERGE marks all memory of a process and its children, and takes the marks", status == 0);
}

int main(void)
{
	pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	NEED(pagemap >= 0);
	settings();
	marks();
	merging();
	processes();
	pinned();
	unmerging();
	zeroes();
	whole_process();
	NEED(set("run", "2") == 0 && set("sleep_millisecs", "20") == 0 && set("pages_to_scan", "100") == 0);
	return conclude();
}
