/*
 * The first process of a stock Linux guest (freehold run --kernel linux).
 *
 * It does for Linux what Freehold's own kernel does itself: it reads /.freehold/spec, starts the
 * program, carries its three streams over virtio ports and speaks the control protocol with the
 * host. So the same command, image and VM run on both kernels.
 *
 * Protocol (also in cli/src/protocol.rs): frames of u8 type, u32 LE length, payload.
 * Host to guest: 1 STDIN_EOF (u64 bytes sent), 2 WINSIZE (u16 rows, u16 columns), 3 SIGNAL (u8),
 * 4 CLOSED (u8 stream). Guest to host: 16 READY, 17 EXIT, 18 REPORT, 22 SYMBOLS.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "tools/doorbell.h"

enum { CHUNK = 65536, RECORDS = 4096 };
enum { STDIN_EOF = 1, WINSIZE, SIGNAL, CLOSED };
enum { READY = 16, EXIT, REPORT, SYMBOLS = 22 };

/* Bytes on their way from one descriptor to another. The source is read only while the buffer is
 * empty. */
struct pump {
	int from, to;
	size_t start, end;
	uint64_t moved;
	char bytes[CHUNK];
};

static struct {
	char *exec, *cwd;
	char *argv[RECORDS], *envp[RECORDS];
	int argc, envc;
	unsigned uid, gid;
	int tty[3];
	unsigned short rows, cols;
	int report;
	char *swap;
	enum { NO_SYMBOLS, BASE, ALL } symbols;
} spec = { .cwd = "/", .rows = 24, .cols = 80 };

static int control = -1;
static struct pump in = { -1, -1, 0, 0, 0, { 0 } };
static struct pump out = { -1, -1, 0, 0, 0, { 0 } };
static struct pump err = { -1, -1, 0, 0, 0, { 0 } };
static int terminal = -1;
static int stdin_is_tty;
static uint64_t stdin_total = UINT64_MAX;
static pid_t program;

static void die(const char *what)
{
	fprintf(stderr, "freehold init: %s: %s\n", what, strerror(errno));
	sync();
	reboot(RB_POWER_OFF);
	for (;;)
		pause();
}

static void write_all(int fd, const void *bytes, size_t size)
{
	const char *at = bytes;
	while (size > 0) {
		ssize_t done = write(fd, at, size);
		if (done < 0 && errno == EAGAIN) {
			struct pollfd p = { fd, POLLOUT, 0 };
			poll(&p, 1, -1);
			continue;
		}
		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0)
			return;
		at += done;
		size -= done;
	}
}

static void send_frame(uint8_t type, const void *payload, uint32_t size)
{
	unsigned char head[5] = { type, size, size >> 8, size >> 16, size >> 24 };
	write_all(control, head, sizeof head);
	write_all(control, payload, size);
}

static void mount_or_die(const char *kind, const char *where, const char *options)
{
	mkdir(where, 0755);
	if (mount(kind, where, kind, 0, options) && errno != EBUSY)
		die(where);
}

static void load_modules(void)
{
	/* The host numbers the files in dependency order: 00-virtio.ko, 01-virtio_ring.ko, ... */
	for (int i = 0; i < 100; i++) {
		char path[64];
		snprintf(path, sizeof path, "/.freehold/modules/%02d.ko", i);
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			return;
		if (syscall(SYS_finit_module, fd, "", 0) && errno != EEXIST)
			die(path);
		close(fd);
		unlink(path);
	}
}

static int open_port(int number)
{
	char path[32];
	snprintf(path, sizeof path, "/dev/vport%dp1", number);
	/* The port appears after the exchange of the device's control messages: a moment after
	 * the module is loaded. */
	for (int tries = 0; tries < 20000; tries++) {
		int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
		if (fd >= 0)
			return fd;
		usleep(500);
	}
	die(path);
	return -1;
}

static const char *value_of(const char *record, const char *key)
{
	size_t size = strlen(key);
	return strncmp(record, key, size) == 0 && record[size] == '=' ? record + size + 1 : NULL;
}

