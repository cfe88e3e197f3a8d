/* Pipes, FIFOs, sockets between processes, and waiting for several at once: poll, select, epoll,
 * eventfd. */
#include "promise.h"
#include <linux/magic.h>
#include <sys/vfs.h>
#include "sockets.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/un.h>

static volatile sig_atomic_t pipes_broken;

static void on_broken_pipe(int signal)
{
	(void)signal;
	pipes_broken++;
}

static void pipes(void)
{
	int ends[2], status;
	char bytes[8192];
	NEED(pipe(ends) == 0);
	PROMISE("bytes come in order", write(ends[1], "abc", 3) == 3 && write(ends[1], "def", 3) == 3 &&
		read(ends[0], bytes, 4) == 4 && !memcmp(bytes, "abcd", 4) && read(ends[0], bytes, 100) == 2);
	int pending = -1;
	write(ends[1], "12345", 5);
	PROMISE("FIONREAD counts what waits", ioctl(ends[0], FIONREAD, &pending) == 0 && pending == 5);
	read(ends[0], bytes, 5);
	FAILS_WITH("a pipe has no position", lseek(ends[0], 0, SEEK_SET), ESPIPE);
	FAILS_WITH("the reading end cannot be written", write(ends[0], "x", 1), EBADF);
	close(ends[1]);
	PROMISE("without writers it ends", read(ends[0], bytes, 1) == 0);
	close(ends[0]);

	NEED(pipe2(ends, O_NONBLOCK | O_CLOEXEC) == 0);
	FAILS_WITH("an empty non-blocking pipe", read(ends[0], bytes, 1), EAGAIN);
	size_t held = 0;
	ssize_t done;
	memset(bytes, 1, sizeof bytes);
	while ((done = write(ends[1], bytes, 4096)) > 0)
		held += done;
	PROMISE("it holds 64 KiB", held == 65536);
	FAILS_WITH("and then no more", write(ends[1], bytes, 1), EAGAIN);
	read(ends[0], bytes, 4096);
	PROMISE("until some is taken", write(ends[1], bytes, 4096) == 4096);
	PROMISE("F_GETPIPE_SZ", fcntl(ends[0], F_GETPIPE_SZ) == 65536);
	signal(SIGPIPE, on_broken_pipe);
	close(ends[0]);
	FAILS_WITH("without readers a write fails", write(ends[1], "x", 1), EPIPE);
	PROMISE("and SIGPIPE comes", pipes_broken == 1);
	close(ends[1]);
	IN_CHILD(status, signal(SIGPIPE, SIG_DFL); pipe(ends); close(ends[0]); write(ends[1], "x", 1));
	PROMISE("which kills by default", WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE);

	/* Four writers of whole records: no record may be split. */
	NEED(pipe(ends) == 0);
	fflush(stdout);
	for (int writer = 0; writer < 4; writer++)
		if (fork() == 0) {
			memset(bytes, 'a' + writer, 4096);
			for (int i = 0; i < 50; i++)
				write(ends[1], bytes, 1000);
			_exit(0);
		}
	close(ends[1]);
	int torn = 0;
	size_t total = 0;
	while ((done = read(ends[0], bytes, 1000)) > 0) {
		while (done < 1000)
			done += read(ends[0], bytes + done, 1000 - done);
		total += done;
		for (int i = 1; i < 1000; i++)
			torn |= bytes[i] != bytes[0];
	}
	PROMISE("writes up to PIPE_BUF are not torn", !torn && total == 4 * 50 * 1000);
	while (wait(NULL) > 0)
		;
	close(ends[0]);

	NEED(pipe(ends) == 0);
	fflush(stdout);
	if (fork() == 0) {
		close(ends[0]);
		memset(bytes, 'z', sizeof bytes);
		for (int i = 0; i < 128; i++)
			write(ends[1], bytes, sizeof bytes);
		_exit(0);
	}
	close(ends[1]);
	total = 0;
	while ((done = read(ends[0], bytes, 777)) > 0)
		total += done;
	PROMISE("a full pipe blocks the writer and loses nothing", total == 128 * sizeof bytes);
	wait(NULL);
	close(ends[0]);

	struct iovec parts[3] = { { "one", 3 }, { "", 0 }, { "two", 3 } };
	NEED(pipe(ends) == 0);
	PROMISE("writev and readv", writev(ends[1], parts, 3) == 6 && read(ends[0], bytes, 100) == 6 && !memcmp(bytes, "onetwo", 6));
	close(ends[0]);
	close(ends[1]);
}

