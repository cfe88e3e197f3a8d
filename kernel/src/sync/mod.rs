//! Waiting and mutual exclusion.

mod completion;
pub mod deferred;
mod kept;
#[cfg(test)]
mod kept_model;
mod lock;
mod numbers;
#[cfg(test)]
mod per_cpu_rw_model;
mod ready_list;
mod user_counts;
mod wait;
#[cfg(test)]
mod wait_model;
mod weak_map;
mod weak_registry;

pub use completion::Completion;
pub use deferred::{Deferred, LetGo, ReleaseList, release};
pub use kept::{Keeps, Kept, Shared};
pub use lock::{
    ArcSlot, IrqSpinLock, Mutex, MutexGuard, PerCpuRwGuard, PerCpuRwLock, ReadGuard, RwLock, Sleeping,
    SleepingGuard, SpinLock, SpinLockGuard, WriteGuard,
};
pub use numbers::UniqueNumbers;
pub use ready_list::ReadyList;
pub use user_counts::{UserCharge, UserCounts};
pub use wait::{News, PollWaiter, Slept, WaitQueue, Wake, Woken, earlier};
pub use weak_map::WeakMap;
pub use weak_registry::{WeakRegistry, WeakRegistryGuard};
