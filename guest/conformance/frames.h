/* Packet sockets at the loopback device, and datagrams for them. Needs promise.h, addresses.h. */
#include <linux/if_packet.h>
#include <net/ethernet.h>

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

#define LO 1
#define PORT 5077

static inline int opened(int kind, int protocol)
{
	int fd = socket(AF_PACKET, kind | SOCK_CLOEXEC, htons(protocol));
	NEED(fd >= 0);
	return fd;
}

static inline struct sockaddr_ll at(int interface, int protocol)
{
	return (struct sockaddr_ll){ .sll_family = AF_PACKET, .sll_protocol = htons(protocol), .sll_ifindex = interface, .sll_halen = 6 };
}

static inline int bound_to(int fd, int interface, int protocol)
{
	struct sockaddr_ll name = at(interface, protocol);
	return bind(fd, (struct sockaddr *)&name, sizeof name);
}

static inline void sends_datagram(const char *text)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in to = v4("127.0.0.1", PORT);
	NEED(fd >= 0 && sendto(fd, text, strlen(text), 0, (struct sockaddr *)&to, sizeof to) == (ssize_t)strlen(text));
	close(fd);
}

static inline int receiver(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in own = v4("127.0.0.1", PORT);
	NEED(fd >= 0 && bind(fd, (struct sockaddr *)&own, sizeof own) == 0);
	return fd;
}
