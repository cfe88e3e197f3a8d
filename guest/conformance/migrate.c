/* Pages and nodes: move_pages, migrate_pages, memory policies, numa_maps. Needs two nodes with
 * memory. */
#include "promise.h"

enum { PAGE = 4096, LARGE = 2 << 20 };
enum { MPOL_DEFAULT, MPOL_PREFERRED, MPOL_BIND, MPOL_INTERLEAVE, MPOL_LOCAL };
enum { MPOL_F_NODE = 1, MPOL_F_ADDR = 2, MPOL_F_MEMS_ALLOWED = 4 };
enum { MPOL_F_RELATIVE_NODES = 1 << 14, MPOL_F_STATIC_NODES = 1 << 15 };
enum { MPOL_MF_STRICT = 1, MPOL_MF_MOVE = 2, MPOL_MF_MOVE_ALL = 4 };

static long move_pages(int pid, unsigned long count, void **pages, const int *nodes, int *status, int flags)
{
	return syscall(SYS_move_pages, pid, count, pages, nodes, status, flags);
}

static long migrate_pages(int pid, unsigned long bits, const unsigned long *from, const unsigned long *to)
{
	return syscall(SYS_migrate_pages, pid, bits, from, to);
}

static long set_mempolicy(int mode, const unsigned long *nodes, unsigned long bits)
{
	return syscall(SYS_set_mempolicy, mode, nodes, bits);
}

static long get_mempolicy(int *mode, unsigned long *nodes, unsigned long bits, void *addr, unsigned long flags)
{
	return syscall(SYS_get_mempolicy, mode, nodes, bits, addr, flags);
}

static long mbind(void *at, unsigned long size, int mode, const unsigned long *nodes, unsigned long bits,
		  unsigned flags)
{
	return syscall(SYS_mbind, at, size, mode, nodes, bits, flags);
}

static char *map(size_t size, int flags)
{
	char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | flags, -1, 0);
	NEED(at != MAP_FAILED);
	/* Pages of 4 KiB, unless said otherwise. */
	madvise(at, size, MADV_NOHUGEPAGE);
	return at;
}

/* The node of a page, or the negated error that move_pages reports for it. */
static int node_of(const void *at)
{
	void *pages[1] = { (void *)at };
	int status = -1000;
	NEED(move_pages(0, 1, pages, NULL, &status, 0) == 0);
	return status;
}

/* Moves one page to a node; returns its new node or a negative error. */
static int move_to(void *at, int node, int flags)
{
	int status = -1000;
	long left = move_pages(0, 1, &at, &node, &status, flags);
	return left < 0 ? -errno : left > 0 ? -EBUSY : status;
}

static int all_on(const char *at, size_t pages, int node)
{
	for (size_t i = 0; i < pages; i++)
		if (node_of(at + i * PAGE) != node)
			return 0;
	return 1;
}

static void fill(char *at, size_t pages)
{
	for (size_t i = 0; i < pages; i++)
		memset(at + i * PAGE, (int)(i % 251 + 1), PAGE);
}

static int is_filled(const char *at, size_t pages)
{
	for (size_t i = 0; i < pages * PAGE; i++)
		if (at[i] != (char)(i / PAGE % 251 + 1))
			return 0;
	return 1;
}

static unsigned long pagemap(const void *at)
{
	unsigned long entry = 0;
	int fd = open("/proc/self/pagemap", O_RDONLY);
	NEED(fd >= 0 && pread(fd, &entry, 8, (unsigned long)at / PAGE * 8) == 8);
	close(fd);
	return entry;
}

static void asking(void)
{
	char *a = map(4 * PAGE, MAP_PRIVATE);
	a[0] = 1;
	void *pages[] = { a, a + 100, a + PAGE, (void *)(16 * PAGE) };
	int status[4] = { 9, 9, 9, 9 };
	PROMISE("move_pages without nodes tells the nodes of pages", move_pages(0, 4, pages, NULL, status, 0) == 0 &&
								    status[0] >= 0 && status[0] < 2);
	PROMISE("any address in a page stands for it", status[1] == status[0]);
	PROMISE("a page that was never touched has none", status[2] == -ENOENT || status[2] == -EFAULT);
	PROMISE("an address where nothing is mapped is a fault", status[3] == -EFAULT);
	volatile char seen = a[2 * PAGE];
	(void)seen;
	PROMISE("the page of zeroes is nobody's", node_of(a + 2 * PAGE) == -EFAULT);
	FAILS_WITH("flags that are none", move_pages(0, 1, pages, NULL, status, 1), EINVAL);
	FAILS_WITH("a process that is none", move_pages(999999, 1, pages, NULL, status, 0), ESRCH);
	FAILS_WITH("pages that cannot be read", move_pages(0, 1, (void **)8, NULL, status, 0), EFAULT);
	FAILS_WITH("a status that cannot be written", move_pages(0, 1, pages, NULL, (int *)8, 0), EFAULT);
	PROMISE("no pages at all", move_pages(0, 0, NULL, NULL, NULL, 0) == 0);
	int nowhere = 999;
	FAILS_WITH("a node that is none", move_pages(0, 1, pages, &nowhere, status, MPOL_MF_MOVE), ENODEV);
	munmap(a, 4 * PAGE);
}

