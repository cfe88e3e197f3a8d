/* personality(2): the values that are kept, and the flags that change other calls: UNAME26 and
 * PER_LINUX32 (uname), READ_IMPLIES_EXEC (mmap, mprotect, brk, shmat), STICKY_TIMEOUTS (select,
 * pselect, ppoll). fork and execve keep them, except those that a program with more rights must not
 * inherit. iopl(2) and ioperm(2), as far as they are refused. Needs root. */
#include "promise.h"
#include <sys/personality.h>
#include <sys/select.h>
#include <sys/shm.h>
#include <sys/utsname.h>

enum { QUERY = -1, USER = 1000 };
#define PAGE 4096
#define COPY "/tmp/personality-set-id"

static int now(void)
{
	return personality(QUERY);
}

/* Runs `path` as a user or as root with `persona` set; returns the value that it begins with. */
static int begins_with(const char *path, unsigned long persona, int as_user)
{
	int ends[2], status, told = -1;
	NEED(pipe(ends) == 0);
	IN_CHILD(status, if (as_user) NEED(setgid(USER) == 0 && setuid(USER) == 0);
		NEED(personality(persona) != -1 && dup2(ends[1], 1) == 1);
		execl(path, path, "persona", NULL); _exit(9));
	NEED(status == 0 && read(ends[0], &told, sizeof told) == sizeof told);
	close(ends[0]);
	close(ends[1]);
	return told;
}

static void copy_program(void)
{
	char bytes[65536];
	ssize_t count;
	int from = open("/proc/self/exe", O_RDONLY), to = open(COPY, O_CREAT | O_TRUNC | O_WRONLY, 0755);
	NEED(from >= 0 && to >= 0);
	while ((count = read(from, bytes, sizeof bytes)) > 0)
		NEED(write(to, bytes, count) == count);
	NEED(fchmod(to, 04755) == 0 && close(to) == 0 && close(from) == 0);
}

static void values(void)
{
	static const unsigned kept[] = {
		PER_LINUX, PER_LINUX_32BIT, PER_SVR4, PER_SVR3, PER_SCOSVR3, PER_OSR5, PER_WYSEV386, PER_ISCR4, PER_BSD,
		PER_XENIX, PER_LINUX32, PER_LINUX32_3GB, PER_IRIX32, PER_RISCOS, PER_SOLARIS, PER_UW7, PER_HPUX, 0xdd,
		SHORT_INODE, WHOLE_SECONDS, STICKY_TIMEOUTS, MMAP_PAGE_ZERO, ADDR_COMPAT_LAYOUT, READ_IMPLIES_EXEC,
		ADDR_LIMIT_32BIT, ADDR_LIMIT_3GB, ADDR_NO_RANDOMIZE, UNAME26, 0xfffffffe,
	};
	int good = 1, status;
	for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
		int before = now();
		good &= personality(kept[i]) == before && now() == (int)kept[i];
	}
	PROMISE("every value is kept, and the one before returned", good);
	personality(PER_BSD | SHORT_INODE);
	IN_CHILD(status, _exit(now() != (PER_BSD | SHORT_INODE)));
	PROMISE("a child has its parent's", status == 0);
	int file = open("/proc/self/personality", O_RDONLY);
	char text[16] = { 0 };
	PROMISE("/proc tells it", file >= 0 && read(file, text, sizeof text - 1) == 9 && !strcmp(text, "01000006\n"));
	close(file);
	personality(0);
}

