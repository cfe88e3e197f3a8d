/* Tracepoints: /sys/kernel/tracing, as far as Linux and Freehold agree. Only root may use it. */
#include "promise.h"

#include <sys/epoll.h>
#include <sys/mount.h>
#include <sys/statfs.h>

#define T "/sys/kernel/tracing/"

static char text[1 << 20];

static int put_flags(const char *file, const char *what, int flags)
{
	char path[256];
	snprintf(path, sizeof path, T "%s", file);
	int fd = open(path, O_WRONLY | flags);
	if (fd < 0)
		return -1;
	/* Linux takes one word at a time from a write to set_event. */
	ssize_t went = 0, left = strlen(what);
	while (left > 0 && (went = write(fd, what, left)) > 0) {
		what += went;
		left -= went;
	}
	int error = errno;
	close(fd);
	errno = error;
	return left == 0 ? 0 : -1;
}

static int put(const char *file, const char *what)
{
	return put_flags(file, what, 0);
}

static const char *get(const char *file)
{
	char path[256];
	snprintf(path, sizeof path, T "%s", file);
	int fd = open(path, O_RDONLY);
	text[0] = 0;
	if (fd < 0)
		return text;
	size_t have = 0;
	ssize_t came;
	while (have < sizeof text - 1 && (came = read(fd, text + have, sizeof text - 1 - have)) > 0)
		have += came;
	text[have] = 0;
	close(fd);
	return text;
}

static int has(const char *file, const char *what)
{
	return strstr(get(file), what) != NULL;
}

static int is(const char *file, const char *what)
{
	return strcmp(get(file), what) == 0;
}

static int count(const char *where, const char *what)
{
	int times = 0;
	for (; (where = strstr(where, what)); where += strlen(what))
		times++;
	return times;
}

static void clear(void)
{
	char path[] = T "trace";
	int fd = open(path, O_WRONLY | O_TRUNC);
	NEED(fd >= 0);
	close(fd);
}

static void quiet(void)
{
	NEED(put("events/enable", "0") == 0);
	NEED(put("tracing_on", "1") == 0);
	clear();
}

static void rights(void)
{
	struct stat st;
	struct statfs fs;
	PROMISE("tracefs is root's alone", stat(T, &st) == 0 && (st.st_mode & 07777) == 0700 && st.st_uid == 0);
	PROMISE("its magic number", statfs(T, &fs) == 0 && fs.f_type == 0x74726163);
	PROMISE("trace_pipe is only read", stat(T "trace_pipe", &st) == 0 && (st.st_mode & 0777) == 0440);
	PROMISE("trace_marker is only written", stat(T "trace_marker", &st) == 0 && (st.st_mode & 0777) == 0220);
	int status;
	IN_CHILD(status, NEED(setresgid(4712, 4712, 4712) == 0 && setresuid(4712, 4712, 4712) == 0);
		if (open(T "trace", O_RDONLY) != -1 || errno != EACCES) _exit(1);
		if (open(T "trace_marker", O_WRONLY) != -1 || errno != EACCES) _exit(2);
		if (open(T "events/sched/sched_switch/format", O_RDONLY) != -1 || errno != EACCES) _exit(3));
	PROMISE("others do not come in", status == 0);
	FAILS_WITH("nobody makes files there", open(T "new", O_CREAT | O_WRONLY, 0644), EACCES);
	FAILS_WITH("nor directories", mkdir(T "events/new", 0755), EPERM);
}

