//! Message queues of System V.
//!
//! The first waiting receiver that accepts a message's type gets it. Without one the message is
//! appended to the queue. A sender waits while the queue is full; whenever there is room, the
//! waiting senders whose message fits try again, first come first served.
//!
//! Texts are wiped before their memory is freed.

use core::ops::Bound;

use freehold_collections::{Arc, Map, VecDeque, WipedBytes, reserve};

use super::ids::{Head, Object, WantedObject};
use super::limits::{MSGMNB, MSGMNI};
use super::permission::{self, UserPermission};
use super::sleeper::Sleeper;
use super::{caller_pid, seconds};
use crate::sync::{Mutex, MutexGuard};
use crate::task::{Capability, Credentials};
use crate::{Errno, Result};

/// A message.
pub struct QueuedMessage {
    /// The type of the message, 1 or more.
    pub kind: i64,
    /// Its text.
    pub text: WipedBytes,
}

/// Selects the message that a receiver takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Selection {
    /// The first.
    Any,
    /// The first of this type.
    Equal(i64),
    /// The first of another type.
    Except(i64),
    /// The first of the lowest type that is not above this.
    UpTo(i64),
    /// A copy of the message with this index in the queue. The message stays (MSG_COPY).
    CopyAt(i64),
}

impl Selection {
    /// Whether the receiver accepts an arriving message of the type `kind`.
    fn takes(self, kind: i64) -> bool {
        match self {
            Self::Any => true,
            Self::Equal(wanted) => kind == wanted,
            Self::Except(other) => kind != other,
            Self::UpTo(most) => kind <= most,
            Self::CopyAt(_) => false,
        }
    }

    /// Returns the index of the selected message.
    fn find(self, messages: &VecDeque<QueuedMessage>) -> Option<usize> {
        match self {
            // Among messages of the lowest type, the first one.
            Self::UpTo(most) => {
                let below = messages.iter().enumerate().filter(|(_, message)| message.kind <= most);
                below.min_by_key(|(_, message)| message.kind).map(|(at, _)| at)
            }
            Self::CopyAt(at) => usize::try_from(at).ok().filter(|&at| at < messages.len()),
            _ => messages.iter().position(|message| self.takes(message.kind)),
        }
    }
}

/// Treatment of a text that is longer than the receiver's room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TooLong {
    /// The rest of the text is lost (MSG_NOERROR).
    Cut,
    /// The call fails, and the message stays.
    Refuse,
}

/// Request of a receiver.
#[derive(Clone, Copy, Debug)]
pub struct Reception {
    /// The message that the receiver selects.
    pub selection: Selection,
    /// Bytes of text that the receiver has room for.
    pub room: usize,
    /// The treatment of longer texts.
    pub too_long: TooLong,
}

/// Whether a call waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// The call waits.
    Wait,
    /// The call does not wait (IPC_NOWAIT).
    Never,
}

struct Receiver {
    wanted: Reception,
    pid: u32,
    sleeper: Sleeper<Result<QueuedMessage>>,
}

struct Sender {
    length: usize,
    sleeper: Sleeper<Result<()>>,
}

/// Figures that IPC_STAT shows in addition to the head.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// The time of the last msgsnd, or 0.
    pub sent: i64,
    /// The time of the last msgrcv, or 0.
    pub received: i64,
    /// The time of the last change by msgctl, or of the creation.
    pub changed: i64,
    /// Bytes of all texts.
    pub bytes: u64,
    /// Number of messages.
    pub count: u64,
    /// Largest number of bytes, and of messages.
    pub most: u64,
    /// The process that sent last, or 0.
    pub sender_pid: u32,
    /// The process that received last, or 0.
    pub receiver_pid: u32,
}

struct QueueState {
    is_gone: bool,
    messages: VecDeque<QueuedMessage>,
    figures: Figures,
    receivers: Map<u64, Arc<Receiver>>,
    senders: Map<u64, Arc<Sender>>,
    next_ticket: u64,
}

/// A queue.
pub struct MessageQueue {
    head: Head,
    state: Mutex<QueueState>,
}

impl Object for MessageQueue {
    fn head(&self) -> &Head {
        &self.head
    }
}

