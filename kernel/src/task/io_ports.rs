//! iopl(2) and ioperm(2). No program gets access to I/O ports: through them it could program any
//! device, also one that is isolated from its memory. Linux refuses them alike where it is locked
//! down (`LOCKDOWN_IOPORT`): `EPERM`, also for a program with CAP_SYS_RAWIO.

use crate::syscall::Args;
use crate::{Errno, Result};

/// Number of I/O ports that ioperm can name (Linux: IO_BITMAP_BITS).
const PORTS: u64 = 1 << 16;

/// iopl(level): every thread has level 0.
///
/// # Errors
/// `EINVAL` for a level above 3, `EPERM` for one above 0.
pub fn sys_iopl(args: &Args) -> Result<i64> {
    match args.uint(0) {
        0 => Ok(0),
        1..=3 => Err(Errno::EPERM),
        _ => Err(Errno::EINVAL),
    }
}

/// ioperm(from, count, turn_on): no thread has access to a port, so there is none to take away.
///
/// # Errors
/// `EINVAL` for no port, and for ports above the last one; `EPERM` if access is asked for.
pub fn sys_ioperm(args: &Args) -> Result<i64> {
    let end = args[0].checked_add(args[1]).filter(|&end| end > args[0] && end <= PORTS);
    match (end, args.int(2)) {
        (None, _) => Err(Errno::EINVAL),
        (Some(_), 0) => Ok(0),
        (Some(_), _) => Err(Errno::EPERM),
    }
}
