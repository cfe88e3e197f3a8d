/* Seals of memory files, and mappings that may not become writable: fcntl(2), memfd_create(2),
 * mmap(2), mprotect(2). */
#include "promise.h"
#include "ring.h"

#include <sys/sendfile.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x10
#endif
#define PAGE 4096

static int sealable(size_t size)
{
	int fd = memfd_create("sealing", MFD_ALLOW_SEALING);
	NEED(fd >= 0 && ftruncate(fd, size) == 0);
	return fd;
}

static void *map(int fd, int protection, int flags)
{
	return mmap(NULL, PAGE, protection, flags, fd, 0);
}

/* The same file through a description that was opened for reading only. */
static int read_only(int fd)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	int other = open(path, O_RDONLY);
	NEED(other >= 0);
	return other;
}

static int splice_into(int fd, loff_t at)
{
	int pipes[2];
	NEED(pipe(pipes) == 0 && write(pipes[1], "spliced", 7) == 7);
	int moved = splice(pipes[0], NULL, fd, &at, 7, 0), error = errno;
	close(pipes[0]);
	close(pipes[1]);
	errno = error;
	return moved;
}

static int send_into(int fd)
{
	int from = sealable(PAGE);
	loff_t at = 0;
	int moved = sendfile(fd, from, &at, 100), error = errno;
	close(from);
	errno = error;
	return moved;
}

static int copy_into(int fd)
{
	int from = sealable(PAGE);
	loff_t in = 0, out = 0;
	int moved = syscall(SYS_copy_file_range, from, &in, fd, &out, 100, 0), error = errno;
	close(from);
	errno = error;
	return moved;
}

static void writes_are_refused(int fd)
{
	char bytes[8] = "sealed";
	struct iovec part = { bytes, 6 };
	FAILS_WITH("write", write(fd, bytes, 6), EPERM);
	FAILS_WITH("pwrite", pwrite(fd, bytes, 6, 0), EPERM);
	FAILS_WITH("writev", writev(fd, &part, 1), EPERM);
	FAILS_WITH("splice", splice_into(fd, 0), EPERM);
	FAILS_WITH("sendfile", send_into(fd), EPERM);
	FAILS_WITH("copy_file_range", copy_into(fd), EPERM);
	FAILS_WITH("fallocate that punches a hole", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE), EPERM);
	PROMISE("a write of nothing is none", write(fd, bytes, 0) == 0);
}

static void a_file_sealed_against_writing(void)
{
	int fd = sealable(PAGE), reader = read_only(fd);
	void *shared = map(fd, PROT_READ | PROT_WRITE, MAP_SHARED);
	NEED(shared != MAP_FAILED);
	FAILS_WITH("F_SEAL_WRITE over a shared mapping that may be written", fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), EBUSY);
	PROMISE("which seals nothing", fcntl(fd, F_GET_SEALS) == 0 && write(fd, "x", 1) == 1);
	NEED(mprotect(shared, PAGE, PROT_READ) == 0);
	FAILS_WITH("that could become writable again", fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), EBUSY);
	int status;
	IN_CHILD(status, munmap(shared, PAGE); _exit(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == -1 && errno == EBUSY ? 0 : 1));
	PROMISE("that another process has", WIFEXITED(status) && WEXITSTATUS(status) == 0);
	NEED(munmap(shared, PAGE) == 0);

	void *private = map(fd, PROT_READ | PROT_WRITE, MAP_PRIVATE), *watched = map(reader, PROT_READ, MAP_SHARED);
	NEED(private != MAP_FAILED && watched != MAP_FAILED);
	PROMISE("private mappings and shared ones of a reader are no obstacle", fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0);
	PROMISE("the seal is shown", fcntl(fd, F_GET_SEALS) == F_SEAL_WRITE);
	writes_are_refused(fd);
	FAILS_WITH("a new shared mapping that may be written", map(fd, PROT_READ | PROT_WRITE, MAP_SHARED), EPERM);
	FAILS_WITH("of a reader, because it reads", map(reader, PROT_READ | PROT_WRITE, MAP_SHARED), EACCES);
	FAILS_WITH("mprotect of a shared one there was", mprotect(watched, PAGE, PROT_READ | PROT_WRITE), EACCES);
	void *later = map(reader, PROT_READ, MAP_SHARED);
	PROMISE("a new shared mapping to read", later != MAP_FAILED);
	FAILS_WITH("stays one", mprotect(later, PAGE, PROT_WRITE), EACCES);
	PROMISE("a private one may be written", (*(char *)private = 1) == 1 && map(fd, PROT_READ | PROT_WRITE, MAP_PRIVATE) != MAP_FAILED);
	PROMISE("sealed twice is sealed", fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0);
	PROMISE("the size is not sealed", ftruncate(fd, 2 * PAGE) == 0 && ftruncate(fd, PAGE) == 0);
	PROMISE("nor is memory for it", fallocate(fd, 0, 0, PAGE) == 0);
	munmap(private, PAGE);
	munmap(watched, PAGE);
	munmap(later, PAGE);
	close(reader);
	close(fd);
}

