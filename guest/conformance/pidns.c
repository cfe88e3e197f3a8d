/*
 * PID namespaces: the numbers of processes in each namespace, the privileges and duties of the
 * first process, and the contents of /proc. Runs as user 0. Each promise is about a child, which
 * prints a broken line and exits with 1. So no promise leaves anything for the next one.
 */
#include "promise.h"
#include "inside.h"
#include <grp.h>
#include <linux/capability.h>
#include <linux/futex.h>
#include <sys/ipc.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <termios.h>

#define NS_GET_USERNS 0xb701
#define NS_GET_PID_FROM_PIDNS _IOR(0xb7, 0x6, int)
#define NS_GET_TGID_FROM_PIDNS _IOR(0xb7, 0x7, int)
#define NS_GET_PID_IN_PIDNS _IOR(0xb7, 0x8, int)
#define NS_GET_TGID_IN_PIDNS _IOR(0xb7, 0x9, int)
#define FOLDER "/tmp/pidns"

static pid_t make(unsigned long flags)
{
	return syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
}

/* Whether `part` holds in the first process of a PID namespace. */
static int as_init(int (*part)(void))
{
	pid_t child = make(CLONE_NEWPID);
	if (child < 0)
		return 0;
	if (child == 0)
		_exit(part() ? 1 : 0);
	return ends_well(child);
}

/* The same, with mounts of its own, and a /proc that shows the namespace. */
static int with_proc(int (*part)(void))
{
	pid_t child = make(CLONE_NEWPID | CLONE_NEWNS);
	if (child < 0)
		return 0;
	if (child == 0) {
		if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("proc", "/proc", "proc", 0, NULL))
			_exit(3);
		_exit(part() ? 1 : 0);
	}
	return ends_well(child);
}

/* Returns the text that follows `name`, up to the end of its line. */
static char *row(char *text, const char *name)
{
	static char found[256];
	char *at = strstr(text, name);
	found[0] = 0;
	if (at)
		snprintf(found, sizeof found, "%.*s", (int)strcspn(at + strlen(name), "\n"), at + strlen(name));
	return found;
}

/* A child that waits for a signal. */
static pid_t sleeper(void)
{
	pid_t child = fork();
	if (child == 0)
		for (;;)
			pause();
	return child;
}

static int first_is_one(void)
{
	HOLDS(getpid() == 1 && syscall(SYS_gettid) == 1 && getppid() == 0);
	pid_t child = fork();
	if (child == 0)
		_exit(getpid() != 2 || getppid() != 1);
	HOLDS(child == 2 && ends_well(child));
	return 0;
}

static int outside_has_another_number(void)
{
	int ends[2];
	pid_t inside = 0;
	HOLDS(pipe(ends) == 0);
	pid_t child = make(CLONE_NEWPID);
	if (child == 0) {
		inside = getpid();
		_exit(write(ends[1], &inside, sizeof inside) != sizeof inside);
	}
	HOLDS(child > 1 && read(ends[0], &inside, sizeof inside) == sizeof inside);
	HOLDS(inside == 1 && ends_well(child));
	return 0;
}

static int unshare_is_for_children(void)
{
	pid_t own = getpid();
	HOLDS(unshare(CLONE_NEWPID) == 0 && getpid() == own);
	pid_t child = fork();
	if (child == 0)
		_exit(getpid() != 1 || getppid() != 0);
	HOLDS(child > 1);
	errno = 0;
	pid_t second = fork();
	if (second == 0)
		_exit(getpid() != 2);
	/* If the first process has ended already, the fork fails. */
	int error = errno;
	HOLDS(second > 0 || error == ENOMEM);
	/* The first process ends only after the second is reaped. */
	if (second > 0)
		waitpid(second, NULL, 0);
	HOLDS(ends_well(child));
	return 0;
}

static int after_init_none_comes(void)
{
	HOLDS(unshare(CLONE_NEWPID) == 0);
	pid_t child = fork();
	if (child == 0)
		_exit(0);
	HOLDS(ends_well(child));
	REFUSED(fork(), ENOMEM);
	REFUSED(make(0), ENOMEM);
	return 0;
}

static void *nothing(void *unused)
{
	return unused;
}

static int threads_do_not_mix(void)
{
	pthread_t thread;
	HOLDS(unshare(CLONE_NEWPID) == 0);
	HOLDS(pthread_create(&thread, NULL, nothing, NULL) == EINVAL);
	REFUSED(unshare(CLONE_NEWPID), EINVAL);
	REFUSED(make(CLONE_NEWPID), EINVAL);
	REFUSED(syscall(SYS_clone, CLONE_NEWPID | CLONE_THREAD | CLONE_SIGHAND | CLONE_VM, 0, 0, 0, 0), EINVAL);
	return 0;
}

static int init_has_no_siblings(void)
{
	REFUSED(make(CLONE_PARENT), EINVAL);
	return 0;
}

static int rights_are_asked(void)
{
	REFUSED(unshare(CLONE_NEWPID), EPERM);
	REFUSED(make(CLONE_NEWPID), EPERM);
	HOLDS(become_root_inside() == 0);
	HOLDS(as_init(first_is_one));
	return 0;
}

static int nested_init(void)
{
	HOLDS(getpid() == 1);
	return !as_init(first_is_one);
}

static int levels_left;

static int deeper(void)
{
	if (getpid() != 1)
		return 1;
	if (--levels_left == 0)
		return make(CLONE_NEWPID) != -1 || errno != ENOSPC;
	return !as_init(deeper);
}

static int depth_is_limited(void)
{
	/* The host's own namespace may be a nested one. */
	for (levels_left = 32; levels_left > 0; levels_left--) {
		int wanted = levels_left;
		if (as_init(deeper))
			return 0;
		levels_left = wanted;
	}
	HOLDS(0);
	return 0;
}

