//! Waits for a lock: waking them after a release, and deadlock detection.
//!
//! **Protocol.** A wait is in the file's table, with its own queue, before its task checks for the
//! last time whether the lock is free. Checks and releases hold the table's lock, so a release
//! after the check finds the wait. A release wakes the waits in order of arrival. It skips waits
//! that a held lock blocks, and waits that conflict with the lock of an earlier wait that it has
//! just woken. A woken task may not get its lock: another task was quicker, a signal arrived, or
//! memory is short. Such a task wakes the waits that were skipped because of it: its entry notes
//! that it was woken. So a release checks each wait for the file once, and wakes as many tasks as
//! will get their locks. After [`MOST_SEARCHED`] visited locks it checks no further: it wakes the
//! remaining waits, and their tasks check for themselves. No wait is skipped because of one of
//! these.
//!
//! **Deadlocks.** While a process waits with F_SETLKW, the owner of a lock that blocks it is
//! recorded in a graph of the waits of all files ([`GRAPH`]). Before a process waits, its chain is
//! followed for twelve owners: from the owner that blocks the process to the owner that blocks that
//! one, and so on (Linux: `posix_locks_deadlock`). If the chain returns to the process, the wait
//! would be a deadlock and is refused. The owner is recorded and the chain followed with the
//! graph's lock held throughout: the last one of several tasks that close a cycle finds it. The
//! owner of a wait in the graph changes only with the lock of the wait's file held, by its task or
//! by the release of the lock that blocks it: outside this lock the graph is true for this file. No
//! owner is recorded for a woken wait until its task checks again. Open file descriptions are not
//! followed, since many processes may hold one. A cycle can also be closed by a lock that a thread
//! gets while another thread of its process waits. The waits that this lock blocks are then woken
//! and check again.

use core::ops::{Bound, Range};

use arrayvec::ArrayVec;
use freehold_collections::reserve;
use freehold_collections::{Arc, Map};

use super::files::{self, FileLocks};
use super::set::{LockSet, SearchLimit};
use super::{Lock, LockSharing, LockSpace, Owner};
use crate::fs::node::Identity;
use crate::sync::{SpinLock, UniqueNumbers, WaitQueue};
use crate::{Errno, Result};

static NUMBERS: UniqueNumbers = UniqueNumbers::new();
/// Number of owners of a chain that are checked. Linux checks the first, and ten more and one
/// (MAX_DEADLK_ITERATIONS).
const MOST_STEPS: usize = 12;
/// A release compares later waits with this many waits that it has woken. Beyond that, a wait may
/// be woken needlessly.
const COMPARED: usize = 8;
/// Number of locks that a release visits in search of those that still block waits.
const MOST_SEARCHED: u32 = 16 * 1024;

/// A wait for a lock of a file.
pub(super) struct WaitEntry {
    wanted: Lock,
    queue: Arc<WaitQueue>,
    /// Later waits may have been skipped because of this one.
    was_woken: bool,
}

/// The waits of processes for record locks of all files, for deadlock detection.
static GRAPH: SpinLock<WaitGraph> = SpinLock::new(WaitGraph { barriers: Map::new() });

struct WaitGraph {
    /// The owner that blocks the wait, by the waiting owner and the wait's number; `None` since the
    /// wait was woken.
    barriers: Map<(Owner, u64), Option<Owner>>,
}

impl WaitGraph {
    /// Returns the owner that blocks a wait of `owner`, if there is such a wait.
    fn barrier_of(&self, owner: Owner) -> Option<Owner> {
        let waits = self.barriers.iter_from(Bound::Included(&(owner, 0)));
        waits.take_while(|(key, _)| key.0 == owner).find_map(|(_, barrier)| *barrier)
    }

