//! User mode: a program's registers, and running it until it traps.
//!
//! A [`UserContext`] is run by one thread at a time. Its general registers are in memory whenever the kernel
//! runs; its floating-point registers and segment bases stay in the CPU until the thread is switched away
//! from, or somebody asks for them ([`leave_fpu`]): the kernel itself uses neither.
//!
//! SYSRET is used where it gives the program exactly what IRET would: after a system call whose frame
//! nobody but [`UserContext::set_return`] touched, with a canonical address and without TF or RF.
//! Manual: Intel SDM volume 1, 13 (XSAVE); volume 2, SYSRET; volume 3, 6.14.3.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::arch::asm;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use freehold_machine::{Access, Cpus, VirtAddr};

use crate::memory::OutOfMemory;
use crate::registers::{self, MSR_FS_BASE, MSR_KERNEL_GS_BASE, cpuid};
use crate::traps::{self, Presence, Registers};
use crate::{X86, cpu, irq};

/// One past the highest user address.
pub const USER_END: u64 = 0x7fff_ffff_f000;

const USER_CODE: u64 = 0x33;
const USER_DATA: u64 = 0x2b;
const VECTOR_SYSCALL: u64 = 0x100;
const GENERAL_PROTECTION: u8 = 13;
const FLAG_ALWAYS: u64 = 1 << 1;
const FLAG_TRAP: u64 = 1 << 8;
const FLAG_INTERRUPT: u64 = 1 << 9;
const FLAG_RESUME: u64 = 1 << 16;
/// What a program may set: CF PF AF ZF SF TF DF OF RF AC ID.
const FLAGS_USER: u64 = 0x25_0dd5;

const LEGACY_BYTES: usize = 512;
const HEADER_BYTES: usize = 64;
const DEFAULT_CONTROL: u16 = 0x37f;
const DEFAULT_MXCSR: u32 = 0x1f80;
/// x87, SSE, AVX, AVX-512: what programs get where the CPU has it.
const FEATURES: u64 = 0b1110_0111;

/// Bytes of a saved floating-point state, a multiple of 64; 512 where only FXSAVE exists.
static AREA_BYTES: AtomicUsize = AtomicUsize::new(LEGACY_BYTES);
/// The features in XCR0; 0 where there is no XSAVE.
static ENABLED: AtomicU64 = AtomicU64::new(0);

/// Bytes of a floating-point state as [`UserContext::fpu`] gives it.
pub fn xsave_size() -> usize {
    AREA_BYTES.load(Ordering::Relaxed)
}

/// The state components that are saved (as in XCR0); 0 where only the FXSAVE part is.
pub fn xfeatures() -> u64 {
    ENABLED.load(Ordering::Relaxed)
}

/// Enable floating point for programs on this CPU; on the first, find out what there is.
pub(crate) fn init_cpu() {
    let features = cpuid(0xd, 0).eax as u64 & FEATURES;
    if !cpu::has_xsave() {
        return;
    }
    // SAFETY: CR4.OSXSAVE is on (has_xsave); the bits are a subset of what CPUID offers, x87 among them. AVX-512
    // is all three parts or none.
    unsafe {
        asm!("xsetbv", in("ecx") 0, in("eax") valid_features(features) as u32, in("edx") 0, options(nostack))
    };
    let bytes = (cpuid(0xd, 0).ebx as usize).next_multiple_of(64);
    AREA_BYTES.store(bytes, Ordering::Relaxed);
    ENABLED.store(valid_features(features), Ordering::Relaxed);
}

/// AVX-512 needs all its parts, and AVX.
const fn valid_features(features: u64) -> u64 {
    if features & 0b1110_0100 == 0b1110_0100 { features } else { features & 0b111 }
}

/// 64 bytes of floating-point state, aligned as XSAVE wants it.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

struct State {
    registers: Registers,
    fs_base: u64,
    gs_base: u64,
}

/// Why a program stopped running.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UserEvent {
    /// It made a system call.
    Syscall,
    /// It touched `addr`, which its page table does not allow.
    PageFault {
        /// The address.
        addr: VirtAddr,
        /// What it wanted.
        access: Access,
        /// Whether the page is mapped.
        present: Presence,
    },
    /// Another exception.
    Exception {
        /// Which (Intel SDM volume 3, table 6-1).
        vector: u8,
        /// Its error code; 0 where it has none.
        code: u64,
    },
    /// An interrupt came and was handled.
    Interrupt,
}

