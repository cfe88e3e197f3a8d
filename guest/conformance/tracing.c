/* ptrace(2): a tracer stops, reads and changes other threads. personality(2), which debuggers use.
 */
#include "traced.h"

#include <elf.h>
#include <stddef.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/user.h>

#define EVENT(status) ((status) >> 16)

static void finish(pid_t child)
{
	kill(child, SIGKILL);
	while (waitpid(child, NULL, __WALL) > 0)
		;
}

static void nothing(void)
{
}

static void calls(void)
{
	syscall(SYS_getppid);
	_exit((int)syscall(SYS_getpid) & 0x7f);
}

static void start_and_end(void)
{
	FAILS_WITH("a process that is not there", pt(PTRACE_ATTACH, 32766, 0, 0), ESRCH);
	FAILS_WITH("oneself", pt(PTRACE_ATTACH, getpid(), 0, 0), EPERM);
	FAILS_WITH("one that is not traced", pt(PTRACE_CONT, getppid() > 0 ? getpid() : 0, 0, 0), ESRCH);
	pid_t child = traced_child(nothing);
	siginfo_t info = { 0 };
	PROMISE("PTRACE_TRACEME: SIGSTOP stops the child before it is delivered",
		pt(PTRACE_GETSIGINFO, child, 0, (unsigned long)&info) == 0 && info.si_signo == SIGSTOP && info.si_pid == child);
	FAILS_WITH("one that is traced already", pt(PTRACE_ATTACH, child, 0, 0), EPERM);
	FAILS_WITH("a signal that there is not", pt(PTRACE_CONT, child, 0, 65), EIO);
	FAILS_WITH("an unknown request", pt(0x7777, child, 0, 0), EIO);
	FAILS_WITH("unknown options", pt(PTRACE_SETOPTIONS, child, 0, 1 << 15), EINVAL);
	PROMISE("PTRACE_CONT without a signal: it goes on to its end", pt(PTRACE_CONT, child, 0, 0) == 0 && next(child) == 7 << 8);
	FAILS_WITH("it is gone", pt(PTRACE_CONT, child, 0, 0), ESRCH);
	child = traced_child(nothing);
	PROMISE("PTRACE_CONT with a signal delivers that one", pt(PTRACE_CONT, child, 0, SIGTERM) == 0 && next(child) == SIGTERM);
	child = traced_child(nothing);
	PROMISE("PTRACE_KILL", pt(PTRACE_KILL, child, 0, 0) == 0 && next(child) == SIGKILL);
	child = traced_child(nothing);
	char path[64], text[4096] = { 0 }, line[32];
	snprintf(path, sizeof path, "/proc/%d/status", child);
	int fd = open(path, O_RDONLY);
	NEED(fd >= 0 && read(fd, text, sizeof text - 1) > 0 && close(fd) == 0);
	snprintf(line, sizeof line, "TracerPid:\t%d\n", getpid());
	PROMISE("/proc tells state and tracer", strstr(text, "State:\tt (tracing stop)\n") && strstr(text, line));
	PROMISE("a stop is told once", waitpid(child, NULL, __WALL | WNOHANG) == 0);
	PROMISE("PTRACE_DETACH: it goes on, and nobody traces it", pt(PTRACE_DETACH, child, 0, 0) == 0 && next(child) == 7 << 8);
}

static volatile long cell = 41;
static const long constant = 51;

static void returns_cell(void)
{
	_exit((int)cell + (int)*(volatile const long *)&constant);
}

static void memory(void)
{
	pid_t child = traced_child(returns_cell);
	errno = 0;
	PROMISE("PTRACE_PEEKDATA", ptrace(PTRACE_PEEKDATA, child, (void *)&cell, 0) == 41 && errno == 0);
	FAILS_WITH("PEEKDATA where nothing is", ptrace(PTRACE_PEEKDATA, child, (void *)8, 0), EIO);
	FAILS_WITH("POKEDATA where nothing is", pt(PTRACE_POKEDATA, child, 8, 1), EIO);
	PROMISE("PTRACE_POKEDATA", pt(PTRACE_POKEDATA, child, (unsigned long)&cell, 1) == 0);
	PROMISE("the parent's copy is its own", cell == 41);
	PROMISE("PTRACE_POKETEXT writes what the program may only read", pt(PTRACE_POKETEXT, child, (unsigned long)&constant, 2) == 0);
	PROMISE("and the file's page keeps its byte", *(volatile const long *)&constant == 51);
	PROMISE("the child reads what was stored", pt(PTRACE_CONT, child, 0, 0) == 0 && next(child) == 3 << 8);
}

