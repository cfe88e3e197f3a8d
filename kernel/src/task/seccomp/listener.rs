//! Listeners: a process that answers another one's system calls (seccomp_unotify(2)).
//!
//! A filter that was installed with SECCOMP_FILTER_FLAG_NEW_LISTENER shares a [`Listener`] with one
//! open file. A thread whose call the filter notifies of enters a [`Notification`] and sleeps. The
//! holder of the file receives it, and answers: with a result, or that the call be made.
//!
//! A notification is *new*, *received* and then *answered*. Only its thread removes it: when it has
//! the answer, or when a signal interrupts it. So while a notification is in the list, its thread
//! sleeps, and its process' files are those that the call would find. A descriptor is therefore
//! added by the holder of the file, and not by the thread as on Linux.
//!
//! The list ends at either side: when the file is closed, all notifications are answered with
//! `ENOSYS`; when no thread has the filter, the file reports a hang-up.
//!
//! **Lock.** [`Listener::state`] is taken before the lock of a table of files.
//!
//! Source: seccomp_unotify(2); Linux kernel/seccomp.c.

use core::fmt;

use freehold_bpf::CallData;
use freehold_collections::{Arc, Vec, reserve};

use crate::fs::FileTable;
use crate::hw;
use crate::sync::{SpinLock, WaitQueue};
use crate::task::Pid;
use crate::{Errno, Result};

/// The answer to a notification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The call is made.
    Continue,
    /// The call is not made, and this is its result.
    Result(i64),
}

/// The answer to calls for which no file is open.
pub const NO_LISTENER: Answer = Answer::Result(Errno::ENOSYS.to_return_value());

/// The progress of a notification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    New,
    Received,
    Answered(Answer),
}

/// The thread that asks, and what its listener may need of it.
#[derive(Clone)]
pub struct Asking {
    /// The thread's ID.
    pub tid: Pid,
    /// The call.
    pub data: CallData,
    /// The descriptors of its process, and the process' limit for them.
    pub files: Arc<FileTable>,
    pub limit: usize,
}

/// A thread's call that waits for an answer.
pub struct Notification {
    id: u64,
    pub asking: Asking,
    pub phase: Phase,
    /// The queue in which the thread sleeps.
    answered: Arc<WaitQueue>,
}

impl Notification {
    /// Answers the call.
    pub fn answer(&mut self, answer: Answer) {
        self.phase = Phase::Answered(answer);
        self.answered.wake_all();
    }
}

/// State of a listener.
pub struct Listening {
    /// Whether the file is open.
    is_open: bool,
    /// Whether any thread has the filter.
    pub has_threads: bool,
    next: u64,
    /// Notifications that were entered and not received. As on Linux, one whose thread was
    /// interrupted counts on: its receiver gets `ENOENT`.
    unreceived: u64,
    /// In the order of their numbers.
    notifications: Vec<Notification>,
}

impl Listening {
    fn place_of(&self, id: u64) -> Result<usize> {
        self.notifications.binary_search_by_key(&id, |notification| notification.id).or(Err(Errno::ENOENT))
    }

    fn find(&mut self, id: u64) -> Result<&mut Notification> {
        let place = self.place_of(id)?;
        Ok(&mut self.notifications[place])
    }

    /// Returns a notification that was received and is not answered.
    ///
    /// # Errors
    /// `ENOENT` if there is none with this number, `EINPROGRESS` if it is not in this phase.
    pub fn received(&mut self, id: u64) -> Result<&mut Notification> {
        let found = self.find(id)?;
        if found.phase == Phase::Received { Ok(found) } else { Err(Errno::EINPROGRESS) }
    }

    /// Whether a notification is in this phase.
    pub fn is_any(&self, phase: Phase) -> bool {
        self.notifications.iter().any(|notification| notification.phase == phase)
    }

    /// Takes the permission to receive a notification; `None` if a receiver has to wait.
    pub fn take_turn(&mut self) -> Option<()> {
        let is_any = self.unreceived > 0;
        self.unreceived = self.unreceived.saturating_sub(1);
        (is_any || !self.has_threads).then_some(())
    }

