//! Waits for a lock: waking them after a release, and deadlock detection.
//!
//! **Protocol.** A wait is in the table, with its own queue, before its task checks for the last
//! time whether the lock is free. Checks and releases hold the table's lock, so a release after the
//! check finds the wait. A release wakes the waits in order of arrival. It skips waits that a held
//! lock blocks, and waits that conflict with the lock of an earlier wait that it has just woken. A
//! woken task may not get its lock: another task was quicker, a signal arrived, or memory is short.
//! Such a task wakes the waits that were skipped because of it: its entry notes that it was woken.
//! So a release checks each wait for the file once, and wakes as many tasks as will get their
//! locks.
//!
//! **Deadlocks.** While a process waits with F_SETLKW, the owner of a lock that blocks it is
//! recorded. Before a process waits, its chain is followed for twelve owners: from the owner that
//! blocks the process to the owner that blocks that one, and so on (Linux: `posix_locks_deadlock`).
//! If the chain returns to the process, the wait would be a deadlock and is refused. No owner is
//! recorded for a woken wait until its task checks again. Open file descriptions are not followed,
//! since many processes may hold one. A cycle can also be closed by a lock that a thread gets while
//! another thread of its process waits. The waits that this lock blocks are then woken and check
//! again.

use core::ops::{Bound, Range};

use arrayvec::ArrayVec;
use freehold_collections::reserve;
use freehold_collections::{Arc, Map};

use super::{LOCKS, Lock, LockSharing, LockSpace, LockTable, Owner};
use crate::fs::node::Identity;
use crate::sync::{UniqueNumbers, WaitQueue};
use crate::{Errno, Result};

static NUMBERS: UniqueNumbers = UniqueNumbers::new();
/// Number of owners of a chain that are checked. Linux checks the first, and ten more and one
/// (MAX_DEADLK_ITERATIONS).
const MOST_STEPS: usize = 12;
/// A release compares later waits with this many waits that it has woken. Beyond that, a wait may
/// be woken needlessly.
const COMPARED: usize = 8;

/// Key of a wait: file, kind and number. Numbers increase in order of arrival.
type WaitKey = (Identity, LockSpace, u64);

struct WaitEntry {
    wanted: Lock,
    queue: Arc<WaitQueue>,
    /// Later waits may have been skipped because of this one.
    was_woken: bool,
}

/// All waits.
pub(super) struct Waits {
    by_file: Map<WaitKey, WaitEntry>,
    /// The owner that blocks the wait, for each wait that deadlock detection follows; `None` since
    /// the wait was woken.
    by_owner: Map<(Owner, u64), Option<Owner>>,
}

impl Waits {
    pub const fn new() -> Self {
        Self { by_file: Map::new(), by_owner: Map::new() }
    }

    /// Returns the first wait from number `from` on for a lock of a file that overlaps `range`.
    fn overlapping(
        &self,
        (file, space): (Identity, LockSpace),
        from: u64,
        range: &Range<u64>,
    ) -> Option<(u64, &WaitEntry)> {
        let waits = self.by_file.iter_from(Bound::Included(&(file, space, from)));
        for (key, entry) in waits {
            if (key.0, key.1) != (file, space) {
                break;
            }
            crate::sched::rest();
            if entry.wanted.overlaps(range) {
                return Some((key.2, entry));
            }
        }
        None
    }

    /// Returns the owner that blocks a wait of `owner`, if there is such a wait.
    fn barrier_of(&self, owner: Owner) -> Option<Owner> {
        let waits = self.by_owner.iter_from(Bound::Included(&(owner, 0)));
        waits.take_while(|(key, _)| key.0 == owner).find_map(|(_, barrier)| *barrier)
    }

    /// Sets the owner that blocks a wait, if deadlock detection follows the wait.
    fn set_barrier(&mut self, wait: (Owner, u64), barrier: Option<Owner>) {
        if let Some(known) = self.by_owner.get_mut(&wait) {
            *known = barrier;
        }
    }

    /// Whether `owner` would wait for itself if `barrier` blocked it.
    fn comes_back(&self, barrier: Owner, owner: Owner) -> bool {
        let mut next = Some(barrier);
        for _ in 0..MOST_STEPS {
            match next {
                None => return false,
                Some(barrier) if barrier == owner => return true,
                Some(barrier) => next = self.barrier_of(barrier),
            }
        }
        false
    }
}

