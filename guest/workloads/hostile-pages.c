/*
 * Hostile programs about pages: processes of several threads that at the same time overwrite
 * their io_uring's shared memory, submit, register buffers and unmap them, fork, and lend pages
 * to pipes. They also access each other's memory, page out, collapse, use all /proc files about
 * memory with odd offsets, and switch swap on and off. They are killed in the middle.
 *
 * Usage: hostile-pages SEED PROCESSES [CALLS [DISK [SWAP]]]. The processes may damage themselves,
 * but the kernel has to get all of its memory back. DISK is overwritten past the page cache; SWAP
 * is switched on and off. Prints how the processes ended and exits with 0.
 */
#include "../conformance/promise.h"

#include "../conformance/ring.h"
#include "../conformance/sockets.h"
#include "../tools/dice.h"
#include "../tools/outlast.h"

#include <sys/prctl.h>
#include <sys/un.h>

enum { PAGE = 4096, PAGES = 1024, SHARED_PAGES = 64, THREADS = 7, HOLD = 8 };

static char *const arena = (char *)0x200000000;
static const char *disk, *swap;
static int calls;
/* One process' rings, files and pipe. */
static struct {
	int ring, disk, own_memory, parents_memory, memory_file, gup, pipe[2], pair[2], listener;
	char *mapped[3];
	unsigned sizes[3];
	pid_t parent;
} own;

static uint64_t number(struct dice *dice)
{
	switch (below(dice, 4)) {
	case 0:
		return below(dice, 64);
	case 1:
		return below(dice, 2) ? -1ull - below(dice, 4097) : 1ull << below(dice, 64);
	case 2:
		return (uintptr_t)arena + below(dice, PAGES * PAGE);
	default:
		return draw(dice) >> below(dice, 64);
	}
}

static char *place(struct dice *dice)
{
	unsigned kind = below(dice, 16);
	if (kind == 0)
		return own.mapped[below(dice, 3)] + below(dice, PAGE);
	if (kind == 1)
		return (char *)number(dice);
	char *at = arena + (size_t)below(dice, PAGES) * PAGE;
	return kind < 5 ? at + below(dice, PAGE) : at;
}

static size_t extent(struct dice *dice)
{
	static const size_t odd[] = { 0, 1, 511, 512, 4095, 4097, 2 << 20, -1ull, -4096ull, 1ull << 47, 1ull << 63, 0x7fffffff, 0xffffffff };
	return below(dice, 10) ? (size_t)(1 + below(dice, 40)) * PAGE : odd[below(dice, 13)];
}

/* Stores random words into the memory of the rings while the kernel reads it. */
static void scribble(struct dice *dice)
{
	for (int i = 0; i < 64; i++) {
		int which = below(dice, 3);
		volatile uint32_t *word = (volatile uint32_t *)own.mapped[which] + below(dice, below(dice, 2) ? 20 : own.sizes[which] / 4);
		*word = below(dice, 3) ? below(dice, 20) : (uint32_t)number(dice);
	}
}

/* Makes a valid entry one of a socket; its message's places are random. */
static void of_socket(struct dice *dice, struct io_uring_sqe *entry)
{
	static struct msghdr headers[4];
	static struct iovec vectors[4];
	int sockets[] = { own.pair[0], own.pair[0], own.pair[1], own.pair[1], own.listener, own.pipe[0] };
	int which = below(dice, 4);
	vectors[which] = (struct iovec){ place(dice), extent(dice) };
	headers[which] = (struct msghdr){ .msg_name = below(dice, 2) ? place(dice) : NULL, .msg_namelen = below(dice, 200),
					  .msg_iov = below(dice, 8) ? &vectors[which] : (struct iovec *)place(dice), .msg_iovlen = 1,
					  .msg_control = below(dice, 2) ? place(dice) : NULL, .msg_controllen = extent(dice) };
	int is_message = entry->opcode == IORING_OP_SENDMSG || entry->opcode == IORING_OP_RECVMSG;
	entry->fd = sockets[below(dice, 6)];
	entry->len = entry->opcode == IORING_OP_ACCEPT || entry->opcode == IORING_OP_CONNECT ? 0 : entry->len;
	entry->addr = is_message && below(dice, 8) ? (uintptr_t)&headers[which] : entry->addr;
	entry->off = entry->opcode == IORING_OP_ACCEPT ? (uintptr_t)place(dice) : entry->opcode == IORING_OP_CONNECT ? below(dice, 200) : 0;
	entry->buf_index = entry->splice_fd_in = 0;
}

