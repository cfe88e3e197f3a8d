/*
 * Scheduling of threads, and related calls: sched_setattr(2) and older calls, their nice values,
 * and I/O priorities; kcmp(2), which tells whether processes share an object; adjtimex(2);
 * process_madvise(2). Run as root.
 */
#include "promise.h"
#include <linux/kcmp.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/timex.h>

#ifndef SCHED_DEADLINE
#define SCHED_DEADLINE 6
#endif
#ifndef SYS_process_madvise
#define SYS_process_madvise 440
#endif
#ifndef MADV_COLD
#define MADV_COLD 20
#define MADV_PAGEOUT 21
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#define RESET 0x40000000
#define FLAG_RESET 1
#define FLAG_KEEP_POLICY 8
#define FLAG_KEEP_PARAMS 16

struct attributes {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
	uint32_t util_min, util_max;
};

static int set_attributes(pid_t whom, struct attributes *attributes)
{
	return syscall(SYS_sched_setattr, whom, attributes, 0);
}

static int get_attributes(pid_t whom, struct attributes *attributes)
{
	return syscall(SYS_sched_getattr, whom, attributes, sizeof *attributes, 0);
}

static int set(int policy, int nice, int flags)
{
	struct attributes attributes = { .size = sizeof attributes, .policy = policy, .nice = nice, .flags = flags };
	return set_attributes(0, &attributes);
}

static int is(int policy, int nice, int flags)
{
	struct attributes now = { 0 };
	return get_attributes(0, &now) == 0 && now.size == sizeof now && (int)now.policy == policy && now.nice == nice && (int)now.flags == flags &&
	       now.priority == 0;
}

static void sizes(void)
{
	struct {
		struct attributes known;
		char rest[64];
	} large = { .known = { .size = sizeof large } };
	struct attributes attributes = { .size = 48 };
	PROMISE("attributes of the first version are taken", set_attributes(0, &attributes) == 0);
	attributes.size = 0;
	PROMISE("and so is size 0, which means them", set_attributes(0, &attributes) == 0);
	attributes.size = 47;
	FAILS_WITH("a size below is refused", set_attributes(0, &attributes), E2BIG);
	PROMISE("and the known size told", attributes.size >= 56);
	attributes.size = 4097;
	FAILS_WITH("a size above a page is refused", set_attributes(0, &attributes), E2BIG);
	PROMISE("attributes of a version to come are taken where the rest is 0", set_attributes(0, &large.known) == 0);
	large.rest[63] = 1;
	FAILS_WITH("where it is not they are refused", set_attributes(0, &large.known), E2BIG);
	PROMISE("and the known size told", large.known.size >= 56 && large.known.size < sizeof large);
	FAILS_WITH("sched_setattr has no flags", syscall(SYS_sched_setattr, 0, &attributes, 1), EINVAL);
	FAILS_WITH("no attributes are invalid", syscall(SYS_sched_setattr, 0, NULL, 0), EINVAL);
	FAILS_WITH("attributes elsewhere are a bad address", syscall(SYS_sched_setattr, 0, 8, 0), EFAULT);
	attributes.size = 48;
	FAILS_WITH("a negative thread is invalid", set_attributes(-1, &attributes), EINVAL);
	FAILS_WITH("a thread that is none is told", set_attributes(0x3fffffff, &attributes), ESRCH);
	attributes.policy = -1;
	FAILS_WITH("a negative policy is invalid", set_attributes(0, &attributes), EINVAL);
	attributes.policy = 4;
	FAILS_WITH("so is one that there is none of", set_attributes(0, &attributes), EINVAL);
	attributes = (struct attributes){ .size = 48, .flags = 0x80 };
	FAILS_WITH("an unknown flag is invalid", set_attributes(0, &attributes), EINVAL);
	attributes = (struct attributes){ .size = 48, .priority = 1 };
	FAILS_WITH("a priority without a real-time policy is invalid", set_attributes(0, &attributes), EINVAL);
	attributes = (struct attributes){ .size = 48, .policy = SCHED_FIFO };
	FAILS_WITH("so is a real-time policy without one", set_attributes(0, &attributes), EINVAL);
	attributes.priority = 100;
	FAILS_WITH("and one above 99", set_attributes(0, &attributes), EINVAL);
	memset(&large, 0xff, sizeof large);
	PROMISE("sched_getattr fills what it knows", syscall(SYS_sched_getattr, 0, &large, 48, 0) == 0 && large.known.size == 48 && large.known.util_min == 0xffffffff);
	FAILS_WITH("less than the first version is refused", syscall(SYS_sched_getattr, 0, &large, 47, 0), EINVAL);
	FAILS_WITH("more than a page, too", syscall(SYS_sched_getattr, 0, &large, 4097, 0), EINVAL);
	FAILS_WITH("sched_getattr has no flags", syscall(SYS_sched_getattr, 0, &large, 48, 1), EINVAL);
	FAILS_WITH("a thread that is none is told", syscall(SYS_sched_getattr, 0x3fffffff, &large, 48, 0), ESRCH);
}

