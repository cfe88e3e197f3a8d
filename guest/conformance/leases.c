/* Leases (F_SETLEASE): the holder is signalled when others open or truncate the file, and they
 * wait until it gives the lease up. */
#include "promise.h"
#include "inside.h"
#include <sys/mount.h>

static siginfo_t told;

static sigset_t watched(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGIO);
	sigaddset(&set, SIGRTMIN + 3);
	return set;
}

/* The next signal that is pending now; 0 for none. */
static int next(void)
{
	sigset_t set = watched();
	struct timespec none = { 0, 0 };
	int number = sigtimedwait(&set, &told, &none);
	return number < 0 ? 0 : number;
}

static int opened(int flags)
{
	int fd = open("file", flags | O_CLOEXEC);
	NEED(fd >= 0);
	return fd;
}

static int lease(int fd, int kind)
{
	return fcntl(fd, F_SETLEASE, kind);
}

static int is_leased(int fd, int kind)
{
	return fcntl(fd, F_GETLEASE) == kind;
}

/* Makes a child that opens the file; its exit status tells the result. The child holds no open
 * file description of its parent. */
static pid_t opener(int flags)
{
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		NEED(syscall(SYS_close_range, 3, ~0U, 0) == 0);
		_exit(open("file", flags) >= 0 ? 0 : 1);
	}
	return child;
}

static int sleeps(pid_t child)
{
	return COMES_TRUE(is_asleep(child, child));
}

static int has_ended(pid_t child)
{
	int status;
	return waitpid(child, &status, WNOHANG) == child;
}

static void having(void)
{
	int fd = opened(O_RDONLY), ends[2];
	PROMISE("there is no lease at first", is_leased(fd, F_UNLCK));
	FAILS_WITH("none to end", lease(fd, F_UNLCK), EAGAIN);
	FAILS_WITH("an unknown kind", lease(fd, 17), EINVAL);
	PROMISE("a read lease", lease(fd, F_RDLCK) == 0 && is_leased(fd, F_RDLCK));
	PROMISE("makes its caller the owner", fcntl(fd, F_GETOWN) == getpid());
	PROMISE("a write lease", lease(fd, F_WRLCK) == 0 && is_leased(fd, F_WRLCK));
	PROMISE("and back", lease(fd, F_RDLCK) == 0 && is_leased(fd, F_RDLCK));
	int copy = dup(fd);
	PROMISE("copies of a descriptor share it", is_leased(copy, F_RDLCK) && lease(copy, F_WRLCK) == 0 && is_leased(fd, F_WRLCK));
	PROMISE("it ends by any of them, and its owner with it", lease(copy, F_UNLCK) == 0 && is_leased(fd, F_UNLCK) && fcntl(fd, F_GETOWN) == 0);
	close(copy);

	int other = opened(O_RDONLY);
	FAILS_WITH("no write lease beside another reader", lease(fd, F_WRLCK), EAGAIN);
	PROMISE("two read leases", lease(fd, F_RDLCK) == 0 && lease(other, F_RDLCK) == 0 && is_leased(fd, F_RDLCK));
	FAILS_WITH("one of which cannot become a write lease", lease(other, F_WRLCK), EAGAIN);
	NEED(close(fd) == 0);
	PROMISE("until the other is closed", lease(other, F_WRLCK) == 0);
	NEED(close(other) == 0);

	int writer = opened(O_RDWR);
	FAILS_WITH("no read lease on what is open for writing", lease(writer, F_RDLCK), EAGAIN);
	PROMISE("but a write lease", lease(writer, F_WRLCK) == 0 && is_leased(writer, F_WRLCK) && lease(writer, F_UNLCK) == 0);
	fd = opened(O_RDONLY);
	FAILS_WITH("no read lease beside a writer", lease(fd, F_RDLCK), EAGAIN);
	FAILS_WITH("no write lease beside a reader", lease(writer, F_WRLCK), EAGAIN);
	close(writer);
	PROMISE("until it is closed", lease(fd, F_RDLCK) == 0);
	close(fd);

	int folder = open(".", O_RDONLY | O_DIRECTORY);
	FAILS_WITH("a directory", lease(folder, F_RDLCK), EINVAL);
	close(folder);
	NEED(pipe(ends) == 0);
	FAILS_WITH("a pipe", lease(ends[0], F_RDLCK), EINVAL);
	close(ends[0]);
	close(ends[1]);
	int handle = open("file", O_PATH);
	FAILS_WITH("a handle on a name", lease(handle, F_RDLCK), EBADF);
	close(handle);
	int status;
	IN_CHILD(status, if (setresuid(USER, USER, USER)) _exit(2); int own = opened(O_RDONLY);
		 _exit(!(lease(own, F_RDLCK) == -1 && errno == EACCES)));
	PROMISE("another user's file: EACCES", status == 0);
	NEED(chown("file", USER, USER) == 0);
	IN_CHILD(status, if (setresuid(USER, USER, USER)) _exit(2); int own = opened(O_RDONLY); _exit(lease(own, F_RDLCK) != 0));
	PROMISE("one's own file", status == 0);
	NEED(chown("file", 0, 0) == 0);
}