static void moving(void)
{
	enum { COUNT = 300 };
	char *a = map(COUNT * PAGE, MAP_PRIVATE);
	fill(a, COUNT);
	void *pages[COUNT];
	int nodes[COUNT], status[COUNT];
	for (int to = 1; to >= 0; to--) {
		for (int i = 0; i < COUNT; i++) {
			pages[i] = a + i * PAGE;
			nodes[i] = to;
			status[i] = -1000;
		}
		PROMISE("many pages move at once", move_pages(0, COUNT, pages, nodes, status, MPOL_MF_MOVE) == 0);
		int told = 1;
		for (int i = 0; i < COUNT; i++)
			told &= status[i] == to;
		PROMISE("each is told its node", told);
		PROMISE("each is there", all_on(a, COUNT, to));
		PROMISE("their bytes came along", is_filled(a, COUNT));
	}
	for (int i = 0; i < COUNT; i++)
		nodes[i] = i % 2;
	PROMISE("every other page moves", move_pages(0, COUNT, pages, nodes, status, MPOL_MF_MOVE) == 0);
	int right = 1;
	for (int i = 0; i < COUNT; i++)
		right &= node_of(pages[i]) == i % 2 && status[i] == i % 2;
	PROMISE("the others stay", right && is_filled(a, COUNT));
	void *twice[3] = { a, a + PAGE, a };
	int first = node_of(a), there_and_back[3] = { !first, 1, first };
	PROMISE("a page that is named twice moves twice, and each is told", move_pages(0, 3, twice, there_and_back, status, MPOL_MF_MOVE) == 0
		&& status[0] == !first && status[2] == first && node_of(a) == first && is_filled(a, COUNT));
	a[PAGE] = 77;
	PROMISE("who has moved can be written", a[PAGE] == 77 && node_of(a + PAGE) == 1);
	PROMISE("a page that is there already is no move", move_to(a + PAGE, 1, MPOL_MF_MOVE) == 1);
	munmap(a, COUNT * PAGE);

	a = map(PAGE, MAP_PRIVATE);
	PROMISE("what was never touched does not move", move_to(a, 1, MPOL_MF_MOVE) == -ENOENT ||
								 move_to(a, 1, MPOL_MF_MOVE) == -EFAULT);
	*a = 5;
	PROMISE("write protection moves along", mprotect(a, PAGE, PROT_READ) == 0 && move_to(a, 1, MPOL_MF_MOVE) == 1 &&
							 move_to(a, 0, MPOL_MF_MOVE) == 0 && *a == 5);
	int status_of_child;
	IN_CHILD(status_of_child, *(volatile char *)a = 6);
	PROMISE("and holds", WIFSIGNALED(status_of_child) && WTERMSIG(status_of_child) == SIGSEGV);
	/* move_pages of Linux skips a page with PROT_NONE. */
	NEED(mprotect(a, PAGE, PROT_NONE) == 0);
	int moved = move_to(a, 1, MPOL_MF_MOVE);
	PROMISE("memory that may not be touched moves, or is not seen", moved == 1 || moved == -ENOENT);
	PROMISE("and is what it was", mprotect(a, PAGE, PROT_READ) == 0 && *a == 5);
	munmap(a, PAGE);
}

static void sharing(void)
{
	char *a = map(16 * PAGE, MAP_PRIVATE);
	fill(a, 16);
	move_to(a, 0, MPOL_MF_MOVE);
	int go[2], done[2];
	NEED(pipe(go) == 0 && pipe(done) == 0);
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		char c;
		close(go[1]);
		while (read(go[0], &c, 1) == 1) {
			if (c == 'w')
				a[1] = 99;
			int fine = c == 'w' ? a[1] == 99 : a[0] == 1 && a[PAGE] == 2 && node_of(a) == c - '0';
			if (write(done[1], &(char){ (char)fine }, 1) != 1)
				_exit(1);
		}
		_exit(0);
	}
	char fine;
