/*
 * Restartable sequences (rseq(2)): areas that may be registered, and the fields that the kernel
 * writes there; sections that are aborted, and the place where their threads go on; errors that end
 * the program; and the registration after fork, clone and execve.
 */
#include "promise.h"
#include <elf.h>
#include <sys/auxv.h>
#include <sys/rseq.h>
#include <ucontext.h>

#define SIGNATURE 0x53053053
#define UNREGISTER 1
#define LENGTH 32
#define FEATURE_SIZE 27 /* AT_RSEQ_FEATURE_SIZE: of kernels that write node and concurrency ID */
#define ALIGNMENT 28 /* AT_RSEQ_ALIGN */
#define LONG (1ul << 36) /* more turns than any test waits for */

struct area {
	volatile uint32_t cpu_start, cpu;
	volatile uint64_t section;
	volatile uint32_t flags, node, id, rest;
} __attribute__((aligned(32)));

struct section {
	uint32_t version, flags;
	uint64_t start, length, abort;
} __attribute__((aligned(32)));

static struct area own, other;

/*
 * spin(&area.section, section, turns): counts down between spin_start and spin_end. Returns 0 if
 * it got to the end, 1 if it was aborted. The handler spin_unsigned has another signature.
 */
long spin(volatile uint64_t *slot, const struct section *section, uint64_t turns);
extern const char spin_start[], spin_end[], spin_abort[], spin_unsigned[];
__asm__(".text\n"
	"spin:\n"
	"	movq %rsi, (%rdi)\n"
	"spin_start:\n"
	"	decq %rdx\n"
	"	jnz spin_start\n"
	"spin_end:\n"
	"	movq $0, (%rdi)\n"
	"	xorl %eax, %eax\n"
	"	ret\n"
	"	.byte 0x0f, 0xb9, 0x3d\n"
	"	.long 0x53053053\n"
	"spin_abort:\n"
	"	movl $1, %eax\n"
	"	ret\n"
	"	.long 0x12345678\n"
	"spin_unsigned:\n"
	"	movl $2, %eax\n"
	"	ret\n");

static struct section good(void)
{
	uint64_t start = (uintptr_t)spin_start;
	return (struct section){ 0, 0, start, (uintptr_t)spin_end - start, (uintptr_t)spin_abort };
}

static long rseq(volatile void *area, uint32_t length, int flags, uint32_t signature)
{
	return syscall(SYS_rseq, area, length, flags, signature);
}

static int has_features(void)
{
	return getauxval(FEATURE_SIZE) >= 28;
}

static void stay_on(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	NEED(sched_setaffinity(0, sizeof set, &set) == 0);
}

static int cpus(void)
{
	return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

static void roam(void)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	for (int cpu = 0; cpu < cpus(); cpu++)
		CPU_SET(cpu, &set);
	NEED(sched_setaffinity(0, sizeof set, &set) == 0);
}

/* The C library's registration is in the way of this program's. */
static void leave_library(void)
{
	char *at = (char *)__builtin_thread_pointer() + __rseq_offset;
	PROMISE("the C library has registered, and knows its CPU", __rseq_size > 0 && ((struct area *)at)->cpu < (uint32_t)cpus());
	FAILS_WITH("another signature does not unregister: EPERM", rseq(at, LENGTH, UNREGISTER, 1), EPERM);
	FAILS_WITH("another length does not: EINVAL", rseq(at, LENGTH + 32, UNREGISTER, SIGNATURE), EINVAL);
	FAILS_WITH("another address does not: EINVAL", rseq(at + 32, LENGTH, UNREGISTER, SIGNATURE), EINVAL);
	FAILS_WITH("other flags are EINVAL", rseq(at, LENGTH, UNREGISTER | 2, SIGNATURE), EINVAL);
	PROMISE("it unregisters", rseq(at, LENGTH, UNREGISTER, SIGNATURE) == 0);
	PROMISE("the CPU is unknown then", ((struct area *)at)->cpu == UINT32_MAX && ((struct area *)at)->cpu_start == 0);
	PROMISE("sched_getcpu still answers", sched_getcpu() >= 0);
	FAILS_WITH("nothing is registered: EINVAL", rseq(at, LENGTH, UNREGISTER, SIGNATURE), EINVAL);
}

