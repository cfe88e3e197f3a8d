/*
 * Calls beside a waiting task. One process waits in a call for an event that never occurs, with
 * each kind of file. Others make calls on the same files and on the same process, and end. A
 * waiting task must not block others, whatever it holds. Each call beside it returns or ends by
 * SIGKILL, and unrelated programs can end.
 *
 * Usage: beside [-l]: with -l the calls that had to be killed are listed.
 */
#include "../conformance/promise.h"

#include "../conformance/ring.h"

#include <dirent.h>
#include <linux/futex.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/msg.h>
#include <sys/ptrace.h>
#include <sys/sem.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <termios.h>

/* Time in ms that a call may take before its process is killed, and that the process may then
 * take to end. */
#define PATIENCE 1500
#define FILES 4

/* The files of the call that waits, -1 after the last. */
static int files[FILES];
static pid_t waiter;
static int lists;
static char bytes[1 << 16];

static void pair_of_pipe(int ends[2])
{
	NEED(pipe(ends) == 0);
}

static void fill(int file)
{
	int flags = fcntl(file, F_GETFL);
	NEED(fcntl(file, F_SETFL, flags | O_NONBLOCK) == 0);
	while (write(file, bytes, sizeof bytes) > 0)
		;
	NEED(fcntl(file, F_SETFL, flags) == 0);
}

static int some_file(void)
{
	char name[] = "/tmp/besideXXXXXX";
	int file = mkstemp(name);
	NEED(file >= 0 && unlink(name) == 0 && write(file, bytes, sizeof bytes) == (ssize_t)sizeof bytes);
	return file;
}

static void sockets(int ends[2])
{
	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
}

/* Calls that wait: `prepare` opens the files, `wait` waits. */
static void empty_pipe(void)
{
	pair_of_pipe(files);
}

static void full_pipe(void)
{
	pair_of_pipe(files);
	fill(files[1]);
}

static void pipe_and_socket(void)
{
	pair_of_pipe(files);
	sockets(files + 2);
	NEED(write(files[1], "x", 1) == 1);
}

static void pipe_and_full_socket(void)
{
	pipe_and_socket();
	fill(files[2]);
}

static void file_and_full_pipe(void)
{
	full_pipe();
	files[2] = some_file();
	NEED(lseek(files[2], 0, SEEK_SET) == 0);
}

static void two_pipes(void)
{
	empty_pipe();
	NEED(write(files[1], "x", 1) == 1);
	pair_of_pipe(files + 2);
	fill(files[3]);
}

static void empty_socket(void)
{
	sockets(files);
}

static void full_socket(void)
{
	sockets(files);
	fill(files[0]);
}

static void file_and_full_socket(void)
{
	full_socket();
	files[2] = some_file();
	NEED(lseek(files[2], 0, SEEK_SET) == 0);
}

static void listener(void)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	files[0] = socket(AF_UNIX, SOCK_STREAM, 0);
	snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "beside %d", getpid());
	NEED(files[0] >= 0 && bind(files[0], (struct sockaddr *)&at, sizeof at) == 0 && listen(files[0], 1) == 0);
}

static void terminal(void)
{
	int unlock = 0, number;
	files[0] = open("/dev/ptmx", O_RDWR | O_NOCTTY);
	NEED(files[0] >= 0 && ioctl(files[0], TIOCSPTLCK, &unlock) == 0 && ioctl(files[0], TIOCGPTN, &number) == 0);
	snprintf(bytes, sizeof bytes, "/dev/pts/%d", number);
	files[1] = open(bytes, O_RDWR | O_NOCTTY);
	NEED(files[1] >= 0);
}

static void full_terminal(void)
{
	terminal();
	fill(files[1]);
}

static void locked_file(void)
{
	files[0] = some_file();
	snprintf(bytes, sizeof bytes, "/proc/self/fd/%d", files[0]);
	files[1] = open(bytes, O_RDWR);
	struct flock all = { .l_type = F_WRLCK };
	NEED(files[1] >= 0 && flock(files[1], LOCK_EX) == 0 && fcntl(files[0], F_SETLK, &all) == 0);
}