static void a_file_sealed_against_future_writing(void)
{
	int fd = sealable(PAGE);
	char *before = map(fd, PROT_READ | PROT_WRITE, MAP_SHARED);
	NEED(before != MAP_FAILED);
	PROMISE("F_SEAL_FUTURE_WRITE lets a mapping be", fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0);
	PROMISE("which is written on", (before[5] = 7) == 7);
	writes_are_refused(fd);
	FAILS_WITH("a new shared mapping that may be written", map(fd, PROT_READ | PROT_WRITE, MAP_SHARED), EPERM);
	char *after = map(fd, PROT_READ, MAP_SHARED);
	PROMISE("one to read shows the file", after != MAP_FAILED && after[5] == 7);
	FAILS_WITH("and stays one", mprotect(after, PAGE, PROT_READ | PROT_WRITE), EACCES);
	PROMISE("the old one can be taken and given its right", !mprotect(before, PAGE, PROT_READ) && !mprotect(before, PAGE, PROT_READ | PROT_WRITE));
	FAILS_WITH("F_SEAL_WRITE minds it", fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), EBUSY);
	munmap(before, PAGE);
	munmap(after, PAGE);
	close(fd);
}

static void a_file_of_sealed_size(void)
{
	static char bytes[4 * PAGE];
	int fd = sealable(PAGE + 100);
	PROMISE("F_SEAL_GROW", fcntl(fd, F_ADD_SEALS, F_SEAL_GROW) == 0);
	FAILS_WITH("ftruncate to more", ftruncate(fd, PAGE + 101), EPERM);
	FAILS_WITH("fallocate behind the end", fallocate(fd, 0, 0, 2 * PAGE), EPERM);
	FAILS_WITH("even if the size stays", fallocate(fd, FALLOC_FL_KEEP_SIZE, PAGE, PAGE), EPERM);
	FAILS_WITH("a write behind the end", pwrite(fd, bytes, 1, PAGE + 100), EPERM);
	FAILS_WITH("a write across the end in the last page", pwrite(fd, bytes, 10, PAGE + 95), EPERM);
	PROMISE("a write across the end ends with the last whole page", pwrite(fd, bytes, 3 * PAGE, 10) == PAGE - 10);
	PROMISE("a write within", pwrite(fd, bytes, PAGE + 100, 0) == PAGE + 100);
	PROMISE("less is allowed", ftruncate(fd, 100) == 0 && fallocate(fd, 0, 0, 50) == 0);
	PROMISE("F_SEAL_SHRINK", fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	FAILS_WITH("ftruncate to less", ftruncate(fd, 99), EPERM);
	PROMISE("to the same size", ftruncate(fd, 100) == 0);
	PROMISE("a hole does not shrink it", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE) == 0);
	PROMISE("both are shown", fcntl(fd, F_GET_SEALS) == (F_SEAL_GROW | F_SEAL_SHRINK));
	close(fd);
}

static void who_may_seal_what(void)
{
	int fd = sealable(PAGE), reader = read_only(fd), plain = memfd_create("plain", 0), zero = open("/dev/zero", O_RDWR);
	FAILS_WITH("a reader may not seal", fcntl(reader, F_ADD_SEALS, F_SEAL_GROW), EPERM);
	FAILS_WITH("seals that there are none of", fcntl(fd, F_ADD_SEALS, 0x100), EINVAL);
	FAILS_WITH("what is no file in memory", fcntl(zero, F_ADD_SEALS, F_SEAL_GROW), EINVAL);
	FAILS_WITH("nor has any", fcntl(zero, F_GET_SEALS), EINVAL);
	PROMISE("F_SEAL_SEAL", fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_GROW) == 0);
	FAILS_WITH("allows none after it", fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), EPERM);
	PROMISE("a file without MFD_ALLOW_SEALING has it from its beginning", fcntl(plain, F_GET_SEALS) == F_SEAL_SEAL);
	FAILS_WITH("and takes none", fcntl(plain, F_ADD_SEALS, F_SEAL_WRITE), EPERM);
	close(fd);
	close(reader);
	close(plain);
	close(zero);
}

