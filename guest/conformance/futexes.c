/* Waiting for one of several words: futex_waitv(2) of Linux 5.16, and futex_wake, futex_wait and
 * futex_requeue of 6.7. */
#include "promise.h"

enum { FUTEX_WAITV = 449, WAKE = 454, WAIT, REQUEUE };
enum { U32 = 2, PRIVATE = 128, MOST = 128 };

struct wait {
	uint64_t value, word;
	uint32_t flags, reserved;
};

static long wait_any(struct wait *words, unsigned count, const struct timespec *end, int clock)
{
	return syscall(FUTEX_WAITV, words, count, 0, end, clock);
}

static long wake(uint32_t *word, uint64_t mask, int count, unsigned flags)
{
	return syscall(WAKE, word, mask, count, flags);
}

static long wait_one(uint32_t *word, uint64_t value, uint64_t mask, unsigned flags, const struct timespec *end, int clock)
{
	return syscall(WAIT, word, value, mask, flags, end, clock);
}

static long requeue(struct wait *words, int wakes, int moves)
{
	return syscall(REQUEUE, words, 0, wakes, moves);
}

static uint32_t words[MOST], other;

static void expect(struct wait *wanted, unsigned flags)
{
	for (int i = 0; i < MOST; i++)
		wanted[i] = (struct wait){ 0, (uintptr_t)&words[i], flags, 0 };
}

static void arguments(void)
{
	struct wait wanted[MOST + 1];
	struct timespec end, past = { 0, 0 }, wrong = { 0, 1000000000 };
	expect(wanted, U32 | PRIVATE);
	wanted[MOST] = wanted[0];
	FAILS_WITH("no words are invalid", wait_any(wanted, 0, NULL, CLOCK_MONOTONIC), EINVAL);
	FAILS_WITH("so are more than 128", wait_any(wanted, MOST + 1, NULL, CLOCK_MONOTONIC), EINVAL);
	FAILS_WITH("and a list at 0", wait_any(NULL, 1, NULL, CLOCK_MONOTONIC), EINVAL);
	FAILS_WITH("a list elsewhere is a bad address", wait_any((void *)8, 1, NULL, CLOCK_MONOTONIC), EFAULT);
	FAILS_WITH("the call has no flags", syscall(FUTEX_WAITV, wanted, 1, 1, NULL, CLOCK_MONOTONIC), EINVAL);
	FAILS_WITH("a word that is not as expected does not wait", (words[5] = 1, wait_any(wanted, MOST, NULL, CLOCK_MONOTONIC)), EAGAIN);
	words[5] = 0;
	FAILS_WITH("a wait ends at a time that is past", wait_any(wanted, MOST, &past, CLOCK_MONOTONIC), ETIMEDOUT);
	end = soon(CLOCK_MONOTONIC, 40);
	FAILS_WITH("or that comes", wait_any(wanted, MOST, &end, CLOCK_MONOTONIC), ETIMEDOUT);
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	PROMISE("not before", now.tv_sec > end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec >= end.tv_nsec));
	end = soon(CLOCK_REALTIME, 40);
	FAILS_WITH("by the wall clock, too", wait_any(wanted, 2, &end, CLOCK_REALTIME), ETIMEDOUT);
	FAILS_WITH("no other clock", wait_any(wanted, 2, &end, CLOCK_BOOTTIME), EINVAL);
	FAILS_WITH("a time that is none", wait_any(wanted, 2, &wrong, CLOCK_MONOTONIC), EINVAL);
	FAILS_WITH("a time elsewhere", wait_any(wanted, 2, (void *)8, CLOCK_MONOTONIC), EFAULT);
	for (unsigned flags = 0; flags < 4; flags++)
		if (flags != U32) {
			wanted[1].flags = flags;
			FAILS_WITH("words of other sizes are refused", wait_any(wanted, 2, &past, CLOCK_MONOTONIC), EINVAL);
		}
	wanted[1].flags = U32 | 16;
	FAILS_WITH("unknown flags, too", wait_any(wanted, 2, &past, CLOCK_MONOTONIC), EINVAL);
	wanted[1] = wanted[0];
	wanted[1].reserved = 1;
	FAILS_WITH("and bits that are kept for later", wait_any(wanted, 2, &past, CLOCK_MONOTONIC), EINVAL);
	wanted[1] = wanted[0];
	wanted[1].value = 1ULL << 32;
	FAILS_WITH("and values that no word has", wait_any(wanted, 2, &past, CLOCK_MONOTONIC), EINVAL);
	wanted[1] = wanted[0];
	wanted[1].word++;
	FAILS_WITH("an odd address", wait_any(wanted, 2, &past, CLOCK_MONOTONIC), EINVAL);
	wanted[1].word = 4096;
	FAILS_WITH("an address that is not mapped", wait_any(wanted, 2, &past, CLOCK_MONOTONIC), EFAULT);
	wanted[1].flags = U32;
	FAILS_WITH("as a shared word, too", wait_any(wanted, 2, &past, CLOCK_MONOTONIC), EFAULT);
}

