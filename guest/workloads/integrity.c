/*
 * Integrity of every byte under load: threads store, fork, page out, clear marks, split, collapse,
 * move and unmap pages while a disk writes into the same pages and reads from them. Each byte has
 * one writer, which remembers its last value and checks it before it writes again.
 *
 * Usage: integrity DISK [SECONDS [MIB]]. DISK (16 MiB or more) is overwritten. Prints how often
 * each operation was done and refused, and where bytes were lost. The status is 1 if bytes were
 * lost, or if some operation never succeeded.
 *
 *   freehold run --cpus 4 -m 256M --numa 2 --disk scratch.img -- integrity /dev/vda 1200
 */
#include "../conformance/promise.h"

#include "../conformance/ring.h"

enum { PAGE = 4096, SECTOR = 512, WORDS = SECTOR / 8, SECTORS = PAGE / SECTOR };
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { LARGE = 2 << 20, DISK_SECTORS = 16384, SCRATCH = DISK_SECTORS, DEPTH = 6, NODES = 2 };

/* Sectors of every page, named by their writer. */
enum { STORE_A, READ_DIRECT, STORE_B, WRITE_DIRECT, READ_RING, READ_FIXED, LENT, UNTOUCHED };

/* Operations, in the order of the table at the end. */
enum what {
	STORES,
	DIRECT_READS,
	DIRECT_WRITES,
	RING_READS,
	FIXED_READS,
	LENDINGS,
	FORKS,
	PAGE_OUTS,
	CLEARINGS,
	SPLITS,
	COLLAPSES,
	MOVES,
	REMAPPINGS,
	ALL,
};
static const char *const names[ALL] = {
	"stores", "direct reads", "direct writes", "ring reads", "fixed reads", "lendings",   "forks",
	"page-outs", "clearings", "splits",	   "collapses",	 "moves",	"remappings",
};

static struct {
	uint64_t done, refused, lost;
	int error;
} counts[ALL];
static unsigned char *region;
static size_t pages, fixed_pages;
static const char *disk;
static volatile int ended;

static uint32_t mix(uint64_t a, uint64_t b)
{
	uint64_t x = a * 0x9e3779b97f4a7c15 ^ (b + 0x632be59bd9b4e019);
	x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9;
	return (uint32_t)(x ^ x >> 32);
}

struct dice {
	uint64_t state;
};

static uint32_t roll(struct dice *dice, uint32_t below)
{
	dice->state++;
	return mix(dice->state, dice->state >> 3) % below;
}

/* Returns word `index` of generation `turn` of the object with number `id`; the word contains
 * its generation. */
static uint64_t word(uint64_t id, uint32_t turn, unsigned index)
{
	return (uint64_t)turn << 32 | mix(id << 20 | index, turn);
}

static void write_words(uint64_t *to, uint64_t id, uint32_t turn)
{
	for (unsigned i = 0; i < WORDS; i++)
		((volatile uint64_t *)to)[i] = word(id, turn, i);
}

static void count(enum what what, int worked)
{
	__atomic_fetch_add(worked ? &counts[what].done : &counts[what].refused, 1, __ATOMIC_RELAXED);
	if (!worked)
		counts[what].error = errno;
}

static void lose(enum what what, uint64_t id, unsigned index, uint64_t found, uint64_t expected)
{
	if (__atomic_fetch_add(&counts[what].lost, 1, __ATOMIC_RELAXED) < 4) {
		printf("lost: %s, id %#lx, word %u: %#lx and not %#lx\n", names[what], id, index, found, expected);
		fflush(stdout);
	}
}

/* Turn 0 is fresh memory. */
static void check_words(enum what what, const uint64_t *at, uint64_t id, uint32_t turn)
{
	for (unsigned i = 0; i < WORDS; i++) {
		uint64_t found = ((const volatile uint64_t *)at)[i], expected = turn ? word(id, turn, i) : 0;
		if (found != expected) {
			lose(what, id, i, found, expected);
			return;
		}
	}
}

static uint64_t *sector_of(size_t page, int sector)
{
	return (uint64_t *)(region + page * PAGE + sector * SECTOR);
}

static uint64_t id_of(size_t page, int sector)
{
	return 1 << 30 | page * SECTORS | sector;
}

/* Returns the id of the words in sector `number` of the disk. */
static uint64_t disk_id(uint32_t number)
{
	return 1u << 31 | number;
}

static int open_disk(void)
{
	int fd = open(disk, O_RDWR | O_DIRECT);
	NEED(fd >= 0);
	return fd;
}

/* Returns storage for the turns of one writer's sectors, outside the memory under test. */
static uint32_t *turns_of_all(void)
{
	uint32_t *turns = calloc(pages, sizeof *turns);
	NEED(turns);
	return turns;
}

