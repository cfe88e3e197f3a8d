/* Signal-driven I/O: the owner of an open file gets a signal when its state changes (O_ASYNC). */
#include "promise.h"
#include "inside.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <termios.h>

#ifndef F_GETOWNER_UIDS
#define F_GETOWNER_UIDS 17
#endif
#ifndef SIOCSPGRP
#define SIOCSPGRP 0x8902
#define SIOCGPGRP 0x8904
#define FIOSETOWN 0x8901
#define FIOGETOWN 0x8903
#endif
#ifndef SI_SIGIO
#define SI_SIGIO (-5)
#endif

#define BAND_IN (POLLIN | POLLRDNORM)
#define BAND_OUT (POLLOUT | POLLWRNORM | POLLWRBAND)
#define BAND_HUP (POLLHUP | POLLERR)

/* A real-time signal: any number of them is queued. */
#define CHOSEN (SIGRTMIN + 3)

static siginfo_t told;

static sigset_t watched(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGIO);
	sigaddset(&set, SIGURG);
	sigaddset(&set, SIGWINCH);
	sigaddset(&set, SIGTRAP);
	sigaddset(&set, CHOSEN);
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

static int is_quiet(void)
{
	return next() == 0;
}

static void forget(void)
{
	while (next())
		;
}

/* Whether `signal` comes, at once or soon. */
static int comes(int signal)
{
	return COMES_TRUE(next() == signal);
}

/* Whether the chosen signal comes with this descriptor, code and events. */
static int tells(int fd, int code, long band)
{
	if (comes(CHOSEN) && told.si_fd == fd && told.si_code == code && told.si_band == band)
		return 1;
	printf("# signal %d fd %d code %d band %#lx\n", told.si_signo, told.si_fd, told.si_code, (long)told.si_band);
	return 0;
}

static int set_flag(int fd, int flag)
{
	return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | flag);
}

static int clear_flag(int fd, int flag)
{
	return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~flag);
}

static int is_async(int fd)
{
	return (fcntl(fd, F_GETFL) & O_ASYNC) != 0;
}

/* Makes the chosen signal report events of `fd` to this process. */
static void tell_me(int fd)
{
	NEED(fcntl(fd, F_SETOWN, getpid()) == 0 && fcntl(fd, F_SETSIG, CHOSEN) == 0);
	NEED(set_flag(fd, O_ASYNC) == 0 && is_async(fd));
}

