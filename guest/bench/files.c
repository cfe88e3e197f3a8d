// Files in memory: costs of a read, a write and an open without waiting.
#include "bench.h"
#include <sys/stat.h>

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

static void open_named(struct worker *w, const char *name) {
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            int fd = open(name, O_RDONLY);
            NEED(w, fd >= 0);
            close(fd);
        }
        end(w);
    }
}

static void open_and_close(struct worker *w) {
    char name[64];
    close(file(w, PAGE, name));
    open_named(w, name);
    unlink(name);
}

// The file is in a working directory of the worker's own.
static void open_own(struct worker *w) {
    char folder[64];
    snprintf(folder, sizeof folder, "/tmp/bench-folder-%d", (int)getpid());
    NEED(w, mkdir(folder, 0700) == 0 && chdir(folder) == 0);
    int fd = open("own", O_CREAT | O_RDWR, 0600);
    NEED(w, fd >= 0);
    close(fd);
    open_named(w, "own");
    NEED(w, unlink("own") == 0 && chdir("/") == 0 && rmdir(folder) == 0);
}

const struct row rows[] = {
    {"read-4k", THREADS, 500, read_page},
    {"write-4k", THREADS, 500, write_page},
    {"open-close", THREADS, 500, open_and_close},
    {"open-own", PROCESSES, 500, open_own},
    {0},
};
