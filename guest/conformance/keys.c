/*
 * Keys and keyrings: keyrings(7), add_key(2), request_key(2), keyctl(2). Run as root.
 */
#include "promise.h"
#include "inside.h"
#include <linux/keyctl.h>
#include <pthread.h>
#include <sys/prctl.h>

#define OWN_USER 1234

static long control(int operation, long a, long b, long c, long d)
{
	return syscall(SYS_keyctl, operation, a, b, c, d);
}

static int add(const char *kind, const char *name, const void *bytes, size_t length, int ring)
{
	return syscall(SYS_add_key, kind, name, bytes, length, ring);
}

static int text_key(const char *name, const char *text, int ring)
{
	return add("user", name, text, strlen(text), ring);
}

static int ring_in(const char *name, int ring)
{
	return add("keyring", name, NULL, 0, ring);
}

/* Whether a key's payload is `text`. */
static int holds(int key, const char *text)
{
	char bytes[256];
	long length = control(KEYCTL_READ, key, (long)bytes, sizeof bytes, 0);
	return length == (long)strlen(text) && !memcmp(bytes, text, length);
}

/* Whether a keyring links exactly these keys. */
static int links(int ring, int first, int second)
{
	int all[8] = { 0 };
	long length = control(KEYCTL_READ, ring, (long)all, sizeof all, 0);
	int wanted = (first != 0) + (second != 0);
	int seen = 0;
	for (int i = 0; i < length / 4; i++)
		seen += all[i] == first || all[i] == second;
	return length == wanted * 4 && seen == wanted;
}

static const char *described(int key)
{
	static char text[256];
	memset(text, 0, sizeof text);
	return control(KEYCTL_DESCRIBE, key, (long)text, sizeof text, 0) > 0 ? text : "nothing";
}

static int search(int ring, const char *kind, const char *name, int to)
{
	return control(KEYCTL_SEARCH, ring, (long)kind, (long)name, to);
}

static int request(const char *kind, const char *name, int to)
{
	return syscall(SYS_request_key, kind, name, NULL, to);
}

