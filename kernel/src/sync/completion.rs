//! An event that happens once.

use core::sync::atomic::{AtomicBool, Ordering};

use super::wait::WaitQueue;
use crate::Result;

/// An event that happens once, and the tasks that wait for it.
#[derive(Debug, Default)]
pub struct Completion {
    done: AtomicBool,
    waiters: WaitQueue,
}

impl Completion {
    /// Makes a completion that has not happened.
    pub const fn new() -> Self {
        Self { done: AtomicBool::new(false), waiters: WaitQueue::new() }
    }
    /// Marks the event as happened, and wakes the waiters. Any context.
    pub fn complete(&self) {
        self.done.store(true, Ordering::SeqCst);
        self.waiters.wake_all();
    }
    /// Returns whether the event has happened.
    pub fn is_complete(&self) -> bool {
        self.done.load(Ordering::SeqCst)
    }
    /// Sleeps until the event has happened.
    ///
    /// # Errors
    /// `ERESTARTSYS` if a signal is pending before that.
    pub fn wait(&self) -> Result<()> {
        self.waiters.wait_until(|| self.is_complete().then_some(()))
    }
    /// Sleeps until the event has happened; signals do not end the sleep.
    pub fn wait_in_any_case(&self) {
        self.waiters.wait_uninterruptible(|| self.is_complete().then_some(()));
    }
    /// Sleeps until the event has happened; only fatal signals end the sleep.
    ///
    /// # Errors
    /// `EINTR` if the thread is being killed.
    pub fn wait_killable(&self) -> Result<()> {
        self.waiters.wait_killable(|| self.is_complete().then_some(()))
    }
}