#define CHILD(what) (write(go[1], what, 1) == 1 && read(done[0], &fine, 1) == 1 && fine)
	PROMISE("what a child shares does not move for one alone", move_to(a, 1, MPOL_MF_MOVE) == -EACCES);
	PROMISE("it moves for all", move_to(a, 1, MPOL_MF_MOVE_ALL) == 1);
	PROMISE("the child has moved too", CHILD("1"));
	PROMISE("both still share one frame", pagemap(a) << 9 >> 9 != 0 && !(pagemap(a) & 1UL << 56));
	PROMISE("what the child writes is its own", CHILD("w") && a[1] == 1);
	PROMISE("what the parent writes is its own", (a[0] = 50) == 50 && node_of(a) == 1);
	PROMISE("left alone, a page moves by itself", CHILD("w") && move_to(a, 0, MPOL_MF_MOVE) == 0);
	close(go[1]);
	int status;
	NEED(waitpid(child, &status, 0) == child && status == 0);
	munmap(a, 16 * PAGE);
#undef CHILD
}

static void files(void)
{
	char *shared = map(8 * PAGE, MAP_SHARED);
	fill(shared, 8);
	int there = node_of(shared);
	PROMISE("shared memory moves", move_to(shared, !there, MPOL_MF_MOVE) == !there && is_filled(shared, 8));
	shared[3] = 9;
	PROMISE("and is written where it is", shared[3] == 9 && node_of(shared) == !there);
	munmap(shared, 8 * PAGE);

	int fd = memfd_create("moving", 0);
	NEED(fd >= 0 && ftruncate(fd, 4 * PAGE) == 0);
	char *a = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(a != MAP_FAILED);
	fill(a, 4);
	there = node_of(a + PAGE);
	PROMISE("a file's page moves", move_to(a + PAGE, !there, MPOL_MF_MOVE) == !there);
	char byte = 0;
	PROMISE("the file has its bytes", pread(fd, &byte, 1, PAGE) == 1 && byte == 2 && is_filled(a, 4));
	PROMISE("a write to the file shows in the mapping", pwrite(fd, "x", 1, PAGE) == 1 && a[PAGE] == 'x');
	a[PAGE + 1] = 'y';
	PROMISE("a store shows in the file", pread(fd, &byte, 1, PAGE + 1) == 1 && byte == 'y');
	char *b = mmap(NULL, 4 * PAGE, PROT_READ, MAP_SHARED, fd, 0);
	NEED(b != MAP_FAILED && b[PAGE] == 'x' && a[PAGE] == 'x');
	there = node_of(a + PAGE);
	PROMISE("mapped twice it does not move for one", move_to(a + PAGE, !there, MPOL_MF_MOVE) == -EACCES);
	PROMISE("but for all", move_to(a + PAGE, !there, MPOL_MF_MOVE_ALL) == !there && b[PAGE] == 'x');
	close(fd);
}

static void pinned(void)
{
	char *a = map(2 * PAGE, MAP_PRIVATE);
	fill(a, 2);
	int there = node_of(a), ends[2];
	NEED(pipe(ends) == 0);
	struct iovec run = { a, PAGE };
	NEED(vmsplice(ends[1], &run, 1, 0) == PAGE);
	PROMISE("a page in a pipe does not move", move_to(a, !there, MPOL_MF_MOVE) == -EBUSY && node_of(a) == there);
	a[5] = 44;
	char bytes[PAGE];
	PROMISE("and the pipe has it as it is", read(ends[0], bytes, PAGE) == PAGE && bytes[5] == 44 && bytes[6] == 1);
	PROMISE("out of the pipe it moves", move_to(a, !there, MPOL_MF_MOVE) == !there && a[5] == 44);
	munmap(a, 2 * PAGE);
}