static void read_spec(void)
{
	static char text[1 << 21];
	int fd = open("/.freehold/spec", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		die("/.freehold/spec");
	size_t size = 0;
	ssize_t got;
	while (size < sizeof text - 1 && (got = read(fd, text + size, sizeof text - 1 - size)) > 0)
		size += got;
	close(fd);
	for (char *at = text; at < text + size; at += strlen(at) + 1) {
		const char *v;
		if ((v = value_of(at, "arg")) && spec.argc < RECORDS - 1)
			spec.argv[spec.argc++] = (char *)v;
		else if ((v = value_of(at, "env")) && spec.envc < RECORDS - 1)
			spec.envp[spec.envc++] = (char *)v;
		else if ((v = value_of(at, "exec")))
			spec.exec = (char *)v;
		else if ((v = value_of(at, "cwd")))
			spec.cwd = (char *)v;
		else if ((v = value_of(at, "stdin")))
			spec.tty[0] = !strcmp(v, "tty");
		else if ((v = value_of(at, "stdout")))
			spec.tty[1] = !strcmp(v, "tty");
		else if ((v = value_of(at, "stderr")))
			spec.tty[2] = !strcmp(v, "tty");
		else if ((v = value_of(at, "rows")))
			spec.rows = atoi(v);
		else if ((v = value_of(at, "cols")))
			spec.cols = atoi(v);
		else if ((v = value_of(at, "report")))
			spec.report = atoi(v);
		else if ((v = value_of(at, "user")))
			sscanf(v, "%u:%u", &spec.uid, &spec.gid);
		else if ((v = value_of(at, "swap")))
			spec.swap = (char *)v;
		else if ((v = value_of(at, "symbols")))
			spec.symbols = !strcmp(v, "all") ? ALL : BASE;
	}
	if (!spec.exec || spec.argc == 0)
		die("spec names no program");
}

/* Returns the number after `key` and a colon or a blank. */
static long figure(const char *path, const char *key)
{
	char line[128];
	long value = 0;
	FILE *file = fopen(path, "re");
	size_t size = strlen(key);
	while (file && fgets(line, sizeof line, file))
		if (!strncmp(line, key, size) && (line[size] == ':' || line[size] == ' '))
			value = atol(line + size + 1);
	if (file)
		fclose(file);
	return value;
}

static long memory_kib(const char *key)
{
	return figure("/proc/meminfo", key);
}

/* The host has written the header; the device appears a moment after its driver is loaded. */
static void swap_on(void)
{
	int tries = 0;
	while (swapon(spec.swap, 0)) {
		if ((errno != ENOENT && errno != ENXIO) || ++tries == 20000)
			die(spec.swap);
		usleep(500);
	}
}

/* Returns the address of the image's text in this boot; 0 if the kernel hides it. */
static unsigned long text_address(void)
{
	char line[256], name[128];
	unsigned long address, text = 0;
	FILE *file = fopen("/proc/kallsyms", "re");
	while (!text && file && fgets(line, sizeof line, file))
		if (sscanf(line, "%lx %*c %127s", &address, name) == 2 && !strcmp(name, "_text"))
			text = address;
	if (file)
		fclose(file);
	return text;
}

/* Sends the image's functions as "address name" lines. The host uses them to name addresses. */
static void send_symbols(void)
{
	enum { MOST = 15 << 20 };
	char line[512], name[256], kind, *text = malloc(MOST);
	size_t size = 0;
	unsigned long address;
	FILE *file = fopen("/proc/kallsyms", "re");
	while (text && file && fgets(line, sizeof line, file) && size < MOST - sizeof line) {
		/* Modules are listed last, with a mark; their addresses differ in every boot. */
		if (strchr(line, '['))
			break;
		if (sscanf(line, "%lx %c %255s", &address, &kind, name) == 3 && strchr("tTwW", kind))
			size += sprintf(text + size, "%lx %s\n", address, name);
	}
	if (file)
		fclose(file);
	send_frame(SYMBOLS, text, size);
	free(text);
}

static void send_ready(void)
{
	struct utsname name;
	struct timespec now;
	char json[512];
	uname(&name);
	clock_gettime(CLOCK_MONOTONIC, &now);
	int size = snprintf(json, sizeof json,
		"{\"kernel\":\"%s\",\"version\":\"%s\",\"boot_ns\":%lld,\"memory_kib\":%ld,\"cpus\":%ld,\"text\":\"%#lx\"}",
		name.sysname, name.release, now.tv_sec * 1000000000LL + now.tv_nsec,
		memory_kib("MemTotal"), sysconf(_SC_NPROCESSORS_ONLN), spec.symbols ? text_address() : 0);
	send_frame(READY, json, size);
}

static void send_report(void)
{
	struct rusage use;
	char json[1024], swap[128] = "";
	getrusage(RUSAGE_CHILDREN, &use);
	if (spec.swap)
		snprintf(swap, sizeof swap, ",\"swapped_out_kib\":%ld,\"swapped_in_kib\":%ld",
			4 * figure("/proc/vmstat", "pswpout"), 4 * figure("/proc/vmstat", "pswpin"));
	int size = snprintf(json, sizeof json,
		"{\"memory\":{\"total_kib\":%ld,\"free_kib\":%ld,\"peak_user_kib\":%ld,\"page_cache_kib\":%ld,"
		"\"kernel_kib\":%ld,\"page_tables_kib\":%ld,\"faults_minor\":%ld,\"faults_major\":%ld%s},\"audit\":\"ok\"}",
		memory_kib("MemTotal"), memory_kib("MemFree"), use.ru_maxrss, memory_kib("Cached"),
		memory_kib("Slab") + memory_kib("KernelStack"), memory_kib("PageTables"),
		use.ru_minflt, use.ru_majflt, swap);
	send_frame(REPORT, json, size);
}

static void be_the_program(int input, int output, int error)
{
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	setsid();
	dup2(input, 0);
	dup2(output, 1);
	dup2(error, 2);
	if (spec.tty[0])
		ioctl(0, TIOCSCTTY, 0);
	/* Done as root: the user must be able to open the streams again by their names. The
	 * working directory may be in a directory that only root can enter. */
	for (int fd = 0; spec.uid && fd < 3; fd++)
		if (fchown(fd, spec.uid, spec.gid) || (isatty(fd) && fchmod(fd, 0620)))
			die("the user's streams");
	if (chdir(spec.cwd)) {
		fprintf(stderr, "freehold: %s: %s\n", spec.cwd, strerror(errno));
		_exit(126);
	}
	if ((spec.uid || spec.gid) && (setgroups(0, NULL) || setgid(spec.gid) || setuid(spec.uid)))
		die("the program's user");
	doorbell_phase("program");
	execve(spec.exec, spec.argv, spec.envp);
	fprintf(stderr, "freehold: %s: %s\n", spec.exec, strerror(errno));
	_exit(errno == ENOENT ? 127 : 126);
}

static void start_program(int stream, int error_port)
{
	int input[2] = { -1, -1 }, output[2] = { -1, -1 }, error[2] = { -1, -1 };
	int slave = -1;

	if (spec.tty[0] || spec.tty[1]) {
		int unlock = 0, number = 0;
		char path[32];
		struct winsize size = { spec.rows, spec.cols, 0, 0 };
		terminal = open("/dev/ptmx", O_RDWR | O_CLOEXEC | O_NOCTTY);
		if (terminal < 0 || ioctl(terminal, TIOCSPTLCK, &unlock) || ioctl(terminal, TIOCGPTN, &number))
			die("/dev/ptmx");
		snprintf(path, sizeof path, "/dev/pts/%d", number);
		slave = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY);
		if (slave < 0)
			die(path);
		ioctl(terminal, TIOCSWINSZ, &size);
		fcntl(terminal, F_SETFL, O_RDWR | O_NONBLOCK);
	}
	if ((!spec.tty[0] && pipe2(input, O_CLOEXEC)) || (!spec.tty[1] && pipe2(output, O_CLOEXEC)) ||
	    (!spec.tty[2] && pipe2(error, O_CLOEXEC)))
		die("pipe");

	program = fork();
	if (program < 0)
		die("fork");
	if (program == 0)
		be_the_program(spec.tty[0] ? slave : input[0], spec.tty[1] ? slave : output[1],
			spec.tty[2] ? slave : error[1]);

	stdin_is_tty = spec.tty[0];
	in.from = stream;
	in.to = spec.tty[0] ? terminal : input[1];
	out.from = spec.tty[1] ? terminal : output[0];
	out.to = stream;
	err.from = spec.tty[2] ? -1 : error[0];
	err.to = error_port;
	if (slave >= 0)
		close(slave);
	int ours[] = { input[1], output[0], error[0] }, theirs[] = { input[0], output[1], error[1] };
	for (int i = 0; i < 3; i++) {
		if (ours[i] >= 0)
			fcntl(ours[i], F_SETFL, O_NONBLOCK | fcntl(ours[i], F_GETFL));
		if (theirs[i] >= 0)
			close(theirs[i]);
	}
}