static void kept_by_exec(void)
{
	unsigned all = PER_BSD | SHORT_INODE | WHOLE_SECONDS | STICKY_TIMEOUTS | MMAP_PAGE_ZERO | ADDR_COMPAT_LAYOUT |
		READ_IMPLIES_EXEC | ADDR_LIMIT_32BIT | ADDR_LIMIT_3GB | ADDR_NO_RANDOMIZE | UNAME26;
	unsigned dangerous = MMAP_PAGE_ZERO | ADDR_COMPAT_LAYOUT | READ_IMPLIES_EXEC | ADDR_NO_RANDOMIZE;
	copy_program();
	PROMISE("a program keeps all but READ_IMPLIES_EXEC", begins_with("/proc/self/exe", all, 0) == (int)(all & ~READ_IMPLIES_EXEC));
	PROMISE("a user's, too", begins_with("/proc/self/exe", all, 1) == (int)(all & ~READ_IMPLIES_EXEC));
	PROMISE("one that gains rights keeps no flag that changes its addresses", begins_with(COPY, all, 1) == (int)(all & ~dangerous));
	PROMISE("nor a set-user-ID program of the user itself", begins_with(COPY, all, 0) == (int)(all & ~dangerous));
	unlink(COPY);
}

static void names(void)
{
	struct utsname usual, old;
	unsigned major, minor, of_old;
	NEED(uname(&usual) == 0 && sscanf(usual.release, "%u.%u", &major, &minor) == 2);
	personality(UNAME26);
	NEED(uname(&old) == 0);
	PROMISE("UNAME26 tells release 2.6 and the minor number plus 60", sscanf(old.release, "2.6.%u", &of_old) == 1 && of_old == minor + 60);
	PROMISE("and the same suffix", !strcmp(strchr(old.release, '-') ?: "", strchr(usual.release, '-') ?: ""));
	PROMISE("all else is as it was", !strcmp(old.version, usual.version) && !strcmp(old.machine, "x86_64"));
	personality(PER_LINUX32 | ADDR_LIMIT_3GB);
	NEED(uname(&old) == 0);
	PROMISE("PER_LINUX32 tells a 32-bit machine", !strcmp(old.machine, "i686") && !strcmp(old.release, usual.release));
	personality(0);
	NEED(uname(&old) == 0);
	PROMISE("until it is taken back", !memcmp(&old, &usual, sizeof old));
}

/* Whether the area at `at` may be executed, as /proc tells it; -1 if there is none. */
static int runs(const void *at)
{
	unsigned long start, end;
	char rights[8], line[512];
	int found = -1;
	FILE *maps = fopen("/proc/self/maps", "re");
	NEED(maps);
	while (fgets(line, sizeof line, maps))
		if (sscanf(line, "%lx-%lx %4s", &start, &end, rights) == 3 && start <= (unsigned long)at && (unsigned long)at < end)
			found = rights[2] == 'x';
	fclose(maps);
	return found;
}

static char *pages(int protection)
{
	char *at = mmap(NULL, PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(at != MAP_FAILED);
	return at;
}

static void reading_is_executing(void)
{
	char *before = pages(PROT_READ | PROT_WRITE);
	personality(READ_IMPLIES_EXEC);
	PROMISE("READ_IMPLIES_EXEC: what can be read can be executed", runs(pages(PROT_READ)) == 1 && runs(pages(PROT_READ | PROT_WRITE)) == 1);
	PROMISE("and nothing else", runs(pages(PROT_NONE)) == 0 && runs(pages(PROT_WRITE)) == 0);
	PROMISE("memory that was there stays", runs(before) == 0);
	PROMISE("until its protection changes", mprotect(before, PAGE, PROT_READ) == 0 && runs(before) == 1);
	PROMISE("and again without reading", mprotect(before, PAGE, PROT_WRITE) == 0 && runs(before) == 0);
	volatile char *code = pages(PROT_READ | PROT_WRITE);
	*code = (char)0xc3;
	((void (*)(void))code)();
	char *top = sbrk(0);
	top += (PAGE - (unsigned long)top % PAGE) % PAGE;
	PROMISE("new heap as well", brk(top + PAGE) == 0 && (*top = 1) && runs(top) == 1);
	int id = shmget(IPC_PRIVATE, PAGE, 0600);
	char *shared = shmat(id, NULL, 0), *read_only = shmat(id, NULL, SHM_RDONLY);
	PROMISE("and shared memory", shared != (void *)-1 && runs(shared) == 1 && runs(read_only) == 1);
	shmdt(shared);
	shmdt(read_only);
	shmctl(id, IPC_RMID, NULL);
	int file = open("/proc/self/exe", O_RDONLY);
	char *mapped = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, file, 0);
	PROMISE("and files", mapped != MAP_FAILED && runs(mapped) == 1);
	close(file);
	personality(0);
	PROMISE("until it is taken back", runs(pages(PROT_READ)) == 0);
}

