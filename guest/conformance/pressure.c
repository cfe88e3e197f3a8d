/*
 * More memory in use than there is, on a machine with swap on.
 *
 * Usage: pressure private N R   N programs use more memory than there is, R rounds long
 *        pressure shared N      N programs share more memory than there is, half of it a file in memory
 *        pressure file          a file in memory is larger than memory
 *        pressure full          programs want more than memory and swap together
 *        pressure forks N       a program that uses more than memory has N children at once, of which each second is another program
 */
#include "promise.h"

#include "numbered.h"

#include <sys/mount.h>
#include <sys/swap.h>

static int failed(const char *what, size_t where)
{
	fprintf(stderr, "%s: %zu (%s)\n", what, where, strerror(errno));
	return 1;
}

/* A barrier for the workers: all of their memory is in use at once before any of it is freed. */
static struct meeting {
	int arrived, failed;
} *meeting;

static void call_meeting(void)
{
	meeting = (struct meeting *)shared_memory(1);
	fflush(stdout);
}

/* Waits until workers have come here `arrivals` times in all; exits if a worker has failed. */
static void meet(int arrivals)
{
	__atomic_fetch_add(&meeting->arrived, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&meeting->arrived, __ATOMIC_SEQ_CST) < arrivals)
		if (__atomic_load_n(&meeting->failed, __ATOMIC_SEQ_CST))
			_exit(1);
		else
			sleep_ms(1);
}

/* Reaps all workers; returns whether all succeeded. A failure also ends the waits in meet(). */
static int all_end_well(void)
{
	for (int status; wait(&status) > 0;)
		if (status)
			__atomic_store_n(&meeting->failed, 1, __ATOMIC_SEQ_CST);
	return !meeting->failed;
}

/* KiB of swap that pages in memory do not need. */
static long to_be_had(void)
{
	return figure("/proc/meminfo", "SwapFree") + figure("/proc/meminfo", "SwapCached");
}

/* Random stores and checks over `pages` pages, with forks whose children check their copies. In
 * between, referenced bits are cleared. */
static int mix(size_t pages, unsigned seed, int rounds, int workers)
{
	unsigned char *at = memory(pages);
	unsigned char *generation = calloc(pages, 1);
	uint64_t state = seed * 2654435761u + 1;
	for (size_t page = 0; page < pages; page++)
		fill(at + page * PAGE, page, generation[page] = 1);
	meet(workers);
	for (int round = 0; round < rounds; round++) {
		for (size_t step = 0; step < pages / 2; step++) {
			state = state * 6364136223846793005 + 1442695040888963407;
			/* Half of all steps go to a tenth of the pages. */
			size_t page = (state >> 33) % (state >> 63 ? pages / 10 : pages);
			if (!is_filled(at + page * PAGE, page, generation[page]))
				return failed("a page is wrong", page);
			if (state >> 62 & 1)
				fill(at + page * PAGE, page, ++generation[page]);
		}
		if (round % 2 == 0) {
			pid_t child = fork();
			if (child == 0) {
				for (size_t page = round; page < pages; page += 37) {
					if (!is_filled(at + page * PAGE, page, generation[page]))
						_exit(1);
					fill(at + page * PAGE, page, 255);
				}
				_exit(0);
			}
			int status = 1;
			if (child < 0)
				return failed("fork", round);
			if (waitpid(child, &status, 0) != child || status)
				return failed("a child's page is wrong", status);
		} else {
			int clear = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
			if (clear < 0 || write(clear, round % 4 == 1 ? "1" : "4", 1) != 1)
				return failed("clear_refs", round);
			close(clear);
		}
	}
	for (size_t page = 0; page < pages; page++)
		if (!is_filled(at + page * PAGE, page, generation[page]))
			return failed("a page is wrong in the end", page);
	munmap(at, pages * PAGE);
	free(generation);
	return 0;
}

