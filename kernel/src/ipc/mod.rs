//! IPC of System V: shared memory, semaphores and messages; and [message queues of POSIX](mqueue).
//!
//! A namespace has its own ([`objects`]). Objects of one kind are in one table ([`ids`]) under an
//! ID, and most of them under a key. [`permission`] decides who may use them, [`limits`] how many
//! and how large they may be. A [`shm::Segment`] is a file in memory without a name, a [`sem::Set`]
//! some counters with the calls that wait for them, a [`msg::Queue`] a list of messages.
//!
//! Callers: the handlers in [`calls`], and /proc. Everything here may sleep.
//!
//! Lock order: [`crate::mem::Space`] > an ID table > an object's state > a head's permission. No
//! user memory is touched under one of them.

pub mod calls;
pub mod ids;
pub mod limits;
pub mod mqueue;
pub mod msg;
pub mod objects;
pub mod permission;
pub mod sem;
pub mod shm;
mod sleeper;
pub mod undo;

/// Seconds since 1970, as the times of objects are told.
fn seconds() -> i64 {
    crate::time::wall().seconds
}

/// The calling process; 0 where none runs.
fn caller_pid() -> u32 {
    crate::task::try_current().map_or(0, |task| task.process().pid)
}
