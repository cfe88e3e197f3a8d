//! A queue that threads send to and receive from.
//!
//! A thread that waits is in line in the queue's [state](super::state), and sleeps without the
//! lock. The thread that serves it removes it from the line and answers it, under the lock. A
//! thread whose wait ends otherwise takes the lock and leaves the line. An answer that arrived
//! before then counts.

use core::sync::atomic::{AtomicBool, Ordering};

use freehold_collections::{Arc, reserve};

use super::notify::{Registration, Registrations};
use super::state::{Message, QueueShape, QueueState, SendAnswer, Sent};
use crate::fs::{Blocking, Ready};
use crate::sync::{PollWaiter, SpinLock, WaitQueue};
use crate::task::current;
use crate::time::Deadline;
use crate::{Errno, Result, sched};

/// Number of messages that are freed before other tasks may run, when the queue ends.
const ENDED_AT_ONCE: usize = 64;

/// How a call waits.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// Whether the call waits at all.
    pub blocking: Blocking,
    /// The end of the wait; `None` for no limit.
    pub deadline: Option<Deadline>,
    /// The nice value of the thread.
    pub nice: i32,
}

/// A queue's figures that are visible to users of IPC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Figures {
    /// Number of messages.
    pub messages: usize,
    /// Bytes of all messages.
    pub bytes: u64,
}

struct Locked {
    state: QueueState,
    registrations: Registrations,
}

/// See the module.
pub struct PosixQueue {
    shape: QueueShape,
    locked: SpinLock<Locked>,
    /// Woken when messages are added or room becomes free.
    changed: Arc<WaitQueue>,
    /// Whether a process is registered, so that closing has to check. Changes under the lock.
    has_registration: AtomicBool,
}

/// Returns the error of a sleep that ended without an answer.
fn unanswered<T>(slept: Result<Option<T>>) -> Errno {
    match slept {
        Err(_) => Errno::ERESTARTSYS,
        Ok(_) => Errno::ETIMEDOUT,
    }
}

impl PosixQueue {
    /// Makes an empty queue.
    pub fn new(shape: QueueShape) -> Self {
        let locked = Locked { state: QueueState::new(shape), registrations: Registrations::default() };
        Self {
            shape,
            locked: SpinLock::new(locked),
            changed: reserve::arc(WaitQueue::new()),
            has_registration: AtomicBool::new(false),
        }
    }

    /// Returns the limits of the queue.
    pub const fn shape(&self) -> QueueShape {
        self.shape
    }

    /// Returns the queue's current use.
    pub fn figures(&self) -> Figures {
        let locked = self.locked.lock();
        Figures { messages: locked.state.len(), bytes: locked.state.bytes() }
    }

    /// Sends `message`, which is no longer than [`QueueShape::bytes`].
    ///
    /// # Errors
    /// `EAGAIN`, `ETIMEDOUT`, `ENOMEM`; `ERESTARTSYS` if a signal comes.
    pub fn send(&self, mut message: Message, wait: Wait) -> Result<()> {
        loop {
            let mut locked = self.locked.lock();
            // Messages and registrations are dropped after the lock is released.
            let full = match locked.state.send(message) {
                Sent::First => {
                    let due = locked.registrations.take_due();
                    self.has_registration.store(false, Ordering::Relaxed);
                    drop(locked);
                    self.changed.wake_all();
                    if let Some(due) = due {
                        due.tell();
                    }
                    return Ok(());
                }
                Sent::Queued => {
                    drop(locked);
                    self.changed.wake_all();
                    return Ok(());
                }
                Sent::HandedOver => return Ok(()),
                Sent::NoMemory(message) => {
                    drop(locked);
                    drop(message);
                    return Err(Errno::ENOMEM);
                }
                Sent::Full(message) => message,
            };
            if wait.blocking == Blocking::Never {
                drop(locked);
                drop(full);
                return Err(Errno::EAGAIN);
            }
            let lined_up = locked.state.wait_for_room(full, wait.nice);
            drop(locked);
            let Ok((turn, sender)) = lined_up else { return Err(Errno::ENOMEM) };
            let slept = sender.sleeper.sleep(wait.deadline);
            let answer = match slept {
                Ok(Some(answer)) => Some(answer),
                slept => {
                    let left = self.locked.lock().state.leave_senders(turn);
                    drop(left);
                    match sender.sleeper.take() {
                        Some(answer) => Some(answer),
                        None => return Err(unanswered(slept)),
                    }
                }
            };
            let again = sender.message.lock().take();
            match (answer, again) {
                (Some(SendAnswer::Again), Some(back)) => message = back,
                _ => return Ok(()),
            }
        }
    }