static void policies(void)
{
	int status;
	struct sched_param none = { 0 }, one = { 1 };
	PROMISE("a thread begins with SCHED_OTHER and nice value 0", is(SCHED_OTHER, 0, 0) && sched_getscheduler(0) == SCHED_OTHER);
	PROMISE("sched_setattr sets policy and nice value", set(SCHED_BATCH, 7, 0) == 0 && is(SCHED_BATCH, 7, 0));
	PROMISE("which the calls before it see", sched_getscheduler(0) == SCHED_BATCH && getpriority(PRIO_PROCESS, 0) == 7);
	PROMISE("and /proc", stat_field(gettid(), 41) == SCHED_BATCH && stat_field(gettid(), 40) == 0 && stat_field(gettid(), 19) == 7);
	PROMISE("a nice value out of range is the nearest", set(SCHED_OTHER, 100, 0) == 0 && is(SCHED_OTHER, 19, 0));
	PROMISE("sched_setscheduler keeps the nice value", sched_setscheduler(0, SCHED_BATCH, &none) == 0 && is(SCHED_BATCH, 19, 0));
	PROMISE("sched_setparam keeps the policy", sched_setparam(0, &none) == 0 && is(SCHED_BATCH, 19, 0));
	FAILS_WITH("and has no priority but 0", sched_setparam(0, &one), EINVAL);
	PROMISE("root raises the nice value again", set(SCHED_OTHER, -3, 0) == 0 && is(SCHED_OTHER, -3, 0));
	PROMISE("KEEP_PARAMS keeps it, and the policy with it", set(SCHED_BATCH, 5, FLAG_KEEP_PARAMS) == 0 && is(SCHED_OTHER, -3, 0));
	PROMISE("but not whether a fork resets", set(SCHED_BATCH, 5, FLAG_KEEP_PARAMS | FLAG_RESET) == 0 && is(SCHED_OTHER, -3, FLAG_RESET));
	PROMISE("KEEP_POLICY keeps that and the policy", set(SCHED_BATCH, 5, FLAG_KEEP_POLICY) == 0 && is(SCHED_OTHER, 5, FLAG_RESET));
	PROMISE("SCHED_IDLE keeps the nice value", set(SCHED_IDLE, 0, 0) == 0 && is(SCHED_IDLE, 5, 0));
	PROMISE("sched_getparam tells no priority", (one.sched_priority = 3, sched_getparam(0, &one) == 0) && one.sched_priority == 0);
	IN_CHILD(status, _exit(is(SCHED_IDLE, 5, 0) ? 0 : 1));
	PROMISE("policy and nice value are inherited", status == 0);
	PROMISE("SCHED_RESET_ON_FORK goes with a policy", sched_setscheduler(0, SCHED_BATCH | RESET, &none) == 0 && sched_getscheduler(0) == (SCHED_BATCH | RESET) && is(SCHED_BATCH, 5, FLAG_RESET));
	IN_CHILD(status, _exit(is(SCHED_BATCH, 5, 0) ? 0 : 1));
	PROMISE("it keeps a child's positive nice value, and is not inherited", status == 0);
	PROMISE("it can be set with a negative nice value", set(SCHED_BATCH, -9, FLAG_RESET) == 0 && is(SCHED_BATCH, -9, FLAG_RESET));
	IN_CHILD(status, _exit(is(SCHED_BATCH, 0, 0) ? 0 : 1));
	PROMISE("which a child does not get", status == 0);
	PROMISE("sched_setparam keeps it", sched_setparam(0, &none) == 0 && is(SCHED_BATCH, -9, FLAG_RESET));
	PROMISE("root clears it", set(SCHED_OTHER, 0, 0) == 0 && is(SCHED_OTHER, 0, 0));
	struct attributes deadline = { .size = 48, .policy = SCHED_DEADLINE };
	FAILS_WITH("SCHED_DEADLINE without times is invalid", set_attributes(0, &deadline), EINVAL);
	deadline.runtime = 5000000, deadline.deadline = 4000000, deadline.period = 9000000;
	FAILS_WITH("and so is one that ends before it is done", set_attributes(0, &deadline), EINVAL);
	int wrong = 0;
	for (int policy = 0; policy <= 7; policy++) {
		int is_real_time = policy == SCHED_FIFO || policy == SCHED_RR, most = sched_get_priority_max(policy), least = sched_get_priority_min(policy);
		wrong += policy == 4 ? most != -1 || least != -1 : policy < 7 && (most != (is_real_time ? 99 : 0) || least != is_real_time);
	}
	PROMISE("real-time policies have priorities 1 to 99, the others 0", wrong == 0);
	FAILS_WITH("a policy that there is none of has none", sched_get_priority_max(99), EINVAL);
	FAILS_WITH("nor a negative one", sched_get_priority_min(-1), EINVAL);
	struct timespec slice;
	PROMISE("a thread has a slice", sched_rr_get_interval(0, &slice) == 0 && slice.tv_sec == 0 && slice.tv_nsec >= 0);
	FAILS_WITH("a thread that is none has none", sched_rr_get_interval(0x3fffffff, &slice), ESRCH);
	FAILS_WITH("nor a negative one", sched_rr_get_interval(-1, &slice), EINVAL);
	FAILS_WITH("sched_setscheduler of no parameters is invalid", sched_setscheduler(0, SCHED_OTHER, NULL), EINVAL);
	FAILS_WITH("of a negative policy, too", sched_setscheduler(0, -1, &none), EINVAL);
	FAILS_WITH("sched_getscheduler of a negative thread is invalid", sched_getscheduler(-1), EINVAL);
	FAILS_WITH("and of none is told", sched_getscheduler(0x3fffffff), ESRCH);
}

