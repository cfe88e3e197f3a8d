/* Control groups, version 2: a group is charged for the kernel objects that its members make. A
 * member of a group with little memory makes as many as it can of each kind. The kernel refuses
 * an object, or kills the member. The machine keeps its memory. When the group is gone, no
 * object is left.
 *
 *   groupobjects [KIND]        all kinds, or one */
#include "groups.h"

#include <linux/aio_abi.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/xattr.h>

#define KIB 1024L
/* The limit of a member's group, and the memory that the machine may lose meanwhile; other
 * processes use memory, too. */
#define LIMIT "4M"
#define LIMIT_KIB 4096
#define LOSS_KIB (24 * KIB)
/* Bytes that may still be charged to a group after a member has ended: memory that is allocated
 * once. */
#define REST (2L << 20)

/* Path of a file system in memory that only the member has, and of files in it. */
#define PLACE "/tmp/objects"

static const char *name_of(const char *form, long n)
{
	static char name[2][400];
	static int next;
	char *here = name[next++ % 2];
	snprintf(here, sizeof name[0], form, n);
	return here;
}

static int ok(long result)
{
	return result >= 0;
}

/* Each of these functions makes object number `n`; returns whether that succeeded. */

static int semaphores(long n)
{
	(void)n;
	return ok(semget(IPC_PRIVATE, 100, 0600));
}

static int undo_lists(long n)
{
	static int set;
	if (n == 0)
		NEED(ok(set = semget(IPC_PRIVATE, 250, 0600)));
	/* A child ends with an undo list that no other process shares. */
	struct sembuf up = { (unsigned short)(n % 250), 1, SEM_UNDO };
	pid_t child = fork();
	if (child == 0) {
		semop(set, &up, 1);
		for (;;)
			pause();
	}
	return child > 0;
}

static int queues_of_messages(long n)
{
	(void)n;
	return ok(msgget(IPC_PRIVATE, 0600));
}

static int messages(long n)
{
	static int queue;
	struct { long type; char text[8]; } small = { 1, "" };
	if (n % 1000 == 0 && !ok(queue = msgget(IPC_PRIVATE, 0600)))
		return 0;
	return ok(msgsnd(queue, &small, sizeof small.text, IPC_NOWAIT));
}

static int shared_segments(long n)
{
	(void)n;
	return ok(shmget(IPC_PRIVATE, 4096, 0600));
}

static int attributes(long n)
{
	static char value[200];
	static int file;
	if (n % 100 == 0 && !ok(file = open(name_of(PLACE "/%ld", n), O_CREAT | O_RDWR, 0600)))
		return 0;
	int set = fsetxattr(file, name_of("trusted.%ld", n), value, sizeof value, 0);
	if (n % 100 == 99)
		close(file);
	return ok(set);
}

static int epoll_watches(long n)
{
	static int set, files[256];
	if (n == 0)
		for (int i = 0; i < 256; i++)
			NEED(ok(files[i] = eventfd(0, 0)));
	if (n % 256 == 0 && !ok(set = epoll_create1(0)))
		return 0;
	struct epoll_event none = { .events = EPOLLIN };
	return ok(epoll_ctl(set, EPOLL_CTL_ADD, files[n % 256], &none));
}

static int areas(long n)
{
	int rights = n % 2 ? PROT_READ : PROT_NONE;
	return mmap(NULL, 4096, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) != MAP_FAILED;
}

static int areas_of_children(long n)
{
	if (n == 0)
		for (int i = 0; i < 2000; i++)
			NEED(areas(i));
	pid_t child = fork();
	if (child == 0)
		for (;;)
			pause();
	return child > 0;
}

static int inodes(long n)
{
	return ok(mknod(name_of(PLACE "/%ld", n), S_IFREG | 0600, 0));
}

static int directories(long n)
{
	return ok(mkdir(name_of(PLACE "/%ld", n), 0700));
}

static int links(long n)
{
	static char target[300];
	memset(target, 'x', sizeof target - 1);
	return ok(symlink(target, name_of(PLACE "/%ld", n)));
}

