/*
 * SIGKILL against any system call: measures how long a process lives after the signal.
 *
 * Usage: kill-any [-q] [-l LIMIT] [-m MIB] [NAME...]   kills; kill-any -t   only looks whether the table is complete.
 *
 * A child makes one call over and over, with an argument that makes the kernel's work as long as
 * it can be. The parent sleeps for a random time, sends SIGKILL and waits. A line per row tells
 * the worst time from the moment when the parent's sleep should have ended to the end of the
 * child: so a kernel that does not preempt a call is treated like one that does not check for
 * signals. Time in which the CPU was idle does not count. Under `freehold run --icount` a
 * nanosecond is an instruction. LIMIT is in millions (100 if not given); a row above it fails.
 *
 * A call with long work has a row in `rows`. Other calls are listed in `bounded`: a constant of
 * the interface bounds their work. Each number that the kernel does not answer with ENOSYS must
 * be in one of these lists. With -q each row is killed once, else five times. With -m the
 * program first takes so many MiB and keeps them, so that the calls meet a machine that is
 * nearly full.
 */
#include "../conformance/promise.h"
#include "../tools/dice.h"

#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <linux/inet_diag.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>

#ifndef MADV_COLD
#define MADV_COLD 20
#define MADV_PAGEOUT 21
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define KIB (1ul << 10)
#define MIB (1ul << 20)
#define GIB (1ul << 30)
#define MOST ((1ul << 31) - 4096) /* of one read or write: MAX_RW_COUNT */
#define HUGE_FILE (1ul << 45)
#define WIDE (1ul << 45) /* of an area without pages */

/* ---- memory and files for the calls ---- */

static char *alias;	/* 2 GiB of addresses that map one piece of memory repeatedly */
static long alias_len;
static char *wide;	/* WIDE bytes of addresses with no page, readable and writable, private */
static char *shared;	/* as many bytes, of a file that is one hole */
static char *heap;	/* `populated` bytes of private memory, present */
static unsigned long populated;
static struct iovec iov[1024]; /* each entry is the same 2 MiB of memory */
static char *piece;
static int zero, null_, hole, small, pages[2];
static volatile int *ready;
static int quick;

static int memory_file(unsigned long size)
{
	int fd = syscall(SYS_memfd_create, "kill-any", 0);
	NEED(fd >= 0 && ftruncate(fd, size) == 0);
	return fd;
}

