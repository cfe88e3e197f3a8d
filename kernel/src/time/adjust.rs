//! Quality of the wall clock, as reported and set by adjtimex(2): an estimate of the error, and a
//! bound of the error that grows until a program renews it. Part of the
//! [`WallClock`](super::wall::WallClock).

use super::SECOND;

/// The largest error that is reported, in microseconds (NTP_PHASE_LIMIT).
pub const MOST_ERROR: i64 = 16_000_000;
/// Microseconds by which the error's bound grows each second (MAXFREQ).
const ERROR_PER_SECOND: u64 = 500;
/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockQuality {
    /// The estimated error, in microseconds.
    pub estimated_error: i64,
    /// The bound of the error in microseconds, and the time at which it was set.
    bound: (i64, u64),
}

impl ClockQuality {
    /// No program has said anything about the clock.
    pub const UNKNOWN: Self = Self { estimated_error: MOST_ERROR, bound: (MOST_ERROR, 0) };

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
    pub fn forget(&mut self) {
        *self = Self::UNKNOWN;
    }

    /// Updates the state at `now`. Returns whether the bound has grown too large, so that the clock
    /// counts as unsynchronized.
    pub fn settle(&mut self, now: u64) -> bool {
        let is_too_large = self.bound_at(now) >= MOST_ERROR && self.bound.0 < MOST_ERROR;
        if is_too_large {
            self.bound = (MOST_ERROR, 0);
        }
        is_too_large
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_grows_until_nobody_vouches_for_the_clock() {
        let mut quality = ClockQuality::UNKNOWN;
        quality.set_bound(1000, 5 * SECOND);
        assert_eq!((quality.bound_at(5 * SECOND), quality.bound_at(7 * SECOND)), (1000, 2000));
        assert!(!quality.settle(30_000 * SECOND));
        assert!(quality.settle(40_000 * SECOND));
        assert_eq!(quality.bound_at(0), MOST_ERROR);
        assert!(!quality.settle(50_000 * SECOND), "what is said without a bound stays");
        quality.set_bound(-3, 0);
        assert_eq!(quality.bound_at(0), 0);
    }
}
