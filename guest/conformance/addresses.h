/* IP addresses as text, and socket options whose values are numbers. Needs promise.h. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

static inline struct sockaddr_in v4(const char *ip, int port)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_port = htons(port) };
	NEED(inet_pton(AF_INET, ip, &name.sin_addr) == 1);
	return name;
}

static inline struct sockaddr_in6 v6(const char *ip, int port)
{
	struct sockaddr_in6 name = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	NEED(inet_pton(AF_INET6, ip, &name.sin6_addr) == 1);
	return name;
}

static inline int set(int fd, int level, int name, int value)
{
	return setsockopt(fd, level, name, &value, sizeof value);
}

/* Returns the value of an option; -77 if getsockopt fails. */
static inline int get(int fd, int level, int name)
{
	int value = -77;
	socklen_t length = sizeof value;
	return getsockopt(fd, level, name, &value, &length) == 0 && length == sizeof value ? value : -77;
}
