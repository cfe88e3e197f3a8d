/* Signals: delivery, masks, frames, restarts, timers' ends, losses. */
#include "promise.h"
#include <setjmp.h>
#include <sys/signalfd.h>
#include <ucontext.h>

static volatile sig_atomic_t count, last, code, value, nested, deepest;
static volatile pid_t sender;
static void *volatile frame;

static void note(int signal)
{
	count++;
	last = signal;
}

static void note_info(int signal, siginfo_t *info, void *context)
{
	(void)context;
	note(signal);
	code = info->si_code;
	value = info->si_value.sival_int;
	sender = info->si_pid;
	frame = __builtin_frame_address(0);
}

static void install(int signal, void (*handler)(int, siginfo_t *, void *), int flags)
{
	struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags };
	sigemptyset(&action.sa_mask);
	NEED(sigaction(signal, &action, NULL) == 0);
}

static sigset_t set_of(int signal)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, signal);
	return set;
}

static void delivery(void)
{
	install(SIGUSR1, note_info, 0);
	kill(getpid(), SIGUSR1);
	PROMISE("a signal to oneself is handled before kill returns", count == 1 && last == SIGUSR1);
	PROMISE("siginfo says who and how", code == SI_USER && sender == getpid());
	union sigval with = { .sival_int = 4711 };
	sigqueue(getpid(), SIGUSR1, with);
	PROMISE("sigqueue carries a value", code == SI_QUEUE && value == 4711);
	syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGUSR1);
	PROMISE("tgkill says so", code == SI_TKILL);
	signal(SIGUSR2, SIG_IGN);
	PROMISE("an ignored signal does nothing", kill(getpid(), SIGUSR2) == 0);
	FAILS_WITH("SIGKILL cannot be caught", sigaction(SIGKILL, &(struct sigaction){ .sa_handler = note }, NULL), EINVAL);
	struct sigaction old;
	PROMISE("sigaction tells the old action", sigaction(SIGUSR1, NULL, &old) == 0 && old.sa_sigaction == note_info &&
		(old.sa_flags & SA_SIGINFO));
	install(SIGUSR1, note_info, SA_RESETHAND);
	raise(SIGUSR1);
	sigaction(SIGUSR1, NULL, &old);
	PROMISE("SA_RESETHAND is for one time", old.sa_handler == SIG_DFL);
}

static void masks(void)
{
	sigset_t set = set_of(SIGUSR1), pending;
	install(SIGUSR1, note_info, 0);
	count = 0;
	sigprocmask(SIG_BLOCK, &set, NULL);
	kill(getpid(), SIGUSR1);
	kill(getpid(), SIGUSR1);
	PROMISE("a blocked signal waits", count == 0);
	PROMISE("and is pending", sigpending(&pending) == 0 && sigismember(&pending, SIGUSR1) == 1);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	PROMISE("it comes once when unblocked", count == 1);
	int rt = SIGRTMIN + 2;
	install(rt, note_info, 0);
	set = set_of(rt);
	count = 0;
	sigprocmask(SIG_BLOCK, &set, NULL);
	for (int i = 1; i <= 5; i++)
		sigqueue(getpid(), rt, (union sigval){ .sival_int = i });
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	PROMISE("a real-time signal comes as often as it was sent, in order", count == 5 && value == 5);
	sigset_t none;
	sigemptyset(&none);
	set = set_of(SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	kill(getpid(), SIGUSR1);
	count = 0;
	FAILS_WITH("sigsuspend lets it in and ends with EINTR", sigsuspend(&none), EINTR);
	PROMISE("and blocks it again", count == 1 && kill(getpid(), SIGUSR1) == 0 && count == 1);
	siginfo_t info;
	PROMISE("sigwaitinfo takes it without a handler", sigwaitinfo(&set, &info) == SIGUSR1 && info.si_pid == getpid() && count == 1);
	struct timespec brief = { 0, 20000000 };
	FAILS_WITH("sigtimedwait ends when time is up", sigtimedwait(&set, NULL, &brief), EAGAIN);
	sigset_t urgent = set_of(SIGURG);
	sigprocmask(SIG_BLOCK, &urgent, NULL);
	pid_t sender = fork();
	if (sender == 0) {
		usleep(50000);
		kill(getppid(), SIGURG);
		_exit(0);
	}
	struct timespec long_enough = { 5, 0 };
	PROMISE("a signal that is ignored by default ends sigtimedwait for it", sigtimedwait(&urgent, NULL, &long_enough) == SIGURG);
	waitpid(sender, NULL, 0);
	sigprocmask(SIG_UNBLOCK, &urgent, NULL);
	int fd = signalfd(-1, &set, SFD_NONBLOCK);
	struct signalfd_siginfo read_info;
	FAILS_WITH("a signalfd without a signal", read(fd, &read_info, sizeof read_info), EAGAIN);
	kill(getpid(), SIGUSR1);
	PROMISE("a signalfd hands it over", read(fd, &read_info, sizeof read_info) == sizeof read_info && read_info.ssi_signo == SIGUSR1);
	close(fd);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	sigset_t all;
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &none);
	sigprocmask(SIG_SETMASK, NULL, &set);
	PROMISE("SIGKILL and SIGSTOP cannot be blocked", !sigismember(&set, SIGKILL) && !sigismember(&set, SIGSTOP));
	sigprocmask(SIG_SETMASK, &none, NULL);
}

