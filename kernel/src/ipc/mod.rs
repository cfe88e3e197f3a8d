//! IPC of System V: shared memory, semaphores and messages; and [message queues of POSIX](mqueue).
//!
//! A namespace has its own objects ([`objects`]). Objects of one kind are in one table ([`ids`])
//! under an ID, and most of them under a key. [`permission`] decides which callers may use an
//! object. [`limits`] has the limits for their number and size. A [`shm::Segment`] is a file in
//! memory without a name, a [`sem::Set`] some counters with the calls that wait for them, a
//! [`msg::Queue`] a list of messages.
//!
//! Callers: the handlers in [`calls`], and /proc. Everything here may sleep.
//!
//! Lock order: [`crate::mem::Space`] > an ID table > an object's state > a head's permission. User
//! memory is not accessed under any of these locks.

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

/// Returns the seconds since 1970, the unit of objects' times.
fn seconds() -> i64 {
    crate::time::wall().seconds
}

/// Returns the PID of the calling process, or 0 outside a process.
fn caller_pid() -> u32 {
    crate::task::try_current().map_or(0, |task| task.process().pid)
}
