/* Files and names: rules of every Linux file system, on tmpfs. Works in a folder of its own under
 * /tmp. */
#include "promise.h"
#include <dirent.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/statfs.h>
#include <sys/xattr.h>

static struct stat about;
static char bytes[70000];

static int make(const char *name, const char *text)
{
	int file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
	NEED(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text));
	return file;
}

static int exists(const char *name)
{
	return access(name, F_OK) == 0;
}

static void opening(void)
{
	FAILS_WITH("open of nothing", open("nothing", O_RDONLY), ENOENT);
	int file = open("a", O_RDWR | O_CREAT | O_EXCL, 0640);
	PROMISE("O_CREAT makes it, with umask", file >= 0 && fstat(file, &about) == 0 && (about.st_mode & 07777) == 0640 && S_ISREG(about.st_mode));
	FAILS_WITH("O_EXCL insists on a new one", open("a", O_RDWR | O_CREAT | O_EXCL, 0640), EEXIST);
	PROMISE("write and read back", write(file, "hello world", 11) == 11 && lseek(file, 6, SEEK_SET) == 6 && read(file, bytes, 100) == 5 && !memcmp(bytes, "world", 5));
	PROMISE("the end is 0 bytes", read(file, bytes, 10) == 0);
	PROMISE("pread and pwrite leave the position", pwrite(file, "J", 1, 0) == 1 && pread(file, bytes, 5, 0) == 5 && bytes[0] == 'J' && lseek(file, 0, SEEK_CUR) == 11);
	PROMISE("SEEK_END", lseek(file, -5, SEEK_END) == 6);
	FAILS_WITH("a position before the start", lseek(file, -1, SEEK_SET), EINVAL);
	FAILS_WITH("an unknown whence", lseek(file, 0, 99), EINVAL);
	close(file);
	file = open("a", O_WRONLY | O_APPEND);
	lseek(file, 0, SEEK_SET);
	PROMISE("O_APPEND writes at the end", write(file, "!", 1) == 1 && fstat(file, &about) == 0 && about.st_size == 12);
	FAILS_WITH("O_WRONLY cannot be read", read(file, bytes, 1), EBADF);
	close(file);
	file = open("a", O_RDONLY);
	FAILS_WITH("O_RDONLY cannot be written", write(file, "x", 1), EBADF);
	close(file);
	close(open("a", O_WRONLY | O_TRUNC));
	PROMISE("O_TRUNC empties", stat("a", &about) == 0 && about.st_size == 0);
	FAILS_WITH("O_DIRECTORY on a file", open("a", O_RDONLY | O_DIRECTORY), ENOTDIR);
	FAILS_WITH("a file as a folder", open("a/b", O_RDONLY), ENOTDIR);
	FAILS_WITH("writing a folder", open(".", O_WRONLY), EISDIR);
	FAILS_WITH("emptying a folder", open(".", O_RDONLY | O_TRUNC), EISDIR);
	memset(bytes, 'n', 300);
	bytes[300] = 0;
	FAILS_WITH("a name of 300 bytes", open(bytes, O_RDONLY), ENAMETOOLONG);
	FAILS_WITH("an empty name", open("", O_RDONLY), ENOENT);
	file = open(".", O_TMPFILE | O_RDWR, 0600);
	PROMISE("O_TMPFILE has no name", file >= 0 && fstat(file, &about) == 0 && about.st_nlink == 0 && write(file, "x", 1) == 1);
	char link_of[64];
	snprintf(link_of, sizeof link_of, "/proc/self/fd/%d", file);
	PROMISE("until link(2) gives it one", linkat(AT_FDCWD, link_of, AT_FDCWD, "first", AT_SYMLINK_FOLLOW) == 0 && unlink("first") == 0);
	FAILS_WITH("which it has once", linkat(AT_FDCWD, link_of, AT_FDCWD, "second", AT_SYMLINK_FOLLOW), ENOENT);
	close(file);
	file = open(".", O_TMPFILE | O_RDWR | O_EXCL, 0600);
	snprintf(link_of, sizeof link_of, "/proc/self/fd/%d", file);
	FAILS_WITH("O_EXCL: never", linkat(AT_FDCWD, link_of, AT_FDCWD, "never", AT_SYMLINK_FOLLOW), ENOENT);
	close(file);
	file = open("a", O_PATH);
	PROMISE("O_PATH can be asked and not read", fstat(file, &about) == 0 && read(file, bytes, 1) == -1 && errno == EBADF);
	close(file);
}

