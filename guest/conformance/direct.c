/*
 * O_DIRECT on a disk: the device's bytes and the program's memory stay one, whatever happens to the pages meanwhile.
 *
 * Usage: direct DISK SLOW-DISK. DISK is written; SLOW-DISK answers so slowly (a few requests a second) that
 * the memory can be forked, protected and moved while a request is on its way.
 */
#include "promise.h"

#define SECTOR 512
#define PAGE 4096
#define TRIES 8

static const char *slow_path;

static void fill(unsigned char *bytes, size_t length, unsigned seed)
{
	for (size_t i = 0; i < length; i++)
		bytes[i] = (unsigned char)(seed * 37 + i * 11 + i / 251);
}

static int is_filled(const unsigned char *bytes, size_t length, unsigned seed)
{
	for (size_t i = 0; i < length; i++)
		if (bytes[i] != (unsigned char)(seed * 37 + i * 11 + i / 251))
			return 0;
	return 1;
}

static unsigned char *pages(size_t length)
{
	void *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(at != MAP_FAILED);
	return at;
}

static void alignment(int direct, unsigned char *buffer)
{
	FAILS_WITH("an odd address is EINVAL", pread(direct, buffer + 100, SECTOR, 0), EINVAL);
	FAILS_WITH("an odd length is EINVAL", pread(direct, buffer, SECTOR + 1, 0), EINVAL);
	FAILS_WITH("an odd offset is EINVAL", pread(direct, buffer, SECTOR, 100), EINVAL);
	FAILS_WITH("an odd write is EINVAL", pwrite(direct, buffer + 4, SECTOR, 0), EINVAL);
	struct iovec odd[2] = { { buffer, SECTOR }, { buffer + 1000, SECTOR } };
	FAILS_WITH("one odd buffer of several is EINVAL", preadv(direct, odd, 2, 0), EINVAL);
	PROMISE("any 512-byte border will do", pread(direct, buffer + SECTOR, SECTOR, 3 * SECTOR) == SECTOR);
	PROMISE("nothing is nothing", pread(direct, buffer, 0, 0) == 0);
}

static void bad_memory(int direct)
{
	unsigned char *none = pages(2 * PAGE);
	mprotect(none, PAGE, PROT_NONE);
	FAILS_WITH("memory without rights is EFAULT", pread(direct, none, SECTOR, 0), EFAULT);
	FAILS_WITH("it cannot be written from either", pwrite(direct, none, SECTOR, 0), EFAULT);
	mprotect(none, PAGE, PROT_READ);
	FAILS_WITH("memory that may only be read is EFAULT to a read", pread(direct, none, SECTOR, 0), EFAULT);
	PROMISE("and may be written from", pwrite(direct, none, SECTOR, 64 * PAGE) == SECTOR);
	munmap(none + PAGE, PAGE);
	mprotect(none, PAGE, PROT_READ | PROT_WRITE);
	ssize_t count = pread(direct, none, 2 * PAGE, 0);
	PROMISE("a read ends where the memory does", count == PAGE || (count == -1 && errno == EFAULT));
	munmap(none, PAGE);
	FAILS_WITH("unmapped memory is EFAULT", pread(direct, none, SECTOR, 0), EFAULT);
}

