/*
 * Time namespaces: offsets of CLOCK_MONOTONIC and CLOCK_BOOTTIME. Runs as user 0. Each promise is
 * about a child, which makes a namespace and looks from inside, or asks for what is refused. It
 * prints a broken line and exits with 1.
 */
#include "promise.h"
#include "inside.h"
#include "ring.h"
#include <linux/futex.h>
#include <linux/sched.h>
#include <sys/auxv.h>
#include <sys/sysinfo.h>
#include <sys/timerfd.h>

#define NS_GET_USERNS 0xb701
#define NS_GET_PARENT 0xb702
#define NS_GET_NSTYPE 0xb703
#define OFFSETS "/proc/self/timens_offsets"
#define SECOND 1000000000LL
/* The offsets of most promises, in seconds. */
#define MONOTONIC_BY 100000
#define BOOTTIME_BY 300000
#define BY_DEFAULT "monotonic 100000 5\nboottime 300000 7\n"
/* A child's promise fails if the machine stops for this many seconds between two looks. */
#define SLOW 3000

static int64_t all(struct timespec t)
{
	return t.tv_sec * SECOND + t.tv_nsec;
}

static int64_t asked(clockid_t clock)
{
	struct timespec t = { -1, 0 };
	syscall(SYS_clock_gettime, clock, &t);
	return all(t);
}

/* Writes a text to a file: the number of bytes, or -1. */
static int put(const char *path, const char *text)
{
	int file = open(path, O_WRONLY | O_CLOEXEC);
	int done = file < 0 ? -1 : (int)write(file, text, strlen(text)), error = errno;
	close(file);
	errno = error;
	return done;
}

static int get(const char *path, char *text, size_t size)
{
	int file = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t done = file < 0 ? -1 : read(file, text, size - 1);
	close(file);
	text[done > 0 ? done : 0] = 0;
	return done > 0;
}

static int offsets_are(int monotonic, int boottime)
{
	char text[256], wanted[256];
	snprintf(wanted, sizeof wanted, "monotonic  %10d %9d\nboottime   %10d %9d\n", monotonic, 0, boottime, 0);
	return get(OFFSETS, text, sizeof text) && strcmp(text, wanted) == 0;
}

/* Makes a namespace with these offsets for the children. */
static int make(const char *offsets)
{
	return unshare(CLONE_NEWTIME) == 0 && put(OFFSETS, offsets) == (int)strlen(offsets);
}

