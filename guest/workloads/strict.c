/*
 * Runs a program in strict mode: Freehold flushes each window as it closes (prctl 0x58504601),
 * whatever the machine's policy. First checks which arguments the call refuses. On another
 * kernel the call is unknown and the status is 22 (EINVAL).
 *
 * Usage: strict PROGRAM [ARGUMENT]...
 */
#include <errno.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { SET_XPFO = 0x58504601, GET_XPFO = 0x58504602 };

int main(int count, char **words)
{
	if (count < 2)
		return 2;
	if (prctl(SET_XPFO, 2, 0, 0, 0) != -1 || errno != EINVAL || prctl(SET_XPFO, 1, 0, 0, 1) != -1 || errno != EINVAL)
		return 3;
	if (prctl(SET_XPFO, 1, 0, 0, 0) != 0)
		return errno;
	if (prctl(GET_XPFO) != 1)
		return 4;
	execv(words[1], words + 1);
	perror(words[1]);
	return 5;
}
