/* Programs that run as their owner (set-user-ID): tests which actions the user that started them
 * may take on them. Runs as root; copies itself to a file that user 1000 executes. An argument is
 * the percentage of rounds that its races run. */
#include "promise.h"
#include <grp.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/fsuid.h>
#include <sys/sendfile.h>
#include <sys/user.h>

#define USER 1000
#define PROGRAM "/tmp/runs-as-root"
#define WITHOUT "/tmp/not-executable"
#define SECRET "/tmp/execute-only"
#define OTHERS "/tmp/runs-as-user"

/* A copy of this program. */
static void copy(const char *path, mode_t mode)
{
	int from = open("/proc/self/exe", O_RDONLY), to = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0755);
	struct stat about;
	NEED(from >= 0 && to >= 0 && fstat(from, &about) == 0);
	NEED(sendfile(to, from, NULL, about.st_size) == about.st_size && fchmod(to, mode) == 0);
	close(from);
	close(to);
}

static void become_user(void)
{
	NEED(setresgid(USER, USER, USER) == 0 && setresuid(USER, USER, USER) == 0);
	/* A process that changed its user is not dumpable; a plain program of that user is. */
	NEED(prctl(PR_SET_DUMPABLE, 1) == 0);
}

/* Executes the copy in a role; it inherits two descriptors. */
static void play(const char *role, int read_end, int write_end)
{
	char numbers[2][12];
	snprintf(numbers[0], sizeof numbers[0], "%d", read_end);
	snprintf(numbers[1], sizeof numbers[1], "%d", write_end);
	execl(PROGRAM, PROGRAM, role, numbers[0], numbers[1], NULL);
	_exit(99);
}

static pid_t clone_with(int flags)
{
	return syscall(SYS_clone, flags, 0, 0, 0, 0);
}

/* Executes the copy with so large an environment that this takes long. */
static void play_slowly(char *role)
{
	enum { STRINGS = 14, LENGTH = 120000 };
	static char text[LENGTH + 1];
	char *words[] = { PROGRAM, role, "0", "0", NULL }, *environment[STRINGS + 1] = { NULL };
	memset(text, 'x', LENGTH);
	for (int i = 0; i < STRINGS; i++)
		environment[i] = text;
	execve(PROGRAM, words, environment);
	_exit(99);
}

static int64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Waits for a different part of `most` ns each time. */
static void stay_some_time(int64_t most)
{
	int64_t end = now_ns() + most * (random() % 1000) / 1000;
	while (now_ns() < end)
		;
}

/* Roles. */
static int whoami(void)
{
	return geteuid() == 0 ? 0 : 1;
}

/* Continues as the tracer of its child, and reports how the child ended. */
static int trace(int write_end)
{
	int status;
	pid_t child;
	if (geteuid() || write(write_end, "x", 1) != 1)
		return 98;
	while ((child = waitpid(-1, &status, __WALL)) > 0 && WIFSTOPPED(status))
		ptrace(PTRACE_CONT, child, 0, 0);
	return child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 97;
}

/* Lets its child end, and continues to live. */
static int outlive(int write_end)
{
	int status;
	if (geteuid() || write(write_end, "x", 1) != 1 || waitpid(-1, &status, __WALL) < 0)
		return 98;
	sleep_ms(20);
	return 0;
}

/* Whether this process runs as root and its user's seccomp filter denies it a call. */
static int bound(void)
{
	return geteuid() == 0 && syscall(SYS_getpgid, 0) == -1;
}

/* Whether its parent, which runs as the user, becomes its tracer. */
static int invite(void)
{
	return geteuid() == 0 && ptrace(PTRACE_TRACEME, 0, 0, 0) == -1 && errno == EPERM ? 0 : 1;
}

static int stay(int read_end, int write_end)
{
	char byte;
	return write(write_end, "x", 1) == 1 && read(read_end, &byte, 1) >= 0 ? 0 : 98;
}

