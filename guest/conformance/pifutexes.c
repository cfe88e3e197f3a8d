/*
 * Futexes with priority inheritance: FUTEX_LOCK_PI and its kin, robust ones, deadlocks, condition
 * variables (FUTEX_WAIT_REQUEUE_PI, FUTEX_CMP_REQUEUE_PI), and the mutexes of the C library over
 * them. Each promise looks at the word, since programs and the kernel share it.
 */
#include "promise.h"
#include "helpers.h"

#ifndef FUTEX_LOCK_PI2
#define FUTEX_LOCK_PI2 13
#endif

static uint32_t word, other, third, condition;

static void words(void)
{
	uint32_t own = gettid();
	PROMISE("a free lock has its owner's number", lock(&word) == 0 && word == own);
	FAILS_WITH("which cannot take it again", lock(&word), EDEADLK);
	FAILS_WITH("nor try to", try_lock(&word), EDEADLK);
	PROMISE("unlocked, it is 0", unlock(&word) == 0 && word == 0);
	FAILS_WITH("a lock that is free is not unlocked", unlock(&word), EPERM);
	PROMISE("tried, it is taken, too", try_lock(&word) == 0 && word == own);
	PROMISE("that others wait is forgotten, where nobody does", (word = own | FUTEX_WAITERS, unlock(&word) == 0 && word == 0));
	PROMISE("that an owner ended is kept by the next", (word = FUTEX_OWNER_DIED, lock(&word) == 0 && word == (own | FUTEX_OWNER_DIED)));
	PROMISE("until it unlocks", unlock(&word) == 0 && word == 0);
	PROMISE("a bit of waiters alone is forgotten", (word = FUTEX_WAITERS, lock(&word) == 0 && word == own && unlock(&word) == 0));
	PROMISE("a lock of another is not unlocked", (word = 1, unlock(&word) == -1 && errno == EPERM && word == 1));
	word = 0x3ffffff0;
	FAILS_WITH("a number of no thread is told", lock(&word), ESRCH);
	PROMISE("and the word says that one waited", (word & FUTEX_TID_MASK) == 0x3ffffff0);
	word = 0;
	FAILS_WITH("an odd address is invalid", lock((uint32_t *)((char *)&word + 1)), EINVAL);
	FAILS_WITH("an address that is not mapped is bad", lock((uint32_t *)4096), EFAULT);
	FAILS_WITH("for unlocking, too", unlock((uint32_t *)4096), EFAULT);
	uint32_t *readable = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(readable != MAP_FAILED);
	FAILS_WITH("a lock that cannot be written is bad", lock(readable), EFAULT);
	FAILS_WITH("tried, too", try_lock(readable), EFAULT);
	munmap(readable, 4096);
	FAILS_WITH("FUTEX_LOCK_PI has one clock", call(&word, FUTEX_LOCK_PI | FUTEX_CLOCK_REALTIME, 0, NULL, NULL, 0), ENOSYS);
	PROMISE("FUTEX_LOCK_PI2 has two", call(&word, FUTEX_LOCK_PI2 | FUTEX_CLOCK_REALTIME, 0, NULL, NULL, 0) == 0 && unlock(&word) == 0);
	FAILS_WITH("FUTEX_WAIT has one, too", call(&word, FUTEX_WAIT | FUTEX_CLOCK_REALTIME, 7, NULL, NULL, 0), ENOSYS);
	FAILS_WITH("though its time is read", call(&word, FUTEX_WAIT | FUTEX_CLOCK_REALTIME, 7, (void *)1L, NULL, 0), EFAULT);
	struct timespec wrong = { 0, 1000000000 };
	FAILS_WITH("a time that is none is invalid", call(&word, FUTEX_LOCK_PI, 0, &wrong, NULL, 0), EINVAL);
	PROMISE("and takes nothing", word == 0);
}

