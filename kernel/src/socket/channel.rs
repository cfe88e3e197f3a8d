//! Messages on their way to one socket: a queue, and the tasks that wait for it.
//!
//! A stream connection has two channels, one each way; a datagram socket receives from all senders
//! through its own. A sleeping lock protects the [`Queue`], since user memory may fault while bytes
//! move. Atomics mirror the state that waiters check. They are changed before the waiters are
//! woken.

mod beside;
mod ends;
mod news;

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};

use freehold_collections::{Arc, Receiver, reserve};
use freehold_machine::PAGE_SIZE;
use spin::Once;

use super::address::Address;
use super::beside::Notes;
use super::flight::Files;
use super::garbage;
use super::memory::{AccountWatch, PAGES, QueueCharge, QueueEnd, SocketAccount};
use super::message::PassCredentials;
use super::options::Credentials;
pub use super::queue::MessageOrigin;
use super::queue::Queue;
use crate::fs::bytes::SliceSource;
use crate::sync::{Mutex, MutexGuard, News, WaitQueue};
use crate::user::{Sink, Source, so_far};
use crate::{Errno, Result, task};

/// Largest number of messages that wait in one channel (net.unix.max_dgram_qlen).
const MESSAGES: usize = 512;

/// How long a call may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// Not at all: `EAGAIN` instead.
    Never,
    /// Until this time (nanoseconds of [`crate::time::now`]), if there is one.
    Until(Option<u64>),
}

/// Data that travels with the bytes of a message.
#[derive(Default)]
pub struct Ancillary {
    /// SCM_RIGHTS.
    pub files: Files,
    /// The sender's credentials, if it or the receiver has requested them, or those that it has
    /// passed.
    pub credentials: Credentials,
}

impl Ancillary {
    /// Makes the data of a message that carries nothing yet, not even credentials.
    pub(super) fn unsigned() -> Self {
        Self { files: Files::default(), credentials: Credentials::NOBODY }
    }

    /// Takes the data that travels with the first bytes of a send. The credentials travel with the
    /// later bytes, too.
    pub(super) fn take(&mut self) -> Self {
        Self { files: core::mem::take(&mut self.files), credentials: self.credentials }
    }
}

/// Whether bytes leave the queue when they are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taking {
    /// Bytes leave the queue.
    Take,
    /// Bytes stay in the queue (MSG_PEEK).
    Peek,
}

/// How to receive.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// Whether bytes leave the queue.
    pub taking: Taking,
    /// How long to wait for bytes.
    pub patience: Patience,
}

impl Manner {
    /// Receives and removes bytes.
    pub const fn take(patience: Patience) -> Self {
        Self { taking: Taking::Take, patience }
    }
}

/// Result of a receive, apart from the bytes themselves.
#[derive(Default)]
pub struct Received {
    /// Number of bytes stored.
    pub count: usize,
    /// Length of the message; more than `count` if it was cut.
    pub length: usize,
    /// The data that arrived with the message.
    pub ancillary: Ancillary,
    /// The sender of a datagram, if it has a name.
    pub from: Option<Address>,
    /// Facts about the message that the receiver has requested.
    pub(super) notes: Option<Notes>,
}

/// See the module's head.
pub struct Channel {
    queue: Mutex<Queue>,
    /// The account of its pages.
    account: SocketAccount,
    /// Mirrors of the queue: the number of waiting messages, and their pages.
    messages: AtomicUsize,
    pages: AtomicUsize,
    /// The pages for which there is room, by [`QueueEnd`]: what the end has more than at first,
    /// modulo 2^64.
    parts: [AtomicUsize; 2],
    /// Whether the channel has lost its receiver, or its sender ([`ends`]).
    no_receiver: AtomicBool,
    no_sender: AtomicBool,
    /// Whether the receiver has shut down reading, and still exists.
    reading_ended: AtomicBool,
    /// Whether [`garbage`] knows the channel.
    carries: AtomicBool,
    /// SO_PASSCRED: the receiver gets the sender of each message.
    names_senders: AtomicBool,
    /// [`Told`](super::beside::Told): the ancillary data that the receiver requests.
    told: AtomicU32,
    /// Number of messages that were dropped for lack of room, modulo 2^32.
    lost: AtomicU32,
    /// The error that the next call on the receiver's socket returns, once; 0 for none.
    error: AtomicI32,
    /// Whether there was such an error.
    failed: AtomicBool,
    /// Whether the peer has not yet answered the connection attempt: nothing can be sent.
    opening: AtomicBool,
    /// Whether the peer has answered since, and no connect(2) has reported it yet.
    answered: AtomicBool,
    /// Whether a send found no room and its socket was not notified of room since.
    wants_room: AtomicBool,
    /// Wakes senders when the account is no longer tight, once it has stopped one of them.
    account_watch: AccountWatch,
    /// The queue of the sending socket, for signals, if only one socket sends into this channel.
    sender: Once<Arc<WaitQueue>>,
    /// Woken when there is something to receive, or when nothing more will arrive.
    pub readable: Arc<WaitQueue>,
    /// Woken when there is room, or when the receiver has ended.
    pub writable: Arc<WaitQueue>,
}