static void stop_pump_source(struct pump *p)
{
	if (p->from >= 0 && p->from != terminal && p->from != in.from)
		close(p->from);
	p->from = -1;
}

/* Moves what can be moved now. Returns 1 when something moved. */
static int pump(struct pump *p)
{
	int moved = 0;
	if (p->start == p->end && p->from >= 0) {
		ssize_t got = read(p->from, p->bytes, CHUNK);
		if (got > 0) {
			p->start = 0;
			p->end = got;
			moved = 1;
		} else if (p != &in && (got == 0 || (errno != EAGAIN && errno != EINTR))) {
			stop_pump_source(p);
		}
	}
	while (p->start < p->end && p->to >= 0) {
		ssize_t done = write(p->to, p->bytes + p->start, p->end - p->start);
		if (done < 0) {
			if (errno == EAGAIN || errno == EINTR)
				break;
			/* The reader has closed its end: the rest is dropped. */
			done = p->end - p->start;
		}
		p->start += done;
		p->moved += done;
		moved = 1;
	}
	return moved;
}

static void end_stdin_when_complete(void)
{
	if (!stdin_is_tty && in.to >= 0 && in.moved >= stdin_total) {
		close(in.to);
		in.to = -1;
		in.from = -1;
	}
}

static void take_frame(uint8_t type, const unsigned char *payload, uint32_t size)
{
	if (type == STDIN_EOF && size >= 8) {
		memcpy(&stdin_total, payload, 8);
		end_stdin_when_complete();
	} else if (type == WINSIZE && size >= 4 && terminal >= 0) {
		struct winsize window = { payload[0] | payload[1] << 8, payload[2] | payload[3] << 8, 0, 0 };
		ioctl(terminal, TIOCSWINSZ, &window);
	} else if (type == SIGNAL && size >= 1) {
		pid_t group = stdin_is_tty ? tcgetpgrp(terminal) : program;
		kill(group > 0 ? -group : -program, payload[0]);
	} else if (type == CLOSED && size >= 1) {
		stop_pump_source(payload[0] == 0 ? &out : &err);
	}
}

