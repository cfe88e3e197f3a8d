/*
 * The pool of huge pages, and memory of them. A program that uses this runs as root, on a machine
 * with 512 MiB or more on which nothing else uses the pool.
 */
#include "promise.h"
#include "setting.h"

#ifndef MAP_HUGE_SHIFT
#define MAP_HUGE_SHIFT 26
#endif

enum { PAGE = 4096, RW = PROT_READ | PROT_WRITE };
static const size_t HUGE = 2 << 20;

#define POOL "/proc/sys/vm/nr_hugepages"
#define MORE "/proc/sys/vm/nr_overcommit_hugepages"

static inline int put(const char *path, const char *text)
{
	errno = stores(path, text);
	return errno == 0;
}

static inline long get(const char *path)
{
	char text[64] = { 0 };
	int file = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t came = file < 0 ? -1 : read(file, text, sizeof text - 1);
	close(file);
	return came > 0 ? atol(text) : -1;
}

/* Whether the pool has these figures, as soon as pages of processes that ended are back. */
static inline int has(long total, long free, long reserved, long surplus)
{
	static const char MEM[] = "/proc/meminfo";
	return COMES_TRUE(figure(MEM, "HugePages_Total") == total && figure(MEM, "HugePages_Free") == free
		&& figure(MEM, "HugePages_Rsvd") == reserved && figure(MEM, "HugePages_Surp") == surplus);
}

static inline int is_filled(const char *at, int value)
{
	for (size_t offset = 0; offset < HUGE; offset++)
		if (at[offset] != value)
			return 0;
	return 1;
}

static inline int died_by(int status, int number)
{
	return WIFSIGNALED(status) && WTERMSIG(status) == number;
}

/* The text of smaps about the area at `at`. */
static inline const char *smaps(const void *at)
{
	static char text[4000];
	char line[400];
	unsigned long start, end;
	int here = 0;
	text[0] = 0;
	FILE *file = fopen("/proc/self/smaps", "re");
	NEED(file);
	while (fgets(line, sizeof line, file)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			here = start <= (uintptr_t)at && (uintptr_t)at < end;
		if (here)
			strcat(text, line);
	}
	fclose(file);
	return text;
}

static inline long row(const char *text, const char *name)
{
	const char *at = strstr(text, name);
	return at ? atol(at + strlen(name)) : -1;
}
