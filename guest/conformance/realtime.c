/*
 * Real-time scheduling: SCHED_FIFO and SCHED_RR. Tests who may use them, that their threads run
 * before others and in order of priority, and that others get some time. Also tests that the
 * owner of a lock inherits the priority of its waiters. Run as root.
 */
#include "promise.h"
#include "helpers.h"

#define RESET 0x40000000

struct attributes {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
};

static int set(pid_t whom, int policy, int priority)
{
	struct sched_param parameters = { priority };
	return syscall(SYS_sched_setscheduler, whom, policy, &parameters);
}

static int is(pid_t whom, int policy, int priority)
{
	struct attributes now = { 0 };
	struct sched_param parameters;
	return syscall(SYS_sched_getattr, whom, &now, sizeof now, 0) == 0 && (int)now.policy == (policy & ~RESET) && (int)now.priority == priority && now.nice == 0 &&
	       syscall(SYS_sched_getscheduler, whom) == policy && syscall(SYS_sched_getparam, whom, &parameters) == 0 && parameters.sched_priority == priority;
}

static void policies(void)
{
	int status;
	struct timespec turn;
	struct sched_param nine = { 9 };
	PROMISE("root has SCHED_FIFO", set(0, SCHED_FIFO, 5) == 0 && is(0, SCHED_FIFO, 5));
	PROMISE("which /proc shows", stat_field(gettid(), 18) == -6 && stat_field(gettid(), 40) == 5 && stat_field(gettid(), 41) == SCHED_FIFO);
	PROMISE("its turn has no end", syscall(SYS_sched_rr_get_interval, 0, &turn) == 0 && turn.tv_sec == 0 && turn.tv_nsec == 0);
	PROMISE("and SCHED_RR", set(0, SCHED_RR, 7) == 0 && is(0, SCHED_RR, 7));
	PROMISE("whose turn has one", syscall(SYS_sched_rr_get_interval, 0, &turn) == 0 && turn.tv_sec == 0 && turn.tv_nsec > 0);
	PROMISE("sched_setparam sets the priority", syscall(SYS_sched_setparam, 0, &nine) == 0 && is(0, SCHED_RR, 9));
	FAILS_WITH("a real-time policy has one", set(0, SCHED_RR, 0), EINVAL);
	FAILS_WITH("of 99 at most", set(0, SCHED_FIFO, 100), EINVAL);
	FAILS_WITH("and not less than 0", set(0, SCHED_FIFO, -1), EINVAL);
	FAILS_WITH("other policies have none", set(0, SCHED_OTHER, 1), EINVAL);
	IN_CHILD(status, _exit(is(0, SCHED_RR, 9) ? 0 : 1));
	PROMISE("it is inherited", status == 0);
	PROMISE("unless a fork resets", set(0, SCHED_FIFO | RESET, 3) == 0 && is(0, SCHED_FIFO | RESET, 3));
	IN_CHILD(status, _exit(is(0, SCHED_OTHER, 0) ? 0 : 1));
	PROMISE("to SCHED_OTHER", status == 0);
	PROMISE("which root sets again", set(0, SCHED_OTHER, 0) == 0 && is(0, SCHED_OTHER, 0) && stat_field(gettid(), 18) == 20);
}

static void rights(void)
{
	int status;
	struct rlimit ten = { 10, 10 }, none = { 0, 0 };
	IN_CHILD(status, NEED(setresuid(4711, 4711, 4711) == 0);
		if (set(0, SCHED_FIFO, 1) != -1 || errno != EPERM) _exit(1));
	PROMISE("others have no real-time policy", status == 0);
	IN_CHILD(status,
		/* Root without CAP_SYS_RESOURCE, in a container, cannot raise a limit. */
		if (setrlimit(RLIMIT_RTPRIO, &ten) == -1 && errno == EPERM) _exit(0);
		NEED(setresuid(4711, 4711, 4711) == 0);
		if (set(0, SCHED_FIFO, 10) != 0 || !is(0, SCHED_FIFO, 10)) _exit(1);
		if (set(0, SCHED_RR, 11) != -1 || errno != EPERM) _exit(2);
		if (set(0, SCHED_RR, 4) != 0 || set(0, SCHED_RR, 9) != 0) _exit(3);
		if (setrlimit(RLIMIT_RTPRIO, &none) != 0 || set(0, SCHED_FIFO, 2) != -1 || errno != EPERM) _exit(4);
		if (set(0, SCHED_RR, 3) != 0 || set(0, SCHED_RR, 4) != -1 || errno != EPERM) _exit(5);
		if (set(0, SCHED_OTHER, 0) != 0 || set(0, SCHED_RR, 1) != -1) _exit(6));
	PROMISE("but up to RLIMIT_RTPRIO", status == 0);
}

