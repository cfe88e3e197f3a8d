/* Rings of packet sockets in shared memory: packet_mmap. */
#include "promise.h"
#include "addresses.h"
#include "frames.h"
#include "loopback.h"

#include <linux/filter.h>
#include <net/if_arp.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <stddef.h>

#define BLOCK 8192u
#define SLOT 2048u
#define TEXT "what is in the ring"
/* Bytes of a datagram with TEXT, from the device's header on. */
#define FRAME (14 + sizeof(struct iphdr) + sizeof(struct udphdr) + sizeof TEXT - 1)

/* Sets an option of packet sockets. */
static int option(int fd, int name, int value)
{
	return set(fd, SOL_PACKET, name, value);
}

/* Returns one; `value` is what the kernel finds in its place. */
static int value_of(int fd, int name, int value)
{
	socklen_t length = sizeof value;
	return getsockopt(fd, SOL_PACKET, name, &value, &length) == 0 ? value : -errno;
}

static struct tpacket_stats_v3 statistics(int fd)
{
	struct tpacket_stats_v3 stats = { 77, 77, 77 };
	socklen_t length = sizeof stats;
	NEED(getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, &stats, &length) == 0);
	return stats;
}

/* A socket of this version that is shown what arrives at the loopback device. */
static int watcher(int kind, int version)
{
	int fd = opened(kind, 0);
	NEED(option(fd, PACKET_VERSION, version) == 0 && option(fd, PACKET_IGNORE_OUTGOING, 1) == 0);
	return fd;
}

static int watch(int fd)
{
	return bound_to(fd, LO, ETH_P_ALL);
}

static int makes_ring(int fd, int name, unsigned block, unsigned blocks, unsigned slot, unsigned slots)
{
	struct tpacket_req3 request = { .tp_block_size = block, .tp_block_nr = blocks, .tp_frame_size = slot, .tp_frame_nr = slots };
	return setsockopt(fd, SOL_PACKET, name, &request, sizeof request);
}

static unsigned char *mapped(int fd, size_t length)
{
	unsigned char *ring = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(ring != MAP_FAILED);
	return ring;
}

static int is_readable(int fd, int timeout)
{
	struct pollfd polled = { .fd = fd, .events = POLLIN };
	return poll(&polled, 1, timeout) == 1 && polled.revents == POLLIN;
}

