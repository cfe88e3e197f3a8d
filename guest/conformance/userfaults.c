/*
 * userfaultfd(2): a program provides missing pages. Needs root.
 */
#include "promise.h"
#include "numbered.h"
#include "monitor.h"

#include <linux/futex.h>
#include <setjmp.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>

#define FAILS(call, error) FAILS_WITH(#call " fails with " #error, call, error)
#define MISSING UFFDIO_REGISTER_MODE_MISSING

static unsigned char source[8 * PAGE] __attribute__((aligned(4096)));

static void the_call(void)
{
	FAILS(new_monitor(2), EINVAL);
	FAILS(new_monitor(O_CLOEXEC | O_APPEND), EINVAL);
	int monitor = new_monitor(O_CLOEXEC | O_NONBLOCK);
	NEED(monitor >= 0);
	PROMISE("close on exec", fcntl(monitor, F_GETFD) == FD_CLOEXEC);
	PROMISE("it does not block", fcntl(monitor, F_GETFL) & O_NONBLOCK);
	char path[64], name[64] = "";
	snprintf(path, sizeof path, "/proc/self/fd/%d", monitor);
	NEED(readlink(path, name, sizeof name - 1) > 0);
	PROMISE("its name", strcmp(name, "anon_inode:[userfaultfd]") == 0);
	close(monitor);
	int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
	if (device >= 0) {
		FAILS(ioctl(device, UFFDIO_API, 0), EINVAL);
		FAILS(ioctl(device, USERFAULTFD_IOC_NEW, 2), EINVAL);
		monitor = ioctl(device, USERFAULTFD_IOC_NEW, O_CLOEXEC);
		PROMISE("the device gives one", monitor >= 0 && fcntl(monitor, F_GETFD) == FD_CLOEXEC);
		close(monitor);
		close(device);
	}
	int status;
	IN_CHILD(status, {
		if (setresgid(1000, 1000, 1000) || setresuid(1000, 1000, 1000))
			_exit(2);
		if (new_monitor(0) != -1 || errno != EPERM)
			_exit(3);
		if (new_monitor(UFFD_USER_MODE_ONLY) < 0)
			_exit(4);
	});
	PROMISE("without CAP_SYS_PTRACE it serves programs' own faults only", status == 0);
}

static void agreement(void)
{
	int monitor = new_monitor(O_CLOEXEC | O_NONBLOCK);
	NEED(monitor >= 0);
	struct uffdio_range range = { (uintptr_t)source, PAGE };
	FAILS(ioctl(monitor, UFFDIO_WAKE, &range), EINVAL);
	struct uffd_msg message;
	FAILS(read(monitor, &message, sizeof message), EINVAL);
	struct pollfd poll_one = { monitor, POLLIN, 0 };
	PROMISE("poll says POLLERR before UFFDIO_API", poll(&poll_one, 1, 0) == 1 && poll_one.revents == POLLERR);
	struct uffdio_api api = { .api = 0xab, .features = 0, .ioctls = 5 };
	FAILS(ioctl(monitor, UFFDIO_API, &api), EINVAL);
	PROMISE("what is refused is cleared", api.api == 0 && api.features == 0 && api.ioctls == 0);
	api = (struct uffdio_api){ .api = UFFD_API, .features = 1ULL << 62 };
	FAILS(ioctl(monitor, UFFDIO_API, &api), EINVAL);
	FAILS(ioctl(monitor, UFFDIO_API, 8), EFAULT);
	api = (struct uffdio_api){ .api = UFFD_API };
	PROMISE("it agrees", ioctl(monitor, UFFDIO_API, &api) == 0);
	uint64_t wanted = UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_SIGBUS | UFFD_FEATURE_THREAD_ID | UFFD_FEATURE_EXACT_ADDRESS;
	PROMISE("features are told", (api.features & wanted) == wanted);
	PROMISE("requests are told", api.ioctls == UFFD_API_IOCTLS);
	api = (struct uffdio_api){ .api = UFFD_API };
	FAILS(ioctl(monitor, UFFDIO_API, &api), EINVAL);
	FAILS(ioctl(monitor, _IO(0xaa, 0x33), 0), EINVAL);
	FAILS(ioctl(monitor, TCGETS, 0), EINVAL);
	FAILS(read(monitor, &message, sizeof message), EAGAIN);
	FAILS(read(monitor, &message, sizeof message - 1), EINVAL);
	FAILS(write(monitor, &message, sizeof message), EBADF);
	PROMISE("nothing is there to read", poll(&poll_one, 1, 0) == 0);
	NEED(fcntl(monitor, F_SETFL, 0) == 0);
	PROMISE("poll of what blocks says POLLERR", poll(&poll_one, 1, 0) == 1 && poll_one.revents == POLLERR);
	close(monitor);
}

