/* A mapped file that another process, or the host, truncates (mmap(2)). Prints "cut", waits for a
 * line, and reads the mapping. The file has 1 MiB before and one page after. */
#include "promise.h"

#include <setjmp.h>

#define PAGE 4096

static const volatile char *memory;
static volatile sig_atomic_t code;
static sigjmp_buf back;

static void caught(int number, siginfo_t *info, void *context)
{
	(void)number, (void)context;
	code = info->si_code;
	siglongjmp(back, 1);
}

/* Reads page `page`; returns the si_code of the SIGBUS, 0 for none. */
static int bus_code(long page)
{
	code = 0;
	if (!sigsetjmp(back, 1))
		(void)memory[page * PAGE];
	return code;
}

int main(int argc, char **argv)
{
	NEED(argc == 2);
	struct sigaction action = { .sa_sigaction = caught, .sa_flags = SA_SIGINFO };
	sigaction(SIGBUS, &action, NULL);
	int file = open(argv[1], O_RDONLY);
	struct stat status;
	NEED(file >= 0 && fstat(file, &status) == 0 && status.st_size == 1 << 20);
	memory = mmap(NULL, 1 << 20, PROT_READ, MAP_SHARED, file, 0);
	NEED(memory != MAP_FAILED);
	PROMISE("a page is there", bus_code(0) == 0 && memory[0] == 'x');
	PROMISE("so is a page far from it", bus_code(100) == 0 && memory[100 * PAGE] == 'x');
	char line[16];
	puts("cut");
	fflush(stdout);
	NEED(fgets(line, sizeof line, stdin));
	PROMISE("a page that is not there and that the file has no more is SIGBUS", bus_code(200) == BUS_ADRERR);
	int again = open(argv[1], O_RDONLY);
	PROMISE("who opens the file sees its new size", again >= 0 && fstat(again, &status) == 0 && status.st_size == PAGE);
	PROMISE("from then on a page that was there is SIGBUS too", bus_code(100) == BUS_ADRERR);
	PROMISE("a page that the file still has stays", bus_code(0) == 0 && memory[0] == 'x');
	char byte;
	PROMISE("a read ends where the file does", pread(file, &byte, 1, PAGE) == 0 && pread(file, &byte, 1, PAGE - 1) == 1);
	return conclude();
}
