// Operations while many other things exist, of other threads and users too: more of the kind of
// crowds.c.
#include "bench.h"
#include "ring.h"
#include <linux/futex.h>
#include <sys/ipc.h>
#include <sys/mount.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>

enum { STACK = 16 << 10, WORDS = 128, WAITV = 449 };

static void lift_limits(struct worker *w) {
    struct rlimit files = {1 << 20, 1 << 20}, none = {RLIM_INFINITY, RLIM_INFINITY};
    NEED(w, setrlimit(RLIMIT_NOFILE, &files) == 0 && setrlimit(RLIMIT_NPROC, &none) == 0);
}

// Threads with small stacks that have come to their waits when `arrived` says so.
static volatile long arrived;

static void await(long count) {
    while (__atomic_load_n(&arrived, __ATOMIC_SEQ_CST) < count) usleep(1000);
    // The last ones sleep soon after they said so.
    usleep(20000);
}

static void threads(struct worker *w, long count, void *(*run)(void *)) {
    pthread_attr_t small;
    pthread_t thread;
    lift_limits(w);
    arrived = 0;
    NEED(w, pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, STACK) == 0);
    NEED(w, pthread_attr_setguardsize(&small, 0) == 0);
    for (long i = 0; i < count; i++) NEED(w, pthread_create(&thread, &small, run, (void *)i) == 0);
    await(count);
}

static void arrive(void) { __atomic_fetch_add(&arrived, 1, __ATOMIC_SEQ_CST); }

static long futex(volatile int *word, int operation, int value) {
    return syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, 0, 0, 0);
}

static volatile int word, *words;
static long limit;

struct wait {
    uint64_t value, address;
    uint32_t flags, reserved;
};

// Waits for 128 words of its own, or as many as there are left.
static void *wait_for_words(void *number) {
    struct wait waits[WORDS];
    long first = (long)number * WORDS, count = limit - first < WORDS ? limit - first : WORDS;
    for (long i = 0; i < count; i++) waits[i] = (struct wait){0, (uint64_t)&words[first + i], 2 | FUTEX_PRIVATE_FLAG, 0};
    arrive();
    syscall(WAITV, waits, count, 0, 0, 0);
    return 0;
}

// `things` waits for other words, by threads that wait for many each.
static void wake_nobody(struct worker *w) {
    limit = w->things;
    words = calloc((size_t)limit, sizeof *words);
    NEED(w, words);
    threads(w, (limit + WORDS - 1) / WORDS, wait_for_words);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, futex(&word, FUTEX_WAKE, 1) == 0);
        end(w);
    }
}

static void *wait_for_word(void *unused) {
    for (;;) {
        arrive();
        futex(&word, FUTEX_WAIT, 0);
    }
    return unused;
}

// One of `things` that wait for a word is woken and waits again.
static void wake_one(struct worker *w) {
    threads(w, w->things, wait_for_word);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            long before = arrived;
            NEED(w, futex(&word, FUTEX_WAKE, 1) == 1);
            while (arrived == before) sched_yield();
        }
        end(w);
        await(arrived);
    }
}

static int set;

static void *wait_for_semaphore(void *unused) {
    struct sembuf take = {0, -1, 0};
    arrive();
    semop(set, &take, 1);
    return unused;
}

// `things` wait for another semaphore of the set.
static void semaphore_besides(struct worker *w) {
    set = semget(IPC_PRIVATE, 2, 0600);
    NEED(w, set >= 0);
    threads(w, w->things, wait_for_semaphore);
    struct sembuf give = {1, 1, 0}, take = {1, -1, 0};
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, semop(set, &give, 1) == 0 && semop(set, &take, 1) == 0);
        end(w);
    }
    semctl(set, 0, IPC_RMID);
}

// The numbers above a hole are in use.
static void dup_above(struct worker *w) {
    lift_limits(w);
    int hole = dup(0);
    NEED(w, hole >= 0);
    for (long i = 0; i < w->things; i++) NEED(w, dup(0) >= 0);
    close(hole);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            int fd = fcntl(0, F_DUPFD, hole + 1);
            NEED(w, fd > hole && close(fd) == 0);
        }
        end(w);
    }
}

// Measures a fork, and the end of its child.
static void forks(struct worker *w) {
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
}

// A descriptor with a number of `things` tens was open once.
static void fork_after_high(struct worker *w) {
    lift_limits(w);
    NEED(w, dup2(0, 10 * (int)w->things) > 0 && close(10 * (int)w->things) == 0);
    forks(w);
}