static void stores_of_shared(void)
{
	_exit(0);
}

static void shared_memory(void)
{
	long *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(shared != MAP_FAILED);
	pid_t child = traced_child(stores_of_shared);
	PROMISE("POKEDATA of shared memory is seen by all", pt(PTRACE_POKEDATA, child, (unsigned long)shared, 77) == 0 && *shared == 77);
	finish(child);
	NEED(mprotect(shared, 4096, PROT_READ) == 0);
	child = traced_child(stores_of_shared);
	FAILS_WITH("a shared page that may only be read is not written", pt(PTRACE_POKEDATA, child, (unsigned long)shared, 78), EIO);
	finish(child);
	munmap(shared, 4096);
}

static void system_calls(void)
{
	pid_t child = traced_child(calls);
	struct user_regs_struct r;
	NEED(pt(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) == 0);
	int found = 0, status;
	/* Some library calls may come first. */
	for (int i = 0; i < 20 && !found; i++) {
		NEED(pt(PTRACE_SYSCALL, child, 0, 0) == 0);
		status = next(child);
		NEED(is_stop(status, SIGTRAP | 0x80) && pt(PTRACE_GETREGS, child, 0, (unsigned long)&r) == 0);
		found = r.orig_rax == SYS_getppid && (long)r.rax == -ENOSYS;
	}
	PROMISE("PTRACE_SYSCALL stops before the call: number, rax of -ENOSYS", found);
	struct __ptrace_syscall_info info = { 0 };
	PROMISE("PTRACE_GET_SYSCALL_INFO of an entry", pt(PTRACE_GET_SYSCALL_INFO, child, sizeof info, (unsigned long)&info) == 80 &&
		info.op == PTRACE_SYSCALL_INFO_ENTRY && info.entry.nr == SYS_getppid && info.arch == 0xc000003e && info.instruction_pointer == r.rip);
	NEED(pt(PTRACE_SYSCALL, child, 0, 0) == 0 && is_stop(next(child), SIGTRAP | 0x80));
	PROMISE("and of an exit", pt(PTRACE_GET_SYSCALL_INFO, child, sizeof info, (unsigned long)&info) == 33 &&
		info.op == PTRACE_SYSCALL_INFO_EXIT && info.exit.rval == getpid() && !info.exit.is_error);
	PROMISE("the result is in rax", pt(PTRACE_GETREGS, child, 0, (unsigned long)&r) == 0 && r.rax == (unsigned long)getpid());
	/* The tracer replaces the next call, getpid, by another one and changes its result. */
	NEED(pt(PTRACE_SYSCALL, child, 0, 0) == 0 && is_stop(next(child), SIGTRAP | 0x80));
	NEED(pt(PTRACE_GETREGS, child, 0, (unsigned long)&r) == 0 && r.orig_rax == SYS_getpid);
	PROMISE("PTRACE_POKEUSER of orig_rax: -1 is no call",
		pt(PTRACE_POKEUSER, child, offsetof(struct user, regs.orig_rax), -1UL) == 0);
	NEED(pt(PTRACE_SYSCALL, child, 0, 0) == 0 && is_stop(next(child), SIGTRAP | 0x80));
	PROMISE("then rax is what it was", pt(PTRACE_GETREGS, child, 0, (unsigned long)&r) == 0 && (long)r.rax == -ENOSYS);
	r.rax = 5;
	NEED(pt(PTRACE_SETREGS, child, 0, (unsigned long)&r) == 0 && pt(PTRACE_CONT, child, 0, 0) == 0);
	PROMISE("PTRACE_SETREGS: the program goes on with the tracer's result", next(child) == 5 << 8);
}

