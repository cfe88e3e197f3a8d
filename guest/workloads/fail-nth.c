// Runs a command whose n-th allocation in the kernel fails, for n from FROM to TO. The child writes
// /proc/self/fail-nth before it executes the command, or before a scenario of this program. The
// command may fail in any way, or be killed. The kernel must live, and have as much free memory at
// the end as at the beginning.
//
//   freehold run -- fail-nth [-s STEP] FROM TO -- COMMAND [ARGUMENT...]
//   freehold run -- fail-nth [-s STEP] FROM TO SCENARIO
//
// Five runs in a row without a failure end the series: the command allocates less often. Prints one
// line: how many runs, how many of them saw a failure, how they ended, and the change of MemFree
// and of the kernel's heap in KiB. Status 1 if memory is lost, processes are left, or no
// allocation failed.
#define _GNU_SOURCE
#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <linux/fanotify.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/rseq.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/filter.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/seccomp.h>
#include <linux/sock_diag.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

// KiB that caches, slabs and per-CPU lists may keep after a series.
enum { KEPT = 1024 };
// Waits of 20 ms after which a run is ended: 20 s.
enum { PATIENCE = 1000 };

static void die(const char *what) {
    printf("fail-nth: %s: %s\n", what, strerror(errno));
    exit(2);
}

static int put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    if (fd < 0) return -1;
    int kept = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    close(fd);
    return kept ? 0 : -1;
}

static long meminfo(const char *name) {
    FILE *file = fopen("/proc/meminfo", "r");
    if (!file) die("/proc/meminfo");
    char line[128];
    long value = -1;
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, name, strlen(name))) value = atol(line + strlen(name) + 1);
    fclose(file);
    return value;
}

static int processes(void) {
    DIR *proc = opendir("/proc");
    if (!proc) die("/proc");
    int count = 0;
    for (struct dirent *entry; (entry = readdir(proc));) count += entry->d_name[0] >= '1' && entry->d_name[0] <= '9';
    closedir(proc);
    return count;
}

// A POSIX message queue, a helper process that a socket notifies of its messages, and a wait for
// two futex words.
static void queue_of_posix(void) {
    syscall(SYS_mq_unlink, "failing");
    int queue = syscall(SYS_mq_open, "failing", O_RDWR | O_CREAT | O_NONBLOCK, 0600, 0);
    char text[8192] = "text";
    (void)!syscall(SYS_mq_timedsend, queue, text, 100, 5, 0);
    (void)!syscall(SYS_mq_timedreceive, queue, text, sizeof text, 0, 0);
    int helper = socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK, 0);
    struct sigevent event = {.sigev_notify = SIGEV_THREAD, .sigev_signo = helper, .sigev_value.sival_ptr = text};
    syscall(SYS_mq_notify, queue, &event);
    (void)!syscall(SYS_mq_timedsend, queue, text, 100, 5, 0);
    (void)!recv(helper, text, 32, 0);
    syscall(SYS_mq_unlink, "failing");
    close(helper);
    close(queue);
    static unsigned words[2];
    struct { unsigned long value, word, flags; } waits[2] = {{0, (unsigned long)&words[0], 130}, {0, (unsigned long)&words[1], 130}};
    syscall(449 /* futex_waitv */, waits, 2, 0, &(struct timespec){0, 0}, CLOCK_MONOTONIC);
    syscall(SYS_ioprio_set, 1, 0, 2 << 13 | 3);
}

// Locks with priority inheritance: one of the parent, with a short wait, and one of its own.
static void locks(void) {
    static unsigned lock, condition, own;
    const struct timespec past = {1, 0};
    lock = getppid();
    syscall(SYS_futex, &lock, 6 /* FUTEX_LOCK_PI */, 0, &past, 0, 0);
    syscall(SYS_futex, &condition, 11 /* FUTEX_WAIT_REQUEUE_PI */, 0, &past, &lock, 0);
    syscall(SYS_futex, &condition, 12 /* FUTEX_CMP_REQUEUE_PI */, 1, 9L, &lock, 0);
    syscall(SYS_futex, &own, 8 /* FUTEX_TRYLOCK_PI */, 0, 0, 0, 0);
    syscall(SYS_futex, &own, 7 /* FUTEX_UNLOCK_PI */, 0, 0, 0, 0);
}

// System V objects: all are removed, even after a failure.
static void objects(void) {
    int segment = shmget(IPC_PRIVATE, 8192, 0600);
    char *at = segment < 0 ? (void *)-1 : shmat(segment, 0, 0);
    if (at != (void *)-1) {
        at[0] = 1;
        (void)!munmap(at + 4096, 4096);
        shmdt(at);
    }
    int set = semget(77, 3, IPC_CREAT | 0600), queue = msgget(77, IPC_CREAT | 0600);
    struct sembuf up = {1, 1, SEM_UNDO}, down = {2, -1, SEM_UNDO};
    (void)!semop(set, &up, 1);
    (void)!semtimedop(set, &down, 1, &(struct timespec){0, 1000000});
    struct { long type; char text[100]; } message = {1, "text"};
    (void)!msgsnd(queue, &message, 100, IPC_NOWAIT);
    (void)!msgsnd(queue, &message, 100, IPC_NOWAIT);
    (void)!msgrcv(queue, &message, 100, 1, IPC_NOWAIT);
    queue_of_posix();
    shmctl(segment, IPC_RMID, 0);
    semctl(set, 0, IPC_RMID);
    msgctl(queue, IPC_RMID, 0);
}

