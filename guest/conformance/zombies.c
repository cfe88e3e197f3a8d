/* An end that is visible can be waited for at once: pidfds, /proc, the tracer before the parent. */
#include "promise.h"

#include <sys/prctl.h>
#include <sys/ptrace.h>

#define ROUNDS 300

/* A child that ends at once with status 3. */
static pid_t ending(void)
{
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0)
		_exit(3);
	return child;
}

/* The letter of the state in /proc, or 0 if the process is gone. */
static char letter_of(pid_t pid)
{
	char path[32], text[256] = { 0 };
	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	int fd = open(path, O_RDONLY);
	if (fd < 0)
		return 0;
	ssize_t count = read(fd, text, sizeof text - 1);
	close(fd);
	char *after = count > 0 ? strrchr(text, ')') : NULL;
	return after ? after[2] : 0;
}

static int is_readable(int fd)
{
	struct pollfd one = { .fd = fd, .events = POLLIN };
	return poll(&one, 1, 0) == 1 && one.revents == POLLIN;
}

static int found_by_pidfd(void)
{
	siginfo_t info = { 0 };
	pid_t child = ending();
	int fd = syscall(SYS_pidfd_open, child, 0);
	NEED(fd >= 0);
	while (!is_readable(fd))
		;
	int found = waitid(P_PID, child, &info, WEXITED | WNOHANG) == 0 && info.si_pid == child && is_readable(fd);
	close(fd);
	return found || waitpid(child, NULL, 0) != child;
}

static int found_in_proc(void)
{
	pid_t child = ending();
	while (letter_of(child) != 'Z')
		;
	return waitpid(child, NULL, WNOHANG) == child || waitpid(child, NULL, 0) != child;
}

static volatile sig_atomic_t readable_in_handler, opened = -1;

static void on_child(int signal)
{
	(void)signal;
	readable_in_handler = is_readable(opened);
}

/* The parent is not interested: the child is no zombie, and its descriptor is readable when the
 * signal comes. */
static int found_by_signal(void)
{
	struct sigaction old, action = { .sa_handler = on_child, .sa_flags = SA_NOCLDWAIT };
	sigset_t blocked, before;
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGCHLD);
	NEED(sigprocmask(SIG_BLOCK, &blocked, &before) == 0 && sigaction(SIGCHLD, &action, &old) == 0);
	readable_in_handler = 0;
	pid_t child = ending();
	opened = syscall(SYS_pidfd_open, child, 0);
	int came = opened < 0;
	if (!came) {
		sigsuspend(&before);
		came = readable_in_handler;
		close(opened);
	}
	NEED(sigaction(SIGCHLD, &old, NULL) == 0);
	siginfo_t info;
	struct timespec no_time = { 0 };
	while (sigtimedwait(&blocked, &info, &no_time) == SIGCHLD)
		;
	NEED(sigprocmask(SIG_SETMASK, &before, NULL) == 0);
	return came && COMES_TRUE(waitpid(child, NULL, 0) == -1 && errno == ECHILD);
}

/* A tracer that is not the parent waits for the end without sleeping; then it is the parent's
 * turn. */
static int told_after_the_tracer(void)
{
	int go[2];
	char byte;
	NEED(pipe(go) == 0);
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(read(go[0], &byte, 1) == 1 ? 3 : 4);
	}
	pid_t tracer = fork();
	NEED(tracer >= 0);
	if (tracer == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		int status = 0;
		if (ptrace(PTRACE_SEIZE, child, 0, 0) != 0 || write(go[1], "x", 1) != 1)
			_exit(1);
		pid_t found;
		while ((found = waitpid(child, &status, WNOHANG | __WALL)) == 0)
			;
		_exit(found == child && status == 3 << 8 ? 0 : 2);
	}
	int status = -1, end = -1;
	int told = waitpid(tracer, &status, 0) == tracer && status == 0 && COMES_TRUE(waitpid(child, &end, WNOHANG) == child);
	close(go[0]);
	close(go[1]);
	return told && end == 3 << 8;
}

static int each_of(int rounds, int (*holds)(void))
{
	while (rounds > 0 && holds())
		rounds--;
	return rounds == 0;
}

int main(void)
{
	PROMISE("a child whose descriptor is readable can be waited for", each_of(ROUNDS, found_by_pidfd));
	PROMISE("a child that /proc calls a zombie can be waited for", each_of(ROUNDS, found_in_proc));
	PROMISE("the descriptor of an ended child is readable before its signal", each_of(ROUNDS, found_by_signal));
	PROMISE("a parent is told of the end after the tracer", each_of(ROUNDS, told_after_the_tracer));
	return conclude();
}