/// msgget: returns the ID of a queue.
///
/// # Errors
/// As in the manual.
pub fn get(wanted: &WantedObject<'_>) -> Result<i32> {
    wanted.home.queues.get(wanted, MSGMNI.get() as usize, |_| Ok(()), || MessageQueue::make(wanted))
}

impl QueueState {
    fn has_room(&self, length: usize) -> bool {
        let figures = &self.figures;
        figures.bytes + length as u64 <= figures.most && figures.count < figures.most
    }

    fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    /// Counts `message` as added, or as removed.
    fn count_in(&mut self, message: &QueuedMessage) {
        self.figures.count += 1;
        self.figures.bytes += message.text.len() as u64;
    }

    fn count_out(&mut self, message: &QueuedMessage) {
        self.figures.count -= 1;
        self.figures.bytes -= message.text.len() as u64;
    }

    /// Gives `message` to the first waiting receiver that accepts its type. A receiver without
    /// enough room for it gets an error.
    fn hand_over(&mut self, message: QueuedMessage) -> Option<QueuedMessage> {
        let mut next = 0;
        while let Some((&ticket, receiver)) = self.receivers.first_from(Bound::Included(&next)) {
            next = ticket + 1;
            let wanted = receiver.wanted;
            if !wanted.selection.takes(message.kind) {
                continue;
            }
            let receiver = receiver.clone();
            self.receivers.remove(&ticket);
            if wanted.too_long == TooLong::Refuse && message.text.len() > wanted.room {
                receiver.sleeper.answer(Err(Errno::E2BIG));
                continue;
            }
            (self.figures.receiver_pid, self.figures.received) = (receiver.pid, seconds());
            receiver.sleeper.answer(Ok(message));
            return None;
        }
        Some(message)
    }

    /// Wakes the senders whose message fits, so that they try again. If the queue was removed,
    /// wakes all.
    fn wake_senders(&mut self) {
        let mut next = 0;
        while let Some((&ticket, sender)) = self.senders.first_from(Bound::Included(&next)) {
            next = ticket + 1;
            if self.is_gone || self.has_room(sender.length) {
                sender.sleeper.answer(if self.is_gone { Err(Errno::EIDRM) } else { Ok(()) });
                self.senders.remove(&ticket);
            }
        }
    }

    /// Makes all receivers fail with `error`. On `EAGAIN` they try again.
    fn wake_receivers(&mut self, error: Errno) {
        while let Some((_, receiver)) = self.receivers.pop_first() {
            receiver.sleeper.answer(Err(error));
        }
    }

    /// Takes the message that `wanted` selects.
    fn take(&mut self, wanted: &Reception) -> Result<Option<QueuedMessage>> {
        let Some(at) = wanted.selection.find(&self.messages) else { return Ok(None) };
        let Some(found) = self.messages.get(at) else { return Ok(None) };
        if wanted.too_long == TooLong::Refuse && found.text.len() > wanted.room {
            return Err(Errno::E2BIG);
        }
        if matches!(wanted.selection, Selection::CopyAt(_)) {
            let text = WipedBytes::try_from_slice(&found.text)?;
            return Ok(Some(QueuedMessage { kind: found.kind, text }));
        }
        let Some(message) = self.messages.remove(at) else { return Ok(None) };
        self.count_out(&message);
        (self.figures.receiver_pid, self.figures.received) = (caller_pid(), seconds());
        self.wake_senders();
        Ok(Some(message))
    }
}

impl MessageQueue {
    fn make(wanted: &WantedObject<'_>) -> Result<Arc<Self>> {
        let figures = Figures { changed: seconds(), most: MSGMNB.get(), ..Figures::default() };
        let state = QueueState {
            is_gone: false,
            messages: VecDeque::new(),
            figures,
            receivers: Map::new(),
            senders: Map::new(),
            next_ticket: 0,
        };
        let head = Head::new(wanted);
        Ok(reserve::arc(Self { head, state: Mutex::new(state) }))
    }

