/* Information about the kernel and its processes: /proc, /sys, uname, sysinfo, identities, limits.
 */
#include "promise.h"
#include <linux/random.h>
#include <dirent.h>
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/sysinfo.h>
#include <sys/timerfd.h>
#include <sys/vfs.h>
#include <sys/utsname.h>

static char text[1 << 17];

static const char *contents(const char *path)
{
	text[0] = 0;
	int file = open(path, O_RDONLY);
	if (file < 0)
		return text;
	size_t size = 0;
	ssize_t got;
	while (size < sizeof text - 1 && (got = read(file, text + size, sizeof text - 1 - size)) > 0)
		size += got;
	text[size] = 0;
	close(file);
	return text;
}

static long field(const char *path, const char *name)
{
	const char *at = strstr(contents(path), name);
	return at ? atol(at + strlen(name)) : -1;
}

static void self(void)
{
	char path[4096] = { 0 }, again[4096] = { 0 };
	PROMISE("/proc/self names us", readlink("/proc/self", path, 100) > 0 && atoi(path) == getpid());
	memset(path, 0, sizeof path);
	PROMISE("exe is this program", readlink("/proc/self/exe", path, 4095) > 0 && strstr(path, "/proc") && path[0] == '/');
	snprintf(again, sizeof again, "/proc/%d/exe", getpid());
	PROMISE("and can be opened", open(again, O_RDONLY) >= 0);
	PROMISE("cmdline holds the arguments", strstr(contents("/proc/self/cmdline"), "proc"));
	PROMISE("comm is the name", !strcmp(contents("/proc/self/comm"), "proc\n"));
	PROMISE("prctl changes it", prctl(PR_SET_NAME, "renamed") == 0 && !strcmp(contents("/proc/self/comm"), "renamed\n"));
	PROMISE("cwd follows", chdir("/tmp") == 0 && memset(path, 0, 100) && readlink("/proc/self/cwd", path, 100) > 0 && !strcmp(path, "/tmp"));
	PROMISE("fd lists descriptors", readlink("/proc/self/fd/1", path, 100) > 0);
	int file = open("/dev/null", O_RDONLY);
	snprintf(again, sizeof again, "/proc/self/fd/%d", file);
	memset(path, 0, 100);
	PROMISE("with where they lead", readlink(again, path, 100) > 0 && !strcmp(path, "/dev/null"));
	int pid, parent, group, session;
	char state, name[64];
	PROMISE("stat in its 52 fields", sscanf(contents("/proc/self/stat"), "%d (%63[^)]) %c %d %d %d", &pid, name, &state, &parent, &group, &session) == 6 &&
		pid == getpid() && parent == getppid() && group == getpgrp() && session == getsid(0) && state == 'R' && ({
			int spaces = 0;
			for (char *c = strrchr(text, ')'); c && *c; c++)
				spaces += *c == ' ';
			spaces == 50;
		}));
	PROMISE("status", field("/proc/self/status", "\nPid:") == getpid() && field("/proc/self/status", "\nPPid:") == getppid() &&
		field("/proc/self/status", "\nVmRSS:") >= 0 && field("/proc/self/status", "\nThreads:") == 1 && field("/proc/self/status", "\nUid:") == (long)getuid());
	PROMISE("statm", ({ long size = 0, resident = 0; sscanf(contents("/proc/self/statm"), "%ld %ld", &size, &resident); size > resident && resident >= 0; }));
	PROMISE("environ", strstr(contents("/proc/self/environ"), "=") != NULL);
	PROMISE("limits", strstr(contents("/proc/self/limits"), "Max open files") != NULL);
}

static int maps_line(void *address, const char *mode)
{
	contents("/proc/self/maps");
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		unsigned long start, end;
		char flags[8];
		if (sscanf(line, "%lx-%lx %4s", &start, &end, flags) == 3 && (unsigned long)address >= start && (unsigned long)address < end)
			return !strcmp(flags, mode);
	}
	return 0;
}

