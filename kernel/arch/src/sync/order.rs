//! The order of plain and interrupt-safe spin locks, asserted.
//!
//! An interrupt handler waits for interrupt-safe locks. It may have interrupted the holder of a
//! plain lock. So a task that holds an interrupt-safe lock must not wait for a plain one: both CPUs
//! would spin for ever. The same holds for the heap, whose locks are plain, and for locks across
//! which their holder may sleep. Linux' nearest relative is lockdep.
//!
//! Compiled in with the feature `entry-checks` only, which kernels of `QUICK=1 tools/build-kernel`
//! have. Locks that are taken with interrupts off already ([`lock_with`](super::lock_with)) are not
//! counted, nor are those of other crates (the page allocator, the drivers).

use core::sync::atomic::{AtomicBool, Ordering};

use crate::cpu;

const CHECKED: bool = cfg!(all(feature = "entry-checks", target_os = "none"));

/// One interrupt-safe lock that this CPU holds. Interrupts are off.
pub(super) struct IrqLockHeld(());

impl IrqLockHeld {
    #[inline]
    pub(super) fn count() -> Self {
        if CHECKED {
            cpu::this().irq_locks.fetch_add(1, Ordering::Relaxed);
        }
        Self(())
    }
}

impl Drop for IrqLockHeld {
    #[inline]
    fn drop(&mut self) {
        if CHECKED {
            cpu::this().irq_locks.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Asserts that this CPU may do `what`: it holds no interrupt-safe lock.
///
/// # Panics
/// If it holds one. Only the first such place is reported: the report itself takes locks.
#[inline]
pub(crate) fn assert_no_irq_lock(what: &'static str) {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    if CHECKED && cpu::this().irq_locks.load(Ordering::Relaxed) != 0 {
        assert!(IS_REPORTED.swap(true, Ordering::Relaxed), "{what} under an interrupt-safe lock");
    }
}
