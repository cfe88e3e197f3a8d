/* fanotify(7): groups with marks on files, mounts and file systems. They are told of events, or
 * asked for permission. */
#include "promise.h"

#include <linux/fanotify.h>
#include <sys/fanotify.h>
#include <sys/mount.h>
#include <sys/statfs.h>

#ifndef FAN_REPORT_TARGET_FID
#define FAN_REPORT_TARGET_FID 0x1000
#endif
#ifndef FAN_RENAME
#define FAN_RENAME 0x10000000
#endif
#ifndef FAN_MARK_IGNORE
#define FAN_MARK_IGNORE 0x400
#endif
#ifndef FAN_REPORT_PIDFD
#define FAN_REPORT_PIDFD 0x80
#endif

#define DIR "/tmp/fanotify"
#define FILE_PATH DIR "/file"

static char buffer[8192] __attribute__((aligned(8)));
static ssize_t filled;
static struct fanotify_event_metadata *event;

static int group(unsigned flags)
{
	int fd = fanotify_init(flags | FAN_NONBLOCK | FAN_CLOEXEC, O_RDONLY);
	NEED(fd >= 0);
	return fd;
}

static int marks(int fd, unsigned flags, uint64_t mask, const char *path)
{
	return fanotify_mark(fd, flags, mask, AT_FDCWD, path);
}

/* Reads what waits. Returns the number of events; the first is `event`. */
static int events(int fd)
{
	filled = read(fd, buffer, sizeof buffer);
	event = (void *)buffer;
	int count = 0;
	ssize_t left = filled;
	for (struct fanotify_event_metadata *at = event; FAN_EVENT_OK(at, left); at = FAN_EVENT_NEXT(at, left))
		count++;
	return count;
}

/* Closes the descriptors of the events that were read. */
static void done(void)
{
	ssize_t left = filled;
	for (struct fanotify_event_metadata *at = event; FAN_EVENT_OK(at, left); at = FAN_EVENT_NEXT(at, left))
		if (at->fd >= 0)
			close(at->fd);
}

/* Whether one event waits, with these bits. */
static int says(int fd, uint64_t mask)
{
	int count = events(fd), right = count == 1 && event->mask == mask;
	if (!right && count > 0)
		printf("# %d events, the first is %llx\n", count, (unsigned long long)event->mask);
	done();
	return right;
}

static int silent(int fd)
{
	int count = events(fd);
	if (count > 0)
		printf("# %d events, the first is %llx\n", count, (unsigned long long)event->mask);
	done();
	return count == 0 && errno == EAGAIN;
}

/* Opens, reads and closes a file. */
static void use(const char *path)
{
	char byte;
	int fd = open(path, O_RDONLY);
	NEED(fd >= 0);
	(void)!read(fd, &byte, 1);
	close(fd);
}

static void change(const char *path)
{
	int fd = open(path, O_WRONLY);
	NEED(fd >= 0 && write(fd, "y", 1) == 1);
	close(fd);
}

static int same_file(int fd, const char *path)
{
	struct stat one, other;
	return fstat(fd, &one) == 0 && stat(path, &other) == 0 && one.st_ino == other.st_ino && one.st_dev == other.st_dev;
}

