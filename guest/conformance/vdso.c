/* The vDSO: Linux' symbols, results that agree with the system calls, and operations of a
 * program on the vDSO's pages. */
#include "promise.h"
#include <elf.h>
#include <sys/auxv.h>

typedef int clock_call(clockid_t, struct timespec *);
typedef int day_call(struct timeval *, struct timezone *);
typedef time_t seconds_call(time_t *);
typedef long cpu_call(unsigned *, unsigned *, void *);

static clock_call *get_time, *get_resolution;
static day_call *get_day;
static seconds_call *get_seconds;
static cpu_call *get_cpu;

/* Returns the image's symbol of this name and version. It is searched as a C library does: by
 * the dynamic segment. */
static void *symbol(const char *base, const char *name, const char *version)
{
	const Elf64_Ehdr *header = (const void *)base;
	const Elf64_Phdr *segments = (const void *)(base + header->e_phoff);
	const Elf64_Dyn *dynamic = NULL;
	const char *bias = NULL;
	for (int i = 0; i < header->e_phnum; i++) {
		if (segments[i].p_type == PT_LOAD && !bias)
			bias = base + segments[i].p_offset - segments[i].p_vaddr;
		if (segments[i].p_type == PT_DYNAMIC)
			dynamic = (const void *)(base + segments[i].p_offset);
	}
	const char *names = NULL;
	const Elf64_Sym *symbols = NULL;
	const Elf64_Word *hash = NULL;
	const Elf64_Half *versions = NULL;
	const Elf64_Verdef *defined = NULL;
	for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
		const void *at = bias + dynamic->d_un.d_ptr;
		switch (dynamic->d_tag) {
		case DT_STRTAB: names = at; break;
		case DT_SYMTAB: symbols = at; break;
		case DT_HASH: hash = at; break;
		case DT_VERSYM: versions = at; break;
		case DT_VERDEF: defined = at; break;
		}
	}
	if (!names || !symbols || !hash || !versions || !defined)
		return NULL;
	for (Elf64_Word i = 0; i < hash[1]; i++) {
		if (symbols[i].st_shndx == SHN_UNDEF || strcmp(names + symbols[i].st_name, name))
			continue;
		const Elf64_Verdef *def = defined;
		while ((versions[i] & 0x7fff) != def->vd_ndx && def->vd_next)
			def = (const void *)((const char *)def + def->vd_next);
		const Elf64_Verdaux *aux = (const void *)((const char *)def + def->vd_aux);
		if (!strcmp(names + aux->vda_name, version))
			return (void *)(bias + symbols[i].st_value);
	}
	return NULL;
}

/* Finds the addresses and access rights of the area of this name. */
static int area(const char *name, uintptr_t *start, uintptr_t *end, char rights[5])
{
	char line[512];
	int found = 0;
	FILE *maps = fopen("/proc/self/maps", "re");
	NEED(maps);
	while (!found && fgets(line, sizeof line, maps))
		found = strstr(line, name) && sscanf(line, "%lx-%lx %4s", start, end, rights) == 3;
	fclose(maps);
	return found;
}

