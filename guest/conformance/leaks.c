/*
 * Leaks: each kind of object is made and ended `argv[1]` times (2,000) in each of seven rounds, and
 * free memory is as before. The first two rounds fill the kernel's caches. A leak per object would
 * show in every later round.
 */
#include "promise.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>

enum { ROUNDS = 7, WARM = 2, PAGE = 4096 };
/* Memory that may be missing without a leak: Linux does not count per-CPU free lists as free. */
#define MOST_KIB 384

static int count = 2000;

/* Returns the KiB of memory that are free or can be reclaimed. */
static long spare(void)
{
	return figure("/proc/meminfo", "MemFree") + figure("/proc/meminfo", "Cached") + figure("/proc/meminfo", "Buffers");
}

/* Whether rounds of `count` calls of `once` leave free memory as it was. */
static int leaves_nothing(void (*once)(int))
{
	long before = 0, after = 0;
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < count; i++)
			once(i);
		/* The kernel defers the release of some objects for a moment. */
		sleep_ms(100);
		long now = spare();
		if (round == WARM - 1)
			before = now;
		/* The best of the last rounds counts: memory that other processes use meanwhile
		 * is no leak. */
		if (round >= ROUNDS - 3 && now > after)
			after = now;
	}
	if (before - after > MOST_KIB)
		printf("# %ld KiB are gone\n", before - after);
	return before - after <= MOST_KIB;
}

static int epoll, file, folder;

/* Closing an eventfd removes it from the epoll that watches it. */
static void watched(int i)
{
	struct epoll_event event = { .events = EPOLLIN | (i & 1 ? EPOLLET : 0) };
	int one = eventfd(i & 2, EFD_CLOEXEC);
	NEED(one >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, one, &event) == 0);
	if (i % 3 == 0)
		NEED(epoll_ctl(epoll, EPOLL_CTL_DEL, one, &event) == 0);
	close(one);
}

/* All eventfds exist before the first is closed. */
static void watched_together(int i)
{
	enum { SOME = 500 };
	int all[SOME];
	if (i % SOME)
		return;
	for (int k = 0; k < SOME; k++) {
		struct epoll_event event = { .events = EPOLLIN };
		all[k] = eventfd(1, EFD_CLOEXEC);
		NEED(all[k] >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, all[k], &event) == 0);
	}
	struct epoll_event ready[8];
	NEED(epoll_wait(epoll, ready, 8, 0) == 8);
	for (int k = 0; k < SOME; k++)
		close(all[k]);
	NEED(epoll_wait(epoll, ready, 8, 0) == 0);
}

static void epolls(int i)
{
	(void)i;
	struct epoll_event event = { .events = EPOLLIN };
	int outer = epoll_create1(0), inner = epoll_create1(0);
	NEED(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event) == 0);
	close(i & 1 ? outer : inner);
	close(i & 1 ? inner : outer);
}

static void forked(int i)
{
	pid_t child = i & 1 ? fork() : vfork();
	NEED(child >= 0);
	if (child == 0)
		_exit(0);
	NEED(waitpid(child, NULL, 0) == child);
}

/* Makes a process that a signal ends, and an orphan that another process reaps. */
static void killed(int i)
{
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		if (i % 8 == 0 && fork() == 0)
			_exit(0);
		for (;;)
			pause();
	}
	NEED(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

static void *nothing(void *none)
{
	return none;
}

static void threads(int i)
{
	pthread_t thread;
	(void)i;
	NEED(pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0);
}

static void areas(int i)
{
	char *at = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(at != MAP_FAILED);
	at[0] = at[2 * PAGE] = 1;
	NEED(mprotect(at + PAGE, PAGE, PROT_READ) == 0);
	char *moved = mremap(at + 2 * PAGE, PAGE, (2 + i % 4) * PAGE, MREMAP_MAYMOVE);
	NEED(moved != MAP_FAILED && moved[0] == 1);
	munmap(moved, (2 + i % 4) * PAGE);
	munmap(at, 4 * PAGE);
}

static void shared_areas(int i)
{
	char *at = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | (i & 1 ? MAP_ANONYMOUS : 0), i & 1 ? -1 : file, 0);
	NEED(at != MAP_FAILED);
	at[PAGE] = 1;
	NEED(msync(at, 2 * PAGE, MS_SYNC) == 0);
	munmap(at, 2 * PAGE);
}

