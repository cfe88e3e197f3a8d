/* Terminals: line editing, echo, signals from keys, job control, raw mode, sizes. On a
 * pseudo-terminal of its own. */
#include "promise.h"
#include <termios.h>

static int master, slave;
static char name[64];
static volatile sig_atomic_t last;

static void note(int signal)
{
	last = signal;
}

static void key(const char *keys)
{
	NEED(write(master, keys, strlen(keys)) == (ssize_t)strlen(keys));
}

/* Returns the output of the terminal. Reads until the output contains `expected`, for at most a
 * minute per read, and then until no more comes for 50 ms. */
static const char *shown(const char *expected)
{
	static char text[4096];
	size_t size = 0;
	struct pollfd wait = { master, POLLIN, 0 };
	text[0] = 0;
	while (size < sizeof text - 1 && poll(&wait, 1, strstr(text, expected) ? 50 : 60000) > 0 && (wait.revents & POLLIN)) {
		ssize_t got = read(master, text + size, sizeof text - 1 - size);
		if (got <= 0)
			break;
		size += got;
		text[size] = 0;
	}
	return text;
}

static int shows(const char *expected)
{
	return !strcmp(shown(expected), expected);
}

/* Reads once from the terminal; returns the text. */
static const char *line(void)
{
	static char text[4096];
	ssize_t got = read(slave, text, sizeof text - 1);
	text[got < 0 ? 0 : got] = 0;
	return text;
}

static int waiting(int ms)
{
	struct pollfd wait = { slave, POLLIN, 0 };
	return poll(&wait, 1, ms) > 0;
}

/* Two checks: whether input for a reader arrives at last, and whether there is none. */
static int comes(void)
{
	return waiting(60000);
}

static int is_quiet(void)
{
	return !waiting(50);
}

static void set(tcflag_t on, tcflag_t off)
{
	struct termios settings;
	NEED(tcgetattr(slave, &settings) == 0);
	settings.c_lflag = (settings.c_lflag | on) & ~off;
	NEED(tcsetattr(slave, TCSANOW, &settings) == 0);
}

static void pair(void)
{
	int number = -1, unlock = 0;
	master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
	PROMISE("/dev/ptmx gives a master", master >= 0);
	PROMISE("it has a number and can be unlocked", ioctl(master, TIOCGPTN, &number) == 0 && ioctl(master, TIOCSPTLCK, &unlock) == 0);
	snprintf(name, sizeof name, "/dev/pts/%d", number);
	slave = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
	PROMISE("the slave opens", slave >= 0 && isatty(slave));
	struct stat about;
	PROMISE("it is a character device 136:N", fstat(slave, &about) == 0 && S_ISCHR(about.st_mode) && about.st_rdev == (dev_t)(136 << 8 | number));
	PROMISE("a pipe is no terminal", ({ int ends[2]; pipe(ends); int no = !isatty(ends[0]) && errno == ENOTTY; close(ends[0]); close(ends[1]); no; }));
	struct termios settings;
	PROMISE("it starts with line editing, echo and signals", tcgetattr(slave, &settings) == 0 &&
		(settings.c_lflag & (ICANON | ECHO | ISIG)) == (ICANON | ECHO | ISIG) && (settings.c_oflag & (OPOST | ONLCR)) == (OPOST | ONLCR));
	/* struct termios2, which no header defines together with struct termios. */
	struct { tcflag_t modes[4]; cc_t line, characters[19]; speed_t input, output; } full;
	NEED(ioctl(slave, 0x802c542a /* TCGETS2 */, &full) == 0);
	PROMISE("it starts at 38,400 baud", full.input == 38400 && full.output == 38400);
	full.modes[2] = (full.modes[2] & ~0x100fu) | 0x1000; /* BOTHER */
	full.output = 31250;
	PROMISE("any speed is kept", ioctl(master, 0x402c542b /* TCSETS2 */, &full) == 0 && ioctl(slave, 0x802c542a, &full) == 0 && full.output == 31250);
	NEED(tcgetattr(slave, &settings) == 0 && cfsetspeed(&settings, B115200) == 0);
	PROMISE("and so is one with a name", tcsetattr(slave, TCSANOW, &settings) == 0 && ioctl(master, 0x802c542a, &full) == 0 && full.output == 115200 && full.input == 115200);
	/* struct termio, likewise. */
	struct { unsigned short modes[4]; unsigned char line, characters[8]; } old;
	NEED(tcgetattr(slave, &settings) == 0 && ioctl(slave, TCGETA, &old) == 0);
	PROMISE("struct termio has the lower halves of the modes", old.modes[0] == (settings.c_iflag & 0xffff) && old.modes[1] == (settings.c_oflag & 0xffff) &&
		old.modes[2] == (settings.c_cflag & 0xffff) && old.modes[3] == (settings.c_lflag & 0xffff) && old.line == 0);
	PROMISE("and the first eight keys", !memcmp(old.characters, settings.c_cc, 8));
	old.modes[3] &= ~ECHO;
	old.characters[VINTR] = 2;
	for (int i = 0; i < 3; i++) {
		struct termios after;
		old.characters[VQUIT] = 5 + i;
		NEED(ioctl(i == 1 ? master : slave, TCSETA + i, &old) == 0 && tcgetattr(slave, &after) == 0);
		PROMISE("TCSETA, TCSETAW and TCSETAF set these, and no others", !(after.c_lflag & ECHO) && after.c_cc[VINTR] == 2 && after.c_cc[VQUIT] == 5 + i &&
			after.c_cc[VSUSP] == settings.c_cc[VSUSP] && after.c_cflag == settings.c_cflag && cfgetospeed(&after) == B115200);
	}
	NEED(tcsetattr(slave, TCSANOW, &settings) == 0);
	FAILS_WITH("an address that is none", ioctl(slave, TCGETA, -1), EFAULT);
	FAILS_WITH("TCGETA of a file", ({ int file = open("/proc/self/exe", O_RDONLY); int no = ioctl(file, TCGETA, &old), error = errno; close(file); errno = error; no; }), ENOTTY);
	PROMISE("the master waits for its output, too", ioctl(master, TCSBRK, 1) == 0);
	struct winsize size = { 40, 100, 0, 0 }, read_back;
	PROMISE("it keeps its size", ioctl(master, TIOCSWINSZ, &size) == 0 && ioctl(slave, TIOCGWINSZ, &read_back) == 0 && read_back.ws_row == 40 && read_back.ws_col == 100);
}