static void marks(void)
{
	char *a = map(2 * PAGE, MAP_PRIVATE);
	fill(a, 2);
	int fd = open("/proc/self/clear_refs", O_WRONLY);
	NEED(fd >= 0);
	if (write(fd, "4", 1) != 1)
		NEED(errno == EINVAL);
	close(fd);
	int counts = !(pagemap(a) & 1UL << 55);
	a[PAGE] = 3;
	int there = node_of(a);
	NEED(move_to(a, !there, MPOL_MF_MOVE) == !there && move_to(a + PAGE, !there, MPOL_MF_MOVE) == !there);
	PROMISE("a page that was written stays so", !counts || pagemap(a + PAGE) & 1UL << 55);
	PROMISE("a page that was not does not become so", !counts || !(pagemap(a) & 1UL << 55));
	a[0] = 7;
	PROMISE("and is marked when it is", !counts || pagemap(a) & 1UL << 55);
	PROMISE("it is its owner's alone", pagemap(a) & 1UL << 56);
	munmap(a, 2 * PAGE);
}

static void large(void)
{
	char *room = mmap(NULL, 2 * LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(room != MAP_FAILED);
	char *a = (char *)(((unsigned long)room + LARGE - 1) & ~(LARGE - 1UL));
	madvise(a, LARGE, MADV_HUGEPAGE);
	fill(a, LARGE / PAGE);
	int there = node_of(a);
	PROMISE("a page of 2 MiB moves by its first address", move_to(a, !there, MPOL_MF_MOVE) == !there);
	PROMISE("with all its bytes", is_filled(a, LARGE / PAGE));
	PROMISE("a piece of it moves", move_to(a + 5 * PAGE, there, MPOL_MF_MOVE) == there &&
					       node_of(a + 5 * PAGE) == there);
	PROMISE("and nothing is lost", is_filled(a, LARGE / PAGE));
	munmap(room, 2 * LARGE);
}

static void migrating(void)
{
	unsigned long zero = 1, one = 2, both = 3, none = 0, third = 1UL << 40;
	char *a = map(64 * PAGE, MAP_PRIVATE);
	fill(a, 64);
	PROMISE("migrate_pages to node 0", migrate_pages(0, 64, &one, &zero) >= 0 && all_on(a, 64, 0));
	PROMISE("migrate_pages to node 1", migrate_pages(0, 64, &zero, &one) >= 0 && all_on(a, 64, 1));
	PROMISE("with all bytes", is_filled(a, 64));
	PROMISE("from where nothing is", migrate_pages(0, 64, &zero, &one) >= 0 && all_on(a, 64, 1));
	PROMISE("two nodes change places", migrate_pages(0, 64, &both, &both) >= 0 && is_filled(a, 64));
	FAILS_WITH("to no node", migrate_pages(0, 64, &one, &none), EINVAL);
	FAILS_WITH("to a node that has no memory", migrate_pages(0, 64, &one, &third), EINVAL);
	FAILS_WITH("migrate_pages of nobody", migrate_pages(999999, 64, &one, &zero), ESRCH);
	FAILS_WITH("a mask that cannot be read", migrate_pages(0, 64, (unsigned long *)8, &zero), EFAULT);
	fflush(stdout);
	int ends[2], ready[2];
	char c;
	NEED(pipe(ends) == 0 && pipe(ready) == 0);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		a[1] = 2;
		if (write(ready[1], "", 1) != 1 || read(ends[0], &c, 1) != 1)
			_exit(1);
		_exit(a[1] == 2 && node_of(a) == 0 ? 0 : 2);
	}
	NEED(read(ready[0], &c, 1) == 1);
	PROMISE("another process' pages move", migrate_pages(child, 64, &one, &zero) >= 0 && write(ends[1], "", 1) == 1);
	int status;
	NEED(waitpid(child, &status, 0) == child);
	PROMISE("and it does not notice", status == 0);
	munmap(a, 64 * PAGE);
}

