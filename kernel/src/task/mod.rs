//! Processes, threads and signals.
//!
//! A [`Task`] is a thread, a [`Process`] what the threads of a program share, the [registry](registry) who is
//! whose parent, group and session. Signals are in [`signal`].
//!
//! Lock order: registry > a process' spin locks > a process' `signals` (interrupt-safe) > a thread's `pending` >
//! `actions` > run queues.

pub mod calls;
pub mod credentials;
pub mod limits;
mod mask;
mod process;
pub mod registry;
mod session;
pub mod signal;
mod thread;
pub mod wait;

use alloc::sync::Arc;

pub use credentials::Credentials;
pub use limits::{Limit, Limits, Resource};
pub use process::{ExitStatus, Process, Report, Usage};
pub use registry::{count, find, find_task, for_each, group_is_orphaned, group_session};
pub use session::Session;
pub use signal::{SigInfo, SigSet, Signal, signal_group, signal_kernel, signal_session_leader};
pub use thread::Task;

/// A process or thread ID; 0 is no process'.
pub type Pid = u32;

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
    crate::hw::thread::with_current(|data| data.downcast_ref::<thread::Owner>()?.0.upgrade())
}

/// On the host no task runs.
#[cfg(not(target_os = "none"))]
pub fn try_current() -> Option<Arc<Task>> {
    None
}