static void arguments(void)
{
	FAILS_WITH("unknown flags of a group", fanotify_init(1u << 30, 0), EINVAL);
	FAILS_WITH("two classes", fanotify_init(FAN_CLASS_CONTENT | FAN_CLASS_PRE_CONTENT, 0), EINVAL);
	FAILS_WITH("handles and permissions", fanotify_init(FAN_CLASS_CONTENT | FAN_REPORT_FID, 0), EINVAL);
	FAILS_WITH("a name without its directory", fanotify_init(FAN_REPORT_NAME, 0), EINVAL);
	FAILS_WITH("a target without a name", fanotify_init(FAN_REPORT_FID | FAN_REPORT_DIR_FID | FAN_REPORT_TARGET_FID, 0), EINVAL);
	FAILS_WITH("a pidfd of a thread", fanotify_init(FAN_REPORT_PIDFD | FAN_REPORT_TID, 0), EINVAL);
	FAILS_WITH("an access mode of 3", fanotify_init(0, 3), EINVAL);
	FAILS_WITH("flags that no event's descriptor has", fanotify_init(0, O_CREAT), EINVAL);
	int fd = fanotify_init(FAN_CLOEXEC, O_RDONLY);
	PROMISE("FAN_CLOEXEC", fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC && (fcntl(fd, F_GETFL) & O_NONBLOCK) == 0);
	FAILS_WITH("no command", marks(fd, 0, FAN_OPEN, DIR), EINVAL);
	FAILS_WITH("two commands", marks(fd, FAN_MARK_ADD | FAN_MARK_REMOVE, FAN_OPEN, DIR), EINVAL);
	FAILS_WITH("no events", marks(fd, FAN_MARK_ADD, 0, DIR), EINVAL);
	FAILS_WITH("an unknown event", marks(fd, FAN_MARK_ADD, 1u << 25, DIR), EINVAL);
	FAILS_WITH("an event beyond 32 bits", marks(fd, FAN_MARK_ADD, 1ull << 32 | FAN_OPEN, DIR), EINVAL);
	FAILS_WITH("a mount and a file system", marks(fd, FAN_MARK_ADD | FAN_MARK_MOUNT | FAN_MARK_FILESYSTEM, FAN_OPEN, DIR), EINVAL);
	FAILS_WITH("two ways to ignore", marks(fd, FAN_MARK_ADD | FAN_MARK_IGNORED_MASK | FAN_MARK_IGNORE, FAN_OPEN, DIR), EINVAL);
	FAILS_WITH("a flush of the ignored mask", marks(fd, FAN_MARK_FLUSH | FAN_MARK_IGNORED_MASK, 0, DIR), EINVAL);
	FAILS_WITH("a permission in a group of notices", marks(fd, FAN_MARK_ADD, FAN_OPEN_PERM, DIR), EINVAL);
	FAILS_WITH("an event without a file in a group of descriptors", marks(fd, FAN_MARK_ADD, FAN_CREATE, DIR), EINVAL);
	FAILS_WITH("a closed descriptor", marks(1000, FAN_MARK_ADD, FAN_OPEN, DIR), EBADF);
	FAILS_WITH("another kind of file", marks(0, FAN_MARK_ADD, FAN_OPEN, DIR), EINVAL);
	FAILS_WITH("FAN_MARK_ONLYDIR and a file", marks(fd, FAN_MARK_ADD | FAN_MARK_ONLYDIR, FAN_OPEN, FILE_PATH), ENOTDIR);
	FAILS_WITH("no such file", marks(fd, FAN_MARK_ADD, FAN_OPEN, DIR "/none"), ENOENT);
	FAILS_WITH("no such mark to remove", marks(fd, FAN_MARK_REMOVE, FAN_OPEN, FILE_PATH), ENOENT);
	FAILS_WITH("FAN_MARK_IGNORE of a directory that does not survive", marks(fd, FAN_MARK_ADD | FAN_MARK_IGNORE, FAN_OPEN, DIR), EISDIR);
	FAILS_WITH("FAN_MARK_IGNORE of a mount that does not survive", marks(fd, FAN_MARK_ADD | FAN_MARK_IGNORE | FAN_MARK_MOUNT, FAN_OPEN, DIR), EINVAL);
	FAILS_WITH("an answer that is none", write(fd, &(struct fanotify_response){ 3, 7 }, 8), EINVAL);
	FAILS_WITH("an answer without a question", write(fd, &(struct fanotify_response){ 3, FAN_ALLOW }, 8), ENOENT);
	FAILS_WITH("a short answer", write(fd, "1234", 4), EINVAL);
	close(fd);
	int status;
	IN_CHILD(status, {
		NEED(setuid(1000) == 0);
		int plain = fanotify_init(0, 0) == -1 && errno == EPERM;
		int content = fanotify_init(FAN_CLASS_CONTENT, 0) == -1 && errno == EPERM;
		int unlimited = fanotify_init(FAN_REPORT_FID | FAN_UNLIMITED_QUEUE, 0) == -1 && errno == EPERM;
		int own = fanotify_init(FAN_REPORT_FID | FAN_NONBLOCK, 0);
		int marked = own >= 0 && marks(own, FAN_MARK_ADD, FAN_OPEN, FILE_PATH) == 0;
		int whole = marks(own, FAN_MARK_ADD | FAN_MARK_MOUNT, FAN_OPEN, FILE_PATH) == -1 && errno == EPERM;
		use(FILE_PATH);
		int told = events(own) == 1 && event->fd == FAN_NOFD && event->pid == getpid();
		_exit(plain | content << 1 | unlimited << 2 | marked << 3 | whole << 4 | told << 5);
	});
	PROMISE("without CAP_SYS_ADMIN: handles only, no marks on mounts, the own process' number", WEXITSTATUS(status) == 63);
}

