/*
 * Protection keys: pkeys(7), pkey_alloc(2), pkey_mprotect(2). On a CPU without them, the refusals.
 */
#include "promise.h"
#include "inside.h"
#include <cpuid.h>
#include <elf.h>
#include <linux/futex.h>
#include <setjmp.h>
#include <sys/ptrace.h>
#include <ucontext.h>

#define PAGE 4096ul
#define LARGE (2ul << 20)
#define INITIAL 0x55555554u
#define RW (PROT_READ | PROT_WRITE)
/* In the error code of a page fault. */
#define BY_KEY 0x20
/* Where the rights are in the state that XSAVE stores. */
static unsigned rights_offset;

static unsigned rights(void)
{
	unsigned low, high;
	__asm__ volatile("rdpkru" : "=a"(low), "=d"(high) : "c"(0));
	return low;
}

static void set_rights(unsigned to)
{
	__asm__ volatile("wrpkru" : : "a"(to), "c"(0), "d"(0) : "memory");
}

/* The rights with this denial for `key`. */
static unsigned denying(int key, unsigned denial)
{
	return (rights() & ~(3u << 2 * key)) | denial << 2 * key;
}

static void deny(int key, unsigned denial)
{
	set_rights(denying(key, denial));
}

static int allocate(unsigned denial)
{
	return syscall(SYS_pkey_alloc, 0, denial);
}

static int release(int key)
{
	return syscall(SYS_pkey_free, key);
}

static int keyed(void *at, size_t length, int protection, int key)
{
	return syscall(SYS_pkey_mprotect, at, length, protection, key);
}

static char *map(size_t length, int protection, int flags)
{
	char *at = mmap(NULL, length, protection, MAP_ANONYMOUS | flags, -1, 0);
	NEED(at != MAP_FAILED);
	return at;
}

static sigjmp_buf back;
static volatile int fault_code, fault_key, fault_error;
static volatile unsigned handler_rights;
static void *volatile fault_address;

