// One task runs, another waits: the cost of a hand-over.
#include "bench.h"
#include <linux/futex.h>
#include <sys/socket.h>
#include <sys/syscall.h>

enum { MOST_PROCESSES = 16 };

static void pass_on(int from, int to) {
    char byte;
    while (read(from, &byte, 1) == 1)
        if (write(to, &byte, 1) != 1) _exit(1);
    _exit(0);
}

// Measures the cost of passing the byte without a switch: through the worker's own pipe.
static uint64_t hop_alone(struct worker *w) {
    int own[2];
    char byte = 'b';
    uint64_t least = UINT64_MAX;
    NEED(w, pipe(own) == 0);
    for (int round = 0; round < 5; round++) {
        uint64_t start = now(w->shared);
        OPERATIONS(w, i) NEED(w, write(own[1], &byte, 1) == 1 && read(own[0], &byte, 1) == 1);
        uint64_t cost = now(w->shared) - start;
        if (cost < least) least = cost;
    }
    close(own[0]);
    close(own[1]);
    return least;
}

// Passes a byte round a ring of processes; each hop is a write, a switch and a read. The costs of
// write and read are subtracted.
static void ring(struct worker *w, int processes) {
    int pipes[MOST_PROCESSES][2];
    pid_t children[MOST_PROCESSES];
    uint64_t overhead = hop_alone(w);
    for (int i = 0; i < processes; i++) NEED(w, pipe(pipes[i]) == 0);
    // Member 0 is this process: it writes to pipe 0 and reads from the last.
    for (int i = 1; i < processes; i++) {
        children[i] = fork();
        NEED(w, children[i] >= 0);
        if (children[i] == 0) {
            for (int k = 0; k < processes; k++) {
                if (k != i) close(pipes[k][1]);
                if (k != i - 1) close(pipes[k][0]);
            }
            pass_on(pipes[i - 1][0], pipes[i][1]);
        }
    }
    for (int i = 0; i < processes; i++) {
        if (i != 0) close(pipes[i][1]);
        if (i != processes - 1) close(pipes[i][0]);
    }
    char byte = 'b';
    SAMPLES(w) {
        begin(w);
        for (long hop = 0; hop < w->operations; hop += processes)
            NEED(w, write(pipes[0][1], &byte, 1) == 1 && read(pipes[processes - 1][0], &byte, 1) == 1);
        end_without(w, overhead);
    }
    close(pipes[0][1]);
    for (int i = 1; i < processes; i++) reap(w, children[i]);
    close(pipes[processes - 1][0]);
}

static void switch_2(struct worker *w) { ring(w, 2); }

static void switch_16(struct worker *w) {
    w->operations = (w->operations + MOST_PROCESSES - 1) / MOST_PROCESSES * MOST_PROCESSES;
    ring(w, MOST_PROCESSES);
}

// `out` and `back` are this process's ends of two pipes; the child has the other ends.
static void round_trips(struct worker *w, int out, int back, pid_t child) {
    char byte = 'b';
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, write(out, &byte, 1) == 1 && read(back, &byte, 1) == 1);
        end(w);
    }
    close(out);
    reap(w, child);
}

static void pipe_round_trip(struct worker *w) {
    int out[2], back[2];
    NEED(w, pipe(out) == 0 && pipe(back) == 0);
    pid_t child = fork();
    NEED(w, child >= 0);
    if (child == 0) {
        close(out[1]);
        pass_on(out[0], back[1]);
    }
    close(out[0]);
    close(back[1]);
    round_trips(w, out[1], back[0], child);
    close(back[0]);
}

static void unix_round_trip(struct worker *w) {
    int ends[2];
    NEED(w, socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    pid_t child = fork();
    NEED(w, child >= 0);
    if (child == 0) {
        close(ends[0]);
        pass_on(ends[1], ends[1]);
    }
    close(ends[1]);
    round_trips(w, ends[0], ends[0], child);
}

struct table {
    _Atomic int turn;  // 0: ours, 1: theirs, 2: no more
};

static long futex(_Atomic int *word, int operation, int value) {
    return syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, 0, 0, 0);
}

static void hand_over(struct table *table, int to, int until) {
    table->turn = to;
    futex(&table->turn, FUTEX_WAKE, 1);
    while (table->turn == to && to != until) futex(&table->turn, FUTEX_WAIT, to);
}

static void *other_side(void *argument) {
    struct table *table = argument;
    while (table->turn == 0) futex(&table->turn, FUTEX_WAIT, 0);
    while (table->turn != 2) hand_over(table, 0, 2);
    return 0;
}

// Two threads with one word: each wakes the other and waits until the other wakes it.
static void futex_round_trip(struct worker *w) {
    struct table table = {0};
    pthread_t thread;
    NEED(w, pthread_create(&thread, 0, other_side, &table) == 0);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) hand_over(&table, 1, 2);
        end(w);
    }
    hand_over(&table, 2, 2);
    pthread_join(thread, 0);
}

const struct row rows[] = {
    {"switch-2", PROCESSES, 400, switch_2},
    {"switch-16", PROCESSES, 400, switch_16},
    {"pipe", PROCESSES, 150, pipe_round_trip},
    {"unix", PROCESSES, 150, unix_round_trip},
    {"futex-round-trip", PROCESSES, 150, futex_round_trip},
    {0},
};