static void notices(void)
{
	int fd = group(FAN_CLASS_NOTIF);
	PROMISE("a mark on a file", marks(fd, FAN_MARK_ADD, FAN_OPEN | FAN_ACCESS | FAN_MODIFY | FAN_CLOSE, FILE_PATH) == 0 && silent(fd));
	use(FILE_PATH);
	int queued = 0;
	PROMISE("FIONREAD counts the events' heads", ioctl(fd, FIONREAD, &queued) == 0 && queued == FAN_EVENT_METADATA_LEN);
	struct pollfd ready = { .fd = fd, .events = POLLIN };
	PROMISE("poll", poll(&ready, 1, 0) == 1 && ready.revents == POLLIN);
	FAILS_WITH("a buffer that is too small", read(fd, buffer, FAN_EVENT_METADATA_LEN - 1), EINVAL);
	PROMISE("equal events are one", events(fd) == 1 && event->mask == (FAN_OPEN | FAN_ACCESS | FAN_CLOSE_NOWRITE));
	PROMISE("its head", event->event_len == FAN_EVENT_METADATA_LEN && event->vers == FANOTIFY_METADATA_VERSION && event->metadata_len == FAN_EVENT_METADATA_LEN && event->pid == getpid());
	PROMISE("a descriptor of the file", same_file(event->fd, FILE_PATH));
	PROMISE("whose use is no event", read(event->fd, buffer + 4096, 1) == 1 && silent(fd));
	char text[64];
	snprintf(text, sizeof text, "/proc/self/fd/%d", event->fd);
	done();
	change(FILE_PATH);
	PROMISE("a change", says(fd, FAN_OPEN | FAN_MODIFY | FAN_CLOSE_WRITE));
	int status;
	IN_CHILD(status, { use(FILE_PATH); _exit(0); });
	use(FILE_PATH);
	PROMISE("events of two processes are two", events(fd) == 2 && event->pid != getpid());
	done();
	PROMISE("a part of a mark is removed", marks(fd, FAN_MARK_REMOVE, FAN_OPEN | FAN_CLOSE, FILE_PATH) == 0);
	use(FILE_PATH);
	PROMISE("and the rest stays", says(fd, FAN_ACCESS));
	PROMISE("ignored events", marks(fd, FAN_MARK_ADD | FAN_MARK_IGNORED_MASK, FAN_ACCESS, FILE_PATH) == 0);
	use(FILE_PATH);
	PROMISE("are not told", silent(fd));
	change(FILE_PATH);
	PROMISE("until the file is changed", says(fd, FAN_MODIFY));
	use(FILE_PATH);
	PROMISE("then they are told", says(fd, FAN_ACCESS));
	NEED(marks(fd, FAN_MARK_ADD | FAN_MARK_IGNORED_MASK | FAN_MARK_IGNORED_SURV_MODIFY, FAN_ACCESS, FILE_PATH) == 0);
	change(FILE_PATH);
	use(FILE_PATH);
	PROMISE("FAN_MARK_IGNORED_SURV_MODIFY", says(fd, FAN_MODIFY));
	PROMISE("FAN_MARK_FLUSH", marks(fd, FAN_MARK_FLUSH, 0, DIR) == 0);
	change(FILE_PATH);
	PROMISE("ends all", silent(fd));
	close(fd);
}

