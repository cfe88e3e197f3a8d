/* Programs of classic BPF on sockets: SO_ATTACH_FILTER of socket(7), linux/filter.h. */
#include "promise.h"
#include "inside.h"
#include "loopback.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/icmp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#define COUNT(all) (sizeof(all) / sizeof *(all))
#define ATTACH(fd, ...)                                                                             \
	({                                                                                          \
		struct sock_filter all_[] = { __VA_ARGS__ };                                        \
		attach(fd, all_, COUNT(all_));                                                      \
	})

static unsigned char got[256];

static int attach(int fd, struct sock_filter *program, unsigned short count)
{
	struct sock_fprog whole = { count, program };
	return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &whole, sizeof whole);
}

static int set(int fd, int name, int value)
{
	return setsockopt(fd, SOL_SOCKET, name, &value, sizeof value);
}

/* Sends an echo request from `from` with 24 bytes to 127.0.0.1. */
static void ask(int from, int sequence)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	unsigned char echo[24] = { ICMP_ECHO, 0, 0, 0, 0x12, 0x34, 0, sequence };
	unsigned sum = (ICMP_ECHO << 8) + 0x1234 + sequence;
	sum = ~((sum & 0xffff) + (sum >> 16));
	echo[2] = sum >> 8;
	echo[3] = sum;
	NEED(sendto(from, echo, sizeof echo, 0, (struct sockaddr *)&name, sizeof name) == sizeof echo);
}

/* Returns the numbers of bytes that the socket receives of one request and of its reply, as
 * decimal text. */
static const char *heard(int filtered)
{
	static char text[64];
	static int sequence;
	ssize_t length;
	int witness = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP), sender = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
	NEED(witness >= 0 && sender >= 0);
	ask(sender, ++sequence & 0x7f);
	/* A witness socket that was opened last gets both packets last. */
	NEED(recv(witness, got, sizeof got, 0) == 44 && recv(witness, got, sizeof got, 0) == 44);
	*text = 0;
	while ((length = recv(filtered, got, sizeof got, MSG_DONTWAIT)) >= 0)
		sprintf(text + strlen(text), "%zd ", length);
	close(witness);
	close(sender);
	return text;
}

/* Whether a filter of these instructions and `return A` accepts `bytes` bytes of each packet. */
#define TAKES(text, ...) (ATTACH(fd, __VA_ARGS__, BPF_STMT(BPF_RET | BPF_A, 0)) == 0 && !strcmp(heard(fd), text))

static void loads(int fd)
{
	PROMISE("without a filter all is heard", !strcmp(heard(fd), "44 44 "));
	PROMISE("a filter says how many bytes are heard", ATTACH(fd, BPF_STMT(BPF_RET | BPF_K, 30)) == 0 && !strcmp(heard(fd), "30 30 "));
	PROMISE("0 is nothing at all", ATTACH(fd, BPF_STMT(BPF_RET | BPF_K, 0)) == 0 && !strcmp(heard(fd), ""));
	PROMISE("more than there are is all", ATTACH(fd, BPF_STMT(BPF_RET | BPF_K, ~0u)) == 0 && !strcmp(heard(fd), "44 44 "));
	PROMISE("a packet's length is known", TAKES("43 43 ", BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0), BPF_STMT(BPF_ALU | BPF_SUB | BPF_K, 1)));
	PROMISE("its bytes are read in the order of the network", TAKES("44 44 ", BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 2)));
	PROMISE("and words", TAKES("21 21 ", BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 12), BPF_STMT(BPF_ALU | BPF_SUB | BPF_K, 0x7f000001 - 21)));
	PROMISE("the length of its header comes by one instruction, and leads behind it",
		TAKES("28 20 ", BPF_STMT(BPF_LDX | BPF_B | BPF_MSH, 0), BPF_STMT(BPF_LD | BPF_B | BPF_IND, 0), BPF_STMT(BPF_ALU | BPF_ADD | BPF_X, 0)));
	PROMISE("a load from outside ends the program with 0", TAKES("", BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 41)));
	PROMISE("an index may be negative", TAKES("41 41 ", BPF_STMT(BPF_LDX | BPF_IMM, ~0u), BPF_STMT(BPF_LD | BPF_B | BPF_IND, 4), BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
						  BPF_STMT(BPF_ALU | BPF_SUB | BPF_K, 3)));
	PROMISE("the remainder is there, which seccomp refuses", TAKES("4 4 ", BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0), BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, 40)));
	PROMISE("a division by zero ends it with 0",
		TAKES("", BPF_STMT(BPF_LDX | BPF_IMM, 0), BPF_STMT(BPF_LD | BPF_IMM, 7), BPF_STMT(BPF_ALU | BPF_MOD | BPF_X, 0)));
	PROMISE("only echo replies", ATTACH(fd, BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 20), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ICMP_ECHOREPLY, 0, 1),
					    BPF_STMT(BPF_RET | BPF_K, 99), BPF_STMT(BPF_RET | BPF_K, 0)) == 0 &&
					     !strcmp(heard(fd), "44 ") && got[20] == ICMP_ECHOREPLY);
}

