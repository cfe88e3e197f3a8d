//! Waiting and excluding.

mod wait;

pub use wait::{PollWaiter, WaitQueue};
