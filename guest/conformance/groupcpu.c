/* Control groups, version 2: the controller cpu's quota (cpu.max). Limits for times are loose,
 * and one of several tries has to meet them: a host may stop the machine at any moment. */
#include "groups.h"
#include "ring.h"

#include <sys/resource.h>

#define MS 1000L

/* CPU time of a group in microseconds. */
static long used(const char *group, const char *line)
{
	char path[128];
	snprintf(path, sizeof path, "%s/cpu.stat", group);
	return value(at(path), line);
}

/* A process that computes without end, in a group. */
static pid_t computes(const char *group)
{
	char path[128];
	snprintf(path, sizeof path, "%s/cgroup.procs", group);
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		NEED(writes(at(path), "0") == 0);
		for (volatile long n = 0;; n++)
			;
	}
	return child;
}

/* The share of a CPU that `group` uses within some time, in thousandths. */
static long share(const char *group, int ms)
{
	int64_t begin = now_ms();
	long before = used(group, "usage_usec");
	sleep_ms(ms);
	long used_ms = (used(group, "usage_usec") - before) / 1000;
	int64_t passed = now_ms() - begin;
	return used_ms * 1000 / (passed ? passed : 1);
}

static void settings(void)
{
	make("a");
	PROMISE("a new group has no quota", says(at("a/cpu.max"), "max 100000\n"));
	PROMISE("a quota is for a period", writes(at("a/cpu.max"), "20000 50000\n") == 0 && says(at("a/cpu.max"), "20000 50000\n"));
	PROMISE("the period stays", writes(at("a/cpu.max"), "30000") == 0 && says(at("a/cpu.max"), "30000 50000\n"));
	PROMISE("also without a quota", writes(at("a/cpu.max"), "max") == 0 && says(at("a/cpu.max"), "max 50000\n"));
	PROMISE("rubbish is refused", refuses(at("a/cpu.max"), "x") == EINVAL && refuses(at("a/cpu.max"), "-1 100000") == EINVAL &&
					  refuses(at("a/cpu.max"), "") != EPERM);
	PROMISE("less than a millisecond is none", refuses(at("a/cpu.max"), "999 100000") == EINVAL);
	PROMISE("a period is from 1 ms to 1 s", refuses(at("a/cpu.max"), "5000 999") == EINVAL && refuses(at("a/cpu.max"), "5000 1000001") == EINVAL &&
						    writes(at("a/cpu.max"), "max 1000000") == 0 && writes(at("a/cpu.max"), "max 1000") == 0);
	PROMISE("nothing was throttled", used("a", "nr_throttled") == 0 && used("a", "throttled_usec") == 0);
	drop("a");
}

static void quota(void)
{
	make("a");
	NEED(writes(at("a/cpu.max"), "20000 100000") == 0);
	pid_t one = computes("a");
	PROMISE("who computes is throttled", COMES_TRUE(used("a", "nr_throttled") >= 3));
	PROMISE("and that is counted", used("a", "nr_periods") >= used("a", "nr_throttled") && used("a", "throttled_usec") > 100 * MS);
	PROMISE("it gets its share", HOLDS_ONCE(share("a", 1000) > 120));
	PROMISE("and no more", HOLDS_ONCE(share("a", 1000) < 280));
	pid_t two = computes("a");
	PROMISE("two together get no more", HOLDS_ONCE(share("a", 1000) < 280));
	end(two);
	PROMISE("who is not limited any more goes on", writes(at("a/cpu.max"), "max") == 0 && HOLDS_ONCE(share("a", 500) > 500));
	NEED(writes(at("a/cpu.max"), "1000 1000000") == 0);
	PROMISE("a small quota lets little be done", COMES_TRUE(used("a", "nr_throttled") >= 1) && HOLDS_ONCE(share("a", 1000) < 100));
	int64_t begin = now_ms();
	end(one);
	PROMISE("who is throttled can be killed at once", now_ms() - begin < 30000);
	drop("a");
}