static void pin(void)
{
	unsigned long first = 1;
	NEED(syscall(SYS_sched_setaffinity, 0, sizeof first, &first) >= 0);
}

static int64_t own_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

static void spin(int ms)
{
	int64_t end = own_ms() + ms;
	while (own_ms() < end)
		;
}

static volatile uint64_t counter;
static volatile int stopped;

static long count_up(void *unused)
{
	(void)unused;
	while (!stopped)
		counter++;
	return 0;
}

/* Whether a thread of SCHED_OTHER makes no progress while this one, on the same CPU, runs. */
static int goes_first(void)
{
	struct helper other;
	stopped = 0;
	start(&other);
	tell(&other, count_up, NULL);
	NEED(COMES_TRUE(counter > 0));
	NEED(set(0, SCHED_FIFO, 40) == 0);
	uint64_t before = counter;
	spin(30);
	int stood_still = counter == before;
	stopped = 1;
	NEED(set(0, SCHED_OTHER, 0) == 0);
	finish(&other);
	return stood_still;
}

static char order[16];
static uint32_t places, signalled;

static void note(char who)
{
	order[__atomic_fetch_add(&places, 1, __ATOMIC_SEQ_CST)] = who;
}

static long note_when_woken(void *who)
{
	while (load(&signalled) == 0)
		call(&signalled, FUTEX_WAIT, 0, NULL, NULL, 0);
	note((char)(uintptr_t)who);
	return 0;
}

/* This thread, with priority 10, wakes one with `priority`, notes 'a', yields, and notes 'b'. */
static int ordered(int policy, int priority, const char *expected)
{
	struct helper other;
	memset(order, 0, sizeof order);
	places = signalled = 0;
	start(&other);
	NEED(set(other.tid, policy, priority) == 0 && set(0, SCHED_FIFO, 10) == 0);
	wait_in(&other, note_when_woken, (void *)(uintptr_t)'w');
	store(&signalled, 1);
	NEED(call(&signalled, FUTEX_WAKE, 1, NULL, NULL, 0) == 1);
	note('a');
	sched_yield();
	note('b');
	NEED(came(&other, 0) && set(0, SCHED_OTHER, 0) == 0);
	finish(&other);
	return !strcmp(order, expected);
}

static int takes_turns(void)
{
	struct helper other;
	stopped = 0;
	counter = 0;
	start(&other);
	NEED(set(other.tid, SCHED_RR, 10) == 0 && set(0, SCHED_RR, 10) == 0);
	tell(&other, count_up, NULL);
	for (int i = 0; i < 100 && counter == 0; i++)
		spin(10);
	int came_on = counter > 0;
	stopped = 1;
	NEED(set(0, SCHED_OTHER, 0) == 0);
	finish(&other);
	return came_on;
}

static long spin_on(void *unused)
{
	(void)unused;
	while (!stopped)
		;
	return 0;
}

static int leaves_time(void)
{
	struct helper runaway;
	stopped = 0;
	start(&runaway);
	NEED(set(runaway.tid, SCHED_FIFO, 50) == 0);
	tell(&runaway, spin_on, NULL);
	for (int i = 0; i < 10; i++)
		spin(2);
	stopped = 1;
	finish(&runaway);
	return 1;
}

static void order_of_running(void)
{
	PROMISE("a real-time thread goes before the others", HOLDS_ONCE(goes_first()));
	PROMISE("a woken thread with a higher priority runs at once", HOLDS_ONCE(ordered(SCHED_FIFO, 11, "wab")));
	PROMISE("one with the same waits until the other yields", HOLDS_ONCE(ordered(SCHED_FIFO, 10, "awb")));
	PROMISE("one with a lower waits on", HOLDS_ONCE(ordered(SCHED_FIFO, 9, "abw")));
	PROMISE("and so does one of SCHED_OTHER", HOLDS_ONCE(ordered(SCHED_OTHER, 0, "abw")));
	PROMISE("SCHED_RR takes turns", HOLDS_ONCE(takes_turns()));
	PROMISE("a runaway thread leaves time to others", leaves_time());
}

static uint32_t first_lock, second_lock;

static long lock_first(void *unused)
{
	(void)unused;
	return lock(&first_lock);
}

static long lock_both(void *unused)
{
	(void)unused;
	return lock(&second_lock) == 0 ? lock(&first_lock) : -1;
}

static long lock_second(void *unused)
{
	(void)unused;
	return lock(&second_lock);
}

static long lock_shortly(void *unused)
{
	(void)unused;
	struct timespec end;
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += 1;
	return call(&first_lock, FUTEX_LOCK_PI, 0, &end, NULL, 0);
}

static int priority_is(struct helper *helper, int shown)
{
	return COMES_TRUE(stat_field(helper->tid, 18) == shown);
}