/* Maps a window of `len` bytes that shows the same `unit` bytes of memory repeatedly. */
static char *window(unsigned long len, unsigned long unit)
{
	int fd = memory_file(unit);
	char *at = mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	NEED(at != MAP_FAILED);
	for (unsigned long done = 0; done < len; done += unit)
		NEED(mmap(at + done, unit, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == at + done);
	close(fd);
	return at;
}

static void touch(char *at, unsigned long len)
{
	for (unsigned long done = 0; done < len; done += 4096)
		((volatile char *)at)[done] = 1;
}

static void prepare(void)
{
	zero = open("/dev/zero", O_RDWR);
	null_ = open("/dev/null", O_RDWR);
	hole = memory_file(HUGE_FILE);
	small = memory_file(4096);
	alias_len = 2 * GIB;
	alias = window(alias_len, 16 * MIB);
	piece = window(2 * MIB, 2 * MIB);
	touch(piece, 2 * MIB);
	wide = mmap(NULL, WIDE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	shared = mmap(NULL, HUGE_FILE, PROT_READ | PROT_WRITE, MAP_SHARED, hole, 0);
	NEED(zero >= 0 && null_ >= 0 && wide != MAP_FAILED && shared != MAP_FAILED);
	for (int i = 0; i < 1024; i++)
		iov[i] = (struct iovec){ piece, 2 * MIB };
	populated = quick ? 16 * MIB : 64 * MIB;
}

static void be_ready(void)
{
	*ready = 1;
}

/* Makes private memory of the child, with all pages present. */
static void fill_heap(void)
{
	heap = mmap(NULL, populated, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (heap == MAP_FAILED)
		_exit(1);
	touch(heap, populated);
}

/* Makes a file with as many pages. */
static int fill_file(void)
{
	int fd = memory_file(0);
	for (unsigned long done = 0; done < populated; done += 2 * MIB)
		if (write(fd, piece, 2 * MIB) != 2 * MIB)
			_exit(1);
	lseek(fd, 0, SEEK_SET);
	return fd;
}

#define FOREVER(...)                                                                                \
	do {                                                                                        \
		be_ready();                                                                         \
		for (;;) {                                                                          \
			__VA_ARGS__;                                                                \
		}                                                                                   \
	} while (0)

/* ---- rows with long work ---- */

static void do_read(void) { FOREVER(syscall(SYS_read, zero, alias, MOST)); }
static void do_read_hole(void) { FOREVER(syscall(SYS_read, hole, alias, MOST)); }
static void do_read_random(void)
{
	int fd = open("/dev/urandom", O_RDONLY);
	FOREVER(syscall(SYS_read, fd, alias, MOST));
}
static void do_read_private(void) { FOREVER(read(zero, wide, MOST)); }
static void do_readv(void) { FOREVER(readv(zero, iov, 1024)); }
static void do_readv_hole(void) { FOREVER(readv(hole, iov, 1024); lseek(hole, 0, SEEK_SET)); }
static void do_preadv(void) { FOREVER(preadv(hole, iov, 1024, 4096)); }
static void do_preadv2(void) { FOREVER(preadv2(hole, iov, 1024, 4096, 0)); }
static void do_pread64(void) { FOREVER(pread(hole, alias, MOST, 4096)); }
static void do_read_file(void) { int fd = fill_file(); FOREVER(pread(fd, alias, MOST, 0)); }
static void do_write(void) { FOREVER(pwrite(memory_file(0), alias, MOST, 0)); }
static void do_write_null(void) { FOREVER(write(null_, alias, MOST)); }
static void do_writev(void)
{
	int fd = memory_file(0);
	FOREVER(lseek(fd, 0, SEEK_SET); syscall(SYS_writev, fd, iov, 8));
}
static void do_writev_grow(void) { int fd = memory_file(0); FOREVER(writev(fd, iov, 1024)); }
static void do_pwritev(void) { int fd = memory_file(0); FOREVER(pwritev(fd, iov, 1024, 0)); }
static void do_pwritev2(void) { int fd = memory_file(0); FOREVER(pwritev2(fd, iov, 1024, 0, 0)); }
static void do_write_pipe(void) { FOREVER(write(pages[1], alias, MOST)); }
static void do_getrandom(void) { FOREVER(syscall(SYS_getrandom, alias, MOST, 0)); }

static void do_sendfile(void) { FOREVER(off_t at = 0; syscall(SYS_sendfile, null_, hole, &at, MOST)); }
static void do_sendfile_zero(void) { FOREVER(syscall(SYS_sendfile, null_, zero, NULL, MOST)); }
static void do_copy_file_range(void)
{
	int fd = memory_file(0);
	FOREVER(off_t in = 0; off_t out = 0; syscall(SYS_copy_file_range, hole, &in, fd, &out, MOST, 0));
}
/* A pipe with a child at its other end that fills or empties it. */
static void fill_pipe_for_ever(void)
{
	if (fork() == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			if (write(pages[1], piece, 64 * KIB) < 0)
				_exit(0);
	}
}
static void do_splice_in(void)
{
	FOREVER(off_t at = 0; syscall(SYS_splice, hole, &at, pages[1], NULL, MOST, 0);
		int most = 64; while (most-- && syscall(SYS_splice, pages[0], NULL, null_, NULL, MOST, SPLICE_F_NONBLOCK) > 0));
}
static void do_splice_out(void)
{
	fill_pipe_for_ever();
	FOREVER(syscall(SYS_splice, pages[0], NULL, null_, NULL, MOST, 0));
}
static void do_splice_pipes(void)
{
	int other[2];
	fill_pipe_for_ever();
	NEED(pipe(other) == 0);
	fcntl(other[1], F_SETPIPE_SZ, 1 << 20);
	FOREVER(syscall(SYS_splice, pages[0], NULL, other[1], NULL, MOST, 0);
		syscall(SYS_splice, other[0], NULL, null_, NULL, MOST, SPLICE_F_NONBLOCK));
}
static void do_tee(void)
{
	int other[2];
	NEED(pipe(other) == 0);
	write(pages[1], piece, 4096);
	FOREVER(syscall(SYS_tee, pages[0], other[1], MOST, 0);
		syscall(SYS_splice, other[0], NULL, null_, NULL, MOST, SPLICE_F_NONBLOCK));
}
static void do_vmsplice(void)
{
	FOREVER(syscall(SYS_vmsplice, pages[1], iov, 1024, SPLICE_F_NONBLOCK);
		syscall(SYS_splice, pages[0], NULL, null_, NULL, MOST, SPLICE_F_NONBLOCK));
}

static void do_fallocate(void) { FOREVER(syscall(SYS_fallocate, small, 0, 0ul, 1ul << 48)); }
static void do_fallocate_keep(void) { FOREVER(syscall(SYS_fallocate, small, 1, 1ul << 40, 1ul << 61)); }
static void do_fallocate_zero(void) { FOREVER(syscall(SYS_fallocate, hole, 0x11, 0ul, HUGE_FILE)); }
static void do_fallocate_zero_grow(void) { FOREVER(syscall(SYS_fallocate, hole, 0x10, 0ul, 1ul << 61)); }
static void do_fallocate_holes(void)
{
	/* Every second page is present, so there are many runs. */
	int fd = memory_file(1 << 24);
	for (off_t at = 0; at < 1 << 24; at += 8192)
		pwrite(fd, "", 1, at);
	FOREVER(syscall(SYS_fallocate, fd, 0, 0ul, 1ul << 48));
}
static void do_fallocate_punch(void) { int fd = fill_file(); FOREVER(syscall(SYS_fallocate, fd, 3, 0ul, 1ul << 62)); }
static void do_punch_mapped(void)
{
	FOREVER(int fd = fill_file(); char *at = mmap(NULL, populated, PROT_READ, MAP_SHARED, fd, 0);
		madvise(at, populated, MADV_POPULATE_READ); syscall(SYS_fallocate, fd, 3, 0ul, 1ul << 62);
		munmap(at, populated); close(fd));
}
static void do_truncate(void)
{
	char path[] = "/kill-any.file";
	int fd = open(path, O_RDWR | O_CREAT, 0600);
	FOREVER(pwrite(fd, piece, 2 * MIB, 0); pwrite(fd, piece, 2 * MIB, 1ul << 40); truncate(path, 1ul << 62); truncate(path, 0));
}
static void do_ftruncate(void) { FOREVER(int fd = fill_file(); ftruncate(fd, 1ul << 62); ftruncate(fd, 0); close(fd)); }
static void do_unlink(void)
{
	FOREVER(int fd = open("/kill-any.gone", O_RDWR | O_CREAT, 0600); pwrite(fd, heap ? heap : piece, 2 * MIB, 0);
		unlink("/kill-any.gone"); close(fd));
}
static void do_lseek(void)
{
	FOREVER(lseek(hole, 0, SEEK_DATA); lseek(hole, 0, SEEK_HOLE));
}
static void do_lseek_full(void) { int fd = fill_file(); FOREVER(lseek(fd, 0, SEEK_HOLE)); }
static void do_close(void) { FOREVER(int fd = fill_file(); close(fd)); }

static void do_mmap_populate(void)
{
	FOREVER(char *at = mmap(NULL, HUGE_FILE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, hole, 0);
		munmap(at, HUGE_FILE));
}
static void do_mmap_populate_zero(void)
{
	FOREVER(char *at = mmap(NULL, WIDE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_POPULATE, -1, 0);
		munmap(at, WIDE));
}
static void do_mmap_populate_private(void)
{
	FOREVER(char *at = mmap(NULL, WIDE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_POPULATE, -1, 0);
		munmap(at, WIDE));
}
static void do_mprotect(void)
{
	fill_heap();
	FOREVER(mprotect(heap, populated, PROT_READ); mprotect(heap, populated, PROT_READ | PROT_WRITE));
}
static void do_mprotect_wide(void)
{
	touch(wide, 4096);
	FOREVER(mprotect(wide, WIDE, PROT_READ); mprotect(wide, WIDE, PROT_READ | PROT_WRITE));
}
/* An area with a page in every 2 MiB, so that the tables are many and nearly empty. */
static void scatter(void)
{
	for (unsigned long at = 0; at < (quick ? 256 : 1024) * 2 * MIB; at += 2 * MIB)
		((volatile char *)wide)[at];
}
static void do_munmap(void) { FOREVER(fill_heap(); munmap(heap, populated)); }
static void do_munmap_wide(void)
{
	FOREVER(wide = mmap(NULL, WIDE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		scatter(); munmap(wide, WIDE));
}
static void do_brk(void)
{
	FOREVER(char *now = sbrk(0); brk(now + populated); touch(now, populated / 2); brk(now));
}
static void do_mremap(void)
{
	fill_heap();
	FOREVER(heap = mremap(heap, populated, populated + 4096, MREMAP_MAYMOVE);
		heap = mremap(heap, populated + 4096, populated, MREMAP_MAYMOVE));
}
static void do_mremap_wide(void)
{
	scatter();
	unsigned long len = 1ul << 44;
	munmap(wide + len, WIDE - len);
	FOREVER(wide = mremap(wide, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, (char *)(wide > (char *)(1ul << 45) ? 1ul << 44 : 1ul << 46)));
}
static void do_remap_file_pages(void) { FOREVER(syscall(SYS_remap_file_pages, shared, HUGE_FILE, 0, 0, 0)); }
static void do_msync(void) { FOREVER(msync(shared, HUGE_FILE, MS_SYNC)); }
static void do_mincore(void) { FOREVER(syscall(SYS_mincore, wide, (unsigned long)alias_len * 4096, alias)); }
static void do_mincore_hole(void) { FOREVER(syscall(SYS_mincore, shared, (unsigned long)alias_len * 4096, alias)); }

#define ADVISE(name, advice)                                                                        \
	static void do_madvise_##name(void)                                                         \
	{                                                                                           \
		fill_heap();                                                                        \
		FOREVER(madvise(heap, populated, advice); touch(heap, MIB); madvise(wide, WIDE, advice)); \
	}                                                                                           \
	static void do_madvise_##name##_file(void) { FOREVER(madvise(shared, HUGE_FILE, advice)); }
ADVISE(willneed, MADV_WILLNEED)
ADVISE(dontneed, MADV_DONTNEED)
ADVISE(free, MADV_FREE)
ADVISE(cold, MADV_COLD)
ADVISE(unmergeable, MADV_UNMERGEABLE)
ADVISE(pageout, MADV_PAGEOUT)
ADVISE(populate_read, MADV_POPULATE_READ)
ADVISE(populate_write, MADV_POPULATE_WRITE)
ADVISE(collapse, MADV_COLLAPSE)
ADVISE(hugepage, MADV_HUGEPAGE)
ADVISE(remove, MADV_REMOVE)

static void no_memlock(void)
{
	struct rlimit any = { RLIM_INFINITY, RLIM_INFINITY };
	setrlimit(RLIMIT_MEMLOCK, &any);
}
static void do_mlock(void) { no_memlock(); FOREVER(mlock(wide, WIDE); munlock(wide, WIDE)); }
static void do_mlock_file(void) { no_memlock(); FOREVER(mlock(shared, HUGE_FILE); munlock(shared, HUGE_FILE)); }
static void do_mlock2(void) { no_memlock(); FOREVER(syscall(SYS_mlock2, wide, WIDE, 1); munlock(wide, WIDE)); }
static void do_mlockall(void) { no_memlock(); FOREVER(mlockall(MCL_CURRENT); munlockall()); }

static void do_mbind(void)
{
	unsigned long node = 1;
	fill_heap();
	FOREVER(syscall(SYS_mbind, heap, populated, 2, &node, 64, 2 | 4); syscall(SYS_mbind, wide, WIDE, 2, &node, 64, 2);
		syscall(SYS_mbind, alias, alias_len, 2, &node, 64, 2));
}
static void do_migrate_pages(void)
{
	unsigned long from = 1, to = 1;
	fill_heap();
	FOREVER(syscall(SYS_migrate_pages, 0, 64, &from, &to));
}
static void do_move_pages(void)
{
	FOREVER(syscall(SYS_move_pages, 0, 128ul << 20, alias, NULL, alias + GIB, 0));
}
static void do_move_pages_to(void)
{
	FOREVER(syscall(SYS_move_pages, 0, 128ul << 20, alias, alias, alias + GIB, 2));
}
static void do_process_vm_readv(void) { FOREVER(syscall(SYS_process_vm_readv, getpid(), iov, 1024, iov, 1024, 0)); }
static void do_process_vm_writev(void) { FOREVER(syscall(SYS_process_vm_writev, getpid(), iov, 1024, iov, 1024, 0)); }
static void do_get_mempolicy(void) { int mode; FOREVER(syscall(SYS_get_mempolicy, &mode, NULL, 0, wide, 3)); }

static void read_proc(const char *path, size_t step)
{
	char *buffer = malloc(step);
	FOREVER(int fd = open(path, O_RDONLY); if (fd < 0) _exit(0); while (read(fd, buffer, step) > 0); close(fd));
}
static void do_smaps(void) { fill_heap(); scatter(); read_proc("/proc/self/smaps", 65536); }
static void do_smaps_rollup(void) { fill_heap(); read_proc("/proc/self/smaps_rollup", 65536); }
static void do_numa_maps(void) { fill_heap(); read_proc("/proc/self/numa_maps", 65536); }
static void do_maps(void) { read_proc("/proc/self/maps", 1 << 20); }
static void do_pagemap(void)
{
	int fd = open("/proc/self/pagemap", O_RDONLY);
	FOREVER(pread(fd, alias, MOST, (unsigned long)wide / 4096 * 8); pread(fd, alias, MOST, (unsigned long)alias / 4096 * 8));
}
static void do_kpagecount(void) { int fd = open("/proc/kpagecount", O_RDONLY); FOREVER(pread(fd, alias, MOST, 0)); }
static void do_kpageflags(void) { int fd = open("/proc/kpageflags", O_RDONLY); FOREVER(pread(fd, alias, MOST, 0)); }
static void do_mem(void)
{
	int fd = open("/proc/self/mem", O_RDWR);
	FOREVER(pread(fd, piece, 2 * MIB, (long)wide); pread(fd, alias, MOST, (long)wide); pwrite(fd, alias, MOST, (long)alias));
}
static void do_clear_refs(void)
{
	fill_heap();
	int fd = open("/proc/self/clear_refs", O_WRONLY);
	FOREVER(pwrite(fd, "1", 1, 0); pwrite(fd, "4", 1, 0));
}
static void do_pagemap_scan(void)
{
	struct {
		uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, anyof, ret;
	} scan = { 96, 0, 0, 1ul << 47, 0, 0, 0, 0, 0, 0, 0, 0 };
	int fd = open("/proc/self/pagemap", O_RDONLY);
	scan.vec = (uint64_t)alias;
	scan.vec_len = GIB / 24;
	scan.anyof = scan.ret = 0xfe;
	fill_heap();
	scatter();
	FOREVER(ioctl(fd, 0xc0606610, &scan));
}
static void write_sys(const char *path, const char *what)
{
	fill_heap();
	int fd = open(path, O_WRONLY);
	FOREVER(pwrite(fd, what, strlen(what), 0));
}
static void do_trace_size(void)
{
	int fd = open("/sys/kernel/tracing/buffer_size_kb", O_WRONLY), on = open("/sys/kernel/tracing/events/raw_syscalls/enable", O_WRONLY);
	(void)!write(on, "1", 1);
	FOREVER((void)!pwrite(fd, "2048", 4, 0); (void)!pwrite(fd, "4096", 4, 0));
}
static void do_trace_read(void)
{
	int on = open("/sys/kernel/tracing/events/raw_syscalls/enable", O_WRONLY);
	(void)!write(on, "1", 1);
	read_proc("/sys/kernel/tracing/trace", 65536);
}
static void do_drop_caches(void) { write_sys("/proc/sys/vm/drop_caches", "3"); }
static void do_compact_memory(void) { write_sys("/proc/sys/vm/compact_memory", "1"); }
static void do_hotplug_write(void)
{
	int fd = open("/sys/devices/system/memory/memory1/state", O_WRONLY);
	FOREVER(pwrite(fd, "offline", 7, 0); pwrite(fd, "online", 6, 0));
}

static void many_files(void)
{
	struct rlimit most = { 4096, 4096 };
	setrlimit(RLIMIT_NOFILE, &most);
	while (dup(zero) >= 0)
		;
}
static void do_close_range(void) { FOREVER(many_files(); zero = 3; syscall(SYS_close_range, 64, ~0u, 0)); }
static void do_poll(void)
{
	static struct pollfd set[65536];
	many_files();
	for (int i = 0; i < 65536; i++)
		set[i] = (struct pollfd){ i % 1000, POLLIN, 0 };
	FOREVER(poll(set, 4096, 0); syscall(SYS_ppoll, set, 1024, NULL, NULL, 8));
}
static void do_select(void) { many_files(); fd_set set; FOREVER(memset(&set, 255, sizeof set); select(1024, &set, NULL, NULL, NULL)); }
static void do_epoll(void)
{
	static struct epoll_event events[4096], event = { .events = EPOLLIN };
	int fd = epoll_create1(0), event_fd = syscall(SYS_eventfd2, 1, 0);
	for (int i = 0; i < 900; i++)
		epoll_ctl(fd, EPOLL_CTL_ADD, dup(event_fd), &event);
	FOREVER(epoll_wait(fd, events, 4096, 0));
}
static void do_getdents64(void)
{
	char name[64];
	mkdir("/kill-any.dir", 0700);
	for (int i = 0; i < (quick ? 300 : 3000); i++) {
		snprintf(name, sizeof name, "/kill-any.dir/%d", i);
		close(open(name, O_CREAT | O_RDWR, 0600));
	}
	int fd = open("/kill-any.dir", O_RDONLY);
	FOREVER(lseek(fd, 0, SEEK_SET); syscall(SYS_getdents64, fd, alias, (unsigned)MOST));
}
static void do_execve(void)
{
	static char *arguments[32768];
	struct rlimit stack = { 64 * MIB, RLIM_INFINITY };
	setrlimit(RLIMIT_STACK, &stack);
	for (int i = 0; i < 32767; i++)
		arguments[i] = i < 48 ? memset(calloc(1, 100000), 'x', 99999) : "";
	FOREVER(execve("/no-such-program", arguments, arguments); execve("/dev/null", arguments, arguments));
}
static void do_execve_self(void)
{
	char *arguments[] = { "/proc/self/exe", "-x", NULL };
	be_ready();
	execve("/proc/self/exe", arguments, arguments);
	_exit(0);
}
static void do_fork(void)
{
	fill_heap();
	FOREVER(pid_t child = fork(); if (child == 0) _exit(0); waitpid(child, NULL, 0));
}
static void do_exit_group(void) { fill_heap(); be_ready(); pause(); }
static void do_exit_wide(void) { scatter(); be_ready(); pause(); }
static void do_exit_alias(void) { touch(alias, alias_len); be_ready(); pause(); }
static void do_futex(void)
{
	static unsigned words[1024];
	struct timespec past = { 1, 0 };
	FOREVER(syscall(SYS_futex, words, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
		syscall(SYS_futex, words + 2, FUTEX_LOCK_PI, 0, NULL, NULL, 0);
		syscall(SYS_futex, words + 3, FUTEX_WAIT_REQUEUE_PI, 0, &past, words + 2, 0);
		syscall(SYS_futex, words + 3, FUTEX_CMP_REQUEUE_PI, 1, (long)INT32_MAX, words + 2, 0);
		syscall(SYS_futex, words + 2, FUTEX_UNLOCK_PI, 0, NULL, NULL, 0);
		words[4] = getppid();
		syscall(SYS_futex, words + 4, FUTEX_LOCK_PI, 0, &past, NULL, 0);
		syscall(SYS_futex, words, FUTEX_CMP_REQUEUE, INT32_MAX, (long)INT32_MAX, words + 1, 0);
		syscall(SYS_futex, words, FUTEX_WAIT, 1, NULL, NULL, 0));
}
/* struct futex_waitv: value, address, flags (32 bits, private). */
static void do_futex_waitv(void)
{
	static unsigned words[128];
	static struct { unsigned long value, word, flags; } waits[128];
	static struct timespec past;
	for (int i = 0; i < 128; i++)
		waits[i].word = (unsigned long)&words[i], waits[i].flags = 2 | 128;
	FOREVER(syscall(449, waits, 128, 0, &past, CLOCK_MONOTONIC));
}
static void do_process_madvise(void)
{
	static struct iovec runs[1024];
	int self = syscall(SYS_pidfd_open, getpid(), 0);
	fill_heap();
	for (int i = 0; i < 1024; i++)
		runs[i] = (struct iovec){ heap, populated };
	FOREVER(syscall(440, self, runs, 1024, MADV_COLD, 0));
}
static int message_queue(long messages, long bytes)
{
	struct { long flags, messages, bytes, current, unused[4]; } size = { .messages = messages, .bytes = bytes };
	struct rlimit any = { RLIM_INFINITY, RLIM_INFINITY };
	setrlimit(RLIMIT_MSGQUEUE, &any);
	int queue = syscall(SYS_mq_open, "kill-any", O_RDWR | O_CREAT | O_NONBLOCK, 0600, &size);
	syscall(SYS_mq_unlink, "kill-any");
	return queue;
}
static void do_mq_timedsend(void)
{
	int queue = message_queue(1, 16 * MIB);
	FOREVER(syscall(SYS_mq_timedsend, queue, alias, 16 * MIB, 0, NULL); syscall(SYS_mq_timedreceive, queue, alias, 16 * MIB, NULL, NULL));
}
static void do_close_queue(void)
{
	static char text[64];
	FOREVER(int queue = message_queue(65536, sizeof text);
		for (int i = 0; i < 65536; i++)
			syscall(SYS_mq_timedsend, queue, text, sizeof text, i % 32768, NULL);
		close(queue));
}
static void do_semop(void)
{
	static struct sembuf operations[500];
	int id = semget(IPC_PRIVATE, 32000, 0600);
	for (int i = 0; i < 500; i++)
		operations[i] = (struct sembuf){ i * 64, i < 499, SEM_UNDO | IPC_NOWAIT };
	operations[499].sem_op = -1;
	FOREVER(semop(id, operations, 500); operations[499].sem_op = 1; semop(id, operations, 499));
}
static void do_semctl(void)
{
	static unsigned short values[32000];
	int id = semget(IPC_PRIVATE, 32000, 0600);
	FOREVER(semctl(id, 0, SETALL, values); semctl(id, 0, GETALL, values));
}
static void do_msgrcv(void)
{
	static struct { long type; char text[8]; } message = { 2, "" };
	int id = msgget(IPC_PRIVATE, 0600);
	while (msgsnd(id, &message, 0, IPC_NOWAIT) == 0)
		;
	FOREVER(msgrcv(id, &message, 8, -1, IPC_NOWAIT));
}
static void do_shmdt(void)
{
	int id = shmget(IPC_PRIVATE, 64 * MIB, 0600);
	FOREVER(char *at = shmat(id, NULL, 0);
		for (unsigned long done = 0; done < 64 * MIB; done += 8192)
			mprotect(at + done, 4096, PROT_READ);
		shmdt(at));
}
static void do_robust_list(void)
{
	/* A circular list without an end. */
	static struct robust_list_head head;
	static struct robust_list first;
	first.next = &first;
	head.list.next = &first;
	syscall(SYS_set_robust_list, &head, sizeof head);
	FOREVER();
}
static void do_setgroups(void) { FOREVER(syscall(SYS_setgroups, 65536, piece); syscall(SYS_getgroups, 65536, piece)); }
static void do_setxattr(void)
{
	int fd = memory_file(0);
	FOREVER(syscall(SYS_fsetxattr, fd, "user.x", piece, 60000, 0); syscall(SYS_setxattr, "/kill-any.file", "trusted.x", piece, 60000, 0));
}
static void do_kill(void) { FOREVER(kill(-1, 0)); }
static void do_rt_sigqueueinfo(void)
{
	sigset_t all;
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, NULL);
	FOREVER(sigqueue(getpid(), SIGRTMIN, (union sigval){ 0 }));
}
static void do_sync(void) { FOREVER(sync()); }
static void do_syslog(void) { FOREVER(syscall(SYS_syslog, 3, alias, 16 * MIB)); }
static void do_sendmmsg(void)
{
	static struct mmsghdr messages[1024];
	int pair[2];
	NEED(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
	for (int i = 0; i < 1024; i++)
		messages[i].msg_hdr = (struct msghdr){ .msg_iov = iov, .msg_iovlen = 1 };
	FOREVER(syscall(SYS_sendmmsg, pair[0], messages, 1024, MSG_DONTWAIT); syscall(SYS_recvmmsg, pair[1], messages, 1024, MSG_DONTWAIT, NULL));
}
static void do_sendmsg(void)
{
	int pair[2];
	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	struct msghdr message = { .msg_iov = iov, .msg_iovlen = 1024 };
	if (fork() == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			read(pair[1], alias, 2 * MIB);
	}
	FOREVER(sendmsg(pair[0], &message, 0));
}
/* Lists of as many sockets as a process may have. */
static void many_sockets(int family, int kind)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	for (int fd; (fd = socket(family, kind, 0)) >= 0 && fd < 990;)
		if (family == AF_INET)
			bind(fd, (struct sockaddr *)&name, sizeof name);
}
static void do_list_of_unix(void) { many_sockets(AF_UNIX, SOCK_STREAM); read_proc("/proc/net/unix", 1 << 20); }
static void do_list_of_udp(void) { many_sockets(AF_INET, SOCK_DGRAM); read_proc("/proc/net/udp", 1 << 20); }
/* As many requests as a send holds, or one request with a long tail. */
static void do_netlink(void)
{
	static struct nlmsghdr many[12000];
	for (int i = 0; i < 12000; i++)
		many[i] = (struct nlmsghdr){ 16, i % 2 ? NLMSG_NOOP : 200, NLM_F_REQUEST | NLM_F_ACK, i, 0 };
	int fd = socket(AF_NETLINK, SOCK_RAW, 0);
	FOREVER(send(fd, many, sizeof many, 0); while (recv(fd, alias, 2 * MIB, MSG_DONTWAIT) > 0); many->nlmsg_len = many->nlmsg_len == 16 ? sizeof many : 16);
}
/* Long packets that many sockets get copies of. */
static void do_raw(void)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
	for (int i = 0; i < 900; i++)
		socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
	FOREVER(sendto(fd, alias, 60000, 0, (struct sockaddr *)&name, sizeof name));
}
/* The same as frames. */
static void do_frames(void)
{
	struct sockaddr_ll to = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IP), .sll_ifindex = 1 };
	int fd = socket(AF_PACKET, SOCK_DGRAM, 0);
	for (int i = 0; i < 900; i++)
		socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
	FOREVER(sendto(fd, alias, 60000, 0, (struct sockaddr *)&to, sizeof to));
}
/* A ring that takes half of the memory. */
static void do_ring_of_frames(void)
{
	struct tpacket_req ring = { 1 << 20, 120, 1 << 16, 120 << 4 }, none = { 0 };
	int fd = socket(AF_PACKET, SOCK_RAW, 0);
	FOREVER(setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &ring, sizeof ring); setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &none, sizeof none));
}
static void do_list_of_diag(void)
{
	struct {
		struct nlmsghdr head;
		struct inet_diag_req_v2 what;
	} all = { { sizeof all, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, 1, 0 }, { AF_INET, IPPROTO_UDP, 0xff, 0, ~0u, { 0 } } };
	int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG);
	many_sockets(AF_INET, SOCK_DGRAM);
	FOREVER(send(fd, &all, sizeof all, 0); while (recv(fd, alias, 2 * MIB, MSG_DONTWAIT) > 0));
}
static int ring_fd;
static unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail;
static struct io_uring_sqe *sqes;
static void make_ring(void)
{
	struct io_uring_params p = { 0 };
	ring_fd = syscall(SYS_io_uring_setup, 64, &p);
	if (ring_fd < 0)
		_exit(0);
	char *sq = mmap(NULL, p.sq_off.array + p.sq_entries * 4, 3, MAP_SHARED, ring_fd, IORING_OFF_SQ_RING);
	char *cq = mmap(NULL, p.cq_off.cqes + p.cq_entries * 16, 3, MAP_SHARED, ring_fd, IORING_OFF_CQ_RING);
	sqes = mmap(NULL, p.sq_entries * 64, 3, MAP_SHARED, ring_fd, IORING_OFF_SQES);
	sq_tail = (unsigned *)(sq + p.sq_off.tail);
	sq_mask = (unsigned *)(sq + p.sq_off.ring_mask);
	sq_array = (unsigned *)(sq + p.sq_off.array);
	cq_head = (unsigned *)(cq + p.cq_off.head);
	cq_tail = (unsigned *)(cq + p.cq_off.tail);
}
static void ring_loop(int opcode, int fd, unsigned count)
{
	make_ring();
	be_ready();
	for (;;) {
		for (unsigned i = 0; i < count; i++) {
			unsigned at = (*sq_tail + i) & *sq_mask;
			sqes[at] = (struct io_uring_sqe){ .opcode = opcode, .fd = fd, .addr = (uint64_t)iov, .len = 1024, .off = 0 };
			if (opcode == IORING_OP_FALLOCATE)
				sqes[at] = (struct io_uring_sqe){ .opcode = opcode, .fd = fd, .addr = 1ul << 48, .len = 0, .off = 0 };
			sq_array[at] = at;
		}
		__atomic_store_n(sq_tail, *sq_tail + count, __ATOMIC_RELEASE);
		syscall(SYS_io_uring_enter, ring_fd, count, count, IORING_ENTER_GETEVENTS, NULL, 0);
		*cq_head = __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE);
	}
}
static void do_ring_readv(void) { ring_loop(IORING_OP_READV, hole, 8); }
static void do_ring_writev(void) { ring_loop(IORING_OP_WRITEV, memory_file(0), 1); }
static void do_ring_fallocate(void) { ring_loop(IORING_OP_FALLOCATE, small, 1); }
static void do_ring_register(void)
{
	make_ring();
	no_memlock();
	struct iovec whole = { alias, GIB };
	FOREVER(syscall(SYS_io_uring_register, ring_fd, IORING_REGISTER_BUFFERS, &whole, 1);
		syscall(SYS_io_uring_register, ring_fd, IORING_UNREGISTER_BUFFERS, NULL, 0));
}
static void context_loop(int operation, int fd)
{
	aio_context_t context = 0;
	if (syscall(SYS_io_setup, 8, &context) != 0)
		_exit(0);
	struct iocb block = { .aio_lio_opcode = operation, .aio_fildes = fd, .aio_buf = (uintptr_t)iov, .aio_nbytes = 1024 };
	struct iocb *all[8] = { &block, &block, &block, &block, &block, &block, &block, &block };
	struct io_event events[8];
	FOREVER(syscall(SYS_io_getevents, context, 0, syscall(SYS_io_submit, context, 8, all), events, NULL));
}
static void do_submit_readv(void) { context_loop(IOCB_CMD_PREADV, hole); }
static void do_submit_writev(void) { context_loop(IOCB_CMD_PWRITEV, memory_file(0)); }
/* A disk, where there is one (--disk). */
static int disk(int flags)
{
	int fd = open("/dev/vda", O_RDWR | flags);
	if (fd < 0) {
		be_ready();
		_exit(0);
	}
	return fd;
}
static void do_read_disk(void) { int fd = disk(0); FOREVER(pread(fd, alias, MOST, 0); posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED)); }
static void do_read_direct(void) { int fd = disk(O_DIRECT); FOREVER(pread(fd, alias, MOST, 0)); }
static void do_write_disk(void) { int fd = disk(0); FOREVER(pwrite(fd, alias, MOST, 0)); }
static void do_fsync(void) { int fd = disk(0); FOREVER(pwrite(fd, alias, 16 * MIB, 0); fsync(fd)); }
static void do_ring_disk(void) { ring_loop(IORING_OP_READV, disk(0), 1); }
static void do_ring_direct(void) { ring_loop(IORING_OP_READV, disk(O_DIRECT), 1); }

