//! personality(2): deviations of a process' programs from the usual behaviour. fork and execve keep
//! them.
//!
//! Only ADDR_NO_RANDOMIZE is supported, which debuggers request. Any other flag is refused with
//! `EINVAL`, whereas Linux accepts all.

use core::sync::atomic::Ordering;

use super::current;
use super::process::ADDR_NO_RANDOMIZE;
use crate::syscall::Args;
use crate::{Errno, Result};

/// The argument that only queries the value.
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
