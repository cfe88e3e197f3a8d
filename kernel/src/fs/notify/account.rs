//! The instances and watches of each user, and the limits of /proc/sys/fs/inotify and
//! /proc/sys/fs/fanotify. An instance belongs to the effective user of its maker, as in Linux'
//! ucounts.
//!
//! A [`Charge`] is one unit in a user's account. Dropping it frees the unit. The accounts' lock is
//! the last in the lock order.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_collections::Map;

use crate::sync::SpinLock;
use crate::{Errno, Result};

/// A limit that root may change. Linux' relative is an inotify sysctl.
pub struct Limit(AtomicU64);

impl Limit {
    /// Makes a limit with this value.
    pub const fn new(most: u64) -> Self {
        Self(AtomicU64::new(most))
    }

    /// Returns the value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Changes the value. Instances and watches that exist stay.
    ///
    /// # Errors
    /// `EINVAL` above the largest `int`.
    pub fn set(&self, most: u64) -> Result<()> {
        if i32::try_from(most).is_err() {
            return Err(Errno::EINVAL);
        }
        self.0.store(most, Ordering::Relaxed);
        Ok(())
    }
}

/// Largest number of events that wait in an instance, for instances made from now on.
pub static MAX_QUEUED_EVENTS: Limit = Limit::new(16384);
/// Largest number of instances of one user.
pub static MAX_USER_INSTANCES: Limit = Limit::new(128);
/// Largest number of watches of one user. Linux derives it from memory: this is its value for 8
/// GiB.
pub static MAX_USER_WATCHES: Limit = Limit::new(65536);

/// Largest number of events that wait in a fanotify group, for groups made from now on.
pub static MAX_GROUP_EVENTS: Limit = Limit::new(16384);
/// Largest number of fanotify groups of one user.
pub static MAX_USER_GROUPS: Limit = Limit::new(128);
/// Largest number of fanotify marks of one user. Linux derives it from memory, like that of
/// watches.
pub static MAX_USER_MARKS: Limit = Limit::new(65536);

/// The things that an account counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Resource {
    Instance = 0,
    Watch = 1,
    Group = 2,
    Mark = 3,
}

static ACCOUNTS: SpinLock<Map<u32, [u64; 4]>> = SpinLock::new(Map::new());

/// One unit in a user's account.
#[derive(Debug)]
pub(super) struct Charge {
    user: u32,
    resource: Resource,
}

impl Charge {
    /// Charges `user` with one more of `resource`.
    ///
    /// # Errors
    /// `EMFILE` for an instance or group, `ENOSPC` for a watch or mark beyond the limit; `ENOMEM`.
    pub fn new(user: u32, resource: Resource) -> Result<Self> {
        let (limit, full) = match resource {
            Resource::Instance => (&MAX_USER_INSTANCES, Errno::EMFILE),
            Resource::Watch => (&MAX_USER_WATCHES, Errno::ENOSPC),
            Resource::Group => (&MAX_USER_GROUPS, Errno::EMFILE),
            Resource::Mark => (&MAX_USER_MARKS, Errno::ENOSPC),
        };
        let mut accounts = ACCOUNTS.lock();
        let mut counts = accounts.get(&user).copied().unwrap_or_default();
        if counts[resource as usize] >= limit.get() {
            return Err(full);
        }
        counts[resource as usize] += 1;
        accounts.try_insert(user, counts)?;
        Ok(Self { user, resource })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut accounts = ACCOUNTS.lock();
        let Some(counts) = accounts.get_mut(&self.user) else { return };
        counts[self.resource as usize] -= 1;
        if *counts == [0; 4] {
            accounts.remove(&self.user);
        }
    }
}

#[cfg(test)]
mod tests {
    use freehold_collections::inject::each_fails;

    use super::*;

    fn counts(user: u32) -> Option<[u64; 4]> {
        ACCOUNTS.lock().get(&user).copied()
    }

    #[test]
    fn a_user_has_as_many_instances_as_the_limit_says_and_gets_the_places_back() {
        let user = 80_001;
        let mut all = std::vec::Vec::new();
        for _ in 0..MAX_USER_INSTANCES.get() {
            all.push(Charge::new(user, Resource::Instance).unwrap());
        }
        assert_eq!(Charge::new(user, Resource::Instance).err(), Some(Errno::EMFILE));
        assert!(Charge::new(user + 1, Resource::Instance).is_ok(), "another user has an account of its own");
        assert!(Charge::new(user, Resource::Watch).is_ok(), "watches are counted apart");
        all.pop();
        assert!(Charge::new(user, Resource::Instance).is_ok());
        drop(all);
        assert_eq!((counts(user), counts(user + 1)), (None, None), "an empty account needs no memory");
    }

    #[test]
    fn a_charge_without_memory_counts_nothing() {
        let mut all = std::vec::Vec::new();
        let mut failures = 0;
        for user in 81_000..81_100 {
            let (charge, failed) = each_fails(|| {
                Charge::new(user, Resource::Watch).inspect_err(|_| assert_eq!(counts(user), None))
            });
            all.push(charge.unwrap());
            failures += failed;
        }
        assert!(failures > 0);
    }

    #[test]
    fn a_limit_is_an_int() {
        let limit = Limit::new(5);
        assert_eq!((limit.set(1 << 31), limit.get()), (Err(Errno::EINVAL), 5));
        assert_eq!((limit.set(0), limit.get()), (Ok(()), 0));
    }
}
