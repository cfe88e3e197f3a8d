/*
 * io_setup, io_submit and their kin, by the system calls alone.
 *
 * Usage: aio [DISK SLOW-DISK]: with disks also past the page cache. DISK is written; SLOW-DISK
 * answers a few requests a second, each sector filled with its number.
 */
#include "promise.h"

#include <linux/aio_abi.h>
#include <sys/eventfd.h>

#define PAGE 4096

static int setup(unsigned requests, aio_context_t *context)
{
	return (int)syscall(SYS_io_setup, requests, context);
}

static int destroy(aio_context_t context)
{
	return (int)syscall(SYS_io_destroy, context);
}

static long submit(aio_context_t context, long count, struct iocb **blocks)
{
	return syscall(SYS_io_submit, context, count, blocks);
}

static long events_of(aio_context_t context, long least, long most, struct io_event *events, struct timespec *limit)
{
	return syscall(SYS_io_getevents, context, least, most, events, limit);
}

static struct iocb block(int operation, int fd, const void *buffer, size_t length, long offset)
{
	return (struct iocb){ .aio_lio_opcode = operation, .aio_fildes = fd, .aio_buf = (uintptr_t)buffer, .aio_nbytes = length,
			      .aio_offset = offset, .aio_data = 77 };
}

/* Submits one block; returns the number of operations that began. */
static long begin(aio_context_t context, struct iocb *one)
{
	return submit(context, 1, &one);
}

/* Submits one block and waits for its event; returns the result, or the error of submission. */
static long run(aio_context_t context, struct iocb *one)
{
	struct io_event event;
	if (begin(context, one) != 1)
		return -errno;
	NEED(events_of(context, 1, 1, &event, NULL) == 1);
	NEED(event.obj == (uintptr_t)one && event.data == one->aio_data && event.res2 == 0);
	return event.res;
}

