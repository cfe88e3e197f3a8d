/*
 * Huge pages on request: the pool of pages of 2 MiB, and mappings with MAP_HUGETLB
 * (Documentation/admin-guide/mm/hugetlbpage.rst, mmap(2)).
 */
#include "hugepages.h"

#ifndef MADV_COLD
#define MADV_COLD 20
#define MADV_PAGEOUT 21
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { PRIVATE = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, SHARED = MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB };

#define SIZE "/sys/kernel/mm/hugepages/hugepages-2048kB/"
#define NODE "/sys/devices/system/node/node%d/hugepages/hugepages-2048kB/%s"

/* The sum of a file of all nodes. */
static long of_nodes(const char *name)
{
	char path[200];
	long sum = 0;
	for (int node = 0; node < 16; node++) {
		snprintf(path, sizeof path, NODE, node, name);
		if (!access(path, F_OK))
			sum += get(path);
	}
	return sum;
}

/* Changes the number of pages of node 0 by so many. */
static int change_node(int by)
{
	char path[200], text[20];
	snprintf(path, sizeof path, NODE, 0, "nr_hugepages");
	snprintf(text, sizeof text, "%ld", get(path) + by);
	return put(path, text);
}

static char *map(int pages, int flags)
{
	return mmap(NULL, pages * HUGE, RW, flags, -1, 0);
}

static char *mapped(int pages, int flags)
{
	char *at = map(pages, flags);
	NEED(at != MAP_FAILED);
	return at;
}

static uint64_t frame(const void *at)
{
	uint64_t word = 0;
	int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	NEED(file >= 0 && pread(file, &word, 8, (uintptr_t)at / PAGE * 8) == 8);
	close(file);
	return word & ((1ULL << 55) - 1);
}

static void the_pool(void)
{
	PROMISE("the pool is empty at first", has(0, 0, 0, 0) && get(POOL) == 0);
	PROMISE("the pool grows to a number of pages", put(POOL, "8") && has(8, 8, 0, 0));
	PROMISE("all files agree about it", get(POOL) == 8 && get(SIZE "nr_hugepages") == 8
		&& get(SIZE "free_hugepages") == 8 && get(SIZE "resv_hugepages") == 0
		&& get(SIZE "surplus_hugepages") == 0 && figure("/proc/meminfo", "Hugetlb") == 8 * 2048
		&& figure("/proc/meminfo", "Hugepagesize") == 2048);
	PROMISE("and those of the nodes", of_nodes("nr_hugepages") == 8 && of_nodes("free_hugepages") == 8
		&& of_nodes("surplus_hugepages") == 0);
	PROMISE("a node gets and loses pages", change_node(2) && has(10, 10, 0, 0) && change_node(-4)
		&& has(6, 6, 0, 0));
	PROMISE("the pool shrinks", put(SIZE "nr_hugepages", "4") && has(4, 4, 0, 0));
	PROMISE("what is no number is refused", !put(POOL, "x") && errno == EINVAL && !put(SIZE "nr_hugepages", "x")
		&& errno == EINVAL);
	long before = figure("/proc/meminfo", "MemTotal");
	PROMISE("the pool takes what there is, and the file tells how much", put(POOL, "1000000") && get(POOL) > 4
		&& get(POOL) * 2048 < before && put(POOL, "4") && has(4, 4, 0, 0));
	PROMISE("the number of surplus pages is set", put(MORE, "3") && get(MORE) == 3
		&& get(SIZE "nr_overcommit_hugepages") == 3 && put(SIZE "nr_overcommit_hugepages", "0")
		&& get(MORE) == 0);
}

