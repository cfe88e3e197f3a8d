/* Time: clocks, sleeping, timers, CPU time of a process. */
#include "promise.h"
#include <sys/timerfd.h>
#include <sys/times.h>

static volatile sig_atomic_t count;

static void note(int signal)
{
	(void)signal;
	count++;
}

static int64_t ns(clockid_t clock)
{
	struct timespec t = { 0, 0 };
	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void burn(int ms)
{
	int64_t end = ns(CLOCK_PROCESS_CPUTIME_ID) + ms * 1000000LL;
	while (ns(CLOCK_PROCESS_CPUTIME_ID) < end)
		;
}

static void clocks(void)
{
	int64_t before = ns(CLOCK_MONOTONIC);
	int steps_back = 0;
	for (int i = 0; i < 20000; i++) {
		int64_t now = ns(CLOCK_MONOTONIC);
		steps_back += now < before;
		before = now;
	}
	PROMISE("CLOCK_MONOTONIC never steps back", steps_back == 0);
	int64_t real = ns(CLOCK_REALTIME);
	struct timeval day;
	PROMISE("gettimeofday, time and CLOCK_REALTIME agree", HOLDS_ONCE((real = ns(CLOCK_REALTIME), gettimeofday(&day, NULL),
		llabs(day.tv_sec * 1000000LL + day.tv_usec - real / 1000) < 1000000 && llabs(time(NULL) - real / 1000000000) <= 1)));
	PROMISE("it is later than 2020", real / 1000000000 > 1577836800);
	PROMISE("CLOCK_BOOTTIME runs with CLOCK_MONOTONIC", llabs(ns(CLOCK_BOOTTIME) - ns(CLOCK_MONOTONIC)) < 1000000000000LL);
	PROMISE("coarse clocks are near", HOLDS_ONCE(llabs(ns(CLOCK_MONOTONIC_COARSE) - ns(CLOCK_MONOTONIC)) < 100000000 && llabs(ns(CLOCK_REALTIME_COARSE) - ns(CLOCK_REALTIME)) < 100000000));
	struct timespec resolution;
	PROMISE("timers are of high resolution", clock_getres(CLOCK_MONOTONIC, &resolution) == 0 && resolution.tv_sec == 0 && resolution.tv_nsec <= 1000);
	FAILS_WITH("a clock that does not exist", clock_gettime(77, &resolution), EINVAL);
}

static void sleeping(void)
{
	int64_t from = now_ms();
	sleep_ms(50);
	int64_t took = now_ms() - from;
	PROMISE("nanosleep sleeps as long as asked", took >= 49);
	PROMISE("and not much longer", HOLDS_ONCE((from = now_ms(), sleep_ms(50), now_ms() - from < 500)));
	PROMISE("short sleeps are short", HOLDS_ONCE(({
		from = ns(CLOCK_MONOTONIC);
		for (int i = 0; i < 20; i++)
			nanosleep(&(struct timespec){ 0, 100000 }, NULL);
		took = ns(CLOCK_MONOTONIC) - from;
		took >= 2000000 && took < 1000000000;
	})));
	struct timespec then;
	then = (struct timespec){ 0, 1 };
	PROMISE("a time that is past is no sleep", clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &then, NULL) == 0);
	clock_gettime(CLOCK_REALTIME, &then);
	then.tv_nsec += 30000000;
	if (then.tv_nsec >= 1000000000)
		then.tv_nsec -= 1000000000, then.tv_sec++;
	PROMISE("an absolute sleep on the wall clock", clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &then, NULL) == 0 &&
		ns(CLOCK_REALTIME) >= then.tv_sec * 1000000000LL + then.tv_nsec);
	FAILS_WITH("a billion nanoseconds are a second", nanosleep(&(struct timespec){ 0, 1000000000 }, NULL), EINVAL);
}

