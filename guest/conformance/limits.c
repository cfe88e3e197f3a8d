/* Each resource limit does what setrlimit(2) says; run as root. Where a limit does not apply to
 * root, the program changes to another user. */
#include "promise.h"
#include "ring.h"

#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/statfs.h>
#include <sys/syscall.h>

#define PAGE 4096
#define LIMIT 5000

static volatile int too_large;
/* A file of 8192 bytes to copy from: with a name, since Linux copies between files of one file
 * system only. */
static int source;

static void on_too_large(int signal)
{
	(void)signal;
	too_large++;
}

static void limit(int resource, rlim_t soft)
{
	struct rlimit now;
	NEED(getrlimit(resource, &now) == 0);
	now.rlim_cur = soft;
	if (now.rlim_max < soft)
		now.rlim_max = soft;
	NEED(setrlimit(resource, &now) == 0);
}

/* A regular file with a name, empty. */
static int file(void)
{
	int fd = open("/tmp/limits", O_RDWR | O_CREAT | O_TRUNC, 0600);
	NEED(fd >= 0);
	return fd;
}

/* Any number of signals: a call may reach the limit more than once before it returns. */
#define ANY -1

/* Whether a call that could write only a part, or nothing, led to this result, this file size
 * and this number of signals. */
static int came_to(long result, long expected, int fd, off_t size, int signals)
{
	struct stat now;
	int error = errno;
	NEED(fstat(fd, &now) == 0);
	int right = result == expected && now.st_size == size && (signals == ANY || too_large == signals) && (result >= 0 || error == EFBIG);
	if (!right)
		printf("# %ld instead of %ld, %lld bytes, %d signals\n", result, expected, (long long)now.st_size, too_large);
	too_large = 0;
	errno = error;
	return right;
}

static long splice_to(int fd, loff_t at, size_t length)
{
	static char bytes[8192];
	int pipes[2];
	NEED(pipe(pipes) == 0 && write(pipes[1], bytes, length) == (ssize_t)length);
	long moved = splice(pipes[0], NULL, fd, &at, length, 0);
	int error = errno;
	close(pipes[0]);
	close(pipes[1]);
	errno = error;
	return moved;
}

static long send_to(int fd, off_t at)
{
	off_t start = 0;
	NEED(lseek(fd, at, SEEK_SET) == at);
	return sendfile(fd, source, &start, 8192);
}

static long copy_to(int fd, loff_t at)
{
	loff_t start = 0;
	return syscall(SYS_copy_file_range, source, &start, fd, &at, 8192, 0);
}