static void policies(void)
{
	unsigned long zero = 1, one = 2, both = 3, none = 0, got = 0;
	int mode = -1;
	PROMISE("the default policy", get_mempolicy(&mode, &got, 64, NULL, 0) == 0 && mode == MPOL_DEFAULT && got == 0);
	PROMISE("the nodes that may be used", get_mempolicy(NULL, &got, 64, NULL, MPOL_F_MEMS_ALLOWED) == 0 && got == both);
	char *a;
	for (int node = 0; node < 2; node++) {
		unsigned long mask = 1UL << node;
		PROMISE("set_mempolicy to bind", set_mempolicy(MPOL_BIND, &mask, 64) == 0);
		PROMISE("it is told", get_mempolicy(&mode, &got, 64, NULL, 0) == 0 && mode == MPOL_BIND && got == mask);
		a = map(32 * PAGE, MAP_PRIVATE);
		fill(a, 32);
		PROMISE("pages come from the bound node", all_on(a, 32, node));
		munmap(a, 32 * PAGE);
		a = map(8 * PAGE, MAP_SHARED);
		fill(a, 8);
		PROMISE("those of shared memory too", all_on(a, 8, node));
		munmap(a, 8 * PAGE);
		PROMISE("set_mempolicy to preferred", set_mempolicy(MPOL_PREFERRED, &mask, 64) == 0);
		a = map(32 * PAGE, MAP_PRIVATE);
		fill(a, 32);
		PROMISE("pages come from the preferred node", all_on(a, 32, node));
		munmap(a, 32 * PAGE);
	}
	PROMISE("set_mempolicy to interleave", set_mempolicy(MPOL_INTERLEAVE, &both, 64) == 0);
	a = map(64 * PAGE, MAP_PRIVATE);
	fill(a, 64);
	int count = 0;
	for (int i = 0; i < 64; i++)
		count += node_of(a + i * PAGE);
	/* Linux interleaves page tables, too. */
	PROMISE("pages come from both in turn", count >= 30 && count <= 34);
	int next = -1;
	PROMISE("whose turn it is can be asked", get_mempolicy(&next, NULL, 0, NULL, MPOL_F_NODE) == 0 &&
							 (next == 0 || next == 1));
	munmap(a, 64 * PAGE);
	a = map(PAGE, MAP_PRIVATE);
	*a = 1;
	int status;
	IN_CHILD(status, int mode_ = -1; unsigned long got_ = 0;
		 if (get_mempolicy(&mode_, &got_, 64, NULL, 0) != 0 || mode_ != MPOL_INTERLEAVE || got_ != both) _exit(1));
	PROMISE("a child inherits it", status == 0);
	PROMISE("back to the default", set_mempolicy(MPOL_DEFAULT, NULL, 0) == 0);
	FAILS_WITH("turns without a policy of turns", get_mempolicy(&next, NULL, 0, NULL, MPOL_F_NODE), EINVAL);
	PROMISE("the node of a page can be asked", get_mempolicy(&mode, NULL, 0, a, MPOL_F_NODE | MPOL_F_ADDR) == 0 &&
						     mode == node_of(a));
	PROMISE("local memory", set_mempolicy(MPOL_LOCAL, NULL, 0) == 0 && get_mempolicy(&mode, &got, 64, NULL, 0) == 0 &&
				      mode == MPOL_LOCAL && got == 0);
	PROMISE("preferred without nodes is local", set_mempolicy(MPOL_PREFERRED, NULL, 0) == 0 &&
							  get_mempolicy(&mode, NULL, 0, NULL, 0) == 0 && mode == MPOL_LOCAL);
	PROMISE("static nodes are told as they were given",
		set_mempolicy(MPOL_BIND | MPOL_F_STATIC_NODES, &one, 64) == 0 &&
			get_mempolicy(&mode, &got, 64, NULL, 0) == 0 && mode == (MPOL_BIND | MPOL_F_STATIC_NODES) && got == one);
	NEED(set_mempolicy(MPOL_DEFAULT, NULL, 0) == 0);
	FAILS_WITH("a mode that is none", set_mempolicy(77, &one, 64), EINVAL);
	FAILS_WITH("static and relative at once",
		   set_mempolicy(MPOL_BIND | MPOL_F_STATIC_NODES | MPOL_F_RELATIVE_NODES, &one, 64), EINVAL);
	FAILS_WITH("bind without nodes", set_mempolicy(MPOL_BIND, &none, 64), EINVAL);
	FAILS_WITH("the default policy with nodes", set_mempolicy(MPOL_DEFAULT, &one, 64), EINVAL);
	FAILS_WITH("local with nodes", set_mempolicy(MPOL_LOCAL, &one, 64), EINVAL);
	FAILS_WITH("nodes that cannot be read", set_mempolicy(MPOL_BIND, (unsigned long *)8, 64), EFAULT);
	FAILS_WITH("asking with flags that are none", get_mempolicy(&mode, NULL, 0, NULL, 64), EINVAL);
	FAILS_WITH("asking where nothing is mapped", get_mempolicy(&mode, NULL, 0, (void *)(16 * PAGE), MPOL_F_ADDR), EFAULT);
	FAILS_WITH("an address without the flag for it", get_mempolicy(&mode, NULL, 0, a, 0), EINVAL);
	munmap(a, PAGE);
	(void)zero;
}