static void on_fault(int signal, siginfo_t *info, void *context)
{
	handler_rights = rights();
	fault_code = info->si_code;
	fault_address = info->si_addr;
	fault_key = info->si_pkey;
	fault_error = ((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR];
	siglongjmp(back, signal);
}

enum access { LOAD, STORE };

/* Whether an access is denied by `key`. */
static int is_denied(volatile char *at, enum access access, int key)
{
	unsigned before = rights();
	fault_code = fault_key = 0;
	if (sigsetjmp(back, 1) == 0) {
		if (access == STORE)
			*at = 7;
		else
			(void)*at;
	}
	/* The handler began with other rights, and did not return. */
	set_rights(before);
	return fault_code == SEGV_PKUERR && fault_key == key && fault_address == at;
}

static int is_served(volatile char *at, enum access access)
{
	return !is_denied(at, access, 0) && fault_code == 0;
}

/* The key that smaps shows for the area at this address; -1 if it shows none. */
static int key_shown(const void *at)
{
	FILE *file = fopen("/proc/self/smaps", "r");
	char line[512];
	unsigned long start, end;
	int inside = 0, key = -1;
	NEED(file);
	while (fgets(line, sizeof line, file)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			inside = start <= (unsigned long)at && (unsigned long)at < end;
		else if (inside)
			sscanf(line, "ProtectionKey: %d", &key);
	}
	fclose(file);
	return key;
}

static void calls(void)
{
	char *a = map(2 * PAGE, RW, MAP_PRIVATE);
	FAILS_WITH("pkey_alloc has no flags", syscall(SYS_pkey_alloc, 1, 0), EINVAL);
	FAILS_WITH("and no other rights", syscall(SYS_pkey_alloc, 0, 4), EINVAL);
	FAILS_WITH("a key that was not given out is not freed", release(5), EINVAL);
	FAILS_WITH("nor used", keyed(a, PAGE, RW, 5), EINVAL);
	FAILS_WITH("there is no key 16", keyed(a, PAGE, RW, 16), EINVAL);
	FAILS_WITH("nor a key -2", keyed(a, PAGE, RW, -2), EINVAL);
	FAILS_WITH("nor is one freed", release(-1), EINVAL);
	PROMISE("nothing gets any key", keyed(a, 0, RW, 5) == 0);
	int key = allocate(PKEY_DISABLE_WRITE);
	PROMISE("the first key is 1", key == 1);
	PROMISE("the caller has the rights that it asked for", rights() == ((INITIAL & ~0xcu) | PKEY_DISABLE_WRITE << 2));
	FAILS_WITH("the address must be a page's", keyed(a + 1, PAGE, RW, key), EINVAL);
	FAILS_WITH("nothing may be missing", keyed(map(PAGE, RW, MAP_PRIVATE) + (1ul << 40), PAGE, RW, key), ENOMEM);
	PROMISE("the key is freed", release(key) == 0);
	FAILS_WITH("but not twice", release(key), EINVAL);
	int count = 0, last = 0, ordered = 1;
	for (int next; (next = allocate(0)) >= 0; last = next, count++)
		ordered &= next == last + 1;
	int error = errno;
	PROMISE("there are fifteen keys, the lowest first", error == ENOSPC && count == 15 && ordered);
	PROMISE("rights that were asked for are given", rights() == 0);
	PROMISE("a free key is given out again", release(7) == 0 && allocate(PKEY_DISABLE_ACCESS) == 7);
	PROMISE("with other rights", rights() == PKEY_DISABLE_ACCESS << 14);
	for (int next = 1; next < 16; next++)
		NEED(release(next) == 0);
	set_rights(INITIAL);
	munmap(a, 2 * PAGE);
}

static void accesses(int key)
{
	char *a = map(4 * PAGE, RW, MAP_PRIVATE);
	deny(key, 0);
	a[0] = 1;
	PROMISE("an area has key 0", key_shown(a) == 0);
	PROMISE("it gets a key", keyed(a, 2 * PAGE, RW, key) == 0 && key_shown(a) == key);
	PROMISE("the rest of it does not", key_shown(a + 2 * PAGE) == 0);
	PROMISE("its bytes are loaded and stored as before", is_served(a, LOAD) && is_served(a, STORE) && a[0] == 7);
	deny(key, PKEY_DISABLE_WRITE);
	PROMISE("a thread can deny itself stores", is_denied(a, STORE, key) && (fault_error & BY_KEY));
	PROMISE("of such pages", is_served(a + 2 * PAGE, STORE));
	PROMISE("and load", is_served(a, LOAD));
	PROMISE("a page that was never touched is no different", is_denied(a + PAGE, STORE, key));
	deny(key, PKEY_DISABLE_ACCESS);
	PROMISE("a thread can deny itself loads", is_denied(a, LOAD, key));
	PROMISE("and with them stores", is_denied(a + 1, STORE, key));
	deny(key, 0);
	PROMISE("nothing was stored meanwhile", a[0] == 7 && a[1] == 0);
	NEED(mprotect(a, PAGE, PROT_READ) == 0);
	PROMISE("mprotect keeps the key", key_shown(a) == key && key_shown(a + PAGE) == key);
	PROMISE("and its protection stands beside it", !is_denied(a, STORE, key) && fault_code == SEGV_ACCERR);
	deny(key, PKEY_DISABLE_WRITE);
	PROMISE("the key is the first reason", is_denied(a, STORE, key));
	PROMISE("pkey_mprotect with -1 keeps it, too", keyed(a, PAGE, RW, -1) == 0 && is_denied(a, STORE, key));
	char *moved = mremap(a, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, a + 2 * PAGE);
	PROMISE("mremap keeps it", moved == a + 2 * PAGE && key_shown(moved) == key && is_denied(moved, STORE, key));
	PROMISE("key 0 takes it away", keyed(moved, PAGE, RW, 0) == 0 && is_served(moved, STORE));
	PROMISE("from what it is asked for", is_denied(moved + PAGE, STORE, key));
	char *twin = map(PAGE, RW, MAP_SHARED);
	NEED(keyed(twin, PAGE, RW, key) == 0);
	PROMISE("shared memory has keys, too", is_denied(twin, STORE, key) && is_served(twin, LOAD));
	char *file = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, open("/proc/self/exe", O_RDONLY), 0);
	NEED(file != MAP_FAILED && keyed(file, PAGE, PROT_READ, key) == 0);
	deny(key, PKEY_DISABLE_ACCESS);
	PROMISE("and files", is_denied(file, LOAD, key));
	char *nothing = mmap(NULL, PAGE, RW, MAP_SHARED, memfd_create("empty", 0), 0);
	NEED(nothing != MAP_FAILED && keyed(nothing, PAGE, RW, key) == 0);
	PROMISE("also where there is no page", is_denied(nothing, LOAD, key));
	deny(key, 0);
	PROMISE("which without the key is SIGBUS", !is_denied(nothing, LOAD, key) && fault_code == BUS_ADRERR);
	deny(key, PKEY_DISABLE_ACCESS);
	deny(0, PKEY_DISABLE_WRITE);
	unsigned now = rights();
	deny(0, 0);
	PROMISE("the rights to key 0 are a thread's own as well", now == ((INITIAL & ~3u) | PKEY_DISABLE_WRITE));
	deny(key, 0);
	munmap(moved, 2 * PAGE);
	munmap(twin, PAGE);
	munmap(file, PAGE);
}

