/*
 * Message queues of POSIX: mq_overview(7), the file system mqueue, limits. Run as root. The
 * program calls the system calls directly: a C library removes the slash from a name.
 */
#include "promise.h"
#include <mqueue.h>
#include <linux/netlink.h>
#include <sys/epoll.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/vfs.h>

#define NAME "conformance"
#define PLACE "/tmp/mqueue-conformance"

static int open_queue(const char *name, int flags, mode_t mode, const struct mq_attr *attributes)
{
	return syscall(SYS_mq_open, name, flags, mode, attributes);
}

static int unlink_queue(const char *name)
{
	return syscall(SYS_mq_unlink, name);
}

static int make(const char *name, int flags, long messages, long bytes)
{
	struct mq_attr attributes = { .mq_maxmsg = messages, .mq_msgsize = bytes };
	return open_queue(name, O_CREAT | flags, 0600, &attributes);
}

static int fresh(long messages, long bytes)
{
	unlink_queue(NAME);
	int queue = make(NAME, O_EXCL | O_RDWR, messages, bytes);
	NEED(queue >= 0);
	return queue;
}

static int put(int queue, const char *text, unsigned priority)
{
	return syscall(SYS_mq_timedsend, queue, text, strlen(text), priority, NULL);
}

/* Whether the next message is `text` with `priority`. */
static int gives(int queue, const char *text, unsigned priority)
{
	char bytes[8192];
	unsigned seen = 99;
	long length = syscall(SYS_mq_timedreceive, queue, bytes, sizeof bytes, &seen, NULL);
	return length == (long)strlen(text) && !memcmp(bytes, text, length) && seen == priority;
}

static long messages_in(int queue)
{
	struct mq_attr now = { 0 };
	return syscall(SYS_mq_getsetattr, queue, NULL, &now) == 0 ? now.mq_curmsgs : -1;
}