static void memory(void)
{
	static int data = 1;
	char *map = mmap(NULL, 3 * 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	PROMISE("maps has the code", maps_line((void *)memory, "r-xp"));
	PROMISE("the data", maps_line(&data, "rw-p"));
	PROMISE("the stack", maps_line(&map, "rw-p") && strstr(contents("/proc/self/maps"), "[stack]"));
	PROMISE("a mapping", maps_line(map, "r--p"));
	PROMISE("after mprotect", mprotect(map, 4096, PROT_NONE) == 0 && maps_line(map, "---p") && maps_line(map + 4096, "r--p"));
	PROMISE("and not after munmap", munmap(map, 3 * 4096) == 0 && !maps_line(map, "r--p"));
	PROMISE("smaps sums up", strstr(contents("/proc/self/smaps"), "Rss:") != NULL);
	long total = field("/proc/meminfo", "MemTotal:"), available = field("/proc/meminfo", "MemFree:");
	PROMISE("meminfo", total > 8192 && available > 0 && available < total && field("/proc/meminfo", "MemAvailable:") >= 0);
	struct sysinfo about;
	PROMISE("sysinfo says the same", sysinfo(&about) == 0 && llabs((long long)(about.totalram * about.mem_unit / 1024) - total) < 1024 && about.procs > 0);
	/* Linux counts the last few dozen pages late: hence the slack. */
	long before = field("/proc/self/status", "\nVmRSS:");
	char *big = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(big, 1, 8 << 20);
	long after = field("/proc/self/status", "\nVmRSS:");
	PROMISE("what is touched is counted", after - before > 7900 && after - before < 9000);
	munmap(big, 8 << 20);
	PROMISE("and what is given back is not", after - field("/proc/self/status", "\nVmRSS:") > 7500);
	PROMISE("the peak stays", field("/proc/self/status", "\nVmHWM:") >= after - 500);
}

static void others(void)
{
	int status;
	char path[64];
	fflush(stdout);
	pid_t child = fork();
	if (child == 0)
		for (;;)
			pause();
	snprintf(path, sizeof path, "/proc/%d/stat", child);
	PROMISE("a child has its place in /proc", COMES_TRUE(strstr(contents(path), ") S ") != NULL));
	DIR *list = opendir("/proc");
	int seen = 0;
	for (struct dirent *entry; (entry = readdir(list));)
		seen += atoi(entry->d_name) == child;
	closedir(list);
	PROMISE("and is listed", seen == 1);
	kill(child, SIGKILL);
	NEED(waitid(P_PID, child, &(siginfo_t){ 0 }, WEXITED | WNOWAIT) == 0);
	PROMISE("a dead one is a zombie", strstr(contents(path), ") Z ") != NULL);
	waitpid(child, &status, 0);
	PROMISE("then nothing", access(path, F_OK) == -1 && errno == ENOENT);
}

static void system_wide(void)
{
	struct utsname name;
	PROMISE("uname", uname(&name) == 0 && name.sysname[0] && name.release[0] && !strcmp(name.machine, "x86_64"));
	PROMISE("/proc/version", contents("/proc/version")[0] != 0);
	double up, idle;
	PROMISE("/proc/uptime", sscanf(contents("/proc/uptime"), "%lf %lf", &up, &idle) == 2 && up > 0);
	double load;
	PROMISE("/proc/loadavg", sscanf(contents("/proc/loadavg"), "%lf", &load) == 1);
	PROMISE("/proc/stat", !strncmp(contents("/proc/stat"), "cpu ", 4) && strstr(text, "\ncpu0 ") && strstr(text, "\nctxt ") && strstr(text, "\nbtime "));
	PROMISE("/proc/cpuinfo", strstr(contents("/proc/cpuinfo"), "processor") && strstr(text, "flags"));
	PROMISE("/proc/mounts", strstr(contents("/proc/mounts"), " /proc ") != NULL);
	PROMISE("/proc/filesystems", strstr(contents("/proc/filesystems"), "tmpfs") != NULL);
	PROMISE("/proc/sys/kernel", contents("/proc/sys/kernel/pid_max")[0] && contents("/proc/sys/kernel/osrelease")[0] && contents("/proc/sys/kernel/hostname")[0]);
	struct utsname names;
	char before[128];
	snprintf(before, sizeof before, "%s", contents("/proc/sys/kernel/hostname"));
	PROMISE("the host's name is one in uname and in /proc", uname(&names) == 0 && strcspn(before, "\n") == strlen(names.nodename) &&
		strncmp(before, names.nodename, strlen(names.nodename)) == 0);
	/* The host's name must not change. A kernel without UTS namespaces is a guest, so its
	 * name may change. */
	if (geteuid() == 0 && (unshare(CLONE_NEWUTS) == 0 || errno == EINVAL)) {
		PROMISE("sethostname changes both", sethostname("another", 7) == 0 && uname(&names) == 0 && strcmp(names.nodename, "another") == 0 &&
			strcmp(contents("/proc/sys/kernel/hostname"), "another\n") == 0);
		FAILS_WITH("a name of 65 bytes is refused", sethostname("0123456789012345678901234567890123456789012345678901234567890123456789", 65), EINVAL);
		FAILS_WITH("a negative length is refused", syscall(SYS_sethostname, "another", -1), EINVAL);
		NEED(sethostname(before, strcspn(before, "\n")) == 0);
	}
	PROMISE("/sys: CPUs", contents("/sys/devices/system/cpu/online")[0] == '0' && contents("/sys/devices/system/cpu/possible")[0] == '0');
	FAILS_WITH("/proc cannot be written into", mkdir("/proc/folder", 0755), ENOENT);
}

/* random(4): control of /dev/urandom. Root may credit bits; any process may count them. */
static void entropy(void)
{
	struct {
		int bits, bytes;
		char seed[100];
	} added = { 8, 100, { 0 } };
	int device = open("/dev/urandom", O_RDWR), bits = 0, negative = -1, status;
	NEED(device >= 0);
	PROMISE("a generator that was seeded has 256 bits", ioctl(device, RNDGETENTCNT, &bits) == 0 && bits == 256);
	PROMISE("root adds bytes to it", ioctl(device, RNDADDENTROPY, &added) == 0 && ioctl(device, RNDADDTOENTCNT, &added.bits) == 0);
	added.bytes = -1;
	FAILS_WITH("of a valid number", ioctl(device, RNDADDENTROPY, &added), EFAULT);
	FAILS_WITH("that can be read", ioctl(device, RNDADDENTROPY, 8), EFAULT);
	added.bits = -1;
	FAILS_WITH("and takes none away", ioctl(device, RNDADDENTROPY, &added), EINVAL);
	FAILS_WITH("nor bits", ioctl(device, RNDADDTOENTCNT, &negative), EINVAL);
	PROMISE("it is emptied, and stays full", ioctl(device, RNDZAPENTCNT, 0) == 0 && ioctl(device, RNDCLEARPOOL, 0) == 0 &&
		ioctl(device, RNDRESEEDCRNG, 0) == 0 && ioctl(device, RNDGETENTCNT, &bits) == 0 && bits == 256);
	FAILS_WITH("a terminal it is not", ioctl(device, TIOCGWINSZ, &bits), EINVAL);
	IN_CHILD(status, {
		added.bits = 8;
		added.bytes = 100;
		if (setuid(20) != 0 || ioctl(device, RNDADDENTROPY, &added) != -1 || errno != EPERM)
			_exit(1);
		if (ioctl(device, RNDRESEEDCRNG, 0) != -1 || errno != EPERM || ioctl(device, RNDADDTOENTCNT, &negative) != -1 || errno != EPERM)
			_exit(2);
		_exit(ioctl(device, RNDGETENTCNT, &bits) != 0);
	});
	PROMISE("others only ask", status == 0);
	close(device);
}

static void identities(void)
{
	PROMISE("we are root", getuid() == 0 && geteuid() == 0 && getgid() == 0);
	int status;
	IN_CHILD(status, setgid(10); setuid(20); _exit(getuid() == 20 && getgid() == 10 && setuid(0) == -1 && errno == EPERM ? 1 : 0));
	PROMISE("and can become another, for good", WEXITSTATUS(status) == 1);
	IN_CHILD(status, setuid(20); _exit(open("/proc/1/environ", O_RDONLY) == -1 || kill(getppid(), 0) == -1 ? 1 : 0));
	PROMISE("who may not touch us", WEXITSTATUS(status) == 1);
	unsigned char random[32] = { 0 }, more[32] = { 0 };
	PROMISE("getrandom", getrandom(random, 32, 0) == 32 && getrandom(more, 32, GRND_NONBLOCK) == 32 && memcmp(random, more, 32));
	PROMISE("the auxiliary vector", getauxval(AT_PAGESZ) == 4096 && getauxval(AT_RANDOM) && getauxval(AT_PHDR) && getauxval(AT_ENTRY) && getauxval(AT_CLKTCK) == 100);
	struct rlimit limit;
	PROMISE("limits can be asked and lowered", getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur >= 1 << 20 &&
		setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 }) == 0 && getrlimit(RLIMIT_CORE, &limit) == 0 && limit.rlim_max == 0);
	FAILS_WITH("an unknown system call", syscall(1000), ENOSYS);
	FAILS_WITH("a negative one", syscall(-5), ENOSYS);
	PROMISE("addresses are random", ({
		int ends[2];
		char *first = 0, *second = 0;
		pipe(ends);
		for (int i = 0; i < 2; i++) {
			IN_CHILD(status, dup2(ends[1], 1); execl("/proc/self/exe", "proc", "address", NULL));
			read(ends[0], i ? &second : &first, sizeof first);
		}
		first && second && first != second;
	}));
}

