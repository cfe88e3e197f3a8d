//! User mode: a program's registers, and running it until it traps.
//!
//! A [`UserContext`] is run by one thread at a time. Its general registers are in memory whenever
//! the kernel runs; its floating-point registers, its data segments' selectors and the bases of FS
//! and GS stay in the CPU until the CPU switches to another thread, or the kernel needs them
//! ([`leave_fpu`]): the kernel itself uses none. The program can change them without the kernel
//! (MOV to a segment register, WRFSBASE, WRGSBASE), so all of them are read back. While no program
//! is resident, the selectors in the CPU are null.
//!
//! SYSRET is used where it gives the program exactly what IRET would: after a system call whose
//! frame only [`UserContext::set_return`] changed, with a canonical address and without TF or RF.
//! State that IRET would refuse (an address that is not canonical, a selector that is not a
//! program's) is refused here with the same exception. Manual: Intel SDM volume 1, 13 (XSAVE);
//! volume 2, SYSRET; volume 3, 6.14.3.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::arch::asm;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use freehold_machine::{Access, KeyRights, VirtAddr};

use crate::memory::OutOfMemory;
use crate::registers::{self, MSR_FS_BASE, MSR_KERNEL_GS_BASE, cpuid};
use crate::traps::{self, CheckPoint, Registers};
use crate::{cpu, irq};

mod counter;
mod fpu;
mod key_rights;
mod selectors;

pub use crate::traps::PROTECTION_KEY;
pub use counter::CounterAccess;
pub use fpu::{BadFpuState, FpuImage, is_acceptable_fpu, state_parts};
use fpu::{FEATURES, LEGACY_BYTES, valid_features};
pub(crate) use key_rights::{SavedRights, switch as switch_key_rights};
pub use key_rights::{has_protection_keys, key_rights, set_key_rights};

/// One past the highest user address.
pub const USER_END: u64 = 0x7fff_ffff_f000;

/// The selector of 64-bit code of programs.
pub const USER_CODE: u64 = 0x33;
/// The selector of programs' 32-bit code, which a far jump can select.
pub const USER_CODE_32: u64 = 0x23;
/// The selector of programs' stack and data.
pub const USER_DATA: u64 = 0x2b;
/// [`Registers::vector`] of a system call.
pub const VECTOR_SYSCALL: u64 = 0x100;
const VECTOR_DEBUG: u64 = 1;
const GENERAL_PROTECTION: u8 = 13;
const FLAG_ALWAYS: u64 = 1 << 1;
const FLAG_TRAP: u64 = 1 << 8;
const FLAG_INTERRUPT: u64 = 1 << 9;
const FLAG_RESUME: u64 = 1 << 16;
/// Flags that a program may set: CF PF AF ZF SF TF DF OF NT RF AC ID.
const FLAGS_USER: u64 = 0x25_4dd5;

/// Bytes of a saved floating-point state; 512 where only FXSAVE exists.
static AREA_BYTES: AtomicUsize = AtomicUsize::new(LEGACY_BYTES);
/// The features in XCR0; 0 if there is no XSAVE.
static ENABLED: AtomicU64 = AtomicU64::new(0);

/// The [switched](switched_features) features where the CPU has XSAVE and FSGSBASE; else 0.
static MODERN: AtomicU64 = AtomicU64::new(0);

/// Bytes of a floating-point state as [`UserContext::fpu`] gives it.
pub fn xsave_size() -> usize {
    AREA_BYTES.load(Ordering::Relaxed)
}

/// The state components that are saved (as in XCR0); 0 where only the FXSAVE part is.
pub fn xfeatures() -> u64 {
    ENABLED.load(Ordering::Relaxed)
}

/// The state components that XSAVE and XRSTOR switch. The rights to protection keys are switched
/// apart from them.
fn switched_features() -> u64 {
    xfeatures() & !key_rights::FEATURE
}

/// Enables floating point for programs on this CPU; on the first CPU, also finds out what it
/// supports.
pub(crate) fn init_cpu() {
    let mut features = cpuid(0xd, 0).eax as u64 & FEATURES;
    if !cpu::has_xsave() {
        return;
    }
    if cpu::has_protection_keys() {
        key_rights::init_cpu();
    } else {
        features &= !key_rights::FEATURE;
    }
    let features = valid_features(features);
    AREA_BYTES.store(fpu::enable(features), Ordering::Relaxed);
    ENABLED.store(features, Ordering::Relaxed);
    fpu::find_components();
    if has_fsgsbase() {
        MODERN.store(switched_features(), Ordering::Relaxed);
    }
}

