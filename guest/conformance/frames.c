/* Packet sockets: packet(7). What the loopback device sends and receives. */
#include "promise.h"
#include "addresses.h"
#include "checksum.h"
#include "frames.h"
#include "loopback.h"

#include <linux/filter.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <netinet/udp.h>

static unsigned char got[70000];
static struct sockaddr_ll sender;
static socklen_t sender_length;

/* Receives the next frame of a socket into `got`. */
static ssize_t next(int fd)
{
	sender_length = sizeof sender;
	memset(&sender, 0xee, sizeof sender);
	memset(got, 0xee, sizeof got);
	return recvfrom(fd, got, sizeof got, MSG_DONTWAIT, (struct sockaddr *)&sender, &sender_length);
}

static int is_quiet(int fd)
{
	return recv(fd, got, sizeof got, MSG_DONTWAIT) == -1 && errno == EAGAIN;
}

/* Makes a datagram of IPv4 for PORT, from the network's header on. */
static size_t datagram(unsigned char *into, const char *text)
{
	struct iphdr *ip = (void *)into;
	struct udphdr *udp = (void *)(ip + 1);
	size_t length = sizeof *ip + sizeof *udp + strlen(text);
	memset(into, 0, length);
	*ip = (struct iphdr){ .version = 4, .ihl = 5, .ttl = 9, .protocol = IPPROTO_UDP, .tot_len = htons(length) };
	ip->saddr = ip->daddr = htonl(INADDR_LOOPBACK);
	ip->check = htons(sum_of(ip, sizeof *ip));
	*udp = (struct udphdr){ .source = htons(7), .dest = htons(PORT), .len = htons(sizeof *udp + strlen(text)) };
	memcpy(udp + 1, text, strlen(text));
	return length;
}

/* The same of IPv6, with a checksum (RFC 8200, section 8.1). */
static size_t datagram6(unsigned char *into, const char *text)
{
	struct ip6_hdr *ip = (void *)into;
	struct udphdr *udp = (void *)(ip + 1);
	size_t count = sizeof *udp + strlen(text);
	memset(into, 0, sizeof *ip + count);
	ip->ip6_flow = htonl(6 << 28);
	ip->ip6_plen = htons(count);
	ip->ip6_nxt = IPPROTO_UDP;
	ip->ip6_hlim = 9;
	ip->ip6_src = ip->ip6_dst = in6addr_loopback;
	*udp = (struct udphdr){ .source = htons(7), .dest = htons(PORT), .len = htons(count) };
	memcpy(udp + 1, text, strlen(text));
	struct {
		struct in6_addr from, to;
		unsigned length, next;
		unsigned char bytes[1000];
	} summed = { in6addr_loopback, in6addr_loopback, htonl(count), htonl(IPPROTO_UDP), { 0 } };
	memcpy(summed.bytes, udp, count);
	udp->check = htons(sum_of(&summed, 40 + count));
	return sizeof *ip + count;
}

/* Whether `got` has a datagram with this text, from the network's header at `offset` on. */
static int is_datagram(ssize_t length, size_t offset, const char *text)
{
	struct iphdr *ip = (void *)(got + offset);
	size_t all = offset + sizeof *ip + sizeof(struct udphdr) + strlen(text);
	return length == (ssize_t)all && ip->version == 4 && ip->protocol == IPPROTO_UDP && ntohs(ip->tot_len) == all - offset &&
		!memcmp(got + all - strlen(text), text, strlen(text));
}