static void registering(void)
{
	unsigned cpu, node;
	FAILS_WITH("31 bytes are too few", rseq(&own, 31, 0, SIGNATURE), EINVAL);
	FAILS_WITH("memory is aligned to 32 bytes", rseq((char *)&own + 16, LENGTH, 0, SIGNATURE), EINVAL);
	FAILS_WITH("flags are EINVAL", rseq(&own, LENGTH, 4, SIGNATURE), EINVAL);
	FAILS_WITH("addresses of the kernel are EFAULT", rseq((void *)0xffff800000000000, LENGTH, 0, SIGNATURE), EFAULT);
	FAILS_WITH("the end of addresses is, too", rseq((void *)0x7fffffffffe0, LENGTH, 0, SIGNATURE), EFAULT);
	stay_on(0);
	own.section = (uintptr_t)&other;
	PROMISE("it registers", rseq(&own, LENGTH, 0, SIGNATURE) == 0);
	PROMISE("a section that was there is gone", own.section == 0);
	PROMISE("CPU 0 is told, twice", own.cpu == 0 && own.cpu_start == 0);
	FAILS_WITH("again is EBUSY", rseq(&own, LENGTH, 0, SIGNATURE), EBUSY);
	FAILS_WITH("with another signature EPERM", rseq(&own, LENGTH, 0, 1), EPERM);
	FAILS_WITH("with another address EINVAL", rseq(&other, LENGTH, 0, SIGNATURE), EINVAL);
	FAILS_WITH("with another length EINVAL", rseq(&own, LENGTH + 32, 0, SIGNATURE), EINVAL);
	int told = 1, nodes = 1;
	for (int to = cpus() - 1; to >= 0; to--) {
		stay_on(to);
		told &= own.cpu == (unsigned)to && own.cpu_start == (unsigned)to;
		NEED(syscall(SYS_getcpu, &cpu, &node, NULL) == 0);
		nodes &= !has_features() || own.node == node;
	}
	PROMISE("each CPU that it goes to is told at once", told);
	PROMISE("its node too, where the auxiliary vector says so", nodes);
	PROMISE("who is alone has concurrency ID 0", !has_features() || own.id == 0);
	PROMISE("the auxiliary vector tells the alignment", !has_features() || getauxval(ALIGNMENT) == 32);
	PROMISE("it unregisters", rseq(&own, LENGTH, UNREGISTER, SIGNATURE) == 0);
	PROMISE("nothing is told then", own.cpu == UINT32_MAX && own.cpu_start == 0 && own.node == 0 && own.id == 0);
	PROMISE("longer memory registers", rseq(&own, 64, 0, SIGNATURE) == (has_features() ? 0 : -1));
	if (has_features())
		NEED(rseq(&own, 64, UNREGISTER, SIGNATURE) == 0);
}

/* Makes a child that keeps the parent's CPU busy until it is killed. */
static pid_t hog(int cpu)
{
	fflush(stdout);
	pid_t parent = getpid(), child = fork();
	NEED(child >= 0);
	if (child == 0) {
		stay_on(cpu);
		while (getppid() == parent)
			;
		_exit(0);
	}
	return child;
}