static void hand_over(void)
{
	struct helper first, second;
	uint32_t own = gettid();
	start(&first);
	start(&second);
	NEED(lock(&word) == 0);
	FAILS_WITH("one who tries does not wait", ask(&first, try_it, &word), EAGAIN);
	PROMISE("but leaves word", word == (own | FUTEX_WAITERS));
	NEED(unlock(&word) == 0 && lock(&word) == 0);
	wait_for(&first, &word);
	PROMISE("a lock says that another waits", word == (own | FUTEX_WAITERS));
	wait_for(&second, &word);
	FAILS_WITH("a plain wake-up does not reach it", call(&word, FUTEX_WAKE, 1, NULL, NULL, 0), EINVAL);
	FAILS_WITH("nor is it moved", call(&word, FUTEX_REQUEUE, 0, (void *)1L, &other, 0), EINVAL);
	PROMISE("unlocked, the lock is the first waiter's", unlock(&word) == 0 && load(&word) == (first.tid | FUTEX_WAITERS) && came(&first, 0));
	FAILS_WITH("and not the former owner's", unlock(&word), EPERM);
	PROMISE("while the second waits", !is_done(&second));
	PROMISE("then it is the second's", ask(&first, unlock_it, &word) == 0 && came(&second, 0) && load(&word) == (second.tid | FUTEX_WAITERS));
	PROMISE("then it is free", ask(&second, unlock_it, &word) == 0 && word == 0);
	finish(&first);
	finish(&second);
}

static volatile sig_atomic_t handled;

static void handle(int signal)
{
	(void)signal;
	handled++;
}

static void times_and_signals(void)
{
	struct helper first;
	struct timespec past = { 1, 0 }, end;
	struct sigaction action = { .sa_handler = handle };
	NEED(sigaction(SIGUSR1, &action, NULL) == 0);
	start(&first);
	NEED(ask(&first, lock_it, &word) == 0);
	FAILS_WITH("a wait ends at a time that is past", call(&word, FUTEX_LOCK_PI, 0, &past, NULL, 0), ETIMEDOUT);
	end = soon(CLOCK_REALTIME, 30);
	FAILS_WITH("at one of the wall clock", call(&word, FUTEX_LOCK_PI, 0, &end, NULL, 0), ETIMEDOUT);
	end = soon(CLOCK_MONOTONIC, 30);
	FAILS_WITH("or of the other", call(&word, FUTEX_LOCK_PI2, 0, &end, NULL, 0), ETIMEDOUT);
	PROMISE("the lock stays its owner's", word == (first.tid | FUTEX_WAITERS));
	PROMISE("who frees it", ask(&first, unlock_it, &word) == 0 && word == 0);
	NEED(lock(&word) == 0);
	wait_for(&first, &word);
	handled = 0;
	NEED(syscall(SYS_tgkill, getpid(), first.tid, SIGUSR1) == 0);
	PROMISE("a signal is handled during a wait", COMES_TRUE(handled == 1));
	PROMISE("which goes on after it, whatever the handler's flags", COMES_TRUE(sleeps(&first)) && unlock(&word) == 0 && came(&first, 0));
	NEED(ask(&first, unlock_it, &word) == 0);
	finish(&first);
}

static void deadlocks(void)
{
	struct helper first, second;
	start(&first);
	start(&second);
	NEED(lock(&word) == 0 && ask(&first, lock_it, &other) == 0 && ask(&second, lock_it, &third) == 0);
	wait_for(&first, &word);
	FAILS_WITH("two who would wait for each other are told", lock(&other), EDEADLK);
	FAILS_WITH("not if one only tries", try_lock(&other), EAGAIN);
	wait_for(&second, &other);
	FAILS_WITH("three, too", lock(&third), EDEADLK);
	PROMISE("the others wait on", !is_done(&first) && !is_done(&second));
	PROMISE("and have their locks in turn", unlock(&word) == 0 && came(&first, 0) && ask(&first, unlock_it, &other) == 0 && came(&second, 0));
	NEED(ask(&first, unlock_it, &word) == 0 && ask(&second, unlock_it, &other) == 0 && ask(&second, unlock_it, &third) == 0);
	PROMISE("all are free", word == 0 && other == 0 && third == 0);
	finish(&first);
	finish(&second);
}

