/*
 * Programs on several CPUs execute a file while others change it: by write, truncation, a hole, a
 * shared mapping, O_DIRECT, a debugger. Every CPU runs the new instructions as soon as the change
 * has returned, whatever copies of the file's pages the kernel keeps near its CPUs.
 *
 * Usage: text [DISK]. DISK is written, by O_DIRECT and through its page cache.
 */
#include "promise.h"
#include <setjmp.h>
#include <sys/ptrace.h>

enum { PAGE = 4096, PAGES = 24, PER_CPU = 2, MOST = 16 };

/* Each page begins with a function that returns a number: mov eax, NUMBER; ret. */
static void code(unsigned char *at, uint32_t number)
{
	at[0] = 0xb8;
	memcpy(at + 1, &number, 4);
	at[5] = 0xc3;
}

enum order { RUN, LOAD, FOLLOW, OWN };
struct request {
	enum order order;
	int page;
	uint32_t until;
};

static struct {
	pid_t pid;
	int to, from;
} children[MOST];
static int count, file;
static unsigned char *shared; /* the file, as the parent sees it */
static uint32_t *published;   /* the last number that a finished write left in page 1 */
static sigjmp_buf faulted;

static void on_fault(int number)
{
	siglongjmp(faulted, number);
}

/* Runs the function on `page`; -1 for SIGBUS. */
static int64_t run(volatile unsigned char *text, int page)
{
	if (sigsetjmp(faulted, 1))
		return -1;
	return ((uint32_t(*)(void))(uintptr_t)(text + page * PAGE))();
}

static int64_t load(volatile unsigned char *text, int page)
{
	return sigsetjmp(faulted, 1) ? -1 : text[page * PAGE];
}

/* Loads page 1's number again and again, until it is `until`. -2 if a number is older than the last
 * one that was published before. An emulator may keep what it translated while another CPU stored
 * there, so this does not run the function. */
static int64_t follow(volatile unsigned char *text, uint32_t until)
{
	for (;;) {
		uint32_t least = __atomic_load_n(published, __ATOMIC_SEQ_CST);
		int64_t number = sigsetjmp(faulted, 1) ? -1 : text[PAGE + 1];
		if (number < least)
			return -2;
		if (number == until)
			return number;
		/* The next access faults the page in again. */
		if (number % 4 == 0)
			madvise((void *)text, PAGES * PAGE, MADV_DONTNEED);
	}
}

static int64_t own(unsigned char *text, int page)
{
	if (mprotect(text, PAGES * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
		return -1;
	code(text + page * PAGE, 4711);
	return run(text, page);
}

static void serve(int cpu, int from, int to)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	unsigned char *text = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
	if (sched_setaffinity(0, sizeof set, &set) != 0 || text == MAP_FAILED)
		_exit(1);
	signal(SIGBUS, on_fault);
	struct request request;
	while (read(from, &request, sizeof request) == sizeof request) {
		int64_t answer = 0;
		switch (request.order) {
		case RUN: answer = run(text, request.page); break;
		case LOAD: answer = load(text, request.page); break;
		case FOLLOW: answer = follow(text, request.until); break;
		case OWN: answer = own(text, request.page); break;
		}
		if (write(to, &answer, sizeof answer) != sizeof answer)
			_exit(1);
	}
	_exit(0);
}

static void start(int cpu)
{
	int there[2], back[2];
	NEED(count < MOST && pipe2(there, O_CLOEXEC) == 0 && pipe2(back, O_CLOEXEC) == 0);
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		close(there[1]);
		for (int i = 0; i < count; i++)
			close(children[i].to);
		serve(cpu, there[0], back[1]);
	}
	close(there[0]);
	close(back[1]);
	children[count].pid = child;
	children[count].to = there[1];
	children[count++].from = back[0];
}

/* Starts two programs on each CPU, one after the other. */
static void start_all(void)
{
	cpu_set_t all;
	NEED(sched_getaffinity(0, sizeof all, &all) == 0);
	for (int cpu = 0; cpu < CPU_SETSIZE && count + PER_CPU <= MOST; cpu++)
		for (int i = 0; i < PER_CPU && CPU_ISSET(cpu, &all); i++)
			start(cpu);
}