static void registers(void)
{
	pid_t child = traced_child(nothing);
	struct user_regs_struct r, set;
	struct iovec vector = { &set, sizeof set };
	NEED(pt(PTRACE_GETREGS, child, 0, (unsigned long)&r) == 0);
	PROMISE("PTRACE_GETREGSET of NT_PRSTATUS", pt(PTRACE_GETREGSET, child, NT_PRSTATUS, (unsigned long)&vector) == 0 &&
		vector.iov_len == sizeof r && !memcmp(&r, &set, sizeof r));
	vector.iov_len = 16;
	PROMISE("a part of it", pt(PTRACE_GETREGSET, child, NT_PRSTATUS, (unsigned long)&vector) == 0 && vector.iov_len == 16);
	vector.iov_len = 7;
	FAILS_WITH("not whole words", pt(PTRACE_GETREGSET, child, NT_PRSTATUS, (unsigned long)&vector), EINVAL);
	FAILS_WITH("an unknown set", pt(PTRACE_GETREGSET, child, 0x1234, (unsigned long)&vector), EINVAL);
	errno = 0;
	PROMISE("PTRACE_PEEKUSER", (unsigned long)ptrace(PTRACE_PEEKUSER, child, (void *)offsetof(struct user, regs.rip), 0) == r.rip && errno == 0);
	FAILS_WITH("between words", ptrace(PTRACE_PEEKUSER, child, (void *)4, 0), EIO);
	FAILS_WITH("beyond struct user", ptrace(PTRACE_PEEKUSER, child, (void *)928, 0), EIO);
	FAILS_WITH("a kernel selector", pt(PTRACE_POKEUSER, child, offsetof(struct user, regs.cs), 0x10), EIO);
	FAILS_WITH("a kernel base", pt(PTRACE_POKEUSER, child, offsetof(struct user, regs.fs_base), 1UL << 63), EIO);
	PROMISE("flags of the kernel stay", pt(PTRACE_POKEUSER, child, offsetof(struct user, regs.eflags), 0) == 0 &&
		(ptrace(PTRACE_PEEKUSER, child, (void *)offsetof(struct user, regs.eflags), 0) & 0x202) == 0x202);
	struct user_fpregs_struct f, g;
	NEED(pt(PTRACE_GETFPREGS, child, 0, (unsigned long)&f) == 0);
	PROMISE("PTRACE_GETFPREGS", f.cwd == 0x37f && f.mxcsr == 0x1f80);
	f.xmm_space[60] = 0x12345678;
	NEED(pt(PTRACE_SETFPREGS, child, 0, (unsigned long)&f) == 0 && pt(PTRACE_GETFPREGS, child, 0, (unsigned long)&g) == 0);
	PROMISE("PTRACE_SETFPREGS", g.xmm_space[60] == 0x12345678);
	f.mxcsr = 0x80000000;
	FAILS_WITH("an MXCSR that the CPU refuses", pt(PTRACE_SETFPREGS, child, 0, (unsigned long)&f), EINVAL);
	unsigned char area[16384];
	vector = (struct iovec){ area, sizeof area };
	PROMISE("PTRACE_GETREGSET of NT_X86_XSTATE has the same", pt(PTRACE_GETREGSET, child, NT_X86_XSTATE, (unsigned long)&vector) == 0 &&
		vector.iov_len >= 576 && *(unsigned *)(area + 160 + 240) == 0x12345678);
	PROMISE("it tells the components", (*(unsigned long *)(area + 464) & 3) == 3);
	unsigned long mask = 0, all = ~0UL;
	PROMISE("PTRACE_SETSIGMASK and GETSIGMASK: all but SIGKILL and SIGSTOP", pt(PTRACE_SETSIGMASK, child, 8, (unsigned long)&all) == 0 &&
		pt(PTRACE_GETSIGMASK, child, 8, (unsigned long)&mask) == 0 && mask == (~0UL & ~(1UL << 8) & ~(1UL << 18)));
	FAILS_WITH("a mask of another size", pt(PTRACE_GETSIGMASK, child, 4, (unsigned long)&mask), EINVAL);
	finish(child);
}

static void computes(void)
{
	for (volatile int i = 0; i < 1000; i++)
		;
}