static int64_t all(struct timespec t)
{
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void symbols(void)
{
	char *image = (char *)getauxval(AT_SYSINFO_EHDR);
	uintptr_t start = 0, end = 0, time_start = 0, time_end = 0;
	char rights[5] = "", time_rights[5] = "";
	PROMISE("AT_SYSINFO_EHDR leads to an ELF image", image && !memcmp(image, ELFMAG, SELFMAG));
	NEED(image);
	PROMISE("it begins the area [vdso], which is read and executed",
		area("[vdso]", &start, &end, rights) && start == (uintptr_t)image && !strcmp(rights, "r-xp"));
	PROMISE("[vvar] lies before it and is read only",
		area("[vvar]", &time_start, &time_end, time_rights) && time_start < start && time_end <= start && !strcmp(time_rights, "r--p"));
	static const char *names[] = { "clock_gettime", "gettimeofday", "time", "getcpu", "clock_getres" };
	int same = 0, versions = 0;
	for (int i = 0; i < 5; i++) {
		char name[32];
		snprintf(name, sizeof name, "__vdso_%s", names[i]);
		void *function = symbol(image, name, "LINUX_2.6");
		same += function && function == symbol(image, names[i], "LINUX_2.6");
		versions += !symbol(image, name, "LINUX_2.7");
	}
	PROMISE("each function has both of its names, of version LINUX_2.6", same == 5);
	PROMISE("and of no other", versions == 5);
	get_time = (clock_call *)symbol(image, "__vdso_clock_gettime", "LINUX_2.6");
	get_day = (day_call *)symbol(image, "__vdso_gettimeofday", "LINUX_2.6");
	get_seconds = (seconds_call *)symbol(image, "__vdso_time", "LINUX_2.6");
	get_cpu = (cpu_call *)symbol(image, "__vdso_getcpu", "LINUX_2.6");
	get_resolution = (clock_call *)symbol(image, "__vdso_clock_getres", "LINUX_2.6");
	NEED(get_time && get_day && get_seconds && get_cpu && get_resolution);
}

/* Whether the vDSO's reading lies between two of the system call, and a system call's between
 * two of the vDSO. */
static int agrees(clockid_t clock)
{
	struct timespec a, b, c;
	for (int i = 0; i < 2000; i++) {
		if (syscall(SYS_clock_gettime, clock, &a) || get_time(clock, &b) || syscall(SYS_clock_gettime, clock, &c))
			return 0;
		/* On Linux the results may differ by a nanosecond: the coarse clocks, and the
		 * others by rounding in the system call. */
		if (all(b) < all(a) - 1 || all(b) > all(c) + 1 || b.tv_nsec < 0 || b.tv_nsec > 999999999)
			return 0;
	}
	return 1;
}

static void clocks(void)
{
	static const struct { clockid_t clock; const char *name; } clocks[] = {
		{ CLOCK_REALTIME, "CLOCK_REALTIME" }, { CLOCK_MONOTONIC, "CLOCK_MONOTONIC" },
		{ CLOCK_PROCESS_CPUTIME_ID, "CLOCK_PROCESS_CPUTIME_ID" }, { CLOCK_THREAD_CPUTIME_ID, "CLOCK_THREAD_CPUTIME_ID" },
		{ CLOCK_MONOTONIC_RAW, "CLOCK_MONOTONIC_RAW" }, { CLOCK_REALTIME_COARSE, "CLOCK_REALTIME_COARSE" },
		{ CLOCK_MONOTONIC_COARSE, "CLOCK_MONOTONIC_COARSE" }, { CLOCK_BOOTTIME, "CLOCK_BOOTTIME" }, { CLOCK_TAI, "CLOCK_TAI" },
	};
	for (size_t i = 0; i < sizeof clocks / sizeof *clocks; i++) {
		char text[96];
		struct timespec ours = { -1, -1 }, calls = { -2, -2 };
		snprintf(text, sizeof text, "%s is what the system call says", clocks[i].name);
		PROMISE(text, agrees(clocks[i].clock));
		snprintf(text, sizeof text, "and so is its resolution (%s)", clocks[i].name);
		PROMISE(text, get_resolution(clocks[i].clock, &ours) == 0 && syscall(SYS_clock_getres, clocks[i].clock, &calls) == 0 && all(ours) == all(calls));
	}
	static const clockid_t bad[] = { -1, 3, 10, 12, 31, 32, 33, 64, 77, 1 << 16, INT32_MAX, INT32_MIN };
	int refused = 0, same = 0;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct timespec t;
		long call = syscall(SYS_clock_gettime, bad[i], &t) ? -errno : 0;
		refused += get_time(bad[i], &t) == call;
		call = syscall(SYS_clock_getres, bad[i], &t) ? -errno : 0;
		same += get_resolution(bad[i], &t) == call;
	}
	PROMISE("clocks that are not are refused as by the system call", refused == sizeof bad / sizeof *bad);
	PROMISE("and so are their resolutions", same == sizeof bad / sizeof *bad);
	PROMISE("a resolution may be asked for nothing", get_resolution(CLOCK_MONOTONIC, NULL) == 0 && get_resolution(CLOCK_REALTIME_COARSE, NULL) == 0);
	PROMISE("also of a clock that is not: EINVAL", get_resolution(77, NULL) == -EINVAL);
}

