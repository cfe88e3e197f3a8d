/*
 * Programs whose ELF headers are random: copies of one small program, with bytes of the file header
 * and of the program headers changed, tables moved, sizes cut, an interpreter added; executed one
 * after the other.
 *
 * Usage: mutated-elf SEED COUNT [FIRST]. For each file the kernel has to refuse it, run it, or
 * kill its process, and to free all memory. The same seed makes the same files; FIRST is the
 * number of the first one, and MUTATED_SHOW prints each before it is run. A process that still
 * lives 30 seconds after SIGKILL is a failure: the status is 1. Else prints how the processes
 * ended and exits with 0.
 */
#include "../conformance/promise.h"
#include "../tools/dice.h"

#include <elf.h>
#include <stddef.h>
#include <sys/prctl.h>

#define FILE_NAME "/tmp/mutated"
#define PATIENCE_MS 5000
#define DEADLINE_MS 30000
enum { HEADERS = 4, CODE = 0x1000, SIZE = 0x3000, STATUS = 42 };

static struct image {
	Elf64_Ehdr file;
	Elf64_Phdr headers[HEADERS];
	char interpreter[64];
	unsigned char rest[SIZE - sizeof(Elf64_Ehdr) - HEADERS * sizeof(Elf64_Phdr) - 64];
} image;

/* exit(42) at 0x401000, then a page of data and zeroes after it. */
static void make_program(void)
{
	/* mov edi, 42; mov eax, 60; syscall */
	static const unsigned char code[] = { 0xbf, STATUS, 0, 0, 0, 0xb8, 60, 0, 0, 0, 0x0f, 0x05 };
	memset(&image, 0, sizeof image);
	memcpy(image.file.e_ident, ELFMAG "\x02\x01\x01", 7);
	image.file.e_type = ET_EXEC;
	image.file.e_machine = EM_X86_64;
	image.file.e_version = EV_CURRENT;
	image.file.e_entry = 0x401000;
	image.file.e_phoff = offsetof(struct image, headers);
	image.file.e_ehsize = sizeof image.file;
	image.file.e_phentsize = sizeof *image.headers;
	image.file.e_phnum = HEADERS;
	image.headers[0] = (Elf64_Phdr){ PT_LOAD, PF_R, 0, 0x400000, 0x400000, CODE, CODE, 0x1000 };
	image.headers[1] = (Elf64_Phdr){ PT_LOAD, PF_R | PF_X, CODE, 0x401000, 0x401000, 0x1000, 0x1000, 0x1000 };
	image.headers[2] = (Elf64_Phdr){ PT_LOAD, PF_R | PF_W, 2 * CODE, 0x402000, 0x402000, 0x800, 0x3000, 0x1000 };
	image.headers[3] = (Elf64_Phdr){ PT_GNU_STACK, PF_R | PF_W, 0, 0, 0, 0, 0, 16 };
	memcpy((unsigned char *)&image + CODE, code, sizeof code);
}

static uint64_t odd(struct dice *dice)
{
	static const uint64_t list[] = { 0, 1, 0xfff, 0x1000, 0x1001, 0x2000, SIZE - 1, SIZE, SIZE + 1, 0x400000, 0x401000, 0x7ffffffff000, 0x7fffffffe000,
					 0x800000000000, 0xffff800000000000, 0xffffffff80000000, 1ull << 31, 1ull << 32, 1ull << 40, 1ull << 46, 1ull << 62,
					 1ull << 63, -1ull, -0x1000ull, 0x10000, 0x200000, 0x40000000 };
	return below(dice, 4) ? list[below(dice, sizeof list / sizeof *list)] : draw(dice) >> below(dice, 64);
}