static void steps(void)
{
	pid_t child = traced_child(computes);
	struct user_regs_struct before, after;
	NEED(pt(PTRACE_GETREGS, child, 0, (unsigned long)&before) == 0);
	int stepped = 1, moved = 0;
	for (int i = 0; i < 200 && stepped; i++) {
		stepped = pt(PTRACE_SINGLESTEP, child, 0, 0) == 0 && is_stop(next(child), SIGTRAP);
		NEED(!stepped || pt(PTRACE_GETREGS, child, 0, (unsigned long)&after) == 0);
		moved += after.rip != before.rip;
		stepped = stepped && !(after.eflags & 0x100);
		before = after;
	}
	PROMISE("PTRACE_SINGLESTEP: one instruction each, and TF does not show", stepped && moved == 200);
	PROMISE("then it goes on", pt(PTRACE_CONT, child, 0, 0) == 0 && WIFEXITED(next(child)));
}

static void breaks(void)
{
	__asm__ volatile("int3" ::: "memory");
	_exit(8);
}

static void breakpoints(void)
{
	pid_t child = traced_child(breaks);
	siginfo_t info;
	NEED(pt(PTRACE_CONT, child, 0, 0) == 0);
	PROMISE("int3 stops with SIGTRAP", is_stop(next(child), SIGTRAP));
	PROMISE("from the kernel", pt(PTRACE_GETSIGINFO, child, 0, (unsigned long)&info) == 0 && info.si_code == 0x80);
	PROMISE("which is not delivered", pt(PTRACE_CONT, child, 0, 0) == 0 && next(child) == 8 << 8);
}

static void forks(void)
{
	pid_t child = fork();
	if (child == 0)
		_exit(3);
	int status;
	waitpid(child, &status, 0);
	_exit(WEXITSTATUS(status) + 1);
}

static void follows(int seize)
{
	int options = PTRACE_O_TRACEFORK | PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL;
	pid_t child = traced_child(forks);
	unsigned long message;
	if (seize) {
		NEED(pt(PTRACE_DETACH, child, 0, SIGSTOP) == 0);
		int status;
		NEED(waitpid(child, &status, WUNTRACED) == child && pt(PTRACE_SEIZE, child, 0, options) == 0);
		PROMISE("PTRACE_SEIZE of a stopped process: its stop is an event", next(child) == (SIGSTOP << 8 | 0x7f | PTRACE_EVENT_STOP << 16));
		NEED(pt(PTRACE_LISTEN, child, 0, 0) == 0 && kill(child, SIGCONT) == 0);
		PROMISE("PTRACE_LISTEN tells of SIGCONT", next(child) == (SIGTRAP << 8 | 0x7f | PTRACE_EVENT_STOP << 16));
		NEED(pt(PTRACE_CONT, child, 0, 0) == 0 && is_stop(next(child), SIGCONT));
		FAILS_WITH("PTRACE_LISTEN at another stop", pt(PTRACE_LISTEN, child, 0, 0), EIO);
		NEED(pt(PTRACE_CONT, child, 0, 0) == 0);
	} else {
		NEED(pt(PTRACE_SETOPTIONS, child, 0, options) == 0 && pt(PTRACE_CONT, child, 0, 0) == 0);
	}
	int status = next(child);
	PROMISE("PTRACE_O_TRACEFORK: fork stops", status == (SIGTRAP << 8 | 0x7f | PTRACE_EVENT_FORK << 16));
	NEED(pt(PTRACE_GETEVENTMSG, child, 0, (unsigned long)&message) == 0);
	pid_t grandchild = (pid_t)message;
	status = next(grandchild);
	PROMISE("its child is traced from its start", status == (seize ? SIGTRAP << 8 | 0x7f | PTRACE_EVENT_STOP << 16 : SIGSTOP << 8 | 0x7f));
	NEED(pt(PTRACE_CONT, child, 0, 0) == 0 && pt(PTRACE_CONT, grandchild, 0, 0) == 0);
	status = next(grandchild);
	PROMISE("PTRACE_O_TRACEEXIT: the end stops, its status is the message", EVENT(status) == PTRACE_EVENT_EXIT &&
		pt(PTRACE_GETEVENTMSG, grandchild, 0, (unsigned long)&message) == 0 && message == 3 << 8);
	NEED(pt(PTRACE_CONT, grandchild, 0, 0) == 0);
	PROMISE("the tracer is told of the end first", next(grandchild) == 3 << 8);
	do {
		status = next(child);
		NEED(status != -1);
		if (is_stop(status, SIGCHLD))
			NEED(pt(PTRACE_CONT, child, 0, SIGCHLD) == 0);
	} while (is_stop(status, SIGCHLD));
	NEED(EVENT(status) == PTRACE_EVENT_EXIT && pt(PTRACE_CONT, child, 0, 0) == 0);
	PROMISE("and its parent then", next(child) == 4 << 8);
}

