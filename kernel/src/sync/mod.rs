//! Waiting and excluding.

mod completion;
pub mod deferred;
mod lock;
mod roll;
mod wait;
#[cfg(test)]
mod wait_model;

pub use completion::Completion;
pub use deferred::{Deferred, LetGo, ReleaseList, release};
pub use lock::{IrqSpinLock, Mutex, MutexGuard, ReadGuard, RwLock, SpinLock, SpinLockGuard, WriteGuard};
pub use roll::{Roll, RollGuard};
pub use wait::{PollWaiter, Slept, WaitQueue, Wake, Woken};
