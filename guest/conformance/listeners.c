/*
 * seccomp_unotify(2): a process that decides on another one's system calls. Its descriptor, the
 * calls that it is told of, its answers, the descriptors that it adds, and the end of either side.
 */
#include "promise.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV 32
#endif
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define SAY(what) BPF_STMT(BPF_RET | BPF_K, what)
#define ABOUT(call, what) { LOAD(nr), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), SAY(what), SAY(SECCOMP_RET_ALLOW) }
/* The call that listeners are asked about. */
#define ASKED SYS_getpgid

static struct sock_filter asks[] = ABOUT(ASKED, SECCOMP_RET_USER_NOTIF), refuses[] = ABOUT(ASKED, SECCOMP_RET_ERRNO | EXDEV);

static long filter(unsigned long flags, struct sock_filter *code)
{
	struct sock_fprog program = { 4, code };
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

static long listen_with(unsigned long flags)
{
	return filter(SECCOMP_FILTER_FLAG_NEW_LISTENER | flags, asks);
}

/* A child that is listened to. */
struct target {
	pid_t pid;
	int listener;
};

/* Called by a child before it has a filter. */
static void (*prepare)(void);

/* Forks a child that installs the filter and runs `body`, whose result is its exit status. */
static struct target start(unsigned long flags, int (*body)(void))
{
	int told[2], taken[2], process, descriptor;
	struct target target;
	fflush(stdout);
	NEED(pipe2(told, O_CLOEXEC) == 0 && pipe2(taken, O_CLOEXEC) == 0 && (target.pid = fork()) >= 0);
	if (target.pid == 0) {
		char byte;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(taken[1]);
		if (prepare)
			prepare();
		descriptor = listen_with(flags);
		NEED(descriptor >= 0 && write(told[1], &descriptor, sizeof descriptor) == sizeof descriptor);
		/* Ends when the parent has the listener. */
		NEED(read(taken[0], &byte, 1) == 0);
		close(descriptor);
		_exit(body());
	}
	NEED(read(told[0], &descriptor, sizeof descriptor) == sizeof descriptor);
	NEED((process = syscall(SYS_pidfd_open, target.pid, 0)) >= 0);
	NEED((target.listener = syscall(SYS_pidfd_getfd, process, descriptor, 0)) >= 0);
	close(process);
	for (int end = 0; end < 2; end++) {
		close(told[end]);
		close(taken[end]);
	}
	return target;
}

static int status_of(struct target *target)
{
	int status;
	NEED(waitpid(target->pid, &status, 0) == target->pid);
	close(target->listener);
	return status;
}

static long receive(int listener, struct seccomp_notif *call)
{
	memset(call, 0, sizeof *call);
	return ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, call);
}

static long answer(int listener, uint64_t id, long value, int error, unsigned flags)
{
	struct seccomp_notif_resp response = { .id = id, .val = value, .error = error, .flags = flags };
	return ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response);
}

static int is_valid(int listener, uint64_t id)
{
	return ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &id) == 0;
}

static int events(int listener)
{
	struct pollfd polled = { listener, POLLIN | POLLOUT, 0 };
	return poll(&polled, 1, 0) < 0 ? -1 : polled.revents & (POLLIN | POLLOUT | POLLHUP);
}

static int asks_once(void)
{
	return syscall(ASKED, 0x123456789) == 1234 ? 0 : 1;
}

static int asks_thrice(void)
{
	if (syscall(ASKED, 0) != -1 || errno != EOWNERDEAD)
		return 1;
	if (syscall(ASKED, 0) != getpgrp())
		return 2;
	return syscall(ASKED, 0) == -2000000 ? 0 : 3;
}

