/* The network as programs see it: netdevice(7), proc(5) for /proc/net, /sys/class/net. */
#include "promise.h"
#include "loopback.h"

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#define LINE 512

static struct ifreq asked(int family, const char *name, unsigned long request, int *error)
{
	struct ifreq lo;
	int fd = socket(family, SOCK_DGRAM, 0);
	NEED(fd >= 0);
	memset(&lo, 0x11, sizeof lo);
	strcpy(lo.ifr_name, name);
	*error = ioctl(fd, request, &lo) ? errno : 0;
	close(fd);
	return lo;
}

static int error_of(int family, const char *name, unsigned long request)
{
	int error;
	asked(family, name, request, &error);
	return error;
}

static struct ifreq of_lo(unsigned long request)
{
	int error;
	struct ifreq lo = asked(AF_INET, "lo", request, &error);
	NEED(error == 0);
	return lo;
}

static int is_address(const struct sockaddr *any, const char *text)
{
	const struct sockaddr_in *name = (const struct sockaddr_in *)any;
	return name->sin_family == AF_INET && name->sin_port == 0 && name->sin_addr.s_addr == inet_addr(text);
}

static void the_device(void)
{
	static const int families[] = { AF_INET, AF_INET6, AF_UNIX };
	static const unsigned long any[] = { SIOCGIFINDEX, SIOCGIFFLAGS, SIOCGIFMTU, SIOCGIFHWADDR, SIOCGIFTXQLEN, SIOCGIFMETRIC, SIOCGIFMAP };
	static const unsigned long addresses[] = { SIOCGIFADDR, SIOCGIFNETMASK, SIOCGIFBRDADDR, SIOCGIFDSTADDR };
	int all = 1, none = 1, others = 1;
	for (int i = 0; i < 7; i++)
		for (int k = 0; k < 3; k++) {
			all &= error_of(families[k], "lo", any[i]) == 0;
			none &= error_of(families[k], "eth9", any[i]) == ENODEV;
		}
	PROMISE("sockets of every family say what lo is", all);
	PROMISE("there is no other device", none);
	for (int i = 0; i < 4; i++)
		others &= error_of(AF_INET6, "lo", addresses[i]) == ENOTTY && error_of(AF_UNIX, "lo", addresses[i]) == ENOTTY;
	PROMISE("addresses of version 4 are asked of sockets of AF_INET", others);
	PROMISE("lo has index 1", of_lo(SIOCGIFINDEX).ifr_ifindex == 1 && if_nametoindex("lo") == 1);
	PROMISE("lo is up, running, and a loopback", of_lo(SIOCGIFFLAGS).ifr_flags == (IFF_UP | IFF_LOOPBACK | IFF_RUNNING));
	PROMISE("lo takes packets of 65,536 bytes", of_lo(SIOCGIFMTU).ifr_mtu == 65536);
	PROMISE("lo has a queue of 1000 packets", of_lo(SIOCGIFTXQLEN).ifr_qlen == 1000);
	struct ifreq lo = of_lo(SIOCGIFHWADDR);
	PROMISE("lo has no address of hardware",
		lo.ifr_hwaddr.sa_family == ARPHRD_LOOPBACK && !memcmp(lo.ifr_hwaddr.sa_data, "\0\0\0\0\0\0", 6));
	lo = of_lo(SIOCGIFADDR);
	PROMISE("lo is 127.0.0.1", is_address(&lo.ifr_addr, "127.0.0.1"));
	lo = of_lo(SIOCGIFNETMASK);
	PROMISE("of 127.0.0.0/8", is_address(&lo.ifr_netmask, "255.0.0.0"));
	lo = of_lo(SIOCGIFBRDADDR);
	PROMISE("without broadcasts", is_address(&lo.ifr_broadaddr, "0.0.0.0"));
	PROMISE("an alias that is not there has no address", error_of(AF_INET, "lo:7", SIOCGIFADDR) == EADDRNOTAVAIL);
	PROMISE("but is lo's", error_of(AF_INET, "lo:7", SIOCGIFFLAGS) == 0);
	PROMISE("lo is nobody's slave", error_of(AF_INET, "lo", SIOCGIFSLAVE) == EINVAL);
	char name[IF_NAMESIZE] = "";
	PROMISE("number 1 is lo", if_indextoname(1, name) && !strcmp(name, "lo"));
	FAILS_WITH("number 2 is nobody", if_indextoname(2, name) ? 0 : -1, ENXIO);
}

