/* Questions to the kernel about the network: netlink(7), rtnetlink(7), getifaddrs(3). */
#include "promise.h"
#include "loopback.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/tcp.h>
#include <netpacket/packet.h>
#include <sys/socket.h>
#include <sys/un.h>

static unsigned sequence;
static union {
	struct nlmsghdr head;
	char bytes[1 << 16];
} sent, came;
static ssize_t came_length;
static struct sockaddr_nl came_from;
static int ended_filtered;

static int opened(int kind)
{
	int fd = socket(AF_NETLINK, kind, NETLINK_ROUTE);
	NEED(fd >= 0);
	return fd;
}

static struct sockaddr_nl own_name(int fd)
{
	struct sockaddr_nl name = { 0 };
	socklen_t length = sizeof name;
	NEED(getsockname(fd, (struct sockaddr *)&name, &length) == 0 && length == sizeof name && name.nl_family == AF_NETLINK);
	return name;
}

/* Sends a request of `length` bytes after the header. */
static ssize_t ask(int fd, int kind, int flags, const void *body, size_t length)
{
	sent.head = (struct nlmsghdr){ NLMSG_HDRLEN + length, kind, NLM_F_REQUEST | flags, ++sequence, 0 };
	memcpy(NLMSG_DATA(&sent.head), body, length);
	return send(fd, &sent, sent.head.nlmsg_len, 0);
}

static int receive(int fd)
{
	struct iovec whole = { &came, sizeof came };
	struct msghdr message = { .msg_name = &came_from, .msg_namelen = sizeof came_from, .msg_iov = &whole, .msg_iovlen = 1 };
	came_length = recvmsg(fd, &message, MSG_DONTWAIT);
	return came_length > 0;
}

/* Returns the error of the answer, 0 for an ACK, 1 for any other answer. */
static int error_of(int fd)
{
	if (!receive(fd) || came.head.nlmsg_type != NLMSG_ERROR || came.head.nlmsg_seq != sequence)
		return 1;
	const struct nlmsgerr *error = NLMSG_DATA(&came.head);
	return error->msg.nlmsg_seq == sequence ? -error->error : 1;
}

/* Reads a multi-part answer. Returns the number of messages of `kind`, or -1 if the end is
 * missing. Stores the final message's result in *ended. */
static int count_dump(int fd, int kind, int *ended)
{
	int count = 0, port = own_name(fd).nl_pid;
	while (receive(fd)) {
		ssize_t left = came_length;
		for (struct nlmsghdr *head = &came.head; NLMSG_OK(head, left); head = NLMSG_NEXT(head, left)) {
			if (head->nlmsg_seq != sequence || !(head->nlmsg_flags & NLM_F_MULTI) || (int)head->nlmsg_pid != port)
				return -1;
			if (head->nlmsg_type == NLMSG_DONE) {
				*ended = *(int *)NLMSG_DATA(head);
				ended_filtered = !!(head->nlmsg_flags & NLM_F_DUMP_FILTERED);
				return count;
			}
			count += head->nlmsg_type == kind;
		}
	}
	return -1;
}

static int dump(int fd, int question, const void *body, size_t length)
{
	int ended = -1;
	NEED(ask(fd, question, NLM_F_DUMP, body, length) == (ssize_t)(NLMSG_HDRLEN + length));
	int count = count_dump(fd, question - 2, &ended);
	return ended == 0 ? count : ended;
}

/* Returns an attribute of the received message, which is searched after `skipped` bytes of its
 * body; NULL for none. */
static const struct rtattr *attribute(size_t skipped, int kind)
{
	const struct rtattr *at = (void *)((char *)NLMSG_DATA(&came.head) + NLMSG_ALIGN(skipped));
	for (ssize_t left = came.head.nlmsg_len - NLMSG_LENGTH(skipped); RTA_OK(at, left); at = RTA_NEXT(at, left))
		if (at->rta_type == kind)
			return at;
	return NULL;
}

