// Does a heap as large as a direct-mapped memory-side cache fit it? Conflicts by real placement: the program reads its own frame
// numbers from /proc/self/pagemap, fresh and after memory has aged.
//
//   gcc -O2 -static -o near-cache guest/workloads/near-cache.c
//   freehold run -m 512M --near-cache 64M -- ./near-cache 64 [seed]
//
// Prints the share of accesses that would miss if all pages were used alike: a bin (frame number mod frames of cache) with
// several pages keeps one of them.
//
//   near-cache frames HEAP [seed]         prints the frame of every page of a heap of HEAP MiB, in hexadecimal: after a line
//                                         "fresh", and again after a line "aged", for others to reckon with; and before them, where
//                                         /proc/iomem tells it, "image" and the first and the last frame of the kernel's image
//   near-cache walk HEAP ACCESSES         prints the frames of a heap of HEAP MiB and then reads it at random, as many times:
//                                         for a microscope to confirm
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../tools/doorbell.h"

enum { PAGE = 4096, MIB = 1024 * 1024 / PAGE, ROUNDS = 4, PROCESSES = 6, AREAS = 4096 };

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

static unsigned below(unsigned end) {
    return (unsigned)rand() % end;
}

// What is free may not fall below a twentieth of all memory: no kernel has to look for more by then.
static int is_room(void) {
    struct sysinfo info;
    sysinfo(&info);
    return info.freeram > info.totalram / 20;
}

// Maps areas of random sizes and touches them, in turn with others, and gives one of them back now and then, until memory is full.
// Says so, and ends when it is told to.
static void live(unsigned seed, int full, int told) {
    static struct {
        char *at;
        size_t pages;
    } areas[AREAS];
    size_t count = 0;
    char end;
    srand(seed);
    while (count < AREAS && is_room()) {
        size_t pages = 1 + below(4 * MIB);
        char *at = memory(pages);
        madvise(at, pages * PAGE, MADV_NOHUGEPAGE);
        for (size_t i = 0; i < pages && (i % 64 > 0 || is_room()); i++) at[i * PAGE] = 1;
        areas[count].at = at;
        areas[count++].pages = pages;
        if (below(4) == 0) {
            size_t which = below(count--);
            munmap(areas[which].at, areas[which].pages * PAGE);
            areas[which] = areas[count];
        }
        sched_yield();
    }
    if (write(full, "x", 1) != 1) _exit(1);
    while (read(told, &end, 1) < 0) {}
    _exit(0);
}

// Writes a file bit by bit, in turn with others, of a fifth of all memory where there is room.
static void fill(const char *name) {
    struct sysinfo info;
    char block[PAGE] = {1};
    int file = open(name, O_CREAT | O_WRONLY, 0600);
    sysinfo(&info);
    size_t left = info.totalram / PAGE * info.mem_unit / 5;
    while (left > 0 && is_room()) {
        for (size_t piece = 1 + below(512); piece > 0 && left > 0; piece--, left--) {
            if (write(file, block, sizeof block) != sizeof block) exit(1);
        }
        sched_yield();
    }
    close(file);
}

// Memory as it is after a while, all of it: in each round, processes live side by side while a file is written between them,
// until memory is full, and end in no order; the file stays. Every other round removes the file of the round before.
static void age(unsigned seed) {
    srand(seed);
    for (unsigned round = 0; round < ROUNDS; round++) {
        int doors[PROCESSES][2], full[2];
        pid_t children[PROCESSES];
        char name[32], said;
        if (pipe(full)) exit(1);
        for (unsigned c = 0; c < PROCESSES; c++) {
            unsigned seed_of_child = (unsigned)rand();
            if (pipe(doors[c])) exit(1);
            children[c] = fork();
            if (children[c] == 0) live(seed_of_child, full[1], doors[c][0]);
        }
        close(full[1]);
        snprintf(name, sizeof name, "/tmp/age-%u", round);
        fill(name);
        for (unsigned c = 0; c < PROCESSES; c++) {
            if (read(full[0], &said, 1) != 1) {
                fprintf(stderr, "a process that fills memory has died\n");
                exit(1);
            }
        }
        close(full[0]);
        if (round % 2 == 1) {
            snprintf(name, sizeof name, "/tmp/age-%u", round - 1);
            unlink(name);
        }
        for (unsigned left = PROCESSES; left > 0; left--) {
            unsigned c = below(left);
            if (write(doors[c][1], "x", 1) != 1) exit(1);
            waitpid(children[c], 0, 0);
            close(doors[c][0]);
            close(doors[c][1]);
            children[c] = children[left - 1];
            memcpy(doors[c], doors[left - 1], sizeof doors[c]);
        }
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
    doorbell_phase("walk");
    for (size_t i = 0; i < accesses; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        sum += *(volatile char *)(heap + (state >> 8) % (pages * PAGE));
    }
    doorbell_phase("walked");
    printf("read %lu\n", (unsigned long)sum);
}

// Where the kernel's image is: from "Kernel code" to the end of "Kernel bss".
static void print_image(void) {
    FILE *file = fopen("/proc/iomem", "r");
    char line[256], name[64];
    unsigned long first = 0, last = 0, start, end;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, " %lx-%lx : Kernel %63s", &start, &end, name) != 3) continue;
        if (first == 0) first = start;
        last = end;
    }
    if (file) fclose(file);
    if (last) printf("image %lx %lx\n", first / PAGE, last / PAGE);
}

static size_t number(char **argv, int argc, int at) {
    return argc > at ? strtoul(argv[at], 0, 0) : 0;
}

int main(int argc, char **argv) {
    if (argc > 2 && !strcmp(argv[1], "frames")) {
        size_t pages = number(argv, argc, 2) * MIB;
        char *heap = touched(pages);
        print_image();
        print_frames("fresh", heap, pages);
        munmap(heap, pages * PAGE);
        age(argc > 3 ? (unsigned)number(argv, argc, 3) : 1);
        print_frames("aged", touched(pages), pages);
        return 0;
    }
    if (argc > 3 && !strcmp(argv[1], "walk")) {
        size_t pages = number(argv, argc, 2) * MIB;
        char *heap = touched(pages);
        print_frames("fresh", heap, pages);
        fflush(stdout);
        walk(heap, pages, number(argv, argc, 3));
        return 0;
    }
    size_t pages = number(argv, argc, 1) * MIB;
    if (pages == 0) {
        fprintf(stderr, "usage: near-cache CACHE [SEED] | near-cache frames HEAP [SEED] | near-cache walk HEAP ACCESSES\n");
        return 2;
    }
    for (int aged = 0; aged < 2; aged++) {
        if (aged) age(argc > 2 ? (unsigned)number(argv, argc, 2) : 1);
        char *heap = touched(pages);
        printf("%s %.2f%%\n", aged ? "aged" : "fresh", conflicts(heap, pages, pages) * 100);
        munmap(heap, pages * PAGE);
    }
}
