// Measures how long a single call keeps the CPU while another task waits for it. Each row makes one
// call with a size that a program may choose, beside a child that computes and one that wakes twice
// a millisecond. The kernel reports how long it continued although one of these was due to run, and
// in which code (/sys/kernel/debug/latency).
//
//   freehold run --icount -m 2G -- long-calls [-l MICROSECONDS] [ROW...]
//
// Prints a line for each row. Exits with 1 where one took longer than MICROSECONDS (5,000), or a
// call failed.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/futex.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#define MIB (1UL << 20)
// MiB that most rows use.
#define MUCH 384UL

static int figures;

static void need(int kept, const char *what) {
    if (kept) return;
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

// Maps `mib` MiB in small pages, all present.
static char *small_pages(size_t mib) {
    char *at = mmap(0, mib * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(at != MAP_FAILED, "mmap");
    madvise(at, mib * MIB, MADV_NOHUGEPAGE);
    need(madvise(at, mib * MIB, MADV_POPULATE_WRITE) == 0, "populate");
    return at;
}

// Maps memory in so many areas, one page each.
static char *many_areas(size_t count) {
    char *at = mmap(0, count * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    need(at != MAP_FAILED, "mmap");
    for (size_t page = 0; page < count; page += 2) need(mprotect(at + page * 4096, 4096, PROT_READ) == 0, "mprotect");
    return at;
}

static int file_of(size_t mib) {
    int fd = memfd_create("long", 0);
    need(fd >= 0 && ftruncate(fd, mib * MIB) == 0, "memfd");
    char *at = mmap(0, mib * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    need(at != MAP_FAILED && madvise(at, mib * MIB, MADV_POPULATE_WRITE) == 0, "populate");
    munmap(at, mib * MIB);
    return fd;
}

static void many_descriptors(int count) {
    struct rlimit limit = {count + 100, count + 100};
    need(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
    int fd = eventfd(0, 0);
    for (int i = 0; i < count; i++) need(dup(fd) >= 0, "dup");
}

static void many_children(int count) {
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        need(child >= 0, "fork");
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;) pause();
        }
    }
}

static void *wait_on(void *word) {
    for (;;) syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 0, 0);
    return 0;
}

static int futex_word;

static void many_threads(int count) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 16384);
    for (int i = 0; i < count; i++) {
        pthread_t thread;
        need(pthread_create(&thread, &attributes, wait_on, &futex_word) == 0, "pthread_create");
    }
    usleep(100000);
}

// Resources that a row needs, for its call.
static char *memory;
static int fd, fd2;
static struct pollfd *polled;

