/* Control groups, version 2: the tree, members, freezing and killing, delegation, cgroup
 * namespaces, and the controller pids if the kernel has it. */
#include "groups.h"

#include <dirent.h>
#include <linux/sched.h>
#include <sys/inotify.h>
#include <sys/vfs.h>
#include <sys/xattr.h>

#ifndef CLONE_NEWCGROUP
#define CLONE_NEWCGROUP 0x02000000
#endif
#ifndef CLONE_INTO_CGROUP
#define CLONE_INTO_CGROUP 0x200000000ULL
#endif

static int has_pids;

static void file_system(void)
{
	struct statfs told;
	struct stat file;
	PROMISE("the file system says what it is", statfs(top, &told) == 0 && told.f_type == 0x63677270);
	PROMISE("a second mount shows the same tree",
		mkdir("again", 0755) == 0 && mount("none", "again", "cgroup2", 0, NULL) == 0 &&
		    access("again/freehold-test", F_OK) == 0 && umount("again") == 0);
	FAILS_WITH("an option that there is not", mount("none", "again", "cgroup2", 0, "nothing"), EINVAL);
	PROMISE("/proc/filesystems names it", strstr(reads("/proc/filesystems"), "nodev\tcgroup2\n"));
	make("a");
	PROMISE("a group is a directory with files",
		stat(at("a"), &file) == 0 && S_ISDIR(file.st_mode) && (file.st_mode & 07777) == 0755 && file.st_nlink == 2);
	PROMISE("modes of files", stat(at("a/cgroup.procs"), &file) == 0 && file.st_mode == (S_IFREG | 0644) &&
				      stat(at("a/cgroup.kill"), &file) == 0 && file.st_mode == (S_IFREG | 0200) &&
				      stat(at("a/cgroup.events"), &file) == 0 && file.st_mode == (S_IFREG | 0444));
	char root[160];
	snprintf(root, sizeof root, "%s/cgroup.events", top);
	FAILS_WITH("the root has no cgroup.events", access(root, F_OK), ENOENT);
	snprintf(root, sizeof root, "%s/cgroup.freeze", top);
	FAILS_WITH("the root is not frozen", access(root, F_OK), ENOENT);
	FAILS_WITH("a name that is taken", mkdir(at("a"), 0755), EEXIST);
	FAILS_WITH("a name that a file has", mkdir(at("a/cgroup.procs"), 0755), EEXIST);
	FAILS_WITH("a name with a line feed", mkdir(at("a/b\nc"), 0755), EINVAL);
	FAILS_WITH("no file is made", open(at("a/new"), O_CREAT | O_WRONLY, 0644), EACCES);
	FAILS_WITH("no fifo is made", mknod(at("a/new"), S_IFIFO | 0644, 0), EPERM);
	FAILS_WITH("no link is made", symlink("x", at("a/new")), EPERM);
	FAILS_WITH("no file is removed", unlink(at("a/cgroup.procs")), EPERM);
	FAILS_WITH("no group is renamed", rename(at("a"), at("b")), EPERM);
	FAILS_WITH("no file is a directory", rmdir(at("a/cgroup.procs")), ENOTDIR);
	PROMISE("a file that tells takes nothing", refuses(at("a/cgroup.events"), "1") == EINVAL);
	int kills = open(at("a/cgroup.kill"), O_RDONLY);
	char byte;
	FAILS_WITH("a file that takes tells nothing", read(kills, &byte, 1), EINVAL);
	close(kills);
	make("a/b");
	FAILS_WITH("a group with a group below is not removed", rmdir(at("a")), EBUSY);
	PROMISE("links count groups below", stat(at("a"), &file) == 0 && file.st_nlink == 3);
	int dir = open(at("a/b"), O_RDONLY | O_DIRECTORY), events = openat(dir, "cgroup.events", O_RDONLY);
	NEED(dir >= 0 && events >= 0);
	drop("a/b");
	FAILS_WITH("a file of a removed group", pread(events, &byte, 1, 0), ENODEV);
	FAILS_WITH("a removed group has no files", openat(dir, "cgroup.events", O_RDONLY), ENOENT);
	PROMISE("and none is made in it", mkdirat(dir, "x", 0755) == -1 && (errno == ENODEV || errno == ENOENT));
	close(events);
	close(dir);
	drop("a");
}

