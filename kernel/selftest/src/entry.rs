//! The state in which the CPU enters the kernel, with any values in the program's registers.
//!
//! Every way in asserts the state itself (`freehold_arch` has `entry-checks` here): flags, GS base,
//! control registers. These tests take each way with hostile values, and check that the kernel
//! saves the program's state and restores it.

use core::hint::black_box;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use freehold_arch::traps::{self, Registers};
use freehold_arch::user::{self, FpuImage, UserContext, UserEvent};
use freehold_arch::usercopy::{self, Faults};
use freehold_arch::{X86, cpu, serial, time};
use freehold_machine::{Access, CpuId, Cpus, PhysicalBytes, VirtAddr};

use crate::{REPEAT, SPACE, USER_BASE, user_frame};

const TRAP: u64 = 1 << 8;
const DIRECTION: u64 = 1 << 10;
const NESTED: u64 = 1 << 14;
const ALIGNMENT: u64 = 1 << 18;
const IDENTIFICATION: u64 = 1 << 21;

const CODE_PAGE: usize = 7;
const CODE: u64 = USER_BASE + CODE_PAGE as u64 * 4096;
const STACK: u64 = USER_BASE + 4096;
/// Nothing is ever mapped here.
const NOTHING: u64 = USER_BASE + 100 * 4096;

/// Put machine code where programs of this module run.
fn place(code: &[u8]) {
    static FRAME: AtomicU64 = AtomicU64::new(0);
    if FRAME.load(Ordering::Relaxed) == 0 {
        let frame = user_frame();
        X86.zero(frame);
        SPACE.lock().as_ref().expect("a space").map(CODE_PAGE, frame, 5);
        FRAME.store(frame.0, Ordering::Relaxed);
    }
    let frame = freehold_machine::Pfn(FRAME.load(Ordering::Relaxed));
    X86.with_bytes(frame, |bytes| bytes[..code.len()].copy_from_slice(code));
}

fn program() -> UserContext {
    let mut program = UserContext::new().expect("memory for a context");
    program.start(CODE, STACK);
    program
}

fn exception(vector: u8) -> UserEvent {
    UserEvent::Exception { vector, code: 0 }
}

pub fn tests() {
    flags_of_a_program_do_not_reach_the_kernel();
    a_timer_finds_the_kernel_clean();
    user_copies_stop_with_the_flags_that_they_began_with();
    bases_and_selectors_stay_with_their_program();
    a_program_in_32_bit_code_is_only_a_program();
    selectors_that_are_not_a_programs_are_refused();
    damaged_vector_states_are_refused_and_others_taken();
    nmis_of_this_cpu_find_its_data();
    watchpoints_are_a_programs_and_the_kernel_meets_none();
}

/// A program's store is a hit; an access of the kernel to the address is not. A MOV SS from that
/// address right before SYSCALL leads into the kernel and does no harm.
fn watchpoints_are_a_programs_and_the_kernel_meets_none() {
    const DATA: u64 = STACK - 64;
    // Two bytes, loads and stores.
    let watched = (&[DATA, 0, 0, 0], 1 | 7 << 16);
    // mov word [rdi], 0x2b; mov ss, [rdi]; syscall
    place(&[0x66, 0xc7, 0x07, 0x2b, 0, 0x8e, 0x17, 0x0f, 0x05]);
    let mut program = program();
    program.regs_mut().rdi = DATA;
    let is_hit = |event| matches!(event, Some(UserEvent::Exception { vector: 1, code }) if code & 0xf == 1);
    assert!(is_hit(program.run_watched_unless(watched, || false)));
    assert_eq!(program.regs().rip, CODE + 5, "behind the store");
    let mut bytes = [0; 2];
    assert_eq!(usercopy::read(VirtAddr(DATA), &mut bytes, Faults::Sleep), 2);
    assert_eq!(usercopy::write(VirtAddr(DATA), &bytes, Faults::Sleep), 2);
    assert_eq!(bytes, [0x2b, 0]);
    // An emulator reports it at once; a CPU reports it after SYSCALL, in the kernel, or not at all.
    let mut event = program.run_watched_unless(watched, || false);
    if is_hit(event) {
        event = program.run_watched_unless(watched, || false);
    }
    assert_eq!(event, Some(UserEvent::Syscall));
    // Without a watchpoint, it stores silently.
    let mut other = self::program();
    other.regs_mut().rdi = DATA;
    assert_eq!(other.run(), UserEvent::Syscall);
    assert_eq!(program.run_watched_unless(watched, || true), None);
    say!("watchpoints are a program's, and the kernel meets none");
}

