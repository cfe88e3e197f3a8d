/* TCP and UDP on this machine: ip(7), ipv6(7), tcp(7), udp(7). */
#include "promise.h"
#include "loopback.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/un.h>

union name {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

static socklen_t size_of(const union name *name)
{
	return name->any.sa_family == AF_INET ? sizeof name->v4 : sizeof name->v6;
}

static union name name_of(const char *text, int port)
{
	union name name = { 0 };
	if (inet_pton(AF_INET, text, &name.v4.sin_addr) == 1) {
		name.v4.sin_family = AF_INET;
		name.v4.sin_port = htons(port);
	} else {
		NEED(inet_pton(AF_INET6, text, &name.v6.sin6_addr) == 1);
		name.v6.sin6_family = AF_INET6;
		name.v6.sin6_port = htons(port);
	}
	return name;
}

static int port_of(const union name *name)
{
	return ntohs(name->any.sa_family == AF_INET ? name->v4.sin_port : name->v6.sin6_port);
}

static union name own_name(int fd)
{
	union name name = { 0 };
	socklen_t length = sizeof name;
	NEED(getsockname(fd, &name.any, &length) == 0 && length == size_of(&name));
	return name;
}

static int same_ip(const union name *name, const char *text)
{
	union name other = name_of(text, 0);
	if (name->any.sa_family != other.any.sa_family)
		return 0;
	return name->any.sa_family == AF_INET ? name->v4.sin_addr.s_addr == other.v4.sin_addr.s_addr :
						memcmp(&name->v6.sin6_addr, &other.v6.sin6_addr, 16) == 0;
}

static int bound(const char *ip, int port, int kind)
{
	union name name = name_of(ip, port);
	int fd = socket(name.any.sa_family, kind, 0);
	NEED(fd >= 0);
	if (bind(fd, &name.any, size_of(&name)) == 0)
		return fd;
	int error = errno;
	close(fd);
	errno = error;
	return -1;
}

static int listening(const char *ip, int port, int backlog)
{
	int fd = bound(ip, port, SOCK_STREAM);
	NEED(fd >= 0 && listen(fd, backlog) == 0);
	return fd;
}

static int connect_to(int fd, const char *ip, int port)
{
	union name name = name_of(ip, port);
	return connect(fd, &name.any, size_of(&name));
}

static int option(int fd, int level, int name)
{
	int value = -1;
	socklen_t length = sizeof value;
	return getsockopt(fd, level, name, &value, &length) == 0 && length == sizeof value ? value : -1;
}

static int set_option(int fd, int level, int name, int value)
{
	return setsockopt(fd, level, name, &value, sizeof value);
}

/* A connection: the client's end and the server's. */
static void connected(const char *ip, int pair[2])
{
	union name name = name_of(ip, 0);
	int server = listening(ip, 0, 1), port;
	name = own_name(server);
	port = port_of(&name);
	pair[0] = socket(name.any.sa_family, SOCK_STREAM, 0);
	NEED(pair[0] >= 0 && connect_to(pair[0], ip, port) == 0);
	pair[1] = accept(server, NULL, NULL);
	NEED(pair[1] >= 0);
	close(server);
}

static void a_connection(const char *ip, const char *source)
{
	int server = listening(ip, 0, 5);
	union name at = own_name(server), name;
	socklen_t length = sizeof name;
	PROMISE("a socket without a port gets one", port_of(&at) >= 1024 && same_ip(&at, ip));
	int client = socket(at.any.sa_family, SOCK_STREAM, 0), served;
	NEED(client >= 0 && connect_to(client, source, port_of(&at)) == 0);
	NEED((served = accept(server, &name.any, &length)) >= 0);
	union name own = own_name(client), theirs = own_name(served);
	PROMISE("the client has the loopback address and a port", same_ip(&own, source) && port_of(&own) >= 1024);
	PROMISE("accept names the client", length == size_of(&own) && memcmp(&name, &own, length) == 0);
	PROMISE("the served end has the listener's port", port_of(&theirs) == port_of(&at) && same_ip(&theirs, source));
	length = sizeof name;
	PROMISE("and is the client's peer", getpeername(client, &name.any, &length) == 0 && port_of(&name) == port_of(&at));
	char buffer[32];
	PROMISE("bytes go there", send(client, "question", 8, 0) == 8 && recv(served, buffer, sizeof buffer, 0) == 8 && memcmp(buffer, "question", 8) == 0);
	PROMISE("and back", write(served, "answer", 6) == 6 && read(client, buffer, sizeof buffer) == 6 && memcmp(buffer, "answer", 6) == 0);
	FAILS_WITH("nobody connects twice", connect_to(client, source, port_of(&at)), EISCONN);
	PROMISE("the end of one direction is the end of the file", shutdown(client, SHUT_WR) == 0 && recv(served, buffer, sizeof buffer, 0) == 0);
	PROMISE("the other goes on", send(served, "more", 4, 0) == 4 && recv(client, buffer, sizeof buffer, 0) == 4);
	signal(SIGPIPE, SIG_IGN);
	FAILS_WITH("what was ended sends no more", send(client, "x", 1, MSG_NOSIGNAL), EPIPE);
	close(served);
	PROMISE("the peer's end is the end of the file", recv(client, buffer, sizeof buffer, 0) == 0);
	close(client);
	close(server);
}

static void names_that_cannot_be(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0), taken = listening("127.0.0.1", 0, 1);
	union name at = own_name(taken), other = name_of("192.0.2.1", 80), v6 = name_of("::1", 80);
	NEED(fd >= 0);
	FAILS_WITH("an address of another machine", bind(fd, &other.any, sizeof other.v4), EADDRNOTAVAIL);
	FAILS_WITH("a name that is too short", bind(fd, &at.any, 8), EINVAL);
	FAILS_WITH("a name of another family", bind(fd, &v6.any, sizeof v6.v6), EAFNOSUPPORT);
	FAILS_WITH("a port that is taken", bound("127.0.0.1", port_of(&at), SOCK_STREAM), EADDRINUSE);
	FAILS_WITH("by any address, too", bound("0.0.0.0", port_of(&at), SOCK_STREAM), EADDRINUSE);
	FAILS_WITH("and by any of version 6", bound("::", port_of(&at), SOCK_STREAM), EADDRINUSE);
	int udp = bound("127.0.0.1", port_of(&at), SOCK_DGRAM);
	PROMISE("UDP has ports of its own", udp >= 0);
	int beside = bound("127.0.0.2", port_of(&at), SOCK_STREAM);
	PROMISE("another address has its own, too", beside >= 0);
	PROMISE("nobody binds twice", bind(beside, &at.any, sizeof at.v4) == -1 && errno == EINVAL);
	close(beside);
	close(udp);
	FAILS_WITH("nobody listens there", connect_to(fd, "127.0.0.3", port_of(&at)), ECONNREFUSED);
	close(fd);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	FAILS_WITH("a socket that is not connected receives nothing", recv(fd, &at, 1, 0), ENOTCONN);
	FAILS_WITH("and sends nothing", send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
	socklen_t length = sizeof other;
	FAILS_WITH("and has no peer", getpeername(fd, &other.any, &length), ENOTCONN);
	FAILS_WITH("it is no pair", socketpair(AF_INET, SOCK_STREAM, 0, (int[2]){ 0 }), EOPNOTSUPP);
	FAILS_WITH("datagrams of TCP", socket(AF_INET, SOCK_DGRAM, IPPROTO_TCP), EPROTONOSUPPORT);
	FAILS_WITH("a type that is none", socket(AF_INET, SOCK_SEQPACKET, 0), ESOCKTNOSUPPORT);
	close(fd);
	close(taken);
	fd = bound("127.0.0.1", port_of(&at), SOCK_STREAM);
	PROMISE("a port that was let go of is free", fd >= 0);
	close(fd);
}

/* How many calls wait at a listener; they are ended. */
static int waiting_calls(int listener)
{
	int count = 0, call;
	NEED(fcntl(listener, F_SETFL, O_NONBLOCK) == 0);
	while ((call = accept(listener, NULL, NULL)) >= 0) {
		count++;
		close(call);
	}
	return count;
}

static void datagrams_of_a_shared_port(void)
{
	int sockets[2], counts[2] = {0, 0}, moved = 0;
	union name name = name_of("127.0.0.1", 0);
	for (int i = 0; i < 2; i++) {
		NEED((sockets[i] = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0)) >= 0);
		NEED(set_option(sockets[i], SOL_SOCKET, SO_REUSEPORT, 1) == 0 && bind(sockets[i], &name.any, sizeof name.v4) == 0);
		name = own_name(sockets[i]);
	}
	for (int sender = 0; sender < 48; sender++) {
		int from = socket(AF_INET, SOCK_DGRAM, 0), heard[2] = {0, 0};
		char byte;
		for (int i = 0; i < 4; i++)
			NEED(sendto(from, "x", 1, 0, &name.any, sizeof name.v4) == 1);
		for (int i = 0; i < 2; i++)
			while (recv(sockets[i], &byte, 1, 0) == 1)
				heard[i]++;
		moved += heard[0] > 0 && heard[1] > 0;
		counts[0] += heard[0], counts[1] += heard[1];
		close(from);
	}
	PROMISE("datagrams of many senders are shared", counts[0] > 16 && counts[1] > 16 && counts[0] + counts[1] == 192);
	PROMISE("and those of one come to one socket", moved == 0);
	close(sockets[0]);
	close(sockets[1]);
}

