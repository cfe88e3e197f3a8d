/* Ancillary data of socket messages: ip(7), ipv6(7), socket(7), RFC 3542. */
#include "promise.h"
#include "addresses.h"
#include "loopback.h"

#include <sys/un.h>

#ifndef IP_RECVORIGDSTADDR
#define IP_RECVORIGDSTADDR 20
#endif
#ifndef IPV6_RECVORIGDSTADDR
#define IPV6_RECVORIGDSTADDR 74
#endif
#define NEW_TIMESTAMP 63
#define NEW_TIMESTAMPNS 64

static char beside[1024];
static size_t beside_length;
static char got[64];

/* A datagram socket at a free port of any address, and the port. */
static int bound(int family, int *port)
{
	struct sockaddr_in6 name = { .sin6_family = family };
	socklen_t length = sizeof name;
	int fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	NEED(fd >= 0 && bind(fd, (struct sockaddr *)&name, family == AF_INET ? 16 : 28) == 0);
	NEED(getsockname(fd, (struct sockaddr *)&name, &length) == 0);
	*port = ntohs(name.sin6_port);
	return fd;
}

/* Receives a message and keeps its ancillary data. */
static ssize_t receives(int fd, int flags)
{
	struct iovec one = { got, sizeof got };
	struct msghdr message = { .msg_iov = &one, .msg_iovlen = 1, .msg_control = beside, .msg_controllen = sizeof beside };
	ssize_t count = recvmsg(fd, &message, flags);
	beside_length = count < 0 ? 0 : message.msg_controllen;
	return count;
}

/* Returns the received control message of this kind; NULL for none. Its length is stored in
 * `length`. */
static const void *came(int level, int kind, size_t length)
{
	for (size_t at = 0; at + sizeof(struct cmsghdr) <= beside_length;) {
		struct cmsghdr *head = (void *)(beside + at);
		if (head->cmsg_level == level && head->cmsg_type == kind)
			return head->cmsg_len == CMSG_LEN(length) ? CMSG_DATA(head) : NULL;
		at += CMSG_ALIGN(head->cmsg_len);
	}
	return NULL;
}

static int number(int level, int kind)
{
	const void *data = came(level, kind, sizeof(int));
	int value = -77;
	if (data)
		memcpy(&value, data, sizeof value);
	return value;
}

static int64_t wall_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

/* Returns the time in the message's ancillary data, in microseconds; 0 for none. */
static int64_t time_of(int kind, int units)
{
	const int64_t *data = came(SOL_SOCKET, kind, 16);
	return data ? data[0] * 1000000 + data[1] / units : 0;
}

/* Sends one byte to `name` with one control message. */
static ssize_t sends(int fd, const void *name, size_t length, int level, int kind, const void *data, size_t bytes)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(64)];
	} control = { { CMSG_LEN(bytes), level, kind } };
	struct iovec one = { "x", 1 };
	struct msghdr message = { .msg_name = (void *)name, .msg_namelen = length, .msg_iov = &one, .msg_iovlen = 1,
		.msg_control = bytes ? &control : NULL, .msg_controllen = bytes ? CMSG_SPACE(bytes) : 0 };
	if (bytes)
		memcpy(CMSG_DATA(&control.head), data, bytes);
	return sendmsg(fd, &message, 0);
}

static ssize_t plain(int fd, const void *name, size_t length)
{
	return sends(fd, name, length, 0, 0, NULL, 0);
}