/* Submits entries that are valid except for some random words. */
static void submit(struct dice *dice)
{
	static const unsigned char operations[] = { 0, 1, 2, 3, 4, 4, 4, 5, 5, 6, 7, 9, 9, 10, 10, 11, 12, 13, 14, 16, 22, 22, 23, 23, 26, 27, 34, 99 };
	static const unsigned char of_sockets[] = { 9, 10, 13, 16, 26, 27 };
	struct io_uring_sqe *entries = (struct io_uring_sqe *)own.mapped[2];
	for (int i = 0; i < ENTRIES; i++) {
		struct io_uring_sqe *entry = &entries[i];
		int files[] = { own.disk, own.disk, own.memory_file, own.pipe[0], own.pipe[1], own.own_memory, own.ring, (int)below(dice, 30), -1 };
		entry->opcode = operations[below(dice, sizeof operations)];
		entry->flags = below(dice, 8) ? below(dice, 2) << 4 : below(dice, 256);
		entry->ioprio = 0;
		entry->fd = files[below(dice, 9)];
		entry->off = below(dice, 4) ? (uint64_t)below(dice, 64) * 512 : number(dice);
		entry->addr = (uintptr_t)place(dice) & (below(dice, 2) ? ~511ull : ~0ull);
		entry->len = below(dice, 4) ? (1 + below(dice, 16)) * 512 : (unsigned)number(dice);
		entry->rw_flags = below(dice, 12) ? 0 : (int)number(dice);
		entry->user_data = below(dice, 20);
		entry->buf_index = below(dice, 3);
		if (memchr(of_sockets, entry->opcode, sizeof of_sockets) && below(dice, 8))
			of_socket(dice, entry);
	}
	/* Another thread may move the tail at the same time. */
	volatile uint32_t *tail = (volatile uint32_t *)own.mapped[0] + 1;
	*tail += 1 + below(dice, ENTRIES);
	static const unsigned flags[] = { 0, 0, 1, 1, 2, 8, 9, 255 };
	struct __kernel_timespec wait = { 0, 1000000 };
	struct io_uring_getevents_arg arg = { 0, 0, 0, (uintptr_t)&wait };
	unsigned how = flags[below(dice, 8)];
	/* Each wait has a time limit. */
	how |= how & 1 ? 8 : 0;
	enter(own.ring, 1 + below(dice, ENTRIES), below(dice, 4), how, &arg, below(dice, 20) ? sizeof arg : number(dice));
}

static void registering(struct dice *dice)
{
	struct iovec some[4];
	for (int i = 0; i < 4; i++)
		some[i] = (struct iovec){ place(dice), extent(dice) };
	syscall(SYS_io_uring_register, own.ring, below(dice, 12) ? below(dice, 3) > 0 ? 0 : 1 : below(dice, 30), below(dice, 8) ? (void *)some : place(dice),
		below(dice, 8) ? below(dice, 5) : number(dice));
}

