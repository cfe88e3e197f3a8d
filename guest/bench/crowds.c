// Operations while many other things exist: the cost must not depend on their number.
#include "bench.h"
#include <dirent.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { DISK = 64 << 20 };

// Raises limits to about the largest number of things in a row: descriptors, queued signals,
// timers, processes.
static void lift_limits(struct worker *w) {
    struct rlimit files = {1 << 20, 1 << 20}, none = {RLIM_INFINITY, RLIM_INFINITY};
    NEED(w, setrlimit(RLIMIT_NOFILE, &files) == 0);
    NEED(w, setrlimit(RLIMIT_SIGPENDING, &none) == 0);
    NEED(w, setrlimit(RLIMIT_NPROC, &none) == 0);
}

// `things` areas of a page each, with a hole of a page after each: a request of two pages fits into
// none of the holes.
static void map_among_areas(struct worker *w) {
    size_t size = (size_t)w->things * 2 * PAGE;
    char *all = mmap(0, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(w, all != MAP_FAILED);
    for (long i = 0; i < w->things; i++) NEED(w, munmap(all + (2 * i + 1) * PAGE, PAGE) == 0);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            char *at = mmap(0, 2 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            NEED(w, at != MAP_FAILED && munmap(at, 2 * PAGE) == 0);
        }
        end(w);
    }
    munmap(all, size);
}

// The limits count pages of all areas.
static void map_limited(struct worker *w) {
    struct rlimit data, locked;
    NEED(w, getrlimit(RLIMIT_DATA, &data) == 0 && getrlimit(RLIMIT_MEMLOCK, &locked) == 0);
    const struct rlimit most = {1UL << 40, data.rlim_max}, few = {1UL << 16, locked.rlim_max};
    NEED(w, setrlimit(RLIMIT_DATA, &most) == 0 && setrlimit(RLIMIT_MEMLOCK, &few) == 0);
    size_t size = (size_t)w->things * 2 * PAGE;
    char *all = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(w, all != MAP_FAILED);
    for (long i = 0; i < w->things; i++) NEED(w, mprotect(all + (2 * i + 1) * PAGE, PAGE, PROT_NONE) == 0);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            char *at = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            NEED(w, at != MAP_FAILED && mlock2(at, PAGE, MLOCK_ONFAULT) == 0 && munmap(at, 2 * PAGE) == 0);
        }
        end(w);
    }
    munmap(all, size);
    NEED(w, setrlimit(RLIMIT_DATA, &data) == 0 && setrlimit(RLIMIT_MEMLOCK, &locked) == 0);
}