static int is_value(size_t skipped, int kind, const void *value, size_t length)
{
	const struct rtattr *found = attribute(skipped, kind);
	return found && RTA_PAYLOAD(found) == length && !memcmp(RTA_DATA(found), value, length);
}

static void names(void)
{
	int one = opened(SOCK_RAW), other = opened(SOCK_DGRAM), type = 0;
	socklen_t length = sizeof type;
	struct sockaddr_nl name = { .nl_family = AF_NETLINK };
	PROMISE("a socket has no port at first", own_name(one).nl_pid == 0);
	PROMISE("the first gets the process' number", bind(one, (void *)&name, sizeof name) == 0 && (pid_t)own_name(one).nl_pid == getpid());
	PROMISE("the second another one", bind(other, (void *)&name, sizeof name) == 0 && own_name(other).nl_pid != 0 && (pid_t)own_name(other).nl_pid != getpid());
	FAILS_WITH("not that one again", bind(one, (void *)&name, sizeof name), EINVAL);
	name.nl_pid = getpid();
	PROMISE("but its own", bind(one, (void *)&name, sizeof name) == 0 && (pid_t)own_name(one).nl_pid == getpid());
	name.nl_pid = 77777;
	FAILS_WITH("nobody has two ports", bind(one, (void *)&name, sizeof name), EINVAL);
	int third = opened(SOCK_RAW);
	name.nl_pid = getpid();
	FAILS_WITH("and no port two owners", bind(third, (void *)&name, sizeof name), EADDRINUSE);
	int status;
	IN_CHILD(status, NEED(unshare(CLONE_NEWNET) == 0); _exit(bind(opened(SOCK_RAW), (void *)&name, sizeof name) != 0));
	PROMISE("but in another network namespace", status == 0);
	close(one);
	PROMISE("a port is free when its owner is gone", bind(third, (void *)&name, sizeof name) == 0);
	FAILS_WITH("names are not short", bind(third, (void *)&name, 8), EINVAL);
	name.nl_family = AF_INET;
	FAILS_WITH("nor of another family", bind(third, (void *)&name, sizeof name), EINVAL);
	PROMISE("the peer is the kernel", getpeername(third, (void *)&name, &(socklen_t){ sizeof name }) == 0 && name.nl_pid == 0);
	PROMISE("a socket says its type", getsockopt(third, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_RAW);
	PROMISE("and its domain", getsockopt(third, SOL_SOCKET, SO_DOMAIN, &type, &length) == 0 && type == AF_NETLINK);
	PROMISE("and its protocol", getsockopt(third, SOL_SOCKET, SO_PROTOCOL, &type, &length) == 0 && type == NETLINK_ROUTE);
	FAILS_WITH("streams there are none", socket(AF_NETLINK, SOCK_STREAM, 0), ESOCKTNOSUPPORT);
	FAILS_WITH("nor protocols beyond the last", socket(AF_NETLINK, SOCK_RAW, 99), EPROTONOSUPPORT);
	struct sockaddr_nl events = { .nl_family = AF_NETLINK, .nl_groups = 1 };
	int device = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT);
	char byte;
	PROMISE("events of devices can be waited for", device >= 0 && bind(device, (void *)&events, sizeof events) == 0);
	FAILS_WITH("while there are none", recv(device, &byte, 1, 0), EAGAIN);
	close(device);
	FAILS_WITH("nor pairs", socketpair(AF_NETLINK, SOCK_RAW, 0, (int[2]){ 0 }), EOPNOTSUPP);
	FAILS_WITH("it does not listen", listen(third, 1), EOPNOTSUPP);
	FAILS_WITH("nor end by halves", shutdown(third, SHUT_WR), EOPNOTSUPP);
	close(other);
	close(third);
}

