/* execve by a thread that is not the first of its process: the process keeps its identity, and the
 * remaining thread takes the number of the process. */
#include "traced.h"
#include "inside.h"

#include <dirent.h>
#include <linux/futex.h>
#include <poll.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/ptrace.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

enum { ROUNDS = 60 };

/* Memory shared with every child, but not with the programs that they execute. */
static struct {
	volatile pid_t pid, tid;
	volatile int ready;
	/* A robust list with one lock. */
	struct robust_list_head head;
	struct robust_list entry;
	volatile uint32_t lock;
} *seen;

static pid_t own_tid(void)
{
	return syscall(SYS_gettid);
}

/* Executes this program again: main(part, number, number). */
static int again(const char *part, long first, long second)
{
	char one[24], two[24];
	snprintf(one, sizeof one, "%ld", first);
	snprintf(two, sizeof two, "%ld", second);
	/* If the first thread has ended, /proc/self/exe resolves to nothing. */
	execl("/proc/thread-self/exe", "takeover", part, one, two, NULL);
	return -1;
}

static void *thread(void *(*body)(void *), void *argument)
{
	pthread_t made;
	NEED(pthread_create(&made, NULL, body, argument) == 0);
	return NULL;
}

static const char *part_after;
static long value_after;

static void *executes(void *unused)
{
	(void)unused;
	seen->pid = getpid();
	seen->tid = own_tid();
	__atomic_store_n(&seen->ready, 1, __ATOMIC_SEQ_CST);
	again(part_after, own_tid(), value_after);
	_exit(98);
}

static void *waits_and_executes(void *unused)
{
	while (!__atomic_load_n(&seen->ready, __ATOMIC_SEQ_CST))
		;
	return executes(unused);
}

/* A child whose second thread executes `part` with its number and `value`. */
static pid_t second_executes(const char *part, long value)
{
	fflush(stdout);
	memset((void *)seen, 0, sizeof *seen);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		part_after = part, value_after = value;
		thread(executes, NULL);
		for (;;)
			pause();
	}
	return child;
}

/* Runs after execve: returns the number of this process' threads. */

static int threads_of_self(void)
{
	DIR *all = opendir("/proc/self/task");
	int count = 0;
	for (struct dirent *one; all && (one = readdir(all));)
		if (one->d_name[0] != '.')
			count += atoi(one->d_name) == getpid() ? 1 : 100;
	if (all)
		closedir(all);
	return count;
}

static int has_the_number(long former, long value)
{
	char path[64];
	(void)value;
	HOLDS(own_tid() == getpid() && former != getpid());
	HOLDS(threads_of_self() == 1);
	REFUSED(syscall(SYS_tgkill, getpid(), (int)former, 0), ESRCH);
	HOLDS(syscall(SYS_tgkill, getpid(), getpid(), 0) == 0);
	snprintf(path, sizeof path, "/proc/self/task/%ld", former);
	REFUSED(access(path, F_OK), ENOENT);
	snprintf(path, sizeof path, "/proc/%ld", former);
	REFUSED(access(path, F_OK), ENOENT);
	HOLDS(strstr(reads("/proc/thread-self/status"), "Threads:\t1\n"));
	/* The new program has its own clear_child_tid word and robust list, set by its C
	 * library. */
	HOLDS(syscall(SYS_set_tid_address, &path) == getpid());
	return 0;
}

static int alarm_comes(long former, long value)
{
	(void)former, (void)value;
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGALRM);
	struct timespec limit = { 20, 0 };
	HOLDS(sigtimedwait(&set, NULL, &limit) == SIGALRM);
	return 0;
}

static int has_its_signals(long former, long value)
{
	sigset_t pending;
	(void)former, (void)value;
	HOLDS(sigpending(&pending) == 0);
	HOLDS(sigismember(&pending, SIGUSR1) && sigismember(&pending, SIGTERM));
	HOLDS(!sigismember(&pending, SIGUSR2));
	return 0;
}

static long started(void)
{
	char *at = strrchr(reads("/proc/self/stat"), ')');
	long value = 0;
	for (int field = 2; at && field < 22; field++)
		at = strchr(at + 1, ' ');
	if (at)
		value = atol(at + 1);
	return value;
}

