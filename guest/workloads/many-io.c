// Many threads, each with one O_DIRECT transfer of a disk after another: no transfer may fail.
//   many-io THREADS KIB ROUNDS read|write|kill DISK...
// The threads take the disks in turn. Prints "N transfers, M failed", and the last error. With
// "kill" a child makes the transfers and is killed while most of its threads wait. The transfers
// would take a minute; the child must end within ten seconds, since the host may be busy.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static size_t length;
static int rounds, writes, last_error, deaf;
static atomic_int transfers, failed;

struct job {
    pthread_t thread;
    const char *disk;
    int number;
};

static void *work(void *argument) {
    struct job *job = argument;
    int fd = open(job->disk, (writes ? O_RDWR : O_RDONLY) | O_DIRECT);
    char *bytes = aligned_alloc(4096, length);
    if (fd < 0 || !bytes) {
        perror(job->disk);
        exit(2);
    }
    memset(bytes, 1 + job->number % 255, length);
    for (int round = 0; round < rounds; round++) {
        off_t at = (off_t)((job->number * 7 + round) % 16) * (off_t)length;
        ssize_t count = writes ? pwrite(fd, bytes, length, at) : pread(fd, bytes, length, at);
        atomic_fetch_add(&transfers, 1);
        if (count != (ssize_t)length) {
            last_error = count < 0 ? errno : 0;
            atomic_fetch_add(&failed, 1);
        }
    }
    free(bytes);
    close(fd);
    return NULL;
}

static void load(int threads, char **disks, int count) {
    struct job *jobs = calloc(threads, sizeof *jobs);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    for (int i = 0; i < threads; i++) {
        jobs[i] = (struct job){.disk = disks[i % count], .number = i};
        if (pthread_create(&jobs[i].thread, &small, work, &jobs[i])) {
            perror("pthread_create");
            exit(2);
        }
    }
    for (int i = 0; i < threads; i++)
        pthread_join(jobs[i].thread, NULL);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int count, char **words) {
    if (count < 6)
        return 2;
    int threads = atoi(words[1]), kills = !strcmp(words[4], "kill");
    length = (size_t)atoi(words[2]) << 10;
    rounds = atoi(words[3]);
    writes = !strcmp(words[4], "write");
    if (kills) {
        pid_t child = fork();
        if (child == 0) {
            load(threads, words + 5, count - 5);
            _exit(0);
        }
        sleep(1);
        double before = now();
        kill(child, SIGKILL);
        int status;
        waitpid(child, &status, 0);
        double took = now() - before;
        deaf = !WIFSIGNALED(status) || took >= 10;
        printf("%s\n", deaf ? "deaf" : "killed at once");
        fprintf(stderr, "%.3f s\n", took);
        // After the kill, the disk must serve other processes as before.
        rounds = 1;
        load(2, words + 5, count - 5);
    } else {
        load(threads, words + 5, count - 5);
    }
    printf("%d transfers, %d failed\n", transfers, failed);
    if (failed)
        printf("the last: %s\n", last_error ? strerrorname_np(last_error) : "short");
    return failed != 0 || deaf;
}