static void nest(int signal)
{
	nested++;
	if (nested > deepest)
		deepest = nested;
	if (count++ < 3)
		raise(signal);
	nested--;
}

static void frames(void)
{
	struct sigaction action = { .sa_handler = nest };
	sigaction(SIGUSR1, &action, NULL);
	count = deepest = 0;
	raise(SIGUSR1);
	PROMISE("a handler's own signal waits for its end", deepest == 1 && count == 4);
	action.sa_flags = SA_NODEFER;
	sigaction(SIGUSR1, &action, NULL);
	count = deepest = 0;
	raise(SIGUSR1);
	PROMISE("with SA_NODEFER it does not", deepest == 4 && count == 4);
	static char other[65536];
	stack_t stack = { .ss_sp = other, .ss_size = sizeof other }, old;
	PROMISE("sigaltstack", sigaltstack(&stack, NULL) == 0);
	install(SIGUSR1, note_info, SA_ONSTACK);
	raise(SIGUSR1);
	PROMISE("SA_ONSTACK runs there", (char *)frame > other && (char *)frame < other + sizeof other);
	PROMISE("and leaves it", sigaltstack(NULL, &old) == 0 && !(old.ss_flags & SS_ONSTACK) && old.ss_sp == other);
	install(SIGUSR1, note_info, 0);
	raise(SIGUSR1);
	PROMISE("without it the handler stays on the stack", !((char *)frame > other && (char *)frame < other + sizeof other));

	/* A child sends many signals to this process while registers hold known values. */
	pid_t self = getpid();
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		while (getppid() == self) {
			kill(self, SIGUSR1);
			sched_yield();
		}
		_exit(0);
	}
	count = 0;
	int good = 1;
	uint64_t a = 0x1234567890abcdef;
	while (count < 50 && good) {
		uint64_t out = 0;
		double sum = 0;
		__asm__ volatile("mov %2, %%r12\n movq %2, %%xmm7\n mov $20000, %%ecx\n"
				 "1: add $1, %%r13\n dec %%ecx\n jnz 1b\n"
				 "movq %%xmm7, %%rax\n xor %%r12, %%rax\n mov %%rax, %0\n"
				 : "=r"(out), "+x"(sum)
				 : "r"(a)
				 : "rax", "rcx", "r12", "r13", "xmm7", "memory");
		good = out == 0 && sum == 0;
	}
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	PROMISE("registers come back whole from any handler", good);
}

static void change_registers(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)info;
	ucontext_t *user = context;
	user->uc_mcontext.gregs[REG_RIP] += 2; /* over the ud2 */
	user->uc_mcontext.gregs[REG_RBX] = 99;
}

static void faults(void)
{
	install(SIGILL, change_registers, 0);
	long result = 0;
	__asm__ volatile("xor %%ebx, %%ebx\n ud2\n mov %%rbx, %0" : "=r"(result) : : "rbx");
	PROMISE("a handler can change the registers it returns to", result == 99);
	int status;
	IN_CHILD(status, volatile int zero = 0, many = 100; volatile int never = many / zero; (void)never);
	PROMISE("division by zero is SIGFPE", WTERMSIG(status) == SIGFPE);
	IN_CHILD(status, signal(SIGILL, SIG_DFL); __asm__ volatile("ud2"));
	PROMISE("no instruction is SIGILL", WTERMSIG(status) == SIGILL);
	IN_CHILD(status, __asm__ volatile("int3"));
	PROMISE("a breakpoint is SIGTRAP", WTERMSIG(status) == SIGTRAP);
	IN_CHILD(status, __asm__ volatile("hlt"));
	PROMISE("a privileged instruction is SIGSEGV", WTERMSIG(status) == SIGSEGV);
	IN_CHILD(status, sigset_t set = set_of(SIGSEGV); sigprocmask(SIG_BLOCK, &set, NULL); *(volatile char *)(uintptr_t)getpid() = 0);
	PROMISE("a blocked fault kills all the same", WTERMSIG(status) == SIGSEGV);
}

static sigjmp_buf place;

static void jump(int signal)
{
	(void)signal;
	siglongjmp(place, 1);
}

/* Microseconds between one SIGALRM and the next. The alarm repeats, because a single one may
 * come before the call that it must interrupt. */
enum pace { NEVER = 0, SOON = 20000 };

static void disturb(enum pace pace)
{
	setitimer(ITIMER_REAL, &(struct itimerval){ { 0, pace }, { 0, pace } }, NULL);
}

/* Result of `call` while SIGALRM arrives repeatedly; errno is that of the call. */
#define DISTURBED(call)                                                                             \
	({                                                                                          \
		disturb(SOON);                                                                      \
		long result_ = (call);                                                              \
		int error_now_ = errno;                                                             \
		disturb(NEVER);                                                                     \
		errno = error_now_;                                                                 \
		result_;                                                                            \
	})

