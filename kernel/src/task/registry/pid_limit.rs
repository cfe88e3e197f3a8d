//! The limit for new IDs (/proc/sys/kernel/pid_max).

use core::sync::atomic::{AtomicU32, Ordering};

use super::{PID_MAX, RESERVED};
use crate::task::Pid;
use crate::{Errno, Result};

static PID_LIMIT: AtomicU32 = AtomicU32::new(PID_MAX);

/// Returns the limit: new IDs are below it.
pub fn pid_limit() -> Pid {
    PID_LIMIT.load(Ordering::Relaxed)
}

/// Sets the limit for new IDs. IDs in use stay.
///
/// # Errors
/// `EINVAL` below 301, since no IDs would be left after a wrap-around, and above [`PID_MAX`].
pub fn set_pid_limit(limit: u64) -> Result<()> {
    let limit = Pid::try_from(limit).ok().filter(|limit| (RESERVED + 1..=PID_MAX).contains(limit));
    PID_LIMIT.store(limit.ok_or(Errno::EINVAL)?, Ordering::Relaxed);
    Ok(())
}

/// The number after `last` that is not taken. After the largest, numbers begin again at
/// [`RESERVED`].
pub(super) fn next_number(last: Pid, is_taken: impl Fn(Pid) -> bool) -> Result<Pid> {
    let (mut number, limit) = (last, pid_limit());
    for _ in 0..limit {
        number = if number + 1 >= limit { RESERVED } else { number + 1 };
        if !is_taken(number) {
            return Ok(number);
        }
    }
    Err(Errno::EAGAIN)
}
