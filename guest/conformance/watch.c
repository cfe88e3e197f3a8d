/* Hardware breakpoints and watchpoints: u_debugreg of PTRACE_PEEKUSER and PTRACE_POKEUSER. */
#include "traced.h"

#include <stddef.h>
#include <sys/user.h>

#define AT(n) offsetof(struct user, u_debugreg[n])
#define AT_RESET 0xffff0ff0UL
#define ON(slot, kind, length) (1UL << (2 * (slot)) | ((kind) | (length) << 2) << (16 + 4 * (slot)))

enum { EXECUTE, STORE, PORT, ACCESS };
enum { ONE, TWO, EIGHT, FOUR };

static volatile long watched[4] __attribute__((aligned(64)));
static volatile long others;
static volatile unsigned short selector __attribute__((aligned(8))) = 0x2b;

static unsigned long peek(pid_t pid, int number)
{
	unsigned long value = 0;
	NEED(pt(PTRACE_PEEKUSER, pid, AT(number), (unsigned long)&value) == 0);
	return value;
}

static long poke(pid_t pid, int number, unsigned long value)
{
	return pt(PTRACE_POKEUSER, pid, AT(number), value);
}

/* Lets `pid` run to its next stop; returns whether that is a SIGTRAP with this code. */
static int traps(pid_t pid, int code)
{
	siginfo_t info = { 0 };
	return pt(PTRACE_CONT, pid, 0, 0) == 0 && next(pid) == (SIGTRAP << 8 | 0x7f) &&
	       pt(PTRACE_GETSIGINFO, pid, 0, (unsigned long)&info) == 0 && info.si_code == code;
}

static int ends_with(pid_t pid, int status)
{
	return pt(PTRACE_CONT, pid, 0, 0) == 0 && next(pid) == status << 8;
}

static __attribute__((noinline)) void called(void)
{
	others++;
}

static void stores(void)
{
	others = watched[0];
	watched[0] = 5;
	others = watched[0];
	watched[1] = 6;
}

static void calls(void)
{
	called();
	called();
}

static void many_stores(void)
{
	for (int i = 0; i < 1000; i++) {
		watched[0] = i;
		if (i % 100 == 0)
			usleep(1000);
	}
}

/* The kernel itself stores to watched memory, and reads it. */
static void kernel_stores(void)
{
	int ends[2];
	long value = 9;
	if (pipe(ends) || write(ends[1], &value, sizeof value) != sizeof value || read(ends[0], (void *)watched, sizeof value) != sizeof value)
		_exit(1);
	if (write(ends[1], (void *)watched, sizeof value) != sizeof value || watched[1] != 0)
		_exit(2);
	_exit(3);
}

static void forks(void)
{
	pid_t child = fork();
	if (child == 0) {
		watched[0] = 1;
		_exit(4);
	}
	int status;
	waitpid(child, &status, 0);
	_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 98);
}

static void *thread_stores(void *unused)
{
	watched[0] = 1;
	return unused;
}

static void makes_a_thread(void)
{
	pthread_t thread;
	pthread_create(&thread, NULL, thread_stores, NULL);
	pthread_join(thread, NULL);
	_exit(4);
}

static void executes(void)
{
	execl("/proc/self/exe", "watch", "stores", NULL);
	_exit(98);
}

/* Loads SS from a watched address. The CPU reports the access only after the next instruction,
 * which may enter the kernel (SYSCALL, INT3). */
static void moves_ss(void)
{
	for (int i = 0; i < 100; i++) {
		long result = SYS_getppid;
		__asm__ volatile("mov %1, %%ss; syscall" : "+a"(result) : "m"(selector) : "rcx", "r11", "memory");
		__asm__ volatile("mov %0, %%ss; int3" : : "m"(selector) : "memory");
		__asm__ volatile("mov %0, %%ss; nop" : : "m"(selector) : "memory");
	}
	_exit(6);
}

