/*
 * Calls that are refused, each with its errno, where other test suites found another errno; and
 * files that can be waited for. Runs as any user; a test that needs root says so.
 */
#include "promise.h"
#include "loopback.h"
#include <arpa/inet.h>
#include <asm/prctl.h>
#include <linux/aio_abi.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/user.h>

/* Adds a file to an epoll and removes it; returns 0 or the errno of adding it. */
static int watches(int epoll, int file)
{
	struct epoll_event event = { .events = EPOLLIN };
	if (epoll_ctl(epoll, EPOLL_CTL_ADD, file, &event) != 0)
		return errno;
	epoll_ctl(epoll, EPOLL_CTL_DEL, file, NULL);
	return 0;
}

static int watches_path(int epoll, const char *path)
{
	int file = open(path, O_RDONLY | O_CLOEXEC);
	NEED(file >= 0);
	int result = watches(epoll, file);
	close(file);
	return result;
}

static void handles(void)
{
	int handle = open("/proc/self/exe", O_PATH | O_CLOEXEC), epoll = epoll_create1(EPOLL_CLOEXEC);
	struct sockaddr address;
	socklen_t length = sizeof address;
	struct epoll_event event;
	NEED(handle >= 0 && epoll >= 0);
	PROMISE("a handle is no file to map", mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, handle, 0) == MAP_FAILED && errno == EBADF);
	FAILS_WITH("no socket", accept(handle, &address, &length), EBADF);
	FAILS_WITH("no socket to listen on", listen(handle, 1), EBADF);
	FAILS_WITH("nothing to watch", (errno = watches(epoll, handle)) ? -1 : 0, EBADF);
	FAILS_WITH("and nothing that watches", epoll_wait(handle, &event, 1, 0), EBADF);
	close(handle);
	close(epoll);
}

static void watched(void)
{
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	NEED(epoll >= 0);
	PROMISE("what is always ready is not watched", watches_path(epoll, "/dev/zero") == EPERM && watches_path(epoll, "/dev/null") == EPERM &&
								watches_path(epoll, "/dev/full") == EPERM && watches_path(epoll, "/") == EPERM);
	PROMISE("what is mounted is", watches_path(epoll, "/proc/self/mounts") == 0 && watches_path(epoll, "/proc/self/mountinfo") == 0);
	close(epoll);
}

static int control(int epoll, int operation, int file, unsigned events)
{
	struct epoll_event event = { .events = events };
	return epoll_ctl(epoll, operation, file, &event);
}

/* EPOLLEXCLUSIVE can only be set when a file is added, and only with plain events. */
static void exclusive(void)
{
	int epoll = epoll_create1(EPOLL_CLOEXEC), other = epoll_create1(EPOLL_CLOEXEC), ends[2];
	NEED(epoll >= 0 && other >= 0 && pipe(ends) == 0);
	FAILS_WITH("no exclusive watch of a watcher", control(epoll, EPOLL_CTL_ADD, other, EPOLLIN | EPOLLEXCLUSIVE), EINVAL);
	FAILS_WITH("nor for one event", control(epoll, EPOLL_CTL_ADD, ends[0], EPOLLIN | EPOLLONESHOT | EPOLLEXCLUSIVE), EINVAL);
	PROMISE("one of a pipe", control(epoll, EPOLL_CTL_ADD, ends[0], EPOLLIN | EPOLLET | EPOLLEXCLUSIVE) == 0);
	FAILS_WITH("which does not change", control(epoll, EPOLL_CTL_MOD, ends[0], EPOLLIN), EINVAL);
	NEED(control(epoll, EPOLL_CTL_ADD, ends[1], EPOLLOUT) == 0);
	FAILS_WITH("and none becomes one", control(epoll, EPOLL_CTL_MOD, ends[1], EPOLLOUT | EPOLLEXCLUSIVE), EINVAL);
	close(ends[0]);
	close(ends[1]);
	close(epoll);
	close(other);
}

/* Whether poll(2) reports a change of a list of mounts. */
static int tells(int list)
{
	struct pollfd change = { .fd = list, .events = POLLPRI };
	return poll(&change, 1, 0) == 1 && change.revents == (POLLPRI | POLLERR);
}

