/*
 * Calls whose kernel code is fetched from one node or another. Each row is a phase of the
 * microscope, which counts the kernel's work for it. All of it runs on one CPU. A row is done
 * with warm caches first and then with cold ones: before each operation CODE_BYTES of functions
 * are called, because data evicts nothing from a cache of instructions, and a memory of EVICT
 * bytes is read. Both are larger than the caches. Prints how often each row was done: `row NAME
 * TIMES`.
 *
 *   freehold scope -m 256M --cpus 2 --numa 2 --model cache -- target/guest/workloads/node-calls 1
 *   8388608 40
 *
 *   node-calls CPU EVICT TIMES
 *
 * | row | one time is |
 * |---|---|
 * | fork/1, fork/1024 | fork, exit and wait, with 1 and 1024 pages of 4 KiB written before |
 * | mmap | 64 pages mapped, one written, and unmapped |
 * | mmap-locked | 16 pages mapped with MAP_LOCKED, and unmapped |
 * | open | a file opened and closed |
 * | mount | a tmpfs mounted and unmounted |
 * | kill | a signal to itself, with a handler |
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../tools/doorbell.h"

enum { PAGE = 4096, LINE = 64, WARM = 8, CODE_BYTES = 128 << 10, RETURN = 0xc3 };

#define NEED(condition)                                                               \
	do {                                                                          \
		if (!(condition)) {                                                   \
			fprintf(stderr, "node-calls: %s: errno %d\n", #condition, errno); \
			exit(1);                                                      \
		}                                                                     \
	} while (0)

static volatile char *evicted;
static size_t evicted_bytes;
/* One function per cache line; each function only returns. */
static unsigned char *code;
static char *pages;

static void *memory(size_t bytes, int flags)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
	NEED(at != MAP_FAILED);
	return at;
}

static void written(size_t count)
{
	pages = memory(count * PAGE, 0);
	NEED(madvise(pages, count * PAGE, MADV_NOHUGEPAGE) == 0);
	for (size_t i = 0; i < count; i++)
		pages[i * PAGE] = 1;
}

static void fork_once(void)
{
	pid_t child = fork();
	if (child == 0)
		_exit(0);
	int status;
	NEED(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static void map_once(void)
{
	char *at = memory(64 * PAGE, 0);
	at[0] = 1;
	NEED(munmap(at, 64 * PAGE) == 0);
}

static void map_locked(void)
{
	NEED(munmap(memory(16 * PAGE, MAP_LOCKED), 16 * PAGE) == 0);
}

static void open_once(void)
{
	int fd = open("/tmp/node-calls", O_RDONLY);
	NEED(fd >= 0 && close(fd) == 0);
}

static void mount_once(void)
{
	NEED(mount("none", "/tmp/mounted", "tmpfs", 0, "") == 0 && umount("/tmp/mounted") == 0);
}

static void nothing(int number)
{
	(void)number;
}

static void kill_once(void)
{
	NEED(kill(getpid(), SIGUSR1) == 0);
}

static void evict(void)
{
	for (size_t at = 0; at < CODE_BYTES; at += LINE)
		((void (*)(void))(code + at))();
	for (size_t at = 0; at < evicted_bytes; at += LINE)
		(void)evicted[at];
}

static void row(const char *name, void (*once)(void), int times)
{
	char phase[64];
	for (int i = 0; i < WARM; i++)
		once();
	snprintf(phase, sizeof phase, "%s hot", name);
	NEED(doorbell_phase(phase) == 0);
	for (int i = 0; i < times; i++)
		once();
	NEED(doorbell_phase("between") == 0);
	printf("row %s %d\n", phase, times);
	snprintf(phase, sizeof phase, "%s cold", name);
	NEED(doorbell_phase(phase) == 0);
	for (int i = 0; i < times; i++) {
		evict();
		once();
	}
	NEED(doorbell_phase("between") == 0);
	printf("row %s %d\n", phase, times);
}

int main(int count, char **words)
{
	NEED(count == 4 || count == 5);
	int cpu = atoi(words[1]), times = atoi(words[3]);
	evicted_bytes = strtoul(words[2], NULL, 0);
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	NEED(times > 0 && sched_setaffinity(0, sizeof set, &set) == 0);
	/* The program executes itself anew on this CPU. So all its memory is of this node, and
	 * no other CPU has used it: unmapping needs no wait for other CPUs. */
	if (count == 4) {
		execl("/proc/self/exe", words[0], words[1], words[2], words[3], "there", (char *)NULL);
		NEED(!"executed");
	}
	void *cold = memory(evicted_bytes, MAP_POPULATE);
	NEED(madvise(cold, evicted_bytes, MADV_DONTFORK) == 0);
	evicted = cold;
	code = memory(CODE_BYTES, 0);
	for (size_t at = 0; at < CODE_BYTES; at += LINE)
		code[at] = RETURN;
	NEED(mprotect(code, CODE_BYTES, PROT_READ | PROT_EXEC) == 0);
	NEED(madvise(code, CODE_BYTES, MADV_DONTFORK) == 0);
	setvbuf(stdout, NULL, _IOLBF, 0);
	mkdir("/tmp", 0777);
	NEED(mkdir("/tmp/mounted", 0700) == 0);
	int fd = open("/tmp/node-calls", O_CREAT | O_RDWR, 0600);
	NEED(fd >= 0 && close(fd) == 0);
	NEED(signal(SIGUSR1, nothing) != SIG_ERR);
	written(1);
	row("fork/1", fork_once, times);
	row("mmap", map_once, times);
	row("mmap-locked", map_locked, times);
	row("open", open_once, times);
	row("mount", mount_once, times);
	row("kill", kill_once, times);
	written(1024);
	row("fork/1024", fork_once, times);
	return 0;
}