/* Waits until another process has tried to make one of its allocations fail (fail-nth); returns
 * 0 if none will. */
static int spared(int read_end, int write_end)
{
	char nth[12] = "";
	int refused = stay(read_end, write_end) == 0, file = open("/proc/self/fail-nth", O_RDONLY);
	return refused && file >= 0 && read(file, nth, sizeof nth - 1) > 0 && atoi(nth) == 0 ? 0 : 98;
}

static void tracing(void)
{
	int status, ends[2];
	char byte;
	NEED(pipe(ends) == 0);
	IN_CHILD(status, become_user(); play("whoami", 0, 0));
	PROMISE("a set-user-ID program runs as its owner", status == 0);
	IN_CHILD(status, become_user();
		pid_t child = fork();
		if (child == 0) {
			NEED(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0);
			play("whoami", 0, 0);
		}
		while (waitpid(child, &status, 0) == child && WIFSTOPPED(status))
			ptrace(PTRACE_CONT, child, 0, 0);
		_exit(WEXITSTATUS(status)));
	PROMISE("not under a tracer without rights", WIFEXITED(status) && WEXITSTATUS(status) == 1);
	IN_CHILD(status, become_user();
		if (fork() == 0) {
			NEED(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0 && read(ends[0], &byte, 1) == 1);
			play("whoami", 0, 0);
		}
		play("trace", ends[0], ends[1]));
	PROMISE("nor where the tracer has them when the program is executed, and had none when tracing began",
		WIFEXITED(status) && WEXITSTATUS(status) == 1);
	IN_CHILD(status,
		pid_t child = fork();
		if (child == 0) {
			become_user();
			NEED(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0);
			play("whoami", 0, 0);
		}
		while (waitpid(child, &status, 0) == child && WIFSTOPPED(status))
			ptrace(PTRACE_CONT, child, 0, 0);
		_exit(WEXITSTATUS(status)));
	PROMISE("PTRACE_TRACEME gives no rights of the parent", WIFEXITED(status) && WEXITSTATUS(status) == 1);
	IN_CHILD(status,
		pid_t child = fork();
		if (child == 0) {
			become_user();
			NEED(read(ends[0], &byte, 1) == 1);
			play("whoami", 0, 0);
		}
		NEED(ptrace(PTRACE_SEIZE, child, 0, 0) == 0 && write(ends[1], "x", 1) == 1);
		while (waitpid(child, &status, 0) == child && WIFSTOPPED(status))
			ptrace(PTRACE_CONT, child, 0, 0);
		_exit(WEXITSTATUS(status)));
	PROMISE("under root's eyes it runs as its owner", WIFEXITED(status) && WEXITSTATUS(status) == 0);
	close(ends[0]);
	close(ends[1]);
}

static void *confine_all(void *most)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpgid, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof code / sizeof *code, code };
	stay_some_time(*(int64_t *)most);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
	return NULL;
}

/* Percent of the rounds of each race. */
static int share = 100;

static int part_of(int rounds)
{
	return rounds * share / 100;
}

/* The user attaches while a set-user-ID program is being loaded. */
static void meanwhile(void)
{
	const int rounds = part_of(150);
	int status, broken_ = 0, ends[2];
	char byte;
	NEED(pipe(ends) == 0);
	int64_t long_ = INT64_MAX;
	for (int i = 0; i < 5; i++) {
		int64_t begun = now_ns();
		IN_CHILD(status, play_slowly("whoami"));
		NEED(status == 0);
		long_ = now_ns() - begun < long_ ? now_ns() - begun : long_;
	}
	for (int round = 0; round < rounds; round++) {
		IN_CHILD(status, become_user();
			srandom(round);
			pid_t child = fork();
			if (child == 0) {
				NEED(write(ends[1], "x", 1) == 1);
				play_slowly("whoami");
			}
			NEED(read(ends[0], &byte, 1) == 1);
			stay_some_time(long_);
			int traces = ptrace(PTRACE_SEIZE, child, 0, 0) == 0;
			while (waitpid(child, &status, __WALL) == child && WIFSTOPPED(status))
				ptrace(PTRACE_CONT, child, 0, 0);
			_exit(traces && status == 0));
		broken_ += status != 0;
	}
	PROMISE("no user becomes the tracer of a program that is about to run as its owner", broken_ == 0);
	broken_ = 0;
	for (int round = 0; round < rounds; round++) {
		IN_CHILD(status, become_user();
			srandom(round);
			pthread_t other;
			NEED(pthread_create(&other, NULL, confine_all, &long_) == 0);
			play_slowly("bound"));
		broken_ += status != 0;
	}
	PROMISE("nor gives it a filter from another thread", broken_ == 0);
	close(ends[0]);
	close(ends[1]);
}

