/*
 * Files of huge pages (Documentation/admin-guide/mm/hugetlbpage.rst): memfd_create(2) with
 * MFD_HUGETLB, shmget(2) with SHM_HUGETLB, and mounts of hugetlbfs.
 */
#include "hugepages.h"

#include <grp.h>
#include <sys/ipc.h>
#include <sys/mount.h>
#include <sys/shm.h>
#include <sys/statfs.h>

#ifndef MFD_HUGETLB
#define MFD_HUGETLB 4
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21 << MAP_HUGE_SHIFT)
#endif
/* Fills the pool with so many pages. */
static void fill_pool(long pages)
{
	char text[20];
	snprintf(text, sizeof text, "%ld", pages);
	NEED(put(POOL, text) && has(pages, pages, 0, 0));
}

static int opened(unsigned flags)
{
	int fd = memfd_create("huge", MFD_HUGETLB | flags);
	NEED(fd >= 0);
	return fd;
}

static char *at_offset(int fd, int first, int pages, int protection, int flags)
{
	return mmap(NULL, pages * HUGE, protection, flags, fd, first * HUGE);
}

static char *mapped(int fd, int pages, int flags)
{
	char *at = at_offset(fd, 0, pages, RW, flags);
	NEED(at != MAP_FAILED);
	return at;
}

static int has_size(int fd, off_t size, blkcnt_t blocks)
{
	struct stat st;
	return fstat(fd, &st) == 0 && st.st_size == size && st.st_blocks == blocks;
}

/* Whether the child that runs this is ended by SIGBUS. */
#define IS_SIGBUS(...) ({ int status_; IN_CHILD(status_, __VA_ARGS__; _exit(0)); died_by(status_, SIGBUS); })
/* Whether the child that runs this finds the condition true. */
#define CHILD_FINDS(condition) ({ int status_; IN_CHILD(status_, _exit((condition) ? 7 : 0)); \
	WIFEXITED(status_) && WEXITSTATUS(status_) == 7; })

static void sizes(void)
{
	struct stat st;
	int fd = opened(MFD_HUGE_2MB);
	PROMISE("a new file is empty and has blocks of 2 MiB", fstat(fd, &st) == 0 && S_ISREG(st.st_mode)
		&& st.st_size == 0 && st.st_blocks == 0 && st.st_blksize == (blksize_t)HUGE);
	FAILS_WITH("a size that no page has is refused", memfd_create("x", MFD_HUGETLB | 14u << MAP_HUGE_SHIFT),
		ENODEV);
	FAILS_WITH("a size without MFD_HUGETLB, too", memfd_create("x", MFD_HUGE_2MB), EINVAL);
	FAILS_WITH("a file has whole pages", ftruncate(fd, PAGE), EINVAL);
	FAILS_WITH("also beyond one", ftruncate(fd, HUGE + PAGE), EINVAL);
	PROMISE("a size reserves nothing", ftruncate(fd, 100 * HUGE) == 0 && has(8, 8, 0, 0)
		&& has_size(fd, 100 * HUGE, 0) && ftruncate(fd, 0) == 0);
	char *at = at_offset(fd, 0, 1, PROT_READ, MAP_SHARED);
	PROMISE("a mapping that reads does not make the file grow", at != MAP_FAILED && has_size(fd, 0, 0)
		&& has(8, 8, 1, 0));
	PROMISE("past the end there is SIGBUS", IS_SIGBUS(*(volatile char *)at));
	munmap(at, HUGE);
	at = at_offset(fd, 2, 1, RW, MAP_SHARED);
	PROMISE("a mapping that writes does", at != MAP_FAILED && has_size(fd, 3 * HUGE, 0));
	PROMISE("each mapping reserves its part", has(8, 8, 2, 0));
	char *all = mapped(fd, 3, MAP_SHARED);
	PROMISE("what is reserved already is not reserved again", has(8, 8, 3, 0));
	all[2 * HUGE + 5] = 'a';
	PROMISE("a page comes with the first access", has(8, 7, 2, 0) && at[5] == 'a'
		&& has_size(fd, 3 * HUGE, 4096));
	munmap(at, HUGE), munmap(all, 3 * HUGE);
	PROMISE("the file keeps pages and reservations", has(8, 7, 2, 0));
	PROMISE("a shorter file gives reservations back", ftruncate(fd, HUGE) == 0 && has(8, 8, 1, 0)
		&& has_size(fd, HUGE, 0));
	at = mapped(fd, 1, MAP_PRIVATE);
	FAILS_WITH("more than the pool has is refused", at_offset(fd, 0, 9, RW, MAP_SHARED), ENOMEM);
	FAILS_WITH("in private, too", at_offset(fd, 0, 9, RW, MAP_PRIVATE), ENOMEM);
	PROMISE("and changes nothing", has(8, 8, 2, 0) && has_size(fd, HUGE, 0));
	munmap(at, HUGE);
	at = at_offset(fd, 0, 9, RW, MAP_SHARED | MAP_NORESERVE);
	PROMISE("without a reservation it may be", at != MAP_FAILED && has(8, 8, 1, 0));
	munmap(at, 9 * HUGE);
	close(fd);
	PROMISE("the end of a file gives all back", has(8, 8, 0, 0));
}

