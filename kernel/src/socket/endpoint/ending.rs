//! The end of a socket or of one of its directions: the events for its peer, and the release of its
//! resources.

use core::sync::atomic::Ordering;

use super::{Family, Listener, Peer, Socket, SocketKind};
use crate::socket::{ports, table};
use crate::sync::News;
use crate::{Errno, Result};

/// Which direction ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shutdown {
    /// SHUT_RD.
    Receive,
    /// SHUT_WR.
    Send,
    /// SHUT_RDWR.
    Both,
}

/// Ends connections that were not accepted; their peers notice.
fn refuse_waiting(listener: Option<Listener>) {
    for socket in listener.into_iter().flat_map(|listener| listener.waiting) {
        if let Some(peer) = &socket.state.lock().peer {
            peer.channel.note_error(Errno::ECONNRESET);
        }
    }
}

impl Socket {
    /// shutdown(2).
    ///
    /// # Errors
    /// `ENOTCONN`, `EOPNOTSUPP`.
    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        if self.netlink.is_some() {
            return Err(Errno::EOPNOTSUPP);
        }
        let (peer, is_listening) = {
            let state = self.state.lock();
            (state.peer.clone(), state.is_listening())
        };
        if is_listening && self.is_inet() {
            self.stop_listening(how);
            return Ok(());
        }
        if peer.is_none() && self.kind != SocketKind::Datagram && self.is_inet() {
            return Err(Errno::ENOTCONN);
        }
        if how != Shutdown::Receive {
            self.send_ended.store(true, Ordering::SeqCst);
            if let Some(peer) = peer.filter(|_| self.kind != SocketKind::Datagram) {
                let is_over = how == Shutdown::Both || self.is_inet() && !self.channel.has_sender();
                peer.channel.close_sender(Some(if is_over { News::HangUp } else { News::Input }));
            }
        }
        if how != Shutdown::Send {
            self.channel.close_receiver();
            if is_listening {
                self.connections.announce(News::HangUp);
            }
        }
        Ok(())
    }

    /// shutdown(2) of a listening TCP socket. If receiving ends, there are no more connections
    /// until it listens again. It keeps its port.
    fn stop_listening(&self, how: Shutdown) {
        if how == Shutdown::Send {
            return;
        }
        let (listener, port) = {
            let mut state = self.state.lock();
            (state.listener.take(), state.port)
        };
        port.iter().for_each(ports::stop_listening);
        refuse_waiting(listener);
        self.connections.announce(News::HangUp);
    }

    /// Whether shutdown(2) has ended the acceptance of new connections by an AF_UNIX socket.
    /// Connections that wait are still accepted.
    pub(super) fn is_deaf(&self) -> bool {
        !self.is_inet() && !self.channel.has_receiver()
    }

    /// Returns the events of this socket's end for the peer's signals. An AF_UNIX peer is notified
    /// of each end, a TCP peer only of an end that it did not know. `None`: the peer knew the end.
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
                // The peer has sent bytes that were not read, or the program requests a reset:
                // report it to the peer.
                peer.channel.note_error(Errno::ECONNRESET);
            }
            peer.channel.close_sender(self.last_news(&peer));
        }
        self.channel.close_receiver();
        if let Some(address) = state.address {
            address.release(&self.network);
        }
        state.port.iter().for_each(ports::release);
        refuse_waiting(state.listener);
    }
}