static void opening(void)
{
	int status;
	char longest[257] = { 0 };
	memset(longest, 'n', 255);
	unlink_queue(NAME);
	FAILS_WITH("a queue that is not there is not opened", open_queue(NAME, O_RDWR, 0, NULL), ENOENT);
	FAILS_WITH("nor unlinked", unlink_queue(NAME), ENOENT);
	int queue = open_queue(NAME, O_CREAT | O_EXCL | O_RDWR, 0640, NULL);
	NEED(queue >= 0);
	struct mq_attr now;
	PROMISE("a queue without attributes has the default size", syscall(SYS_mq_getsetattr, queue, NULL, &now) == 0 && now.mq_maxmsg == 10 && now.mq_msgsize == 8192 && now.mq_curmsgs == 0 && now.mq_flags == 0);
	struct stat file;
	PROMISE("it is a file of 80 bytes with the mode that was asked for", fstat(queue, &file) == 0 && S_ISREG(file.st_mode) && (file.st_mode & 07777) == 0640 && file.st_size == 80 && file.st_nlink == 1);
	PROMISE("its descriptor is closed by execve", fcntl(queue, F_GETFD) == FD_CLOEXEC);
	FAILS_WITH("it is made once", open_queue(NAME, O_CREAT | O_EXCL | O_RDWR, 0600, NULL), EEXIST);
	int again = open_queue(NAME, O_RDONLY | O_NONBLOCK, 0, NULL);
	PROMISE("and opened as often as one likes", again >= 0);
	PROMISE("which is another description", syscall(SYS_mq_getsetattr, again, NULL, &now) == 0 && now.mq_flags == O_NONBLOCK && fcntl(again, F_GETFL) & O_NONBLOCK && !(fcntl(queue, F_GETFL) & O_NONBLOCK));
	FAILS_WITH("who reads does not send", put(again, "x", 0), EBADF);
	int writer = open_queue(NAME, O_WRONLY | O_CREAT, 0600, NULL);
	char bytes[8192];
	FAILS_WITH("who writes does not receive", syscall(SYS_mq_timedreceive, writer, bytes, sizeof bytes, NULL, NULL), EBADF);
	PROMISE("what one sends the other receives", put(writer, "hello", 3) == 0 && gives(again, "hello", 3));
	FAILS_WITH("an access mode of 3 is invalid", open_queue(NAME, 3, 0, NULL), EINVAL);
	FAILS_WITH("a name has no slash", open_queue("/" NAME, O_RDWR, 0, NULL), EACCES);
	FAILS_WITH("nor one within", open_queue("a/b", O_RDWR | O_CREAT, 0600, NULL), EACCES);
	FAILS_WITH("and is not a dot", open_queue(".", O_RDWR | O_CREAT, 0600, NULL), EACCES);
	FAILS_WITH("nor two", unlink_queue(".."), EACCES);
	FAILS_WITH("nor nothing", open_queue("", O_RDWR, 0, NULL), ENOENT);
	FAILS_WITH("nor elsewhere", open_queue((char *)8, O_RDWR, 0, NULL), EFAULT);
	FAILS_WITH("attributes elsewhere are a bad address", open_queue(NAME, O_RDWR, 0, (void *)8), EFAULT);
	longest[255] = 'n';
	FAILS_WITH("a name has 255 bytes at most", open_queue(longest, O_RDWR | O_CREAT, 0600, NULL), ENAMETOOLONG);
	longest[255] = 0;
	int far = make(longest, O_RDWR, 1, 1);
	PROMISE("and those it may have", far >= 0 && unlink_queue(longest) == 0);
	long sizes[][2] = { { 0, 1 }, { 1, 0 }, { -1, 1 }, { 1, -1 }, { 65537, 1 }, { 1, (16 << 20) + 1 } };
	int wrong = 0;
	for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
		wrong += make("wrong", O_RDWR, sizes[i][0], sizes[i][1]) != -1 || errno != EINVAL;
	PROMISE("sizes that no queue has are invalid", wrong == 0 && unlink_queue("wrong") == -1);
	char link[64], target[300] = { 0 };
	snprintf(link, sizeof link, "/proc/self/fd/%d", queue);
	PROMISE("/proc shows its name", readlink(link, target, sizeof target - 1) > 0 && !strcmp(target, "/" NAME));
	IN_CHILD(status, NEED(setresgid(4711, 4711, 4711) == 0 && setresuid(4711, 4711, 4711) == 0);
		if (open_queue(NAME, O_RDONLY, 0, NULL) != -1 || errno != EACCES) _exit(1);
		if (unlink_queue(NAME) != -1 || (errno != EPERM && errno != EACCES)) _exit(2);
		int own = open_queue("own", O_CREAT | O_EXCL | O_RDWR, 0666, NULL);
		struct stat its;
		if (own < 0 || fstat(own, &its) || its.st_uid != 4711 || its.st_gid != 4711) _exit(3);
		if (unlink_queue("own")) _exit(4);
		if (make("large", O_RDWR, 100000, 1) != -1 || errno != EINVAL) _exit(5));
	PROMISE("others open what they may, and unlink and make their own", status == 0);
	if (status)
		printf("# step %d\n", WEXITSTATUS(status));
	IN_CHILD(status, umask(027); int masked = open_queue("masked", O_CREAT | O_RDWR, 0666, NULL); struct stat its;
		_exit(masked < 0 || fstat(masked, &its) || (its.st_mode & 0777) != 0640 || unlink_queue("masked")));
	PROMISE("the umask counts", status == 0);
	PROMISE("a queue without a name", unlink_queue(NAME) == 0 && open_queue(NAME, O_RDWR, 0, NULL) == -1 && errno == ENOENT);
	PROMISE("lives while it is open", put(queue, "still", 1) == 0 && gives(again, "still", 1) && fstat(queue, &file) == 0 && file.st_nlink == 0);
	int other = fresh(3, 10);
	PROMISE("beside a new one of that name", put(other, "new", 1) == 0 && messages_in(queue) == 0 && messages_in(other) == 1);
	close(other);
	close(queue);
	close(again);
	close(writer);
	close(far);
}

