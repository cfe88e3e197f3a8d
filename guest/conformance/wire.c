/*
 * TCP and UDP to another machine, and from one.
 *
 * wire ADDRESS ECHO CLOSED RESET: port ECHO of the address is an echo server for TCP and UDP. No
 * server listens at CLOSED. The server at RESET accepts, reads one byte and resets the
 * connection. With a fifth argument, a reset may appear as an end of the stream. wire serve
 * PORT: an echo server for many connections, until a connection sends "quit". wire serve-apart
 * PORT: the same with a thread for each connection.
 */
#include "promise.h"
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

static struct sockaddr_in at(const char *address, const char *port)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };
	inet_pton(AF_INET, address, &to.sin_addr);
	return to;
}

static int call(struct sockaddr_in to)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	NEED(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
	return fd;
}

static int error_of(int fd)
{
	int error = -1;
	socklen_t length = sizeof error;
	getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
	return error;
}

/* Sends and receives all bytes at the same time: more than all buffers together can hold. */
static int echoes(int fd, size_t bytes)
{
	static unsigned char out[65536], in[65536];
	size_t sent = 0, got = 0;
	fcntl(fd, F_SETFL, O_NONBLOCK);
	for (int64_t end = now_ms() + 60000; got < bytes && now_ms() < end;) {
		struct pollfd wait = { fd, POLLIN | (sent < bytes ? POLLOUT : 0), 0 };
		poll(&wait, 1, 1000);
		if (wait.revents & POLLOUT) {
			size_t length = bytes - sent < sizeof out ? bytes - sent : sizeof out;
			for (size_t i = 0; i < length; i++)
				out[i] = (sent + i) * 7 + (sent + i) / 251;
			ssize_t count = send(fd, out, length, 0);
			sent += count > 0 ? count : 0;
		}
		if (wait.revents & POLLIN) {
			ssize_t count = recv(fd, in, sizeof in, 0);
			for (ssize_t i = 0; i < count; i++)
				if (in[i] != (unsigned char)((got + i) * 7 + (got + i) / 251))
					return 0;
			if (count == 0)
				return 0;
			got += count > 0 ? count : 0;
		}
	}
	fcntl(fd, F_SETFL, 0);
	return got == bytes;
}

static void calls(struct sockaddr_in echo, struct sockaddr_in closed)
{
	struct sockaddr_in name;
	socklen_t length = sizeof name;
	int fd = call(echo);
	PROMISE("a connection knows its ends", getsockname(fd, (struct sockaddr *)&name, &length) == 0 && name.sin_port != 0 &&
		name.sin_addr.s_addr != htonl(INADDR_LOOPBACK) && name.sin_addr.s_addr != htonl(INADDR_ANY) &&
		getpeername(fd, (struct sockaddr *)&name, &length) == 0 && name.sin_port == echo.sin_port);
	FAILS_WITH("it is connected", connect(fd, (struct sockaddr *)&echo, sizeof echo), EISCONN);
	close(fd);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	FAILS_WITH("a call takes a while", connect(fd, (struct sockaddr *)&echo, sizeof echo), EINPROGRESS);
	struct pollfd wait = { fd, POLLIN | POLLOUT, 0 };
	PROMISE("poll tells when it is answered", poll(&wait, 1, 30000) == 1 && wait.revents == POLLOUT && error_of(fd) == 0);
	FAILS_WITH("nothing came yet", recv(fd, &name, 1, 0), EAGAIN);
	PROMISE("whoever asks again hears it once", connect(fd, (struct sockaddr *)&echo, sizeof echo) == 0);
	FAILS_WITH("then it is connected", connect(fd, (struct sockaddr *)&echo, sizeof echo), EISCONN);
	close(fd);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	FAILS_WITH("nobody listens", connect(fd, (struct sockaddr *)&closed, sizeof closed), ECONNREFUSED);
	FAILS_WITH("so there is no peer", getpeername(fd, (struct sockaddr *)&name, &length), ENOTCONN);
	PROMISE("and the next call may succeed", connect(fd, (struct sockaddr *)&echo, sizeof echo) == 0);
	close(fd);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	/* A refusal may arrive before the call returns, and the call then reports it. So the
	 * call is repeated. */
	for (int i = 0; i < 50 && connect(fd, (struct sockaddr *)&closed, sizeof closed) == -1 && errno == ECONNREFUSED; i++) {
		close(fd);
		fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	}
	wait = (struct pollfd){ fd, POLLIN | POLLOUT, 0 };
	PROMISE("poll tells that it was refused", poll(&wait, 1, 30000) == 1 && wait.revents & POLLERR);
	PROMISE("and that nothing more comes and goes", COMES_TRUE(poll(&wait, 1, 1000) == 1 && wait.revents == (POLLIN | POLLOUT | POLLERR | POLLHUP)));
	PROMISE("and SO_ERROR how, once", error_of(fd) == ECONNREFUSED && error_of(fd) == 0);
	FAILS_WITH("the call is over", connect(fd, (struct sockaddr *)&echo, sizeof echo), ECONNABORTED);
	FAILS_WITH("it can call again", connect(fd, (struct sockaddr *)&echo, sizeof echo), EINPROGRESS);
	close(fd);
}