/* As root. */
static void mounts(void)
{
	int status, list = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
	NEED(list >= 0 && mkdir("/tmp/refusals", 0700) == 0);
	PROMISE("mounts that do not change tell nothing", !tells(list));
	NEED(mount("none", "/tmp/refusals", "tmpfs", 0, NULL) == 0);
	PROMISE("a new one is told", tells(list));
	PROMISE("once", !tells(list));
	NEED(mount("none", "/tmp/refusals", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) == 0);
	PROMISE("so are other restrictions", tells(list));
	NEED(umount("/tmp/refusals") == 0);
	PROMISE("and its end", tells(list) && !tells(list));
	IN_CHILD(status, NEED(unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && !tells(list));
		NEED(mount("none", "/tmp/refusals", "tmpfs", 0, NULL) == 0); _exit(tells(list)));
	PROMISE("those of another namespace are not", WIFEXITED(status) && WEXITSTATUS(status) == 0);
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		NEED(COMES_TRUE(is_asleep(getppid(), getppid())));
		_exit(mount("none", "/tmp/refusals", "tmpfs", 0, NULL));
	}
	struct pollfd change = { .fd = list, .events = POLLPRI };
	PROMISE("one who waits is woken", poll(&change, 1, 60000) == 1);
	NEED(waitpid(child, &status, 0) == child && status == 0);
	NEED(umount("/tmp/refusals") == 0 && rmdir("/tmp/refusals") == 0);
	close(list);
}

/* Makes the kernel count an event. */
static void count_event(int counter)
{
	aio_context_t context = 0;
	char byte = 0;
	int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	struct iocb block = { .aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = file, .aio_buf = (uintptr_t)&byte, .aio_nbytes = 1,
			      .aio_flags = IOCB_FLAG_RESFD, .aio_resfd = counter };
	struct iocb *blocks[] = { &block };
	struct io_event event;
	NEED(syscall(SYS_io_setup, 1, &context) == 0);
	NEED(syscall(SYS_io_submit, context, 1L, blocks) == 1);
	NEED(syscall(SYS_io_getevents, context, 1L, 1L, &event, NULL) == 1);
	NEED(syscall(SYS_io_destroy, context) == 0);
	close(file);
}

static void counters(void)
{
	int counter = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	uint64_t value = UINT64_MAX - 1;
	struct pollfd ready = { .fd = counter, .events = POLLIN | POLLOUT };
	NEED(write(counter, &value, 8) == 8);
	PROMISE("a counter that is full cannot be added to", poll(&ready, 1, 0) == 1 && ready.revents == POLLIN);
	count_event(counter);
	PROMISE("an event of the kernel's overflows it", poll(&ready, 1, 0) == 1 && ready.revents == (POLLIN | POLLERR));
	count_event(counter);
	PROMISE("once, which a reader sees", read(counter, &value, 8) == 8 && value == UINT64_MAX);
	PROMISE("then it counts anew", poll(&ready, 1, 0) == 1 && ready.revents == POLLOUT);
	close(counter);
}

static long sleeps(int clock)
{
	struct timespec second = { 1, 0 };
	return syscall(SYS_clock_nanosleep, clock, 0, &second, NULL);
}

static void clocks(void)
{
	struct timespec time;
	FAILS_WITH("nobody sleeps on a thread's time", sleeps(CLOCK_THREAD_CPUTIME_ID), EOPNOTSUPP);
	FAILS_WITH("nor on a raw clock", sleeps(CLOCK_MONOTONIC_RAW), EOPNOTSUPP);
	FAILS_WITH("nor on coarse ones", sleeps(CLOCK_REALTIME_COARSE), EOPNOTSUPP);
	FAILS_WITH("of either kind", sleeps(CLOCK_MONOTONIC_COARSE), EOPNOTSUPP);
	FAILS_WITH("a clock must exist", sleeps(-1), EINVAL);
	FAILS_WITH("to be asked for its resolution", syscall(SYS_clock_getres, -1, &time), EINVAL);
	FAILS_WITH("or its time", syscall(SYS_clock_gettime, -1, &time), EINVAL);
}