static void order(void)
{
	int queue = fresh(9, 16);
	char bytes[16];
	unsigned priority;
	PROMISE("the highest priority comes first", put(queue, "low", 1) == 0 && put(queue, "high", 32767) == 0 && put(queue, "mid", 5) == 0 && gives(queue, "high", 32767));
	PROMISE("of one priority the oldest", put(queue, "mid2", 5) == 0 && gives(queue, "mid", 5) && gives(queue, "mid2", 5) && gives(queue, "low", 1));
	PROMISE("a message may be empty", put(queue, "", 0) == 0 && gives(queue, "", 0));
	PROMISE("or as long as the queue says", put(queue, "0123456789abcdef", 2) == 0 && gives(queue, "0123456789abcdef", 2));
	FAILS_WITH("not longer", put(queue, "0123456789abcdefg", 2), EMSGSIZE);
	FAILS_WITH("a priority is below 32768", put(queue, "x", 32768), EINVAL);
	PROMISE("a receiver needs no place for it", put(queue, "x", 7) == 0 && syscall(SYS_mq_timedreceive, queue, bytes, 16, NULL, NULL) == 1);
	FAILS_WITH("but room for any message", (put(queue, "x", 7), syscall(SYS_mq_timedreceive, queue, bytes, 15, NULL, NULL)), EMSGSIZE);
	FAILS_WITH("a text elsewhere is not sent", syscall(SYS_mq_timedsend, queue, 8, 5, 0, NULL), EFAULT);
	FAILS_WITH("nor received elsewhere", syscall(SYS_mq_timedreceive, queue, 8, 16, &priority, NULL), EFAULT);
	PROMISE("and is gone then", messages_in(queue) == 0);
	int pipe_ends[2];
	NEED(pipe(pipe_ends) == 0);
	FAILS_WITH("a pipe is no queue", put(pipe_ends[1], "x", 0), EBADF);
	FAILS_WITH("and has no attributes", syscall(SYS_mq_getsetattr, pipe_ends[0], NULL, NULL), EBADF);
	FAILS_WITH("nothing is written to a queue as to a file", write(queue, "x", 1), EINVAL);
	struct mq_attr new = { .mq_flags = O_NONBLOCK, .mq_maxmsg = 77 }, old;
	PROMISE("attributes change whether calls wait, and tell the old", syscall(SYS_mq_getsetattr, queue, &new, &old) == 0 && old.mq_flags == 0 && old.mq_maxmsg == 9 && syscall(SYS_mq_getsetattr, queue, NULL, &old) == 0 && old.mq_flags == O_NONBLOCK && old.mq_maxmsg == 9 && old.mq_msgsize == 16);
	FAILS_WITH("nothing else", (new.mq_flags = O_APPEND, syscall(SYS_mq_getsetattr, queue, &new, NULL)), EINVAL);
	FAILS_WITH("an empty queue that does not wait", syscall(SYS_mq_timedreceive, queue, bytes, 16, NULL, NULL), EAGAIN);
	for (int i = 0; i < 9; i++)
		NEED(put(queue, "full", i) == 0);
	FAILS_WITH("and a full one", put(queue, "x", 0), EAGAIN);
	close(queue);
	close(pipe_ends[0]);
	close(pipe_ends[1]);

	int wrong = 0;
	queue = fresh(10, 8);
	uint32_t state = 12345, count = 0, kept[10], next = 0;
	for (int step = 0; step < 5000; step++) {
		state = state * 1664525 + 1013904223;
		if (state >> 31 ? count < 10 : count == 0) {
			uint32_t text[2] = { next, state >> 20 & 3 };
			wrong += syscall(SYS_mq_timedsend, queue, text, 8, text[1], NULL) != 0;
			kept[count++] = next++ << 2 | text[1];
		} else if (count > 0) {
			uint32_t best = 0, text[2];
			for (uint32_t i = 1; i < count; i++)
				if ((kept[i] & 3) > (kept[best] & 3))
					best = i;
			wrong += syscall(SYS_mq_timedreceive, queue, text, 8, &priority, NULL) != 8 || (text[0] << 2 | priority) != kept[best];
			memmove(&kept[best], &kept[best + 1], (--count - best) * sizeof *kept);
		}
	}
	PROMISE("5000 steps go as with a list", wrong == 0 && messages_in(queue) == (long)count);
	close(queue);
}

