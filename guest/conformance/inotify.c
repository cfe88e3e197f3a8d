/* inotify(7): a watch on a file or directory reports its events in order, each once. */
#include "promise.h"

#include <dirent.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/sendfile.h>
#include <sys/xattr.h>

#ifndef IN_MASK_CREATE
#define IN_MASK_CREATE 0x10000000
#endif

static int fd;

/* Returns all pending events as text: "WATCH MASK NAME;" each, with any cookies as letters. */
static const char *events_of(int instance)
{
	static char text[65536];
	static const char *const names[] = {
		"ACCESS", "MODIFY", "ATTRIB", "CLOSE_WRITE", "CLOSE_NOWRITE", "OPEN", "MOVED_FROM", "MOVED_TO",
		"CREATE", "DELETE", "DELETE_SELF", "MOVE_SELF", NULL, "UNMOUNT", "OVERFLOW", "IGNORED",
	};
	char buffer[65536] __attribute__((aligned(8)));
	uint32_t cookies[16];
	int known = 0, used = 0;
	text[0] = 0;
	for (;;) {
		ssize_t came = read(instance, buffer, sizeof buffer);
		if (came <= 0)
			return text;
		for (char *at = buffer; at < buffer + came;) {
			struct inotify_event *event = (void *)at;
			at += sizeof *event + event->len;
			NEED(used < (int)sizeof text - 512);
			used += sprintf(text + used, "%d", event->wd);
			for (int bit = 0; bit < 16; bit++)
				if (event->mask >> bit & 1 && names[bit])
					used += sprintf(text + used, " %s", names[bit]);
			if (event->mask & IN_ISDIR)
				used += sprintf(text + used, " DIR");
			if (event->cookie) {
				int number = 0;
				while (number < known && cookies[number] != event->cookie)
					number++;
				if (number == known && known < 16)
					cookies[known++] = event->cookie;
				used += sprintf(text + used, " %c", 'a' + number);
			}
			if (event->len)
				used += sprintf(text + used, " %s", event->name);
			used += sprintf(text + used, ";");
		}
	}
}

/* Returns whether the waiting events are `expected`; prints them if they are not. */
static int says(const char *expected)
{
	const char *told = events_of(fd);
	if (!strcmp(told, expected))
		return 1;
	printf("# told:     %s\n# expected: %s\n", told, expected);
	return 0;
}

static void forget(void)
{
	events_of(fd);
}

static int watch(const char *path, uint32_t mask)
{
	int number = inotify_add_watch(fd, path, mask);
	NEED(number > 0);
	return number;
}

static void make(const char *path, const char *text)
{
	int file = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0644);
	NEED(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text) && close(file) == 0);
}

/* Every part begins with an instance of its own, in a directory of its own. */
static void begin(const char *name)
{
	NEED(mkdir(name, 0755) == 0 && chdir(name) == 0);
	fd = inotify_init1(IN_NONBLOCK);
	NEED(fd >= 0);
}

static void finish(void)
{
	NEED(close(fd) == 0 && chdir("..") == 0);
}

static void opening(void)
{
	FAILS_WITH("unknown flags", inotify_init1(1), EINVAL);
	int plain = inotify_init();
	PROMISE("inotify_init waits and stays over execve", fcntl(plain, F_GETFL) == O_RDONLY && fcntl(plain, F_GETFD) == 0);
	int one = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	PROMISE("IN_NONBLOCK and IN_CLOEXEC", fcntl(one, F_GETFL) == O_NONBLOCK && fcntl(one, F_GETFD) == FD_CLOEXEC);
	char byte;
	FAILS_WITH("nothing to read", read(one, &byte, 1), EAGAIN);
	FAILS_WITH("an instance is not written to", write(one, &byte, 1), EBADF);
	close(plain);
	close(one);
}