static struct sleeper {
	struct wait *wanted;
	unsigned count;
	long outcome;
	int error;
	pid_t thread;
} sleeper;

static void *sleep_on(void *given)
{
	struct sleeper *self = given;
	__atomic_store_n(&self->thread, gettid(), __ATOMIC_SEQ_CST);
	self->outcome = wait_any(self->wanted, self->count, NULL, CLOCK_MONOTONIC);
	self->error = errno;
	return NULL;
}

static pthread_t begin(struct wait *wanted, unsigned count)
{
	pthread_t thread;
	sleeper = (struct sleeper){ wanted, count, -7, 0, 0 };
	NEED(pthread_create(&thread, NULL, sleep_on, &sleeper) == 0);
	NEED(COMES_TRUE(sleeper.thread && is_asleep(getpid(), sleeper.thread)));
	return thread;
}

static void waking(void)
{
	struct wait wanted[MOST];
	int wrong = 0, status;
	expect(wanted, U32 | PRIVATE);
	for (int i = 0; i < MOST; i += 127) {
		pthread_t thread = begin(wanted, MOST);
		PROMISE("one who waits for 128 words is woken by one", wake(&words[i], ~0U, 1, U32 | PRIVATE) == 1);
		pthread_join(thread, NULL);
		PROMISE("and told which", sleeper.outcome == i);
		for (int k = 0; k < MOST; k++)
			wrong += wake(&words[k], ~0U, 9, U32 | PRIVATE) != 0;
	}
	PROMISE("after which it waits for none", wrong == 0);
	pthread_t thread = begin(wanted, 3);
	PROMISE("FUTEX_WAKE wakes it, too", syscall(SYS_futex, &words[2], 1 | PRIVATE, 5, NULL, NULL, 0) == 1);
	pthread_join(thread, NULL);
	PROMISE("and is told", sleeper.outcome == 2);
	wanted[1].word = wanted[0].word;
	thread = begin(wanted, 2);
	PROMISE("who waits for a word twice is woken twice", wake(&words[0], ~0U, 9, U32 | PRIVATE) == 2);
	pthread_join(thread, NULL);
	PROMISE("and told the last", sleeper.outcome == 1);
	expect(wanted, U32 | PRIVATE);
	struct wait ways[2] = { { 0, (uintptr_t)&words[1], U32 | PRIVATE, 0 }, { 0, (uintptr_t)&other, U32 | PRIVATE, 0 } };
	thread = begin(wanted, 3);
	PROMISE("its wait can be moved to another word", requeue(ways, 0, 5) == 1);
	PROMISE("where it is woken", wake(&words[1], ~0U, 9, U32 | PRIVATE) == 0 && wake(&other, ~0U, 9, U32 | PRIVATE) == 1);
	pthread_join(thread, NULL);
	PROMISE("and told the first one's place", sleeper.outcome == 1);

	uint32_t *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(shared != MAP_FAILED);
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		struct wait two[] = { { 0, (uintptr_t)&words[0], U32 | PRIVATE, 0 }, { 0, (uintptr_t)&shared[3], U32, 0 } };
		_exit(wait_any(two, 2, NULL, CLOCK_MONOTONIC));
	}
	NEED(COMES_TRUE(is_asleep(child, child)));
	PROMISE("a private word of the same address is another", wake(&words[0], ~0U, 1, U32) == 0 && wake(&shared[3], ~0U, 1, U32 | PRIVATE) == 0);
	PROMISE("a shared one wakes another process", wake(&shared[3], ~0U, 1, U32) == 1);
	NEED(waitpid(child, &status, 0) == child);
	PROMISE("and that is told", WIFEXITED(status) && WEXITSTATUS(status) == 1);
	munmap(shared, 4096);
}