static void payloads(void)
{
	static char big[1 << 20];
	memset(big, 'b', sizeof big);
	int session = control(KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0);
	PROMISE("a new session has a keyring", session > 0);
	int key = text_key("first", "one", KEY_SPEC_SESSION_KEYRING);
	PROMISE("a key in it", key > 0 && key != session);
	PROMISE("is what was added", holds(key, "one"));
	PROMISE("and is listed", links(session, key, 0) && links(KEY_SPEC_SESSION_KEYRING, key, 0));
	PROMISE("the same name is the same key with another payload",
		text_key("first", "two", session) == key && holds(key, "two"));
	PROMISE("which can be changed", control(KEYCTL_UPDATE, key, (long)"three", 5, 0) == 0 && holds(key, "three"));
	char few[4] = "....";
	PROMISE("a short buffer is left alone, and the length told",
		control(KEYCTL_READ, key, (long)few, 2, 0) == 5 && !memcmp(few, "....", 4));
	PROMISE("its description", !strcmp(described(key), "user;0;0;3f010000;first"));
	PROMISE("its length is told without a buffer", control(KEYCTL_DESCRIBE, key, 0, 0, 0) == 24);
	PROMISE("a session's keyring", !strcmp(described(session), "keyring;0;0;3f030000;_ses"));
	PROMISE("no label", control(KEYCTL_GET_SECURITY, key, 0, 0, 0) == 1);
	FAILS_WITH("an empty payload", add("user", "empty", "", 0, session), EINVAL);
	PROMISE("the longest payload", add("user", "long", big, 32767, session) > 0);
	FAILS_WITH("one that is longer", add("user", "long", big, 32768, session), EINVAL);
	FAILS_WITH("a megabyte", add("user", "long", big, 1 << 20, session), EINVAL);
	FAILS_WITH("no payload for a keyring", add("keyring", "ring", "x", 1, session), EINVAL);
	FAILS_WITH("a kind that does not exist", add("potato", "p", "x", 1, session), ENODEV);
	FAILS_WITH("nor can be found", request("potato", "p", 0), ENOKEY);
	FAILS_WITH("a kind of the kernel's own", add(".potato", "p", "x", 1, session), EPERM);
	FAILS_WITH("a name of the kernel's own", ring_in(".ring", session), EPERM);
	FAILS_WITH("an empty name", add("user", "", "x", 1, session), EINVAL);
	static char long_name[4097];
	memset(long_name, 'n', sizeof long_name - 1);
	FAILS_WITH("a name of more than 4095 bytes", add("user", long_name, "x", 1, session), EINVAL);
	FAILS_WITH("also to be found", request("user", long_name, 0), EINVAL);
	FAILS_WITH("and of a session", control(KEYCTL_JOIN_SESSION_KEYRING, (long)long_name, 0, 0, 0), EINVAL);
	for (int length = 4095; length > 15; length /= 2) {
		long_name[length] = 0;
		int named = add("user", long_name, "x", 1, session);
		PROMISE("a shorter name", named > 0 && search(session, "user", long_name, 0) == named && control(KEYCTL_DESCRIBE, named, 0, 0, 0) == 19 + length);
		PROMISE("is no other's", search(session, "user", long_name + 1, 0) == -1 && control(KEYCTL_UNLINK, named, session, 0, 0) == 0);
	}
	FAILS_WITH("a name that cannot be read", add("user", (void *)1, "x", 1, session), EFAULT);
	FAILS_WITH("a payload that cannot be read", add("user", "p", (void *)1, 1, session), EFAULT);
	FAILS_WITH("a key is no keyring", text_key("second", "x", key), ENOTDIR);
	FAILS_WITH("no key", holds(0x7ffffff1, "") ? 0 : control(KEYCTL_READ, 0x7ffffff1, 0, 0, 0), ENOKEY);
	FAILS_WITH("no special keyring", control(KEYCTL_GET_KEYRING_ID, -99, 0, 0, 0), EINVAL);
	int logon = add("logon", "service:name", "secret", 6, session);
	PROMISE("a logon key", logon > 0);
	FAILS_WITH("cannot be read", control(KEYCTL_READ, logon, 0, 0, 0), EOPNOTSUPP);
	FAILS_WITH("and says for what it is", add("logon", "name", "secret", 6, session), EINVAL);
	FAILS_WITH("a keyring has no payload to change", control(KEYCTL_UPDATE, session, 0, 0, 0), EOPNOTSUPP);
	FAILS_WITH("an operation that is none", control(999, 0, 0, 0, 0), EOPNOTSUPP);
}

