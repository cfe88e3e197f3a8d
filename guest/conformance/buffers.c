/* Room for bytes that wait in sockets (SO_SNDBUF, SO_RCVBUF), options that a connection has from
 * its listener, UDP-Lite, and counts of sockets: socket(7), unix(7), tcp(7), udplite(7). */
#include "promise.h"
#include "addresses.h"
#include "loopback.h"

#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/un.h>

/* The largest value that needs no privilege, doubled. */
#define MOST (2 * 212992)
#define CSCOV_SEND 10
#define CSCOV_RECEIVE 11
#define GRO 104
#define V6_FREEBIND 78
#define V6_AUTOFLOWLABEL 70
#define PREFER_BUSY_POLL 69

static char bytes[MOST + 4096];

static int opened(int family, int kind, int protocol)
{
	int fd = socket(family, kind | SOCK_CLOEXEC, protocol);
	NEED(fd >= 0);
	return fd;
}

static void pair(int kind, int ends[2])
{
	NEED(socketpair(AF_UNIX, kind | SOCK_CLOEXEC, 0, ends) == 0);
}

static void close_both(int ends[2])
{
	close(ends[0]);
	close(ends[1]);
}

/* Sends in parts of 1,000 bytes until there is no room. Returns the number of bytes. */
static long filled(int fd)
{
	long sum = 0;
	for (ssize_t count; (count = send(fd, bytes, 1000, MSG_DONTWAIT)) > 0;)
		sum += count;
	NEED(errno == EAGAIN);
	return sum;
}

static long emptied(int fd, long count)
{
	long sum = 0;
	for (ssize_t some; sum < count && (some = recv(fd, bytes, sizeof bytes, 0)) > 0;)
		sum += some;
	return sum;
}

static int is_output(int fd)
{
	struct pollfd wait = { fd, POLLOUT, 0 };
	return poll(&wait, 1, 0) == 1 && wait.revents & POLLOUT;
}

static void values(void)
{
	int fd = opened(AF_INET, SOCK_DGRAM, 0);
	PROMISE("a value is doubled", set(fd, SOL_SOCKET, SO_SNDBUF, 70000) == 0 && get(fd, SOL_SOCKET, SO_SNDBUF) == 140000 &&
		set(fd, SOL_SOCKET, SO_RCVBUF, 70000) == 0 && get(fd, SOL_SOCKET, SO_RCVBUF) == 140000);
	PROMISE("there is a least value", set(fd, SOL_SOCKET, SO_SNDBUF, 0) == 0 && get(fd, SOL_SOCKET, SO_SNDBUF) == 4608 &&
		set(fd, SOL_SOCKET, SO_RCVBUF, 0) == 0 && get(fd, SOL_SOCKET, SO_RCVBUF) == 2304);
	PROMISE("there is a largest value", set(fd, SOL_SOCKET, SO_SNDBUF, 1 << 30) == 0 && get(fd, SOL_SOCKET, SO_SNDBUF) == MOST &&
		set(fd, SOL_SOCKET, SO_RCVBUF, -1) == 0 && get(fd, SOL_SOCKET, SO_RCVBUF) == MOST);
	PROMISE("which the privileged may exceed", set(fd, SOL_SOCKET, SO_RCVBUFFORCE, 1 << 20) == 0 && get(fd, SOL_SOCKET, SO_RCVBUF) == 2 << 20);
	unsigned memory[9];
	socklen_t length = sizeof memory;
	PROMISE("SO_MEMINFO has both", getsockopt(fd, SOL_SOCKET, 55, memory, &length) == 0 && memory[1] == 2 << 20 && memory[3] == MOST);
	close(fd);
	fd = opened(AF_INET, SOCK_STREAM, 0);
	PROMISE("TCP begins with less", get(fd, SOL_SOCKET, SO_SNDBUF) == 16384 && get(fd, SOL_SOCKET, SO_RCVBUF) == 131072);
	close(fd);
}