static void read_control(void)
{
	static unsigned char bytes[4096];
	static size_t held;
	ssize_t got = read(control, bytes + held, sizeof bytes - held);
	if (got <= 0)
		return;
	held += got;
	for (;;) {
		if (held < 5)
			return;
		uint32_t size;
		memcpy(&size, bytes + 1, 4);
		if (size > sizeof bytes - 5)
			die("control frame too long");
		if (held < 5 + size)
			return;
		take_frame(bytes[0], bytes + 5, size);
		held -= 5 + size;
		memmove(bytes, bytes + 5 + size, held);
	}
}

/* Reaps; returns 1 when the program itself has ended, with its status. */
static int reap(int *status)
{
	int ended = 0, one;
	pid_t pid;
	while ((pid = waitpid(-1, &one, WNOHANG)) > 0)
		if (pid == program) {
			*status = one;
			ended = 1;
		}
	return ended;
}

static int serve(void)
{
	sigset_t set;
	int status = 0;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	int children = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
	while (!reap(&status)) {
		struct pollfd wait[8];
		int n = 0;
		struct pump *all[] = { &in, &out, &err };
		wait[n++] = (struct pollfd){ children, POLLIN, 0 };
		wait[n++] = (struct pollfd){ control, POLLIN, 0 };
		for (int i = 0; i < 3; i++) {
			struct pump *p = all[i];
			if (p->start < p->end)
				wait[n++] = (struct pollfd){ p->to, POLLOUT, 0 };
			else if (p->from >= 0)
				wait[n++] = (struct pollfd){ p->from, POLLIN, 0 };
		}
		poll(wait, n, -1);
		struct signalfd_siginfo info;
		while (read(children, &info, sizeof info) > 0)
			;
		if (wait[1].revents)
			read_control();
		for (int i = 0; i < 3; i++)
			pump(all[i]);
		end_stdin_when_complete();
	}
	return status;
}

/* Copies the rest of a pipe: bytes that the program wrote before its end belong to its output. */
static void drain(struct pump *p)
{
	for (;;) {
		if (p->start < p->end) {
			struct pollfd room = { p->to, POLLOUT, 0 };
			poll(&room, 1, -1);
		}
		if (!pump(p))
			return;
	}
}

int main(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);

	mount_or_die("proc", "/proc", "");
	mount_or_die("sysfs", "/sys", "");
	mount_or_die("devtmpfs", "/dev", "");
	mount_or_die("devpts", "/dev/pts", "ptmxmode=0666");
	mount_or_die("tmpfs", "/dev/shm", "");
	if (symlink("/proc/self/fd", "/dev/fd") || symlink("/proc/self/fd/0", "/dev/stdin") ||
	    symlink("/proc/self/fd/1", "/dev/stdout") || symlink("/proc/self/fd/2", "/dev/stderr"))
		errno = 0; /* the directory exists already */
	read_spec();
	load_modules();
	int stream = open_port(0), error_port = open_port(1);
	control = open_port(2);
	unlink("/init");
	if (spec.swap)
		swap_on();

	if (spec.symbols == ALL)
		send_symbols();
	send_ready();
	start_program(stream, error_port);
	int status = serve();
	doorbell_phase("closing");
	drain(&out);
	drain(&err);
	if (spec.report)
		send_report();

	unsigned char end[18];
	end[0] = WIFSIGNALED(status);
	end[1] = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
	memcpy(end + 2, &out.moved, 8);
	memcpy(end + 10, &err.moved, 8);
	send_frame(EXIT, end, sizeof end);
	/* The host ends the VM once it has every byte. If it does not, the guest powers off. */
	sleep(10);
	reboot(RB_POWER_OFF);
	return 1;
}