static void breaking(void)
{
	int fd = opened(O_RDONLY);
	NEED(lease(fd, F_RDLCK) == 0);
	int reader = opened(O_RDONLY);
	PROMISE("a reader does not break a read lease", next() == 0 && is_leased(fd, F_RDLCK));
	close(reader);
	pid_t child = opener(O_WRONLY);
	PROMISE("a writer does: the holder gets SIGIO", COMES_TRUE(next() == SIGIO) && told.si_code == SI_KERNEL);
	PROMISE("the lease is to end", is_leased(fd, F_UNLCK));
	PROMISE("and the writer waits", sleeps(child) && !has_ended(child));
	FAILS_WITH("no one gets a lease meanwhile", ({ int second = opened(O_RDONLY); int got = lease(second, F_RDLCK); int error = errno; close(second); errno = error; got; }), EAGAIN);
	PROMISE("one signal is all", next() == 0);
	PROMISE("it opens the file when the lease has ended", lease(fd, F_UNLCK) == 0 && ends_well(child));
	close(fd);

	fd = opened(O_RDWR);
	NEED(lease(fd, F_WRLCK) == 0 && fcntl(fd, F_SETSIG, SIGRTMIN + 3) == 0);
	child = opener(O_RDONLY);
	PROMISE("a reader breaks a write lease: F_SETSIG's signal tells the descriptor",
		COMES_TRUE(next() == SIGRTMIN + 3) && told.si_fd == fd && told.si_code == POLL_MSG && told.si_band == (POLLIN | POLLRDNORM | POLLMSG));
	PROMISE("the lease is to become one for reading", is_leased(fd, F_RDLCK) && sleeps(child));
	FAILS_WITH("which it cannot while its holder writes", lease(fd, F_RDLCK), EAGAIN);
	PROMISE("so it ends", lease(fd, F_UNLCK) == 0 && ends_well(child) && fcntl(fd, F_GETSIG) == 0);
	close(fd);

	fd = opened(O_RDONLY);
	NEED(lease(fd, F_WRLCK) == 0);
	child = opener(O_RDONLY);
	NEED(COMES_TRUE(next() == SIGIO));
	NEED(sleeps(child));
	PROMISE("a holder that reads can give way in part", lease(fd, F_RDLCK) == 0 && ends_well(child) && is_leased(fd, F_RDLCK));
	PROMISE("and the next reader passes", ends_well(opener(O_RDONLY)) && next() == 0);
	child = opener(O_WRONLY);
	NEED(COMES_TRUE(next() == SIGIO) && sleeps(child));
	PROMISE("the holder's end ends it", close(fd) == 0 && ends_well(child));
}

