/*
 * Rights to inspect another process. Tests each call and file that reads or changes a process. The
 * inspector is root, the same user, the same user in another group, another user, or the process
 * itself. The target is dumpable or not, has changed its user, or runs a set-user-ID program or one
 * that may not be read. The rules are those of Linux' __ptrace_may_access and of its callers.
 */
#include "promise.h"
#include <grp.h>
#include <linux/capability.h>
#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/socket.h>

/* A set-user-ID program of USER, and one of root that others may only run. */
#define PROGRAM "/rights-program"
#define UNREADABLE_PROGRAM "/rights-unreadable"

static char secret[] = "secret", self[4096];

/* The outcome of a call or of opening a file: 0 or an errno. */
static int outcome(long result)
{
	return result < 0 ? errno : 0;
}

static int opens(pid_t target, const char *name, int flags)
{
	char path[64], bytes[64];
	snprintf(path, sizeof path, "/proc/%d/%s", target, name);
	int file = open(path, flags | O_CLOEXEC);
	if (file < 0)
		return errno;
	int result = flags == O_RDONLY ? outcome(read(file, bytes, sizeof bytes)) : 0;
	close(file);
	return result;
}

static int reads(pid_t target, const char *name)
{
	return opens(target, name, O_RDONLY);
}

static int follows(pid_t target, const char *name)
{
	char path[64], to[256];
	snprintf(path, sizeof path, "/proc/%d/%s", target, name);
	return outcome(readlink(path, to, sizeof to));
}

static int enters(pid_t target, const char *name)
{
	char path[64];
	struct stat about;
	snprintf(path, sizeof path, "/proc/%d/%s", target, name);
	return outcome(stat(path, &about));
}

static int reads_memory(pid_t target)
{
	char bytes[8];
	struct iovec local = { bytes, 6 }, remote = { secret, 6 };
	return outcome(process_vm_readv(target, &local, 1, &remote, 1, 0));
}

static int writes_memory(pid_t target)
{
	struct iovec local = { "secret", 6 }, remote = { secret, 6 };
	return outcome(process_vm_writev(target, &local, 1, &remote, 1, 0));
}

static int finds_robust_list(pid_t target)
{
	void *head;
	size_t length;
	return outcome(syscall(SYS_get_robust_list, target, &head, &length));
}

static int asks_for_pages(pid_t target)
{
	void *page = (void *)((uintptr_t)secret & -4096UL);
	int status;
	return outcome(syscall(SYS_move_pages, target, 1UL, &page, NULL, &status, 0));
}

static int migrates(pid_t target)
{
	unsigned long node = 1;
	return outcome(syscall(SYS_migrate_pages, target, 2UL, &node, &node));
}

static int sees_limits(pid_t target)
{
	struct rlimit limit;
	return outcome(prlimit(target, RLIMIT_CORE, NULL, &limit));
}

static int schedules(pid_t target)
{
	cpu_set_t all;
	NEED(sched_getaffinity(0, sizeof all, &all) == 0);
	return outcome(sched_setaffinity(target, sizeof all, &all));
}

static int chooses_policy(pid_t target)
{
	struct sched_param parameters = { 0 };
	return outcome(sched_setscheduler(target, SCHED_OTHER, &parameters));
}

static int sets_parameters(pid_t target)
{
	struct sched_param parameters = { 0 };
	return outcome(sched_setparam(target, &parameters));
}

static int nices(pid_t target)
{
	return outcome(setpriority(PRIO_PROCESS, target, 19));
}

static int signals(pid_t target)
{
	return outcome(kill(target, 0));
}

static int tells_where(pid_t target)
{
	/* The 28th field of stat, the start of the stack, is 0 for readers without rights. */
	char path[64], line[1024] = { 0 };
	snprintf(path, sizeof path, "/proc/%d/stat", target);
	int file = open(path, O_RDONLY | O_CLOEXEC);
	NEED(file >= 0 && read(file, line, sizeof line - 1) > 0);
	close(file);
	char *at = strrchr(line, ')');
	for (int field = 2; field < 28 && at; field++)
		at = strchr(at + 1, ' ');
	return at && strtoul(at, NULL, 10) != 0 ? 0 : EPERM;
}

