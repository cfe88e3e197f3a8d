/* Threads: the mechanisms that the C library builds on: futexes, thread-local storage,
 * identities, ends. */
#include "promise.h"
#include <linux/futex.h>
#include <sys/mount.h>
#include <sys/socket.h>

enum { THREADS = 8, ROUNDS = 5000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t barrier;
static long counter;
static int whose_turn;
static __thread long own;

static long futex(void *word, int operation, uint32_t value, const struct timespec *limit, void *other, uint32_t mask)
{
	return syscall(SYS_futex, word, operation, value, limit, other, mask);
}

static void *add(void *argument)
{
	pthread_barrier_wait(&barrier);
	for (int i = 0; i < ROUNDS; i++) {
		pthread_mutex_lock(&lock);
		counter++;
		pthread_mutex_unlock(&lock);
		own++;
	}
	return (void *)((long)argument + own);
}

static void *take_turns(void *argument)
{
	int me = (long)argument;
	for (int i = 0; i < 200; i++) {
		pthread_mutex_lock(&lock);
		while (whose_turn != me)
			pthread_cond_wait(&turn, &lock);
		whose_turn = !me;
		pthread_cond_broadcast(&turn);
		pthread_mutex_unlock(&lock);
	}
	return NULL;
}

static void library(void)
{
	pthread_t threads[THREADS];
	pthread_barrier_init(&barrier, NULL, THREADS);
	for (long i = 0; i < THREADS; i++)
		NEED(pthread_create(&threads[i], NULL, add, (void *)i) == 0);
	int right = 1;
	for (long i = 0; i < THREADS; i++) {
		void *result;
		pthread_join(threads[i], &result);
		right &= (long)result == i + ROUNDS;
	}
	PROMISE("a mutex keeps a count exact", counter == THREADS * ROUNDS);
	PROMISE("thread-local storage is each thread's own", right && own == 0);
	NEED(pthread_create(&threads[0], NULL, take_turns, (void *)0L) == 0);
	NEED(pthread_create(&threads[1], NULL, take_turns, (void *)1L) == 0);
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	PROMISE("condition variables pass turns", whose_turn == 0);
	for (int i = 0; i < 200; i++) {
		NEED(pthread_create(&threads[0], NULL, take_turns, (void *)2L) == 0);
		whose_turn = 2;
		pthread_cancel(threads[0]);
		pthread_join(threads[0], NULL);
		whose_turn = 0;
		pthread_mutex_init(&lock, NULL);
	}
	PROMISE("threads come, are cancelled and go", 1);
}

static uint32_t word;
static volatile uint32_t woken;
/* Numbers of the threads that are going to wait. */
static volatile pid_t waiters[6];
static uint32_t waiter_count;

static void about_to_wait(void)
{
	waiters[__atomic_fetch_add(&waiter_count, 1, __ATOMIC_SEQ_CST)] = syscall(SYS_gettid);
}

/* Whether `count` threads wait. */
static int all_wait(int count)
{
	for (int i = 0; i < count; i++)
		if (waiters[i] == 0 || !is_asleep(getpid(), waiters[i]))
			return 0;
	return 1;
}

static void forget_waiters(void)
{
	woken = waiter_count = 0;
	memset((void *)waiters, 0, sizeof waiters);
}

static void *wait_for_change(void *argument)
{
	(void)argument;
	about_to_wait();
	while (futex(&word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0) == -1 && errno == EINTR)
		;
	__atomic_add_fetch(&woken, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

static void *wait_with_mask(void *argument)
{
	about_to_wait();
	futex(&word, FUTEX_WAIT_BITSET_PRIVATE, 0, NULL, NULL, (uint32_t)(long)argument);
	__atomic_add_fetch(&woken, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

static void futexes(void)
{
	FAILS_WITH("a futex whose value has changed does not wait", futex(&word, FUTEX_WAIT, 1, NULL, NULL, 0), EAGAIN);
	struct timespec brief = { 0, 50000000 };
	int64_t from = now_ms();
	FAILS_WITH("a wait ends when time is up", futex(&word, FUTEX_WAIT, 0, &brief, NULL, 0), ETIMEDOUT);
	PROMISE("not before", now_ms() - from >= 49);
	struct timespec then;
	clock_gettime(CLOCK_MONOTONIC, &then);
	then.tv_nsec += 30000000;
	if (then.tv_nsec >= 1000000000)
		then.tv_nsec -= 1000000000, then.tv_sec++;
	FAILS_WITH("FUTEX_WAIT_BITSET takes an absolute time", futex(&word, FUTEX_WAIT_BITSET, 0, &then, NULL, FUTEX_BITSET_MATCH_ANY), ETIMEDOUT);
	FAILS_WITH("an odd address", futex((char *)&word + 1, FUTEX_WAIT, 0, NULL, NULL, 0), EINVAL);
	FAILS_WITH("an address that is not mapped", futex((void *)4096, FUTEX_WAIT, 0, NULL, NULL, 0), EFAULT);
	PROMISE("waking nobody", futex(&word, FUTEX_WAKE, 10, NULL, NULL, 0) == 0);

	pthread_t threads[6];
	forget_waiters();
	for (int i = 0; i < 6; i++)
		pthread_create(&threads[i], NULL, wait_for_change, NULL);
	NEED(COMES_TRUE(all_wait(6)));
	PROMISE("wake as many as asked", futex(&word, FUTEX_WAKE_PRIVATE, 2, NULL, NULL, 0) == 2);
	NEED(COMES_TRUE(woken >= 2));
	sleep_ms(30);
	PROMISE("and no more", woken == 2);
	static uint32_t second;
	PROMISE("requeue moves the others", futex(&word, FUTEX_CMP_REQUEUE_PRIVATE, 1, (void *)100L, &second, 0) == 4);
	PROMISE("one of them awake", COMES_TRUE(woken == 3));
	PROMISE("the rest wait at the second word", futex(&word, FUTEX_WAKE_PRIVATE, 10, NULL, NULL, 0) == 0 && futex(&second, FUTEX_WAKE_PRIVATE, 10, NULL, NULL, 0) == 3);
	for (int i = 0; i < 6; i++)
		pthread_join(threads[i], NULL);
	FAILS_WITH("requeue with another value", futex(&word, FUTEX_CMP_REQUEUE, 1, (void *)1L, &second, 5), EAGAIN);

	forget_waiters();
	for (long i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, wait_with_mask, (void *)(1L << i));
	NEED(COMES_TRUE(all_wait(4)));
	PROMISE("a mask chooses the sleepers", futex(&word, FUTEX_WAKE_BITSET_PRIVATE, 10, NULL, NULL, 5) == 2);
	PROMISE("the others sleep on", futex(&word, FUTEX_WAKE_BITSET_PRIVATE, 10, NULL, NULL, 10) == 2);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);

	uint32_t *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status;
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		while (futex(shared, FUTEX_WAIT, 0, NULL, NULL, 0) == -1 && errno == EINTR)
			;
		_exit(*shared);
	}
	NEED(COMES_TRUE(is_asleep(child, child)));
	*shared = 33;
	PROMISE("a shared futex works between processes", futex(shared, FUTEX_WAKE, 1, NULL, NULL, 0) == 1);
	waitpid(child, &status, 0);
	PROMISE("with the value", WEXITSTATUS(status) == 33);
}

static void *robust(void *argument)
{
	pthread_mutex_lock(argument);
	return NULL;
}

static volatile pid_t id_seen;
static volatile int looked_at;

static void *identity(void *argument)
{
	(void)argument;
	id_seen = syscall(SYS_gettid);
	while (!looked_at)
		sleep_ms(1);
	return NULL;
}

static void ends(void)
{
	pthread_mutexattr_t attributes;
	pthread_mutex_t mutex;
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&mutex, &attributes);
	pthread_t thread;
	pthread_create(&thread, NULL, robust, &mutex);
	pthread_join(thread, NULL);
	PROMISE("a robust mutex tells that its owner died", pthread_mutex_lock(&mutex) == EOWNERDEAD);
	pthread_create(&thread, NULL, identity, NULL);
	NEED(COMES_TRUE(id_seen));
	char path[64];
	snprintf(path, sizeof path, "/proc/self/task/%d", id_seen);
	PROMISE("threads have ids of their own, in one process", id_seen != getpid() && access(path, F_OK) == 0);
	PROMISE("tgkill finds the thread", syscall(SYS_tgkill, getpid(), id_seen, 0) == 0);
	looked_at = 1;
	pthread_join(thread, NULL);
	/* pthread_join may return before the thread has fully ended. */
	PROMISE("and not after its end", COMES_TRUE(syscall(SYS_tgkill, getpid(), id_seen, 0) == -1 && errno == ESRCH));
	PROMISE("sched_yield", sched_yield() == 0);
	cpu_set_t cpus;
	PROMISE("sched_getaffinity counts CPUs", sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) >= 1 && CPU_COUNT(&cpus) <= sysconf(_SC_NPROCESSORS_CONF));
	int cpu = sched_getcpu();
	PROMISE("sched_getcpu is one of them", cpu >= 0 && CPU_ISSET(cpu, &cpus));
	int last = 0;
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &cpus))
			last = i;
	CPU_ZERO(&cpus);
	CPU_SET(last, &cpus);
	PROMISE("sched_setaffinity moves us there", sched_setaffinity(0, sizeof cpus, &cpus) == 0 && sched_getcpu() == last);
	CPU_ZERO(&cpus);
	FAILS_WITH("no CPU at all", sched_setaffinity(0, sizeof cpus, &cpus), EINVAL);
}

