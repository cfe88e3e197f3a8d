//! personality(2): deviations of a process' programs from the usual behaviour, kept by fork and
//! execve.
//!
//! Only ADDR_NO_RANDOMIZE is there, which debuggers ask for. Another is refused with `EINVAL`,
//! where Linux takes all.

use core::sync::atomic::Ordering;

use super::current;
use super::process::ADDR_NO_RANDOMIZE;
use crate::syscall::Args;
use crate::{Errno, Result};

/// Asks for what there is, and changes nothing.
const QUERY: u32 = u32::MAX;

/// personality(persona)
pub fn sys_personality(args: &Args) -> Result<i64> {
    let task = current();
    let place = &task.process().personality;
    let (persona, old) = (args.uint(0), place.load(Ordering::Relaxed));
    if persona != QUERY {
        if persona & !ADDR_NO_RANDOMIZE != 0 {
            return Err(Errno::EINVAL);
        }
        place.store(persona, Ordering::Relaxed);
    }
    Ok(old.into())
}
