/*
 * Sockets by io_uring: send, receive, accept, connect, shutdown, close.
 */
#include "promise.h"

#include "loopback.h"
#include "ring.h"
#include "sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

#define PART 65536

static struct ring ring;

/* Submits the entry that was added last; it does not end yet. */
static int waits(void)
{
	return enter(ring.fd, 1, 0, 0, NULL, 0) == 1 && (sleep_ms(20), arrived(&ring) == 0);
}

static void streams(void)
{
	int pair[2];
	char back[32] = { 0 };
	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	PROMISE("send tells its length", run_one(&ring, IORING_OP_SEND, pair[0], "hello", 5, 0) == 5);
	PROMISE("recv gives it back", run_one(&ring, IORING_OP_RECV, pair[1], back, 32, 0) == 5 && !memcmp(back, "hello", 5));
	add(&ring, IORING_OP_RECV, pair[1], back, 32, 0, 1);
	PROMISE("recv of an empty socket waits", waits());
	NEED(write(pair[0], "late", 4) == 4);
	PROMISE("until there is something", take(&ring, 1) == 4 && !memcmp(back, "late", 4));
	add(&ring, IORING_OP_RECV, pair[1], back, 32, 0, 2)->msg_flags = MSG_DONTWAIT;
	PROMISE("with MSG_DONTWAIT it is EAGAIN", finish(&ring, 2) == -EAGAIN);
	NEED(write(pair[0], "look", 4) == 4);
	add(&ring, IORING_OP_RECV, pair[1], back, 2, 0, 3)->msg_flags = MSG_PEEK;
	PROMISE("MSG_PEEK leaves the bytes", finish(&ring, 3) == 2 && run_one(&ring, IORING_OP_RECV, pair[1], back, 32, 0) == 4);
	add(&ring, IORING_OP_RECV, pair[1], back, 8, 0, 4)->msg_flags = MSG_WAITALL;
	NEED(write(pair[0], "four", 4) == 4);
	PROMISE("MSG_WAITALL waits with half of the bytes there", waits());
	NEED(write(pair[0], "more", 4) == 4);
	PROMISE("until all are", take(&ring, 4) == 8 && !memcmp(back, "fourmore", 8));
	add(&ring, IORING_OP_RECV, pair[1], back, 8, 0, 5)->msg_flags = MSG_WAITALL;
	NEED(write(pair[0], "end", 3) == 3 && waits() && shutdown(pair[0], SHUT_WR) == 0);
	PROMISE("or the stream ends", take(&ring, 5) == 3 && !memcmp(back, "end", 3));
	PROMISE("then recv is 0", run_one(&ring, IORING_OP_RECV, pair[1], back, 8, 0) == 0);
	static char many[PART];
	int sent = 0, last = 0;
	while ((last = send(pair[1], many, PART, MSG_DONTWAIT)) > 0)
		sent += last;
	add(&ring, IORING_OP_SEND, pair[1], "behind", 6, 0, 6);
	PROMISE("send into a full socket waits", waits());
	for (int left = sent; left > 0; left -= last)
		NEED((last = read(pair[0], many, left < PART ? left : PART)) > 0);
	PROMISE("until there is room", take(&ring, 6) == 6 && read(pair[0], back, 32) == 6 && !memcmp(back, "behind", 6));
	add(&ring, IORING_OP_RECV, pair[0], back, 32, 0, 7);
	NEED(waits());
	add(&ring, IORING_OP_ASYNC_CANCEL, -1, (void *)7, 0, 0, 8);
	NEED(enter(ring.fd, 1, 2, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
	int sum = 0;
	for (int i = 0; i < 2; i++)
		sum += ring.cqes[(*ring.cq_head)++ & ring.cq_mask].res;
	PROMISE("a cancelled receive is ECANCELED", sum == -ECANCELED);
	PROMISE("shutdown ends a direction", run_one(&ring, IORING_OP_SHUTDOWN, pair[1], NULL, SHUT_WR, 0) == 0 && read(pair[0], back, 1) == 0);
	PROMISE("another direction is EINVAL", run_one(&ring, IORING_OP_SHUTDOWN, pair[1], NULL, 7, 0) == -EINVAL);
	PROMISE("send after that is EPIPE, and no signal", run_one(&ring, IORING_OP_SEND, pair[1], "x", 1, 0) == -EPIPE);
	PROMISE("close ends a descriptor", run_one(&ring, IORING_OP_CLOSE, pair[1], NULL, 0, 0) == 0 && fcntl(pair[1], F_GETFD) == -1);
	PROMISE("a second time it is EBADF", run_one(&ring, IORING_OP_CLOSE, pair[1], NULL, 0, 0) == -EBADF);
	PROMISE("of a ring it is EBADF", run_one(&ring, IORING_OP_CLOSE, ring.fd, NULL, 0, 0) == -EBADF);
	close(pair[0]);
}

/* A message with room for a name and for control messages. */
struct message {
	struct msghdr head;
	struct iovec bytes;
	struct sockaddr_in name;
	union {
		struct cmsghdr align;
		char control[CMSG_SPACE(4 * sizeof(int))];
	};
	char text[64];
};

static struct msghdr *prepare(struct message *message)
{
	memset(message, 0, sizeof *message);
	message->bytes = (struct iovec){ message->text, sizeof message->text };
	message->head = (struct msghdr){ .msg_name = &message->name, .msg_namelen = sizeof message->name, .msg_iov = &message->bytes,
					 .msg_iovlen = 1, .msg_control = message->control, .msg_controllen = sizeof message->control };
	return &message->head;
}

static void messages(void)
{
	int pair[2], pipe_[2], got;
	struct message in, out;
	char one;
	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && pipe(pipe_) == 0);
	add(&ring, IORING_OP_RECVMSG, pair[1], prepare(&in), 1, 0, 20);
	PROMISE("recvmsg waits", waits());
	prepare(&out)->msg_name = NULL;
	out.head.msg_namelen = 0;
	strcpy(out.text, "file");
	out.bytes.iov_len = 4;
	out.align = (struct cmsghdr){ CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS };
	memcpy(CMSG_DATA(&out.align), &pipe_[1], sizeof(int));
	out.head.msg_controllen = CMSG_SPACE(sizeof(int));
	add(&ring, IORING_OP_SENDMSG, pair[0], &out.head, 1, 0, 21);
	NEED(enter(ring.fd, 1, 2, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
	int results[2] = { -1, -1 };
	for (int i = 0; i < 2; i++) {
		struct io_uring_cqe *cqe = &ring.cqes[(*ring.cq_head)++ & ring.cq_mask];
		if (cqe->user_data == 20 || cqe->user_data == 21)
			results[cqe->user_data - 20] = cqe->res;
	}
	PROMISE("sendmsg and the receive that waited move the bytes", results[0] == 4 && results[1] == 4 && !memcmp(in.text, "file", 4));
	PROMISE("the header tells of the control message",
		in.head.msg_controllen == CMSG_SPACE(sizeof(int)) && in.align.cmsg_type == SCM_RIGHTS && in.head.msg_flags == 0);
	memcpy(&got, CMSG_DATA(&in.align), sizeof(int));
	PROMISE("and a descriptor was made", got != pipe_[1] && write(got, "p", 1) == 1 && read(pipe_[0], &one, 1) == 1 && one == 'p');
	close(got);
	add(&ring, IORING_OP_RECVMSG, pair[1], prepare(&in), 1, 0, 22)->msg_flags = MSG_CMSG_CLOEXEC;
	NEED(waits() && send_files(pair[0], pipe_, 1, 0) == 1);
	PROMISE("MSG_CMSG_CLOEXEC is kept", take(&ring, 22) == 1 && in.head.msg_flags == (int)MSG_CMSG_CLOEXEC);
	memcpy(&got, CMSG_DATA(&in.align), sizeof(int));
	PROMISE("and marks the descriptor", fcntl(got, F_GETFD) == FD_CLOEXEC);
	close(got);
	PROMISE("a header nowhere is EFAULT", run_one(&ring, IORING_OP_SENDMSG, pair[0], (void *)8, 1, 0) == -EFAULT &&
						     run_one(&ring, IORING_OP_RECVMSG, pair[0], (void *)8, 1, 0) == -EFAULT);
	for (int i = 0; i < 2; i++)
		close(pair[i]), close(pipe_[i]);

	struct sockaddr_in own = { AF_INET, 0, { htonl(INADDR_LOOPBACK) }, { 0 } };
	socklen_t size = sizeof own;
	int receiver = socket(AF_INET, SOCK_DGRAM, 0), sender = socket(AF_INET, SOCK_DGRAM, 0);
	NEED(bind(receiver, (void *)&own, sizeof own) == 0 && getsockname(receiver, (void *)&own, &size) == 0);
	add(&ring, IORING_OP_RECVMSG, receiver, prepare(&in), 1, 0, 23);
	in.bytes.iov_len = 3;
	NEED(waits());
	prepare(&out)->msg_controllen = 0;
	out.head.msg_control = NULL;
	out.name = own;
	strcpy(out.text, "datagram");
	out.bytes.iov_len = 8;
	add(&ring, IORING_OP_SENDMSG, sender, &out.head, 1, 0, 24);
	NEED(enter(ring.fd, 1, 2, IORING_ENTER_GETEVENTS, NULL, 0) == 1 && arrived(&ring) == 2);
	ring.cq_head[0] += 2;
	size = sizeof own;
	NEED(getsockname(sender, (void *)&own, &size) == 0);
	PROMISE("a datagram's sender is named", in.head.msg_namelen == sizeof own && in.name.sin_port == own.sin_port);
	PROMISE("one that was cut is marked", in.head.msg_flags == MSG_TRUNC && in.head.msg_controllen == 0 && !memcmp(in.text, "dat", 4));
	close(sender);
	add(&ring, IORING_OP_RECVMSG, receiver, prepare(&in), 1, 0, 25);
	NEED(waits());
	int status;
	IN_CHILD(status, _exit(0));
	PROMISE("a message that is awaited outlives a fork", status == 0 && arrived(&ring) == 0);
	close(receiver);
}

static void connections(void)
{
	struct sockaddr_in own = { AF_INET, 0, { htonl(INADDR_LOOPBACK) }, { 0 } }, peer = { 0 };
	socklen_t size = sizeof own;
	int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
	NEED(bind(listener, (void *)&own, sizeof own) == 0 && getsockname(listener, (void *)&own, &size) == 0);
	PROMISE("a connection to nobody is refused", run_one(&ring, IORING_OP_CONNECT, client, &own, 0, sizeof own) == -ECONNREFUSED);
	close(client);
	NEED(listen(listener, 4) == 0);
	add(&ring, IORING_OP_ACCEPT, listener, &peer, 0, (uintptr_t)&size, 30)->accept_flags = SOCK_CLOEXEC;
	PROMISE("accept waits", waits());
	client = socket(AF_INET, SOCK_STREAM, 0);
	add(&ring, IORING_OP_CONNECT, client, &own, 0, sizeof own, 31);
	NEED(enter(ring.fd, 1, 2, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
	int accepted = -1, connected = -1;
	for (int i = 0; i < 2; i++) {
		struct io_uring_cqe *cqe = &ring.cqes[(*ring.cq_head)++ & ring.cq_mask];
		*(cqe->user_data == 30 ? &accepted : &connected) = cqe->res;
	}
	PROMISE("connect ends with 0", connected == 0);
	PROMISE("accept with a descriptor", accepted >= 0 && fcntl(accepted, F_GETFD) == FD_CLOEXEC);
	size = sizeof own;
	NEED(getsockname(client, (void *)&own, &size) == 0);
	PROMISE("and the peer's name", size == sizeof peer && peer.sin_port == own.sin_port);
	char back[8];
	PROMISE("bytes go through", run_one(&ring, IORING_OP_SEND, client, "tcp", 3, 0) == 3 &&
					    run_one(&ring, IORING_OP_RECV, accepted, back, 8, 0) == 3 && !memcmp(back, "tcp", 3));
	PROMISE("a second connect is EISCONN", run_one(&ring, IORING_OP_CONNECT, client, &peer, 0, sizeof peer) == -EISCONN);
	NEED(fcntl(accepted, F_SETFL, O_NONBLOCK) == 0);
	add(&ring, IORING_OP_RECV, accepted, back, 8, 0, 32);
	PROMISE("O_NONBLOCK does not matter", waits() && write(client, "on", 2) == 2 && take(&ring, 32) == 2);
	PROMISE("accept needs a listener", run_one(&ring, IORING_OP_ACCEPT, client, NULL, 0, 0) == -EINVAL);
	close(accepted);
	close(client);
	close(listener);
}

/* A request that another task finishes looks up names where its process does. */
static void roots(void)
{
	struct sockaddr_un name = { AF_UNIX, "/tmp/ringsockets.name" };
	int receiver = socket(AF_UNIX, SOCK_DGRAM, 0), sender = socket(AF_UNIX, SOCK_DGRAM, 0), status;
	unlink(name.sun_path);
	NEED(bind(receiver, (void *)&name, sizeof name) == 0 && mkdir("/tmp/ringsockets.root", 0700) == 0);
	struct iovec bytes = { "x", 1 };
	struct msghdr message = { .msg_name = &name, .msg_namelen = sizeof name, .msg_iov = &bytes, .msg_iovlen = 1 };
	add(&ring, IORING_OP_SENDMSG, sender, &message, 1, 0, 40)->flags = IOSQE_ASYNC;
	PROMISE("another task sends to a path", finish(&ring, 40) == 1);
	IN_CHILD(status, {
		NEED(chroot("/tmp/ringsockets.root") == 0);
		struct ring own;
		open_ring(&own);
		add(&own, IORING_OP_SENDMSG, sender, &message, 1, 0, 41)->flags = IOSQE_ASYNC;
		_exit(finish(&own, 41) != -ENOENT);
	});
	PROMISE("of the process' own root", status == 0);
	unlink(name.sun_path);
	rmdir("/tmp/ringsockets.root");
	close(receiver);
	close(sender);
}

static void mistakes(void)
{
	static const int sockets[] = { IORING_OP_SEND, IORING_OP_RECV, IORING_OP_ACCEPT, IORING_OP_CONNECT, IORING_OP_SHUTDOWN };
	static struct msghdr nothing;
	int file = open("/dev/null", O_RDWR), pair[2], no_socket = 1, no_file = 1;
	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	for (size_t i = 0; i < sizeof sockets / sizeof *sockets; i++) {
		/* Neither asks for an address: only an accept without one needs none. */
		no_socket &= run_one(&ring, sockets[i], file, NULL, 0, 0) == -ENOTSOCK || sockets[i] == IORING_OP_CONNECT;
		no_file &= run_one(&ring, sockets[i], 999, NULL, 0, 0) == -EBADF || sockets[i] == IORING_OP_CONNECT;
	}
	PROMISE("another file is ENOTSOCK", no_socket && run_one(&ring, IORING_OP_SENDMSG, file, &nothing, 1, 0) == -ENOTSOCK);
	PROMISE("no file is EBADF", no_file);
	add(&ring, IORING_OP_RECV, pair[0], NULL, 0, 0, 50)->ioprio = 1 << 14;
	PROMISE("an unknown flag of a receive is EINVAL", finish(&ring, 50) == -EINVAL);
	add(&ring, IORING_OP_ACCEPT, pair[0], NULL, 0, 0, 51)->accept_flags = 1;
	PROMISE("an unknown flag of an accept is EINVAL", finish(&ring, 51) == -EINVAL);
	PROMISE("a length of an accept is EINVAL", run_one(&ring, IORING_OP_ACCEPT, pair[0], NULL, 1, 0) == -EINVAL);
	PROMISE("an offset of a close is EINVAL", run_one(&ring, IORING_OP_CLOSE, file, NULL, 0, 1) == -EINVAL);
	PROMISE("an address of a shutdown is EINVAL", run_one(&ring, IORING_OP_SHUTDOWN, pair[0], &ring, 0, 0) == -EINVAL);
	add(&ring, IORING_OP_RECV, pair[0], &nothing, sizeof nothing, 0, 52);
	PROMISE("a receive waits at the end of its process", waits());
	close(file);
}

int main(void)
{
	signal(SIGPIPE, SIG_DFL);
	set_loopback_up();
	open_ring(&ring);
	streams();
	messages();
	open_ring(&ring); /* A receive of messages() waits there until the end. */
	connections();
	roots();
	mistakes();
	return conclude();
}
