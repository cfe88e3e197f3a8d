//! Speculative execution: the mitigations that this CPU needs, and their activation.
//!
//! [`choice`] decides from the CPU's tables, once, on the first CPU ([`start`]); each CPU then sets
//! its registers. On hot paths:
//!
//! - **VERW** on the way to user mode (`entry.s`): an alternative ([`crate::alternatives`]), which
//!   costs nothing if it is not needed.
//! - **IBPB** when a CPU switches to another user's program: a flag, which the scheduler reads
//!   ([`separates_users`]) at each switch.
//! - **LFENCE** after SWAPGS in the trap entries, and after STAC in user copies that read
//!   (`usercopy.s`): always. A branch around a fence could itself be predicted wrongly.
//!
//! [`choice`] names the weaknesses that are left open; SECURITY.md explains the consequences.

use core::fmt::Display;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::registers::{self, MSR_EFER, cpuid};
use crate::sync::Once;

pub mod choice;

use choice::{IndirectBranches, Mitigations, Tables, Text, WantedMitigations};

const MSR_ARCH_CAPABILITIES: u32 = 0x10a;
const MSR_SPEC_CTRL: u32 = 0x48;
const MSR_PRED_CMD: u32 = 0x49;
const SPEC_CTRL_IBRS: u64 = 1;
const PRED_CMD_IBPB: u64 = 1;
const EFER_AUTOMATIC_IBRS: u64 = 1 << 21;

static CHOSEN: Once<(Tables, Mitigations)> = Once::new();
static SEPARATES_USERS: AtomicBool = AtomicBool::new(false);

fn read_tables() -> Tables {
    let [first, leaf1, leaf7] = [cpuid(0, 0), cpuid(1, 0), cpuid(7, 0)];
    let [leaf8, leaf21] = [cpuid(0x8000_0008, 0), cpuid(0x8000_0021, 0)];
    let mut vendor = [0; 12];
    for (to, word) in vendor.chunks_mut(4).zip([first.ebx, first.edx, first.ecx]) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    let capabilities = if leaf7.edx & choice::ARCH_CAPABILITIES != 0 {
        // SAFETY: CPUID says that the register exists; reading it has no effect.
        unsafe { registers::rdmsr(MSR_ARCH_CAPABILITIES) }
    } else {
        0
    };
    Tables {
        vendor,
        signature: leaf1.eax,
        leaf1_ecx: leaf1.ecx,
        leaf7_ebx: leaf7.ebx,
        leaf7_edx: leaf7.edx,
        leaf8_ebx: leaf8.ebx,
        leaf21_eax: leaf21.eax,
        leaf21_ecx: leaf21.ecx,
        capabilities,
    }
}

/// Decides for this machine; on the first CPU, once, before others are started.
///
/// # Panics
/// When called twice.
pub fn start(wanted: WantedMitigations) {
    let tables = read_tables();
    let done = Mitigations::choose(&tables, wanted);
    CHOSEN.set((tables, done));
    SEPARATES_USERS.store(done.barrier_between_users, Ordering::Relaxed);
    init_this();
}

/// Whether VERW is executed before each return to a program; not before [`start`].
pub(crate) fn clears_buffers() -> bool {
    CHOSEN.get().is_some_and(|(_, done)| done.clears_buffers)
}

/// Sets this CPU's registers, if the choice was made.
pub(crate) fn init_this() {
    let Some((_, done)) = CHOSEN.get() else { return };
    match done.indirect {
        IndirectBranches::Plain => {}
        // SAFETY: CPUID offers the register; the bit restricts predictions and changes no memory.
        IndirectBranches::Enhanced => unsafe { registers::wrmsr(MSR_SPEC_CTRL, SPEC_CTRL_IBRS) },
        IndirectBranches::Automatic => {
            // SAFETY: every CPU of 64 bits has EFER, and reading it has no effect.
            let features = unsafe { registers::rdmsr(MSR_EFER) };
            // SAFETY: CPUID offers the bit, which restricts predictions and changes no memory.
            unsafe { registers::wrmsr(MSR_EFER, features | EFER_AUTOMATIC_IBRS) };
        }
    }
}

/// Whether [`forget_predictions`] is due when a CPU switches from one user's program to another's.
#[inline]
pub fn separates_users() -> bool {
    SEPARATES_USERS.load(Ordering::Relaxed)
}

/// Clears the predictions that earlier programs left in this CPU (IBPB), if this machine does that
/// at all.
pub fn forget_predictions() {
    if separates_users() {
        // SAFETY: the flag is set only if CPUID offers the barrier; it changes no memory.
        unsafe { registers::wrmsr(MSR_PRED_CMD, PRED_CMD_IBPB) };
    }
}

/// The files of /sys/devices/system/cpu/vulnerabilities: names and texts. None before [`start`].
pub fn files() -> impl Iterator<Item = (&'static str, impl Display)> {
    let chosen = CHOSEN.get();
    let text = |(weakness, name), (tables, done): &'static (Tables, Mitigations)| {
        (name, Text { weakness, tables, done: *done })
    };
    choice::ALL.into_iter().filter_map(move |entry| Some(text(entry, chosen?)))
}

/// The names of /proc/cpuinfo's line "bugs": those of the weaknesses that the CPU has. None before
/// [`start`].
pub fn bugs() -> impl Iterator<Item = &'static str> {
    let weak = CHOSEN.get().map(|(tables, _)| tables.weaknesses()).unwrap_or_default();
    choice::ALL.into_iter().filter(move |entry| weak.has(entry.0)).map(|entry| entry.0.bug())
}
