/*
 * Threads that enter the kernel in every way while RFLAGS.AC is set: page faults, breakpoints, bad
 * addresses, signals of each other, preemption, system calls whose buffers fault. AC switches SMAP
 * off, and no gate clears AC: the kernel has to do so.
 *
 * Usage: alignment-flag THREADS ROUNDS. After each return, AC has to be set as before. Prints the
 * number of entries; exits with 0, or with 1 if AC was lost. While AC is set, the program makes
 * only aligned accesses, so hardware that checks alignment (CR0.AM) raises nothing.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define AC (1ul << 18)
#define PAGE 4096
#define PAGES 16
#define MOST_THREADS 64
/* Long enough for a timer tick to arrive in between. */
#define SPINS 200000

static int sink, threads;
static long rounds;
static pthread_t thread[MOST_THREADS];
static unsigned long faults, traps, bad, told, calls, lost;

static inline unsigned long flags(void)
{
	unsigned long value;
	/* The flags must not be pushed into the red zone. */
	asm volatile("lea -128(%%rsp), %%rsp\n\tpushfq\n\tpop %0\n\tlea 128(%%rsp), %%rsp" : "=r"(value) : : "memory");
	return value;
}

static inline void set_flags(unsigned long value)
{
	asm volatile("lea -128(%%rsp), %%rsp\n\tpush %0\n\tpopfq\n\tlea 128(%%rsp), %%rsp" : : "r"(value) : "memory", "cc");
}

static inline void count(unsigned long *counter)
{
	__atomic_add_fetch(counter, 1, __ATOMIC_RELAXED);
}

/* Checks that AC is still set, as before the kernel was entered. */
static inline void check(unsigned long *counter)
{
	count(flags() & AC ? counter : &lost);
}

static inline long call(long number, long first, long second, long third)
{
	long result;
	asm volatile("syscall" : "=a"(result) : "a"(number), "D"(first), "S"(second), "d"(third) : "rcx", "r11", "memory");
	return result;
}

/* Linux enters handlers with AC as it was; the C library may not tolerate it. */
static void on_signal(int number, siginfo_t *info, void *raw)
{
	set_flags(flags() & ~AC);
	ucontext_t *context = raw;
	(void)info;
	if (number == SIGSEGV)
		context->uc_mcontext.gregs[REG_RIP] += 3;
	if (number == SIGUSR1)
		count(&told);
}

static void *work(void *argument)
{
	long self = (long)argument;
	for (long round = 0; round < rounds; round++) {
		char *area = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (area == MAP_FAILED) {
			perror("alignment-flag: mmap");
			exit(2);
		}
		unsigned long plain = flags();
		set_flags(plain | AC);
		for (int page = 0; page < PAGES / 2; page++) {
			*(volatile uint64_t *)(area + page * PAGE) = page;
			check(&faults);
		}
		asm volatile("int3" : : : "memory");
		check(&traps);
		/* A non-canonical address raises a general protection fault, and a kernel
		 * address raises a page fault. The handler skips 3 bytes. */
		asm volatile("mov (%%rcx), %%rax" : : "c"(1ul << 60) : "rax", "memory");
		check(&bad);
		asm volatile("mov (%%rcx), %%rax" : : "c"(-1ul << 21) : "rax", "memory");
		check(&bad);
		/* Buffers in pages that are not present yet. */
		call(SYS_clock_gettime, CLOCK_MONOTONIC, (long)(area + 9 * PAGE), 0);
		check(&calls);
		call(SYS_write, sink, (long)(area + 10 * PAGE), 2 * PAGE);
		check(&calls);
		call(SYS_sched_yield, 0, 0, 0);
		check(&calls);
		for (volatile int spin = 0; spin < SPINS; spin++)
			;
		check(&faults);
		set_flags(plain);
		pthread_kill(thread[(self + 1) % threads], SIGUSR1);
		munmap(area, PAGES * PAGE);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	threads = argc > 1 ? atoi(argv[1]) : 0;
	rounds = argc > 2 ? atol(argv[2]) : 0;
	if (threads < 1 || threads > MOST_THREADS || rounds < 1) {
		fprintf(stderr, "usage: alignment-flag THREADS ROUNDS (1 to %d threads)\n", MOST_THREADS);
		return 2;
	}
	/* The kernel reads the bytes of writes to this file. */
	sink = memfd_create("sink", 0);
	struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART };
	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGTRAP, &action, NULL);
	sigaction(SIGUSR1, &action, NULL);
	/* Each thread signals the next, which may not have begun. */
	for (int number = 0; number < threads; number++)
		thread[number] = pthread_self();
	for (long number = 1; number < threads; number++) {
		pthread_t fresh;
		if (pthread_create(&fresh, NULL, work, (void *)number)) {
			perror("alignment-flag: thread");
			return 2;
		}
		thread[number] = fresh;
	}
	work(NULL);
	for (int number = 1; number < threads; number++)
		pthread_join(thread[number], NULL);
	printf("alignment-flag: %lu faults, %lu breakpoints, %lu bad addresses, %lu calls with AC set, %lu signals; AC lost %lu times\n",
	       faults, traps, bad, calls, told, lost);
	return lost != 0;
}