/// 64 bytes of floating-point state, aligned as XSAVE requires.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct XsaveLine([u8; 64]);

struct VectorState {
    registers: Registers,
    resident: Resident,
}

/// The part of a program's state that stays in the CPU while other code runs. The values here are
/// those of the last time that the state was saved. Only the CPU that holds the state, or the
/// thread that runs the program, writes them.
pub(crate) struct Resident {
    /// The floating-point area of the same context.
    area: AtomicPtr<XsaveLine>,
    fs_base: AtomicU64,
    gs_base: AtomicU64,
    /// DS, ES, FS and GS as in [`registers::data_selectors`]. Null while they are in the CPU; else
    /// null or values that were read from the CPU when they were the program's.
    selectors: AtomicU64,
    /// Whether RDTSC faults: CR4.TSD is set while the state is in the CPU.
    hides_counter: AtomicBool,
}

/// The reason why a program stopped running.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UserEvent {
    /// The program made a system call.
    Syscall,
    /// The program accessed `addr` in a way that its page table does not allow.
    PageFault {
        /// The address.
        addr: VirtAddr,
        /// The access that the program tried.
        access: Access,
        /// The error code (Intel SDM volume 3, 4.7).
        code: u64,
    },
    /// Another exception.
    Exception {
        /// The exception's number (Intel SDM volume 3, table 6-1).
        vector: u8,
        /// Its error code; of a debug exception (1), the debug status register, of a machine check
        /// (18), the status of the bank that reported it; 0 where there is none.
        code: u64,
    },
    /// An interrupt came and was handled.
    Interrupt,
    /// An interrupt came that is not the kernel's above: closed windows were forgotten.
    Alarm,
}

/// A base address outside the user half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotUserAddress;

/// A program's registers.
pub struct UserContext {
    /// The registers, at a fixed address, since the CPU saves them there.
    state: Box<[VectorState; 1]>,
    fpu: Box<[XsaveLine]>,
    /// Rights to protection keys that a copied program begins with.
    first_rights: KeyRights,
    way_back: WayBack,
}

/// The way in which the program continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WayBack {
    /// After a system call: SYSRET may be used.
    Sysret,
    /// After another trap, with its frame as the CPU made it.
    Untouched,
    /// After a page fault, with its frame as the CPU made it: its instruction pointer was
    /// translated, so it is canonical.
    Faulted,
    /// The kernel may have changed any register.
    Changed,
}

impl core::fmt::Debug for UserContext {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.regs().fmt(f)
    }
}

fn try_boxed<T: Clone>(value: T, count: usize) -> Result<Box<[T]>, OutOfMemory> {
    let mut vec = Vec::new();
    vec.try_reserve_exact(count).map_err(|_| OutOfMemory)?;
    vec.resize(count, value);
    Ok(vec.into_boxed_slice())
}

