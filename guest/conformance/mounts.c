/*
 * umount2(2): a mount that is in use stays, unless it is detached; one that was not used since it
 * was marked expires. Mounts as descriptors: fsopen, fsconfig, fsmount, fspick, open_tree,
 * move_mount, mount_setattr.
 */
#include "promise.h"
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>

#define PLACE "/tmp/mounts-place"
#define FILE_IN PLACE "/file"

static void make(void)
{
	int file;
	NEED(mount("none", PLACE, "tmpfs", 0, NULL) == 0);
	NEED((file = open(FILE_IN, O_RDWR | O_CREAT, 0600)) >= 0 && ftruncate(file, 4096) == 0 && close(file) == 0);
}

static int is_there(void)
{
	return access(FILE_IN, F_OK) == 0;
}

static void uses(void)
{
	make();
	int file = open(FILE_IN, O_RDWR);
	FAILS_WITH("a mount with an open file is in use", umount(PLACE), EBUSY);
	char *mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	NEED(mapped != MAP_FAILED && close(file) == 0);
	FAILS_WITH("or a mapped one", umount(PLACE), EBUSY);
	NEED(munmap(mapped, 4096) == 0 && chdir(PLACE) == 0);
	FAILS_WITH("or a working directory", umount(PLACE), EBUSY);
	NEED(chdir("/") == 0);
	int path = open(PLACE, O_PATH);
	FAILS_WITH("or a path", umount(PLACE), EBUSY);
	NEED(close(path) == 0 && mkdir(PLACE "/below", 0700) == 0 && mount("none", PLACE "/below", "tmpfs", 0, NULL) == 0);
	FAILS_WITH("or a mount in it", umount(PLACE), EBUSY);
	NEED(umount(PLACE "/below") == 0);
	int go[2], status;
	NEED(pipe(go) == 0);
	pid_t child = fork();
	if (child == 0) {
		char byte;
		NEED(chdir(PLACE) == 0 && write(go[1], "x", 1) == 1);
		while (read(go[0], &byte, 0) == 0)
			pause();
	}
	char byte;
	NEED(read(go[0], &byte, 1) == 1);
	FAILS_WITH("another process' directory counts", umount(PLACE), EBUSY);
	NEED(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
	PROMISE("until it has ended", umount(PLACE) == 0 && !is_there());
	FAILS_WITH("then nothing is mounted there", umount(PLACE), EINVAL);
}

static void detaching(void)
{
	char byte = 0;
	make();
	int file = open(FILE_IN, O_RDWR);
	PROMISE("a mount in use is detached", umount2(PLACE, MNT_DETACH) == 0 && !is_there());
	PROMISE("its open files stay", pwrite(file, "x", 1, 7) == 1 && pread(file, &byte, 1, 7) == 1 && byte == 'x');
	close(file);
}

static void expiring(void)
{
	make();
	FAILS_WITH("a mount does not expire by force", umount2(PLACE, MNT_EXPIRE | MNT_FORCE), EINVAL);
	FAILS_WITH("nor while it is detached", umount2(PLACE, MNT_EXPIRE | MNT_DETACH), EINVAL);
	int file = open(FILE_IN, O_RDWR);
	FAILS_WITH("one in use is not marked", umount2(PLACE, MNT_EXPIRE), EBUSY);
	close(file);
	FAILS_WITH("another is marked at first", umount2(PLACE, MNT_EXPIRE), EAGAIN);
	PROMISE("it can be used", is_there());
	FAILS_WITH("and is marked again", umount2(PLACE, MNT_EXPIRE), EAGAIN);
	PROMISE("without a use it expires", umount2(PLACE, MNT_EXPIRE) == 0 && !is_there());
}

/* Makes a tmpfs with one option; returns its mount. */
static int loose_tmpfs(unsigned attributes)
{
	int context = fsopen("tmpfs", FSOPEN_CLOEXEC), mount_fd;
	NEED(context >= 0 && fsconfig(context, FSCONFIG_SET_STRING, "size", "64k", 0) == 0);
	NEED(fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0);
	NEED((mount_fd = fsmount(context, FSMOUNT_CLOEXEC, attributes)) >= 0);
	close(context);
	return mount_fd;
}

static unsigned long flags_of(const char *path)
{
	struct statvfs stats = { 0 };
	NEED(statvfs(path, &stats) == 0);
	return stats.f_flag;
}

static void contexts(void)
{
	char byte, name[64] = { 0 }, path[64];
	FAILS_WITH("a context is of a type", fsopen("nosuchfs", 0), ENODEV);
	FAILS_WITH("with known flags", fsopen("tmpfs", 2), EINVAL);
	FAILS_WITH("whose name is read", fsopen((char *)8, 0), EFAULT);
	int context = fsopen("tmpfs", FSOPEN_CLOEXEC), other = open("/", O_PATH);
	snprintf(path, sizeof path, "/proc/self/fd/%d", context);
	PROMISE("it is a descriptor", context >= 0 && fcntl(context, F_GETFD) == FD_CLOEXEC && readlink(path, name, sizeof name - 1) > 0 &&
		strcmp(name, "anon_inode:[fscontext]") == 0);
	FAILS_WITH("without messages", read(context, &byte, 1), ENODATA);
	FAILS_WITH("another descriptor is none", fsconfig(dup(0), FSCONFIG_CMD_CREATE, NULL, NULL, 0), EINVAL);
	FAILS_WITH("nor is a closed one", fsconfig(999, FSCONFIG_CMD_CREATE, NULL, NULL, 0), EBADF);
	FAILS_WITH("commands are known", fsconfig(context, 99, NULL, NULL, 0), EOPNOTSUPP);
	FAILS_WITH("a flag has no value", fsconfig(context, FSCONFIG_SET_FLAG, "ro", "x", 0), EINVAL);
	FAILS_WITH("a string has one", fsconfig(context, FSCONFIG_SET_STRING, "size", NULL, 0), EINVAL);
	FAILS_WITH("creating has no arguments", fsconfig(context, FSCONFIG_CMD_CREATE, "size", NULL, 0), EINVAL);
	PROMISE("it has a source", fsconfig(context, FSCONFIG_SET_STRING, "source", "here", 0) == 0);
	FAILS_WITH("and no second one", fsconfig(context, FSCONFIG_SET_STRING, "source", "there", 0), EINVAL);
	FAILS_WITH("nothing is mounted before it is made", fsmount(context, 0, 0), EINVAL);
	FAILS_WITH("nor changed", fsconfig(context, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0), EBUSY);
	PROMISE("it takes options", fsconfig(context, FSCONFIG_SET_STRING, "size", "64k", 0) == 0 && fsconfig(context, FSCONFIG_SET_FLAG, "rw", NULL, 0) == 0);
	PROMISE("and makes the file system", fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0);
	FAILS_WITH("once", fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0), EBUSY);
	FAILS_WITH("a mount has known attributes", fsmount(context, 0, 1u << 30), EINVAL);
	FAILS_WITH("and one way of access times", fsmount(context, 0, MOUNT_ATTR_NOATIME | MOUNT_ATTR_STRICTATIME), EINVAL);
	FAILS_WITH("of a context", fsmount(other, 0, 0), EBADF);
	int tree = fsmount(context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
	PROMISE("it becomes a mount", tree >= 0 && fcntl(tree, F_GETFD) == FD_CLOEXEC && (fcntl(tree, F_GETFL) & O_PATH));
	FAILS_WITH("one", fsmount(context, 0, 0), EBUSY);
	int file = openat(tree, "file", O_RDWR | O_CREAT, 0600);
	PROMISE("which can be used", file >= 0 && write(file, "x", 1) == 1 && close(file) == 0 && !is_there());
	PROMISE("and is attached", move_mount(tree, "", AT_FDCWD, PLACE, MOVE_MOUNT_F_EMPTY_PATH) == 0 && is_there());
	struct statvfs stats = { 0 };
	PROMISE("with its options", statvfs(PLACE, &stats) == 0 && stats.f_blocks * stats.f_frsize == 64 << 10 && (stats.f_flag & (ST_NOSUID | ST_NOEXEC)) == (ST_NOSUID | ST_NOEXEC));
	FAILS_WITH("its descriptor uses it", umount(PLACE), EBUSY);
	close(tree);
	close(context);
	PROMISE("until it is closed", umount(PLACE) == 0);
	close(other);
}

static void changes(void)
{
	NEED(mount("none", PLACE, "tmpfs", 0, "size=64k") == 0 && close(open(FILE_IN, O_CREAT | O_RDWR, 0600)) == 0 && mkdir(PLACE "/dir", 0700) == 0);
	FAILS_WITH("a directory that is no mount is not picked", fspick(AT_FDCWD, PLACE "/dir", 0), EINVAL);
	FAILS_WITH("with known flags", fspick(AT_FDCWD, PLACE, 0x100), EINVAL);
	int context = fspick(AT_FDCWD, PLACE, FSPICK_CLOEXEC);
	FAILS_WITH("a picked file system is there already", fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0), EBUSY);
	struct statvfs stats = { 0 };
	PROMISE("it is changed", fsconfig(context, FSCONFIG_SET_STRING, "size", "128k", 0) == 0 && fsconfig(context, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0) == 0 &&
		statvfs(PLACE, &stats) == 0 && stats.f_blocks * stats.f_frsize == 128 << 10);
	PROMISE("also to be read only", fsconfig(context, FSCONFIG_SET_FLAG, "ro", NULL, 0) == 0 && fsconfig(context, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0) == 0 &&
		open(FILE_IN, O_RDWR) == -1 && errno == EROFS);
	PROMISE("and back", fsconfig(context, FSCONFIG_SET_FLAG, "rw", NULL, 0) == 0 && fsconfig(context, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0) == 0 &&
		close(open(FILE_IN, O_RDWR)) == 0);
	close(context);
	PROMISE("it is not in use by that", umount(PLACE) == 0);
}

