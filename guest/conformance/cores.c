/* Core files: which processes leave one, its place and its contents. Changes core_pattern. */
#include "promise.h"
#include "inside.h"

#include <elf.h>
#include <ftw.h>
#include <link.h>
#include <stddef.h>
#include <sys/procfs.h>
#include <sys/user.h>

#define PATTERN "/proc/sys/kernel/core_pattern"
#define USES_PID "/proc/sys/kernel/core_uses_pid"
#define SUID "/proc/sys/fs/suid_dumpable"
#define FOLDER "/tmp/cores"
#define PAGE 4096UL

enum { THREADS = 20 };

/* Identities and addresses that the child reports. The structure is shared memory, so a core file
 * without shared memory does not contain it. */
static struct {
	volatile pid_t pid, faulting;
	volatile char *there, *untouched, *left_out, *brought_back, *of_file, *of_private_file;
} *told;

static __thread volatile long own = 7;
static volatile long answer = 41;

static void limit(rlim_t bytes)
{
	struct rlimit both = { bytes, RLIM_INFINITY };
	setrlimit(RLIMIT_CORE, &both);
}

static volatile int *volatile nowhere = (volatile int *)8;

static __attribute__((noinline)) void crash(void)
{
	answer++;
	*nowhere = 1;
}

/* Runs `body` in a child with this limit, in an empty FOLDER; returns how the child ended. */
static int ends(void (*body)(void), rlim_t bytes)
{
	int status = 0;
	fflush(stdout);
	memset((void *)told, 0, sizeof *told);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		limit(bytes);
		told->pid = getpid();
		body();
		_exit(99);
	}
	NEED(waitpid(child, &status, 0) == child);
	return status;
}

static int dumped(int status, int signal)
{
	return WIFSIGNALED(status) && WTERMSIG(status) == signal && WCOREDUMP(status);
}

static int only_killed(int status, int signal)
{
	return WIFSIGNALED(status) && WTERMSIG(status) == signal && !WCOREDUMP(status);
}

static char *core;
static size_t core_size;

/* Reads a core file; returns its size, 0 for none. */
static size_t load(const char *path)
{
	struct stat info;
	int file = open(path, O_RDONLY | O_CLOEXEC);
	free(core);
	core = NULL, core_size = 0;
	if (file < 0)
		return 0;
	NEED(fstat(file, &info) == 0);
	core = malloc(info.st_size + 1);
	NEED(core && read(file, core, info.st_size) == info.st_size);
	close(file);
	return core_size = info.st_size;
}

static Elf64_Ehdr *head(void)
{
	return (Elf64_Ehdr *)core;
}

static Elf64_Phdr *program(int index)
{
	return (Elf64_Phdr *)(core + head()->e_phoff) + index;
}

/* Returns the core file's bytes for `address`; NULL if it has none. */
static char *at(const volatile void *address)
{
	uint64_t where = (uint64_t)address;
	for (int i = 0; i < head()->e_phnum; i++) {
		Elf64_Phdr *part = program(i);
		if (part->p_type == PT_LOAD && where >= part->p_vaddr && where < part->p_vaddr + part->p_filesz)
			return core + part->p_offset + (where - part->p_vaddr);
	}
	return NULL;
}

/* The `index`th note of this kind. */
static void *note(uint32_t kind, int index, size_t *size)
{
	char *here = core + program(0)->p_offset, *end = here + program(0)->p_filesz;
	while (here < end) {
		Elf64_Nhdr *one = (Elf64_Nhdr *)here;
		char *content = here + sizeof *one + ((one->n_namesz + 3) & ~3u);
		if (one->n_type == kind && index-- == 0) {
			if (size)
				*size = one->n_descsz;
			return content;
		}
		here = content + ((one->n_descsz + 3) & ~3u);
	}
	return NULL;
}

static void *rests(void *unused)
{
	own = (long)unused;
	for (;;)
		pause();
	return NULL;
}

static void *crashes(void *unused)
{
	told->faulting = syscall(SYS_gettid);
	usleep(50000);
	crash();
	return unused;
}