static int register_raw(int monitor, uint64_t start, uint64_t length, uint64_t mode)
{
	struct uffdio_register wish = { .range = { start, length }, .mode = mode };
	return ioctl(monitor, UFFDIO_REGISTER, &wish);
}

static void ranges(void)
{
	int monitor = monitor_with(0), other = monitor_with(0);
	unsigned char *at = memory(8);
	uint64_t start = (uintptr_t)at;
	FAILS(register_raw(monitor, start, PAGE, 0), EINVAL);
	FAILS(register_raw(monitor, start, PAGE, 8), EINVAL);
	FAILS(register_raw(monitor, start, PAGE, MISSING | 1 << 20), EINVAL);
	FAILS(register_raw(monitor, start + 1, PAGE, MISSING), EINVAL);
	FAILS(register_raw(monitor, start, PAGE + 1, MISSING), EINVAL);
	FAILS(register_raw(monitor, start, 0, MISSING), EINVAL);
	FAILS(register_raw(monitor, start, -PAGE, MISSING), EINVAL);
	FAILS(register_raw(monitor, 1ULL << 47, PAGE, MISSING), EINVAL);
	FAILS(register_raw(monitor, -PAGE, PAGE, MISSING), EINVAL);
	FAILS(ioctl(monitor, UFFDIO_REGISTER, 8), EFAULT);
	FAILS(ioctl(monitor, UFFDIO_UNREGISTER, 8), EFAULT);
	FAILS(unmonitor_range(monitor, at + 1, 1), EINVAL);
	munmap(at + 2 * PAGE, 2 * PAGE);
	FAILS(monitor_range(monitor, at + 2 * PAGE, 2, MISSING), EINVAL);
	FAILS(unmonitor_range(monitor, at + 2 * PAGE, 2), EINVAL);
	struct uffdio_register wish = { .range = { start, 8 * PAGE }, .mode = MISSING };
	PROMISE("a range of several areas, with a hole", ioctl(monitor, UFFDIO_REGISTER, &wish) == 0);
	uint64_t few = 1 << _UFFDIO_WAKE | 1 << _UFFDIO_COPY | 1 << _UFFDIO_ZEROPAGE;
	PROMISE("requests of the range are told", (wish.ioctls & few) == few);
	PROMISE("those for other modes are not",
		!(wish.ioctls & (1 << _UFFDIO_WRITEPROTECT | 1 << _UFFDIO_CONTINUE)));
	PROMISE("registered again", monitor_range(monitor, at, 2, MISSING) == 0);
	FAILS(monitor_range(other, at + PAGE, 1, MISSING), EBUSY);
	FAILS(monitor_range(other, at, 8, MISSING), EBUSY);
	PROMISE("given back", unmonitor_range(monitor, at + PAGE, 1) == 0);
	PROMISE("then it may be another's", monitor_range(other, at + PAGE, 1, MISSING) == 0);
	FAILS(copy_to(monitor, at + PAGE, source, 2), ENOENT);
	PROMISE("the error is told", copied == -ENOENT);
	close(other);
	at[PAGE] = 1;
	PROMISE("what a closed instance had is nobody's", at[PAGE] == 1);
	void *vdso = (void *)getauxval(AT_SYSINFO_EHDR);
	FAILS(monitor_range(monitor, vdso, 1, MISSING), EINVAL);
	FAILS(monitor_range(monitor, at, 1, UFFDIO_REGISTER_MODE_MINOR), EINVAL);
	int file = memfd_create("shown", MFD_CLOEXEC);
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", file);
	int shown = open(path, O_RDONLY | O_CLOEXEC);
	NEED(shown >= 0 && ftruncate(file, PAGE) == 0);
	void *for_reading = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, shown, 0);
	NEED(for_reading != MAP_FAILED);
	FAILS(monitor_range(monitor, for_reading, 1, MISSING), EPERM);
	close(shown);
	close(file);
	close(monitor);
}

