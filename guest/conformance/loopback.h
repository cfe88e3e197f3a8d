/* The loopback device, for tests that also run where it is down. Needs promise.h. */
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* Sets it up: a stock Linux begins with it down. */
static inline void set_loopback_up(void)
{
	struct ifreq up = { .ifr_name = "lo", .ifr_flags = IFF_UP };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	NEED(fd >= 0);
	ioctl(fd, SIOCSIFFLAGS, &up);
	close(fd);
}
