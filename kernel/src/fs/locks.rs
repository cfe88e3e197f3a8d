//! Advisory locks: flock(2), and the record locks of fcntl(2) and lockf(3).
//!
//! All locks of all files are in one table by inode, behind one spin lock: few programs lock, and none
//! often. A conflict waits on one queue for all; whoever releases wakes everybody, who look again.
//! flock's and fcntl's locks do not see each other (two spaces), as on Linux.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::node::Identity;
use crate::sync::{SpinLock, WaitQueue};
use crate::{Errno, Result};

/// Who holds a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// The processes that share a descriptor table (POSIX record locks).
    Process(u64),
    /// An open file description (flock, OFD locks).
    Description(u64),
}

/// What a lock lets others do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// Others may share it.
    Shared,
    /// Nobody else may hold one.
    Exclusive,
}

/// Which of the two kinds of locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Space {
    /// flock: always the whole file.
    Flock,
    /// fcntl: ranges.
    Record,
}

/// A held or wanted lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// flock's or fcntl's.
    pub space: Space,
    /// First byte.
    pub start: u64,
    /// Behind the last byte; `u64::MAX` is the end of the file, wherever that will be.
    pub end: u64,
    /// What others may.
    pub sharing: Sharing,
    /// Whose it is.
    pub owner: Owner,
    /// The process that set it, for F_GETLK; 0 for a description's.
    pub pid: u32,
}

impl Lock {
    fn conflicts(&self, wanted: &Lock) -> bool {
        self.space == wanted.space
            && self.owner != wanted.owner
            && self.start < wanted.end
            && wanted.start < self.end
            && (self.sharing == Sharing::Exclusive || wanted.sharing == Sharing::Exclusive)
    }
}

static LOCKS: SpinLock<BTreeMap<Identity, Vec<Lock>>> = SpinLock::new(BTreeMap::new());
static RELEASED: WaitQueue = WaitQueue::new();

/// The first lock that stands in the way of `wanted`.
pub fn conflict(file: Identity, wanted: &Lock) -> Option<Lock> {
    LOCKS.lock().get(&file)?.iter().find(|held| held.conflicts(wanted)).copied()
}

/// Set `wanted`, replacing what its owner holds of that range: `EAGAIN` if others stand in the way.
pub fn try_set(file: Identity, wanted: &Lock) -> Result<()> {
    let mut table = LOCKS.lock();
    let held = table.entry(file).or_default();
    if held.iter().any(|lock| lock.conflicts(wanted)) {
        return Err(Errno::EAGAIN);
    }
    // Cutting a range out of one lock can make two of it.
    held.try_reserve(2).map_err(|_| Errno::ENOMEM)?;
    cut(held, wanted.space, wanted.owner, wanted.start, wanted.end);
    join(held, *wanted);
    drop(table);
    // What became shared lets others in.
    RELEASED.wake_all();
    Ok(())
}

/// Set `wanted`, waiting for others to let go; an error when a signal comes.
pub fn set(file: Identity, wanted: &Lock) -> Result<()> {
    RELEASED.wait_until(|| match try_set(file, wanted) {
        Err(Errno::EAGAIN) => None,
        result => Some(result),
    })?
}

/// Let go of `[start, end)` of what `owner` holds in `space`.
pub fn unset(file: Identity, space: Space, owner: Owner, start: u64, end: u64) -> Result<()> {
    let mut table = LOCKS.lock();
    if let Some(held) = table.get_mut(&file) {
        held.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        cut(held, space, owner, start, end);
        if held.is_empty() {
            table.remove(&file);
        }
    }
    drop(table);
    RELEASED.wake_all();
    Ok(())
}

/// Let go of everything that `owner` holds on `file`.
pub fn release(file: Identity, owner: Owner) {
    let mut table = LOCKS.lock();
    let Some(held) = table.get_mut(&file) else { return };
    held.retain(|lock| lock.owner != owner);
    if held.is_empty() {
        table.remove(&file);
    }
    drop(table);
    RELEASED.wake_all();
}