static void settings(void)
{
	make("a");
	PROMISE("a group is a domain", says(at("a/cgroup.type"), "domain\n"));
	PROMISE("no other type", refuses(at("a/cgroup.type"), "domain") == EINVAL);
	PROMISE("limits are none at first",
		says(at("a/cgroup.max.depth"), "max\n") && says(at("a/cgroup.max.descendants"), "max\n"));
	PROMISE("a limit is a number or max", refuses(at("a/cgroup.max.depth"), "-1") == ERANGE &&
						  refuses(at("a/cgroup.max.depth"), "x") == EINVAL &&
						  refuses(at("a/cgroup.max.descendants"), "3000000000") == ERANGE);
	PROMISE("a limit of levels", writes(at("a/cgroup.max.depth"), "1\n") == 0 && says(at("a/cgroup.max.depth"), "1\n"));
	make("a/b");
	FAILS_WITH("holds below", mkdir(at("a/b/c"), 0755), EAGAIN);
	PROMISE("and can be lifted", writes(at("a/cgroup.max.depth"), "max") == 0 && mkdir(at("a/b/c"), 0755) == 0);
	PROMISE("a limit of groups", writes(at("a/cgroup.max.descendants"), "2") == 0);
	FAILS_WITH("holds at any level", mkdir(at("a/b/c/d"), 0755), EAGAIN);
	PROMISE("cgroup.stat counts groups", value(at("a/cgroup.stat"), "nr_descendants") == 2);
	drop("a/b/c");
	drop("a/b");
	PROMISE("and those that are left", value(at("a/cgroup.stat"), "nr_descendants") == 0);
	PROMISE("controllers are named with a sign", refuses(at("a/cgroup.subtree_control"), "pids") == EINVAL &&
							 refuses(at("a/cgroup.subtree_control"), "+nothing") == EINVAL);
	PROMISE("no controller acts that was not passed on", says(at("a/cgroup.controllers"), ""));
	drop("a");
}

static void membership(void)
{
	make("a");
	make("a/b");
	pid_t child = sleeper("a/b");
	PROMISE("a process is moved by its number", is_listed(at("a/b/cgroup.procs"), child));
	PROMISE("and is where /proc says", ends_with(group_of(child), "/freehold-test/a/b"));
	PROMISE("threads are listed", is_listed(at("a/b/cgroup.threads"), child));
	PROMISE("groups above do not list it", says(at("a/cgroup.procs"), ""));
	PROMISE("but are populated",
		value(at("a/cgroup.events"), "populated") == 1 && value(at("a/b/cgroup.events"), "populated") == 1);
	FAILS_WITH("a group with a process is not removed", rmdir(at("a/b")), EBUSY);
	PROMISE("a thread stays with its process", refuses(at("a/cgroup.threads"), "0") == EOPNOTSUPP);
	PROMISE("numbers that mean nothing", refuses(at("a/cgroup.procs"), "-1") == EINVAL &&
						 refuses(at("a/cgroup.procs"), "x") == EINVAL &&
						 refuses(at("a/cgroup.procs"), "999999") == ESRCH);
	int status;
	IN_CHILD(status, {
		if (writes(at("a/cgroup.procs"), "0\n") || !ends_with(group_of(getpid()), "/a"))
			_exit(1);
		pid_t grandchild = fork();
		if (grandchild == 0)
			_exit(!ends_with(group_of(getpid()), "/a"));
		_exit(!ends_well(grandchild));
	});
	PROMISE("0 is the writer, and a child is in its group", status == 0);
	NEED(kill(child, SIGKILL) == 0);
	PROMISE("an end empties the group", COMES_TRUE(value(at("a/cgroup.events"), "populated") == 0));
	PROMISE("the ended is not listed", says(at("a/b/cgroup.procs"), ""));
	PROMISE("but is in its group until it is waited for", ends_with(group_of(child), "/a/b"));
	PROMISE("it is not moved any more", writes(at("a/cgroup.procs"), "0") == 0 && put(at("a/cgroup.procs"), child) == 0 &&
						ends_with(group_of(child), "/a/b"));
	NEED(writes(at("cgroup.procs"), "0") == 0);
	PROMISE("its group can be removed", COMES_TRUE(rmdir(at("a/b")) == 0));
	PROMISE("which its path says", ends_with(group_of(child), "/a/b (deleted)"));
	NEED(killed(child));
	drop("a");
}

