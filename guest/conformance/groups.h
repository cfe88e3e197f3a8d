/* Control groups: mounts the tree, and makes one group in it for all groups of the test. Also
 * reads and writes their files. */
#include "promise.h"
#include "inside.h"

#include <sys/mount.h>

/* The mount point of the tree, and the path of the group that contains all groups of the test. */
static char top[128], base[192];
static char before[1280];

/* A path in the group of this program: "GROUP/FILE". Four may be in use at a time. */
static inline const char *at(const char *name)
{
	static char paths[4][512];
	static int next;
	char *path = paths[next++ % 4];
	snprintf(path, sizeof paths[0], "%s/%s", base, name);
	return path;
}

/* Writes to a file; returns 0 or the error. */
static inline int refuses(const char *path, const char *text)
{
	errno = 0;
	return writes(path, text) == 0 ? 0 : errno;
}

static inline int put(const char *path, long number)
{
	char text[32];
	snprintf(text, sizeof text, "%ld", number);
	return writes(path, text);
}

static inline int says(const char *path, const char *text)
{
	return !strcmp(reads(path), text);
}

/* Returns the number after a name in a file of lines, -1 for none. */
static inline long value(const char *path, const char *name)
{
	const char *text = reads(path);
	size_t length = strlen(name);
	for (const char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (!strncmp(line, name, length) && line[length] == ' ')
			return atol(line + length + 1);
	}
	return -1;
}

static inline int is_listed(const char *path, long number)
{
	for (const char *line = reads(path); line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (*line && atol(line) == number)
			return 1;
	}
	return 0;
}

/* Returns the group of a process: the text after "0::" in /proc/PID/cgroup. */
static inline const char *group_of(long pid)
{
	static char line[1024];
	char path[64];
	snprintf(path, sizeof path, "/proc/%ld/cgroup", pid);
	const char *found = strstr(reads(path), "0::");
	snprintf(line, sizeof line, "%s", found ? found + 3 : "none");
	line[strcspn(line, "\n")] = 0;
	return line;
}

static inline int ends_with(const char *text, const char *end)
{
	size_t have = strlen(text), want = strlen(end);
	return have >= want && !strcmp(text + have - want, end);
}

static inline void make(const char *name)
{
	NEED(mkdir(at(name), 0755) == 0);
}

static inline void drop(const char *name)
{
	NEED(COMES_TRUE(rmdir(at(name)) == 0));
}

/* A process that does nothing, in a group. */
static inline pid_t sleeper(const char *group)
{
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0)
		for (;;)
			pause();
	char path[64];
	snprintf(path, sizeof path, "%s/cgroup.procs", group);
	NEED(put(at(path), child) == 0);
	return child;
}

static inline int killed(pid_t child)
{
	int status;
	return waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

static inline void end(pid_t child)
{
	NEED(kill(child, SIGKILL) == 0 && killed(child));
}

/* Mounts the tree so that only this program sees the mount, and makes the group. */
static inline void begin_groups(void)
{
	NEED(unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
	snprintf(top, sizeof top, "/tmp/cgroup-%d", getpid());
	NEED(mkdir(top, 0755) == 0 && mount("none", top, "cgroup2", 0, NULL) == 0 && chdir("/tmp") == 0);
	snprintf(base, sizeof base, "%s/freehold-test", top);
	snprintf(before, sizeof before, "%s%s/cgroup.procs", top, group_of(getpid()));
	NEED(mkdir(base, 0755) == 0);
}

/* Removes the group and unmounts the tree. Returns whether nothing was left. */
static inline int end_groups(void)
{
	return COMES_TRUE(rmdir(base) == 0) && umount(top) == 0 && rmdir(top) == 0;
}

/* Whether the whole tree has a controller. */
static inline int has_controller(const char *name)
{
	char root[160];
	snprintf(root, sizeof root, "%s/cgroup.controllers", top);
	return strstr(reads(root), name) != NULL;
}

/* begin_groups() for groups with a controller. Returns 0, with nothing left, if the kernel does not
 * have it. */
static inline int begin_with_controller(const char *name)
{
	begin_groups();
	if (!has_controller(name)) {
		printf("# no controller %s here\n", name);
		end_groups();
		return 0;
	}
	char root[160], change[32];
	snprintf(root, sizeof root, "%s/cgroup.subtree_control", top);
	snprintf(change, sizeof change, "+%s", name);
	NEED(writes(root, change) == 0 && writes(at("cgroup.subtree_control"), change) == 0);
	return 1;
}