static void wrong_words(void)
{
	struct helper first, second;
	uint32_t own = gettid(), kept;
	start(&first);
	start(&second);
	NEED(ask(&first, lock_it, &word) == 0);
	wait_for(&second, &word);
	kept = load(&word);
	store(&word, own | FUTEX_WAITERS);
	FAILS_WITH("a lock that another owns is not unlocked by a word", unlock(&word), EINVAL);
	store(&word, second.tid | FUTEX_WAITERS);
	FAILS_WITH("nor waited for in another's name", lock(&word), EINVAL);
	store(&word, 0);
	FAILS_WITH("nor taken", lock(&word), EINVAL);
	store(&word, kept);
	PROMISE("with its word, it is handed over", ask(&first, unlock_it, &word) == 0 && came(&second, 0) && ask(&second, unlock_it, &word) == 0 && word == 0);
	finish(&first);
	finish(&second);
}

static long wait_plainly(void *at)
{
	return call(at, FUTEX_WAIT, load(at), NULL, NULL, 0);
}

static void mixed_words(void)
{
	struct helper first, second;
	start(&first);
	start(&second);
	NEED(ask(&first, lock_it, &word) == 0);
	wait_in(&second, wait_plainly, &word);
	FAILS_WITH("a word at which a thread waits plainly is no lock", lock(&word), EINVAL);
	FAILS_WITH("for its owner, too", ask(&first, unlock_it, &word), EINVAL);
	PROMISE("until that is woken", call(&word, FUTEX_WAKE, 1, NULL, NULL, 0) == 1 && came(&second, 0) && ask(&first, unlock_it, &word) == 0 && word == 0);
	finish(&first);
	finish(&second);
}

/* A robust list of one lock, laid out as the C library does. */
static struct {
	struct robust_list_head head;
	struct robust_list entry;
	uint32_t lock;
} robust;

static long lock_robustly(void *unused)
{
	(void)unused;
	robust.head = (struct robust_list_head){ { (void *)((uintptr_t)&robust.entry | 1) }, (char *)&robust.lock - (char *)&robust.entry, NULL };
	robust.entry.next = &robust.head.list;
	syscall(SYS_set_robust_list, &robust.head, sizeof robust.head);
	return lock(&robust.lock);
}

static void owners_end(void)
{
	struct helper first, second;
	uint32_t own = gettid();
	start(&first);
	start(&second);
	NEED(ask(&first, lock_it, &word) == 0);
	wait_for(&second, &word);
	finish(&first);
	PROMISE("the lock of a thread that ended is the waiter's", came(&second, 0));
	PROMISE("with a mark", load(&word) == (second.tid | FUTEX_WAITERS | FUTEX_OWNER_DIED));
	PROMISE("until that frees it", ask(&second, unlock_it, &word) == 0 && word == 0);
	start(&first);
	NEED(ask(&first, lock_it, &word) == 0);
	finish(&first);
	FAILS_WITH("one that nobody waited for keeps its number", lock(&word), ESRCH);
	word = 0;
	start(&first);
	NEED(ask(&first, lock_robustly, NULL) == 0);
	finish(&first);
	PROMISE("a robust one has the mark", robust.lock == FUTEX_OWNER_DIED);
	PROMISE("and is taken", lock(&robust.lock) == 0 && robust.lock == (own | FUTEX_OWNER_DIED) && unlock(&robust.lock) == 0);
	start(&first);
	NEED(ask(&first, lock_robustly, NULL) == 0);
	wait_for(&second, &robust.lock);
	finish(&first);
	PROMISE("by the one that waits for it", came(&second, 0) && load(&robust.lock) == (second.tid | FUTEX_WAITERS | FUTEX_OWNER_DIED));
	NEED(ask(&second, unlock_it, &robust.lock) == 0);
	finish(&second);
}

static long lock_shared(void *at)
{
	return syscall(SYS_futex, at, FUTEX_LOCK_PI, 0, NULL, NULL, 0);
}