static volatile sig_atomic_t handled;

static void handle(int signal)
{
	(void)signal;
	handled++;
}

static pid_t start(int nice_value, int (*life)(int), int queue)
{
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		setpriority(PRIO_PROCESS, 0, nice_value);
		_exit(life(queue));
	}
	NEED(COMES_TRUE(is_asleep(child, child)));
	return child;
}

static int receive_number(int queue)
{
	char bytes[16];
	return syscall(SYS_mq_timedreceive, queue, bytes, 16, NULL, NULL) == 1 ? bytes[0] : 0;
}

static int send_nice(int queue)
{
	char text[2] = { 'k' + getpriority(PRIO_PROCESS, 0), 0 };
	return put(queue, text, 4) ? 1 : 0;
}

static int ended(pid_t child)
{
	int status;
	NEED(waitpid(child, &status, 0) == child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void waiting(void)
{
	int queue = fresh(2, 16), status;
	char bytes[16];
	struct timespec end = soon(CLOCK_REALTIME, 40), past = { 1, 0 }, wrong = { 0, 1000000000 }, now;
	FAILS_WITH("a receive ends when time is up", syscall(SYS_mq_timedreceive, queue, bytes, 16, NULL, &end), ETIMEDOUT);
	clock_gettime(CLOCK_REALTIME, &now);
	PROMISE("not before", now.tv_sec > end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec >= end.tv_nsec));
	FAILS_WITH("or was before", syscall(SYS_mq_timedreceive, queue, bytes, 16, NULL, &past), ETIMEDOUT);
	FAILS_WITH("a time that is none is invalid", syscall(SYS_mq_timedreceive, queue, bytes, 16, NULL, &wrong), EINVAL);
	FAILS_WITH("though nobody would wait", syscall(SYS_mq_timedsend, queue, "x", 1, 0, &wrong), EINVAL);
	PROMISE("a time that is past does not matter then", syscall(SYS_mq_timedsend, queue, "x", 1, 0, &past) == 0 && gives(queue, "x", 0));
	pid_t first = start(5, receive_number, queue), second = start(0, receive_number, queue), third = start(0, receive_number, queue);
	PROMISE("who waits gets a message at once", put(queue, "\1", 0) == 0 && messages_in(queue) == 0);
	PROMISE("the one with the lowest nice value", ended(second) == 1);
	PROMISE("then the first", put(queue, "\2", 0) == 0 && ended(third) == 2);
	PROMISE("then the others", put(queue, "\3", 0) == 0 && ended(first) == 3);
	NEED(put(queue, "1", 9) == 0 && put(queue, "2", 9) == 0);
	first = start(5, send_nice, queue), second = start(1, send_nice, queue), third = start(1, send_nice, queue);
	end = soon(CLOCK_REALTIME, 20);
	FAILS_WITH("a send to a full queue ends when time is up", syscall(SYS_mq_timedsend, queue, "x", 1, 0, &end), ETIMEDOUT);
	PROMISE("who waits for room has it when a message goes", gives(queue, "1", 9) && messages_in(queue) == 2);
	PROMISE("again by nice value", ended(second) == 0 && gives(queue, "2", 9) && ended(third) == 0);
	PROMISE("and order", gives(queue, "l", 4) && ended(first) == 0 && gives(queue, "l", 4) && gives(queue, "p", 4) && messages_in(queue) == 0);

	struct sigaction action = { .sa_handler = handle };
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		sigaction(SIGUSR1, &action, NULL);
		_exit(syscall(SYS_mq_timedreceive, queue, bytes, 16, NULL, NULL) == -1 ? errno : 0);
	}
	NEED(COMES_TRUE(is_asleep(child, child)));
	kill(child, SIGUSR1);
	PROMISE("a signal ends a wait", ended(child) == EINTR);
	fflush(stdout);
	child = fork();
	NEED(child >= 0);
	if (child == 0) {
		action.sa_flags = SA_RESTART;
		sigaction(SIGUSR1, &action, NULL);
		_exit(syscall(SYS_mq_timedreceive, queue, bytes, 16, NULL, NULL) == 1 && handled ? 0 : 1);
	}
	NEED(COMES_TRUE(is_asleep(child, child)));
	kill(child, SIGUSR1);
	sleep_ms(50);
	PROMISE("or it goes on, as one likes", put(queue, "x", 0) == 0 && ended(child) == 0);
	child = start(0, receive_number, queue);
	kill(child, SIGKILL);
	NEED(waitpid(child, &status, 0) == child);
	PROMISE("who was killed waits no more", put(queue, "x", 0) == 0 && messages_in(queue) == 1);
	close(queue);
}