static void *store(void *argument)
{
	int sector = (int)(intptr_t)argument;
	struct dice dice = { sector * 1000003u };
	uint32_t *turns = turns_of_all();
	while (!ended) {
		size_t page = roll(&dice, pages);
		check_words(STORES, sector_of(page, sector), id_of(page, sector), turns[page]);
		write_words(sector_of(page, sector), id_of(page, sector), ++turns[page]);
		count(STORES, 1);
	}
	for (size_t page = 0; page < pages; page++)
		check_words(STORES, sector_of(page, sector), id_of(page, sector), turns[page]);
	return NULL;
}

static void *read_direct(void *argument)
{
	(void)argument;
	int fd = open_disk();
	struct dice dice = { 7000003 };
	uint32_t *number = turns_of_all();
	while (!ended) {
		size_t page = roll(&dice, pages);
		uint64_t *at = sector_of(page, READ_DIRECT);
		if (number[page])
			check_words(DIRECT_READS, at, disk_id(number[page]), 1);
		number[page] = 1 + roll(&dice, DISK_SECTORS - 1);
		int worked = pread(fd, at, SECTOR, (off_t)number[page] * SECTOR) == SECTOR;
		count(DIRECT_READS, worked);
		if (worked)
			check_words(DIRECT_READS, at, disk_id(number[page]), 1);
		else
			number[page] = 0;
	}
	return NULL;
}

static void *write_direct(void *argument)
{
	(void)argument;
	int fd = open_disk();
	struct dice dice = { 8000009 };
	uint32_t turn = 0;
	uint64_t *back = aligned_alloc(PAGE, PAGE);
	NEED(back);
	while (!ended) {
		size_t page = roll(&dice, pages);
		uint64_t *at = sector_of(page, WRITE_DIRECT), id = id_of(page, WRITE_DIRECT);
		off_t where = (off_t)(SCRATCH + roll(&dice, DISK_SECTORS)) * SECTOR;
		write_words(at, id, ++turn);
		count(DIRECT_WRITES, pwrite(fd, at, SECTOR, where) == SECTOR && pread(fd, back, SECTOR, where) == SECTOR);
		check_words(DIRECT_WRITES, back, id, turn);
		check_words(DIRECT_WRITES, at, id, turn);
	}
	return NULL;
}

/* Makes several reads at a time: those of `READ_RING` into any page, those of `READ_FIXED` into
 * registered pages. */
static void *read_ring(void *argument)
{
	(void)argument;
	int fd = open_disk();
	struct dice dice = { 9000011 };
	struct ring ring;
	open_ring(&ring);
	struct iovec fixed = { region, fixed_pages * PAGE };
	NEED(syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &fixed, 1) == 0);
	struct {
		size_t page;
		uint32_t number;
	} flights[DEPTH];
	while (!ended) {
		int sector = roll(&dice, 2) ? READ_RING : READ_FIXED;
		enum what what = sector == READ_RING ? RING_READS : FIXED_READS;
		size_t room = (sector == READ_RING ? pages : fixed_pages) / DEPTH;
		for (unsigned i = 0; i < DEPTH; i++) {
			/* No page is used by two reads at a time. */
			flights[i].page = i * room + roll(&dice, room);
			flights[i].number = 1 + roll(&dice, DISK_SECTORS - 1);
			add(&ring, sector == READ_RING ? IORING_OP_READ : IORING_OP_READ_FIXED, fd,
			    sector_of(flights[i].page, sector), SECTOR, (uint64_t)flights[i].number * SECTOR, i);
		}
		NEED(enter(ring.fd, DEPTH, DEPTH, IORING_ENTER_GETEVENTS, NULL, 0) == DEPTH);
		/* The end of a child may interrupt the wait. */
		while (arrived(&ring) < DEPTH)
			NEED(enter(ring.fd, 0, DEPTH, IORING_ENTER_GETEVENTS, NULL, 0) >= 0 || errno == EINTR);
		for (unsigned i = 0; i < DEPTH; i++) {
			NEED(arrived(&ring) > 0);
			struct io_uring_cqe *cqe = &ring.cqes[(*ring.cq_head)++ & ring.cq_mask];
			size_t page = flights[cqe->user_data].page;
			errno = -cqe->res;
			count(what, cqe->res == SECTOR);
			if (cqe->res == SECTOR)
				check_words(what, sector_of(page, sector), disk_id(flights[cqe->user_data].number), 1);
		}
	}
	return NULL;
}