/* Two processes use the same file: the second waits for the first, and is killed. */
static void do_wait_for_file(void)
{
	if (fork() == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			syscall(SYS_fallocate, small, 1, 0ul, 1ul << 48);
	}
	FOREVER(write(small, "x", 1); read(hole, piece, 1));
}

/* Installs a filter that asks a listener about getpgid, and returns the listener. */
static int listen_to_oneself(void)
{
	struct sock_filter code[] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpgid, 0, 1),
				      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
	struct sock_fprog program = { 4, code };
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER | 32 /* WAIT_KILLABLE_RECV */, &program);
}

static void do_ask(void)
{
	listen_to_oneself();
	FOREVER(syscall(SYS_getpgid, 0));
}

/* A child asks, and is killed while its question has been received. */
static void do_ask_and_receive(void)
{
	int listener = listen_to_oneself();
	if (fork() == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			syscall(SYS_getpgid, 0);
	}
	struct seccomp_notif call;
	FOREVER(memset(&call, 0, sizeof call); ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call));
}

static void do_fault(void) { FOREVER(touch(wide, WIDE)); }
static void do_fault_shared(void) { FOREVER(touch(shared, HUGE_FILE)); }

/* Many areas, and calls that walk them. */
static void make_areas(void)
{
	char *at = mmap(NULL, 128 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < (quick ? 4000 : 16000); i++)
		mprotect(at + i * 8192ul, 4096, PROT_READ);
}
static void do_maps_of_many(void) { make_areas(); read_proc("/proc/self/maps", 1 << 20); }
static void do_smaps_of_many(void) { make_areas(); read_proc("/proc/self/smaps", 1 << 20); }
static void do_many_areas(void)
{
	make_areas();
	FOREVER(mlockall(MCL_CURRENT | MCL_ONFAULT); munlockall());
}