static void sizes(void)
{
	int file = make("s", "0123456789");
	PROMISE("ftruncate shrinks", ftruncate(file, 4) == 0 && pread(file, bytes, 10, 0) == 4);
	PROMISE("and grows with zeroes", ftruncate(file, 10) == 0 && pread(file, bytes, 20, 0) == 10 && bytes[4] == 0 && bytes[9] == 0);
	PROMISE("a hole reads as zeroes", pwrite(file, "x", 1, 1 << 20) == 1 && pread(file, bytes, 100, 500000) == 100 && bytes[50] == 0);
	PROMISE("and takes no room", fstat(file, &about) == 0 && about.st_size == (1 << 20) + 1 && about.st_blocks < 100);
	PROMISE("SEEK_DATA and SEEK_HOLE find the edges", lseek(file, 8192, SEEK_DATA) == 1 << 20 && lseek(file, 0, SEEK_HOLE) == 4096);
	PROMISE("fallocate", fallocate(file, 0, 0, 2 << 20) == 0 && fstat(file, &about) == 0 && about.st_size == 2 << 20);
	PROMISE("punching a hole", pwrite(file, "yyyy", 4, 4096) == 4 && fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096) == 0 &&
		pread(file, bytes, 4, 4096) == 4 && bytes[0] == 0);
	FAILS_WITH("a negative size", ftruncate(file, -1), EINVAL);
	struct iovec parts[3] = { { bytes, 3 }, { bytes + 10, 4 }, { bytes + 20, 50 } };
	ftruncate(file, 0);
	lseek(file, 0, SEEK_SET);
	write(file, "abcdefgh", 8);
	PROMISE("preadv scatters", preadv(file, parts, 3, 1) == 7 && !memcmp(bytes, "bcd", 3) && !memcmp(bytes + 10, "efgh", 4));
	for (int i = 0; i < 70000; i++)
		bytes[i] = i * 7;
	PROMISE("70,000 bytes at once, at an odd place", pwrite(file, bytes, 70000, 12345) == 70000);
	static char again[70000];
	PROMISE("come back the same", pread(file, again, 70000, 12345) == 70000 && !memcmp(bytes, again, 70000));
	int other = make("t", "");
	lseek(file, 12345, SEEK_SET);
	PROMISE("sendfile copies", sendfile(other, file, NULL, 70000) == 70000 && pread(other, again, 70000, 0) == 70000 && !memcmp(bytes, again, 70000));
	PROMISE("fsync and fdatasync", fsync(file) == 0 && fdatasync(file) == 0);
	close(other);
	close(file);
}

static void names(void)
{
	close(make("n", "name"));
	PROMISE("link makes a second name", link("n", "m") == 0 && stat("m", &about) == 0 && about.st_nlink == 2);
	PROMISE("unlink takes one", unlink("n") == 0 && !exists("n") && stat("m", &about) == 0 && about.st_nlink == 1);
	int file = open("m", O_RDWR);
	PROMISE("an open file outlives its name", unlink("m") == 0 && fstat(file, &about) == 0 && about.st_nlink == 0 && read(file, bytes, 10) == 4);
	close(file);
	close(make("x", "x"));
	close(make("y", "yy"));
	PROMISE("rename replaces", rename("x", "y") == 0 && !exists("x") && stat("y", &about) == 0 && about.st_size == 1);
	FAILS_WITH("RENAME_NOREPLACE does not", ({ close(make("x", "x")); renameat2(AT_FDCWD, "x", AT_FDCWD, "y", RENAME_NOREPLACE); }), EEXIST);
	PROMISE("RENAME_EXCHANGE swaps", truncate("x", 5) == 0 && renameat2(AT_FDCWD, "x", AT_FDCWD, "y", RENAME_EXCHANGE) == 0 &&
		stat("y", &about) == 0 && about.st_size == 5);
	PROMISE("symlink and readlink", symlink("y", "l") == 0 && readlink("l", bytes, 100) == 1 && bytes[0] == 'y');
	PROMISE("stat follows, lstat does not", stat("l", &about) == 0 && S_ISREG(about.st_mode) && lstat("l", &about) == 0 && S_ISLNK(about.st_mode));
	FAILS_WITH("O_NOFOLLOW", open("l", O_RDONLY | O_NOFOLLOW), ELOOP);
	symlink("loop", "loop");
	FAILS_WITH("a symlink to itself", open("loop", O_RDONLY), ELOOP);
	symlink("made-through-a-link", "dangling");
	file = open("dangling", O_WRONLY | O_CREAT, 0600);
	PROMISE("O_CREAT goes through a dangling symlink", file >= 0 && exists("made-through-a-link"));
	close(file);
	FAILS_WITH("unlink of a folder", unlink("."), EISDIR);
}