static void put(int fd, const char *text)
{
	NEED(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
}

static void take(int fd)
{
	char bytes[4096];
	NEED(read(fd, bytes, sizeof bytes) > 0);
}

static int f_setown_ex(int fd, int type, pid_t id)
{
	struct f_owner_ex owner = { type, id };
	return fcntl(fd, F_SETOWN_EX, &owner);
}

/* Whether F_GETOWN_EX says this. */
static int is_owned(int fd, int type, pid_t id)
{
	struct f_owner_ex owner = { -1, -1 };
	return fcntl(fd, F_GETOWN_EX, &owner) == 0 && (int)owner.type == type && owner.pid == id;
}

static void flags(void)
{
	int ends[2], on = 1, off = 0;
	NEED(pipe(ends) == 0);
	PROMISE("F_SETFL sets and clears O_ASYNC of a pipe",
		set_flag(ends[0], O_ASYNC) == 0 && is_async(ends[0]) && !is_async(ends[1]) &&
			clear_flag(ends[0], O_ASYNC) == 0 && !is_async(ends[0]));
	PROMISE("FIOASYNC does, too", ioctl(ends[0], FIOASYNC, &on) == 0 && is_async(ends[0]) &&
					      ioctl(ends[0], FIOASYNC, &on) == 0 && ioctl(ends[0], FIOASYNC, &off) == 0 &&
					      !is_async(ends[0]));
	FAILS_WITH("FIOASYNC reads an int", ioctl(ends[0], FIOASYNC, (int *)8), EFAULT);

	int file = open("plain", O_CREAT | O_RDWR, 0600);
	int others[] = { file, eventfd(0, 0), epoll_create1(0), timerfd_create(CLOCK_MONOTONIC, 0), open("/dev/null", O_RDWR) };
	int quiet = 1, refused = 1;
	for (unsigned i = 0; i < sizeof others / sizeof *others; i++) {
		quiet &= set_flag(others[i], O_ASYNC | O_NONBLOCK) == 0 && !is_async(others[i]) &&
			 fcntl(others[i], F_GETFL) & O_NONBLOCK;
		refused &= ioctl(others[i], FIOASYNC, &on) == -1 && errno == ENOTTY && ioctl(others[i], FIOASYNC, &off) == 0;
		close(others[i]);
	}
	PROMISE("files without signals do not keep O_ASYNC", quiet);
	PROMISE("and refuse FIOASYNC", refused);

	NEED(mkfifo("fifo", 0600) == 0);
	int fifo = open("fifo", O_RDWR | O_ASYNC);
	NEED(fifo >= 0 && fcntl(fifo, F_SETOWN, getpid()) == 0);
	put(fifo, "x");
	PROMISE("open(2) shows O_ASYNC and turns nothing on", is_async(fifo) && is_quiet());
	PROMISE("nor does setting it again", set_flag(fifo, O_ASYNC) == 0 && (put(fifo, "x"), is_quiet()));
	PROMISE("and it is shown for ever", clear_flag(fifo, O_ASYNC) == 0 && is_async(fifo));
	close(fifo);
	int handle = open("fifo", O_PATH);
	FAILS_WITH("O_PATH has no owner", fcntl(handle, F_SETOWN, getpid()), EBADF);
	close(handle);
	close(ends[0]);
	close(ends[1]);
}

/* A sleeping child with this number; -1 if the caller may not choose the number (in a
 * container). */
static pid_t with_number(pid_t number)
{
	struct { uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size; } args = {
		.exit_signal = SIGCHLD, .set_tid = (uintptr_t)&number, .set_tid_size = 1,
	};
	pid_t child = (pid_t)syscall(435 /* clone3 */, &args, sizeof args);
	if (child == 0)
		for (;;)
			pause();
	return child > 0 && COMES_TRUE(is_asleep(child, child)) ? child : -1;
}

static void owners(void)
{
	int ends[2];
	NEED(pipe(ends) == 0);
	int fd = ends[0];
	PROMISE("there is no owner at first", fcntl(fd, F_GETOWN) == 0 && is_owned(fd, F_OWNER_TID, 0) && fcntl(fd, F_GETSIG) == 0);
	PROMISE("a process", fcntl(fd, F_SETOWN, getpid()) == 0 && fcntl(fd, F_GETOWN) == getpid() && is_owned(fd, F_OWNER_PID, getpid()));
	PROMISE("F_SETOWN_EX: a process", f_setown_ex(fd, F_OWNER_PID, getppid()) == 0 && fcntl(fd, F_GETOWN) == getppid());
	PROMISE("a thread", f_setown_ex(fd, F_OWNER_TID, getpid()) == 0 && is_owned(fd, F_OWNER_TID, getpid()) && fcntl(fd, F_GETOWN) == getpid());
	PROMISE("none", fcntl(fd, F_SETOWN, 0) == 0 && fcntl(fd, F_GETOWN) == 0 && is_owned(fd, F_OWNER_PID, 0));
	int ok = 1, status;
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		pause();
		_exit(0);
	}
	NEED(setpgid(child, child) == 0);
	PROMISE("a group is negative", fcntl(fd, F_SETOWN, -child) == 0 && fcntl(fd, F_GETOWN) == -child &&
					       is_owned(fd, F_OWNER_PGRP, child));
	PROMISE("F_SETOWN_EX: a group", f_setown_ex(fd, F_OWNER_PGRP, child) == 0 && is_owned(fd, F_OWNER_PGRP, child));
	NEED(fcntl(ends[1], F_SETOWN, child) == 0);
	NEED(kill(child, SIGKILL) == 0);
	siginfo_t end;
	NEED(waitid(P_PID, child, &end, WEXITED | WNOWAIT) == 0);
	PROMISE("a process that was not waited for is there", fcntl(ends[1], F_GETOWN) == child);
	NEED(waitpid(child, &status, 0) == child);
	PROMISE("an owner that has ended is none", fcntl(ends[1], F_GETOWN) == 0 && is_owned(ends[1], F_OWNER_PID, 0));
	PROMISE("nor is a group", is_owned(fd, F_OWNER_PGRP, 0) && fcntl(fd, F_GETOWN) == 0);
	pid_t again = with_number(child);
	if (again > 0) {
		PROMISE("a process that gets the number is not the owner", again == child && fcntl(ends[1], F_GETOWN) == 0 && is_owned(fd, F_OWNER_PGRP, 0));
		NEED(fcntl(ends[1], F_SETSIG, SIGKILL) == 0 && set_flag(ends[1], O_ASYNC) == 0);
		put(ends[1], "x");
		char byte;
		NEED(read(fd, &byte, 1) == 1);
		PROMISE("and is not signalled", is_asleep(again, again) && waitpid(again, &status, WNOHANG) == 0);
		NEED(kill(again, SIGKILL) == 0 && waitpid(again, &status, 0) == again);
		NEED(fcntl(ends[1], F_SETSIG, 0) == 0 && clear_flag(ends[1], O_ASYNC) == 0);
	}
	FAILS_WITH("a number that means nothing", fcntl(fd, F_SETOWN, child), ESRCH);
	FAILS_WITH("nor as a group", fcntl(fd, F_SETOWN, -child), ESRCH);
	FAILS_WITH("the smallest number", fcntl(fd, F_SETOWN, INT32_MIN), EINVAL);
	FAILS_WITH("an unknown kind", f_setown_ex(fd, 3, getpid()), EINVAL);
	FAILS_WITH("a negative process", f_setown_ex(fd, F_OWNER_PID, -getpid()), ESRCH);
	FAILS_WITH("no address to read", fcntl(fd, F_SETOWN_EX, 8L), EFAULT);
	FAILS_WITH("no address to write", fcntl(fd, F_GETOWN_EX, 8L), EFAULT);
	FAILS_WITH("a signal that there is not", fcntl(fd, F_SETSIG, 65L), EINVAL);
	FAILS_WITH("a negative signal", fcntl(fd, F_SETSIG, -1L), EINVAL);
	for (int signal = 0; signal <= 64; signal++)
		ok &= fcntl(fd, F_SETSIG, signal) == 0 && fcntl(fd, F_GETSIG) == signal;
	PROMISE("F_SETSIG takes all signals", ok);
	int copy = dup(fd);
	PROMISE("copies of a descriptor share owner and signal",
		fcntl(copy, F_SETOWN, getpid()) == 0 && fcntl(copy, F_SETSIG, 7) == 0 && fcntl(fd, F_GETOWN) == getpid() &&
			fcntl(fd, F_GETSIG) == 7 && fcntl(ends[1], F_GETOWN) == 0);
	close(copy);
	uint32_t users[2] = { 7, 7 };
	IN_CHILD(status, if (setresuid(USER, USER + 1, 0) || fcntl(fd, F_SETOWN, getpid())) _exit(1));
	long answer = fcntl(fd, F_GETOWNER_UIDS, users);
	PROMISE("F_GETOWNER_UIDS tells who chose",
		status == 0 && ((answer == 0 && users[0] == USER && users[1] == USER + 1) || (answer == -1 && errno == EINVAL)));
	close(ends[0]);
	close(ends[1]);
}

