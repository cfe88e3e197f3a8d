//! The futex2 calls: waiting for several words, and waking, waiting and moving waiters with
//! separate flags per word.
//!
//! Words have 32 bits. Linux refuses other sizes, too. Words with a NUMA node are refused here
//! (`EINVAL`, as by a Linux before 6.16).

use core::sync::atomic::Ordering;

use freehold_collections::{Arc, Vec};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{FutexWord, MATCH_ANY, Scope, Waiter, enqueue, leave, requeue, sleep, wait_once, wake};
use crate::sched;
use crate::syscall::Args;
use crate::task::clock::{Clock, MONOTONIC, REALTIME};
use crate::task::current;
use crate::time::{Deadline, TimeSpec};
use crate::user::UserPtr;
use crate::{Errno, Result};

/// Largest number of words of one wait (FUTEX_WAITV_MAX).
const MOST_WORDS: u32 = 128;
/// Number of waiters that are allocated per refill of the heap's reserve.
const MADE_AT_ONCE: usize = 16;

/// FUTEX2_SIZE_U32, in the bits of FUTEX2_SIZE_MASK, and FUTEX2_PRIVATE.
const SIZE_U32: u32 = 2;
const PRIVATE: u32 = 128;

/// `struct futex_waitv`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct UserWait {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

/// A word, and the value that it must have for a wait to begin.
struct WaitedWord {
    word: FutexWord,
    expected: u32,
}

/// Returns the scope that a word's flags request.
fn scope_of(flags: u32) -> Result<Scope> {
    match flags {
        SIZE_U32 => Ok(Scope::Shared),
        flags if flags == SIZE_U32 | PRIVATE => Ok(Scope::Private),
        _ => Err(Errno::EINVAL),
    }
}

/// Returns a value or a mask of a 32-bit word.
fn value_of(value: u64) -> Result<u32> {
    u32::try_from(value).map_err(|_| Errno::EINVAL)
}

impl UserWait {
    fn checked(self) -> Result<WaitedWord> {
        let scope = scope_of(self.flags)?;
        if self.reserved != 0 {
            return Err(Errno::EINVAL);
        }
        Ok(WaitedWord { word: FutexWord { address: self.address, scope }, expected: value_of(self.value)? })
    }
}

/// Returns the deadline of a wait: the time of `clock` at `address`. If `address` is 0 there is
/// none.
fn deadline(address: u64, clock: i32) -> Result<Option<Deadline>> {
    if address == 0 {
        return Ok(None);
    }
    if ![REALTIME, MONOTONIC].contains(&clock) {
        return Err(Errno::EINVAL);
    }
    let time = UserPtr::<TimeSpec>::new(address).read()?.nanoseconds()?;
    Clock::new(clock)?.deadline(time).map(Some)
}

/// Waits until one of `words` is woken. Returns its index; if several were woken, the last one.
fn wait_for_any(words: &[WaitedWord], deadline: Option<Deadline>) -> Result<i64> {
    let task = current();
    let mut waiters = Vec::try_with_capacity(words.len())?;
    for (at, WaitedWord { word, .. }) in words.iter().enumerate() {
        if at % MADE_AT_ONCE == 0 {
            sched::checkpoint()?;
        }
        waiters.push_reserved(Waiter::new(&task, word.key()?, MATCH_ANY));
    }
    let mut queued = 0;
    let mut outcome = Ok(());
    for (waiter, WaitedWord { word, expected }) in waiters.iter().zip(words) {
        outcome = enqueue(waiter, word.address, *expected);
        if outcome.is_err() {
            break;
        }
        queued += 1;
    }
    let queued = &waiters[..queued];
    if outcome.is_ok() {
        outcome = sleep(&task, deadline, || queued.iter().any(|waiter| waiter.woken.load(Ordering::SeqCst)));
    }
    match (leave_all(queued), outcome) {
        (Some(woken), _) => Ok(woken as i64),
        (None, Err(error)) => Err(error),
        (None, Ok(())) => Err(Errno::EAGAIN),
    }
}

/// Removes all waiters from their buckets. Returns the index of the last waiter that a waker had
/// removed before.
fn leave_all(waiters: &[Arc<Waiter>]) -> Option<usize> {
    let mut woken = None;
    for (at, waiter) in waiters.iter().enumerate() {
        if !leave(waiter) {
            woken = Some(at);
        }
    }
    woken
}

/// futex_waitv(words, count, flags, timeout, clock)
pub fn sys_futex_waitv(args: &Args) -> Result<i64> {
    let count = args.uint(1);
    if args.uint(2) != 0 || !(1..=MOST_WORDS).contains(&count) || args[0] == 0 {
        return Err(Errno::EINVAL);
    }
    let deadline = deadline(args[3], args.int(4))?;
    let asked = UserPtr::<UserWait>::new(args[0]).read_many(count as usize)?;
    let mut words = Vec::try_with_capacity(asked.len())?;
    for wait in asked.iter() {
        words.push_reserved(wait.checked()?);
    }
    wait_for_any(&words, deadline)
}

/// futex_wait(word, value, mask, flags, timeout, clock)
pub fn sys_futex_wait(args: &Args) -> Result<i64> {
    let scope = scope_of(args.uint(3))?;
    let (value, mask) = (value_of(args[1])?, value_of(args[2])?);
    let deadline = deadline(args[4], args.int(5))?;
    wait_once(FutexWord { address: args[0], scope }, value, mask, deadline)
}

/// futex_wake(word, mask, count, flags). Unlike with FUTEX_WAKE, a count of 0 wakes no thread.
pub fn sys_futex_wake(args: &Args) -> Result<i64> {
    let scope = scope_of(args.uint(3))?;
    let mask = value_of(args[1])?;
    if mask == 0 {
        return Err(Errno::EINVAL);
    }
    let key = FutexWord { address: args[0], scope }.key()?;
    match args.int(2) {
        0 => Ok(0),
        count => wake(key, usize::try_from(count).unwrap_or(1), mask),
    }
}

/// futex_requeue(words, flags, wakes, moves): moves waiters from the first of two words to the
/// second, if the first has its expected value.
pub fn sys_futex_requeue(args: &Args) -> Result<i64> {
    if args.uint(1) != 0 || args[0] == 0 {
        return Err(Errno::EINVAL);
    }
    let asked = UserPtr::<UserWait>::new(args[0]);
    let (first, second) = (asked.read()?.checked()?, asked.add(1).read()?.checked()?);
    let count = |index| usize::try_from(args.int(index)).map_err(|_| Errno::EINVAL);
    requeue([first.word, second.word], (count(2)?, count(3)?), Some(first.expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_other_sizes_and_values_too_large_are_refused() {
        let wait = |value, flags, reserved| {
            UserWait { value, address: 8, flags, reserved }.checked().map(|wait| wait.expected).err()
        };
        assert_eq!(wait(5, SIZE_U32, 0), None);
        assert_eq!(wait(5, SIZE_U32 | PRIVATE, 0), None);
        for flags in [0, 1, 3, PRIVATE, SIZE_U32 | 4, SIZE_U32 | 8, SIZE_U32 | 16, SIZE_U32 | 1 << 31] {
            assert_eq!(wait(5, flags, 0), Some(Errno::EINVAL), "{flags:#x}");
        }
        assert_eq!(wait(5, SIZE_U32, 1), Some(Errno::EINVAL));
        assert_eq!(wait(1 << 32, SIZE_U32, 0), Some(Errno::EINVAL));
    }
}