static int is_quiet(int fd)
{
	char byte;
	return recv(fd, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN;
}

static int is_near(unsigned seconds)
{
	long apart = time(NULL) - (long)seconds;
	return apart >= -1 && apart <= 5;
}

static int is_datagram(const unsigned char *ip, const char *text)
{
	return ip[0] == 0x45 && ip[9] == IPPROTO_UDP && !memcmp(ip + sizeof(struct iphdr) + sizeof(struct udphdr), text, strlen(text));
}

static int is_name(const struct sockaddr_ll *name)
{
	return name->sll_family == AF_PACKET && name->sll_protocol == htons(ETH_P_IP) && name->sll_ifindex == LO && name->sll_hatype == ARPHRD_LOOPBACK &&
		name->sll_pkttype == PACKET_HOST && name->sll_halen == 6;
}

static void settings(void)
{
	int fd = opened(SOCK_RAW, 0);
	PROMISE("rings are of version 1 unless it is changed", value_of(fd, PACKET_VERSION, 0) == TPACKET_V1);
	PROMISE("each version has its header", value_of(fd, PACKET_HDRLEN, TPACKET_V1) == 32 && value_of(fd, PACKET_HDRLEN, TPACKET_V2) == 32 && value_of(fd, PACKET_HDRLEN, TPACKET_V3) == 48);
	PROMISE("there is no version 4", value_of(fd, PACKET_HDRLEN, 3) == -EINVAL);
	FAILS_WITH("which is none to be set either", option(fd, PACKET_VERSION, 3), EINVAL);
	long wide = 0;
	FAILS_WITH("numbers have 4 bytes", setsockopt(fd, SOL_PACKET, PACKET_VERSION, &wide, sizeof wide), EINVAL);
	PROMISE("settings are kept", option(fd, PACKET_RESERVE, 32) == 0 && value_of(fd, PACKET_RESERVE, 0) == 32 && option(fd, PACKET_LOSS, 7) == 0 && value_of(fd, PACKET_LOSS, 0) == 1 &&
		option(fd, PACKET_ORIGDEV, 5) == 0 && value_of(fd, PACKET_ORIGDEV, 0) == 1 && option(fd, PACKET_TIMESTAMP, 64) == 0 && value_of(fd, PACKET_TIMESTAMP, 0) == 64 &&
		option(fd, PACKET_TX_HAS_OFF, 1) == 0 && value_of(fd, PACKET_TX_HAS_OFF, 0) == 1);
	FAILS_WITH("no more than a number is reserved", option(fd, PACKET_RESERVE, -1), EINVAL);
	NEED(option(fd, PACKET_RESERVE, 0) == 0);

	FAILS_WITH("there is nothing to map", mmap(NULL, BLOCK, PROT_READ, MAP_SHARED, fd, 0), EINVAL);
	FAILS_WITH("blocks have bytes", makes_ring(fd, PACKET_RX_RING, 0, 2, SLOT, 8), EINVAL);
	FAILS_WITH("whole pages", makes_ring(fd, PACKET_RX_RING, BLOCK + 2048, 2, SLOT, 10), EINVAL);
	FAILS_WITH("of a positive number", makes_ring(fd, PACKET_RX_RING, 0x80000000, 1, 0x40000000, 2), EINVAL);
	FAILS_WITH("slots have room for a header", makes_ring(fd, PACKET_RX_RING, BLOCK, 1, 48, 170), EINVAL);
	FAILS_WITH("and are aligned", makes_ring(fd, PACKET_RX_RING, BLOCK, 1, 2040, 4), EINVAL);
	FAILS_WITH("and fit into a block", makes_ring(fd, PACKET_RX_RING, BLOCK, 1, 2 * BLOCK, 1), EINVAL);
	FAILS_WITH("their number is that of all blocks", makes_ring(fd, PACKET_RX_RING, BLOCK, 2, SLOT, 7), EINVAL);
	FAILS_WITH("which has no bits to lose", makes_ring(fd, PACKET_RX_RING, BLOCK, 0x40000001, SLOT, 4), EINVAL);
	FAILS_WITH("no blocks have no slots", makes_ring(fd, PACKET_RX_RING, BLOCK, 0, SLOT, 4), EINVAL);
	FAILS_WITH("there is no memory for all that can be asked for", makes_ring(fd, PACKET_RX_RING, 1 << 30, 1 << 20, 1 << 30, 1 << 20), ENOMEM);
	struct tpacket_req request = { BLOCK, 2, SLOT, 8 };
	FAILS_WITH("a request is whole", setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &request, sizeof request - 1), EINVAL);
	FAILS_WITH("and readable", setsockopt(fd, SOL_PACKET, PACKET_RX_RING, (void *)8, sizeof request), EINVAL);
	PROMISE("a ring that is not there can end", makes_ring(fd, PACKET_RX_RING, 0, 0, 0, 0) == 0);
	PROMISE("a ring is made", setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &request, sizeof request) == 0);
	FAILS_WITH("a second one is not", setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &request, sizeof request), EBUSY);
	FAILS_WITH("it keeps its version", option(fd, PACKET_VERSION, TPACKET_V2), EBUSY);
	FAILS_WITH("what is reserved", option(fd, PACKET_RESERVE, 16), EBUSY);
	FAILS_WITH("and what is done with losses", option(fd, PACKET_LOSS, 0), EBUSY);
	FAILS_WITH("all of it is mapped", mmap(NULL, BLOCK, PROT_READ, MAP_SHARED, fd, 0), EINVAL);
	FAILS_WITH("and no more", mmap(NULL, 3 * BLOCK, PROT_READ, MAP_SHARED, fd, 0), EINVAL);
	FAILS_WITH("from its beginning", mmap(NULL, 2 * BLOCK, PROT_READ, MAP_SHARED, fd, 4096), EINVAL);
	unsigned char *ring = mapped(fd, 2 * BLOCK);
	FAILS_WITH("a mapped ring does not end", makes_ring(fd, PACKET_RX_RING, 0, 0, 0, 0), EBUSY);
	FAILS_WITH("nor gets another beside it", makes_ring(fd, PACKET_TX_RING, BLOCK, 1, SLOT, 4), EBUSY);
	NEED(munmap(ring, BLOCK) == 0);
	FAILS_WITH("also if a part is mapped", makes_ring(fd, PACKET_RX_RING, 0, 0, 0, 0), EBUSY);
	NEED(munmap(ring + BLOCK, BLOCK) == 0);
	PROMISE("a ring for sending is behind it", makes_ring(fd, PACKET_TX_RING, BLOCK, 1, SLOT, 4) == 0);
	FAILS_WITH("both are mapped together", mmap(NULL, 2 * BLOCK, PROT_READ, MAP_SHARED, fd, 0), EINVAL);
	ring = mapped(fd, 3 * BLOCK);
	NEED(munmap(ring, 3 * BLOCK) == 0);
	PROMISE("each ends by itself", makes_ring(fd, PACKET_RX_RING, 0, 0, 0, 0) == 0 && munmap(mapped(fd, BLOCK), BLOCK) == 0 && makes_ring(fd, PACKET_TX_RING, 0, 0, 0, 0) == 0);
	FAILS_WITH("then there is nothing to map again", mmap(NULL, BLOCK, PROT_READ, MAP_SHARED, fd, 0), EINVAL);
	NEED(option(fd, PACKET_VERSION, TPACKET_V3) == 0);
	struct tpacket_req3 blocks = { BLOCK, 1, SLOT, 4, .tp_sizeof_priv = BLOCK - 48 - 60 };
	FAILS_WITH("a block has room beside what the program reserves", setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &blocks, sizeof blocks), EINVAL);
	FAILS_WITH("requests of version 3 are longer", setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &blocks, sizeof request), EINVAL);
	blocks = (struct tpacket_req3){ BLOCK, 1, SLOT, 4, .tp_retire_blk_tov = 10 };
	FAILS_WITH("what is sent is not handed over in time", setsockopt(fd, SOL_PACKET, PACKET_TX_RING, &blocks, sizeof blocks), EINVAL);
	close(fd);
	int udp = socket(AF_INET, SOCK_DGRAM, 0);
	FAILS_WITH("other sockets are not mapped", mmap(NULL, BLOCK, PROT_READ, MAP_SHARED, udp, 0), ENODEV);
	close(udp);
}

