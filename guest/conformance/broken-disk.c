/*
 * Promises about disks that fail: broken-disk writes|all-writes|reads|flushes|once DISK. The
 * disk fails every second write, every write, every read, every flush, or the first write; The
 * disk has 16 MiB. The machine's memory is so small that less unwritten data than that already
 * holds writers up.
 */
#include "promise.h"

#include <setjmp.h>

#define PIECE 65536
#define PIECES 400
#define DISK_BYTES (16l << 20)

static const char *disk;
static char piece[PIECE] __attribute__((aligned(4096)));
static sigjmp_buf back;

static void jump(int signal)
{
	siglongjmp(back, signal);
}

/* Returns the KiB that were sent to disks since boot. */
static long sent(void)
{
	char line[128];
	long kib = -1;
	FILE *file = fopen("/proc/vmstat", "r");
	NEED(file);
	while (fgets(line, sizeof line, file))
		sscanf(line, "pgpgout %ld", &kib);
	fclose(file);
	NEED(kib >= 0);
	return kib;
}

static int open_disk(int flags)
{
	int fd = open(disk, O_RDWR | flags);
	NEED(fd >= 0);
	return fd;
}

static void failing_writes(int all)
{
	int first = open_disk(0), second = open_disk(0), written = 0;
	long before = sent();
	memset(piece, 7, sizeof piece);
	for (long at = 0; at < PIECES; at++)
		written += pwrite(first, piece, PIECE, at * PIECE % DISK_BYTES) == PIECE;
	PROMISE("no write is told of what the disk refuses, above the limit of dirty pages too", written == PIECES);
	FAILS_WITH("fsync tells of it", fsync(first), EIO);
	PROMISE("once", fsync(first) == 0);
	/* Each page that is refused is tried twice: with its neighbours and alone. */
	PROMISE("what the disk refuses is not sent again and again", sent() - before <= 3l * PIECES * PIECE / 1024);
	int late = open_disk(0);
	PROMISE("a file that is opened after somebody was told is not", fsync(late) == 0);
	FAILS_WITH("another that was open is told too", fdatasync(second), EIO);
	PROMISE("once as well", fdatasync(second) == 0);
	/* Two pages that are not adjacent, so there are two writes, and one of them fails. */
	PROMISE("more can be written", pwrite(late, piece, 4096, 0) == 4096 && pwrite(late, piece, 4096, 40960) == 4096);
	FAILS_WITH("and a new loss is told", fsync(late), EIO);
	FAILS_WITH("to all", fsync(first), EIO);
	close(late);
	PROMISE("each of them once", fsync(second) == -1 && fsync(first) == 0 && fsync(second) == 0);
	if (all) {
		int sync = open_disk(O_DSYNC);
		FAILS_WITH("with O_DSYNC the write itself is told", pwrite(sync, piece, 4096, 8192), EIO);
		PROMISE("and fsync not again", fsync(sync) == 0);
		close(sync);
		int direct = open_disk(O_DIRECT);
		FAILS_WITH("with O_DIRECT the write itself fails", pwrite(direct, piece, 4096, 8192), EIO);
		close(direct);
	}
	/* A write error that no open file has reported waits for the next file that is opened. */
	close(second);
	PROMISE("a page is written", pwrite(first, piece, 4096, 0) == 4096 && pwrite(first, piece, 4096, 40960) == 4096);
	close(first);
	first = open_disk(0);
	FAILS_WITH("and lost when the last file is closed: the next is told", fsync(first), EIO);
	close(first);
}

static void failing_reads(void)
{
	int fd = open_disk(0);
	FAILS_WITH("a read fails", pread(fd, piece, 4096, 0), EIO);
	FAILS_WITH("each time", pread(fd, piece, 4096, 0), EIO);
	FAILS_WITH("a read of much fails as well", pread(fd, piece, PIECE, 1 << 20), EIO);
	FAILS_WITH("a write of a part of a page needs the rest of it", pwrite(fd, piece, 100, 4096), EIO);
	char *page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
	NEED(page != MAP_FAILED);
	signal(SIGBUS, jump);
	int caught = sigsetjmp(back, 1);
	if (caught == 0)
		piece[0] = *(volatile char *)page;
	PROMISE("a load from a mapping is a bus error", caught == SIGBUS);
	munmap(page, 4096);
	PROMISE("a whole page can be written", pwrite(fd, piece, 4096, 8192) == 4096);
	PROMISE("and stored", fsync(fd) == 0);
	PROMISE("and read while it is in memory", pread(fd, piece, 4096, 8192) == 4096);
	close(fd);
}

static void failing_flushes(void)
{
	int fd = open_disk(0);
	PROMISE("a page is written", pwrite(fd, piece, 4096, 0) == 4096);
	FAILS_WITH("fsync cannot promise that it stays", fsync(fd), EIO);
	FAILS_WITH("nor can the next", fsync(fd), EIO);
	close(fd);
}

static void failing_once(void)
{
	int first = open_disk(0), second = open_disk(0);
	char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, first, 0);
	NEED(page != MAP_FAILED);
	page[0] = 1;
	FAILS_WITH("msync tells of a page that is refused", msync(page, 4096, MS_SYNC), EIO);
	PROMISE("so the file that is mapped was told", fsync(first) == 0);
	FAILS_WITH("another that is open was not", fsync(second), EIO);
	PROMISE("and is told once", fsync(second) == 0 && msync(page, 4096, MS_SYNC) == 0);
	munmap(page, 4096);
	close(first);
	close(second);
}

int main(int argc, char **argv)
{
	NEED(argc == 3);
	disk = argv[2];
	if (strcmp(argv[1], "reads") == 0)
		failing_reads();
	else if (strcmp(argv[1], "flushes") == 0)
		failing_flushes();
	else if (strcmp(argv[1], "once") == 0)
		failing_once();
	else
		failing_writes(strcmp(argv[1], "all-writes") == 0);
	return conclude();
}