static void map(struct dice *dice)
{
	static const int kinds[] = { MAP_PRIVATE | MAP_ANONYMOUS, MAP_PRIVATE | MAP_ANONYMOUS, MAP_SHARED | MAP_ANONYMOUS, MAP_SHARED, MAP_PRIVATE };
	static const unsigned long of_ring[] = { IORING_OFF_SQ_RING, IORING_OFF_CQ_RING, IORING_OFF_SQES };
	char *at = arena + (size_t)below(dice, PAGES) * PAGE;
	size_t length = (size_t)(1 + below(dice, 24)) * PAGE, room = arena + PAGES * PAGE - at;
	int kind = kinds[below(dice, 5)], protection = below(dice, 6) ? PROT_READ | PROT_WRITE : below(dice, 8);
	length = length < room ? length : room;
	switch (below(dice, 8)) {
	case 0:
		munmap(at, length);
		break;
	case 1:
		mprotect(at, length, protection);
		break;
	case 2:
		mremap(at, length, (size_t)(1 + below(dice, 16)) * PAGE, below(dice, 2) ? MREMAP_MAYMOVE | MREMAP_FIXED : below(dice, 8),
		       arena + (size_t)below(dice, PAGES - 16) * PAGE);
		break;
	case 3:
		mmap(at, length, protection, MAP_SHARED | MAP_FIXED, own.ring, of_ring[below(dice, 3)] + PAGE * below(dice, 2));
		break;
	case 4:
		mmap((char *)((uintptr_t)at & ~((2ul << 20) - 1)), 2 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		break;
	default:
		mmap(at, length, protection, kind | MAP_FIXED | (below(dice, 4) ? 0 : MAP_POPULATE) | (below(dice, 8) ? 0 : MAP_LOCKED),
		     kind & MAP_ANONYMOUS ? -1 : own.memory_file, (off_t)below(dice, SHARED_PAGES) * PAGE);
	}
}

static void advise(struct dice *dice)
{
	static const int often[] = { 4, 8, 9, 14, 15, 20, 21, 22, 23, 25, 25, 18, 10, 24 };
	int advice = below(dice, 8) ? often[below(dice, 14)] : (int)below(dice, 30);
	madvise(below(dice, 4) ? arena + (size_t)below(dice, PAGES) * PAGE : place(dice), extent(dice), advice);
}

/* Makes a child that stores, executes another program, unmaps all, or lives until its parent has
 * ended. */
static void fork_one(struct dice *dice)
{
	uint64_t fate = draw(dice);
	pid_t child = fork();
	if (child != 0) {
		if (child > 0 && below(dice, 4))
			waitpid(child, NULL, below(dice, 2) ? WNOHANG : 0);
		return;
	}
	struct dice of_child = { fate | 1 };
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = 0; i < 8; i++)
		(void)!pwrite(own.own_memory, "x", 1, (off_t)(uintptr_t)arena + below(&of_child, PAGES * PAGE));
	submit(&of_child);
	switch (fate >> 40 & 3) {
	case 0:
		munmap(arena, PAGES * PAGE);
		submit(&of_child);
		break;
	case 1:
		execl("/proc/self/exe", "hostile-pages", NULL);
		break;
	case 2:
		sleep_ms((int)(fate >> 50 & 15));
	}
	_exit(0);
}

static void lend(struct dice *dice)
{
	struct iovec some[HOLD];
	static __thread char back[PAGE];
	for (int i = 0; i < HOLD; i++)
		some[i] = (struct iovec){ place(dice), below(dice, 12) ? below(dice, 3 * PAGE) : extent(dice) };
	vmsplice(own.pipe[1], some, below(dice, 16) ? below(dice, HOLD + 1) : number(dice), below(dice, 16));
	switch (below(dice, 4)) {
	case 0:
		splice(own.pipe[0], NULL, own.memory_file, NULL, extent(dice), SPLICE_F_NONBLOCK);
		break;
	case 1:
		(void)!read(own.pipe[0], place(dice), extent(dice));
		break;
	default:
		(void)!read(own.pipe[0], back, sizeof back);
	}
}

static void reach(struct dice *dice)
{
	enum { MOST = 1024 };
	static __thread struct iovec here[MOST], there[MOST];
	unsigned ours = below(dice, 8) ? 1 + below(dice, 8) : MOST, theirs = below(dice, 8) ? 1 + below(dice, 8) : MOST;
	for (unsigned i = 0; i < ours; i++)
		here[i] = (struct iovec){ place(dice), extent(dice) };
	for (unsigned i = 0; i < theirs; i++)
		there[i] = (struct iovec){ place(dice), extent(dice) };
	/* The parent does the same, and may have ended. */
	pid_t whom = below(dice, 2) ? getpid() : own.parent;
	if (whom == own.parent || below(dice, 2))
		syscall(SYS_process_vm_readv, whom, here, (long)ours, there, (long)theirs, 0L);
	else
		syscall(SYS_process_vm_writev, whom, here, (long)ours, there, (long)theirs, 0L);
}

static void look(struct dice *dice)
{
	static const char *const files[] = { "/proc/self/pagemap", "/proc/self/mem", "/proc/kpageflags", "/proc/kpagecount", "/proc/self/smaps",
					     "/proc/self/numa_maps", "/proc/self/clear_refs", "/proc/self/maps", "/proc/self/smaps_rollup" };
	static const char *const words[] = { "1", "2", "3", "4", "5", "4\n", "0", "9", "-1", "", "44444444444444444444" };
	static __thread char bytes[2 * PAGE];
	int file = open(files[below(dice, 9)], below(dice, 3) ? O_RDONLY : O_RDWR);
	off_t from = below(dice, 3) ? (off_t)((uintptr_t)arena / PAGE * 8 + below(dice, PAGES * 8)) : (off_t)number(dice);
	char *to = below(dice, 3) ? bytes : place(dice);
	size_t length = below(dice, 4) ? 8 * below(dice, 512) : below(dice, sizeof bytes);
	(void)!pread(file, to, length, from);
	if (below(dice, 3) == 0) {
		const char *word = words[below(dice, 11)];
		(void)!write(file, word, strlen(word));
	} else if (below(dice, 3) == 0) {
		(void)!pwrite(file, to, length, below(dice, 2) ? (off_t)(uintptr_t)place(dice) : from);
	}
	close(file);
}

