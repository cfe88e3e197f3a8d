/*
 * io_uring, by its system calls alone.
 *
 * Usage: uring [DISK SLOW-DISK]: with disks also reads and writes past the page cache. DISK is
 * written; SLOW-DISK answers a few requests a second, each sector filled with its number.
 */
#include "promise.h"

#include "ring.h"
#include "sockets.h"

#include <sys/eventfd.h>
#include <sys/ioctl.h>

#define SECTOR 512
#define USER 1000
#define PAGE 4096

static unsigned char *pages(size_t length)
{
	void *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(at != MAP_FAILED);
	return at;
}

static void setting_up(void)
{
	struct io_uring_params params = { 0 };
	FAILS_WITH("a ring without entries is EINVAL", setup(0, &params), EINVAL);
	FAILS_WITH("a ring of too many entries is EINVAL", setup(32769, &params), EINVAL);
	FAILS_WITH("parameters nowhere are EFAULT", setup(4, NULL), EFAULT);
	params.flags = 1u << 31;
	FAILS_WITH("unknown flags are EINVAL", setup(4, &params), EINVAL);
	memset(&params, 0, sizeof params);
	params.flags = IORING_SETUP_CLAMP;
	int fd = setup(1 << 20, &params);
	PROMISE("too many entries are clamped where asked", fd >= 0 && params.sq_entries == 32768);
	close(fd);
	memset(&params, 0, sizeof params);
	fd = setup(5, &params);
	PROMISE("entries are a power of two, completions twice as many",
		fd >= 0 && params.sq_entries == 8 && params.cq_entries == 16);
	PROMISE("the descriptor is closed by execve", fcntl(fd, F_GETFD) == FD_CLOEXEC);
	FAILS_WITH("unknown flags of enter are EINVAL", enter(fd, 0, 0, 1u << 30, NULL, 0), EINVAL);
	PROMISE("an empty ring submits nothing", enter(fd, 5, 0, 0, NULL, 0) == 0);
	close(fd);
	fd = open("/dev/null", O_RDWR);
	FAILS_WITH("another file is EOPNOTSUPP", enter(fd, 0, 0, 0, NULL, 0), EOPNOTSUPP);
	close(fd);
	FAILS_WITH("no file is EBADF", enter(fd, 0, 0, 0, NULL, 0), EBADF);
}

static void files(struct ring *ring)
{
	char name[] = "/tmp/uringXXXXXX";
	int fd = mkstemp(name);
	NEED(fd >= 0);
	unlink(name);
	char back[64] = { 0 };
	PROMISE("nothing is done", run_one(ring, IORING_OP_NOP, -1, NULL, 0, 0) == 0);
	PROMISE("a write tells its length", run_one(ring, IORING_OP_WRITE, fd, "hello ring", 10, 0) == 10);
	PROMISE("a read gives it back", run_one(ring, IORING_OP_READ, fd, back, 64, 6) == 4 && !memcmp(back, "ring", 4));
	struct iovec in[2] = { { back, 3 }, { back + 32, 20 } };
	PROMISE("readv fills buffers in order", run_one(ring, IORING_OP_READV, fd, in, 2, 0) == 10 &&
							!memcmp(back, "hel", 3) && !memcmp(back + 32, "lo ring", 7));
	struct iovec out[2] = { { "ab", 2 }, { "cd", 2 } };
	PROMISE("writev takes them in order", run_one(ring, IORING_OP_WRITEV, fd, out, 2, 10) == 4);
	lseek(fd, 2, SEEK_SET);
	PROMISE("offset -1 reads where the file is", run_one(ring, IORING_OP_READ, fd, back, 3, -1) == 3 &&
							     !memcmp(back, "llo", 3) && lseek(fd, 0, SEEK_CUR) == 5);
	PROMISE("fsync ends with 0", run_one(ring, IORING_OP_FSYNC, fd, NULL, 0, 0) == 0);
	PROMISE("a bad address is EFAULT", run_one(ring, IORING_OP_READ, fd, (void *)8, 10, 0) == -EFAULT);
	PROMISE("a bad descriptor is EBADF", run_one(ring, IORING_OP_READ, 999, back, 10, 0) == -EBADF);
	PROMISE("an unknown operation is EINVAL", run_one(ring, 200, fd, NULL, 0, 0) == -EINVAL);
	for (int i = 0; i < 5; i++)
		add(ring, IORING_OP_NOP, -1, NULL, 0, 0, 50 + i);
	PROMISE("several are submitted at once", enter(ring->fd, 5, 5, IORING_ENTER_GETEVENTS, NULL, 0) == 5);
	int kept = 1;
	for (int i = 0; i < 5; i++)
		kept &= take(ring, 50 + i) == 0;
	PROMISE("and completed in order", kept);
	ring->sq_array[*ring->sq_tail & ring->sq_mask] = 77;
	__atomic_store_n(ring->sq_tail, *ring->sq_tail + 1, __ATOMIC_RELEASE);
	unsigned dropped = *ring->sq_dropped;
	enter(ring->fd, 1, 0, 0, NULL, 0);
	PROMISE("an index behind the entries is dropped and counted", *ring->sq_dropped == dropped + 1 && arrived(ring) == 0);
	close(fd);
}