static int clears(pid_t target)
{
	return opens(target, "clear_refs", O_WRONLY);
}

#define READS(name, file) static int name(pid_t target) { return reads(target, file); }
READS(reads_mem_maps, "maps")
READS(reads_smaps, "smaps")
READS(reads_rollup, "smaps_rollup")
READS(reads_numa_maps, "numa_maps")
READS(reads_environ, "environ")
READS(reads_auxv, "auxv")
READS(reads_io, "io")
READS(reads_personality, "personality")
READS(reads_fdinfo, "fdinfo/0")
READS(reads_cmdline, "cmdline")
READS(reads_status, "status")
static int opens_mem(pid_t target) { return opens(target, "mem", O_RDWR); }
static int opens_pagemap(pid_t target) { return reads(target, "pagemap"); }
static int follows_exe(pid_t target) { return follows(target, "exe"); }
static int follows_cwd(pid_t target) { return follows(target, "cwd"); }
static int follows_root(pid_t target) { return follows(target, "root"); }
static int follows_file(pid_t target) { return follows(target, "fd/0"); }
static int enters_cwd(pid_t target) { return enters(target, "cwd/."); }
static int lists_files(pid_t target) { return opens(target, "fd", O_RDONLY | O_DIRECTORY); }
static int lists_infos(pid_t target) { return opens(target, "fdinfo", O_RDONLY | O_DIRECTORY); }
static int lists_tasks(pid_t target) { return opens(target, "task", O_RDONLY | O_DIRECTORY); }
static int opens_oom(pid_t target) { return opens(target, "oom_score_adj", O_WRONLY); }

/* Inspectors, by column. */
enum { ITSELF, ROOT, SAME, GROUP, OTHER, INSPECTORS };
/* Targets, by row. */
enum { PLAIN, HIDDEN, CHANGED, SETUID, UNREADABLE, TARGETS };
static const char *const target_names[TARGETS] = {
	"a plain process", "one that is not dumpable", "one that changed its user", "a set-user-ID program", "a program that may not be read"
};

/* The rules, with a letter each for ITSELF, ROOT, SAME, GROUP, OTHER: '.' allowed, 'p' EPERM, 'a'
 * EACCES. `hidden` holds for the other targets, which no process with their ids may inspect. */
static const struct {
	const char *name;
	int (*try)(pid_t);
	const char *plain, *hidden;
} rules[] = {
	{ "process_vm_readv", reads_memory, "...pp", "..ppp" },
	{ "process_vm_writev", writes_memory, "...pp", "..ppp" },
	{ "get_robust_list", finds_robust_list, "...pp", "..ppp" },
	{ "move_pages", asks_for_pages, "...pp", "..ppp" },
	{ "migrate_pages", migrates, "...pp", "..ppp" },
	{ "mem", opens_mem, "...aa", "a.aaa" },
	{ "pagemap", opens_pagemap, "...aa", "a.aaa" },
	{ "environ", reads_environ, "...aa", "a.aaa" },
	{ "auxv", reads_auxv, "...aa", "a.aaa" },
	{ "maps", reads_mem_maps, "...aa", "..aaa" },
	{ "smaps", reads_smaps, "...aa", "..aaa" },
	{ "smaps_rollup", reads_rollup, "...aa", "..aaa" },
	{ "numa_maps", reads_numa_maps, "...aa", "..aaa" },
	{ "io", reads_io, "...aa", "a.aaa" },
	{ "personality", reads_personality, "...pa", "a.aaa" },
	{ "exe", follows_exe, "...aa", "..aaa" },
	{ "cwd", follows_cwd, "...aa", "..aaa" },
	{ "root", follows_root, "...aa", "..aaa" },
	{ "what lies below cwd", enters_cwd, "...aa", "..aaa" },
	{ "a link in fd", follows_file, "...aa", "..aaa" },
	{ "fdinfo", reads_fdinfo, "...aa", "..aaa" },
	{ "the list of fd", lists_files, "....a", "..aaa" },
	{ "the list of fdinfo", lists_infos, "...aa", "..aaa" },
	{ "the list of threads", lists_tasks, ".....", "....." },
	{ "where the stack begins (stat)", tells_where, "...pp", "..ppp" },
	{ "cmdline", reads_cmdline, ".....", "....." },
	{ "status", reads_status, ".....", "....." },
	{ "clear_refs", clears, "....a", "a.aaa" },
	{ "oom_score_adj", opens_oom, "....a", "a.aaa" },
};