static void much_memory(void) { memory = small_pages(MUCH); }
static void much_reserved(void) {
    memory = mmap(0, MUCH * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(memory, MUCH * MIB, MADV_NOHUGEPAGE);
}
static void shared_file(void) {
    fd = file_of(64);
    memory = mmap(0, 64 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    need(memory != MAP_FAILED && madvise(memory, 64 * MIB, MADV_POPULATE_WRITE) == 0, "populate");
}
static void much_huge(void) {
    memory = mmap(0, 2 * MUCH * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(memory, 2 * MUCH * MIB, MADV_HUGEPAGE);
    need(madvise(memory, 2 * MUCH * MIB, MADV_POPULATE_WRITE) == 0, "populate");
}
static void many_areas_there(void) { memory = many_areas(30000); }
// A file of /tmp without a name.
static void open_nameless(void) {
    fd = open("/tmp/long-call", O_RDWR | O_CREAT | O_TRUNC, 0600);
    need(fd >= 0, "open");
    unlink("/tmp/long-call");
}
static void tmp_and_memory(void) {
    memory = small_pages(64);
    open_nameless();
}
static void file_and_memory(void) {
    memory = small_pages(64);
    fd = file_of(64);
}
static void file_and_tmp(void) {
    fd2 = file_of(64);
    open_nameless();
}
static void named_file(void) {
    fd = open("/tmp/long-call", O_RDWR | O_CREAT | O_TRUNC, 0600);
    need(fd >= 0 && posix_fallocate(fd, 0, MUCH * MIB) == 0, "fallocate");
    close(fd);
}
static void descriptors_there(void) { many_descriptors(100000); }
static void children_there(void) { many_children(2000); }
static void threads_there(void) { many_threads(10000); }
static void directory_there(void) {
    mkdir("/tmp/many", 0700);
    char name[64];
    for (int i = 0; i < 20000; i++) {
        sprintf(name, "/tmp/many/%d", i);
        int file = open(name, O_CREAT | O_WRONLY, 0600);
        need(file >= 0 && close(file) == 0, "open");
    }
    fd = open("/tmp/many", O_RDONLY | O_DIRECTORY);
    memory = malloc(4 * MIB);
}
static void mounted_there(void) {
    mkdir("/tmp/mounted", 0700);
    need(mount("none", "/tmp/mounted", "tmpfs", 0, "") == 0, "mount");
    char name[64];
    for (int i = 0; i < 20000; i++) {
        sprintf(name, "/tmp/mounted/%d", i);
        int file = open(name, O_CREAT | O_WRONLY, 0600);
        need(file >= 0 && write(file, name, 10) == 10 && close(file) == 0, "open");
    }
}
static void mounts_at(const char *folder) {
    mkdir(folder, 0700);
    char name[64];
    for (int i = 0; i < 3000; i++) {
        sprintf(name, "%s/%d", folder, i);
        need(mkdir(name, 0700) == 0 && mount("none", name, "tmpfs", 0, "") == 0, "mount");
    }
}
static void mounts_there(void) { mounts_at("/tmp/mounts"); }
static void mounts_copied(void) {
    mounts_at("/tmp/copied");
    need(unshare(CLONE_NEWNS) == 0, "unshare");
}
static void stacked_there(void) {
    need(mkdir("/tmp/stack", 0700) == 0 && mkdir("/tmp/stack/x", 0700) == 0 && chdir("/tmp/stack") == 0, "mkdir");
    for (int i = 0; i < 4000; i++) need(mount("none", "x", "tmpfs", 0, "") == 0, "mount");
}
static void links_there(void) {
    need(mkdir("/tmp/links", 0700) == 0 && chdir("/tmp/links") == 0 && mkdir("x", 0700) == 0 && mkdir("link39", 0700) == 0, "mkdir");
    for (int i = 0; i < 39; i++) {
        char text[4096] = "", name[16];
        for (size_t at = 0; at + 20 < sizeof text; at += 5) strcpy(text + at, "x/../");
        sprintf(text + strlen(text), "link%d", i + 1);
        sprintf(name, "link%d", i);
        need(symlink(text, name) == 0, "symlink");
    }
}
static void polled_there(void) {
    many_descriptors(50000);
    polled = calloc(50000, sizeof *polled);
    for (int i = 0; i < 50000; i++) polled[i] = (struct pollfd){.fd = i + 10, .events = POLLIN};
}
static void epoll_there(void) {
    many_descriptors(50000);
    fd = epoll_create1(0);
    int full = eventfd(1, 0);
    for (int i = 0; i < 49000; i++) {
        need(dup2(full, 30 + i) >= 0, "dup2");
        struct epoll_event event = {.events = EPOLLIN};
        need(epoll_ctl(fd, EPOLL_CTL_ADD, 30 + i, &event) == 0, "epoll_ctl");
    }
    memory = malloc(50000 * sizeof(struct epoll_event));
}
static void locks_there(void) {
    fd = open("/tmp/locked", O_RDWR | O_CREAT, 0600);
    for (int i = 0; i < 20000; i++) {
        struct flock lock = {.l_type = F_WRLCK, .l_start = i * 2, .l_len = 1};
        need(fcntl(fd, F_SETLK, &lock) == 0, "F_SETLK");
    }
}
// Starts a child that reads the bytes written to `to`, which leads to `from`.
static void read_beside(int to, int from) {
    fd = to, fd2 = from;
    memory = small_pages(64);
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        static char buffer[1 << 20];
        while (read(fd2, buffer, sizeof buffer) > 0) {
        }
        _exit(0);
    }
}
static void pairs(void) {
    int ends[2];
    need(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
    read_beside(ends[0], ends[1]);
}
static void piped(void) {
    int ends[2];
    need(pipe(ends) == 0, "pipe");
    read_beside(ends[1], ends[0]);
}
// Fills a queue of 16 MiB with room for one message, and one with as many small messages as
// possible.
static void open_queue(long messages, long bytes) {
    struct rlimit any = {RLIM_INFINITY, RLIM_INFINITY};
    struct {
        long flags, messages, bytes, current, unused[4];
    } size = {.messages = messages, .bytes = bytes};
    need(setrlimit(RLIMIT_MSGQUEUE, &any) == 0, "setrlimit");
    fd = syscall(SYS_mq_open, "long-call", O_RDWR | O_CREAT, 0600, &size);
    need(fd >= 0 && syscall(SYS_mq_unlink, "long-call") == 0, "mq_open");
}
static void large_queue(void) {
    memory = small_pages(16);
    open_queue(1, 16 * MIB);
}
static void sent_large(void) {
    large_queue();
    need(syscall(SYS_mq_timedsend, fd, memory, 16 * MIB, 0, 0) == 0, "mq_timedsend");
}
static void many_messages(void) {
    memory = small_pages(1);
    open_queue(65536, 1024);
    for (int i = 0; i < 65536; i++) need(syscall(SYS_mq_timedsend, fd, memory, 1024, i % 32768, 0) == 0, "mq_timedsend");
}
static void nothing(void) {}

static long all_of(ssize_t (*transfer)(int, void *, size_t), int file, size_t bytes) {
    return transfer(file, memory, bytes) == (ssize_t)bytes ? 0 : -1;
}
static ssize_t writing(int file, void *from, size_t bytes) { return write(file, from, bytes); }

static long write_tmpfs(void) { return all_of(writing, fd, 64 * MIB); }
static long read_tmpfs(void) { return all_of(read, fd, 64 * MIB); }
static long write_null(void) { return all_of(writing, open("/dev/null", O_WRONLY), 64 * MIB); }
static long read_zero(void) { return all_of(read, open("/dev/zero", O_RDONLY), 64 * MIB); }
static long read_random(void) { return all_of(read, open("/dev/urandom", O_RDONLY), 16 * MIB); }
static long write_random(void) { return all_of(writing, open("/dev/urandom", O_WRONLY), 16 * MIB); }
static long get_random(void) { return syscall(SYS_getrandom, memory, 16 * MIB, 0); }
static long write_vector(void) {
    struct iovec parts[1024];
    for (int i = 0; i < 1024; i++) parts[i] = (struct iovec){memory + i * 65536, 65536};
    return writev(fd, parts, 1024);
}
static long write_socket(void) { return write(fd, memory, 64 * MIB); }
static long populate(void) { return madvise(memory, MUCH * MIB, MADV_POPULATE_WRITE); }
static long map_populated(void) {
    return mmap(0, 2 * MUCH * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0) == MAP_FAILED;
}
static long lock_memory(void) { return mlock(memory, MUCH * MIB); }
static long unmap_all(void) { return munmap(memory, MUCH * MIB); }
static long unmap_huge(void) { return munmap(memory, 2 * MUCH * MIB); }
static long unmap_shared(void) { return munmap(memory, 64 * MIB); }
static long protect_all(void) { return mprotect(memory, MUCH * MIB, PROT_READ); }
static long move_all(void) {
    char *to = mmap(0, (MUCH + 1) * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return mremap(memory, MUCH * MIB, MUCH * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, to + 4096) == MAP_FAILED;
}
static long drop_all(void) { return madvise(memory, MUCH * MIB, MADV_DONTNEED); }
static long free_all(void) { return madvise(memory, MUCH * MIB, MADV_FREE); }
static long cool_all(void) { return madvise(memory, MUCH * MIB, MADV_COLD); }
// Makes this process's memory cold, in as many runs as one call takes.
static long cool_runs(void) {
    struct iovec runs[1024];
    for (int i = 0; i < 1024; i++) runs[i] = (struct iovec){memory + i * (MUCH * MIB / 1024), MUCH * MIB / 1024};
    int self = syscall(SYS_pidfd_open, getpid(), 0);
    return syscall(SYS_process_madvise, self, runs, 1024, MADV_COLD, 0) == (long)(MUCH * MIB) ? 0 : -1;
}
static long page_out(void) { return madvise(memory, MUCH * MIB, MADV_PAGEOUT); }
static long collapse(void) {
    madvise(memory, MUCH * MIB, MADV_HUGEPAGE);
    return madvise(memory, MUCH * MIB, MADV_COLLAPSE);
}
static long in_core(void) {
    static unsigned char there[MUCH << 8];
    return mincore(memory, MUCH * MIB, there);
}
static long sync_shared(void) { return msync(memory, 64 * MIB, MS_SYNC); }
static long read_other(void) {
    char *to = small_pages(64);
    struct iovec here = {to, 64 * MIB}, there = {memory, 64 * MIB};
    return process_vm_readv(getpid(), &here, 1, &there, 1, 0);
}
static long fork_it(void) {
    pid_t child = fork();
    if (child == 0) _exit(0);
    return child;
}
static long exec_with(char **words) {
    pid_t child = fork();
    if (child == 0) {
        execv("/proc/self/exe", words);
        _exit(1);
    }
    int status;
    waitpid(child, &status, 0);
    return status;
}
static long exec_it(void) { return exec_with((char *[]){"long-calls", "--nothing", 0}); }
static long exec_long(void) {
    char **words = calloc(100001, sizeof *words);
    words[0] = "long-calls", words[1] = "--nothing";
    for (int i = 2; i < 100000; i++) words[i] = "argument";
    return exec_with(words);
}
// Each of these scripts is run by the next one, until there are too many.
static void scripts_there(void) {
    struct rlimit stack = {24 * MIB, 24 * MIB};
    need(setrlimit(RLIMIT_STACK, &stack) == 0, "setrlimit");
    for (int i = 0; i < 6; i++) {
        char name[32], text[40];
        sprintf(name, "/tmp/script%d", i);
        int length = sprintf(text, "#!/tmp/script%d\n", i + 1);
        int file = open(name, O_CREAT | O_WRONLY | O_TRUNC, 0700);
        need(file >= 0 && write(file, text, length) == length && close(file) == 0, "write");
    }
}
static long exec_scripts(void) {
    char **words = calloc(600001, sizeof *words);
    for (int i = 0; i < 600000; i++) words[i] = "";
    execv("/tmp/script0", words);
    return errno == ELOOP ? 0 : -1;
}
static long leave(void) { _exit(0); }
static long unmap_areas(void) { return munmap(memory, 30000 * 4096); }
static long protect_areas(void) { return mprotect(memory, 30000 * 4096, PROT_READ); }
static long read_whole(const char *name) {
    char *to = malloc(16 * MIB);
    int file = open(name, O_RDONLY);
    if (file < 0) return -1;
    ssize_t got;
    for (int i = 0; i < 64 && (got = read(file, to, 16 * MIB)) > 0; i++) {
    }
    close(file);
    return got;
}
static long read_maps(void) { return read_whole("/proc/self/maps"); }
static long read_smaps(void) { return read_whole("/proc/self/smaps"); }
static long read_rollup(void) { return read_whole("/proc/self/smaps_rollup"); }
static long read_pagemap(void) {
    int file = open("/proc/self/pagemap", O_RDONLY);
    return pread(file, malloc(8 * MIB), 8 * MIB, (unsigned long)memory / 4096 * 8);
}
static long read_page_flags(void) { return read_whole("/proc/kpageflags"); }
static long audit_map(void) { return read_whole("/sys/kernel/debug/xpfo/check"); }
static long close_all(void) { return syscall(SYS_close_range, 10, 200000, 0); }
static long send_file(void) { return sendfile(fd, fd2, 0, 64 * MIB); }
static long copy_range(void) { return copy_file_range(fd2, 0, fd, 0, 64 * MIB, 0); }
static long allocate(void) { return fallocate(fd, 0, 0, MUCH * MIB); }
static long punch(void) { return fallocate(fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 0, 64 * MIB); }
static long truncate_it(void) { return ftruncate(fd, 0); }
static long unlink_it(void) { return unlink("/tmp/long-call"); }
static long list(void) {
    long got, sum = 0;
    while ((got = syscall(SYS_getdents64, fd, memory, 4 * MIB)) > 0) sum += got;
    return got < 0 ? got : sum;
}
static long copy_mounts(void) { return unshare(CLONE_NEWNS); }
// Goes down and up through all the mounts of stacked_there, hundreds of times.
static long cross_mounts(void) {
    char path[4096] = "";
    for (size_t at = 0; at + 6 < sizeof path; at += 5) strcpy(path + at, "x/../");
    struct stat told;
    return stat(path, &told);
}
static long follow_links(void) {
    struct stat told;
    return stat("link0", &told);
}
static long unmount(void) { return umount2("/tmp/mounted", 0); }
static long poll_all(void) { return poll(polled, 50000, 0); }
static long epoll_all(void) { return epoll_wait(fd, (void *)memory, 50000, 0); }
static long close_epoll(void) { return close(fd); }
static long unlock_all(void) {
    struct flock lock = {.l_type = F_UNLCK};
    return fcntl(fd, F_SETLK, &lock);
}
static long kill_all(void) {
    signal(SIGUSR1, SIG_IGN);
    return kill(0, SIGUSR1);
}
static long wake_all(void) { return syscall(SYS_futex, &futex_word, FUTEX_WAKE_PRIVATE, 1 << 30); }
static long requeue_all(void) {
    static int other;
    return syscall(SYS_futex, &futex_word, FUTEX_REQUEUE_PRIVATE, 0, (void *)(1L << 30), &other);
}
static long write_to(const char *name, const char *what) {
    int file = open(name, O_WRONLY);
    return file < 0 ? -1 : write(file, what, strlen(what)) - (long)strlen(what);
}
static long drop_caches(void) { return write_to("/proc/sys/vm/drop_caches", "3"); }
static long compact(void) { return write_to("/proc/sys/vm/compact_memory", "1"); }
static long list_processes(void) {
    DIR *all = opendir("/proc");
    long count = 0;
    while (readdir(all)) count++;
    closedir(all);
    return count;
}
static long move_nodes(void) {
    unsigned long from = 1, to = 1;
    return syscall(SYS_migrate_pages, 0, 8, &from, &to);
}
static long send_large(void) { return syscall(SYS_mq_timedsend, fd, memory, 16 * MIB, 0, 0); }
static long receive_large(void) { return syscall(SYS_mq_timedreceive, fd, memory, 16 * MIB, 0, 0) == 16 * MIB ? 0 : -1; }
static long close_queue(void) { return close(fd); }
static long sync_all(void) {
    sync();
    return 0;
}

static const struct row {
    const char *name;
    void (*prepare)(void);
    long (*call)(void);
} rows[] = {
    {"write-tmpfs", tmp_and_memory, write_tmpfs},
    {"writev-tmpfs", tmp_and_memory, write_vector},
    {"read-file", file_and_memory, read_tmpfs},
    {"write-null", much_memory, write_null},
    {"read-zero", much_memory, read_zero},
    {"read-urandom", much_memory, read_random},
    {"write-urandom", much_memory, write_random},
    {"getrandom", much_memory, get_random},
    {"write-socket", pairs, write_socket},
    {"write-pipe", piped, write_socket},
    {"sendfile", file_and_tmp, send_file},
    {"copy_file_range", file_and_tmp, copy_range},
    {"fallocate", tmp_and_memory, allocate},
    {"punch-hole", file_and_memory, punch},
    {"truncate", file_and_memory, truncate_it},
    {"unlink", named_file, unlink_it},
    {"populate", much_reserved, populate},
    {"mmap-populate", nothing, map_populated},
    {"mlock", much_reserved, lock_memory},
    {"munmap", much_memory, unmap_all},
    {"munmap-huge", much_huge, unmap_huge},
    {"munmap-shared", shared_file, unmap_shared},
    {"msync", shared_file, sync_shared},
    {"mprotect", much_memory, protect_all},
    {"mremap", much_memory, move_all},
    {"dontneed", much_memory, drop_all},
    {"madv-free", much_memory, free_all},
    {"madv-cold", much_memory, cool_all},
    {"process-madvise", much_memory, cool_runs},
    {"pageout", much_memory, page_out},
    {"collapse", much_memory, collapse},
    {"mincore", much_memory, in_core},
    {"vm-readv", much_memory, read_other},
    {"fork", much_memory, fork_it},
    {"fork-huge", much_huge, fork_it},
    {"fork-shared", shared_file, fork_it},
    {"exec", much_memory, exec_it},
    {"exec-arguments", nothing, exec_long},
    {"exec-scripts", scripts_there, exec_scripts},
    {"exit", much_memory, leave},
    {"exit-huge", much_huge, leave},
    {"munmap-areas", many_areas_there, unmap_areas},
    {"mprotect-areas", many_areas_there, protect_areas},
    {"fork-areas", many_areas_there, fork_it},
    {"exit-areas", many_areas_there, leave},
    {"maps", many_areas_there, read_maps},
    {"smaps", many_areas_there, read_smaps},
    {"smaps-rollup", much_memory, read_rollup},
    {"pagemap", much_memory, read_pagemap},
    {"kpageflags", nothing, read_page_flags},
    {"xpfo-check", nothing, audit_map},
    {"migrate_pages", much_memory, move_nodes},
    {"close_range", descriptors_there, close_all},
    {"fork-descriptors", descriptors_there, fork_it},
    {"exit-descriptors", descriptors_there, leave},
    {"getdents", directory_there, list},
    {"umount", mounted_there, unmount},
    {"stacked-mounts", stacked_there, cross_mounts},
    {"links", links_there, follow_links},
    {"unshare-mounts", mounts_there, copy_mounts},
    {"exit-mounts", mounts_copied, leave},
    {"poll", polled_there, poll_all},
    {"epoll_wait", epoll_there, epoll_all},
    {"close-epoll", epoll_there, close_epoll},
    {"unlock", locks_there, unlock_all},
    {"exit-locks", locks_there, leave},
    {"kill-group", children_there, kill_all},
    {"list-processes", children_there, list_processes},
    {"exit-children", children_there, leave},
    {"exit-threads", threads_there, leave},
    {"futex-wake", threads_there, wake_all},
    {"futex-requeue", threads_there, requeue_all},
    {"drop_caches", nothing, drop_caches},
    {"compact_memory", much_memory, compact},
    {"mq_timedsend", large_queue, send_large},
    {"mq_timedreceive", sent_large, receive_large},
    {"close-mqueue", many_messages, close_queue},
    {"sync", shared_file, sync_all},
};

static void forget_figures(void) { need(pwrite(figures, "0", 1, 0) == 1, "/sys/kernel/debug/latency"); }

struct lateness {
    unsigned long nanoseconds, place;
};

// Reads the longest times of all CPUs.
static void read_figures(struct lateness *interrupts_off, struct lateness *waited) {
    char text[8192];
    ssize_t bytes = pread(figures, text, sizeof text - 1, 0);
    need(bytes > 0, "/sys/kernel/debug/latency");
    text[bytes] = 0;
    *interrupts_off = *waited = (struct lateness){0, 0};
    for (char *line = strtok(text, "\n"); line; line = strtok(0, "\n")) {
        char what[32];
        struct lateness seen;
        need(sscanf(line, "cpu%*d %31[a-z ]: %lu ns, at %lx", what, &seen.nanoseconds, &seen.place) == 3, line);
        struct lateness *most = strcmp(what, "interrupts off") ? waited : interrupts_off;
        if (seen.nanoseconds > most->nanoseconds) *most = seen;
    }
}

static pid_t beside(void (*life)(void)) {
    pid_t child = fork();
    need(child >= 0, "fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setpgid(0, 0);
        for (;;) life();
    }
    return child;
}
static void compute(void) {
    for (volatile int i = 0; i < 1 << 20; i++) {
    }
}
static void wake(void) { usleep(500); }

// Measures one row, in a process of its own; the end of the process belongs to the row.
static int measure(const struct row *row, unsigned long limit) {
    int steps[2];
    need(pipe(steps) == 0, "pipe");
    pid_t child = fork();
    need(child >= 0, "fork");
    if (child == 0) {
        setpgid(0, 0);
        row->prepare();
        pid_t others[] = {beside(compute), beside(wake)};
        // From now on the process that wakes up has priority.
        need(setpriority(PRIO_PROCESS, 0, 19) == 0, "setpriority");
        usleep(20000);
        forget_figures();
        if (row->call == leave) need(write(steps[1], "0", 1) == 1, "write");
        long result = row->call();
        if (result < 0) printf("%s: %s\n", row->name, strerror(errno));
        struct lateness off, waited;
        read_figures(&off, &waited);
        kill(others[0], SIGKILL);
        kill(others[1], SIGKILL);
        need(write(steps[1], result < 0 ? "1" : "0", 1) == 1, "write");
        need(write(steps[1], &off, sizeof off) == sizeof off && write(steps[1], &waited, sizeof waited) == sizeof waited, "write");
        _exit(0);
    }
    close(steps[1]);
    char failed = '1';
    struct lateness off = {0, 0}, waited = {0, 0};
    ssize_t got = read(steps[0], &failed, 1);
    waitpid(child, 0, 0);
    if (got == 1 && read(steps[0], &off, sizeof off) == sizeof off)
        got = read(steps[0], &waited, sizeof waited);
    else
        read_figures(&off, &waited);
    close(steps[0]);
    int is_late = waited.nanoseconds > limit * 1000 || off.nanoseconds > limit * 1000;
    printf("%-16s %8lu us at %lx; interrupts off %6lu us at %lx%s\n", row->name, waited.nanoseconds / 1000, waited.place,
        off.nanoseconds / 1000, off.place, is_late ? "  LATE" : "");
    fflush(stdout);
    return is_late || failed != '0';
}

int main(int count, char **words) {
    if (count > 1 && strcmp(words[1], "--nothing") == 0) return 0;
    unsigned long limit = 5000;
    int next = 1, failed = 0, found = 0;
    if (count > 2 && strcmp(words[1], "-l") == 0) limit = strtoul(words[2], 0, 10), next = 3;
    figures = open("/sys/kernel/debug/latency", O_RDWR);
    need(figures >= 0, "/sys/kernel/debug/latency");
    int all = next == count;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int is_wanted = all;
        for (int word = next; word < count; word++) is_wanted |= strcmp(words[word], rows[i].name) == 0;
        if (!is_wanted) continue;
        found++;
        failed |= measure(&rows[i], limit);
    }
    need(all || found == count - next, "no row has one of these names");
    return failed;
}
