/* System V IPC: shmget(2), shmop(2), shmctl(2), semop(2), semctl(2), msgop(2), msgctl(2), proc(5).
 */
#include "promise.h"
#include "setting.h"

#include <limits.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/shm.h>

#ifndef SHM_STAT_ANY
#define SHM_STAT_ANY 15
#endif
#ifndef MSG_COPY
#define MSG_COPY 040000
#endif
#ifndef MSG_STAT_ANY
#define MSG_STAT_ANY 13
#endif
#define PAGE 4096
#define KEY 0x5e4d0001

union argument {
	int val;
	struct semid_ds *buf;
	unsigned short *array;
	struct seminfo *info;
};

/* Checks a condition in a child that runs as user 1000; the value is 1 if it holds. */
#define AS_USER(condition)                                                                          \
	({                                                                                          \
		int status_;                                                                        \
		IN_CHILD(status_, if (setgid(1000) || setuid(1000)) _exit(9); _exit(!(condition))); \
		status_ == 0;                                                                       \
	})

/* ---- shared memory ---- */

static struct shmid_ds shm_stat(int id)
{
	struct shmid_ds stat = { 0 };
	NEED(shmctl(id, IPC_STAT, &stat) == 0);
	return stat;
}

static long attachments(int id)
{
	return shm_stat(id).shm_nattch;
}

static int is_gone(int id)
{
	struct shmid_ds stat;
	return shmctl(id, IPC_STAT, &stat) == -1 && errno == EINVAL;
}

/* Makes a segment of so many pages. */
static int segment_of(size_t pages)
{
	int id = shmget(IPC_PRIVATE, pages * PAGE, 0600);
	NEED(id >= 0);
	return id;
}

static int lock_within_limit(void)
{
	struct rlimit limit = { 64 * PAGE, 64 * PAGE };
	int one = segment_of(40), other = segment_of(40);
	int kept = setrlimit(RLIMIT_MEMLOCK, &limit) == 0 && shmctl(one, SHM_LOCK, NULL) == 0 && shmctl(one, SHM_LOCK, NULL) == 0 &&
		   shmctl(other, SHM_LOCK, NULL) == -1 && errno == ENOMEM && !(shm_stat(other).shm_perm.mode & 02000);
	kept = kept && shmctl(one, SHM_UNLOCK, NULL) == 0 && shmctl(other, SHM_LOCK, NULL) == 0 && shmctl(one, SHM_LOCK, NULL) == -1 &&
	       errno == ENOMEM;
	kept = kept && shmctl(other, IPC_RMID, NULL) == 0 && shmctl(one, SHM_LOCK, NULL) == 0 && shmctl(one, IPC_RMID, NULL) == 0;
	return kept;
}

/* Finds the line of /proc/sysvipc/FILE about an object; returns 0 if there is none. */
static int line_of(const char *file, int id, char *line, size_t size)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/sysvipc/%s", file);
	FILE *open = fopen(path, "re");
	NEED(open);
	int found = 0;
	while (!found && fgets(line, size, open)) {
		long key, number;
		found = sscanf(line, "%ld %ld", &key, &number) == 2 && number == id;
	}
	fclose(open);
	return found;
}

static void keys_and_sizes(void)
{
	FAILS_WITH("a key that nobody has", shmget(KEY, PAGE, 0), ENOENT);
	int id = shmget(KEY, 5000, IPC_CREAT | 0640);
	PROMISE("shmget makes a segment", id >= 0);
	PROMISE("its key finds it", shmget(KEY, 0, 0) == id && shmget(KEY, 5000, IPC_CREAT) == id);
	FAILS_WITH("IPC_EXCL", shmget(KEY, 5000, IPC_CREAT | IPC_EXCL), EEXIST);
	FAILS_WITH("a larger one", shmget(KEY, 5001, 0), EINVAL);
	FAILS_WITH("one without a byte", shmget(IPC_PRIVATE, 0, IPC_CREAT | 0600), EINVAL);
	FAILS_WITH("one larger than shmmax", shmget(IPC_PRIVATE, ULONG_MAX, IPC_CREAT | 0600), EINVAL);
	struct shmid_ds stat = shm_stat(id);
	PROMISE("IPC_STAT tells size, mode, key and maker", stat.shm_segsz == 5000 && stat.shm_perm.mode == 0640 &&
		stat.shm_perm.__key == KEY && stat.shm_cpid == getpid() && stat.shm_lpid == 0 && stat.shm_nattch == 0);
	PROMISE("and times", stat.shm_atime == 0 && stat.shm_dtime == 0 && stat.shm_ctime > 0);
	int other = shmget(IPC_PRIVATE, PAGE, 0600);
	PROMISE("IPC_PRIVATE makes another each time", other >= 0 && other != id && shmget(IPC_PRIVATE, 1, 0600) != other);
	PROMISE("IPC_RMID of one that is not attached", shmctl(id, IPC_RMID, NULL) == 0 && is_gone(id));
	FAILS_WITH("its key is free", shmget(KEY, 1, 0), ENOENT);
	FAILS_WITH("an ID that was", shmat(id, NULL, 0), EINVAL);
	FAILS_WITH("a negative ID", shmctl(-1, IPC_STAT, &stat), EINVAL);
	FAILS_WITH("an unknown command", shmctl(other, 77, &stat), EINVAL);
	FAILS_WITH("a bad address", shmctl(other, IPC_STAT, (void *)1), EFAULT);
	int used = shmget(IPC_PRIVATE, 1, 0600);
	shmctl(used, IPC_RMID, NULL);
	int again = shmget(IPC_PRIVATE, 1, 0600);
	PROMISE("a new segment has an ID that no old one had", again != used);
	shmctl(again, IPC_RMID, NULL);
	shmctl(other, IPC_RMID, NULL);
}