static void direct(struct dice *dice)
{
	off_t where = (off_t)(64 + below(dice, 256)) * (below(dice, 8) ? 512 : 511);
	if (below(dice, 2))
		(void)!pread(own.disk, place(dice), below(dice, 8) ? (1 + below(dice, 32)) * 512 : extent(dice), where);
	else
		(void)!pwrite(own.disk, place(dice), below(dice, 8) ? (1 + below(dice, 32)) * 512 : extent(dice), where);
}

static void move(struct dice *dice)
{
	enum { AT_ONCE = 16 };
	void *which[AT_ONCE];
	int nodes[AT_ONCE], status[AT_ONCE];
	for (int i = 0; i < AT_ONCE; i++) {
		which[i] = place(dice);
		nodes[i] = below(dice, 8) ? (int)below(dice, 2) : (int)number(dice);
	}
	unsigned long mask = below(dice, 4);
	if (below(dice, 2))
		syscall(SYS_move_pages, 0, below(dice, AT_ONCE), which, below(dice, 3) ? nodes : NULL, status, below(dice, 8));
	else
		syscall(SYS_mbind, place(dice), extent(dice), below(dice, 6), &mask, 3, below(dice, 8));
}

static void switch_swap(struct dice *dice)
{
	if (!swap || below(dice, 8))
		return;
	static const char *const bad[] = { "/dev/null", "/dev/vdz", "/tmp", "/proc/self/mem", "", "/dev/zero" };
	const char *name = below(dice, 4) ? swap : bad[below(dice, 6)];
	if (below(dice, 2))
		syscall(SYS_swapon, name, below(dice, 4) ? 0 : (int)number(dice));
	else
		syscall(SYS_swapoff, name);
}

/* Uses the debug file that pins pages on request. */
static void test_pins(struct dice *dice)
{
	static const unsigned long requests[] = { 0xc0506701, 0xc0506702, 0xc0506703, 0xc0506704, 0xc0506705, 0xc0506706, 0x40186707, 0x6708, 0x40086709 };
	struct {
		uint64_t get_delta, put_delta, address, size;
		uint32_t pages, flags, test_flags, which[8];
	} test = { 0, 0, (uintptr_t)place(dice), extent(dice), below(dice, 64), below(dice, 2), below(dice, 4), { 1, 2, 3 } };
	struct {
		uint64_t address, size;
		uint32_t flags;
	} longterm = { (uintptr_t)place(dice), extent(dice), below(dice, 4) };
	unsigned which = below(dice, 9);
	ioctl(own.gup, requests[which], which == 6 ? (void *)&longterm : which == 8 ? (void *)place(dice) : (void *)&test);
}

/* Makes a socket to which only a message in its own queue refers. The message also carries the
 * process' important files. */
static void entangle(struct dice *dice)
{
	int ends[2];
	if (socketpair(AF_UNIX, below(dice, 2) ? SOCK_STREAM : SOCK_DGRAM, 0, ends) != 0)
		return;
	int some[] = { ends[1], own.pipe[below(dice, 2)], own.own_memory, ends[below(dice, 2)] };
	send_files(ends[0], some, 4, MSG_DONTWAIT);
	close(ends[0]);
	close(ends[1]);
}

static void limit_locks(struct dice *dice)
{
	struct rlimit lockable = { below(dice, 64) * (size_t)PAGE + below(dice, 2), 1 << 20 };
	setrlimit(RLIMIT_MEMLOCK, &lockable);
	mlock(place(dice), extent(dice));
	munlock(place(dice), extent(dice));
}

static void *work(void *argument)
{
	static void (*const jobs[])(struct dice *) = { submit, submit, submit, scribble, registering, registering, map,	      map,	 map,  advise,	advise,
						       advise, fork_one, lend, lend,	 reach,	      look,	   look, direct, direct, move, switch_swap, test_pins, limit_locks, entangle };
	struct dice dice = { (uint64_t)(uintptr_t)argument | 1 };
	/* Each thread makes half of its calls of one kind. */
	void (*const favourite)(struct dice *) = jobs[below(&dice, sizeof jobs / sizeof *jobs)];
	for (int i = 0; i < calls; i++) {
		void (*job)(struct dice *) = below(&dice, 2) ? favourite : jobs[below(&dice, sizeof jobs / sizeof *jobs)];
		if (job != fork_one || below(&dice, 4) == 0)
			job(&dice);
	}
	return NULL;
}