static void rings(void)
{
	int top = ring_in("top", KEY_SPEC_SESSION_KEYRING);
	int below = ring_in("below", top);
	int key = text_key("deep", "value", below);
	NEED(top > 0 && below > 0 && key > 0);
	PROMISE("a search goes into keyrings", search(top, "user", "deep", 0) == key);
	PROMISE("also that of all keyrings of the caller", request("user", "deep", 0) == key);
	FAILS_WITH("what is not there", search(top, "user", "other", 0), ENOKEY);
	FAILS_WITH("or of another kind", search(top, "logon", "deep", 0), ENOKEY);
	FAILS_WITH("a request for what is not there", request("user", "other", 0), ENOKEY);
	FAILS_WITH("a keyring in itself", control(KEYCTL_LINK, top, top, 0, 0), EDEADLK);
	FAILS_WITH("or in one below", control(KEYCTL_LINK, top, below, 0, 0), EDEADLK);
	PROMISE("a link", control(KEYCTL_LINK, key, top, 0, 0) == 0 && links(top, below, key));
	PROMISE("twice is once", control(KEYCTL_LINK, key, top, 0, 0) == 0 && links(top, below, key));
	PROMISE("unlink", control(KEYCTL_UNLINK, key, top, 0, 0) == 0 && links(top, below, 0));
	FAILS_WITH("unlink twice", control(KEYCTL_UNLINK, key, top, 0, 0), ENOENT);
	FAILS_WITH("unlink from a key", control(KEYCTL_UNLINK, top, key, 0, 0), ENOTDIR);
	PROMISE("what was found can be linked", search(top, "user", "deep", top) == key && links(top, below, key));
	int twin = text_key("deep", "other", KEY_SPEC_SESSION_KEYRING);
	PROMISE("another key of the name elsewhere", twin > 0 && twin != key);
	PROMISE("a link replaces a key of the same name",
		control(KEYCTL_LINK, twin, top, 0, 0) == 0 && links(top, below, twin));
	FAILS_WITH("moving there exclusively", control(KEYCTL_MOVE, key, below, top, 1), EEXIST);
	PROMISE("moving", control(KEYCTL_MOVE, key, below, top, 0) == 0 && links(top, below, key) && links(below, 0, 0));
	FAILS_WITH("moving from where it is not", control(KEYCTL_MOVE, key, below, top, 0), ENOENT);
	PROMISE("clear", control(KEYCTL_CLEAR, top, 0, 0, 0) == 0 && links(top, 0, 0));
	sleep_ms(200);
	FAILS_WITH("what nobody holds has ended", control(KEYCTL_DESCRIBE, below, 0, 0, 0), ENOKEY);
	FAILS_WITH("clear a key", control(KEYCTL_CLEAR, twin, 0, 0, 0), ENOTDIR);
	int chain[9] = { top }, count = 1;
	while (count < 9 && (chain[count] = ring_in("link", chain[count - 1])) > 0)
		count++;
	PROMISE("keyrings in keyrings are possessed to a depth", count == 8);
	key = text_key("end", "x", chain[5]);
	PROMISE("so far does a search go", key > 0 && request("user", "end", 0) == key);
	NEED(control(KEYCTL_UNLINK, key, chain[5], 0, 0) == 0 && text_key("end", "x", chain[6]) > 0);
	FAILS_WITH("and no further", request("user", "end", 0), ENOKEY);
	int outer = ring_in("outer", KEY_SPEC_SESSION_KEYRING);
	FAILS_WITH("nor does a link make more", control(KEYCTL_LINK, chain[0], outer, 0, 0), ELOOP);
}

static void ends(void)
{
	int ring = ring_in("ends", KEY_SPEC_SESSION_KEYRING);
	int key = text_key("revoked", "x", ring);
	NEED(ring > 0 && key > 0);
	PROMISE("revoke", control(KEYCTL_REVOKE, key, 0, 0, 0) == 0);
	FAILS_WITH("a revoked key is not read", control(KEYCTL_READ, key, 0, 0, 0), EKEYREVOKED);
	FAILS_WITH("nor described", control(KEYCTL_DESCRIBE, key, 0, 0, 0), EKEYREVOKED);
	FAILS_WITH("nor found", request("user", "revoked", 0), EKEYREVOKED);
	int again = text_key("revoked", "y", ring);
	PROMISE("a new one takes its name", again > 0 && again != key && request("user", "revoked", 0) == again);
	key = text_key("short", "x", ring);
	NEED(key > 0);
	PROMISE("a life of a second", control(KEYCTL_SET_TIMEOUT, key, 1, 0, 0) == 0 && holds(key, "x"));
	sleep_ms(2100);
	FAILS_WITH("then it has expired", control(KEYCTL_READ, key, 0, 0, 0), EKEYEXPIRED);
	FAILS_WITH("and a search says so", search(ring, "user", "short", 0), EKEYEXPIRED);
	FAILS_WITH("a request finds none", request("user", "short", 0), ENOKEY);
	key = text_key("gone", "x", ring);
	PROMISE("invalidate", control(KEYCTL_INVALIDATE, key, 0, 0, 0) == 0);
	sleep_ms(200);
	FAILS_WITH("it is not there any more", control(KEYCTL_READ, key, 0, 0, 0), ENOKEY);
	FAILS_WITH("nor found", request("user", "gone", 0), ENOKEY);
	FAILS_WITH("no authority to make keys on request", control(KEYCTL_NEGATE, key, 1, ring, 0), EPERM);
	FAILS_WITH("nor to assume", control(KEYCTL_ASSUME_AUTHORITY, key, 0, 0, 0), ENOKEY);
	PROMISE("but to let go", control(KEYCTL_ASSUME_AUTHORITY, 0, 0, 0, 0) == 0);
	PROMISE("the keyring for requests", control(KEYCTL_SET_REQKEY_KEYRING, 3, 0, 0, 0) == 0);
	PROMISE("is told", control(KEYCTL_SET_REQKEY_KEYRING, -1, 0, 0, 0) == 3);
	FAILS_WITH("and no other", control(KEYCTL_SET_REQKEY_KEYRING, 99, 0, 0, 0), EINVAL);
	control(KEYCTL_SET_REQKEY_KEYRING, 0, 0, 0, 0);
}