static void descriptors(void)
{
	int ends[2];
	NEED(pipe(ends) == 0);
	PROMISE("dup gives the lowest free number", ({ int d = dup(0); int e = dup(0); close(d); int f = dup(0); close(e); close(f); f == d && e == d + 1; }));
	PROMISE("dup2 onto itself", dup2(ends[0], ends[0]) == ends[0]);
	FAILS_WITH("dup3 onto itself", dup3(ends[0], ends[0], 0), EINVAL);
	PROMISE("dup2 closes what was there", dup2(ends[0], 100) == 100 && fcntl(100, F_GETFD) == 0);
	PROMISE("dup3 with O_CLOEXEC", dup3(ends[0], 100, O_CLOEXEC) == 100 && fcntl(100, F_GETFD) == FD_CLOEXEC);
	FAILS_WITH("dup of nothing", dup(99), EBADF);
	PROMISE("F_GETFL", (fcntl(ends[1], F_GETFL) & O_ACCMODE) == O_WRONLY && (fcntl(ends[0], F_GETFL) & O_ACCMODE) == O_RDONLY);
	PROMISE("F_SETFL is shared by copies", fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0 && (fcntl(100, F_GETFL) & O_NONBLOCK));
	struct rlimit old, few = { 20, 20 };
	getrlimit(RLIMIT_NOFILE, &old);
	few.rlim_max = old.rlim_max;
	setrlimit(RLIMIT_NOFILE, &few);
	int n = 0;
	while (dup(0) >= 0)
		n++;
	int error = errno;
	PROMISE("RLIMIT_NOFILE ends in EMFILE", error == EMFILE && n > 5 && n < 20);
	setrlimit(RLIMIT_NOFILE, &old);
	PROMISE("close_range closes them", syscall(SYS_close_range, 3, 99, 0) == 0 && fcntl(5, F_GETFD) == -1 && fcntl(100, F_GETFD) >= 0);
	close(100);
	FAILS_WITH("close twice", close(100), EBADF);
}

static void fifos(void)
{
	char name[64], byte = 0;
	snprintf(name, sizeof name, "/tmp/fifo-%d", getpid());
	PROMISE("mkfifo", mkfifo(name, 0600) == 0);
	struct stat about;
	PROMISE("it is one", stat(name, &about) == 0 && S_ISFIFO(about.st_mode));
	FAILS_WITH("a non-blocking writer without a reader", open(name, O_WRONLY | O_NONBLOCK), ENXIO);
	fflush(stdout);
	if (fork() == 0) {
		int out = open(name, O_WRONLY);
		write(out, "f", 1);
		_exit(0);
	}
	int in = open(name, O_RDONLY);
	PROMISE("both ends wait for each other", read(in, &byte, 1) == 1 && byte == 'f' && read(in, &byte, 1) == 0);
	wait(NULL);
	close(in);
	unlink(name);
}

/* Works also if no descriptor is free at that moment. */
static void *accept_one(void *server)
{
	int peer;
	while ((peer = accept(*(int *)server, NULL, NULL)) < 0 && errno == EMFILE)
		sched_yield();
	return (void *)(long)peer;
}

static int is_full(void)
{
	int copy = dup(0), error = errno;
	close(copy);
	return copy == -1 && error == EMFILE;
}

