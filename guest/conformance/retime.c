/*
 * Timers and waits for a time of the wall clock expire by the new time when the clock is set;
 * repeating timers stand still until their expiry is taken.
 */
#include "promise.h"
#include <linux/futex.h>
#include <mqueue.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

enum { FAR = 1000 };

static void shift(int seconds)
{
	struct timespec now;
	NEED(clock_gettime(CLOCK_REALTIME, &now) == 0);
	now.tv_sec += seconds;
	NEED(clock_settime(CLOCK_REALTIME, &now) == 0);
}

static int has_come(int file)
{
	struct pollfd wait = { file, POLLIN, 0 };
	return poll(&wait, 1, 0) == 1;
}

static int timer_for(int clock, int flags, int seconds, int interval)
{
	int file = timerfd_create(clock, TFD_NONBLOCK | TFD_CLOEXEC);
	struct itimerspec at = { .it_interval = { interval, 0 }, .it_value = { seconds, 0 } };
	if (flags)
		at.it_value = soon(clock, seconds * 1000);
	NEED(file >= 0 && timerfd_settime(file, flags, &at, NULL) == 0);
	return file;
}

static void files(void)
{
	int absolute = timer_for(CLOCK_REALTIME, TFD_TIMER_ABSTIME, FAR, 0), relative = timer_for(CLOCK_REALTIME, 0, FAR, 0);
	int boot = timer_for(CLOCK_MONOTONIC, TFD_TIMER_ABSTIME, FAR, 0), beat = timer_for(CLOCK_REALTIME, TFD_TIMER_ABSTIME, FAR, 1);
	struct itimerspec left;
	uint64_t times = 0;
	shift(FAR - 500);
	PROMISE("the rest of a timer for a time is told by the new time", timerfd_gettime(absolute, &left) == 0 && left.it_value.tv_sec < 502);
	PROMISE("that of a timer for a while is not", timerfd_gettime(relative, &left) == 0 && left.it_value.tv_sec > FAR - 200);
	PROMISE("before its time it does not come", !has_come(absolute));
	shift(FAR + 500);
	PROMISE("a timer comes at once if the clock is set to a later time", COMES_TRUE(has_come(absolute)));
	PROMISE("so does one that repeats", COMES_TRUE(has_come(beat)));
	PROMISE("which counts the intervals that were skipped", read(beat, &times, 8) == 8 && times >= FAR - 2 && times < FAR + 300);
	PROMISE("timers for a while, and those of the other clock, do not", !has_come(relative) && !has_come(boot));
	shift(-2 * FAR);
	struct itimerspec near = { .it_value = soon(CLOCK_REALTIME, 300) };
	NEED(timerfd_settime(absolute, TFD_TIMER_ABSTIME, &near, NULL) == 0);
	shift(-FAR);
	sleep_ms(600);
	PROMISE("a timer does not come before its time if the clock is set to an earlier one", !has_come(absolute) && !has_come(beat));
	shift(FAR);
	PROMISE("but then", COMES_TRUE(has_come(absolute)));
	close(absolute), close(relative), close(boot), close(beat);
}

static void posix(void)
{
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN };
	struct timespec patience = { 60, 0 }, none = { 0, 0 };
	timer_t absolute, relative;
	sigset_t set;
	siginfo_t info;
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN);
	sigprocmask(SIG_BLOCK, &set, NULL);
	NEED(timer_create(CLOCK_REALTIME, &event, &relative) == 0);
	NEED(timer_create(CLOCK_REALTIME, &event, &absolute) == 0);
	struct itimerspec at = { .it_value = soon(CLOCK_REALTIME, FAR * 1000) }, after = { .it_value = { FAR, 0 } }, left;
	NEED(timer_settime(absolute, TIMER_ABSTIME, &at, NULL) == 0 && timer_settime(relative, 0, &after, NULL) == 0);
	shift(2 * FAR);
	PROMISE("a timer of POSIX comes, too", sigtimedwait(&set, &info, &patience) == SIGRTMIN && info.si_timerid != 0);
	PROMISE("and is done", timer_gettime(absolute, &left) == 0 && left.it_value.tv_sec == 0 && left.it_value.tv_nsec == 0);
	FAILS_WITH("one for a while does not", sigtimedwait(&set, &info, &none), EAGAIN);
	PROMISE("and has as long to go", timer_gettime(relative, &left) == 0 && left.it_value.tv_sec > FAR - 200);
	shift(-2 * FAR);
	timer_delete(absolute), timer_delete(relative);
}

static struct {
	uint32_t word, taken;
	mqd_t queue;
} waits;

struct waiter {
	const char *text;
	int (*wait)(const struct timespec *);
	int error, outcome;
	pid_t tid;
	pthread_t thread;
};