static int places[2];

/* Looks up a relative name once, then sleeps until it may go on, and looks it up again. */
static void *look_twice(void *argument)
{
	(void)argument;
	char byte;
	long first = access("here", F_OK) == 0;
	NEED(write(places[1], "x", 1) == 1);
	NEED(read(places[1], &byte, 1) == 1);
	return (void *)(first + 2 * (access("here", F_OK) == 0));
}

static int change(void *directory) { return chdir(directory); }

/* The working directory is the process', and processes can share it. */
static void working_directory(void)
{
	static char stack[64 << 10] __attribute__((aligned(16)));
	pthread_t thread;
	void *seen;
	char byte;
	int status;
	NEED(mkdir("/tmp/one", 0700) == 0 && mkdir("/tmp/two", 0700) == 0 && mount("none", "/tmp/one", "tmpfs", 0, NULL) == 0);
	NEED(chdir("/tmp/one") == 0 && mkdir("here", 0700) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, places) == 0);
	pthread_create(&thread, NULL, look_twice, NULL);
	NEED(read(places[0], &byte, 1) == 1);
	FAILS_WITH("a working directory is in use", umount("/tmp/one"), EBUSY);
	NEED(chdir("/tmp/two") == 0);
	PROMISE("one that a sleeping thread looked names up in is not, after chdir", umount("/tmp/one") == 0);
	NEED(write(places[0], "x", 1) == 1);
	pthread_join(thread, &seen);
	PROMISE("and the thread is in the other one", (long)seen == 1);
	NEED(mkdir("here", 0700) == 0 && access("here", F_OK) == 0);
	pid_t child = clone(change, stack + sizeof stack, CLONE_FS | SIGCHLD, "/tmp/one");
	NEED(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	PROMISE("a child with CLONE_FS changes the directory of its maker", access("here", F_OK) == -1 && access("../two/here", F_OK) == 0);
	NEED(chdir("/tmp/two") == 0);
	PROMISE("which changes it again", access("here", F_OK) == 0);
	NEED(rmdir("here") == 0 && chdir("/") == 0 && rmdir("/tmp/one") == 0 && rmdir("/tmp/two") == 0);
}

int main(void)
{
	library();
	working_directory();
	futexes();
	ends();
	return conclude();
}