/// Each way in, with each combination of flags.
fn flags_of_a_program_do_not_reach_the_kernel() {
    let fault = UserEvent::PageFault { addr: VirtAddr(NOTHING), access: Access::Write, code: 6 };
    let ways: [(&[u8], UserEvent); 6] = [
        (&[0x0f, 0x05], UserEvent::Syscall),
        (&[0x0f, 0x0b], exception(6)),
        (&[0xcc], exception(3)),
        (&[0xcd, 4], exception(4)),
        (&[0xf4], exception(13)),
        (&[0x88, 0x06], fault),
    ];
    let before = traps::checked_entries();
    let sets = [
        0,
        ALIGNMENT,
        NESTED,
        DIRECTION,
        ALIGNMENT | NESTED | DIRECTION | IDENTIFICATION,
        ALIGNMENT | NESTED | TRAP,
    ];
    let mut runs = 0;
    for (code, expected) in ways {
        place(code);
        for flags in sets {
            let mut program = program();
            program.regs_mut().rflags = flags;
            program.regs_mut().rsi = NOTHING;
            assert_eq!(program.run(), expected, "flags {flags:#x}");
            assert_eq!(program.regs().rflags & !0x1_0202, flags, "saved at {expected:?}");
            runs += 1;
        }
    }
    // A single step: the flags that the handler begins with are not the program's.
    place(&[0x90, 0x90]);
    let mut stepped = program();
    stepped.regs_mut().rflags = TRAP | NESTED | ALIGNMENT;
    let event = stepped.run();
    assert!(matches!(event, UserEvent::Exception { vector: 1, code } if code & 1 << 14 != 0), "{event:?}");
    assert_eq!((stepped.regs().rip, stepped.regs().rflags & NESTED), (CODE + 1, NESTED));
    assert!(traps::checked_entries() >= before + runs + 1, "the checks are compiled in");
    say!("no flag of a program reaches the kernel");
}

fn a_timer_finds_the_kernel_clean() {
    place(&[0xeb, 0xfe]);
    let mut spinning = program();
    for flags in [ALIGNMENT, NESTED | DIRECTION | ALIGNMENT] {
        spinning.regs_mut().rflags = flags;
        REPEAT.store(true, Ordering::Relaxed);
        time::arm(time::now() + 200_000);
        assert_eq!(spinning.run(), UserEvent::Interrupt);
        REPEAT.store(false, Ordering::Relaxed);
        time::arm(u64::MAX);
        assert_eq!(spinning.regs().rflags & flags, flags);
    }
}

/// A fault in the middle of a copy, where AC is set: the handler asserts that it runs with AC
/// clear, and the copy continues.
fn user_copies_stop_with_the_flags_that_they_began_with() {
    let before = traps::checked_entries();
    let mut bytes = [0u8; 4096];
    assert_eq!(usercopy::read(VirtAddr(NOTHING - 8), &mut bytes, Faults::Sleep), 0);
    assert_eq!(usercopy::read(VirtAddr(USER_BASE), &mut bytes, Faults::Sleep), 4096);
    assert!(traps::checked_entries() > before);
}

fn bases_and_selectors_stay_with_their_program() {
    // mov rdx, gs; mov gs, eax; mov rcx, gs; syscall; mov rdx, gs; ud2
    place(&[0x8c, 0xea, 0x8e, 0xe8, 0x8c, 0xe9, 0x0f, 0x05, 0x8c, 0xea, 0x0f, 0x0b]);
    let (mut one, mut two) = (program(), program());
    one.set_gs_base(USER_BASE).expect("a user address");
    one.regs_mut().rax = user::USER_DATA;
    assert_eq!(one.run(), UserEvent::Syscall);
    assert_eq!(one.gs_base(), 0, "a selector brings its base");
    assert_eq!(two.run(), UserEvent::Syscall);
    assert_eq!(two.regs().rdx, 0, "the selector of another program");
    assert_eq!(one.run(), exception(6));
    assert_eq!(one.regs().rdx, user::USER_DATA, "its own selector");
    let mut copy = one.try_clone().expect("memory for a context");
    copy.regs_mut().rip = CODE + 8;
    assert_eq!(copy.run(), exception(6));
    assert_eq!(copy.regs().rdx, user::USER_DATA, "a copy's selector");
    one.start(CODE + 8, STACK);
    assert_eq!(one.run(), exception(6));
    assert_eq!(one.regs().rdx, 0, "a new program's selector");
    if !user::has_fsgsbase() {
        say!("selectors stay with their program; this CPU has no FSGSBASE");
        return;
    }
    // wrgsbase rax; wrfsbase rdi; syscall; rdgsbase rbx; rdfsbase rdi; ud2
    place(&[
        0xf3, 0x48, 0x0f, 0xae, 0xd8, 0xf3, 0x48, 0x0f, 0xae, 0xd7, 0x0f, 0x05, 0xf3, 0x48, 0x0f, 0xae, 0xcb,
        0xf3, 0x48, 0x0f, 0xae, 0xc7, 0x0f, 0x0b,
    ]);
    for base in hostile_bases() {
        let (mut one, mut two) = (program(), program());
        (one.regs_mut().rax, one.regs_mut().rdi) = (base, !base);
        (two.regs_mut().rax, two.regs_mut().rdi) = (1, 2);
        assert_eq!((one.run(), two.run()), (UserEvent::Syscall, UserEvent::Syscall));
        assert_eq!((one.gs_base(), one.fs_base()), (base, !base));
        assert_eq!((one.run(), two.run()), (exception(6), exception(6)));
        assert_eq!((one.regs().rbx, one.regs().rdi), (base, !base));
        assert_eq!((two.regs().rbx, two.regs().rdi), (1, 2));
    }
    say!("bases and selectors stay with their program");
}

