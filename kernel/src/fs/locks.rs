//! Advisory locks: flock(2), and the record locks of fcntl(2) and lockf(3).
//!
//! All locks of all files are in one table by inode, owner and first byte, behind one sleeping
//! lock: few programs use locks, and none often. Setting and releasing a range takes logarithmic
//! time in the number of locks, plus the number of replaced locks. A conflict is searched owner by
//! owner, or lock by lock if an owner has few. flock's and fcntl's locks do not conflict with each
//! other (two spaces), as on Linux. Waits for a lock, and deadlocks, are in [`waits`].

mod waits;

use core::ops::{Bound, Range};

use freehold_collections::Map;

use super::node::Identity;
use crate::sync::Mutex;
use crate::{Errno, Result};
use waits::{LockWait, Waits};

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

/// The key of a lock in the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct LockKey {
    file: Identity,
    space: LockSpace,
    owner: Owner,
    start: u64,
}

/// The other properties of a held lock.
#[derive(Clone, Copy, Debug)]
struct HeldLock {
    end: u64,
    sharing: LockSharing,
    pid: u32,
}

impl LockKey {
    /// Returns the lock with this key and the properties in `held`.
    fn lock(self, held: HeldLock) -> Lock {
        let Self { space, owner, start, .. } = self;
        Lock { space, start, end: held.end, sharing: held.sharing, owner, pid: held.pid }
    }
}

/// All locks, and the waits for them. Locks of one owner on one file in one space do not overlap.
/// Adjacent ones differ, otherwise they are merged.
struct LockTable {
    held: Map<LockKey, HeldLock>,
    waits: Waits,
}

static LOCKS: Mutex<LockTable> = Mutex::new(LockTable { held: Map::new(), waits: Waits::new() });
/// Number of locks of an owner that are checked one by one before a range search.
const MOST_WALKED: usize = 8;
/// Largest number of entries that one change adds: the new lock, and the end of the lock that it
/// splits.
const MOST_ADDED: usize = 2;

/// A lock of another owner that conflicts with `wanted`: the first lock of the first such owner.
pub fn conflict(file: Identity, wanted: &Lock) -> Option<Lock> {
    LOCKS.lock().conflicts(file, wanted)
}