static void change(struct dice *dice, size_t *size)
{
	static const char *const names[] = { "/tmp/mutated", "/dev/null", "/", "/tmp", "", "/dev/zero", "/proc/self/exe", "/tmp/none", "/proc/self/mem" };
	static const uint32_t kinds[] = { PT_NULL, PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_NOTE, PT_PHDR, PT_TLS, PT_GNU_STACK, PT_GNU_PROPERTY, 0x7fffffff };
	Elf64_Phdr *header = &image.headers[below(dice, HEADERS)];
	uint64_t *words = (uint64_t *)header;
	switch (below(dice, 12)) {
	case 0:
		((unsigned char *)&image)[below(dice, sizeof image.file)] = (unsigned char)draw(dice);
		break;
	case 1:
		((unsigned char *)image.headers)[below(dice, sizeof image.headers)] ^= 1 << below(dice, 8);
		break;
	case 2:
		header->p_type = kinds[below(dice, sizeof kinds / sizeof *kinds)];
		break;
	case 3:
		header->p_flags = below(dice, 8);
		break;
	case 4:
		image.file.e_entry = odd(dice);
		break;
	case 5:
		image.file.e_phoff = odd(dice);
		break;
	case 6:
		image.file.e_phnum = below(dice, 2) ? below(dice, 8) : (uint16_t)odd(dice);
		break;
	case 7:
		image.file.e_type = below(dice, 2) ? ET_DYN : below(dice, 5);
		break;
	case 8:
		*size = below(dice, 2) ? below(dice, SIZE) : below(dice, 256);
		break;
	case 9:
		header->p_type = PT_INTERP;
		header->p_offset = offsetof(struct image, interpreter);
		header->p_filesz = header->p_memsz = 1 + below(dice, 63);
		strcpy(image.interpreter, names[below(dice, sizeof names / sizeof *names)]);
		if (below(dice, 2))
			header->p_filesz = strlen(image.interpreter) + 1;
		break;
	default:
		/* offset, virtual and physical address, size in the file and in memory, alignment
		 */
		words[1 + below(dice, 6)] = odd(dice);
	}
}

static void write_file(size_t size)
{
	unlink(FILE_NAME);
	int fd = open(FILE_NAME, O_WRONLY | O_CREAT, 0755);
	NEED(fd >= 0 && write(fd, &image, size) == (ssize_t)size);
	close(fd);
}

static void run_file(void)
{
	struct rlimit space = { 256 << 20, 256 << 20 }, none = { 0, 0 };
	char *const arguments[] = { (char *)"mutated", NULL };
	int null = open("/dev/null", O_RDWR);
	for (int fd = 0; fd < 3; fd++)
		dup2(null, fd);
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setrlimit(RLIMIT_AS, &space);
	setrlimit(RLIMIT_CORE, &none);
	execv(FILE_NAME, arguments);
	_exit(100);
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: mutated-elf SEED COUNT [FIRST]\n");
		return 2;
	}
	uint64_t seed = strtoull(argv[1], NULL, 0);
	int count = atoi(argv[2]), first = argc > 3 ? atoi(argv[3]) : 0, status = 0;
	int refused = 0, ran = 0, other = 0, signalled = 0, killed = 0;
	/* The unchanged program must run, so that other results are due to the changes. */
	for (int number = first - 1; number < first + count; number++) {
		struct dice dice = { (seed + 1) * 0x9e3779b97f4a7c15ull + (uint64_t)number * 0xbf58476d1ce4e5b9ull };
		size_t size = SIZE;
		make_program();
		if (number >= first)
			for (unsigned changes = 1 + below(&dice, 3); changes > 0; changes--)
				change(&dice, &size);
		write_file(size);
		if (getenv("MUTATED_SHOW"))
			fprintf(stderr, "%d\n", number);
		pid_t child = fork();
		NEED(child >= 0);
		if (child == 0)
			run_file();
		int64_t end = now_ms() + PATIENCE_MS;
		pid_t gone;
		while ((gone = waitpid(child, &status, WNOHANG)) == 0 && now_ms() < end)
			sleep_ms(1);
		if (gone == 0) {
			kill(child, SIGKILL);
			end = now_ms() + DEADLINE_MS;
			while ((gone = waitpid(child, &status, WNOHANG)) == 0 && now_ms() < end)
				sleep_ms(1);
			if (gone == 0) {
				printf("mutated-elf: number %d still lives %d ms after SIGKILL\n", number, DEADLINE_MS);
				return 1;
			}
			killed++;
		} else if (WIFSIGNALED(status)) {
			signalled++;
		} else if (WEXITSTATUS(status) == 100) {
			refused++;
		} else if (WEXITSTATUS(status) == STATUS) {
			ran++;
		} else {
			other++;
		}
		if (number < first)
			NEED(ran == 1);
	}
	unlink(FILE_NAME);
	printf("mutated-elf: %d were refused, %d ran, %d ended otherwise, %d were signalled, %d ran for too long\n", refused, ran, other, signalled, killed);
	return 0;
}
