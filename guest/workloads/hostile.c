/*
 * Hostile programs: random system calls, of all numbers, from many short-lived processes that
 * run at the same time.
 *
 * Usage: hostile [-u UID] [-j PROCESSES AT ONCE] [-s SECONDS] [-p PATIENCE] [-w WEIGHTS] [-c] SEED
 * PROCESSES [CALLS]
 *
 * Each process makes CALLS (300) calls; every other process makes them from two threads. Three
 * of four arguments are of the right kind (../tools/shapes.h): descriptors of every kind,
 * addresses that are mapped, read-only, unmapped, the kernel's or at a border, paths,
 * structures. Processes are killed after PATIENCE milliseconds (150); no more are started after
 * SECONDS. With -u they run as that user. The same seed makes the same calls, as long as the
 * calls have the same results. WEIGHTS is a file of lines "NUMBER WEIGHT", made from a coverage
 * record (tools/coverage-weights). Weight 0 means never; the default is 8 for calls that exist,
 * 1 for others and for those that end the process. -c prints a line for each number: calls, and
 * calls without an error. With HOSTILE_SHOW set each call is printed before it is made.
 *
 * The kernel has to refuse or execute each call, and to free everything when a process ends. The
 * processes may damage themselves. A process that still lives DEADLINE_MS after SIGKILL is a
 * failure: its last calls are printed, and the status is 1.
 */
#include "../conformance/promise.h"
#include "../tools/dice.h"
#include "../tools/shapes.h"
#include "../tools/arguments.h"

#include <asm/sockios.h>
#include <dirent.h>
#include <ftw.h>
#include <grp.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/aio_abi.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <linux/fanotify.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/rseq.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/user.h>

#define DEADLINE_MS 30000
enum { MOST_JOBS = 16, THREADS = 2 };

/* Current calls of a process, shared so that the parent can read them after its death. */
struct record {
	volatile long call[THREADS];
	volatile uint64_t arguments[THREADS][6];
};
static struct shared {
	struct record records[MOST_JOBS];
	uint64_t calls[CALLS], successes[CALLS];
} *shared;

struct thread {
	struct dice dice;
	int number, calls;
	struct record *record;
};

static int show, user = -1, calls_each = 300, patience_ms = 150, jobs = 1;
static uint64_t seed, ladder[CALLS];

/* Returns whether a call would end the experiment instead of the process. Signals are allowed: they
 * go only to processes of the test (see process()). */
static int is_spared(long number)
{
	switch (number) {
	case SYS_reboot:
	case SYS_mount:
	case SYS_umount2:
	case 429 /* move_mount */:
	case 442 /* mount_setattr */:
	case SYS_pivot_root:
	case SYS_swapoff:
	case SYS_kexec_load:
	case SYS_kexec_file_load:
		return 1;
	}
	return 0;
}