/* One fault of each kind, each served by its own code. */
static void one_by_one(void)
{
	int monitor = monitor_with(0);
	unsigned char *at = memory(4);
	memset(source, 0x77, sizeof source);
	NEED(monitor_range(monitor, at, 4, MISSING) == 0);
	struct toucher load, store;
	struct uffd_msg message;
	begin_touch(&load, at + 5, LOADS);
	PROMISE("a load is told", next_message(monitor, &message, LONG_MS) == UFFD_EVENT_PAGEFAULT);
	PROMISE("by its page", message.arg.pagefault.address == (uintptr_t)at);
	PROMISE("as a load", message.arg.pagefault.flags == 0);
	PROMISE("by no thread", message.arg.pagefault.feat.ptid == 0);
	PROMISE("the thread sleeps", COMES_TRUE(is_asleep(getpid(), load.tid)) && !load.done);
	PROMISE("it is told once", next_message(monitor, &message, 20) == 0);
	PROMISE("a copy", copy_to(monitor, at, source, 1) == 0 && copied == (int64_t)PAGE);
	PROMISE("ends the fault", end_touch(&load) && load.saw == 0x77);
	begin_touch(&store, at + PAGE, STORES);
	PROMISE("a store is told", next_message(monitor, &message, LONG_MS) == UFFD_EVENT_PAGEFAULT);
	PROMISE("as a store",
		message.arg.pagefault.address == (uintptr_t)at + PAGE && message.arg.pagefault.flags == UFFD_PAGEFAULT_FLAG_WRITE);
	PROMISE("zeroes", zero_pages(monitor, at + PAGE, 1, 0) == 0 && copied == (int64_t)PAGE);
	PROMISE("end it, too", end_touch(&store) && at[PAGE] == 0x5a && at[PAGE + 1] == 0);
	FAILS(copy_to(monitor, at, source, 1), EEXIST);
	PROMISE("the error is told", copied == -EEXIST && at[0] == 0x77);
	FAILS(zero_pages(monitor, at, 1, 0), EEXIST);
	PROMISE("of zeroes, too", copied == -EEXIST);
	PROMISE("pages before anybody asks", copy_to(monitor, at + 2 * PAGE, source, 1) == 0 && at[2 * PAGE] == 0x77);
	madvise(at + PAGE, PAGE, MADV_DONTNEED);
	FAILS(copy_to(monitor, at + PAGE, source, 2), EAGAIN);
	PROMISE("as far as there was room", copied == (int64_t)PAGE && at[PAGE] == 0x77);
	FAILS(copy_to(monitor, at + 3 * PAGE, source, 2), ENOENT);
	PROMISE("nothing is filled where not all is registered", copied == -ENOENT);
	FAILS(copy_mode(monitor, at + 3 * PAGE, source, PAGE, 1 << 5), EINVAL);
	FAILS(copy_mode(monitor, at + 3 * PAGE, source, 0, 0), EINVAL);
	FAILS(copy_mode(monitor, at + 3 * PAGE, source, 100, 0), EINVAL);
	FAILS(copy_mode(monitor, at + 3 * PAGE + 1, source, PAGE, 0), EINVAL);
	FAILS(copy_mode(monitor, at + 3 * PAGE, (void *)-4096L, PAGE, 0), EINVAL);
	FAILS(copy_mode(monitor, at + 3 * PAGE, (void *)16, PAGE, 0), EFAULT);
	PROMISE("the error is told", copied == -EFAULT);
	FAILS(zero_pages(monitor, at + 3 * PAGE, 1, 2), EINVAL);
	FAILS(ioctl(monitor, UFFDIO_COPY, 8), EFAULT);
	FAILS(ioctl(monitor, UFFDIO_ZEROPAGE, 8), EFAULT);
	FAILS(ioctl(monitor, UFFDIO_WAKE, 8), EFAULT);
	fill(source, 1, 2);
	PROMISE("the source need not be aligned", copy_to(monitor, at + 3 * PAGE, source + 24, 1) == 0);
	PROMISE("its bytes came", memcmp(at + 3 * PAGE, source + 24, PAGE) == 0);
	close(monitor);
}

