/* Messages between AF_UNIX sockets, and the information that a receive returns about them:
 * recvmsg(2), unix(7). */
#include "promise.h"

#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#define PAGE 4096

static char *pages; /* two mapped pages and an unmapped one */

static void pair_of(int kind, int pair[2])
{
	NEED(socketpair(AF_UNIX, kind, 0, pair) == 0);
}

/* Sends a message with one file. */
static int send_file(int to, const void *bytes, size_t count, int file)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr head;
	} beside = { .head = { .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS } };
	memcpy(CMSG_DATA(&beside.head), &file, sizeof file);
	struct iovec piece = { (void *)bytes, count };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = &beside, .msg_controllen = sizeof beside };
	return sendmsg(to, &message, 0);
}

/* Receives up to `count` bytes; returns the file that came with them, or -1. */
static int receive_file(int from, void *bytes, size_t count, int flags, ssize_t *received)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr head;
	} beside = { 0 };
	struct iovec piece = { bytes, count };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = &beside, .msg_controllen = sizeof beside };
	*received = recvmsg(from, &message, flags);
	int file = -1;
	if (*received >= 0 && message.msg_controllen >= CMSG_LEN(sizeof file))
		memcpy(&file, CMSG_DATA(&beside.head), sizeof file);
	return file;
}

static void what_a_receive_stores_in_the_header(void)
{
	int pair[2];
	pair_of(SOCK_STREAM, pair);
	NEED(send(pair[0], "bytes", 5, 0) == 5);
	char buffer[16];
	struct iovec piece = { buffer, sizeof buffer };
	struct msghdr message;
	memset(&message, 0x5a, sizeof message);
	message.msg_name = NULL;
	message.msg_iov = &piece;
	message.msg_iovlen = 1;
	message.msg_control = NULL;
	message.msg_controllen = 0;
	struct msghdr before = message;
	NEED(recvmsg(pair[1], &message, 0) == 5);
	PROMISE("without a place for a name its length stays", message.msg_namelen == before.msg_namelen);
	PROMISE("the flags are stored", message.msg_flags == 0 && message.msg_controllen == 0);
	char *bytes = (char *)&message, *bytes_before = (char *)&before;
	memcpy(bytes + offsetof(struct msghdr, msg_flags), bytes_before + offsetof(struct msghdr, msg_flags), sizeof message.msg_flags);
	PROMISE("nothing else is", memcmp(&message, &before, sizeof message) == 0);
	close(pair[0]);
	close(pair[1]);
}

static void messages_stay_apart(int kind)
{
	int pair[2];
	pair_of(kind, pair);
	char buffer[16];
	memset(pages, 'p', 2 * PAGE);
	NEED(send(pair[0], pages, 2 * PAGE, 0) == 2 * PAGE && send(pair[0], "next", 4, 0) == 4);
	PROMISE("a message that is looked at stays", recv(pair[1], buffer, 8, MSG_PEEK) == 8 && buffer[7] == 'p');
	PROMISE("MSG_TRUNC gives its whole length", recv(pair[1], buffer, 8, MSG_PEEK | MSG_TRUNC) == 2 * PAGE);
	struct iovec piece = { buffer, 8 };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1 };
	PROMISE("what does not fit is cut, and that is said", recvmsg(pair[1], &message, 0) == 8 && message.msg_flags == MSG_TRUNC);
	PROMISE("it takes nothing of the next one", recv(pair[1], buffer, sizeof buffer, 0) == 4 && memcmp(buffer, "next", 4) == 0);
	NEED(send(pair[0], "", 0, 0) == 0 && send(pair[0], "x", 1, 0) == 1);
	PROMISE("an empty one is a message, too", recv(pair[1], buffer, sizeof buffer, 0) == 0 && recv(pair[1], buffer, sizeof buffer, 0) == 1);
	FAILS_WITH("bytes that are not there make none", send(pair[0], pages + PAGE, 2 * PAGE, 0), EFAULT);
	FAILS_WITH("not even in part", recv(pair[1], buffer, sizeof buffer, MSG_DONTWAIT), EAGAIN);
	NEED(send(pair[0], "lost", 4, 0) == 4);
	FAILS_WITH("a buffer that is not there", recv(pair[1], pages + 2 * PAGE, 4, 0), EFAULT);
	FAILS_WITH("loses the message", recv(pair[1], buffer, sizeof buffer, MSG_DONTWAIT), EAGAIN);
	close(pair[0]);
	close(pair[1]);
}

