//! /proc/PID/oom_score_adj, and oom_adj, its older scale: they make the OOM killer choose a process
//! sooner or later.
//!
//! A process may always raise its score. To lower it below the value that CAP_SYS_RESOURCE set
//! last, it needs that capability. On the old scale it needs the capability to lower the present
//! value. Otherwise a program could have other processes killed for the memory that it uses (Linux:
//! `__set_oom_adj` in fs/proc/base.c).

use core::sync::atomic::Ordering;

use crate::task::{self, Capability, Process};
use crate::{Errno, Result};

/// Maximum of oom_score_adj's scale.
const MOST: i32 = 1000;
/// The scale of oom_adj: -17 for never, else -16 to 15.
const OLD_NEVER: i32 = -17;
const OLD_MOST: i32 = 15;

/// Returns the value that oom_adj shows.
pub(super) fn shown(process: &Process) -> i32 {
    match process.oom_score_adj.load(Ordering::Relaxed) {
        MOST => OLD_MOST,
        now => now * -OLD_NEVER / MOST,
    }
}

fn number(bytes: &[u8]) -> Result<i32> {
    let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
    text.trim().parse().map_err(|_| Errno::EINVAL)
}

fn is_privileged() -> bool {
    task::may(Capability::SysResource)
}

/// Handles a write to oom_score_adj.
///
/// # Errors
/// `EINVAL` for anything but a number of the scale, `EACCES` without the capability.
pub(super) fn set(process: &Process, bytes: &[u8]) -> Result<()> {
    let value = number(bytes)?;
    if !(-MOST..=MOST).contains(&value) {
        return Err(Errno::EINVAL);
    }
    if is_privileged() {
        process.oom_score_adj_least.store(value, Ordering::Relaxed);
    } else if value < process.oom_score_adj_least.load(Ordering::Relaxed) {
        return Err(Errno::EACCES);
    }
    process.oom_score_adj.store(value, Ordering::Relaxed);
    Ok(())
}

/// Handles a write to oom_adj.
///
/// # Errors
/// As [`set`].
pub(super) fn set_by_old_scale(process: &Process, bytes: &[u8]) -> Result<()> {
    let value = match number(bytes)? {
        OLD_MOST => MOST,
        value @ OLD_NEVER..OLD_MOST => value * MOST / -OLD_NEVER,
        _ => return Err(Errno::EINVAL),
    };
    if value < process.oom_score_adj.load(Ordering::Relaxed) && !is_privileged() {
        return Err(Errno::EACCES);
    }
    process.oom_score_adj.store(value, Ordering::Relaxed);
    Ok(())
}
