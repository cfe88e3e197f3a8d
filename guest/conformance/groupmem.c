/* Control groups, version 2: the charges of the controller memory, the groups that keep them, and
 * the effects of limits. */
#include "groups.h"

#include <poll.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/swap.h>
#include <sys/uio.h>

#define MIB (1L << 20)

/* A child in a group, with a pipe that tells it to go on and one on which it reports. */
struct member {
	pid_t pid;
	int go, done;
};

static char *touched(long bytes)
{
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(memory != MAP_FAILED);
	madvise(memory, bytes, MADV_NOHUGEPAGE);
	for (long at = 0; at < bytes; at += 4096)
		memory[at] = 1;
	return memory;
}

/* A file of a group. */
static const char *in(const char *group, const char *file)
{
	char path[128];
	snprintf(path, sizeof path, "%s/%s", group, file);
	return at(path);
}

static void say(int pipe)
{
	NEED(write(pipe, "x", 1) == 1);
}

/* Waits for a byte; returns 0 if the other end is closed. */
static int hears(int pipe)
{
	char byte;
	return read(pipe, &byte, 1) == 1;
}

/* Makes a child in `group` that calls `first`, reports, and calls `then` on each request. */
static struct member member(const char *group, void (*first)(void), void (*then)(void))
{
	int go[2], done[2];
	NEED(pipe(go) == 0 && pipe(done) == 0);
	fflush(stdout);
	struct member new = { fork(), go[1], done[0] };
	NEED(new.pid >= 0);
	if (new.pid == 0) {
		close(go[1]);
		close(done[0]);
		NEED(writes(in(group, "cgroup.procs"), "0") == 0);
		first();
		say(done[1]);
		while (hears(go[0])) {
			if (then)
				then();
			say(done[1]);
		}
		_exit(0);
	}
	close(go[0]);
	close(done[1]);
	return new;
}

static void leave(struct member *one)
{
	end(one->pid);
	close(one->go);
	close(one->done);
}

/* A number in a file of a group, in bytes. */
static long bytes(const char *group, const char *file)
{
	return atol(reads(in(group, file)));
}

static long counts(const char *group, const char *file, const char *name)
{
	return value(in(group, file), name);
}

static int sets(const char *group, const char *file, const char *text)
{
	return writes(in(group, file), text);
}

static int fails(const char *group, const char *file, const char *text)
{
	return refuses(in(group, file), text);
}

static int is(const char *group, const char *file, const char *text)
{
	return says(in(group, file), text);
}

static void nothing(void)
{
}

static void touch_4(void)
{
	touched(4 * MIB);
}

static void touch_8(void)
{
	touched(8 * MIB);
}

static void settings(void)
{
	make("a");
	PROMISE("a new group has no memory and no limits",
		bytes("a", "memory.current") == 0 && is("a", "memory.max", "max\n") && is("a", "memory.high", "max\n") &&
			is("a", "memory.oom.group", "0\n"));
	PROMISE("no event has happened", counts("a", "memory.events", "high") == 0 && counts("a", "memory.events", "max") == 0 &&
						 counts("a", "memory.events", "oom") == 0 && counts("a", "memory.events", "oom_kill") == 0);
	PROMISE("a limit is in bytes, cut to whole pages", sets("a", "memory.max", "10000\n") == 0 && is("a", "memory.max", "8192\n"));
	PROMISE("and has a suffix", sets("a", "memory.max", "20M") == 0 && is("a", "memory.max", "20971520\n") &&
					    sets("a", "memory.high", "1g") == 0 && is("a", "memory.high", "1073741824\n"));
	PROMISE("or is none", sets("a", "memory.max", "max") == 0 && is("a", "memory.max", "max\n"));
	PROMISE("rubbish is refused", fails("a", "memory.max", "12x") == EINVAL && fails("a", "memory.high", "much") == EINVAL &&
					      fails("a", "memory.oom.group", "2") == EINVAL && is("a", "memory.max", "max\n"));
	PROMISE("what is counted is not set", fails("a", "memory.current", "0") == EINVAL || errno == EACCES);
	drop("a");
}

