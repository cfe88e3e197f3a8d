//! The clock, which advances while the CPU idles, and its one timer.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_frame::HeldFrame;
use freehold_machine::{CpuId, Pfn, PhysAddr};

pub use freehold_arch::time::WallRate;

use super::traps;

/// Nanoseconds since the machine started.
static NOW: AtomicU64 = AtomicU64::new(0);
/// Deadline of the kernel's timer; `u64::MAX` for none.
static TIMER: AtomicU64 = AtomicU64::new(u64::MAX);
/// Time that passes with each read of the counter: a program is assumed to run this long between
/// two.
const STRETCH: u64 = 1000;

/// Nanoseconds since the machine started.
pub fn now() -> u64 {
    NOW.load(Ordering::Relaxed)
}
/// The counter. It counts nanoseconds, and each read advances it a little.
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
pub fn measure(_hpet: Option<PhysAddr>) {}
/// Does nothing, like [`measure`].
pub fn start() {}
/// Does nothing: programs on a host ask the kernel.
pub fn show_in(_frames: [HeldFrame<'static>; 2], _wall: i64) {}
/// Does nothing, like [`show_in`].
pub fn show_wall(_wall: i64, _rate: WallRate) {}
/// Sets the timer: the kernel is called at `deadline`.
pub fn arm(deadline: u64) {
    TIMER.store(deadline, Ordering::Relaxed);
}

/// Makes the timer fire at once, which is when no task is runnable.
pub fn interrupt_now(_cpu: CpuId) {
    arm(now());
}

/// Advances the time to the next deadline, since no task is runnable.
///
/// # Panics
/// If there is no deadline: all tasks, and the test with them, would sleep for ever.
pub fn idle() {
    let deadline = TIMER.swap(u64::MAX, Ordering::Relaxed);
    assert!(deadline != u64::MAX, "everybody sleeps, and nothing will wake anybody");
    NOW.fetch_max(deadline, Ordering::Relaxed);
    if let Some(handlers) = traps::handlers() {
        handlers.timer(0, traps::Interrupted::Program);
    }
}