/// A floating-point state that the CPU would refuse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadFpuState;

/// A base address outside the user half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotUserAddress;

/// A program's registers.
pub struct UserContext {
    /// One element: the registers, at an address that stays (the CPU saves them there).
    state: Box<[State]>,
    fpu: Box<[Line]>,
    /// Whether SYSRET may lead back.
    fast: bool,
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
        state.push(State { registers: Registers::default(), fs_base: 0, gs_base: 0 });
        let fpu = try_boxed(Line([0; 64]), xsave_size() / 64)?;
        let mut context = Self { state: state.into_boxed_slice(), fpu, fast: false };
        context.start(0, 0);
        Ok(context)
    }

    /// Begin a new program at `entry` with the stack pointer `stack`: all else is as execve leaves it.
    pub fn start(&mut self, entry: u64, stack: u64) {
        let fresh =
            Registers { rip: entry, rsp: stack, cs: USER_CODE, ss: USER_DATA, ..Registers::default() };
        *self.regs_mut() = fresh;
        self.reset_fpu();
        self.state[0].fs_base = 0;
        self.state[0].gs_base = 0;
    }

    /// A copy, floating-point state included.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn try_clone(&mut self) -> Result<Self, OutOfMemory> {
        self.save_if_live();
        let mut copy = Self::new()?;
        copy.fpu.copy_from_slice(&self.fpu);
        let (from, to) = (&self.state[0], &mut copy.state[0]);
        to.registers = from.registers;
        to.fs_base = from.fs_base;
        to.gs_base = from.gs_base;
        Ok(copy)
    }

    /// The registers.
    pub fn regs(&self) -> &Registers {
        &self.state[0].registers
    }
    /// The registers, to change any; the way back is then the slow one. Flags and segments that a program may not have are
    /// corrected when it runs.
    pub fn regs_mut(&mut self) -> &mut Registers {
        self.fast = false;
        &mut self.state[0].registers
    }
    /// The number of the system call that was made.
    pub fn syscall_number(&self) -> u64 {
        self.regs().error
    }
    /// Its arguments.
    pub fn syscall_args(&self) -> [u64; 6] {
        let r = self.regs();
        [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9]
    }
    /// What the system call returns.
    pub fn set_return(&mut self, value: u64) {
        self.state[0].registers.rax = value;
    }
    /// Where FS points.
    pub fn fs_base(&self) -> u64 {
        self.state[0].fs_base
    }
    /// Where GS points.
    pub fn gs_base(&self) -> u64 {
        self.state[0].gs_base
    }
    /// Point FS elsewhere.
    ///
    /// # Errors
    /// When that is not a user address.
    pub fn set_fs_base(&mut self, base: u64) -> Result<(), NotUserAddress> {
        if base >= USER_END {
            return Err(NotUserAddress);
        }
        self.save_if_live();
        self.state[0].fs_base = base;
        Ok(())
    }
    /// Point GS elsewhere.
    ///
    /// # Errors
    /// When that is not a user address.
    pub fn set_gs_base(&mut self, base: u64) -> Result<(), NotUserAddress> {
        if base >= USER_END {
            return Err(NotUserAddress);
        }
        self.save_if_live();
        self.state[0].gs_base = base;
        Ok(())
    }

    /// The floating-point state: an XSAVE area in standard form (or FXSAVE's 512 bytes).
    pub fn fpu(&mut self) -> &[u8] {
        self.save_if_live();
        self.fpu_bytes()
    }
    fn fpu_bytes(&self) -> &[u8] {
        let bytes = size_of_val(&*self.fpu);
        // SAFETY: lines are bytes without padding, and borrowed for as long as the slice.
        unsafe { core::slice::from_raw_parts(self.fpu.as_ptr().cast(), bytes) }
    }
    fn fpu_bytes_mut(&mut self) -> &mut [u8] {
        let bytes = size_of_val(&*self.fpu);
        // SAFETY: as above; any byte is valid in a line.
        unsafe { core::slice::from_raw_parts_mut(self.fpu.as_mut_ptr().cast(), bytes) }
    }
    /// Replace the floating-point state by what `give` puts there and says the length of: 512 bytes (the rest is then reset) or
    /// more. It may sleep.
    ///
    /// # Errors
    /// When it is shorter than 512 bytes, or the CPU would refuse it; the state is then a new program's.
    pub fn load_fpu(&mut self, give: impl FnOnce(&mut [u8]) -> usize) -> Result<(), BadFpuState> {
        self.save_if_live();
        let mask = mxcsr_mask(self.fpu_bytes());
        let area = self.fpu_bytes_mut();
        let len = give(area).min(area.len());
        if let Err(refused) = check_fpu(&area[..len], xfeatures(), mask) {
            self.reset_fpu();
            return Err(refused);
        }
        area[len..].fill(0);
        if len < LEGACY_BYTES + HEADER_BYTES && area.len() > LEGACY_BYTES {
            area[LEGACY_BYTES] = 3;
        }
        Ok(())
    }
    /// Put the floating-point state back to what a new program has.
    pub fn reset_fpu(&mut self) {
        self.save_if_live();
        let area = self.fpu_bytes_mut();
        area.fill(0);
        area[0..2].copy_from_slice(&DEFAULT_CONTROL.to_le_bytes());
        area[24..28].copy_from_slice(&DEFAULT_MXCSR.to_le_bytes());
    }

    /// Run the program until it needs the kernel. Interrupts are on when this returns.
    pub fn run(&mut self) -> UserEvent {
        self.run_unless(|| false).expect("nothing is urgent")
    }

    /// Like [`UserContext::run`], but look once more with interrupts off, before the program runs, whether there is
    /// something to do first (`None` then): nothing that an interrupt brings is missed.
    #[inline]
    pub fn run_unless(&mut self, urgent: impl FnOnce() -> bool) -> Option<UserEvent> {
        registers::disable_interrupts();
        if urgent() {
            registers::enable_interrupts();
            return None;
        }
        Some(self.run_now())
    }

    /// With interrupts off; they are on when this returns.
    fn run_now(&mut self) -> UserEvent {
        let frame = &mut self.state[0].registers;
        if frame.rip >= USER_END {
            registers::enable_interrupts();
            return UserEvent::Exception { vector: GENERAL_PROTECTION, code: 0 };
        }
        if !self.fast {
            frame.rflags = frame.rflags & FLAGS_USER | FLAG_ALWAYS | FLAG_INTERRUPT;
            frame.cs = USER_CODE;
            frame.ss = USER_DATA;
        }
        let fast = u64::from(self.fast && frame.rflags & (FLAG_TRAP | FLAG_RESUME) == 0);
        let frame = &raw mut *frame;
        self.load_if_away();
        // SAFETY: interrupts are off; the frame stays where it is until the CPU has come back (its context is borrowed
        // mutably); rip is canonical and flags and selectors are a program's, so the way down cannot fault.
        unsafe { enter(frame, fast) };
        self.came_back()
    }

    /// With interrupts off, right after the trap.
    fn came_back(&mut self) -> UserEvent {
        let frame = &self.state[0].registers;
        let event = match frame.vector {
            VECTOR_SYSCALL => {
                self.fast = true;
                registers::enable_interrupts();
                return UserEvent::Syscall;
            }
            traps::VECTOR_PAGE_FAULT => {
                let (access, present) = traps::decode_page_fault(frame.error);
                UserEvent::PageFault { addr: VirtAddr(registers::read_cr2()), access, present }
            }
            vector @ 0..32 => UserEvent::Exception { vector: vector as u8, code: frame.error },
            vector => {
                traps::interrupt(vector as u8);
                UserEvent::Interrupt
            }
        };
        self.fast = false;
        registers::enable_interrupts();
        event
    }

    fn live_marker(&self) -> *mut UserArea {
        self.fpu.as_ptr().cast_mut().cast()
    }

    /// With interrupts off: make the CPU's floating-point registers and bases this program's.
    fn load_if_away(&mut self) {
        let live = &cpu::this().user_live;
        if live.load(Ordering::Relaxed) == self.live_marker() {
            return;
        }
        leave_fpu();
        let area = self.fpu.as_mut_ptr().cast::<u8>();
        let features = xfeatures();
        if features == 0 {
            // SAFETY: the area is 512 bytes, aligned, and checked by `check_fpu` or written by FXSAVE.
            unsafe { asm!("fxrstor64 [{}]", in(reg) area, options(nostack, readonly)) };
        } else {
            // SAFETY: the area is as long as CPUID says, aligned, and checked by `check_fpu` or written by XSAVE.
            unsafe {
                asm!("xrstor64 [{}]", in(reg) area, in("eax") features as u32, in("edx") 0, options(nostack, readonly))
            };
        }
        // SAFETY: FS is the program's alone, and the base is a user address.
        unsafe { registers::wrmsr(MSR_FS_BASE, self.state[0].fs_base) };
        // SAFETY: loaded by SWAPGS on the way to the program only; a user address.
        unsafe { registers::wrmsr(MSR_KERNEL_GS_BASE, self.state[0].gs_base) };
        live.store(self.live_marker(), Ordering::Relaxed);
    }

    /// If the CPU holds this program's floating-point registers, save them.
    fn save_if_live(&mut self) {
        let pinned = X86.pin();
        let _off = irq::disable();
        if cpu::this().user_live.load(Ordering::Relaxed) == self.live_marker() {
            leave_fpu();
        }
        drop(pinned);
    }
}