static void days(void)
{
	struct timeval day, a, b;
	struct timezone zone = { 77, 77 }, calls = { 78, 78 };
	int between = 1, in_second = 1;
	for (int i = 0; i < 2000; i++) {
		struct timespec before, after;
		between &= !syscall(SYS_gettimeofday, &a, NULL) && !get_day(&day, NULL) && !syscall(SYS_gettimeofday, &b, NULL);
		between &= !timercmp(&day, &a, <) && !timercmp(&day, &b, >);
		/* time() may lag by a tick on Linux. */
		get_time(CLOCK_REALTIME, &before);
		time_t now = get_seconds(NULL);
		get_time(CLOCK_REALTIME, &after);
		in_second &= now >= (all(before) - 20000000) / 1000000000 && now <= after.tv_sec;
	}
	PROMISE("gettimeofday is what the system call says", between);
	PROMISE("time is the second that CLOCK_REALTIME is in", in_second);
	PROMISE("gettimeofday tells the zone of the system call", get_day(&day, &zone) == 0 && syscall(SYS_gettimeofday, NULL, &calls) == 0 && !memcmp(&zone, &calls, sizeof zone));
	PROMISE("gettimeofday may be asked for nothing, or the zone alone", get_day(NULL, NULL) == 0 && get_day(NULL, &zone) == 0);
	time_t stored = -1, told = get_seconds(&stored);
	PROMISE("time stores what it tells", told == stored && told > 1577836800);
}

static void cpus(void)
{
	cpu_set_t had, one;
	NEED(sched_getaffinity(0, sizeof had, &had) == 0);
	int right = 1, seen = 0;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &had))
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		NEED(sched_setaffinity(0, sizeof one, &one) == 0);
		unsigned at = 999, node = 999, call = 998, call_node = 998;
		right &= get_cpu(&at, &node, NULL) == 0 && syscall(SYS_getcpu, &call, &call_node, NULL) == 0;
		right &= at == (unsigned)cpu && at == call && node == call_node;
		seen++;
	}
	NEED(sched_setaffinity(0, sizeof had, &had) == 0);
	PROMISE("getcpu tells CPU and node on every CPU", right && seen > 0);
	PROMISE("getcpu may be asked for nothing", get_cpu(NULL, NULL, NULL) == 0);
}

/* Threads on all CPUs pass the largest reading on: no thread may read less than another read
 * before. */
static volatile int64_t largest;
static volatile int stop;
static int backwards;