static void places(void)
{
	int fd = opened(0), small = memfd_create("small", 0);
	NEED(ftruncate(fd, 4 * HUGE) == 0 && ftruncate(small, 4 * HUGE) == 0);
	FAILS_WITH("an offset inside a page is refused", mmap(NULL, HUGE, RW, MAP_SHARED, fd, PAGE), EINVAL);
	FAILS_WITH("another file has no huge pages",
		mmap(NULL, HUGE, RW, MAP_SHARED | MAP_HUGETLB, small, 0), EINVAL);
	char *at = mmap(NULL, HUGE, RW, MAP_SHARED | MAP_HUGETLB, fd, 0);
	PROMISE("MAP_HUGETLB may be given", at != MAP_FAILED && (uintptr_t)at % HUGE == 0);
	FAILS_WITH("a fixed address inside a page is refused",
		mmap(at + PAGE, HUGE, RW, MAP_SHARED | MAP_FIXED, fd, 0), EINVAL);
	FAILS_WITH("a part cannot be unmapped", munmap(at, PAGE), EINVAL);
	FAILS_WITH("or protected", mprotect(at, PAGE, PROT_READ), EINVAL);
	munmap(at, HUGE);
	at = mmap(NULL, 1, RW, MAP_PRIVATE, fd, HUGE);
	PROMISE("a byte is a whole page", at != MAP_FAILED && at[HUGE - 1] == 0);
	const char *text = smaps(at);
	PROMISE("the area has the name of the file", strstr(text, "/memfd:huge (deleted)"));
	PROMISE("its pages, and a flag", row(text, "KernelPageSize:") == 2048 && row(text, "Private_Hugetlb:") == 2048
		&& row(text, "Rss:") == 0 && strstr(strstr(text, "VmFlags:"), " ht"));
	munmap(at, HUGE);
	char *room = mmap(NULL, 8 * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *to = (char *)(((uintptr_t)room + HUGE - 1) & ~(HUGE - 1));
	at = mapped(fd, 3, MAP_PRIVATE);
	at[0] = 'p';
	PROMISE("a mapping is moved with what it has", mremap(at, 3 * HUGE, 3 * HUGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to
		&& to[0] == 'p' && has(8, 7, 3, 0));
	PROMISE("and shrinks", mremap(to, 3 * HUGE, HUGE, 0) == to && has(8, 7, 1, 0));
	FAILS_WITH("but does not grow", mremap(to, HUGE, 2 * HUGE, MREMAP_MAYMOVE), EINVAL);
	munmap(room, 8 * HUGE);
	at = at_offset(fd, 0, 1, PROT_READ, MAP_SHARED);
	PROMISE("a mapping for reading may get more rights", mprotect(at, HUGE, RW) == 0 && (at[0] = 'w') == 'w');
	munmap(at, HUGE);
	close(fd), close(small);
	PROMISE("and all is given back", has(8, 8, 0, 0));
}

static void bytes(void)
{
	static char buffer[8192];
	int fd = opened(0);
	char *at = mapped(fd, 3, MAP_SHARED);
	memset(at + HUGE, 'a', HUGE);
	memset(buffer, 'x', sizeof buffer);
	PROMISE("read takes bytes of pages and of holes", pread(fd, buffer, sizeof buffer, HUGE - PAGE) == sizeof buffer
		&& buffer[0] == 0 && buffer[PAGE - 1] == 0 && buffer[PAGE] == 'a' && buffer[8191] == 'a');
	PROMISE("and makes no page", has(8, 7, 2, 0));
	PROMISE("up to the end", pread(fd, buffer, 100, 3 * HUGE - 10) == 10 && pread(fd, buffer, 100, 3 * HUGE) == 0);
	FAILS_WITH("write is refused", write(fd, "x", 1), EINVAL);
	FAILS_WITH("at any place", pwrite(fd, "x", 1, HUGE), EINVAL);
	PROMISE("what is data is not looked for", lseek(fd, 5, SEEK_DATA) == 5 && lseek(fd, 5, SEEK_HOLE) == (off_t)(3 * HUGE));
	FAILS_WITH("past the end there is none", lseek(fd, 3 * HUGE, SEEK_DATA), ENXIO);
	PROMISE("the file is stored", fsync(fd) == 0 && msync(at, 3 * HUGE, MS_SYNC) == 0);
	PROMISE("MADV_DONTNEED keeps the file's page", madvise(at + HUGE, HUGE, MADV_DONTNEED) == 0 && at[HUGE] == 'a');
	PROMISE("MADV_REMOVE makes a hole", madvise(at + HUGE, HUGE, MADV_REMOVE) == 0 && at[HUGE] == 0);
	int ends[2];
	NEED(pipe(ends) == 0);
	at[2 * HUGE + PAGE] = 'v';
	struct iovec run = { at + 2 * HUGE + PAGE, PAGE };
	PROMISE("a pipe takes a part of a page", vmsplice(ends[1], &run, 1, 0) == PAGE);
	PROMISE("and keeps it when the file has lost it", ftruncate(fd, 0) == 0 && read(ends[0], buffer, PAGE) == PAGE
		&& buffer[0] == 'v' && has(8, 8, 0, 0));
	PROMISE("calls fail there", write(ends[1], "x", 1) == 1 && read(ends[0], at, 1) == -1 && errno == EFAULT);
	close(ends[0]), close(ends[1]), close(fd);
	munmap(at, 3 * HUGE);
}

static void holes(void)
{
	int fd = opened(0);
	char byte;
	PROMISE("fallocate makes pages", fallocate(fd, 0, 0, 2 * HUGE) == 0 && has(8, 6, 0, 0)
		&& has_size(fd, 2 * HUGE, 2 * 4096));
	PROMISE("beyond the size, if that is to stay", fallocate(fd, FALLOC_FL_KEEP_SIZE, 2 * HUGE, HUGE) == 0
		&& has(8, 5, 0, 0) && has_size(fd, 2 * HUGE, 3 * 4096));
	FAILS_WITH("but not more than there are", fallocate(fd, 0, 0, 9 * HUGE), ENOSPC);
	PROMISE("pages that it has made stay", has(8, 0, 0, 0) && has_size(fd, 2 * HUGE, 8 * 4096));
	PROMISE("and go where the file is cut", ftruncate(fd, 3 * HUGE) == 0 && ftruncate(fd, 2 * HUGE) == 0
		&& has(8, 6, 0, 0));
	FAILS_WITH("there is no range of zeroes", fallocate(fd, FALLOC_FL_ZERO_RANGE, 0, HUGE), EOPNOTSUPP);
	FAILS_WITH("and no range that collapses", fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, HUGE), EOPNOTSUPP);
	char *at = mapped(fd, 2, MAP_SHARED);
	PROMISE("a mapping of pages reserves none", has(8, 6, 0, 0));
	memset(at, 'a', 2 * HUGE);
	PROMISE("a hole frees whole pages", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, PAGE, 2 * HUGE - PAGE)
		== 0 && has(8, 7, 0, 0) && has_size(fd, 2 * HUGE, 4096));
	PROMISE("and zeroes parts of others", at[PAGE - 1] == 'a' && at[PAGE] == 0 && at[HUGE - 1] == 0
		&& at[0] == 'a');
	PROMISE("its pages are new ones", is_filled(at + HUGE, 0) && has(8, 6, 0, 0));
	munmap(at, 2 * HUGE);
	ftruncate(fd, 0);
	PROMISE("fallocate may end inside a page", fallocate(fd, 0, 0, 5) == 0 && has_size(fd, 5, 4096)
		&& pread(fd, &byte, 1, 4) == 1 && byte == 0 && pread(fd, &byte, 1, 5) == 0);
	at = at_offset(fd, 0, 1, PROT_READ, MAP_SHARED);
	PROMISE("such a page can be touched", CHILD_FINDS(at[HUGE - 1] == 0));
	munmap(at, HUGE);
	close(fd);
	PROMISE("and is given back", has(8, 8, 0, 0));
}