static void installing(void)
{
	struct seccomp_notif_sizes sizes = { 0 };
	unsigned action = SECCOMP_RET_USER_NOTIF;
	int status;
	PROMISE("the sizes of its structures", syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &sizes) == 0 &&
		sizes.seccomp_notif == 80 && sizes.seccomp_notif_resp == 24 && sizes.seccomp_data == 64);
	FAILS_WITH("have no flags", syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 1, &sizes), EINVAL);
	FAILS_WITH("are written", syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, 8), EFAULT);
	PROMISE("the action is available", syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0);
	FAILS_WITH("a listener for all threads cannot be told from a thread", listen_with(SECCOMP_FILTER_FLAG_TSYNC), EINVAL);
	FAILS_WITH("waiting for a listener needs one", filter(SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, asks), EINVAL);
	IN_CHILD(status, {
		char name[64] = { 0 };
		char path[64];
		int both = SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_TSYNC_ESRCH;
		int listener = listen_with(both);
		snprintf(path, sizeof path, "/proc/self/fd/%d", listener);
		if (listener < 0 || fcntl(listener, F_GETFD) != FD_CLOEXEC || readlink(path, name, sizeof name - 1) < 0)
			_exit(1);
		if (strcmp(name, "anon_inode:seccomp notify") != 0 || fcntl(listener, F_GETFL) != O_RDWR)
			_exit(2);
		if (listen_with(0) != -1 || errno != EBUSY)
			_exit(3);
		if (filter(0, asks) != 0 || syscall(ASKED, 0) != -1 || errno != ENOSYS)
			_exit(4);
		close(listener);
		if (syscall(ASKED, 0) != -1 || errno != ENOSYS)
			_exit(5);
		_exit(listen_with(0) < 0 ? 6 : 0);
	});
	PROMISE("a chain of filters has one open listener", status == 0);
	IN_CHILD(status, {
		struct rlimit none = { 0, 0 };
		setrlimit(RLIMIT_NOFILE, &none);
		if (listen_with(0) != -1 || errno != EMFILE)
			_exit(1);
		_exit(syscall(ASKED, 0) != getpgrp());
	});
	PROMISE("a filter whose listener finds no descriptor is not installed", status == 0);
	IN_CHILD(status, {
		if (filter(0, refuses) != 0 || listen_with(0) < 0)
			_exit(1);
		_exit(syscall(ASKED, 0) != -1 || errno != EXDEV);
	});
	PROMISE("a refusal is stricter than a listener", status == 0);
}

static void answers(void)
{
	struct seccomp_notif call;
	struct target target = start(0, asks_once);
	int listener = target.listener;
	struct pollfd polled = { listener, POLLIN, 0 };
	NEED(poll(&polled, 1, 60000) == 1);
	PROMISE("a call can be received", events(listener) == POLLIN);
	void *unwritable = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(&call, 0, sizeof call);
	call.flags = 1;
	FAILS_WITH("into zeros", ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call), EINVAL);
	FAILS_WITH("in memory", ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, 8), EFAULT);
	FAILS_WITH("that can be written", ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, unwritable), EFAULT);
	PROMISE("if not, it can be received again", events(listener) == POLLIN && receive(listener, &call) == 0);
	PROMISE("with its thread and the call", call.pid == (unsigned)target.pid && call.flags == 0 && call.data.nr == ASKED &&
		call.data.arch == AUDIT_ARCH_X86_64 && call.data.args[0] == 0x123456789 && call.data.instruction_pointer != 0);
	PROMISE("then it can be answered", events(listener) == POLLOUT && is_valid(listener, call.id));
	FAILS_WITH("no other call", answer(listener, call.id + 1, 0, 0, 0), ENOENT);
	FAILS_WITH("with known flags", answer(listener, call.id, 0, 0, 2), EINVAL);
	FAILS_WITH("a call that is made has no other result", answer(listener, call.id, 1, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE), EINVAL);
	FAILS_WITH("nor error", answer(listener, call.id, 0, -EPERM, SECCOMP_USER_NOTIF_FLAG_CONTINUE), EINVAL);
	FAILS_WITH("an answer is read", ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, 8), EFAULT);
	FAILS_WITH("there are four requests", ioctl(listener, 0x2107, &call), EINVAL);
	PROMISE("the answer is taken", answer(listener, call.id, 1234, 0, 0) == 0);
	PROMISE("once", answer(listener, call.id, 1234, 0, 0) == -1 && (errno == EINPROGRESS || errno == ENOENT));
	PROMISE("afterwards the call is over", !is_valid(listener, call.id) && errno == ENOENT);
	listener = dup(listener);
	PROMISE("and has the result", status_of(&target) == 0 && COMES_TRUE(events(listener) == POLLHUP));
	close(listener);

	target = start(0, asks_thrice);
	int taken = receive(target.listener, &call) == 0 && answer(target.listener, call.id, 7, -EOWNERDEAD, 0) == 0;
	taken &= receive(target.listener, &call) == 0 && answer(target.listener, call.id, 0, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE) == 0;
	taken &= receive(target.listener, &call) == 0 && answer(target.listener, call.id, -2000000, 0, 0) == 0;
	PROMISE("an error, the call itself, and any value are results", taken && status_of(&target) == 0);
}