impl UserContext {
    /// A program at address 0 with all registers zero.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn new() -> Result<Self, OutOfMemory> {
        let mut state = Vec::new();
        state.try_reserve_exact(1).map_err(|_| OutOfMemory)?;
        let mut fpu = try_boxed(XsaveLine([0; 64]), xsave_size().div_ceil(64))?;
        let resident = Resident {
            area: AtomicPtr::new(fpu.as_mut_ptr()),
            fs_base: AtomicU64::new(0),
            gs_base: AtomicU64::new(0),
            selectors: AtomicU64::new(0),
            hides_counter: AtomicBool::new(false),
        };
        state.push(VectorState { registers: Registers::default(), resident });
        let state = state.into_boxed_slice().try_into().map_err(|_| OutOfMemory)?;
        let first_rights = KeyRights::INITIAL;
        let mut context = Self { state, fpu, first_rights, way_back: WayBack::Changed };
        context.set_fresh(0, 0);
        Ok(context)
    }

    /// Begins a new program at `entry` with the stack pointer `stack`: all other registers are as
    /// after execve. So are the running thread's rights to protection keys.
    pub fn start(&mut self, entry: u64, stack: u64) {
        set_key_rights(KeyRights::INITIAL);
        self.set_fresh(entry, stack);
    }

    fn set_fresh(&mut self, entry: u64, stack: u64) {
        let fresh =
            Registers { rip: entry, rsp: stack, cs: USER_CODE, ss: USER_DATA, ..Registers::default() };
        *self.regs_mut() = fresh;
        self.clear_fpu();
        let resident = self.resident();
        for value in [&resident.fs_base, &resident.gs_base, &resident.selectors] {
            value.store(0, Ordering::Relaxed);
        }
    }

    fn resident(&self) -> &Resident {
        &self.state[0].resident
    }

    /// Returns a copy, floating-point state included, for a new thread.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn try_clone(&mut self) -> Result<Self, OutOfMemory> {
        self.save_if_live();
        let mut copy = Self::new()?;
        let lines = ..state_parts()[0].end.div_ceil(64);
        copy.fpu[lines].copy_from_slice(&self.fpu[lines]);
        copy.first_rights = key_rights();
        copy.state[0].registers = self.state[0].registers;
        let (from, to) = (self.resident(), copy.resident());
        to.fs_base.store(from.fs_base.load(Ordering::Relaxed), Ordering::Relaxed);
        to.gs_base.store(from.gs_base.load(Ordering::Relaxed), Ordering::Relaxed);
        to.selectors.store(from.selectors.load(Ordering::Relaxed), Ordering::Relaxed);
        to.hides_counter.store(from.hides_counter.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(copy)
    }

    /// The registers.
    pub fn regs(&self) -> &Registers {
        &self.state[0].registers
    }
    /// Returns the registers for any change; the return to the program is then the slow one. Flags
    /// and segments that a program may not have are corrected when it runs.
    pub fn regs_mut(&mut self) -> &mut Registers {
        self.way_back = WayBack::Changed;
        &mut self.state[0].registers
    }
    /// Whether the program's last entry to the kernel was an interrupt or a fault, and not a
    /// request.
    #[inline]
    pub fn was_interrupted(&self) -> bool {
        self.regs().vector != VECTOR_SYSCALL
    }
    /// The number of the system call that was made.
    pub fn syscall_number(&self) -> u64 {
        self.regs().error
    }
    /// The number of the system call that led to the kernel, if one did.
    pub fn called(&self) -> Option<u64> {
        (!self.was_interrupted()).then(|| self.syscall_number())
    }
    /// Its arguments.
    pub fn syscall_args(&self) -> [u64; 6] {
        let r = self.regs();
        [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9]
    }
    /// Sets the result of the system call.
    pub fn set_return(&mut self, value: u64) {
        self.state[0].registers.rax = value;
    }

    /// Run the program until it needs the kernel. Interrupts are on when this returns.
    pub fn run(&mut self) -> UserEvent {
        self.run_unless(|| false).expect("nothing is urgent")
    }

    /// Like [`UserContext::run`], but first checks with interrupts off whether there is other work
    /// (then returns `None`). So no work that an interrupt brings is missed.
    #[inline]
    pub fn run_unless(&mut self, urgent: impl FnOnce() -> bool) -> Option<UserEvent> {
        registers::disable_interrupts();
        if urgent() {
            registers::enable_interrupts();
            return None;
        }
        Some(self.run_now())
    }

    /// As [`UserContext::run_unless`], with hardware breakpoints and watchpoints: four addresses,
    /// and the debug control register with the bits of each. They are armed only while the program
    /// runs: no access of the kernel to the program's memory is a hit. A watchpoint at an I/O port,
    /// or at an address outside the user half, is left out. On QEMU's emulator all are left out
    /// while the program is stepped.
    pub fn run_watched_unless(
        &mut self,
        watched: (&[u64; 4], u64),
        urgent: impl FnOnce() -> bool,
    ) -> Option<UserEvent> {
        let (addresses, control) = watched;
        // QEMU's emulator delivers a hit in a single step as a second exception inside of the
        // step's: see `traps::give_program_up`.
        let is_stepped = self.regs().rflags & FLAG_TRAP != 0;
        let control = if is_stepped && registers::is_emulated() { 0 } else { control };
        let (addresses, control) = acceptable_watchpoints((addresses, control));
        registers::disable_interrupts();
        if urgent() {
            registers::enable_interrupts();
            return None;
        }
        Some(self.run_by(|frame, fast| {
            registers::arm_watchpoints(&addresses, control);
            // SAFETY: the caller's promise.
            unsafe { enter(frame, fast) };
            registers::disarm_watchpoints();
        }))
    }

    /// With interrupts off; they are on when this returns.
    fn run_now(&mut self) -> UserEvent {
        // SAFETY: the caller's promise.
        self.run_by(|frame, fast| unsafe { enter(frame, fast) })
    }

    /// As [`run_now`](Self::run_now), where `way_down` calls [`enter`] with its arguments.
    // Inlined into both callers: this is the path of each system call.
    #[inline(always)]
    fn run_by(&mut self, way_down: impl FnOnce(*mut Registers, u64)) -> UserEvent {
        let frame = &mut self.state[0].registers;
        let way_back = self.way_back;
        if way_back == WayBack::Changed {
            frame.rflags = frame.rflags & FLAGS_USER | FLAG_ALWAYS | FLAG_INTERRUPT;
        }
        // A trap may leave an address that is not canonical; SYSCALL and its flags cannot.
        if (way_back == WayBack::Changed || way_back == WayBack::Untouched && frame.rip >= USER_END)
            && let Err(code) = make_acceptable(frame)
        {
            registers::enable_interrupts();
            return UserEvent::Exception { vector: GENERAL_PROTECTION, code };
        }
        let fast = u64::from(way_back == WayBack::Sysret && frame.rflags & (FLAG_TRAP | FLAG_RESUME) == 0);
        let frame = &raw mut *frame;
        self.load_if_away();
        // The conditions of `enter` hold. Interrupts are off. The frame stays where it is until the
        // CPU has come back (its context is borrowed mutably). rip is canonical, and flags and
        // selectors are a program's (by the CPU, or by `make_acceptable` where the kernel changed
        // them). So the way down cannot fault.
        way_down(frame, fast);
        self.came_back()
    }

    /// With interrupts off, right after the trap.
    // As `run_by`.
    #[inline(always)]
    fn came_back(&mut self) -> UserEvent {
        traps::entry_state(CheckPoint::UserTrap);
        let frame = &self.state[0].registers;
        if frame.vector == VECTOR_SYSCALL {
            self.way_back = WayBack::Sysret;
            registers::enable_interrupts();
            return UserEvent::Syscall;
        }
        if frame.vector == traps::VECTOR_PAGE_FAULT {
            let (addr, code) = (VirtAddr(registers::read_cr2()), frame.error);
            self.way_back = WayBack::Faulted;
            registers::enable_interrupts();
            return UserEvent::PageFault { addr, access: traps::decode_page_fault(code), code };
        }
        let event = match frame.vector {
            VECTOR_DEBUG => UserEvent::Exception { vector: 1, code: registers::take_debug_status() },
            vector @ 0..32 => UserEvent::Exception { vector: vector as u8, code: frame.error },
            vector if traps::interrupt(vector as u8, traps::Interrupted::Program) => UserEvent::Interrupt,
            _ => UserEvent::Alarm,
        };
        self.way_back = WayBack::Untouched;
        registers::enable_interrupts();
        event
    }

    fn live_marker(&self) -> *mut Resident {
        ptr::from_ref(self.resident()).cast_mut()
    }

    /// With interrupts off: make the CPU's floating-point registers, selectors and bases this
    /// program's.
    // As `run_by`.
    #[inline(always)]
    fn load_if_away(&mut self) {
        let live = &cpu::this().user_live;
        let before = live.load(Ordering::Relaxed);
        if before == self.live_marker() {
            return;
        }
        if !before.is_null() {
            leave_fpu();
        }
        let area = self.fpu.as_mut_ptr().cast::<u8>();
        let resident = self.resident();
        let (fs_base, gs_base) =
            (resident.fs_base.load(Ordering::Relaxed), resident.gs_base.load(Ordering::Relaxed));
        // Before the bases: a selector brings its own.
        if resident.selectors.load(Ordering::Relaxed) != 0 {
            // While they are in the CPU, their place in memory is zero, so that leaving with null
            // selectors takes no store.
            load_selectors(resident.selectors.swap(0, Ordering::Relaxed));
        }
        let features = MODERN.load(Ordering::Relaxed) as u32;
        if features == 0 {
            load_slowly(area, fs_base, gs_base);
        } else {
            // SAFETY: the area is as long as CPUID says, aligned, and checked by `check_fpu` or
            // written by XSAVE.
            unsafe {
                asm!("xrstor64 [{}]", in(reg) area, in("eax") features, in("edx") 0, options(nostack, readonly))
            };
            // SAFETY: the bases are canonical: user addresses, or the CPU's old ones; CR4.FSGSBASE
            // is on; interrupts are off.
            unsafe { registers::write_bases(fs_base, gs_base) };
        }
        counter::entered(resident);
        live.store(self.live_marker(), Ordering::Relaxed);
    }

    /// If the CPU holds this program's floating-point registers, save them.
    #[inline]
    fn save_if_live(&self) {
        // If the thread moved to another CPU between the two checks, its state was saved then: a
        // CPU loads it again only to run its program.
        if cpu::this().user_live.load(Ordering::Relaxed) == self.live_marker() {
            self.save_live();
        }
    }

    #[inline(never)]
    fn save_live(&self) {
        let _off = irq::disable();
        if cpu::this().user_live.load(Ordering::Relaxed) == self.live_marker() {
            leave_fpu();
        }
    }
}