/// Values that a program may put into its GS base: user, kernel, this kernel's text, the ends of
/// both halves.
fn hostile_bases() -> [u64; 6] {
    let text = tests as *const () as u64;
    [0, USER_BASE, text, 0xffff_8000_0000_0000, u64::MAX, (1 << 47) - 1]
}

fn a_program_in_32_bit_code_is_only_a_program() {
    // syscall; ud2
    place(&[0x0f, 0x05, 0x0f, 0x0b]);
    let mut program = program();
    program.regs_mut().cs = user::USER_CODE_32;
    program.regs_mut().rax = 20;
    assert_eq!(program.run(), exception(6), "SYSCALL does nothing there, or is no instruction (Intel)");
    assert_eq!(program.regs().cs, user::USER_CODE_32);
    assert!([20, 0xffff_ffda].contains(&program.regs().rax), "{:#x}", program.regs().rax);
    // A timer in 32-bit code leads back to 32-bit code: inc ecx (a prefix in 64-bit code); jmp.
    place(&[0x41, 0xeb, 0xfd]);
    program.start(CODE, STACK);
    program.regs_mut().cs = user::USER_CODE_32;
    let mut led_back = 0;
    // A timer that is due before the first instruction shows nothing, so the number of attempts is
    // not limited. The boot has a deadline.
    while led_back < 3 {
        REPEAT.store(true, Ordering::Relaxed);
        time::arm(time::now() + 200_000);
        let before = program.regs().rcx;
        assert_eq!(program.run(), UserEvent::Interrupt);
        REPEAT.store(false, Ordering::Relaxed);
        time::arm(u64::MAX);
        assert_eq!((program.regs().cs, program.regs().rip & !3), (user::USER_CODE_32, CODE));
        led_back += u32::from(program.regs().rcx > before);
    }
}

fn selectors_that_are_not_a_programs_are_refused() {
    place(&[0x0f, 0x0b]);
    let refused = |code| UserEvent::Exception { vector: 13, code };
    for (cs, ss, expected) in [
        (0x10, 0x2b, refused(0x10)),
        (0x13, 0x2b, refused(0x10)),
        (3, 0x2b, refused(0)),
        (0x2b, 0x2b, refused(0x28)),
        (0x33, 0x1b, refused(0x18)),
        (0x33, 3, refused(0)),
        (0x33, 0x43, refused(0x40)),
        (0x23, 0x2b, exception(6)),
        (0x33, 0x2b, exception(6)),
    ] {
        let mut program = program();
        (program.regs_mut().cs, program.regs_mut().ss) = (cs, ss);
        assert_eq!(program.run(), expected, "cs {cs:#x}, ss {ss:#x}");
    }
    for rip in [user::USER_END, 0xffff_8000_0000_0000, tests as *const () as u64] {
        let mut program = program();
        program.regs_mut().rip = rip;
        let event = program.run();
        let fetched = matches!(event, UserEvent::PageFault { addr: VirtAddr(addr), access: Access::Execute, .. } if addr == rip);
        assert!(fetched, "rip {rip:#x}: {event:?}");
    }
    say!("selectors and addresses that are not a program's are refused");
}

