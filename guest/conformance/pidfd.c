/* Descriptors of processes: pidfd_open(2), pidfd_send_signal(2), pidfd_getfd(2), clone(2),
 * waitid(2). */
#include "promise.h"

#include <linux/sched.h>
#include <sys/epoll.h>
#include <sys/prctl.h>

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

static int pidfd_open(pid_t pid, unsigned flags)
{
	return syscall(SYS_pidfd_open, pid, flags);
}

static int send(int pidfd, int signal, void *info)
{
	return syscall(SYS_pidfd_send_signal, pidfd, signal, info, 0);
}

static int getfd(int pidfd, int fd, unsigned flags)
{
	return syscall(SYS_pidfd_getfd, pidfd, fd, flags);
}

static pid_t sleeper(void)
{
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	return child;
}

static int readable(int fd, int timeout)
{
	struct pollfd poll_one = { .fd = fd, .events = POLLIN };
	return poll(&poll_one, 1, timeout) == 1 && poll_one.revents == POLLIN;
}

static void *wait_here(void *tid)
{
	*(volatile pid_t *)tid = syscall(SYS_gettid);
	sleep_ms(60000);
	return NULL;
}

static void opening(void)
{
	FAILS_WITH("no process", pidfd_open(0, 0), EINVAL);
	FAILS_WITH("a negative one", pidfd_open(-1, 0), EINVAL);
	FAILS_WITH("unknown flags", pidfd_open(getpid(), 1), EINVAL);
	FAILS_WITH("a process that is not there", pidfd_open(32767 - 1, 0), ESRCH);
	int own = pidfd_open(getpid(), 0);
	PROMISE("pidfd_open of the caller, closed by execve", own >= 0 && fcntl(own, F_GETFD) == FD_CLOEXEC);
	char byte;
	FAILS_WITH("it cannot be read", read(own, &byte, 1), EINVAL);
	PROMISE("it is not readable while the process lives", !readable(own, 0));
	char link[64], name[64] = { 0 };
	snprintf(link, sizeof link, "/proc/self/fd/%d", own);
	PROMISE("/proc names it", readlink(link, name, sizeof name) > 0 && !strcmp(name, "anon_inode:[pidfd]"));
	pthread_t thread;
	volatile pid_t tid = 0;
	NEED(pthread_create(&thread, NULL, wait_here, (void *)&tid) == 0 && COMES_TRUE(tid != 0));
	FAILS_WITH("a thread that is not the first", pidfd_open(tid, 0), EINVAL);
	close(own);
}