/* Makes a change in a child without privileges; returns 0 or the errno. */
static int unprivileged(int policy, int nice, int flags)
{
	return set(policy, nice, flags) ? errno : 0;
}

static void rights(void)
{
	int status;
	pid_t root = getpid();
	struct rlimit nothing = { 0, 0 };
	IN_CHILD(status,
		NEED(setrlimit(RLIMIT_NICE, &nothing) == 0 && setrlimit(RLIMIT_RTPRIO, &nothing) == 0 && setresuid(4711, 4711, 4711) == 0);
		if (unprivileged(SCHED_OTHER, 3, 0) != 0) _exit(1);
		if (unprivileged(SCHED_OTHER, 2, 0) != EPERM) _exit(2);
		if (unprivileged(SCHED_BATCH, 3, 0) != 0) _exit(3);
		if (unprivileged(SCHED_BATCH, 4, FLAG_RESET) != 0) _exit(4);
		if (unprivileged(SCHED_BATCH, 4, 0) != EPERM) _exit(5);
		if (unprivileged(SCHED_IDLE, 0, FLAG_RESET) != 0) _exit(6);
		if (unprivileged(SCHED_OTHER, 19, FLAG_RESET) != EPERM) _exit(7);
		struct attributes other = { .size = 48, .nice = 5 };
		if (set_attributes(root, &other) != -1 || errno != EPERM) _exit(8);
		struct attributes real = { .size = 48, .policy = SCHED_RR, .priority = 1 };
		if (set_attributes(0, &real) != -1 || errno != EPERM) _exit(9);
		struct attributes late = { .size = 48, .policy = SCHED_DEADLINE, .runtime = 1000000, .deadline = 9000000, .period = 9000000 };
		if (set_attributes(0, &late) != -1 || errno != EPERM) _exit(10));
	PROMISE("others lower their share, and do not raise it, leave SCHED_IDLE, clear reset-on-fork, or change another's", status == 0);
	if (status)
		printf("# step %d\n", WEXITSTATUS(status));
	struct rlimit some = { 25, 25 };
	/* In a container root may lack CAP_SYS_RESOURCE. */
	IN_CHILD(status, if (setrlimit(RLIMIT_NICE, &some)) _exit(0);
		NEED(setresuid(4711, 4711, 4711) == 0);
		if (unprivileged(SCHED_OTHER, -5, 0) != 0 || unprivileged(SCHED_OTHER, -6, 0) != EPERM) _exit(1);
		if (unprivileged(SCHED_IDLE, 0, 0) != 0 || unprivileged(SCHED_OTHER, 0, 0) != 0) _exit(2));
	PROMISE("RLIMIT_NICE lets them", status == 0);
}

