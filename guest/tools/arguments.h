/*
 * Random arguments of system calls. Three of four arguments are of the kind that the call expects
 * (shapes.h). Pointers lead into `arena`, and descriptors are drawn from `files`; the program that
 * includes this file fills both. Needs promise.h and dice.h.
 */
#include <linux/futex.h>
#include <linux/netlink.h>
#include <sys/epoll.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#define ARENA (64 * 4096)
/* After the arena there are an unmapped page, a read-only page, a page without access, a
 * writable page, and 16 pages of a file. */
#define AROUND (20 * 4096)
/* The folder for all files of the test. */
#define FOLDER "/tmp/hostile"

static char *arena;
static int files[64], file_count;
/* IDs of a shared memory segment, a set of semaphores and a message queue. */
static int objects[3];

static uint64_t any_number(struct dice *dice)
{
	static const uint64_t odd[] = {
		0, 1, 2, 3, 7, 8, 15, 16, 31, 63, 64, 255, 256, 511, 512, 1000, 1024, 4095, 4096, 4097, 8192, 65535, 65536,
		1 << 20, 1 << 21, 1 << 30, 0x7fffffff, 0x80000000, 0xffffffff, 0x100000000, -1ull, -2ull, -22ull, -4095ull, -4096ull,
		0x7fffffffffffffff, 0x8000000000000000, 0x7ffffffff000, 0x800000000000, 0xffff800000000000,
	};
	switch (below(dice, 4)) {
	case 0:
		return odd[below(dice, sizeof odd / sizeof *odd)];
	case 1:
		return below(dice, 64);
	case 2:
		return 1ull << below(dice, 64) | 1ull << below(dice, 64);
	default:
		return draw(dice) >> below(dice, 64);
	}
}

static uint64_t address(struct dice *dice)
{
	static const uint64_t wild[] = { 0, 1, 8, 4095, 4096, 0x400000, 0x7ffffffff000, 0x7fffffffffff, 0x800000000000,
					 0xffff800000000000, 0xffff888000000000, 0xffffffff80000000, 0xffffffff81000000, -1ull, -4096ull };
	switch (below(dice, 10)) {
	case 0:
		return wild[below(dice, sizeof wild / sizeof *wild)];
	case 1:
		return (uintptr_t)arena + ARENA - below(dice, 64); /* runs over the end */
	case 2:
		return (uintptr_t)arena + ARENA + below(dice, AROUND);
	case 3:
		return (uintptr_t)arena + below(dice, ARENA);
	default:
		return (uintptr_t)arena + (below(dice, ARENA) & ~63ul);
	}
}

/* Returns an address in the arena for a structure. */
static void *room(struct dice *dice)
{
	return arena + (below(dice, ARENA - 512) & ~63ul);
}

/* Returns a process number: the caller's own or its group's (0), perhaps a child's, or an unused
 * one; never the parent's, and never -1. */
static uint64_t process(struct dice *dice)
{
	switch (below(dice, 6)) {
	case 0:
	case 1:
		return 0;
	case 2:
	case 3:
		return getpid();
	case 4:
		return getpid() + 1 + below(dice, 4);
	default:
		return 0x3ffff0 + below(dice, 16);
	}
}

static uint64_t bits(struct dice *dice)
{
	uint64_t flags = 0;
	for (unsigned n = below(dice, 4); n > 0; n--)
		flags |= 1ull << below(dice, below(dice, 8) ? 24 : 32);
	return flags;
}

static void *path(struct dice *dice)
{
	static const char *const paths[] = { "a", "b", "a/c", "d", "d/a", "/proc/self/maps", "/proc/self/mem", "/proc/self/status", "/dev/null",
					     "/dev/zero", "/proc/self/fd/3", FOLDER, "/", "..", ".", "", "/proc/self/exe", "/dev/ptmx", "/dev/full",
					     "/sys/devices/system/node/node0/meminfo", "/proc/self/clear_refs", "/proc/self/pagemap", "/dev/tty",
					     "/proc/self/smaps", "/proc/self/stat", "/proc/meminfo", "/proc/locks", "/proc/self/task", "/proc/mounts",
					     "/dev/vda", "/proc/self/environ", "/proc/thread-self/comm", "/proc/net", "/proc/net/tcp", "/proc/net/unix", "/proc/net/udp6", "/proc/net/sockstat",
					     "/proc/sys/vm/overcommit_memory", "/sys", "/proc/self/ns/user", "/proc/self/ns/mnt", "/proc/self/ns/uts",
					     "/proc/self/uid_map", "/proc/self/gid_map", "/proc/self/setgroups", "/proc/self/mountinfo" };
	static const unsigned count = sizeof paths / sizeof *paths;
	char *at = room(dice);
	if (below(dice, 16) == 0)
		return (void *)address(dice);
	if (below(dice, 3) == 0)
		snprintf(at, 64, "%c%d", "abd"[below(dice, 3)], below(dice, 4));
	else if (below(dice, 24) == 0)
		snprintf(at, 64, "/proc/%d/%s", getppid(), below(dice, 2) ? "maps" : "stat");
	else
		strcpy(at, paths[below(dice, count)]);
	return at;
}

