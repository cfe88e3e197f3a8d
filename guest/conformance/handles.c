/* Handles of files: name_to_handle_at(2), open_by_handle_at(2). */
#include "promise.h"
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define PLACE "/tmp/handles-place"
#define OTHER "/tmp/handles-other"
#define GROUPS "/tmp/handles-groups"
#define USER 1000

struct handle {
	struct file_handle head;
	unsigned char bytes[MAX_HANDLE_SZ];
};

static int mount_id;

/* Asks for the handle of a path with this much room. */
static int named(struct handle *handle, int dir, const char *path, unsigned room, int flags)
{
	handle->head.handle_bytes = room;
	return name_to_handle_at(dir, path, &handle->head, &mount_id, flags);
}

static struct handle handle_of(const char *path)
{
	struct handle handle = { 0 };
	NEED(named(&handle, AT_FDCWD, path, MAX_HANDLE_SZ, 0) == 0);
	return handle;
}

static int opened(int mount, struct handle *handle, int flags)
{
	return open_by_handle_at(mount, &handle->head, flags);
}

static int is_same(int fd, const char *path)
{
	struct stat one, other;
	return fstat(fd, &one) == 0 && lstat(path, &other) == 0 && one.st_ino == other.st_ino && one.st_dev == other.st_dev;
}

/* Whether the handle opens `path` for reading. */
static int leads_to(int mount, struct handle *handle, const char *path)
{
	int fd = opened(mount, handle, O_RDONLY | O_CLOEXEC);
	int same = fd >= 0 && is_same(fd, path) && fcntl(fd, F_GETFD) == FD_CLOEXEC;
	int error = errno;
	close(fd);
	errno = error;
	return same;
}

/* Whether the descriptor's link in /proc is `path`. */
static int is_shown_as(int fd, const char *path)
{
	char link[64], text[256] = { 0 };
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	return readlink(link, text, sizeof text - 1) > 0 && strcmp(text, path) == 0;
}

static int id_in_mountinfo(const char *place)
{
	char line[1024], at[256];
	int id, found = -1;
	FILE *list = fopen("/proc/self/mountinfo", "re");
	NEED(list);
	while (fgets(line, sizeof line, list))
		if (sscanf(line, "%d %*d %*s %*s %255s", &id, at) == 2 && strcmp(at, place) == 0)
			found = id;
	fclose(list);
	return found;
}

static void make(const char *path, const char *text)
{
	int fd = open(path, O_CREAT | O_RDWR | O_TRUNC, 0644);
	NEED(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0);
}

