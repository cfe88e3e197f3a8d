/* F_NOTIFY (fcntl(2)): the owner of an open directory gets a signal when something in it
 * changes. */
#include "promise.h"

#ifndef POLLMSG
#define POLLMSG 0x400
#endif
#define CHOSEN (SIGRTMIN + 3)
#define EVERYTHING (DN_ACCESS | DN_MODIFY | DN_CREATE | DN_DELETE | DN_RENAME | DN_ATTRIB)

static siginfo_t told;

/* The next signal that is pending now; 0 for none. */
static int next(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGIO);
	sigaddset(&set, CHOSEN);
	struct timespec none = { 0, 0 };
	int number = sigtimedwait(&set, &told, &none);
	return number < 0 ? 0 : number;
}

/* Whether so many signals are pending, each about this descriptor. */
static int tells(int fd, int count)
{
	for (; count > 0; count--)
		if (next() != CHOSEN || told.si_fd != fd || told.si_code != POLL_MSG || told.si_band != (POLLIN | POLLRDNORM | POLLMSG)) {
			printf("# signal %d fd %d code %d band %#lx\n", told.si_signo, told.si_fd, told.si_code, (long)told.si_band);
			return 0;
		}
	int more = 0;
	while (next())
		more++;
	if (more)
		printf("# %d more\n", more);
	return !more;
}

static int is_quiet(void)
{
	return tells(-1, 0);
}

static int opened(void)
{
	int fd = open("dir", O_RDONLY | O_DIRECTORY);
	NEED(fd >= 0 && fcntl(fd, F_SETSIG, CHOSEN) == 0);
	return fd;
}

static int notify(int fd, long events)
{
	return fcntl(fd, F_NOTIFY, events);
}

static int make(const char *path)
{
	int fd = open(path, O_CREAT | O_RDWR, 0600);
	return fd >= 0 && close(fd) == 0;
}

static void refused(void)
{
	int file = open("file", O_CREAT | O_RDWR, 0600), path = open("dir", O_PATH), fd = opened();
	FAILS_WITH("a file has no names", notify(file, DN_CREATE), ENOTDIR);
	PROMISE("but ending is allowed", notify(file, 0) == 0 && notify(file, DN_MULTISHOT) == 0);
	FAILS_WITH("O_PATH", notify(path, DN_CREATE), EBADF);
	FAILS_WITH("no descriptor", notify(-1, DN_CREATE), EBADF);
	PROMISE("a directory", notify(fd, DN_CREATE) == 0 && fcntl(fd, F_GETOWN) == getpid() && is_quiet());
	NEED(fcntl(fd, F_SETSIG, 0) == 0);
	PROMISE("SIGIO is the default", make("dir/first") && next() == SIGIO && told.si_code == SI_KERNEL);
	PROMISE("once", make("dir/second") && is_quiet());
	NEED(fcntl(fd, F_SETSIG, CHOSEN) == 0 && fcntl(fd, F_SETOWN, getppid()) == 0);
	PROMISE("an owner stays", notify(fd, DN_CREATE) == 0 && fcntl(fd, F_GETOWN) == getppid());
	NEED(close(fd) == 0 && close(file) == 0 && close(path) == 0 && unlink("dir/first") == 0 && unlink("dir/second") == 0);
}