/* Calls `look` in a child of the caller; its result. */
static int inside(int (*look)(void))
{
	int status = -1;
	fflush(stdout);
	pid_t child = fork();
	if (child == 0)
		_exit(look() != 0);
	return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The machine's clocks, read before the namespace was made. */
static int64_t machine_monotonic, machine_boottime, machine_wall;

static void read_clocks(void)
{
	machine_monotonic = asked(CLOCK_MONOTONIC);
	machine_boottime = asked(CLOCK_BOOTTIME);
	machine_wall = asked(CLOCK_REALTIME);
}

/* Whether `shown` is `seconds` after `machine`, which was read shortly before. */
static int is_after(int64_t shown, int64_t machine, int64_t seconds)
{
	return shown >= machine + seconds * SECOND && shown < machine + (seconds + SLOW) * SECOND;
}

static int files_name_it(void)
{
	char text[64] = { 0 }, wanted[64];
	struct stat about;
	unsigned long first = number_of("/proc/self/ns/time");
	HOLDS(first == 4026531834 && number_of("/proc/self/ns/time_for_children") == first);
	int file = open("/proc/self/ns/time", O_RDONLY | O_CLOEXEC), user;
	HOLDS(file >= 0 && ioctl(file, NS_GET_NSTYPE) == CLONE_NEWTIME);
	HOLDS((user = ioctl(file, NS_GET_USERNS)) >= 0 && fstat(user, &about) == 0);
	HOLDS(about.st_ino == number_of("/proc/self/ns/user"));
	REFUSED(ioctl(file, NS_GET_PARENT), EINVAL);
	HOLDS(unshare(CLONE_NEWTIME) == 0);
	unsigned long second = number_of("/proc/self/ns/time_for_children");
	HOLDS(number_of("/proc/self/ns/time") == first && second && second != first);
	HOLDS(readlink("/proc/self/ns/time_for_children", text, sizeof text - 1) > 0);
	snprintf(wanted, sizeof wanted, "time:[%lu]", second);
	HOLDS(strcmp(text, wanted) == 0);
	pid_t child = fork();
	HOLDS(child >= 0);
	if (child == 0)
		_exit(!(number_of("/proc/self/ns/time") == second && number_of("/proc/self/ns/time_for_children") == second));
	int status;
	HOLDS(waitpid(child, &status, 0) == child && status == 0);
	HOLDS(number_of("/proc/self/ns/time") == first);
	return 0;
}

static int texts(void)
{
	char text[256], path[64];
	HOLDS(offsets_are(0, 0));
	REFUSED(put(OFFSETS, "monotonic 5 0\n"), EACCES);
	HOLDS(unshare(CLONE_NEWTIME) == 0);
	static const char *wrong[] = {
		"\n", "monotonic\n", "monotonic 5\n", "monotonic 5 1000000000\n", "monotonic 5 -1\n", "monotonicx 5 1\n", "realtime 5 1\n",
		"0 5 1\n", "2 5 1\n", "1 6 1\n\n7 8 2\n", "monotonic 0x10 0\n", "monotonic 1 x\n", "boottime +5 0\n",
	};
	for (size_t at = 0; at < sizeof wrong / sizeof *wrong; at++)
		REFUSED(put(OFFSETS, wrong[at]), EINVAL);
	static const char *far[] = {
		"monotonic -1000000 0\n", "boottime -1000000 999999999\n", "monotonic 9223372037 0\n", "monotonic 9223372036 0\n",
		"monotonic 4611686019 0\n", "boottime -9223372037 0\n", "boottime 5 0\nmonotonic -1000000 0\n",
	};
	for (size_t at = 0; at < sizeof far / sizeof *far; at++)
		REFUSED(put(OFFSETS, far[at]), ERANGE);
	HOLDS(offsets_are(0, 0));
	HOLDS(put(OFFSETS, "1 6 0\n7 9 0\n") == 12 && offsets_are(6, 9));
	HOLDS(put(OFFSETS, "  boottime   16   0") == 19 && offsets_are(6, 16));
	HOLDS(put(OFFSETS, "monotonic 4611680000 0\n") == 23 && offsets_are(0, 16) == 0);
	HOLDS(put(OFFSETS, "monotonic -1 999999999\n") == 23 && get(OFFSETS, text, sizeof text));
	snprintf(path, sizeof path, "monotonic  %10d %9d\n", -1, 999999999);
	HOLDS(strncmp(text, path, strlen(path)) == 0);
	int file = open(OFFSETS, O_WRONLY | O_CLOEXEC);
	HOLDS(file >= 0 && lseek(file, 1, SEEK_SET) == 1);
	REFUSED(write(file, "1 1 0\n", 6), EINVAL);
	snprintf(path, sizeof path, "/proc/self/task/%d/timens_offsets", getpid());
	REFUSED(open(path, O_RDONLY), ENOENT);
	return 0;
}

static int exits(void)
{
	return 0;
}

static int offsets_are_fixed_by_the_first_child(void)
{
	HOLDS(make("monotonic 7 0\n") && put(OFFSETS, "boottime 8 0\n") > 0);
	HOLDS(inside(exits) == 0);
	REFUSED(put(OFFSETS, "monotonic 1 0\n"), EACCES);
	REFUSED(put(OFFSETS, "monotonic -1000000 0\n"), ERANGE);
	REFUSED(put(OFFSETS, "monotonic 1 x\n"), EINVAL);
	HOLDS(offsets_are(7, 8));
	/* The next one begins with the same. */
	HOLDS(unshare(CLONE_NEWTIME) == 0 && offsets_are(7, 8) && put(OFFSETS, "monotonic 1 0\n") > 0 && offsets_are(1, 8));
	return 0;
}

static int rights(void)
{
	HOLDS(unshare(CLONE_NEWTIME) == 0);
	int file = open(OFFSETS, O_WRONLY | O_CLOEXEC), own = open("/proc/self/ns/time", O_RDONLY | O_CLOEXEC);
	HOLDS(file >= 0 && own >= 0);
	HOLDS(setresgid(USER, USER, USER) == 0 && setresuid(USER, USER, USER) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0);
	REFUSED(unshare(CLONE_NEWTIME), EPERM);
	REFUSED(setns(own, CLONE_NEWTIME), EPERM);
	/* The opener's rights count. */
	HOLDS(write(file, "monotonic 5 0\n", 14) == 14);
	HOLDS(unshare(CLONE_NEWUSER | CLONE_NEWTIME) == 0 && put(OFFSETS, "monotonic 3 0\n") == 14);
	/* The user of the namespace outside has no rights in it. */
	REFUSED(setns(own, CLONE_NEWTIME), EPERM);
	return 0;
}

static int clocks_inside(void)
{
	static const clockid_t monotonic[] = { CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW, CLOCK_MONOTONIC_COARSE };
	static const clockid_t boottime[] = { CLOCK_BOOTTIME, CLOCK_BOOTTIME_ALARM };
	static const clockid_t wall[] = { CLOCK_REALTIME, CLOCK_REALTIME_COARSE, CLOCK_REALTIME_ALARM };
	struct timespec t;
	for (size_t at = 0; at < sizeof monotonic / sizeof *monotonic; at++) {
		/* The raw clock is not the same on Linux. A coarse one is up to a tick behind. */
		HOLDS(is_after(asked(monotonic[at]) + SECOND, machine_monotonic, MONOTONIC_BY));
		HOLDS(clock_gettime(monotonic[at], &t) == 0 && is_after(all(t) + SECOND, machine_monotonic, MONOTONIC_BY));
	}
	for (size_t at = 0; at < sizeof boottime / sizeof *boottime; at++)
		HOLDS(is_after(asked(boottime[at]), machine_boottime, BOOTTIME_BY));
	HOLDS(clock_gettime(CLOCK_BOOTTIME, &t) == 0 && is_after(all(t), machine_boottime, BOOTTIME_BY));
	for (size_t at = 0; at < sizeof wall / sizeof *wall; at++)
		HOLDS(is_after(asked(wall[at]) + SECOND, machine_wall, 0));
	HOLDS(asked(CLOCK_PROCESS_CPUTIME_ID) < SLOW * SECOND);
	return 0;
}

static int clocks_are_shifted(void)
{
	read_clocks();
	HOLDS(make(BY_DEFAULT));
	HOLDS(is_after(asked(CLOCK_MONOTONIC), machine_monotonic, 0) && is_after(asked(CLOCK_BOOTTIME), machine_boottime, 0));
	HOLDS(inside(clocks_inside) == 0);
	HOLDS(is_after(asked(CLOCK_MONOTONIC), machine_monotonic, 0));
	return 0;
}

/* Whether the C library's reading, by the vDSO, lies between two of the system call. */
static int agrees(void)
{
	static const clockid_t clocks[] = { CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_REALTIME, CLOCK_MONOTONIC_RAW, CLOCK_MONOTONIC_COARSE };
	for (size_t at = 0; at < sizeof clocks / sizeof *clocks; at++)
		for (int i = 0; i < 2000; i++) {
			struct timespec shown;
			int64_t before = asked(clocks[at]);
			HOLDS(clock_gettime(clocks[at], &shown) == 0);
			int64_t after = asked(clocks[at]);
			/* On Linux they may differ by a nanosecond. */
			HOLDS(all(shown) >= before - 1 && all(shown) <= after + 1 && shown.tv_nsec >= 0 && shown.tv_nsec < SECOND);
		}
	for (int i = 0; i < 2000; i++) {
		struct timeval day, day_after;
		time_t second = time(NULL);
		HOLDS(gettimeofday(&day, NULL) == 0);
		HOLDS(syscall(SYS_gettimeofday, &day_after, NULL) == 0);
		HOLDS(day.tv_sec * 1000000LL + day.tv_usec <= day_after.tv_sec * 1000000LL + day_after.tv_usec + 1);
		HOLDS(second <= day.tv_sec && second + SLOW > day.tv_sec && day.tv_usec >= 0 && day.tv_usec < 1000000);
	}
	return 0;
}

static int wall_clock_inside(void)
{
	struct timespec now, shown;
	HOLDS(agrees() == 0);
	HOLDS(clock_gettime(CLOCK_REALTIME, &now) == 0);
	now.tv_sec += 1000000;
	HOLDS(clock_settime(CLOCK_REALTIME, &now) == 0 && clock_gettime(CLOCK_REALTIME, &shown) == 0);
	int sees = is_after(all(shown), all(now), 0) && time(NULL) >= now.tv_sec - 1 && agrees() == 0;
	HOLDS(is_after(asked(CLOCK_MONOTONIC), machine_monotonic, MONOTONIC_BY));
	now.tv_sec -= 1000000;
	HOLDS(clock_settime(CLOCK_REALTIME, &now) == 0 && sees);
	return 0;
}

static int program_agrees(void)
{
	execl("/proc/self/exe", "timens", "--agrees", (char *)NULL);
	return 1;
}

static int the_vdso_agrees(void)
{
	read_clocks();
	HOLDS(make(BY_DEFAULT));
	HOLDS(agrees() == 0 && inside(agrees) == 0 && inside(wall_clock_inside) == 0);
	HOLDS(inside(program_agrees) == 0);
	return 0;
}

static int uptime_inside(void)
{
	struct sysinfo about;
	char text[256];
	double shown;
	HOLDS(sysinfo(&about) == 0 && is_after((about.uptime + 1) * SECOND, machine_boottime, BOOTTIME_BY));
	HOLDS(HOLDS_ONCE(sysinfo(&about) == 0 && get("/proc/uptime", text, sizeof text) && sscanf(text, "%lf", &shown) == 1 && about.uptime >= shown && about.uptime <= shown + 1));
	HOLDS(is_after((int64_t)shown * SECOND + SECOND, machine_boottime, BOOTTIME_BY));
	/* In ticks of a hundredth of a second. */
	HOLDS(is_after((stat_field(getpid(), 22) + 1) * (SECOND / 100), machine_boottime, BOOTTIME_BY));
	long booted = figure("/proc/stat", "btime");
	int64_t since = asked(CLOCK_REALTIME) / SECOND - booted;
	HOLDS(is_after((since + 2) * SECOND, machine_boottime, BOOTTIME_BY));
	return 0;
}

static int uptime_is_shifted(void)
{
	read_clocks();
	long booted = figure("/proc/stat", "btime"), started = stat_field(getpid(), 22);
	HOLDS(make(BY_DEFAULT));
	HOLDS(inside(uptime_inside) == 0);
	HOLDS(labs(figure("/proc/stat", "btime") - booted) <= 1 && stat_field(getpid(), 22) == started);
	return 0;
}

/* A time that the clock shows after some milliseconds. */
static struct timespec later(clockid_t clock, int ms)
{
	int64_t at = asked(clock) + ms * 1000000LL;
	return (struct timespec){ at / SECOND, at % SECOND };
}

static volatile sig_atomic_t rang;

static void ring_bell(int signal)
{
	rang = signal;
}

static void *sleeper(void *result)
{
	struct timespec end = later(CLOCK_MONOTONIC, 50);
	*(int *)result = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL) == 0 && asked(CLOCK_MONOTONIC) >= all(end);
	return NULL;
}

