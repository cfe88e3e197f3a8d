/*
 * The CPUs that a thread runs on: sched_setaffinity(2) on itself, and on threads that run, wait for
 * a CPU, or sleep. Also masks that change all the time while threads go to sleep and are woken.
 * Needs two CPUs or more.
 */
#include "promise.h"

enum { PAIRS = 3, CHANGES = 6000 };

static int cpus;

static void mask_of(cpu_set_t *set, int cpu)
{
	CPU_ZERO(set);
	CPU_SET(cpu, set);
}

static int restrict_to(pid_t thread, int cpu)
{
	cpu_set_t set;
	mask_of(&set, cpu);
	return sched_setaffinity(thread, sizeof set, &set);
}

/* A thread that other threads move, and its reports. */
struct other {
	pthread_t thread;
	_Atomic pid_t id;
	_Atomic int where, stop, wakes;
	int pipe[2];
};

static void *spins(void *argument)
{
	struct other *me = argument;
	me->id = gettid();
	while (!me->stop)
		me->where = sched_getcpu();
	return NULL;
}

static void *sleeps(void *argument)
{
	struct other *me = argument;
	char byte;
	me->id = gettid();
	while (read(me->pipe[0], &byte, 1) == 1) {
		me->where = sched_getcpu();
		me->wakes++;
	}
	return NULL;
}

static void begin(struct other *one, void *(*life)(void *))
{
	memset(one, 0, sizeof *one);
	one->where = -1;
	NEED(pipe(one->pipe) == 0);
	NEED(pthread_create(&one->thread, NULL, life, one) == 0);
	while (one->id == 0)
		sched_yield();
}

static void end(struct other *one)
{
	one->stop = 1;
	close(one->pipe[1]);
	NEED(pthread_join(one->thread, NULL) == 0);
	close(one->pipe[0]);
}

/* Asks for one report at a time, so that no report is older than the change. */
static int stays_on(struct other *one, int cpu)
{
	for (int look = 0; look < 50; look++) {
		one->where = -1;
		while (one->where == -1)
			sched_yield();
		if (one->where != cpu)
			return 0;
	}
	return 1;
}

static void own(void)
{
	int right = 1;
	for (int cpu = 0; cpu < cpus; cpu++)
		right &= restrict_to(0, cpu) == 0 && sched_getcpu() == cpu;
	PROMISE("a thread that restricts itself to a CPU is there when the call returns", right);
	cpu_set_t none, seen;
	CPU_ZERO(&none);
	FAILS_WITH("a mask without a CPU is refused", sched_setaffinity(0, sizeof none, &none), EINVAL);
	mask_of(&none, CPU_SETSIZE - 1);
	FAILS_WITH("a mask of CPUs that the machine does not have is refused", sched_setaffinity(0, sizeof none, &none), EINVAL);
	PROMISE("the mask is as it was", sched_getaffinity(0, sizeof seen, &seen) == 0 && CPU_COUNT(&seen) == 1 && CPU_ISSET(cpus - 1, &seen));
	int status;
	IN_CHILD(status, _exit(sched_getaffinity(0, sizeof seen, &seen) == 0 && CPU_COUNT(&seen) == 1 && sched_getcpu() == cpus - 1 ? 0 : 1));
	PROMISE("a child inherits it", status == 0);
	NEED(restrict_to(0, 0) == 0);
}

