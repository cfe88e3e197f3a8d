/*
 * Capabilities (capabilities(7)): the bounding set, ambient ones, the secure bits, errors of capset
 * and capget, and the capabilities that a program has after execve. Needs root.
 */
#include "promise.h"
#include <grp.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sys/prctl.h>
#include <sys/xattr.h>

enum { USER = 1000, LAST = 40 };

struct sets {
	uint64_t effective, permitted, inheritable;
};

static uint64_t bit(int capability)
{
	return 1ull << capability;
}

static long get(pid_t of, struct sets *sets)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, of };
	struct __user_cap_data_struct data[2] = { { 0 } };
	long result = syscall(SYS_capget, &header, data);
	*sets = (struct sets){ data[0].effective | (uint64_t)data[1].effective << 32, data[0].permitted | (uint64_t)data[1].permitted << 32,
			       data[0].inheritable | (uint64_t)data[1].inheritable << 32 };
	return result;
}

static long set(pid_t of, struct sets sets)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, of };
	struct __user_cap_data_struct data[2] = { { sets.effective, sets.permitted, sets.inheritable },
						  { sets.effective >> 32, sets.permitted >> 32, sets.inheritable >> 32 } };
	return syscall(SYS_capset, &header, data);
}

static struct sets own(void)
{
	struct sets sets;
	NEED(get(0, &sets) == 0);
	return sets;
}

/* Removes capabilities from the effective, permitted and inheritable sets. */
static void lose(uint64_t lost)
{
	struct sets sets = own();
	sets.effective &= ~lost;
	sets.permitted &= ~lost;
	sets.inheritable &= ~lost;
	NEED(set(0, sets) == 0);
}

static void inherit(uint64_t inherited)
{
	struct sets sets = own();
	sets.inheritable |= inherited;
	NEED(set(0, sets) == 0);
}

static void become_user(void)
{
	NEED(setgroups(0, NULL) == 0 && setresgid(USER, USER, USER) == 0 && setresuid(USER, USER, USER) == 0);
}

static int raise_ambient(int capability)
{
	return prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, (long)capability, 0L, 0L);
}

static int is_ambient(int capability)
{
	return prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, (long)capability, 0L, 0L);
}

/* Returns a mask of /proc/self/status. */
static uint64_t shown(const char *name)
{
	char line[256];
	unsigned long long value = ~0ull;
	FILE *file = fopen("/proc/self/status", "re");
	NEED(file);
	while (fgets(line, sizeof line, file))
		if (!strncmp(line, name, strlen(name)))
			sscanf(line + strlen(name) + 1, "%llx", &value);
	fclose(file);
	return value;
}

/* Runs statements in a child; returns whether they end with _exit(0), or with a call of `says`
 * that succeeds. */
#define WELL(...) ({ int status_; IN_CHILD(status_, __VA_ARGS__; _exit(1)); WIFEXITED(status_) && WEXITSTATUS(status_) == 0; })

/* Executes this program again. It exits with 0 if its set ("effective", "permitted" or "bounding")
 * has the capability or lacks it, as `how` says. */
static void says(const char *set_name, const char *how, int capability)
{
	char number[8];
	snprintf(number, sizeof number, "%d", capability);
	execl("/proc/self/exe", "capabilities", set_name, how, number, (char *)NULL);
	_exit(3);
}

static int answer(char **argv)
{
	struct sets sets;
	uint64_t of = get(0, &sets) != 0	      ? 0
		      : !strcmp(argv[1], "effective") ? sets.effective
		      : !strcmp(argv[1], "permitted") ? sets.permitted
						      : shown("CapBnd");
	int has = (of & bit(atoi(argv[3]))) != 0;
	return has != !strcmp(argv[2], "has");
}

