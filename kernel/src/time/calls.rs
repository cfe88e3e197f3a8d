//! Reading and setting clocks, and sleeping.

use alloc::boxed::Box;

use super::{SECOND, TimeSpec, TimeVal, now, set_wall, wall_nanoseconds};
use crate::sync::WaitQueue;
use crate::syscall::Args;
use crate::task::{Capability, Pid, current, find, find_task};
use crate::user::UserPtr;
use crate::{Errno, Result};

const REALTIME: i32 = 0;
const MONOTONIC: i32 = 1;
const PROCESS_CPU: i32 = 2;
const THREAD_CPU: i32 = 3;
const TAI: i32 = 11;

/// A clock, by what it shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// Nanoseconds since 1970.
    Wall,
    /// Nanoseconds since boot; there is no suspend, so CLOCK_BOOTTIME is the same.
    Monotonic,
    /// CPU time of a process.
    Process(Pid),
    /// CPU time of a thread.
    Thread(Pid),
}

impl Clock {
    /// The clock that a program means by `id`.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn new(id: i32) -> Result<Self> {
        Ok(match id {
            REALTIME | 5 | 8 | TAI => Self::Wall,
            MONOTONIC | 4 | 6 | 7 | 9 => Self::Monotonic,
            PROCESS_CPU => Self::Process(current().process().pid),
            THREAD_CPU => Self::Thread(current().tid),
            id if id < 0 => {
                // A process' or thread's clock: the inverted ID, a thread bit and a kind.
                let of = !(id >> 3);
                let of = u32::try_from(of).map_err(|_| Errno::EINVAL)?;
                match (id & 4 != 0, of) {
                    (true, 0) => Self::Thread(current().tid),
                    (true, tid) => Self::Thread(tid),
                    (false, 0) => Self::Process(current().process().pid),
                    (false, pid) => Self::Process(pid),
                }
            }
            _ => return Err(Errno::EINVAL),
        })
    }
    /// What it shows, in nanoseconds.
    ///
    /// # Errors
    /// `EINVAL` for a process or thread that is not there.
    pub fn read(self) -> Result<u64> {
        Ok(match self {
            Self::Wall => wall_nanoseconds().max(0) as u64,
            Self::Monotonic => now(),
            Self::Process(pid) => {
                let usage = find(pid).ok_or(Errno::EINVAL)?.usage();
                usage.user + usage.system
            }
            Self::Thread(tid) => {
                let usage = find_task(tid).ok_or(Errno::EINVAL)?.usage();
                usage.user + usage.system
            }
        })
    }
    /// The monotonic time at which it shows `time`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for CPU clocks, which nobody can foresee.
    pub fn deadline(self, time: u64) -> Result<u64> {
        match self {
            Self::Wall => Ok(super::from_wall(time)),
            Self::Monotonic => Ok(time),
            Self::Process(_) | Self::Thread(_) => Err(Errno::EOPNOTSUPP),
        }
    }
}

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
    if current().process().credentials().may(Capability::SysTime) { Ok(()) } else { Err(Errno::EPERM) }
}

/// clock_settime(clock, time)
pub fn sys_clock_settime(args: &Args) -> Result<i64> {
    let time = UserPtr::<TimeSpec>::new(args[1]).read()?.nanoseconds()?;
    if args.int(0) != REALTIME {
        return Err(Errno::EINVAL);
    }
    may_set_time()?;
    set_wall(time as i64);
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
        set_wall(time.nanoseconds()? as i64);
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
    sleep_until(now().saturating_add(time), args[1])
}

/// clock_nanosleep(clock, flags, time, remaining)
pub fn sys_clock_nanosleep(args: &Args) -> Result<i64> {
    const ABSOLUTE: u32 = 1;
    let clock = Clock::new(args.int(0))?;
    if matches!(clock, Clock::Thread(_)) {
        return Err(Errno::EINVAL);
    }
    let time = UserPtr::<TimeSpec>::new(args[2]).read()?.nanoseconds()?;
    if args.uint(1) & ABSOLUTE == 0 {
        clock.deadline(0)?;
        return sleep_until(now().saturating_add(time), args[3]);
    }
    match sleep_until(clock.deadline(time)?, 0) {
        // An absolute sleep that is repeated is the same sleep.
        Err(Errno::ERESTARTBLOCK) => Err(Errno::ERESTARTNOHAND),
        other => other,
    }
}

fn sleep_until(deadline: u64, remaining: u64) -> Result<i64> {
    let nobody = WaitQueue::new();
    match nobody.wait_until_deadline(Some(deadline), || None::<()>) {
        Ok(_) => Ok(0),
        Err(_) => {
            let left = deadline.saturating_sub(now());
            if left == 0 {
                return Ok(0);
            }
            UserPtr::new(remaining).write_optional(&TimeSpec::from_nanoseconds(left))?;
            Err(current().restart_with(Box::new(move || sleep_until(deadline, remaining))))
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
