/* Ends of connections and of their directions, and what poll(2) reports about sockets and about
 * descriptors of events: shutdown(2), tcp(7), udp(7), unix(7), poll(2). */
#include "promise.h"
#include "addresses.h"
#include "loopback.h"

#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/un.h>

#define ALL 0x3fff
#define READ (POLLIN | POLLRDNORM)
#define WRITE (POLLOUT | POLLWRNORM)
#define LOST (READ | WRITE | POLLRDHUP | POLLHUP)

static char buffer[300000];

static int ready(int fd)
{
	struct pollfd look = { fd, ALL, 0 };
	NEED(poll(&look, 1, 0) >= 0);
	return look.revents;
}

/* Whether poll(2) reports exactly these events, now or soon. */
static int shows(int fd, int events)
{
	return COMES_TRUE(ready(fd) == events);
}

/* A connection of TCP: both ends do not wait. */
static void connected(int pair[2])
{
	struct sockaddr_in name = v4("127.0.0.1", 0);
	socklen_t length = sizeof name;
	int server = socket(AF_INET, SOCK_STREAM, 0);
	NEED(bind(server, (struct sockaddr *)&name, length) == 0 && listen(server, 1) == 0);
	NEED(getsockname(server, (struct sockaddr *)&name, &length) == 0);
	pair[0] = socket(AF_INET, SOCK_STREAM, 0);
	NEED(connect(pair[0], (struct sockaddr *)&name, length) == 0);
	NEED((pair[1] = accept(server, NULL, NULL)) >= 0);
	for (int end = 0; end < 2; end++)
		NEED(fcntl(pair[end], F_SETFL, O_NONBLOCK) == 0 && set(pair[end], IPPROTO_TCP, TCP_NODELAY, 1) == 0);
	close(server);
}

static void done(int pair[2])
{
	close(pair[0]);
	close(pair[1]);
}

static int is_nameless(int fd)
{
	struct sockaddr_in name;
	socklen_t length = sizeof name;
	return getpeername(fd, (struct sockaddr *)&name, &length) == -1 && errno == ENOTCONN;
}

static int state(int fd)
{
	struct tcp_info info;
	socklen_t length = sizeof info;
	NEED(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0);
	return info.tcpi_state;
}

static void tcp_that_reads_no_more(void)
{
	int pair[2];
	connected(pair);
	NEED(send(pair[1], "early", 5, 0) == 5 && shows(pair[0], READ | WRITE));
	NEED(shutdown(pair[0], SHUT_RD) == 0);
	PROMISE("SHUT_RD: the end of the stream is there", shows(pair[0], READ | WRITE | POLLRDHUP));
	PROMISE("bytes that waited are read", recv(pair[0], buffer, 3, 0) == 3 && memcmp(buffer, "ear", 3) == 0);
	PROMISE("the peer goes on sending", send(pair[1], "later", 5, MSG_NOSIGNAL) == 5 && shows(pair[1], WRITE));
	PROMISE("and its bytes are read", COMES_TRUE(recv(pair[0], buffer, 9, MSG_PEEK) == 7) && recv(pair[0], buffer, 9, 0) == 7 && memcmp(buffer, "lylater", 7) == 0);
	PROMISE("then the end", recv(pair[0], buffer, 9, 0) == 0);
	PROMISE("the other direction goes on", send(pair[0], "back", 4, 0) == 4 && COMES_TRUE(recv(pair[1], buffer, 9, 0) == 4));
	PROMISE("with the second direction all is over", shutdown(pair[0], SHUT_WR) == 0 && shows(pair[0], LOST) && shows(pair[1], READ | WRITE | POLLRDHUP));
	PROMISE("a send into that is accepted", send(pair[1], "x", 1, 0) == 1);
	PROMISE("and resets both ends", shows(pair[0], LOST | POLLERR) && shows(pair[1], LOST | POLLERR));
	PROMISE("one as a reset, the other as a broken pipe", get(pair[0], SOL_SOCKET, SO_ERROR) == ECONNRESET && get(pair[1], SOL_SOCKET, SO_ERROR) == EPIPE);
	PROMISE("both are closed", state(pair[0]) == TCP_CLOSE && state(pair[1]) == TCP_CLOSE && is_nameless(pair[0]) && is_nameless(pair[1]));
	done(pair);
}