/* A child locks and waits for its end, or executes a program; a helper of this process waits. */
static void processes_end(int executes)
{
	struct helper first;
	int ends[2], status;
	uint32_t *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(shared != MAP_FAILED && pipe(ends) == 0);
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		char byte;
		if (lock_shared(shared) != 0 || read(ends[0], &byte, 1) != 1)
			_exit(1);
		execl("/proc/self/exe", "pifutexes", "sleep", NULL);
		_exit(2);
	}
	NEED(COMES_TRUE(load(shared) == (uint32_t)child));
	start(&first);
	wait_in(&first, lock_shared, shared);
	PROMISE("another process' lock is waited for", load(shared) == (child | FUTEX_WAITERS));
	if (executes)
		NEED(write(ends[1], "x", 1) == 1);
	else
		kill(child, SIGKILL);
	PROMISE(executes ? "a process that executes another program leaves it" : "a process that is killed leaves it", came(&first, 0));
	PROMISE("with the mark", load(shared) == (first.tid | FUTEX_WAITERS | FUTEX_OWNER_DIED));
	kill(child, SIGKILL);
	NEED(waitpid(child, &status, 0) == child);
	finish(&first);
	close(ends[0]);
	close(ends[1]);
	munmap(shared, 4096);
}

static struct timespec *limit;

static long wait_for_move(void *lock)
{
	return call(&condition, FUTEX_WAIT_REQUEUE_PI, 0, limit, lock, FUTEX_BITSET_MATCH_ANY);
}

static long move(uint32_t *lock, int wakes, int moves, uint32_t expected)
{
	return call(&condition, FUTEX_CMP_REQUEUE_PI, wakes, (void *)(long)moves, lock, expected);
}

static void condition_arguments(void)
{
	struct timespec past = { 1, 0 };
	FAILS_WITH("a condition is another word than its lock", call(&word, FUTEX_WAIT_REQUEUE_PI, 0, NULL, &word, ~0U), EINVAL);
	FAILS_WITH("and has a value", call(&condition, FUTEX_WAIT_REQUEUE_PI, 1, NULL, &word, ~0U), EAGAIN);
	limit = &past;
	FAILS_WITH("it ends when its time is up", wait_for_move(&word), ETIMEDOUT);
	limit = NULL;
	FAILS_WITH("waiters are moved to another word", call(&word, FUTEX_CMP_REQUEUE_PI, 1, NULL, &word, 0), EINVAL);
	FAILS_WITH("and one is woken", move(&word, 2, 1, 0), EINVAL);
	FAILS_WITH("not none", move(&word, 0, 1, 0), EINVAL);
	FAILS_WITH("if the word has its value", move(&word, 1, 1, 7), EAGAIN);
	FAILS_WITH("not fewer than none are moved", move(&word, 1, -1, 0), EINVAL);
	PROMISE("where nobody waits, nobody is moved", move(&word, 1, 9, 0) == 0 && word == 0);
}

static void conditions(void)
{
	struct helper helpers[3];
	uint32_t own = gettid();
	int in_turn = 0;
	for (int i = 0; i < 3; i++) {
		start(&helpers[i]);
		wait_in(&helpers[i], wait_for_move, &word);
	}
	FAILS_WITH("no plain wake-up reaches those who wait for a condition", call(&condition, FUTEX_WAKE, 9, NULL, NULL, 0), EINVAL);
	FAILS_WITH("nor are they moved by a plain call", call(&condition, FUTEX_CMP_REQUEUE, 0, (void *)9L, &other, 0), EINVAL);
	FAILS_WITH("nor to another lock", move(&other, 1, 9, 0), EINVAL);
	PROMISE("where the lock is free, one has it", move(&word, 1, 0, 0) == 1 && came(&helpers[0], 0) && load(&word) == helpers[0].tid);
	PROMISE("and frees it", ask(&helpers[0], unlock_it, &word) == 0 && word == 0);
	NEED(lock(&word) == 0);
	wait_in(&helpers[0], wait_for_move, &word);
	PROMISE("where it is not, all wait for it", move(&word, 1, INT32_MAX, 0) == 3 && load(&word) == (own | FUTEX_WAITERS));
	PROMISE("and not for the condition", move(&word, 1, INT32_MAX, 0) == 0);
	NEED(unlock(&word) == 0);
	for (int i = 1; i <= 3; i++) {
		struct helper *next = &helpers[i % 3];
		in_turn += came(next, 0) && (load(&word) & FUTEX_TID_MASK) == next->tid && ask(next, unlock_it, &word) == 0;
	}
	PROMISE("which they have in turn", in_turn == 3 && word == 0);
	for (int i = 0; i < 2; i++)
		wait_in(&helpers[i], wait_for_move, &word);
	PROMISE("one has a free lock, and the other waits for it", move(&word, 1, 1, 0) == 2 && came(&helpers[0], 0) && load(&word) == (helpers[0].tid | FUTEX_WAITERS));
	PROMISE("and has it next", ask(&helpers[0], unlock_it, &word) == 0 && came(&helpers[1], 0) && ask(&helpers[1], unlock_it, &word) == 0 && word == 0);
	for (int i = 0; i < 3; i++)
		finish(&helpers[i]);
}

