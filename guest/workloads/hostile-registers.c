/*
 * Hostile register states: register values that a program can set, and entries into the kernel
 * from there.
 *
 * Usage: hostile-registers SEED FRAMES. Each state is entered through a signal frame that the
 * program changed, runs a few instructions, and ends in a signal that is caught; the program
 * continues. Three tables come first: instructions that programs may not use in 64-bit and in
 * 32-bit code, every software interrupt, and every selector. Then FRAMES frames with random
 * damage. A line for each state says how it ended, which must be the same on a stock Linux in
 * the same machine. Where Linux does more (its 32-bit system calls), or an emulator does less
 * than a processor, the line says only that the state ended. The last lines are states that end
 * their process. The kernel must survive all of it.
 */
#include "../conformance/promise.h"
#include "../tools/dice.h"
#include <cpuid.h>
#include <setjmp.h>
#include <ucontext.h>

#define CODE 0x10000000ul
#define STACK (CODE + 0x8000)
#define DATA (CODE + 0x10000)
#define LAST_PAGE 0x7fffffffe000ul
#define SHOWN_FLAGS 0x244dd5ul
#define TRAP 0x100ul
#define DIRECTION 0x400ul
#define NESTED 0x4000ul
#define ALIGNMENT 0x40000ul

struct state {
	unsigned long rip, rsp, flags;
	unsigned short cs, ss;
};

static const struct state usual = { CODE, STACK, 2, 0x33, 0x2b };
static struct state next;
static void (*damage)(ucontext_t *);
static sigjmp_buf back;
static volatile int seen_signal, seen_code;
static volatile greg_t seen[NGREG];
static struct dice dice;
static char other_stack[65536] __attribute__((aligned(64)));

static void clear_flags(void)
{
	__asm__ volatile("lea -128(%%rsp), %%rsp\n push $2\n popfq\n lea 128(%%rsp), %%rsp" : : : "cc", "memory");
}

static void enter(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)info;
	ucontext_t *user = context;
	greg_t *registers = user->uc_mcontext.gregs;
	registers[REG_RIP] = (greg_t)next.rip;
	registers[REG_RSP] = (greg_t)next.rsp;
	registers[REG_EFL] = (greg_t)next.flags;
	registers[REG_CSGSFS] = next.cs | (greg_t)next.ss << 48;
	registers[REG_RAX] = 0x7fffffff;
	registers[REG_RBX] = registers[REG_RSI] = registers[REG_RDI] = DATA;
	if (damage)
		damage(user);
}

static void leave(int signal, siginfo_t *info, void *context)
{
	clear_flags();
	ucontext_t *user = context;
	seen_signal = signal;
	seen_code = info->si_code;
	for (int i = 0; i < NGREG; i++)
		seen[i] = user->uc_mcontext.gregs[i];
	siglongjmp(back, 1);
}

static void install(int signal, void (*handler)(int, siginfo_t *, void *), int flags)
{
	struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags };
	sigemptyset(&action.sa_mask);
	NEED(sigaction(signal, &action, NULL) == 0);
}

/*
 * Whether the result can be compared with Linux, or only on a real processor. QEMU 7.2 reads the
 * stack of a program's IRET and far RET with the kernel's rights: under SMAP they fault for
 * ever.
 */
enum compared { ENDS, ALIKE, ON_PROCESSORS };

static int is_emulated(void)
{
	unsigned eax, name[3];
	__cpuid(0x40000000, eax, name[0], name[1], name[2]);
	return memcmp(name, "TCGTCGTCGTCG", 12) == 0;
}

