/* Namespaces: checks of conditions in a child, the child's files below /proc, and root in a user
 * namespace. */
#include <grp.h>
#include <sys/prctl.h>

#define NS_GET_PARENT 0xb702
#define NS_GET_NSTYPE 0xb703
#define USER 1000

/* Prints the line if its condition does not hold, and returns its number. */
#define HOLDS(condition)                                                                            \
	do {                                                                                        \
		errno = 0;                                                                          \
		if (!(condition)) {                                                                 \
			fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno);   \
			return __LINE__;                                                            \
		}                                                                                   \
	} while (0)
#define REFUSED(call, error) HOLDS((long)(call) == -1 && errno == (error))

/* Whether a child ends with 0. */
static inline int ends_well(pid_t child)
{
	int status = -1;
	return waitpid(child, &status, __WALL) == child && status == 0;
}

/* Whether `part` holds in a child that begins as `user`. */
static inline int in_child(int (*part)(void), int user)
{
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		if (user && (setgroups(0, NULL) || setresgid(user, user, user) || setresuid(user, user, user)))
			_exit(2);
		prctl(PR_SET_DUMPABLE, 1);
		_exit(part() ? 1 : 0);
	}
	return ends_well(child);
}

static inline int writes(const char *path, const char *text)
{
	int file = open(path, O_WRONLY | O_CLOEXEC);
	if (file < 0)
		return -1;
	ssize_t done = write(file, text, strlen(text));
	int error = errno;
	close(file);
	errno = error;
	return done == (ssize_t)strlen(text) ? 0 : -1;
}

static inline char *reads(const char *path)
{
	static char text[16384];
	int file = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
	close(file);
	text[length < 0 ? 0 : length] = 0;
	return text;
}

/* The number in a link of /proc/PID/ns, 0 for none. */
static inline unsigned long number_of(const char *path)
{
	char text[64] = { 0 };
	if (readlink(path, text, sizeof text - 1) < 0)
		return 0;
	char *digits = strchr(text, '[');
	return digits ? strtoul(digits + 1, NULL, 10) : 0;
}

/* A user namespace in which USER is user and group 0. */
static inline int become_root_inside(void)
{
	char map[64];
	snprintf(map, sizeof map, "0 %d 1", USER);
	return unshare(CLONE_NEWUSER) || writes("/proc/self/uid_map", map) || writes("/proc/self/setgroups", "deny") ||
	       writes("/proc/self/gid_map", map);
}