    /// Receives the oldest message of the highest priority.
    ///
    /// # Errors
    /// `EAGAIN`, `ETIMEDOUT`, `ENOMEM`; `ERESTARTSYS` if a signal comes.
    pub fn receive(&self, wait: Wait) -> Result<Message> {
        let mut locked = self.locked.lock();
        if let Some(message) = locked.state.receive() {
            let has_room = !locked.state.is_full();
            drop(locked);
            if has_room {
                self.changed.wake_all();
            }
            return Ok(message);
        }
        if wait.blocking == Blocking::Never {
            return Err(Errno::EAGAIN);
        }
        let (turn, receiver) = locked.state.wait_for_message(wait.nice)?;
        drop(locked);
        match receiver.sleeper.sleep(wait.deadline) {
            Ok(Some(message)) => Ok(message),
            slept => {
                let left = self.locked.lock().state.leave_receivers(turn);
                drop(left);
                receiver.sleeper.take().ok_or(unanswered(slept))
            }
        }
    }

    /// Registers the calling process. It is notified of the next message that arrives at the empty
    /// queue while no thread waits for one.
    ///
    /// # Errors
    /// `EBUSY` if a process is registered.
    pub fn register(&self, new: Registration) -> Result<()> {
        let refused = {
            let mut locked = self.locked.lock();
            let refused = locked.registrations.register(new);
            self.has_registration.store(true, Ordering::Relaxed);
            refused
        };
        // The previous registration is dropped without the lock, and so is a refused one.
        refused.map(drop).map_err(|_| Errno::EBUSY)
    }

    /// Ends the calling process' registration. Returns whether there was one.
    pub fn unregister(&self) -> bool {
        if !self.has_registration.load(Ordering::Relaxed) {
            return false;
        }
        let caller = current().process().clone();
        let removed = {
            let mut locked = self.locked.lock();
            let removed = locked.registrations.take_of(&caller);
            if removed.is_some() {
                self.has_registration.store(false, Ordering::Relaxed);
            }
            removed
        };
        removed.is_some_and(|removed| {
            removed.tell_removed();
            true
        })
    }

    /// Returns the registration that the queue's file shows: SIGEV_*, signal and process; 0 without
    /// a registration.
    pub fn told_registration(&self) -> (i32, i32, u32) {
        self.locked.lock().registrations.told()
    }

    /// Returns the events that are ready now; see [`crate::fs::File::poll`].
    pub fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        if let Some(waiter) = waiter {
            waiter.register(&self.changed);
        }
        let locked = self.locked.lock();
        let mut ready = Ready::empty();
        ready.set(Ready::IN, !locked.state.is_empty());
        ready.set(Ready::OUT, !locked.state.is_full());
        ready
    }
}

impl Drop for PosixQueue {
    fn drop(&mut self) {
        let state = &mut self.locked.get_mut().state;
        let mut ended = 0;
        while let Some(text) = state.take_any() {
            drop(text);
            ended += 1;
            if ended % ENDED_AT_ONCE == 0 {
                sched::cond_resched();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use freehold_collections::WipedBytes;

    use super::*;

    const NOW: Wait = Wait { blocking: Blocking::Never, deadline: None, nice: 0 };

    fn message(priority: u32, text: &[u8]) -> Message {
        Message { priority, text: WipedBytes::try_from_slice(text).unwrap() }
    }

    #[test]
    fn what_does_not_wait_fails_at_once_and_readiness_says_so_before() {
        let queue = PosixQueue::new(QueueShape { messages: 2, bytes: 16 });
        assert_eq!(queue.receive(NOW), Err(Errno::EAGAIN));
        assert_eq!(queue.poll(None), Ready::OUT);
        queue.send(message(1, b"one"), NOW).unwrap();
        assert_eq!(queue.poll(None), Ready::IN | Ready::OUT);
        queue.send(message(2, b"three"), NOW).unwrap();
        assert_eq!(queue.poll(None), Ready::IN);
        assert_eq!(queue.send(message(3, b"no"), NOW), Err(Errno::EAGAIN));
        assert_eq!(queue.figures(), Figures { messages: 2, bytes: 8 });
        assert_eq!(queue.receive(NOW), Ok(message(2, b"three")));
        assert_eq!(queue.receive(NOW), Ok(message(1, b"one")));
    }
}