static void arguments(void)
{
	begin("arguments");
	make("file", "x");
	NEED(symlink("file", "link") == 0 && symlink("nowhere", "broken") == 0 && mkdir("dir", 0755) == 0);
	int event = dup(0);
	FAILS_WITH("no event asked for", inotify_add_watch(fd, "file", 0), EINVAL);
	FAILS_WITH("an unknown bit", inotify_add_watch(fd, "file", IN_OPEN | 1 << 20), EINVAL);
	FAILS_WITH("a descriptor that is closed", inotify_add_watch(1000, "file", IN_OPEN), EBADF);
	FAILS_WITH("a descriptor of something else", inotify_add_watch(event, "file", IN_OPEN), EINVAL);
	FAILS_WITH("add and create at once", inotify_add_watch(fd, "file", IN_OPEN | IN_MASK_ADD | IN_MASK_CREATE), EINVAL);
	FAILS_WITH("no such file", inotify_add_watch(fd, "none", IN_OPEN), ENOENT);
	FAILS_WITH("a link to nowhere", inotify_add_watch(fd, "broken", IN_OPEN), ENOENT);
	FAILS_WITH("a path that is no address", inotify_add_watch(fd, (char *)8, IN_OPEN), EFAULT);
	FAILS_WITH("IN_ONLYDIR and a file", inotify_add_watch(fd, "file", IN_OPEN | IN_ONLYDIR), ENOTDIR);
	PROMISE("IN_ONLYDIR and a directory", inotify_add_watch(fd, "dir", IN_OPEN | IN_ONLYDIR) == 1);
	PROMISE("numbers ascend", inotify_add_watch(fd, "file", IN_OPEN) == 2);
	PROMISE("the same inode has the same watch", inotify_add_watch(fd, "link", IN_ACCESS) == 2);
	PROMISE("IN_DONT_FOLLOW: the link itself", inotify_add_watch(fd, "link", IN_ATTRIB | IN_DONT_FOLLOW) == 3);
	PROMISE("flags alone are a mask", inotify_add_watch(fd, "dir/..", IN_ONLYDIR) == 4);
	FAILS_WITH("IN_MASK_CREATE and a watch that is there", inotify_add_watch(fd, "file", IN_OPEN | IN_MASK_CREATE), EEXIST);
	FAILS_WITH("a number that no watch has", inotify_rm_watch(fd, 9), EINVAL);
	FAILS_WITH("a watch of something else", inotify_rm_watch(event, 1), EINVAL);
	PROMISE("inotify_rm_watch", inotify_rm_watch(fd, 2) == 0 && says("2 IGNORED;"));
	FAILS_WITH("which is over then", inotify_rm_watch(fd, 2), EINVAL);
	PROMISE("its number is not used again", inotify_add_watch(fd, "file", IN_OPEN | IN_MASK_CREATE) == 5);
	if (geteuid() == 0) {
		int status;
		NEED(chmod("file", 0200) == 0 && chmod("dir", 0755) == 0);
		IN_CHILD(status, {
			NEED(setgid(12345) == 0 && setuid(12345) == 0);
			errno = 0;
			_exit(inotify_add_watch(fd, "file", IN_OPEN) == -1 && errno == EACCES ? 0 : 1);
		});
		PROMISE("only what one may read", status == 0);
	}
	close(event);
	finish();
}

