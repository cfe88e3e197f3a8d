/*
 * Pins: a frame that a device works on stays the program's page through fork, mprotect, clear_refs
 * and reclaim. A long-term pin for reading shows the program's later stores. No other process sees
 * either. Rows have the numbers of the comparison of kernels, as in cow.c; each is tried with 4 KiB
 * and with a piece of 2 MiB.
 *
 * The device is an io_uring that reads into a registered buffer. Pins for reading come from
 * /sys/kernel/debug/gup_test (Linux: CONFIG_GUP_TEST); where there is none, those rows are left
 * out. The argument "mark" leaves out rows about soft-dirty.
 */
#include "promise.h"
#include "pages.h"
#include "ring.h"

struct measurement {
	uint64_t get_us, put_us, at, size;
	uint32_t pages_per_call, gup_flags, test_flags, which[8];
};
struct session {
	uint64_t at, size;
	uint32_t flags;
};
#define PIN_FAST _IOWR('g', 2, struct measurement)
#define START _IOW('g', 7, struct session)
#define STOP _IO('g', 8)
#define READ _IOW('g', 9, uint64_t)
enum { FOR_WRITING = 1, FAST = 2 };

static struct ring ring;
static int source; /* a file full of 'd' */
static int gup;

static int fix(void *at, size_t length)
{
	struct iovec one = { at, length };
	return (int)syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &one, 1);
}

static void unfix(void)
{
	NEED(syscall(SYS_io_uring_register, ring.fd, IORING_UNREGISTER_BUFFERS, NULL, 0) == 0);
}

/* The device stores a 'd' at `at`, which is in the registered buffer. */
static int device_stores(volatile char *at)
{
	struct io_uring_sqe *entry = add(&ring, IORING_OP_READ_FIXED, source, (const void *)at, 1, 0, 1);
	entry->buf_index = 0;
	return enter(ring.fd, 1, 0, 0, NULL, 0) == 1 && take(&ring, 1) == 1;
}

/* The program's store and the device's are both in one frame, and that is the pinned frame. */
static void stays_one(const char *row, const char *text, volatile char *at, uint64_t pinned)
{
	at[1] = 'p';
	promise(row, text, device_stores(at + 2) && at[1] == 'p' && at[2] == 'd' && kept(at, pinned));
	unfix();
	unmake();
}

static void fixed_buffers(int marks)
{
	char *at;
	uint64_t pinned;
	if (marks) {
		at = make('a');
		NEED(fix(at, PAGE) == 0);
		pinned = frame(at);
		NEED(clear_refs('4'));
		promise("50", "what a device may write counts as written", is_marked(at));
		stays_one("50", "a fixed buffer survives clear_refs", at, pinned);
	}

	at = make('a');
	NEED(fix(at, PAGE) == 0);
	pinned = frame(at);
	mprotect(at, PAGE, PROT_READ);
	mprotect(at, PAGE, PROT_READ | PROT_WRITE);
	stays_one("51", "a fixed buffer survives mprotect", at, pinned);

	at = make('a');
	NEED(fix(at, PAGE) == 0);
	pinned = frame(at);
	madvise(block, size == HUGE ? LARGE : PAGE, MADV_PAGEOUT);
	promise("52", "a fixed buffer is not paged out", frame(at) == pinned);
	stays_one("52", "and stays what the device has", at, pinned);

	at = make('a');
	NEED(fix(at, PAGE) == 0);
	pinned = frame(at);
	struct child child = fork_child(at + 2);
	NEED(device_stores(at + 2));
	promise("53", "a child does not see what the device stores for its parent", tell(child, 'r') == 'a');
	promise("53", "nor does its store reach the device's page", tell(child, 'w') == 'c' && at[2] == 'd');
	stays_one("53", "a fixed buffer survives a fork", at, pinned);
	end(child);

	/* A fork of a fork, before any store. */
	at = make('a');
	NEED(fix(at, PAGE) == 0);
	pinned = frame(at);
	int status;
	IN_CHILD(status, {
		int inner;
		pid_t last = fork();
		if (last == 0) {
			at[2] = 'z';
			_exit(at[2] != 'z' || at[1] != 'a');
		}
		waitpid(last, &inner, 0);
		_exit(inner != 0 || at[2] != 'a');
	});
	promise("53", "a chain of forks leaves each its own", status == 0 && at[2] == 'a');
	stays_one("53", "and the buffer the device's", at, pinned);
}