static void poller(void)
{
	struct epoll_event event = { .events = EPOLLIN };
	empty_pipe();
	files[2] = epoll_create1(0);
	NEED(files[2] >= 0 && epoll_ctl(files[2], EPOLL_CTL_ADD, files[0], &event) == 0);
}

static struct ring ring;

static void ring_and_pipe(void)
{
	empty_pipe();
	open_ring(&ring);
	files[2] = ring.fd;
}

static void watcher(void)
{
	files[0] = inotify_init1(0);
	NEED(files[0] >= 0 && inotify_add_watch(files[0], "/tmp", IN_DELETE_SELF) >= 0);
}

static void no_files(void)
{
}

static void waits_read(void) { read(files[0], bytes, 1); }
static void waits_write(void) { write(files[1], bytes, sizeof bytes); }
static void waits_splice_in(void) { splice(files[2], NULL, files[1], NULL, 4096, 0); }
static void waits_splice_out(void) { splice(files[0], NULL, files[2], NULL, 4096, 0); }
static void waits_splice_file(void) { splice(files[2], NULL, files[1], NULL, 4096, 0); }
static void waits_splice_pipe(void) { splice(files[0], NULL, files[3], NULL, 4096, 0); }
static void waits_tee(void) { tee(files[0], files[3], 4096, 0); }
static void waits_vmsplice(void) { vmsplice(files[1], &(struct iovec){ bytes, 4096 }, 1, 0); }
static void waits_receive(void) { recv(files[0], bytes, 100, MSG_WAITALL); }
static void waits_send(void) { send(files[0], bytes, sizeof bytes, 0); }
static void waits_sendfile(void) { sendfile(files[0], files[2], NULL, sizeof bytes); }
static void waits_accept(void) { accept(files[0], NULL, NULL); }
static void waits_terminal(void) { read(files[1], bytes, 1); }
static void waits_drain(void) { tcdrain(files[1]); }
static void waits_flock(void) { flock(files[0], LOCK_EX); }
static void waits_lock(void) { struct flock all = { .l_type = F_WRLCK }; fcntl(files[1], F_SETLKW, &all); }
static void waits_epoll(void) { struct epoll_event event; epoll_wait(files[2], &event, 1, -1); }
static void waits_inotify(void) { read(files[0], bytes, sizeof bytes); }
static void waits_futex(void) { int word = 0; syscall(SYS_futex, &word, FUTEX_WAIT, 0, NULL); }
static void waits_message(void) { msgrcv(msgget(IPC_PRIVATE, 0600), bytes, 1, 0, 0); }
static void waits_ring(void)
{
	next_entry(&ring, IORING_OP_READ, files[0], 1);
	struct io_uring_sqe *sqe = &ring.sqes[0];
	sqe->addr = (uintptr_t)bytes;
	sqe->len = 1;
	sqe->flags = IOSQE_ASYNC;
	ring.sq_array[0] = 0;
	__atomic_store_n(ring.sq_tail, 1, __ATOMIC_RELEASE);
	enter(ring.fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0);
}

static const struct {
	const char *name;
	void (*prepare)(void), (*wait)(void);
} waits[] = {
	{ "read of an empty pipe", empty_pipe, waits_read },
	{ "write to a full pipe", full_pipe, waits_write },
	{ "splice from a socket to a pipe", pipe_and_socket, waits_splice_in },
	{ "splice from a pipe to a full socket", pipe_and_full_socket, waits_splice_out },
	{ "splice from a file to a full pipe", file_and_full_pipe, waits_splice_file },
	{ "splice from a pipe to a full one", two_pipes, waits_splice_pipe },
	{ "tee to a full pipe", two_pipes, waits_tee },
	{ "vmsplice to a full pipe", full_pipe, waits_vmsplice },
	{ "receive from an empty socket", empty_socket, waits_receive },
	{ "send to a full socket", full_socket, waits_send },
	{ "sendfile to a full socket", file_and_full_socket, waits_sendfile },
	{ "accept", listener, waits_accept },
	{ "read of a terminal", terminal, waits_terminal },
	{ "write to a full terminal", full_terminal, waits_write },
	{ "tcdrain", full_terminal, waits_drain },
	{ "flock", locked_file, waits_flock },
	{ "record lock", locked_file, waits_lock },
	{ "epoll_wait", poller, waits_epoll },
	{ "io_uring", ring_and_pipe, waits_ring },
	{ "inotify", watcher, waits_inotify },
	{ "futex", no_files, waits_futex },
	{ "message", no_files, waits_message },
};

