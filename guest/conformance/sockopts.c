/* Options of sockets that have an effect or return information: socket(7), ip(7), ipv6(7),
 * tcp(7). */
#include "promise.h"
#include "addresses.h"
#include "loopback.h"

#include <grp.h>
#include <netinet/tcp.h>
#include <sys/un.h>

#ifndef SO_BINDTOIFINDEX
#define SO_BINDTOIFINDEX 62
#endif
#ifndef TCP_INQ
#define TCP_INQ 36
#endif
#ifndef TCP_TIMESTAMP
#define TCP_TIMESTAMP 24
#endif
#ifndef TCP_CC_INFO
#define TCP_CC_INFO 26
#endif
#define IPV6_PATH_MTU 24

static char got[65536];

static int opened(int family, int kind)
{
	int fd = socket(family, kind | SOCK_CLOEXEC, 0);
	NEED(fd >= 0);
	return fd;
}

static int port_of(int fd)
{
	struct sockaddr_in name;
	socklen_t length = sizeof name;
	NEED(getsockname(fd, (struct sockaddr *)&name, &length) == 0);
	return ntohs(name.sin_port);
}

/* The two ends of a connection of TCP. */
static void connected(int ends[2])
{
	struct sockaddr_in name = v4("127.0.0.1", 0);
	int listener = opened(AF_INET, SOCK_STREAM);
	NEED(bind(listener, (struct sockaddr *)&name, sizeof name) == 0 && listen(listener, 1) == 0);
	name.sin_port = htons(port_of(listener));
	ends[0] = opened(AF_INET, SOCK_STREAM);
	NEED(connect(ends[0], (struct sockaddr *)&name, sizeof name) == 0);
	ends[1] = accept(listener, NULL, NULL);
	NEED(ends[1] >= 0);
	close(listener);
}

static int is_input(int fd)
{
	struct pollfd wait = { fd, POLLIN, 0 };
	return poll(&wait, 1, 0) == 1 && wait.revents & POLLIN;
}

static void devices(void)
{
	char name[16];
	socklen_t length = sizeof name;
	int fd = opened(AF_INET, SOCK_DGRAM), from = opened(AF_INET, SOCK_DGRAM);
	PROMISE("a socket is bound to no device at first", getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &length) == 0 && length == 0 &&
		get(fd, SOL_SOCKET, SO_BINDTOIFINDEX) == 0);
	FAILS_WITH("a device that is not there is refused", setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "nope", 4), ENODEV);
	PROMISE("SO_BINDTODEVICE takes a name", setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo", 2) == 0 && get(fd, SOL_SOCKET, SO_BINDTOIFINDEX) == 1);
	length = sizeof name;
	PROMISE("and gives it", getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &length) == 0 && length == 3 && !strcmp(name, "lo"));
	length = 4;
	FAILS_WITH("in no less room than the longest has", getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &length), EINVAL);
	FAILS_WITH("a negative number is refused", set(fd, SOL_SOCKET, SO_BINDTOIFINDEX, -1), EINVAL);
	struct sockaddr_in to = v4("127.0.0.1", 0);
	NEED(bind(fd, (struct sockaddr *)&to, sizeof to) == 0);
	to.sin_port = htons(port_of(fd));
	PROMISE("packets between local sockets come by lo", sendto(from, "x", 1, 0, (struct sockaddr *)&to, sizeof to) == 1 && recv(fd, got, 9, 0) == 1);
	PROMISE("and leave by it", set(from, SOL_SOCKET, SO_BINDTOIFINDEX, 1) == 0 &&
		sendto(from, "x", 1, 0, (struct sockaddr *)&to, sizeof to) == 1 && recv(fd, got, 9, 0) == 1);
	/* No packet arrives from another device, whether it exists or not. */
	NEED(set(fd, SOL_SOCKET, SO_BINDTOIFINDEX, 4711) == 0);
	NEED(sendto(from, "x", 1, 0, (struct sockaddr *)&to, sizeof to) == 1);
	FAILS_WITH("a socket of another device does not hear them", recv(fd, got, 9, MSG_DONTWAIT), EAGAIN);
	int other = opened(AF_INET, SOCK_DGRAM);
	NEED(set(other, SOL_SOCKET, SO_BINDTOIFINDEX, 1) == 0);
	PROMISE("sockets of two devices have one port", bind(other, (struct sockaddr *)&to, sizeof to) == 0 &&
		sendto(from, "y", 1, 0, (struct sockaddr *)&to, sizeof to) == 1 && recv(other, got, 9, 0) == 1);
	PROMISE("the binding ends with an empty name", setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "", 0) == 0 && get(fd, SOL_SOCKET, SO_BINDTOIFINDEX) == 0);
	close(other);
	int status;
	IN_CHILD(status, {
		NEED(setgid(1000) == 0 && setuid(1000) == 0);
		int own = opened(AF_INET, SOCK_DGRAM);
		_exit(setsockopt(own, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3) != 0 ? 1 :
			      setsockopt(own, SOL_SOCKET, SO_BINDTODEVICE, "", 0) != -1 || errno != EPERM ? 2 : 0);
	});
	PROMISE("without capabilities a socket is bound once", WIFEXITED(status) && WEXITSTATUS(status) == 0);
	int listener = opened(AF_INET, SOCK_STREAM), caller = opened(AF_INET, SOCK_STREAM);
	to = v4("127.0.0.1", 0);
	NEED(set(listener, SOL_SOCKET, SO_BINDTOIFINDEX, 1) == 0 && bind(listener, (struct sockaddr *)&to, sizeof to) == 0 && listen(listener, 1) == 0);
	to.sin_port = htons(port_of(listener));
	NEED(connect(caller, (struct sockaddr *)&to, sizeof to) == 0);
	int served = accept(listener, NULL, NULL);
	PROMISE("a connection has its listener's device", get(served, SOL_SOCKET, SO_BINDTOIFINDEX) == 1);
	NEED(set(listener, SOL_SOCKET, SO_BINDTOIFINDEX, 4711) == 0);
	close(caller);
	caller = opened(AF_INET, SOCK_STREAM);
	FAILS_WITH("a listener of another device is not found", connect(caller, (struct sockaddr *)&to, sizeof to), ECONNREFUSED);
	close(served);
	close(caller);
	close(listener);
	close(from);
	close(fd);
}