/// Let go of everything that `owner` holds.
pub fn release_all(owner: Owner) {
    LOCKS.lock().retain(|_, held| {
        held.retain(|lock| lock.owner != owner);
        !held.is_empty()
    });
    RELEASED.wake_all();
}

/// All locks, for /proc/locks.
pub fn list() -> Vec<(Identity, Lock)> {
    let table = LOCKS.lock();
    table.iter().flat_map(|(file, held)| held.iter().map(|lock| (*file, *lock))).collect()
}

/// Take `[start, end)` out of the locks of `owner`.
fn cut(held: &mut Vec<Lock>, space: Space, owner: Owner, start: u64, end: u64) {
    let mut at = 0;
    while let Some(lock) = held.get(at).copied() {
        let mine = lock.space == space && lock.owner == owner;
        if !mine || lock.end <= start || end <= lock.start {
            at += 1;
            continue;
        }
        let before = Lock { end: start, ..lock };
        let after = Lock { start: end, ..lock };
        match (lock.start < start, end < lock.end) {
            (false, false) => {
                held.swap_remove(at);
                continue;
            }
            (true, false) => held[at] = before,
            (false, true) => held[at] = after,
            (true, true) => {
                held[at] = before;
                held.push(after);
            }
        }
        at += 1;
    }
}

/// Add `new`, melting it with neighbours of the same owner and kind.
fn join(held: &mut Vec<Lock>, mut new: Lock) {
    held.retain(|lock| {
        let alike = lock.space == new.space && lock.owner == new.owner && lock.sharing == new.sharing;
        let touches = alike && lock.start <= new.end && new.start <= lock.end;
        if touches {
            new.start = new.start.min(lock.start);
            new.end = new.end.max(lock.end);
        }
        !touches
    });
    held.push(new);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(owner: u64, start: u64, end: u64, sharing: Sharing) -> Lock {
        Lock { space: Space::Record, start, end, sharing, owner: Owner::Process(owner), pid: 0 }
    }

    fn file(inode: u64) -> Identity {
        Identity { device: 0xf11e, inode }
    }

    /// A record lock keeps others out of its range only, until its owner lets go.
    #[test]
    fn record_locks_exclude_by_range() {
        let file = file(1);
        try_set(file, &lock(1, 0, 100, Sharing::Exclusive)).unwrap();
        assert_eq!(try_set(file, &lock(2, 50, 60, Sharing::Shared)), Err(Errno::EAGAIN));
        assert_eq!(try_set(file, &lock(2, 100, 110, Sharing::Exclusive)), Ok(()));
        unset(file, Space::Record, Owner::Process(1), 40, 60).unwrap();
        assert_eq!(try_set(file, &lock(2, 50, 60, Sharing::Shared)), Ok(()));
        assert_eq!(try_set(file, &lock(2, 30, 41, Sharing::Shared)), Err(Errno::EAGAIN));
        assert_eq!(try_set(file, &lock(2, 60, 61, Sharing::Shared)), Err(Errno::EAGAIN));
        release(file, Owner::Process(1));
        release(file, Owner::Process(2));
        assert!(conflict(file, &lock(3, 0, u64::MAX, Sharing::Exclusive)).is_none());
    }

    /// Readers share, and one's own lock never stands in the way: it is replaced.
    #[test]
    fn own_locks_are_replaced() {
        let file = file(2);
        try_set(file, &lock(1, 0, 10, Sharing::Shared)).unwrap();
        try_set(file, &lock(2, 0, 10, Sharing::Shared)).unwrap();
        assert_eq!(try_set(file, &lock(1, 0, 10, Sharing::Exclusive)), Err(Errno::EAGAIN));
        release(file, Owner::Process(2));
        try_set(file, &lock(1, 5, 10, Sharing::Exclusive)).unwrap();
        assert_eq!(
            conflict(file, &lock(2, 0, 5, Sharing::Exclusive)).map(|l| l.sharing),
            Some(Sharing::Shared)
        );
        assert_eq!(
            conflict(file, &lock(2, 5, 6, Sharing::Shared)).map(|l| l.sharing),
            Some(Sharing::Exclusive)
        );
        release_all(Owner::Process(1));
        assert!(list().iter().all(|(identity, _)| *identity != file));
    }
}