static int start(char *at, size_t length, uint32_t flags)
{
	struct session session = { (uintptr_t)at, length, flags };
	return ioctl(gup, START, &session);
}

/* Returns the first byte of the pinned frame. */
static char held(void)
{
	static char bytes[PAGE];
	uint64_t to = (uintptr_t)bytes;
	bytes[0] = 0;
	NEED(ioctl(gup, READ, &to) == 0);
	return bytes[0];
}

/* A long-term pin for reading: the pinned frame shows the program's later store. */
static void shows(const char *row, const char *text, char *at, uint32_t way)
{
	int pinned = start(at, PAGE, way) == 0;
	mprotect(at, PAGE, PROT_READ | PROT_WRITE);
	*at = 'p';
	promise(row, text, pinned && held() == 'p');
	ioctl(gup, STOP);
}

static void long_readers(uint32_t way)
{
	char *at = make('a');
	struct child child = fork_child(at);
	shows("G1", way == FAST ? "a shared page, fast" : "a shared page", at, way);
	promise("G1", "and its child has what there was", tell(child, 'r') == 'a');
	end(child);
	unmake();

	at = make('a');
	uint64_t before = frame(at);
	end(fork_child(at));
	shows("G2", "a page that was shared before", at, way);
	promise("G2", "keeps its frame", kept(at, before));
	mprotect(at, PAGE, PROT_READ);
	before = frame(at);
	shows("G2", "a page of its own that may be read only", at, way);
	promise("G2", "keeps its frame too", kept(at, before));
	unmake();

	at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(at != MAP_FAILED && *(volatile char *)at == 0);
	shows("G3", "an untouched page", at, way);
	munmap(at, PAGE);
	at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, source, 0);
	NEED(at != MAP_FAILED && *(volatile char *)at == 'd');
	shows("G3", "a private file page", at, way);
	char byte;
	promise("G3", "and the file stays what it was", pread(source, &byte, 1, 0) == 1 && byte == 'd');
	munmap(at, PAGE);
}

static void bad_sessions(void)
{
	char *at = make('a');
	uint64_t to = (uintptr_t)at;
	FAILS_WITH("a session at an odd address is EINVAL", start(at + 8, PAGE, 0), EINVAL);
	FAILS_WITH("one of an odd size", start(at, PAGE / 2, 0), EINVAL);
	FAILS_WITH("one of nothing", start(at, 0, 0), EINVAL);
	FAILS_WITH("one with an unknown flag", start(at, PAGE, 4), EINVAL);
	FAILS_WITH("what is not there is not read", ioctl(gup, READ, &to), EINVAL);
	FAILS_WITH("an unknown request is EINVAL", ioctl(gup, _IO('g', 10)), EINVAL);
	mprotect(at, PAGE, PROT_READ);
	FAILS_WITH("a pin to write what may be read only is EFAULT", start(at, PAGE, FOR_WRITING), EFAULT);
	mprotect(at, PAGE, PROT_NONE);
	FAILS_WITH("memory without rights is EFAULT", start(at, PAGE, 0), EFAULT);
	FAILS_WITH("without a lock too", start(at, PAGE, FAST), EFAULT);
	unmake();
	FAILS_WITH("unmapped memory is EFAULT", start((char *)0x10000000, PAGE, 0), EFAULT);
	FAILS_WITH("the kernel's is EFAULT", start((char *)0xffff800000000000, PAGE, FAST), EFAULT);

	at = make('a');
	NEED(start(at, PAGE, 0) == 0);
	FAILS_WITH("there is one session at a time", start(at, PAGE, 0), EINVAL);
	close(gup);
	gup = open("/sys/kernel/debug/gup_test", O_RDWR);
	PROMISE("closing ends it", start(at, PAGE, 0) == 0 && ioctl(gup, STOP) == 0);
	/* The second page is not mapped: only the first is pinned. */
	char *two = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(two != MAP_FAILED && munmap(two + PAGE, PAGE) == 0);
	struct measurement wish = { .at = (uintptr_t)two, .size = 2 * PAGE, .pages_per_call = 2, .gup_flags = FOR_WRITING };
	PROMISE("a measurement tells how far it came", ioctl(gup, PIN_FAST, &wish) == 0 && wish.size == PAGE);
	FAILS_WITH("a session is all or nothing", start(two, 2 * PAGE, 0), EFAULT);
	munmap(two, PAGE);
	unmake();
	int status;
	IN_CHILD(status, {
		int done = setuid(65534) == 0 && open("/sys/kernel/debug/gup_test", O_RDWR) == -1 && errno == EACCES;
		_exit(!done);
	});
	PROMISE("only root opens it", status == 0);
}

