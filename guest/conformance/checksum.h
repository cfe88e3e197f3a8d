/* The checksum of IP and its protocols (RFC 1071). */
#include <stddef.h>

/* Returns it in the machine's byte order. */
static inline unsigned short sum_of(const void *bytes, size_t length)
{
	const unsigned char *at = bytes;
	unsigned long sum = 0;
	for (size_t i = 0; i < length; i++)
		sum += i % 2 ? at[i] : at[i] << 8;
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}
