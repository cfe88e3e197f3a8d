/*
 * A page to test with, of 4 KiB or a piece of 2 MiB. Functions make it, return its frame number,
 * let a child look at it, or lend it to a pipe. Needs promise.h.
 */
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

enum { PAGE = 4096 };
static const size_t LARGE = 2 << 20;

enum size { SMALL, HUGE };
static enum size size;
static int pagemap;

static inline void promise(const char *row, const char *text, int kept)
{
	char line[200];
	snprintf(line, sizeof line, "%s, %s: %s", row, size == HUGE ? "2 MiB" : "4 KiB", text);
	PROMISE(line, kept);
}

static inline uint64_t entry(const volatile void *at)
{
	uint64_t word = 0;
	NEED(pread(pagemap, &word, 8, (uintptr_t)at / PAGE * 8) == 8);
	return word;
}

#define SOFT_DIRTY (1ULL << 55)
#define SWAPPED (1ULL << 62)

/* Whether the page counts as written since such marks were last cleared. */
static inline int is_marked(const volatile void *at)
{
	return (entry(at) & SOFT_DIRTY) != 0;
}

static inline uint64_t frame(const volatile void *at)
{
	return entry(at) & ((1ULL << 55) - 1);
}

/* Returns whether the frame is the same as before; always true where frame numbers are hidden. */
static inline int kept(const volatile void *at, uint64_t before)
{
	return frame(at) == before;
}

static char *block; /* the whole mapping */

/* Sets whether faults get large pages. While they do not, the kernel's background task collapses no
 * small pages either. If the setting was "never" before the first call, it stays. */
static inline void want_large(const char *word)
{
	static int never = -1;
	int file = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDWR | O_CLOEXEC);
	NEED(file >= 0);
	if (never < 0) {
		char text[64] = { 0 };
		NEED(read(file, text, sizeof text - 1) > 0);
		never = strstr(text, "[never]") != NULL;
	}
	NEED(never || write(file, word, strlen(word)) == (ssize_t)strlen(word));
	close(file);
}

/* One page to test with: a page of its own, or the fourth piece of a large one. Filled with
 * `value`. */
static inline char *make(char value)
{
	size_t room = size == HUGE ? 2 * LARGE : PAGE;
	block = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(block != MAP_FAILED);
	if (size == SMALL) {
		madvise(block, room, MADV_NOHUGEPAGE);
		memset(block, value, PAGE);
		return block;
	}
	char *aligned = (char *)(((uintptr_t)block + LARGE - 1) & ~(LARGE - 1));
	if (aligned > block)
		munmap(block, aligned - block);
	munmap(aligned + LARGE, block + room - aligned - LARGE);
	block = aligned;
	madvise(block, LARGE, MADV_HUGEPAGE);
	want_large("madvise");
	memset(block, value, LARGE);
	want_large("never");
	return block + 3 * PAGE;
}

static inline void unmake(void)
{
	munmap(block, size == HUGE ? LARGE : PAGE);
}

/* A child that lives until the parent ends it. 'r' asks for the byte that it sees at `at`, 'w'
 * has it store a 'c' there first, and 'k' has it store and tell whether the frame stayed the
 * same ('y' or 'n'). */
struct child {
	pid_t pid;
	int ask, answer;
};

static inline struct child fork_child(volatile char *at)
{
	struct child child;
	int ask[2], answer[2];
	NEED(pipe(ask) == 0 && pipe(answer) == 0);
	fflush(stdout);
	child.pid = fork();
	NEED(child.pid >= 0);
	if (child.pid == 0) {
		char order, value;
		close(ask[1]);
		close(answer[0]);
		while (read(ask[0], &order, 1) == 1 && order != 'q') {
			uint64_t before = 0;
			if (order == 'k') {
				pagemap = open("/proc/self/pagemap", O_RDONLY);
				before = frame(at);
			}
			if (order != 'r')
				*at = 'c';
			value = order == 'k' ? kept(at, before) ? 'y' : 'n' : *at;
			if (write(answer[1], &value, 1) != 1)
				break;
		}
		_exit(0);
	}
	close(ask[0]);
	close(answer[1]);
	child.ask = ask[1];
	child.answer = answer[0];
	return child;
}

static inline char tell(struct child child, char order)
{
	char value = 0;
	NEED(write(child.ask, &order, 1) == 1 && read(child.answer, &value, 1) == 1);
	return value;
}

static inline void end(struct child child)
{
	char quit = 'q';
	int status;
	NEED(write(child.ask, &quit, 1) == 1 && waitpid(child.pid, &status, 0) == child.pid);
	close(child.ask);
	close(child.answer);
}

static inline int clear_refs(char what)
{
	int file = open("/proc/self/clear_refs", O_WRONLY);
	int done = file >= 0 && write(file, &what, 1) == 1;
	close(file);
	return done;
}

/* Lends the page at `at` to a pipe; lent() reads it from there. */
static inline int lend(char *at, int ends[2])
{
	struct iovec run = { at, PAGE };
	return pipe(ends) == 0 && vmsplice(ends[1], &run, 1, 0) == PAGE;
}

static inline char lent(int ends[2])
{
	char bytes[PAGE];
	NEED(read(ends[0], bytes, PAGE) == PAGE);
	close(ends[0]);
	close(ends[1]);
	return bytes[0];
}