/* Missing pages of the program's own that no monitor serves; kernel and program touch them. */
static char *missing_pages(void)
{
	int monitor = (int)syscall(SYS_userfaultfd, O_NONBLOCK);
	char *at = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t agreed[3] = { 0xaa, 0, 0 }, wish[4] = { (uintptr_t)at, 1 << 20, 1, 0 };
	ioctl(monitor, 0xc018aa3f /* UFFDIO_API */, agreed);
	ioctl(monitor, 0xc020aa00 /* UFFDIO_REGISTER */, wish);
	return at;
}

static void do_missing(void)
{
	volatile char *at = missing_pages();
	FOREVER(*at);
}

static void do_read_missing(void)
{
	char *at = missing_pages();
	int zero = open("/dev/zero", O_RDONLY);
	FOREVER(read(zero, at, 1 << 20));
}

static void do_lock_missing(void)
{
	char *at = missing_pages();
	FOREVER(mlock(at, 1 << 20));
}

static void do_pin_missing(void)
{
	char *at = missing_pages(), byte;
	struct iovec here = { &byte, 1 }, there = { at, 1 };
	FOREVER(process_vm_readv(getpid(), &here, 1, &there, 1, 0));
}

/* Leaves a core file of the memory that `filter` selects. The parent removes the unfinished file
 * after its kill. */