    /// Receives the oldest new notification. Returns its number.
    ///
    /// # Errors
    /// `ENOENT` if there is none.
    pub fn receive(&mut self) -> Result<(u64, &Asking)> {
        let mut all = self.notifications.iter_mut();
        let new = all.find(|notification| notification.phase == Phase::New).ok_or(Errno::ENOENT)?;
        new.phase = Phase::Received;
        Ok((new.id, &new.asking))
    }

    /// Makes a notification new again, whose receiver could not be told of it.
    pub fn put_back(&mut self, id: u64) {
        let Ok(notification) = self.received(id) else { return };
        notification.phase = Phase::New;
        notification.answered.wake_all();
        self.unreceived += 1;
    }
}

/// Whether a thread whose notification was received sleeps through signals that do not end it
/// (SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnceReceived {
    Interruptible,
    Killable,
}

/// A filter's side and the file's side of notifications.
pub struct Listener {
    pub state: SpinLock<Listening>,
    /// The queue of receivers and of programs that poll.
    pub changed: Arc<WaitQueue>,
    once_received: OnceReceived,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}

impl Listener {
    /// Makes a listener of a filter that has no thread yet.
    pub fn new(once_received: OnceReceived) -> Arc<Self> {
        let mut next = [0; size_of::<u64>()];
        hw::fill_random(&mut next);
        let state = Listening {
            is_open: true,
            has_threads: true,
            // Far from the end, so that numbers ascend.
            next: u64::from_le_bytes(next) >> 1,
            unreceived: 0,
            notifications: Vec::new(),
        };
        let changed = reserve::arc(WaitQueue::new());
        reserve::arc(Self { state: SpinLock::new(state), changed, once_received })
    }

    /// Whether the file is open.
    pub fn is_open(&self) -> bool {
        self.state.lock().is_open
    }

    /// Tells the file that no thread has the filter any more.
    pub fn leave(&self) {
        self.state.lock().has_threads = false;
        self.changed.wake_all();
    }

    /// Answers all calls with `ENOSYS`, from now on: the file was closed.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.is_open = false;
        for notification in state.notifications.iter() {
            notification.answered.wake_all();
        }
    }

    /// Sends the current thread's call to the file, and waits for the answer. A closed file answers
    /// `ENOSYS`.
    ///
    /// # Errors
    /// `ERESTARTSYS` for a signal, `EINTR` if the thread is killed, `ENOMEM`.
    pub fn ask(&self, asking: Asking) -> Result<Answer> {
        let answered = reserve::arc(WaitQueue::new());
        let id = {
            let mut state = self.state.lock();
            if !state.is_open {
                return Ok(NO_LISTENER);
            }
            let id = state.next;
            let answered = answered.clone();
            state.notifications.try_push(Notification { id, asking, phase: Phase::New, answered })?;
            state.next += 1;
            state.unreceived += 1;
            id
        };
        self.changed.wake_all();
        let answer = self.wait_for_answer(id, &answered);
        let removed = {
            let mut state = self.state.lock();
            let place = state.place_of(id);
            place.map(|place| state.notifications.remove(place))
        };
        drop(removed);
        answer
    }

    fn wait_for_answer(&self, id: u64, answered: &WaitQueue) -> Result<Answer> {
        loop {
            let is_killable = self.is_killable(id);
            let look = || {
                let mut state = self.state.lock();
                let is_open = state.is_open;
                match state.find(id).ok()?.phase {
                    Phase::Answered(answer) => Some(Some(answer)),
                    _ if !is_open => Some(Some(NO_LISTENER)),
                    // It could not be written to the receiver's memory.
                    Phase::New if is_killable => Some(None),
                    _ => None,
                }
            };
            let found = if is_killable { answered.wait_killable(look) } else { answered.wait_until(look) };
            match found {
                Ok(Some(answer)) => return Ok(answer),
                Err(error) if is_killable || !self.is_killable(id) => return Err(error),
                Ok(None) | Err(_) => {}
            }
        }
    }

    fn is_killable(&self, id: u64) -> bool {
        self.once_received == OnceReceived::Killable && self.state.lock().received(id).is_ok()
    }
}