static void copies(void)
{
	int fd = opened(0);
	char *shared = mapped(fd, 1, MAP_SHARED);
	memset(shared, 'a', HUGE);
	NEED(ftruncate(fd, 3 * HUGE) == 0);
	char *at = mapped(fd, 3, MAP_PRIVATE);
	PROMISE("a private mapping reserves all its pages", has(8, 7, 3, 0));
	PROMISE("it shows the file's", is_filled(at, 'a') && has(8, 7, 3, 0));
	shared[1] = 'b';
	PROMISE("and changes of it", at[1] == 'b');
	PROMISE("a child sees it", CHILD_FINDS(is_filled(at + HUGE, 0) && at[1] == 'b') && has(8, 7, 3, 0));
	at[0] = 'c';
	PROMISE("a store copies the page", has(8, 6, 2, 0) && shared[0] == 'a' && at[0] == 'c' && at[1] == 'b'
		&& at[HUGE - 1] == 'a');
	shared[1] = 'd';
	PROMISE("which then shows no changes", at[1] == 'b');
	PROMISE("a hole is the mapping's own page", at[HUGE] == 0 && has(8, 5, 1, 0) && has_size(fd, 3 * HUGE, 4096));
	PROMISE("also where it is only read", (at[HUGE + 1] = 'h') == 'h' && has(8, 5, 1, 0));
	PROMISE("MADV_DONTNEED shows the file's page again", madvise(at, HUGE, MADV_DONTNEED) == 0 && at[1] == 'd');
	int own = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	PROMISE("a store by the kernel copies, too", pwrite(own, "k", 1, (uintptr_t)at) == 1 && at[0] == 'k'
		&& shared[0] == 'a');
	close(own);
	PROMISE("a file that is cut takes copies along", ftruncate(fd, 0) == 0 && IS_SIGBUS(*(volatile char *)at)
		&& IS_SIGBUS(*(volatile char *)shared));
	munmap(at, 3 * HUGE), munmap(shared, HUGE);
	PROMISE("and all is given back", has(8, 8, 0, 0));
	shared = mapped(fd, 1, MAP_SHARED);
	shared[0] = 's';
	at = at_offset(fd, 0, 1, PROT_READ, MAP_PRIVATE);
	PROMISE("a child's store to the file is seen by its parent", CHILD_FINDS((shared[0] = 't') == 't')
		&& at[0] == 't');
	PROMISE("a private mapping gets the right to write", mprotect(at, HUGE, RW) == 0 && (at[0] = 'u') == 'u'
		&& shared[0] == 't');
	munmap(at, HUGE);
	at = at_offset(fd, 0, 1, RW, MAP_PRIVATE | MAP_NORESERVE);
	char *rest = mmap(NULL, 7 * HUGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	NEED(rest != MAP_FAILED && at != MAP_FAILED);
	PROMISE("without a page for the copy a store is SIGBUS", at[0] == 't' && IS_SIGBUS(at[0] = 'v') && at[0] == 't');
	munmap(rest, 7 * HUGE);
	PROMISE("with one it is done", (at[0] = 'v') == 'v' && shared[0] == 't');
	munmap(at, HUGE), munmap(shared, HUGE);
	close(fd);
	PROMISE("and the file's end frees it", has(8, 8, 0, 0));
}

static void seals(void)
{
	int fd = opened(0);
	PROMISE("without MFD_ALLOW_SEALING seals are sealed", fcntl(fd, F_GET_SEALS) == F_SEAL_SEAL);
	FAILS_WITH("and none is added", fcntl(fd, F_ADD_SEALS, F_SEAL_GROW), EPERM);
	close(fd);
	fd = opened(MFD_ALLOW_SEALING);
	NEED(ftruncate(fd, 2 * HUGE) == 0);
	PROMISE("with it there is none", fcntl(fd, F_GET_SEALS) == 0);
	PROMISE("sizes are sealed", fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) == 0);
	FAILS_WITH("then the file does not grow", ftruncate(fd, 3 * HUGE), EPERM);
	FAILS_WITH("nor by fallocate", fallocate(fd, 0, 0, 3 * HUGE), EPERM);
	FAILS_WITH("nor shrink", ftruncate(fd, HUGE), EPERM);
	char *at = mapped(fd, 1, MAP_SHARED);
	at[0] = 'a';
	FAILS_WITH("a mapping that may store keeps the seal against stores away", fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE),
		EBUSY);
	munmap(at, HUGE);
	PROMISE("without one it is set", fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0);
	FAILS_WITH("then no mapping may store", at_offset(fd, 0, 1, RW, MAP_SHARED), EPERM);
	FAILS_WITH("and no hole is made", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, HUGE), EPERM);
	at = mapped(fd, 1, MAP_PRIVATE);
	PROMISE("but a private one", at[0] == 'a' && (at[0] = 'b') == 'b');
	munmap(at, HUGE);
	close(fd);
	PROMISE("and all is given back", has(8, 8, 0, 0));
}