enum { WHO_PROCESS = 1, WHO_GROUP, WHO_USER };
#define IO(class, level) ((class) << 13 | (level))

static long ioprio_set(int which, int who, int priority)
{
	return syscall(SYS_ioprio_set, which, who, priority);
}

static long ioprio_get(int which, int who)
{
	return syscall(SYS_ioprio_get, which, who);
}

static int io_child(void *shared)
{
	(void)shared;
	ioprio_set(WHO_PROCESS, 0, IO(2, 6));
	return 0;
}

static void io_priorities(void)
{
	int status;
	PROMISE("an I/O priority is kept", ioprio_set(WHO_PROCESS, 0, IO(2, 3)) == 0 && ioprio_get(WHO_PROCESS, 0) == IO(2, 3));
	IN_CHILD(status, _exit(ioprio_get(WHO_PROCESS, 0) == IO(2, 3) && ioprio_set(WHO_PROCESS, 0, IO(2, 1)) == 0 && ioprio_get(WHO_PROCESS, getpid()) == IO(2, 1) ? 0 : 1));
	PROMISE("and inherited", status == 0);
	PROMISE("as a copy", ioprio_get(WHO_PROCESS, 0) == IO(2, 3));
	static char stack[65536] __attribute__((aligned(16)));
	pid_t child = clone(io_child, stack + sizeof stack, CLONE_IO | SIGCHLD, NULL);
	NEED(child > 0 && waitpid(child, &status, 0) == child);
	PROMISE("or shared, with CLONE_IO", ioprio_get(WHO_PROCESS, 0) == IO(2, 6));
	PROMISE("SCHED_IDLE's like", ioprio_set(WHO_PROCESS, 0, IO(3, 0)) == 0 && ioprio_get(WHO_PROCESS, 0) == IO(3, 0));
	PROMISE("root may have the real-time class", ioprio_set(WHO_PROCESS, 0, IO(1, 4)) == 0 && ioprio_get(WHO_PROCESS, 0) == IO(1, 4));
	PROMISE("none is a class", ioprio_set(WHO_PROCESS, 0, 0) == 0 && ioprio_get(WHO_PROCESS, 0) == 0);
	FAILS_WITH("without levels", ioprio_set(WHO_PROCESS, 0, IO(0, 4)), EINVAL);
	FAILS_WITH("there is no class 4", ioprio_set(WHO_PROCESS, 0, IO(4, 0)), EINVAL);
	FAILS_WITH("nor 7", ioprio_set(WHO_PROCESS, 0, IO(7, 0)), EINVAL);
	FAILS_WITH("nor another kind of owner", ioprio_set(0, 0, IO(2, 4)), EINVAL);
	FAILS_WITH("nor one to ask about", ioprio_get(4, 0), EINVAL);
	FAILS_WITH("a process that is none is told", ioprio_set(WHO_PROCESS, 0x3fffffff, IO(2, 4)), ESRCH);
	FAILS_WITH("when it is asked about, too", ioprio_get(WHO_PROCESS, 0x3fffffff), ESRCH);
	FAILS_WITH("and a user without processes", ioprio_get(WHO_USER, 47110815), ESRCH);
	int ends[2];
	char byte;
	NEED(pipe(ends) == 0);
	child = fork();
	NEED(child >= 0);
	if (child == 0) {
		setpgid(0, 0);
		(void)!write(ends[1], "x", 1);
		pause();
		_exit(0);
	}
	NEED(read(ends[0], &byte, 1) == 1);
	PROMISE("a group's priority is set", ioprio_set(WHO_GROUP, child, IO(2, 5)) == 0 && ioprio_get(WHO_PROCESS, child) == IO(2, 5) && ioprio_get(WHO_PROCESS, 0) == 0);
	PROMISE("and told", ioprio_get(WHO_GROUP, child) == IO(2, 5));
	PROMISE("where a thread has no class its nice value says", ioprio_set(WHO_PROCESS, child, 0) == 0 && ioprio_get(WHO_GROUP, child) == IO(2, 4));
	IN_CHILD(status, NEED(setresuid(4711, 4711, 4711) == 0);
		if (ioprio_set(WHO_PROCESS, 0, IO(1, 0)) != -1 || errno != EPERM) _exit(1);
		if (ioprio_set(WHO_PROCESS, child, IO(2, 7)) != -1 || errno != EPERM) _exit(2);
		if (ioprio_set(WHO_PROCESS, 0, IO(2, 0)) != 0 || ioprio_get(WHO_PROCESS, child) != 0) _exit(3));
	PROMISE("others have no real-time class and leave root's processes alone", status == 0);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

static long compare(pid_t one, pid_t other, int kind, unsigned long a, unsigned long b)
{
	return syscall(SYS_kcmp, one, other, kind, a, b);
}

static void *other_thread(void *told)
{
	*(pid_t *)told = gettid();
	pause();
	return NULL;
}


static void comparing(void)
{
	int status, ends[2], files[8], same = dup(1);
	pid_t own = getpid();
	NEED(same >= 0);
	PROMISE("a copy of a descriptor is the same file", compare(own, own, KCMP_FILE, 1, same) == 0);
	for (int i = 0; i < 8; i++)
		NEED((files[i] = open("/dev/null", O_RDONLY)) >= 0);
	int wrong = 0, ascending = 0;
	for (int i = 0; i < 8; i++)
		for (int j = 0; j < 8; j++) {
			long order = compare(own, own, KCMP_FILE, files[i], files[j]), back = compare(own, own, KCMP_FILE, files[j], files[i]);
			wrong += i == j ? order != 0 || back != 0 : order + back != 3 || (order != 1 && order != 2);
			ascending += order == 1;
			for (int k = 0; k < 8; k++)
				wrong += order == 1 && compare(own, own, KCMP_FILE, files[j], files[k]) == 1 && compare(own, own, KCMP_FILE, files[i], files[k]) != 1;
		}
	PROMISE("two openings are two files, and files have an order", wrong == 0 && ascending == 28);
	FAILS_WITH("no file is no file", compare(own, own, KCMP_FILE, 1, 999), EBADF);
	FAILS_WITH("there is no such kind", compare(own, own, 99, 0, 0), EINVAL);
	FAILS_WITH("there is no such process", compare(own, 0x3fffffff, KCMP_VM, 0, 0), ESRCH);
	int shared[] = { KCMP_VM, KCMP_FILES, KCMP_FS, KCMP_SIGHAND, KCMP_IO, KCMP_SYSVSEM };
	int all = 1;
	pthread_t thread;
	pid_t tid = 0;
	NEED(pthread_create(&thread, NULL, other_thread, &tid) == 0 && COMES_TRUE(*(volatile pid_t *)&tid != 0));
	for (int i = 0; i < 4; i++)
		all &= compare(own, tid, shared[i], 0, 0) == 0;
	PROMISE("threads share memory, descriptors, places and handlers", all);
	NEED(pipe(ends) == 0);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		pause();
		_exit(0);
	}
	all = 1;
	for (int i = 0; i < 4; i++)
		all &= compare(own, child, shared[i], 0, 0) > 0 && compare(own, child, shared[i], 0, 0) + compare(child, own, shared[i], 0, 0) == 3;
	PROMISE("a child of fork shares none of these", all);
	PROMISE("but open files", compare(own, child, KCMP_FILE, files[3], files[3]) == 0 && compare(own, child, KCMP_FILE, files[3], files[4]) != 0);
	int watch = epoll_create1(0);
	struct epoll_event event = { EPOLLIN, { 0 } };
	struct kcmp_epoll_slot slot = { watch, ends[0], 0 };
	NEED(watch >= 0 && epoll_ctl(watch, EPOLL_CTL_ADD, ends[0], &event) == 0);
	PROMISE("what an epoll instance watches is told", compare(own, own, KCMP_EPOLL_TFD, ends[0], (uintptr_t)&slot) == 0 && compare(own, own, KCMP_EPOLL_TFD, ends[1], (uintptr_t)&slot) > 0);
	slot.toff = 1;
	FAILS_WITH("it watches that once", compare(own, own, KCMP_EPOLL_TFD, ends[0], (uintptr_t)&slot), ENOENT);
	slot = (struct kcmp_epoll_slot){ ends[0], ends[0], 0 };
	FAILS_WITH("a pipe is no such instance", compare(own, own, KCMP_EPOLL_TFD, ends[0], (uintptr_t)&slot), EINVAL);
	FAILS_WITH("a slot elsewhere is a bad address", compare(own, own, KCMP_EPOLL_TFD, ends[0], 8), EFAULT);
	IN_CHILD(status, NEED(setresuid(4711, 4711, 4711) == 0); _exit(compare(own, getpid(), KCMP_VM, 0, 0) == -1 && errno == EPERM ? 0 : 1));
	PROMISE("others are not told about root's processes", status == 0);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	for (int i = 0; i < 8; i++)
		close(files[i]);
	close(same);
	close(watch);
	close(ends[0]);
	close(ends[1]);
}