static int names(long n)
{
	if (n == 0)
		NEED(ok(mknod(PLACE "/file", S_IFREG | 0600, 0)));
	return ok(link(PLACE "/file", name_of(PLACE "/a-name-that-takes-some-bytes-in-its-directory-%ld", n)));
}

static int record_locks(long n)
{
	/* For each new lock Linux walks all locks of the file, so each file gets only 500. */
	static int file;
	if (n % 500 == 0)
		NEED(ok(file = open(name_of(PLACE "/%ld", n), O_CREAT | O_RDWR, 0600)));
	struct flock one = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = n * 2, .l_len = 1 };
	return ok(fcntl(file, F_SETLK, &one));
}

static int whole_locks(long n)
{
	int file = open(name_of(PLACE "/%ld", n / 500), O_CREAT | O_RDWR, 0600);
	struct flock one = { .l_type = F_RDLCK, .l_whence = SEEK_SET };
	return ok(file) && ok(fcntl(file, F_OFD_SETLK, &one));
}

/* Sends `count` descriptors, or none, and a byte. */
static int send_rights(int socket, const int *files, int count)
{
	char byte = 0, space[CMSG_SPACE(250 * sizeof(int))];
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = space,
				  .msg_controllen = CMSG_SPACE(count * sizeof(int)) };
	memset(space, 0, sizeof space);
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(count * sizeof(int));
	memcpy(CMSG_DATA(head), files, count * sizeof(int));
	return ok(sendmsg(socket, &message, MSG_DONTWAIT));
}

/* Files in flight that no process receives. */
static int rights(long n)
{
	static int pair[2];
	int files[100];
	if (n % 20 == 0 && !ok(socketpair(AF_UNIX, SOCK_STREAM, 0, pair)))
		return 0;
	for (int i = 0; i < 100; i++)
		if (!ok(files[i] = open("/dev/null", O_RDONLY)))
			return 0;
	int sent = send_rights(pair[0], files, 100);
	for (int i = 0; i < 100; i++)
		close(files[i]);
	return sent;
}

/* A server outside the group. It keeps received files until its clients end. */
static int server;

static void keep_files(int socket)
{
	char byte, space[CMSG_SPACE(250 * sizeof(int))];
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = space };
	do
		message.msg_controllen = sizeof space;
	while (recvmsg(socket, &message, 0) == 1);
	_exit(0);
}

static void begin_server(void)
{
	int pair[2];
	NEED(ok(socketpair(AF_UNIX, SOCK_STREAM, 0, pair)));
	server = pair[0];
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		close(pair[0]);
		keep_files(pair[1]);
	}
	close(pair[1]);
}

static int kept_files(long n)
{
	(void)n;
	int files[100], sent;
	for (int i = 0; i < 100; i++)
		if (!ok(files[i] = open("/dev/null", O_RDONLY)))
			return 0;
	while (!(sent = send_rights(server, files, 100)) && errno == EAGAIN)
		sleep_ms(1);
	for (int i = 0; i < 100; i++)
		close(files[i]);
	return sent;
}

static int inotify_watches(long n)
{
	static int set, last_full;
	char path[64];
	snprintf(path, sizeof path, PLACE "/%ld", n);
	if (n == 0)
		NEED(ok(set = inotify_init1(0)));
	int file = open(path, O_CREAT | O_RDONLY, 0600);
	if (!ok(file))
		return 0;
	close(file);
	int watch = inotify_add_watch(set, path, IN_ALL_EVENTS);
	if (!ok(watch) && errno == ENOSPC && !last_full) {
		last_full = 1;
		return ok(set = inotify_init1(0));
	}
	return ok(watch);
}

static int events_of_inotify(long n)
{
	static int file;
	if (n % 8000 == 0) {
		int set = inotify_init1(0);
		if (!ok(set) || !ok(inotify_add_watch(set, PLACE, IN_ALL_EVENTS)))
			return 0;
	}
	file = open(name_of(PLACE "/a-name-that-stands-in-each-event-and-takes-some-bytes-%ld", n % 50), O_CREAT | O_RDONLY, 0600);
	return ok(file) && close(file) == 0;
}