static void events(void)
{
	make("a");
	int file = open(at("a/cgroup.events"), O_RDONLY), watch = inotify_init1(IN_NONBLOCK);
	char text[64];
	NEED(file >= 0 && watch >= 0 && inotify_add_watch(watch, at("a/cgroup.events"), IN_MODIFY) > 0);
	struct pollfd polled = { file, POLLPRI, 0 };
	NEED(read(file, text, sizeof text) > 0);
	PROMISE("nothing to tell yet", poll(&polled, 1, 0) == 0 && read(watch, text, sizeof text) == -1 && errno == EAGAIN);
	pid_t child = sleeper("a");
	PROMISE("poll tells that a group is populated", poll(&polled, 1, 60000) == 1 && polled.revents == (POLLPRI | POLLERR));
	char buffer[4096] __attribute__((aligned(8)));
	PROMISE("and so does inotify", COMES_TRUE(read(watch, buffer, sizeof buffer) > 0) &&
					   ((struct inotify_event *)buffer)->mask == IN_MODIFY);
	PROMISE("until it is read", pread(file, text, sizeof text, 0) > 0 && poll(&polled, 1, 0) == 0 &&
					!strncmp(text, "populated 1\n", 12));
	end(child);
	PROMISE("the end wakes a poller", poll(&polled, 1, 60000) == 1);
	close(file);
	NEED(COMES_TRUE(read(watch, buffer, sizeof buffer) > 0));
	close(watch);
	drop("a");
}

/* Return whether the counter of a process continues, or stands still. */
static int goes_on(volatile long *count)
{
	long from = *count;
	return COMES_TRUE(*count != from);
}

static int stands_still(volatile long *count)
{
	long from = *count;
	sleep_ms(30);
	return *count == from;
}

static void leaves(int number)
{
	_exit(number);
}

static pid_t counter(const char *group, volatile long *count)
{
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		signal(SIGUSR1, leaves);
		for (;;)
			++*count;
	}
	NEED(put(at(group), child) == 0);
	return child;
}