static void clock_state(void)
{
	int status;
	struct timex before = { 0 }, after;
	int state = adjtimex(&before);
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	PROMISE("everybody reads the clock's state", state >= 0 && state <= 5 && before.tick >= 9000 && before.tick <= 11000 && before.precision >= 1);
	PROMISE("which has the time", llabs((long long)now.tv_sec - before.time.tv_sec) < 100);
	PROMISE("its error is bounded", before.maxerror >= 0 && before.maxerror <= 16000000 && before.esterror >= 0);
	after = (struct timex){ 0 };
	PROMISE("clock_adjtime reads the same", clock_adjtime(CLOCK_REALTIME, &after) == state && after.tick == before.tick && after.status == before.status);
	FAILS_WITH("CLOCK_MONOTONIC is not adjusted", clock_adjtime(CLOCK_MONOTONIC, &after), EOPNOTSUPP);
	FAILS_WITH("there is no such clock", clock_adjtime(77, &after), EINVAL);
	FAILS_WITH("there is no state there", adjtimex((void *)8), EFAULT);
	after = (struct timex){ .modes = ADJ_TICK, .tick = 5 };
	FAILS_WITH("a tick far off is invalid", adjtimex(&after), EINVAL);
	after = (struct timex){ .modes = 0x8000 };
	FAILS_WITH("adjtime's bit alone is invalid", adjtimex(&after), EINVAL);
	after = (struct timex){ .modes = ADJ_SETOFFSET, .time = { 0, 1000000 } };
	FAILS_WITH("an offset has less than a million microseconds", adjtimex(&after), EINVAL);
	after = (struct timex){ .modes = ADJ_SETOFFSET, .time = { -(1LL << 40), 0 } };
	FAILS_WITH("the clock is not set before its beginning", adjtimex(&after), EINVAL);
	after = (struct timex){ .modes = ADJ_OFFSET_SS_READ, .offset = 7 };
	PROMISE("what adjtime(3) has left is told", adjtimex(&after) >= 0 && after.offset == 0);
	IN_CHILD(status, NEED(setresuid(4711, 4711, 4711) == 0);
		struct timex asked = { .modes = ADJ_ESTERROR };
		if (adjtimex(&asked) != -1 || errno != EPERM) _exit(1);
		asked = (struct timex){ .modes = ADJ_OFFSET_SINGLESHOT };
		if (adjtimex(&asked) != -1 || errno != EPERM) _exit(2);
		asked = (struct timex){ .modes = ADJ_OFFSET_SS_READ };
		if (adjtimex(&asked) < 0) _exit(3);
		asked = (struct timex){ 0 };
		if (adjtimex(&asked) < 0) _exit(4));
	PROMISE("others read, and change nothing", status == 0);
}