static void pipes(void)
{
	int ends[2];
	NEED(pipe(ends) == 0);
	put(ends[1], "before");
	NEED(fcntl(ends[0], F_SETOWN, getpid()) == 0 && is_quiet());
	put(ends[1], "x");
	PROMISE("an owner alone is told nothing", is_quiet());
	NEED(fcntl(ends[0], F_SETOWN, 0) == 0 && set_flag(ends[0], O_ASYNC) == 0);
	put(ends[1], "x");
	PROMISE("O_ASYNC alone tells no one", is_quiet());
	NEED(fcntl(ends[0], F_SETOWN, getpid()) == 0);
	put(ends[1], "x");
	PROMISE("a write sends SIGIO by the time it returns", next() == SIGIO && told.si_code == SI_KERNEL && told.si_pid == 0);
	PROMISE("once", is_quiet());
	take(ends[0]);
	PROMISE("a reader is not told of its own read", is_quiet());
	put(ends[1], "x");
	put(ends[1], "x");
	PROMISE("SIGIO is pending once", next() == SIGIO && is_quiet());
	NEED(fcntl(ends[0], F_SETSIG, CHOSEN) == 0);
	for (int i = 0; i < 3; i++)
		put(ends[1], "x");
	int fd = ends[0];
	PROMISE("F_SETSIG: each write queues a signal with descriptor and events",
		tells(fd, POLL_IN, BAND_IN) && tells(fd, POLL_IN, BAND_IN) && tells(fd, POLL_IN, BAND_IN) && is_quiet());
	NEED(fcntl(fd, F_SETSIG, SIGIO) == 0);
	put(ends[1], "x");
	PROMISE("so does SIGIO, when it is asked for", next() == SIGIO && told.si_fd == fd && told.si_code == POLL_IN && told.si_band == BAND_IN);
	NEED(fcntl(fd, F_SETSIG, SIGTRAP) == 0);
	put(ends[1], "x");
	PROMISE("a signal with codes of its own has SI_SIGIO", next() == SIGTRAP && told.si_code == SI_SIGIO && told.si_fd == fd && told.si_band == BAND_IN);
	NEED(fcntl(fd, F_SETSIG, SIGWINCH) == 0);
	put(ends[1], "x");
	put(ends[1], "x");
	PROMISE("another standard signal is pending once", next() == SIGWINCH && told.si_code == POLL_IN && told.si_fd == fd && is_quiet());
	NEED(fcntl(fd, F_SETSIG, CHOSEN) == 0);

	int copy = dup(fd);
	put(ends[1], "x");
	PROMISE("one signal for an open file with two descriptors", tells(fd, POLL_IN, BAND_IN) && is_quiet());
	NEED(close(fd) == 0);
	put(ends[1], "x");
	PROMISE("which goes on with the descriptor that turned it on", tells(fd, POLL_IN, BAND_IN) && is_quiet());
	NEED(clear_flag(copy, O_ASYNC) == 0);
	put(ends[1], "x");
	PROMISE("nothing after it was turned off", is_quiet());
	NEED(set_flag(copy, O_ASYNC) == 0);
	put(ends[1], "x");
	PROMISE("turned on by another descriptor", tells(copy, POLL_IN, BAND_IN));

	tell_me(ends[1]);
	take(copy);
	PROMISE("a read tells the writer of room", tells(ends[1], POLL_OUT, BAND_OUT) && is_quiet());
	put(ends[1], "x");
	PROMISE("each end is told of its own news", tells(copy, POLL_IN, BAND_IN) && is_quiet());
	NEED(clear_flag(copy, O_ASYNC) == 0 && close(copy) == 0);
	PROMISE("a writer is told that the last reader has gone", tells(ends[1], POLL_OUT, BAND_OUT) && is_quiet());
	close(ends[1]);
	PROMISE("a file's end is no news for itself", is_quiet());

	NEED(pipe(ends) == 0);
	tell_me(ends[0]);
	NEED(close(ends[1]) == 0);
	PROMISE("a reader is told that the last writer has gone", tells(ends[0], POLL_IN, BAND_IN) && is_quiet());
	close(ends[0]);

	NEED(pipe(ends) == 0);
	tell_me(ends[0]);
	NEED(close(ends[0]) == 0);
	PROMISE("a reader's end is no news for itself", is_quiet());
	close(ends[1]);

	int fifo = open("fifo", O_RDWR);
	NEED(fifo >= 0);
	tell_me(fifo);
	put(fifo, "x");
	PROMISE("a FIFO that is open for both: bytes", tells(fifo, POLL_IN, BAND_IN) && is_quiet());
	take(fifo);
	PROMISE("and room", tells(fifo, POLL_OUT, BAND_OUT) && is_quiet());
	close(fifo);
}

