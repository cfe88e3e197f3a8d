//! Processes, threads and signals.
//!
//! A [`Task`] is a thread, a [`Process`] what the threads of a program share, the [registry](registry) who is
//! whose parent, group and session. Signals are in [`signal`].
//!
//! Lock order: registry > a process' spin locks > a process' `signals` (interrupt-safe) > a thread's `pending` >
//! `actions` > run queues.

#[cfg(target_os = "none")]
pub mod calls;
pub mod capabilities;
pub mod capability_calls;
pub mod clock;
#[cfg(target_os = "none")]
pub mod clone;
pub mod credentials;
pub mod exec;
#[cfg(target_os = "none")]
pub mod exit;
#[cfg(target_os = "none")]
mod fault;
pub mod file_size;
#[cfg(target_os = "none")]
pub mod futex;
pub mod ids;
#[cfg(target_os = "none")]
pub mod init;
pub mod inspect;
mod install;
pub mod limits;
mod mask;
#[cfg(target_os = "none")]
mod oom;
pub mod personality;
pub mod pidfd;
mod process;
#[cfg(target_os = "none")]
pub mod registers;
pub mod registry;
#[cfg(target_os = "none")]
pub mod reserve;
pub mod rseq;
#[cfg(target_os = "none")]
pub mod sections;
mod session;
pub mod signal;
#[cfg(target_os = "none")]
pub mod spawn;
mod thread;
pub mod timers;
pub mod trace;
#[cfg(target_os = "none")]
mod upper;
pub mod usage;
pub mod users;
pub mod uts;
pub mod wait;
pub mod waitid;

pub use crate::sched::is_current_dying;
pub use capabilities::Capability;
pub use credentials::Credentials;
#[cfg(target_os = "none")]
pub use fault::{Fault, handle_kernel_fault, handle_user_fault};
pub use file_size::{check_file_size, file_size_left};
use freehold_collections::Arc;
pub use install::{install, install_pair};
pub use limits::{Limit, Limits, Resource};
pub use mask::mask_at;
#[cfg(target_os = "none")]
pub use oom::{OomKill, badness, oom_kill, oom_kills, out_of_memory};
pub use process::{ExitStatus, Process, Report, UndoSlot, Usage};
pub use registry::{count, find, find_task, for_each, group_is_orphaned, group_session};
pub use session::Session;
pub use signal::{
    SigInfo, SigSet, Signal, signal_broken_pipe, signal_group, signal_kernel, signal_session_leader,
};
#[cfg(target_os = "none")]
pub use spawn::FirstProgram;
pub use thread::Task;
#[cfg(target_os = "none")]
use upper::above;
#[cfg(target_os = "none")]
pub use upper::{Above, set_above};

pub use signal::Pid;
/// Process 1: the first that there is.
pub const INIT: Pid = 1;

/// The running task.
///
/// # Panics
/// Before this CPU takes part in scheduling.
pub fn current() -> Arc<Task> {
    try_current().expect("a task runs")
}

/// The running task, if this CPU takes part in scheduling.
#[cfg(target_os = "none")]
pub fn try_current() -> Option<Arc<Task>> {
    crate::hw::thread::with_current(|task: &Arc<Task>| task.clone())
}

/// Look at the running task without keeping it: cheaper than [`current`].
///
/// # Panics
/// Before this CPU takes part in scheduling.
#[cfg(target_os = "none")]
#[inline]
pub fn with_current<R>(look: impl FnOnce(&Arc<Task>) -> R) -> R {
    crate::hw::thread::with_current(look).expect("a task runs")
}

/// On the host no task runs.
#[cfg(not(target_os = "none"))]
pub fn with_current<R>(_look: impl FnOnce(&Arc<Task>) -> R) -> R {
    panic!("no task runs on the host")
}

/// On the host no task runs.
#[cfg(not(target_os = "none"))]
pub fn try_current() -> Option<Arc<Task>> {
    None
}
