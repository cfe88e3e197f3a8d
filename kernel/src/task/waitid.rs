//! waitid: waiting for children by ID, by group, and by pidfd.

use super::signal::{SigInfo, write_whole};
use super::wait::{ChildChange, Selector, WaitFlags, meant, wait_for};
use super::{current, pidfd};
use crate::fs::OpenFlags;
use crate::syscall::Args;
use crate::{Errno, Result};

/// waitid(which, id, info, options, rusage)
pub fn sys_waitid(args: &Args) -> Result<i64> {
    const P_ALL: i32 = 0;
    const P_PID: i32 = 1;
    const P_PGID: i32 = 2;
    const P_PIDFD: i32 = 3;
    let flags = WaitFlags::from_bits(args.uint(3)).ok_or(Errno::EINVAL)?;
    if !flags.intersects(WaitFlags::EXITED | WaitFlags::STOPPED | WaitFlags::CONTINUED) {
        return Err(Errno::EINVAL);
    }
    let id = args.int(1);
    let selector = match args.int(0) {
        P_ALL => Selector::Any,
        P_PID if id > 0 => Selector::One(meant(id)?),
        P_PGID if id == 0 => Selector::Group(current().process().group()),
        P_PGID if id > 0 => Selector::Group(meant(id)?),
        P_PIDFD if id >= 0 => return wait_for_opened(args, flags),
        _ => return Err(Errno::EINVAL),
    };
    tell(args, wait_for(selector, flags)?.as_ref())
}

/// Waits for the process of a pidfd. If the pidfd is non-blocking, fails with `EAGAIN` instead.
fn wait_for_opened(args: &Args, flags: WaitFlags) -> Result<i64> {
    let (process, blocks) = pidfd::with_file(args.fd(1), |open, file| {
        Ok((file.process(), !open.flags().contains(OpenFlags::NONBLOCK)))
    })?;
    let process = process.map_err(|_| Errno::ECHILD)?;
    let selector = Selector::Opened(process.pid, process.started);
    drop(process);
    let patience = if blocks { WaitFlags::empty() } else { WaitFlags::NOHANG };
    let found = wait_for(selector, flags | patience)?;
    if found.is_none() && !flags.contains(WaitFlags::NOHANG) {
        return Err(Errno::EAGAIN);
    }
    tell(args, found.as_ref())
}

/// Writes the result for waitid's caller.
fn tell(args: &Args, found: Option<&ChildChange>) -> Result<i64> {
    let info = match found {
        Some(outcome) => {
            SigInfo::child(outcome.code, outcome.pid, super::shown_ids(outcome.uid, 0).0, outcome.value)
        }
        None => SigInfo { number: 0, errno: 0, code: 0, pad: 0, fields: [0; 4] },
    };
    if let Some(outcome) = found {
        outcome.write_usage(args[4])?;
    }
    if args[2] != 0 {
        write_whole(&info, args[2])?;
    }
    Ok(0)
}