// A disk whose bytes are all 7, read with O_DIRECT and through the cache, in whole pages and
// unaligned. If a read returns any other byte, the process raises a signal.
static void disk(void) {
    static char bytes[1 << 17] __attribute__((aligned(4096)));
    int direct = open("/dev/vda", O_RDWR | O_DIRECT), cached = open("/dev/vda", O_RDWR);
    const struct { long start, length; } parts[] = {{0, 1 << 16}, {512, 5 * 4096}, {1024, 512}, {4096, 4096 + 1536}};
    for (int i = 0; direct >= 0 && cached >= 0 && i < 4; i++) {
        for (int way = 0; way < 2; way++) {
            memset(bytes, 1, sizeof bytes);
            long moved = pread(way ? cached : direct, bytes + parts[i].start, parts[i].length, i << 17);
            for (long at = 0; at < moved; at++)
                if (bytes[parts[i].start + at] != 7) abort();
        }
        memset(bytes, 7, sizeof bytes);
        (void)!pwrite(direct, bytes + parts[i].start, parts[i].length, i << 17);
        (void)!pwrite(cached, bytes, parts[i].length, i << 17);
        (void)!fdatasync(cached);
        (void)!posix_fadvise(cached, 0, 0, POSIX_FADV_DONTNEED);
    }
    close(direct);
    close(cached);
}

// A TCP connection, a datagram, and the lists of sockets.
static void network(void) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof name;
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int one = socket(AF_INET, SOCK_DGRAM, 0);
    if (listener >= 0 && client >= 0 && listen(listener, 4) == 0 && getsockname(listener, (void *)&name, &length) == 0 &&
        (connect(client, (void *)&name, length) == 0 || errno == EINPROGRESS)) {
        int server = accept4(listener, 0, 0, SOCK_NONBLOCK);
        (void)!send(client, "x", 1, MSG_DONTWAIT);
        if (server >= 0) close(server);
    }
    if (one >= 0) (void)!sendto(one, "x", 1, MSG_DONTWAIT, (void *)&name, length);
    static const char *const lists[] = {"/proc/net/tcp", "/proc/net/udp", "/proc/net/unix", "/proc/net/sockstat"};
    for (unsigned i = 0; i < sizeof lists / sizeof *lists; i++) {
        int list = open(lists[i], O_RDONLY);
        static char text[16384];
        if (list < 0) continue;
        (void)!read(list, text, sizeof text);
        close(list);
    }
    struct ifreq lo = {.ifr_name = "lo"};
    if (one >= 0) (void)!ioctl(one, SIOCGIFADDR, &lo);
    close(listener);
    close(client);
    int kernel = socket(AF_NETLINK, SOCK_RAW, 0);
    struct {
        struct nlmsghdr head;
        struct rtgenmsg what;
    } all = {{sizeof all, RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, 1, 0}, {0}};
    for (int i = 0; kernel >= 0 && i < 2; i++) {
        static char answer[4096];
        all.head.nlmsg_type = i ? RTM_GETROUTE : RTM_GETLINK;
        (void)!send(kernel, &all, sizeof all, 0);
        while (recv(kernel, answer, sizeof answer, MSG_DONTWAIT) > 0) {
        }
    }
    close(kernel);
    int lister = socket(AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG);
    struct {
        struct nlmsghdr head;
        struct inet_diag_req_v2 what;
    } sockets = {{sizeof sockets, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, 1, 0}, {AF_INET, IPPROTO_TCP, 0xff, 0, ~0u, {0}}};
    if (lister >= 0) (void)!send(lister, &sockets, sizeof sockets, 0);
    close(lister);
    // An echo request to itself: two packets, each for two sockets.
    int raw = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP), raw6 = socket(AF_INET6, SOCK_RAW, IPPROTO_ICMPV6);
    char echo[64] = {8, 0, 0xf7, 0xff}, answer[128];
    struct sock_filter some = BPF_STMT(BPF_RET | BPF_K, 50);
    struct sock_fprog filter = {1, &some};
    if (raw >= 0) setsockopt(raw, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter);
    name.sin_port = 0;
    if (raw >= 0) (void)!sendto(raw, echo, sizeof echo, MSG_DONTWAIT, (void *)&name, sizeof name);
    while (raw >= 0 && recv(raw, answer, sizeof answer, MSG_DONTWAIT) > 0) {
    }
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    echo[0] = (char)128;
    if (raw6 >= 0) (void)!sendto(raw6, echo, sizeof echo, MSG_DONTWAIT, (void *)&six, sizeof six);
    if (one >= 0 && raw >= 0) (void)!sendto(one, "x", 1, MSG_DONTWAIT, (void *)&name, sizeof name);
    // The same, and a frame of a program, for packet sockets.
    int frames = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
    struct sockaddr_ll link = {.sll_family = AF_PACKET, .sll_ifindex = 1, .sll_protocol = htons(ETH_P_IPV6), .sll_halen = 6};
    if (frames >= 0) bind(frames, (void *)&link, sizeof link);
    if (raw6 >= 0) (void)!sendto(raw6, echo, sizeof echo, MSG_DONTWAIT, (void *)&six, sizeof six);
    if (frames >= 0) (void)!sendto(frames, answer, 64, MSG_DONTWAIT, (void *)&link, sizeof link);
    while (frames >= 0 && recv(frames, answer, sizeof answer, MSG_DONTWAIT) > 0) {
    }
    // Rings: frames that arrive, and one to be sent.
    struct tpacket_req3 ring = {8192, 2, 2048, 8, 60000, 0, 0};
    int version = TPACKET_V3;
    if (frames >= 0) setsockopt(frames, SOL_PACKET, PACKET_VERSION, &version, sizeof version);
    if (frames >= 0) setsockopt(frames, SOL_PACKET, PACKET_RX_RING, &ring, sizeof ring);
    ring.tp_retire_blk_tov = 0;
    if (frames >= 0) setsockopt(frames, SOL_PACKET, PACKET_TX_RING, &ring, sizeof ring);
    char *shared = frames >= 0 ? mmap(NULL, 32768, PROT_READ | PROT_WRITE, MAP_SHARED, frames, 0) : MAP_FAILED;
    if (shared != MAP_FAILED) {
        struct tpacket3_hdr *slot = (void *)(shared + 16384);
        slot->tp_len = 100;
        slot->tp_status = TP_STATUS_SEND_REQUEST;
        (void)!sendto(frames, NULL, 0, MSG_DONTWAIT, (void *)&link, sizeof link);
        munmap(shared, 32768);
    }
    if (raw6 >= 0) (void)!sendto(raw6, echo, sizeof echo, MSG_DONTWAIT, (void *)&six, sizeof six);
    close(frames);
    close(raw);
    close(raw6);
    close(one);
}

