/*
 * Namespaces: the view of a process inside, and the objects that it cannot reach from there. Runs
 * as user 0. Each promise is about a child, which enters or makes namespaces. It prints a broken
 * line and exits with 1. So no promise leaves anything for the next one.
 */
#include "promise.h"
#include "inside.h"
#include <grp.h>
#include <mqueue.h>
#include <arpa/inet.h>
#include <linux/capability.h>
#include <linux/netlink.h>
#include <linux/openat2.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/un.h>
#include <sys/ipc.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>

#define NS_GET_USERNS 0xb701
#define NS_GET_OWNER_UID 0xb704
#define FOLDER "/tmp/namespaces"

static int hostname_is(const char *name)
{
	struct utsname names;
	return uname(&names) == 0 && strcmp(names.nodename, name) == 0;
}

static int names_are_ones_own(void)
{
	struct utsname before;
	HOLDS(uname(&before) == 0);
	unsigned long number = number_of("/proc/self/ns/uts");
	int old = open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC);
	HOLDS(number && old >= 0);
	HOLDS(unshare(CLONE_NEWUTS) == 0);
	HOLDS(hostname_is(before.nodename));
	HOLDS(number_of("/proc/self/ns/uts") != number);
	HOLDS(sethostname("inside", 6) == 0 && setdomainname("there", 5) == 0 && hostname_is("inside"));
	HOLDS(strcmp(reads("/proc/sys/kernel/hostname"), "inside\n") == 0);
	HOLDS(setns(old, CLONE_NEWUTS) == 0 && hostname_is(before.nodename));
	HOLDS(number_of("/proc/self/ns/uts") == number);
	return 0;
}

static int clone_makes_one(void)
{
	struct utsname before;
	int status;
	HOLDS(uname(&before) == 0);
	pid_t child = syscall(SYS_clone, CLONE_NEWUTS | CLONE_NEWIPC | SIGCHLD, 0, 0, 0, 0);
	HOLDS(child >= 0);
	if (child == 0)
		_exit(sethostname("cloned", 6) != 0 || !hostname_is("cloned"));
	HOLDS(waitpid(child, &status, 0) == child && status == 0);
	HOLDS(hostname_is(before.nodename));
	return 0;
}

static int files_name_namespaces(void)
{
	static const struct { const char *name; int kind; } all[] = {
		{ "uts", CLONE_NEWUTS }, { "ipc", CLONE_NEWIPC }, { "user", CLONE_NEWUSER }, { "mnt", CLONE_NEWNS },
		{ "pid", CLONE_NEWPID }, { "net", CLONE_NEWNET }, { "cgroup", CLONE_NEWCGROUP },
	};
	for (size_t at = 0; at < sizeof all / sizeof *all; at++) {
		char path[64], text[64] = { 0 }, wanted[64];
		struct stat about, open_about;
		snprintf(path, sizeof path, "/proc/self/ns/%s", all[at].name);
		HOLDS(stat(path, &about) == 0 && readlink(path, text, sizeof text - 1) > 0);
		snprintf(wanted, sizeof wanted, "%s:[%lu]", all[at].name, (unsigned long)about.st_ino);
		HOLDS(strcmp(text, wanted) == 0);
		int file = open(path, O_RDONLY | O_CLOEXEC);
		HOLDS(file >= 0 && fstat(file, &open_about) == 0);
		HOLDS(open_about.st_ino == about.st_ino && open_about.st_dev == about.st_dev);
		HOLDS(ioctl(file, NS_GET_NSTYPE) == all[at].kind);
		snprintf(path, sizeof path, "/proc/self/fd/%d", file);
		HOLDS(readlink(path, text, sizeof text - 1) > 0 && strcmp(text, wanted) == 0);
		close(file);
	}
	int uts = open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC), user;
	struct stat about;
	HOLDS(uts >= 0 && (user = ioctl(uts, NS_GET_USERNS)) >= 0);
	HOLDS(fstat(user, &about) == 0 && about.st_ino == number_of("/proc/self/ns/user"));
	REFUSED(ioctl(uts, NS_GET_PARENT), EINVAL);
	unsigned owner;
	REFUSED(ioctl(uts, NS_GET_OWNER_UID, &owner), EINVAL);
	REFUSED(ioctl(user, NS_GET_PARENT), EPERM);
	REFUSED(ioctl(user, NS_GET_USERNS), EPERM);
	HOLDS(ioctl(user, NS_GET_OWNER_UID, &owner) == 0 && owner == 0);
	REFUSED(ioctl(uts, 0xb77f), ENOTTY);
	return 0;
}

static int setns_checks(void)
{
	int uts = open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC), other = open("/", O_RDONLY | O_CLOEXEC);
	int user = open("/proc/self/ns/user", O_RDONLY | O_CLOEXEC);
	HOLDS(uts >= 0 && other >= 0 && user >= 0);
	REFUSED(setns(uts, CLONE_NEWIPC), EINVAL);
	REFUSED(setns(other, 0), EINVAL);
	REFUSED(setns(-1, 0), EBADF);
	REFUSED(setns(user, 0), EINVAL);
	REFUSED(syscall(SYS_clone, CLONE_NEWIPC | CLONE_SYSVSEM | SIGCHLD, 0, 0, 0, 0), EINVAL);
	HOLDS(setns(uts, 0) == 0);
	int own = syscall(SYS_pidfd_open, getpid(), 0);
	HOLDS(own >= 0);
	REFUSED(setns(own, 0), EINVAL);
	REFUSED(setns(own, 1), EINVAL);
	HOLDS(setns(own, CLONE_NEWUTS | CLONE_NEWIPC) == 0);
	return 0;
}