static int segment(size_t size, int flags)
{
	return shmget(IPC_PRIVATE, size, IPC_CREAT | 0600 | SHM_HUGETLB | flags);
}

/* Makes a segment as a user without rights; returns the error. */
static int error_of_a_user(void)
{
	int status;
	IN_CHILD(status, NEED(setgroups(0, NULL) == 0 && setgid(4711) == 0 && setuid(4711) == 0);
		int id = segment(HUGE, 0); int error = errno; shmctl(id, IPC_RMID, NULL); _exit(id < 0 ? error : 0));
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void segments(void)
{
	struct shmid_ds told;
	struct shm_info sums;
	int id = segment(HUGE + 1, 0);
	PROMISE("a segment reserves its pages", id >= 0 && has(8, 8, 2, 0));
	PROMISE("and has the size that was asked for", shmctl(id, IPC_STAT, &told) == 0 && told.shm_segsz == HUGE + 1
		&& (told.shm_perm.mode & 07777) == 0600);
	char *at = shmat(id, NULL, 0), *second = shmat(id, NULL, SHM_RDONLY);
	NEED(at != (char *)-1 && second != (char *)-1);
	at[2 * HUGE - 1] = 'a';
	PROMISE("it is attached in whole pages", (uintptr_t)at % HUGE == 0 && second[2 * HUGE - 1] == 'a'
		&& has(8, 7, 1, 0));
	PROMISE("a child has it, too", CHILD_FINDS((at[0] = 'b') == 'b') && second[0] == 'b' && has(8, 6, 0, 0));
	PROMISE("each place counts", shmctl(id, IPC_STAT, &told) == 0 && told.shm_nattch == 2);
	PROMISE("and all pages", shmctl(0, SHM_INFO, (void *)&sums) >= 0 && sums.shm_rss == 1024);
	PROMISE("maps names the segment", strstr(smaps(at), "/SYSV00000000 (deleted)")
		&& row(smaps(at), "KernelPageSize:") == 2048);
	int status;
	IN_CHILD(status, second[0] = 'x');
	PROMISE("what is attached for reading is not written", died_by(status, SIGSEGV));
	FAILS_WITH("an address inside a page is refused", shmat(id, at + 2 * HUGE + PAGE, 0), EINVAL);
	FAILS_WITH("and a place that is taken", shmat(id, at, 0), EINVAL);
	PROMISE("unless it is to be replaced", shmat(id, at, SHM_REMAP) == at && at[0] == 'b');
	PROMISE("pages stay in memory, and no mark tells it", shmctl(id, SHM_LOCK, NULL) == 0
		&& shmctl(id, IPC_STAT, &told) == 0 && !(told.shm_perm.mode & 02000));
	PROMISE("a segment keeps its pages while it is attached nowhere", shmdt(at) == 0 && shmdt(second) == 0
		&& has(8, 6, 0, 0));
	PROMISE("and gives them back at its end", shmctl(id, IPC_RMID, NULL) == 0 && has(8, 8, 0, 0));
	FAILS_WITH("more than the pool has is refused", segment(9 * HUGE, 0), ENOMEM);
	FAILS_WITH("a size that no page has, too", segment(HUGE, 14 << MAP_HUGE_SHIFT), EINVAL);
	id = segment(9 * HUGE, SHM_NORESERVE | 21 << MAP_HUGE_SHIFT);
	PROMISE("SHM_NORESERVE reserves nothing", id >= 0 && has(8, 8, 0, 0));
	at = shmat(id, NULL, 0);
	PROMISE("also where it is attached", at != (char *)-1 && has(8, 8, 0, 0) && (at[0] = 'n') == 'n' && has(8, 7, 0, 0));
	PROMISE("and gives back what it took", shmctl(id, IPC_RMID, NULL) == 0 && shmdt(at) == 0 && has(8, 8, 0, 0));
	PROMISE("a user without rights makes none", error_of_a_user() == EPERM);
	PROMISE("but as a member of a group", put("/proc/sys/vm/hugetlb_shm_group", "4711") && error_of_a_user() == 0);
	PROMISE("which is set", get("/proc/sys/vm/hugetlb_shm_group") == 4711 && put("/proc/sys/vm/hugetlb_shm_group", "0")
		&& error_of_a_user() == EPERM);
}

static char dir[] = "/tmp/hugefilesXXXXXX";

static int mounts(const char *options)
{
	return mount("none", dir, "hugetlbfs", 0, options);
}

/* Opens a file of the mount. */
static int file(const char *name, int flags)
{
	char path[100];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	return open(path, O_RDWR | O_CLOEXEC | flags, 0640);
}

static int removed(const char *name)
{
	char path[100];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	return remove(path) == 0;
}

/* Whether the mount has so many blocks, and so many of them free. */
static int has_blocks(unsigned long blocks, unsigned long free)
{
	struct statfs told;
	return statfs(dir, &told) == 0 && told.f_blocks == blocks && told.f_bfree == free && told.f_bavail == free;
}

/* Whether the line of the mount has this option. */
static int is_shown(const char *option)
{
	char line[400];
	int found = 0;
	FILE *list = fopen("/proc/mounts", "re");
	NEED(list);
	while (fgets(line, sizeof line, list))
		found |= strstr(line, dir) && strstr(line, " hugetlbfs ") && strstr(line, option);
	fclose(list);
	return found;
}

static void tree(void)
{
	struct statfs told;
	struct stat st;
	char path[100];
	NEED(mkdtemp(dir));
	PROMISE("hugetlbfs is mounted", mounts(NULL) == 0 && is_shown(",pagesize=2M"));
	PROMISE("it has blocks of 2 MiB and no figures", statfs(dir, &told) == 0 && told.f_type == 0x958458f6
		&& told.f_bsize == (long)HUGE && told.f_blocks == 0 && told.f_bfree == 0 && told.f_files == 0);
	PROMISE("its root is root's", stat(dir, &st) == 0 && (st.st_mode & 07777) == 0755 && st.st_uid == 0);
	int fd = file("a", O_CREAT | O_EXCL);
	PROMISE("a file is made", fd >= 0 && has_size(fd, 0, 0) && fstat(fd, &st) == 0 && st.st_blksize == (blksize_t)HUGE
		&& fcntl(fd, F_GET_SEALS) == F_SEAL_SEAL);
	FAILS_WITH("and not written", write(fd, "x", 1), EINVAL);
	char *at = mapped(fd, 2, MAP_SHARED);
	at[0] = 'a';
	snprintf(path, sizeof path, "%s/a", dir);
	PROMISE("maps names it", strstr(smaps(at), path));
	munmap(at, 2 * HUGE), close(fd);
	PROMISE("it keeps its pages while it has a name", has(8, 7, 1, 0));
	fd = file("a", 0);
	at = mapped(fd, 1, MAP_SHARED);
	PROMISE("and its bytes", at[0] == 'a' && has_size(fd, 2 * HUGE, 4096));
	PROMISE("or a mapping", removed("a") && close(fd) == 0 && at[0] == 'a' && has(8, 7, 1, 0));
	PROMISE("and gives them back then", munmap(at, HUGE) == 0 && has(8, 8, 0, 0));
	fd = file("b", O_CREAT);
	NEED(fallocate(fd, 0, 0, 2 * HUGE) == 0 && has(8, 6, 0, 0));
	close(fd);
	fd = file("b", O_TRUNC);
	PROMISE("O_TRUNC empties a file", has(8, 8, 0, 0) && fallocate(fd, 0, 0, HUGE) == 0);
	close(fd);
	snprintf(path, sizeof path, "%s/d", dir);
	PROMISE("there are folders", mkdir(path, 0700) == 0 && (fd = file("d/c", O_CREAT)) >= 0 && close(fd) == 0
		&& removed("d/c") && removed("d"));
	PROMISE("with the mount all pages go", has(8, 7, 0, 0) && umount(dir) == 0 && has(8, 8, 0, 0));
}

static void limits(void)
{
	struct stat st;
	FAILS_WITH("an unknown option is refused", mounts("what=1"), EINVAL);
	FAILS_WITH("a size of pages that there is not, too", mounts("pagesize=4K"), EINVAL);
	FAILS_WITH("a size that is no number", mounts("size=M"), EINVAL);
	FAILS_WITH("a smallest size above the largest", mounts("size=4M,min_size=6M"), EINVAL);
	FAILS_WITH("a smallest size that the pool has not", mounts("min_size=18M"), ENOMEM);
	PROMISE("a size is a number of pages", mounts("size=7M,pagesize=2M,mode=1770,uid=7,gid=8") == 0 && has_blocks(3, 3)
		&& is_shown(",size=6291456") && is_shown(",uid=7,gid=8,mode=1770,"));
	PROMISE("the root is as asked for", stat(dir, &st) == 0 && (st.st_mode & 07777) == 01770 && st.st_uid == 7
		&& st.st_gid == 8);
	int fd = file("a", O_CREAT);
	FAILS_WITH("a larger mapping is refused", at_offset(fd, 0, 4, RW, MAP_SHARED), ENOMEM);
	char *at = mapped(fd, 2, MAP_SHARED);
	PROMISE("reservations count", has_blocks(3, 1) && has(8, 8, 2, 0));
	char *own = mapped(fd, 1, MAP_PRIVATE);
	PROMISE("also private ones", has_blocks(3, 0) && has(8, 8, 3, 0));
	FAILS_WITH("and nothing beyond", fallocate(fd, 0, 2 * HUGE, HUGE), ENOSPC);
	munmap(own, HUGE);
	PROMISE("until they go", has_blocks(3, 1) && fallocate(fd, 0, 2 * HUGE, HUGE) == 0 && has_blocks(3, 0)
		&& has(8, 7, 2, 0));
	own = at_offset(fd, 3, 1, RW, MAP_SHARED | MAP_NORESERVE);
	PROMISE("a page beyond it is SIGBUS", own != MAP_FAILED && IS_SIGBUS(own[0] = 1));
	PROMISE("a hole makes room for it", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 2 * HUGE, HUGE) == 0
		&& has_blocks(3, 1) && (own[0] = 1) == 1 && has_blocks(3, 0));
	munmap(at, 2 * HUGE), munmap(own, HUGE), close(fd);
	PROMISE("the mount takes all along", removed("a") && has_blocks(3, 3) && umount(dir) == 0 && has(8, 8, 0, 0));
	PROMISE("a size may be a part of the pool", mounts("size=50%,nr_inodes=3") == 0 && has_blocks(4, 4)
		&& is_shown(",nr_inodes=3,"));
	int first = file("a", O_CREAT), second = file("b", O_CREAT);
	FAILS_WITH("and files are counted", file("c", O_CREAT), ENOSPC);
	PROMISE("with the root", first >= 0 && second >= 0 && removed("b") && close(second) == 0
		&& (second = file("c", O_CREAT)) >= 0);
	close(first), close(second);
	NEED(umount(dir) == 0);
	PROMISE("a smallest size is reserved", mounts("min_size=4M,size=8M") == 0 && has(8, 8, 2, 0) && has_blocks(4, 4)
		&& is_shown(",min_size=4194304"));
	fd = file("a", O_CREAT);
	at = mapped(fd, 3, MAP_SHARED);
	PROMISE("and taken first", has(8, 8, 3, 0) && has_blocks(4, 1));
	at[0] = 'a';
	munmap(at, 3 * HUGE);
	PROMISE("and kept when a file is cut", ftruncate(fd, HUGE) == 0 && has(8, 7, 2, 0));
	PROMISE("or gone", removed("a") && close(fd) == 0 && has(8, 8, 2, 0));
	PROMISE("until the mount goes", umount(dir) == 0 && has(8, 8, 0, 0));
}

/* Pages in a segment, in a file of a mount, and reserved: the end of the machine finds them. */
static void leave(void)
{
	int id = segment(2 * HUGE, 0), fd;
	char *at = shmat(id, NULL, 0);
	NEED(id >= 0 && at != (char *)-1);
	at[0] = 'a';
	PROMISE("pages may be left behind", mounts("min_size=6M") == 0 && (fd = file("a", O_CREAT)) >= 0
		&& fallocate(fd, 0, 0, HUGE) == 0 && has(8, 6, 3, 0));
}

int main(void)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	fill_pool(8);
	sizes();
	places();
	bytes();
	holes();
	copies();
	seals();
	segments();
	tree();
	limits();
	leave();
	NEED(put(POOL, "0"));
	return conclude();
}