/* The members of a header of version 1 or 2. */
struct slot {
	unsigned long status;
	unsigned length, snap, mac, net, seconds, fraction;
	const struct sockaddr_ll *name;
};

static struct slot slot_at(const unsigned char *at, int version)
{
	const struct tpacket_hdr *one = (const void *)at;
	const struct tpacket2_hdr *two = (const void *)at;
	const struct sockaddr_ll *name = (const void *)(at + 32);
	if (version == TPACKET_V1)
		return (struct slot){ __atomic_load_n(&one->tp_status, __ATOMIC_ACQUIRE), one->tp_len, one->tp_snaplen, one->tp_mac, one->tp_net, one->tp_sec, one->tp_usec * 1000, name };
	return (struct slot){ __atomic_load_n(&two->tp_status, __ATOMIC_ACQUIRE), two->tp_len, two->tp_snaplen, two->tp_mac, two->tp_net, two->tp_sec, two->tp_nsec, name };
}

/* Gives a slot back. The status is the first word in both versions. */
static void give(unsigned char *at, int version, unsigned status)
{
	if (version == TPACKET_V1)
		__atomic_store_n((unsigned long *)at, status, __ATOMIC_RELEASE);
	else
		__atomic_store_n((unsigned *)at, status, __ATOMIC_RELEASE);
}