/* Returns a path in the test's own folder. Otherwise calls that remove, rename or change files
 * could take /dev/null from later processes. */
static void *own_path(struct dice *dice)
{
	static const char *const paths[] = { "a", "b", "a/c", "d", "d/a", "./a", "../a", "", "d/", "a/../b" };
	char *at = room(dice);
	strcpy(at, paths[below(dice, sizeof paths / sizeof *paths)]);
	return below(dice, 16) ? at : (void *)(0x7ffffffff000 - below(dice, 2));
}

static void *iovecs(struct dice *dice)
{
	struct iovec *list = room(dice);
	for (int i = 0; i < 8; i++)
		list[i] = (struct iovec){ (void *)address(dice), below(dice, 6) ? below(dice, 9000) : any_number(dice) };
	return list;
}

static void *socket_address(struct dice *dice)
{
	struct sockaddr_un *name = room(dice);
	if (below(dice, 4) == 0) {
		struct sockaddr_in6 *ip = (void *)name;
		int is_v6 = below(dice, 2);
		uint32_t address = htonl(below(dice, 8) ? INADDR_LOOPBACK : draw(dice));
		*ip = (struct sockaddr_in6){ .sin6_family = is_v6 ? AF_INET6 : AF_INET, .sin6_port = htons(4000 + below(dice, 4)) };
		memcpy(is_v6 ? (char *)&ip->sin6_addr + 12 : (char *)ip + 4, is_v6 ? (uint32_t[]){ htonl(1) } : &address, 4);
		return ip;
	}
	if (below(dice, 8) == 0) {
		struct sockaddr_nl *port = (void *)name;
		*port = (struct sockaddr_nl){ .nl_family = AF_NETLINK, .nl_pid = below(dice, 4) ? 0 : any_number(dice), .nl_groups = below(dice, 3) };
		return port;
	}
	name->sun_family = below(dice, 8) ? AF_UNIX : below(dice, 48);
	snprintf(name->sun_path, 16, "%s%d", below(dice, 2) ? "/tmp/h/s" : "s", below(dice, 4));
	if (below(dice, 2))
		name->sun_path[0] = 0;
	return name;
}

/* Requests of netlink, whose lengths and numbers are nearly right. */
static void *requests(struct dice *dice)
{
	char *at = room(dice), *start = at;
	for (int i = 0; i < 4; i++) {
		struct nlmsghdr *head = (void *)at;
		unsigned length = below(dice, 12) * 4;
		*head = (struct nlmsghdr){ below(dice, 8) ? 16 + length : (unsigned)any_number(dice), below(dice, 8) ? 16 + below(dice, 16) : draw(dice),
					   below(dice, 8) ? 1 | (below(dice, 2) ? NLM_F_DUMP : 0) | (below(dice, 2) ? NLM_F_ACK : 0) : draw(dice), i, 0 };
		memset(at + 16, 0, length);
		at[16] = below(dice, 3) ? (below(dice, 2) ? AF_INET : AF_INET6) : 0;
		for (unsigned byte = 1; byte < length; byte++)
			if (below(dice, 4) == 0)
				at[16 + byte] = below(dice, 24);
		at += 16 + length;
	}
	return start;
}

static void *moment(struct dice *dice)
{
	struct timespec *time = room(dice);
	*time = (struct timespec){ below(dice, 12) ? 0 : (time_t)any_number(dice), below(dice, 12) ? below(dice, 2000000) : any_number(dice) };
	return below(dice, 8) ? time : NULL;
}

/* Makes a message whose parts are in the arena, with a descriptor to be passed. */
static void *message(struct dice *dice)
{
	struct msghdr *message = room(dice);
	struct cmsghdr *control = room(dice);
	*message = (struct msghdr){ .msg_iov = iovecs(dice), .msg_iovlen = below(dice, 4), .msg_control = control, .msg_controllen = CMSG_SPACE(8) };
	*control = (struct cmsghdr){ CMSG_LEN(4 * (1 + below(dice, 2))), SOL_SOCKET, 1 + below(dice, 2) };
	((int *)CMSG_DATA(control))[0] = files[below(dice, file_count)];
	((int *)CMSG_DATA(control))[1] = files[below(dice, file_count)];
	return message;
}