static void times(void)
{
	int port, fd = bound(AF_INET, &port), from = socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in name = v4("127.0.0.1", port);
	NEED(plain(from, &name, sizeof name) == 1 && receives(fd, 0) == 1);
	PROMISE("nothing comes beside a message where nothing was asked for", beside_length == 0);
	PROMISE("SO_TIMESTAMP can be asked for", set(fd, SOL_SOCKET, SO_TIMESTAMP, 1) == 0 && get(fd, SOL_SOCKET, SO_TIMESTAMP) == 1);
	int64_t before = wall_us();
	NEED(plain(from, &name, sizeof name) == 1);
	int64_t after = wall_us();
	sleep_ms(20);
	NEED(receives(fd, MSG_PEEK) == 1);
	int64_t peeked = time_of(SO_TIMESTAMP, 1);
	NEED(receives(fd, 0) == 1);
	int64_t stamp = time_of(SO_TIMESTAMP, 1);
	PROMISE("the time of a datagram is that of its arrival", stamp >= before && stamp <= after + 1000);
	PROMISE("a look gives the same time", peeked == stamp);
	PROMISE("SO_TIMESTAMPNS takes its place", set(fd, SOL_SOCKET, SO_TIMESTAMPNS, 1) == 0 &&
		get(fd, SOL_SOCKET, SO_TIMESTAMP) == 0 && get(fd, SOL_SOCKET, SO_TIMESTAMPNS) == 1);
	before = wall_us();
	NEED(plain(from, &name, sizeof name) == 1 && receives(fd, 0) == 1);
	stamp = time_of(SO_TIMESTAMPNS, 1000);
	PROMISE("nanoseconds are of the same clock", stamp >= before && stamp <= wall_us() && !time_of(SO_TIMESTAMP, 1));
	NEED(set(fd, SOL_SOCKET, NEW_TIMESTAMP, 1) == 0 && plain(from, &name, sizeof name) == 1 && receives(fd, 0) == 1);
	PROMISE("the new form of the option has its own kind", time_of(NEW_TIMESTAMP, 1) >= before);
	NEED(set(fd, SOL_SOCKET, NEW_TIMESTAMPNS, 1) == 0 && plain(from, &name, sizeof name) == 1 && receives(fd, 0) == 1);
	PROMISE("and so has that of nanoseconds", time_of(NEW_TIMESTAMPNS, 1000) >= before);
	NEED(set(fd, SOL_SOCKET, SO_TIMESTAMP, 0) == 0 && plain(from, &name, sizeof name) == 1 && receives(fd, 0) == 1);
	PROMISE("any of them ends all", beside_length == 0 && get(fd, SOL_SOCKET, NEW_TIMESTAMPNS) == 0);
	NEED(plain(from, &name, sizeof name) == 1 && set(fd, SOL_SOCKET, SO_TIMESTAMP, 1) == 0 && receives(fd, 0) == 1);
	PROMISE("a message from before the option has a time", time_of(SO_TIMESTAMP, 1) >= before);
	close(fd);
	close(from);
}

static void unix_times(void)
{
	int pair[2];
	for (int kind = SOCK_DGRAM; kind <= SOCK_SEQPACKET; kind += SOCK_SEQPACKET - SOCK_DGRAM) {
		NEED(socketpair(AF_UNIX, kind, 0, pair) == 0);
		PROMISE("an AF_UNIX socket has SO_TIMESTAMP", set(pair[1], SOL_SOCKET, SO_TIMESTAMP, 1) == 0);
		int64_t before = wall_us();
		NEED(send(pair[0], "x", 1, 0) == 1);
		int64_t after = wall_us();
		sleep_ms(20);
		NEED(receives(pair[1], 0) == 1);
		int64_t stamp = time_of(SO_TIMESTAMP, 1);
		PROMISE("its messages bring their time", stamp >= before && stamp <= after + 1000);
		NEED(set(pair[1], SOL_SOCKET, SO_PASSCRED, 1) == 0 && send(pair[0], "x", 1, 0) == 1 && receives(pair[1], 0) == 1);
		PROMISE("credentials come, too", came(SOL_SOCKET, SCM_CREDENTIALS, 12) && time_of(SO_TIMESTAMP, 1) >= before);
		NEED(sends(pair[0], NULL, 0, IPPROTO_IP, IP_TTL, &(int){ 9 }, sizeof(int)) == 1);
		PROMISE("control messages of IP are passed over", receives(pair[1], 0) == 1);
		close(pair[0]);
		close(pair[1]);
	}
}