// Everything that has a list, a queue or a table of its own in the kernel.
static void calls(void) {
    // Signals about files are sent only for the allocations that they need.
    signal(SIGIO, SIG_IGN);
    int pair[2], ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0) {
        char control[CMSG_SPACE(sizeof(int))] = {0};
        struct iovec bytes = {"x", 1};
        struct msghdr message = {
            .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &pair[1], sizeof(int));
        (void)!sendmsg(pair[0], &message, MSG_DONTWAIT);
        (void)!send(pair[0], control, sizeof control, MSG_DONTWAIT);
        char sink[256];
        (void)!recv(pair[1], sink, sizeof sink, MSG_DONTWAIT);
        close(pair[0]);
        close(pair[1]);
    }
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "/tmp/fail-nth.socket"};
    unlink(name.sun_path);
    if (listener >= 0 && bind(listener, (void *)&name, sizeof name) == 0 && listen(listener, 4) == 0) {
        int client = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (client >= 0 && connect(client, (void *)&name, sizeof name) == 0) {
            int server = accept4(listener, 0, 0, SOCK_NONBLOCK);
            if (server >= 0) close(server);
        }
        if (client >= 0) close(client);
    }
    if (listener >= 0) close(listener);
    unlink(name.sun_path);
    network();
    if (pipe(ends) == 0) {
        (void)!fcntl(ends[1], F_SETPIPE_SZ, 1 << 18);
        static char block[65536];
        (void)!fcntl(ends[1], F_SETFL, O_NONBLOCK);
        // A pipe's reader that gets a signal when bytes arrive.
        (void)!fcntl(ends[0], F_SETOWN, getpid());
        (void)!fcntl(ends[0], F_SETSIG, SIGURG);
        (void)!fcntl(ends[0], F_SETFL, O_ASYNC);
        (void)!write(ends[1], block, sizeof block);
        struct iovec page = {block, 4096};
        (void)!vmsplice(ends[1], &page, 1, SPLICE_F_NONBLOCK);
        (void)!read(ends[0], block, sizeof block);
        close(ends[0]);
        close(ends[1]);
    }
    objects();
    locks();
    int own = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (own >= 0) close(own);
    int poller = epoll_create1(0), event = eventfd(0, EFD_NONBLOCK);
    struct epoll_event wanted = {.events = EPOLLIN};
    if (poller >= 0 && event >= 0 && epoll_ctl(poller, EPOLL_CTL_ADD, event, &wanted) == 0) {
        (void)!write(event, &(uint64_t){1}, 8);
        (void)!epoll_wait(poller, &wanted, 1, 0);
    }
    struct pollfd polls[64];
    for (int i = 0; i < 64; i++) polls[i] = (struct pollfd){.fd = event, .events = POLLIN};
    (void)!poll(polls, 64, 0);
    if (poller >= 0) close(poller);
    if (event >= 0) close(event);
    int timer = timerfd_create(CLOCK_MONOTONIC, 0);
    if (timer >= 0) {
        (void)!timerfd_settime(timer, 0, &(struct itimerspec){.it_value = {100, 0}}, 0);
        close(timer);
    }
    mkdir("/tmp/fail-nth", 0700);
    int watcher = inotify_init1(IN_NONBLOCK);
    int watch = inotify_add_watch(watcher, "/tmp/fail-nth", IN_ALL_EVENTS);
    int group = (int)syscall(SYS_fanotify_init, FAN_NONBLOCK, O_RDONLY);
    (void)!syscall(SYS_fanotify_mark, group, FAN_MARK_ADD, FAN_OPEN | FAN_MODIFY | FAN_EVENT_ON_CHILD | FAN_ONDIR, AT_FDCWD, "/tmp/fail-nth");
    int names = (int)syscall(SYS_fanotify_init, FAN_NONBLOCK | FAN_REPORT_DFID_NAME, O_RDONLY);
    (void)!syscall(SYS_fanotify_mark, names, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, FAN_CREATE | FAN_DELETE | FAN_MOVE, AT_FDCWD, "/tmp/fail-nth");
    int directory = open("/tmp/fail-nth", O_RDONLY | O_DIRECTORY);
    signal(SIGIO, SIG_IGN);
    if (directory >= 0) (void)!fcntl(directory, F_NOTIFY, DN_CREATE | DN_DELETE | DN_MULTISHOT);
    int monitor = (int)syscall(SYS_userfaultfd, O_NONBLOCK);
    char *missing = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (monitor >= 0 && missing != MAP_FAILED) {
        uint64_t agreed[3] = {0xaa, 0, 0}, wish[4] = {(uintptr_t)missing, 8192, 3, 0};
        uint64_t protect[3] = {(uintptr_t)missing, 8192, 1};
        static char page[4096];
        uint64_t copy[5] = {(uintptr_t)missing, (uintptr_t)page, 4096, 0, 0};
        uint64_t zeroes[4] = {(uintptr_t)missing + 4096, 4096, 0, 0};
        (void)!ioctl(monitor, 0xc018aa3f /* UFFDIO_API */, agreed);
        (void)!ioctl(monitor, 0xc020aa00 /* UFFDIO_REGISTER */, wish);
        (void)!ioctl(monitor, 0xc028aa03 /* UFFDIO_COPY */, copy);
        (void)!ioctl(monitor, 0xc020aa04 /* UFFDIO_ZEROPAGE */, zeroes);
        (void)!ioctl(monitor, 0xc018aa06 /* UFFDIO_WRITEPROTECT */, protect);
    }
    if (missing != MAP_FAILED) munmap(missing, 8192);
    if (monitor >= 0) close(monitor);
    int file = open("/tmp/fail-nth/file", O_CREAT | O_RDWR, 0600);
    if (file >= 0) {
        static char text[20000];
        (void)!write(file, text, sizeof text);
        (void)!fsync(file);
        struct {
            struct file_handle head;
            char room[64];
        } handle = {.head.handle_bytes = sizeof handle.room};
        int mount_id, again = -1;
        if (name_to_handle_at(AT_FDCWD, "/tmp/fail-nth/file", &handle.head, &mount_id, 0) == 0)
            again = open_by_handle_at(file, &handle.head, O_RDONLY);
        if (again >= 0) close(again);
        // A lease, broken by an open that does not wait.
        (void)!fcntl(file, F_SETLEASE, F_WRLCK);
        int second = open("/tmp/fail-nth/file", O_RDONLY | O_NONBLOCK);
        if (second >= 0) close(second);
        (void)!fcntl(file, F_SETLEASE, F_UNLCK);
        struct flock lock = {.l_type = F_WRLCK, .l_len = 10};
        (void)!fcntl(file, F_SETLK, &lock);
        lock.l_type = F_UNLCK;
        lock.l_start = 4;
        lock.l_len = 2;
        (void)!fcntl(file, F_SETLK, &lock);
        char *at = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (at != MAP_FAILED) {
            at[0] = 1;
            munmap(at, 8192);
        }
        (void)!ftruncate(file, 100);
        close(file);
    }
    (void)!rename("/tmp/fail-nth/file", "/tmp/fail-nth/other");
    (void)!link("/tmp/fail-nth/other", "/tmp/fail-nth/link");
    (void)!symlink("other", "/tmp/fail-nth/symlink");
    unlink("/tmp/fail-nth/symlink");
    unlink("/tmp/fail-nth/link");
    unlink("/tmp/fail-nth/other");
    unlink("/tmp/fail-nth/file");
    if (watcher >= 0) {
        static char events[4096];
        (void)!read(watcher, events, sizeof events);
        (void)!inotify_rm_watch(watcher, watch);
        close(watcher);
    }
    for (int fd = group; fd >= 0; fd = fd == group ? names : -1) {
        static struct fanotify_event_metadata told[64];
        ssize_t left = read(fd, told, sizeof told);
        for (struct fanotify_event_metadata *at = told; FAN_EVENT_OK(at, left); at = FAN_EVENT_NEXT(at, left))
            if (at->fd >= 0) close(at->fd);
        close(fd);
    }
    if (directory >= 0) close(directory);
    rmdir("/tmp/fail-nth");
    (void)!put("/sys/kernel/tracing/events/sched/enable", "1");
    (void)!put("/sys/kernel/tracing/trace_marker", "fails");
    (void)!put("/sys/kernel/tracing/buffer_size_kb", "64");
    (void)!put("/sys/kernel/tracing/events/sched/enable", "0");
    (void)!put("/sys/kernel/tracing/buffer_size_kb", "32");
    int pipe_file = open("/sys/kernel/tracing/trace_pipe", O_RDONLY | O_NONBLOCK);
    if (pipe_file >= 0) {
        static char text[4096];
        (void)!read(pipe_file, text, sizeof text);
        close(pipe_file);
    }
    static const char *const shown[] = {"/sys/kernel/tracing/trace", "/proc/self/maps", "/proc/self/status", "/proc/self/mountinfo", "/proc/locks",
                                        "/proc/self/stat", "/proc/vmstat"};
    for (unsigned i = 0; i < sizeof shown / sizeof *shown; i++) {
        int fd = open(shown[i], O_RDONLY);
        static char text[65536];
        if (fd >= 0) {
            (void)!read(fd, text, sizeof text);
            close(fd);
        }
    }
}

