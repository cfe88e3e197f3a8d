/*
 * Release of long chains: files and processes that own each other, to a depth far above the number
 * of words of a kernel stack. Also checks which effects other programs see when close, exit and
 * umount return. The argument is the depth (default 4000: a kernel stack has 3072 words).
 */
#include "promise.h"
#include "sockets.h"
#include "ring.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/un.h>

static int depth = 4000;

/* A pair whose second end is wrapped in a queue of the next pair, `depth` times. Returns the end
 * that holds all the others. */
static int wrap(int kind, int inner, int levels)
{
	for (int level = 0; level < levels; level++) {
		int pair[2];
		NEED(socketpair(AF_UNIX, kind, 0, pair) == 0);
		NEED(send_files(pair[0], &inner, 1, 0) == 1);
		close(pair[0]);
		close(inner);
		inner = pair[1];
	}
	return inner;
}

/* Takes apart what wrap made: returns the innermost file and the number of levels. */
static int unwrap(int outer, int *levels)
{
	for (*levels = 0;; ++*levels) {
		union {
			struct cmsghdr head;
			char room[CMSG_SPACE(sizeof(int))];
		} beside;
		char byte;
		struct iovec one = { &byte, 1 };
		struct msghdr message = { .msg_iov = &one, .msg_iovlen = 1, .msg_control = &beside, .msg_controllen = sizeof beside };
		if (recvmsg(outer, &message, MSG_DONTWAIT) != 1 || message.msg_controllen == 0)
			return outer;
		close(outer);
		memcpy(&outer, CMSG_DATA(&beside.head), sizeof outer);
	}
}

static int reads_end(int pipe)
{
	char byte;
	struct pollfd wait = { pipe, POLLIN, 0 };
	return poll(&wait, 1, 0) == 1 && read(pipe, &byte, 1) == 0;
}

static void queues(int kind, const char *name)
{
	int ends[2], pair[2], passed;
	char text[128];
	NEED(pipe(ends) == 0);
	int outer = wrap(kind, ends[1], depth);
	fcntl(ends[0], F_SETFL, O_NONBLOCK);
	char byte;
	snprintf(text, sizeof text, "%s: a file in a queue in a queue … is open", name);
	FAILS_WITH(text, read(ends[0], &byte, 1), EAGAIN);
	close(outer);
	snprintf(text, sizeof text, "%s: closing the outermost closes the innermost", name);
	PROMISE(text, COMES_TRUE(reads_end(ends[0])));
	close(ends[0]);

	NEED(pipe(ends) == 0);
	outer = unwrap(wrap(kind, ends[1], 50), &passed);
	snprintf(text, sizeof text, "%s: what is wrapped can be unwrapped", name);
	PROMISE(text, passed == 50 && write(outer, "x", 1) == 1 && read(ends[0], &byte, 1) == 1);
	close(outer);
	close(ends[0]);

	/* Several chains in one message, each with sockets that hold the next one. */
	NEED(socketpair(AF_UNIX, kind, 0, pair) == 0 && pipe(ends) == 0);
	int files[8];
	for (int i = 0; i < 8; i++)
		files[i] = wrap(kind, dup(ends[1]), depth / 16);
	NEED(send_files(pair[0], files, 8, 0) == 1);
	for (int i = 0; i < 8; i++)
		close(files[i]);
	close(ends[1]);
	close(pair[0]);
	close(pair[1]);
	snprintf(text, sizeof text, "%s: several chains in one message", name);
	PROMISE(text, COMES_TRUE(reads_end(ends[0])));
	close(ends[0]);
}

static socklen_t address_of(struct sockaddr_un *address, int number)
{
	memset(address, 0, sizeof *address);
	address->sun_family = AF_UNIX;
	return offsetof(struct sockaddr_un, sun_path) + 1 +
		sprintf(address->sun_path + 1, "drops-%d-%d", getpid(), number);
}