static void naming(void)
{
	struct handle one = { 0 }, other = { 0 };
	FAILS_WITH("an unknown flag", named(&one, AT_FDCWD, PLACE "/file", 128, AT_SYMLINK_NOFOLLOW), EINVAL);
	FAILS_WITH("no such file", named(&one, AT_FDCWD, PLACE "/none", 128, 0), ENOENT);
	FAILS_WITH("an empty path", named(&one, AT_FDCWD, "", 128, 0), ENOENT);
	FAILS_WITH("no path", named(&one, AT_FDCWD, NULL, 128, 0), EFAULT);
	FAILS_WITH("a bad descriptor", named(&one, -1, "file", 128, 0), EBADF);
	FAILS_WITH("more room than a handle may have", named(&one, AT_FDCWD, PLACE "/file", MAX_HANDLE_SZ + 1, 0), EINVAL);
	FAILS_WITH("no room at all", name_to_handle_at(AT_FDCWD, PLACE "/file", (void *)8, &mount_id, 0), EFAULT);
	one.head.handle_bytes = 128;
	FAILS_WITH("no room for the mount", name_to_handle_at(AT_FDCWD, PLACE "/file", &one.head, (void *)8, 0), EFAULT);
	mount_id = -1;
	FAILS_WITH("too little room", named(&one, AT_FDCWD, PLACE "/file", 0, 0), EOVERFLOW);
	PROMISE("tells what is needed, and the mount", one.head.handle_bytes == 12 && mount_id == id_in_mountinfo(PLACE));
	FAILS_WITH("nearly enough room", named(&one, AT_FDCWD, PLACE "/file", 11, 0), EOVERFLOW);
	mount_id = -1;
	PROMISE("just enough", named(&one, AT_FDCWD, PLACE "/file", 12, 0) == 0 && one.head.handle_bytes == 12 && one.head.handle_type == 1 &&
				       mount_id == id_in_mountinfo(PLACE));
	PROMISE("a file has one handle", named(&other, AT_FDCWD, PLACE "/file", 128, 0) == 0 && memcmp(&one, &other, 20) == 0);
	int fd = open(PLACE "/file", O_PATH);
	PROMISE("also by a descriptor", named(&other, fd, "", 128, AT_EMPTY_PATH) == 0 && memcmp(&one, &other, 20) == 0);
	close(fd);
	PROMISE("and by a link that is followed", named(&other, AT_FDCWD, PLACE "/link", 128, AT_SYMLINK_FOLLOW) == 0 && memcmp(&one, &other, 20) == 0);
	PROMISE("a link has another", named(&other, AT_FDCWD, PLACE "/link", 128, 0) == 0 && memcmp(&one, &other, 20) != 0);
	int status;
	IN_CHILD(status, NEED(setresuid(USER, USER, USER) == 0); _exit(named(&other, AT_FDCWD, PLACE "/file", 128, 0) != 0));
	PROMISE("any user gets handles", status == 0);

	int ends[2], socket = socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 ? ends[0] : -1, pipe_ends[2];
	NEED(socket >= 0 && pipe(pipe_ends) == 0);
	FAILS_WITH("none in /proc", named(&other, AT_FDCWD, "/proc/self/status", 128, 0), EOPNOTSUPP);
	FAILS_WITH("nor in /sys", named(&other, AT_FDCWD, "/sys", 128, 0), EOPNOTSUPP);
	FAILS_WITH("nor for a socket", named(&other, socket, "", 128, AT_EMPTY_PATH), EOPNOTSUPP);
	FAILS_WITH("nor for a pipe", named(&other, pipe_ends[0], "", 128, AT_EMPTY_PATH), EOPNOTSUPP);
	FAILS_WITH("also where there is no room", name_to_handle_at(AT_FDCWD, "/proc", (void *)8, &mount_id, 0), EOPNOTSUPP);
	int root = open(PLACE, O_RDONLY);
	one = handle_of(PLACE "/file");
	FAILS_WITH("a pipe is no mount", opened(pipe_ends[0], &one, O_RDONLY), ESTALE);
	close(socket);
	close(ends[1]);
	close(pipe_ends[0]);
	close(pipe_ends[1]);
	close(root);
}

