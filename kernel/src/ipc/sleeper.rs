//! One task that waits for an object's state to change, and gets the result of its request.
//!
//! Protocol: a sleeper is in a list of the object, under the object's lock. A waker removes the
//! sleeper from the list under that lock and answers it. A sleeper whose wait ends otherwise takes
//! the lock and removes itself from the list. An answer that arrived before then counts.

use crate::sync::{SpinLock, WaitQueue};
use crate::time::Deadline;
use crate::{Errno, Result};

/// See the module.
pub struct Sleeper<T> {
    answer: SpinLock<Option<T>>,
    answered: WaitQueue,
}

impl<T> Sleeper<T> {
    /// Makes a sleeper without an answer.
    pub const fn new() -> Self {
        Self { answer: SpinLock::new(None), answered: WaitQueue::new() }
    }

    /// Stores the answer and wakes the sleeper.
    pub fn answer(&self, answer: T) {
        *self.answer.lock() = Some(answer);
        self.answered.wake_all();
    }

    /// Takes the answer, if it has arrived.
    pub fn take(&self) -> Option<T> {
        self.answer.lock().take()
    }

    /// Sleeps until the answer arrives. Returns `None` if `deadline` comes first.
    ///
    /// # Errors
    /// `EINTR` if a signal comes.
    pub fn sleep(&self, deadline: Option<Deadline>) -> Result<Option<T>> {
        self.answered.wait_until_deadline(deadline, || self.take()).map_err(|_| Errno::EINTR)
    }
}
