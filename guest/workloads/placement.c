// Measures how well a heap fits a direct-mapped memory-side cache, with conflicts by real
// placement. The program reads its own frame numbers from /proc/self/pagemap, fresh and after
// memory has aged, and computes which accesses the cache would miss.
//
//   gcc -O2 -static -o placement guest/workloads/placement.c
//   freehold run -m 2G --near-cache 256M -- ./placement cache=256
//
// Arguments, all but the first optional:
//   cache=MIB     the cache in front of each node: a frame's place in it is its number mod the cache's frames
//   heap=MIB      the heap; as large as the cache if missing
//   hot=PERCENT   so much of the heap, in one piece, gets weight=PERCENT of the accesses, the rest the others (10 and 90: the 90/10 mix);
//                 if missing, all pages are used alike
//   weight=PERCENT
//   age=ROUNDS    rounds of ageing between the two measurements; 12 if missing, 0: measure the fresh heap only. In each, three processes of random
//                 sizes come and go, giving parts of their memory back, and files stay
//   seed=N        of the ageing
//   pair=1        two instances at once, one on the first and one on the last CPU: a node of its own for each, if the machine has two
//
// Prints a line of JSON for each measurement: the arguments, "miss" (the share of accesses that
// miss, with independent references: each place holds the page that was used last, so of a place
// whose pages are used with the chances p, the part 1 - sum(p^2)/sum(p) misses), "conflict" (the
// share of pages in excess of the places that they use, less what no placement avoids: a cache that
// is too small), "neighbours" (the share of pages whose frame is next to the frame of the page
// before: near 1 without shuffle, near 0 with), and "first" and "last" (the lowest and highest
// frame number). Exit status: 0; 1 if something could not be measured; 2 for arguments that make no
// sense.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PROCESSES = 3, MOST_NODES = 16, INSTANCES = 2 };

static struct {
    size_t cache, heap, hot, weight, age, seed, pair;
} arg = {.age = 12, .seed = 1};

static size_t pages_of(size_t mib) {
    return mib * (1024 * 1024 / PAGE);
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void *memory(size_t pages, int sharing) {
    void *at = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) fail("mmap");
    return at;
}

static void touch(char *heap, size_t pages) {
    // The kernel would place a large page as one; this program is about small ones.
    madvise(heap, pages * PAGE, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < pages; i++) heap[i * PAGE] = 1;
}

// The frame numbers of the heap's pages.
static void frames(const char *heap, size_t pages, uint64_t *to) {
    int map = open("/proc/self/pagemap", O_RDONLY);
    off_t start = (off_t)((uintptr_t)heap / PAGE * sizeof *to);
    for (size_t done = 0; done < pages * sizeof *to;) {
        ssize_t got = pread(map, (char *)to + done, pages * sizeof *to - done, start + (off_t)done);
        if (got <= 0) fail("/proc/self/pagemap");
        done += (size_t)got;
    }
    close(map);
    for (size_t i = 0; i < pages; i++) {
        to[i] &= (1ull << 55) - 1;
        if (to[i] == 0) {
            fprintf(stderr, "placement: page %zu has no frame number: not present, or not told (root is)\n", i);
            exit(1);
        }
    }
}

// Reads the start of each node's memory from /proc/zoneinfo: a node's frames are those from there
// to the next node's start.
static size_t nodes(uint64_t *start) {
    FILE *file = fopen("/proc/zoneinfo", "r");
    if (!file) fail("/proc/zoneinfo");
    char line[256];
    size_t count = 0;
    int node = -1, last = -1;
    while (fgets(line, sizeof line, file)) {
        unsigned long long pfn;
        if (sscanf(line, "Node %d, zone", &node) == 1) continue;
        // The first zone of a node is its lowest.
        if (sscanf(line, " start_pfn: %llu", &pfn) == 1 && node != last && count < MOST_NODES) {
            start[count++] = pfn;
            last = node;
        }
    }
    fclose(file);
    if (count == 0) start[count++] = 0;
    return count;
}

