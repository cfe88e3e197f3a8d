//! Telling a parent what its child did.

use alloc::sync::Arc;

use super::process::Process;
use super::signal::{SA_NOCLDSTOP, SigInfo, Signal, code};

/// Whether SIGCHLD for stopping and continuing is wanted by `parent`.
fn wants_job_control(parent: &Process) -> bool {
    parent.action(Signal::CHLD).flags & SA_NOCLDSTOP == 0
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
    if wants_job_control(&parent) {
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