static void sockets(void)
{
	int ends[2];
	char bytes[100] = { 0 };
	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	PROMISE("a socket pair goes both ways", write(ends[0], "to", 2) == 2 && write(ends[1], "fro", 3) == 3 &&
		read(ends[1], bytes, 100) == 2 && read(ends[0], bytes, 100) == 3);
	PROMISE("shutdown ends one way", shutdown(ends[0], SHUT_WR) == 0 && read(ends[1], bytes, 1) == 0 && write(ends[1], "x", 1) == 1);
	int file = open("/dev/null", O_RDONLY);
	PROMISE("a descriptor can be sent", send_files(ends[1], &file, 1, 0) == 1);
	read(ends[0], bytes, 1);
	close(ends[0]);
	close(ends[1]);
	close(file);
	NEED(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
	write(ends[0], "one", 3);
	write(ends[0], "three", 5);
	PROMISE("datagrams keep their borders", read(ends[1], bytes, 100) == 3 && read(ends[1], bytes, 2) == 2 &&
		recv(ends[1], bytes, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	close(ends[0]);
	close(ends[1]);
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	snprintf(address.sun_path, sizeof address.sun_path, "/tmp/socket-%d", getpid());
	int server = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
	FAILS_WITH("connecting to nobody", connect(client, (void *)&address, sizeof address), ENOENT);
	PROMISE("bind and listen", bind(server, (void *)&address, sizeof address) == 0 && listen(server, 4) == 0);
	PROMISE("connect", connect(client, (void *)&address, sizeof address) == 0);
	struct rlimit usual, full;
	NEED(getrlimit(RLIMIT_NOFILE, &usual) == 0);
	full = (struct rlimit) { .rlim_cur = client + 1, .rlim_max = usual.rlim_max };
	NEED(setrlimit(RLIMIT_NOFILE, &full) == 0);
	FAILS_WITH("accept without a free descriptor", accept(server, NULL, NULL), EMFILE);
	NEED(setrlimit(RLIMIT_NOFILE, &usual) == 0 && fcntl(server, F_SETFL, O_NONBLOCK) == 0);
	int peer = accept(server, NULL, NULL);
	PROMISE("and the connection waits until there is one", peer >= 0);
	int later = socket(AF_UNIX, SOCK_STREAM, 0);
	pthread_t accepting;
	void *accepted;
	full.rlim_cur = later + 2;
	NEED(fcntl(server, F_SETFL, 0) == 0 && setrlimit(RLIMIT_NOFILE, &full) == 0);
	NEED(pthread_create(&accepting, NULL, accept_one, &server) == 0);
	PROMISE("who waits in accept has the last descriptor already", COMES_TRUE(is_full()));
	NEED(connect(later, (void *)&address, sizeof address) == 0 && pthread_join(accepting, &accepted) == 0);
	PROMISE("and gets the connection with it", accepted == (void *)(long)(later + 1));
	close(later);
	close(later + 1);
	NEED(setrlimit(RLIMIT_NOFILE, &usual) == 0);
	struct ucred credentials;
	socklen_t size = sizeof credentials;
	PROMISE("accept and talk", peer >= 0 && write(client, "hello", 5) == 5 && read(peer, bytes, 100) == 5);
	PROMISE("SO_PEERCRED", getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 && credentials.pid == getpid());
	close(client);
	PROMISE("the peer's end is an end of file", read(peer, bytes, 1) == 0);
	close(peer);
	close(server);
	unlink(address.sun_path);
}

static void waiting(void)
{
	int ends[2];
	NEED(pipe(ends) == 0);
	struct pollfd both[2] = { { ends[0], POLLIN, 0 }, { ends[1], POLLOUT, 0 } };
	PROMISE("poll: only the writing end is ready", poll(both, 2, 1000) == 1 && both[0].revents == 0 && both[1].revents == POLLOUT);
	int64_t before = now_ms();
	PROMISE("poll waits for its time", poll(both, 1, 60) == 0 && now_ms() - before >= 59);
	write(ends[1], "x", 1);
	PROMISE("then there is something", poll(both, 1, 1000) == 1 && both[0].revents == POLLIN);
	fd_set set;
	FD_ZERO(&set);
	FD_SET(ends[0], &set);
	struct timeval limit = { 1, 0 };
	PROMISE("select says the same", select(ends[0] + 1, &set, NULL, NULL, &limit) == 1 && FD_ISSET(ends[0], &set));
	struct pollfd bad = { 99, POLLIN, 0 };
	PROMISE("poll of no descriptor is POLLNVAL", poll(&bad, 1, 0) == 1 && bad.revents == POLLNVAL);
	int group = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 42 }, ready[4];
	PROMISE("epoll tells the reader's word", epoll_ctl(group, EPOLL_CTL_ADD, ends[0], &event) == 0 &&
		epoll_wait(group, ready, 4, 1000) == 1 && ready[0].data.u64 == 42 && ready[0].events == EPOLLIN);
	FAILS_WITH("adding twice", epoll_ctl(group, EPOLL_CTL_ADD, ends[0], &event), EEXIST);
	event.events = EPOLLIN | EPOLLET;
	epoll_ctl(group, EPOLL_CTL_MOD, ends[0], &event);
	PROMISE("an edge is told once", epoll_wait(group, ready, 4, 1000) == 1 && epoll_wait(group, ready, 4, 20) == 0);
	write(ends[1], "y", 1);
	PROMISE("and again after more", epoll_wait(group, ready, 4, 1000) == 1);
	int writers = epoll_create1(EPOLL_CLOEXEC);
	event.events = EPOLLOUT | EPOLLET;
	static char much[65536];
	NEED(fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0 && epoll_ctl(writers, EPOLL_CTL_ADD, ends[1], &event) == 0 && epoll_wait(writers, ready, 4, 1000) == 1);
	PROMISE("a read is no edge for a writer that had room", read(ends[0], much, 1) == 1 && epoll_wait(writers, ready, 4, 20) == 0);
	NEED(write(ends[1], much, sizeof much) > 0 && write(ends[1], much, 1) == -1);
	PROMISE("that of a full pipe is", read(ends[0], much, 8192) == 8192 && epoll_wait(writers, ready, 4, 1000) == 1);
	PROMISE("once", read(ends[0], much, 4096) == 4096 && epoll_wait(writers, ready, 4, 20) == 0);
	close(writers);
	event.events = EPOLLIN | EPOLLONESHOT;
	epoll_ctl(group, EPOLL_CTL_MOD, ends[0], &event);
	PROMISE("one shot is one", epoll_wait(group, ready, 4, 1000) == 1 && epoll_wait(group, ready, 4, 20) == 0);
	close(ends[1]);
	PROMISE("a hang-up is told without asking", poll(both, 1, 1000) == 1 && (both[0].revents & POLLHUP));
	PROMISE("removing", epoll_ctl(group, EPOLL_CTL_DEL, ends[0], NULL) == 0 && epoll_wait(group, ready, 4, 10) == 0);
	close(ends[0]);
	close(group);
	int counter = eventfd(3, EFD_NONBLOCK);
	uint64_t value = 4;
	PROMISE("an eventfd adds up", write(counter, &value, 8) == 8 && read(counter, &value, 8) == 8 && value == 7);
	FAILS_WITH("and is empty then", read(counter, &value, 8), EAGAIN);
	close(counter);
	NEED(pipe(ends) == 0);
	fflush(stdout);
	if (fork() == 0) {
		sleep_ms(80);
		write(ends[1], "w", 1);
		_exit(0);
	}
	struct pollfd one = { ends[0], POLLIN, 0 };
	PROMISE("poll wakes when another process writes", poll(&one, 1, -1) == 1);
	wait(NULL);
}

static void lent(void)
{
	int ends[2];
	NEED(pipe(ends) == 0);
	size_t size = 40 * 4096;
	char *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(pages != MAP_FAILED);
	memset(pages, 'l', size);
	struct iovec all = { pages, size };
	PROMISE("vmsplice lends what the pipe has room for, and says how much", vmsplice(ends[1], &all, 1, 0) == 16 * 4096);
	FAILS_WITH("nothing where it has none and shall not wait", vmsplice(ends[1], &all, 1, SPLICE_F_NONBLOCK), EAGAIN);
	char byte = 0;
	PROMISE("what was lent can be read", read(ends[0], &byte, 1) == 1 && byte == 'l');
	munmap(pages, size);
	close(ends[0]);
	close(ends[1]);
}

static void stores(const char *path, const char *text)
{
	int file = open(path, O_WRONLY | O_CLOEXEC);
	NEED(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text) && close(file) == 0);
}

/* Whether a user with 64 pages gets 4 pipes of 16 pages, then small ones that do not grow. */
static int is_bounded(void)
{
	int ends[2], all = 1;
	NEED(setresuid(1000, 1000, 1000) == 0);
	for (int made = 0; made < 8; made++) {
		NEED(pipe(ends) == 0);
		all &= fcntl(ends[0], F_GETPIPE_SZ) == (made < 4 ? 65536 : 8192);
	}
	all &= fcntl(ends[0], F_SETPIPE_SZ, 65536) == -1 && errno == EPERM;
	return all && fcntl(ends[0], F_SETPIPE_SZ, 4096) == 4096;
}

static int has_none(void)
{
	int ends[2];
	NEED(setresuid(1000, 1000, 1000) == 0 && pipe(ends) == 0);
	return pipe(ends) == -1 && errno == ENFILE;
}

/* root's settings for the number of pipe pages that a user may have. */
static void shares(void)
{
	static const char soft[] = "/proc/sys/fs/pipe-user-pages-soft", hard[] = "/proc/sys/fs/pipe-user-pages-hard";
	int status, ends[2];
	if (geteuid() != 0 || access(soft, W_OK) != 0)
		return;
	stores(soft, "64");
	for (int round = 0; round < 3; round++) {
		IN_CHILD(status, _exit(is_bounded() ? 0 : 1));
		PROMISE("a user with many pages in pipes gets small ones", status == 0);
	}
	IN_CHILD(status, for (int made = 0; made < 8; made++) NEED(pipe(ends) == 0);
		_exit(fcntl(ends[0], F_GETPIPE_SZ) == 65536 && fcntl(ends[0], F_SETPIPE_SZ, 1 << 20) == 1 << 20 ? 0 : 1));
	PROMISE("root does not", status == 0);
	stores(soft, "0");
	stores(hard, "20");
	IN_CHILD(status, _exit(has_none() ? 0 : 1));
	PROMISE("or none at all", status == 0);
	stores(hard, "0");
	stores(soft, "16384");
}

/* The type of the file system of a file; 0 for an error. */
static long type_of(int file)
{
	struct statfs stats;
	return file >= 0 && fstatfs(file, &stats) == 0 ? stats.f_type : 0;
}

static void types(void)
{
	int ends[2], sockets[2];
	struct statfs stats;
	NEED(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	PROMISE("statfs tells pipes", type_of(ends[0]) == PIPEFS_MAGIC);
	PROMISE("sockets", type_of(sockets[0]) == SOCKFS_MAGIC);
	PROMISE("files without a name", type_of(eventfd(0, 0)) == ANON_INODE_FS_MAGIC);
	PROMISE("and namespaces", statfs("/proc/self/ns/net", &stats) == 0 && stats.f_type == NSFS_MAGIC);
	FAILS_WITH("advice for a pipe", (errno = posix_fadvise(ends[0], 0, 0, POSIX_FADV_NORMAL)) ? -1 : 0, ESPIPE);
	PROMISE("for a socket", posix_fadvise(sockets[0], 0, 0, POSIX_FADV_NORMAL) == 0);
}

static int watches(int epoll, int file, unsigned events)
{
	struct epoll_event event = { .events = events, .data.fd = file };
	return epoll_ctl(epoll, EPOLL_CTL_ADD, file, &event);
}

/* Edges of a pipe of one page. */
static void edges(void)
{
	int ends[2], epoll = epoll_create1(EPOLL_CLOEXEC);
	char page[4096] = { 0 };
	struct epoll_event event;
	NEED(pipe2(ends, O_NONBLOCK) == 0 && fcntl(ends[1], F_SETPIPE_SZ, 4096) == 4096);
	NEED(watches(epoll, ends[0], EPOLLIN | EPOLLET) == 0 && watches(epoll, ends[1], EPOLLOUT | EPOLLET) == 0);
	NEED(write(ends[1], page, 4096) == 4096 && write(ends[1], page, 1) == -1 && errno == EAGAIN);
	PROMISE("bytes in a pipe are an edge", epoll_wait(epoll, &event, 1, 0) == 1 && event.data.fd == ends[0] && event.events == EPOLLIN);
	PROMISE("reading a part of them is none", read(ends[0], page, 2048) == 2048 && epoll_wait(epoll, &event, 1, 0) == 0);
	PROMISE("reading the rest makes room", read(ends[0], page, 2048) == 2048 && epoll_wait(epoll, &event, 1, 0) == 1 &&
		event.data.fd == ends[1] && event.events == EPOLLOUT);
	NEED(write(ends[1], page, 10) == 10 && epoll_wait(epoll, &event, 1, 0) == 1);
	PROMISE("more bytes are an edge again", write(ends[1], page, 10) == 10 && epoll_wait(epoll, &event, 1, 0) == 1 && event.data.fd == ends[0]);
	PROMISE("and reading a part of them still is none", read(ends[0], page, 5) == 5 && epoll_wait(epoll, &event, 1, 0) == 0);
	close(ends[0]);
	close(ends[1]);
	close(epoll);
}

enum { CROWD = 8 };

/* The number of processes that have ended, of those that each wait for `file`. */
struct crowd {
	pid_t all[CROWD];
	int ended;
};

static int ended(struct crowd *crowd)
{
	for (int i = 0; i < CROWD; i++) {
		int status;
		if (crowd->all[i] && waitpid(crowd->all[i], &status, WNOHANG) == crowd->all[i]) {
			NEED(status == 0);
			crowd->all[i] = 0;
			crowd->ended++;
		}
	}
	return crowd->ended;
}

static struct crowd gather(int file, unsigned events)
{
	struct crowd crowd = { 0 };
	fflush(stdout);
	for (int i = 0; i < CROWD; i++) {
		NEED((crowd.all[i] = fork()) >= 0);
		if (crowd.all[i] == 0) {
			struct epoll_event event;
			int epoll = epoll_create1(0);
			close(file + 1);
			_exit(!(watches(epoll, file, events) == 0 && epoll_wait(epoll, &event, 1, -1) == 1));
		}
		NEED(COMES_TRUE(is_asleep(crowd.all[i], crowd.all[i])));
	}
	return crowd;
}

/* EPOLLEXCLUSIVE: one of several instances is woken. */
static void exclusive(void)
{
	int ends[2], good = 1;
	char byte;
	NEED(pipe(ends) == 0 && ends[1] == ends[0] + 1);
	struct crowd crowd = gather(ends[0], EPOLLIN | EPOLLET | EPOLLEXCLUSIVE);
	for (int round = 1; round < CROWD; round++) {
		NEED(write(ends[1], "x", 1) == 1);
		good &= COMES_TRUE(ended(&crowd) >= round);
		sleep_ms(5);
		good &= ended(&crowd) == round && read(ends[0], &byte, 1) == 1;
	}
	PROMISE("of instances that watch a file exclusively, its input wakes one", good);
	close(ends[1]);
	PROMISE("its end wakes all", COMES_TRUE(ended(&crowd) == CROWD));
	close(ends[0]);
	NEED(pipe(ends) == 0);
	crowd = gather(ends[0], EPOLLIN | EPOLLET);
	NEED(write(ends[1], "x", 1) == 1);
	PROMISE("others are all woken", COMES_TRUE(ended(&crowd) == CROWD));
	close(ends[0]);
	close(ends[1]);
}

/* Files that splice cannot take from or give to. */
static void spliced(void)
{
	int ends[2], status;
	NEED(pipe(ends) == 0);
	int others[] = { epoll_create1(0), eventfd(1, 0), syscall(SYS_pidfd_open, getpid(), 0) };
	for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
		NEED(others[i] >= 0);
		IN_CHILD(status, alarm(10); _exit(splice(ends[0], NULL, others[i], NULL, 1, 0) != -1 || errno != EINVAL));
		PROMISE("splice into a file that has no bytes is refused before there are any", status == 0);
		IN_CHILD(status, alarm(10); _exit(splice(others[i], NULL, ends[1], NULL, 1, 0) != -1 || errno != EINVAL));
		PROMISE("and out of one", status == 0);
		close(others[i]);
	}
	int folder = open("/", O_RDONLY | O_DIRECTORY);
	FAILS_WITH("and out of a folder", splice(folder, NULL, ends[1], NULL, 1, 0), EINVAL);
	close(folder), close(ends[0]), close(ends[1]);
}

int main(void)
{
	spliced();
	pipes();
	lent();
	descriptors();
	fifos();
	sockets();
	waiting();
	shares();
	types();
	edges();
	exclusive();
	return conclude();
}
