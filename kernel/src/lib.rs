//! The Freehold kernel.
//!
//! `kernel/layers` lists the layers, and docs/book/changing.md explains them. One folder is one
//! concept: [`mem`] joins the mm crates to processes, [`task`] is processes, threads and signals,
//! [`sched`] decides which thread runs, [`fs`] is files and names, [`tty`] is terminals,
//! [`syscall`] is the entry for system calls. Assembly and registers are in `freehold-arch`; there
//! is no `unsafe` here.
//!
//! Ground rules: the kernel is not preemptible (a task gives up its CPU where it blocks); interrupt
//! handlers never allocate, and take only interrupt-safe locks; user frames are touched through
//! user addresses or per-CPU windows only; a failed allocation is returned to the caller as an
//! `Errno`.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]
// Host builds use only code that has tests there. The target's build decides which code is dead.
#![cfg_attr(not(target_os = "none"), allow(dead_code, unused_imports))]

#[cfg(test)]
extern crate std;

mod backtraces;
pub mod block;
pub mod boot;
pub mod cgroup;
pub mod cmdline;
pub mod dev;
pub mod errno;
mod event_stream;
pub mod fault_inject;
pub mod fs;
pub mod host;
pub mod hw;
pub mod ipc;
pub mod klog;
pub mod mem;
pub mod owners;
mod report;
pub mod sched;
pub mod share;
pub mod socket;
pub mod stored;
pub mod swap;
pub mod sync;
pub mod syscall;
pub mod system;
pub mod task;
#[cfg(test)]
mod tests;
pub mod time;
pub mod tracing;
pub mod tty;
pub mod uring;
pub mod user;
pub mod volumes;

pub use errno::{Errno, Result};