static void prepare_arena(struct dice *dice, int file)
{
	/* Far from all other memory: accesses beyond its end do not reach the memory that the
	 * parent reads. */
	void *place = (void *)0x200000000;
	arena = mmap(place, ARENA + AROUND, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	if (arena == MAP_FAILED)
		_exit(100);
	char *around = arena + ARENA;
	munmap(around, 4096);
	mprotect(around + 4096, 4096, PROT_READ);
	mprotect(around + 2 * 4096, 4096, PROT_NONE);
	mmap(around + 4 * 4096, AROUND - 4 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
	for (unsigned at = 0; at + 64 <= ARENA; at += 64)
		for (int i = 0; i < 8; i++)
			((uint64_t *)(arena + at))[i] = below(dice, 3) ? any_number(dice) : address(dice);
}

static void add(int file)
{
	if (file >= 0 && file_count < 64)
		files[file_count++] = file;
}

static void add_pair(int result, const int *pair)
{
	if (result == 0) {
		add(pair[0]);
		add(pair[1]);
	}
}

/* Opens a descriptor of every kind. */
static void prepare_files(int index)
{
	static const int sockets[] = { SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET };
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	char text[64];
	int null = open("/dev/null", O_RDWR), pair[2];
	for (int fd = 0; fd < 3; fd++)
		if (!show || fd == 0)
			dup2(null, fd);
	add(open("a", O_RDWR | O_CREAT, 0600));
	(void)!ftruncate(files[0], 10 * 4096);
	add_pair(pipe2(pair, O_NONBLOCK), pair);
	add_pair(pipe(pair), pair);
	for (int i = 0; i < 3; i++)
		add_pair(socketpair(AF_UNIX, sockets[i] | (i ? 0 : SOCK_NONBLOCK), 0, pair), pair);
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
	snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "h%d", index);
	bind(listener, (struct sockaddr *)&name, sizeof name);
	listen(listener, 4);
	add(listener);
	for (int i = 0; i < 4; i++)
		add(socket(i & 1 ? AF_INET : AF_INET6, sockets[i / 2] | SOCK_NONBLOCK, 0));
	for (int i = 0; i < 2; i++)
		add(socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK, i * 4));
	static const int protocols[] = { IPPROTO_ICMP, IPPROTO_RAW, IPPROTO_UDP, IPPROTO_ICMPV6 };
	for (int i = 0; i < 4; i++)
		add(socket(i == 3 ? AF_INET6 : AF_INET, SOCK_RAW | SOCK_NONBLOCK, protocols[i]));
	for (int i = 0; i < 2; i++)
		add(socket(AF_PACKET, (i ? SOCK_DGRAM : SOCK_RAW) | SOCK_NONBLOCK, htons(ETH_P_ALL)));
	for (int version = TPACKET_V1; version <= TPACKET_V3; version++) {
		int ring = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, htons(ETH_P_ALL));
		struct tpacket_req3 request = { 4096, 2, 2048, 4, version == TPACKET_V3, 0, 0 };
		setsockopt(ring, SOL_PACKET, PACKET_VERSION, &version, sizeof version);
		setsockopt(ring, SOL_PACKET, PACKET_RX_RING, &request, sizeof request);
		request.tp_retire_blk_tov = 0;
		setsockopt(ring, SOL_PACKET, PACKET_TX_RING, &request, sizeof request);
		add(ring);
	}
	add(open(".", O_RDONLY | O_DIRECTORY));
	add(open("/proc/self", O_RDONLY | O_DIRECTORY));
	int terminal = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK), unlock = 0;
	add(terminal);
	ioctl(terminal, TIOCSPTLCK, &unlock);
	if (ioctl(terminal, TIOCGPTN, &unlock) == 0) {
		snprintf(text, sizeof text, "/dev/pts/%d", unlock);
		add(open(text, O_RDWR | O_NOCTTY | O_NONBLOCK));
	}
	add(open("/proc/self/mem", O_RDWR));
	add(open("/proc/self/maps", O_RDONLY));
	snprintf(text, sizeof text, "/proc/%d/stat", getppid());
	add(open(text, O_RDONLY));
	add(open("/sys/kernel/tracing/trace_pipe", O_RDONLY | O_NONBLOCK));
	add(open("/sys/kernel/tracing/trace", O_RDWR));
	add(open("/sys/kernel/tracing/set_event", O_RDWR));
	add(open("/sys/kernel/tracing/trace_marker", O_WRONLY));
	add(open("/dev/zero", O_RDWR));
	add(open("/dev/vda", O_RDWR));
	add(eventfd(0, EFD_NONBLOCK));
	int events = epoll_create1(0);
	struct epoll_event event = { EPOLLIN | EPOLLET, { .fd = files[1] } };
	epoll_ctl(events, EPOLL_CTL_ADD, files[1], &event);
	add(events);
	add(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK));
	sigset_t set;
	sigfillset(&set);
	add(signalfd(-1, &set, SFD_NONBLOCK));
	add(memfd_create("h", MFD_ALLOW_SEALING));
	int secret = (int)syscall(447 /* memfd_secret */, 0);
	if (secret >= 0 && ftruncate(secret, 64 << 10) == 0)
		mmap(NULL, 64 << 10, PROT_READ | PROT_WRITE, MAP_SHARED, secret, 0);
	add(secret);
	int watcher = inotify_init1(IN_NONBLOCK);
	inotify_add_watch(watcher, ".", IN_ALL_EVENTS);
	inotify_add_watch(watcher, "a", IN_ALL_EVENTS | IN_EXCL_UNLINK);
	add(watcher);
	/* Nothing is asked: an unanswered question would stop all processes. */
	int group = (int)syscall(SYS_fanotify_init, FAN_NONBLOCK, O_RDWR);
	syscall(SYS_fanotify_mark, group, FAN_MARK_ADD, FAN_OPEN | FAN_MODIFY | FAN_CLOSE | FAN_EVENT_ON_CHILD | FAN_ONDIR, AT_FDCWD, ".");
	add(group);
	group = (int)syscall(SYS_fanotify_init, FAN_NONBLOCK | FAN_REPORT_DFID_NAME | FAN_REPORT_FID, O_RDONLY);
	syscall(SYS_fanotify_mark, group, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, FAN_CREATE | FAN_DELETE | FAN_MOVE | FAN_ATTRIB | FAN_ONDIR, AT_FDCWD, ".");
	add(group);
	add((int)syscall(SYS_pidfd_open, getpid(), 0));
	/* Faults on these pages wait until the process is killed, or are bus errors. */
	int monitor = (int)syscall(SYS_userfaultfd, O_NONBLOCK | (index % 2));
	uint64_t agreed[3] = { 0xaa, index % 8 ? 1 << 7 : 0, 0 };
	char *watched = mmap(NULL, 64 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t wish[4] = { (uintptr_t)watched, 64 << 10, 1, 0 };
	ioctl(monitor, 0xc018aa3f /* UFFDIO_API */, agreed);
	wish[2] = 1 + index % 3;
	ioctl(monitor, 0xc020aa00 /* UFFDIO_REGISTER */, wish);
	wish[2] = 1;
	ioctl(monitor, 0xc018aa06 /* UFFDIO_WRITEPROTECT */, wish);
	add(monitor);
	/* A queue that processes share, and its file. */
	snprintf(text, sizeof text, "h%d", index % 4);
	int queue = (int)syscall(SYS_mq_open, text, O_RDWR | O_CREAT | O_NONBLOCK, 0666, NULL);
	syscall(SYS_mq_timedsend, queue, text, 3, index % 7, NULL);
	add(queue);
	/* io_uring_params without options. */
	uint64_t parameters[15] = { 0 };
	int ring = (int)syscall(SYS_io_uring_setup, 8, parameters);
	if (ring >= 0) {
		add(ring);
		for (int area = 0; area < 3; area++)
			mmap(arena + ARENA + (16 + area) * 4096, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, ring,
			     (off_t[]){ 0, 0x8000000, 0x10000000 }[area]);
	}
}