/* Operations on a file that is watched itself and through its directory. */
static void content(void)
{
	char bytes[64];
	begin("content");
	make("file", "some text");
	watch(".", IN_ALL_EVENTS);
	watch("file", IN_ALL_EVENTS);
	int file = open("file", O_RDONLY);
	PROMISE("open: the directory first", says("1 OPEN file;2 OPEN;"));
	NEED(read(file, bytes, 4) == 4);
	PROMISE("read", says("1 ACCESS file;2 ACCESS;"));
	NEED(pread(file, bytes, 4, 2) == 4);
	PROMISE("pread", says("1 ACCESS file;2 ACCESS;"));
	NEED(readv(file, &(struct iovec){ bytes, 2 }, 1) == 2);
	PROMISE("readv", says("1 ACCESS file;2 ACCESS;"));
	NEED(lseek(file, 0, SEEK_END) == 9 && read(file, bytes, 4) == 0);
	PROMISE("neither lseek nor a read of nothing", says(""));
	int ends[2];
	NEED(pipe(ends) == 0);
	NEED(sendfile(ends[1], file, &(off_t){ 0 }, 5) == 5);
	PROMISE("sendfile", says("1 ACCESS file;2 ACCESS;"));
	NEED(splice(file, &(loff_t){ 0 }, ends[1], NULL, 5, 0) == 5);
	PROMISE("splice from it", says("1 ACCESS file;2 ACCESS;"));
	close(file);
	PROMISE("close of what was read only", says("1 CLOSE_NOWRITE file;2 CLOSE_NOWRITE;"));

	file = open("file", O_RDWR);
	forget();
	NEED(write(file, "abc", 3) == 3);
	PROMISE("write", says("1 MODIFY file;2 MODIFY;"));
	NEED(write(file, "", 0) == 0);
	PROMISE("not a write of nothing", says(""));
	NEED(pwrite(file, "abc", 3, 1) == 3);
	PROMISE("pwrite", says("1 MODIFY file;2 MODIFY;"));
	NEED(writev(file, &(struct iovec){ bytes, 2 }, 1) == 2);
	PROMISE("writev", says("1 MODIFY file;2 MODIFY;"));
	NEED(splice(ends[0], NULL, file, NULL, 5, 0) == 5);
	PROMISE("splice to it", says("1 MODIFY file;2 MODIFY;"));
	NEED(ftruncate(file, 4) == 0);
	PROMISE("ftruncate", says("1 MODIFY file;2 MODIFY;"));
	NEED(truncate("file", 5) == 0);
	PROMISE("truncate", says("1 MODIFY file;2 MODIFY;"));
	NEED(fallocate(file, 0, 0, 10) == 0);
	PROMISE("fallocate", says("1 MODIFY file;2 MODIFY;"));
	int other = dup(file);
	close(file);
	PROMISE("not the close of one of two descriptors", says(""));
	close(other);
	PROMISE("close of what was written", says("1 CLOSE_WRITE file;2 CLOSE_WRITE;"));
	file = open("file", O_WRONLY | O_TRUNC);
	const char *told = events_of(fd);
	PROMISE("O_TRUNC", strstr(told, "1 MODIFY file;2 MODIFY;") && strstr(told, "1 OPEN file;2 OPEN;"));
	void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0);
	PROMISE("a mapping needs a readable file", page == MAP_FAILED);
	close(file);
	forget();
	file = open("file", O_RDONLY);
	page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0);
	close(file);
	PROMISE("a mapped file is open", page != MAP_FAILED && says("1 OPEN file;2 OPEN;"));
	munmap(page, 4096);
	PROMISE("until it is unmapped", says("1 CLOSE_NOWRITE file;2 CLOSE_NOWRITE;"));
	file = open("file", O_PATH);
	close(file);
	PROMISE("O_PATH opens nothing", says(""));
	close(ends[0]);
	close(ends[1]);
	finish();
}

static void attributes(void)
{
	begin("attributes");
	make("file", "x");
	watch(".", IN_ALL_EVENTS);
	watch("file", IN_ALL_EVENTS);
	NEED(chmod("file", 0600) == 0);
	PROMISE("chmod", says("1 ATTRIB file;2 ATTRIB;"));
	NEED(chown("file", geteuid(), getegid()) == 0);
	PROMISE("chown", says("1 ATTRIB file;2 ATTRIB;"));
	NEED(chown("file", -1, -1) == 0);
	PROMISE("not a chown of nothing", says(""));
	struct timespec both[2] = { { 5, 0 }, { 6, 0 } };
	NEED(utimensat(AT_FDCWD, "file", both, 0) == 0);
	PROMISE("both times", says("1 ATTRIB file;2 ATTRIB;"));
	struct timespec accessed[2] = { { 5, 0 }, { 0, UTIME_OMIT } };
	NEED(utimensat(AT_FDCWD, "file", accessed, 0) == 0);
	PROMISE("the time of access alone", says("1 ACCESS file;2 ACCESS;"));
	struct timespec modified[2] = { { 0, UTIME_OMIT }, { 5, 0 } };
	NEED(utimensat(AT_FDCWD, "file", modified, 0) == 0);
	PROMISE("the time of change alone", says("1 MODIFY file;2 MODIFY;"));
	if (setxattr("file", "user.some", "x", 1, 0) == 0) {
		PROMISE("setxattr", says("1 ATTRIB file;2 ATTRIB;"));
		NEED(removexattr("file", "user.some") == 0);
		PROMISE("removexattr", says("1 ATTRIB file;2 ATTRIB;"));
	}
	NEED(chmod(".", 0700) == 0);
	PROMISE("a directory's own", says("1 ATTRIB DIR;"));
	int file = open("file", O_RDONLY);
	forget();
	NEED(fchmod(file, 0644) == 0);
	PROMISE("fchmod", says("1 ATTRIB file;2 ATTRIB;"));
	close(file);
	finish();
}

