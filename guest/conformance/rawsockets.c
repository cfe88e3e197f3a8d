/* Raw sockets and ping sockets of both versions of IP: raw(7), icmp(7), RFC 3542. */
#include "promise.h"
#include "addresses.h"
#include "checksum.h"
#include "inside.h"
#include "loopback.h"

#include <linux/icmp.h>
#include <netinet/icmp6.h>
#include <netinet/ip.h>
#include <netinet/udp.h>

#define RANGE "/proc/sys/net/ipv4/ping_group_range"
#define UNUSED_PROTOCOL 201

static unsigned char got[70000];
static struct sockaddr_in sender;

static int opened(int family, int kind, int protocol)
{
	int fd = socket(family, kind | SOCK_CLOEXEC, protocol);
	NEED(fd >= 0);
	return fd;
}

static ssize_t sends(int fd, const void *bytes, size_t length, const char *to)
{
	struct sockaddr_in name = v4(to, 0);
	return sendto(fd, bytes, length, 0, (struct sockaddr *)&name, sizeof name);
}

static ssize_t sends6(int fd, const void *bytes, size_t length, const char *to, int port)
{
	struct sockaddr_in6 name = v6(to, port);
	return sendto(fd, bytes, length, 0, (struct sockaddr *)&name, sizeof name);
}

/* Receives the next message of a socket into `got`. */
static ssize_t next(int fd)
{
	socklen_t length = sizeof sender;
	memset(got, 0xee, sizeof got);
	return recvfrom(fd, got, sizeof got, 0, (struct sockaddr *)&sender, &length);
}

/* Whether a socket has no more messages. The caller has already received a later packet
 * elsewhere. */
static int is_quiet(int fd)
{
	return recv(fd, got, sizeof got, MSG_DONTWAIT) == -1 && errno == EAGAIN;
}

struct echo {
	struct icmphdr head;
	char text[16];
};

static struct echo request(int identifier, int sequence)
{
	struct echo echo = { { .type = ICMP_ECHO, .un.echo = { htons(identifier), htons(sequence) } }, "what is said" };
	echo.head.checksum = htons(sum_of(&echo, sizeof echo));
	return echo;
}

/* Whether `got` is an ICMP message of `type` in a packet from `from` to `to`. */
static int is_icmp(ssize_t length, int type, const char *from, const char *to)
{
	const struct iphdr *head = (const struct iphdr *)got;
	const struct icmphdr *icmp = (const struct icmphdr *)(got + 20);
	return length >= 28 && head->version == 4 && head->ihl == 5 && ntohs(head->tot_len) == length &&
	       head->protocol == IPPROTO_ICMP && head->saddr == inet_addr(from) && head->daddr == inet_addr(to) &&
	       sum_of(got, 20) == 0 && icmp->type == type && sum_of(icmp, length - 20) == 0;
}

static int filter(int fd, unsigned hidden)
{
	struct icmp_filter filter = { hidden };
	return setsockopt(fd, SOL_RAW, ICMP_FILTER, &filter, sizeof filter);
}

static int number_at(int fd, int level, int name)
{
	int value = -7;
	socklen_t length = sizeof value;
	return getsockopt(fd, level, name, &value, &length) ? -errno : value;
}

static int users_are_refused(void)
{
	REFUSED(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP), EPERM);
	REFUSED(socket(AF_INET6, SOCK_RAW, IPPROTO_ICMPV6), EPERM);
	REFUSED(socket(AF_INET, SOCK_RAW, IPPROTO_RAW), EPERM);
	REFUSED(socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP), EACCES);
	REFUSED(socket(AF_INET6, SOCK_DGRAM, IPPROTO_ICMPV6), EACCES);
	return 0;
}

/* A user is root in a user namespace: its capability there does not apply to the outer network. */
static int root_inside_is_refused(void)
{
	HOLDS(become_root_inside() == 0);
	REFUSED(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP), EPERM);
	HOLDS(unshare(CLONE_NEWNET) == 0);
	HOLDS(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP) >= 0);
	return 0;
}