const fn is_followed(lock: &Lock) -> bool {
    matches!((lock.space, lock.owner), (LockSpace::Record, Owner::Process(_)))
}

impl LockTable {
    /// Wakes the waits that may have their locks now, since `owner` releases `range` or shares it.
    pub(super) fn wake(&mut self, place: (Identity, LockSpace), owner: Owner, range: &Range<u64>) {
        let mut woken = ArrayVec::<Lock, COMPARED>::new();
        let mut next = 0;
        while let Some((number, WaitEntry { wanted, queue, .. })) = self.waits.overlapping(place, next, range)
        {
            next = number + 1;
            let (wanted, key) = (*wanted, (wanted.owner, number));
            let known = self.waits.by_owner.get(&key).copied();
            if let Some(before) = woken.iter().find(|lock| lock.conflicts(&wanted)) {
                if known == Some(Some(owner)) {
                    self.waits.set_barrier(key, Some(before.owner));
                }
                continue;
            }
            if let Some(held) = self.conflicts(place.0, &wanted) {
                // The task itself follows its new chain.
                if known.is_some_and(|known| known != Some(held.owner)) {
                    queue.wake_all();
                }
                continue;
            }
            queue.wake_all();
            self.waits.set_barrier(key, None);
            if let Some(entry) = self.waits.by_file.get_mut(&(place.0, place.1, number)) {
                entry.was_woken = true;
            }
            let is_whole = wanted.start <= range.start && range.end <= wanted.end;
            if is_whole && wanted.sharing == LockSharing::Exclusive && wanted.space == LockSpace::Flock {
                return;
            }
            let _ = woken.try_push(wanted);
        }
    }

    /// Makes the waits that `new` blocks check for a deadlock, if a thread of the owner of `new`
    /// waits itself.
    pub(super) fn look_again(&self, file: Identity, new: &Lock) {
        if new.space != LockSpace::Record || self.waits.barrier_of(new.owner).is_none() {
            return;
        }
        let (place, range) = ((file, new.space), new.start..new.end);
        let mut next = 0;
        while let Some((number, entry)) = self.waits.overlapping(place, next, &range) {
            next = number + 1;
            if new.conflicts(&entry.wanted) {
                entry.queue.wake_all();
            }
        }
    }
}

/// A wait in the table. Dropping it removes it.
pub(super) struct LockWait {
    file: Identity,
    wanted: Lock,
    number: u64,
    queue: Arc<WaitQueue>,
    has_lock: bool,
}

impl LockWait {
    /// # Errors
    /// `EDEADLK` for a deadlock; `ENOLCK` or, for flock, `ENOMEM` without memory.
    pub fn new(file: Identity, wanted: &Lock) -> Result<Self> {
        let (queue, number) = (reserve::arc(WaitQueue::new()), NUMBERS.next());
        let mut table = LOCKS.lock();
        let barrier = table.conflicts(file, wanted).map(|lock| lock.owner);
        let waits = &mut table.waits;
        let no_memory = |_| wanted.space.no_memory();
        if is_followed(wanted) {
            if barrier.is_some_and(|barrier| waits.comes_back(barrier, wanted.owner)) {
                return Err(Errno::EDEADLK);
            }
            waits.by_owner.try_insert((wanted.owner, number), barrier).map_err(no_memory)?;
        }
        let entry = WaitEntry { wanted: *wanted, queue: queue.clone(), was_woken: false };
        if let Err(error) = waits.by_file.try_insert((file, wanted.space, number), entry) {
            waits.by_owner.remove(&(wanted.owner, number));
            return Err(no_memory(error));
        }
        Ok(Self { file, wanted: *wanted, number, queue, has_lock: false })
    }

    /// Sleeps until the lock is set.
    ///
    /// # Errors
    /// `ERESTARTSYS` if a signal arrives, `EDEADLK`, and as [`super::try_set`].
    pub fn wait(mut self) -> Result<()> {
        let queue = self.queue.clone();
        let result = queue.wait_until(|| self.attempt())?;
        self.has_lock = result.is_ok();
        result
    }