static int number_is_limited(void)
{
	char before[32];
	snprintf(before, sizeof before, "%.31s", reads("/proc/sys/user/max_pid_namespaces"));
	HOLDS(atoi(before) > 0);
	/* On Linux only with CAP_SYS_RESOURCE, which a host may keep from its root. */
	if (writes("/proc/sys/user/max_pid_namespaces", "0") && errno == EACCES)
		return 0;
	pid_t child = make(CLONE_NEWPID);
	int error = errno;
	if (child == 0)
		_exit(0);
	HOLDS(writes("/proc/sys/user/max_pid_namespaces", before) == 0);
	HOLDS(child == -1 && error == ENOSPC);
	return 0;
}

static int processes_outside_have_no_number(void)
{
	static char outside[32];
	int ends[2];
	HOLDS(pipe(ends) == 0);
	snprintf(outside, sizeof outside, "%d", getpid());
	pid_t own = getpid();
	pid_t child = make(CLONE_NEWPID);
	if (child == 0) {
		/* A number that is in use outside and not inside. */
		int bad = own > 50 && ((kill)(own, 0) != -1 || errno != ESRCH);
		bad |= (own > 50) && (syscall(SYS_pidfd_open, own, 0) != -1 || errno != ESRCH);
		bad |= own > 50 && (getpgid(own) != -1 || errno != ESRCH);
		bad |= own > 50 && (getpriority(PRIO_PROCESS, own) != -1 || errno != ESRCH);
		bad |= getpgid(0) != 0 || getsid(0) != 0;
		_exit(bad);
	}
	HOLDS(ends_well(child));
	return 0;
}

static int groups_and_sessions(void)
{
	HOLDS(setsid() == 1 && getpgid(0) == 1 && getsid(0) == 1 && getpgrp() == 1);
	pid_t child = sleeper();
	HOLDS(setpgid(child, child) == 0 && getpgid(child) == child && getsid(child) == 1);
	HOLDS((kill)(-child, SIGTERM) == 0);
	int status;
	HOLDS(waitpid(-child, &status, 0) == child && WTERMSIG(status) == SIGTERM);
	REFUSED(setpgid(0, 4711), EPERM);
	REFUSED((kill)(-4711, 0), ESRCH);
	return 0;
}

static int waits_by_number(void)
{
	siginfo_t info = { 0 };
	pid_t first = fork();
	if (first == 0)
		_exit(3);
	HOLDS(first == 2);
	HOLDS(waitid(P_PID, first, &info, WEXITED | WNOWAIT) == 0 && info.si_pid == first && info.si_status == 3);
	HOLDS(waitid(P_ALL, 0, &info, WEXITED) == 0 && info.si_pid == first);
	REFUSED(waitpid(first, NULL, 0), ECHILD);
	REFUSED(waitpid(4711, NULL, 0), ECHILD);
	return 0;
}