/* Rules of calls that do not depend on dumpability. */
static const struct {
	const char *name;
	int (*try)(pid_t);
	const char *plain;
} others[] = {
	{ "prlimit", sees_limits, "...pp" },
	{ "sched_setaffinity", schedules, "....p" },
	{ "sched_setscheduler", chooses_policy, "....p" },
	{ "sched_setparam", sets_parameters, "....p" },
	{ "setpriority", nices, "....p" },
	{ "kill", signals, "....p" },
};

enum { USER = 1000, OTHER_USER = 1001 };

static void change_user(int uid, int gid)
{
	NEED(setgroups(0, NULL) == 0 && setresgid(gid, gid, gid) == 0 && setresuid(uid, uid, uid) == 0);
}

/* Becomes another user. Also becomes dumpable, like a program that this user has started. */
static void become(int uid, int gid)
{
	change_user(uid, gid);
	NEED(prctl(PR_SET_DUMPABLE, 1) == 0);
}

/* Executes this program anew as a target. The target reports that it is ready, and waits. */
static void run_again(const char *program, int ready)
{
	char number[16];
	snprintf(number, sizeof number, "%d", ready);
	execl(program, program, "target", number, NULL);
	_exit(9);
}

/* Starts a target and waits until it is ready. */
static pid_t start(int kind)
{
	int ends[2];
	char byte;
	NEED(pipe(ends) == 0);
	fflush(stdout);
	pid_t target = fork();
	NEED(target >= 0);
	if (target == 0) {
		close(ends[0]);
		int user = kind == SETUID ? OTHER_USER : USER;
		change_user(user, user);
		if (kind != CHANGED)
			NEED(prctl(PR_SET_DUMPABLE, kind != HIDDEN) == 0);
		if (kind == SETUID)
			run_again(PROGRAM, ends[1]);
		if (kind == UNREADABLE)
			run_again(UNREADABLE_PROGRAM, ends[1]);
		write(ends[1], "r", 1);
		for (;;)
			pause();
	}
	close(ends[1]);
	NEED(read(ends[0], &byte, 1) == 1);
	close(ends[0]);
	return target;
}

static void stop(pid_t target)
{
	kill(target, SIGKILL);
	NEED(waitpid(target, NULL, 0) == target);
}

static int expected(char letter)
{
	return letter == '.' ? 0 : letter == 'p' ? EPERM : EACCES;
}

