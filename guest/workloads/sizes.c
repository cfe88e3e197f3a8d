// Sizes and counts that a program chooses, with little memory. Each scenario once made the kernel
// panic, because a list of that size was allocated in code that must not fail. Now every call
// returns an error, or a process is killed; the kernel continues.
//
//   freehold run -m 48M -- sizes forks | signals | locks [NUMBER] | groups | threads | areas
//
// Prints "sizes: SCENARIO NUMBER" at the end, the number of objects that it got.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GROUPS = 65536 };

static long wanted = 200000;
static pid_t scenario_process;

static void need(int kept, const char *what) {
    if (kept) return;
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

// The parent checks the state after a child is killed because memory is short. The killer does not
// choose the parent.
static long in_child(long (*scenario)(void)) {
    int results[2];
    need(pipe(results) == 0, "pipe");
    pid_t child = fork();
    need(child >= 0, "fork");
    if (child == 0) {
        int fd = open("/proc/self/oom_score_adj", O_WRONLY);
        need(fd >= 0 && write(fd, "1000", 4) == 4, "oom_score_adj");
        close(fd);
        scenario_process = getpid();
        long got = scenario();
        need(write(results[1], &got, sizeof got) == sizeof got, "write");
        _exit(0);
    }
    close(results[1]);
    long got = -1;
    (void)!read(results[0], &got, sizeof got);
    int status;
    need(waitpid(child, &status, 0) == child, "waitpid");
    need(status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL), "the scenario's end");
    return got;
}

// Body of a child: waits for the end of the scenario's process, which may have been killed already.
static void stay(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == scenario_process) pause();
    _exit(0);
}

// Makes children without waiting for them, until there are no more.
static long forks(void) {
    long made = 0;
    while (made < 20000) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        if (child < 0) break;
        made++;
    }
    return made;
}

// Makes processes that wait, each in a group of its own, and sends signals to all of them while
// memory is full.
static long sleepers(void) {
    long made = 0;
    for (; made < 3000; made++) {
        pid_t child = fork();
        if (child < 0) break;
        if (child == 0) {
            if (made & 1) setpgid(0, 0);
            stay();
        }
    }
    // Takes the rest of memory, except a little for the calls.
    for (size_t size = 1 << 20; size >= 4096; size /= 2)
        for (char *at; (at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) != MAP_FAILED;) {
            unsigned char there = 0;
            if (mincore(at, 4096, &there) != 0) break;
            memset(at, 1, size);
            DIR *all = opendir("/proc");
            long seen = 0;
            if (all) {
                while (readdir(all)) seen++;
                closedir(all);
            }
            kill(-1, SIGCONT);
            getpriority(PRIO_USER, 0);
            setpriority(PRIO_PGRP, 0, 1);
            if (seen && seen < made / 2) break;
        }
    return made;
}

static long locks(void) {
    int fd = memfd_create("locks", 0);
    if (fd < 0) return 0;
    long set = 0;
    for (; set < wanted; set++) {
        struct flock lock = {.l_type = F_WRLCK, .l_start = 2 * set, .l_len = 1};
        if (fcntl(fd, F_SETLK, &lock) != 0) break;
    }
    // The whole list is read in small pieces: no entry is missing.
    FILE *list = fopen("/proc/locks", "r");
    long lines = 0;
    if (list) {
        for (int byte; (byte = getc(list)) != EOF;) lines += byte == '\n';
        fclose(list);
    }
    if (lines != set) {
        printf("%ld locks, %ld lines\n", set, lines);
        return -2;
    }
    struct flock all = {.l_type = F_UNLCK};
    if (fcntl(fd, F_SETLK, &all) != 0) return -3;
    return set;
}

static long groups(void) {
    gid_t *list = malloc(GROUPS * sizeof *list);
    if (!list) return 0;
    for (int i = 0; i < GROUPS; i++) list[i] = GROUPS - i;
    if (setgroups(GROUPS, list) != 0) return 0;
    long made = 0;
    // Every child keeps the groups, and changes all other credentials.
    for (; made < 400; made++) {
        pid_t child = fork();
        if (child < 0) break;
        if (child == 0) {
            struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
            struct __user_cap_data_struct sets[2];
            for (int i = 0; i < 3; i++) {
                (void)!setresgid(i, i, 0);
                (void)!setfsuid(i);
                syscall(SYS_capget, &header, sets);
                syscall(SYS_capset, &header, sets);
            }
            if (made % 40 == 0) execl("/proc/self/exe", "sizes", "nothing", NULL);
            stay();
        }
    }
    int count = getgroups(GROUPS, list);
    for (int i = 1; i < count; i++)
        if (list[i - 1] > list[i]) return -2;
    return made;
}

// Makes as many areas as allowed, then children that copy them, then removes all by one call.
static long areas(void) {
    size_t page = 4096, count = 60000;
    char *at = mmap(0, count * page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return 0;
    for (size_t i = 0; i < count; i += 2)
        if (mprotect(at + i * page, page, PROT_NONE) != 0) break;
    long made = 0;
    for (; made < 50; made++) {
        pid_t child = fork();
        if (child < 0) break;
        if (child == 0) stay();
    }
    if (munmap(at, count * page) != 0) return -2;
    return made;
}

static void *wait_for_the_end(void *unused) {
    pause();
    return unused;
}

static long threads(void) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 16384);
    pthread_attr_setguardsize(&attributes, 0);
    long made = 0;
    for (pthread_t thread; made < 8000 && pthread_create(&thread, &attributes, wait_for_the_end, 0) == 0;) made++;
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0) return -2;
    DIR *all = opendir("/proc/self/task");
    long seen = 0;
    if (all) {
        while (readdir(all)) seen++;
        closedir(all);
        if (seen != made + 3) return -3;
    }
    return made;
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    if (!strcmp(what, "nothing")) return 0;
    long (*scenario)(void) = !strcmp(what, "forks")     ? forks
                             : !strcmp(what, "signals") ? sleepers
                             : !strcmp(what, "locks")   ? locks
                             : !strcmp(what, "groups")  ? groups
                             : !strcmp(what, "threads") ? threads
                             : !strcmp(what, "areas")   ? areas
                                                        : 0;
    if (!scenario) return 2;
    if (count > 2) wanted = atol(arguments[2]);
    printf("sizes: %s %ld\n", what, in_child(scenario));
    return 0;
}