static int says(const void *at, const char *what)
{
	char line[512], start[32];
	FILE *maps = fopen("/proc/self/numa_maps", "r");
	NEED(maps);
	snprintf(start, sizeof start, "%lx ", (unsigned long)at);
	int found = 0;
	while (fgets(line, sizeof line, maps))
		if (!strncmp(line, start, strlen(start)) && strstr(line, what))
			found = 1;
	fclose(maps);
	return found;
}

static void binding(void)
{
	unsigned long zero = 1, one = 2, both = 3, got = 0;
	int mode = -1;
	char *a = map(64 * PAGE, MAP_PRIVATE);
	PROMISE("mbind before the first touch", mbind(a, 16 * PAGE, MPOL_BIND, &one, 64, 0) == 0);
	fill(a, 64);
	PROMISE("pages of the area come from its node", all_on(a, 16, 1));
	PROMISE("the area's policy is told", get_mempolicy(&mode, &got, 64, a + PAGE, MPOL_F_ADDR) == 0 &&
						       mode == MPOL_BIND && got == one);
	PROMISE("the rest has none", get_mempolicy(&mode, &got, 64, a + 16 * PAGE, MPOL_F_ADDR) == 0 && mode == MPOL_DEFAULT);
	PROMISE("numa_maps tells the policy", says(a, " bind:1 "));
	PROMISE("and how many pages each node has", says(a, " anon=16 ") && says(a, " N1=16"));
	PROMISE("and their size", says(a, " kernelpagesize_kB=4"));
	PROMISE("mbind goes before set_mempolicy", set_mempolicy(MPOL_BIND, &zero, 64) == 0 &&
							    madvise(a, 16 * PAGE, MADV_DONTNEED) == 0 &&
							    (fill(a, 16), all_on(a, 16, 1)));
	NEED(set_mempolicy(MPOL_DEFAULT, NULL, 0) == 0);
	int status;
	IN_CHILD(status, madvise(a, 16 * PAGE, MADV_DONTNEED); fill(a, 16); if (!all_on(a, 16, 1)) _exit(1));
	PROMISE("a child inherits it with the area", status == 0);
	PROMISE("with MPOL_MF_MOVE the pages move", mbind(a, 64 * PAGE, MPOL_BIND, &zero, 64, MPOL_MF_MOVE) == 0 &&
							      all_on(a, 64, 0) && is_filled(a, 64));
	FAILS_WITH("strictly, pages elsewhere are an error", mbind(a, 64 * PAGE, MPOL_BIND, &one, 64, MPOL_MF_STRICT), EIO);
	PROMISE("strictly, moving mends it", mbind(a, 64 * PAGE, MPOL_BIND, &one, 64, MPOL_MF_STRICT | MPOL_MF_MOVE) == 0 &&
						     all_on(a, 64, 1));
	NEED(mbind(a, 16 * PAGE, MPOL_INTERLEAVE, &both, 64, 0) == 0 && madvise(a, 16 * PAGE, MADV_DONTNEED) == 0);
	fill(a, 16);
	int turns = 1;
	for (int i = 1; i < 16; i++)
		turns &= node_of(a + i * PAGE) != node_of(a + (i - 1) * PAGE);
	PROMISE("an area's pages come from both nodes in turn", turns);
	PROMISE("numa_maps tells that", says(a, " interleave:0-1 ") && says(a, " N0=8 N1=8"));
	PROMISE("back to the default", mbind(a, 64 * PAGE, MPOL_DEFAULT, NULL, 0, 0) == 0 &&
					       get_mempolicy(&mode, NULL, 0, a, MPOL_F_ADDR) == 0 && mode == MPOL_DEFAULT);
	PROMISE("in the middle of an area, moving", mbind(a + 8 * PAGE, 16 * PAGE, MPOL_DEFAULT, NULL, 0, MPOL_MF_MOVE) == 0);
	FAILS_WITH("strictly, no page that is there is local", mbind(a, 64 * PAGE, MPOL_LOCAL, NULL, 0, MPOL_MF_STRICT), EIO);
	PROMISE("and nothing has changed", get_mempolicy(&mode, NULL, 0, a, MPOL_F_ADDR) == 0 && mode == MPOL_DEFAULT);
	char *fresh = map(PAGE, MAP_PRIVATE);
	PROMISE("what is not there yet may be", mbind(fresh, PAGE, MPOL_LOCAL, NULL, 0, MPOL_MF_STRICT) == 0);
	munmap(fresh, PAGE);
	cpu_set_t usual, one_cpu;
	unsigned node = 2;
	NEED(sched_getaffinity(0, sizeof usual, &usual) == 0);
	CPU_ZERO(&one_cpu);
	CPU_SET(sched_getcpu(), &one_cpu);
	NEED(sched_setaffinity(0, sizeof one_cpu, &one_cpu) == 0 && syscall(SYS_getcpu, NULL, &node, NULL) == 0);
	unsigned long elsewhere = node ? zero : one;
	PROMISE("with MPOL_MF_MOVE pages become local to who moves them",
		mbind(a, 16 * PAGE, MPOL_BIND, &elsewhere, 64, MPOL_MF_MOVE) == 0 && all_on(a, 16, !node) &&
			mbind(a, 16 * PAGE, MPOL_LOCAL, NULL, 0, MPOL_MF_STRICT | MPOL_MF_MOVE) == 0 && all_on(a, 16, node) && is_filled(a, 16));
	NEED(sched_setaffinity(0, sizeof usual, &usual) == 0 && mbind(a, 16 * PAGE, MPOL_DEFAULT, NULL, 0, 0) == 0);
	PROMISE("a length that wraps around to nothing", mbind(a, -1ul, MPOL_BIND, &one, 64, 0) == 0);
	FAILS_WITH("one that wraps around", mbind(a, -PAGE, MPOL_BIND, &one, 64, 0), EINVAL);
	FAILS_WITH("a mask of no bits", mbind(a, PAGE, MPOL_PREFERRED, &one, 0, 0), EINVAL);
	FAILS_WITH("an address inside a page", mbind(a + 1, PAGE, MPOL_BIND, &one, 64, 0), EINVAL);
	FAILS_WITH("flags that are none", mbind(a, PAGE, MPOL_BIND, &one, 64, 64), EINVAL);
	FAILS_WITH("a mode that is none", mbind(a, PAGE, 77, &one, 64, 0), EINVAL);
	PROMISE("nothing at all", mbind(a, 0, MPOL_BIND, &one, 64, 0) == 0);
	NEED(mprotect(a, PAGE, PROT_NONE) == 0);
	FAILS_WITH("the node of a page that nobody may read", get_mempolicy(&mode, NULL, 0, a, MPOL_F_NODE | MPOL_F_ADDR), EFAULT);
	NEED(mprotect(a, PAGE, PROT_READ | PROT_WRITE) == 0);
	munmap(a + 8 * PAGE, PAGE);
	FAILS_WITH("a hole", mbind(a, 16 * PAGE, MPOL_BIND, &one, 64, 0), EFAULT);
	FAILS_WITH("which goes before pages elsewhere", mbind(a, 16 * PAGE, MPOL_LOCAL, NULL, 0, MPOL_MF_STRICT), EFAULT);
	PROMISE("which the default does not mind", mbind(a, 16 * PAGE, MPOL_DEFAULT, NULL, 0, 0) == 0);
	FAILS_WITH("but where nothing is", mbind(a + 8 * PAGE, PAGE, MPOL_DEFAULT, NULL, 0, 0), EFAULT);
	munmap(a, 64 * PAGE);
}

