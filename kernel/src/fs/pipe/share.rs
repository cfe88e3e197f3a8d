//! Limits on each user's pages of pipes, so that no user fills the machine with them. A pipe's
//! pages are not part of any process' memory, so the OOM killer could not find the culprit.
//!
//! A pipe counts with its capacity in pages, for the user that made it. Pipes of a maker with
//! CAP_SYS_RESOURCE or CAP_SYS_ADMIN are not counted.
//!
//! Source: pipe(7), `alloc_pipe_info` and `pipe_set_size` in fs/pipe.c.

use core::sync::atomic::{AtomicUsize, Ordering};

use freehold_collections::Map;

use crate::sync::SpinLock;
use crate::task::{self, Capability};
use crate::{Errno, Result};

/// Capacity of a new pipe, in pages, if its maker has reached [`SOFT`].
const FEW_PAGES: usize = 2;

/// Number of a user's pages above which new pipes are small and no pipe grows; 0 for no limit
/// (/proc/sys/fs/pipe-user-pages-soft).
static SOFT: AtomicUsize = AtomicUsize::new(16384);
/// Number of a user's pages above which the user can make no pipe; 0 for no limit
/// (/proc/sys/fs/pipe-user-pages-hard).
static HARD: AtomicUsize = AtomicUsize::new(0);

/// Number of pages of each user that has pipes.
static USERS: SpinLock<Map<u32, usize>> = SpinLock::new(Map::new());

/// Returns the number of pages above which a user's new pipes are small; 0 for no limit.
pub fn soft() -> u64 {
    SOFT.load(Ordering::Relaxed) as u64
}

/// Sets [`soft`].
pub fn set_soft(pages: u64) {
    SOFT.store(pages as usize, Ordering::Relaxed);
}

/// Returns the number of pages above which a user can make no pipe; 0 for no limit.
pub fn hard() -> u64 {
    HARD.load(Ordering::Relaxed) as u64
}

/// Sets [`hard`].
pub fn set_hard(pages: u64) {
    HARD.store(pages as usize, Ordering::Relaxed);
}

fn is_above(pages: usize, limit: &AtomicUsize) -> bool {
    let limit = limit.load(Ordering::Relaxed);
    limit != 0 && pages > limit
}

/// Whether a program is subject to the limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Privilege {
    /// It is not: it has CAP_SYS_RESOURCE or CAP_SYS_ADMIN.
    Unbound,
    /// It is subject to them.
    None,
}

impl Privilege {
    /// The calling program's privilege. The kernel itself is not subject to the limits.
    pub fn of_caller() -> Self {
        let is_bound = task::try_with_current(|_| {
            !task::may(Capability::SysResource) && !task::may(Capability::SysAdmin)
        });
        if is_bound == Some(true) { Self::None } else { Self::Unbound }
    }
}

/// The pages of a pipe in its maker's account.
pub(super) struct Share {
    /// The maker; `None` if its pipes are not counted.
    user: Option<u32>,
    pages: usize,
}

impl Share {
    /// Counts a new pipe of `pages`, or of [`FEW_PAGES`] if its maker has many. Returns how many
    /// pages were counted.
    ///
    /// # Errors
    /// `ENFILE` if the maker has too many, `ENOMEM`.
    pub fn new(pages: usize) -> Result<(Self, usize)> {
        let user = match Privilege::of_caller() {
            Privilege::None => task::try_with_current(|task| task.with_credentials(|own| own.uid)),
            Privilege::Unbound => None,
        };
        let Some(user) = user else { return Ok((Self { user: None, pages }, pages)) };
        let mut users = USERS.lock();
        let before = users.get(&user).copied().unwrap_or(0);
        let pages = if is_above(before + pages, &SOFT) { FEW_PAGES.min(pages) } else { pages };
        if is_above(before + pages, &HARD) {
            return Err(Errno::ENFILE);
        }
        users.try_insert(user, before + pages)?;
        Ok((Self { user: Some(user), pages }, pages))
    }

    /// Calls `change`, and then counts the pipe with `pages`; `privilege` is the caller's.
    ///
    /// # Errors
    /// `EPERM` if the pipe grows, the maker has too many pages, and the caller has no privilege;
    /// those of `change`.
    pub fn resize(
        &mut self,
        pages: usize,
        privilege: Privilege,
        change: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let Some(user) = self.user else { return change() };
        let is_bound = pages > self.pages && privilege == Privilege::None;
        let mut users = USERS.lock();
        let all = users.get_mut(&user).ok_or(Errno::EPERM)?;
        let after = *all - self.pages + pages;
        if is_bound && (is_above(after, &SOFT) || is_above(after, &HARD)) {
            return Err(Errno::EPERM);
        }
        change()?;
        *all = after;
        self.pages = pages;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Some(user) = self.user else { return };
        let mut users = USERS.lock();
        let is_last = users.get_mut(&user).is_some_and(|all| {
            *all -= self.pages;
            *all == 0
        });
        if is_last {
            users.remove(&user);
        }
    }
}
