/* Files of /proc whose length a program chooses: arguments and environment, mounts, the files that
 * a descriptor watches. They are read in small pieces, whole, and as long as they are. */
#include "promise.h"
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/stat.h>

extern char **environ;

enum { STRINGS = 15, LENGTH = 100000, WATCHES = 600, MOUNTS = 400 };

static char text[4 << 20];

/* Reads a file in pieces of `piece` bytes, to its end. Returns its length, -1 for an error. */
static long read_all(const char *path, size_t piece)
{
	int file = open(path, O_RDONLY);
	long length = 0;
	ssize_t got = -1;
	while (file >= 0 && length + piece < sizeof text && (got = read(file, text + length, piece)) > 0)
		length += got;
	text[got < 0 ? 0 : length] = 0;
	close(file);
	return got < 0 ? -1 : length;
}

static long count(const char *what)
{
	long found = 0;
	for (const char *at = text; (at = strstr(at, what)); at += strlen(what))
		found++;
	return found;
}

/* Length of all strings of a list, with their zeroes. */
static long length_of(char **strings)
{
	long length = 0;
	for (; *strings; strings++)
		length += strlen(*strings) + 1;
	return length;
}

/* Runs in a new program: 0 if both files are as long as the strings, and end as they end. */
static int strings(char **argv)
{
	long wanted = length_of(environ);
	char **last = environ;
	while (last[1])
		last++;
	if (read_all("/proc/self/environ", 5000) != wanted || strcmp(text + wanted - strlen(*last) - 1, *last))
		return 2;
	if (read_all("/proc/self/cmdline", 70000) != length_of(argv) || strcmp(text + strlen(argv[0]) + 1, "strings"))
		return 3;
	int file = open("/proc/self/environ", O_RDONLY);
	char piece[100];
	if (pread(file, piece, 100, LENGTH * 12) != 100 || pread(file, piece, 100, wanted) != 0)
		return 4;
	return 0;
}

static void long_strings(void)
{
	static char *arguments[] = { "long-texts", "strings", NULL, NULL }, *environment[STRINGS + 1];
	int status;
	for (int i = 0; i < STRINGS; i++) {
		NEED((environment[i] = malloc(LENGTH + 1)) != NULL);
		memset(environment[i], 'a' + i, LENGTH);
		environment[i][1] = '=';
		environment[i][LENGTH] = 0;
	}
	arguments[2] = environment[0];
	IN_CHILD(status, execve("/proc/self/exe", arguments, environment); _exit(1));
	PROMISE("environ and cmdline show all of a long environment and long arguments", status == 0);
}

/* A program may write over its arguments. Where it ends them with another byte than zero, they go
 * on in its environment. */
static void titles(char **argv)
{
	char *start = argv[0], *end = start;
	int status;
	for (char **each = argv; *each; each++)
		end = *each + strlen(*each) + 1;
	NEED(end == environ[0] && strlen(environ[0]) > 8);
	IN_CHILD(status, {
		memset(start, 't', end - start);
		memcpy(end - 1, " title", 7);
		if (read_all("/proc/self/cmdline", 3) != end - start + 6 || strcmp(text + (end - start) - 1, " title"))
			_exit(1);
		memset(start, 0, end - start);
		strcpy(start, "x");
		_exit(read_all("/proc/self/cmdline", 4096) != end - start || strcmp(text, "x"));
	});
	PROMISE("a program's title is shown to its end", status == 0);
}

static void watched(void)
{
	char path[64];
	int poller = epoll_create1(0), watcher = inotify_init1(0);
	struct epoll_event event = { .events = EPOLLIN };
	NEED(poller >= 0 && watcher >= 0);
	for (int i = 0; i < WATCHES; i++) {
		int file = eventfd(0, 0);
		snprintf(path, sizeof path, "/tmp/watched-%d", i);
		NEED(file >= 0 && epoll_ctl(poller, EPOLL_CTL_ADD, file, &event) == 0);
		NEED(mknod(path, S_IFREG | 0600, 0) == 0 && inotify_add_watch(watcher, path, IN_OPEN) > 0);
	}
	snprintf(path, sizeof path, "/proc/self/fdinfo/%d", poller);
	PROMISE("fdinfo has a line for each file that an epoll instance watches",
		read_all(path, 1000) > 0 && count("tfd:") == WATCHES && count("pos:\t0\n") == 1 && count("flags:\t02\n") == 1);
	snprintf(path, sizeof path, "/proc/self/fdinfo/%d", watcher);
	PROMISE("and one for each that inotify watches", read_all(path, 1) > 0 && count("inotify wd:") == WATCHES && count("inotify wd:258 ") == 1);
	for (int i = 0; i < WATCHES; i++) {
		snprintf(path, sizeof path, "/tmp/watched-%d", i);
		unlink(path);
	}
}

static void mounts(void)
{
	int status;
	if (geteuid() != 0)
		return;
	IN_CHILD(status, {
		char path[64];
		NEED(unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
		NEED(read_all("/proc/self/mountinfo", 100) > 0);
		long before = count("\n");
		NEED(mkdir("/tmp/mounts", 0700) == 0 && mount("a b\\", "/tmp/mounts", "tmpfs", 0, NULL) == 0);
		for (int i = 1; i < MOUNTS; i++) {
			snprintf(path, sizeof path, "/tmp/mounts/%d", i);
			NEED(mkdir(path, 0700) == 0 && mount("none", path, "tmpfs", 0, NULL) == 0);
		}
		if (read_all("/proc/self/mountinfo", 100) <= 0 || count("\n") != before + MOUNTS || count(" /tmp/mounts/399 ") != 1)
			_exit(1);
		if (read_all("/proc/self/mounts", 7) <= 0 || count("none /tmp/mounts/") != MOUNTS - 1 || count("a\\040b\\134 /tmp/mounts ") != 1)
			_exit(2);
		/* Mounts that were shown are unmounted while the rest is read: none of the others is missing. */
		int file = open("/proc/self/mounts", O_RDONLY);
		long length = 0;
		ssize_t got;
		int gone = 1;
		while ((got = read(file, text + length, 2000)) > 0) {
			length += got;
			text[length] = 0;
			snprintf(path, sizeof path, " /tmp/mounts/%d tmpfs", gone);
			if (strstr(text, path)) {
				snprintf(path, sizeof path, "/tmp/mounts/%d", gone++);
				NEED(umount(path) == 0);
			}
		}
		if (gone < 5 || count("none /tmp/mounts/") != MOUNTS - 1)
			_exit(3);
		NEED(umount2("/tmp/mounts", MNT_DETACH) == 0 && rmdir("/tmp/mounts") == 0);
		_exit(read_all("/proc/self/mountinfo", 100) <= 0 || count("\n") != before ? 4 : 0);
	});
	PROMISE("mounts are shown one by one, each once, also while others are unmounted", status == 0);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "strings"))
		return strings(argv);
	if (argc == 1) {
		/* Known strings, on both kernels. */
		char *arguments[] = { argv[0], "again", NULL }, *environment[] = { "LONG=0123456789", "HOME=/", NULL };
		execve("/proc/self/exe", arguments, environment);
		return 1;
	}
	long_strings();
	titles(argv);
	watched();
	mounts();
	return conclude();
}
