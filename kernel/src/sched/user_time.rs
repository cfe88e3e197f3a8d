//! The time that a thread, and a CPU, spent in user mode.
//!
//! A thread stores its own time at each entry to user mode and at each return, so it takes no lock
//! there. When a thread is charged with CPU time, under its run queue's lock, the time since the
//! last charge is added to the CPU's sum.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::hw::time::ticks;

/// The time of one thread, in ticks of the time-stamp counter.
#[derive(Default, Debug)]
pub struct UserTime {
    /// The ticks in user mode. While the thread is there, the counter's value at the entry is
    /// subtracted. That makes the field negative, because the counter exceeds any sum.
    ticks: AtomicU64,
    /// The part of it that CPUs' sums have. Changes under the run queue's lock.
    counted: AtomicU64,
}

impl UserTime {
    /// Records that the current thread enters user mode at the time-stamp `now`.
    #[inline]
    pub fn enter(&self, now: u64) {
        self.ticks.store(self.ticks.load(Ordering::Relaxed).wrapping_sub(now), Ordering::Relaxed);
    }
    /// Records that the thread has returned from user mode. If it did not enter it after all, `now`
    /// is the same value.
    #[inline]
    pub fn leave(&self, now: u64) {
        self.ticks.store(self.ticks.load(Ordering::Relaxed).wrapping_add(now), Ordering::Relaxed);
    }
    /// Returns the ticks in user mode, up to now.
    #[inline]
    pub fn ticks(&self) -> u64 {
        let stored = self.ticks.load(Ordering::Relaxed);
        if (stored as i64) < 0 { stored.wrapping_add(ticks()) } else { stored }
    }
    /// Returns the ticks that have come since the last call. Another CPU's counter may be behind by
    /// a few: then there are none. The caller holds the run queue's lock.
    #[inline]
    pub(super) fn count(&self) -> u64 {
        let (now, counted) = (self.ticks(), self.counted.load(Ordering::Relaxed));
        self.counted.store(now.max(counted), Ordering::Relaxed);
        now.saturating_sub(counted)
    }
}