/* As user 0, /proc can be mounted in other places too. */
static void mounting(void)
{
	if (geteuid() != 0)
		return;
	NEED(mkdir("/tmp/second", 0755) == 0);
	PROMISE("/proc is mounted a second time", mount("none", "/tmp/second", "proc", 0, NULL) == 0);
	PROMISE("and shows the same", contents("/tmp/second/self/comm")[0] && strstr(contents("/tmp/second/sys/kernel/ostype"), "Linux"));
	PROMISE("until it is taken away", umount("/tmp/second") == 0 && rmdir("/tmp/second") == 0);
}

/* For user 0: debugfs can be mounted where programs look for it, and is one. */
/* A process' login user ID, which login programs set. */
static void logins(void)
{
	int status;
	if (access("/proc/self/loginuid", F_OK) != 0 || geteuid() != 0)
		return;
	IN_CHILD(status, {
		int file = open("/proc/self/loginuid", O_RDWR);
		NEED(file >= 0 && write(file, "1000", 4) == 4);
		NEED(!strcmp(contents("/proc/self/loginuid"), "1000"));
		NEED(atol(contents("/proc/self/sessionid")) < 1000000);
		pid_t child = fork();
		if (!child)
			_exit(strcmp(contents("/proc/self/loginuid"), "1000") != 0);
		int ended;
		NEED(waitpid(child, &ended, 0) == child && ended == 0);
		NEED(setuid(1000) == 0 && pwrite(file, "1001", 4, 0) == -1 && errno == EPERM);
	});
	PROMISE("a process is logged in once, with its children, and again by those who may", status == 0);
}