static void links(void)
{
	int fd = opened(SOCK_RAW);
	struct ifinfomsg link = { .ifi_index = 1 };
	struct {
		struct ifinfomsg link;
		struct rtattr name;
		char text[4];
	} named = { .name = { RTA_LENGTH(3), IFLA_IFNAME }, .text = "lo" };
	PROMISE("there is one link", dump(fd, RTM_GETLINK, &link, 1) == 1);
	PROMISE("also for those who ask with all of a header", dump(fd, RTM_GETLINK, &named.link, sizeof link) == 1);
	PROMISE("it is found by its number", ask(fd, RTM_GETLINK, 0, &link, sizeof link) > 0 && receive(fd) && came.head.nlmsg_type == RTM_NEWLINK);
	const struct ifinfomsg *found = NLMSG_DATA(&came.head);
	PROMISE("the kernel says it", came_from.nl_family == AF_NETLINK && came_from.nl_pid == 0 && came_from.nl_groups == 0);
	PROMISE("to whom asked", came.head.nlmsg_seq == sequence && came.head.nlmsg_pid == own_name(fd).nl_pid && came.head.nlmsg_flags == 0);
	PROMISE("it is a loopback with number 1", found->ifi_type == ARPHRD_LOOPBACK && found->ifi_index == 1);
	PROMISE("up and running", found->ifi_flags == (IFF_UP | IFF_LOOPBACK | IFF_RUNNING | 0x10000));
	PROMISE("named lo", is_value(sizeof link, IFLA_IFNAME, "lo", 3));
	PROMISE("with packets of 65,536 bytes", is_value(sizeof link, IFLA_MTU, &(unsigned){ 65536 }, 4));
	PROMISE("and a queue of 1000", is_value(sizeof link, IFLA_TXQLEN, &(unsigned){ 1000 }, 4));
	PROMISE("without queueing", is_value(sizeof link, IFLA_QDISC, "noqueue", 8));
	PROMISE("without address", is_value(sizeof link, IFLA_ADDRESS, "\0\0\0\0\0\0", 6));
	PROMISE("with counters of both widths",
		attribute(sizeof link, IFLA_STATS) && RTA_PAYLOAD(attribute(sizeof link, IFLA_STATS)) == 96 &&
			attribute(sizeof link, IFLA_STATS64) && RTA_PAYLOAD(attribute(sizeof link, IFLA_STATS64)) >= 184);
	PROMISE("it is found by its name", ask(fd, RTM_GETLINK, 0, &named, sizeof link + 8) > 0 && receive(fd) && came.head.nlmsg_type == RTM_NEWLINK);
	link.ifi_index = 2;
	PROMISE("number 2 is not there", ask(fd, RTM_GETLINK, 0, &link, sizeof link) > 0 && error_of(fd) == ENODEV);
	PROMISE("the error repeats the question", came_length == (ssize_t)(NLMSG_LENGTH(sizeof(struct nlmsgerr)) + sizeof link));
	strcpy(named.text, "l1");
	PROMISE("nor another name", ask(fd, RTM_GETLINK, 0, &named, sizeof link + 8) > 0 && error_of(fd) == ENODEV);
	link.ifi_index = 0;
	PROMISE("nobody in particular cannot be asked for", ask(fd, RTM_GETLINK, 0, &link, sizeof link) > 0 && error_of(fd) == EINVAL);
	PROMISE("and no header cut short", ask(fd, RTM_GETLINK, 0, &link, 4) > 0 && error_of(fd) == EINVAL);
	close(fd);
}