static void ports_that_are_shared(void)
{
	int one = socket(AF_INET, SOCK_STREAM, 0), other = socket(AF_INET, SOCK_STREAM, 0);
	union name name = name_of("127.0.0.1", 0);
	NEED(set_option(one, SOL_SOCKET, SO_REUSEADDR, 1) == 0 && bind(one, &name.any, sizeof name.v4) == 0);
	name = own_name(one);
	FAILS_WITH("both have to want it", bind(other, &name.any, sizeof name.v4), EADDRINUSE);
	NEED(set_option(other, SOL_SOCKET, SO_REUSEADDR, 1) == 0);
	PROMISE("SO_REUSEADDR shares a port where nobody listens", bind(other, &name.any, sizeof name.v4) == 0);
	NEED(listen(one, 1) == 0);
	FAILS_WITH("and one of them listens", listen(other, 1), EADDRINUSE);
	close(one);
	close(other);
	one = socket(AF_INET, SOCK_STREAM, 0), other = socket(AF_INET, SOCK_STREAM, 0);
	NEED(set_option(one, SOL_SOCKET, SO_REUSEPORT, 1) == 0 && set_option(other, SOL_SOCKET, SO_REUSEPORT, 1) == 0);
	name = name_of("127.0.0.1", 0);
	NEED(bind(one, &name.any, sizeof name.v4) == 0);
	name = own_name(one);
	PROMISE("with SO_REUSEPORT several listen", bind(other, &name.any, sizeof name.v4) == 0 && listen(one, 64) == 0 && listen(other, 64) == 0);
	int callers[48];
	for (int i = 0; i < 48; i++)
		NEED((callers[i] = socket(AF_INET, SOCK_STREAM, 0)) >= 0 && connect(callers[i], &name.any, sizeof name.v4) == 0);
	PROMISE("and share the calls", waiting_calls(one) > 4 && waiting_calls(other) > 4);
	for (int i = 0; i < 48; i++)
		close(callers[i]);
	close(one);
	close(other);
	datagrams_of_a_shared_port();
}