static volatile sig_atomic_t handled;

static void handle(int signal)
{
	(void)signal;
	handled++;
}

/* Sends a signal when the child sleeps in `...`; returns 0 or the error of that call. */
#define INTERRUPTED(flags, ...)                                                                     \
	({                                                                                          \
		struct sigaction action_ = { .sa_handler = handle, .sa_flags = flags };             \
		int status_;                                                                        \
		fflush(stdout);                                                                     \
		pid_t child_ = fork();                                                              \
		NEED(child_ >= 0);                                                                  \
		if (child_ == 0) {                                                                  \
			sigaction(SIGUSR1, &action_, NULL);                                         \
			_exit((__VA_ARGS__) == -1 ? errno : 0);                                     \
		}                                                                                   \
		NEED(COMES_TRUE(is_asleep(child_, child_)));                                        \
		kill(child_, SIGUSR1);                                                              \
		NEED(waitpid(child_, &status_, 0) == child_);                                       \
		WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;                                     \
	})

static void signals(void)
{
	struct wait wanted[MOST];
	expect(wanted, U32 | PRIVATE);
	PROMISE("a signal ends a wait for several words", INTERRUPTED(0, wait_any(wanted, MOST, NULL, CLOCK_MONOTONIC)) == EINTR);
	struct timespec end = soon(CLOCK_MONOTONIC, 400);
	PROMISE("or lets it go on to its time", INTERRUPTED(SA_RESTART, wait_any(wanted, MOST, &end, CLOCK_MONOTONIC)) == ETIMEDOUT);
	end = soon(CLOCK_MONOTONIC, 400);
	PROMISE("as one for one word", INTERRUPTED(SA_RESTART, wait_one(&words[0], 0, 1, U32 | PRIVATE, &end, CLOCK_MONOTONIC)) == ETIMEDOUT);
	PROMISE("which it ends, too", INTERRUPTED(0, wait_one(&words[0], 0, 1, U32 | PRIVATE, NULL, CLOCK_MONOTONIC)) == EINTR);
}

static void *wait_masked(void *mask)
{
	__atomic_add_fetch(&other, 1, __ATOMIC_SEQ_CST);
	return (void *)wait_one(&words[0], 0, (uintptr_t)mask, U32 | PRIVATE, NULL, CLOCK_MONOTONIC);
}

