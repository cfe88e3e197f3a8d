// Costs of 256 MiB of anonymous memory in pages of 4 KiB and of 2 MiB: first stores, fork, stores
// that keep their frame and that copy, munmap. Times are nanoseconds by the guest's clock, which
// are instructions under --icount.
//
//   gcc -O2 -static -o huge-costs guest/workloads/huge-costs.c
//   freehold run --icount --cpus 1 -m 1G -- ./huge-costs
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096 };
static const size_t LARGE = 2 << 20, ALL = 256 << 20;

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

static void need(int done, const char *what)
{
	if (!done) {
		perror(what);
		exit(1);
	}
}

static uint64_t store(volatile char *from, size_t step)
{
	uint64_t start = now();
	for (size_t at = 0; at < ALL; at += step)
		from[at] = 1;
	return now() - start;
}

static void measure(const char *name, int advice, size_t step)
{
	char *room = mmap(NULL, ALL + LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	need(room != MAP_FAILED, "mmap");
	char *memory = (char *)(((uintptr_t)room + LARGE - 1) & ~(LARGE - 1));
	madvise(memory, ALL, advice);
	printf("%s first stores %lu each\n", name, store(memory, step) / (ALL / step));

	uint64_t start = now();
	pid_t child = fork();
	need(child >= 0, "fork");
	if (child == 0)
		_exit(0);
	waitpid(child, NULL, 0);
	printf("%s fork, exit, wait %lu\n", name, now() - start);
	printf("%s stores that keep %lu each\n", name, store(memory, step) / (ALL / step));

	int ends[2];
	need(pipe(ends) == 0, "pipe");
	child = fork();
	need(child >= 0, "fork");
	if (child == 0) {
		char byte;
		close(ends[1]);
		_exit(read(ends[0], &byte, 1) < 0);
	}
	volatile char *page = memory + 5 * PAGE;
	start = now();
	page[0] = 2;
	uint64_t first = now();
	page[PAGE] = 2;
	printf("%s stores that copy: the first %lu, the next %lu\n", name, first - start, now() - first);
	close(ends[1]);
	waitpid(child, NULL, 0);
	start = now();
	munmap(room, ALL + LARGE);
	printf("%s munmap %lu\n", name, now() - start);
}

int main(void)
{
	measure("4 KiB:", MADV_NOHUGEPAGE, PAGE);
	measure("2 MiB:", MADV_HUGEPAGE, LARGE);
	return 0;
}
