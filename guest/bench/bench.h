// The harness of the benchmark programs: one program holds several rows, one process runs one row.
//
//   PROGRAM ROW[@THINGS] SAMPLES DIVISOR tsc|monotonic|watched WORKERS
//   PROGRAM --list
//
// THINGS is the number of other things that are present: areas, descriptors, processes. A name
// without it means 1.
//
// A row function takes WARM_UPS samples that are discarded and then SAMPLES that count. Each sample
// performs the row's number of operations (divided by DIVISOR, at least one) between begin() and
// end(). The work is the same on every kernel and never depends on the time. Several workers begin
// together, and a sample lasts until the last worker is done. The clock's own cost is measured and
// subtracted. A watched row has no clock: each sample is a phase of the microscope. The microscope
// counts the instructions in the phase, and none while a CPU waits.
//
// Lines, printed only when nothing is being measured (README.md here describes them):
//   sample ROW WORKERS OPERATIONS ELAPSED      elapsed: nanoseconds, or ticks of the TSC
//   watched ROW WORKERS OPERATIONS             the next phase named "ROW WORKERS" was a sample
//   note ROW WORKERS TEXT                      what the reader has to know about this row on this kernel
//   fail ROW WORKERS TEXT                      the row cannot be believed
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../tools/doorbell.h"

enum { PAGE = 4096, WARM_UPS = 2, MOST_SAMPLES = 1000, MOST_WORKERS = 16 };

enum clock { TSC, MONOTONIC, WATCHED };

struct times {
    uint64_t begin, end;
};

// Shared by all workers of a row, be they threads or processes.
struct shared {
    const char *row;
    int samples, workers;
    enum clock clock;
    uint64_t clock_cost;
    long operations;  // in one sample, as the first worker performed them
    pthread_barrier_t together;
    char note[160];
    struct times times[MOST_WORKERS];
    uint64_t elapsed[MOST_SAMPLES];
};

struct worker {
    struct shared *shared;
    int number;
    int sample;       // negative while warming up
    long operations;  // in one sample; a row that counts its operations itself sets this
    long things;
};

enum kind { THREADS, PROCESSES };

struct row {
    const char *name;
    enum kind kind;   // threads or processes
    long operations;  // in one sample, at DIVISOR 1
    void (*run)(struct worker *);
};

// The program's rows; the last one has no name.
extern const struct row rows[];

#define SAMPLES(w) for ((w)->sample = -WARM_UPS; (w)->sample < (w)->shared->samples; (w)->sample++)
#define OPERATIONS(w, i) for (long i = 0; i < (w)->operations; i++)
#define NEED(w, condition) ((condition) ? (void)0 : die((w)->shared, "%s: %s", #condition, strerror(errno)))

// One write for the whole line: workers share stdout.
static void say(const struct shared *s, const char *what, const char *text) {
    char line[512];
    int size = snprintf(line, sizeof line, "%s %s %d %s\n", what, s->row, s->workers, text);
    if (write(STDOUT_FILENO, line, size) != size) _exit(3);
}

__attribute__((format(printf, 2, 3), noreturn)) static void die(const struct shared *s, const char *format, ...) {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    say(s, "fail", text);
    kill(0, SIGKILL);  // the whole row, so that no worker waits for this one
    _exit(1);
}

// Sets the note that the reader has to know; a later note replaces it.
__attribute__((format(printf, 2, 3), unused)) static void note(struct worker *w, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(w->shared->note, sizeof w->shared->note, format, arguments);
    va_end(arguments);
}