static void freezing(void)
{
	volatile long *count = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	make("a");
	make("a/b");
	pid_t child = counter("a/b/cgroup.procs", count), idle = sleeper("a"), other = sleeper("a");
	NEED(goes_on(count));
	PROMISE("a group is frozen", writes(at("a/cgroup.freeze"), "1") == 0 && says(at("a/cgroup.freeze"), "1\n"));
	PROMISE("which is told once all stand still", COMES_TRUE(value(at("a/cgroup.events"), "frozen") == 1));
	PROMISE("with those below", value(at("a/b/cgroup.events"), "frozen") == 1 && says(at("a/b/cgroup.freeze"), "0\n"));
	PROMISE("no instruction is executed", stands_still(count));
	NEED(kill(child, SIGUSR1) == 0);
	PROMISE("a signal waits", stands_still(count) && waitpid(child, NULL, WNOHANG) == 0);
	NEED(writes(at("a/b/cgroup.freeze"), "1") == 0 && writes(at("a/cgroup.freeze"), "0") == 0);
	PROMISE("what is frozen twice is thawed twice",
		COMES_TRUE(value(at("a/cgroup.events"), "frozen") == 0) && value(at("a/b/cgroup.events"), "frozen") == 1);
	int status;
	NEED(writes(at("a/b/cgroup.freeze"), "0") == 0);
	PROMISE("then the signal is acted on",
		waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == SIGUSR1);
	child = counter("a/cgroup.procs", count);
	NEED(goes_on(count) && writes(at("a/b/cgroup.freeze"), "1") == 0);
	PROMISE("an empty group is frozen at once", COMES_TRUE(value(at("a/b/cgroup.events"), "frozen") == 1));
	NEED(put(at("a/b/cgroup.procs"), child) == 0);
	PROMISE("who comes to a frozen group stands still", COMES_TRUE(stands_still(count)));
	PROMISE("and it is frozen again", COMES_TRUE(value(at("a/b/cgroup.events"), "frozen") == 1));
	NEED(put(at("a/cgroup.procs"), child) == 0);
	PROMISE("who leaves goes on", goes_on(count));
	NEED(kill(child, SIGSTOP) == 0 && COMES_TRUE(task_state(child, child) == 'T'));
	NEED(writes(at("a/cgroup.freeze"), "1") == 0);
	PROMISE("who is stopped counts as frozen", COMES_TRUE(value(at("a/cgroup.events"), "frozen") == 1));
	PROMISE("who is frozen can be killed", kill(child, SIGKILL) == 0 && killed(child));
	PROMISE("a signal that ends a process by default ends it",
		kill(other, SIGTERM) == 0 && waitpid(other, &status, 0) == other && WIFSIGNALED(status) &&
		    WTERMSIG(status) == SIGTERM);
	PROMISE("others stay frozen", value(at("a/cgroup.events"), "frozen") == 1 &&
					  refuses(at("a/cgroup.freeze"), "2") == ERANGE);
	end(idle);
	drop("a/b");
	drop("a");
	munmap((void *)count, 4096);
}

static void killing(void)
{
	make("a");
	make("a/b");
	pid_t one = sleeper("a"), two = sleeper("a/b"), stopped = sleeper("a/b");
	NEED(kill(stopped, SIGSTOP) == 0 && writes(at("a/b/cgroup.freeze"), "1") == 0);
	PROMISE("only 1 kills", refuses(at("a/cgroup.kill"), "0") == ERANGE && refuses(at("a/cgroup.kill"), "x") == EINVAL);
	PROMISE("all in a group and below are killed", writes(at("a/cgroup.kill"), "1") == 0 && killed(one) && killed(two) &&
							  killed(stopped));
	NEED(writes(at("a/b/cgroup.freeze"), "0") == 0);
	/* Processes that fork as fast as they can. */
	pid_t forker = fork();
	NEED(forker >= 0);
	if (forker == 0) {
		signal(SIGCHLD, SIG_IGN);
		sleep_ms(20);
		for (;;)
			if (fork() == 0) {
				sleep_ms(1);
				if (fork() == 0)
					_exit(0);
				_exit(0);
			}
	}
	NEED(put(at("a/b/cgroup.procs"), forker) == 0);
	sleep_ms(60);
	PROMISE("those that fork meanwhile, too", writes(at("a/cgroup.kill"), "1") == 0 && killed(forker) &&
						      COMES_TRUE(value(at("a/cgroup.events"), "populated") == 0));
	drop("a/b");
	drop("a");
}

static pid_t clone_into(int group, uint64_t flags)
{
	struct {
		uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
	} args = { .flags = CLONE_INTO_CGROUP | flags, .exit_signal = SIGCHLD, .cgroup = (uint64_t)group };
	return (pid_t)syscall(SYS_clone3, &args, sizeof args);
}