static int mine, ours, session;

static int inherits(void)
{
	HOLDS(control(KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0, 0, 0) == session);
	REFUSED(control(KEYCTL_GET_KEYRING_ID, KEY_SPEC_THREAD_KEYRING, 0, 0, 0), ENOKEY);
	REFUSED(control(KEYCTL_GET_KEYRING_ID, KEY_SPEC_PROCESS_KEYRING, 0, 0, 0), ENOKEY);
	/* The owner may view it without possessing it. */
	HOLDS(control(KEYCTL_DESCRIBE, mine, 0, 0, 0) > 0);
	REFUSED(control(KEYCTL_READ, mine, 0, 0, 0), EACCES);
	return 0;
}

static int joins(void)
{
	int other = control(KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0);
	HOLDS(other > 0 && other != session);
	HOLDS(control(KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0, 0, 0) == other);
	return 0;
}

static void *looks(void *argument)
{
	(void)argument;
	int own = control(KEYCTL_GET_KEYRING_ID, KEY_SPEC_THREAD_KEYRING, 0, 0, 0);
	return (void *)(long)(own > 0 && own != mine
		&& control(KEYCTL_GET_KEYRING_ID, KEY_SPEC_PROCESS_KEYRING, 0, 0, 0) == ours);
}

static void threads(void)
{
	session = control(KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0, 0, 0);
	FAILS_WITH("a thread has no keyring at first", control(KEYCTL_GET_KEYRING_ID, KEY_SPEC_THREAD_KEYRING, 0, 0, 0), ENOKEY);
	mine = control(KEYCTL_GET_KEYRING_ID, KEY_SPEC_THREAD_KEYRING, 1, 0, 0);
	ours = control(KEYCTL_GET_KEYRING_ID, KEY_SPEC_PROCESS_KEYRING, 1, 0, 0);
	PROMISE("it is made on request", mine > 0 && !strcmp(described(mine), "keyring;0;0;3f010000;_tid"));
	PROMISE("and so is the process'", ours > 0 && !strcmp(described(ours), "keyring;0;0;3f010000;_pid"));
	pthread_t thread;
	void *saw = NULL;
	NEED(pthread_create(&thread, NULL, looks, NULL) == 0 && pthread_join(thread, &saw) == 0);
	PROMISE("another thread shares the process', and has its own as its creator has", saw != NULL);
	PROMISE("a child has the session's only", in_child(inherits, 0));
	PROMISE("a child's new session is its own",
		in_child(joins, 0) && control(KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0, 0, 0) == session);
	int user = control(KEYCTL_GET_KEYRING_ID, KEY_SPEC_USER_KEYRING, 0, 0, 0);
	PROMISE("the user's keyring", user > 0 && !strcmp(described(user), "keyring;0;65534;1f3f0000;_uid.0"));
	int of_user = control(KEYCTL_GET_KEYRING_ID, KEY_SPEC_USER_SESSION_KEYRING, 0, 0, 0);
	PROMISE("is in that of sessions without their own", search(of_user, "keyring", "_uid.0", 0) == user);
	int named = control(KEYCTL_JOIN_SESSION_KEYRING, (long)"named", 0, 0, 0);
	PROMISE("a session with a name", named > 0 && !strcmp(described(named), "keyring;0;0;3f130000;named"));
	int twin = control(KEYCTL_JOIN_SESSION_KEYRING, (long)"named", 0, 0, 0);
	PROMISE("another of the name, since the owner may not search it", twin > 0 && twin != named);
	PROMISE("joining it again", control(KEYCTL_SETPERM, twin, 0x3f1b0000, 0, 0) == 0
		&& control(KEYCTL_JOIN_SESSION_KEYRING, (long)"named", 0, 0, 0) == 0
		&& control(KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0, 0, 0) == twin);
	FAILS_WITH("a name of the kernel's own", control(KEYCTL_JOIN_SESSION_KEYRING, (long)".named", 0, 0, 0), EPERM);
}

