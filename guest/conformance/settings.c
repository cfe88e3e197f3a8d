/*
 * Settings below /proc/sys that root may write, tested by their effects: the largest pipe, the
 * largest process ID, the number of areas of an address space, the memory that one call may
 * request, the addresses of programs, the mounts of a namespace, the namespaces of a user, the
 * descriptors of a process, the IDs of System V objects and the memory that programs leave free.
 * Needs root, and a machine of its own: the settings hold for all processes.
 */
#include "promise.h"
#include "setting.h"
#include <arpa/inet.h>
#include "loopback.h"
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/msg.h>
#include <sys/reboot.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <grp.h>
#include <sys/mount.h>

enum { USER = 1000 };

static void sets(const char *name, long value)
{
	char text[32];
	snprintf(text, sizeof text, "%ld\n", value);
	NEED(writes(name, text) == 0);
}

#define AS_USER(...) ({ int status_; IN_CHILD(status_, NEED(setgroups(0, NULL) == 0 && setresgid(USER, USER, USER) == 0 && setresuid(USER, USER, USER) == 0); __VA_ARGS__); \
	WIFEXITED(status_) && WEXITSTATUS(status_) == 0; })

/* Makes a pipe and requests a size of `wanted` bytes (0: no request). Returns its size or a
 * negative errno. */
static long pipe_of(long wanted)
{
	int ends[2];
	NEED(pipe(ends) == 0);
	long size = wanted && fcntl(ends[1], F_SETPIPE_SZ, wanted) < 0 ? -errno : fcntl(ends[1], F_GETPIPE_SZ);
	close(ends[0]);
	close(ends[1]);
	return size;
}

/* Returns the sum of the zones' lowest watermarks, in KiB. */
static long lowest_marks(void)
{
	FILE *zones = fopen("/proc/zoneinfo", "r");
	NEED(zones);
	char line[256];
	long pages, sum = 0;
	while (fgets(line, sizeof line, zones))
		if (sscanf(line, " min %ld", &pages) == 1)
			sum += pages;
	fclose(zones);
	return sum * 4;
}

static void least_free(void)
{
	const char *name = "vm/min_free_kbytes";
	long before = reads(name), more = 2 * before + 3;
	sets(name, more);
	PROMISE("what programs leave free can be set", reads(name) == more);
	long told = lowest_marks();
	PROMISE("and the zones have parts of it", told <= more && told > more - 64);
	PROMISE("only by root", AS_USER(_exit(writes(name, "20000") != EACCES)));
	PROMISE("a text is no number", writes(name, "much") == EINVAL && reads(name) == more);
	sets(name, before);
	PROMISE("and set back", reads(name) == before && lowest_marks() <= before);
}

static void pipes(void)
{
	const char *name = "fs/pipe-max-size";
	PROMISE("a pipe of a user has a MiB at most", reads(name) == 1 << 20 && AS_USER(_exit(!(pipe_of(1 << 20) == 1 << 20 && pipe_of((1 << 20) + 1) == -EPERM))));
	PROMISE("root's may have more", pipe_of(1 << 21) == 1 << 21);
	int small[2];
	NEED(pipe(small) == 0);
	PROMISE("a page is the least", fcntl(small[0], F_SETPIPE_SZ, 0) == 4096 && fcntl(small[1], F_GETPIPE_SZ) == 4096);
	close(small[0]);
	close(small[1]);
	sets(name, 8193);
	PROMISE("the limit is a power of two of pages", reads(name) == 16384);
	PROMISE("what a user gets without asking is within it", AS_USER(_exit(pipe_of(0) != 16384)));
	PROMISE("or asks for", AS_USER(_exit(!(pipe_of(32768) == -EPERM && pipe_of(16384) == 16384))));
	PROMISE("root's pipes are as they were", pipe_of(0) == 65536);
	int ends[2];
	NEED(pipe(ends) == 0);
	PROMISE("one that is larger may shrink", AS_USER(_exit(fcntl(ends[0], F_SETPIPE_SZ, 32768) != 32768)));
	close(ends[0]);
	close(ends[1]);
	sets(name, 0);
	PROMISE("there is a page at least", reads(name) == 4096);
	PROMISE("and two GiB at most", writes(name, "2147483649") == EINVAL);
	PROMISE("a user changes nothing", AS_USER(_exit(writes(name, "65536") != EACCES)));
	sets(name, 1 << 20);
}