static void opening(void)
{
	FAILS_WITH("streams", socket(AF_PACKET, SOCK_STREAM, 0), ESOCKTNOSUPPORT);
	FAILS_WITH("a pair", socketpair(AF_PACKET, SOCK_RAW, 0, (int[2]){ 0 }), EOPNOTSUPP);
	int fd = opened(SOCK_RAW, ETH_P_IP), value = 0;
	socklen_t length = sizeof value;
	PROMISE("SO_TYPE", getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &length) == 0 && value == SOCK_RAW);
	PROMISE("SO_DOMAIN", getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &value, &length) == 0 && value == AF_PACKET);
	PROMISE("SO_PROTOCOL tells none", getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &value, &length) == 0 && value == 0);
	struct sockaddr_ll name;
	length = sizeof name;
	PROMISE("unbound: a protocol, and no device", getsockname(fd, (struct sockaddr *)&name, &length) == 0 && length == 12 &&
		name.sll_family == AF_PACKET && name.sll_protocol == htons(ETH_P_IP) && name.sll_ifindex == 0 && name.sll_halen == 0);
	FAILS_WITH("a device that is not there", bound_to(fd, 77, ETH_P_IP), ENODEV);
	name = at(LO, ETH_P_IP);
	FAILS_WITH("a short address", bind(fd, (struct sockaddr *)&name, sizeof name - 1), EINVAL);
	name.sll_family = AF_INET;
	FAILS_WITH("an address of another family", bind(fd, (struct sockaddr *)&name, sizeof name), EINVAL);
	length = sizeof name;
	PROMISE("bound to lo", bound_to(fd, LO, 0) == 0 && getsockname(fd, (struct sockaddr *)&name, &length) == 0);
	PROMISE("which has a hardware address of zeros", length == 18 && name.sll_ifindex == LO && name.sll_hatype == ARPHRD_LOOPBACK &&
		name.sll_halen == 6 && !memcmp(name.sll_addr, "\0\0\0\0\0", 6));
	PROMISE("protocol 0 of bind keeps the protocol", name.sll_protocol == htons(ETH_P_IP));
	FAILS_WITH("connect", connect(fd, (struct sockaddr *)&name, sizeof name), EOPNOTSUPP);
	FAILS_WITH("listen", listen(fd, 1), EOPNOTSUPP);
	FAILS_WITH("accept", accept(fd, NULL, NULL), EOPNOTSUPP);
	FAILS_WITH("shutdown", shutdown(fd, SHUT_RD), EOPNOTSUPP);
	length = sizeof name;
	FAILS_WITH("getpeername", getpeername(fd, (struct sockaddr *)&name, &length), EOPNOTSUPP);
	FAILS_WITH("an unknown option", setsockopt(fd, SOL_PACKET, 99, &value, sizeof value), ENOPROTOOPT);
	FAILS_WITH("read as one", getsockopt(fd, SOL_PACKET, 99, &value, &length), ENOPROTOOPT);
	struct packet_mreq group = { .mr_ifindex = LO, .mr_type = PACKET_MR_PROMISC };
	PROMISE("PACKET_ADD_MEMBERSHIP of all frames", setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &group, sizeof group) == 0 &&
		setsockopt(fd, SOL_PACKET, PACKET_DROP_MEMBERSHIP, &group, sizeof group) == 0);
	FAILS_WITH("cut", setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &group, sizeof group - 1), EINVAL);
	group.mr_ifindex = 77;
	FAILS_WITH("of no device", setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &group, sizeof group), ENODEV);
	close(fd);
	if (geteuid() != 0)
		return;
	int status;
	IN_CHILD(status, _exit(setuid(1000) != 0 || socket(AF_PACKET, SOCK_RAW, 0) != -1 || errno != EPERM));
	PROMISE("it needs CAP_NET_RAW", status == 0);
}

static void watching(void)
{
	int all = opened(SOCK_RAW, ETH_P_ALL), ip = opened(SOCK_RAW, ETH_P_IP), cooked = opened(SOCK_DGRAM, ETH_P_IP);
	int v6 = opened(SOCK_RAW, ETH_P_IPV6), none = opened(SOCK_RAW, 0), udp = receiver();
	NEED(bound_to(all, LO, ETH_P_ALL) == 0);
	sends_datagram("hello");
	PROMISE("of all protocols: a frame that is sent", is_datagram(next(all), 14, "hello") && sender.sll_pkttype == PACKET_OUTGOING);
	PROMISE("and that arrives", is_datagram(next(all), 14, "hello") && sender.sll_pkttype == PACKET_HOST && is_quiet(all));
	PROMISE("of one protocol: that it arrives", is_datagram(next(ip), 14, "hello") && sender.sll_pkttype == PACKET_HOST && is_quiet(ip));
	PROMISE("its header has zeros and the protocol", next(ip) == -1 && (sends_datagram("again"), next(ip)) > 14 &&
		!memcmp(got, "\0\0\0\0\0\0\0\0\0\0\0\0\x08", 14));
	PROMISE("the sender's name has all fields", sender_length == sizeof sender && sender.sll_family == AF_PACKET && sender.sll_halen == 6 &&
		sender.sll_protocol == htons(ETH_P_IP) && sender.sll_ifindex == LO && sender.sll_hatype == ARPHRD_LOOPBACK);
	PROMISE("SOCK_DGRAM: without the header", is_datagram(next(cooked), 0, "hello") && is_datagram(next(cooked), 0, "again") && is_quiet(cooked));
	PROMISE("another protocol, or none: nothing", is_quiet(v6) && is_quiet(none));
	PROMISE("the datagrams reach their socket", recv(udp, got, sizeof got, 0) == 5 && recv(udp, got, sizeof got, 0) == 5);
	PROMISE("FIONREAD and MSG_TRUNC tell the length", (sends_datagram("12345"), recv(ip, got, 1, MSG_TRUNC) == 47));
	PROMISE("poll tells of frames", poll(&(struct pollfd){ .fd = cooked, .events = POLLIN }, 1, 0) == 1);
	char line[256];
	struct stat status;
	NEED(fstat(ip, &status) == 0);
	FILE *list = fopen("/proc/net/packet", "r");
	NEED(list != NULL);
	int listed = 0;
	while (fgets(line, sizeof line, list)) {
		int kind, device;
		unsigned protocol;
		unsigned long inode;
		if (sscanf(line, "%*s %*d %d %x %d %*d %*d %*d %lu", &kind, &protocol, &device, &inode) == 4 && inode == status.st_ino)
			listed = kind == SOCK_RAW && protocol == ETH_P_IP && device == 0;
	}
	fclose(list);
	PROMISE("/proc/net/packet lists it", listed);
	int fds[] = { all, ip, cooked, v6, none, udp };
	for (int i = 0; i < 6; i++)
		close(fds[i]);
}