static void timers(int i)
{
	timer_t timer;
	struct sigevent none = { .sigev_notify = SIGEV_NONE };
	struct itimerspec soon = { .it_value = { i & 1, 1000 } };
	NEED(timer_create(CLOCK_MONOTONIC, &none, &timer) == 0 && timer_settime(timer, 0, &soon, NULL) == 0);
	NEED(timer_delete(timer) == 0);
}

static void signals(int i)
{
	sigset_t set;
	struct timespec now = { 0 };
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN);
	for (int k = 0; k < 3; k++)
		NEED(sigqueue(getpid(), SIGRTMIN, (union sigval){ .sival_int = i }) == 0);
	for (int k = 0; k < 3; k++)
		NEED(sigtimedwait(&set, NULL, &now) == SIGRTMIN);
}

static void locks(int i)
{
	struct flock lock = { .l_type = i & 1 ? F_RDLCK : F_WRLCK, .l_start = i * 3, .l_len = 1 };
	NEED(fcntl(file, F_SETLK, &lock) == 0);
	if (i % 64 == 63) {
		struct flock all = { .l_type = F_UNLCK };
		NEED(fcntl(file, F_SETLK, &all) == 0);
	}
}

static void files(int i)
{
	char name[32];
	snprintf(name, sizeof name, "file-%d", i % 7);
	int one = openat(folder, name, O_CREAT | O_EXCL | O_RDWR, 0600);
	NEED(one >= 0 && write(one, name, sizeof name) == sizeof name && fsync(one) == 0);
	NEED(renameat(folder, name, folder, "another") == 0 && unlinkat(folder, "another", 0) == 0);
	close(one);
}

static void folders(int i)
{
	(void)i;
	NEED(mkdirat(folder, "folder", 0700) == 0 && symlinkat("folder", folder, "link") == 0);
	NEED(unlinkat(folder, "link", 0) == 0 && unlinkat(folder, "folder", AT_REMOVEDIR) == 0);
}

static void pipes(int i)
{
	int ends[2];
	NEED(pipe(ends) == 0 && write(ends[1], &i, sizeof i) == sizeof i);
	int copy = dup(ends[0]);
	close(ends[i & 1]);
	close(ends[!(i & 1)]);
	close(copy);
}

/* Closes sockets with an unreceived descriptor in their queue; every other time it is a
 * descriptor of themselves. */
static void sockets(int i)
{
	int pair[2];
	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { .head = { .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS } };
	memcpy(CMSG_DATA(&control.head), i & 1 ? &pair[1] : &file, sizeof(int));
	struct iovec byte = { "x", 1 };
	struct msghdr message = { .msg_iov = &byte, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
	NEED(sendmsg(pair[0], &message, 0) == 1);
	close(pair[0]);
	close(pair[1]);
}

/* Closes TCP connections with unread bytes, and sockets with unread datagrams. */
static void ports(int i)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof name;
	int server = socket(AF_INET, i & 1 ? SOCK_STREAM : SOCK_DGRAM, 0), client = socket(AF_INET, i & 1 ? SOCK_STREAM : SOCK_DGRAM, 0);
	NEED(server >= 0 && client >= 0 && bind(server, (void *)&name, length) == 0 && getsockname(server, (void *)&name, &length) == 0);
	NEED(!(i & 1) || listen(server, 2) == 0);
	/* A stock Linux' loopback device may be down. */
	if (connect(client, (void *)&name, length) == 0)
		NEED(send(client, "unread", 6, 0) == 6);
	if (i & 2)
		close(client);
	int served = fcntl(server, F_SETFL, O_NONBLOCK) == 0 && i & 1 && i & 4 ? accept4(server, NULL, NULL, SOCK_NONBLOCK) : -1;
	close(server);
	if (served >= 0)
		close(served);
	if (!(i & 2))
		close(client);
}

static void proc(int i)
{
	static const char *const names[] = { "/proc/self/smaps", "/proc/self/status", "/proc/meminfo", "/proc/self/maps" };
	char text[8192];
	int one = open(names[i % 4], O_RDONLY);
	NEED(one >= 0 && read(one, text, i & 4 ? 100 : sizeof text) > 0);
	close(one);
}