fn damaged_vector_states_are_refused_and_others_taken() {
    let mut program = program();
    let clean = program.fpu().to_vec();
    if clean.len() == 512 {
        return;
    }
    let mut load = |at: usize, value: u8, components: u64| {
        let result = program.load_fpu(|area| {
            area.copy_from_slice(&clean);
            area[at] ^= value;
            FpuImage { bytes: area.len(), components }
        });
        // A state that is taken must not fault in the kernel.
        assert_eq!(program.run(), exception(6));
        result.is_ok()
    };
    for bit in 0..8 {
        assert!(!load(519, 1 << bit, u64::MAX), "unknown component {}", 56 + bit);
        assert!(!load(520, 1 << bit, u64::MAX), "compacted form");
        assert!(!load(535, 1 << bit, u64::MAX), "reserved header");
        // Bit 17 exists on some CPUs.
        assert!(bit == 1 || !load(26, 1 << bit, u64::MAX), "MXCSR bit {}", 16 + bit);
        assert!(load(536, 1 << bit, u64::MAX), "ignored header bytes");
        assert!(load(575, 1 << bit, u64::MAX), "ignored header bytes");
        assert!(load(0, 1 << bit, u64::MAX) && load(160, 1 << bit, u64::MAX));
    }
    assert!(load(26, 1, 1), "MXCSR where no component loads it");
    say!("damaged vector states are refused");
}

static NMIS_IN_USER_MODE: AtomicUsize = AtomicUsize::new(0);
static NMIS_IN_KERNEL_MODE: AtomicUsize = AtomicUsize::new(0);
/// While set, the second CPU sends NMIs to the first.
pub static STORM: AtomicBool = AtomicBool::new(false);
static OVERFLOW: AtomicBool = AtomicBool::new(false);

fn note_nmi(frame: &Registers) {
    if OVERFLOW.load(Ordering::Relaxed) {
        crate::overflow(frame.rip);
    }
    let count = if frame.cs & 3 == 0 { &NMIS_IN_KERNEL_MODE } else { &NMIS_IN_USER_MODE };
    count.fetch_add(1, Ordering::Relaxed);
}

fn nmis_of_this_cpu_find_its_data() {
    traps::set_nmi_hook(note_nmi);
    cpu::send_nmi(CpuId(0));
    let end = time::now() + 5_000_000_000;
    while NMIS_IN_KERNEL_MODE.load(Ordering::Relaxed) == 0 {
        assert!(time::now() < end, "no NMI came");
    }
}

/// Another CPU sends NMIs while programs with hostile registers enter and leave the kernel.
pub fn nmis_find_this_cpus_data_at_any_moment() {
    // wrgsbase rax (where there is one); loop: syscall; mov r8, 20; 1: dec r8; jnz 1b; jmp loop
    let mut code = alloc::vec::Vec::new();
    if user::has_fsgsbase() {
        code.extend([0xf3, 0x48, 0x0f, 0xae, 0xd8]);
    }
    code.extend([0x0f, 0x05, 0x49, 0xc7, 0xc0, 20, 0, 0, 0, 0x49, 0xff, 0xc8, 0x75, 0xfb, 0xeb, 0xf0]);
    place(&code);
    STORM.store(true, Ordering::Release);
    cpu::send_reschedule(CpuId(1));
    // As long as it takes: the boot has a deadline.
    while [&NMIS_IN_USER_MODE, &NMIS_IN_KERNEL_MODE].iter().any(|count| count.load(Ordering::Relaxed) < 50) {
        for base in hostile_bases() {
            let mut program = program();
            program.regs_mut().rax = base;
            program.regs_mut().rflags = ALIGNMENT | NESTED | DIRECTION;
            for _ in 0..200 {
                assert_eq!(program.run(), UserEvent::Syscall);
                assert_eq!(X86.current_cpu(), CpuId(0));
                program.set_return(base);
            }
        }
    }
    STORM.store(false, Ordering::Release);
    say!("NMIs find their CPU's data at any moment");
}

/// The failure that `selftest.die=overflow-nmi` requests.
pub fn overflow_the_nmi_stack() {
    OVERFLOW.store(true, Ordering::Relaxed);
    cpu::send_nmi(CpuId(0));
    let end = time::now() + 5_000_000_000;
    while black_box(time::now()) < end {}
}

/// Two machine checks that `tools/selftest` brings about: the first ends a program, the second the
/// machine.
pub fn wait_for_machine_checks() {
    place(&[0xeb, 0xfe]);
    let mut spinning = program();
    say!("waiting for a machine check in user mode");
    // Without a timer: QEMU passes on what its monitor says when something stops the CPU, and an
    // interrupt would stop it in kernel mode, before the first instruction.
    let event = spinning.run();
    assert!(matches!(event, UserEvent::Exception { vector: 18, code } if code >> 63 == 1), "{event:?}");
    assert_eq!(spinning.regs().rip, CODE);
    say!("a program ended by a machine check; waiting for one in kernel mode");
    let end = time::now() + 30_000_000_000;
    while time::now() < end {
        core::hint::spin_loop();
    }
}
