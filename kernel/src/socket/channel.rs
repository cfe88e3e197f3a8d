//! What is on its way to one socket: a queue of messages.
//!
//! A stream connection has two channels, one each way; a datagram socket receives from anybody through its own. A
//! message of a stream is whatever was sent without anything beside it; only descriptors end one. Bytes are behind a sleeping
//! lock, since user memory may fault while they move; what waiters look at is mirrored in atomics, changed before
//! they are woken.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use freehold_collections::{Arc, Receiver, VecDeque, reserve};
use freehold_machine::PAGE_SIZE;

use super::address::Address;
use super::flight::Files;
use super::garbage;
use super::options::Credentials;
use crate::fs::OpenFile;
use crate::fs::pipe::{Boundary, Ring};
use crate::sync::{Mutex, MutexGuard, WaitQueue};
use crate::user::{Sink, Source, so_far};
use crate::{Errno, Result, task};

/// Pages that wait in one channel at most: Linux' default send buffer.
const PAGES: usize = BUFFER_BYTES / PAGE_SIZE;
/// What SO_SNDBUF and SO_RCVBUF show.
pub const BUFFER_BYTES: usize = 212_992;
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

/// What travels beside the bytes.
#[derive(Default)]
pub struct Ancillary {
    /// SCM_RIGHTS.
    pub files: Files,
    /// Who sent it.
    pub credentials: Credentials,
}

/// What one send left.
struct Message {
    data: Ring,
    length: usize,
    ancillary: Ancillary,
    from: Option<Address>,
}

/// Whether bytes leave the queue when they are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taking {
    /// They do.
    Take,
    /// They stay (MSG_PEEK).
    Peek,
}

/// What a receive brought beside the bytes themselves.
#[derive(Default)]
pub struct Received {
    /// Bytes placed.
    pub count: usize,
    /// Bytes that the message had; more than `count` where it was cut.
    pub length: usize,
    /// What came with it.
    pub ancillary: Ancillary,
    /// Who sent a datagram, if it has a name.
    pub from: Option<Address>,
}

/// What waits in a channel, which stays as it is meanwhile.
pub(super) struct Waiting<'a>(MutexGuard<'a, VecDeque<Message>>);

impl Waiting<'_> {
    /// The files that travel there.
    pub(super) fn files(&self) -> impl Iterator<Item = &Arc<OpenFile>> {
        self.0.iter().flat_map(|message| message.ancillary.files.iter())
    }

    /// Take them out.
    pub(super) fn take_files(&mut self) -> impl Iterator<Item = Files> {
        self.0.iter_mut().map(|message| core::mem::take(&mut message.ancillary.files))
    }
}

/// See the module's head.
pub struct Channel {
    queue: Mutex<VecDeque<Message>>,
    /// Mirrors: messages waiting, pages in them.
    messages: AtomicUsize,
    pages: AtomicUsize,
    /// Nobody receives any more, nobody sends any more.
    no_receiver: AtomicBool,
    no_sender: AtomicBool,
    /// [`garbage`] knows it.
    carries: AtomicBool,
    /// Woken when there is something to receive, or never will be.
    pub readable: Arc<WaitQueue>,
    /// Woken when there is room, or nobody to make it.
    pub writable: Arc<WaitQueue>,
}

impl Channel {
    /// An empty one with both ends.
    pub fn new() -> Arc<Self> {
        reserve::arc(Self {
            queue: Mutex::new(VecDeque::new()),
            messages: AtomicUsize::new(0),
            pages: AtomicUsize::new(0),
            no_receiver: AtomicBool::new(false),
            no_sender: AtomicBool::new(false),
            carries: AtomicBool::new(false),
            readable: reserve::arc(WaitQueue::new()),
            writable: reserve::arc(WaitQueue::new()),
        })
    }

    fn publish(&self, queue: &VecDeque<Message>) {
        self.messages.store(queue.len(), Ordering::SeqCst);
        self.pages.store(queue.iter().map(|message| message.data.pages()).sum(), Ordering::SeqCst);
    }

