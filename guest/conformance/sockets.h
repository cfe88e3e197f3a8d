/* Open files that are sent in a message between sockets. Needs promise.h. */
#include <sys/socket.h>

/* Sends one byte with up to 8 files beside it. */
static inline ssize_t send_files(int socket, const int *files, size_t count, int flags)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(8 * sizeof *files)];
	} beside = { { CMSG_LEN(count * sizeof *files), SOL_SOCKET, SCM_RIGHTS } };
	struct iovec one = { "x", 1 };
	struct msghdr message = {
		.msg_iov = &one, .msg_iovlen = 1, .msg_control = &beside, .msg_controllen = CMSG_SPACE(count * sizeof *files)
	};
	NEED(count <= 8);
	memcpy(CMSG_DATA(&beside.head), files, count * sizeof *files);
	return sendmsg(socket, &message, flags);
}