/* A limit of 0 is none. */
static void limits(void)
{
	NEED(mount("none", PLACE, "tmpfs", 0, "size=0,nr_inodes=0") == 0 && close(open(FILE_IN, O_CREAT | O_RDWR, 0600)) == 0);
	struct statvfs stats = { .f_blocks = 1, .f_files = 1 };
	PROMISE("a tmpfs without limits has files, and tells no figures", statvfs(PLACE, &stats) == 0 && stats.f_blocks == 0 && stats.f_bfree == 0 && stats.f_files == 0 && stats.f_ffree == 0);
	FAILS_WITH("it gets no limit later", mount(NULL, PLACE, NULL, MS_REMOUNT, "size=1m"), EINVAL);
	FAILS_WITH("of files neither", mount(NULL, PLACE, NULL, MS_REMOUNT, "nr_inodes=1000"), EINVAL);
	NEED(umount(PLACE) == 0 && mount("none", PLACE, "tmpfs", 0, "size=5000,nr_inodes=3") == 0);
	PROMISE("a size is rounded up to pages", statvfs(PLACE, &stats) == 0 && stats.f_blocks * stats.f_frsize == 8192 && stats.f_files == 3 && stats.f_ffree == 2);
	int file = open(FILE_IN, O_CREAT | O_RDWR, 0600), other = open(PLACE "/other", O_CREAT | O_RDWR, 0600);
	PROMISE("the root is one of its files", file >= 0 && other >= 0 && mkdir(PLACE "/dir", 0700) == -1 && errno == ENOSPC);
	char page[4096] = { 1 };
	NEED(write(file, page, sizeof page) == sizeof page && write(other, page, sizeof page) == sizeof page);
	FAILS_WITH("more than is in use", mount(NULL, PLACE, NULL, MS_REMOUNT, "size=4k"), EINVAL);
	FAILS_WITH("also of files", mount(NULL, PLACE, NULL, MS_REMOUNT, "nr_inodes=2"), EINVAL);
	FAILS_WITH("a refused change changes nothing", mount(NULL, PLACE, NULL, MS_REMOUNT, "size=64k,nr_inodes=2"), EINVAL);
	PROMISE("so that it is as full as before", statvfs(PLACE, &stats) == 0 && stats.f_blocks == 2 && stats.f_bfree == 0);
	PROMISE("0 takes the limits away", mount(NULL, PLACE, NULL, MS_REMOUNT, "size=0,nr_inodes=0") == 0 && write(file, page, sizeof page) == sizeof page && mkdir(PLACE "/dir", 0700) == 0);
	close(file);
	close(other);
	NEED(umount(PLACE) == 0);
}

