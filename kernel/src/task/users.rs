//! Accounts that a user's processes share: queued signals (RLIMIT_SIGPENDING) and threads
//! (RLIMIT_NPROC), as Linux' ucounts of the real user.
//!
//! **Locks.** The table has a separate interrupt-safe lock, last in the order, because signals are
//! removed under locks of that kind. Room for a user is made in advance, in task context.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::limits::Resource;
use super::process::Process;
use super::{Capability, registry};
use crate::sync::{IrqSpinLock, SpinLock};
use crate::{Errno, Result};
use freehold_collections::{Map, Vec};

/// Queued signals by user. A user without queued signals keeps the entry until another user needs
/// it.
static QUEUED: IrqSpinLock<Vec<(u32, u64)>> = IrqSpinLock::new(Vec::new());
/// Whether [`QUEUED`] had no room for another user at the last check.
static FULL: AtomicBool = AtomicBool::new(true);

/// The user to whom a signal is charged, and the limit for that user's queued signals.
#[derive(Clone, Copy, Debug)]
pub struct Payer {
    uid: u32,
    limit: u64,
}

impl Payer {
    /// Returns the account for a signal to `process`: its real user, with its limit. Task context;
    /// makes room for the user.
    #[inline]
    pub fn of(process: &Process) -> Self {
        if FULL.load(Ordering::Relaxed) {
            make_room();
        }
        Self { uid: process.uid(), limit: process.soft_limit(Resource::SigPending) }
    }
}

/// A charge to a user's account of queued signals. Dropping it removes the charge. Any context.
#[derive(PartialEq, Eq, Debug)]
pub struct QueuedSignal(u32);

impl QueuedSignal {
    /// Charges `payer`; `None` at the limit.
    pub fn charge(payer: Payer) -> Option<Self> {
        let mut users = QUEUED.lock();
        if let Some((_, count)) = users.iter_mut().find(|(uid, _)| *uid == payer.uid) {
            if *count >= payer.limit {
                return None;
            }
            *count += 1;
        } else if payer.limit == 0 || !enter(&mut users, payer.uid) {
            return None;
        }
        Some(Self(payer.uid))
    }
}

impl Drop for QueuedSignal {
    fn drop(&mut self) {
        let mut users = QUEUED.lock();
        if let Some((_, count)) = users.iter_mut().find(|(uid, _)| *uid == self.0) {
            *count -= 1;
        }
    }
}

/// Counts the first signal of a user. Returns whether there was room.
#[cold]
fn enter(users: &mut Vec<(u32, u64)>, uid: u32) -> bool {
    if let Some(left) = users.iter_mut().find(|(_, count)| *count == 0) {
        *left = (uid, 1);
        return true;
    }
    if users.len() == users.capacity() {
        FULL.store(true, Ordering::Relaxed);
        return false;
    }
    users.push_reserved((uid, 1));
    FULL.store(users.len() == users.capacity(), Ordering::Relaxed);
    true
}

/// Returns how many signals are queued for the processes of a user.
pub fn queued_signals(user: u32) -> u64 {
    QUEUED.lock().iter().find(|(uid, _)| *uid == user).map_or(0, |(_, count)| *count)
}

/// Ensures that one more user fits. Without memory for it, only the numbers of that user's signals
/// are kept.
#[cold]
#[inline(never)]
fn make_room() {
    let mut spare = Vec::new();
    loop {
        let wanted = {
            let mut users = QUEUED.lock();
            if users.len() < users.capacity() {
                FULL.store(false, Ordering::Relaxed);
                return;
            }
            if spare.capacity() > users.len() {
                let outdated = users.move_to(spare);
                FULL.store(false, Ordering::Relaxed);
                // The old buffer is freed without the lock.
                drop(users);
                drop(outdated);
                return;
            }
            (2 * users.len()).max(8)
        };
        spare = Vec::new();
        if spare.try_reserve_exact(wanted).is_err() {
            return;
        }
    }
}

/// Checks whether `process` may have one more thread or child (RLIMIT_NPROC). User 0 is not
/// checked, nor is a process that may exceed limits.
///
/// # Errors
/// `EAGAIN` if its user has as many threads as the limit permits.
pub fn check_threads(process: &Process) -> Result<()> {
    let limit = process.soft_limit(Resource::Processes);
    // If all users together have fewer threads, no count is needed.
    if (registry::count() as u64) < limit {
        return Ok(());
    }
    let credentials = process.credentials();
    let is_exempt = credentials.uid == 0
        || credentials.may(Capability::SysResource)
        || credentials.may(Capability::SysAdmin);
    let uid = credentials.uid;
    let has_room = || threads_of(uid) + HELPERS.lock().get(&uid).copied().unwrap_or(0) < limit;
    if is_exempt || has_room() { Ok(()) } else { Err(Errno::EAGAIN) }
}

/// Threads of each (real) user's processes, but for the first user's, which are never asked for. A
/// process that has ended and was not waited for counts as one. A user whose number finds no memory
/// has none.
///
/// **Protocol.** A process' part of its user's number is in the process, and both change under this
/// lock. A task that changes the process' user or its threads [counts](count_threads) it anew after
/// that: so the last one to do so sees all changes. The process that was waited for is forgotten,
/// after its last thread has counted. The lock comes after the registry's, and before a process'
/// own.
static THREADS: SpinLock<Map<u32, u64>> = SpinLock::new(Map::new());

