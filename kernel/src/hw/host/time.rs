//! The clock, which goes on when the CPU idles, and its one timer.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_frame::HeldFrame;
use freehold_machine::{Pfn, PhysAddr};

use super::traps;

/// Nanoseconds since the machine started.
static NOW: AtomicU64 = AtomicU64::new(0);
/// When the kernel wants to be called; `u64::MAX` for never.
static TIMER: AtomicU64 = AtomicU64::new(u64::MAX);
/// Time that a program is taken to run between two looks at the counter.
const STRETCH: u64 = 1000;

/// Nanoseconds since the machine started.
pub fn now() -> u64 {
    NOW.load(Ordering::Relaxed)
}
/// The counter: it counts nanoseconds, and goes on a little at each look.
pub fn ticks() -> u64 {
    NOW.fetch_add(STRETCH, Ordering::Relaxed) + STRETCH
}
/// A tick is a nanosecond.
pub fn nanoseconds(ticks: u64) -> u64 {
    ticks
}
/// Ticks in a second.
pub fn counter_frequency() -> u64 {
    1_000_000_000
}
/// Returns 0: the machine started in 1970.
pub fn wall_clock_at_boot() -> u64 {
    0
}
/// Does nothing: the clock runs from the start.
pub fn start(_hpet: Option<PhysAddr>) {}
/// Does nothing: programs on a host ask the kernel.
pub fn show_in(_frame: HeldFrame<'static>, _wall: i64) {}
/// Does nothing, as [`show_in`].
pub fn show_wall(_wall: i64) {}
/// Has the kernel called at `deadline`.
pub fn arm(deadline: u64) {
    TIMER.store(deadline, Ordering::Relaxed);
}

/// Lets time go on to the next deadline, since no task has anything to do.
///
/// # Panics
/// Where there is none: all tasks sleep for ever, and the test with them.
pub fn idle() {
    let deadline = TIMER.swap(u64::MAX, Ordering::Relaxed);
    assert!(deadline != u64::MAX, "everybody sleeps, and nothing will wake anybody");
    NOW.fetch_max(deadline, Ordering::Relaxed);
    if let Some(handlers) = traps::handlers() {
        handlers.timer(0, traps::Interrupted::Program);
    }
}