static void slots(int version)
{
	int fd = watcher(SOCK_RAW, version), udp = receiver();
	NEED(makes_ring(fd, PACKET_RX_RING, BLOCK, 1, SLOT, 4) == 0 && watch(fd) == 0);
	unsigned char *ring = mapped(fd, BLOCK);
	PROMISE("an empty ring is the kernel's", !is_readable(fd, 0) && slot_at(ring, version).status == TP_STATUS_KERNEL);
	sends_datagram(TEXT);
	struct slot slot = slot_at(ring, version);
	PROMISE("a frame arrives in the first slot", is_readable(fd, 1000) && slot.status & TP_STATUS_USER && !(slot.status & (TP_STATUS_COPY | TP_STATUS_LOSING)));
	PROMISE("with its length", slot.length == FRAME && slot.snap == FRAME);
	PROMISE("the packet is aligned, the device's header before it", slot.mac == 66 && slot.net == 80 && is_datagram(ring + slot.net, TEXT) && ring[slot.net - 2] == 8);
	PROMISE("with a name and a time", is_name(slot.name) && is_near(slot.seconds) && slot.fraction < 1000000000);
	PROMISE("and nowhere else", is_quiet(fd) && slot_at(ring + SLOT, version).status == TP_STATUS_KERNEL);
	give(ring, version, TP_STATUS_KERNEL);
	PROMISE("a slot that is given back is no input", !is_readable(fd, 0));
	for (int i = 0; i < 6; i++)
		sends_datagram(TEXT);
	struct tpacket_stats_v3 stats = statistics(fd);
	PROMISE("a full ring loses frames, and counts them", stats.tp_packets == 7 && stats.tp_drops == 2 && stats.tp_freeze_q_cnt == 77);
	PROMISE("each slot has one", slot_at(ring, version).status & slot_at(ring + SLOT, version).status & slot_at(ring + 2 * SLOT, version).status & slot_at(ring + 3 * SLOT, version).status & TP_STATUS_USER);
	sends_datagram(TEXT);
	give(ring + SLOT, version, TP_STATUS_KERNEL);
	sends_datagram(TEXT);
	PROMISE("the next one goes to the oldest slot, and tells of the loss", slot_at(ring + SLOT, version).status & TP_STATUS_LOSING && is_readable(fd, 0));
	PROMISE("until it was counted", statistics(fd).tp_drops == 1 && statistics(fd).tp_packets == 0);
	for (int i = 0; i < 4; i++)
		give(ring + i * SLOT, version, TP_STATUS_KERNEL);
	static char large[3000];
	memset(large, 'x', sizeof large - 1);
	sends_datagram(large);
	slot = slot_at(ring + 2 * SLOT, version);
	PROMISE("a long frame is cut", slot.length == 14 + 28 + sizeof large - 1 && slot.snap == SLOT - 66 && !(slot.status & TP_STATUS_COPY) && is_quiet(fd));
	NEED(option(fd, PACKET_COPY_THRESH, 1) == 0);
	sends_datagram(large);
	slot = slot_at(ring + 3 * SLOT, version);
	char whole[4000];
	PROMISE("or also queued whole", slot.status & TP_STATUS_COPY && slot.snap == SLOT - 66 && recv(fd, whole, sizeof whole, MSG_DONTWAIT) == 14 + 28 + sizeof large - 1);
	pid_t child = fork();
	if (child == 0)
		_exit(!(slot_at(ring + 3 * SLOT, version).status & TP_STATUS_USER));
	int status;
	PROMISE("a child has the same ring", waitpid(child, &status, 0) == child && status == 0);
	NEED(munmap(ring, BLOCK) == 0);
	close(fd);

	fd = watcher(SOCK_DGRAM, version);
	struct sock_filter first_bytes[] = { BPF_STMT(BPF_RET | BPF_K, 24) };
	struct sock_fprog filter = { 1, first_bytes };
	NEED(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) == 0 && option(fd, PACKET_RESERVE, 20) == 0 &&
		makes_ring(fd, PACKET_RX_RING, BLOCK, 1, SLOT, 4) == 0 && watch(fd) == 0);
	ring = mapped(fd, BLOCK);
	sends_datagram(TEXT);
	slot = slot_at(ring, version);
	PROMISE("a cooked socket's frame begins with the packet", slot.mac == slot.net && ring[slot.net] == 0x45 && slot.length == FRAME - 14 && is_name(slot.name));
	PROMISE("behind what is reserved", slot.net == 80 + 20);
	PROMISE("a filter cuts it", slot.snap == 24);
	memset(ring, 0xff, BLOCK);
	for (int i = 0; i < 3; i++)
		sends_datagram(TEXT);
	PROMISE("what the program writes into headers is its own loss", statistics(fd).tp_drops == 3 && is_readable(fd, 0));
	NEED(munmap(ring, BLOCK) == 0);
	close(fd);
	close(udp);
}

#define BLOCKS 3

static struct tpacket_hdr_v1 *block_at(unsigned char *ring, int block)
{
	return &((struct tpacket_block_desc *)(ring + block * BLOCK))->hdr.bh1;
}

static unsigned status_of(unsigned char *ring, int block)
{
	return __atomic_load_n(&block_at(ring, block)->block_status, __ATOMIC_ACQUIRE);
}

static void give_block(unsigned char *ring, int block)
{
	__atomic_store_n(&block_at(ring, block)->block_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
}

/* How many frames of a block are datagrams with TEXT; -1 if its headers do not fit together. */
static int datagrams_in(unsigned char *ring, int block)
{
	struct tpacket_hdr_v1 *head = block_at(ring, block);
	unsigned char *start = ring + block * BLOCK, *at = start + head->offset_to_first_pkt;
	int count = 0;
	for (unsigned i = 0; i < head->num_pkts; i++) {
		struct tpacket3_hdr *frame = (void *)at;
		int is_last = i + 1 == head->num_pkts;
		if ((frame->tp_next_offset == 0) != is_last || at + frame->tp_mac + frame->tp_snaplen > start + head->blk_len)
			return -1;
		count += frame->tp_len == FRAME && frame->tp_snaplen == FRAME && frame->tp_status & TP_STATUS_USER && frame->tp_mac == 82 && is_near(frame->tp_sec) &&
			frame->tp_nsec < 1000000000 && is_name((void *)(at + 48)) && is_datagram(at + frame->tp_net, TEXT);
		at += frame->tp_next_offset;
	}
	return count;
}

static int block_ring(unsigned timeout, unsigned features)
{
	int fd = watcher(SOCK_RAW, TPACKET_V3);
	struct tpacket_req3 request = { BLOCK, BLOCKS, SLOT, BLOCKS * BLOCK / SLOT, timeout, 13, features };
	NEED(setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &request, sizeof request) == 0 && watch(fd) == 0);
	return fd;
}

