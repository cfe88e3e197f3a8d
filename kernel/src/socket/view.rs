//! View of one socket for lists of sockets (/proc/net, sock_diag) and TCP_INFO.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::address::{Address, Family};
use super::endpoint::{Socket, SocketKind};
use super::ports::InetAddress;
use super::table::NOWHERE;
use crate::task::namespaces::network::NetworkNamespace;

/// States of a TCP socket, by Linux' numbers. The others are over at once where no packet is on its
/// way, and a socket that has a way to go is shown with the one that its program sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum TcpState {
    /// Both may send. Of UDP: it is connected.
    Established = 1,
    /// The peer has not answered the connection request yet.
    SynSent = 2,
    /// This end has ended its stream (SHUT_WR); the peer may send.
    FinWait2 = 5,
    /// Neither end will send, or the socket was never connected. A UDP socket is not connected.
    Close = 7,
    /// The peer has ended its stream; this end may send.
    CloseWait = 8,
    /// The socket listens.
    Listen = 10,
}

/// Notes on a socket from the table of sockets and from its file.
pub(super) struct ListEntry {
    /// Where it is in the table.
    pub(super) place: AtomicU32,
    /// Its file's inode; 0 until it has a file.
    inode: AtomicU64,
    owner: AtomicU32,
}

impl ListEntry {
    pub(super) const fn new() -> Self {
        Self { place: AtomicU32::new(NOWHERE), inode: AtomicU64::new(0), owner: AtomicU32::new(0) }
    }
}

/// A TCP or UDP socket.
#[derive(Clone, Copy, Debug)]
pub struct InetView {
    /// The address that the socket is bound to.
    pub local: InetAddress,
    /// The address that the socket is connected to; any address and port 0 for none.
    pub remote: InetAddress,
    /// Its state.
    pub state: TcpState,
    /// Bytes that wait to be received, or connections to be accepted.
    pub received: usize,
    /// How many connections may wait.
    pub backlog: usize,
}

impl Socket {
    /// Notes the inode of the socket's file, and the user that owns it.
    pub(super) fn note_file(&self, inode: u64, owner: u32) {
        self.listed.owner.store(owner, Ordering::Relaxed);
        self.listed.inode.store(inode, Ordering::Relaxed);
    }

    /// Its file's inode; 0 for a connection that was not accepted.
    pub fn inode(&self) -> u64 {
        self.listed.inode.load(Ordering::Relaxed)
    }

    /// The namespace of the process that made it.
    pub fn network(&self) -> &NetworkNamespace {
        &self.network
    }

    /// Returns the user that owns the socket.
    pub fn owner(&self) -> u32 {
        self.listed.owner.load(Ordering::Relaxed)
    }

    /// Its state as one of TCP or UDP.
    pub fn tcp_state(&self) -> TcpState {
        let (is_listening, is_connected) = {
            let state = self.state.lock();
            if state.peer.as_ref().is_some_and(|peer| peer.channel.is_opening()) {
                return if self.channel().has_failed() { TcpState::Close } else { TcpState::SynSent };
            }
            let is_connected = match self.kind() {
                SocketKind::Datagram => {
                    state.remote.is_some() || self.raw.as_ref().is_some_and(|raw| raw.remote().is_some())
                }
                _ => state.peer.is_some() && !self.channel().has_failed(),
            };
            (state.is_listening(), is_connected)
        };
        if self.kind() == SocketKind::Datagram {
            return if is_connected { TcpState::Established } else { TcpState::Close };
        }
        match (is_listening, is_connected, self.has_ended(), self.channel().has_sender()) {
            (true, ..) => TcpState::Listen,
            (_, true, false, true) => TcpState::Established,
            (_, true, false, false) => TcpState::CloseWait,
            (_, true, true, true) => TcpState::FinWait2,
            _ => TcpState::Close,
        }
    }

    /// Returns the view of a TCP or UDP socket. Returns `None` for a socket that Linux finds by no
    /// address: not bound, or of TCP closed.
    pub fn inet_view(&self) -> Option<InetView> {
        let state = self.tcp_state();
        if state == TcpState::Close && self.kind() != SocketKind::Datagram {
            return None;
        }
        let local = self.address().as_ref().and_then(Address::inet)?;
        let remote = self.peer_address().ok().flatten().as_ref().and_then(Address::inet);
        let (received, backlog) = self.backlog().unwrap_or_else(|| (self.channel().bytes(), 0));
        Some(InetView { local, remote: remote.unwrap_or_else(|| self.any()), state, received, backlog })
    }

    /// Returns the bytes that it sent over a connection of AF_UNIX and its peer did not receive
    /// (SIOCOUTQ). TCP shows unacknowledged bytes, of which there are none: sent bytes are with
    /// their receiver.
    pub fn unreceived(&self) -> usize {
        if self.family() != Family::Unix || self.kind() == SocketKind::Datagram {
            return 0;
        }
        let peer = self.state.lock().peer.as_ref().map(|peer| peer.channel.clone());
        peer.map_or(0, |channel| channel.bytes())
    }

    /// Whether it is connected, as lists of AF_UNIX sockets see it.
    pub fn has_peer(&self) -> bool {
        self.peer_address().is_ok()
    }

    /// Returns the directions that have ended: bit 0 for receiving, bit 1 for sending.
    pub fn shut_down(&self) -> u8 {
        let is_connected = self.kind() == SocketKind::Datagram || self.has_peer();
        let no_sender = is_connected && !(self.channel().has_sender() && self.channel().has_receiver());
        u8::from(no_sender) | u8::from(self.has_ended()) << 1
    }

    /// Whether it is of version 6 and has nothing to do with version 4.
    pub fn is_v6_alone(&self) -> bool {
        self.is_v6() && self.is_only_v6()
    }

    /// Whether `self` shows in lists of version 6.
    pub fn is_v6(&self) -> bool {
        self.family() == Family::Inet6
    }
}