static void folders(void)
{
	PROMISE("mkdir", mkdir("d", 0755) == 0 && mkdir("d/e", 0755) == 0 && stat("d", &about) == 0 && about.st_nlink == 3);
	FAILS_WITH("mkdir twice", mkdir("d", 0755), EEXIST);
	FAILS_WITH("rmdir of a full one", rmdir("d"), ENOTEMPTY);
	FAILS_WITH("a folder into itself", rename("d", "d/e/f"), EINVAL);
	FAILS_WITH("a folder over a file", rename("d", "y"), ENOTDIR);
	FAILS_WITH("a file over a folder", rename("y", "d"), EISDIR);
	int folder = open("d", O_RDONLY | O_DIRECTORY);
	int file = openat(folder, "inside", O_RDWR | O_CREAT, 0600);
	PROMISE("openat", file >= 0 && exists("d/inside"));
	close(file);
	PROMISE("fstatat and faccessat", fstatat(folder, "inside", &about, 0) == 0 && faccessat(folder, "inside", W_OK, 0) == 0);
	PROMISE("AT_EMPTY_PATH", fstatat(folder, "", &about, AT_EMPTY_PATH) == 0 && S_ISDIR(about.st_mode));
	PROMISE("`..` leads back", openat(folder, "../d/e/../inside", O_RDONLY) >= 0);
	PROMISE("unlinkat of both kinds", unlinkat(folder, "inside", 0) == 0 && unlinkat(folder, "e", AT_REMOVEDIR) == 0);
	close(folder);
	for (int i = 0; i < 300; i++) {
		char name[32];
		snprintf(name, sizeof name, "d/file-%d", i);
		close(make(name, ""));
	}
	DIR *list = opendir("d");
	int seen = 0, dots = 0;
	char found[300] = { 0 };
	for (struct dirent *entry; (entry = readdir(list));) {
		int number;
		if (sscanf(entry->d_name, "file-%d", &number) == 1 && !found[number]) {
			found[number] = 1;
			seen++;
		} else {
			dots++;
		}
	}
	PROMISE("a folder lists each name once, with . and ..", seen == 300 && dots == 2);
	rewinddir(list);
	seen = 0;
	for (struct dirent *entry; (entry = readdir(list));)
		seen += entry->d_type == DT_REG;
	PROMISE("again after rewinddir, with kinds", seen == 300);
	closedir(list);
	char here[4096];
	PROMISE("chdir and getcwd", getcwd(here, sizeof here) && chdir("d") == 0 && getcwd(bytes, sizeof bytes) && !strcmp(bytes + strlen(here), "/d"));
	chdir("..");
	FAILS_WITH("getcwd into too little room", syscall(SYS_getcwd, bytes, 2), ERANGE);
}