static void inheritance(void)
{
	struct helper low, middle, high, other;
	start(&low), start(&middle), start(&high), start(&other);
	NEED(set(high.tid, SCHED_FIFO, 20) == 0 && set(middle.tid, SCHED_RR, 10) == 0);
	NEED(ask(&low, lock_first, NULL) == 0);
	wait_in(&other, lock_first, NULL);
	PROMISE("a waiter of SCHED_OTHER gives nothing", stat_field(low.tid, 18) == 20);
	wait_in(&middle, lock_first, NULL);
	PROMISE("a lock's owner inherits a priority", priority_is(&low, -11));
	wait_in(&high, lock_first, NULL);
	PROMISE("the highest", priority_is(&low, -21));
	PROMISE("while its own stays", is(low.tid, SCHED_OTHER, 0) && stat_field(low.tid, 40) == 0);
	PROMISE("a waiter's new priority is inherited", set(middle.tid, SCHED_FIFO, 30) == 0 && priority_is(&low, -31));
	PROMISE("and a lower one", set(middle.tid, SCHED_RR, 10) == 0 && priority_is(&low, -21));
	PROMISE("the first to have the lock is that with the highest", ask(&low, unlock_it, &first_lock) == 0 && came(&high, 0) && load(&first_lock) == (high.tid | FUTEX_WAITERS));
	PROMISE("the former owner has its own again", priority_is(&low, 20));
	PROMISE("then that with the next", ask(&high, unlock_it, &first_lock) == 0 && came(&middle, 0));
	PROMISE("then the other, which came first", ask(&middle, unlock_it, &first_lock) == 0 && came(&other, 0) && ask(&other, unlock_it, &first_lock) == 0);
	NEED(ask(&low, lock_first, NULL) == 0);
	wait_in(&other, lock_both, NULL);
	wait_in(&high, lock_second, NULL);
	PROMISE("it is inherited from owner to owner", priority_is(&low, -21) && priority_is(&other, -21));
	PROMISE("until they unlock", ask(&low, unlock_it, &first_lock) == 0 && priority_is(&low, 20) && came(&other, 0) && priority_is(&other, -21) && ask(&other, unlock_it, &first_lock) == 0 && ask(&other, unlock_it, &second_lock) == 0 && priority_is(&other, 20) && came(&high, 0) && ask(&high, unlock_it, &second_lock) == 0);
	NEED(ask(&low, lock_first, NULL) == 0);
	wait_in(&high, lock_shortly, NULL);
	PROMISE("or until the wait ends", priority_is(&low, -21) && failed(&high, ETIMEDOUT) && priority_is(&low, 20) && ask(&low, unlock_it, &first_lock) == 0);
	finish(&low), finish(&middle), finish(&high), finish(&other);
}

static long hold_and_work(void *unused)
{
	(void)unused;
	if (lock(&first_lock) != 0)
		return -1;
	store(&signalled, 1);
	while (load(&signalled) != 2)
		sched_yield();
	spin(20);
	return unlock(&first_lock);
}

static volatile int was_first;

static long spin_between(void *unused)
{
	(void)unused;
	int64_t end = own_ms() + 300;
	while (own_ms() < end && !was_first)
		;
	return was_first;
}

static long lock_and_tell(void *unused)
{
	(void)unused;
	long outcome = lock(&first_lock);
	was_first = 1;
	return outcome == 0 ? unlock(&first_lock) : outcome;
}

/* Three threads share a CPU: an owner of a lock with SCHED_OTHER, one that does not give up the
 * CPU, and one with a higher priority that waits for the lock. Returns whether the third has the
 * lock before the second is done. */
static int is_no_inversion(void)
{
	struct helper low, middle, high;
	was_first = 0;
	signalled = 0;
	start(&low), start(&middle), start(&high);
	NEED(set(middle.tid, SCHED_FIFO, 10) == 0 && set(high.tid, SCHED_FIFO, 20) == 0);
	tell(&low, hold_and_work, NULL);
	NEED(COMES_TRUE(load(&signalled) == 1));
	wait_in(&high, lock_and_tell, NULL);
	NEED(set(0, SCHED_FIFO, 15) == 0);
	tell(&middle, spin_between, NULL);
	store(&signalled, 2);
	NEED(set(0, SCHED_OTHER, 0) == 0);
	NEED(COMES_TRUE(is_done(&low) && is_done(&middle) && is_done(&high)));
	int right = low.outcome == 0 && high.outcome == 0 && middle.outcome == 1;
	finish(&low), finish(&middle), finish(&high);
	return right;
}

int main(void)
{
	NEED(geteuid() == 0);
	policies();
	rights();
	pin();
	order_of_running();
	inheritance();
	PROMISE("so no thread in between keeps the lock from the highest", HOLDS_ONCE(is_no_inversion()));
	return conclude();
}
