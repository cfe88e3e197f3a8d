//! The state that a queue's lock protects: its messages by priority, and the threads that wait for
//! a message or for room.
//!
//! Invariant: receivers wait only where there is no message, and senders only where there is no
//! room. A thread that adds a message serves the first receiver in line, and one that makes room
//! the first sender: the thread with the lowest nice value, and among equals the one that arrived
//! first (Linux: `wq_add`, ipc/mqueue.c). Each step takes O(log n), however many messages there
//! are. Nothing here sleeps. No message is lost if memory runs out: it is returned to the caller.

use core::cmp::Reverse;

use freehold_collections::{Arc, Map, WipedBytes, reserve};

use super::super::sleeper::Sleeper;
use crate::Result;
use crate::sync::SpinLock;

/// A message.
#[derive(PartialEq, Eq, Debug)]
pub struct Message {
    /// 0..32768; the highest is received first.
    pub priority: u32,
    /// Its text. It is wiped before its memory is freed.
    pub text: WipedBytes,
}

/// The limits of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueShape {
    /// Largest number of messages (mq_maxmsg).
    pub messages: usize,
    /// Largest number of bytes of a message (mq_msgsize).
    pub bytes: usize,
}

/// Answer to a thread that waits to send.
#[derive(PartialEq, Eq, Debug)]
pub enum SendAnswer {
    /// Its message is in the queue.
    Sent,
    /// There was room, but no memory to queue the message: the sender tries again.
    Again,
}

/// A thread that waits for room.
pub struct Sender {
    /// Its message, until it is sent.
    pub message: SpinLock<Option<Message>>,
    /// The place where the sender sleeps.
    pub sleeper: Sleeper<SendAnswer>,
}

/// A thread that waits for a message.
pub struct Receiver {
    /// The place where the receiver sleeps.
    pub sleeper: Sleeper<Message>,
}

/// A thread's place in line: its nice value, and its arrival number.
pub type Turn = (i32, u64);

/// Result of sending a message.
#[derive(PartialEq, Eq, Debug)]
pub enum Sent {
    /// The message was added to an empty queue.
    First,
    /// The message was added to a queue that had messages.
    Queued,
    /// A waiting thread got the message.
    HandedOver,
    /// The queue is full; the message is returned.
    Full(Message),
    /// There is no memory.
    NoMemory(Message),
}

/// See the module.
pub struct QueueState {
    shape: QueueShape,
    messages: Map<(Reverse<u32>, u64), WipedBytes>,
    /// Bytes of all messages.
    bytes: u64,
    senders: Map<Turn, Arc<Sender>>,
    receivers: Map<Turn, Arc<Receiver>>,
    /// Number of the next message or thread: it orders messages of one priority, and threads of one
    /// nice value.
    next: u64,
}

impl QueueState {
    /// Makes an empty queue.
    pub const fn new(shape: QueueShape) -> Self {
        Self { shape, messages: Map::new(), bytes: 0, senders: Map::new(), receivers: Map::new(), next: 0 }
    }

    /// Returns the number of messages.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Whether the queue is full.
    pub fn is_full(&self) -> bool {
        self.messages.len() >= self.shape.messages
    }

    /// Returns the bytes of all messages.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Puts `message` after all others of its priority. Returns it if there is no memory.
    fn insert(&mut self, message: Message) -> core::result::Result<(), Message> {
        if self.messages.try_reserve(1).is_err() {
            return Err(message);
        }
        let key = (Reverse(message.priority), self.next());
        self.bytes += message.text.len() as u64;
        self.messages.insert_reserved(key, message.text);
        Ok(())
    }

    /// Sends `message`.
    pub fn send(&mut self, message: Message) -> Sent {
        if self.is_full() {
            return Sent::Full(message);
        }
        if let Some((_, receiver)) = self.receivers.pop_first() {
            receiver.sleeper.answer(message);
            return Sent::HandedOver;
        }
        let was_empty = self.is_empty();
        match self.insert(message) {
            Ok(()) if was_empty => Sent::First,
            Ok(()) => Sent::Queued,
            Err(message) => Sent::NoMemory(message),
        }
    }

    /// Receives the oldest message of the highest priority. Then the first thread in line for room
    /// sends. If memory is short for that, all threads in line try again by themselves.
    pub fn receive(&mut self) -> Option<Message> {
        let ((Reverse(priority), _), text) = self.messages.pop_first()?;
        self.bytes -= text.len() as u64;
        if let Some((_, sender)) = self.senders.pop_first() {
            let message = sender.message.lock().take();
            match message.map(|message| self.insert(message)) {
                Some(Err(message)) => {
                    *sender.message.lock() = Some(message);
                    sender.sleeper.answer(SendAnswer::Again);
                }
                Some(Ok(())) | None => sender.sleeper.answer(SendAnswer::Sent),
            }
        }
        Some(Message { priority, text })
    }