static long number_in(const char *path)
{
	char text[32] = "";
	int fd = open(path, O_RDONLY);
	NEED(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
	close(fd);
	return atol(text);
}

static void contexts(void)
{
	aio_context_t context = 0, other = 0;
	FAILS_WITH("a context for no requests is EINVAL", setup(0, &context), EINVAL);
	FAILS_WITH("a context nowhere is EFAULT", setup(1, NULL), EFAULT);
	context = 5;
	FAILS_WITH("a context that is not 0 is EINVAL", setup(1, &context), EINVAL);
	context = 0;
	FAILS_WITH("a context for very many requests is EINVAL", setup(0x1000000, &context), EINVAL);
	FAILS_WITH("a context for more requests than all may have is EAGAIN", setup(100000, &context), EAGAIN);
	long before = number_in("/proc/sys/fs/aio-nr");
	NEED(number_in("/proc/sys/fs/aio-max-nr") >= 65536);
	PROMISE("a context", setup(100, &context) == 0 && context != 0);
	PROMISE("aio-nr counts its requests", number_in("/proc/sys/fs/aio-nr") == before + 100);
	PROMISE("another one", setup(1, &other) == 0 && other != context);
	int status;
	IN_CHILD(status, struct io_event event; _exit(events_of(context, 0, 1, &event, NULL) == -1 && errno == EINVAL ? 0 : 1));
	PROMISE("a child of fork has no contexts", status == 0);
	PROMISE("a context ends", destroy(context) == 0 && destroy(other) == 0);
	PROMISE("aio-nr falls", number_in("/proc/sys/fs/aio-nr") == before);
	FAILS_WITH("once", destroy(context), EINVAL);
	FAILS_WITH("none is EINVAL", destroy(0), EINVAL);
	IN_CHILD(status, aio_context_t own = 0; setup(1000, &own); _exit(0));
	for (int wait = 0; wait < 100 && number_in("/proc/sys/fs/aio-nr") != before; wait++)
		usleep(10000);
	PROMISE("a context ends with its process", number_in("/proc/sys/fs/aio-nr") == before);
	IN_CHILD(status, aio_context_t own = 0; setup(1000, &own); execl("/proc/self/exe", "aio", "wait", NULL); _exit(1));
	PROMISE("a context ends with its program", WEXITSTATUS(status) == before % 100);
}

static void files(void)
{
	aio_context_t context = 0;
	NEED(setup(8, &context) == 0);
	int fd = open("/tmp/aio-file", O_RDWR | O_CREAT | O_TRUNC, 0600), nowhere = open("/dev/null", O_RDONLY);
	NEED(fd >= 0 && nowhere >= 0);
	char bytes[16] = "";
	struct iocb one = block(IOCB_CMD_PWRITE, fd, "0123456789", 10, 3);
	PROMISE("bytes are written", run(context, &one) == 10);
	one = block(IOCB_CMD_PREAD, fd, bytes, 16, 5);
	PROMISE("and read", run(context, &one) == 8 && !memcmp(bytes, "23456789", 8));
	PROMISE("the file's position stays", lseek(fd, 0, SEEK_CUR) == 0);
	struct iovec parts[2] = { { bytes, 2 }, { bytes + 8, 3 } };
	one = block(IOCB_CMD_PREADV, fd, parts, 2, 3);
	PROMISE("into several places", run(context, &one) == 5 && !memcmp(bytes, "01", 2) && !memcmp(bytes + 8, "234", 3));
	one = block(IOCB_CMD_PWRITEV, fd, parts, 2, 100);
	PROMISE("from several", run(context, &one) == 5 && pread(fd, bytes, 5, 100) == 5 && !memcmp(bytes, "01234", 5));
	one = block(IOCB_CMD_PREAD, fd, (void *)8, 16, 0);
	PROMISE("a bad buffer is EFAULT in the event", run(context, &one) == -EFAULT);
	one = block(IOCB_CMD_PREADV, fd, (void *)8, 2, 0);
	FAILS_WITH("bad vectors are EFAULT at once", begin(context, &one), EFAULT);
	one = block(IOCB_CMD_PREAD, fd, bytes, 16, -1);
	FAILS_WITH("an offset below 0 is EINVAL", begin(context, &one), EINVAL);
	one = block(IOCB_CMD_PREAD, fd, bytes, -1, 0);
	FAILS_WITH("and a length", begin(context, &one), EINVAL);
	one = block(IOCB_CMD_PREAD, 1000, bytes, 16, 0);
	FAILS_WITH("no file is EBADF", begin(context, &one), EBADF);
	one = block(IOCB_CMD_PWRITE, nowhere, bytes, 16, 0);
	FAILS_WITH("a file that is not open for it, too", begin(context, &one), EBADF);
	one = block(6, fd, bytes, 16, 0);
	FAILS_WITH("an unknown operation is EINVAL", begin(context, &one), EINVAL);
	one = block(IOCB_CMD_PREAD, fd, bytes, 16, 0);
	one.aio_reserved2 = 1;
	FAILS_WITH("a reserved word that is set is EINVAL", begin(context, &one), EINVAL);
	one.aio_reserved2 = 0;
	one.aio_rw_flags = 1 << 30;
	FAILS_WITH("an unknown flag of the transfer is EOPNOTSUPP", begin(context, &one), EOPNOTSUPP);
	one = block(IOCB_CMD_FSYNC, fd, NULL, 0, 0);
	PROMISE("fsync", run(context, &one) == 0);
	one.aio_lio_opcode = IOCB_CMD_FDSYNC;
	PROMISE("fdatasync", run(context, &one) == 0);
	one.aio_nbytes = 1;
	FAILS_WITH("of a part is EINVAL", begin(context, &one), EINVAL);
	int directory = open("/tmp", O_RDONLY);
	one = block(IOCB_CMD_PREAD, directory, bytes, 16, 0);
	FAILS_WITH("a directory is EINVAL", begin(context, &one), EINVAL);
	close(directory);

	struct iocb good = block(IOCB_CMD_PREAD, fd, bytes, 1, 3), bad = block(IOCB_CMD_PREAD, 1000, bytes, 1, 3);
	struct iocb *list[3] = { &good, &bad, &good };
	struct io_event events[16];
	PROMISE("what began before a bad one is told", submit(context, 3, list) == 1);
	PROMISE("and ends", events_of(context, 1, 16, events, NULL) == 1);
	list[1] = (struct iocb *)8;
	PROMISE("as before a block that is nowhere", submit(context, 3, list) == 1 && events_of(context, 1, 16, events, NULL) == 1);
	FAILS_WITH("blocks nowhere are EFAULT", submit(context, 1, (struct iocb **)8), EFAULT);
	FAILS_WITH("fewer than no blocks are EINVAL", submit(context, -1, list), EINVAL);
	PROMISE("no blocks are none", submit(context, 0, list) == 0);
	FAILS_WITH("no context is EINVAL", submit(0, 1, list), EINVAL);

	struct timespec none = { 0, 0 }, some = { 0, 20000000 };
	PROMISE("without events and with no time there are none", events_of(context, 1, 1, events, &none) == 0);
	PROMISE("nor after some time", events_of(context, 1, 1, events, &some) == 0);
	PROMISE("no least number does not wait", events_of(context, 0, 1, events, NULL) == 0);
	FAILS_WITH("more at least than at most is EINVAL", events_of(context, 2, 1, events, &none), EINVAL);
	FAILS_WITH("less than none is EINVAL", events_of(context, -1, 1, events, &none), EINVAL);
	FAILS_WITH("a time nowhere is EFAULT", events_of(context, 1, 1, events, (void *)8), EFAULT);
	PROMISE("an event can be had", begin(context, &good) == 1);
	FAILS_WITH("but not nowhere", events_of(context, 1, 1, (void *)8, NULL), EFAULT);
	PROMISE("it stays", events_of(context, 1, 1, events, NULL) == 1 && events[0].res == 1);

	/* Linux has room for some more operations than were requested. */
	long begun = 0;
	while (begun < 4096 && begin(context, &good) == 1)
		begun++;
	int error = errno;
	PROMISE("there is room for so many requests, and an end to it with EAGAIN", begun >= 8 && begun < 4096 && error == EAGAIN);
	long taken = 0, count;
	while ((count = events_of(context, 0, 16, events, NULL)) > 0)
		taken += count;
	PROMISE("all their events come", taken == begun);
	PROMISE("then there is room again", begin(context, &good) == 1);
	close(fd);
	close(nowhere);
	unlink("/tmp/aio-file");
	PROMISE("events that nobody took end with their context", destroy(context) == 0);
}

static void counters(void)
{
	aio_context_t context = 0;
	NEED(setup(8, &context) == 0);
	int fd = open("/dev/zero", O_RDONLY), counter = eventfd(0, EFD_NONBLOCK);
	char bytes[16];
	struct io_event events[4];
	struct iocb one = block(IOCB_CMD_PREAD, fd, bytes, 16, 0);
	one.aio_flags = IOCB_FLAG_RESFD;
	one.aio_resfd = counter;
	PROMISE("an event counter is told", begin(context, &one) == 1 && begin(context, &one) == 1 && events_of(context, 2, 4, events, NULL) == 2);
	uint64_t told = 0;
	PROMISE("of each event", read(counter, &told, 8) == 8 && told == 2);
	one.aio_resfd = fd;
	FAILS_WITH("another file is EINVAL", begin(context, &one), EINVAL);
	one.aio_resfd = 1000;
	FAILS_WITH("no file is EBADF", begin(context, &one), EBADF);
	NEED(destroy(context) == 0);
	close(fd);
	close(counter);
}

static aio_context_t waited_for;
static volatile int signals;

static void on_signal(int number)
{
	(void)number;
	signals++;
}

static void *end_soon(void *nothing)
{
	usleep(50000);
	destroy(waited_for);
	return nothing;
}

static void polls(void)
{
	aio_context_t context = 0;
	NEED(setup(8, &context) == 0);
	int ends[2];
	NEED(pipe(ends) == 0);
	struct io_event event;
	struct timespec none = { 0, 0 };
	struct iocb one = block(IOCB_CMD_POLL, ends[0], (void *)POLLIN, 0, 0);
	PROMISE("a poll waits", begin(context, &one) == 1 && events_of(context, 1, 1, &event, &none) == 0);
	NEED(write(ends[1], "x", 1) == 1);
	PROMISE("until the file is ready", events_of(context, 1, 1, &event, NULL) == 1 && event.res & POLLIN);
	char byte;
	NEED(read(ends[0], &byte, 1) == 1);
	PROMISE("another one", begin(context, &one) == 1);
	FAILS_WITH("can be cancelled", syscall(SYS_io_cancel, context, &one, &event), EINPROGRESS);
	PROMISE("its event comes", events_of(context, 1, 1, &event, NULL) == 1 && event.obj == (uintptr_t)&one);
	FAILS_WITH("what is not there cannot", syscall(SYS_io_cancel, context, &one, &event), EINVAL);
	FAILS_WITH("nor what is nowhere", syscall(SYS_io_cancel, context, 8, &event), EFAULT);
	one.aio_key = 1;
	FAILS_WITH("nor what has another key", syscall(SYS_io_cancel, context, &one, &event), EINVAL);
	one = block(IOCB_CMD_POLL, ends[0], (void *)0x10001, 0, 0);
	FAILS_WITH("a poll for more than 16 bits is EINVAL", begin(context, &one), EINVAL);

	struct sigaction action = { .sa_handler = on_signal };
	sigaction(SIGALRM, &action, NULL);
	struct itimerval soon = { { 0, 20000 }, { 0, 20000 } }, never = { { 0, 0 }, { 0, 0 } };
	setitimer(ITIMER_REAL, &soon, NULL);
	FAILS_WITH("a signal ends a wait", events_of(context, 1, 1, &event, NULL), EINTR);
	sigset_t mask;
	sigemptyset(&mask);
	sigaddset(&mask, SIGALRM);
	struct {
		const sigset_t *mask;
		size_t size;
	} blocked = { &mask, 8 }, wrong = { &mask, 7 };
	struct timespec some = { 0, 100000000 };
	int before = signals;
	PROMISE("a signal that is blocked does not", syscall(SYS_io_pgetevents, context, 1, 1, &event, &some, &blocked) == 0);
	setitimer(ITIMER_REAL, &never, NULL);
	PROMISE("but comes after it", signals > before);
	FAILS_WITH("a mask of another size is EINVAL", syscall(SYS_io_pgetevents, context, 1, 1, &event, &some, &wrong), EINVAL);

	waited_for = context;
	pthread_t thread;
	NEED(pthread_create(&thread, NULL, end_soon, NULL) == 0);
	FAILS_WITH("a wait ends with EINVAL where its context ends", events_of(context, 1, 1, &event, NULL), EINVAL);
	pthread_join(thread, NULL);
	close(ends[0]);
	close(ends[1]);
}

static void disks(const char *disk, const char *slow)
{
	aio_context_t context = 0;
	NEED(setup(64, &context) == 0);
	int fd = open(disk, O_RDWR | O_DIRECT), late = open(slow, O_RDONLY | O_DIRECT);
	NEED(fd >= 0 && late >= 0);
	unsigned char *pages = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(pages != MAP_FAILED);
	struct iocb blocks[32], *list[32];
	struct io_event events[32];
	for (int i = 0; i < 32; i++) {
		memset(pages + i * PAGE, 'A' + i, PAGE);
		blocks[i] = block(IOCB_CMD_PWRITE, fd, pages + i * PAGE, PAGE, i * PAGE);
		list[i] = &blocks[i];
	}
	PROMISE("32 pages are on their way to a disk", submit(context, 32, list) == 32);
	PROMISE("all arrive", events_of(context, 32, 32, events, NULL) == 32);
	int whole = 0;
	for (int i = 0; i < 32; i++)
		whole += events[i].res == PAGE;
	PROMISE("whole", whole == 32);
	for (int i = 0; i < 32; i++)
		blocks[i] = block(IOCB_CMD_PREAD, fd, pages + (31 - i) * PAGE, PAGE, i * PAGE);
	int right = 0;
	NEED(submit(context, 32, list) == 32 && events_of(context, 32, 32, events, NULL) == 32);
	for (int i = 0; i < 32; i++)
		right += pages[(31 - i) * PAGE] == 'A' + i && pages[(31 - i) * PAGE + PAGE - 1] == 'A' + i;
	PROMISE("and come back", right == 32);
	struct iocb odd = block(IOCB_CMD_PREAD, fd, pages + 1, PAGE, 0);
	PROMISE("a buffer that is not aligned is EINVAL in the event", run(context, &odd) == -EINVAL);
	/* A disk that has rested answers one request at once. These three requests are not
	 * adjacent, so that a kernel does not merge them into one. */
	struct timespec none = { 0, 0 };
	for (int i = 0; i < 3; i++)
		blocks[i] = block(IOCB_CMD_PREAD, late, pages + i * PAGE, PAGE, 4 * i * PAGE);
	NEED(submit(context, 3, list) == 3);
	long early = events_of(context, 1, 3, events, &none);
	PROMISE("a slow disk is not waited for", early >= 0 && early < 3);
	PROMISE("but its answers come", events_of(context, 3 - early, 3 - early, events, NULL) == 3 - early && events[0].res == PAGE);
	NEED(begin(context, &blocks[0]) == 1);
	PROMISE("a context ends after what disks have in hand", destroy(context) == 0);
	memset(pages, 0, PAGE);
	close(fd);
	close(late);
}

int main(int count, char **arguments)
{
	if (count == 2 && !strcmp(arguments[1], "wait")) {
		long before = 1 << 30, now;
		for (int wait = 0; wait < 100 && (now = number_in("/proc/sys/fs/aio-nr")) < before; wait++) {
			before = now;
			usleep(10000);
		}
		return (int)(number_in("/proc/sys/fs/aio-nr") % 100);
	}
	contexts();
	files();
	counters();
	polls();
	if (count == 3)
		disks(arguments[1], arguments[2]);
	return conclude();
}