static void version_4_through_version_6(void)
{
	int server = listening("::", 0, 2), client = socket(AF_INET, SOCK_STREAM, 0);
	union name at = own_name(server), name;
	socklen_t length = sizeof name;
	NEED(connect_to(client, "127.0.0.1", port_of(&at)) == 0);
	int served = accept(server, &name.any, &length);
	PROMISE("any of version 6 hears version 4", served >= 0 && same_ip(&name, "::ffff:127.0.0.1"));
	close(served);
	close(client);
	close(server);
	server = socket(AF_INET6, SOCK_STREAM, 0);
	at = name_of("::", 0);
	NEED(set_option(server, IPPROTO_IPV6, IPV6_V6ONLY, 1) == 0 && bind(server, &at.any, sizeof at.v6) == 0 && listen(server, 1) == 0);
	at = own_name(server);
	client = socket(AF_INET, SOCK_STREAM, 0);
	FAILS_WITH("with IPV6_V6ONLY it does not", connect_to(client, "127.0.0.1", port_of(&at)), ECONNREFUSED);
	int both = bound("0.0.0.0", port_of(&at), SOCK_STREAM);
	PROMISE("and the port is free for version 4", both >= 0);
	close(both);
	close(client);
	close(server);
}

static void resets(void)
{
	int pair[2];
	char buffer[8];
	connected("127.0.0.1", pair);
	NEED(send(pair[0], "unread", 6, 0) == 6 && send(pair[1], "left", 4, 0) == 4);
	close(pair[1]);
	struct pollfd look = { pair[0], POLLIN | POLLOUT, 0 };
	NEED(poll(&look, 1, 1000) == 1);
	PROMISE("an end with unread bytes is an error for the peer", look.revents & POLLERR);
	ssize_t first = recv(pair[0], buffer, sizeof buffer, 0);
	int error = errno;
	PROMISE("said after the bytes that came, or at once", (first == 4 && recv(pair[0], buffer, 8, 0) == -1 && errno == ECONNRESET) || (first == -1 && error == ECONNRESET));
	close(pair[0]);
	int server = listening("127.0.0.1", 0, 5), client = socket(AF_INET, SOCK_STREAM, 0);
	union name at = own_name(server);
	NEED(connect_to(client, "127.0.0.1", port_of(&at)) == 0);
	close(server);
	NEED(poll(&(struct pollfd){ client, POLLIN, 0 }, 1, 1000) == 1);
	PROMISE("who was never accepted is reset", option(client, SOL_SOCKET, SO_ERROR) == ECONNRESET && option(client, SOL_SOCKET, SO_ERROR) == 0);
	close(client);
}