static int began_when(long former, long value)
{
	(void)former;
	HOLDS(started() == value);
	return 0;
}

static long used(void)
{
	struct rusage usage;
	getrusage(RUSAGE_SELF, &usage);
	return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
}

static int used_no_less(long former, long value)
{
	(void)former;
	HOLDS(value >= 30000 && used() >= value);
	return 0;
}

static int has_no_tracer(long former, long value)
{
	(void)former, (void)value;
	HOLDS(strstr(reads("/proc/self/status"), "TracerPid:\t0\n"));
	return 0;
}

static int waits_for_end(long former, long value)
{
	(void)former, (void)value;
	seen = NULL;
	for (;;)
		pause();
	return 0;
}

static int is_one_of(long former, long value)
{
	(void)former;
	HOLDS(own_tid() == getpid() && getpid() == value && threads_of_self() == 1);
	return 0;
}

static const struct {
	const char *name;
	int (*body)(long, long);
} parts[] = {
	{ "number", has_the_number }, { "alarm", alarm_comes },	 { "signals", has_its_signals }, { "began", began_when },
	{ "used", used_no_less },     { "untraced", has_no_tracer }, { "waits", waits_for_end },	 { "one", is_one_of },
};

/* Runs before execve. */

static void *rests(void *unused)
{
	for (;;)
		pause();
	return unused;
}

static int leader_is_gone_first(void)
{
	part_after = "number";
	memset((void *)seen, 0, sizeof *seen);
	thread(waits_and_executes, NULL);
	/* Only the first thread writes this. */
	seen->pid = getpid();
	__atomic_store_n(&seen->ready, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_exit, 5);
	return 1;
}

static void *executes_behind_zombie(void *unused)
{
	/* The thread's state is Z, or the thread is gone. */
	for (char state = 'R'; state && state != 'Z'; usleep(1000))
		state = task_state(getpid(), getpid());
	return executes(unused);
}

static int leader_is_a_zombie(void)
{
	part_after = "number";
	thread(executes_behind_zombie, NULL);
	syscall(SYS_exit, 5);
	return 1;
}

static int alarm_of_before(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGALRM);
	HOLDS(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	struct itimerval soon = { .it_value = { 0, 300000 } };
	HOLDS(setitimer(ITIMER_REAL, &soon, NULL) == 0);
	part_after = "alarm";
	thread(executes, NULL);
	rests(NULL);
	return 1;
}

static void *signals_itself(void *unused)
{
	syscall(SYS_tgkill, getpid(), own_tid(), SIGUSR1);
	syscall(SYS_tgkill, getpid(), getpid(), SIGUSR2);
	kill(getpid(), SIGTERM);
	return executes(unused);
}