static void private(int workers, int rounds)
{
	long total = figure("/proc/meminfo", "MemTotal"), swap = figure("/proc/meminfo", "SwapTotal");
	NEED(swap > total);
	/* All workers together use 1.4 times the machine's memory. */
	size_t pages = total * 14 / 10 / 4 / workers;
	call_meeting();
	for (int worker = 0; worker < workers; worker++) {
		pid_t pid = fork();
		NEED(pid >= 0);
		if (pid == 0)
			_exit(mix(pages, worker + 1, rounds, workers));
	}
	PROMISE("programs that use 1.4 times the memory there is find every byte", all_end_well());
	PROMISE("pages went out", figure("/proc/vmstat", "pswpout") > total / 4 / 4);
	PROMISE("and came in", figure("/proc/vmstat", "pswpin") > total / 4 / 8);
	PROMISE("kswapd looked for them", figure("/proc/vmstat", "pgscan_kswapd") > 0);
	PROMISE("pages were kept on write rather than copied", figure("/proc/vmstat", "pgreuse") > 0);
	PROMISE("none was copied without need", figure("/proc/vmstat", "cow_unneeded") == 0);
	PROMISE("nobody was killed", figure("/proc/vmstat", "oom_kill") == 0);
	PROMISE("and in the end the swap is empty", COMES_TRUE(to_be_had() >= swap - 2048));
}

