// Calls that programs make often, each alone: files, descriptors, time, waiting, files of /proc.
#include "bench.h"
#include "ring.h"
#include <dirent.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <termios.h>

// A row whose operation is one expression that has to be true.
#define CALL(name, set_up, condition)             \
    static void name(struct worker *w) {          \
        set_up;                                   \
        SAMPLES(w) {                              \
            begin(w);                             \
            OPERATIONS(w, i) NEED(w, condition);  \
            end(w);                               \
        }                                         \
    }

static char buffer[64 << 10];

static int some_file(struct worker *w) {
    char name[64];
    int fd = file(w, PAGE, name);
    unlink(name);
    return fd;
}

static void make_name(struct worker *w, const char *name) {
    int fd = open(name, O_CREAT | O_RDWR, 0600);
    NEED(w, fd >= 0 && close(fd) == 0);
}

static int read_whole(const char *path) {
    int fd = open(path, O_RDONLY), all = 0, got;
    while ((got = (int)read(fd, buffer, sizeof buffer)) > 0) all += got;
    return close(fd) == 0 && all > 0;
}

CALL(get_time, struct timespec t, clock_gettime(CLOCK_MONOTONIC, &t) == 0)
CALL(get_seconds, (void)0, time(0) != (time_t)-1)
CALL(get_cpu, (void)0, sched_getcpu() >= 0)
CALL(use, struct rusage u, getrusage(RUSAGE_SELF, &u) == 0)
CALL(mask, sigset_t s; sigemptyset(&s), sigprocmask(SIG_BLOCK, &s, 0) == 0)
CALL(random_page, (void)0, getrandom(buffer, PAGE, 0) == PAGE)
static void own_memory(struct worker *w) {
    static char from[sizeof buffer];
    struct iovec to = {buffer, sizeof buffer}, source = {from, sizeof from};
    memset(from, 1, sizeof from);
    memset(buffer, 2, sizeof buffer);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, process_vm_readv(getpid(), &to, 1, &source, 1, 0) == sizeof buffer);
        end(w);
    }
}

CALL(status_of_name, struct stat s; make_name(w, "/tmp/stat"), stat("/tmp/stat", &s) == 0)
CALL(status_of_file, struct stat s; int fd = some_file(w), fstat(fd, &s) == 0)
CALL(seek, int fd = some_file(w), lseek(fd, 0, SEEK_SET) == 0)
CALL(may_access, make_name(w, "/tmp/access"), access("/tmp/access", R_OK) == 0)
CALL(link_target, unlink("/tmp/link"); NEED(w, symlink("/tmp/target", "/tmp/link") == 0),
     readlink("/tmp/link", buffer, 100) == 11)
CALL(rename_file, make_name(w, "/tmp/one"), rename(i % 2 ? "/tmp/two" : "/tmp/one", i % 2 ? "/tmp/one" : "/tmp/two") == 0)
CALL(make_folder, (void)0, mkdir("/tmp/folder", 0700) == 0 && rmdir("/tmp/folder") == 0)
CALL(working_folder, (void)0, getcwd(buffer, 100) != 0)
CALL(duplicate, int fd = some_file(w), close(dup(fd)) == 0)
CALL(get_flags, int fd = some_file(w), fcntl(fd, F_GETFL) >= 0)
CALL(pipe_alone, int ends[2], pipe(ends) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0)
CALL(pair_alone, int ends[2], socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0)
CALL(event, int fd = eventfd(0, 0); uint64_t one = 1,
     write(fd, &one, sizeof one) == sizeof one && read(fd, &one, sizeof one) == sizeof one)

static void write_pieces(struct worker *w) {
    int fd = open("/dev/null", O_WRONLY);
    struct iovec pieces[2] = {{buffer, 10}, {buffer, 20}};
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, writev(fd, pieces, 2) == 30);
        end(w);
    }
    close(fd);
}

enum { WATCHED_PIPES = 16 };

static void pipes(struct worker *w, int ends[WATCHED_PIPES][2]) {
    for (int i = 0; i < WATCHED_PIPES; i++) NEED(w, pipe(ends[i]) == 0);
}

