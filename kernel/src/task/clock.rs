//! The clocks that programs read, with the numbers of clock_gettime(2).

use super::registry::pid_by_number;
use super::{Pid, current, find, find_task};
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
    /// Nanoseconds since boot; there is no suspend, so CLOCK_BOOTTIME is the same.
    Monotonic,
    /// CPU time of a process.
    Process(Pid),
    /// CPU time of a thread.
    Thread(Pid),
}

impl Clock {
    /// Returns the clock with the number `id`.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn new(id: i32) -> Result<Self> {
        Ok(match id {
            REALTIME | 5 | 8 | TAI => Self::Wall,
            MONOTONIC | 4 | 6 | 7 | 9 => Self::Monotonic,
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
    /// Returns the point at which the clock shows `time`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for CPU clocks, whose future cannot be known.
    pub fn deadline(self, time: u64) -> Result<Deadline> {
        match self {
            Self::Wall => Ok(Deadline { base: Base::Wall, at: time }),
            Self::Monotonic => Ok(time.into()),
            Self::Process(_) | Self::Thread(_) => Err(Errno::EOPNOTSUPP),
        }
    }
}