static void cloning(void)
{
	make("a");
	int group = open(at("a"), O_RDONLY | O_DIRECTORY), other = open("/", O_PATH), file = open(at("a/cgroup.procs"), O_RDONLY);
	pid_t child = clone_into(group, 0);
	if (child == 0)
		_exit(!ends_with(group_of(getpid()), "/a"));
	PROMISE("clone3 makes a child in another group", child > 0 && ends_well(child));
	FAILS_WITH("no group", clone_into(other, 0), EBADF);
	FAILS_WITH("a file of a group", clone_into(file, 0), EBADF);
	FAILS_WITH("no descriptor", clone_into(-1, 0), EINVAL);
	FAILS_WITH("a closed descriptor", clone_into(999, 0), EBADF);
	NEED(writes(at("a/cgroup.freeze"), "1") == 0);
	child = clone_into(group, 0);
	if (child == 0)
		_exit(7);
	PROMISE("a child that begins in a frozen group stands still",
		child > 0 && COMES_TRUE(value(at("a/cgroup.events"), "frozen") == 1) && waitpid(child, NULL, WNOHANG) == 0);
	int status;
	NEED(writes(at("a/cgroup.freeze"), "0") == 0);
	PROMISE("and begins when that is thawed",
		waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
	drop("a");
	FAILS_WITH("a removed group", clone_into(group, 0), ENOENT);
	close(group);
	close(other);
	close(file);
}

static int as_delegate(void)
{
	HOLDS(writes(at("a/b/cgroup.procs"), "0") == 0);
	HOLDS(mkdir(at("a/b/own"), 0755) == 0);
	struct stat file;
	HOLDS(stat(at("a/b/own/cgroup.kill"), &file) == 0 && file.st_uid == USER);
	HOLDS(writes(at("a/b/own/cgroup.procs"), "0") == 0);
	HOLDS(refuses(at("cgroup.procs"), "0") == EACCES);
	HOLDS(refuses(at("a/c/cgroup.procs"), "0") == EACCES);
	HOLDS(refuses(at("a/b/cgroup.max.depth"), "1") == EACCES);
	REFUSED(mkdir(at("a/other"), 0755), EACCES);
	HOLDS(writes(at("a/b/cgroup.procs"), "0") == 0);
	/* A task that has just left the group may be counted in it for another moment. */
	HOLDS(COMES_TRUE(rmdir(at("a/b/own")) == 0));
	int group = open(at("a/c"), O_RDONLY | O_DIRECTORY);
	REFUSED(clone_into(group, 0), EACCES);
	return 0;
}

static void delegation(void)
{
	make("a");
	make("a/b");
	make("a/c");
	NEED(chown(at("a/b"), USER, USER) == 0 && chown(at("a/b/cgroup.procs"), USER, USER) == 0);
	struct stat file;
	PROMISE("a file has its own owner", stat(at("a/b/cgroup.procs"), &file) == 0 && file.st_uid == USER &&
						stat(at("a/b/cgroup.type"), &file) == 0 && file.st_uid == 0);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		/* root moves the process into the group; then it continues as a user. */
		if (writes(at("a/b/cgroup.procs"), "0"))
			_exit(3);
		_exit(in_child(as_delegate, USER) ? 0 : 4);
	}
	PROMISE("a user rules below the group that was given, and cannot leave it", ends_well(child));
	/* A descriptor that root opened has root's rights in any process. One that a user opened
	 * does not. */
	NEED(chown(at("a/c/cgroup.procs"), USER, USER) == 0);
	int status;
	IN_CHILD(status, {
		if (setresuid(-1, USER, -1))
			_exit(1);
		int procs = open(at("a/c/cgroup.procs"), O_WRONLY);
		if (procs < 0 || setresuid(-1, 0, -1))
			_exit(2);
		_exit(write(procs, "0", 1) == -1 && errno == EACCES ? 0 : 3);
	});
	PROMISE("the rights of the opener count", status == 0);
	drop("a/c");
	drop("a/b");
	drop("a");
}

static char lower[192];