static void editing(void)
{
	key("hello");
	PROMISE("a line waits for its end", is_quiet());
	PROMISE("keys are echoed", shows("hello"));
	key("\r");
	PROMISE("return ends it, as a line feed", comes() && !strcmp(line(), "hello\n"));
	PROMISE("echoed as return and line feed", shows("\r\n"));
	key("abcd\177\177x\n");
	PROMISE("erase takes a character", !strcmp(line(), "abx\n"));
	PROMISE("and wipes it from the screen", strstr(shown("\b \b"), "\b \b") != NULL);
	key("one two\027three\n");
	PROMISE("word erase takes a word", !strcmp(line(), "one three\n"));
	key("nonsense\025sense\n");
	PROMISE("kill takes the line", !strcmp(line(), "sense\n"));
	key("a\026\003b\n");
	PROMISE("the next key can be quoted", !strcmp(line(), "a\003b\n"));
	key("part\004");
	PROMISE("end of file sends what there is", !strcmp(line(), "part"));
	key("\004");
	PROMISE("and alone it is an end", read(slave, &(char){ 0 }, 1) == 0);
	key("first\nsecond\n");
	char few[4] = { 0 };
	PROMISE("a short read leaves the rest of the line", read(slave, few, 3) == 3 && !strcmp(few, "fir") && !strcmp(line(), "st\n") && !strcmp(line(), "second\n"));
	shown("");
	NEED(write(slave, "out\n", 4) == 4);
	PROMISE("output gets a return before a line feed", shows("out\r\n"));
	set(0, ECHO);
	key("secret\n");
	PROMISE("without ECHO nothing is shown", shows("") && !strcmp(line(), "secret\n"));
	set(ECHO, 0);
	key("gone\n");
	tcflush(slave, TCIFLUSH);
	PROMISE("tcflush drops what waits", is_quiet());
	shown("");
	int pending;
	key("12345\n");
	PROMISE("FIONREAD counts it", comes() && ioctl(slave, FIONREAD, &pending) == 0 && pending == 6);
	line();
	shown("");
}