static void waiting(struct ring *ring)
{
	int pipe_[2], pair[2];
	char back[16] = { 0 };
	NEED(pipe(pipe_) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	add(ring, IORING_OP_READ, pipe_[0], back, 16, 0, 1);
	PROMISE("a read of an empty pipe does not hold up its submitter", enter(ring->fd, 1, 0, 0, NULL, 0) == 1);
	sleep_ms(20);
	PROMISE("and waits", arrived(ring) == 0);
	NEED(write(pipe_[1], "late", 4) == 4);
	PROMISE("until there is something", take(ring, 1) == 4 && !memcmp(back, "late", 4));
	add(ring, IORING_OP_POLL_ADD, pair[0], NULL, 0, 0, 2)->poll32_events = POLLIN;
	NEED(enter(ring->fd, 1, 0, 0, NULL, 0) == 1);
	PROMISE("a poll waits", arrived(ring) == 0);
	NEED(write(pair[1], "x", 1) == 1);
	PROMISE("and tells what is ready", take(ring, 2) & POLLIN);
	add(ring, IORING_OP_POLL_ADD, pipe_[0], NULL, 0, 0, 3)->poll32_events = POLLIN;
	NEED(enter(ring->fd, 1, 0, 0, NULL, 0) == 1);
	add(ring, IORING_OP_POLL_REMOVE, -1, (void *)3, 0, 0, 4);
	NEED(enter(ring->fd, 1, 2, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
	int seen = 0;
	for (int i = 0; i < 2; i++) {
		struct io_uring_cqe cqe = ring->cqes[*ring->cq_head & ring->cq_mask];
		seen |= cqe.user_data == 3 && cqe.res == -ECANCELED ? 1 : cqe.user_data == 4 && cqe.res == 0 ? 2 : 4;
		++*ring->cq_head;
	}
	PROMISE("a removed poll is cancelled", seen == 3);
	PROMISE("one that is not there is ENOENT", run_one(ring, IORING_OP_POLL_REMOVE, -1, (void *)3, 0, 0) == -ENOENT);
	struct __kernel_timespec soon = { 0, 30000000 }, never = { 1000, 0 };
	int64_t start = now_ms();
	PROMISE("a timeout is ETIME", run_one(ring, IORING_OP_TIMEOUT, -1, &soon, 1, 0) == -ETIME);
	PROMISE("not before its time", now_ms() - start >= 29);
	add(ring, IORING_OP_TIMEOUT, -1, &never, 1, 1, 5);
	add(ring, IORING_OP_NOP, -1, NULL, 0, 0, 6);
	NEED(enter(ring->fd, 2, 2, IORING_ENTER_GETEVENTS, NULL, 0) == 2);
	PROMISE("a timeout of one completion ends with it", take(ring, 6) == 0 && take(ring, 5) == 0);
	add(ring, IORING_OP_TIMEOUT, -1, &never, 1, 0, 7);
	NEED(enter(ring->fd, 1, 0, 0, NULL, 0) == 1);
	add(ring, IORING_OP_TIMEOUT_REMOVE, -1, (void *)7, 0, 0, 8);
	NEED(enter(ring->fd, 1, 2, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
	int sum = 0;
	for (int i = 0; i < 2; i++)
		sum += ring->cqes[(*ring->cq_head)++ & ring->cq_mask].res;
	PROMISE("a removed timeout is cancelled", sum == -ECANCELED);
	if (ring->params.features & IORING_FEAT_EXT_ARG) {
		struct __kernel_timespec wait = { 0, 20000000 };
		struct io_uring_getevents_arg arg = { 0, 0, 0, (uintptr_t)&wait };
		FAILS_WITH("waiting has an end where asked",
			   enter(ring->fd, 0, 1, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &arg, sizeof arg), ETIME);
	}
	struct pollfd watched = { ring->fd, POLLIN, 0 };
	PROMISE("an empty ring is not readable", poll(&watched, 1, 0) == 0);
	add(ring, IORING_OP_NOP, -1, NULL, 0, 0, 9);
	NEED(enter(ring->fd, 1, 0, 0, NULL, 0) == 1);
	PROMISE("one with a completion is", poll(&watched, 1, 0) == 1 && watched.revents == POLLIN && take(ring, 9) == 0);
	int status;
	add(ring, IORING_OP_READ, pipe_[0], back, 16, 0, 10);
	NEED(enter(ring->fd, 1, 0, 0, NULL, 0) == 1);
	IN_CHILD(status, _exit(0));
	back[0] = 'u';
	NEED(write(pipe_[1], "fork", 4) == 4);
	PROMISE("what waits ends in the memory of who asked, whoever forked", take(ring, 10) == 4 && !memcmp(back, "fork", 4));
	close(pipe_[0]);
	close(pipe_[1]);
	close(pair[0]);
	close(pair[1]);
}

static void overflow(void)
{
	struct ring ring;
	open_ring(&ring);
	for (int round = 0; round < 3; round++) {
		for (unsigned i = 0; i < ENTRIES; i++)
			add(&ring, IORING_OP_NOP, -1, NULL, 0, 0, 100 + round * ENTRIES + i);
		NEED(enter(ring.fd, ENTRIES, 0, 0, NULL, 0) == ENTRIES);
	}
	PROMISE("a full ring says that more waits",
		arrived(&ring) == 2 * ENTRIES && __atomic_load_n(ring.sq_flags, __ATOMIC_ACQUIRE) & IORING_SQ_CQ_OVERFLOW);
	int kept = 1;
	for (unsigned i = 0; i < 3 * ENTRIES; i++)
		kept &= take(&ring, 100 + i) == 0;
	PROMISE("and none is lost, nor their order", kept && arrived(&ring) == 0);
	close(ring.fd);
}

static void buffers(struct ring *ring)
{
	unsigned char *fixed = pages(4 * PAGE);
	struct iovec vectors[2] = { { fixed, 2 * PAGE }, { fixed + 3 * PAGE, PAGE } };
	int registering = SYS_io_uring_register;
	FAILS_WITH("no buffers are EINVAL", syscall(registering, ring->fd, IORING_REGISTER_BUFFERS, vectors, 0), EINVAL);
	struct iovec wrong = { (void *)16, PAGE };
	FAILS_WITH("unmapped buffers are EFAULT", syscall(registering, ring->fd, IORING_REGISTER_BUFFERS, &wrong, 1), EFAULT);
	struct iovec own = { ring->sqes, PAGE };
	FAILS_WITH("a ring's own memory is no buffer", syscall(registering, ring->fd, IORING_REGISTER_BUFFERS, &own, 1), EOPNOTSUPP);
	FAILS_WITH("none are there to unregister", syscall(registering, ring->fd, IORING_UNREGISTER_BUFFERS, NULL, 0), ENXIO);
	NEED(syscall(registering, ring->fd, IORING_REGISTER_BUFFERS, vectors, 2) == 0);
	FAILS_WITH("twice is EBUSY", syscall(registering, ring->fd, IORING_REGISTER_BUFFERS, vectors, 2), EBUSY);
	int zero = open("/dev/zero", O_RDONLY), file = open("/tmp", O_TMPFILE | O_RDWR, 0600);
	NEED(zero >= 0 && file >= 0 && write(file, "fixed buffers", 13) == 13);
	add(ring, IORING_OP_READ_FIXED, file, fixed + 100, 50, 0, 1)->buf_index = 0;
	PROMISE("a read fills a registered buffer", finish(ring, 1) == 13 && !memcmp(fixed + 100, "fixed buffers", 13));
	add(ring, IORING_OP_WRITE_FIXED, file, fixed + 106, 7, 20, 2)->buf_index = 0;
	char back[8] = { 0 };
	PROMISE("a write takes from it", finish(ring, 2) == 7 && pread(file, back, 7, 20) == 7 && !memcmp(back, "buffers", 7));
	add(ring, IORING_OP_READ_FIXED, file, fixed + PAGE, 2 * PAGE, 0, 3)->buf_index = 0;
	PROMISE("beyond its end is EFAULT", finish(ring, 3) == -EFAULT);
	add(ring, IORING_OP_READ_FIXED, file, fixed, 10, 0, 4)->buf_index = 2;
	PROMISE("a buffer that is not there is EFAULT", finish(ring, 4) == -EFAULT);
	/* A registered buffer stays the program's memory through a fork and a store. */
	int status, gate[2];
	NEED(pipe(gate) == 0);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		char c;
		close(gate[1]);
		(void)!read(gate[0], &c, 1);
		_exit(fixed[100] == 'f' ? 0 : 1);
	}
	close(gate[0]);
	fixed[101] = 'F';
	NEED(pwrite(file, "FORK", 4, 0) == 4);
	add(ring, IORING_OP_READ_FIXED, file, fixed + 100, 4, 0, 5)->buf_index = 0;
	PROMISE("it stays the program's memory after a fork and a store", finish(ring, 5) == 4 && !memcmp(fixed + 100, "FORKd", 5));
	close(gate[1]);
	PROMISE("and the child's is its own", waitpid(child, &status, 0) == child && status == 0);
	PROMISE("unregistering ends it", syscall(registering, ring->fd, IORING_UNREGISTER_BUFFERS, NULL, 0) == 0);
	struct {
		struct io_uring_probe probe;
		struct io_uring_probe_op ops[256];
	} probe = { 0 };
	PROMISE("a probe knows the operations",
		syscall(registering, ring->fd, IORING_REGISTER_PROBE, &probe, 256) == 0 && probe.probe.last_op >= IORING_OP_WRITE &&
			probe.ops[IORING_OP_READ_FIXED].flags == IO_URING_OP_SUPPORTED);
	close(zero);
	close(file);
	munmap(fixed, 4 * PAGE);
}

static void disks(struct ring *ring, const char *disk, const char *slow_disk)
{
	int fd = open(disk, O_RDWR | O_DIRECT), slow = open(slow_disk, O_RDONLY | O_DIRECT);
	NEED(fd >= 0 && slow >= 0);
	unsigned char *page = pages(4 * PAGE);
	memset(page, 0x5a, 2 * PAGE);
	PROMISE("a direct write ends", run_one(ring, IORING_OP_WRITE, fd, page, 2 * PAGE, 0) == 2 * PAGE);
	PROMISE("a direct read sees it",
		run_one(ring, IORING_OP_READ, fd, page + 2 * PAGE, 2 * PAGE, 0) == 2 * PAGE && !memcmp(page, page + 2 * PAGE, 2 * PAGE));
	int cached = open(disk, O_RDWR);
	struct iovec of_disk = { mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, cached, 0), PAGE };
	NEED(of_disk.iov_base != MAP_FAILED);
	FAILS_WITH("a disk's own pages are no buffer", syscall(SYS_io_uring_register, ring->fd, IORING_REGISTER_BUFFERS, &of_disk, 1), EOPNOTSUPP);
	munmap(of_disk.iov_base, PAGE);
	close(cached);
	PROMISE("odd borders are EINVAL", run_one(ring, IORING_OP_READ, fd, page + 3, SECTOR, 0) == -EINVAL);
	PROMISE("fsync reaches the disk", run_one(ring, IORING_OP_FSYNC, fd, NULL, 0, 0) == 0);
	/* The disk decides whether a read is still in flight at the fork. So the child reads the
	 * memory first: only a later change in it is a failure. */
	enum { UNTOUCHED, CHANGED, LANDED_BEFORE };
	int kept = 1, flown = 0;
	for (int tries = 1; tries <= 64 && kept && !flown; tries++) {
		memset(page, 0xee, PAGE);
		NEED(run_one(ring, IORING_OP_READ, slow, page + 2048, SECTOR, 0) == SECTOR);
		add(ring, IORING_OP_READ, slow, page + SECTOR, SECTOR, tries * SECTOR, 1);
		NEED(enter(ring->fd, 1, 0, 0, NULL, 0) == 1);
		int status, landed[2];
		NEED(pipe(landed) == 0);
		pid_t child = fork();
		NEED(child >= 0);
		if (child == 0) {
			char c;
			int first = ((volatile unsigned char *)page)[SECTOR];
			close(landed[1]);
			(void)!read(landed[0], &c, 1);
			_exit(first != 0xee ? LANDED_BEFORE : page[SECTOR] == 0xee ? UNTOUCHED : CHANGED);
		}
		page[0] = 0x11;
		close(landed[0]);
		kept = take(ring, 1) == SECTOR && page[SECTOR] == tries && page[2 * SECTOR - 1] == tries && page[0] == 0x11;
		close(landed[1]);
		NEED(waitpid(child, &status, 0) == child && WIFEXITED(status));
		kept &= WEXITSTATUS(status) != CHANGED;
		flown = WEXITSTATUS(status) == UNTOUCHED;
	}
	PROMISE("a read in flight survives a fork, and the child does not see it", kept && flown);
	add(ring, IORING_OP_READ, slow, page, SECTOR, 0, 2);
	add(ring, IORING_OP_READ, slow, page, SECTOR, SECTOR, 3);
	NEED(enter(ring->fd, 2, 0, 0, NULL, 0) == 2);
	close(slow);
	munmap(page, 4 * PAGE);
	/* Two requests may end in any order. */
	int ended = 0;
	for (int i = 0; i < 2; i++) {
		while (arrived(ring) == 0)
			enter(ring->fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
		struct io_uring_cqe cqe = ring->cqes[(*ring->cq_head)++ & ring->cq_mask];
		ended |= cqe.res != SECTOR ? 8 : cqe.user_data == 2 ? 1 : cqe.user_data == 3 ? 2 : 4;
	}
	PROMISE("reads in flight end after their file is closed and their memory gone", ended == 3);
	close(fd);
}

/* Sends through a ring as a user; returns the user ID that the receiver gets. */
static uid_t sender_by_ring(int waits)
{
	int ends[2], one = 1;
	char name[] = "x", control[CMSG_SPACE(sizeof(struct ucred))] = { 0 };
	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && setsockopt(ends[0], SOL_SOCKET, SO_PASSCRED, &one, sizeof one) == 0);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		struct ring ring;
		NEED(setgid(USER) == 0 && setuid(USER) == 0);
		open_ring(&ring);
		add(&ring, IORING_OP_WRITE, ends[1], "x", 1, 0, 1)->flags = waits ? IOSQE_ASYNC : 0;
		_exit(finish(&ring, 1) != 1);
	}
	struct iovec in = { name, 1 };
	struct msghdr message = { .msg_iov = &in, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	struct ucred who = { 0, 0, 0 };
	int status;
	NEED(waitpid(child, &status, 0) == child && status == 0 && recvmsg(ends[0], &message, 0) == 1);
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	NEED(header && header->cmsg_type == SCM_CREDENTIALS);
	memcpy(&who, CMSG_DATA(header), sizeof who);
	close(ends[0]);
	close(ends[1]);
	return who.pid == child && who.gid == who.uid ? who.uid : 0;
}

static void names(void)
{
	PROMISE("a write that ends at once is the user's", sender_by_ring(0) == USER);
	PROMISE("and so is one that a task of the kernel makes", sender_by_ring(1) == USER);
}

/* A splice waits for a socket, and a ring's request waits for the pipe that the splice fills. */
static void beside_a_splice(void)
{
	int pipe_[2], pair[2], waiting = 0, status;
	char back[16];
	struct ring ring;
	open_ring(&ring);
	NEED(pipe(pipe_) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && write(pipe_[1], "x", 1) == 1);
	fflush(stdout);
	pid_t splicer = fork();
	NEED(splicer >= 0);
	if (!splicer)
		_exit(splice(pair[0], NULL, pipe_[1], NULL, PAGE, 0) != 4);
	sleep_ms(50);
	add(&ring, IORING_OP_READ, pipe_[0], back, sizeof back, 0, 1)->flags = IOSQE_ASYNC;
	NEED(enter(ring.fd, 1, 0, 0, NULL, 0) == 1);
	sleep_ms(50);
	pid_t other = fork();
	NEED(other >= 0);
	if (!other)
		_exit(0);
	PROMISE("programs end while a splice and a ring wait for each other", COMES_TRUE(waitpid(other, NULL, WNOHANG) == other));
	NEED(write(pair[1], "more", 4) == 4);
	PROMISE("the splice goes on with the next bytes", COMES_TRUE(waitpid(splicer, &status, WNOHANG) == splicer) && status == 0);
	PROMISE("and the ring's request ends", COMES_TRUE(arrived(&ring) == 1) && take(&ring, 1) > 0);
	PROMISE("no byte is lost", ioctl(pipe_[0], FIONREAD, &waiting) == 0 && waiting <= 4);
	int last[] = { pipe_[0], pipe_[1], pair[0], pair[1], ring.fd };
	for (int i = 0; i < 5; i++)
		close(last[i]);
}

/* Files that hold references to each other, and to pinned pages. The kernel's closing audit of all
 * frames must find none of them in use. */
static void circles(void)
{
	int ends[2], full[2];
	struct ring ring;
	open_ring(&ring);
	struct iovec page = { pages(PAGE), PAGE };
	NEED(syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &page, 1) == 0);
	int memory = open("/proc/self/mem", O_RDWR);
	NEED(memory >= 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
	add(&ring, IORING_OP_POLL_ADD, memory, NULL, 0, 0, 1)->poll32_events = POLLPRI;
	add(&ring, IORING_OP_POLL_ADD, ring.fd, NULL, 0, 0, 2)->poll32_events = POLLPRI;
	PROMISE("a ring may wait for the memory that it is mapped into, and for itself", enter(ring.fd, 2, 0, 0, NULL, 0) == 2);
	NEED(pipe(full) == 0 && vmsplice(full[1], &page, 1, 0) == PAGE);
	int files[] = { ends[1], full[0], memory };
	PROMISE("a socket may be sent to itself, with a pipe that was lent a page", send_files(ends[0], files, 3, 0) == 1);
	files[1] = ring.fd;
	FAILS_WITH("a ring may not be sent", send_files(ends[0], files, 3, 0), EINVAL);
	int last[] = { ends[0], ends[1], full[0], full[1], memory, ring.fd };
	for (int i = 0; i < 6; i++)
		close(last[i]);
}

/* Tasks of the whole machine, the kernel's too. */
static long tasks(void)
{
	long all = -1;
	FILE *load = fopen("/proc/loadavg", "r");
	NEED(load && fscanf(load, "%*s %*s %*s %*d/%ld", &all) == 1 && fclose(load) == 0);
	return all;
}

/* Requests that wait need no task for each ring. */
static void many_rings(void)
{
	enum { RINGS = 40, EACH = 5 };
	static struct ring rings[RINGS];
	int counters[RINGS], wrong = 0;
	long before = tasks();
	for (int i = 0; i < RINGS; i++) {
		open_ring(&rings[i]);
		NEED((counters[i] = eventfd(0, EFD_NONBLOCK)) >= 0);
		for (int k = 0; k < EACH; k++)
			add(&rings[i], IORING_OP_POLL_ADD, counters[i], NULL, 0, 0, k % 2)->poll32_events = POLLIN;
		NEED(enter(rings[i].fd, EACH, 0, 0, NULL, 0) == EACH);
	}
	PROMISE("requests that wait need no task for each ring", tasks() - before < RINGS / 2);
	for (int i = 0; i < RINGS; i++) {
		add(&rings[i], IORING_OP_POLL_REMOVE, -1, NULL, 0, 0, 9)->addr = 0;
		wrong += enter(rings[i].fd, 1, 2, IORING_ENTER_GETEVENTS, NULL, 0) != 1;
		int one = take(&rings[i], 0), two = take(&rings[i], 9);
		wrong += one != -ECANCELED || two != 0 || arrived(&rings[i]) != 0;
	}
	PROMISE("one of several requests of a name is cancelled", wrong == 0);
	for (int i = RINGS - 1; i >= 0; i--) {
		uint64_t value = 1;
		NEED(write(counters[i], &value, 8) == 8);
		wrong += enter(rings[i].fd, 0, EACH - 1, IORING_ENTER_GETEVENTS, NULL, 0) != 0 || arrived(&rings[i]) != EACH - 1;
	}
	PROMISE("an event ends all requests that wait for it, and no other ring's", wrong == 0);
	for (int i = 0; i < RINGS; i++) {
		close(rings[i].fd);
		close(counters[i]);
	}
}

int main(int argc, char **argv)
{
	struct ring ring;
	setting_up();
	open_ring(&ring);
	files(&ring);
	waiting(&ring);
	overflow();
	buffers(&ring);
	if (argc == 3)
		disks(&ring, argv[1], argv[2]);
	close(ring.fd);
	circles();
	many_rings();
	beside_a_splice();
	names();
	return conclude();
}