static void settings(void)
{
	int fd = opened(SOCK_RAW, ETH_P_ALL), udp = receiver(), one = 1;
	NEED(bound_to(fd, LO, ETH_P_ALL) == 0);
	sends_datagram("first");
	struct tpacket_stats counts;
	socklen_t length = sizeof counts;
	PROMISE("PACKET_STATISTICS counts frames", getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, &counts, &length) == 0 &&
		length == sizeof counts && counts.tp_packets == 2 && counts.tp_drops == 0);
	PROMISE("from one reading to the next", getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, &counts, &length) == 0 && counts.tp_packets == 0);
	NEED(next(fd) > 0 && next(fd) > 0);
	PROMISE("PACKET_IGNORE_OUTGOING", setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one) == 0);
	sends_datagram("second");
	PROMISE("hides what is sent", is_datagram(next(fd), 14, "second") && sender.sll_pkttype == PACKET_HOST && is_quiet(fd));
	PROMISE("PACKET_AUXDATA", setsockopt(fd, SOL_PACKET, PACKET_AUXDATA, &one, sizeof one) == 0);
	sends_datagram("third");
	struct iovec vector = { got, 20 };
	union {
		struct cmsghdr head;
		char bytes[256];
	} control;
	struct msghdr message = { .msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
	NEED(recvmsg(fd, &message, 0) == 20 && message.msg_flags & MSG_TRUNC);
	struct tpacket_auxdata *facts = (void *)CMSG_DATA(&control.head);
	PROMISE("gives facts", message.msg_controllen == CMSG_SPACE(sizeof *facts) && control.head.cmsg_level == SOL_PACKET &&
		control.head.cmsg_type == PACKET_AUXDATA && facts->tp_status & TP_STATUS_USER);
	PROMISE("lengths and offsets", facts->tp_len == 47 && facts->tp_snaplen == 47 && facts->tp_mac == 0 && facts->tp_net == 14);
	/* Of frames of IP, 30 bytes. */
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 12),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ETH_P_IP, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, 30),
		BPF_STMT(BPF_RET | BPF_K, 0),
	};
	struct sock_fprog program = { 4, code };
	PROMISE("SO_ATTACH_FILTER", setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0);
	sends_datagram("fourth");
	PROMISE("it sees the header, and cuts", next(fd) == 30 && got[12] == 8);
	code[1].k = ETH_P_ARP;
	NEED(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0);
	sends_datagram("fifth");
	PROMISE("it refuses", is_quiet(fd));
	code[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)(SKF_AD_OFF + SKF_AD_PKTTYPE));
	code[1].k = PACKET_HOST;
	code[2].k = 0xffff;
	NEED(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0);
	sends_datagram("sixth");
	PROMISE("it knows a frame's receiver", is_datagram(next(fd), 14, "sixth") && is_quiet(fd));
	NEED(setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &one, sizeof one) == 0);
	NEED(getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, &counts, &length) == 0);
	int size = 0;
	NEED(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size) == 0);
	char long_text[2001] = { 0 };
	memset(long_text, 'x', 2000);
	for (int i = 0; i < 100; i++)
		sends_datagram(long_text);
	PROMISE("frames without room are counted", getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, &counts, &length) == 0 &&
		counts.tp_packets == 100 && counts.tp_drops > 50 && counts.tp_drops < 100);
	close(fd);
	close(udp);
}