static void directories(void)
{
	int fd = group(FAN_CLASS_NOTIF);
	NEED(marks(fd, FAN_MARK_ADD, FAN_OPEN, DIR) == 0);
	use(FILE_PATH);
	int dir = open(DIR, O_RDONLY | O_DIRECTORY);
	close(dir);
	PROMISE("a directory's mark is for neither its files nor itself", silent(fd));
	NEED(marks(fd, FAN_MARK_ADD, FAN_EVENT_ON_CHILD, DIR) == 0);
	use(FILE_PATH);
	PROMISE("FAN_EVENT_ON_CHILD: its files", events(fd) == 1 && event->mask == FAN_OPEN && same_file(event->fd, FILE_PATH));
	done();
	use(DIR "/sub/inner");
	PROMISE("but no files of directories in it", silent(fd));
	NEED(marks(fd, FAN_MARK_ADD, FAN_ONDIR, DIR) == 0);
	dir = open(DIR, O_RDONLY | O_DIRECTORY);
	close(dir);
	PROMISE("FAN_ONDIR: itself", events(fd) == 1 && event->mask == FAN_OPEN && same_file(event->fd, DIR));
	done();
	NEED(rename(FILE_PATH, DIR "/other") == 0);
	use(DIR "/other");
	PROMISE("a file with a new name", says(fd, FAN_OPEN));
	NEED(rename(DIR "/other", FILE_PATH) == 0);
	NEED(marks(fd, FAN_MARK_ADD | FAN_MARK_IGNORE | FAN_MARK_IGNORED_SURV_MODIFY, FAN_OPEN | FAN_EVENT_ON_CHILD, DIR) == 0);
	use(FILE_PATH);
	PROMISE("FAN_MARK_IGNORE with FAN_EVENT_ON_CHILD: not of its files", silent(fd));
	dir = open(DIR, O_RDONLY | O_DIRECTORY);
	close(dir);
	PROMISE("but of itself", says(fd, FAN_OPEN));
	FAILS_WITH("a mark that ignores so does not do it in the old way again", marks(fd, FAN_MARK_ADD | FAN_MARK_IGNORED_MASK, FAN_OPEN, DIR), EEXIST);
	close(fd);
}

static void wholes(void)
{
	NEED(mkdir(DIR "/mount", 0755) == 0 && mount("none", DIR "/mount", "tmpfs", 0, NULL) == 0);
	int made = open(DIR "/mount/a", O_CREAT | O_RDWR, 0644);
	NEED(made >= 0 && write(made, "x", 1) == 1 && close(made) == 0);
	NEED(mkdir(DIR "/again", 0755) == 0 && mount(DIR "/mount", DIR "/again", NULL, MS_BIND, NULL) == 0);
	int fd = group(FAN_CLASS_NOTIF);
	PROMISE("a mark on a mount", marks(fd, FAN_MARK_ADD | FAN_MARK_MOUNT, FAN_OPEN, DIR "/mount") == 0);
	use(DIR "/mount/a");
	PROMISE("tells of its files", events(fd) == 1 && event->mask == FAN_OPEN && same_file(event->fd, DIR "/mount/a"));
	done();
	use(DIR "/again/a");
	PROMISE("and not of the same files on another mount", silent(fd));
	NEED(marks(fd, FAN_MARK_ADD | FAN_MARK_IGNORED_MASK, FAN_OPEN, DIR "/mount/a") == 0);
	use(DIR "/mount/a");
	PROMISE("what a mark on the file ignores", silent(fd));
	FAILS_WITH("no event without a file on a mount", marks(fd, FAN_MARK_ADD | FAN_MARK_MOUNT, FAN_ATTRIB, DIR "/mount"), EINVAL);
	NEED(marks(fd, FAN_MARK_FLUSH | FAN_MARK_MOUNT, 0, DIR) == 0 && marks(fd, FAN_MARK_FLUSH, 0, DIR) == 0);
	PROMISE("a mark on a file system", marks(fd, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, FAN_CLOSE_WRITE, DIR "/mount") == 0);
	change(DIR "/again/a");
	PROMISE("tells of its files on each mount", says(fd, FAN_CLOSE_WRITE));
	change(FILE_PATH);
	PROMISE("and of no others", silent(fd));
	PROMISE("a mounted file system can be marked and unmounted", umount(DIR "/again") == 0 && umount(DIR "/mount") == 0);
	close(fd);
}

/* Answers the next question, which must be `mask`. Runs in a child. */
static void answers(int fd, uint64_t mask, unsigned response)
{
	struct pollfd ready = { .fd = fd, .events = POLLIN };
	NEED(poll(&ready, 1, 10000) == 1 && events(fd) == 1);
	NEED(event->mask == mask && same_file(event->fd, FILE_PATH));
	NEED(write(fd, &(struct fanotify_response){ event->fd, response }, 8) == 8);
	done();
}

