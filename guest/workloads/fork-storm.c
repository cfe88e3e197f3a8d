// Copy-on-write under threads: the parent's threads store, map and unmap while it forks as fast as
// it can. Every child checks that its memory does not change, and the parent checks that no child's
// store reaches it.
//
//   gcc -O1 -static -pthread -o fork-storm guest/workloads/fork-storm.c
//   freehold run --cpus 4 -- ./fork-storm [seconds]
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 64, MARK = 70, CHILDS = 200 };

static volatile int stop;
static char *heap;

static void fail(const char *what) {
    printf("%s\n", what);
    exit(1);
}

static char *map(size_t pages) {
    char *at = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) fail("mmap failed");
    return at;
}

static void *store(void *id) {
    unsigned random = (unsigned)(long)id;
    while (!stop) {
        random = random * 1103515245 + 12345;
        ++*(volatile char *)(heap + (random >> 8) % PAGES * PAGE + (long)id * 8);
    }
    return 0;
}

static void *map_and_unmap(void *unused) {
    unsigned random = 7;
    while (!stop) {
        random = random * 1103515245 + 12345;
        size_t pages = 1 + (random >> 10) % 20;
        char *at = map(pages);
        for (size_t i = 0; i < pages; i++) at[i * PAGE] = (char)i;
        mprotect(at, PAGE, PROT_READ);
        for (size_t i = 0; i < pages; i++)
            if (at[i * PAGE] != (char)i) fail("a store was lost");
        munmap(at, pages * PAGE);
    }
    return unused;
}

static int child(void) {
    char seen[PAGES];
    for (int i = 0; i < PAGES; i++) seen[i] = heap[i * PAGE];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < PAGES; i++)
            if (heap[i * PAGE] != seen[i] || heap[i * PAGE + MARK] != i + 1) return 1;
        usleep(100);
    }
    for (int i = 0; i < PAGES; i++) {
        heap[i * PAGE + CHILDS] = 5;
        if (heap[i * PAGE + MARK] != i + 1) return 2;
    }
    return 0;
}

static void reap(int how) {
    int status;
    while (waitpid(-1, &status, how) > 0)
        if (status != 0) fail("a child saw its memory change");
}

int main(int count, char **arguments) {
    time_t end = time(0) + (count > 1 ? atoi(arguments[1]) : 5);
    heap = map(PAGES);
    for (int i = 0; i < PAGES; i++) memset(heap + i * PAGE + 64, i + 1, 100);
    pthread_t threads[3];
    pthread_create(&threads[0], 0, store, (void *)0);
    pthread_create(&threads[1], 0, store, (void *)1);
    pthread_create(&threads[2], 0, map_and_unmap, 0);
    int forks = 0;
    while (time(0) < end) {
        pid_t pid = fork();
        if (pid < 0) fail("fork failed");
        if (pid == 0) _exit(child());
        reap(++forks % 8 == 0 ? 0 : WNOHANG);
        for (int i = 0; i < PAGES; i++)
            if (heap[i * PAGE + CHILDS] != 0 || heap[i * PAGE + MARK] != i + 1) fail("a child's store reached the parent");
    }
    reap(0);
    stop = 1;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    printf("%d forks, nothing lost\n", forks);
    return 0;
}