// A folder in which `things` folders are mount points.
static void mounts(struct worker *w, char folder[64]) {
    char name[128];
    snprintf(folder, 64, "/tmp/mounts-%d", (int)getpid());
    NEED(w, mkdir(folder, 0700) == 0);
    for (long i = 0; i < w->things; i++) {
        snprintf(name, sizeof name, "%s/%ld", folder, i);
        NEED(w, mkdir(name, 0700) == 0 && mount("none", name, "tmpfs", 0, 0) == 0);
    }
    snprintf(name, sizeof name, "%s/more", folder);
    NEED(w, mkdir(name, 0700) == 0);
}

static void unmount(struct worker *w, const char *folder) {
    char name[128];
    for (long i = w->things - 1; i >= 0; i--) {
        snprintf(name, sizeof name, "%s/%ld", folder, i);
        NEED(w, umount(name) == 0 && rmdir(name) == 0);
    }
    snprintf(name, sizeof name, "%s/more", folder);
    NEED(w, rmdir(name) == 0 && rmdir(folder) == 0);
}

static void look_up_among_mounts(struct worker *w) {
    char folder[64], name[128];
    struct stat about;
    mounts(w, folder);
    snprintf(name, sizeof name, "%s/more", folder);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, stat(name, &about) == 0);
        end(w);
    }
    unmount(w, folder);
}

static void mount_among_mounts(struct worker *w) {
    char folder[64], name[128];
    mounts(w, folder);
    snprintf(name, sizeof name, "%s/more", folder);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, mount("none", name, "tmpfs", 0, 0) == 0 && umount(name) == 0);
        end(w);
    }
    unmount(w, folder);
}

// `things` areas lie above the segment.
static void detach_segment(struct worker *w) {
    size_t size = (size_t)(w->things + 3) / 2 * 2 * PAGE;
    char *all = mmap(0, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(w, all != MAP_FAILED && munmap(all, PAGE) == 0);
    for (long i = 1; i < w->things; i += 2) NEED(w, mprotect(all + i * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
    int segment = shmget(IPC_PRIVATE, PAGE, 0600);
    NEED(w, segment >= 0);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, shmat(segment, all, 0) == all && shmdt(all) == 0);
        end(w);
    }
    shmctl(segment, IPC_RMID, 0);
}

static void set_attribute(struct worker *w) {
    char name[64], attribute[32];
    int fd = file(w, PAGE, name);
    for (long i = 0; i < w->things; i++) {
        snprintf(attribute, sizeof attribute, "trusted.%ld", i);
        NEED(w, fsetxattr(fd, attribute, "", 0, 0) == 0);
    }
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, fsetxattr(fd, "trusted.0", i % 2 ? "a" : "b", 1, 0) == 0);
        end(w);
    }
    unlink(name);
}

// A folder with `things` files, and one more that is open.
static int open_among_files(struct worker *w, char folder[64]) {
    char name[128];
    snprintf(folder, 64, "/tmp/growth-%d", (int)getpid());
    NEED(w, mkdir(folder, 0700) == 0 && chdir(folder) == 0);
    for (long i = 0; i < w->things; i++) {
        snprintf(name, sizeof name, "%ld", i);
        NEED(w, mknod(name, S_IFREG | 0600, 0) == 0);
    }
    int fd = open("zzz", O_RDWR | O_CREAT, 0600);
    NEED(w, fd >= 0);
    return fd;
}

static void remove_files(struct worker *w, const char *folder) {
    char name[128];
    for (long i = 0; i < w->things; i++) {
        snprintf(name, sizeof name, "%ld", i);
        unlink(name);
    }
    unlink("renamed");
    unlink("zzz");
    NEED(w, chdir("/") == 0 && rmdir(folder) == 0);
}

static void read_name(struct worker *w, int fd, const char *wanted) {
    char link[64], text[256] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, readlink(link, text, sizeof text - 1) > 0);
        end(w);
    }
    if (!strstr(text, wanted)) die(w->shared, "the file is named %s", text);
}

static void name_of_deleted(struct worker *w) {
    char folder[64];
    int fd = open_among_files(w, folder);
    NEED(w, unlink("zzz") == 0);
    read_name(w, fd, "/zzz (deleted)");
    remove_files(w, folder);
}

static void name_of_renamed(struct worker *w) {
    char folder[64];
    int fd = open_among_files(w, folder);
    NEED(w, rename("zzz", "renamed") == 0);
    read_name(w, fd, "/renamed");
    remove_files(w, folder);
}

// Locks `things` files, says so, and keeps them until it is killed.
static void hold_locks(struct worker *w, int told) {
    char name[128];
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    for (long i = 0; i < w->things; i++) {
        snprintf(name, sizeof name, "%ld", i);
        int file = open(name, O_RDWR);
        NEED(w, file >= 0 && fcntl(file, F_SETLK, &lock) == 0);
    }
    NEED(w, write(told, "x", 1) == 1);
    pause();
}

