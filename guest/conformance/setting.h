/* Settings of /proc/sys, by their names there, and of other files. */

/* Returns a setting's number. */
static inline long reads(const char *name)
{
	char path[64], text[64] = { 0 };
	snprintf(path, sizeof path, "/proc/sys/%s", name);
	int file = open(path, O_RDONLY | O_CLOEXEC);
	NEED(file >= 0 && read(file, text, sizeof text - 1) > 0);
	close(file);
	return atol(text);
}

/* Writes a text to a file; returns 0 or an errno. */
static inline int stores(const char *path, const char *text)
{
	int file = open(path, O_WRONLY | O_CLOEXEC);
	if (file < 0)
		return errno;
	int error = write(file, text, strlen(text)) == (ssize_t)strlen(text) ? 0 : errno;
	close(file);
	return error;
}

/* Writes a setting; returns 0 or an errno. */
static inline int writes(const char *name, const char *text)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/sys/%s", name);
	return stores(path, text);
}