static void sleeps(void)
{
	struct timespec left = { .tv_sec = 1000 };
	_exit(nanosleep(&left, NULL) == 0 ? 1 : 2);
}

static void interrupting(void)
{
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		sleeps();
	}
	sleep_ms(20);
	FAILS_WITH("PTRACE_SEIZE with an address", pt(PTRACE_SEIZE, child, 1, 0), EIO);
	FAILS_WITH("with unknown options", pt(PTRACE_SEIZE, child, 0, 1 << 15), EIO);
	PROMISE("PTRACE_SEIZE stops nothing", pt(PTRACE_SEIZE, child, 0, PTRACE_O_EXITKILL) == 0 && waitpid(child, NULL, __WALL | WNOHANG) == 0);
	FAILS_WITH("one that runs has no registers", pt(PTRACE_GETREGS, child, 0, (unsigned long)&child), ESRCH);
	PROMISE("PTRACE_INTERRUPT stops it", pt(PTRACE_INTERRUPT, child, 0, 0) == 0 && next(child) == (SIGTRAP << 8 | 0x7f | PTRACE_EVENT_STOP << 16));
	struct user_regs_struct r;
	NEED(pt(PTRACE_GETREGS, child, 0, (unsigned long)&r) == 0);
	PROMISE("in a call that is to be made again", (long)r.orig_rax >= 0 && ((long)r.rax == -516 || (long)r.rax == -514));
	NEED(pt(PTRACE_CONT, child, 0, 0) == 0);
	sleep_ms(20);
	PROMISE("which it is", waitpid(child, NULL, __WALL | WNOHANG) == 0 && pt(PTRACE_INTERRUPT, child, 0, 0) == 0 && next(child) > 0);
	/* The second request comes before the thread has left the first stop. */
	int stops = 0;
	for (int i = 0; i < 100; i++) {
		int status = 0, patience = 10000;
		NEED(pt(PTRACE_CONT, child, 0, 0) == 0 && pt(PTRACE_INTERRUPT, child, 0, 0) == 0);
		while (patience-- > 0 && waitpid(child, &status, __WALL | WNOHANG) == 0)
			sleep_ms(1);
		if (status >> 8 != (SIGTRAP | PTRACE_EVENT_STOP << 8))
			break;
		stops++;
	}
	PROMISE("continuing and interrupting at once stops it each time", stops == 100);
	NEED(pt(PTRACE_CONT, child, 0, 0) == 0);
	sleep_ms(20);
	NEED(pt(PTRACE_INTERRUPT, child, 0, 0) == 0 && next(child) > 0);
	NEED(pt(PTRACE_GETREGS, child, 0, (unsigned long)&r) == 0);
	r.orig_rax = -1UL;
	r.rax = -EIO;
	PROMISE("a tracer has it end instead", pt(PTRACE_SETREGS, child, 0, (unsigned long)&r) == 0 && pt(PTRACE_CONT, child, 0, 0) == 0 && next(child) == 2 << 8);

	child = fork();
	NEED(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		sleeps();
	}
	sleep_ms(20);
	PROMISE("PTRACE_ATTACH sends SIGSTOP", pt(PTRACE_ATTACH, child, 0, 0) == 0 && is_stop(next(child), SIGSTOP));
	FAILS_WITH("PTRACE_INTERRUPT is for what was seized", pt(PTRACE_INTERRUPT, child, 0, 0), EIO);
	NEED(pt(PTRACE_CONT, child, 0, 0) == 0 && kill(child, SIGUSR1) == 0);
	PROMISE("a signal stops it before it is delivered", is_stop(next(child), SIGUSR1));
	siginfo_t info = { .si_signo = SIGUSR2, .si_code = SI_QUEUE, .si_pid = 77 };
	NEED(pt(PTRACE_SETSIGINFO, child, 0, (unsigned long)&info) == 0);
	PROMISE("the tracer swaps it for another", pt(PTRACE_CONT, child, 0, SIGUSR2) == 0 && next(child) == SIGUSR2);
}

