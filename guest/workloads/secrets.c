/*
 * Looks for kernel addresses in all files that root may read.
 *
 * Usage: secrets. Reads the log (/dev/kmsg and syslog), every file of /proc and /sys that can be
 * read without waiting, and the auxiliary vector. Leaves out the debug files about page tables, and
 * files with a process' own memory or text. A finding is a number, as text or as an aligned word,
 * that is an address of the kernel half. First logs such addresses itself: the log must hide them,
 * too. Prints the log, a line for each finding, and the number of bytes read. Then becomes user
 * 1000 and prints the results of reading the log as that user. The caller judges.
 */
#include "../conformance/promise.h"

#include <ctype.h>
#include <dirent.h>
#include <ftw.h>
#include <poll.h>
#include <sys/klog.h>

#define KERNEL_HALF 0xffff800000000000ULL
/* The last page holds no kernel object: values in it are negative error numbers. */
#define LAST_PAGE 0xfffffffffffff000ULL
/* Linux' kernel.shmall and kernel.shmmax: no address, but no limit (ULONG_MAX - (1 << 24)). */
#define NO_LIMIT 0xfffffffffeffffffULL
#define MOST_BYTES (1 << 20)
#define LONGEST_WORD 64

static unsigned long files, findings;
static unsigned long long bytes;

static int is_kernel_address(unsigned long long value)
{
	return value >= KERNEL_HALF && value < LAST_PAGE && value != NO_LIMIT;
}

static void find(const char *path, const char *how, unsigned long long value)
{
	findings++;
	printf("finding: %s: %s %#llx\n", path, how, value);
}

/* Checks a run of letters and digits as a decimal or hexadecimal number, with or without 0x. */
static void look_at_word(const char *path, const char *word)
{
	char *end;

	errno = 0;
	unsigned long long value = strtoull(word, &end, 16);
	if (!errno && !*end && is_kernel_address(value))
		find(path, "hexadecimal", value);
	errno = 0;
	value = strtoull(word, &end, 10);
	if (!errno && !*end && is_kernel_address(value))
		find(path, "decimal", value);
}

static void look_at_text(const char *path, const char *text, size_t length)
{
	char word[LONGEST_WORD + 1];
	size_t count = 0;

	for (size_t at = 0; at <= length; at++) {
		if (at < length && isalnum((unsigned char)text[at])) {
			if (count < LONGEST_WORD)
				word[count++] = text[at];
		} else if (count > 0) {
			word[count] = 0;
			look_at_word(path, word);
			count = 0;
		}
	}
}

static void look_at_words(const char *path, const char *data, size_t length)
{
	for (size_t at = 0; at + 8 <= length; at += 8) {
		unsigned long long value;

		memcpy(&value, data + at, 8);
		if (is_kernel_address(value))
			find(path, "binary", value);
	}
}

static void look_at_file(const char *path)
{
	static char data[1 << 16];
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	long long total = 0;
	ssize_t count;

	if (fd < 0)
		return;
	files++;
	while (total < MOST_BYTES) {
		struct pollfd ready = { .fd = fd, .events = POLLIN };

		if (poll(&ready, 1, 0) < 1 || (count = read(fd, data, sizeof(data))) <= 0)
			break;
		look_at_text(path, data, count);
		look_at_words(path, data, count);
		total += count;
	}
	bytes += total;
	close(fd);
}

static int visit(const char *path, const struct stat *status, int kind, struct FTW *place)
{
	(void)status, (void)place;
	/* These files show the kernel's mappings on purpose; only root reads them, as on Linux. */
	if (strncmp(path, "/sys/kernel/debug/page_tables/", 30) == 0)
		return 0;
	/* A process' memory and its text are its own data. */
	const char *name = strrchr(path, '/') + 1;
	if (kind == FTW_F && strcmp(name, "mem") && strcmp(name, "cmdline") && strcmp(name, "environ"))
		look_at_file(path);
	return 0;
}

static void look_at_log(int fd)
{
	char record[8192];
	ssize_t count;

	while ((count = read(fd, record, sizeof(record) - 1)) > 0) {
		record[count] = 0;
		look_at_text("/dev/kmsg", record, count);
		printf("log: %s", record);
		bytes += count;
	}
	files++;
}

int main(void)
{
	static char log[1 << 16];
	int fd = open("/dev/kmsg", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	struct stat status;

	PROMISE("root opens the log", fd >= 0 && fstat(fd, &status) == 0);
	printf("mode of /dev/kmsg: %o\n", status.st_mode & 07777);
	dprintf(fd, "<6>probe 0xffffffff81234567, 0xffff888000001000 and 18446744071579755879 stay\n");
	look_at_log(fd);
	close(fd);
	int length = klogctl(3, log, sizeof(log));
	PROMISE("root reads the log", length > 0);
	look_at_text("syslog", log, length);
	bytes += length;
	nftw("/proc", visit, 16, FTW_PHYS);
	nftw("/sys", visit, 16, FTW_PHYS);
	printf("read %lu files, %llu bytes: %lu findings\n", files, bytes, findings);

	PROMISE("root becomes another user", setgid(1000) == 0 && setuid(1000) == 0);
	fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK);
	printf("user 1000: open %s", fd < 0 ? strerror(errno) : "succeeds");
	for (int action = 0; action <= 10; action++)
		printf(", %d %s", action, klogctl(action, log, 16) < 0 ? strerror(errno) : "succeeds");
	printf("\n");
	return broken > 0;
}
