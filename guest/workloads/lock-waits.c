// Processes that wait for locks of one file: each holds one byte and waits for the byte of the
// process before it, then for one flock. Prints the microseconds until all processes waited, and
// until all were served: with --icount, thousands of instructions.
//
//   freehold run --icount -- lock-waits COUNT
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void need(int kept, const char *what) {
    if (kept) return;
    perror(what);
    _exit(1);
}

static int record(int file, int command, short kind, long byte) {
    struct flock lock = {.l_type = kind, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(file, command, &lock);
}

static long long microseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000ll + t.tv_nsec / 1000;
}

// Sets the lock that all wait for; the children tell on `told` before they wait.
static void child(int number, int file, int told) {
    int own = open("/tmp/flocked", O_RDWR);
    need(own >= 0 && record(file, F_SETLK, F_WRLCK, number) == 0, "lock");
    need(write(told, "x", 1) == 1, "write");
    need(record(file, F_SETLKW, F_WRLCK, number - 1) == 0, "record lock");
    need(record(file, F_SETLK, F_UNLCK, number - 1) == 0 && record(file, F_SETLK, F_UNLCK, number) == 0, "unlock");
    need(flock(own, LOCK_EX) == 0, "flock");
    _exit(0);
}

int main(int words, char **word) {
    int count = words > 1 ? atoi(word[1]) : 100, told[2], status;
    int file = open("/tmp/locked", O_RDWR | O_CREAT, 0600), own = open("/tmp/flocked", O_RDWR | O_CREAT, 0600);
    need(file >= 0 && own >= 0 && pipe(told) == 0, "files");
    need(record(file, F_SETLK, F_WRLCK, 0) == 0 && flock(own, LOCK_EX) == 0, "lock");
    long long begun = microseconds();
    for (int number = 1; number <= count; number++) {
        char byte;
        pid_t pid = fork();
        need(pid >= 0, "fork");
        if (pid == 0) child(number, file, told[1]);
        need(read(told[0], &byte, 1) == 1, "read");
    }
    need(record(file, F_SETLK, F_UNLCK, 0) == 0, "unlock");
    // When all bytes are free, the last process of the chain has had its record lock.
    need(record(file, F_SETLKW, F_WRLCK, count) == 0 && flock(own, LOCK_UN) == 0, "unlock");
    for (int number = 1; number <= count; number++) need(wait(&status) > 0 && status == 0, "a child");
    printf("%lld\n", microseconds() - begun);
    return 0;
}
