//! The wall clock: the time since boot and an offset, which programs set, and slew by adjtimex(2)
//! ([`discipline`](super::discipline)).
//!
//! As long as the clock has the machine's rate, reading it is an addition. **While it is slewed**,
//! the offset is a function of the time, which is calculated under a lock; programs then ask the
//! kernel instead of their page of time (`TimePage`), so no reader sees a clock that goes back. The
//! clock's seconds end when a task reads it after their end, and a kernel thread does so once in
//! each second, for sleepers and for time(2). Linux slews CLOCK_MONOTONIC, too; here it has the
//! machine's rate.
//!
//! Lock order: the queues of timers > this lock. Any context, except where a function says more.

use core::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use super::adjust::ClockQuality;
use super::discipline::{Discipline, SCALE, Status};
use super::{SECOND, now, queue};
use crate::hw::time::WallRate;
use crate::sync::{IrqSpinLock, WaitQueue};
use crate::{Result, sched};

/// See the module.
pub struct WallClock {
    /// Nanoseconds to add to the time since boot, at `since`.
    offset: i64,
    /// When the present rate began, in nanoseconds since boot.
    since: u64,
    /// The rate.
    pub discipline: Discipline,
    /// The estimated errors.
    pub quality: ClockQuality,
}

static CLOCK: IrqSpinLock<WallClock> = IrqSpinLock::new(WallClock {
    offset: 0,
    since: 0,
    discipline: Discipline::INITIAL,
    quality: ClockQuality::UNKNOWN,
});
/// [`WallClock::offset`], for readers while the clock is not slewed.
static OFFSET: AtomicI64 = AtomicI64::new(0);
/// Whether the offset changes by itself.
static IS_SLEWED: AtomicBool = AtomicBool::new(false);

/// Nanoseconds in a second, in the unit of rates.
const UNIT: i128 = (SECOND as i128) << SCALE;

impl WallClock {
    /// Returns the offset when `now` nanoseconds have passed since boot.
    fn offset_at(&self, now: u64) -> i64 {
        let passed = i128::from(now.saturating_sub(self.since));
        self.offset.saturating_add((passed * i128::from(self.discipline.rate())).div_euclid(UNIT) as i64)
    }

    /// Returns the clock's time at `now`, in nanoseconds since 1970.
    pub fn at(&self, now: u64) -> i64 {
        self.offset_at(now).saturating_add_unsigned(now)
    }

    /// Returns when the second of `since` ends, in nanoseconds since boot.
    fn end_of_second(&self) -> u64 {
        let left = SECOND as i64 - self.at(self.since).rem_euclid(SECOND as i64);
        let rate = UNIT + i128::from(self.discipline.rate());
        let left = (i128::from(left) * UNIT + rate - 1) / rate;
        self.since.saturating_add(left as u64)
    }

    /// Ends the seconds that have passed at `now`.
    fn advance(&mut self, now: u64) {
        while self.discipline.is_active() {
            let end = self.end_of_second();
            if end > now {
                return;
            }
            self.set_offset(self.offset_at(end), end);
            let second = self.at(end).div_euclid(SECOND as i64);
            let leap = self.discipline.second(second);
            self.set_offset(self.offset.saturating_add(leap * SECOND as i64), end);
        }
    }

    /// Sets the clock's offset at `now`.
    fn set_offset(&mut self, offset: i64, now: u64) {
        (self.offset, self.since) = (offset, now);
    }

    /// Shows the clock to programs. Task context. While the clock is slewed, only time(2) reads it
    /// there: its second is a little late, so that it is never early.
    fn show(&self) {
        let is_slewed = self.discipline.is_active();
        OFFSET.store(self.offset, Ordering::Relaxed);
        IS_SLEWED.store(is_slewed, Ordering::Relaxed);
        let (lag, rate) = if is_slewed {
            let slower = (-self.discipline.rate()).max(0) >> SCALE;
            (2 * slower + LAG, WallRate::Slewed)
        } else {
            (0, WallRate::Machine)
        };
        crate::hw::time::show_wall(self.offset.saturating_sub(lag), rate);
    }
}

/// Nanoseconds by which time(2) is late at least while the clock is slewed; a clock that is slower
/// also loses time until the thread shows the next second.
const LAG: i64 = 1_000_000;

/// Returns the nanoseconds to add to the time since boot, `now`, to get the time since 1970.
#[inline]
pub fn offset(now: u64) -> i64 {
    if IS_SLEWED.load(Ordering::Relaxed) { slewed_offset(now) } else { OFFSET.load(Ordering::Relaxed) }
}

