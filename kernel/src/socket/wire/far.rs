//! The remote end of a socket's connection, for the network's task.

use core::sync::atomic::{AtomicUsize, Ordering};

use freehold_collections::{Arc, reserve};
use freehold_net::Owner;

use super::Wire;
use crate::fs::bytes::{SliceSink, SliceSource};
use crate::socket::channel::{Ancillary, Channel, Received};
use crate::socket::message::PassCredentials;
use crate::sync::{News, PollWaiter, Wake, Woken};
use crate::{Errno, Result};

/// The number of a connection that has none yet.
const NONE: usize = usize::MAX;

/// Notifies the task when a channel of a connection changes.
pub(super) struct Tie {
    wire: &'static Wire,
    number: AtomicUsize,
}

impl Tie {
    /// Sets the number of the connection.
    pub(super) fn bind(&self, number: usize) {
        self.number.store(number, Ordering::SeqCst);
        self.wake();
    }
}

impl Wake for Tie {
    fn wake(&self) -> Woken {
        let number = self.number.load(Ordering::SeqCst);
        if number != NONE {
            self.wire.is_due(number);
        }
        Woken::Nobody
    }
}

/// See the module's head.
pub struct Far {
    /// The channel that the socket receives from.
    own: Arc<Channel>,
    /// The channel that the socket sends into.
    out: Arc<Channel>,
    pub(super) tie: Arc<Tie>,
    _watch: PollWaiter,
}

impl Far {
    /// Makes the peer of the socket that receives from `own` and sends into `out`.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn new(wire: &'static Wire, own: Arc<Channel>, out: Arc<Channel>) -> Result<Self> {
        let tie = reserve::arc(Tie { wire, number: AtomicUsize::new(NONE) });
        let mut watch = PollWaiter::observer(tie.clone());
        watch.register(&own.writable);
        watch.register(&out.readable);
        Ok(Self { own, out, tie, _watch: watch.complete()? })
    }

    /// Returns the number of the connection, which must have been set.
    pub(super) fn number(&self) -> usize {
        self.tie.number.load(Ordering::Relaxed)
    }

    /// Whether the socket has sent bytes that were not fetched.
    pub(super) fn has_bytes(&self) -> bool {
        self.out.has_message()
    }

    /// Fills `room` from its start with bytes that the socket has sent. Returns their number, or
    /// `None` if another task holds the queue.
    pub(super) fn fetch(&self, room: &mut [u8]) -> Option<usize> {
        let mut queue = self.out.try_waiting()?;
        let mut received = Received::default();
        // If the call fails, the bytes that it counts have been stored nevertheless.
        let _ = queue.take_bytes(&mut SliceSink::new(room), &mut received, PassCredentials::No);
        self.out.publish(&queue);
        drop(queue);
        if received.count > 0 {
            self.out.made_room();
        }
        Some(received.count)
    }

    /// Whether the socket has ended its stream and all bytes were fetched.
    pub(super) fn has_ended(&self) -> bool {
        !self.out.has_sender() && !self.out.has_message()
    }

    /// Gives the socket as many of `bytes` as it has room for. Returns their number, or `None` if
    /// another task holds the queue.
    pub(super) fn deliver(&self, bytes: &[u8]) -> Option<usize> {
        if !self.own.has_receiver() {
            // The socket is gone: bytes are accepted and discarded.
            return Some(bytes.len());
        }
        if !self.own.has_room() {
            self.own.want_room();
            if !self.own.has_room() {
                return Some(0);
            }
        }
        let mut queue = self.own.try_waiting()?;
        let (mut source, mut done) = (SliceSource::new(bytes), 0);
        while done < bytes.len()
            && let Ok(count) = queue.push_bytes(&mut source, &mut Ancillary::default(), self.own.most())
        {
            done += count;
        }
        self.own.publish(&queue);
        drop(queue);
        if done > 0 {
            self.own.readable.announce(News::Input);
        }
        Some(done)
    }

    /// Returns the owner of the socket.
    pub(super) fn owner(&self) -> Owner {
        if self.out.has_error() {
            Owner::Reset
        } else if !self.own.has_reader() && !self.out.has_sender() {
            Owner::Deaf
        } else {
            Owner::Program
        }
    }

    /// Records that the call was answered.
    pub(super) fn connected(&self) {
        self.out.open();
    }

    /// Records that the peer's stream has ended.
    pub(super) fn ended(&self) {
        // If the program has ended its stream before, both are over now.
        let is_over = !self.out.has_sender();
        self.own.close_sender(Some(if is_over { News::HangUp } else { News::Input }));
    }

    /// Ends the connection with `error`. A receiver that sees the end also sees the error. As on
    /// Linux, a reset after the peer's end is a broken pipe.
    pub(super) fn failed(&self, error: Errno) {
        let is_broken = error == Errno::ECONNRESET && !self.own.has_sender();
        self.own.end_by(if is_broken { Errno::EPIPE } else { error });
        self.out.abandon_receiver();
        self.own.readable.announce(News::Error);
        self.own.writable.wake_all();
    }
}

impl Drop for Far {
    /// Both streams have ended.
    fn drop(&mut self) {
        self.own.close_sender(None);
        self.out.abandon_receiver();
    }
}
