/*
 * One tree over another (mount(2) with the type overlay): copies, whiteouts, opaque directories,
 * inode numbers and errors as programs see them. The optional argument is the kernel module that
 * a stock Linux needs for it.
 */
#include "promise.h"

#include <dirent.h>
#include <sys/mount.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

/* A file that takes a while to be copied. */
#define LARGE 4
#define BASE "/tmp/overlay"
#define LOWER BASE "/lower"
#define UPPER BASE "/rw/upper"
#define WORK BASE "/rw/work"
#define M BASE "/merged"
#define OPTIONS "lowerdir=" LOWER ",upperdir=" UPPER ",workdir=" WORK

static void put(const char *path, const char *text)
{
	int file = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0644);
	NEED(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text));
	close(file);
}

static int append(const char *path, const char *text)
{
	int file = open(path, O_WRONLY | O_APPEND);
	ssize_t done = file < 0 ? -1 : write(file, text, strlen(text));
	close(file);
	return done == (ssize_t)strlen(text);
}

static int holds(const char *path, const char *text)
{
	char bytes[256];
	int file = open(path, O_RDONLY);
	ssize_t count = file < 0 ? -1 : read(file, bytes, sizeof bytes);
	close(file);
	return count == (ssize_t)strlen(text) && !memcmp(bytes, text, count);
}

static int exists(const char *path)
{
	struct stat status;
	return lstat(path, &status) == 0;
}

static struct stat status_of(const char *path)
{
	struct stat status = { 0 };
	NEED(lstat(path, &status) == 0);
	return status;
}