static void addresses(void)
{
	int fd = opened(SOCK_DGRAM);
	struct ifaddrmsg any = { 0 };
	PROMISE("lo has two addresses", dump(fd, RTM_GETADDR, &any, sizeof any) == 2);
	any.ifa_family = AF_INET;
	PROMISE("one of version 4", dump(fd, RTM_GETADDR, &any, sizeof any) == 1);
	any.ifa_family = AF_INET6;
	PROMISE("one of version 6", dump(fd, RTM_GETADDR, &any, sizeof any) == 1);
	any.ifa_family = AF_INET;
	NEED(ask(fd, RTM_GETADDR, NLM_F_DUMP, &any, sizeof any) > 0 && receive(fd));
	const struct ifaddrmsg *found = NLMSG_DATA(&came.head);
	PROMISE("127.0.0.1/8", found->ifa_prefixlen == 8 && found->ifa_index == 1 && is_value(sizeof any, IFA_LOCAL, "\x7f\0\0\1", 4) &&
				       is_value(sizeof any, IFA_ADDRESS, "\x7f\0\0\1", 4) && is_value(sizeof any, IFA_LABEL, "lo", 3));
	PROMISE("of this host, for ever", found->ifa_scope == RT_SCOPE_HOST && found->ifa_flags == IFA_F_PERMANENT);
	PROMISE("and that is all", receive(fd) && came.head.nlmsg_type == NLMSG_DONE && !receive(fd) && errno == EAGAIN);
	struct {
		struct ifaddrmsg head;
		struct rtattr address;
		struct in6_addr value;
	} six = { { .ifa_family = AF_INET6 }, { RTA_LENGTH(16), IFA_ADDRESS }, IN6ADDR_LOOPBACK_INIT };
	PROMISE("::1/128 is found", ask(fd, RTM_GETADDR, 0, &six, sizeof six) > 0 && receive(fd) && came.head.nlmsg_type == RTM_NEWADDR &&
					    found->ifa_prefixlen == 128 && is_value(sizeof any, IFA_ADDRESS, &in6addr_loopback, 16));
	six.value.s6_addr[0] = 0x20;
	PROMISE("another is not", ask(fd, RTM_GETADDR, 0, &six, sizeof six) > 0 && error_of(fd) == EADDRNOTAVAIL);
	close(fd);
}

static void routes(void)
{
	int fd = opened(SOCK_RAW);
	struct rtmsg any = { 0 };
	PROMISE("three routes of version 4 lead to lo, and one of version 6", dump(fd, RTM_GETROUTE, &any, sizeof any) == 4);
	any.rtm_family = AF_INET6;
	PROMISE("which is asked for alone", dump(fd, RTM_GETROUTE, &any, sizeof any) == 1);
	struct {
		struct rtmsg head;
		struct rtattr to;
		unsigned address;
	} one = { { .rtm_family = AF_INET, .rtm_dst_len = 32 }, { RTA_LENGTH(4), RTA_DST }, htonl(INADDR_LOOPBACK + 4) };
	PROMISE("a packet to 127.0.0.5 stays here", ask(fd, RTM_GETROUTE, 0, &one, sizeof one) > 0 && receive(fd) && came.head.nlmsg_type == RTM_NEWROUTE);
	const struct rtmsg *found = NLMSG_DATA(&came.head);
	PROMISE("on lo, from 127.0.0.1", found->rtm_type == RTN_LOCAL && is_value(sizeof any, RTA_OIF, &(unsigned){ 1 }, 4) &&
						 is_value(sizeof any, RTA_PREFSRC, "\x7f\0\0\1", 4));
	one.address = htonl(0x0a000001);
	PROMISE("none leads to 10.0.0.1", ask(fd, RTM_GETROUTE, 0, &one, sizeof one) > 0 && error_of(fd) == ENETUNREACH);
	one.head.rtm_family = 0;
	PROMISE("nor is there any of no family", ask(fd, RTM_GETROUTE, 0, &one, sizeof one) > 0 && error_of(fd) == EOPNOTSUPP);
	PROMISE("lo has no neighbours", dump(fd, RTM_GETNEIGH, &any, sizeof any) == 0);
	close(fd);
}

