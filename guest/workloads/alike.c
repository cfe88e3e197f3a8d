/*
 * Random memory calls whose results do not depend on time, address layout or luck. Each is
 * printed with its result: two kernels that keep the same promises print the same lines.
 *
 * Usage: alike SEED PROCESSES [CALLS]. Each process works on one small arena at a fixed address:
 * it maps, splits, protects, moves, locks, advises and forks. It reads and writes the arena by
 * each access path (loads and stores, /proc/self/mem, process_vm_*, pipes, io_uring). Most
 * arguments are valid, some are not. Every second process is not root. Every few calls the areas
 * and the bytes of the arena are printed.
 *
 *   diff <(freehold run -- alike 1 40) <(freehold run --kernel linux -- alike 1 40)
 */
#include "../conformance/promise.h"
#include "../conformance/ring.h"
#include "../tools/dice.h"

#include <alloca.h>
#include <setjmp.h>
#include <sys/prctl.h>

enum { PAGE = 4096, PAGES = 40, FILE_PAGES = 12, LOOK_EVERY = 12, LOCKABLE = 12 };

static char *const arena = (char *)0x100000000;
static struct dice dice;
static int first_file, second_file, pipe_ends[2], own_memory, clear_file, pagemap_file;
static struct ring ring;
static sigjmp_buf back;
/* Maps memory that may only be written. */
static int write_only;
static volatile int expected;
static int depth, number;

static int one_in(unsigned n)
{
	return below(&dice, n) == 0;
}

struct range {
	char *at;
	size_t length;
};

static struct range some_range(void)
{
	/* These lengths are too short to reach the stack. */
	static const size_t odd[] = { -4096ull, -1ull, 1 };
	struct range range = { arena + (long)below(&dice, PAGES) * PAGE, (size_t)(1 + below(&dice, one_in(4) ? PAGES : 6)) * PAGE };
	if (range.at + range.length > arena + PAGES * PAGE)
		range.length = arena + PAGES * PAGE - range.at;
	if (one_in(16))
		range.at += one_in(2) ? 1 : 2048;
	if (one_in(10))
		range.length -= one_in(2) ? 1 : 4095;
	if (one_in(24))
		range.length = 0;
	if (one_in(40))
		range.length = odd[below(&dice, sizeof odd / sizeof *odd)];
	return range;
}

/* Returns a byte range in the arena that is not made of whole pages. */
static struct range some_bytes(void)
{
	size_t from = below(&dice, PAGES * PAGE - 1), length = 1 + below(&dice, one_in(3) ? 3 * PAGE : 200);
	if (from + length > PAGES * PAGE)
		length = PAGES * PAGE - from;
	return (struct range){ arena + from, one_in(30) ? 0 : length };
}

static void say(const char *what, struct range range, unsigned long more, long result)
{
	printf("%*s%d %s %lx+%lx %lx -> ", depth, "", number, what, range.at - arena, range.length, more);
	if (result == -1)
		printf("%s\n", strerrorname_np(errno));
	else
		printf("%ld\n", result);
}

static void caught(int signal, siginfo_t *info, void *context)
{
	(void)context;
	if (!expected)
		_exit(99);
	siglongjmp(back, signal << 8 | (info->si_code & 0xff));
}

static void map(void)
{
	static const int flags[] = { MAP_PRIVATE | MAP_ANONYMOUS, MAP_PRIVATE | MAP_ANONYMOUS, MAP_SHARED | MAP_ANONYMOUS, MAP_PRIVATE, MAP_SHARED, MAP_SHARED_VALIDATE };
	static const int more[] = { MAP_NORESERVE, MAP_LOCKED, MAP_POPULATE, MAP_LOCKED, MAP_SHARED, MAP_GROWSDOWN, MAP_SYNC, MAP_POPULATE | MAP_NONBLOCK, 1 << 25 };
	static const int protections[] = { PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE, PROT_WRITE, 7, 8, 16 };
	struct range range = some_range();
	int kind = flags[below(&dice, 6)] | (one_in(12) ? MAP_FIXED_NOREPLACE : MAP_FIXED) | (one_in(5) ? more[below(&dice, 9)] : 0);
	int protection = protections[below(&dice, 9)], file = one_in(2) ? first_file : second_file;
	if (!write_only && protection == PROT_WRITE)
		protection = PROT_READ;
	off_t offset = one_in(20) ? 100 : (off_t)below(&dice, FILE_PAGES + 2) * PAGE;
	char *at = mmap(range.at, range.length, protection, kind, kind & MAP_ANONYMOUS ? -1 : one_in(30) ? 99 : file, offset);
	say("mmap", range, (unsigned long)kind << 8 | protection, at == MAP_FAILED ? -1 : at - arena);
}

