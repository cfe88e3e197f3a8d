// Does a heap as large as a direct-mapped memory-side cache fit it? Conflicts by real placement:
// the program reads its own frame numbers from /proc/self/pagemap, fresh and after memory has aged.
//
//   gcc -O2 -static -o near-cache guest/workloads/near-cache.c
//   freehold run -m 512M --near-cache 64M -- ./near-cache 64 [seed]
//
// Prints the share of accesses that would miss if all pages were used alike: a bin (frame number
// mod frames of cache) with several pages keeps one of them.
//
//   near-cache frames HEAP [seed]   prints the frame of every page of a heap of HEAP MiB, in
//                                   hexadecimal: after a line "fresh", and again after a line
//                                   "aged". Before them, where /proc/iomem has it, "image" and
//                                   the first and the last frame of the kernel's image. Other
//                                   programs compute with these frames.
//   near-cache walk HEAP ACCESSES   prints the frames of a heap of HEAP MiB and then reads the
//                                   heap at random, ACCESSES times: for a microscope to confirm
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../tools/dice.h"
#include "../tools/doorbell.h"

enum { PAGE = 4096, MIB = 1024 * 1024 / PAGE };

static void *memory(size_t pages) {
    void *at = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return at;
}

// Room for the frame numbers of so many pages.
static uint32_t *list(size_t pages) {
    return memory((pages * sizeof(uint32_t) + PAGE - 1) / PAGE);
}

// The frame numbers of a heap's pages.
static void read_frames(const char *heap, size_t pages, uint32_t *frames) {
    uint64_t entries[512];
    int map = open("/proc/self/pagemap", O_RDONLY);
    for (size_t done = 0; done < pages;) {
        size_t wanted = pages - done < 512 ? pages - done : 512;
        ssize_t got = pread(map, entries, wanted * sizeof *entries, (off_t)(((uintptr_t)heap / PAGE + done) * sizeof *entries));
        if (got <= 0) {
            perror("/proc/self/pagemap");
            exit(1);
        }
        for (size_t i = 0; i < (size_t)got / sizeof *entries; i++, done++) {
            uint64_t frame = entries[i] & ((1ull << 55) - 1);
            if (frame == 0 || frame > UINT32_MAX) {
                fprintf(stderr, "page %zu has no frame number below 2^32: not present, or not told\n", done);
                exit(1);
            }
            frames[done] = (uint32_t)frame;
        }
    }
    close(map);
}

static double conflicts(const char *heap, size_t pages, size_t bins) {
    uint32_t *frames = list(pages);
    read_frames(heap, pages, frames);
    unsigned char *used = calloc(bins, 1);
    size_t distinct = 0;
    for (size_t i = 0; i < pages; i++) {
        distinct += !used[frames[i] % bins];
        used[frames[i] % bins] = 1;
    }
    munmap(frames, pages * sizeof *frames);
    free(used);
    return 1.0 - (double)distinct / (double)pages;
}

// The ageing: one round after the other, each until so many sixteenths of memory are in use. In a
// round several processes take turns. In its turn each maps an area and writes a piece of its file;
// both have a random size up to a limit. The first round has small ones in part of memory, the
// second larger ones in all of it.
static const struct round {
    unsigned in_use, area, piece;
} rounds[] = {{5, 16, 64}, {16, 2048, 256}};
enum { ROUNDS = sizeof rounds / sizeof *rounds, PROCESSES = 6, AREAS = 1 << 15 };

// A round also ends when only a twentieth of memory is free: up to then no kernel has to reclaim.
static int is_room(const struct round *round) {
    struct sysinfo info;
    sysinfo(&info);
    return info.freeram > info.totalram / 16 * (16 - round->in_use) && info.freeram > info.totalram / 20;
}