static void leave_core(const char *filter)
{
	struct rlimit any = { RLIM_INFINITY, RLIM_INFINITY };
	int fd = open("/proc/self/coredump_filter", O_WRONLY);
	NEED(fd >= 0 && write(fd, filter, strlen(filter)) > 0 && chdir("/tmp") == 0 && setrlimit(RLIMIT_CORE, &any) == 0);
	close(fd);
	munmap(shared, HUGE_FILE);
	be_ready();
	raise(SIGQUIT);
}
static void do_core(void) { fill_heap(); leave_core("1"); }
static void do_core_shared(void) { leave_core("2"); }
static void do_core_wide(void) { wide[WIDE - 1] = 1; leave_core("1"); }
static void *rests(void *unused) { for (;;) pause(); return unused; }
static void do_core_threads(void)
{
	pthread_t thread;
	for (int i = 0; i < (quick ? 50 : 500); i++)
		pthread_create(&thread, NULL, rests, NULL);
	leave_core("0");
}

struct row {
	int number;
	const char *name;
	void (*child)(void);
};

static const struct row rows[] = {
	{ SYS_read, "read /dev/zero", do_read },
	{ SYS_read, "read a hole", do_read_hole },
	{ SYS_read, "read /dev/urandom", do_read_random },
	{ SYS_read, "read into new memory", do_read_private },
	{ SYS_read, "read into a page that a program is to provide", do_read_missing },
	{ SYS_userfaultfd, "a load of a page that a program is to provide", do_missing },
	{ SYS_mlock, "mlock pages that a program is to provide", do_lock_missing },
	{ SYS_process_vm_readv, "process_vm_readv a page that a program is to provide", do_pin_missing },
	{ SYS_readv, "readv /dev/zero", do_readv },
	{ SYS_readv, "readv a hole", do_readv_hole },
	{ SYS_pread64, "pread64", do_pread64 },
	{ SYS_pread64, "pread64 a file", do_read_file },
	{ SYS_preadv, "preadv", do_preadv },
	{ SYS_preadv2, "preadv2", do_preadv2 },
	{ SYS_write, "write /dev/null", do_write_null },
	{ SYS_pwrite64, "pwrite64 new files", do_write },
	{ SYS_write, "write a pipe", do_write_pipe },
	{ SYS_writev, "writev", do_writev },
	{ SYS_writev, "writev that grows", do_writev_grow },
	{ SYS_pwritev, "pwritev", do_pwritev },
	{ SYS_pwritev2, "pwritev2", do_pwritev2 },
	{ SYS_getrandom, "getrandom", do_getrandom },
	{ SYS_sendfile, "sendfile a hole", do_sendfile },
	{ SYS_sendfile, "sendfile /dev/zero", do_sendfile_zero },
	{ SYS_copy_file_range, "copy_file_range", do_copy_file_range },
	{ SYS_splice, "splice into a pipe", do_splice_in },
	{ SYS_splice, "splice out of a pipe", do_splice_out },
	{ SYS_splice, "splice between pipes", do_splice_pipes },
	{ SYS_tee, "tee", do_tee },
	{ SYS_vmsplice, "vmsplice", do_vmsplice },
	{ SYS_fallocate, "fallocate 2^48", do_fallocate },
	{ SYS_fallocate, "fallocate KEEP_SIZE", do_fallocate_keep },
	{ SYS_fallocate, "fallocate ZERO_RANGE KEEP_SIZE", do_fallocate_zero },
	{ SYS_fallocate, "fallocate ZERO_RANGE", do_fallocate_zero_grow },
	{ SYS_fallocate, "fallocate with many holes", do_fallocate_holes },
	{ SYS_fallocate, "fallocate PUNCH_HOLE", do_fallocate_punch },
	{ SYS_fallocate, "fallocate PUNCH_HOLE mapped", do_punch_mapped },
	{ SYS_truncate, "truncate", do_truncate },
	{ SYS_ftruncate, "ftruncate", do_ftruncate },
	{ SYS_unlink, "unlink", do_unlink },
	{ SYS_lseek, "lseek in a hole", do_lseek },
	{ SYS_lseek, "lseek in a file", do_lseek_full },
	{ SYS_close, "close the last of a file", do_close },
	{ SYS_mmap, "mmap MAP_POPULATE shared", do_mmap_populate },
	{ SYS_mmap, "mmap MAP_POPULATE zero", do_mmap_populate_zero },
	{ SYS_mmap, "mmap MAP_POPULATE private", do_mmap_populate_private },
	{ SYS_mprotect, "mprotect", do_mprotect },
	{ SYS_mprotect, "mprotect wide", do_mprotect_wide },
	{ SYS_munmap, "munmap", do_munmap },
	{ SYS_munmap, "munmap wide", do_munmap_wide },
	{ SYS_brk, "brk", do_brk },
	{ SYS_mremap, "mremap", do_mremap },
	{ SYS_mremap, "mremap wide", do_mremap_wide },
	{ SYS_remap_file_pages, "remap_file_pages", do_remap_file_pages },
	{ SYS_msync, "msync", do_msync },
	{ SYS_mincore, "mincore", do_mincore },
	{ SYS_mincore, "mincore a hole", do_mincore_hole },
	{ SYS_madvise, "madvise WILLNEED", do_madvise_willneed },
	{ SYS_madvise, "madvise WILLNEED file", do_madvise_willneed_file },
	{ SYS_madvise, "madvise DONTNEED", do_madvise_dontneed },
	{ SYS_madvise, "madvise DONTNEED file", do_madvise_dontneed_file },
	{ SYS_madvise, "madvise FREE", do_madvise_free },
	{ SYS_madvise, "madvise UNMERGEABLE", do_madvise_unmergeable },
	{ SYS_madvise, "madvise UNMERGEABLE file", do_madvise_unmergeable_file },
	{ SYS_madvise, "madvise FREE file", do_madvise_free_file },
	{ SYS_madvise, "madvise COLD", do_madvise_cold },
	{ SYS_madvise, "madvise COLD file", do_madvise_cold_file },
	{ SYS_madvise, "madvise PAGEOUT", do_madvise_pageout },
	{ SYS_madvise, "madvise PAGEOUT file", do_madvise_pageout_file },
	{ SYS_madvise, "madvise POPULATE_READ", do_madvise_populate_read },
	{ SYS_madvise, "madvise POPULATE_READ file", do_madvise_populate_read_file },
	{ SYS_madvise, "madvise POPULATE_WRITE", do_madvise_populate_write },
	{ SYS_madvise, "madvise POPULATE_WRITE file", do_madvise_populate_write_file },
	{ SYS_madvise, "madvise COLLAPSE", do_madvise_collapse },
	{ SYS_madvise, "madvise COLLAPSE file", do_madvise_collapse_file },
	{ SYS_madvise, "madvise HUGEPAGE", do_madvise_hugepage },
	{ SYS_madvise, "madvise HUGEPAGE file", do_madvise_hugepage_file },
	{ SYS_madvise, "madvise REMOVE", do_madvise_remove },
	{ SYS_madvise, "madvise REMOVE file", do_madvise_remove_file },
	{ SYS_mlock, "mlock", do_mlock },
	{ SYS_mlock, "mlock a file", do_mlock_file },
	{ SYS_mlock2, "mlock2 ONFAULT", do_mlock2 },
	{ SYS_mlockall, "mlockall", do_mlockall },
	{ SYS_mlockall, "mlockall of many areas", do_many_areas },
	{ SYS_mbind, "mbind", do_mbind },
	{ SYS_migrate_pages, "migrate_pages", do_migrate_pages },
	{ SYS_move_pages, "move_pages asks", do_move_pages },
	{ SYS_move_pages, "move_pages moves", do_move_pages_to },
	{ SYS_get_mempolicy, "get_mempolicy", do_get_mempolicy },
	{ SYS_process_vm_readv, "process_vm_readv", do_process_vm_readv },
	{ SYS_process_vm_writev, "process_vm_writev", do_process_vm_writev },
	{ SYS_read, "read smaps", do_smaps },
	{ SYS_read, "read smaps_rollup", do_smaps_rollup },
	{ SYS_read, "read numa_maps", do_numa_maps },
	{ SYS_read, "read maps", do_maps },
	{ SYS_read, "read maps of many areas", do_maps_of_many },
	{ SYS_read, "read smaps of many areas", do_smaps_of_many },
	{ SYS_read, "read /proc/net/unix", do_list_of_unix },
	{ SYS_read, "read /proc/net/udp", do_list_of_udp },
	{ SYS_read, "read pagemap", do_pagemap },
	{ SYS_read, "read kpagecount", do_kpagecount },
	{ SYS_read, "read kpageflags", do_kpageflags },
	{ SYS_read, "read and write mem", do_mem },
	{ SYS_write, "write clear_refs", do_clear_refs },
	{ SYS_write, "write drop_caches", do_drop_caches },
	{ SYS_write, "write compact_memory", do_compact_memory },
	{ SYS_write, "write buffer_size_kb", do_trace_size },
	{ SYS_read, "read trace", do_trace_read },
	{ SYS_write, "write memory1/state", do_hotplug_write },
	{ SYS_ioctl, "ioctl PAGEMAP_SCAN", do_pagemap_scan },
	{ SYS_close_range, "close_range", do_close_range },
	{ SYS_poll, "poll", do_poll },
	{ SYS_select, "select", do_select },
	{ SYS_epoll_wait, "epoll_wait", do_epoll },
	{ SYS_getdents64, "getdents64", do_getdents64 },
	{ SYS_execve, "execve of large arguments", do_execve },
	{ SYS_execve, "execve", do_execve_self },
	{ SYS_fork, "fork", do_fork },
	{ SYS_exit_group, "the end of much memory", do_exit_group },
	{ SYS_exit_group, "the end of wide areas", do_exit_wide },
	{ SYS_exit_group, "the end of many mappings", do_exit_alias },
	{ SYS_futex, "futex", do_futex },
	{ 449, "futex_waitv", do_futex_waitv },
	{ 440, "process_madvise", do_process_madvise },
	{ SYS_mq_timedsend, "mq_timedsend", do_mq_timedsend },
	{ SYS_mq_timedreceive, "the end of a message queue", do_close_queue },
	{ SYS_semop, "semop", do_semop },
	{ SYS_semctl, "semctl", do_semctl },
	{ SYS_msgrcv, "msgrcv", do_msgrcv },
	{ SYS_shmdt, "shmdt of many pieces", do_shmdt },
	{ SYS_set_robust_list, "a robust list without end", do_robust_list },
	{ SYS_setgroups, "setgroups", do_setgroups },
	{ SYS_setxattr, "setxattr", do_setxattr },
	{ SYS_kill, "kill -1", do_kill },
	{ SYS_rt_sigqueueinfo, "rt_sigqueueinfo", do_rt_sigqueueinfo },
	{ SYS_sync, "sync", do_sync },
	{ SYS_syslog, "syslog", do_syslog },
	{ SYS_sendmmsg, "sendmmsg", do_sendmmsg },
	{ SYS_sendto, "sendto netlink", do_netlink },
	{ SYS_recvfrom, "recvfrom netlink", do_list_of_diag },
	{ SYS_sendto, "sendto raw", do_raw },
	{ SYS_sendto, "sendto frames", do_frames },
	{ SYS_setsockopt, "setsockopt rings of frames", do_ring_of_frames },
	{ SYS_sendmsg, "sendmsg", do_sendmsg },
	{ SYS_io_uring_enter, "io_uring READV", do_ring_readv },
	{ SYS_io_uring_enter, "io_uring WRITEV", do_ring_writev },
	{ SYS_io_uring_enter, "io_uring FALLOCATE", do_ring_fallocate },
	{ SYS_io_uring_register, "io_uring register", do_ring_register },
	{ SYS_io_submit, "io_submit PREADV", do_submit_readv },
	{ SYS_io_submit, "io_submit PWRITEV", do_submit_writev },
	{ SYS_pread64, "read a disk", do_read_disk },
	{ SYS_pread64, "read a disk directly", do_read_direct },
	{ SYS_pwrite64, "write a disk", do_write_disk },
	{ SYS_fsync, "fsync", do_fsync },
	{ SYS_io_uring_enter, "io_uring READV of a disk", do_ring_disk },
	{ SYS_io_uring_enter, "io_uring READV of a disk directly", do_ring_direct },
	{ SYS_write, "write that waits for a fallocate", do_wait_for_file },
	{ SYS_getpgid, "call that asks a listener", do_ask },
	{ SYS_ioctl, "receive a call as a listener", do_ask_and_receive },
	{ -1, "core file", do_core },
	{ -1, "core file of shared memory", do_core_shared },
	{ -1, "core file of a wide area", do_core_wide },
	{ -1, "core file of many threads", do_core_threads },
	{ -1, "page faults", do_fault },
	{ -1, "page faults of a file", do_fault_shared },
};
#define ROWS (sizeof rows / sizeof *rows)