static void local_streams(void)
{
	int ends[2];
	pair(SOCK_STREAM, ends);
	long usual = filled(ends[0]);
	PROMISE("what was sent arrives", emptied(ends[1], usual) == usual);
	NEED(set(ends[0], SOL_SOCKET, SO_SNDBUF, 8192) == 0);
	long few = filled(ends[0]);
	PROMISE("less room takes fewer bytes", few > 0 && few <= 16384 && few < usual);
	PROMISE("and is no output", !is_output(ends[0]));
	NEED(set(ends[1], SOL_SOCKET, SO_RCVBUF, 100000) == 0);
	FAILS_WITH("the receiver's setting changes nothing", send(ends[0], "x", 1, MSG_DONTWAIT), EAGAIN);
	PROMISE("more room is output", set(ends[0], SOL_SOCKET, SO_SNDBUF, MOST) == 0 && is_output(ends[0]));
	long more = few + filled(ends[0]);
	PROMISE("more room takes more bytes", more > usual && emptied(ends[1], more) == more);
	PROMISE("the other direction has its own", filled(ends[1]) == usual);
	close_both(ends);
	/* A sender that waits learns of more room. */
	pair(SOCK_STREAM, ends);
	NEED(set(ends[0], SOL_SOCKET, SO_SNDBUF, 4096) == 0);
	few = filled(ends[0]);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0)
		_exit(send(ends[0], "last", 4, 0) != 4);
	NEED(COMES_TRUE(task_state(child, child) == 'S'));
	NEED(set(ends[0], SOL_SOCKET, SO_SNDBUF, 100000) == 0);
	int status = -1;
	PROMISE("more room wakes a sender", COMES_TRUE(waitpid(child, &status, WNOHANG) == child) && status == 0);
	close_both(ends);
	/* The setting may come before the connection. */
	struct sockaddr_un name = { .sun_family = AF_UNIX, .sun_path = "\0buffers" };
	int listener = opened(AF_UNIX, SOCK_STREAM, 0);
	NEED(bind(listener, (struct sockaddr *)&name, sizeof name) == 0 && listen(listener, 2) == 0);
	NEED(set(listener, SOL_SOCKET, SO_SNDBUF, 4096) == 0);
	ends[0] = opened(AF_UNIX, SOCK_STREAM, 0);
	NEED(set(ends[0], SOL_SOCKET, SO_SNDBUF, 8192) == 0 && connect(ends[0], (struct sockaddr *)&name, sizeof name) == 0);
	ends[1] = accept(listener, NULL, NULL);
	few = filled(ends[0]);
	PROMISE("a setting from before the connection counts", few > 0 && few <= 16384);
	PROMISE("a connection of AF_UNIX has nothing of its listener", get(ends[1], SOL_SOCKET, SO_SNDBUF) == 212992 && filled(ends[1]) == usual);
	close_both(ends);
	close(listener);
}

static void local_messages(int kind)
{
	int ends[2];
	pair(kind, ends);
	NEED(set(ends[0], SOL_SOCKET, SO_SNDBUF, 8192) == 0);
	FAILS_WITH("a message is no longer than the room", send(ends[0], bytes, 16384, MSG_DONTWAIT), EMSGSIZE);
	PROMISE("one that fits is sent", send(ends[0], bytes, 16384 - 32, MSG_DONTWAIT) == 16384 - 32);
	FAILS_WITH("and leaves no room", send(ends[0], "x", 1, MSG_DONTWAIT), EAGAIN);
	PROMISE("until it is received", recv(ends[1], bytes, sizeof bytes, 0) == 16384 - 32 && send(ends[0], "x", 1, MSG_DONTWAIT) == 1);
	NEED(set(ends[0], SOL_SOCKET, SO_SNDBUF, MOST) == 0 && recv(ends[1], bytes, 1, 0) == 1);
	PROMISE("more room is for longer messages", send(ends[0], bytes, 400000, MSG_DONTWAIT) == 400000 && recv(ends[1], bytes, sizeof bytes, 0) == 400000);
	close_both(ends);
}

static int port_of(int fd)
{
	struct sockaddr_in name;
	socklen_t length = sizeof name;
	NEED(getsockname(fd, (struct sockaddr *)&name, &length) == 0);
	return ntohs(name.sin_port);
}

/* Binds a socket to a free port of 127.0.0.1. */
static struct sockaddr_in bound(int fd)
{
	struct sockaddr_in name = v4("127.0.0.1", 0);
	NEED(bind(fd, (struct sockaddr *)&name, sizeof name) == 0);
	name.sin_port = htons(port_of(fd));
	return name;
}