static void clock_changes(void)
{
	struct timex asked = { 0 };
	NEED(adjtimex(&asked) >= 0);
	int is_nano = asked.status & STA_NANO;
	asked = (struct timex){ .modes = ADJ_STATUS | ADJ_MAXERROR | ADJ_ESTERROR, .status = 0, .maxerror = 1234, .esterror = 567 };
	PROMISE("root vouches for the clock", adjtimex(&asked) == TIME_OK && asked.esterror == 567 && asked.maxerror >= 1234 && asked.maxerror < 100000 && !(asked.status & STA_UNSYNC));
	asked = (struct timex){ 0 };
	PROMISE("which everybody sees", adjtimex(&asked) == TIME_OK && asked.esterror == 567);
	asked = (struct timex){ .modes = ADJ_NANO };
	PROMISE("times are told in nanoseconds", adjtimex(&asked) >= 0 && asked.status & STA_NANO);
	asked = (struct timex){ .modes = ADJ_SETOFFSET | ADJ_NANO, .time = { 2, 5 } };
	struct timespec before, after;
	clock_gettime(CLOCK_REALTIME, &before);
	PROMISE("the clock is moved on", adjtimex(&asked) >= 0 && (clock_gettime(CLOCK_REALTIME, &after), after.tv_sec - before.tv_sec >= 2 && after.tv_sec - before.tv_sec < 60));
	asked = (struct timex){ .modes = ADJ_SETOFFSET | ADJ_NANO, .time = { -3, 999999995 } };
	PROMISE("and back", adjtimex(&asked) >= 0 && (clock_gettime(CLOCK_REALTIME, &after), after.tv_sec - before.tv_sec >= 0 && after.tv_sec - before.tv_sec < 100));
	asked = (struct timex){ 0 };
	PROMISE("after which nobody vouches for it", adjtimex(&asked) == TIME_ERROR && asked.status & STA_UNSYNC && asked.maxerror == 16000000);
	asked = (struct timex){ .modes = is_nano ? ADJ_NANO : ADJ_MICRO };
	PROMISE("microseconds are told again", adjtimex(&asked) >= 0 && (asked.status & STA_NANO) == is_nano);
}