/* Free pages in blocks of 2 MiB and more. */
static long free_in_blocks(void)
{
	char line[512];
	long pages = 0;
	FILE *info = fopen("/proc/buddyinfo", "r");
	NEED(info);
	while (fgets(line, sizeof line, info)) {
		char zone[32];
		int skip = 0;
		NEED(sscanf(line, "Node %*d, zone %31s%n", zone, &skip) == 1);
		char *at = line + skip;
		for (int order = 0; order <= 10; order++) {
			long blocks = strtol(at, &at, 10);
			pages += order >= 9 ? blocks << order : 0;
		}
	}
	fclose(info);
	return pages;
}

static void compacting(void)
{
	enum { COUNT = 128 << 8 };
	char *a = map((size_t)COUNT * PAGE, MAP_PRIVATE);
	fill(a, COUNT);
	for (size_t i = 0; i < COUNT; i++)
		if (i % 16)
			madvise(a + i * PAGE, PAGE, MADV_DONTNEED);
	int fd = open("/proc/sys/vm/compact_memory", O_WRONLY);
	NEED(fd >= 0);
	long before = free_in_blocks();
	PROMISE("compaction is had for a 1", write(fd, "1", 1) == 1);
	PROMISE("it makes blocks out of parts", free_in_blocks() > before + (16 << 8));
	int right = 1;
	for (size_t i = 0; i < COUNT; i += 16)
		for (size_t j = 0; j < PAGE; j++)
			right &= a[i * PAGE + j] == (char)(i % 251 + 1);
	PROMISE("and leaves every byte where its program finds it", right);
	close(fd);
	munmap(a, (size_t)COUNT * PAGE);
}

