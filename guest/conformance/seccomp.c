/*
 * seccomp(2): the right to install a filter, the programs that are valid filters, the effects of
 * their verdicts, their inheritance by fork, threads and execve, and their reports to a tracer.
 */
#include "promise.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/user.h>

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define SAY(what) BPF_STMT(BPF_RET | BPF_K, what)
/* A verdict for one call; all else is allowed. */
#define ABOUT(call, what) { LOAD(nr), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), SAY(what), SAY(SECCOMP_RET_ALLOW) }
#define PROGRAM(name, ...) \
	struct sock_filter name##_code[] = __VA_ARGS__; \
	struct sock_fprog name = { sizeof name##_code / sizeof *name##_code, name##_code }

static long seccomp(unsigned operation, unsigned long flags, void *arguments)
{
	return syscall(SYS_seccomp, operation, flags, arguments);
}

static void bind_oneself(void)
{
	NEED(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
}

/* Whether the kernel accepts a filter of these instructions; EINVAL means no. */
static int is_taken(struct sock_filter *code, unsigned short count)
{
	struct sock_fprog program = { count, code };
	long taken = seccomp(SECCOMP_SET_MODE_FILTER, 0, &program);
	return taken == 0 ? 1 : errno == EINVAL ? 0 : -1;
}

static int status_row(const char *row)
{
	char line[200];
	FILE *file = fopen("/proc/thread-self/status", "r");
	int value = -1;
	while (file && fgets(line, sizeof line, file))
		if (strncmp(line, row, strlen(row)) == 0 && line[strlen(row)] == ':')
			value = atoi(line + strlen(row) + 1);
	if (file)
		fclose(file);
	return value;
}

static void operations(void)
{
	unsigned known[] = { SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_KILL_THREAD, SECCOMP_RET_TRAP, SECCOMP_RET_ERRNO, SECCOMP_RET_TRACE,
			     SECCOMP_RET_LOG, SECCOMP_RET_ALLOW };
	int all = 1;
	for (unsigned i = 0; i < sizeof known / sizeof *known; i++)
		all &= seccomp(SECCOMP_GET_ACTION_AVAIL, 0, &known[i]) == 0;
	PROMISE("the actions are available", all);
	unsigned odd = 0x12340000, with_data = SECCOMP_RET_ERRNO | 1;
	FAILS_WITH("others are not", seccomp(SECCOMP_GET_ACTION_AVAIL, 0, &odd), EOPNOTSUPP);
	FAILS_WITH("nor one with data", seccomp(SECCOMP_GET_ACTION_AVAIL, 0, &with_data), EOPNOTSUPP);
	FAILS_WITH("asking has no flags", seccomp(SECCOMP_GET_ACTION_AVAIL, 1, &odd), EINVAL);
	FAILS_WITH("an action is read", seccomp(SECCOMP_GET_ACTION_AVAIL, 0, (void *)8), EFAULT);
	FAILS_WITH("no such operation", seccomp(99, 0, NULL), EINVAL);
	FAILS_WITH("strict has no flags", seccomp(SECCOMP_SET_MODE_STRICT, 1, NULL), EINVAL);
	FAILS_WITH("nor arguments", seccomp(SECCOMP_SET_MODE_STRICT, 0, &odd), EINVAL);
	FAILS_WITH("a filter has no unknown flag", seccomp(SECCOMP_SET_MODE_FILTER, 1ul << 20, NULL), EINVAL);
	FAILS_WITH("a program is read", seccomp(SECCOMP_SET_MODE_FILTER, 0, (void *)8), EFAULT);
	FAILS_WITH("prctl has two modes", prctl(PR_SET_SECCOMP, 3, 0, 0, 0), EINVAL);
	PROMISE("nothing is given up at first", prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 0 && status_row("Seccomp") == 0);
	int status;
	IN_CHILD(status, {
		PROGRAM(allow, { SAY(SECCOMP_RET_ALLOW) });
		if (setresuid(1000, 1000, 1000) != 0 || seccomp(SECCOMP_SET_MODE_FILTER, 0, &allow) != -1 || errno != EACCES)
			_exit(1);
		bind_oneself();
		_exit(seccomp(SECCOMP_SET_MODE_FILTER, 0, &allow) != 0);
	});
	PROMISE("who may gain rights may not filter", status == 0);
}

static void programs(void)
{
	int status;
	IN_CHILD(status, {
		bind_oneself();
		struct sock_filter bad[] = {
			BPF_STMT(BPF_LD | BPF_W | BPF_ABS, sizeof(struct seccomp_data)), BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 2),
			BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 0), BPF_STMT(BPF_LD | BPF_W | BPF_IND, 0), BPF_STMT(BPF_LDX | BPF_B | BPF_MSH, 0),
			BPF_STMT(BPF_ALU | BPF_DIV | BPF_K, 0), BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, 3), BPF_STMT(BPF_ALU | BPF_LSH | BPF_K, 32),
			BPF_STMT(BPF_ST, 16), BPF_STMT(BPF_LD | BPF_MEM, 0), BPF_STMT(BPF_JMP | BPF_JA, 1), BPF_STMT(BPF_JMP | BPF_JA, -1),
			BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1), BPF_STMT(0xffff, 0),
		};
		for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
			struct sock_filter code[] = { bad[i], SAY(SECCOMP_RET_ALLOW) };
			if (is_taken(code, 2) != 0)
				_exit(10 + i);
		}
		struct sock_filter endless[] = { BPF_STMT(BPF_MISC | BPF_TAX, 0) };
		static struct sock_filter many[4097];
		for (int i = 0; i < 4097; i++)
			many[i] = (struct sock_filter)SAY(SECCOMP_RET_ALLOW);
		if (is_taken(endless, 1) != 0 || is_taken(many, 0) != 0 || is_taken(many, 4097) != 0)
			_exit(2);
		struct sock_filter all_ways[] = { LOAD(args[0]), BPF_STMT(BPF_ST, 1), BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 1, 0, 1),
			BPF_STMT(BPF_LD | BPF_MEM, 1), SAY(SECCOMP_RET_ALLOW) };
		if (is_taken(all_ways, 5) != 1)
			_exit(3);
		_exit(status_row("Seccomp") == 2 && status_row("Seccomp_filters") == 1 && prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 2 ? 0 : 4);
	});
	PROMISE("programs that may not run are refused, others are not", status == 0);
	IN_CHILD(status, {
		bind_oneself();
		/* Reads the third argument, the upper half of the fourth, and the architecture. */
		PROGRAM(arguments, { LOAD(arch), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 0, 9), LOAD(nr),
			BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_dup3, 0, 7), LOAD(args[2]), BPF_STMT(BPF_MISC | BPF_TAX, 0),
			BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[3]) + 4), BPF_STMT(BPF_ALU | BPF_ADD | BPF_X, 0),
			BPF_STMT(BPF_ALU | BPF_OR | BPF_K, SECCOMP_RET_ERRNO), BPF_JUMP(BPF_JMP | BPF_JA, 0, 0, 0), BPF_STMT(BPF_RET | BPF_A, 0),
			SAY(SECCOMP_RET_ALLOW) });
		if (seccomp(SECCOMP_SET_MODE_FILTER, 0, &arguments) != 0)
			_exit(1);
		errno = 0;
		_exit(syscall(SYS_dup3, 1, 2, 40, 60ul << 32) == -1 && errno == 100 ? 0 : 2);
	});
	PROMISE("a program sees arguments and architecture", status == 0);
	IN_CHILD(status, {
		bind_oneself();
		static struct sock_filter large[4096];
		for (int i = 0; i < 4096; i++)
			large[i] = (struct sock_filter)SAY(SECCOMP_RET_ALLOW);
		int taken = 0;
		while (taken < 100 && is_taken(large, 4096) == 1)
			taken++;
		_exit(taken < 2 || taken > 8 || errno != ENOMEM);
	});
	PROMISE("a chain of filters has an end", status == 0);
}