static void events(void)
{
	static const char *const all[] = {
		"sched:sched_switch\n", "sched:sched_wakeup\n", "sched:sched_process_fork\n", "sched:sched_process_exec\n",
		"sched:sched_process_exit\n", "raw_syscalls:sys_enter\n", "raw_syscalls:sys_exit\n",
	};
	get("available_events");
	int found = 1;
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		found &= strstr(text, all[i]) != NULL;
	PROMISE("available_events has the usual ones", found);
	quiet();
	PROMISE("an event is off at first", is("events/sched/sched_switch/enable", "0\n"));
	PROMISE("is on when 1 is written", put("events/sched/sched_switch/enable", "1") == 0 && is("events/sched/sched_switch/enable", "1\n"));
	PROMISE("then set_event has it", is("set_event", "sched:sched_switch\n"));
	PROMISE("its system is mixed", is("events/sched/enable", "X\n"));
	PROMISE("and so are all", is("events/enable", "X\n"));
	PROMISE("off with 0", put("events/sched/sched_switch/enable", "0\n") == 0 && is("events/sched/enable", "0\n"));
	FAILS_WITH("neither 0 nor 1 is EINVAL", put("events/sched/sched_switch/enable", "2"), EINVAL);
	FAILS_WITH("for a system, too", put("events/sched/enable", "x"), EINVAL);
	PROMISE("a system is on as a whole", put("events/sched/enable", "1") == 0 && is("events/sched/enable", "1\n"));
	PROMISE("appending to set_event leaves what is on", put_flags("set_event", "raw_syscalls:sys_exit", O_APPEND) == 0 && has("set_event", "sched:sched_switch\n") && has("set_event", "raw_syscalls:sys_exit\n"));
	PROMISE("! turns off", put_flags("set_event", "!sched:*", O_APPEND) == 0 && is("set_event", "raw_syscalls:sys_exit\n"));
	PROMISE("cutting set_event turns all off", put_flags("set_event", "sched_wakeup", O_TRUNC) == 0 && is("set_event", "sched:sched_wakeup\n"));
	FAILS_WITH("an asterisk stands for all or is no pattern", put_flags("set_event", "sched:sched_process_e*", O_APPEND), EINVAL);
	PROMISE("a system and nothing behind its colon is all of it", put_flags("set_event", "raw_syscalls:", O_TRUNC) == 0 && is("events/raw_syscalls/enable", "1\n"));
	FAILS_WITH("an event that is not there is EINVAL", put_flags("set_event", "sched:no_such_event", O_APPEND), EINVAL);
	PROMISE("several, one a line", put_flags("set_event", "sched:sched_switch\nsched:sched_wakeup\n", O_TRUNC) == 0 && count(get("set_event"), "\n") == 2);
	quiet();
	PROMISE("format begins with the name", strncmp(get("events/sched/sched_switch/format"), "name: sched_switch\nID: ", 23) == 0);
	static const char *const fields[] = {
		"\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n",
		"\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n",
		"\tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n",
		"\tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;\n",
		"\tfield:long prev_state;\toffset:32;\tsize:8;\tsigned:1;\n",
		"\tfield:int next_prio;\toffset:60;\tsize:4;\tsigned:1;\n",
		"\nprint fmt: \"prev_comm=%s prev_pid=%d prev_prio=%d prev_state=%s",
	};
	found = 1;
	for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
		found &= has("events/sched/sched_switch/format", fields[i]);
	PROMISE("format has the fields with their types and places", found);
	PROMISE("so has a system call's", has("events/raw_syscalls/sys_enter/format", "\tfield:unsigned long args[6];\toffset:16;\tsize:48;\tsigned:0;\n"));
	char id[64];
	snprintf(id, sizeof id, "%s", get("events/sched/sched_switch/id"));
	char line[80];
	snprintf(line, sizeof line, "ID: %s", id);
	PROMISE("id is format's, and stays", atoi(id) > 0 && has("events/sched/sched_switch/format", line) && is("events/sched/sched_switch/id", id));
	PROMISE("an event has no filter at first", is("events/sched/sched_switch/filter", "none\n") && put("events/sched/sched_switch/filter", "0") == 0);
	PROMISE("ids differ", strcmp(get("events/sched/sched_wakeup/id"), id) != 0);
}

static void reading(void)
{
	quiet();
	PROMISE("trace begins with its head", strncmp(get("trace"), "# tracer: nop\n#\n# entries-in-buffer/entries-written: 0/0   #P:", 61) == 0);
	NEED(put("events/raw_syscalls/enable", "1") == 0);
	syscall(SYS_getppid);
	NEED(put("events/raw_syscalls/enable", "0") == 0);
	char want[64];
	snprintf(want, sizeof want, "sys_enter: NR %d (", SYS_getppid);
	get("trace");
	char *line = strstr(text, want);
	PROMISE("a call is in trace", line != NULL);
	snprintf(want, sizeof want, "sys_exit: NR %d = %d\n", SYS_getppid, (int)getppid());
	PROMISE("and its end, with what it returned", strstr(text, want) != NULL);
	snprintf(want, sizeof want, "-%d ", getpid());
	int own = 0;
	if (line) {
		while (line > text && line[-1] != '\n')
			line--;
		own = strstr(line, want) && strstr(line, want) < strchr(line, '[') && memcmp(line, "     tracepoints", 16) == 0;
	}
	PROMISE("with the thread's name in 16 columns and its number", own);
	PROMISE("reading trace consumes nothing", has("trace", want) && has("trace", want));
	clear();
	PROMISE("cutting it forgets all", !has("trace", want) && has("trace", "entries-written: 0/0 "));
	NEED(put("events/sched/enable", "1") == 0);
	int status;
	IN_CHILD(status, execl("/proc/self/exe", "tracepoints", "leave", NULL));
	NEED(put("events/sched/enable", "0") == 0);
	get("trace");
	PROMISE("a child's beginning", strstr(text, "sched_process_fork: comm=") && strstr(text, " child_comm=tracepoints child_pid="));
	PROMISE("its exec", strstr(text, "sched_process_exec: ") != NULL);
	PROMISE("its end", strstr(text, "sched_process_exit: comm=exe pid=") != NULL);
	PROMISE("switches to it", strstr(text, "sched_switch: prev_comm=") && strstr(text, " ==> next_comm=tracepoints next_pid="));
	PROMISE("wake-ups", strstr(text, "sched_wakeup: comm=") != NULL || strstr(text, "sched_wakeup_new: comm=") != NULL);
	double last = 0;
	int ordered = 1, lines = 0;
	for (char *at = text; at && *at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL) {
		char *cpu = *at == '#' ? NULL : strchr(at, '[');
		char *colon = cpu ? strchr(cpu, ':') : NULL;
		if (!colon)
			continue;
		char *start = colon;
		while (start > cpu && start[-1] != ' ')
			start--;
		double time = atof(start);
		ordered &= time >= last;
		last = time;
		lines++;
	}
	PROMISE("lines are in the order of time", ordered && lines > 3);
	quiet();
	NEED(put("tracing_on", "0") == 0);
	NEED(put("events/raw_syscalls/enable", "1") == 0);
	syscall(SYS_getppid);
	PROMISE("nothing is recorded while tracing is off", is("tracing_on", "0\n") && has("trace", "entries-written: 0/0 "));
	quiet();
}