static void opening(void)
{
	FAILS_WITH("no protocol has the number 0", socket(AF_INET, SOCK_RAW, 0), EPROTONOSUPPORT);
	FAILS_WITH("nor a negative one", socket(AF_INET, SOCK_RAW, -1), EINVAL);
	FAILS_WITH("nor one behind the last", socket(AF_INET6, SOCK_RAW, 263), EINVAL);
	int raw = opened(AF_INET, SOCK_RAW, IPPROTO_ICMP), raw6 = opened(AF_INET6, SOCK_RAW, 99);
	PROMISE("a raw socket says its type and protocol",
		number_at(raw, SOL_SOCKET, SO_TYPE) == SOCK_RAW && number_at(raw, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_ICMP &&
			number_at(raw6, SOL_SOCKET, SO_DOMAIN) == AF_INET6 && number_at(raw6, SOL_SOCKET, SO_PROTOCOL) == 99);
	struct sockaddr_in name;
	socklen_t length = sizeof name;
	PROMISE("its port is the protocol",
		getsockname(raw, (struct sockaddr *)&name, &length) == 0 && name.sin_port == htons(IPPROTO_ICMP) && name.sin_addr.s_addr == 0);
	FAILS_WITH("it has no peer", getpeername(raw, (struct sockaddr *)&name, &length), ENOTCONN);
	FAILS_WITH("it listens to no calls", listen(raw, 1), EOPNOTSUPP);
	FAILS_WITH("what has no address goes nowhere", send(raw, &length, 4, 0), EDESTADDRREQ);
	name = v4("10.9.9.9", 0);
	FAILS_WITH("it is bound to own addresses only", bind(raw, (struct sockaddr *)&name, sizeof name), EADDRNOTAVAIL);
	PROMISE("it stands in /proc/net/raw", strstr(reads("/proc/self/net/raw"), ": 00000000:0001 00000000:0000 07"));
	PROMISE("and in /proc/net/raw6", strstr(reads("/proc/self/net/raw6"), ": 00000000000000000000000000000000:0063"));
	close(raw);
	close(raw6);
}

static void echoes(void)
{
	int raw = opened(AF_INET, SOCK_RAW, IPPROTO_ICMP), other = opened(AF_INET, SOCK_RAW, IPPROTO_ICMP);
	int udp = opened(AF_INET, SOCK_RAW, IPPROTO_UDP), bytes = 0;
	struct echo echo = request(0x1234, 7);
	PROMISE("an echo request is sent", sends(raw, &echo, sizeof echo, "127.0.0.1") == sizeof echo);
	ssize_t length = next(raw);
	PROMISE("its sender hears the request, with its header",
		is_icmp(length, ICMP_ECHO, "127.0.0.1", "127.0.0.1") && length == 20 + sizeof echo && !memcmp(got + 20, &echo, sizeof echo));
	PROMISE("the request has the usual time to live, and is no fragment", got[8] == 64 && (got[6] & 0x3f) == 0 && got[7] == 0);
	PROMISE("the next message is the reply, which FIONREAD measures", ioctl(raw, FIONREAD, &bytes) == 0 && bytes == 20 + sizeof echo);
	PROMISE("a look at its beginning says its length", recv(raw, got, 10, MSG_PEEK | MSG_TRUNC) == 20 + (ssize_t)sizeof echo);
	length = next(raw);
	PROMISE("the reply has the request's bytes",
		is_icmp(length, ICMP_ECHOREPLY, "127.0.0.1", "127.0.0.1") && !memcmp(got + 24, (char *)&echo + 4, sizeof echo - 4));
	PROMISE("its sender has a name without port",
		sender.sin_family == AF_INET && sender.sin_addr.s_addr == inet_addr("127.0.0.1") && sender.sin_port == 0);
	PROMISE("another socket hears both", is_icmp(next(other), ICMP_ECHO, "127.0.0.1", "127.0.0.1") &&
						   is_icmp(next(other), ICMP_ECHOREPLY, "127.0.0.1", "127.0.0.1"));
	PROMISE("one of another protocol hears neither, and nobody hears more", is_quiet(udp) && is_quiet(raw) && is_quiet(other));
	static char big[60000];
	struct icmphdr head = { .type = ICMP_ECHO };
	memset(big, 'b', sizeof big);
	memcpy(big, &head, sizeof head);
	head.checksum = htons(sum_of(big, sizeof big));
	memcpy(big, &head, sizeof head);
	PROMISE("a long request has a long reply", sends(raw, big, sizeof big, "127.0.0.1") == sizeof big && next(raw) == 20 + sizeof big &&
							   is_icmp(next(raw), ICMP_ECHOREPLY, "127.0.0.1", "127.0.0.1"));
	FAILS_WITH("a packet of more than 65535 bytes is refused", sends(raw, got, 65516, "127.0.0.1"), EMSGSIZE);
	FAILS_WITH("no way leads to other networks", sends(raw, &echo, sizeof echo, "10.9.9.9"), ENETUNREACH);
	echo.head.checksum ^= 1;
	sends(raw, &echo, sizeof echo, "127.0.0.1");
	echo = request(5, 5);
	sends(raw, &echo, sizeof echo, "127.0.0.1");
	next(raw);
	PROMISE("a damaged request has no reply", is_icmp(next(raw), ICMP_ECHO, "127.0.0.1", "127.0.0.1") &&
							  is_icmp(next(raw), ICMP_ECHOREPLY, "127.0.0.1", "127.0.0.1") && got[25] == 5);
	close(raw);
	close(other);
	close(udp);
}

static void filters(void)
{
	int raw = opened(AF_INET, SOCK_RAW, IPPROTO_ICMP), udp = opened(AF_INET, SOCK_RAW, IPPROTO_UDP);
	int bound = opened(AF_INET, SOCK_RAW, IPPROTO_ICMP), connected = opened(AF_INET, SOCK_RAW, IPPROTO_ICMP);
	struct sockaddr_in two = v4("127.0.0.2", 0), peer = v4("127.0.0.2", 5), name;
	struct echo echo = request(1, 1);
	socklen_t length = sizeof name;
	PROMISE("ICMP_FILTER is read as it was set", filter(raw, 1 << ICMP_ECHO) == 0 && number_at(raw, SOL_RAW, ICMP_FILTER) == 1 << ICMP_ECHO);
	FAILS_WITH("other protocols have no such filter", filter(udp, 1), EOPNOTSUPP);
	FAILS_WITH("there is no other option", set(raw, SOL_RAW, 2, 1), ENOPROTOOPT);
	NEED(bind(bound, (struct sockaddr *)&two, sizeof two) == 0);
	NEED(connect(connected, (struct sockaddr *)&peer, sizeof peer) == 0);
	PROMISE("a connection has a peer", getpeername(connected, (struct sockaddr *)&name, &length) == 0 && name.sin_addr.s_addr == two.sin_addr.s_addr);
	FAILS_WITH("what is connected is not bound any more", bind(connected, (struct sockaddr *)&two, sizeof two), EINVAL);
	sends(raw, &echo, sizeof echo, "127.0.0.1");
	PROMISE("types that are filtered are not heard", is_icmp(next(raw), ICMP_ECHOREPLY, "127.0.0.1", "127.0.0.1"));
	PROMISE("a socket that is bound to another address hears nothing", is_quiet(bound));
	PROMISE("nor does one that is connected elsewhere", is_quiet(connected));
	sends(bound, &echo, sizeof echo, "127.0.0.1");
	PROMISE("a bound socket sends from its address, and hears what comes there", is_icmp(next(bound), ICMP_ECHOREPLY, "127.0.0.1", "127.0.0.2"));
	PROMISE("a connected one hears its peer", is_icmp(next(connected), ICMP_ECHO, "127.0.0.2", "127.0.0.1"));
	NEED(send(connected, &echo, sizeof echo, 0) == sizeof echo);
	PROMISE("and its peer alone", is_icmp(next(connected), ICMP_ECHOREPLY, "127.0.0.2", "127.0.0.1") && is_quiet(connected));
	struct sockaddr none = { .sa_family = AF_UNSPEC };
	PROMISE("the connection can be ended", connect(connected, &none, sizeof none) == 0 && getpeername(connected, (struct sockaddr *)&name, &length) == -1);
	close(raw);
	close(udp);
	close(bound);
	close(connected);
}

static void headers(void)
{
	int raw = opened(AF_INET, SOCK_RAW, IPPROTO_RAW), icmp = opened(AF_INET, SOCK_RAW, IPPROTO_ICMP);
	int udp = opened(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in name = v4("127.0.0.1", 0);
	socklen_t length = sizeof name;
	struct {
		struct iphdr head;
		struct udphdr udp;
		char text[4];
	} packet = { .head = { .version = 4, .ihl = 5, .ttl = 9, .protocol = IPPROTO_UDP, .daddr = inet_addr("127.0.0.1") }, .text = "hey" };
	NEED(bind(udp, (struct sockaddr *)&name, length) == 0 && getsockname(udp, (struct sockaddr *)&name, &length) == 0);
	packet.udp = (struct udphdr){ .uh_sport = htons(77), .uh_dport = name.sin_port, .uh_ulen = htons(12) };
	PROMISE("IPPROTO_RAW has IP_HDRINCL from the start", number_at(raw, SOL_IP, IP_HDRINCL) == 1 && number_at(icmp, SOL_IP, IP_HDRINCL) == 0);
	PROMISE("a packet with a header of its own is sent", sends(raw, &packet, sizeof packet, "127.0.0.1") == sizeof packet);
	PROMISE("its datagram reaches a socket of UDP", next(udp) == 4 && !memcmp(got, "hey", 4) && sender.sin_port == htons(77));
	PROMISE("its empty source was filled in", sender.sin_addr.s_addr == inet_addr("127.0.0.1"));
	FAILS_WITH("less than a header is refused", sends(raw, &packet, 19, "127.0.0.1"), EINVAL);
	packet.head.ihl = 15;
	FAILS_WITH("and a header that is longer than the packet", sends(raw, &packet, sizeof packet, "127.0.0.1"), EINVAL);
	packet.head.ihl = 5;
	packet.udp.uh_dport = htons(9);
	sends(raw, &packet, sizeof packet, "127.0.0.1");
	ssize_t came = next(icmp);
	PROMISE("a port without socket is told by ICMP, with the packet",
		is_icmp(came, ICMP_DEST_UNREACH, "127.0.0.1", "127.0.0.1") && got[1] == 0xc0 && got[21] == ICMP_PORT_UNREACH &&
			!memcmp(got + 48, &packet.udp, 8) && got[36] == 9);
	packet.head.protocol = UNUSED_PROTOCOL;
	sends(raw, &packet, sizeof packet, "127.0.0.1");
	PROMISE("and a protocol that nobody hears", is_icmp(next(icmp), ICMP_DEST_UNREACH, "127.0.0.1", "127.0.0.1") && got[21] == ICMP_PROT_UNREACH);
	int heard = opened(AF_INET, SOCK_RAW, UNUSED_PROTOCOL);
	sends(raw, &packet, sizeof packet, "127.0.0.1");
	PROMISE("one that is heard is no error", next(heard) == sizeof packet && got[8] == 9 && is_quiet(icmp));
	PROMISE("IP_HDRINCL can be set", set(icmp, SOL_IP, IP_HDRINCL, 1) == 0 && number_at(icmp, SOL_IP, IP_HDRINCL) == 1);
	FAILS_WITH("but not of datagram sockets", set(udp, SOL_IP, IP_HDRINCL, 1), ENOPROTOOPT);
	close(raw);
	close(icmp);
	close(udp);
	close(heard);
}

/* Datagrams between two sockets are packets for a third one. */
static void datagrams(void)
{
	int raw = opened(AF_INET, SOCK_RAW, IPPROTO_UDP), icmp = opened(AF_INET, SOCK_RAW, IPPROTO_ICMP);
	int to = opened(AF_INET, SOCK_DGRAM, 0), from = opened(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in name = v4("127.0.0.1", 0), closed = v4("127.0.0.1", 9), own;
	socklen_t length = sizeof name;
	NEED(bind(to, (struct sockaddr *)&name, length) == 0 && getsockname(to, (struct sockaddr *)&name, &length) == 0);
	NEED(sendto(from, "datagram", 9, 0, (struct sockaddr *)&name, sizeof name) == 9);
	NEED(getsockname(from, (struct sockaddr *)&own, &length) == 0);
	ssize_t came = next(raw);
	struct udphdr *head = (struct udphdr *)(got + 20);
	PROMISE("a raw socket of UDP hears a datagram with its ports",
		came == 37 && got[9] == IPPROTO_UDP && head->uh_sport == own.sin_port && head->uh_dport == name.sin_port && head->uh_ulen == htons(17) &&
			!strcmp((char *)got + 28, "datagram"));
	PROMISE("its receiver hears it, too", next(to) == 9 && !strcmp((char *)got, "datagram"));
	NEED(connect(from, (struct sockaddr *)&closed, sizeof closed) == 0 && send(from, "lost", 5, 0) == 5);
	PROMISE("an unreachable port is told to a raw socket of ICMP", is_icmp(next(icmp), ICMP_DEST_UNREACH, "127.0.0.1", "127.0.0.1") &&
									       got[21] == ICMP_PORT_UNREACH);
	FAILS_WITH("and to the sender", send(from, "lost", 5, 0), ECONNREFUSED);
	closed = v4("127.0.0.1", 10);
	NEED(sendto(from, "lost", 5, 0, (struct sockaddr *)&closed, sizeof closed) == 5);
	PROMISE("but not where the sender is connected to another port", sendto(from, "lost", 5, 0, (struct sockaddr *)&closed, sizeof closed) == 5);
	close(raw);
	close(icmp);
	close(to);
	close(from);
}

static int pings(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP), other = socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP);
	int third = socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP);
	struct echo echo = request(0x4242, 3);
	struct sockaddr_in name, wanted;
	socklen_t length = sizeof name;
	HOLDS(fd >= 0 && other >= 0);
	HOLDS(number_at(fd, SOL_SOCKET, SO_TYPE) == SOCK_DGRAM && number_at(fd, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_ICMP);
	REFUSED(set(fd, SOL_IP, IP_HDRINCL, 1), ENOPROTOOPT);
	REFUSED(filter(fd, 1), ENOPROTOOPT);
	REFUSED(sends(fd, &echo, 7, "127.0.0.1"), EINVAL);
	echo.head.type = ICMP_ECHOREPLY;
	REFUSED(sends(fd, &echo, sizeof echo, "127.0.0.1"), EINVAL);
	echo.head.type = ICMP_ECHO;
	HOLDS(sends(fd, &echo, sizeof echo, "127.0.0.1") == sizeof echo);
	HOLDS(getsockname(fd, (struct sockaddr *)&name, &length) == 0 && name.sin_port != 0);
	HOLDS(next(fd) == sizeof echo);
	struct echo *reply = (struct echo *)got;
	HOLDS(reply->head.type == ICMP_ECHOREPLY && reply->head.un.echo.id == name.sin_port && reply->head.un.echo.sequence == htons(3));
	HOLDS(!strcmp(reply->text, "what is said") && sum_of(got, sizeof echo) == 0);
	HOLDS(sender.sin_addr.s_addr == inet_addr("127.0.0.1") && sender.sin_port == 0);
	HOLDS(is_quiet(fd) && is_quiet(other));
	wanted = v4("0.0.0.0", ntohs(name.sin_port));
	HOLDS(bind(third, (struct sockaddr *)&wanted, sizeof wanted) == 0);
	REFUSED(bind(fd, (struct sockaddr *)&wanted, sizeof wanted), EINVAL);
	HOLDS(number_at(third, SOL_SOCKET, SO_REUSEADDR) == 1);
	HOLDS(sends(fd, &echo, sizeof echo, "127.0.0.1") == sizeof echo && next(third) == sizeof echo && is_quiet(fd));
	wanted = v4("127.0.0.3", 0x55);
	HOLDS(bind(other, (struct sockaddr *)&wanted, sizeof wanted) == 0);
	HOLDS(strstr(reads("/proc/self/net/icmp"), ": 0300007F:0055 00000000:0000 07"));
	HOLDS(sends(other, &echo, sizeof echo, "127.0.0.4") == sizeof echo && next(other) == sizeof echo);
	HOLDS(reply->head.un.echo.id == htons(0x55) && sender.sin_addr.s_addr == inet_addr("127.0.0.4"));
	struct icmp6_hdr echo6 = { .icmp6_type = ICMP6_ECHO_REQUEST };
	int six = socket(AF_INET6, SOCK_DGRAM, IPPROTO_ICMPV6);
	HOLDS(six >= 0 && sends6(six, &echo6, 8, "::1", 0) == 8);
	HOLDS(recv(six, got, sizeof got, 0) == 8 && got[0] == ICMP6_ECHO_REPLY);
	echo6.icmp6_type = ICMP6_ECHO_REPLY;
	REFUSED(sends6(six, &echo6, 8, "::1", 0), EINVAL);
	return 0;
}

static void groups(void)
{
	PROMISE("no group may ping at first", !strcmp(reads(RANGE), "1\t0\n"));
	PROMISE("so even root has no ping socket", socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP) == -1 && errno == EACCES);
	PROMISE("a range of groups can be named", writes(RANGE, "0 0\n") == 0 && !strcmp(reads(RANGE), "0\t0\n"));
	PROMISE("its members ping, hear their own replies and nothing else", in_child(pings, 0));
	PROMISE("a range whose first is behind its last is none", writes(RANGE, "5 4") == 0 && !strcmp(reads(RANGE), "1\t0\n"));
	PROMISE("no group pings after that", socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP) == -1 && errno == EACCES);
	FAILS_WITH("one number is no range", writes(RANGE, "x 1"), EINVAL);
}