/* A file in a separate file system that is in memory only. */
static int file_in_memory(size_t pages)
{
	char options[40];
	snprintf(options, sizeof options, "size=%zuk", pages * 4 + 1024);
	NEED((mkdir("/large", 0755) == 0 || errno == EEXIST) && mount("none", "/large", "tmpfs", 0, options) == 0);
	int file = open("/large/file", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	NEED(file >= 0);
	return file;
}

/* The pages are dealt out to the workers in turn, twelve at a time. Each worker stores to its
 * own pages and checks those of the next worker, some of them by reads of the file. */
static int together(unsigned char *at, size_t pages, int file, size_t of_file, int worker, int workers)
{
	enum { DOZEN = 12 };
	static unsigned char bytes[PAGE];
	int phase = 0, next = (worker + 1) % workers;
	for (int round = 1; round <= 2; round++) {
		for (size_t page = 0; page < pages; page++)
			if (page / DOZEN % workers == (size_t)worker)
				fill(at + page * PAGE, page, round);
		meet(workers * ++phase);
		for (size_t page = 0; page < pages; page++) {
			if (page / DOZEN % workers != (size_t)next)
				continue;
			int by_call = page >= of_file && page % 3 == 0;
			if (by_call && pread(file, bytes, PAGE, (page - of_file) * PAGE) != (ssize_t)PAGE)
				return failed("a shared page cannot be read", page);
			if (!is_filled(by_call ? bytes : at + page * PAGE, page, round))
				return failed("a shared page is wrong", page);
		}
		meet(workers * ++phase);
	}
	return 0;
}

/* Half of the memory is anonymous, half is a file in memory. */
static void shared(int workers)
{
	long total = figure("/proc/meminfo", "MemTotal"), swap = figure("/proc/meminfo", "SwapTotal");
	size_t pages = total * 15 / 10 / 4, of_file = pages / 2;
	int file = file_in_memory(pages - of_file);
	NEED(swap > total && ftruncate(file, (pages - of_file) * PAGE) == 0);
	unsigned char *at = shared_memory(pages);
	NEED(mmap(at + of_file * PAGE, (pages - of_file) * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED);
	call_meeting();
	for (int worker = 0; worker < workers; worker++) {
		pid_t pid = fork();
		NEED(pid >= 0);
		if (pid == 0)
			_exit(together(at, pages, file, of_file, worker, workers));
	}
	PROMISE("programs that share 1.5 times the memory there is find every byte", all_end_well());
	PROMISE("so does who forked them", all_filled(at, pages, 2));
	PROMISE("pages went out", figure("/proc/vmstat", "pswpout") > total / 4 / 4);
	PROMISE("nobody was killed", figure("/proc/vmstat", "oom_kill") == 0);
	munmap(at, pages * PAGE);
	NEED(unlink("/large/file") == 0 && close(file) == 0);
	PROMISE("and in the end the swap is empty", COMES_TRUE(to_be_had() >= swap - 4096));
}

/* The name of the first swap area in use. */
static const char *area_in_use(void)
{
	static char name[128];
	FILE *swaps = fopen("/proc/swaps", "re");
	NEED(swaps && fscanf(swaps, "%*[^\n] %127s", name) == 1);
	fclose(swaps);
	return name;
}

static void large_file(void)
{
	enum { RUN = 16 };
	static unsigned char bytes[RUN * PAGE];
	long total = figure("/proc/meminfo", "MemTotal"), swap = figure("/proc/meminfo", "SwapTotal");
	size_t pages = total * 15 / 10 / 4 / RUN * RUN, left = pages / 4, wrong = 0;
	int file = file_in_memory(pages);
	NEED(swap > total);
	for (size_t page = 0; page < pages; page += RUN) {
		for (size_t n = 0; n < RUN; n++)
			fill(bytes + n * PAGE, page + n, 1);
		if (write(file, bytes, sizeof bytes) != (ssize_t)sizeof bytes)
			break;
	}
	PROMISE("a file in memory can be larger than memory", lseek(file, 0, SEEK_CUR) == (off_t)(pages * PAGE));
	PROMISE("much of it is in the swap", figure("/proc/meminfo", "SwapFree") < swap - total / 2 && figure("/proc/meminfo", "Shmem") < total);
	for (size_t page = 0; page < pages; page += RUN) {
		NEED(pread(file, bytes, sizeof bytes, page * PAGE) == (ssize_t)sizeof bytes);
		for (size_t n = 0; n < RUN; n++)
			wrong += !is_filled(bytes + n * PAGE, page + n, 1);
	}
	PROMISE("it is read as it was written", wrong == 0);
	unsigned char *at = mmap(NULL, pages * PAGE, PROT_READ, MAP_SHARED, file, 0);
	NEED(at != MAP_FAILED);
	PROMISE("and so it is seen through a mapping", all_filled(at, pages, 1));
	PROMISE("nobody was killed", figure("/proc/vmstat", "oom_kill") == 0);
	NEED(ftruncate(file, left * PAGE) == 0);
	PROMISE("what is cut off leaves the swap", COMES_TRUE(to_be_had() >= swap - (long)left * 4 - 4096));
	PROMISE("swapoff brings back what is left", swapoff(area_in_use()) == 0 && figure("/proc/meminfo", "SwapTotal") == 0 && all_filled(at, left, 1));
}

static void full(void)
{
	long total = figure("/proc/meminfo", "MemTotal"), swap = figure("/proc/meminfo", "SwapTotal");
	NEED(swap > 0);
	unsigned char *mine = memory(256);
	fill_all(mine, 256, 9);
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		size_t pages = (total + swap) / 4 + 1024;
		for (size_t page = 0; page < pages; page++) {
			unsigned char *at = memory(1);
			fill(at, page, 1);
		}
		_exit(0);
	}
	int status;
	NEED(waitpid(child, &status, 0) == child);
	PROMISE("a program that wants more than memory and swap is killed", WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	PROMISE("it alone, once", figure("/proc/vmstat", "oom_kill") == 1);
	PROMISE("what others have is there", all_filled(mine, 256, 9));
	PROMISE("but not before the swap was full", figure("/proc/vmstat", "pswpout") >= swap / 4 * 9 / 10);
	fflush(stdout);
	child = fork();
	if (child == 0) {
		size_t pages = (total + swap) / 4 + 1024;
		unsigned char *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		for (size_t page = 0; at != MAP_FAILED && page < pages; page++)
			fill(at + page * PAGE, page, 1);
		_exit(0);
	}
	NEED(waitpid(child, &status, 0) == child);
	PROMISE("so is one that wants it as shared memory", WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	PROMISE("that one alone, once", figure("/proc/vmstat", "oom_kill") == 2);
	PROMISE("what others have is there still", all_filled(mine, 256, 9));
	PROMISE("and all of the swap is to be had again", COMES_TRUE(to_be_had() >= swap - 2048));
}

#define SPREAD (2UL << 20)

/* Body of a child that uses more page tables than pages: one page per 2 MiB. Waits until the
 * other end of `end` is closed, then checks its pages. */
static int stay(int ready, int end)
{
	enum { PIECES = 32 };
	char byte = 1;
	unsigned char *at = mmap(NULL, PIECES * SPREAD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int kept = at != MAP_FAILED || !failed("mmap", PIECES * SPREAD);
	for (size_t piece = 0; kept && piece < PIECES; piece++)
		fill(at + piece * SPREAD, piece, 5);
	kept = kept && (write(ready, &byte, 1) == 1 || !failed("write", 1));
	/* The reader of `ready` must see its end when the other children have died. */
	close(ready);
	kept = kept && read(end, &byte, 1) == 0;
	for (size_t piece = 0; kept && piece < PIECES; piece++)
		kept = is_filled(at + piece * SPREAD, piece, 5);
	return !kept;
}

static void storm(int count)
{
	int ready[2], end[2], forked = 0, came = 0, kept = 0;
	NEED(pipe(ready) == 0 && pipe(end) == 0);
	fflush(stdout);
	for (int child = 0; child < count; child++) {
		pid_t pid = fork();
		forked += pid > 0;
		if (pid)
			continue;
		close(end[1]);
		close(ready[0]);
		if (child % 2) {
			char to[12], from[12];
			snprintf(to, sizeof to, "%d", ready[1]);
			snprintf(from, sizeof from, "%d", end[0]);
			execl("/proc/self/exe", "pressure", "stay", to, from, NULL);
			_exit(failed("exec", child));
		}
		_exit(stay(ready[1], end[0]));
	}
	close(ready[1]);
	for (char byte; came < forked && read(ready[0], &byte, 1) == 1;)
		came++;
	PROMISE("no fork fails for want of memory that others could give", forked == count);
	PROMISE("nor does what the children need for themselves", came == forked);
	close(end[1]);
	for (int status; wait(&status) > 0;)
		kept += status == 0 || !failed("a child ended with status", status);
	PROMISE("and they keep it", kept == count);
	close(ready[0]);
	close(end[0]);
}

static void forks(int count)
{
	size_t pages = figure("/proc/meminfo", "MemTotal") * 12 / 10 / 4;
	unsigned char *at = memory(pages);
	/* A storm of forks makes three to eight pageblocks whole. If chance has already freed
	 * enough pageblocks, another storm follows. */
	for (int storms = 0; storms == 0 || (storms < 5 && figure("/proc/vmstat", "compact_success") == 0); storms++) {
		fill_all(at, pages, 1);
		storm(count);
	}
	PROMISE("so does their parent", all_filled(at, pages, 1));
	PROMISE("pageblocks were made whole for it", figure("/proc/vmstat", "compact_success") > 0);
	PROMISE("nobody was killed", figure("/proc/vmstat", "oom_kill") == 0);
}

int main(int argc, char **argv)
{
	NEED(argc >= 2);
	if (!strcmp(argv[1], "private") && argc == 4)
		private(atoi(argv[2]), atoi(argv[3]));
	else if (!strcmp(argv[1], "shared") && argc == 3)
		shared(atoi(argv[2]));
	else if (!strcmp(argv[1], "file"))
		large_file();
	else if (!strcmp(argv[1], "full"))
		full();
	else if (!strcmp(argv[1], "forks") && argc == 3)
		forks(atoi(argv[2]));
	else if (!strcmp(argv[1], "stay") && argc == 4)
		return stay(atoi(argv[2]), atoi(argv[3]));
	else
		NEED(!"such a mode");
	return conclude();
}