static void facts_v4(void)
{
	int port, fd = bound(AF_INET, &port), from = socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in name = v4("127.0.0.3", port);
	PROMISE("the facts of a datagram can be asked for", set(fd, IPPROTO_IP, IP_PKTINFO, 1) == 0 &&
		set(fd, IPPROTO_IP, IP_RECVTTL, 1) == 0 && set(fd, IPPROTO_IP, IP_RECVTOS, 1) == 0 &&
		set(fd, IPPROTO_IP, IP_RECVORIGDSTADDR, 1) == 0 && get(fd, IPPROTO_IP, IP_PKTINFO) == 1 &&
		get(fd, IPPROTO_IP, IP_RECVTTL) == 1 && get(fd, IPPROTO_IP, IP_RECVORIGDSTADDR) == 1);
	NEED(plain(from, &name, sizeof name) == 1 && receives(fd, 0) == 1);
	const struct in_pktinfo *info = came(IPPROTO_IP, IP_PKTINFO, sizeof *info);
	PROMISE("IP_PKTINFO says where it came to, and by which interface", info && info->ipi_ifindex == 1 &&
		info->ipi_addr.s_addr == name.sin_addr.s_addr && info->ipi_spec_dst.s_addr == name.sin_addr.s_addr);
	const unsigned char *tos = came(IPPROTO_IP, IP_TOS, 1);
	PROMISE("IP_TTL and IP_TOS are those of a usual packet", number(IPPROTO_IP, IP_TTL) == 64 && tos && *tos == 0);
	const struct sockaddr_in *target = came(IPPROTO_IP, IP_RECVORIGDSTADDR, sizeof *target);
	PROMISE("IP_ORIGDSTADDR has its address and port", target && target->sin_family == AF_INET &&
		target->sin_port == name.sin_port && target->sin_addr.s_addr == name.sin_addr.s_addr);
	NEED(set(from, IPPROTO_IP, IP_TTL, 5) == 0 && set(from, IPPROTO_IP, IP_TOS, 0x28) == 0);
	NEED(plain(from, &name, sizeof name) == 1 && receives(fd, 0) == 1);
	tos = came(IPPROTO_IP, IP_TOS, 1);
	PROMISE("the sender's options are in its packets", number(IPPROTO_IP, IP_TTL) == 5 && tos && *tos == 0x28);
	NEED(sends(from, &name, sizeof name, IPPROTO_IP, IP_TTL, &(int){ 77 }, sizeof(int)) == 1 && receives(fd, 0) == 1);
	PROMISE("a control message goes before IP_TTL", number(IPPROTO_IP, IP_TTL) == 77);
	NEED(sends(from, &name, sizeof name, IPPROTO_IP, IP_TOS, &(int){ 0x10 }, sizeof(int)) == 1 && receives(fd, 0) == 1);
	tos = came(IPPROTO_IP, IP_TOS, 1);
	PROMISE("and before IP_TOS", tos && *tos == 0x10 && number(IPPROTO_IP, IP_TTL) == 5);
	close(fd);
	close(from);
}