static void arguments(void)
{
	FAILS_WITH("a mapping larger than the pool fails", map(5, PRIVATE), ENOMEM);
	FAILS_WITH("a shared one, too", map(5, SHARED), ENOMEM);
	FAILS_WITH("a mapping of no byte is refused", mmap(NULL, 0, RW, PRIVATE, -1, 0), EINVAL);
	FAILS_WITH("a size that no huge page has is refused",
		mmap(NULL, HUGE, RW, PRIVATE | 14 << MAP_HUGE_SHIFT, -1, 0), EINVAL);
	FAILS_WITH("a file has no huge pages", mmap(NULL, HUGE, RW, MAP_PRIVATE | MAP_HUGETLB, 0, 0), EINVAL);
	FAILS_WITH("no descriptor is no file", mmap(NULL, HUGE, RW, MAP_PRIVATE | MAP_HUGETLB, -1, 0), EBADF);
	FAILS_WITH("an offset inside a huge page is refused", mmap(NULL, HUGE, RW, PRIVATE, -1, PAGE), EINVAL);
	char *at = mapped(2, PRIVATE);
	FAILS_WITH("a fixed address inside a huge page is refused",
		mmap(at + PAGE, HUGE, RW, PRIVATE | MAP_FIXED, -1, 0), EINVAL);
	PROMISE("nothing is reserved by mappings that failed", has(4, 4, 2, 0));
	FAILS_WITH("unmapping a part of a huge page is refused", munmap(at, PAGE), EINVAL);
	FAILS_WITH("from an address inside one, too", munmap(at + PAGE, HUGE), EINVAL);
	FAILS_WITH("and protecting a part", mprotect(at + HUGE, PAGE, PROT_READ), EINVAL);
	FAILS_WITH("or mapping something else over it",
		mmap(at, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), ENOMEM);
	PROMISE("unmapping gives reservations back", munmap(at, 2 * HUGE) == 0 && has(4, 4, 0, 0));
	at = mmap((void *)0x7000000000, 1, RW, PRIVATE | 21 << MAP_HUGE_SHIFT, -1, 0);
	PROMISE("a byte is mapped as a whole page of the size asked for", at == (void *)0x7000000000
		&& has(4, 4, 1, 0) && at[HUGE - 1] == 0);
	FAILS_WITH("a place that is taken is refused",
		mmap(at, HUGE, RW, PRIVATE | MAP_FIXED_NOREPLACE, -1, 0), EEXIST);
	PROMISE("another mapping may take its place", mmap(at, HUGE, RW, PRIVATE | MAP_FIXED, -1, 0) == at
		&& has(4, 4, 1, 0) && munmap(at, HUGE) == 0 && has(4, 4, 0, 0));
	at = mapped(1, PRIVATE);
	PROMISE("a place is found at a multiple of the size", (uintptr_t)at % HUGE == 0);
	munmap(at, HUGE);
}