impl Drop for UserContext {
    fn drop(&mut self) {
        // A context that another CPU ran was saved when its thread left that CPU.
        self.save_if_live();
    }
}

/// The floating-point area of a context: what a CPU remembers of the program whose registers it holds.
pub(crate) struct UserArea;

/// Save the floating-point registers of the program that this CPU last ran, if they are not saved yet.
/// Interrupts are off. The bases need no saving: programs cannot change them (CR4.FSGSBASE is off).
pub(crate) fn leave_fpu() {
    let live: &AtomicPtr<UserArea> = &cpu::this().user_live;
    let area = live.load(Ordering::Relaxed);
    if area.is_null() {
        return;
    }
    live.store(core::ptr::null_mut(), Ordering::Relaxed);
    let features = xfeatures() as u32;
    if features == 0 {
        // SAFETY: the area is 512 aligned bytes of a context that lives: dropping one saves it first.
        unsafe { asm!("fxsave64 [{}]", in(reg) area, options(nostack)) };
    } else {
        // SAFETY: as above, with the length that CPUID says.
        unsafe { asm!("xsave64 [{}]", in(reg) area, in("eax") features, in("edx") 0, options(nostack)) };
    }
}

/// The MXCSR bits that this CPU has, from a saved area; before the first save, those that all have.
fn mxcsr_mask(area: &[u8]) -> u32 {
    let mask = u32::from_le_bytes([area[28], area[29], area[30], area[31]]);
    if mask == 0 { 0xffbf } else { mask }
}