static void tcp_without_a_peer(void)
{
	int pair[2];
	connected(pair);
	close(pair[1]);
	PROMISE("TCP: the peer's end is the end of one direction", shows(pair[0], READ | WRITE | POLLRDHUP) && state(pair[0]) == TCP_CLOSE_WAIT && !is_nameless(pair[0]));
	PROMISE("the first send is accepted", send(pair[0], "a", 1, 0) == 1);
	PROMISE("and answered by a reset", shows(pair[0], LOST | POLLERR));
	PROMISE("which is no receiver's error", recv(pair[0], buffer, 1, 0) == 0);
	FAILS_WITH("but that of the next send", send(pair[0], "a", 1, MSG_NOSIGNAL), EPIPE);
	PROMISE("once", shows(pair[0], LOST) && get(pair[0], SOL_SOCKET, SO_ERROR) == 0);
	FAILS_WITH("and all later ones fail", send(pair[0], "a", 1, MSG_NOSIGNAL), EPIPE);
	FAILS_WITH("even of nothing", send(pair[0], "", 0, MSG_NOSIGNAL), EPIPE);
	PROMISE("it has no peer", is_nameless(pair[0]) && state(pair[0]) == TCP_CLOSE);
	FAILS_WITH("and cannot be shut down", shutdown(pair[0], SHUT_RD), ENOTCONN);
	close(pair[0]);
	connected(pair);
	NEED(send(pair[0], "unread", 6, 0) == 6 && shows(pair[1], READ | WRITE));
	close(pair[1]);
	PROMISE("bytes that the peer left unread are a reset at once", shows(pair[0], LOST | POLLERR));
	FAILS_WITH("which the next send tells", send(pair[0], "a", 1, MSG_NOSIGNAL), ECONNRESET);
	FAILS_WITH("and the second is a broken pipe", send(pair[0], "a", 1, MSG_NOSIGNAL), EPIPE);
	PROMISE("of which no reader hears", recv(pair[0], buffer, 1, 0) == 0 && is_nameless(pair[0]));
	close(pair[0]);
	connected(pair);
	NEED(send(pair[1], "last", 4, 0) == 4);
	close(pair[1]);
	NEED(shows(pair[0], READ | WRITE | POLLRDHUP) && send(pair[0], "a", 1, 0) == 1 && shows(pair[0], LOST | POLLERR));
	PROMISE("the peer's last bytes outlive the reset", recv(pair[0], buffer, 9, 0) == 4 && recv(pair[0], buffer, 9, 0) == 0);
	close(pair[0]);
	connected(pair);
	close(pair[1]);
	NEED(shows(pair[0], READ | WRITE | POLLRDHUP));
	FAILS_WITH("no byte is taken from where none is", send(pair[0], (void *)16, 1, MSG_NOSIGNAL), EFAULT);
	PROMISE("and none is sent", shows(pair[0], READ | WRITE | POLLRDHUP));
	int status;
	IN_CHILD(status, NEED(send(pair[0], "a", 1, 0) == 1 && shows(pair[0], LOST | POLLERR)); send(pair[0], "a", 1, 0));
	PROMISE("SIGPIPE comes with the second send", WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE);
	close(pair[0]);
}