static void trees(void)
{
	make();
	NEED(mkdir(PLACE "/below", 0700) == 0 && mount("none", PLACE "/below", "tmpfs", 0, NULL) == 0);
	NEED(close(open(PLACE "/below/deep", O_CREAT | O_RDWR, 0600)) == 0 && (mkdir("/tmp/mounts-other", 0700) == 0 || errno == EEXIST));
	FAILS_WITH("trees are copied recursively, or not opened so", open_tree(AT_FDCWD, PLACE, AT_RECURSIVE), EINVAL);
	FAILS_WITH("with known flags", open_tree(AT_FDCWD, PLACE, 2), EINVAL);
	int place = open_tree(AT_FDCWD, PLACE, OPEN_TREE_CLOEXEC);
	PROMISE("without a copy, it is a path", place >= 0 && fcntl(place, F_GETFL) & O_PATH && faccessat(place, "below/deep", F_OK, 0) == 0);
	int one = open_tree(AT_FDCWD, PLACE, OPEN_TREE_CLONE), all = open_tree(place, "", OPEN_TREE_CLONE | AT_RECURSIVE | AT_EMPTY_PATH);
	PROMISE("a copy has the mount", one >= 0 && faccessat(one, "file", F_OK, 0) == 0 && faccessat(one, "below/deep", F_OK, 0) == -1);
	PROMISE("or all below it", all >= 0 && faccessat(all, "below/deep", F_OK, 0) == 0);
	FAILS_WITH("only roots are moved", move_mount(all, "below/..", AT_FDCWD, PLACE "/file", MOVE_MOUNT_F_EMPTY_PATH), EINVAL);
	FAILS_WITH("with known flags", move_mount(all, "", AT_FDCWD, "/tmp/mounts-other", 0x1000), EINVAL);
	PROMISE("it is attached elsewhere", move_mount(all, "", AT_FDCWD, "/tmp/mounts-other", MOVE_MOUNT_F_EMPTY_PATH) == 0 && access("/tmp/mounts-other/below/deep", F_OK) == 0);
	close(one);
	close(all);
	close(place);
	PROMISE("it is a mount like others", umount("/tmp/mounts-other/below") == 0 && umount("/tmp/mounts-other") == 0 && access(PLACE "/below/deep", F_OK) == 0);
	PROMISE("an attached mount is moved", move_mount(AT_FDCWD, PLACE "/below", AT_FDCWD, "/tmp/mounts-other", 0) == 0 && access("/tmp/mounts-other/deep", F_OK) == 0);
	FAILS_WITH("not into itself", move_mount(AT_FDCWD, PLACE, AT_FDCWD, PLACE "/below", 0), ELOOP);
	NEED(umount("/tmp/mounts-other") == 0 && umount(PLACE) == 0);
	int loose = loose_tmpfs(0);
	NEED(mkdirat(loose, "in", 0700) == 0 && close(openat(loose, "in/file", O_CREAT | O_RDWR, 0600)) == 0);
	int kept = openat(loose, "in", O_RDONLY | O_DIRECTORY);
	close(loose);
	PROMISE("a directory of a tree that ended stays", faccessat(kept, "file", F_OK, 0) == 0);
	close(kept);
}

