// Free memory in single pages: fills memory but for 6 MiB, then frees every other page of what it
// has, and runs a command meanwhile.
//   fragment COMMAND [ARGS]
// Exits with the command's status.

#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define LEFT (6ul << 20)

int main(int words, char **word) {
    struct sysinfo info;
    if (words < 2 || sysinfo(&info) < 0) {
        fprintf(stderr, "usage: fragment COMMAND [ARGS]\n");
        return 2;
    }
    size_t length = (info.freeram - LEFT) / (2 * PAGE) * (2 * PAGE);
    char *bytes = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes == MAP_FAILED || madvise(bytes, length, MADV_NOHUGEPAGE) < 0) {
        perror("mmap");
        return 2;
    }
    for (size_t at = 0; at < length; at += PAGE)
        bytes[at] = 1;
    for (size_t at = 0; at < length; at += 2 * PAGE)
        madvise(bytes + at, PAGE, MADV_DONTNEED);
    pid_t child = fork();
    if (child == 0) {
        execvp(word[1], word + 1);
        _exit(127);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) < 0) {
        perror(word[1]);
        return 2;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