static int timers(long n)
{
	(void)n;
	timer_t timer;
	struct sigevent none = { .sigev_notify = SIGEV_NONE };
	return ok(timer_create(CLOCK_MONOTONIC, &none, &timer));
}

static int signals(long n)
{
	sigset_t all;
	if (n == 0) {
		sigfillset(&all);
		NEED(sigprocmask(SIG_BLOCK, &all, NULL) == 0);
	}
	return ok(sigqueue(getpid(), SIGRTMIN, (union sigval){ 0 }));
}

static int groups(long n)
{
	return ok(mkdir(at(name_of("a/%ld", n)), 0755));
}

/* A directory for mount number `n`: a path walk passes all mounts that lie on one another, so
 * there are few of them. */
static const char *mount_point(long n)
{
	const char *place = name_of(PLACE "/%ld", n / 50);
	return n % 50 || ok(mkdir(place, 0700)) ? place : "";
}

static int mounts(long n)
{
	return ok(mount(PLACE, mount_point(n), NULL, MS_BIND, NULL));
}

static int file_systems(long n)
{
	return ok(mount("none", mount_point(n), "tmpfs", 0, NULL));
}

static void *waits(void *word)
{
	syscall(SYS_futex, word, 0, 0, NULL, NULL, 0);
	return NULL;
}

static int threads_at_futexes(long n)
{
	(void)n;
	static int word;
	pthread_t thread;
	pthread_attr_t small;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 16384);
	errno = pthread_create(&thread, &small, waits, &word);
	return errno == 0;
}

static int rings(long n)
{
	(void)n;
	static char parameters[120];
	memset(parameters, 0, sizeof parameters);
	return ok(syscall(SYS_io_uring_setup, 64, parameters));
}

static int contexts(long n)
{
	(void)n;
	aio_context_t context = 0;
	return ok(syscall(SYS_io_setup, 32, &context));
}

static int pipes(long n)
{
	(void)n;
	int ends[2];
	return ok(pipe(ends));
}

static int local_sockets(long n)
{
	(void)n;
	int ends[2];
	return ok(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
}

static int datagrams(long n)
{
	static int ends[2];
	static int is_full = 1;
	(void)n;
	if (is_full && !ok(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends)))
		return 0;
	is_full = 0;
	int sent = ok(send(ends[0], "x", 1, MSG_DONTWAIT));
	if (!sent && errno == EAGAIN)
		return is_full = 1;
	return sent;
}

static int net_sockets(long n)
{
	return ok(socket(AF_INET, n % 2 ? SOCK_STREAM : SOCK_DGRAM, 0));
}

static int net_datagrams(long n)
{
	static int from = -1, to = -1;
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof here;
	if (n % 100 == 0) {
		close(from);
		if (!ok(from = socket(AF_INET, SOCK_DGRAM, 0)) || !ok(to = socket(AF_INET, SOCK_DGRAM, 0)) ||
		    !ok(bind(to, (void *)&here, sizeof here)) || !ok(getsockname(to, (void *)&here, &length)) ||
		    !ok(connect(from, (void *)&here, sizeof here)))
			return 0;
	}
	return ok(send(from, "x", 1, MSG_DONTWAIT));
}

static int netlink_sockets(long n)
{
	(void)n;
	return ok(socket(AF_NETLINK, SOCK_RAW, 0));
}

static int filters_of_sockets(long n)
{
	(void)n;
	static struct sock_filter code[1000];
	for (int i = 0; i < 1000; i++)
		code[i] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0);
	struct sock_fprog program = { 1000, code };
	int file = socket(AF_UNIX, SOCK_DGRAM, 0);
	return ok(file) && ok(setsockopt(file, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));
}

/* Makes a child that runs `part` and then does nothing; returns whether `part` succeeded. */
static int child_with(int (*part)(void))
{
	int pair[2];
	char answer = 'n';
	NEED(ok(pipe(pair)));
	pid_t child = fork();
	if (child == 0) {
		NEED(write(pair[1], part() ? "y" : "n", 1) == 1);
		for (;;)
			pause();
	}
	close(pair[1]);
	if (child > 0)
		NEED(read(pair[0], &answer, 1) >= 0);
	close(pair[0]);
	return child > 0 && answer == 'y';
}