static void contents(int direct, int cached, unsigned char *buffer, off_t size)
{
	unsigned char *other = pages(16 * PAGE);
	fill(buffer, 16 * PAGE, 1);
	PROMISE("a direct write is complete", pwrite(direct, buffer, 16 * PAGE, 0) == 16 * PAGE);
	PROMISE("a cached read sees it", pread(cached, other, 16 * PAGE, 0) == 16 * PAGE && is_filled(other, 16 * PAGE, 1));
	fill(other, PAGE, 2);
	NEED(pwrite(cached, other, PAGE, 4 * PAGE) == PAGE);
	PROMISE("a direct read sees a cached write",
		pread(direct, buffer, PAGE, 4 * PAGE) == PAGE && is_filled(buffer, PAGE, 2));
	fill(buffer, SECTOR, 3);
	NEED(pwrite(direct, buffer, SECTOR, 4 * PAGE + SECTOR) == SECTOR);
	PROMISE("a direct write of a sector leaves the page's others",
		pread(cached, other, PAGE, 4 * PAGE) == PAGE && is_filled(other + SECTOR, SECTOR, 3) &&
			other[0] == (unsigned char)(2 * 37));
	unsigned char *mapped = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, cached, 8 * PAGE);
	NEED(mapped != MAP_FAILED);
	mapped[5] = 77;
	PROMISE("a direct read sees a store through a mapping", pread(direct, buffer, PAGE, 8 * PAGE) == PAGE && buffer[5] == 77);
	fill(buffer, PAGE, 4);
	NEED(pwrite(direct, buffer, PAGE, 8 * PAGE) == PAGE);
	PROMISE("a mapping sees a direct write", is_filled(mapped, PAGE, 4));
	munmap(mapped, PAGE);

	struct iovec parts[3] = { { other + SECTOR, SECTOR }, { other + 2 * PAGE, 3 * PAGE }, { other, SECTOR } };
	fill(buffer, 4 * PAGE, 5);
	NEED(pwrite(direct, buffer, 4 * PAGE, 16 * PAGE) == 4 * PAGE);
	PROMISE("several buffers are filled in their order",
		preadv(direct, parts, 3, 16 * PAGE) == 3 * PAGE + 2 * SECTOR && !memcmp(other + SECTOR, buffer, SECTOR) &&
			!memcmp(other + 2 * PAGE, buffer + SECTOR, 3 * PAGE) &&
			!memcmp(other, buffer + SECTOR + 3 * PAGE, SECTOR));
	size_t much = 1 << 20;
	unsigned char *big = pages(much), *back = pages(much);
	fill(big, much, 6);
	PROMISE("a megabyte goes and comes back", pwrite(direct, big, much, 64 * PAGE) == (ssize_t)much &&
							 pread(direct, back, much, 64 * PAGE) == (ssize_t)much &&
							 !memcmp(big, back, much));
	PROMISE("a read ends with the disk", pread(direct, buffer, 4 * PAGE, size - SECTOR) == SECTOR);
	PROMISE("behind the end there is nothing", pread(direct, buffer, PAGE, size) == 0);
	FAILS_WITH("no write fits behind the end", pwrite(direct, buffer, PAGE, size), ENOSPC);
	int flags = fcntl(cached, F_GETFL);
	PROMISE("fcntl turns it on", fcntl(cached, F_SETFL, flags | O_DIRECT) == 0);
	FAILS_WITH("and then borders count", pread(cached, buffer + 1, SECTOR, 0), EINVAL);
	PROMISE("and off", fcntl(cached, F_SETFL, flags) == 0 && pread(cached, buffer + 1, SECTOR, 0) == SECTOR);
}

/* A read of one sector from the slow disk into `to`, in a thread. */
struct flight {
	int fd;
	unsigned char *to;
	off_t offset;
	ssize_t result;
	volatile int landed;
	/* It was still on its way when the program stored to the page. */
	int in_time;
};

static struct flight *current;

/* The program's own store beside the sector that is on its way. */
static void store(unsigned char *page)
{
	current->in_time = !__atomic_load_n(&current->landed, __ATOMIC_SEQ_CST);
	page[0] = 0x11;
}