static void timers(void)
{
	signal(SIGALRM, note);
	struct itimerval often = { { 0, 20000 }, { 0, 20000 } }, left;
	count = 0;
	setitimer(ITIMER_REAL, &often, NULL);
	PROMISE("an interval timer comes again and again", COMES_TRUE(count >= 5));
	PROMISE("and tells what is left", getitimer(ITIMER_REAL, &left) == 0 && left.it_interval.tv_usec == 20000);
	setitimer(ITIMER_REAL, &(struct itimerval){ { 0, 0 }, { 0, 0 } }, NULL);
	count = 0;
	sleep_ms(60);
	PROMISE("until it is stopped", count == 0);
	PROMISE("alarm tells the rest of the last", HOLDS_ONCE((alarm(100), alarm(0)) >= 99));
	timer_t timer;
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM };
	struct itimerspec once = { { 0, 0 }, { 0, 30000000 } };
	PROMISE("timer_create and timer_settime", timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &once, NULL) == 0);
	PROMISE("it comes once", COMES_TRUE(count > 0) && count == 1);
	timer_delete(timer);
	int fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
	uint64_t times = 0;
	struct itimerspec late = { { 0, 10000000 }, { 1000, 0 } }, ticks = { { 0, 10000000 }, { 0, 10000000 } };
	PROMISE("timerfd", fd >= 0 && timerfd_settime(fd, 0, &late, NULL) == 0);
	FAILS_WITH("nothing before its time", read(fd, &times, 8), EAGAIN);
	NEED(timerfd_settime(fd, 0, &ticks, NULL) == 0);
	sleep_ms(65);
	PROMISE("then it counts", read(fd, &times, 8) == 8 && times >= 5);
	struct pollfd wait = { fd, POLLIN, 0 };
	PROMISE("and can be polled", poll(&wait, 1, -1) == 1);
	close(fd);
}

/* A timer for a time of the wall clock that is cancelled when the clock is set. */
static void cancelled(void)
{
	int cancel = TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET;
	int timers[3] = { timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK), timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK) };
	struct timespec now;
	uint64_t times;
	NEED(clock_gettime(CLOCK_REALTIME, &now) == 0);
	struct itimerspec far = { .it_value = { now.tv_sec + 100000, 0 } };
	for (int i = 0; i < 3; i++)
		NEED(timerfd_settime(timers[i], i == 2 ? TFD_TIMER_ABSTIME : cancel, &far, NULL) == 0);
	NEED(clock_gettime(CLOCK_REALTIME, &now) == 0);
	now.tv_sec += 2;
	NEED(clock_settime(CLOCK_REALTIME, &now) == 0);
	struct pollfd polled = { timers[0], POLLIN, 0 };
	PROMISE("setting the clock is an event of a timer that asked for it", poll(&polled, 1, 0) == 1 && polled.revents == POLLIN);
	FAILS_WITH("which is cancelled", read(timers[0], &times, 8), ECANCELED);
	FAILS_WITH("once", read(timers[0], &times, 8), EAGAIN);
	FAILS_WITH("a timer of another clock is not", read(timers[1], &times, 8), EAGAIN);
	FAILS_WITH("nor one that did not ask", read(timers[2], &times, 8), EAGAIN);
	now.tv_sec -= 2;
	NEED(clock_settime(CLOCK_REALTIME, &now) == 0);
	struct itimerspec left = { 0 };
	FAILS_WITH("setting a cancelled timer tells it, too", timerfd_settime(timers[0], cancel, &far, NULL), ECANCELED);
	PROMISE("and sets it", timerfd_gettime(timers[0], &left) == 0 && left.it_value.tv_sec > 90000);
	NEED(timerfd_settime(timers[0], TFD_TIMER_ABSTIME, &far, NULL) == 0 && clock_settime(CLOCK_REALTIME, &now) == 0);
	FAILS_WITH("until it asks no more", read(timers[0], &times, 8), EAGAIN);
	for (int i = 0; i < 3; i++)
		close(timers[i]);
}

/* Ticks of all CPUs in user mode. */
static long user_ticks(void)
{
	long user = -1, nice = 0;
	char line[200] = "";
	int file = open("/proc/stat", O_RDONLY | O_CLOEXEC);
	NEED(file >= 0 && read(file, line, sizeof line - 1) > 0);
	close(file);
	NEED(sscanf(line, "cpu %ld %ld", &user, &nice) == 2);
	return user + nice;
}