static void threads_crash(void)
{
	pthread_t thread;
	for (long i = 0; i < THREADS; i++)
		pthread_create(&thread, NULL, rests, (void *)i);
	pthread_create(&thread, NULL, crashes, NULL);
	rests(NULL);
}

static char *pages(size_t count)
{
	char *all = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	madvise(all, count * PAGE, MADV_NOHUGEPAGE);
	return all;
}

static void memory_crashes(void)
{
	int file = open("mapped", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	ftruncate(file, PAGE);
	told->there = pages(1024);
	told->untouched = told->there + 512 * PAGE;
	strcpy((char *)told->there + 1023 * PAGE, "the end");
	strcpy((char *)told->there, "the beginning");
	told->left_out = pages(4);
	told->brought_back = pages(4);
	strcpy((char *)told->left_out, "secret");
	strcpy((char *)told->brought_back, "known");
	madvise((char *)told->left_out, 4 * PAGE, MADV_DONTDUMP);
	madvise((char *)told->brought_back, 4 * PAGE, MADV_DONTDUMP);
	madvise((char *)told->brought_back, 4 * PAGE, MADV_DODUMP);
	told->of_file = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	strcpy((char *)told->of_file, "in a file");
	told->of_private_file = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
	strcpy((char *)told + PAGE / 2, "shared");
	crash();
}

static void nothing_of_memory(void)
{
	writes("/proc/self/coredump_filter", "0");
	memory_crashes();
}

static void files_too(void)
{
	writes("/proc/self/coredump_filter", "0x3b");
	memory_crashes();
}

static void private_files_too(void)
{
	writes("/proc/self/coredump_filter", "0x37");
	memory_crashes();
}

static void aborts(void)
{
	abort();
}

static void quits(void)
{
	raise(SIGQUIT);
}

static void is_terminated(void)
{
	raise(SIGTERM);
}

static void hides(void)
{
	prctl(PR_SET_DUMPABLE, 0);
	crash();
}

static void changes_user(void)
{
	/* Afterwards suid_dumpable decides about a core file: the process is not dumpable. */
	if (setgroups(0, NULL) || setresgid(USER, USER, USER) || setresuid(USER, USER, USER))
		_exit(98);
	crash();
}

static void changes_user_and_shows(void)
{
	if (setgroups(0, NULL) || setresgid(USER, USER, USER) || setresuid(USER, USER, USER))
		_exit(98);
	prctl(PR_SET_DUMPABLE, 1);
	crash();
}

static void is_large(void)
{
	size_t size = 256 << 20;
	char *all = pages(size / PAGE);
	for (size_t i = 0; i < size; i += PAGE)
		all[i] = 1;
	crash();
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *place)
{
	(void)info, (void)kind, (void)place;
	return remove(path);
}

static void empty_folder(void)
{
	mkdir("/tmp", 01777);
	nftw(FOLDER, remove_one, 8, FTW_DEPTH | FTW_PHYS);
	NEED(chdir("/") == 0 && mkdir(FOLDER, 0777) == 0 && chmod(FOLDER, 0777) == 0 && chdir(FOLDER) == 0);
}

static int exists(const char *path)
{
	return access(path, F_OK) == 0;
}

static void who_leaves_one(void)
{
	struct stat info;
	empty_folder();
	PROMISE("without a limit (0) there is none", only_killed(ends(crash, 0), SIGSEGV) && !exists("core"));
	PROMISE("nor with less than a page", only_killed(ends(crash, PAGE - 1), SIGSEGV) && !exists("core"));
	PROMISE("nor by a signal that only ends", only_killed(ends(is_terminated, RLIM_INFINITY), SIGTERM) && !exists("core"));
	PROMISE("with one there is, and the status says so", dumped(ends(crash, RLIM_INFINITY), SIGSEGV) && exists("core"));
	PROMISE("it is its owner's alone", stat("core", &info) == 0 && (info.st_mode & 07777) == 0600 && info.st_uid == 0);
	PROMISE("abort and SIGQUIT, too", dumped(ends(aborts, RLIM_INFINITY), SIGABRT) && dumped(ends(quits, RLIM_INFINITY), SIGQUIT));
	siginfo_t end = { 0 };
	pid_t child = fork();
	if (child == 0) {
		limit(RLIM_INFINITY);
		crash();
	}
	PROMISE("waitid tells of it", waitid(P_PID, child, &end, WEXITED) == 0 && end.si_code == CLD_DUMPED && end.si_status == SIGSEGV);
	empty_folder();
	PROMISE("a process that is not dumpable leaves none", only_killed(ends(hides, RLIM_INFINITY), SIGSEGV) && !exists("core"));
	PROMISE("nor one that has changed its user", only_killed(ends(changes_user, RLIM_INFINITY), SIGSEGV) && !exists("core"));
	PROMISE("unless it says that it is dumpable", dumped(ends(changes_user_and_shows, RLIM_INFINITY), SIGSEGV) &&
		stat("core", &info) == 0 && info.st_uid == USER);
	empty_folder();
	chmod(FOLDER, 0755);
	PROMISE("where it may not write there is none", only_killed(ends(changes_user_and_shows, RLIM_INFINITY), SIGSEGV) && !exists("core"));
}

static void what_is_in_the_way(void)
{
	struct stat info;
	empty_folder();
	int file = open("other", O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	NEED(write(file, "mine", 4) == 4 && link("other", "core") == 0);
	PROMISE("a link to another file is replaced", dumped(ends(crash, RLIM_INFINITY), SIGSEGV) && fstat(file, &info) == 0 && info.st_size == 4 && info.st_nlink == 1);
	NEED(unlink("core") == 0 && symlink("other", "core") == 0);
	PROMISE("so is a symbolic link", dumped(ends(crash, RLIM_INFINITY), SIGSEGV) && fstat(file, &info) == 0 && info.st_size == 4 &&
		lstat("core", &info) == 0 && S_ISREG(info.st_mode));
	NEED(unlink("core") == 0 && mkdir("core", 0777) == 0);
	PROMISE("a directory stays", only_killed(ends(crash, RLIM_INFINITY), SIGSEGV) && stat("core", &info) == 0 && S_ISDIR(info.st_mode));
	close(file);
	empty_folder();
	file = open("core", O_CREAT | O_RDWR | O_CLOEXEC, 0644);
	chmod(FOLDER, 01777);
	PROMISE("another's file in a sticky directory stays", only_killed(ends(changes_user_and_shows, RLIM_INFINITY), SIGSEGV) &&
		fstat(file, &info) == 0 && info.st_size == 0 && info.st_nlink == 1);
	NEED(fchmod(file, 0666) == 0 && write(file, "others", 6) == 6);
	PROMISE("so does one that it may write", only_killed(ends(changes_user_and_shows, RLIM_INFINITY), SIGSEGV) &&
		fstat(file, &info) == 0 && info.st_size == 6 && info.st_nlink == 1);
	close(file);
}

static void notes(void)
{
	size_t size = 0;
	empty_folder();
	NEED(dumped(ends(threads_crash, RLIM_INFINITY), SIGSEGV) && load("core"));
	PROMISE("it is an ELF core file", !memcmp(core, ELFMAG, SELFMAG) && head()->e_type == ET_CORE && head()->e_machine == EM_X86_64 && program(0)->p_type == PT_NOTE);
	struct elf_prstatus *status = note(NT_PRSTATUS, 0, &size);
	NEED(status && size == sizeof *status);
	PROMISE("the thread that the signal came to is the first", status->pr_pid == told->faulting && status->pr_cursig == SIGSEGV && status->pr_ppid == getpid());
	struct user_regs_struct *registers = (void *)&status->pr_reg;
	PROMISE("its registers are those of the fault", registers->rip >= (uintptr_t)crash && registers->rip < (uintptr_t)crash + 64 && registers->cs == 0x33);
	int count = 0, leader = 0;
	for (; (status = note(NT_PRSTATUS, count, NULL)); count++)
		leader += status->pr_pid == told->pid;
	PROMISE("each thread is there", count == THREADS + 2 && leader == 1);
	PROMISE("each with its floating-point registers", note(NT_FPREGSET, count - 1, &size) && size == sizeof(struct user_fpregs_struct) && !note(NT_FPREGSET, count, NULL));
	PROMISE("and its vector registers", note(NT_X86_XSTATE, count - 1, &size) && size > 512);
	siginfo_t *info = note(NT_SIGINFO, 0, &size);
	PROMISE("the signal is described", info && size == sizeof *info && info->si_signo == SIGSEGV && info->si_code == SEGV_MAPERR && info->si_addr == (void *)8);
	struct elf_prpsinfo *process = note(NT_PRPSINFO, 0, &size);
	PROMISE("the process is", process && size == sizeof *process && process->pr_pid == told->pid && process->pr_ppid == getpid() &&
		!strcmp(process->pr_fname, "cores") && strstr(process->pr_psargs, "cores"));
	Elf64_auxv_t *auxiliary = note(NT_AUXV, 0, &size);
	int entry = 0;
	for (size_t i = 0; auxiliary && i < size / sizeof *auxiliary; i++)
		entry |= auxiliary[i].a_type == AT_ENTRY && auxiliary[i].a_un.a_val != 0;
	PROMISE("the auxiliary vector is there", entry);
	uint64_t *files = note(NT_FILE, 0, &size);
	NEED(files);
	char *name = (char *)(files + 2 + 3 * files[0]);
	PROMISE("mapped files are listed", files[0] >= 2 && files[1] == PAGE && files[2] < files[3] && strstr(name, "cores"));
	PROMISE("the program's variables can be read", at(&answer) && *(long *)at(&answer) == 42);
}

static void memory(void)
{
	struct stat info;
	empty_folder();
	NEED(dumped(ends(memory_crashes, RLIM_INFINITY), SIGSEGV) && load("core"));
	PROMISE("private memory is in it", at(told->there) && !strcmp(at(told->there), "the beginning") && !strcmp(at(told->there + 1023 * PAGE), "the end"));
	PROMISE("pages that never existed are zero, and holes", at(told->untouched) && !memcmp(at(told->untouched), (char[PAGE]){ 0 }, PAGE) &&
		stat("core", &info) == 0 && info.st_blocks * 512 < info.st_size - (2 << 20));
	PROMISE("what MADV_DONTDUMP says is left out", !at(told->left_out));
	PROMISE("MADV_DODUMP brings it back", at(told->brought_back) && !strcmp(at(told->brought_back), "known"));
	PROMISE("so is shared memory that has no name", at(told) && !strcmp(at((char *)told + PAGE / 2), "shared"));
	PROMISE("a shared file is left out", !at(told->of_file));
	PROMISE("and a private one that was never written", !at(told->of_private_file));
	extern char __executable_start;
	PROMISE("the head of an ELF file is in it", at(&__executable_start) && !memcmp(at(&__executable_start), ELFMAG, SELFMAG));
	NEED(dumped(ends(files_too, RLIM_INFINITY), SIGSEGV) && load("core"));
	PROMISE("coredump_filter takes shared files in", at(told->of_file) && !strcmp(at(told->of_file), "in a file") && !at(told->of_private_file));
	NEED(dumped(ends(private_files_too, RLIM_INFINITY), SIGSEGV) && load("core"));
	PROMISE("or private ones", !at(told->of_file) && at(told->of_private_file) && !strcmp(at(told->of_private_file), "in a file"));
	NEED(dumped(ends(nothing_of_memory, RLIM_INFINITY), SIGSEGV) && load("core"));
	PROMISE("and leaves all memory out", !at(told->there) && !at(&answer) && !at(told) && !at(&__executable_start));
	PROMISE("the areas are listed even so", head()->e_phnum > 5);
	int status = ends(memory_crashes, 3 * PAGE);
	PROMISE("a limit cuts it off", dumped(status, SIGSEGV) && stat("core", &info) == 0 && info.st_size > 0 && info.st_size <= 3 * (off_t)PAGE);
}

static int filter_is_inherited(void)
{
	HOLDS(!strcmp(reads("/proc/self/coredump_filter"), "00000033\n"));
	HOLDS(writes("/proc/self/coredump_filter", "0x1ff") == 0 && !strcmp(reads("/proc/self/coredump_filter"), "000001ff\n"));
	REFUSED(writes("/proc/self/coredump_filter", "x"), EINVAL);
	pid_t child = fork();
	if (child == 0)
		_exit(strcmp(reads("/proc/self/coredump_filter"), "000001ff\n") != 0);
	HOLDS(ends_well(child));
	child = fork();
	if (child == 0) {
		execl("/proc/self/exe", "cores", "filter", NULL);
		_exit(9);
	}
	HOLDS(ends_well(child));
	return 0;
}

static void names(void)
{
	char name[256];
	struct stat info;
	empty_folder();
	NEED(writes(PATTERN, FOLDER "/%e-%s-%u-%g-%d-%p-%i-%%-%f-%c%z%\n") == 0);
	PROMISE("core_pattern is read as it was written", !strcmp(reads(PATTERN), FOLDER "/%e-%s-%u-%g-%d-%p-%i-%%-%f-%c%z%\n"));
	NEED(dumped(ends(crash, 1 << 24), SIGSEGV));
	snprintf(name, sizeof name, FOLDER "/cores-11-0-0-1-%d-%d-%%-cores-%d", told->pid, told->pid, 1 << 24);
	PROMISE("its letters stand for what core(5) says", exists(name));
	NEED(writes(PATTERN, "sub/core.%E") == 0);
	PROMISE("a directory that is not there is none", only_killed(ends(crash, RLIM_INFINITY), SIGSEGV));
	NEED(mkdir("sub", 0755) == 0);
	PROMISE("a relative name begins at the working directory", dumped(ends(crash, RLIM_INFINITY), SIGSEGV));
	NEED(writes(PATTERN, "core") == 0 && writes(USES_PID, "1") == 0);
	NEED(dumped(ends(crash, RLIM_INFINITY), SIGSEGV));
	snprintf(name, sizeof name, "core.%d", told->pid);
	PROMISE("core_uses_pid adds the number", exists(name));
	NEED(writes(USES_PID, "0") == 0);
	empty_folder();
	NEED(writes(SUID, "2") == 0);
	PROMISE("suid_dumpable 2: a relative name is not enough", only_killed(ends(changes_user, RLIM_INFINITY), SIGSEGV) && !exists("core"));
	NEED(writes(PATTERN, FOLDER "/roots.%d") == 0 && chmod(FOLDER, 0755) == 0);
	PROMISE("an absolute one is, and the file is root's", dumped(ends(changes_user, RLIM_INFINITY), SIGSEGV) &&
		stat("roots.2", &info) == 0 && info.st_uid == 0 && (info.st_mode & 07777) == 0600);
	PROMISE("one that is there stays", only_killed(ends(changes_user, RLIM_INFINITY), SIGSEGV));
	NEED(writes(SUID, "0") == 0 && writes(PATTERN, "core\n") == 0);
	FAILS_WITH("suid_dumpable is 0, 1 or 2", writes(SUID, "3"), EINVAL);
	FAILS_WITH("PR_SET_DUMPABLE does not set 2", prctl(PR_SET_DUMPABLE, 2), EINVAL);
}

static void is_killed(void)
{
	empty_folder();
	pid_t child = fork();
	int status = 0;
	if (child == 0) {
		limit(RLIM_INFINITY);
		is_large();
	}
	struct stat info = { 0 };
	NEED(COMES_TRUE(stat("core", &info) == 0 && info.st_size > 1 << 20));
	int64_t from = now_ms();
	kill_one(child, SIGKILL);
	NEED(waitpid(child, &status, 0) == child);
	PROMISE("SIGKILL ends the writing, at once, and the process ends by it", only_killed(status, SIGKILL) && now_ms() - from < 2000);
	empty_folder();
}

int main(int count, char **arguments)
{
	if (count == 2 && !strcmp(arguments[1], "filter"))
		return strcmp(reads("/proc/self/coredump_filter"), "000001ff\n") != 0;
	told = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(told != MAP_FAILED);
	PROMISE("cores are called core at first", !strcmp(reads(PATTERN), "core\n"));
	who_leaves_one();
	what_is_in_the_way();
	notes();
	memory();
	PROMISE("coredump_filter is 33 at first, and stays over fork and execve", in_child(filter_is_inherited, 0));
	names();
	is_killed();
	NEED(chdir("/") == 0 && rmdir(FOLDER) == 0);
	return conclude();
}