static int key, hidden, open_key;

static int other_user(void)
{
	/* The session's keyring is still possessed, and so is what it links. */
	HOLDS(holds(key, "root's"));
	HOLDS(control(KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0) > 0);
	REFUSED(control(KEYCTL_READ, key, 0, 0, 0), EACCES);
	REFUSED(control(KEYCTL_DESCRIBE, key, 0, 0, 0), EACCES);
	REFUSED(control(KEYCTL_LINK, key, KEY_SPEC_SESSION_KEYRING, 0, 0), EACCES);
	REFUSED(control(KEYCTL_REVOKE, key, 0, 0, 0), EACCES);
	REFUSED(control(KEYCTL_SETPERM, key, 0x3f3f3f3f, 0, 0), EACCES);
	REFUSED(control(KEYCTL_CLEAR, session, 0, 0, 0), EACCES);
	HOLDS(holds(open_key, "open"));
	REFUSED(control(KEYCTL_UPDATE, open_key, (long)"x", 1, 0), EACCES);
	/* Linking needs the right to link; who links it possesses it. */
	HOLDS(control(KEYCTL_LINK, open_key, KEY_SPEC_SESSION_KEYRING, 0, 0) == 0);
	REFUSED(control(KEYCTL_CHOWN, open_key, OWN_USER, -1, 0), EACCES);
	int own = text_key("own", "x", KEY_SPEC_SESSION_KEYRING);
	HOLDS(own > 0 && !strcmp(described(own), "user;1234;1234;3f010000;own"));
	REFUSED(control(KEYCTL_CHOWN, own, 0, -1, 0), EACCES);
	REFUSED(control(KEYCTL_CHOWN, own, -1, 0, 0), EACCES);
	int count = 0, ring = ring_in("many", KEY_SPEC_SESSION_KEYRING);
	for (char name[16]; count < 1000; count++) {
		snprintf(name, sizeof name, "key %d", count);
		if (text_key(name, "x", ring) < 0)
			break;
	}
	int why = errno;
	HOLDS(why == EDQUOT && count > 150 && count < 200);
	HOLDS(control(KEYCTL_CLEAR, ring, 0, 0, 0) == 0);
	sleep_ms(200);
	HOLDS(text_key("again", "x", ring) > 0);
	static char much[20000];
	REFUSED(add("user", "much", much, sizeof much, ring), EDQUOT);
	return 0;
}

