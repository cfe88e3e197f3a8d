/*
 * Pages whose contents depend on the page's number and a generation, so that a check finds stale or
 * foreign contents. Needs promise.h.
 */
#define PAGE 4096UL

static inline unsigned char *map(size_t pages, int flags, int file)
{
	unsigned char *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, flags, file, 0);
	NEED(at != MAP_FAILED);
	return at;
}

static inline unsigned char *memory(size_t pages)
{
	return map(pages, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

static inline unsigned char *shared_memory(size_t pages)
{
	return map(pages, MAP_SHARED | MAP_ANONYMOUS, -1);
}

/* Writes the contents of page `page` in generation `n`: every 16th word, and the last one. */
static inline void fill(unsigned char *at, uint64_t page, uint64_t n)
{
	for (size_t i = 0; i < PAGE / 8; i += 16)
		((uint64_t *)at)[i] = page * 0x9e3779b97f4a7c15 + n * 0x2545f4914f6cdd1d + i;
	((uint64_t *)at)[PAGE / 8 - 1] = page ^ n << 32;
}

static inline int is_filled(const unsigned char *at, uint64_t page, uint64_t n)
{
	for (size_t i = 0; i < PAGE / 8; i += 16)
		if (((const uint64_t *)at)[i] != page * 0x9e3779b97f4a7c15 + n * 0x2545f4914f6cdd1d + i)
			return 0;
	return ((const uint64_t *)at)[PAGE / 8 - 1] == (page ^ n << 32);
}

static inline void fill_all(unsigned char *at, size_t pages, uint64_t n)
{
	for (size_t page = 0; page < pages; page++)
		fill(at + page * PAGE, page, n);
}

static inline int all_filled(const unsigned char *at, size_t pages, uint64_t n)
{
	for (size_t page = 0; page < pages; page++)
		if (!is_filled(at + page * PAGE, page, n))
			return 0;
	return 1;
}