    /// Locks the state of a queue that `caller` may access with the permissions in `wanted`.
    fn lock(&self, caller: &Credentials, wanted: u32) -> Result<MutexGuard<'_, QueueState>> {
        let state = self.state.lock_killable()?;
        self.head.permission().check(caller, self.head.home().ok_or(Errno::EIDRM)?.owner(), wanted)?;
        if state.is_gone { Err(Errno::EIDRM) } else { Ok(state) }
    }

    /// msgsnd.
    ///
    /// # Errors
    /// `EACCES`, `EAGAIN`, `EIDRM`, `ENOMEM`; `ERESTARTNOHAND` if a signal comes.
    pub fn send(&self, message: QueuedMessage, caller: &Credentials, patience: Patience) -> Result<()> {
        let length = message.text.len();
        let mut state = self.lock(caller, permission::WRITE)?;
        while !state.has_room(length) {
            if patience == Patience::Never {
                return Err(Errno::EAGAIN);
            }
            let sender = reserve::arc(Sender { length, sleeper: Sleeper::new() });
            let ticket = state.ticket();
            state.senders.try_insert(ticket, sender.clone())?;
            drop(state);
            let outcome = sender.sleeper.sleep(None);
            if outcome.is_err() {
                self.state.lock().senders.remove(&ticket);
            }
            match (outcome, sender.sleeper.take()) {
                (Ok(Some(Err(error))), _) | (Err(_), Some(Err(error))) => return Err(error),
                (Err(_), _) => return Err(Errno::ERESTARTNOHAND),
                (Ok(_), _) => {}
            }
            state = self.lock(caller, permission::WRITE)?;
        }
        // Reserve memory first: if that fails, nothing has changed.
        state.messages.try_reserve(1)?;
        (state.figures.sender_pid, state.figures.sent) = (caller_pid(), seconds());
        if let Some(message) = state.hand_over(message) {
            state.count_in(&message);
            state.messages.push_back_reserved(message);
        }
        Ok(())
    }

    /// msgrcv.
    ///
    /// # Errors
    /// `E2BIG`, `EACCES`, `EIDRM`, `ENOMEM`, `ENOMSG`; `ERESTARTNOHAND` if a signal comes.
    pub fn receive(
        &self,
        wanted: Reception,
        caller: &Credentials,
        patience: Patience,
    ) -> Result<QueuedMessage> {
        loop {
            let mut state = self.lock(caller, permission::READ)?;
            if let Some(message) = state.take(&wanted)? {
                return Ok(message);
            }
            if patience == Patience::Never {
                return Err(Errno::ENOMSG);
            }
            let receiver = reserve::arc(Receiver { wanted, pid: caller_pid(), sleeper: Sleeper::new() });
            let ticket = state.ticket();
            state.receivers.try_insert(ticket, receiver.clone())?;
            drop(state);
            let answer = match receiver.sleeper.sleep(None) {
                Ok(answer) => answer,
                Err(_) => {
                    self.state.lock().receivers.remove(&ticket);
                    // A message that arrived before now is received.
                    receiver.sleeper.take()
                }
            };
            match answer {
                Some(Err(Errno::EAGAIN)) => {}
                Some(answer) => return answer,
                None => return Err(Errno::ERESTARTNOHAND),
            }
        }
    }

    /// Returns the figures that IPC_STAT shows in addition to the head.
    pub fn figures(&self) -> Figures {
        self.state.lock().figures
    }

    /// IPC_SET: sets another owner, mode and size.
    ///
    /// # Errors
    /// `EPERM` for a size above the limit without CAP_SYS_RESOURCE; `EINVAL`, `EINTR`.
    pub fn set(&self, new: &UserPermission, most: u64, caller: &Credentials) -> Result<()> {
        if most > MSGMNB.get() && !caller.may(Capability::SysResource) {
            return Err(Errno::EPERM);
        }
        let mut state = self.state.lock_killable()?;
        self.head.change(|permission| permission.set(new))?;
        (state.figures.most, state.figures.changed) = (most, seconds());
        // Waiting calls may have lost their permission, or may be able to continue.
        state.wake_receivers(Errno::EAGAIN);
        state.wake_senders();
        Ok(())
    }

    /// IPC_RMID: the queue leaves the table, and calls that wait fail with `EIDRM`.
    ///
    /// # Errors
    /// `EIDRM`, `EINTR`.
    pub fn remove(&self) -> Result<()> {
        let messages = {
            let mut state = self.state.lock_killable()?;
            if state.is_gone {
                return Err(Errno::EIDRM);
            }
            state.is_gone = true;
            state.wake_receivers(Errno::EIDRM);
            state.wake_senders();
            core::mem::take(&mut state.messages)
        };
        if let Some(home) = self.head.home() {
            home.queues.remove_if(self, || true);
        }
        drop(messages);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::objects::IpcObjects;
    use crate::task::userns::UserNs;

    /// A queue needs a namespace, so the tests share this one.
    static HOME: spin::Once<Arc<IpcObjects>> = spin::Once::new();

    fn queue() -> Arc<MessageQueue> {
        let caller = Credentials::of_user(0, 0);
        let home = HOME.call_once(|| IpcObjects::new(UserNs::INITIAL));
        MessageQueue::make(&WantedObject { key: 0, flags: 0o600, caller: &caller, home }).unwrap()
    }

    fn send(queue: &MessageQueue, kind: i64, text: &[u8]) -> Result<()> {
        let text = WipedBytes::try_from_slice(text).unwrap();
        queue.send(QueuedMessage { kind, text }, &Credentials::of_user(0, 0), Patience::Never)
    }

    fn receive(queue: &MessageQueue, selection: Selection, room: usize) -> Result<i64> {
        let wanted = Reception { selection, room, too_long: TooLong::Refuse };
        let message = queue.receive(wanted, &Credentials::of_user(0, 0), Patience::Never)?;
        Ok(message.kind)
    }

    #[test]
    fn messages_are_chosen_by_their_type() {
        let queue = queue();
        for kind in [5, 3, 9, 3, 1] {
            send(&queue, kind, b"x").unwrap();
        }
        assert_eq!(receive(&queue, Selection::CopyAt(2), 9), Ok(9), "it stays");
        assert_eq!(receive(&queue, Selection::CopyAt(5), 9), Err(Errno::ENOMSG));
        assert_eq!(receive(&queue, Selection::UpTo(4), 9), Ok(1));
        assert_eq!(receive(&queue, Selection::Except(5), 9), Ok(3));
        assert_eq!(receive(&queue, Selection::Equal(9), 9), Ok(9));
        assert_eq!(receive(&queue, Selection::UpTo(2), 9), Err(Errno::ENOMSG));
        assert_eq!(receive(&queue, Selection::Any, 9), Ok(5));
        assert_eq!((queue.figures().count, queue.figures().bytes), (1, 1));
    }

    #[test]
    fn a_queue_takes_so_many_bytes_and_so_many_messages() {
        let queue = queue();
        queue.state.lock().figures.most = 4;
        send(&queue, 1, b"abc").unwrap();
        assert_eq!(send(&queue, 1, b"de"), Err(Errno::EAGAIN));
        for _ in 0..3 {
            send(&queue, 1, b"").unwrap();
        }
        assert_eq!(send(&queue, 1, b""), Err(Errno::EAGAIN), "empty ones count too");
        assert_eq!(receive(&queue, Selection::Any, 2), Err(Errno::E2BIG));
        assert_eq!(receive(&queue, Selection::Any, 3), Ok(1), "a message that was too long stayed");
    }

    #[test]
    fn a_message_goes_to_the_first_receiver_of_its_type_with_room() {
        let queue = queue();
        let wait = |selection, room| {
            let mut state = queue.state.lock();
            let wanted = Reception { selection, room, too_long: TooLong::Refuse };
            let receiver = reserve::arc(Receiver { wanted, pid: 7, sleeper: Sleeper::new() });
            let ticket = state.ticket();
            state.receivers.try_insert(ticket, receiver.clone()).unwrap();
            receiver
        };
        let (other, short) = (wait(Selection::Equal(2), 9), wait(Selection::Any, 1));
        let (first, last) = (wait(Selection::UpTo(3), 9), wait(Selection::Any, 9));
        send(&queue, 3, b"text").unwrap();
        let told =
            |receiver: &Receiver| receiver.sleeper.take().map(|answer| answer.map(|message| message.kind));
        assert_eq!((told(&other), told(&short)), (None, Some(Err(Errno::E2BIG))));
        assert_eq!((told(&first), told(&last)), (Some(Ok(3)), None));
        assert_eq!((queue.figures().receiver_pid, queue.figures().count), (7, 0));
    }
}