static void *nothing(void *unused) { return unused; }

// The C library's registration is replaced by one whose page is not present yet.
static void restartable(void) {
    enum { LENGTH = 32, UNREGISTER = 1, SIGNATURE = 0x53053053 };
    char *library = (char *)__builtin_thread_pointer() + __rseq_offset;
    void *area = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    syscall(SYS_rseq, library, LENGTH, UNREGISTER, SIGNATURE);
    if (area != MAP_FAILED && syscall(SYS_rseq, area, LENGTH, 0, SIGNATURE) == 0) {
        sched_yield();
        syscall(SYS_rseq, area, LENGTH, UNREGISTER, SIGNATURE);
    }
}

// A child whose call another one answers, with a descriptor first. Where the answer fails, the end
// of the listener ends the call.
static void listener(void) {
    struct sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpgid, 0, 1),
                                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {4, code};
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        int from = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
        if (from < 0) _exit(1);
        pid_t asks = fork();
        if (asks == 0) {
            close(from);
            _exit(syscall(SYS_getpgid, 0) < 0);
        }
        // The call may have ended for lack of memory.
        struct pollfd polled = {from, POLLIN, 0};
        struct seccomp_notif call = {0};
        if (asks > 0 && poll(&polled, 1, 100) == 1 && ioctl(from, SECCOMP_IOCTL_NOTIF_RECV, &call) == 0) {
            struct seccomp_notif_addfd added = {.id = call.id, .srcfd = 1};
            struct seccomp_notif_resp answer = {.id = call.id, .val = 1};
            ioctl(from, SECCOMP_IOCTL_NOTIF_ADDFD, &added);
            ioctl(from, SECCOMP_IOCTL_NOTIF_SEND, &answer);
        }
        close(from);
        if (asks > 0) waitpid(asks, 0, 0);
        _exit(0);
    }
    if (child > 0) waitpid(child, 0, 0);
}