static int signals_of_before(void)
{
	sigset_t set;
	sigfillset(&set);
	HOLDS(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	part_after = "signals";
	thread(signals_itself, NULL);
	rests(NULL);
	return 1;
}

static int start_of_before(void)
{
	part_after = "began", value_after = started();
	usleep(50000);
	thread(executes, NULL);
	rests(NULL);
	return 1;
}

static int time_of_before(void)
{
	while (used() < 40000)
		;
	part_after = "used", value_after = used();
	thread(executes, NULL);
	rests(NULL);
	return 1;
}

static int in_a_namespace(void)
{
	HOLDS(unshare(CLONE_NEWPID | CLONE_NEWNS) == 0);
	HOLDS(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
	pid_t first = fork();
	if (first == 0) {
		HOLDS(mount("proc", "/proc", "proc", 0, NULL) == 0);
		for (int i = 0; i < 5; i++) {
			pid_t child = second_executes("number", 0);
			HOLDS(child > 1 && ends_well(child));
		}
		/* The same in the first process of a PID namespace. */
		part_after = "one", value_after = 1;
		thread(executes, NULL);
		rests(NULL);
	}
	HOLDS(first > 1 && ends_well(first));
	return 0;
}

static int all_at_once(void)
{
	part_after = "one", value_after = getpid();
	memset((void *)seen, 0, sizeof *seen);
	for (int i = 0; i < 16; i++)
		thread(waits_and_executes, NULL);
	__atomic_store_n(&seen->ready, 1, __ATOMIC_SEQ_CST);
	return executes(NULL) != NULL;
}

static int is_one_process(void)
{
	pid_t child = second_executes("waits", 0);
	int file = syscall(SYS_pidfd_open, child, 0);
	HOLDS(file >= 0 && COMES_TRUE(seen->ready && task_state(child, seen->tid) == 0 && is_asleep(child, child)));
	pid_t former = seen->tid;
	struct pollfd ends = { file, POLLIN, 0 };
	HOLDS(poll(&ends, 1, 50) == 0);
	HOLDS(waitpid(child, NULL, WNOHANG) == 0);
	REFUSED(waitpid(former, NULL, WNOHANG | __WALL), ECHILD);
	REFUSED(syscall(SYS_tgkill, child, former, 0), ESRCH);
	REFUSED(kill(former, 0), ESRCH);
	HOLDS(syscall(SYS_tgkill, child, child, SIGTERM) == 0);
	HOLDS(poll(&ends, 1, 20000) == 1);
	int status;
	HOLDS(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
	close(file);
	return 0;
}

static void races_with_kill(void)
{
	int right = 1;
	for (int i = 0; i < ROUNDS; i++) {
		int status = 0;
		pid_t child = second_executes("waits", 0);
		while (!seen->ready)
			;
		for (volatile int spin = 0; spin < i * 20000; spin++)
			;
		kill_one(child, SIGKILL);
		right &= waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
	}
	PROMISE("SIGKILL at any moment ends the process, once", right && waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
}

static void *waits_to_be_traced(void *unused)
{
	seen->tid = own_tid();
	while (__atomic_load_n(&seen->ready, __ATOMIC_SEQ_CST) == 0)
		usleep(1000);
	return executes(unused);
}

/* A child with two threads, of which the second executes `part` once `seen->ready` is set. */
static pid_t two_threads(const char *part)
{
	fflush(stdout);
	memset((void *)seen, 0, sizeof *seen);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		part_after = part;
		thread(waits_to_be_traced, NULL);
		rests(NULL);
	}
	NEED(COMES_TRUE(seen->tid));
	return child;
}

static int is_exec_event(int status)
{
	return status >> 8 == (SIGTRAP | PTRACE_EVENT_EXEC << 8);
}

static int traced_both(void)
{
	pid_t child = two_threads("number"), thread = seen->tid;
	int status = 0;
	unsigned long message = 0;
	HOLDS(pt(PTRACE_SEIZE, child, 0, PTRACE_O_TRACEEXEC) == 0 && pt(PTRACE_SEIZE, thread, 0, PTRACE_O_TRACEEXEC) == 0);
	seen->ready = 1;
	/* wait(2) reports the end of neither thread to the tracer. */
	HOLDS(waitpid(-1, &status, __WALL) == child && is_exec_event(status));
	HOLDS(pt(PTRACE_GETEVENTMSG, child, 0, (unsigned long)&message) == 0 && message == (unsigned long)thread);
	REFUSED(waitpid(thread, NULL, __WALL | WNOHANG), ECHILD);
	REFUSED(pt(PTRACE_CONT, thread, 0, 0), ESRCH);
	HOLDS(pt(PTRACE_CONT, child, 0, 0) == 0);
	return !ends_well(child);
}

static int traced_second_only(void)
{
	pid_t child = two_threads("number"), thread = seen->tid;
	int status = 0;
	unsigned long message = 0;
	HOLDS(pt(PTRACE_SEIZE, thread, 0, PTRACE_O_TRACEEXEC) == 0);
	seen->ready = 1;
	HOLDS(waitpid(child, &status, __WALL) == child && is_exec_event(status));
	HOLDS(pt(PTRACE_GETEVENTMSG, child, 0, (unsigned long)&message) == 0 && message == (unsigned long)thread);
	HOLDS(pt(PTRACE_DETACH, child, 0, 0) == 0);
	return !ends_well(child);
}

static int traced_first_only(void)
{
	pid_t child = two_threads("untraced");
	HOLDS(pt(PTRACE_SEIZE, child, 0, PTRACE_O_TRACEEXEC | PTRACE_O_TRACEEXIT) == 0);
	seen->ready = 1;
	int status = 0;
	/* The end of the thread is reported as a stop; the end of the traced thread is then not
	 * reported. */
	HOLDS(waitpid(child, &status, __WALL) == child && status >> 8 == (SIGTRAP | PTRACE_EVENT_EXIT << 8));
	HOLDS(pt(PTRACE_CONT, child, 0, 0) == 0);
	return !ends_well(child);
}

static int traced_by_another(void)
{
	pid_t child = two_threads("waits"), thread = seen->tid, tracer = fork();
	if (tracer == 0) {
		HOLDS(pt(PTRACE_SEIZE, child, 0, 0) == 0);
		seen->ready = 1;
		HOLDS(COMES_TRUE(task_state(child, thread) == 0 && is_asleep(child, child)));
		REFUSED(waitpid(child, NULL, __WALL | WNOHANG), ECHILD);
		REFUSED(pt(PTRACE_INTERRUPT, child, 0, 0), ESRCH);
		HOLDS(pt(PTRACE_SEIZE, child, 0, 0) == 0);
		return 0;
	}
	HOLDS(ends_well(tracer));
	kill_one(child, SIGKILL);
	HOLDS(waitpid(child, NULL, 0) == child);
	return 0;
}

static void *ends(void *unused)
{
	while (__atomic_load_n(&seen->ready, __ATOMIC_SEQ_CST) == 0)
		usleep(1000);
	rests(unused);
	return NULL;
}

static int other_threads_end_for_their_tracer(void)
{
	memset((void *)seen, 0, sizeof *seen);
	pid_t child = fork();
	if (child == 0) {
		part_after = "number";
		thread(ends, NULL);
		thread(waits_to_be_traced, NULL);
		rests(NULL);
	}
	HOLDS(COMES_TRUE(seen->tid));
	/* The other thread was made just before, so its number is one less. */
	pid_t second = seen->tid, other = second - 1;
	int status = 0;
	HOLDS(pt(PTRACE_SEIZE, other, 0, 0) == 0 && pt(PTRACE_SEIZE, second, 0, PTRACE_O_TRACEEXEC) == 0);
	seen->ready = 1;
	HOLDS(waitpid(other, &status, __WALL) == other && status == 0);
	HOLDS(waitpid(child, &status, __WALL) == child && is_exec_event(status));
	HOLDS(pt(PTRACE_CONT, child, 0, 0) == 0);
	return !ends_well(child);
}

static int is_traced_for_good(void)
{
	pid_t child = two_threads("waits"), thread = seen->tid;
	int status = 0;
	HOLDS(pt(PTRACE_SEIZE, thread, 0, PTRACE_O_TRACEEXEC | PTRACE_O_TRACEEXIT) == 0);
	seen->ready = 1;
	HOLDS(waitpid(child, &status, __WALL) == child && is_exec_event(status));
	HOLDS(pt(PTRACE_CONT, child, 0, 0) == 0);
	HOLDS(COMES_TRUE(is_asleep(child, child)) && pt(PTRACE_INTERRUPT, child, 0, 0) == 0);
	HOLDS(waitpid(child, &status, __WALL) == child && status >> 16 == 128);
	HOLDS(pt(PTRACE_CONT, child, 0, 0) == 0);
	HOLDS(kill(child, SIGTERM) == 0 && waitpid(child, &status, __WALL) == child && status == (SIGTERM << 8 | 0x7f));
	HOLDS(pt(PTRACE_CONT, child, 0, SIGTERM) == 0);
	HOLDS(waitpid(child, &status, __WALL) == child && status >> 8 == (SIGTRAP | PTRACE_EVENT_EXIT << 8));
	HOLDS(pt(PTRACE_CONT, child, 0, 0) == 0);
	HOLDS(waitpid(child, &status, __WALL) == child && status == SIGTERM);
	REFUSED(waitpid(-1, &status, __WALL | WNOHANG), ECHILD);
	return 0;
}

/* A tracer attaches and detaches while the first thread ends and the second takes over. */
static int attaching_races(void)
{
	for (int i = 0; i < ROUNDS; i++) {
		pid_t child = two_threads("waits");
		seen->ready = 1;
		int status = 0;
		for (int tries = 0; tries < 20; tries++)
			if (pt(PTRACE_SEIZE, child, 0, 0) == 0)
				break;
		kill_one(child, SIGKILL);
		HOLDS(waitpid(child, &status, __WALL) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		REFUSED(waitpid(-1, &status, __WALL | WNOHANG), ECHILD);
	}
	return 0;
}

static void *locks_and_executes(void *unused)
{
	seen->head = (struct robust_list_head){ { &seen->entry }, offsetof(typeof(*seen), lock) - offsetof(typeof(*seen), entry), NULL };
	seen->entry.next = &seen->head.list;
	seen->lock = own_tid();
	syscall(SYS_set_robust_list, &seen->head, sizeof seen->head);
	return executes(unused);
}

/* The kernel walks the robust list after the thread has its new number. It marks locks that hold
 * this new number. */
static int robust_lists(void)
{
	for (int second = 0; second < 2; second++) {
		memset((void *)seen, 0, sizeof *seen);
		pid_t child = fork();
		if (child == 0) {
			part_after = "one", value_after = getpid();
			if (second)
				thread(locks_and_executes, NULL);
			else
				locks_and_executes(NULL);
			rests(NULL);
		}
		HOLDS(child > 0 && ends_well(child));
		HOLDS(second ? seen->lock && !(seen->lock & FUTEX_OWNER_DIED) : seen->lock == FUTEX_OWNER_DIED);
	}
	return 0;
}

static int leader_races(void)
{
	for (int i = 0; i < ROUNDS; i++) {
		pid_t child = fork();
		if (child == 0)
			return leader_is_gone_first();
		HOLDS(child > 0 && ends_well(child));
	}
	return 0;
}

int main(int count, char **arguments)
{
	if (count == 4) {
		for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
			if (!strcmp(parts[i].name, arguments[1]))
				return parts[i].body(atol(arguments[2]), atol(arguments[3])) != 0;
		return 97;
	}
	seen = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(seen != MAP_FAILED);
	PROMISE("a thread that executes a program has its process' number, and its own is nobody's", ends_well(second_executes("number", 0)));
	PROMISE("so where the first thread is a zombie", in_child(leader_is_a_zombie, 0));
	PROMISE("so where the first thread ends at the same time", in_child(leader_races, 0));
	PROMISE("for all others it is one process that never ended: pidfd, wait, signals", in_child(is_one_process, 0));
	PROMISE("of many threads that do so at once one does", in_child(all_at_once, 0));
	races_with_kill();
	PROMISE("an interval timer goes on", in_child(alarm_of_before, 0));
	PROMISE("pending signals of the process and of the thread stay, those of the first thread do not", in_child(signals_of_before, 0));
	PROMISE("the process began when it began", in_child(start_of_before, 0));
	PROMISE("it has used what its threads have used", in_child(time_of_before, 0));
	PROMISE("a robust lock of the first thread is let go of, one with a thread's former number is not", in_child(robust_lists, 0));
	PROMISE("numbers in PID namespaces are the process', that of a first process included", in_child(in_a_namespace, 0));
	PROMISE("a tracer of both is told of one event, with the thread's former number", in_child(traced_both, 0));
	PROMISE("a tracer of the second knows it by the process' number", in_child(traced_second_only, 0));
	PROMISE("a tracer of the first traces nothing any more", in_child(traced_first_only, 0));
	PROMISE("nor waits for anything, and may trace the process again", in_child(traced_by_another, 0));
	PROMISE("another thread ends with status 0 for its tracer", in_child(other_threads_end_for_their_tracer, 0));
	PROMISE("the tracer of the second stays that of the process, to its end", in_child(is_traced_for_good, 0));
	PROMISE("a tracer that comes meanwhile loses nothing", in_child(attaching_races, 0));
	return conclude();
}
