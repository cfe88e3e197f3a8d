/* Registers: what traps, signals, forks and switches do with flags, selectors, bases and vector
 * state. */
#include "promise.h"
#include <asm/prctl.h>
#include <cpuid.h>
#include <setjmp.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <ucontext.h>

#define FLAG_TRAP 0x100ul
#define FLAG_DIRECTION 0x400ul
#define FLAG_NESTED 0x4000ul
#define FLAG_ALIGNMENT 0x40000ul
#define FLAG_IDENTIFICATION 0x200000ul
#define KERNEL_ADDRESS 0xffff888000001000ul
#define LAST_PAGE_END 0x7ffffffff000ul
#define FEATURE_FSGSBASE 2

/* State that the last handler saw. */
static volatile int seen, seen_signal, seen_code;
static volatile long seen_trap, seen_error, seen_rip, seen_flags, seen_cs;
static void *volatile seen_address, *volatile seen_stack;
static sigjmp_buf back;
static char other_stack[65536] __attribute__((aligned(16)));

/* A handler begins with AC as it was. The C library makes misaligned accesses. */
static void clear_alignment(void)
{
	__asm__ volatile("lea -128(%%rsp), %%rsp\n pushfq\n andl $~0x40000, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" : : : "cc", "memory");
}

static void note(int signal, siginfo_t *info, void *context)
{
	clear_alignment();
	ucontext_t *user = context;
	seen++;
	seen_signal = signal;
	seen_code = info->si_code;
	seen_address = info->si_addr;
	seen_trap = user->uc_mcontext.gregs[REG_TRAPNO];
	seen_error = user->uc_mcontext.gregs[REG_ERR];
	seen_rip = user->uc_mcontext.gregs[REG_RIP];
	seen_flags = user->uc_mcontext.gregs[REG_EFL];
	seen_cs = user->uc_mcontext.gregs[REG_CSGSFS] & 0xffff;
	seen_stack = __builtin_frame_address(0);
}

static void note_and_leave(int signal, siginfo_t *info, void *context)
{
	note(signal, info, context);
	siglongjmp(back, 1);
}

static void install(int signal, void (*handler)(int, siginfo_t *, void *), int flags)
{
	struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags };
	sigemptyset(&action.sa_mask);
	NEED(sigaction(signal, &action, NULL) == 0);
}

static void install_all(void (*handler)(int, siginfo_t *, void *), int flags)
{
	static const int signals[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP };
	for (unsigned i = 0; i < sizeof signals / sizeof *signals; i++)
		install(signals[i], handler, flags);
}

/* Runs statements that raise a signal; seen_* then describe it. */
#define CAUGHT(...)                                \
	({                                         \
		seen = 0;                          \
		if (sigsetjmp(back, 1) == 0) {     \
			__VA_ARGS__;               \
		}                                  \
		__asm__ volatile("cld");           \
		seen == 1;                         \
	})

#define SAW(signal, code, trap, error) \
	(seen_signal == (signal) && seen_code == (code) && seen_trap == (trap) && seen_error == (error))

/*
 * QEMU's emulator raises neither alignment checks nor SSE exceptions, accepts any base, has
 * another error code for gates, and does not tell ICEBP from a single step.
 */
static int is_emulated(void)
{
	unsigned eax, name[3];
	__cpuid(0x40000000, eax, name[0], name[1], name[2]);
	return memcmp(name, "TCGTCGTCGTCG", 12) == 0;
}

static volatile char *page(int protection)
{
	char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(at != MAP_FAILED);
	at[0] = (char)0xc3;
	NEED(mprotect(at, 4096, protection) == 0);
	return at;
}

/* Nothing is ever mapped here. */
static volatile char *hole(void)
{
	return (char *)0x180000;
}

static void fetch(volatile char *at)
{
	((void (*)(void))at)();
}

