//! One task that waits for an object's state to change, and is told what became of its request.
//!
//! Protocol: a sleeper is in a list of the object, under the object's lock. A waker takes it out of
//! the list under that lock and answers it. A sleeper whose wait ends otherwise takes the lock, and
//! then itself out of the list; an answer that came until then counts.

use crate::sync::{SpinLock, WaitQueue};
use crate::{Errno, Result};

/// See the module.
pub struct Sleeper<T> {
    answer: SpinLock<Option<T>>,
    answered: WaitQueue,
}

impl<T> Sleeper<T> {
    /// A sleeper without an answer.
    pub const fn new() -> Self {
        Self { answer: SpinLock::new(None), answered: WaitQueue::new() }
    }

    /// Answers and wakes it.
    pub fn answer(&self, answer: T) {
        *self.answer.lock() = Some(answer);
        self.answered.wake_all();
    }

    /// The answer, if it came.
    pub fn take(&self) -> Option<T> {
        self.answer.lock().take()
    }

    /// Sleeps until the answer comes, or the clock of [`crate::time::now`] shows `deadline`: then
    /// `None`.
    ///
    /// # Errors
    /// `EINTR` if a signal comes.
    pub fn sleep(&self, deadline: Option<u64>) -> Result<Option<T>> {
        self.answered.wait_until_deadline(deadline, || self.take()).map_err(|_| Errno::EINTR)
    }
}