static volatile sig_atomic_t caught;
static siginfo_t told;

static void on_sys(int number, siginfo_t *info, void *context)
{
	caught = number;
	told = *info;
	(void)context;
}

static void verdicts(void)
{
	int status;
	IN_CHILD(status, {
		bind_oneself();
		PROGRAM(seven, ABOUT(SYS_getpgid, SECCOMP_RET_ERRNO | 7));
		PROGRAM(nothing, ABOUT(SYS_getsid, SECCOMP_RET_ERRNO));
		PROGRAM(much, ABOUT(SYS_getuid, SECCOMP_RET_ERRNO | 0xffff));
		if (seccomp(SECCOMP_SET_MODE_FILTER, 0, &seven) || prctl(PR_SET_SECCOMP, 2, &nothing, 0, 0) || seccomp(SECCOMP_SET_MODE_FILTER, 0, &much))
			_exit(1);
		errno = 0;
		_exit(syscall(SYS_getpgid, 0) != -1 || errno != 7 || syscall(SYS_getsid, 0) != 0 || syscall(SYS_getuid) != -1 || errno != 4095);
	});
	PROMISE("a call fails with the errno that a filter says", status == 0);
	IN_CHILD(status, {
		bind_oneself();
		PROGRAM(first, ABOUT(SYS_getpgid, SECCOMP_RET_ERRNO | 7));
		PROGRAM(second, ABOUT(SYS_getpgid, SECCOMP_RET_ERRNO | 8));
		PROGRAM(third, ABOUT(SYS_getpgid, SECCOMP_RET_ALLOW));
		seccomp(SECCOMP_SET_MODE_FILTER, 0, &first);
		seccomp(SECCOMP_SET_MODE_FILTER, 0, &second);
		seccomp(SECCOMP_SET_MODE_FILTER, 0, &third);
		errno = 0;
		_exit(syscall(SYS_getpgid, 0) != -1 || errno != 8);
	});
	PROMISE("the strictest verdict counts, of equals the newest", status == 0);
	IN_CHILD(status, {
		bind_oneself();
		struct sigaction action = { .sa_sigaction = on_sys, .sa_flags = SA_SIGINFO };
		sigaction(SIGSYS, &action, NULL);
		PROGRAM(trap, ABOUT(SYS_getpgid, SECCOMP_RET_TRAP | 77));
		seccomp(SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_LOG, &trap);
		long result = syscall(SYS_getpgid, 0);
		_exit(result != SYS_getpgid || caught != SIGSYS || told.si_code != 1 || told.si_errno != 77 || told.si_syscall != SYS_getpgid ||
		      told.si_arch != AUDIT_ARCH_X86_64 || told.si_call_addr == NULL);
	});
	PROMISE("a trap is SIGSYS with the call, and rax is its number", status == 0);
	IN_CHILD(status, {
		bind_oneself();
		signal(SIGSYS, SIG_IGN);
		PROGRAM(trap, ABOUT(SYS_getpgid, SECCOMP_RET_TRAP));
		seccomp(SECCOMP_SET_MODE_FILTER, 0, &trap);
		syscall(SYS_getpgid, 0);
		_exit(0);
	});
	PROMISE("a trap that is ignored kills", WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
	IN_CHILD(status, {
		bind_oneself();
		struct sigaction action = { .sa_sigaction = on_sys, .sa_flags = SA_SIGINFO };
		sigaction(SIGSYS, &action, NULL);
		PROGRAM(kill, ABOUT(SYS_getpgid, SECCOMP_RET_KILL_PROCESS));
		seccomp(SECCOMP_SET_MODE_FILTER, 0, &kill);
		syscall(SYS_getpgid, 0);
		_exit(0);
	});
	PROMISE("a kill asks no handler", WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
	IN_CHILD(status, {
		bind_oneself();
		PROGRAM(unknown, ABOUT(SYS_getpgid, 0x00010000));
		seccomp(SECCOMP_SET_MODE_FILTER, 0, &unknown);
		syscall(SYS_getpgid, 0);
		_exit(0);
	});
	PROMISE("an action that is not known kills", WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
	IN_CHILD(status, {
		bind_oneself();
		PROGRAM(log, ABOUT(SYS_getpgid, SECCOMP_RET_LOG));
		PROGRAM(trace, ABOUT(SYS_getsid, SECCOMP_RET_TRACE));
		PROGRAM(divide, { LOAD(nr), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getuid, 0, 2), BPF_STMT(BPF_LDX | BPF_IMM, 0),
			BPF_STMT(BPF_ALU | BPF_DIV | BPF_X, 0), SAY(SECCOMP_RET_ALLOW) });
		seccomp(SECCOMP_SET_MODE_FILTER, 0, &log);
		seccomp(SECCOMP_SET_MODE_FILTER, 0, &trace);
		seccomp(SECCOMP_SET_MODE_FILTER, 0, &divide);
		errno = 0;
		if (syscall(SYS_getpgid, 0) < 0 || syscall(SYS_getsid, 0) != -1 || errno != ENOSYS)
			_exit(1);
		syscall(SYS_getuid);
		_exit(2);
	});
	PROMISE("what is logged is made, what nobody traces is ENOSYS, and a division by zero kills", WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
	IN_CHILD(status, {
		if (prctl(PR_SET_SECCOMP, 1, 0, 0, 0) != 0)
			syscall(SYS_exit, 1);
		if (syscall(SYS_write, 1, "", 0) == 0)
			syscall(SYS_exit, 42);
		syscall(SYS_exit, 2);
	});
	PROMISE("a strict thread writes and exits", WIFEXITED(status) && WEXITSTATUS(status) == 42);
	IN_CHILD(status, {
		seccomp(SECCOMP_SET_MODE_STRICT, 0, NULL);
		syscall(SYS_getpid);
		syscall(SYS_exit, 1);
	});
	PROMISE("and is killed for anything else", WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	IN_CHILD(status, {
		bind_oneself();
		PROGRAM(allow, { SAY(SECCOMP_RET_ALLOW) });
		seccomp(SECCOMP_SET_MODE_FILTER, 0, &allow);
		_exit(seccomp(SECCOMP_SET_MODE_STRICT, 0, NULL) != -1 || errno != EINVAL);
	});
	PROMISE("who has filters is not strict", status == 0);
}

static pthread_barrier_t both, done;
static volatile long seen;

static void *other_thread(void *own)
{
	struct sock_fprog *program = own;
	if (program)
		NEED(seccomp(SECCOMP_SET_MODE_FILTER, 0, program) == 0);
	pthread_barrier_wait(&both);
	pthread_barrier_wait(&done);
	errno = 0;
	seen = syscall(SYS_getpgid, 0) == -1 ? errno : 0;
	return NULL;
}

static long installed, all_installed, checked, escaped;

/* Checks that a thread has all filters that were installed for all threads before the check
 * began. */
static void *counting_thread(void *unused)
{
	long least = __atomic_load_n(&installed, __ATOMIC_SEQ_CST);
	if (status_row("Seccomp_filters") < least)
		__atomic_fetch_add(&escaped, 1, __ATOMIC_SEQ_CST);
	return unused;
}

static void *making_thread(void *unused)
{
	while (!__atomic_load_n(&all_installed, __ATOMIC_SEQ_CST)) {
		pthread_t thread;
		if (pthread_create(&thread, NULL, counting_thread, NULL) == 0)
			pthread_join(thread, NULL);
		__atomic_fetch_add(&checked, 1, __ATOMIC_SEQ_CST);
	}
	return unused;
}

/* Installs a filter of its own at some moment, and reports the number of its filters then. */
static void *adding_thread(void *delay)
{
	PROGRAM(allow, { SAY(SECCOMP_RET_ALLOW) });
	pthread_barrier_wait(&both);
	for (volatile long turn = 0; turn < (long)delay; turn++)
		;
	NEED(seccomp(SECCOMP_SET_MODE_FILTER, 0, &allow) == 0);
	seen = status_row("Seccomp_filters");
	return NULL;
}

static void *dying_thread(void *unused)
{
	syscall(SYS_getpgid, 0);
	seen = 1;
	return unused;
}

static void kept(char *self)
{
	int status;
	IN_CHILD(status, {
		bind_oneself();
		PROGRAM(seven, ABOUT(SYS_getpgid, SECCOMP_RET_ERRNO | 7));
		seccomp(SECCOMP_SET_MODE_FILTER, 0, &seven);
		pid_t child = fork();
		if (child == 0) {
			execl(self, self, "filtered", NULL);
			_exit(1);
		}
		int ended;
		waitpid(child, &ended, 0);
		_exit(WIFEXITED(ended) && WEXITSTATUS(ended) == 7 ? 0 : 1);
	});
	PROMISE("fork and execve keep filters", status == 0);
	for (int own = 0; own < 2; own++) {
		IN_CHILD(status, {
			bind_oneself();
			PROGRAM(allow, { SAY(SECCOMP_RET_ALLOW) });
			PROGRAM(seven, ABOUT(SYS_getpgid, SECCOMP_RET_ERRNO | 7));
			pthread_t thread;
			pthread_barrier_init(&both, NULL, 2);
			pthread_barrier_init(&done, NULL, 2);
			pthread_create(&thread, NULL, other_thread, own ? &allow : NULL);
			pthread_barrier_wait(&both);
			long result = seccomp(SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &seven);
			pthread_barrier_wait(&done);
			pthread_join(thread, NULL);
			_exit(own ? result <= 0 || seen != 0 || syscall(SYS_getpgid, 0) < 0 : result != 0 || seen != 7);
		});
		PROMISE(own ? "a thread with filters of its own is named, and nothing changes" : "all threads get a filter", status == 0);
	}
	IN_CHILD(status, {
		bind_oneself();
		PROGRAM(allow, { SAY(SECCOMP_RET_ALLOW) });
		pthread_t makers[2];
		for (int i = 0; i < 2; i++)
			NEED(pthread_create(&makers[i], NULL, making_thread, NULL) == 0);
		for (int i = 0; i < 150; i++) {
			if (seccomp(SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &allow) != 0)
				_exit(2);
			__atomic_fetch_add(&installed, 1, __ATOMIC_SEQ_CST);
			/* Without this wait, the next install would hide that this one missed a
			 * thread. */
			long looked = __atomic_load_n(&checked, __ATOMIC_SEQ_CST);
			while (__atomic_load_n(&checked, __ATOMIC_SEQ_CST) < looked + 4)
				sched_yield();
		}
		__atomic_store_n(&all_installed, 1, __ATOMIC_SEQ_CST);
		for (int i = 0; i < 2; i++)
			pthread_join(makers[i], NULL);
		_exit(escaped != 0);
	});
	PROMISE("no thread that is being made escapes", status == 0);
	int lost = 0;
	for (int round = 0; round < 30; round++) {
		IN_CHILD(status, {
			bind_oneself();
			PROGRAM(allow, { SAY(SECCOMP_RET_ALLOW) });
			pthread_t thread;
			pthread_barrier_init(&both, NULL, 2);
			NEED(pthread_create(&thread, NULL, adding_thread, (void *)(round * 1000l)) == 0);
			pthread_barrier_wait(&both);
			/* Installs filters until the other thread has one of its own. */
			long given = 0;
			while (given < 3000 && seccomp(SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &allow) == 0)
				given++;
			pthread_join(thread, NULL);
			_exit(given < 3000 && seen != given + 1);
		});
		lost += status != 0;
	}
	PROMISE("who installs a filter loses none that it is given meanwhile", lost == 0);
	IN_CHILD(status, {
		bind_oneself();
		PROGRAM(kill, ABOUT(SYS_getpgid, SECCOMP_RET_KILL_THREAD));
		seccomp(SECCOMP_SET_MODE_FILTER, 0, &kill);
		pthread_t thread;
		pthread_create(&thread, NULL, dying_thread, NULL);
		pthread_join(thread, NULL);
		_exit(seen);
	});
	PROMISE("one thread is killed, the others go on", status == 0);
	IN_CHILD(status, {
		bind_oneself();
		PROGRAM(kill, ABOUT(SYS_getpgid, SECCOMP_RET_KILL_THREAD));
		seccomp(SECCOMP_SET_MODE_FILTER, 0, &kill);
		syscall(SYS_getpgid, 0);
		_exit(0);
	});
	PROMISE("with the last thread its process ends by SIGSYS", WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
	IN_CHILD(status, {
		bind_oneself();
		PROGRAM(allow, { SAY(SECCOMP_RET_ALLOW) });
		int taken = 0;
		while (taken < 10000 && seccomp(SECCOMP_SET_MODE_FILTER, 0, &allow) == 0)
			taken++;
		_exit(taken < 1000 || taken == 10000 || errno != ENOMEM);
	});
	PROMISE("thousands of filters end with their process", status == 0);
}

/* Traces a child whose filter asks for the tracer; returns the child's exit status. */
static int traced(int skip)
{
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		bind_oneself();
		PROGRAM(trace, ABOUT(SYS_getpgid, SECCOMP_RET_TRACE | 5));
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		seccomp(SECCOMP_SET_MODE_FILTER, 0, &trace);
		_exit(syscall(SYS_getpgid, 0) == (skip ? 66 : getpid()) ? 0 : 1);
	}
	int status;
	unsigned long message = 0;
	struct user_regs_struct registers = { 0 };
	NEED(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
	NEED(ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESECCOMP | PTRACE_O_EXITKILL) == 0);
	ptrace(PTRACE_CONT, child, 0, 0);
	NEED(waitpid(child, &status, 0) == child);
	int stopped = WIFSTOPPED(status) && status >> 8 == (SIGTRAP | PTRACE_EVENT_SECCOMP << 8);
	ptrace(PTRACE_GETEVENTMSG, child, 0, &message);
	ptrace(PTRACE_GETREGS, child, 0, &registers);
	stopped = stopped && message == 5 && registers.orig_rax == SYS_getpgid && (long)registers.rax == -ENOSYS;
	registers.orig_rax = skip ? -1ul : SYS_getpid;
	registers.rax = 66;
	ptrace(PTRACE_SETREGS, child, 0, &registers);
	ptrace(PTRACE_CONT, child, 0, 0);
	NEED(waitpid(child, &status, 0) == child);
	return stopped && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static atomic_int steps;

/* Has a filter that no other thread has, so that no filter for all threads is ever taken. */
static void *diverging(void *unused)
{
	struct sock_filter code[] = { SAY(SECCOMP_RET_ALLOW) };
	NEED(is_taken(code, 1) == 1);
	steps = 1;
	while (steps < 2)
		getppid();
	return unused;
}

/* Makes filtered calls while a timer of the process expires all the time. */
static void *interrupted(void *unused)
{
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	struct itimerspec every = { { 0, 1 }, { 0, 1 } };
	timer_t timer;
	NEED(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &every, NULL) == 0);
	while (steps < 2)
		getppid();
	NEED(timer_delete(timer) == 0);
	return unused;
}

/* Offers a filter to all threads many times, while timers interrupt a thread that is judged. */
static void all_threads_under_timers(void)
{
	struct sock_filter code[] = { SAY(SECCOMP_RET_ALLOW) };
	struct sock_fprog program = { 1, code };
	pthread_t threads[2];
	sigset_t user;
	bind_oneself();
	sigemptyset(&user);
	sigaddset(&user, SIGUSR1);
	NEED(pthread_sigmask(SIG_BLOCK, &user, NULL) == 0 && is_taken(code, 1) == 1);
	NEED(pthread_create(&threads[0], NULL, interrupted, NULL) == 0 && pthread_create(&threads[1], NULL, diverging, NULL) == 0);
	while (!steps)
		sched_yield();
	int64_t end = now_ms() + 1500;
	while (now_ms() < end)
		NEED(seccomp(SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) > 0);
	steps = 2;
	NEED(pthread_join(threads[0], NULL) == 0 && pthread_join(threads[1], NULL) == 0);
}

static void beside_interrupts(void)
{
	int status;
	IN_CHILD(status, all_threads_under_timers());
	PROMISE("timers of a process go on while its threads are offered a filter", status == 0);
}

int main(int count, char **words)
{
	if (count > 1 && strcmp(words[1], "filtered") == 0)
		return syscall(SYS_getpgid, 0) == -1 ? errno : 0;
	operations();
	programs();
	verdicts();
	kept("/proc/self/exe");
	PROMISE("a tracer is told of a call, and makes it another", traced(0));
	PROMISE("or none", traced(1));
	beside_interrupts();
	return conclude();
}
