//! Waiting for children: wait4, what waitid is made of; and what a parent is told.

use core::sync::atomic::Ordering;

use bitflags::bitflags;
use freehold_collections::Arc;

use super::process::{ExitStatus, Process, Report, Usage};
use super::signal::{SA_NOCLDSTOP, SigInfo, Signal, code};
use super::{Pid, current, registry};
use crate::syscall::Args;
use crate::user::UserPtr;
use crate::{Errno, Result};

bitflags! {
    /// WNOHANG and its family.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct WaitFlags: u32 {
        /// Do not sleep.
        const NOHANG = 1;
        /// Stopped children too (WUNTRACED).
        const STOPPED = 2;
        /// Ended children.
        const EXITED = 4;
        /// Continued children too.
        const CONTINUED = 8;
        /// Leave the child as it is.
        const NOWAIT = 0x0100_0000;
        /// Only children of this thread.
        const NOTHREAD = 0x2000_0000;
        /// Children whatever their exit signal.
        const ALL = 0x4000_0000;
        /// Only children with another exit signal than SIGCHLD.
        const CLONE = 0x8000_0000;
    }
}

/// Which children are waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Selector {
    Any,
    One(Pid),
    Group(Pid),
    /// The process with this ID that was made at this time.
    Opened(Pid, u64),
}

/// What a child did.
pub(super) struct Outcome {
    pub pid: Pid,
    pub uid: u32,
    /// As wait4 gives it.
    status: i32,
    /// CLD_*.
    pub code: i32,
    /// si_status.
    pub value: i32,
    pub usage: Usage,
}

impl Selector {
    fn chooses(self, child: &Process) -> bool {
        match self {
            Self::Any => true,
            Self::One(pid) => child.pid == pid,
            Self::Group(group) => child.group() == group,
            Self::Opened(pid, started) => child.pid == pid && child.started == started,
        }
    }
}

fn is_eligible(child: &Process, flags: WaitFlags) -> bool {
    let usual = child.exit_signal.load(Ordering::Relaxed) == u32::from(Signal::CHLD.number());
    flags.contains(WaitFlags::ALL) || usual != flags.contains(WaitFlags::CLONE)
}

/// What one of the children did, or `None` if none did anything yet.
fn look(parent: &Arc<Process>, selector: Selector, flags: WaitFlags) -> Result<Option<Outcome>> {
    let mut registry = registry::lock();
    let mut any = false;
    let mut zombie = None;
    let one = match selector {
        Selector::One(pid) | Selector::Opened(pid, _) => {
            registry.process(pid).filter(|child| child.parent_pid() == parent.pid)
        }
        _ => None,
    };
    let all = matches!(selector, Selector::Any | Selector::Group(_)).then(|| registry.children(parent));
    for child in one.into_iter().chain(all.into_iter().flatten()) {
        if !selector.chooses(child) || !is_eligible(child, flags) {
            continue;
        }
        any = true;
        if let Some(status) = child.exit_status() {
            if flags.contains(WaitFlags::EXITED) {
                zombie = Some((child.clone(), status));
                break;
            }
            continue;
        }
        let mut group = child.signals.lock();
        let (status, code, value) = match group.report {
            Some(Report::Stopped(signal)) if flags.contains(WaitFlags::STOPPED) => {
                let number = i32::from(signal.number());
                (number << 8 | 0x7f, code::CLD_STOPPED, number)
            }
            Some(Report::Continued) if flags.contains(WaitFlags::CONTINUED) => {
                (0xffff, code::CLD_CONTINUED, i32::from(Signal::CONT.number()))
            }
            _ => continue,
        };
        if !flags.contains(WaitFlags::NOWAIT) {
            group.report = None;
        }
        drop(group);
        let usage = child.usage();
        return Ok(Some(Outcome {
            pid: child.pid,
            uid: child.credentials().uid,
            status,
            code,
            value,
            usage,
        }));
    }
    let Some((child, status)) = zombie else {
        return if any { Ok(None) } else { Err(Errno::ECHILD) };
    };
    let (code, value) = match status {
        ExitStatus::Exited(value) => (code::CLD_EXITED, i32::from(value)),
        ExitStatus::Signaled(signal) => (code::CLD_KILLED, i32::from(signal.number())),
    };
    let mut usage = *child.past.lock();
    usage.add(&child.children_usage());
    let outcome = Outcome {
        pid: child.pid,
        uid: child.credentials().uid,
        status: status.wait_status(),
        code,
        value,
        usage,
    };
    if !flags.contains(WaitFlags::NOWAIT) {
        let removed = registry.remove_process(&child);
        drop(registry);
        parent.children_usage.lock().add(&usage);
        drop(removed);
    }
    Ok(Some(outcome))
}