static void a_stream_with_files_in_it(void)
{
	int pair[2];
	pair_of(SOCK_STREAM, pair);
	char buffer[16];
	ssize_t count;
	NEED(send(pair[0], "one", 3, 0) == 3 && send_file(pair[0], "two", 3, 0) == 3 && send(pair[0], "three", 5, 0) == 5);
	int file = receive_file(pair[1], buffer, 2, 0, &count);
	PROMISE("bytes before a file come without it", count == 2 && file == -1);
	file = receive_file(pair[1], buffer, sizeof buffer, MSG_PEEK, &count);
	PROMISE("a look copies the file", count == 4 && file >= 0 && close(file) == 0);
	file = receive_file(pair[1], buffer, 3, 0, &count);
	PROMISE("the first of its bytes bring it, after what was before", count == 3 && file >= 0 && close(file) == 0 && memcmp(buffer, "etw", 3) == 0);
	file = receive_file(pair[1], buffer, 1, MSG_PEEK, &count);
	PROMISE("and only those", count == 1 && file == -1 && buffer[0] == 'o');
	NEED(recv(pair[1], buffer, 1, 0) == 1);
	PROMISE("then comes the rest", recv(pair[1], buffer, sizeof buffer, 0) == 5 && memcmp(buffer, "three", 5) == 0);
	NEED(send_file(pair[0], "two", 3, 0) == 3 && send(pair[0], "three", 5, 0) == 5);
	file = receive_file(pair[1], buffer, sizeof buffer, MSG_WAITALL, &count);
	PROMISE("the last of its bytes end a receive, whatever it wants", count == 3 && file >= 0 && close(file) == 0);
	close(pair[0]);
	close(pair[1]);
}

/* A byte from another process by the same socket. */
static void send_from_child(int to)
{
	int status;
	IN_CHILD(status, NEED(send(to, "child", 5, 0) == 5));
	NEED(status == 0);
}

static void bytes_of_two_senders(void)
{
	int pair[2], on = 1;
	pair_of(SOCK_STREAM, pair);
	char buffer[16];
	NEED(send(pair[0], "parent", 6, 0) == 6);
	send_from_child(pair[0]);
	PROMISE("come together where nobody asks whose they are", recv(pair[1], buffer, sizeof buffer, MSG_PEEK) == 11 && recv(pair[1], buffer, sizeof buffer, 0) == 11);
	NEED(setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0 && send(pair[0], "parent", 6, 0) == 6);
	send_from_child(pair[0]);
	PROMISE("come apart where somebody does", recv(pair[1], buffer, sizeof buffer, MSG_PEEK) == 6 && recv(pair[1], buffer, sizeof buffer, MSG_WAITALL) == 6);
	union {
		char bytes[CMSG_SPACE(sizeof(struct ucred))];
		struct cmsghdr head;
	} beside = { 0 };
	struct ucred who = { 0 };
	struct iovec piece = { buffer, sizeof buffer };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = &beside, .msg_controllen = sizeof beside };
	PROMISE("with a name", recvmsg(pair[1], &message, 0) == 5 && beside.head.cmsg_type == SCM_CREDENTIALS);
	memcpy(&who, CMSG_DATA(&beside.head), sizeof who);
	PROMISE("of the one who sent them", who.pid > 0 && who.pid != getpid() && who.uid == getuid());
	close(pair[0]);
	close(pair[1]);
}

/* The credentials that come with the next message. */
static struct ucred sender_of_next(int from)
{
	union {
		char bytes[CMSG_SPACE(sizeof(struct ucred))];
		struct cmsghdr head;
	} beside = { 0 };
	struct ucred who = { 0 };
	char byte;
	struct iovec piece = { &byte, 1 };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = &beside, .msg_controllen = sizeof beside };
	NEED(recvmsg(from, &message, 0) == 1 && beside.head.cmsg_type == SCM_CREDENTIALS);
	memcpy(&who, CMSG_DATA(&beside.head), sizeof who);
	return who;
}

static void names_that_nobody_asked_for(int kind)
{
	int pair[2], on = 1, off = 0;
	pair_of(kind, pair);
	NEED(send(pair[0], "x", 1, 0) == 1 && setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0);
	struct ucred who = sender_of_next(pair[1]);
	PROMISE("a message from before SO_PASSCRED names nobody", who.pid == 0 && who.uid == 65534 && who.gid == 65534);
	NEED(send(pair[0], "x", 1, 0) == 1);
	who = sender_of_next(pair[1]);
	PROMISE("one after it its sender", who.pid == getpid() && who.uid == geteuid());
	NEED(setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &off, sizeof off) == 0 && setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0);
	NEED(send(pair[0], "x", 1, 0) == 1 && setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0);
	who = sender_of_next(pair[1]);
	PROMISE("so does one of a sender that has it", who.pid == getpid());
	close(pair[0]);
	close(pair[1]);
}

static void who_accepts_inherits_the_wish(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = "\0messages" };
	int listening = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0), on = 1;
	socklen_t length = sizeof on;
	NEED(setsockopt(listening, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0);
	NEED(bind(listening, (void *)&address, sizeof address) == 0 && listen(listening, 1) == 0);
	NEED(connect(client, (void *)&address, sizeof address) == 0 && send(client, "x", 1, 0) == 1);
	int server = accept(listening, NULL, NULL);
	NEED(server >= 0);
	struct ucred who = sender_of_next(server);
	PROMISE("bytes from before accept name their sender", who.pid == getpid());
	on = 0;
	PROMISE("SO_PASSCRED is inherited from who listens", getsockopt(server, SOL_SOCKET, SO_PASSCRED, &on, &length) == 0 && on == 1);
	close(server);
	close(client);
	close(listening);
}