static void blocks(void)
{
	int fd = block_ring(40, TP_FT_REQ_FILL_RXHASH), udp = receiver();
	unsigned char *ring = mapped(fd, BLOCKS * BLOCK);
	PROMISE("an empty block is not handed over", !is_readable(fd, 150) && status_of(ring, 0) == TP_STATUS_KERNEL);
	sends_datagram(TEXT);
	sends_datagram(TEXT);
	PROMISE("one that is not full is, after a while", is_readable(fd, 2000) && status_of(ring, 0) == (TP_STATUS_USER | TP_STATUS_BLK_TMO));
	struct tpacket_block_desc *desc = (void *)ring;
	struct tpacket_hdr_v1 *head = block_at(ring, 0);
	PROMISE("its header tells where the frames are", desc->version == TPACKET_V3 && desc->offset_to_priv == 48 && head->offset_to_first_pkt == 64 && head->num_pkts == 2);
	PROMISE("and when they came", head->seq_num == 1 && is_near(head->ts_first_pkt.ts_sec) && is_near(head->ts_last_pkt.ts_sec) &&
		(head->ts_first_pkt.ts_sec < head->ts_last_pkt.ts_sec || head->ts_first_pkt.ts_nsec <= head->ts_last_pkt.ts_nsec));
	PROMISE("both are there", datagrams_in(ring, 0) == 2 && head->blk_len == 64 + 2 * ((82 + FRAME + 7) & ~7ul));
	struct tpacket3_hdr *frames[] = { (void *)(ring + 64), (void *)(ring + 64 + ((82 + FRAME + 7) & ~7ul)) };
	PROMISE("of different flows, which have hashes", frames[0]->hv1.tp_rxhash != frames[1]->hv1.tp_rxhash);
	give_block(ring, 0);
	PROMISE("a block that is given back is no input", !is_readable(fd, 0));
	sends_datagram(TEXT);
	PROMISE("the next block is next", is_readable(fd, 2000) && status_of(ring, 1) & TP_STATUS_USER && block_at(ring, 1)->seq_num == 2 && datagrams_in(ring, 1) == 1 && status_of(ring, 0) == 0);
	struct tpacket_stats_v3 stats = statistics(fd);
	PROMISE("they are counted", stats.tp_packets == 3 && stats.tp_drops == 0 && stats.tp_freeze_q_cnt == 0);
	NEED(munmap(ring, BLOCKS * BLOCK) == 0);
	close(fd);

	fd = block_ring(60000, 0);
	ring = mapped(fd, BLOCKS * BLOCK);
	int sent = 0;
	while (sent < 1000 && !(status_of(ring, 0) & TP_STATUS_USER)) {
		sends_datagram(TEXT);
		sent++;
	}
	int one = (BLOCK - 64 - 1) / ((82 + FRAME + 7) & ~7ul);
	PROMISE("a full block is handed over at once", sent == one + 1 && status_of(ring, 0) == TP_STATUS_USER && is_readable(fd, 0) && datagrams_in(ring, 0) == one);
	while (sent < BLOCKS * one + 5) {
		sends_datagram(TEXT);
		sent++;
	}
	PROMISE("all are the program's in the end", datagrams_in(ring, 1) == one && datagrams_in(ring, 2) == one && status_of(ring, 1) & status_of(ring, 2) & TP_STATUS_USER);
	stats = statistics(fd);
	PROMISE("then frames are lost", stats.tp_packets == (unsigned)sent && stats.tp_drops == 5 && stats.tp_freeze_q_cnt == 1);
	sends_datagram(TEXT);
	give_block(ring, 1);
	sends_datagram(TEXT);
	PROMISE("until the oldest is given back", status_of(ring, 1) == TP_STATUS_KERNEL && statistics(fd).tp_drops == 2);
	give_block(ring, 0);
	for (int i = 0; i <= one; i++)
		sends_datagram(TEXT);
	PROMISE("from which it goes on", status_of(ring, 0) & TP_STATUS_USER && block_at(ring, 0)->seq_num == 4 && datagrams_in(ring, 0) == one && statistics(fd).tp_drops == 0);
	NEED(munmap(ring, BLOCKS * BLOCK) == 0);
	close(fd);
	close(udp);
}