    /// Puts a thread of this nice value in line. It waits for room for `message`.
    ///
    /// # Errors
    /// `message`, if there is no memory.
    pub fn wait_for_room(
        &mut self,
        message: Message,
        nice: i32,
    ) -> core::result::Result<(Turn, Arc<Sender>), Message> {
        if self.senders.try_reserve(1).is_err() {
            return Err(message);
        }
        let turn = (nice, self.next());
        let sender = reserve::arc(Sender { message: SpinLock::new(Some(message)), sleeper: Sleeper::new() });
        self.senders.insert_reserved(turn, sender.clone());
        Ok((turn, sender))
    }

    /// Puts a thread of this nice value in line. It waits for a message.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn wait_for_message(&mut self, nice: i32) -> Result<(Turn, Arc<Receiver>)> {
        self.receivers.try_reserve(1)?;
        let turn = (nice, self.next());
        let receiver = reserve::arc(Receiver { sleeper: Sleeper::new() });
        self.receivers.insert_reserved(turn, receiver.clone());
        Ok((turn, receiver))
    }

    /// Removes a thread from the line for room. The caller drops the result without the lock.
    #[must_use]
    pub fn leave_senders(&mut self, turn: Turn) -> Option<Arc<Sender>> {
        self.senders.remove(&turn)
    }

    /// Removes a thread from the line for messages. The caller drops the result without the lock.
    #[must_use]
    pub fn leave_receivers(&mut self, turn: Turn) -> Option<Arc<Receiver>> {
        self.receivers.remove(&turn)
    }

    /// Removes a message without letting others send, because the queue ends.
    pub fn take_any(&mut self) -> Option<WipedBytes> {
        self.messages.pop_first().map(|(_, text)| text)
    }
}

#[cfg(test)]
mod tests {
    use freehold_collections::inject::each_fails;
    use proptest::prelude::*;

    use super::*;
    use crate::Errno;

    fn message(priority: u32, number: u64) -> Message {
        Message { priority, text: WipedBytes::try_from_slice(&number.to_le_bytes()).unwrap() }
    }

    fn number(message: &Message) -> u64 {
        u64::from_le_bytes(message.text[..].try_into().unwrap())
    }

    /// A queue as the manual describes it: lists that are searched linearly.
    #[derive(Default)]
    struct NaiveQueue {
        most: usize,
        messages: std::vec::Vec<(u32, u64)>,
        senders: std::vec::Vec<(usize, i32, (u32, u64))>,
        receivers: std::vec::Vec<(usize, i32)>,
        /// Messages sent or received, by thread.
        outcomes: std::vec::Vec<(usize, u64)>,
    }

    impl NaiveQueue {
        fn send(&mut self, thread: usize, nice: i32, message: (u32, u64)) {
            if self.messages.len() == self.most {
                self.senders.push((thread, nice, message));
                return;
            }
            self.outcomes.push((thread, message.1));
            if let Some(first) = self.receivers.iter().map(|receiver| receiver.1).min() {
                let at = self.receivers.iter().position(|receiver| receiver.1 == first).unwrap();
                let (receiver, _) = self.receivers.remove(at);
                self.outcomes.push((receiver, message.1));
            } else {
                self.messages.push(message);
            }
        }

        fn receive(&mut self, thread: usize, nice: i32) {
            let Some(highest) = self.messages.iter().map(|message| message.0).max() else {
                self.receivers.push((thread, nice));
                return;
            };
            let at = self.messages.iter().position(|message| message.0 == highest).unwrap();
            let (_, number) = self.messages.remove(at);
            self.outcomes.push((thread, number));
            if let Some(first) = self.senders.iter().map(|sender| sender.1).min() {
                let at = self.senders.iter().position(|sender| sender.1 == first).unwrap();
                let (sender, _, message) = self.senders.remove(at);
                self.messages.push(message);
                self.outcomes.push((sender, message.1));
            }
        }

        fn leave(&mut self, thread: usize) {
            self.senders.retain(|sender| sender.0 != thread);
            self.receivers.retain(|receiver| receiver.0 != thread);
        }
    }

    enum Waiting {
        Sender(Turn, Arc<Sender>, u64),
        Receiver(Turn, Arc<Receiver>),
    }

    /// The queue under test, and its waiting threads.
    struct Tried {
        state: QueueState,
        waiting: std::vec::Vec<(usize, Waiting)>,
        outcomes: std::vec::Vec<(usize, u64)>,
    }