/* Pages are moved by splice(2), tee(2) and vmsplice(2). */
static void spliced(void)
{
	int one[2], other[2];
	char page[4096] = "page";
	struct iovec part = { page, sizeof page };
	NEED(pipe(one) == 0 && pipe(other) == 0);
	tell_me(one[0]);
	PROMISE("vmsplice", vmsplice(one[1], &part, 1, 0) == 4096 && tells(one[0], POLL_IN, BAND_IN) && is_quiet());
	tell_me(other[0]);
	tell_me(one[1]);
	PROMISE("tee", tee(one[0], other[1], 100, 0) == 100 && tells(other[0], POLL_IN, BAND_IN));
	forget();
	PROMISE("splice between pipes", splice(one[0], NULL, other[1], NULL, 4096, 0) == 4096 && comes(CHOSEN) && comes(CHOSEN));
	int file = open("spliced", O_CREAT | O_RDWR, 0600);
	NEED(clear_flag(other[0], O_ASYNC) == 0 && clear_flag(one[1], O_ASYNC) == 0);
	tell_me(other[1]);
	forget();
	PROMISE("splice to a file", splice(other[0], NULL, file, NULL, 100, 0) == 100 && tells(other[1], POLL_OUT, BAND_OUT));
	loff_t from = 0;
	forget();
	PROMISE("splice from a file", splice(file, &from, one[1], NULL, 10, 0) == 10 && tells(one[0], POLL_IN, BAND_IN));
	close(file);
	close(one[0]);
	close(one[1]);
	close(other[0]);
	close(other[1]);
	forget();
}

static int many[64][2];

static void listeners(void)
{
	NEED(unlink("fifo") == 0 && mkfifo("fifo", 0600) == 0);
	int fifo = open("fifo", O_RDWR), readers[40], all = 1;
	for (int i = 0; i < 40; i++) {
		readers[i] = open("fifo", O_RDONLY | O_NONBLOCK);
		NEED(readers[i] >= 0);
		tell_me(readers[i]);
	}
	put(fifo, "x");
	char seen[1024] = { 0 };
	for (int i = 0; i < 40; i++) {
		all &= comes(CHOSEN) && told.si_fd >= 0 && told.si_fd < 1024 && !seen[told.si_fd];
		seen[told.si_fd & 1023] = 1;
	}
	for (int i = 0; i < 40; i++)
		all &= seen[readers[i]];
	PROMISE("forty open files of a pipe are told once each", all && is_quiet());
	for (int i = 0; i < 40; i++)
		close(readers[i]);
	close(fifo);
	forget();
	for (int i = 0; i < 64; i++) {
		NEED(pipe(many[i]) == 0);
		tell_me(many[i][0]);
	}
	for (int i = 0; i < 64; i++)
		put(many[i][1], "x");
	for (int i = 0; i < 64; i++) {
		all &= comes(CHOSEN) && told.si_fd == many[i][0];
		close(many[i][0]);
		close(many[i][1]);
	}
	PROMISE("signals of many files come in the order of their news", all);
	forget();
}

