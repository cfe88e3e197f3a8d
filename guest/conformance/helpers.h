/*
 * Threads that do what they are told, step by step, and futexes with priority inheritance. Needs
 * promise.h and linux/futex.h.
 */
#include <linux/futex.h>

static inline long call(uint32_t *at, int operation, uint32_t value, const void *time, uint32_t *second, uint32_t value3)
{
	return syscall(SYS_futex, at, operation | FUTEX_PRIVATE_FLAG, value, time, second, value3);
}

static inline long lock(uint32_t *at)
{
	return call(at, FUTEX_LOCK_PI, 0, NULL, NULL, 0);
}

static inline long unlock(uint32_t *at)
{
	return call(at, FUTEX_UNLOCK_PI, 0, NULL, NULL, 0);
}

static inline long try_lock(uint32_t *at)
{
	return call(at, FUTEX_TRYLOCK_PI, 0, NULL, NULL, 0);
}

static inline uint32_t load(uint32_t *at)
{
	return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}

static inline void store(uint32_t *at, uint32_t value)
{
	__atomic_store_n(at, value, __ATOMIC_SEQ_CST);
}

/* A thread that does what it is told: one step after another, each reported. */
struct helper {
	pthread_t thread;
	uint32_t tid;
	int step, begun, done; /* the step asked for, the last begun, and the last finished */
	long (*work)(void *);
	void *given;
	long outcome;
	int error;
};

static inline void *help(void *given)
{
	struct helper *self = given;
	store(&self->tid, gettid());
	for (int step = 1;; step++) {
		while (__atomic_load_n(&self->step, __ATOMIC_SEQ_CST) < step)
			sleep_ms(1);
		if (!self->work)
			return NULL;
		__atomic_store_n(&self->begun, step, __ATOMIC_SEQ_CST);
		errno = 0;
		self->outcome = self->work(self->given);
		self->error = errno;
		__atomic_store_n(&self->done, step, __ATOMIC_SEQ_CST);
	}
}

static inline void start(struct helper *helper)
{
	*helper = (struct helper){ 0 };
	NEED(pthread_create(&helper->thread, NULL, help, helper) == 0);
	NEED(COMES_TRUE(load(&helper->tid) != 0));
}

static inline void tell(struct helper *helper, long (*work)(void *), void *given)
{
	helper->work = work;
	helper->given = given;
	__atomic_add_fetch(&helper->step, 1, __ATOMIC_SEQ_CST);
}

static inline int is_done(struct helper *helper)
{
	return __atomic_load_n(&helper->done, __ATOMIC_SEQ_CST) == helper->step;
}

static inline long ask(struct helper *helper, long (*work)(void *), void *given)
{
	tell(helper, work, given);
	NEED(COMES_TRUE(is_done(helper)));
	errno = helper->error;
	return helper->outcome;
}

static inline void finish(struct helper *helper)
{
	tell(helper, NULL, NULL);
	NEED(pthread_join(helper->thread, NULL) == 0);
}

static inline long lock_it(void *at) { return lock(at); }
static inline long unlock_it(void *at) { return unlock(at); }
static inline long try_it(void *at) { return try_lock(at); }

/* Whether the helper sleeps in what it was told to do. */
static inline int sleeps(struct helper *helper)
{
	return __atomic_load_n(&helper->begun, __ATOMIC_SEQ_CST) == helper->step && is_asleep(getpid(), helper->tid);
}

static inline void wait_in(struct helper *helper, long (*work)(void *), void *given)
{
	tell(helper, work, given);
	NEED(COMES_TRUE(sleeps(helper)));
}

static inline void wait_for(struct helper *helper, uint32_t *at)
{
	wait_in(helper, lock_it, at);
	NEED(load(at) & FUTEX_WAITERS);
}

static inline int came(struct helper *helper, long outcome)
{
	return COMES_TRUE(is_done(helper)) && helper->outcome == outcome;
}

static inline int failed(struct helper *helper, int error)
{
	return came(helper, -1) && helper->error == error;
}