static void opening(void)
{
	int root = open(PLACE, O_RDONLY), path = open(PLACE, O_PATH), in = open(PLACE "/file", O_RDONLY), status;
	struct handle file = handle_of(PLACE "/file"), link = handle_of(PLACE "/link"), dir = handle_of(PLACE "/dir"), top = handle_of(PLACE), bad;
	char text[16] = { 0 };
	PROMISE("a handle opens its file", leads_to(root, &file, PLACE "/file"));
	int fd = opened(root, &file, O_RDWR | O_APPEND);
	PROMISE("for writing, too", fd >= 0 && write(fd, "more", 4) == 4 && pread(fd, text, 15, 0) == 8 && strcmp(text, "textmore") == 0);
	PROMISE("its name is shown", is_shown_as(fd, PLACE "/file"));
	close(fd);
	PROMISE("any file tells the mount", leads_to(in, &file, PLACE "/file"));
	FAILS_WITH("but O_PATH", opened(path, &file, O_RDONLY), EBADF);
	FAILS_WITH("a bad descriptor", opened(-1, &file, O_RDONLY), EBADF);
	NEED(chdir(PLACE "/dir") == 0);
	PROMISE("the working directory does", leads_to(AT_FDCWD, &file, PLACE "/file"));
	NEED(chdir("/") == 0);
	fd = opened(root, &file, O_RDONLY | O_TRUNC);
	PROMISE("O_TRUNC", fd >= 0 && lseek(fd, 0, SEEK_END) == 0);
	close(fd);
	FAILS_WITH("a link is not opened", opened(root, &link, O_RDONLY), ELOOP);
	fd = opened(root, &link, O_PATH);
	PROMISE("but by O_PATH", fd >= 0 && is_same(fd, PLACE "/link"));
	close(fd);
	FAILS_WITH("O_DIRECTORY of a file", opened(root, &file, O_RDONLY | O_DIRECTORY), ENOTDIR);
	FAILS_WITH("a file is there already", opened(root, &file, O_RDWR | O_CREAT | O_EXCL), EEXIST);
	fd = opened(root, &file, O_RDWR | O_CREAT);
	PROMISE("O_CREAT opens it", fd >= 0 && is_same(fd, PLACE "/file"));
	close(fd);
	fd = opened(root, &dir, O_RDONLY | O_DIRECTORY);
	PROMISE("a directory", fd >= 0 && is_same(fd, PLACE "/dir") && faccessat(fd, "in", F_OK, 0) == 0 && is_shown_as(fd, PLACE "/dir"));
	close(fd);
	FAILS_WITH("not for writing", opened(root, &dir, O_RDWR), EISDIR);
	fd = opened(root, &dir, O_RDWR | O_TMPFILE);
	PROMISE("O_TMPFILE in it", fd >= 0 && write(fd, "x", 1) == 1);
	close(fd);
	PROMISE("the root of a mount", leads_to(root, &top, PLACE));

	bad = file;
	bad.head.handle_bytes = 0;
	FAILS_WITH("a handle without bytes", opened(root, &bad, O_RDONLY), EINVAL);
	bad.head.handle_bytes = MAX_HANDLE_SZ + 1;
	FAILS_WITH("with too many", opened(root, &bad, O_RDONLY), EINVAL);
	bad.head.handle_bytes = 11;
	FAILS_WITH("with too few", opened(root, &bad, O_RDONLY), ESTALE);
	bad.head.handle_bytes = 16;
	PROMISE("more than enough", leads_to(root, &bad, PLACE "/file"));
	bad = file;
	bad.bytes[0] ^= 1;
	FAILS_WITH("another generation", opened(root, &bad, O_RDONLY), ESTALE);
	bad = file;
	bad.bytes[8] ^= 1;
	FAILS_WITH("another inode", opened(root, &bad, O_RDONLY), ESTALE);
	FAILS_WITH("no handle", open_by_handle_at(root, (void *)8, O_RDONLY), EFAULT);
	int other = open(OTHER, O_RDONLY);
	struct handle others = handle_of(OTHER "/file");
	FAILS_WITH("another file system", opened(other, &file, O_RDONLY), ESTALE);
	PROMISE("has its own", leads_to(other, &others, OTHER "/file"));
	int proc = open("/proc", O_RDONLY);
	FAILS_WITH("/proc has none", opened(proc, &file, O_RDONLY), ESTALE);
	close(proc);
	close(other);

	IN_CHILD(status, NEED(setresuid(USER, USER, USER) == 0); _exit(opened(root, &file, O_RDONLY) != -1 || errno != EPERM));
	PROMISE("a user without the capability may not open", status == 0);
	IN_CHILD(status, NEED(unshare(CLONE_NEWUSER) == 0); _exit(opened(root, &file, O_RDONLY) != -1 || errno != EPERM));
	PROMISE("nor with that of a user namespace", status == 0);
	IN_CHILD(status, struct rlimit few = { 3, 3 }; NEED(setrlimit(RLIMIT_NOFILE, &few) == 0);
		_exit(opened(root, &file, O_RDONLY) != -1 || errno != EMFILE || opened(root, &bad, O_RDONLY) != -1 || errno != ESTALE));
	PROMISE("the limit of descriptors comes last", status == 0);
	close(root);
	close(path);
	close(in);
}