static void queues(void)
{
	int ends[2], status;
	NEED(pipe(ends) == 0);
	tell_me(ends[0]);
	put(ends[1], "x");
	put(ends[1], "x");
	sigset_t set = watched();
	int signals = signalfd(-1, &set, SFD_NONBLOCK);
	struct signalfd_siginfo info[2];
	PROMISE("a signalfd tells descriptor and events",
		read(signals, info, sizeof info) == sizeof info && info[0].ssi_signo == (unsigned)CHOSEN && info[1].ssi_fd == ends[0] &&
			info[0].ssi_code == POLL_IN && info[0].ssi_band == BAND_IN && info[0].ssi_pid == 0);
	close(signals);
	IN_CHILD(status, struct rlimit none = { 0, 0 }; NEED(setrlimit(RLIMIT_SIGPENDING, &none) == 0);
		 NEED(fcntl(ends[0], F_SETOWN, getpid()) == 0); put(ends[1], "x");
		 if (next() != SIGIO || told.si_code != SI_KERNEL || !is_quiet()) _exit(1));
	PROMISE("where no signal can be queued, SIGIO comes", status == 0);
	close(ends[0]);
	close(ends[1]);
	forget();
}

static int pipe_of_thread[2];
static pid_t thread_id;
static int thread_got;

static void *waits(void *unused)
{
	(void)unused;
	sigset_t set = watched();
	siginfo_t info;
	struct timespec minute = { 60, 0 };
	__atomic_store_n(&thread_id, syscall(SYS_gettid), __ATOMIC_SEQ_CST);
	int number = sigtimedwait(&set, &info, &minute);
	thread_got = number == CHOSEN && info.si_fd == pipe_of_thread[0];
	return NULL;
}

static void targets(void)
{
	int *ends = pipe_of_thread;
	NEED(pipe(ends) == 0);
	tell_me(ends[0]);
	pthread_t thread;
	NEED(pthread_create(&thread, NULL, waits, NULL) == 0);
	NEED(COMES_TRUE(__atomic_load_n(&thread_id, __ATOMIC_SEQ_CST)));
	NEED(f_setown_ex(ends[0], F_OWNER_TID, thread_id) == 0);
	put(ends[1], "x");
	NEED(pthread_join(thread, NULL) == 0);
	PROMISE("F_OWNER_TID: that thread is told, and no other", thread_got && is_quiet());
	PROMISE("a thread that has ended is no owner", COMES_TRUE(is_owned(ends[0], F_OWNER_TID, 0)));
	put(ends[1], "x");
	PROMISE("and gets nothing", is_quiet());

	/* Two children in a process group, and one outside it. */
	int said[2], status;
	pid_t children[3], group = 0;
	NEED(pipe(said) == 0);
	for (int i = 0; i < 3; i++) {
		children[i] = fork();
		NEED(children[i] >= 0);
		if (children[i] == 0) {
			sigset_t set = watched();
			struct timespec time = { i == 2 ? 0 : 60, 0 };
			char byte = 'a' + i;
			if (i == 2)
				pause();
			if (sigtimedwait(&set, &told, &time) == CHOSEN && told.si_fd == ends[0])
				put(said[1], &byte);
			_exit(0);
		}
		NEED(setpgid(children[i], i < 2 ? group : 0) == 0);
		group = children[0];
	}
	NEED(fcntl(ends[0], F_SETOWN, -group) == 0);
	put(ends[1], "x");
	NEED(waitpid(children[0], &status, 0) == children[0] && waitpid(children[1], &status, 0) == children[1]);
	char both[2] = { 0 };
	PROMISE("a group: each process in it is told", read(said[0], both, 1) == 1 && read(said[0], both + 1, 1) == 1 && both[0] != both[1]);
	PROMISE("and no other", is_quiet() && kill(children[2], SIGKILL) == 0 && waitpid(children[2], &status, 0) == children[2]);
	close(said[0]);
	close(said[1]);
	close(ends[0]);
	close(ends[1]);
	forget();
}

static int waits_in_namespace(void *unused)
{
	(void)unused;
	for (;;)
		pause();
	return 0;
}

