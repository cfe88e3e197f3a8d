//! A point in time by one of two clocks.

use super::{now, wall};

/// A clock by which timers expire and waits end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Base {
    /// Nanoseconds since boot.
    #[default]
    Boot,
    /// Nanoseconds since 1970: the clock may be set.
    Wall,
}

impl Base {
    /// Returns what the clock shows when `now` nanoseconds have passed since boot; 0 before 1970.
    pub fn at(self, now: u64) -> u64 {
        match self {
            Self::Boot => now,
            Self::Wall => now.saturating_add_signed(wall::offset(now)),
        }
    }
}

/// A point in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deadline {
    /// The clock.
    pub base: Base,
    /// Nanoseconds that the clock shows.
    pub at: u64,
}

impl From<u64> for Deadline {
    /// Returns the point `at` nanoseconds after boot.
    fn from(at: u64) -> Self {
        Self { base: Base::Boot, at }
    }
}

impl Deadline {
    /// Returns the nanoseconds until the clock shows the time, 0 if it is past.
    pub fn left(self) -> u64 {
        self.at.saturating_sub(self.base.at(now()))
    }
    /// Whether the clock shows the time, or a later one.
    pub fn has_passed(self) -> bool {
        self.left() == 0
    }
    /// Returns the nanoseconds since boot at which the clock shows the time, unless it is set
    /// before.
    pub fn since_boot(self) -> u64 {
        match self.base {
            Base::Boot => self.at,
            Base::Wall => {
                let at = i128::from(self.at) - i128::from(wall::offset(now()));
                u64::try_from(at.max(0)).unwrap_or(u64::MAX)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_before_boot_is_past_and_an_endless_one_never_comes() {
        let wall = |at| Deadline { base: Base::Wall, at };
        assert_eq!(wall(0).since_boot(), 0);
        assert!(wall(0).has_passed());
        assert!(wall(u64::MAX).since_boot() > u64::MAX / 2 && !wall(u64::MAX).has_passed());
        assert_eq!(Deadline::from(7).since_boot(), 7);
    }
}