static void poll_pipes(struct worker *w) {
    int ends[WATCHED_PIPES][2];
    struct pollfd waits[WATCHED_PIPES];
    pipes(w, ends);
    for (int i = 0; i < WATCHED_PIPES; i++) waits[i] = (struct pollfd){ends[i][0], POLLIN, 0};
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, poll(waits, WATCHED_PIPES, 0) == 0);
        end(w);
    }
}

static void select_pipes(struct worker *w) {
    int ends[WATCHED_PIPES][2], most = 0;
    fd_set all;
    FD_ZERO(&all);
    pipes(w, ends);
    for (int i = 0; i < WATCHED_PIPES; i++) {
        FD_SET(ends[i][0], &all);
        if (ends[i][0] > most) most = ends[i][0];
    }
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            fd_set set = all;
            struct timeval none = {0, 0};
            NEED(w, select(most + 1, &set, 0, 0, &none) == 0);
        }
        end(w);
    }
}

static void wait_ready(struct worker *w) {
    int epoll = epoll_create1(0), fd = eventfd(1, 0);
    struct epoll_event event = {.events = EPOLLIN};
    NEED(w, epoll >= 0 && fd >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, epoll_wait(epoll, &event, 1, 0) == 1);
        end(w);
    }
}

static void sync_page(struct worker *w) {
    char *page = memory(w, PAGE, SMALL);
    page[0] = 1;
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, msync(page, PAGE, MS_ASYNC) == 0);
        end(w);
    }
}

static void forget_page(struct worker *w) {
    char *page = memory(w, PAGE, SMALL);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            *(volatile char *)page = 1;
            NEED(w, madvise(page, PAGE, MADV_DONTNEED) == 0);
        }
        end(w);
    }
}

static void meminfo(struct worker *w) {
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, read_whole("/proc/meminfo"));
        end(w);
    }
}

static void self_status(struct worker *w) {
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, read_whole("/proc/self/status"));
        end(w);
    }
}

static void self_stat(struct worker *w) {
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, read_whole("/proc/self/stat"));
        end(w);
    }
}

static void uring_nop(struct worker *w) {
    struct ring ring = open_ring(w);
    w->operations = (w->operations + BATCH - 1) / BATCH * BATCH;
    SAMPLES(w) {
        begin(w);
        for (long done = 0; done < w->operations; done += BATCH) {
            for (int i = 0; i < BATCH; i++) submit_one(&ring, (struct io_uring_sqe){.opcode = IORING_OP_NOP});
            enter(w, &ring, BATCH);
        }
        end(w);
    }
}

static void uring_readv(struct worker *w) {
    struct ring ring = open_ring(w);
    int fd = some_file(w);
    struct iovec piece = {buffer, PAGE};
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            submit_one(&ring, (struct io_uring_sqe){
                                  .opcode = IORING_OP_READV, .fd = fd, .addr = (uintptr_t)&piece, .len = 1});
            enter(w, &ring, 1);
        }
        end(w);
    }
}

// Calls that a program's start, an interpreter, a database and a shell make now and then.
CALL(read_at, int fd = some_file(w), pread(fd, buffer, PAGE, 0) == PAGE)
CALL(write_at, int fd = some_file(w), pwrite(fd, buffer, PAGE, 0) == PAGE)
CALL(no_terminal, int fd = some_file(w); struct termios t, ioctl(fd, TCGETS, &t) == -1 && errno == ENOTTY)
CALL(thread_name, (void)0, prctl(PR_SET_NAME, "bench", 0, 0, 0) == 0)
CALL(limit, struct rlimit l, prlimit(0, RLIMIT_NOFILE, 0, &l) == 0)
static struct { void *next; long offset; void *pending; } robust = {&robust, 0, 0};
CALL(list_of_locks, (void)0, syscall(SYS_set_robust_list, &robust, sizeof robust) == 0)
CALL(yield, (void)0, sched_yield() == 0)
CALL(own_group, (void)0, setpgid(0, 0) == 0)
CALL(group_of, (void)0, getpgid(0) > 0)
CALL(name_of_system, struct utsname u, uname(&u) == 0)
CALL(file_mask, (void)0, umask(022) != (mode_t)-1)
CALL(user, (void)0, syscall(SYS_getuid) == 0)
CALL(ask_for_process, pid_t self = getpid(), kill(self, 0) == 0)
CALL(sleep_until_past, struct timespec t = {0}, clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0) == 0)
CALL(status_at, struct statx s; make_name(w, "/tmp/statx"), statx(AT_FDCWD, "/tmp/statx", 0, STATX_BASIC_STATS, &s) == 0)
CALL(allocate, int fd = some_file(w), fallocate(fd, 0, 0, PAGE) == 0)
CALL(send_and_receive, int p[2]; NEED(w, socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0),
     send(p[0], buffer, 64, 0) == 64 && recv(p[1], buffer, 64, 0) == 64)

