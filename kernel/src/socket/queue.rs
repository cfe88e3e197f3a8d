//! The bytes that wait in a channel, and their ancillary data.
//!
//! One [`PipeRing`] holds the pages of all messages in order. Each message has the number of its
//! chunks in the ring, so sending and receiving need no separate list of chunks. Invariant: the
//! messages' chunks add up to the ring's, and there are as many notes as messages with notes. The
//! channel's sleeping lock protects the queue.

use core::ops::ControlFlow;

use freehold_collections::{Arc, VecDeque};

use super::address::Address;
use super::beside::Notes;
use super::channel::{Ancillary, Received};
use super::flight::Files;
use super::memory::{QueueCharge, SocketAccount};
use super::message::PassCredentials;
use crate::fs::OpenFile;
use crate::fs::pipe::{Boundary, Gathered, PipeRing};
use crate::user::{Sink, Source};
use crate::{Errno, Result};

/// An empty queue with room for more messages than this frees the room.
const KEPT: usize = 16;

/// The sender of a message, and facts that its receiver has requested.
#[derive(Clone, Default)]
pub struct MessageOrigin {
    /// The sender's name, if it has one.
    pub name: Option<Address>,
    /// The notes, if the receiver requested them.
    pub(super) notes: Option<Notes>,
}

impl MessageOrigin {
    /// Returns the origin of a message without notes.
    pub const fn named(name: Option<Address>) -> Self {
        Self { name, notes: None }
    }
}

/// The message of one send. In a stream, sends without ancillary data are joined to one message.
struct SocketMessage {
    /// Number of the message's chunks in the ring.
    chunks: usize,
    /// Number of bytes sent; 0 for a stream, which does not need the length.
    length: usize,
    ancillary: Ancillary,
    from: Option<Address>,
    /// Whether the message has notes. They are queued in the order of the messages.
    is_noted: bool,
}

/// See the module's head.
pub struct Queue {
    pages: PipeRing,
    messages: VecDeque<SocketMessage>,
    /// The notes of the messages that have some, in order.
    notes: VecDeque<Notes>,
    charge: QueueCharge,
}

impl Queue {
    /// Makes an empty queue, which needs no memory. Its pages are counted in `account`.
    pub const fn new(account: SocketAccount) -> Self {
        Self {
            pages: PipeRing::new(usize::MAX),
            messages: VecDeque::new(),
            notes: VecDeque::new(),
            charge: QueueCharge::new(account),
        }
    }

    /// Returns the number of messages.
    pub fn messages(&self) -> usize {
        self.messages.len()
    }

    /// Returns the number of pages.
    pub fn pages(&self) -> usize {
        self.pages.pages()
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> usize {
        self.pages.bytes()
    }

    /// Returns the bytes of the first message, for sockets that keep messages apart.
    pub fn first_bytes(&self) -> usize {
        self.messages.front().map_or(0, |message| message.length)
    }

    /// Returns the files that the messages carry.
    pub fn files(&self) -> impl Iterator<Item = &Arc<OpenFile>> {
        self.messages.iter().flat_map(|message| message.ancillary.files.iter())
    }

    /// Removes and returns these files.
    pub fn take_files(&mut self) -> impl Iterator<Item = Files> {
        self.messages.iter_mut().map(|message| core::mem::take(&mut message.ancillary.files))
    }

    /// Takes up to a page of a stream's bytes from `source`, with the data in `ancillary`. The
    /// credentials also stay in `ancillary`. The queue has at most `most` pages afterwards.
    ///
    /// # Errors
    /// `EAGAIN` without room; `EFAULT`, `ENOMEM`.
    pub fn push_bytes(
        &mut self,
        source: &mut dyn Source,
        ancillary: &mut Ancillary,
        most: usize,
    ) -> Result<usize> {
        let joins = self.messages.back().is_some_and(|last| last.is_joined_by(ancillary));
        if joins {
            let merged = self.pages.merge(source)?;
            if merged > 0 {
                return Ok(merged);
            }
        } else {
            self.messages.try_reserve(1)?;
        }
        if self.pages() >= most {
            return Err(Errno::EAGAIN);
        }
        let count = self.pages.push(source, Boundary::Stream)?;
        self.charge.set(self.pages());
        match self.messages.back_mut().filter(|_| joins) {
            Some(last) => last.chunks += 1,
            None => {
                let ancillary = ancillary.take();
                self.messages.push_back_reserved(SocketMessage {
                    chunks: 1,
                    length: 0,
                    ancillary,
                    from: None,
                    is_noted: false,
                });
            }
        }
        Ok(count)
    }

    /// Reads the bytes of a message, for [`Queue::push_message`]. This happens before the queue is
    /// locked, since a fault of the source may take arbitrarily long.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    pub fn gather(source: &mut dyn Source) -> Result<Gathered> {
        Gathered::from_source(source)
    }

