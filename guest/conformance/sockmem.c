/*
 * Memory of sockets: net.ipv4.tcp_mem and udp_mem bound the bytes that wait in all sockets
 * together, /proc/net/sockstat counts them, and every connection still makes progress. Changes
 * settings of the whole machine: for a VM, as root. "crowd" instead of promises: fills sockets
 * of each kind as a user while a bystander looks on.
 */
#include "promise.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#define PAGE 4096L
#define COUNT 100
/* In pages: the limits that the promises set, and the largest amount that each socket may have
 * beyond them. */
#define LOW 96L
#define HIGH 256L
#define BESIDE 4L

static char bytes[1 << 20];

static int limits_of(const char *name, long limits[3])
{
	char path[64];
	snprintf(path, sizeof path, "/proc/sys/net/ipv4/%s", name);
	FILE *file = fopen(path, "r");
	int found = file ? fscanf(file, "%ld %ld %ld", &limits[0], &limits[1], &limits[2]) : 0;
	if (file)
		fclose(file);
	return found == 3;
}

static int set_limits(const char *name, const long limits[3])
{
	char path[64], text[80];
	snprintf(path, sizeof path, "/proc/sys/net/ipv4/%s", name);
	int length = snprintf(text, sizeof text, "%ld %ld %ld\n", limits[0], limits[1], limits[2]);
	int file = open(path, O_WRONLY | O_CLOEXEC);
	int done = file >= 0 && write(file, text, length) == length;
	close(file);
	return done;
}

/* Pages of TCP or UDP in /proc/net/sockstat; -1 if the file has no such line. */
static long pages_of(const char *protocol)
{
	char line[160];
	long pages = -1;
	FILE *file = fopen("/proc/net/sockstat", "r");
	while (file && fgets(line, sizeof line, file)) {
		char *told = strncmp(line, protocol, strlen(protocol)) ? NULL : strstr(line, " mem ");
		if (told)
			pages = atol(told + 5);
	}
	if (file)
		fclose(file);
	return pages;
}

