/*
 * userfaultfd(2): an instance, its requests, and a thread that serves faults. Needs promise.h and
 * numbered.h.
 */
#include <linux/userfaultfd.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif

static inline int new_monitor(int flags)
{
	return syscall(SYS_userfaultfd, flags);
}

/* Agrees on these features. */
static inline int agree(int monitor, uint64_t features)
{
	struct uffdio_api api = { .api = UFFD_API, .features = features };
	return ioctl(monitor, UFFDIO_API, &api);
}

/* An instance with these features that does not block. */
static inline int monitor_with(uint64_t features)
{
	int monitor = new_monitor(O_CLOEXEC | O_NONBLOCK);
	NEED(monitor >= 0 && agree(monitor, features) == 0);
	return monitor;
}

static inline int monitor_range(int monitor, const void *at, size_t pages, uint64_t mode)
{
	struct uffdio_register wish = { .range = { (uintptr_t)at, pages * PAGE }, .mode = mode };
	return ioctl(monitor, UFFDIO_REGISTER, &wish);
}

static inline int unmonitor_range(int monitor, const void *at, size_t pages)
{
	struct uffdio_range range = { (uintptr_t)at, pages * PAGE };
	return ioctl(monitor, UFFDIO_UNREGISTER, &range);
}

static inline int wake_range(int monitor, const void *at, size_t pages)
{
	struct uffdio_range range = { (uintptr_t)at, pages * PAGE };
	return ioctl(monitor, UFFDIO_WAKE, &range);
}

/* Result of the last UFFDIO_COPY: the bytes that were filled, or a negative error. */
static int64_t copied;

static inline int copy_mode(int monitor, const void *to, const void *from, size_t bytes, uint64_t mode)
{
	struct uffdio_copy wish = { .dst = (uintptr_t)to, .src = (uintptr_t)from, .len = bytes, .mode = mode, .copy = 77 };
	int outcome = ioctl(monitor, UFFDIO_COPY, &wish);
	copied = wish.copy;
	return outcome;
}

static inline int copy_to(int monitor, const void *to, const void *from, size_t pages)
{
	return copy_mode(monitor, to, from, pages * PAGE, 0);
}

static inline int zero_pages(int monitor, const void *to, size_t pages, uint64_t mode)
{
	struct uffdio_zeropage wish = { .range = { (uintptr_t)to, pages * PAGE }, .mode = mode, .zeropage = 77 };
	int outcome = ioctl(monitor, UFFDIO_ZEROPAGE, &wish);
	copied = wish.zeropage;
	return outcome;
}

/* Waits up to `ms` milliseconds for the next message; returns its event, 0 for none. */
static inline int next_message(int monitor, struct uffd_msg *message, int ms)
{
	struct pollfd poll_one = { monitor, POLLIN, 0 };
	if (poll(&poll_one, 1, ms) != 1 || !(poll_one.revents & POLLIN))
		return 0;
	return read(monitor, message, sizeof *message) == sizeof *message ? message->event : 0;
}

#define LONG_MS 60000

/* An access that a separate thread makes. */
enum access { LOADS, STORES };
struct toucher {
	volatile unsigned char *at;
	enum access access;
	volatile int tid, done;
	volatile unsigned char saw;
	pthread_t thread;
};

static inline void *touch_(void *argument)
{
	struct toucher *this = argument;
	this->tid = (int)syscall(SYS_gettid);
	if (this->access == STORES)
		*this->at = 0x5a;
	this->saw = *this->at;
	this->done = 1;
	return NULL;
}

static inline void begin_touch(struct toucher *this, void *at, enum access access)
{
	*this = (struct toucher){ .at = at, .access = access };
	NEED(pthread_create(&this->thread, NULL, touch_, this) == 0);
}

static inline int end_touch(struct toucher *this)
{
	return pthread_join(this->thread, NULL) == 0 && this->done;
}

/* A thread that serves every fault: page `n` from `base` on is filled as `generation` says. */
struct server {
	int monitor, stop[2];
	unsigned char *base;
	uint64_t generation;
	volatile int faults, stores;
	pthread_t thread;
};

static inline void *serve_(void *argument)
{
	struct server *this = argument;
	static __thread unsigned char page[PAGE] __attribute__((aligned(PAGE)));
	for (;;) {
		struct pollfd both[2] = { { this->monitor, POLLIN, 0 }, { this->stop[0], POLLIN, 0 } };
		poll(both, 2, -1);
		if (both[1].revents)
			return NULL;
		struct uffd_msg message;
		if (read(this->monitor, &message, sizeof message) != sizeof message)
			continue;
		if (message.event != UFFD_EVENT_PAGEFAULT)
			continue;
		this->faults++;
		this->stores += message.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WRITE ? 1 : 0;
		unsigned char *at = (unsigned char *)(uintptr_t)(message.arg.pagefault.address & -PAGE);
		fill(page, (at - this->base) / PAGE, this->generation);
		if (copy_to(this->monitor, at, page, 1) != 0 && errno == EEXIST)
			wake_range(this->monitor, at, 1);
	}
}

static inline void begin_serving(struct server *this, int monitor, unsigned char *base, uint64_t generation)
{
	*this = (struct server){ .monitor = monitor, .base = base, .generation = generation };
	NEED(pipe(this->stop) == 0);
	NEED(pthread_create(&this->thread, NULL, serve_, this) == 0);
}

/* Ends the thread; returns the number of faults that it has served. */
static inline int end_serving(struct server *this)
{
	NEED(write(this->stop[1], "", 1) == 1 && pthread_join(this->thread, NULL) == 0);
	close(this->stop[0]);
	close(this->stop[1]);
	return this->faults;
}
