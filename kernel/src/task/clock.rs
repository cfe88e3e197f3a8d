//! The clocks that programs read, with the numbers of clock_gettime(2).

use super::registry::pid_by_number;
use super::{Pid, current, find, find_task, with_current};
use crate::time::{Base, Deadline, now, wall_nanoseconds};
use crate::{Errno, Result};

/// CLOCK_REALTIME, the only clock that can be set.
pub const REALTIME: i32 = 0;
/// CLOCK_MONOTONIC.
pub const MONOTONIC: i32 = 1;
const PROCESS_CPU: i32 = 2;
const THREAD_CPU: i32 = 3;
const TAI: i32 = 11;

/// A clock, by the time that it shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// Nanoseconds since 1970.
    Wall,
    /// Nanoseconds since boot, with the offset of the caller's time namespace.
    Monotonic,
    /// The same with another offset: there is no suspend.
    Boottime,
    /// CPU time of a process.
    Process(Pid),
    /// CPU time of a thread.
    Thread(Pid),
}

/// Returns the nanoseconds since boot at which a clock with an offset shows `time`: 0 for a time
/// that was past at boot (Linux: `timens_ktime_to_host`). An endless time stays one.
const fn since_boot(time: u64, offset: i64) -> u64 {
    if time == u64::MAX {
        return time;
    }
    match offset {
        ..0 => time.saturating_add(offset.unsigned_abs()),
        _ => time.saturating_sub(offset as u64),
    }
}

impl Clock {
    /// Returns the offset in the caller's time namespace, in nanoseconds.
    pub fn offset(self) -> i64 {
        let offsets = with_current(|task| task.process().time_offsets());
        match self {
            Self::Monotonic => offsets.monotonic,
            Self::Boottime => offsets.boottime,
            _ => 0,
        }
    }
    /// Returns the time that the clock shows the caller `time` nanoseconds after boot.
    pub fn shown(self, time: u64) -> u64 {
        time.saturating_add_signed(self.offset())
    }
    /// Returns the clock with the number `id`.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn new(id: i32) -> Result<Self> {
        Ok(match id {
            REALTIME | 5 | 8 | TAI => Self::Wall,
            MONOTONIC | 4 | 6 => Self::Monotonic,
            7 | 9 => Self::Boottime,
            PROCESS_CPU => Self::Process(current().process().pid),
            THREAD_CPU => Self::Thread(current().tid()),
            // CPU clocks of kind 3 do not exist (Linux: CPUCLOCK_MAX).
            id if id < 0 && id & 3 != 3 => {
                // A process' or thread's clock consists of the inverted ID, a thread bit and a
                // kind.
                let of = !(id >> 3);
                let of = u32::try_from(of).map_err(|_| Errno::EINVAL)?;
                match (id & 4 != 0, of) {
                    (true, 0) => Self::Thread(current().tid()),
                    (true, tid) => Self::Thread(pid_by_number(tid).ok_or(Errno::EINVAL)?),
                    (false, 0) => Self::Process(current().process().pid),
                    (false, pid) => Self::Process(pid_by_number(pid).ok_or(Errno::EINVAL)?),
                }
            }
            _ => return Err(Errno::EINVAL),
        })
    }
    /// Returns the clock's time, in nanoseconds.
    ///
    /// # Errors
    /// `EINVAL` for a process or thread that does not exist.
    pub fn read(self) -> Result<u64> {
        Ok(match self {
            Self::Wall => wall_nanoseconds().max(0) as u64,
            Self::Monotonic | Self::Boottime => self.shown(now()),
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
    /// Returns the point at which the clock shows `time`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for CPU clocks, whose future cannot be known.
    pub fn deadline(self, time: u64) -> Result<Deadline> {
        match self {
            Self::Wall => Ok(Deadline { base: Base::Wall, at: time }),
            Self::Monotonic | Self::Boottime => Ok(since_boot(time, self.offset()).into()),
            Self::Process(_) | Self::Thread(_) => Err(Errno::EOPNOTSUPP),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_with_an_offset_is_never_before_boot_and_an_endless_one_stays_endless() {
        assert_eq!((since_boot(10, 3), since_boot(10, -3), since_boot(10, 0)), (7, 13, 10));
        assert_eq!((since_boot(2, 3), since_boot(0, i64::MAX)), (0, 0));
        assert_eq!((since_boot(u64::MAX, 3), since_boot(u64::MAX - 1, -3)), (u64::MAX, u64::MAX));
    }
}