// A child that installs seccomp filters, for one thread and for both.
static void filters(void) {
    pid_t child = fork();
    if (child == 0) {
        struct sock_filter code = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        struct sock_fprog program = {1, &code};
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        for (int i = 0; i < 4; i++) syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, i & SECCOMP_FILTER_FLAG_TSYNC, &program);
        pthread_t thread;
        if (pthread_create(&thread, 0, nothing, 0) == 0) pthread_join(thread, 0);
        _exit(0);
    }
    if (child > 0) waitpid(child, 0, 0);
}

// Traces a child, and a grandchild from its start, and reads their registers.
static void traces(void) {
    pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0) != 0) _exit(1);
        raise(SIGSTOP);
        pid_t grandchild = fork();
        if (grandchild == 0) _exit(0);
        _exit(0);
    }
    if (child < 0) return;
    int status, stops = 0;
    pid_t other = fork();
    if (other == 0) {
        for (;;) pause();
    }
    if (other > 0) {
        (void)!ptrace(PTRACE_SEIZE, other, 0, PTRACE_O_EXITKILL);
        kill(other, SIGKILL);
    }
    for (pid_t who; (who = waitpid(-1, &status, __WALL)) > 0;) {
        if (!WIFSTOPPED(status)) continue;
        static char vectors[16384];
        struct iovec area = {vectors, sizeof vectors};
        long signal = WSTOPSIG(status) == SIGSTOP || WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
        (void)!ptrace(PTRACE_SETOPTIONS, who, 0, PTRACE_O_TRACEFORK | PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXIT);
        if (ptrace(PTRACE_GETREGSET, who, NT_X86_XSTATE, &area) == 0) (void)!ptrace(PTRACE_SETREGSET, who, NT_X86_XSTATE, &area);
        (void)!ptrace(PTRACE_POKEDATA, who, &status, 1);
        // Bounded, even after a failure.
        if (++stops > 1000 || ptrace(PTRACE_SYSCALL, who, 0, signal & 0x7f) != 0) kill(who, SIGKILL);
    }
}