static void bytes(struct sockaddr_in echo)
{
	char text[64];
	int fd = call(echo), waiting = 0;
	PROMISE("bytes come back", send(fd, "hello", 5, 0) == 5 && recv(fd, text, 5, MSG_WAITALL) == 5 && memcmp(text, "hello", 5) == 0);
	send(fd, "again", 5, 0);
	PROMISE("they can be looked at", recv(fd, text, 5, MSG_PEEK | MSG_WAITALL) == 5 && ioctl(fd, FIONREAD, &waiting) == 0 && waiting == 5);
	PROMISE("and taken", recv(fd, text, 64, 0) == 5 && memcmp(text, "again", 5) == 0);
	PROMISE("megabytes come back whole", echoes(fd, 6000000));
	int epoll = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN | EPOLLET };
	epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
	PROMISE("epoll hears nothing while nothing comes", epoll_wait(epoll, &event, 1, 0) == 0);
	send(fd, "edge", 4, 0);
	PROMISE("and of what comes", epoll_wait(epoll, &event, 1, 30000) == 1 && event.events == EPOLLIN);
	recv(fd, text, 4, MSG_WAITALL);
	close(epoll);
	int file = open("/proc/self/exe", O_RDONLY);
	static unsigned char sent[100000], got[100000];
	NEED(file >= 0 && pread(file, sent, sizeof sent, 0) == sizeof sent);
	off_t from = 0;
	PROMISE("a file is sent", sendfile(fd, file, &from, sizeof sent) == sizeof sent && recv(fd, got, sizeof got, MSG_WAITALL) == sizeof got &&
		memcmp(sent, got, sizeof got) == 0);
	close(file);
	PROMISE("one way ends", send(fd, "last", 4, 0) == 4 && shutdown(fd, SHUT_WR) == 0);
	FAILS_WITH("nothing more is sent", send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
	PROMISE("the other goes on to its end", recv(fd, text, 64, MSG_WAITALL) == 4 && recv(fd, text, 64, 0) == 0);
	close(fd);
}

static void ends(struct sockaddr_in reset, int may_end)
{
	char text[4];
	int fd = call(reset);
	send(fd, "ab", 2, 0);
	ssize_t count = recv(fd, text, 1, 0);
	int error = errno;
	PROMISE("a peer that breaks off is heard", (count == -1 && error == ECONNRESET) || (may_end && count == 0));
	close(fd);
}

static void datagrams(struct sockaddr_in echo)
{
	char text[2000];
	struct sockaddr_in from;
	socklen_t length = sizeof from;
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){ 10, 0 }, sizeof(struct timeval));
	PROMISE("a datagram comes back from whom it was sent to", sendto(fd, "udp", 3, 0, (struct sockaddr *)&echo, sizeof echo) == 3 &&
		recvfrom(fd, text, sizeof text, 0, (struct sockaddr *)&from, &length) == 3 && from.sin_port == echo.sin_port &&
		from.sin_addr.s_addr == echo.sin_addr.s_addr && memcmp(text, "udp", 3) == 0);
	memset(text, 7, sizeof text);
	PROMISE("of as many bytes as a packet has", sendto(fd, text, 1472, 0, (struct sockaddr *)&echo, sizeof echo) == 1472 && recv(fd, text, sizeof text, 0) == 1472);
	PROMISE("an empty one, too", sendto(fd, text, 0, 0, (struct sockaddr *)&echo, sizeof echo) == 0 && recv(fd, text, sizeof text, 0) == 0);
	PROMISE("it can be connected", connect(fd, (struct sockaddr *)&echo, sizeof echo) == 0 && send(fd, "x", 1, 0) == 1 && recv(fd, text, 9, 0) == 1);
	close(fd);
}

static void *echo_one(void *connection)
{
	char buffer[4096];
	int fd = (intptr_t)connection;
	for (ssize_t length; (length = recv(fd, buffer, sizeof buffer, 0)) > 0;)
		if (send(fd, buffer, length, MSG_NOSIGNAL) != length)
			break;
	close(fd);
	return NULL;
}

/* Echoes received bytes, with a thread for each connection, so that a stuck connection does not
 * delay others. */
static int serve_apart(const char *port)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	NEED(bind(listener, (struct sockaddr *)&any, sizeof any) == 0 && listen(listener, 1000) == 0);
	puts("ready");
	fflush(stdout);
	for (;;) {
		pthread_t thread;
		intptr_t fd = accept(listener, NULL, NULL);
		NEED(fd >= 0 && pthread_create(&thread, NULL, echo_one, (void *)fd) == 0);
	}
}

