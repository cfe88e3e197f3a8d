// Pages that a pipe or a disk holds for a while. The disk is /dev/vda; its contents are
// overwritten.
#include "bench.h"
#include <sys/uio.h>

enum { SLOTS = 16, DISK = 4 << 20 };

// Puts a page into a pipe, and discards it unread with fifteen others.
static void lend(struct worker *w) {
    char *heap = memory(w, SLOTS * PAGE, SMALL);
    store_to_each_page(heap, SLOTS * PAGE, 1);
    int ends[2], nowhere = open("/dev/null", O_WRONLY);
    NEED(w, nowhere >= 0 && pipe(ends) == 0);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            struct iovec piece = {heap + i % SLOTS * PAGE, PAGE};
            NEED(w, vmsplice(ends[1], &piece, 1, 0) == PAGE);
            long held = i % SLOTS + 1;
            if (held == SLOTS || i + 1 == w->operations)
                NEED(w, splice(ends[0], 0, nowhere, 0, held * PAGE, 0) == held * PAGE);
        }
        end(w);
    }
    munmap(heap, SLOTS * PAGE);
    close(ends[0]);
    close(ends[1]);
    close(nowhere);
}

enum direction { READ, WRITE };

static void direct(struct worker *w, enum direction direction, long length) {
    char *heap = memory(w, length, SMALL);
    store_to_each_page(heap, length, 1);
    int disk = open("/dev/vda", O_RDWR | O_DIRECT);
    NEED(w, disk >= 0);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            off_t at = i * length % DISK;
            long moved = direction == READ ? pread(disk, heap, length, at) : pwrite(disk, heap, length, at);
            NEED(w, moved == length);
        }
        end(w);
    }
    close(disk);
    munmap(heap, length);
}

static void direct_read(struct worker *w) { direct(w, READ, PAGE); }

static void direct_write(struct worker *w) { direct(w, WRITE, PAGE); }

static void direct_read_long(struct worker *w) { direct(w, READ, 1 << 20); }

const struct row rows[] = {
    {"vmsplice", PROCESSES, 512, lend},
    {"direct-read", PROCESSES, 100, direct_read},
    {"direct-write", PROCESSES, 100, direct_write},
    {"direct-read-1m", PROCESSES, 40, direct_read_long},
    {0},
};