static void markers(void)
{
	quiet();
	PROMISE("a program writes a marker", put("trace_marker", "hello from here\n") == 0 && has("trace", "tracing_mark_write: hello from here\n"));
	int fd = open(T "trace_marker", O_RDWR);
	char some[8];
	FAILS_WITH("which cannot be read", read(fd, some, sizeof some), EINVAL);
	close(fd);
}

static void piping(void)
{
	quiet();
	int fd = open(T "trace_pipe", O_RDONLY | O_NONBLOCK);
	NEED(fd >= 0);
	char some[4096];
	FAILS_WITH("an empty trace_pipe is EAGAIN where nobody waits", read(fd, some, sizeof some), EAGAIN);
	struct pollfd wait = { .fd = fd, .events = POLLIN };
	PROMISE("and not ready", poll(&wait, 1, 0) == 0);
	NEED(put("trace_marker", "one\n") == 0);
	PROMISE("a record makes it ready", poll(&wait, 1, 10000) == 1 && (wait.revents & POLLIN));
	ssize_t came = read(fd, some, sizeof some - 1);
	some[came > 0 ? came : 0] = 0;
	PROMISE("reading gives its line", strstr(some, "tracing_mark_write: one\n") != NULL);
	PROMISE("and consumes it", read(fd, some, sizeof some) == -1 && errno == EAGAIN && !has("trace", "mark_write: one"));
	int epoll = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN };
	NEED(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
	NEED(put("trace_marker", "two\n") == 0);
	PROMISE("epoll sees it, too", epoll_wait(epoll, &event, 1, 10000) == 1);
	close(epoll);
	close(fd);
	quiet();
	fd = open(T "trace_pipe", O_RDONLY);
	NEED(fd >= 0);
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		came = read(fd, some, sizeof some);
		_exit(came > 0 && memmem(some, came, "three\n", 6) ? 0 : 1);
	}
	PROMISE("a reader waits", COMES_TRUE(is_asleep(child, child)));
	NEED(put("trace_marker", "three\n") == 0);
	int status;
	PROMISE("and gets the next record", waitpid(child, &status, 0) == child && status == 0);
	child = fork();
	NEED(child >= 0);
	if (child == 0)
		_exit(read(fd, some, sizeof some) < 0);
	PROMISE("a reader that waits is killed", COMES_TRUE(is_asleep(child, child)) && kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status));
	FAILS_WITH("trace_pipe is not written", write(fd, "x", 1), EBADF);
	FAILS_WITH("it has one reader", open(T "trace_pipe", O_RDONLY), EBUSY);
	FAILS_WITH("whose are those of all CPUs, too", open(T "per_cpu/cpu0/trace_pipe", O_RDONLY), EBUSY);
	close(fd);
	fd = open(T "per_cpu/cpu0/trace_pipe", O_RDONLY | O_NONBLOCK);
	PROMISE("the next may come when it has gone", fd >= 0);
	FAILS_WITH("one of a CPU keeps those of all away", open(T "trace_pipe", O_RDONLY), EBUSY);
	close(fd);
}

static long stat_of(int cpu, const char *name)
{
	char path[64];
	snprintf(path, sizeof path, "per_cpu/cpu%d/stats", cpu);
	char *at = strstr(get(path), name);
	return at ? atol(at + strlen(name)) : -1;
}