impl Drop for UserContext {
    fn drop(&mut self) {
        // A context that another CPU ran was saved when its thread left that CPU.
        self.save_if_live();
    }
}

/// Saves floating-point registers, selectors and bases of the program that this CPU last ran, if
/// they are not saved yet. Interrupts are off.
pub(crate) fn leave_fpu() {
    let live: &AtomicPtr<Resident> = &cpu::this().user_live;
    let resident = live.load(Ordering::Relaxed);
    // SAFETY: null, or part of a context that lives: dropping one saves it first.
    let Some(resident) = (unsafe { resident.as_ref() }) else { return };
    live.store(ptr::null_mut(), Ordering::Relaxed);
    let area = resident.area.load(Ordering::Relaxed).cast::<u8>();
    let features = MODERN.load(Ordering::Relaxed) as u32;
    let (fs_base, gs_base) = if features == 0 {
        save_slowly(area)
    } else {
        // SAFETY: the area belongs to the same context, is aligned, and as long as CPUID says. No
        // code wrote to it since XRSTOR.
        unsafe { fpu::save(area, features) };
        // SAFETY: CR4.FSGSBASE is on; interrupts are off.
        unsafe { registers::read_bases() }
    };
    resident.fs_base.store(fs_base, Ordering::Relaxed);
    resident.gs_base.store(gs_base, Ordering::Relaxed);
    counter::left(resident);
    if registers::has_data_selectors() {
        resident.selectors.store(registers::data_selectors(), Ordering::Relaxed);
        load_selectors(0);
    }
}