static void the_list(void)
{
	struct ifreq list[3];
	struct ifconf wanted = { .ifc_len = sizeof list, .ifc_req = list };
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	memset(list, 0x22, sizeof list);
	PROMISE("the list of interfaces has one", ioctl(fd, SIOCGIFCONF, &wanted) == 0 && wanted.ifc_len == sizeof *list);
	PROMISE("which is lo with its address", !strcmp(list[0].ifr_name, "lo") && is_address(&list[0].ifr_addr, "127.0.0.1"));
	PROMISE("and no more is written", list[1].ifr_name[0] == 0x22);
	wanted = (struct ifconf){ .ifc_len = 0 };
	PROMISE("without room the list says how much it wants", ioctl(fd, SIOCGIFCONF, &wanted) == 0 && wanted.ifc_len == sizeof *list);
	wanted = (struct ifconf){ .ifc_len = sizeof *list - 1, .ifc_req = list };
	PROMISE("with too little there is nothing", ioctl(fd, SIOCGIFCONF, &wanted) == 0 && wanted.ifc_len == 0);
	FAILS_WITH("the list goes where memory is", ioctl(fd, SIOCGIFCONF, NULL), EFAULT);
	FAILS_WITH("and answers, too", ioctl(fd, SIOCGIFFLAGS, NULL), EFAULT);
	close(fd);
}

static void changes(void)
{
	int status;
	if (geteuid() != 0)
		return;
	static const unsigned long requests[] = { SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFMTU, SIOCSIFTXQLEN, SIOCSIFHWADDR, SIOCADDRT };
	IN_CHILD(status, NEED(setuid(1000) == 0); for (int i = 0; i < 6; i++) NEED(error_of(AF_INET, "lo", requests[i]) == EPERM));
	PROMISE("only who may changes the network", status == 0);
	PROMISE("nobody changes a device that is not there", error_of(AF_INET, "eth9", SIOCSIFMTU) == ENODEV);
	struct ifreq lo = { .ifr_name = "lo", .ifr_mtu = 65536 };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	PROMISE("what is so can be set", ioctl(fd, SIOCSIFMTU, &lo) == 0);
	FAILS_WITH("a metric cannot", ioctl(fd, SIOCSIFMETRIC, &lo), EOPNOTSUPP);
	FAILS_WITH("other requests are none of a socket's", ioctl(fd, 0x5401, &lo), ENOTTY);
	close(fd);
}

static union {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
	struct sockaddr_un un;
} name;
static socklen_t length;

/* A socket of `family` at the loopback address, any port. */
static int bound(int family, int kind)
{
	int fd = socket(family, kind, 0);
	memset(&name, 0, sizeof name);
	name.any.sa_family = family;
	if (family == AF_INET)
		name.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	else
		name.v6.sin6_addr = in6addr_loopback;
	length = family == AF_INET ? sizeof name.v4 : sizeof name.v6;
	NEED(fd >= 0 && bind(fd, &name.any, length) == 0 && getsockname(fd, &name.any, &length) == 0);
	return fd;
}

static unsigned long inode_of(int fd)
{
	struct stat what;
	NEED(fstat(fd, &what) == 0);
	return what.st_ino;
}

/* Finds the line of /proc/net/`file` with this inode in its field of inodes; returns the number
 * of such lines. */
static int find_line(const char *file, unsigned long inode, char *line)
{
	char path[64], some[LINE], wanted[32];
	int found = 0;
	snprintf(path, sizeof path, "/proc/net/%s", file);
	snprintf(wanted, sizeof wanted, " %lu", inode);
	FILE *list = fopen(path, "re");
	NEED(list);
	while (fgets(some, sizeof some, list)) {
		char *at = strstr(some, wanted);
		if (at && strchr(" \n", at[strlen(wanted)])) {
			strcpy(line, some);
			found++;
		}
	}
	fclose(list);
	return found;
}

