// O_DIRECT transfers of a disk, one after the other in each thread:
//   transfers KIB THREADS COUNT read|write|both [DISK]
// Under the microscope the phase "first read" has at most 8 transfers of each thread, and the phase
// "read" has the COUNT that follow. Writes have the same two phases. Prints the time of the counted
// transfers: "N transfers, M failed, T ns".

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <linux/fs.h>
#include <time.h>
#include <unistd.h>

#include "../tools/doorbell.h"

enum way { READ = 1, WRITE = 2, BOTH = 3 };

static const char *disk = "/dev/vda";
static size_t length;
static unsigned long long places;
static int count, warm;
static enum way way;
static atomic_long transfers, failed;
static pthread_barrier_t barrier;

static void transfer(int fd, char *bytes, int number, int round) {
    off_t at = (off_t)((number * 7919ull + round) % places * length);
    int writes = way == WRITE || (way == BOTH && round % 2);
    ssize_t moved = writes ? pwrite(fd, bytes, length, at) : pread(fd, bytes, length, at);
    if (moved != (ssize_t)length) {
        if (atomic_fetch_add(&failed, 1) == 0)
            perror("transfer");
    }
    atomic_fetch_add(&transfers, 1);
}

static void *work(void *argument) {
    int number = (int)(long)argument;
    int fd = open(disk, (way & WRITE ? O_RDWR : O_RDONLY) | O_DIRECT);
    char *bytes = aligned_alloc(4096, length);
    if (fd < 0 || !bytes) {
        perror(disk);
        exit(2);
    }
    memset(bytes, 1 + number % 255, length);
    for (int i = 0; i < warm; i++)
        transfer(fd, bytes, number, i);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < count; i++)
        transfer(fd, bytes, number, i);
    pthread_barrier_wait(&barrier);
    free(bytes);
    close(fd);
    return NULL;
}

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

int main(int words, char **word) {
    if (words < 5) {
        fprintf(stderr, "usage: transfers KIB THREADS COUNT read|write|both [DISK]\n");
        return 2;
    }
    length = strtoul(word[1], NULL, 10) << 10;
    int threads = atoi(word[2]);
    count = atoi(word[3]);
    warm = count < 8 ? count : 8;
    way = !strcmp(word[4], "read") ? READ : !strcmp(word[4], "write") ? WRITE : BOTH;
    if (words > 5)
        disk = word[5];
    unsigned long long size = 0;
    int fd = open(disk, O_RDONLY);
    if (fd < 0 || ioctl(fd, BLKGETSIZE64, &size) < 0 || size < length) {
        perror(disk);
        return 2;
    }
    close(fd);
    places = size / length;
    char phase[40];
    snprintf(phase, sizeof phase, "first %s", word[4]);
    pthread_barrier_init(&barrier, NULL, threads + 1);
    pthread_t *ids = calloc(threads, sizeof *ids);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    doorbell_phase(phase);
    for (long i = 0; i < threads; i++)
        if (pthread_create(&ids[i], &small, work, (void *)i))
            return 2;
    pthread_barrier_wait(&barrier);
    atomic_store(&transfers, 0);
    doorbell_phase(word[4]);
    long long start = now();
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    long long spent = now() - start;
    doorbell_phase("done");
    for (int i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    printf("%ld transfers, %ld failed, %lld ns\n", transfers, failed, spent);
    return failed ? 1 : 0;
}