/* Lends sectors to a pipe. They stay the program's memory: the reader sees later stores to them. */
static void *lend(void *argument)
{
	(void)argument;
	struct dice dice = { 11000027 };
	uint32_t turn = 0;
	uint64_t back[WORDS];
	int ends[2];
	NEED(pipe(ends) == 0);
	while (!ended) {
		size_t page = roll(&dice, pages);
		uint64_t *at = sector_of(page, LENT), id = id_of(page, LENT);
		struct iovec one = { at, SECTOR };
		write_words(at, id, ++turn);
		int worked = vmsplice(ends[1], &one, 1, 0) == SECTOR;
		count(LENDINGS, worked);
		if (!worked)
			continue;
		if (roll(&dice, 8) == 0)
			sleep_ms(1);
		write_words(at, id, ++turn);
		NEED(read(ends[0], back, SECTOR) == SECTOR);
		check_words(LENDINGS, back, id, turn);
	}
	return NULL;
}

static uint64_t sum_of(struct dice dice)
{
	uint64_t sum = 0;
	for (int i = 0; i < 64; i++) {
		uint64_t *at = sector_of(roll(&dice, pages), 0);
		for (unsigned w = 0; w < PAGE / 8; w++)
			sum = sum * 31 + ((volatile uint64_t *)at)[w];
	}
	return sum;
}

/* Runs in a child: its inherited bytes are intact and stay unchanged while the parent works on.
 * The child can overwrite them without effect on the parent. */
static int look_as_child(struct dice dice)
{
	uint64_t before = sum_of(dice);
	struct dice other = dice;
	for (int i = 0; i < 64; i++) {
		size_t page = roll(&other, pages);
		for (int sector = STORE_A; sector <= STORE_B; sector += STORE_B - STORE_A) {
			volatile uint64_t *at = sector_of(page, sector);
			for (unsigned w = 0; w < WORDS; w++)
				if (at[w] && at[w] != word(id_of(page, sector), at[w] >> 32, w))
					return 1;
		}
	}
	sleep_ms(roll(&other, 20));
	if (sum_of(dice) != before)
		return 2;
	for (int i = 0; i < 16; i++)
		memset(sector_of(roll(&other, pages), 0), 0xcc, PAGE);
	return 0;
}

static void *fork_again(void *argument)
{
	(void)argument;
	struct dice dice = { 13000027 };
	while (!ended) {
		dice.state += 1000;
		pid_t child = fork();
		count(FORKS, child >= 0);
		if (child == 0)
			_exit(look_as_child(dice));
		int status = 0;
		if (child > 0 && waitpid(child, &status, 0) == child && status != 0)
			lose(FORKS, 0, 0, status, 0);
		sleep_ms(roll(&dice, 30));
	}
	return NULL;
}

static void *page_out(void *argument)
{
	(void)argument;
	struct dice dice = { 17000023 };
	while (!ended) {
		size_t from = roll(&dice, pages), length = 1 + roll(&dice, 64);
		if (from + length > pages)
			length = pages - from;
		count(PAGE_OUTS, madvise(region + from * PAGE, length * PAGE, roll(&dice, 4) ? MADV_PAGEOUT : MADV_COLD) == 0);
		sleep_ms(roll(&dice, 5));
	}
	return NULL;
}

static void *clear(void *argument)
{
	(void)argument;
	struct dice dice = { 19000013 };
	int fd = open("/proc/self/clear_refs", O_WRONLY);
	NEED(fd >= 0);
	while (!ended) {
		count(CLEARINGS, pwrite(fd, roll(&dice, 2) ? "4" : "1", 1, 0) == 1);
		sleep_ms(roll(&dice, 40));
	}
	return NULL;
}

static void *split(void *argument)
{
	(void)argument;
	struct dice dice = { 23000009 };
	while (!ended) {
		unsigned char *page = region + (size_t)roll(&dice, pages) * PAGE;
		if (roll(&dice, 4)) {
			count(SPLITS, mprotect(page, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC) == 0 &&
					      mprotect(page, PAGE, PROT_READ | PROT_WRITE) == 0);
		} else {
			unsigned char *large = region + (size_t)roll(&dice, pages * PAGE / LARGE) * LARGE;
			count(COLLAPSES, madvise(large, LARGE, MADV_COLLAPSE) == 0);
		}
		sleep_ms(roll(&dice, 5));
	}
	return NULL;
}

static void *move(void *argument)
{
	(void)argument;
	struct dice dice = { 29000007 };
	enum { AT_ONCE = 32, MPOL_MF_MOVE = 2 };
	while (!ended) {
		void *which[AT_ONCE];
		int nodes[AT_ONCE], status[AT_ONCE];
		for (int i = 0; i < AT_ONCE; i++) {
			which[i] = region + (size_t)roll(&dice, pages) * PAGE;
			nodes[i] = (int)roll(&dice, NODES);
		}
		count(MOVES, syscall(SYS_move_pages, 0, AT_ONCE, which, nodes, status, MPOL_MF_MOVE) >= 0);
		sleep_ms(roll(&dice, 10));
	}
	return NULL;
}