static void names(void)
{
	begin("names");
	watch(".", IN_CREATE | IN_DELETE | IN_MOVE | IN_OPEN | IN_ATTRIB | IN_CLOSE);
	close(open("file", O_CREAT | O_EXCL | O_RDWR, 0644));
	PROMISE("a new file is made, then opened", says("1 CREATE file;1 OPEN file;1 CLOSE_WRITE file;"));
	NEED(mkdir("dir", 0755) == 0);
	PROMISE("mkdir", says("1 CREATE DIR dir;"));
	NEED(mknod("fifo", S_IFIFO | 0644, 0) == 0);
	PROMISE("mknod", says("1 CREATE fifo;"));
	NEED(symlink("file", "link") == 0);
	PROMISE("symlink", says("1 CREATE link;"));
	int self = watch("file", IN_ALL_EVENTS);
	NEED(link("file", "second") == 0);
	PROMISE("link: the inode's links, then the name", says("2 ATTRIB;1 CREATE second;"));
	NEED(unlink("second") == 0);
	PROMISE("unlink of one of two names", says("2 ATTRIB;1 DELETE second;"));
	NEED(rename("file", "moved") == 0);
	PROMISE("rename", says("1 MOVED_FROM a file;1 MOVED_TO a moved;2 MOVE_SELF;"));
	make("victim", "x");
	watch("victim", IN_ALL_EVENTS);
	forget();
	NEED(rename("moved", "victim") == 0);
	PROMISE("rename over another",
		says("1 MOVED_FROM a moved;1 MOVED_TO a victim;3 ATTRIB;2 MOVE_SELF;3 DELETE_SELF;3 IGNORED;"));
	make("other", "x");
	watch("other", IN_ALL_EVENTS);
	forget();
	NEED(syscall(SYS_renameat2, AT_FDCWD, "victim", AT_FDCWD, "other", 2 /* RENAME_EXCHANGE */) == 0);
	PROMISE("an exchange is two renames", says("1 MOVED_FROM a victim;1 MOVED_TO a other;2 MOVE_SELF;"
						   "1 MOVED_FROM b other;1 MOVED_TO b victim;4 MOVE_SELF;"));
	NEED(link("other", "same") == 0);
	forget();
	NEED(rename("other", "same") == 0);
	PROMISE("a rename to another name of the same inode does nothing", says(""));
	NEED(unlink("same") == 0);
	forget();
	int dir = watch("dir", IN_ALL_EVENTS);
	NEED(rename("other", "dir/there") == 0);
	PROMISE("a rename to another directory", dir == 5 && says("1 MOVED_FROM a other;5 MOVED_TO a there;2 MOVE_SELF;"));
	NEED(rename("dir", "folder") == 0);
	PROMISE("a directory is renamed", says("1 MOVED_FROM DIR a dir;1 MOVED_TO DIR a folder;5 MOVE_SELF;"));
	NEED(unlink("folder/there") == 0);
	PROMISE("unlink of the last name", says("2 ATTRIB;2 DELETE_SELF;2 IGNORED;5 DELETE there;"));
	FAILS_WITH("whose watch is over", inotify_rm_watch(fd, self), EINVAL);
	NEED(rmdir("folder") == 0);
	PROMISE("rmdir", says("5 DELETE_SELF;5 IGNORED;1 DELETE DIR folder;"));
	close(open("fifo", O_RDWR));
	PROMISE("a pipe with a name", says("1 OPEN fifo;1 CLOSE_WRITE fifo;"));
	FAILS_WITH("what fails", open("none", O_RDONLY), ENOENT);
	FAILS_WITH("what fails, too", mkdir("victim", 0755), EEXIST);
	PROMISE("is not told", says(""));
	finish();
}