CALL(allowed_cpus, cpu_set_t set, sched_getaffinity(0, sizeof set, &set) == 0)
CALL(sync_data, int fd = some_file(w), fdatasync(fd) == 0)
// The worker leads its group, so it cannot have a new session; and its session has no terminal.
CALL(new_session, NEED(w, setpgid(0, 0) == 0), setsid() == -1 && errno == EPERM)
CALL(hang_up, NEED(w, open("/dev/tty", O_RDWR) == -1), syscall(SYS_vhangup) == 0)

static void send_message(struct worker *w) {
    int pair[2];
    struct iovec piece = {buffer, 64};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    NEED(w, socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) NEED(w, sendmsg(pair[0], &message, 0) == 64 && recvmsg(pair[1], &message, 0) == 64);
        end(w);
    }
}

// A stock Linux begins with its loopback device down.
static void loopback_up(struct worker *w) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct ifreq up = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    NEED(w, fd >= 0);
    ioctl(fd, SIOCSIFFLAGS, &up);
    close(fd);
}

static struct sockaddr_in local_name(struct worker *w, int fd) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof name;
    NEED(w, bind(fd, (void *)&name, length) == 0 && getsockname(fd, (void *)&name, &length) == 0);
    return name;
}

static int listening(struct worker *w, struct sockaddr_in *name) {
    loopback_up(w);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    *name = local_name(w, fd);
    NEED(w, listen(fd, 8) == 0);
    return fd;
}

static void connection(struct worker *w, int pair[2]) {
    struct sockaddr_in name;
    int server = listening(w, &name), on = 1;
    pair[0] = socket(AF_INET, SOCK_STREAM, 0);
    NEED(w, connect(pair[0], (void *)&name, sizeof name) == 0 && (pair[1] = accept(server, NULL, NULL)) >= 0);
    NEED(w, setsockopt(pair[0], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
    close(server);
}

// Moves `length` bytes over TCP; a send goes on while the receiver takes bytes.
static int tcp_moves(int pair[2], size_t length) {
    static char bytes[1 << 16];
    for (size_t sent = 0, received = 0; received < length;) {
        if (sent < length) {
            ssize_t count = send(pair[0], bytes, length - sent, MSG_DONTWAIT);
            if (count < 0)
                return 0;
            sent += count;
        }
        ssize_t count = recv(pair[1], bytes, length - received, 0);
        if (count <= 0)
            return 0;
        received += count;
    }
    return 1;
}

CALL(tcp_byte, int p[2]; connection(w, p), tcp_moves(p, 1))
CALL(tcp_bulk, int p[2]; connection(w, p), tcp_moves(p, 1 << 16))

static void tcp_connect(struct worker *w) {
    struct sockaddr_in name;
    int server = listening(w, &name);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            int client = socket(AF_INET, SOCK_STREAM, 0), served;
            NEED(w, connect(client, (void *)&name, sizeof name) == 0 && (served = accept(server, NULL, NULL)) >= 0);
            close(client);
            close(served);
        }
        end(w);
    }
}