/// As in [`UserContext::load_if_away`], on a CPU without XSAVE or without FSGSBASE.
#[cold]
fn load_slowly(area: *mut u8, fs_base: u64, gs_base: u64) {
    let features = switched_features();
    if features == 0 {
        // SAFETY: the area is 512 bytes, aligned, and checked by `check_fpu` or written by FXSAVE.
        unsafe { asm!("fxrstor64 [{}]", in(reg) area, options(nostack, readonly)) };
    } else {
        // SAFETY: the area is as long as CPUID says, aligned, and checked by `check_fpu` or written
        // by XSAVE.
        unsafe {
            asm!("xrstor64 [{}]", in(reg) area, in("eax") features as u32, in("edx") 0, options(nostack, readonly))
        };
    }
    // SAFETY: FS is the program's alone, and the base is a user address or the CPU's old one.
    unsafe { registers::wrmsr(MSR_FS_BASE, fs_base) };
    // SAFETY: loaded by SWAPGS on the way to the program only; canonical, as above.
    unsafe { registers::wrmsr(MSR_KERNEL_GS_BASE, gs_base) };
}

/// As in [`leave_fpu`], on a CPU without XSAVE or without FSGSBASE. Returns the bases of FS and GS.
#[cold]
fn save_slowly(area: *mut u8) -> (u64, u64) {
    let features = switched_features();
    if features == 0 {
        // SAFETY: the area is 512 aligned bytes of the context that the CPU holds.
        unsafe { asm!("fxsave64 [{}]", in(reg) area, options(nostack)) };
    } else {
        // SAFETY: as above, with the length that CPUID says.
        unsafe {
            asm!("xsave64 [{}]", in(reg) area, in("eax") features as u32, in("edx") 0, options(nostack))
        };
    }
    // SAFETY: every 64-bit CPU has the register.
    let fs_base = unsafe { registers::rdmsr(MSR_FS_BASE) };
    // SAFETY: as above; in kernel mode it holds the program's base.
    let gs_base = unsafe { registers::rdmsr(MSR_KERNEL_GS_BASE) };
    (fs_base, gs_base)
}

/// Load a program's selectors, or 0 for none, as [`registers::load_data_selectors`].
#[cold]
fn load_selectors(selectors: u64) {
    // SAFETY: null, or read from the CPU when they were a program's; the descriptors never change.
    // Interrupts are off.
    unsafe { registers::load_data_selectors(selectors) };
}