/* Works on private memory: fills, splits, moves, discards and maps it anew. */
static void *remap(void *argument)
{
	(void)argument;
	struct dice dice = { 31000009 };
	size_t length = 4 * LARGE;
	unsigned char *base = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char *away = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(base != MAP_FAILED && away != MAP_FAILED);
	madvise(base, length, MADV_HUGEPAGE);
	uint32_t turn = 0;
	while (!ended) {
		size_t from = roll(&dice, length / PAGE - 64) * (size_t)PAGE, size = (1 + roll(&dice, 63)) * (size_t)PAGE;
		uint64_t *at = (uint64_t *)(base + from);
		turn++;
		for (size_t i = 0; i < size / SECTOR; i++)
			write_words(at + i * WORDS, from + i, turn);
		if (roll(&dice, 4) == 0)
			madvise(at, size, MADV_PAGEOUT);
		/* A kernel may refuse to move a range of several areas; then the bytes have not
		 * moved. */
		int worked = mremap(at, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, away) == away;
		count(REMAPPINGS, worked);
		const uint64_t *now = worked ? (uint64_t *)away : at;
		for (size_t i = 0; i < size / SECTOR; i++)
			check_words(REMAPPINGS, now + i * WORDS, from + i, turn);
		NEED(mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == (void *)at);
		madvise(at, size, MADV_HUGEPAGE);
		check_words(REMAPPINGS, at, from, 0);
		sleep_ms(roll(&dice, 5));
	}
	return NULL;
}

static void fill_disk(void)
{
	int fd = open_disk();
	enum { AT_ONCE = 128 };
	uint64_t *bytes = aligned_alloc(PAGE, AT_ONCE * SECTOR);
	NEED(bytes);
	for (uint32_t number = 0; number < DISK_SECTORS; number += AT_ONCE) {
		for (uint32_t i = 0; i < AT_ONCE; i++)
			write_words(bytes + i * WORDS, disk_id(number + i), 1);
		NEED(pwrite(fd, bytes, AT_ONCE * SECTOR, (off_t)number * SECTOR) == AT_ONCE * SECTOR);
	}
	free(bytes);
	close(fd);
}

static int tell(void)
{
	int bad = 0;
	for (int i = 0; i < ALL; i++) {
		printf("%-14s %10lu done %8lu refused %6lu lost", names[i], counts[i].done, counts[i].refused, counts[i].lost);
		printf(counts[i].refused ? "  (last: %s)\n" : "\n", strerror(counts[i].error));
		bad |= counts[i].lost > 0 || counts[i].done == 0;
	}
	fflush(stdout);
	return bad;
}

int main(int argc, char **argv)
{
	if (argc < 2 || argc > 4) {
		fprintf(stderr, "usage: integrity DISK [SECONDS [MIB]]\n");
		return 2;
	}
	disk = argv[1];
	long seconds = argc > 2 ? atol(argv[2]) : 30;
	size_t length = (argc > 3 ? atol(argv[3]) : 64) << 20;
	NEED(seconds > 0 && length >= 8 * LARGE);
	pages = length / PAGE;
	fixed_pages = pages / 16;
	unsigned char *room = mmap(NULL, length + LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(room != MAP_FAILED);
	region = (unsigned char *)(((uintptr_t)room + LARGE - 1) & ~(uintptr_t)(LARGE - 1));
	madvise(region, length, MADV_HUGEPAGE);
	fill_disk();

	static const struct {
		void *(*run)(void *);
		intptr_t argument;
	} jobs[] = { { store, STORE_A }, { store, STORE_B }, { read_direct, 0 }, { write_direct, 0 },
		     { read_ring, 0 },	 { lend, 0 },	     { fork_again, 0 },	 { page_out, 0 },
		     { clear, 0 },	 { split, 0 },	     { move, 0 },	 { remap, 0 } };
	enum { JOBS = sizeof jobs / sizeof *jobs };
	pthread_t threads[JOBS];
	for (int i = 0; i < JOBS; i++)
		NEED(pthread_create(&threads[i], NULL, jobs[i].run, (void *)jobs[i].argument) == 0);
	for (long second = 0; second < seconds; second++) {
		sleep_ms(1000);
		if (second % 60 == 59)
			tell();
	}
	ended = 1;
	for (int i = 0; i < JOBS; i++)
		NEED(pthread_join(threads[i], NULL) == 0);
	for (size_t page = 0; page < pages; page++)
		check_words(STORES, sector_of(page, UNTOUCHED), id_of(page, UNTOUCHED), 0);
	int bad = tell();
	puts(bad ? "integrity: LOST, or not tried" : "integrity: every byte is whose it was");
	return bad;
}