static size_t node_of(uint64_t frame, const uint64_t *start, size_t count) {
    size_t best = 0;
    for (size_t i = 1; i < count; i++)
        if (start[i] <= frame && (start[i] >= start[best] || start[best] > frame)) best = i;
    return best;
}

static void report(const char *age, const uint64_t *frame, size_t instances) {
    size_t pages = pages_of(arg.heap), all = pages * instances, bins = pages_of(arg.cache);
    uint64_t start[MOST_NODES];
    size_t count = nodes(start), hot = pages * arg.hot / 100, neighbours = 0, used = 0;
    double *sum = calloc(count * bins, sizeof *sum), *square = calloc(count * bins, sizeof *square);
    if (!sum || !square) fail("memory for the model");
    uint64_t first = UINT64_MAX, last = 0;
    for (size_t i = 0; i < all; i++) {
        // With a hot part: its pages share the weight, the others the rest.
        double p = 1.0 / (double)all;
        if (hot > 0)
            p = (i % pages < hot ? (double)arg.weight / (double)hot : (double)(100 - arg.weight) / (double)(pages - hot)) /
                (100.0 * (double)instances);
        size_t place = node_of(frame[i], start, count) * bins + frame[i] % bins;
        used += sum[place] == 0;
        sum[place] += p;
        square[place] += p * p;
        neighbours += i > 0 && (frame[i] == frame[i - 1] + 1 || frame[i] + 1 == frame[i - 1]);
        if (frame[i] < first) first = frame[i];
        if (frame[i] > last) last = frame[i];
    }
    double hits = 0;
    for (size_t i = 0; i < count * bins; i++)
        if (sum[i] > 0) hits += square[i] / sum[i];
    // No placement fills more places than there are pages or cache places.
    size_t room = bins * (instances < count ? instances : count), most = all < room ? all : room;
    printf("{\"age\":\"%s\",\"cache_mib\":%zu,\"heap_mib\":%zu,\"hot\":%zu,\"weight\":%zu,\"seed\":%zu,\"instances\":%zu,"
           "\"miss\":%.5f,\"conflict\":%.5f,\"neighbours\":%.4f,\"first\":%llu,\"last\":%llu}\n",
           age, arg.cache, arg.heap, arg.hot, arg.weight, arg.seed, instances, 1 - hits, (double)(most - used) / (double)all,
           (double)neighbours / (double)all, (unsigned long long)first, (unsigned long long)last);
    fflush(stdout);
    free(sum);
    free(square);
}

static void measure_one(const char *age) {
    size_t pages = pages_of(arg.heap);
    char *heap = memory(pages, MAP_PRIVATE);
    uint64_t *frame = memory((pages * sizeof *frame + PAGE - 1) / PAGE, MAP_PRIVATE);
    touch(heap, pages);
    frames(heap, pages, frame);
    report(age, frame, 1);
    munmap(frame, pages * sizeof *frame);
    munmap(heap, pages * PAGE);
}

// Two processes fill their heaps at the same time, page by page in the same order, each on its own
// CPU.
static void measure_pair(const char *age) {
    size_t pages = pages_of(arg.heap);
    uint64_t *frame = memory((INSTANCES * pages * sizeof *frame + PAGE - 1) / PAGE, MAP_SHARED);
    int hold[2];
    if (pipe(hold) != 0) fail("pipe");
    pid_t child[INSTANCES];
    for (int i = 0; i < INSTANCES; i++) {
        child[i] = fork();
        if (child[i] != 0) continue;
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(i == 0 ? 0 : (int)sysconf(_SC_NPROCESSORS_ONLN) - 1, &set);
        if (sched_setaffinity(0, sizeof set, &set) != 0) fail("sched_setaffinity");
        char *heap = memory(pages, MAP_PRIVATE);
        touch(heap, pages);
        frames(heap, pages, frame + (size_t)i * pages);
        // Both heaps must exist at the same time.
        char byte;
        close(hold[1]);
        if (read(hold[0], &byte, 1) < 0) fail("pipe");
        _exit(0);
    }
    for (int i = 0; i < INSTANCES; i++)
        while (((volatile uint64_t *)frame)[(size_t)(i + 1) * pages - 1] == 0) {
            if (waitpid(child[i], 0, WNOHANG) != 0) exit(1);
            usleep(1000);
        }
    close(hold[1]);
    close(hold[0]);
    for (int i = 0; i < INSTANCES; i++) waitpid(child[i], 0, 0);
    report(age, frame, INSTANCES);
    munmap(frame, INSTANCES * pages * sizeof *frame);
}