static volatile int stop;

static void *count_up(void *word)
{
	volatile unsigned long *at = word;
	unsigned long n = 0;
	while (!stop)
		*at = ++n;
	return (void *)n;
}

static void under_load(void)
{
	char *a = map(PAGE, MAP_PRIVATE);
	pthread_t writer;
	*a = 1;
	NEED(pthread_create(&writer, NULL, count_up, a) == 0);
	int moved = 0;
	for (int i = 0; i < 300; i++)
		moved += move_to(a, i % 2, MPOL_MF_MOVE) == i % 2;
	stop = 1;
	void *last;
	NEED(pthread_join(writer, &last) == 0);
	PROMISE("a page moves while another thread writes it", moved > 200);
	PROMISE("and not a store is lost", *(unsigned long *)a == (unsigned long)last);
	munmap(a, PAGE);
}

static long set_home(void *at, unsigned long size, unsigned long node, unsigned long flags)
{
	return syscall(450 /* set_mempolicy_home_node */, at, size, node, flags);
}

/* The node where a new page of a policy for both nodes is, with this home. */
static int page_near(int home)
{
	char *at = map(PAGE, MAP_PRIVATE);
	unsigned long both = 3;
	NEED(mbind(at, PAGE, MPOL_BIND, &both, 3, 0) == 0 && set_home(at, PAGE, home, 0) == 0);
	*at = 1;
	int node = node_of(at);
	munmap(at, PAGE);
	return node;
}

static void homes(void)
{
	char *at = map(4 * PAGE, MAP_PRIVATE), *gap = map(4 * PAGE, MAP_PRIVATE);
	unsigned long both = 3, first = 1;
	FAILS_WITH("a home needs a policy", set_home(at, PAGE, 0, 0), ENOENT);
	FAILS_WITH("that of the task is none", (set_mempolicy(MPOL_BIND, &both, 3), set_home(at, PAGE, 0, 0)), ENOENT);
	NEED(set_mempolicy(MPOL_DEFAULT, NULL, 0) == 0 && mbind(at, PAGE, MPOL_BIND, &both, 3, 0) == 0);
	FAILS_WITH("whole pages", set_home(at + 1, PAGE, 0, 0), EINVAL);
	FAILS_WITH("no flags", set_home(at, PAGE, 0, 1), EINVAL);
	FAILS_WITH("a node that there is not", set_home(at, PAGE, 1000, 0), EINVAL);
	FAILS_WITH("too long a range", set_home(at, -1UL - PAGE, 0, 0), EINVAL);
	PROMISE("a range may be empty", set_home(at, 0, 0, 0) == 0);
	PROMISE("areas without a policy are left out", set_home(at, 4 * PAGE, 1, 0) == 0);
	at[0] = at[1 * PAGE] = 1;
	PROMISE("a page is near its home", node_of(at) == 1);
	PROMISE("wherever that is", page_near(0) == 0 && page_near(1) == 1);
	NEED(mbind(at + 2 * PAGE, PAGE, MPOL_PREFERRED, &first, 2, 0) == 0);
	FAILS_WITH("a preferred node has no home", set_home(at + 2 * PAGE, PAGE, 1, 0), EOPNOTSUPP);
	FAILS_WITH("also behind others", set_home(at, 4 * PAGE, 0, 0), EOPNOTSUPP);
	PROMISE("which have got theirs", madvise(at, PAGE, MADV_DONTNEED) == 0 && (*at = 1) && node_of(at) == 0);
	NEED(mbind(gap, 4 * PAGE, MPOL_BIND, &first, 2, 0) == 0 && munmap(gap + PAGE, PAGE) == 0);
	PROMISE("a home outside of the nodes", set_home(gap, 4 * PAGE, 1, 0) == 0 && (gap[0] = gap[2 * PAGE] = 1) && node_of(gap) == 0 && node_of(gap + 2 * PAGE) == 0);
	munmap(at, 4 * PAGE);
	munmap(gap, 4 * PAGE);
}

int main(void)
{
	asking();
	moving();
	sharing();
	files();
	pinned();
	marks();
	large();
	migrating();
	policies();
	binding();
	homes();
	compacting();
	under_load();
	return conclude();
}
