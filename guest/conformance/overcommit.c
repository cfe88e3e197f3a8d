/* vm.overcommit_memory, overcommit_ratio and overcommit_kbytes; CommitLimit and Committed_AS: what
 * programs are promised, what counts as a promise, and what mode 2 refuses. Needs root, and a
 * machine on which nothing else maps memory meanwhile. */
#include "promise.h"
#include "setting.h"
#include <sys/shm.h>

#define PAGE 4096ul
/* Pages by which a figure may be off: other tasks of the machine. */
#define SLACK 256
/* Pages of a large area. */
#define MANY 8192

static unsigned long meminfo(const char *name)
{
	return figure("/proc/meminfo", name) / 4;
}

static void *area(unsigned long pages, int protection, int flags)
{
	return mmap(NULL, pages * PAGE, protection, flags | MAP_ANONYMOUS, -1, 0);
}

static unsigned long committed;

static void mark(void)
{
	committed = meminfo("Committed_AS");
}

/* Whether so many pages more are promised than at the mark. */
static int rose_by(long pages)
{
	long off = (long)(meminfo("Committed_AS") - committed) - pages;
	return -SLACK <= off && off <= SLACK;
}

static void limits(void)
{
	unsigned long memory = meminfo("MemTotal"), swap = meminfo("SwapTotal");
	PROMISE("a half of memory and all swap at first", reads("vm/overcommit_ratio") == 50 && reads("vm/overcommit_kbytes") == 0 &&
		meminfo("CommitLimit") == memory / 2 + swap);
	PROMISE("another percentage", writes("vm/overcommit_ratio", "75") == 0 && meminfo("CommitLimit") == memory * 75 / 100 + swap);
	PROMISE("also more than there is", writes("vm/overcommit_ratio", "250") == 0 && meminfo("CommitLimit") == memory * 250 / 100 + swap);
	PROMISE("kilobytes instead of a percentage", writes("vm/overcommit_kbytes", "40000") == 0 && reads("vm/overcommit_ratio") == 0 &&
		reads("vm/overcommit_kbytes") == 40000 && meminfo("CommitLimit") == 10000 + swap);
	PROMISE("and a percentage again", writes("vm/overcommit_ratio", "50") == 0 && reads("vm/overcommit_kbytes") == 0 && meminfo("CommitLimit") == memory / 2 + swap);
	PROMISE("there is no other mode", writes("vm/overcommit_memory", "3") == EINVAL && reads("vm/overcommit_memory") == 0);
}

