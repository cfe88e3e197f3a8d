//! The locks of one file in one space, by owner and first byte.
//!
//! Setting and releasing a range takes logarithmic time in the number of locks, plus the number of
//! replaced locks. A conflict is searched owner by owner, or lock by lock if an owner has few. A
//! shared lock has no conflict where no lock is exclusive, so no search is needed.

use core::ops::{Bound, Range};

use freehold_collections::Map;

use super::waits::WaitEntry;
use super::{Lock, LockSharing, LockSpace, Owner};
use crate::{Errno, Result};

/// The key of a lock in the set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct LockKey {
    pub owner: Owner,
    pub start: u64,
}

/// The other properties of a held lock.
#[derive(Clone, Copy, Debug)]
struct HeldLock {
    end: u64,
    sharing: LockSharing,
    pid: u32,
}

impl HeldLock {
    /// Returns 1 for an exclusive lock, 0 for a shared one.
    const fn exclusive(self) -> usize {
        matches!(self.sharing, LockSharing::Exclusive) as usize
    }
}

/// Limit of a search for a conflict.
pub(super) enum SearchLimit {
    /// The search ends if its task is killed: the number of visited locks.
    UntilKilled(u32),
    /// The search ends after so many locks.
    Steps(u32),
}

impl SearchLimit {
    /// Number of locks between two checks whether the task is killed.
    const INTERVAL: u32 = 64;

    /// Counts a lock.
    ///
    /// # Errors
    /// `EINTR` if the task is killed, `EAGAIN` if the number of locks is reached.
    fn step(&mut self) -> Result<()> {
        match self {
            Self::Steps(left) => *left = left.checked_sub(1).ok_or(Errno::EAGAIN)?,
            Self::UntilKilled(visited) => {
                *visited += 1;
                if visited.is_multiple_of(Self::INTERVAL) {
                    crate::sched::rest_killable()?;
                }
            }
        }
        Ok(())
    }
}

/// Locks of one kind on one file, and the waits for them. Locks of one owner do not overlap.
/// Adjacent ones differ, otherwise they are merged.
pub(super) struct LockSet {
    space: LockSpace,
    held: Map<LockKey, HeldLock>,
    /// Number of held locks that are exclusive.
    exclusive: usize,
    /// The waits by number. Numbers increase in order of arrival.
    pub waits: Map<u64, WaitEntry>,
}

/// Number of locks of an owner that are checked one by one before a range search.
const MOST_WALKED: u32 = 8;
/// Largest number of entries that one change adds: the new lock, and the end of the lock that it
/// splits.
const MOST_ADDED: usize = 2;
/// Largest number of locks that are removed in one step.
const MOST_CLEARED: usize = 4096;

impl LockSet {
    pub const fn new(space: LockSpace) -> Self {
        Self { space, held: Map::new(), exclusive: 0, waits: Map::new() }
    }

