/*
 * userfaultfd(2): a program gets reports of stores to pages (UFFDIO_WRITEPROTECT), and maps
 * existing pages of shared memory (UFFDIO_CONTINUE). Needs root.
 */
#include "promise.h"
#include "numbered.h"
#include "monitor.h"

#include <sys/uio.h>

#define FAILS(call, error) FAILS_WITH(#call " fails with " #error, call, error)
#define MISSING UFFDIO_REGISTER_MODE_MISSING
#define WP UFFDIO_REGISTER_MODE_WP
#define MINOR UFFDIO_REGISTER_MODE_MINOR

static unsigned char source[2 * PAGE] __attribute__((aligned(4096)));

static int protect_mode(int monitor, const void *at, size_t pages, uint64_t mode)
{
	struct uffdio_writeprotect wish = { .range = { (uintptr_t)at, pages * PAGE }, .mode = mode };
	return ioctl(monitor, UFFDIO_WRITEPROTECT, &wish);
}

static int watch(int monitor, const void *at, size_t pages)
{
	return protect_mode(monitor, at, pages, UFFDIO_WRITEPROTECT_MODE_WP);
}

static int let_go(int monitor, const void *at, size_t pages)
{
	return protect_mode(monitor, at, pages, 0);
}

static int continue_mode(int monitor, const void *at, size_t pages, uint64_t mode)
{
	struct uffdio_continue wish = { .range = { (uintptr_t)at, pages * PAGE }, .mode = mode, .mapped = 77 };
	int outcome = ioctl(monitor, UFFDIO_CONTINUE, &wish);
	copied = wish.mapped;
	return outcome;
}

/* Returns bit 57 of a page's entry in pagemap. */
static int is_watched(const void *at)
{
	static int file = -1;
	uint64_t entry = 0;
	if (file < 0)
		file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	NEED(pread(file, &entry, sizeof entry, (uintptr_t)at / PAGE * 8) == sizeof entry);
	return entry >> 57 & 1;
}

/* Returns whether a store by another thread to a watched page is reported, and completes when the
 * monitor allows it. */
static int store_is_told(int monitor, unsigned char *at)
{
	struct toucher store;
	struct uffd_msg message;
	begin_touch(&store, at, STORES);
	int told = next_message(monitor, &message, LONG_MS) == UFFD_EVENT_PAGEFAULT &&
		   message.arg.pagefault.address == ((uintptr_t)at & -PAGE) &&
		   message.arg.pagefault.flags == (UFFD_PAGEFAULT_FLAG_WRITE | UFFD_PAGEFAULT_FLAG_WP) && !store.done;
	NEED(let_go(monitor, (void *)((uintptr_t)at & -PAGE), 1) == 0);
	return told && end_touch(&store) && *at == 0x5a;
}