/* Computes for so long, and rarely enters the kernel. */
static void compute(int ms)
{
	for (int64_t end = now_ms() + ms; now_ms() < end;)
		for (volatile int i = 0; i < 1000000; i++)
			;
}

/* A process that computes; nobody waits for it or learns its times. */
static void compute_unseen(int ms)
{
	signal(SIGCHLD, SIG_IGN);
	pid_t child = fork();
	if (child == 0) {
		compute(ms);
		_exit(0);
	}
	NEED(child > 0 && waitpid(child, NULL, 0) == -1);
	signal(SIGCHLD, SIG_DFL);
}

static void times_of_cpus(void)
{
	long before = user_ticks();
	compute_unseen(400);
	long after = user_ticks();
	PROMISE("/proc/stat counts time in user mode", after - before >= 10);
	for (int i = 0; i < 20; i++)
		compute_unseen(1);
	PROMISE("and never less, whatever ends", user_ticks() >= after);
	/* A stopped child that waited for one of its own. */
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		pid_t own = fork();
		if (own == 0) {
			burn(300);
			_exit(0);
		}
		waitpid(own, NULL, 0);
		raise(SIGSTOP);
		_exit(0);
	}
	struct rusage used = { 0 };
	int status;
	NEED(child > 0 && wait4(child, &status, WUNTRACED, &used) == child);
	PROMISE("the times of a stopped child contain those of its children", WIFSTOPPED(status) &&
		(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000LL + used.ru_utime.tv_usec + used.ru_stime.tv_usec >= 100000);
	NEED(kill(child, SIGKILL) == 0 && wait4(child, &status, 0, NULL) == child);
}

static void usage(void)
{
	struct rusage before, after;
	struct tms from, to;
	getrusage(RUSAGE_SELF, &before);
	times(&from);
	burn(120);
	getrusage(RUSAGE_SELF, &after);
	times(&to);
	int64_t used = (after.ru_utime.tv_sec - before.ru_utime.tv_sec + after.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1000000LL +
		after.ru_utime.tv_usec - before.ru_utime.tv_usec + after.ru_stime.tv_usec - before.ru_stime.tv_usec;
	PROMISE("getrusage counts the time that was used", used >= 80000);
	PROMISE("times too", to.tms_utime + to.tms_stime - from.tms_utime - from.tms_stime >= 8);
	PROMISE("and the most memory", after.ru_maxrss > 100);
	/* Only a SIGALRM handler runs between the two readings. */
	signal(SIGALRM, note);
	PROMISE("CPU time is told up to now", HOLDS_ONCE(({
		count = 0;
		times(&from);
		setitimer(ITIMER_REAL, &(struct itimerval){ { 0, 0 }, { 0, 300000 } }, NULL);
		while (!count)
			;
		times(&to);
		to.tms_utime + to.tms_stime - from.tms_utime - from.tms_stime >= 20;
	})));
	int64_t idle;
	PROMISE("sleeping uses none", HOLDS_ONCE((idle = ns(CLOCK_PROCESS_CPUTIME_ID), sleep_ms(100), ns(CLOCK_PROCESS_CPUTIME_ID) - idle < 60000000)));
	int status;
	IN_CHILD(status, burn(60));
	PROMISE("what children used is added when they end", getrusage(RUSAGE_CHILDREN, &after) == 0 &&
		after.ru_utime.tv_sec * 1000000LL + after.ru_utime.tv_usec + after.ru_stime.tv_sec * 1000000LL + after.ru_stime.tv_usec >= 40000);
	signal(SIGVTALRM, note);
	count = 0;
	setitimer(ITIMER_VIRTUAL, &(struct itimerval){ { 0, 0 }, { 0, 30000 } }, NULL);
	int64_t limit = now_ms() + 60000;
	while (!count && now_ms() < limit)
		;
	PROMISE("ITIMER_VIRTUAL counts running time", count == 1);
	IN_CHILD(status, setrlimit(RLIMIT_CPU, &(struct rlimit){ 1, 5 }); for (;;));
	PROMISE("RLIMIT_CPU ends in SIGXCPU", WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU);
	/* One CPU is enough: a child that never sleeps must not keep another from running. */
	fflush(stdout);
	pid_t spinner[4];
	for (int i = 0; i < 4; i++)
		if ((spinner[i] = fork()) == 0)
			for (;;)
				;
	int64_t begin;
	PROMISE("programs that never sleep are preempted", HOLDS_ONCE((begin = now_ms(), sleep_ms(10), now_ms() - begin < 1000)));
	for (int i = 0; i < 4; i++)
		kill(spinner[i], SIGKILL);
	while (wait(NULL) > 0)
		;
}

/* CPU time of a child that never enters the kernel, read while it runs. */
static void time_of_a_child_that_computes(void)
{
	char path[64], line[512];
	long user = -1, system = -1;
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0)
		for (;;)
			;
	snprintf(path, sizeof path, "/proc/%d/stat", child);
	for (int64_t end = now_ms() + 60000; user + system < 20 && now_ms() < end;) {
		sleep_ms(50);
		FILE *stat = fopen(path, "r");
		NEED(stat && fgets(line, sizeof line, stat));
		fclose(stat);
		NEED(sscanf(strrchr(line, ')') + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &user, &system) == 2);
	}
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	PROMISE("what a program computes is its own time, not the kernel's", user > 3 * system);
}