static void waking(void)
{
	int monitor = monitor_with(UFFD_FEATURE_THREAD_ID | UFFD_FEATURE_EXACT_ADDRESS);
	unsigned char *at = memory(4);
	NEED(monitor_range(monitor, at, 4, MISSING) == 0);
	struct toucher load, other;
	struct uffd_msg messages[3];
	begin_touch(&load, at + 123, LOADS);
	PROMISE("told to the byte",
		next_message(monitor, messages, LONG_MS) && messages[0].arg.pagefault.address == (uintptr_t)at + 123);
	PROMISE("and by the thread", (int)messages[0].arg.pagefault.feat.ptid == load.tid);
	begin_touch(&other, at + 2 * PAGE, LOADS);
	PROMISE("another", next_message(monitor, messages, LONG_MS) && (int)messages[0].arg.pagefault.feat.ptid == other.tid);
	PROMISE("a copy that wakes nobody", copy_mode(monitor, at, source, PAGE, UFFDIO_COPY_MODE_DONTWAKE) == 0);
	PROMISE("zeroes that wake nobody", zero_pages(monitor, at + 2 * PAGE, 1, UFFDIO_ZEROPAGE_MODE_DONTWAKE) == 0);
	sleep_ms(20);
	PROMISE("nobody woke", !load.done && !other.done);
	PROMISE("one is woken", wake_range(monitor, at, 1) == 0 && end_touch(&load));
	PROMISE("and the other is not", !other.done);
	PROMISE("then it is", wake_range(monitor, at, 4) == 0 && end_touch(&other));
	begin_touch(&load, at + PAGE, LOADS);
	NEED(next_message(monitor, messages, LONG_MS));
	NEED(wake_range(monitor, at + PAGE, 1) == 0);
	PROMISE("who is woken for nothing asks again", next_message(monitor, messages, LONG_MS) == UFFD_EVENT_PAGEFAULT && !load.done);
	begin_touch(&other, at + 3 * PAGE, STORES);
	struct toucher third;
	begin_touch(&third, at + PAGE + 7, STORES);
	NEED(COMES_TRUE(is_asleep(getpid(), other.tid) && is_asleep(getpid(), third.tid)));
	FAILS(read(monitor, messages, 31), EINVAL);
	PROMISE("several messages in one read", read(monitor, messages, sizeof messages) == 2 * sizeof *messages);
	NEED(copy_to(monitor, at + PAGE, source, 1) == 0 && copy_to(monitor, at + 3 * PAGE, source, 1) == 0);
	PROMISE("one page for all who wait for it", end_touch(&load) && end_touch(&third) && end_touch(&other));
	begin_touch(&load, at, LOADS);
	PROMISE("who finds a page asks nobody", end_touch(&load) && next_message(monitor, messages, 20) == 0);
	munmap(at, 4 * PAGE);
	at = memory(4);
	NEED(monitor_range(monitor, at, 4, MISSING) == 0);
	begin_touch(&load, at, LOADS);
	begin_touch(&other, at + PAGE, STORES);
	NEED(next_message(monitor, messages, LONG_MS) && next_message(monitor, messages, LONG_MS));
	PROMISE("to unregister a part", unmonitor_range(monitor, at, 1) == 0);
	PROMISE("ends its faults with zeroes", end_touch(&load) && load.saw == 0);
	PROMISE("and no others", !other.done);
	close(monitor);
	PROMISE("to close ends all", end_touch(&other) && at[PAGE] == 0x5a && at[PAGE + 1] == 0);
}

static volatile int signals;
static void count_signal(int number)
{
	(void)number;
	signals++;
}

static void interrupted(void)
{
	int monitor = monitor_with(0);
	unsigned char *at = memory(2);
	NEED(monitor_range(monitor, at, 2, MISSING) == 0);
	struct sigaction action = { .sa_handler = count_signal };
	NEED(sigaction(SIGUSR1, &action, NULL) == 0);
	struct toucher load;
	struct uffd_msg message;
	begin_touch(&load, at, LOADS);
	NEED(next_message(monitor, &message, LONG_MS));
	NEED(COMES_TRUE(is_asleep(getpid(), load.tid)));
	NEED(syscall(SYS_tgkill, getpid(), load.tid, SIGUSR1) == 0);
	PROMISE("a signal is handled while a fault waits", COMES_TRUE(signals == 1) && !load.done);
	PROMISE("then it faults again", next_message(monitor, &message, LONG_MS) == UFFD_EVENT_PAGEFAULT);
	NEED(copy_to(monitor, at, source, 1) == 0);
	PROMISE("and is served", end_touch(&load));
	int status, there[2];
	NEED(pipe(there) == 0);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		int own = monitor_with(0);
		unsigned char *mine = memory(1);
		NEED(monitor_range(own, mine, 1, MISSING) == 0);
		NEED(write(there[1], "", 1) == 1);
		_exit(mine[0]);
	}
	char byte;
	NEED(read(there[0], &byte, 1) == 1 && COMES_TRUE(is_asleep(child, child)));
	kill(child, SIGKILL);
	PROMISE("SIGKILL ends who serves his own faults",
		waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	close(monitor);
}

static sigjmp_buf back;
static volatile int bus_code;
static void *volatile bus_address;
static void on_bus(int number, siginfo_t *info, void *context)
{
	(void)number, (void)context;
	bus_code = info->si_code;
	bus_address = info->si_addr;
	siglongjmp(back, 1);
}