/* Calls that other processes make beside the waiting one. */
static void looks_at(int file)
{
	struct stat about;
	int number;
	fstat(file, &about);
	fcntl(file, F_GETFL);
	fcntl(file, F_SETFL, fcntl(file, F_GETFL));
	fcntl(file, F_GETPIPE_SZ);
	ioctl(file, FIONREAD, &number);
	lseek(file, 0, SEEK_CUR);
	poll(&(struct pollfd){ file, POLLIN | POLLOUT, 0 }, 1, 0);
}

static void resizes(int file) { fcntl(file, F_SETPIPE_SZ, 1 << 17); }
static void peeks(int file) { recv(file, bytes, 1, MSG_PEEK | MSG_DONTWAIT); }
static void owns(int file) { fcntl(file, F_SETOWN, getpid()); }
static void syncs(int file) { fsync(file); }

static void reads_now(int file)
{
	fcntl(file, F_SETFL, fcntl(file, F_GETFL) | O_NONBLOCK);
	struct iovec none = { bytes, 0 };
	readv(file, &none, 1);
}

static void watches(int file)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT };
	int made = epoll_create1(0);
	epoll_ctl(made, EPOLL_CTL_ADD, file, &event);
	epoll_wait(made, &event, 1, 0);
	close(made);
}

static void asks_a_ring(int file)
{
	struct ring own;
	open_ring(&own);
	struct io_uring_sqe *sqe = next_entry(&own, IORING_OP_POLL_ADD, file, 1);
	sqe->poll32_events = POLLPRI;
	own.sq_array[0] = 0;
	__atomic_store_n(own.sq_tail, 1, __ATOMIC_RELEASE);
	enter(own.fd, 1, 0, 0, NULL, 0);
}

static void sends_it(int file)
{
	int ends[2];
	sockets(ends);
	union { struct cmsghdr head; char room[CMSG_SPACE(sizeof(int))]; } control = { .head = { CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS } };
	memcpy(CMSG_DATA(&control.head), &file, sizeof file);
	struct msghdr message = { .msg_iov = &(struct iovec){ "x", 1 }, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
	sendmsg(ends[0], &message, MSG_DONTWAIT);
	close(ends[0]);
	close(ends[1]);
}

static void compares(int file) { syscall(SYS_kcmp, waiter, getpid(), 0, file, file); }

static void takes(int file)
{
	int process = (int)syscall(SYS_pidfd_open, waiter, 0);
	close((int)syscall(SYS_pidfd_getfd, process, file, 0));
}

static void opens_again(int file)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/fdinfo/%d", waiter, file);
	int info = open(path, O_RDONLY);
	if (info >= 0)
		read(info, bytes, sizeof bytes);
	snprintf(path, sizeof path, "/proc/%d/fd/%d", waiter, file);
	readlink(path, bytes, sizeof bytes);
	close(open(path, O_RDONLY | O_NONBLOCK));
}

static void reads_about(int file)
{
	static const char *const names[] = { "status", "stat", "statm", "maps", "smaps", "smaps_rollup", "numa_maps", "io", "wchan", "cmdline", "environ",
		"limits", "cgroup", "mountinfo", "oom_score", "schedstat", "auxv", "comm", "personality", "children" };
	char path[64];
	(void)file;
	for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
		snprintf(path, sizeof path, "/proc/%d/%s", waiter, names[i]);
		int about = open(path, O_RDONLY);
		while (about >= 0 && read(about, bytes, sizeof bytes) > 0)
			;
		close(about);
	}
}