static void counting(void)
{
	make("a");
	make("b");
	struct member one = member("a", touch_4, touch_4);
	NEED(hears(one.done));
	PROMISE("what a member touches is its group's", bytes("a", "memory.current") >= 4 * MIB);
	PROMISE("and no other's", bytes("b", "memory.current") == 0);
	PROMISE("as anonymous memory", counts("a", "memory.stat", "anon") >= 4 * MIB);
	PROMISE("and counts above", bytes(".", "memory.current") >= 4 * MIB);
	NEED(put(at("b/cgroup.procs"), one.pid) == 0);
	PROMISE("who moves leaves it behind", bytes("a", "memory.current") >= 4 * MIB && bytes("b", "memory.current") < 2 * MIB);
	say(one.go);
	NEED(hears(one.done));
	PROMISE("and pays elsewhere from then on", bytes("b", "memory.current") >= 4 * MIB && bytes("a", "memory.current") < 6 * MIB);
	leave(&one);
	PROMISE("who ends gives all back", COMES_TRUE(bytes("a", "memory.current") < MIB && bytes("b", "memory.current") < MIB));
	PROMISE("the most that there was is known", bytes("a", "memory.peak") >= 4 * MIB && bytes("b", "memory.peak") >= 4 * MIB);
	drop("a");
	drop("b");
}

static char *shared_8;

static void map_8(void)
{
	sigset_t set;
	int got;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	shared_8 = touched(8 * MIB);
	if (fork() == 0) {
		/* The child stores when it gets a signal: see `store_in_child`. */
		sigwait(&set, &got);
		for (long at = 0; at < 8 * MIB; at += 4096)
			shared_8[at] = 2;
		for (;;)
			pause();
	}
}

static void store_in_child(void)
{
	/* All members of the group except this process. */
	for (const char *line = reads(at("a/cgroup.procs")); line && *line; line = strchr(line, '\n') + 1)
		if (atol(line) != getpid())
			kill(atol(line), SIGUSR1);
}

static void sharing(void)
{
	make("a");
	struct member one = member("a", map_8, store_in_child);
	NEED(hears(one.done));
	PROMISE("what a child shares is paid for once", bytes("a", "memory.current") >= 8 * MIB && bytes("a", "memory.current") < 12 * MIB);
	say(one.go);
	PROMISE("and its copies are paid for, too", hears(one.done) && COMES_TRUE(bytes("a", "memory.current") >= 16 * MIB));
	NEED(writes(at("a/cgroup.kill"), "1") == 0);
	PROMISE("all of it comes back", killed(one.pid) && COMES_TRUE(bytes("a", "memory.current") < MIB));
	close(one.go);
	close(one.done);
	drop("a");
}

static void write_file(void)
{
	static char page[1 << 16];
	int file = open("/tmp/group/file", O_RDWR | O_CREAT | O_TRUNC, 0600);
	NEED(file >= 0);
	for (int n = 0; n < 64; n++)
		NEED(write(file, page, sizeof page) == sizeof page);
	close(file);
}

static void fill_pipe(void)
{
	static char page[1 << 16];
	int pipe[2];
	NEED(pipe2(pipe, O_NONBLOCK) == 0 && fcntl(pipe[1], F_SETPIPE_SZ, 1 << 20) == 1 << 20);
	while (write(pipe[1], page, sizeof page) > 0)
		;
}