/* Some files send signals about their events. These signals are ignored, or interrupt calls. */
static void prepare_signals(int index)
{
	/* Because of the lease, opens for writing wait for a while, or until this process ends. */
	int leased = index % 4 ? -1 : open("b", O_RDONLY | O_CREAT, 0666);
	fcntl(leased, F_SETLEASE, index % 8 ? F_WRLCK : F_RDLCK);
	add(leased);
	for (int i = index % 3; i < file_count; i += 3) {
		if (fcntl(files[i], F_SETOWN, getpid()) != 0)
			continue;
		fcntl(files[i], F_SETSIG, i & 1 ? SIGURG : SIGALRM);
		fcntl(files[i], F_SETFL, fcntl(files[i], F_GETFL) | O_ASYNC);
	}
}

/* Makes a control group that some processes share and may change. Opens its files, except those
 * that stop or kill all members. */
static void prepare_groups(int index)
{
	static const char *const names[] = { "", "/cgroup.procs", "/cgroup.events", "/cgroup.subtree_control", "/cgroup.max.depth", "/pids.max",
		"/memory.stat", "/memory.events", "/memory.swap.max", "/memory.reclaim", "/memory.oom.group" };
	char path[96];
	snprintf(path, sizeof path, "/sys/fs/cgroup/hostile-%d", index % 4);
	if (mkdir(path, 0755) == 0)
		(void)!write(open("/sys/fs/cgroup/cgroup.subtree_control", O_WRONLY | O_CLOEXEC), "+memory +pids", 13);
	for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
		snprintf(path, sizeof path, "/sys/fs/cgroup/hostile-%d%s", index % 4, names[i]);
		if (user >= 0)
			(void)!chown(path, user, user);
		int file = open(path, i ? O_RDWR : O_RDONLY | O_DIRECTORY);
		if (i == 1)
			(void)!write(file, "0", 1);
		add(file);
	}
}

/* Makes System V objects that processes share; the objects outlive their makers. */
static void prepare_objects(int index)
{
	int key = 1 + index % 4;
	objects[0] = shmget(key, 8192, IPC_CREAT | 0666);
	objects[1] = semget(key, 4, IPC_CREAT | 0666);
	objects[2] = msgget(key, IPC_CREAT | 0666);
}