// `things` areas side by side that differ in their protection.
static char *striped(struct worker *w, size_t *size) {
    *size = (size_t)(w->things + 1) / 2 * 2 * PAGE;
    char *all = mmap(0, *size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(w, all != MAP_FAILED);
    for (long i = 0; i < w->things; i += 2) NEED(w, mprotect(all + i * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
    return all;
}

// Reads a file of /proc to its end; the cost is per area.
static void read_areas(struct worker *w, const char *path) {
    static char text[64 << 10];
    size_t size;
    char *all = striped(w, &size);
    w->operations = w->things;
    SAMPLES(w) {
        begin(w);
        int fd = open(path, O_RDONLY);
        NEED(w, fd >= 0);
        while (read(fd, text, sizeof text) > 0) {}
        close(fd);
        end(w);
    }
    munmap(all, size);
}

static void smaps(struct worker *w) { read_areas(w, "/proc/self/smaps"); }

static void maps(struct worker *w) { read_areas(w, "/proc/self/maps"); }

// Resident pages of 4 KiB, and one call about all of them: the cost is per page.
static char *resident(struct worker *w) {
    w->operations = w->things;
    char *heap = memory(w, (size_t)w->things * PAGE, SMALL);
    store_to_each_page(heap, (size_t)w->things * PAGE, 1);
    return heap;
}

static void in_core(struct worker *w) {
    char *heap = resident(w);
    unsigned char *there = malloc((size_t)w->things);
    NEED(w, there);
    SAMPLES(w) {
        begin(w);
        NEED(w, mincore(heap, (size_t)w->things * PAGE, there) == 0);
        end(w);
    }
}

static void protect_pages(struct worker *w) {
    char *heap = resident(w);
    // Each sample makes the change and undoes it, because the two directions have different costs.
    w->operations = 2 * w->things;
    SAMPLES(w) {
        begin(w);
        NEED(w, mprotect(heap, (size_t)w->things * PAGE, PROT_READ) == 0);
        NEED(w, mprotect(heap, (size_t)w->things * PAGE, PROT_READ | PROT_WRITE) == 0);
        end(w);
    }
}

struct set {
    int epoll;
    int *events;
};

static int watch(int epoll, int operation, int fd, unsigned events) {
    struct epoll_event event = {.events = events, .data.fd = fd};
    return epoll_ctl(epoll, operation, fd, &event);
}

// An epoll that watches `things` eventfds, none of them ready.
static struct set watched_set(struct worker *w) {
    lift_limits(w);
    struct set set = {epoll_create1(0), malloc(sizeof(int) * (size_t)w->things)};
    NEED(w, set.epoll >= 0 && set.events);
    for (long i = 0; i < w->things; i++) {
        set.events[i] = eventfd(0, EFD_NONBLOCK);
        NEED(w, set.events[i] >= 0 && watch(set.epoll, EPOLL_CTL_ADD, set.events[i], EPOLLIN) == 0);
    }
    return set;
}

// Picks one of the set, a different one each time.
static int pick(const struct worker *w, const struct set *set, long i) { return set->events[i * 7919 % w->things]; }

static void epoll_modify(struct worker *w) {
    struct set set = watched_set(w);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, watch(set.epoll, EPOLL_CTL_MOD, pick(w, &set, i), i % 2 ? EPOLLIN : EPOLLPRI) == 0);
        end(w);
    }
}

static void epoll_delete_add(struct worker *w) {
    struct set set = watched_set(w);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            int fd = pick(w, &set, i);
            NEED(w, watch(set.epoll, EPOLL_CTL_DEL, fd, 0) == 0 && watch(set.epoll, EPOLL_CTL_ADD, fd, EPOLLIN) == 0);
        }
        end(w);
    }
}

static void epoll_close(struct worker *w) {
    struct set set = watched_set(w);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            int fd = eventfd(0, 0);
            NEED(w, fd >= 0 && watch(set.epoll, EPOLL_CTL_ADD, fd, EPOLLIN) == 0 && close(fd) == 0);
        }
        end(w);
    }
}

static void epoll_ready(struct worker *w) {
    struct set set = watched_set(w);
    struct epoll_event found;
    uint64_t one = 1;
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            int fd = pick(w, &set, i);
            NEED(w, write(fd, &one, sizeof one) == sizeof one && epoll_wait(set.epoll, &found, 1, -1) == 1);
            NEED(w, read(fd, &one, sizeof one) == sizeof one && found.data.fd == fd);
        }
        end(w);
    }
}

static void open_among(struct worker *w) {
    lift_limits(w);
    for (long i = 0; i < w->things; i++) NEED(w, open("/dev/null", O_RDONLY) >= 0);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            int fd = open("/dev/null", O_RDONLY);
            NEED(w, fd >= 0 && close(fd) == 0);
        }
        end(w);
    }
}

static int lock_byte(int fd, long at, short type) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    return fcntl(fd, F_SETLK, &lock);
}

// Makes locks of a byte each with a byte between them, so that none can be merged. One more lock is
// set and removed.
static void lock_among(struct worker *w) {
    char name[64];
    int fd = file(w, PAGE, name);
    for (long i = 0; i < w->things; i++) NEED(w, lock_byte(fd, 2 * i, F_WRLCK) == 0);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, lock_byte(fd, 2 * w->things, F_WRLCK) == 0 && lock_byte(fd, 2 * w->things, F_UNLCK) == 0);
        end(w);
    }
    unlink(name);
}

