/*
 * Runs a program all of whose private memory is merged where pages are equal, without a pause
 * between the scans: whatever it promises about its memory must hold then, too. Ends with status 77
 * where the kernel cannot merge.
 *
 *   freehold run -m 512M --cpus 2 -- target/guest/workloads/merging target/guest/conformance/pins
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static int set(const char *name, const char *value)
{
	char path[64];
	snprintf(path, sizeof path, "/sys/kernel/mm/ksm/%s", name);
	int file = open(path, O_WRONLY);
	return file >= 0 && write(file, value, strlen(value)) == (ssize_t)strlen(value) && close(file) == 0;
}

int main(int count, char **arguments)
{
	if (count < 2) {
		fprintf(stderr, "usage: merging PROGRAM [ARGUMENT...]\n");
		return 125;
	}
	int ready = set("sleep_millisecs", "0") && set("pages_to_scan", "1000") && set("use_zero_pages", "1") && set("run", "1");
	if (!ready || prctl(67 /* PR_SET_MEMORY_MERGE */, 1, 0, 0, 0) != 0) {
		fprintf(stderr, "merging: this kernel cannot merge: %s\n", strerror(errno));
		return 77;
	}
	execvp(arguments[1], arguments + 1);
	fprintf(stderr, "merging: %s: %s\n", arguments[1], strerror(errno));
	return 127;
}
