/* Children that may hang, or be cut short. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>

/* How many ended by themselves, by a signal, and because their time was up. */
struct ends {
	int ended, signalled, killed;
};

static inline int64_t clock_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

/*
 * Waits for `child`, `most_ms` at most, counts how it ended, and takes along what it has left: its process group, and orphans that came
 * to this process.
 */
static inline void outlast(pid_t child, int most_ms, struct ends *ends)
{
	int status = 0;
	int64_t end = clock_ms() + most_ms;
	while (waitpid(child, &status, WNOHANG) == 0 && clock_ms() < end)
		nanosleep(&(struct timespec){ 0, 2000000 }, NULL);
	kill(-child, SIGKILL);
	if (kill(child, 0) == 0) {
		kill(child, SIGKILL);
		waitpid(child, &status, 0);
		ends->killed++;
	} else if (WIFSIGNALED(status)) {
		ends->signalled++;
	} else {
		ends->ended++;
	}
	while (waitpid(-1, &status, WNOHANG) > 0)
		;
}