static void run(struct state state, enum compared compared, const char *name)
{
	next = state;
	seen_signal = 0;
	if (sigsetjmp(back, 1) == 0)
		raise(SIGUSR2);
	clear_flags();
	__asm__ volatile("mov %0, %%ds\n mov %0, %%es\n fninit" : : "r"(0));
	if (compared == ENDS) {
		printf("%s: ends\n", name);
		return;
	}
	unsigned long selectors = (unsigned long)seen[REG_CSGSFS];
	printf("%s: signal %d code %d trap %lld error %#llx rip %#llx rsp %#llx flags %#llx cs %#lx ss %#lx\n", name, seen_signal, seen_code,
	       seen[REG_TRAPNO], seen[REG_ERR], seen[REG_RIP], seen[REG_RSP], seen[REG_EFL] & SHOWN_FLAGS, selectors & 0xffff, selectors >> 48);
}

static void put(const void *code, size_t length)
{
	static const unsigned char end[] = { 0x0f, 0x0b };
	memcpy((void *)CODE, code, length);
	memcpy((char *)CODE + length, end, sizeof end);
}

struct code {
	const char *name;
	const char *bytes;
	size_t length;
	enum compared compared;
};

#define BYTES(name, bytes, compared) { name, bytes, sizeof bytes - 1, compared }