static void attributes(void)
{
	struct mount_attr set = { .attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV }, longer[2] = { { 0 } };
	make();
	NEED(mkdir(PLACE "/below", 0700) == 0 && mount("none", PLACE "/below", "tmpfs", 0, NULL) == 0);
	FAILS_WITH("attributes have a size", mount_setattr(AT_FDCWD, PLACE, 0, &set, 31), EINVAL);
	FAILS_WITH("of at most a page", mount_setattr(AT_FDCWD, PLACE, 0, &set, 4097), E2BIG);
	longer[1].attr_set = 1;
	FAILS_WITH("a longer version has zeros", mount_setattr(AT_FDCWD, PLACE, 0, longer, sizeof longer), E2BIG);
	FAILS_WITH("there are known flags", mount_setattr(AT_FDCWD, PLACE, 2, &set, sizeof set), EINVAL);
	FAILS_WITH("and attributes", mount_setattr(AT_FDCWD, PLACE, 0, &(struct mount_attr){ .attr_set = 1 << 30 }, sizeof set), EINVAL);
	FAILS_WITH("access times are set as a whole", mount_setattr(AT_FDCWD, PLACE, 0, &(struct mount_attr){ .attr_set = MOUNT_ATTR_NOATIME }, sizeof set), EINVAL);
	FAILS_WITH("and cleared so", mount_setattr(AT_FDCWD, PLACE, 0, &(struct mount_attr){ .attr_clr = MOUNT_ATTR_NOATIME }, sizeof set), EINVAL);
	FAILS_WITH("one propagation is chosen", mount_setattr(AT_FDCWD, PLACE, 0, &(struct mount_attr){ .propagation = MS_PRIVATE | MS_SLAVE }, sizeof set), EINVAL);
	PROMISE("no change is none, anywhere", mount_setattr(AT_FDCWD, "/nowhere", 0, &(struct mount_attr){ 0 }, sizeof set) == 0);
	FAILS_WITH("a directory is no mount", mount_setattr(AT_FDCWD, PLACE "/nothing", 0, &set, sizeof set), ENOENT);
	int file = open(FILE_IN, O_RDWR);
	FAILS_WITH("a mount with a writer is not made read only", mount_setattr(AT_FDCWD, PLACE, AT_RECURSIVE, &set, sizeof set), EBUSY);
	close(file);
	PROMISE("nothing has changed", !(flags_of(PLACE) & (ST_RDONLY | ST_NODEV)) && !(flags_of(PLACE "/below") & ST_NODEV));
	PROMISE("without one it is", mount_setattr(AT_FDCWD, PLACE, 0, &set, sizeof set) == 0 && (flags_of(PLACE) & (ST_RDONLY | ST_NODEV)) == (ST_RDONLY | ST_NODEV));
	PROMISE("and no mount below", !(flags_of(PLACE "/below") & ST_RDONLY) && open(FILE_IN, O_RDWR) == -1 && errno == EROFS);
	struct mount_attr back = { .attr_clr = MOUNT_ATTR_RDONLY | MOUNT_ATTR__ATIME, .attr_set = MOUNT_ATTR_NOATIME | MOUNT_ATTR_NOEXEC };
	PROMISE("all mounts below", mount_setattr(AT_FDCWD, PLACE, AT_RECURSIVE, &back, sizeof back) == 0 && flags_of(PLACE "/below") & ST_NOATIME && flags_of(PLACE "/below") & ST_NOEXEC);
	PROMISE("keep what is not cleared", (flags_of(PLACE) & (ST_RDONLY | ST_NODEV | ST_NOATIME)) == (ST_NODEV | ST_NOATIME));
	NEED(umount2(PLACE, MNT_DETACH) == 0);
	int loose = loose_tmpfs(MOUNT_ATTR_NODEV);
	PROMISE("a mount can be changed before it is attached", mount_setattr(loose, "", AT_EMPTY_PATH, &set, sizeof set) == 0 &&
		openat(loose, "file", O_CREAT | O_RDWR, 0600) == -1 && errno == EROFS);
	close(loose);
}