static void options(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0), udp = socket(AF_INET6, SOCK_DGRAM, 0);
	NEED(fd >= 0 && udp >= 0);
	PROMISE("its family, type and protocol", option(fd, SOL_SOCKET, SO_DOMAIN) == AF_INET && option(fd, SOL_SOCKET, SO_TYPE) == SOCK_STREAM && option(fd, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP);
	PROMISE("of UDP", option(udp, SOL_SOCKET, SO_DOMAIN) == AF_INET6 && option(udp, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_UDP);
	PROMISE("TCP_NODELAY is read as it was set", option(fd, IPPROTO_TCP, TCP_NODELAY) == 0 && set_option(fd, IPPROTO_TCP, TCP_NODELAY, 5) == 0 && option(fd, IPPROTO_TCP, TCP_NODELAY) == 1);
	PROMISE("SO_KEEPALIVE", set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1) == 0 && option(fd, SOL_SOCKET, SO_KEEPALIVE) == 1);
	PROMISE("TCP_KEEPIDLE", option(fd, IPPROTO_TCP, TCP_KEEPIDLE) == 7200 && set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 60) == 0 && option(fd, IPPROTO_TCP, TCP_KEEPIDLE) == 60);
	FAILS_WITH("which is at least a second", set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 0), EINVAL);
	PROMISE("IP_TTL", option(fd, IPPROTO_IP, IP_TTL) == 64 && set_option(fd, IPPROTO_IP, IP_TTL, 9) == 0 && option(fd, IPPROTO_IP, IP_TTL) == 9);
	FAILS_WITH("an option that is none", set_option(fd, IPPROTO_TCP, 999, 1), ENOPROTOOPT);
	FAILS_WITH("TCP's of a UDP socket", set_option(udp, IPPROTO_TCP, TCP_NODELAY, 1), ENOPROTOOPT);
	struct linger linger = { 1, 7 }, read_back = { 0 };
	socklen_t length = sizeof read_back;
	PROMISE("SO_LINGER", setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0 && getsockopt(fd, SOL_SOCKET, SO_LINGER, &read_back, &length) == 0 && length == sizeof linger && read_back.l_onoff == 1 && read_back.l_linger == 7);
	char name[16] = { 0 };
	length = sizeof name;
	PROMISE("TCP_CONGESTION is cubic", getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0 && strcmp(name, "cubic") == 0);
	PROMISE("buffers have a size", option(fd, SOL_SOCKET, SO_SNDBUF) > 0 && option(fd, SOL_SOCKET, SO_RCVBUF) > 0);
	close(fd);
	close(udp);
}