/* An inode without a name lives until its last user has closed or unmapped it. */
static void last_users(void)
{
	begin("users");
	make("file", "text");
	watch("file", IN_ALL_EVENTS);
	watch(".", IN_MODIFY | IN_DELETE);
	int file = open("file", O_RDWR), second = open("file", O_RDONLY);
	forget();
	NEED(unlink("file") == 0);
	PROMISE("a file that is open is unlinked", says("1 ATTRIB;2 DELETE file;"));
	NEED(write(file, "more", 4) == 4);
	PROMISE("and is written under the name it had", says("2 MODIFY file;1 MODIFY;"));
	NEED(watch(".", IN_MODIFY | IN_EXCL_UNLINK) == 2);
	NEED(write(file, "more", 4) == 4);
	PROMISE("which IN_EXCL_UNLINK has left out", says("1 MODIFY;"));
	close(second);
	PROMISE("one of two users goes", says("1 CLOSE_NOWRITE;"));
	close(file);
	PROMISE("the last one goes", says("1 CLOSE_WRITE;1 DELETE_SELF;1 IGNORED;"));

	NEED(mkdir("dir", 0755) == 0);
	int dir = open("dir", O_RDONLY | O_DIRECTORY);
	watch("dir", IN_ALL_EVENTS);
	NEED(rmdir("dir") == 0);
	PROMISE("a directory that is open is removed", says(""));
	close(dir);
	PROMISE("and ends when it is closed", says("3 CLOSE_NOWRITE DIR;3 DELETE_SELF;3 IGNORED;"));

	make("late", "x");
	file = open("late", O_RDONLY);
	NEED(unlink("late") == 0);
	forget();
	char path[64];
	sprintf(path, "/proc/self/fd/%d", file);
	watch(path, IN_ALL_EVENTS);
	close(file);
	PROMISE("one that had no name when it was watched", says("4 CLOSE_NOWRITE;4 DELETE_SELF;4 IGNORED;"));
	finish();
}

/* Events of an open file have its current name. */
static void renamed_while_open(void)
{
	begin("renamed");
	make("log", "x");
	int file = open("log", O_WRONLY | O_APPEND);
	watch(".", IN_MODIFY);
	NEED(write(file, "a", 1) == 1);
	PROMISE("a file that was open before", says("1 MODIFY log;"));
	NEED(rename("log", "log.1") == 0);
	NEED(write(file, "a", 1) == 1);
	PROMISE("a file that was renamed meanwhile", says("1 MODIFY log.1;"));
	make("log", "x");
	forget();
	NEED(write(file, "a", 1) == 1);
	PROMISE("and whose name another has", says("1 MODIFY log.1;"));
	close(file);
	finish();
}

static void directories(void)
{
	begin("directories");
	NEED(mkdir("dir", 0755) == 0 && mkdir("dir/sub", 0755) == 0);
	watch("dir", IN_ALL_EVENTS);
	DIR *dir = opendir("dir");
	PROMISE("a directory is opened", says("1 OPEN DIR;"));
	NEED(readdir(dir));
	PROMISE("and listed", says("1 ACCESS DIR;"));
	closedir(dir);
	PROMISE("and closed", says("1 CLOSE_NOWRITE DIR;"));
	dir = opendir("dir/sub");
	PROMISE("a directory in it", says("1 OPEN DIR sub;"));
	closedir(dir);
	NEED(chmod("dir/sub", 0700) == 0);
	PROMISE("is told by its name", says("1 CLOSE_NOWRITE DIR sub;1 ATTRIB DIR sub;"));
	make("dir/sub/file", "x");
	PROMISE("what is deeper is not told", says(""));
	finish();
}

static void masks(void)
{
	begin("masks");
	make("file", "x");
	watch("file", IN_OPEN);
	close(open("file", O_RDONLY));
	PROMISE("only what is asked for", says("1 OPEN;"));
	watch("file", IN_CLOSE_NOWRITE | IN_MASK_ADD);
	close(open("file", O_RDONLY));
	PROMISE("IN_MASK_ADD", says("1 OPEN;1 CLOSE_NOWRITE;"));
	watch("file", IN_ACCESS);
	close(open("file", O_RDONLY));
	PROMISE("without it the mask is another", says(""));
	watch("file", IN_OPEN | IN_CLOSE | IN_ONESHOT);
	close(open("file", O_RDONLY));
	PROMISE("IN_ONESHOT: one event and the end", says("1 OPEN;1 IGNORED;"));
	FAILS_WITH("the watch is over", inotify_rm_watch(fd, 1), EINVAL);
	PROMISE("and can be made anew", inotify_add_watch(fd, "file", IN_OPEN | IN_ONESHOT | IN_MASK_CREATE) == 2);
	int second = inotify_init1(IN_NONBLOCK), keep = fd;
	NEED(inotify_add_watch(second, "file", IN_CLOSE) == 1);
	close(open("file", O_RDONLY));
	PROMISE("two instances, one file", says("2 OPEN;2 IGNORED;"));
	fd = second;
	PROMISE("each is told what it asks for", says("1 CLOSE_NOWRITE;"));
	fd = keep;
	close(second);
	finish();
}