static void calls(void)
{
	PROMISE("CPUID is there for programs", syscall(SYS_arch_prctl, ARCH_GET_CPUID, 0L) == 1);
	FAILS_WITH("and cannot be taken from them by this CPU", syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0L), ENODEV);
	int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	NEED(file >= 0);
	FAILS_WITH("an empty name is none", fchmodat(AT_FDCWD, "", 0600, 0), ENOENT);
	FAILS_WITH("wherever it is looked for", fchmodat(file, "", 0600, 0), ENOENT);
	FAILS_WITH("by any call", openat(file, "", O_RDONLY), ENOENT);
	FAILS_WITH("even of no descriptor", unlinkat(-5, "", 0), ENOENT);
	FAILS_WITH("a name is looked for in a directory", fchmodat(file, "name", 0600, 0), ENOTDIR);
	close(file);
}

static long slack(void)
{
	return prctl(PR_GET_TIMERSLACK);
}

static void offsets_and_slack(void)
{
	int ends[2], status;
	char byte = 'x';
	struct iovec one = { &byte, 1 };
	NEED(pipe(ends) == 0);
	FAILS_WITH("a pipe has no offsets to write at", pwrite(ends[0], &byte, 1, 0), ESPIPE);
	FAILS_WITH("at either end, by any call", syscall(SYS_pwritev2, ends[0], &one, 1L, 0L, 0L, 0L), ESPIPE);
	FAILS_WITH("nor to read at", pread(ends[1], &byte, 1, 0), ESPIPE);
	close(ends[0]);
	close(ends[1]);
	long usual = slack();
	NEED(prctl(PR_SET_TIMERSLACK, 70000L) == 0);
	IN_CHILD(status, NEED(slack() == 70000 && prctl(PR_SET_TIMERSLACK, 5L) == 0 && slack() == 5); NEED(prctl(PR_SET_TIMERSLACK, 0L) == 0); _exit(slack() != 70000));
	PROMISE("a child's usual timer slack is what its maker had", WIFEXITED(status) && WEXITSTATUS(status) == 0);
	NEED(prctl(PR_SET_TIMERSLACK, 0L) == 0);
	PROMISE("and the maker's what it was", slack() == usual);
}

static void last_bytes(void)
{
	int status, file = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600), far[2];
	struct flock whole = { .l_type = F_WRLCK, .l_start = 1, .l_len = INT64_MAX }, seen = whole;
	char byte = 'z';
	NEED(file >= 0 && pipe(far) == 0);
	PROMISE("a lock reaches a file's last byte", fcntl(file, F_SETLK, &whole) == 0);
	whole.l_start = 2;
	FAILS_WITH("and no further", fcntl(file, F_SETLK, &whole), EOVERFLOW);
	IN_CHILD(status, _exit(fcntl(file, F_GETLK, &seen) == 0 && seen.l_type == F_WRLCK && seen.l_start == 1 && seen.l_len == 0 ? 0 : 1));
	PROMISE("which is shown as the end", status == 0);
	seen = (struct flock){ .l_type = F_WRLCK, .l_len = 1, .l_pid = 1 };
	FAILS_WITH("the lock of a description has no process", fcntl(file, F_OFD_SETLK, &seen), EINVAL);
	FAILS_WITH("not even where it is asked for", fcntl(file, F_OFD_GETLK, &seen), EINVAL);
	struct iovec parts[2] = { { &byte, 1 }, { (void *)(UINT64_C(1) << 62), 1 } };
	NEED(write(far[1], "xy", 2) == 2);
	FAILS_WITH("no byte moves where another has no place", readv(far[0], parts, 2), EFAULT);
	PROMISE("so none is lost", byte == 'z' && read(far[0], &byte, 1) == 1 && byte == 'x');
	close(file);
	close(far[0]);
	close(far[1]);
}