static int adds_filters(void)
{
	static struct sock_filter code[200];
	for (int i = 0; i < 200; i++)
		code[i] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = { 200, code };
	/* The number of filter instructions per thread is limited, so many more filters are not
	 * possible. */
	for (int i = 0; i < 100; i++)
		if (!ok(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)))
			return 0;
	return 1;
}

static int filters_of_calls(long n)
{
	(void)n;
	return child_with(adds_filters);
}

static int counters(long n)
{
	(void)n;
	return ok(eventfd(0, 0));
}

static int timer_files(long n)
{
	(void)n;
	return ok(timerfd_create(CLOCK_MONOTONIC, 0));
}

static int signal_files(long n)
{
	(void)n;
	sigset_t none;
	sigemptyset(&none);
	return ok(signalfd(-1, &none, 0));
}

static int epoll_sets(long n)
{
	(void)n;
	return ok(epoll_create1(0));
}

static int memory_files(long n)
{
	(void)n;
	return ok(memfd_create("x", 0));
}

static int process_files(long n)
{
	(void)n;
	return ok(syscall(SYS_pidfd_open, getpid(), 0));
}

static int open_files(long n)
{
	(void)n;
	return ok(open("/dev/null", O_RDONLY));
}

static int tables_of_files(long n)
{
	static int far = 60000;
	if (n == 0)
		NEED(ok(dup2(0, far)));
	pid_t child = fork();
	if (child == 0)
		for (;;)
			pause();
	return child > 0;
}

static int processes(long n)
{
	(void)n;
	pid_t child = vfork();
	if (child == 0)
		_exit(0);
	/* The child has ended, but no process has waited for it. */
	return child > 0;
}

static int namespaces(long n)
{
	static const int kinds[] = { CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWNS, CLONE_NEWTIME };
	static const char *const files[] = { "/proc/self/ns/uts", "/proc/self/ns/ipc", "/proc/self/ns/mnt", "/proc/self/ns/time_for_children" };
	return ok(unshare(kinds[n % 4])) && ok(open(files[n % 4], O_RDONLY));
}

static int has_namespaces(void)
{
	return ok(unshare(CLONE_NEWUSER | CLONE_NEWPID));
}

static int user_namespaces(long n)
{
	(void)n;
	return child_with(has_namespaces);
}

