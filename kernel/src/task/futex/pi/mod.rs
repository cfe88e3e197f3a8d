//! Locks with priority inheritance: FUTEX_LOCK_PI, FUTEX_LOCK_PI2, FUTEX_TRYLOCK_PI and
//! FUTEX_UNLOCK_PI; and condition variables for them ([`requeue`]).
//!
//! The word of a lock is 0 or its owner's number. Programs take and release it without a system
//! call. With FUTEX_WAITERS the owner must make the call to release it. With FUTEX_OWNER_DIED an
//! owner has ended. The word and the [table](table) of contended locks change together, under the
//! table's lock.
//!
//! The errors are those of Linux (kernel/futex/pi.c): for a word that names another owner than the
//! table (`EINVAL`), no thread (`ESRCH`), or a kernel thread (`EPERM`).

#[cfg(test)]
mod model;
mod requeue;
pub(super) mod table;

use core::sync::atomic::{Ordering, fence};

use freehold_collections::{Arc, reserve::ArcMethods};
use freehold_machine::VirtAddr;

use super::id::FutexId;
use super::{BUCKETS, FutexWord, OWNER_DIED, TID_MASK, WAITERS, bring_in_writable, load, sleep};
use crate::hw::usercopy::{self, Faults};
use crate::task::{Pid, Task, current, registry};
use crate::time::Deadline;
use crate::user::UserPtr;
use crate::{Errno, Result, sched};
use table::{PiTable, PiTask, PiWaiter, Standing, TABLE};

pub(super) use requeue::{move_to_lock, wait_for_move};

/// How long a thread waits for a lock.
#[derive(Clone, Copy)]
pub(super) enum LockWait {
    /// Until this time, if any.
    Until(Option<Deadline>),
    /// Not at all: the lock is taken only if it is free.
    Never,
}

/// Result of an attempt to take a lock.
enum Attempt {
    /// The lock was free, and its word has the waiter's number.
    Taken,
    /// The waiter is queued, after a search over this many owners.
    Queued { owners: usize },
    /// Nothing has changed, because the word's page is absent or not writable.
    Absent,
    /// Only the word has changed; nothing else.
    Changed,
}

/// Exchanges the word, without faults.
fn exchange(address: u64, value: u32, new: u32) -> Option<bool> {
    usercopy::compare_exchange_u32(VirtAddr(address), value, new, Faults::Never).map(|was| was == value)
}

/// The thread that the word of a lock names as its owner. The thread is looked up, and its
/// reference dropped, without the table's lock. It may have ended in between.
struct NamedOwner {
    number: Pid,
    task: Option<Arc<Task>>,
}

impl NamedOwner {
    /// Returns the thread named by the word at `address`, if the word can be read.
    fn at(address: u64) -> Self {
        let number = load(address).unwrap_or(0) & TID_MASK;
        Self { number, task: if number == 0 { None } else { registry::find_task_by_number(number) } }
    }
    /// # Errors
    /// `ESRCH` if it has ended, `EPERM` for a kernel thread.
    fn owner(&self) -> Result<&Arc<PiTask>> {
        let owner = self.task.as_ref().ok_or(Errno::ESRCH)?;
        if owner.process().is_kernel() {
            return Err(Errno::EPERM);
        }
        // In this order, as the head of the table says. The part may be made by a plain store. The
        // CPU could keep that store in its buffer until after the load of the mark.
        let part = owner.pi_part();
        fence(Ordering::SeqCst);
        if owner.has_left() { Err(Errno::ESRCH) } else { Ok(part) }
    }
}

/// Whether a word with this value is consistent with a lock whose owner in the table is `owner`
/// (Linux: `attach_to_pi_state`).
fn is_of(value: u32, owner: Option<&Arc<PiTask>>) -> bool {
    let number = value & TID_MASK;
    match owner {
        // The word has the number of the thread that has ended, or none.
        None => true,
        Some(_) if number == 0 => value & OWNER_DIED != 0,
        Some(owner) => number == owner.number(),
    }
}

/// Tries to take the lock at `address` for `waiter`, which is the caller's or in a line. A free
/// lock is taken with `mark` in its word: 0, or [`WAITERS`].
fn attempt(
    table: &mut PiTable,
    waiter: &Arc<PiWaiter>,
    (address, mark): (u64, u32),
    named: &NamedOwner,
    wait: LockWait,
) -> Result<Attempt> {
    let Ok(value) = load(address) else { return Ok(Attempt::Absent) };
    let own = waiter.task.number();
    if value & TID_MASK == own {
        return Err(Errno::EDEADLK);
    }
    let owner = match table.find(waiter.lock) {
        Some(lock) if is_of(value, lock.owner().as_ref()) => None,
        Some(_) => return Err(Errno::EINVAL),
        None if table.has_line(waiter.lock) => return Err(Errno::EINVAL),
        None if value & TID_MASK == 0 => {
            return Ok(match exchange(address, value, value & OWNER_DIED | own | mark) {
                None => Attempt::Absent,
                Some(false) => Attempt::Changed,
                Some(true) => Attempt::Taken,
            });
        }
        None if value & TID_MASK != named.number => return Ok(Attempt::Changed),
        None => match named.owner() {
            // The owner ended between two reads of the word, if the word has changed now.
            Err(Errno::ESRCH) if load(address).ok() != Some(value) => return Ok(Attempt::Changed),
            owner => Some(owner?),
        },
    };
    match exchange(address, value, value | WAITERS) {
        None => return Ok(Attempt::Absent),
        Some(false) => return Ok(Attempt::Changed),
        Some(true) => {}
    }
    match wait {
        LockWait::Never => Err(Errno::EAGAIN),
        LockWait::Until(_) => table.join(waiter, owner).map(|owners| Attempt::Queued { owners }),
    }
}