static const struct code in_64_bit[] = {
	BYTES("ud2", "", ALIKE),
	BYTES("int3", "\xcc", ALIKE),
	BYTES("into", "\xce", ALIKE),
	BYTES("icebp", "\xf1", ENDS),
	BYTES("hlt", "\xf4", ALIKE),
	BYTES("cli", "\xfa", ALIKE),
	BYTES("sti", "\xfb", ALIKE),
	BYTES("in", "\xec", ALIKE),
	BYTES("out", "\xee", ALIKE),
	BYTES("swapgs", "\x0f\x01\xf8", ALIKE),
	BYTES("clac", "\x0f\x01\xca", ALIKE),
	BYTES("stac", "\x0f\x01\xcb", ALIKE),
	BYTES("sysretq", "\x48\x0f\x07", ALIKE),
	BYTES("sysret", "\x0f\x07", ALIKE),
	BYTES("sysenter", "\x0f\x34", ENDS),
	BYTES("sysexit", "\x0f\x35", ENDS),
	BYTES("wrmsr", "\x0f\x30", ALIKE),
	BYTES("rdmsr", "\x0f\x32", ALIKE),
	BYTES("wbinvd", "\x0f\x09", ALIKE),
	BYTES("invd", "\x0f\x08", ALIKE),
	BYTES("clts", "\x0f\x06", ALIKE),
	BYTES("lgdt", "\x0f\x01\x13", ALIKE),
	BYTES("lidt", "\x0f\x01\x1b", ALIKE),
	BYTES("lmsw", "\x0f\x01\xf0", ALIKE),
	BYTES("ltr", "\x0f\x00\xd8", ALIKE),
	BYTES("lldt", "\x0f\x00\xd0", ALIKE),
	BYTES("invlpg", "\x0f\x01\x3b", ALIKE),
	BYTES("mov from cr0", "\x0f\x20\xc0", ALIKE),
	BYTES("mov to cr0", "\x0f\x22\xc0", ALIKE),
	BYTES("mov to cr3", "\x0f\x22\xd8", ALIKE),
	BYTES("mov to cr4", "\x0f\x22\xe0", ALIKE),
	BYTES("mov to cr8", "\x44\x0f\x22\xc0", ALIKE),
	BYTES("mov from dr0", "\x0f\x21\xc0", ALIKE),
	BYTES("mov from dr6", "\x0f\x21\xf0", ALIKE),
	BYTES("mov to dr0", "\x0f\x23\xc0", ALIKE),
	BYTES("mov to dr7", "\x0f\x23\xf8", ALIKE),
	BYTES("xsetbv", "\x31\xc9\x0f\x01\xd1", ALIKE),
	BYTES("popf with IOPL and VM", "\x68\x02\x32\x02\x00\x9d", ALIKE),
	BYTES("popf with NT, AC, DF", "\x68\x02\x46\x04\x00\x9d", ALIKE),
	BYTES("popf with TF", "\x68\x02\x03\x00\x00\x9d\x90", ALIKE),
	BYTES("popf with TF before a call", "\x68\x02\x03\x00\x00\x9d\x0f\x05\x90", ALIKE),
	BYTES("popf with NT and TF before a call", "\x68\x02\x43\x00\x00\x9d\x0f\x05\x90", ALIKE),
	BYTES("iretq with NT", "\x68\x02\x42\x00\x00\x9d\x48\xcf", ALIKE),
	BYTES("iretq to the kernel's code", "\x6a\x2b\x54\x6a\x02\x6a\x10\x57\x48\xcf", ON_PROCESSORS),
	BYTES("iretq to address 0", "\x6a\x2b\x54\x6a\x02\x6a\x33\x6a\x00\x48\xcf", ON_PROCESSORS),
	BYTES("iretq to the kernel's half", "\x6a\x2b\x54\x6a\x02\x6a\x33\x6a\xff\x48\xcf", ON_PROCESSORS),
	BYTES("iretq with a wrong stack", "\x6a\x18\x54\x6a\x02\x6a\x33\x57\x48\xcf", ON_PROCESSORS),
	BYTES("iretq to 32-bit code", "\x6a\x2b\x54\x6a\x02\x6a\x23\x68\x20\x00\x00\x10\x48\xcf", ON_PROCESSORS),
	BYTES("iretq with IOPL", "\x6a\x2b\x54\x68\x02\x30\x00\x00\x6a\x33\x68\x20\x00\x00\x10\x48\xcf", ON_PROCESSORS),
	BYTES("far return to the kernel's code", "\x6a\x10\x57\x48\xcb", ON_PROCESSORS),
	BYTES("far return to 32-bit code", "\x6a\x23\x68\x20\x00\x00\x10\x48\xcb", ON_PROCESSORS),
	BYTES("far jump to 32-bit code", "\xff\x6b\x40", ALIKE),
	BYTES("far jump to a call in 32-bit code", "\xff\x6b\x50", ENDS),
	BYTES("far jump to the kernel's code", "\xff\x6b\x60", ALIKE),
	BYTES("a call with a stack of the kernel", "\x48\xc7\xc4\x00\x00\x00\x80\x0f\x05", ALIKE),
	BYTES("a call with stack 0", "\x31\xe4\x0f\x05", ALIKE),
	BYTES("a push to a stack of the kernel", "\x48\xc7\xc4\x00\x00\x00\x80\x50", ALIKE),
	BYTES("mov ss before a call", "\x6a\x2b\x59\x8e\xd1\x0f\x05", ALIKE),
	BYTES("mov ss before int3", "\x6a\x2b\x59\x8e\xd1\xcc", ALIKE),
	BYTES("mov ss with TF before a call", "\x6a\x2b\x59\x68\x02\x03\x00\x00\x9d\x8e\xd1\x0f\x05\x90", ENDS),
	BYTES("x87 division by zero", "\xd9\x2b\xd9\xe8\xd9\xee\xde\xf9\x9b", ALIKE),
};

static const struct code in_32_bit[] = {
	BYTES("32-bit ud2", "", ALIKE),
	BYTES("32-bit int3", "\xcc", ALIKE),
	BYTES("32-bit hlt", "\xf4", ALIKE),
	BYTES("32-bit into", "\xb0\x7f\x04\x01\xce", ALIKE),
	BYTES("32-bit bound", "\x66\x62\x03", ALIKE),
	BYTES("32-bit syscall", "\x0f\x05", ENDS),
	BYTES("32-bit sysenter", "\x0f\x34", ENDS),
	BYTES("32-bit int 0x80", "\xcd\x80", ENDS),
	BYTES("32-bit iret", "\xcf", ON_PROCESSORS),
	BYTES("32-bit far return", "\x6a\x33\x68\x20\x00\x00\x10\xcb", ON_PROCESSORS),
	BYTES("32-bit mov ss", "\x66\xb8\x18\x00\x8e\xd0", ALIKE),
	BYTES("32-bit push without a stack", "\x31\xe4\x50", ALIKE),
	BYTES("32-bit vm86 flags", "\x68\x02\x30\x02\x00\x9d", ALIKE),
};

