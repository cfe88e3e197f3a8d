// What memory calls and page faults cost, in nanoseconds; under --icount that is guest instructions, the same on every run.
//
//   gcc -O2 -static -o memory-costs guest/workloads/memory-costs.c
//   freehold run --icount -- ./memory-costs
//   freehold run --icount --kernel linux -- ./memory-costs
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 1000 };

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

#define COST(name, times, what)                                       \
    do {                                                              \
        long start = now();                                           \
        for (int i = 0; i < (times); i++) { what; }                   \
        printf("%-32s %ld\n", name, (now() - start) / (times));       \
    } while (0)

static char *map(size_t pages) {
    return mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void fork_and_wait(void) {
    pid_t child = fork();
    if (child == 0) _exit(0);
    waitpid(child, 0, 0);
}

int main(void) {
    COST("getppid", 1000, getppid());
    COST("mmap and munmap", 200, munmap(map(1), PAGE));
    COST("mmap, store, munmap", 200, char *page = map(1); *page = 1; munmap(page, PAGE));
    char *heap = map(PAGES);
    COST("first store to a page", PAGES, heap[i * PAGE] = 1);
    COST("mprotect, twice", 200, mprotect(heap + i * PAGE, PAGE, PROT_READ);
         mprotect(heap + i * PAGE, PAGE, PROT_READ | PROT_WRITE));
    char *zero = map(PAGES);
    volatile char sink;
    COST("first load from a page", PAGES, sink = zero[i * PAGE]);
    COST("store to the zero page", PAGES, zero[i * PAGE] = 1);
    COST("munmap of 1000 pages", 1, munmap(zero, PAGES * PAGE));
    COST("fork, exit, wait; 1000 pages", 20, fork_and_wait());
    COST("store that keeps its frame", PAGES, heap[i * PAGE] = 2);
    int wait_here[2];
    if (pipe(wait_here) != 0) return 1;
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(wait_here[1]);
        _exit(read(wait_here[0], &byte, 1) != 0);
    }
    COST("store that copies", PAGES, heap[i * PAGE] = 3);
    close(wait_here[1]);
    waitpid(child, 0, 0);
    munmap(heap, PAGES * PAGE);
    COST("fork, exit, wait; few pages", 50, fork_and_wait());
    COST("vfork, exit, wait", 50, pid_t quick = vfork(); if (quick == 0) _exit(0); waitpid(quick, 0, 0));
    (void)sink;
    return 0;
}