static long ring_to(struct ring *ring, int fd, char *bytes, off_t at)
{
	add(ring, IORING_OP_WRITE, fd, bytes, 8192, at, 1);
	NEED(enter(ring->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
	int result = take(ring, 1);
	errno = result < 0 ? -result : 0;
	return result < 0 ? -1 : result;
}

static void the_size_of_files(void)
{
	static char bytes[8192];
	struct iovec parts[2] = { { bytes, 4000 }, { bytes, 4192 } };
	struct ring ring;
	open_ring(&ring);
	int fd = file(), appending = open("/tmp/limits", O_WRONLY | O_APPEND);
	source = open("/tmp/source", O_RDWR | O_CREAT | O_TRUNC, 0600);
	NEED(source >= 0 && write(source, bytes, 8192) == 8192);
	signal(SIGXFSZ, on_too_large);
	limit(RLIMIT_FSIZE, LIMIT);
	PROMISE("write ends at the limit", came_to(write(fd, bytes, 8192), LIMIT, fd, LIMIT, 0));
	PROMISE("and at it writes nothing, with SIGXFSZ", came_to(write(fd, bytes, 1), -1, fd, LIMIT, 1));
	PROMISE("but what is nothing", came_to(write(fd, bytes, 0), 0, fd, LIMIT, 0));
	PROMISE("pwrite", came_to(pwrite(fd, bytes, 8192, 4900), 100, fd, LIMIT, 0));
	PROMISE("pwrite at the limit", came_to(pwrite(fd, bytes, 10, LIMIT), -1, fd, LIMIT, 1));
	PROMISE("writev", came_to(pwritev(fd, parts, 2, 10), LIMIT - 10, fd, LIMIT, 0));
	PROMISE("writev at the limit", came_to(pwritev(fd, parts, 2, LIMIT + 10), -1, fd, LIMIT, 1));
	PROMISE("an appending write at the limit", came_to(write(appending, bytes, 10), -1, fd, LIMIT, 1));
	NEED(ftruncate(fd, 4990) == 0);
	PROMISE("an appending write", came_to(write(appending, bytes, 100), 10, fd, LIMIT, 0));
	NEED(ftruncate(fd, 4990) == 0);
	PROMISE("an appending pwritev2", came_to(pwritev2(fd, parts, 2, -1, 0x10), 10, fd, LIMIT, 0));
	PROMISE("splice", came_to(splice_to(fd, 3000, 8192), 2000, fd, LIMIT, ANY));
	PROMISE("splice at the limit", came_to(splice_to(fd, LIMIT, 100), -1, fd, LIMIT, 1));
	PROMISE("sendfile at the limit", came_to(send_to(fd, LIMIT), -1, fd, LIMIT, 1));
	PROMISE("sendfile", came_to(send_to(fd, 1000), LIMIT - 1000, fd, LIMIT, ANY));
	PROMISE("copy_file_range", came_to(copy_to(fd, 1000), LIMIT - 1000, fd, LIMIT, ANY));
	PROMISE("copy_file_range at the limit", came_to(copy_to(fd, LIMIT), -1, fd, LIMIT, 1));
	PROMISE("a ring's write", came_to(ring_to(&ring, fd, bytes, 4000), 1000, fd, LIMIT, 0));
	PROMISE("a ring's write at the limit", came_to(ring_to(&ring, fd, bytes, LIMIT), -1, fd, LIMIT, ANY));
	PROMISE("ftruncate above the limit", came_to(ftruncate(fd, LIMIT + 1), -1, fd, LIMIT, 1));
	PROMISE("truncate above the limit", came_to(truncate("/tmp/limits", LIMIT + 1), -1, fd, LIMIT, 1));
	PROMISE("ftruncate to the limit", came_to(ftruncate(fd, 1), 0, fd, 1, 0) && came_to(ftruncate(fd, LIMIT), 0, fd, LIMIT, 0));
	PROMISE("fallocate above the limit", came_to(fallocate(fd, 0, 0, LIMIT + 1), -1, fd, LIMIT, 1));
	PROMISE("even if the size stays", came_to(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, LIMIT + 1), -1, fd, LIMIT, 1));
	PROMISE("fallocate below it", came_to(fallocate(fd, 0, 0, LIMIT), 0, fd, LIMIT, 0));
	limit(RLIMIT_FSIZE, RLIM_INFINITY);
	NEED(ftruncate(fd, 8192) == 0);
	limit(RLIMIT_FSIZE, LIMIT);
	PROMISE("what is larger already may be cut, above the limit too", came_to(ftruncate(fd, 7000), 0, fd, 7000, 0));
	PROMISE("and have memory", came_to(fallocate(fd, 0, 0, 6000), 0, fd, 7000, 0));
	int pipes[2];
	NEED(pipe(pipes) == 0);
	PROMISE("a pipe has no size", write(pipes[1], bytes, 8192) == 8192 && !too_large);
	int status;
	IN_CHILD(status, signal(SIGXFSZ, SIG_DFL); write(fd, bytes, 1), pwrite(fd, bytes, 1, LIMIT));
	PROMISE("SIGXFSZ ends a process that does not expect it", WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ);
	limit(RLIMIT_FSIZE, RLIM_INFINITY);
	unlink("/tmp/limits");
}

static void queued_signals(void)
{
	sigset_t all;
	union sigval value = { .sival_int = 4 };
	int status;
	sigfillset(&all);
	NEED(sigprocmask(SIG_BLOCK, &all, NULL) == 0);
	IN_CHILD(status, NEED(setuid(4001) == 0); limit(RLIMIT_SIGPENDING, 3);
		int sent = 0; while (sent < 10 && sigqueue(getpid(), SIGRTMIN, value) == 0) sent++;
		if (sent != 3 || errno != EAGAIN) _exit(1);
		/* kill(2) never fails because of this limit. A standard signal needs no queue
		 * entry. */
		if (kill(getpid(), SIGRTMIN + 1) || sigqueue(getpid(), SIGUSR1, value) || tgkill(getpid(), gettid(), SIGUSR2)) _exit(2);
		if (tgkill(getpid(), gettid(), SIGRTMIN + 2) == 0 || errno != EAGAIN) _exit(3);
		timer_t timer; if (timer_create(CLOCK_MONOTONIC, NULL, &timer) == 0 || errno != EAGAIN) _exit(4);
		/* Another process of the same user counts against the same limit. */
		int inner; pid_t child = fork(); if (child == 0) _exit(sigqueue(getpid(), SIGRTMIN, value) == 0);
		waitpid(child, &inner, 0); if (inner) _exit(5);
		/* Each signal is delivered, and then its place in the queue is free. */
		siginfo_t info; sigset_t one; sigemptyset(&one); sigaddset(&one, SIGRTMIN);
		for (int i = 0; i < 3; i++) if (sigwaitinfo(&one, &info) != SIGRTMIN || info.si_value.sival_int != 4) _exit(6);
		if (sigqueue(getpid(), SIGRTMIN, value) || timer_create(CLOCK_MONOTONIC, NULL, &timer)) _exit(7);
		if (timer_delete(timer) || sigqueue(getpid(), SIGRTMIN, value)) _exit(8);
		sigset_t pending; sigpending(&pending); if (!sigismember(&pending, SIGUSR1) || !sigismember(&pending, SIGRTMIN + 1)) _exit(9));
	PROMISE("RLIMIT_SIGPENDING bounds a user's queued signals and timers", WIFEXITED(status) && WEXITSTATUS(status) == 0);
	if (status)
		printf("# status %x\n", status);
	IN_CHILD(status, limit(RLIMIT_SIGPENDING, 2000); NEED(setuid(4002) == 0);
		for (int i = 0; i < 2000; i++) if (sigqueue(getpid(), SIGRTMIN, (union sigval){ .sival_int = i })) _exit(1);
		siginfo_t info; sigset_t one; sigemptyset(&one); sigaddset(&one, SIGRTMIN);
		for (int i = 0; i < 2000; i++) if (sigwaitinfo(&one, &info) != SIGRTMIN || info.si_value.sival_int != i) _exit(2));
	PROMISE("as many as it says are kept, in order", status == 0);
	IN_CHILD(status, NEED(setuid(4001) == 0); limit(RLIMIT_SIGPENDING, 1);
		if (sigqueue(getpid(), SIGRTMIN, value)) _exit(1));
	PROMISE("what a process leaves pending at its end is nobody's", status == 0);
	NEED(sigprocmask(SIG_UNBLOCK, &all, NULL) == 0);
}

static int change(int resource, rlim_t soft, rlim_t hard)
{
	struct rlimit new = { soft, hard };
	return setrlimit(resource, &new);
}

static void descriptors(void)
{
	struct rlimit old;
	NEED(getrlimit(RLIMIT_NOFILE, &old) == 0);
	FAILS_WITH("RLIMIT_NOFILE above fs.nr_open", change(RLIMIT_NOFILE, 10, 1048577), EPERM);
	FAILS_WITH("not even as no limit", change(RLIMIT_NOFILE, RLIM_INFINITY, RLIM_INFINITY), EPERM);
	PROMISE("up to it", change(RLIMIT_NOFILE, old.rlim_cur, 1048576) == 0);
	PROMISE("a limit of 5 lets descriptors be below 5", change(RLIMIT_NOFILE, 5, 1048576) == 0);
	int fd, last = -1;
	while ((fd = dup(0)) >= 0)
		last = fd;
	int error = errno;
	PROMISE("EMFILE behind them", error == EMFILE && last <= 4);
	FAILS_WITH("dup2 too", dup2(0, 5), EBADF);
	NEED(change(RLIMIT_NOFILE, old.rlim_cur, 1048576) == 0);
	syscall(SYS_close_range, 3, ~0u, 0);
}

static void any_limit(void)
{
	struct rlimit now;
	int wrong = 0;
	for (int resource = 0; resource < 16; resource++) {
		NEED(getrlimit(resource, &now) == 0);
		struct rlimit high = { 2, 1 };
		wrong += setrlimit(resource, &high) != -1 || errno != EINVAL;
		wrong += now.rlim_cur > now.rlim_max;
	}
	PROMISE("a soft limit above the hard one is refused for each resource", wrong == 0);
	FAILS_WITH("there are sixteen", getrlimit(16, &now), EINVAL);
	int status;
	IN_CHILD(status, NEED(setuid(4003) == 0); int bad = 0;
		for (int resource = 0; resource < 16; resource++) {
			struct rlimit old, new;
			getrlimit(resource, &old);
			new = old;
			if (old.rlim_max != RLIM_INFINITY) {
				new.rlim_max++;
				bad += setrlimit(resource, &new) != -1 || errno != EPERM;
			}
			new = (struct rlimit){ old.rlim_cur / 2, old.rlim_cur / 2 };
			bad += setrlimit(resource, &new) != 0;
			new.rlim_max++;
			bad += setrlimit(resource, &new) != -1 || errno != EPERM;
		}
		_exit(bad));
	PROMISE("a user may lower a hard limit and not raise it", status == 0);
}

static void memory(void)
{
	int status;
	IN_CHILD(status, limit(RLIMIT_AS, 64 << 20); _exit(mmap(NULL, 65 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == ENOMEM ? 0 : 1));
	PROMISE("RLIMIT_AS bounds all addresses", status == 0);
	IN_CHILD(status, limit(RLIMIT_DATA, 16 << 20);
		if (mmap(NULL, 17 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED || errno != ENOMEM) _exit(1);
		if (mmap(NULL, 17 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) _exit(2);
		if (sbrk(17 << 20) != (void *)-1) _exit(3));
	PROMISE("RLIMIT_DATA bounds private memory to write, and the break", status == 0);
	IN_CHILD(status, limit(RLIMIT_STACK, 256 << 10); volatile char *far = (char *)__builtin_frame_address(0) - (512 << 10); signal(SIGSEGV, SIG_DFL); *far = 1);
	PROMISE("RLIMIT_STACK bounds the stack's growth", WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	IN_CHILD(status, limit(RLIMIT_MEMLOCK, 2 * PAGE); NEED(setuid(4004) == 0);
		char *at = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (mlock(at, 2 * PAGE) || mlock(at, 3 * PAGE) != -1 || errno != ENOMEM) _exit(1));
	PROMISE("RLIMIT_MEMLOCK bounds locked memory", status == 0);
}

static void processes(void)
{
	int status;
	IN_CHILD(status, NEED(setuid(4005) == 0); limit(RLIMIT_NPROC, 3); int made = 0; pid_t child;
		while (made < 10 && (child = fork()) > 0) made++;
		if (child == 0) { pause(); _exit(0); }
		int error = errno;
		signal(SIGTERM, SIG_IGN); (kill)(-1, SIGTERM); while (wait(NULL) > 0);
		_exit(made == 2 && error == EAGAIN ? 0 : 1));
	PROMISE("RLIMIT_NPROC bounds a user's processes", status == 0);
	IN_CHILD(status, limit(RLIMIT_NPROC, 1); pid_t child = fork(); if (child == 0) _exit(0); _exit(child > 0 ? 0 : 1));
	PROMISE("but not root's", status == 0);
	IN_CHILD(status, NEED(change(RLIMIT_NICE, 20 + 5, 20 + 5) == 0 && setuid(4006) == 0);
		if (setpriority(PRIO_PROCESS, 0, -5)) _exit(1);
		if (setpriority(PRIO_PROCESS, 0, -6) != -1 || errno != EACCES) _exit(2);
		if (setpriority(PRIO_PROCESS, 0, 3) || setpriority(PRIO_PROCESS, 0, -2)) _exit(3));
	PROMISE("RLIMIT_NICE says how nice to itself a user may be", status == 0);
	IN_CHILD(status, NEED(setuid(4006) == 0); struct sched_param one = { 1 };
		if (sched_setscheduler(0, SCHED_FIFO, &one) != -1 || errno != EPERM) _exit(1));
	PROMISE("RLIMIT_RTPRIO of 0 allows no real-time priority", status == 0);
	IN_CHILD(status, limit(RLIMIT_CPU, 1); for (;;));
	PROMISE("RLIMIT_CPU ends in SIGXCPU", WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU);
	IN_CHILD(status, limit(RLIMIT_CORE, 0); raise(SIGABRT));
	PROMISE("RLIMIT_CORE of 0 leaves no core", WIFSIGNALED(status) && !WCOREDUMP(status));
}

/* The root file system may take half of memory, not counting the files from the initramfs. Not
 * so on Linux, whose rootfs has no limit. */
static void the_root(void)
{
	struct statfs root, again;
	NEED(statfs("/", &root) == 0);
	unsigned long total = sysconf(_SC_PHYS_PAGES);
	long off = (long)root.f_blocks - (long)total / 2;
	PROMISE("root: half of memory", labs(off) < (long)total / 16);
	PROMISE("root: what came with the machine does not count", root.f_blocks - root.f_bfree < 300);
	int fd = open("/full", O_RDWR | O_CREAT, 0600);
	static char bytes[1 << 20];
	long written = 0, step;
	while ((step = write(fd, bytes, sizeof bytes)) > 0)
		written += step;
	int error = errno;
	PROMISE("root: ENOSPC at the limit", step == -1 && error == ENOSPC && labs(written / PAGE - (long)root.f_bfree) < 64);
	NEED(statfs("/", &again) == 0);
	PROMISE("root: statfs shows it full", again.f_bfree == 0);
	PROMISE("root: one byte more is too much", pwrite(fd, "x", 1, written + PAGE) == -1 && errno == ENOSPC);
	NEED(ftruncate(fd, 0) == 0 && statfs("/", &again) == 0);
	PROMISE("root: what is cut is free again", again.f_bfree >= root.f_bfree - 8);
	unlink("/full");
}

int main(int count, char **arguments)
{
	mkdir("/tmp", 01777);
	(void)arguments;
	the_size_of_files();
	queued_signals();
	descriptors();
	any_limit();
	memory();
	processes();
	if (count > 1)
		the_root();
	return conclude();
}
