//! Waiting and excluding.

mod completion;
pub mod deferred;
mod lock;
mod numbers;
mod wait;
#[cfg(test)]
mod wait_model;
mod weak_registry;

pub use completion::Completion;
pub use deferred::{Deferred, LetGo, ReleaseList, release};
pub use lock::{
    ArcSlot, IrqSpinLock, Mutex, MutexGuard, ReadGuard, RwLock, SpinLock, SpinLockGuard, WriteGuard,
};
pub use numbers::UniqueNumbers;
pub use wait::{PollWaiter, Slept, WaitQueue, Wake, Woken};
pub use weak_registry::{WeakRegistry, WeakRegistryGuard};