    /// Sets the lock, or finds the owner that blocks it.
    fn attempt(&self) -> Option<Result<()>> {
        let mut table = LOCKS.lock();
        let Lock { space, start, end, owner, .. } = self.wanted;
        let wait = (owner, self.number);
        // While the task checks, its wait is blocked by no owner.
        table.waits.set_barrier(wait, None);
        let barrier = match table.set(self.file, &self.wanted) {
            Ok(None) => return Some(Ok(())),
            Ok(Some(lock)) => lock.owner,
            Err(error) => return Some(Err(error)),
        };
        table.waits.set_barrier(wait, Some(barrier));
        let entry = table.waits.by_file.get_mut(&(self.file, space, self.number));
        if entry.is_some_and(|entry| core::mem::take(&mut entry.was_woken)) {
            table.wake((self.file, space), owner, &(start..end));
        }
        let comes_back = is_followed(&self.wanted) && table.waits.comes_back(barrier, owner);
        comes_back.then_some(Err(Errno::EDEADLK))
    }
}

impl Drop for LockWait {
    fn drop(&mut self) {
        let mut table = LOCKS.lock();
        let Lock { space, start, end, owner, .. } = self.wanted;
        let entry = table.waits.by_file.remove(&(self.file, space, self.number));
        table.waits.by_owner.remove(&(owner, self.number));
        if !self.has_lock {
            table.wake((self.file, space), owner, &(start..end));
        }
        drop(table);
        drop(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::locks::{release_all, try_set, unset};

    fn lock(owner: u64, range: Range<u64>) -> Lock {
        let (space, sharing) = (LockSpace::Record, LockSharing::Exclusive);
        Lock { space, start: range.start, end: range.end, sharing, owner: Owner::Process(owner), pid: 0 }
    }

    /// Returns a file that only these tests use, since tests run in parallel.
    fn file(inode: u64) -> Identity {
        Identity { device: 0x3a17, inode }
    }

    fn was_woken(wait: &LockWait) -> bool {
        let table = LOCKS.lock();
        let key = (wait.file, wait.wanted.space, wait.number);
        table.waits.by_file.get(&key).expect("a wait is known").was_woken
    }

    fn let_go(file: Identity, lock: Lock) {
        unset(file, lock.space, lock.owner, lock.start, lock.end).unwrap();
    }

    /// An owner that releases a lock may wait for the woken task before that task has checked.
    #[test]
    fn a_woken_wait_is_barred_by_no_owner() {
        let (one, other) = (file(1), file(2));
        try_set(one, &lock(501, 0..10)).unwrap();
        try_set(other, &lock(502, 0..10)).unwrap();
        let second = LockWait::new(one, &lock(502, 0..10)).unwrap();
        assert_eq!(LockWait::new(other, &lock(501, 0..10)).err(), Some(Errno::EDEADLK));
        let_go(one, lock(501, 0..10));
        assert!(was_woken(&second));
        let first = LockWait::new(other, &lock(501, 0..10)).expect("no circle");
        assert_eq!(second.attempt(), Some(Ok(())));
        drop((first, second));
        (501..=502).for_each(|owner| release_all(Owner::Process(owner)));
    }

    /// A wait that was woken and is blocked again wakes the waits that were skipped because of it.
    /// So does a wait that ends without its lock.
    #[test]
    fn a_wait_that_was_woken_in_vain_wakes_those_behind_it() {
        let file = file(3);
        try_set(file, &lock(511, 0..100)).unwrap();
        let first = LockWait::new(file, &lock(512, 0..100)).unwrap();
        let second = LockWait::new(file, &lock(513, 50..100)).unwrap();
        let_go(file, lock(511, 0..100));
        assert!(was_woken(&first) && !was_woken(&second), "the first will have the lock");
        // Another task gets the lock first.
        try_set(file, &lock(514, 0..10)).unwrap();
        assert_eq!(first.attempt(), None);
        assert!(was_woken(&second) && !was_woken(&first));
        drop(second);
        let third = LockWait::new(file, &lock(515, 60..70)).unwrap();
        let_go(file, lock(514, 0..10));
        assert!(was_woken(&first) && !was_woken(&third), "it is in nobody's way yet");
        try_set(file, &lock(516, 80..90)).unwrap();
        drop(first);
        assert!(was_woken(&third));
        drop(third);
        (511..=516).for_each(|owner| release_all(Owner::Process(owner)));
    }
}