// Maps an area of a random size and touches it, unmaps one now and then, and writes a piece of a
// file.
static void take_turn(const struct round *round, struct dice *dice, int file) {
    static struct {
        char *at;
        size_t pages;
    } areas[AREAS];
    static const char block[PAGE] = {1};
    static unsigned count;
    size_t pages = 1 + below(dice, round->area), piece = 1 + below(dice, round->piece);
    char *at = memory(pages);
    madvise(at, pages * PAGE, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < pages && (i % 64 > 0 || is_room(round)); i++) at[i * PAGE] = 1;
    areas[count].at = at;
    areas[count++].pages = pages;
    if (below(dice, 4) == 0 || count == AREAS) {
        unsigned which = below(dice, count--);
        munmap(areas[which].at, areas[which].pages * PAGE);
        areas[which] = areas[count];
    }
    for (size_t i = 0; i < piece && (i % 64 > 0 || is_room(round)); i++) {
        if (write(file, block, sizeof block) != sizeof block) _exit(1);
    }
}

// Takes a turn for every byte from `door`, and answers it, until the door is closed.
static void live(const struct round *round, struct dice dice, const char *name, int door) {
    int file = open(name, O_CREAT | O_WRONLY, 0600);
    for (char turn; read(door, &turn, 1) == 1;) {
        take_turn(round, &dice, file);
        if (write(door, &turn, 1) != 1) _exit(1);
    }
    _exit(0);
}

// Ages all of memory. Random numbers decide which process acts next, and which ends first; the
// files stay.
static void age(unsigned seed) {
    struct dice dice = {0x9e3779b97f4a7c15u ^ seed};
    for (unsigned round = 0; round < ROUNDS; round++) {
        int doors[PROCESSES][2];
        pid_t children[PROCESSES];
        for (unsigned c = 0; c < PROCESSES; c++) {
            struct dice of_child = {draw(&dice)};
            char name[32];
            snprintf(name, sizeof name, "/tmp/age-%u-%u", round, c);
            if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, doors[c])) exit(1);
            children[c] = fork();
            if (children[c] == 0) {
                // A child ends when its parent closes the door: no other process may hold it open.
                for (unsigned other = 0; other <= c; other++) close(doors[other][0]);
                live(&rounds[round], of_child, name, doors[c][1]);
            }
            close(doors[c][1]);
        }
        while (is_room(&rounds[round])) {
            int door = doors[below(&dice, PROCESSES)][0];
            char turn = 't';
            if (send(door, &turn, 1, MSG_NOSIGNAL) != 1 || read(door, &turn, 1) != 1) {
                fprintf(stderr, "a process that fills memory has died\n");
                exit(1);
            }
        }
        for (unsigned left = PROCESSES; left > 0; left--) {
            unsigned c = below(&dice, left);
            close(doors[c][0]);
            waitpid(children[c], 0, 0);
            children[c] = children[left - 1];
            doors[c][0] = doors[left - 1][0];
        }
    }
}

// Makes a heap and stores to its pages in order.
static char *touched(size_t pages) {
    char *heap = memory(pages);
    // The kernel would place a large page as one; this program is about small ones.
    madvise(heap, pages * PAGE, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < pages; i++) heap[i * PAGE] = 1;
    return heap;
}

static void print_frames(const char *name, const uint32_t *frames, size_t pages) {
    printf("%s\n", name);
    for (size_t i = 0; i < pages; i++) printf("%x\n", frames[i]);
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

// Prints the place of the kernel's image: from "Kernel code" to the end of "Kernel bss".
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
        uint32_t *fresh = list(pages), *aged = list(pages);
        // Memory that stays for long is allocated before the heap, and not while the heap grows.
        memset(fresh, 1, pages * sizeof *fresh);
        char *heap = touched(pages);
        read_frames(heap, pages, fresh);
        munmap(heap, pages * PAGE);
        age(argc > 3 ? (unsigned)number(argv, argc, 3) : 1);
        read_frames(touched(pages), pages, aged);
        // Nothing is printed earlier: the host's speed of taking output would affect the results.
        print_image();
        print_frames("fresh", fresh, pages);
        print_frames("aged", aged, pages);
        return 0;
    }
    if (argc > 3 && !strcmp(argv[1], "walk")) {
        size_t pages = number(argv, argc, 2) * MIB;
        char *heap = touched(pages);
        uint32_t *frames = list(pages);
        read_frames(heap, pages, frames);
        print_frames("fresh", frames, pages);
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
