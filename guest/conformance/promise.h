/*
 * A conformance program states promises of the Linux interface and checks each: a line
 * `ok N - text` or `not ok N - text (file:line, errno)`, and at the end the plan `1..N`. A program
 * that stops half-way prints no plan. The same programs run on the host, on a stock Linux guest and
 * on Freehold.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int promises, broken;

/* PROMISE("text", condition): checked once, printed at once. */
#define PROMISE(text, condition)                                                                    \
	do {                                                                                        \
		errno = 0;                                                                          \
		int kept_ = !!(condition);                                                          \
		int error_ = errno;                                                                 \
		promises++;                                                                         \
		broken += !kept_;                                                                   \
		if (kept_)                                                                          \
			printf("ok %d - %s\n", promises, text);                                     \
		else                                                                                \
			printf("not ok %d - %s (%s:%d, errno %d %s)\n", promises, text, __FILE__,   \
			       __LINE__, error_, strerror(error_));                                 \
		fflush(stdout);                                                                     \
	} while (0)

/* FAILS_WITH(text, call, error): the call returns -1 (or MAP_FAILED) and this errno. */
#define FAILS_WITH(text, call, error) PROMISE(text, (long)(call) == -1 && errno == (error))

/* A condition that later promises depend on: the program stops if it does not hold. */
#define NEED(condition)                                                                             \
	do {                                                                                        \
		if (!(condition)) {                                                                 \
			printf("not ok - cannot go on: %s (%s:%d, errno %d %s)\n", #condition,      \
			       __FILE__, __LINE__, errno, strerror(errno));                         \
			fflush(stdout);                                                             \
			exit(1);                                                                    \
		}                                                                                   \
	} while (0)

/* Refuses process -1: a failed fork returns it, and kill(2) would signal all processes. A caller
 * that means all processes writes (kill)(-1, ...). */
static inline int kill_one(pid_t whom, int number)
{
	NEED(whom != -1);
	return kill(whom, number);
}
#define kill(whom, number) kill_one(whom, number)

static inline int conclude(void)
{
	printf("1..%d\n", promises);
	return broken != 0;
}

/* Runs statements in a child that must not print promises; stores its wait status. */
#define IN_CHILD(status, ...)                                                                       \
	do {                                                                                        \
		fflush(stdout);                                                                     \
		pid_t child_ = fork();                                                              \
		NEED(child_ >= 0);                                                                  \
		if (child_ == 0) {                                                                  \
			__VA_ARGS__;                                                                       \
			_exit(0);                                                                   \
		}                                                                                   \
		NEED(waitpid(child_, &(status), 0) == child_);                                      \
	} while (0)

static inline void sleep_ms(int ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000L };
	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

static inline int64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

/*
 * No promise may depend on the machine's speed: a host may stop it at any moment, for any time.
 * COMES_TRUE waits for a condition. HOLDS_ONCE is for conditions that depend on time: one of
 * many tries has to succeed.
 */

/* Whether `condition` becomes true: checks it again and again, for at most a minute. */
#define COMES_TRUE(condition)                                                                       \
	({                                                                                          \
		int64_t end_ = now_ms() + 60000;                                                    \
		int holds_ = 0;                                                                     \
		while (!(holds_ = !!(condition)) && now_ms() < end_)                                \
			sleep_ms(2);                                                                \
		holds_;                                                                             \
	})

/* Whether `condition` holds in one of fifty tries. */
#define HOLDS_ONCE(condition)                                                                       \
	({                                                                                          \
		int holds_ = 0;                                                                     \
		for (int try_ = 0; try_ < 50 && !holds_; try_++)                                    \
			holds_ = !!(condition);                                                     \
		holds_;                                                                             \
	})

/* The state of a task as /proc has it: 'R', 'S', 'D', 'Z'; 0 if there is none. */
static inline char task_state(pid_t process, pid_t thread)
{
	char path[64], line[256] = { 0 };
	snprintf(path, sizeof path, "/proc/%d/task/%d/stat", process, thread);
	int file = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t came = file < 0 ? 0 : read(file, line, sizeof line - 1);
	close(file);
	char *name = came > 0 ? strrchr(line, ')') : NULL;
	return name && name[1] ? name[2] : 0;
}

/* Whether a task sleeps in the call that it was going to make. */
static inline int is_asleep(pid_t process, pid_t thread)
{
	char state = task_state(process, thread);
	return state == 'S' || state == 'D';
}

/* The field of a thread's stat with this number. */
static inline long stat_field(pid_t thread, int number)
{
	char text[1024] = { 0 }, path[64];
	snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
	int file = open(path, O_RDONLY);
	NEED(file >= 0 && read(file, text, sizeof text - 1) > 0);
	close(file);
	char *at = strrchr(text, ')') + 2;
	for (int field = 3; field < number; field++)
		at = strchr(at, ' ') + 1;
	return atol(at);
}

/* The time that a clock will show after so many milliseconds. */
static inline struct timespec soon(int clock, int ms)
{
	struct timespec end;
	clock_gettime(clock, &end);
	end.tv_nsec += ms * 1000000L;
	end.tv_sec += end.tv_nsec / 1000000000;
	end.tv_nsec %= 1000000000;
	return end;
}

/* Returns the number after `name` in /proc/meminfo (kB), /proc/vmstat and similar files;
 * `missing` if there is none. */
static inline long figure_or(const char *file, const char *name, long missing)
{
	char line[256];
	long value = missing;
	size_t length = strlen(name);
	FILE *open = fopen(file, "re");
	NEED(open);
	while (fgets(line, sizeof line, open))
		if (!strncmp(line, name, length) && (line[length] == ':' || line[length] == ' '))
			value = atol(line + length + 1);
	fclose(open);
	return value;
}

static inline long figure(const char *file, const char *name)
{
	return figure_or(file, name, 0);
}
