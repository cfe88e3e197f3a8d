/*
 * memfd_secret(2): memory that only programs with a mapping of it can access. Linux has the call
 * since 5.14. Before 6.5 it needs secretmem.enable=1; without that, this program says so and
 * ends.
 */
#include "promise.h"

#include <poll.h>
#include <setjmp.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447
#endif
#define PAGE 4096
#define FAILS(call, error) FAILS_WITH(#call " fails with " #error, call, error)

static int secret(unsigned flags)
{
	return syscall(SYS_memfd_secret, flags);
}

static char *map(int fd, size_t length, int protection, int flags)
{
	return mmap(NULL, length, protection, flags, fd, 0);
}

static int sized(size_t size)
{
	int fd = secret(0);
	NEED(fd >= 0 && ftruncate(fd, size) == 0);
	return fd;
}

static void flags(void)
{
	FAILS(secret(1), EINVAL);
	FAILS(secret(O_CLOEXEC | 2), EINVAL);
	int fd = secret(O_CLOEXEC);
	PROMISE("close on exec", fcntl(fd, F_GETFD) == FD_CLOEXEC);
	close(fd);
	fd = secret(0);
	PROMISE("no close on exec", fcntl(fd, F_GETFD) == 0);
	PROMISE("read and written", (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR);
	struct stat told;
	NEED(fstat(fd, &told) == 0);
	PROMISE("a regular file of its user alone", told.st_mode == (S_IFREG | 0600) && told.st_size == 0);
	PROMISE("and its user's", told.st_uid == geteuid() && told.st_gid == getegid());
	char path[64], name[64] = "";
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	NEED(readlink(path, name, sizeof name - 1) > 0);
	PROMISE("its name", strcmp(name, "/secretmem (deleted)") == 0);
	close(fd);
}

/* The size can be set only once. */
static void size(void)
{
	int fd = secret(0);
	PROMISE("no size yet", ftruncate(fd, 0) == 0);
	PROMISE("a size", ftruncate(fd, 2 * PAGE) == 0);
	FAILS(ftruncate(fd, PAGE), EINVAL);
	FAILS(ftruncate(fd, 3 * PAGE), EINVAL);
	FAILS(ftruncate(fd, 0), EINVAL);
	char *all = map(fd, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED);
	NEED(all != MAP_FAILED);
	all[2 * PAGE - 1] = 1;
	int status;
	IN_CHILD(status, ((volatile char *)all)[2 * PAGE] = 1);
	PROMISE("past its end is SIGBUS", WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
	munmap(all, 3 * PAGE);
	close(fd);
}

static void descriptors(void)
{
	int fd = sized(PAGE), pipes[2];
	char byte = 1;
	loff_t at = 0;
	NEED(pipe(pipes) == 0 && write(pipes[1], "spliced", 7) == 7);
	FAILS(read(fd, &byte, 1), EINVAL);
	FAILS(write(fd, &byte, 1), EINVAL);
	FAILS(pread(fd, &byte, 1, 0), ESPIPE);
	FAILS(pwrite(fd, &byte, 1, 0), ESPIPE);
	FAILS(lseek(fd, 0, SEEK_SET), ESPIPE);
	FAILS(fallocate(fd, 0, 0, PAGE), EOPNOTSUPP);
	FAILS(splice(pipes[0], NULL, fd, &at, 7, 0), EINVAL);
	FAILS(splice(fd, &at, pipes[1], NULL, 7, 0), EINVAL);
	FAILS(sendfile(pipes[1], fd, &at, 1), ESPIPE);
	FAILS(sendfile(pipes[1], fd, NULL, 1), EINVAL);
	FAILS(fsync(fd), EINVAL);
	struct pollfd one = {.fd = fd, .events = POLLIN | POLLOUT};
	PROMISE("always ready", poll(&one, 1, 0) == 1);
	close(pipes[0]);
	close(pipes[1]);
	close(fd);
}

static void mappings(void)
{
	int fd = sized(PAGE);
	PROMISE("not private", map(fd, PAGE, PROT_READ, MAP_PRIVATE) == MAP_FAILED && errno == EINVAL);
	PROMISE("not executed", map(fd, PAGE, PROT_READ | PROT_EXEC, MAP_SHARED) == MAP_FAILED && errno == EPERM);
	char *bytes = map(fd, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED);
	char *again = map(fd, PAGE, PROT_READ, MAP_SHARED);
	NEED(bytes != MAP_FAILED && again != MAP_FAILED);
	PROMISE("zeroes", bytes[0] == 0 && bytes[PAGE - 1] == 0);
	bytes[5] = 'x';
	PROMISE("shared", again[5] == 'x');
	FAILS(mprotect(again, PAGE, PROT_READ | PROT_EXEC), EACCES);
	PROMISE("protected and back", mprotect(bytes, PAGE, PROT_NONE) == 0
		&& mprotect(bytes, PAGE, PROT_READ | PROT_WRITE) == 0 && bytes[5] == 'x');
	PROMISE("let go of and back", madvise(bytes, PAGE, MADV_DONTNEED) == 0 && bytes[5] == 'x');
	FAILS(madvise(bytes, PAGE, MADV_REMOVE), EOPNOTSUPP);
	FAILS(madvise(bytes, PAGE, 22 /* MADV_POPULATE_READ */), EINVAL);
	int status;
	IN_CHILD(status, bytes[6] = 'y'; _exit(bytes[5] == 'x' ? 0 : 1));
	PROMISE("shared with a child", status == 0 && bytes[6] == 'y');
	munmap(again, PAGE);
	munmap(bytes, PAGE);
	again = map(fd, PAGE, PROT_READ, MAP_SHARED);
	PROMISE("the file keeps it", again[5] == 'x' && again[6] == 'y');
	munmap(again, PAGE);
	close(fd);
}

/* System calls copy through the program's own addresses; no other access reaches the memory. */
static void ways(void)
{
	int fd = sized(PAGE), pipes[2];
	char *bytes = map(fd, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED);
	NEED(bytes != MAP_FAILED && pipe(pipes) == 0);
	strcpy(bytes, "a secret");
	PROMISE("write(2) from it", write(pipes[1], bytes, 8) == 8);
	PROMISE("read(2) into it", read(pipes[0], bytes + 100, 8) == 8 && memcmp(bytes + 100, "a secret", 8) == 0);
	char copy[8];
	struct iovec own = {copy, 8}, theirs = {bytes, 8};
	FAILS(syscall(SYS_process_vm_readv, getpid(), &own, 1UL, &theirs, 1UL, 0UL), EFAULT);
	FAILS(syscall(SYS_process_vm_writev, getpid(), &own, 1UL, &theirs, 1UL, 0UL), EFAULT);
	FAILS(vmsplice(pipes[1], &theirs, 1, 0), EFAULT);
	int memory = open("/proc/self/mem", O_RDWR);
	NEED(memory >= 0);
	FAILS(pread(memory, copy, 8, (off_t)bytes), EIO);
	FAILS(pwrite(memory, copy, 8, (off_t)bytes), EIO);
	close(memory);
	PROMISE("unchanged", strcmp(bytes, "a secret") == 0);
	close(pipes[0]);
	close(pipes[1]);
	munmap(bytes, PAGE);
	close(fd);
}

/* A field of /proc/self/status, in KiB. */
static long status_value(const char *name)
{
	FILE *status = fopen("/proc/self/status", "r");
	char line[256];
	long value = -1;
	NEED(status);
	while (fgets(line, sizeof line, status))
		if (strncmp(line, name, strlen(name)) == 0)
			value = atol(line + strlen(name));
	fclose(status);
	return value;
}

/* Secret memory cannot be locked by mlock(2), and counts as locked only with MAP_LOCKED. */
static void locked(void)
{
	int fd = sized(4 * PAGE);
	long before = status_value("VmLck:");
	char *bytes = map(fd, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED);
	NEED(bytes != MAP_FAILED);
	FAILS(mlock(bytes, 4 * PAGE), ENOMEM);
	PROMISE("not counted as locked", status_value("VmLck:") == before);
	char *asked = map(fd, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_LOCKED);
	PROMISE("but where mmap says so", asked != MAP_FAILED && status_value("VmLck:") == before + 16);
	PROMISE("and then for good", munlock(asked, 4 * PAGE) == 0 && status_value("VmLck:") == before + 16);
	munmap(asked, 4 * PAGE);
	munmap(bytes, 4 * PAGE);
	PROMISE("counted back", status_value("VmLck:") == before);
	close(fd);
}

static sigjmp_buf past;
static void too_many(int signal)
{
	(void)signal;
	siglongjmp(past, 1);
}

/* Returns the number of pages, of `count`, that can be stored to. */
static int touched(char *bytes, int count)
{
	volatile int page = 0;
	struct sigaction jump = {.sa_handler = too_many}, old;
	sigaction(SIGBUS, &jump, &old);
	if (!sigsetjmp(past, 1))
		for (; page < count; page++)
			((volatile char *)bytes)[page * PAGE] = 1;
	sigaction(SIGBUS, &old, NULL);
	return page;
}

/* Every page that is made counts for its user, root too, up to RLIMIT_MEMLOCK. */
static void counted(void)
{
	struct rlimit old, limit;
	NEED(getrlimit(RLIMIT_MEMLOCK, &old) == 0);
	limit = (struct rlimit){.rlim_cur = 8 * PAGE, .rlim_max = old.rlim_max};
	NEED(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	int one = sized(16 * PAGE), other = sized(16 * PAGE);
	char *first = map(one, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED);
	char *second = map(other, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED);
	NEED(first != MAP_FAILED && second != MAP_FAILED);
	PROMISE("some pages", touched(first, 5) == 5);
	PROMISE("and the rest in another file", touched(second, 5) == 3);
	int status;
	IN_CHILD(status, _exit(touched(first + 5 * PAGE, 1)));
	PROMISE("none for the user's other processes", status == 0);
	munmap(first, 16 * PAGE);
	PROMISE("a file keeps its pages", touched(second, 5) == 3);
	close(one);
	PROMISE("and gives them back", touched(second, 10) == 8);
	limit.rlim_cur = 10 * PAGE;
	NEED(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	PROMISE("a higher limit counts at once", touched(second, 16) == 10);
	munmap(second, 16 * PAGE);
	close(other);
	NEED(setrlimit(RLIMIT_MEMLOCK, &old) == 0);
}

int main(void)
{
	int fd = secret(0);
	if (fd < 0 && errno == ENOSYS) {
		printf("skipped: this kernel has no memfd_secret, or it is switched off\n");
		return conclude();
	}
	close(fd);
	flags();
	size();
	descriptors();
	mappings();
	ways();
	locked();
	counted();
	return conclude();
}
