/* phase NAME: begins a phase of that name in the counts of `freehold scope`. Has no effect outside
 * of it. */
#include <stdio.h>

#include "doorbell.h"

int main(int argc, char **argv)
{
	if (argc != 2 || argv[1][0] == 0) {
		fprintf(stderr, "usage: phase NAME\n");
		return 2;
	}
	if (doorbell_phase(argv[1]) != 0) {
		fprintf(stderr, "phase: a name has at most %d bytes\n", DOORBELL_MAX_NAME);
		return 2;
	}
	return 0;
}