static volatile int ended;

static void *burn_and_end(void *unused)
{
	int64_t end = ns(CLOCK_THREAD_CPUTIME_ID) + 4000000;
	while (ns(CLOCK_THREAD_CPUTIME_ID) < end)
		;
	__atomic_add_fetch(&ended, 1, __ATOMIC_SEQ_CST);
	return unused;
}

/* At any moment a thread that ends is counted once: as a living thread or as an ended one. */
static void time_of_threads_that_end(void)
{
	enum { ROUNDS = 60, THREADS = 3 };
	pthread_t threads[THREADS];
	int64_t last = 0, now;
	struct rusage usage;
	int back = 0;
	for (int round = 1; round <= ROUNDS; round++) {
		for (int i = 0; i < THREADS; i++)
			NEED(pthread_create(&threads[i], NULL, burn_and_end, NULL) == 0);
		for (int joined = 0; joined <= THREADS;) {
			now = ns(CLOCK_PROCESS_CPUTIME_ID);
			back += now < last;
			last = now;
			getrusage(RUSAGE_SELF, &usage);
			now = (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000LL + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000;
			back += now < last - 2000;
			if (joined == THREADS || ended < THREADS * (round - 1) + joined + 1)
				joined += joined == THREADS;
			else
				pthread_join(threads[joined++], NULL);
		}
	}
	PROMISE("a process' CPU time never goes back as its threads end", back == 0);
	PROMISE("and has all that they used", last >= ROUNDS * THREADS * 4000000LL);
}

static void timers_of_all_lengths(void)
{
	static const int64_t seconds[] = { 1, 1ll << 32, 1ll << 62, INT64_MAX };
	struct sigevent silent = { .sigev_notify = SIGEV_NONE };
	struct itimerspec left;
	timer_t timer;
	int kept = 0, file = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
	NEED(timer_create(CLOCK_MONOTONIC, &silent, &timer) == 0 && file >= 0);
	signal(SIGALRM, note);
	count = 0;
	for (int i = 0; i < 4; i++) {
		struct itimerspec once = { { seconds[i], 999999999 }, { 0, 1000 } };
		struct itimerval real = { { seconds[i], 999999 }, { 0, 1 } };
		kept += timer_settime(timer, 0, &once, NULL) == 0 && timerfd_settime(file, 0, &once, NULL) == 0 &&
			setitimer(ITIMER_REAL, &real, NULL) == 0;
		for (int64_t end = ns(CLOCK_MONOTONIC) + 20000000; count == i && ns(CLOCK_MONOTONIC) < end;)
			sleep_ms(1);
		kept += timer_gettime(timer, &left) == 0 && left.it_value.tv_sec > 0;
	}
	PROMISE("a timer repeats after any time, and not before", kept == 8 && count == 4);
	struct itimerval never = { { 0, 0 }, { 0, 0 } };
	PROMISE("each of them ends", setitimer(ITIMER_REAL, &never, NULL) == 0 && timer_delete(timer) == 0 && close(file) == 0);
}

/* Returns the number of rounds that a loop makes in 200 ms. */
static long progress(void)
{
	long turns = 0;
	for (int64_t end = ns(CLOCK_MONOTONIC) + 200000000; ns(CLOCK_MONOTONIC) < end; turns++)
		for (volatile int i = 0; i < 500; i++)
			;
	return turns;
}

static void timers_of_a_nanosecond(void)
{
	enum { MANY = 200 };
	struct itimerspec often = { { 0, 1 }, { 0, 1 } };
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN };
	timer_t timers[MANY];
	sigset_t set;
	long before = progress();
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN);
	sigprocmask(SIG_BLOCK, &set, NULL);
	for (int i = 0; i < MANY; i++) {
		event.sigev_notify = i % 2 ? SIGEV_NONE : SIGEV_SIGNAL;
		NEED(timer_create(CLOCK_MONOTONIC, &event, &timers[i]) == 0 && timer_settime(timers[i], 0, &often, NULL) == 0);
	}
	PROMISE("programs run beside timers that expire all the time", HOLDS_ONCE(progress() > before / 3));
	for (int i = 0; i < MANY; i++)
		timer_delete(timers[i]);
}