/* Echoes received bytes on any number of connections. */
static int serve(const char *port)
{
	static char buffer[65536];
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };
	struct epoll_event event = { .events = EPOLLIN }, events[64];
	setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 20000, 20000 });
	int listener = socket(AF_INET, SOCK_STREAM, 0), epoll = epoll_create1(0);
	NEED(bind(listener, (struct sockaddr *)&any, sizeof any) == 0 && listen(listener, 1000) == 0);
	event.data.fd = listener;
	epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
	puts("ready");
	fflush(stdout);
	for (long accepted = 0;;) {
		int count = epoll_wait(epoll, events, 64, -1);
		for (int i = 0; i < count; i++) {
			int fd = events[i].data.fd;
			if (fd == listener) {
				event.data.fd = accept(listener, NULL, NULL);
				if (event.data.fd >= 0)
					accepted++, epoll_ctl(epoll, EPOLL_CTL_ADD, event.data.fd, &event);
				continue;
			}
			ssize_t length = recv(fd, buffer, sizeof buffer, 0);
			if (length == 4 && memcmp(buffer, "quit", 4) == 0) {
				printf("accepted %ld\n", accepted);
				return 0;
			}
			if (length <= 0 || send(fd, buffer, length, MSG_NOSIGNAL) != length)
				close(fd);
		}
	}
}

/* A frame of ARP from the caller, as packet(7) shows it after its header. */
struct question {
	struct ethhdr link;
	struct arphdr head;
	unsigned char own_hardware[6], own[4], other_hardware[6], other[4];
} __attribute__((packed));

/* Receives frames until one has this protocol and receiver. */
static ssize_t frame_of(int fd, int protocol, int kind, void *bytes, size_t room)
{
	struct sockaddr_ll from;
	for (int64_t end = now_ms() + 60000; now_ms() < end;) {
		socklen_t length = sizeof from;
		ssize_t count = recvfrom(fd, bytes, room, 0, (struct sockaddr *)&from, &length);
		if (count < 0 || (from.sll_protocol == htons(protocol) && from.sll_pkttype == kind && from.sll_ifindex == (int)if_nametoindex("eth0")))
			return count;
	}
	return -1;
}

static void frames(struct sockaddr_in echo)
{
	int fd = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL)), udp = socket(AF_INET, SOCK_DGRAM, 0);
	struct ifreq device = { .ifr_name = "eth0" };
	NEED(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){ 10, 0 }, sizeof(struct timeval)) == 0);
	NEED(ioctl(fd, SIOCGIFHWADDR, &device) == 0);
	struct question ask = { .link = { .h_proto = htons(ETH_P_ARP) }, .head = { htons(1), htons(ETH_P_IP), 6, 4, htons(ARPOP_REQUEST) } }, answer;
	memset(ask.link.h_dest, 0xff, 6);
	memcpy(ask.link.h_source, device.ifr_hwaddr.sa_data, 6);
	memcpy(ask.own_hardware, device.ifr_hwaddr.sa_data, 6);
	NEED(ioctl(fd, SIOCGIFADDR, &device) == 0);
	memcpy(ask.own, &((struct sockaddr_in *)&device.ifr_addr)->sin_addr, 4);
	memcpy(ask.other, &echo.sin_addr, 4);
	struct sockaddr_ll to = { .sll_family = AF_PACKET, .sll_ifindex = if_nametoindex("eth0") };
	PROMISE("a program asks for a hardware address", sendto(fd, &ask, sizeof ask, 0, (struct sockaddr *)&to, sizeof to) == sizeof ask);
	PROMISE("and sees the answer", frame_of(fd, ETH_P_ARP, PACKET_HOST, &answer, sizeof answer) >= (ssize_t)sizeof answer &&
		answer.head.ar_op == htons(ARPOP_REPLY) && !memcmp(answer.own, ask.other, 4) && !memcmp(answer.link.h_dest, ask.own_hardware, 6));
	unsigned char bytes[2000];
	NEED(sendto(udp, "seen", 4, 0, (struct sockaddr *)&echo, sizeof echo) == 4);
	PROMISE("it sees what the machine sends", frame_of(fd, ETH_P_IP, PACKET_OUTGOING, bytes, sizeof bytes) == 46 && !memcmp(bytes + 42, "seen", 4) &&
		!memcmp(bytes + 6, ask.own_hardware, 6) && !memcmp(bytes, answer.own_hardware, 6));
	PROMISE("and what it receives", frame_of(fd, ETH_P_IP, PACKET_HOST, bytes, sizeof bytes) >= 46 && !memcmp(bytes + 42, "seen", 4));
	PROMISE("which its socket receives, too", recv(udp, bytes, sizeof bytes, 0) == 4);
	close(fd);
	close(udp);
}

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "serve") == 0)
		return serve(argv[2]);
	if (argc == 3 && strcmp(argv[1], "serve-apart") == 0)
		return serve_apart(argv[2]);
	NEED(argc >= 5);
	struct sockaddr_in echo = at(argv[1], argv[2]), closed = at(argv[1], argv[3]), reset = at(argv[1], argv[4]);
	calls(echo, closed);
	bytes(echo);
	ends(reset, argc > 5);
	datagrams(echo);
	frames(echo);
	return conclude();
}