static void unconnected(void)
{
	int alone = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), datagrams = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct sockaddr_un any = { .sun_family = AF_UNIX };
	struct sockaddr_in nowhere = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	struct timeval odd = { 0, 1000000 };
	int status, number = 7;
	NEED(alone >= 0 && datagrams >= 0 && bind(alone, (struct sockaddr *)&any, sizeof(sa_family_t)) == 0);
	PROMISE("who has a name and wants any keeps it", bind(alone, (struct sockaddr *)&any, sizeof(sa_family_t)) == 0);
	PROMISE("a socket without a peer can be shut down", shutdown(alone, SHUT_RDWR) == 0);
	FAILS_WITH("no datagram goes to port 0", sendto(datagrams, "x", 1, 0, (struct sockaddr *)&nowhere, sizeof nowhere), EINVAL);
	FAILS_WITH("a million microseconds are a second", setsockopt(datagrams, SOL_SOCKET, SO_RCVTIMEO, &odd, sizeof odd), EDOM);
	if (geteuid() == 0) {
		PROMISE("packets have any priority", setsockopt(datagrams, SOL_SOCKET, SO_PRIORITY, &number, sizeof number) == 0);
		PROMISE("and a mark", setsockopt(datagrams, SOL_SOCKET, SO_MARK, &number, sizeof number) == 0);
	}
	IN_CHILD(status, NEED(geteuid() != 0 || setresuid(1000, 1000, 1000) == 0);
		int refused = setsockopt(datagrams, SOL_SOCKET, SO_PRIORITY, &number, sizeof number) == -1 && errno == EPERM;
		refused &= setsockopt(datagrams, SOL_SOCKET, SO_MARK, &number, sizeof number) == -1 && errno == EPERM;
		_exit(!refused));
	PROMISE("which a user does not choose", status == 0);
	close(alone);
	close(datagrams);
}

static void sockets(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t length = sizeof address;
	int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), far = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), pair[2];
	char byte;
	NEED(listening >= 0 && far >= 0 && bind(listening, (struct sockaddr *)&address, sizeof address) == 0 && listen(listening, 1) == 0);
	FAILS_WITH("a name needs room", getsockname(listening, NULL, &length), EFAULT);
	length = 0;
	PROMISE("of as many bytes as are wanted", getsockname(listening, NULL, &length) == 0 && length == sizeof address);
	NEED(getsockname(listening, (struct sockaddr *)&address, &length) == 0 && connect(far, (struct sockaddr *)&address, sizeof address) == 0);
	int near = accept(listening, NULL, NULL);
	PROMISE("whom nobody asks for", near >= 0);
	length = sizeof address;
	FAILS_WITH("nor a peer's", getpeername(near, NULL, &length), EFAULT);
	FAILS_WITH("a stream without urgent data has none", recv(near, &byte, 1, MSG_OOB), EINVAL);
	FAILS_WITH("and no errors that wait", recv(near, &byte, 1, MSG_ERRQUEUE), EAGAIN);
	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && write(pair[0], "y", 1) == 1);
	PROMISE("sockets of this machine queue no errors", recv(pair[1], &byte, 1, MSG_ERRQUEUE) == 1 && byte == 'y');
	close(pair[0]);
	close(pair[1]);
	close(near);
	close(far);
	close(listening);
}

static volatile sig_atomic_t came;

static void counts(int number)
{
	came += number == SIGUSR1;
}

