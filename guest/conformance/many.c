/*
 * Many objects of each kind, which end in another order than they began. The kernel's trees and
 * lists find each object that exists and none that has ended. There are 200 of each kind, so
 * that trees have inner nodes. These split, merge, and move entries to neighbours.
 */
#include "promise.h"

#include <dirent.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/xattr.h>

enum { MANY = 200, PAGE = 4096 };

static int order[MANY];

/* Another order each time; the same in every run. */
static void shuffle(void)
{
	static unsigned state = 7;
	for (int i = 0; i < MANY; i++)
		order[i] = i;
	for (int i = MANY - 1; i > 0; i--) {
		state = state * 1103515245 + 12345;
		int other = (state >> 8) % (i + 1), kept = order[i];
		order[i] = order[other];
		order[other] = kept;
	}
}

static const char *named(const char *kind, int number)
{
	static char name[64];
	snprintf(name, sizeof name, "/tmp/many/%s-%d", kind, number);
	return name;
}

static int files_and_names(void)
{
	for (int i = 0; i < MANY; i++) {
		int file = open(named("file", i), O_CREAT | O_RDWR, 0600);
		if (file < 0 || write(file, &i, sizeof i) != sizeof i || close(file))
			return 0;
	}
	shuffle();
	for (int i = 0; i < MANY; i++) {
		char to[64];
		strcpy(to, named("renamed", order[i]));
		if (rename(named("file", order[i]), to))
			return 0;
	}
	shuffle();
	for (int i = 0; i < MANY; i++) {
		int found = -1, file = open(named("renamed", order[i]), O_RDONLY);
		if (read(file, &found, sizeof found) != sizeof found || found != order[i] || close(file))
			return 0;
		if (unlink(named("renamed", order[i])) || access(named("renamed", order[i]), F_OK) == 0)
			return 0;
	}
	return 1;
}

static int attributes(void)
{
	int file = open(named("attributes", 0), O_CREAT | O_RDWR, 0600);
	char name[32];
	for (int i = 0; i < MANY; i++) {
		snprintf(name, sizeof name, "trusted.n%d", i);
		if (fsetxattr(file, name, &i, sizeof i, XATTR_CREATE))
			return 0;
	}
	shuffle();
	for (int i = 0; i < MANY; i++) {
		int found = -1;
		snprintf(name, sizeof name, "trusted.n%d", order[i]);
		if (fgetxattr(file, name, &found, sizeof found) != sizeof found || found != order[i])
			return 0;
		if (fremovexattr(file, name) || fgetxattr(file, name, &found, sizeof found) >= 0)
			return 0;
	}
	return !close(file);
}

static int locked_files(void)
{
	int files[MANY];
	for (int i = 0; i < MANY; i++) {
		struct flock lock = { .l_type = F_WRLCK, .l_start = i, .l_len = 1 };
		files[i] = open(named("locked", i), O_CREAT | O_RDWR, 0600);
		if (files[i] < 0 || fcntl(files[i], F_SETLK, &lock) || flock(files[i], LOCK_EX | LOCK_NB))
			return 0;
	}
	shuffle();
	for (int i = 0; i < MANY; i++) {
		int other = open(named("locked", order[i]), O_RDWR);
		if (flock(other, LOCK_EX | LOCK_NB) == 0 || close(files[order[i]]) || flock(other, LOCK_EX | LOCK_NB))
			return 0;
		close(other);
	}
	return 1;
}

/* Pieces of one file, locked and unlocked in any order. */
static int locked_pieces(void)
{
	int file = open(named("pieces", 0), O_CREAT | O_RDWR, 0600);
	shuffle();
	for (int i = 0; i < MANY; i++) {
		struct flock lock = { .l_type = order[i] % 2 ? F_WRLCK : F_RDLCK, .l_start = 2 * order[i], .l_len = 1 };
		if (fcntl(file, F_SETLK, &lock))
			return 0;
	}
	pid_t child = fork();
	if (child == 0) {
		for (int i = 0; i < MANY; i++) {
			struct flock lock = { .l_type = F_WRLCK, .l_start = 2 * i, .l_len = 1 };
			if (fcntl(file, F_GETLK, &lock) || lock.l_type == F_UNLCK)
				_exit(1);
			lock.l_type = F_WRLCK;
			lock.l_start++;
			if (fcntl(file, F_GETLK, &lock) || lock.l_type != F_UNLCK)
				_exit(2);
		}
		_exit(0);
	}
	int status;
	waitpid(child, &status, 0);
	shuffle();
	for (int i = 0; i < MANY; i++) {
		struct flock lock = { .l_type = F_UNLCK, .l_start = 2 * order[i], .l_len = 1 };
		if (fcntl(file, F_SETLK, &lock))
			return 0;
	}
	return status == 0 && !close(file);
}