/* FUTEX_WAKE_OP: the second word gets a value; its waiters are woken if the old one was not 7. */
static long wake_both(uint32_t *first, uint32_t *second, int wakes, uint32_t value)
{
	return call(first, FUTEX_WAKE_OP, wakes, (void *)1L, second, FUTEX_OP(FUTEX_OP_SET, value, FUTEX_OP_CMP_NE, 7));
}

static void words_of_conditions(void)
{
	struct helper first, second;
	uint32_t own = gettid();
	start(&first);
	start(&second);
	wait_in(&first, wait_for_move, &word);
	FAILS_WITH("a word with those who wait for a condition is no lock", lock(&condition), EINVAL);
	FAILS_WITH("nor one to try", try_lock(&condition), EINVAL);
	PROMISE("it is not taken", condition == 0);
	store(&condition, own);
	FAILS_WITH("its owner is told that it is one", lock(&condition), EDEADLK);
	FAILS_WITH("but cannot unlock it", unlock(&condition), EINVAL);
	store(&condition, 1);
	FAILS_WITH("and another not at all", unlock(&condition), EPERM);
	wait_in(&second, wait_plainly, &other);
	FAILS_WITH("a wake-up of two words does not reach those at the second", wake_both(&other, &condition, 1, 7), EINVAL);
	PROMISE("after it changed that, and woke those at the first", condition == 7 && came(&second, 0));
	PROMISE("it is asked for only if the value was right", wake_both(&other, &condition, 1, 0) == 0 && condition == 0);
	FAILS_WITH("nor does it reach those at the first", wake_both(&condition, &other, 1, 0), EINVAL);
	wait_in(&second, wait_plainly, &other);
	PROMISE("one is woken where none is asked for", wake_both(&other, &third, 0, 0) == 1 && came(&second, 0));
	PROMISE("a waiter is moved", move(&word, 1, 0, 0) == 1 && came(&first, 0));
	wait_for(&second, &word);
	FAILS_WITH("a wake-up of two words does not reach those who wait for a lock", call(&other, FUTEX_WAKE_OP, 1, (void *)1L, &word, FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_NE, 0)), EINVAL);
	FAILS_WITH("nor are they moved to another", call(&word, FUTEX_CMP_REQUEUE_PI, 1, (void *)1L, &other, load(&word)), EINVAL);
	PROMISE("but have theirs in turn", ask(&first, unlock_it, &word) == 0 && came(&second, 0) && ask(&second, unlock_it, &word) == 0 && word == 0);
	finish(&first);
	finish(&second);
}