struct row {
	char local[48], remote[48];
	unsigned line, state, sent, waiting, owner;
};

static int find(const char *file, int fd, struct row *row)
{
	char line[LINE];
	memset(row, 0, sizeof *row);
	return find_line(file, inode_of(fd), line) == 1 &&
	       sscanf(line, "%u: %47s %47s %x %x:%x %*x:%*x %*x %u", &row->line, row->local, row->remote, &row->state, &row->sent,
		      &row->waiting, &row->owner) == 7;
}

static int ends_with_port(const char *text, int port)
{
	char wanted[8];
	snprintf(wanted, sizeof wanted, ":%04X", port);
	return strlen(text) > 5 && !strcmp(text + strlen(text) - 5, wanted);
}

static void lists_of_tcp(int family, const char *file, const char *loopback, const char *any)
{
	struct row row, other;
	int server = bound(family, SOCK_STREAM), port = ntohs(family == AF_INET ? name.v4.sin_port : name.v6.sin6_port);
	PROMISE("a socket that is only bound is in no list", !find(file, server, &row));
	NEED(listen(server, 5) == 0);
	PROMISE("one that listens is", find(file, server, &row) && row.state == 10);
	PROMISE("with its address", !strncmp(row.local, loopback, strlen(loopback)) && ends_with_port(row.local, port));
	PROMISE("and nobody at the other end", !strcmp(row.remote, any) && row.sent == 0 && row.waiting == 0);
	int client = socket(family, SOCK_STREAM, 0);
	NEED(connect(client, &name.any, length) == 0);
	PROMISE("a connection waits to be accepted", COMES_TRUE(find(file, server, &row) && row.waiting == 1));
	int ends[2] = { client, accept(server, NULL, NULL) };
	NEED(ends[1] >= 0 && send(ends[0], "hello", 5, 0) == 5);
	PROMISE("after that none does", find(file, server, &row) && row.waiting == 0);
	PROMISE("both ends are listed", find(file, ends[0], &row) && row.state == 1 && find(file, ends[1], &other) && other.state == 1);
	PROMISE("each with the other's address", !strcmp(row.local, other.remote) && !strcmp(row.remote, other.local));
	PROMISE("those that listen come first", other.line > 0 && row.line > 0);
	PROMISE("bytes that wait are counted", COMES_TRUE(find(file, ends[1], &other) && other.waiting == 5));
	int waiting = -1, unsent = -1;
	PROMISE("as FIONREAD does", ioctl(ends[1], SIOCINQ, &waiting) == 0 && waiting == 5);
	PROMISE("what the peer has is not waiting to be sent", COMES_TRUE(ioctl(ends[0], SIOCOUTQ, &unsent) == 0 && unsent == 0));
	PROMISE("and none is urgent", ioctl(ends[0], SIOCATMARK, &unsent) == 0 && unsent == 0);
	FAILS_WITH("one that listens has nothing to send", ioctl(server, SIOCOUTQ, &unsent), EINVAL);
	char bytes[8];
	NEED(recv(ends[1], bytes, 8, 0) == 5);
	shutdown(ends[0], SHUT_WR);
	PROMISE("half a connection is FIN_WAIT2 and CLOSE_WAIT",
		COMES_TRUE(find(file, ends[0], &row) && row.state == 5 && find(file, ends[1], &row) && row.state == 8));
	shutdown(ends[1], SHUT_WR);
	PROMISE("and a closed one is in no list", COMES_TRUE(!find(file, ends[0], &row) && !find(file, ends[1], &row)));
	close(ends[0]);
	close(ends[1]);
	close(server);
}

