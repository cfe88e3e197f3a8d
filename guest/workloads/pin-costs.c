/*
 * Cost of a pin, with the lock of the address space and without it. Needs gup_test. Each row is
 * a phase of the microscope, which counts the instructions of program and kernel together.
 * Prints the number of pins per row: `row NAME TIMES`.
 *
 *   freehold scope -m 256M -- target/guest/workloads/pin-costs
 *
 * | row | one time is |
 * |---|---|
 * | pin-fast | a page pinned and unpinned, by the look-up that takes no lock |
 * | pin-locked | the same with the space's lock |
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../tools/doorbell.h"

enum { PAGE = 4096, TIMES = 512, SLOTS = 16 };

#define NEED(condition)                                                     \
	do {                                                                \
		if (!(condition)) {                                         \
			fprintf(stderr, "pin-costs: %s: errno %d\n", #condition, errno); \
			exit(1);                                            \
		}                                                           \
	} while (0)

/* Layout as in Linux' mm/gup_test.h. */
struct measurement {
	uint64_t get_us, put_us, at, size;
	uint32_t pages_per_call, gup_flags, test_flags, which[8];
};

static void pins(int gup, const char *row, unsigned request, char *memory)
{
	struct measurement wish = { .at = (uintptr_t)memory, .size = TIMES * PAGE, .pages_per_call = SLOTS, .gup_flags = 1 };
	NEED(doorbell_phase(row) == 0);
	NEED(ioctl(gup, _IOWR('g', request, struct measurement), &wish) == 0 && wish.size == TIMES * PAGE);
	NEED(doorbell_phase("between") == 0);
	printf("row %s %d\n", row, TIMES);
}

int main(void)
{
	int gup = open("/sys/kernel/debug/gup_test", O_RDWR);
	NEED(gup >= 0);
	char *memory = mmap(NULL, TIMES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(memory != MAP_FAILED);
	madvise(memory, TIMES * PAGE, MADV_NOHUGEPAGE);
	for (int i = 0; i < TIMES; i++)
		((volatile char *)memory)[i * PAGE] = 1;
	pins(gup, "pin-fast", 2, memory);
	pins(gup, "pin-locked", 5, memory);
	return 0;
}
