/*
 * Copy-on-write: if only one process uses a frame, its store keeps the frame; otherwise the
 * store copies it. A frame with another reader never changes its owner. Each row has its number
 * from the comparison of kernels, and is tried with a page of 4 KiB and with a piece of 2 MiB.
 * Frame numbers come from /proc/self/pagemap; without the right to read them, reuse is not
 * judged.
 *
 * The argument "mark" leaves out rows about soft-dirty (a stock Linux may be built without it).
 */
#include "promise.h"
#include "pages.h"

static void exclusive(int marks)
{
	char *at = make('a');
	uint64_t before = frame(at);
	if (marks) {
		NEED(clear_refs('4'));
		*at = 'b';
		promise("01", "a store after clear_refs keeps the frame", kept(at, before));
	}
	mprotect(at, PAGE, PROT_READ);
	mprotect(at, PAGE, PROT_READ | PROT_WRITE);
	*at = 'c';
	promise("02", "a store after mprotect and back keeps the frame", kept(at, before));
	struct child child = fork_child(at);
	*at = 'd';
	promise("03", "with a child alive a store is its parent's alone", tell(child, 'r') == 'c' && *at == 'd');
	promise("05", "and the child, alone with the old frame, keeps it", tell(child, 'k') == 'y');
	promise("03", "and the child's is the child's", tell(child, 'w') == 'c' && *at == 'd');
	end(child);
	unmake();

	at = make('a');
	before = frame(at);
	end(fork_child(at));
	*at = 'b';
	promise("04", "with the child gone a store keeps the frame", kept(at, before));
	child = fork_child(at);
	struct child second = fork_child(at);
	*at = 'c';
	promise("03", "two children see what was there", tell(child, 'r') == 'b' && tell(second, 'w') == 'c' && tell(child, 'r') == 'b');
	end(child);
	end(second);
	unmake();

	at = make('a');
	int status;
	fflush(stdout);
	pid_t middle = fork();
	NEED(middle >= 0);
	if (middle == 0) {
		/* The grandchild writes after both other processes have left the page. */
		pid_t last = fork();
		if (last == 0) {
			*at = 'z';
			_exit(*at != 'z');
		}
		int inner;
		waitpid(last, &inner, 0);
		_exit(inner != 0 || *at != 'a');
	}
	NEED(waitpid(middle, &status, 0) == middle);
	promise("chain", "a chain of forks leaves each its own bytes", status == 0 && *at == 'a');
	unmake();
}

/* A child lends the page at `at` to the pipe and unmaps its own. */
static void child_lends(char *at, int ends[2])
{
	int status;
	IN_CHILD(status, {
		struct iovec run = { at, PAGE };
		int done = vmsplice(ends[1], &run, 1, 0) == PAGE;
		munmap(block, size == HUGE ? LARGE : PAGE);
		_exit(!done);
	});
	NEED(status == 0);
}

static void lending(int marks)
{
	int ends[2];
	char *at = make('a');
	NEED(lend(at, ends));
	end(fork_child(at));
	*at = 'b';
	promise("06", "what is lent shows a store after a fork", lent(ends) == 'b');
	unmake();

	if (marks) {
		at = make('a');
		NEED(lend(at, ends) && clear_refs('4'));
		*at = 'b';
		promise("11", "what is lent shows a store after clear_refs", lent(ends) == 'b');
		unmake();
	}

	at = make('a');
	NEED(lend(at, ends));
	mprotect(at, PAGE, PROT_READ);
	mprotect(at, PAGE, PROT_READ | PROT_WRITE);
	*at = 'b';
	promise("12", "what is lent shows a store after mprotect", lent(ends) == 'b');
	unmake();

	at = make('a');
	NEED(lend(at, ends));
	madvise(at, PAGE, MADV_PAGEOUT);
	*at = 'b';
	promise("13", "what is lent shows a store after MADV_PAGEOUT", lent(ends) == 'b');
	unmake();

	/* A page that a child lends and unmaps must not show its parent's later stores. */
	at = make('a');
	NEED(pipe(ends) == 0);
	child_lends(at, ends);
	*at = 's';
	promise(size == HUGE ? "19" : "14", "a child that lent and let go learns nothing from its parent", lent(ends) == 'a');
	unmake();

	at = make('a');
	NEED(lend(at, ends));
	struct child child = fork_child(at);
	unmake();
	tell(child, 'w');
	promise("15", "a parent that lent and let go learns nothing from its child", lent(ends) == 'a');
	end(child);

	at = make('a');
	child = fork_child(at);
	NEED(lend(at, ends));
	unmake();
	tell(child, 'w');
	promise("16", "nor one that lends after the fork", lent(ends) == 'a');
	end(child);
}