static int pidfd_leads_in(void)
{
	int ready[2], done[2], status;
	char byte;
	HOLDS(pipe(ready) == 0 && pipe(done) == 0);
	pid_t child = fork();
	HOLDS(child >= 0);
	if (child == 0) {
		if (unshare(CLONE_NEWUTS | CLONE_NEWIPC) || sethostname("of-child", 8))
			_exit(1);
		_exit(write(ready[1], "x", 1) != 1 || read(done[0], &byte, 1) != 1);
	}
	HOLDS(read(ready[0], &byte, 1) == 1);
	int file = syscall(SYS_pidfd_open, child, 0);
	HOLDS(file >= 0 && setns(file, CLONE_NEWUTS | CLONE_NEWIPC) == 0);
	HOLDS(hostname_is("of-child"));
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/ns/ipc", child);
	HOLDS(number_of(path) == number_of("/proc/self/ns/ipc"));
	HOLDS(write(done[1], "x", 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
	REFUSED(setns(file, CLONE_NEWUTS), ESRCH);
	return 0;
}

static int an_ended_namespace_lives_in_its_file(void)
{
	int ready[2], done[2], status;
	char byte, path[64];
	HOLDS(pipe(ready) == 0 && pipe(done) == 0);
	pid_t child = fork();
	HOLDS(child >= 0);
	if (child == 0) {
		if (unshare(CLONE_NEWUTS) || sethostname("ended", 5))
			_exit(1);
		_exit(write(ready[1], "x", 1) != 1 || read(done[0], &byte, 1) != 1);
	}
	HOLDS(read(ready[0], &byte, 1) == 1);
	snprintf(path, sizeof path, "/proc/%d/ns/uts", child);
	int file = open(path, O_RDONLY | O_CLOEXEC);
	HOLDS(file >= 0 && write(done[1], "x", 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
	HOLDS(setns(file, 0) == 0 && hostname_is("ended"));
	return 0;
}

static int objects_are_ones_own(void)
{
	int outside = shmget(0x4e53, 4096, IPC_CREAT | IPC_EXCL | 0600);
	HOLDS(outside >= 0);
	mqd_t queue = mq_open("/of-namespaces", O_RDWR | O_CREAT | O_EXCL, 0600, NULL);
	HOLDS(queue >= 0 && mq_send(queue, "out", 3, 1) == 0);
	int old = open("/proc/self/ns/ipc", O_RDONLY | O_CLOEXEC);
	HOLDS(unshare(CLONE_NEWIPC) == 0);
	REFUSED(mq_open("/of-namespaces", O_RDWR), ENOENT);
	mqd_t own = mq_open("/of-namespaces", O_RDWR | O_CREAT | O_EXCL, 0600, NULL);
	HOLDS(own >= 0 && mq_send(own, "in", 2, 1) == 0);
	REFUSED(shmget(0x4e53, 4096, 0), ENOENT);
	struct shmid_ds about;
	REFUSED(shmctl(outside, IPC_STAT, &about), EINVAL);
	HOLDS(strchr(reads("/proc/sysvipc/shm"), '\n')[1] == 0);
	int inside = shmget(0x4e53, 8192, IPC_CREAT | IPC_EXCL | 0600);
	char *bytes = shmat(inside, NULL, 0);
	HOLDS(inside >= 0 && bytes != (void *)-1);
	bytes[0] = 7;
	HOLDS(strchr(reads("/proc/sysvipc/shm"), '\n')[1] != 0);
	HOLDS(setns(old, CLONE_NEWIPC) == 0);
	char message[8192];
	HOLDS(mq_receive(own, message, sizeof message, NULL) == 2 && mq_close(own) == 0);
	HOLDS(mq_unlink("/of-namespaces") == 0);
	HOLDS(mq_receive(queue, message, sizeof message, NULL) == 3 && mq_close(queue) == 0);
	REFUSED(mq_open("/of-namespaces", O_RDWR), ENOENT);
	HOLDS(shmget(0x4e53, 0, 0) == outside);
	HOLDS(bytes[0] == 7 && shmdt(bytes) == 0);
	HOLDS(shmctl(outside, IPC_RMID, NULL) == 0);
	return 0;
}

static int rights_are_asked(void)
{
	REFUSED(unshare(CLONE_NEWUTS), EPERM);
	REFUSED(unshare(CLONE_NEWIPC), EPERM);
	REFUSED(unshare(CLONE_NEWCGROUP), EPERM);
	REFUSED(syscall(SYS_clone, CLONE_NEWUTS | SIGCHLD, 0, 0, 0, 0), EPERM);
	int uts = open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC);
	HOLDS(uts >= 0);
	REFUSED(setns(uts, 0), EPERM);
	REFUSED(open("/proc/1/ns/uts", O_RDONLY), EACCES);
	REFUSED(syscall(SYS_clone, CLONE_NEWUSER | CLONE_FS | SIGCHLD, 0, 0, 0, 0), EINVAL);
	REFUSED(syscall(SYS_clone, CLONE_NEWUSER | CLONE_THREAD | CLONE_SIGHAND | CLONE_VM, 0, 0, 0, 0), EINVAL);
	return 0;
}

static int maps_are_written_once(void)
{
	HOLDS(unshare(CLONE_NEWUSER) == 0);
	HOLDS(getuid() == 65534 && geteuid() == 65534 && getgid() == 65534);
	HOLDS(reads("/proc/self/uid_map")[0] == 0 && strcmp(reads("/proc/self/setgroups"), "allow\n") == 0);
	REFUSED(unshare(CLONE_NEWUSER), EPERM);
	REFUSED(writes("/proc/self/uid_map", "0 1000"), EINVAL);
	REFUSED(writes("/proc/self/uid_map", "0 1000 0"), EINVAL);
	REFUSED(writes("/proc/self/uid_map", "0 1000 1\n0 1001 1"), EINVAL);
	REFUSED(writes("/proc/self/uid_map", "0 0 1"), EPERM);
	REFUSED(writes("/proc/self/uid_map", "0 1000 2"), EPERM);
	REFUSED(writes("/proc/self/uid_map", "0 1000 1\n1 1001 1"), EPERM);
	REFUSED(writes("/proc/1/uid_map", "0 1000 1"), EACCES);
	HOLDS(writes("/proc/self/uid_map", "0 1000 1\n") == 0);
	REFUSED(writes("/proc/self/uid_map", "0 1000 1"), EPERM);
	HOLDS(strcmp(reads("/proc/self/uid_map"), "         0       1000          1\n") == 0);
	HOLDS(getuid() == 0 && geteuid() == 0 && getgid() == 65534);
	REFUSED(writes("/proc/self/gid_map", "0 1000 1"), EPERM);
	REFUSED(setgroups(0, NULL), EPERM);
	REFUSED(writes("/proc/self/setgroups", "maybe"), EINVAL);
	HOLDS(writes("/proc/self/setgroups", "deny") == 0);
	REFUSED(writes("/proc/self/setgroups", "allow"), EPERM);
	HOLDS(writes("/proc/self/gid_map", "7 1000 1") == 0 && getgid() == 7 && getegid() == 7);
	REFUSED(setgroups(0, NULL), EPERM);
	return 0;
}

static int ids_are_seen_from_inside(void)
{
	struct stat about;
	HOLDS(become_root_inside() == 0);
	HOLDS(stat("/", &about) == 0 && about.st_uid == 65534 && about.st_gid == 65534);
	int file = open(FOLDER "/own", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	HOLDS(file >= 0 && fstat(file, &about) == 0 && about.st_uid == 0 && about.st_gid == 0);
	HOLDS(fchown(file, 0, 0) == 0 && fchown(file, -1, -1) == 0);
	REFUSED(fchown(file, 5, -1), EINVAL);
	REFUSED(fchown(file, -1, 1000), EINVAL);
	REFUSED(setuid(1000), EINVAL);
	REFUSED(setresgid(-1, 5, -1), EINVAL);
	uid_t ids[3];
	HOLDS(getresuid(&ids[0], &ids[1], &ids[2]) == 0 && !ids[0] && !ids[1] && !ids[2]);
	HOLDS(strstr(reads("/proc/self/status"), "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n") != NULL);
	HOLDS(setuid(0) == 0 && setgid(0) == 0);
	HOLDS(unlink(FOLDER "/own") == 0);
	pid_t child = fork();
	HOLDS(child >= 0);
	if (child == 0)
		_exit(0);
	siginfo_t info;
	HOLDS(waitid(P_PID, child, &info, WEXITED) == 0 && info.si_uid == 0);
	return 0;
}

static int privileges_end_at_the_border(void)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2];
	HOLDS(become_root_inside() == 0);
	HOLDS(syscall(SYS_capget, &header, data) == 0 && (data[0].effective & 1u << CAP_SYS_ADMIN) && (data[0].permitted & 1u << CAP_KILL));
	REFUSED(sethostname("outside", 7), EPERM);
	REFUSED(writes("/proc/sys/kernel/hostname", "outside"), EACCES);
	REFUSED((kill)(1, SIGKILL), EPERM);
	REFUSED((kill)(getppid(), 0), EPERM);
	REFUSED(ptrace(PTRACE_ATTACH, getppid(), 0, 0), EPERM);
	char path[64], bytes[8];
	for (const char **name = (const char *[]){ "root", "cwd", "exe", "ns/uts", "ns/user", NULL }; *name; name++) {
		snprintf(path, sizeof path, "/proc/%d/%s", getppid(), *name);
		REFUSED(readlink(path, bytes, sizeof bytes), EACCES);
	}
	snprintf(path, sizeof path, "/proc/%d/root/", getppid());
	REFUSED(open(path, O_RDONLY), EACCES);
	REFUSED(open(FOLDER "/secret", O_RDONLY), EACCES);
	REFUSED(chown(FOLDER "/secret", 0, 0), EPERM);
	REFUSED(chmod(FOLDER "/secret", 0666), EPERM);
	REFUSED(unlink(FOLDER "/closed/file"), EACCES);
	REFUSED(mknod(FOLDER "/device", S_IFCHR | 0666, makedev(1, 3)), EPERM);
	struct timespec now = { 0, 0 };
	REFUSED(clock_settime(CLOCK_REALTIME, &now), EPERM);
	REFUSED(mount("none", FOLDER, "tmpfs", 0, NULL), EPERM);
	REFUSED(syscall(SYS_pivot_root, FOLDER, FOLDER), EPERM);
	REFUSED(umount("/proc"), EPERM);
	REFUSED(setpriority(PRIO_PROCESS, 0, -5), EACCES);
	struct rlimit limit;
	HOLDS(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_max++;
	REFUSED(setrlimit(RLIMIT_NOFILE, &limit), EPERM);
	int uts = open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC);
	HOLDS(uts >= 0);
	REFUSED(setns(uts, 0), EPERM);
	REFUSED(ioctl(uts, NS_GET_USERNS), EPERM);
	int user = open("/proc/self/ns/user", O_RDONLY | O_CLOEXEC);
	REFUSED(ioctl(user, NS_GET_PARENT), EPERM);
	HOLDS(unshare(CLONE_NEWUTS) == 0 && sethostname("inside", 6) == 0 && hostname_is("inside"));
	HOLDS(unshare(CLONE_NEWIPC) == 0 && unshare(CLONE_NEWCGROUP) == 0);
	uts = open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC);
	int owner = ioctl(uts, NS_GET_USERNS);
	struct stat about;
	HOLDS(owner >= 0 && fstat(owner, &about) == 0 && about.st_ino == number_of("/proc/self/ns/user"));
	HOLDS(strcmp(reads("/proc/self/cgroup") + strlen(reads("/proc/self/cgroup")) - 2, "/\n") == 0);
	return 0;
}

/* Runs the set-user-ID program; returns the effective user that it sees, or -1. */
static int set_id_program_says(void)
{
	int status;
	pid_t child = fork();
	if (child == 0) {
		execl(FOLDER "/set-id", "set-id", "--effective", NULL);
		_exit(99);
	}
	return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int set_id_programs_do_not_lead_out(void)
{
	HOLDS(set_id_program_says() == 10);
	HOLDS(become_root_inside() == 0);
	HOLDS(set_id_program_says() == 11);
	return 0;
}

static int exec_keeps_roots_capabilities_only(void)
{
	int status;
	HOLDS(unshare(CLONE_NEWUSER) == 0);
	HOLDS(writes("/proc/self/uid_map", "5 1000 1") == 0 && getuid() == 5);
	pid_t child = fork();
	if (child == 0) {
		execl("/proc/self/exe", "namespaces", "--capable", NULL);
		_exit(99);
	}
	HOLDS(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 20);
	return 0;
}

static int root_inside_keeps_them(void)
{
	int status;
	HOLDS(become_root_inside() == 0);
	pid_t child = fork();
	if (child == 0) {
		execl("/proc/self/exe", "namespaces", "--capable", NULL);
		_exit(99);
	}
	HOLDS(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 21);
	return 0;
}

/* root gives a process a range of ids. */
static int a_range_of_ids(void)
{
	int ready[2], mapped[2], status;
	char byte, path[64];
	HOLDS(pipe(ready) == 0 && pipe(mapped) == 0);
	pid_t child = fork();
	HOLDS(child >= 0);
	if (child == 0) {
		if (unshare(CLONE_NEWUSER) || write(ready[1], "x", 1) != 1 || read(mapped[0], &byte, 1) != 1)
			_exit(1);
		gid_t groups[2] = { 3, 4 };
		if (setgroups(2, groups) || setresgid(7, 7, 7) || getgroups(2, groups) != 2 || groups[0] != 3)
			_exit(2);
		/* User 0 of the outer namespace has no number here. Changing to a user that has
		 * one keeps the capabilities. */
		if (setresuid(9, 9, 9) || setresuid(0, 0, 0) || setresuid(5, 5, 5) || getuid() != 5 || setuid(6) != -1 || errno != EPERM)
			_exit(3);
		_exit(write(ready[1], "x", 1) != 1 || read(mapped[0], &byte, 1) != 1);
	}
	HOLDS(read(ready[0], &byte, 1) == 1);
	close(ready[1]);
	snprintf(path, sizeof path, "/proc/%d/uid_map", child);
	HOLDS(writes(path, "0 100000 1000\n5000 7 1") == 0);
	HOLDS(strcmp(reads(path), "         0     100000       1000\n      5000          7          1\n") == 0);
	snprintf(path, sizeof path, "/proc/%d/gid_map", child);
	HOLDS(writes(path, "0 200000 1000") == 0);
	HOLDS(write(mapped[1], "x", 1) == 1 && read(ready[0], &byte, 1) == 1);
	snprintf(path, sizeof path, "/proc/%d/status", child);
	HOLDS(strstr(reads(path), "Uid:\t100005\t100005\t100005\t100005\nGid:\t200007\t200007\t200007\t200007\n") != NULL);
	HOLDS(strstr(reads(path), "Groups:\t200003 200004 \n") != NULL);
	HOLDS(write(mapped[1], "x", 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
	return 0;
}

static volatile int sender = -1;
static void note(int number, siginfo_t *info, void *context)
{
	(void)number, (void)context;
	sender = info->si_uid;
}

static int credentials_are_translated(void)
{
	int ends[2], status, one = 1;
	struct ucred peer;
	socklen_t length = sizeof peer;
	char byte = 'x', room[128];
	struct iovec bytes = { &byte, 1 };
	struct msghdr message = { .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room };
	HOLDS(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
	HOLDS(setsockopt(ends[0], SOL_SOCKET, SO_PASSCRED, &one, sizeof one) == 0 && setsockopt(ends[1], SOL_SOCKET, SO_PASSCRED, &one, sizeof one) == 0);
	pid_t child = fork();
	HOLDS(child >= 0);
	if (child == 0) {
		if (setresgid(USER, USER, USER) || setresuid(USER, USER, USER) || prctl(PR_SET_DUMPABLE, 1) || become_root_inside())
			_exit(1);
		struct sigaction action = { .sa_sigaction = note, .sa_flags = SA_SIGINFO };
		if (sigaction(SIGUSR1, &action, NULL) || getsockopt(ends[1], SOL_SOCKET, SO_PEERCRED, &peer, &length) || peer.uid != 65534)
			_exit(2);
		if (send(ends[1], "x", 1, 0) != 1)
			_exit(3);
		if (recvmsg(ends[1], &message, 0) != 1)
			_exit(4);
		struct cmsghdr *control = CMSG_FIRSTHDR(&message);
		memcpy(&peer, CMSG_DATA(control), sizeof peer);
		if (peer.uid != 65534 || peer.gid != 65534)
			_exit(5);
		while (sender == -1)
			sleep_ms(1);
		_exit(sender == 65534 ? 0 : 6);
	}
	HOLDS(recvmsg(ends[0], &message, 0) == 1);
	struct cmsghdr *control = CMSG_FIRSTHDR(&message);
	memcpy(&peer, CMSG_DATA(control), sizeof peer);
	HOLDS(peer.uid == USER && peer.gid == USER && peer.pid == child);
	HOLDS(send(ends[0], "x", 1, 0) == 1 && kill(child, SIGUSR1) == 0);
	HOLDS(waitpid(child, &status, 0) == child && status == 0);
	return 0;
}

static int depth(void)
{
	int level = 0;
	for (; level < 40; level++) {
		if (unshare(CLONE_NEWUSER))
			break;
		if (writes("/proc/self/uid_map", level ? "0 0 1" : "0 1000 1") || writes("/proc/self/setgroups", "deny") ||
		    writes("/proc/self/gid_map", level ? "0 0 1" : "0 1000 1"))
			return __LINE__;
	}
	HOLDS(errno == ENOSPC || level < 40);
	HOLDS(level == 33);
	REFUSED(unshare(CLONE_NEWUSER), ENOSPC);
	REFUSED(syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0), ENOSPC);
	return 0;
}

static int number_is_limited(void)
{
	char before[32];
	snprintf(before, sizeof before, "%.31s", reads("/proc/sys/user/max_user_namespaces"));
	HOLDS(atoi(before) > 0);
	/* On Linux this needs CAP_SYS_RESOURCE. In a container root may lack it. */
	if (writes("/proc/sys/user/max_user_namespaces", "0") && errno == EACCES)
		return 0;
	int refused = unshare(CLONE_NEWUSER) == -1 && errno == ENOSPC;
	HOLDS(writes("/proc/sys/user/max_user_namespaces", before) == 0);
	HOLDS(refused);
	HOLDS(unshare(CLONE_NEWUSER) == 0);
	return 0;
}

static int the_owner_rules_from_outside(void)
{
	int ready[2], done[2], status;
	char byte, path[64];
	HOLDS(pipe(ready) == 0 && pipe(done) == 0);
	pid_t child = fork();
	HOLDS(child >= 0);
	if (child == 0) {
		if (become_root_inside() || unshare(CLONE_NEWUTS) || sethostname("inside", 6))
			_exit(1);
		_exit(write(ready[1], "x", 1) != 1 || read(done[0], &byte, 1) != 1);
	}
	HOLDS(read(ready[0], &byte, 1) == 1);
	snprintf(path, sizeof path, "/proc/%d/ns/user", child);
	int user = open(path, O_RDONLY | O_CLOEXEC);
	snprintf(path, sizeof path, "/proc/%d/ns/uts", child);
	int uts = open(path, O_RDONLY | O_CLOEXEC);
	HOLDS(user >= 0 && uts >= 0);
	unsigned owner;
	HOLDS(ioctl(user, NS_GET_OWNER_UID, &owner) == 0 && owner == USER);
	REFUSED(setns(uts, 0), EPERM);
	HOLDS(setns(user, 0) == 0 && getuid() == 0);
	REFUSED(setns(user, 0), EINVAL);
	HOLDS(setns(uts, 0) == 0 && hostname_is("inside") && sethostname("entered", 7) == 0);
	HOLDS(write(done[1], "x", 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
	return 0;
}

/* A mount namespace with private mounts, on a host whose mounts are shared. */
static int own_mounts(void)
{
	return unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL);
}

static int is_mounted(const char *path, const char *in)
{
	char wanted[128];
	snprintf(wanted, sizeof wanted, " %s ", in);
	return strstr(reads(path), wanted) != NULL;
}

static int mounts_are_ones_own(void)
{
	char path[64];
	unsigned long number = number_of("/proc/self/ns/mnt");
	int old = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
	HOLDS(own_mounts() == 0 && number_of("/proc/self/ns/mnt") != number);
	struct stat about;
	HOLDS(mount("none", FOLDER "/tree", "tmpfs", 0, "uid=5,gid=7") == 0 && mkdir(FOLDER "/tree/inside", 0755) == 0);
	HOLDS(stat(FOLDER "/tree", &about) == 0 && about.st_uid == 5 && about.st_gid == 7);
	HOLDS(is_mounted("/proc/self/mounts", FOLDER "/tree") && is_mounted("/proc/self/mountinfo", FOLDER "/tree"));
	snprintf(path, sizeof path, "/proc/%d/mounts", getppid());
	HOLDS(!is_mounted(path, FOLDER "/tree"));
	snprintf(path, sizeof path, "/proc/%d/root" FOLDER "/tree/inside", getppid());
	REFUSED(access(path, F_OK), ENOENT);
	snprintf(path, sizeof path, "/proc/%d/root" FOLDER "/tree", getppid());
	REFUSED(mount("none", path, "tmpfs", 0, NULL), EINVAL);
	HOLDS(chdir(FOLDER "/tree") == 0);
	HOLDS(setns(old, CLONE_NEWNS) == 0 && access(FOLDER "/tree/inside", F_OK) == -1);
	char cwd[64];
	HOLDS(getcwd(cwd, sizeof cwd) && strcmp(cwd, "/") == 0);
	return 0;
}

static int a_tree_goes_whole(void)
{
	HOLDS(own_mounts() == 0 && mount("none", FOLDER "/tree", "tmpfs", 0, NULL) == 0);
	HOLDS(mkdir(FOLDER "/tree/a", 0755) == 0 && mount("none", FOLDER "/tree/a", "tmpfs", 0, NULL) == 0);
	HOLDS(mkdir(FOLDER "/tree/a/b", 0755) == 0 && mount("none", FOLDER "/tree/a/b", "tmpfs", 0, NULL) == 0);
	HOLDS(mkdir(FOLDER "/tree/copy", 0755) == 0);
	HOLDS(mount(FOLDER "/tree/a", FOLDER "/tree/copy", NULL, MS_BIND, NULL) == 0 && !is_mounted("/proc/self/mounts", FOLDER "/tree/copy/b"));
	HOLDS(umount(FOLDER "/tree/copy") == 0);
	HOLDS(mount(FOLDER "/tree/a", FOLDER "/tree/copy", NULL, MS_BIND | MS_REC, NULL) == 0 && is_mounted("/proc/self/mounts", FOLDER "/tree/copy/b"));
	REFUSED(umount(FOLDER "/tree/copy"), EBUSY);
	HOLDS(umount2(FOLDER "/tree", MNT_DETACH) == 0);
	HOLDS(!strstr(reads("/proc/self/mounts"), FOLDER "/tree"));
	REFUSED(umount(FOLDER "/tree"), EINVAL);
	return 0;
}

/* ".." leads nowhere from a directory that was moved out of a bind mount's tree. */
static int no_way_out_of_a_bind_mount(void)
{
	char path[4096];
	HOLDS(own_mounts() == 0 && mount("none", FOLDER "/tree", "tmpfs", 0, NULL) == 0);
	HOLDS(mkdir(FOLDER "/tree/x", 0755) == 0 && mkdir(FOLDER "/tree/x/y", 0755) == 0 && mkdir(FOLDER "/tree/x/y/d", 0755) == 0);
	HOLDS(mkdir(FOLDER "/tree/x/y/d/below", 0755) == 0 && mkdir(FOLDER "/tree/m", 0755) == 0);
	HOLDS(close(open(FOLDER "/tree/secret", O_CREAT | O_WRONLY, 0600)) == 0);
	HOLDS(mount(FOLDER "/tree/x/y", FOLDER "/tree/m", NULL, MS_BIND, NULL) == 0);
	HOLDS(strstr(reads("/proc/self/mountinfo"), " /x/y " FOLDER "/tree/m "));
	HOLDS(chdir(FOLDER "/tree/m/d/below") == 0 && open("../..", O_PATH) >= 0);
	HOLDS(rename(FOLDER "/tree/x/y/d", FOLDER "/tree/x/d") == 0);
	REFUSED(open("../../../secret", O_RDONLY), ENOENT);
	REFUSED(open("..", O_PATH), ENOENT);
	REFUSED(chdir(".."), ENOENT);
	HOLDS(open(".", O_PATH) >= 0);
	HOLDS(syscall(SYS_getcwd, path, sizeof path) > 0 && !strcmp(path, "(unreachable)/"));
	HOLDS(rename(FOLDER "/tree/x/d", FOLDER "/tree/x/y/d") == 0 && open("../..", O_PATH) >= 0);
	HOLDS(getcwd(path, sizeof path) && !strcmp(path, FOLDER "/tree/m/d/below"));
	HOLDS(chdir("/") == 0 && umount2(FOLDER "/tree", MNT_DETACH) == 0);
	return 0;
}

/* A path walk that may not leave a directory (RESOLVE_BENEATH) stays inside while another
 * process moves directories. */
static int no_way_out_of_beneath(void)
{
	struct open_how how = { .flags = O_PATH, .resolve = RESOLVE_BENEATH };
	int reached = 0;
	HOLDS(own_mounts() == 0 && mount("none", FOLDER "/tree", "tmpfs", 0, NULL) == 0 && chdir(FOLDER "/tree") == 0);
	HOLDS(mkdir("top", 0755) == 0 && mkdir("top/a", 0755) == 0 && mkdir("top/a/b", 0755) == 0 && mkdir("out", 0755) == 0);
	HOLDS(close(open("secret", O_CREAT | O_WRONLY, 0600)) == 0);
	pid_t mover = fork();
	HOLDS(mover >= 0);
	if (mover == 0)
		for (;;) {
			rename("top/a/b", "out/b");
			rename("out/b", "top/a/b");
		}
	int top = open("top", O_PATH);
	for (int round = 0; round < 20000; round++) {
		int fd = syscall(SYS_openat2, top, "a/b/../../secret", &how, sizeof how);
		reached += fd >= 0;
		close(fd);
	}
	HOLDS(kill(mover, SIGKILL) == 0 && waitpid(mover, NULL, 0) == mover);
	HOLDS(reached == 0);
	HOLDS(chdir("/") == 0 && umount2(FOLDER "/tree", MNT_DETACH) == 0);
	return 0;
}

/* A mount becomes read-only when no file is open for writing through it, and not before. */
static int writers_bar_read_only(void)
{
	HOLDS(own_mounts() == 0 && mount("none", FOLDER "/tree", "tmpfs", 0, NULL) == 0);
	HOLDS(mkdir(FOLDER "/tree/shown", 0755) == 0 && mount(FOLDER "/tree", FOLDER "/tree/shown", NULL, MS_BIND, NULL) == 0);
	int file = open(FOLDER "/tree/shown/file", O_RDWR | O_CREAT, 0600);
	HOLDS(file >= 0);
	REFUSED(mount("none", FOLDER "/tree/shown", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL), EBUSY);
	HOLDS(write(file, "x", 1) == 1);
	int copy = dup(file), reads_it = open(FOLDER "/tree/shown/file", O_RDONLY), other = open(FOLDER "/tree/file", O_WRONLY);
	HOLDS(copy >= 0 && reads_it >= 0 && other >= 0 && close(file) == 0);
	REFUSED(mount("none", FOLDER "/tree/shown", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL), EBUSY);
	HOLDS(close(copy) == 0 && mount("none", FOLDER "/tree/shown", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) == 0);
	REFUSED(open(FOLDER "/tree/shown/file", O_WRONLY), EROFS);
	HOLDS(write(other, "x", 1) == 1);
	HOLDS(mount("none", FOLDER "/tree/shown", NULL, MS_REMOUNT | MS_BIND, NULL) == 0);
	HOLDS((file = open(FOLDER "/tree/shown/file", O_WRONLY)) >= 0);
	return 0;
}

static int a_namespace_in_a_mount(void)
{
	HOLDS(own_mounts() == 0 && mount("none", FOLDER "/tree", "tmpfs", 0, NULL) == 0);
	close(open(FOLDER "/tree/name", O_WRONLY | O_CREAT, 0600));
	REFUSED(mount("/proc/self/ns/mnt", FOLDER "/tree/name", NULL, MS_BIND, NULL), EINVAL);
	HOLDS(unshare(CLONE_NEWUTS) == 0 && sethostname("kept", 4) == 0);
	HOLDS(mount("/proc/self/ns/uts", FOLDER "/tree/name", NULL, MS_BIND, NULL) == 0);
	HOLDS(unshare(CLONE_NEWUTS) == 0 && sethostname("other", 5) == 0);
	int file = open(FOLDER "/tree/name", O_RDONLY | O_CLOEXEC);
	HOLDS(file >= 0 && setns(file, CLONE_NEWUTS) == 0 && hostname_is("kept"));
	close(file);
	HOLDS(umount(FOLDER "/tree/name") == 0);
	return 0;
}

static int pivots(const char *new, const char *old)
{
	return syscall(SYS_pivot_root, new, old);
}

static int a_bound_file_has_its_places_name(void)
{
	char link[64], name[128] = { 0 };
	HOLDS(unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
	HOLDS(mount("none", FOLDER "/tree", "tmpfs", 0, NULL) == 0);
	close(open(FOLDER "/tree/place", O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	HOLDS(mount(FOLDER "/secret", FOLDER "/tree/place", NULL, MS_BIND, NULL) == 0);
	int file = open(FOLDER "/tree/place", O_PATH | O_CLOEXEC);
	HOLDS(file >= 0);
	snprintf(link, sizeof link, "/proc/self/fd/%d", file);
	HOLDS(readlink(link, name, sizeof name - 1) > 0 && strcmp(name, FOLDER "/tree/place") == 0);
	return 0;
}

static int another_root(void)
{
	HOLDS(own_mounts() == 0);
	REFUSED(pivots(FOLDER "/tree", FOLDER "/tree"), EBUSY);
	HOLDS(mount("none", FOLDER "/tree", "tmpfs", 0, NULL) == 0 && mkdir(FOLDER "/tree/old", 0755) == 0);
	close(open(FOLDER "/tree/file", O_WRONLY | O_CREAT, 0600));
	REFUSED(pivots(FOLDER "/tree", FOLDER "/tree/file"), ENOTDIR);
	REFUSED(pivots(FOLDER "/tree", "/"), EBUSY);
	REFUSED(pivots("/", "/"), EBUSY);
	HOLDS(chdir("/") == 0 && pivots(FOLDER "/tree", FOLDER "/tree/old") == 0);
	HOLDS(access("/file", F_OK) == 0 && access("/old" FOLDER, F_OK) == 0);
	HOLDS(access("file", F_OK) == 0 && access("/../../file", F_OK) == 0);
	HOLDS(umount2("/old", MNT_DETACH) == 0 && access("/old" FOLDER, F_OK) == -1);
	HOLDS(rmdir("/old") == 0);
	return 0;
}

static int root_inside_mounts(void)
{
	struct stat about;
	HOLDS(become_root_inside() == 0);
	REFUSED(unshare(CLONE_NEWNS | CLONE_THREAD | 1), EINVAL);
	HOLDS(unshare(CLONE_NEWNS) == 0);
	REFUSED(mount("none", FOLDER "/tree", "tmpfs", 0, "uid=5"), EINVAL);
	REFUSED(mount("none", FOLDER "/tree", "tmpfs", 0, "gid=x"), EINVAL);
	HOLDS(mount("none", FOLDER "/tree", "tmpfs", MS_NOSUID, "size=1m,uid=0,gid=0") == 0);
	HOLDS(stat(FOLDER "/tree", &about) == 0 && about.st_uid == 0 && about.st_gid == 0);
	HOLDS(mkdir(FOLDER "/tree/usr", 0755) == 0 && mkdir(FOLDER "/tree/old", 0755) == 0 && mkdir(FOLDER "/tree/shown", 0755) == 0);
	HOLDS(mount(FOLDER "/shown", FOLDER "/tree/shown", NULL, MS_BIND | MS_REC, NULL) == 0);
	HOLDS(mount("none", FOLDER "/tree/shown", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NODEV, NULL) == 0);
	REFUSED(open(FOLDER "/tree/shown/new", O_WRONLY | O_CREAT, 0600), EROFS);
	REFUSED(mount("none", FOLDER "/tree/usr", "proc", 0, NULL), EPERM);
	REFUSED(mount("none", FOLDER "/tree/usr", "sysfs", 0, NULL), EPERM);
	REFUSED(mount("none", FOLDER "/tree/usr", "devtmpfs", 0, NULL), EPERM);
	REFUSED(mount("none", FOLDER "/tree/usr", "none-such", 0, NULL), ENODEV);
	REFUSED(mknod(FOLDER "/tree/device", S_IFCHR | 0666, makedev(1, 3)), EPERM);
	HOLDS(chdir(FOLDER "/tree") == 0 && pivots(".", ".") == 0 && umount2(".", MNT_DETACH) == 0);
	HOLDS(access("/usr", F_OK) == 0 && access("/shown", F_OK) == 0 && access("/proc", F_OK) == -1);
	HOLDS(access("/../../proc", F_OK) == -1);
	return 0;
}

/* USER's namespaces have a /proc of their own, whatever the rights in the existing one are. */
static int own_processes(void)
{
	int status;
	HOLDS(own_mounts() == 0 && mount("none", "/proc", NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0);
	HOLDS(setgroups(0, NULL) == 0 && setresgid(USER, USER, USER) == 0 && setresuid(USER, USER, USER) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0);
	HOLDS(become_root_inside() == 0 && unshare(CLONE_NEWNS | CLONE_NEWPID) == 0);
	IN_CHILD(status, _exit(mount("none", FOLDER "/tree", "proc", 0, NULL) == 0 && access(FOLDER "/tree/1/stat", F_OK) == 0 ? 0 : 1));
	HOLDS(status == 0);
	return 0;
}

/* root mounts over a file, read-only; then USER makes a namespace. */
static int locks_hold(void)
{
	HOLDS(own_mounts() == 0);
	HOLDS(mount("none", FOLDER "/shown", "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV, NULL) == 0);
	HOLDS(setgroups(0, NULL) == 0 && setresgid(USER, USER, USER) == 0 && setresuid(USER, USER, USER) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0);
	HOLDS(become_root_inside() == 0 && unshare(CLONE_NEWNS) == 0);
	REFUSED(access(FOLDER "/shown/below", F_OK), ENOENT);
	REFUSED(umount(FOLDER "/shown"), EINVAL);
	REFUSED(umount2(FOLDER "/shown", MNT_DETACH), EINVAL);
	REFUSED(mount(FOLDER "/shown", FOLDER "/tree", NULL, MS_MOVE, NULL), EINVAL);
	REFUSED(mount("none", FOLDER "/shown", NULL, MS_REMOUNT | MS_BIND, NULL), EPERM);
	REFUSED(mount("none", FOLDER "/shown", NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV, NULL), EPERM);
	REFUSED(mount("none", FOLDER "/shown", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NODEV, NULL), EPERM);
	REFUSED(mount("none", FOLDER "/shown", NULL, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL), EPERM);
	HOLDS(mount("none", FOLDER "/shown", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0);
	REFUSED(mount(FOLDER, FOLDER "/tree", NULL, MS_BIND, NULL), EINVAL);
	HOLDS(mount(FOLDER, FOLDER "/tree", NULL, MS_BIND | MS_REC, NULL) == 0);
	REFUSED(access(FOLDER "/tree/shown/below", F_OK), ENOENT);
	REFUSED(umount(FOLDER "/tree/shown"), EINVAL);
	REFUSED(umount(FOLDER "/tree"), EBUSY);
	int open_folder = open(FOLDER "/tree", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	HOLDS(open_folder >= 0 && umount2(FOLDER "/tree", MNT_DETACH) == 0);
	REFUSED(faccessat(open_folder, "shown/below", F_OK, 0), ENOENT);
	HOLDS(fchdir(open_folder) == 0);
	REFUSED(access("shown/below", F_OK), ENOENT);
	/* A new mount over the locked one is allowed, and may be unmounted again. */
	HOLDS(mount("none", FOLDER "/shown", "tmpfs", 0, NULL) == 0 && umount(FOLDER "/shown") == 0);
	return 0;
}

/* A set-user-ID program in a mount of another user namespace, reached through /proc/PID/root of
 * a process there. */
static int no_rights_by_anothers_mount(void)
{
	int ready[2], done[2], status;
	char byte, path[128];
	HOLDS(pipe(ready) == 0 && pipe(done) == 0);
	pid_t child = fork();
	HOLDS(child >= 0);
	if (child == 0) {
		if (setgroups(0, NULL) || setresgid(USER, USER, USER) || setresuid(USER, USER, USER) || prctl(PR_SET_DUMPABLE, 1) ||
		    become_root_inside() || unshare(CLONE_NEWNS) || mount("none", FOLDER "/tree", "tmpfs", 0, NULL))
			_exit(1);
		int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), to = open(FOLDER "/tree/set-id", O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
		static char bytes[1 << 16];
		for (ssize_t length; (length = read(from, bytes, sizeof bytes)) > 0;)
			if (write(to, bytes, length) != length)
				_exit(2);
		if (fchmod(to, 04755) || close(to))
			_exit(3);
		_exit(write(ready[1], "x", 1) != 1 || read(done[0], &byte, 1) != 1);
	}
	close(ready[1]);
	HOLDS(read(ready[0], &byte, 1) == 1);
	snprintf(path, sizeof path, "/proc/%d/root" FOLDER "/tree/set-id", child);
	pid_t runner = fork();
	HOLDS(runner >= 0);
	if (runner == 0) {
		execl(path, "set-id", "--effective", NULL);
		_exit(99);
	}
	HOLDS(waitpid(runner, &status, 0) == runner && WIFEXITED(status) && WEXITSTATUS(status) == 11);
	HOLDS(write(done[1], "x", 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
	return 0;
}

static int a_mount_namespace_can_be_entered(void)
{
	int ready[2], done[2], status;
	char byte, path[64];
	HOLDS(pipe(ready) == 0 && pipe(done) == 0);
	pid_t child = fork();
	HOLDS(child >= 0);
	if (child == 0) {
		if (become_root_inside() || unshare(CLONE_NEWNS) || mount("none", FOLDER "/tree", "tmpfs", 0, NULL) || mkdir(FOLDER "/tree/inside", 0755))
			_exit(1);
		_exit(write(ready[1], "x", 1) != 1 || read(done[0], &byte, 1) != 1);
	}
	close(ready[1]);
	HOLDS(read(ready[0], &byte, 1) == 1);
	snprintf(path, sizeof path, "/proc/%d/ns/mnt", child);
	int mounts = open(path, O_RDONLY | O_CLOEXEC);
	int process = syscall(SYS_pidfd_open, child, 0);
	HOLDS(mounts >= 0 && process >= 0);
	REFUSED(setns(mounts, 0), EPERM);
	HOLDS(setns(process, CLONE_NEWUSER | CLONE_NEWNS) == 0 && getuid() == 0);
	HOLDS(access(FOLDER "/tree/inside", F_OK) == 0);
	HOLDS(write(done[1], "x", 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
	/* The mount namespace has no processes left; its open file keeps it alive. */
	HOLDS(setns(mounts, CLONE_NEWNS) == 0 && access(FOLDER "/tree/inside", F_OK) == 0 && umount(FOLDER "/tree") == 0);
	return 0;
}

/* Connects to 127.0.0.1, or binds to it, and returns the errno. */
static int reaches(int port, int binds)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int own = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int result = binds ? bind(own, (struct sockaddr *)&to, sizeof to) : connect(own, (struct sockaddr *)&to, sizeof to);
	int error = result ? errno : 0;
	close(own);
	return error;
}

static int listens(int *port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(*port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof at;
	int own = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (bind(own, (struct sockaddr *)&at, sizeof at) || listen(own, 4) || getsockname(own, (struct sockaddr *)&at, &length))
		return -1;
	*port = ntohs(at.sin_port);
	return own;
}

static int named_socket(const char *name, int length, int binds)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	memcpy(at.sun_path, name, length);
	int own = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t size = sizeof(sa_family_t) + length;
	if (binds ? bind(own, (struct sockaddr *)&at, size) || listen(own, 4) : connect(own, (struct sockaddr *)&at, size))
		return -1;
	return own;
}

static int loopback_flags(int set)
{
	struct ifreq request = { .ifr_name = "lo" };
	int own = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	request.ifr_flags = IFF_UP;
	int result = ioctl(own, set ? SIOCSIFFLAGS : SIOCGIFFLAGS, &request);
	int error = errno;
	close(own);
	errno = error;
	return result ? -1 : request.ifr_flags;
}

static int networks_are_ones_own(void)
{
	int port = 0, again;
	int outside = listens(&port), named = named_socket("\0ns-test", 8, 1), path = named_socket(FOLDER "/socket", sizeof FOLDER "/socket", 1);
	int old = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	unsigned long number = number_of("/proc/self/ns/net");
	HOLDS(outside >= 0 && named >= 0 && path >= 0 && old >= 0 && reaches(port, 0) == 0);
	HOLDS(unshare(CLONE_NEWNET) == 0 && number_of("/proc/self/ns/net") != number);
	HOLDS((loopback_flags(0) & IFF_UP) == 0 && !strstr(reads("/proc/self/net/dev"), "eth"));
	HOLDS(reaches(port, 0) == ENETUNREACH);
	HOLDS(loopback_flags(1) >= 0 && (loopback_flags(0) & IFF_UP));
	HOLDS(reaches(port, 0) == ECONNREFUSED);
	char shown[16];
	snprintf(shown, sizeof shown, ":%04X 0", port);
	HOLDS(!strstr(reads("/proc/self/net/tcp"), shown));
	again = port;
	int inside = listens(&again);
	HOLDS(inside >= 0 && again == port && reaches(port, 0) == 0 && strstr(reads("/proc/self/net/tcp"), shown));
	int served = accept(inside, NULL, NULL);
	HOLDS(served >= 0 && fcntl(outside, F_SETFL, O_NONBLOCK) == 0);
	/* The one connection that waits there was made before. */
	HOLDS(accept(outside, NULL, NULL) >= 0);
	REFUSED(accept(outside, NULL, NULL), EAGAIN);
	REFUSED(named_socket("\0ns-test", 8, 0), ECONNREFUSED);
	HOLDS(named_socket("\0ns-test", 8, 1) >= 0 && named_socket("\0ns-test", 8, 0) >= 0);
	HOLDS(!strstr(reads("/proc/self/net/unix"), FOLDER "/socket"));
	/* A file's name is found wherever the file is. */
	HOLDS(named_socket(FOLDER "/socket", sizeof FOLDER "/socket", 0) >= 0);
	close(inside);
	HOLDS(setns(old, CLONE_NEWNET) == 0 && reaches(port, 0) == 0 && strstr(reads("/proc/self/net/tcp"), shown));
	HOLDS(unlink(FOLDER "/socket") == 0);
	return 0;
}

/* Sets lo up as bwrap does; returns the error in the answer. */
static int sets_up_by_netlink(void)
{
	struct { struct nlmsghdr head; struct ifinfomsg link; } request = {
		{ sizeof request, RTM_NEWLINK, NLM_F_REQUEST | NLM_F_ACK, 1, 0 }, { AF_UNSPEC, 0, 0, 1, IFF_UP, IFF_UP },
	};
	struct { struct nlmsghdr head; struct nlmsgerr error; } answer;
	int own = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	int is_whole = send(own, &request, sizeof request, 0) == sizeof request && recv(own, &answer, sizeof answer, 0) > 0;
	close(own);
	return is_whole && answer.head.nlmsg_type == NLMSG_ERROR ? -answer.error.error : -1;
}

static int root_inside_rules_its_network(void)
{
	HOLDS(become_root_inside() == 0);
	HOLDS(reaches(80, 1) == EACCES && sets_up_by_netlink() == EPERM);
	REFUSED(loopback_flags(1), EPERM);
	int old = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	HOLDS(unshare(CLONE_NEWNET) == 0 && sets_up_by_netlink() == 0 && (loopback_flags(0) & IFF_UP));
	HOLDS(reaches(80, 1) == 0);
	REFUSED(setns(old, CLONE_NEWNET), EPERM);
	return 0;
}

static int a_chroot_makes_none(void)
{
	HOLDS(chroot(FOLDER) == 0);
	REFUSED(unshare(CLONE_NEWUSER), EPERM);
	return 0;
}

static int a_thousand_come_and_go(void)
{
	for (int at = 0; at < 1000; at++) {
		int status;
		pid_t child = syscall(SYS_clone, CLONE_NEWUSER | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNS | CLONE_NEWNET | SIGCHLD, 0, 0, 0, 0);
		HOLDS(child >= 0);
		if (child == 0)
			_exit(shmget(IPC_PRIVATE, 4096, 0600) < 0);
		HOLDS(waitpid(child, &status, 0) == child && status == 0);
	}
	return 0;
}

int main(int count, char **arguments)
{
	if (count > 1 && strcmp(arguments[1], "--effective") == 0)
		return geteuid() == 0 && getuid() == USER ? 10 : geteuid() == 0 && getuid() == 0 ? 11 : 12;
	if (count > 1 && strcmp(arguments[1], "--capable") == 0)
		return unshare(CLONE_NEWUTS) == 0 ? 21 : 20;
	NEED(geteuid() == 0);
	umask(0);
	mkdir("/tmp", 01777);
	NEED(mkdir(FOLDER, 0777) == 0 || errno == EEXIST);
	NEED(mkdir(FOLDER "/tree", 0777) == 0 || errno == EEXIST);
	NEED(mkdir(FOLDER "/shown", 0777) == 0 || errno == EEXIST);
	close(open(FOLDER "/shown/below", O_WRONLY | O_CREAT, 0600));
	NEED(mkdir(FOLDER "/closed", 0700) == 0 || errno == EEXIST);
	close(open(FOLDER "/closed/file", O_WRONLY | O_CREAT, 0600));
	close(open(FOLDER "/secret", O_WRONLY | O_CREAT, 0600));
	int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), to = open(FOLDER "/set-id", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
	static char bytes[1 << 16];
	for (ssize_t length; (length = read(from, bytes, sizeof bytes)) > 0;)
		NEED(write(to, bytes, length) == length);
	NEED(fchmod(to, 04755) == 0 && close(to) == 0);

	PROMISE("names are a namespace's own, and the old ones come back with it", in_child(names_are_ones_own, 0));
	PROMISE("clone makes namespaces for the child", in_child(clone_makes_one, 0));
	PROMISE("a file of /proc/PID/ns says which namespace it is", in_child(files_name_namespaces, 0));
	PROMISE("setns takes a namespace's file of the kind, or a pidfd", in_child(setns_checks, 0));
	PROMISE("a pidfd leads into its process' namespaces while it lives", in_child(pidfd_leads_in, 0));
	PROMISE("a namespace without processes lives in its file", in_child(an_ended_namespace_lives_in_its_file, 0));
	PROMISE("System V objects are a namespace's own", in_child(objects_are_ones_own, 0));
	PROMISE("only a privileged user makes and enters them", in_child(rights_are_asked, USER));
	PROMISE("any user makes a user namespace, and maps itself in it, once", in_child(maps_are_written_once, USER));
	PROMISE("ids are seen from inside, those without a map as 65534", in_child(ids_are_seen_from_inside, USER));
	PROMISE("capabilities end at the namespace's border", in_child(privileges_end_at_the_border, USER));
	PROMISE("a set-user-ID program of a user without a map changes no id", in_child(set_id_programs_do_not_lead_out, USER));
	PROMISE("a program that user 5 inside executes has no capability", in_child(exec_keeps_roots_capabilities_only, USER));
	PROMISE("one that user 0 inside executes has all", in_child(root_inside_keeps_them, USER));
	PROMISE("root maps ranges of ids, which are other ids outside", in_child(a_range_of_ids, 0));
	PROMISE("credentials and signals name users as the receiver sees them", in_child(credentials_are_translated, 0));
	PROMISE("user namespaces are 33 levels deep at most", in_child(depth, USER));
	PROMISE("there are as many as max_user_namespaces says", in_child(number_is_limited, 0));
	PROMISE("the owner of a user namespace may enter it, and then what it owns", in_child(the_owner_rules_from_outside, USER));
	PROMISE("mounts are a namespace's own", in_child(mounts_are_ones_own, 0));
	PROMISE("MS_REC copies, and MNT_DETACH takes away, a whole tree", in_child(a_tree_goes_whole, 0));
	PROMISE("a namespace can be kept in a mount, one of mounts cannot", in_child(a_namespace_in_a_mount, 0));
	PROMISE("a file that is bound over another has the name of that place", in_child(a_bound_file_has_its_places_name, 0));
	PROMISE("pivot_root gives another root", in_child(another_root, 0));
	PROMISE("root inside mounts what is in memory and what it sees, and makes that its root", in_child(root_inside_mounts, USER));
	PROMISE("it undoes neither what root mounted outside nor how", in_child(locks_hold, 0));
	PROMISE("it has a /proc of its own processes", in_child(own_processes, 0));
	PROMISE("no way leads out of a bind mount", in_child(no_way_out_of_a_bind_mount, 0));
	PROMISE("nor out of a walk's beginning", in_child(no_way_out_of_beneath, 0));
	PROMISE("writers keep a mount from becoming read-only", in_child(writers_bar_read_only, 0));
	PROMISE("a set-user-ID program of another's mount gives nothing", in_child(no_rights_by_anothers_mount, 0));
	PROMISE("a mount namespace is entered with its user namespace", in_child(a_mount_namespace_can_be_entered, USER));
	PROMISE("ports, abstract names and devices are a network namespace's own", in_child(networks_are_ones_own, 0));
	PROMISE("root inside sets up its loopback device and has its ports", in_child(root_inside_rules_its_network, USER));
	PROMISE("in a chroot none is made", in_child(a_chroot_makes_none, 0));
	PROMISE("a thousand come and go", in_child(a_thousand_come_and_go, USER));

	NEED(unlink(FOLDER "/secret") == 0 && unlink(FOLDER "/set-id") == 0 && unlink(FOLDER "/closed/file") == 0 && rmdir(FOLDER "/closed") == 0 &&
	     unlink(FOLDER "/shown/below") == 0 && rmdir(FOLDER "/shown") == 0 && rmdir(FOLDER "/tree") == 0 && rmdir(FOLDER) == 0);
	return conclude();
}