/* Fills a connection of TCP whose sender and receiver have these settings, if they are not 0. */
static long stream(int sender, int receiver)
{
	int listener = opened(AF_INET, SOCK_STREAM, 0), caller = opened(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in at = bound(listener);
	NEED(!receiver || set(listener, SOL_SOCKET, SO_RCVBUF, receiver) == 0);
	NEED(!sender || set(caller, SOL_SOCKET, SO_SNDBUF, sender) == 0);
	NEED(listen(listener, 2) == 0 && connect(caller, (struct sockaddr *)&at, sizeof at) == 0);
	int served = accept(listener, NULL, NULL);
	NEED(served >= 0 && (!receiver || get(served, SOL_SOCKET, SO_RCVBUF) == 2 * receiver));
	long sum = 0, some;
	while ((some = filled(caller)) > 0) {
		sum += some;
		/* Bytes may be on their way from the sender's room to the receiver's. */
		sleep_ms(20);
	}
	NEED(emptied(served, sum) == sum);
	close(served);
	close(caller);
	close(listener);
	return sum;
}

static void tcp(void)
{
	long usual = stream(0, 0), few = stream(4096, 4096);
	PROMISE("less room takes fewer bytes of TCP", few > 0 && few <= 65536 && few * 2 < usual);
	PROMISE("a larger room at either end takes more", stream(100000, 4096) > few && stream(4096, 100000) > few);
	int listener = opened(AF_INET, SOCK_STREAM, 0), caller = opened(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in at = bound(listener);
	struct linger linger = { 1, 7 };
	struct timeval time = { 5, 0 };
	NEED(set(listener, SOL_SOCKET, SO_KEEPALIVE, 1) == 0 && set(listener, IPPROTO_TCP, TCP_NODELAY, 1) == 0 &&
		set(listener, IPPROTO_TCP, TCP_KEEPIDLE, 77) == 0 && set(listener, SOL_SOCKET, SO_SNDBUF, 50000) == 0 &&
		setsockopt(listener, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0 &&
		setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
	NEED(listen(listener, 2) == 0 && connect(caller, (struct sockaddr *)&at, sizeof at) == 0);
	int served = accept(listener, NULL, NULL);
	linger = (struct linger){ 0 };
	time = (struct timeval){ 0 };
	socklen_t length = sizeof linger, time_length = sizeof time;
	PROMISE("a connection of TCP has its listener's options", get(served, SOL_SOCKET, SO_KEEPALIVE) == 1 && get(served, IPPROTO_TCP, TCP_NODELAY) == 1 &&
		get(served, IPPROTO_TCP, TCP_KEEPIDLE) == 77 && get(served, SOL_SOCKET, SO_SNDBUF) == 100000);
	PROMISE("its times, too", getsockopt(served, SOL_SOCKET, SO_LINGER, &linger, &length) == 0 && linger.l_onoff == 1 && linger.l_linger == 7 &&
		getsockopt(served, SOL_SOCKET, SO_RCVTIMEO, &time, &time_length) == 0 && time.tv_sec == 5);
	PROMISE("the caller has its own", get(caller, SOL_SOCKET, SO_KEEPALIVE) == 0 && get(caller, IPPROTO_TCP, TCP_NODELAY) == 0);
	close(served);
	close(caller);
	close(listener);
}

/* Returns the number of datagrams, of 300, that wait in a socket with this SO_RCVBUF. */
static int datagrams(int receiver)
{
	int to = opened(AF_INET, SOCK_DGRAM, 0), from = opened(AF_INET, SOCK_DGRAM, 0), count = 0;
	struct sockaddr_in at = bound(to);
	NEED(receiver < 0 || set(to, SOL_SOCKET, SO_RCVBUF, receiver) == 0);
	for (int i = 0; i < 300; i++)
		NEED(sendto(from, bytes, 100, 0, (struct sockaddr *)&at, sizeof at) == 100);
	/* The last ones may be on their way. */
	struct timeval soon = { 0, 300000 };
	NEED(setsockopt(to, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon) == 0);
	while (recv(to, bytes, sizeof bytes, 0) == 100)
		count++;
	close(to);
	close(from);
	return count;
}

static void options(void)
{
	int tcp = opened(AF_INET, SOCK_STREAM, 0), udp = opened(AF_INET, SOCK_DGRAM, 0), udp6 = opened(AF_INET6, SOCK_DGRAM, 0);
	int local = opened(AF_UNIX, SOCK_STREAM, 0);
	struct sockaddr_in foreign = v4("192.0.2.1", 0);
	struct sockaddr_in6 foreign6 = v6("2001:db8::1", 0);
	FAILS_WITH("an address of nobody's is refused", bind(udp, (struct sockaddr *)&foreign, sizeof foreign), EADDRNOTAVAIL);
	PROMISE("but for IP_FREEBIND", set(udp, IPPROTO_IP, IP_FREEBIND, 1) == 0 && bind(udp, (struct sockaddr *)&foreign, sizeof foreign) == 0);
	PROMISE("or IPV6_FREEBIND", set(udp6, IPPROTO_IPV6, V6_FREEBIND, 1) == 0 && bind(udp6, (struct sockaddr *)&foreign6, sizeof foreign6) == 0);
	FAILS_WITH("AF_UNIX shares no names", set(local, SOL_SOCKET, SO_REUSEPORT, 1), EOPNOTSUPP);
	PROMISE("and says so", set(local, SOL_SOCKET, SO_REUSEPORT, 0) == 0 && get(local, SOL_SOCKET, SO_REUSEPORT) == 0);
	PROMISE("two bits of the type of service are TCP's", set(tcp, IPPROTO_IP, IP_TOS, 0x2f) == 0 && get(tcp, IPPROTO_IP, IP_TOS) == 0x2c);
	PROMISE("UDP has all", set(udp, IPPROTO_IP, IP_TOS, 0x2f) == 0 && get(udp, IPPROTO_IP, IP_TOS) == 0x2f);
	FAILS_WITH("TCP_FASTOPEN_CONNECT is 0 or 1", set(tcp, IPPROTO_TCP, 30, 2), EINVAL);
	FAILS_WITH("and IP_MULTICAST_ALL", set(udp, IPPROTO_IP, 49, 2), EINVAL);
	FAILS_WITH("and IPV6_MULTICAST_LOOP", set(udp6, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 2), EINVAL);
	PROMISE("flags are kept", set(local, SOL_SOCKET, SO_PASSSEC, 1) == 0 && get(local, SOL_SOCKET, SO_PASSSEC) == 1 &&
		set(udp, SOL_SOCKET, SO_SELECT_ERR_QUEUE, 1) == 0 && get(udp, SOL_SOCKET, SO_SELECT_ERR_QUEUE) == 1 &&
		set(udp, SOL_SOCKET, PREFER_BUSY_POLL, 1) == 0 && get(udp, SOL_SOCKET, PREFER_BUSY_POLL) == 1 &&
		set(udp, IPPROTO_UDP, GRO, 1) == 0 && get(udp, IPPROTO_UDP, GRO) == 1 &&
		set(udp6, IPPROTO_IPV6, IPV6_RECVPATHMTU, 1) == 0 && get(udp6, IPPROTO_IPV6, IPV6_RECVPATHMTU) == 1);
	PROMISE("IPV6_AUTOFLOWLABEL is on at first", get(udp6, IPPROTO_IPV6, V6_AUTOFLOWLABEL) == 1);
	socklen_t length = sizeof bytes;
	PROMISE("packets have no IP_OPTIONS", getsockopt(tcp, IPPROTO_IP, IP_OPTIONS, bytes, &length) == 0 && length == 0);
	PROMISE("which can be said", setsockopt(tcp, IPPROTO_IP, IP_OPTIONS, NULL, 0) == 0);
	close(tcp);
	close(udp);
	close(udp6);
	close(local);
}

/* Returns the number after `word` in the line of a file that begins with `line`; -1 without it. */
static long told(const char *path, const char *line, const char *word)
{
	char text[256];
	long number = -1;
	FILE *file = fopen(path, "r");
	while (file && fgets(text, sizeof text, file)) {
		char *at = strncmp(text, line, strlen(line)) ? NULL : strstr(text, word);
		if (at)
			number = atol(at + strlen(word));
	}
	if (file)
		fclose(file);
	return number;
}

static void lite(void)
{
	int one = opened(AF_INET, SOCK_DGRAM, IPPROTO_UDPLITE), other = opened(AF_INET, SOCK_DGRAM, IPPROTO_UDPLITE);
	int udp = opened(AF_INET, SOCK_DGRAM, 0);
	long before = told("/proc/net/sockstat", "UDPLITE:", "inuse ");
	struct sockaddr_in at = bound(one), from;
	socklen_t length = sizeof from;
	PROMISE("UDP-Lite is a protocol", get(one, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_UDPLITE && get(one, SOL_SOCKET, SO_TYPE) == SOCK_DGRAM);
	PROMISE("its datagrams arrive", sendto(other, "lite", 4, 0, (struct sockaddr *)&at, sizeof at) == 4 &&
		recvfrom(one, bytes, 9, 0, (struct sockaddr *)&from, &length) == 4 && from.sin_port == htons(port_of(other)));
	PROMISE("its ports are its own", bind(udp, (struct sockaddr *)&at, sizeof at) == 0);
	NEED(sendto(udp, "udp", 3, 0, (struct sockaddr *)&at, sizeof at) == 3);
	PROMISE("UDP is not heard", recv(udp, bytes, 9, 0) == 3 && recv(one, bytes, 9, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	PROMISE("a checksum covers all at first", get(one, IPPROTO_UDPLITE, CSCOV_SEND) == 0);
	PROMISE("or the header at least", set(one, IPPROTO_UDPLITE, CSCOV_SEND, 3) == 0 && get(one, IPPROTO_UDPLITE, CSCOV_SEND) == 8 &&
		set(one, IPPROTO_UDPLITE, CSCOV_RECEIVE, 100000) == 0 && get(one, IPPROTO_UDPLITE, CSCOV_RECEIVE) == 65535);
	FAILS_WITH("UDP has no such option", set(udp, IPPROTO_UDPLITE, CSCOV_SEND, 8), ENOPROTOOPT);
	PROMISE("/proc/net counts it", told("/proc/net/sockstat", "UDPLITE:", "inuse ") == before + 2);
	char row[40], line[256];
	int found = 0;
	snprintf(row, sizeof row, " 0100007F:%04X 00000000:0000 07 ", port_of(one));
	FILE *file = fopen("/proc/net/udplite", "r");
	while (file && fgets(line, sizeof line, file))
		found += strstr(line, row) != NULL;
	if (file)
		fclose(file);
	PROMISE("and lists it", found == 1);
	close(one);
	NEED(connect(other, (struct sockaddr *)&at, sizeof at) == 0 && send(other, "x", 1, 0) == 1);
	FAILS_WITH("a port without a socket refuses", send(other, "x", 1, 0), ECONNREFUSED);
	close(other);
	close(udp);
	one = opened(AF_INET6, SOCK_DGRAM, IPPROTO_UDPLITE);
	struct sockaddr_in6 at6 = v6("::1", 0);
	length = sizeof at6;
	NEED(bind(one, (struct sockaddr *)&at6, sizeof at6) == 0 && getsockname(one, (struct sockaddr *)&at6, &length) == 0);
	PROMISE("so it is over version 6", sendto(one, "six", 3, 0, (struct sockaddr *)&at6, sizeof at6) == 3 && recv(one, bytes, 9, 0) == 3);
	close(one);
	FAILS_WITH("a stream is no UDP-Lite", socket(AF_INET, SOCK_STREAM, IPPROTO_UDPLITE), EPROTONOSUPPORT);
}

static void counts(void)
{
	enum { COUNT = 300 };
	int fds[COUNT];
	long before = told("/proc/net/sockstat", "sockets:", "used "), tcp = told("/proc/net/sockstat", "TCP:", "alloc ");
	for (int i = 0; i < COUNT; i++)
		fds[i] = opened(i % 3 ? AF_INET : AF_UNIX, SOCK_STREAM, 0);
	PROMISE("/proc/net/sockstat counts sockets", told("/proc/net/sockstat", "sockets:", "used ") == before + COUNT &&
		told("/proc/net/sockstat", "TCP:", "alloc ") == tcp + COUNT * 2 / 3);
	for (int i = 0; i < COUNT; i++)
		close(fds[i]);
	PROMISE("and those that end", COMES_TRUE(told("/proc/net/sockstat", "sockets:", "used ") == before));
	/* As many events at once as the program has room for. */
	static struct epoll_event events[COUNT];
	int epoll = epoll_create1(EPOLL_CLOEXEC), fresh = 1;
	NEED(epoll >= 0);
	for (int i = 0; i < COUNT; i++) {
		struct epoll_event event = { EPOLLIN, { .u32 = i } };
		fds[i] = eventfd(1, EFD_CLOEXEC);
		NEED(fds[i] >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, fds[i], &event) == 0);
	}
	PROMISE("epoll_wait returns all that is ready", epoll_wait(epoll, events, COUNT, -1) == COUNT);
	char seen[COUNT] = { 0 };
	for (int i = 0; i < COUNT; i++)
		fresh &= !seen[events[i].data.u32]++;
	PROMISE("each once", fresh);
	PROMISE("or as much as there is room for", epoll_wait(epoll, events, 100, -1) == 100 && epoll_wait(epoll, events, COUNT, 0) == COUNT);
	for (int i = 0; i < COUNT; i++)
		close(fds[i]);
	close(epoll);
}

int main(void)
{
	set_loopback_up();
	values();
	local_streams();
	local_messages(SOCK_SEQPACKET);
	local_messages(SOCK_DGRAM);
	tcp();
	int few = datagrams(0), usual = datagrams(-1);
	PROMISE("less room takes fewer datagrams", few >= 1 && few * 4 <= usual);
	options();
	lite();
	counts();
	return conclude();
}