static int in_namespace(void)
{
	HOLDS(writes(at("a/cgroup.procs"), "0") == 0);
	unsigned long old = number_of("/proc/self/ns/cgroup");
	HOLDS(unshare(CLONE_NEWCGROUP) == 0 && number_of("/proc/self/ns/cgroup") != old);
	HOLDS(!strcmp(group_of(getpid()), "/"));
	HOLDS(!strcmp(group_of(getppid()), "/.."));
	HOLDS(writes(at("a/b/cgroup.procs"), "0") == 0 && !strcmp(group_of(getpid()), "/b"));
	HOLDS(mount("none", lower, "cgroup2", 0, NULL) == 0);
	char path[256];
	snprintf(path, sizeof path, "%s/b/cgroup.procs", lower);
	HOLDS(is_listed(path, getpid()));
	snprintf(path, sizeof path, "%s/cgroup.freeze", lower);
	HOLDS(access(path, F_OK) == 0);
	HOLDS(umount(lower) == 0);
	return 0;
}

static int joins_namespace(void)
{
	HOLDS(writes(at("a/cgroup.procs"), "0") == 0);
	pid_t child = fork();
	if (child == 0) {
		if (unshare(CLONE_NEWCGROUP))
			_exit(1);
		for (;;)
			pause();
	}
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/ns/cgroup", child);
	HOLDS(COMES_TRUE(number_of(path) != number_of("/proc/self/ns/cgroup")));
	int file = open(path, O_RDONLY);
	HOLDS(file >= 0 && setns(file, CLONE_NEWCGROUP) == 0 && !strcmp(group_of(getpid()), "/"));
	HOLDS(number_of(path) == number_of("/proc/self/ns/cgroup"));
	HOLDS((kill)(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	return 0;
}

static int bounded(void)
{
	HOLDS(writes(at("a/b/cgroup.procs"), "0") == 0 && unshare(CLONE_NEWCGROUP) == 0);
	HOLDS(refuses(at("a/cgroup.procs"), "0") == ENOENT);
	HOLDS(refuses(at("a/b/cgroup.max.depth"), "3") == EPERM);
	HOLDS(mkdir(at("a/b/in"), 0755) == 0 && writes(at("a/b/in/cgroup.max.depth"), "3") == 0);
	HOLDS(writes(at("a/b/in/cgroup.procs"), "0") == 0 && writes(at("a/b/cgroup.procs"), "0") == 0);
	HOLDS(COMES_TRUE(rmdir(at("a/b/in")) == 0));
	return 0;
}

static int in_user_namespace(void)
{
	HOLDS(become_root_inside() == 0 && unshare(CLONE_NEWCGROUP | CLONE_NEWNS) == 0);
	HOLDS(!strcmp(group_of(getpid()), "/"));
	HOLDS(mount("none", lower, "cgroup2", 0, NULL) == 0);
	return 0;
}

static int from_the_root(void)
{
	char procs[192];
	snprintf(procs, sizeof procs, "%s/cgroup.procs", top);
	HOLDS(writes(procs, "0") == 0);
	HOLDS(setgroups(0, NULL) == 0 && setresgid(USER, USER, USER) == 0 && setresuid(USER, USER, USER) == 0);
	HOLDS(prctl(PR_SET_DUMPABLE, 1) == 0);
	return in_user_namespace();
}

static void namespaces(void)
{
	snprintf(lower, sizeof lower, "%s-lower", top);
	NEED(mkdir(lower, 0755) == 0);
	make("a");
	make("a/b");
	PROMISE("a cgroup namespace begins at its maker's group", in_child(in_namespace, 0));
	PROMISE("it can be entered", in_child(joins_namespace, 0));
	PROMISE("root of a user namespace mounts what it sees", in_child(in_user_namespace, USER));
	/* nsdelegate may be set already, or by this second mount. */
	NEED(mount("none", top, "cgroup2", MS_REMOUNT, "nsdelegate") == 0);
	PROMISE("with nsdelegate a namespace bounds what is delegated", in_child(bounded, 0));
	PROMISE("mounts say so", strstr(reads("/proc/self/mounts"), ",nsdelegate"));
	PROMISE("another namespace that begins at the root mounts without it", in_child(from_the_root, 0));
	PROMISE("which takes it from nobody", strstr(reads("/proc/self/mounts"), ",nsdelegate"));
	NEED(mount("none", top, "cgroup2", MS_REMOUNT, "") == 0);
	drop("a/b");
	drop("a");
	NEED(rmdir(lower) == 0);
}

static void *waits(void *unused)
{
	(void)unused;
	for (;;)
		pause();
	return NULL;
}

static void tasks(void)
{
	make("a");
	make("a/b");
	make("a/c");
	char root[160];
	snprintf(root, sizeof root, "%s/cgroup.subtree_control", top);
	PROMISE("a controller is passed on level by level", refuses(at("a/cgroup.subtree_control"), "+pids") == ENOENT &&
								writes(root, "+pids") == 0 &&
								refuses(at("a/cgroup.subtree_control"), "+pids") == ENOENT);
	NEED(writes(at("cgroup.subtree_control"), "+pids") == 0 && writes(at("a/cgroup.subtree_control"), "+pids") == 0);
	PROMISE("then it is there", strstr(reads(at("a/b/cgroup.controllers")), "pids") && says(at("a/b/pids.max"), "max\n") &&
					says(at("a/b/pids.current"), "0\n"));
	PROMISE("one that is passed on below stays", refuses(at("cgroup.subtree_control"), "-pids") == EBUSY);
	pid_t child = sleeper("a/b");
	PROMISE("no process beside groups with controllers", refuses(at("a/cgroup.procs"), "0") == EBUSY);
	PROMISE("tasks count at every level", says(at("a/b/pids.current"), "1\n") && says(at("a/pids.current"), "1\n"));
	PROMISE("a limit is a number or max", refuses(at("a/pids.max"), "-1") == EINVAL && refuses(at("a/pids.max"), "x") == EINVAL &&
						  refuses(at("a/pids.max"), "9999999") == EINVAL);
	NEED(writes(at("a/pids.max"), "3") == 0);
	int status;
	IN_CHILD(status, {
		pthread_t thread;
		pid_t one;
		if (writes(at("a/c/cgroup.procs"), "0"))
			_exit(1);
		/* The limit is reached: this process, its child, and the process in the sibling
		 * group. */
		if ((one = fork()) == 0)
			for (;;)
				pause();
		if (one < 0 || fork() != -1 || errno != EAGAIN)
			_exit(2);
		if (pthread_create(&thread, NULL, waits, NULL) != EAGAIN)
			_exit(3);
		if (value(at("a/pids.events"), "max") != 2 || value(at("a/c/pids.events"), "max") != 0)
			_exit(4);
		if (!says(at("a/c/pids.current"), "2\n") || !says(at("a/pids.current"), "3\n"))
			_exit(5);
		/* A process that has ended counts until it is reaped. */
		siginfo_t told;
		if ((kill)(one, SIGKILL) || waitid(P_PID, one, &told, WEXITED | WNOWAIT) || fork() != -1 || errno != EAGAIN)
			_exit(6);
		if (waitpid(one, NULL, 0) != one || pthread_create(&thread, NULL, waits, NULL))
			_exit(7);
		if (!says(at("a/c/pids.current"), "2\n"))
			_exit(8);
	});
	PROMISE("forks and threads end at the limit of any group above", status == 0);
	PROMISE("what is at its end is free again", COMES_TRUE(says(at("a/pids.current"), "1\n")));
	PROMISE("the most is known", says(at("a/pids.peak"), "3\n") && says(at("a/b/pids.peak"), "1\n"));
	PROMISE("the group with the limit knows", value(at("a/pids.events"), "max") == 3);
	if (access(at("a/pids.events.local"), F_OK) == 0)
		PROMISE("which one it was", value(at("a/pids.events.local"), "max") == 3 &&
						value(at("a/c/pids.events.local"), "max") == 0);
	NEED(writes(at("a/c/pids.max"), "0") == 0 && put(at("a/c/cgroup.procs"), child) == 0);
	PROMISE("a move may exceed a limit", says(at("a/c/pids.current"), "1\n"));
	int group = open(at("a/c"), O_RDONLY | O_DIRECTORY);
	FAILS_WITH("a clone into it may not", clone_into(group, 0), EAGAIN);
	close(group);
	end(child);
	NEED(writes(at("a/cgroup.subtree_control"), "-pids") == 0);
	FAILS_WITH("a controller that is off has no files", access(at("a/c/pids.max"), F_OK), ENOENT);
	NEED(writes(at("a/cgroup.subtree_control"), "+pids") == 0);
	PROMISE("one that comes back begins anew", says(at("a/c/pids.max"), "max\n"));
	drop("a/b");
	drop("a/c");
	drop("a");
	NEED(writes(at("cgroup.subtree_control"), "-pids") == 0 && writes(root, "-pids") == 0);
}

/* CPU time of this process in microseconds. */
static long used(void)
{
	struct timespec now;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void burn(long microseconds)
{
	for (long end = used() + microseconds; used() < end;)
		;
}

static void cpu_time(void)
{
	make("a");
	make("a/b");
	long *least = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(least != MAP_FAILED);
	int status;
	IN_CHILD(status, {
		burn(50000);
		/* If the host takes the CPU away, each step lasts longer. So all figures are
		 * compared with the process' own CPU time. */
		long before_move = used();
		if (writes(at("a/b/cgroup.procs"), "0"))
			_exit(1);
		long after_move = used();
		burn(100000);
		*least = used() - after_move;
		long counted = value(at("a/b/cpu.stat"), "usage_usec");
		if (counted < *least || counted > used() - before_move)
			_exit(2);
	});
	PROMISE("CPU time counts from the move on", status == 0);
	long own = value(at("a/b/cpu.stat"), "usage_usec"), above = value(at("a/cpu.stat"), "usage_usec");
	PROMISE("the ended's stays, at every level", own >= *least && above >= own);
	long user = value(at("a/cpu.stat"), "user_usec"), system = value(at("a/cpu.stat"), "system_usec");
	PROMISE("in programs and in the kernel", user >= 0 && system >= 0 && user + system >= own * 9 / 10);
	munmap(least, 4096);
	drop("a/b");
	PROMISE("a removed group's stays above", value(at("a/cpu.stat"), "usage_usec") >= own);
	drop("a");
}

#define MANY 1000

static void many(void)
{
	char name[64];
	make("a");
	for (int i = 0; i < MANY; i++) {
		snprintf(name, sizeof name, "a/group-%d", i);
		make(name);
	}
	DIR *dir = opendir(at("a"));
	int listed = 0;
	for (struct dirent *entry; (entry = readdir(dir));)
		listed += !strncmp(entry->d_name, "group-", 6);
	closedir(dir);
	PROMISE("many groups are made and listed", listed == MANY && value(at("a/cgroup.stat"), "nr_descendants") == MANY);
	for (int i = 0; i < MANY; i++) {
		snprintf(name, sizeof name, "a/group-%d", i);
		int group = open(at(name), O_RDONLY | O_DIRECTORY);
		NEED(group >= 0);
		pid_t child = clone_into(group, 0);
		if (child == 0)
			_exit(0);
		NEED(child > 0 && ends_well(child));
		close(group);
	}
	for (int i = 0; i < MANY; i++) {
		snprintf(name, sizeof name, "a/group-%d", i);
		drop(name);
	}
	PROMISE("filled and removed", value(at("a/cgroup.stat"), "nr_descendants") == 0);
	PROMISE("and nothing is left", COMES_TRUE(value(at("a/cgroup.stat"), "nr_dying_descendants") == 0));
	drop("a");
}

int main(void)
{
	begin_groups();
	has_pids = has_controller("pids");
	file_system();
	settings();
	NEED(writes(at("cgroup.procs"), "0") == 0);
	membership();
	events();
	freezing();
	killing();
	cloning();
	delegation();
	namespaces();
	cpu_time();
	many();
	NEED(writes(before, "0") == 0);
	if (has_pids)
		tasks();
	PROMISE("all is gone in the end", end_groups());
	rmdir("/tmp/again");
	return conclude();
}
