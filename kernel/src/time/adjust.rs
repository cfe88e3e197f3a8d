//! Quality of the wall clock, as reported and set by adjtimex(2).
//!
//! The clock has the rate of the machine's clock, and is set, never slewed. So there is no
//! frequency adjustment, no offset that is corrected gradually and no leap second. The rest of
//! Linux' kernel/time/ntp.c is bookkeeping for programs that query the accuracy of the clock. It is
//! implemented here: an estimate of the error, and a bound of the error that grows until a program
//! renews it. Callers: adjtimex, clock_adjtime, and code that sets the clock. Any context that may
//! take a spin lock.

use bitflags::bitflags;

use super::SECOND;
use crate::sync::SpinLock;

bitflags! {
    /// STA_*: the supported state bits of the clock.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Status: i32 {
        /// No program synchronizes the clock.
        const UNSYNC = 0x40;
        /// Times are reported in nanoseconds, not in microseconds.
        const NANO = 0x2000;
    }
}

/// The largest error that is reported, in microseconds (NTP_PHASE_LIMIT).
pub const MOST_ERROR: i64 = 16_000_000;
/// Microseconds by which the error's bound grows each second (MAXFREQ).
const ERROR_PER_SECOND: u64 = 500;
/// The largest time constant (MAXTC).
pub const MOST_CONSTANT: i64 = 10;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockQuality {
    /// Whether a program synchronizes the clock, and the unit of reported times.
    pub status: Status,
    /// The estimated error, in microseconds.
    pub estimated_error: i64,
    /// The time constant of the kernel's control loop, which does not run here.
    pub constant: i64,
    /// The bound of the error in microseconds, and the time at which it was set.
    bound: (i64, u64),
}

static QUALITY: SpinLock<ClockQuality> = SpinLock::new(ClockQuality::UNKNOWN);

impl ClockQuality {
    const UNKNOWN: Self =
        Self { status: Status::UNSYNC, estimated_error: MOST_ERROR, constant: 2, bound: (MOST_ERROR, 0) };

    /// Returns the bound of the error at `now`, in microseconds.
    pub fn bound_at(&self, now: u64) -> i64 {
        let grown = now.saturating_sub(self.bound.1) / SECOND * ERROR_PER_SECOND;
        self.bound.0.saturating_add_unsigned(grown).min(MOST_ERROR)
    }

    /// Records that the error is at most `error` microseconds at `now`.
    pub fn set_bound(&mut self, error: i64, now: u64) {
        self.bound = (error.clamp(0, MOST_ERROR), now);
    }

    /// Resets the quality, because the clock was set: its error is unknown.
    fn forget(&mut self) {
        self.status |= Status::UNSYNC;
        (self.estimated_error, self.bound) = (MOST_ERROR, (MOST_ERROR, 0));
    }

    /// Updates the state at `now`: if the bound has grown too large, the clock counts as
    /// unsynchronized.
    fn settle(&mut self, now: u64) {
        if self.bound_at(now) >= MOST_ERROR && self.bound.0 < MOST_ERROR {
            self.bound = (MOST_ERROR, 0);
            self.status |= Status::UNSYNC;
        }
    }
}

/// Calls `f` with the quality of the clock.
pub fn with<R>(f: impl FnOnce(&mut ClockQuality) -> R) -> R {
    let mut quality = QUALITY.lock();
    quality.settle(super::now());
    f(&mut quality)
}

/// Records that the clock was set.
pub fn forget() {
    QUALITY.lock().forget();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_grows_until_nobody_vouches_for_the_clock() {
        let mut quality = ClockQuality { status: Status::NANO, ..ClockQuality::UNKNOWN };
        quality.set_bound(1000, 5 * SECOND);
        assert_eq!((quality.bound_at(5 * SECOND), quality.bound_at(7 * SECOND)), (1000, 2000));
        quality.settle(30_000 * SECOND);
        assert_eq!(quality.status, Status::NANO);
        quality.settle(40_000 * SECOND);
        assert_eq!((quality.status, quality.bound_at(0)), (Status::NANO | Status::UNSYNC, MOST_ERROR));
        quality.status = Status::empty();
        quality.settle(50_000 * SECOND);
        assert_eq!(quality.status, Status::empty(), "what is said without a bound stays");
        quality.forget();
        assert_eq!(quality.status, Status::UNSYNC);
        quality.set_bound(-3, 0);
        assert_eq!(quality.bound_at(0), 0);
    }
}