static void run_on(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof set, &set);
}

/* A timer is armed on one CPU, where it expires, and disarmed on another. */
static void timers_disarmed_as_they_expire(void)
{
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	struct itimerspec often = { { 0, 2000 }, { 0, 2000 } }, never = { { 0, 0 }, { 0, 0 } }, left;
	cpu_set_t before;
	timer_t timer;
	int armed = 0;
	signal(SIGUSR1, note);
	NEED(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && sched_getaffinity(0, sizeof before, &before) == 0);
	for (int i = 0; i < 400; i++) {
		run_on(0);
		timer_settime(timer, 0, &often, NULL);
		run_on(1);
		timer_settime(timer, 0, &never, NULL);
		sched_yield();
		armed += timer_gettime(timer, &left) || left.it_value.tv_sec || left.it_value.tv_nsec;
	}
	sched_setaffinity(0, sizeof before, &before);
	PROMISE("a timer that was disarmed as it expired is not armed", armed == 0);
	timer_delete(timer);
}

static struct {
	timer_t posix;
	int file;
	volatile int stop;
	volatile long sleeps, ended;
} race;

/* Arms timers that repeat so often that at any time one is expiring on some CPU. */
static void *arm_again(void *unused)
{
	(void)unused;
	for (long i = 0; !race.stop; i++) {
		long interval = 5000 + i % 7 * 9000;
		struct itimerval real = { { 0, interval / 1000 }, { 0, interval / 1000 } };
		struct itimerspec often = { { 0, interval }, { 0, interval } };
		setitimer(ITIMER_REAL, &real, NULL);
		timer_settime(race.posix, 0, &often, NULL);
		timerfd_settime(race.file, 0, &often, NULL);
	}
	return NULL;
}