/* Whether an access is a bus error. */
static int is_bus_error(volatile unsigned char *at)
{
	struct sigaction action = { .sa_sigaction = on_bus, .sa_flags = SA_SIGINFO }, old;
	NEED(sigaction(SIGBUS, &action, &old) == 0);
	volatile int failed = 1;
	if (sigsetjmp(back, 1) == 0) {
		(void)*at;
		failed = 0;
	}
	sigaction(SIGBUS, &old, NULL);
	return failed;
}

static void bus_errors(void)
{
	int monitor = monitor_with(UFFD_FEATURE_SIGBUS), ends[2];
	unsigned char *at = memory(2);
	NEED(monitor_range(monitor, at, 2, MISSING) == 0 && pipe(ends) == 0);
	PROMISE("UFFD_FEATURE_SIGBUS: a fault is a bus error", is_bus_error(at + 9));
	PROMISE("at its address", bus_code == BUS_ADRERR && bus_address == at + 9);
	FAILS(write(ends[1], at, 1), EFAULT);
	struct uffd_msg message;
	PROMISE("and no message", next_message(monitor, &message, 0) == 0);
	NEED(copy_to(monitor, at, source, 1) == 0);
	PROMISE("until there is a page", !is_bus_error(at + 9));
	FAILS(madvise(at, 2 * PAGE, MADV_POPULATE_READ), EFAULT);
	close(monitor);
	monitor = new_monitor(O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
	NEED(monitor >= 0 && agree(monitor, 0) == 0);
	unsigned char *own = memory(2);
	NEED(monitor_range(monitor, own, 2, MISSING) == 0);
	FAILS(write(ends[1], own, 1), EFAULT);
	NEED(write(ends[1], source, 1) == 1);
	FAILS(read(ends[0], own + PAGE, 1), EFAULT);
	struct toucher load;
	begin_touch(&load, own, LOADS);
	PROMISE("UFFD_USER_MODE_ONLY: the program's faults are served", next_message(monitor, &message, LONG_MS));
	NEED(copy_to(monitor, own, source, 1) == 0 && end_touch(&load));
	close(monitor);
	close(ends[0]);
	close(ends[1]);
}

/* The kernel's own accesses wait for the page, too. */
static void kernel_accesses(void)
{
	int monitor = monitor_with(0), ends[2];
	unsigned char *at = memory(32);
	NEED(monitor_range(monitor, at, 32, MISSING) == 0 && pipe(ends) == 0);
	struct server server;
	begin_serving(&server, monitor, at, 3);
	unsigned char got[PAGE];
	PROMISE("write(2) from a missing page", write(ends[1], at, PAGE) == (ssize_t)PAGE && read(ends[0], got, PAGE) == (ssize_t)PAGE);
	PROMISE("its bytes", is_filled(got, 0, 3));
	NEED(write(ends[1], "four", 4) == 4);
	PROMISE("read(2) into a missing page", read(ends[0], at + PAGE + 16, 4) == 4 && !memcmp(at + PAGE + 16, "four", 4));
	PROMISE("around the bytes is what was provided", ((uint64_t *)(at + PAGE))[PAGE / 8 - 1] == (1 ^ 3ULL << 32));
	int32_t *word = (int32_t *)(at + 2 * PAGE);
	PROMISE("a futex", syscall(SYS_futex, word, FUTEX_WAIT, 12345, NULL) == -1 && errno == EAGAIN);
	struct iovec here = { got, 64 }, there = { at + 3 * PAGE, 64 };
	PROMISE("process_vm_readv", process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 64);
	there.iov_base = at + 4 * PAGE;
	PROMISE("process_vm_writev",
		process_vm_writev(getpid(), &here, 1, &there, 1, 0) == 64 && !memcmp(at + 4 * PAGE, got, 64));
	int file = open("direct", O_RDWR | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600);
	if (file >= 0) {
		PROMISE("O_DIRECT from missing pages", pwrite(file, at + 5 * PAGE, 2 * PAGE, 0) == (ssize_t)(2 * PAGE));
		PROMISE("O_DIRECT into missing pages", pread(file, at + 7 * PAGE, 2 * PAGE, 0) == (ssize_t)(2 * PAGE));
		PROMISE("with their bytes", is_filled(at + 7 * PAGE, 5, 3) && is_filled(at + 8 * PAGE, 6, 3));
		close(file);
		unlink("direct");
	}
	PROMISE("stat(2) into a missing page", fstat(ends[0], (struct stat *)(at + 10 * PAGE)) == 0);
	PROMISE("a path on a missing page", open((char *)at + 11 * PAGE, O_RDONLY) == -1);
	int before = server.faults;
	PROMISE("mlock(2) waits for each page", mlock(at + 12 * PAGE, 2 * PAGE) == 0 && server.faults == before + 2);
	PROMISE("MADV_POPULATE_WRITE as well",
		madvise(at + 14 * PAGE, 2 * PAGE, MADV_POPULATE_WRITE) == 0 && server.faults == before + 4);
	PROMISE("and they are what was provided", is_filled(at + 13 * PAGE, 13, 3) && is_filled(at + 15 * PAGE, 15, 3));
	int own = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	NEED(own >= 0);
	FAILS(pread(own, got, 8, (off_t)(uintptr_t)(at + 20 * PAGE)), EIO);
	FAILS(pwrite(own, got, 8, (off_t)(uintptr_t)(at + 20 * PAGE)), EIO);
	PROMISE("/proc/PID/mem reads what is there", pread(own, got, PAGE, (off_t)(uintptr_t)(at + 12 * PAGE)) == (ssize_t)PAGE);
	close(own);
	end_serving(&server);
	close(monitor);
	close(ends[0]);
	close(ends[1]);
}

/* Areas registered with a monitor that are split, unmapped, moved or inherited. */
static void areas(void)
{
	int monitor = monitor_with(0);
	unsigned char *at = memory(16);
	NEED(monitor_range(monitor, at + 4 * PAGE, 4, MISSING) == 0);
	struct server server;
	begin_serving(&server, monitor, at, 5);
	at[0] = at[15 * PAGE] = 1;
	PROMISE("pages beside the range are nobody's", server.faults == 0);
	PROMISE("pages in it are provided", is_filled(at + 4 * PAGE, 4, 5) && server.faults == 1);
	NEED(mprotect(at + 5 * PAGE, PAGE, PROT_READ) == 0);
	PROMISE("an area that is cut stays the monitor's", is_filled(at + 5 * PAGE, 5, 5) && is_filled(at + 6 * PAGE, 6, 5));
	NEED(madvise(at + 4 * PAGE, 4 * PAGE, MADV_DONTNEED) == 0);
	server.generation = 6;
	PROMISE("pages that are thrown away are provided again", is_filled(at + 4 * PAGE, 4, 6) && is_filled(at + 5 * PAGE, 5, 6));
	NEED(is_filled(at + 6 * PAGE, 6, 6) && munmap(at + 4 * PAGE, PAGE) == 0);
	unsigned char *again = mmap(at + 4 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	PROMISE("a new mapping in its place is nobody's", again[0] == 0);
	int before = server.faults;
	unsigned char *moved = mremap(at + 6 * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at + 12 * PAGE);
	NEED(moved == at + 12 * PAGE);
	PROMISE("what is moved takes its page along", is_filled(moved, 6, 6));
	madvise(moved, PAGE, MADV_DONTNEED);
	PROMISE("and is nobody's", moved[0] == 0 && server.faults == before);
	int status;
	NEED(madvise(at + 7 * PAGE, PAGE, MADV_DONTNEED) == 0);
	IN_CHILD(status, _exit(at[7 * PAGE] != 0 || at[5 * PAGE] == 0));
	PROMISE("a child's memory is nobody's", status == 0 && server.faults == before);
	PROMISE("the parent's is", is_filled(at + 7 * PAGE, 7, 6) && server.faults == before + 1);
	end_serving(&server);
	char line[512];
	int flagged = 0, in_it = 0;
	FILE *smaps = fopen("/proc/self/smaps", "re");
	NEED(smaps);
	while (fgets(line, sizeof line, smaps)) {
		unsigned long from, to;
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			in_it = (unsigned long)(at + 7 * PAGE) >= from && (unsigned long)(at + 7 * PAGE) < to;
		if (in_it && !strncmp(line, "VmFlags:", 8))
			flagged = strstr(line, " um") != NULL;
	}
	fclose(smaps);
	PROMISE("smaps says um", flagged);
	snprintf(line, sizeof line, "/proc/self/fdinfo/%d", monitor);
	FILE *info = fopen(line, "re");
	long pending = -1, total = -1;
	unsigned long long api = 0;
	NEED(info);
	while (fgets(line, sizeof line, info)) {
		sscanf(line, "pending:\t%ld", &pending);
		sscanf(line, "total:\t%ld", &total);
		sscanf(line, "API:\t%llx:", &api);
	}
	fclose(info);
	PROMISE("fdinfo counts faults", pending == 0 && total == 0 && api == UFFD_API);
	munmap(at, 16 * PAGE);
	close(monitor);
}

static void shared(void)
{
	int monitor = monitor_with(UFFD_FEATURE_MISSING_SHMEM), file = memfd_create("shared", MFD_CLOEXEC);
	NEED(file >= 0 && ftruncate(file, 8 * PAGE) == 0);
	unsigned char *at = map(9, MAP_SHARED, file), *plain = map(8, MAP_SHARED, file), *private = map(8, MAP_PRIVATE, file);
	fill(plain, 0, 9);
	NEED(monitor_range(monitor, at, 9, MISSING) == 0);
	struct server server;
	begin_serving(&server, monitor, at, 4);
	PROMISE("a page that the file has is not missing", is_filled(at, 0, 9) && server.faults == 0);
	PROMISE("one that it has not is", is_filled(at + PAGE, 1, 4) && server.faults == 1);
	PROMISE("it comes into the file", is_filled(plain + PAGE, 1, 4));
	PROMISE("stores are seen", (at[2 * PAGE + 9] = 3, plain[2 * PAGE + 9] == 3) && server.stores == 1);
	plain[3 * PAGE] = 7;
	PROMISE("others fill holes as ever", at[3 * PAGE] == 7 && server.faults == 2);
	FAILS(copy_to(monitor, at + 3 * PAGE, source, 1), EEXIST);
	PROMISE("zeroes", zero_pages(monitor, at + 4 * PAGE, 1, 0) == 0 && at[4 * PAGE] == 0 && server.faults == 2);
	NEED(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, PAGE, PAGE) == 0);
	server.generation = 5;
	PROMISE("a hole that is punched is missing", is_filled(at + PAGE, 1, 5) && server.faults == 3);
	NEED(madvise(at, 8 * PAGE, MADV_DONTNEED) == 0);
	PROMISE("what is only unmapped is not", is_filled(at + PAGE, 1, 5) && server.faults == 3);
	PROMISE("past the end is a bus error as ever", is_bus_error(at + 8 * PAGE) && server.faults == 3);
	FAILS(copy_to(monitor, at + 8 * PAGE, source, 1), EFAULT);
	NEED(monitor_range(monitor, private, 8, MISSING) == 0);
	server.base = private;
	PROMISE("a private mapping has the file's pages", is_filled(private + PAGE, 1, 5) && server.faults == 3);
	PROMISE("and holes are missing in it", is_filled(private + 6 * PAGE, 6, 5) && server.faults == 4);
	PROMISE("which its copies do not fill", plain[6 * PAGE] == 0);
	end_serving(&server);
	unsigned char *anonymous = shared_memory(4);
	NEED(monitor_range(monitor, anonymous, 4, MISSING) == 0);
	begin_serving(&server, monitor, anonymous, 8);
	int status;
	IN_CHILD(status, _exit(anonymous[2 * PAGE] != 0));
	PROMISE("shared anonymous memory: a child's touch fills the hole", status == 0 && server.faults == 0 && anonymous[2 * PAGE] == 0);
	PROMISE("and its own are served", is_filled(anonymous + PAGE, 1, 8) && server.faults == 1);
	end_serving(&server);
	close(monitor);
	close(file);
}

#define HUGE (2UL << 20)

static void large_pages_and_swap(void)
{
	int monitor = monitor_with(0);
	unsigned char *room = memory(3 * HUGE / PAGE);
	unsigned char *at = (unsigned char *)(((uintptr_t)room + HUGE - 1) & -HUGE);
	madvise(at, 2 * HUGE, MADV_HUGEPAGE);
	NEED(monitor_range(monitor, at, 2 * HUGE / PAGE, MISSING) == 0);
	struct server server;
	begin_serving(&server, monitor, at, 1);
	PROMISE("a store provides one page", (at[5 * PAGE] = 1) && server.faults == 1);
	PROMISE("and not those beside it", is_filled(at + 6 * PAGE, 6, 1) && server.faults == 2);
	PROMISE("no large page is made over what is missing", madvise(at, HUGE, 25 /* MADV_COLLAPSE */) == -1);
	for (size_t page = 8; page < 24; page++)
		(void)((volatile unsigned char *)at)[page * PAGE];
	int before = server.faults;
	PROMISE("each is provided once", before == 18);
	madvise(at + 8 * PAGE, 16 * PAGE, MADV_PAGEOUT);
	PROMISE("pages that were swapped out are not missing", all_filled(at, 0, 0) && is_filled(at + 9 * PAGE, 9, 1) && is_filled(at + 23 * PAGE, 23, 1) && server.faults == before);
	NEED(unmonitor_range(monitor, at, 2 * HUGE / PAGE) == 0);
	end_serving(&server);
	at[HUGE] = 1;
	PROMISE("afterwards all is as ever", at[HUGE + 100 * PAGE] == 0 && is_filled(at + 9 * PAGE, 9, 1));
	munmap(room, 3 * HUGE);
	close(monitor);
}

#define THREADS 12

static void many_threads(void)
{
	int monitor = monitor_with(0), good = 1, faults = 0;
	for (int round = 0; round < 20; round++) {
		unsigned char *at = memory(4);
		NEED(monitor_range(monitor, at, 4, MISSING) == 0);
		struct server servers[2];
		begin_serving(&servers[0], monitor, at, round);
		begin_serving(&servers[1], monitor, at, round);
		struct toucher touchers[THREADS];
		for (int i = 0; i < THREADS; i++)
			begin_touch(&touchers[i], at + i % 3 * PAGE + 40 + i, i % 2 ? STORES : LOADS);
		for (int i = 0; i < THREADS; i++)
			good &= end_touch(&touchers[i]);
		faults = end_serving(&servers[0]) + end_serving(&servers[1]);
		good &= faults >= 3 && faults <= THREADS;
		munmap(at, 4 * PAGE);
	}
	PROMISE("many threads, few pages, two who serve", good);
	close(monitor);
}

static void send_file(int to, int file)
{
	char control[CMSG_SPACE(sizeof file)] = { 0 }, byte = 0;
	struct iovec bytes = { &byte, 1 };
	struct msghdr message = { .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof file);
	memcpy(CMSG_DATA(head), &file, sizeof file);
	NEED(sendmsg(to, &message, 0) == 1);
}

static int receive_file(int from)
{
	char control[CMSG_SPACE(sizeof(int))], byte;
	struct iovec bytes = { &byte, 1 };
	struct msghdr message = { .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	int file;
	NEED(recvmsg(from, &message, 0) == 1 && CMSG_FIRSTHDR(&message));
	memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof file);
	return file;
}

/* One process serves the faults of another. */
static void another_process(void)
{
	int ends[2], status;
	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	unsigned char *at = memory(8);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		int own = monitor_with(0);
		NEED(monitor_range(own, at, 8, MISSING) == 0);
		send_file(ends[1], own);
		close(own);
		int good = is_filled(at, 0, 2) && is_filled(at + 3 * PAGE, 3, 2);
		char go_on;
		NEED(write(ends[1], "", 1) == 1 && read(ends[1], &go_on, 1) == 1);
		_exit(good ? at[5 * PAGE] : 100);
	}
	int monitor = receive_file(ends[0]);
	struct server server;
	begin_serving(&server, monitor, at, 2);
	char byte;
	PROMISE("another process' faults are served", read(ends[0], &byte, 1) == 1);
	NEED(COMES_TRUE(server.faults >= 2));
	end_serving(&server);
	NEED(write(ends[0], "", 1) == 1 && COMES_TRUE(is_asleep(child, child)));
	struct uffd_msg message;
	NEED(next_message(monitor, &message, LONG_MS));
	close(monitor);
	PROMISE("until the last descriptor is closed", waitpid(child, &status, 0) == child && status == 0);
	child = fork();
	NEED(child >= 0);
	if (child == 0) {
		int own = monitor_with(0);
		NEED(monitor_range(own, at, 8, MISSING) == 0);
		send_file(ends[1], own);
		_exit(0);
	}
	monitor = receive_file(ends[0]);
	NEED(waitpid(child, &status, 0) == child);
	FAILS(copy_to(monitor, at, source, 1), ESRCH);
	FAILS(zero_pages(monitor, at, 1, 0), ESRCH);
	FAILS(monitor_range(monitor, at, 1, MISSING), ENOMEM);
	FAILS(unmonitor_range(monitor, at, 1), ENOMEM);
	PROMISE("waking nobody", wake_range(monitor, at, 1) == 0);
	close(monitor);
}

int main(void)
{
	if (new_monitor(UFFD_USER_MODE_ONLY) < 0 && errno == ENOSYS) {
		printf("# this kernel has no userfaultfd\n1..0\n");
		return 0;
	}
	the_call();
	agreement();
	ranges();
	one_by_one();
	waking();
	interrupted();
	bus_errors();
	kernel_accesses();
	areas();
	shared();
	large_pages_and_swap();
	many_threads();
	another_process();
	return conclude();
}
