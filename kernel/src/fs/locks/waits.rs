//! Waits for a lock: which of them a release wakes, and which would not end.
//!
//! **Protocol.** A wait is in the table, with a queue of its own, before its task looks for the
//! last time whether the lock is free. Looks and releases hold the table's lock, so a release that
//! comes after the look finds the wait. A release wakes the waits in the order of their coming, but
//! none that a held lock bars, and none that a lock bars for which it has just woken an earlier
//! wait. A task that was woken and goes without its lock (a signal, no memory) wakes the waits that
//! it has kept asleep. So a release costs one look at each wait for the file, and wakes as many
//! tasks as will have their lock.
//!
//! **Deadlocks.** While a process waits with F_SETLKW, the owner of a lock that bars it is known.
//! Before a process waits, its chain is followed for ten steps: from the owner that bars it to the
//! owner that bars that one, and so on (Linux: `posix_locks_deadlock`). If the chain returns to the
//! process, the wait would not end and is refused. Open file descriptions are not followed, since
//! many processes may hold one. A circle can also be closed by a lock that a thread gets while
//! another of its process waits: those that it bars are woken and look again.

use core::ops::{Bound, Range};

use arrayvec::ArrayVec;
use freehold_collections::reserve;
use freehold_collections::{Arc, Map};

use super::{LOCKS, Lock, LockSharing, LockSpace, LockTable, Owner};
use crate::fs::node::Identity;
use crate::sync::{UniqueNumbers, WaitQueue};
use crate::{Errno, Result};

static NUMBERS: UniqueNumbers = UniqueNumbers::new();
/// Steps of a chain that are followed (Linux: MAX_DEADLK_ITERATIONS).
const MOST_STEPS: usize = 10;
/// Woken waits of one release that later ones are compared with. Beyond that, a wait may be woken
/// in vain.
const COMPARED: usize = 8;

/// Waits by file, kind and number: the number grows with the order of their coming.
type WaitKey = (Identity, LockSpace, u64);

struct WaitEntry {
    wanted: Lock,
    queue: Arc<WaitQueue>,
}

/// All waits.
pub(super) struct Waits {
    by_file: Map<WaitKey, WaitEntry>,
    /// The owner that bars the wait, for each wait that is followed.
    by_owner: Map<(Owner, u64), Owner>,
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
            if entry.wanted.start < range.end && range.start < entry.wanted.end {
                return Some((key.2, entry));
            }
        }
        None
    }

    /// Returns the owner that bars a wait of `owner`, if there is a wait.
    fn barrier_of(&self, owner: Owner) -> Option<Owner> {
        let (key, barrier) = self.by_owner.first_from(Bound::Included(&(owner, 0)))?;
        (key.0 == owner).then_some(*barrier)
    }

    /// Whether `owner` would wait for itself if `barrier` barred it.
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
    /// Wakes the waits that may have their lock since `owner` lets go of `range`, or shares it.
    pub(super) fn wake(&mut self, place: (Identity, LockSpace), owner: Owner, range: &Range<u64>) {
        let mut woken = ArrayVec::<Lock, COMPARED>::new();
        let mut next = 0;
        while let Some((number, WaitEntry { wanted, queue })) = self.waits.overlapping(place, next, range) {
            next = number + 1;
            let (wanted, key) = (*wanted, (wanted.owner, number));
            if let Some(before) = woken.iter().find(|lock| lock.conflicts(&wanted)) {
                if let Some(barrier) = self.waits.by_owner.get_mut(&key).filter(|known| **known == owner) {
                    *barrier = before.owner;
                }
                continue;
            }
            if let Some(held) = self.conflicts(place.0, &wanted) {
                // The task itself follows its new chain.
                if self.waits.by_owner.get(&key).is_some_and(|known| *known != held.owner) {
                    queue.wake_all();
                }
                continue;
            }
            queue.wake_all();
            let is_whole = wanted.start <= range.start && range.end <= wanted.end;
            if is_whole && wanted.sharing == LockSharing::Exclusive && wanted.space == LockSpace::Flock {
                return;
            }
            let _ = woken.try_push(wanted);
        }
    }

    /// Has the waits that `new` bars look for a circle, where a thread of its owner waits itself.
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

/// A wait that the table knows until this is dropped.
pub(super) struct LockWait {
    file: Identity,
    wanted: Lock,
    number: u64,
    queue: Arc<WaitQueue>,
    has_lock: bool,
}

impl LockWait {
    /// # Errors
    /// `EDEADLK` where the wait would not end; `ENOLCK` or, for flock, `ENOMEM` without memory.
    pub fn new(file: Identity, wanted: &Lock) -> Result<Self> {
        let (queue, number) = (reserve::arc(WaitQueue::new()), NUMBERS.next());
        let mut table = LOCKS.lock();
        let barrier = table.conflicts(file, wanted).map(|lock| lock.owner);
        let waits = &mut table.waits;
        let no_memory = |_| wanted.space.no_memory();
        if let Some(barrier) = barrier.filter(|_| is_followed(wanted)) {
            if waits.comes_back(barrier, wanted.owner) {
                return Err(Errno::EDEADLK);
            }
            waits.by_owner.try_insert((wanted.owner, number), barrier).map_err(no_memory)?;
        }
        let entry = WaitEntry { wanted: *wanted, queue: queue.clone() };
        if let Err(error) = waits.by_file.try_insert((file, wanted.space, number), entry) {
            waits.by_owner.remove(&(wanted.owner, number));
            return Err(no_memory(error));
        }
        Ok(Self { file, wanted: *wanted, number, queue, has_lock: false })
    }

    /// Sleeps until the lock is set.
    ///
    /// # Errors
    /// `ERESTARTSYS` where a signal comes, `EDEADLK`, and as [`super::try_set`].
    pub fn wait(mut self) -> Result<()> {
        let queue = self.queue.clone();
        let result = queue.wait_until(|| self.attempt())?;
        self.has_lock = result.is_ok();
        result
    }

    /// Sets the lock, or finds out what bars it.
    fn attempt(&self) -> Option<Result<()>> {
        let mut table = LOCKS.lock();
        let barrier = match table.set(self.file, &self.wanted) {
            Ok(None) => return Some(Ok(())),
            Ok(Some(lock)) => lock.owner,
            Err(error) => return Some(Err(error)),
        };
        let known = table.waits.by_owner.get_mut(&(self.wanted.owner, self.number))?;
        *known = barrier;
        table.waits.comes_back(barrier, self.wanted.owner).then_some(Err(Errno::EDEADLK))
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