static void ignore(int signal)
{
	(void)signal;
}

static void live(struct dice *dice, int is_root)
{
	struct sigaction action = { .sa_handler = ignore };
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	own.parent = getppid();
	own.disk = disk ? open(disk, O_RDWR | O_DIRECT) : -1;
	own.gup = open("/sys/kernel/debug/gup_test", O_RDWR);
	own.memory_file = memfd_create("hostile", 0);
	own.own_memory = open("/proc/self/mem", O_RDWR);
	NEED(ftruncate(own.memory_file, SHARED_PAGES * PAGE) == 0 && pipe2(own.pipe, O_NONBLOCK) == 0);
	struct sockaddr_un nameless = { .sun_family = AF_UNIX };
	own.listener = socket(AF_UNIX, SOCK_STREAM, 0);
	NEED(socketpair(AF_UNIX, below(dice, 2) ? SOCK_STREAM : SOCK_DGRAM, 0, own.pair) == 0);
	NEED(bind(own.listener, (struct sockaddr *)&nameless, sizeof nameless.sun_family) == 0 && listen(own.listener, 4) == 0);
	if (!is_root)
		NEED(setresuid(1000, 1000, 1000) == 0 && prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0);
	struct io_uring_params params = { 0 };
	own.ring = setup(ENTRIES, &params);
	NEED(own.ring >= 0);
	own.sizes[0] = own.sizes[1] = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
	own.sizes[2] = params.sq_entries * sizeof(struct io_uring_sqe);
	static const unsigned long offsets[] = { IORING_OFF_SQ_RING, IORING_OFF_CQ_RING, IORING_OFF_SQES };
	for (int i = 0; i < 3; i++) {
		own.mapped[i] = mmap(NULL, own.sizes[i] < PAGE ? PAGE : own.sizes[i], PROT_READ | PROT_WRITE, MAP_SHARED, own.ring, offsets[i]);
		NEED(own.mapped[i] != MAP_FAILED);
	}
	if (own.sizes[0] > PAGE)
		own.sizes[0] = own.sizes[1] = PAGE;
	NEED(mmap(arena, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == (void *)arena);
	if (below(dice, 2))
		madvise(arena, PAGES * PAGE, MADV_HUGEPAGE);
	/* Any descriptor may be written to, so the standard streams are /dev/null. */
	int null = open("/dev/null", O_RDWR);
	NEED(null >= 0);
	for (int fd = 0; fd < 3; fd++)
		dup2(null, fd);
	/* An interrupted call must release the pages that it pinned. */
	sigaction(SIGALRM, &action, NULL);
	struct itimerval often = { { 0, 3000 }, { 0, 3000 } };
	setitimer(ITIMER_REAL, &often, NULL);
	pthread_t threads[THREADS];
	for (int i = 0; i < THREADS; i++)
		NEED(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)draw(dice)) == 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	_exit(0);
}

int main(int argc, char **argv)
{
	/* This is the program that a child of a process executes. */
	if (argc == 1)
		return 0;
	if (argc < 3 || argc > 6) {
		fprintf(stderr, "usage: hostile-pages SEED PROCESSES [CALLS [DISK [SWAP]]]\n");
		return 2;
	}
	uint64_t seed = strtoull(argv[1], NULL, 0);
	int processes = atoi(argv[2]);
	struct ends ends = { 0 };
	calls = argc > 3 ? atoi(argv[3]) : 150;
	disk = argc > 4 ? argv[4] : NULL;
	swap = argc > 5 ? argv[5] : NULL;
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	for (int i = 0; i < processes; i++) {
		struct dice dice = { (seed + 1) * 0x9e3779b97f4a7c15ull ^ (uint64_t)(i + 1) * 0xbf58476d1ce4e5b9ull };
		pid_t child = fork();
		NEED(child >= 0);
		if (child == 0)
			live(&dice, i % 3);
		/* Every fourth process is killed early, the others after ten seconds. */
		outlast(child, i % 4 ? 10000 : 20 + (int)below(&dice, 100), &ends);
	}
	if (swap)
		syscall(SYS_swapoff, swap);
	printf("hostile-pages: %d processes ended, %d were signalled, %d were killed\n", ends.ended, ends.signalled, ends.killed);
	return 0;
}