static void levels(void)
{
	make("a");
	NEED(writes(at("a/cgroup.subtree_control"), "+cpu") == 0);
	make("a/b");
	make("a/c");
	NEED(writes(at("a/cpu.max"), "20000 100000") == 0);
	pid_t one = computes("a/b"), two = computes("a/c");
	PROMISE("a quota holds for all below", COMES_TRUE(used("a", "nr_throttled") >= 3) && HOLDS_ONCE(share("a", 1000) < 280));
	PROMISE("who is below has none of its own", used("a/b", "nr_throttled") == 0);
	NEED(writes(at("a/b/cpu.max"), "5000 100000") == 0);
	PROMISE("the smaller one holds, too", COMES_TRUE(used("a/b", "nr_throttled") >= 3) && HOLDS_ONCE(share("a/b", 1000) < 110));
	char root[160];
	snprintf(root, sizeof root, "%s/cgroup.procs", top);
	NEED(put(root, one) == 0);
	PROMISE("who moves away is free", COMES_TRUE(used("a/b", "usage_usec") >= 0) && HOLDS_ONCE(share("a", 500) < 280));
	end(one);
	end(two);
	drop("a/b");
	drop("a/c");
	drop("a");
}

static void short_lives(void)
{
	make("a");
	NEED(writes(at("a/cpu.max"), "20000 100000") == 0);
	fflush(stdout);
	pid_t parent = fork();
	NEED(parent >= 0);
	if (parent == 0) {
		NEED(writes(at("a/cgroup.procs"), "0") == 0);
		for (;;) {
			pid_t child = fork();
			if (child == 0) {
				for (volatile long n = 0; n < 300000; n++)
					;
				_exit(0);
			}
			waitpid(child, NULL, 0);
		}
	}
	PROMISE("processes that live shortly are throttled", COMES_TRUE(used("a", "nr_throttled") >= 3));
	PROMISE("and get no more than others", HOLDS_ONCE(share("a", 1000) < 280));
	NEED(writes(at("a/cgroup.kill"), "1") == 0);
	PROMISE("they can be killed", killed(parent));
	drop("a");
}

/* A ring's requests that the kernel works for, in tasks of its own: they count with the process. */
static void requests(void)
{
	struct shares {
		volatile int64_t own;
		volatile int done;
	} *told = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(told != MAP_FAILED);
	make("a");
	NEED(writes(at("a/cpu.max"), "200000 100000") == 0);
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		struct ring ring;
		struct rusage used;
		int file = open("/tmp/requests", O_RDWR | O_CREAT, 0600);
		NEED(file >= 0 && writes(at("a/cgroup.procs"), "0") == 0);
		open_ring(&ring);
		for (int round = 0; round < 2000; round++) {
			for (int i = 0; i < ENTRIES; i++)
				add(&ring, IORING_OP_FSYNC, file, NULL, 0, 0, i);
			NEED(enter(ring.fd, ENTRIES, ENTRIES, IORING_ENTER_GETEVENTS, NULL, 0) == ENTRIES);
			__atomic_store_n(ring.cq_head, *ring.cq_tail, __ATOMIC_RELEASE);
		}
		close(ring.fd);
		NEED(getrusage(RUSAGE_THREAD, &used) == 0);
		told->own = (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000L + used.ru_utime.tv_usec + used.ru_stime.tv_usec;
		told->done = 1;
		pause();
	}
	PROMISE("a ring's requests end within a quota", COMES_TRUE(told->done));
	PROMISE("the kernel's time for them is the group's", used("a", "usage_usec") * 10 > told->own * 11);
	end(child);
	unlink("/tmp/requests");
	drop("a");
}

int main(void)
{
	if (!begin_with_controller("cpu"))
		return conclude();
	settings();
	quota();
	levels();
	short_lives();
	requests();
	PROMISE("all is gone in the end", end_groups());
	return conclude();
}