static void not_waiting(void)
{
	int fd = opened(O_RDONLY);
	NEED(lease(fd, F_RDLCK) == 0);
	FAILS_WITH("O_NONBLOCK does not wait", open("file", O_WRONLY | O_NONBLOCK), EWOULDBLOCK);
	PROMISE("and the holder is told", next() == SIGIO && is_leased(fd, F_UNLCK));
	FAILS_WITH("once", open("file", O_WRONLY | O_NONBLOCK), EWOULDBLOCK);
	PROMISE("for the same break", next() == 0);
	PROMISE("nothing was cut", lease(fd, F_UNLCK) == 0);
	struct stat before, after;
	NEED(stat("file", &before) == 0 && before.st_size > 0 && lease(fd, F_RDLCK) == 0);
	FAILS_WITH("nor by O_TRUNC", open("file", O_WRONLY | O_TRUNC | O_NONBLOCK), EWOULDBLOCK);
	PROMISE("while the lease was there", stat("file", &after) == 0 && after.st_size == before.st_size && next() == SIGIO);
	close(fd);
	fd = opened(O_RDONLY);
	NEED(lease(fd, F_RDLCK) == 0);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0)
		_exit(truncate("file", 3) != 0);
	PROMISE("truncate(2) breaks and waits", COMES_TRUE(next() == SIGIO) && sleeps(child) && stat("file", &after) == 0 && after.st_size == before.st_size);
	PROMISE("and cuts afterwards", lease(fd, F_UNLCK) == 0 && ends_well(child) && stat("file", &after) == 0 && after.st_size == 3);
	NEED(lease(fd, F_RDLCK) == 0);
	NEED(chmod("file", 0640) == 0 && rename("file", "file2") == 0 && link("file2", "file") == 0 && unlink("file2") == 0);
	PROMISE("names and modes are not leased", next() == 0 && is_leased(fd, F_RDLCK));
	close(fd);
}