/* Puts a frame of a protocol that nobody knows, of `length` bytes, into a slot for sending. */
static void fill(unsigned char *at, int version, unsigned length, char text)
{
	unsigned char *frame = at + (version == TPACKET_V3 ? 48 : 32);
	memset(frame, 0, 12);
	frame[12] = 0x88;
	frame[13] = 0xb5;
	memset(frame + 14, text, 46);
	struct tpacket_hdr *one = (void *)at;
	struct tpacket2_hdr *two = (void *)at;
	struct tpacket3_hdr *three = (void *)at;
	if (version == TPACKET_V1)
		one->tp_len = length;
	else if (version == TPACKET_V2)
		two->tp_len = length;
	else
		three->tp_len = length, three->tp_next_offset = 0;
}

static unsigned *status_in(unsigned char *at, int version)
{
	return version == TPACKET_V3 ? &((struct tpacket3_hdr *)at)->tp_status : (unsigned *)at;
}

static void request(unsigned char *at, int version)
{
	__atomic_store_n(status_in(at, version), TP_STATUS_SEND_REQUEST, __ATOMIC_RELEASE);
}

/* Whether the next frame of a socket is one of those that were sent. */
static int sees(int fd, char text)
{
	unsigned char got[100];
	return recv(fd, got, sizeof got, MSG_DONTWAIT) == 60 && got[12] == 0x88 && got[14] == text && got[59] == text;
}

static void sending(int version)
{
	int fd = opened(SOCK_RAW, 0), other = opened(SOCK_RAW, 0);
	NEED(bound_to(other, LO, 0x88b5) == 0 && bound_to(fd, LO, 0) == 0 && option(fd, PACKET_VERSION, version) == 0 && makes_ring(fd, PACKET_TX_RING, BLOCK, 1, SLOT, 4) == 0);
	unsigned char *ring = mapped(fd, BLOCK);
	PROMISE("without a request nothing is sent", send(fd, "ignored", 7, 0) == 0 && is_quiet(other));
	for (int i = 0; i < 2; i++) {
		fill(ring + i * SLOT, version, 60, 'a' + i);
		request(ring + i * SLOT, version);
	}
	PROMISE("all requests are sent", send(fd, NULL, 0, 0) == 120 && sees(other, 'a') && sees(other, 'b') && is_quiet(other));
	PROMISE("then the slots are free", *status_in(ring, version) == TP_STATUS_AVAILABLE && *status_in(ring + SLOT, version) == TP_STATUS_AVAILABLE);
	fill(ring + 3 * SLOT, version, 60, 'd');
	request(ring + 3 * SLOT, version);
	PROMISE("in turn", send(fd, NULL, 0, 0) == 0 && is_quiet(other));
	fill(ring + 2 * SLOT, version, SLOT, 'c');
	request(ring + 2 * SLOT, version);
	FAILS_WITH("what is longer than its slot is not sent", send(fd, NULL, 0, 0), EMSGSIZE);
	PROMISE("and told in the slot", *status_in(ring + 2 * SLOT, version) == TP_STATUS_WRONG_FORMAT && is_quiet(other));
	fill(ring + 2 * SLOT, version, 10, 'c');
	request(ring + 2 * SLOT, version);
	FAILS_WITH("neither is what is shorter than a header", send(fd, NULL, 0, 0), EINVAL);
	if (version == TPACKET_V3) {
		fill(ring + 2 * SLOT, version, 60, 'c');
		((struct tpacket3_hdr *)(ring + 2 * SLOT))->tp_next_offset = 64;
		request(ring + 2 * SLOT, version);
		FAILS_WITH("nor what begins elsewhere", send(fd, NULL, 0, 0), EINVAL);
	}
	fill(ring + 2 * SLOT, version, 60, 'c');
	request(ring + 2 * SLOT, version);
	PROMISE("a mended one is, with those behind it", send(fd, NULL, 0, 0) == 120 && sees(other, 'c') && sees(other, 'd'));
	NEED(munmap(ring, BLOCK) == 0 && makes_ring(fd, PACKET_TX_RING, 0, 0, 0, 0) == 0 && option(fd, PACKET_LOSS, 1) == 0 && option(fd, PACKET_TX_HAS_OFF, 1) == 0);
	NEED(makes_ring(fd, PACKET_RX_RING, BLOCK, 1, SLOT, 4) == 0 && makes_ring(fd, PACKET_TX_RING, BLOCK, 1, SLOT, 4) == 0);
	ring = mapped(fd, 2 * BLOCK);
	unsigned char *to_send = ring + BLOCK;
	fill(to_send, version, SLOT, 'e');
	request(to_send, version);
	fill(to_send + SLOT, version, 60, 'f');
	unsigned char *frame = to_send + SLOT + (version == TPACKET_V3 ? 48 : 32);
	memmove(frame + 100, frame, 60);
	unsigned short mac = frame + 100 - (to_send + SLOT);
	if (version == TPACKET_V1)
		((struct tpacket_hdr *)(to_send + SLOT))->tp_mac = mac;
	else if (version == TPACKET_V2)
		((struct tpacket2_hdr *)(to_send + SLOT))->tp_mac = mac;
	else
		((struct tpacket3_hdr *)(to_send + SLOT))->tp_mac = mac;
	request(to_send + SLOT, version);
	PROMISE("wrong frames can be skipped, and frames begin where it is told", send(fd, NULL, 0, 0) == 60 && sees(other, 'f') && *status_in(to_send, version) == TP_STATUS_AVAILABLE);
	NEED(munmap(ring, 2 * BLOCK) == 0);
	close(fd);
	close(other);
}