static void of_others(void)
{
	struct other one;
	begin(&one, spins);
	int moved = 1;
	for (int round = 0; round < 20; round++) {
		int cpu = 1 + round % (cpus - 1);
		NEED(restrict_to(one.id, cpu) == 0);
		/* The thread moves when it enters the kernel, and then stays. */
		moved &= COMES_TRUE(one.where == cpu) && stays_on(&one, cpu);
	}
	PROMISE("a thread that runs goes where it is told to", moved);
	NEED(restrict_to(one.id, 0) == 0);
	PROMISE("and to the CPU of who tells it", COMES_TRUE(one.where == 0) && stays_on(&one, 0));
	struct other two;
	begin(&two, spins);
	NEED(restrict_to(two.id, 0) == 0);
	NEED(COMES_TRUE(two.where == 0));
	NEED(restrict_to(one.id, 1) == 0 && restrict_to(two.id, 1) == 0);
	PROMISE("two that wait for the same CPU go to another", COMES_TRUE(one.where == 1 && two.where == 1) && stays_on(&one, 1) && stays_on(&two, 1));
	end(&one);
	end(&two);
	FAILS_WITH("a thread that has ended has no mask", restrict_to(one.id, 0), ESRCH);
}

static void of_sleepers(void)
{
	struct other one;
	begin(&one, sleeps);
	int right = 1;
	for (int round = 0; round < 200; round++) {
		int cpu = round % cpus, wakes = one.wakes;
		NEED(restrict_to(one.id, cpu) == 0);
		NEED(write(one.pipe[1], "x", 1) == 1);
		right &= COMES_TRUE(one.wakes == wakes + 1) && one.where == cpu;
	}
	PROMISE("a thread whose mask was changed while it slept wakes where it may run", right);
	end(&one);
}

/* Passes a byte on in a loop and counts the passes. */
struct pair {
	int there[2], back[2];
	_Atomic pid_t ids[2];
	_Atomic long passed;
	_Atomic int stop;
};

static void *first_of_pair(void *argument)
{
	struct pair *pair = argument;
	char byte = 'x';
	pair->ids[0] = gettid();
	while (!pair->stop) {
		NEED(write(pair->there[1], &byte, 1) == 1 && read(pair->back[0], &byte, 1) == 1);
		pair->passed++;
	}
	close(pair->there[1]);
	return NULL;
}

static void *second_of_pair(void *argument)
{
	struct pair *pair = argument;
	char byte;
	pair->ids[1] = gettid();
	while (read(pair->there[0], &byte, 1) == 1)
		NEED(write(pair->back[1], &byte, 1) == 1);
	return NULL;
}

static void at_all_times(void)
{
	static struct pair pairs[PAIRS];
	pthread_t threads[PAIRS][2];
	for (int i = 0; i < PAIRS; i++) {
		NEED(pipe(pairs[i].there) == 0 && pipe(pairs[i].back) == 0);
		NEED(pthread_create(&threads[i][0], NULL, first_of_pair, &pairs[i]) == 0);
		NEED(pthread_create(&threads[i][1], NULL, second_of_pair, &pairs[i]) == 0);
		NEED(COMES_TRUE(pairs[i].ids[0] && pairs[i].ids[1]));
	}
	unsigned seed = 1;
	for (int change = 0; change < CHANGES; change++) {
		seed = seed * 1103515245 + 12345;
		struct pair *pair = &pairs[(seed >> 8 & 0xffff) % PAIRS];
		NEED(restrict_to(pair->ids[seed >> 4 & 1], (seed >> 16 & 0xff) % cpus) == 0);
		if (change % 64 == 0)
			sched_yield();
	}
	int on = 1;
	for (int i = 0; i < PAIRS; i++) {
		long before = pairs[i].passed;
		on &= COMES_TRUE(pairs[i].passed > before + 3);
	}
	PROMISE("threads that sleep and are woken go on while their masks change", on);
	if (!on)
		_exit(1);
	for (int i = 0; i < PAIRS; i++) {
		pairs[i].stop = 1;
		NEED(pthread_join(threads[i][0], NULL) == 0 && pthread_join(threads[i][1], NULL) == 0);
	}
}

int main(void)
{
	cpus = (int)sysconf(_SC_NPROCESSORS_ONLN);
	NEED(cpus >= 2);
	own();
	of_others();
	of_sleepers();
	at_all_times();
	return conclude();
}