static int handled[2];

static void tell_and_note(int signal, siginfo_t *info, void *context)
{
	(void)!write(handled[1], "h", 1);
	note_info(signal, info, context);
}

static void interrupted(void)
{
	int ends[2];
	char byte;
	NEED(pipe(ends) == 0);
	install(SIGALRM, note_info, 0);
	FAILS_WITH("a read is interrupted", DISTURBED(read(ends[0], &byte, 1)), EINTR);
	install(SIGALRM, tell_and_note, SA_RESTART);
	NEED(pipe(handled) == 0);
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		char told[3];
		for (int times = 0; times < 3;)
			times += read(handled[0], told, sizeof told);
		write(ends[1], "r", 1);
		_exit(0);
	}
	count = 0;
	PROMISE("with SA_RESTART it goes on", DISTURBED(read(ends[0], &byte, 1)) == 1 && byte == 'r' && count >= 3);
	waitpid(child, NULL, 0);
	install(SIGALRM, note_info, SA_RESTART);
	struct timespec long_time = { 1000, 0 }, left = { 0, 0 };
	FAILS_WITH("nanosleep is interrupted even so", DISTURBED(nanosleep(&long_time, &left)), EINTR);
	PROMISE("and says how much is left", left.tv_sec > 500 && left.tv_sec < 1000);
	FAILS_WITH("pause", DISTURBED(pause()), EINTR);
	FAILS_WITH("poll is interrupted even so", DISTURBED(poll(NULL, 0, -1)), EINTR);
	signal(SIGALRM, jump);
	if (sigsetjmp(place, 1) == 0) {
		disturb(SOON);
		for (;;)
			pause();
	}
	disturb(NEVER);
	PROMISE("a handler may jump away", 1);
	sigset_t now;
	sigprocmask(SIG_BLOCK, NULL, &now);
	PROMISE("and the mask is as before", !sigismember(&now, SIGALRM));
}

static void children(void)
{
	install(SIGCHLD, note_info, 0);
	count = 0;
	fflush(stdout);
	pid_t child = fork();
	if (child == 0)
		_exit(9);
	while (count == 0)
		sleep_ms(5);
	PROMISE("SIGCHLD tells of a child's end", last == SIGCHLD && code == CLD_EXITED && sender == child);
	waitpid(child, NULL, 0);
	signal(SIGCHLD, SIG_IGN);
	child = fork();
	if (child == 0)
		_exit(9);
	FAILS_WITH("with SIGCHLD ignored children vanish", waitpid(child, NULL, 0), ECHILD);
	signal(SIGCHLD, SIG_DFL);
}

static volatile int was_interrupted;

static void *send_to_me(void *thread)
{
	while (!was_interrupted) {
		pthread_kill(*(pthread_t *)thread, SIGUSR1);
		sleep_ms(20);
	}
	return NULL;
}

static volatile int is_blocked, may_end;

static void *wait_blocked(void *unused)
{
	(void)unused;
	sigset_t set = set_of(SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	is_blocked = 1;
	while (!may_end)
		sleep_ms(1);
	return NULL;
}

static void threads(void)
{
	pthread_t self = pthread_self(), thread;
	install(SIGUSR1, note_info, 0);
	count = 0;
	pthread_create(&thread, NULL, send_to_me, &self);
	FAILS_WITH("a thread's signal interrupts that thread", ({ int paused = pause(), why = errno; was_interrupted = 1; errno = why; paused; }), EINTR);
	pthread_join(thread, NULL);
	PROMISE("and is handled by it", count >= 1);
	pthread_create(&thread, NULL, wait_blocked, NULL);
	NEED(COMES_TRUE(is_blocked));
	count = 0;
	kill(getpid(), SIGUSR1);
	PROMISE("a process's signal goes to a thread that lets it in", count == 1);
	may_end = 1;
	pthread_join(thread, NULL);
}

/* Signals have no effect on process 1, which reaps orphans with any exit signal. */
static void init_process(void)
{
	PROMISE("signals to process 1 are taken", kill(1, 0) == 0);
	if (getppid() == 1) {
		PROMISE("and do nothing to it", kill(1, SIGHUP) == 0 && kill(1, SIGKILL) == 0 && kill(1, SIGSTOP) == 0);
		sleep_ms(20);
		PROMISE("it is still there", kill(1, 0) == 0);
	}
	int status;
	IN_CHILD(status, pid_t orphan = (pid_t)syscall(SYS_clone, SIGHUP, 0, 0, 0, 0);
		 if (orphan == 0) { sleep_ms(20); _exit(0); });
	PROMISE("a process may leave a child that signals its end in its own way", status == 0);
	sleep_ms(60);
	IN_CHILD(status, _exit(3));
	PROMISE("life goes on", WEXITSTATUS(status) == 3);
}

int main(void)
{
	delivery();
	masks();
	frames();
	faults();
	interrupted();
	children();
	threads();
	init_process();
	return conclude();
}