static int by_sleep(const struct timespec *at)
{
	int error = clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, at, NULL);
	return error ? error : ETIMEDOUT;
}

static int by_futex(const struct timespec *at)
{
	return syscall(SYS_futex, &waits.word, FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME, 0, at, NULL, 1) ? errno : 0;
}

static int by_futexes(const struct timespec *at)
{
	struct { uint64_t value, address; uint32_t flags, pad; } words[2] = { { 0, (uintptr_t)&waits.word, 2, 0 }, { 0, (uintptr_t)&waits.word, 2, 0 } };
	return syscall(449, words, 2, 0, at, CLOCK_REALTIME) < 0 ? errno : 0;
}

static int by_lock(const struct timespec *at)
{
	return syscall(SYS_futex, &waits.taken, FUTEX_LOCK_PI, 0, at) ? errno : 0;
}

static int by_queue(const struct timespec *at)
{
	char text[16];
	return mq_timedreceive(waits.queue, text, sizeof text, NULL, at) < 0 ? errno : 0;
}

static void *begin(void *which)
{
	struct waiter *own = which;
	struct timespec at = soon(CLOCK_REALTIME, FAR * 1000);
	__atomic_store_n(&own->tid, (pid_t)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
	__atomic_store_n(&own->outcome, own->wait(&at), __ATOMIC_SEQ_CST);
	return NULL;
}

static void sleepers(void)
{
	static struct waiter all[] = {
		{ "a sleep ends by the new time", by_sleep, ETIMEDOUT, 0, 0, 0 },
		{ "so does a wait for a futex", by_futex, ETIMEDOUT, 0, 0, 0 },
		{ "one for several", by_futexes, ETIMEDOUT, 0, 0, 0 },
		{ "one for a lock", by_lock, ETIMEDOUT, 0, 0, 0 },
		{ "one for a message", by_queue, ETIMEDOUT, 0, 0, 0 },
	};
	enum { ALL = sizeof all / sizeof *all };
	struct mq_attr shape = { .mq_maxmsg = 1, .mq_msgsize = 16 };
	waits.queue = mq_open("/retime", O_RDWR | O_CREAT, 0600, &shape);
	waits.taken = getpid();
	NEED(waits.queue != (mqd_t)-1);
	for (int i = 0; i < ALL; i++) {
		all[i].outcome = -1;
		NEED(pthread_create(&all[i].thread, NULL, begin, &all[i]) == 0);
	}
	for (int i = 0; i < ALL; i++)
		NEED(COMES_TRUE(all[i].tid && is_asleep(getpid(), all[i].tid)));
	shift(FAR - 300);
	sleep_ms(50);
	int asleep = 0;
	for (int i = 0; i < ALL; i++)
		asleep += all[i].outcome == -1;
	PROMISE("no wait ends before its time", asleep == ALL);
	shift(600);
	for (int i = 0; i < ALL; i++)
		PROMISE(all[i].text, COMES_TRUE(all[i].outcome != -1) && all[i].outcome == all[i].error);
	shift(-FAR - 300);
	for (int i = 0; i < ALL; i++)
		if (all[i].outcome != -1)
			pthread_join(all[i].thread, NULL);
	mq_close(waits.queue);
	mq_unlink("/retime");
}

static int64_t cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Returns the number of rounds that a loop makes in 100 ms. */
static long progress(void)
{
	long turns = 0;
	for (int64_t end = cpu_ns() + 100000000; cpu_ns() < end; turns++)
		for (volatile int i = 0; i < 500; i++)
			;
	return turns;
}

static void blocked(void)
{
	enum { MANY = 100 };
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN };
	struct itimerspec often = { { 0, 1000000 }, { 0, 1000000 } }, left;
	struct timespec none = { 0, 0 };
	timer_t timer, many[MANY];
	sigset_t set;
	siginfo_t info;
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	NEED(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &often, NULL) == 0);
	sleep_ms(100);
	PROMISE("a timer whose signal waits shows the time of its next expiry", timer_gettime(timer, &left) == 0 &&
		left.it_value.tv_sec == 0 && left.it_value.tv_nsec > 0 && left.it_value.tv_nsec <= 1000000);
	PROMISE("it has sent one signal, which tells how often it expired", sigtimedwait(&set, &info, &none) == SIGRTMIN && info.si_overrun >= 90);
	PROMISE("as the timer does", timer_getoverrun(timer) == info.si_overrun);
	PROMISE("and goes on", sigtimedwait(&set, &info, &(struct timespec){ 60, 0 }) == SIGRTMIN);
	timer_delete(timer);
	while (sigtimedwait(&set, &info, &none) > 0)
		;
	long before = progress();
	often = (struct itimerspec){ { 0, 1 }, { 0, 1 } };
	for (int i = 0; i < MANY; i++)
		NEED(timer_create(CLOCK_MONOTONIC, &event, &many[i]) == 0 && timer_settime(many[i], 0, &often, NULL) == 0);
	PROMISE("timers whose signals wait cost nothing", HOLDS_ONCE(progress() > before * 9 / 10));
	for (int i = 0; i < MANY; i++)
		timer_delete(many[i]);
	while (sigtimedwait(&set, &info, &none) > 0)
		;
	/* Two timers with one signal below SIGRTMIN: each has a signal of its own. */
	event.sigev_signo = SIGUSR1;
	often = (struct itimerspec){ { 0, 0 }, { 0, 1000000 } };
	for (int i = 0; i < 2; i++) {
		event.sigev_value.sival_int = i + 1;
		NEED(timer_create(CLOCK_MONOTONIC, &event, &many[i]) == 0 && timer_settime(many[i], 0, &often, NULL) == 0);
	}
	sleep_ms(50);
	int seen = 0;
	for (int i = 0; i < 2; i++)
		if (sigtimedwait(&set, &info, &none) == SIGUSR1)
			seen |= info.si_value.sival_int;
	PROMISE("each of two timers with one signal sends it", seen == 3);
	FAILS_WITH("once", sigtimedwait(&set, &info, &none), EAGAIN);
	timer_delete(many[0]), timer_delete(many[1]);
}