static int policies(long n)
{
	static char *memory;
	if (n == 0)
		memory = mmap(NULL, 1L << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	unsigned long first = 1;
	return ok(syscall(SYS_mbind, memory + n * 8192, 4096UL, 2, &first, 64UL, 0UL));
}

static int posix_messages(long n)
{
	static mqd_t queue;
	struct mq_attr shape = { .mq_maxmsg = 10, .mq_msgsize = 64 };
	if (n % 10 == 0) {
		if (!ok(queue = mq_open(name_of("/objects-%ld", n), O_CREAT | O_RDWR, 0600, &shape)))
			return 0;
	}
	return ok(mq_send(queue, "x", 1, 0));
}

static int leases(long n)
{
	int file = open(name_of(PLACE "/%ld", n), O_CREAT | O_RDONLY, 0600);
	return ok(file) && ok(fcntl(file, F_SETLEASE, F_RDLCK));
}

/* Kinds that Linux does not charge, at least until 6.1: records of locks, signals (which come
 * from interrupts, too), groups' names, and extended attributes. */
static int (*const free_on_linux[])(long) = { record_locks, signals, groups, attributes };

static int is_tried(int (*make)(long), int is_linux)
{
	for (size_t n = 0; n < sizeof free_on_linux / sizeof *free_on_linux; n++)
		if (is_linux && make == free_on_linux[n])
			return 0;
	return 1;
}

/* A kind of object, and the errors of Linux' own limits for it (0: none that a member could
 * reach here). `most` objects are enough: if a member can make more, they are not charged. */
static const struct kind {
	const char *name;
	int (*make)(long n);
	long most;
	int others[2];
} table[] = {
	{ "semaphores", semaphores, 32000, { ENOSPC } },
	{ "undo lists", undo_lists, 30000, { EAGAIN } },
	{ "queues of messages", queues_of_messages, 32000, { ENOSPC } },
	{ "messages", messages, 600000, { EAGAIN, ENOSPC } },
	{ "shared segments", shared_segments, 4096, { ENOSPC } },
	{ "extended attributes", attributes, 200000, { ENOSPC, EOPNOTSUPP } },
	{ "epoll watches", epoll_watches, 600000, { ENOSPC } },
	{ "areas", areas, 65000, { 0 } },
	{ "areas of children", areas_of_children, 2000, { EAGAIN } },
	{ "inodes", inodes, 300000, { ENOSPC } },
	{ "directories", directories, 300000, { ENOSPC } },
	{ "symbolic links", links, 300000, { ENOSPC } },
	{ "names", names, 400000, { EMLINK, ENOSPC } },
	{ "record locks", record_locks, 600000, { ENOLCK } },
	{ "locks of open files", whole_locks, 300000, { ENOLCK, EMFILE } },
	{ "rights in flight", rights, 4000, { ETOOMANYREFS, EMFILE } },
	{ "files that a server keeps", kept_files, 4000, { ETOOMANYREFS, EMFILE } },
	{ "inotify watches", inotify_watches, 300000, { ENOSPC } },
	{ "events of inotify", events_of_inotify, 400000, { EMFILE } },
	{ "timers", timers, 300000, { EAGAIN } },
	{ "signals", signals, 600000, { EAGAIN } },
	{ "groups", groups, 20000, { ENOSPC, EAGAIN } },
	{ "mounts", mounts, 90000, { ENOSPC } },
	{ "file systems", file_systems, 90000, { ENOSPC } },
	{ "threads at futexes", threads_at_futexes, 20000, { EAGAIN } },
	{ "rings", rings, 100000, { 0 } },
	{ "contexts of aio", contexts, 100000, { EAGAIN } },
	{ "pipes", pipes, 400000, { EMFILE, ENFILE } },
	{ "local sockets", local_sockets, 400000, { EMFILE, ENFILE } },
	{ "datagrams", datagrams, 400000, { EMFILE, ENFILE } },
	{ "sockets", net_sockets, 400000, { EMFILE, ENFILE } },
	{ "datagrams over IP", net_datagrams, 400000, { EMFILE, ENETUNREACH } },
	{ "netlink sockets", netlink_sockets, 400000, { EMFILE, ENFILE } },
	{ "filters of sockets", filters_of_sockets, 100000, { ENOPROTOOPT } },
	{ "filters of calls", filters_of_calls, 1000, { EAGAIN } },
	{ "counters", counters, 600000, { EMFILE, ENFILE } },
	{ "files of timers", timer_files, 600000, { EMFILE, ENFILE } },
	{ "files of signals", signal_files, 600000, { EMFILE, ENFILE } },
	{ "epoll sets", epoll_sets, 600000, { EMFILE, ENFILE } },
	{ "files in memory", memory_files, 600000, { EMFILE, ENFILE } },
	{ "files of processes", process_files, 600000, { EMFILE, ENFILE } },
	{ "open files", open_files, 600000, { EMFILE, ENFILE } },
	{ "tables of files", tables_of_files, 2000, { EAGAIN } },
	{ "ended processes", processes, 30000, { EAGAIN } },
	{ "namespaces", namespaces, 100000, { ENOSPC } },
	{ "user namespaces", user_namespaces, 10000, { EAGAIN, ENOSPC } },
	{ "memory policies", policies, 65000, { ENOSYS } },
	{ "POSIX messages", posix_messages, 100000, { EMFILE, ENOSPC } },
	{ "leases", leases, 300000, { EMFILE, EINVAL } },
};

/* A member's report: the number of objects that it made, and the error of the last call. */
static struct told { long made; int error; int is_done; } *told;

static void raise_limit(int which)
{
	struct rlimit all = { 1 << 20, 1 << 20 };
	setrlimit(which, &all);
}

static void member(const struct kind *kind)
{
	/* The member has its own namespaces, so its objects disappear with it, whatever their
	 * names. */
	NEED(unshare(CLONE_NEWIPC | CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
	raise_limit(RLIMIT_NOFILE);
	raise_limit(RLIMIT_SIGPENDING);
	raise_limit(RLIMIT_NPROC);
	raise_limit(RLIMIT_MSGQUEUE);
	NEED(mount("none", PLACE, "tmpfs", 0, "nr_inodes=1000000") == 0);
	if (kind->make == kept_files)
		begin_server();
	NEED(writes(at("a/cgroup.procs"), "0") == 0);
	while (told->made < kind->most && kind->make(told->made))
		told->made++;
	told->error = errno;
	told->is_done = 1;
	for (;;)
		pause();
}

/* Ends all members, and waits for them. */
static void end_members(pid_t member)
{
	NEED(writes(at("a/cgroup.kill"), "1") == 0);
	waitpid(member, NULL, 0);
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
}

static void attack(const struct kind *kind)
{
	char text[160];
	make("a");
	NEED(writes(at("a/memory.max"), LIMIT) == 0);
	writes(at("a/memory.swap.max"), "0");
	memset(told, 0, sizeof *told);
	fflush(stdout);
	/* This program waits for the orphans of the members. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	long before = figure("/proc/meminfo", "MemFree"), least = before;
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0)
		member(kind);
	while (!told->is_done && value(at("a/memory.events"), "oom_kill") == 0 && before - least < LOSS_KIB) {
		siginfo_t end = { 0 };
		NEED(waitid(P_PID, child, &end, WEXITED | WNOHANG | WNOWAIT) == 0);
		if (end.si_pid) {
			/* The kernel may count a kill only after the victim has gone. */
			COMES_TRUE(value(at("a/memory.events"), "oom_kill") > 0);
			break;
		}
		sleep_ms(2);
		long now = figure("/proc/meminfo", "MemFree");
		least = now < least ? now : least;
	}
	long made = told->made, kills = value(at("a/memory.events"), "oom_kill");
	int is_refused = told->is_done && made < kind->most, error = told->error;
	int is_other = is_refused && (error == kind->others[0] || error == kind->others[1]);
	printf("# %s: %ld made, %s; %ld KiB at most, the machine lost %ld\n", kind->name, made,
	       kills ? "then killed" : is_refused ? strerror(error) : "and no end", atol(reads(at("a/memory.peak"))) / 1024,
	       before - least);
	snprintf(text, sizeof text, "%s: there is an end", kind->name);
	PROMISE(text, kills > 0 || is_refused);
	snprintf(text, sizeof text, "%s: it is the group's limit, or one that Linux has", kind->name);
	PROMISE(text, kills > 0 || (is_refused && error == ENOMEM) || is_other);
	snprintf(text, sizeof text, "%s: the machine keeps its memory", kind->name);
	PROMISE(text, before - least < LOSS_KIB);
	end_members(child);
	if (kind->make == groups)
		for (long n = 0; n <= made; n++)
			rmdir(at(name_of("a/%ld", n)));
	snprintf(text, sizeof text, "%s: nothing stays", kind->name);
	PROMISE(text, COMES_TRUE(atol(reads(at("a/memory.current"))) < REST));
	drop("a");
}

int main(int count, char **arguments)
{
	if (!begin_with_controller("memory"))
		return conclude();
	told = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(told != MAP_FAILED && (mkdir(PLACE, 0700) == 0 || errno == EEXIST));
	struct utsname kernel;
	NEED(uname(&kernel) == 0);
	int is_linux = !strstr(kernel.release, "freehold");
	for (size_t n = 0; n < sizeof table / sizeof *table; n++)
		if (!is_tried(table[n].make, is_linux))
			printf("# %s: not on this kernel\n", table[n].name);
		else if (count < 2 || !strcmp(arguments[1], table[n].name))
			attack(&table[n]);
	PROMISE("what all of it left is little", COMES_TRUE(atol(reads(at("memory.current"))) < REST));
	PROMISE("all is gone in the end", end_groups());
	return conclude();
}