static void error_codes(void)
{
	install_all(note_and_leave, 0);
	volatile char *nothing = hole(), *readable = page(PROT_READ), *data = page(PROT_READ | PROT_WRITE), *kernel = (char *)KERNEL_ADDRESS;
	PROMISE("a read of nothing: error 4", CAUGHT((void)*nothing) && SAW(SIGSEGV, SEGV_MAPERR, 14, 4) && seen_address == nothing);
	PROMISE("a write to nothing: error 6", CAUGHT(*nothing = 1) && SAW(SIGSEGV, SEGV_MAPERR, 14, 6));
	PROMISE("a fetch from nothing: error 0x14", CAUGHT(fetch(nothing)) && SAW(SIGSEGV, SEGV_MAPERR, 14, 0x14));
	(void)*readable;
	PROMISE("a read of a page that its program may no longer use: error 4", CAUGHT((void)*page(PROT_NONE)) && SAW(SIGSEGV, SEGV_ACCERR, 14, 4));
	volatile char *untouched = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	PROMISE("a write to a read-only page that is not there yet: error 6", CAUGHT(*untouched = 1) && SAW(SIGSEGV, SEGV_ACCERR, 14, 6));
	PROMISE("a write to a present read-only page: error 7", CAUGHT(*readable = 1) && SAW(SIGSEGV, SEGV_ACCERR, 14, 7));
	PROMISE("a fetch from a present page of data: error 0x15", CAUGHT(fetch(data)) && SAW(SIGSEGV, SEGV_ACCERR, 14, 0x15));
	PROMISE("a read from a kernel address: protection, error 5", CAUGHT((void)*kernel) && SAW(SIGSEGV, SEGV_MAPERR, 14, 5));
	PROMISE("a write to a kernel address: error 7", CAUGHT(*kernel = 1) && SAW(SIGSEGV, SEGV_MAPERR, 14, 7));
	PROMISE("a fetch from a kernel address: error 0x15", CAUGHT(fetch(kernel)) && SAW(SIGSEGV, SEGV_MAPERR, 14, 0x15));
	PROMISE("and its address is told", seen_address == kernel);
	volatile char *end = (char *)LAST_PAGE_END;
	PROMISE("the page behind the last of programs is the kernel's: error 5", CAUGHT((void)*end) && SAW(SIGSEGV, SEGV_MAPERR, 14, 5));
	volatile char *wild = (char *)0x800000000000;
	PROMISE("an address that is not canonical: trap 13", CAUGHT((void)*wild) && SAW(SIGSEGV, SI_KERNEL, 13, 0) && seen_address == NULL);
	PROMISE("a jump to one: trap 13", CAUGHT(fetch(wild)) && SAW(SIGSEGV, SI_KERNEL, 13, 0));
	char *file = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, open("/proc/self/exe", O_RDONLY), 1 << 30);
	NEED(file != MAP_FAILED);
	PROMISE("a page behind a file's end: SIGBUS, error 4", CAUGHT((void)*(volatile char *)file) && SAW(SIGBUS, BUS_ADRERR, 14, 4));
	PROMISE("division by zero: trap 0", CAUGHT(__asm__ volatile("xor %%ecx, %%ecx\n div %%ecx" : : "a"(1), "d"(0) : "ecx", "cc")) &&
		SAW(SIGFPE, FPE_INTDIV, 0, 0));
	PROMISE("ud2: trap 6", CAUGHT(__asm__ volatile("ud2")) && SAW(SIGILL, ILL_ILLOPN, 6, 0));
	PROMISE("int3: trap 3", CAUGHT(__asm__ volatile("int3")) && SAW(SIGTRAP, SI_KERNEL, 3, 0));
	PROMISE("hlt: trap 13", CAUGHT(__asm__ volatile("hlt")) && SAW(SIGSEGV, SI_KERNEL, 13, 0));
	PROMISE("int $4: overflow, trap 4", CAUGHT(__asm__ volatile("int $4")) && SAW(SIGSEGV, SI_KERNEL, 4, 0));
	PROMISE("a wrong selector: its error code", CAUGHT(__asm__ volatile("mov %0, %%ds" : : "r"(0x18))) && SAW(SIGSEGV, SI_KERNEL, 13, 0x18));
}

/* An x87 division of 1 by `by` with the exceptions `unmasked`. */
static void divide(double by, unsigned short unmasked)
{
	unsigned short control = 0x37f & ~unmasked;
	double one = 1;
	__asm__ volatile("fnclex\n fldcw %0\n fldl %1\n fdivl %2\n fwait\n fstp %%st(0)" : : "m"(control), "m"(one), "m"(by) : "st");
}