/* The kernel's accesses for a thread obey the thread's rights. */
static void system_calls(int key)
{
	int ends[2];
	char *a = map(2 * PAGE, RW, MAP_PRIVATE), *fresh = map(2 * PAGE, RW, MAP_PRIVATE);
	struct timespec *time = (struct timespec *)a;
	NEED(pipe(ends) == 0 && write(ends[1], "some bytes", 10) == 10);
	a[0] = 'x';
	NEED(keyed(a, PAGE, RW, key) == 0 && keyed(fresh, 2 * PAGE, RW, key) == 0);
	deny(key, PKEY_DISABLE_WRITE);
	FAILS_WITH("a call does not store where the thread may not", read(ends[0], a, 4), EFAULT);
	FAILS_WITH("nor in a page that was never touched", read(ends[0], fresh, 4), EFAULT);
	FAILS_WITH("nor a structure", syscall(SYS_clock_gettime, CLOCK_MONOTONIC, time), EFAULT);
	PROMISE("it loads", write(ends[1], a, 1) == 1);
	FAILS_WITH("a file is not read to there", pread(open("/proc/self/exe", O_RDONLY), a, 16, 0), EFAULT);
	deny(key, PKEY_DISABLE_ACCESS);
	FAILS_WITH("a call does not load where the thread may not", write(ends[1], a, 1), EFAULT);
	FAILS_WITH("nor a path", open(a, O_RDONLY), EFAULT);
	FAILS_WITH("nor in a page that was never touched", write(ends[1], fresh + PAGE, 1), EFAULT);
	struct iovec run = { a, 1 };
	FAILS_WITH("such a page is not lent to a pipe", vmsplice(ends[1], &run, 1, 0), EFAULT);
	FAILS_WITH("a futex is not read there", syscall(SYS_futex, a, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0), EFAULT);
	PROMISE("a copy ends where the rights end", write(ends[1], a + PAGE, PAGE) == (ssize_t)PAGE && read(ends[0], a + PAGE - 1, 1) == -1 && errno == EFAULT);
	struct iovec to = { (char[4]){ 0 }, 1 };
	PROMISE("but memory is reached in the way of a debugger", process_vm_readv(getpid(), &to, 1, &run, 1, 0) == 1 && *(char *)to.iov_base == 'x');
	int memory = open("/proc/self/mem", O_RDWR);
	PROMISE("and through /proc/self/mem", pwrite(memory, "y", 1, (off_t)a) == 1);
	deny(key, 0);
	PROMISE("which stores", a[0] == 'y');
	NEED(read(ends[0], a, 4) == 4);
	close(memory);
	close(ends[0]);
	close(ends[1]);
	munmap(a, 2 * PAGE);
	munmap(fresh, 2 * PAGE);
}

static void forks(int key)
{
	char *a = map(2 * PAGE, RW, MAP_PRIVATE);
	int status;
	a[0] = 1;
	NEED(keyed(a, PAGE, RW, key) == 0);
	deny(key, PKEY_DISABLE_WRITE);
	IN_CHILD(status, {
		int is_same = rights() == denying(key, PKEY_DISABLE_WRITE) && key_shown(a) == key && is_denied(a, STORE, key);
		deny(key, 0);
		a[0] = 2;
		int next = allocate(0);
		_exit(!(is_same && a[0] == 2 && next == key + 1 && keyed(a + PAGE, PAGE, RW, next) == 0 && release(key) == 0));
	});
	PROMISE("a child has the keys, the areas' and the rights", status == 0);
	PROMISE("which are then its own", is_denied(a, STORE, key) && a[0] == 1 && key_shown(a + PAGE) == 0 && rights() == denying(key, PKEY_DISABLE_WRITE));
	deny(key, 0);
	munmap(a, 2 * PAGE);
}

static int exec_self(const char *part)
{
	int status;
	deny(1, 0);
	IN_CHILD(status, execl("/proc/self/exe", "pkeys", part, NULL));
	return status;
}

static volatile unsigned rights_before, rights_inside;

