/*
 * Reads another process' memory COUNT times, one page per call. Prints the number of bytes that
 * were right.
 *
 * Usage: foreign COUNT
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 64 };

int main(int words, char **word)
{
	int count = words > 1 ? atoi(word[1]) : 1000, ready[2], status;
	char *pages = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), byte = 0;
	if (pages == MAP_FAILED || pipe(ready) != 0)
		return 1;
	memset(pages, 1, PAGES * PAGE);
	pid_t child = fork();
	if (child == 0) {
		memset(pages, 2, PAGES * PAGE);
		if (write(ready[1], "x", 1) != 1)
			return 1;
		for (;;)
			pause();
	}
	if (child < 0 || read(ready[0], &byte, 1) != 1)
		return 1;
	long right = 0;
	for (int i = 0; i < count; i++) {
		struct iovec to = { &byte, 1 }, from = { pages + i % PAGES * PAGE, 1 };
		right += process_vm_readv(child, &to, 1, &from, 1, 0) == 1 && byte == 2;
	}
	kill(child, SIGKILL);
	if (waitpid(child, &status, 0) != child)
		return 1;
	printf("%ld\n", right);
	return 0;
}