static void version_6(void)
{
	int raw = opened(AF_INET6, SOCK_RAW, IPPROTO_ICMPV6), other = opened(AF_INET6, SOCK_RAW, 99);
	struct icmp6_hdr echo = { .icmp6_type = ICMP6_ECHO_REQUEST, .icmp6_data16 = { htons(8), htons(9) } };
	struct icmp6_filter filter, read;
	socklen_t length = sizeof read;
	PROMISE("ICMPv6 is sent without header and checksum", sends6(raw, &echo, 8, "::1", 0) == 8);
	ssize_t came = recv(raw, got, sizeof got, 0);
	PROMISE("it is heard without header and with checksum", came == 8 && got[0] == ICMP6_ECHO_REQUEST && (got[2] | got[3]) && got[5] == 8 && got[7] == 9);
	came = recv(raw, got, sizeof got, 0);
	PROMISE("the reply follows", came == 8 && got[0] == ICMP6_ECHO_REPLY && got[5] == 8 && got[7] == 9);
	ICMP6_FILTER_SETBLOCKALL(&filter);
	ICMP6_FILTER_SETPASS(ICMP6_ECHO_REPLY, &filter);
	PROMISE("ICMP6_FILTER is read as it was set", setsockopt(raw, IPPROTO_ICMPV6, ICMP6_FILTER, &filter, sizeof filter) == 0 &&
							    getsockopt(raw, IPPROTO_ICMPV6, ICMP6_FILTER, &read, &length) == 0 && !memcmp(&filter, &read, 32));
	sends6(raw, &echo, 8, "::1", IPPROTO_ICMPV6);
	PROMISE("types that are filtered are not heard", recv(raw, got, sizeof got, 0) == 8 && got[0] == ICMP6_ECHO_REPLY && is_quiet(raw));
	FAILS_WITH("another protocol in the port is refused", sends6(raw, &echo, 8, "::1", 99), EINVAL);
	FAILS_WITH("other protocols have no such filter", setsockopt(other, IPPROTO_ICMPV6, ICMP6_FILTER, &filter, sizeof filter), EOPNOTSUPP);
	FAILS_WITH("ICMPv6's checksum stays where it is", set(raw, IPPROTO_IPV6, IPV6_CHECKSUM, 4), EINVAL);
	FAILS_WITH("an odd place has none", set(other, IPPROTO_IPV6, IPV6_CHECKSUM, 3), EINVAL);
	PROMISE("IPV6_CHECKSUM is -1 at first", number_at(other, IPPROTO_IPV6, IPV6_CHECKSUM) == -1);
	PROMISE("it is read as it was set", set(other, IPPROTO_IPV6, IPV6_CHECKSUM, 4) == 0 && number_at(other, IPPROTO_IPV6, IPV6_CHECKSUM) == 4);
	char bytes[8] = "abcdefg";
	PROMISE("a checksum is put there", sends6(other, bytes, 8, "::1", 0) == 8 && recv(other, got, sizeof got, 0) == 8 && !memcmp(got, "abcd", 4) && memcmp(got + 4, "ef", 2));
	FAILS_WITH("a packet needs room for it", sends6(other, bytes, 4, "::1", 0), EINVAL);
	int plain = opened(AF_INET6, SOCK_RAW, 99);
	sends6(plain, bytes, 8, "::1", 0);
	PROMISE("and is not heard where it is wrong", recv(plain, got, sizeof got, 0) == 8 && recv(plain, got, sizeof got, MSG_DONTWAIT) == -1 && is_quiet(other));
	close(raw);
	close(other);
	close(plain);
}