static void tcp_bytes_that_are_dropped(void)
{
	int pair[2];
	connected(pair);
	NEED(send(pair[1], "abcdef", 6, 0) == 6 && shows(pair[0], READ | WRITE));
	PROMISE("MSG_TRUNC drops bytes without a buffer", recv(pair[0], NULL, 2, MSG_TRUNC) == 2);
	buffer[0] = '-';
	PROMISE("with one it stays as it was", recv(pair[0], buffer, 1, MSG_TRUNC) == 1 && buffer[0] == '-');
	PROMISE("a look at them drops none", recv(pair[0], NULL, 100, MSG_TRUNC | MSG_PEEK) == 3);
	PROMISE("the bytes after them come", recv(pair[0], buffer, 9, 0) == 3 && memcmp(buffer, "def", 3) == 0);
	FAILS_WITH("of nothing none is dropped", recv(pair[0], NULL, 9, MSG_TRUNC), EAGAIN);
	done(pair);
}

static void unix_that_reads_no_more(void)
{
	int pair[2], status;
	NEED(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, pair) == 0 && send(pair[1], "one", 3, 0) == 3);
	PROMISE("AF_UNIX: SHUT_RD keeps a datagram that waits", shutdown(pair[0], SHUT_RD) == 0 && shows(pair[0], READ | WRITE | POLLWRBAND | POLLRDHUP) && recv(pair[0], buffer, 9, 0) == 3);
	FAILS_WITH("then there is none", recv(pair[0], buffer, 9, 0), EAGAIN);
	NEED(fcntl(pair[0], F_SETFL, 0) == 0);
	PROMISE("and no wait for one", recv(pair[0], buffer, 9, 0) == 0);
	IN_CHILD(status, _exit(send(pair[1], "two", 3, 0) == -1 && errno == EPIPE ? 7 : 8));
	PROMISE("a sender is refused, without a signal", WIFEXITED(status) && WEXITSTATUS(status) == 7);
	close(pair[0]);
	FAILS_WITH("otherwise than by an end", send(pair[1], "two", 3, 0), ECONNREFUSED);
	close(pair[1]);
	int kinds[] = { SOCK_STREAM, SOCK_SEQPACKET };
	for (int kind = 0; kind < 2; kind++) {
		NEED(socketpair(AF_UNIX, kinds[kind] | SOCK_NONBLOCK, 0, pair) == 0 && send(pair[1], "one", 3, 0) == 3);
		PROMISE("a connection keeps what waits", shutdown(pair[0], SHUT_RD) == 0 && recv(pair[0], buffer, 9, 0) == 3);
		PROMISE("and is at its end then", recv(pair[0], buffer, 9, 0) == 0 && shows(pair[0], READ | WRITE | POLLWRBAND | POLLRDHUP));
		FAILS_WITH("the peer sends no more", send(pair[1], "x", 1, MSG_NOSIGNAL), EPIPE);
		PROMISE("but receives", send(pair[0], "x", 1, 0) == 1 && recv(pair[1], buffer, 9, 0) == 1 && shows(pair[1], WRITE | POLLWRBAND));
		done(pair);
	}
}