/// Sets `wanted`, replacing its owner's locks in that range.
///
/// # Errors
/// `EAGAIN` if there is a conflict, and as [`LockTable::make_room`]; no lock is changed.
pub fn try_set(file: Identity, wanted: &Lock) -> Result<()> {
    match LOCKS.lock().set(file, wanted)? {
        None => Ok(()),
        Some(_) => Err(Errno::EAGAIN),
    }
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
/// As [`LockTable::make_room`], if one lock is split in two; no lock is changed. Never for the
/// whole range.
pub fn unset(file: Identity, space: LockSpace, owner: Owner, start: u64, end: u64) -> Result<()> {
    let mut table = LOCKS.lock();
    if (start, end) != (0, u64::MAX) {
        table.make_room(space)?;
    }
    table.let_go(LockKey { file, space, owner, start }, end);
    Ok(())
}

/// Releases all locks of `owner` on `file`. Allocates nothing.
pub fn release(file: Identity, owner: Owner) {
    LOCKS.lock().release(file, owner);
}

/// Let go of everything that `owner` holds.
#[cfg(test)]
fn release_all(owner: Owner) {
    let mut last = None;
    // One file after the other; the table is locked for one at a time.
    loop {
        let mut table = LOCKS.lock();
        let Some(file) = table.file_after(last) else { break };
        table.release(file, owner);
        last = Some(file);
    }
}

/// A reader's position in the list of all locks; starts at the beginning.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor(Option<LockKey>);

impl Cursor {
    /// Returns the next lock, if there is one, for /proc/locks. The reader sees each lock that is
    /// held during the whole read.
    pub fn advance(&mut self) -> Option<(Identity, Lock)> {
        let table = LOCKS.lock();
        let from = self.0.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let (&key, &held) = table.held.first_from(from)?;
        self.0 = Some(key);
        Some((key.file, key.lock(held)))
    }
}

impl LockTable {
    /// Makes room for the entries that one change adds.
    ///
    /// # Errors
    /// [`LockSpace::no_memory`].
    fn make_room(&mut self, space: LockSpace) -> Result<()> {
        self.held.try_reserve(MOST_ADDED).map_err(|_| space.no_memory())
    }

    /// Sets `wanted`, replacing its owner's locks in that range. If a lock conflicts, returns that
    /// lock and changes none.
    ///
    /// # Errors
    /// As [`make_room`](Self::make_room); no lock is changed.
    fn set(&mut self, file: Identity, wanted: &Lock) -> Result<Option<Lock>> {
        if let Some(lock) = self.conflicts(file, wanted) {
            return Ok(Some(lock));
        }
        self.make_room(wanted.space)?;
        let Lock { space, start, end, sharing, owner, .. } = *wanted;
        let replaced = self.cut(LockKey { file, space, owner, start }, end);
        self.join(file, *wanted);
        self.look_again(file, wanted);
        // If a lock became shared, other owners can share it now.
        if !replaced.is_empty() && sharing == LockSharing::Shared {
            self.wake((file, space), owner, &replaced);
        }
        Ok(None)
    }

    /// Releases the range from the start of `first` to `end` of its owner's locks, and wakes the
    /// waits that can have their locks now.
    fn let_go(&mut self, first: LockKey, end: u64) {
        let free = self.cut(first, end);
        if !free.is_empty() {
            self.wake((first.file, first.space), first.owner, &free);
        }
    }

    /// The locks of `owner` that overlap `[start, end)`, from the last to the first.
    fn overlapping(&self, first: LockKey, end: u64) -> impl Iterator<Item = (LockKey, HeldLock)> {
        let mut until = LockKey { start: end, ..first };
        core::iter::from_fn(move || {
            let (&key, &held) = self.held.last_until(Bound::Excluded(&until))?;
            until = key;
            let is_his = LockKey { start: first.start, ..key } == first;
            (is_his && first.start < held.end).then_some((key, held))
        })
    }

    fn conflicts(&self, file: Identity, wanted: &Lock) -> Option<Lock> {
        let mut from =
            Bound::Included(LockKey { file, space: wanted.space, owner: Owner::Process(0), start: 0 });
        while let Some(key) = self.walk(file, wanted, from.as_ref()) {
            if key.owner != wanted.owner {
                let lock = match self.held.get(&key).map(|&held| key.lock(held)) {
                    Some(lock) if lock.conflicts(wanted) => Some(lock),
                    // The owner has many locks.
                    _ => {
                        let overlapping =
                            self.overlapping(LockKey { start: wanted.start, ..key }, wanted.end);
                        let locks = overlapping.map(|(key, held)| key.lock(held));
                        locks.filter(|lock| lock.conflicts(wanted)).last()
                    }
                };
                if lock.is_some() {
                    return lock;
                }
            }
            // No lock starts at the last possible byte.
            from = Bound::Excluded(LockKey { start: u64::MAX, ..key });
        }
        None
    }

    /// Returns the next lock of the file that conflicts with `wanted`, belongs to its owner, or is
    /// one of many locks of an owner.
    fn walk(&self, file: Identity, wanted: &Lock, from: Bound<&LockKey>) -> Option<LockKey> {
        let mut walked = (wanted.owner, 0);
        for (&key, &held) in self.held.iter_from(from) {
            if (key.file, key.space) != (file, wanted.space) {
                return None;
            }
            crate::sched::rest();
            walked = if key.owner == walked.0 { (key.owner, walked.1 + 1) } else { (key.owner, 0) };
            if key.owner == wanted.owner || walked.1 == MOST_WALKED || key.lock(held).conflicts(wanted) {
                return Some(key);
            }
        }
        None
    }

    /// Removes the range from the start of `first` to `end` from its owner's locks. If that splits
    /// a lock, room was reserved. Returns the range from the first byte that was locked to the
    /// last.
    fn cut(&mut self, first: LockKey, end: u64) -> Range<u64> {
        let start = first.start;
        let mut cut = 0..0;
        loop {
            crate::sched::rest();
            // A statement of its own, since the search borrows the table.
            let next = self.overlapping(first, end).next();
            let Some((key, held)) = next else { return cut };
            // The locks are visited from the last to the first.
            let last = if cut.is_empty() { held.end.min(end) } else { cut.end };
            cut = key.start.max(start)..last;
            if key.start >= start {
                self.held.remove(&key);
            } else if let Some(held) = self.held.get_mut(&key) {
                held.end = start;
            }
            if end < held.end {
                self.held.insert_reserved(LockKey { start: end, ..key }, held);
            }
        }
    }

    /// Adds `new`, in whose range its owner has no lock, and merges it with adjacent locks of the
    /// same kind.
    fn join(&mut self, file: Identity, new: Lock) {
        let Lock { space, mut start, mut end, sharing, owner, pid } = new;
        let key = |start| LockKey { file, space, owner, start };
        if let Some((&before, held)) = self.held.last_until(Bound::Excluded(&key(start)))
            && (LockKey { start, ..before }) == key(start)
            && (held.end, held.sharing) == (start, sharing)
        {
            start = before.start;
        }
        if let Some(after) = self.held.get(&key(end)).filter(|after| after.sharing == sharing).copied() {
            self.held.remove(&key(end));
            end = after.end;
        }
        self.held.insert_reserved(key(start), HeldLock { end, sharing, pid });
    }

    fn release(&mut self, file: Identity, owner: Owner) {
        for space in [LockSpace::Flock, LockSpace::Record] {
            self.let_go(LockKey { file, space, owner, start: 0 }, u64::MAX);
        }
    }

    /// The first file with locks behind `last`.
    #[cfg(test)]
    fn file_after(&self, last: Option<Identity>) -> Option<Identity> {
        let from = last.map_or(Bound::Unbounded, |file| {
            let (space, owner) = (LockSpace::Record, Owner::Description(u64::MAX));
            Bound::Excluded(LockKey { file, space, owner, start: u64::MAX })
        });
        self.held.first_from(from.as_ref()).map(|(key, _)| key.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use freehold_collections::inject::{each_fails, fail_nth};
    use std::vec::Vec;

    fn lock(owner: u64, start: u64, end: u64, sharing: LockSharing) -> Lock {
        Lock { space: LockSpace::Record, start, end, sharing, owner: Owner::Process(owner), pid: 0 }
    }

    fn file(inode: u64) -> Identity {
        Identity { device: 0xf11e, inode }
    }

    /// The locks of a file as /proc/locks lists them.
    fn listed(file: Identity) -> Vec<Lock> {
        let mut cursor = Cursor::default();
        let all = core::iter::from_fn(|| cursor.advance());
        all.filter(|(identity, _)| *identity == file).map(|(_, lock)| lock).collect()
    }

    /// A record lock excludes other owners from its range, until its owner releases it.
    #[test]
    fn record_locks_exclude_by_range() {
        let file = file(1);
        try_set(file, &lock(1, 0, 100, LockSharing::Exclusive)).unwrap();
        assert_eq!(try_set(file, &lock(2, 50, 60, LockSharing::Shared)), Err(Errno::EAGAIN));
        assert_eq!(try_set(file, &lock(2, 100, 110, LockSharing::Exclusive)), Ok(()));
        unset(file, LockSpace::Record, Owner::Process(1), 40, 60).unwrap();
        assert_eq!(try_set(file, &lock(2, 50, 60, LockSharing::Shared)), Ok(()));
        assert_eq!(try_set(file, &lock(2, 30, 41, LockSharing::Shared)), Err(Errno::EAGAIN));
        assert_eq!(try_set(file, &lock(2, 60, 61, LockSharing::Shared)), Err(Errno::EAGAIN));
        release(file, Owner::Process(1));
        release(file, Owner::Process(2));
        assert!(conflict(file, &lock(3, 0, u64::MAX, LockSharing::Exclusive)).is_none());
    }

    /// A wait that would close a cycle of waits, even through other waiters, is refused. A wait is
    /// forgotten when it ends.
    #[test]
    fn a_wait_that_would_not_end_is_refused() {
        let (one, other, third) = (file(5), file(6), file(7));
        for (at, owner) in [(one, 301), (other, 302), (third, 303)] {
            try_set(at, &lock(owner, 0, 10, LockSharing::Exclusive)).unwrap();
        }
        let wait = |at, owner| LockWait::new(at, &lock(owner, 0, 10, LockSharing::Shared));
        let first = wait(other, 301).unwrap();
        let second = wait(third, 302).unwrap();
        assert_eq!(wait(one, 302).err(), Some(Errno::EDEADLK));
        assert_eq!(wait(one, 303).err(), Some(Errno::EDEADLK));
        drop(second);
        let last = wait(one, 303).unwrap();
        drop((first, last));
        assert!(wait(one, 302).is_ok());
        for owner in 301..=303 {
            release_all(Owner::Process(owner));
        }
    }

    /// Readers share. An owner's own lock never conflicts: it is replaced.
    #[test]
    fn own_locks_are_replaced() {
        let file = file(2);
        try_set(file, &lock(1, 0, 10, LockSharing::Shared)).unwrap();
        try_set(file, &lock(2, 0, 10, LockSharing::Shared)).unwrap();
        assert_eq!(try_set(file, &lock(1, 0, 10, LockSharing::Exclusive)), Err(Errno::EAGAIN));
        release(file, Owner::Process(2));
        try_set(file, &lock(1, 5, 10, LockSharing::Exclusive)).unwrap();
        assert_eq!(
            conflict(file, &lock(2, 0, 5, LockSharing::Exclusive)).map(|l| l.sharing),
            Some(LockSharing::Shared)
        );
        assert_eq!(
            conflict(file, &lock(2, 5, 6, LockSharing::Shared)).map(|l| l.sharing),
            Some(LockSharing::Exclusive)
        );
        release_all(Owner::Process(1));
        assert!(listed(file).is_empty());
    }

    /// Memory is short at each allocation of a change in turn: no lock is changed. Then the change
    /// succeeds.
    #[test]
    fn a_change_without_memory_changes_nothing() {
        // Tests run in parallel: no other test uses this owner.
        const ME: u64 = 77;
        let file = file(77);
        let mut failures = 0;
        for n in 0..200u64 {
            // Each lock splits the previous one, so the table grows.
            let (start, end) = (n, 1000 - n);
            let before = listed(file);
            let sharing = if n % 2 == 0 { LockSharing::Shared } else { LockSharing::Exclusive };
            let set = each_fails(|| {
                let result = try_set(file, &lock(ME, start, end, sharing));
                assert!(result.is_ok() || listed(file) == before);
                result
            });
            assert_eq!(set.0, Ok(()));
            let before = listed(file);
            let unset = each_fails(|| {
                let result = unset(file, LockSpace::Record, Owner::Process(ME), start + 400, start + 401);
                assert!(result.is_ok() || listed(file) == before);
                result
            });
            assert_eq!(unset.0, Ok(()));
            failures += set.1 + unset.1;
        }
        assert!(failures > 20, "{failures}");
        fail_nth(1);
        release_all(Owner::Process(ME));
        fail_nth(0);
        assert!(listed(file).is_empty());
    }

    /// If memory is short, a record lock reports that there are no more locks, as on Linux; flock
    /// reports that there is no memory.
    #[test]
    fn want_of_memory_has_linux_names() {
        let (file, owner) = (file(4), Owner::Process(200));
        let failing = |wanted: Result<()>, attempt: &dyn Fn() -> Result<()>| {
            fail_nth(1);
            assert_eq!(attempt(), wanted);
            fail_nth(0);
            assert_eq!(attempt(), Ok(()));
        };
        let record = lock(200, 0, 100, LockSharing::Exclusive);
        failing(Err(Errno::ENOLCK), &|| try_set(file, &record));
        failing(Err(Errno::ENOLCK), &|| unset(file, LockSpace::Record, owner, 40, 60));
        let whole = Lock { space: LockSpace::Flock, end: u64::MAX, ..record };
        failing(Err(Errno::ENOMEM), &|| try_set(file, &whole));
        release_all(owner);
    }

    /// Locks of two owners on random ranges agree with a model that has one entry per byte.
    #[test]
    fn ranges_are_the_bytes_that_were_set() {
        const BYTES: u64 = 24;
        // Tests run in parallel, and the end of an owner releases its locks on all files.
        const FIRST: u64 = 100;
        let file = file(3);
        let mut held = [[None; BYTES as usize]; 2];
        let mut seed = 1u64;
        let mut draw = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..20_000 {
            let me = draw(2) as usize;
            let start = draw(BYTES - 1);
            let end = start + 1 + draw(BYTES - start);
            let sharing = [None, Some(LockSharing::Shared), Some(LockSharing::Exclusive)][draw(3) as usize];
            let range = start as usize..(end as usize).min(BYTES as usize);
            match sharing {
                None => {
                    unset(file, LockSpace::Record, Owner::Process(FIRST + me as u64), start, end).unwrap()
                }
                Some(sharing) => {
                    let bars = |other: &Option<LockSharing>| {
                        other.is_some_and(|other| [other, sharing].contains(&LockSharing::Exclusive))
                    };
                    let refused = held[1 - me][range.clone()].iter().any(bars);
                    let outcome = try_set(file, &lock(FIRST + me as u64, start, end, sharing));
                    assert_eq!(outcome.is_err(), refused);
                    if refused {
                        continue;
                    }
                }
            }
            held[me][range].fill(sharing);
            let mut shown = [[None; BYTES as usize]; 2];
            let mut last: Option<Lock> = None;
            for lock in listed(file) {
                let Owner::Process(owner) = lock.owner else { unreachable!() };
                let end = lock.end.min(BYTES);
                shown[(owner - FIRST) as usize][lock.start as usize..end as usize].fill(Some(lock.sharing));
                let alike = |last: &Lock| last.owner == lock.owner && last.sharing == lock.sharing;
                assert!(last.filter(alike).is_none_or(|last| last.end < lock.start), "neighbours are melted");
                last = Some(lock);
            }
            assert_eq!(shown, held);
        }
        release(file, Owner::Process(FIRST));
        release_all(Owner::Process(FIRST + 1));
        assert!(listed(file).is_empty());
    }
}
