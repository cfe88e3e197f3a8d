//! The number of requests that all contexts of io_setup(2) may have together: /proc/sys/fs/aio-nr
//! and aio-max-nr.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::{Errno, Result};

/// The limit; initially Linux' default.
static MOST: AtomicU64 = AtomicU64::new(0x1_0000);
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// The limit.
pub fn most() -> u64 {
    MOST.load(Ordering::Relaxed)
}

/// Sets the limit. Requests that contexts have already reserved stay.
pub fn set_most(most: u64) {
    MOST.store(most, Ordering::Relaxed);
}

/// Number of requests that contexts have room for.
pub fn taken() -> u64 {
    TAKEN.load(Ordering::Relaxed)
}

/// Room for requests. Dropping it frees the room.
#[derive(Debug)]
pub struct Room(u32);

impl Room {
    /// Reserves room for this many requests.
    ///
    /// # Errors
    /// `EAGAIN` if all contexts together would have more than [`most`].
    pub fn take(requests: u32) -> Result<Self> {
        let more = |taken: u64| taken.checked_add(requests.into()).filter(|&sum| sum <= most());
        let taken = TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.map(|_| Self(requests)).map_err(|_| Errno::EAGAIN)
    }
    /// Returns the number of requests.
    pub const fn requests(&self) -> u32 {
        self.0
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        TAKEN.fetch_sub(self.0.into(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_ends_at_the_limit_and_comes_back() {
        let before = taken();
        let some = Room::take(60_000).unwrap();
        assert!(matches!(Room::take(6_000), Err(Errno::EAGAIN)));
        assert_eq!((some.requests(), taken()), (60_000, before + 60_000));
        drop(some);
        assert_eq!(taken(), before);
    }
}