static void promises_of_areas(void)
{
	mark();
	char *a = area(MANY, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	NEED(a != MAP_FAILED);
	PROMISE("a private writable area is a promise, used or not", rose_by(MANY));
	NEED(mprotect(a, MANY * PAGE, PROT_NONE) == 0);
	PROMISE("and stays one when it is closed", rose_by(MANY));
	NEED(munmap(a + MANY / 2 * PAGE, MANY / 2 * PAGE) == 0);
	PROMISE("as far as it is mapped", rose_by(MANY / 2));
	a = mremap(a, MANY / 2 * PAGE, MANY * PAGE, MREMAP_MAYMOVE);
	NEED(a != MAP_FAILED);
	PROMISE("growth is promised, too", rose_by(MANY));
	int status;
	IN_CHILD(status, _exit(!rose_by(2 * MANY)));
	PROMISE("a child is promised as much again", status == 0);
	PROMISE("until it ends", rose_by(MANY));
	munmap(a, MANY * PAGE);
	PROMISE("all is taken back", rose_by(0));
	a = area(MANY, PROT_READ, MAP_PRIVATE);
	NEED(a != MAP_FAILED);
	PROMISE("memory that may only be read is no promise", rose_by(0));
	NEED(mprotect(a, MANY / 2 * PAGE, PROT_READ | PROT_WRITE) == 0);
	PROMISE("as far as it becomes writable it is", rose_by(MANY / 2));
	munmap(a, MANY * PAGE);
	a = area(MANY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE);
	NEED(a != MAP_FAILED);
	PROMISE("who says that he will not use it is promised nothing", rose_by(0));
	munmap(a, MANY * PAGE);
	char *old = sbrk(0);
	NEED(sbrk(MANY * PAGE) == old);
	PROMISE("the break", rose_by(MANY));
	NEED(brk(old) == 0);
	PROMISE("goes back", rose_by(0));
}

static void promises_of_shared_memory(void)
{
	int status;
	mark();
	char *a = area(MANY, PROT_NONE, MAP_SHARED);
	NEED(a != MAP_FAILED);
	PROMISE("shared memory is promised whole, whatever its protection", rose_by(MANY));
	IN_CHILD(status, _exit(!rose_by(MANY)));
	PROMISE("once for all that share it", status == 0);
	NEED(munmap(a, MANY / 2 * PAGE) == 0);
	PROMISE("a part that nobody maps is still there", rose_by(MANY));
	munmap(a + MANY / 2 * PAGE, MANY / 2 * PAGE);
	PROMISE("until all is unmapped", rose_by(0));
	a = area(MANY, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE);
	NEED(a != MAP_FAILED);
	PROMISE("without reserve it is promised by the page", rose_by(0) && memset(a, 1, MANY / 2 * PAGE) && rose_by(MANY / 2));
	munmap(a, MANY * PAGE);
	PROMISE("and its pages are taken back", rose_by(0));
	int id = shmget(IPC_PRIVATE, MANY * PAGE, IPC_CREAT | 0600);
	NEED(id >= 0);
	PROMISE("a segment of System V is promised whole", rose_by(MANY));
	NEED(shmctl(id, IPC_RMID, NULL) == 0);
	PROMISE("until it is removed", rose_by(0));
	id = shmget(IPC_PRIVATE, MANY * PAGE, IPC_CREAT | SHM_NORESERVE | 0600);
	NEED(id >= 0);
	PROMISE("SHM_NORESERVE", rose_by(0));
	shmctl(id, IPC_RMID, NULL);
	int file = memfd_create("promise", 0);
	NEED(file >= 0 && ftruncate(file, MANY * PAGE) == 0);
	PROMISE("a file in memory is no promise by its size", rose_by(0));
	a = mmap(NULL, MANY * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	NEED(a != MAP_FAILED);
	memset(a, 1, MANY / 2 * PAGE);
	PROMISE("but by its pages", rose_by(MANY / 2));
	char *copy = mmap(NULL, MANY * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
	NEED(copy != MAP_FAILED);
	PROMISE("a private mapping of it by its size", rose_by(MANY / 2 + MANY));
	munmap(copy, MANY * PAGE);
	NEED(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, MANY / 4 * PAGE) == 0);
	PROMISE("a hole promises nothing", rose_by(MANY / 4));
	munmap(a, MANY * PAGE);
	close(file);
	PROMISE("nor does a file that is gone", rose_by(0));
}

/* Mode 2. The limit is a little above what is promised already. */
static void never(void)
{
	const unsigned long room = 2 * MANY;
	char kbytes[32];
	int status;
	mark();
	NEED(meminfo("SwapTotal") == 0);
	snprintf(kbytes, sizeof kbytes, "%lu", (committed + room) * 4);
	NEED(writes("vm/overcommit_kbytes", kbytes) == 0 && writes("vm/overcommit_memory", "2") == 0);
	PROMISE("mode 2", reads("vm/overcommit_memory") == 2);
	FAILS_WITH("a request above the limit", area(room + SLACK, PROT_READ | PROT_WRITE, MAP_PRIVATE), ENOMEM);
	FAILS_WITH("also without reserve", area(room + SLACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE), ENOMEM);
	FAILS_WITH("also of shared memory", area(room + SLACK, PROT_NONE, MAP_SHARED), ENOMEM);
	PROMISE("a refusal promises nothing", rose_by(0));
	char *closed = area(2 * room, PROT_READ, MAP_PRIVATE);
	PROMISE("memory that is not writable has no limit", closed != MAP_FAILED);
	FAILS_WITH("until it becomes so", mprotect(closed, 2 * room * PAGE, PROT_READ | PROT_WRITE), ENOMEM);
	munmap(closed, 2 * room * PAGE);
	char *a = area(MANY + 2 * SLACK, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	PROMISE("half of the room is there", a != MAP_FAILED);
	FAILS_WITH("and not once more", area(MANY, PROT_READ | PROT_WRITE, MAP_PRIVATE), ENOMEM);
	FAILS_WITH("nor by growth", mremap(a, (MANY + 2 * SLACK) * PAGE, (room + SLACK) * PAGE, MREMAP_MAYMOVE), ENOMEM);
	char *end = sbrk(0);
	FAILS_WITH("nor by the break", sbrk(MANY * PAGE), ENOMEM);
	PROMISE("which stays where it was", sbrk(0) == end);
	FAILS_WITH("nor in a segment", shmget(IPC_PRIVATE, MANY * PAGE, IPC_CREAT | 0600), ENOMEM);
	FAILS_WITH("nor for a child", fork(), ENOMEM);
	int file = memfd_create("promise", 0);
	NEED(file >= 0 && ftruncate(file, room * PAGE) == 0);
	FAILS_WITH("nor for pages of a file in memory", posix_fallocate(file, 0, MANY * PAGE) == ENOSPC ? (errno = ENOSPC, -1) : 0, ENOSPC);
	PROMISE("which has none of them then", rose_by(MANY + 2 * SLACK));
	munmap(a, (MANY + 2 * SLACK) * PAGE);
	a = area(MANY / 2, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	PROMISE("what is given back can be promised again", a != MAP_FAILED);
	IN_CHILD(status, memset(a, 1, MANY / 2 * PAGE); _exit(a[0] != 1));
	PROMISE("also to a child, who uses it", status == 0);
	munmap(a, MANY / 2 * PAGE);
	close(file);
	NEED(writes("vm/overcommit_memory", "0") == 0 && writes("vm/overcommit_ratio", "50") == 0);
	PROMISE("all is taken back", rose_by(0));
	a = area(room + SLACK, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	PROMISE("in mode 0 the sum has no limit", a != MAP_FAILED);
	munmap(a, (room + SLACK) * PAGE);
}

int main(void)
{
	limits();
	promises_of_areas();
	promises_of_shared_memory();
	never();
	return conclude();
}