static void *sleep_often(void *unused)
{
	(void)unused;
	while (!race.stop) {
		nanosleep(&(struct timespec){ 0, 30000 }, NULL);
		race.sleeps++;
	}
	__atomic_add_fetch(&race.ended, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

/* Timers share queues with sleeps. A timer in two queues at once would remove other entries. */
static void timers_armed_from_all_sides(void)
{
	enum { ARMING = 3, SLEEPING = 3 };
	pthread_t threads[ARMING + SLEEPING];
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	signal(SIGALRM, SIG_IGN);
	signal(SIGUSR1, note);
	NEED(timer_create(CLOCK_MONOTONIC, &event, &race.posix) == 0);
	NEED((race.file = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK)) >= 0);
	for (int i = 0; i < ARMING + SLEEPING; i++)
		NEED(pthread_create(&threads[i], NULL, i < ARMING ? arm_again : sleep_often, NULL) == 0);
	/* No sleep here: it might be the lost entry, and never end. */
	for (int64_t end = now_ms() + 1000; now_ms() < end;)
		sched_yield();
	race.stop = 1;
	for (int64_t end = now_ms() + 5000; race.ended < SLEEPING && now_ms() < end;)
		sched_yield();
	PROMISE("no sleep is lost where timers that repeat are armed again as they expire", race.ended == SLEEPING && race.sleeps > 0);
	struct itimerval never = { { 0, 0 }, { 0, 0 } };
	PROMISE("and such a timer ends", setitimer(ITIMER_REAL, &never, NULL) == 0 && timer_delete(race.posix) == 0 && close(race.file) == 0);
	for (int i = 0; i < ARMING; i++)
		pthread_join(threads[i], NULL);
}

static void *spin_until(void *stop)
{
	while (!*(volatile int *)stop)
		;
	return NULL;
}

/* Timers that count CPU time, of this thread or of the process. */
static void timers_of_cpu_time(void)
{
	static volatile int stop;
	struct sigevent to_thread = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1 }, silent = { .sigev_notify = SIGEV_NONE };
	struct itimerspec set = { { 0, 0 }, { 0, 20000000 } }, left;
	struct timespec used, aim;
	timer_t timer;
	pthread_t other;
	clockid_t others;
	to_thread._sigev_un._tid = syscall(SYS_gettid);
	signal(SIGUSR1, note);
	NEED(pthread_create(&other, NULL, spin_until, (void *)&stop) == 0 && pthread_getcpuclockid(other, &others) == 0);
	for (int i = 0; i < 4; i++) {
		clockid_t clock = i < 2 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_PROCESS_CPUTIME_ID;
		NEED(timer_create(clock, &to_thread, &timer) == 0 && clock_gettime(clock, &aim) == 0);
		aim.tv_nsec += 20000000;
		if (aim.tv_nsec >= 1000000000)
			aim.tv_sec++, aim.tv_nsec -= 1000000000;
		set.it_value = i % 2 ? aim : (struct timespec){ 0, 20000000 };
		count = 0;
		PROMISE("a timer counts the CPU time of a thread, or of all", timer_settime(timer, i % 2 ? TIMER_ABSTIME : 0, &set, NULL) == 0);
		PROMISE("what is left is no more than was set", timer_gettime(timer, &left) == 0 && left.it_value.tv_sec == 0 && left.it_value.tv_nsec <= 20000000);
		while (!count)
			;
		PROMISE("it does not come before that time was used", clock_gettime(clock, &used) == 0 &&
			(used.tv_sec > aim.tv_sec || (used.tv_sec == aim.tv_sec && used.tv_nsec >= aim.tv_nsec)));
		timer_delete(timer);
	}
	set.it_value = (struct timespec){ 1000, 0 };
	NEED(timer_create(CLOCK_THREAD_CPUTIME_ID, &silent, &timer) == 0 && timer_settime(timer, 0, &set, NULL) == 0);
	sleep_ms(300);
	PROMISE("a thread that sleeps uses none", timer_gettime(timer, &left) == 0 && left.it_value.tv_sec == 999 && left.it_value.tv_nsec > 750000000);
	timer_delete(timer);
	NEED(timer_create(others, &silent, &timer) == 0 && timer_settime(timer, 0, &set, NULL) == 0);
	PROMISE("a timer counts another thread's", COMES_TRUE(timer_gettime(timer, &left) == 0 && left.it_value.tv_sec == 999 && left.it_value.tv_nsec < 900000000));
	timer_delete(timer);
	stop = 1;
	pthread_join(other, NULL);
	FAILS_WITH("not that of a thread of another process", timer_create((clockid_t)(~1u << 3 | 6), &silent, &timer), EINVAL);
}

int main(void)
{
	timers_of_cpu_time();
	clocks();
	sleeping();
	timers();
	timers_of_all_lengths();
	timers_of_a_nanosecond();
	timers_disarmed_as_they_expire();
	timers_armed_from_all_sides();
	cancelled();
	usage();
	times_of_cpus();
	time_of_a_child_that_computes();
	time_of_threads_that_end();
	return conclude();
}