// Ages memory: processes of random sizes start and end and free parts of their memory; files stay.
static void age(void) {
    size_t pages = pages_of(arg.cache);
    srand((unsigned)arg.seed);
    for (size_t round = 0; round < arg.age; round++) {
        pid_t children[PROCESSES];
        for (int c = 0; c < PROCESSES; c++) {
            size_t size = 1 + (size_t)rand() % (pages / 2);
            children[c] = fork();
            if (children[c] == 0) {
                char *own = memory(size, MAP_PRIVATE);
                touch(own, size);
                for (int k = 0; k < 200; k++) {
                    size_t at = (size_t)rand() % size, count = 1 + (size_t)rand() % 8;
                    madvise(own + at * PAGE, (at + count < size ? count : size - at) * PAGE, MADV_DONTNEED);
                    if (rand() & 1) own[at * PAGE] = 2;
                }
                _exit(0);
            }
        }
        char name[32], block[PAGE];
        snprintf(name, sizeof name, "/tmp/age-%zu", round);
        memset(block, (int)round, sizeof block);
        int file = open(name, O_CREAT | O_WRONLY, 0600);
        for (int i = 200 + rand() % 200; i > 0 && write(file, block, sizeof block) > 0; i--) {}
        close(file);
        if (round % 3 == 2) {
            snprintf(name, sizeof name, "/tmp/age-%zu", (size_t)rand() % round);
            unlink(name);
        }
        for (int c = 0; c < PROCESSES; c++) waitpid(children[c], 0, 0);
    }
}

static int usage(const char *what) {
    fprintf(stderr, "placement: %s\nusage: placement cache=MIB [heap=MIB] [hot=PERCENT weight=PERCENT] [age=ROUNDS] [seed=N] [pair=1]\n", what);
    return 2;
}

int main(int argc, char **argv) {
    const struct {
        const char *name;
        size_t *value, most;
    } known[] = {{"cache=", &arg.cache, 1 << 20}, {"heap=", &arg.heap, 1 << 20}, {"hot=", &arg.hot, 99}, {"weight=", &arg.weight, 100},
                 {"age=", &arg.age, 1000},        {"seed=", &arg.seed, UINT32_MAX}, {"pair=", &arg.pair, 1}};
    for (int i = 1; i < argc; i++) {
        size_t which = 0, count = sizeof known / sizeof *known;
        while (which < count && strncmp(argv[i], known[which].name, strlen(known[which].name)) != 0) which++;
        if (which == count) return usage(argv[i]);
        char *end, *text = argv[i] + strlen(known[which].name);
        *known[which].value = strtoul(text, &end, 10);
        if (*text < '0' || *text > '9' || *end != 0 || *known[which].value > known[which].most) return usage(argv[i]);
    }
    if (arg.cache == 0) return usage("no cache=MIB");
    if ((arg.hot == 0) != (arg.weight == 0)) return usage("hot= and weight= go together");
    if (arg.heap == 0) arg.heap = arg.cache;
    void (*measure)(const char *) = arg.pair ? measure_pair : measure_one;
    measure("fresh");
    if (arg.age > 0) {
        age();
        measure("aged");
    }
}