static int asks_after_close(void)
{
	if (syscall(ASKED, 0) != -1 || errno != ENOSYS)
		return 1;
	return syscall(ASKED, 0) != -1 || errno != ENOSYS;
}

static int asks_forever(void)
{
	while (syscall(ASKED, 0) != 77)
		;
	return 0;
}

static void ends(void)
{
	struct seccomp_notif call;
	for (int received = 0; received < 2; received++) {
		struct target target = start(0, asks_after_close);
		if (received)
			NEED(receive(target.listener, &call) == 0);
		else
			NEED(COMES_TRUE(events(target.listener) == POLLIN));
		close(target.listener);
		PROMISE(received ? "or one that was received" : "a listener that is closed answers a new call with ENOSYS", status_of(&target) == 0);
	}
	struct target target = start(0, asks_forever);
	NEED(receive(target.listener, &call) == 0 && kill(target.pid, SIGKILL) == 0);
	PROMISE("a call of a killed process ends", COMES_TRUE(!is_valid(target.listener, call.id)) && errno == ENOENT);
	FAILS_WITH("no answer reaches it", answer(target.listener, call.id, 1, 0, 0), ENOENT);
	int status, listener = dup(target.listener);
	PROMISE("and the process is gone", (status = status_of(&target), WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
	PROMISE("nobody else will ask", COMES_TRUE(events(listener) == POLLHUP));
	close(listener);

	target = start(0, asks_forever);
	NEED(COMES_TRUE(events(target.listener) == POLLIN) && kill(target.pid, SIGKILL) == 0);
	NEED(COMES_TRUE(events(target.listener) != POLLIN));
	FAILS_WITH("a call that ended before it was received is none", receive(target.listener, &call), ENOENT);
	status_of(&target);
}

static int has_added(void)
{
	int first = syscall(ASKED, 0);
	if (first < 0 || fcntl(first, F_GETFD) != 0 || write(first, "a", 1) != 1)
		return 1;
	int second = syscall(ASKED, 0);
	return second != 100 || fcntl(second, F_GETFD) != FD_CLOEXEC || write(second, "b", 1) != 1;
}

static long add(int listener, uint64_t id, int source, int flags, int number, int number_flags)
{
	struct seccomp_notif_addfd added = { .id = id, .flags = flags, .srcfd = source, .newfd = number, .newfd_flags = number_flags };
	return ioctl(listener, SECCOMP_IOCTL_NOTIF_ADDFD, &added);
}

static void descriptors(void)
{
	struct seccomp_notif call;
	struct target target = start(0, has_added);
	int listener = target.listener, ends[2];
	char bytes[3] = { 0 };
	uint64_t longer[4] = { 0 };
	NEED(pipe2(ends, O_CLOEXEC) == 0 && receive(listener, &call) == 0);
	FAILS_WITH("a descriptor is added to a call that waits", add(listener, call.id + 1, ends[1], 0, 0, 0), ENOENT);
	FAILS_WITH("from an open one", add(listener, call.id, 999, 0, 0, 0), EBADF);
	FAILS_WITH("with known flags", add(listener, call.id, ends[1], 4, 0, 0), EINVAL);
	FAILS_WITH("of both kinds", add(listener, call.id, ends[1], 0, 0, O_NONBLOCK), EINVAL);
	FAILS_WITH("its number is asked for", add(listener, call.id, ends[1], 0, 100, 0), EINVAL);
	FAILS_WITH("below the limit", add(listener, call.id, ends[1], SECCOMP_ADDFD_FLAG_SETFD, 1 << 30, 0), EBADF);
	FAILS_WITH("a short structure is none", ioctl(listener, _IOC(_IOC_WRITE, '!', 3, 16), longer), EINVAL);
	longer[0] = call.id;
	longer[1] = (uint64_t)ends[1] << 32;
	longer[3] = 1;
	FAILS_WITH("a long one ends with zeros", ioctl(listener, _IOC(_IOC_WRITE, '!', 3, 32), longer), E2BIG);
	longer[3] = 0;
	int number = ioctl(listener, _IOC(_IOC_WRITE, '!', 3, 32), longer);
	PROMISE("then it is taken", number >= 0 && is_valid(listener, call.id));
	PROMISE("the call goes on with its answer", answer(listener, call.id, number, 0, 0) == 0 && receive(listener, &call) == 0);
	PROMISE("a descriptor is put at a number", add(listener, call.id, ends[0], SECCOMP_ADDFD_FLAG_SETFD, 100, 0) == 100);
	PROMISE("in place of another, and is the answer",
		add(listener, call.id, ends[1], SECCOMP_ADDFD_FLAG_SETFD | SECCOMP_ADDFD_FLAG_SEND, 100, O_CLOEXEC) == 100);
	PROMISE("the only one", add(listener, call.id, ends[1], 0, 0, 0) == -1 && (errno == EINPROGRESS || errno == ENOENT));
	close(ends[1]);
	PROMISE("they are the files that were added", status_of(&target) == 0 && read(ends[0], bytes, 3) == 2 && strcmp(bytes, "ab") == 0);
	PROMISE("and no other process has them", read(ends[0], bytes, 1) == 0);
	close(ends[0]);
}

static volatile sig_atomic_t caught;

static void on_signal(int number)
{
	caught = number;
}

static int asks_under(int flags)
{
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = flags };
	sigaction(SIGUSR1, &action, NULL);
	long result = syscall(ASKED, 0);
	return !caught ? 99 : result == 5 ? 5 : errno;
}

static int asks_interruptibly(void)
{
	return asks_under(0);
}

static int asks_again(void)
{
	return asks_under(SA_RESTART);
}

static void signals(void)
{
	struct seccomp_notif call, again;
	struct target target = start(0, asks_interruptibly);
	NEED(receive(target.listener, &call) == 0 && kill(target.pid, SIGUSR1) == 0);
	PROMISE("a signal interrupts a call that waits", COMES_TRUE(!is_valid(target.listener, call.id)));
	PROMISE("which fails with EINTR", WEXITSTATUS(status_of(&target)) == EINTR);

	target = start(0, asks_again);
	NEED(receive(target.listener, &call) == 0 && kill(target.pid, SIGUSR1) == 0);
	PROMISE("or is made again", receive(target.listener, &again) == 0 && again.id != call.id);
	FAILS_WITH("the first is over", answer(target.listener, call.id, 6, 0, 0), ENOENT);
	PROMISE("the second is answered", answer(target.listener, again.id, 5, 0, 0) == 0 && WEXITSTATUS(status_of(&target)) == 5);

	target = start(SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, asks_interruptibly);
	NEED(receive(target.listener, &call) == 0 && kill(target.pid, SIGUSR1) == 0);
	sleep_ms(50);
	PROMISE("a call that waits for its answer can be protected from signals", answer(target.listener, call.id, 5, 0, 0) == 0);
	PROMISE("which come after it", WEXITSTATUS(status_of(&target)) == 5);

	target = start(SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, asks_forever);
	NEED(receive(target.listener, &call) == 0 && kill(target.pid, SIGKILL) == 0);
	PROMISE("but not from SIGKILL", COMES_TRUE(!is_valid(target.listener, call.id)));
	status_of(&target);
}

static struct target below;

static void start_below(void)
{
	prepare = NULL;
	below = start(0, asks_once);
}

/* Answers the child's call with the answer to a call of its own. */
static int answers_with_answer(void)
{
	struct seccomp_notif call;
	if (receive(below.listener, &call) != 0)
		return 1;
	return answer(below.listener, call.id, syscall(ASKED, 0), 0, 0) != 0 || status_of(&below) != 0;
}

static void nested(void)
{
	struct seccomp_notif call;
	prepare = start_below;
	struct target target = start(0, answers_with_answer);
	prepare = NULL;
	NEED(receive(target.listener, &call) == 0);
	PROMISE("a listener is listened to", call.pid == (unsigned)target.pid && answer(target.listener, call.id, 1234, 0, 0) == 0);
	PROMISE("and passes the answer on", status_of(&target) == 0);
}

static void *asks_beside(void *value)
{
	return syscall(ASKED, 0) == (long)value ? NULL : value;
}

static int asks_in_threads(void)
{
	pthread_t threads[8];
	long wrong = 0;
	for (long i = 0; i < 8; i++)
		NEED(pthread_create(&threads[i], NULL, asks_beside, (void *)(1000 + i % 2)) == 0);
	for (int i = 0; i < 8; i++) {
		void *result;
		pthread_join(threads[i], &result);
		wrong |= result != NULL;
	}
	return wrong;
}

static int has_asking_child(void)
{
	pid_t child = fork();
	int status;
	if (child == 0)
		_exit(syscall(ASKED, 0) != 1000 + getpid() % 2);
	return waitpid(child, &status, 0) != child || status != 0 || syscall(ASKED, 0) != 1000 + getpid() % 2;
}

static void many(void)
{
	struct seccomp_notif calls[8];
	struct target target = start(0, asks_in_threads);
	int listener = target.listener, all = 1;
	for (int i = 0; i < 8; i++)
		all &= receive(listener, &calls[i]) == 0;
	for (int i = 0; i < 8; i++)
		for (int j = 0; j < i; j++)
			all &= calls[i].id != calls[j].id && calls[i].pid != calls[j].pid;
	PROMISE("threads wait beside each other", all && events(listener) == POLLOUT);
	/* The last first, each with the value that its thread expects. */
	unsigned first = ~0u;
	for (int i = 0; i < 8; i++)
		first = calls[i].pid < first ? calls[i].pid : first;
	for (int i = 7; i >= 0; i--)
		all &= answer(listener, calls[i].id, (calls[i].pid - first) % 2 ? 1001 : 1000, 0, 0) == 0;
	PROMISE("each has its answer", all && status_of(&target) == 0);

	target = start(0, has_asking_child);
	NEED(receive(target.listener, &calls[0]) == 0);
	PROMISE("a child asks the same listener", calls[0].pid != (unsigned)target.pid);
	NEED(answer(target.listener, calls[0].id, 1000 + calls[0].pid % 2, 0, 0) == 0 && receive(target.listener, &calls[1]) == 0);
	PROMISE("after it, its parent", calls[1].pid == (unsigned)target.pid);
	PROMISE("both have answers", answer(target.listener, calls[1].id, 1000 + calls[1].pid % 2, 0, 0) == 0 && status_of(&target) == 0);
}

int main(void)
{
	NEED(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	installing();
	answers();
	ends();
	descriptors();
	signals();
	many();
	nested();
	return conclude();
}