static void pages(void)
{
	char *at = mapped(2, PRIVATE);
	PROMISE("pages are reserved and not taken at first", has(4, 4, 2, 0));
	PROMISE("reading takes a page of zeroes", is_filled(at, 0) && has(4, 3, 1, 0));
	memset(at, 'a', HUGE);
	PROMISE("writing keeps it", is_filled(at, 'a') && has(4, 3, 1, 0));
	uint64_t first = frame(at);
	int all = first % 512 == 0;
	for (int page = 0; page < 512; page++)
		all &= first == 0 || frame(at + page * PAGE) == first + page;
	PROMISE("a page is 2 MiB of adjacent memory", all);
	unsigned char in[1024];
	PROMISE("mincore tells which pages are there", mincore(at, 2 * HUGE, in) == 0 && in[0] == 1 && in[511] == 1
		&& in[512] == 0 && in[1023] == 0);
	const char *text = smaps(at);
	PROMISE("smaps tells the size of pages", row(text, "KernelPageSize:") == 2048
		&& row(text, "MMUPageSize:") == 2048);
	PROMISE("and counts them apart", row(text, "Private_Hugetlb:") == 2048 && row(text, "Shared_Hugetlb:") == 0
		&& row(text, "Rss:") == 0 && row(text, "AnonHugePages:") == 0);
	PROMISE("the area has a name and a flag", strstr(text, "/anon_hugepage (deleted)")
		&& strstr(strstr(text, "VmFlags:"), " ht"));
	PROMISE("so does status", figure("/proc/self/status", "HugetlbPages") == 2048);
	PROMISE("a part of the mapping is protected", mprotect(at + HUGE, HUGE, PROT_READ) == 0
		&& at[HUGE] == 0);
	int status;
	IN_CHILD(status, at[HUGE] = 1);
	PROMISE("and not written any more", died_by(status, SIGSEGV));
	PROMISE("until it may be again", mprotect(at + HUGE, HUGE, RW) == 0 && (at[HUGE] = 1) == 1);
	PROMISE("a part is unmapped", munmap(at, HUGE) == 0 && at[HUGE] == 1 && has(4, 3, 0, 0));
	PROMISE("and its pages are free again", munmap(at + HUGE, HUGE) == 0 && has(4, 4, 0, 0));
	at = mapped(4, PRIVATE);
	int clean = 1;
	for (int page = 0; page < 4; page++)
		clean &= is_filled(at + page * HUGE, 0);
	PROMISE("no page shows what was in it before", clean);
	munmap(at, 4 * HUGE);
	at = mapped(3, PRIVATE | MAP_POPULATE);
	PROMISE("MAP_POPULATE takes all pages at once", has(4, 1, 0, 0));
	munmap(at, 3 * HUGE);
	at = mapped(6, PRIVATE | MAP_NORESERVE);
	PROMISE("MAP_NORESERVE reserves nothing", has(4, 4, 0, 0));
	IN_CHILD(status, for (int page = 0; page < 4; page++) at[page * HUGE] = 1; _exit(7));
	PROMISE("its pages are taken while there are any", WIFEXITED(status) && WEXITSTATUS(status) == 7);
	IN_CHILD(status, for (int page = 0; page < 5; page++) at[page * HUGE] = 1);
	PROMISE("and a page that the pool has not is SIGBUS", died_by(status, SIGBUS) && has(4, 4, 0, 0));
	int ends[2];
	NEED(pipe(ends) == 0);
	IN_CHILD(status, for (int page = 0; page < 4; page++) at[page * HUGE] = 1; write(ends[1], "xy", 2);
		_exit(read(ends[0], at + 4 * HUGE, 1) == -1 && errno == EFAULT ? 7 : 0));
	PROMISE("a call fails there with EFAULT", WIFEXITED(status) && WEXITSTATUS(status) == 7);
	close(ends[0]);
	close(ends[1]);
	munmap(at, 6 * HUGE);
	at = mapped(2, PRIVATE);
	PROMISE("mlock makes pages present", mlock(at + PAGE, HUGE) == 0 && has(4, 2, 0, 0));
	PROMISE("and marks none", figure("/proc/self/status", "VmLck") == 0 && munlock(at, 2 * HUGE) == 0);
	PROMISE("the end of a process gives its pages back", munmap(at, 2 * HUGE) == 0 && has(4, 4, 0, 0));
}

static void advice(void)
{
	char *at = mapped(3, PRIVATE | MAP_POPULATE);
	memset(at, 'a', 3 * HUGE);
	PROMISE("MADV_DONTNEED gives a page back", madvise(at, HUGE, MADV_DONTNEED) == 0
		&& COMES_TRUE(figure("/proc/meminfo", "HugePages_Free") == 2) && is_filled(at, 0));
	PROMISE("but no part of one at its end", madvise(at + HUGE, HUGE + PAGE, MADV_DONTNEED) == 0
		&& is_filled(at + HUGE, 0) && is_filled(at + 2 * HUGE, 'a'));
	FAILS_WITH("nor from its middle", madvise(at + 2 * HUGE + PAGE, HUGE - PAGE, MADV_DONTNEED), EINVAL);
	FAILS_WITH("MADV_FREE is refused", madvise(at, HUGE, MADV_FREE), EINVAL);
	FAILS_WITH("MADV_COLD is refused", madvise(at, HUGE, MADV_COLD), EINVAL);
	FAILS_WITH("MADV_PAGEOUT is refused", madvise(at, HUGE, MADV_PAGEOUT), EINVAL);
	FAILS_WITH("MADV_WIPEONFORK is refused", madvise(at, HUGE, MADV_WIPEONFORK), EINVAL);
	FAILS_WITH("advice about a part of a page is refused", madvise(at, PAGE, MADV_DONTFORK), EINVAL);
	munmap(at, 3 * HUGE);
	at = mapped(2, PRIVATE);
	PROMISE("MADV_POPULATE_WRITE takes pages", madvise(at, 2 * HUGE, MADV_POPULATE_WRITE) == 0
		&& has(4, 2, 0, 0));
	munmap(at, 2 * HUGE);
}