/* SO_RCVLOWAT of a stream whose other end is `from`. */
static void least(int fd, int from, int is_tcp)
{
	struct timeval soon = { 0, 200000 };
	PROMISE("SO_RCVLOWAT is a byte at first", get(fd, SOL_SOCKET, SO_RCVLOWAT) == 1);
	PROMISE("0 stands for it, too", set(fd, SOL_SOCKET, SO_RCVLOWAT, 0) == 0 && get(fd, SOL_SOCKET, SO_RCVLOWAT) == 1);
	NEED(set(fd, SOL_SOCKET, SO_RCVLOWAT, 10) == 0 && get(fd, SOL_SOCKET, SO_RCVLOWAT) == 10);
	NEED(send(from, "abc", 3, 0) == 3);
	sleep_ms(20);
	PROMISE("fewer bytes are input for AF_UNIX only", is_input(fd) == !is_tcp);
	PROMISE("who does not wait gets them all the same", recv(fd, got, 100, MSG_DONTWAIT) == 3);
	NEED(send(from, "abc", 3, 0) == 3);
	NEED(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon) == 0);
	int64_t before = now_ms();
	PROMISE("a receive waits for more until its time is over", recv(fd, got, 100, 0) == 3 && now_ms() - before >= 190);
	soon = (struct timeval){ 0 };
	NEED(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon) == 0);
	NEED(send(from, "abc", 3, 0) == 3);
	PROMISE("a receive of less room does not wait for more", recv(fd, got, 2, 0) == 2 && recv(fd, got, 1, 0) == 1);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		sleep_ms(30);
		send(from, "defg", 4, 0);
		sleep_ms(30);
		send(from, "hijklm", 6, 0);
		_exit(0);
	}
	PROMISE("a receive waits until there are enough", recv(fd, got, 100, 0) == 10);
	waitpid(child, NULL, 0);
	NEED(send(from, "0123456789", 10, 0) == 10);
	PROMISE("enough bytes are input", COMES_TRUE(is_input(fd)));
	NEED(recv(fd, got, 100, 0) == 10 && send(from, "z", 1, 0) == 1 && shutdown(from, SHUT_WR) == 0);
	PROMISE("nothing is waited for at the end", COMES_TRUE(is_input(fd)) && recv(fd, got, 100, 0) == 1 && recv(fd, got, 100, 0) == 0);
}