// Another process holds locks of `things` files.
static void exit_after_lock(struct worker *w) {
    char folder[64], byte;
    int ends[2], status;
    lift_limits(w);
    int fd = open_among_files(w, folder);
    NEED(w, pipe(ends) == 0);
    pid_t holder = fork();
    NEED(w, holder >= 0);
    if (holder == 0) {
        hold_locks(w, ends[1]);
        _exit(1);
    }
    NEED(w, read(ends[0], &byte, 1) == 1);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            struct flock asked = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
            pid_t child = vfork();
            NEED(w, child >= 0);
            if (child == 0) _exit(fcntl(fd, F_GETLK, &asked) != 0);
            reap(w, child);
        }
        end(w);
    }
    NEED(w, kill(holder, SIGKILL) == 0 && waitpid(holder, &status, 0) == holder);
    close(fd);
    remove_files(w, folder);
}

static pid_t waiting_child(struct worker *w, int end, pid_t group) {
    char byte;
    pid_t child = fork();
    NEED(w, child >= 0);
    if (child == 0) _exit(read(end, &byte, 1) != 0);
    NEED(w, group < 0 || setpgid(child, group) == 0);
    return child;
}

// A group of two, between which `things` processes of another group were made.
static void signal_group(struct worker *w) {
    int ends[2];
    lift_limits(w);
    NEED(w, pipe2(ends, O_CLOEXEC) == 0);
    pid_t leader = waiting_child(w, ends[0], 0);
    for (long i = 0; i < w->things; i++) waiting_child(w, ends[0], -1);
    waiting_child(w, ends[0], leader);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, kill(-leader, 0) == 0);
        end(w);
    }
    kill(-leader, SIGKILL);
}

// A user who may have half as many processes as others have.
static void fork_limited(struct worker *w) {
    int ends[2], user = 4242;
    struct rlimit few = {(rlim_t)w->things / 2 + 2, (rlim_t)w->things / 2 + 2};
    lift_limits(w);
    NEED(w, pipe2(ends, O_CLOEXEC) == 0);
    for (long i = 0; i < w->things; i++) waiting_child(w, ends[0], -1);
    NEED(w, setrlimit(RLIMIT_NPROC, &few) == 0 && setuid(user) == 0);
    forks(w);
}

// Reads a file from its beginning, as long as it is.
static void read_whole(struct worker *w, int fd) {
    static char text[1 << 16];
    NEED(w, lseek(fd, 0, SEEK_SET) == 0);
    ssize_t size;
    while ((size = read(fd, text, sizeof text)) > 0) continue;
    NEED(w, size == 0);
}

static void read_often(struct worker *w, const char *name) {
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    NEED(w, fd >= 0);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) read_whole(w, fd);
        end(w);
    }
    close(fd);
}

// The process' memory in pages, by areas: two protections in turn, so that no two of them are one.
static void read_statm(struct worker *w) {
    char *all = mmap(0, (size_t)w->things * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(w, all != MAP_FAILED);
    for (long i = 1; i < w->things; i += 2) NEED(w, mprotect(all + i * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
    read_often(w, "/proc/self/statm");
}

static void sleeping_processes(struct worker *w) {
    int ends[2];
    lift_limits(w);
    NEED(w, pipe2(ends, O_CLOEXEC) == 0);
    for (long i = 0; i < w->things; i++) waiting_child(w, ends[0], -1);
}

static void read_cpu_times(struct worker *w) {
    sleeping_processes(w);
    read_often(w, "/proc/stat");
}

// The CPU time of a control group without processes.
static void read_empty_group(struct worker *w) {
    sleeping_processes(w);
    mkdir("/tmp/groups", 0755);
    NEED(w, mount("none", "/tmp/groups", "cgroup2", 0, 0) == 0 || errno == EBUSY);
    NEED(w, mkdir("/tmp/groups/empty", 0755) == 0);
    read_often(w, "/tmp/groups/empty/cpu.stat");
    NEED(w, rmdir("/tmp/groups/empty") == 0 && umount("/tmp/groups") == 0);
}

// What each thread does in a C library's setuid(): the same call as the others.
static void set_same_user(struct worker *w) {
    threads(w, w->things, wait_for_word);
    NEED(w, syscall(SYS_setresuid, 1, 1, 1) == 0);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, syscall(SYS_setresuid, 1, 1, 1) == 0);
        end(w);
    }
}

// A process of `things` threads gets a signal that it ignores.
static void send_ignored(struct worker *w) {
    threads(w, w->things, wait_for_word);
    NEED(w, signal(SIGUSR2, SIG_IGN) != SIG_ERR);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, kill(getpid(), SIGUSR2) == 0);
        end(w);
    }
}

