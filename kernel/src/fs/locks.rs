//! Advisory locks: flock(2), and the record locks of fcntl(2) and lockf(3).
//!
//! Each file with locks has a table of its own ([`files`]), with two sets of locks ([`set`]):
//! flock's and fcntl's locks do not conflict with each other, as on Linux. Waits for a lock, and
//! deadlocks, are in [`waits`].
//!
//! **Protocol.** A file's table is behind one sleeping lock. Work whose length a program chooses is
//! done with this lock held, so it delays only users of this file. Calls take the lock killably,
//! and a search for a conflict stops if its task is killed. A release cannot stop: it takes a
//! number of steps in proportion to the locks that it releases and the file's waits, and searches
//! for conflicts in a bounded number of steps ([`SearchLimit`]). It allocates nothing.
//!
//! Lock order: a file's table > the stripe of tables, which is held for one search; a file's table
//! > the graph of waits. No task holds the tables of two files.

mod files;
mod set;
mod waits;

use core::ops::Range;

use freehold_collections::Arc;

use super::node::Identity;
use crate::{Errno, Result};
use files::FileLocks;
use set::{LockKey, SearchLimit};
use waits::LockWait;

/// Owner of a lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Owner {
    /// The processes that share a descriptor table (POSIX record locks).
    Process(u64),
    /// An open file description (flock, OFD locks).
    Description(u64),
}

/// Whether a lock can be shared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockSharing {
    /// Other owners may hold shared locks.
    Shared,
    /// No other owner may hold a lock.
    Exclusive,
}

/// The kind of a lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LockSpace {
    /// flock: always the whole file.
    Flock,
    /// fcntl: ranges.
    Record,
}

impl LockSpace {
    /// Both kinds, in the order of /proc/locks.
    const ALL: [Self; 2] = [Self::Flock, Self::Record];

    /// Returns the error for a lack of memory, as on Linux (fs/locks.c).
    const fn no_memory(self) -> Errno {
        match self {
            Self::Record => Errno::ENOLCK,
            Self::Flock => Errno::ENOMEM,
        }
    }
}

/// A held or requested lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// The kind: flock's or fcntl's.
    pub space: LockSpace,
    /// First byte.
    pub start: u64,
    /// The byte after the last one; `u64::MAX` means the end of the file, even if it grows.
    pub end: u64,
    /// Whether the lock can be shared.
    pub sharing: LockSharing,
    /// The lock's owner.
    pub owner: Owner,
    /// The process that set the lock, for F_GETLK; 0 for a description's lock.
    pub pid: u32,
}

impl Lock {
    fn overlaps(&self, range: &Range<u64>) -> bool {
        self.start < range.end && range.start < self.end
    }

    fn conflicts(&self, wanted: &Lock) -> bool {
        self.space == wanted.space
            && self.owner != wanted.owner
            && self.overlaps(&(wanted.start..wanted.end))
            && (self.sharing == LockSharing::Exclusive || wanted.sharing == LockSharing::Exclusive)
    }
}

/// A lock of another owner that conflicts with `wanted`: the first lock of the first such owner.
///
/// # Errors
/// `EINTR` if the caller is killed.
pub fn conflict(file: Identity, wanted: &Lock) -> Result<Option<Lock>> {
    let Some(locks) = files::find(file) else { return Ok(None) };
    let table = locks.lock_killable()?;
    table.of(wanted.space).conflicts(wanted, &mut SearchLimit::UntilKilled(0))
}

/// Sets `wanted`, replacing its owner's locks in that range.
///
/// # Errors
/// `EAGAIN` if there is a conflict; without memory `ENOLCK`, or `ENOMEM` for flock; `EINTR` if the
/// caller is killed. No lock is changed.
pub fn try_set(file: Identity, wanted: &Lock) -> Result<()> {
    files::with_made(file, wanted.space, |_, set| match set.set(wanted)? {
        None => Ok(()),
        Some(_) => Err(Errno::EAGAIN),
    })
}

/// Sets `wanted`; waits for conflicting locks to be released.
///
/// # Errors
/// `ERESTARTSYS` if a signal arrives, `EDEADLK` for a deadlock, and as [`try_set`].
pub fn set(file: Identity, wanted: &Lock) -> Result<()> {
    match try_set(file, wanted) {
        Err(Errno::EAGAIN) => LockWait::new(file, wanted)?.wait(),
        result => result,
    }
}

/// Releases `[start, end)` of the locks of `owner` in `space`.
///
/// # Errors
/// Without memory, as [`try_set`], if one lock is split in two; never for the whole range. `EINTR`
/// if the caller is killed. No lock is changed.
pub fn unset(file: Identity, space: LockSpace, owner: Owner, start: u64, end: u64) -> Result<()> {
    let Some(locks) = files::find(file) else { return Ok(()) };
    let mut table = locks.lock_killable()?;
    let set = table.of_mut(space);
    if (start, end) != (0, u64::MAX) {
        set.make_room()?;
    }
    set.let_go(LockKey { owner, start }, end);
    Ok(())
}

/// Releases all locks of `owner` on `file`. Allocates nothing.
pub fn release(file: Identity, owner: Owner) {
    let Some(locks) = files::find(file) else { return };
    let mut table = locks.lock();
    for space in LockSpace::ALL {
        table.of_mut(space).let_go(LockKey { owner, start: 0 }, u64::MAX);
    }
    files::remove_if_empty(file, &mut table);
}

/// A reader's position in the list of all locks; starts at the beginning.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor {
    file: Option<Identity>,
    last: Option<(LockSpace, LockKey)>,
}

impl Cursor {
    /// Returns the next lock, if there is one, for /proc/locks. The reader sees each lock that is
    /// held during the whole read.
    ///
    /// # Errors
    /// `EINTR` if the caller is killed.
    pub fn advance(&mut self) -> Result<Option<(Identity, Lock)>> {
        loop {
            if let Some(file) = self.file
                && let Some(locks) = files::find(file)
                && let Some(lock) = self.advance_in(&locks)?
            {
                return Ok(Some((file, lock)));
            }
            crate::sched::checkpoint()?;
            let Some(next) = files::after(self.file) else { return Ok(None) };
            *self = Self { file: Some(next), last: None };
        }
    }

    /// Returns the next lock of the current file.
    fn advance_in(&mut self, locks: &Arc<FileLocks>) -> Result<Option<Lock>> {
        let table = locks.lock_killable()?;
        let mut last = self.last;
        for space in LockSpace::ALL {
            let from = match last {
                Some((reached, _)) if reached > space => continue,
                Some((_, key)) => Some(key),
                None => None,
            };
            if let Some((key, lock)) = table.of(space).after(from) {
                self.last = Some((space, key));
                return Ok(Some(lock));
            }
            last = None;
        }
        Ok(None)
    }
}

/// Let go of everything that `owner` holds.
#[cfg(test)]
fn release_all(owner: Owner) {
    let mut last = None;
    while let Some(file) = files::after(last) {
        release(file, owner);
        last = Some(file);
    }
}

#[cfg(test)]
mod tests;