static int waiting_bytes(void)
{
	int bytes = -1;
	NEED(ioctl(fd, FIONREAD, &bytes) == 0);
	return bytes;
}

static void *write_later(void *name)
{
	sleep_ms(20);
	make(name, "x");
	return NULL;
}

static void reading(void)
{
	char buffer[4096] __attribute__((aligned(8)));
	struct inotify_event *event = (void *)buffer;
	begin("reading");
	watch(".", IN_CREATE | IN_MODIFY);
	PROMISE("nothing waits", waiting_bytes() == 0);
	struct pollfd one = { fd, POLLIN | POLLOUT, 0 };
	PROMISE("nor is it ready", poll(&one, 1, 0) == 0);
	int epoll = epoll_create1(0);
	struct epoll_event ready = { .events = EPOLLIN | EPOLLET };
	NEED(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &ready) == 0);
	PROMISE("epoll", epoll_wait(epoll, &ready, 1, 0) == 0);
	make("a", "");
	make("0123456789abcde", "");
	make("0123456789abcdef", "");
	PROMISE("each event is as long as its name is rounded up", waiting_bytes() == 32 + 32 + 48);
	PROMISE("poll", poll(&one, 1, 0) == 1 && one.revents == POLLIN);
	PROMISE("epoll is told of a change", epoll_wait(epoll, &ready, 1, 0) == 1 && ready.events == EPOLLIN);
	FAILS_WITH("no room for an event", read(fd, buffer, 31), EINVAL);
	FAILS_WITH("no memory behind the address", syscall(SYS_read, fd, 8, 4096), EFAULT);
	PROMISE("which costs that event", waiting_bytes() == 32 + 48);
	PROMISE("whole events only", read(fd, buffer, 79) == 32 && event->len == 16 && !strcmp(event->name, "0123456789abcde"));
	PROMISE("the next", read(fd, buffer, 48) == 48 && event->len == 32 && event->name[31] == 0);
	int file = open("a", O_WRONLY);
	for (int i = 0; i < 5; i++)
		NEED(write(file, "x", 1) == 1);
	PROMISE("what repeats the last is told once", says("1 MODIFY a;"));
	for (int i = 0; i < 3; i++) {
		NEED(write(file, "x", 1) == 1);
		make("b", "x");
	}
	close(file);
	PROMISE("other events between are not left out",
		says("1 MODIFY a;1 CREATE b;1 MODIFY b;1 MODIFY a;1 MODIFY b;1 MODIFY a;1 MODIFY b;"));
	NEED(fcntl(fd, F_SETFL, 0) == 0);
	pthread_t thread;
	NEED(pthread_create(&thread, NULL, write_later, "late") == 0);
	PROMISE("a reader waits for an event", read(fd, buffer, sizeof buffer) >= 32 && event->mask == IN_CREATE);
	pthread_join(thread, NULL);
	NEED(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
	forget();
	NEED(pthread_create(&thread, NULL, write_later, "later") == 0);
	PROMISE("poll waits, too", poll(&one, 1, 60000) == 1 && one.revents == POLLIN);
	pthread_join(thread, NULL);
	close(epoll);
	finish();
}

static void programs(void)
{
	begin("programs");
	int status, from = open("/proc/self/exe", O_RDONLY), to = open("program", O_CREAT | O_WRONLY, 0755);
	struct stat data;
	NEED(fstat(from, &data) == 0);
	for (off_t left = data.st_size; left > 0;) {
		ssize_t copied = sendfile(to, from, NULL, left);
		NEED(copied > 0);
		left -= copied;
	}
	close(from);
	close(to);
	watch("program", IN_OPEN | IN_CLOSE | IN_ACCESS);
	IN_CHILD(status, {
		execl("program", "program", "--nothing", NULL);
		_exit(1);
	});
	PROMISE("a program that runs is open, read and closed", status == 0 && says("1 OPEN;1 ACCESS;1 CLOSE_NOWRITE;"));
	finish();
}