/* Runs `try` on a target as an inspector; returns its result, or -1. */
static int as(int inspector, int (*try)(pid_t), pid_t target)
{
	int status;
	IN_CHILD(status, {
		if (inspector == SAME)
			become(USER, USER);
		if (inspector == GROUP)
			become(USER, OTHER_USER);
		if (inspector == OTHER)
			become(OTHER_USER, OTHER_USER);
		if (inspector == ITSELF)
			_exit(99);
		_exit(try(target));
	});
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Runs `try` in a process on itself; returns its result, or -1. */
static int about_itself(int (*try)(pid_t), int dumpable)
{
	int status;
	IN_CHILD(status, {
		become(USER, USER);
		prctl(PR_SET_DUMPABLE, dumpable);
		_exit(try(getpid()));
	});
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static const char *const inspector_names[INSPECTORS] = { "itself", "root", "its user", "its user in another group", "another user" };

static void check(const char *name, int (*try)(pid_t), const char *letters, pid_t target, int kind, int first)
{
	char text[160];
	int kept = 1, found = 0, inspector;
	for (inspector = first; inspector < INSPECTORS && kept; inspector++) {
		found = inspector == ITSELF ? about_itself(try, kind == PLAIN) : as(inspector, try, target);
		kept = found == expected(letters[inspector]);
	}
	inspector -= !kept;
	if (kept)
		snprintf(text, sizeof text, "%s: %s", target_names[kind], name);
	else
		snprintf(text, sizeof text, "%s: %s, by %s, gives %s", target_names[kind], name, inspector_names[inspector], strerror(found));
	PROMISE(text, kept);
}

static void table(void)
{
	for (int kind = PLAIN; kind < TARGETS; kind++) {
		pid_t target = start(kind);
		for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
			check(rules[i].name, rules[i].try, kind == PLAIN ? rules[i].plain : rules[i].hidden, target, kind,
				kind == PLAIN || kind == HIDDEN ? ITSELF : ROOT);
		for (size_t i = 0; i < sizeof others / sizeof *others && kind < SETUID; i++)
			check(others[i].name, others[i].try, others[i].plain, target, kind, ROOT);
		stop(target);
	}
}

/* Whether a process' user may read its memory after the process has run `...`. */
#define READABLE_AFTER(...)                                                                         \
	({                                                                                          \
		int ends_[2];                                                                       \
		char byte_;                                                                         \
		NEED(pipe(ends_) == 0);                                                             \
		fflush(stdout);                                                                     \
		pid_t target_ = fork();                                                             \
		if (target_ == 0) {                                                                 \
			__VA_ARGS__;                                                                       \
			write(ends_[1], "r", 1);                                                    \
			for (;;)                                                                    \
				pause();                                                            \
		}                                                                                   \
		close(ends_[1]);                                                                    \
		NEED(read(ends_[0], &byte_, 1) == 1);                                               \
		close(ends_[0]);                                                                    \
		int outcome_ = as(SAME, reads_memory, target_);                                     \
		stop(target_);                                                                      \
		outcome_ == 0;                                                                      \
	})

static void changes_of_user(void)
{
	PROMISE("a root that became a user hides what it read before",
		!READABLE_AFTER(NEED(setgroups(0, NULL) == 0 && setgid(USER) == 0 && setuid(USER) == 0)));
	PROMISE("until it says that it has nothing to hide",
		READABLE_AFTER(NEED(setgroups(0, NULL) == 0 && setgid(USER) == 0 && setuid(USER) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0)));
	int status;
	IN_CHILD(status, {
		change_user(USER, USER);
		pid_t child = fork();
		if (child == 0)
			_exit(prctl(PR_GET_DUMPABLE));
		NEED(waitpid(child, &status, 0) == child);
		_exit(status != 0);
	});
	PROMISE("its children hide it too", WIFEXITED(status) && WEXITSTATUS(status) == 0);
	IN_CHILD(status, {
		int before = prctl(PR_GET_DUMPABLE);
		NEED(seteuid(USER) == 0);
		int user = prctl(PR_GET_DUMPABLE);
		NEED(prctl(PR_SET_DUMPABLE, 1) == 0 && setgid(getgid()) == 0);
		_exit(before == 1 && user == 0 && prctl(PR_GET_DUMPABLE) == 1 ? 0 : 1);
	});
	PROMISE("a change of the effective user hides, a change to what is hides nothing", WIFEXITED(status) && WEXITSTATUS(status) == 0);
	FAILS_WITH("PR_SET_DUMPABLE takes 0 and 1", prctl(PR_SET_DUMPABLE, 2), EINVAL);
	IN_CHILD(status, {
		prctl(PR_SET_PDEATHSIG, SIGUSR1);
		int signal = -1;
		NEED(setuid(USER) == 0 && prctl(PR_GET_PDEATHSIG, &signal) == 0);
		_exit(signal);
	});
	PROMISE("a change of user forgets PR_SET_PDEATHSIG", WIFEXITED(status) && WEXITSTATUS(status) == 0);
	/* A process that shares its memory with one that changes its user. */
	IN_CHILD(status, {
		become(USER, USER);
		pid_t child = vfork();
		if (child == 0) {
			prctl(PR_SET_DUMPABLE, 0);
			_exit(0);
		}
		waitpid(child, NULL, 0);
		_exit(prctl(PR_GET_DUMPABLE));
	});
	PROMISE("memory that two share is hidden for both", WIFEXITED(status) && WEXITSTATUS(status) == 0);
	struct stat about;
	char path[64];
	pid_t target = start(HIDDEN);
	snprintf(path, sizeof path, "/proc/%d/environ", target);
	NEED(stat(path, &about) == 0);
	PROMISE("files of one that is not dumpable are root's", about.st_uid == 0 && about.st_gid == 0);
	snprintf(path, sizeof path, "/proc/%d", target);
	NEED(stat(path, &about) == 0);
	PROMISE("its directory is its user's", about.st_uid == USER && about.st_gid == USER);
	stop(target);
}

/* A file of /proc that was opened before its process ran a program of another user. */
static void opened_before(void)
{
	static const char *const names[] = { "maps", "environ", "mem", "smaps" };
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		int go[2], ends[2], answer[2];
		char byte, text[96], bytes[4096];
		NEED(pipe(go) == 0 && pipe(ends) == 0 && pipe(answer) == 0);
		fflush(stdout);
		pid_t target = fork();
		if (target == 0) {
			close(ends[0]);
			close(go[1]);
			become(OTHER_USER, OTHER_USER);
			NEED(read(go[0], &byte, 1) == 1);
			run_again(PROGRAM, ends[1]);
		}
		close(ends[1]);
		pid_t inspector = fork();
		if (inspector == 0) {
			char path[64];
			become(OTHER_USER, OTHER_USER);
			/* It becomes another user a moment after the fork. */
			snprintf(path, sizeof path, "/proc/%d/%s", target, names[i]);
			int file = -1;
			NEED(COMES_TRUE((file = open(path, O_RDONLY)) >= 0));
			NEED(write(go[1], "g", 1) == 1 && read(ends[0], &byte, 1) == 1);
			ssize_t came = pread(file, bytes, sizeof bytes, !strcmp(names[i], "mem") ? (off_t)(uintptr_t)secret : 0);
			byte = came > 0 && (strcmp(names[i], "mem") || !memcmp(bytes, secret, 6));
			write(answer[1], &byte, 1);
			_exit(0);
		}
		NEED(read(answer[0], &byte, 1) == 1);
		snprintf(text, sizeof text, "%s, opened before an execve, does not show the new program", names[i]);
		PROMISE(text, byte == 0);
		NEED(waitpid(inspector, NULL, 0) == inspector);
		stop(target);
		int all[] = { go[0], go[1], ends[0], answer[0], answer[1] };
		for (size_t at = 0; at < sizeof all / sizeof *all; at++)
			close(all[at]);
	}
}

static int stores(const char *name, const char *text)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/self/%s", name);
	int file = open(path, O_WRONLY | O_CLOEXEC);
	if (file < 0)
		return errno;
	int result = outcome(write(file, text, strlen(text)));
	close(file);
	return result;
}