static void events(void)
{
	int fd = opened();
	char byte;
	NEED(notify(fd, DN_CREATE | DN_MULTISHOT) == 0);
	PROMISE("DN_CREATE: a file", make("dir/one") && tells(fd, 1));
	PROMISE("not when it is opened again", make("dir/one") && is_quiet());
	PROMISE("a directory", mkdir("dir/sub", 0700) == 0 && tells(fd, 1));
	PROMISE("a link, a symbolic link and a FIFO", link("dir/one", "dir/link") == 0 && symlink("x", "dir/symlink") == 0 && mkfifo("dir/fifo", 0600) == 0 && tells(fd, 3));
	PROMISE("a name that comes from elsewhere", make("from") && rename("from", "dir/came") == 0 && tells(fd, 1));
	PROMISE("and one from within", rename("dir/came", "dir/went") == 0 && tells(fd, 1));
	PROMISE("nothing further below", make("dir/sub/file") && is_quiet());
	PROMISE("nor a removal", unlink("dir/link") == 0 && unlink("dir/symlink") == 0 && unlink("dir/fifo") == 0 && is_quiet());
	NEED(notify(fd, 0) == 0);
	PROMISE("0 ends it", make("dir/two") && is_quiet());

	NEED(notify(fd, DN_DELETE | DN_MULTISHOT) == 0);
	PROMISE("DN_DELETE: a file", unlink("dir/two") == 0 && tells(fd, 1));
	PROMISE("a directory", mkdir("dir/empty", 0700) == 0 && rmdir("dir/empty") == 0 && tells(fd, 1));
	PROMISE("a name that goes elsewhere", rename("dir/went", "gone") == 0 && tells(fd, 1));
	PROMISE("or to another name", rename("dir/one", "dir/two") == 0 && rename("dir/two", "dir/one") == 0 && tells(fd, 2));
	NEED(notify(fd, DN_MULTISHOT) == 0);
	PROMISE("DN_MULTISHOT alone ends it", make("dir/two") && unlink("dir/two") == 0 && is_quiet());

	NEED(notify(fd, DN_RENAME | DN_MULTISHOT) == 0);
	PROMISE("DN_RENAME: within the directory", rename("dir/one", "dir/two") == 0 && rename("dir/two", "dir/one") == 0 && tells(fd, 2));
	PROMISE("not out of it or into it", rename("dir/one", "one") == 0 && rename("one", "dir/one") == 0 && is_quiet());
	PROMISE("of a directory", rename("dir/sub", "dir/sub2") == 0 && tells(fd, 1) && rename("dir/sub2", "dir/sub") == 0 && tells(fd, 1));
	PROMISE("nor of itself", rename("dir", "dir2") == 0 && rename("dir2", "dir") == 0 && is_quiet());
	NEED(notify(fd, 0) == 0);

	NEED(notify(fd, DN_ATTRIB | DN_MULTISHOT) == 0);
	PROMISE("DN_ATTRIB: a mode", chmod("dir/one", 0640) == 0 && tells(fd, 1));
	PROMISE("an owner", chown("dir/one", 1, 1) == 0 && tells(fd, 1));
	PROMISE("times", utimensat(AT_FDCWD, "dir/one", NULL, 0) == 0 && tells(fd, 1));
	PROMISE("its own mode", chmod("dir", 0750) == 0 && tells(fd, 1));
	PROMISE("no write", make("dir/two") && truncate("dir/two", 10) == 0 && unlink("dir/two") == 0 && is_quiet());
	NEED(notify(fd, 0) == 0);

	int file = open("dir/one", O_RDWR);
	NEED(file >= 0 && notify(fd, DN_MODIFY | DN_MULTISHOT) == 0);
	PROMISE("DN_MODIFY: a write", write(file, "x", 1) == 1 && tells(fd, 1));
	PROMISE("truncation", ftruncate(file, 100) == 0 && truncate("dir/one", 10) == 0 && tells(fd, 2));
	PROMISE("no read", pread(file, &byte, 1, 0) == 1 && is_quiet());
	NEED(notify(fd, 0) == 0 && notify(fd, DN_ACCESS | DN_MULTISHOT) == 0);
	PROMISE("DN_ACCESS: a read", pread(file, &byte, 1, 0) == 1 && tells(fd, 1));
	PROMISE("no write", pwrite(file, "x", 1, 0) == 1 && is_quiet());
	char list[4096];
	PROMISE("its own listing", syscall(SYS_getdents64, fd, list, sizeof list) > 0 && tells(fd, 1));
	NEED(close(file) == 0 && notify(fd, 0) == 0);

	NEED(notify(fd, EVERYTHING | DN_MULTISHOT) == 0);
	PROMISE("a rename is a removal and a creation, too", rename("dir/one", "dir/two") == 0 && tells(fd, 3));
	NEED(notify(fd, 0) == 0 && notify(fd, EVERYTHING) == 0);
	PROMISE("and once without DN_MULTISHOT", rename("dir/two", "dir/one") == 0 && tells(fd, 1));
	NEED(notify(fd, DN_CREATE) == 0 && notify(fd, DN_DELETE) == 0);
	PROMISE("requests add up", unlink("dir/one") == 0 && tells(fd, 1));
	PROMISE("and end together", make("dir/one") && is_quiet());
	NEED(notify(fd, DN_CREATE | DN_MULTISHOT) == 0 && notify(fd, DN_DELETE) == 0);
	PROMISE("DN_MULTISHOT stays", unlink("dir/one") == 0 && make("dir/one") && unlink("dir/one") == 0 && tells(fd, 3));
	close(fd);
}