static void permissions(void)
{
	int fd = group(FAN_CLASS_CONTENT), status;
	PROMISE("a question about opening", marks(fd, FAN_MARK_ADD, FAN_OPEN_PERM, FILE_PATH) == 0);
	pid_t answerer = fork();
	NEED(answerer >= 0);
	if (answerer == 0) {
		answers(fd, FAN_OPEN_PERM, FAN_ALLOW);
		answers(fd, FAN_OPEN_PERM, FAN_DENY);
		_exit(0);
	}
	int opened = open(FILE_PATH, O_RDONLY);
	PROMISE("is allowed", opened >= 0);
	FAILS_WITH("or denied", open(FILE_PATH, O_RDWR | O_TRUNC), EPERM);
	struct stat st;
	PROMISE("and then nothing has changed", fstat(opened, &st) == 0 && st.st_size > 0);
	NEED(waitpid(answerer, &status, 0) == answerer && status == 0);
	NEED(marks(fd, FAN_MARK_FLUSH, 0, DIR) == 0 && marks(fd, FAN_MARK_ADD, FAN_ACCESS_PERM, FILE_PATH) == 0);
	answerer = fork();
	NEED(answerer >= 0);
	if (answerer == 0) {
		answers(fd, FAN_ACCESS_PERM, FAN_DENY);
		answers(fd, FAN_ACCESS_PERM, FAN_ALLOW);
		_exit(0);
	}
	char byte;
	FAILS_WITH("a question about reading", read(opened, &byte, 1), EPERM);
	PROMISE("that is allowed", pread(opened, &byte, 1, 0) == 1);
	NEED(waitpid(answerer, &status, 0) == answerer && status == 0);
	pid_t reader = fork();
	NEED(reader >= 0);
	if (reader == 0)
		_exit(read(opened, &byte, 1) == 1 ? 0 : 1);
	struct pollfd ready = { .fd = fd, .events = POLLIN };
	NEED(poll(&ready, 1, 10000) == 1);
	NEED(kill(reader, SIGKILL) == 0 && waitpid(reader, &status, 0) == reader);
	PROMISE("a killed reader's question is gone", WIFSIGNALED(status) && silent(fd));
	reader = fork();
	NEED(reader >= 0);
	if (reader == 0) {
		close(fd);
		_exit(read(opened, &byte, 1) == 1 ? 0 : 1);
	}
	NEED(poll(&ready, 1, 10000) == 1 && events(fd) == 1);
	done();
	close(fd);
	NEED(waitpid(reader, &status, 0) == reader);
	PROMISE("a closed group allows what it was asked", WIFEXITED(status) && WEXITSTATUS(status) == 0);
	close(opened);
}

static void programs(void)
{
	int fd = group(FAN_CLASS_NOTIF), status;
	NEED(marks(fd, FAN_MARK_ADD, FAN_OPEN_EXEC, "/proc/self/exe") == 0);
	char *const again[] = { "fanotify", "nothing", NULL };
	int own = open("/proc/self/exe", O_RDONLY);
	close(own);
	PROMISE("FAN_OPEN_EXEC: not for open(2)", silent(fd));
	IN_CHILD(status, { execv("/proc/self/exe", again); _exit(1); });
	PROMISE("but for execve(2)", status == 0 && says(fd, FAN_OPEN_EXEC));
	NEED(marks(fd, FAN_MARK_ADD, FAN_OPEN, "/proc/self/exe") == 0);
	IN_CHILD(status, { execv("/proc/self/exe", again); _exit(1); });
	PROMISE("which is also FAN_OPEN", status == 0 && says(fd, FAN_OPEN | FAN_OPEN_EXEC));
	close(fd);
}

static struct fanotify_event_info_fid *record(int nth)
{
	char *at = buffer + event->metadata_len;
	for (; nth > 0; nth--)
		at += ((struct fanotify_event_info_header *)at)->len;
	return at < buffer + event->event_len ? (void *)at : NULL;
}

/* Whether the nth record of the event has this kind, the handle of the file, and the name. */
static int tells(int nth, int kind, const char *path, const char *name)
{
	struct fanotify_event_info_fid *info = record(nth);
	struct { struct file_handle head; unsigned char bytes[128]; } own = { .head.handle_bytes = 128 };
	struct statfs fs;
	int id;
	NEED(name_to_handle_at(AT_FDCWD, path, &own.head, &id, 0) == 0 && statfs(path, &fs) == 0);
	if (!info || info->hdr.info_type != kind || memcmp(&info->fsid, &fs.f_fsid, sizeof fs.f_fsid) != 0)
		return 0;
	struct file_handle *handle = (void *)info->handle;
	if (handle->handle_bytes != own.head.handle_bytes || handle->handle_type != own.head.handle_type || memcmp(handle->f_handle, own.head.f_handle, own.head.handle_bytes) != 0)
		return 0;
	return !name || strcmp((char *)handle->f_handle + handle->handle_bytes, name) == 0;
}

