//! Pages that requests hold while they wait, which each user may have so many of: the list of them
//! is the kernel's own memory, a thousandth of what it holds, and the page of zeroes may be in it
//! any number of times.

use freehold_collections::Map;
use freehold_machine::PAGE_SIZE;

use crate::sync::SpinLock;
use crate::user::Iovecs;
use crate::{Errno, Result, task};

/// The most bytes of one request of a stream: more than any stream takes at once.
pub const MOST_BYTES: usize = 1 << 20;
/// The most pages of a user: 1 GiB, with lists of some 6 MiB.
const MOST_PAGES: usize = 1 << 18;

/// Pages of each user that has requests which hold some.
static USERS: SpinLock<Map<u32, usize>> = SpinLock::new(Map::new());

/// The pages of one request, in its user's account.
pub struct Pins {
    user: u32,
    pages: usize,
}

impl Pins {
    /// Those of the first `most` bytes of `memory`, for the calling program's user.
    ///
    /// # Errors
    /// `EAGAIN` where the user has too many, `ENOMEM`.
    pub fn of(memory: &Iovecs, most: usize) -> Result<Self> {
        let mut left = most;
        let mut pages = 0;
        for (_, length) in memory.slices().iter().map(|slice| slice.place()) {
            let length = length.min(left);
            left -= length;
            pages += if length == 0 { 0 } else { length.div_ceil(PAGE_SIZE) + 1 };
        }
        Self::charge(task::current().process().uid(), pages)
    }

    fn charge(user: u32, pages: usize) -> Result<Self> {
        let mut users = USERS.lock();
        let all = users.get(&user).copied().unwrap_or(0) + pages;
        if all > MOST_PAGES {
            return Err(Errno::EAGAIN);
        }
        users.try_insert(user, all)?;
        Ok(Self { user, pages })
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let mut users = USERS.lock();
        let is_last = users.get_mut(&self.user).is_some_and(|all| {
            *all -= self.pages;
            *all == 0
        });
        if is_last {
            users.remove(&self.user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_s_requests_hold_so_many_pages_and_give_them_back() {
        let user = 95_001;
        let half = Pins::charge(user, MOST_PAGES / 2).unwrap();
        let rest = Pins::charge(user, MOST_PAGES / 2).unwrap();
        assert_eq!(Pins::charge(user, 1).err(), Some(Errno::EAGAIN));
        assert!(Pins::charge(user + 1, MOST_PAGES).is_ok(), "another user has an account of its own");
        drop(half);
        assert!(Pins::charge(user, MOST_PAGES / 2).is_ok());
        drop(rest);
        assert!(!USERS.lock().contains_key(&user));
    }
}