/* Order of the checks of a call's arguments, and arguments that are not checked. */
static void arguments(void)
{
	struct sockaddr_in nobody = { .sin_family = AF_INET, .sin_port = htons(9), .sin_addr = { htonl(INADDR_LOOPBACK) } };
	struct timespec times[2] = { { 0 } };
	int sending = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), counter = eventfd(0, EFD_CLOEXEC), ends[2], status;
	timer_t timer;
	NEED(sending >= 0 && counter >= 0 && pipe(ends) == 0 && timer_create(CLOCK_MONOTONIC, NULL, &timer) == 0);
	FAILS_WITH("what nobody gets has to be there", sendto(sending, (void *)-4096L, 100, 0, (struct sockaddr *)&nobody, sizeof nobody), EFAULT);
	FAILS_WITH("no protocol of raw sockets has the number 0", socket(AF_INET, SOCK_RAW, 0), EPROTONOSUPPORT);
	FAILS_WITH("a counter is not read ahead", readahead(counter, 0, 1), EINVAL);
	FAILS_WITH("nor is part of a pipe written out", sync_file_range(ends[1], 0, 1, 0), ESPIPE);
	FAILS_WITH("a timer is set to something", syscall(SYS_timer_settime, timer, 0, NULL, NULL), EINVAL);
	FAILS_WITH("no name is not the working directory's", syscall(SYS_utimensat, AT_FDCWD, NULL, times, 0), EFAULT);
	IN_CHILD(status, _exit(!(syscall(SYS_membarrier, 8, 0) == -1 && errno == EPERM && syscall(SYS_membarrier, 16, 0) == 0 && syscall(SYS_membarrier, 8, 0) == 0)));
	PROMISE("who did not register has no barrier", WIFEXITED(status) && WEXITSTATUS(status) == 0);
	PROMISE("types of file systems have numbers", syscall(SYS_sysfs, 3) > 4 && syscall(SYS_sysfs, 1, "proc") >= 0);
	char name[64] = "";
	PROMISE("and names", syscall(SYS_sysfs, 2, syscall(SYS_sysfs, 1, "tmpfs"), name) == 0 && !strcmp(name, "tmpfs"));
	FAILS_WITH("not all", syscall(SYS_sysfs, 1, "none such"), EINVAL);
	struct stat about;
	char room[64] = { 0 };
	NEED(stat("/dev/shm", &about) == 0 || stat("/", &about) == 0);
	PROMISE("a device's file system says what is free", syscall(SYS_ustat, (unsigned)about.st_dev, room) == 0);
	FAILS_WITH("where there is one", syscall(SYS_ustat, 0xfffff, room), EINVAL);
	timer_delete(timer);
	close(sending);
	close(counter);
	close(ends[0]);
	close(ends[1]);
}

static void *tells_number(void *number)
{
	*(volatile pid_t *)number = gettid();
	for (;;)
		pause();
	return NULL;
}

/* Names a process by the number of one of its threads. */
static void threads(void)
{
	int status;
	IN_CHILD(status, volatile pid_t number = 0; pthread_t thread; siginfo_t info = { .si_code = SI_QUEUE };
		NEED(signal(SIGUSR1, counts) != SIG_ERR && pthread_create(&thread, NULL, tells_number, (void *)&number) == 0 && COMES_TRUE(number != 0));
		_exit(!(kill(number, 0) == 0 && kill(number, SIGUSR1) == 0 && COMES_TRUE(came == 1) && syscall(SYS_rt_sigqueueinfo, number, SIGUSR1, &info) == 0 &&
			COMES_TRUE(came == 2))));
	PROMISE("a thread's number stands for its process where it is signalled", WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static int locks(int file, int command, short kind, off_t at)
{
	struct flock lock = { .l_type = kind, .l_whence = SEEK_SET, .l_start = at, .l_len = 1 };
	return fcntl(file, command, &lock);
}

/* Two processes that wait for each other's locks. */
static void deadlocks(void)
{
	int status, file = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	char byte;
	int told[2];
	NEED(file >= 0 && pipe(told) == 0 && locks(file, F_SETLK, F_WRLCK, 0) == 0);
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		NEED(locks(file, F_SETLK, F_WRLCK, 1) == 0 && write(told[1], "x", 1) == 1);
		_exit(locks(file, F_SETLKW, F_WRLCK, 0) != 0);
	}
	NEED(read(told[0], &byte, 1) == 1 && COMES_TRUE(is_asleep(child, child)));
	FAILS_WITH("a wait that would not end is refused", locks(file, F_SETLKW, F_RDLCK, 1), EDEADLK);
	NEED(locks(file, F_SETLK, F_UNLCK, 0) == 0);
	PROMISE("the other gets its lock", waitpid(child, &status, 0) == child && status == 0);
	PROMISE("then nobody waits", locks(file, F_SETLKW, F_WRLCK, 1) == 0);
	close(told[0]);
	close(told[1]);
	close(file);
}

/* A deadlock that arises when a third process unlocks. */
static void late_deadlock(void)
{
	int status, file = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600), told[2];
	char byte;
	NEED(file >= 0 && pipe(told) == 0 && locks(file, F_SETLK, F_RDLCK, 0) == 0);
	fflush(stdout);
	pid_t first = fork();
	NEED(first >= 0);
	if (first == 0) {
		NEED(locks(file, F_SETLK, F_WRLCK, 1) == 0 && write(told[1], "x", 1) == 1);
		_exit(!(locks(file, F_SETLKW, F_WRLCK, 0) == -1 && errno == EDEADLK));
	}
	NEED(read(told[0], &byte, 1) == 1 && COMES_TRUE(is_asleep(first, first)));
	pid_t second = fork();
	NEED(second >= 0);
	if (second == 0) {
		NEED(locks(file, F_SETLK, F_RDLCK, 0) == 0);
		_exit(locks(file, F_SETLKW, F_WRLCK, 1) != 0);
	}
	NEED(COMES_TRUE(is_asleep(second, second)));
	NEED(locks(file, F_SETLK, F_UNLCK, 0) == 0);
	PROMISE("so is one that waits when the circle closes", waitpid(first, &status, 0) == first && status == 0);
	PROMISE("and what it held goes to the next", waitpid(second, &status, 0) == second && status == 0);
	close(told[0]);
	close(told[1]);
	close(file);
}