static long vmstat(const char *name)
{
	return figure_or("/proc/vmstat", name, -1);
}

static void counted(void)
{
	size_t length = 16 * PAGE;
	char *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(at != MAP_FAILED);
	long acquired = vmstat("nr_foll_pin_acquired"), released = vmstat("nr_foll_pin_released");
	NEED(fix(at, length) == 0);
	PROMISE("pins are counted", vmstat("nr_foll_pin_acquired") - acquired == 16 && vmstat("nr_foll_pin_released") == released);
	unfix();
	PROMISE("and so are their ends", vmstat("nr_foll_pin_released") - released == 16);

	/* The limit is per user, and not per ring or process. */
	int status;
	IN_CHILD(status, {
		struct rlimit limit = { 24 * PAGE, 24 * PAGE };
		struct ring first = ring;
		_exit(setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || setuid(65533) != 0 ? 1
			: (open_ring(&ring), fix(at, length) != 0) ? 2
			: (first = ring, open_ring(&ring), fix(at, length) != -1 || errno != ENOMEM) ? 3
			: fix(at, 8 * PAGE) != 0 ? 4
			: (unfix(), ring = first, unfix(), fix(at, length) != 0) ? 5 : 0);
	});
	PROMISE("registered buffers of a user share one RLIMIT_MEMLOCK", status == 0);
	munmap(at, length);
}

static volatile int racing;
static char *raced;

static void *discard(void *unused)
{
	(void)unused;
	while (racing)
		madvise(raced, PAGE, MADV_DONTNEED);
	return NULL;
}

/* Forced writes to a private page that is thrown away all the time must never reach the file
 * (CVE-2016-5195). */
static void forced_race(void)
{
	int memory = open("/proc/self/mem", O_RDWR);
	NEED(memory >= 0);
	raced = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, source, 0);
	NEED(raced != MAP_FAILED);
	pthread_t thread;
	racing = 1;
	NEED(pthread_create(&thread, NULL, discard, NULL) == 0);
	int done = 0, seen = 0;
	char byte = 0;
	for (int64_t until = now_ms() + 300; now_ms() < until || done < 100;) {
		done += pwrite(memory, "x", 1, (uintptr_t)raced) == 1;
		NEED(pread(source, &byte, 1, 0) == 1);
		seen += byte != 'd';
	}
	racing = 0;
	pthread_join(thread, NULL);
	PROMISE("forced writes that race with MADV_DONTNEED stay private", seen == 0);
	munmap(raced, PAGE);
	close(memory);
}