static void single_words(void)
{
	pthread_t threads[4];
	void *outcome;
	struct wait ways[2] = { { 0, (uintptr_t)&words[0], U32 | PRIVATE, 0 }, { 0, (uintptr_t)&words[1], U32 | PRIVATE, 0 } };
	struct timespec past = { 0, 0 };
	FAILS_WITH("a word that is not as expected does not wait", wait_one(&words[0], 1, 1, U32 | PRIVATE, NULL, 0), EAGAIN);
	FAILS_WITH("a wait without a mask is invalid", wait_one(&words[0], 0, 0, U32 | PRIVATE, &past, CLOCK_MONOTONIC), EINVAL);
	FAILS_WITH("and so is one with too large a mask", wait_one(&words[0], 0, 1ULL << 32, U32 | PRIVATE, &past, CLOCK_MONOTONIC), EINVAL);
	FAILS_WITH("or with other flags", wait_one(&words[0], 0, 1, U32 | 32, &past, CLOCK_MONOTONIC), EINVAL);
	FAILS_WITH("it ends when time is up", wait_one(&words[0], 0, 1, U32 | PRIVATE, &past, CLOCK_MONOTONIC), ETIMEDOUT);
	FAILS_WITH("a wake without a mask is invalid", wake(&words[0], 0, 1, U32 | PRIVATE), EINVAL);
	FAILS_WITH("or of another size", wake(&words[0], 1, 1, PRIVATE), EINVAL);
	FAILS_WITH("or of an odd address", wake((uint32_t *)((char *)words + 1), 1, 1, U32), EINVAL);
	other = 0;
	for (long i = 0; i < 4; i++)
		NEED(pthread_create(&threads[i], NULL, wait_masked, (void *)(1L << i)) == 0);
	NEED(COMES_TRUE(__atomic_load_n(&other, __ATOMIC_SEQ_CST) == 4));
	sleep_ms(100);
	PROMISE("a wake of none wakes none", wake(&words[0], ~0U, 0, U32 | PRIVATE) == 0);
	PROMISE("a mask chooses", wake(&words[0], 3, 9, U32 | PRIVATE) == 2);
	FAILS_WITH("words are moved if the first has its value", (ways[0].value = 1, requeue(ways, 1, 1)), EAGAIN);
	ways[0].value = 0;
	FAILS_WITH("not fewer than none", requeue(ways, -1, 1), EINVAL);
	FAILS_WITH("nor with flags", syscall(REQUEUE, ways, 1, 1, 1), EINVAL);
	PROMISE("one is woken, one moved", requeue(ways, 1, 1) == 2);
	PROMISE("which waits at the second word", wake(&words[0], ~0U, 9, U32 | PRIVATE) == 0 && wake(&words[1], ~0U, 9, U32 | PRIVATE) == 1);
	int wrong = 0;
	for (int i = 0; i < 4; i++)
		wrong += pthread_join(threads[i], &outcome) != 0 || outcome != NULL;
	PROMISE("all of them were woken", wrong == 0);
}

/* Two wakers, and a waiter for both words: the waiter sees each change, in any order of the wakes.
 */
enum { ROUNDS = 2000 };

static void *change(void *which)
{
	uint32_t *word = &words[(uintptr_t)which];
	for (uint32_t round = 1; round <= ROUNDS; round++) {
		__atomic_store_n(word, round, __ATOMIC_SEQ_CST);
		wake(word, ~0U, 1, U32 | PRIVATE);
		if (round % 16 == 0)
			sched_yield();
	}
	return NULL;
}

static void nothing_lost(void)
{
	pthread_t threads[2];
	uint32_t seen[2] = { 0, 0 };
	int wrong = 0;
	words[0] = words[1] = 0;
	for (uintptr_t i = 0; i < 2; i++)
		NEED(pthread_create(&threads[i], NULL, change, (void *)i) == 0);
	int64_t limit = now_ms() + 60000;
	while ((seen[0] < ROUNDS || seen[1] < ROUNDS) && now_ms() < limit) {
		struct wait both[] = { { seen[0], (uintptr_t)&words[0], U32 | PRIVATE, 0 }, { seen[1], (uintptr_t)&words[1], U32 | PRIVATE, 0 } };
		struct timespec end = soon(CLOCK_MONOTONIC, 20000);
		long at = wait_any(both, 2, &end, CLOCK_MONOTONIC);
		wrong += at < -1 || at > 1 || (at == -1 && errno != EAGAIN && errno != EINTR);
		for (int i = 0; i < 2; i++)
			seen[i] = __atomic_load_n(&words[i], __ATOMIC_SEQ_CST);
	}
	PROMISE("no change of two words is missed", wrong == 0 && seen[0] == ROUNDS && seen[1] == ROUNDS);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
}

int main(void)
{
	arguments();
	waking();
	signals();
	single_words();
	nothing_lost();
	return conclude();
}