static void bounding(void)
{
	PROMISE("every capability is in the bounding set at first", prctl(PR_CAPBSET_READ, (long)CAP_KILL) == 1 && shown("CapBnd") == bit(LAST + 1) - 1);
	FAILS_WITH("and no other", prctl(PR_CAPBSET_READ, (long)LAST + 23), EINVAL);
	PROMISE("one that was dropped is not in it, and still in effect",
		WELL(_exit(!(prctl(PR_CAPBSET_DROP, (long)CAP_KILL) == 0 && prctl(PR_CAPBSET_READ, (long)CAP_KILL) == 0 && own().effective & bit(CAP_KILL) &&
			     shown("CapBnd") == (bit(LAST + 1) - 1 - bit(CAP_KILL))))));
	PROMISE("root does not get it by execve", WELL(NEED(prctl(PR_CAPBSET_DROP, (long)CAP_KILL) == 0); says("permitted", "lacks", CAP_KILL)));
	PROMISE("but all that was only lost", WELL(lose(bit(CAP_KILL)); says("effective", "has", CAP_KILL)));
	PROMISE("unless it may gain no privileges", WELL(lose(bit(CAP_KILL)); NEED(prctl(PR_SET_NO_NEW_PRIVS, 1L, 0L, 0L, 0L) == 0); says("permitted", "lacks", CAP_KILL)));
	PROMISE("a child has its parent's bounding set", WELL(NEED(prctl(PR_CAPBSET_DROP, (long)CAP_KILL) == 0);
		_exit(!WELL(_exit(prctl(PR_CAPBSET_READ, (long)CAP_KILL) != 0)))));
	PROMISE("one that is inheritable stays with root", WELL(inherit(bit(CAP_KILL)); NEED(prctl(PR_CAPBSET_DROP, (long)CAP_KILL) == 0);
		says("effective", "has", CAP_KILL)));
	PROMISE("one outside does not become inheritable", WELL(NEED(prctl(PR_CAPBSET_DROP, (long)CAP_KILL) == 0);
		struct sets sets = own(); sets.inheritable |= bit(CAP_KILL); _exit(!(set(0, sets) == -1 && errno == EPERM))));
	PROMISE("dropping needs CAP_SETPCAP", WELL(lose(bit(CAP_SETPCAP)); _exit(!(prctl(PR_CAPBSET_DROP, (long)CAP_KILL) == -1 && errno == EPERM))));
	FAILS_WITH("and a capability", prctl(PR_CAPBSET_DROP, (long)LAST + 23), EINVAL);
	PROMISE("a new user namespace has a whole one", WELL(NEED(prctl(PR_CAPBSET_DROP, (long)CAP_KILL) == 0 && unshare(CLONE_NEWUSER) == 0);
		_exit(prctl(PR_CAPBSET_READ, (long)CAP_KILL) != 1)));
}

static void ambient(void)
{
	PROMISE("none is ambient at first", is_ambient(CAP_KILL) == 0 && shown("CapAmb") == 0);
	FAILS_WITH("one that is not inheritable does not become that", raise_ambient(CAP_KILL), EPERM);
	PROMISE("one that is permitted and inheritable does", WELL(inherit(bit(CAP_KILL)); _exit(!(raise_ambient(CAP_KILL) == 0 && is_ambient(CAP_KILL) == 1 && shown("CapAmb") == bit(CAP_KILL)))));
	PROMISE("a user keeps it through execve", WELL(inherit(bit(CAP_KILL)); NEED(prctl(PR_SET_KEEPCAPS, 1L) == 0); become_user();
		NEED(raise_ambient(CAP_KILL) == 0); says("effective", "has", CAP_KILL)));
	PROMISE("and nothing else", WELL(inherit(bit(CAP_KILL)); NEED(prctl(PR_SET_KEEPCAPS, 1L) == 0); become_user(); NEED(raise_ambient(CAP_KILL) == 0);
		says("permitted", "lacks", CAP_SYS_ADMIN)));
	PROMISE("who stops being root loses it", WELL(inherit(bit(CAP_KILL)); NEED(raise_ambient(CAP_KILL) == 0 && prctl(PR_SET_KEEPCAPS, 1L) == 0); become_user();
		_exit(is_ambient(CAP_KILL) != 0)));
	PROMISE("it goes with what is inheritable", WELL(inherit(bit(CAP_KILL)); NEED(raise_ambient(CAP_KILL) == 0); struct sets sets = own(); sets.inheritable = 0;
		NEED(set(0, sets) == 0); _exit(is_ambient(CAP_KILL) != 0)));
	PROMISE("it can be taken back", WELL(inherit(bit(CAP_KILL)); NEED(raise_ambient(CAP_KILL) == 0 && prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_LOWER, (long)CAP_KILL, 0L, 0L) == 0);
		_exit(is_ambient(CAP_KILL) != 0)));
	PROMISE("and all at once", WELL(inherit(bit(CAP_KILL) | bit(CAP_CHOWN)); NEED(raise_ambient(CAP_KILL) == 0 && raise_ambient(CAP_CHOWN) == 0);
		NEED(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0L, 0L, 0L) == 0); _exit(is_ambient(CAP_KILL) + is_ambient(CAP_CHOWN) != 0)));
	FAILS_WITH("with nothing beside", prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 1L, 0L, 0L), EINVAL);
	FAILS_WITH("of capabilities that exist", is_ambient(LAST + 23), EINVAL);
	FAILS_WITH("by operations that exist", prctl(PR_CAP_AMBIENT, 9L, (long)CAP_KILL, 0L, 0L), EINVAL);
}