static void end_all(void)
{
	for (int i = 0; i < count; i++) {
		int status;
		close(children[i].to);
		close(children[i].from);
		NEED(waitpid(children[i].pid, &status, 0) == children[i].pid && status == 0);
	}
	count = 0;
}

static void ask(int child, enum order order, int page, uint32_t until)
{
	struct request request = { order, page, until };
	NEED(write(children[child].to, &request, sizeof request) == sizeof request);
}

static int64_t answer(int child)
{
	int64_t number;
	NEED(read(children[child].from, &number, sizeof number) == sizeof number);
	return number;
}

/* Whether each program answers `number`. They are asked one after the other. */
static int all(enum order order, int page, int64_t number)
{
	int same = 1;
	for (int i = 0; i < count; i++) {
		ask(i, order, page, 0);
		same &= answer(i) == number;
	}
	return same;
}

static int put(int page, uint32_t number)
{
	unsigned char bytes[6];
	code(bytes, number);
	return pwrite(file, bytes, sizeof bytes, (off_t)page * PAGE) == sizeof bytes;
}

static void writes(void)
{
	int kept = 1;
	for (int page = 0; page < PAGES; page++)
		NEED(put(page, 100 + page));
	for (int page = 0; page < PAGES; page++)
		kept &= all(RUN, page, 100 + page) && all(RUN, page, 100 + page);
	PROMISE("programs on all CPUs run a file", kept);
	PROMISE("a write is run by all at once", put(3, 7) && all(RUN, 3, 7));
	PROMISE("and the next one, too", put(3, 8) && all(RUN, 3, 8));
	PROMISE("the pages beside it stay", all(RUN, 2, 102) && all(RUN, 4, 104));
	for (int i = 0; i < 200 && kept; i++)
		kept = put(i % PAGES, 1000 + i) && all(RUN, i % PAGES, 1000 + i);
	PROMISE("each of 200 writes", kept);
	/* Numbers of one byte, which no CPU loads in parts. */
	NEED(put(1, 1));
	*published = 1;
	for (int i = 0; i < count; i++)
		ask(i, FOLLOW, 1, 241);
	for (uint32_t number = 2; number <= 241; number++) {
		NEED(put(1, number));
		__atomic_store_n(published, number, __ATOMIC_SEQ_CST);
		if (number % 16 == 0)
			sleep_ms(1);
	}
	kept = 1;
	for (int i = 0; i < count; i++)
		kept &= answer(i) == 241;
	PROMISE("programs that follow it while it is written never see what was there before a finished write", kept);
}

static void stores(void)
{
	PROMISE("a store through a shared mapping that is made now",
		(shared = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)) != MAP_FAILED);
	NEED(shared != MAP_FAILED);
	code(shared + 5 * PAGE, 21);
	PROMISE("is run by all", all(RUN, 5, 21) && all(RUN, 5, 21));
	code(shared + 5 * PAGE, 22);
	PROMISE("and so is a store to a page that all have", all(RUN, 5, 22));
	munmap(shared, PAGES * PAGE);
	PROMISE("after it is unmapped, a write is run by all", all(RUN, 5, 22) && put(5, 23) && all(RUN, 5, 23));
	shared = mmap(NULL, PAGES * PAGE, PROT_READ, MAP_SHARED, file, 0);
	NEED(shared != MAP_FAILED && all(RUN, 6, shared[6 * PAGE + 1] + 256 * shared[6 * PAGE + 2]));
	NEED(mprotect(shared, PAGES * PAGE, PROT_READ | PROT_WRITE) == 0);
	code(shared + 6 * PAGE, 24);
	PROMISE("a mapping that becomes writable later stores for all", all(RUN, 6, 24));
	munmap(shared, PAGES * PAGE);
}