static long shows(const char *name)
{
	char path[64], text[32] = { 0 };
	snprintf(path, sizeof path, "/proc/self/%s", name);
	int file = open(path, O_RDONLY | O_CLOEXEC);
	NEED(file >= 0 && read(file, text, sizeof text - 1) > 0);
	close(file);
	return atol(text);
}

/* Starts a child that waits; its number is `number` if that is free, or any if it is 0. */
static pid_t waiter(pid_t number)
{
	char last[16];
	int length = snprintf(last, sizeof last, "%d", number - 1), file = open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);
	NEED(file >= 0 && (number == 0 || write(file, last, length) == length));
	close(file);
	pid_t child = fork();
	NEED(child >= 0);
	while (child == 0)
		pause();
	return child;
}

static void end_waiter(pid_t child)
{
	NEED(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

/* Opens a file of a process that ends, and uses it when another process has the number. Returns
 * the error; 0 if the number was taken by a third process. */
static int later_use(const char *name, int flags)
{
	char path[64], text[200] = "15";
	pid_t child = waiter(0);
	snprintf(path, sizeof path, "/proc/%d/%s", child, name);
	int file = open(path, flags | O_CLOEXEC);
	NEED(file >= 0);
	end_waiter(child);
	pid_t later = waiter(child);
	int error = later != child ? 0 : (flags == O_RDONLY ? read(file, text, sizeof text) : write(file, text, 2)) < 0 ? errno : -1;
	end_waiter(later);
	close(file);
	return error;
}

static void numbers_used_again(void)
{
	PROMISE("an open file of a process does not change a later one", HOLDS_ONCE(later_use("oom_score_adj", O_WRONLY) == ESRCH));
	PROMISE("nor by the old scale", HOLDS_ONCE(later_use("oom_adj", O_WRONLY) == ESRCH));
	PROMISE("nor the contents of its core file", HOLDS_ONCE(later_use("coredump_filter", O_WRONLY) == ESRCH));
	PROMISE("nor shows its state", HOLDS_ONCE(later_use("stat", O_RDONLY) == ESRCH));
}

static void victims(void)
{
	int status;
#define AS_USER(...) ({ IN_CHILD(status, __VA_ARGS__); WIFEXITED(status) && WEXITSTATUS(status) == 0; })
	PROMISE("a user may become a better victim, but no worse than it was",
		AS_USER(become(USER, USER); _exit(!(stores("oom_score_adj", "500") == 0 && stores("oom_score_adj", "0") == 0 &&
			stores("oom_score_adj", "-1") == EACCES && stores("oom_score_adj", "-1000") == EACCES && shows("oom_score_adj") == 0))));
	PROMISE("what root makes of it is the least", AS_USER(NEED(stores("oom_score_adj", "300") == 0); become(USER, USER);
		_exit(!(stores("oom_score_adj", "299") == EACCES && stores("oom_score_adj", "400") == 0 && stores("oom_score_adj", "300") == 0))));
	PROMISE("children inherit that", AS_USER(NEED(stores("oom_score_adj", "-300") == 0); become(USER, USER);
		pid_t child = fork();
		if (child == 0)
			_exit(!(stores("oom_score_adj", "-301") == EACCES && stores("oom_score_adj", "-300") == 0));
		NEED(waitpid(child, &status, 0) == child);
		_exit(status != 0)));
	PROMISE("the old scale gives no more rights", AS_USER(become(USER, USER); _exit(!(stores("oom_adj", "5") == 0 && shows("oom_score_adj") == 294 &&
		shows("oom_adj") == 4 && stores("oom_adj", "3") == EACCES && stores("oom_adj", "15") == 0 && shows("oom_score_adj") == 1000 &&
		shows("oom_adj") == 15))));
	PROMISE("it ends where it ended", AS_USER(_exit(!(stores("oom_adj", "16") == EINVAL && stores("oom_adj", "-18") == EINVAL &&
		stores("oom_adj", "-17") == 0 && shows("oom_score_adj") == -1000))));
	PROMISE("the new one too", stores("oom_score_adj", "1001") == EINVAL && stores("oom_score_adj", "-1001") == EINVAL && stores("oom_score_adj", "x") == EINVAL);
}

/* Sends these credentials to itself as its own. */
static int claims(pid_t pid, uid_t uid, gid_t gid)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(struct ucred))];
	} beside = { { CMSG_LEN(sizeof(struct ucred)), SOL_SOCKET, SCM_CREDENTIALS } };
	struct ucred claimed = { pid, uid, gid };
	struct iovec one = { "x", 1 };
	struct msghdr message = { .msg_iov = &one, .msg_iovlen = 1, .msg_control = &beside, .msg_controllen = sizeof beside };
	int pair[2];
	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	memcpy(CMSG_DATA(&beside.head), &claimed, sizeof claimed);
	int result = outcome(sendmsg(pair[0], &message, 0));
	close(pair[0]);
	close(pair[1]);
	return result;
}