static void wishes_v4(void)
{
	int port, fd = bound(AF_INET, &port), from = socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in name = v4("127.0.0.1", port), seen = { 0 };
	struct in_pktinfo info = { .ipi_spec_dst = v4("127.0.0.9", 0).sin_addr };
	socklen_t length = sizeof seen;
	PROMISE("IP_PKTINFO chooses the source", sends(from, &name, sizeof name, IPPROTO_IP, IP_PKTINFO, &info, sizeof info) == 1 &&
		recvfrom(fd, got, sizeof got, 0, (struct sockaddr *)&seen, &length) == 1 && seen.sin_addr.s_addr == info.ipi_spec_dst.s_addr);
	info.ipi_ifindex = 1;
	PROMISE("and the interface", sends(from, &name, sizeof name, IPPROTO_IP, IP_PKTINFO, &info, sizeof info) == 1);
	info.ipi_ifindex = 12345;
	FAILS_WITH("which has to be there", sends(from, &name, sizeof name, IPPROTO_IP, IP_PKTINFO, &info, sizeof info), ENODEV);
	info = (struct in_pktinfo){ .ipi_spec_dst = v4("192.0.2.7", 0).sin_addr };
	/* EINVAL before Linux 6.17. */
	PROMISE("an address of another machine is no source", sends(from, &name, sizeof name, IPPROTO_IP, IP_PKTINFO, &info, sizeof info) == -1 &&
		(errno == EINVAL || errno == ENETUNREACH));
	FAILS_WITH("a cut IP_PKTINFO is refused", sends(from, &name, sizeof name, IPPROTO_IP, IP_PKTINFO, &info, 8), EINVAL);
	FAILS_WITH("a time to live of 0 is refused", sends(from, &name, sizeof name, IPPROTO_IP, IP_TTL, &(int){ 0 }, sizeof(int)), EINVAL);
	FAILS_WITH("an unknown kind is refused", sends(from, &name, sizeof name, IPPROTO_IP, 99, &(int){ 0 }, sizeof(int)), EINVAL);
	PROMISE("a level of another family is passed over", sends(from, &name, sizeof name, IPPROTO_TCP, 99, &(int){ 0 }, sizeof(int)) == 1);
	/* An answer is sent from the address that the request was sent to. */
	NEED(set(fd, IPPROTO_IP, IP_PKTINFO, 1) == 0);
	while (recv(fd, got, sizeof got, MSG_DONTWAIT) >= 0)
		;
	name = v4("127.0.0.5", port);
	NEED(plain(from, &name, sizeof name) == 1);
	struct sockaddr_in asker;
	struct iovec one = { got, sizeof got };
	struct msghdr message = { .msg_name = &asker, .msg_namelen = sizeof asker, .msg_iov = &one, .msg_iovlen = 1,
		.msg_control = beside, .msg_controllen = sizeof beside };
	NEED(recvmsg(fd, &message, 0) == 1);
	message.msg_iov->iov_len = 1;
	PROMISE("IP_PKTINFO can go back as it came", sendmsg(fd, &message, 0) == 1 && (length = sizeof seen) &&
		recvfrom(from, got, sizeof got, 0, (struct sockaddr *)&seen, &length) == 1 && seen.sin_addr.s_addr == name.sin_addr.s_addr);
	close(fd);
	close(from);
}

static void facts_v6(void)
{
	int port, fd = bound(AF_INET6, &port), from = socket(AF_INET6, SOCK_DGRAM, 0), from4 = socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in6 name = v6("::1", port);
	struct sockaddr_in name4 = v4("127.0.0.4", port);
	PROMISE("the facts of version 6 can be asked for", set(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1) == 0 &&
		set(fd, IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1) == 0 && set(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, 1) == 0 &&
		set(fd, IPPROTO_IPV6, IPV6_RECVORIGDSTADDR, 1) == 0 && get(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO) == 1);
	NEED(set(from, IPPROTO_IPV6, IPV6_TCLASS, 0x20) == 0 && set(from, IPPROTO_IPV6, IPV6_UNICAST_HOPS, 9) == 0);
	NEED(plain(from, &name, sizeof name) == 1 && receives(fd, 0) == 1);
	const struct in6_pktinfo *info = came(IPPROTO_IPV6, IPV6_PKTINFO, sizeof *info);
	PROMISE("IPV6_PKTINFO says where it came to", info && info->ipi6_ifindex == 1 && !memcmp(&info->ipi6_addr, &name.sin6_addr, 16));
	PROMISE("the hop limit and the traffic class are the sender's", number(IPPROTO_IPV6, IPV6_HOPLIMIT) == 9 &&
		number(IPPROTO_IPV6, IPV6_TCLASS) == 0x20);
	const struct sockaddr_in6 *target = came(IPPROTO_IPV6, IPV6_RECVORIGDSTADDR, sizeof *target);
	PROMISE("IPV6_ORIGDSTADDR has its address and port", target && target->sin6_port == name.sin6_port &&
		!memcmp(&target->sin6_addr, &name.sin6_addr, 16));
	NEED(sends(from, &name, sizeof name, IPPROTO_IPV6, IPV6_HOPLIMIT, &(int){ 33 }, sizeof(int)) == 1 && receives(fd, 0) == 1);
	PROMISE("a control message goes before IPV6_UNICAST_HOPS", number(IPPROTO_IPV6, IPV6_HOPLIMIT) == 33);
	NEED(sends(from, &name, sizeof name, IPPROTO_IPV6, IPV6_TCLASS, &(int){ 0x44 }, sizeof(int)) == 1 && receives(fd, 0) == 1);
	PROMISE("and before IPV6_TCLASS", number(IPPROTO_IPV6, IPV6_TCLASS) == 0x44);
	FAILS_WITH("a hop limit of 256 is refused", sends(from, &name, sizeof name, IPPROTO_IPV6, IPV6_HOPLIMIT, &(int){ 256 }, sizeof(int)), EINVAL);
	struct in6_pktinfo wish = { .ipi6_addr = name.sin6_addr, .ipi6_ifindex = 1 };
	PROMISE("IPV6_PKTINFO chooses the source", sends(from, &name, sizeof name, IPPROTO_IPV6, IPV6_PKTINFO, &wish, sizeof wish) == 1 && receives(fd, 0) == 1);
	wish.ipi6_addr = v6("2001:db8::7", 0).sin6_addr;
	FAILS_WITH("which is this machine's", sends(from, &name, sizeof name, IPPROTO_IPV6, IPV6_PKTINFO, &wish, sizeof wish), EINVAL);
	PROMISE("a socket of version 6 has the options of version 4", set(fd, IPPROTO_IP, IP_PKTINFO, 1) == 0 && set(fd, IPPROTO_IP, IP_RECVTTL, 1) == 0);
	NEED(plain(from4, &name4, sizeof name4) == 1 && receives(fd, 0) == 1);
	const struct in_pktinfo *info4 = came(IPPROTO_IP, IP_PKTINFO, sizeof *info4);
	PROMISE("a datagram of version 4 brings its facts", info4 && info4->ipi_addr.s_addr == name4.sin_addr.s_addr && number(IPPROTO_IP, IP_TTL) == 64);
	info = came(IPPROTO_IPV6, IPV6_PKTINFO, sizeof *info);
	struct sockaddr_in6 mapped = v6("::ffff:127.0.0.4", 0);
	PROMISE("and its mapped address in IPV6_PKTINFO", info && !memcmp(&info->ipi6_addr, &mapped.sin6_addr, 16));
	PROMISE("but no hop limit of version 6", number(IPPROTO_IPV6, IPV6_HOPLIMIT) == -77);
	close(fd);
	close(from);
	close(from4);
}

