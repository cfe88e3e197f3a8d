//! Waiting and excluding.

mod lock;
mod wait;

pub use lock::{Mutex, SpinLock};
pub use wait::{PollWaiter, WaitQueue};