static uint64_t now(const struct shared *s) {
    // Under -icount the TSC counts instructions, exactly and on every kernel alike. clock_gettime
    // would add the kernel's calibration, and a system call if there is no vDSO.
    if (s->clock == TSC) return __builtin_ia32_rdtsc();
    if (s->clock == WATCHED) return 0;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void meet(struct worker *w) {
    if (w->shared->workers > 1) pthread_barrier_wait(&w->shared->together);
}

// Announces the next phase to the microscope.
static void phase(struct worker *w, const char *name) {
    const struct shared *s = w->shared;
    if (s->clock == WATCHED && w->number == 0 && w->sample >= 0 && doorbell_phase(name))
        die(s, "the microscope takes no phase of this name: %s", name);
}

static void begin(struct worker *w) {
    char name[64];
    snprintf(name, sizeof name, "%s %d", w->shared->row, w->shared->workers);
    phase(w, name);
    meet(w);
    w->shared->times[w->number].begin = now(w->shared);
}

// Ends a sample and subtracts the cost of other work in it: `overhead`, in units of the clock. The
// row knows that cost.
static void end_without(struct worker *w, uint64_t overhead) {
    struct shared *s = w->shared;
    s->times[w->number].end = now(s);
    meet(w);
    phase(w, "between");
    if (w->number == 0) s->operations = w->operations;
    if (w->number == 0 && w->sample >= 0) {
        uint64_t first = s->times[0].begin, last = s->times[0].end;
        for (int i = 1; i < s->workers; i++) {
            if (s->times[i].begin < first) first = s->times[i].begin;
            if (s->times[i].end > last) last = s->times[i].end;
        }
        overhead += s->clock_cost;
        s->elapsed[w->sample] = last - first > overhead ? last - first - overhead : 0;
    }
    meet(w);
}

__attribute__((unused)) static void end(struct worker *w) { end_without(w, 0); }

static void find_clock_cost(struct shared *s) {
    s->clock_cost = UINT64_MAX;
    for (int i = 0; i < 100; i++) {
        uint64_t start = now(s), cost = now(s) - start;
        if (cost < s->clock_cost) s->clock_cost = cost;
    }
}

// Private memory of small pages, of the kernel's default pages, or of large pages if possible.
enum pages { SMALL, ANY, LARGE };

__attribute__((unused)) static char *memory(struct worker *w, size_t size, enum pages pages) {
    char *at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(w, at != MAP_FAILED);
    // A kernel with only one kind of pages may refuse the advice: then there is no choice.
    if (pages == SMALL) madvise(at, size, MADV_NOHUGEPAGE);
    if (pages == LARGE) madvise(at, size, MADV_HUGEPAGE);
    return at;
}

__attribute__((unused)) static void store_to_each_page(char *at, size_t size, char value) {
    for (size_t i = 0; i < size; i += PAGE) ((volatile char *)at)[i] = value;
}

// A file of `size` bytes on the root file system (tmpfs in the guests); the name is this worker's
// own.
__attribute__((unused)) static int file(struct worker *w, size_t size, char name[64]) {
    char block[PAGE];
    memset(block, 'x', sizeof block);
    snprintf(name, 64, "/tmp/bench-%d-%d", (int)getpid(), w->number);
    int fd = open(name, O_CREAT | O_TRUNC | O_RDWR, 0600);
    NEED(w, fd >= 0);
    for (size_t done = 0; done < size; done += PAGE) NEED(w, write(fd, block, PAGE) == PAGE);
    return fd;
}

__attribute__((unused)) static void reap(struct worker *w, pid_t child) {
    int status;
    NEED(w, waitpid(child, &status, 0) == child);
    if (status != 0) die(w->shared, "a child ended with wait status %#x", status);
}

struct start {
    const struct row *row;
    struct worker worker;
};

// Keeps a watched worker, one of several, on a CPU of its own. Otherwise the emulator's host, which
// decides when an idle CPU goes on, decides where workers run, and with that which lines move.
static void stay(const struct worker *w) {
    cpu_set_t all, own;
    if (w->shared->clock != WATCHED || w->shared->workers == 1) return;
    NEED(w, sched_getaffinity(0, sizeof all, &all) == 0);
    int left = w->number % CPU_COUNT(&all), cpu = 0;
    while (!CPU_ISSET(cpu, &all) || left-- > 0) cpu++;
    CPU_ZERO(&own);
    CPU_SET(cpu, &own);
    NEED(w, sched_setaffinity(0, sizeof own, &own) == 0);
}

static void *be_worker(void *argument) {
    struct start *start = argument;
    stay(&start->worker);
    start->row->run(&start->worker);
    return 0;
}

static void run_workers(const struct row *row, struct shared *s, long operations, long things) {
    struct start starts[MOST_WORKERS];
    pthread_t threads[MOST_WORKERS];
    pid_t children[MOST_WORKERS];
    for (int i = s->workers - 1; i >= 0; i--) {
        starts[i] = (struct start){row, {s, i, 0, operations, things}};
        if (i == 0) {
            be_worker(&starts[0]);
        } else if (row->kind == THREADS) {
            int error = pthread_create(&threads[i], 0, be_worker, &starts[i]);
            if (error) die(s, "a worker thread: %s", strerror(error));
        } else if ((children[i] = fork()) <= 0) {
            if (children[i] < 0) die(s, "a worker process: %s", strerror(errno));
            be_worker(&starts[i]);
            _exit(0);
        }
    }
    for (int i = 1; i < s->workers; i++) {
        if (row->kind == THREADS)
            pthread_join(threads[i], 0);
        else
            reap(&starts[0].worker, children[i]);
    }
}

static void report(const struct shared *s) {
    long operations = s->operations;
    if (s->note[0]) say(s, "note", s->note);
    for (int i = 0; i < s->samples; i++) {
        char text[64];
        snprintf(text, sizeof text, s->clock == WATCHED ? "%ld" : "%ld %llu", operations, (unsigned long long)s->elapsed[i]);
        say(s, s->clock == WATCHED ? "watched" : "sample", text);
    }
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--list")) {
        for (const struct row *row = rows; row->name; row++) puts(row->name);
        return 0;
    }
    const struct row *row = rows;
    size_t length = argc == 6 ? strcspn(argv[1], "@") : 0;
    while (argc == 6 && row->name && (strlen(row->name) != length || memcmp(row->name, argv[1], length))) row++;
    struct shared *s = mmap(0, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (argc != 6 || !row->name || s == MAP_FAILED) {
        fprintf(stderr, "usage: %s ROW[@THINGS] SAMPLES DIVISOR tsc|monotonic|watched WORKERS (rows: %s --list)\n", argv[0], argv[0]);
        return 2;
    }
    s->row = argv[1];
    long things = argv[1][length] == '@' ? atol(argv[1] + length + 1) : 1;
    s->samples = atoi(argv[2]);
    long divisor = atol(argv[3]);
    s->clock = !strcmp(argv[4], "tsc") ? TSC : !strcmp(argv[4], "watched") ? WATCHED : MONOTONIC;
    s->workers = atoi(argv[5]);
    if (things < 1 || s->samples < 1 || s->samples > MOST_SAMPLES || divisor < 1 || s->workers < 1 || s->workers > MOST_WORKERS) {
        fprintf(stderr, "%s: 1 to %d samples, 1 to %d workers\n", argv[0], MOST_SAMPLES, MOST_WORKERS);
        return 2;
    }
    setpgid(0, 0);
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&s->together, &attributes, (unsigned)s->workers);
    find_clock_cost(s);
    long operations = row->operations / divisor > 0 ? row->operations / divisor : 1;
    run_workers(row, s, operations, things);
    report(s);
    return 0;
}