/* Ancillary data of a packet. */
static void beside(void)
{
	int raw = opened(AF_INET, SOCK_RAW, IPPROTO_ICMP), seen = 0;
	struct echo echo = request(1, 1);
	char room[512];
	struct iovec bytes = { got, sizeof got };
	struct msghdr message = { .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room };
	NEED(set(raw, SOL_IP, IP_RECVTTL, 1) == 0 && set(raw, SOL_IP, IP_PKTINFO, 1) == 0 && set(raw, SOL_SOCKET, SO_TIMESTAMP, 1) == 0);
	PROMISE("the time to live can be set", set(raw, SOL_IP, IP_TTL, 33) == 0 && number_at(raw, SOL_IP, IP_TTL) == 33);
	FAILS_WITH("but not to more than a byte", set(raw, SOL_IP, IP_TTL, 256), EINVAL);
	sends(raw, &echo, sizeof echo, "127.0.0.5");
	memset(room, 0xee, sizeof room);
	NEED(recvmsg(raw, &message, 0) == 20 + sizeof echo);
	for (struct cmsghdr *at = CMSG_FIRSTHDR(&message); at; at = CMSG_NXTHDR(&message, at)) {
		struct in_pktinfo *info = (void *)CMSG_DATA(at);
		struct timeval *when = (void *)CMSG_DATA(at);
		if (at->cmsg_level == SOL_IP && at->cmsg_type == IP_TTL)
			seen += at->cmsg_len == CMSG_LEN(4) && *(int *)CMSG_DATA(at) == 33;
		if (at->cmsg_level == SOL_IP && at->cmsg_type == IP_PKTINFO)
			seen += 10 * (info->ipi_ifindex == 1 && info->ipi_addr.s_addr == inet_addr("127.0.0.5"));
		if (at->cmsg_level == SOL_SOCKET && at->cmsg_type == SCM_TIMESTAMP)
			seen += 100 * (when->tv_sec > 0 && when->tv_usec < 1000000 && when->tv_usec >= 0);
	}
	PROMISE("its time to live, interface, address and time come beside a packet", seen == 111 && message.msg_flags == 0);
	NEED(next(raw) > 0);
	sends(raw, &echo, sizeof echo, "127.0.0.5");
	message.msg_controllen = 20;
	PROMISE("what has no room is cut, and that is said", recvmsg(raw, &message, 0) > 0 && message.msg_flags == MSG_CTRUNC);
	FAILS_WITH("a packet for a bad address is lost", (next(raw), sends(raw, &echo, sizeof echo, "127.0.0.5"), recv(raw, (void *)8, 64, 0)), EFAULT);
	close(raw);
}

