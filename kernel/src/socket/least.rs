//! SO_RCVLOWAT: the bytes of a stream that a receive waits for, and that poll(2) calls input.
//!
//! As on Linux, a receive that is not to wait takes fewer, and poll(2) of AF_UNIX sockets does not
//! look at it.

use linux_raw_sys::net as c;

use super::address::Family;
use super::beside::Told;
use super::channel::{Manner, Received, Taking};
use super::endpoint::{Socket, SocketKind};
use super::memory::BUFFER_BYTES;
use crate::user::Sink;

impl Socket {
    /// The options about data beside its messages. Streams of AF_UNIX have none of these, as on
    /// Linux.
    #[inline]
    pub(super) fn told_beside(&self) -> Told {
        match (self.family(), self.kind()) {
            (Family::Unix, SocketKind::Stream) => Told::empty(),
            _ => self.channel().told(),
        }
    }

    /// SO_RCVLOWAT was set.
    pub(super) fn note_least(&self) {
        let wanted = if self.least() > 1 { Told::LEAST } else { Told::empty() };
        self.channel().tell(wanted, Told::LEAST);
    }

    /// Bytes that a receive waits for: never more than can wait.
    fn least(&self) -> usize {
        let least = self.remembered(c::SOL_SOCKET, c::SO_RCVLOWAT).unwrap_or(1);
        usize::try_from(least).unwrap_or(1).min(BUFFER_BYTES / 2)
    }

    /// Receives more of a stream until as many bytes came as the program wants at least, or the
    /// stream ends, or the patience, or files are in the way.
    #[cold]
    pub(super) fn receive_least(&self, sink: &mut dyn Sink, manner: Manner, received: &mut Received) {
        let least = self.least();
        while manner.taking == Taking::Take
            && received.count < least
            && sink.remaining() > 0
            && received.ancillary.files.is_empty()
        {
            let before = received.count;
            let more = self.channel().receive_stream(sink, manner, received);
            if more.is_err() || received.count == before {
                break;
            }
        }
    }

    /// Whether as many bytes wait as poll(2) calls input.
    #[inline]
    pub(super) fn has_least(&self) -> bool {
        !self.channel().told().contains(Told::LEAST) || self.looks_for_least()
    }

    #[cold]
    fn looks_for_least(&self) -> bool {
        if self.family() == Family::Unix || self.kind() != SocketKind::Stream {
            return true;
        }
        // A task that holds the queue wakes those that wait when it is done.
        self.channel().try_waiting().is_some_and(|queue| queue.bytes() >= self.least())
    }
}
