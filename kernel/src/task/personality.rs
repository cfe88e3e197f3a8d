//! personality(2): deviations of a process' programs from the usual behaviour. fork and execve keep
//! them. Every value can be set, as on Linux, and these flags have an effect:
//!
//! - UNAME26 and the personality PER_LINUX32 change the answers of uname(2).
//! - ADDR_NO_RANDOMIZE keeps the addresses of programs the same.
//! - READ_IMPLIES_EXEC makes memory that can be read executable: mmap, mprotect, brk, shmat.
//! - STICKY_TIMEOUTS keeps select, pselect and ppoll from updating their time-outs.
//!
//! A program of 64 bits begins without READ_IMPLIES_EXEC, and one that gains rights without all
//! flags that change its addresses. MMAP_PAGE_ZERO has no effect, because page 0 can never be
//! mapped here, and neither has ADDR_COMPAT_LAYOUT: mappings grow downwards in any case. Other
//! flags have no effect on programs of 64 bits on Linux either.
//!
//! The threads of a process share the value; on Linux each has its own.
//!
//! The flags are in [`persona`](super::persona).

use core::sync::atomic::Ordering;

pub use super::persona::*;
use super::{current, with_current};
use crate::Result;
use crate::syscall::Args;

/// The argument that only queries the value.
const QUERY: u32 = u32::MAX;

/// personality(persona)
pub fn sys_personality(args: &Args) -> Result<i64> {
    let task = current();
    let place = &task.process().personality;
    let persona = args.uint(0);
    let old =
        if persona == QUERY { place.load(Ordering::Relaxed) } else { place.swap(persona, Ordering::Relaxed) };
    Ok(old.into())
}

fn of_caller() -> u32 {
    with_current(|task| task.process().personality.load(Ordering::Relaxed))
}

/// Whether the calling process has set `flag`.
pub fn has(flag: u32) -> bool {
    of_caller() & flag != 0
}

/// Whether uname(2) shall name a 32-bit machine to the calling process.
pub fn is_linux32() -> bool {
    of_caller() & PER_MASK == PER_LINUX32
}