/* Removes all System V objects. */
static void remove_objects(void)
{
	struct shmid_ds segment;
	struct semid_ds set;
	struct msqid_ds queue;
	for (int at = shmctl(0, IPC_INFO, &segment); at >= 0; at--)
		shmctl(shmctl(at, SHM_STAT, &segment), IPC_RMID, NULL);
	char limits[128];
	for (int at = semctl(0, 0, IPC_INFO, limits); at >= 0; at--)
		semctl(semctl(at, 0, SEM_STAT, &set), 0, IPC_RMID);
	for (int at = msgctl(0, IPC_INFO, (void *)limits); at >= 0; at--)
		msgctl(msgctl(at, MSG_STAT, &queue), IPC_RMID, NULL);
	/* Names of queues are random, too: the mounted file system lists them all. */
	DIR *queues = mkdir(FOLDER "/queues", 0700) == 0 && mount("none", FOLDER "/queues", "mqueue", 0, NULL) == 0 ? opendir(FOLDER "/queues") : NULL;
	for (struct dirent *entry; queues && (entry = readdir(queues));)
		unlinkat(dirfd(queues), entry->d_name, 0);
	if (queues)
		closedir(queues);
	umount2(FOLDER "/queues", MNT_DETACH);
	rmdir(FOLDER "/queues");
}