static void datagrams(const char *ip, const char *other_ip)
{
	int server = bound(ip, 0, SOCK_DGRAM);
	union name at = own_name(server), from = { 0 };
	int client = socket(at.any.sa_family, SOCK_DGRAM, 0), stranger = bound(other_ip, 0, SOCK_DGRAM);
	socklen_t length = sizeof from;
	char buffer[16];
	NEED(server >= 0 && client >= 0 && stranger >= 0);
	FAILS_WITH("a datagram to nobody", send(client, "x", 1, 0), EDESTADDRREQ);
	PROMISE("one to a name", sendto(client, "hello", 5, 0, &at.any, size_of(&at)) == 5);
	PROMISE("comes with its sender's", recvfrom(server, buffer, sizeof buffer, 0, &from.any, &length) == 5 && length == size_of(&at) && same_ip(&from, ip));
	PROMISE("which is bound by now", port_of(&from) >= 1024 && ({ union name own = own_name(client); port_of(&own) == port_of(&from); }));
	PROMISE("and answers there", sendto(server, "back", 4, 0, &from.any, size_of(&from)) == 4 && recv(client, buffer, sizeof buffer, 0) == 4);
	PROMISE("what is cut is lost", sendto(client, "0123456789", 10, 0, &at.any, size_of(&at)) == 10 && recv(server, buffer, 4, MSG_TRUNC) == 10 && recv(server, buffer, 4, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	NEED(connect(client, &at.any, size_of(&at)) == 0);
	length = sizeof from;
	PROMISE("a connected one has a peer", getpeername(client, &from.any, &length) == 0 && port_of(&from) == port_of(&at) && send(client, "c", 1, 0) == 1 && recv(server, buffer, 4, 0) == 1);
	union name own = own_name(client);
	NEED(sendto(stranger, "s", 1, 0, &own.any, size_of(&own)) == 1);
	usleep(1000);
	FAILS_WITH("and hears nobody else", recv(client, buffer, sizeof buffer, MSG_DONTWAIT), EAGAIN);
	struct sockaddr nobody = { .sa_family = AF_UNSPEC };
	NEED(connect(client, &nobody, sizeof nobody) == 0);
	own = own_name(client);
	PROMISE("until it is disconnected", send(client, "x", 1, 0) == -1 && errno == EDESTADDRREQ);
	NEED(connect(client, &at.any, size_of(&at)) == 0);
	close(server);
	NEED(send(client, "x", 1, 0) == 1);
	usleep(1000);
	FAILS_WITH("nobody there is an error of the next call", recv(client, buffer, 1, MSG_DONTWAIT), ECONNREFUSED);
	PROMISE("once", recv(client, buffer, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	static char huge[70000];
	FAILS_WITH("a datagram has at most 65,507 bytes", sendto(stranger, huge, 65508 + 20, 0, &at.any, size_of(&at)), EMSGSIZE);
	close(client);
	close(stranger);
}

static void waits(void)
{
	int server = listening("127.0.0.1", 0, 5), client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), served;
	union name at = own_name(server);
	NEED(fcntl(server, F_SETFL, O_NONBLOCK) == 0);
	FAILS_WITH("nobody waits to be accepted", accept(server, NULL, NULL), EAGAIN);
	FAILS_WITH("a connect that may not wait is on its way", connect_to(client, "127.0.0.1", port_of(&at)), EINPROGRESS);
	struct pollfd look = { client, POLLOUT, 0 };
	PROMISE("and can be waited for", poll(&look, 1, 1000) == 1 && look.revents == POLLOUT && option(client, SOL_SOCKET, SO_ERROR) == 0);
	PROMISE("the next one says that it is done", connect_to(client, "127.0.0.1", port_of(&at)) == 0);
	FAILS_WITH("once", connect_to(client, "127.0.0.1", port_of(&at)), EISCONN);
	int epoll = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN | EPOLLRDHUP, .data.fd = server };
	NEED(epoll_ctl(epoll, EPOLL_CTL_ADD, server, &event) == 0);
	PROMISE("epoll tells who listens", epoll_wait(epoll, &event, 1, 1000) == 1 && event.data.fd == server && event.events == EPOLLIN);
	NEED((served = accept(server, NULL, NULL)) >= 0);
	event = (struct epoll_event){ .events = EPOLLIN | EPOLLRDHUP, .data.fd = served };
	NEED(epoll_ctl(epoll, EPOLL_CTL_ADD, served, &event) == 0);
	PROMISE("nothing came", epoll_wait(epoll, &event, 1, 0) == 0);
	NEED(send(client, "x", 1, 0) == 1);
	PROMISE("now there is", epoll_wait(epoll, &event, 1, 1000) == 1 && event.events == EPOLLIN);
	close(client);
	char byte;
	PROMISE("then the end", recv(served, &byte, 1, 0) == 1 && epoll_wait(epoll, &event, 1, 1000) == 1 && event.events == (EPOLLIN | EPOLLRDHUP));
	close(epoll);
	close(served);
	close(server);
	client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	FAILS_WITH("to a port where nobody listens, too", connect_to(client, "127.0.0.1", port_of(&at)), EINPROGRESS);
	look = (struct pollfd){ client, POLLIN | POLLOUT, 0 };
	PROMISE("whose refusal can be waited for", poll(&look, 1, 1000) == 1 && look.revents == (POLLIN | POLLOUT | POLLERR | POLLHUP));
	PROMISE("and is told once", option(client, SOL_SOCKET, SO_ERROR) == ECONNREFUSED && option(client, SOL_SOCKET, SO_ERROR) == 0);
	FAILS_WITH("to the next connect only that it failed", connect_to(client, "127.0.0.1", port_of(&at)), ECONNABORTED);
	FAILS_WITH("or why", ({ connect_to(client, "127.0.0.1", port_of(&at)); connect_to(client, "127.0.0.1", port_of(&at)); }), ECONNREFUSED);
	server = listening("127.0.0.1", 0, 5);
	at = own_name(server);
	FAILS_WITH("it can call another", connect_to(client, "127.0.0.1", port_of(&at)), EINPROGRESS);
	NEED(fcntl(client, F_SETFL, 0) == 0 && connect_to(client, "127.0.0.1", port_of(&at)) == 0 && (served = accept(server, NULL, NULL)) >= 0);
	PROMISE("and is heard and hears", send(client, "x", 1, 0) == 1 && recv(served, &byte, 1, 0) == 1 && send(served, "y", 1, 0) == 1 && recv(client, &byte, 1, 0) == 1 && byte == 'y');
	close(client);
	close(served);
	close(server);
}

static void *accepting(void *argument)
{
	int fd = accept(*(int *)argument, NULL, NULL);
	return (void *)(intptr_t)(fd >= 0 ? 0 : errno);
}

/* shutdown(2) of a socket that listens: the way in which servers wake their accept(2). */
static void ends_of_listening(void)
{
	void *result;
	pthread_t thread;
	int fd = listening("127.0.0.1", 0, 5), other = socket(AF_INET, SOCK_STREAM, 0);
	union name name = own_name(fd);
	NEED(shutdown(fd, SHUT_WR) == 0 && pthread_create(&thread, NULL, accepting, &fd) == 0);
	PROMISE("one that only sends no more still listens", connect(other, &name.any, size_of(&name)) == 0 &&
		pthread_join(thread, &result) == 0 && result == NULL);
	close(other);
	int waiting = socket(AF_INET, SOCK_STREAM, 0);
	NEED(connect(waiting, &name.any, size_of(&name)) == 0 && shutdown(fd, SHUT_RD) == 0);
	FAILS_WITH("shutdown ends listening", accept(fd, NULL, NULL), EINVAL);
	FAILS_WITH("for those who wait", recv(waiting, &result, 1, 0), ECONNRESET);
	close(waiting);
	other = socket(AF_INET, SOCK_STREAM, 0);
	FAILS_WITH("and those who come", connect(other, &name.any, size_of(&name)), ECONNREFUSED);
	close(other);
	struct pollfd look = { fd, POLLIN | POLLOUT, 0 };
	PROMISE("as poll says", poll(&look, 1, 0) == 1 && look.revents == (POLLOUT | POLLHUP));
	NEED(listen(fd, 5) == 0 && pthread_create(&thread, NULL, accepting, &fd) == 0);
	usleep(20000);
	PROMISE("one who waits to accept hears of it", shutdown(fd, SHUT_RDWR) == 0 && pthread_join(thread, &result) == 0 && result == (void *)EINVAL);
	close(fd);

	struct sockaddr_un local = { .sun_family = AF_UNIX };
	socklen_t length = sizeof local;
	fd = socket(AF_UNIX, SOCK_STREAM, 0), other = socket(AF_UNIX, SOCK_STREAM, 0), waiting = socket(AF_UNIX, SOCK_STREAM, 0);
	NEED(bind(fd, (struct sockaddr *)&local, sizeof(sa_family_t)) == 0 && listen(fd, 5) == 0 && getsockname(fd, (struct sockaddr *)&local, &length) == 0);
	NEED(connect(waiting, (struct sockaddr *)&local, length) == 0 && shutdown(fd, SHUT_RD) == 0);
	FAILS_WITH("AF_UNIX: nobody comes", connect(other, (struct sockaddr *)&local, length), ECONNREFUSED);
	int served = accept(fd, NULL, NULL);
	PROMISE("those who came are accepted", served >= 0);
	FAILS_WITH("and nobody else", accept(fd, NULL, NULL), EINVAL);
	look = (struct pollfd){ fd, POLLIN | POLLOUT | POLLRDHUP, 0 };
	PROMISE("which poll says", poll(&look, 1, 0) == 1 && look.revents == (POLLIN | POLLRDHUP));
	close(served);
	close(waiting);
	close(other);
	close(fd);
}

static void *sender(void *argument)
{
	int fd = *(int *)argument;
	static char bytes[1 << 16];
	for (int round = 0; round < 64; round++) {
		memset(bytes, round, sizeof bytes);
		for (size_t done = 0; done < sizeof bytes;) {
			ssize_t count = send(fd, bytes + done, sizeof bytes - done, 0);
			NEED(count > 0);
			done += count;
		}
	}
	shutdown(fd, SHUT_WR);
	return NULL;
}

static void a_long_transfer(void)
{
	int pair[2];
	connected("::1", pair);
	pthread_t thread;
	NEED(pthread_create(&thread, NULL, sender, &pair[0]) == 0);
	static char bytes[50000];
	size_t at = 0;
	int right = 1;
	for (ssize_t count; (count = recv(pair[1], bytes, sizeof bytes, 0)) > 0; at += count)
		for (ssize_t i = 0; i < count; i++)
			right &= (unsigned char)bytes[i] == (at + i) >> 16;
	pthread_join(thread, NULL);
	PROMISE("4 MiB come in order", right && at == 4 << 20);
	close(pair[0]);
	close(pair[1]);
}

static struct tcp_info info_of(int fd)
{
	struct tcp_info info = { 0 };
	socklen_t length = sizeof info;
	NEED(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 && length >= 104);
	return info;
}

static void information(void)
{
	char bytes[8];
	socklen_t length = 8;
	int alone = socket(AF_INET, SOCK_STREAM, 0), server = listening("127.0.0.1", 0, 7), datagrams = socket(AF_INET, SOCK_DGRAM, 0);
	union name name = own_name(server);
	PROMISE("TCP_INFO of a new socket says that it is closed", info_of(alone).tcpi_state == TCP_CLOSE);
	NEED(connect(alone, &name.any, sizeof name.v4) == 0);
	PROMISE("of one that listens, so, and its queue",
		COMES_TRUE(info_of(server).tcpi_unacked == 1) && info_of(server).tcpi_state == TCP_LISTEN && info_of(server).tcpi_sacked == 7);
	int served = accept(server, NULL, NULL);
	PROMISE("of a connection, that it is", info_of(alone).tcpi_state == TCP_ESTABLISHED && info_of(served).tcpi_state == TCP_ESTABLISHED);
	struct tcp_info info = info_of(alone);
	PROMISE("with a window and segments of the loopback device",
		info.tcpi_snd_cwnd >= 10 && info.tcpi_snd_mss > 30000 && info.tcpi_pmtu == 65535 && info.tcpi_advmss == 65483 && info.tcpi_rto >= 200000);
	PROMISE("and nothing lost", info.tcpi_lost == 0 && info.tcpi_total_retrans == 0 && COMES_TRUE(info_of(alone).tcpi_unacked == 0));
	shutdown(alone, SHUT_WR);
	PROMISE("half a connection is told at both ends",
		COMES_TRUE(info_of(alone).tcpi_state == TCP_FIN_WAIT2 && info_of(served).tcpi_state == TCP_CLOSE_WAIT));
	PROMISE("what there is room for is told", getsockopt(alone, IPPROTO_TCP, TCP_INFO, bytes, &length) == 0 && length == 8 && bytes[0] == TCP_FIN_WAIT2);
	FAILS_WITH("it cannot be set", setsockopt(alone, IPPROTO_TCP, TCP_INFO, bytes, 8), ENOPROTOOPT);
	FAILS_WITH("datagrams have none", getsockopt(datagrams, IPPROTO_TCP, TCP_INFO, bytes, &length), EOPNOTSUPP);
	PROMISE("no protocol is above TCP", getsockopt(alone, IPPROTO_TCP, TCP_ULP, bytes, &length) == 0 && length == 0);
	FAILS_WITH("and none that could be", setsockopt(alone, IPPROTO_TCP, TCP_ULP, "what", 5), ENOENT);
	send(served, "x", 1, 0);
	close(alone);
	PROMISE("a reset connection is closed", COMES_TRUE(info_of(served).tcpi_state == TCP_CLOSE));
	close(served);
	close(server);
	close(datagrams);
}

static void ports_of_the_privileged(void)
{
	int status;
	if (geteuid() != 0)
		return;
	IN_CHILD(status, NEED(setuid(1000) == 0); NEED(bound("127.0.0.1", 80, SOCK_STREAM) == -1 && errno == EACCES));
	PROMISE("ports below 1024 are for those who may", status == 0);
	int fd = bound("127.0.0.1", 81, SOCK_STREAM);
	PROMISE("who may gets one", fd >= 0);
	close(fd);
}

int main(void)
{
	set_loopback_up();
	a_connection("127.0.0.1", "127.0.0.1");
	a_connection("0.0.0.0", "127.0.0.1");
	a_connection("::1", "::1");
	names_that_cannot_be();
	ports_that_are_shared();
	version_4_through_version_6();
	resets();
	options();
	datagrams("127.0.0.1", "127.0.0.2");
	datagrams("::1", "::1");
	waits();
	ends_of_listening();
	a_long_transfer();
	information();
	ports_of_the_privileged();
	return conclude();
}
