/*
 * held-bytes secret|plain: holds 1 MiB of its bytes, in memory of memfd_secret(2) or in ordinary
 * memory, during the phase "held" (guest/tools/phase.c).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../tools/doorbell.h"

#define SIZE (1 << 20)

int main(int argc, char **argv)
{
	int fd = -1, flags = MAP_PRIVATE | MAP_ANONYMOUS;
	if (argc == 2 && strcmp(argv[1], "secret") == 0) {
		fd = (int)syscall(447 /* memfd_secret */, 0);
		flags = MAP_SHARED;
		if (fd < 0 || ftruncate(fd, SIZE) != 0) {
			perror("held-bytes: memfd_secret");
			return 1;
		}
	} else if (argc != 2 || strcmp(argv[1], "plain") != 0) {
		fprintf(stderr, "usage: held-bytes secret|plain\n");
		return 2;
	}
	char *bytes = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, flags, fd, 0);
	if (bytes == MAP_FAILED) {
		perror("held-bytes: mmap");
		return 1;
	}
	memset(bytes, 0x5a, SIZE);
	return doorbell_phase("held") + doorbell_phase("done");
}
