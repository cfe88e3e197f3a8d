//! SO_RCVLOWAT: the number of stream bytes that a receive waits for, and from which poll(2) reports
//! input.
//!
//! As on Linux, a receive that does not wait accepts fewer bytes, and poll(2) of AF_UNIX sockets
//! ignores the setting.

use freehold_machine::PAGE_SIZE;
use linux_raw_sys::net as c;

use super::beside::Told;
use super::channel::{Manner, Received, Taking};
use super::endpoint::{Socket, SocketKind};
use super::family::Family;
use crate::user::Sink;

impl Socket {
    /// Returns the socket's ancillary-data options. As on Linux, AF_UNIX streams have none of them.
    #[inline]
    pub(super) fn told_beside(&self) -> Told {
        match (self.family(), self.kind()) {
            (Family::Unix, SocketKind::Stream) => Told::empty(),
            _ => self.channel().told(),
        }
    }

    /// Records that SO_RCVLOWAT was set.
    pub(super) fn note_least(&self) {
        let wanted = if self.least() > 1 { Told::LEAST } else { Told::empty() };
        self.channel().tell(wanted, Told::LEAST);
    }

    /// Returns the number of bytes that a receive waits for: never more than the queue can hold.
    fn least(&self) -> usize {
        let least = self.remembered(c::SOL_SOCKET, c::SO_RCVLOWAT).unwrap_or(1);
        usize::try_from(least).unwrap_or(1).min(self.channel().most() * PAGE_SIZE / 2)
    }

    /// Receives more of a stream until the program's minimum has arrived. Stops earlier at the
    /// stream's end, at the end of the wait, or when descriptors have arrived with the bytes.
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

    /// Whether the queue has enough bytes that poll(2) reports input.
    #[inline]
    pub(super) fn has_least(&self) -> bool {
        !self.channel().told().contains(Told::LEAST) || self.looks_for_least()
    }

    #[cold]
    fn looks_for_least(&self) -> bool {
        if self.family() == Family::Unix || self.kind() != SocketKind::Stream {
            return true;
        }
        // A task that holds the queue wakes the waiters when it is done.
        self.channel().try_waiting().is_some_and(|queue| queue.bytes() >= self.least())
    }
}