static void strictness(void)
{
	int fd = opened(SOCK_RAW), on = 1, ended;
	struct rtmsg route = { .rtm_family = AF_INET, .rtm_table = RT_TABLE_MAIN };
	struct ifaddrmsg address = { .ifa_index = 2 };
	PROMISE("who is lax gets all", dump(fd, RTM_GETROUTE, &route, sizeof route) == 3 && dump(fd, RTM_GETADDR, &address, sizeof address) == 2 && !ended_filtered);
	PROMISE("one can be strict", setsockopt(fd, SOL_NETLINK, NETLINK_GET_STRICT_CHK, &on, sizeof on) == 0);
	PROMISE("the main table is empty then", dump(fd, RTM_GETROUTE, &route, sizeof route) == 0 && ended_filtered);
	route.rtm_table = RT_TABLE_LOCAL;
	PROMISE("the local one is not", dump(fd, RTM_GETROUTE, &route, sizeof route) == 3);
	route.rtm_table = 77;
	PROMISE("and another is not there", dump(fd, RTM_GETROUTE, &route, sizeof route) == -ENOENT);
	PROMISE("nor is a second link", dump(fd, RTM_GETADDR, &address, sizeof address) == -ENODEV);
	PROMISE("a header cut short is none", ask(fd, RTM_GETLINK, NLM_F_DUMP, "", 1) > 0 && count_dump(fd, RTM_NEWLINK, &ended) == 0 && ended == -EINVAL);
	close(fd);
}

