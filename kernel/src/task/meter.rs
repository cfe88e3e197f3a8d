//! The timer of a thread that must charge its CPU time to a quota: see [`super::quota`].

use core::sync::atomic::AtomicU64;

use freehold_collections::reserve::ArcMethods as _;
use freehold_collections::{Arc, Weak};

use crate::sched::thread::QUOTA;
use crate::sched::{self, Thread};
use crate::time::{Deadline, Expire, TimerSlot};

/// The value of [`Meter::charged`] while nothing is charged.
pub const UNMETERED: u64 = u64::MAX;

/// The timer of a thread that must charge its CPU time.
pub struct Meter {
    slot: TimerSlot,
    thread: Weak<Thread>,
    /// The CPU time that the thread has charged so far, or [`UNMETERED`]. Only the thread changes
    /// it.
    pub charged: AtomicU64,
}

impl Expire for Meter {
    fn slot(&self) -> &TimerSlot {
        &self.slot
    }
    fn expire(&self, _now: u64) -> Option<Deadline> {
        let thread = self.thread.upgrade()?;
        thread.call_attention(QUOTA);
        sched::kick(&thread);
        None
    }
}

impl Meter {
    /// Makes a meter that has charged nothing.
    pub fn of(thread: &Arc<Thread>) -> Self {
        Self { slot: TimerSlot::new(), thread: thread.downgrade(), charged: AtomicU64::new(UNMETERED) }
    }
}
