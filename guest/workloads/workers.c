/*
 * workers COUNT OPERATION TIMES: COUNT threads do OPERATION TIMES times each, on data that no
 * other thread uses. Each has its own CPU if there are enough. So only the kernel causes waits
 * between them, or stores of several threads to the same memory: freehold scope --model sharing
 * --cpus 8 -- workers 8 open 1000
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, MOST = 64, REGION = 64 };

static long times;
static pthread_barrier_t start;

struct worker {
	int number;
	char folder[32];
	int failed;
	_Alignas(64) _Atomic uint32_t word;
};

struct operation {
	const char *name;
	/* Does one round; returns how often the operation was done, 0 if it failed. */
	int (*round)(struct worker *);
};

static int faults(struct worker *me)
{
	(void)me;
	char *region = mmap(NULL, REGION * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (region == MAP_FAILED)
		return 0;
	madvise(region, REGION * PAGE, MADV_NOHUGEPAGE);
	for (int page = 0; page < REGION; page++)
		region[page * PAGE] = 1;
	return munmap(region, REGION * PAGE) == 0 ? REGION : 0;
}

static int map(struct worker *me)
{
	(void)me;
	void *region = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return region != MAP_FAILED && munmap(region, PAGE) == 0;
}

static int file_open(struct worker *me)
{
	char name[64];
	snprintf(name, sizeof name, "%s/file", me->folder);
	int file = open(name, O_RDONLY);
	return file >= 0 && close(file) == 0;
}

static int file_stat(struct worker *me)
{
	char name[64];
	struct stat about;
	snprintf(name, sizeof name, "%s/file", me->folder);
	return stat(name, &about) == 0;
}

static int file_rename(struct worker *me)
{
	char from[64], to[64];
	snprintf(from, sizeof from, "%s/file", me->folder);
	snprintf(to, sizeof to, "%s/other", me->folder);
	return rename(from, to) == 0 && rename(to, from) == 0 ? 2 : 0;
}

static int make_fork(struct worker *me)
{
	(void)me;
	int status;
	pid_t child = fork();
	if (child == 0)
		_exit(0);
	return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

static int small(struct worker *me)
{
	(void)me;
	int counter = eventfd(0, 0);
	return counter >= 0 && close(counter) == 0;
}

static int futex(struct worker *me)
{
	syscall(SYS_futex, &me->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	/* The word has another value, so the call takes the hash bucket's lock and returns. */
	return syscall(SYS_futex, &me->word, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0) == -1 ? 2 : 0;
}

static int call(struct worker *me)
{
	(void)me;
	return syscall(SYS_getppid) >= 0;
}

static const struct operation operations[] = {
	{ "faults", faults }, { "mmap", map },	 { "open", file_open },	  { "stat", file_stat }, { "rename", file_rename },
	{ "fork", make_fork }, { "small", small }, { "futex", futex }, { "call", call },
};

static const struct operation *operation;

static void *work(void *argument)
{
	struct worker *me = argument;
	cpu_set_t own;
	CPU_ZERO(&own);
	CPU_SET((size_t)me->number % (size_t)sysconf(_SC_NPROCESSORS_ONLN), &own);
	me->failed = pthread_setaffinity_np(pthread_self(), sizeof own, &own);
	pthread_barrier_wait(&start);
	for (long done = 0; done < times && !me->failed;) {
		int more = operation->round(me);
		me->failed |= more == 0;
		done += more;
	}
	return NULL;
}

int main(int argc, char **argv)
{
	int count = argc == 4 ? atoi(argv[1]) : 0;
	times = argc == 4 ? atol(argv[3]) : 0;
	for (size_t i = 0; argc == 4 && i < sizeof operations / sizeof *operations; i++)
		if (strcmp(argv[2], operations[i].name) == 0)
			operation = &operations[i];
	if (count < 1 || count > MOST || times < 1 || !operation) {
		fprintf(stderr, "usage: workers COUNT OPERATION TIMES; operations:");
		for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
			fprintf(stderr, " %s", operations[i].name);
		fprintf(stderr, "\n");
		return 2;
	}
	static struct worker workers[MOST];
	pthread_t threads[MOST];
	int failed = pthread_barrier_init(&start, NULL, (unsigned)count);
	for (int i = 0; i < count && !failed; i++) {
		struct worker *one = &workers[i];
		char name[64];
		one->number = i;
		snprintf(one->folder, sizeof one->folder, "/tmp/worker-%d", i);
		snprintf(name, sizeof name, "%s/file", one->folder);
		mkdir(one->folder, 0700);
		int file = open(name, O_WRONLY | O_CREAT, 0600);
		failed = file < 0 || close(file) != 0;
	}
	for (int i = 0; i < count && !failed; i++)
		failed = pthread_create(&threads[i], NULL, work, &workers[i]);
	for (int i = 0; i < count && !failed; i++) {
		pthread_join(threads[i], NULL);
		failed |= workers[i].failed;
	}
	if (failed) {
		fprintf(stderr, "workers: %s failed\n", operation->name);
		return 1;
	}
	printf("%ld\n", count * times);
	return 0;
}