/// A process' part of its user's threads: changes under [`THREADS`]' lock.
#[derive(Default)]
pub(super) struct CountedThreads {
    uid: AtomicU32,
    threads: AtomicU64,
}

impl CountedThreads {
    /// Counts `threads` of `uid` instead of those that were counted before.
    fn set(&self, counts: &mut Map<u32, u64>, uid: u32, threads: u64) {
        let (old, counted) = (self.uid.load(Ordering::Relaxed), self.threads.load(Ordering::Relaxed));
        if let Some(all) = counts.get_mut(&old).filter(|_| counted > 0) {
            *all -= counted;
            if *all == 0 && (old != uid || threads == 0) {
                counts.remove(&old);
            }
        }
        let mut counted = 0;
        if threads > 0 {
            let all = counts.get(&uid).copied().unwrap_or(0) + threads;
            counted = if counts.try_insert(uid, all).is_ok() { threads } else { 0 };
        }
        self.uid.store(uid, Ordering::Relaxed);
        self.threads.store(counted, Ordering::Relaxed);
    }
}

/// Counts the threads of a process that the registry knows anew. The caller holds no lock.
pub(super) fn count_threads(process: &Process) {
    // One of the first user's is not counted, unless it was another's before.
    if process.uid() == 0 && process.counted.threads.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut counts = THREADS.lock();
    let uid = process.uid();
    let threads = if uid == 0 { 0 } else { process.thread_count().max(1) as u64 };
    process.counted.set(&mut counts, uid, threads);
}

/// Forgets a process that was waited for.
pub(super) fn forget_threads(process: &Process) {
    if process.counted.threads.load(Ordering::Relaxed) != 0 {
        process.counted.set(&mut THREADS.lock(), 0, 0);
    }
}

/// Returns the number of threads of a user's processes.
fn threads_of(user: u32) -> u64 {
    THREADS.lock().get(&user).copied().unwrap_or(0)
}

/// Kernel tasks that work for a user's requests, by user.
static HELPERS: SpinLock<Map<u32, u64>> = SpinLock::new(Map::new());

/// A kernel task that counts as a thread of the user for whom it works, until this is dropped.
#[derive(Debug)]
pub struct UserHelper(u32);

impl UserHelper {
    /// Counts a helper for the user of `process`.
    ///
    /// # Errors
    /// `EAGAIN` if the user has as many threads as the limit permits; `ENOMEM`.
    pub fn count(process: &Process) -> Result<Self> {
        check_threads(process)?;
        let uid = process.uid();
        let mut helpers = HELPERS.lock();
        let count = helpers.get(&uid).copied().unwrap_or(0) + 1;
        helpers.try_insert(uid, count)?;
        Ok(Self(uid))
    }
}

impl Drop for UserHelper {
    fn drop(&mut self) {
        let mut helpers = HELPERS.lock();
        let left = helpers.get(&self.0).copied().unwrap_or(1) - 1;
        match helpers.get_mut(&self.0) {
            Some(count) if left > 0 => *count = left,
            _ => drop(helpers.remove(&self.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums made anew after each change are the same.
    #[test]
    fn threads_are_counted_for_the_user_that_they_have() {
        let mut counts = Map::new();
        let processes: [CountedThreads; 5] = core::array::from_fn(|_| CountedThreads::default());
        let mut model = [(0, 0); 5];
        let mut seed = 1u64;
        let mut draw = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..5000 {
            let (at, uid, threads) = (draw(5) as usize, draw(3) as u32, draw(4));
            processes[at].set(&mut counts, uid, threads);
            model[at] = (uid, threads);
            for uid in 0..3 {
                let all: u64 = model.iter().filter(|own| own.0 == uid).map(|own| own.1).sum();
                assert_eq!(counts.get(&uid).copied(), Some(all).filter(|&all| all > 0));
            }
        }
        // Without memory a user has no number, and the process has no part of it.
        let (mut counts, process) = (Map::new(), CountedThreads::default());
        freehold_collections::inject::fail_nth(1);
        process.set(&mut counts, 7, 2);
        freehold_collections::inject::fail_nth(0);
        assert!(counts.is_empty());
        process.set(&mut counts, 7, 3);
        assert_eq!(counts.get(&7), Some(&3));
    }

    #[test]
    fn a_user_queues_as_many_signals_as_the_limit_says_and_gets_the_places_back() {
        make_room();
        let payer = |uid, limit| Payer { uid, limit };
        let first = QueuedSignal::charge(payer(70_001, 2));
        let second = QueuedSignal::charge(payer(70_001, 2));
        assert!(first.is_some() && second.is_some());
        assert_eq!(QueuedSignal::charge(payer(70_001, 2)), None);
        assert!(QueuedSignal::charge(payer(70_001, 3)).is_some(), "the limit is the receiver's");
        assert!(QueuedSignal::charge(payer(70_002, 1)).is_some(), "another user has an account of its own");
        drop(first);
        assert!(QueuedSignal::charge(payer(70_001, 2)).is_some());
        drop(second);
        assert_eq!(queued_signals(70_001), 0);
    }
}