#define RACES 150

static int races_end;

static void *reserves(void *fd)
{
	for (unsigned i = 0; !__atomic_load_n(&races_end, __ATOMIC_RELAXED); i++) {
		option(*(int *)fd, PACKET_RESERVE, SLOT);
		option(*(int *)fd, PACKET_RESERVE, 0);
		if (i % 16 == 0)
			option(*(int *)fd, PACKET_VERSION, i / 16 % 3);
	}
	return NULL;
}

/* Settings change while a ring is made: it has room for what it was made for (CVE-2017-1000111). */
static void races(void)
{
	int fd = opened(SOCK_RAW, 0), made = 0, fit = 0;
	pthread_t thread;
	NEED(watch(fd) == 0 && pthread_create(&thread, NULL, reserves, &fd) == 0);
	while (made < RACES)
		if (makes_ring(fd, PACKET_RX_RING, BLOCK, 1, 80, BLOCK / 80) == 0) {
			made++;
			fit += value_of(fd, PACKET_RESERVE, 0) == 0;
			if (made % 64 == 0)
				sends_datagram(TEXT);
			NEED(makes_ring(fd, PACKET_RX_RING, 0, 0, 0, 0) == 0);
		}
	__atomic_store_n(&races_end, 1, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	PROMISE("a ring has room for what is reserved, whenever that changes", made > 0 && made == fit);
	close(fd);
}

/* PACKET_VNET_HDR: each frame has a header of virtio_net before it. */
static void offloading(void)
{
	unsigned char bytes[256], frame[10 + FRAME];
	int cooked = opened(SOCK_DGRAM, 0), raw = watcher(SOCK_RAW, TPACKET_V2), to = receiver();
	FAILS_WITH("PACKET_VNET_HDR of a cooked socket is EINVAL", option(cooked, PACKET_VNET_HDR, 1), EINVAL);
	close(cooked);
	PROMISE("PACKET_VNET_HDR is kept", option(raw, PACKET_VNET_HDR, 1) == 0 && value_of(raw, PACKET_VNET_HDR, 7) == 1);
	NEED(watch(raw) == 0);
	sends_datagram(TEXT);
	PROMISE("a received frame has ten more bytes before it",
		recv(raw, bytes, sizeof bytes, 0) == 10 + FRAME && !memcmp(bytes + 10 + FRAME - strlen(TEXT), TEXT, strlen(TEXT)));
	PROMISE("none of them asks for segments", bytes[1] == 0);
	NEED(recv(to, bytes, sizeof bytes, 0) == (ssize_t)strlen(TEXT));
	/* The datagram again, from and to another address; its checksum is left to the kernel. */
	memset(frame, 0, sizeof frame);
	struct iphdr *ip = (void *)(frame + 10 + 14);
	struct udphdr *udp = (void *)(ip + 1);
	*ip = (struct iphdr){ .version = 4, .ihl = 5, .tot_len = htons(FRAME - 14), .ttl = 9, .protocol = IPPROTO_UDP };
	*udp = (struct udphdr){ .source = htons(9), .dest = htons(PORT), .len = htons(8 + strlen(TEXT)) };
	memcpy(udp + 1, TEXT, strlen(TEXT));
	frame[0] = 1;
	frame[6] = 14 + sizeof *ip;
	frame[8] = offsetof(struct udphdr, check);
	NEED(set(raw, SOL_PACKET, PACKET_IGNORE_OUTGOING, 0) == 0);
	frame[10 + 12] = 8;
	int other = watcher(SOCK_RAW, TPACKET_V2);
	NEED(watch(other) == 0);
	memset(bytes, 0, sizeof bytes);
	PROMISE("a sent frame has them too, and they count", send(raw, frame, sizeof frame, 0) == sizeof frame);
	PROMISE("they are not sent", recv(other, bytes, sizeof bytes, 0) == FRAME && !memcmp(bytes + FRAME - strlen(TEXT), TEXT, strlen(TEXT)));
	udp = (void *)(bytes + 14 + sizeof *ip);
	unsigned sum = 0;
	udp->len = htons(8 + strlen(TEXT));
	for (size_t i = 0; i < 8 + strlen(TEXT); i += 2)
		sum += ((unsigned char *)udp)[i] << 8 | ((unsigned char *)udp)[i + 1];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	/* Linux makes it later, in the device. */
	PROMISE("a checksum that was left to the kernel is made", sum == 0xffff || udp->check == 0);
	close(other);
	frame[6] = frame[7] = 255;
	FAILS_WITH("a checksum outside of the frame is EINVAL", send(raw, frame, sizeof frame, 0), EINVAL);
	frame[0] = frame[6] = frame[7] = 0;
	frame[3] = 255;
	FAILS_WITH("so are headers longer than the frame", send(raw, frame, sizeof frame, 0), EINVAL);
	frame[3] = 0;
	frame[1] = 77;
	FAILS_WITH("and unknown segments", send(raw, frame, sizeof frame, 0), EINVAL);
	FAILS_WITH("and a part of the header", send(raw, frame, 9, 0), EINVAL);
	close(raw);
	close(to);

	for (int version = TPACKET_V1; version <= TPACKET_V3; version++) {
		raw = watcher(SOCK_RAW, version);
		NEED(option(raw, PACKET_VNET_HDR, 1) == 0 && makes_ring(raw, PACKET_RX_RING, BLOCK, 1, SLOT, BLOCK / SLOT) == 0);
		unsigned char *ring = mapped(raw, BLOCK);
		FAILS_WITH("with a ring PACKET_VNET_HDR is EBUSY", option(raw, PACKET_VNET_HDR, 0), EBUSY);
		to = receiver();
		NEED(watch(raw) == 0);
		sends_datagram(TEXT);
		struct pollfd news = { raw, POLLIN, 0 };
		NEED(poll(&news, 1, 5000) == 1);
		unsigned at = version == TPACKET_V1 ? ((struct tpacket_hdr *)ring)->tp_mac : ((struct tpacket2_hdr *)ring)->tp_mac;
		if (version == TPACKET_V3) {
			struct tpacket_block_desc *block = (void *)ring;
			struct tpacket3_hdr *first = (void *)(ring + block->hdr.bh1.offset_to_first_pkt);
			at = (unsigned)((unsigned char *)first - ring) + first->tp_mac;
			PROMISE("a ring's frame begins ten bytes later", first->tp_mac == 82 + 10);
		} else {
			PROMISE("a ring's frame begins ten bytes later", at == 66 + 10);
		}
		PROMISE("and is there", !memcmp(ring + at + FRAME - strlen(TEXT), TEXT, strlen(TEXT)) && ring[at - 9] == 0);
		munmap(ring, BLOCK);
		close(raw);
		close(to);
	}
	/* CVE-2020-14386: a frame that the header's 16 bits cannot name. */
	raw = watcher(SOCK_RAW, TPACKET_V2);
	to = receiver();
	NEED(option(raw, PACKET_VNET_HDR, 1) == 0 && option(raw, PACKET_RESERVE, 0xffff - 75) == 0);
	NEED(makes_ring(raw, PACKET_RX_RING, 0x800000, 1, 0x11000, 0x800000 / 0x11000) == 0 && watch(raw) == 0);
	sends_datagram(TEXT);
	PROMISE("a frame that no header can name is lost", statistics(raw).tp_drops == 1);
	close(raw);
	close(to);
}

int main(void)
{
	set_loopback_up();
	settings();
	slots(TPACKET_V1);
	slots(TPACKET_V2);
	blocks();
	sending(TPACKET_V1);
	sending(TPACKET_V2);
	sending(TPACKET_V3);
	races();
	offloading();
	return conclude();
}