static void facts(void)
{
	int ends[2], udp = opened(AF_INET, SOCK_DGRAM), udp6 = opened(AF_INET6, SOCK_DGRAM);
	uint64_t cookies[2] = { 0 };
	unsigned memory[9];
	socklen_t length = 8;
	connected(ends);
	for (int i = 0; i < 2; i++)
		NEED(getsockopt(ends[i], SOL_SOCKET, SO_COOKIE, &cookies[i], &length) == 0 && length == 8);
	PROMISE("each socket has its cookie", cookies[0] && cookies[1] && cookies[0] != cookies[1]);
	length = 4;
	FAILS_WITH("which has eight bytes", getsockopt(udp, SOL_SOCKET, SO_COOKIE, cookies, &length), EINVAL);
	length = sizeof memory;
	PROMISE("SO_MEMINFO has nine numbers", getsockopt(udp, SOL_SOCKET, SO_MEMINFO, memory, &length) == 0 && length == sizeof memory &&
		memory[0] == 0 && memory[1] == (unsigned)get(udp, SOL_SOCKET, SO_RCVBUF) && memory[3] == (unsigned)get(udp, SOL_SOCKET, SO_SNDBUF) && memory[8] == 0);
	NEED(send(ends[0], "x", 1, 0) == 1 && COMES_TRUE(is_input(ends[1])));
	length = sizeof memory;
	PROMISE("and counts what waits", getsockopt(ends[1], SOL_SOCKET, SO_MEMINFO, memory, &length) == 0 && memory[0] > 0);
	PROMISE("SO_SNDLOWAT is read only", get(udp, SOL_SOCKET, SO_SNDLOWAT) == 1 && set(udp, SOL_SOCKET, SO_SNDLOWAT, 1) == -1 && errno == ENOPROTOOPT);
	FAILS_WITH("an unconnected socket has no path", getsockopt(udp, IPPROTO_IP, IP_MTU, got, &length), ENOTCONN);
	struct sockaddr_in to = v4("127.0.0.1", 9);
	struct sockaddr_in6 to6 = { .sin6_family = AF_INET6, .sin6_port = htons(9), .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	NEED(connect(udp, (struct sockaddr *)&to, sizeof to) == 0 && connect(udp6, (struct sockaddr *)&to6, sizeof to6) == 0);
	PROMISE("IP_MTU is that of lo", get(udp, IPPROTO_IP, IP_MTU) == 65535 && get(ends[0], IPPROTO_IP, IP_MTU) == 65535);
	PROMISE("and so is IPV6_MTU", get(udp6, IPPROTO_IPV6, IPV6_PATH_MTU) == 65536);
	FAILS_WITH("IP_MTU cannot be set", set(udp, IPPROTO_IP, IP_MTU, 1500), ENOPROTOOPT);
	FAILS_WITH("a path of version 6 takes 1280 bytes", set(udp6, IPPROTO_IPV6, IPV6_PATH_MTU, 1000), EINVAL);
	int first = get(ends[0], IPPROTO_TCP, TCP_TIMESTAMP);
	sleep_ms(30);
	int passed = get(ends[0], IPPROTO_TCP, TCP_TIMESTAMP) - first;
	PROMISE("TCP_TIMESTAMP counts milliseconds", passed >= 20 && passed < 60000);
	FAILS_WITH("which is not set but in repair", set(ends[0], IPPROTO_TCP, TCP_TIMESTAMP, 1), EPERM);
	length = sizeof got;
	PROMISE("TCP_CC_INFO is there", getsockopt(ends[0], IPPROTO_TCP, TCP_CC_INFO, got, &length) == 0 && length <= 20);
	close(ends[0]);
	close(ends[1]);
	close(udp);
	close(udp6);
}

static void groups(void)
{
	int pair[2], status;
	gid_t list[3] = { 5, 70, 900 }, seen[8];
	socklen_t length = sizeof seen;
	int udp = opened(AF_INET, SOCK_DGRAM);
	FAILS_WITH("a socket without peer has no groups of one", getsockopt(udp, SOL_SOCKET, SO_PEERGROUPS, seen, &length), ENODATA);
	close(udp);
	IN_CHILD(status, {
		NEED(setgroups(3, list) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && setgroups(0, NULL) == 0);
		length = sizeof seen;
		int is_right = getsockopt(pair[0], SOL_SOCKET, SO_PEERGROUPS, seen, &length) == 0 && length == sizeof list && !memcmp(seen, list, sizeof list);
		length = 4;
		_exit(!is_right ? 1 : getsockopt(pair[0], SOL_SOCKET, SO_PEERGROUPS, seen, &length) != -1 || errno != ERANGE ? 2 : length != sizeof list ? 3 : 0);
	});
	PROMISE("SO_PEERGROUPS has the groups of the peer at that time", WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void settings(void)
{
	int tcp = opened(AF_INET, SOCK_STREAM), udp = opened(AF_INET, SOCK_DGRAM), udp6 = opened(AF_INET6, SOCK_DGRAM), local = opened(AF_UNIX, SOCK_STREAM);
	PROMISE("SO_INCOMING_CPU is none at first", get(tcp, SOL_SOCKET, SO_INCOMING_CPU) == -1 && set(tcp, SOL_SOCKET, SO_INCOMING_CPU, 0) == 0 && get(tcp, SOL_SOCKET, SO_INCOMING_CPU) == 0);
	PROMISE("SO_BUSY_POLL is remembered", set(udp, SOL_SOCKET, SO_BUSY_POLL, 50) == 0 && get(udp, SOL_SOCKET, SO_BUSY_POLL) == 50);
	FAILS_WITH("and not negative", set(udp, SOL_SOCKET, SO_BUSY_POLL, -1), EINVAL);
	PROMISE("SO_MAX_PACING_RATE is without bound at first", get(tcp, SOL_SOCKET, SO_MAX_PACING_RATE) == -1 && set(tcp, SOL_SOCKET, SO_MAX_PACING_RATE, 1000) == 0 &&
		get(tcp, SOL_SOCKET, SO_MAX_PACING_RATE) == 1000);
	PROMISE("SO_NO_CHECK is a flag", get(udp, SOL_SOCKET, SO_NO_CHECK) == 0 && set(udp, SOL_SOCKET, SO_NO_CHECK, 5) == 0 && get(udp, SOL_SOCKET, SO_NO_CHECK) == 1);
	PROMISE("SO_ZEROCOPY is off", get(tcp, SOL_SOCKET, SO_ZEROCOPY) == 0);
	FAILS_WITH("AF_UNIX has no SO_ZEROCOPY", set(local, SOL_SOCKET, SO_ZEROCOPY, 1), EOPNOTSUPP);
	PROMISE("IPV6_DONTFRAG is a flag", set(udp6, IPPROTO_IPV6, IPV6_DONTFRAG, 2) == 0 && get(udp6, IPPROTO_IPV6, IPV6_DONTFRAG) == 1);
	PROMISE("IP_TRANSPARENT is for the privileged", set(udp, IPPROTO_IP, IP_TRANSPARENT, 1) == 0 && get(udp, IPPROTO_IP, IP_TRANSPARENT) == 1);
	int status;
	IN_CHILD(status, {
		NEED(setgid(1000) == 0 && setuid(1000) == 0);
		_exit(set(tcp, IPPROTO_IP, IP_TRANSPARENT, 1) != -1 || errno != EPERM ? 1 : 0);
	});
	PROMISE("and for nobody else", WIFEXITED(status) && WEXITSTATUS(status) == 0);
	FAILS_WITH("AF_UNIX has no level but SOL_SOCKET", set(local, IPPROTO_TCP, TCP_NODELAY, 1), EOPNOTSUPP);
	PROMISE("to read, too", get(local, IPPROTO_TCP, TCP_NODELAY) == -77 && errno == EOPNOTSUPP);
	FAILS_WITH("UDP has not that of TCP", set(udp, IPPROTO_TCP, TCP_NODELAY, 1), ENOPROTOOPT);
	PROMISE("to read, version 4 says it so", get(udp, IPPROTO_TCP, TCP_NODELAY) == -77 && errno == EOPNOTSUPP);
	PROMISE("and version 6 so", get(udp6, IPPROTO_TCP, TCP_NODELAY) == -77 && errno == ENOPROTOOPT);
	close(tcp);
	close(udp);
	close(udp6);
	close(local);
}

static void left(void)
{
	int ends[2];
	connected(ends);
	FAILS_WITH("TCP_INQ is 0 or 1", set(ends[1], IPPROTO_TCP, TCP_INQ, 2), EINVAL);
	PROMISE("TCP_INQ can be asked for", get(ends[1], IPPROTO_TCP, TCP_INQ) == 0 && set(ends[1], IPPROTO_TCP, TCP_INQ, 1) == 0 && get(ends[1], IPPROTO_TCP, TCP_INQ) == 1);
	NEED(send(ends[0], got, 1000, 0) == 1000 && COMES_TRUE(recv(ends[1], got, sizeof got, MSG_PEEK) == 1000));
	union {
		struct cmsghdr head;
		char room[64];
	} beside;
	struct iovec one = { got, 300 };
	struct msghdr message = { .msg_iov = &one, .msg_iovlen = 1, .msg_control = &beside, .msg_controllen = sizeof beside };
	NEED(recvmsg(ends[1], &message, 0) == 300);
	int *bytes = (int *)CMSG_DATA(&beside.head);
	PROMISE("a receive says what is left", message.msg_controllen >= CMSG_LEN(4) && beside.head.cmsg_level == IPPROTO_TCP &&
		beside.head.cmsg_type == TCP_INQ && *bytes == 700);
	close(ends[0]);
	close(ends[1]);
}

int main(void)
{
	int ends[2];
	set_loopback_up();
	devices();
	connected(ends);
	least(ends[0], ends[1], 1);
	close(ends[0]);
	close(ends[1]);
	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	least(ends[0], ends[1], 0);
	close(ends[0]);
	close(ends[1]);
	facts();
	groups();
	settings();
	left();
	return conclude();
}