static void ends(void)
{
	int root = open(PLACE, O_RDONLY);
	make(PLACE "/gone", "text");
	NEED(mkdir(PLACE "/below", 0700) == 0 && mkdir(PLACE "/below/more", 0700) == 0);
	struct handle file = handle_of(PLACE "/gone"), dir = handle_of(PLACE "/below/more");
	NEED(rename(PLACE "/gone", PLACE "/moved") == 0);
	int fd = opened(root, &file, O_RDONLY);
	PROMISE("a renamed file keeps its handle", fd >= 0 && is_same(fd, PLACE "/moved") && is_shown_as(fd, PLACE "/moved"));
	NEED(rename(PLACE "/below", PLACE "/there") == 0);
	PROMISE("a moved directory, too", leads_to(root, &dir, PLACE "/there/more"));
	NEED(unlink(PLACE "/moved") == 0);
	int again = opened(root, &file, O_RDONLY);
	char byte;
	PROMISE("a file without a name that is open", again >= 0 && read(again, &byte, 1) == 1 && byte == 't');
	close(again);
	close(fd);
	FAILS_WITH("until its end", opened(root, &file, O_RDONLY), ESTALE);
	NEED(rmdir(PLACE "/there/more") == 0 && rmdir(PLACE "/there") == 0);
	FAILS_WITH("a removed directory", opened(root, &dir, O_RDONLY), ESTALE);
	make(PLACE "/gone", "new");
	FAILS_WITH("a new file is not the old one", opened(root, &file, O_RDONLY), ESTALE);

	fd = open(PLACE, O_TMPFILE | O_RDWR, 0600);
	struct handle unnamed = { 0 };
	NEED(fd >= 0 && named(&unnamed, fd, "", 128, AT_EMPTY_PATH) == 0);
	again = opened(root, &unnamed, O_RDWR);
	PROMISE("a file that never had a name", again >= 0 && write(fd, "x", 1) == 1 && read(again, &byte, 1) == 1);
	close(fd);
	close(again);
	FAILS_WITH("has ended as well", opened(root, &unnamed, O_RDONLY), ESTALE);
	int all = 1;
	static struct handle many[2000];
	for (int i = 0; i < 2000; i++) {
		char path[64];
		snprintf(path, sizeof path, PLACE "/many-%d", i);
		make(path, "");
		many[i] = handle_of(path);
		if (i % 2)
			NEED(unlink(path) == 0);
	}
	for (int i = 0; i < 2000; i++) {
		fd = opened(root, &many[i], O_RDONLY);
		all &= i % 2 ? fd == -1 && errno == ESTALE : fd >= 0;
		close(fd);
	}
	PROMISE("each of many files is told from the others", all);
	close(root);
}

/* Handles in cgroup2 are inode numbers, which are the numbers of groups. */
static void groups(void)
{
	struct handle one = { 0 }, other = { 0 };
	struct stat about;
	NEED(mkdir(GROUPS, 0755) == 0 && mount("none", GROUPS, "cgroup2", 0, NULL) == 0 && mkdir(GROUPS "/handles", 0755) == 0);
	int root = open(GROUPS, O_RDONLY);
	FAILS_WITH("a group's handle needs room", named(&one, AT_FDCWD, GROUPS "/handles", 7, 0), EOVERFLOW);
	PROMISE("of 8 bytes", one.head.handle_bytes == 8);
	one = handle_of(GROUPS "/handles");
	NEED(stat(GROUPS "/handles", &about) == 0);
	PROMISE("it is the inode number", one.head.handle_bytes == 8 && memcmp(one.bytes, &about.st_ino, 8) == 0);
	PROMISE("it opens the group", leads_to(root, &one, GROUPS "/handles"));
	other.head = (struct file_handle){ .handle_bytes = 8, .handle_type = 0xfe };
	memcpy(other.bytes, &about.st_ino, 8);
	PROMISE("so does a number", leads_to(root, &other, GROUPS "/handles"));
	other.head.handle_type = 0x7f;
	FAILS_WITH("of a known type", opened(root, &other, O_RDONLY), ESTALE);
	other = handle_of(GROUPS "/handles/cgroup.procs");
	int fd = opened(root, &other, O_RDONLY);
	PROMISE("files have handles", fd >= 0 && is_same(fd, GROUPS "/handles/cgroup.procs") && is_shown_as(fd, GROUPS "/handles/cgroup.procs"));
	close(fd);
	other = handle_of(GROUPS);
	PROMISE("the root, too", leads_to(root, &other, GROUPS));
	NEED(rmdir(GROUPS "/handles") == 0);
	FAILS_WITH("a removed group has none", opened(root, &one, O_RDONLY), ESTALE);
	close(root);
	NEED(umount2(GROUPS, MNT_DETACH) == 0 && rmdir(GROUPS) == 0);
}

int main(void)
{
	NEED(mkdir(PLACE, 0755) == 0 && mount("none", PLACE, "tmpfs", 0, "mode=755") == 0);
	NEED(mkdir(OTHER, 0755) == 0 && mount("none", OTHER, "tmpfs", 0, NULL) == 0);
	make(PLACE "/file", "text");
	make(OTHER "/file", "text");
	NEED(mkdir(PLACE "/dir", 0755) == 0 && symlink("file", PLACE "/link") == 0);
	make(PLACE "/dir/in", "");
	naming();
	opening();
	ends();
	groups();
	NEED(umount2(PLACE, MNT_DETACH) == 0 && umount2(OTHER, MNT_DETACH) == 0);
	return conclude();
}
