/* One io_uring by its system calls alone: set up, submit, take completions in their order. Needs
 * promise.h. */
#include <linux/io_uring.h>

#ifndef ENTRIES
#define ENTRIES 8
#endif

struct ring {
	int fd;
	struct io_uring_params params;
	unsigned *sq_head, *sq_tail, *sq_array, *sq_dropped, *sq_flags;
	unsigned *cq_head, *cq_tail;
	unsigned sq_mask, cq_mask;
	struct io_uring_sqe *sqes;
	struct io_uring_cqe *cqes;
};

static inline int setup(unsigned entries, struct io_uring_params *params)
{
	return (int)syscall(SYS_io_uring_setup, entries, params);
}

static inline int enter(int fd, unsigned submit, unsigned complete, unsigned flags, void *arg, size_t size)
{
	return (int)syscall(SYS_io_uring_enter, fd, submit, complete, flags, arg, size);
}

static inline void open_ring(struct ring *ring)
{
	memset(ring, 0, sizeof *ring);
	ring->fd = setup(ENTRIES, &ring->params);
	NEED(ring->fd >= 0);
	struct io_uring_params *p = &ring->params;
	size_t sq_size = p->sq_off.array + p->sq_entries * 4, cq_size = p->cq_off.cqes + p->cq_entries * sizeof *ring->cqes;
	int shared = MAP_SHARED | MAP_POPULATE, rw = PROT_READ | PROT_WRITE;
	int one = p->features & IORING_FEAT_SINGLE_MMAP;
	if (one && cq_size > sq_size)
		sq_size = cq_size;
	char *sq = mmap(NULL, sq_size, rw, shared, ring->fd, IORING_OFF_SQ_RING);
	char *cq = one ? sq : mmap(NULL, cq_size, rw, shared, ring->fd, IORING_OFF_CQ_RING);
	ring->sqes = mmap(NULL, p->sq_entries * sizeof *ring->sqes, rw, shared, ring->fd, IORING_OFF_SQES);
	NEED(sq != MAP_FAILED && cq != MAP_FAILED && ring->sqes != MAP_FAILED);
	ring->sq_head = (unsigned *)(sq + p->sq_off.head);
	ring->sq_tail = (unsigned *)(sq + p->sq_off.tail);
	ring->sq_array = (unsigned *)(sq + p->sq_off.array);
	ring->sq_dropped = (unsigned *)(sq + p->sq_off.dropped);
	ring->sq_flags = (unsigned *)(sq + p->sq_off.flags);
	ring->sq_mask = *(unsigned *)(sq + p->sq_off.ring_mask);
	ring->cq_head = (unsigned *)(cq + p->cq_off.head);
	ring->cq_tail = (unsigned *)(cq + p->cq_off.tail);
	ring->cq_mask = *(unsigned *)(cq + p->cq_off.ring_mask);
	ring->cqes = (struct io_uring_cqe *)(cq + p->cq_off.cqes);
}

static inline struct io_uring_sqe *next_entry(struct ring *ring, int opcode, int fd, uint64_t user_data)
{
	unsigned tail = *ring->sq_tail, slot = tail & ring->sq_mask;
	struct io_uring_sqe *sqe = &ring->sqes[slot];
	memset(sqe, 0, sizeof *sqe);
	sqe->opcode = opcode;
	sqe->fd = fd;
	sqe->user_data = user_data;
	ring->sq_array[slot] = slot;
	__atomic_store_n(ring->sq_tail, tail + 1, __ATOMIC_RELEASE);
	return sqe;
}

static inline struct io_uring_sqe *add(struct ring *ring, int opcode, int fd, const void *at, unsigned length, uint64_t offset,
				uint64_t user_data)
{
	struct io_uring_sqe *sqe = next_entry(ring, opcode, fd, user_data);
	sqe->addr = (uintptr_t)at;
	sqe->len = length;
	sqe->off = offset;
	return sqe;
}

static inline unsigned arrived(struct ring *ring)
{
	return __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE) - *ring->cq_head;
}

/* Takes the completion of `user_data`, which must be the next; returns its result. */
static inline int take(struct ring *ring, uint64_t user_data)
{
	while (arrived(ring) == 0)
		if (enter(ring->fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0 && errno != EINTR)
			return -9999;
	struct io_uring_cqe *cqe = &ring->cqes[*ring->cq_head & ring->cq_mask];
	int result = cqe->user_data == user_data ? cqe->res : -8888;
	__atomic_store_n(ring->cq_head, *ring->cq_head + 1, __ATOMIC_RELEASE);
	return result;
}

/* Submits the entry that was added last and takes its completion. */
static inline int finish(struct ring *ring, uint64_t user_data)
{
	if (enter(ring->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
		return -7777;
	return take(ring, user_data);
}

static inline int run_one(struct ring *ring, int opcode, int fd, const void *at, unsigned length, uint64_t offset)
{
	static uint64_t user_data = 1000;
	add(ring, opcode, fd, at, length, offset, ++user_data);
	return finish(ring, user_data);
}
