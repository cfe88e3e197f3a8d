// Does a heap as large as a direct-mapped memory-side cache fit it? Conflicts by real placement: the program reads its own frame
// numbers from /proc/self/pagemap, fresh and after memory has aged.
//
//   gcc -O2 -static -o near-cache guest/workloads/near-cache.c
//   freehold run -m 512M --near-cache 64M -- ./near-cache 64 [seed]
//
// Prints the share of accesses that would miss if all pages were used alike: a bin (frame number mod frames of cache) with
// several pages keeps one of them.
//
//   near-cache frames HEAP CACHE [seed]   prints the frame of every page of a heap of HEAP MiB, in hexadecimal: after a line
//                                         "fresh", and again after a line "aged", for others to reckon with
//   near-cache walk HEAP ACCESSES         prints the frames of a heap of HEAP MiB and then reads it at random, as many times:
//                                         for a microscope to confirm
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, ROUNDS = 12, PROCESSES = 3 };

static void *memory(size_t pages) {
    void *at = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return at;
}

// The frame numbers of a heap's pages.
static uint64_t *frames_of(const char *heap, size_t pages) {
    uint64_t *entries = malloc(pages * sizeof *entries);
    int map = open("/proc/self/pagemap", O_RDONLY);
    off_t start = (off_t)((uintptr_t)heap / PAGE * sizeof *entries);
    for (size_t done = 0; done < pages * sizeof *entries;) {
        ssize_t got = pread(map, (char *)entries + done, pages * sizeof *entries - done, start + (off_t)done);
        if (got <= 0) {
            perror("/proc/self/pagemap");
            exit(1);
        }
        done += (size_t)got;
    }
    close(map);
    for (size_t i = 0; i < pages; i++) {
        entries[i] &= (1ull << 55) - 1;
        if (entries[i] == 0) {
            fprintf(stderr, "page %zu has no frame number: not present, or not told\n", i);
            exit(1);
        }
    }
    return entries;
}

static double conflicts(const char *heap, size_t pages, size_t bins) {
    uint64_t *frames = frames_of(heap, pages);
    unsigned char *used = calloc(bins, 1);
    size_t distinct = 0;
    for (size_t i = 0; i < pages; i++) {
        distinct += !used[frames[i] % bins];
        used[frames[i] % bins] = 1;
    }
    free(frames);
    free(used);
    return 1.0 - (double)distinct / (double)pages;
}

// Processes of random sizes come and go, giving back parts of their memory; files stay.
static void age(size_t pages, unsigned seed) {
    srand(seed);
    for (int round = 0; round < ROUNDS; round++) {
        pid_t children[PROCESSES];
        for (int c = 0; c < PROCESSES; c++) {
            size_t size = 1 + (size_t)rand() % (pages / 2);
            children[c] = fork();
            if (children[c] == 0) {
                char *own = memory(size);
                for (size_t i = 0; i < size; i++) own[i * PAGE] = 1;
                for (int k = 0; k < 200; k++) {
                    size_t at = (size_t)rand() % size, count = 1 + (size_t)rand() % 8;
                    madvise(own + at * PAGE, (at + count < size ? count : size - at) * PAGE, MADV_DONTNEED);
                    if (rand() & 1) own[at * PAGE] = 2;
                }
                _exit(0);
            }
        }
        char name[32], block[PAGE];
        snprintf(name, sizeof name, "/tmp/age-%d", round);
        memset(block, round, sizeof block);
        int file = open(name, O_CREAT | O_WRONLY, 0600);
        for (int i = 200 + rand() % 200; i > 0 && write(file, block, sizeof block) > 0; i--) {}
        close(file);
        if (round % 3 == 2) {
            snprintf(name, sizeof name, "/tmp/age-%d", rand() % round);
            unlink(name);
        }
        for (int c = 0; c < PROCESSES; c++) waitpid(children[c], 0, 0);
    }
}

// A heap whose pages have been stored to in order.
static char *touched(size_t pages) {
    char *heap = memory(pages);
    // Large pages would be placed as one: this is about small ones.
    madvise(heap, pages * PAGE, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < pages; i++) heap[i * PAGE] = 1;
    return heap;
}

static void print_frames(const char *name, const char *heap, size_t pages) {
    uint64_t *frames = frames_of(heap, pages);
    printf("%s\n", name);
    for (size_t i = 0; i < pages; i++) printf("%lx\n", (unsigned long)frames[i]);
    free(frames);
}

static void walk(char *heap, size_t pages, size_t accesses) {
    uint64_t state = 88172645463325252u, sum = 0;
    memset(heap, 1, pages * PAGE);
    for (size_t i = 0; i < accesses; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        sum += *(volatile char *)(heap + (state >> 8) % (pages * PAGE));
    }
    printf("read %lu\n", (unsigned long)sum);
}

static size_t number(char **argv, int argc, int at) {
    return argc > at ? strtoul(argv[at], 0, 0) : 0;
}

int main(int argc, char **argv) {
    const size_t mib = 1024 * 1024 / PAGE;
    if (argc > 3 && !strcmp(argv[1], "frames")) {
        size_t pages = number(argv, argc, 2) * mib, cache = number(argv, argc, 3) * mib;
        char *heap = touched(pages);
        print_frames("fresh", heap, pages);
        munmap(heap, pages * PAGE);
        age(cache, argc > 4 ? (unsigned)number(argv, argc, 4) : 1);
        print_frames("aged", touched(pages), pages);
        return 0;
    }
    if (argc > 3 && !strcmp(argv[1], "walk")) {
        size_t pages = number(argv, argc, 2) * mib;
        char *heap = touched(pages);
        print_frames("fresh", heap, pages);
        fflush(stdout);
        walk(heap, pages, number(argv, argc, 3));
        return 0;
    }
    size_t pages = number(argv, argc, 1) * mib;
    if (pages == 0) {
        fprintf(stderr, "usage: near-cache CACHE [SEED] | near-cache frames HEAP CACHE [SEED] | near-cache walk HEAP ACCESSES\n");
        return 2;
    }
    for (int aged = 0; aged < 2; aged++) {
        if (aged) age(pages, argc > 2 ? (unsigned)atoi(argv[2]) : 1);
        char *heap = touched(pages);
        printf("%s %.2f%%\n", aged ? "aged" : "fresh", conflicts(heap, pages, pages) * 100);
        munmap(heap, pages * PAGE);
    }
}