static void raw(void)
{
	struct termios before, settings;
	tcgetattr(slave, &before);
	settings = before;
	cfmakeraw(&settings);
	settings.c_cc[VMIN] = 1;
	settings.c_cc[VTIME] = 0;
	PROMISE("raw mode is kept", tcsetattr(slave, TCSADRAIN, &settings) == 0 && ({ struct termios now; tcgetattr(slave, &now); !memcmp(now.c_cc, settings.c_cc, 11) && now.c_lflag == settings.c_lflag; }));
	key("x\003\r");
	PROMISE("every key comes at once and as it is", comes() && !strcmp(line(), "x\003\r"));
	NEED(write(slave, "a\nb", 3) == 3);
	PROMISE("output is left alone", shows("a\nb"));
	settings.c_cc[VMIN] = 0;
	settings.c_cc[VTIME] = 1;
	tcsetattr(slave, TCSANOW, &settings);
	int64_t from = now_ms();
	PROMISE("VTIME ends a read", read(slave, &(char){ 0 }, 1) == 0 && now_ms() - from >= 90);
	settings.c_cc[VMIN] = 3;
	settings.c_cc[VTIME] = 0;
	tcsetattr(slave, TCSANOW, &settings);
	fflush(stdout);
	pid_t typist = fork();
	if (typist == 0) {
		key("1");
		sleep_ms(50);
		key("23");
		_exit(0);
	}
	PROMISE("VMIN waits for so many", !strcmp(line(), "123"));
	waitpid(typist, NULL, 0);
	tcsetattr(slave, TCSANOW, &before);
	shown("");
}

/* A child with the terminal as its controlling one runs statements; its wait status is stored. */
#define ON_TERMINAL(status, ...)                                                                   \
	IN_CHILD(status, setsid(); int tty_ = open(name, O_RDWR); if (tty_ < 0) _exit(90); (void)tty_; __VA_ARGS__)

static void control(void)
{
	int status;
	ON_TERMINAL(status, int all = open("/dev/tty", O_RDWR); _exit(all >= 0 && tcgetpgrp(all) == getpgrp() && tcgetsid(all) == getpid() ? 1 : 0));
	PROMISE("a session leader's first terminal controls it", WEXITSTATUS(status) == 1);
	IN_CHILD(status, setsid(); int only = open(name, O_WRONLY); int all = open("/dev/tty", O_RDWR);
		 _exit(only >= 0 && all == -1 && setuid(1000) == 0 && ioctl(only, TIOCSCTTY, 0) == -1 && errno == EPERM ? 1 : 0));
	PROMISE("one that it cannot read does not", WEXITSTATUS(status) == 1);
	IN_CHILD(status, setsid(); int only = open(name, O_WRONLY); _exit(ioctl(only, TIOCSCTTY, 0) == 0 && open("/dev/tty", O_RDWR) >= 0 ? 1 : 0));
	PROMISE("unless an administrator says so", WEXITSTATUS(status) == 1);
	IN_CHILD(status, setsid(); _exit(open("/dev/tty", O_RDWR) == -1 && errno == ENXIO ? 1 : 0));
	PROMISE("without one /dev/tty does not open", WEXITSTATUS(status) == 1);
	ON_TERMINAL(status, signal(SIGINT, note); key("\003"); _exit(COMES_TRUE(last == SIGINT) ? 1 : 0));
	PROMISE("Ctrl-C is SIGINT", WEXITSTATUS(status) == 1);
	PROMISE("shown as ^C", strstr(shown("^C"), "^C") != NULL);
	ON_TERMINAL(status, key("\034"); for (;;) pause());
	PROMISE("Ctrl-\\ is SIGQUIT", WIFSIGNALED(status) && WTERMSIG(status) == SIGQUIT);
	ON_TERMINAL(status, signal(SIGWINCH, note); struct winsize size = { 50, 120, 0, 0 }; ioctl(master, TIOCSWINSZ, &size); _exit(COMES_TRUE(last == SIGWINCH) ? 1 : 0));
	PROMISE("a new size is SIGWINCH", WEXITSTATUS(status) == 1);
	ON_TERMINAL(status,
		int result = 0;
		int stopped;
		pid_t job = fork();
		if (job == 0) {
			setpgid(0, 0);
			char byte;
			read(tty_, &byte, 1);
			_exit(byte);
		}
		setpgid(job, job);
		if (waitpid(job, &stopped, WUNTRACED) == job && WIFSTOPPED(stopped) && WSTOPSIG(stopped) == SIGTTIN)
			result |= 1;
		tcsetpgrp(tty_, job);
		kill(-job, SIGCONT);
		key("k\n");
		if (waitpid(job, &stopped, 0) == job && WEXITSTATUS(stopped) == 'k')
			result |= 2;
		signal(SIGTTOU, SIG_IGN);
		if (tcsetpgrp(tty_, getpgrp()) == 0)
			result |= 4;
		_exit(result));
	PROMISE("a background reader is stopped, and goes on in the foreground", WEXITSTATUS(status) == 7);
	ON_TERMINAL(status,
		int stopped;
		pid_t job = fork();
		if (job == 0) {
			setpgid(0, 0);
			signal(SIGTTOU, SIG_IGN);
			tcsetpgrp(tty_, getpgrp());
			key("\032");
			for (;;)
				pause();
		}
		int seen = waitpid(job, &stopped, WUNTRACED) == job && WIFSTOPPED(stopped) && WSTOPSIG(stopped) == SIGTSTP;
		kill(job, SIGKILL);
		_exit(seen));
	PROMISE("Ctrl-Z stops the foreground job", WEXITSTATUS(status) == 1);
	ON_TERMINAL(status,
		struct termios settings;
		tcgetattr(tty_, &settings);
		settings.c_lflag |= TOSTOP;
		tcsetattr(tty_, TCSANOW, &settings);
		int stopped;
		pid_t job = fork();
		if (job == 0) {
			setpgid(0, 0);
			write(tty_, "x", 1);
			_exit(0);
		}
		int seen = waitpid(job, &stopped, WUNTRACED) == job && WIFSTOPPED(stopped) && WSTOPSIG(stopped) == SIGTTOU;
		kill(job, SIGKILL);
		settings.c_lflag &= ~TOSTOP;
		tcsetattr(tty_, TCSANOW, &settings);
		_exit(seen));
	PROMISE("with TOSTOP a background writer is stopped", WEXITSTATUS(status) == 1);
	shown("");
}

