/*
 * What calls refuse, and with which errno, where other suites found another; and what can be waited
 * for. Runs as any user but where it says root.
 */
#include "promise.h"
#include <asm/prctl.h>
#include <linux/aio_abi.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/select.h>
#include <sys/socket.h>

/* What epoll says of watching a file: 0, or an errno. */
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

/* Whether a list of mounts says that it has changed. */
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

/* Has the kernel count an event. */
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

int main(void)
{
	handles();
	watched();
	if (geteuid() == 0)
		mounts();
	counters();
	clocks();
	calls();
	return conclude();
}