/// Whether a thread waits for this word without a lock (FUTEX_WAIT).
fn has_plain_waiter(key: FutexId) -> bool {
    BUCKETS[key.bucket()].lock().count(key, 1) > 0
}

/// FUTEX_LOCK_PI, FUTEX_LOCK_PI2, FUTEX_TRYLOCK_PI
pub(super) fn lock(word: FutexWord, wait: LockWait) -> Result<i64> {
    let task = current();
    let waiter = PiWaiter::new(task.pi_part(), word.key()?, None);
    loop {
        let (is_mixed, named) = (has_plain_waiter(waiter.lock), NamedOwner::at(word.address));
        let asked = {
            let mut table = TABLE.lock();
            let is_own = load(word.address).is_ok_and(|value| value & TID_MASK == task.number());
            if is_mixed && !is_own {
                return Err(Errno::EINVAL);
            }
            attempt(&mut table, &waiter, (word.address, 0), &named, wait)?
        };
        match asked {
            Attempt::Taken => return Ok(0),
            Attempt::Queued { .. } => break,
            Attempt::Absent => bring_in_writable(word.address)?,
            Attempt::Changed => {}
        }
        sched::checkpoint()?;
    }
    let deadline = match wait {
        LockWait::Until(deadline) => deadline,
        LockWait::Never => None,
    };
    match wait_for_lock(&waiter, word.address, deadline) {
        Err(Errno::ERESTARTSYS) => Err(Errno::ERESTARTNOINTR),
        outcome => outcome.map(|()| 0),
    }
}

/// Waits until `waiter`, which is queued for its lock, owns it.
///
/// # Errors
/// `ETIMEDOUT`, `ERESTARTSYS`, `EFAULT`; then it is no longer queued.
fn wait_for_lock(waiter: &Arc<PiWaiter>, address: u64, deadline: Option<Deadline>) -> Result<()> {
    let outcome = sleep(&current(), deadline, || waiter.standing() != Standing::Waits);
    let outcome = match (outcome, waiter.standing()) {
        (_, Standing::Owns) => return Ok(()),
        (Ok(()), _) => claim(waiter, address),
        (Err(error), _) => Err(error),
    };
    let Err(error) = outcome else { return Ok(()) };
    // It may have become the owner at the moment of the time-out.
    if TABLE.lock().leave(waiter) == Standing::Owns { Ok(()) } else { Err(error) }
}

/// Takes the lock of an owner that has ended.
fn claim(waiter: &Arc<PiWaiter>, address: u64) -> Result<()> {
    loop {
        let mut table = TABLE.lock();
        let own = waiter.task.number() | WAITERS | OWNER_DIED;
        match load(address).ok().and_then(|value| exchange(address, value, own)) {
            Some(true) => {
                table.take_over(waiter);
                return Ok(());
            }
            Some(false) => drop(table),
            None => {
                drop(table);
                bring_in_writable(address)?;
            }
        }
        sched::checkpoint()?;
    }
}

/// FUTEX_UNLOCK_PI
pub(super) fn unlock(word: FutexWord) -> Result<i64> {
    let task = current();
    loop {
        let value = UserPtr::<u32>::new(word.address).read()?;
        if value & TID_MASK != task.number() {
            return Err(Errno::EPERM);
        }
        let key = word.key()?;
        let is_mixed = has_plain_waiter(key);
        let mut table = TABLE.lock();
        let lock = table.find(key).cloned();
        let next = lock.as_ref().and_then(|lock| lock.next_number());
        let new = match (&lock, next) {
            (Some(lock), Some(next)) if lock.owner().is_some_and(|owner| owner.is_same(task.pi_part())) => {
                WAITERS | next
            }
            (Some(_), _) => return Err(Errno::EINVAL),
            (None, _) if is_mixed || table.has_line(key) => return Err(Errno::EINVAL),
            (None, _) => 0,
        };
        match (usercopy::compare_exchange_u32(VirtAddr(word.address), value, new, Faults::Never), lock) {
            (None, _) => {
                drop(table);
                bring_in_writable(word.address)?;
            }
            (Some(was), Some(lock)) if was == value => {
                let next = table.hand_over(&lock);
                drop(table);
                drop(next);
                return Ok(0);
            }
            (Some(was), None) => return if was == value { Ok(0) } else { Err(Errno::EAGAIN) },
            // A thread has set WAITERS in the word, but is not in the table yet.
            (Some(was), Some(_)) if was & TID_MASK == value => drop(table),
            (Some(_), Some(_)) => return Err(Errno::EINVAL),
        }
        sched::checkpoint()?;
    }
}