static void memory_is_shared(void)
{
	int id = shmget(IPC_PRIVATE, 3 * PAGE, 0600);
	volatile char *a = shmat(id, NULL, 0), *b = shmat(id, NULL, 0);
	NEED(a != (void *)-1 && b != (void *)-1);
	PROMISE("two attachments are two places", a != b && attachments(id) == 2);
	int is_zero = 1;
	for (int i = 0; i < 3 * PAGE; i++)
		is_zero &= a[i] == 0;
	PROMISE("new memory is zeroes", is_zero);
	a[PAGE] = 7;
	PROMISE("a store in one is seen in the other", b[PAGE] == 7);
	int status;
	IN_CHILD(status, b[0] = 9; _exit(attachments(id) != 4));
	PROMISE("fork attaches both again, and its child's stores are seen", status == 0 && a[0] == 9);
	PROMISE("exit detaches", COMES_TRUE(attachments(id) == 2));
	PROMISE("shmdt", shmdt((void *)b) == 0 && attachments(id) == 1);
	struct shmid_ds stat = shm_stat(id);
	PROMISE("times and processes of attachments", stat.shm_atime > 0 && stat.shm_dtime > 0 && stat.shm_lpid == getpid());
	FAILS_WITH("shmdt again", shmdt((void *)b), EINVAL);
	FAILS_WITH("shmdt inside", shmdt((void *)(a + PAGE)), EINVAL);
	FAILS_WITH("shmdt of an address that is none", shmdt((void *)(a + 1)), EINVAL);
	PROMISE("bytes stay", (b = shmat(id, NULL, 0)) != (void *)-1 && b[0] == 9 && b[PAGE] == 7);
	PROMISE("munmap of the middle leaves two pieces", munmap((void *)(b + PAGE), PAGE) == 0 && attachments(id) == 3);
	PROMISE("shmdt takes both", shmdt((void *)b) == 0 && attachments(id) == 1);
	PROMISE("munmap of all detaches", munmap((void *)a, 3 * PAGE) == 0 && attachments(id) == 0);
	IN_CHILD(status, shmat(id, NULL, 0); execl("/proc/self/exe", "sysv", "exec", NULL));
	PROMISE("execve detaches", WIFEXITED(status) && COMES_TRUE(attachments(id) == 0));
	shmctl(id, IPC_RMID, NULL);
}

static void removal_waits(void)
{
	int id = shmget(KEY, PAGE, IPC_CREAT | 0600);
	char *at = shmat(id, NULL, 0);
	NEED(at != (void *)-1);
	strcpy(at, "kept");
	PROMISE("IPC_RMID of an attached one", shmctl(id, IPC_RMID, NULL) == 0);
	struct shmid_ds stat = shm_stat(id);
	PROMISE("leaves it, without its key and marked", stat.shm_perm.mode == (01000 | 0600) && stat.shm_perm.__key == IPC_PRIVATE);
	FAILS_WITH("its key finds nothing", shmget(KEY, PAGE, 0), ENOENT);
	char *more = shmat(id, NULL, 0);
	PROMISE("it can still be attached", more != (void *)-1 && !strcmp(more, "kept"));
	int status;
	IN_CHILD(status, if (shmdt(at)) _exit(1); sleep_ms(5));
	PROMISE("a child's end does not remove it", status == 0 && attachments(id) == 2 && !strcmp(at, "kept"));
	PROMISE("nor does the last detachment but one", shmdt(at) == 0 && attachments(id) == 1 && !strcmp(more, "kept"));
	PROMISE("the last one does", shmdt(more) == 0 && is_gone(id));
	id = shmget(IPC_PRIVATE, PAGE, 0600);
	IN_CHILD(status, _exit(shmat(id, NULL, 0) == (void *)-1 || shmctl(id, IPC_RMID, NULL)));
	PROMISE("so does the end of a process", status == 0 && COMES_TRUE(is_gone(id)));
}