/* The first process of a PID namespace is protected from such signals. */
static void shielded(void)
{
	static char stack[65536] __attribute__((aligned(16)));
	int ends[2], status;
	NEED(pipe(ends) == 0);
	pid_t child = clone(waits_in_namespace, stack + sizeof stack, CLONE_NEWPID | SIGCHLD, NULL);
	if (child < 0)
		return;
	NEED(COMES_TRUE(is_asleep(child, child)) && fcntl(ends[0], F_SETOWN, child) == 0);
	NEED(fcntl(ends[0], F_SETSIG, SIGKILL) == 0 && set_flag(ends[0], O_ASYNC) == 0);
	put(ends[1], "x");
	sleep_ms(20);
	PROMISE("a file's signal does not end the first process of a namespace", waitpid(child, &status, WNOHANG) == 0 && is_asleep(child, child));
	NEED(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
	close(ends[0]);
	close(ends[1]);
}

/* The user who set the owner needs the permission to signal it; the user who writes does not. */
static void permissions(void)
{
	int ends[2], status;
	NEED(pipe(ends) == 0);
	tell_me(ends[0]);
	pid_t parent = getpid();
	IN_CHILD(status, if (setresuid(USER, USER, USER)) _exit(1); put(ends[1], "x"));
	PROMISE("a writer needs no permission", status == 0 && tells(ends[0], POLL_IN, BAND_IN));
	forget();
	IN_CHILD(status, if (setresuid(USER, USER, USER) || fcntl(ends[0], F_SETOWN, parent)) _exit(1));
	NEED(status == 0 && fcntl(ends[0], F_GETOWN) == parent);
	forget();
	put(ends[1], "x");
	PROMISE("an owner that another user chose is told nothing", is_quiet());
	IN_CHILD(status, if (setresuid(USER, 0, 0) || fcntl(ends[0], F_SETOWN, parent)) _exit(1));
	forget();
	put(ends[1], "x");
	PROMISE("root by its effective ID may choose any", status == 0 && tells(ends[0], POLL_IN, BAND_IN));
	IN_CHILD(status, if (setresuid(0, USER, 0) || fcntl(ends[0], F_SETOWN, parent)) _exit(1));
	forget();
	put(ends[1], "x");
	PROMISE("its real ID is compared with the target's", status == 0 && tells(ends[0], POLL_IN, BAND_IN));
	close(ends[0]);
	close(ends[1]);
	forget();
}

static void sharing(char *own)
{
	int ends[2], status;
	NEED(pipe(ends) == 0);
	tell_me(ends[0]);
	pid_t parent = getpid();
	IN_CHILD(status, if (!is_async(ends[0]) || fcntl(ends[0], F_GETOWN) != parent) _exit(1); close(ends[0]); put(ends[1], "x"));
	forget();
	put(ends[1], "x");
	PROMISE("a fork shares it, and its close ends nothing", status == 0 && tells(ends[0], POLL_IN, BAND_IN));
	IN_CHILD(status, clear_flag(ends[0], O_ASYNC));
	forget();
	put(ends[1], "x");
	PROMISE("a child that turns it off does so for all", is_quiet() && !is_async(ends[0]));
	NEED(set_flag(ends[0], O_ASYNC) == 0);
	char number[2][16];
	sprintf(number[0], "%d", ends[0]);
	sprintf(number[1], "%d", ends[1]);
	IN_CHILD(status, NEED(fcntl(ends[0], F_SETOWN, getpid()) == 0); execl("/proc/self/exe", own, number[0], number[1], NULL); _exit(9));
	PROMISE("execve keeps all of it", status == 0);
	close(ends[0]);
	forget();
	PROMISE("the open file's end ends it", signal(SIGPIPE, SIG_IGN) != SIG_ERR && write(ends[1], "x", 1) == -1 && is_quiet());
	signal(SIGPIPE, SIG_DFL);
	close(ends[1]);
}

/* Runs in the program that `sharing` executes. */
static int executed(char **arguments)
{
	int reader = atoi(arguments[1]), writer = atoi(arguments[2]);
	if (!is_async(reader) || fcntl(reader, F_GETOWN) != getpid() || fcntl(reader, F_GETSIG) != CHOSEN)
		return 1;
	put(writer, "x");
	return !tells(reader, POLL_IN, BAND_IN);
}

static void unix_sockets(void)
{
	int pair[2];
	char big[65536] = { 0 };
	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	tell_me(pair[0]);
	put(pair[1], "x");
	PROMISE("a stream of AF_UNIX: bytes", tells(pair[0], POLL_IN, BAND_IN) && is_quiet());
	put(pair[0], "x");
	take(pair[1]);
	PROMISE("no news of room where there was room", is_quiet());
	NEED(set_flag(pair[0], O_NONBLOCK) == 0);
	while (write(pair[0], big, sizeof big) > 0)
		;
	int is_full = errno == EAGAIN;
	PROMISE("none while there is none", is_full && is_quiet());
	NEED(set_flag(pair[1], O_NONBLOCK) == 0);
	while (read(pair[1], big, sizeof big) > 0)
		;
	PROMISE("room after there was none", tells(pair[0], POLL_OUT, BAND_OUT));
	forget();
	NEED(shutdown(pair[1], SHUT_WR) == 0);
	PROMISE("the peer's stream has ended", tells(pair[0], POLL_IN, BAND_IN) && is_quiet());
	NEED(close(pair[1]) == 0);
	PROMISE("the peer has gone", tells(pair[0], POLL_HUP, BAND_HUP) && is_quiet());
	close(pair[0]);

	NEED(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
	tell_me(pair[0]);
	put(pair[1], "one");
	put(pair[1], "two");
	PROMISE("datagrams: one signal each", tells(pair[0], POLL_IN, BAND_IN) && tells(pair[0], POLL_IN, BAND_IN) && is_quiet());
	close(pair[0]);
	close(pair[1]);
	PROMISE("a socket's own end is no news", is_quiet());

	NEED(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
	tell_me(pair[0]);
	put(pair[1], "one");
	PROMISE("packets", tells(pair[0], POLL_IN, BAND_IN) && is_quiet());
	close(pair[0]);
	close(pair[1]);

	struct sockaddr_un name = { AF_UNIX, "listener" };
	int listener = socket(AF_UNIX, SOCK_STREAM, 0), caller = socket(AF_UNIX, SOCK_STREAM, 0);
	NEED(bind(listener, (void *)&name, sizeof name) == 0 && listen(listener, 5) == 0);
	tell_me(listener);
	NEED(connect(caller, (void *)&name, sizeof name) == 0);
	PROMISE("a listener is told of a connection", tells(listener, POLL_IN, BAND_IN) && is_quiet());
	int served = accept(listener, NULL, NULL);
	PROMISE("what it accepts is not told by signals", served >= 0 && !is_async(served) && fcntl(served, F_GETOWN) == 0);
	close(served);
	close(caller);
	close(listener);
	forget();
}

static void inet_sockets(void)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof name;
	int listener = socket(AF_INET, SOCK_STREAM, 0), caller = socket(AF_INET, SOCK_STREAM, 0);
	NEED(bind(listener, (void *)&name, sizeof name) == 0 && listen(listener, 5) == 0);
	NEED(getsockname(listener, (void *)&name, &length) == 0);
	tell_me(listener);
	tell_me(caller);
	NEED(connect(caller, (void *)&name, sizeof name) == 0);
	int heard = comes(CHOSEN), first = told.si_fd, first_code = told.si_code;
	heard &= comes(CHOSEN);
	PROMISE("TCP: a connection is news for both sides",
		heard && first != told.si_fd && (first == caller ? first_code : told.si_code) == POLL_OUT &&
			(first == listener ? first_code : told.si_code) == POLL_IN);
	forget();
	int served = accept(listener, NULL, NULL);
	NEED(served >= 0);
	put(served, "x");
	PROMISE("bytes", tells(caller, POLL_IN, BAND_IN));
	take(caller);
	forget();
	NEED(shutdown(served, SHUT_WR) == 0);
	PROMISE("the end of the stream", tells(caller, POLL_IN, BAND_IN));
	close(served);
	close(caller);
	close(listener);
	forget();

	int one = socket(AF_INET, SOCK_DGRAM, 0), other = socket(AF_INET, SOCK_DGRAM, 0);
	name.sin_port = 0;
	NEED(bind(one, (void *)&name, sizeof name) == 0 && getsockname(one, (void *)&name, &length) == 0);
	tell_me(one);
	NEED(sendto(other, "x", 1, 0, (void *)&name, sizeof name) == 1 && sendto(other, "x", 1, 0, (void *)&name, sizeof name) == 1);
	PROMISE("UDP: datagrams", tells(one, POLL_IN, BAND_IN) && tells(one, POLL_IN, BAND_IN));
	int owner = getpid(), read_back = 0;
	PROMISE("SIOCSPGRP and FIOSETOWN choose the owner of a socket",
		ioctl(other, SIOCSPGRP, &owner) == 0 && ioctl(other, SIOCGPGRP, &read_back) == 0 && read_back == owner &&
			fcntl(other, F_GETOWN) == owner && (owner = -getpgrp(), 1) && ioctl(other, FIOSETOWN, &owner) == 0 &&
			ioctl(other, FIOGETOWN, &read_back) == 0 && read_back == owner && is_owned(other, F_OWNER_PGRP, getpgrp()));
	FAILS_WITH("they read an int", ioctl(other, SIOCSPGRP, (int *)8), EFAULT);
	owner = 0x7ffffff0;
	FAILS_WITH("a number that means nothing", ioctl(other, SIOCSPGRP, &owner), ESRCH);
	int ends[2];
	NEED(pipe(ends) == 0);
	FAILS_WITH("no pipe has them", ioctl(ends[0], SIOCSPGRP, &owner), ENOTTY);
	close(ends[0]);
	close(ends[1]);
	close(one);
	close(other);
	forget();
}

static void terminals(void)
{
	int master = posix_openpt(O_RDWR | O_NOCTTY);
	NEED(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
	int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
	struct termios line;
	NEED(slave >= 0 && tcgetattr(slave, &line) == 0);
	line.c_lflag &= ~ECHO;
	NEED(tcsetattr(slave, TCSANOW, &line) == 0);
	NEED(set_flag(slave, O_ASYNC) == 0);
	PROMISE("a terminal without foreground group is the caller's at once", fcntl(slave, F_GETOWN) == getpid());
	NEED(fcntl(slave, F_SETSIG, CHOSEN) == 0);
	put(master, "line\n");
	PROMISE("a line is news", tells(slave, POLL_IN, BAND_IN));
	take(slave);
	forget();
	put(master, "half");
	sleep_ms(20);
	PROMISE("half a line is not", is_quiet());
	put(master, "\n");
	PROMISE("its end is", tells(slave, POLL_IN, BAND_IN));
	take(slave);
	line.c_lflag &= ~ICANON;
	NEED(tcsetattr(slave, TCSANOW, &line) == 0);
	forget();
	put(master, "x");
	PROMISE("any byte in raw mode", tells(slave, POLL_IN, BAND_IN));
	forget();
	NEED(clear_flag(slave, O_ASYNC) == 0 && fcntl(master, F_SETSIG, CHOSEN) == 0 && set_flag(master, O_ASYNC) == 0);
	PROMISE("so is a master", fcntl(master, F_GETOWN) == getpid());
	put(slave, "out");
	PROMISE("output is news for the master", tells(master, POLL_IN, BAND_IN));
	close(master);
	close(slave);
	forget();
}

static void others(void)
{
	int watcher = inotify_init1(IN_NONBLOCK);
	NEED(watcher >= 0 && inotify_add_watch(watcher, ".", IN_CREATE | IN_DELETE) > 0);
	tell_me(watcher);
	NEED(close(open("new", O_CREAT | O_WRONLY, 0600)) == 0);
	PROMISE("inotify: an event", tells(watcher, POLL_IN, BAND_IN) && is_quiet());
	NEED(unlink("new") == 0);
	PROMISE("and the next", tells(watcher, POLL_IN, BAND_IN) && is_quiet());
	int second = inotify_init1(IN_NONBLOCK);
	NEED(second >= 0 && inotify_add_watch(second, ".", IN_CREATE | IN_ONESHOT) > 0);
	tell_me(second);
	NEED(close(open("new", O_CREAT | O_WRONLY, 0600)) == 0);
	int seen[2] = { 0, 0 };
	while (next() == CHOSEN)
		seen[told.si_fd == second]++;
	PROMISE("two instances, one of which is told of its end", seen[0] == 1 && seen[1] == 2);
	close(second);
	close(watcher);
	int random = open("/dev/urandom", O_RDONLY);
	PROMISE("random numbers keep O_ASYNC", set_flag(random, O_ASYNC) == 0 && is_async(random) && clear_flag(random, O_ASYNC) == 0 && !is_async(random));
	close(random);
}

static volatile sig_atomic_t handled;
static volatile int handled_fd;

static void on_signal(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)context;
	handled_fd = info->si_fd;
	handled++;
}

static void handlers(void)
{
	int ends[2], status;
	NEED(pipe(ends) == 0);
	tell_me(ends[0]);
	struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO };
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, CHOSEN);
	NEED(sigaction(CHOSEN, &action, NULL) == 0 && sigprocmask(SIG_UNBLOCK, &set, NULL) == 0);
	put(ends[1], "x");
	PROMISE("a handler runs before write(2) returns", handled == 1 && handled_fd == ends[0]);
	NEED(sigprocmask(SIG_BLOCK, &set, NULL) == 0 && signal(CHOSEN, SIG_DFL) != SIG_ERR);
	IN_CHILD(status, sigset_t own = watched(); sigprocmask(SIG_UNBLOCK, &own, NULL); fcntl(ends[0], F_SETSIG, 0);
		 fcntl(ends[0], F_SETOWN, getpid()); put(ends[1], "x"));
	PROMISE("without one, SIGIO ends the process", WIFSIGNALED(status) && WTERMSIG(status) == SIGIO);
	close(ends[0]);
	close(ends[1]);
	forget();
}

int main(int count, char **arguments)
{
	sigset_t set = watched();
	NEED(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	if (count == 3)
		return executed(arguments);
	char folder[] = "/tmp/sigio-XXXXXX";
	NEED(mkdtemp(folder) && chdir(folder) == 0);
	flags();
	owners();
	pipes();
	spliced();
	listeners();
	queues();
	targets();
	shielded();
	permissions();
	sharing(arguments[0]);
	unix_sockets();
	inet_sockets();
	terminals();
	others();
	handlers();
	return conclude();
}
