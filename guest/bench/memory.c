// Address spaces: faults, mappings, protection, growth.
#include "bench.h"
#include <sys/resource.h>

enum { LARGE_PAGE = 2 << 20, FILE_SIZE = 4 << 20, MOVED = 16 };

static long faults(void) {
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return use.ru_minflt;
}

static void fault_small(struct worker *w) {
    size_t size = (size_t)w->operations * PAGE;
    SAMPLES(w) {
        char *heap = memory(w, size, SMALL);
        begin(w);
        store_to_each_page(heap, size, 1);
        end(w);
        munmap(heap, size);
    }
}

// A load finds a page of zeros that several processes may share.
static void fault_zero(struct worker *w) {
    size_t size = (size_t)w->operations * PAGE;
    SAMPLES(w) {
        char *heap = memory(w, size, SMALL);
        begin(w);
        for (size_t i = 0; i < size; i += PAGE) (void)((volatile char *)heap)[i];
        end(w);
        munmap(heap, size);
    }
}

static void unmap_resident(struct worker *w) {
    size_t size = (size_t)w->operations * PAGE;
    SAMPLES(w) {
        char *heap = memory(w, size, SMALL);
        store_to_each_page(heap, size, 1);
        begin(w);
        munmap(heap, size);
        end(w);
    }
}

static void fault_large(struct worker *w) {
    size_t size = (size_t)w->operations * LARGE_PAGE;
    long taken = 0;
    SAMPLES(w) {
        char *mapping = memory(w, size + LARGE_PAGE, LARGE);
        char *heap = (char *)(((uintptr_t)mapping + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE);
        long before = faults();
        begin(w);
        store_to_each_page(heap, size, 1);
        end(w);
        taken = faults() - before;
        munmap(mapping, size + LARGE_PAGE);
    }
    long each = taken / w->operations;
    if (each > w->shared->workers) note(w, "no 2 MiB page given: %ld faults for each 2 MiB", each);
}

static void fault_file(struct worker *w) {
    size_t size = (size_t)w->operations * PAGE;
    char name[64];
    int fd = file(w, size, name);
    SAMPLES(w) {
        char *view = mmap(0, size, PROT_READ, MAP_SHARED, fd, 0);
        NEED(w, view != MAP_FAILED);
        begin(w);
        for (size_t i = 0; i < size; i += PAGE) (void)((volatile char *)view)[i];
        end(w);
        munmap(view, size);
    }
    close(fd);
    unlink(name);
}

// A child shares the memory and ends: the remaining process is again the only owner of the frames
// and may keep them.
static void cow_reuse(struct worker *w) {
    size_t size = (size_t)w->operations * PAGE;
    char *heap = memory(w, size, SMALL);
    store_to_each_page(heap, size, 1);
    SAMPLES(w) {
        pid_t child = fork();
        NEED(w, child >= 0);
        if (child == 0) _exit(0);
        reap(w, child);
        begin(w);
        store_to_each_page(heap, size, 2);
        end(w);
    }
    munmap(heap, size);
}

// The child lives during the stores: every frame has to be copied.
static void cow_copy(struct worker *w) {
    size_t size = (size_t)w->operations * PAGE;
    char *heap = memory(w, size, SMALL);
    store_to_each_page(heap, size, 1);
    SAMPLES(w) {
        int hold[2];
        NEED(w, pipe(hold) == 0);
        pid_t child = fork();
        NEED(w, child >= 0);
        if (child == 0) {
            char byte;
            close(hold[1]);
            _exit(read(hold[0], &byte, 1) != 0 || heap[size - PAGE] == 3);
        }
        close(hold[0]);
        heap[0] = 3;  // the first store may also pay for shared things, such as a page table
        begin(w);
        store_to_each_page(heap, size, 3);
        end(w);
        close(hold[1]);
        reap(w, child);
        store_to_each_page(heap, size, 1);
    }
    munmap(heap, size);
}

static void map_and_unmap(struct worker *w, size_t size) {
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) munmap(memory(w, size, ANY), size);
        end(w);
    }
}

static void map_page(struct worker *w) { map_and_unmap(w, PAGE); }

static void map_mebibyte(struct worker *w) { map_and_unmap(w, 1 << 20); }

static void map_64_mebibytes(struct worker *w) { map_and_unmap(w, 64 << 20); }

// As lmbench's lat_mmap: a file, shared, with a store to every 16 KiB of its first tenth.
static void map_touched(struct worker *w) {
    char name[64];
    int fd = file(w, FILE_SIZE, name);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            volatile char *view = mmap(0, FILE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            NEED(w, view != MAP_FAILED);
            for (size_t at = 0; at < FILE_SIZE / 10; at += 16 << 10) view[at] = 1;
            munmap((void *)view, FILE_SIZE);
        }
        end(w);
    }
    close(fd);
    unlink(name);
}

static void protect(struct worker *w) {
    char *page = memory(w, PAGE, SMALL);
    page[0] = 1;
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, mprotect(page, PAGE, i % 2 ? PROT_READ | PROT_WRITE : PROT_READ) == 0);
        end(w);
    }
    munmap(page, PAGE);
}

static void grow(struct worker *w) {
    SAMPLES(w) {
        char *start = sbrk(0);
        begin(w);
        OPERATIONS(w, i) {
            volatile char *page = sbrk(PAGE);
            NEED(w, page != (void *)-1);
            *page = 1;
        }
        end(w);
        NEED(w, brk(start) == 0);
    }
}

// Moves sixteen used pages back and forth between two addresses.
static void move(struct worker *w) {
    size_t size = MOVED * PAGE;
    char *places = memory(w, 2 * size, SMALL), *at = places, *other = places + size;
    store_to_each_page(at, size, 1);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            NEED(w, mremap(at, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, other) == other);
            char *was = at;
            at = other;
            other = was;
        }
        end(w);
    }
    munmap(at, size);
}

const struct row rows[] = {
    {"fault-4k", THREADS, 400, fault_small},
    {"fault-zero", THREADS, 400, fault_zero},
    {"fault-2m", THREADS, 4, fault_large},
    {"fault-file", THREADS, 512, fault_file},
    {"cow-reuse", PROCESSES, 250, cow_reuse},
    {"cow-copy", PROCESSES, 250, cow_copy},
    {"mmap-4k", THREADS, 200, map_page},
    {"mmap-1m", THREADS, 200, map_mebibyte},
    {"mmap-64m", THREADS, 200, map_64_mebibytes},
    {"mmap-4m-touched", THREADS, 20, map_touched},
    {"unmap-4k", THREADS, 400, unmap_resident},
    {"mprotect", THREADS, 300, protect},
    {"brk", PROCESSES, 200, grow},
    {"mremap", THREADS, 100, move},
    {0},
};