static int parents_wait_by_their_own(void)
{
	siginfo_t info = { 0 };
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	HOLDS(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	pid_t child = make(CLONE_NEWPID);
	if (child == 0)
		_exit(5);
	HOLDS(sigwaitinfo(&set, &info) == SIGCHLD && info.si_pid == child && info.si_status == 5);
	int status;
	HOLDS(wait(&status) == child && WEXITSTATUS(status) == 5);
	return 0;
}

static volatile siginfo_t last_info;
static volatile int signals_seen;

static void note(int number, siginfo_t *info, void *context)
{
	(void)number, (void)context;
	last_info = *info;
	signals_seen++;
}

static int catch(int number)
{
	struct sigaction action = { .sa_sigaction = note, .sa_flags = SA_SIGINFO | SA_RESTART };
	return sigaction(number, &action, NULL);
}

static int senders_are_seen_from_inside(void)
{
	HOLDS(catch(SIGUSR1) == 0);
	pid_t child = fork();
	if (child == 0)
		_exit((kill)(1, SIGUSR1) != 0);
	HOLDS(ends_well(child));
	HOLDS(signals_seen == 1 && last_info.si_pid == child && last_info.si_code == SI_USER);
	HOLDS(syscall(SYS_tgkill, 1, 1, SIGUSR1) == 0 && signals_seen == 2 && last_info.si_pid == 1);
	union sigval value = { .sival_int = 7 };
	HOLDS(sigqueue(1, SIGUSR1, value) == 0 && signals_seen == 3 && last_info.si_pid == 1 && last_info.si_value.sival_int == 7);
	return 0;
}

static int senders_from_outside_have_none(void)
{
	int ends[2];
	char byte;
	HOLDS(pipe(ends) == 0);
	pid_t child = make(CLONE_NEWPID);
	if (child == 0) {
		if (catch(SIGUSR1) || write(ends[1], "x", 1) != 1)
			_exit(2);
		while (!signals_seen)
			sleep_ms(2);
		_exit(last_info.si_pid != 0);
	}
	HOLDS(read(ends[0], &byte, 1) == 1 && kill(child, SIGUSR1) == 0 && ends_well(child));
	return 0;
}

static int init_is_shielded_inside(void)
{
	pid_t child = fork();
	if (child == 0) {
		int bad = 0;
		bad |= (kill)(1, SIGKILL) || (kill)(1, SIGSTOP) || (kill)(1, SIGTERM) || (kill)(1, SIGINT) || (kill)(1, SIGTSTP);
		_exit(bad);
	}
	HOLDS(ends_well(child));
	HOLDS(raise(SIGKILL) == 0 && raise(SIGTERM) == 0 && raise(SIGSTOP) == 0);
	/* A signal that was blocked has no effect when it is unblocked, either. */
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	HOLDS(sigprocmask(SIG_BLOCK, &set, NULL) == 0 && raise(SIGTERM) == 0 && sigprocmask(SIG_UNBLOCK, &set, NULL) == 0);
	return 0;
}

static pid_t waiting_init(void)
{
	int ends[2];
	char byte;
	if (pipe(ends))
		return -1;
	pid_t child = make(CLONE_NEWPID);
	if (child == 0) {
		(void)!write(ends[1], "x", 1);
		for (;;)
			pause();
	}
	(void)!read(ends[0], &byte, 1);
	close(ends[0]);
	close(ends[1]);
	return child;
}

static int ancestors_kill_and_stop(void)
{
	int status;
	pid_t child = waiting_init();
	HOLDS(child > 0 && kill(child, SIGTERM) == 0 && kill(child, SIGINT) == 0);
	HOLDS(kill(child, SIGSTOP) == 0 && waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
	HOLDS(kill(child, SIGCONT) == 0 && waitpid(child, &status, WCONTINUED) == child && WIFCONTINUED(status));
	HOLDS(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child && WTERMSIG(status) == SIGKILL);
	return 0;
}

static int a_fault_ends_init(void)
{
	int status;
	pid_t child = make(CLONE_NEWPID);
	if (child == 0) {
		struct rlimit none = { 0, 0 };
		setrlimit(RLIMIT_CORE, &none);
		__builtin_trap();
		_exit(0);
	}
	HOLDS(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGILL);
	return 0;
}

/* A traced process 1 stops on a signal. Without a tracer it would not. */
static int a_traced_init_stops(void)
{
	int status;
	pid_t child = make(CLONE_NEWPID);
	HOLDS(child >= 0);
	if (child == 0) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		_exit(3);
	}
	HOLDS(waitpid(child, &status, 0) == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
	HOLDS(ptrace(PTRACE_CONT, child, 0, 0) == 0);
	HOLDS(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 3);
	return 0;
}

static int everybody_is_those_inside(void)
{
	pid_t first = sleeper(), second = sleeper();
	int status;
	HOLDS((kill)(-1, SIGTERM) == 0);
	HOLDS(waitpid(first, &status, 0) == first && WTERMSIG(status) == SIGTERM);
	HOLDS(waitpid(second, &status, 0) == second && WTERMSIG(status) == SIGTERM);
	REFUSED((kill)(-1, SIGTERM), ESRCH);
	return 0;
}

static int orphans_go_to_init(void)
{
	int ends[2];
	pid_t told[2] = { 0, 0 };
	HOLDS(pipe(ends) == 0);
	pid_t child = fork();
	if (child == 0) {
		pid_t parent = getpid();
		if (fork() == 0) {
			while (getppid() == parent)
				sleep_ms(1);
			told[0] = getpid();
			told[1] = getppid();
			_exit(write(ends[1], told, sizeof told) != sizeof told);
		}
		_exit(0);
	}
	HOLDS(ends_well(child));
	HOLDS(read(ends[0], told, sizeof told) == sizeof told && told[1] == 1);
	HOLDS(ends_well(told[0]));
	return 0;
}

static int subreapers_come_first(void)
{
	int ends[2];
	pid_t told = 0;
	HOLDS(pipe(ends) == 0);
	pid_t child = fork();
	if (child == 0) {
		if (prctl(PR_SET_CHILD_SUBREAPER, 1))
			_exit(2);
		pid_t middle = fork();
		if (middle == 0) {
			pid_t parent = getpid();
			if (fork() == 0) {
				while (getppid() == parent)
					sleep_ms(1);
				told = getppid();
				_exit(write(ends[1], &told, sizeof told) != sizeof told);
			}
			_exit(0);
		}
		int bad = !ends_well(middle);
		_exit(bad || wait(NULL) < 0);
	}
	HOLDS(read(ends[0], &told, sizeof told) == sizeof told && told == child && ends_well(child));
	return 0;
}

/* A subreaper outside the namespace gets no orphan of it. */
static int subreapers_outside_do_not(void)
{
	HOLDS(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
	HOLDS(as_init(orphans_go_to_init));
	REFUSED(waitpid(-1, NULL, WNOHANG), ECHILD);
	return 0;
}

static int all_end_with_init(void)
{
	int ends[2];
	char byte;
	HOLDS(pipe2(ends, O_CLOEXEC) == 0);
	pid_t child = make(CLONE_NEWPID);
	if (child == 0) {
		for (int i = 0; i < 5; i++)
			if (fork() == 0)
				for (;;)
					pause();
		/* And a nested namespace. */
		pid_t below = make(CLONE_NEWPID);
		if (below == 0) {
			fork();
			for (;;)
				pause();
		}
		_exit(6);
	}
	int status;
	close(ends[1]);
	HOLDS(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 6);
	/* The status of the init comes last: all processes that held the pipe are gone. */
	HOLDS(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0 && read(ends[0], &byte, 1) == 0);
	return 0;
}

static int nested_number(void)
{
	/* This process is the init of the outer namespace; its child is the init of a nested
	 * one. */
	pid_t child = waiting_init();
	HOLDS(child == 2 && kill(child, 0) == 0);
	int pidfd = syscall(SYS_pidfd_open, child, 0);
	HOLDS(pidfd >= 0);
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd);
	HOLDS(strcmp(row(reads(path), "\nNSpid:"), "\t2\t1") == 0);
	HOLDS(strcmp(row(reads(path), "Pid:"), "\t2") == 0);
	HOLDS(strcmp(row(reads("/proc/2/status"), "NSpid:"), "\t2\t1") == 0);
	HOLDS(strcmp(row(reads("/proc/2/status"), "NStgid:"), "\t2\t1") == 0);
	HOLDS(strcmp(row(reads("/proc/2/status"), "\nPid:"), "\t2") == 0);
	HOLDS(strcmp(row(reads("/proc/2/status"), "PPid:"), "\t1") == 0);
	HOLDS(strcmp(row(reads("/proc/2/status"), "NSpgid:"), "\t0\t0") == 0);
	HOLDS(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	return 0;
}

static int proc_shows_the_namespace(void)
{
	char self[32] = { 0 };
	HOLDS(readlink("/proc/self", self, sizeof self - 1) > 0 && strcmp(self, "1") == 0);
	memset(self, 0, sizeof self);
	HOLDS(readlink("/proc/thread-self", self, sizeof self - 1) > 0 && strcmp(self, "1/task/1") == 0);
	HOLDS(strncmp(reads("/proc/1/stat"), "1 (", 3) == 0);
	HOLDS(strcmp(row(reads("/proc/1/status"), "PPid:"), "\t0") == 0);
	HOLDS(strcmp(row(reads("/proc/1/status"), "NSpid:"), "\t1") == 0);
	HOLDS(strcmp(row(reads("/proc/1/status"), "NSpgid:"), "\t0") == 0);
	HOLDS(strcmp(row(reads("/proc/1/status"), "NSsid:"), "\t0") == 0);
	HOLDS(access("/proc/1/task/1/stat", F_OK) == 0);
	pid_t child = sleeper();
	HOLDS(child == 2 && access("/proc/2/stat", F_OK) == 0 && access("/proc/3", F_OK) == -1);
	HOLDS(kill(child, SIGKILL) == 0 && ends_well(child) == 0 && access("/proc/2", F_OK) == -1);
	return 0;
}

static int the_old_proc_shows_the_old_numbers(void)
{
	char path[64], inside[64], outside[64];
	pid_t child = waiting_init();
	HOLDS(child > 1);
	snprintf(path, sizeof path, "/proc/%d/status", child);
	snprintf(outside, sizeof outside, "\t%d", child);
	snprintf(inside, sizeof inside, "\t%d\t1", child);
	HOLDS(strcmp(row(reads(path), "\nPid:"), outside) == 0);
	char *numbers = row(reads(path), "NSpid:");
	size_t length = strlen(numbers);
	HOLDS(length >= strlen(inside) && strcmp(numbers + length - strlen(inside), inside) == 0);
	HOLDS(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	return 0;
}

static int self_leads_nowhere_elsewhere(void)
{
	/* A /proc of the namespace below, seen from here through a mount that it left. */
	char self[32];
	int ends[2], back[2];
	char byte;
	HOLDS(pipe(ends) == 0 && pipe(back) == 0);
	HOLDS(unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
	pid_t child = make(CLONE_NEWPID);
	if (child == 0) {
		int bad = mount("proc", FOLDER "/proc", "proc", 0, NULL);
		_exit(bad || write(ends[1], "x", 1) != 1 || read(back[0], &byte, 1) != 1);
	}
	HOLDS(read(ends[0], &byte, 1) == 1);
	REFUSED(readlink(FOLDER "/proc/self", self, sizeof self), ENOENT);
	HOLDS(access(FOLDER "/proc/1/stat", F_OK) == 0);
	HOLDS(strncmp(reads(FOLDER "/proc/1/stat"), "1 (", 3) == 0);
	HOLDS(write(back[1], "x", 1) == 1 && ends_well(child));
	HOLDS(access(FOLDER "/proc/1", F_OK) == -1 && umount(FOLDER "/proc") == 0);
	return 0;
}

static int files_name_them(void)
{
	unsigned long own = number_of("/proc/self/ns/pid");
	HOLDS(own && number_of("/proc/self/ns/pid_for_children") == own);
	HOLDS(unshare(CLONE_NEWPID) == 0);
	HOLDS(number_of("/proc/self/ns/pid") == own);
	/* The link is empty until the namespace has a first process. */
	char text[64];
	REFUSED(readlink("/proc/self/ns/pid_for_children", text, sizeof text), ENOENT);
	pid_t child = sleeper();
	HOLDS(child > 0);
	unsigned long theirs = number_of("/proc/self/ns/pid_for_children");
	HOLDS(theirs && theirs != own);
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/ns/pid", child);
	HOLDS(number_of(path) == theirs);
	HOLDS(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	return 0;
}

static int setns_is_for_children(void)
{
	char path[64];
	pid_t first = waiting_init();
	snprintf(path, sizeof path, "/proc/%d/ns/pid", first);
	int file = open(path, O_RDONLY | O_CLOEXEC), own = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
	HOLDS(file >= 0 && own >= 0);
	pid_t before = getpid();
	REFUSED(setns(file, CLONE_NEWUTS), EINVAL);
	HOLDS(setns(file, CLONE_NEWPID) == 0 && getpid() == before);
	pid_t child = fork();
	if (child == 0)
		/* The parent has no number there, and ancestors cannot be entered. */
		_exit(getpid() != 2 || getppid() != 0 || setns(own, CLONE_NEWPID) != -1 || errno != EINVAL);
	HOLDS(ends_well(child));
	/* Children are made in this process' namespace again. */
	HOLDS(setns(own, CLONE_NEWPID) == 0);
	child = fork();
	if (child == 0)
		_exit(getppid() != before);
	HOLDS(ends_well(child));
	HOLDS(kill(first, SIGKILL) == 0 && waitpid(first, NULL, 0) == first);
	/* A namespace without its first process takes no new ones. */
	HOLDS(setns(file, 0) == 0);
	REFUSED(fork(), ENOMEM);
	return 0;
}

static int a_pidfd_leads_in(void)
{
	pid_t first = waiting_init();
	int pidfd = syscall(SYS_pidfd_open, first, 0);
	HOLDS(pidfd >= 0 && setns(pidfd, CLONE_NEWPID) == 0);
	pid_t child = fork();
	if (child == 0)
		_exit(getpid() != 2);
	HOLDS(ends_well(child));
	HOLDS(kill(first, SIGKILL) == 0 && waitpid(first, NULL, 0) == first);
	return 0;
}

static int a_pidfd_from_outside_signals_nobody(void)
{
	int pidfd = syscall(SYS_pidfd_open, getpid(), 0);
	HOLDS(pidfd >= 0);
	pid_t child = make(CLONE_NEWPID);
	if (child == 0)
		_exit(syscall(SYS_pidfd_send_signal, pidfd, SIGTERM, NULL, 0) != -1 || errno != EINVAL);
	HOLDS(ends_well(child));
	HOLDS(syscall(SYS_pidfd_send_signal, pidfd, 0, NULL, 0) == 0);
	return 0;
}

static int init_waits_for_the_entered(void)
{
	int status;
	pid_t first = waiting_init();
	int pidfd = syscall(SYS_pidfd_open, first, 0);
	HOLDS(pidfd >= 0 && setns(pidfd, CLONE_NEWPID) == 0);
	pid_t child = sleeper();
	HOLDS(child > 0 && kill(first, SIGKILL) == 0);
	/* The process was killed with the namespace, and the first process stays until that one
	 * was waited for. */
	siginfo_t info = { 0 };
	HOLDS(waitid(P_PID, child, &info, WEXITED | WNOWAIT) == 0 && info.si_status == SIGKILL);
	sleep_ms(20);
	HOLDS(waitpid(first, &status, WNOHANG) == 0);
	HOLDS(waitpid(child, &status, 0) == child && WTERMSIG(status) == SIGKILL);
	HOLDS(waitpid(first, &status, 0) == first && WTERMSIG(status) == SIGKILL);
	return 0;
}

static int files_lead_on(void)
{
	char path[64];
	pid_t first = waiting_init();
	snprintf(path, sizeof path, "/proc/%d/ns/pid", first);
	int file = open(path, O_RDONLY | O_CLOEXEC), own = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
	HOLDS(file >= 0 && own >= 0);
	HOLDS(ioctl(file, NS_GET_NSTYPE) == CLONE_NEWPID);
	struct stat one, other;
	int parent = ioctl(file, NS_GET_PARENT);
	HOLDS(parent >= 0 && fstat(parent, &one) == 0 && fstat(own, &other) == 0 && one.st_ino == other.st_ino);
	int user = ioctl(file, NS_GET_USERNS);
	HOLDS(user >= 0 && fstat(user, &one) == 0 && stat("/proc/self/ns/user", &other) == 0 && one.st_ino == other.st_ino);
	REFUSED(ioctl(own, NS_GET_PARENT), EPERM);
	HOLDS(kill(first, SIGKILL) == 0 && waitpid(first, NULL, 0) == first);
	return 0;
}

static int numbers_are_translated_by_file(void)
{
	char path[64];
	pid_t first = waiting_init();
	snprintf(path, sizeof path, "/proc/%d/ns/pid", first);
	int file = open(path, O_RDONLY | O_CLOEXEC), uts = open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC);
	HOLDS(file >= 0 && uts >= 0);
	HOLDS(ioctl(file, NS_GET_PID_FROM_PIDNS, 1) == first && ioctl(file, NS_GET_TGID_FROM_PIDNS, 1) == first);
	HOLDS(ioctl(file, NS_GET_PID_IN_PIDNS, first) == 1 && ioctl(file, NS_GET_TGID_IN_PIDNS, first) == 1);
	REFUSED(ioctl(file, NS_GET_PID_FROM_PIDNS, 77), ESRCH);
	REFUSED(ioctl(file, NS_GET_PID_IN_PIDNS, getpid()), ESRCH);
	REFUSED(ioctl(uts, NS_GET_PID_FROM_PIDNS, 1), EINVAL);
	HOLDS(kill(first, SIGKILL) == 0 && waitpid(first, NULL, 0) == first);
	return 0;
}

struct clone3 {
	uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};

static pid_t make_with(uint64_t flags, pid_t *wanted, size_t count)
{
	struct clone3 args = { .flags = flags, .exit_signal = SIGCHLD, .set_tid = (uintptr_t)wanted, .set_tid_size = count };
	return syscall(SYS_clone3, &args, sizeof args);
}

static int numbers_can_be_chosen(void)
{
	pid_t wanted[2] = { 100, 0 };
	pid_t child = make_with(0, wanted, 1);
	if (child == 0)
		_exit(getpid() != 100);
	HOLDS(child == 100);
	REFUSED(make_with(0, wanted, 1), EEXIST);
	HOLDS(ends_well(child));
	/* The next trace continues at the same point. */
	child = fork();
	if (child == 0)
		_exit(0);
	HOLDS(child == 2 && ends_well(child));
	wanted[0] = 0;
	REFUSED(make_with(0, wanted, 1), EINVAL);
	wanted[0] = 7;
	REFUSED(make_with(CLONE_NEWPID, wanted, 1), EINVAL);
	wanted[0] = 1;
	wanted[1] = 50;
	child = make_with(CLONE_NEWPID, wanted, 2);
	if (child == 0)
		_exit(getpid() != 1);
	HOLDS(child == 50 && ends_well(child));
	REFUSED(make_with(0, wanted, 0), EINVAL);
	REFUSED(make_with(0, wanted, 33), EINVAL);
	return 0;
}

static int choosing_asks_for_rights(void)
{
	HOLDS(setresuid(USER, USER, USER) == 0);
	pid_t wanted = 100;
	REFUSED(make_with(0, &wanted, 1), EPERM);
	return 0;
}

static int last_number(void)
{
	HOLDS(writes("/proc/sys/kernel/ns_last_pid", "200") == 0 && atoi(reads("/proc/sys/kernel/ns_last_pid")) == 200);
	pid_t child = fork();
	if (child == 0)
		_exit(getpid() != 201);
	HOLDS(child == 201 && ends_well(child));
	return 0;
}

static int clone_tells_both_numbers(void)
{
	pid_t told = 0, *inside = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	HOLDS(inside != MAP_FAILED);
	pid_t child = syscall(SYS_clone, CLONE_NEWPID | CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | SIGCHLD, 0, &told, inside, 0);
	if (child == 0)
		_exit(*inside != 1 || getpid() != 1);
	HOLDS(told == child && ends_well(child));
	return 0;
}

static int credentials_name_the_sender(void)
{
	int pair[2], on = 1;
	struct ucred peer;
	socklen_t length = sizeof peer;
	HOLDS(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0 && setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0);
	HOLDS(getsockopt(pair[0], SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.pid == getpid());
	int ends[2];
	char byte;
	HOLDS(pipe(ends) == 0);
	pid_t child = make(CLONE_NEWPID);
	if (child == 0) {
		/* From inside, the maker of the pair has no number. */
		if (getsockopt(pair[0], SOL_SOCKET, SO_PEERCRED, &peer, &length) || peer.pid != 0)
			_exit(4);
		_exit(write(pair[1], "x", 1) != 1 || read(ends[0], &byte, 1) != 1);
	}
	char data[8], control[CMSG_SPACE(sizeof peer)];
	struct iovec part = { data, sizeof data };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	HOLDS(recvmsg(pair[0], &message, 0) == 1);
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	HOLDS(head && head->cmsg_type == SCM_CREDENTIALS);
	memcpy(&peer, CMSG_DATA(head), sizeof peer);
	HOLDS(peer.pid == child);
	HOLDS(write(ends[1], "x", 1) == 1 && ends_well(child));
	return 0;
}

static int semaphores_name_their_user(void)
{
	int set = semget(IPC_PRIVATE, 1, 0600);
	HOLDS(set >= 0);
	int ends[2], back[2];
	char byte;
	HOLDS(pipe(ends) == 0 && pipe(back) == 0);
	pid_t child = make(CLONE_NEWPID);
	if (child == 0) {
		struct sembuf up = { 0, 1, 0 };
		int bad = semop(set, &up, 1) || semctl(set, 0, GETPID) != 1;
		_exit(bad || write(ends[1], "x", 1) != 1 || read(back[0], &byte, 1) != 1);
	}
	HOLDS(read(ends[0], &byte, 1) == 1);
	int seen = semctl(set, 0, GETPID);
	HOLDS(write(back[1], "x", 1) == 1 && ends_well(child) && semctl(set, 0, IPC_RMID) == 0);
	HOLDS(seen == child);
	return 0;
}

static int locks_name_their_owner(void)
{
	int file = open(FOLDER "/lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	HOLDS(file >= 0);
	int ends[2], back[2];
	char byte;
	HOLDS(pipe(ends) == 0 && pipe(back) == 0);
	pid_t child = make(CLONE_NEWPID);
	if (child == 0) {
		struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
		int bad = fcntl(file, F_SETLK, &lock);
		pid_t below = fork();
		if (below == 0) {
			struct flock seen = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
			_exit(fcntl(file, F_GETLK, &seen) || seen.l_pid != 1);
		}
		bad |= !ends_well(below);
		_exit(bad || write(ends[1], "x", 1) != 1 || read(back[0], &byte, 1) != 1);
	}
	HOLDS(read(ends[0], &byte, 1) == 1);
	struct flock seen = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	HOLDS(fcntl(file, F_GETLK, &seen) == 0 && seen.l_type == F_WRLCK && seen.l_pid == child);
	HOLDS(write(back[1], "x", 1) == 1 && ends_well(child));
	return 0;
}

static int owners_of_files(void)
{
	int ends[2];
	HOLDS(pipe(ends) == 0);
	HOLDS(fcntl(ends[0], F_SETOWN, 1) == 0 && fcntl(ends[0], F_GETOWN) == 1);
	REFUSED(fcntl(ends[0], F_SETOWN, 4711), ESRCH);
	HOLDS(setsid() == 1 && fcntl(ends[0], F_SETOWN, -1) == 0);
	struct f_owner_ex owner = { 0 };
	HOLDS(fcntl(ends[0], F_GETOWN_EX, &owner) == 0 && owner.type == F_OWNER_PGRP && owner.pid == 1);
	return 0;
}

static int terminals_name_groups(void)
{
	int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC), unlocked = 0;
	HOLDS(master >= 0 && ioctl(master, TIOCSPTLCK, &unlocked) == 0);
	char name[64];
	HOLDS(ptsname_r(master, name, sizeof name) == 0);
	HOLDS(setsid() == 1);
	int terminal = open(name, O_RDWR | O_CLOEXEC);
	HOLDS(terminal >= 0 && tcgetpgrp(terminal) == 1 && tcgetsid(terminal) == 1);
	pid_t child = sleeper();
	HOLDS(setpgid(child, child) == 0);
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGTTOU);
	sigprocmask(SIG_BLOCK, &set, NULL);
	HOLDS(tcsetpgrp(terminal, child) == 0 && tcgetpgrp(terminal) == child);
	REFUSED(tcsetpgrp(terminal, 4711), ESRCH);
	HOLDS(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	return 0;
}

static int tracers_use_their_own(void)
{
	int status;
	unsigned long message = 0;
	pid_t child = fork();
	if (child == 0) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		pid_t below = make(CLONE_NEWPID);
		if (below == 0)
			_exit(getpid() != 1);
		_exit(!ends_well(below));
	}
	HOLDS(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
	HOLDS(ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACEFORK | PTRACE_O_TRACECLONE) == 0);
	HOLDS(ptrace(PTRACE_CONT, child, 0, 0) == 0);
	HOLDS(waitpid(child, &status, 0) == child && WIFSTOPPED(status) && status >> 16);
	HOLDS(ptrace(PTRACE_GETEVENTMSG, child, 0, &message) == 0 && message > 1);
	pid_t below = message;
	HOLDS(below == 3 && waitpid(below, &status, __WALL) == below && WIFSTOPPED(status));
	HOLDS(ptrace(PTRACE_CONT, below, 0, 0) == 0 && ptrace(PTRACE_CONT, child, 0, 0) == 0);
	HOLDS(waitpid(below, &status, __WALL) == below && status == 0);
	while (waitpid(child, &status, 0) == child && WIFSTOPPED(status))
		ptrace(PTRACE_CONT, child, 0, WSTOPSIG(status) == SIGCHLD ? SIGCHLD : 0);
	HOLDS(status == 0);
	return 0;
}

static int others_are_named_inside(void)
{
	pid_t child = sleeper();
	struct rlimit limit;
	HOLDS(child == 2);
	HOLDS(setpriority(PRIO_PROCESS, child, 5) == 0 && getpriority(PRIO_PROCESS, child) == 5);
	HOLDS(prlimit(child, RLIMIT_NOFILE, NULL, &limit) == 0);
	HOLDS(sched_getscheduler(child) == SCHED_OTHER);
	clockid_t clock;
	struct timespec time;
	HOLDS(clock_getcpuclockid(child, &clock) == 0 && clock_gettime(clock, &time) == 0);
	HOLDS(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	REFUSED(prlimit(4711, RLIMIT_NOFILE, NULL, &limit), ESRCH);
	REFUSED(sched_getscheduler(4711), ESRCH);
	return 0;
}

static void *tell_tid(void *place)
{
	*(pid_t *)place = syscall(SYS_gettid);
	return NULL;
}

static int threads_have_numbers(void)
{
	pthread_t thread;
	pid_t tid = 0;
	HOLDS(pthread_create(&thread, NULL, tell_tid, &tid) == 0 && pthread_join(thread, NULL) == 0);
	HOLDS(tid == 2);
	void *by_number = NULL, *own = NULL, *list[3] = { list, NULL, NULL };
	size_t length;
	HOLDS(syscall(SYS_get_robust_list, 0, &own, &length) == 0);
	HOLDS(syscall(SYS_set_robust_list, list, sizeof list) == 0);
	HOLDS(syscall(SYS_get_robust_list, 1, &by_number, &length) == 0 && by_number == list);
	HOLDS(syscall(SYS_set_robust_list, own, length) == 0);
	/* The kernel releases mutexes of a robust list. They contain the thread's number inside
	 * the namespace. */
	pthread_mutexattr_t attributes;
	pthread_mutex_t *mutex = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	HOLDS(mutex != MAP_FAILED);
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	HOLDS(pthread_mutex_init(mutex, &attributes) == 0);
	pid_t child = fork();
	if (child == 0)
		_exit(pthread_mutex_lock(mutex) != 0);
	HOLDS(ends_well(child));
	HOLDS(pthread_mutex_lock(mutex) == EOWNERDEAD);
	return 0;
}

static int mounts_a_proc(void)
{
	HOLDS(getpid() == 1 && mount("proc", FOLDER "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0);
	HOLDS(strncmp(reads(FOLDER "/proc/1/stat"), "1 (", 3) == 0);
	return 0;
}

static int root_inside_mounts_a_proc(void)
{
	HOLDS(become_root_inside() == 0 && unshare(CLONE_NEWNS) == 0);
	/* A /proc of the initial PID namespace is refused: the user does not own that one. */
	REFUSED(mount("proc", FOLDER "/proc", "proc", 0, NULL), EPERM);
	HOLDS(as_init(mounts_a_proc));
	return 0;
}

static int refused_a_proc(void)
{
	REFUSED(mount("proc", FOLDER "/proc", "proc", 0, NULL), EPERM);
	return 0;
}

static int hides_and_enters(void)
{
	/* Root hides a part of /proc. A process with fewer rights cannot uncover it. */
	HOLDS(unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
	HOLDS(mount("tmpfs", "/proc/sys", "tmpfs", 0, NULL) == 0);
	HOLDS(setresgid(USER, USER, USER) == 0 && setresuid(USER, USER, USER) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0);
	HOLDS(become_root_inside() == 0 && unshare(CLONE_NEWNS) == 0);
	HOLDS(as_init(refused_a_proc));
	return 0;
}

static int a_thousand_come_and_go(void)
{
	for (int i = 0; i < 1000; i++) {
		pid_t child = make(CLONE_NEWPID);
		if (child == 0) {
			if (fork() == 0)
				_exit(getpid() != 2);
			_exit(getpid() != 1);
		}
		HOLDS(child > 0 && ends_well(child));
	}
	return 0;
}

static int numbers_wrap(void)
{
	char text[32];
	int end = atoi(reads("/proc/sys/kernel/pid_max"));
	snprintf(text, sizeof text, "%d", end - 2);
	HOLDS(writes("/proc/sys/kernel/ns_last_pid", text) == 0);
	for (int i = 0; i < 3; i++) {
		static const pid_t after[] = { 300, 301 };
		pid_t child = fork();
		if (child == 0)
			_exit(0);
		HOLDS(child == (i == 0 ? end - 1 : after[i - 1]) && ends_well(child));
	}
	return 0;
}

static int inits(int (*part)(void))
{
	return as_init(part);
}
#define INIT(part)                                                                                  \
	static int part##_there(void)                                                               \
	{                                                                                           \
		return !inits(part);                                                                \
	}
#define PROC(part)                                                                                  \
	static int part##_there(void)                                                               \
	{                                                                                           \
		return !with_proc(part);                                                            \
	}
INIT(first_is_one)
INIT(init_has_no_siblings)
INIT(nested_init)
INIT(groups_and_sessions)
INIT(waits_by_number)
INIT(senders_are_seen_from_inside)
INIT(init_is_shielded_inside)
INIT(everybody_is_those_inside)
INIT(orphans_go_to_init)
INIT(subreapers_come_first)
PROC(nested_number)
PROC(proc_shows_the_namespace)
INIT(numbers_can_be_chosen)
INIT(choosing_asks_for_rights)
INIT(last_number)
INIT(owners_of_files)
INIT(terminals_name_groups)
INIT(tracers_use_their_own)
INIT(others_are_named_inside)
INIT(threads_have_numbers)
INIT(numbers_wrap)

int main(void)
{
	NEED(geteuid() == 0);
	umask(0);
	mkdir("/tmp", 01777);
	NEED(mkdir(FOLDER, 0777) == 0 || errno == EEXIST);
	NEED(mkdir(FOLDER "/proc", 0777) == 0 || errno == EEXIST);

	PROMISE("the first process of a namespace is 1, and its parent 0", in_child(first_is_one_there, 0));
	PROMISE("its maker knows it by another number", in_child(outside_has_another_number, 0));
	PROMISE("unshare is for the children, the caller stays", in_child(unshare_is_for_children, 0));
	PROMISE("after the end of the first process none comes", in_child(after_init_none_comes, 0));
	PROMISE("threads are in one namespace, and nobody makes a third one", in_child(threads_do_not_mix, 0));
	PROMISE("the first process makes no siblings", in_child(init_has_no_siblings_there, 0));
	PROMISE("a user makes one in a user namespace only", in_child(rights_are_asked, USER));
	PROMISE("namespaces nest", in_child(nested_init_there, 0));
	PROMISE("they are 32 levels deep at most", in_child(depth_is_limited, 0));
	PROMISE("there are as many as max_pid_namespaces says", in_child(number_is_limited, 0));
	PROMISE("processes outside cannot be named, their groups are 0", in_child(processes_outside_have_no_number, 0));
	PROMISE("groups and sessions have numbers inside", in_child(groups_and_sessions_there, 0));
	PROMISE("children are waited for by their numbers", in_child(waits_by_number_there, 0));
	PROMISE("a parent outside waits by the numbers that it knows", in_child(parents_wait_by_their_own, 0));
	PROMISE("a signal names its sender as the receiver knows it", in_child(senders_are_seen_from_inside_there, 0));
	PROMISE("a sender outside is 0", in_child(senders_from_outside_have_none, 0));
	PROMISE("signals from inside without a handler do nothing to the first process", in_child(init_is_shielded_inside_there, 0));
	PROMISE("SIGKILL and SIGSTOP from outside do, others do not", in_child(ancestors_kill_and_stop, 0));
	PROMISE("and signals that a tracer is told of", in_child(a_traced_init_stops, 0));
	PROMISE("a fault of its own ends it", in_child(a_fault_ends_init, 0));
	PROMISE("kill(-1) is for those inside, the first and the caller left out", in_child(everybody_is_those_inside_there, 0));
	PROMISE("orphans become the first process' children", in_child(orphans_go_to_init_there, 0));
	PROMISE("or those of a subreaper in the namespace", in_child(subreapers_come_first_there, 0));
	PROMISE("a subreaper outside gets none", in_child(subreapers_outside_do_not, 0));
	PROMISE("all end with the first process, whose status comes last", in_child(all_end_with_init, 0));
	PROMISE("fdinfo of a pidfd and status tell the number of each level", in_child(nested_number_there, 0));
	PROMISE("a /proc mounted inside shows the processes of the namespace", in_child(proc_shows_the_namespace_there, 0));
	PROMISE("the one outside shows them by the numbers outside", in_child(the_old_proc_shows_the_old_numbers, 0));
	PROMISE("\"self\" of another namespace's /proc leads nowhere", in_child(self_leads_nowhere_elsewhere, 0));
	PROMISE("/proc/PID/ns tells a process' own and its children's", in_child(files_name_them, 0));
	PROMISE("setns is for the children, and leads downwards only", in_child(setns_is_for_children, 0));
	PROMISE("a pidfd leads in", in_child(a_pidfd_leads_in, 0));
	PROMISE("a pidfd of a process outside signals nobody", in_child(a_pidfd_from_outside_signals_nobody, 0));
	PROMISE("the first process stays until those are waited for that entered", in_child(init_waits_for_the_entered, 0));
	PROMISE("a file tells the namespace above and the owner", in_child(files_lead_on, 0));
	PROMISE("a file translates numbers", in_child(numbers_are_translated_by_file, 0));
	PROMISE("clone3 gives the numbers that it is told", in_child(numbers_can_be_chosen_there, 0));
	PROMISE("to a caller with the right to choose them", in_child(choosing_asks_for_rights_there, 0));
	PROMISE("ns_last_pid is the namespace's", in_child(last_number_there, 0));
	PROMISE("numbers begin again where they end", in_child(numbers_wrap_there, 0));
	PROMISE("clone tells the parent and the child a number each", in_child(clone_tells_both_numbers, 0));
	PROMISE("credentials name the sender as the receiver knows it", in_child(credentials_name_the_sender, 0));
	PROMISE("a semaphore names who changed it so", in_child(semaphores_name_their_user, 0));
	PROMISE("F_GETLK names the owner of a lock so", in_child(locks_name_their_owner, 0));
	PROMISE("F_SETOWN takes and F_GETOWN tells numbers inside", in_child(owners_of_files_there, 0));
	PROMISE("a terminal's group and session have numbers inside", in_child(terminals_name_groups_there, 0));
	PROMISE("a tracer is told the numbers that it knows", in_child(tracers_use_their_own_there, 0));
	PROMISE("priorities, limits, schedulers and clocks take numbers inside", in_child(others_are_named_inside_there, 0));
	PROMISE("threads have numbers, and robust mutexes know them by these", in_child(threads_have_numbers_there, 0));
	PROMISE("root inside mounts a /proc of its own namespace", in_child(root_inside_mounts_a_proc, USER));
	PROMISE("but none that lays open what root hid", in_child(hides_and_enters, 0));
	PROMISE("a thousand come and go", in_child(a_thousand_come_and_go, 0));

	NEED(unlink(FOLDER "/lock") == 0 && rmdir(FOLDER "/proc") == 0 && rmdir(FOLDER) == 0);
	return conclude();
}