static long some_call(struct dice *dice)
{
	uint64_t total = ladder[CALLS - 1], step = draw(dice) % (total ? total : 1);
	int low = 0, high = CALLS - 1;
	while (low < high) {
		int middle = (low + high) / 2;
		if (ladder[middle] > step)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

static const uint32_t listener_requests[] = { 0xc0502100, 0xc0182101, 0x40082102, 0x40182103 };

/* Replaces the process number of a call that changes another process by one of process(), which
 * never returns the parent's. */
static void keep_to_own(struct dice *dice, long call, uint64_t *a)
{
	switch (call) {
	case SYS_tgkill:
	case SYS_rt_tgsigqueueinfo:
		a[1] = process(dice);
		/* fallthrough */
	case SYS_kill:
	case SYS_tkill:
	case SYS_rt_sigqueueinfo:
	case SYS_prlimit64:
	case SYS_pidfd_open:
	case SYS_process_vm_writev:
	case SYS_sched_setaffinity:
	case SYS_sched_setscheduler:
	case SYS_sched_setparam:
	case SYS_sched_setattr:
	case SYS_migrate_pages:
	case SYS_move_pages:
		a[0] = process(dice);
		break;
	case SYS_setpriority:
	case SYS_ioprio_set:
	case SYS_ptrace:
		a[1] = process(dice);
		break;
	case SYS_fcntl:
		/* F_SETSIG may choose any signal number. */
		if ((uint32_t)a[1] == F_SETOWN_EX)
			a[1] = F_SETOWN;
		if ((uint32_t)a[1] == F_SETOWN)
			a[2] = process(dice);
		break;
	case SYS_ioctl:
		if (below(dice, 16) == 0)
			a[1] = listener_requests[below(dice, 4)];
		if ((uint32_t)a[1] == FIOSETOWN || (uint32_t)a[1] == SIOCSPGRP)
			a[1] = FIOGETOWN;
		break;
	case SYS_setpgid:
		/* A random number hardly ever names a group. */
		a[0] = process(dice);
		a[1] = process(dice);
		break;
	}
}

/* Makes registrations of all kinds, and sections for them. The C library's own registration
 * would prevent others. */
static void prepare_rseq(struct dice *dice, uint64_t *a)
{
	enum { LENGTH = 32, UNREGISTER = 1, SIGNATURE = 0x53053053 };
	syscall(SYS_rseq, (char *)__builtin_thread_pointer() + __rseq_offset, LENGTH, UNREGISTER, SIGNATURE);
	a[1] = below(dice, 4) ? LENGTH : a[1];
	a[2] = below(dice, 8) ? below(dice, 2) : a[2];
	a[3] = below(dice, 4) ? SIGNATURE : a[3];
	if (below(dice, 2) && a[0] % 32 == 0 && a[0] >= (uintptr_t)arena && a[0] < (uintptr_t)arena + ARENA)
		((uint64_t *)a[0])[1] = below(dice, 2) ? address(dice) : any_number(dice);
}

/* Locks with priority inheritance: the words name an owner, and each wait has a time limit,
 * because these calls restart after any signal. */
static void prepare_futex(struct dice *dice, uint64_t *a)
{
	static const uint32_t flags[] = { 0, 0, FUTEX_WAITERS, FUTEX_OWNER_DIED, FUTEX_WAITERS | FUTEX_OWNER_DIED };
	static const struct timespec past = { 1, 0 };
	uint32_t command = a[1] & FUTEX_CMD_MASK;
	if (command != FUTEX_LOCK_PI && command != 13 /* FUTEX_LOCK_PI2 */ && command != FUTEX_UNLOCK_PI && command != FUTEX_TRYLOCK_PI && command != FUTEX_WAIT_REQUEUE_PI && command != FUTEX_CMP_REQUEUE_PI)
		return;
	for (int i = 0; i < 5; i += 4) {
		if (a[i] % 8 == 0 && a[i] >= (uintptr_t)arena && a[i] < (uintptr_t)arena + ARENA && below(dice, 4))
			*(uint32_t *)a[i] = flags[below(dice, 5)] | (uint32_t[]){ 0, gettid(), getppid(), process(dice), below(dice, 64) }[below(dice, 5)];
		else if (i == 4 && below(dice, 4))
			a[i] = (uintptr_t)arena + 64 * below(dice, 4);
	}
	if (command != FUTEX_CMP_REQUEUE_PI)
		a[3] = (uintptr_t)&past;
	else if (below(dice, 4))
		a[2] = 1;
}

/* Filters of random instructions; never strict mode, which would end the thread. */
static void prepare_filter(struct dice *dice, uint64_t *a)
{
	static const unsigned char codes[] = { 0x20, 0x00, 0x60, 0x80, 0x01, 0x61, 0x02, 0x03, 0x04, 0x34, 0x3c, 0x54, 0x64, 0x84, 0x05, 0x15, 0x1d, 0x45, 0x07, 0x87 };
	uint64_t *program = (uint64_t *)arena;
	int count = 1 + below(dice, 8);
	a[0] = 1 + below(dice, 3) % 2;
	a[1] = below(dice, 8) ? below(dice, 3) : a[1];
	a[2] = below(dice, 8) ? (uintptr_t)program : a[2];
	for (int i = 0; i < count; i++)
		program[2 + i] = codes[below(dice, sizeof codes)] | (uint64_t)below(dice, 3) << 16 | (uint64_t)below(dice, 3) << 24 | (uint64_t)(below(dice, 17) * 4) << 32;
	program[2 + count] = 0x7fff000000000006; /* all is allowed */
	program[0] = count + 1;
	if (below(dice, 4) == 0) {
		/* A listener is asked about getsid. No call asks for a sleep that signals do not end. */
		a[0] = 1;
		a[1] = 8 | below(dice, 8);
		program[2] = 0x20;
		program[3] = 0x0000000001000015 | (uint64_t)SYS_getsid << 32;
		program[4] = 0x7fc0000000000006;
		program[5] = 0x7fff000000000006;
		program[0] = 4;
	}
	program[1] = (uintptr_t)(program + 2);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

/* Returns flags for some kinds of namespaces. Mostly with a user namespace, which gives the rights
 * that the others need. */
static uint64_t namespaces(struct dice *dice)
{
	static const unsigned kinds[] = { CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWCGROUP, CLONE_NEWNET, CLONE_NEWTIME, CLONE_NEWPID };
	uint64_t flags = below(dice, 3) ? CLONE_NEWUSER : 0;
	for (unsigned n = below(dice, 4); n > 0; n--)
		flags |= kinds[below(dice, below(dice, 8) ? 6 : 7)];
	return flags;
}

/* Gives calls the process' own context, and a control block with a valid request. */
static void prepare_requests(struct dice *dice, long call, uint64_t *a)
{
	static aio_context_t context;
	if (!context)
		syscall(SYS_io_setup, 4, &context);
	if (call == SYS_io_setup || !below(dice, 8))
		return;
	a[0] = context;
	if (call == SYS_io_destroy)
		context = 0;
	if (call == SYS_io_getevents || call == SYS_io_pgetevents)
		a[1] = below(dice, 3);
	if (call != SYS_io_submit || !below(dice, 4))
		return;
	struct iocb *block = (struct iocb *)arena;
	*block = (struct iocb){ .aio_lio_opcode = below(dice, 10), .aio_fildes = files[below(dice, file_count)], .aio_buf = address(dice),
				.aio_nbytes = below(dice, 2) ? below(dice, 3) : any_number(dice), .aio_data = any_number(dice),
				.aio_offset = below(dice, 2) ? 0 : any_number(dice), .aio_flags = below(dice, 4) ? 0 : 1,
				.aio_resfd = files[below(dice, file_count)] };
	((uint64_t *)(arena + sizeof *block))[0] = (uintptr_t)arena;
	((uint64_t *)(arena + sizeof *block))[1] = below(dice, 2) ? (uintptr_t)arena : address(dice);
	a[1] = 1 + below(dice, 2);
	a[2] = (uintptr_t)arena + sizeof *block;
}

static void count(long call, long result)
{
	__atomic_fetch_add(&shared->calls[call], 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&shared->successes[call], result != -1, __ATOMIC_RELAXED);
}

/* Traces a child with debug registers of all kinds. Most of them watch the program's own
 * addresses, which it accesses itself and by calls. The number of stops depends on time, so the
 * child has its own random numbers. */
static void trace_child(uint64_t start)
{
	struct dice own = { start | 1 }, *dice = &own;
	pid_t child = fork();
	if (child == 0) {
		if (ptrace(PTRACE_TRACEME, 0, 0, 0) == 0)
			raise(SIGSTOP);
		for (int i = 0; i < 64; i++) {
			for (unsigned at = 0; at < ARENA; at += 4096)
				((volatile char *)arena)[at + i] = i;
			(void)!pwrite(files[0], arena, ARENA, 0);
		}
		_exit(0);
	}
	for (int stops = 0, status; child > 0 && stops < 64; stops++) {
		pid_t found = 0;
		for (int tries = 0; tries < 200 && (found = waitpid(child, &status, WNOHANG | __WALL)) == 0; tries++)
			usleep(50);
		if (found != child || !WIFSTOPPED(status))
			break;
		for (int i = 0; i < 12; i++) {
			int number = below(dice, 9), slot = below(dice, 4), is_control = number >= 7;
			uint64_t place = offsetof(struct user, u_debugreg[0]) + 8 * (is_control ? 7 : number) + !below(dice, 16);
			uint64_t one = 3ull << (2 * slot) | (uint64_t)below(dice, 16) << (16 + 4 * slot);
			uint64_t value = below(dice, 4) == 0 ? any_number(dice) : is_control ? one : address(dice);
			count(SYS_ptrace, syscall(SYS_ptrace, below(dice, 4) ? PTRACE_POKEUSER : PTRACE_PEEKUSER, child, place, value));
		}
		(void)!ptrace(below(dice, 4) ? PTRACE_CONT : PTRACE_SINGLESTEP, child, 0, below(dice, 16) ? 0 : SIGQUIT);
	}
	if (child > 0)
		kill(child, SIGKILL);
}

static int is_fork(long call)
{
	return call == SYS_fork || call == SYS_vfork || call == SYS_clone || call == SYS_clone3;
}

static void nothing(int signal)
{
	(void)signal;
}

/* Starts a timer whose signal ends a waiting call with EINTR after a few milliseconds. Only a
 * wait with a defect goes on. */
static void stay_interruptible(void)
{
	struct sigaction action = { .sa_handler = nothing };
	struct itimerval often = { { 0, 4000 }, { 0, 4000 } };
	sigset_t alarm;
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	sigaction(SIGALRM, &action, NULL);
	sigprocmask(SIG_UNBLOCK, &alarm, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
}

static void *make_calls(void *given)
{
	struct thread *self = given;
	struct dice *dice = &self->dice;
	for (int i = 0; i < self->calls; i++) {
		long call = some_call(dice);
		const char *shape = shapes[call] ? shapes[call] : "";
		uint64_t a[6];
		if (i % 4 == 0)
			stay_interruptible();
		for (int k = 0; k < 6; k++) {
			a[k] = argument(dice, *shape ? *shape : 'n');
			self->record->arguments[self->number][k] = a[k];
			shape += *shape != 0;
		}
		if (is_spared(call))
			continue;
		keep_to_own(dice, call, a);
		if (call == SYS_ptrace)
			trace_child(draw(dice));
		if (call == SYS_rseq)
			prepare_rseq(dice, a);
		if (call == SYS_futex)
			prepare_futex(dice, a);
		if (call == SYS_seccomp)
			prepare_filter(dice, a);
		if (call == SYS_unshare && below(dice, 2))
			a[0] = namespaces(dice);
		if ((call >= SYS_io_setup && call <= SYS_io_cancel) || call == SYS_io_pgetevents)
			prepare_requests(dice, call, a);
		self->record->call[self->number] = call;
		if (show)
			dprintf(2, "%d: %ld(%#lx, %#lx, %#lx, %#lx, %#lx, %#lx)\n", getpid(), call, a[0], a[1], a[2], a[3], a[4], a[5]);
		long result = syscall(call, a[0], a[1], a[2], a[3], a[4], a[5]);
		/* A new process continues here, but makes fewer calls: their number is bounded. */
		if (result == 0 && is_fork(call))
			i += (self->calls - i) * 3 / 4;
		count(call, result);
	}
	return NULL;
}

static void limit(int resource, rlim_t most)
{
	struct rlimit limit = { most, most };
	setrlimit(resource, &limit);
}

static void live(int index, struct record *record)
{
	struct thread threads[THREADS];
	char folder[32], most[] = "0";
	int fd = open("/proc/self/oom_score_adj", O_WRONLY);
	(void)!write(fd, most, 1);
	close(fd);
	sched_setscheduler(0, SCHED_OTHER, &(struct sched_param){ 0 });
	setsid();
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	limit(RLIMIT_AS, 96 << 20);
	limit(RLIMIT_FSIZE, 1 << 20);
	limit(RLIMIT_CORE, index % 3 ? RLIM_INFINITY : 0);
	limit(RLIMIT_NOFILE, 256);
	limit(RLIMIT_NPROC, 64);
	snprintf(folder, sizeof folder, FOLDER "/%d", index);
	mkdir(folder, 0777);
	prepare_groups(index);
	prepare_signals(index);
	if (user >= 0) {
		(void)!chown(folder, user, user);
		if (setgroups(0, NULL) || setgid(user) || setuid(user))
			_exit(100);
		prctl(PR_SET_DUMPABLE, 1);
	}
	(void)!chdir(folder);
	for (int i = 0; i < THREADS; i++) {
		uint64_t state = (seed + 1) * 0x9e3779b97f4a7c15ull + ((uint64_t)index * THREADS + i) * 0xbf58476d1ce4e5b9ull;
		threads[i] = (struct thread){ { state ? state : 1 }, i, calls_each / (index % 2 ? THREADS : 1), record };
	}
	int file = open("m", O_RDWR | O_CREAT, 0600);
	(void)!ftruncate(file, AROUND);
	prepare_arena(&threads[0].dice, file);
	prepare_files(index);
	prepare_objects(index);
	pthread_t second;
	if (index % 2 && pthread_create(&second, NULL, make_calls, &threads[1]) == 0) {
		make_calls(&threads[0]);
		pthread_join(second, NULL);
	} else {
		make_calls(&threads[0]);
	}
	_exit(0);
}

/* Sends SIGKILL to all descendants of this process; returns their number. */
static int kill_descendants(void)
{
	static struct {
		int pid, parent, ours;
	} all[4096];
	int count = 0, found = 0, more = 1;
	DIR *folder = opendir("/proc");
	NEED(folder);
	for (struct dirent *entry; count < 4096 && (entry = readdir(folder));) {
		char text[512];
		snprintf(text, sizeof text, "/proc/%.20s/stat", entry->d_name);
		int fd = atoi(entry->d_name) > 0 ? open(text, O_RDONLY) : -1;
		if (fd < 0)
			continue;
		ssize_t length = read(fd, text, sizeof text - 1);
		close(fd);
		text[length > 0 ? length : 0] = 0;
		char *after = strrchr(text, ')');
		if (after && sscanf(after + 1, " %*c %d", &all[count].parent) == 1) {
			all[count].pid = atoi(text);
			all[count++].ours = 0;
		}
	}
	closedir(folder);
	while (more) {
		more = 0;
		for (int i = 0; i < count; i++) {
			int is_child = all[i].parent == getpid();
			for (int k = 0; k < count && !is_child; k++)
				is_child = all[k].ours && all[k].pid == all[i].parent;
			more |= is_child && !all[i].ours;
			all[i].ours |= is_child;
		}
	}
	for (int i = 0; i < count; i++)
		found += all[i].ours && kill(all[i].pid, SIGKILL) == 0;
	return found;
}

static struct {
	int ended, signalled, killed;
	int64_t slowest;
} ends;

static void tell_stuck(int index, int count)
{
	for (int i = 0; i < count; i++)
		for (int k = 0; k < THREADS; k++) {
			volatile uint64_t *a = shared->records[i].arguments[k];
			printf("hostile: process %d, last call %ld(%#lx, %#lx, %#lx, %#lx, %#lx, %#lx)\n", index + i, shared->records[i].call[k],
			       a[0], a[1], a[2], a[3], a[4], a[5]);
		}
	printf("hostile: a process still lives %d ms after SIGKILL\n", DEADLINE_MS);
	exit(1);
}

/* Kills and reaps the descendants that `count` processes from `index` on have left. */
static void clear(int index, int count)
{
	int64_t begun = now_ms();
	for (;;) {
		int left = kill_descendants();
		while (waitpid(-1, NULL, WNOHANG | __WALL) > 0)
			;
		if (left == 0)
			break;
		if (now_ms() > begun + DEADLINE_MS)
			tell_stuck(index, count);
		sleep_ms(1);
	}
	if (now_ms() - begun > ends.slowest)
		ends.slowest = now_ms() - begun;
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *place)
{
	(void)status, (void)kind;
	if (place->level > 0)
		remove(path);
	return 0;
}

static void run(int index, int count)
{
	pid_t children[MOST_JOBS];
	int left = count, status;
	memset((void *)shared->records, 0, sizeof shared->records);
	for (int i = 0; i < count; i++) {
		fflush(stdout);
		children[i] = fork();
		if (children[i] == 0)
			live(index + i, &shared->records[i]);
		left -= children[i] < 0;
	}
	int64_t end = now_ms() + patience_ms;
	while (left > 0 && now_ms() < end) {
		for (int i = 0; i < count; i++) {
			if (children[i] > 0 && waitpid(children[i], &status, WNOHANG | __WALL) == children[i]) {
				/* A child that asked to be traced is killed at its first stop. */
				if (WIFSTOPPED(status)) {
					kill(children[i], SIGKILL);
					continue;
				}
				children[i] = 0;
				left--;
				*(WIFSIGNALED(status) ? &ends.signalled : &ends.ended) += 1;
			}
		}
		if (left > 0)
			sleep_ms(2);
	}
	ends.killed += left;
	clear(index, count);
	remove_objects();
	nftw(FOLDER, remove_entry, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

/* Calls after which a process can do little more. */
static int ends_soon(long call)
{
	return call == SYS_exit || call == SYS_exit_group || call == SYS_execve || call == SYS_execveat || call == SYS_rt_sigreturn ||
	       call == SYS_rt_sigaction;
}

static void weigh(const char *file)
{
	uint64_t weights[CALLS], weight;
	int number;
	for (int i = 0; i < CALLS; i++)
		weights[i] = shapes[i] && !ends_soon(i) ? 8 : 1;
	if (file) {
		FILE *list = fopen(file, "r");
		NEED(list);
		while (fscanf(list, "%d %lu%*[^\n]", &number, &weight) == 2)
			if (number >= 0 && number < CALLS)
				weights[number] = weight;
		fclose(list);
	}
	for (int i = 0; i < CALLS; i++)
		ladder[i] = weights[i] + (i ? ladder[i - 1] : 0);
}

int main(int argc, char **argv)
{
	const char *weights = NULL;
	int option, seconds = 0, tell_counts = 0;
	struct rlimit inherited;
	/* One of the test's processes has executed this file. It must not become a second
	 * parent. */
	if (getrlimit(RLIMIT_FSIZE, &inherited) || inherited.rlim_cur != RLIM_INFINITY)
		return 0;
	while ((option = getopt(argc, argv, "u:j:s:p:w:c")) != -1) {
		switch (option) {
		case 'u':
			user = atoi(optarg);
			break;
		case 'j':
			jobs = atoi(optarg);
			break;
		case 's':
			seconds = atoi(optarg);
			break;
		case 'p':
			patience_ms = atoi(optarg);
			break;
		case 'w':
			weights = optarg;
			break;
		case 'c':
			tell_counts = 1;
			break;
		default:
			optind = argc;
		}
	}
	if (argc - optind < 2 || jobs < 1 || jobs > MOST_JOBS) {
		fprintf(stderr, "usage: hostile [-u UID] [-j AT ONCE] [-s SECONDS] [-p PATIENCE] [-w WEIGHTS] [-c] SEED PROCESSES [CALLS]\n");
		return 2;
	}
	seed = strtoull(argv[optind], NULL, 0);
	int processes = atoi(argv[optind + 1]), index = 0;
	if (argc - optind > 2)
		calls_each = atoi(argv[optind + 2]);
	show = getenv("HOSTILE_SHOW") != NULL;
	weigh(weights);
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(shared != MAP_FAILED);
	/* This process reaps the others: it outlives them when memory is short, and is the
	 * reaper of their orphans. */
	int fd = open("/proc/self/oom_score_adj", O_WRONLY);
	(void)!write(fd, "-1000", 5);
	close(fd);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){ 99 });
	umask(0);
	mkdir(FOLDER, 0777);
	int64_t end = now_ms() + seconds * 1000ll;
	for (; index < processes && (!seconds || now_ms() < end); index += jobs)
		run(index, processes - index < jobs ? processes - index : jobs);
	uint64_t calls = 0;
	for (int i = 0; i < CALLS; i++) {
		calls += shared->calls[i];
		if (tell_counts)
			printf("%d %lu %lu\n", i, shared->calls[i], shared->successes[i]);
	}
	printf("hostile: %d processes ended, %d were signalled, %d waited for too long; %lu calls; the slowest end took %ld ms\n", ends.ended,
	       ends.signalled, ends.killed, calls, ends.slowest);
	return 0;
}
