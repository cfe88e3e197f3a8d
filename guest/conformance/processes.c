/* Processes: fork, exec, wait, groups, threads' ends, inheritance. */
#include "promise.h"

#include <poll.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/prctl.h>

static int status;
static char *volatile nowhere = (char *)16;

static void handler(int signal)
{
	(void)signal;
}

static void ends(void)
{
	IN_CHILD(status, _exit(37));
	PROMISE("an exit status arrives", WIFEXITED(status) && WEXITSTATUS(status) == 37);
	IN_CHILD(status, raise(SIGTERM));
	PROMISE("so does the signal that killed", WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
	IN_CHILD(status, abort());
	PROMISE("abort is SIGABRT", WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	FAILS_WITH("wait without children", wait(NULL), ECHILD);
	int gate[2];
	NEED(pipe(gate) == 0);
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		char byte;
		close(gate[1]);
		(void)!read(gate[0], &byte, 1);
		_exit(3);
	}
	PROMISE("WNOHANG does not wait", waitpid(child, &status, WNOHANG) == 0);
	close(gate[0]);
	close(gate[1]);
	siginfo_t info = { 0 };
	PROMISE("waitid with WNOWAIT leaves it", waitid(P_PID, child, &info, WEXITED | WNOWAIT) == 0 && info.si_status == 3 &&
		info.si_code == CLD_EXITED && info.si_pid == child);
	struct rusage use;
	PROMISE("wait4 takes it, with its usage", wait4(child, &status, 0, &use) == child && WEXITSTATUS(status) == 3);
	FAILS_WITH("and it is gone", waitpid(child, &status, 0), ECHILD);
	FAILS_WITH("a signal to it finds nobody", kill(child, 0), ESRCH);
	int good = 1;
	for (int i = 0; i < 100; i++) {
		IN_CHILD(status, _exit(i));
		good &= WEXITSTATUS(status) == i;
	}
	PROMISE("a hundred children in a row", good);
	pid_t many[50];
	for (int i = 0; i < 50; i++)
		if ((many[i] = fork()) == 0) {
			sleep_ms(20);
			_exit(i);
		}
	int sum = 0;
	for (int i = 0; i < 50; i++)
		sum += wait(&status) > 0 ? WEXITSTATUS(status) : -1000;
	PROMISE("fifty at once, each waited for once", sum == 49 * 50 / 2);
	(void)many;
}

static void stops(void)
{
	fflush(stdout);
	pid_t child = fork();
	if (child == 0)
		for (;;)
			pause();
	if (child < 0) {
		/* Without a child, the number would be -1, and a signal to -1 goes to all
		 * processes. */
		PROMISE("a child to stop", 0);
		return;
	}
	kill(child, SIGSTOP);
	PROMISE("a stopped child is told with WUNTRACED",
		waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
	kill(child, SIGCONT);
	PROMISE("a continued one with WCONTINUED", waitpid(child, &status, WCONTINUED) == child && WIFCONTINUED(status));
	kill(child, SIGKILL);
	PROMISE("SIGKILL ends it", waitpid(child, &status, 0) == child && WTERMSIG(status) == SIGKILL);
}

static int cloned(void *argument)
{
	*(volatile int *)argument += 1;
	return 11;
}

static void kinds_of_fork(void)
{
	static volatile int shared;
	static char stack[65536] __attribute__((aligned(16)));
	shared = 1;
	pid_t child = vfork();
	if (child == 0) {
		shared = 2;
		_exit(4);
	}
	PROMISE("vfork shares memory and waits", shared == 2);
	PROMISE("and its child can be waited for", waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 4);
	child = clone(cloned, stack + sizeof stack, CLONE_VM | SIGCHLD, (void *)&shared);
	PROMISE("clone with CLONE_VM shares memory", waitpid(child, &status, 0) == child && shared == 3 && WEXITSTATUS(status) == 11);
	child = clone(cloned, stack + sizeof stack, SIGCHLD, (void *)&shared);
	PROMISE("clone without does not", waitpid(child, &status, 0) == child && shared == 3);
	child = clone(cloned, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, (void *)&shared);
	PROMISE("CLONE_VFORK has ended its use of memory on return", shared == 4);
	waitpid(child, &status, 0);
	FAILS_WITH("CLONE_THREAD without CLONE_SIGHAND", syscall(SYS_clone, CLONE_THREAD | CLONE_VM, 0, 0, 0, 0), EINVAL);
	pid_t id = -1;
	child = syscall(SYS_clone, CLONE_PARENT_SETTID | SIGCHLD, 0, &id, 0, 0);
	if (child == 0)
		_exit(0);
	PROMISE("CLONE_PARENT_SETTID", id == child);
	waitpid(child, &status, 0);
}

static void inheritance(void)
{
	int ends[2];
	NEED(pipe(ends) == 0);
	IN_CHILD(status, write(ends[1], "c", 1); close(ends[0]));
	char byte = 0;
	PROMISE("descriptors are inherited", read(ends[0], &byte, 1) == 1 && byte == 'c');
	char name[] = "/tmp/process-XXXXXX";
	int file = mkstemp(name);
	NEED(write(file, "0123456789", 10) == 10);
	lseek(file, 2, SEEK_SET);
	IN_CHILD(status, read(file, &byte, 1));
	PROMISE("the file position is shared", lseek(file, 0, SEEK_CUR) == 3);
	unlink(name);
	close(file);
	umask(027);
	IN_CHILD(status, _exit(umask(0) == 027 ? 1 : 0));
	PROMISE("umask is inherited", WEXITSTATUS(status) == 1);
	IN_CHILD(status, chdir("/proc"); _exit(0));
	char folder[100];
	PROMISE("the folder is each process's own", getcwd(folder, sizeof folder) && strcmp(folder, "/proc") != 0);
	pid_t self = getpid();
	IN_CHILD(status, _exit(getppid() == self && getpid() != self ? 1 : 0));
	PROMISE("pid and parent", WEXITSTATUS(status) == 1);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	IN_CHILD(status, if (fork() == 0) _exit(COMES_TRUE(getppid() == self) ? 8 : 9));
	PROMISE("an orphan goes to the subreaper", wait(&status) > 0 && WEXITSTATUS(status) == 8);
	prctl(PR_SET_CHILD_SUBREAPER, 0);
	/* A group with a stopped member, orphaned already: another orphan changes nothing. */
	IN_CHILD(status, setsid(); pid_t sleeper = fork(); if (sleeper == 0) for (;;) pause();
		 kill(sleeper, SIGSTOP); waitpid(sleeper, &status, WUNTRACED);
		 if (fork() == 0) { if (fork() == 0) _exit(0); _exit(0); }
		 wait(&status); int stays = waitpid(sleeper, &status, WNOHANG) == 0; kill(sleeper, SIGKILL);
		 waitpid(sleeper, &status, 0); _exit(stays && WTERMSIG(status) == SIGKILL));
	PROMISE("a group that was orphaned before is not hung up", WIFEXITED(status) && WEXITSTATUS(status) == 1);
	/* The leader of a job ties it to the shell; when the leader ends, the stopped member
	 * gets SIGHUP. */
	int told[2];
	NEED(pipe(told) == 0);
	IN_CHILD(status, setsid(); pid_t leader = fork(); if (leader == 0) { setpgid(0, 0); pid_t sleeper = fork();
		 if (sleeper == 0) { signal(SIGHUP, SIG_DFL); for (;;) pause(); }
		 kill(sleeper, SIGSTOP); waitpid(sleeper, &status, WUNTRACED); _exit(0); }
		 waitpid(leader, &status, 0); _exit(1));
	close(told[1]);
	struct pollfd end = { .fd = told[0] };
	PROMISE("one that loses its tie is", poll(&end, 1, 5000) == 1 && read(told[0], &byte, 1) == 0);
	close(told[0]);
	IN_CHILD(status, alarm(100); if (fork() == 0) _exit(alarm(0)); wait(&status); _exit(WEXITSTATUS(status)));
	PROMISE("an alarm is not inherited", WEXITSTATUS(status) == 0);
}

/* Each makes children until there were so many altogether. */
static void multiply(atomic_int *made)
{
	while (atomic_fetch_add(made, 1) < 600)
		if (fork() < 0)
			usleep(100);
	for (;;)
		pause();
}

/* SIGKILL for a group that grows at the same time reaches its new members, too. */
static void growing(void)
{
	atomic_int *made = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int left = 0;
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	for (int round = 0; round < 4; round++) {
		atomic_store(made, 0);
		pid_t group = fork();
		if (group == 0) {
			setpgid(0, 0);
			multiply(made);
		}
		setpgid(group, group);
		while (atomic_load(made) < 100)
			usleep(100);
		NEED(kill(-group, SIGKILL) == 0);
		int ended = 0;
		for (int wait = 0; wait < 60000 && !ended; wait++) {
			while (waitpid(-group, NULL, WNOHANG) > 0);
			ended = kill(-group, 0) < 0 && errno == ESRCH;
			if (!ended)
				usleep(1000);
		}
		left += !ended;
		kill(-group, SIGKILL);
	}
	prctl(PR_SET_CHILD_SUBREAPER, 0);
	PROMISE("a group that is killed while it grows is gone", left == 0);
}

/* A group outlives its leader; its last member may be moved into it again, and out of it. */
static void group_without_leader(void)
{
	int ready[2];
	NEED(pipe(ready) == 0);
	fflush(stdout);
	pid_t leader = fork();
	if (leader == 0) {
		setpgid(0, 0);
		write(ready[1], "r", 1);
		for (;;)
			pause();
	}
	char byte;
	NEED(read(ready[0], &byte, 1) == 1);
	pid_t member = fork();
	if (member == 0) {
		for (;;)
			pause();
	}
	NEED(setpgid(member, leader) == 0 && kill(leader, SIGKILL) == 0 && waitpid(leader, NULL, 0) == leader);
	PROMISE("a group outlives its leader", getpgid(member) == leader && kill(-leader, 0) == 0);
	PROMISE("its last member may be put where it is", setpgid(member, leader) == 0 && getpgid(member) == leader);
	PROMISE("or to a group of its own", setpgid(member, member) == 0 && getpgid(member) == member);
	FAILS_WITH("then the group is gone", kill(-leader, 0), ESRCH);
	FAILS_WITH("and cannot be joined", setpgid(member, leader), EPERM);
	NEED(kill(member, SIGKILL) == 0 && waitpid(member, NULL, 0) == member);
	FAILS_WITH("nor can who was waited for be moved", setpgid(member, member), ESRCH);
	close(ready[0]);
	close(ready[1]);
}

static void groups(void)
{
	int ready[2];
	NEED(pipe(ready) == 0);
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		setpgid(0, 0);
		write(ready[1], "r", 1);
		for (;;)
			pause();
	}
	char byte;
	NEED(read(ready[0], &byte, 1) == 1);
	PROMISE("a child leads its own group", getpgid(child) == child && getpgrp() != child);
	PROMISE("its session stays ours", getsid(child) == getsid(0));
	PROMISE("a signal to the group reaches it",
		kill(-child, SIGTERM) == 0 && waitpid(-child, &status, 0) == child && WTERMSIG(status) == SIGTERM);
	IN_CHILD(status, _exit(setsid() == getpid() && getpgrp() == getpid() ? 1 : 0));
	PROMISE("setsid makes a session and a group", WEXITSTATUS(status) == 1);
	IN_CHILD(status, setpgid(0, 0); _exit(setsid() == -1 && errno == EPERM ? 1 : 0));
	PROMISE("a group leader cannot", WEXITSTATUS(status) == 1);
	FAILS_WITH("setpgid into a group that is not there", setpgid(0, 999999), EPERM);
	group_without_leader();
	FAILS_WITH("signal number out of range", kill(getpid(), 65), EINVAL);
}

static void exec(char *self)
{
	int open_end[2];
	NEED(pipe(open_end) == 0);
	int kept = dup(open_end[1]), closed = fcntl(open_end[1], F_DUPFD_CLOEXEC, 3);
	char kept_text[16], closed_text[16];
	snprintf(kept_text, sizeof kept_text, "%d", kept);
	snprintf(closed_text, sizeof closed_text, "%d", closed);
	char *arguments[] = { self, "after-exec", kept_text, closed_text, "", "last argument", NULL };
	char *environment[] = { "ONE=1", "EMPTY=", NULL };
	IN_CHILD(status,
		sigset_t set; sigemptyset(&set); sigaddset(&set, SIGUSR2); sigprocmask(SIG_BLOCK, &set, NULL);
		signal(SIGUSR1, SIG_IGN); signal(SIGTERM, handler);
		execve(self, arguments, environment));
	PROMISE("exec keeps and clears what it should", WIFEXITED(status) && WEXITSTATUS(status) == 0);
	if (WEXITSTATUS(status))
		printf("# the program after exec found bits %#x wrong\n", WEXITSTATUS(status));
	FAILS_WITH("exec of nothing", execve("/no/such/file", arguments, environment), ENOENT);
	FAILS_WITH("exec of a folder", execve("/tmp", arguments, environment), EACCES);
	char name[] = "/tmp/script-XXXXXX";
	int file = mkstemp(name);
	NEED(dprintf(file, "#!%s in-script\n", self) > 0 && fchmod(file, 0700) == 0);
	close(file);
	char *script[] = { name, "argument", NULL };
	IN_CHILD(status, execve(name, script, environment));
	PROMISE("a script runs by its interpreter, with one argument, its name and its arguments", WEXITSTATUS(status) == 23);
	file = open(name, O_WRONLY | O_TRUNC);
	NEED(write(file, "no program\n", 11) == 11);
	close(file);
	FAILS_WITH("exec of a text", execve(name, script, environment), ENOEXEC);
	unlink(name);
	FAILS_WITH("a running program cannot be opened for writing", open(self, O_WRONLY), ETXTBSY);
	FAILS_WITH("nor cut", truncate(self, 0), ETXTBSY);
	char copy[] = "/tmp/copy-XXXXXX";
	int from = open(self, O_RDONLY), to = mkstemp(copy);
	NEED(from >= 0 && to >= 0 && fchmod(to, 0700) == 0);
	while (sendfile(to, from, NULL, 1 << 20) > 0)
		;
	close(from);
	char *copied[] = { copy, "in-script", NULL };
	FAILS_WITH("a file that is open for writing cannot be run", execve(copy, copied, environment), ETXTBSY);
	close(to);
	IN_CHILD(status, execve(copy, copied, environment));
	PROMISE("once it is closed it can", WIFEXITED(status) && WEXITSTATUS(status) != 0);
	if (geteuid() == 0) {
		char *asked[] = { copy, "who", NULL };
		NEED(chown(copy, 5, 5) == 0 && chmod(copy, 04755) == 0);
		IN_CHILD(status, NEED(setuid(20) == 0); execve(copy, asked, environment));
		PROMISE("a set-user-id program runs as its owner", WEXITSTATUS(status) == 5);
		IN_CHILD(status, NEED(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && setuid(20) == 0);
			 int inner; IN_CHILD(inner, execve(copy, asked, environment)); _exit(WEXITSTATUS(inner)));
		PROMISE("but not for who has renounced new privileges, nor for a child of his", WEXITSTATUS(status) == 20);
	}
	to = open(copy, O_WRONLY);
	PROMISE("and be written when the program has ended", to >= 0);
	close(to);
	unlink(copy);
	char *big = malloc(200000);
	memset(big, 'x', 199999);
	big[199999] = 0;
	char *too_long[] = { self, big, NULL };
	FAILS_WITH("an argument longer than 128 KiB", execve(self, too_long, environment), E2BIG);
	free(big);
}

/* Runs in the new program: each failed check sets a bit in the result. */
static int after_exec(int argc, char **argv, char **envp)
{
	int wrong = 0;
	if (argc != 6 || strcmp(argv[4], "") || strcmp(argv[5], "last argument"))
		wrong |= 1;
	if (!envp[0] || strcmp(envp[0], "ONE=1") || !envp[1] || strcmp(envp[1], "EMPTY=") || envp[2])
		wrong |= 2;
	if (fcntl(atoi(argv[2]), F_GETFD) != 0)
		wrong |= 4;
	if (fcntl(atoi(argv[3]), F_GETFD) != -1)
		wrong |= 8;
	sigset_t mask;
	sigprocmask(SIG_BLOCK, NULL, &mask);
	if (!sigismember(&mask, SIGUSR2))
		wrong |= 16;
	struct sigaction action;
	sigaction(SIGUSR1, NULL, &action);
	if (action.sa_handler != SIG_IGN)
		wrong |= 32;
	sigaction(SIGTERM, NULL, &action);
	if (action.sa_handler != SIG_DFL)
		wrong |= 64;
	return wrong;
}

static volatile int has_started;

static void *other_thread(void *exits)
{
	if (exits)
		exit(19);
	has_started = 1;
	for (;;)
		pause();
}

/* Starts another thread, which is running when this returns. */
static void start(pthread_t *thread)
{
	pthread_create(thread, NULL, other_thread, NULL);
	while (!has_started)
		sched_yield();
}

static void threads_and_ends(char *self)
{
	pthread_t thread;
	IN_CHILD(status, start(&thread); _exit(6));
	PROMISE("exit ends all threads", WEXITSTATUS(status) == 6);
	IN_CHILD(status, pthread_create(&thread, NULL, other_thread, &status); for (;;) pause());
	PROMISE("whichever thread calls it", WEXITSTATUS(status) == 19);
	IN_CHILD(status, start(&thread); *nowhere = 1);
	PROMISE("a fault in one kills all", WTERMSIG(status) == SIGSEGV);
	char *arguments[] = { self, "in-script", "x", "argument", NULL };
	IN_CHILD(status, start(&thread); execv(self, arguments));
	PROMISE("exec ends the other threads", WEXITSTATUS(status) == 23);
	IN_CHILD(status, _exit(syscall(SYS_gettid) == getpid()));
	PROMISE("the first thread's id is the process's", WEXITSTATUS(status) == 1);
}

struct cap_header {
	uint32_t version;
	int pid;
};
struct cap_sets {
	uint32_t effective, permitted, inheritable;
};

/* Run as user 0 in a child: its exit status is the number of the promise that was broken. */
static int drop_and_lock(void)
{
	enum { IPC_LOCK = 1 << 14, ROOM = 64 << 10 };
	struct cap_header header = { 0x20080522, 0 };
	struct cap_sets sets[2], all[2];
	struct rlimit limit = { ROOM, ROOM };
	if (syscall(SYS_capget, &header, all) != 0 || setrlimit(RLIMIT_MEMLOCK, &limit) != 0)
		return 1;
	char *at = mmap(NULL, 2 * ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED || mlock(at, 2 * ROOM) != 0 || munlock(at, 2 * ROOM) != 0)
		return 2;
	memcpy(sets, all, sizeof sets);
	sets[0].effective &= ~IPC_LOCK;
	if (syscall(SYS_capset, &header, sets) != 0 || mlock(at, 2 * ROOM) == 0 || errno != ENOMEM || mlock(at, ROOM) != 0)
		return 3;
	if (syscall(SYS_capset, &header, all) != 0 || mlock(at, 2 * ROOM) != 0)
		return 4;
	sets[0].permitted &= ~IPC_LOCK;
	if (syscall(SYS_capset, &header, sets) != 0 || syscall(SYS_capset, &header, all) == 0 || errno != EPERM)
		return 5;
	if (setresuid(65534, 65534, 65534) != 0 || syscall(SYS_capget, &header, sets) != 0 || sets[0].permitted != 0)
		return 6;
	return 0;
}

static void rights(void)
{
	int status;
	if (geteuid() != 0)
		return;
	IN_CHILD(status, _exit(drop_and_lock()));
	PROMISE("a capability that is dropped counts no more, and comes back only while it is permitted", status == 0);
}

int main(int argc, char **argv, char **envp)
{
	if (argc > 1 && !strcmp(argv[1], "after-exec"))
		return after_exec(argc, argv, envp);
	if (argc > 1 && !strcmp(argv[1], "in-script"))
		return argc == 4 && !strcmp(argv[3], "argument") ? 23 : 24;
	if (argc > 1 && !strcmp(argv[1], "who"))
		return (int)geteuid();
	static char self[4096];
	NEED(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
	ends();
	stops();
	kinds_of_fork();
	inheritance();
	groups();
	growing();
	exec(self);
	threads_and_ends(self);
	rights();
	return conclude();
}