static void places(void)
{
	int id = shmget(IPC_PRIVATE, 2 * PAGE, 0700);
	char *room = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(room != MAP_FAILED);
	FAILS_WITH("a place that is taken", shmat(id, room, 0), EINVAL);
	FAILS_WITH("a place that is no page", shmat(id, room + 1, SHM_REMAP), EINVAL);
	FAILS_WITH("SHM_REMAP without a place", shmat(id, NULL, SHM_REMAP), EINVAL);
	room[0] = room[2 * PAGE] = 1;
	PROMISE("SHM_REMAP replaces what is there", shmat(id, room, SHM_REMAP) == room && room[0] == 0 && room[2 * PAGE] == 1);
	munmap(room, 4 * PAGE);
	PROMISE("SHM_RND rounds down", shmat(id, room + 100, SHM_RND) == room && shmdt(room) == 0);
	PROMISE("a free place", shmat(id, room, 0) == room && shmdt(room) == 0);
	char *only = shmat(id, NULL, SHM_RDONLY);
	PROMISE("SHM_RDONLY can be read", only != (void *)-1 && *(volatile char *)only == 0);
	FAILS_WITH("and never be written", mprotect(only, PAGE, PROT_READ | PROT_WRITE), EACCES);
	int status;
	IN_CHILD(status, signal(SIGSEGV, SIG_DFL); *(volatile char *)only = 1);
	PROMISE("a store there is SIGSEGV", WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	unsigned char *code = shmat(id, NULL, SHM_EXEC);
	NEED(code != (void *)-1);
	memcpy(code, "\xb8\x2a\x00\x00\x00\xc3", 6);
	PROMISE("SHM_EXEC runs code", ((int (*)(void))(uintptr_t)code)() == 42);
	shmctl(id, IPC_RMID, NULL);
	shmdt(only);
	shmdt(code);
	PROMISE("all went", is_gone(id));
}

static void rights_of_segments(void)
{
	struct shmid_ds stat;
	int id = shmget(KEY, PAGE, IPC_CREAT | 0600);
	PROMISE("another user cannot attach, find or ask", AS_USER(shmat(id, NULL, 0) == (void *)-1 && errno == EACCES &&
		shmget(KEY, PAGE, 0400) == -1 && errno == EACCES && shmctl(id, IPC_STAT, &stat) == -1 && errno == EACCES));
	PROMISE("who wants nothing finds it", AS_USER(shmget(KEY, PAGE, 0) == id));
	PROMISE("nor change or remove", AS_USER(shmctl(id, IPC_RMID, NULL) == -1 && errno == EPERM));
	stat = shm_stat(id);
	stat.shm_perm.mode = 07644;
	PROMISE("IPC_SET takes nine bits", shmctl(id, IPC_SET, &stat) == 0 && shm_stat(id).shm_perm.mode == 0644);
	PROMISE("now it may be read only", AS_USER(shmat(id, NULL, SHM_RDONLY) != (void *)-1 && shmat(id, NULL, 0) == (void *)-1 &&
		errno == EACCES));
	PROMISE("SHM_LOCK is for the owner", AS_USER(shmctl(id, SHM_LOCK, NULL) == -1 && errno == EPERM));
	stat.shm_perm.uid = 1000;
	stat.shm_perm.mode = 0600;
	PROMISE("a new owner", shmctl(id, IPC_SET, &stat) == 0 && AS_USER(shmat(id, NULL, 0) != (void *)-1));
	stat.shm_perm.uid = -1;
	FAILS_WITH("no owner", shmctl(id, IPC_SET, &stat), EINVAL);
	PROMISE("SHM_LOCK and SHM_UNLOCK show in the mode", shmctl(id, SHM_LOCK, NULL) == 0 && shm_stat(id).shm_perm.mode == 02600 &&
		shmctl(id, SHM_UNLOCK, NULL) == 0 && shm_stat(id).shm_perm.mode == 0600);
	PROMISE("the owner removes it", AS_USER(shmctl(id, IPC_RMID, NULL) == 0) && is_gone(id));
	PROMISE("a user's locked segments are within RLIMIT_MEMLOCK together", AS_USER(lock_within_limit()));
}

static void lists_of_segments(void)
{
	char line[256];
	struct shmid_ds stat;
	struct shm_info before, info;
	struct shminfo limits;
	NEED(shmctl(0, SHM_INFO, (void *)&before) >= 0);
	int id = shmget(KEY, 3 * PAGE, IPC_CREAT | 0600);
	volatile char *at = shmat(id, NULL, 0);
	at[0] = at[PAGE] = 1;
	PROMISE("SHM_INFO counts segments, pages and those in memory", shmctl(0, SHM_INFO, (void *)&info) >= 0 &&
		info.used_ids == before.used_ids + 1 && info.shm_tot == before.shm_tot + 3 && info.shm_rss + info.shm_swp >= before.shm_rss + 2);
	int highest = shmctl(0, IPC_INFO, (void *)&limits);
	PROMISE("IPC_INFO tells the limits", limits.shmmni == 4096 && limits.shmmin == 1 && limits.shmmax >= 1ul << 40);
	int found = 0, any = 0;
	for (int place = 0; place <= highest; place++) {
		found |= shmctl(place, SHM_STAT, &stat) == id && stat.shm_segsz == 3 * PAGE;
		any |= shmctl(place, SHM_STAT_ANY, &stat) == id;
	}
	PROMISE("SHM_STAT finds it by its place, and SHM_STAT_ANY", found && any);
	long key, number, mode, size, maker, last, count;
	PROMISE("/proc/sysvipc/shm has it", line_of("shm", id, line, sizeof line) &&
		sscanf(line, "%ld %ld %lo %ld %ld %ld %ld", &key, &number, &mode, &size, &maker, &last, &count) == 7 &&
		(int)key == KEY && mode == 0600 && size == 3 * PAGE && maker == getpid() && last == getpid() && count == 1);
	PROMISE("its columns are as wide as they always were", strlen(line) == 170);
	FILE *maps = fopen("/proc/self/maps", "re");
	int named = 0;
	while (fgets(line, sizeof line, maps))
		named |= strstr(line, "/SYSV5e4d0001 (deleted)") && strstr(line, "rw-s");
	fclose(maps);
	PROMISE("/proc/self/maps names it", named);
	shmdt((void *)at);
	shmctl(id, IPC_RMID, NULL);
	PROMISE("pages are given back", COMES_TRUE(shmctl(0, SHM_INFO, (void *)&info) >= 0 && info.shm_tot == before.shm_tot));
}

static void limits_of_segments(void)
{
	PROMISE("shmmax can be lowered", writes("kernel/shmmax", "8192") == 0);
	FAILS_WITH("and holds", shmget(IPC_PRIVATE, 8193, 0600), EINVAL);
	writes("kernel/shmmax", "18446744073692774399");
	struct shm_info info;
	char text[32];
	NEED(shmctl(0, SHM_INFO, (void *)&info) >= 0);
	snprintf(text, sizeof text, "%ld", (long)info.shm_tot + 4);
	writes("kernel/shmall", text);
	FAILS_WITH("shmall holds", shmget(IPC_PRIVATE, 5 * PAGE, 0600), ENOSPC);
	writes("kernel/shmall", "18446744073692774399");
	snprintf(text, sizeof text, "%d", info.used_ids + 1);
	writes("kernel/shmmni", text);
	int id = shmget(IPC_PRIVATE, 1, 0600);
	FAILS_WITH("shmmni holds", shmget(IPC_PRIVATE, 1, 0600), ENOSPC);
	writes("kernel/shmmni", "4096");
	PROMISE("shmmni has an end", writes("kernel/shmmni", "40000") == EINVAL);
	shmctl(id, IPC_RMID, NULL);
	FAILS_WITH("more than there can be", shmget(IPC_PRIVATE, 1ul << 45, 0600), ENOMEM);
}

/* ---- semaphores ---- */

static int value(int id, int number)
{
	return semctl(id, number, GETVAL);
}

static int set_value(int id, int number, int to)
{
	return semctl(id, number, SETVAL, (union argument){ .val = to });
}

static int one(int id, int number, int change, int flags)
{
	struct sembuf operation = { number, change, flags };
	return semop(id, &operation, 1);
}

static int timed(int id, int change, long seconds, long nanoseconds)
{
	struct sembuf operation = { 0, change, 0 };
	struct timespec timeout = { seconds, nanoseconds };
	return semtimedop(id, &operation, 1, &timeout);
}

static void values_of_semaphores(void)
{
	unsigned short all[3] = { 4, 5, 6 }, wrong[3] = { 1, 32768, 1 };
	struct semid_ds stat;
	FAILS_WITH("a set without a semaphore", semget(IPC_PRIVATE, 0, 0600), EINVAL);
	FAILS_WITH("a set of too many", semget(IPC_PRIVATE, 32001, 0600), EINVAL);
	int id = semget(KEY, 3, IPC_CREAT | 0600);
	PROMISE("semget makes a set of zeroes", id >= 0 && value(id, 0) == 0 && value(id, 2) == 0);
	PROMISE("its key finds it", semget(KEY, 2, 0) == id && semget(KEY, 0, 0) == id);
	FAILS_WITH("with more semaphores it does not", semget(KEY, 4, 0), EINVAL);
	PROMISE("SETALL and GETALL", semctl(id, 0, SETALL, (union argument){ .array = all }) == 0 && value(id, 1) == 5 &&
		semctl(id, 0, GETALL, (union argument){ .array = wrong }) == 0 && wrong[0] == 4 && wrong[2] == 6);
	wrong[1] = 32768;
	FAILS_WITH("SETALL of too much", semctl(id, 0, SETALL, (union argument){ .array = wrong }), ERANGE);
	FAILS_WITH("SETVAL of too much", set_value(id, 0, 32768), ERANGE);
	FAILS_WITH("SETVAL of too little", set_value(id, 0, -1), ERANGE);
	FAILS_WITH("a semaphore that is not there", set_value(id, 3, 1), EINVAL);
	FAILS_WITH("GETVAL of it", value(id, 3), EINVAL);
	FAILS_WITH("an operation on it", one(id, 3, 1, 0), EFBIG);
	FAILS_WITH("no operation", semop(id, NULL, 0), EINVAL);
	FAILS_WITH("too many operations", semop(id, (void *)1, 501), E2BIG);
	FAILS_WITH("operations that are nowhere", semop(id, (void *)1, 1), EFAULT);
	PROMISE("semop adds, and tells who", one(id, 1, 3, 0) == 0 && value(id, 1) == 8 && semctl(id, 1, GETPID) == getpid());
	FAILS_WITH("more than a semaphore holds", one(id, 1, 32760, 0), ERANGE);
	FAILS_WITH("IPC_NOWAIT", one(id, 1, -9, IPC_NOWAIT), EAGAIN);
	FAILS_WITH("a zero that is not there", one(id, 1, 0, IPC_NOWAIT), EAGAIN);
	struct sembuf two[] = { { 0, -4, 0 }, { 1, -9, IPC_NOWAIT } };
	FAILS_WITH("two operations, of which one cannot be", semop(id, two, 2), EAGAIN);
	PROMISE("none is done", value(id, 0) == 4 && value(id, 1) == 8);
	struct sembuf same[] = { { 0, -4, 0 }, { 0, 0, 0 }, { 0, 7, 0 } };
	PROMISE("operations on one semaphore, one after the other", semop(id, same, 3) == 0 && value(id, 0) == 7);
	PROMISE("IPC_STAT", semctl(id, 0, IPC_STAT, (union argument){ .buf = &stat }) == 0 && stat.sem_nsems == 3 &&
		stat.sem_otime > 0 && stat.sem_ctime > 0 && stat.sem_perm.mode == 0600);
	PROMISE("another user may not", AS_USER(one(id, 0, 1, 0) == -1 && errno == EACCES && set_value(id, 0, 1) == -1 && errno == EACCES &&
		semctl(id, 0, IPC_RMID) == -1 && errno == EPERM));
	stat.sem_perm.mode = 0604;
	PROMISE("who may read waits for zeroes, and changes nothing", semctl(id, 0, IPC_SET, (union argument){ .buf = &stat }) == 0 &&
		AS_USER(one(id, 0, 0, IPC_NOWAIT) == -1 && errno == EAGAIN && one(id, 0, 1, 0) == -1 && errno == EACCES));
	PROMISE("IPC_RMID", semctl(id, 0, IPC_RMID) == 0 && semget(KEY, 1, 0) == -1 && errno == ENOENT);
	FAILS_WITH("and again", semctl(id, 0, IPC_RMID), EINVAL);
}

static void nothing(int signal)
{
	(void)signal;
}

/* Makes a child that runs `...` and exits with 0, or with the errno. */
#define CHILD(...)                                                                                  \
	({                                                                                          \
		fflush(stdout);                                                                     \
		pid_t child_ = fork();                                                              \
		NEED(child_ >= 0);                                                                  \
		if (child_ == 0) {                                                                  \
			prctl(PR_SET_PDEATHSIG, SIGKILL);                                           \
			_exit((__VA_ARGS__) == -1 ? errno : 0);                                     \
		}                                                                                   \
		child_;                                                                             \
	})

static int result(pid_t child)
{
	int status;
	NEED(waitpid(child, &status, 0) == child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int has_ended(pid_t child)
{
	siginfo_t info = { 0 };
	return waitid(P_PID, child, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == child;
}

static void waits_for_semaphores(void)
{
	int id = semget(IPC_PRIVATE, 2, 0600);
	pid_t first = CHILD(one(id, 0, -2, 0));
	PROMISE("a call waits for more", COMES_TRUE(semctl(id, 0, GETNCNT) == 1) && !has_ended(first));
	pid_t second = CHILD(one(id, 0, -1, 0));
	NEED(COMES_TRUE(semctl(id, 0, GETNCNT) == 2));
	PROMISE("what is enough for the second only is the second's", one(id, 0, 1, 0) == 0 && result(second) == 0 &&
		!has_ended(first) && value(id, 0) == 0);
	PROMISE("the first gets its own", one(id, 0, 2, 0) == 0 && result(first) == 0 && semctl(id, 0, GETNCNT) == 0);
	set_value(id, 0, 1);
	first = CHILD(one(id, 0, 0, 0));
	PROMISE("a call waits for zero", COMES_TRUE(semctl(id, 0, GETZCNT) == 1));
	PROMISE("and gets it", one(id, 0, -1, 0) == 0 && result(first) == 0);
	pid_t turns[3];
	for (int i = 0; i < 3; i++) {
		turns[i] = CHILD(one(id, 0, -1, 0));
		NEED(COMES_TRUE(semctl(id, 0, GETNCNT) == i + 1));
	}
	int in_turn = 1;
	for (int i = 0; i < 3; i++) {
		one(id, 0, 1, 0);
		in_turn &= result(turns[i]) == 0 && (i == 2 || !has_ended(turns[i + 1]));
	}
	PROMISE("first come, first served", in_turn);
	struct sembuf moves[] = { { 0, -1, 0 }, { 1, 1, 0 } };
	first = CHILD(semop(id, moves, 2));
	second = CHILD(one(id, 1, -1, 0));
	NEED(COMES_TRUE(semctl(id, 0, GETNCNT) == 1 && semctl(id, 1, GETNCNT) == 1));
	PROMISE("who is served serves the next", one(id, 0, 1, 0) == 0 && result(first) == 0 && result(second) == 0 && value(id, 1) == 0);
	FAILS_WITH("semtimedop ends", timed(id, -1, 0, 20000000), EAGAIN);
	FAILS_WITH("at once", timed(id, -1, 0, 0), EAGAIN);
	FAILS_WITH("a time that is none", timed(id, -1, 0, 1000000000), EINVAL);
	sigaction(SIGALRM, &(struct sigaction){ .sa_handler = nothing, .sa_flags = SA_RESTART }, NULL);
	setitimer(ITIMER_REAL, &(struct itimerval){ { 0, 20000 }, { 0, 20000 } }, NULL);
	FAILS_WITH("a signal ends it, with SA_RESTART too", one(id, 0, -1, 0), EINTR);
	setitimer(ITIMER_REAL, &(struct itimerval){ 0 }, NULL);
	PROMISE("nobody waits any more", semctl(id, 0, GETNCNT) == 0);
	first = CHILD(one(id, 0, -1, 0));
	second = CHILD(one(id, 0, -1, 0));
	NEED(COMES_TRUE(semctl(id, 0, GETNCNT) == 2));
	kill(second, SIGKILL);
	PROMISE("a killed one waits no more", result(second) == -SIGKILL && semctl(id, 0, GETNCNT) == 1);
	PROMISE("IPC_RMID ends all waiting", semctl(id, 0, IPC_RMID) == 0 && result(first) == EIDRM);
}

static void undoing(void)
{
	int id = semget(IPC_PRIVATE, 2, 0600), status;
	set_value(id, 0, 5);
	IN_CHILD(status, one(id, 0, -3, SEM_UNDO); one(id, 1, 2, SEM_UNDO); one(id, 1, 1, 0); _exit(value(id, 0) != 2));
	PROMISE("the end of a process takes back", status == 0 && COMES_TRUE(value(id, 0) == 5 && value(id, 1) == 1));
	set_value(id, 0, 1);
	pid_t holder = CHILD(one(id, 0, -1, SEM_UNDO) ? -1 : pause());
	NEED(COMES_TRUE(value(id, 0) == 0));
	pid_t waiter = CHILD(one(id, 0, -1, 0));
	NEED(COMES_TRUE(semctl(id, 0, GETNCNT) == 1));
	kill(holder, SIGKILL);
	PROMISE("and serves who waits", result(holder) == -SIGKILL && result(waiter) == 0);
	set_value(id, 0, 5);
	IN_CHILD(status, one(id, 0, -3, SEM_UNDO); set_value(id, 0, 9));
	sleep_ms(5);
	PROMISE("SETVAL forgets what is to be taken back", value(id, 0) == 9);
	IN_CHILD(status, one(id, 0, 3, SEM_UNDO); one(id, 0, -11, 0));
	PROMISE("a semaphore stays at zero", COMES_TRUE(value(id, 0) == 0));
	set_value(id, 0, 0);
	PROMISE("fork does not inherit it", one(id, 0, 4, SEM_UNDO) == 0);
	IN_CHILD(status, ;);
	PROMISE("the child took nothing back", value(id, 0) == 4);
	IN_CHILD(status, one(id, 0, 2, SEM_UNDO); execl("/proc/self/exe", "sysv", "exec", NULL));
	PROMISE("execve keeps it until the end", COMES_TRUE(value(id, 0) == 4));
	set_value(id, 0, 0);
	struct sembuf many[2] = { { 0, 32767, SEM_UNDO }, { 0, -32767, 0 } };
	IN_CHILD(status, if (semop(id, many, 2)) _exit(1); many[0].sem_op = 2; _exit(semop(id, many, 1) == 0 || errno != ERANGE));
	PROMISE("there is a limit to what can be taken back", status == 0);
	char line[256];
	PROMISE("/proc/sysvipc/sem has it", line_of("sem", id, line, sizeof line));
	struct seminfo limits;
	PROMISE("IPC_INFO tells the limits", semctl(0, 0, IPC_INFO, (union argument){ .info = &limits }) >= 0 && limits.semmsl == 32000 &&
		limits.semopm == 500 && limits.semvmx == 32767 && limits.semaem == 32767 && limits.semmni == 32000);
	PROMISE("SEM_INFO counts", semctl(0, 0, SEM_INFO, (union argument){ .info = &limits }) >= 0 && limits.semusz >= 1 && limits.semaem >= 2);
	semctl(id, 0, IPC_RMID);
	sleep_ms(1);
}

/* ---- messages ---- */

struct message {
	long type;
	char text[16];
};

static int put(int id, long type, const char *text, int flags)
{
	struct message message = { .type = type };
	snprintf(message.text, sizeof message.text, "%s", text);
	return msgsnd(id, &message, strlen(text), flags);
}

/* Whether a message with this text is received. */
static int comes(int id, long type, int flags, const char *text)
{
	struct message message = { 0 };
	ssize_t length = msgrcv(id, &message, sizeof message.text, type, flags);
	return length == (ssize_t)strlen(text) && !memcmp(message.text, text, length);
}

static int take(int id, size_t room, long type, int flags)
{
	struct message message;
	return msgrcv(id, &message, room, type, flags);
}

static void types_of_messages(void)
{
	struct msqid_ds stat;
	int id = msgget(KEY, IPC_CREAT | 0600);
	PROMISE("msgget makes a queue, and finds it", id >= 0 && msgget(KEY, 0) == id);
	PROMISE("messages go in", put(id, 5, "five", 0) == 0 && put(id, 3, "three", 0) == 0 && put(id, 9, "nine", 0) == 0 &&
		put(id, 3, "more", 0) == 0 && put(id, 1, "", 0) == 0);
	PROMISE("IPC_STAT counts them", msgctl(id, IPC_STAT, &stat) == 0 && stat.msg_qnum == 5 && stat.__msg_cbytes == 17 &&
		stat.msg_qbytes == 16384 && stat.msg_lspid == getpid() && stat.msg_lrpid == 0 && stat.msg_stime > 0 && stat.msg_rtime == 0);
	PROMISE("a type", comes(id, 9, 0, "nine"));
	PROMISE("another type", comes(id, 5, MSG_EXCEPT, "three"));
	PROMISE("the lowest type up to one", comes(id, -4, 0, ""));
	PROMISE("the next lowest", comes(id, -9, 0, "more"));
	FAILS_WITH("a type that is not there", take(id, 16, 77, IPC_NOWAIT), ENOMSG);
	FAILS_WITH("a text that is too long", take(id, 2, 0, IPC_NOWAIT), E2BIG);
	PROMISE("MSG_COPY leaves it", comes(id, 0, MSG_COPY | IPC_NOWAIT, "five") && comes(id, 0, MSG_COPY | IPC_NOWAIT, "five"));
	FAILS_WITH("MSG_COPY of the second", take(id, 16, 1, MSG_COPY | IPC_NOWAIT), ENOMSG);
	FAILS_WITH("MSG_COPY that would wait", take(id, 16, 0, MSG_COPY), EINVAL);
	FAILS_WITH("MSG_COPY and MSG_EXCEPT", take(id, 16, 0, MSG_COPY | MSG_EXCEPT | IPC_NOWAIT), EINVAL);
	struct message message;
	PROMISE("MSG_NOERROR cuts it", msgrcv(id, &message, 2, 0, MSG_NOERROR) == 2 && message.type == 5 && !memcmp(message.text, "fi", 2));
	FAILS_WITH("the rest is lost", take(id, 16, 0, IPC_NOWAIT), ENOMSG);
	FAILS_WITH("a type of zero", put(id, 0, "x", 0), EINVAL);
	FAILS_WITH("a message that is nowhere", msgsnd(id, (void *)1, 1, 0), EFAULT);
	FAILS_WITH("a message that is too long", msgsnd(id, &message, 8193, 0), EINVAL);
	PROMISE("another user may not", AS_USER(put(id, 1, "x", 0) == -1 && errno == EACCES && take(id, 1, 0, IPC_NOWAIT) == -1 && errno == EACCES &&
		msgctl(id, IPC_RMID, NULL) == -1 && errno == EPERM));
	stat.msg_perm.mode = 0606;
	stat.msg_perm.uid = 1000;
	stat.msg_qbytes = 16385;
	PROMISE("a larger queue is for root", msgctl(id, IPC_SET, &stat) == 0 && AS_USER(msgctl(id, IPC_SET, &stat) == -1 && errno == EPERM));
	char line[256];
	PROMISE("/proc/sysvipc/msg has it", line_of("msg", id, line, sizeof line));
	struct msginfo limits;
	PROMISE("IPC_INFO tells the limits", msgctl(0, IPC_INFO, (void *)&limits) >= 0 && limits.msgmax == 8192 && limits.msgmnb == 16384 &&
		limits.msgmni == 32000);
	put(id, 1, "counted", 0);
	PROMISE("MSG_INFO counts", msgctl(0, MSG_INFO, (void *)&limits) >= 0 && limits.msgpool >= 1 && limits.msgmap >= 1 && limits.msgtql >= 7);
	PROMISE("IPC_RMID", msgctl(id, IPC_RMID, NULL) == 0 && msgget(KEY, 0) == -1 && errno == ENOENT);
}

static int sleeping(pid_t child)
{
	return COMES_TRUE(is_asleep(child, child));
}

static void waits_for_messages(void)
{
	struct msqid_ds stat;
	struct message message = { .type = 1 };
	int id = msgget(IPC_PRIVATE, 0600);
	pid_t typed = CHILD(take(id, 16, 7, 0)), any = CHILD(take(id, 16, 0, 0));
	NEED(sleeping(typed) && sleeping(any));
	PROMISE("a message goes to who waits for its type", put(id, 1, "x", 0) == 0 && result(any) == 0 && !has_ended(typed));
	PROMISE("and the other's to the other", put(id, 7, "y", 0) == 0 && result(typed) == 0);
	msgctl(id, IPC_STAT, &stat);
	PROMISE("nothing is left, and the last receiver is known", stat.msg_qnum == 0 && stat.msg_lrpid == typed);
	typed = CHILD(take(id, 1, 0, 0));
	NEED(sleeping(typed));
	PROMISE("a receiver without room is told so, and the message stays", put(id, 1, "long", 0) == 0 && result(typed) == E2BIG &&
		comes(id, 0, 0, "long"));
	msgctl(id, IPC_STAT, &stat);
	stat.msg_qbytes = 10;
	NEED(msgctl(id, IPC_SET, &stat) == 0);
	put(id, 1, "12345678", 0);
	FAILS_WITH("a full queue", put(id, 1, "abc", IPC_NOWAIT), EAGAIN);
	pid_t sender = CHILD(put(id, 2, "abc", 0));
	NEED(sleeping(sender));
	PROMISE("a sender waits for room", !has_ended(sender) && comes(id, 0, 0, "12345678") && result(sender) == 0 && comes(id, 2, 0, "abc"));
	put(id, 1, "12345678", 0);
	sender = CHILD(put(id, 2, "abc", 0));
	NEED(sleeping(sender));
	stat.msg_qbytes = 20;
	PROMISE("a larger queue lets it in", msgctl(id, IPC_SET, &stat) == 0 && result(sender) == 0);
	int empty = 0;
	while (put(id, 3, "", IPC_NOWAIT) == 0)
		empty++;
	PROMISE("empty messages are counted", empty == 18);
	sender = CHILD(put(id, 2, "abc", 0));
	typed = CHILD(take(id, 16, 99, 0));
	NEED(sleeping(sender) && sleeping(typed));
	sigaction(SIGALRM, &(struct sigaction){ .sa_handler = nothing, .sa_flags = SA_RESTART }, NULL);
	setitimer(ITIMER_REAL, &(struct itimerval){ { 0, 20000 }, { 0, 20000 } }, NULL);
	FAILS_WITH("a signal ends msgrcv", take(id, 16, 99, 0), EINTR);
	FAILS_WITH("and msgsnd", msgsnd(id, &message, 16, 0), EINTR);
	setitimer(ITIMER_REAL, &(struct itimerval){ 0 }, NULL);
	pid_t killed = CHILD(take(id, 16, 99, 0));
	NEED(sleeping(killed));
	kill(killed, SIGKILL);
	PROMISE("SIGKILL too", result(killed) == -SIGKILL);
	PROMISE("IPC_RMID ends all waiting", msgctl(id, IPC_RMID, NULL) == 0 && result(sender) == EIDRM && result(typed) == EIDRM);
	FAILS_WITH("and the queue is gone", put(id, 1, "x", 0), EINVAL);
}

int main(int count, char **arguments)
{
	if (count > 1 && !strcmp(arguments[1], "exec"))
		return 0;
	keys_and_sizes();
	memory_is_shared();
	removal_waits();
	places();
	rights_of_segments();
	lists_of_segments();
	limits_of_segments();
	values_of_semaphores();
	waits_for_semaphores();
	undoing();
	types_of_messages();
	waits_for_messages();
	return conclude();
}
