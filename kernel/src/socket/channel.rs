//! Messages on their way to one socket: a queue, and the tasks that wait for it.
//!
//! A stream connection has two channels, one each way; a datagram socket receives from all senders
//! through its own. The [`Queue`] is behind a sleeping lock, since user memory may fault while
//! bytes move. The state that waiters look at is mirrored in atomics, changed before they are
//! woken.

mod beside;
mod news;

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};

use freehold_collections::{Arc, Receiver, reserve};
use freehold_machine::PAGE_SIZE;
use spin::Once;

use super::address::Address;
use super::beside::Notes;
use super::flight::Files;
use super::garbage;
use super::memory::{AccountWatch, BUFFER_BYTES, QueueCharge, SocketAccount};
use super::message::PassCredentials;
use super::options::Credentials;
pub use super::queue::MessageOrigin;
use super::queue::Queue;
use crate::fs::bytes::SliceSource;
use crate::sync::{Mutex, MutexGuard, News, WaitQueue};
use crate::user::{Sink, Source, so_far};
use crate::{Errno, Result, task};

/// Messages that wait in one channel at most (net.unix.max_dgram_qlen).
const MESSAGES: usize = 512;

/// How long a call may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// `EAGAIN` instead.
    Never,
    /// Until this time (nanoseconds of [`crate::time::now`]), if there is one.
    Until(Option<u64>),
}

/// Data that travels beside the bytes.
#[derive(Default)]
pub struct Ancillary {
    /// SCM_RIGHTS.
    pub files: Files,
    /// The sender's credentials.
    pub credentials: Credentials,
}

impl Ancillary {
    /// Takes the data that travels with the first bytes of a send; the credentials go with the next
    /// ones, too.
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
    /// How long to wait for some.
    pub patience: Patience,
}

impl Manner {
    /// Takes bytes out.
    pub const fn take(patience: Patience) -> Self {
        Self { taking: Taking::Take, patience }
    }
}

/// Result of a receive, apart from the bytes themselves.
#[derive(Default)]
pub struct Received {
    /// Bytes placed.
    pub count: usize,
    /// Bytes that the message had; more than `count` where it was cut.
    pub length: usize,
    /// The data that came with it.
    pub ancillary: Ancillary,
    /// The sender of a datagram, if it has a name.
    pub from: Option<Address>,
    /// Facts about the message that the receiver has asked for.
    pub(super) notes: Option<Notes>,
}

/// See the module's head.
pub struct Channel {
    queue: Mutex<Queue>,
    /// The account of its pages.
    account: SocketAccount,
    /// Mirrors: messages waiting, pages in them.
    messages: AtomicUsize,
    pages: AtomicUsize,
    /// The channel has no receiver, or no sender, any more.
    no_receiver: AtomicBool,
    no_sender: AtomicBool,
    /// [`garbage`] knows it.
    carries: AtomicBool,
    /// SO_PASSCRED: its receiver is told the sender of each message.
    names_senders: AtomicBool,
    /// [`Told`](super::beside::Told): data beside messages that its receiver asks for.
    told: AtomicU32,
    /// Messages that found no room, modulo 2^32.
    lost: AtomicU32,
    /// The error of the next call on the receiver's socket, given once; 0 for none.
    error: AtomicI32,
    /// Whether there was such an error.
    failed: AtomicBool,
    /// The peer was called and has not answered: nothing can be sent yet.
    opening: AtomicBool,
    /// Whether the peer has answered since, and no connect(2) has reported it yet.
    answered: AtomicBool,
    /// A send found no room, and its socket was not told of room since.
    wants_room: AtomicBool,
    /// Wakes senders when the account is loosened, once one was stopped by it.
    account_watch: AccountWatch,
    /// The queue of the socket that sends into it, where that is one socket, for signals.
    sender: Once<Arc<WaitQueue>>,
    /// Woken when there is something to receive, or never will be.
    pub readable: Arc<WaitQueue>,
    /// Woken when there is room, or no receiver to make it.
    pub writable: Arc<WaitQueue>,
}