static int same_inode(struct stat a, struct stat b)
{
	return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static int is_whiteout(const char *path)
{
	struct stat status;
	return lstat(path, &status) == 0 && S_ISCHR(status.st_mode) && status.st_rdev == makedev(0, 0);
}

static int is_opaque(const char *path)
{
	char value;
	return getxattr(path, "trusted.overlay.opaque", &value, 1) == 1 && value == 'y';
}

/* Counts the names in a directory except "." and "..", and those that equal `name`. Checks that
 * d_ino is st_ino. */
static int names_in(const char *path, const char *name, int *times, int *numbers)
{
	int count = 0;
	DIR *dir = opendir(path);
	NEED(dir);
	*times = 0, *numbers = 1;
	for (struct dirent *entry; (entry = readdir(dir));) {
		char whole[600];
		struct stat status;
		snprintf(whole, sizeof whole, "%s/%s", path, entry->d_name);
		*numbers &= lstat(whole, &status) == 0 && status.st_ino == entry->d_ino;
		*times += !strcmp(entry->d_name, name);
		count += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
	}
	closedir(dir);
	return count;
}

static void remount(void)
{
	NEED(umount(M) == 0);
	NEED(mount("overlay", M, "overlay", 0, OPTIONS) == 0);
}

static void errors(void)
{
	mkdir(BASE "/other", 0755);
	FAILS_WITH("a mount without a lower tree is refused", mount("overlay", M, "overlay", 0, "upperdir=" UPPER ",workdir=" WORK), EINVAL);
	FAILS_WITH("so is one of a lower tree alone", mount("overlay", M, "overlay", 0, "lowerdir=" LOWER), EINVAL);
	FAILS_WITH("and one without a work directory", mount("overlay", M, "overlay", 0, "lowerdir=" LOWER ",upperdir=" UPPER), EINVAL);
	FAILS_WITH("the work directory is in the upper tree's mount",
		   mount("overlay", M, "overlay", 0, "lowerdir=" LOWER ",upperdir=" UPPER ",workdir=" BASE "/other"), EINVAL);
	FAILS_WITH("but not in the upper tree", mount("overlay", M, "overlay", 0, "lowerdir=" LOWER ",upperdir=" UPPER ",workdir=" UPPER), EINVAL);
	FAILS_WITH("a lower tree that is not there is ENOENT", mount("overlay", M, "overlay", 0, "lowerdir=" BASE "/no,upperdir=" UPPER ",workdir=" WORK), ENOENT);
	FAILS_WITH("an option that there is not is refused", mount("overlay", M, "overlay", 0, OPTIONS ",nonsense=1"), EINVAL);
	FAILS_WITH("one tree is not both", mount("overlay", M, "overlay", 0, "lowerdir=" UPPER ",upperdir=" UPPER ",workdir=" WORK), ELOOP);
	mkdir(UPPER "/in", 0755);
	FAILS_WITH("nor is the lower one in the upper one",
		   mount("overlay", M, "overlay", 0, "lowerdir=" UPPER "/in,upperdir=" UPPER ",workdir=" WORK), ELOOP);
	rmdir(UPPER "/in");
}

static void copies(void)
{
	struct stat before = status_of(M "/dir/file"), dir = status_of(M "/dir");
	struct stat lower = status_of(LOWER "/dir/file");
	int reader = open(M "/dir/file", O_RDONLY);
	char *mapped = mmap(NULL, 4096, PROT_READ, MAP_SHARED, reader, 0);
	NEED(reader >= 0 && mapped != MAP_FAILED);
	PROMISE("a file of the lower tree is seen", holds(M "/dir/file", "lower"));
	PROMISE("opening for reading copies nothing", !exists(UPPER "/dir"));
	PROMISE("what is written is seen", append(M "/dir/file", "+") && holds(M "/dir/file", "lower+"));
	PROMISE("it is in the upper tree", holds(UPPER "/dir/file", "lower+"));
	PROMISE("and not in the lower one", holds(LOWER "/dir/file", "lower"));
	PROMISE("the file's number and device stay", same_inode(before, status_of(M "/dir/file")));
	PROMISE("so do the directory's", same_inode(dir, status_of(M "/dir")));
	PROMISE("and its times", dir.st_mtim.tv_sec == status_of(M "/dir").st_mtim.tv_sec && dir.st_mtim.tv_nsec == status_of(M "/dir").st_mtim.tv_nsec);
	PROMISE("who opened it before reads what was written", lseek(reader, 0, SEEK_END) == 6);
	PROMISE("a mapping shows the lower tree's file", !memcmp(mapped, "lower\0", 6));
	PROMISE("the mode is copied", status_of(UPPER "/dir/file").st_mode == lower.st_mode);
	munmap(mapped, 4096);
	close(reader);
	PROMISE("a change of mode copies", chmod(M "/dir/mode", 0600) == 0 && (status_of(UPPER "/dir/mode").st_mode & 07777) == 0600);
	PROMISE("and leaves the bytes", holds(M "/dir/mode", "mode") && (status_of(LOWER "/dir/mode").st_mode & 07777) == 0644);
	PROMISE("so does a change of owner", chown(M "/dir/mode", 7, 8) == 0 && status_of(M "/dir/mode").st_uid == 7 && status_of(LOWER "/dir/mode").st_uid == 0);
	struct timespec times[2] = { { 1000, 0 }, { 2000, 0 } };
	PROMISE("and one of times", utimensat(AT_FDCWD, M "/dir/times", times, 0) == 0 && status_of(M "/dir/times").st_mtim.tv_sec == 2000);
	PROMISE("an attribute copies too", setxattr(M "/dir/attribute", "trusted.x", "y", 1, 0) == 0 && exists(UPPER "/dir/attribute"));
	FAILS_WITH("attributes of the overlay are not seen", getxattr(M "/dir/attribute", "trusted.overlay.origin", NULL, 0), EOPNOTSUPP);
	PROMISE("what empties a file leaves nothing of it", close(open(M "/dir/cut", O_WRONLY | O_TRUNC)) == 0 && status_of(M "/dir/cut").st_size == 0);
	PROMISE("a link is one to the copy", link(M "/dir/linked", M "/dir/hard") == 0 && status_of(M "/dir/linked").st_nlink == 2 &&
						 same_inode(status_of(M "/dir/linked"), status_of(M "/dir/hard")));
	struct statfs stats;
	PROMISE("statfs tells its type", statfs(M, &stats) == 0 && stats.f_type == 0x794c7630);
	PROMISE("numbers stay for who mounts it again", (remount(), same_inode(dir, status_of(M "/dir")) || status_of(M "/dir").st_ino == dir.st_ino));
}

static void removals(void)
{
	int times, numbers;
	PROMISE("a file of the lower tree is removed", unlink(M "/gone") == 0 && !exists(M "/gone"));
	PROMISE("by a whiteout", is_whiteout(UPPER "/gone"));
	PROMISE("it is listed no more", (names_in(M, "gone", &times, &numbers), times == 0));
	PROMISE("the lower tree has it", exists(LOWER "/gone"));
	FAILS_WITH("a directory with names is not removed", rmdir(M "/tree"), ENOTEMPTY);
	PROMISE("once they are, it is", unlink(M "/tree/a") == 0 && rmdir(M "/tree/sub") == 0 && rmdir(M "/tree") == 0 && !exists(M "/tree"));
	PROMISE("by one whiteout", is_whiteout(UPPER "/tree"));
	PROMISE("a directory of its name is empty", mkdir(M "/tree", 0755) == 0 && names_in(M "/tree", "a", &times, &numbers) == 0);
	PROMISE("it is opaque", is_opaque(UPPER "/tree"));
	PROMISE("a file of a removed one's name is new", (put(M "/gone", "new"), holds(M "/gone", "new")) && !is_whiteout(UPPER "/gone"));
	remount();
	PROMISE("all that holds after another mount", holds(M "/gone", "new") && names_in(M "/tree", "a", &times, &numbers) == 0);
	PROMISE("a removed file that is open has its bytes", ({
			int file = open(M "/open", O_RDWR);
			NEED(unlink(M "/open") == 0);
			char byte;
			int kept = fchmod(file, 0600) == 0 && pread(file, &byte, 1, 0) == 1 && byte == 'o';
			close(file);
			kept;
		}));
	FAILS_WITH("in a directory that was removed nothing is made", ({
			NEED(mkdir(M "/removed", 0755) == 0);
			int dir = open(M "/removed", O_DIRECTORY);
			NEED(rmdir(M "/removed") == 0);
			int made = mkdirat(dir, "x", 0755), error = errno;
			close(dir);
			errno = error;
			made;
		}), ENOENT);
}

static void renames(void)
{
	int times, numbers;
	FAILS_WITH("a directory of the lower tree is not renamed", rename(M "/dir", M "/moved"), EXDEV);
	PROMISE("a file is", rename(M "/move", M "/dir/moved") == 0 && holds(M "/dir/moved", "move") && !exists(M "/move"));
	PROMISE("a whiteout stays where it was", is_whiteout(UPPER "/move"));
	PROMISE("a file takes another's place", rename(M "/dir/moved", M "/replaced") == 0 && holds(M "/replaced", "move"));
	PROMISE("a new directory is renamed", mkdir(M "/new", 0755) == 0 && rename(M "/new", M "/newer") == 0 && exists(M "/newer"));
	PROMISE("and takes an empty one's place", rename(M "/newer", M "/empty") == 0 && !exists(M "/newer"));
	PROMISE("where it hides what is below", is_opaque(UPPER "/empty"));
	FAILS_WITH("but not one's with names", (mkdir(M "/new", 0755), rename(M "/new", M "/dir")), ENOTEMPTY);
	FAILS_WITH("nor a file's", rename(M "/new", M "/replaced"), ENOTDIR);
	FAILS_WITH("a file takes no directory's", rename(M "/replaced", M "/new"), EISDIR);
	PROMISE("two files change places", syscall(SYS_renameat2, AT_FDCWD, M "/one", AT_FDCWD, M "/dir/two", 2) == 0 && holds(M "/one", "two") && holds(M "/dir/two", "one"));
	FAILS_WITH("a rename that may not replace does not", syscall(SYS_renameat2, AT_FDCWD, M "/one", AT_FDCWD, M "/dir/two", 1), EEXIST);
	FAILS_WITH("a rename leaves no whiteout for a program", syscall(SYS_renameat2, AT_FDCWD, M "/one", AT_FDCWD, M "/three", 4), EINVAL);
	PROMISE("a new directory comes where a removed file was", unlink(M "/file") == 0 && rename(M "/new", M "/file") == 0 && names_in(M "/file", "", &times, &numbers) == 0);
}

/* Whether a task that copies a large file up can be killed, and leaves nothing in the upper
 * tree. */
static int ends_a_copy(int number)
{
	char path[100], copy[100];
	snprintf(path, sizeof path, M "/large%d", number);
	snprintf(copy, sizeof copy, UPPER "/large%d", number);
	int status;
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		close(open(path, O_WRONLY));
		pause();
	}
	usleep(1000);
	kill(child, SIGKILL);
	NEED(waitpid(child, &status, 0) == child);
	return WIFSIGNALED(status) && !exists(copy) && exists(path);
}

