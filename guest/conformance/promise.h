/*
 * A conformance program states promises of the Linux interface and checks each: a line `ok N - text` or
 * `not ok N - text (file:line, errno)`, and at the end the plan `1..N`. A program that stops half-way prints no
 * plan. The same programs run on the host, on a stock Linux guest and on Freehold.
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

/* FAILS_WITH(text, call, error): the call gives -1 (or MAP_FAILED) and this errno. */
#define FAILS_WITH(text, call, error) PROMISE(text, (long)(call) == -1 && errno == (error))

/* Something that a later promise rests on: stops the program when it fails. */
#define NEED(condition)                                                                             \
	do {                                                                                        \
		if (!(condition)) {                                                                 \
			printf("not ok - cannot go on: %s (%s:%d, errno %d %s)\n", #condition,      \
			       __FILE__, __LINE__, errno, strerror(errno));                         \
			fflush(stdout);                                                             \
			exit(1);                                                                    \
		}                                                                                   \
	} while (0)

static inline int conclude(void)
{
	printf("1..%d\n", promises);
	return broken != 0;
}

/* Runs statements in a child that must not print promises; gives its wait status. */
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

/* The number behind `name` in /proc/meminfo (kB), /proc/vmstat and their like; `missing` where there is none. */
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