/* Holds 500 locks on a file, each with a description of its own, and searches all for ever. */
static void hold_and_search(int number, int ready)
{
	int file = -1;
	for (int i = 0; i < 500; i++) {
		struct flock lock = { .l_type = F_WRLCK, .l_start = 2 * (500 * number + i), .l_len = 1 };
		file = open(named("crowded", 0), O_CREAT | O_RDWR, 0600);
		if (file < 0 || fcntl(file, F_OFD_SETLK, &lock))
			_exit(1);
	}
	if (write(ready, "x", 1) != 1)
		_exit(1);
	for (;;) {
		struct flock free = { .l_type = F_WRLCK, .l_start = 1 << 20, .l_len = 1 };
		if (fcntl(file, F_OFD_GETLK, &free) || free.l_type != F_UNLCK)
			_exit(1);
	}
}

/* Locks and unlocks a file while others search a crowd of locks on another file. */
static int locked_beside_a_crowd(void)
{
	int ready[2], file = open(named("quiet", 0), O_CREAT | O_RDWR, 0600), alive = 1;
	pid_t crowd[4];
	struct rusage before, after;
	char told;
	NEED(file >= 0 && pipe(ready) == 0);
	for (int i = 0; i < 4; i++) {
		crowd[i] = fork();
		if (crowd[i] == 0)
			hold_and_search(i, ready[1]);
	}
	close(ready[1]);
	for (int i = 0; i < 4; i++)
		NEED(read(ready[0], &told, 1) == 1);
	getrusage(RUSAGE_SELF, &before);
	for (int i = 0; i < 5000; i++) {
		struct flock whole = { .l_type = F_WRLCK };
		NEED(fcntl(file, F_SETLK, &whole) == 0);
		whole.l_type = F_UNLCK;
		NEED(fcntl(file, F_SETLK, &whole) == 0);
	}
	getrusage(RUSAGE_SELF, &after);
	for (int i = 0; i < 4; i++) {
		alive &= waitpid(crowd[i], NULL, WNOHANG) == 0;
		kill(crowd[i], SIGKILL);
		waitpid(crowd[i], NULL, 0);
	}
	close(ready[0]);
	return alive && !close(file) && after.ru_nvcsw == before.ru_nvcsw;
}

static socklen_t socket_address(int number, int is_abstract, struct sockaddr_un *address)
{
	memset(address, 0, sizeof *address);
	address->sun_family = AF_UNIX;
	strcpy(address->sun_path, named("socket", number));
	size_t length = strlen(address->sun_path);
	if (is_abstract)
		address->sun_path[0] = 0;
	return offsetof(struct sockaddr_un, sun_path) + length + !is_abstract;
}

