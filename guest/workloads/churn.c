/*
 * Memory that is mapped and unmapped in pieces: processes in turn map areas of random size, use
 * every page, and unmap a random half; again and again.
 *
 * Usage: churn MIB [ROUNDS [PROCESSES]]. Up to MIB of memory are in use by all PROCESSES (4)
 * together. They run at the same time; each round (8 if not given) has new processes. They
 * fragment free memory as much as possible: areas that were mapped together are unmapped apart.
 * The kernel's closing audit judges the result. Prints the rounds and how many processes failed;
 * exits with 0 if none did.
 */
#include "../conformance/promise.h"
#include "../tools/dice.h"

#define PASSES 6
/* A quarter of the areas is up to 2 MiB, the others up to 256 KiB. */
#define SMALL 64
#define LARGE 512
#define PAGE 4096ul

struct area {
	char *start;
	size_t pages;
};

static size_t map_some(struct dice *dice, struct area *area)
{
	area->pages = 1 + below(dice, below(dice, 4) ? SMALL : LARGE);
	area->start = mmap(NULL, area->pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (area->start == MAP_FAILED)
		_exit(100);
	for (size_t page = 0; page < area->pages; page++)
		area->start[page * PAGE] = (char)page;
	return area->pages;
}

static void live(struct dice *dice, size_t pages)
{
	struct area *areas = calloc(pages + 1, sizeof *areas);
	size_t count = 0, used = 0;
	for (int pass = 0; areas && pass < PASSES; pass++) {
		while (used < pages)
			used += map_some(dice, &areas[count++]);
		for (size_t at = 0; at < count;) {
			if (below(dice, 2)) {
				at++;
				continue;
			}
			munmap(areas[at].start, areas[at].pages * PAGE);
			used -= areas[at].pages;
			areas[at] = areas[--count];
		}
	}
	_exit(areas ? 0 : 100);
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		fprintf(stderr, "usage: churn MIB [ROUNDS [PROCESSES]]\n");
		return 2;
	}
	size_t pages = strtoul(argv[1], NULL, 0) * 256;
	int rounds = argc > 2 ? atoi(argv[2]) : 8, processes = argc > 3 ? atoi(argv[3]) : 4, failed = 0;
	for (int round = 0; round < rounds; round++) {
		for (int i = 0; i < processes; i++) {
			struct dice dice = { (uint64_t)(round * processes + i + 1) * 0x9e3779b97f4a7c15ull };
			pid_t child = fork();
			NEED(child >= 0);
			if (child == 0)
				live(&dice, pages / processes);
		}
		for (int i = 0; i < processes; i++) {
			int status;
			NEED(wait(&status) > 0);
			failed += status != 0;
		}
	}
	printf("churn: %d rounds of %d processes, %d failed\n", rounds, processes, failed);
	return failed != 0;
}