static void conditions_end(void)
{
	struct helper first, second;
	struct timespec end;
	start(&first);
	start(&second);
	wait_in(&first, wait_for_move, &word);
	handled = 0;
	NEED(syscall(SYS_tgkill, getpid(), first.tid, SIGUSR1) == 0 && COMES_TRUE(handled == 1));
	PROMISE("a wait for a condition goes on after a signal", COMES_TRUE(sleeps(&first)) && move(&word, 1, 0, 0) == 1 && came(&first, 0));
	NEED(ask(&first, unlock_it, &word) == 0 && lock(&word) == 0);
	wait_in(&first, wait_for_move, &word);
	NEED(move(&word, 1, 0, 0) == 1);
	NEED(syscall(SYS_tgkill, getpid(), first.tid, SIGUSR1) == 0);
	PROMISE("moved to the lock, it ends with one", failed(&first, EAGAIN));
	end = soon(CLOCK_MONOTONIC, 200);
	limit = &end;
	wait_in(&first, wait_for_move, &word);
	limit = NULL;
	if (move(&word, 1, 0, 0) == 1)
		PROMISE("or when its time is up", failed(&first, ETIMEDOUT));
	else
		PROMISE("or when its time is up before", failed(&first, ETIMEDOUT));
	PROMISE("the lock is still its owner's", (load(&word) & FUTEX_TID_MASK) == (uint32_t)gettid() && unlock(&word) == 0);
	wait_in(&second, wait_plainly, &condition);
	FAILS_WITH("those who wait plainly are not moved to a lock", move(&word, 1, 1, 0), EINVAL);
	PROMISE("but woken", call(&condition, FUTEX_WAKE, 1, NULL, NULL, 0) == 1 && came(&second, 0));
	NEED(lock(&word) == 0 && ask(&second, lock_it, &other) == 0);
	wait_in(&first, wait_for_move, &other);
	store(&other, 0x3ffffff0);
	FAILS_WITH("a lock of no thread is told to the one that moves", move(&other, 1, 1, 0), ESRCH);
	PROMISE("and the others still wait for the condition", !is_done(&first));
	store(&other, second.tid);
	PROMISE("until it is a lock again", move(&other, 1, 1, 0) == 1 && ask(&second, unlock_it, &other) == 0 && came(&first, 0));
	NEED(ask(&first, unlock_it, &other) == 0 && unlock(&word) == 0);
	finish(&first);
	finish(&second);
}

enum { OWNERS = 60, MOVED = 30 };

static uint32_t chain[OWNERS + 1];

/* Locks a word, and waits for the lock before it in the chain. */
static long link_up(void *given)
{
	uint32_t *at = given;
	return lock(at) || lock(at - 1) || unlock(at - 1) || unlock(at);
}

static long wait_for_chain(void *unused)
{
	(void)unused;
	return wait_for_move(&chain[OWNERS]) || unlock(&chain[OWNERS]);
}

/* The chain has more owners than the kernel visits in one step. */
static void long_chains(void)
{
	static struct helper helpers[OWNERS + MOVED];
	int ended = 0;
	NEED(lock(&chain[0]) == 0);
	for (int i = 0; i < OWNERS + MOVED; i++) {
		start(&helpers[i]);
		if (i < OWNERS)
			wait_in(&helpers[i], link_up, &chain[i + 1]);
		else
			wait_in(&helpers[i], wait_for_chain, NULL);
	}
	PROMISE("many are moved to a lock at the end of a chain of many", move(&chain[OWNERS], 1, INT32_MAX, 0) == MOVED);
	PROMISE("and no longer wait for the condition", move(&chain[OWNERS], 1, INT32_MAX, 0) == 0);
	NEED(unlock(&chain[0]) == 0);
	for (int i = 0; i < OWNERS + MOVED; i++) {
		ended += came(&helpers[i], 0);
		finish(&helpers[i]);
	}
	PROMISE("all of them have their locks in turn", ended == OWNERS + MOVED && chain[OWNERS] == 0);
}

static pthread_mutex_t mutex;
static pthread_cond_t filled = PTHREAD_COND_INITIALIZER, emptied = PTHREAD_COND_INITIALIZER;
static long counter, slots, taken;

