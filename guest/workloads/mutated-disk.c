/*
 * File systems with wrong bytes: a disk gets a good image, some of whose bytes are changed, is
 * mounted read-only, walked and unmounted; over and over.
 *
 * Usage: mutated-disk SEED COUNT IMAGE DEVICE [FIRST]. The image has an ext2, ext3 or ext4. For
 * each disk the kernel has to refuse it or show some tree. The same seed makes the same disks;
 * FIRST is the number of the first one. A process that still lives 30 seconds after SIGKILL is a
 * failure: the status is 1. Else prints how the disks were met and exits with 0. For a VM, as root.
 */
#include "../conformance/promise.h"
#include "../tools/dice.h"

#include <dirent.h>
#include <sys/mount.h>
#include <sys/statfs.h>

#define PLACE "/tmp/mutated-disk"
#define PATIENCE_MS 10000
#define DEADLINE_MS 30000
enum { MOST_CHANGES = 40, BLOCK = 1024, DEPTH = 8, MOST_NAMES = 400, REFUSED = 2, SHOWN = 0 };

static unsigned char *base;
static size_t size;
static int disk, names;

/* Most changes are in the first blocks, where superblock, descriptors and inodes are. */
static size_t place(struct dice *dice)
{
	static const unsigned ends[] = { 4096, 1 << 19, 12 << 20 };
	return BLOCK + below(dice, (ends[below(dice, 3)] < size ? ends[below(dice, 2)] : size) - BLOCK - 8);
}

/* Changes the disk, or restores it: the same dice name the same places. */
static void change(struct dice dice, int restore)
{
	static const uint32_t odd[] = { 0, 1, 0xff, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff, 0xf30a };
	for (unsigned left = 1 + below(&dice, MOST_CHANGES); left > 0; left--) {
		size_t at = place(&dice), from = place(&dice) & -16, length = 1u << below(&dice, 3);
		uint64_t value = below(&dice, 2) ? odd[below(&dice, 8)] : draw(&dice);
		const void *bytes = &value;
		/* Sometimes one structure stands in the place of another. */
		if (below(&dice, 8) == 0) {
			at &= -16;
			length = BLOCK / 4 < size - (at > from ? at : from) ? BLOCK / 4 : 8;
			bytes = base + from;
		}
		NEED(pwrite(disk, restore ? base + at : bytes, length, at) == (ssize_t)length);
	}
}

static void walk(int folder, int depth)
{
	char text[4096];
	DIR *list = fdopendir(folder);
	struct dirent *entry;
	struct stat about;
	while (list && names < MOST_NAMES && (entry = readdir(list))) {
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		names++;
		if (fstatat(folder, entry->d_name, &about, AT_SYMLINK_NOFOLLOW))
			continue;
		if (S_ISLNK(about.st_mode))
			(void)!readlinkat(folder, entry->d_name, text, sizeof text);
		if (!S_ISREG(about.st_mode) && !S_ISDIR(about.st_mode))
			continue;
		int next = openat(folder, entry->d_name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
		if (next >= 0 && S_ISDIR(about.st_mode) && depth < DEPTH) {
			walk(next, depth + 1);
			continue;
		}
		for (int part = 0; part < 4 && next >= 0; part++)
			(void)!pread(next, text, sizeof text, about.st_size / 4 * part);
		(void)!pread(next, text, sizeof text, about.st_size - 1);
		close(next);
	}
	if (list)
		closedir(list);
}

static int meet(const char *device, unsigned kind)
{
	static const char *kinds[] = { "ext4", "ext3", "ext2" };
	struct statfs about;
	if (mount(device, PLACE, kinds[kind], MS_RDONLY, "") && mount(device, PLACE, "ext4", MS_RDONLY, ""))
		return REFUSED;
	statfs(PLACE, &about);
	int top = open(PLACE, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (top >= 0)
		walk(top, 0);
	return SHOWN;
}

int main(int count, char **arguments)
{
	if (count < 5)
		return 2;
	uint64_t seed = strtoull(arguments[1], NULL, 0);
	long most = atol(arguments[2]), first = count > 5 ? atol(arguments[5]) : 0, refused = 0, killed = 0;
	int image = open(arguments[3], O_RDONLY | O_CLOEXEC);
	struct stat about;
	NEED(image >= 0 && fstat(image, &about) == 0 && (size = about.st_size) > 16 * BLOCK);
	base = mmap(NULL, size, PROT_READ, MAP_PRIVATE, image, 0);
	disk = open(arguments[4], O_RDWR | O_CLOEXEC);
	NEED(base != MAP_FAILED && disk >= 0 && pwrite(disk, base, size, 0) == (ssize_t)size);
	close(disk);
	mkdir(PLACE, 0700);
	for (long number = first; number < first + most; number++) {
		struct dice dice = { (seed << 32 ^ (uint64_t)number) * 0x9e3779b97f4a7c15 | 1 };
		draw(&dice);
		NEED((disk = open(arguments[4], O_RDWR | O_CLOEXEC)) >= 0);
		change(dice, 0);
		close(disk);
		fflush(stdout);
		pid_t child = fork();
		NEED(child >= 0);
		if (child == 0)
			_exit(meet(arguments[4], number % 3));
		int status;
		int64_t end = now_ms() + PATIENCE_MS;
		while (waitpid(child, &status, WNOHANG) == 0) {
			if (now_ms() > end + DEADLINE_MS) {
				printf("mutated-disk: disk %ld of seed %s: a process outlived SIGKILL\n", number, arguments[1]);
				return 1;
			}
			if (now_ms() > end)
				kill(child, SIGKILL);
			usleep(500);
		}
		killed += WIFSIGNALED(status) != 0;
		refused += WIFEXITED(status) && WEXITSTATUS(status) == REFUSED;
		while (umount(PLACE) == 0)
			;
		NEED((disk = open(arguments[4], O_RDWR | O_CLOEXEC)) >= 0);
		change(dice, 1);
		close(disk);
	}
	printf("mutated-disk: %ld disks: %ld refused, %ld shown, %ld killed\n", most, refused, most - refused - killed, killed);
	return 0;
}