static pid_t number_of_child(void)
{
	int status;
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0)
		_exit(0);
	NEED(waitpid(child, &status, 0) == child);
	return child;
}

static void numbers(void)
{
	const char *name = "kernel/pid_max";
	long before = reads(name);
	int below = 1, wrapped = 0;
	pid_t last = 0;
	sets(name, 600);
	for (int child = 0; child < 700; child++) {
		pid_t number = number_of_child();
		below &= number < 600;
		wrapped += number < last;
		last = number;
	}
	PROMISE("new processes have numbers below the limit", below);
	PROMISE("which begin anew at 300", wrapped >= 1 && last >= 300);
	PROMISE("the limit is above 300", writes(name, "300") == EINVAL && writes(name, "301") == 0);
	sets(name, before);
	PROMISE("a user changes nothing", AS_USER(_exit(writes(name, "32768") != EACCES)));
}

/* Returns the number of areas that a process can have. They are pages of two kinds in turn, so
 * none merge. */
static int areas(int most)
{
	int count = 0;
	while (count < most && mmap(NULL, 4096, count % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED)
		count++;
	return count;
}

static void areas_of_memory(void)
{
	const char *name = "vm/max_map_count";
	int status;
	PROMISE("the usual limit", reads(name) == 65530);
	sets(name, 100);
	IN_CHILD(status, int count = areas(1000); _exit(!(count > 50 && count <= 101 && errno == ENOMEM)));
	PROMISE("an address space has so many areas", WIFEXITED(status) && WEXITSTATUS(status) == 0);
	sets(name, 70000);
	IN_CHILD(status, _exit(areas(66000) != 66000));
	PROMISE("or more than the usual", WIFEXITED(status) && WEXITSTATUS(status) == 0);
	PROMISE("a negative number is none", writes(name, "-1") == EINVAL);
	sets(name, 65530);
}

static int maps(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return errno;
	munmap(at, bytes);
	return 0;
}

static void promised(void)
{
	const char *name = "vm/overcommit_memory";
	const size_t tib = 1ull << 40;
	PROMISE("what could never be there is refused", reads(name) == 0 && maps(tib) == ENOMEM);
	sets(name, 1);
	PROMISE("or all is promised", reads(name) == 1 && maps(tib) == 0);
	sets(name, 0);
	PROMISE("and refused again", maps(tib) == ENOMEM);
	PROMISE("other ways do not exist", writes(name, "3") == EINVAL && reads(name) == 0);
}

static int mounts(void)
{
	char line[4096];
	int count = 0;
	FILE *file = fopen("/proc/self/mountinfo", "r");
	NEED(file != NULL);
	while (fgets(line, sizeof line, file))
		count++;
	fclose(file);
	return count;
}

static void numbers_of_mounts(void)
{
	/* Some mounts are not listed, because no path leads to them. */
	enum { MORE = 20 };
	const char *name = "fs/mount-max";
	long before = reads(name);
	int made = 0;
	NEED(unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
	NEED((mkdir("/tmp/many", 0755) == 0 || errno == EEXIST) && mount("none", "/tmp/many", "tmpfs", 0, NULL) == 0);
	NEED(mkdir("/tmp/many/one", 0755) == 0 && mkdir("/tmp/many/two", 0755) == 0);
	sets(name, mounts() + MORE);
	while (made < 2 * MORE && mount("none", "/tmp/many/one", "tmpfs", 0, NULL) == 0)
		made++;
	int error = errno;
	PROMISE("a namespace has as many mounts as fs.mount-max says", made > 0 && made <= MORE && error == ENOSPC);
	FAILS_WITH("bind mounts are counted", mount("/tmp/many/two", "/tmp/many/two", NULL, MS_BIND, NULL), ENOSPC);
	FAILS_WITH("and trees", mount("/tmp/many", "/tmp/many/two", NULL, MS_BIND | MS_REC, NULL), ENOSPC);
	NEED(umount("/tmp/many/one") == 0);
	PROMISE("one that goes makes room for one", mount("/tmp/many/two", "/tmp/many/two", NULL, MS_BIND, NULL) == 0 &&
		mount("none", "/tmp/many/two", "tmpfs", 0, NULL) == -1 && errno == ENOSPC);
	sets(name, before);
	PROMISE("a higher limit holds at once", mount("none", "/tmp/many/two", "tmpfs", 0, NULL) == 0);
	PROMISE("there is no limit of 0", writes(name, "0") == EINVAL && reads(name) == before);
	NEED(umount2("/tmp/many", MNT_DETACH) == 0 && rmdir("/tmp/many") == 0);
}

/* Makes UTS namespaces until the limit is reached; returns whether another user still gets one. */
static int uses_all_up(void)
{
	int status, ends[2];
	char byte;
	NEED(pipe(ends) == 0);
	pid_t greedy = fork();
	if (greedy == 0) {
		NEED(setgroups(0, NULL) == 0 && setresgid(USER, USER, USER) == 0 && setresuid(USER, USER, USER) == 0);
		NEED(unshare(CLONE_NEWUSER) == 0);
		while (unshare(CLONE_NEWUTS) == 0)
			NEED(open("/proc/self/ns/uts", O_RDONLY) >= 0);
		write(ends[1], errno == ENOSPC ? "x" : "-", 1);
		pause();
	}
	NEED(read(ends[0], &byte, 1) == 1);
	IN_CHILD(status, _exit(unshare(CLONE_NEWUTS) != 0));
	NEED(kill(greedy, SIGKILL) == 0 && waitpid(greedy, NULL, 0) == greedy);
	return byte == 'x' && status == 0;
}

/* Binds port 80 of the loopback address as a user: 0, or an errno. */
static int binds_port_80(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(80), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	NEED(made >= 0);
	int error = bind(made, (struct sockaddr *)&at, sizeof at) == 0 ? 0 : errno;
	close(made);
	return error;
}

static void ports(void)
{
	const char *name = "net/ipv4/ip_unprivileged_port_start";
	long before = reads(name);
	PROMISE("ports below 1024 are for those who may", before == 1024 && AS_USER(_exit(binds_port_80() != EACCES)));
	sets(name, 80);
	PROMISE("root gives users more of them", AS_USER(_exit(binds_port_80() != 0)));
	sets(name, before);
	PROMISE("no more than there are ports", writes(name, "65537\n") == EINVAL);
	PROMISE("no user changes that", AS_USER(_exit(writes(name, "80\n") != EACCES)));
}

static void watches(void)
{
	const char *name = "fs/epoll/max_user_watches";
	struct epoll_event event = { .events = EPOLLIN };
	int ends[2], poller = epoll_create1(EPOLL_CLOEXEC);
	NEED(pipe(ends) == 0 && poller >= 0);
	long before = reads(name);
	sets(name, 0);
	FAILS_WITH("a user watches as many files as it may", epoll_ctl(poller, EPOLL_CTL_ADD, ends[0], &event), ENOSPC);
	sets(name, before);
	PROMISE("and more after that", epoll_ctl(poller, EPOLL_CTL_ADD, ends[0], &event) == 0);
	close(poller);
	close(ends[0]);
	close(ends[1]);
}

static void namespaces(void)
{
	const char *name = "user/max_uts_namespaces";
	long before = reads(name);
	sets(name, 20);
	PROMISE("a user with all the namespaces that it may have leaves root's", uses_all_up());
	sets(name, before);
}

/* Where a program's stack and heap are. */
struct places { unsigned long stack, heap; };

/* Executes a program; returns its places. */
static struct places places_of_program(void)
{
	int ends[2], status;
	struct places places;
	NEED(pipe(ends) == 0);
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		char *words[] = { "/proc/self/exe", "places", NULL };
		dup2(ends[1], 1);
		execv(words[0], words);
		_exit(9);
	}
	NEED(waitpid(child, &status, 0) == child && status == 0 && read(ends[0], &places, sizeof places) == sizeof places);
	close(ends[0]);
	close(ends[1]);
	return places;
}

static int tells_places(void)
{
	struct places places = { (unsigned long)&places, (unsigned long)sbrk(0) };
	return write(1, &places, sizeof places) == sizeof places ? 0 : 1;
}

/* Whether programs' stacks and heaps are at random places, at `level`. */
static int are_random(int level, int stacks, int heaps)
{
	sets("kernel/randomize_va_space", level);
	struct places one = places_of_program(), other = places_of_program();
	return (one.stack != other.stack) == stacks && (one.heap != other.heap) == heaps;
}

static void addresses_of_programs(void)
{
	long before = reads("kernel/randomize_va_space");
	PROMISE("stacks and heaps are anywhere", before == 2 && are_random(2, 1, 1));
	PROMISE("or heaps behind their programs", are_random(1, 1, 0));
	PROMISE("or all at the same places each time", are_random(0, 0, 0) && reads("kernel/randomize_va_space") == 0);
	PROMISE("a user changes nothing", AS_USER(_exit(writes("kernel/randomize_va_space", "0") != EACCES)));
	sets("kernel/randomize_va_space", before);
}

/* Descriptors are below fs.nr_open, whatever RLIMIT_NOFILE is. */
static void descriptors(void)
{
	const char *name = "fs/nr_open";
	long before = reads(name);
	int status;
	struct rlimit limit = { 1024, 1024 };
	PROMISE("a process has a million descriptors at most", before == 1 << 20);
	PROMISE("64 is the least", writes(name, "63") == EINVAL && writes(name, "64") == 0 && reads(name) == 64);
	sets(name, 2147483584);
	PROMISE("and the most is below 2 to the 31st", writes(name, "2147483585") == EINVAL && writes(name, "-1") == EINVAL);
	sets(name, 256);
	IN_CHILD(status, _exit(setrlimit(RLIMIT_NOFILE, &limit) == -1 && errno == EPERM ? 0 : 1));
	PROMISE("RLIMIT_NOFILE can be no higher", status == 0);
	sets(name, 1024);
	IN_CHILD(status, NEED(setrlimit(RLIMIT_NOFILE, &limit) == 0 && dup2(1, 300) == 300);
		sets(name, 256);
		_exit(!(fork() == -1 && errno == EMFILE && dup2(300, 600) == -1 && errno == EBADF &&
			fcntl(300, F_DUPFD, 600) == -1 && errno == EMFILE && fcntl(300, F_GETFD) == 0)));
	PROMISE("a table with a higher one is not copied, and gets no more of them", status == 0);
	sets(name, 1024);
	IN_CHILD(status, NEED(dup2(1, 65) == 65); sets(name, 64); NEED(fork() == -1 && errno == EMFILE && close(65) == 0);
		pid_t child = fork(); if (child == 0) _exit(0); _exit(!(child > 0 && waitpid(child, &status, 0) == child)));
	PROMISE("it is copied when that is closed", status == 0);
	sets(name, before);
	PROMISE("a user changes nothing", AS_USER(_exit(writes(name, "1000000") != EACCES)));
}

/* The IDs that new objects of System V get. */
static int queue(void) { return msgget(IPC_PRIVATE, 0600); }
static int set(void) { return semget(IPC_PRIVATE, 1, 0600); }
static int segment(void) { return shmget(IPC_PRIVATE, 4096, 0600); }
static int drop_queue(int id) { return msgctl(id, IPC_RMID, NULL); }
static int drop_set(int id) { return semctl(id, 0, IPC_RMID); }
static int drop_segment(int id) { return shmctl(id, IPC_RMID, NULL); }

static void next_ids(void)
{
	static const struct { const char *name; int (*make)(void), (*drop)(int); } kinds[] = {
		{ "kernel/msg_next_id", queue, drop_queue }, { "kernel/sem_next_id", set, drop_set },
		{ "kernel/shm_next_id", segment, drop_segment },
	};
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		const char *name = kinds[i].name;
		int wanted = 7 << 15 | 200, id = -1, next = -1, any;
		PROMISE("the next object gets any ID", reads(name) == -1);
		sets(name, wanted);
		PROMISE("or the one that root chose", reads(name) == wanted && (id = kinds[i].make()) == wanted);
		PROMISE("once", reads(name) == -1 && (any = kinds[i].make()) >= 0 && any != wanted + 1 && kinds[i].drop(any) == 0);
		sets(name, wanted);
		PROMISE("if it is taken, the next place", (next = kinds[i].make()) == wanted + 1 && reads(name) == -1);
		PROMISE("a removed object leaves its ID free", kinds[i].drop(id) == 0 && kinds[i].drop(next) == 0 && (sets(name, wanted), kinds[i].make()) == wanted && kinds[i].drop(wanted) == 0);
		PROMISE("no ID is negative", writes(name, "-1") == EINVAL && writes(name, "2147483648") == EINVAL && reads(name) == -1);
		PROMISE("a user chooses none", AS_USER(_exit(writes(name, "5") == 0)) && reads(name) == -1);
	}
}