static void rights(void)
{
	session = control(KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0);
	key = text_key("key", "root's", session);
	open_key = text_key("open", "open", session);
	hidden = text_key("hidden", "x", session);
	NEED(key > 0 && open_key > 0 && hidden > 0);
	/* All others may view, read and link it, but not find or change it. */
	PROMISE("rights for all", control(KEYCTL_SETPERM, open_key, 0x3f3f0013, 0, 0) == 0);
	FAILS_WITH("rights that are none", control(KEYCTL_SETPERM, open_key, 0x40, 0, 0), EINVAL);
	PROMISE("another user", in_child(other_user, OWN_USER));
	PROMISE("a key can be given away", control(KEYCTL_CHOWN, hidden, OWN_USER, OWN_USER, 0) == 0
		&& !strcmp(described(hidden), "user;1234;1234;3f010000;hidden"));
	PROMISE("a key without rights", control(KEYCTL_SETPERM, key, 0, 0, 0) == 0);
	FAILS_WITH("cannot be described", control(KEYCTL_DESCRIBE, key, 0, 0, 0), EACCES);
	FAILS_WITH("nor found", search(session, "user", "key", 0), EACCES);
	FAILS_WITH("a request finds none, since other keyrings have none", request("user", "key", 0), ENOKEY);
}

static void lists(void)
{
	char line[256], wanted[32];
	FILE *all = fopen("/proc/keys", "r");
	snprintf(wanted, sizeof wanted, "%08x ", session);
	int seen = 0;
	while (all && fgets(line, sizeof line, all))
		seen += !strncmp(line, wanted, 9) && strstr(line, "keyring") && strstr(line, "_ses: 3");
	PROMISE("/proc/keys has the session's keyring", seen == 1);
	if (all)
		fclose(all);
	PROMISE("/proc/key-users has root", strstr(reads("/proc/key-users"), "    0: ") != NULL);
	PROMISE("the quotas are settings", atoi(reads("/proc/sys/kernel/keys/maxkeys")) == 200
		&& atoi(reads("/proc/sys/kernel/keys/root_maxbytes")) == 25000000);
}

/* Keys that nobody makes on request. */
static void made_on_request(void)
{
	int session = control(KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0), key = 0;
	NEED(session > 0);
	FAILS_WITH("without information no key is made", request("user", "asked", session), ENOKEY);
	PROMISE("and none is remembered", links(session, 0, 0));
	FAILS_WITH("with it, no program makes one", syscall(SYS_request_key, "user", "asked", "how", session), ENOENT);
	PROMISE("that is remembered by a key", control(KEYCTL_READ, session, (long)&key, sizeof key, 0) == 4 && key > 0);
	PROMISE("of this name", strstr(described(key), ";asked") != NULL);
	FAILS_WITH("that cannot be read", control(KEYCTL_READ, key, 0, 0, 0), ENOKEY);
	FAILS_WITH("nor found", search(session, "user", "asked", 0), ENOKEY);
	FAILS_WITH("another request fails at once", syscall(SYS_request_key, "user", "asked", "how", session), ENOKEY);
	PROMISE("it becomes a key as it gets a payload", text_key("asked", "now", session) == key && holds(key, "now"));
	PROMISE("that a request finds", request("user", "asked", 0) == key);
	NEED(control(KEYCTL_SET_REQKEY_KEYRING, KEY_REQKEY_DEFL_SESSION_KEYRING, 0, 0, 0) >= 0);
	FAILS_WITH("the keyring for such keys can be chosen", syscall(SYS_request_key, "user", "other", "how", 0), ENOENT);
	long all[2];
	PROMISE("and has them", control(KEYCTL_READ, session, (long)all, sizeof all, 0) == 8);
	NEED(control(KEYCTL_SETPERM, session, 0x0b000000, 0, 0) == 0);
	FAILS_WITH("unless it may not be written", syscall(SYS_request_key, "user", "third", "how", 0), EACCES);
	NEED(control(KEYCTL_SET_REQKEY_KEYRING, KEY_REQKEY_DEFL_DEFAULT, 0, 0, 0) >= 0);
}

int main(void)
{
	payloads();
	rings();
	ends();
	threads();
	rights();
	lists();
	made_on_request();
	return conclude();
}