/// Does what IRET does to the program's instruction pointer and selectors, so that IRET cannot
/// fault: refuses with the error code of its exception, or truncates values that 32-bit code cannot
/// have (Intel SDM volume 2, IRET). An instruction pointer in the kernel half faults as a fetch, in
/// user mode.
fn make_acceptable(frame: &mut Registers) -> Result<(), u64> {
    let canonical = (frame.rip as i64) << 16 >> 16 == frame.rip as i64;
    match (frame.cs, frame.ss) {
        (USER_CODE, USER_DATA) if canonical => Ok(()),
        (USER_CODE, USER_DATA) => Err(0),
        (USER_CODE_32, USER_DATA) => {
            frame.rip &= u64::from(u32::MAX);
            frame.rsp &= u64::from(u32::MAX);
            Ok(())
        }
        (USER_CODE | USER_CODE_32, ss) => Err(ss & 0xfffc),
        (cs, _) => Err(cs & 0xfffc),
    }
}

/// Returns watchpoints with only the bits that may be armed: bits L of the slots, the bit that is
/// always 1, with kind and length.
fn acceptable_watchpoints((addresses, control): (&[u64; 4], u64)) -> ([u64; 4], u64) {
    const ALWAYS: u64 = 0x400;
    const PORT: u64 = 2;
    let (mut armed, mut safe) = (ALWAYS, [0; 4]);
    for (slot, &address) in addresses.iter().enumerate() {
        let is_on = control >> (2 * slot) & 3 != 0;
        let how = control >> (16 + 4 * slot) & 0xf;
        // The longest watchpoint has eight bytes.
        if is_on && how & 3 != PORT && address < USER_END - 8 {
            safe[slot] = address;
            armed |= 1 << (2 * slot) | how << (16 + 4 * slot);
        }
    }
    (safe, armed)
}

/// Whether programs have RDFSBASE, WRFSBASE, RDGSBASE and WRGSBASE (HWCAP2_FSGSBASE).
pub fn has_fsgsbase() -> bool {
    registers::read_cr4() & registers::CR4_FSGSBASE != 0
}

#[cfg(target_os = "none")]
unsafe fn enter(frame: *mut Registers, fast: u64) {
    unsafe extern "C" {
        fn user_enter(frame: *mut Registers, fast: u64);
    }
    // SAFETY: the caller's promise; `entry.s` keeps the registers that its convention says.
    unsafe { user_enter(frame, fast) };
}
#[cfg(not(target_os = "none"))]
unsafe fn enter(_frame: *mut Registers, _fast: u64) {
    unreachable!("programs run on the machine only")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchpoints_are_a_programs_and_nothing_else_of_the_control_register_is_taken() {
        let at = [0x1000, USER_END, u64::MAX, 0x2000];
        // All four on, globally and locally, each of another kind; protection of registers, too.
        let control = 0xff | 1 << 13 | 0xd << 16 | 1 << 20 | 3 << 24 | 2 << 28;
        assert_eq!(acceptable_watchpoints((&at, control)), ([0x1000, 0, 0, 0], 0x400 | 1 | 0xd << 16));
        assert_eq!(acceptable_watchpoints((&at, 0)), ([0; 4], 0x400));
    }

    #[test]
    fn what_iret_would_refuse_is_refused_with_its_error_code() {
        let frame = Registers { rip: 0x40_0000, cs: USER_CODE, ss: USER_DATA, ..Registers::default() };
        let takes = |change: fn(&mut Registers)| {
            let mut frame = frame;
            change(&mut frame);
            make_acceptable(&mut frame).map(|()| frame)
        };
        assert_eq!(takes(|_| ()), Ok(frame));
        assert!(takes(|f| f.rip = USER_END).is_ok(), "a page fault in user mode");
        assert!(takes(|f| f.rip = 0xffff_8000_0000_0000).is_ok(), "a page fault in user mode");
        assert_eq!(takes(|f| f.rip = 1 << 47), Err(0));
        let cut = takes(|f| (f.cs, f.rip, f.rsp) = (USER_CODE_32, 0xffff_ffff_8000_0000, 1 << 32));
        assert_eq!(cut.map(|f| (f.rip, f.rsp)), Ok((0x8000_0000, 0)));
        assert_eq!(takes(|f| f.cs = 0x10), Err(0x10));
        assert_eq!(takes(|f| f.cs = 0x13), Err(0x10));
        assert_eq!(takes(|f| f.cs = 3), Err(0));
        assert_eq!(takes(|f| f.ss = 0x1b), Err(0x18));
    }
}
