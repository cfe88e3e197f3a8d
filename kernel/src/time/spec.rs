//! `struct timespec` and `struct timeval`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;

/// Seconds and nanoseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Timestamp {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds, below 1_000_000_000.
    pub nanoseconds: u32,
}
use crate::{Errno, Result};

/// `struct timespec`: 16 bytes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct TimeSpec {
    /// Seconds.
    pub seconds: i64,
    /// 0..1,000,000,000 if valid.
    pub nanoseconds: i64,
}

/// `struct timeval`: 16 bytes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct TimeVal {
    /// Seconds.
    pub seconds: i64,
    /// 0..1,000,000 if valid.
    pub microseconds: i64,
}

fn join(seconds: i64, part: i64, parts_per_second: i64) -> Result<u64> {
    if seconds < 0 || part < 0 || part >= parts_per_second {
        return Err(Errno::EINVAL);
    }
    let scale = SECOND / parts_per_second as u64;
    Ok((seconds as u64).saturating_mul(SECOND).saturating_add(part as u64 * scale))
}

impl TimeSpec {
    /// Returns the time in nanoseconds, at most 584 years.
    ///
    /// # Errors
    /// `EINVAL` if a part is negative or the nanoseconds are a second or more.
    pub fn nanoseconds(self) -> Result<u64> {
        join(self.seconds, self.nanoseconds, SECOND as i64)
    }
    /// Makes the time from nanoseconds.
    pub const fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self { seconds: (nanoseconds / SECOND) as i64, nanoseconds: (nanoseconds % SECOND) as i64 }
    }
}

impl TimeVal {
    /// Returns the time in nanoseconds, at most 584 years.
    ///
    /// # Errors
    /// `EINVAL` if a part is negative or the microseconds are a second or more.
    pub fn nanoseconds(self) -> Result<u64> {
        join(self.seconds, self.microseconds, 1_000_000)
    }
    /// Makes the time from nanoseconds, rounded down.
    pub const fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self { seconds: (nanoseconds / SECOND) as i64, microseconds: (nanoseconds % SECOND / 1000) as i64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_times_are_refused_and_endless_ones_saturate() {
        let spec = |seconds, nanoseconds| TimeSpec { seconds, nanoseconds }.nanoseconds();
        assert_eq!(spec(1, 5), Ok(SECOND + 5));
        assert_eq!(spec(-1, 0), Err(Errno::EINVAL));
        assert_eq!(spec(0, SECOND as i64), Err(Errno::EINVAL));
        assert_eq!(spec(0, -1), Err(Errno::EINVAL));
        assert_eq!(spec(i64::MAX, 0), Ok(u64::MAX));
        assert_eq!(TimeVal { seconds: 1, microseconds: 2 }.nanoseconds(), Ok(SECOND + 2000));
        assert_eq!(TimeSpec::from_nanoseconds(SECOND + 5), TimeSpec { seconds: 1, nanoseconds: 5 });
    }
}