static void *follow(void *unused)
{
	struct timespec t;
	while (!stop) {
		int64_t seen = __atomic_load_n(&largest, __ATOMIC_ACQUIRE);
		get_time(CLOCK_MONOTONIC, &t);
		if (all(t) < seen)
			__atomic_fetch_add(&backwards, 1, __ATOMIC_RELAXED);
		while (all(t) > seen && !__atomic_compare_exchange_n(&largest, &seen, all(t), 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
			;
	}
	return unused;
}

/* Readers of a wall clock that is set between two years see one or the other, never parts of
 * both. time(2) does not check the sequence count. So a reading taken just before a setting and
 * converted after it may be one second lower. */
static int64_t low, high;
static int torn;

static void *watch(void *unused)
{
	while (!stop) {
		struct timespec t;
		struct timeval day;
		get_time(CLOCK_REALTIME, &t);
		get_day(&day, NULL);
		int64_t readings[] = { t.tv_sec, day.tv_sec, get_seconds(NULL) };
		for (int i = 0; i < 3; i++)
			if ((readings[i] < low - (i == 2) || readings[i] > low + 600) && (readings[i] < high - (i == 2) || readings[i] > high + 600))
				__atomic_fetch_add(&torn, 1, __ATOMIC_RELAXED);
	}
	return unused;
}

static void threads(void)
{
	pthread_t others[3];
	for (int i = 0; i < 3; i++)
		NEED(pthread_create(&others[i], NULL, follow, NULL) == 0);
	sleep_ms(200);
	stop = 1;
	for (int i = 0; i < 3; i++)
		pthread_join(others[i], NULL);
	PROMISE("the clock of one CPU never shows less than another's did", backwards == 0 && largest > 0);
	/* Process 1 started this program only in a guest: no other program uses its clock. */
	struct timespec set;
	if (getppid() != 1)
		return;
	NEED(clock_gettime(CLOCK_REALTIME, &set) == 0);
	int64_t lead = all(set);
	NEED(clock_gettime(CLOCK_MONOTONIC, &set) == 0);
	lead -= all(set);
	/* Readings that differ in most of their bits. */
	low = 0x3fffffff;
	high = 0x80000000;
	stop = 0;
	NEED(clock_settime(CLOCK_REALTIME, &(struct timespec){ low, 0 }) == 0);
	for (int i = 0; i < 2; i++)
		NEED(pthread_create(&others[i], NULL, watch, NULL) == 0);
	int followed = 1;
	for (int i = 0; i < 4000; i++) {
		int64_t want = i % 2 ? low : high;
		NEED(clock_settime(CLOCK_REALTIME, &(struct timespec){ want, 0 }) == 0);
		get_time(CLOCK_REALTIME, &set);
		time_t seconds = get_seconds(NULL);
		followed &= set.tv_sec >= want && set.tv_sec <= want + 600 && seconds >= want - 1 && seconds <= want + 600;
	}
	stop = 1;
	for (int i = 0; i < 2; i++)
		pthread_join(others[i], NULL);
	NEED(clock_gettime(CLOCK_MONOTONIC, &set) == 0);
	set = (struct timespec){ (lead + all(set)) / 1000000000, (lead + all(set)) % 1000000000 };
	NEED(clock_settime(CLOCK_REALTIME, &set) == 0);
	PROMISE("setting the wall clock is seen at once", followed);
	PROMISE("no reading is of two settings", torn == 0);
	FAILS_WITH("a wall clock that would soon end is not set", clock_settime(CLOCK_REALTIME, &(struct timespec){ 9223372036, 0 }), EINVAL);
}

static void pages(void)
{
	char *image = (char *)getauxval(AT_SYSINFO_EHDR), *moved;
	uintptr_t start = 0, end = 0, from = 0, to = 0;
	char rights[5], bytes[64] = "";
	NEED(area("[vvar]", &start, &end, rights) && area("[vdso]", &from, &to, rights));
	int memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	PROMISE("/proc/self/mem shows the image", pread(memory, bytes, sizeof bytes, from) == sizeof bytes && !memcmp(bytes, image, sizeof bytes));
	FAILS_WITH("but not the page of time", pread(memory, bytes, sizeof bytes, start), EIO);
	FAILS_WITH("mprotect does not make the page of time writable", mprotect((void *)start, 4096, PROT_READ | PROT_WRITE), EACCES);
	struct iovec here = { bytes, sizeof bytes }, there = { (void *)start, sizeof bytes };
	FAILS_WITH("process_vm_readv does not reach it", process_vm_readv(getpid(), &here, 1, &there, 1, 0), EFAULT);
	int status;
	IN_CHILD(status, { *(volatile char *)start = 1; });
	PROMISE("a store to it ends with SIGSEGV", WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	IN_CHILD(status, {
		struct timespec t;
		_exit(get_time(CLOCK_MONOTONIC, &t) || t.tv_nsec < 0);
	});
	PROMISE("a child reads the clock", WIFEXITED(status) && WEXITSTATUS(status) == 0);
	/* A debugger's breakpoint, or a program's stores to its copy of the image, do not change
	 * other programs' images. */
	IN_CHILD(status, {
		NEED(mprotect(image, to - from, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
		image[EI_PAD] = 7;
		struct timespec t;
		_exit(image[EI_PAD] != 7 || get_time(CLOCK_MONOTONIC, &t));
	});
	PROMISE("a program may write its image", WIFEXITED(status) && WEXITSTATUS(status) == 0);
	PROMISE("and others do not see it", image[EI_PAD] == 0);
	PROMISE("a debugger may write it, too", (bytes[0] = 9, pwrite(memory, bytes, 1, from + EI_PAD)) == 1 && image[EI_PAD] == 9);
	IN_CHILD(status, { _exit(image[EI_PAD] != 9); });
	PROMISE("and a child has what was written", WIFEXITED(status) && WEXITSTATUS(status) == 0);
	close(memory);
	IN_CHILD(status, {
		/* Both parts move together, as CRIU moves them. */
		size_t all_of_it = to - start;
		char *room = mmap(NULL, all_of_it, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		NEED(room != MAP_FAILED);
		NEED(mremap((void *)start, end - start, end - start, MREMAP_MAYMOVE | MREMAP_FIXED, room) == room);
		moved = room + (from - start);
		NEED(mremap((void *)from, to - from, to - from, MREMAP_MAYMOVE | MREMAP_FIXED, moved) == moved);
		clock_call *there = (clock_call *)(moved + ((char *)get_time - image));
		struct timespec t;
		struct timespec call;
		NEED(there(CLOCK_MONOTONIC, &t) == 0 && syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &call) == 0);
		_exit(!(all(t) > 0 && all(t) <= all(call) + 1));
	});
	PROMISE("the parts can be moved, and still tell the time", WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static volatile sig_atomic_t came;

static void note(int signal)
{
	came = signal;
}

static void signals(void)
{
	int status;
	uintptr_t start = 0, end = 0, from = 0, to = 0;
	char rights[5];
	NEED(area("[vvar]", &start, &end, rights) && area("[vdso]", &from, &to, rights));
	IN_CHILD(status, {
		NEED(munmap((void *)start, to - start) == 0);
		NEED(signal(SIGUSR1, note) != SIG_ERR);
		raise(SIGUSR1);
		_exit(came != SIGUSR1);
	});
	PROMISE("a handler returns without the image", WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Prints the address of this program's image; a test of randomness uses it. */
static void places(void)
{
	uintptr_t seen[8];
	int different = 0;
	for (int i = 0; i < 8; i++) {
		int ends[2];
		NEED(pipe(ends) == 0);
		pid_t child = fork();
		NEED(child >= 0);
		if (child == 0) {
			dup2(ends[1], 1);
			execl("/proc/self/exe", "vdso", "place", (char *)NULL);
			_exit(127);
		}
		close(ends[1]);
		NEED(read(ends[0], &seen[i], sizeof seen[i]) == sizeof seen[i]);
		close(ends[0]);
		NEED(waitpid(child, NULL, 0) == child);
		for (int j = 0; j < i; j++)
			different += seen[i] != seen[j];
	}
	PROMISE("each program has its image elsewhere", different >= 27);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "place")) {
		uintptr_t at = getauxval(AT_SYSINFO_EHDR);
		return write(1, &at, sizeof at) != sizeof at;
	}
	symbols();
	clocks();
	days();
	cpus();
	threads();
	pages();
	signals();
	places();
	return conclude();
}