/// What a child of the caller did. `None` with `NOHANG` where none did anything yet.
///
/// # Errors
/// `ECHILD`; `ERESTARTSYS` if a signal comes.
pub(super) fn wait_for(selector: Selector, flags: WaitFlags) -> Result<Option<Outcome>> {
    let process = current().process().clone();
    if flags.contains(WaitFlags::NOHANG) {
        return look(&process, selector, flags);
    }
    let found = process.child_changed.wait_until(|| look(&process, selector, flags).transpose())??;
    Ok(Some(found))
}

/// Wait until any child has ended; for the kernel's init. `None` where there is no child.
pub(super) fn reap_one() -> Option<(Pid, i32)> {
    let flags = WaitFlags::EXITED | WaitFlags::ALL;
    wait_for(Selector::Any, flags).ok().flatten().map(|outcome| (outcome.pid, outcome.status))
}

/// wait4(pid, status, options, rusage)
pub fn sys_wait4(args: &Args) -> Result<i64> {
    let flags = WaitFlags::from_bits_retain(args.uint(2));
    let allowed = WaitFlags::NOHANG
        | WaitFlags::STOPPED
        | WaitFlags::CONTINUED
        | WaitFlags::NOTHREAD
        | WaitFlags::ALL
        | WaitFlags::CLONE;
    if !allowed.contains(flags) {
        return Err(Errno::EINVAL);
    }
    let selector = match args.int(0) {
        i32::MIN => return Err(Errno::ESRCH),
        -1 => Selector::Any,
        0 => Selector::Group(current().process().group()),
        pid if pid < 0 => Selector::Group(pid.unsigned_abs()),
        pid => Selector::One(pid.unsigned_abs()),
    };
    let Some(outcome) = wait_for(selector, flags | WaitFlags::EXITED)? else { return Ok(0) };
    UserPtr::<i32>::new(args[1]).write_optional(&outcome.status)?;
    UserPtr::new(args[3]).write_optional(&super::usage::to_abi(&outcome.usage))?;
    Ok(i64::from(outcome.pid))
}

/// Tell the parent that `process` goes on after a stop.
pub(crate) fn tell_parent_of_continue(process: &Arc<Process>) {
    tell_parent(process, code::CLD_CONTINUED, i32::from(Signal::CONT.number()));
}

/// Tell the parent that `process` was stopped by `signal`.
pub(crate) fn tell_parent_of_stop(process: &Arc<Process>, signal: Signal) {
    tell_parent(process, code::CLD_STOPPED, i32::from(signal.number()));
}

fn tell_parent(process: &Arc<Process>, code: i32, status: i32) {
    let Some(parent) = process.parent() else { return };
    if parent.action(Signal::CHLD).flags & SA_NOCLDSTOP == 0 {
        parent.signal(child_info(process, code, status));
    }
    parent.child_changed.wake_all();
}

/// The siginfo of a SIGCHLD about `child`; times are in ticks of 10 ms.
pub(crate) fn child_info(child: &Process, code: i32, status: i32) -> SigInfo {
    const TICK: u64 = 10_000_000;
    let usage = child.usage();
    let uid = child.credentials().uid;
    SigInfo::child(code, child.pid, uid, status, usage.user / TICK, usage.system / TICK)
}