/* A listener whose backlog holds a connection that carries `inner`. */
static int backlog(int inner, int number)
{
	struct sockaddr_un address;
	socklen_t length = address_of(&address, number);
	int listener = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
	NEED(listener >= 0 && client >= 0 && bind(listener, (void *)&address, length) == 0 && listen(listener, 4) == 0);
	NEED(connect(client, (void *)&address, length) == 0 && send_files(client, &inner, 1, 0) == 1);
	close(client);
	close(inner);
	return listener;
}

static void backlogs(void)
{
	int ends[2];
	char byte;
	NEED(pipe(ends) == 0);
	int outer = ends[1];
	for (int level = 0; level < depth; level++)
		outer = backlog(outer, level);
	fcntl(ends[0], F_SETFL, O_NONBLOCK);
	FAILS_WITH("a file that waits in a backlog in a backlog … is open", read(ends[0], &byte, 1), EAGAIN);
	close(outer);
	PROMISE("closing the outermost listener closes it", COMES_TRUE(reads_end(ends[0])));
	close(ends[0]);
}

static int exits_cleanly(int status)
{
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void garbage(void)
{
	int ends[2], status;
	NEED(pipe(ends) == 0);
	/* Each socket of a ring lies in the queue of the one before it: a chain without an
	 * outermost socket. */
	IN_CHILD(status, {
		int pair[2], first, inner;
		NEED(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
		first = pair[0];
		inner = pair[1];
		NEED(send_files(first, &ends[1], 1, 0) == 1);
		inner = wrap(SOCK_DGRAM, inner, depth);
		NEED(send_files(first, &inner, 1, 0) == 1);
	});
	close(ends[1]);
	PROMISE("a ring of sockets in each other's queues goes with its process", exits_cleanly(status) && COMES_TRUE(reads_end(ends[0])));
	close(ends[0]);

	NEED(pipe(ends) == 0);
	IN_CHILD(status, {
		struct sockaddr_un address;
		socklen_t length = address_of(&address, 0);
		int listener = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
		NEED(bind(listener, (void *)&address, length) == 0 && listen(listener, 4) == 0);
		int both[2] = { listener, ends[1] };
		NEED(connect(client, (void *)&address, length) == 0 && send_files(client, both, 2, 0) == 1);
	});
	close(ends[1]);
	PROMISE("so does a listener in its own backlog", exits_cleanly(status) && COMES_TRUE(reads_end(ends[0])));
	close(ends[0]);

	/* A process that goes on making garbage does not fill memory with it. */
	NEED(pipe(ends) == 0);
	fcntl(ends[0], F_SETFL, O_NONBLOCK);
	for (int i = 0; i < 5000; i++) {
		int pair[2];
		NEED(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
		int both[2] = { pair[1], i == 0 ? ends[1] : pair[1] };
		NEED(send_files(pair[0], both, 2, 0) == 1);
		close(pair[0]);
		close(pair[1]);
	}
	close(ends[1]);
	PROMISE("garbage is found while a program makes it", COMES_TRUE(reads_end(ends[0])));
	close(ends[0]);
}

/* A process whose ring waits for sockets with a chain in their queue, and whose memory shows the
 * ring. */
static void rings(void)
{
	int ends[2], status;
	NEED(pipe(ends) == 0);
	IN_CHILD(status, {
		struct ring ring;
		int pair[2], outer = wrap(SOCK_STREAM, ends[1], depth);
		open_ring(&ring);
		NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && send_files(pair[0], &outer, 1, 0) == 1);
		close(outer);
		for (int i = 0; i < 2; i++) {
			next_entry(&ring, IORING_OP_POLL_ADD, pair[i], i)->poll32_events = POLLPRI;
			NEED(enter(ring.fd, 1, 0, 0, NULL, 0) == 1);
			close(pair[i]);
		}
		NEED(arrived(&ring) == 0);
	});
	close(ends[1]);
	PROMISE("a chain that a ring's request begins goes with its process", exits_cleanly(status) && COMES_TRUE(reads_end(ends[0])));
	close(ends[0]);
}

static void too_many(void)
{
	int status;
	IN_CHILD(status, {
		struct rlimit limit = { 20, 20 };
		int pair[2], sent = 0;
		NEED(setrlimit(RLIMIT_NOFILE, &limit) == 0 && setuid(1234) == 0);
		NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
		while (sent < 100 && send_files(pair[0], &pair[0], 1, MSG_DONTWAIT) == 1)
			sent++;
		_exit(errno != ETOOMANYREFS || sent != 21);
	});
	PROMISE("a user may have no more files in flight than descriptors", exits_cleanly(status));
	IN_CHILD(status, {
		struct rlimit limit = { 20, 20 };
		int pair[2], passed;
		NEED(setrlimit(RLIMIT_NOFILE, &limit) == 0 && setuid(1234) == 0);
		NEED(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
		for (int i = 0; i < 100; i++) {
			NEED(send_files(pair[0], &pair[0], 1, 0) == 1);
			close(unwrap(dup(pair[1]), &passed));
		}
	});
	PROMISE("what has arrived counts no more", exits_cleanly(status));
}

/* A user has many files in flight and closes them, then hides full queues in sockets that hold
 * each other. Another program of the user still gets memory and may send files. */
static void hidden(void)
{
	static char bytes[8192];
	int status;
	IN_CHILD(status, {
		struct rlimit limit;
		NEED(getrlimit(RLIMIT_NOFILE, &limit) == 0);
		limit.rlim_cur = limit.rlim_max < 4096 ? limit.rlim_max : 4096;
		NEED(setrlimit(RLIMIT_NOFILE, &limit) == 0 && setuid(1235) == 0);
		close(wrap(SOCK_DGRAM, memfd_create("inner", 0), (int)limit.rlim_cur - 6));
		for (int i = 0; i < 900; i++) {
			int pair[2];
			NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
			for (int end = 0; end < 2; end++) {
				/* Linux collects in the background, and refuses sends meanwhile. */
				send_files(pair[end], &pair[1 - end], 1, MSG_DONTWAIT);
				while (send(pair[end], bytes, sizeof bytes, MSG_DONTWAIT) > 0)
					;
			}
			close(pair[0]);
			close(pair[1]);
		}
	});
	PROMISE("a user may hide full queues in each other", exits_cleanly(status));
	IN_CHILD(status, {
		size_t size = 150 << 20;
		int pair[2];
		NEED(setuid(1235) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
		NEED(COMES_TRUE(send_files(pair[0], &pair[0], 1, MSG_DONTWAIT) == 1));
		char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		NEED(memory != MAP_FAILED);
		memset(memory, 1, size);
	});
	PROMISE("and nobody lacks memory or places in flight for them", exits_cleanly(status));
}

/* Builds instances of epoll, each of which watches the next, from the top; returns the largest
 * possible number of watches. */
static int chain(int from_top, int *innermost)
{
	int instances[40], watches = 0;
	for (int i = 0; i < 40; i++)
		NEED((instances[i] = epoll_create1(0)) >= 0);
	for (int i = 0; i < 39; i++) {
		int outer = from_top ? 39 - i : i + 1;
		struct epoll_event event = { .events = EPOLLIN };
		if (epoll_ctl(instances[outer], EPOLL_CTL_ADD, instances[outer - 1], &event))
			break;
		watches++;
	}
	*innermost = instances[from_top ? 39 - watches : 0];
	return instances[from_top ? 39 : watches];
}

static void polls(void)
{
	int innermost, outermost = chain(0, &innermost), event = eventfd(0, 0);
	struct epoll_event events = { .events = EPOLLIN }, came;
	NEED(event >= 0 && epoll_ctl(innermost, EPOLL_CTL_ADD, event, &events) == 0);
	PROMISE("a chain of epoll instances tells its end what is ready", epoll_wait(outermost, &came, 1, 0) == 0 &&
		write(event, &(uint64_t){ 1 }, 8) == 8 && epoll_wait(outermost, &came, 1, 1000) == 1);
	closefrom(3);
	outermost = chain(1, &innermost);
	int error = errno;
	event = eventfd(0, 0);
	NEED(epoll_ctl(innermost, EPOLL_CTL_ADD, event, &events) == 0);
	/* Linux before f2e467a48287 (6.17, and stable kernels since) checks the depth of a chain
	 * only from its top. */
	PROMISE("and so does one that is built from its top", (error == ELOOP || error == 0) &&
		write(event, &(uint64_t){ 1 }, 8) == 8 && epoll_wait(outermost, &came, 1, 1000) == 1);
	closefrom(3);
}

static void trees(void)
{
	int status;
	NEED(mkdir("/drops", 0755) == 0 || errno == EEXIST);
	NEED(mount("none", "/drops", "tmpfs", 0, "nr_inodes=1m") == 0);
	IN_CHILD(status, {
		NEED(chdir("/drops") == 0);
		for (int level = 0; level < depth; level++)
			NEED(mkdir("d", 0755) == 0 && chdir("d") == 0);
	});
	PROMISE("a tree of directories is made deep", exits_cleanly(status));
	PROMISE("and goes at once with its file system", umount("/drops") == 0 && rmdir("/drops") == 0);
}

static void lazily(void)
{
	NEED(mkdir("/drops", 0755) == 0 && mount("none", "/drops", "tmpfs", 0, NULL) == 0);
	NEED(mkdir("/drops/deeper", 0755) == 0 && chdir("/drops") == 0 && umount2("/drops", MNT_DETACH) == 0);
	FAILS_WITH("nothing is mounted in what was unmounted", mount("none", "deeper", "tmpfs", 0, NULL), EINVAL);
	NEED(chdir("/") == 0 && rmdir("/drops") == 0);
}

static void effects(void)
{
	int pair[2], held[2], file = memfd_create("locked", 0), status;
	char path[64], byte;
	NEED(file >= 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, held) == 0);
	snprintf(path, sizeof path, "/proc/self/fd/%d", file);
	int locked = open(path, O_RDWR), other = open(path, O_RDWR);
	NEED(locked >= 0 && other >= 0 && flock(locked, LOCK_EX) == 0);
	/* An open file description with a lock, and one end of a pair, in flight to the other
	 * pair. */
	int both[2] = { locked, pair[1] };
	NEED(send_files(held[0], both, 2, 0) == 1);
	close(locked);
	close(pair[1]);
	FAILS_WITH("a lock is held in flight", flock(other, LOCK_EX | LOCK_NB), EWOULDBLOCK);
	signal(SIGPIPE, SIG_IGN);
	PROMISE("and so is a connection", write(pair[0], "x", 1) == 1);
	close(held[1]);
	PROMISE("when close returns, the lock in flight is free", flock(other, LOCK_EX | LOCK_NB) == 0);
	FAILS_WITH("and the connection over", write(pair[0], "x", 1), EPIPE);
	close(pair[0]);
	close(held[0]);
	flock(other, LOCK_UN);

	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	IN_CHILD(status, {
		NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, held) == 0);
		int mine = open(path, O_RDWR);
		NEED(mine >= 0 && flock(mine, LOCK_EX) == 0);
		int files[2] = { mine, pair[1] };
		NEED(send_files(held[0], files, 2, 0) == 1);
	});
	close(pair[1]);
	PROMISE("when wait returns, so is what the child had in flight", exits_cleanly(status) &&
		flock(other, LOCK_EX | LOCK_NB) == 0 && read(pair[0], &byte, 1) == 0);
	close(pair[0]);
	close(other);
	close(file);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		depth = atoi(argv[1]);
	queues(SOCK_STREAM, "stream");
	queues(SOCK_DGRAM, "datagram");
	queues(SOCK_SEQPACKET, "seqpacket");
	backlogs();
	garbage();
	rings();
	too_many();
	hidden();
	polls();
	trees();
	lazily();
	effects();
	return conclude();
}
