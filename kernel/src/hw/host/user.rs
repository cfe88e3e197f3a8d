//! A program's registers, and running the program. On a host a program is a function that gets the
//! registers.

use core::fmt;
use std::boxed::Box;
use std::sync::OnceLock;

pub use freehold_arch::user::{
    BadFpuState, CounterAccess, FpuImage, NotUserAddress, PROTECTION_KEY, USER_CODE, USER_CODE_32, USER_DATA,
    USER_END, UserEvent, VECTOR_SYSCALL, has_protection_keys, is_acceptable_fpu, key_rights, set_key_rights,
    state_parts, xfeatures, xsave_size,
};

use super::memory::OutOfMemory;
use super::std;
use super::traps::Registers;

/// Size of FXSAVE's area: there is no XSAVE, so [`xsave_size`] returns the same number.
const FPU_BYTES: usize = 512;
/// Offset of the area's bytes for software (Intel SDM volume 1, 10.5.1).
const SOFTWARE_BYTES: usize = 464;
const DEFAULT_CONTROL: u16 = 0x37f;
const DEFAULT_MXCSR: u32 = 0x1f80;

/// Runner of programs. It reads where a program is (`rip`), acts as the program does there, and
/// returns why the program stops.
pub type Processor = Box<dyn Fn(&mut UserContext) -> UserEvent + Send + Sync>;

static PROCESSOR: OnceLock<Processor> = OnceLock::new();

/// Sets the runner of programs; once.
///
/// # Panics
/// If the runner was set before.
pub fn set_processor(processor: Processor) {
    assert!(PROCESSOR.set(processor).is_ok(), "one processor runs the machine's programs");
}

/// Returns false: programs ask the kernel to set their bases.
pub fn has_fsgsbase() -> bool {
    false
}
/// A program's registers.
#[derive(Clone)]
pub struct UserContext {
    registers: Registers,
    fpu: Box<[u8; FPU_BYTES]>,
    bases: [u64; 2],
    selectors: [u16; 4],
    counter: CounterAccess,
}

impl fmt::Debug for UserContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.registers.fmt(f)
    }
}