static void execs(void)
{
	char *words[] = { "/proc/self/exe", "there", NULL };
	execv(words[0], words);
	_exit(9);
}

static void executing(void)
{
	pid_t child = traced_child(execs);
	NEED(pt(PTRACE_CONT, child, 0, 0) == 0);
	PROMISE("execve sends SIGTRAP", is_stop(next(child), SIGTRAP) && pt(PTRACE_CONT, child, 0, 0) == 0 && next(child) == 11 << 8);
	child = traced_child(execs);
	NEED(pt(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACEEXEC) == 0 && pt(PTRACE_CONT, child, 0, 0) == 0);
	unsigned long message = 0;
	struct user_regs_struct r = { 0 };
	PROMISE("PTRACE_O_TRACEEXEC: an event instead", next(child) == (SIGTRAP << 8 | 0x7f | PTRACE_EVENT_EXEC << 16));
	PROMISE("its message is the former thread", pt(PTRACE_GETEVENTMSG, child, 0, (unsigned long)&message) == 0 && message == (unsigned long)child);
	PROMISE("the call is execve", pt(PTRACE_GETREGS, child, 0, (unsigned long)&r) == 0 && r.orig_rax == SYS_execve && (long)r.rax == -ENOSYS);
	NEED(pt(PTRACE_CONT, child, 0, 0) == 0);
	PROMISE("then it goes on", next(child) == 11 << 8);
}

static void *thread_body(void *value)
{
	sleep_ms(10);
	return value;
}

static void threaded(void)
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, thread_body, NULL) != 0)
		_exit(1);
	pthread_join(thread, NULL);
	_exit(6);
}

static void threads(void)
{
	pid_t child = traced_child(threaded);
	unsigned long message = 0;
	NEED(pt(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACECLONE) == 0 && pt(PTRACE_CONT, child, 0, 0) == 0);
	PROMISE("PTRACE_O_TRACECLONE: a thread stops its maker", next(child) == (SIGTRAP << 8 | 0x7f | PTRACE_EVENT_CLONE << 16) &&
		pt(PTRACE_GETEVENTMSG, child, 0, (unsigned long)&message) == 0 && message > 0);
	pid_t tid = (pid_t)message;
	PROMISE("and itself", is_stop(next(tid), SIGSTOP));
	NEED(pt(PTRACE_CONT, tid, 0, 0) == 0 && pt(PTRACE_CONT, child, 0, 0) == 0);
	PROMISE("its end is told by its own ID", WIFEXITED(next(tid)));
	PROMISE("then that of the process", next(child) == 6 << 8);
}

static void tracer_ends(void)
{
	int ends[2];
	NEED(pipe(ends) == 0);
	for (int kills = 0; kills < 2; kills++) {
		fflush(stdout);
		pid_t victim = fork();
		NEED(victim >= 0);
		if (victim == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			char byte;
			_exit(read(ends[0], &byte, 1) == 1 ? 12 : 13);
		}
		pid_t tracer = fork();
		NEED(tracer >= 0);
		if (tracer == 0)
			_exit(pt(PTRACE_SEIZE, victim, 0, kills ? PTRACE_O_EXITKILL : 0) != 0);
		NEED(next(tracer) == 0);
		if (!kills)
			NEED(write(ends[1], "x", 1) == 1);
		PROMISE(kills ? "PTRACE_O_EXITKILL: tracees end with their tracer" : "without a tracer its tracees go on",
			next(victim) == (kills ? SIGKILL : 12 << 8));
	}
	close(ends[0]);
	close(ends[1]);
}