static void take_signal(struct worker *w) {
    lift_limits(w);
    if (w->operations > w->things) w->operations = w->things;
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGRTMIN);
    NEED(w, sigprocmask(SIG_BLOCK, &one, 0) == 0);
    for (long i = 0; i < w->things; i++) NEED(w, sigqueue(getpid(), SIGRTMIN, (union sigval){0}) == 0);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, sigtimedwait(&one, 0, &(struct timespec){0, 0}) == SIGRTMIN);
        end(w);
        OPERATIONS(w, i) NEED(w, sigqueue(getpid(), SIGRTMIN, (union sigval){0}) == 0);
    }
}

static void arm_timer(struct worker *w) {
    lift_limits(w);
    struct sigevent silent = {.sigev_notify = SIGEV_NONE};
    struct itimerspec hour = {{0, 0}, {3600, 0}};
    timer_t timer;
    for (long i = 0; i < w->things; i++) {
        NEED(w, timer_create(CLOCK_MONOTONIC, &silent, &timer) == 0);
        hour.it_value.tv_nsec = i;
        NEED(w, timer_settime(timer, 0, &hour, 0) == 0);
    }
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            NEED(w, timer_create(CLOCK_MONOTONIC, &silent, &timer) == 0);
            NEED(w, timer_settime(timer, 0, &hour, 0) == 0 && timer_delete(timer) == 0);
        }
        end(w);
    }
}

// Children that wait until the last writer of a pipe has closed it.
struct children {
    int hold;
    pid_t *ids;
};

static struct children crowd(struct worker *w, long count) {
    int ends[2];
    struct children children = {0, malloc(sizeof(pid_t) * (size_t)count)};
    NEED(w, children.ids && pipe(ends) == 0);
    for (long i = 0; i < count; i++) {
        pid_t child = fork();
        NEED(w, child >= 0);
        if (child == 0) {
            char byte;
            close(ends[1]);
            _exit(read(ends[0], &byte, 1) != 0);
        }
        children.ids[i] = child;
    }
    close(ends[0]);
    children.hold = ends[1];
    return children;
}

static void part(struct worker *w, struct children *children, long count) {
    close(children->hold);
    for (long i = 0; i < count; i++) reap(w, children->ids[i]);
    free(children->ids);
}

static long count_entries(struct worker *w, const char *path) {
    static char entries[32 << 10];
    int fd = open(path, O_RDONLY | O_DIRECTORY);
    NEED(w, fd >= 0);
    long size, count = 0;
    while ((size = syscall(SYS_getdents64, fd, entries, sizeof entries)) > 0)
        for (long at = 0; at < size; at += *(unsigned short *)(entries + at + 16)) count++;
    NEED(w, size == 0);
    close(fd);
    return count;
}

// The cost is per entry.
static void list(struct worker *w, const char *path) {
    SAMPLES(w) {
        begin(w);
        w->operations = count_entries(w, path);
        end(w);
    }
}

static void list_processes(struct worker *w) {
    lift_limits(w);
    struct children children = crowd(w, w->things);
    list(w, "/proc");
    part(w, &children, w->things);
}

// A folder with `things` files; removed again by `raze`.
static void found(struct worker *w, char folder[64]) {
    char name[128];
    snprintf(folder, 64, "/tmp/crowd-%d", (int)getpid());
    NEED(w, mkdir(folder, 0700) == 0);
    for (long i = 0; i < w->things; i++) {
        snprintf(name, sizeof name, "%s/%ld", folder, i);
        int fd = open(name, O_CREAT | O_WRONLY, 0600);
        NEED(w, fd >= 0 && close(fd) == 0);
    }
}

static void raze(struct worker *w, const char *folder) {
    char name[128];
    for (long i = 0; i < w->things; i++) {
        snprintf(name, sizeof name, "%s/%ld", folder, i);
        unlink(name);
    }
    rmdir(folder);
}