static void move(void)
{
	static const int flags[] = { 0, MREMAP_MAYMOVE, MREMAP_MAYMOVE | MREMAP_FIXED, MREMAP_MAYMOVE | MREMAP_FIXED, MREMAP_FIXED, 7, 5, 8 };
	struct range from = some_range(), to = some_range();
	int how = flags[below(&dice, 8)];
	if (one_in(3))
		to.length = from.length;
	/* Length 0 makes a second mapping of the pages; not here if it would replace the first. */
	if (from.length == 0)
		from.length = to.at == from.at ? PAGE : 0;
	char *at = mremap(from.at, from.length, to.length, how, how & MREMAP_FIXED ? to.at : NULL);
	int elsewhere = at != MAP_FAILED && (at < arena || at >= arena + PAGES * PAGE);
	int error = errno;
	say("mremap to", to, how, 0);
	errno = error;
	say("mremap", from, how, at == MAP_FAILED ? -1 : elsewhere ? -2 : at - arena);
	/* A failed call may have removed the old mapping already: that is the kernel's choice. */
	if (at == MAP_FAILED && how & MREMAP_FIXED) {
		munmap(to.at, to.length);
		if (from.length > to.length)
			munmap(from.at + (to.length + PAGE - 1) / PAGE * PAGE, from.length - to.length);
	}
	if (elsewhere)
		munmap(at, (to.length + PAGE - 1) & ~(size_t)(PAGE - 1));
}

static void advise(void)
{
	/* Neither poisoning, nor merging (which has a switch of its own), nor collapsing (which
	 * may fail if memory is short). */
	static const int advices[] = { 0, 1, 2, 3, 4, 4, 4, 8, 9, 9, 10, 11, 14, 15, 16, 17, 18, 19, 20, 21, 22, 22, 23, 23, 24, 5, 26, 99, -1 };
	struct range range = some_range();
	int advice = advices[below(&dice, sizeof advices / sizeof *advices)];
	say("madvise", range, advice, madvise(range.at, range.length, advice));
	/* The kernel chooses when the pages are freed. */
	if (advice == 8)
		say("madvise", range, 4, madvise(range.at, range.length, 4));
}

static void lock(void)
{
	struct range range = some_range();
	switch (below(&dice, 6)) {
	case 0:
		say("munlock", range, 0, munlock(range.at, range.length));
		break;
	case 1: {
		int flags = below(&dice, 3);
		say("mlock2", range, flags, syscall(SYS_mlock2, range.at, range.length, flags));
		break;
	}
	case 2:
		say("munlockall", range, 0, munlockall());
		break;
	case 3: {
		int flags = below(&dice, 9);
		/* With MCL_CURRENT it would lock the program too. */
		say("mlockall", range, flags, mlockall(flags & ~MCL_CURRENT));
		break;
	}
	default:
		say("mlock", range, 0, mlock(range.at, range.length));
	}
}

static void protect(void)
{
	static const int protections[] = { 0, 1, 2, 3, 3, 3, 3, 5, 7, 8, PROT_GROWSDOWN | 1, PROT_GROWSUP | 1, 3 << 24, 1 << 20 };
	struct range range = some_range();
	int protection = one_in(4) ? protections[below(&dice, 13)] : one_in(2) ? PROT_READ : PROT_READ | PROT_WRITE;
	if (!write_only && protection == PROT_WRITE)
		protection = PROT_READ;
	say("mprotect", range, protection, mprotect(range.at, range.length, protection));
}

static void touch(void)
{
	volatile char *const at = arena + below(&dice, PAGES * PAGE);
	const int store = below(&dice, 3) > 0, signal = sigsetjmp(back, 1);
	volatile long seen = 0;
	if (!signal) {
		expected = 1;
		seen = *at;
		if (store)
			*at = (char)number;
	}
	expected = 0;
	say(signal ? "trap" : "touch", (struct range){ (char *)at, 1 }, store, signal ? signal : seen);
}