// A stopped child of `things` threads is looked at.
static void look_at_stopped(struct worker *w) {
    pid_t child = fork();
    NEED(w, child >= 0);
    if (child == 0) {
        threads(w, w->things, wait_for_word);
        raise(SIGSTOP);
        _exit(0);
    }
    siginfo_t about;
    NEED(w, waitid(P_PID, (id_t)child, &about, WSTOPPED | WNOWAIT) == 0);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, waitid(P_PID, (id_t)child, &about, WSTOPPED | WNOWAIT) == 0);
        end(w);
    }
    NEED(w, kill(child, SIGKILL) == 0 && waitpid(child, 0, 0) == child);
}

// A ring in which `things` requests wait, each for a counter of its own. Returns the first counter.
static int waiting_requests(struct worker *w, struct ring *ring) {
    lift_limits(w);
    *ring = open_ring(w);
    int first = -1;
    for (long i = 0; i < w->things; i++) {
        int counter = eventfd(0, EFD_NONBLOCK);
        NEED(w, counter >= 0);
        if (i == 0) first = counter;
        submit_one(ring, (struct io_uring_sqe){.opcode = IORING_OP_POLL_ADD, .fd = counter, .poll_events = POLLIN, .user_data = i});
        NEED(w, syscall(SYS_io_uring_enter, ring->fd, 1, 0, 0, 0, 0) == 1);
    }
    return first;
}

// One request's event, which is taken, and the request made again.
static void event_of_request(struct worker *w) {
    struct ring ring;
    int counter = waiting_requests(w, &ring);
    uint64_t one = 1;
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            NEED(w, write(counter, &one, 8) == 8);
            NEED(w, syscall(SYS_io_uring_enter, ring.fd, 0, 1, IORING_ENTER_GETEVENTS, 0, 0) == 0);
            __atomic_store_n(ring.done_head, *ring.done_head + 1, __ATOMIC_RELEASE);
            NEED(w, read(counter, &one, 8) == 8);
            submit_one(&ring, (struct io_uring_sqe){.opcode = IORING_OP_POLL_ADD, .fd = counter, .poll_events = POLLIN});
            NEED(w, syscall(SYS_io_uring_enter, ring.fd, 1, 0, 0, 0, 0) == 1);
        }
        end(w);
    }
}

// A request is cancelled, its completion and that of the call are taken, and it is made again.
static void cancel_request(struct worker *w) {
    struct ring ring;
    int counter = waiting_requests(w, &ring);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            submit_one(&ring, (struct io_uring_sqe){.opcode = IORING_OP_POLL_REMOVE, .fd = -1, .addr = 0});
            enter_for(w, &ring, 1, 2);
            submit_one(&ring, (struct io_uring_sqe){.opcode = IORING_OP_POLL_ADD, .fd = counter, .poll_events = POLLIN});
            NEED(w, syscall(SYS_io_uring_enter, ring.fd, 1, 0, 0, 0, 0) == 1);
        }
        end(w);
    }
}

const struct row rows[] = {
    {"uring-event", PROCESSES, 50, event_of_request},
    {"uring-cancel", PROCESSES, 50, cancel_request},
    {"futex-nobody", PROCESSES, 100, wake_nobody},
    {"futex-one", PROCESSES, 20, wake_one},
    {"semop-besides", PROCESSES, 20, semaphore_besides},
    {"dup-above", PROCESSES, 100, dup_above},
    {"fork-after-high", PROCESSES, 5, fork_after_high},
    {"stat-mounts", PROCESSES, 100, look_up_among_mounts},
    {"mount-mounts", PROCESSES, 10, mount_among_mounts},
    {"shmdt-areas", PROCESSES, 20, detach_segment},
    {"setxattr", PROCESSES, 100, set_attribute},
    {"name-deleted", PROCESSES, 20, name_of_deleted},
    {"name-renamed", PROCESSES, 20, name_of_renamed},
    {"exit-locks", PROCESSES, 5, exit_after_lock},
    {"kill-group", PROCESSES, 100, signal_group},
    {"fork-limited", PROCESSES, 5, fork_limited},
    {"statm", PROCESSES, 50, read_statm},
    {"cpu-times", PROCESSES, 20, read_cpu_times},
    {"group-empty", PROCESSES, 20, read_empty_group},
    {"setuid-same", PROCESSES, 100, set_same_user},
    {"signal-ignored", PROCESSES, 100, send_ignored},
    {"wait-stopped", PROCESSES, 50, look_at_stopped},
    {0},
};