static void moves(void)
{
	char *at = mapped(2, PRIVATE), *room = mmap(NULL, 4 * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(room != MAP_FAILED);
	char *to = (char *)(((uintptr_t)room + HUGE - 1) & ~(HUGE - 1));
	memset(at, 'a', HUGE);
	FAILS_WITH("mremap does not grow a mapping", mremap(at, 2 * HUGE, 3 * HUGE, MREMAP_MAYMOVE), EINVAL);
	FAILS_WITH("nor move it into the middle of a page",
		mremap(at, 2 * HUGE, 2 * HUGE, MREMAP_MAYMOVE | MREMAP_FIXED, to + PAGE), EINVAL);
	uint64_t before = frame(at);
	PROMISE("a move keeps pages and reservations",
		mremap(at, 2 * HUGE, 2 * HUGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to && is_filled(to, 'a')
		&& frame(to) == before && has(4, 3, 1, 0));
	PROMISE("a mapping shrinks", mremap(to, 2 * HUGE, HUGE, 0) == to && has(4, 3, 0, 0));
	PROMISE("and is given back where it has moved", munmap(to, HUGE) == 0 && has(4, 4, 0, 0));
	munmap(room, 4 * HUGE);
}

static void forks(void)
{
	int status, go[2], done[2];
	char byte;
	NEED(pipe(go) == 0 && pipe(done) == 0);
	char *at = mapped(1, PRIVATE);
	memset(at, 'a', HUGE);
	IN_CHILD(status, _exit(is_filled(at, 'a') ? 7 : 0));
	PROMISE("a child has its parent's page", WEXITSTATUS(status) == 7 && has(4, 3, 0, 0));
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		at[0] = 'b';
		write(done[1], at + HUGE - 1, 1);
		read(go[0], &byte, 1);
		_exit(at[0] == 'b' && at[1] == 'a' ? 7 : 0);
	}
	NEED(read(done[0], &byte, 1) == 1);
	PROMISE("a child's store copies the whole page", byte == 'a' && at[0] == 'a' && has(4, 2, 0, 0));
	uint64_t before = frame(at);
	at[1] = 'c';
	PROMISE("the parent then keeps its page", frame(at) == before && has(4, 2, 0, 0));
	write(go[1], "", 1);
	NEED(waitpid(child, &status, 0) == child);
	PROMISE("and neither sees what the other stored", WEXITSTATUS(status) == 7 && at[0] == 'a'
		&& has(4, 3, 0, 0));
	child = fork();
	NEED(child >= 0);
	if (child == 0) {
		read(go[0], &byte, 1);
		_exit(at[0] == 'a' ? 7 : 0);
	}
	at[0] = 'd';
	PROMISE("a parent's store copies the page for itself", frame(at) != before || before == 0);
	PROMISE("as long as the child is there", has(4, 2, 0, 0));
	write(go[1], "", 1);
	NEED(waitpid(child, &status, 0) == child);
	PROMISE("which keeps the old one", WEXITSTATUS(status) == 7 && has(4, 3, 0, 0));
	char *rest = mapped(3, PRIVATE | MAP_POPULATE);
	IN_CHILD(status, at[0] = 'e');
	PROMISE("a child's store without a free page is SIGBUS", died_by(status, SIGBUS) && at[0] == 'd');
	IN_CHILD(status, _exit(at[0] == 'd' ? 7 : 0));
	PROMISE("it may still read", WEXITSTATUS(status) == 7);
	munmap(rest, 3 * HUGE);
	rest = mapped(3, PRIVATE);
	IN_CHILD(status, rest[0] = 1);
	PROMISE("a child does not take what its parent has reserved", died_by(status, SIGBUS) && has(4, 3, 3, 0));
	munmap(rest, 3 * HUGE);
	rest = mapped(3, PRIVATE | MAP_POPULATE);
	child = fork();
	NEED(child >= 0);
	if (child == 0) {
		read(go[0], &byte, 1);
		at[0] = 'x';
		_exit(7);
	}
	before = frame(at);
	at[0] = 'f';
	PROMISE("a parent keeps a page that it has reserved", frame(at) == before && at[1] == 'c');
	write(go[1], "", 1);
	NEED(waitpid(child, &status, 0) == child);
	PROMISE("and its child loses it", died_by(status, SIGBUS) && at[0] == 'f');
	munmap(rest, 3 * HUGE);
	munmap(at, HUGE);
	at = mapped(2, SHARED);
	PROMISE("a shared mapping reserves its pages", has(4, 4, 2, 0));
	IN_CHILD(status, memset(at, 's', HUGE));
	PROMISE("what a child stores there is seen", is_filled(at, 's') && has(4, 3, 1, 0));
	at[0] = 't';
	IN_CHILD(status, _exit(at[0] == 't' && at[1] == 's' ? 7 : 0));
	PROMISE("and what its parent stores", WEXITSTATUS(status) == 7 && has(4, 3, 1, 0));
	const char *text = smaps(at);
	PROMISE("it has one page", row(text, "Private_Hugetlb:") + row(text, "Shared_Hugetlb:") == 2048);
	PROMISE("which stays where MADV_DONTNEED unmaps it", madvise(at, HUGE, MADV_DONTNEED) == 0 && at[0] == 't');
	PROMISE("and is free after the last mapping", munmap(at, 2 * HUGE) == 0 && has(4, 4, 0, 0));
	close(go[0]), close(go[1]), close(done[0]), close(done[1]);
}

static void lent(void)
{
	int ends[2];
	char bytes[PAGE];
	NEED(pipe(ends) == 0);
	for (int kind = 0; kind < 2; kind++) {
		char *at = mapped(1, kind ? SHARED : PRIVATE);
		memset(at, 'a', HUGE);
		struct iovec run = { at + 3 * PAGE, PAGE };
		PROMISE("a pipe takes a part of a page", vmsplice(ends[1], &run, 1, 0) == PAGE);
		PROMISE("and keeps it when the mapping goes", munmap(at, HUGE) == 0
			&& figure("/proc/meminfo", "HugePages_Free") == 3);
		PROMISE("with its bytes", read(ends[0], bytes, PAGE) == PAGE && bytes[0] == 'a'
			&& bytes[PAGE - 1] == 'a');
		PROMISE("and gives it back", has(4, 4, 0, 0));
		at = mapped(1, kind ? SHARED : PRIVATE);
		PROMISE("calls read into it", write(ends[1], "hello", 5) == 5 && read(ends[0], at + HUGE - 5, 5) == 5
			&& !memcmp(at + HUGE - 5, "hello", 5));
		struct iovec mine = { bytes, 5 }, own = { at + HUGE - 5, 5 };
		PROMISE("and other processes", process_vm_readv(getpid(), &mine, 1, &own, 1, 0) == 5
			&& !memcmp(bytes, "hello", 5) && (bytes[0] = 'j')
			&& process_vm_writev(getpid(), &mine, 1, &own, 1, 0) == 5 && !memcmp(at + HUGE - 5, "jello", 5));
		munmap(at, HUGE);
	}
	close(ends[0]);
	close(ends[1]);
}

static void surplus(void)
{
	NEED(put(MORE, "2"));
	char *at = mapped(6, PRIVATE);
	PROMISE("a mapping adds surplus pages", has(6, 6, 6, 2));
	FAILS_WITH("but not more than there may be", map(1, PRIVATE), ENOMEM);
	at[0] = 1;
	PROMISE("they go with the mapping", munmap(at, 6 * HUGE) == 0 && has(4, 4, 0, 0));
	at = mapped(6, PRIVATE | MAP_NORESERVE);
	for (int page = 0; page < 5; page++)
		at[page * HUGE] = 1;
	PROMISE("a fault adds one, too", has(5, 0, 0, 1));
	munmap(at, 6 * HUGE);
	PROMISE("which goes with its last mapping", has(4, 4, 0, 0) && put(MORE, "0"));
	at = mapped(3, PRIVATE);
	at[0] = 1;
	PROMISE("pages in use and reserved pages stay in a pool that shrinks", put(POOL, "0") && has(3, 2, 2, 3)
		&& get(POOL) == 0);
	PROMISE("and go when they are given back", munmap(at, 3 * HUGE) == 0 && has(0, 0, 0, 0));
	FAILS_WITH("an empty pool has nothing", map(1, PRIVATE), ENOMEM);
}

int main(void)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	the_pool();
	arguments();
	pages();
	advice();
	moves();
	forks();
	lent();
	surplus();
	return conclude();
}
