//! Condition variables whose lock has priority inheritance: FUTEX_WAIT_REQUEUE_PI and
//! FUTEX_CMP_REQUEUE_PI.
//!
//! A waiter is in the line of the condition's word, and names the lock to which it is to be moved.
//! The call that moves the waiter requests the lock on its behalf. The waiter gets the lock at
//! once, or waits for it as if it had made the request. Lines are in the [table](super::table).

use freehold_collections::{Arc, Vec};

use super::super::id::FutexId;
use super::super::{FutexWord, WAITERS, bring_in, bring_in_writable, load, sleep};
use super::table::{MOST_OWNERS, PiTable, PiWaiter, Standing, TABLE};
use super::{Attempt, LockWait, NamedOwner, attempt, has_plain_waiter, wait_for_lock};
use crate::task::current;
use crate::time::Deadline;
use crate::{Errno, Result, sched};

/// Number of waiters that are moved before other calls may take the table's lock.
const MOVED_AT_ONCE: usize = 32;

/// FUTEX_WAIT_REQUEUE_PI: waits at the first word, if it has the expected value, to be moved to the
/// lock at the second word.
pub(in super::super) fn wait_for_move(
    [word, lock]: [FutexWord; 2],
    expected: u32,
    deadline: Option<Deadline>,
) -> Result<i64> {
    if word.address == lock.address {
        return Err(Errno::EINVAL);
    }
    let task = current();
    let (key, target) = (word.key()?, lock.key()?);
    let waiter = PiWaiter::new(task.pi_part(), target, Some(key));
    loop {
        let mut table = TABLE.lock();
        match load(word.address) {
            Ok(value) if value != expected => return Err(Errno::EAGAIN),
            Ok(_) if key == target => return Err(Errno::EINVAL),
            Ok(_) => {
                table.line_up(&waiter)?;
                break;
            }
            Err(_) => drop(table),
        }
        bring_in(word.address)?;
        sched::checkpoint()?;
    }
    let outcome = sleep(&task, deadline, || waiter.standing() != Standing::InLine);
    if let Err(error) = outcome {
        let mut table = TABLE.lock();
        if waiter.standing() == Standing::InLine {
            table.leave(&waiter);
            return Err(if error == Errno::ERESTARTSYS { Errno::ERESTARTNOINTR } else { error });
        }
    }
    match wait_for_lock(&waiter, lock.address, deadline) {
        // The call cannot be restarted: the program must check its condition again.
        Err(Errno::ERESTARTSYS) => Err(Errno::EAGAIN),
        outcome => outcome.map(|()| 0),
    }
}

/// Progress of a call that moves waiters.
enum MoveStep {
    Done,
    /// There are more waiters to move.
    More,
    /// The page of the condition's word is absent.
    AbsentWord,
    /// The page of the lock's word is absent.
    AbsentLock,
}

/// A call that moves waiters.
struct LockMove {
    from: FutexId,
    words: [FutexWord; 2],
    to: FutexId,
    /// Number of waiters that it may still move.
    left: usize,
    moved: usize,
    /// Waiters moved since the table's lock was taken. They may have ended before the lock is
    /// released.
    done: Vec<Arc<PiWaiter>>,
}

impl LockMove {
    /// Moves some waiters. Stops after visiting [`MOST_OWNERS`] owners, as nothing else can use the
    /// table meanwhile.
    fn step(&mut self, table: &mut PiTable, named: &NamedOwner) -> Result<MoveStep> {
        let mut seen = 0;
        for _ in 0..MOVED_AT_ONCE {
            let Some(waiter) = table.first_in_line(self.from) else { return Ok(MoveStep::Done) };
            if self.left == 0 {
                return Ok(MoveStep::Done);
            }
            if waiter.lock != self.to {
                return Err(Errno::EINVAL);
            }
            match self.ask(table, &waiter, named)? {
                Attempt::Taken => table.give_free(&waiter),
                Attempt::Queued { owners } => {
                    table.leave_line(&waiter);
                    seen += owners;
                }
                Attempt::Absent => return Ok(MoveStep::AbsentLock),
                Attempt::Changed => return Ok(MoveStep::More),
            }
            self.left -= 1;
            self.moved += 1;
            self.done.push_reserved(waiter);
            if seen >= MOST_OWNERS {
                break;
            }
        }
        Ok(MoveStep::More)
    }

    /// Requests the lock on behalf of `waiter`. If more waiters will follow, the word gets the mark
    /// of waiters at once.
    fn ask(&self, table: &mut PiTable, waiter: &Arc<PiWaiter>, named: &NamedOwner) -> Result<Attempt> {
        let mark = if self.left > 1 { WAITERS } else { 0 };
        attempt(table, waiter, (self.words[1].address, mark), named, LockWait::Until(None))
    }
}

/// FUTEX_CMP_REQUEUE_PI: if the first word has the expected value, moves one waiter, and `moves`
/// more, from it to the lock at the second word.
pub(in super::super) fn move_to_lock(
    words: [FutexWord; 2],
    (wakes, moves): (usize, usize),
    expected: u32,
) -> Result<i64> {
    if words[0].address == words[1].address || wakes != 1 {
        return Err(Errno::EINVAL);
    }
    let (from, to) = (words[0].key()?, words[1].key()?);
    if from == to {
        return Err(Errno::EINVAL);
    }
    let mut moving = LockMove {
        from,
        words,
        to,
        left: moves.saturating_add(1),
        moved: 0,
        done: Vec::try_with_capacity(MOVED_AT_ONCE)?,
    };
    loop {
        let (is_mixed, named) = (has_plain_waiter(from), NamedOwner::at(words[1].address));
        let step = {
            let mut table = TABLE.lock();
            match load(words[0].address) {
                Err(_) if moving.moved == 0 => Ok(MoveStep::AbsentWord),
                // Only the first step checks the value: Linux moves all waiters at once.
                Ok(value) if moving.moved == 0 && value != expected => return Err(Errno::EAGAIN),
                Ok(_) if is_mixed || table.find(from).is_some() => return Err(Errno::EINVAL),
                _ => moving.step(&mut table, &named),
            }
        };
        moving.done.clear();
        match step {
            Ok(MoveStep::Done) => return Ok(moving.moved as i64),
            Ok(MoveStep::More) => {}
            Ok(MoveStep::AbsentWord) => bring_in(words[0].address)?,
            Ok(MoveStep::AbsentLock) => bring_in_writable(words[1].address)?,
            Err(error) => return Err(error),
        }
        sched::checkpoint()?;
    }
}
