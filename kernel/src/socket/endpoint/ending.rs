//! The end of a socket: what its peer hears, and what it gives back.

use super::{Family, Peer, Socket, SocketKind};
use crate::Errno;
use crate::socket::{ports, table};
use crate::sync::News;

impl Socket {
    /// Returns the news of this socket's end for the peer's signals. An AF_UNIX peer hears of each
    /// end, a TCP peer only of an end that it did not know; `None`: the peer knew it.
    fn last_news(&self, peer: &Peer) -> Option<News> {
        if !self.is_inet() {
            Some(News::HangUp)
        } else if peer.channel.has_error() {
            Some(News::Error)
        } else if !peer.channel.has_sender() {
            None
        } else if !self.channel.has_sender() {
            Some(News::HangUp)
        } else {
            Some(News::Input)
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        table::leave(self);
        let state = core::mem::take(self.state.get_mut());
        if let Some(peer) = state.peer.filter(|_| self.kind != SocketKind::Datagram) {
            let [lingers, seconds] = self.options.get_mut().linger;
            let breaks_off = self.family != Family::Unix && lingers != 0 && seconds == 0;
            if self.channel.has_message() || breaks_off {
                // The peer has sent bytes that were not read, or the program wants no orderly end:
                // the peer hears of it.
                peer.channel.note_error(Errno::ECONNRESET);
            }
            peer.channel.close_sender(self.last_news(&peer));
        }
        self.channel.close_receiver();
        if let Some(address) = state.address {
            address.release(&self.network);
        }
        state.port.iter().for_each(ports::release);
        // Connections that were not accepted end here, and their peers notice.
        for socket in state.listener.into_iter().flat_map(|listener| listener.waiting) {
            if let Some(peer) = &socket.state.lock().peer {
                peer.channel.note_error(Errno::ECONNRESET);
            }
        }
    }
}