static void secure_bits(void)
{
	PROMISE("no secure bit is set at first", prctl(PR_GET_SECUREBITS) == 0);
	PROMISE("root gets nothing by execve where it means nothing", WELL(NEED(prctl(PR_SET_SECUREBITS, (long)SECBIT_NOROOT) == 0); says("permitted", "lacks", CAP_KILL)));
	PROMISE("a change of user changes nothing where it is no fix", WELL(NEED(prctl(PR_SET_SECUREBITS, (long)SECBIT_NO_SETUID_FIXUP) == 0);
		NEED(setresuid(USER, USER, USER) == 0); _exit(!(own().effective & bit(CAP_KILL)))));
	PROMISE("keeping is one of them, until execve", WELL(NEED(prctl(PR_SET_KEEPCAPS, 1L) == 0); _exit(prctl(PR_GET_SECUREBITS) != SECBIT_KEEP_CAPS)));
	PROMISE("and can be forbidden for good", WELL(NEED(prctl(PR_SET_SECUREBITS, (long)SECBIT_KEEP_CAPS_LOCKED) == 0);
		_exit(!(prctl(PR_SET_KEEPCAPS, 1L) == -1 && errno == EPERM && prctl(PR_SET_SECUREBITS, 0L) == -1 && errno == EPERM))));
	PROMISE("none becomes ambient where that is off", WELL(inherit(bit(CAP_KILL)); NEED(prctl(PR_SET_SECUREBITS, (long)SECBIT_NO_CAP_AMBIENT_RAISE) == 0);
		_exit(!(raise_ambient(CAP_KILL) == -1 && errno == EPERM))));
	PROMISE("they need CAP_SETPCAP", WELL(lose(bit(CAP_SETPCAP)); _exit(!(prctl(PR_SET_SECUREBITS, 0L) == -1 && errno == EPERM))));
	FAILS_WITH("others do not exist", prctl(PR_SET_SECUREBITS, 0x100L), EPERM);
}

static void sets(void)
{
	struct sets some, mine = own();
	FAILS_WITH("a process is named by its number", get(-1, &some), EINVAL);
	FAILS_WITH("which exists", get(1 << 22, &some), ESRCH);
	FAILS_WITH("nobody sets another's", set(getppid(), mine), EPERM);
	FAILS_WITH("nor by a negative number its own", set(-getpid(), mine), EPERM);
	PROMISE("root may inherit what is not permitted any more", WELL(lose(bit(CAP_KILL)); struct sets now = own(); now.inheritable |= bit(CAP_KILL); _exit(set(0, now) != 0)));
	PROMISE("but not without CAP_SETPCAP", WELL(lose(bit(CAP_KILL) | bit(CAP_SETPCAP)); struct sets now = own(); now.inheritable |= bit(CAP_KILL);
		_exit(!(set(0, now) == -1 && errno == EPERM))));
	FAILS_WITH("gaining no privileges is a yes alone", prctl(PR_SET_NO_NEW_PRIVS, 1L, 1L, 0L, 0L), EINVAL);
	FAILS_WITH("and asked without more", prctl(PR_GET_NO_NEW_PRIVS, 1L, 0L, 0L, 0L), EINVAL);
}

/* Becomes a user who has one capability, and no other. */
static void become_user_with(int capability)
{
	NEED(prctl(PR_SET_KEEPCAPS, 1L) == 0);
	become_user();
	NEED(set(0, (struct sets){ bit(capability), bit(capability), 0 }) == 0);
}

/* Whether a user with this capability, and no other, succeeds; otherwise the error is `error`. */
#define SUCCEEDS(capability, call) WELL(become_user_with(capability); _exit((call) < 0))
#define REFUSED(capability, call, error) WELL(become_user_with(capability); errno = 0; _exit(!((call) < 0 && errno == (error))))

/* Makes a file, or a directory, of root and group 5. */
static const char *of_root(const char *path, mode_t mode)
{
	if (S_ISDIR(mode))
		NEED(mkdir(path, 0700) == 0);
	else
		NEED(mknod(path, S_IFREG, 0) == 0);
	NEED(chown(path, 0, 5) == 0 && chmod(path, mode & 07777) == 0);
	return path;
}

static mode_t mode_of(const char *path)
{
	struct stat told;
	NEED(stat(path, &told) == 0);
	return told.st_mode & 07777;
}