/// Whether the CPU would take the state: no unknown MXCSR bit, component, or header bit.
fn check_fpu(bytes: &[u8], features: u64, mask: u32) -> Result<(), BadFpuState> {
    let word = |at: usize| bytes.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    if bytes.len() < LEGACY_BYTES || word(24).ok_or(BadFpuState)? & !mask != 0 {
        return Err(BadFpuState);
    }
    if let Some(header) = bytes.get(LEGACY_BYTES..LEGACY_BYTES + HEADER_BYTES) {
        let (components, rest) = header.split_at(8);
        let present = components.iter().rev().fold(0u64, |value, &byte| value << 8 | u64::from(byte));
        // Components beyond the bytes that were given would be read from what was there before: reset them.
        if present & !features != 0 || rest.iter().any(|&byte| byte != 0) {
            return Err(BadFpuState);
        }
    }
    Ok(())
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
    fn a_state_with_unknown_bits_is_refused() {
        let mut area = [0u8; 832];
        assert_eq!(check_fpu(&area, 7, 0xffff), Ok(()));
        assert_eq!(check_fpu(&area[..511], 7, 0xffff), Err(BadFpuState));
        area[26] = 1;
        assert_eq!(check_fpu(&area, 7, 0xffff), Err(BadFpuState), "MXCSR bit 16");
        area[26] = 0;
        area[512] = 8;
        assert_eq!(check_fpu(&area, 7, 0xffff), Err(BadFpuState), "a component that is not enabled");
        area[512] = 7;
        area[520] = 1;
        assert_eq!(check_fpu(&area, 7, 0xffff), Err(BadFpuState), "compacted form");
    }

    #[test]
    fn avx512_is_all_parts_or_none() {
        assert_eq!(valid_features(0b1110_0111), 0b1110_0111);
        assert_eq!(valid_features(0b0110_0111), 0b111);
        assert_eq!(valid_features(0b11), 0b11);
    }
}