static void stores(void)
{
	int monitor = monitor_with(UFFD_FEATURE_PAGEFAULT_FLAG_WP);
	unsigned char *at = memory(8);
	struct uffdio_register wish = { .range = { (uintptr_t)at, 8 * PAGE }, .mode = WP };
	fill_all(at, 4, 1);
	FAILS(watch(monitor, at, 1), ENOENT);
	NEED(ioctl(monitor, UFFDIO_REGISTER, &wish) == 0);
	PROMISE("UFFDIO_WRITEPROTECT is told", wish.ioctls & 1 << _UFFDIO_WRITEPROTECT);
	PROMISE("UFFDIO_CONTINUE is not", !(wish.ioctls & 1 << _UFFDIO_CONTINUE));
	at[0] = at[0];
	PROMISE("registering alone tells no store", !is_watched(at));
	FAILS(protect_mode(monitor, at, 1, 3), EINVAL);
	FAILS(protect_mode(monitor, at, 1, 4), EINVAL);
	FAILS(protect_mode(monitor, at + 1, 1, 1), EINVAL);
	FAILS(protect_mode(monitor, at, 0, 1), EINVAL);
	FAILS(ioctl(monitor, UFFDIO_WRITEPROTECT, 8), EFAULT);
	PROMISE("pages are watched", watch(monitor, at, 8) == 0 && is_watched(at) && is_watched(at + 3 * PAGE));
	PROMISE("loads go through", all_filled(at, 4, 1));
	PROMISE("a store is told", store_is_told(monitor, at + 9));
	PROMISE("only that page is let go", !is_watched(at) && is_watched(at + PAGE));
	at[5 * PAGE] = 1;
	PROMISE("what was not there is not watched", at[5 * PAGE] == 1 && !is_watched(at + 5 * PAGE));
	NEED(mprotect(at + PAGE, PAGE, PROT_READ) == 0 && mprotect(at + PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
	PROMISE("mprotect does not end it", store_is_told(monitor, at + PAGE));
	int ends[2];
	NEED(pipe(ends) == 0 && write(ends[1], "x", 1) == 1);
	struct toucher store;
	struct uffd_msg message;
	PROMISE("a load by the kernel goes through", write(ends[1], at + 2 * PAGE, 1) == 1);
	begin_touch(&store, at + 2 * PAGE, STORES);
	NEED(next_message(monitor, &message, LONG_MS));
	NEED(protect_mode(monitor, at + 2 * PAGE, 1, UFFDIO_WRITEPROTECT_MODE_DONTWAKE) == 0);
	sleep_ms(20);
	PROMISE("UFFDIO_WRITEPROTECT_MODE_DONTWAKE wakes nobody", !store.done && !is_watched(at + 2 * PAGE));
	PROMISE("who is woken then stores", wake_range(monitor, at + 2 * PAGE, 1) == 0 && end_touch(&store));
	PROMISE("a page that is thrown away", madvise(at + 3 * PAGE, PAGE, MADV_DONTNEED) == 0 && !is_watched(at + 3 * PAGE));
	at[3 * PAGE] = 2;
	PROMISE("comes back unwatched", at[3 * PAGE] == 2);
	NEED(watch(monitor, at, 4) == 0 && unmonitor_range(monitor, at, 1) == 0);
	at[0] = 3;
	PROMISE("to unregister ends it", at[0] == 3 && !is_watched(at) && is_watched(at + PAGE));
	unsigned char *moved = mremap(at + PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at + 7 * PAGE);
	NEED(moved == at + 7 * PAGE);
	moved[1] = 4;
	PROMISE("a page that is moved is nobody's", moved[1] == 4);
	close(monitor);
	at[2 * PAGE] = 5;
	PROMISE("to close ends it", at[2 * PAGE] == 5 && !is_watched(at + 2 * PAGE));
	close(ends[0]);
	close(ends[1]);
	munmap(at, 8 * PAGE);
}

static void *read_into(void *argument)
{
	int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	ssize_t got = read(zero, argument, 8);
	close(zero);
	return (void *)(intptr_t)got;
}

static void *pin_and_write(void *argument)
{
	struct iovec here = { "pinned!!", 8 }, there = { argument, 8 };
	return (void *)(intptr_t)process_vm_writev(getpid(), &here, 1, &there, 1, 0);
}

static void by_the_kernel(void)
{
	int monitor = monitor_with(UFFD_FEATURE_PAGEFAULT_FLAG_WP);
	unsigned char *at = memory(4);
	fill_all(at, 4, 1);
	NEED(monitor_range(monitor, at, 4, WP) == 0 && watch(monitor, at, 4) == 0);
	void *(*const ways[])(void *) = { read_into, pin_and_write };
	const char *names[] = { "read(2) into a watched page is told", "process_vm_writev to a watched page is told" };
	for (int way = 0; way < 2; way++) {
		pthread_t thread;
		struct uffd_msg message;
		void *got;
		NEED(pthread_create(&thread, NULL, ways[way], at + way * PAGE) == 0);
		int told = next_message(monitor, &message, LONG_MS) && message.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WP;
		int unchanged = is_filled(at + way * PAGE, way, 1);
		NEED(let_go(monitor, at + way * PAGE, 1) == 0 && pthread_join(thread, &got) == 0);
		PROMISE(names[way], told && unchanged && (intptr_t)got == 8 && !is_filled(at + way * PAGE, way, 1));
	}
	int own = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	FAILS(pwrite(own, "x", 1, (off_t)(uintptr_t)(at + 2 * PAGE)), EIO);
	close(own);
	close(monitor);
	munmap(at, 4 * PAGE);
}

/* Watched pages that are shared with a child, swapped out, or part of a large page. */
static void elsewhere(void)
{
	int monitor = monitor_with(UFFD_FEATURE_PAGEFAULT_FLAG_WP), status;
	unsigned char *at = memory(4);
	fill_all(at, 4, 1);
	NEED(monitor_range(monitor, at, 4, WP) == 0 && watch(monitor, at, 4) == 0);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		int good = all_filled(at, 4, 1) && !is_watched(at);
		at[0] = 9;
		pause();
		_exit(!good);
	}
	PROMISE("beside a child a store is told", store_is_told(monitor, at + 8) && at[8] == 0x5a);
	PROMISE("and other pages still are watched", is_watched(at + PAGE));
	kill(child, SIGKILL);
	NEED(waitpid(child, &status, 0) == child);
	IN_CHILD(status, {
		int good = all_filled(at + PAGE, 0, 1) && is_filled(at + PAGE, 1, 1);
		at[PAGE] = 9;
		_exit(!good || at[8] != 0x5a);
	});
	PROMISE("a child's stores are told nobody", status == 0 && is_filled(at + PAGE, 1, 1));
	PROMISE("afterwards, too", store_is_told(monitor, at + PAGE));
	madvise(at + 2 * PAGE, 2 * PAGE, MADV_PAGEOUT);
	PROMISE("the mark goes along to the swap", is_watched(at + 2 * PAGE) && is_watched(at + 3 * PAGE));
	PROMISE("and comes back", is_filled(at + 2 * PAGE, 2, 1) && is_watched(at + 2 * PAGE) && store_is_told(monitor, at + 2 * PAGE));
	PROMISE("also where the first use is a store", store_is_told(monitor, at + 3 * PAGE));
	munmap(at, 4 * PAGE);

	const size_t huge = 2 << 20;
	unsigned char *room = memory(2 * huge / PAGE), *large = (unsigned char *)(((uintptr_t)room + huge - 1) & -huge);
	madvise(large, huge, MADV_HUGEPAGE);
	large[0] = 1;
	fill_all(large, huge / PAGE, 2);
	NEED(monitor_range(monitor, large, huge / PAGE, WP) == 0);
	NEED(watch(monitor, large, huge / PAGE) == 0 && let_go(monitor, large + 3 * PAGE, 2) == 0);
	large[3 * PAGE + 8] = 7;
	PROMISE("a part of a large page is let go", large[3 * PAGE + 8] == 7 && is_watched(large + 5 * PAGE) && is_watched(large));
	PROMISE("and the rest is told", store_is_told(monitor, large + 2 * PAGE) && store_is_told(monitor, large + huge - 1));
	PROMISE("its bytes are as before", is_filled(large + 5 * PAGE, 5, 2));
	munmap(room, 2 * huge);
	close(monitor);
}

static void provided(void)
{
	int monitor = monitor_with(UFFD_FEATURE_PAGEFAULT_FLAG_WP);
	unsigned char *at = memory(4);
	fill(source, 0, 7);
	NEED(monitor_range(monitor, at, 4, MISSING | WP) == 0 && monitor_range(monitor, at + 3 * PAGE, 1, MISSING) == 0);
	PROMISE("a page is provided watched", copy_mode(monitor, at, source, PAGE, UFFDIO_COPY_MODE_WP) == 0 && is_filled(at, 0, 7) && is_watched(at));
	PROMISE("its first store is told", store_is_told(monitor, at + 8));
	PROMISE("one is not", copy_to(monitor, at + PAGE, source, 1) == 0 && !is_watched(at + PAGE));
	NEED(unmonitor_range(monitor, at + 2 * PAGE, 1) == 0 && monitor_range(monitor, at + 2 * PAGE, 1, MISSING) == 0);
	FAILS(copy_mode(monitor, at + 2 * PAGE, source, PAGE, UFFDIO_COPY_MODE_WP), EINVAL);
	FAILS(watch(monitor, at + 2 * PAGE, 1), ENOENT);
	struct toucher store;
	struct uffd_msg message;
	begin_touch(&store, at + 3 * PAGE, STORES);
	PROMISE("a missing page is told as such", next_message(monitor, &message, LONG_MS) && message.arg.pagefault.flags == UFFD_PAGEFAULT_FLAG_WRITE);
	NEED(zero_pages(monitor, at + 3 * PAGE, 1, 0) == 0);
	PROMISE("and provided", end_touch(&store));
	close(monitor);
	munmap(at, 4 * PAGE);
}

static void minor_faults(void)
{
	int monitor = monitor_with(UFFD_FEATURE_MINOR_SHMEM), file = memfd_create("minor", MFD_CLOEXEC);
	NEED(file >= 0 && ftruncate(file, 8 * PAGE) == 0);
	unsigned char *at = map(9, MAP_SHARED, file), *plain = map(8, MAP_SHARED, file);
	fill_all(plain, 4, 1);
	struct uffdio_register wish = { .range = { (uintptr_t)at, 9 * PAGE }, .mode = MINOR };
	NEED(ioctl(monitor, UFFDIO_REGISTER, &wish) == 0);
	PROMISE("UFFDIO_CONTINUE is told", wish.ioctls & 1 << _UFFDIO_CONTINUE);
	struct toucher load;
	struct uffd_msg message;
	begin_touch(&load, at + PAGE, LOADS);
	PROMISE("a page that is there is told", next_message(monitor, &message, LONG_MS) == UFFD_EVENT_PAGEFAULT);
	PROMISE("as such", message.arg.pagefault.flags == UFFD_PAGEFAULT_FLAG_MINOR && message.arg.pagefault.address == (uintptr_t)at + PAGE);
	fill(plain + PAGE, 1, 2);
	FAILS(continue_mode(monitor, at + PAGE, 1, 4), EINVAL);
	PROMISE("it is mapped", continue_mode(monitor, at + PAGE, 1, 0) == 0 && copied == (int64_t)PAGE);
	PROMISE("which ends the fault", end_touch(&load) && is_filled(at + PAGE, 1, 2));
	FAILS(continue_mode(monitor, at + PAGE, 1, 0), EEXIST);
	PROMISE("the error is told", copied == -EEXIST);
	FAILS(continue_mode(monitor, at + 6 * PAGE, 1, 0), EFAULT);
	FAILS(continue_mode(monitor, at + 8 * PAGE, 1, 0), EINVAL);
	FAILS(ioctl(monitor, UFFDIO_CONTINUE, 8), EFAULT);
	at[5 * PAGE] = 3;
	PROMISE("a hole is filled as ever", at[5 * PAGE] == 3 && plain[5 * PAGE] == 3);
	begin_touch(&load, at + 2 * PAGE, STORES);
	PROMISE("a store is told as one", next_message(monitor, &message, LONG_MS) &&
						  message.arg.pagefault.flags == (UFFD_PAGEFAULT_FLAG_MINOR | UFFD_PAGEFAULT_FLAG_WRITE));
	PROMISE("several are mapped", continue_mode(monitor, at + 2 * PAGE, 2, 0) == 0 && copied == (int64_t)(2 * PAGE));
	PROMISE("and stored to", end_touch(&load) && plain[2 * PAGE] == 0x5a && is_filled(at + 3 * PAGE, 3, 1));
	NEED(madvise(at + PAGE, PAGE, MADV_DONTNEED) == 0);
	begin_touch(&load, at + PAGE, LOADS);
	PROMISE("unmapped, it is told again", next_message(monitor, &message, LONG_MS) && message.arg.pagefault.flags == UFFD_PAGEFAULT_FLAG_MINOR);
	NEED(continue_mode(monitor, at + PAGE, 1, 1) == 0);
	sleep_ms(20);
	PROMISE("UFFDIO_CONTINUE_MODE_DONTWAKE wakes nobody", !load.done);
	PROMISE("who is woken finds it", wake_range(monitor, at + PAGE, 1) == 0 && end_touch(&load));
	unsigned char *both = map(8, MAP_SHARED, file);
	NEED(monitor_range(monitor, both, 8, MINOR | MISSING) == 0);
	begin_touch(&load, both + 7 * PAGE, LOADS);
	PROMISE("with both modes a hole is missing", next_message(monitor, &message, LONG_MS) && message.arg.pagefault.flags == 0);
	NEED(copy_to(monitor, both + 7 * PAGE, source, 1) == 0 && end_touch(&load));
	begin_touch(&load, both, LOADS);
	PROMISE("and a page is not", next_message(monitor, &message, LONG_MS) && message.arg.pagefault.flags == UFFD_PAGEFAULT_FLAG_MINOR);
	close(monitor);
	PROMISE("to close ends it", end_touch(&load) && is_filled(both, 0, 1));
	close(file);
}

#define THREADS 8

/* Threads store while another one write-protects the page again and again: in the end each store
 * is in memory. */
static unsigned char *field;
static volatile int stop;

static void *count_up(void *argument)
{
	volatile uint32_t *own = (uint32_t *)field + (intptr_t)argument;
	for (int n = 0; n < 3000; n++)
		own[n % 4 * (PAGE / 4)]++;
	return NULL;
}

static void *let_all_go(void *argument)
{
	int monitor = (int)(intptr_t)argument;
	struct uffd_msg message;
	while (!stop)
		if (next_message(monitor, &message, 5))
			let_go(monitor, (void *)(uintptr_t)message.arg.pagefault.address, 1);
	return NULL;
}

static void many_stores(void)
{
	int monitor = monitor_with(UFFD_FEATURE_PAGEFAULT_FLAG_WP), good = 1, rounds = 0;
	field = memory(4);
	memset(field, 0, 4 * PAGE);
	NEED(monitor_range(monitor, field, 4, WP) == 0);
	pthread_t threads[THREADS], server;
	NEED(pthread_create(&server, NULL, let_all_go, (void *)(intptr_t)monitor) == 0);
	for (intptr_t i = 0; i < THREADS; i++)
		NEED(pthread_create(&threads[i], NULL, count_up, (void *)i) == 0);
	for (; rounds < 200; rounds++) {
		good &= watch(monitor, field, 4) == 0;
		sched_yield();
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	stop = 1;
	pthread_join(server, NULL);
	for (int page = 0; page < 4; page++)
		for (int i = 0; i < THREADS; i++)
			good &= ((uint32_t *)(field + page * PAGE))[i] == 750;
	PROMISE("no store is lost beside pages that are watched again and again", good);
	close(monitor);
}

int main(void)
{
	if (new_monitor(UFFD_USER_MODE_ONLY) < 0 && errno == ENOSYS) {
		printf("# this kernel has no userfaultfd\n1..0\n");
		return 0;
	}
	stores();
	by_the_kernel();
	elsewhere();
	provided();
	minor_faults();
	many_stores();
	return conclude();
}