/* Kinds of files that have additional lines in fdinfo. */
static void descriptors(void)
{
	char path[64];
	int counter = eventfd(0x2a, EFD_CLOEXEC), timer = timerfd_create(CLOCK_MONOTONIC, 0), poller = epoll_create1(0);
	struct itimerspec when = { .it_value = { 100, 0 }, .it_interval = { 3, 0 } };
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 0x77 };
	NEED(counter >= 0 && timer >= 0 && poller >= 0 && timerfd_settime(timer, 0, &when, NULL) == 0);
	NEED(epoll_ctl(poller, EPOLL_CTL_ADD, counter, &event) == 0);
	snprintf(path, sizeof path, "/proc/self/fdinfo/%d", counter);
	PROMISE("fdinfo says what an event counter holds", strstr(contents(path), "eventfd-count:               2a\n") != NULL);
	snprintf(path, sizeof path, "/proc/self/fdinfo/%d", timer);
	PROMISE("and when a timer expires", strstr(contents(path), "clockid: 1\n") && strstr(text, "it_value: (99, ") && strstr(text, "it_interval: (3, 0)\n"));
	snprintf(path, sizeof path, "/proc/self/fdinfo/%d", poller);
	long watched = -1;
	const char *row = strstr(contents(path), "tfd:");
	PROMISE("and what an epoll instance watches", row && sscanf(row, "tfd: %ld", &watched) == 1 && watched == counter && strstr(row, "data:               77"));
	close(counter);
	close(timer);
	close(poller);
}

static void children(void)
{
	char path[64], expected[32];
	int ends[2];
	NEED(pipe(ends) == 0);
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (!child) {
		char byte;
		close(ends[1]);
		_exit(read(ends[0], &byte, 1) != 0);
	}
	snprintf(path, sizeof path, "/proc/self/task/%d/children", getpid());
	snprintf(expected, sizeof expected, "%d ", child);
	if (access(path, F_OK) == 0)
		PROMISE("a thread's children are listed", !strcmp(contents(path), expected));
	close(ends[1]);
	close(ends[0]);
	NEED(waitpid(child, NULL, 0) == child);
}

static void debugging(void)
{
	struct statfs told;
	if (geteuid() != 0)
		return;
	PROMISE("debugfs is mounted by its name", mount("none", "/sys/kernel/debug", "debugfs", 0, NULL) == 0 || errno == EBUSY);
	PROMISE("and says what it is", statfs("/sys/kernel/debug", &told) == 0 && told.f_type == 0x64626720);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "address")) {
		char *map = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		return write(1, &map, sizeof map) != sizeof map;
	}
	self();
	memory();
	others();
	system_wide();
	identities();
	entropy();
	logins();
	descriptors();
	children();
	mounting();
	debugging();
	return conclude();
}