impl Channel {
    /// Makes an empty channel with both ends.
    pub fn new(account: SocketAccount) -> Arc<Self> {
        reserve::arc(Self {
            queue: Mutex::new(Queue::new(account)),
            account,
            messages: AtomicUsize::new(0),
            pages: AtomicUsize::new(0),
            parts: [const { AtomicUsize::new(0) }; 2],
            no_receiver: AtomicBool::new(false),
            no_sender: AtomicBool::new(false),
            reading_ended: AtomicBool::new(false),
            carries: AtomicBool::new(false),
            names_senders: AtomicBool::new(false),
            told: AtomicU32::new(0),
            lost: AtomicU32::new(0),
            error: AtomicI32::new(0),
            failed: AtomicBool::new(false),
            opening: AtomicBool::new(false),
            answered: AtomicBool::new(false),
            wants_room: AtomicBool::new(false),
            account_watch: AccountWatch::default(),
            sender: Once::new(),
            readable: reserve::arc(WaitQueue::new()),
            writable: reserve::arc(WaitQueue::new()),
        })
    }

    /// Whether messages carry their sender's credentials (SO_PASSCRED).
    pub fn names_senders(&self) -> PassCredentials {
        if self.names_senders.load(Ordering::Relaxed) { PassCredentials::Yes } else { PassCredentials::No }
    }

    /// Sets whether messages carry their sender's credentials.
    pub fn name_senders(&self, wanted: PassCredentials) {
        self.names_senders.store(wanted == PassCredentials::Yes, Ordering::Relaxed);
    }

    /// Publishes the size of `queue`, the channel's own, for tasks that check it without the lock.
    /// The caller wakes waiters afterwards.
    pub(super) fn publish(&self, queue: &Queue) {
        self.messages.store(queue.messages(), Ordering::SeqCst);
        self.pages.store(queue.pages(), Ordering::SeqCst);
    }