static uint64_t argument(struct dice *dice, char shape)
{
	static const int commands[] = { 0x5401, 0x5402, 0x540e, 0x540f, 0x5410, 0x5411, 0x5413, 0x5414, 0x541b, 0x5421, 0x5430,
					0x5431, 0x80045430, 0x1260, 0x1261, 0x80081272, 0xc0046686, 0x8008660b, 0x5450, 0x5451, 0x541a,
					0x8905, 0x8910, 0x8912, 0x8913, 0x8914, 0x8915, 0x8916, 0x8921, 0x8927, 0x8933, 0x8942, 0x8946, 0x894b };
	switch (shape == 'O' || below(dice, 4) ? shape : 'n') {
	case 'f':
		return below(dice, 12) ? (uint64_t)files[below(dice, file_count)] : below(dice, 40);
	case 'd':
		return below(dice, 2) ? (uint64_t)AT_FDCWD : (uint64_t)files[below(dice, file_count)];
	case 'p':
		return (uintptr_t)path(dice);
	case 'O':
		return (uintptr_t)own_path(dice);
	case 'b':
		return below(dice, 6) ? address(dice) : (uintptr_t)(below(dice, 3) ? message(dice) : requests(dice));
	case 'z':
		return below(dice, 4) ? below(dice, 9000) : below(dice, ARENA);
	case 'o':
		return below(dice, 2) ? below(dice, 65536) : below(dice, 16) * 4096;
	case 'x':
		return bits(dice);
	case 'I':
		return objects[below(dice, 3)];
	case 'i':
	case 'j':
	case 'R':
		return below(dice, shape == 'j' ? 70 : shape == 'R' ? 18 : below(dice, 2) ? 4 : 24);
	case 'g':
		return below(dice, 65);
	case 'P':
		return process(dice);
	case 't':
		return (uintptr_t)moment(dice);
	case 'v':
		return (uintptr_t)iovecs(dice);
	case 'V':
		return below(dice, 9);
	case 'A':
		return (uintptr_t)arena + below(dice, (ARENA + AROUND) / 4096) * 4096;
	case 'L':
		return (1 + below(dice, below(dice, 8) ? 16 : 1024)) * 4096;
	case 'm':
		return below(dice, 8);
	case 'M':
		return (1 + below(dice, 2)) | (below(dice, 2) ? MAP_FIXED : 0) | (below(dice, 2) ? MAP_ANONYMOUS : 0) | (below(dice, 8) ? 0 : bits(dice));
	case 'a':
		return below(dice, 26);
	case 'u':
		return below(dice, 3) ? below(dice, 3) : (uint64_t)getuid();
	case 'k':
		return below(dice, 12);
	case 'S':
		return (uintptr_t)socket_address(dice);
	case 'l':
		return below(dice, 4) ? (below(dice, 2) ? 2 + below(dice, 16) : 16 + 12 * below(dice, 2)) : below(dice, 128);
	case 'e': {
		struct epoll_event *event = room(dice);
		*event = (struct epoll_event){ bits(dice), { .u64 = draw(dice) } };
		return (uintptr_t)event;
	}
	case 'q': {
		struct pollfd *list = room(dice);
		for (int i = 0; i < 8; i++)
			list[i] = (struct pollfd){ files[below(dice, file_count)], draw(dice), 0 };
		return (uintptr_t)list;
	}
	case 'Q':
		return below(dice, 14) | (below(dice, 2) ? FUTEX_PRIVATE_FLAG : 0);
	case 'w':
		return below(dice, 5);
	case 'c':
		return commands[below(dice, sizeof commands / sizeof *commands)];
	case 's': {
		uint64_t *set = room(dice);
		*set = draw(dice) & draw(dice);
		return (uintptr_t)set;
	}
	case 'D':
		return below(dice, 12) ? (uint64_t[]){ AF_UNIX, AF_UNIX, AF_INET, AF_INET6, AF_NETLINK }[below(dice, 5)] : below(dice, 48);
	case 'Y':
		return (uint64_t[]){ SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET, SOCK_RAW }[below(dice, 4)] | (below(dice, 4) ? SOCK_NONBLOCK : 0);
	case '8':
		return 8;
	case '0':
		return 0;
	case 'F':
		return below(dice, 5) ? below(dice, 18) : 1024 + below(dice, 16);
	case 'T': {
		uint64_t *number = room(dice);
		*number = below(dice, 2) ? below(dice, 128) : any_number(dice);
		return (uintptr_t)number;
	}
	default:
		return below(dice, 3) ? any_number(dice) : address(dice);
	}
}