static long limit(const char *name, long value)
{
	char path[128], text[32] = { 0 };
	snprintf(path, sizeof path, "/proc/sys/fs/inotify/%s", name);
	int file = open(path, value < 0 ? O_RDONLY : O_RDWR);
	if (file < 0)
		return -1;
	NEED(read(file, text, sizeof text - 1) > 0);
	if (value >= 0) {
		int length = snprintf(text + 16, 16, "%ld", value);
		NEED(pwrite(file, text + 16, length, 0) == length);
	}
	close(file);
	return atol(text);
}

static void limits(void)
{
	begin("limits");
	long events = limit("max_queued_events", -1), instances = limit("max_user_instances", -1);
	long watches = limit("max_user_watches", -1);
	PROMISE("/proc/sys/fs/inotify", events > 0 && instances > 0 && watches > 0);
	int all[1024], count = 0;
	if (instances > 0 && instances <= 1000) {
		while (count <= instances && (all[count] = inotify_init()) >= 0)
			count++;
		int error = errno;
		PROMISE("a user has so many instances", count > 0 && count < instances && error == EMFILE);
		while (count > 0)
			close(all[--count]);
		all[0] = inotify_init();
		PROMISE("and has them back", all[0] >= 0);
		close(all[0]);
	}
	if (geteuid() == 0 && access("/proc/sys/fs/inotify/max_user_watches", W_OK) == 0) {
		int status;
		limit("max_queued_events", 4);
		limit("max_user_watches", 2);
		IN_CHILD(status, {
			NEED(setgid(23456) == 0 && setuid(23456) == 0);
			int own = inotify_init();
			int first = inotify_add_watch(own, "/", IN_OPEN);
			int second = inotify_add_watch(own, "/proc", IN_OPEN);
			int third = inotify_add_watch(own, "/dev", IN_OPEN);
			int error = errno;
			inotify_rm_watch(own, second);
			int again = inotify_add_watch(own, "/dev", IN_OPEN);
			_exit(first == 1 && second == 2 && third == -1 && error == ENOSPC && again > 2 ? 0 : 1);
		});
		PROMISE("a user has so many watches", status == 0);
		limit("max_user_watches", watches);
		int small = inotify_init1(IN_NONBLOCK), keep = fd;
		limit("max_queued_events", events);
		NEED(inotify_add_watch(small, ".", IN_CREATE) == 1);
		for (int i = 0; i < 10; i++) {
			char name[8] = { 'a' + i };
			make(name, "");
		}
		fd = small;
		PROMISE("events beyond the limit are lost, which is told once",
			says("1 CREATE a;1 CREATE b;1 CREATE c;1 CREATE d;-1 OVERFLOW;"));
		make("k", "");
		PROMISE("and others come again", says("1 CREATE k;"));
		fd = keep;
		close(small);
	}
	finish();
}

static void information(void)
{
	char path[64], text[4096] = { 0 }, line[256];
	begin("information");
	make("file", "x");
	struct stat data;
	NEED(stat("file", &data) == 0);
	watch(".", IN_CREATE);
	watch("file", IN_OPEN | IN_ONESHOT);
	sprintf(path, "/proc/self/fdinfo/%d", fd);
	int file = open(path, O_RDONLY);
	NEED(file >= 0 && read(file, text, sizeof text - 1) > 0);
	close(file);
	sprintf(line, "inotify wd:2 ino:%lx sdev:", (unsigned long)data.st_ino);
	PROMISE("fdinfo has a line for each watch", strstr(text, line) && strstr(text, "inotify wd:1 ino:"));
	PROMISE("with its mask", strstr(text, " mask:80000020 ignored_mask:0 ") && strstr(text, " mask:100 ignored_mask:0 "));
	sprintf(path, "/proc/self/fd/%d", fd);
	ssize_t length = readlink(path, text, sizeof text - 1);
	PROMISE("/proc/self/fd", length == 18 && !strncmp(text, "anon_inode:inotify", 18));
	finish();
}

static void unmounting(void)
{
	begin("unmounting");
	NEED(mkdir("mount", 0755) == 0);
	if (mount("none", "mount", "tmpfs", 0, NULL) == 0) {
		make("mount/file", "x");
		watch("mount", IN_CREATE);
		watch("mount/file", IN_OPEN);
		watch(".", IN_ALL_EVENTS);
		NEED(umount("mount") == 0);
		const char *told = events_of(fd);
		PROMISE("an unmount ends the watches there", strstr(told, "1 UNMOUNT DIR;") && strstr(told, "1 IGNORED;") &&
			strstr(told, "2 UNMOUNT;") && strstr(told, "2 IGNORED;") && !strstr(told, "3 "));
		FAILS_WITH("for good", inotify_rm_watch(fd, 1), EINVAL);
	}
	finish();
}