static void drop_capabilities(void)
{
	struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct none[2] = { { 0 }, { 0 } };
	NEED(syscall(SYS_capset, &head, none) == 0);
}

static void claimed(void)
{
	int status;
	PROMISE("a message says that it comes from one of the sender's users", AS_USER(become(USER, USER);
		_exit(!(claims(getpid(), USER, USER) == 0 && claims(getpid(), 0, USER) == EPERM && claims(getpid(), USER, 0) == EPERM))));
	PROMISE("and from the sender's process", AS_USER(become(USER, USER); _exit(claims(getppid(), USER, USER) != EPERM)));
	PROMISE("root may say what it likes", AS_USER(_exit(claims(getppid(), USER, OTHER_USER) != 0)));
	PROMISE("but not without capabilities", AS_USER(drop_capabilities(); _exit(!(claims(getpid(), 0, 0) == 0 && claims(getpid(), USER, 0) == EPERM))));
}

/* Whether one capability, CAP_KILL, is permitted and effective. */
static int may_kill(void)
{
	struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct sets[2];
	NEED(syscall(SYS_capget, &head, sets) == 0);
	return (sets[0].permitted >> 5 & 1) | (sets[0].effective >> 5 & 1) << 1;
}

static void keeping(void)
{
	int status;
	PROMISE("who stops being root may nothing more", AS_USER(_exit(!(prctl(PR_GET_KEEPCAPS) == 0 && setresuid(USER, USER, USER) == 0 && may_kill() == 0))));
	PROMISE("or keeps what is permitted, if it asked for that",
		AS_USER(_exit(!(prctl(PR_SET_KEEPCAPS, 1L) == 0 && prctl(PR_GET_KEEPCAPS) == 1 && setresuid(USER, USER, USER) == 0 && may_kill() == 1))));
	PROMISE("which is a yes or a no", prctl(PR_SET_KEEPCAPS, 2L) == -1 && errno == EINVAL);
	PROMISE("and not for another program", AS_USER(NEED(prctl(PR_SET_KEEPCAPS, 1L) == 0);
		execl("/proc/self/exe", "rights", "keeps", (char *)NULL)));
}