static void facts(int fd)
{
	PROMISE("the interface is known", TAKES("41 41 ", BPF_STMT(BPF_LD | BPF_W | BPF_ABS, SKF_AD_OFF + SKF_AD_IFINDEX), BPF_STMT(BPF_ALU | BPF_ADD | BPF_K, 40)));
	PROMISE("the protocol", TAKES("8 8 ", BPF_STMT(BPF_LD | BPF_H | BPF_ABS, SKF_AD_OFF + SKF_AD_PROTOCOL), BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 8)));
	PROMISE("the kind of the interface", TAKES("22 22 ", BPF_STMT(BPF_LD | BPF_H | BPF_ABS, SKF_AD_OFF + SKF_AD_HATYPE), BPF_STMT(BPF_ALU | BPF_SUB | BPF_K, 750)));
	PROMISE("whom it is for", TAKES("30 30 ", BPF_STMT(BPF_LD | BPF_W | BPF_ABS, SKF_AD_OFF + SKF_AD_PKTTYPE), BPF_STMT(BPF_ALU | BPF_ADD | BPF_K, 30)));
	PROMISE("where its payload begins", TAKES("28 28 ", BPF_STMT(BPF_LD | BPF_W | BPF_ABS, SKF_AD_OFF + SKF_AD_PAY_OFFSET)));
	PROMISE("A and X are combined",
		TAKES("6 6 ", BPF_STMT(BPF_LD | BPF_IMM, 5), BPF_STMT(BPF_LDX | BPF_IMM, 3), BPF_STMT(BPF_LD | BPF_W | BPF_ABS, SKF_AD_OFF + SKF_AD_ALU_XOR_X)));
	PROMISE("the network's header has a place of its own", TAKES("20 20 ", BPF_STMT(BPF_LD | BPF_B | BPF_ABS, SKF_NET_OFF), BPF_STMT(BPF_ALU | BPF_SUB | BPF_K, 0x45 - 20)));
}

