//! The end of a socket or of one of its directions: the events for its peer, and the release of its
//! resources.

use core::sync::atomic::Ordering;

use linux_raw_sys::net as c;

use super::{Channel, Family, Listener, Peer, Socket, SocketKind};
use crate::socket::view::TcpState;
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

impl Shutdown {
    /// Returns the direction that shutdown(2) names.
    ///
    /// # Errors
    /// `EINVAL`.
    pub const fn from_number(how: u32) -> Result<Self> {
        Ok(match how {
            c::SHUT_RD => Self::Receive,
            c::SHUT_WR => Self::Send,
            c::SHUT_RDWR => Self::Both,
            _ => return Err(Errno::EINVAL),
        })
    }
}

/// Ends connections that were not accepted; their peers notice.
fn refuse_waiting(listener: Option<Listener>) {
    for socket in listener.into_iter().flat_map(|listener| listener.waiting) {
        if let Some(peer) = &socket.state.lock().peer {
            peer.channel.note_error(Errno::ECONNRESET);
        }
    }
}

/// Records in `channel`, which belongs to a socket of `family`, that its peer has reset the
/// connection. As on Linux, TCP reports a reset once, and one after the peer's end as a broken
/// pipe.
pub(super) fn note_reset(channel: &Channel, family: Family) {
    match (family, channel.has_failed(), channel.has_sender()) {
        (Family::Unix, ..) | (_, false, true) => channel.note_error(Errno::ECONNRESET),
        (_, false, false) => channel.note_error(Errno::EPIPE),
        (_, true, _) => {}
    }
}

impl Socket {
    /// shutdown(2).
    ///
    /// # Errors
    /// `ENOTCONN`, also for datagram sockets of IP without a peer, which are shut down
    /// nevertheless; `EOPNOTSUPP`.
    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        if self.netlink.is_some() || self.packet.is_some() {
            return Err(Errno::EOPNOTSUPP);
        }
        let (peer, is_listening) = {
            let state = self.state.lock();
            (state.peer.clone(), state.is_listening())
        };
        if is_listening && self.is_inet() {
            return self.stop_listening(how);
        }
        let is_tcp = self.is_tcp();
        if is_tcp && (peer.is_none() || self.channel.has_failed()) {
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
            self.channel.end_reading();
            if is_listening {
                self.connections.announce(News::HangUp);
            }
        }
        if self.refuses_senders() {
            self.channel.refuse();
        }
        self.channel.wake_all();
        // As on Linux, a datagram socket without a peer is shut down nevertheless.
        let is_lonely = self.is_inet() && !is_tcp && self.tcp_state() == TcpState::Close;
        if is_lonely { Err(Errno::ENOTCONN) } else { Ok(()) }
    }

    /// Whether senders are refused after shutdown(2): by AF_UNIX sockets that read no more, and by
    /// TCP sockets that neither read nor send. UDP sockets refuse none.
    fn refuses_senders(&self) -> bool {
        let is_unix = !self.is_inet();
        self.channel.is_unread() && (is_unix || self.is_tcp() && self.has_ended())
    }

    /// shutdown(2) of a listening TCP socket. If receiving ends, there are no more connections
    /// until it listens again. It keeps its port.
    ///
    /// # Errors
    /// `ENOMEM`; the socket then goes on listening.
    fn stop_listening(&self, how: Shutdown) -> Result<()> {
        if how == Shutdown::Send {
            return Ok(());
        }
        let port = self.state.lock().port;
        port.map_or(Ok(()), |key| ports::stop_listening(&key))?;
        let listener = self.state.lock().listener.take();
        refuse_waiting(listener);
        self.connections.announce(News::HangUp);
        Ok(())
    }

    /// Whether shutdown(2) has ended the acceptance of new connections by an AF_UNIX socket.
    /// Connections that wait are still accepted.
    pub(super) fn is_deaf(&self) -> bool {
        !self.is_inet() && !self.channel.has_reader()
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
                note_reset(&peer.channel, self.family);
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
