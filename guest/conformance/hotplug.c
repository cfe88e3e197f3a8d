/* A disk that is plugged in and out several times while programs use it. Lines that begin with
 * HOST ask the host side of the test to plug the disk in or out. Without an argument there is no
 * such host side, and no disk. */
#include "promise.h"

#include <linux/fs.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/sysmacros.h>

#define DISK "/dev/vda"
enum { LENGTH = 64 << 10, DIRECT = 12 };

static atomic_int stopped;
static sigjmp_buf after_bus;

static void ask(const char *what)
{
	printf("HOST %s\n", what);
	fflush(stdout);
}

static int exists(const char *path)
{
	struct stat stat;
	return lstat(path, &stat) == 0;
}

/* Whether a file of the kernel contains a word. */
static int has(const char *path, const char *word)
{
	char text[4096] = "";
	int fd = open(path, O_RDONLY);
	if (fd < 0)
		return 0;
	ssize_t length = read(fd, text, sizeof text - 1);
	close(fd);
	text[length < 0 ? 0 : length] = 0;
	return strstr(text, word) != NULL;
}

static int is_shown(void)
{
	return exists(DISK) && has("/proc/partitions", "vda") && exists("/sys/block/vda/dev") &&
	       exists("/sys/class/block/vda/size");
}

static int is_hidden(void)
{
	return !exists(DISK) && !has("/proc/partitions", "vda") && !exists("/sys/block/vda") &&
	       !exists("/sys/class/block/vda");
}

struct work {
	pthread_t thread;
	int fd, writes, number, error;
	long done;
	char *bytes;
};

/* Transfers until one fails; stores its error. */
static void *transfer(void *argument)
{
	struct work *work = argument;
	for (;;) {
		off_t at = (off_t)((work->number * 3 + work->done) % 16) * LENGTH;
		errno = 0;
		ssize_t count = work->writes ? pwrite(work->fd, work->bytes, LENGTH, at)
					     : pread(work->fd, work->bytes, LENGTH, at);
		if (count != LENGTH) {
			work->error = count < 0 ? errno : 0;
			break;
		}
		work->done++;
	}
	atomic_fetch_add(&stopped, 1);
	return NULL;
}

static void on_bus(int number)
{
	siglongjmp(after_bus, number);
}

/* Whether the first access to a page is SIGBUS. */
static int is_bus_error(const volatile char *page)
{
	if (sigsetjmp(after_bus, 1))
		return 1;
	(void)*page;
	return 0;
}

/* Plugs one disk in and out. The promises are about the results of all its threads. */
static void cycle(int *came, int *kept, int *ended, int *refused, int *left)
{
	static struct work works[DIRECT];
	int64_t begun = 0;
	uint64_t size = 0;
	ask("plug");
	int shown = COMES_TRUE(is_shown());
	int fd = open(DISK, O_RDWR), direct = open(DISK, O_RDWR | O_DIRECT);
	struct stat stat;
	*came += shown && fd >= 0 && direct >= 0 && ioctl(fd, BLKGETSIZE64, &size) == 0 && size == 16 << 20 &&
		 fstat(fd, &stat) == 0 && S_ISBLK(stat.st_mode);
	char *page = mmap(NULL, 4 << 20, PROT_READ, MAP_SHARED, fd, 8 << 20);
	char *bytes = aligned_alloc(4096, LENGTH), *back = aligned_alloc(4096, LENGTH);
	memset(bytes, 0, LENGTH);
	*kept += page != MAP_FAILED && *page == 0 && pwrite(direct, bytes, LENGTH, 4 << 20) == LENGTH &&
		 pread(fd, back, LENGTH, 4 << 20) == LENGTH && memcmp(bytes, back, LENGTH) == 0 &&
		 pwrite(fd, bytes, 4096, 12 << 20) == 4096 && fsync(fd) == 0;
	stopped = 0;
	for (int i = 0; i < DIRECT; i++) {
		char *own = aligned_alloc(4096, LENGTH);
		memset(own, 0, LENGTH);
		works[i] = (struct work){ .fd = direct, .writes = i % 2, .number = i, .bytes = own };
		NEED(pthread_create(&works[i].thread, NULL, transfer, &works[i]) == 0);
	}
	/* Within this time each thread makes a transfer, and none ends. */
	begun = now_ms();
	while (now_ms() < begun + 100)
		sleep_ms(10);
	int busy = stopped == 0;
	ask("unplug");
	int all = COMES_TRUE(stopped == DIRECT);
	int errors = 0;
	NEED(all);
	for (int i = 0; i < DIRECT; i++) {
		pthread_join(works[i].thread, NULL);
		errors += works[i].error == EIO;
		free(works[i].bytes);
	}
	*ended += busy && errors == DIRECT;
	int hidden = COMES_TRUE(is_hidden());
	/* The node of a device that is not there, by its number. */
	NEED(mknod("/tmp/node", S_IFBLK | 0600, stat.st_rdev) == 0);
	int opens = open("/tmp/node", O_RDONLY), why = errno;
	unlink("/tmp/node");
	*refused += hidden && opens < 0 && why == ENXIO;
	errno = 0;
	int fails = pread(fd, back, 4096, 0) == -1 && errno == EIO;
	errno = 0;
	fails &= pwrite(fd, bytes, 4096, 0) == -1 && errno == EIO;
	errno = 0;
	fails &= pread(direct, back, 4096, 0) == -1 && errno == EIO;
	errno = 0;
	fails &= fsync(fd) == -1 && errno == EIO;
	fails &= ioctl(fd, BLKGETSIZE64, &size) == 0 && size == 0;
	*left += fails && is_bus_error(page + (2 << 20)) && munmap(page, 4 << 20) == 0;
	close(fd);
	close(direct);
	free(bytes);
	free(back);
}

int main(int argc, char **argv)
{
	int cycles = argc > 1 ? atoi(argv[1]) : 0;
	int came = 0, kept = 0, ended = 0, refused = 0, left = 0;
	struct sigaction action = { .sa_handler = on_bus };
	sigaction(SIGBUS, &action, NULL);
	PROMISE("before it is plugged in, a disk is nowhere", !cycles || is_hidden());
	for (int i = 0; i < cycles; i++)
		cycle(&came, &kept, &ended, &refused, &left);
	PROMISE("each time it has a node, its size and entries of /proc and /sys", came == cycles);
	PROMISE("each time what is written to it is read back, and stored", kept == cycles);
	PROMISE("each time it went under load, and each transfer ended as EIO", ended == cycles);
	PROMISE("each time nothing shows it then, and its number is ENXIO", refused == cycles);
	PROMISE("each time files that are open on it are EIO, and pages SIGBUS", left == cycles);
	return conclude();
}