static void on_signal(int signal, siginfo_t *info, void *context)
{
	rights_inside = rights();
	ucontext_t *state = context;
	char *image = (char *)state->uc_mcontext.fpregs;
	memcpy((void *)&rights_before, image + rights_offset, 4);
	if (info->si_value.sival_int) {
		unsigned other = denying(3, PKEY_DISABLE_WRITE);
		memcpy(image + rights_offset, &other, 4);
	}
	set_rights(0);
	(void)signal;
}

static int is_shown(int pid, unsigned value, struct iovec *state)
{
	NEED(ptrace(PTRACE_GETREGSET, pid, NT_X86_XSTATE, state) == 0);
	return state->iov_len >= rights_offset + 4 && !memcmp((char *)state->iov_base + rights_offset, &value, 4);
}

static void signals(int key)
{
	struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO };
	NEED(sigaction(SIGUSR1, &action, NULL) == 0);
	unsigned mine = denying(key, PKEY_DISABLE_WRITE);
	set_rights(mine);
	NEED(sigqueue(getpid(), SIGUSR1, (union sigval){ 0 }) == 0);
	PROMISE("a handler begins with the first rights", rights_inside == INITIAL);
	PROMISE("its frame has those of before", rights_before == mine);
	PROMISE("which come back", rights() == mine);
	NEED(sigqueue(getpid(), SIGUSR1, (union sigval){ 1 }) == 0);
	PROMISE("or what it leaves in the frame", rights() == ((INITIAL & ~0xc0u) | PKEY_DISABLE_WRITE << 6));
	char *a = map(PAGE, RW, MAP_PRIVATE);
	NEED(keyed(a, PAGE, RW, key) == 0);
	PROMISE("as after a fault", is_denied(a, STORE, key) && handler_rights == INITIAL);
	munmap(a, PAGE);
	set_rights(mine);
	static char image[16384];
	struct iovec state = { image, sizeof image };
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		_exit(rights() == 0x1000 ? 0 : 1);
	}
	int status;
	NEED(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
	PROMISE("a tracer sees the rights", is_shown(child, mine, &state));
	unsigned other = 0x1000;
	memcpy(image + rights_offset, &other, 4);
	NEED(ptrace(PTRACE_SETREGSET, child, NT_X86_XSTATE, &state) == 0 && is_shown(child, other, &state));
	NEED(ptrace(PTRACE_CONT, child, 0, 0) == 0);
	PROMISE("and changes them", ends_well(child));
	set_rights(INITIAL);
}

struct turn {
	int key, pipes[2];
	char *page;
	unsigned first;
	int outcome, kept;
};

/* Sleeps in a call that then stores, and looks whether the rights stay the thread's. */
static void *takes_turns(void *given)
{
	struct turn *turn = given;
	turn->first = rights();
	deny(turn->key, PKEY_DISABLE_WRITE);
	unsigned mine = rights();
	turn->outcome = read(turn->pipes[0], turn->page, 1) == 1 ? 0 : errno;
	turn->kept = rights() == mine;
	for (int i = 0; i < 2000; i++) {
		sched_yield();
		turn->kept &= rights() == mine;
	}
	return NULL;
}

static void threads(int key)
{
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	NEED(sched_setaffinity(0, sizeof one, &one) == 0);
	struct turn turn = { .key = key, .page = map(PAGE, RW, MAP_PRIVATE) };
	struct turn allowed = { .key = key == 1 ? 2 : 1, .page = turn.page };
	NEED(keyed(turn.page, PAGE, RW, key) == 0 && pipe(turn.pipes) == 0 && pipe(allowed.pipes) == 0);
	deny(key, 0);
	unsigned mine = rights();
	pthread_t thread, other;
	NEED(pthread_create(&thread, NULL, takes_turns, &turn) == 0 && pthread_create(&other, NULL, takes_turns, &allowed) == 0);
	sleep_ms(20);
	NEED(write(turn.pipes[1], "a", 1) == 1 && write(allowed.pipes[1], "b", 1) == 1);
	int kept = 1;
	for (int i = 0; i < 2000; i++) {
		sched_yield();
		kept &= rights() == mine;
	}
	NEED(pthread_join(thread, NULL) == 0 && pthread_join(other, NULL) == 0);
	PROMISE("a thread begins with its maker's rights", turn.first == mine);
	PROMISE("the rights are each thread's own", kept && turn.kept && allowed.kept && rights() == mine);
	PROMISE("also in a call that slept", turn.outcome == EFAULT && allowed.outcome == 0 && turn.page[0] == 'b');
	munmap(turn.page, PAGE);
	for (int i = 0; i < 2; i++) {
		close(turn.pipes[i]);
		close(allowed.pipes[i]);
	}
}