static void through_file(void)
{
	struct range range = some_bytes();
	char bytes[4 * PAGE];
	memset(bytes, number, sizeof bytes);
	int file = one_in(2) ? own_memory : one_in(2) ? first_file : second_file;
	off_t offset = file == own_memory ? (off_t)(uintptr_t)range.at : below(&dice, FILE_PAGES * PAGE);
	switch (below(&dice, 4)) {
	case 0:
		say("pread", range, offset, pread(own_memory, bytes, range.length, (off_t)(uintptr_t)range.at));
		break;
	case 1:
		say("pwrite", range, offset, pwrite(file, bytes, range.length, offset));
		break;
	case 2:
		say("pread into", range, offset, pread(file, range.at, range.length, offset));
		break;
	default:
		say("pwrite from", range, offset, pwrite(file, range.at, range.length, offset));
	}
}

static void between(void)
{
	enum { MOST = 5 };
	struct iovec here[MOST], there[MOST];
	char bytes[4 * PAGE];
	int local = below(&dice, MOST), remote = 1 + below(&dice, MOST - 1);
	memset(bytes, number, sizeof bytes);
	struct range range = { arena, 0 };
	for (int i = 0; i < MOST; i++) {
		struct range one = some_bytes();
		there[i] = (struct iovec){ one_in(25) ? (char *)0x7ffffffff000 : one.at, one_in(40) ? -1ull : one.length };
		one = some_bytes();
		here[i] = (struct iovec){ one_in(2) ? bytes : one.at, one.length };
		range = one;
	}
	long flags = one_in(20);
	if (one_in(30))
		remote = 1025;
	if (one_in(2))
		say("vm_readv", range, local << 8 | remote, syscall(SYS_process_vm_readv, getpid(), here, local, there, remote, flags));
	else
		say("vm_writev", range, local << 8 | remote, syscall(SYS_process_vm_writev, getpid(), here, local, there, remote, flags));
}

static void through_pipe(void)
{
	struct range range = some_bytes();
	char bytes[4 * PAGE];
	struct iovec run[2] = { { range.at, range.length }, { arena + below(&dice, PAGES) * PAGE, PAGE } };
	/* A page that may only be written can be lent while it is in memory. That is up to the
	 * kernel, so such pages are not lent. */
	int how = below(&dice, write_only ? 2 : 4), runs = 1 + below(&dice, 2);
	long came = how == 0 ? write(pipe_ends[1], range.at, range.length) :
		    how == 1 ? writev(pipe_ends[1], run, runs) :
			       vmsplice(pipe_ends[1], run, runs, one_in(12) ? 32 : how == 2 ? SPLICE_F_GIFT : 0);
	/* The kernel chooses how many bytes a write transfers before a fault. The number of lent
	 * bytes is the same on all kernels. */
	say("to pipe", range, how << 4 | runs, how < 2 && (came > 0 || errno == EFAULT) ? 1 : came);
	for (long got; (got = read(pipe_ends[0], bytes, sizeof bytes)) > 0;) {
		uint64_t sum = 0;
		for (long i = 0; i < got; i++)
			sum = sum * 31 + (unsigned char)bytes[i];
		if (how >= 2)
			say("drained", range, sum, got);
	}
}