static void polling(void)
{
	int queue = fresh(1, 16);
	struct pollfd look = { .fd = queue, .events = POLLIN | POLLOUT };
	PROMISE("an empty queue takes messages", poll(&look, 1, 0) == 1 && look.revents == POLLOUT);
	PROMISE("a full one has some", put(queue, "x", 0) == 0 && poll(&look, 1, 0) == 1 && look.revents == POLLIN);
	NEED(gives(queue, "x", 0));
	look.events = POLLIN;
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0)
		_exit(poll(&look, 1, 20000) == 1 && look.revents == POLLIN ? 0 : 1);
	NEED(COMES_TRUE(is_asleep(child, child)));
	PROMISE("poll waits for a message", put(queue, "x", 0) == 0 && ended(child) == 0);
	look.events = POLLOUT;
	fflush(stdout);
	child = fork();
	NEED(child >= 0);
	if (child == 0)
		_exit(poll(&look, 1, 20000) == 1 && look.revents == POLLOUT ? 0 : 1);
	NEED(COMES_TRUE(is_asleep(child, child)));
	PROMISE("and for room", gives(queue, "x", 0) && ended(child) == 0);
	int watch = epoll_create1(0);
	struct epoll_event event = { EPOLLIN | EPOLLET, { .u32 = 5 } }, seen;
	PROMISE("epoll watches it", watch >= 0 && epoll_ctl(watch, EPOLL_CTL_ADD, queue, &event) == 0 && epoll_wait(watch, &seen, 1, 0) == 0 && put(queue, "y", 0) == 0 && epoll_wait(watch, &seen, 1, 1000) == 1 && seen.data.u32 == 5);
	close(watch);
	close(queue);
}

static long notify(int queue, int how, int signal, void *value)
{
	struct sigevent event = { .sigev_notify = how, .sigev_signo = signal, .sigev_value.sival_ptr = value };
	return syscall(SYS_mq_notify, queue, &event);
}