static void losses(void)
{
	quiet();
	cpu_set_t old, one;
	NEED(sched_getaffinity(0, sizeof old, &old) == 0);
	int cpu = 0;
	while (!CPU_ISSET(cpu, &old))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	NEED(sched_setaffinity(0, sizeof one, &one) == 0);
	char size[64];
	snprintf(size, sizeof size, "%ld", atol(get("buffer_size_kb")));
	FAILS_WITH("a buffer of no size is EINVAL", put("buffer_size_kb", "0"), EINVAL);
	PROMISE("a buffer has the size that it was given, or a little more", put("buffer_size_kb", "16") == 0 && atol(get("buffer_size_kb")) >= 16 && atol(get("buffer_size_kb")) <= 32);
	clear();
	int marker = open(T "trace_marker", O_WRONLY);
	NEED(marker >= 0);
	long written = 3000;
	for (long i = 0; i < written; i++) {
		char line[64];
		int length = snprintf(line, sizeof line, "number %ld\n", i);
		NEED(write(marker, line, length) == length);
	}
	close(marker);
	long entries = stat_of(cpu, "entries: "), overrun = stat_of(cpu, "overrun: ");
	PROMISE("the newest records are kept, the others counted", entries > 50 && overrun > 0 && entries + overrun == written);
	char head[128];
	snprintf(head, sizeof head, "entries-in-buffer/entries-written: %ld/%ld ", entries, written);
	get("trace");
	PROMISE("the head of trace says both", strstr(text, head) != NULL);
	snprintf(head, sizeof head, "mark_write: number %ld\n", written - 1);
	PROMISE("the newest is there", strstr(text, head) != NULL);
	snprintf(head, sizeof head, "mark_write: number %ld\n", overrun);
	PROMISE("and the oldest that was not lost", strstr(text, head) != NULL);
	snprintf(head, sizeof head, "mark_write: number %ld\n", overrun - 1);
	PROMISE("none before it", strstr(text, head) == NULL);
	int fd = open(T "trace_pipe", O_RDONLY | O_NONBLOCK);
	NEED(fd >= 0);
	size_t have = 0;
	ssize_t came;
	while (have < sizeof text - 1 && (came = read(fd, text + have, sizeof text - 1 - have)) > 0)
		have += came;
	text[have] = 0;
	close(fd);
	char lost[64];
	snprintf(lost, sizeof lost, "CPU:%d [LOST %ld EVENTS]\n", cpu, overrun);
	PROMISE("trace_pipe says how many were lost", strstr(text, lost) != NULL);
	PROMISE("and gives all others", count(text, "mark_write: number ") == entries);
	PROMISE("stats count them as read", stat_of(cpu, "read events: ") == entries && stat_of(cpu, "entries: ") == 0);
	clear();
	PROMISE("clearing sets the counts back", stat_of(cpu, "overrun: ") == 0 && stat_of(cpu, "entries: ") == 0);
	if (atol(size) > 16)
		NEED(put("buffer_size_kb", size) == 0);
	NEED(sched_setaffinity(0, sizeof old, &old) == 0);
}

static void settings(void)
{
	PROMISE("no tracer but nop", is("current_tracer", "nop\n") && has("available_tracers", "nop"));
	PROMISE("nop can be chosen", put("current_tracer", "nop") == 0);
	FAILS_WITH("others not", put("current_tracer", "no_such_tracer"), EINVAL);
	PROMISE("the clock is shown", has("trace_clock", "[local]"));
	FAILS_WITH("an unknown one is EINVAL", put("trace_clock", "no_such_clock"), EINVAL);
	PROMISE("options are listed", has("trace_options", "overwrite\n") && is("options/overwrite", "1\n"));
	FAILS_WITH("an unknown one is EINVAL", put("trace_options", "no_such_option"), EINVAL);
	PROMISE("tracing_on takes numbers", put("tracing_on", "0") == 0 && is("tracing_on", "0\n") && put("tracing_on", "1") == 0);
	FAILS_WITH("and nothing else", put("tracing_on", "x"), EINVAL);
	struct stat a, b;
	mkdir("/tmp/traced", 0755);
	PROMISE("tracefs is mounted elsewhere, too, and is the same", mount("x", "/tmp/traced", "tracefs", 0, NULL) == 0 && stat(T "trace", &a) == 0 && stat("/tmp/traced/trace", &b) == 0 && a.st_ino == b.st_ino);
	umount("/tmp/traced");
	rmdir("/tmp/traced");
}

int main(int argc, char **argv)
{
	(void)argv;
	if (argc > 1)
		return 0;
	NEED(geteuid() == 0);
	struct statfs fs;
	if (statfs(T, &fs) != 0 || fs.f_type != 0x74726163)
		NEED(mount("tracefs", T, "tracefs", 0, NULL) == 0);
	put("options/irq-info", "0");
	rights();
	events();
	reading();
	markers();
	piping();
	losses();
	settings();
	quiet();
	return conclude();
}
