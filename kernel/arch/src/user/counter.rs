//! Whether a program may read the time-stamp counter (PR_SET_TSC). CR4.TSD is set only while a
//! program that may not has its state in the CPU; the kernel reads the counter in any case. Manual:
//! Intel SDM volume 2, RDTSC.

use core::sync::atomic::Ordering;

use super::{Resident, UserContext};
use crate::registers::{self, CR4_TSD};

/// Whether a program may read the time-stamp counter (RDTSC and RDTSCP).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CounterAccess {
    /// The program reads the counter.
    Allowed,
    /// The instructions fault.
    Denied,
}

impl UserContext {
    /// Whether the program may read the time-stamp counter.
    pub fn counter_access(&self) -> CounterAccess {
        match self.resident().hides_counter.load(Ordering::Relaxed) {
            true => CounterAccess::Denied,
            false => CounterAccess::Allowed,
        }
    }
    /// Sets [`counter_access`](Self::counter_access), for this program and the next one.
    pub fn set_counter_access(&mut self, access: CounterAccess) {
        self.save_if_live();
        self.resident().hides_counter.store(access == CounterAccess::Denied, Ordering::Relaxed);
    }
}

/// The CPU has loaded the state of a program. Interrupts are off.
#[inline(always)]
pub(super) fn entered(resident: &Resident) {
    if resident.hides_counter.load(Ordering::Relaxed) {
        set_for_cpu(CounterAccess::Denied);
    }
}

/// The CPU has saved the state of a program. Interrupts are off.
#[inline(always)]
pub(super) fn left(resident: &Resident) {
    if resident.hides_counter.load(Ordering::Relaxed) {
        set_for_cpu(CounterAccess::Allowed);
    }
}

#[cold]
fn set_for_cpu(access: CounterAccess) {
    let others = registers::read_cr4() & !CR4_TSD;
    let bit = if access == CounterAccess::Denied { CR4_TSD } else { 0 };
    // SAFETY: the bit has an effect in user mode only; interrupts are off, so the others stay.
    unsafe { registers::write_cr4(others | bit) };
}