static void lending_others(void)
{
	int ends[2];
	char *at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(at != MAP_FAILED && *(volatile char *)at == 0);
	NEED(lend(at, ends));
	*at = 'z';
	promise("17", "an untouched page that is lent shows the first store", lent(ends) == 'z');
	munmap(at, PAGE);

	int file = memfd_create("cow", 0);
	NEED(file >= 0 && ftruncate(file, PAGE) == 0 && pwrite(file, "f", 1, 0) == 1);
	at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
	NEED(at != MAP_FAILED && *(volatile char *)at == 'f' && lend(at, ends));
	*at = 'z';
	char byte;
	promise("18", "a private file page that is lent shows the first store", lent(ends) == 'z');
	promise("18", "and the file does not", pread(file, &byte, 1, 0) == 1 && byte == 'f');

	/* The reader of a lent page reads into that same page. */
	*at = 'q';
	NEED(lend(at, ends) && read(ends[0], at, PAGE) == PAGE);
	promise("18", "a lent page can be read into itself", *at == 'q');
	close(ends[0]);
	close(ends[1]);
	munmap(at, PAGE);
	close(file);
}

static void pieces(void)
{
	char *at = make('a');
	int ends[2];
	char *other = block + 7 * PAGE;
	uint64_t pinned = frame(at), before = frame(other);
	end(fork_child(at));
	*other = 'b';
	promise("71", "with the child gone a store keeps a piece's frame", kept(other, before));
	NEED(lend(at, ends));
	end(fork_child(at));
	*other = 'c';
	promise("72", "a pin on one piece costs no copy of another", kept(other, before));
	*at = 'd';
	promise("72", "and the pinned one keeps its frame", kept(at, pinned) && lent(ends) == 'd');

	/* Parts of a large page are unmapped and discarded separately. */
	munmap(block + 16 * PAGE, 16 * PAGE);
	NEED(mmap(block + 16 * PAGE, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
	madvise(block + 16 * PAGE, 16 * PAGE, MADV_HUGEPAGE);
	int zero = block[16 * PAGE] == 0 && block[31 * PAGE] == 0;
	promise("T1", "a part that was unmapped is zero, its neighbours are not", zero && block[15 * PAGE] == 'a' && block[32 * PAGE] == 'a');
	madvise(block + 64 * PAGE, PAGE, MADV_DONTNEED);
	promise("T2", "a piece that is not needed is zero, its neighbours are not",
		block[64 * PAGE] == 0 && block[63 * PAGE] == 'a' && block[65 * PAGE] == 'a');
	before = frame(other);
	char *place = mmap(NULL, 2 * LARGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(place != MAP_FAILED);
	char *moved = mremap(block, LARGE, LARGE, MREMAP_MAYMOVE | MREMAP_FIXED, place + PAGE);
	promise("T3", "it moves to an odd place with its bytes", moved == place + PAGE && moved[7 * PAGE] == 'c' && moved[3 * PAGE] == 'd'
		&& kept(moved + 7 * PAGE, before));
	munmap(place, 2 * LARGE);
}

static void collapsing(void)
{
	char *at = make('a');
	mprotect(at, PAGE, PROT_READ);
	mprotect(at, PAGE, PROT_READ | PROT_WRITE);
	struct child child = fork_child(at);
	*at = 'b';
	if (madvise(block, LARGE, MADV_COLLAPSE) != 0 && errno == EINVAL) {
		/* Linux before 6.1 has no MADV_COLLAPSE. */
		end(child);
		unmake();
		return;
	}
	promise("T4", "a collapsed page has the bytes that its pieces had", *at == 'b' && block[0] == 'a' && block[LARGE - 1] == 'a');
	*at = 'c';
	promise("T4", "and its child has what there was", tell(child, 'r') == 'a');
	end(child);
	unmake();
}

/* Pages out the page and the pages that are mapped with it; returns whether it is in swap now. One
 * attempt may fail: on Linux a CPU's list of new pages holds a reference for a moment. */
static int goes_out(const char *at)
{
	return COMES_TRUE((madvise(block, size == HUGE ? LARGE : PAGE, MADV_PAGEOUT), entry(at) & SWAPPED));
}

/* Tests who owns a page after a round through swap. */
static void swapped(void)
{
	char *at = make('a');
	promise("60", "a page goes out", goes_out(at) && (size == SMALL || entry(block) & entry(block + LARGE - PAGE) & SWAPPED));
	int same = *(volatile char *)at == 'a';
	uint64_t before = frame(at);
	*at = 'b';
	promise("60", "a store after it came back with a load keeps the frame", same && kept(at, before));
	unmake();

	at = make('a');
	NEED(goes_out(at));
	struct child child = fork_child(at);
	*at = 'p';
	promise("63", "forked while it is out, a child has what there was", tell(child, 'r') == 'a');
	promise("63", "and its store is its own", tell(child, 'w') == 'c' && *at == 'p');
	end(child);
	NEED(goes_out(at));
	child = fork_child(at);
	int seen = tell(child, 'w') == 'c';
	end(child);
	promise("63", "the other way round too", seen && *at == 'p');
	unmake();

	/* As row 14, with a page that was in swap before. */
	int ends[2];
	at = make('a');
	NEED(goes_out(at) && pipe(ends) == 0);
	child_lends(at, ends);
	*at = 's';
	promise("14s", "a child that lent what was out, and let go, learns nothing from its parent", lent(ends) == 'a');
	unmake();
}

static void forced(void)
{
	int memory = open("/proc/self/mem", O_RDWR);
	NEED(memory >= 0);
	int file = memfd_create("cow", 0);
	NEED(file >= 0 && ftruncate(file, PAGE) == 0 && pwrite(file, "f", 1, 0) == 1);
	char *private = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, file, 0);
	char *shared = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, file, 0);
	NEED(private != MAP_FAILED && shared != MAP_FAILED);
	char byte = 0;
	promise("80", "a forced write to a private file page stays private", pwrite(memory, "x", 1, (uintptr_t)private) == 1
		&& *(volatile char *)private == 'x' && pread(file, &byte, 1, 0) == 1 && byte == 'f');
	errno = 0;
	promise("81", "one to a shared read-only page is EIO", pwrite(memory, "x", 1, (uintptr_t)shared) == -1 && errno == EIO);
	munmap(private, PAGE);
	munmap(shared, PAGE);
	close(file);

	char *at = make('a');
	mprotect(at, PAGE, PROT_READ);
	struct child child = fork_child(at);
	promise("82", "a forced write after fork is not the child's", pwrite(memory, "x", 1, (uintptr_t)at) == 1
		&& *(volatile char *)at == 'x' && tell(child, 'r') == 'a');
	end(child);
	unmake();
	close(memory);

	at = make('a');
	uint64_t before = frame(at);
	child = fork_child(at);
	struct iovec mine = { &byte, 1 }, theirs = { at, 1 };
	byte = 'y';
	promise("83", "process_vm_writev into a child is not its parent's",
		process_vm_writev(child.pid, &mine, 1, &theirs, 1, 0) == 1 && tell(child, 'r') == 'y' && *at == 'a');
	end(child);
	child = fork_child(at);
	int came = process_vm_readv(child.pid, &mine, 1, &theirs, 1, 0) == 1 && byte == 'a';
	end(child);
	*at = 'b';
	promise("84", "process_vm_readv leaves nothing behind that costs a copy", came && kept(at, before));
	unmake();
}

static void written(void)
{
	char *at = make('a');
	promise("sd", "new memory counts as written", is_marked(at));
	NEED(clear_refs('4'));
	promise("sd", "cleared, it does not", !is_marked(at));
	(void)*(volatile char *)at;
	promise("sd", "a load does not count", !is_marked(at));
	*at = 'b';
	promise("sd", "a store does", is_marked(at));
	NEED(clear_refs('4'));
	mprotect(at, PAGE, PROT_READ);
	mprotect(at, PAGE, PROT_READ | PROT_WRITE);
	promise("sd", "mprotect does not", !is_marked(at));
	*at = 'c';
	promise("sd", "and a store after it does", is_marked(at));
	unmake();
	uint64_t words[2];
	FAILS_WITH("pagemap at an odd offset", pread(pagemap, words, 8, 4), EINVAL);
	FAILS_WITH("pagemap in odd pieces", pread(pagemap, words, 7, 0), EINVAL);
	FAILS_WITH("nothing at an odd offset", pread(pagemap, words, 0, 3), EINVAL);
	int file = open("/proc/self/clear_refs", O_WRONLY);
	FAILS_WITH("clear_refs 0", write(file, "0", 1), EINVAL);
	FAILS_WITH("clear_refs 6", write(file, "6", 1), EINVAL);
	close(file);
}

int main(int count, char **arguments)
{
	int marks = count < 2 || strcmp(arguments[1], "mark") != 0;
	pagemap = open("/proc/self/pagemap", O_RDONLY);
	NEED(pagemap >= 0);
	for (size = SMALL; size <= HUGE; size++) {
		exclusive(marks);
		lending(marks);
		if (marks)
			written();
		forced();
		if (figure_or("/proc/meminfo", "SwapTotal", 0) > 0)
			swapped();
	}
	size = HUGE;
	pieces();
	collapsing();
	size = SMALL;
	lending_others();
	return conclude();
}