static int sleeps(void)
{
	static const clockid_t clocks[] = { CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_REALTIME };
	for (size_t at = 0; at < sizeof clocks / sizeof *clocks; at++) {
		struct timespec end = later(clocks[at], 50), past = later(clocks[at], -100);
		HOLDS(clock_nanosleep(clocks[at], TIMER_ABSTIME, &end, NULL) == 0 && asked(clocks[at]) >= all(end));
		HOLDS(clock_nanosleep(clocks[at], TIMER_ABSTIME, &past, NULL) == 0);
		HOLDS(clock_nanosleep(clocks[at], TIMER_ABSTIME, &(struct timespec){ 0, 0 }, NULL) == 0);
		HOLDS(clock_nanosleep(clocks[at], 0, &(struct timespec){ 0, 1000000 }, NULL) == 0);
	}
	/* A time that would be past outside is to come here, and the other way round. */
	pthread_t thread;
	int slept = 0;
	HOLDS(pthread_create(&thread, NULL, sleeper, &slept) == 0 && pthread_join(thread, NULL) == 0 && slept);
	return 0;
}

static int posix_timers(void)
{
	static const clockid_t clocks[] = { CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_REALTIME };
	HOLDS(signal(SIGALRM, ring_bell) != SIG_ERR);
	for (size_t at = 0; at < sizeof clocks / sizeof *clocks; at++) {
		timer_t timer;
		struct itimerspec spec = { 0 };
		HOLDS(timer_create(clocks[at], NULL, &timer) == 0);
		spec.it_value = later(clocks[at], 3600000);
		HOLDS(timer_settime(timer, TIMER_ABSTIME, &spec, NULL) == 0 && timer_gettime(timer, &spec) == 0);
		HOLDS(spec.it_value.tv_sec <= 3600 && spec.it_value.tv_sec > 3600 - SLOW);
		rang = 0;
		struct timespec end = spec.it_value = later(clocks[at], 30);
		HOLDS(timer_settime(timer, TIMER_ABSTIME, &spec, NULL) == 0 && COMES_TRUE(rang) && asked(clocks[at]) >= all(end));
		HOLDS(timer_delete(timer) == 0);
	}
	return 0;
}