static void notifying(void)
{
	int queue = fresh(4, 16), status;
	sigset_t set;
	siginfo_t info;
	struct timespec none = { 0, 0 }, long_time = { 20, 0 };
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	sigprocmask(SIG_BLOCK, &set, NULL);
	PROMISE("a process registers for a signal", notify(queue, SIGEV_SIGNAL, SIGUSR2, (void *)0x1234) == 0);
	FAILS_WITH("as the only one", notify(queue, SIGEV_SIGNAL, SIGUSR2, NULL), EBUSY);
	IN_CHILD(status, _exit(notify(queue, SIGEV_NONE, 0, NULL) == -1 && errno == EBUSY ? 0 : 1));
	PROMISE("of all processes", status == 0);
	IN_CHILD(status, _exit(put(queue, "one", 0)));
	pid_t sender = 0;
	PROMISE("a message to the empty queue sends it", status == 0 && sigtimedwait(&set, &info, &long_time) == SIGUSR2 && info.si_code == SI_MESGQ && info.si_value.sival_ptr == (void *)0x1234 && info.si_uid == 0 && (sender = info.si_pid) != getpid() && sender > 0);
	PROMISE("once", gives(queue, "one", 0) && put(queue, "two", 0) == 0 && sigtimedwait(&set, &info, &none) == -1 && errno == EAGAIN);
	PROMISE("a queue with messages sends none", notify(queue, SIGEV_SIGNAL, SIGUSR2, NULL) == 0 && put(queue, "three", 0) == 0 && sigtimedwait(&set, &info, &none) == -1);
	PROMISE("nor does a message that somebody waits for", gives(queue, "two", 0) && gives(queue, "three", 0) && ({
		pid_t child = start(0, receive_number, queue);
		put(queue, "\7", 0) == 0 && ended(child) == 7;
	}) && sigtimedwait(&set, &info, &none) == -1);
	PROMISE("the next does", put(queue, "four", 0) == 0 && sigtimedwait(&set, &info, &long_time) == SIGUSR2 && info.si_pid == getpid() && gives(queue, "four", 0));
	PROMISE("a registration is taken back", notify(queue, SIGEV_SIGNAL, SIGUSR2, NULL) == 0 && syscall(SYS_mq_notify, queue, NULL) == 0 && put(queue, "five", 0) == 0 && sigtimedwait(&set, &info, &none) == -1 && gives(queue, "five", 0));
	PROMISE("to take none back is no error", syscall(SYS_mq_notify, queue, NULL) == 0);
	IN_CHILD(status, _exit(notify(queue, SIGEV_SIGNAL, SIGUSR1, NULL) ? 1 : 0));
	PROMISE("a process' end takes it back", status == 0 && COMES_TRUE(notify(queue, SIGEV_NONE, 0, NULL) == 0));
	int copy = dup(queue);
	PROMISE("and so does closing any descriptor of the queue", close(copy) == 0 && notify(queue, SIGEV_NONE, 0, NULL) == 0);
	PROMISE("SIGEV_NONE keeps others away until a message comes", put(queue, "six", 0) == 0 && gives(queue, "six", 0) && notify(queue, SIGEV_SIGNAL, 0, NULL) == 0 && syscall(SYS_mq_notify, queue, NULL) == 0);
	FAILS_WITH("there is no such signal", notify(queue, SIGEV_SIGNAL, 65, NULL), EINVAL);
	FAILS_WITH("nor such a way", notify(queue, 9, 0, NULL), EINVAL);
	FAILS_WITH("an event elsewhere is a bad address", syscall(SYS_mq_notify, queue, 8), EFAULT);
	FAILS_WITH("a pipe is no queue", notify(0, SIGEV_NONE, 0, NULL), EBADF);
	char cookie[32] = "the helper's", seen[64];
	int socket_ = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 0), unix_ = socket(AF_UNIX, SOCK_DGRAM, 0);
	NEED(socket_ >= 0 && unix_ >= 0);
	PROMISE("a helper thread is told by a socket", notify(queue, SIGEV_THREAD, socket_, cookie) == 0 && put(queue, "seven", 0) == 0 && recv(socket_, seen, sizeof seen, 0) == 32 && !memcmp(seen, cookie, 31) && seen[31] == 1);
	PROMISE("of the end of its registration, too", gives(queue, "seven", 0) && notify(queue, SIGEV_THREAD, socket_, cookie) == 0 && syscall(SYS_mq_notify, queue, NULL) == 0 && recv(socket_, seen, sizeof seen, 0) == 32 && seen[31] == 2);
	FAILS_WITH("the socket is of AF_NETLINK", notify(queue, SIGEV_THREAD, unix_, cookie), EINVAL);
	FAILS_WITH("and a socket", notify(queue, SIGEV_THREAD, queue, cookie), ENOTSOCK);
	FAILS_WITH("and open", notify(queue, SIGEV_THREAD, 999, cookie), EBADF);
	FAILS_WITH("and what it is told is somewhere", notify(queue, SIGEV_THREAD, socket_, (void *)8), EFAULT);
	close(socket_);
	close(unix_);
	close(queue);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
}

static int started;

static void thread_told(union sigval value)
{
	__atomic_store_n(&started, value.sival_int, __ATOMIC_SEQ_CST);
}