static void udp_datagram(struct worker *w) {
    loopback_up(w);
    int server = socket(AF_INET, SOCK_DGRAM, 0), client = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in name = local_name(w, server);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            NEED(w, sendto(client, buffer, 64, 0, (void *)&name, sizeof name) == 64);
            NEED(w, recv(server, buffer, 64, 0) == 64);
        }
        end(w);
    }
}

static void send_file(struct worker *w) {
    int from = some_file(w), to = open("/dev/null", O_WRONLY);
    NEED(w, to >= 0);
    SAMPLES(w) {
        begin(w);
        OPERATIONS(w, i) {
            off_t at = 0;
            NEED(w, sendfile(to, from, &at, PAGE) == PAGE);
        }
        end(w);
    }
}

const struct row rows[] = {
    {"clock", THREADS, 500, get_time},
    {"time", THREADS, 500, get_seconds},
    {"getcpu", THREADS, 500, get_cpu},
    {"getrusage", THREADS, 500, use},
    {"sigprocmask", THREADS, 500, mask},
    {"getrandom-4k", THREADS, 20, random_page},
    {"process-vm-64k", PROCESSES, 20, own_memory},
    {"stat", THREADS, 200, status_of_name},
    {"fstat", THREADS, 500, status_of_file},
    {"lseek", THREADS, 500, seek},
    {"access", THREADS, 200, may_access},
    {"readlink", PROCESSES, 200, link_target},
    {"rename", PROCESSES, 100, rename_file},
    {"mkdir-rmdir", PROCESSES, 100, make_folder},
    {"getcwd", THREADS, 200, working_folder},
    {"dup-close", THREADS, 200, duplicate},
    {"fcntl", THREADS, 500, get_flags},
    {"pipe-close", THREADS, 50, pipe_alone},
    {"socketpair-close", THREADS, 50, pair_alone},
    {"eventfd", THREADS, 200, event},
    {"writev", THREADS, 200, write_pieces},
    {"poll-16", THREADS, 100, poll_pipes},
    {"select-16", THREADS, 100, select_pipes},
    {"epoll-wait", THREADS, 200, wait_ready},
    {"msync", THREADS, 200, sync_page},
    {"dontneed", THREADS, 100, forget_page},
    {"meminfo", THREADS, 10, meminfo},
    {"self-status", THREADS, 10, self_status},
    {"self-stat", THREADS, 10, self_stat},
    {"pread-4k", THREADS, 200, read_at},
    {"pwrite-4k", THREADS, 200, write_at},
    {"ioctl", THREADS, 500, no_terminal},
    {"prctl", THREADS, 500, thread_name},
    {"prlimit", THREADS, 500, limit},
    {"robust-list", THREADS, 500, list_of_locks},
    {"yield", THREADS, 500, yield},
    {"setpgid", PROCESSES, 200, own_group},
    {"getpgid", THREADS, 500, group_of},
    {"uname", THREADS, 500, name_of_system},
    {"umask", THREADS, 500, file_mask},
    {"getuid", THREADS, 500, user},
    {"kill-0", THREADS, 500, ask_for_process},
    {"sleep-past", THREADS, 500, sleep_until_past},
    {"statx", THREADS, 200, status_at},
    {"fallocate", THREADS, 200, allocate},
    {"send-recv", THREADS, 200, send_and_receive},
    {"sendfile", THREADS, 200, send_file},
    {"send-message", THREADS, 200, send_message},
    {"tcp-byte", THREADS, 200, tcp_byte},
    {"tcp-64k", THREADS, 20, tcp_bulk},
    {"tcp-connect", PROCESSES, 50, tcp_connect},
    {"udp", THREADS, 200, udp_datagram},
    {"getaffinity", THREADS, 500, allowed_cpus},
    {"fdatasync", THREADS, 200, sync_data},
    {"setsid", PROCESSES, 200, new_session},
    {"vhangup", PROCESSES, 200, hang_up},
    {"uring-nop", PROCESSES, 320, uring_nop},
    {"uring-readv", PROCESSES, 50, uring_readv},
    {0},
};