static void answers(void)
{
	int fd = opened(SOCK_RAW), on = 1;
	struct ifinfomsg link = { .ifi_index = 1 };
	PROMISE("an ACK comes where it is wished for", ask(fd, RTM_GETLINK, NLM_F_ACK, &link, sizeof link) > 0 && receive(fd) && error_of(fd) == 0);
	PROMISE("with the header alone", came_length == NLMSG_LENGTH(sizeof(struct nlmsgerr)));
	PROMISE("what is unknown is not supported", ask(fd, 200, 0, &link, sizeof link) > 0 && error_of(fd) == EOPNOTSUPP);
	PROMISE("not even by all", ask(fd, 98, NLM_F_DUMP, &link, sizeof link) > 0 && error_of(fd) == EOPNOTSUPP);
	PROMISE("an error can be short", setsockopt(fd, SOL_NETLINK, NETLINK_CAP_ACK, &on, sizeof on) == 0 && ask(fd, 200, 0, &link, sizeof link) > 0 &&
						 error_of(fd) == EOPNOTSUPP && came_length == NLMSG_LENGTH(sizeof(struct nlmsgerr)));
	PROMISE("what is netlink's own is only acknowledged", ask(fd, NLMSG_NOOP, NLM_F_ACK, &link, 4) > 0 && error_of(fd) == 0);
	PROMISE("without body there is no answer", ask(fd, RTM_GETLINK, 0, "", 0) > 0 && !receive(fd) && errno == EAGAIN);
	sent.head.nlmsg_flags = 0;
	PROMISE("nor to what is no request", send(fd, &sent, sizeof sent.head, 0) == sizeof sent.head && !receive(fd));
	sent.head = (struct nlmsghdr){ 999, RTM_GETLINK, NLM_F_REQUEST | NLM_F_ACK, 1, 0 };
	PROMISE("nor to what is longer than it is", send(fd, &sent, 40, 0) == 40 && !receive(fd));
	PROMISE("nor to less than a header", send(fd, &sent, 3, 0) == 3 && !receive(fd));
	sent.head.nlmsg_len = 15;
	PROMISE("nor to a length below that", send(fd, &sent, 40, 0) == 40 && !receive(fd));
	FAILS_WITH("nothing is no request", send(fd, &sent, 0, 0), ENODATA);
	for (int i = 0; i < 2; i++)
		((struct nlmsghdr *)sent.bytes)[i] = (struct nlmsghdr){ 16, NLMSG_NOOP, NLM_F_REQUEST | NLM_F_ACK, sequence = 50 + i, 0 };
	PROMISE("two requests in one send get two answers", send(fd, &sent, 32, 0) == 32 && receive(fd) && came.head.nlmsg_seq == 50 && error_of(fd) == 0);
	link.ifi_index = 1;
	NEED(ask(fd, RTM_GETLINK, 0, &link, sizeof link) > 0);
	ssize_t whole = recv(fd, &came, 10, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
	PROMISE("one can look how long an answer is", whole > 500 && recv(fd, &came, sizeof came, MSG_DONTWAIT) == whole);
	struct pollfd ready = { fd, POLLIN | POLLOUT, 0 };
	PROMISE("poll says that nothing waits", poll(&ready, 1, 0) == 1 && ready.revents == POLLOUT);
	NEED(ask(fd, RTM_GETLINK, 0, &link, sizeof link) > 0);
	PROMISE("and that something does", poll(&ready, 1, 0) == 1 && ready.revents == (POLLIN | POLLOUT));
	close(fd);
}

static void rights(void)
{
	struct sockaddr_nl other = { .nl_family = AF_NETLINK, .nl_pid = 99999 };
	struct ifinfomsg up = { .ifi_index = 1, .ifi_flags = IFF_UP, .ifi_change = IFF_UP };
	int status, fd = opened(SOCK_RAW);
	if (geteuid() != 0)
		return;
	IN_CHILD(status, NEED(setuid(1000) == 0); int own = opened(SOCK_RAW); NEED(dump(own, RTM_GETLINK, &up, 1) == 1);
		 NEED(ask(own, RTM_NEWLINK, NLM_F_ACK, &up, sizeof up) > 0 && error_of(own) == EPERM);
		 NEED(sendto(own, &sent, 16, 0, (void *)&other, sizeof other) == -1 && errno == EPERM));
	PROMISE("everybody may ask, and only who may can change", status == 0);
	PROMISE("lo can be brought up", ask(fd, RTM_NEWLINK, NLM_F_ACK, &up, sizeof up) > 0 && error_of(fd) == 0);
	FAILS_WITH("there is nobody else", sendto(fd, &sent, 16, 0, (void *)&other, sizeof other), ECONNREFUSED);
	close(fd);
}

/* Unread answers are bounded, and their loss is reported. */
static void overruns(void)
{
	int fd = opened(SOCK_RAW), sends = 0, error = 0;
	struct ifinfomsg link = { .ifi_index = 1 };
	while (sends < 5000 && ask(fd, RTM_GETLINK, 0, &link, sizeof link) > 0)
		sends++;
	int answers = 0;
	for (int i = 0; i < 6000; i++)
		if (receive(fd))
			answers++;
		else if (errno == EAGAIN)
			break;
		else
			error = errno;
	PROMISE("who does not read loses answers and is told", sends == 5000 && answers > 0 && answers < 5000 && error == ENOBUFS);
	PROMISE("and can go on", ask(fd, RTM_GETLINK, 0, &link, sizeof link) > 0 && receive(fd) && came.head.nlmsg_type == RTM_NEWLINK);
	close(fd);
}

static void the_library(void)
{
	struct ifaddrs *all = NULL;
	int links = 0, four = 0, six = 0, others = 0;
	PROMISE("getifaddrs has a list", getifaddrs(&all) == 0);
	for (struct ifaddrs *at = all; at; at = at->ifa_next) {
		others += !!strcmp(at->ifa_name, "lo") || !(at->ifa_flags & IFF_LOOPBACK) || !at->ifa_addr;
		if (!at->ifa_addr)
			continue;
		links += at->ifa_addr->sa_family == AF_PACKET && ((struct sockaddr_ll *)at->ifa_addr)->sll_ifindex == 1;
		four += at->ifa_addr->sa_family == AF_INET && ((struct sockaddr_in *)at->ifa_netmask)->sin_addr.s_addr == htonl(0xff000000);
		six += at->ifa_addr->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *)at->ifa_addr)->sin6_addr);
	}
	freeifaddrs(all);
	PROMISE("of a link and two addresses", links == 1 && four == 1 && six == 1 && others == 0);
	struct if_nameindex *names = if_nameindex();
	PROMISE("if_nameindex has lo", names && names[0].if_index == 1 && !strcmp(names[0].if_name, "lo") && names[1].if_index == 0);
	if_freenameindex(names);
}