static void reaches_into(int file)
{
	(void)file;
	struct iovec here = { bytes, 64 }, there = { files, sizeof files };
	process_vm_readv(waiter, &here, 1, &there, 1, 0);
}

static void sets_of(int file)
{
	struct rlimit limit;
	(void)file;
	syscall(SYS_prlimit64, waiter, RLIMIT_NOFILE, NULL, &limit);
	setpriority(PRIO_PROCESS, waiter, 1);
	cpu_set_t cpus;
	sched_getaffinity(waiter, sizeof cpus, &cpus);
	getpgid(waiter);
	kill(waiter, 0);
}

static void leaves(int file) { close(file); }

static const struct {
	const char *name;
	void (*call)(int file);
} calls[] = {
	{ "looks", looks_at }, { "F_SETPIPE_SZ", resizes }, { "MSG_PEEK", peeks }, { "F_SETOWN", owns }, { "fsync", syncs },
	{ "readv", reads_now }, { "epoll", watches }, { "io_uring", asks_a_ring }, { "SCM_RIGHTS", sends_it }, { "kcmp", compares },
	{ "pidfd_getfd", takes }, { "fdinfo", opens_again }, { "/proc", reads_about }, { "process_vm_readv", reaches_into },
	{ "settings", sets_of }, { "close", leaves },
};

/* Whether the child ends within the time limit for a call. */
static int ends_soon(pid_t child)
{
	int64_t end = now_ms() + PATIENCE;
	while (waitpid(child, NULL, WNOHANG) != child) {
		if (now_ms() >= end)
			return 0;
		usleep(300);
	}
	return 1;
}

/* Runs a call in a child; returns whether the call returned or the child could be killed. */
static int comes_back(const char *wait, const char *name, void (*call)(int), int file)
{
	pid_t child = fork();
	NEED(child >= 0);
	if (!child) {
		call(file);
		_exit(0);
	}
	if (ends_soon(child))
		return 1;
	if (lists)
		printf("# beside %s: %s (file %d) had to be killed\n", wait, name, file);
	kill(child, SIGKILL);
	if (ends_soon(child))
		return 1;
	printf("# beside %s: %s (file %d) cannot be killed\n", wait, name, file);
	fflush(stdout);
	return 0;
}

static void nothing(int file)
{
	(void)file;
	execl("/proc/self/exe", "beside", "-n", NULL);
}

static void beside(unsigned at)
{
	int done = 1;
	char text[160];
	memset(files, -1, sizeof files);
	waits[at].prepare();
	fflush(stdout);
	waiter = fork();
	NEED(waiter >= 0);
	if (!waiter) {
		waits[at].wait();
		_exit(0);
	}
	/* Long enough for the task to start waiting. Calls before that moment are tried, too. */
	sleep_ms(20);
	for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
		int any = files[0] < 0;
		for (int n = 0; n < FILES; n++)
			if (files[n] >= 0 || (any && n == 0))
				done &= comes_back(waits[at].name, calls[i].name, calls[i].call, files[n]);
	}
	snprintf(text, sizeof text, "%s: whatever is done beside it comes back or can be killed", waits[at].name);
	PROMISE(text, done);
	int ends = 1;
	for (int i = 0; i < 3; i++)
		ends &= comes_back(waits[at].name, "another program", nothing, -1);
	snprintf(text, sizeof text, "%s: other programs begin and end", waits[at].name);
	PROMISE(text, ends);
	kill(waiter, SIGKILL);
	snprintf(text, sizeof text, "%s: the one that waits can be killed", waits[at].name);
	PROMISE(text, ends_soon(waiter));
	for (int n = 0; n < FILES; n++)
		if (files[n] >= 0)
			close(files[n]);
}

int main(int count, char **words)
{
	if (count > 1 && !strcmp(words[1], "-n"))
		return 0;
	lists = count > 1 && !strcmp(words[1], "-l");
	for (unsigned at = 0; at < sizeof waits / sizeof *waits; at++)
		beside(at);
	return conclude();
}