static void listings(void)
{
	int times, numbers;
	char path[100];
	for (int i = 0; i < 300; i++) {
		snprintf(path, sizeof path, M "/many/%d", i * 2);
		if (i % 3 == 0)
			append(path, "x");
		else if (i % 3 == 1)
			unlink(path);
		snprintf(path, sizeof path, M "/many/new%d", i);
		put(path, "");
	}
	PROMISE("a merged directory lists each name once", names_in(M "/many", "6", &times, &numbers) == 300 - 100 + 300 && times == 1);
	PROMISE("with the numbers that stat tells", numbers);
	DIR *dir = opendir(M "/many");
	NEED(dir);
	for (int i = 0; i < 50; i++)
		NEED(readdir(dir));
	long place = telldir(dir);
	char next[256];
	strcpy(next, readdir(dir)->d_name);
	unlink(M "/many/new7");
	put(M "/many/later", "");
	for (int i = 0; i < 100; i++)
		readdir(dir);
	seekdir(dir, place);
	PROMISE("a place in it stays one", !strcmp(readdir(dir)->d_name, next));
	rewinddir(dir);
	int later = 0;
	for (struct dirent *entry; (entry = readdir(dir));)
		later += !strcmp(entry->d_name, "later");
	PROMISE("from the beginning it shows what is there now", later == 1);
	closedir(dir);
}