static void *fly(void *argument)
{
	struct flight *flight = argument;
	flight->result = pread(flight->fd, flight->to, SECTOR, flight->offset);
	__atomic_store_n(&flight->landed, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

/*
 * Has a sector read into the middle of a page while `meanwhile` does something to the page, and says whether the
 * program sees the sector and its own store beside it. Tries again where the disk was faster than us.
 */
static int stays_one(int (*meanwhile)(unsigned char *page))
{
	int fd = open(slow_path, O_RDONLY | O_DIRECT);
	NEED(fd >= 0);
	int good = 0;
	for (int tries = 0; tries < TRIES && !good; tries++) {
		unsigned char *page = pages(PAGE);
		memset(page, 0xee, PAGE);
		/* The first request of a slow disk may be quick: it uses up what the disk has saved. */
		NEED(pread(fd, page + 2048, SECTOR, 0) == SECTOR);
		struct flight flight = { fd, page + SECTOR, SECTOR * (tries + 1), 0, 0, 0 };
		current = &flight;
		pthread_t thread;
		NEED(pthread_create(&thread, NULL, fly, &flight) == 0);
		sleep_ms(60);
		int done = meanwhile(page);
		NEED(pthread_join(thread, NULL) == 0);
		int kept = done && flight.result == SECTOR && page[SECTOR] == (unsigned char)(tries + 1) &&
		       page[2 * SECTOR - 1] == (unsigned char)(tries + 1) && page[0] == 0x11;
		munmap(page, PAGE);
		if (!kept)
			break;
		good = flight.in_time;
	}
	close(fd);
	return good;
}

static int protect(unsigned char *page)
{
	int done = mprotect(page, PAGE, PROT_READ) == 0 && mprotect(page, PAGE, PROT_READ | PROT_WRITE) == 0;
	store(page);
	return done;
}

static int clear_refs(unsigned char *page)
{
	int fd = open("/proc/self/clear_refs", O_WRONLY);
	int done = fd >= 0 && write(fd, "4", 1) == 1;
	close(fd);
	store(page);
	return done;
}

static int page_out(unsigned char *page)
{
	int done = madvise(page, PAGE, MADV_PAGEOUT) == 0;
	store(page);
	return done;
}

static int fork_and_outlive(unsigned char *page)
{
	int status = -1;
	IN_CHILD(status, page[1] = 1);
	store(page);
	return status == 0;
}

static int fork_and_write_first(unsigned char *page)
{
	int gate[2], status = -1;
	NEED(pipe(gate) == 0);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		char c;
		close(gate[1]);
		(void)!read(gate[0], &c, 1);
		_exit(0);
	}
	close(gate[0]);
	store(page);
	close(gate[1]);
	return waitpid(child, &status, 0) == child && status == 0;
}

/* The child must not see what the device writes for its parent. */
static int fork_in_secret(unsigned char *page)
{
	int status = -1;
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		sleep_ms(700);
		_exit(page[SECTOR] == 0xee ? 0 : 1);
	}
	store(page);
	return waitpid(child, &status, 0) == child && status == 0;
}

static int fork_without(unsigned char *page)
{
	int status = -1;
	int done = madvise(page, PAGE, MADV_DONTFORK) == 0;
	IN_CHILD(status, _exit(0));
	store(page);
	return done && status == 0;
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: direct DISK SLOW-DISK\n");
		return 2;
	}
	int direct = open(argv[1], O_RDWR | O_DIRECT), cached = open(argv[1], O_RDWR);
	NEED(direct >= 0 && cached >= 0);
	slow_path = argv[2];
	unsigned char *buffer = pages(16 * PAGE);
	off_t size = lseek(cached, 0, SEEK_END);
	alignment(direct, buffer);
	bad_memory(direct);
	contents(direct, cached, buffer, size);
	PROMISE("a read in flight survives mprotect", stays_one(protect));
	PROMISE("a read in flight survives clear_refs", stays_one(clear_refs));
	PROMISE("a read in flight survives MADV_PAGEOUT", stays_one(page_out));
	PROMISE("a read in flight survives a fork whose child is gone", stays_one(fork_and_outlive));
	PROMISE("a read in flight survives a fork whose child lives", stays_one(fork_and_write_first));
	PROMISE("a child does not see what the device writes for its parent", stays_one(fork_in_secret));
	PROMISE("a read in flight survives MADV_DONTFORK and fork", stays_one(fork_without));
	return conclude();
}