static void refusals(int fd)
{
	struct sock_filter taken = BPF_STMT(BPF_RET | BPF_K, 1), many[BPF_MAXINSNS + 1];
	for (unsigned i = 0; i < COUNT(many); i++)
		many[i] = taken;
	FAILS_WITH("a program of no instruction is refused", attach(fd, &taken, 0), EINVAL);
	FAILS_WITH("and one of too many", attach(fd, many, COUNT(many)), EINVAL);
	FAILS_WITH("and one that is not there", attach(fd, (void *)8, 1), EFAULT);
	FAILS_WITH("and one without end", ATTACH(fd, BPF_STMT(BPF_LD | BPF_IMM, 1)), EINVAL);
	FAILS_WITH("a jump may not leave it", ATTACH(fd, BPF_STMT(BPF_JMP | BPF_JA, 1), taken), EINVAL);
	FAILS_WITH("nor lead back", ATTACH(fd, taken, BPF_STMT(BPF_JMP | BPF_JA, ~0u), taken), EINVAL);
	FAILS_WITH("there is no fact of this number", ATTACH(fd, BPF_STMT(BPF_LD | BPF_W | BPF_ABS, SKF_AD_OFF + SKF_AD_MAX), taken), EINVAL);
	FAILS_WITH("nor between two", ATTACH(fd, BPF_STMT(BPF_LD | BPF_W | BPF_ABS, SKF_AD_OFF + 1), taken), EINVAL);
	FAILS_WITH("memory that was not stored is not read", ATTACH(fd, BPF_STMT(BPF_LD | BPF_MEM, 1), taken), EINVAL);
	FAILS_WITH("there is no seventeenth word", ATTACH(fd, BPF_STMT(BPF_ST, 16), taken), EINVAL);
	FAILS_WITH("nothing is divided by the constant 0", ATTACH(fd, BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, 0), taken), EINVAL);
	FAILS_WITH("nor shifted by 32", ATTACH(fd, BPF_STMT(BPF_ALU | BPF_LSH | BPF_K, 32), taken), EINVAL);
	FAILS_WITH("codes of nothing are refused", ATTACH(fd, BPF_STMT(0x70, 0), taken), EINVAL);
	PROMISE("what was there stays there", !strcmp(heard(fd), "20 20 "));
}

static void locks(int fd)
{
	struct sock_filter taken = BPF_STMT(BPF_RET | BPF_K, 25);
	int value = 7;
	socklen_t length = sizeof value;
	PROMISE("a filter is taken away", set(fd, SO_DETACH_FILTER, 0) == 0 && !strcmp(heard(fd), "44 44 "));
	FAILS_WITH("once", set(fd, SO_DETACH_FILTER, 0), ENOENT);
	NEED(attach(fd, &taken, 1) == 0);
	PROMISE("a filter can be locked", set(fd, SO_LOCK_FILTER, 1) == 0 && getsockopt(fd, SOL_SOCKET, SO_LOCK_FILTER, &value, &length) == 0 && value == 1);
	FAILS_WITH("it is not replaced then", attach(fd, &taken, 1), EPERM);
	FAILS_WITH("nor taken away", set(fd, SO_DETACH_FILTER, 0), EPERM);
	FAILS_WITH("nor opened again", set(fd, SO_LOCK_FILTER, 0), EPERM);
	PROMISE("it is as it was", !strcmp(heard(fd), "25 25 "));
}

/* Programs of any instructions are refused or end. */
static void nonsense(void)
{
	static const unsigned short codes[] = { 0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0xb1, 0x80, 0x94, 0x9c, 0x15, 0x1d, 0x05, 0x04, 0x07, 0x02, 0x60 };
	int fd = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP), taken = 0;
	NEED(fd >= 0);
	srand(1);
	for (int i = 0; i < 3000; i++) {
		struct sock_filter program[8];
		for (int at = 0; at < 8; at++)
			program[at] = (struct sock_filter){ codes[rand() % COUNT(codes)], rand() % 4, rand() % 4, rand() % 3 ? rand() % 70 : SKF_AD_OFF + rand() % 64 };
		program[7] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_A, 0);
		if (attach(fd, program, 8) == 0 && ++taken % 8 == 0)
			heard(fd);
	}
	PROMISE("after programs of any instructions all goes on", taken > 0 && set(fd, SO_DETACH_FILTER, 0) == 0 && !strcmp(heard(fd), "44 44 "));
	close(fd);
}

int main(void)
{
	alarm(120);
	if (unshare(CLONE_NEWNET)) {
		char map[32];
		snprintf(map, sizeof map, "0 %d 1", geteuid());
		NEED(unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0 && writes("/proc/self/uid_map", map) == 0);
	}
	set_loopback_up();
	int fd = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
	NEED(fd >= 0);
	loads(fd);
	facts(fd);
	refusals(fd);
	locks(fd);
	close(fd);
	nonsense();
	return conclude();
}
