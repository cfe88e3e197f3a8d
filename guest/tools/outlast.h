/* Children that may hang, or be killed early. Needs promise.h. */

/* Numbers of children that exited, that a signal ended, and that were killed at their deadline. */
struct ends {
	int ended, signalled, killed;
};

/*
 * Waits for `child` for at most `most_ms` and counts how it ended. Then kills the processes that it
 * left: its process group, and orphans of this process.
 */
static inline void outlast(pid_t child, int most_ms, struct ends *ends)
{
	int status = 0;
	int64_t end = now_ms() + most_ms;
	while (waitpid(child, &status, WNOHANG) == 0 && now_ms() < end)
		sleep_ms(2);
	kill(-child, SIGKILL);
	if (kill(child, 0) == 0) {
		kill(child, SIGKILL);
		NEED(waitpid(child, &status, 0) == child);
		ends->killed++;
	} else if (WIFSIGNALED(status)) {
		ends->signalled++;
	} else {
		ends->ended++;
	}
	while (waitpid(-1, &status, WNOHANG) > 0)
		;
}
