//! Clocks and timers.

pub mod adjust;
pub mod calls;
mod deadline;
mod queue;
#[cfg(test)]
mod queue_model;
mod spec;

pub use deadline::{Base, Deadline};
pub use queue::{Expire, TimerSlot, arm, cancel, interrupt, misplaced, set_slice_end, try_arm};
pub use spec::{SECOND, TimeSpec, TimeVal, Timestamp};

use core::sync::atomic::{AtomicI64, Ordering};

use crate::sync::SpinLock;

/// Returns the nanoseconds since boot: the same on all CPUs, and never decreasing.
pub fn now() -> u64 {
    crate::hw::time::now()
}

/// Held while the wall clock is set, so that the programs' time and [`WALL_OFFSET`] end up equal. A
/// concurrent reader gets the old or the new time.
static SETTING: SpinLock<()> = SpinLock::new(());
/// Nanoseconds to add to [`now`] to get the time since 1970.
static WALL_OFFSET: AtomicI64 = AtomicI64::new(0);

/// Sets the wall clock to `nanoseconds` since 1970. Timers that are armed for a time of the wall
/// clock expire by the new time.
pub fn set_wall(nanoseconds: i64) {
    {
        let _one_at_a_time = SETTING.lock();
        let offset = nanoseconds.max(0).saturating_sub_unsigned(now());
        WALL_OFFSET.store(offset, Ordering::Relaxed);
        crate::hw::time::show_wall(offset);
        adjust::forget();
    }
    queue::clock_was_set();
}

/// Makes the clock readable for programs in `frames`, permanently: the second frame is for programs
/// in time namespaces. Once.
pub fn show_in(frames: [freehold_frame::HeldFrame<'static>; 2]) {
    let _one_at_a_time = SETTING.lock();
    crate::hw::time::show_in(frames, WALL_OFFSET.load(Ordering::Relaxed));
}

/// Returns the nanoseconds since 1970.
pub fn wall_nanoseconds() -> i64 {
    WALL_OFFSET.load(Ordering::Relaxed).saturating_add_unsigned(now())
}

/// Returns the wall clock's value at boot, in nanoseconds since 1970.
pub fn boot_wall() -> i64 {
    WALL_OFFSET.load(Ordering::Relaxed)
}

/// Returns the time for file timestamps.
pub fn wall() -> Timestamp {
    let nanoseconds = wall_nanoseconds();
    Timestamp {
        seconds: nanoseconds.div_euclid(SECOND as i64),
        nanoseconds: nanoseconds.rem_euclid(SECOND as i64) as u32,
    }
}
