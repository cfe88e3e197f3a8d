/*
 * strings [FIRST [LAST]]: every system call with strings of every awkward length in every place.
 *
 * A call that copies a string which a program chose must not rely on its length. Each call gets
 * the address of a string in all arguments but the first. In the first it gets a number from 0 to
 * 39 (the operations of keyctl(2), prctl(2) and their like), the string, or a short word that means
 * something. The lengths lie around the powers of two up to two pages, and around 108 and 255. The
 * last arguments are the length.
 *
 * Each call's number has a process of its own, which a timer interrupts. The kernel must survive;
 * prints how many calls were made. Calls that would end or stop others are left out.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define OPERATIONS 40
/* Microseconds after which a call that waits is interrupted. */
#define PATIENCE 20000

static const int left_out[] = { SYS_exit, SYS_exit_group, SYS_kill, SYS_tkill, SYS_tgkill, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_pidfd_send_signal, SYS_fork, SYS_vfork, SYS_clone, SYS_clone3, SYS_reboot, SYS_rt_sigreturn,
	SYS_setitimer, SYS_alarm, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_munmap, SYS_mprotect, SYS_ptrace, SYS_seccomp, SYS_umount2, SYS_pivot_root, SYS_swapoff, SYS_ioperm, SYS_arch_prctl };

static int is_left_out(long number)
{
	for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
		if (left_out[i] == number)
			return 1;
	return 0;
}

static void interrupted(int signal)
{
	(void)signal;
}

static unsigned long *made;

static const char *const words[] = { "user", "keyring", "tmpfs", "user.name", "/tmp", "." };

static void fill(char *string, int length)
{
	memset(string, 'a', length);
	string[length] = 0;
}

static void call(long number, long first, long second, long length, char *string)
{
	long text = (long)string;
	syscall(number, first, second, text, text, length, length);
	syscall(number, first, second, text, length, length, length);
	*made += 2;
	/* The calls may have written there. */
	fill(string, length);
}

/* All calls of one number. */
static void all_of(long number, char *strings)
{
	struct sigaction act = { .sa_handler = interrupted };
	struct itimerval often = { { 0, PATIENCE }, { 0, PATIENCE } };
	struct rlimit memory = { 64 << 20, 64 << 20 };
	int null = open("/dev/null", O_RDWR);
	if (chdir("/tmp/strings") || sigaction(SIGALRM, &act, NULL) || setitimer(ITIMER_REAL, &often, NULL) || setrlimit(RLIMIT_AS, &memory)) {
		perror("strings: before the calls");
		_exit(2);
	}
	for (int fd = 0; fd < 3; fd++)
		dup2(null, fd);
	static const int around[] = { 0, 16, 32, 64, 108, 128, 255, 256, 512, 1024, 2048, 4096, 8192 };
	for (size_t i = 0; i < sizeof around / sizeof *around; i++)
		for (int length = around[i] - 1; length <= around[i] + 1; length++) {
			if (length < 0)
				continue;
			fill(strings, length);
			long text = (long)strings;
			for (long operation = 0; operation < OPERATIONS; operation++) {
				call(number, operation, text, length, strings);
				call(number, operation, length, length, strings);
			}
			call(number, text, text, length, strings);
			call(number, text, length, length, strings);
			for (size_t word = 0; word < sizeof words / sizeof *words; word++) {
				call(number, (long)words[word], text, length, strings);
				call(number, (long)words[word], (long)words[word], length, strings);
			}
			unlink(strings);
			rmdir(strings);
		}
	_exit(0);
}

int main(int count, char **arguments)
{
	long first = count > 1 ? atol(arguments[1]) : 0, last = count > 2 ? atol(arguments[2]) : 470, interrupted_calls = 0;
	char *strings = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	made = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (strings == MAP_FAILED || made == MAP_FAILED || (mkdir("/tmp/strings", 0700) && errno != EEXIST))
		return perror("strings"), 1;
	for (long number = first; number <= last; number++) {
		if (is_left_out(number))
			continue;
		pid_t child = fork();
		if (child == 0)
			all_of(number, strings);
		int status = 0;
		if (child < 0)
			return perror("strings: fork"), 1;
		for (int waited = 0; waitpid(child, &status, WNOHANG) == 0; waited++) {
			usleep(2000);
			/* A call that cannot be interrupted, or thousands that wait, end here. */
			if (waited == 2500) {
				kill(child, SIGKILL);
				interrupted_calls++;
			}
		}
		if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
			return 1;
	}
	printf("strings: %lu calls, %ld numbers ended early\n", *made, interrupted_calls);
	return 0;
}