static void through_ring(void)
{
	static int registered;
	struct range range = some_range();
	if (!registered || one_in(4)) {
		/* Some kernels refuse a buffer that spans several areas. */
		range.length = range.length < PAGE ? range.length : PAGE - (uintptr_t)range.at % PAGE;
		struct iovec one[2] = { { range.at, range.length }, { arena, PAGE } };
		if (registered && one_in(2)) {
			say("unregister", range, 0, syscall(SYS_io_uring_register, ring.fd, IORING_UNREGISTER_BUFFERS, NULL, 0));
			registered = 0;
			return;
		}
		int count = below(&dice, 3);
		long done = syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, one, count);
		say("register", range, count, done);
		registered |= done == 0;
		return;
	}
	range = some_bytes();
	int write = one_in(2), file = one_in(2) ? first_file : second_file;
	off_t offset = below(&dice, FILE_PAGES * PAGE);
	int operation = one_in(2) ? write ? IORING_OP_WRITE_FIXED : IORING_OP_READ_FIXED : write ? IORING_OP_WRITE : IORING_OP_READ;
	add(&ring, operation, file, range.at, range.length, offset, number);
	NEED(enter(ring.fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
	int result = take(&ring, number);
	errno = -result;
	say("ring", range, operation << 20 | offset, result < 0 ? -1 : result);
}

static void change_file(void)
{
	static const int modes[] = { 0, 1, 3, 2, 3, 3, 8, 64 };
	struct range at = { arena, 0 };
	int file = one_in(2) ? first_file : second_file;
	if (one_in(3)) {
		off_t size = one_in(3) ? below(&dice, FILE_PAGES * PAGE) : (off_t)below(&dice, FILE_PAGES + 1) * PAGE;
		say("ftruncate", at, size << 4 | (file == first_file), ftruncate(file, size));
	} else {
		int mode = modes[below(&dice, 8)];
		off_t from = one_in(2) ? below(&dice, FILE_PAGES * PAGE) : below(&dice, FILE_PAGES) * PAGE, length = below(&dice, 3 * PAGE);
		at = (struct range){ arena + from, length };
		say("fallocate", at, mode << 4 | (file == first_file), fallocate(file, mode, from, length));
	}
}

static void ask(void)
{
	struct range range = some_range();
	unsigned char resident[PAGES + 1];
	uint64_t entries[PAGES + 1];
	char word[3] = { (char)('0' + below(&dice, 8)), one_in(9) ? 'x' : '\n', 0 };
	int pages[4] = { 0, 0, 1, 0 }, status[4], mode = 0;
	void *which[4] = { range.at, arena, arena + PAGE, (void *)8 };
	unsigned long mask = below(&dice, 4);
	switch (below(&dice, 8)) {
	case 0:
		if (range.length <= PAGES * PAGE || (intptr_t)range.length < 0)
			say("mincore", range, 0, mincore(range.at, range.length, one_in(9) ? (void *)8 : resident));
		break;
	case 1: {
		int flags = below(&dice, 8);
		say("msync", range, flags, msync(range.at, range.length, flags));
		break;
	}
	case 2: {
		off_t from = (off_t)(uintptr_t)arena / PAGE * 8 + below(&dice, 9);
		size_t length = below(&dice, 2) ? 8 * below(&dice, 6) : below(&dice, 40);
		say("pagemap", range, from << 8 | length, pread(pagemap_file, entries, length, from));
		break;
	}
	case 3:
		say("clear_refs", range, word[0], write(clear_file, word, 1 + below(&dice, 3)));
		break;
	case 4: {
		int policy = below(&dice, 5), bits = below(&dice, 4), flags = below(&dice, 9);
		long done = syscall(SYS_mbind, range.at, range.length, policy, one_in(6) ? NULL : &mask, bits, flags);
		say("mbind", range, mask << 12 | policy << 8 | bits << 4 | flags, done);
		break;
	}
	case 5: {
		int flags = below(&dice, 4);
		long done = syscall(SYS_get_mempolicy, &mode, NULL, 0, one_in(3) ? NULL : range.at, flags);
		say("get_mempolicy", range, mode << 4 | flags, done);
		break;
	}
	case 6: {
		int flags = below(&dice, 8), count = 1 + below(&dice, 4), asks = one_in(2);
		long moved = syscall(SYS_move_pages, 0, count, which, asks ? NULL : pages, status, flags);
		say("move_pages", range, asks << 12 | count << 8 | flags, moved);
		break;
	}
	default:
		say("munmap", range, 0, munmap(range.at, range.length));
	}
}

/*
 * Prints the areas of the arena with their rights and flags, and a sum of each page that can be
 * read. A border between areas is shown only where they differ, since a kernel may join or split
 * areas. Left out are flags without a name on Linux (??), flags of a file system only (sf), and
 * flags that are lost when areas are joined (sd, ac).
 */
static void look(void)
{
	char line[512], bytes[PAGE], rights[8], flags[128], before[160] = "", now[160];
	FILE *areas = fopen("/proc/self/smaps", "re");
	NEED(areas);
	unsigned long from = 0, to = 0, last = 0, start, end;
	char word[8];
	while (fgets(line, sizeof line, areas)) {
		if (sscanf(line, "%lx-%lx %7s", &start, &end, word) == 3) {
			from = start;
			to = end;
			strcpy(rights, word);
			continue;
		}
		if ( strncmp(line, "VmFlags:", 8) || from < (uintptr_t)arena || from >= (uintptr_t)arena + PAGES * PAGE)
			continue;
		flags[0] = 0;
		for (char *flag = strtok(line + 9, " \n"); flag; flag = strtok(NULL, " \n"))
			if (!strstr("ac sd ?? sf", flag))
				strcat(strcat(flags, " "), flag);
		snprintf(now, sizeof now, "%s%s", rights, flags);
		if (from != last || strcmp(now, before))
			printf("%*s%d area %lx %s\n", depth, "", number, from - (uintptr_t)arena, now);
		strcpy(before, now);
		last = to;
	}
	fclose(areas);
	printf("%*s%d bytes", depth, "", number);
	for (int page = 0; page < PAGES; page++) {
		struct iovec here = { bytes, PAGE }, there = { arena + page * PAGE, PAGE };
		if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) != PAGE) {
			printf(" -");
			continue;
		}
		uint32_t sum = 0;
		for (int i = 0; i < PAGE; i++)
			sum = sum * 31 + (unsigned char)bytes[i];
		printf(" %x", sum);
	}
	printf("\n");
	fflush(stdout);
}

