//! Waiting and excluding.

mod completion;
mod lock;
mod wait;
#[cfg(test)]
mod wait_model;

pub use completion::Completion;
pub use lock::{IrqSpinLock, Mutex, MutexGuard, ReadGuard, RwLock, SpinLock, SpinLockGuard, WriteGuard};
pub use wait::{PollWaiter, Slept, WaitQueue, Wake, Woken};
