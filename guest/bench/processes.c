// Processes and threads: the cost of making one and of its end.
#include "bench.h"

enum { RESIDENT = 256 << 20 };

static void fork_and_wait(struct worker *w) {
    pid_t child = fork();
    NEED(w, child >= 0);
    if (child == 0) _exit(0);
    reap(w, child);
}

static void fork_exit(struct worker *w) {
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) fork_and_wait(w);
        end(w);
    }
}

// `leave` lies beside this program.
static void find_leave(struct worker *w, char path[256]) {
    ssize_t size = readlink("/proc/self/exe", path, 200);
    NEED(w, size > 0);
    path[size] = 0;
    strcpy(strrchr(path, '/') + 1, "leave");
    NEED(w, access(path, X_OK) == 0);
}

static char *const no_variables[] = {0};

static void fork_exec(struct worker *w) {
    char path[256], *arguments[] = {path, 0};
    find_leave(w, path);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            pid_t child = fork();
            NEED(w, child >= 0);
            if (child == 0) {
                execve(path, arguments, no_variables);
                _exit(127);
            }
            reap(w, child);
        }
        end(w);
    }
}

// A separate function, because a vfork's child must not change a caller's variables.
__attribute__((noinline)) static pid_t vfork_leave(char path[256], char **arguments) {
    pid_t child = vfork();
    if (child == 0) {
        execve(path, arguments, no_variables);
        _exit(127);
    }
    return child;
}

static void vfork_exec(struct worker *w) {
    char path[256], *arguments[] = {path, 0};
    find_leave(w, path);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            pid_t child = vfork_leave(path, arguments);
            NEED(w, child > 0);
            reap(w, child);
        }
        end(w);
    }
}

static void *leave_thread(void *argument) { return argument; }

static void create_and_join(struct worker *w) {
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            pthread_t thread;
            NEED(w, pthread_create(&thread, 0, leave_thread, 0) == 0);
            NEED(w, pthread_join(thread, 0) == 0);
        }
        end(w);
    }
}

// The workers share the memory, so that many workers need no more of it.
static void fork_large(struct worker *w, enum pages pages) {
    size_t size = RESIDENT / (size_t)w->shared->workers;
    char *heap = memory(w, size, pages);
    store_to_each_page(heap, size, 1);
    fork_exit(w);
    munmap(heap, size);
}

static void fork_large_any(struct worker *w) { fork_large(w, ANY); }

static void fork_large_small(struct worker *w) { fork_large(w, SMALL); }

const struct row rows[] = {
    {"fork-exit", PROCESSES, 30, fork_exit},
    {"fork-exec", PROCESSES, 15, fork_exec},
    {"vfork-exec", PROCESSES, 15, vfork_exec},
    {"thread", PROCESSES, 50, create_and_join},
    {"fork-256m", PROCESSES, 1, fork_large_any},
    {"fork-256m-4k", PROCESSES, 1, fork_large_small},
    {0},
};
