/* UDP datagrams out of several sends, and several datagrams out of one send: udp(7). */
#include "promise.h"
#include "addresses.h"
#include "loopback.h"

#include <netinet/udp.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

static char buffer[70000];
static struct sockaddr_in to, other;
static int out, in, aside;

static int bound(struct sockaddr_in *name)
{
	socklen_t length = sizeof *name;
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	*name = v4("127.0.0.1", 0);
	NEED(bind(fd, (struct sockaddr *)name, length) == 0 && getsockname(fd, (struct sockaddr *)name, &length) == 0);
	return fd;
}

static ssize_t sent(const char *text, int flags)
{
	return sendto(out, text, strlen(text), flags, (struct sockaddr *)&to, sizeof to);
}

/* Whether the next datagram is this one. */
static int came(const char *text)
{
	struct pollfd look = { in, POLLIN, 0 };
	return poll(&look, 1, 60000) == 1 && recv(in, buffer, sizeof buffer, 0) == (ssize_t)strlen(text) && memcmp(buffer, text, strlen(text)) == 0;
}

static int none(int fd)
{
	sleep_ms(2);
	return recv(fd, buffer, sizeof buffer, MSG_DONTWAIT) == -1 && errno == EAGAIN;
}

static void parts_of_a_datagram(void)
{
	PROMISE("MSG_MORE sends nothing yet", sent("one ", MSG_MORE) == 4 && none(in));
	PROMISE("nor a second part", sent("two ", MSG_MORE) == 4 && none(in));
	PROMISE("the last part sends one datagram", sent("three", 0) == 5 && came("one two three") && none(in));
	NEED(sent("here", MSG_MORE) == 4);
	PROMISE("the first part chose where it goes", sendto(out, "!", 1, 0, (struct sockaddr *)&other, sizeof other) == 1 && came("here!") && none(aside));
	NEED(sent("no address ", MSG_MORE) == 11);
	PROMISE("so later parts need no address", send(out, "needed", 6, 0) == 6 && came("no address needed"));
	FAILS_WITH("but the first does", send(out, "x", 1, MSG_MORE), EDESTADDRREQ);
	PROMISE("UDP_CORK holds parts back", get(out, IPPROTO_UDP, UDP_CORK) == 0 && set(out, IPPROTO_UDP, UDP_CORK, 7) == 0 && get(out, IPPROTO_UDP, UDP_CORK) == 1 && sent("a", 0) == 1 && write(out, "b", 1) == 1 && none(in));
	PROMISE("until it is gone", set(out, IPPROTO_UDP, UDP_CORK, 0) == 0 && came("ab") && none(in));
	PROMISE("then sends are whole again", sent("c", 0) == 1 && came("c"));
	FAILS_WITH("its value is a number", setsockopt(out, IPPROTO_UDP, UDP_CORK, "x", 1), EINVAL);
	memset(buffer, 'x', sizeof buffer);
	NEED(sendto(out, buffer, 65000, MSG_MORE, (struct sockaddr *)&to, sizeof to) == 65000);
	FAILS_WITH("a datagram has at most 65,507 bytes", sendto(out, buffer, 508, 0, (struct sockaddr *)&to, sizeof to), EMSGSIZE);
	PROMISE("which drops its first part", sent("next", 0) == 4 && came("next") && none(in));
	NEED(sent("lost", MSG_MORE) == 4);
	FAILS_WITH("so does a part that is nowhere", sendto(out, (void *)16, 8, 0, (struct sockaddr *)&to, sizeof to), EFAULT);
	PROMISE("and the next one is whole", sent("whole", 0) == 5 && came("whole") && none(in));
	NEED(sent("dropped", MSG_MORE) == 7);
	close(out);
	out = socket(AF_INET, SOCK_DGRAM, 0);
	PROMISE("what is begun ends with its socket", out >= 0 && none(in));
}

static ssize_t with_segment(const char *text, int bytes, int flags, int length)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} beside = { { CMSG_LEN(length), IPPROTO_UDP, UDP_SEGMENT } };
	uint16_t number = bytes;
	struct iovec one = { (void *)text, strlen(text) };
	struct msghdr message = { .msg_name = &to, .msg_namelen = sizeof to, .msg_iov = &one, .msg_iovlen = 1, .msg_control = &beside, .msg_controllen = CMSG_SPACE(length) };
	memcpy(CMSG_DATA(&beside.head), &number, sizeof number);
	return sendmsg(out, &message, flags);
}

static void datagrams_of_a_send(void)
{
	PROMISE("UDP_SEGMENT cuts a send into datagrams", get(out, IPPROTO_UDP, UDP_SEGMENT) == 0 && set(out, IPPROTO_UDP, UDP_SEGMENT, 3) == 0 && get(out, IPPROTO_UDP, UDP_SEGMENT) == 3 && sent("abcdefgh", 0) == 8 && came("abc") && came("def") && came("gh") && none(in));
	PROMISE("a message has its own size", with_segment("abcdef", 4, 0, 2) == 6 && came("abcd") && came("ef"));
	PROMISE("or none", with_segment("abcdef", 0, 0, 2) == 6 && came("abcdef"));
	PROMISE("a short send is one", sent("ab", 0) == 2 && came("ab") && none(in));
	FAILS_WITH("a size has two bytes", with_segment("abcdef", 4, 0, 4), EINVAL);
	PROMISE("parts are cut as a whole", sent("abcd", MSG_MORE) == 4 && sent("efg", 0) == 3 && came("abc") && came("def") && came("g"));
	PROMISE("by the size of the first", with_segment("ab", 2, MSG_MORE, 2) == 2 && sent("cd", 0) == 2 && came("ab") && came("cd"));
	memset(buffer, 'x', sizeof buffer);
	PROMISE("of which one may have many", sendto(out, buffer, 3 * 40, 0, (struct sockaddr *)&to, sizeof to) == 120 && ({ int count = 0; while (count < 40 && came("xxx")) { count++; memset(buffer, 120, 3); } count == 40; }) && none(in));
	FAILS_WITH("there is a largest number of them", sendto(out, buffer, 3 * 128 + 1, 0, (struct sockaddr *)&to, sizeof to), EINVAL);
	FAILS_WITH("a size is not negative", set(out, IPPROTO_UDP, UDP_SEGMENT, -1), EINVAL);
	FAILS_WITH("nor longer than 16 bits", set(out, IPPROTO_UDP, UDP_SEGMENT, 65536), EINVAL);
	PROMISE("0 ends it", set(out, IPPROTO_UDP, UDP_SEGMENT, 0) == 0 && sent("abcdef", 0) == 6 && came("abcdef"));
	FAILS_WITH("no option has this number", set(out, IPPROTO_UDP, 77, 1), ENOPROTOOPT);
	PROMISE("nor a value", get(out, IPPROTO_UDP, 77) == -77 && errno == ENOPROTOOPT && none(in));
}

int main(void)
{
	set_loopback_up();
	out = socket(AF_INET, SOCK_DGRAM, 0);
	in = bound(&to);
	aside = bound(&other);
	NEED(out >= 0);
	parts_of_a_datagram();
	datagrams_of_a_send();
	return conclude();
}
