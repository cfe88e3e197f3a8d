//! Locks.

pub use spin::Mutex as SpinLock;
pub use spin::Mutex;