    /// As [`waiting`](Self::waiting), but returns `None` if another task holds the queue. That task
    /// wakes waiters when it is done.
    pub(super) fn try_waiting(&self) -> Option<MutexGuard<'_, Queue>> {
        self.queue.try_lock()
    }

    /// Locks and returns the waiting messages.
    pub(super) fn waiting(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    /// Prepares for sending `ancillary` into this channel. The caller holds no lock: garbage may be
    /// collected first.
    #[inline]
    fn carry(self: &Receiver<Self>, ancillary: &mut Ancillary) -> Result<()> {
        if ancillary.files.is_empty() { Ok(()) } else { self.carry_some(ancillary) }
    }

    #[cold]
    fn carry_some(self: &Receiver<Self>, ancillary: &mut Ancillary) -> Result<()> {
        garbage::collect_if_much();
        let sender = task::try_current();
        let sender = sender.as_ref().map(|task| &**task.process());
        match ancillary.files.depart(sender) {
            Err(Errno::ETOOMANYREFS) if garbage::collect_if_rested() => ancillary.files.depart(sender)?,
            departed => departed?,
        }
        if !self.carries.swap(true, Ordering::Relaxed) {
            garbage::enter(self).inspect_err(|_| self.carries.store(false, Ordering::Relaxed))?;
        }
        Ok(())
    }

    pub(super) fn wake_all(&self) {
        self.readable.wake_all();
        self.writable.wake_all();
    }

    /// Whether a message waits.
    pub fn has_message(&self) -> bool {
        self.messages.load(Ordering::SeqCst) > 0
    }

    /// Prevents sending until [`open`](Self::open).
    pub(super) fn hold(&self) {
        self.opening.store(true, Ordering::SeqCst);
    }

    /// Permits sending, because the peer has answered.
    pub(super) fn open(&self) {
        self.answered.store(true, Ordering::Relaxed);
        self.opening.store(false, Ordering::SeqCst);
        self.writable.wake_all();
        if let Some(sender) = self.sender.get() {
            sender.announce(News::Room);
        }
    }

    /// Whether the peer has not yet answered the connection attempt.
    pub fn is_opening(&self) -> bool {
        self.opening.load(Ordering::SeqCst)
    }

    /// Records that the peer answered at once. No connect(2) has reported that yet.
    pub(super) fn note_answer(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    /// Takes the record that the peer has answered. Returns whether there was one.
    pub(super) fn take_answer(&self) -> bool {
        !self.is_opening() && self.answered.swap(false, Ordering::Relaxed)
    }

    /// Resets the channel after a failed call, so that the next call starts from the beginning.
    pub(super) fn renew(&self) {
        self.no_sender.store(false, Ordering::SeqCst);
        self.failed.store(false, Ordering::Relaxed);
    }

    /// Sets the number of pages that an end of the queue has. `initial` is what it has at first.
    pub(super) fn set_part(&self, end: QueueEnd, pages: usize, initial: usize) {
        self.parts[end as usize].store(pages.wrapping_sub(initial), Ordering::Relaxed);
    }

    /// Returns the number of pages for which the queue has room in all.
    #[inline]
    pub(super) fn most(&self) -> usize {
        let [sender, receiver] = &self.parts;
        let more = sender.load(Ordering::Relaxed).wrapping_add(receiver.load(Ordering::Relaxed));
        self.account.most(PAGES.wrapping_add(more))
    }

    /// Whether a send would not wait.
    pub fn has_room(&self) -> bool {
        !self.is_opening()
            && self.pages.load(Ordering::SeqCst) < self.most()
            && self.messages.load(Ordering::SeqCst) < MESSAGES
    }

    /// Returns the number of waiting bytes (FIONREAD of a stream).
    pub fn bytes(&self) -> usize {
        self.queue.lock().bytes()
    }

    /// Returns the bytes of the first message (FIONREAD of sockets that keep messages apart).
    pub fn first_bytes(&self) -> usize {
        self.queue.lock().first_bytes()
    }

    // The next three functions run for each send and receive. Without inlining, calling each of
    // them would cost a twentieth of that time.
    #[inline(always)]
    fn wait_for_room(&self, patience: Patience) -> Result<()> {
        let ready = || (self.has_room() || !self.has_receiver()).then_some(());
        match patience {
            _ if ready().is_some() => Ok(()),
            Patience::Never => {
                self.want_room();
                // Nothing else reports room that was made before that.
                ready().ok_or(Errno::EAGAIN)
            }
            Patience::Until(deadline) => self.wait_with_patience(deadline, ready),
        }
    }

    #[inline(always)]
    fn wait_for_message(&self, patience: Patience) -> Result<()> {
        let ready = || {
            let is_over = !self.has_sender() || !self.has_reader();
            (self.has_message() || is_over || self.has_error()).then_some(())
        };
        match patience {
            _ if ready().is_some() => Ok(()),
            Patience::Never => Err(Errno::EAGAIN),
            Patience::Until(deadline) => {
                self.readable.wait_until_deadline(deadline, ready)?.ok_or(Errno::EAGAIN)
            }
        }
    }

    /// Sends bytes of a stream. Files travel with the first of them.
    ///
    /// # Errors
    /// `EPIPE` without a receiver. If no byte was sent: `EAGAIN`, `ERESTARTSYS`, `EFAULT`,
    /// `ENOMEM`.
    #[inline]
    pub fn send_stream(
        self: &Receiver<Self>,
        source: &mut dyn Source,
        mut ancillary: Ancillary,
        patience: Patience,
    ) -> Result<usize> {
        self.carry(&mut ancillary)?;
        let (mut done, length) = (0, source.remaining());
        while done < length {
            match self.send_some(source, length - done, &mut ancillary, patience) {
                Ok(count) => done += count,
                Err(error) => return so_far(done, error),
            }
        }
        Ok(done)
    }

    /// Sends as many of the `left` bytes as there is room for, possibly none.
    #[inline]
    fn send_some(
        &self,
        source: &mut dyn Source,
        left: usize,
        ancillary: &mut Ancillary,
        patience: Patience,
    ) -> Result<usize> {
        self.wait_for_room(patience)?;
        let mut queue = self.queue.lock();
        // Checked under the lock: otherwise bytes could arrive after the receiver's end, and stay.
        if !self.has_receiver() {
            return Err(Errno::EPIPE);
        }
        let mut done = 0;
        let result = loop {
            match queue.push_bytes(source, ancillary, self.most()) {
                Ok(count) => done += count,
                // Another sender may have taken the room that was seen. A caller that may wait does
                // so again.
                Err(Errno::EAGAIN) => break Ok(done),
                Err(error) => break so_far(done, error),
            }
            if done == left {
                break Ok(done);
            }
        };
        self.publish(&queue);
        drop(queue);
        self.readable.announce(News::Input);
        result
    }

    /// Sends one message as a whole.
    ///
    /// # Errors
    /// `ECONNREFUSED` without a receiver, `ENOBUFS` if sockets use too much memory.
    pub fn send_message(
        self: &Receiver<Self>,
        source: &mut dyn Source,
        mut ancillary: Ancillary,
        origin: MessageOrigin,
        patience: Patience,
    ) -> Result<usize> {
        self.carry(&mut ancillary)?;
        let length = source.remaining();
        // A task must not hold pages while it waits.
        if patience != Patience::Never {
            self.wait_for_room(patience)?;
        }
        self.wait_for_account(length.div_ceil(PAGE_SIZE), patience)?;
        let bytes = Queue::gather(source)?;
        let mut in_hand = QueueCharge::new(self.account);
        in_hand.set(bytes.pages());
        loop {
            self.wait_for_room(patience)?;
            let mut queue = self.queue.lock();
            if !self.has_receiver() {
                return Err(self.refusal());
            }
            if !self.has_room() {
                continue;
            }
            in_hand.set(0);
            queue.push_message(bytes, length, ancillary, origin)?;
            self.publish(&queue);
            drop(queue);
            self.readable.announce(News::Input);
            return Ok(length);
        }
    }

    /// Sends a message without waiting.
    ///
    /// # Errors
    /// `EBUSY` if another task holds the queue; `EAGAIN` without room, `ECONNREFUSED`, `ENOMEM`.
    pub(super) fn offer_message(&self, bytes: &[u8], origin: MessageOrigin) -> Result<()> {
        let gathered = Queue::gather(&mut SliceSource::new(bytes))?;
        self.account.admit(gathered.pages()).map_err(|_| Errno::EAGAIN)?;
        let mut queue = self.try_waiting().ok_or(Errno::EBUSY)?;
        if !self.has_receiver() {
            return Err(Errno::ECONNREFUSED);
        }
        if !self.has_room() {
            return Err(Errno::EAGAIN);
        }
        queue.push_message(gathered, bytes.len(), Ancillary::default(), origin)?;
        self.publish(&queue);
        drop(queue);
        self.readable.announce(News::Input);
        Ok(())
    }

    /// Receives from a stream: waiting bytes up to those with files, or, if senders are named, up
    /// to another sender's. Adds them to `received`, which is empty or has bytes of the same
    /// sender.
    ///
    /// # Errors
    /// `EAGAIN`, `ERESTARTSYS`, `EFAULT`.
    pub fn receive_stream(&self, sink: &mut dyn Sink, manner: Manner, received: &mut Received) -> Result<()> {
        loop {
            self.wait_for_message(manner.patience)?;
            let mut queue = self.queue.lock();
            let result = match manner.taking {
                Taking::Take => queue.take_bytes(sink, received, self.names_senders()),
                Taking::Peek => queue.peek_bytes(sink, received, self.names_senders()),
            };
            self.after_receive(queue, manner.taking);
            result?;
            received.length = received.count;
            if received.count == 0
                && let Some(error) = self.take_receive_error()
            {
                return Err(error);
            }
            let ended = || !self.has_message() && (!self.has_sender() || !self.has_reader());
            if received.count > 0 || sink.remaining() == 0 || ended() {
                return Ok(());
            }
        }
    }

    /// Receives one message. Bytes that do not fit are lost, unless the receiver only peeks. The
    /// result goes to `received`, which is empty before.
    ///
    /// # Errors
    /// `EAGAIN`, `ERESTARTSYS`, `EFAULT`, `ENOMEM`; after the last one the message stays.
    pub fn receive_message(
        &self,
        sink: &mut dyn Sink,
        manner: Manner,
        received: &mut Received,
    ) -> Result<()> {
        loop {
            self.wait_for_message(manner.patience)?;
            // As on Linux, an error comes before the messages that wait.
            if let Some(error) = self.take_error() {
                return Err(error);
            }
            let mut queue = self.queue.lock();
            if queue.messages() == 0 {
                drop(queue);
                if !self.has_sender() || !self.has_reader() {
                    // As on Linux, a call that does not wait finds nothing after SHUT_RD.
                    let is_told = !self.has_sender() || manner.patience != Patience::Never;
                    return if is_told { Ok(()) } else { Err(Errno::EAGAIN) };
                }
                continue;
            }
            let result = match manner.taking {
                Taking::Take => queue.take_message(sink, received),
                Taking::Peek => queue.peek_message(sink, received),
            };
            self.after_receive(queue, manner.taking);
            return result;
        }
    }

    #[inline(always)]
    fn after_receive(&self, queue: MutexGuard<'_, Queue>, taking: Taking) {
        self.publish(&queue);
        drop(queue);
        if taking == Taking::Take {
            self.made_room();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::bytes::{SliceSink, SliceSource};
    use crate::socket::memory::BUFFER_BYTES;
    use std::vec;
    use std::vec::Vec;

    fn receive(channel: &Channel, most: usize, taking: Taking) -> Vec<u8> {
        let mut buffer = vec![0; most];
        let mut received = Received::default();
        let sink = &mut SliceSink::new(&mut buffer);
        channel.receive_stream(sink, Manner { taking, patience: Patience::Never }, &mut received).unwrap();
        buffer.truncate(received.count);
        buffer
    }

    fn send(channel: &Arc<Channel>, bytes: &[u8]) -> Result<usize> {
        channel.send_stream(&mut SliceSource::new(bytes), Ancillary::default(), Patience::Never)
    }

    #[test]
    fn a_stream_has_no_boundaries_and_can_be_peeked_at() {
        let channel = Channel::new(SocketAccount::Other);
        send(&channel, b"one").unwrap();
        send(&channel, b"two").unwrap();
        assert_eq!(channel.bytes(), 6);
        assert_eq!(receive(&channel, 4, Taking::Peek), b"onet");
        assert_eq!(receive(&channel, 4, Taking::Take), b"onet");
        assert_eq!(receive(&channel, 4, Taking::Take), b"wo");
        channel.close_sender(None);
        assert_eq!(receive(&channel, 4, Taking::Take), b"");
    }

    #[test]
    fn the_room_is_the_sum_of_what_both_ends_have() {
        let channel = Channel::new(SocketAccount::Other);
        channel.set_part(QueueEnd::Sender, 2, PAGES / 2);
        assert_eq!(channel.most(), PAGES / 2 + 2);
        channel.set_part(QueueEnd::Receiver, 1, PAGES / 2);
        assert_eq!(send(&channel, &[1; 5 * PAGE_SIZE]), Ok(3 * PAGE_SIZE));
        assert!(!channel.has_room());
        channel.set_part(QueueEnd::Sender, PAGES, PAGES / 2);
        assert_eq!((channel.most(), channel.has_room()), (PAGES + 1, true));
    }

    #[test]
    fn a_stream_takes_as_much_as_the_buffer_holds() {
        let channel = Channel::new(SocketAccount::Other);
        let big = vec![1; 2 * BUFFER_BYTES];
        assert_eq!(send(&channel, &big), Ok(BUFFER_BYTES));
        assert_eq!(send(&channel, b"x"), Err(Errno::EAGAIN));
        assert_eq!(receive(&channel, BUFFER_BYTES, Taking::Take).len(), BUFFER_BYTES);
        assert!(channel.has_room());
        channel.close_receiver();
        assert_eq!(send(&channel, b"x"), Err(Errno::EPIPE));
    }

    #[test]
    fn messages_stay_apart_and_lose_what_does_not_fit() {
        let channel = Channel::new(SocketAccount::Other);
        for text in [&b"first"[..], b"", b"third"] {
            let source = &mut SliceSource::new(text);
            channel
                .send_message(source, Ancillary::default(), MessageOrigin::default(), Patience::Never)
                .unwrap();
        }
        let mut buffer = [0; 3];
        let mut next = || {
            let sink = &mut SliceSink::new(&mut buffer);
            let mut received = Received::default();
            channel.receive_message(sink, Manner::take(Patience::Never), &mut received).unwrap();
            (received.count, received.length)
        };
        assert_eq!((next(), next(), next()), ((3, 5), (0, 0), (3, 5)));
        assert!(!channel.has_message());
    }
}
