/* Families under stress: forks, ends and waits against changes of groups and sessions, from several
 * threads and CPUs.
 *
 *   families [ROUNDS]
 *
 * Each round makes races in which a wrong kernel counts a process twice or not at all: a group
 * whose only member moves while it forks, children that end while their parent starts or stops
 * ignoring SIGCHLD, orphans that end while they get a new parent. At the end no process or group
 * may be left. Runs on Linux too. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define NEED(condition)                                                     \
	do {                                                                \
		if (!(condition)) {                                         \
			perror("families: " #condition);                    \
			exit(1);                                            \
		}                                                           \
	} while (0)

static atomic_bool over;

static pid_t make(void)
{
	pid_t child = fork();
	NEED(child >= 0);
	return child;
}

/* Waits for a short time, of a different length each time. */
static void idle_about(int round)
{
	for (volatile int i = 0; i < round * 7919 % 20000; i++)
		;
}

/* The only member of a group without leader forks while its parent moves it to a group of its own.
 */
static void moves(int round)
{
	int ready[2];
	NEED(pipe(ready) == 0);
	pid_t leader = make();
	if (leader == 0) {
		setpgid(0, 0);
		(void)!write(ready[1], "l", 1);
		for (;;)
			pause();
	}
	char byte;
	NEED(read(ready[0], &byte, 1) == 1);
	pid_t member = make();
	if (member == 0) {
		NEED(setpgid(0, leader) == 0);
		(void)!write(ready[1], "m", 1);
		for (int i = 0; i < 12; i++) {
			pid_t child = make();
			if (child == 0)
				_exit(0);
			NEED(waitpid(child, NULL, 0) == child);
		}
		_exit(0);
	}
	NEED(read(ready[0], &byte, 1) == 1);
	NEED(kill(leader, SIGKILL) == 0 && waitpid(leader, NULL, 0) == leader);
	idle_about(round);
	/* The member is moved to the group where it already is, and then out of it. */
	NEED(setpgid(member, leader) == 0 || errno == ESRCH || errno == EPERM);
	NEED(setpgid(member, member) == 0 || errno == ESRCH);
	NEED(waitpid(member, NULL, 0) == member);
	NEED(kill(-leader, 0) == -1 && errno == ESRCH);
	NEED(kill(-member, 0) == -1 && errno == ESRCH);
	close(ready[0]);
	close(ready[1]);
}

static void *reap(void *unused)
{
	(void)unused;
	while (!over)
		if (waitpid(-1, NULL, WNOHANG) <= 0)
			sched_yield();
	return NULL;
}

/* Children end while other threads wait for them and the parent changes its action for SIGCHLD. The
 * parent also sets each child's group by its number, until the child is gone. */
static void ignored(int round)
{
	pthread_t threads[2];
	over = 0;
	for (int i = 0; i < 2; i++)
		NEED(pthread_create(&threads[i], NULL, reap, NULL) == 0);
	for (int i = 0; i < 12; i++) {
		signal(SIGCHLD, i & 1 ? SIG_IGN : SIG_DFL);
		pid_t child = make();
		if (child == 0) {
			idle_about(round + i);
			_exit(0);
		}
		while (setpgid(child, child) == 0)
			;
		NEED(errno == ESRCH);
	}
	over = 1;
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	signal(SIGCHLD, SIG_DFL);
	while (waitpid(-1, NULL, 0) > 0)
		;
}

/* A parent ends together with its children, some of which have sessions of their own. The reaper
 * ignores SIGCHLD or waits for them. */
static void orphans(int round)
{
	pid_t reaper = make();
	if (reaper == 0) {
		prctl(PR_SET_CHILD_SUBREAPER, 1);
		signal(SIGCHLD, round & 1 ? SIG_IGN : SIG_DFL);
		pid_t parent = make();
		if (parent == 0) {
			for (int i = 0; i < 8; i++) {
				if (make() == 0) {
					if (i & 1)
						setsid();
					idle_about(round + i);
					_exit(0);
				}
			}
			idle_about(round);
			_exit(0);
		}
		while (waitpid(-1, NULL, 0) > 0)
			;
		NEED(errno == ECHILD);
		_exit(0);
	}
	int status;
	NEED(waitpid(reaper, &status, 0) == reaper && status == 0);
}

int main(int count, char **arguments)
{
	int rounds = count > 1 ? atoi(arguments[1]) : 100;
	for (int round = 0; round < rounds; round++) {
		moves(round);
		ignored(round);
		orphans(round);
	}
	NEED(waitpid(-1, NULL, 0) == -1 && errno == ECHILD);
	printf("families: %d rounds, nobody is left\n", rounds);
	return 0;
}
