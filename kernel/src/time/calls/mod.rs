//! Reading and setting clocks, and sleeping.

mod adjusting;

pub use adjusting::{sys_adjtimex, sys_clock_adjtime};

use super::{Deadline, SECOND, TimeSpec, TimeVal, now, set_wall};
use crate::fs::timerfd;
use crate::sync::WaitQueue;
use crate::syscall::Args;
use crate::task::clock::{Clock, REALTIME};
use crate::task::{self, Capability, current};
use crate::user::UserPtr;
use crate::{Errno, Result};
use freehold_collections::reserve;

/// clock_gettime(clock, time)
pub fn sys_clock_gettime(args: &Args) -> Result<i64> {
    let time = Clock::new(args.int(0))?.read()?;
    UserPtr::new(args[1]).write(&TimeSpec::from_nanoseconds(time))?;
    Ok(0)
}

/// clock_getres(clock, resolution)
pub fn sys_clock_getres(args: &Args) -> Result<i64> {
    let coarse = matches!(args.int(0), 5 | 6);
    Clock::new(args.int(0))?;
    let resolution = if coarse { 4_000_000 } else { 1 };
    UserPtr::new(args[1]).write_optional(&TimeSpec::from_nanoseconds(resolution))?;
    Ok(0)
}

fn may_set_time() -> Result<()> {
    if task::may(Capability::SysTime) { Ok(()) } else { Err(Errno::EPERM) }
}

/// Returns a time that the wall clock can be set to. From there it can run for thirty years before
/// the nanoseconds since 1970 overflow (Linux: timespec64_valid_settod).
fn settable(nanoseconds: u64) -> Result<i64> {
    const THIRTY_YEARS: u64 = 30 * 365 * 24 * 3600 * SECOND;
    const END: u64 = i64::MAX as u64 / SECOND * SECOND - THIRTY_YEARS;
    if nanoseconds < END { Ok(nanoseconds as i64) } else { Err(Errno::EINVAL) }
}

/// Sets the wall clock, and cancels the timers that asked for it.
fn set_wall_for_all(nanoseconds: i64) {
    set_wall(nanoseconds);
    timerfd::clock_was_set();
}

/// clock_settime(clock, time)
pub fn sys_clock_settime(args: &Args) -> Result<i64> {
    let time = UserPtr::<TimeSpec>::new(args[1]).read()?.nanoseconds()?;
    if args.int(0) != REALTIME {
        return Err(Errno::EINVAL);
    }
    may_set_time()?;
    set_wall_for_all(settable(time)?);
    Ok(0)
}

/// gettimeofday(time, zone)
pub fn sys_gettimeofday(args: &Args) -> Result<i64> {
    let time = Clock::Wall.read()?;
    UserPtr::new(args[0]).write_optional(&TimeVal::from_nanoseconds(time))?;
    UserPtr::new(args[1]).write_optional(&[0i32; 2])?;
    Ok(0)
}

/// settimeofday(time, zone)
pub fn sys_settimeofday(args: &Args) -> Result<i64> {
    let time = UserPtr::<TimeVal>::new(args[0]).read_optional()?;
    may_set_time()?;
    if let Some(time) = time {
        set_wall_for_all(settable(time.nanoseconds()?)?);
    }
    Ok(0)
}

/// time(seconds)
pub fn sys_time(args: &Args) -> Result<i64> {
    let seconds = (Clock::Wall.read()? / SECOND) as i64;
    UserPtr::new(args[0]).write_optional(&seconds)?;
    Ok(seconds)
}

/// nanosleep(time, remaining)
pub fn sys_nanosleep(args: &Args) -> Result<i64> {
    let time = UserPtr::<TimeSpec>::new(args[0]).read()?.nanoseconds()?;
    sleep_until(now().saturating_add(time).into(), args[1])
}

/// clock_nanosleep(clock, flags, time, remaining)
pub fn sys_clock_nanosleep(args: &Args) -> Result<i64> {
    const ABSOLUTE: u32 = 1;
    let clock = Clock::new(args.int(0))?;
    // A thread cannot sleep by its own CPU time, and raw and coarse clocks have no timers.
    if matches!(clock, Clock::Thread(_)) || matches!(args.int(0), 4..=6) {
        return Err(Errno::EOPNOTSUPP);
    }
    let time = UserPtr::<TimeSpec>::new(args[2]).read()?.nanoseconds()?;
    if args.uint(1) & ABSOLUTE == 0 {
        clock.deadline(0)?;
        return sleep_until(now().saturating_add(time).into(), args[3]);
    }
    match sleep_until(clock.deadline(time)?, 0) {
        // Repeating an absolute sleep is safe.
        Err(Errno::ERESTARTBLOCK) => Err(Errno::ERESTARTNOHAND),
        other => other,
    }
}

fn sleep_until(deadline: Deadline, remaining: u64) -> Result<i64> {
    let nobody = WaitQueue::new();
    match nobody.wait_until_deadline(Some(deadline), || None::<()>) {
        Ok(_) => Ok(0),
        Err(_) => {
            let left = deadline.left();
            if left == 0 {
                return Ok(0);
            }
            UserPtr::new(remaining).write_optional(&TimeSpec::from_nanoseconds(left))?;
            Err(current().restart_with(reserve::boxed(move || sleep_until(deadline, remaining))))
        }
    }
}

/// restart_syscall()
pub fn sys_restart_syscall(_args: &Args) -> Result<i64> {
    match current().take_restart() {
        Some(restart) => restart(),
        None => Err(Errno::EINTR),
    }
}