static void ends(void)
{
	siginfo_t info = { 0 };
	pid_t child = sleeper();
	int fd = pidfd_open(child, 0);
	NEED(fd >= 0);
	int many = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN };
	NEED(epoll_ctl(many, EPOLL_CTL_ADD, fd, &event) == 0);
	PROMISE("a process that lives is not readable", !readable(fd, 10) && epoll_wait(many, &event, 1, 0) == 0);
	PROMISE("signal 0 looks whether it is there", send(fd, 0, NULL) == 0);
	PROMISE("P_PIDFD with WNOHANG finds nothing yet", waitid(P_PIDFD, fd, &info, WEXITED | WNOHANG) == 0 && info.si_pid == 0);
	PROMISE("SIGKILL through it", send(fd, SIGKILL, NULL) == 0);
	PROMISE("its end wakes poll and epoll", readable(fd, 60000) && epoll_wait(many, &event, 1, 60000) == 1);
	PROMISE("a zombie takes signals", send(fd, SIGTERM, NULL) == 0);
	PROMISE("and is opened", pidfd_open(child, 0) >= 0);
	FAILS_WITH("a zombie is no child to who waits for stops alone", waitid(P_PIDFD, fd, &info, WSTOPPED), ECHILD);
	FAILS_WITH("nor for continuing", waitid(P_PID, child, &info, WCONTINUED | WNOHANG), ECHILD);
	PROMISE("WNOWAIT leaves it", waitid(P_PIDFD, fd, &info, WEXITED | WNOWAIT) == 0 && info.si_pid == child);
	PROMISE("waitid through it", waitid(P_PIDFD, fd, &info, WEXITED) == 0 && info.si_pid == child && info.si_status == SIGKILL &&
		info.si_code == CLD_KILLED);
	FAILS_WITH("once", waitid(P_PIDFD, fd, &info, WEXITED), ECHILD);
	FAILS_WITH("a process that was waited for takes no signals", send(fd, 0, NULL), ESRCH);
	FAILS_WITH("nor gives descriptors", getfd(fd, 0, 0), ESRCH);
	PROMISE("it stays readable", readable(fd, 0));
	FAILS_WITH("and cannot be opened again", pidfd_open(child, 0), ESRCH);
	FAILS_WITH("P_PIDFD of another file", waitid(P_PIDFD, 1, &info, WEXITED), EBADF);
	FAILS_WITH("P_PIDFD of none", waitid(P_PIDFD, -1, &info, WEXITED), EINVAL);
	close(many);
	close(fd);
	child = sleeper();
	fd = pidfd_open(child, O_NONBLOCK);
	FAILS_WITH("a descriptor that does not block makes waitid fail", waitid(P_PIDFD, fd, &info, WEXITED), EAGAIN);
	kill(child, SIGKILL);
	PROMISE("until the end", readable(fd, 60000) && waitid(P_PIDFD, fd, &info, WEXITED) == 0 && info.si_pid == child);
	close(fd);
}

static volatile sig_atomic_t came, value, sender;

static void note(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	came++;
	value = info->si_value.sival_int;
	sender = info->si_pid;
}

static void signals(void)
{
	struct sigaction action = { .sa_sigaction = note, .sa_flags = SA_SIGINFO };
	sigaction(SIGUSR1, &action, NULL);
	int own = pidfd_open(getpid(), 0);
	siginfo_t info = { .si_signo = SIGUSR1, .si_code = SI_QUEUE };
	info.si_pid = 77;
	info.si_value.sival_int = 42;
	PROMISE("a signal with information", send(own, SIGUSR1, &info) == 0 && came == 1 && value == 42 && sender == 77);
	PROMISE("without it the sender is told", send(own, SIGUSR1, NULL) == 0 && came == 2 && sender == getpid());
	FAILS_WITH("information of another signal", send(own, SIGUSR2, &info), EINVAL);
	FAILS_WITH("information that is nowhere", send(own, SIGUSR1, (void *)1), EFAULT);
	FAILS_WITH("a signal that is none", send(own, 65, NULL), EINVAL);
	FAILS_WITH("unknown flags", syscall(SYS_pidfd_send_signal, own, 0, NULL, 8), EINVAL);
	FAILS_WITH("another file", send(1, 0, NULL), EBADF);
	FAILS_WITH("no file", send(-1, 0, NULL), EBADF);
	pid_t child = sleeper();
	int fd = pidfd_open(child, 0), status;
	info.si_code = SI_USER;
	FAILS_WITH("nobody else is lied to about who sends", send(fd, SIGUSR1, &info), EPERM);
	IN_CHILD(status, if (setgid(1000) || setuid(1000)) _exit(9);
		 _exit(!(send(fd, SIGTERM, NULL) == -1 && errno == EPERM && getfd(fd, 0, 0) == -1 && errno == EPERM)));
	PROMISE("another user sends nothing and gets nothing", status == 0);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	close(fd);
	close(own);
}