/* ---- rows whose work a constant bounds ---- */

/* Calls that at most sleep, or whose work does not depend on a length. Where that is simple, their
 * arguments pass the first checks. */
static const int bounded[] = {
	SYS_open, SYS_stat, SYS_fstat, SYS_lstat, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_access, SYS_pipe, SYS_sched_yield, SYS_dup, SYS_dup2,
	SYS_pause, SYS_nanosleep, SYS_getitimer, SYS_alarm, SYS_setitimer, SYS_getpid, SYS_socket, SYS_connect, SYS_accept, SYS_sendto, SYS_recvfrom,
	SYS_recvmsg, SYS_shutdown, SYS_bind, SYS_listen, SYS_getsockname, SYS_getpeername, SYS_socketpair, SYS_setsockopt, SYS_getsockopt, SYS_wait4,
	SYS_uname, SYS_fcntl, SYS_flock, SYS_fdatasync, SYS_getdents, SYS_getcwd, SYS_chdir, SYS_fchdir, SYS_rename, SYS_mkdir, SYS_rmdir,
	SYS_creat, SYS_link, SYS_symlink, SYS_readlink, SYS_chmod, SYS_fchmod, SYS_chown, SYS_fchown, SYS_lchown, SYS_umask, SYS_gettimeofday,
	SYS_getrlimit, SYS_getrusage, SYS_sysinfo, SYS_times, SYS_getuid, SYS_getgid, SYS_setuid, SYS_setgid, SYS_geteuid, SYS_getegid, SYS_setpgid,
	SYS_getppid, SYS_getpgrp, SYS_setsid, SYS_vhangup, SYS_setreuid, SYS_setregid, SYS_getgroups, SYS_setresuid, SYS_getresuid, SYS_setresgid, SYS_getresgid,
	SYS_setfsuid, SYS_setfsgid, SYS_getsid, SYS_capget, SYS_capset, SYS_rt_sigpending, SYS_rt_sigtimedwait, SYS_rt_sigsuspend,
	SYS_sigaltstack, SYS_sysfs, SYS_ustat, SYS_utime, SYS_mknod, SYS_statfs, SYS_fstatfs, SYS_getpriority, SYS_setpriority, SYS_sched_setparam, SYS_sched_getparam,
	SYS_sched_setscheduler, SYS_sched_getscheduler, SYS_sched_get_priority_max, SYS_sched_get_priority_min, SYS_sched_rr_get_interval,
	SYS_munlock, SYS_munlockall, SYS_prctl, SYS_arch_prctl, SYS_setrlimit, SYS_chroot, SYS_settimeofday, SYS_mount, SYS_umount2, SYS_swapon,
	SYS_swapoff, SYS_sethostname, SYS_setdomainname, SYS_gettid, SYS_readahead, SYS_lsetxattr, SYS_fsetxattr, SYS_getxattr, SYS_lgetxattr,
	SYS_fgetxattr, SYS_listxattr, SYS_llistxattr, SYS_flistxattr, SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr, SYS_tkill, SYS_time,
	SYS_sched_setaffinity, SYS_sched_getaffinity, SYS_io_setup, SYS_io_destroy, SYS_io_getevents, SYS_io_cancel, SYS_io_pgetevents, SYS_epoll_create, SYS_set_tid_address, SYS_restart_syscall, SYS_fadvise64, SYS_timer_create,
	SYS_timer_settime, SYS_timer_gettime, SYS_timer_getoverrun, SYS_timer_delete, SYS_clock_settime, SYS_clock_gettime, SYS_clock_getres,
	SYS_clock_nanosleep, SYS_epoll_ctl, SYS_tgkill, SYS_utimes, SYS_set_mempolicy, SYS_waitid, SYS_openat, SYS_mkdirat, SYS_mknodat, SYS_fchownat,
	SYS_ptrace, SYS_personality, SYS_reboot, SYS_iopl, SYS_ioperm, SYS_pidfd_open, SYS_pidfd_send_signal, 438 /* pidfd_getfd */, SYS_shmget, SYS_shmat, SYS_shmctl, SYS_semget, SYS_semtimedop, SYS_msgget, SYS_msgsnd, SYS_msgctl,
	SYS_futimesat, SYS_newfstatat, SYS_unlinkat, SYS_renameat, SYS_linkat, SYS_symlinkat, SYS_readlinkat, SYS_fchmodat, SYS_faccessat,
	SYS_pselect6, SYS_ppoll, SYS_unshare, SYS_setns, SYS_pivot_root, SYS_get_robust_list, SYS_sync_file_range, SYS_utimensat, SYS_epoll_pwait, SYS_signalfd,
	SYS_timerfd_create, SYS_eventfd, SYS_timerfd_settime, SYS_timerfd_gettime, SYS_accept4, SYS_signalfd4, SYS_eventfd2, SYS_epoll_create1,
	SYS_inotify_init, SYS_inotify_init1, SYS_inotify_add_watch, SYS_inotify_rm_watch, SYS_fanotify_init, SYS_fanotify_mark,
	SYS_dup3, SYS_pipe2, SYS_rt_tgsigqueueinfo, SYS_recvmmsg, SYS_prlimit64, SYS_syncfs, SYS_getcpu, SYS_renameat2, SYS_memfd_create,
	SYS_execveat, SYS_seccomp, SYS_membarrier, SYS_rseq, SYS_statx, SYS_io_uring_setup, SYS_openat2, SYS_faccessat2, 441 /* epoll_pwait2 */, 447 /* memfd_secret */, 448 /* process_mrelease */, 450 /* set_mempolicy_home_node */,
	428 /* open_tree */, 429 /* move_mount */, 430 /* fsopen */, 431 /* fsconfig */, 432 /* fsmount */, 433 /* fspick */, 442 /* mount_setattr */,
	452 /* fchmodat2 */, SYS_name_to_handle_at, SYS_open_by_handle_at, SYS_adjtimex, SYS_clock_adjtime, SYS_ioprio_set, SYS_ioprio_get, SYS_kcmp, SYS_sched_setattr, SYS_sched_getattr,
	SYS_mq_open, SYS_mq_unlink, SYS_mq_notify, SYS_mq_getsetattr, 329 /* pkey_mprotect */, 330 /* pkey_alloc */, 331 /* pkey_free */, 454 /* futex_wake */, 455 /* futex_wait */, 456 /* futex_requeue */,
	/* A quota bounds the keys. */
	SYS_add_key, SYS_request_key, SYS_keyctl,
	/* These replace, end or copy the caller, or are variants of a row above. */
	SYS_rt_sigreturn, SYS_clone, SYS_vfork, SYS_exit, SYS_clone3,
};
#define BOUNDED (sizeof bounded / sizeof *bounded)