static void run_code(const struct code *code, unsigned short cs, unsigned long flags)
{
	struct state state = usual;
	if (code->compared == ON_PROCESSORS && is_emulated())
		return;
	/* The target of far returns: an instruction that ends the state. */
	memcpy((void *)(CODE + 0x20), "\x0f\x0b", 2);
	memcpy((void *)(CODE + 0x30), "\x0f\x05\x0f\x0b", 4);
	memcpy((void *)DATA, "\x70\x03", 2);
	memcpy((void *)(DATA + 0x40), "\x20\x00\x00\x10\x23", 6);
	memcpy((void *)(DATA + 0x50), "\x30\x00\x00\x10\x23", 6);
	memcpy((void *)(DATA + 0x60), "\x20\x00\x00\x10\x10", 6);
	put(code->bytes, code->length);
	state.cs = cs;
	state.flags |= flags;
	run(state, code->compared, code->name);
}

static void instructions(void)
{
	static const unsigned long flags[] = { 0, ALIGNMENT | NESTED | DIRECTION };
	for (unsigned with = 0; with < 2; with++) {
		for (unsigned i = 0; i < sizeof in_64_bit / sizeof *in_64_bit; i++)
			run_code(in_64_bit + i, 0x33, flags[with]);
		for (unsigned i = 0; i < sizeof in_32_bit / sizeof *in_32_bit; i++)
			run_code(in_32_bit + i, 0x23, flags[with]);
	}
	for (int vector = 0; vector < 256; vector++) {
		char name[32];
		unsigned char code[] = { 0xcd, (unsigned char)vector };
		put(code, sizeof code);
		snprintf(name, sizeof name, "int %#x", vector);
		run(usual, vector == 0x80 ? ENDS : ALIKE, name);
	}
	/* A call as the last instruction below the end of user addresses, and an instruction
	 * that extends beyond that end. */
	char *last = mmap((void *)LAST_PAGE, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (last == (char *)LAST_PAGE) {
		struct state state = usual;
		memcpy(last + 4094, "\x0f\x05", 2);
		state.rip = LAST_PAGE + 4094;
		run(state, ALIKE, "a call at the end of user addresses");
		memcpy(last + 4092, "\xb8\x27\x00\x00", 4);
		state.rip = LAST_PAGE + 4092;
		run(state, ALIKE, "an instruction over the end of user addresses");
	}
	static const unsigned long wild[] = { 0x800000000000, 0xffff7fffffffffff, 1ul << 63 };
	for (unsigned i = 0; i < sizeof wild / sizeof *wild; i++) {
		struct state state = usual;
		state.rip = wild[i];
		run(state, ENDS, "an address that is not canonical");
	}
}

static void selectors(void)
{
	static const char registers[] = { 0 /* es */, 2 /* ss */, 3 /* ds */, 5 /* gs */ };
	for (unsigned selector = 0; selector < 0x78; selector += selector & 3 ? 5 : 3)
		for (unsigned i = 0; i < sizeof registers; i++) {
			char name[48];
			unsigned char code[] = { 0xb9, (unsigned char)selector, 0, 0, 0, 0x8e, (unsigned char)(0xc1 | registers[i] << 3) };
			put(code, sizeof code);
			snprintf(name, sizeof name, "selector %#x in register %d", selector, registers[i]);
			run(usual, ALIKE, name);
			__asm__ volatile("mov %0, %%gs" : : "r"(0));
		}
}

/* Random frames. */

/* The last is not canonical: IRET refuses it on some processors, the fetch faults on others and in
 * the emulator. */
static const unsigned long addresses[] = {
	CODE, CODE, CODE + 1, 0, 8, 0x180000, DATA, LAST_PAGE + 0xfff, 0x7ffffffff000, 0x7fffffffffff, 0xffff800000000000,
	0xffff888000000000, 0xffffffff81000000, -4096ul, -1ul, 0x110000000, 0x800000000000,
};
#define ADDRESSES (sizeof addresses / sizeof *addresses)
static const unsigned short segments[] = { 0x33, 0x33, 0x33, 0x23, 0x23, 0, 3, 0x10, 0x13, 0x18, 0x1b, 0x28, 0x2b, 0x30, 0x37, 0x43, 0x63, 0xfff8, 0xffff };
static unsigned long draws[8];

static unsigned long one_of_addresses(unsigned long number)
{
	return addresses[number % ADDRESSES];
}

static void damage_vectors(ucontext_t *user)
{
	unsigned char *vectors = (unsigned char *)user->uc_mcontext.fpregs, *end = (unsigned char *)STACK - 4096;
	unsigned size = *(unsigned *)(vectors + 480), where = (unsigned)(draws[1] >> 8);
	switch (draws[1] % 12) {
	case 0:
		user->uc_mcontext.fpregs = NULL;
		break;
	case 1:
		user->uc_mcontext.fpregs = (void *)one_of_addresses(draws[2]);
		break;
	case 2:
		memmove(vectors + 16 - where % 2 * 8, vectors, 512);
		user->uc_mcontext.fpregs = (void *)(vectors + 16 - where % 2 * 8);
		break;
	case 3: /* the legacy area ends where nothing is mapped */
		memcpy((char *)DATA + 4096 - 512, vectors, 512);
		if (where % 2)
			*(unsigned *)(DATA + 4096 - 512 + 464) = 0;
		user->uc_mcontext.fpregs = (void *)(DATA + 4096 - 512);
		break;
	case 4: /* a component that no processor has */
		vectors[512 + 2 + where % 6] ^= 0x40;
		break;
	case 5:
		vectors[512 + 8 + where % 16] ^= (unsigned char)(1 << where % 7);
		break;
	case 6:
		vectors[512 + 24 + where % 40] ^= 0x11;
		break;
	case 7: /* x87 and SSE with everything unmasked, and errors pending */
		*(unsigned short *)vectors = 0x340;
		*(unsigned short *)(vectors + 2) = where % 2 ? 0 : 0x80bf;
		*(unsigned *)(vectors + 24) = draws[3] & 0xffbf;
		break;
	case 8:
		vectors[464 + where % 20] ^= 0x81;
		break;
	case 9: /* a shorter state */
		*(unsigned *)(vectors + 480) = 575 + where % 2;
		*(unsigned *)(vectors + 575 + where % 2) = 0x46505845;
		break;
	case 10:
		*(unsigned *)(vectors + size) ^= 1;
		break;
	case 11:
		memset(end, 0, 64);
		for (unsigned i = 0; i < 512; i++)
			if (i < 464 && (i < 24 || i >= 32))
				vectors[i] = (unsigned char)(draws[3] >> i % 56);
		break;
	}
}

static void damage_frame(ucontext_t *user)
{
	unsigned long what = draws[0];
	greg_t *registers = user->uc_mcontext.gregs;
	unsigned long rip = what & 1 ? addresses[draws[4] % (ADDRESSES - 1)] : CODE;
	unsigned long rsp = what & 2 ? one_of_addresses(draws[4] >> 16) + (draws[4] >> 8 & 7) : STACK;
	unsigned cs = what & 4 ? segments[draws[5] % (sizeof segments / sizeof *segments)] : 0x33;
	unsigned ss = what & 8 ? segments[(draws[5] >> 16) % (sizeof segments / sizeof *segments)] : 0x2b;
	/* Processors truncate these values to 32 bits; the emulator does not. */
	unsigned long width = cs == 0x23 ? 0xffffffff : -1ul;
	registers[REG_RIP] = (greg_t)(rip & width);
	registers[REG_RSP] = (greg_t)(rsp & width);
	registers[REG_CSGSFS] = (greg_t)(cs | (draws[5] >> 32 & 0xffff) << 16 | (draws[5] >> 48) << 32 | (unsigned long)ss << 48);
	registers[REG_EFL] = (greg_t)(what & 16 ? draws[6] : draws[6] & 0x254dd5);
	if (what & 32)
		damage_vectors(user);
	if (what & 64)
		user->uc_flags = draws[7] & 7;
}

static void frames(int count)
{
	static const char code[] = "\xb8\x27\x00\x00\x00\x50\x58\xd9\xd0\x9b";
	put(code, sizeof code - 1);
	damage = damage_frame;
	for (int i = 0; i < count; i++) {
		char name[32];
		for (unsigned k = 0; k < sizeof draws / sizeof *draws; k++)
			draws[k] = draw(&dice);
		snprintf(name, sizeof name, "frame %d", i);
		run(usual, ALIKE, name);
	}
	damage = NULL;
}

/* States that end their process. */

static void block_all(ucontext_t *user)
{
	memset(&user->uc_sigmask, 0xff, 8);
	user->uc_mcontext.gregs[REG_RIP] = 0x180000;
}

static void no_alternate_stack(ucontext_t *user)
{
	user->uc_stack.ss_flags = SS_DISABLE;
	user->uc_mcontext.gregs[REG_RSP] = 0x180000;
	user->uc_mcontext.gregs[REG_RIP] = 0x180000;
}

static void wild_alternate_stack(ucontext_t *user)
{
	user->uc_stack.ss_sp = (void *)0xffffffff81000000;
	user->uc_stack.ss_size = 65536;
	user->uc_mcontext.gregs[REG_CSGSFS] = 0;
}

static void wild_frame(ucontext_t *user)
{
	(void)user;
	__asm__ volatile("mov %0, %%rsp\n mov $15, %%eax\n syscall" : : "r"(one_of_addresses(draws[0])));
}

static void endings(void)
{
	static void (*const all[])(ucontext_t *) = { block_all, no_alternate_stack, wild_alternate_stack };
	int status;
	for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
		IN_CHILD(status, damage = all[i]; next = usual; raise(SIGUSR2));
		printf("ending %u: status %#x\n", i, status);
	}
	damage = wild_frame;
	for (unsigned i = 0; i < ADDRESSES; i++) {
		draws[0] = i;
		IN_CHILD(status, freopen("/dev/null", "w", stdout); run(usual, ENDS, ""); _exit(seen_signal << 4 | (seen_code & 15)));
		printf("a frame at %#lx: status %#x\n", addresses[i], status);
	}
	damage = NULL;
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: hostile-registers SEED FRAMES\n");
		return 2;
	}
	static const int signals[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP };
	stack_t stack = { .ss_sp = other_stack, .ss_size = sizeof other_stack };
	dice.state = (strtoull(argv[1], NULL, 0) + 1) * 0x9e3779b97f4a7c15ull;
	char *pages = mmap((void *)CODE, 0x11000, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	NEED(pages == (char *)CODE);
	NEED(mprotect((void *)DATA, 4096, PROT_READ | PROT_WRITE) == 0);
	NEED(sigaltstack(&stack, NULL) == 0);
	for (unsigned i = 0; i < sizeof signals / sizeof *signals; i++)
		install(signals[i], leave, SA_ONSTACK | SA_NODEFER);
	install(SIGUSR2, enter, SA_NODEFER);
	setvbuf(stdout, NULL, _IOLBF, 1 << 12);
	instructions();
	selectors();
	frames(atoi(argv[2]));
	endings();
	printf("hostile-registers: all states ended\n");
	return 0;
}