/* Overlays on overlays: no more than a few, and then one error. */
static void stacked(void)
{
	char place[64], options[160];
	int depth = 0, why = 0;
	NEED(mkdir(BASE "/empty", 0755) == 0);
	for (; depth < 40; depth++) {
		snprintf(place, sizeof place, BASE "/on%d", depth);
		if (depth == 0)
			snprintf(options, sizeof options, "lowerdir=" LOWER ":" BASE "/empty");
		else
			snprintf(options, sizeof options, "lowerdir=" BASE "/on%d:" BASE "/empty", depth - 1);
		NEED(mkdir(place, 0755) == 0);
		if (mount("overlay", place, "overlay", 0, options) != 0) {
			why = errno;
			break;
		}
	}
	PROMISE("two overlays lie on each other, but not many", why == EINVAL && depth >= 2 && depth < 5);
	while (depth-- > 0) {
		snprintf(place, sizeof place, BASE "/on%d", depth);
		NEED(umount(place) == 0);
	}
}

/* The former upper tree, used as a lower tree above the other one. */
static void several(void)
{
	const char *lower = "lowerdir=" UPPER ":" LOWER;
	const char *with_upper = "lowerdir=" UPPER ":" LOWER ",upperdir=" BASE "/rw/second,workdir=" BASE "/rw/work2";
	struct statfs stats;
	int times, numbers;
	char said[256];
	FAILS_WITH("a lower tree is not in another one", mount("overlay", M, "overlay", 0, "lowerdir=" LOWER ":" LOWER "/dir"), ELOOP);
	FAILS_WITH("nor twice", mount("overlay", M, "overlay", 0, "lowerdir=" LOWER ":" LOWER), ELOOP);
	PROMISE("two lower trees need no upper one", mount("overlay", M, "overlay", 0, lower) == 0);
	PROMISE("what was changed is seen", holds(M "/dir/file", "lower+") && holds(M "/gone", "new"));
	PROMISE("what was removed is not", !exists(M "/open") && !exists(M "/removed"));
	PROMISE("nor what an opaque directory hides", names_in(M "/tree", "a", &times, &numbers) == 0);
	PROMISE("a directory of both lists each name once", names_in(M "/many", "6", &times, &numbers) >= 500 && times == 1);
	FAILS_WITH("nothing is made there", mkdir(M "/made", 0755), EROFS);
	FAILS_WITH("nothing is removed", unlink(M "/gone"), EROFS);
	FAILS_WITH("nothing is opened for writing", open(M "/gone", O_WRONLY), EROFS);
	PROMISE("statfs says so", statfs(M, &stats) == 0 && (stats.f_flags & 1));
	PROMISE("directories are of one device", status_of(M "/many").st_dev == status_of(M).st_dev && status_of(M "/tree").st_dev == status_of(M).st_dev);
	NEED(umount(M) == 0 && mkdir(BASE "/rw/second", 0755) == 0 && mkdir(BASE "/rw/work2", 0755) == 0);
	PROMISE("an upper one takes the changes", mount("overlay", M, "overlay", 0, with_upper) == 0 && append(M "/gone", "er"));
	PROMISE("and they are there alone", holds(BASE "/rw/second/gone", "newer") && holds(UPPER "/gone", "new"));
	PROMISE("a file of the lowest tree is copied up", append(M "/many/4", "x") && exists(BASE "/rw/second/many/4"));
	PROMISE("one of the middle one is removed", unlink(M "/many/later") == 0 && !exists(M "/many/later") && exists(UPPER "/many/later"));
	PROMISE("by a whiteout", is_whiteout(BASE "/rw/second/many/later"));
	FAILS_WITH("a directory of lower trees is not renamed", rename(M "/tree", M "/elsewhere"), EXDEV);
	int mounts = open("/proc/mounts", O_RDONLY), found = 0;
	FILE *lines = fdopen(mounts, "r");
	while (fgets(said, sizeof said, lines))
		found |= strstr(said, lower) != NULL;
	fclose(lines);
	PROMISE("/proc/mounts names all of them", found);
	NEED(umount(M) == 0);
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		int module = open(argv[1], O_RDONLY);
		NEED(module >= 0 && syscall(SYS_finit_module, module, "", 0) == 0);
	}
	mkdir("/tmp", 01777), mkdir(BASE, 0755), mkdir(LOWER, 0755), mkdir(BASE "/rw", 0755), mkdir(M, 0755);
	NEED(mount("lower", LOWER, "tmpfs", 0, "") == 0 && mount("rw", BASE "/rw", "tmpfs", 0, "") == 0);
	NEED(mkdir(UPPER, 0755) == 0 && mkdir(WORK, 0755) == 0);
	const char *dirs[] = { "dir", "tree", "tree/sub", "empty", "many" };
	const char *files[] = { "dir/file", "dir/mode", "dir/times", "dir/attribute", "dir/cut", "dir/linked", "dir/two", "gone", "open", "tree/a", "move", "replaced", "one", "file" };
	for (unsigned i = 0; i < sizeof dirs / sizeof *dirs; i++) {
		char path[100];
		snprintf(path, sizeof path, LOWER "/%s", dirs[i]);
		NEED(mkdir(path, 0755) == 0);
	}
	for (unsigned i = 0; i < sizeof files / sizeof *files; i++) {
		char path[100];
		snprintf(path, sizeof path, LOWER "/%s", files[i]);
		put(path, i == 0 ? "lower" : strrchr(path, '/') + 1);
	}
	for (int i = 0; i < 300; i++) {
		char path[100];
		snprintf(path, sizeof path, LOWER "/many/%d", i * 2);
		put(path, "");
	}
	static char bytes[16 << 20];
	memset(bytes, 'x', sizeof bytes - 1);
	for (int i = 0; i < LARGE; i++) {
		char path[100];
		snprintf(path, sizeof path, LOWER "/large%d", i);
		if (i == 0)
			put(path, bytes);
		else
			NEED(link(LOWER "/large0", path) == 0);
	}
	errors();
	NEED(mount("overlay", M, "overlay", 0, OPTIONS) == 0);
	copies();
	removals();
	renames();
	int number = 0;
	PROMISE("a task that copies is killed, and leaves nothing", HOLDS_ONCE(ends_a_copy(number++ % LARGE)));
	listings();
	PROMISE("the lower tree is as it was", holds(LOWER "/dir/file", "lower") && holds(LOWER "/one", "one") && holds(LOWER "/move", "move") && exists(LOWER "/many/4"));
	NEED(umount(M) == 0);
	several();
	stacked();
	return conclude();
}