    impl Tried {
        fn send(&mut self, thread: usize, nice: i32, (priority, number): (u32, u64)) {
            match self.state.send(message(priority, number)) {
                Sent::Full(back) => {
                    let (turn, sender) = self.state.wait_for_room(back, nice).unwrap();
                    self.waiting.push((thread, Waiting::Sender(turn, sender, number)));
                }
                Sent::NoMemory(_) => panic!("there is memory"),
                _ => self.outcomes.push((thread, number)),
            }
        }

        fn receive(&mut self, thread: usize, nice: i32) {
            match self.state.receive() {
                Some(message) => self.outcomes.push((thread, number(&message))),
                None => {
                    let (turn, receiver) = self.state.wait_for_message(nice).unwrap();
                    self.waiting.push((thread, Waiting::Receiver(turn, receiver)));
                }
            }
        }

        /// Lets the threads that have an answer continue.
        fn settle(&mut self) {
            let outcomes = &mut self.outcomes;
            self.waiting.retain(|(thread, waiting)| {
                let done = match waiting {
                    Waiting::Sender(_, sender, number) => sender.sleeper.take().map(|answer| {
                        assert_eq!(answer, SendAnswer::Sent);
                        *number
                    }),
                    Waiting::Receiver(_, receiver) => receiver.sleeper.take().map(|message| number(&message)),
                };
                outcomes.extend(done.map(|number| (*thread, number)));
                done.is_none()
            });
        }

        fn leave(&mut self, thread: usize) {
            let Some(at) = self.waiting.iter().position(|waiting| waiting.0 == thread) else { return };
            match self.waiting.remove(at).1 {
                Waiting::Sender(turn, _, _) => assert!(self.state.leave_senders(turn).is_some()),
                Waiting::Receiver(turn, _) => assert!(self.state.leave_receivers(turn).is_some()),
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Send { nice: i32, priority: u32 },
        Receive { nice: i32 },
        Leave { thread: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (-2..2, 0..4u32).prop_map(|(nice, priority)| Step::Send { nice, priority }),
            4 => (-2..2).prop_map(|nice| Step::Receive { nice }),
            1 => (0..60usize).prop_map(|thread| Step::Leave { thread }),
        ]
    }

    proptest! {
        /// Each thread sends and receives the same as with a queue made of lists.
        #[test]
        fn a_queue_does_what_lists_would(
            most in 1..5usize,
            steps in proptest::collection::vec(step(), 1..60),
        ) {
            let mut naive = NaiveQueue { most, ..NaiveQueue::default() };
            let state = QueueState::new(QueueShape { messages: most, bytes: 8 });
            let mut tried = Tried { state, waiting: std::vec::Vec::new(), outcomes: std::vec::Vec::new() };
            for (thread, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Send { nice, priority } => {
                        naive.send(thread, nice, (priority, thread as u64));
                        tried.send(thread, nice, (priority, thread as u64));
                    }
                    Step::Receive { nice } => {
                        naive.receive(thread, nice);
                        tried.receive(thread, nice);
                    }
                    Step::Leave { thread } => {
                        naive.leave(thread);
                        tried.leave(thread);
                    }
                }
                tried.settle();
                prop_assert_eq!(tried.state.len(), naive.messages.len());
                prop_assert_eq!(tried.state.bytes(), 8 * naive.messages.len() as u64);
                prop_assert_eq!(tried.waiting.len(), naive.senders.len() + naive.receivers.len());
                prop_assert!(tried.state.receivers.is_empty() || tried.state.is_empty());
                prop_assert!(tried.state.senders.is_empty() || tried.state.is_full());
            }
            naive.outcomes.sort_unstable();
            tried.outcomes.sort_unstable();
            prop_assert_eq!(tried.outcomes, naive.outcomes);
        }
    }

    /// If any allocation fails, the message is returned and the queue is unchanged.
    #[test]
    fn a_message_without_memory_is_not_lost() {
        let mut state = QueueState::new(QueueShape { messages: 1000, bytes: 8 });
        let mut failures = 0;
        for at in 0..500 {
            let mut kept = Some(message(at as u32 % 7, at));
            let (_, failed) = each_fails(|| match state.send(kept.take().unwrap()) {
                Sent::NoMemory(back) => {
                    assert_eq!((number(&back), state.len(), state.bytes()), (at, at as usize, at * 8));
                    kept = Some(back);
                    Err(Errno::ENOMEM)
                }
                sent => {
                    assert_eq!(sent, if at == 0 { Sent::First } else { Sent::Queued });
                    Ok(())
                }
            });
            failures += failed;
        }
        assert!(failures > 10, "{failures}");
        let mut last = (7, 0);
        while let Some(message) = state.receive() {
            let now = (message.priority, number(&message));
            assert!(now.0 < last.0 || (now.0 == last.0 && now.1 > last.1), "{last:?} {now:?}");
            last = now;
        }
        assert!(state.is_empty() && state.bytes() == 0);
    }
}