    /// What waits, with the queue locked.
    pub(super) fn waiting(&self) -> Waiting<'_> {
        Waiting(self.queue.lock())
    }

    /// Before `ancillary` is sent into it. The caller holds no lock: garbage may be collected
    /// first.
    fn carry(self: &Receiver<Self>, ancillary: &mut Ancillary) -> Result<()> {
        if ancillary.files.is_empty() {
            return Ok(());
        }
        garbage::collect_if_much();
        ancillary.files.depart(task::try_current().as_ref().map(|task| &**task.process()))?;
        if !self.carries.swap(true, Ordering::Relaxed) {
            garbage::enter(self).inspect_err(|_| self.carries.store(false, Ordering::Relaxed))?;
        }
        Ok(())
    }

    /// Nobody will receive: senders fail. What waits is forgotten.
    pub fn close_receiver(&self) {
        self.no_receiver.store(true, Ordering::SeqCst);
        let forgotten = {
            let mut queue = self.queue.lock();
            let all = core::mem::take(&mut *queue);
            self.publish(&queue);
            all
        };
        self.wake_all();
        // Files in flight are closed with no lock held.
        drop(forgotten);
    }

    /// Nobody will send: receivers come to the end.
    pub fn close_sender(&self) {
        self.no_sender.store(true, Ordering::SeqCst);
        self.wake_all();
    }

    fn wake_all(&self) {
        self.readable.wake_all();
        self.writable.wake_all();
    }

    /// Whether somebody may still receive.
    pub fn has_receiver(&self) -> bool {
        !self.no_receiver.load(Ordering::SeqCst)
    }

    /// Whether somebody may still send.
    pub fn has_sender(&self) -> bool {
        !self.no_sender.load(Ordering::SeqCst)
    }

    /// Whether a message waits.
    pub fn has_message(&self) -> bool {
        self.messages.load(Ordering::SeqCst) > 0
    }

    /// Whether a send would not wait.
    pub fn has_room(&self) -> bool {
        self.pages.load(Ordering::SeqCst) < PAGES && self.messages.load(Ordering::SeqCst) < MESSAGES
    }

    /// Bytes that wait, of the first message only where messages are kept apart (FIONREAD).
    pub fn bytes(&self, boundary: Boundary) -> usize {
        let queue = self.queue.lock();
        match boundary {
            Boundary::Stream => queue.iter().map(|message| message.data.bytes()).sum(),
            Boundary::Packet => queue.front().map_or(0, |message| message.data.bytes()),
        }
    }

    fn wait_for_room(&self, patience: Patience) -> Result<()> {
        let ready = || (self.has_room() || !self.has_receiver()).then_some(());
        match patience {
            _ if ready().is_some() => Ok(()),
            Patience::Never => Err(Errno::EAGAIN),
            Patience::Until(deadline) => {
                self.writable.wait_until_deadline(deadline, ready)?.ok_or(Errno::EAGAIN)
            }
        }
    }

    fn wait_for_message(&self, patience: Patience) -> Result<()> {
        let ready = || (self.has_message() || !self.has_sender() || !self.has_receiver()).then_some(());
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
    /// `EPIPE` where nobody receives; `EAGAIN`, `ERESTARTSYS`, `EFAULT`, `ENOMEM` where not one byte was sent.
    pub fn send_stream(
        self: &Receiver<Self>,
        source: &mut dyn Source,
        mut ancillary: Ancillary,
        patience: Patience,
    ) -> Result<usize> {
        self.carry(&mut ancillary)?;
        let mut done = 0;
        while source.remaining() > 0 {
            match self.send_some(source, &mut ancillary, patience) {
                Ok(count) => done += count,
                Err(error) => return so_far(done, error),
            }
        }
        Ok(done)
    }

    fn send_some(
        &self,
        source: &mut dyn Source,
        ancillary: &mut Ancillary,
        patience: Patience,
    ) -> Result<usize> {
        self.wait_for_room(patience)?;
        let mut queue = self.queue.lock();
        // Looked at under the lock: what comes after the last receiver's end would stay.
        if !self.has_receiver() {
            return Err(Errno::EPIPE);
        }
        let joins = queue.back().is_some_and(|last| {
            ancillary.files.is_empty()
                && last.ancillary.files.is_empty()
                && last.ancillary.credentials == ancillary.credentials
        });
        if !joins {
            queue.try_reserve(1)?;
            let credentials = ancillary.credentials;
            let ancillary = core::mem::replace(ancillary, Ancillary { files: Files::default(), credentials });
            queue.push_back_reserved(Message { data: Ring::new(PAGES), length: 0, ancillary, from: None });
        }
        let last = queue.back_mut().expect("a message was pushed if there was none");
        let merged = last.data.merge(source);
        let result = match merged {
            Ok(count) if count > 0 => Ok(count),
            Ok(_) if last.data.has_room() => last.data.push(source, Boundary::Stream),
            Ok(_) => Err(Errno::EAGAIN),
            Err(error) => Err(error),
        };
        if last.data.pages() == 0 {
            queue.pop_back();
        }
        self.publish(&queue);
        drop(queue);
        self.readable.wake_all();
        result
    }

    /// Send one message, whole.
    ///
    /// # Errors
    /// `EMSGSIZE` where it is larger than the buffer, `ECONNREFUSED` where nobody receives.
    pub fn send_message(
        self: &Receiver<Self>,
        source: &mut dyn Source,
        mut ancillary: Ancillary,
        from: Option<Address>,
        patience: Patience,
    ) -> Result<usize> {
        if source.remaining() > BUFFER_BYTES {
            return Err(Errno::EMSGSIZE);
        }
        self.carry(&mut ancillary)?;
        let mut data = Ring::new(PAGES);
        let length = source.remaining();
        while source.remaining() > 0 {
            data.push(source, Boundary::Stream)?;
        }
        loop {
            self.wait_for_room(patience)?;
            let mut queue = self.queue.lock();
            if !self.has_receiver() {
                return Err(Errno::ECONNREFUSED);
            }
            if !self.has_room() {
                continue;
            }
            queue.try_reserve(1)?;
            queue.push_back_reserved(Message { data, length, ancillary, from });
            self.publish(&queue);
            drop(queue);
            self.readable.wake_all();
            return Ok(length);
        }
    }

    /// Receive from a stream: bytes up to the end of what waits, or up to files.
    ///
    /// # Errors
    /// `EAGAIN`, `ERESTARTSYS`, `EFAULT`.
    pub fn receive_stream(
        &self,
        sink: &mut dyn Sink,
        taking: Taking,
        patience: Patience,
    ) -> Result<Received> {
        self.receive(patience, || {
            let received = self.take_bytes(sink, taking)?;
            let ended = !self.has_message() && (!self.has_sender() || !self.has_receiver());
            Ok((received.count > 0 || sink.remaining() == 0 || ended).then_some(received))
        })
    }

    /// Waits for messages until `attempt` has received something.
    fn receive(
        &self,
        patience: Patience,
        mut attempt: impl FnMut() -> Result<Option<Received>>,
    ) -> Result<Received> {
        loop {
            self.wait_for_message(patience)?;
            if let Some(received) = attempt()? {
                return Ok(received);
            }
        }
    }

    /// Receives the bytes of messages that are there, as long as their senders are the same and no files come.
    fn take_bytes(&self, sink: &mut dyn Sink, taking: Taking) -> Result<Received> {
        let mut queue = self.queue.lock();
        let mut received = Received::default();
        let mut index = 0;
        while sink.remaining() > 0 {
            let Some(message) = queue.get_mut(index) else { break };
            let separate = !message.ancillary.files.is_empty();
            if received.count > 0
                && (separate || message.ancillary.credentials != received.ancillary.credentials)
            {
                break;
            }
            let result = match taking {
                Taking::Take => message.data.pop(sink),
                Taking::Peek => message.data.peek(sink),
            };
            match result {
                Ok(count) => received.count += count,
                Err(error) if received.count == 0 => return Err(error),
                Err(_) => break,
            }
            received.ancillary.credentials = message.ancillary.credentials;
            match taking {
                Taking::Take if separate => received.ancillary.files = message.ancillary.files.arrive(),
                Taking::Take => {}
                Taking::Peek => received.ancillary.files = message.ancillary.files.try_clone()?,
            }
            match taking {
                Taking::Take if message.data.pages() == 0 => drop(queue.pop_front()),
                Taking::Take => break,
                Taking::Peek => index += 1,
            }
            if separate {
                break;
            }
        }
        self.publish(&queue);
        drop(queue);
        if taking == Taking::Take {
            self.writable.wake_all();
        }
        received.length = received.count;
        Ok(received)
    }

    /// Receive one message; what does not fit is lost (unless it is only looked at).
    ///
    /// # Errors
    /// `EAGAIN`, `ERESTARTSYS`, `EFAULT`, `ENOMEM`; the message stays with the last one.
    pub fn receive_message(
        &self,
        sink: &mut dyn Sink,
        taking: Taking,
        patience: Patience,
    ) -> Result<Received> {
        self.receive(patience, || {
            let mut queue = self.queue.lock();
            let Some(message) = queue.front() else {
                drop(queue);
                let ended = !self.has_sender() || !self.has_receiver();
                return Ok(ended.then(Received::default));
            };
            let files = message.ancillary.files.try_clone()?;
            let mut received = Received {
                count: 0,
                length: message.length,
                ancillary: Ancillary { files, ..message.ancillary },
                from: message.from.clone(),
            };
            let result = message.data.peek(sink);
            let taken = if taking == Taking::Take { queue.pop_front() } else { None };
            self.publish(&queue);
            drop(queue);
            drop(taken);
            self.writable.wake_all();
            received.count = result?;
            Ok(Some(received))
        })
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
        let received =
            channel.receive_stream(&mut SliceSink::new(&mut buffer), taking, Patience::Never).unwrap();
        buffer.truncate(received.count);
        buffer
    }

    fn send(channel: &Arc<Channel>, bytes: &[u8]) -> Result<usize> {
        channel.send_stream(&mut SliceSource::new(bytes), Ancillary::default(), Patience::Never)
    }

    #[test]
    fn a_stream_has_no_boundaries_and_can_be_peeked_at() {
        let channel = Channel::new();
        send(&channel, b"one").unwrap();
        send(&channel, b"two").unwrap();
        assert_eq!(channel.bytes(Boundary::Stream), 6);
        assert_eq!(receive(&channel, 4, Taking::Peek), b"onet");
        assert_eq!(receive(&channel, 4, Taking::Take), b"onet");
        assert_eq!(receive(&channel, 4, Taking::Take), b"wo");
        channel.close_sender();
        assert_eq!(receive(&channel, 4, Taking::Take), b"");
    }

    #[test]
    fn a_stream_takes_as_much_as_the_buffer_holds() {
        let channel = Channel::new();
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
        let channel = Channel::new();
        for text in [&b"first"[..], b"", b"third"] {
            let source = &mut SliceSource::new(text);
            channel.send_message(source, Ancillary::default(), None, Patience::Never).unwrap();
        }
        let mut buffer = [0; 3];
        let mut next = || {
            let sink = &mut SliceSink::new(&mut buffer);
            let received = channel.receive_message(sink, Taking::Take, Patience::Never).unwrap();
            (received.count, received.length)
        };
        assert_eq!((next(), next(), next()), ((3, 5), (0, 0), (3, 5)));
        assert!(!channel.has_message());
        let huge = vec![0; BUFFER_BYTES + 1];
        let sent =
            channel.send_message(&mut SliceSource::new(&huge), Ancillary::default(), None, Patience::Never);
        assert_eq!(sent, Err(Errno::EMSGSIZE));
    }
}
