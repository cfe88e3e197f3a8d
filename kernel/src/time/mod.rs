//! Clocks and timers.

pub mod adjust;
pub mod calls;
mod queue;
#[cfg(test)]
mod queue_model;
mod spec;

pub use queue::{Expire, TimerSlot, arm, cancel, interrupt, misplaced, set_slice_end, try_arm};
pub use spec::{SECOND, TimeSpec, TimeVal, Timestamp};

use core::sync::atomic::{AtomicI64, Ordering};

use crate::sync::SpinLock;

/// Nanoseconds since boot; the same on all CPUs, never back.
pub fn now() -> u64 {
    crate::hw::time::now()
}

/// Held while the wall clock is set: the time that programs see and [`WALL_OFFSET`] end as the
/// same. A concurrent reader gets the old or the new time.
static SETTING: SpinLock<()> = SpinLock::new(());
/// Nanoseconds to add to [`now`] to get the time since 1970.
static WALL_OFFSET: AtomicI64 = AtomicI64::new(0);

/// Set the wall clock: `nanoseconds` since 1970 are it now.
pub fn set_wall(nanoseconds: i64) {
    let _one_at_a_time = SETTING.lock();
    let offset = nanoseconds.max(0).saturating_sub_unsigned(now());
    WALL_OFFSET.store(offset, Ordering::Relaxed);
    crate::hw::time::show_wall(offset);
    adjust::forget();
}

/// Show programs the clock in `frame`, which stays for ever; once.
pub fn show_in(frame: freehold_frame::HeldFrame<'static>) {
    let _one_at_a_time = SETTING.lock();
    crate::hw::time::show_in(frame, WALL_OFFSET.load(Ordering::Relaxed));
}

/// Nanoseconds since 1970.
pub fn wall_nanoseconds() -> i64 {
    WALL_OFFSET.load(Ordering::Relaxed).saturating_add_unsigned(now())
}

/// The [`now`] at which the wall clock shows `nanoseconds` since 1970; 0 if that was before boot.
pub fn from_wall(nanoseconds: u64) -> u64 {
    let since_boot = i128::from(nanoseconds) - i128::from(WALL_OFFSET.load(Ordering::Relaxed));
    u64::try_from(since_boot.max(0)).unwrap_or(u64::MAX)
}

/// The wall clock's value at boot, nanoseconds since 1970.
pub fn boot_wall() -> i64 {
    WALL_OFFSET.load(Ordering::Relaxed)
}

/// The time that files are stamped with.
pub fn wall() -> Timestamp {
    let nanoseconds = wall_nanoseconds();
    Timestamp {
        seconds: nanoseconds.div_euclid(SECOND as i64),
        nanoseconds: nanoseconds.rem_euclid(SECOND as i64) as u32,
    }
}
