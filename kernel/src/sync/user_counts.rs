//! Counts per user, bounded by a limit.
//!
//! A [`UserCharge`] is a part of its user's count; dropping it subtracts the part. A user with a
//! count of 0 needs no memory. The lock of the counts is the last in the order.

use freehold_collections::Map;

use super::SpinLock;
use crate::{Errno, Result};

/// See the module's head.
pub struct UserCounts(SpinLock<Map<u32, u64>>);

/// A part of a user's count.
pub struct UserCharge {
    counts: &'static UserCounts,
    user: u32,
    amount: u64,
}

impl UserCounts {
    /// Makes counts of 0 for all users.
    pub const fn new() -> Self {
        Self(SpinLock::new(Map::new()))
    }

    /// Adds `amount` to the count of `user`, which may be at most `most`.
    ///
    /// # Errors
    /// `full` if the sum is more than `most`; `ENOMEM`.
    pub fn charge(&'static self, user: u32, amount: u64, most: u64, full: Errno) -> Result<UserCharge> {
        let mut counts = self.0.lock();
        let all = counts.get(&user).copied().unwrap_or(0).saturating_add(amount);
        if all > most {
            return Err(full);
        }
        if amount > 0 {
            counts.try_insert(user, all)?;
        }
        Ok(UserCharge { counts: self, user, amount })
    }
}

impl Drop for UserCharge {
    fn drop(&mut self) {
        if self.amount == 0 {
            return;
        }
        let mut counts = self.counts.0.lock();
        let is_last = counts.get_mut(&self.user).is_some_and(|all| {
            *all -= self.amount;
            *all == 0
        });
        if is_last {
            counts.remove(&self.user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_so_many_things_and_gives_them_back() {
        static COUNTS: UserCounts = UserCounts::new();
        let (user, most) = (7, 100);
        let charge = |user, amount| COUNTS.charge(user, amount, most, Errno::EAGAIN);
        let half = charge(user, most / 2).unwrap();
        let rest = charge(user, most / 2).unwrap();
        assert_eq!(charge(user, 1).err(), Some(Errno::EAGAIN));
        assert!(charge(user, 0).is_ok());
        assert_eq!(charge(user, u64::MAX).err(), Some(Errno::EAGAIN), "no sum overflows");
        assert!(charge(user + 1, most).is_ok(), "another user has a number of its own");
        drop(half);
        assert!(charge(user, most / 2).is_ok());
        drop(rest);
        assert!(COUNTS.0.lock().is_empty(), "a user with nothing needs no memory");
    }
}