static int has_row(int number)
{
	for (size_t i = 0; i < ROWS; i++)
		if (rows[i].number == number)
			return 1;
	for (size_t i = 0; i < BOUNDED; i++)
		if (bounded[i] == number)
			return 1;
	return 0;
}

/* Whether the kernel implements call `number`: a child makes the call with arguments that are
 * never valid. */
static int is_answered(int number)
{
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		long answer = syscall(number, -1, -1, -1, -1, -1, -1);
		_exit(answer == -1 && errno == ENOSYS ? 77 : 0);
	}
	int status = 0;
	for (int tries = 0; waitpid(child, &status, WNOHANG) == 0; tries++) {
		if (tries == 20)
			kill(child, SIGKILL);
		sleep_ms(1);
	}
	return !(WIFEXITED(status) && WEXITSTATUS(status) == 77);
}

/* Names each call that the kernel knows and the table does not. */
static int check_table(void)
{
	int missing = 0, answered = 0;
	for (int number = 0; number < 512; number++) {
		if (has_row(number)) {
			answered++;
			continue;
		}
		if (is_answered(number)) {
			printf("system call %d has no row in guest/workloads/kill-any.c\n", number);
			missing++;
		}
	}
	printf("kill-any: %d calls have a row, %d have none\n", answered, missing);
	return missing != 0;
}