static void lists_of_udp(int family, const char *file, const char *loopback, const char *any)
{
	struct row row;
	int one = bound(family, SOCK_DGRAM), port = ntohs(family == AF_INET ? name.v4.sin_port : name.v6.sin6_port);
	int other = socket(family, SOCK_DGRAM, 0);
	PROMISE("a UDP socket without a port is in no list", !find(file, other, &row));
	PROMISE("a bound one is, as closed", find(file, one, &row) && row.state == 7 && !strcmp(row.remote, any));
	PROMISE("with its address", !strncmp(row.local, loopback, strlen(loopback)) && ends_with_port(row.local, port));
	NEED(connect(other, &name.any, length) == 0 && send(other, "abc", 3, 0) == 3);
	PROMISE("a connected one is established", find(file, other, &row) && row.state == 1 && ends_with_port(row.remote, port));
	PROMISE("bytes that wait are counted", COMES_TRUE(find(file, one, &row) && row.waiting >= 3));
	int waiting = -1;
	PROMISE("as FIONREAD counts the first datagram", ioctl(one, SIOCINQ, &waiting) == 0 && waiting == 3);
	close(other);
	close(one);
}

static void the_list_of_unix(void)
{
	int pair[2], alone = socket(AF_UNIX, SOCK_DGRAM, 0), server = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	unsigned references, protocol, flags, kind, state;
	char line[LINE], wanted[64];
#define UNIX(fd)                                                                                                   \
	(find_line("unix", inode_of(fd), line) == 1 &&                                                             \
	 sscanf(line, "%*x: %x %x %x %x %x", &references, &protocol, &flags, &kind, &state) == 5)
	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	PROMISE("a pair of AF_UNIX is connected", UNIX(pair[0]) && protocol == 0 && flags == 0 && kind == 1 && state == 3);
	PROMISE("one alone is not", UNIX(alone) && kind == 2 && state == 1);
	memset(&name, 0, sizeof name);
	name.un.sun_family = AF_UNIX;
	snprintf(name.un.sun_path + 1, 40, "network %d", getpid());
	NEED(bind(server, &name.any, offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name.un.sun_path + 1)) == 0 && listen(server, 3) == 0);
	snprintf(wanted, sizeof wanted, " @%s\n", name.un.sun_path + 1);
	PROMISE("one that listens says so, and its name", UNIX(server) && kind == 5 && state == 1 && flags == 0x10000 && strstr(line, wanted));
	int unread = -1;
	NEED(write(pair[0], "hello", 5) == 5);
	PROMISE("what the peer did not read waits", ioctl(pair[0], SIOCOUTQ, &unread) == 0 && unread >= 5);
	NEED(read(pair[1], line, 8) == 5);
	PROMISE("until it did", ioctl(pair[0], SIOCOUTQ, &unread) == 0 && unread == 0);
	close(pair[0]);
	close(pair[1]);
	close(alone);
	close(server);
}

/* The line of a file under /proc/net with this number, without the line feed. */
static const char *line_of(const char *file, int number)
{
	static char line[LINE];
	char path[64];
	snprintf(path, sizeof path, "/proc/net/%s", file);
	FILE *list = fopen(path, "re");
	NEED(list);
	line[0] = 0;
	for (int at = 0; at <= number; at++)
		if (!fgets(line, sizeof line, list))
			line[0] = 0;
	fclose(list);
	line[strcspn(line, "\n")] = 0;
	return line;
}

static void the_other_files(void)
{
	char target[16] = "";
	PROMISE("/proc/net is this process' own", readlink("/proc/net", target, 15) == 8 && !strcmp(target, "self/net"));
	PROMISE("and a thread has one, too", access("/proc/thread-self/net/tcp", R_OK) == 0);
	PROMISE("dev has two titles and lo",
		!strncmp(line_of("dev", 0), "Inter-|   Receive  ", 19) && !strncmp(line_of("dev", 1), " face |bytes    packets errs", 28) &&
			!strncmp(line_of("dev", 2), "    lo:", 7));
	PROMISE("with 16 counters", sscanf(line_of("dev", 2), "    lo: %*u %*u %*u %*u %*u %*u %*u %*u %*u %*u %*u %*u %*u %*u %*u %u", &(unsigned){ 0 }) == 1);
	PROMISE("no route leads away", !strncmp(line_of("route", 0), "Iface\tDestination\tGateway \tFlags\t", 33));
	PROMISE("that is all of it", !*line_of("route", 1));
	PROMISE("if_inet6 has ::1", !strcmp(line_of("if_inet6", 0), "00000000000000000000000000000001 01 80 10 80       lo"));
	PROMISE("arp has a title", !strcmp(line_of("arp", 0), "IP address       HW type     Flags       HW address            Mask     Device"));
	PROMISE("tcp has a title of 149 columns", strlen(line_of("tcp", 0)) == 149 && !strncmp(line_of("tcp", 0), "  sl  local_address rem_address   st", 36));
	PROMISE("udp has one of 127", strlen(line_of("udp", 0)) == 127);
	PROMISE("unix has one", !strcmp(line_of("unix", 0), "Num       RefCount Protocol Flags    Type St Inode Path"));
	PROMISE("sockstat says how many there are", !strncmp(line_of("sockstat", 0), "sockets: used ", 14) && !strncmp(line_of("sockstat", 1), "TCP: inuse ", 11));
	PROMISE("snmp begins with what IP does", !strncmp(line_of("snmp", 1), "Ip: 2 64 ", 9) && !strncmp(line_of("snmp", 5), "Tcp: 1 200 120000 -1 ", 21));
	PROMISE("protocols has a title", !strncmp(line_of("protocols", 0), "protocol  size sockets  memory press maxhdr  slab module", 56));
	FAILS_WITH("nobody writes there", open("/proc/net/tcp", O_WRONLY), EACCES);
	FAILS_WITH("nor finds what is not there", open("/proc/net/nothing", O_RDONLY), ENOENT);
}