/* The settings of reboot(2) that end nothing. */
static void restarts(void)
{
	const char *name = "kernel/ctrl-alt-del";
	PROMISE("the key's setting can be changed", reboot(RB_DISABLE_CAD) == 0 && reads(name) == 0);
	PROMISE("and changed back", reboot(RB_ENABLE_CAD) == 0 && reads(name) == 1);
	FAILS_WITH("an unknown command", reboot(100), EINVAL);
	FAILS_WITH("a wrong number", syscall(SYS_reboot, 1, 672274793, RB_ENABLE_CAD, NULL), EINVAL);
	FAILS_WITH("another", syscall(SYS_reboot, 0xfee1dead, 1, RB_ENABLE_CAD, NULL), EINVAL);
	int status;
	IN_CHILD(status, NEED(setuid(1000) == 0); _exit(reboot(100) != -1 || errno != EPERM));
	PROMISE("a user may not", status == 0);
	IN_CHILD(status, NEED(unshare(CLONE_NEWPID) == 0); int inner;
		 IN_CHILD(inner, if (reboot(RB_ENABLE_CAD) != -1 || errno != EINVAL) _exit(1); reboot(RB_AUTOBOOT); pause());
		 if (!WIFSIGNALED(inner) || WTERMSIG(inner) != SIGHUP) _exit(2));
	PROMISE("a restart of a PID namespace ends its first process by SIGHUP", status == 0);
	IN_CHILD(status, NEED(unshare(CLONE_NEWPID) == 0); int inner;
		 IN_CHILD(inner, if (fork() == 0) { reboot(RB_POWER_OFF); pause(); } pause());
		 if (!WIFSIGNALED(inner) || WTERMSIG(inner) != SIGINT) _exit(2));
	PROMISE("power off ends it by SIGINT, also at another's request", status == 0);
}