    /// Sets the owner that blocks a wait, if deadlock detection follows the wait.
    fn set_barrier(&mut self, wait: (Owner, u64), barrier: Option<Owner>) {
        if let Some(known) = self.barriers.get_mut(&wait) {
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

impl LockSet {
    /// Returns the first wait from number `from` on for a lock that overlaps `range`.
    fn overlapping(&self, from: u64, range: &Range<u64>) -> Option<(u64, &WaitEntry)> {
        let mut waits = self.waits.iter_from(Bound::Included(&from));
        waits.find_map(|(&number, entry)| {
            crate::sched::rest();
            entry.wanted.overlaps(range).then_some((number, entry))
        })
    }

    /// Wakes the waits that may have their locks now, since `owner` releases `range` or shares it.
    pub(super) fn wake(&mut self, owner: Owner, range: &Range<u64>) {
        let mut woken = ArrayVec::<Lock, COMPARED>::new();
        let mut limit = SearchLimit::Steps(MOST_SEARCHED);
        let mut next = 0;
        while let Some((number, WaitEntry { wanted, queue, .. })) = self.overlapping(next, range) {
            next = number + 1;
            let (wanted, key) = (*wanted, (wanted.owner, number));
            if let Some(before) = woken.iter().find(|lock| lock.conflicts(&wanted)) {
                let mut graph = GRAPH.lock();
                if graph.barriers.get(&key) == Some(&Some(owner)) {
                    graph.set_barrier(key, Some(before.owner));
                }
                continue;
            }
            let conflict = self.conflicts(&wanted, &mut limit);
            if let Ok(Some(held)) = conflict {
                let known = GRAPH.lock().barriers.get(&key).copied();
                // The task itself follows its new chain.
                if known.is_some_and(|known| known != Some(held.owner)) {
                    queue.wake_all();
                }
                continue;
            }
            GRAPH.lock().set_barrier(key, None);
            queue.wake_all();
            if conflict.is_err() {
                continue;
            }
            if let Some(entry) = self.waits.get_mut(&number) {
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
    pub(super) fn look_again(&self, new: &Lock) {
        if self.waits.is_empty() || !is_followed(new) || GRAPH.lock().barrier_of(new.owner).is_none() {
            return;
        }
        let range = new.start..new.end;
        let mut next = 0;
        while let Some((number, entry)) = self.overlapping(next, &range) {
            next = number + 1;
            if new.conflicts(&entry.wanted) {
                entry.queue.wake_all();
            }
        }
    }
}

/// A wait in its file's table. Dropping it removes it.
pub(super) struct LockWait {
    locks: Arc<FileLocks>,
    wanted: Lock,
    number: u64,
    queue: Arc<WaitQueue>,
    has_lock: bool,
}

impl LockWait {
    /// # Errors
    /// `EDEADLK` for a deadlock; `ENOLCK` or, for flock, `ENOMEM` without memory; `EINTR` if the
    /// caller is killed.
    pub fn new(file: Identity, wanted: &Lock) -> Result<Self> {
        let (queue, number) = (reserve::arc(WaitQueue::new()), NUMBERS.next());
        let no_memory = |_| wanted.space.no_memory();
        files::with_made(file, wanted.space, |locks, set| {
            let conflict = set.conflicts(wanted, &mut SearchLimit::UntilKilled(0))?;
            let entry = WaitEntry { wanted: *wanted, queue: queue.clone(), was_woken: false };
            set.waits.try_insert(number, entry).map_err(no_memory)?;
            if let Err(error) = Self::follow(wanted, number, conflict.map(|lock| lock.owner)) {
                set.waits.remove(&number);
                return Err(error);
            }
            Ok(Self { locks: locks.clone(), wanted: *wanted, number, queue: queue.clone(), has_lock: false })
        })
    }

    /// Adds a wait to the graph, if deadlock detection follows it.
    ///
    /// # Errors
    /// As [`LockWait::new`]; the wait is not added.
    fn follow(wanted: &Lock, number: u64, barrier: Option<Owner>) -> Result<()> {
        if !is_followed(wanted) {
            return Ok(());
        }
        let mut graph = GRAPH.lock();
        if barrier.is_some_and(|barrier| graph.comes_back(barrier, wanted.owner)) {
            return Err(Errno::EDEADLK);
        }
        let added = graph.barriers.try_insert((wanted.owner, number), barrier);
        added.map(|_| ()).map_err(|_| wanted.space.no_memory())
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
        let mut table = match self.locks.lock_killable() {
            Ok(table) => table,
            Err(error) => return Some(Err(error)),
        };
        let set = table.of_mut(self.wanted.space);
        // While the task checks, its wait is blocked by no owner.
        self.set_barrier(None);
        let barrier = match set.set(&self.wanted) {
            Ok(None) => return Some(Ok(())),
            Ok(Some(lock)) => lock.owner,
            Err(error) => return Some(Err(error)),
        };
        let is_deadlock = self.set_barrier(Some(barrier));
        let Lock { start, end, owner, .. } = self.wanted;
        let entry = set.waits.get_mut(&self.number);
        if entry.is_some_and(|entry| core::mem::take(&mut entry.was_woken)) {
            set.wake(owner, &(start..end));
        }
        is_deadlock.then_some(Err(Errno::EDEADLK))
    }

    /// Sets the owner that blocks the wait in the graph. Returns whether that would be a deadlock:
    /// then no owner is set.
    fn set_barrier(&self, barrier: Option<Owner>) -> bool {
        if !is_followed(&self.wanted) {
            return false;
        }
        let owner = self.wanted.owner;
        let mut graph = GRAPH.lock();
        let is_deadlock = barrier.is_some_and(|barrier| graph.comes_back(barrier, owner));
        graph.set_barrier((owner, self.number), barrier.filter(|_| !is_deadlock));
        is_deadlock
    }
}

impl Drop for LockWait {
    fn drop(&mut self) {
        let mut table = self.locks.lock();
        let Lock { space, start, end, owner, .. } = self.wanted;
        let set = table.of_mut(space);
        let entry = set.waits.remove(&self.number);
        if is_followed(&self.wanted) {
            GRAPH.lock().barriers.remove(&(owner, self.number));
        }
        if !self.has_lock {
            set.wake(owner, &(start..end));
        }
        drop(table);
        drop(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::locks::{release, release_all, try_set, unset};

    fn lock(owner: u64, range: Range<u64>) -> Lock {
        let (space, sharing) = (LockSpace::Record, LockSharing::Exclusive);
        Lock { space, start: range.start, end: range.end, sharing, owner: Owner::Process(owner), pid: 0 }
    }

    /// Returns a file that only these tests use, since tests run in parallel.
    fn file(inode: u64) -> Identity {
        Identity { device: 0x3a17, inode }
    }

    fn was_woken(wait: &LockWait) -> bool {
        let table = wait.locks.lock();
        let waits = &table.of(wait.wanted.space).waits;
        waits.get(&wait.number).expect("a wait is known").was_woken
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

    /// A release among very many locks does not search them for each wait: waits that it did not
    /// check are woken, check for themselves, and keep no other wait asleep.
    #[test]
    fn a_release_searches_a_bounded_number_of_locks() {
        let file = file(4);
        let others = 20_000..20_000 + u64::from(MOST_SEARCHED);
        let barrier =
            |wait: &LockWait| *GRAPH.lock().barriers.get(&(wait.wanted.owner, wait.number)).unwrap();
        for owner in others.clone() {
            try_set(file, &lock(owner, 2 * owner..2 * owner + 1)).unwrap();
        }
        try_set(file, &lock(521, 0..10)).unwrap();
        try_set(file, &lock(90_000, 10..20)).unwrap();
        let waits = [522, 523].map(|owner| LockWait::new(file, &lock(owner, 0..20)).unwrap());
        let blocked = |owner| waits.each_ref().map(|wait| barrier(wait) == owner) == [true; 2];
        assert!(blocked(Some(Owner::Process(521))));
        let_go(file, lock(521, 0..10));
        assert!(blocked(None) && !waits.iter().any(was_woken));
        assert!(waits.iter().all(|wait| wait.attempt().is_none()));
        assert!(blocked(Some(Owner::Process(90_000))));
        // Fewer locks are searched: the release finds that one lock still blocks both.
        try_set(file, &lock(521, 0..1)).unwrap();
        others.for_each(|owner| release(file, Owner::Process(owner)));
        let_go(file, lock(521, 0..1));
        assert!(blocked(Some(Owner::Process(90_000))) && !waits.iter().any(was_woken));
        let_go(file, lock(90_000, 10..20));
        assert!(was_woken(&waits[0]) && !was_woken(&waits[1]));
        drop(waits);
        (521..=523).chain([90_000]).for_each(|owner| release(file, Owner::Process(owner)));
    }
}
