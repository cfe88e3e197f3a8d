/*
 * O_DIRECT on a disk: a transfer reaches the program's memory even if its pages are forked,
 * protected or moved meanwhile.
 *
 * Usage: direct DISK SLOW-DISK [mark]. DISK is written; SLOW-DISK answers so slowly (a few requests
 * a second) that the memory can be forked, protected and moved while a request is on its way. Those
 * rows have the numbers of the comparison of kernels, as in cow.c; each is tried with 4 KiB and
 * with a piece of 2 MiB. With "mark" rows about soft-dirty are left out.
 */
#include "promise.h"
#include "pages.h"

#define SECTOR 512
#define TRIES 20

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
	unsigned char *to;
	unsigned char sector;
	int fd;
	ssize_t result;
	pthread_t thread;
	volatile pid_t task;
	volatile int landed;
	/* Whether the sector had not arrived yet when the program had stored to the page. */
	int in_time;
};

static struct flight *current;

/* Stores beside the sector that is being read. Only the memory shows whether the sector had arrived
 * by then. */
static void store(unsigned char *page)
{
	page[0] = 0x11;
	const volatile unsigned char *sector = page + SECTOR;
	current->in_time = sector[0] != current->sector && sector[SECTOR - 1] != current->sector;
}

static void *fly(void *argument)
{
	struct flight *flight = argument;
	flight->task = syscall(SYS_gettid);
	flight->result = pread(flight->fd, flight->to, SECTOR, flight->sector * SECTOR);
	flight->landed = 1;
	return NULL;
}

/* Returns when the disk has the request, or has answered it already. */
static void take_off(struct flight *flight, int fd, unsigned char *to, unsigned char sector)
{
	*flight = (struct flight){ .to = to, .sector = sector, .fd = fd };
	NEED(pthread_create(&flight->thread, NULL, fly, flight) == 0);
	NEED(COMES_TRUE(flight->landed || (flight->task && is_asleep(getpid(), flight->task))));
}

static ssize_t land(struct flight *flight)
{
	NEED(pthread_join(flight->thread, NULL) == 0);
	return flight->result;
}

/* A child that looks at the sector after its arrival. */
static struct child watcher;
static int is_watched;

/*
 * Has a sector read into the middle of a page while `meanwhile` does something to the page, and
 * promises that the program sees the sector and its own store next to it, and that a child sees
 * neither. `meanwhile` returns the page's address afterwards. If the disk was too fast, the test
 * is repeated, with one more request that the disk answers first.
 */
static void stays_one(const char *row, const char *text, unsigned char *(*meanwhile)(unsigned char *page))
{
	int fd = open(slow_path, O_RDONLY | O_DIRECT);
	NEED(fd >= 0);
	int good = 0;
	for (int tries = 0; tries < TRIES && !good; tries++) {
		unsigned char *page = (unsigned char *)make((char)0xee);
		static unsigned char others[TRIES][SECTOR] __attribute__((aligned(SECTOR)));
		struct flight before[TRIES], flight;
		/* The first request of a slow disk may be quick: it uses up the rate that the
		 * idle disk has saved. */
		for (int i = 0; i <= tries; i++)
			take_off(&before[i], fd, others[i], 0);
		current = &flight;
		is_watched = 0;
		take_off(&flight, fd, page + SECTOR, tries + 1);
		unsigned char *now = meanwhile(page);
		for (int i = 0; i <= tries; i++)
			NEED(land(&before[i]) == SECTOR);
		int kept = land(&flight) == SECTOR && now && now[SECTOR] == flight.sector && now[2 * SECTOR - 1] == flight.sector &&
			   now[0] == 0x11;
		if (is_watched) {
			kept &= tell(watcher, 'r') == (char)0xee;
			end(watcher);
		}
		unmake();
		if (now && now != page)
			munmap(now, PAGE);
		if (!kept && flight.in_time)
			break;
		good = kept && flight.in_time;
	}
	close(fd);
	promise(row, text, good);
}

static unsigned char *protect(unsigned char *page)
{
	int done = mprotect(page, PAGE, PROT_READ) == 0 && mprotect(page, PAGE, PROT_READ | PROT_WRITE) == 0;
	store(page);
	return done ? page : NULL;
}

static unsigned char *clear(unsigned char *page)
{
	int done = clear_refs('4');
	store(page);
	return done ? page : NULL;
}

static unsigned char *page_out(unsigned char *page)
{
	int done = madvise(page, PAGE, MADV_PAGEOUT) == 0;
	store(page);
	return done ? page : NULL;
}

static unsigned char *page_out_and_look(unsigned char *page)
{
	int done = madvise(page, PAGE, MADV_PAGEOUT) == 0 && ((volatile unsigned char *)page)[PAGE - 1] == 0xee;
	store(page);
	return done ? page : NULL;
}

/* The page may lose its bytes, but it stays the page that the device writes to. */
static unsigned char *give_up(unsigned char *page)
{
	int done = madvise(page, PAGE, MADV_FREE) == 0 && madvise(page, PAGE, MADV_PAGEOUT) == 0;
	store(page);
	return done ? page : NULL;
}