static void attributes(void)
{
	int file = make("m", "mode");
	PROMISE("chmod", fchmod(file, 04711) == 0 && fstat(file, &about) == 0 && (about.st_mode & 07777) == 04711);
	struct timespec times[2] = { { 1000, 5 }, { 2000, 7 } };
	PROMISE("utimensat sets nanoseconds", utimensat(AT_FDCWD, "m", times, 0) == 0 && stat("m", &about) == 0 &&
		about.st_atim.tv_sec == 1000 && about.st_mtim.tv_sec == 2000 && about.st_mtim.tv_nsec == 7);
	PROMISE("a write sets the time", write(file, "x", 1) == 1 && fstat(file, &about) == 0 && about.st_mtim.tv_sec > 2000);
	PROMISE("chown", fchown(file, 12, 34) == 0 && fstat(file, &about) == 0 && about.st_uid == 12 && about.st_gid == 34);
	PROMISE("two names of a file have one number", link("m", "m2") == 0 && stat("m2", &about) == 0 && ({ ino_t n = about.st_ino; stat("m", &about); n == about.st_ino; }));
	struct statx wide;
	PROMISE("statx", statx(AT_FDCWD, "m", 0, STATX_BASIC_STATS, &wide) == 0 && wide.stx_size == 5 && wide.stx_uid == 12);
	struct timespec before, after;
	clock_gettime(CLOCK_REALTIME, &before);
	NEED(close(open("born", O_CREAT | O_WRONLY, 0600)) == 0);
	clock_gettime(CLOCK_REALTIME, &after);
	NEED(chmod("born", 0644) == 0);
	PROMISE("and says when a file was made", statx(AT_FDCWD, "born", 0, STATX_BTIME, &wide) == 0 && (wide.stx_mask & STATX_BTIME) &&
		wide.stx_btime.tv_sec >= before.tv_sec - 1 && wide.stx_btime.tv_sec <= after.tv_sec);
	NEED(unlink("born") == 0);
	struct statfs system;
	PROMISE("statfs", statfs(".", &system) == 0 && system.f_bsize == 4096);
	PROMISE("flock", flock(file, LOCK_EX) == 0);
	int second = open("m", O_RDWR);
	FAILS_WITH("excludes another", flock(second, LOCK_EX | LOCK_NB), EWOULDBLOCK);
	PROMISE("until it is given up", flock(file, LOCK_UN) == 0 && flock(second, LOCK_EX | LOCK_NB) == 0);
	close(second);
	struct flock range = { .l_type = F_WRLCK, .l_start = 0, .l_len = 10 };
	int status;
	PROMISE("fcntl locks", fcntl(file, F_SETLK, &range) == 0);
	IN_CHILD(status, _exit(fcntl(file, F_SETLK, &range) == -1 && (errno == EAGAIN || errno == EACCES) ? 1 : 0));
	PROMISE("exclude another process", WEXITSTATUS(status) == 1);
	close(file);
}

/* Namespaces of extended attributes: only root may use root's, even on a file that another user
 * owns. */