static int hears_nothing_inside(void)
{
	int outer = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
	HOLDS(outer >= 0 && writes(RANGE, "0 0") == 0 && unshare(CLONE_NEWNET) == 0);
	int inner = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
	struct echo echo = request(1, 1);
	HOLDS(inner >= 0);
	REFUSED(sends(inner, &echo, sizeof echo, "127.0.0.1"), ENETUNREACH);
	HOLDS(strcmp(reads(RANGE), "0\t0\n"));
	set_loopback_up();
	HOLDS(sends(inner, &echo, sizeof echo, "127.0.0.1") > 0 && next(inner) > 0 && next(inner) > 0 && is_quiet(outer));
	HOLDS(sends(outer, &echo, sizeof echo, "127.0.0.1") > 0 && next(outer) > 0 && next(outer) > 0 && is_quiet(inner));
	return 0;
}

/* Packets of any bytes do no harm. Packets beyond the room for unread ones are dropped. */
static void nonsense(void)
{
	int raw = opened(AF_INET, SOCK_RAW, IPPROTO_RAW), icmp = opened(AF_INET, SOCK_RAW, IPPROTO_ICMP);
	int raw6 = opened(AF_INET6, SOCK_RAW, IPPROTO_RAW), all = 0;
	unsigned char bytes[200];
	srand(1);
	for (int i = 0; i < 4000; i++) {
		for (size_t at = 0; at < sizeof bytes; at++)
			bytes[at] = rand();
		if (i % 2) {
			static const unsigned char kinds[] = { 1, 17, 6, 58, 2, 0 };
			bytes[0] = 0x40 | (i % 5 ? 5 : i % 16);
			bytes[9] = kinds[i % 6];
			memcpy(bytes + 12, "\x7f\0\0\1\x7f\0\0\1", 8);
			if (i % 3)
				bytes[6] = bytes[7] = 0;
			bytes[20] = "\3\13\14\10"[i % 4];
		}
		sends(raw, bytes, rand() % sizeof bytes, "127.0.0.1");
		bytes[0] = 0x60;
		if (i % 2) {
			/* The addresses are ::1, or sometimes an IPv4 one. */
			memcpy(bytes + 8, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1", 32);
			if (i % 3 == 0)
				memcpy(bytes + (i % 4 == 1 ? 8 : 24), "\0\0\0\0\0\0\0\0\0\0\xff\xff\x7f\0\0\1", 16);
			bytes[4] = 0, bytes[5] = i % 30, bytes[6] = i % 5 ? 58 : 17;
			bytes[40] = 128;
		}
		sends6(raw6, bytes, rand() % sizeof bytes, "::1", 0);
	}
	struct echo echo = request(0x77, 0x77);
	while (recv(icmp, got, sizeof got, MSG_DONTWAIT) > 0)
		all++;
	sends(icmp, &echo, sizeof echo, "127.0.0.1");
	next(icmp);
	PROMISE("after packets of any bytes, of which the last were lost, all goes on",
		all < 4000 && is_icmp(next(icmp), ICMP_ECHOREPLY, "127.0.0.1", "127.0.0.1") && got[25] == 0x77);
	close(raw);
	close(raw6);
	close(icmp);
}

int main(void)
{
	alarm(120);
	if (geteuid() == 0) {
		PROMISE("a user has no raw socket, and no ping socket", in_child(users_are_refused, USER));
		PROMISE("the right to them is one over the network's own namespace", in_child(root_inside_is_refused, USER));
	}
	if (unshare(CLONE_NEWNET)) {
		int user = geteuid(), group = getegid();
		char map[2][32];
		snprintf(map[0], sizeof map[0], "0 %d 1", user);
		snprintf(map[1], sizeof map[1], "0 %d 1", group);
		NEED(unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0 && writes("/proc/self/uid_map", map[0]) == 0);
		NEED(writes("/proc/self/setgroups", "deny") == 0 && writes("/proc/self/gid_map", map[1]) == 0);
	}
	set_loopback_up();
	opening();
	echoes();
	filters();
	headers();
	datagrams();
	groups();
	version_6();
	beside();
	PROMISE("a socket hears its own namespace alone", in_child(hears_nothing_inside, 0));
	nonsense();
	return conclude();
}