/* Each right over files is a capability of its own. */
static void files(void)
{
	char directory[] = "/tmp/capabilities-XXXXXX";
	NEED(mkdtemp(directory) && chmod(directory, 0777) == 0 && chdir(directory) == 0);
	const char *file = of_root("file", S_IFREG | 0600), *hidden = of_root("hidden", S_IFDIR | 0700);
	of_root("hidden/file", S_IFREG | 0600);
	of_root("sticky", S_IFDIR | 01777);
	of_root("sticky/file", S_IFREG | 0644);
	NEED(mknod("own", S_IFREG | 0700, 0) == 0 && chown("own", USER, 5) == 0);

	PROMISE("CAP_CHOWN gives files away", SUCCEEDS(CAP_CHOWN, chown(file, 7, 8)));
	NEED(chown(file, 0, 5) == 0);
	PROMISE("CAP_DAC_OVERRIDE does not", REFUSED(CAP_DAC_OVERRIDE, chown(file, USER, USER), EPERM));
	PROMISE("not even the caller's own", REFUSED(CAP_DAC_OVERRIDE, chown("own", 0, -1), EPERM));
	PROMISE("CAP_FOWNER changes the mode of a file of another user", SUCCEEDS(CAP_FOWNER, chmod(file, 0600)));
	PROMISE("CAP_DAC_OVERRIDE does not", REFUSED(CAP_DAC_OVERRIDE, chmod(file, 04755), EPERM));
	PROMISE("CAP_CHOWN does not", REFUSED(CAP_CHOWN, chmod(file, 04755), EPERM));
	PROMISE("CAP_DAC_OVERRIDE opens it to write", SUCCEEDS(CAP_DAC_OVERRIDE, open(file, O_RDWR)));
	PROMISE("CAP_FOWNER does not", REFUSED(CAP_FOWNER, open(file, O_RDWR), EACCES));
	PROMISE("CAP_DAC_READ_SEARCH opens it to read", SUCCEEDS(CAP_DAC_READ_SEARCH, open(file, O_RDONLY)));
	PROMISE("but not to write", REFUSED(CAP_DAC_READ_SEARCH, open(file, O_WRONLY), EACCES));
	PROMISE("it searches and lists directories", SUCCEEDS(CAP_DAC_READ_SEARCH, open("hidden/file", O_RDONLY) < 0 ? -1 : open(hidden, O_RDONLY)));
	PROMISE("but makes no files there", REFUSED(CAP_DAC_READ_SEARCH, mknod("hidden/new", S_IFREG, 0), EACCES));
	PROMISE("only an owner opens without a change of the time of access", REFUSED(CAP_DAC_OVERRIDE, open(file, O_RDONLY | O_NOATIME), EPERM));
	PROMISE("only an owner removes from a sticky directory", REFUSED(CAP_DAC_OVERRIDE, unlink("sticky/file"), EPERM));
	PROMISE("or CAP_FOWNER", SUCCEEDS(CAP_FOWNER, unlink("sticky/file")));
	PROMISE("CAP_MKNOD makes devices", SUCCEEDS(CAP_MKNOD, mknod("null", S_IFCHR | 0600, 0x103)));
	PROMISE("CAP_DAC_OVERRIDE does not", REFUSED(CAP_DAC_OVERRIDE, mknod("zero", S_IFCHR | 0600, 0x105), EPERM));
	PROMISE("nor does root without CAP_MKNOD", WELL(lose(bit(CAP_MKNOD)); _exit(!(mknod("disk", S_IFBLK | 0600, 0x100) == -1 && errno == EPERM))));
	PROMISE("nor does root without CAP_CHOWN give files away", WELL(lose(bit(CAP_CHOWN)); _exit(!(chown(file, 7, 8) == -1 && errno == EPERM))));
	PROMISE("a group of others clears the set-group-ID bit", SUCCEEDS(CAP_DAC_OVERRIDE, chmod("own", 02770)) && mode_of("own") == 0770);
	PROMISE("but not with CAP_FSETID", SUCCEEDS(CAP_FSETID, chmod("own", 02770)) && mode_of("own") == 02770);
	PROMISE("CAP_SYS_ADMIN sets trusted attributes", SUCCEEDS(CAP_SYS_ADMIN, setxattr(file, "trusted.a", "1", 1, 0)));
	PROMISE("CAP_DAC_OVERRIDE does not", REFUSED(CAP_DAC_OVERRIDE, setxattr(file, "trusted.a", "2", 1, 0), EPERM));
	PROMISE("access(2) asks for the real user, without capabilities", REFUSED(CAP_DAC_OVERRIDE, access(file, R_OK), EACCES));
	NEED(chdir("/") == 0);
}

int main(int argc, char **argv)
{
	if (argc == 4)
		return answer(argv);
	NEED(geteuid() == 0);
	bounding();
	ambient();
	secure_bits();
	sets();
	files();
	return conclude();
}
