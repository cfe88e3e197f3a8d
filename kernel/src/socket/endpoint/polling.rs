//! Socket events that poll(2) and signals report.

use core::sync::atomic::Ordering;

use freehold_collections::Arc;

use super::{Family, Socket, SocketKind};
use crate::fs::Ready;
use crate::sync::{PollWaiter, WaitQueue};

impl Socket {
    /// Returns the events that poll(2) reports.
    pub fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        let (peer, listening, waiting) = {
            let state = self.state.lock();
            let waiting = state.listener.as_ref().is_some_and(|listener| !listener.waiting.is_empty());
            (state.peer.as_ref().map(|peer| peer.channel.clone()), state.listener.is_some(), waiting)
        };
        if let Some(waiter) = waiter {
            waiter.register(&self.connections);
            waiter.register(&self.channel.readable);
            if let Some(peer) = &peer {
                waiter.register(&peer.writable);
            }
        }
        let mut ready = Ready::empty();
        if listening {
            let is_deaf = self.is_deaf();
            ready.set(Ready::IN, waiting || is_deaf);
            ready.set(Ready::RDHUP, is_deaf);
            ready.set(Ready::HUP, is_deaf && self.has_ended());
            return ready;
        }
        let ended = !self.channel.has_sender() || !self.channel.has_receiver();
        ready.set(Ready::IN, self.channel.has_message() && self.has_least() || ended);
        ready.set(Ready::RDHUP, ended);
        let send_ended = self.send_ended.load(Ordering::SeqCst);
        match &peer {
            Some(peer) => {
                if !peer.has_room() {
                    peer.want_room();
                }
                ready.set(Ready::OUT, peer.has_room() || !peer.has_receiver());
                // TCP reports the end of one direction at a time, except after a reset; AF_UNIX
                // that of both.
                let both = self.family == Family::Unix || self.channel.has_failed();
                let is_over = send_ended || both && !peer.has_receiver();
                ready.set(Ready::HUP, ended && is_over);
            }
            None if self.kind == SocketKind::Datagram => ready |= Ready::OUT,
            None => ready |= Ready::OUT | Ready::HUP,
        }
        // Checked last: an error that ends both directions is recorded before them. So it is not
        // missed when their ends are seen (Linux: `tcp_poll`).
        ready.set(Ready::ERR, self.channel.has_error());
        ready
    }

    pub(super) fn is_inet(&self) -> bool {
        self.family != Family::Unix
    }

    /// Returns the queues of signal-driven I/O: for connections, and for all other events.
    pub(in crate::socket) fn news(&self) -> [Option<&Arc<WaitQueue>>; 2] {
        [Some(&self.connections), Some(&self.channel.readable)]
    }
}