static void the_list(void)
{
	int fd = opened(SOCK_RAW), found = 0;
	struct sockaddr_nl name = { .nl_family = AF_NETLINK, .nl_groups = 0x11 };
	char line[256];
	NEED(bind(fd, (void *)&name, sizeof name) == 0);
	FILE *list = fopen("/proc/net/netlink", "re");
	NEED(list);
	PROMISE("/proc/net/netlink has a title", fgets(line, sizeof line, list) && !strcmp(line, "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n"));
	while (fgets(line, sizeof line, list)) {
		unsigned protocol, port, groups;
		found += sscanf(line, "%*x %u %u %x", &protocol, &port, &groups) == 3 && protocol == NETLINK_ROUTE && port == own_name(fd).nl_pid && groups == 0x11;
	}
	PROMISE("and a line for each socket", found == 1);
	int none = 0;
	PROMISE("groups can be joined", setsockopt(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &(int){ 3 }, 4) == 0 && own_name(fd).nl_groups == 0x15);
	PROMISE("and left", setsockopt(fd, SOL_NETLINK, NETLINK_DROP_MEMBERSHIP, &(int){ 1 }, 4) == 0 && own_name(fd).nl_groups == 0x14);
	FAILS_WITH("if they are there", setsockopt(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &none, 4), EINVAL);
	fclose(list);
	close(fd);
}

/* The last entry with the wanted inode. list_sockets() lists the sockets of a family and
 * protocol, sets this entry, and returns the number of all sockets or a negative error. */
static struct inet_diag_msg found_inet;
static struct unix_diag_msg found_unix;
static char found_name[120];
static size_t found_name_length;

static int list_sockets(int fd, int family, int protocol, unsigned states, unsigned long inode, int *times)
{
	struct inet_diag_req_v2 inet = { .sdiag_family = family, .sdiag_protocol = protocol, .idiag_states = states };
	struct unix_diag_req local = { .sdiag_family = AF_UNIX, .udiag_states = states, .udiag_show = UDIAG_SHOW_NAME };
	const void *body = family == AF_UNIX ? (void *)&local : (void *)&inet;
	int count = 0;
	*times = 0;
	NEED(ask(fd, SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, body, family == AF_UNIX ? sizeof local : sizeof inet) > 0);
	while (receive(fd)) {
		ssize_t left = came_length;
		for (struct nlmsghdr *head = &came.head; NLMSG_OK(head, left); head = NLMSG_NEXT(head, left)) {
			if (head->nlmsg_type == NLMSG_DONE)
				return *(int *)NLMSG_DATA(head) ? *(int *)NLMSG_DATA(head) : count;
			if (head->nlmsg_type == NLMSG_ERROR)
				return ((struct nlmsgerr *)NLMSG_DATA(head))->error;
			count++;
			struct inet_diag_msg *here = NLMSG_DATA(head);
			struct unix_diag_msg *there = NLMSG_DATA(head);
			if (family != AF_UNIX && here->idiag_inode == inode) {
				found_inet = *here;
				++*times;
			} else if (family == AF_UNIX && there->udiag_ino == inode) {
				struct rtattr *name = (void *)(there + 1);
				found_unix = *there;
				found_name_length = 0;
				if (name->rta_type == UNIX_DIAG_NAME && RTA_PAYLOAD(name) <= sizeof found_name)
					memcpy(found_name, RTA_DATA(name), found_name_length = RTA_PAYLOAD(name));
				++*times;
			}
		}
	}
	return -EPROTO;
}

static unsigned long inode_of(int fd)
{
	struct stat what;
	NEED(fstat(fd, &what) == 0);
	return what.st_ino;
}