static struct sockaddr_in here(int port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static int bound(int kind, struct sockaddr_in *at)
{
	socklen_t length = sizeof *at;
	int made = socket(AF_INET, kind | SOCK_CLOEXEC, 0);
	*at = here(0);
	NEED(made >= 0 && !bind(made, (struct sockaddr *)at, sizeof *at) && !getsockname(made, (struct sockaddr *)at, &length));
	return made;
}

/* Makes `count` connections of TCP, each with its sender and its receiver. */
static void connect_all(int senders[], int receivers[], int count)
{
	struct sockaddr_in at;
	int listener = bound(SOCK_STREAM, &at);
	NEED(!listen(listener, 16));
	for (int i = 0; i < count; i++) {
		senders[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		NEED(senders[i] >= 0 && !connect(senders[i], (struct sockaddr *)&at, sizeof at));
		receivers[i] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		NEED(receivers[i] >= 0);
	}
	close(listener);
}

static void close_all(int sockets[], int count)
{
	for (int i = 0; i < count; i++)
		close(sockets[i]);
}

/* Sends until nothing more fits, `most` bytes at most; returns how many. */
static long fill(int sender, long most)
{
	long sent = 0;
	while (sent < most) {
		long step = most - sent < (long)sizeof bytes ? most - sent : (long)sizeof bytes;
		ssize_t now = send(sender, bytes, step, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (now <= 0)
			break;
		sent += now;
	}
	return sent;
}

/* Receives all that waits; returns how many bytes. */
static long drain(int receiver)
{
	long all = 0;
	for (ssize_t now; (now = recv(receiver, bytes, sizeof bytes, MSG_DONTWAIT)) > 0;)
		all += now;
	return all;
}

static void counts(void)
{
	int sender, receiver;
	long before[3];
	PROMISE("tcp_mem has three numbers that do not fall", limits_of("tcp_mem", before) && before[0] <= before[1] && before[1] <= before[2]);
	PROMISE("and udp_mem", limits_of("udp_mem", before) && before[0] <= before[1] && before[1] <= before[2]);
	connect_all(&sender, &receiver, 1);
	long idle = pages_of("TCP:");
	NEED(fill(sender, 128 << 10) >= 64 << 10);
	PROMISE("sockstat counts the pages of bytes that wait", COMES_TRUE(pages_of("TCP:") >= idle + 15));
	long read = 0;
	PROMISE("and those that were read no more", COMES_TRUE((read += drain(receiver), pages_of("TCP:") < idle + 15)) && read >= 64 << 10);
	fill(sender, 128 << 10);
	close(sender);
	close(receiver);
	PROMISE("nor those of sockets that were closed", COMES_TRUE(pages_of("TCP:") < idle + 15));
}

static void streams(void)
{
	static int senders[COUNT], receivers[COUNT];
	long before[3], told[3], sent = 0, read = 0;
	NEED(limits_of("tcp_mem", before));
	connect_all(senders, receivers, COUNT);
	PROMISE("tcp_mem is written", set_limits("tcp_mem", (long[]){ LOW, 128, HIGH }) && limits_of("tcp_mem", told) && told[0] == LOW && told[2] == HIGH);
	for (int round = 0; round < 3; round++)
		for (int i = 0; i < COUNT; i++)
			sent += fill(senders[i], 1 << 20);
	PROMISE("connections together hold no more than tcp_mem, and a little each", sent <= (HIGH + COUNT * BESIDE * 2) * PAGE);
	PROMISE("but each holds something", sent >= COUNT);
	PROMISE("and sockstat says so", pages_of("TCP:") > 16 && pages_of("TCP:") <= HIGH + COUNT * BESIDE * 2);
	FAILS_WITH("a sender without patience hears that there is no room", send(senders[COUNT - 1], bytes, sizeof bytes, MSG_DONTWAIT), EAGAIN);
	struct pollfd one = { .fd = senders[COUNT - 1], .events = POLLOUT };
	PROMISE("and poll says the same", poll(&one, 1, 0) == 0);
	int all_read = COMES_TRUE(({
		for (int i = 0; i < COUNT; i++)
			read += drain(receivers[i]);
		read == sent;
	}));
	PROMISE("every byte arrives", all_read);
	int room = 0;
	for (int i = 0; i < COUNT; i++)
		room += COMES_TRUE(send(senders[i], "x", 1, MSG_DONTWAIT) == 1);
	PROMISE("what is read makes room for each", room == COUNT);
	NEED(set_limits("tcp_mem", before));
	close_all(senders, COUNT);
	close_all(receivers, COUNT);
}

/* One sender waits for room while others have filled the account. */
static void waits(void)
{
	static int senders[COUNT], receivers[COUNT];
	long before[3], read = 0;
	int status;
	NEED(limits_of("tcp_mem", before));
	connect_all(senders, receivers, COUNT);
	NEED(set_limits("tcp_mem", (long[]){ LOW, 128, HIGH }));
	for (int i = 0; i < COUNT; i++)
		fill(senders[i], 1 << 20);
	for (int i = 0; i < COUNT; i++)
		drain(receivers[i]);
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (!child) {
		long sent = 0;
		while (sent < (long)sizeof bytes) {
			ssize_t now = send(senders[0], bytes, sizeof bytes - sent, MSG_NOSIGNAL);
			if (now <= 0)
				_exit(1);
			sent += now;
		}
		_exit(0);
	}
	int came = COMES_TRUE((read += drain(receivers[0])) >= (long)sizeof bytes);
	PROMISE("a sender that waits sends everything as it is read", came && waitpid(child, &status, 0) == child && !status);
	NEED(set_limits("tcp_mem", before));
	close_all(senders, COUNT);
	close_all(receivers, COUNT);
}

/* Waits for room for 100 KiB that no process reads; returns 0 if there was room. */
static int goes_on(int sender, int way)
{
	struct pollfd room = { .fd = sender, .events = POLLOUT };
	long left = 100 << 10;
	while (left > 0) {
		if (way && poll(&room, 1, 20000) != 1)
			return 2;
		ssize_t now = send(sender, bytes, left, MSG_NOSIGNAL | (way ? MSG_DONTWAIT : 0));
		if (now <= 0 && errno != EAGAIN)
			return 1;
		left -= now > 0 ? now : 0;
	}
	return 0;
}

/* Senders whose readers are busy elsewhere. They wait only for the shared account. */
static void eased(void)
{
	static int senders[COUNT], receivers[COUNT];
	long before[3];
	pid_t children[2];
	int status[2] = { -1, -1 };
	NEED(limits_of("tcp_mem", before));
	connect_all(senders, receivers, COUNT);
	NEED(set_limits("tcp_mem", (long[]){ LOW, 128, HIGH }));
	for (int i = 0; i < COUNT; i++)
		fill(senders[i], i < 2 ? PAGE : 1 << 20);
	fflush(stdout);
	for (int i = 0; i < 2; i++) {
		NEED((children[i] = fork()) >= 0);
		if (!children[i])
			_exit(goes_on(senders[i], i));
	}
	usleep(300000);
	NEED(set_limits("tcp_mem", before));
	for (int i = 0; i < 2; i++) {
		int ended = COMES_TRUE(waitpid(children[i], &status[i], WNOHANG) == children[i]);
		if (!ended)
			kill(children[i], SIGKILL);
	}
	PROMISE("a sender that waits goes on when there is memory again, though nobody reads", status[0] == 0);
	PROMISE("and one that polls", status[1] == 0);
	close_all(senders, COUNT);
	close_all(receivers, COUNT);
}

static void datagrams(void)
{
	static int receivers[COUNT];
	struct sockaddr_in at[COUNT];
	long before[3], read = 0, sent = 0;
	int sender = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	NEED(sender >= 0 && limits_of("udp_mem", before));
	for (int i = 0; i < COUNT; i++)
		receivers[i] = bound(SOCK_DGRAM, &at[i]);
	NEED(set_limits("udp_mem", (long[]){ LOW, 128, HIGH }));
	for (int round = 0; round < 20; round++)
		for (int i = 0; i < COUNT; i++)
			sent += sendto(sender, bytes, 8000, MSG_DONTWAIT, (struct sockaddr *)&at[i], sizeof at[i]) == 8000;
	PROMISE("datagrams are sent whether there is room or not", sent == 20 * COUNT);
	PROMISE("sockstat counts them", pages_of("UDP:") > 16 && pages_of("UDP:") <= HIGH + COUNT * BESIDE);
	for (int i = 0; i < COUNT; i++)
		read += drain(receivers[i]);
	PROMISE("those beyond udp_mem are lost", read > 0 && read <= (HIGH + COUNT * BESIDE) * PAGE);
	PROMISE("and there is room again", COMES_TRUE(sendto(sender, bytes, 8000, 0, (struct sockaddr *)&at[0], sizeof at[0]) == 8000 && drain(receivers[0]) >= 8000));
	NEED(set_limits("udp_mem", before));
	close_all(receivers, COUNT);
	close(sender);
}

/* Fills 200 connections of a kind, as a user, and keeps them. */
static void fill_kind(int kind)
{
	static int senders[200], receivers[200];
	NEED(!setgid(1000) && !setuid(1000));
	if (kind == 0) {
		connect_all(senders, receivers, 200);
	} else {
		for (int i = 0; i < 200; i++) {
			int both[2];
			NEED(!socketpair(AF_UNIX, kind == 1 ? SOCK_STREAM : SOCK_DGRAM, 0, both));
			senders[i] = both[0];
			receivers[i] = both[1];
		}
	}
	for (int i = 0; i < 200; i++) {
		long step = kind == 2 ? 128 << 10 : sizeof bytes;
		while (send(senders[i], bytes, step, MSG_DONTWAIT) > 0)
			;
		while (send(receivers[i], bytes, step, MSG_DONTWAIT) > 0)
			;
	}
}

static int crowd(void)
{
	size_t size = 64 << 20;
	char *own = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	int ready[2], status;
	char one;
	NEED(own != MAP_FAILED && !pipe(ready));
	memset(own, 7, size);
	/* The bystander has the most memory, so that the out-of-memory killer takes it first. */
	pid_t bystander = fork();
	NEED(bystander >= 0);
	if (!bystander) {
		memset(own, 8, size);
		for (;;)
			pause();
	}
	munmap(own, size);
	pid_t users[12];
	for (int i = 0; i < 12; i++) {
		NEED((users[i] = fork()) >= 0);
		if (users[i])
			continue;
		fill_kind(i % 3);
		NEED(write(ready[1], "x", 1) == 1);
		for (;;)
			pause();
	}
	for (int i = 0; i < 12; i++)
		NEED(read(ready[0], &one, 1) == 1);
	PROMISE("a bystander lives while users fill their sockets", waitpid(bystander, &status, WNOHANG) == 0);
	for (int i = 0; i < 12; i++)
		kill(users[i], SIGKILL);
	kill(bystander, SIGKILL);
	return conclude();
}

int main(int count, char **words)
{
	if (count > 1 && !strcmp(words[1], "crowd"))
		return crowd();
	memset(bytes, 'b', sizeof bytes);
	counts();
	streams();
	waits();
	eased();
	datagrams();
	return conclude();
}
