/* Address spaces: mapping, protection, moving, advice, faults, and private or shared bytes. */
#include "promise.h"
#include <setjmp.h>

enum { PAGE = 4096, DONTUNMAP = 4 };

static char *volatile nowhere = (char *)16;
/* An address where nothing is mapped. */
static char *const low_place = (char *)0x10000000;
static sigjmp_buf back;
static volatile sig_atomic_t fault_signal, fault_code;
static void *volatile fault_address;

static void on_fault(int signal, siginfo_t *info, void *context)
{
	(void)context;
	fault_signal = signal;
	fault_code = info->si_code;
	fault_address = info->si_addr;
	siglongjmp(back, 1);
}

enum access { READ, WRITE };

/* Returns the signal that an access raises, 0 for none. */
static int touch(volatile char *at, enum access access)
{
	fault_signal = 0;
	if (sigsetjmp(back, 1) == 0) {
		if (access == WRITE)
			*at = *at + 1;
		else
			(void)*at;
	}
	return fault_signal;
}

static char *map(size_t pages, int protection, int flags)
{
	return mmap(NULL, pages * PAGE, protection, MAP_ANONYMOUS | flags, -1, 0);
}

static int all_are(const char *bytes, char value, size_t size)
{
	for (size_t i = 0; i < size; i++)
		if (bytes[i] != value)
			return 0;
	return 1;
}

/* Returns the overcommit mode: '0' heuristic, '1' always. */
static char overcommit(void)
{
	char mode = '1';
	int file = open("/proc/sys/vm/overcommit_memory", O_RDONLY | O_CLOEXEC);
	NEED(file < 0 || read(file, &mode, 1) == 1);
	close(file);
	return mode;
}