/* An io_uring keeps pages of a shared mapping pinned after the mapping is gone. */
static void a_file_whose_pages_are_held(void)
{
	int fd = sealable(PAGE);
	char *shared = map(fd, PROT_READ | PROT_WRITE, MAP_SHARED);
	NEED(shared != MAP_FAILED);
	struct io_uring_params parameters = { 0 };
	int ring = syscall(SYS_io_uring_setup, 4, &parameters);
	NEED(ring >= 0);
	struct iovec whole = { shared, PAGE };
	NEED(syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &whole, 1) == 0);
	NEED(munmap(shared, PAGE) == 0);
	FAILS_WITH("F_SEAL_WRITE over pages that a device may write", fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), EBUSY);
	PROMISE("and the file can be mapped to write as before", (shared = map(fd, PROT_READ | PROT_WRITE, MAP_SHARED)) != MAP_FAILED);
	munmap(shared, PAGE);
	NEED(syscall(SYS_io_uring_register, ring, IORING_UNREGISTER_BUFFERS, NULL, 0) == 0);
	PROMISE("when they are let go of it holds", COMES_TRUE(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0));
	close(ring);
	close(fd);
}

static void mappings_of_what_was_opened_to_read(void)
{
	int zero = open("/dev/zero", O_RDONLY), both = open("/dev/zero", O_RDWR);
	int made = open("/tmp/sealing", O_RDWR | O_CREAT, 0600);
	NEED(zero >= 0 && both >= 0 && made >= 0 && ftruncate(made, PAGE) == 0);
	int file = open("/tmp/sealing", O_RDONLY);
	FAILS_WITH("/dev/zero, shared to write", map(zero, PROT_READ | PROT_WRITE, MAP_SHARED), EACCES);
	char *zeroes = map(zero, PROT_READ, MAP_SHARED), *bytes = map(file, PROT_READ, MAP_SHARED);
	PROMISE("shared to read it is zeroes", zeroes != MAP_FAILED && zeroes[100] == 0);
	FAILS_WITH("for good", mprotect(zeroes, PAGE, PROT_READ | PROT_WRITE), EACCES);
	NEED(bytes != MAP_FAILED);
	FAILS_WITH("as any file", mprotect(bytes, PAGE, PROT_READ | PROT_WRITE), EACCES);
	char *own = map(zero, PROT_READ, MAP_PRIVATE);
	PROMISE("a private mapping may be written", own != MAP_FAILED && mprotect(own, PAGE, PROT_READ | PROT_WRITE) == 0 && (*own = 3) == 3);
	int mem = open("/proc/self/mem", O_RDWR);
	NEED(mem >= 0);
	PROMISE("nobody writes the shared one by force", pwrite(mem, "x", 1, (off_t)zeroes) == -1 && zeroes[0] == 0);
	char *twice = map(both, PROT_READ, MAP_SHARED);
	PROMISE("who opened it to write may", twice != MAP_FAILED && mprotect(twice, PAGE, PROT_READ | PROT_WRITE) == 0);
	int status;
	IN_CHILD(status, twice[9] = 9);
	PROMISE("and shares it with a child", status == 0 && twice[9] == 9);
	unlink("/tmp/sealing");
}

static void files_that_are_no_programs(void)
{
	struct stat about;
	int plain = syscall(SYS_memfd_create, "plain", 0x8), program = syscall(SYS_memfd_create, "program", 0x12);
	NEED(plain >= 0 && program >= 0);
	PROMISE("MFD_NOEXEC_SEAL: no program", fstat(plain, &about) == 0 && (about.st_mode & 0777) == 0666 && fcntl(plain, F_GET_SEALS) == 0x20);
	FAILS_WITH("for ever", fchmod(plain, 0777), EPERM);
	PROMISE("other rights change", fchmod(plain, 0600) == 0);
	PROMISE("MFD_EXEC: a program", fstat(program, &about) == 0 && (about.st_mode & 0777) == 0777 && fcntl(program, F_GET_SEALS) == 0);
	PROMISE("which sealed as one is what it is", fcntl(program, F_ADD_SEALS, 0x20) == 0 && fcntl(program, F_GET_SEALS) == 0x3e);
	FAILS_WITH("and stays one", fchmod(program, 0666), EPERM);
	FAILS_WITH("none is both", syscall(SYS_memfd_create, "both", 0x18), EINVAL);
	close(plain);
	close(program);
}

int main(void)
{
	mkdir("/tmp", 01777);
	a_file_sealed_against_writing();
	a_file_sealed_against_future_writing();
	a_file_of_sealed_size();
	who_may_seal_what();
	a_file_whose_pages_are_held();
	mappings_of_what_was_opened_to_read();
	files_that_are_no_programs();
	return conclude();
}