static void *remap(void *unused)
{
	char next = 'A';
	(void)unused;
	while (racing) {
		char *at = mmap(raced, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		if (at == raced)
			memset(at, next, PAGE);
		/* The page stays mapped for a while. */
		for (volatile int spin = 0; spin < 30000; spin++)
			;
		next = next == 'Z' ? 'A' : next + 1;
		/* Unmapping the area frees page tables, too. */
		munmap(raced, PAGE);
	}
	return NULL;
}

/* A page is lent while it is mapped and unmapped. It shows zeroes or its own bytes, and never
 * another page's. */
static void unmapped_race(void)
{
	raced = mmap(NULL, LARGE * 2, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	NEED(raced != MAP_FAILED && munmap(raced, LARGE * 2) == 0);
	raced = (char *)(((uintptr_t)raced + LARGE - 1) & ~(LARGE - 1));
	pthread_t thread;
	racing = 1;
	NEED(pthread_create(&thread, NULL, remap, NULL) == 0);
	int ends[2], strange = 0, lendings = 0;
	static char other[64 * PAGE];
	NEED(pipe(ends) == 0);
	for (int64_t until = now_ms() + 300; now_ms() < until || lendings < 10;) {
		struct iovec run = { raced, PAGE };
		char bytes[PAGE];
		if (vmsplice(ends[1], &run, 1, 0) != PAGE)
			continue;
		/* Freed frames now get another owner. */
		memset(other, 'o', sizeof other);
		madvise(other + PAGE, sizeof other - 2 * PAGE, MADV_DONTNEED);
		NEED(read(ends[0], bytes, PAGE) == PAGE);
		lendings++;
		for (int i = 0; i < PAGE; i++)
			strange += bytes[i] != 0 && (bytes[i] < 'A' || bytes[i] > 'Z');
	}
	racing = 0;
	pthread_join(thread, NULL);
	PROMISE("what is lent while it is unmapped is never another's", strange == 0);
	close(ends[0]);
	close(ends[1]);
}

static void other_process(void)
{
	size_t length = 40 * PAGE;
	char *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *copy = malloc(length);
	NEED(at != MAP_FAILED && copy);
	for (size_t i = 0; i < length; i++)
		at[i] = (char)(i / PAGE * 3 + i);
	struct child child = fork_child(at);
	munmap(at + 37 * PAGE, PAGE);
	struct iovec mine = { copy, length }, theirs = { at, length };
	PROMISE("process_vm_readv crosses any number of pages", process_vm_readv(child.pid, &mine, 1, &theirs, 1, 0) == (ssize_t)length
		&& copy[38 * PAGE + 5] == (char)(38 * 3 + 38 * PAGE + 5));
	memset(copy, 'w', length);
	theirs.iov_base = at + 11;
	theirs.iov_len = mine.iov_len = length - PAGE;
	PROMISE("process_vm_writev too", process_vm_writev(child.pid, &mine, 1, &theirs, 1, 0) == (ssize_t)(length - PAGE)
		&& tell(child, 'r') == at[0] && at[11] == (char)11);
	end(child);
	theirs.iov_base = at;
	theirs.iov_len = mine.iov_len = length;
	PROMISE("they stop where memory does", process_vm_readv(getpid(), &mine, 1, &theirs, 1, 0) == 37 * PAGE);
	FAILS_WITH("and fail where there is none", process_vm_readv(getpid(), &mine, 1, &(struct iovec){ at + 37 * PAGE, 1 }, 1, 0), EFAULT);
	munmap(at, length);
	free(copy);
}

int main(int count, char **arguments)
{
	int marks = count < 2 || strcmp(arguments[1], "mark") != 0;
	static char bytes[PAGE];
	memset(bytes, 'd', PAGE);
	pagemap = open("/proc/self/pagemap", O_RDONLY);
	source = memfd_create("pins", 0);
	NEED(pagemap >= 0 && source >= 0 && write(source, bytes, PAGE) == PAGE);
	open_ring(&ring);
	gup = open("/sys/kernel/debug/gup_test", O_RDWR);
	for (size = SMALL; size <= HUGE; size++) {
		fixed_buffers(marks);
		if (gup >= 0) {
			long_readers(0);
			long_readers(FAST);
			bad_sessions();
		}
	}
	counted();
	forced_race();
	unmapped_race();
	other_process();
	return conclude();
}