static int timer_files(void)
{
	static const clockid_t clocks[] = { CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_REALTIME };
	for (size_t at = 0; at < sizeof clocks / sizeof *clocks; at++) {
		struct itimerspec spec = { 0 };
		uint64_t expiries = 0;
		int file = timerfd_create(clocks[at], TFD_CLOEXEC);
		HOLDS(file >= 0);
		spec.it_value = later(clocks[at], 3600000);
		HOLDS(timerfd_settime(file, TFD_TIMER_ABSTIME, &spec, NULL) == 0 && timerfd_gettime(file, &spec) == 0);
		HOLDS(spec.it_value.tv_sec <= 3600 && spec.it_value.tv_sec > 3600 - SLOW);
		struct timespec end = spec.it_value = later(clocks[at], 30);
		HOLDS(timerfd_settime(file, TFD_TIMER_ABSTIME, &spec, NULL) == 0);
		HOLDS(read(file, &expiries, 8) == 8 && expiries == 1 && asked(clocks[at]) >= all(end));
		close(file);
	}
	return 0;
}

static int futexes(void)
{
	static uint32_t word, lock;
	struct timespec end = later(CLOCK_MONOTONIC, 50);
	REFUSED(syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, 0, &end, NULL, ~0), ETIMEDOUT);
	HOLDS(asked(CLOCK_MONOTONIC) >= all(end));
	end = later(CLOCK_REALTIME, 50);
	REFUSED(syscall(SYS_futex, &word, FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME, 0, &end, NULL, ~0), ETIMEDOUT);
	HOLDS(asked(CLOCK_REALTIME) >= all(end));
	REFUSED(syscall(SYS_futex, &word, FUTEX_WAIT, 0, &(struct timespec){ 0, 10000000 }, NULL, 0), ETIMEDOUT);
	struct { uint64_t value, address; uint32_t flags, reserved; } waits = { 0, (uintptr_t)&word, 2, 0 };
	end = later(CLOCK_MONOTONIC, 50);
	REFUSED(syscall(449 /* futex_waitv */, &waits, 1, 0, &end, CLOCK_MONOTONIC), ETIMEDOUT);
	HOLDS(asked(CLOCK_MONOTONIC) >= all(end));
	/* A lock of a thread that lives: LOCK_PI takes the wall clock, LOCK_PI2 the other one. */
	lock = getppid();
	end = later(CLOCK_REALTIME, 50);
	REFUSED(syscall(SYS_futex, &lock, FUTEX_LOCK_PI, 0, &end, NULL, 0), ETIMEDOUT);
	HOLDS(asked(CLOCK_REALTIME) >= all(end));
	end = later(CLOCK_MONOTONIC, 50);
	REFUSED(syscall(SYS_futex, &lock, 13 /* FUTEX_LOCK_PI2 */, 0, &end, NULL, 0), ETIMEDOUT);
	HOLDS(asked(CLOCK_MONOTONIC) >= all(end));
	return 0;
}