static void lives(void)
{
	int fd = opened(), status;
	NEED(notify(fd, DN_CREATE | DN_MULTISHOT) == 0);
	IN_CHILD(status, close(fd));
	NEED(status == 0);
	PROMISE("another process' close does not end it", make("dir/a") && tells(fd, 1));
	int copy = dup(fd);
	NEED(notify(copy, DN_DELETE) == 0);
	PROMISE("the last descriptor is told", make("dir/b") && unlink("dir/b") == 0 && tells(copy, 2));
	NEED(close(copy) == 0);
	PROMISE("the close of any descriptor ends it", make("dir/b") && is_quiet());
	NEED(notify(fd, DN_CREATE | DN_MULTISHOT) == 0 && dup2(0, fd) == fd);
	PROMISE("so does dup2", make("dir/c") && is_quiet());
	NEED(close(fd) == 0);

	int one = opened(), other = opened();
	NEED(notify(one, DN_CREATE) == 0 && notify(other, DN_CREATE | DN_MULTISHOT) == 0);
	NEED(make("dir/d"));
	int first = next() == CHOSEN ? told.si_fd : -1, second = next() == CHOSEN ? told.si_fd : -1;
	PROMISE("each open file is told", ((first == one && second == other) || (first == other && second == one)) && is_quiet());
	PROMISE("the other goes on", make("dir/e") && tells(other, 1));
	NEED(close(one) == 0 && close(other) == 0);
	PROMISE("until both are closed", make("dir/f") && is_quiet());

	int ends[2];
	NEED(pipe(ends) == 0);
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		NEED(close(ends[1]) == 0);
		fd = opened();
		NEED(notify(fd, DN_CREATE | DN_MULTISHOT) == 0 && fcntl(fd, F_SETOWN, getppid()) == 0 && make("dir/g"));
		_exit(read(ends[0], &(char){ 0 }, 1) != 0);
	}
	PROMISE("another process may be the owner", COMES_TRUE(next() == CHOSEN) && is_quiet());
	NEED(close(ends[1]) == 0 && waitpid(child, &status, 0) == child && status == 0);
	PROMISE("its end ends the watch", make("dir/h") && is_quiet());

	NEED(mkdir("short", 0700) == 0);
	fd = open("short", O_RDONLY);
	NEED(fd >= 0 && fcntl(fd, F_SETSIG, CHOSEN) == 0 && notify(fd, EVERYTHING | DN_MULTISHOT) == 0);
	PROMISE("its own removal is not told", rmdir("short") == 0 && is_quiet() && close(fd) == 0 && is_quiet());

	int all = 1, many[200];
	for (int i = 0; i < 200; i++) {
		many[i] = opened();
		NEED(notify(many[i], DN_CREATE) == 0);
	}
	NEED(make("dir/i"));
	char seen[1024] = { 0 };
	for (int i = 0; i < 200; i++) {
		all &= next() == CHOSEN && told.si_fd < 1024 && !seen[told.si_fd];
		seen[told.si_fd & 1023] = 1;
		close(many[i]);
	}
	PROMISE("two hundred are told once each", all && is_quiet());
}

int main(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGIO);
	sigaddset(&set, CHOSEN);
	NEED(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	NEED(mkdir("/tmp/dnotify-place", 0755) == 0 && chdir("/tmp/dnotify-place") == 0 && mkdir("dir", 0755) == 0);
	refused();
	events();
	lives();
	return conclude();
}