/* A child that has root directory, working directory and umask in common with its maker. */
static pid_t sharer(void)
{
	pid_t child = clone_with(CLONE_FS | SIGCHLD);
	NEED(child >= 0);
	if (child == 0)
		for (;;)
			pause();
	return child;
}

static void sharing(void)
{
	int status;
	IN_CHILD(status, become_user();
		pid_t child = sharer();
		if (fork() == 0)
			play("whoami", 0, 0);
		NEED(wait(&status) > 0 && WEXITSTATUS(status) == 0);
		pid_t again = clone_with(CLONE_FS | SIGCHLD);
		if (again == 0)
			play("whoami", 0, 0);
		NEED(waitpid(again, &status, 0) == again);
		int withheld = WEXITSTATUS(status) == 1;
		NEED(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
		_exit(withheld ? 0 : 1));
	PROMISE("a set-user-ID program whose working directory others change runs as its user", status == 0);
	IN_CHILD(status, become_user();
		pid_t child = sharer();
		NEED(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
		play("whoami", 0, 0));
	PROMISE("as its owner once they are gone", status == 0);
	IN_CHILD(status,
		pid_t child = sharer();
		pid_t other = clone_with(CLONE_FS | SIGCHLD);
		if (other == 0) {
			execl(OTHERS, OTHERS, "whoami", "0", "0", NULL);
			_exit(99);
		}
		NEED(waitpid(other, &status, 0) == other && kill(child, SIGKILL) == 0);
		_exit(WEXITSTATUS(status) == 1 ? 0 : 1));
	PROMISE("a process with CAP_SETUID takes on the owner's ID nevertheless", status == 0);
	IN_CHILD(status, become_user();
		pid_t child = fork();
		if (child == 0)
			play("invite", 0, 0);
		NEED(waitpid(child, &status, 0) == child);
		_exit(WEXITSTATUS(status)));
	PROMISE("PTRACE_TRACEME refuses a parent with fewer capabilities", status == 0);
}

/* Traces a program that its user may execute but not read; returns whether its memory can be
 * read. */
static int looks_into(const char *path, int by_user)
{
	int status, read_word, written;
	struct user_regs_struct registers;
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		if (!by_user)
			become_user();
		NEED(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0);
		execl(path, path, "whoami", "0", "0", NULL);
		_exit(99);
	}
	NEED(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
	NEED(ptrace(PTRACE_GETREGS, child, 0, &registers) == 0);
	errno = 0;
	long word = ptrace(PTRACE_PEEKTEXT, child, (void *)registers.rip, 0);
	read_word = errno;
	written = ptrace(PTRACE_POKEDATA, child, (void *)registers.rsp, (void *)word) == 0 ? 0 : errno;
	NEED(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	return read_word == 0 && written == 0 ? 1 : read_word == EIO && written == EIO ? 0 : -1;
}

static void unreadable(void)
{
	int status;
	copy(SECRET, 0711);
	IN_CHILD(status, become_user(); _exit(looks_into(SECRET, 1) == 0 && looks_into("/proc/self/exe", 1) == 1 ? 0 : 1));
	PROMISE("a tracer reads no program that its user may execute only", status == 0);
	unlink(SECRET);
}

/* Threads of one process change different parts of their credentials and limits. */
static _Atomic int is_over;

static void *change_fsuid(void *nothing)
{
	while (!is_over)
		setfsuid(0);
	return nothing;
}

static void *keep_limit(void *nothing)
{
	struct rlimit limit;
	while (!is_over)
		if (getrlimit(RLIMIT_CORE, &limit) == 0)
			setrlimit(RLIMIT_CORE, &limit);
	return nothing;
}

static void updates(void)
{
	enum { ROUNDS = 30000 };
	int status;
	IN_CHILD(status,
		pthread_t other;
		gid_t group, had;
		int lost = 0;
		NEED(pthread_create(&other, NULL, change_fsuid, NULL) == 0);
		for (int round = 1; round <= ROUNDS; round++) {
			group = round;
			NEED(syscall(SYS_setgroups, 1, &group) == 0 && getgroups(1, &had) == 1);
			lost += had != group;
		}
		is_over = 1;
		_exit(lost != 0));
	PROMISE("setfsuid of one thread brings nothing back that another changed", status == 0);
	IN_CHILD(status,
		pthread_t other;
		struct rlimit limit = { 0, ROUNDS * 2 };
		int lost = 0;
		NEED(setrlimit(RLIMIT_CORE, &limit) == 0);
		become_user();
		NEED(pthread_create(&other, NULL, keep_limit, NULL) == 0);
		for (int round = ROUNDS; round > 0; round--) {
			limit = (struct rlimit){ 0, ROUNDS + round };
			/* Whether or not the new limit is lower than the value that the other
			 * thread read meanwhile, it must never be higher afterwards. */
			if (setrlimit(RLIMIT_CORE, &limit) == 0 && getrlimit(RLIMIT_CORE, &limit) == 0)
				lost += limit.rlim_max > (rlim_t)(ROUNDS + round);
		}
		is_over = 1;
		_exit(lost != 0));
	PROMISE("a hard limit that was lowered stays so beside another thread's setrlimit", status == 0);
}

static void signals(void)
{
	int status, ends[2];
	char byte;
	NEED(pipe(ends) == 0);
	static const int chosen[] = { SIGTERM, SIGKILL, SIGSEGV };
	for (int i = 0; i < 3; i++) {
		IN_CHILD(status, become_user();
			if (clone_with(chosen[i]) == 0) {
				NEED(read(ends[0], &byte, 1) == 1);
				_exit(0);
			}
			play("outlive", ends[0], ends[1]));
		PROMISE("a child's exit signal is not for the program that its parent becomes", status == 0);
	}
	sigset_t both, pending;
	sigemptyset(&both);
	sigaddset(&both, SIGCHLD);
	sigaddset(&both, SIGTERM);
	NEED(sigprocmask(SIG_BLOCK, &both, NULL) == 0);
	pid_t child = clone_with(SIGTERM);
	if (child == 0)
		play("whoami", 0, 0);
	NEED(waitpid(child, &status, __WALL) == child && sigpending(&pending) == 0);
	PROMISE("a program that is executed ends with SIGCHLD", sigismember(&pending, SIGCHLD) && !sigismember(&pending, SIGTERM));
	child = clone_with(SIGTERM);
	if (child == 0)
		_exit(0);
	NEED(waitpid(child, &status, __WALL) == child && sigpending(&pending) == 0);
	PROMISE("without it the chosen signal comes", sigismember(&pending, SIGTERM));
	NEED(sigtimedwait(&both, NULL, &(struct timespec){ 0 }) > 0);
	NEED(sigtimedwait(&both, NULL, &(struct timespec){ 0 }) > 0 && sigprocmask(SIG_UNBLOCK, &both, NULL) == 0);
	IN_CHILD(status, become_user();
		siginfo_t info = { .si_code = SI_QUEUE };
		_exit(syscall(SYS_rt_sigqueueinfo, getppid(), 0, &info) == -1 && errno == EPERM &&
			syscall(SYS_rt_sigqueueinfo, getpid(), 0, &info) == 0 ? 0 : 1));
	PROMISE("signal 0 asks, with sigqueue too", status == 0);
	close(ends[0]);
	close(ends[1]);
}

static void scheduling(void)
{
	int status, up[2], down[2];
	NEED(pipe(up) == 0 && pipe(down) == 0);
	IN_CHILD(status, become_user();
		char byte;
		pid_t child = fork();
		if (child == 0)
			play("stay", down[0], up[1]);
		cpu_set_t all;
		NEED(read(up[0], &byte, 1) == 1 && sched_getaffinity(0, sizeof all, &all) == 0);
		int refused = setpriority(PRIO_PROCESS, child, 5) == -1 && errno == EPERM;
		refused &= sched_setaffinity(child, sizeof all, &all) == -1 && errno == EPERM;
		NEED(setpriority(PRIO_PROCESS, 0, 5) == 0 && write(down[1], "x", 1) == 1);
		waitpid(child, &status, 0);
		_exit(refused ? 0 : 1));
	PROMISE("its starter does not choose its nice value or its CPUs", status == 0);
	if (access("/proc/self/fail-nth", F_OK) != 0)
		return;
	IN_CHILD(status, become_user();
		char byte;
		int file = open("/proc/self/fail-nth", O_RDWR | O_CLOEXEC);
		NEED(file >= 0 && write(file, "100000", 6) == 6);
		if (fork() == 0) {
			NEED(read(up[0], &byte, 1) == 1);
			int refused = write(file, "50", 2) == -1 && errno == EPERM;
			_exit(write(down[1], "x", refused) == 1 ? 0 : 1);
		}
		alarm(20);
		play("spared", down[0], up[1]));
	PROMISE("or which of its allocations fails", status == 0);
}

static void places(void)
{
	static char *const words[] = { "x", "whoami", NULL };
	int status;
	NEED((mkdir(WITHOUT, 0755) == 0 || errno == EEXIST) && mount("none", WITHOUT, "tmpfs", MS_NOEXEC, NULL) == 0);
	copy(WITHOUT "/program", 04755);
	IN_CHILD(status, execv(WITHOUT "/program", words); _exit(errno == EACCES ? 0 : 1));
	PROMISE("no program of a mount with noexec is executed", status == 0);
	IN_CHILD(status, int file = open(WITHOUT "/program", O_RDONLY);
		syscall(SYS_execveat, file, "", words, NULL, AT_EMPTY_PATH); _exit(errno == EACCES ? 0 : 1));
	PROMISE("nor by its descriptor", status == 0);
	IN_CHILD(status, int file = open(WITHOUT "/program", O_PATH);
		syscall(SYS_execveat, file, "", words, NULL, AT_EMPTY_PATH); _exit(errno == EACCES ? 0 : 1));
	PROMISE("nor by one that is only a place", status == 0);
	NEED(umount(WITHOUT) == 0);
}

static void terminals(void)
{
	int status;
	IN_CHILD(status, become_user();
		struct stat about;
		int master = open("/dev/ptmx", O_RDWR | O_NOCTTY);
		NEED(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0 && stat(ptsname(master), &about) == 0);
		_exit(about.st_uid == USER && open(ptsname(master), O_RDWR | O_NOCTTY) >= 0 ? 0 : 1));
	PROMISE("a pseudo-terminal is its opener's", status == 0);
}

/* Programs that change one file's metadata at the same time, each with its own rights. */
static void races(void)
{
	enum { LOOKS = 4 };
	const int rounds = part_of(4000);
	struct stat about;
	int given = 0, lost = 0, file;

	copy(PROGRAM, 0755);
	pid_t owner = fork();
	if (owner == 0) {
		become_user();
		for (;;)
			chmod(PROGRAM, 04755);
	}
	for (int round = 0; round < rounds; round++) {
		NEED(chown(PROGRAM, USER, USER) == 0);
		NEED(stat(PROGRAM, &about) == 0 && chown(PROGRAM, 0, 0) == 0);
		for (int look = 0; look < LOOKS; look++) {
			NEED(stat(PROGRAM, &about) == 0 && about.st_uid == 0);
			given += (about.st_mode & S_ISUID) != 0;
		}
	}
	kill(owner, SIGKILL);
	NEED(waitpid(owner, NULL, 0) == owner);
	PROMISE("a former owner makes no set-user-ID program of root's file", given == 0);

	copy(PROGRAM, 04777);
	NEED((file = open(PROGRAM, O_WRONLY | O_CLOEXEC)) >= 0);
	pid_t writer = fork();
	if (writer == 0) {
		become_user();
		for (;;)
			NEED(pwrite(file, "x", 1, 0) == 1);
	}
	for (int round = 0; round < rounds; round++) {
		NEED(chmod(PROGRAM, 04777) == 0 && chmod(PROGRAM, 04770) == 0 && stat(PROGRAM, &about) == 0);
		lost += (about.st_mode & 0777) != 0770;
	}
	kill(writer, SIGKILL);
	NEED(waitpid(writer, NULL, 0) == writer && close(file) == 0);
	PROMISE("a chmod stays beside a write that takes the right", lost == 0);
}

/* In a sticky directory a user removes no file that another one makes between the look at the old
 * file's owner and the removal. */
static void sticky_names(void)
{
	enum { USERS = 3 };
	const int rounds = part_of(60000);
	pid_t users[USERS];
	struct stat mine, there;
	int lost = 0, made = 0;

	NEED(mkdir("/tmp/sticky", 0777) == 0 && chmod("/tmp/sticky", 01777) == 0 && chdir("/tmp/sticky") == 0);
	for (int i = 0; i < USERS; i++) {
		users[i] = fork();
		if (users[i] == 0) {
			become_user();
			for (;;) {
				close(open("name", O_CREAT | O_EXCL | O_WRONLY, 0600));
				unlink("name");
			}
		}
	}
	for (int round = 0; round < rounds; round++) {
		int file = open("name", O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
		if (file < 0)
			continue;
		made++;
		NEED(fstat(file, &mine) == 0);
		for (int look = 0; look < 8; look++)
			lost += stat("name", &there) != 0 || there.st_ino != mine.st_ino;
		close(file);
		unlink("name");
	}
	for (int i = 0; i < USERS; i++)
		NEED(kill(users[i], SIGKILL) == 0 && waitpid(users[i], NULL, 0) == users[i]);
	unlink("name");
	NEED(chdir("/") == 0 && rmdir("/tmp/sticky") == 0);
	PROMISE("nobody removes another's file from a sticky directory", made > 0 && lost == 0);
}

int main(int count, char **words)
{
	if (count == 4) {
		int read_end = atoi(words[2]), write_end = atoi(words[3]);
		if (!strcmp(words[1], "trace"))
			return trace(write_end);
		if (!strcmp(words[1], "outlive"))
			return outlive(write_end);
		if (!strcmp(words[1], "spared"))
			return spared(read_end, write_end);
		if (!strcmp(words[1], "bound"))
			return bound();
		if (!strcmp(words[1], "invite"))
			return invite();
		return !strcmp(words[1], "stay") ? stay(read_end, write_end) : whoami();
	}
	if (count == 2)
		share = atoi(words[1]);
	copy(PROGRAM, 04755);
	copy(OTHERS, 0755);
	NEED(chown(OTHERS, USER, USER) == 0 && chmod(OTHERS, 04755) == 0);
	tracing();
	meanwhile();
	sharing();
	unreadable();
	updates();
	signals();
	scheduling();
	places();
	terminals();
	races();
	sticky_names();
	unlink(PROGRAM);
	unlink(OTHERS);
	return conclude();
}
