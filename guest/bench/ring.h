// One io_uring by its system calls alone. Needs bench.h.
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { BATCH = 32 };

struct ring {
    int fd;
    unsigned *tail, *mask, *array, *done_head, *done_tail;
    struct io_uring_sqe *entries;
};

static inline struct ring open_ring(struct worker *w) {
    struct io_uring_params p = {0};
    struct ring ring = {.fd = (int)syscall(SYS_io_uring_setup, BATCH, &p)};
    NEED(w, ring.fd >= 0);
    size_t done_size = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    size_t size = p.sq_off.array + p.sq_entries * sizeof(unsigned);
    int shared = MAP_SHARED | MAP_POPULATE, both = PROT_READ | PROT_WRITE;
    char *at = mmap(0, size, both, shared, ring.fd, IORING_OFF_SQ_RING);
    char *done = mmap(0, done_size, both, shared, ring.fd, IORING_OFF_CQ_RING);
    ring.entries = mmap(0, p.sq_entries * sizeof *ring.entries, both, shared, ring.fd, IORING_OFF_SQES);
    NEED(w, at != MAP_FAILED && done != MAP_FAILED && ring.entries != MAP_FAILED);
    ring.tail = (unsigned *)(at + p.sq_off.tail);
    ring.mask = (unsigned *)(at + p.sq_off.ring_mask);
    ring.array = (unsigned *)(at + p.sq_off.array);
    ring.done_head = (unsigned *)(done + p.cq_off.head);
    ring.done_tail = (unsigned *)(done + p.cq_off.tail);
    return ring;
}

static inline void submit_one(struct ring *ring, struct io_uring_sqe entry) {
    unsigned tail = *ring->tail, slot = tail & *ring->mask;
    ring->entries[slot] = entry;
    ring->array[slot] = slot;
    __atomic_store_n(ring->tail, tail + 1, __ATOMIC_RELEASE);
}

// Submits `count` entries, and takes `ends` completions.
static inline void enter_for(struct worker *w, struct ring *ring, unsigned count, unsigned ends) {
    NEED(w, syscall(SYS_io_uring_enter, ring->fd, count, ends, IORING_ENTER_GETEVENTS, 0, 0) == count);
    unsigned done = __atomic_load_n(ring->done_tail, __ATOMIC_ACQUIRE);
    NEED(w, done - *ring->done_head == ends);
    __atomic_store_n(ring->done_head, done, __ATOMIC_RELEASE);
}

static inline void enter(struct worker *w, struct ring *ring, unsigned count) {
    enter_for(w, ring, count, count);
}