static void rights(void)
{
	int status;
	IN_CHILD(status, {
		struct mount_attr set = { .attr_set = MOUNT_ATTR_NODEV };
		if (setuid(20) != 0)
			_exit(1);
		if (fsopen("tmpfs", 0) != -1 || errno != EPERM || fspick(AT_FDCWD, "/", 0) != -1 || errno != EPERM)
			_exit(2);
		if (open_tree(AT_FDCWD, "/", OPEN_TREE_CLONE) != -1 || errno != EPERM || open_tree(AT_FDCWD, "/", 0) < 0)
			_exit(3);
		if (move_mount(AT_FDCWD, "/tmp", AT_FDCWD, "/", 0) != -1 || errno != EPERM)
			_exit(4);
		_exit(mount_setattr(AT_FDCWD, "/", 0, &set, sizeof set) != -1 || errno != EPERM || fsmount(0, 0, 0) != -1 || errno != EPERM);
	});
	PROMISE("a user without rights mounts nothing", status == 0);
}

int main(void)
{
	/* Nothing that is mounted here reaches others. */
	NEED(unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
	NEED(mkdir(PLACE, 0700) == 0 || errno == EEXIST);
	uses();
	detaching();
	expiring();
	contexts();
	changes();
	limits();
	trees();
	attributes();
	rights();
	return conclude();
}