static void mapping(void)
{
	char *a = map(16, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	NEED(a != MAP_FAILED);
	PROMISE("fresh memory is zero", all_are(a, 0, 16 * PAGE));
	memset(a, 7, 16 * PAGE);
	PROMISE("memory keeps what is written", all_are(a, 7, 16 * PAGE));
	PROMISE("munmap of the middle", munmap(a + 4 * PAGE, 4 * PAGE) == 0);
	PROMISE("the hole faults", touch(a + 4 * PAGE, READ) == SIGSEGV);
	PROMISE("the fault says where", fault_address == a + 4 * PAGE);
	PROMISE("the fault says that nothing is mapped", fault_code == SEGV_MAPERR);
	PROMISE("both sides of the hole are whole", all_are(a, 7, 4 * PAGE) && all_are(a + 8 * PAGE, 7, 8 * PAGE));
	PROMISE("munmap of nothing succeeds", munmap(a + 4 * PAGE, 4 * PAGE) == 0);
	FAILS_WITH("munmap of an odd address", munmap(a + 1, PAGE), EINVAL);
	FAILS_WITH("mmap of no bytes", mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), EINVAL);
	FAILS_WITH("mmap neither shared nor private", mmap(NULL, PAGE, PROT_READ, MAP_ANONYMOUS, -1, 0), EINVAL);
	FAILS_WITH("mmap of a bad descriptor", mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, 999, 0), EBADF);
	char *near = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	PROMISE("MAP_32BIT maps below 2 GiB", near != MAP_FAILED && (unsigned long)near < (1UL << 31) - 2 * PAGE);
	char *second = mmap(near, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	PROMISE("also where the hint is taken", second != MAP_FAILED && second != near && (unsigned long)second < (1UL << 31));
	FAILS_WITH("and not more than there is room", mmap(NULL, 1UL << 31, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0), ENOMEM);
	NEED(munmap(near, 2 * PAGE) == 0 && munmap(second, PAGE) == 0);
	FAILS_WITH("mmap of more than there is address space",
		mmap(NULL, 1UL << 47, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), ENOMEM);
	char *fixed = mmap(a + 4 * PAGE, PAGE, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	PROMISE("a fixed mapping lands where it is asked", fixed == a + 4 * PAGE);
	FAILS_WITH("MAP_FIXED_NOREPLACE keeps what is there",
		mmap(a, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0), EEXIST);
	PROMISE("MAP_FIXED replaces",
		mmap(a, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == a && a[0] == 0);
	char *low = mmap(low_place, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	PROMISE("a free hint is taken", low == low_place);
	munmap(low, PAGE);
	munmap(a, 16 * PAGE);
	PROMISE("MAP_POPULATE", map(8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_POPULATE) != MAP_FAILED);
	if (overcommit() == '0') {
		size_t more = (figure("/proc/meminfo", "MemTotal") + figure("/proc/meminfo", "SwapTotal") + 1024) << 10;
		FAILS_WITH("more than there can ever be is refused at once", mmap(NULL, more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), ENOMEM);
		char *reserved = mmap(NULL, more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		PROMISE("but to who says that he will not use it", reserved != MAP_FAILED);
		munmap(reserved, more);
		FAILS_WITH("shared memory is promised whole, whoever may touch it", mmap(NULL, more, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), ENOMEM);
		char *closed = mmap(NULL, more, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		NEED(closed != MAP_FAILED);
		FAILS_WITH("so it is to who makes memory writable later", mprotect(closed, more, PROT_READ | PROT_WRITE), ENOMEM);
		size_t half = more / 2 & ~(PAGE - 1UL);
		PROMISE("in two pieces it is granted, and not asked for again", mprotect(closed, half, PROT_READ | PROT_WRITE) == 0 &&
			mprotect(closed + half, more - half, PROT_READ | PROT_WRITE) == 0 && (closed[0] = 1) && mprotect(closed, more, PROT_READ) == 0 &&
			mprotect(closed, more, PROT_READ | PROT_WRITE) == 0);
		munmap(closed, more);
		char *small = map(1, PROT_READ | PROT_WRITE, MAP_PRIVATE);
		FAILS_WITH("and to who has memory grow", mremap(small, PAGE, more + PAGE, MREMAP_MAYMOVE), ENOMEM);
		munmap(small, PAGE);
	}
	PROMISE("a terabyte can be reserved", mmap(NULL, 1UL << 40, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) != MAP_FAILED);
}

static void protection(void)
{
	char *a = map(8, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	memset(a, 1, 8 * PAGE);
	PROMISE("mprotect to read-only", mprotect(a + 2 * PAGE, 2 * PAGE, PROT_READ) == 0);
	PROMISE("a read-only page can be read", touch(a + 2 * PAGE, READ) == 0);
	PROMISE("a write to it faults", touch(a + 2 * PAGE, WRITE) == SIGSEGV);
	PROMISE("and is called a protection fault", fault_code == SEGV_ACCERR);
	PROMISE("its neighbours can be written", touch(a + PAGE, WRITE) == 0 && touch(a + 4 * PAGE, WRITE) == 0);
	PROMISE("mprotect to nothing", mprotect(a + 2 * PAGE, PAGE, PROT_NONE) == 0 && touch(a + 2 * PAGE, READ) == SIGSEGV);
	PROMISE("mprotect back keeps the bytes", mprotect(a, 8 * PAGE, PROT_READ | PROT_WRITE) == 0 && a[2 * PAGE] == 1);
	munmap(a + 6 * PAGE, PAGE);
	FAILS_WITH("mprotect over a hole", mprotect(a, 8 * PAGE, PROT_READ), ENOMEM);
	munmap(a, 8 * PAGE);
	unsigned char *code = (unsigned char *)map(1, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	memcpy(code, "\xb8\x2a\x00\x00\x00\xc3", 6); /* mov $42, %eax; ret */
	fault_signal = 0;
	if (sigsetjmp(back, 1) == 0)
		((int (*)(void))code)();
	PROMISE("data cannot be executed", fault_signal == SIGSEGV);
	PROMISE("unless it is made executable",
		mprotect(code, PAGE, PROT_READ | PROT_EXEC) == 0 && ((int (*)(void))code)() == 42);
}

static void moving(void)
{
	char *a = map(4, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	memset(a, 5, 4 * PAGE);
	char *b = mremap(a, 4 * PAGE, 64 * PAGE, MREMAP_MAYMOVE);
	NEED(b != MAP_FAILED);
	PROMISE("mremap grows and keeps the bytes", all_are(b, 5, 4 * PAGE) && all_are(b + 4 * PAGE, 0, 60 * PAGE));
	PROMISE("mremap shrinks in place", mremap(b, 64 * PAGE, 2 * PAGE, 0) == b && touch(b + 2 * PAGE, READ) == SIGSEGV);
	char *room = map(8, PROT_NONE, MAP_PRIVATE);
	char *c = mremap(b, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room);
	PROMISE("mremap to a fixed place", c == room && all_are(c, 5, 2 * PAGE) && touch(b, READ) == SIGSEGV);
	FAILS_WITH("mremap of a hole", mremap(b, PAGE, 2 * PAGE, MREMAP_MAYMOVE), EFAULT);
	map(1, PROT_NONE, MAP_PRIVATE);
	FAILS_WITH("mremap that may not move and has no room", mremap(c, 2 * PAGE, 1UL << 44, 0), ENOMEM);

	a = map(4, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	memset(a, 6, 4 * PAGE);
	NEED(mprotect(a + 3 * PAGE, PAGE, PROT_READ) == 0);
	FAILS_WITH("mremap of two areas", mremap(a, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room + 4 * PAGE), EFAULT);
	PROMISE("but what it cuts off may lie in another", mremap(a, 4 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room + 4 * PAGE) == room + 4 * PAGE &&
								   all_are(room + 4 * PAGE, 6, 2 * PAGE) && touch(a + 3 * PAGE, READ) == SIGSEGV);
	a = map(4, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	memset(a, 1, 4 * PAGE);
	NEED(mlock(a + PAGE, PAGE) == 0 && munlockall() == 0);
	PROMISE("what was locked in part is one area again", mremap(a, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE) != MAP_FAILED);

	a = map(2, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	char *shared = map(1, PROT_READ | PROT_WRITE, MAP_SHARED);
	a[PAGE] = shared[0] = 8;
	unsigned long most = -(unsigned long)PAGE;
	FAILS_WITH("mremap to a length that wraps around to nothing", mremap(a, PAGE, -1ul, MREMAP_MAYMOVE), EINVAL);
	FAILS_WITH("mremap of one, which is none of private memory", mremap(a, -1ul, PAGE, MREMAP_MAYMOVE), EINVAL);
	char *twin = mremap(shared, -1ul, PAGE, MREMAP_MAYMOVE);
	PROMISE("and of shared memory a second view", twin != MAP_FAILED && twin != shared && twin[0] == 8);
	FAILS_WITH("mremap that cuts off more than a program can have", mremap(a, 1UL << 47, PAGE, 0), EINVAL);
	FAILS_WITH("so where it moves", mremap(a, 1UL << 60, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, low_place), EINVAL);
	FAILS_WITH("so where it wraps around", mremap(a, most, PAGE, 0), EINVAL);
	FAILS_WITH("mremap of more than is mapped to yet more", mremap(a, most - PAGE, most, MREMAP_MAYMOVE), EFAULT);
	FAILS_WITH("mremap that leaves as much behind as nobody has", mremap(a, most, most, MREMAP_MAYMOVE | DONTUNMAP), EINVAL);
	PROMISE("all is where it was", a[PAGE] == 8);

	/* The second of the two pages prevents the first from growing. */
	int status;
	struct rlimit little = { PAGE, PAGE };
	IN_CHILD(status, NEED(mlock(shared, PAGE) == 0 && mlock(a, PAGE) == 0 && setrlimit(RLIMIT_MEMLOCK, &little) == 0 && setuid(1000) == 0);
		 int refused = mremap(a, PAGE, 2 * PAGE, 0) == MAP_FAILED && errno == EAGAIN;
		 refused &= mremap(shared, 0, PAGE, 0) == MAP_FAILED && errno == EAGAIN;
		 char *moved = mremap(shared, PAGE, PAGE, MREMAP_MAYMOVE | DONTUNMAP);
		 _exit(!refused || moved == MAP_FAILED));
	PROMISE("that no more can be locked is said before that there is no room, and of what does not grow not at all", status == 0);
	munmap(a, 2 * PAGE);

	char *start = sbrk(0);
	PROMISE("brk grows", sbrk(10 * PAGE) == start && sbrk(0) == start + 10 * PAGE);
	PROMISE("the heap is zero and can be written", all_are(start, 0, 10 * PAGE) && touch(start + 9 * PAGE, WRITE) == 0);
	PROMISE("brk shrinks", brk(start) == 0 && sbrk(0) == start);
	PROMISE("and grows zeroed", sbrk(10 * PAGE) == start && start[9 * PAGE] == 0);
	sbrk(-10 * PAGE);
}

static void advice(void)
{
	unsigned char resident[8];
	char *a = map(8, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	PROMISE("untouched pages are not resident", mincore(a, 8 * PAGE, resident) == 0 && all_are((char *)resident, 0, 8));
	memset(a, 3, 4 * PAGE);
	PROMISE("touched ones are", mincore(a, 8 * PAGE, resident) == 0 && (resident[0] & 1) && (resident[3] & 1) && !(resident[4] & 1));
	PROMISE("MADV_DONTNEED gives zeroes back", madvise(a, 2 * PAGE, MADV_DONTNEED) == 0 && a[0] == 0 && a[2 * PAGE] == 3);
	PROMISE("MADV_WILLNEED and MADV_NORMAL", madvise(a, PAGE, MADV_WILLNEED) == 0 && madvise(a, PAGE, MADV_NORMAL) == 0);
	PROMISE("MADV_FREE", madvise(a + 2 * PAGE, PAGE, MADV_FREE) == 0);
	FAILS_WITH("advice that does not exist", madvise(a, PAGE, 999), EINVAL);
	FAILS_WITH("mincore of a hole", mincore((void *)(1UL << 40), PAGE, resident), ENOMEM);
	FAILS_WITH("mincore of what is no program's", mincore((void *)(1UL << 63), 0, resident), ENOMEM);
	FAILS_WITH("mincore to what is no program's", mincore(a, 0, (unsigned char *)(1UL << 63)), EFAULT);
	char *edge = map(4, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	munmap(edge + 2 * PAGE, PAGE);
	memset(resident, 7, sizeof resident);
	edge[PAGE] = 1;
	FAILS_WITH("mincore over a hole", mincore(edge, 4 * PAGE, resident), ENOMEM);
	PROMISE("tells of what lies before it", !(resident[0] & 1) && (resident[1] & 1) && resident[2] == 7 && resident[3] == 7);
	FAILS_WITH("and finds a bad vector first", mincore(edge, 4 * PAGE, (unsigned char *)nowhere), EFAULT);
	int status;
	madvise(a, PAGE, MADV_DONTFORK);
	IN_CHILD(status, signal(SIGSEGV, SIG_DFL); *(volatile char *)a = 1);
	PROMISE("MADV_DONTFORK keeps it from the child", WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	a[4 * PAGE] = 9;
	madvise(a + 4 * PAGE, PAGE, MADV_WIPEONFORK);
	IN_CHILD(status, _exit(a[4 * PAGE]));
	PROMISE("MADV_WIPEONFORK gives the child zeroes", status == 0 && a[4 * PAGE] == 9);
	PROMISE("mlock and munlock", mlock(a + 5 * PAGE, PAGE) == 0 && munlock(a + 5 * PAGE, PAGE) == 0);
	FAILS_WITH("mlock of a hole", mlock((void *)(1UL << 40), PAGE), ENOMEM);
	PROMISE("a length that wraps around to nothing locks nothing", mlock(edge, -1ul) == 0 && munlock(edge, -1ul) == 0 && munlock(edge + 1, -2ul) == 0);
	FAILS_WITH("one that wraps around", mlock(edge, -(unsigned long)PAGE), EINVAL);
	FAILS_WITH("munlock of one that wraps around", munlock(edge, -(unsigned long)PAGE), EINVAL);
	struct rlimit little = { 8 * PAGE, 8 * PAGE };
	IN_CHILD(status, NEED(setrlimit(RLIMIT_MEMLOCK, &little) == 0 && setuid(1000) == 0);
		_exit(mlock(edge, -(unsigned long)PAGE) == -1 ? errno : 0));
	PROMISE("which the limit refuses before", WEXITSTATUS(status) == ENOMEM);
	PROMISE("msync of a length that wraps around to nothing", msync(edge, -1ul, MS_SYNC) == 0);
	munmap(edge, 4 * PAGE);
	char *none = map(1, PROT_NONE, MAP_PRIVATE);
	FAILS_WITH("mlock of what nobody may touch", mlock(none, PAGE), ENOMEM);
	int file = memfd_create("short", 0);
	char *past = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, file, 0);
	FAILS_WITH("mlock past the end of a file", mlock(past, PAGE), ENOMEM);
	munmap(none, PAGE);
	munmap(past, PAGE);
	close(file);
	PROMISE("msync", msync(a + PAGE, PAGE, MS_SYNC) == 0);
	FAILS_WITH("msync of a hole", msync((void *)(1UL << 40), PAGE, MS_SYNC), ENOMEM);
	NEED(mlock(a, PAGE) == 0);
	FAILS_WITH("msync that declares locked memory out of date", msync(a, PAGE, MS_INVALIDATE), EBUSY);
	munmap(a, 8 * PAGE);
}

/* Reads memory that may only be written, through process_vm_readv and /proc/PID/mem. */
static void reaching(void)
{
	char *a = map(2, PROT_WRITE, MAP_PRIVATE), bytes[8] = { 0 };
	struct iovec here = { bytes, 1 }, there = { a, 1 };
	*(volatile char *)a = 7;
	FAILS_WITH("process_vm_readv of memory that may only be written", process_vm_readv(getpid(), &here, 1, &there, 1, 0), EFAULT);
	int file = open("/proc/self/mem", O_RDWR);
	NEED(file >= 0);
	PROMISE("/proc/PID/mem reads it", pread(file, bytes, 1, (off_t)(uintptr_t)a) == 1 && bytes[0] == 7);
	munmap(a + PAGE, PAGE);
	FAILS_WITH("/proc/PID/mem of a hole", pread(file, bytes, 1, (off_t)(uintptr_t)a + PAGE), EIO);
	FAILS_WITH("/proc/PID/mem into a hole", pread(file, a + PAGE, 1, (off_t)(uintptr_t)a), EFAULT);
	FAILS_WITH("/proc/PID/mem from a hole into a hole", pwrite(file, a + PAGE, 1, (off_t)(uintptr_t)a + PAGE), EFAULT);
	munmap(a, PAGE);
	close(file);
	int grows = MAP_ANONYMOUS | MAP_GROWSDOWN;
	FAILS_WITH("shared memory does not grow down", mmap(NULL, PAGE, PROT_READ, MAP_SHARED | grows, -1, 0), EINVAL);
	FAILS_WITH("nobody validates anonymous memory", mmap(NULL, PAGE, PROT_READ, MAP_SHARED_VALIDATE | MAP_ANONYMOUS, -1, 0), EINVAL);
	file = memfd_create("short", 0);
	PROMISE("a hole behind a file's end", fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 5 * PAGE, PAGE) == 0);
	close(file);
}

static void sharing(void)
{
	int status;
	char *shared = map(2, PROT_READ | PROT_WRITE, MAP_SHARED);
	char *own = map(2, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	own[0] = 1;
	IN_CHILD(status, shared[0] = 42; own[0] = 2; _exit(own[0]));
	PROMISE("a child's write to shared memory is seen", shared[0] == 42);
	PROMISE("its write to private memory is not", own[0] == 1 && WEXITSTATUS(status) == 2);
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		while (!((volatile char *)shared)[1])
			sched_yield();
		_exit(own[0]);
	}
	own[0] = 77;
	((volatile char *)shared)[1] = 1;
	waitpid(child, &status, 0);
	PROMISE("a parent's later write is not seen by the child", WEXITSTATUS(status) == 1);

	char name[] = "/tmp/memory-XXXXXX";
	int file = mkstemp(name);
	NEED(file >= 0 && ftruncate(file, PAGE + 100) == 0);
	NEED(pwrite(file, "hello", 5, 0) == 5);
	char *private = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
	char *public = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	NEED(private != MAP_FAILED && public != MAP_FAILED);
	PROMISE("a file mapping shows the file", memcmp(private, "hello", 5) == 0 && memcmp(public, "hello", 5) == 0);
	private[0] = 'J';
	char byte;
	PROMISE("a private write stays private", pread(file, &byte, 1, 0) == 1 && byte == 'h' && public[0] == 'h');
	public[1] = 'a';
	PROMISE("a shared write is in the file", pread(file, &byte, 1, 1) == 1 && byte == 'a');
	NEED(pwrite(file, "y", 1, 4) == 1);
	PROMISE("a write to the file is in the shared mapping", public[4] == 'y');
	PROMISE("the rest of the last page is zero", all_are(public + PAGE + 100, 0, PAGE - 100));
	PROMISE("a page wholly beyond the end gives SIGBUS after truncation",
		ftruncate(file, 10) == 0 && touch(public + PAGE, READ) == SIGBUS && fault_code == BUS_ADRERR);
	PROMISE("growing makes it zero again", ftruncate(file, 2 * PAGE) == 0 && touch(public + PAGE, READ) == 0 && public[PAGE + 50] == 0);
	close(file);
	PROMISE("a mapping outlives its descriptor", public[1] == 'a');
	int again = open(name, O_RDONLY);
	FAILS_WITH("a shared writable mapping of a read-only file",
		mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0), EACCES);
	PROMISE("a private one is allowed", mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, again, 0) != MAP_FAILED);
	unlink(name);
	close(again);
}

static int deep(int level)
{
	volatile char frame[8192];
	frame[0] = level;
	return level == 0 ? 0 : deep(level - 1) + (frame[0] != (char)level);
}

static void stack_and_faults(void)
{
	int status;
	PROMISE("the stack grows by a megabyte", deep(128) == 0);
	PROMISE("address 0 faults", touch(NULL, READ) == SIGSEGV && fault_code == SEGV_MAPERR);
	PROMISE("a kernel address faults", touch((char *)0xffffffff80000000UL, READ) == SIGSEGV);
	FAILS_WITH("a bad buffer is EFAULT", write(1, nowhere, 1), EFAULT);
	FAILS_WITH("a kernel buffer is EFAULT", syscall(SYS_getcwd, 0xffffffff80000000UL, 100), EFAULT);
	int ends[2];
	NEED(pipe(ends) == 0 && write(ends[1], "x", 1) == 1);
	char *a = map(2, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	munmap(a + PAGE, PAGE);
	FAILS_WITH("so is one that ends in a hole, when nothing fits before it", read(ends[0], a + PAGE, 1), EFAULT);
	PROMISE("a system call may fault pages in", read(ends[0], a, 1) == 1 && a[0] == 'x');
	IN_CHILD(status, signal(SIGSEGV, SIG_DFL); *nowhere = 1);
	PROMISE("an unhandled fault kills with SIGSEGV", WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	struct rlimit limit = { 64 << 20, 64 << 20 };
	IN_CHILD(status, setrlimit(RLIMIT_AS, &limit);
		_exit(map(32768, PROT_READ, MAP_PRIVATE) == MAP_FAILED && errno == ENOMEM ? 5 : 6));
	PROMISE("RLIMIT_AS ends in ENOMEM", WEXITSTATUS(status) == 5);
	PROMISE("many small mappings", ({
		int good = 1;
		for (int i = 0; i < 500; i++)
			good &= map(1, i & 1 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE) != MAP_FAILED;
		good;
	}));
}

/* Protection keys: a Linux without them says EINVAL or ENOSPC, a Linux with them allocates one. */
static void keys(void)
{
	char *at = map(2, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	NEED(at != MAP_FAILED);
	long key = syscall(SYS_pkey_alloc, 0, 0);
	int refused = key == -1 && (errno == ENOSPC || errno == EINVAL);
	PROMISE("a protection key is given out, or there are none", refused || (key > 0 && syscall(SYS_pkey_free, key) == 0));
	FAILS_WITH("a key has no flags", syscall(SYS_pkey_alloc, 1, 0), EINVAL);
	FAILS_WITH("and no other rights", syscall(SYS_pkey_alloc, 0, 4), EINVAL);
	FAILS_WITH("one that was not given out is not freed", syscall(SYS_pkey_free, 9), EINVAL);
	FAILS_WITH("nor used", syscall(SYS_pkey_mprotect, at, PAGE, PROT_READ, 9), EINVAL);
	PROMISE("without a key pages are protected as ever", syscall(SYS_pkey_mprotect, at, PAGE, PROT_READ, -1) == 0 && touch(at, WRITE) == SIGSEGV && touch(at + PAGE, WRITE) == 0);
	munmap(at, 2 * PAGE);
}

static long remap(char *at, size_t length, int protection, size_t page, int flags)
{
	return syscall(SYS_remap_file_pages, at, length, protection, page, flags);
}

/* Whether the pages at `at` begin with these bytes. */
static int shows(const char *at, const char *pages)
{
	int same = 1;
	for (size_t i = 0; pages[i]; i++)
		same &= at[i * PAGE] == pages[i];
	return same;
}

/* remap_file_pages(2), for a mapping whose first pages begin with "abcdefgh". */
static void shown_elsewhere(char *at, const char *of)
{
	printf("# %s\n", of);
	for (int i = 0; i < 8; i++)
		at[i * PAGE] = "abcdefgh"[i];
	PROMISE("other pages of shared memory are shown", remap(at, 2 * PAGE, 0, 6, 0) == 0 && shows(at, "ghcdefgh"));
	PROMISE("the same pages", ({ volatile char *same = at; same[0] = 'G'; same[6 * PAGE] == 'G'; }));
	PROMISE("addresses and lengths are rounded down", remap(at + PAGE + 1, PAGE + 5, 0, 0, MAP_NONBLOCK) == 0 && shows(at, "GacdefGh"));
	PROMISE("a range of several mappings of one object", remap(at, 8 * PAGE, 0, 0, 0) == 0 && shows(at, "abcdefGh"));
	PROMISE("that has one protection", remap(at, PAGE, 0, 1, 0) == 0 && mprotect(at + 4 * PAGE, PAGE, PROT_READ) == 0);
	FAILS_WITH("only", remap(at, 8 * PAGE, 0, 0, 0), EINVAL);
	PROMISE("which stays", remap(at + 4 * PAGE, PAGE, 0, 2, 0) == 0 && shows(at, "bbcdcfGh") && touch(at + 4 * PAGE, WRITE) == SIGSEGV);
	FAILS_WITH("no protection is asked for", remap(at, PAGE, PROT_READ, 0, 0), EINVAL);
	FAILS_WITH("no length", remap(at, PAGE - 1, 0, 0, 0), EINVAL);
	FAILS_WITH("an end past the last address", remap(at, -(size_t)PAGE, 0, 0, 0), EINVAL);
	FAILS_WITH("a page past the last", remap(at, PAGE, 0, -1ul, 0), EINVAL);
	FAILS_WITH("an offset past the largest", remap(at, PAGE, 0, -2ul, 0), EOVERFLOW);
	NEED(munmap(at + 7 * PAGE, PAGE) == 0);
	FAILS_WITH("a hole at the end", remap(at + 5 * PAGE, 3 * PAGE, 0, 0, 0), EINVAL);
	FAILS_WITH("or at the start", remap(at + 7 * PAGE, PAGE, 0, 0, 0), EINVAL);
	PROMISE("nothing has changed", shows(at, "bbcdcfG"));
	munmap(at, 7 * PAGE);
}

static void other_pages(void)
{
	int file = memfd_create("pages", MFD_CLOEXEC), denied;
	char path[64];
	NEED(file >= 0 && ftruncate(file, 8 * PAGE) == 0);
	shown_elsewhere(mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), "a file");
	shown_elsewhere(map(8, PROT_READ | PROT_WRITE, MAP_SHARED), "shared memory");
	char *at = map(2, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	FAILS_WITH("not of private memory", remap(at, PAGE, 0, 1, 0), EINVAL);
	at = mmap(NULL, 2 * PAGE, PROT_READ, MAP_PRIVATE, file, 0);
	FAILS_WITH("nor of a private mapping of a file", remap(at, PAGE, 0, 1, 0), EINVAL);
	snprintf(path, sizeof path, "/proc/self/fd/%d", file);
	NEED((denied = open(path, O_RDONLY | O_CLOEXEC)) >= 0);
	at = mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, denied, 0);
	FAILS_WITH("nor of a file that is open for reading only", remap(at, PAGE, 0, 1, 0), EINVAL);
	close(denied);
	close(file);
}

int main(void)
{
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);
	mapping();
	protection();
	moving();
	advice();
	reaching();
	sharing();
	stack_and_faults();
	keys();
	other_pages();
	return conclude();
}