static void cuts(void)
{
	NEED(put(10, 31) && all(RUN, 10, 31) && all(RUN, 10, 31));
	PROMISE("past the end of a truncated file all get SIGBUS",
		ftruncate(file, 10 * PAGE) == 0 && all(RUN, 10, -1) && all(RUN, PAGES - 1, -1));
	PROMISE("the pages before it stay", all(RUN, 5, 23));
	PROMISE("a file that grows again is zero for all", ftruncate(file, PAGES * PAGE) == 0 && all(LOAD, 10, 0));
	PROMISE("and can be written", put(10, 32) && all(RUN, 10, 32) && all(RUN, 10, 32));
	PROMISE("a hole is zero for all",
		fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 10 * PAGE, PAGE) == 0 && all(LOAD, 10, 0));
	PROMISE("a hole in a part of a page, too",
		put(11, 33) && all(RUN, 11, 33) && all(RUN, 11, 33) &&
			fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 11 * PAGE, 4) == 0 && all(LOAD, 11, 0));
	PROMISE("and can be filled again", put(10, 34) && put(11, 35) && all(RUN, 10, 34) && all(RUN, 11, 35));
}

/* Bytes that one program changes for itself. */
static void private(void)
{
	NEED(put(12, 41) && all(RUN, 12, 41) && all(RUN, 12, 41));
	pid_t last = children[count - 1].pid;
	NEED(ptrace(PTRACE_ATTACH, last, 0, 0) == 0 && waitpid(last, NULL, __WALL) == last);
	FILE *maps;
	char path[64], line[256];
	snprintf(path, sizeof path, "/proc/%d/maps", last);
	NEED((maps = fopen(path, "re")));
	unsigned long at = 0;
	while (!at && fgets(line, sizeof line, maps))
		if (strstr(line, "r-xp") && strstr(line, "/text-of-all"))
			at = strtoul(line, NULL, 16);
	fclose(maps);
	NEED(at != 0);
	uint64_t word = 0;
	code((unsigned char *)&word, 42);
	NEED(ptrace(PTRACE_POKEDATA, last, at + 12 * PAGE, word) == 0 && ptrace(PTRACE_DETACH, last, 0, 0) == 0);
	int others = 1;
	for (int i = 0; i < count; i++) {
		ask(i, RUN, 12, 0);
		int64_t number = answer(i);
		others &= number == (i == count - 1 ? 42 : 41);
	}
	PROMISE("a debugger's store is for the one program", others);
	ask(count - 1, OWN, 13, 0);
	PROMISE("a program that makes its text writable stores for itself", answer(count - 1) == 4711);
	NEED(put(13, 43));
	others = 1;
	for (int i = 0; i < count; i++) {
		ask(i, RUN, 13, 0);
		others &= answer(i) == (i == count - 1 ? 4711 : 43);
	}
	PROMISE("and has its own page from then on", others);
}

static void direct(const char *disk)
{
	file = open(disk, O_RDWR | O_CLOEXEC);
	int past = open(disk, O_RDWR | O_DIRECT | O_CLOEXEC);
	unsigned char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(file >= 0 && past >= 0 && page != MAP_FAILED);
	for (int i = 0; i < PAGES; i++)
		NEED(put(i, 500 + i));
	start_all();
	PROMISE("programs run a disk's pages", all(RUN, 9, 509) && all(RUN, 9, 509));
	code(page, 51);
	PROMISE("a direct write is run by all", pwrite(past, page, PAGE, 9 * PAGE) == PAGE && all(RUN, 9, 51) && all(RUN, 9, 51));
	int kept = 1;
	for (int i = 0; i < 40 && kept; i++) {
		code(page, 600 + i);
		kept = pwrite(past, page, PAGE, i % PAGES * PAGE) == PAGE && all(RUN, i % PAGES, 600 + i);
		kept = kept && put(i % PAGES, 700 + i) && all(RUN, i % PAGES, 700 + i);
	}
	PROMISE("each of 40 direct writes, and each write after one", kept);
	NEED(fsync(file) == 0);
	PROMISE("what the disk has is what they run", pread(past, page, PAGE, 15 * PAGE) == PAGE && page[1] == (739 & 255));
	end_all();
}

int main(int argc, char **argv)
{
	published = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	file = open("/tmp/text-of-all", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0700);
	NEED(published != MAP_FAILED && file >= 0 && ftruncate(file, PAGES * PAGE) == 0);
	start_all();
	writes();
	stores();
	cuts();
	private();
	end_all();
	close(file);
	unlink("/tmp/text-of-all");
	if (argc > 1)
		direct(argv[1]);
	return conclude();
}