/* A status word with the error summary bits (ES, B) but no error bit. */
static void summary_without_error(void)
{
	static unsigned char image[512] __attribute__((aligned(16)));
	__asm__ volatile("fninit; fxsave %0" : "=m"(image));
	image[2] = 0x80;
	image[3] = 0x80;
	__asm__ volatile("fxrstor %0; fwait; fld1; fstp %%st(0); fwait" : : "m"(image));
}

static void floating_point(void)
{
	int status;
	IN_CHILD(status, alarm(10); summary_without_error());
	PROMISE("an x87 summary of errors without an error is none", status == 0);
	install(SIGFPE, note_and_leave, 0);
	PROMISE("x87 division by zero", CAUGHT(divide(0, 4)) && SAW(SIGFPE, FPE_FLTDIV, 16, 0));
	__asm__ volatile("fninit");
	PROMISE("an inexact x87 result", CAUGHT(divide(3, 0x20)) && SAW(SIGFPE, FPE_FLTRES, 16, 0));
	__asm__ volatile("fninit");
	unsigned short control = 0x37f & ~1;
	double minus = -1;
	PROMISE("an invalid x87 operation",
		CAUGHT(__asm__ volatile("fldcw %0\n fldl %1\n fsqrt\n fwait" : : "m"(control), "m"(minus))) && SAW(SIGFPE, FPE_FLTINV, 16, 0));
	__asm__ volatile("fninit");
	PROMISE("its state is in the frame, and masked again in the handler", CAUGHT(divide(0, 4)) && ({ unsigned short now; __asm__ volatile("fnstcw %0" : "=m"(now)); now == 0x37f; }));
	__asm__ volatile("fninit");
}

/* An SSE division of `above` by `below` with the exceptions `unmasked`. */
static void divide_sse(double above, double below, unsigned unmasked)
{
	unsigned control = 0x1f80 & ~(unmasked << 7);
	__asm__ volatile("ldmxcsr %0\n divsd %2, %1" : : "m"(control), "x"(above), "x"(below));
}

static void what_processors_check(void)
{
	static char bytes[16] __attribute__((aligned(16)));
	if (is_emulated())
		return;
	install_all(note_and_leave, 0);
	PROMISE("with AC a misaligned access is SIGBUS",
		CAUGHT(__asm__ volatile("pushfq\n orl $0x40000, (%%rsp)\n popfq\n mov 1(%0), %%eax" : : "r"(bytes) : "rax", "cc")) &&
			SAW(SIGBUS, BUS_ADRALN, 17, 0));
	PROMISE("icebp: a breakpoint, trap 1", CAUGHT(__asm__ volatile(".byte 0xf1")) && SAW(SIGTRAP, TRAP_BRKPT, 1, 0));
	PROMISE("int $0x50: the gate's error code", CAUGHT(__asm__ volatile("int $0x50")) && SAW(SIGSEGV, SI_KERNEL, 13, 0x50 << 3 | 2));
	PROMISE("SSE division by zero", CAUGHT(divide_sse(1, 0, 4)) && SAW(SIGFPE, FPE_FLTDIV, 19, 0));
	PROMISE("an invalid SSE operation", CAUGHT(divide_sse(0, 0, 1)) && SAW(SIGFPE, FPE_FLTINV, 19, 0));
	PROMISE("an inexact SSE result", CAUGHT(divide_sse(1, 3, 0x20)) && SAW(SIGFPE, FPE_FLTRES, 19, 0));
	PROMISE("SSE overflow", CAUGHT(divide_sse(1e300, 1e-300, 8)) && SAW(SIGFPE, FPE_FLTOVF, 19, 0));
}

static unsigned long flags_now(void)
{
	unsigned long flags;
	__asm__ volatile("pushfq\n pop %0" : "=r"(flags));
	return flags;
}

/* Sets flags, runs instructions, and returns the flags after them; the direction flag is cleared
 * again. */
#define WITH_FLAGS(set, instructions)                                                               \
	({                                                                                          \
		unsigned long after_;                                                               \
		__asm__ volatile("lea -128(%%rsp), %%rsp\n pushfq\n orq %1, (%%rsp)\n popfq\n" instructions          \
				 "\n pushfq\n pop %0\n pushfq\n andq %2, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp"                       \
				 : "=&r"(after_)                                                    \
				 : "r"((unsigned long)(set)), "r"(~(FLAG_ALIGNMENT | FLAG_NESTED | FLAG_DIRECTION | FLAG_TRAP))               \
				 : "rax", "rcx", "rdx", "rdi", "rsi", "r11", "memory", "cc");                             \
		after_;                                                                             \
	})