    /// Appends a whole message of `length` bytes.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn push_message(
        &mut self,
        bytes: Gathered,
        length: usize,
        ancillary: Ancillary,
        origin: MessageOrigin,
    ) -> Result<()> {
        self.messages.try_reserve(1)?;
        let chunks = bytes.pages();
        self.pages.append(bytes)?;
        self.charge.set(self.pages());
        let is_noted = origin.notes.is_some_and(|notes| self.notes.try_push_back(notes).is_ok());
        let from = origin.name;
        self.messages.push_back_reserved(SocketMessage { chunks, length, ancillary, from, is_noted });
        Ok(())
    }

    /// Moves a stream's bytes to the sink, up to the end of those that carry files. If senders are
    /// `named`, only bytes of one sender.
    ///
    /// # Errors
    /// `EFAULT` if no byte could be stored.
    pub fn take_bytes(
        &mut self,
        sink: &mut dyn Sink,
        received: &mut Received,
        named: PassCredentials,
    ) -> Result<()> {
        while sink.remaining() > 0 {
            let Some(front) = self.messages.front_mut() else { break };
            if !front.goes_on(received, named) {
                break;
            }
            let popped = self.pages.pop_of(&mut front.chunks, sink);
            if received.note(popped, front)?.is_break() {
                break;
            }
            let carries = !front.ancillary.files.is_empty();
            if carries {
                received.ancillary.files = front.ancillary.files.arrive();
            }
            if front.chunks > 0 {
                break;
            }
            self.messages.pop_front();
            if carries {
                break;
            }
        }
        self.settle();
        Ok(())
    }

    /// Like [`Queue::take_bytes`], but the bytes stay.
    ///
    /// # Errors
    /// `EFAULT` if no byte could be stored, `ENOMEM`.
    pub fn peek_bytes(
        &self,
        sink: &mut dyn Sink,
        received: &mut Received,
        named: PassCredentials,
    ) -> Result<()> {
        let mut at = 0;
        for message in &self.messages {
            if sink.remaining() == 0 || !message.goes_on(received, named) {
                break;
            }
            let peeked = self.pages.peek(at..at + message.chunks, sink);
            if received.note(peeked, message)?.is_break() {
                break;
            }
            at += message.chunks;
            if !message.ancillary.files.is_empty() {
                received.ancillary.files = message.ancillary.files.try_clone()?;
                break;
            }
        }
        Ok(())
    }

    /// Removes the first message, even if it does not fit into the sink.
    ///
    /// # Errors
    /// `EFAULT`; the message is removed then, too.
    pub fn take_message(&mut self, sink: &mut dyn Sink, received: &mut Received) -> Result<()> {
        let Some(mut message) = self.messages.pop_front() else { return Ok(()) };
        let popped = self.pages.pop_of(&mut message.chunks, sink);
        self.pages.discard(message.chunks);
        if message.is_noted {
            received.notes = self.notes.pop_front();
        }
        self.settle();
        // The ancillary data is dropped with `received`, where no lock is held.
        received.ancillary.credentials = message.ancillary.credentials;
        received.ancillary.files = message.ancillary.files.arrive();
        received.length = message.length;
        received.from = message.from;
        received.count = popped?;
        Ok(())
    }

    /// Like [`Queue::take_message`], but the message stays.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    pub fn peek_message(&self, sink: &mut dyn Sink, received: &mut Received) -> Result<()> {
        let Some(message) = self.messages.front() else { return Ok(()) };
        received.ancillary.credentials = message.ancillary.credentials;
        received.ancillary.files = message.ancillary.files.try_clone()?;
        received.length = message.length;
        received.from = message.from.clone();
        received.notes = self.notes.front().copied().filter(|_| message.is_noted);
        received.count = self.pages.peek(0..message.chunks, sink)?;
        Ok(())
    }

    /// Cleans up after messages were removed.
    fn settle(&mut self) {
        if self.messages.is_empty() && self.messages.capacity() > KEPT {
            *self = Self::new(self.charge.account());
        }
        self.charge.set(self.pages());
    }
}

