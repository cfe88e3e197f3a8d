// Runs benchmark rows one after the other, each in a new process of its program. The programs are
// in the folder of this one.
//
//   sequence SAMPLES DIVISOR tsc|monotonic|watched WORKERS[,WORKERS] PROGRAM/ROW...
//
// Adds to the rows' own lines: "begin ROW WORKERS" before each, "fail ROW WORKERS TEXT" for a row
// that was killed or could not start, and "done ROWS" at the end. The status is 1 when a row
// failed.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int failed;

static void fail(const char *row, const char *workers, const char *what, int number) {
    printf("fail %s %s %s %d\n", row, workers, what, number);
    failed = 1;
}

static void run(const char *folder, char *program, char *row, char **common, char *workers) {
    char path[256];
    snprintf(path, sizeof path, "%s%s", folder, program);
    char *arguments[] = {program, row, common[0], common[1], common[2], workers, 0};
    int status;
    printf("begin %s %s\n", row, workers);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        execv(path, arguments);
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        fail(row, workers, "no process, errno", errno);
    else if (WIFSIGNALED(status))
        fail(row, workers, "killed by signal", WTERMSIG(status));
    else if (WEXITSTATUS(status) != 0)
        fail(row, workers, "exit status", WEXITSTATUS(status));
}

int main(int argc, char **argv) {
    if (argc < 6) {
        fprintf(stderr, "usage: %s SAMPLES DIVISOR tsc|monotonic|watched WORKERS[,WORKERS] PROGRAM/ROW...\n", argv[0]);
        return 2;
    }
    char folder[128];
    const char *slash = strrchr(argv[0], '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash + 1 - argv[0]) : 0, argv[0]);
    int done = 0;
    for (int i = 5; i < argc; i++) {
        char *row = strchr(argv[i], '/');
        if (!row) {
            fprintf(stderr, "%s: %s is not PROGRAM/ROW\n", argv[0], argv[i]);
            return 2;
        }
        *row++ = 0;
        char counts[32];
        snprintf(counts, sizeof counts, "%s", argv[4]);
        for (char *workers = strtok(counts, ","); workers; workers = strtok(0, ",")) {
            run(folder, argv[i], row, argv + 1, workers);
            done++;
        }
    }
    printf("done %d\n", done);
    return failed;
}
