// Uses each disk named as an argument twice, with O_DIRECT, and prints the result of each request:
//   /dev/vda: read ok, read EIO, write EIO, sync EIO
// Page 2 of a disk holds the byte 0x5a, as its server sees to. An argument N= before a disk sets
// its time limit to N ms.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGE = 4096 };

static const char *ended(ssize_t count, const char *buffer) {
    if (count < 0)
        return strerrorname_np(errno);
    if (count != PAGE)
        return "short";
    for (int i = 0; buffer && i < PAGE; i++)
        if (buffer[i] != 0x5a)
            return "wrong";
    return "ok";
}

static void limit(const char *disk, const char *milliseconds) {
    char path[100];
    snprintf(path, sizeof path, "/sys/block/%s/queue/io_timeout", disk + strlen("/dev/"));
    int fd = open(path, O_WRONLY);
    if (fd < 0 || write(fd, milliseconds, strlen(milliseconds)) < 0)
        perror(path);
    close(fd);
}

int main(int count, char **words) {
    char *buffer = aligned_alloc(PAGE, PAGE);
    const char *milliseconds = NULL;
    for (int i = 1; i < count; i++) {
        char *end = strchr(words[i], '=');
        if (end) {
            *end = 0;
            milliseconds = words[i];
            continue;
        }
        if (milliseconds)
            limit(words[i], milliseconds);
        milliseconds = NULL;
        int fd = open(words[i], O_RDWR | O_DIRECT);
        if (fd < 0) {
            printf("%s: open %s\n", words[i], strerrorname_np(errno));
            continue;
        }
        const char *first = ended(pread(fd, buffer, PAGE, 2 * PAGE), buffer);
        const char *second = ended(pread(fd, buffer, PAGE, 2 * PAGE), buffer);
        memset(buffer, 0x33, PAGE);
        const char *third = ended(pwrite(fd, buffer, PAGE, 3 * PAGE), NULL);
        const char *fourth = fsync(fd) ? strerrorname_np(errno) : "ok";
        printf("%s: read %s, read %s, write %s, sync %s\n", words[i], first, second, third, fourth);
        fflush(stdout);
        close(fd);
    }
    return 0;
}
