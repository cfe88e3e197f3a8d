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
#[cfg(target_os = "none")]
pub mod clone;
pub mod credentials;
pub mod exec;
#[cfg(target_os = "none")]
pub mod exit;
#[cfg(target_os = "none")]
pub mod futex;
pub mod ids;
#[cfg(target_os = "none")]
pub mod init;
pub mod inspect;
pub mod limits;
mod mask;
#[cfg(target_os = "none")]
mod oom;
mod process;
#[cfg(target_os = "none")]
pub mod registers;
pub mod registry;
#[cfg(target_os = "none")]
pub mod reserve;
mod session;
pub mod signal;
#[cfg(target_os = "none")]
pub mod spawn;
mod thread;
pub mod timers;
pub mod usage;
#[cfg(target_os = "none")]
mod user_loop;
pub mod users;
pub mod wait;

use alloc::sync::Arc;

pub use capabilities::Capability;
pub use credentials::Credentials;
pub use limits::{Limit, Limits, Resource, check_file_size, file_size_left};
#[cfg(target_os = "none")]
pub use oom::{OomKill, badness, oom_kill};
pub use process::{ExitStatus, Process, Report, Usage};
pub use registry::{count, find, find_task, for_each, group_is_orphaned, group_session};
pub use session::Session;
pub use signal::{SigInfo, SigSet, Signal, signal_group, signal_kernel, signal_session_leader};
#[cfg(target_os = "none")]
pub use spawn::{FirstProgram, spawn_kernel};
pub use thread::Task;

/// A process or thread ID; 0 is no process'.
pub type Pid = u32;
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
    crate::hw::thread::with_current(Arc::clone)
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

/// Whether the running task ends before it sees user mode again. Cheap: the word that every signal sets is looked at first.
#[inline]
pub fn is_current_dying() -> bool {
    #[cfg(target_os = "none")]
    return crate::hw::thread::with_current(|task: &Arc<Task>| task.signal_pending() && task.is_dying())
        .unwrap_or(false);
    #[cfg(not(target_os = "none"))]
    false
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