/* A number that each network namespace has for each of its devices. */
static void tags(void)
{
	int status;
	PROMISE("a device's tag is 0", reads("net/ipv4/conf/lo/tag") == 0);
	NEED(writes("net/ipv4/conf/lo/tag", "-7") == 0);
	NEED(writes("net/ipv4/conf/default/tag", "5") == 0);
	PROMISE("it can be changed", reads("net/ipv4/conf/lo/tag") == -7);
	IN_CHILD(status, NEED(unshare(CLONE_NEWNET) == 0); _exit(reads("net/ipv4/conf/lo/tag") != 5));
	PROMISE("another namespace has that of new devices", status == 0);
	NEED(writes("net/ipv4/conf/lo/tag", "0") == 0);
	NEED(writes("net/ipv4/conf/default/tag", "0") == 0);
}

static int mtu_of_lo(void)
{
	struct ifreq asked = { .ifr_name = "lo" };
	int file = socket(AF_INET, SOCK_DGRAM, 0);
	NEED(file >= 0 && ioctl(file, SIOCGIFMTU, &asked) == 0);
	close(file);
	return asked.ifr_mtu;
}

/* The longest packet of the loopback device. */
static void packets(void)
{
	struct ifreq asked = { .ifr_name = "lo", .ifr_mtu = 1500 };
	int file = socket(AF_INET, SOCK_DGRAM, 0), status;
	set_loopback_up();
	NEED(file >= 0 && ioctl(file, SIOCSIFMTU, &asked) == 0);
	PROMISE("the loopback device's longest packet can be changed", mtu_of_lo() == 1500);
	struct sockaddr_in there = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(9) };
	int told = 0;
	socklen_t length = sizeof told;
	NEED(connect(file, (struct sockaddr *)&there, sizeof there) == 0);
	PROMISE("sockets are told", getsockopt(file, IPPROTO_IP, IP_MTU, &told, &length) == 0 && told == 1500);
	IN_CHILD(status, NEED(unshare(CLONE_NEWNET) == 0); _exit(mtu_of_lo() != 65536));
	PROMISE("another namespace has its own", status == 0);
	IN_CHILD(status, NEED(setuid(1000) == 0); _exit(ioctl(file, SIOCSIFMTU, &asked) != -1 || errno != EPERM));
	PROMISE("a user may not change it", status == 0);
	asked.ifr_mtu = 65536;
	NEED(ioctl(file, SIOCSIFMTU, &asked) == 0 && close(file) == 0);
}

int main(int count, char **words)
{
	if (count == 2 && strcmp(words[1], "places") == 0)
		return tells_places();
	NEED(geteuid() == 0);
	addresses_of_programs();
	numbers_of_mounts();
	namespaces();
	ports();
	watches();
	least_free();
	pipes();
	numbers();
	areas_of_memory();
	promised();
	descriptors();
	next_ids();
	restarts();
	tags();
	packets();
	return conclude();
}