static void library(void)
{
	mq_unlink("/" NAME);
	struct mq_attr size = { .mq_maxmsg = 3, .mq_msgsize = 64 };
	mqd_t queue = mq_open("/" NAME, O_CREAT | O_RDWR, 0600, &size);
	struct sigevent event = { .sigev_notify = SIGEV_THREAD, .sigev_value.sival_int = 77, .sigev_notify_function = thread_told };
	char bytes[64];
	PROMISE("the C library's calls work", queue >= 0 && mq_send(queue, "text", 4, 8) == 0 && mq_receive(queue, bytes, sizeof bytes, NULL) == 4);
	PROMISE("and so do its notifications by thread", mq_notify(queue, &event) == 0 && mq_send(queue, "wake", 4, 0) == 0 && COMES_TRUE(__atomic_load_n(&started, __ATOMIC_SEQ_CST) == 77));
	PROMISE("mq_unlink takes the name away", mq_close(queue) == 0 && mq_unlink("/" NAME) == 0 && mq_open("/" NAME, O_RDONLY) == (mqd_t)-1 && errno == ENOENT);
}

static int read_text(const char *path, char *text, size_t size)
{
	int file = open(path, O_RDONLY);
	ssize_t length = file < 0 ? -1 : read(file, text, size - 1);
	if (file >= 0)
		close(file);
	text[length > 0 ? length : 0] = 0;
	return length > 0;
}

static void file_system(void)
{
	char text[256], line[256];
	struct stat status;
	struct statfs about;
	mkdir(PLACE, 0700);
	if (mount("none", PLACE, "mqueue", 0, NULL)) {
		/* In a container mounting may be forbidden. */
		printf("# mount: %s\n", strerror(errno));
		rmdir(PLACE);
		return;
	}
	PROMISE("the directory of queues is world-writable and sticky", stat(PLACE, &status) == 0 && status.st_mode == (S_IFDIR | 01777));
	PROMISE("its file system has a number of its own", statfs(PLACE, &about) == 0 && about.f_type == 0x19800202);
	int queue = fresh(4, 16);
	PROMISE("a queue is there by its name", stat(PLACE "/" NAME, &status) == 0 && S_ISREG(status.st_mode) && status.st_size == 80);
	PROMISE("and says how much is in it", put(queue, "12345", 1) == 0 && put(queue, "678", 2) == 0 && read_text(PLACE "/" NAME, text, sizeof text) && (snprintf(line, sizeof line, "QSIZE:%-10d NOTIFY:%-5d SIGNO:%-5d NOTIFY_PID:%-6d\n", 8, 0, 0, 0), !strcmp(text, line)));
	PROMISE("and who is told", notify(queue, SIGEV_SIGNAL, SIGUSR1, NULL) == 0 && lseek(queue, 0, SEEK_SET) == 0 && read(queue, text, sizeof text) > 0 && (snprintf(line, sizeof line, "QSIZE:%-10d NOTIFY:%-5d SIGNO:%-5d NOTIFY_PID:%-6d\n", 8, 0, SIGUSR1, getpid()), !strncmp(text, line, strlen(line))));
	syscall(SYS_mq_notify, queue, NULL);
	int file = open(PLACE "/made", O_CREAT | O_EXCL | O_RDWR, 0600);
	PROMISE("a file that is made there is a queue", file >= 0 && put(file, "x", 3) == 0 && gives(file, "x", 3) && open_queue("made", O_RDWR, 0, NULL) >= 0);
	FAILS_WITH("there are no directories", mkdir(PLACE "/dir", 0700), EPERM);
	FAILS_WITH("nor symbolic links", symlink("x", PLACE "/link"), EPERM);
	FAILS_WITH("nor other names", rename(PLACE "/made", PLACE "/other"), EPERM);
	PROMISE("a name is removed", unlink(PLACE "/made") == 0 && open_queue("made", O_RDWR, 0, NULL) == -1 && errno == ENOENT);
	PROMISE("the mode can be changed", chmod(PLACE "/" NAME, 0644) == 0 && stat(PLACE "/" NAME, &status) == 0 && (status.st_mode & 0777) == 0644);
	PROMISE("a mount shows the same queues", umount2(PLACE, MNT_DETACH) == 0 && mount("none", PLACE, "mqueue", 0, NULL) == 0 && stat(PLACE "/" NAME, &status) == 0);
	umount2(PLACE, MNT_DETACH);
	rmdir(PLACE);
	close(file);
	close(queue);
}