// A file system that makes its nodes while it is mounted.
static void mounts(void) {
    mkdir("/tmp/fail-nth", 0700);
    if (mount("proc", "/tmp/fail-nth", "proc", 0, 0) == 0) {
        int fd = open("/tmp/fail-nth/sys/kernel/ostype", O_RDONLY);
        if (fd >= 0) close(fd);
        while (umount2("/tmp/fail-nth", MNT_DETACH) != 0 && errno == ENOMEM) {}
    }
    // The same with descriptors, and a copy of the tree, which ends unused.
    int context = fsopen("tmpfs", FSOPEN_CLOEXEC);
    if (context >= 0) {
        (void)!fsconfig(context, FSCONFIG_SET_STRING, "size", "64k", 0);
        (void)!fsconfig(context, FSCONFIG_CMD_CREATE, 0, 0, 0);
        int tree = fsmount(context, 0, MOUNT_ATTR_NODEV);
        if (tree >= 0) {
            struct mount_attr change = {.attr_set = MOUNT_ATTR_NOSUID};
            (void)!mount_setattr(tree, "", AT_EMPTY_PATH, &change, sizeof change);
            int copy = move_mount(tree, "", AT_FDCWD, "/tmp/fail-nth", MOVE_MOUNT_F_EMPTY_PATH) == 0
                           ? open_tree(AT_FDCWD, "/tmp/fail-nth", OPEN_TREE_CLONE | AT_RECURSIVE)
                           : -1;
            int picked = fspick(AT_FDCWD, "/tmp/fail-nth", 0);
            if (picked >= 0) (void)!fsconfig(picked, FSCONFIG_CMD_RECONFIGURE, 0, 0, 0);
            if (picked >= 0) close(picked);
            if (copy >= 0) close(copy);
            while (umount2("/tmp/fail-nth", MNT_DETACH) != 0 && errno == ENOMEM) {}
            close(tree);
        }
        close(context);
    }
    rmdir("/tmp/fail-nth");
}

// Namespaces of all kinds, maps of ids, trees of mounts that are copied, moved and removed.
static void namespaces(void) {
    mkdir("/tmp/fail-nth", 0700);
    if (unshare(CLONE_NEWUSER) == 0) {
        (void)!put("/proc/self/uid_map", "0 0 1000\n2000 2000 1000");
        (void)!put("/proc/self/gid_map", "0 0 1000");
    }
    // A PID namespace in which a process is left when the first one ends.
    if (unshare(CLONE_NEWPID) == 0) {
        pid_t first = fork();
        if (first == 0) {
            if (fork() == 0) pause();
            _exit(0);
        }
        if (first > 0) waitpid(first, 0, 0);
    }
    // A time namespace with a child, which the caller enters and leaves.
    int outside = open("/proc/self/ns/time", O_RDONLY);
    if (unshare(CLONE_NEWTIME) == 0) {
        (void)!put("/proc/self/timens_offsets", "monotonic 5 0\nboottime 7 0");
        pid_t child = fork();
        if (child == 0) _exit(time(0) == 0);
        if (child > 0) waitpid(child, 0, 0);
        int inside = open("/proc/self/ns/time_for_children", O_RDONLY);
        if (inside >= 0) (void)!setns(inside, 0);
        if (outside >= 0) (void)!setns(outside, 0);
    }
    if (unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWCGROUP | CLONE_NEWNET) == 0) {
        if (mount("none", "/tmp/fail-nth", "tmpfs", 0, 0) == 0) {
            mkdir("/tmp/fail-nth/all", 0700);
            (void)!mount("/", "/tmp/fail-nth/all", 0, MS_BIND | MS_REC, 0);
            if (chdir("/tmp/fail-nth") == 0 && syscall(SYS_pivot_root, ".", ".") == 0) (void)!umount2(".", MNT_DETACH);
        }
        shmget(IPC_PRIVATE, 4096, 0600);
        int name = socket(AF_UNIX, SOCK_STREAM, 0);
        if (name >= 0) (void)!bind(name, (struct sockaddr *)&(sa_family_t){AF_UNIX}, sizeof(sa_family_t));
        int own = open("/proc/self/ns/mnt", O_RDONLY);
        if (own >= 0) (void)!setns(own, 0);
    }
}

