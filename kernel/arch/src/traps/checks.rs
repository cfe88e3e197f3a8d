//! The state in which the CPU enters the kernel, asserted at every entry and at every switch of
//! threads.
//!
//! Compiled in with the feature `entry-checks` only: the image that tests this crate has it, and so
//! do kernels that `QUICK=1 tools/build-kernel` makes. Without it these functions are empty.

#[cfg(not(feature = "entry-checks"))]
use super::Registers;

/// The place where the state is checked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CheckPoint {
    /// An exception or interrupt of kernel mode.
    KernelTrap,
    /// After user mode.
    UserTrap,
    /// On a stack of its own.
    OwnStack,
    /// Before a switch to another thread.
    Switch,
}

#[cfg(not(feature = "entry-checks"))]
pub(crate) fn entry_state(_place: CheckPoint) {}

#[cfg(not(feature = "entry-checks"))]
pub(super) fn nmi(_frame: &Registers) {}

#[cfg(feature = "entry-checks")]
pub(crate) use with_checks::entry_state;
#[cfg(feature = "entry-checks")]
pub(super) use with_checks::nmi;
#[cfg(feature = "entry-checks")]
pub use with_checks::{NmiHook, checked_entries, set_nmi_hook};

#[cfg(feature = "entry-checks")]
mod with_checks {
    use core::sync::atomic::{AtomicU64, Ordering};

    use super::CheckPoint;
    use crate::registers::{
        self, CR0_ALIGNMENT, CR0_WRITE_PROTECT, CR4_PGE, CR4_SMAP, CR4_SMEP, CR4_TSD, MSR_GS_BASE,
    };
    use crate::sync::Once;
    use crate::traps::Registers;
    use crate::{cpu, power, serial};

    /// TF, IF, DF, IOPL, NT and AC.
    const CLEAR_FLAGS: u64 = 1 << 8 | 1 << 9 | 1 << 10 | 3 << 12 | 1 << 14 | 1 << 18;
    const FAILED: u8 = 1;

    static CHECKED: AtomicU64 = AtomicU64::new(0);
    static EXPECTED_CR4: AtomicU64 = AtomicU64::new(0);

    /// A test's handler of an NMI that this crate did not send. It runs on the stack of NMIs.
    pub type NmiHook = fn(&Registers);
    static HOOK: Once<NmiHook> = Once::new();

    /// Number of checks of the state, on all CPUs.
    pub fn checked_entries() -> u64 {
        CHECKED.load(Ordering::Relaxed)
    }

    /// Calls `hook` for each NMI.
    ///
    /// # Panics
    /// If there is a hook already.
    pub fn set_nmi_hook(hook: NmiHook) {
        HOOK.set(hook);
    }

    pub(in crate::traps) fn nmi(frame: &Registers) {
        if let Some(hook) = HOOK.get() {
            hook(frame);
        }
    }

    /// Ends the machine unless flags, GS base and control registers are as the kernel needs them.
    /// Interrupts are off.
    pub(crate) fn entry_state(place: CheckPoint) {
        let flags = registers::read_flags();
        // SAFETY: every 64-bit CPU has the register.
        let base = unsafe { registers::rdmsr(MSR_GS_BASE) };
        let (cr0, cr4) = (registers::read_cr0(), registers::read_cr4());
        let protections = CR0_WRITE_PROTECT | CR0_ALIGNMENT;
        // A flush turns global pages off and on again, and an NMI may come in between.
        let steady = (cr4 | CR4_PGE) & !CR4_TSD;
        let expected = EXPECTED_CR4.load(Ordering::Relaxed);
        if expected == 0 {
            EXPECTED_CR4.store(steady, Ordering::Relaxed);
        }
        let same = expected == 0 || steady == expected;
        let complete = cr4 & (CR4_SMEP | CR4_SMAP) == CR4_SMEP | CR4_SMAP;
        let wrong = if flags & CLEAR_FLAGS != 0 {
            "flags"
        } else if !cpu::is_this(base) {
            "GS base"
        } else if cr0 & protections != protections {
            "CR0"
        } else if !complete || !same {
            "CR4"
        } else {
            CHECKED.fetch_add(1, Ordering::Relaxed);
            return;
        };
        // Nothing that needs the GS base can be called.
        serial::print_unlocked(format_args!(
            "\nkernel entered in a wrong state ({wrong}, {place:?}): rflags {flags:#x}, GS base {base:#x}, CR0 {cr0:#x}, CR4 \
             {cr4:#x} (expected {expected:#x})\n"
        ));
        power::exit(FAILED)
    }
}
