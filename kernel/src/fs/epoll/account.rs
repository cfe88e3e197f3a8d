//! The number of files that all epoll instances of a user watch, and its limit
//! (fs.epoll.max_user_watches): each watch takes memory that no process is charged for.
//!
//! An instance belongs to the real user of its maker. A user's count exists while the user has an
//! instance; adding a watch changes only that count.
//!
//! Source: `ep_insert` and `eventpoll_init` in fs/eventpoll.c.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_collections::{
    Arc, Map,
    reserve::{self, ArcMethods},
};

use crate::fs::notify::Limit;
use crate::sync::SpinLock;
use crate::{Errno, Result};

/// Bytes of a watch, as Linux counts them.
const WATCH_BYTES: u64 = 200;
/// A user's watches may take one part in this many of memory.
const PART: u64 = 25;

/// Limit of the watches of one user.
pub static MAX_USER_WATCHES: Limit = Limit::new(1 << 16);

static USERS: SpinLock<Map<u32, Arc<AtomicU64>>> = SpinLock::new(Map::new());

/// Sets the limit from the machine's number of pages, as Linux does.
pub fn init(pages: u64) {
    let bytes = pages.saturating_mul(freehold_machine::PAGE_SIZE as u64);
    let most = bytes / PART / WATCH_BYTES;
    // The limit is valid: it is the smaller of the two.
    let _ = MAX_USER_WATCHES.set(most.min(i32::MAX as u64));
}

/// The account of an instance's user.
pub(super) struct WatchAccount {
    user: u32,
    watches: Arc<AtomicU64>,
}

impl WatchAccount {
    /// Returns the account of `user`.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn of(user: u32) -> Result<Self> {
        let fresh = reserve::arc(AtomicU64::new(0));
        let mut users = USERS.lock();
        let watches = match users.get(&user) {
            Some(watches) => watches.clone(),
            None => {
                users.try_insert(user, fresh.clone())?;
                fresh
            }
        };
        Ok(Self { user, watches })
    }

    /// Counts one more watch.
    ///
    /// # Errors
    /// `ENOSPC` if the user has reached the limit.
    pub fn charge(&self) -> Result<()> {
        if self.watches.fetch_add(1, Ordering::Relaxed) >= MAX_USER_WATCHES.get() {
            self.uncharge(1);
            return Err(Errno::ENOSPC);
        }
        Ok(())
    }

    /// Reduces the number of watches by `count`.
    pub fn uncharge(&self, count: u64) {
        self.watches.fetch_sub(count, Ordering::Relaxed);
    }
}

impl Drop for WatchAccount {
    fn drop(&mut self) {
        let mut users = USERS.lock();
        // There are two references, the map's and this one. No other can be added while the map is
        // locked.
        let unused = if self.watches.references() == 2 { users.remove(&self.user) } else { None };
        drop(users);
        drop(unused);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_of_a_user_share_a_number_that_goes_with_the_last() {
        let user = 90_001;
        let (one, other) = (WatchAccount::of(user).unwrap(), WatchAccount::of(user).unwrap());
        let most = MAX_USER_WATCHES.get();
        one.watches.store(most - 1, Ordering::Relaxed);
        assert_eq!(
            (other.charge(), one.charge(), other.charge()),
            (Ok(()), Err(Errno::ENOSPC), Err(Errno::ENOSPC))
        );
        assert_eq!(
            WatchAccount::of(user + 1).unwrap().charge(),
            Ok(()),
            "another user has a number of its own"
        );
        one.uncharge(1);
        assert_eq!(other.charge(), Ok(()));
        drop(one);
        assert!(USERS.lock().contains_key(&user));
        drop(other);
        assert!(!USERS.lock().contains_key(&user) && !USERS.lock().contains_key(&(user + 1)));
    }
}