/* ---- killing ---- */

static int64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void sleep_until(int64_t ns)
{
	struct timespec t = { ns / 1000000000, ns % 1000000000 };
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

/* Nanoseconds in which no CPU had anything to do, to 10 ms. Under --icount this time passes
 * without instructions while a task waits for a disk. */
static int64_t idle_ns(void)
{
	double up = 0, idle = 0;
	FILE *file = fopen("/proc/uptime", "r");
	NEED(file && fscanf(file, "%lf %lf", &up, &idle) == 2);
	fclose(file);
	return (int64_t)(idle * 1e9);
}

static void set_score(const char *score)
{
	int fd = open("/proc/self/oom_score_adj", O_WRONLY);
	NEED(fd >= 0 && write(fd, score, strlen(score)) == (ssize_t)strlen(score));
	close(fd);
}

static void bounded_loop(int number)
{
	long a = number == SYS_pause || number == SYS_rt_sigsuspend ? 0 : -1;
	be_ready();
	switch (number) {
	case SYS_exit: case SYS_rt_sigreturn:
		syscall(number, 0);
		_exit(0);
	case SYS_vfork: case SYS_clone: case SYS_clone3:
		do_fork();
	}
	for (;;)
		syscall(number, a, piece, 4096l, piece + MIB, 4096l, 0l);
}

/* Nanoseconds from the moment a kill was due to the child's end; what the children leave is reaped
 * too. */
static int64_t kill_once(const struct row *row, struct dice *dice, int64_t longest)
{
	*ready = 0;
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		signal(SIGPIPE, SIG_IGN);
		setpgid(0, 0);
		set_score("500");
		NEED(pipe(pages) == 0);
		fcntl(pages[1], F_SETPIPE_SZ, 1 << 20);
		if (row->child)
			row->child();
		else
			bounded_loop(row->number);
		_exit(0);
	}
	while (!*ready && waitpid(child, NULL, WNOHANG) == 0)
		sleep_until(now_ns() + 200000);
	int64_t idle = idle_ns(), due = now_ns() + 1000 + draw(dice) % longest;
	sleep_until(due);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	int64_t taken = now_ns() - due - (idle_ns() - idle);
	kill(-child, SIGKILL);
	unlink("/tmp/core");
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
	return taken;
}

int main(int count, char **arguments)
{
	int64_t limit = 100;
	unsigned long kept = 0;
	int option, only_table = 0;
	while ((option = getopt(count, arguments, "ql:m:tx")) != -1)
		switch (option) {
		case 'q': quick = 1; break;
		case 'l': limit = atoll(optarg); break;
		case 'm': kept = strtoul(optarg, NULL, 0) * MIB; break;
		case 't': only_table = 1; break;
		case 'x': for (;;) { char *self[] = { "kill-any", "-x", NULL }; execv("/proc/self/exe", self); _exit(1); }
		default: return 2;
		}
	ready = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(ready != MAP_FAILED);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	if (only_table)
		return check_table();
	/* If memory runs out, the kernel must kill the children and not this process. */
	set_score("-1000");
	prepare();
	if (kept) {
		char *held = mmap(NULL, kept, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		NEED(held != MAP_FAILED);
		touch(held, kept);
	}
	struct dice dice = { 0x1234567 };
	int failed = 0, rounds = quick ? 1 : 5;
	for (size_t i = 0; i < ROWS + BOUNDED; i++) {
		char name[32];
		struct row row = i < ROWS ? rows[i] : (struct row){ bounded[i - ROWS], name, NULL };
		snprintf(name, sizeof name, "call %d", row.number);
		int wanted = optind == count;
		for (int j = optind; j < count; j++)
			wanted |= strstr(row.name, arguments[j]) != NULL;
		if (!wanted)
			continue;
		int64_t worst = 0;
		for (int round = 0; round < (row.child ? rounds : 1); round++) {
			int64_t taken = kill_once(&row, &dice, row.child ? 8000000 : 300000);
			worst = taken > worst ? taken : worst;
		}
		int over = worst > limit * 1000000;
		failed += over;
		if (over || row.child)
			printf("%s %12.3f million  %s\n", over ? "TOO LONG" : "ok      ", worst / 1e6, row.name);
		fflush(stdout);
	}
	printf("kill-any: %d rows above %lld million\n", failed, (long long)limit);
	return failed != 0;
}