static void time_outs(void)
{
	struct timeval micro = { 0, 2000 };
	struct timespec nano = { 0, 2000000 };
	NEED(syscall(SYS_select, 0, NULL, NULL, NULL, &micro) == 0);
	PROMISE("select tells the time that is left", micro.tv_sec == 0 && micro.tv_usec == 0);
	personality(STICKY_TIMEOUTS);
	micro.tv_usec = 2000;
	NEED(syscall(SYS_select, 0, NULL, NULL, NULL, &micro) == 0);
	PROMISE("STICKY_TIMEOUTS: select leaves it alone", micro.tv_sec == 0 && micro.tv_usec == 2000);
	NEED(syscall(SYS_pselect6, 0, NULL, NULL, NULL, &nano, NULL) == 0);
	PROMISE("pselect6, too", nano.tv_sec == 0 && nano.tv_nsec == 2000000);
	NEED(syscall(SYS_ppoll, NULL, 0, &nano, NULL, 8) == 0);
	PROMISE("and ppoll", nano.tv_sec == 0 && nano.tv_nsec == 2000000);
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		nano.tv_sec = 3600;
		_exit(syscall(SYS_ppoll, NULL, 0, &nano, NULL, 8) == -1 && errno == EINTR ? 0 : 1);
	}
	int status;
	NEED(COMES_TRUE(is_asleep(child, child)));
	kill(child, SIGSTOP);
	NEED(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
	kill(child, SIGCONT);
	PROMISE("a stop ends such a call", waitpid(child, &status, 0) == child && status == 0);
	personality(0);
	NEED(syscall(SYS_ppoll, NULL, 0, &nano, NULL, 8) == 0);
	PROMISE("until it is taken back", nano.tv_sec == 0 && nano.tv_nsec == 0);
}

static long ports(unsigned long from, unsigned long count, int on)
{
	return syscall(SYS_ioperm, from, count, on);
}

static void input_and_output(void)
{
	int status;
	PROMISE("a program's level of input and output is 0", syscall(SYS_iopl, 0) == 0);
	FAILS_WITH("there is none above 3", syscall(SYS_iopl, 4), EINVAL);
	FAILS_WITH("nor below 0", syscall(SYS_iopl, -1), EINVAL);
	FAILS_WITH("no ports", ports(0x80, 0, 1), EINVAL);
	FAILS_WITH("ports above the last", ports(65535, 2, 0), EINVAL);
	FAILS_WITH("the sum is too large", ports(2, -1ul, 1), EINVAL);
	PROMISE("ports can be taken away", ports(0, 65536, 0) == 0);
	IN_CHILD(status, NEED(setuid(USER) == 0);
		_exit(!(syscall(SYS_iopl, 3) == -1 && errno == EPERM && syscall(SYS_iopl, 4) == -1 && errno == EINVAL &&
			ports(0x80, 1, 1) == -1 && errno == EPERM && ports(0x80, 1, 0) == 0)));
	PROMISE("a user gets none", status == 0);
}

int main(int count, char **words)
{
	if (count == 2 && !strcmp(words[1], "persona")) {
		int value = now();
		return write(1, &value, sizeof value) != sizeof value;
	}
	NEED(geteuid() == 0);
	values();
	kept_by_exec();
	names();
	reading_is_executing();
	time_outs();
	input_and_output();
	return conclude();
}