static void spaces(void)
{
	static const char caps[20] = { 0, 0, 0, 2, 1 };
	int status, file = make("spaces", "text");
	NEED(fchown(file, 1000, 1000) == 0);
	close(file);
	NEED(chmod(".", 0777) == 0);
	PROMISE("root sets capabilities of a file", setxattr("spaces", "security.capability", caps, sizeof caps, 0) == 0);
	FAILS_WITH("if they are some", setxattr("spaces", "security.capability", caps, 8, 0), EINVAL);
	FAILS_WITH("and not of another version", setxattr("spaces", "security.capability", "\0\0\0\1abcdefghijklmnop", 20, 0), EINVAL);
	PROMISE("root sets another's secure attribute", setxattr("spaces", "security.test", "x", 1, 0) == 0 &&
		setxattr("spaces", "trusted.test", "x", 1, 0) == 0);
	IN_CHILD(status, NEED(setresgid(1000, 1000, 1000) == 0 && setresuid(1000, 1000, 1000) == 0);
		_exit(setxattr("spaces", "security.capability", caps, sizeof caps, 0) == -1 && errno == EPERM ? 0 : 1));
	PROMISE("the owner does not set capabilities", WEXITSTATUS(status) == 0);
	IN_CHILD(status, NEED(setresgid(1000, 1000, 1000) == 0 && setresuid(1000, 1000, 1000) == 0);
		_exit(removexattr("spaces", "security.capability") == -1 && errno == EPERM ? 0 : 1));
	PROMISE("nor remove them", WEXITSTATUS(status) == 0);
	IN_CHILD(status, NEED(setresgid(1000, 1000, 1000) == 0 && setresuid(1000, 1000, 1000) == 0);
		_exit(setxattr("spaces", "security.other", "x", 1, 0) == -1 && errno == EPERM &&
			setxattr("spaces", "security.test", "y", 1, 0) == -1 && errno == EPERM &&
			removexattr("spaces", "security.test") == -1 && errno == EPERM ? 0 : 1));
	PROMISE("nor change a secure attribute", WEXITSTATUS(status) == 0);
	char value[32];
	IN_CHILD(status, NEED(setresgid(1000, 1000, 1000) == 0 && setresuid(1000, 1000, 1000) == 0);
		char read[32];
		_exit(getxattr("spaces", "security.test", read, sizeof read) == 1 && read[0] == 'x' ? 0 : 1));
	PROMISE("but reads it", WEXITSTATUS(status) == 0);
	IN_CHILD(status, NEED(setresgid(1000, 1000, 1000) == 0 && setresuid(1000, 1000, 1000) == 0);
		_exit(setxattr("spaces", "trusted.test", "y", 1, 0) == -1 && errno == EPERM &&
			getxattr("spaces", "trusted.test", &value, sizeof value) == -1 && errno == ENODATA ? 0 : 1));
	PROMISE("and has no trusted ones", WEXITSTATUS(status) == 0);
	PROMISE("all is as it was", getxattr("spaces", "security.capability", value, sizeof value) == sizeof caps &&
		getxattr("spaces", "trusted.test", value, sizeof value) == 1 && value[0] == 'x' &&
		removexattr("spaces", "security.test") == 0 && removexattr("spaces", "security.capability") == 0);
}

/* A way to change the bytes of a file that is open as `file`, by number; -1 fails. */
static long changes(int way, int file, const char *name)
{
	int ends[2];
	loff_t at = 3;
	struct iovec part = { "x", 1 };
	switch (way) {
	case 0: return write(file, "x", 1);
	case 1: return pwrite(file, "x", 1, 2);
	case 2: return pwritev(file, &part, 1, 0);
	case 3: return fcntl(file, F_SETFL, O_APPEND) ? -1 : write(file, "x", 1);
	case 4: return truncate(name, 3);
	case 5: return ftruncate(file, 3);
	case 6: return open(name, O_WRONLY | O_TRUNC);
	case 7: return fallocate(file, 0, 0, 100);
	case 8: return pipe(ends) || write(ends[1], "abc", 3) != 3 ? -1 : splice(ends[0], NULL, file, NULL, 3, 0);
	case 9: return copy_file_range(file, NULL, file, &at, 2, 0);
	default: return sendfile(file, open("/dev/zero", O_RDONLY), NULL, 3);
	}
}

#define WAYS 11

static unsigned mode_of(const char *name)
{
	struct stat now;
	return stat(name, &now) ? 0 : now.st_mode & 07777;
}

/* The set-user-ID and set-group-ID bits are cleared when the bytes change. */
static void rights(void)
{
	int kept = 0, status, file = make("runs-as", "some bytes");
	close(file);
	for (int way = 0; way < WAYS; way++) {
		NEED(chmod("runs-as", 06777) == 0);
		IN_CHILD(status, NEED(setresgid(1000, 1000, 1000) == 0 && setresuid(1000, 1000, 1000) == 0);
			_exit(changes(way, open("runs-as", O_RDWR), "runs-as") >= 0 ? 0 : 1));
		NEED(status == 0);
		if (mode_of("runs-as") != 0777)
			fprintf(stderr, "way %d: %o\n", way, mode_of("runs-as")), kept++;
	}
	PROMISE("a file that others change runs as its owner no more", kept == 0);
	NEED(chmod("runs-as", 06777) == 0);
	IN_CHILD(status, NEED(setresgid(1000, 1000, 1000) == 0 && setresuid(1000, 1000, 1000) == 0);
		_exit(write(open("runs-as", O_RDWR), "", 0) == 0 && read(open("runs-as", O_RDONLY), bytes, 1) >= 0 ? 0 : 1));
	PROMISE("one that is read does", status == 0 && mode_of("runs-as") == 06777);
	file = open("runs-as", O_RDWR);
	PROMISE("one that root changes does", write(file, "x", 1) == 1 && ftruncate(file, 5) == 0 && mode_of("runs-as") == 06777);
	NEED(fchown(file, 1000, 1000) == 0);
	PROMISE("one that goes to another owner does not", mode_of("runs-as") == 0777);
	close(file);
}