/* A mount stays writable while a truncation waits for a lease. */
static void mounts(void)
{
	NEED(mkdir("mount", 0755) == 0 && mount("none", "mount", "tmpfs", 0, NULL) == 0);
	int fd = open("mount/file", O_CREAT | O_RDONLY | O_CLOEXEC, 0644);
	NEED(fd >= 0);
	for (int by_name = 0; by_name <= 1; by_name++) {
		NEED(lease(fd, F_RDLCK) == 0);
		fflush(stdout);
		pid_t child = fork();
		NEED(child >= 0);
		if (child == 0)
			_exit(by_name ? truncate("mount/file", 3) != 0 : open("mount/file", O_WRONLY | O_TRUNC) < 0);
		NEED(COMES_TRUE(next() == SIGIO) && sleeps(child));
		FAILS_WITH("no read-only mount under a truncation that waits", mount("none", "mount", NULL, MS_REMOUNT | MS_RDONLY, NULL), EBUSY);
		PROMISE("which then succeeds", lease(fd, F_UNLCK) == 0 && ends_well(child));
	}
	PROMISE("afterwards the mount can be read-only", mount("none", "mount", NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0);
	NEED(close(fd) == 0 && umount("mount") == 0 && rmdir("mount") == 0);
}

static void on_signal(int number)
{
	(void)number;
}

static void interrupted(void)
{
	int fd = opened(O_RDONLY), status;
	NEED(lease(fd, F_RDLCK) == 0);
	pid_t child = opener(O_WRONLY);
	NEED(COMES_TRUE(next() == SIGIO) && sleeps(child));
	NEED(kill(child, SIGKILL) == 0);
	PROMISE("a waiting open can be killed", waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	PROMISE("the lease is to end all the same", is_leased(fd, F_UNLCK));
	close(fd);
	fd = opened(O_RDONLY);
	NEED(lease(fd, F_RDLCK) == 0);
	fflush(stdout);
	child = fork();
	NEED(child >= 0);
	if (child == 0) {
		struct sigaction action = { .sa_handler = on_signal };
		sigaction(SIGUSR1, &action, NULL);
		_exit(!(open("file", O_WRONLY) == -1 && errno == EINTR));
	}
	NEED(COMES_TRUE(next() == SIGIO) && sleeps(child));
	NEED(kill(child, SIGUSR1) == 0);
	PROMISE("a signal ends the wait: EINTR", ends_well(child));
	close(fd);
	fd = opened(O_RDONLY);
	NEED(lease(fd, F_RDLCK) == 0);
	IN_CHILD(status, _exit(!(is_leased(fd, F_RDLCK) && lease(fd, F_UNLCK) == 0)));
	PROMISE("a fork shares the lease", status == 0 && is_leased(fd, F_UNLCK));
	close(fd);
}

static int number_in(const char *path)
{
	char *text = reads(path);
	return text ? atoi(text) : -1;
}

/* Checks the settings where they can be changed (not in a container). */
static void settings(void)
{
	static const char time[] = "/proc/sys/fs/lease-break-time", enable[] = "/proc/sys/fs/leases-enable";
	PROMISE("leases are enabled, with a time", number_in(time) > 0 && number_in(enable) == 1);
	if (writes(enable, "0") != 0)
		return;
	int fd = opened(O_RDONLY);
	FAILS_WITH("none while they are not enabled", lease(fd, F_RDLCK), EINVAL);
	NEED(writes(enable, "1") == 0 && writes(time, "1") == 0);
	NEED(lease(fd, F_RDLCK) == 0);
	pid_t child = opener(O_WRONLY);
	PROMISE("a holder that does nothing loses it in the end", COMES_TRUE(next() == SIGIO) && ends_well(child) && is_leased(fd, F_UNLCK));
	FAILS_WITH("and has none to end", lease(fd, F_UNLCK), EAGAIN);
	NEED(lease(fd, F_WRLCK) == 0);
	child = opener(O_RDONLY);
	PROMISE("a write lease becomes one for reading", COMES_TRUE(next() == SIGIO) && ends_well(child) && is_leased(fd, F_RDLCK));
	NEED(writes(time, "45") == 0);
	close(fd);
}

static void many_holders(void)
{
	int fds[50], all = 1;
	for (int i = 0; i < 50; i++) {
		fds[i] = opened(O_RDONLY);
		all &= lease(fds[i], F_RDLCK) == 0 && fcntl(fds[i], F_SETSIG, SIGRTMIN + 3) == 0;
	}
	all &= open("file", O_WRONLY | O_NONBLOCK) == -1 && errno == EWOULDBLOCK;
	char seen[1024] = { 0 };
	for (int i = 0; i < 50; i++) {
		all &= next() == SIGRTMIN + 3;
		seen[told.si_fd & 1023] = 1;
	}
	for (int i = 0; i < 50; i++) {
		all &= seen[fds[i]];
		close(fds[i]);
	}
	PROMISE("fifty holders are told once each", all && next() == 0);
	int fd = open("file", O_WRONLY | O_NONBLOCK);
	PROMISE("nothing is left of them", fd >= 0);
	close(fd);
}

int main(void)
{
	sigset_t set = watched();
	NEED(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	/* A tmpfs, whatever the host's /tmp is. */
	char folder[] = "/dev/shm/leases-XXXXXX";
	NEED(mkdtemp(folder) && chmod(folder, 0777) == 0 && chdir(folder) == 0);
	int fd = open("file", O_CREAT | O_WRONLY, 0644);
	NEED(fd >= 0 && write(fd, "contents", 8) == 8 && close(fd) == 0);
	having();
	breaking();
	not_waiting();
	mounts();
	interrupted();
	settings();
	many_holders();
	NEED(unlink("file") == 0 && rmdir(folder) == 0);
	return conclude();
}