static void registers(void)
{
	pid_t child = traced_child(stores);
	PROMISE("at first all are 0, and DR6 as at reset", !peek(child, 0) && !peek(child, 3) && !peek(child, 7) && peek(child, 6) == AT_RESET);
	FAILS_WITH("DR4 is none", poke(child, 4, 1), EIO);
	FAILS_WITH("DR5 is none", poke(child, 5, 1), EIO);
	FAILS_WITH("an offset between two registers", pt(PTRACE_POKEUSER, child, AT(0) + 1, 0), EIO);
	PROMISE("an address is any of the program's", poke(child, 0, (long)watched + 1) == 0 && peek(child, 0) == (unsigned long)watched + 1);
	FAILS_WITH("none of the kernel's", poke(child, 1, 0xffffffff81000000), EINVAL);
	FAILS_WITH("nor one behind the program's last", poke(child, 1, 0x7ffffffff000), EINVAL);
	PROMISE("it is as it was", peek(child, 1) == 0);
	FAILS_WITH("four bytes at an odd address", poke(child, 7, ON(0, STORE, FOUR)), EINVAL);
	PROMISE("it is off then", peek(child, 7) == 0);
	PROMISE("one byte there is taken", poke(child, 7, ON(0, STORE, ONE)) == 0 && peek(child, 7) == ON(0, STORE, ONE));
	FAILS_WITH("I/O ports", poke(child, 7, ON(0, PORT, ONE)), EINVAL);
	FAILS_WITH("instructions of four bytes", poke(child, 7, ON(0, EXECUTE, FOUR)), EINVAL);
	PROMISE("what is refused changes nothing", peek(child, 7) == ON(0, STORE, ONE));
	PROMISE("bits of no slot are shown as they were written", poke(child, 7, 1 << 13) == 0 && peek(child, 7) == 1 << 13);
	PROMISE("the status is the tracer's to change", poke(child, 6, AT_RESET | 5) == 0 && peek(child, 6) == (AT_RESET | 5));
	kill(child, SIGKILL);
	next(child);
}

static void hits(void)
{
	pid_t child = traced_child(stores);
	NEED(poke(child, 0, (long)watched) == 0 && poke(child, 7, ON(0, STORE, EIGHT)) == 0);
	PROMISE("a store is a hit (TRAP_HWBKPT), after it", traps(child, 4) && (peek(child, 6) & 0xf) == 1 && pt(PTRACE_PEEKDATA, child, (long)watched, (long)&others) == 0 && others == 5);
	PROMISE("neither a load is one nor its neighbour", ends_with(child, 7));
	child = traced_child(stores);
	NEED(poke(child, 1, (long)watched) == 0 && poke(child, 7, ON(1, ACCESS, EIGHT)) == 0);
	PROMISE("a load is one of a slot for both", traps(child, 4) && (peek(child, 6) & 0xf) == 2 && traps(child, 4) && traps(child, 4) && ends_with(child, 7));
	child = traced_child(calls);
	NEED(poke(child, 3, (long)called) == 0 && poke(child, 7, ON(3, EXECUTE, ONE)) == 0);
	struct user_regs_struct at;
	PROMISE("an instruction is one, before it", traps(child, 4) && (peek(child, 6) & 0xf) == 8 && pt(PTRACE_GETREGS, child, 0, (long)&at) == 0 && at.rip == (unsigned long)called);
	PROMISE("it goes on behind it, and comes there again", traps(child, 4) && ends_with(child, 7));
	child = traced_child(many_stores);
	NEED(poke(child, 2, (long)watched) == 0 && poke(child, 7, ON(2, STORE, FOUR)) == 0);
	int all = 1;
	for (int i = 0; i < 1000 && all; i++)
		all &= traps(child, 4);
	PROMISE("each of a thousand stores is one, across sleeps", all && ends_with(child, 7));
	child = traced_child(many_stores);
	NEED(poke(child, 2, (long)watched) == 0 && poke(child, 7, ON(2, STORE, FOUR)) == 0);
	PROMISE("what is off is none", traps(child, 4) && poke(child, 7, 0) == 0 && ends_with(child, 7));
}

