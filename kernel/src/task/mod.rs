//! Processes, threads and signals.
//!
//! A [`Task`] is a thread, a [`Process`] the state that the threads of a program share. The
//! [registry](registry) records parents, groups and sessions. Signals are in [`signal`].
//!
//! Lock order: registry > a process' spin locks > a process' `signals` (interrupt-safe) > a
//! thread's `pending` > `actions` > run queues.

pub mod audit;
pub mod calls;
pub mod capabilities;
pub mod capability_calls;
pub mod cgroup_members;
pub mod clock;
pub mod clone;
pub mod credentials;
pub mod dump;
pub mod exec;
pub mod exit;
mod exit_status;
mod fault;
mod file_rights;
pub mod file_size;
pub mod freeze;
pub mod futex;
mod helper;
pub mod ids;
pub mod init;
pub mod inspect;
mod install;
pub mod io_context;
pub mod io_ports;
mod kept;
pub mod keys;
pub mod limits;
mod mask;
mod meter;
pub mod namespaces;
mod oom;
pub mod payer;
pub mod persona;
pub mod personality;
pub mod pidfd;
pub mod pidns;
mod process;
pub mod quota;
pub mod reboot;
pub mod registers;
pub mod registry;
pub mod release;
pub mod reserve;
pub mod rseq;
pub mod seccomp;
pub mod sections;
mod session;
pub mod signal;
pub mod spawn;
mod thread;
pub mod timers;
pub mod trace;
mod upper;
pub mod usage;
pub mod userns;
pub mod users;
pub mod uts;
pub mod wait;
pub mod waitid;

pub use crate::sched::is_current_dying;
use crate::{Errno, Result};
pub use capabilities::Capability;
pub use credentials::Credentials;
pub use fault::{ProgramFault, handle_kernel_fault, handle_user_fault, wait_for_monitor};
pub use file_rights::drop_rights;
pub use file_size::{check_file_size, file_size_left};
use freehold_collections::Arc;
pub use helper::{Helper, HelperKind, spawn_helper};
pub use install::{install, install_pair};
pub use limits::{Limit, Limits, Resource};
pub use mask::mask_at;
pub use oom::{OomKill, badness, kill_charged, oom_kill, oom_kills, out_of_memory};
pub use process::{ExitStatus, INCARNATION_BITS, Process, UndoSlot, Usage, WaitReport};
pub use registry::{count, find, find_task, for_each, group_is_orphaned, group_session};
pub use session::Session;
pub use signal::{
    SigInfo, SigSet, Signal, signal_broken_pipe, signal_group, signal_kernel, signal_session_leader,
};
pub use spawn::FirstProgram;
pub use thread::Task;
use upper::above;
pub use upper::{Above, set_above};

pub use signal::Pid;
/// Process 1, the first process.
pub const INIT: Pid = 1;

/// Returns the running task.
///
/// # Panics
/// Before this CPU takes part in scheduling.
pub fn current() -> Arc<Task> {
    try_current().expect("a task runs")
}

/// Returns the running task, if this CPU takes part in scheduling.
pub fn try_current() -> Option<Arc<Task>> {
    try_with_current(|task| task.clone())
}

/// Calls `look` with the running task. This is cheaper than [`current`].
///
/// # Panics
/// Before this CPU takes part in scheduling.
#[inline]
pub fn with_current<R>(look: impl FnOnce(&Arc<Task>) -> R) -> R {
    try_with_current(look).expect("a task runs")
}

/// Whether the running task's process has an effective capability.
///
/// # Panics
/// Before this CPU takes part in scheduling.
pub fn may(capability: Capability) -> bool {
    with_current(|task| task.with_credentials(|own| own.may(capability)))
}

/// Whether the running task's process has an effective capability for objects that `owner` owns.
///
/// # Panics
/// Before this CPU takes part in scheduling.
pub fn may_in(owner: &userns::UserNs, capability: Capability) -> bool {
    with_current(|task| task.with_credentials(|own| own.may_in(owner, capability)))
}

/// Returns the IDs of a user and a group as seen in the running task's user namespace.
pub fn shown_ids(uid: u32, gid: u32) -> (u32, u32) {
    let told = try_with_current(|task| {
        if !task.process().has_other_ids() {
            return (uid, gid);
        }
        task.with_credentials(|own| (own.user_ns.shown_user(uid), own.user_ns.shown_group(gid)))
    });
    told.unwrap_or((uid, gid))
}

/// Returns the kernel's ID for an ID that the running task's program passed.
///
/// # Errors
/// `EINVAL` if its user namespace does not map the ID.
pub fn kernel_id(kind: userns::IdKind, id: u32) -> Result<u32> {
    let user_ns = with_current(|task| task.process().credentials().user_ns.clone());
    user_ns.kernel_id(kind, id).ok_or(Errno::EINVAL)
}

/// [`with_current`], if this CPU takes part in scheduling.
#[inline]
pub fn try_with_current<R>(look: impl FnOnce(&Arc<Task>) -> R) -> Option<R> {
    crate::hw::thread::with_current(look)
}