/* Root without capabilities is a user like any other. */
static void powerless(void)
{
	int status;
	pid_t target = start(PLAIN);
	PROMISE("root without capabilities inspects nobody else", AS_USER(drop_capabilities();
		_exit(!(reads_memory(target) == EPERM && reads_mem_maps(target) == EACCES && finds_robust_list(target) == EPERM &&
			sees_limits(target) == EPERM && schedules(target) == EPERM))));
	stop(target);
}

static void copy_program(const char *to, int user, mode_t mode)
{
	char bytes[1 << 16];
	ssize_t count;
	unlink(to);
	int in = open(self, O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0700);
	NEED(in >= 0 && out >= 0);
	while ((count = read(in, bytes, sizeof bytes)) > 0)
		NEED(write(out, bytes, count) == count);
	close(in);
	NEED(fchown(out, user, user) == 0 && fchmod(out, mode) == 0);
	close(out);
}

static void set_up(void)
{
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
	NEED(length > 0);
	copy_program(PROGRAM, USER, 04711);
	copy_program(UNREADABLE_PROGRAM, 0, 0711);
}

int main(int argc, char **argv)
{
	if (argc > 2 && !strcmp(argv[1], "target")) {
		write(atoi(argv[2]), "r", 1);
		for (;;)
			pause();
	}
	if (argc > 1 && !strcmp(argv[1], "keeps"))
		return prctl(PR_GET_KEEPCAPS);
	NEED(geteuid() == 0);
	set_up();
	table();
	changes_of_user();
	opened_before();
	victims();
	numbers_used_again();
	claimed();
	keeping();
	powerless();
	unlink(PROGRAM);
	unlink(UNREADABLE_PROGRAM);
	return conclude();
}