static void descriptors(void)
{
	int ends_[2], go[2];
	NEED(pipe(go) == 0);
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		char byte;
		if (pipe(ends_) || dup2(ends_[1], 50) != 50 || dup2(ends_[0], 51) != 51)
			_exit(1);
		(void)!write(go[1], "x", 1);
		_exit(read(51, &byte, 1) == 1 && byte == '!' ? 0 : 1);
	}
	char text[16] = { 0 };
	NEED(read(go[0], text, 1) == 1);
	int fd = pidfd_open(child, 0), there = getfd(fd, 50, 0), status;
	PROMISE("pidfd_getfd gives a copy that execve closes", there >= 0 && fcntl(there, F_GETFD) == FD_CLOEXEC);
	FAILS_WITH("a descriptor that is not open there", getfd(fd, 99, 0), EBADF);
	FAILS_WITH("unknown flags", getfd(fd, 50, 1), EINVAL);
	FAILS_WITH("another file", getfd(go[0], 50, 0), EBADF);
	PROMISE("of the same open file", write(there, "!", 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
	close(fd);
}

/* Whether a user gets a descriptor of a process of the same user that hides them, while that
 * process ends. */
static int gets_descriptors_of_the_ending(void)
{
	char ready;
	int told[2];
	if (pipe(told) || setgid(1000) || setuid(1000))
		return 9;
	pid_t child = fork();
	if (child == 0) {
		size_t size = 128 << 20;
		prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
		if (mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0) == MAP_FAILED)
			_exit(1);
		(void)!write(told[1], "x", 1);
		for (;;)
			pause();
	}
	if (child < 0 || read(told[0], &ready, 1) != 1)
		return 9;
	int fd = pidfd_open(child, 0), got = getfd(fd, told[0], 0) >= 0;
	kill(child, SIGKILL);
	while (!got && !readable(fd, 0))
		got = getfd(fd, told[0], 0) >= 0;
	return got;
}

static void hidden(void)
{
	int status;
	IN_CHILD(status, _exit(gets_descriptors_of_the_ending()));
	PROMISE("a process that is not dumpable keeps its descriptors until its end", status == 0);
}

static pid_t clone3(struct clone_args *arguments)
{
	return syscall(SYS_clone3, arguments, sizeof *arguments);
}