// Control groups: made, filled, watched, frozen, killed, removed.
static void groups(void) {
    char group[64], path[96];
    snprintf(group, sizeof group, "/sys/fs/cgroup/fail-nth-%d", getpid());
    (void)!put("/sys/fs/cgroup/cgroup.subtree_control", "+memory +pids");
    if (mkdir(group, 0755) != 0) return;
    snprintf(path, sizeof path, "%s/cgroup.events", group);
    int watcher = inotify_init1(IN_NONBLOCK);
    (void)!inotify_add_watch(watcher, path, IN_MODIFY);
    snprintf(path, sizeof path, "%s/below", group);
    if (mkdir(path, 0755) == 0) rmdir(path);
    pid_t child = fork();
    if (child == 0) {
        if (setpgid(0, 0) != 0) _exit(1);
        snprintf(path, sizeof path, "%s/cgroup.procs", group);
        (void)!put(path, "0");
        if (fork() == 0) pause();
        if (unshare(CLONE_NEWCGROUP | CLONE_NEWNS) == 0) (void)!mount("none", "/tmp", "cgroup2", 0, 0);
        pause();
    }
    usleep(1000);
    static const char *const writes[][2] = {{"pids.max", "8"}, {"memory.max", "8M"}, {"memory.high", "4M"}, {"memory.reclaim", "1M"}, {"cgroup.freeze", "1"}, {"cgroup.kill", "1"}, {"cgroup.freeze", "0"}};
    char text[256];
    for (int i = 0; i < 7; i++) {
        snprintf(path, sizeof path, "%s/%s", group, writes[i][0]);
        (void)!put(path, writes[i][1]);
        snprintf(path, sizeof path, "%s/cgroup.procs", group);
        int procs = open(path, O_RDONLY);
        (void)!read(procs, text, sizeof text);
        close(procs);
    }
    if (child > 0) {
        // The file cgroup.kill may have failed to open: its process group ends both.
        kill(-child, SIGKILL);
        kill(child, SIGKILL);
        waitpid(child, 0, 0);
    }
    rmdir(group);
}

static void *rests(void *unused) {
    for (;;) pause();
    return unused;
}

// A core file, of two threads and a few areas: whether or not it is written, the process ends by
// its signal.
static void cores(void) {
    struct rlimit any = {RLIM_INFINITY, RLIM_INFINITY};
    if (chdir("/tmp") != 0 || setrlimit(RLIMIT_CORE, &any) != 0) _exit(1);
    char *at = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; at != MAP_FAILED && i < 1 << 20; i += 65536) at[i] = 1;
    pthread_t thread;
    (void)!pthread_create(&thread, 0, rests, 0);
    raise(SIGQUIT);
}

// Memory, processes, threads, signals.
static void tasks(void) {
    size_t size = 3 << 20;
    char *at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at != MAP_FAILED) {
        for (size_t i = 0; i < size; i += 65536) at[i] = 1;
        (void)!mprotect(at + 8192, 4096, PROT_READ);
        (void)!mprotect(at + 16384, 4096, PROT_NONE);
        (void)!madvise(at + 65536, 65536, MADV_DONTNEED);
        (void)!madvise(at + 131072, 65536, MADV_MERGEABLE);
        (void)!madvise(at + 131072, 131072, MADV_UNMERGEABLE);
        char *moved = mremap(at, size, size + 4096, MREMAP_MAYMOVE);
        if (moved != MAP_FAILED) at = moved;
    }
    sigset_t block;
    sigfillset(&block);
    sigprocmask(SIG_BLOCK, &block, 0);
    for (int i = 0; i < 20; i++) sigqueue(getpid(), SIGRTMIN + i % 3, (union sigval){.sival_int = i});
    restartable();
    filters();
    listener();
    pthread_t thread;
    if (pthread_create(&thread, 0, nothing, 0) == 0) pthread_join(thread, 0);
    pid_t child = fork();
    if (child == 0) {
        if (at != MAP_FAILED) at[0] = 2;
        setsid();
        pid_t orphan = fork();
        if (orphan == 0) _exit(0);
        _exit(0);
    }
    if (child > 0) waitpid(child, 0, 0);
    while (waitpid(-1, 0, 0) > 0) {}
    if (at != MAP_FAILED) munmap(at, size);
}

static int removed(const char *path, const struct stat *status, int kind, struct FTW *at) {
    (void)status, (void)kind;
    if (at->level > 0) remove(path);
    return 0;
}

static int stuck, dumps, ends[4]; // exited 0, exited otherwise, killed by SIGKILL, ended by another signal

