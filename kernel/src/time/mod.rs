//! Clocks and timers.

pub mod adjust;
pub mod calls;
mod deadline;
pub mod discipline;
mod queue;
#[cfg(test)]
mod queue_model;
mod spec;
pub mod wall;

pub use deadline::{Base, Deadline};
pub use queue::{Expire, TimerSlot, arm, cancel, interrupt, misplaced, set_slice_end, try_arm};
pub use spec::{SECOND, TimeSpec, TimeVal, Timestamp};

/// Returns the nanoseconds since boot: the same on all CPUs, and never decreasing.
pub fn now() -> u64 {
    crate::hw::time::now()
}

/// Sets the wall clock to `nanoseconds` since 1970. Timers that are armed for a time of the wall
/// clock expire by the new time.
pub fn set_wall(nanoseconds: i64) {
    wall::set(nanoseconds);
    queue::clock_was_set();
}

/// Makes the clock readable for programs in `frames`, permanently: the second frame is for programs
/// in time namespaces. Once.
pub fn show_in(frames: [freehold_frame::HeldFrame<'static>; 2]) {
    wall::with_offset(|offset| crate::hw::time::show_in(frames, offset));
}

/// Returns the nanoseconds since 1970.
pub fn wall_nanoseconds() -> i64 {
    let now = now();
    wall::offset(now).saturating_add_unsigned(now)
}

/// Returns the wall clock's value at boot, in nanoseconds since 1970.
pub fn boot_wall() -> i64 {
    wall::last_offset()
}

/// Returns the time for file timestamps.
pub fn wall() -> Timestamp {
    let nanoseconds = wall_nanoseconds();
    Timestamp {
        seconds: nanoseconds.div_euclid(SECOND as i64),
        nanoseconds: nanoseconds.rem_euclid(SECOND as i64) as u32,
    }
}