static void values(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	unsigned char one = 33, room[4] = { 9, 9, 9, 9 };
	socklen_t length = 1;
	PROMISE("an option of version 4 may be set by a byte", setsockopt(fd, IPPROTO_IP, IP_TTL, &one, 1) == 0 && get(fd, IPPROTO_IP, IP_TTL) == 33);
	PROMISE("and be read as one", getsockopt(fd, IPPROTO_IP, IP_TTL, room, &length) == 0 && length == 1 && room[0] == 33 && room[1] == 9);
	PROMISE("IP_TTL of -1 is the usual one", set(fd, IPPROTO_IP, IP_TTL, -1) == 0 && get(fd, IPPROTO_IP, IP_TTL) == 64);
	PROMISE("IP_TOS is cut to a byte", set(fd, IPPROTO_IP, IP_TOS, 0x1e0) == 0 && get(fd, IPPROTO_IP, IP_TOS) == 0xe0);
	FAILS_WITH("IP_TTL of 0 is refused", set(fd, IPPROTO_IP, IP_TTL, 0), EINVAL);
	FAILS_WITH("a byte is no option of SOL_SOCKET", setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &one, 1), EINVAL);
	close(fd);
}

/* A socket without room counts lost messages. The next message that fits reports the count. */
static void losses(void)
{
	int port, fd = bound(AF_INET, &port), from = socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in name = v4("127.0.0.1", port);
	PROMISE("SO_RXQ_OVFL can be asked for", set(fd, SOL_SOCKET, SO_RXQ_OVFL, 1) == 0 && get(fd, SOL_SOCKET, SO_RXQ_OVFL) == 1);
	for (int i = 0; i < 3000; i++)
		NEED(plain(from, &name, sizeof name) == 1);
	int taken = 0;
	while (receives(fd, MSG_DONTWAIT) == 1)
		taken++;
	NEED(taken > 0 && taken < 3000 && plain(from, &name, sizeof name) == 1 && receives(fd, 0) == 1);
	PROMISE("each loss is counted", number(SOL_SOCKET, SO_RXQ_OVFL) == 3000 - taken);
	close(fd);
	close(from);
}

int main(void)
{
	set_loopback_up();
	times();
	unix_times();
	facts_v4();
	wishes_v4();
	facts_v6();
	values();
	losses();
	return conclude();
}