static void end(pid_t child)
{
	NEED(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

static volatile uint64_t seen_rip, seen_section;

static void look(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)info;
	seen_rip = (uint64_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
	seen_section = own.section;
}

static void alarm_in_ms(int ms, int every)
{
	struct itimerval time = { { 0, every * 1000 }, { 0, ms * 1000 } };
	NEED(setitimer(ITIMER_REAL, &time, NULL) == 0);
}

/* Whether a signal arrived in a section, and its handler saw that the section was aborted. A
 * preemption may have aborted it first. */
static int signal_in(const struct section *section)
{
	seen_rip = 0;
	seen_section = 1;
	/* The alarm repeats: the first one may come too early. */
	alarm_in_ms(10, 10);
	NEED(spin(&own.section, section, LONG) == 1);
	while (!seen_rip)
		;
	alarm_in_ms(0, 0);
	return seen_rip == (uintptr_t)spin_abort && seen_section == 0;
}

static void sections(void)
{
	struct section section = good(), elsewhere = good();
	struct sigaction action = { .sa_sigaction = look, .sa_flags = SA_SIGINFO };
	NEED(sigaction(SIGALRM, &action, NULL) == 0);
	NEED(rseq(&own, LENGTH, 0, SIGNATURE) == 0);
	PROMISE("a short section comes to its end", HOLDS_ONCE(spin(&own.section, &section, 10) == 0));
	stay_on(0);
	pid_t child = hog(0);
	PROMISE("one that is preempted goes on at its handler", spin(&own.section, &section, LONG) == 1);
	PROMISE("and is left", own.section == 0);
	end(child);
	PROMISE("so does one that takes a signal; the signal's handler sees it there, and left", HOLDS_ONCE(signal_in(&section)));
	PROMISE("and it is", own.section == 0);
	elsewhere.start = (uintptr_t)sections;
	elsewhere.length = 1;
	alarm_in_ms(10, 10);
	own.section = (uintptr_t)&elsewhere;
	while (own.section)
		;
	alarm_in_ms(0, 0);
	PROMISE("a section that its thread is not in is left by a signal, without its handler", own.section == 0);
	int moved = 1;
	if (cpus() > 1) {
		/* A child moves its parent, which is in its section, from CPU to CPU. */
		fflush(stdout);
		pid_t parent = getpid();
		child = fork();
		NEED(child >= 0);
		if (child == 0) {
			cpu_set_t set;
			stay_on(1);
			for (int to = 0;; to = !to) {
				CPU_ZERO(&set);
				CPU_SET(to, &set);
				sched_setaffinity(parent, sizeof set, &set);
			}
		}
		moved = spin(&own.section, &section, LONG) == 1;
		end(child);
	}
	PROMISE("one that goes to another CPU goes on at its handler", moved);
	roam();
	NEED(rseq(&own, LENGTH, UNREGISTER, SIGNATURE) == 0);
	child = hog(0);
	stay_on(0);
	PROMISE("nothing happens to who has not registered", spin(&own.section, &section, 1 << 26) == 0);
	end(child);
	roam();
}

static void nothing(int signal)
{
	(void)signal;
}

/* The child's action for SIGSEGV. A section that stays wrong kills the child with any action. A
 * section with flags does not: the handler of SIGALRM lies outside it, so the thread has left
 * the section by then. */
static void (*on_fault)(int) = nothing;

/* Makes a child that spins in `section`, with `area` registered, until a signal arrives; returns
 * how it ended. */
static int outcome(volatile struct area *area, const struct section *section, uint32_t flags)
{
	int status;
	IN_CHILD(status, {
		signal(SIGALRM, nothing);
		signal(SIGSEGV, on_fault);
		if (rseq(area, LENGTH, 0, SIGNATURE))
			_exit(50);
		area->flags = flags;
		alarm_in_ms(10, 10);
		_exit(60 + (int)spin(&area->section, section, LONG));
	});
	return status;
}

static int dies(const struct section *section)
{
	int status = outcome(&own, section, 0);
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

#define WRONG(text, change)                                                                         \
	do {                                                                                        \
		struct section s = good();                                                          \
		change;                                                                             \
		PROMISE(text " is SIGSEGV", dies(&s));                                               \
	} while (0)

static void wrongs(void)
{
	struct section section = good();
	int status = outcome(&own, &section, 0);
	PROMISE("what is right goes on", WIFEXITED(status) && WEXITSTATUS(status) == 61);
	WRONG("another version", s.version = 1);
	WRONG("a handler with another signature", s.abort = (uintptr_t)spin_unsigned);
	WRONG("a handler in the section", s.abort = s.start + 1);
	WRONG("a handler at an address of the kernel", s.abort = 0xffffffff81000000);
	WRONG("a handler at no address", s.abort = 2);
	WRONG("a section that wraps around", s.length = -s.start - 1);
	WRONG("a section that begins in the kernel", s.start = 0xffff800000000000);
	on_fault = SIG_DFL;
	WRONG("a flag of a section", s.flags = 1);
	WRONG("a flag that nobody knows", s.flags = 1u << 31);
	status = outcome(&own, &section, 1);
	PROMISE("a flag of a thread is SIGSEGV", WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	on_fault = nothing;
	status = outcome(&own, (void *)0xffff800000000000, 0);
	PROMISE("a section at an address of the kernel is SIGSEGV", WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	status = outcome(&own, (void *)16, 0);
	PROMISE("a section at no address is SIGSEGV", WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	IN_CHILD(status, {
		struct area *area = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		signal(SIGALRM, nothing);
		if (rseq(area, LENGTH, 0, SIGNATURE) || munmap(area, 4096))
			_exit(50);
		alarm_in_ms(10, 10);
		for (;;)
			;
	});
	PROMISE("memory that is gone is SIGSEGV", WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	IN_CHILD(status, {
		struct section bad = good();
		bad.version = 1;
		stay_on(0);
		pid_t maker = getpid();
		if (fork() == 0) {
			while (getppid() == maker)
				;
			_exit(0);
		}
		if (rseq(&own, LENGTH, 0, SIGNATURE))
			_exit(50);
		_exit(60 + (int)spin(&own.section, &bad, LONG));
	});
	PROMISE("it is at a preemption, too", WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

static int without(void *unused)
{
	(void)unused;
	/* No area is registered here, so registering succeeds, and then unregistering. */
	int fresh = rseq(&other, LENGTH, 0, SIGNATURE) == 0 && other.cpu < (uint32_t)cpus() && rseq(&other, LENGTH, UNREGISTER, SIGNATURE) == 0;
	_exit(fresh ? 0 : 1);
}

static void *in_thread(void *unused)
{
	(void)unused;
	/* The C library registers a new thread only if it has registered its creator. Here it
	 * has not registered the creator. */
	return (void *)(rseq(&other, LENGTH, 0, SIGNATURE) == 0 ? 0l : 1l);
}

static void kinship(void)
{
	static char stack[64 << 10] __attribute__((aligned(16)));
	int status;
	NEED(rseq(&own, LENGTH, 0, SIGNATURE) == 0);
	IN_CHILD(status, {
		int told = own.cpu < (uint32_t)cpus();
		_exit(rseq(&own, LENGTH, 0, SIGNATURE) == -1 && errno == EBUSY && told && rseq(&own, LENGTH, UNREGISTER, SIGNATURE) == 0 ? 0 : 1);
	});
	PROMISE("a child of fork has its parent's registration", status == 0);
	PROMISE("and what it does with it is its own", rseq(&own, LENGTH, 0, SIGNATURE) == -1 && errno == EBUSY && own.cpu != UINT32_MAX);
	pid_t child = clone(without, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);
	PROMISE("one that shares its maker's memory has none", child > 0 && waitpid(child, &status, 0) == child && status == 0);
	child = clone(without, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
	PROMISE("nor has one of vfork", child > 0 && waitpid(child, &status, 0) == child && status == 0);
	pthread_t thread;
	void *bad = NULL;
	NEED(pthread_create(&thread, NULL, in_thread, NULL) == 0 && pthread_join(thread, &bad) == 0);
	PROMISE("a thread has none, and ends with one of its own", !bad);
	IN_CHILD(status, {
		setenv("GLIBC_TUNABLES", "glibc.pthread.rseq=0", 1);
		execl("/proc/self/exe", "rseq", "fresh", NULL);
		_exit(2);
	});
	PROMISE("a program that was executed has none", status == 0);
	NEED(rseq(&own, LENGTH, UNREGISTER, SIGNATURE) == 0);
}

enum { THREADS = 5, TURNS = 20000 };
static struct { uint64_t by_cpu, by_id, rest[6]; } counters[64] __attribute__((aligned(64)));
static volatile int ids_too_large;

/* Adds 1 to the counter that `number` names, in a section; returns 0 if the section was aborted. */
static int add_in_section(struct area *area, volatile uint32_t *number, uint64_t *first)
{
	__asm__ goto(".pushsection .data.rel.sections, \"aw\"\n"
		".balign 32\n"
		"3:	.long 0, 0\n"
		"	.quad 1f, 2f - 1f, 4f\n"
		".popsection\n"
		"	leaq 3b(%%rip), %%rax\n"
		"	movq %%rax, (%[slot])\n"
		"1:	movl (%[number]), %%eax\n"
		"	shlq $6, %%rax\n"
		"	movl $40, %%ecx\n"
		"5:	decl %%ecx\n"
		"	jnz 5b\n"
		"	addq $1, (%[first], %%rax)\n"
		"2:	jmp 6f\n"
		"	.byte 0x0f, 0xb9, 0x3d\n"
		"	.long 0x53053053\n"
		"4:	jmp %l[aborted]\n"
		"6:\n"
		: : [slot] "r"(&area->section), [number] "r"(number), [first] "r"(first)
		: "rax", "rcx", "memory", "cc" : aborted);
	return 1;
aborted:
	return 0;
}

static void *add(void *unused)
{
	(void)unused;
	struct area area = { 0 };
	NEED(rseq(&area, LENGTH, 0, SIGNATURE) == 0);
	for (int turn = 0; turn < TURNS; turn++) {
		while (!add_in_section(&area, &area.cpu, &counters[0].by_cpu))
			;
		while (has_features() && !add_in_section(&area, &area.id, &counters[0].by_id))
			;
		if (area.id >= (uint32_t)cpus())
			ids_too_large = 1;
		if (turn % 1000 == 0)
			sched_yield();
		if (turn % 5000 == 0)
			sleep_ms(1);
	}
	NEED(rseq(&area, LENGTH, UNREGISTER, SIGNATURE) == 0);
	return NULL;
}

static void together(void)
{
	pthread_t threads[THREADS];
	uint64_t by_cpu = 0, by_id = 0;
	for (int i = 0; i < THREADS; i++)
		NEED(pthread_create(&threads[i], NULL, add, NULL) == 0);
	for (int i = 0; i < THREADS; i++)
		NEED(pthread_join(threads[i], NULL) == 0);
	for (int i = 0; i < 64; i++) {
		by_cpu += counters[i].by_cpu;
		by_id += counters[i].by_id;
	}
	PROMISE("five threads count by CPU, and lose nothing", by_cpu == THREADS * TURNS);
	PROMISE("and by concurrency ID", !has_features() || by_id == THREADS * TURNS);
	PROMISE("which is below the number of CPUs", !ids_too_large);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "fresh"))
		return !(rseq(&own, LENGTH, 0, SIGNATURE) == 0 && own.cpu < (uint32_t)cpus());
	leave_library();
	registering();
	sections();
	wrongs();
	kinship();
	together();
	return conclude();
}