static void devices(void)
{
	int null = open("/dev/null", O_RDWR), zero = open("/dev/zero", O_RDWR), full = open("/dev/full", O_RDWR);
	memset(bytes, 1, 100);
	PROMISE("/dev/null swallows and is empty", write(null, "x", 1) == 1 && read(null, bytes, 1) == 0);
	PROMISE("/dev/zero is zero", read(zero, bytes, 100) == 100 && bytes[99] == 0 && write(zero, "x", 1) == 1);
	FAILS_WITH("/dev/full is full", write(full, "x", 1), ENOSPC);
	char *mapped = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE, zero, 0);
	PROMISE("/dev/zero can be mapped", mapped != MAP_FAILED && mapped[5000] == 0 && (mapped[5000] = 1));
	int random = open("/dev/urandom", O_RDONLY);
	PROMISE("/dev/urandom differs", read(random, bytes, 32) == 32 && read(random, bytes + 32, 32) == 32 && memcmp(bytes, bytes + 32, 32));
	PROMISE("devices are character devices", fstat(null, &about) == 0 && S_ISCHR(about.st_mode) && about.st_rdev == 0x103);
	FAILS_WITH("a device that is not there", ({ mknod("ghost", S_IFCHR | 0600, 0x7f01); open("ghost", O_RDONLY); }), ENXIO);
	int memory = memfd_create("mine", MFD_CLOEXEC);
	PROMISE("memfd", memory >= 0 && write(memory, "m", 1) == 1 && fstat(memory, &about) == 0 && about.st_size == 1);
	PROMISE("/dev/shm is there", access("/dev/shm", W_OK) == 0);
	PROMISE("/dev/fd names our descriptors", ({ char name[32]; snprintf(name, sizeof name, "/dev/fd/%d", null); access(name, F_OK) == 0; }));
}

/* Returns the error of access(2) for a path of `length` slashes and a dot that ends `before` bytes
 * before the end of a page behind which there is none; 0 for none. */
static int slashes(char *end, size_t length, size_t before)
{
	char *path = end - before - length - 2;
	memset(path, '/', length);
	strcpy(path + length, ".");
	return access(path, F_OK) == 0 ? 0 : errno;
}

static void strings(void)
{
	char *pages = mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *end = pages + 3 * 4096;
	NEED(pages != MAP_FAILED && munmap(end, 4096) == 0);
	static const size_t lengths[] = { 1, 6, 7, 8, 61, 62, 63, 64, 65, 500, 574, 575, 576, 577, 4000, 4093, 4094 };
	int ends = 1, inside = 1;
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		ends &= slashes(end, lengths[i], 0) == 0;
		for (size_t before = 1; before < 70; before += 17)
			inside &= slashes(end, lengths[i], before) == 0;
	}
	PROMISE("a path may end where its page ends", ends);
	PROMISE("or anywhere, in one page or in two", inside);
	PROMISE("it has at most 4,095 bytes", slashes(end, 4095, 0) == ENAMETOOLONG && slashes(end, 4500, 10) == ENAMETOOLONG);
	memset(end - 100, '/', 100);
	FAILS_WITH("and no part of it is in memory that is not there", access(end - 100, F_OK), EFAULT);
	FAILS_WITH("nor its first byte", access(end, F_OK), EFAULT);
	munmap(pages, 3 * 4096);
}

int main(void)
{
	char folder[] = "/tmp/files-XXXXXX";
	umask(022);
	NEED(mkdtemp(folder) && chdir(folder) == 0);
	opening();
	sizes();
	names();
	folders();
	attributes();
	spaces();
	rights();
	devices();
	strings();
	return conclude();
}
