/* suite [-t SECONDS] LIST: runs the commands of a list one after the other, as tools/suites asks.
 *
 * A line of LIST is a name, a space and a command for /bin/sh; a line without a command runs the
 * program of that name. Each runs in a session of its own, in an empty folder /tmp/NAME (TMPDIR),
 * with nothing on its standard input, and is killed after SECONDS (60). Processes that it leaves
 * running are killed too: this program is the subreaper of orphans. The output is
 *
 *     @begin NAME
 *     ... what the command printed, its first and its last 16 KiB ...
 *     @end NAME RESULT SECONDS
 *
 * where RESULT is the exit status, "signal N", "timeout", or "stuck" if a process is left that
 * SIGKILL did not end within 20 seconds. After "stuck" no other command is run. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { KEPT = 16384, GRACE = 20, KERNEL_TASK = 0x200000 };

static double now(void)
{
	struct timespec at;
	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec + at.tv_nsec / 1e9;
}

/* The first and the last bytes of an output. */
static char head[KEPT], tail[KEPT];
static size_t total;

static void keep(const char *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++, total++) {
		if (total < KEPT)
			head[total] = bytes[i];
		tail[total % KEPT] = bytes[i];
	}
}

static void print_kept(void)
{
	size_t first = total < KEPT ? total : KEPT;
	fwrite(head, 1, first, stdout);
	size_t rest = total - first < KEPT ? total - first : KEPT;
	if (total - first > rest)
		printf("\n@cut %zu bytes\n", total - first - rest);
	for (size_t i = total - rest; i < total; i++)
		putchar(tail[i % KEPT]);
	if (total > 0 && tail[(total - 1) % KEPT] != '\n')
		putchar('\n');
}

static void drain(int output)
{
	char bytes[4096];
	ssize_t count;
	while ((count = read(output, bytes, sizeof bytes)) > 0)
		keep(bytes, count);
}

/* Kills every process that is neither this one nor its parent, and not one of the kernel's tasks
 * (PF_KTHREAD in the flags). Returns their number. */
static int kill_others(void)
{
	int found = 0;
	DIR *folder = opendir("/proc");
	struct dirent *entry;
	while (folder != NULL && (entry = readdir(folder)) != NULL) {
		int pid = atoi(entry->d_name);
		if (pid == 0 || pid == getpid() || pid == getppid())
			continue;
		char path[64], text[512];
		snprintf(path, sizeof path, "/proc/%d/stat", pid);
		int file = open(path, O_RDONLY | O_CLOEXEC);
		ssize_t count = file < 0 ? -1 : read(file, text, sizeof text - 1);
		if (file >= 0)
			close(file);
		if (count <= 0)
			continue;
		text[count] = 0;
		char state;
		int parent;
		unsigned flags;
		char *behind = strrchr(text, ')');
		if (behind == NULL || sscanf(behind + 1, " %c %d %*d %*d %*d %*d %u", &state, &parent, &flags) != 3 ||
		    (flags & KERNEL_TASK))
			continue;
		kill(pid, SIGKILL);
		found += state != 'Z' || parent == getpid();
	}
	if (folder != NULL)
		closedir(folder);
	return found;
}

static void in_child(const char *folder, const char *command, int output)
{
	setsid();
	if (mkdir(folder, 0777) != 0 || chmod(folder, 0777) != 0 || chdir(folder) != 0)
		perror(folder);
	setenv("TMPDIR", folder, 1);
	int empty = open("/dev/null", O_RDONLY);
	dup2(empty, 0);
	dup2(output, 1);
	dup2(output, 2);
	if (empty > 2)
		close(empty);
	signal(SIGINT, SIG_DFL);
	execl("/bin/sh", "sh", "-c", command, (char *)NULL);
	perror("/bin/sh");
	_exit(127);
}

/* Waits for `child` until `end`, then for the processes that it left. Returns 1 if a process is
 * stuck, else 0. */
static int wait_for(pid_t child, double end, int output, char *result, size_t room)
{
	int killed = 0, status = 0, ended = 0;
	for (;;) {
		struct pollfd readable = { .fd = output, .events = POLLIN };
		poll(&readable, 1, 20);
		drain(output);
		pid_t found;
		int one;
		while ((found = waitpid(-1, &one, WNOHANG)) > 0)
			if (found == child) {
				ended = 1;
				status = one;
			}
		if (!ended && !killed && now() >= end) {
			killed = 1;
			end = now() + GRACE;
			snprintf(result, room, "timeout");
			kill(-child, SIGKILL);
		} else if (ended && !killed) {
			killed = 1;
			end = now() + GRACE;
			if (WIFEXITED(status))
				snprintf(result, room, "%d", WEXITSTATUS(status));
			else
				snprintf(result, room, "signal %d", WTERMSIG(status));
		}
		if (killed && kill_others() == 0 && ended && waitpid(-1, NULL, WNOHANG) < 0)
			return 0;
		if (killed && now() >= end) {
			snprintf(result, room, "stuck");
			return 1;
		}
	}
}

static int run(const char *name, const char *command, double seconds)
{
	int ends[2];
	char result[32] = "", folder[300];
	double begun = now();
	total = 0;
	if (snprintf(folder, sizeof folder, "/tmp/%s", name) >= (int)sizeof folder)
		return 1;
	printf("@begin %s\n", name);
	fflush(stdout);
	if (pipe2(ends, O_CLOEXEC) != 0) {
		perror("suite: pipe2");
		return 1;
	}
	fcntl(ends[0], F_SETFL, O_NONBLOCK);
	pid_t child = fork();
	if (child < 0) {
		perror("suite: fork");
		return 1;
	}
	if (child == 0)
		in_child(folder, command, ends[1]);
	close(ends[1]);
	int stuck = wait_for(child, begun + seconds, ends[0], result, sizeof result);
	drain(ends[0]);
	close(ends[0]);
	print_kept();
	printf("@end %s %s %.1f\n", name, result, now() - begun);
	fflush(stdout);
	if (stuck)
		return 1;
	return system("cd /tmp && rm -rf ./* /dev/shm/* 2>/dev/null") == -1;
}

int main(int argc, char **argv)
{
	double seconds = 60;
	int option;
	while ((option = getopt(argc, argv, "t:")) == 't')
		seconds = atof(optarg);
	FILE *list = option == -1 && optind + 1 == argc ? fopen(argv[optind], "re") : NULL;
	if (list == NULL) {
		fprintf(stderr, "usage: suite [-t SECONDS] LIST\n");
		return 2;
	}
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	signal(SIGINT, SIG_IGN);
	char line[4096];
	while (fgets(line, sizeof line, list) != NULL) {
		line[strcspn(line, "\n")] = 0;
		char *command = strchr(line, ' ');
		if (command != NULL)
			*command++ = 0;
		if (line[0] != 0 && run(line, command != NULL ? command : line, seconds) != 0)
			return 1;
	}
	return 0;
}