impl UserContext {
    /// Makes a program whose registers are zero.
    ///
    /// # Errors
    /// None on a host.
    pub fn new() -> Result<Self, OutOfMemory> {
        let fpu = Box::new([0; FPU_BYTES]);
        let (registers, counter) = (Registers::default(), CounterAccess::Allowed);
        let mut context = Self { registers, fpu, bases: [0; 2], selectors: [0; 4], counter };
        context.start(0, 0);
        Ok(context)
    }
    /// Begins a new program at `entry` with the stack pointer `stack`. All other registers are as
    /// after execve.
    pub fn start(&mut self, entry: u64, stack: u64) {
        self.registers =
            Registers { rip: entry, rsp: stack, cs: USER_CODE, ss: USER_DATA, ..Registers::default() };
        self.reset_fpu();
        (self.bases, self.selectors) = ([0; 2], [0; 4]);
    }
    /// Does nothing: pages have no protection keys.
    pub fn take_first_rights(&self) {}
    /// Makes a copy, with the floating-point state.
    ///
    /// # Errors
    /// None on a host.
    pub fn try_clone(&mut self) -> Result<Self, OutOfMemory> {
        Ok(self.clone())
    }
    /// The registers.
    pub fn regs(&self) -> &Registers {
        &self.registers
    }
    /// The registers, mutably.
    pub fn regs_mut(&mut self) -> &mut Registers {
        &mut self.registers
    }
    /// Whether the program was interrupted when it last entered the kernel, without a request.
    pub fn was_interrupted(&self) -> bool {
        self.registers.vector != VECTOR_SYSCALL
    }
    /// Sets the result of the system call.
    pub fn set_return(&mut self, value: u64) {
        self.registers.rax = value;
    }
    /// The arguments of the last system call.
    pub fn syscall_args(&self) -> [u64; 6] {
        let Registers { rdi, rsi, rdx, r10, r8, r9, .. } = self.registers;
        [rdi, rsi, rdx, r10, r8, r9]
    }
    /// The number of the last system call.
    pub fn syscall_number(&self) -> u64 {
        self.registers.error
    }
    /// The number of the system call, if the program made one.
    pub fn called(&self) -> Option<u64> {
        (!self.was_interrupted()).then_some(self.registers.error)
    }
    /// The base of FS.
    pub fn fs_base(&self) -> u64 {
        self.bases[0]
    }
    /// The base of GS.
    pub fn gs_base(&self) -> u64 {
        self.bases[1]
    }
    fn set_base(&mut self, which: usize, base: u64) -> Result<(), NotUserAddress> {
        if base >= USER_END {
            return Err(NotUserAddress);
        }
        self.bases[which] = base;
        self.selectors[2 + which] = 0;
        Ok(())
    }
    /// Sets the base of FS; the selector of FS becomes null.
    ///
    /// # Errors
    /// If `base` is no user address.
    pub fn set_fs_base(&mut self, base: u64) -> Result<(), NotUserAddress> {
        self.set_base(0, base)
    }
    /// Sets the base of GS; the selector of GS becomes null.
    ///
    /// # Errors
    /// If `base` is no user address.
    pub fn set_gs_base(&mut self, base: u64) -> Result<(), NotUserAddress> {
        self.set_base(1, base)
    }
    /// Whether the program may read the time-stamp counter. The functions here do so in any case.
    pub fn counter_access(&self) -> CounterAccess {
        self.counter
    }
    /// Sets [`counter_access`](Self::counter_access), for this program and the next one.
    pub fn set_counter_access(&mut self, access: CounterAccess) {
        self.counter = access;
    }
    /// The selectors of DS, ES, FS and GS.
    pub fn data_selectors(&self) -> [u16; 4] {
        self.selectors
    }
    /// Changes the selectors of DS, ES, FS and GS to null or [`USER_DATA`].
    pub fn set_data_selectors(&mut self, selectors: [u16; 4]) {
        self.selectors = selectors;
    }
    /// The floating-point state.
    pub fn fpu(&mut self) -> &[u8] {
        &*self.fpu
    }
    /// The floating-point state with `note` in its bytes for software.
    pub fn noted_fpu(&mut self, note: &[u8]) -> &[u8] {
        self.fpu[SOFTWARE_BYTES..][..note.len()].copy_from_slice(note);
        &*self.fpu
    }
    /// Clears the summary of x87 errors.
    pub fn clear_x87_summary(&mut self) {
        self.fpu[2..4].iter_mut().for_each(|byte| *byte &= !0x80);
    }
    /// Replaces the floating-point state by the bytes that `give` writes. `give` may sleep.
    ///
    /// # Errors
    /// If a CPU would refuse the state. The program then has a new program's state.
    pub fn load_fpu(&mut self, give: impl FnOnce(&mut [u8]) -> FpuImage) -> Result<(), BadFpuState> {
        let image = give(&mut *self.fpu);
        if image.bytes < FPU_BYTES || !is_acceptable_fpu(&*self.fpu) {
            self.reset_fpu();
            return Err(BadFpuState);
        }
        Ok(())
    }
    /// Resets the floating-point state to a new program's.
    pub fn reset_fpu(&mut self) {
        self.fpu.fill(0);
        self.fpu[0..2].copy_from_slice(&DEFAULT_CONTROL.to_le_bytes());
        self.fpu[24..28].copy_from_slice(&DEFAULT_MXCSR.to_le_bytes());
    }
    /// Like [`run_unless`](Self::run_unless). Programs here are functions: they trigger no
    /// watchpoint, except one that they report themselves.
    pub fn run_watched_unless(
        &mut self,
        _watched: (&[u64; 4], u64),
        urgent: impl FnOnce() -> bool,
    ) -> Option<UserEvent> {
        self.run_unless(urgent)
    }
    /// Runs the program until it needs the kernel, unless `urgent` returns true (`None` then).
    ///
    /// # Panics
    /// Without a runner of programs ([`set_processor`]).
    pub fn run_unless(&mut self, urgent: impl FnOnce() -> bool) -> Option<UserEvent> {
        if urgent() {
            return None;
        }
        let event = PROCESSOR.get().expect("a test says what runs its programs")(self);
        self.registers.vector = match event {
            UserEvent::Syscall => VECTOR_SYSCALL,
            UserEvent::PageFault { .. } => 14,
            UserEvent::Exception { vector, .. } => u64::from(vector),
            UserEvent::Interrupt | UserEvent::Alarm => 0xf0,
        };
        Some(event)
    }
}
