//! Socket events that poll(2) and signals report.

use freehold_collections::Arc;

use super::{Channel, Family, Socket, SocketKind};
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
        let ended = !self.channel.has_sender() || !self.channel.has_reader();
        let ring_has_frames = || self.packet.as_ref().is_some_and(|packet| packet.is_readable());
        let has_message = self.channel.has_message() && self.has_least();
        ready.set(Ready::IN, has_message || ended || ring_has_frames());
        ready.set(Ready::RDHUP, ended);
        let can_send = match &peer {
            Some(peer) => {
                if !peer.has_room() {
                    peer.want_room();
                }
                peer.has_room() || !peer.has_receiver() || self.is_tcp() && self.has_ended()
            }
            None => true,
        };
        ready.set(Ready::OUT, can_send);
        ready.set(Ready::WRBAND, can_send && !self.is_tcp());
        ready.set(Ready::HUP, self.is_over(peer.as_ref(), ended));
        // Checked last: an error that ends both directions is recorded before them. So it is not
        // missed when their ends are seen (Linux: `tcp_poll`).
        ready.set(Ready::ERR, self.channel.has_error());
        ready
    }

    /// Whether both directions are over. `ended`: nothing more will arrive. A datagram socket's
    /// directions end only by its own shutdown(2), TCP's also by a reset, and those of a connection
    /// of AF_UNIX also by the peer's end.
    fn is_over(&self, peer: Option<&Arc<Channel>>, ended: bool) -> bool {
        match (self.kind, peer) {
            (SocketKind::Datagram, _) => ended && self.has_ended(),
            (_, None) => true,
            (_, Some(_)) if self.is_inet() => ended && self.has_ended() || self.channel.has_failed(),
            (_, Some(peer)) => ended && (self.has_ended() || !peer.has_receiver()),
        }
    }

    pub(super) fn is_inet(&self) -> bool {
        self.family != Family::Unix
    }

    /// Returns the queues of signal-driven I/O: for connections, and for all other events.
    pub(in crate::socket) fn news(&self) -> [Option<&Arc<WaitQueue>>; 2] {
        [Some(&self.connections), Some(&self.channel.readable)]
    }
}