static void udp_ends(void)
{
	struct sockaddr_in names[2], nobody;
	socklen_t length = sizeof *names;
	int pair[2], status;
	for (int end = 0; end < 2; end++) {
		names[end] = v4("127.0.0.1", 0);
		pair[end] = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
		NEED(bind(pair[end], (struct sockaddr *)&names[end], length) == 0 && getsockname(pair[end], (struct sockaddr *)&names[end], &length) == 0);
	}
	PROMISE("UDP: poll tells of all bands", shows(pair[0], WRITE | POLLWRBAND));
	FAILS_WITH("without a peer there is nothing to shut down", shutdown(pair[0], SHUT_RD), ENOTCONN);
	PROMISE("and it is", shows(pair[0], READ | WRITE | POLLWRBAND | POLLRDHUP));
	FAILS_WITH("there is still no datagram", recv(pair[0], buffer, 9, 0), EAGAIN);
	PROMISE("until one comes", sendto(pair[1], "one", 3, 0, (struct sockaddr *)&names[0], length) == 3 && COMES_TRUE(recv(pair[0], buffer, 9, 0) == 3));
	NEED(fcntl(pair[0], F_SETFL, 0) == 0);
	PROMISE("and no wait for one", recv(pair[0], buffer, 9, 0) == 0);
	FAILS_WITH("nor a second direction", shutdown(pair[0], SHUT_RDWR), ENOTCONN);
	PROMISE("which ends as well", shows(pair[0], LOST | POLLWRBAND));
	IN_CHILD(status, _exit(sendto(pair[0], "x", 1, 0, (struct sockaddr *)&names[1], length) == -1 && errno == EPIPE ? 7 : 8));
	PROMISE("so nothing is sent, without a signal", WIFEXITED(status) && WEXITSTATUS(status) == 7);
	close(pair[0]);
	pair[0] = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	names[0] = v4("127.0.0.1", 0);
	NEED(bind(pair[0], (struct sockaddr *)&names[0], length) == 0 && getsockname(pair[0], (struct sockaddr *)&names[0], &length) == 0);
	nobody = names[1];
	NEED(connect(pair[0], (struct sockaddr *)&nobody, length) == 0 && sendto(pair[1], "hello", 5, 0, (struct sockaddr *)&names[0], length) == 5);
	NEED(shows(pair[0], READ | WRITE | POLLWRBAND));
	close(pair[1]);
	NEED(send(pair[0], "x", 1, 0) == 1);
	PROMISE("an error is there beside a datagram", shows(pair[0], READ | WRITE | POLLWRBAND | POLLERR));
	FAILS_WITH("and is told before it", recv(pair[0], buffer, 9, 0), ECONNREFUSED);
	PROMISE("which is not lost", recv(pair[0], buffer, 9, 0) == 5);
	PROMISE("a connected one is shut down", shutdown(pair[0], SHUT_RD) == 0);
	close(pair[0]);
}

static void bits_of_events(void)
{
	struct itimerspec soon = { .it_value = { 0, 1 } };
	struct signalfd_siginfo info;
	sigset_t set;
	uint64_t most = UINT64_MAX - 1;
	int pair[2], event = eventfd(0, EFD_NONBLOCK), timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	PROMISE("AF_UNIX: poll tells of all bands", shows(pair[0], WRITE | POLLWRBAND));
	int tcp = socket(AF_INET, SOCK_STREAM, 0);
	PROMISE("TCP has one", shows(tcp, WRITE | POLLHUP));
	PROMISE("an eventfd has none: it can be written", shows(event, POLLOUT));
	PROMISE("and read", write(event, &most, 8) == 8 && shows(event, POLLIN));
	struct pollfd bands = { event, POLLRDNORM | POLLWRNORM | POLLRDBAND | POLLWRBAND, 0 };
	PROMISE("asked for its bands it is never ready", poll(&bands, 1, 0) == 0);
	NEED(timerfd_settime(timer, 0, &soon, NULL) == 0);
	PROMISE("a timerfd has none", shows(timer, POLLIN));
	NEED(sigemptyset(&set) == 0 && sigaddset(&set, SIGUSR1) == 0 && sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	int signals = signalfd(-1, &set, 0);
	NEED(signals >= 0 && kill(getpid(), SIGUSR1) == 0);
	PROMISE("a signalfd has none", shows(signals, POLLIN) && read(signals, &info, sizeof info) == sizeof info && shows(signals, 0));
	int mounts = open("/proc/self/mounts", O_RDONLY);
	PROMISE("the list of mounts cannot be written", mounts >= 0 && shows(mounts, READ));
	close(mounts);
	close(signals);
	close(timer);
	close(event);
	close(tcp);
	done(pair);
}

int main(void)
{
	set_loopback_up();
	tcp_that_reads_no_more();
	tcp_without_a_peer();
	tcp_bytes_that_are_dropped();
	unix_that_reads_no_more();
	udp_ends();
	bits_of_events();
	return conclude();
}