    /// Whether there is neither a lock nor a wait.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.waits.is_empty()
    }

    fn lock(&self, key: LockKey, held: HeldLock) -> Lock {
        let (LockKey { owner, start }, HeldLock { end, sharing, pid }) = (key, held);
        Lock { space: self.space, start, end, sharing, owner, pid }
    }

    /// Returns the first lock after `last`, or the first one.
    pub fn after(&self, last: Option<LockKey>) -> Option<(LockKey, Lock)> {
        let from = last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        self.held.first_from(from).map(|(&key, &held)| (key, self.lock(key, held)))
    }

    /// Makes room for the entries that one change adds.
    ///
    /// # Errors
    /// [`LockSpace::no_memory`].
    pub fn make_room(&mut self) -> Result<()> {
        self.held.try_reserve(MOST_ADDED).map_err(|_| self.space.no_memory())
    }

    /// Adds or replaces an entry, in room that was reserved.
    fn put(&mut self, key: LockKey, held: HeldLock) {
        self.exclusive += held.exclusive();
        let replaced = self.held.insert_reserved(key, held);
        self.exclusive -= replaced.map_or(0, HeldLock::exclusive);
    }

    /// Removes an entry.
    fn take(&mut self, key: &LockKey) {
        self.exclusive -= self.held.remove(key).map_or(0, HeldLock::exclusive);
    }

    /// Sets `wanted`, replacing its owner's locks in that range. If a lock conflicts, returns that
    /// lock and changes none.
    ///
    /// # Errors
    /// As [`make_room`](Self::make_room), and `EINTR` if the caller is killed; no lock is changed.
    pub fn set(&mut self, wanted: &Lock) -> Result<Option<Lock>> {
        if let Some(lock) = self.conflicts(wanted, &mut SearchLimit::UntilKilled(0))? {
            return Ok(Some(lock));
        }
        self.make_room()?;
        let Lock { start, end, sharing, owner, .. } = *wanted;
        let replaced = self.cut(LockKey { owner, start }, end);
        self.join(*wanted);
        self.look_again(wanted);
        // If a lock became shared, other owners can share it now.
        if !replaced.is_empty() && sharing == LockSharing::Shared {
            self.wake(owner, &replaced);
        }
        Ok(None)
    }

    /// Releases the range from the start of `first` to `end` of its owner's locks, and wakes the
    /// waits that can have their locks now.
    pub fn let_go(&mut self, first: LockKey, end: u64) {
        let free = self.cut(first, end);
        if !free.is_empty() {
            self.wake(first.owner, &free);
        }
    }

    /// Returns the last lock of the owner of `first` that overlaps the range from its start to
    /// `end`.
    fn last_overlapping(&self, first: LockKey, end: u64) -> Option<(LockKey, HeldLock)> {
        let until = LockKey { start: end, ..first };
        let (&key, &held) = self.held.last_until(Bound::Excluded(&until))?;
        (key.owner == first.owner && first.start < held.end).then_some((key, held))
    }

    /// Returns the lock that conflicts with `wanted`: the first lock of the first such owner.
    ///
    /// # Errors
    /// Those of `limit`.
    pub fn conflicts(&self, wanted: &Lock, limit: &mut SearchLimit) -> Result<Option<Lock>> {
        if self.exclusive == 0 && (self.held.is_empty() || wanted.sharing == LockSharing::Shared) {
            return Ok(None);
        }
        let mut from = Bound::Unbounded;
        while let Some((key, held)) = self.walk(wanted, from.as_ref(), limit)? {
            if key.owner != wanted.owner {
                let lock = self.lock(key, held);
                if lock.conflicts(wanted) {
                    return Ok(Some(lock));
                }
                // The owner has many locks.
                if let Some(lock) = self.conflict_of(key.owner, wanted, limit)? {
                    return Ok(Some(lock));
                }
            }
            // No lock starts at the last possible byte.
            from = Bound::Excluded(LockKey { start: u64::MAX, ..key });
        }
        Ok(None)
    }

    /// Returns the next lock that conflicts with `wanted`, belongs to its owner, or is one of many
    /// locks of an owner.
    fn walk(
        &self,
        wanted: &Lock,
        from: Bound<&LockKey>,
        limit: &mut SearchLimit,
    ) -> Result<Option<(LockKey, HeldLock)>> {
        let mut walked = (wanted.owner, 0);
        for (&key, &held) in self.held.iter_from(from) {
            limit.step()?;
            walked = if key.owner == walked.0 { (key.owner, walked.1 + 1) } else { (key.owner, 0) };
            if key.owner == wanted.owner || walked.1 == MOST_WALKED || self.lock(key, held).conflicts(wanted)
            {
                return Ok(Some((key, held)));
            }
        }
        Ok(None)
    }

    /// Returns the first lock of `owner` that conflicts with `wanted`.
    fn conflict_of(&self, owner: Owner, wanted: &Lock, limit: &mut SearchLimit) -> Result<Option<Lock>> {
        let first = LockKey { owner, start: wanted.start };
        let before = self.held.last_until(Bound::Excluded(&first));
        let others = self.held.iter_from(Bound::Included(&first));
        let inside = others.take_while(|(key, _)| key.owner == owner && key.start < wanted.end);
        for (&key, &held) in before.filter(|(key, _)| key.owner == owner).into_iter().chain(inside) {
            limit.step()?;
            let lock = self.lock(key, held);
            if lock.conflicts(wanted) {
                return Ok(Some(lock));
            }
        }
        Ok(None)
    }

    /// Removes the range from the start of `first` to `end` from its owner's locks. If that splits
    /// a lock, room was reserved. Returns the range from the first byte that was locked to the
    /// last.
    fn cut(&mut self, first: LockKey, end: u64) -> Range<u64> {
        if let Some(cut) = self.clear(first, end) {
            return cut;
        }
        let start = first.start;
        let mut cut = 0..0;
        while let Some((key, held)) = self.last_overlapping(first, end) {
            crate::sched::rest();
            // The locks are visited from the last to the first.
            let last = if cut.is_empty() { held.end.min(end) } else { cut.end };
            cut = key.start.max(start)..last;
            if key.start >= start {
                self.take(&key);
            } else if let Some(held) = self.held.get_mut(&key) {
                held.end = start;
            }
            if end < held.end {
                self.put(LockKey { start: end, ..key }, held);
            }
        }
        cut
    }

    /// As [`cut`](Self::cut), in one step, if that removes all locks and they are not too many.
    fn clear(&mut self, first: LockKey, end: u64) -> Option<Range<u64>> {
        let (low, _) = self.held.first_from(Bound::Unbounded)?;
        let (high, held) = self.held.last_until(Bound::Unbounded)?;
        let is_all = (low.owner, high.owner) == (first.owner, first.owner)
            && first.start <= low.start
            && held.end <= end
            && self.held.len() <= MOST_CLEARED;
        let cut = low.start..held.end;
        is_all.then(|| {
            self.held.clear();
            self.exclusive = 0;
            cut
        })
    }

    /// Adds `new`, in whose range its owner has no lock, and merges it with adjacent locks of the
    /// same kind.
    fn join(&mut self, new: Lock) {
        let Lock { mut start, mut end, sharing, owner, pid, .. } = new;
        let key = |start| LockKey { owner, start };
        if let Some((&before, held)) = self.held.last_until(Bound::Excluded(&key(start)))
            && before.owner == owner
            && (held.end, held.sharing) == (start, sharing)
        {
            start = before.start;
        }
        if let Some(after) = self.held.get(&key(end)).filter(|after| after.sharing == sharing).copied() {
            self.take(&key(end));
            end = after.end;
        }
        self.put(key(start), HeldLock { end, sharing, pid });
    }
}