#[cold]
fn slewed_offset(now: u64) -> i64 {
    let mut clock = CLOCK.lock();
    clock.advance(now);
    clock.offset_at(now)
}

/// Returns the offset as it was at the beginning of the clock's second, if the clock is slewed.
pub fn last_offset() -> i64 {
    OFFSET.load(Ordering::Relaxed)
}

/// Sets the clock to `nanoseconds` since 1970.
pub fn set(nanoseconds: i64) {
    let mut clock = CLOCK.lock();
    let now = now();
    clock.advance(now);
    clock.set_offset(nanoseconds.max(0).saturating_sub_unsigned(now), now);
    clock.discipline.forget();
    clock.quality.forget();
    clock.show();
}

/// Calls `show` with the clock's offset, with nobody else changing it.
pub fn with_offset<R>(show: impl FnOnce(i64) -> R) -> R {
    show(CLOCK.lock().offset)
}

/// Calls `f` with the clock as it is at the present time, which is its other argument, in
/// nanoseconds since boot. The changes take effect at once. Task context.
pub fn with<R>(f: impl FnOnce(&mut WallClock, u64) -> R) -> R {
    let mut clock = CLOCK.lock();
    let now = now();
    let was_active = clock.discipline.is_active();
    clock.advance(now);
    // The rate may change: its effect counts from here.
    let offset = clock.offset_at(now);
    clock.set_offset(offset, now);
    if clock.quality.settle(now) {
        clock.discipline.status |= Status::UNSYNC;
    }
    let result = f(&mut clock, now);
    if was_active || clock.discipline.is_active() {
        clock.show();
        drop(clock);
        HAS_CHANGED.store(true, Ordering::Release);
        BELL.wake_all();
    }
    result
}

/// Whether the thread has been started, and whether it has something to do.
static IS_STARTED: AtomicBool = AtomicBool::new(false);
static HAS_CHANGED: AtomicBool = AtomicBool::new(false);
static BELL: WaitQueue = WaitQueue::new();

/// Starts the thread that ends the seconds of a slewed clock, once.
///
/// # Errors
/// `ENOMEM`, `EAGAIN`.
pub fn start() -> Result<()> {
    if !IS_STARTED.swap(true, Ordering::AcqRel) {
        sched::spawn_kernel("ntp", run).inspect_err(|_| IS_STARTED.store(false, Ordering::Release))?;
    }
    Ok(())
}

fn run() {
    let has_changed = || HAS_CHANGED.swap(false, Ordering::AcqRel).then_some(());
    loop {
        let end = {
            let mut clock = CLOCK.lock();
            clock.advance(now());
            clock.show();
            clock.discipline.is_active().then(|| clock.end_of_second())
        };
        // Sleepers by this clock have other deadlines now.
        queue::clock_was_set();
        match end {
            Some(end) => drop(BELL.wait_uninterruptible_until(end, has_changed)),
            None => BELL.wait_uninterruptible(has_changed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(offset: i64, since: u64) -> WallClock {
        WallClock { offset, since, discipline: Discipline::INITIAL, quality: ClockQuality::UNKNOWN }
    }

    #[test]
    fn a_slewed_clock_goes_at_its_rate_and_never_back() {
        let mut slow = clock(250_000_000, 0);
        slow.discipline.set_frequency(-(100 << 16));
        let mut before = 0;
        for step in 0..5000 {
            let now = step * 1_000_007;
            slow.advance(now);
            assert!(slow.at(now) > before);
            before = slow.at(now);
        }
        let now: u64 = 4999 * 1_000_007;
        let exact = 250_000_000 + now as i64 - now as i64 / 10_000;
        assert!((before - exact).abs() < 20, "{before} {exact}");
    }

    #[test]
    fn an_inserted_second_is_shown_twice_and_one_that_is_left_out_never() {
        for (bit, leap) in [(0x10, -1), (0x20, 1)] {
            let mut clock = clock(86_397 * SECOND as i64, 0);
            clock.discipline.set_status(bit, 0);
            let shown = |clock: &mut WallClock, now| {
                clock.advance(now);
                clock.at(now)
            };
            assert_eq!(shown(&mut clock, SECOND / 2), 86_397_500_000_000);
            let later = 5 * SECOND;
            assert_eq!(shown(&mut clock, later), (86_402 + leap) * SECOND as i64);
        }
    }
}