static void spread(void)
{
	char *memory = mmap(NULL, 1L << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	NEED(memory != MAP_FAILED);
	madvise(memory, 1L << 30, MADV_NOHUGEPAGE);
	for (long at = 0; at < 1L << 30; at += 2 * MIB)
		memory[at] = 1;
}

static void kinds(void)
{
	NEED(mkdir("/tmp/group", 0700) == 0 && mount("none", "/tmp/group", "tmpfs", 0, NULL) == 0);
	make("a");
	struct member one = member("a", write_file, NULL);
	NEED(hears(one.done));
	PROMISE("a file in memory is paid by who wrote it", counts("a", "memory.stat", "file") >= 4 * MIB);
	leave(&one);
	PROMISE("also when that one is gone", bytes("a", "memory.current") >= 4 * MIB);
	drop("a");
	PROMISE("and when its group is: it counts above", bytes(".", "memory.current") >= 4 * MIB);
	NEED(unlink("/tmp/group/file") == 0);
	PROMISE("until the file is", COMES_TRUE(bytes(".", "memory.current") < 3 * MIB));
	make("a");
	one = member("a", fill_pipe, NULL);
	NEED(hears(one.done));
	PROMISE("what waits in a pipe is paid for", bytes("a", "memory.current") >= 900 << 10);
	leave(&one);
	one = member("a", spread, NULL);
	NEED(hears(one.done));
	PROMISE("and page tables are", counts("a", "memory.stat", "pagetables") >= 2 * MIB && counts("a", "memory.stat", "anon") >= 2 * MIB);
	leave(&one);
	PROMISE("nothing stays", COMES_TRUE(bytes("a", "memory.current") < MIB));
	drop("a");
	NEED(umount("/tmp/group") == 0 && rmdir("/tmp/group") == 0);
}

static void touch_64(void)
{
	touched(64 * MIB);
}

static void limits(void)
{
	make("a");
	NEED(sets("a", "memory.max", "16M") == 0);
	sets("a", "memory.swap.max", "0");
	int watch = open(at("a/memory.events"), O_RDONLY);
	struct pollfd poll_events = { watch, POLLPRI, 0 };
	int notify = inotify_init1(IN_NONBLOCK);
	NEED(watch >= 0 && hears(watch) && inotify_add_watch(notify, at("a/memory.events"), IN_MODIFY) >= 0);
	make("beside");
	pid_t beside = sleeper("beside");
	struct member one = member("a", touch_64, NULL);
	PROMISE("who wants more than there may be is killed", !hears(one.done) && killed(one.pid));
	close(one.go);
	close(one.done);
	PROMISE("and nobody outside of the group", kill(beside, 0) == 0 && waitpid(beside, NULL, WNOHANG) == 0);
	/* Memory that the kernel needs to finish a call cannot be refused, so the limit may be
	 * exceeded a little. */
	PROMISE("there was hardly ever more", bytes("a", "memory.peak") <= 16 * MIB + MIB / 8 && bytes("a", "memory.peak") >= 12 * MIB);
	PROMISE("the limit was met, and one killed", counts("a", "memory.events", "max") > 0 && counts("a", "memory.events", "oom") >= 1 &&
							     counts("a", "memory.events", "oom_kill") == 1);
	PROMISE("poll tells of it", poll(&poll_events, 1, 10000) == 1 && poll_events.revents & POLLPRI);
	char note[256];
	PROMISE("inotify does", COMES_TRUE(read(notify, note, sizeof note) > 0));
	close(watch);
	close(notify);
	one = member("a", touch_8, NULL);
	PROMISE("who wants less is not", hears(one.done));
	PROMISE("a limit that is set below what there is has a member killed", sets("a", "memory.max", "4M") == 0 && killed(one.pid));
	close(one.go);
	close(one.done);
	PROMISE("then there is as much as there may be", COMES_TRUE(bytes("a", "memory.current") <= 4 * MIB));
	end(beside);
	drop("beside");
	drop("a");
}

static void levels(void)
{
	make("a");
	NEED(sets("a", "cgroup.subtree_control", "+memory") == 0 && sets("a", "memory.max", "16M") == 0);
	sets("a", "memory.swap.max", "0");
	make("a/b");
	make("a/c");
	struct member neighbour = member("a/c", touch_4, NULL);
	NEED(hears(neighbour.done));
	struct member one = member("a/b", touch_64, NULL);
	PROMISE("a limit holds for all below", !hears(one.done) && killed(one.pid));
	close(one.go);
	close(one.done);
	PROMISE("the one with most is killed", waitpid(neighbour.pid, NULL, WNOHANG) == 0);
	PROMISE("the limit is the upper group's", counts("a", "memory.events.local", "oom") >= 1 && counts("a/b", "memory.events.local", "oom") == 0);
	PROMISE("the victim the lower one's", counts("a/b", "memory.events.local", "oom_kill") == 1 &&
						      counts("a", "memory.events", "oom_kill") == 1 && counts("a/c", "memory.events", "oom_kill") == 0);
	PROMISE("what is below counts above", bytes("a", "memory.current") >= 4 * MIB && bytes("a/c", "memory.current") >= 4 * MIB);
	NEED(sets("a", "memory.oom.group", "1") == 0);
	one = member("a/b", touch_64, NULL);
	PROMISE("all of a group go together if it says so", killed(one.pid) && killed(neighbour.pid));
	PROMISE("and it is told", counts("a", "memory.events", "oom_group_kill") == 1);
	close(one.go), close(one.done), close(neighbour.go), close(neighbour.done);
	drop("a/b");
	drop("a/c");
	drop("a");
}

static void soft(void)
{
	make("a");
	NEED(sets("a", "memory.high", "8M") == 0);
	sets("a", "memory.swap.max", "0");
	struct member one = member("a", touch_8, NULL);
	PROMISE("a soft limit kills nobody", hears(one.done) && bytes("a", "memory.current") > 8 * MIB);
	PROMISE("and counts", counts("a", "memory.events", "high") > 0 && counts("a", "memory.events", "oom") == 0);
	PROMISE("what cannot be had is not reclaimed", fails("a", "memory.reclaim", "4M") == EAGAIN);
	leave(&one);
	drop("a");
}

static void turning(void)
{
	make("a");
	struct member one = member("a", touch_4, touch_4);
	NEED(hears(one.done) && writes(at("cgroup.subtree_control"), "-memory") == 0);
	PROMISE("without the controller its files are gone", access(at("a/memory.current"), F_OK) == -1 && errno == ENOENT);
	say(one.go);
	PROMISE("and members go on", hears(one.done));
	NEED(writes(at("cgroup.subtree_control"), "+memory") == 0);
	say(one.go);
	PROMISE("what is touched later counts again", hears(one.done) && bytes("a", "memory.current") >= 4 * MIB && is("a", "memory.max", "max\n"));
	leave(&one);
	drop("a");
	/* More groups than the kernel has accounts, one after the other; each is charged. */
	for (int n = 0; n < 300; n++) {
		make("a");
		one = member("a", nothing, NULL);
		NEED(hears(one.done));
		leave(&one);
		drop("a");
	}
	PROMISE("300 groups leave nothing", COMES_TRUE(bytes(".", "memory.current") < 2 * MIB));
}

/* Memory at an address that all processes know. */
static char known[4 * MIB] __attribute__((aligned(4096)));

static void touch_known(void)
{
	madvise(known, sizeof known, MADV_NOHUGEPAGE);
	memset(known, 1, 2 * MIB);
}

/* A process of no group swaps pages of a member in, and makes new pages. */
static void others_pages(void)
{
	static char bytes_here[2 * MIB];
	struct iovec here = { bytes_here, sizeof bytes_here }, there = { known, sizeof bytes_here };
	memset(bytes_here, 2, sizeof bytes_here);
	struct member one = member("a", touch_known, NULL);
	NEED(hears(one.done));
	sets("a", "memory.reclaim", "2M");
	long away = bytes("a", "memory.swap.current"), before = bytes("a", "memory.current");
	PROMISE("a page that another group's process brings back is its own group's",
		away >= MIB && process_vm_readv(one.pid, &here, 1, &there, 1, 0) == 2 * MIB && bytes_here[0] == 1
			&& bytes("a", "memory.current") >= before + away / 2);
	there.iov_base = known + 2 * MIB;
	before = bytes("a", "memory.current");
	PROMISE("and so is one that it makes",
		process_vm_writev(one.pid, &here, 1, &there, 1, 0) == 2 * MIB && bytes("a", "memory.current") >= before + MIB);
	leave(&one);
}

static void swapping(void)
{
	make("a");
	NEED(sets("a", "memory.max", "16M") == 0);
	struct member one = member("a", touch_8, touch_8);
	NEED(hears(one.done));
	say(one.go);
	NEED(hears(one.done));
	say(one.go);
	PROMISE("where there is swap, pages go there", hears(one.done) && bytes("a", "memory.swap.current") >= 4 * MIB);
	PROMISE("and not more memory is used", bytes("a", "memory.peak") <= 16 * MIB && counts("a", "memory.events", "oom_kill") == 0);
	leave(&one);
	PROMISE("swap is given back", COMES_TRUE(bytes("a", "memory.swap.current") < MIB));
	if (access(at("a/memory.swap.peak"), F_OK) == 0)
		PROMISE("the most that there was is known, too", bytes("a", "memory.swap.peak") >= 4 * MIB);
	others_pages();
	NEED(sets("a", "memory.swap.max", "0") == 0);
	one = member("a", touch_64, NULL);
	PROMISE("who may have none is killed", !hears(one.done) && killed(one.pid) && bytes("a", "memory.swap.current") < MIB);
	close(one.go);
	close(one.done);
	/* The swapped memory exceeds the group's limit, so not all of it can be swapped in
	 * within the limit. */
	NEED(sets("a", "memory.swap.max", "max") == 0);
	one = member("a", touch_8, touch_8);
	for (int i = 0; i < 2; i++) {
		NEED(hears(one.done));
		say(one.go);
	}
	NEED(hears(one.done) && bytes("a", "memory.swap.current") >= 4 * MIB);
	char area[128];
	FILE *swaps = fopen("/proc/swaps", "re");
	NEED(swaps && fscanf(swaps, "%*[^\n] %127s", area) == 1);
	fclose(swaps);
	int off = swapoff(area);
	PROMISE("swapoff brings a group's pages back though it is at its limit", off == 0 && bytes("a", "memory.swap.current") == 0);
	leave(&one);
	drop("a");
}

int main(void)
{
	if (!begin_with_controller("memory"))
		return conclude();
	settings();
	counting();
	sharing();
	kinds();
	limits();
	levels();
	soft();
	turning();
	if (strchr(reads("/proc/swaps"), '/'))
		swapping();
	PROMISE("all is gone in the end", end_groups());
	return conclude();
}