static volatile int stop;

static void *churn(void *name)
{
	while (!stop) {
		make(name, "x");
		unlink(name);
	}
	return NULL;
}

/* Counts the watches whose end is among the pending events. Sets `lost` if some were lost. */
static int ends_told(int *lost)
{
	char buffer[16384] __attribute__((aligned(8)));
	int ends = 0;
	for (ssize_t came; (came = read(fd, buffer, sizeof buffer)) > 0;)
		for (char *at = buffer; at < buffer + came;) {
			struct inotify_event *event = (void *)at;
			at += sizeof *event + event->len;
			ends += !!(event->mask & IN_IGNORED);
			*lost |= !!(event->mask & IN_Q_OVERFLOW);
		}
	return ends;
}

/* Watches and files are made and removed at the same time: each watch's end is reported once. */
static void together(void)
{
	begin("together");
	pthread_t threads[3];
	char *names[3] = { "one", "two", "one" }, name[128];
	for (int i = 0; i < 3; i++)
		NEED(pthread_create(&threads[i], NULL, churn, names[i]) == 0);
	int ends = 0, made = 0, largest = 0, lost = 0;
	for (int round = 0; round < 2000; round++) {
		int dir = inotify_add_watch(fd, ".", IN_ALL_EVENTS), file = inotify_add_watch(fd, "one", IN_ALL_EVENTS);
		made += dir > largest;
		largest = dir > largest ? dir : largest;
		made += file > largest;
		largest = file > largest ? file : largest;
		inotify_rm_watch(fd, dir);
		ends += ends_told(&lost);
	}
	stop = 1;
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	unlink("one");
	ends += ends_told(&lost);
	sprintf(name, "every watch has one end: %d watches, %d ends%s", made, ends, lost ? ", events lost" : "");
	/* If this thread does not get the CPU for a long time, the queue overflows and may lose ends. */
	PROMISE(name, made > 2000 && (lost ? ends <= made : ends == made));
	finish();
}

/* A file is made and removed by several threads: its directory's events alternate. */
static void in_order(void)
{
	begin("in_order");
	pthread_t threads[3];
	int wrong = 0, seen = 0, exists = 0, lost = 0, done = 0;
	stop = 0;
	watch(".", IN_CREATE | IN_DELETE);
	for (int i = 0; i < 3; i++)
		NEED(pthread_create(&threads[i], NULL, churn, "one") == 0);
	while (!done) {
		if ((done = seen > 3000 || lost)) {
			stop = 1;
			for (int i = 0; i < 3; i++)
				pthread_join(threads[i], NULL);
		}
		char buffer[16384] __attribute__((aligned(8)));
		for (ssize_t came; (done || seen <= 3000) && (came = read(fd, buffer, sizeof buffer)) > 0;)
			for (char *at = buffer; at < buffer + came;) {
				struct inotify_event *event = (void *)at;
				at += sizeof *event + event->len;
				lost |= !!(event->mask & IN_Q_OVERFLOW);
				wrong += !lost && !!(event->mask & IN_CREATE) == exists;
				exists = !!(event->mask & IN_CREATE);
				seen++;
			}
	}
	PROMISE("a name's events are in the order of its changes", seen > 0 && wrong == 0);
	finish();
}

int main(int count, char **names_)
{
	char home[] = "/tmp/inotify.XXXXXX";
	(void)names_;
	if (count > 1)
		return 0;
	NEED(mkdtemp(home) && chdir(home) == 0 && chmod(home, 0755) == 0);
	opening();
	arguments();
	content();
	attributes();
	names();
	last_users();
	renamed_while_open();
	directories();
	masks();
	reading();
	programs();
	limits();
	information();
	unmounting();
	together();
	in_order();
	NEED(chdir("/") == 0);
	char command[64];
	snprintf(command, sizeof command, "rm -rf %s", home);
	if (system(command) != 0)
		printf("# %s stays\n", home);
	return conclude();
}
