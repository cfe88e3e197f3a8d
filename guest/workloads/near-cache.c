// Does a heap as large as a direct-mapped memory-side cache fit it? Conflicts by real placement: the program reads its own frame
// numbers from /proc/self/pagemap, fresh and after memory has aged.
//
//   gcc -O2 -static -o near-cache guest/workloads/near-cache.c
//   freehold run -m 512M --near-cache 64M -- ./near-cache 64 [seed]
//
// Prints the share of accesses that would miss if all pages were used alike: a bin (frame number mod frames of cache) with
// several pages keeps one of them.
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

static double conflicts(const char *heap, size_t pages, size_t bins) {
    uint64_t *entries = malloc(pages * sizeof *entries);
    unsigned char *used = calloc(bins, 1);
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
    size_t distinct = 0;
    for (size_t i = 0; i < pages; i++) {
        uint64_t frame = entries[i] & ((1ull << 55) - 1);
        if (frame == 0) {
            fprintf(stderr, "page %zu has no frame number: not present, or not told\n", i);
            exit(1);
        }
        distinct += !used[frame % bins];
        used[frame % bins] = 1;
    }
    free(entries);
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

int main(int argc, char **argv) {
    size_t pages = argc > 1 ? strtoul(argv[1], 0, 0) * (1024 * 1024 / PAGE) : 0;
    if (pages == 0) {
        fprintf(stderr, "usage: near-cache MIB [SEED]\n");
        return 2;
    }
    for (int aged = 0; aged < 2; aged++) {
        if (aged) age(pages, argc > 2 ? (unsigned)atoi(argv[2]) : 1);
        char *heap = memory(pages);
        for (size_t i = 0; i < pages; i++) heap[i * PAGE] = 1;
        printf("%s %.2f%%\n", aged ? "aged" : "fresh", conflicts(heap, pages, pages) * 100);
        munmap(heap, pages * PAGE);
    }
}