/* Each of many sockets is listed once, for any size of the reads. */
static void many_sockets(void)
{
	enum { MANY = 300 };
	static int fds[MANY];
	static char text[1 << 17];
	int file = open("/proc/net/udp", O_RDONLY), seen = 0, once = 1;
	for (int i = 0; i < MANY; i++)
		fds[i] = bound(AF_INET, SOCK_DGRAM);
	size_t size = 0;
	for (ssize_t count; (count = read(file, text + size, 100 + size % 1000)) > 0;)
		size += count;
	for (int i = 0; i < MANY; i++) {
		char wanted[32];
		snprintf(wanted, sizeof wanted, " %lu ", inode_of(fds[i]));
		char *at = strstr(text, wanted);
		seen += at != NULL;
		once &= !at || !strstr(at + 1, wanted);
	}
	PROMISE("a list that is read in pieces has each of 300 sockets once", seen == MANY && once);
	for (int i = 0; i < MANY; i++)
		close(fds[i]);
	PROMISE("and from the beginning again none of them", lseek(file, 0, SEEK_SET) == 0 && (size = read(file, text, sizeof text - 1)) > 0);
	text[size] = 0;
	int gone = 1;
	for (char *at = text; (at = strchr(at, '\n')); at++)
		gone++;
	PROMISE("since they are closed", gone < MANY);
	close(file);
}

static int says(const char *file, const char *text)
{
	char path[64], line[64] = "";
	snprintf(path, sizeof path, "/sys/class/net/lo/%s", file);
	int fd = open(path, O_RDONLY);
	ssize_t count = fd < 0 ? -1 : read(fd, line, sizeof line - 1);
	close(fd);
	return count > 0 && !strcmp(line, text);
}

static void the_device_in_sysfs(void)
{
	PROMISE("lo is a device in /sys", says("ifindex", "1\n") && says("type", "772\n") && says("mtu", "65536\n"));
	PROMISE("without address", says("address", "00:00:00:00:00:00\n") && says("addr_len", "6\n"));
	PROMISE("up, but with no state of its own", says("flags", "0x9\n") && says("operstate", "unknown\n") && says("carrier", "1\n"));
	PROMISE("and counters", access("/sys/class/net/lo/statistics/rx_bytes", R_OK) == 0);
}

int main(void)
{
	set_loopback_up();
	the_device();
	the_list();
	changes();
	lists_of_tcp(AF_INET, "tcp", "0100007F:", "00000000:0000");
	lists_of_tcp(AF_INET6, "tcp6", "00000000000000000000000001000000:", "00000000000000000000000000000000:0000");
	lists_of_udp(AF_INET, "udp", "0100007F:", "00000000:0000");
	lists_of_udp(AF_INET6, "udp6", "00000000000000000000000001000000:", "00000000000000000000000000000000:0000");
	the_list_of_unix();
	the_other_files();
	many_sockets();
	the_device_in_sysfs();
	return conclude();
}