static void make_mutex(int type, int is_robust)
{
	pthread_mutexattr_t attributes;
	NEED(pthread_mutexattr_init(&attributes) == 0 && pthread_mutexattr_settype(&attributes, type) == 0);
	PROMISE("the C library has mutexes with priority inheritance", pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT) == 0);
	if (is_robust)
		NEED(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0);
	NEED(pthread_mutex_init(&mutex, &attributes) == 0);
}

enum { THREADS = 4, TURNS = 3000 };

static void *count(void *unused)
{
	for (int i = 0; i < TURNS; i++) {
		if (pthread_mutex_lock(&mutex) != 0)
			return (void *)1;
		long value = counter;
		if (i % 64 == 0)
			sched_yield();
		counter = value + 1;
		if (pthread_mutex_unlock(&mutex) != 0)
			return (void *)1;
	}
	return unused;
}

static void *produce(void *unused)
{
	for (int i = 0; i < TURNS; i++) {
		pthread_mutex_lock(&mutex);
		while (slots == 2)
			pthread_cond_wait(&emptied, &mutex);
		slots++;
		pthread_cond_signal(&filled);
		pthread_mutex_unlock(&mutex);
	}
	return unused;
}

static void *consume(void *unused)
{
	for (int i = 0; i < TURNS; i++) {
		pthread_mutex_lock(&mutex);
		while (slots == 0)
			pthread_cond_wait(&filled, &mutex);
		slots--;
		taken++;
		pthread_cond_broadcast(&emptied);
		pthread_mutex_unlock(&mutex);
	}
	return unused;
}

static void *keep(void *unused)
{
	pthread_mutex_lock(&mutex);
	return unused;
}

static int run(void *(*even)(void *), void *(*odd)(void *))
{
	pthread_t threads[THREADS];
	void *outcome;
	int wrong = 0;
	for (int i = 0; i < THREADS; i++)
		NEED(pthread_create(&threads[i], NULL, i % 2 ? odd : even, NULL) == 0);
	for (int i = 0; i < THREADS; i++)
		wrong += pthread_join(threads[i], &outcome) != 0 || outcome != NULL;
	return wrong == 0;
}

static void mutexes(void)
{
	pthread_t thread;
	struct timespec end = soon(CLOCK_REALTIME, 20);
	make_mutex(PTHREAD_MUTEX_ERRORCHECK, 0);
	PROMISE("a mutex excludes", run(count, count) && counter == (long)THREADS * TURNS);
	PROMISE("with condition variables, too", run(produce, consume) && slots == 0 && taken == 2L * TURNS);
	NEED(pthread_mutex_lock(&mutex) == 0);
	PROMISE("it is not taken twice", pthread_mutex_lock(&mutex) == EDEADLK);
	PROMISE("one waits no longer for a condition than asked", pthread_cond_timedwait(&filled, &mutex, &end) == ETIMEDOUT);
	PROMISE("and owns it after that", pthread_mutex_unlock(&mutex) == 0 && pthread_mutex_unlock(&mutex) == EPERM);
	NEED(pthread_mutex_destroy(&mutex) == 0);
	make_mutex(PTHREAD_MUTEX_NORMAL, 1);
	NEED(pthread_create(&thread, NULL, keep, NULL) == 0 && pthread_join(thread, NULL) == 0);
	PROMISE("a robust mutex tells that its owner ended", pthread_mutex_lock(&mutex) == EOWNERDEAD);
	PROMISE("and is mended", pthread_mutex_consistent(&mutex) == 0 && pthread_mutex_unlock(&mutex) == 0 && pthread_mutex_lock(&mutex) == 0 && pthread_mutex_unlock(&mutex) == 0);
	counter = 0;
	PROMISE("it excludes after that", run(count, count) && counter == (long)THREADS * TURNS);
}

int main(int argc, char **argv)
{
	(void)argv;
	if (argc > 1) {
		sleep_ms(60000);
		return 0;
	}
	words();
	hand_over();
	times_and_signals();
	deadlocks();
	wrong_words();
	mixed_words();
	owners_end();
	processes_end(0);
	processes_end(1);
	condition_arguments();
	conditions();
	words_of_conditions();
	long_chains();
	conditions_end();
	mutexes();
	return conclude();
}