static volatile sig_atomic_t count;

static void note(int signal)
{
	(void)signal;
	count++;
}

static void ignored(void)
{
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2 };
	struct itimerspec often = { { 0, 2000000 }, { 0, 2000000 } };
	timer_t timer;
	signal(SIGUSR2, SIG_IGN);
	NEED(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &often, NULL) == 0);
	sleep_ms(30);
	signal(SIGUSR2, note);
	PROMISE("a timer whose signal was ignored goes on", COMES_TRUE(count >= 3));
	timer_delete(timer);
}

static void silent(void)
{
	struct sigevent event = { .sigev_notify = SIGEV_NONE };
	struct itimerspec often = { { 0, 20000000 }, { 0, 1 } }, once = { { 0, 0 }, { 0, 1 } }, left;
	timer_t timer;
	NEED(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &often, NULL) == 0);
	sleep_ms(5);
	PROMISE("a timer without a signal repeats, too", timer_gettime(timer, &left) == 0 && left.it_value.tv_nsec > 0 && left.it_value.tv_nsec <= 20000000);
	NEED(timer_settime(timer, 0, &once, NULL) == 0);
	sleep_ms(5);
	PROMISE("or has expired", timer_gettime(timer, &left) == 0 && left.it_value.tv_sec == 0 && left.it_value.tv_nsec == 0);
	timer_delete(timer);
}

static void alarms(void)
{
	sigset_t set;
	struct itimerval often = { { 0, 1000 }, { 0, 1000 } }, left;
	signal(SIGALRM, note);
	sigemptyset(&set);
	sigaddset(&set, SIGALRM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	count = 0;
	NEED(setitimer(ITIMER_REAL, &often, NULL) == 0);
	sleep_ms(50);
	PROMISE("an alarm that waits is not set again", getitimer(ITIMER_REAL, &left) == 0 && left.it_value.tv_sec == 0 && left.it_value.tv_usec == 0 &&
		left.it_interval.tv_usec == 1000);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	PROMISE("until it is taken", COMES_TRUE(count >= 3));
	NEED(setitimer(ITIMER_REAL, &(struct itimerval){ 0 }, NULL) == 0);
}

static void unread(void)
{
	int file = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), set = epoll_create1(0);
	struct itimerspec often = { { 0, 1000000 }, { 0, 1000000 } }, left;
	struct epoll_event event = { .events = EPOLLIN | EPOLLET };
	uint64_t times = 0;
	NEED(epoll_ctl(set, EPOLL_CTL_ADD, file, &event) == 0 && timerfd_settime(file, 0, &often, NULL) == 0);
	PROMISE("a timer that repeats is an event", epoll_wait(set, &event, 1, 60000) == 1);
	PROMISE("once until it is read", epoll_wait(set, &event, 1, 100) == 0);
	PROMISE("which tells how often it expired", read(file, &times, 8) == 8 && times >= 90);
	PROMISE("then it is an event again", epoll_wait(set, &event, 1, 60000) == 1);
	PROMISE("and after its time was asked for", timerfd_gettime(file, &left) == 0 && left.it_value.tv_nsec > 0 && epoll_wait(set, &event, 1, 60000) == 1);
	close(set), close(file);
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	files();
	posix();
	sleepers();
	blocked();
	ignored();
	silent();
	alarms();
	unread();
	return conclude();
}