static void rings(int i)
{
	/* struct io_uring_params: 120 bytes. */
	char parameters[120] = { 0 };
	int ring = syscall(SYS_io_uring_setup, 8 << i % 2, parameters);
	if (ring >= 0)
		close(ring);
}

static void segments(int i)
{
	int memory = shmget(IPC_PRIVATE, 2 * PAGE, 0600), queue = msgget(IPC_PRIVATE, 0600), set = semget(IPC_PRIVATE, 3, 0600);
	struct { long type; char text[100]; } message = { .type = 1 };
	NEED(memory >= 0 && queue >= 0 && set >= 0);
	char *at = shmat(memory, NULL, 0);
	at[PAGE] = i;
	NEED(shmdt(at) == 0 && shmctl(memory, IPC_RMID, NULL) == 0);
	NEED(msgsnd(queue, &message, sizeof message.text, 0) == 0 && msgctl(queue, IPC_RMID, NULL) == 0);
	NEED(semctl(set, 0, IPC_RMID) == 0);
}

/* The pool grows and shrinks, and a child copies a page of it. */
static void huge_areas(int i)
{
	enum { HUGE = 2 << 20, FLAGS = MAP_ANONYMOUS | MAP_HUGETLB };
	if (i % 100)
		return;
	int pool = open("/proc/sys/vm/nr_hugepages", O_WRONLY | O_CLOEXEC), status;
	NEED(pool >= 0 && write(pool, "4", 1) == 1);
	int kind = i % 200 ? MAP_PRIVATE : MAP_SHARED;
	char *at = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, kind | FLAGS, -1, 0);
	NEED(at != MAP_FAILED);
	at[0] = 1;
	IN_CHILD(status, at[0] = 2; at[HUGE] = 2);
	NEED(status == 0 && munmap(at + HUGE, HUGE) == 0 && munmap(at, HUGE) == 0);
	NEED(pwrite(pool, "0", 1, 0) == 1);
	close(pool);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		count = atoi(argv[1]);
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN);
	sigprocmask(SIG_BLOCK, &set, NULL);
	char path[] = "/tmp/leaks-XXXXXX";
	NEED(mkdtemp(path));
	NEED((folder = open(path, O_RDONLY | O_DIRECTORY)) >= 0);
	NEED((file = openat(folder, "file", O_CREAT | O_RDWR, 0600)) >= 0 && ftruncate(file, 2 * PAGE) == 0);
	NEED((epoll = epoll_create1(0)) >= 0);

	PROMISE("of eventfds that were watched and closed nothing is left", leaves_nothing(watched));
	PROMISE("nor of hundreds that were there together", leaves_nothing(watched_together));
	PROMISE("nor of epoll instances that watch each other", leaves_nothing(epolls));
	PROMISE("nor of children of fork and vfork", leaves_nothing(forked));
	PROMISE("nor of killed ones and orphans", leaves_nothing(killed));
	PROMISE("nor of threads", leaves_nothing(threads));
	PROMISE("nor of private areas, cut and moved", leaves_nothing(areas));
	PROMISE("nor of shared ones", leaves_nothing(shared_areas));
	PROMISE("nor of huge pages", leaves_nothing(huge_areas));
	PROMISE("nor of timers", leaves_nothing(timers));
	PROMISE("nor of queued signals", leaves_nothing(signals));
	PROMISE("nor of locks", leaves_nothing(locks));
	PROMISE("nor of files", leaves_nothing(files));
	PROMISE("nor of folders and links", leaves_nothing(folders));
	PROMISE("nor of pipes", leaves_nothing(pipes));
	PROMISE("nor of sockets that hold a descriptor, their own too", leaves_nothing(sockets));
	PROMISE("nor of ports, connections and datagrams", leaves_nothing(ports));
	PROMISE("nor of reading /proc", leaves_nothing(proc));
	PROMISE("nor of rings", leaves_nothing(rings));
	PROMISE("nor of shared memory, queues and semaphores", leaves_nothing(segments));

	unlinkat(folder, "file", 0);
	rmdir(path);
	return conclude();
}
