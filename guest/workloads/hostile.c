/*
 * A hostile program: random system calls with random arguments, from many short-lived processes.
 *
 * Usage: hostile SEED PROCESSES [CALLS]. The kernel has to refuse or do what is asked, and to take everything back when a process
 * ends; what the processes do to themselves is their own affair. Prints how they ended and leaves with 0. The same seed
 * makes the same calls, as far as what they hit is the same; with HOSTILE_SHOW set each call is printed before it is made.
 */
#include "../conformance/promise.h"
#include "../tools/dice.h"
#include "../tools/outlast.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#define ARENA (64 * 4096)
#define LAST_CALL 462
#define PATIENCE_MS 150

static struct dice dice;
static int show;
static char *arena;

/* Calls that would end the experiment instead of the process, or reach other processes than its own children. */
static int is_spared(long number)
{
	switch (number) {
	case SYS_reboot:
	case SYS_kill:
	case SYS_tkill:
	case SYS_tgkill:
	case SYS_rt_sigqueueinfo:
	case SYS_rt_tgsigqueueinfo:
	case SYS_pidfd_send_signal:
	case SYS_prlimit64:
	case SYS_vhangup:
	case SYS_umount2:
	case SYS_pivot_root:
	case SYS_chroot:
	case SYS_kexec_load:
	case SYS_kexec_file_load:
	case SYS_init_module:
	case SYS_finit_module:
	case SYS_delete_module:
	case SYS_syslog:
	case SYS_swapoff:
	case SYS_settimeofday:
	case SYS_clock_settime:
	case SYS_adjtimex:
	case SYS_clock_adjtime:
		return 1;
	}
	return 0;
}

static uint64_t number(void)
{
	static const uint64_t odd[] = {
		0, 1, 2, 3, 7, 8, 15, 16, 31, 63, 64, 255, 256, 511, 512, 1000, 1024, 4095, 4096, 4097, 8192, 65535, 65536,
		1 << 20, 1 << 21, 1 << 30, 0x7fffffff, 0x80000000, 0xffffffff, 0x100000000, -1ull, -2ull, -22ull, -4095ull, -4096ull,
		0x7fffffffffffffff, 0x8000000000000000, 0x7ffffffff000, 0x800000000000, 0xffff800000000000,
	};
	switch (below(&dice, 4)) {
	case 0:
		return odd[below(&dice, sizeof odd / sizeof *odd)];
	case 1:
		return below(&dice, 64);
	case 2:
		return 1ull << below(&dice, 64) | 1ull << below(&dice, 64);
	default:
		return draw(&dice) >> below(&dice, 64);
	}
}

static uint64_t address(void)
{
	static const uint64_t wild[] = { 0, 1, 8, 4095, 4096, 0x400000, 0x7ffffffff000, 0x7fffffffffff, 0x800000000000,
					 0xffff800000000000, 0xffff888000000000, 0xffffffff80000000, 0xffffffff81000000, -1ull, -4096ull };
	switch (below(&dice, 8)) {
	case 0:
		return wild[below(&dice, sizeof wild / sizeof *wild)];
	case 1:
		return (uintptr_t)arena + ARENA - below(&dice, 64); /* runs over the end */
	case 2:
		return (uintptr_t)arena + below(&dice, ARENA);
	default:
		return (uintptr_t)arena + (below(&dice, ARENA) & ~63ul);
	}
}

static uint64_t argument(void)
{
	switch (below(&dice, 5)) {
	case 0:
		return below(&dice, 24); /* a descriptor, or a small number */
	case 1:
	case 2:
		return address();
	default:
		return number();
	}
}

/* Memory in which paths, structures and numbers can be found. */
static void prepare_arena(void)
{
	static const char *const paths[] = { "/tmp/h", "/proc/self/maps", "/proc/self/mem", "/dev/null", "/dev/zero", "/proc/self/fd/3",
					     "/tmp", "/", "..", "", "/proc/self/exe", "/dev/ptmx", "/sys/devices/system/node/node0/meminfo",
					     "/proc/self/clear_refs", "/proc/self/pagemap", "/tmp/h/h", "/dev/full", "/dev/tty" };
	arena = mmap(NULL, ARENA + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (arena == MAP_FAILED)
		_exit(100);
	munmap(arena + ARENA, 4096);
	for (unsigned at = 0; at + 64 <= ARENA; at += 64) {
		uint64_t *words = (uint64_t *)(arena + at);
		if (below(&dice, 3) == 0)
			strncpy(arena + at, paths[below(&dice, sizeof paths / sizeof *paths)], 63);
		else
			for (int i = 0; i < 8; i++)
				words[i] = below(&dice, 3) ? number() : address();
	}
}

static void prepare_files(void)
{
	int null = open("/dev/null", O_RDWR), pair[2];
	for (int fd = 0; fd < 3; fd++)
		if (!show || fd == 0)
			dup2(null, fd);
	(void)!pipe(pair);
	(void)!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair);
	open("/tmp/h", O_RDWR | O_CREAT, 0600);
	open("/tmp", O_RDONLY | O_DIRECTORY);
	open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK);
	open("/proc/self/mem", O_RDWR);
	open("/dev/zero", O_RDWR);
	(void)!eventfd(0, EFD_NONBLOCK);
	(void)!epoll_create1(0);
	(void)!timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
	(void)!memfd_create("h", MFD_ALLOW_SEALING);
}

static void limit(int resource, rlim_t most)
{
	struct rlimit limit = { most, most };
	setrlimit(resource, &limit);
}

static void live(int calls)
{
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	limit(RLIMIT_AS, 96 << 20);
	limit(RLIMIT_FSIZE, 1 << 20);
	limit(RLIMIT_CORE, 0);
	prepare_arena();
	prepare_files();
	for (int i = 0; i < calls; i++) {
		long call = below(&dice, LAST_CALL);
		uint64_t a[6];
		for (int k = 0; k < 6; k++)
			a[k] = argument();
		if (is_spared(call))
			continue;
		if (show) {
			dprintf(2, "%d: %ld(%#lx, %#lx, %#lx, %#lx, %#lx, %#lx)\n", getpid(), call, a[0], a[1], a[2], a[3], a[4], a[5]);
		}
		syscall(call, a[0], a[1], a[2], a[3], a[4], a[5]);
	}
	_exit(0);
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: hostile SEED PROCESSES [CALLS]\n");
		return 2;
	}
	uint64_t seed = strtoull(argv[1], NULL, 0);
	int processes = atoi(argv[2]), calls = argc > 3 ? atoi(argv[3]) : 300;
	struct ends ends = { 0 };
	show = getenv("HOSTILE_SHOW") != NULL;
	for (int i = 0; i < processes; i++) {
		pid_t child = fork();
		if (child == 0) {
			dice.state = (seed + 1) * 0x9e3779b97f4a7c15ull + (uint64_t)i * 0xbf58476d1ce4e5b9ull;
			live(calls);
		}
		if (child < 0) {
			perror("hostile: fork");
			return 1;
		}
		outlast(child, PATIENCE_MS, &ends);
	}
	printf("hostile: %d processes ended, %d were signalled, %d waited for too long\n", ends.ended, ends.signalled, ends.killed);
	return 0;
}