static void limits(void)
{
	pid_t child = traced_child(kernel_stores);
	NEED(poke(child, 0, (long)watched) == 0 && poke(child, 7, ON(0, ACCESS, EIGHT)) == 0);
	PROMISE("what a system call does there is none", ends_with(child, 3));
	child = traced_child(forks);
	NEED(poke(child, 0, (long)watched) == 0 && poke(child, 7, ON(0, STORE, EIGHT)) == 0);
	PROMISE("a child has none of its parent's", pt(PTRACE_CONT, child, 0, 0) == 0 && next(child) == (SIGCHLD << 8 | 0x7f) && ends_with(child, 4));
	child = traced_child(makes_a_thread);
	NEED(poke(child, 0, (long)watched) == 0 && poke(child, 7, ON(0, STORE, EIGHT)) == 0);
	PROMISE("nor has a thread", ends_with(child, 4));
	child = traced_child(executes);
	NEED(poke(child, 0, (long)watched) == 0 && poke(child, 7, ON(0, STORE, EIGHT)) == 0);
	PROMISE("execve takes them away", pt(PTRACE_CONT, child, 0, 0) == 0 && next(child) == (SIGTRAP << 8 | 0x7f) && !peek(child, 7) && !peek(child, 0) && ends_with(child, 7));
	child = traced_child(stores);
	NEED(poke(child, 0, (long)watched) == 0 && poke(child, 7, ON(0, STORE, EIGHT)) == 0);
	pid_t other = traced_child(stores);
	PROMISE("another process has none, on any CPU", ends_with(other, 7) && traps(child, 4) && ends_with(child, 7));
	child = traced_child(moves_ss);
	NEED(poke(child, 0, (long)&selector) == 0 && poke(child, 7, ON(0, ACCESS, TWO)) == 0);
	int status;
	for (int i = 0; i < 1000; i++) {
		NEED(pt(PTRACE_CONT, child, 0, 0) == 0);
		status = next(child);
		if (status != (SIGTRAP << 8 | 0x7f))
			break;
	}
	PROMISE("a watched MOV SS before a way into the kernel harms nobody", status == 6 << 8);
}

/* The program sets the trap flag itself: from then on each instruction raises SIGTRAP. */
static void steps_itself(void)
{
	__asm__ volatile("pushfq\n\torq $0x100, (%%rsp)\n\tpopfq\n\tincq %0\n\tnop" : "+m"(watched[0]) : : "cc", "memory");
}

static void stepping(void)
{
	pid_t pid = traced_child(stores);
	NEED(poke(pid, 0, (unsigned long)&watched[0]) == 0 && poke(pid, 7, ON(0, STORE, EIGHT)) == 0);
	int status, stops = 0;
	do
		NEED(pt(PTRACE_SINGLESTEP, pid, 0, 0) == 0);
	while ((status = next(pid)) == (SIGTRAP << 8 | 0x7f) && ++stops < 100000);
	PROMISE("a program is stepped over a store to a watched address", status == 7 << 8 && stops > 10);
	pid = traced_child(steps_itself);
	NEED(poke(pid, 0, (unsigned long)&watched[0]) == 0 && poke(pid, 7, ON(0, STORE, EIGHT)) == 0);
	for (stops = 0, status = 0x7f; WIFSTOPPED(status) && stops < 100000; stops++) {
		NEED(pt(PTRACE_CONT, pid, 0, 0) == 0);
		status = next(pid);
	}
	/* QEMU's emulator does not report the program's address, so the program cannot continue
	 * there. */
	PROMISE("one that steps itself over one goes on, or is killed", status == 7 << 8 || status == SIGKILL);
	pid = traced_child(stores);
	PROMISE("and no other", ends_with(pid, 7));
}

int main(int count, char **arguments)
{
	if (count == 2 && !strcmp(arguments[1], "stores")) {
		stores();
		return 7;
	}
	registers();
	hits();
	limits();
	stepping();
	return conclude();
}