static void work(int calls);

static void fork_one(void)
{
	struct range none = { arena, 0 };
	int calls = below(&dice, 12);
	uint64_t after = draw(&dice);
	if (depth >= 2)
		return;
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		depth++;
		own_memory = open("/proc/self/mem", O_RDWR);
		clear_file = open("/proc/self/clear_refs", O_WRONLY);
		pagemap_file = open("/proc/self/pagemap", O_RDONLY);
		work(calls);
		look();
		_exit(0);
	}
	int status;
	NEED(waitpid(child, &status, 0) == child);
	say("fork", none, calls, status);
	dice.state = after;
}

static void work(int calls)
{
	static void (*const jobs[])(void) = { map,	    map,     map,	   move,	 move,	      advise,	    advise, advise,	 lock, protect, protect,
					      touch,	    touch,   touch,	   touch,	 through_file, through_file, between, through_pipe, through_ring,
					      change_file, fork_one, ask,	   ask };
	for (int i = 0; i < calls; i++) {
		number++;
		jobs[below(&dice, sizeof jobs / sizeof *jobs)]();
		if (i % LOOK_EVERY == LOOK_EVERY - 1)
			look();
	}
}

static void live(int index, int calls)
{
	struct rlimit lockable = { LOCKABLE * PAGE, LOCKABLE * PAGE };
	struct sigaction action = { .sa_sigaction = caught, .sa_flags = SA_SIGINFO };
	first_file = memfd_create("first", 0);
	second_file = memfd_create("second", MFD_ALLOW_SEALING);
	NEED(first_file >= 0 && second_file >= 0);
	NEED(ftruncate(first_file, (FILE_PAGES - 2) * PAGE + 100) == 0 && ftruncate(second_file, FILE_PAGES * PAGE) == 0);
	for (int page = 0; page < FILE_PAGES; page += 2)
		NEED(pwrite(first_file, "first", 5, page * PAGE / 2) == 5 && pwrite(second_file, "second", 6, page * PAGE + 7) == 6);
	NEED(mmap(arena, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == (void *)arena);
	NEED(setrlimit(RLIMIT_MEMLOCK, &lockable) == 0);
	NEED(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0);
	NEED(pipe2(pipe_ends, O_NONBLOCK) == 0);
	if (index % 2)
		NEED(setresuid(1000, 1000, 1000) == 0 && prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0);
	/* Grows the stack now: it may not grow any more once all mappings are locked. */
	volatile char *room = alloca(256 << 10);
	for (int i = 0; i < 256 << 10; i += 1024)
		room[i] = 1;
	open_ring(&ring);
	write_only = index % 4 == 0;
	own_memory = open("/proc/self/mem", O_RDWR);
	clear_file = open("/proc/self/clear_refs", O_WRONLY);
	pagemap_file = open("/proc/self/pagemap", O_RDONLY);
	NEED(own_memory >= 0 && clear_file >= 0 && pagemap_file >= 0);
	work(calls);
	look();
	fflush(stdout);
	_exit(0);
}

int main(int argc, char **argv)
{
	if (argc < 3 || argc > 4) {
		fprintf(stderr, "usage: alike SEED PROCESSES [CALLS]\n");
		return 2;
	}
	uint64_t seed = strtoull(argv[1], NULL, 0);
	int processes = atoi(argv[2]), calls = argc > 3 ? atoi(argv[3]) : 200;
	for (int i = 0; i < processes; i++) {
		printf("process %d\n", i);
		fflush(stdout);
		pid_t child = fork();
		NEED(child >= 0);
		if (child == 0) {
			dice.state = (seed + 1) * 0x9e3779b97f4a7c15ull ^ (uint64_t)(i + 1) * 0xbf58476d1ce4e5b9ull;
			live(i, calls);
		}
		int status;
		NEED(waitpid(child, &status, 0) == child);
		printf("process %d ended: %#x\n", i, status);
	}
	return 0;
}