static int rings(void)
{
	struct ring ring;
	open_ring(&ring);
	struct timespec end = later(CLOCK_MONOTONIC, 50);
	struct { int64_t seconds, nanoseconds; } until = { end.tv_sec, end.tv_nsec };
	add(&ring, IORING_OP_TIMEOUT, -1, &until, 1, 0, 7)->timeout_flags = IORING_TIMEOUT_ABS;
	HOLDS(enter(ring.fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1 && take(&ring, 7) == -ETIME);
	HOLDS(asked(CLOCK_MONOTONIC) >= all(end));
	return 0;
}

/* Offsets below and above 0: an absolute time is neither past at once nor hours ahead. */
static int absolute_times(int (*look)(void))
{
	/* The machine has to be older than that. */
	HOLDS(COMES_TRUE(asked(CLOCK_MONOTONIC) > SECOND));
	static const char *offsets[] = { "monotonic -1 700000000\nboottime -1 800000000\n", BY_DEFAULT };
	for (size_t at = 0; at < 2; at++) {
		HOLDS(make(offsets[at]));
		HOLDS(inside(look) == 0);
	}
	return 0;
}

static int sleeps_end(void)
{
	return absolute_times(sleeps);
}

static int timers_expire(void)
{
	return absolute_times(posix_timers);
}

static int timer_files_expire(void)
{
	return absolute_times(timer_files);
}

static int futexes_time_out(void)
{
	return absolute_times(futexes);
}

static int rings_time_out(void)
{
	return absolute_times(rings);
}

static int entered;

static int setns_inside(void)
{
	HOLDS(setns(entered, 0) == 0);
	HOLDS(is_after(asked(CLOCK_MONOTONIC), machine_monotonic, 0) && agrees() == 0);
	HOLDS(number_of("/proc/self/ns/time") == number_of("/proc/self/ns/time_for_children"));
	return 0;
}

static void *waits_in_thread(void *unused)
{
	pause();
	return unused;
}

static volatile int is_over;

static int nap(void *unused)
{
	(void)unused;
	while (!is_over)
		sleep_ms(1);
	return 0;
}

static int the_caller_enters_by_setns(void)
{
	static char stack[65536];
	read_clocks();
	int first = open("/proc/self/ns/time", O_RDONLY | O_CLOEXEC);
	HOLDS(first >= 0 && agrees() == 0 && make(BY_DEFAULT));
	int second = open("/proc/self/ns/time_for_children", O_RDONLY | O_CLOEXEC);
	HOLDS(second >= 0);
	REFUSED(setns(second, CLONE_NEWUTS), EINVAL);
	HOLDS(setns(second, CLONE_NEWTIME) == 0 && clocks_inside() == 0 && agrees() == 0);
	HOLDS(number_of("/proc/self/ns/time") == number_of("/proc/self/ns/time_for_children"));
	REFUSED(put(OFFSETS, "monotonic 1 0\n"), EACCES);
	entered = first;
	HOLDS(inside(setns_inside) == 0 && inside(clocks_inside) == 0);
	/* Another process' namespace, by its pidfd. */
	pid_t child = fork();
	HOLDS(child >= 0);
	if (child == 0) {
		pause();
		_exit(0);
	}
	int there = syscall(SYS_pidfd_open, child, 0);
	HOLDS(there >= 0 && setns(first, 0) == 0 && is_after(asked(CLOCK_MONOTONIC), machine_monotonic, 0));
	HOLDS(setns(there, CLONE_NEWTIME) == 0 && clocks_inside() == 0);
	HOLDS(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	HOLDS(setns(first, 0) == 0 && agrees() == 0);
	/* Not while another task has the memory. */
	child = clone(nap, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);
	HOLDS(child > 0);
	int refused = setns(second, 0) == -1 && errno == EUSERS;
	is_over = 1;
	HOLDS(waitpid(child, NULL, 0) == child && refused);
	pthread_t thread;
	HOLDS(pthread_create(&thread, NULL, waits_in_thread, NULL) == 0);
	REFUSED(setns(second, 0), EUSERS);
	return 0;
}

static int makes_another(void)
{
	return unshare(CLONE_NEWTIME) != 0;
}

static int clone_enters(void)
{
	read_clocks();
	struct clone_args request = { .flags = CLONE_NEWTIME, .exit_signal = SIGCHLD };
	int status;
	unsigned long first = number_of("/proc/self/ns/time");
	pid_t child = syscall(SYS_clone3, &request, sizeof request);
	HOLDS(child >= 0);
	if (child == 0) {
		unsigned long own = number_of("/proc/self/ns/time");
		_exit(!(own && own != first && own == number_of("/proc/self/ns/time_for_children") &&
			is_after(asked(CLOCK_MONOTONIC), machine_monotonic, 0)));
	}
	HOLDS(waitpid(child, &status, 0) == child && status == 0);
	HOLDS(number_of("/proc/self/ns/time_for_children") == first);
	/* The offsets are those for other children. */
	HOLDS(make(BY_DEFAULT));
	unsigned long second = number_of("/proc/self/ns/time_for_children");
	child = syscall(SYS_clone3, &request, sizeof request);
	HOLDS(child >= 0);
	if (child == 0)
		_exit(clocks_inside() || number_of("/proc/self/ns/time") == second || agrees());
	HOLDS(waitpid(child, &status, 0) == child && status == 0);
	/* In clone(2) the bit is part of the signal's number. */
	child = syscall(SYS_clone, CLONE_NEWTIME, 0, 0, 0, 0);
	HOLDS(child >= 0);
	if (child == 0)
		_exit(number_of("/proc/self/ns/time") != second);
	HOLDS(waitpid(child, &status, __WALL) == child && status == 0);
	HOLDS(inside(makes_another) == 0);
	request.flags = CLONE_NEWTIME | CLONE_THREAD | CLONE_SIGHAND | CLONE_VM | CLONE_FS | CLONE_FILES;
	request.exit_signal = 0;
	REFUSED(syscall(SYS_clone3, &request, sizeof request), EINVAL);
	return 0;
}

static int outside_children_have_no_part(void)
{
	static char stack[65536];
	pthread_t thread;
	HOLDS(unshare(CLONE_NEWTIME) == 0);
	HOLDS(pthread_create(&thread, NULL, waits_in_thread, NULL) == EINVAL);
	REFUSED(clone(nap, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL), EINVAL);
	REFUSED(clone(nap, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL), EINVAL);
	return 0;
}

static int threads_and_their_programs(void)
{
	pthread_t thread;
	int slept = 0;
	HOLDS(pthread_create(&thread, NULL, sleeper, &slept) == 0 && pthread_join(thread, NULL) == 0 && slept);
	HOLDS(clocks_inside() == 0 && inside(clocks_inside) == 0);
	pid_t child = vfork();
	HOLDS(child >= 0);
	if (child == 0) {
		execl("/proc/self/exe", "timens", "--agrees", (char *)NULL);
		_exit(1);
	}
	int status;
	HOLDS(waitpid(child, &status, 0) == child && status == 0);
	return 0;
}

static int children_inherit(void)
{
	read_clocks();
	HOLDS(make(BY_DEFAULT));
	HOLDS(inside(threads_and_their_programs) == 0);
	return 0;
}

/* On Linux 6.1 execve stays in the namespace of the caller. */
static int execve_stays(void)
{
	char number[32];
	HOLDS(make(BY_DEFAULT));
	snprintf(number, sizeof number, "%lu", number_of("/proc/self/ns/time"));
	execl("/proc/self/exe", "timens", "--number", number, (char *)NULL);
	return 1;
}

static int limits(void)
{
	char text[64];
	HOLDS(get("/proc/sys/user/max_time_namespaces", text, sizeof text));
	HOLDS(put("/proc/sys/user/max_time_namespaces", "1") == 1);
	int first = COMES_TRUE(unshare(CLONE_NEWTIME) == 0) - 1, file = open("/proc/self/ns/time_for_children", O_RDONLY | O_CLOEXEC);
	int second = unshare(CLONE_NEWTIME), error = errno;
	HOLDS(put("/proc/sys/user/max_time_namespaces", text) > 0);
	HOLDS(first == 0 && file >= 0 && second == -1 && error == ENOSPC);
	return 0;
}

static int many_come_and_go(void)
{
	read_clocks();
	for (int i = 0; i < 300; i++) {
		HOLDS(make(BY_DEFAULT));
		if (i % 10 == 0)
			HOLDS(inside(clocks_inside) == 0);
	}
	int first = open("/proc/self/ns/time", O_RDONLY | O_CLOEXEC), second = open("/proc/self/ns/time_for_children", O_RDONLY | O_CLOEXEC);
	for (int i = 0; i < 300; i++) {
		struct timespec t;
		HOLDS(setns(i % 2 ? first : second, 0) == 0 && clock_gettime(CLOCK_MONOTONIC, &t) == 0);
		HOLDS(is_after(all(t), machine_monotonic, i % 2 ? 0 : MONOTONIC_BY));
	}
	return 0;
}

int main(int count, char **arguments)
{
	if (count > 1 && strcmp(arguments[1], "--agrees") == 0)
		return asked(CLOCK_MONOTONIC) < MONOTONIC_BY * SECOND || agrees();
	if (count > 2 && strcmp(arguments[1], "--number") == 0)
		return strtoul(arguments[2], NULL, 10) != number_of("/proc/self/ns/time");
	PROMISE("files of /proc/PID/ns name it, and that of the children", in_child(files_name_it, 0));
	PROMISE("offsets are lines of a clock, seconds and nanoseconds", in_child(texts, 0));
	PROMISE("they do not change once a child is inside", in_child(offsets_are_fixed_by_the_first_child, 0));
	PROMISE("only a privileged user makes and enters one, and sets offsets", in_child(rights, 0));
	PROMISE("clocks since boot show another time inside, the wall clock does not", in_child(clocks_are_shifted, 0));
	PROMISE("the vDSO says what the system call says", in_child(the_vdso_agrees, 0));
	PROMISE("the time since boot is shifted in sysinfo, /proc/uptime, stat and PID/stat", in_child(uptime_is_shifted, 0));
	PROMISE("sleeps until a time of a clock end then", in_child(sleeps_end, 0));
	PROMISE("and so do POSIX timers", in_child(timers_expire, 0));
	PROMISE("and timerfds", in_child(timer_files_expire, 0));
	PROMISE("and waits for futexes", in_child(futexes_time_out, 0));
	/* Linux up to 7.0 takes the machine's clock. */
	PROMISE("and timeouts of io_uring", in_child(rings_time_out, 0));
	PROMISE("setns moves the caller, if no other task has its memory", in_child(the_caller_enters_by_setns, 0));
	PROMISE("clone3 makes one and enters it", in_child(clone_enters, 0));
	PROMISE("who made one for children has no threads and shares no memory", in_child(outside_children_have_no_part, 0));
	PROMISE("threads, children and programs inside stay inside", in_child(children_inherit, 0));
	PROMISE("execve does not enter", in_child(execve_stays, 0));
	PROMISE("there are as many as max_time_namespaces says", in_child(limits, 0));
	PROMISE("hundreds come and go", in_child(many_come_and_go, 0));
	return conclude();
}
