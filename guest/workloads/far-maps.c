/*
 * Top-level entries of page tables that change while CPUs of all nodes load them. A thread on
 * each CPU maps pages that lie 512 GiB apart, each under its own top-level entry, unmaps some,
 * and forks. The child moves to another CPU, which may need a root on its own node for the new
 * address space. There it checks its inherited pages, maps more, and exits or executes this
 * program anew. Prints the number of rounds.
 *
 *   freehold run -m 512M --cpus 4 --numa 4 -- target/guest/workloads/far-maps 10000
 *
 *   far-maps ROUNDS
 *   far-maps CPU VALUE     the executed form: only looks at its CPU
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Each thread has its own top-level entries. Those below SLOTS_FROM and the last one belong to
 * the program loader. */
enum { PAGE = 4096, THREADS = 4, SLOTS = 24, SLOTS_FROM = 8 };

#define NEED(condition)                                                             \
	do {                                                                        \
		if (!(condition)) {                                                 \
			fprintf(stderr, "far-maps: %s: errno %d\n", #condition, errno); \
			_exit(1);                                                   \
		}                                                                   \
	} while (0)

static int rounds, cpus;

static volatile uint64_t *place(int thread, int slot)
{
	return (volatile uint64_t *)((uint64_t)(SLOTS_FROM + thread * SLOTS + slot) << 39);
}

static void go_to(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu % cpus, &set);
	NEED(sched_setaffinity(0, sizeof set, &set) == 0);
	NEED(sched_getcpu() == cpu % cpus);
}

static void map(int thread, int slot, uint64_t value)
{
	volatile uint64_t *at = place(thread, slot);
	void *got = mmap((void *)at, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	NEED(got == (void *)at);
	*at = value;
}

/* Runs in the child, on another CPU: checks the pages that thread `thread` had mapped, and maps
 * new pages at the addresses of other threads' slots. */
static void inherit(int thread, int slots, uint64_t value, int round)
{
	go_to(thread + 1 + round % 3);
	for (int slot = 0; slot < slots; slot++)
		NEED(*place(thread, slot) == value + slot);
	map(THREADS, round % SLOTS, value);
	go_to(thread + 2 + round % 3);
	NEED(*place(THREADS, round % SLOTS) == value);
	if (round % 2 == 0)
		_exit(0);
	char cpu[16];
	snprintf(cpu, sizeof cpu, "%d", (thread + 2 + round % 3) % cpus);
	execl("/proc/self/exe", "far-maps", cpu, "executed", (char *)NULL);
	NEED(!"executed");
}

static void *work(void *argument)
{
	int thread = (int)(intptr_t)argument;
	for (int round = 0; round < rounds; round++) {
		uint64_t value = (uint64_t)thread << 32 | (uint64_t)round << 8 | 1;
		int slots = 1 + round % SLOTS;
		go_to(thread);
		for (int slot = 0; slot < slots; slot++)
			map(thread, slot, value + slot);
		pid_t child = fork();
		if (child == 0)
			inherit(thread, slots, value, round);
		int status;
		NEED(child > 0 && waitpid(child, &status, 0) == child && status == 0);
		for (int slot = 0; slot < slots; slot++) {
			NEED(*place(thread, slot) == value + slot);
			NEED(munmap((void *)place(thread, slot), PAGE) == 0);
		}
	}
	return NULL;
}

int main(int count, char **words)
{
	cpus = (int)sysconf(_SC_NPROCESSORS_ONLN);
	if (count == 3)
		return sched_getcpu() == atoi(words[1]) ? 0 : 1;
	NEED(count == 2);
	rounds = atoi(words[1]) / THREADS;
	pthread_t threads[THREADS];
	for (int thread = 0; thread < THREADS; thread++)
		NEED(pthread_create(&threads[thread], NULL, work, (void *)(intptr_t)thread) == 0);
	for (int thread = 0; thread < THREADS; thread++)
		NEED(pthread_join(threads[thread], NULL) == 0);
	printf("%d rounds\n", rounds * THREADS);
	return 0;
}