static unsigned char *fork_and_outlive(unsigned char *page)
{
	int status = -1;
	IN_CHILD(status, page[1] = 1);
	store(page);
	return status == 0 ? page : NULL;
}

static unsigned char *fork_and_store(unsigned char *page)
{
	watcher = fork_child((char *)page);
	end(watcher);
	watcher = fork_child((char *)page);
	store(page);
	end(watcher);
	return page;
}

static unsigned char *fork_in_secret(unsigned char *page)
{
	watcher = fork_child((char *)page + SECTOR);
	is_watched = 1;
	store(page);
	return page;
}

static unsigned char *fork_without(unsigned char *page)
{
	int status = -1;
	int done = madvise(page, PAGE, MADV_DONTFORK) == 0;
	IN_CHILD(status, _exit(0));
	store(page);
	return done && status == 0 ? page : NULL;
}

static unsigned char *move(unsigned char *page)
{
	void *place = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(place != MAP_FAILED);
	unsigned char *now = mremap(page, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
	NEED(now == place);
	store(now);
	return now;
}

static void in_flight(int marks)
{
	int large = size == HUGE;
	if (marks)
		stays_one(large ? "40" : "30", "a read in flight survives clear_refs", clear);
	stays_one("31", "a read in flight survives mprotect", protect);
	stays_one("32", "a read in flight survives MADV_PAGEOUT and a store", page_out);
	stays_one("33", "a read in flight survives MADV_PAGEOUT, a load and a store", page_out_and_look);
	stays_one(large ? "41" : "34", "a read in flight survives a fork whose child lives", fork_and_store);
	stays_one("35", "a read in flight survives a fork whose child is gone", fork_and_outlive);
	stays_one("36", "a child does not see what the device writes for its parent", fork_in_secret);
	stays_one("38", "a read in flight survives MADV_DONTFORK and fork", fork_without);
	stays_one("39", "a read in flight survives MADV_FREE and reclaim", give_up);
	stays_one("43", "a read in flight survives mremap", move);
}

static volatile int forking;

static void *fork_all_the_while(void *unused)
{
	(void)unused;
	while (__atomic_load_n(&forking, __ATOMIC_SEQ_CST)) {
		pid_t child = fork();
		if (child == 0) {
			sleep_ms(1);
			_exit(0);
		}
		NEED(child > 0 && waitpid(child, NULL, 0) == child);
	}
	return NULL;
}

enum { READERS = 3, PART = PAGE / 2 };

struct reader {
	int fd, wrong, reads;
	unsigned char *to, *expected;
};

/* Reads into parts of pages, while other requests read into their other parts. */
static void *read_parts(void *argument)
{
	struct reader *reader = argument;
	for (int64_t until = now_ms() + 300; now_ms() < until || reader->reads == 0;) {
		for (int part = 0; part < 8; part++) {
			unsigned char *to = reader->to + part * READERS * PART;
			memset(to, 0, PART);
			ssize_t came = pread(reader->fd, to, PART, part * PAGE);
			reader->wrong += came != PART || memcmp(to, reader->expected + part * PAGE, PART) != 0;
			reader->reads++;
		}
	}
	return NULL;
}

/* A known hard case: threads read with O_DIRECT while the process forks (LTP's
 * dma_thread_diotest). */
static void threads_and_forks(int direct, unsigned char *buffer)
{
	fill(buffer, 8 * PAGE, 9);
	NEED(pwrite(direct, buffer, 8 * PAGE, 0) == 8 * PAGE);
	unsigned char *shared = pages(8 * READERS * PART);
	struct reader readers[READERS];
	pthread_t threads[READERS], forker;
	__atomic_store_n(&forking, 1, __ATOMIC_SEQ_CST);
	NEED(pthread_create(&forker, NULL, fork_all_the_while, NULL) == 0);
	for (int i = 0; i < READERS; i++) {
		readers[i] = (struct reader){ direct, 0, 0, shared + i * PART, buffer };
		NEED(pthread_create(&threads[i], NULL, read_parts, &readers[i]) == 0);
	}
	int wrong = 0;
	for (int i = 0; i < READERS; i++) {
		NEED(pthread_join(threads[i], NULL) == 0);
		wrong += readers[i].wrong;
	}
	__atomic_store_n(&forking, 0, __ATOMIC_SEQ_CST);
	NEED(pthread_join(forker, NULL) == 0);
	PROMISE("threads that read into parts of one page lose nothing to forks", wrong == 0);
	munmap(shared, 8 * READERS * PART);
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: direct DISK SLOW-DISK [mark]\n");
		return 2;
	}
	int marks = argc == 3;
	int direct = open(argv[1], O_RDWR | O_DIRECT), cached = open(argv[1], O_RDWR);
	NEED(direct >= 0 && cached >= 0);
	slow_path = argv[2];
	unsigned char *buffer = pages(16 * PAGE);
	off_t end = lseek(cached, 0, SEEK_END);
	alignment(direct, buffer);
	bad_memory(direct);
	contents(direct, cached, buffer, end);
	threads_and_forks(direct, buffer);
	for (size = SMALL; size <= HUGE; size++)
		in_flight(marks);
	return conclude();
}
