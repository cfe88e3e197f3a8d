//! The system calls: futex(2), and those that set the addresses which the kernel uses when a thread
//! ends.

use core::sync::atomic::Ordering;

use super::{
    FutexWord, MATCH_ANY, RobustHead, Scope, count, counts, key_of, pi, requeue, wait, wake, wake_op,
};
use crate::syscall::Args;
use crate::task::clock::Clock;
use crate::task::current;
use crate::task::inspect::{self, Mode};
use crate::task::registry::find_task_by_number;
use crate::time::{self, Base, Deadline, TimeSpec};
use crate::user::UserPtr;
use crate::{Errno, Result};

const PRIVATE: u32 = 128;
const CLOCK_REALTIME: u32 = 256;

const WAIT: u32 = 0;
const WAIT_BITSET: u32 = 9;
const LOCK_PI: u32 = 6;
const WAIT_REQUEUE_PI: u32 = 11;
const LOCK_PI2: u32 = 13;

/// futex(word, operation, value, timeout, word2, value3)
pub fn sys_futex(args: &Args) -> Result<i64> {
    const WAKE: u32 = 1;
    const REQUEUE: u32 = 3;
    const CMP_REQUEUE: u32 = 4;
    const WAKE_OP: u32 = 5;
    const WAKE_BITSET: u32 = 10;
    let operation = args.uint(1);
    let scope = if operation & PRIVATE != 0 { Scope::Private } else { Scope::Shared };
    let command = operation & !(PRIVATE | CLOCK_REALTIME);
    if operation & CLOCK_REALTIME != 0 && ![WAIT_BITSET, WAIT_REQUEUE_PI, LOCK_PI2].contains(&command) {
        return Err(without_clock(args, command));
    }
    let (word, value, value3) = (args[0], args.uint(2), args.uint(5));
    match command {
        WAIT | WAIT_BITSET => {
            let deadline = deadline(args, command)?;
            let bitset = if command == WAIT { MATCH_ANY } else { value3 };
            wait(FutexWord { address: word, scope }, value, bitset, deadline)
        }
        WAKE => wake(key_of(word, scope)?, count(args.int(2))?, MATCH_ANY),
        WAKE_BITSET => wake(key_of(word, scope)?, count(args.int(2))?, value3),
        REQUEUE => requeue(words(args, scope), counts(args)?, None),
        CMP_REQUEUE => requeue(words(args, scope), counts(args)?, Some(value3)),
        WAKE_OP => wake_op((word, args[4]), scope, counts(args)?, value3),
        _ => lock_call(args, command, scope),
    }
}

/// Returns the error of a command that permits no choice of the clock. An invalid time is reported
/// first.
#[cold]
fn without_clock(args: &Args, command: u32) -> Errno {
    match command {
        WAIT | LOCK_PI => deadline(args, command).err().unwrap_or(Errno::ENOSYS),
        _ => Errno::ENOSYS,
    }
}

fn words(args: &Args, scope: Scope) -> [FutexWord; 2] {
    [args[0], args[4]].map(|address| FutexWord { address, scope })
}

/// The commands for locks with priority inheritance. They are separate so that the code of the
/// other commands stays short.
#[cold]
#[inline(never)]
fn lock_call(args: &Args, command: u32, scope: Scope) -> Result<i64> {
    const UNLOCK_PI: u32 = 7;
    const TRYLOCK_PI: u32 = 8;
    const CMP_REQUEUE_PI: u32 = 12;
    let words = words(args, scope);
    match command {
        LOCK_PI | LOCK_PI2 => pi::lock(words[0], pi::LockWait::Until(deadline(args, command)?)),
        TRYLOCK_PI => pi::lock(words[0], pi::LockWait::Never),
        UNLOCK_PI => pi::unlock(words[0]),
        WAIT_REQUEUE_PI => pi::wait_for_move(words, args.uint(2), deadline(args, command)?),
        CMP_REQUEUE_PI => pi::move_to_lock(words, counts(args)?, args.uint(5)),
        _ => Err(Errno::ENOSYS),
    }
}

/// Returns the end of the wait of `command`. FUTEX_WAIT has a time from now, FUTEX_LOCK_PI a time
/// of the wall clock, and the others a time of the clock that they name.
#[inline]
fn deadline(args: &Args, command: u32) -> Result<Option<Deadline>> {
    let Some(time) = UserPtr::<TimeSpec>::new(args[3]).read_optional()? else { return Ok(None) };
    let time = time.nanoseconds()?;
    let by_wall = Deadline { base: Base::Wall, at: time };
    Ok(Some(match command {
        WAIT => time::now().saturating_add(time).into(),
        LOCK_PI => by_wall,
        _ if args.uint(1) & CLOCK_REALTIME != 0 => by_wall,
        _ => Clock::Monotonic.deadline(time)?,
    }))
}

/// set_robust_list(head, length)
pub fn sys_set_robust_list(args: &Args) -> Result<i64> {
    if args.size(1) != size_of::<RobustHead>() {
        return Err(Errno::EINVAL);
    }
    current().robust_list.store(args[0], Ordering::Relaxed);
    Ok(0)
}

/// get_robust_list(tid, head, length)
pub fn sys_get_robust_list(args: &Args) -> Result<i64> {
    let task = match args.int(0) {
        0 => current(),
        tid => u32::try_from(tid).ok().and_then(find_task_by_number).ok_or(Errno::ESRCH)?,
    };
    inspect::may_inspect(task.process(), Mode::READ_REAL)?;
    UserPtr::<u64>::new(args[2]).write(&(size_of::<RobustHead>() as u64))?;
    UserPtr::<u64>::new(args[1]).write(&task.robust_list.load(Ordering::Relaxed))?;
    Ok(0)
}

/// set_tid_address(address)
pub fn sys_set_tid_address(args: &Args) -> Result<i64> {
    let task = current();
    task.clear_child_tid.store(args[0], Ordering::Relaxed);
    Ok(i64::from(task.number()))
}