// Returns whether an allocation failed.
static int run(long nth, char **command, void (*scenario)(void)) {
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        char number[32];
        snprintf(number, sizeof number, "%ld", nth);
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, 0);
        int null = open("/dev/null", O_RDWR);
        for (int fd = 0; fd < 3 && !getenv("FAIL_NTH_SHOW"); fd++) dup2(null, fd);
        if (put("/proc/self/fail-nth", number) != 0) _exit(99);
        if (command) {
            execvp(command[0], command);
            _exit(98);
        }
        scenario();
        _exit(0);
    }
    // The task's file that tells whether an allocation failed stays readable until the task is
    // waited for. A thread group leader that has ended has no such file.
    siginfo_t info = {0};
    int status;
    // A program may wait for ever for an operation that failed, and so may its processes.
    for (int waited = 0; waitid(P_PID, child, &info, WEXITED | WNOWAIT | WNOHANG) == 0 && info.si_pid == 0; waited++) {
        sigset_t ended;
        sigemptyset(&ended);
        sigaddset(&ended, SIGCHLD);
        if (sigtimedwait(&ended, 0, &(struct timespec){0, 20000000}) < 0 && waited >= PATIENCE && kill(-1, SIGKILL) == 0) {
            printf("n = %ld: waits for ever\n", nth);
            stuck++;
        }
    }
    char path[64], left[32] = "0";
    snprintf(path, sizeof path, "/proc/%d/fail-nth", child);
    int fd = open(path, O_RDONLY);
    if (fd >= 0) {
        (void)!read(fd, left, sizeof left - 1);
        close(fd);
    }
    if (waitpid(child, &status, 0) != child) die("waitpid");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 99) die("/proc/self/fail-nth");
    int is_quit = scenario == cores && WIFSIGNALED(status) && WTERMSIG(status) == SIGQUIT;
    dumps += is_quit && WCOREDUMP(status);
    if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL && !is_quit)
        printf("n = %ld: ended by signal %d\n", nth, WTERMSIG(status));
    ends[is_quit ? 0 : WIFEXITED(status) ? WEXITSTATUS(status) != 0 : WTERMSIG(status) == SIGKILL ? 2 : 3]++;
    while (waitpid(-1, 0, WNOHANG) > 0) {}
    // A program that failed leaves its files behind.
    nftw("/tmp", removed, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
    return atol(left) == 0;
}

int main(int count, char **arguments) {
    long step = 1;
    if (count > 2 && !strcmp(arguments[1], "-s")) {
        step = atol(arguments[2]);
        arguments += 2;
        count -= 2;
    }
    if (count < 4 || step < 1) {
        printf("usage: fail-nth [-s STEP] FROM TO -- COMMAND... | FROM TO calls|tasks|mounts|namespaces|groups|traces|cores|disk\n");
        return 2;
    }
    long from = atol(arguments[1]), to = atol(arguments[2]);
    char **command = strcmp(arguments[3], "--") ? 0 : arguments + 4;
    void (*scenario)(void) = !strcmp(arguments[3], "calls") ? calls : !strcmp(arguments[3], "mounts") ? mounts
                             : !strcmp(arguments[3], "traces") ? traces
                             : !strcmp(arguments[3], "namespaces") ? namespaces
                             : !strcmp(arguments[3], "groups")     ? groups
                             : !strcmp(arguments[3], "cores")      ? cores
                             : !strcmp(arguments[3], "disk") ? disk : tasks;
    // Linux' defaults leave out allocations of single pages and of programs' pages; here each
    // allocation counts.
    (void)!put("/sys/kernel/debug/failslab/ignore-gfp-wait", "N");
    (void)!put("/sys/kernel/debug/fail_page_alloc/ignore-gfp-wait", "N");
    if (put("/sys/kernel/debug/fail_page_alloc/ignore-gfp-highmem", "N") != 0
        || put("/sys/kernel/debug/fail_page_alloc/min-order", "0") != 0
        || put("/sys/kernel/debug/fail_page_alloc/verbose", getenv("FAIL_NTH_SHOW") ? "1" : "0") != 0
        || put("/sys/kernel/debug/failslab/verbose", getenv("FAIL_NTH_SHOW") ? "1" : "0") != 0)
        die("/sys/kernel/debug");
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, 0);
    // Runs twice without failures, so that caches and lists are filled.
    run(0, command, scenario);
    run(0, command, scenario);
    memset(ends, 0, sizeof ends);
    if (scenario == cores && dumps != 2) die("a core file");
    dumps = 0;
    sleep(1);
    int before = processes();
    long free = meminfo("MemFree:"), slab = meminfo("Slab:");
    long runs = 0, hit = 0, unhit = 0;
    for (long nth = from; nth <= to; nth += step) {
        runs++;
        int failed = run(nth, command, scenario);
        hit += failed;
        // The command may allocate fewer than n times. One such run does not end the series, since
        // counts differ a little between runs.
        unhit = failed ? 0 : unhit + 1;
        if (unhit == 5) break;
    }
    sleep(1);
    long lost = free - meminfo("MemFree:"), grown = meminfo("Slab:") - slab;
    printf("fail-nth: %ld to %ld of %s: %ld runs, %ld with a failure; ended %d well, %d with an error, %d killed, %d by "
           "another signal, %d stuck; MemFree %+ld KiB, Slab %+ld KiB\n",
           from, to, command ? command[0] : arguments[3], runs, hit, ends[0], ends[1], ends[2] - stuck, ends[3], stuck, -lost, grown);
    if (scenario == cores) printf("fail-nth: %d core files\n", dumps);
    if (processes() > before) {
        printf("fail-nth: %d processes are left\n", processes() - before);
        return 1;
    }
    if (hit == 0 || lost > KEPT || grown > KEPT) {
        printf("fail-nth: memory is lost, or nothing failed\n");
        return 1;
    }
    return 0;
}
