// Requests of one io_uring that all wait for one file, and all end when it is ready. Prints the
// microseconds from the write that ends them to the last completion: with --icount, thousands of
// instructions.
//
//   freehold run --icount -- ring-waits COUNT
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NEED(kept) ((kept) ? (void)0 : (perror(#kept), _exit(1)))
#define ENTRIES 4096

#include "../conformance/ring.h"

static long long microseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000ll + t.tv_nsec / 1000;
}

int main(int words, char **word) {
    unsigned count = words > 1 ? (unsigned)atoi(word[1]) : 1000;
    struct ring ring;
    open_ring(&ring);
    NEED(count <= ENTRIES);
    int file = eventfd(0, 0);
    NEED(file >= 0);
    for (unsigned number = 0; number < count; number++)
        add(&ring, IORING_OP_POLL_ADD, file, NULL, 0, 0, number)->poll32_events = POLLIN;
    NEED(enter(ring.fd, count, 0, 0, NULL, 0) == (int)count);
    long long begun = microseconds();
    uint64_t one = 1;
    NEED(write(file, &one, sizeof one) == sizeof one);
    while (arrived(&ring) < count) NEED(enter(ring.fd, 0, count, IORING_ENTER_GETEVENTS, NULL, 0) == 0);
    printf("%lld\n", microseconds() - begun);
    return 0;
}