static long advise(int pidfd, const struct iovec *runs, size_t count, int advice)
{
	return syscall(SYS_process_madvise, pidfd, runs, count, advice, 0);
}

static void advising(void)
{
	int status, ends[2];
	char byte;
	enum { SIZE = 1 << 20 };
	char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(memory != MAP_FAILED && pipe(ends) == 0);
	memset(memory, 7, SIZE);
	char *hole = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(hole != MAP_FAILED && munmap(hole + 4096, 4096) == 0);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		int right = 0;
		if (read(ends[0], &byte, 1) == 1)
			for (int i = 0; i < SIZE; i++)
				right += memory[i] == 7;
		_exit(right == SIZE ? 0 : 1);
	}
	int pidfd = syscall(SYS_pidfd_open, child, 0);
	struct iovec runs[3] = { { memory, SIZE / 2 }, { memory + SIZE / 2, 8192 }, { hole, 3 * 4096 } };
	NEED(pidfd >= 0);
	PROMISE("another process' memory is said to be cold", advise(pidfd, runs, 2, MADV_COLD) == SIZE / 2 + 8192);
	PROMISE("is paged out", advise(pidfd, runs, 2, MADV_PAGEOUT) == SIZE / 2 + 8192);
	PROMISE("and brought in", advise(pidfd, runs, 1, MADV_WILLNEED) == SIZE / 2);
	PROMISE("what was done before an error is told", advise(pidfd, runs, 3, MADV_COLD) == SIZE / 2 + 8192);
	FAILS_WITH("an error at once is an error", advise(pidfd, runs + 2, 1, MADV_COLD), ENOMEM);
	FAILS_WITH("another's memory is not thrown away", advise(pidfd, runs, 1, MADV_DONTNEED), EINVAL);
	FAILS_WITH("there is no such advice", advise(pidfd, runs, 1, 999), EINVAL);
	FAILS_WITH("the call has no flags", syscall(SYS_process_madvise, pidfd, runs, 1, MADV_COLD, 1), EINVAL);
	FAILS_WITH("another file is none of a process", advise(ends[0], runs, 1, MADV_COLD), EBADF);
	FAILS_WITH("runs elsewhere are a bad address", advise(pidfd, (void *)8, 2, MADV_COLD), EFAULT);
	PROMISE("no runs are no bytes", advise(pidfd, runs, 0, MADV_COLD) == 0);
	IN_CHILD(status, NEED(setresuid(4711, 4711, 4711) == 0); _exit(advise(pidfd, runs, 1, MADV_COLD) == -1 && (errno == EPERM || errno == EACCES) ? 0 : 1));
	PROMISE("others may not", status == 0);
	NEED(write(ends[1], "x", 1) == 1 && waitpid(child, &status, 0) == child);
	PROMISE("the bytes are as they were", status == 0);
	FAILS_WITH("a process that has ended has no memory", advise(pidfd, runs, 1, MADV_COLD), ESRCH);
	int self = syscall(SYS_pidfd_open, getpid(), 0);
	PROMISE("one's own memory is advised about without rights", advise(self, runs, 2, MADV_COLD) == SIZE / 2 + 8192);
	close(pidfd);
	close(self);
	close(ends[0]);
	close(ends[1]);
	munmap(memory, SIZE);
}

/* A process that has ended, and was not waited for. */
static void of_ended(void)
{
	struct sched_param param = { 10 };
	siginfo_t info;
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0)
		_exit(0);
	NEED(waitid(P_PID, child, &info, WEXITED | WNOWAIT) == 0);
	PROMISE("a process that has ended has the usual policy", sched_getscheduler(child) == SCHED_OTHER);
	PROMISE("and priority 0", sched_getparam(child, &param) == 0 && param.sched_priority == 0);
	NEED(waitpid(child, NULL, 0) == child);
	FAILS_WITH("until it was waited for", sched_getscheduler(child), ESRCH);
}

int main(void)
{
	of_ended();
	NEED(geteuid() == 0);
	sizes();
	policies();
	rights();
	io_priorities();
	comparing();
	clock_state();
	clock_changes();
	advising();
	return conclude();
}