static int fd_signals(int directory, int number)
{
	return syscall(SYS_pidfd_send_signal, directory, number, NULL, 0);
}

/* Names a process by its directory in /proc. Also tests a process that job control has stopped. */
static void processes(void)
{
	char path[32];
	int status;
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		raise(SIGSTOP);
		for (;;)
			pause();
	}
	snprintf(path, sizeof path, "/proc/%d", child);
	int directory = open(path, O_DIRECTORY | O_CLOEXEC), tasks = openat(directory, "task", O_DIRECTORY | O_CLOEXEC), handle = open(path, O_PATH | O_CLOEXEC);
	NEED(directory >= 0 && tasks >= 0 && handle >= 0 && waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
	PROMISE("a process' directory stands for it", fd_signals(directory, 0) == 0);
	FAILS_WITH("that of its threads does not", fd_signals(tasks, 0), EBADF);
	FAILS_WITH("nor a handle", fd_signals(handle, 0), EBADF);
	NEED(ptrace(PTRACE_ATTACH, child, NULL, NULL) == 0);
	errno = 0;
	PROMISE("one that is stopped can be asked as soon as it is attached", ptrace(PTRACE_PEEKUSER, child, offsetof(struct user_regs_struct, rip), NULL) != 0 && errno == 0);
	PROMISE("and is waited for once", waitpid(child, &status, __WALL) == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
	NEED(ptrace(PTRACE_DETACH, child, NULL, NULL) == 0);
	PROMISE("its directory kills it", fd_signals(directory, SIGKILL) == 0 && waitpid(child, &status, 0) == child && WTERMSIG(status) == SIGKILL);
	FAILS_WITH("then it stands for nobody", fd_signals(directory, 0), ESRCH);
	if (geteuid() == 0) {
		char number[16];
		int last = open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);
		snprintf(number, sizeof number, "%d", child - 1);
		NEED(last >= 0 && write(last, number, strlen(number)) > 0);
		close(last);
		fflush(stdout);
		pid_t another = fork();
		NEED(another >= 0);
		if (another == 0)
			for (;;)
				pause();
		PROMISE("not for another with its number", another != child || (fd_signals(directory, SIGKILL) == -1 && errno == ESRCH));
		NEED(kill(another, SIGKILL) == 0 && waitpid(another, &status, 0) == another);
	}
	close(directory);
	close(tasks);
	close(handle);
}

int main(void)
{
	set_loopback_up();
	handles();
	watched();
	exclusive();
	if (geteuid() == 0)
		mounts();
	counters();
	clocks();
	calls();
	offsets_and_slack();
	sockets();
	last_bytes();
	unconnected();
	arguments();
	threads();
	deadlocks();
	late_deadlock();
	processes();
	return conclude();
}