static void hang_up(void)
{
	fflush(stdout);
	int ready[2];
	NEED(pipe(ready) == 0);
	pid_t child = fork();
	if (child == 0) {
		close(master);
		setsid();
		int tty = open(name, O_RDWR);
		(void)tty;
		write(ready[1], "r", 1);
		for (;;)
			pause();
	}
	char byte;
	int status;
	NEED(read(ready[0], &byte, 1) == 1);
	close(master);
	PROMISE("the master's end hangs up: SIGHUP", waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGHUP);
	PROMISE("the slave is at its end", read(slave, &byte, 1) == 0);
	FAILS_WITH("and takes no more", write(slave, "x", 1), EIO);
}

/* Makes a session with a pseudo-terminal of its own; returns the number of the failed check, 0
 * for none. */
static int hang_up_oneself(void)
{
	signal(SIGHUP, SIG_IGN);
	setsid();
	int other = posix_openpt(O_RDWR | O_NOCTTY);
	if (syscall(SYS_vhangup) != 0 || other < 0 || grantpt(other) != 0 || unlockpt(other) != 0)
		return 1;
	int tty = open(ptsname(other), O_RDWR);
	int same = open("/dev/tty", O_RDWR);
	char byte;
	if (tty < 0 || same < 0 || syscall(SYS_vhangup) != 0)
		return 2;
	if (read(tty, &byte, 1) != 0 || write(tty, "x", 1) != -1 || errno != EIO)
		return 3;
	return open("/dev/tty", O_RDWR) == -1 && errno == ENXIO ? 0 : 4;
}

static void vhangup_(void)
{
	int status;
	pid_t child = fork();
	if (child == 0)
		_exit(hang_up_oneself());
	PROMISE("vhangup ends the session's terminal and no other", waitpid(child, &status, 0) == child && status == 0);
	child = fork();
	if (child == 0)
		_exit(setuid(1000) == 0 && syscall(SYS_vhangup) == -1 && errno == EPERM ? 0 : 1);
	PROMISE("and only an administrator may", waitpid(child, &status, 0) == child && status == 0);
}

int main(void)
{
	pair();
	editing();
	raw();
	control();
	vhangup_();
	hang_up();
	return conclude();
}