static void sending(void)
{
	int raw = opened(SOCK_RAW, 0), cooked = opened(SOCK_DGRAM, 0), seen = opened(SOCK_RAW, ETH_P_ALL), udp = receiver();
	int udp6 = socket(AF_INET6, SOCK_DGRAM, 0);
	struct sockaddr_in6 own = v6("::1", PORT);
	NEED(bind(udp6, (struct sockaddr *)&own, sizeof own) == 0);
	unsigned char frame[2000] = { 0 };
	memcpy(frame + 12, "\x86\xdd", 2);
	size_t length = 14 + datagram6(frame + 14, "made");
	FAILS_WITH("without a device", send(raw, frame, length, 0), ENXIO);
	NEED(bound_to(raw, LO, 0) == 0 && bound_to(seen, LO, ETH_P_ALL) == 0);
	FAILS_WITH("shorter than a header", send(raw, frame, 13, 0), EINVAL);
	PROMISE("a frame", send(raw, frame, length, 0) == (ssize_t)length);
	PROMISE("reaches its socket", recv(udp6, got, sizeof got, 0) == 4 && !memcmp(got, "made", 4));
	PROMISE("others see it sent", next(seen) == (ssize_t)length && sender.sll_pkttype == PACKET_OUTGOING && !memcmp(got, frame, length));
	PROMISE("and arrive", next(seen) == (ssize_t)length && sender.sll_pkttype == PACKET_HOST && !memcmp(got, frame, length));
	struct sockaddr_ll to = at(LO, ETH_P_IPV6);
	length = datagram6(frame, "by address");
	PROMISE("SOCK_DGRAM gets its header", sendto(cooked, frame, length, 0, (struct sockaddr *)&to, sizeof to) == (ssize_t)length &&
		recv(udp6, got, sizeof got, 0) == 10 && !memcmp(got, "by address", 10));
	PROMISE("with the protocol of the address", next(seen) == (ssize_t)length + 14 && got[12] == 0x86 && got[13] == 0xdd);
	NEED(next(seen) > 0);
	to = at(LO, ETH_P_IP);
	length = datagram(frame, "from outside");
	PROMISE("a packet of 127.0.0.1 from a program is seen", sendto(cooked, frame, length, 0, (struct sockaddr *)&to, sizeof to) == (ssize_t)length &&
		is_datagram(next(seen), 14, "from outside") && is_datagram(next(seen), 14, "from outside"));
	PROMISE("and reaches no socket", is_quiet(udp));
	to.sll_addr[5] = 9;
	to.sll_protocol = htons(ETH_P_IPV6);
	length = datagram6(frame, "other");
	PROMISE("a frame for another machine", sendto(cooked, frame, length, 0, (struct sockaddr *)&to, sizeof to) == (ssize_t)length);
	PROMISE("is one for another machine", next(seen) > 0 && next(seen) > 0 && sender.sll_pkttype == PACKET_OTHERHOST && is_quiet(udp6));
	memset(to.sll_addr, 0xff, 6);
	PROMISE("a frame for a group", sendto(cooked, frame, length, 0, (struct sockaddr *)&to, sizeof to) == (ssize_t)length && next(seen) > 0 &&
		next(seen) > 0 && sender.sll_pkttype == PACKET_MULTICAST);
	to.sll_ifindex = 77;
	FAILS_WITH("no such device", sendto(cooked, frame, length, 0, (struct sockaddr *)&to, sizeof to), ENXIO);
	FAILS_WITH("a short address", sendto(cooked, frame, length, 0, (struct sockaddr *)&to, 19), EINVAL);
	static unsigned char longest[70000];
	FAILS_WITH("longer than the device takes", send(raw, longest, sizeof longest, 0), EMSGSIZE);
	NEED(bound_to(raw, LO, ETH_P_ALL) == 0);
	memset(frame, 0, 14);
	frame[12] = 8;
	length = 14 + datagram(frame + 14, "own");
	PROMISE("a sender is shown its frame when it arrives, not when it is sent", send(raw, frame, length, 0) == (ssize_t)length &&
		is_datagram(next(raw), 14, "own") && sender.sll_pkttype == PACKET_HOST && is_quiet(raw));
	int fds[] = { raw, cooked, seen, udp, udp6 };
	for (int i = 0; i < 5; i++)
		close(fds[i]);
}

static void separate(void)
{
	if (geteuid() != 0)
		return;
	int outer = opened(SOCK_RAW, ETH_P_ALL), status;
	IN_CHILD(status, {
		if (unshare(CLONE_NEWNET) != 0)
			_exit(1);
		int inner = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
		struct sockaddr_ll name = at(LO, ETH_P_ALL);
		char byte;
		if (inner < 0 || bind(inner, (struct sockaddr *)&name, sizeof name) != 0)
			_exit(2);
		_exit(recv(inner, &byte, 1, MSG_DONTWAIT) != -1 || errno != ENETDOWN ? 3 : 0);
	});
	PROMISE("a namespace has its own lo, which is down", status == 0);
	PROMISE("and shows nothing elsewhere", is_quiet(outer));
	close(outer);
}

int main(void)
{
	set_loopback_up();
	opening();
	watching();
	settings();
	sending();
	separate();
	return conclude();
}