static void list_files(struct worker *w) {
    char folder[64];
    found(w, folder);
    list(w, folder);
    raze(w, folder);
}

static void make_file(struct worker *w) {
    char folder[64], name[128];
    found(w, folder);
    snprintf(name, sizeof name, "%s/one more", folder);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            int fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 0600);
            NEED(w, fd >= 0 && close(fd) == 0 && unlink(name) == 0);
        }
        end(w);
    }
    raze(w, folder);
}

// All children end at once and are waited for: the cost is per child.
static void children_end(struct worker *w) {
    lift_limits(w);
    w->operations = w->things;
    SAMPLES(w) {
        struct children children = crowd(w, w->things);
        begin(w);
        part(w, &children, w->things);
        end(w);
    }
}

static void fork_among(struct worker *w) {
    lift_limits(w);
    struct children children = crowd(w, w->things);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            pid_t child = fork();
            NEED(w, child >= 0);
            if (child == 0) _exit(0);
            reap(w, child);
        }
        end(w);
    }
    part(w, &children, w->things);
}

// Each child makes the next and waits for it: the cost is per process.
__attribute__((noinline)) static void chain(struct worker *w, long depth) {
    if (depth == 0) return;
    pid_t child = vfork();
    NEED(w, child >= 0);
    if (child == 0) {
        chain(w, depth - 1);
        _exit(0);
    }
    reap(w, child);
}

static void vfork_chain(struct worker *w) {
    lift_limits(w);
    w->operations = w->things;
    SAMPLES(w) {
        begin(w);
        chain(w, w->things);
        end(w);
    }
}

// `things` pages of the disk are in the cache, all of them clean.
static int cached_disk(struct worker *w) {
    static char block[64 << 10];
    int disk = open("/dev/vda", O_RDWR);
    NEED(w, disk >= 0 && w->things * PAGE <= DISK);
    for (long left = w->things * PAGE; left > 0; left -= (long)sizeof block)
        NEED(w, read(disk, block, left < (long)sizeof block ? (size_t)left : sizeof block) > 0);
    NEED(w, fsync(disk) == 0);
    return disk;
}

static void sync_clean(struct worker *w) {
    int disk = cached_disk(w);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, fsync(disk) == 0);
        end(w);
    }
}

static void sync_page(struct worker *w) {
    char block[PAGE];
    int disk = cached_disk(w);
    memset(block, 'x', sizeof block);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, pwrite(disk, block, PAGE, i % w->things * PAGE) == PAGE && fsync(disk) == 0);
        end(w);
    }
}

const struct row rows[] = {
    {"map-areas", PROCESSES, 400, map_among_areas},
    {"map-limited", PROCESSES, 100, map_limited},
    {"smaps", PROCESSES, 1, smaps},
    {"maps", PROCESSES, 1, maps},
    {"mincore", PROCESSES, 1, in_core},
    {"mprotect-pages", PROCESSES, 1, protect_pages},
    {"epoll-mod", PROCESSES, 100, epoll_modify},
    {"epoll-del-add", PROCESSES, 100, epoll_delete_add},
    {"epoll-close", PROCESSES, 100, epoll_close},
    {"epoll-ready", PROCESSES, 100, epoll_ready},
    {"open-among", PROCESSES, 100, open_among},
    {"lock-among", PROCESSES, 50, lock_among},
    {"sigtimedwait", PROCESSES, 100, take_signal},
    {"timer", PROCESSES, 50, arm_timer},
    {"list-proc", PROCESSES, 1, list_processes},
    {"list-files", PROCESSES, 1, list_files},
    {"make-file", PROCESSES, 50, make_file},
    {"children-end", PROCESSES, 1, children_end},
    {"fork-among", PROCESSES, 5, fork_among},
    {"vfork-chain", PROCESSES, 1, vfork_chain},
    {"fsync-clean", PROCESSES, 20, sync_clean},
    {"fsync-page", PROCESSES, 20, sync_page},
    {0},
};