impl Channel {
    /// An empty one with both ends.
    pub fn new(account: SocketAccount) -> Arc<Self> {
        reserve::arc(Self {
            queue: Mutex::new(Queue::new(account)),
            account,
            messages: AtomicUsize::new(0),
            pages: AtomicUsize::new(0),
            no_receiver: AtomicBool::new(false),
            no_sender: AtomicBool::new(false),
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

    /// Whether messages bring their sender's credentials (SO_PASSCRED).
    pub fn names_senders(&self) -> PassCredentials {
        if self.names_senders.load(Ordering::Relaxed) { PassCredentials::Yes } else { PassCredentials::No }
    }

    /// Have messages bring their sender's credentials, or not.
    pub fn name_senders(&self, wanted: PassCredentials) {
        self.names_senders.store(wanted == PassCredentials::Yes, Ordering::Relaxed);
    }

    /// Shows the size of `queue`, the channel's own, to tasks that look without the lock. The
    /// caller wakes waiters afterwards.
    pub(super) fn publish(&self, queue: &Queue) {
        self.messages.store(queue.messages(), Ordering::SeqCst);
        self.pages.store(queue.pages(), Ordering::SeqCst);
    }

    /// As [`waiting`](Self::waiting), where no other task has the queue; another holder wakes a
    /// queue when it is done.
    pub(super) fn try_waiting(&self) -> Option<MutexGuard<'_, Queue>> {
        self.queue.try_lock()
    }

    /// Returns the messages that wait, locked.
    pub(super) fn waiting(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    /// Before `ancillary` is sent into it. The caller holds no lock: garbage may be collected
    /// first.
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

    /// Closes the receiving end: senders fail, and messages that wait are forgotten.
    pub fn close_receiver(&self) {
        self.no_receiver.store(true, Ordering::SeqCst);
        self.forget(Some(self.queue.lock()));
    }

    /// As [`close_receiver`](Self::close_receiver), without waiting: where another task holds the
    /// queue, its messages stay until the channel goes.
    pub(super) fn abandon_receiver(&self) {
        self.no_receiver.store(true, Ordering::SeqCst);
        self.forget(self.try_waiting());
    }

    /// Forgets what waits in `queue`, which is its own, if the caller has that, and wakes all.
    fn forget(&self, queue: Option<MutexGuard<'_, Queue>>) {
        let forgotten = queue.map(|mut queue| {
            let all = core::mem::replace(&mut *queue, Queue::new(self.account));
            self.publish(&queue);
            all
        });
        self.wake_all();
        // Files in flight are closed with no lock held.
        drop(forgotten);
    }

    /// Closes the sending end because of `error`. The caller wakes.
    pub(super) fn end_by(&self, error: Errno) {
        self.note_error(error);
        self.no_sender.store(true, Ordering::SeqCst);
    }

    pub(super) fn wake_all(&self) {
        self.readable.wake_all();
        self.writable.wake_all();
    }

    /// Something went wrong that the next call on the receiver's socket says.
    pub fn fail(&self, error: Errno) {
        self.note_error(error);
        self.readable.announce(News::Error);
        self.writable.wake_all();
    }

    /// As [`fail`](Self::fail), where the caller closes the channel next.
    pub(super) fn note_error(&self, error: Errno) {
        self.failed.store(true, Ordering::Relaxed);
        self.error.store(error as i32, Ordering::SeqCst);
    }

    /// Whether anything went wrong so far, said or not: a connection was reset.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Whether there is something to say.
    pub fn has_error(&self) -> bool {
        self.error.load(Ordering::SeqCst) != 0
    }

    /// Takes the error, so that one call reports it.
    #[inline]
    pub fn take_error(&self) -> Option<Errno> {
        if !self.has_error() {
            return None;
        }
        Errno::from_number(self.error.swap(0, Ordering::SeqCst) as u32)
    }

    /// Returns whether the channel still has a receiver.
    pub fn has_receiver(&self) -> bool {
        !self.no_receiver.load(Ordering::SeqCst)
    }

    /// Returns whether the channel still has a sender.
    pub fn has_sender(&self) -> bool {
        !self.no_sender.load(Ordering::SeqCst)
    }

    /// Whether a message waits.
    pub fn has_message(&self) -> bool {
        self.messages.load(Ordering::SeqCst) > 0
    }

    /// Nothing can be sent until [`open`](Self::open).
    pub(super) fn hold(&self) {
        self.opening.store(true, Ordering::SeqCst);
    }

    /// The peer has answered.
    pub(super) fn open(&self) {
        self.answered.store(true, Ordering::Relaxed);
        self.opening.store(false, Ordering::SeqCst);
        self.writable.wake_all();
        if let Some(sender) = self.sender.get() {
            sender.announce(News::Room);
        }
    }

    /// Whether the peer was called and has not answered.
    pub fn is_opening(&self) -> bool {
        self.opening.load(Ordering::SeqCst)
    }

    /// The peer answered at once, which no connect(2) has reported yet.
    pub(super) fn note_answer(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    /// Whether the peer has answered and this was not asked since.
    pub(super) fn take_answer(&self) -> bool {
        !self.is_opening() && self.answered.swap(false, Ordering::Relaxed)
    }

    /// A call that failed left it: the next begins as the first.
    pub(super) fn renew(&self) {
        self.no_sender.store(false, Ordering::SeqCst);
        self.failed.store(false, Ordering::Relaxed);
    }

    /// Whether a send would not wait.
    pub fn has_room(&self) -> bool {
        !self.is_opening()
            && self.pages.load(Ordering::SeqCst) < self.account.most()
            && self.messages.load(Ordering::SeqCst) < MESSAGES
    }

    /// Bytes that wait (FIONREAD of a stream).
    pub fn bytes(&self) -> usize {
        self.queue.lock().bytes()
    }

    /// Bytes of the first message (FIONREAD where messages are kept apart).
    pub fn first_bytes(&self) -> usize {
        self.queue.lock().first_bytes()
    }

    // These three are in the way of each byte that is sent or received; a call of each costs a
    // twentieth of it.
    #[inline(always)]
    fn wait_for_room(&self, patience: Patience) -> Result<()> {
        let ready = || (self.has_room() || !self.has_receiver()).then_some(());
        match patience {
            _ if ready().is_some() => Ok(()),
            Patience::Never => {
                self.want_room();
                // Room that came before that is told of by no one else.
                ready().ok_or(Errno::EAGAIN)
            }
            Patience::Until(deadline) => self.wait_with_patience(deadline, ready),
        }
    }

    #[inline(always)]
    fn wait_for_message(&self, patience: Patience) -> Result<()> {
        let ready = || {
            let is_over = !self.has_sender() || !self.has_receiver();
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

    /// Send bytes of a stream; files travel with the first of them.
    ///
    /// # Errors
    /// `EPIPE` without a receiver; `EAGAIN`, `ERESTARTSYS`, `EFAULT`, `ENOMEM` where not one byte
    /// was sent.
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

    /// Sends as many of the `left` bytes as there is room for; maybe none.
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
        // Looked at under the lock: bytes that come after the last receiver's end would stay.
        if !self.has_receiver() {
            return Err(Errno::EPIPE);
        }
        let mut done = 0;
        let result = loop {
            match queue.push_bytes(source, ancillary) {
                Ok(count) => done += count,
                // Another sender may have taken the room that was seen: a patient caller waits
                // again.
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

    /// Send one message, whole.
    ///
    /// # Errors
    /// `EMSGSIZE` where it is larger than the buffer, `ECONNREFUSED` without a receiver, `ENOBUFS`
    /// where sockets have too much memory.
    pub fn send_message(
        self: &Receiver<Self>,
        source: &mut dyn Source,
        mut ancillary: Ancillary,
        origin: MessageOrigin,
        patience: Patience,
    ) -> Result<usize> {
        if source.remaining() > BUFFER_BYTES {
            return Err(Errno::EMSGSIZE);
        }
        self.carry(&mut ancillary)?;
        let length = source.remaining();
        // A task that waits has no pages.
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
                return Err(Errno::ECONNREFUSED);
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
    /// `EBUSY` where another task holds the queue; `EAGAIN` where there is no room, `ECONNREFUSED`,
    /// `ENOMEM`.
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

    /// Receive from a stream: bytes up to the end of what waits, or of those with files, or, where
    /// senders are named, up to another's. Adds them to `received`, where are none yet or the same
    /// sender's.
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
                && let Some(error) = self.take_error()
            {
                return Err(error);
            }
            let ended = || !self.has_message() && (!self.has_sender() || !self.has_receiver());
            if received.count > 0 || sink.remaining() == 0 || ended() {
                return Ok(());
            }
        }
    }

    /// Receives one message; bytes that do not fit are lost (unless it is only looked at). The
    /// result goes to `received`, which is empty before.
    ///
    /// # Errors
    /// `EAGAIN`, `ERESTARTSYS`, `EFAULT`, `ENOMEM`; the message stays with the last one.
    pub fn receive_message(
        &self,
        sink: &mut dyn Sink,
        manner: Manner,
        received: &mut Received,
    ) -> Result<()> {
        loop {
            self.wait_for_message(manner.patience)?;
            let mut queue = self.queue.lock();
            if queue.messages() == 0 {
                drop(queue);
                if let Some(error) = self.take_error() {
                    return Err(error);
                }
                if !self.has_sender() || !self.has_receiver() {
                    return Ok(());
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
        let huge = vec![0; BUFFER_BYTES + 1];
        let source = &mut SliceSource::new(&huge);
        let sent =
            channel.send_message(source, Ancillary::default(), MessageOrigin::default(), Patience::Never);
        assert_eq!(sent, Err(Errno::EMSGSIZE));
    }
}