static void handles(void)
{
	NEED(mkdir(DIR "/h", 0755) == 0 && mount("none", DIR "/h", "tmpfs", 0, NULL) == 0);
	int fd = group(FAN_REPORT_FID);
	NEED(marks(fd, FAN_MARK_ADD, FAN_CREATE | FAN_DELETE | FAN_MOVE | FAN_DELETE_SELF | FAN_ATTRIB | FAN_ONDIR, DIR "/h") == 0);
	close(open(DIR "/h/a", O_CREAT | O_RDWR, 0644));
	PROMISE("FAN_REPORT_FID: a new name, by the directory's handle", events(fd) == 1 && event->mask == FAN_CREATE && event->fd == FAN_NOFD && tells(0, FAN_EVENT_INFO_TYPE_FID, DIR "/h", NULL));
	NEED(chmod(DIR "/h", 0700) == 0);
	PROMISE("a changed directory", says(fd, FAN_ATTRIB | FAN_ONDIR));
	close(fd);
	fd = group(FAN_REPORT_DFID_NAME);
	NEED(marks(fd, FAN_MARK_ADD, FAN_CREATE | FAN_DELETE | FAN_MOVE | FAN_OPEN | FAN_ONDIR | FAN_EVENT_ON_CHILD, DIR "/h") == 0);
	NEED(mkdir(DIR "/h/d", 0755) == 0);
	PROMISE("FAN_REPORT_DFID_NAME: a new directory", events(fd) == 1 && event->mask == (FAN_CREATE | FAN_ONDIR) && tells(0, FAN_EVENT_INFO_TYPE_DFID_NAME, DIR "/h", "d") && !record(1));
	close(open(DIR "/h/a", O_RDONLY));
	PROMISE("an opened file's name", events(fd) == 1 && event->mask == FAN_OPEN && tells(0, FAN_EVENT_INFO_TYPE_DFID_NAME, DIR "/h", "a"));
	int dir = open(DIR "/h", O_RDONLY);
	PROMISE("the directory itself", events(fd) == 1 && event->mask == (FAN_OPEN | FAN_ONDIR) && tells(0, FAN_EVENT_INFO_TYPE_DFID_NAME, DIR "/h", "."));
	close(dir);
	NEED(rename(DIR "/h/a", DIR "/h/b") == 0);
	PROMISE("a rename has two events", events(fd) == 2 && event->mask == FAN_MOVED_FROM && tells(0, FAN_EVENT_INFO_TYPE_DFID_NAME, DIR "/h", "a"));
	NEED(unlink(DIR "/h/b") == 0);
	PROMISE("a removed name", events(fd) == 1 && event->mask == FAN_DELETE && tells(0, FAN_EVENT_INFO_TYPE_DFID_NAME, DIR "/h", "b"));
	close(fd);
	fd = group(FAN_REPORT_DFID_NAME | FAN_REPORT_FID | FAN_REPORT_TARGET_FID);
	NEED(marks(fd, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, FAN_CREATE | FAN_RENAME, DIR "/h") == 0);
	close(open(DIR "/h/c", O_CREAT | O_RDWR, 0644));
	PROMISE("FAN_REPORT_TARGET_FID on a file system", events(fd) == 1 && tells(0, FAN_EVENT_INFO_TYPE_DFID_NAME, DIR "/h", "c") && tells(1, FAN_EVENT_INFO_TYPE_FID, DIR "/h/c", NULL));
	NEED(rename(DIR "/h/c", DIR "/h/d/e") == 0);
	PROMISE("FAN_RENAME has both names", events(fd) == 1 && event->mask == FAN_RENAME && tells(0, 10, DIR "/h", "c") && tells(1, 12, DIR "/h/d", "e") && tells(2, FAN_EVENT_INFO_TYPE_FID, DIR "/h/d/e", NULL));
	FAILS_WITH("such a group is strict about directories", marks(fd, FAN_MARK_ADD, FAN_CREATE, DIR "/h/d/e"), ENOTDIR);
	PROMISE("a file without a handle", marks(fd, FAN_MARK_ADD, FAN_OPEN, "/proc/self/stat") == -1 && (errno == EOPNOTSUPP || errno == ENODEV));
	close(fd);
	fd = group(FAN_REPORT_FID);
	NEED(marks(fd, FAN_MARK_ADD, FAN_DELETE_SELF | FAN_OPEN, DIR "/h/d/e") == 0);
	NEED(unlink(DIR "/h/d/e") == 0);
	PROMISE("the end of a file", says(fd, FAN_DELETE_SELF));
	close(fd);
	fd = group(FAN_REPORT_PIDFD);
	NEED(marks(fd, FAN_MARK_ADD, FAN_OPEN, FILE_PATH) == 0);
	use(FILE_PATH);
	int told = events(fd) == 1 && event->event_len == FAN_EVENT_METADATA_LEN + 8;
	struct fanotify_event_info_header *head = (void *)(event + 1);
	int pidfd = *(int *)(head + 1);
	PROMISE("FAN_REPORT_PIDFD", told && head->info_type == 4 && head->len == 8 && syscall(SYS_pidfd_send_signal, pidfd, 0, NULL, 0) == 0);
	done();
	close(pidfd);
	close(fd);
	NEED(umount(DIR "/h") == 0);
}