static void limits(void)
{
	int status;
	struct rlimit few = { 200000, 200000 };
	IN_CHILD(status, NEED(setrlimit(RLIMIT_MSGQUEUE, &few) == 0 && setresuid(4712, 4712, 4712) == 0);
		/* Each queue is charged 10 * 8192 + 20 * 48 bytes. */
		int first = make("limit1", O_RDWR, 10, 8192), second = make("limit2", O_RDWR, 10, 8192), third = make("limit3", O_RDWR, 10, 8192);
		if (first < 0 || second < 0) _exit(1);
		if (third != -1) _exit(2);
		close(first);
		if (make("limit3", O_RDWR, 10, 8192) != -1) _exit(3);
		if (unlink_queue("limit1")) _exit(4);
		if (make("limit3", O_RDWR, 10, 8192) < 0) _exit(5);
		unlink_queue("limit2");
		unlink_queue("limit3"));
	PROMISE("a user's queues have as many bytes as RLIMIT_MSGQUEUE says, open or not", status == 0);
	if (status)
		printf("# step %d\n", WEXITSTATUS(status));
	IN_CHILD(status, NEED(setrlimit(RLIMIT_MSGQUEUE, &few) == 0 && setresuid(4712, 4712, 4712) == 0);
		make("limit1", O_RDWR, 10, 8192);
		make("limit2", O_RDWR, 10, 8192);
		int third = make("limit3", O_RDWR, 10, 8192), error = errno;
		unlink_queue("limit1");
		unlink_queue("limit2");
		_exit(third == -1 && error == EMFILE ? 0 : 1));
	PROMISE("beyond is EMFILE", status == 0);
	char text[32];
	int right = 1;
	static const struct { const char *name; long least; } all[] = { { "queues_max", 0 }, { "msg_max", 1 }, { "msgsize_max", 128 }, { "msg_default", 1 }, { "msgsize_default", 128 } };
	for (int i = 0; i < 5; i++) {
		char path[64];
		snprintf(path, sizeof path, "/proc/sys/fs/mqueue/%s", all[i].name);
		right &= read_text(path, text, sizeof text) && atol(text) >= all[i].least;
	}
	PROMISE("/proc/sys/fs/mqueue has the limits", right);
	int file = open("/proc/sys/fs/mqueue/msg_max", O_RDWR);
	if (file >= 0 && read_text("/proc/sys/fs/mqueue/msg_max", text, sizeof text)) {
		FAILS_WITH("which have limits themselves", write(file, "0", 1), EINVAL);
		FAILS_WITH("above, too", pwrite(file, "65537", 5, 0), EINVAL);
		if (pwrite(file, "7", 1, 0) == 1) {
			IN_CHILD(status, NEED(setresuid(4712, 4712, 4712) == 0);
				if (make("limit4", O_RDWR, 8, 8) != -1 || errno != EINVAL || make("limit4", O_RDWR, 7, 8) < 0) _exit(1);
				unlink_queue("limit4"));
			PROMISE("and count for those without rights", status == 0);
			(void)!pwrite(file, text, strlen(text), 0);
		}
	}
	close(file);
	file = open("/proc/sys/fs/mqueue/queues_max", O_RDWR);
	if (file >= 0 && read_text("/proc/sys/fs/mqueue/queues_max", text, sizeof text) && pwrite(file, "0", 1, 0) == 1) {
		IN_CHILD(status, NEED(setresuid(4712, 4712, 4712) == 0); _exit(make("limit5", O_RDWR, 1, 1) == -1 && errno == ENOSPC ? 0 : 1));
		PROMISE("where there are as many queues as there may be none is made", status == 0 && pwrite(file, text, strlen(text), 0) > 0);
	}
	close(file);
}

int main(void)
{
	NEED(geteuid() == 0);
	opening();
	order();
	waiting();
	polling();
	notifying();
	library();
	file_system();
	limits();
	unlink_queue(NAME);
	return conclude();
}