/* A stock Linux may have these lists in modules that are not installed. */
static void lists_of_sockets(void)
{
	enum { MANY = 200 };
	int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG), times, all[MANY], type;
	NEED(fd >= 0);
	if (list_sockets(fd, AF_INET, IPPROTO_TCP, ~0u, 0, &times) == -ENOENT)
		return;
	struct sockaddr_in name = { AF_INET, 0, { htonl(INADDR_LOOPBACK) }, { 0 } };
	socklen_t length = sizeof name;
	int server = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
	NEED(bind(server, (void *)&name, sizeof name) == 0 && listen(server, 9) == 0 && getsockname(server, (void *)&name, &length) == 0);
	NEED(connect(client, (void *)&name, sizeof name) == 0);
	PROMISE("a list has the socket that listens", list_sockets(fd, AF_INET, IPPROTO_TCP, 1 << TCP_LISTEN, inode_of(server), &times) >= 1 && times == 1);
	PROMISE("with its port and address", found_inet.id.idiag_sport == name.sin_port && found_inet.id.idiag_src[0] == htonl(INADDR_LOOPBACK));
	PROMISE("its state, its user and its queue", found_inet.idiag_state == TCP_LISTEN && found_inet.idiag_uid == geteuid() && found_inet.idiag_rqueue == 1 &&
							     found_inet.idiag_wqueue == 9);
	PROMISE("but not those of other states", list_sockets(fd, AF_INET, IPPROTO_TCP, 1 << TCP_LISTEN, inode_of(client), &times) >= 1 && times == 0);
	PROMISE("which are where they were asked for", list_sockets(fd, AF_INET, IPPROTO_TCP, 1 << TCP_ESTABLISHED, inode_of(client), &times) >= 1 && times == 1 &&
								found_inet.id.idiag_dport == name.sin_port);
	PROMISE("a protocol that is not there has no list", list_sockets(fd, AF_INET, 200, ~0u, 0, &times) == -ENOENT);
	PROMISE("nor a family", list_sockets(fd, 44, IPPROTO_TCP, ~0u, 0, &times) == -ENOENT);
	PROMISE("a request cut short is none", ask(fd, SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, "", 1) > 0 && error_of(fd) == EINVAL);
	PROMISE("nor one of another type", ask(fd, 99, NLM_F_DUMP, "\2\6", 2) > 0 && error_of(fd) == EINVAL);
	for (int i = 0; i < MANY; i++) {
		name.sin_port = 0;
		NEED((all[i] = socket(AF_INET, SOCK_DGRAM, 0)) >= 0 && bind(all[i], (void *)&name, sizeof name) == 0);
	}
	int once = 1;
	for (int i = 0; i < MANY; i += 50)
		once &= list_sockets(fd, AF_INET, IPPROTO_UDP, ~0u, inode_of(all[i]), &times) >= MANY && times == 1;
	PROMISE("a long list has each socket once", once);
	for (int i = 0; i < MANY; i++)
		close(all[i]);
	int local = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	struct sockaddr_un path = { AF_UNIX, "\0diag" };
	NEED(bind(local, (void *)&path, sizeof path.sun_family + 5) == 0 && listen(local, 3) == 0);
	PROMISE("sockets of AF_UNIX have a list, too", list_sockets(fd, AF_UNIX, 0, 1 << TCP_LISTEN, inode_of(local), &times) >= 1 && times == 1);
	PROMISE("with type, state and name", found_unix.udiag_type == SOCK_SEQPACKET && found_unix.udiag_state == TCP_LISTEN && found_name_length == 5 &&
						     !memcmp(found_name, "\0diag", 5));
	length = sizeof type;
	PROMISE("such a socket says its protocol", getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &type, &length) == 0 && type == NETLINK_SOCK_DIAG);
	close(local);
	close(client);
	close(server);
	close(fd);
}

int main(void)
{
	set_loopback_up();
	names();
	links();
	addresses();
	routes();
	strictness();
	answers();
	rights();
	overruns();
	the_library();
	the_list();
	lists_of_sockets();
	return conclude();
}