static volatile int stepped, step_nested;

/* Handler of the first single step: clears the trap flag, so that the program continues. */
static void end_of_step(int signal, siginfo_t *info, void *context)
{
	note(signal, info, context);
	ucontext_t *user = context;
	stepped++;
	step_nested = !!(user->uc_mcontext.gregs[REG_EFL] & FLAG_NESTED);
	user->uc_mcontext.gregs[REG_EFL] &= ~FLAG_TRAP;
}

static void over_two_bytes(int signal, siginfo_t *info, void *context)
{
	note(signal, info, context);
	((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;
}

static void change_nested(int signal, siginfo_t *info, void *context)
{
	over_two_bytes(signal, info, context);
	((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] ^= FLAG_NESTED | FLAG_IDENTIFICATION | 0x3000;
}

static void flags(void)
{
	unsigned long odd = FLAG_NESTED | FLAG_ALIGNMENT | FLAG_DIRECTION;
	install(SIGILL, over_two_bytes, 0);
	PROMISE("NT, AC and DF stay through a system call", (WITH_FLAGS(odd, "mov $39, %%eax\n syscall") & odd) == odd);
	PROMISE("and through a page fault", (WITH_FLAGS(odd, "movb $1, -4096(%%rsp)") & odd) == odd);
	PROMISE("and through an exception and its handler", (WITH_FLAGS(odd, "ud2") & odd) == odd);
	PROMISE("the handler's context has them", ((unsigned long)seen_flags & odd) == odd);
	PROMISE("and through giving up the CPU", (WITH_FLAGS(odd, "mov $24, %%eax\n syscall") & odd) == odd);
	pid_t child = fork();
	if (child == 0)
		for (;;)
			sched_yield();
	unsigned long after = odd;
	for (int i = 0; i < 50; i++)
		after &= WITH_FLAGS(odd, "mov $20000, %%ecx\n 1: dec %%ecx\n jnz 1b\n mov $24, %%eax\n syscall");
	PROMISE("while another program has other flags", (after & odd) == odd);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	PROMISE("NT alone stays", (WITH_FLAGS(FLAG_NESTED, "ud2\n mov $39, %%eax\n syscall") & odd) == FLAG_NESTED);
	install(SIGTRAP, end_of_step, 0);
	stepped = 0;
	after = WITH_FLAGS(FLAG_TRAP | FLAG_NESTED, "nop");
	PROMISE("a step with NT: one trap, and NT stays", stepped == 1 && SAW(SIGTRAP, TRAP_TRACE, 1, 0) && step_nested && (after & FLAG_NESTED));
	stepped = 0;
	after = WITH_FLAGS(FLAG_TRAP | FLAG_NESTED | FLAG_ALIGNMENT, "mov $39, %%eax\n syscall\n nop");
	PROMISE("the same over a system call", stepped == 1 && (after & (FLAG_NESTED | FLAG_ALIGNMENT)) == (FLAG_NESTED | FLAG_ALIGNMENT));
	install(SIGILL, change_nested, 0);
	unsigned long before = flags_now();
	after = WITH_FLAGS(0, "ud2");
	PROMISE("a handler cannot change NT, ID and IOPL in its context", ((before ^ after) & (FLAG_NESTED | FLAG_IDENTIFICATION | 0x3000)) == 0);
}

/* Vector state. */

static volatile int damage_at, damage, times;
static volatile int64_t damage_from;

static void damage_frame(int signal, siginfo_t *info, void *context)
{
	note(signal, info, context);
	ucontext_t *user = context;
	((unsigned char *)user->uc_mcontext.fpregs)[damage_at] ^= damage;
	user->uc_mcontext.gregs[REG_RBX] = 4711;
	user->uc_mcontext.gregs[REG_RIP] += 2;
	damage_from = user->uc_mcontext.gregs[REG_RIP];
}

static volatile long segv_rax, segv_rbx, segv_rip;

static void note_segv(int signal, siginfo_t *info, void *context)
{
	note(signal, info, context);
	ucontext_t *user = context;
	segv_rax = user->uc_mcontext.gregs[REG_RAX];
	segv_rbx = user->uc_mcontext.gregs[REG_RBX];
	segv_rip = user->uc_mcontext.gregs[REG_RIP];
	if (times++ > 3)
		_exit(99);
}

/* Damages one byte of the vector state in a frame; returns the number of SIGSEGV that follow. */
static int damaged(int at, int bits)
{
	long rbx = 0;
	damage_at = at;
	damage = bits;
	times = 0;
	install(SIGUSR2, damage_frame, 0);
	install(SIGILL, damage_frame, 0);
	install(SIGSEGV, note_segv, 0);
	__asm__ volatile("mov $7, %%rbx\n ud2\n mov %%rbx, %0" : "=r"(rbx) : : "rbx", "rax", "memory");
	return rbx == 4711 ? times : -1;
}

static volatile int begun;
static uint64_t begun_xmm[3][2], begun_mxcsr[3];

/* Notes the vector state in the frames of signals that arrive together. The last handler that is
 * entered runs first. */
static void note_vector_state(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)info;
	const struct _libc_fpstate *state = ((ucontext_t *)context)->uc_mcontext.fpregs;
	memcpy(begun_xmm[begun], &state->_xmm[9], 16);
	begun_mxcsr[begun++] = state->mxcsr;
}

/* A handler begins with a new program's vector state. If a second handler is entered before the
 * first has run, its frame holds this state. */
static void handlers_begin_anew(void)
{
	sigset_t both;
	sigemptyset(&both);
	for (int signal = SIGUSR1; signal <= SIGUSR2; signal += SIGUSR2 - SIGUSR1) {
		install(signal, note_vector_state, 0);
		sigaddset(&both, signal);
	}
	NEED(sigprocmask(SIG_BLOCK, &both, NULL) == 0);
	NEED(raise(SIGUSR1) == 0 && raise(SIGUSR2) == 0);
	uint64_t xmm = 0x1122334455667788, after = 0;
	unsigned mxcsr = 0x1f80 | 0x6000, usual = 0x1f80;
	register long size __asm__("r10") = 8;
	long call = SYS_rt_sigprocmask;
	__asm__ volatile("movq %2, %%xmm9\n ldmxcsr %3\n syscall\n ldmxcsr %4\n movq %%xmm9, %1"
		: "+a"(call), "=&r"(after)
		: "r"(xmm), "m"(mxcsr), "m"(usual), "D"((long)SIG_UNBLOCK), "S"(&both), "d"(0L), "r"(size)
		: "rcx", "r11", "xmm9", "memory");
	PROMISE("two handlers are entered", call == 0 && begun == 2);
	PROMISE("the frame of the second has a new program's SSE registers and MXCSR",
		!begun_xmm[0][0] && !begun_xmm[0][1] && begun_mxcsr[0] == 0x1f80);
	PROMISE("that of the first has the program's", begun_xmm[1][0] == xmm && begun_mxcsr[1] == mxcsr);
	PROMISE("and the program has them afterwards", after == xmm);
}

static void vector_state(void)
{
	unsigned eax, ebx, ecx, edx;
	NEED(__get_cpuid(1, &eax, &ebx, &ecx, &edx));
	if (!(ecx & bit_OSXSAVE))
		return;
	PROMISE("an undamaged frame is taken", damaged(0, 0) == 0);
	PROMISE("a reserved MXCSR bit: one SIGSEGV", damaged(27, 0x80) == 1);
	PROMISE("an unknown component: one SIGSEGV, and the program goes on", damaged(512 + 7, 0x40) == 1);
	PROMISE("from the kernel, where the handler wanted to go on, with its registers but rax",
		seen_code == SI_KERNEL && segv_rip == damage_from && segv_rbx == 4711 && segv_rax == 0);
	PROMISE("a compacted form that is none: one SIGSEGV", damaged(512 + 8, 1) == 1);
	PROMISE("a reserved byte of the header: one SIGSEGV", damaged(512 + 23, 1) == 1);
	PROMISE("a wrong magic number: the legacy area is taken", damaged(464, 1) == 0);
	PROMISE("a wrong size: the same", damaged(464 + 16 + 3, 0x7f) == 0);
	uint64_t xmm = 0x1122334455667788, after = 0;
	install(SIGILL, damage_frame, 0);
	damage_at = 464;
	damage = 1;
	__asm__ volatile("movq %1, %%xmm9\n ud2\n movq %%xmm9, %0" : "=r"(after) : "r"(xmm) : "xmm9", "rbx", "rax", "memory");
	PROMISE("with its SSE registers", after == xmm);
	damaged(512 + 7, 0x40);
	unsigned mxcsr;
	__asm__ volatile("stmxcsr %0" : "=m"(mxcsr));
	PROMISE("after damage the state is a new program's", (mxcsr & ~0x3fu) == 0x1f80);
}

/* Signal frames that do not fit on the stack. */

static void exit_42(int signal, siginfo_t *info, void *context)
{
	(void)context;
	_exit(signal == SIGSEGV && info->si_code == SI_KERNEL ? 42 : 43);
}

static void exit_on_other_stack(int signal, siginfo_t *info, void *context)
{
	note(signal, info, context);
	_exit((char *)seen_stack > other_stack && (char *)seen_stack < other_stack + sizeof other_stack && info->si_code == SI_KERNEL ? 44 : 45);
}

static void again(int signal, siginfo_t *info, void *context)
{
	(void)info;
	(void)context;
	raise(signal);
}

static void raise_on_stack(void *stack)
{
	__asm__ volatile("mov %%rsp, %%rbx\n mov %0, %%rsp\n mov $39, %%eax\n syscall\n mov %%eax, %%edi\n mov $10, %%esi\n mov $62, %%eax\n syscall\n mov %%rbx, %%rsp"
			 : : "r"(stack) : "rax", "rbx", "rcx", "rdi", "rsi", "r11", "memory");
}

static void frames_that_do_not_fit(void)
{
	stack_t stack = { .ss_sp = other_stack, .ss_size = sizeof other_stack };
	char *nothing = (char *)hole() + 2048, *half = (char *)page(PROT_READ | PROT_WRITE) + 512;
	int status;
	signal(SIGSEGV, SIG_DFL);
	IN_CHILD(status, install(SIGUSR1, note, 0); raise_on_stack(nothing));
	PROMISE("a frame without a stack is SIGSEGV", WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	IN_CHILD(status, install(SIGUSR1, note, 0); sigaltstack(&stack, NULL); install(SIGSEGV, exit_on_other_stack, SA_ONSTACK); raise_on_stack(nothing));
	PROMISE("whose handler runs on the alternate stack", WEXITSTATUS(status) == 44);
	IN_CHILD(status, install(SIGUSR1, note, 0); sigaltstack(&stack, NULL); install(SIGSEGV, exit_on_other_stack, SA_ONSTACK); raise_on_stack(half));
	PROMISE("the same where a part of it fits", WEXITSTATUS(status) == 44);
	IN_CHILD(status, install(SIGUSR1, note, 0); install(SIGSEGV, exit_42, 0); raise_on_stack(nothing));
	PROMISE("a SIGSEGV without a stack ends the program", WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	IN_CHILD(status, sigaltstack(&stack, NULL); install(SIGUSR1, again, SA_ONSTACK | SA_NODEFER); install(SIGSEGV, exit_42, SA_ONSTACK); raise(SIGUSR1));
	PROMISE("an alternate stack that overflows ends the program", WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	IN_CHILD(status, sigaltstack(&stack, NULL); install(SIGSEGV, exit_on_other_stack, SA_ONSTACK);
		 __asm__ volatile("mov %0, %%rsp\n push %%rax" : : "r"(hole()) : "memory"));
	PROMISE("a stack that overflows is SIGSEGV on the alternate stack", WEXITSTATUS(status) == 45 && !WIFSIGNALED(status));
	IN_CHILD(status, sigset_t set; sigemptyset(&set); sigaddset(&set, SIGSEGV); sigprocmask(SIG_BLOCK, &set, NULL);
		 install(SIGUSR1, note, 0); install(SIGSEGV, exit_42, 0); raise_on_stack(nothing));
	PROMISE("where SIGSEGV is blocked the program ends", WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

/* Selectors and bases. */

static unsigned selector_gs(void)
{
	unsigned value;
	__asm__ volatile("mov %%gs, %0" : "=r"(value));
	return value & 0xffff;
}

static void load_gs(unsigned selector)
{
	__asm__ volatile("mov %0, %%gs" : : "r"(selector));
}

static unsigned selector_ds_es(void)
{
	unsigned ds, es;
	__asm__ volatile("mov %%ds, %0\n mov %%es, %1" : "=r"(ds), "=r"(es));
	return (ds & 0xffff) << 16 | (es & 0xffff);
}

static unsigned long gs_base(void)
{
	unsigned long base = 1;
	NEED(syscall(SYS_arch_prctl, ARCH_GET_GS, &base) == 0);
	return base;
}

static volatile long in_handler_base;

static void note_base(int signal)
{
	(void)signal;
	in_handler_base = (long)gs_base();
}

/* Gives other programs the CPU, so that this one leaves it. */
static void be_switched(void)
{
	int status;
	IN_CHILD(status, load_gs(0x2b); syscall(SYS_arch_prctl, ARCH_SET_GS, 0x5000); sched_yield());
	sleep_ms(2);
}

static int was_null(void)
{
	/* The base after a null selector is loaded: 0 on CPUs where that clears the base,
	 * otherwise unchanged. */
	load_gs(0);
	return gs_base() == 0 || gs_base() == 0x1000;
}

static void bases(void)
{
	PROMISE("a new program's selectors are null or the usual ones", (selector_gs() | selector_ds_es()) == 0);
	PROMISE("arch_prctl sets the base of GS", syscall(SYS_arch_prctl, ARCH_SET_GS, 0x1000) == 0 && gs_base() == 0x1000);
	be_switched();
	PROMISE("other programs leave it", gs_base() == 0x1000 && selector_gs() == 0);
	load_gs(0x2b);
	PROMISE("loading a selector sets it to the segment's", gs_base() == 0 && selector_gs() == 0x2b);
	be_switched();
	PROMISE("and both stay", gs_base() == 0 && selector_gs() == 0x2b);
	int status;
	IN_CHILD(status, _exit(selector_gs()));
	PROMISE("a child has the selector too", WEXITSTATUS(status) == 0x2b);
	PROMISE("arch_prctl makes it null", syscall(SYS_arch_prctl, ARCH_SET_GS, 0x1000) == 0 && selector_gs() == 0 && gs_base() == 0x1000);
	signal(SIGUSR1, note_base);
	raise(SIGUSR1);
	PROMISE("a handler has the same base", in_handler_base == 0x1000);
	PROMISE("a null selector may clear the base", was_null());
	__asm__ volatile("mov %0, %%ds\n mov %0, %%es" : : "r"(0x2b));
	be_switched();
	PROMISE("DS and ES stay with their program", selector_ds_es() == 0x2b002b);
	IN_CHILD(status, _exit(selector_ds_es() == 0x2b002b ? 5 : 6));
	PROMISE("and its child", WEXITSTATUS(status) == 5);
	__asm__ volatile("mov %0, %%ds\n mov %0, %%es" : : "r"(0));
	FAILS_WITH("a kernel address is no base", syscall(SYS_arch_prctl, ARCH_SET_GS, KERNEL_ADDRESS), EPERM);
}

#define RDGSBASE(value) __asm__ volatile("rdgsbase %0" : "=r"(value))
#define WRGSBASE(value) __asm__ volatile("wrgsbase %0" : : "r"((unsigned long)(value)))

static unsigned long read_gs(void)
{
	unsigned long base;
	RDGSBASE(base);
	return base;
}

static void *in_thread(void *unused)
{
	(void)unused;
	unsigned long start = read_gs();
	WRGSBASE(0x7000);
	for (int i = 0; i < 100; i++)
		sched_yield();
	return (void *)(start == 0x3000 && read_gs() == 0x7000 ? 1ul : 0ul);
}

static void wrong_base_in_handler(int signal)
{
	(void)signal;
	in_handler_base = (long)read_gs();
	WRGSBASE(0x9000);
}

static void base_instructions(void)
{
	unsigned eax, ebx = 0, ecx, edx;
	__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx);
	int there = ebx & 1;
	PROMISE("AT_HWCAP2 says whether programs have RDGSBASE", !!(getauxval(AT_HWCAP2) & FEATURE_FSGSBASE) == there);
	if (!there)
		return;
	unsigned long fs;
	__asm__ volatile("rdfsbase %0" : "=r"(fs));
	PROMISE("RDFSBASE reads the thread pointer", fs == (unsigned long)pthread_self());
	WRGSBASE(0x3000);
	PROMISE("WRGSBASE sets what RDGSBASE and arch_prctl read", read_gs() == 0x3000 && gs_base() == 0x3000);
	PROMISE("and leaves the selector", selector_gs() == 0);
	be_switched();
	PROMISE("it stays when the program is switched away", read_gs() == 0x3000);
	pthread_t thread;
	void *kept;
	NEED(pthread_create(&thread, NULL, in_thread, NULL) == 0);
	for (int i = 0; i < 100; i++)
		sched_yield();
	pthread_join(thread, &kept);
	PROMISE("a thread inherits it and has its own", kept && read_gs() == 0x3000);
	int status;
	IN_CHILD(status, unsigned long base = read_gs(); WRGSBASE(1); sched_yield(); _exit(base == 0x3000 && read_gs() == 1 ? 5 : 6));
	PROMISE("a child has a copy", WEXITSTATUS(status) == 5 && read_gs() == 0x3000);
	signal(SIGUSR1, wrong_base_in_handler);
	raise(SIGUSR1);
	PROMISE("a handler sees and changes it", in_handler_base == 0x3000 && read_gs() == 0x9000);
	static const unsigned long hostile[] = { 0xffff888000000000, 0xffffffff81000000, 0xffff800000000000, -1ul, 0x7fffffffffff };
	int good = 1;
	for (unsigned i = 0; i < sizeof hostile / sizeof *hostile; i++) {
		WRGSBASE(hostile[i]);
		be_switched();
		good &= read_gs() == hostile[i] && gs_base() == hostile[i];
	}
	PROMISE("it may be any canonical address, and stays", good);
	install_all(note_and_leave, 0);
	PROMISE("through which nothing of the kernel is read",
		CAUGHT(WRGSBASE(KERNEL_ADDRESS); __asm__ volatile("mov %%gs:0, %%rax" : : : "rax")) && SAW(SIGSEGV, SEGV_MAPERR, 14, 5));
	if (!is_emulated())
		PROMISE("an address that is not canonical is refused", CAUGHT(WRGSBASE(1ul << 47)) && SAW(SIGSEGV, SI_KERNEL, 13, 0));
	load_gs(0x2b);
	WRGSBASE(0x4000);
	be_switched();
	PROMISE("a base set after a selector stays, with the selector", read_gs() == 0x4000 && selector_gs() == 0x2b);
	load_gs(0);
}

static void counter(void)
{
	int status, access = 0;
	PROMISE("programs may read the time-stamp counter", prctl(PR_GET_TSC, &access) == 0 && access == PR_TSC_ENABLE);
	FAILS_WITH("there are two settings", prctl(PR_SET_TSC, 3), EINVAL);
	FAILS_WITH("that are told at an address", prctl(PR_GET_TSC, 8), EFAULT);
	IN_CHILD(status, NEED(prctl(PR_SET_TSC, PR_TSC_SIGSEGV) == 0); __builtin_ia32_rdtsc());
	PROMISE("a program that may not is killed", WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	IN_CHILD(status, NEED(prctl(PR_SET_TSC, PR_TSC_SIGSEGV) == 0); sched_yield(); int inner;
		 IN_CHILD(inner, sched_yield(); __builtin_ia32_rdtsc()); _exit(!WIFSIGNALED(inner) || prctl(PR_GET_TSC, &access) || access != PR_TSC_SIGSEGV));
	PROMISE("so is its child", status == 0);
	IN_CHILD(status, NEED(prctl(PR_SET_TSC, PR_TSC_SIGSEGV) == 0 && prctl(PR_SET_TSC, PR_TSC_ENABLE) == 0); __builtin_ia32_rdtsc());
	PROMISE("unless it permits that again", status == 0);
	__builtin_ia32_rdtsc();
	PROMISE("other programs still read it", prctl(PR_GET_TSC, &access) == 0 && access == PR_TSC_ENABLE);
}

int main(void)
{
	counter();
	bases();
	base_instructions();
	error_codes();
	floating_point();
	what_processors_check();
	flags();
	handlers_begin_anew();
	vector_state();
	frames_that_do_not_fit();
	return conclude();
}