static void clones(void)
{
	int fd = -1;
	siginfo_t info = { 0 };
	fflush(stdout);
	struct clone_args arguments = { .flags = CLONE_PIDFD, .pidfd = (uintptr_t)&fd, .exit_signal = SIGCHLD };
	pid_t child = clone3(&arguments);
	if (child == 0)
		_exit(7);
	PROMISE("clone3 gives a descriptor", child > 0 && fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
	PROMISE("of the child", waitid(P_PIDFD, fd, &info, WEXITED) == 0 && info.si_pid == child && info.si_status == 7);
	close(fd);
	fd = -1;
	child = syscall(SYS_clone, CLONE_PIDFD | SIGCHLD, 0, &fd, 0, 0);
	if (child == 0)
		_exit(8);
	PROMISE("so does clone, where the ID would be", child > 0 && fd >= 0 && waitid(P_PIDFD, fd, &info, WEXITED) == 0 && info.si_status == 8);
	close(fd);
	FAILS_WITH("clone has one place for both", syscall(SYS_clone, CLONE_PIDFD | CLONE_PARENT_SETTID | SIGCHLD, 0, &fd, 0, 0), EINVAL);
	FAILS_WITH("a thread has none", syscall(SYS_clone, CLONE_PIDFD | CLONE_THREAD | CLONE_SIGHAND | CLONE_VM, 0, &fd, 0, 0), EINVAL);
	int before = dup(0);
	close(before);
	arguments.pidfd = 1;
	FAILS_WITH("a bad address", clone3(&arguments), EFAULT);
	int after = dup(0);
	PROMISE("leaves neither a descriptor nor a child", after == before && waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
	close(after);
}

static long mrelease(int pidfd, unsigned flags)
{
	return syscall(448 /* process_mrelease */, pidfd, flags);
}

/* A sleeping child that has touched this memory. */
static pid_t with_memory(size_t size)
{
	int ready[2];
	char byte;
	NEED(pipe(ready) == 0);
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		NEED(at != MAP_FAILED);
		memset(at, 1, size);
		NEED(write(ready[1], "x", 1) == 1);
		for (;;)
			pause();
	}
	NEED(read(ready[0], &byte, 1) == 1 && close(ready[0]) == 0 && close(ready[1]) == 0);
	return child;
}

/* Whether a killed process' memory is released by the call, which may come too late. */
static int releases(void)
{
	pid_t child = with_memory(64 << 20);
	int fd = pidfd_open(child, 0), status;
	NEED(fd >= 0 && kill(child, SIGKILL) == 0);
	long answer = mrelease(fd, 0);
	int good = answer == 0;
	NEED(answer == 0 || errno == ESRCH);
	NEED(waitpid(child, &status, 0) == child && close(fd) == 0);
	return good;
}

static char idle_stack[1 << 16];

static int idle(void *unused)
{
	for (;;)
		pause();
	return unused != NULL;
}

static void memory(void)
{
	pid_t child = sleeper();
	int fd = pidfd_open(child, 0), status;
	FAILS_WITH("process_mrelease has no flags", mrelease(fd, 1), EINVAL);
	FAILS_WITH("and is for descriptors of processes", mrelease(0, 0), EBADF);
	FAILS_WITH("a process that goes on", mrelease(fd, 0), EINVAL);
	siginfo_t end;
	NEED(kill(child, SIGKILL) == 0 && waitid(P_PID, child, &end, WEXITED | WNOWAIT) == 0);
	FAILS_WITH("one that has ended has no memory", mrelease(fd, 0), ESRCH);
	NEED(waitpid(child, &status, 0) == child);
	FAILS_WITH("nor one that was waited for", mrelease(fd, 0), ESRCH);
	close(fd);
	PROMISE("a killed process' memory is released", HOLDS_ONCE(releases()));
	child = clone(idle, idle_stack + sizeof idle_stack, CLONE_VM | SIGCHLD, NULL);
	NEED(child > 0 && (fd = pidfd_open(child, 0)) >= 0 && kill(child, SIGKILL) == 0);
	PROMISE("not memory that another process has, too", mrelease(fd, 0) == -1 && (errno == EINVAL || errno == ESRCH));
	NEED(waitpid(child, &status, 0) == child && close(fd) == 0);
}

/* A process that gets the number of another one that has ended. Needs root. */
static void successors(void)
{
	char name[64], text[16];
	struct stat before, after, file;
	int status, tries = 0;
	pid_t first, second;
	int folder, last = open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);
	NEED(last >= 0);
	do {
		first = sleeper();
		snprintf(name, sizeof name, "/proc/%d", first);
		folder = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		NEED(folder >= 0 && fstat(folder, &before) == 0 && fstatat(folder, "stat", &file, 0) == 0);
		NEED(kill(first, SIGKILL) == 0 && waitpid(first, &status, 0) == first);
		NEED(pwrite(last, text, snprintf(text, sizeof text, "%d", first - 1), 0) > 0);
		second = sleeper();
		if (second == first)
			break;
		NEED(close(folder) == 0 && kill(second, SIGKILL) == 0 && waitpid(second, &status, 0) == second);
	} while (++tries < 100);
	NEED(second == first);
	PROMISE("the folder in /proc of a process that has another's number is another", stat(name, &after) == 0 && (unsigned)after.st_ino != (unsigned)before.st_ino);
	FAILS_WITH("the old one signals nobody", syscall(SYS_pidfd_send_signal, folder, SIGKILL, NULL, 0), ESRCH);
	PROMISE("and has no files", openat(folder, "stat", O_RDONLY) == -1 && (errno == ESRCH || errno == ENOENT));
	NEED(close(folder) == 0 && close(last) == 0 && kill(second, SIGKILL) == 0 && waitpid(second, &status, 0) == second);
}

int main(void)
{
	successors();
	ends();
	signals();
	descriptors();
	hidden();
	clones();
	memory();
	opening();
	return conclude();
}