static void ends_that_lose_something(void)
{
	int pair[2];
	char buffer[8];
	pair_of(SOCK_STREAM, pair);
	NEED(send(pair[0], "unread", 6, 0) == 6 && send(pair[1], "left", 4, 0) == 4);
	close(pair[1]);
	struct pollfd look = { pair[0], POLLIN, 0 };
	PROMISE("an end with unread bytes is an error for the peer", poll(&look, 1, 1000) == 1 && look.revents == (POLLIN | POLLERR | POLLHUP));
	PROMISE("said after the bytes that came", recv(pair[0], buffer, sizeof buffer, 0) == 4 && recv(pair[0], buffer, 8, 0) == -1 && errno == ECONNRESET);
	PROMISE("and once", recv(pair[0], buffer, sizeof buffer, 0) == 0);
	close(pair[0]);
	struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = "\0goes" };
	int listening = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0), error = 0;
	socklen_t length = sizeof error;
	NEED(bind(listening, (void *)&address, sizeof address) == 0 && listen(listening, 1) == 0);
	NEED(connect(client, (void *)&address, sizeof address) == 0);
	close(listening);
	PROMISE("who was never accepted is reset", getsockopt(client, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == ECONNRESET);
	PROMISE("which is then the end of the file", recv(client, buffer, sizeof buffer, 0) == 0);
	close(client);
}

static void a_stream_that_fails_half_way(void)
{
	int pair[2];
	pair_of(SOCK_STREAM, pair);
	char *buffer = malloc(2 * PAGE);
	memset(pages, 's', 2 * PAGE);
	int sent = send(pair[0], pages + PAGE + 8, PAGE, 0), error = errno;
	PROMISE("bytes that end half-way are sent as far as they go, or not at all", sent == PAGE - 8 || (sent == -1 && error == EFAULT));
	NEED(send(pair[0], "end", 3, 0) == 3);
	int all = 0, now;
	while ((now = recv(pair[1], buffer + all, 2 * PAGE - all, MSG_DONTWAIT)) > 0)
		all += now;
	PROMISE("and nothing comes twice", all == (sent > 0 ? sent : 0) + 3 && memcmp(buffer + all - 3, "end", 3) == 0);
	NEED(send(pair[0], "stays", 5, 0) == 5);
	FAILS_WITH("a buffer that is not there", recv(pair[1], pages + 2 * PAGE, 5, 0), EFAULT);
	PROMISE("loses nothing of a stream", recv(pair[1], buffer, 16, 0) == 5 && memcmp(buffer, "stays", 5) == 0);
	free(buffer);
	close(pair[0]);
	close(pair[1]);
}

/* connect(2) to AF_UNSPEC ends the connection of a datagram socket. */
static void disconnecting(void)
{
	struct sockaddr none = { .sa_family = AF_UNSPEC };
	struct sockaddr_un name = { AF_UNIX, "\0messages-disconnecting" };
	int from = socket(AF_UNIX, SOCK_DGRAM, 0), to = socket(AF_UNIX, SOCK_DGRAM, 0), stream = socket(AF_UNIX, SOCK_STREAM, 0);
	char byte;
	NEED(bind(to, (void *)&name, 20) == 0 && connect(from, (void *)&name, 20) == 0 && send(from, "x", 1, 0) == 1);
	PROMISE("a datagram socket is disconnected", connect(from, &none, sizeof none) == 0);
	FAILS_WITH("then it sends to nobody", send(from, "y", 1, 0), ENOTCONN);
	PROMISE("what it has sent arrives", recv(to, &byte, 1, MSG_DONTWAIT) == 1 && byte == 'x');
	PROMISE("again, by the family alone", connect(from, &none, sizeof none.sa_family) == 0);
	FAILS_WITH("which has two bytes", connect(from, &none, 1), EINVAL);
	PROMISE("it is connected again", connect(from, (void *)&name, 20) == 0 && send(from, "z", 1, 0) == 1);
	FAILS_WITH("a stream stays", connect(stream, &none, sizeof none), EINVAL);
	close(from);
	close(to);
	close(stream);
}

int main(void)
{
	pages = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(pages != MAP_FAILED && munmap(pages + 2 * PAGE, PAGE) == 0);
	what_a_receive_stores_in_the_header();
	messages_stay_apart(SOCK_DGRAM);
	messages_stay_apart(SOCK_SEQPACKET);
	a_stream_with_files_in_it();
	bytes_of_two_senders();
	names_that_nobody_asked_for(SOCK_STREAM);
	names_that_nobody_asked_for(SOCK_DGRAM);
	names_that_nobody_asked_for(SOCK_SEQPACKET);
	who_accepts_inherits_the_wish();
	ends_that_lose_something();
	a_stream_that_fails_half_way();
	disconnecting();
	return conclude();
}