static int listed(int fd, const char *text)
{
	char path[64], lines[1024] = "";
	snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
	int info = open(path, O_RDONLY);
	NEED(info >= 0 && read(info, lines, sizeof lines - 1) > 0);
	close(info);
	return strstr(lines, text) != NULL;
}

static void limits(void)
{
	int fd = group(FAN_CLASS_NOTIF);
	char line[128];
	struct stat st;
	NEED(stat(FILE_PATH, &st) == 0);
	NEED(marks(fd, FAN_MARK_ADD, FAN_OPEN, FILE_PATH) == 0);
	PROMISE("/proc/PID/fdinfo shows the group", listed(fd, "fanotify flags:3 event-flags:"));
	snprintf(line, sizeof line, "fanotify ino:%lx sdev:", (long)st.st_ino);
	PROMISE("and its marks", listed(fd, line) && listed(fd, " mflags:0 mask:20 ignored_mask:0"));
	close(fd);
	int most = 0, setting = open("/proc/sys/fs/fanotify/max_queued_events", O_RDWR);
	NEED(setting >= 0 && read(setting, line, sizeof line - 1) > 0);
	most = atoi(line);
	PROMISE("/proc/sys/fs/fanotify", most > 0 && access("/proc/sys/fs/fanotify/max_user_groups", R_OK) == 0 && access("/proc/sys/fs/fanotify/max_user_marks", R_OK) == 0);
	NEED(pwrite(setting, "2", 1, 0) == 1);
	fd = group(FAN_CLASS_NOTIF);
	NEED(marks(fd, FAN_MARK_ADD, FAN_OPEN | FAN_EVENT_ON_CHILD, DIR) == 0);
	char path[64];
	for (int nth = 0; nth < 5; nth++) {
		snprintf(path, sizeof path, DIR "/many%d", nth);
		close(open(path, O_CREAT | O_RDWR, 0644));
	}
	int count = events(fd);
	struct fanotify_event_metadata *last = event;
	for (int nth = 1; nth < count; nth++)
		last = (void *)((char *)last + last->event_len);
	PROMISE("lost events are one event", count == 3 && last->mask == FAN_Q_OVERFLOW && last->fd == FAN_NOFD);
	done();
	use(FILE_PATH);
	PROMISE("and later ones are told again", says(fd, FAN_OPEN));
	snprintf(line, sizeof line, "%d", most);
	NEED(pwrite(setting, line, strlen(line), 0) > 0);
	close(setting);
	close(fd);
}

int main(int count, char **arguments_of)
{
	(void)arguments_of;
	if (count > 1)
		return 0;
	umask(0);
	NEED(mkdir(DIR, 0755) == 0 && mkdir(DIR "/sub", 0755) == 0);
	int fd = open(FILE_PATH, O_CREAT | O_RDWR, 0644);
	NEED(fd >= 0 && write(fd, "hello", 5) == 5 && close(fd) == 0);
	fd = open(DIR "/sub/inner", O_CREAT | O_RDWR, 0644);
	NEED(fd >= 0 && close(fd) == 0);
	arguments();
	notices();
	directories();
	wholes();
	permissions();
	programs();
	handles();
	limits();
	return conclude();
}
