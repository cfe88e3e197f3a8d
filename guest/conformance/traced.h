/* Tracing a child: requests, stops, and a child that is traced from the start. */
#include "promise.h"

#include <sys/prctl.h>
#include <sys/ptrace.h>

static inline long pt(int request, pid_t pid, unsigned long address, unsigned long data)
{
	return syscall(SYS_ptrace, request, pid, address, data);
}

/* Waits for the next stop or end of `pid`; returns its status, -1 for an error. */
static inline int next(pid_t pid)
{
	int status;
	return waitpid(pid, &status, __WALL) == pid ? status : -1;
}

static inline int is_stop(int status, int signal)
{
	return WIFSTOPPED(status) && (status >> 8) == signal;
}

/* A child that this program traces, in a stop before `body`; it ends with 7 after that. */
static inline pid_t traced_child(void (*body)(void))
{
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (pt(PTRACE_TRACEME, 0, 0, 0) != 0)
			_exit(99);
		raise(SIGSTOP);
		body();
		_exit(7);
	}
	NEED(is_stop(next(child), SIGSTOP));
	return child;
}
