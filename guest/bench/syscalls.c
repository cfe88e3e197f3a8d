// Calls with hardly any work, and signals: the cost of entering and leaving the kernel.
#include "bench.h"
#include <linux/futex.h>
#include <sys/syscall.h>

static void null_call(struct worker *w) {
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) syscall(SYS_getppid);
        end(w);
    }
}

static volatile sig_atomic_t caught;

static void catch(int number) { caught += number != 0; }

static void install(struct worker *w) {
    struct sigaction action = {.sa_handler = catch};
    NEED(w, sigaction(SIGUSR1, &action, 0) == 0);
}

static void install_handler(struct worker *w) {
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) install(w);
        end(w);
    }
}

static void deliver(struct worker *w) {
    long process = getpid(), thread = syscall(SYS_gettid);
    install(w);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) syscall(SYS_tgkill, process, thread, SIGUSR1);
        end(w);
    }
    NEED(w, caught > 0);
}

static void wake_nobody(struct worker *w) {
    int word = 0;
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0) == 0);
        end(w);
    }
}

const struct row rows[] = {
    {"null-call", THREADS, 2000, null_call},
    {"sigaction", THREADS, 1000, install_handler},
    {"signal", THREADS, 500, deliver},
    {"futex-wake", THREADS, 1000, wake_nobody},
    {0},
};