/* Returns 42: lea eax, [42]; ret. */
static const unsigned char code[] = { 0xb8, 42, 0, 0, 0, 0xc3 };

static int runs(void *at)
{
	return ((int (*)(void))at)() == 42;
}

static void execution(void)
{
	char *a = map(2 * PAGE, RW, MAP_PRIVATE);
	memcpy(a, code, sizeof code);
	memcpy(a + PAGE, code, sizeof code);
	NEED(mprotect(a, PAGE, PROT_EXEC) == 0);
	int key = key_shown(a);
	PROMISE("memory that can only be executed has a key", key > 0);
	PROMISE("it is executed", runs(a));
	PROMISE("and not loaded", is_denied(a, LOAD, key));
	FAILS_WITH("the key is not the program's", release(key), EINVAL);
	FAILS_WITH("which cannot give it", keyed(a + PAGE, PAGE, RW, key), EINVAL);
	NEED(mprotect(a + PAGE, PAGE, PROT_EXEC) == 0);
	PROMISE("all such memory has it", key_shown(a + PAGE) == key && is_denied(a + PAGE, LOAD, key));
	NEED(mprotect(a, PAGE, PROT_READ) == 0);
	PROMISE("memory that can be loaded again has none", key_shown(a) == 0 && is_served(a, LOAD) && a[1] == 42);
	char *mapped = map(PAGE, PROT_EXEC, MAP_PRIVATE);
	PROMISE("mmap gives it, too", key_shown(mapped) == key && is_denied(mapped, LOAD, key));
	munmap(mapped, PAGE);
	int other = allocate(0);
	NEED(other > 0 && keyed(a, PAGE, RW, other) == 0);
	memcpy(a, code, sizeof code);
	NEED(keyed(a, PAGE, PROT_READ | PROT_EXEC, other) == 0);
	deny(other, PKEY_DISABLE_ACCESS);
	PROMISE("keys do not keep code from running", runs(a) && is_denied(a, LOAD, other));
	deny(other, 0);
	NEED(release(other) == 0);
	PROMISE("an area keeps a key that was freed", key_shown(a) == other);
	munmap(a, 2 * PAGE);
}

static void large(int key)
{
	char *area = map(3 * LARGE, RW, MAP_PRIVATE);
	char *a = (char *)(((unsigned long)area + LARGE - 1) & -LARGE);
	madvise(a, LARGE, MADV_HUGEPAGE);
	memset(a, 1, LARGE);
	deny(key, 0);
	NEED(keyed(a, LARGE, RW, key) == 0);
	deny(key, PKEY_DISABLE_WRITE);
	PROMISE("a large page has a key", is_denied(a, STORE, key) && is_denied(a + LARGE - 1, STORE, key) && is_served(a + LARGE, STORE));
	NEED(keyed(a + 8 * PAGE, PAGE, RW, 0) == 0);
	PROMISE("a part of it has another", is_served(a + 8 * PAGE, STORE) && is_denied(a + 9 * PAGE, STORE, key) && is_denied(a + 7 * PAGE, STORE, key));
	int status;
	IN_CHILD(status, {
		int denied = is_denied(a, STORE, key);
		deny(key, 0);
		a[0] = 2;
		deny(key, PKEY_DISABLE_WRITE);
		_exit(!(denied && is_denied(a, STORE, key)));
	});
	PROMISE("and a copy of a page has its page's", status == 0 && a[0] == 1);
	deny(key, 0);
	munmap(area, 3 * LARGE);
}

int main(int count, char **arguments)
{
	if (count > 1)
		return !(rights() == INITIAL && allocate(0) == 1);
	unsigned a, b, c, d;
	NEED(__get_cpuid_count(7, 0, &a, &b, &c, &d));
	if (!(c & 1 << 4)) {
		FAILS_WITH("without the CPU's keys there is none", allocate(0), errno == EINVAL ? EINVAL : ENOSPC);
		return conclude();
	}
	NEED(__get_cpuid_count(0xd, 9, &a, &rights_offset, &c, &d) && a >= 4);
	PROMISE("a program begins with the rights to key 0 only", rights() == INITIAL);
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
	NEED(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0);
	calls();
	int key = allocate(0);
	NEED(key == 1);
	accesses(key);
	system_calls(key);
	forks(key);
	PROMISE("execve begins anew", exec_self("anew") == 0);
	signals(key);
	threads(key);
	execution();
	large(key);
	(void)arguments;
	return conclude();
}