/* Executes a program; returns the address of its stack. */
static unsigned long stack_of_program(void)
{
	int ends[2];
	unsigned long at = 0;
	NEED(pipe(ends) == 0);
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		char *words[] = { "/proc/self/exe", "stack", NULL };
		dup2(ends[1], 1);
		execv(words[0], words);
		_exit(9);
	}
	NEED(next(child) == 0 && read(ends[0], &at, sizeof at) == sizeof at);
	close(ends[0]);
	close(ends[1]);
	return at;
}

static void personalities(void)
{
	PROMISE("personality tells what there is", personality(0xffffffff) == 0);
	PROMISE("programs begin anywhere", stack_of_program() != stack_of_program());
	PROMISE("ADDR_NO_RANDOMIZE", personality(ADDR_NO_RANDOMIZE) == 0 && personality(0xffffffff) == ADDR_NO_RANDOMIZE);
	PROMISE("they begin at the same addresses", stack_of_program() == stack_of_program());
	PROMISE("until it is taken back", personality(0) == ADDR_NO_RANDOMIZE && stack_of_program() != stack_of_program());
}

#define SET_ID "/tmp/tracing-set-id"

/* Returns the exit status of a set-user-ID program of root that a user executes. If `traces`, the
 * user also traces it. */
static int set_id_program(int traces)
{
	char bytes[65536];
	ssize_t count;
	int from = open("/proc/self/exe", O_RDONLY), to = open(SET_ID, O_CREAT | O_TRUNC | O_WRONLY, 0755);
	NEED(from >= 0 && to >= 0);
	while ((count = read(from, bytes, sizeof bytes)) > 0)
		NEED(write(to, bytes, count) == count);
	NEED(fchmod(to, 04755) == 0 && close(to) == 0 && close(from) == 0);
	fflush(stdout);
	pid_t user = fork();
	NEED(user >= 0);
	if (user == 0) {
		if (setgid(1000) != 0 || setuid(1000) != 0)
			_exit(1);
		pid_t child = fork();
		if (child == 0) {
			char *words[] = { SET_ID, "whose", NULL };
			if (traces && pt(PTRACE_TRACEME, 0, 0, 0) != 0)
				_exit(2);
			execv(SET_ID, words);
			_exit(3);
		}
		int status;
		while ((status = next(child)) != -1 && WIFSTOPPED(status))
			pt(PTRACE_CONT, child, 0, 0);
		_exit(WEXITSTATUS(status));
	}
	return WEXITSTATUS(next(user));
}

static void rights(void)
{
	if (geteuid() != 0)
		return;
	fflush(stdout);
	pid_t root = fork();
	NEED(root >= 0);
	if (root == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	pid_t user = fork();
	NEED(user >= 0);
	if (user == 0) {
		if (setgid(1000) != 0 || setuid(1000) != 0)
			_exit(1);
		int refused = pt(PTRACE_ATTACH, root, 0, 0) == -1 && errno == EPERM;
		int seized = pt(PTRACE_SEIZE, root, 0, 0) == -1 && errno == EPERM;
		_exit(refused && seized ? 0 : 2);
	}
	PROMISE("a user does not trace root", next(user) == 0);
	finish(root);
	for (int traces = 0; traces < 2; traces++)
		PROMISE(traces ? "a set-id program that a user traces gets no rights" : "a set-id program gets its owner's rights",
			set_id_program(traces) == (traces ? 21 : 22));
	unlink(SET_ID);
}

int main(int count, char **words)
{
	if (count == 2 && !strcmp(words[1], "there"))
		return 11;
	if (count == 2 && !strcmp(words[1], "whose"))
		return geteuid() == 0 ? 22 : 21;
	if (count == 2 && !strcmp(words[1], "stack")) {
		unsigned long here = (unsigned long)&words;
		return write(1, &here, sizeof here) != sizeof here;
	}
	start_and_end();
	memory();
	shared_memory();
	system_calls();
	registers();
	steps();
	breakpoints();
	follows(0);
	follows(1);
	interrupting();
	executing();
	threads();
	tracer_ends();
	personalities();
	rights();
	return conclude();
}
