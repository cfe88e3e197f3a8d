// Files in memory: costs of a read, a write and an open without waiting.
#include "bench.h"

static void read_page(struct worker *w) {
    char name[64], block[PAGE];
    int fd = file(w, PAGE, name);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, pread(fd, block, PAGE, 0) == PAGE);
        end(w);
    }
    close(fd);
    unlink(name);
}

static void write_page(struct worker *w) {
    char name[64], block[PAGE];
    memset(block, 'y', sizeof block);
    int fd = file(w, PAGE, name);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, pwrite(fd, block, PAGE, 0) == PAGE);
        end(w);
    }
    close(fd);
    unlink(name);
}

static void open_and_close(struct worker *w) {
    char name[64];
    close(file(w, PAGE, name));
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            int fd = open(name, O_RDONLY);
            NEED(w, fd >= 0);
            close(fd);
        }
        end(w);
    }
    unlink(name);
}

const struct row rows[] = {
    {"read-4k", THREADS, 500, read_page},
    {"write-4k", THREADS, 500, write_page},
    {"open-close", THREADS, 500, open_and_close},
    {0},
};