static int sockets(int is_abstract)
{
	int listeners[MANY];
	struct sockaddr_un address;
	for (int i = 0; i < MANY; i++) {
		socklen_t length = socket_address(i, is_abstract, &address);
		listeners[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (bind(listeners[i], (struct sockaddr *)&address, length) || listen(listeners[i], 1))
			return 0;
	}
	shuffle();
	for (int i = 0; i < MANY; i++) {
		socklen_t length = socket_address(order[i], is_abstract, &address);
		int client = socket(AF_UNIX, SOCK_STREAM, 0);
		if (connect(client, (struct sockaddr *)&address, length) || close(listeners[order[i]]) || close(client))
			return 0;
		client = socket(AF_UNIX, SOCK_STREAM, 0);
		if (connect(client, (struct sockaddr *)&address, length) == 0 || errno != ECONNREFUSED || close(client))
			return 0;
		if (!is_abstract && unlink(named("socket", order[i])))
			return 0;
	}
	return 1;
}

static int fifos(void)
{
	int ends[MANY];
	for (int i = 0; i < MANY; i++)
		if (mkfifo(named("fifo", i), 0600) || (ends[i] = open(named("fifo", i), O_RDWR)) < 0)
			return 0;
	shuffle();
	for (int i = 0; i < MANY; i++) {
		char byte = 0, expected = (char)order[i];
		int writer = open(named("fifo", order[i]), O_WRONLY | O_NONBLOCK);
		if (write(writer, &expected, 1) != 1 || read(ends[order[i]], &byte, 1) != 1 || byte != expected)
			return 0;
		if (close(writer) || close(ends[order[i]]) || unlink(named("fifo", order[i])))
			return 0;
	}
	return 1;
}

static int timers(void)
{
	timer_t timer[MANY];
	struct sigevent silent = { .sigev_notify = SIGEV_NONE };
	struct itimerspec set = { .it_value.tv_sec = 1000 }, left;
	for (int i = 0; i < MANY; i++)
		if (timer_create(CLOCK_MONOTONIC, &silent, &timer[i]) || timer_settime(timer[i], 0, &set, NULL))
			return 0;
	shuffle();
	for (int i = 0; i < MANY; i++)
		if (timer_gettime(timer[order[i]], &left) || left.it_value.tv_sec < 900 || timer_delete(timer[order[i]]))
			return 0;
	return timer_gettime(timer[0], &left) == -1;
}

static int watched(void)
{
	int events[MANY], set = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = { .events = EPOLLIN };
	for (int i = 0; i < MANY; i++) {
		event.data.u32 = i;
		if ((events[i] = eventfd(0, EFD_NONBLOCK)) < 0 || epoll_ctl(set, EPOLL_CTL_ADD, events[i], &event))
			return 0;
	}
	shuffle();
	for (int i = 0; i < MANY; i++) {
		uint64_t one = 1;
		struct epoll_event found[2];
		if (write(events[order[i]], &one, sizeof one) != sizeof one || epoll_wait(set, found, 2, 1000) != 1)
			return 0;
		if (found[0].data.u32 != (unsigned)order[i])
			return 0;
		int drop = order[i] % 2 ? close(events[order[i]]) : epoll_ctl(set, EPOLL_CTL_DEL, events[order[i]], NULL);
		if (drop)
			return 0;
	}
	for (int i = 0; i < MANY; i += 2)
		close(events[i]);
	return !close(set);
}

static int areas(void)
{
	char *all = mmap(NULL, 2 * MANY * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int file = open(named("mapped", 0), O_CREAT | O_RDWR, 0600);
	if (all == MAP_FAILED || ftruncate(file, MANY * PAGE))
		return 0;
	shuffle();
	/* Areas of one file with gaps between them. The file also keeps a list of its mappings. */
	for (int i = 0; i < MANY; i++) {
		char *at = all + 2 * order[i] * PAGE;
		if (mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, order[i] * PAGE) != at)
			return 0;
		*at = (char)order[i];
	}
	shuffle();
	for (int i = 0; i < MANY; i++) {
		char *at = all + 2 * order[i] * PAGE;
		if (*at != (char)order[i] || munmap(at, PAGE))
			return 0;
	}
	return !munmap(all, 2 * MANY * PAGE) && !close(file);
}

static int processes(void)
{
	pid_t child[MANY / 2];
	for (int i = 0; i < MANY / 2; i++)
		if ((child[i] = fork()) == 0)
			for (;;)
				pause();
	int status;
	shuffle();
	for (int i = 0; i < MANY; i++) {
		if (order[i] >= MANY / 2)
			continue;
		pid_t one = child[order[i]];
		if (kill(one, SIGKILL) || waitpid(one, &status, 0) != one || kill(one, 0) != -1)
			return 0;
	}
	return waitpid(-1, &status, WNOHANG) == -1;
}

static int devices(void)
{
	for (int i = 0; i < MANY; i++)
		if (mknod(named("device", i), S_IFCHR | 0600, makedev(1, i)))
			return 0;
	shuffle();
	for (int i = 0; i < MANY; i++) {
		struct stat found;
		if (stat(named("device", order[i]), &found) || found.st_rdev != makedev(1, order[i]))
			return 0;
		if (unlink(named("device", order[i])))
			return 0;
	}
	return 1;
}

/* Lines of a file that is longer than one read gives. */
static int lines(const char *path)
{
	int count = 0;
	FILE *file = fopen(path, "re");
	NEED(file);
	for (int c; (c = getc(file)) != EOF;)
		count += c == '\n';
	fclose(file);
	return count;
}

/* A long listing of areas or descriptors must not use up the memory reserved for one call. */
static int listings(void)
{
	enum { AREAS = 2000, FILES = 3000 };
	int before = lines("/proc/self/maps"), file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	char *all = mmap(NULL, AREAS * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (file < 0 || all == MAP_FAILED)
		return 0;
	/* The same page of the file each time: neighbours do not join. */
	for (int i = 0; i < AREAS; i++)
		if (mmap(all + i * PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0) == MAP_FAILED)
			return 0;
	int told = lines("/proc/self/maps") - before;
	int many = lines("/proc/self/smaps") > AREAS * 20 && lines("/proc/self/numa_maps") >= AREAS;
	if (told < AREAS || !many || munmap(all, AREAS * PAGE))
		return 0;
	for (int i = 0; i < FILES; i++)
		if (dup(file) < 0)
			return 0;
	DIR *folder = opendir("/proc/self/fd");
	NEED(folder);
	int found = 0;
	while (readdir(folder))
		found++;
	closedir(folder);
	return found > FILES && close_range(file, ~0u, 0) == 0;
}

static int epoll;

static int watched_and_closed(void)
{
	struct epoll_event event = { .events = EPOLLIN };
	int one = eventfd(0, 0);
	return one >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, one, &event) == 0 && close(one) == 0;
}

static int armed_and_deleted(void)
{
	timer_t timer;
	struct sigevent silent = { .sigev_notify = SIGEV_NONE };
	struct itimerspec hour = { .it_value = { 3600, 0 } };
	return !timer_create(CLOCK_MONOTONIC, &silent, &timer) && !timer_settime(timer, 0, &hour, NULL) && !timer_delete(timer);
}

static int stored_and_unmapped(void)
{
	char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return 0;
	*page = 1;
	return munmap(page, PAGE) == 0;
}

static int written_and_unlinked(void)
{
	int file = open("/tmp/many/short-lived", O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	struct flock lock = { .l_type = F_WRLCK, .l_len = 1 };
	return file >= 0 && write(file, "x", 1) == 1 && fcntl(file, F_SETLK, &lock) == 0 && unlink("/tmp/many/short-lived") == 0 &&
		close(file) == 0;
}

static int connected_and_closed(void)
{
	int ends[4];
	if (pipe2(ends, O_CLOEXEC) || socketpair(AF_UNIX, SOCK_STREAM, 0, ends + 2) || write(ends[1], "x", 1) != 1 || write(ends[3], "x", 1) != 1)
		return 0;
	for (int i = 0; i < 4; i++)
		close(ends[i]);
	return 1;
}

/* Returns whether 10,000 rounds leave free memory as it was: less than 64 bytes per round may be
 * missing. */
static int leaves_nothing(int (*round)(void))
{
	for (int i = 0; i < 500; i++)
		if (!round())
			return 0;
	long before = figure("/proc/meminfo", "MemFree");
	for (int i = 0; i < 10000; i++)
		if (!round())
			return 0;
	return COMES_TRUE(figure("/proc/meminfo", "MemFree") > before - 600);
}

int main(void)
{
	struct rlimit limit = { 4096, 4096 };
	NEED(!setrlimit(RLIMIT_NOFILE, &limit));
	NEED(!mkdir("/tmp/many", 0700));
	PROMISE("200 files are renamed and removed in any order", files_and_names());
	PROMISE("200 attributes of a file are found and removed in any order", attributes());
	PROMISE("200 files are locked, and each lock ends with its own file", locked_files());
	PROMISE("200 pieces of a file are locked and let go of in any order", locked_pieces());
	PROMISE("10,000 calls for locks never wait for searches among 2,000 locks of another file", locked_beside_a_crowd());
	PROMISE("200 sockets with abstract names answer, each until it is closed", sockets(1));
	PROMISE("200 sockets with paths answer, each until it is closed", sockets(0));
	PROMISE("200 named pipes carry each their own bytes", fifos());
	PROMISE("200 timers tell what is left and end in any order", timers());
	PROMISE("200 descriptors are watched, and each event names its own", watched());
	PROMISE("200 areas of one file are mapped and unmapped in any order", areas());
	PROMISE("100 children end and are waited for in any order", processes());
	PROMISE("200 devices have names, and each its own number", devices());
	PROMISE("2,000 areas and 3,000 descriptors are listed", listings());
	epoll = epoll_create1(EPOLL_CLOEXEC);
	PROMISE("10,000 watched and closed descriptors leave nothing behind", leaves_nothing(watched_and_closed));
	PROMISE("nor do 10,000 timers", leaves_nothing(armed_and_deleted));
	PROMISE("nor 10,000 areas", leaves_nothing(stored_and_unmapped));
	PROMISE("nor 10,000 files with a lock", leaves_nothing(written_and_unlinked));
	PROMISE("nor 10,000 pipes and pairs of sockets", leaves_nothing(connected_and_closed));
	return conclude();
}