impl SocketMessage {
    /// Whether bytes with this ancillary data become a part of this message.
    fn is_joined_by(&self, ancillary: &Ancillary) -> bool {
        ancillary.files.is_empty()
            && self.ancillary.files.is_empty()
            && self.ancillary.credentials == ancillary.credentials
    }

    /// Whether this message's bytes may be appended to `received`.
    fn goes_on(&self, received: &Received, named: PassCredentials) -> bool {
        named == PassCredentials::No
            || received.count == 0
            || self.ancillary.credentials == received.ancillary.credentials
    }
}

impl Received {
    /// Counts bytes of `message`. Breaks if the next bytes could not be stored.
    fn note(&mut self, placed: Result<usize>, message: &SocketMessage) -> Result<ControlFlow<()>> {
        match placed {
            Ok(count) => {
                self.count += count;
                self.ancillary.credentials = message.ancillary.credentials;
                Ok(ControlFlow::Continue(()))
            }
            Err(error) if self.count == 0 => Err(error),
            Err(_) => Ok(ControlFlow::Break(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque as Model;
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::super::memory::PAGES;
    use super::super::options::Credentials;
    use super::*;
    use crate::fs::bytes::{SliceSink, SliceSource};
    use freehold_machine::PAGE_SIZE;

    impl Queue {
        /// Panics if the invariant of the module's head does not hold.
        fn validate(&self) {
            let chunks: usize = self.messages.iter().map(|message| message.chunks).sum();
            assert_eq!(chunks, self.pages());
            let noted = self.messages.iter().filter(|message| message.is_noted).count();
            assert_eq!(noted, self.notes.len());
            assert!(self.messages.capacity() <= KEPT || !self.messages.is_empty());
        }
    }

    fn sender(user: u32) -> Ancillary {
        Ancillary { files: Files::default(), credentials: Credentials { pid: 1, uid: user, gid: 0 } }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Send { user: u32, length: usize },
        Take(usize),
        Peek(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let length = prop_oneof![1..100_usize, 4000..4200_usize, 1..20_000_usize];
        let step = prop_oneof![
            3 => (0..2_u32, length.clone()).prop_map(|(user, length)| Step::Send { user, length }),
            2 => length.clone().prop_map(Step::Take),
            1 => length.prop_map(Step::Peek),
        ];
        prop::collection::vec(step, 1..60)
    }

    proptest! {
        /// Compared with a list of bytes, each with its sender.
        #[test]
        fn a_stream_brings_each_byte_once_in_order_and_named_senders_apart(steps in steps(), named: bool) {
            let named = if named { PassCredentials::Yes } else { PassCredentials::No };
            let (mut queue, mut model, mut next) = (Queue::new(SocketAccount::Other), Model::new(), 0_u8);
            for step in steps {
                let most = match step {
                    Step::Send { user, length } => {
                        let bytes: Vec<u8> = (0..length).map(|at| next.wrapping_add(at as u8)).collect();
                        let (source, mut ancillary) = (&mut SliceSource::new(&bytes), sender(user));
                        let mut sent = 0;
                        while sent < length {
                            match queue.push_bytes(source, &mut ancillary, PAGES) {
                                Ok(count) => sent += count,
                                Err(error) => {
                                    prop_assert_eq!((error, queue.pages()), (Errno::EAGAIN, PAGES));
                                    break;
                                }
                            }
                        }
                        model.extend(bytes[..sent].iter().map(|&byte| (byte, user)));
                        next = next.wrapping_add(sent as u8);
                        queue.validate();
                        continue;
                    }
                    Step::Take(most) | Step::Peek(most) => most,
                };
                let (mut buffer, mut received) = (vec![0; most], Received::default());
                let sink = &mut SliceSink::new(&mut buffer);
                match step {
                    Step::Take(_) => queue.take_bytes(sink, &mut received, named).unwrap(),
                    _ => queue.peek_bytes(sink, &mut received, named).unwrap(),
                }
                let user = model.front().map_or(0, |&(_, user)| user);
                let goes_on = |entry: &&(u8, u32)| named == PassCredentials::No || entry.1 == user;
                let expected: Vec<u8> =
                    model.iter().take(most).take_while(goes_on).map(|entry| entry.0).collect();
                prop_assert_eq!(&buffer[..received.count], &expected[..]);
                prop_assert!(named == PassCredentials::No || received.ancillary.credentials.uid == user);
                if matches!(step, Step::Take(_)) {
                    model.drain(..received.count);
                }
                prop_assert_eq!(queue.bytes(), model.len());
                queue.validate();
            }
        }
    }

    #[test]
    fn a_message_that_is_cut_takes_nothing_of_the_next_one() {
        let mut queue = Queue::new(SocketAccount::Other);
        let lengths = [3 * PAGE_SIZE + 1, 0, 1, PAGE_SIZE];
        for (at, &length) in lengths.iter().enumerate() {
            let bytes = vec![at as u8; length];
            let gathered = Queue::gather(&mut SliceSource::new(&bytes)).unwrap();
            queue.push_message(gathered, length, sender(at as u32), MessageOrigin::default()).unwrap();
            queue.validate();
        }
        let mut buffer = [9; PAGE_SIZE + 10];
        for (at, &length) in lengths.iter().enumerate() {
            let mut peeked = Received::default();
            queue.peek_message(&mut SliceSink::new(&mut buffer), &mut peeked).unwrap();
            let mut received = Received::default();
            queue.take_message(&mut SliceSink::new(&mut buffer), &mut received).unwrap();
            for seen in [&peeked, &received] {
                assert_eq!((seen.count, seen.length), (length.min(buffer.len()), length));
                assert_eq!(seen.ancillary.credentials.uid, at as u32);
            }
            assert!(buffer[..received.count].iter().all(|&byte| byte == at as u8));
            queue.validate();
        }
        assert_eq!((queue.messages(), queue.pages()), (0, 0));
    }

    #[test]
    fn notes_stay_with_their_messages() {
        let mut queue = Queue::new(SocketAccount::Other);
        let lost = |number: u32| (number % 3 > 0).then(|| Notes::now(number, None));
        for number in 0..3 * KEPT as u32 {
            let gathered = Queue::gather(&mut SliceSource::new(b"x")).unwrap();
            let origin = MessageOrigin { name: None, notes: lost(number) };
            queue.push_message(gathered, 1, sender(number), origin).unwrap();
            queue.validate();
        }
        for number in 0..3 * KEPT as u32 {
            let [mut peeked, mut taken] = [0, 1].map(|_: u8| Received::default());
            queue.peek_message(&mut SliceSink::new(&mut [0]), &mut peeked).unwrap();
            queue.take_message(&mut SliceSink::new(&mut [0]), &mut taken).unwrap();
            assert_eq!(peeked.notes, taken.notes);
            assert_eq!(taken.notes.map(Notes::lost), lost(number).map(Notes::lost));
            queue.validate();
        }
        assert_eq!(queue.notes.capacity(), 0);
    }

    #[test]
    fn an_empty_queue_gives_back_the_room_of_many_messages() {
        let mut queue = Queue::new(SocketAccount::Other);
        let nothing = || Queue::gather(&mut SliceSource::new(b"")).unwrap();
        for _ in 0..2 * KEPT {
            queue.push_message(nothing(), 0, sender(0), MessageOrigin::default()).unwrap();
        }
        while queue.messages() > 0 {
            queue.take_message(&mut SliceSink::new(&mut []), &mut Received::default()).unwrap();
        }
        assert_eq!(queue.messages.capacity(), 0);
    }
}
