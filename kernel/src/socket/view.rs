//! The view of one socket for lists of sockets (/proc/net, sock_diag) and TCP_INFO.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::address::Address;
use super::address::inet::InetAddress;
use super::endpoint::{Socket, SocketKind};
use super::family::Family;
use super::packet::PacketKind;
use super::table::NOWHERE;
use crate::task::namespaces::network::NetworkNamespace;

/// States of a TCP socket, with Linux' numbers. Linux' other states end at once if no packet is on
/// its way. A connection to another machine is shown with the state that its program sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum TcpState {
    /// Both ends may send. A UDP socket is connected.
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

/// Data of a socket for the table of sockets, and for its file.
pub(super) struct ListEntry {
    /// The socket's place in the table.
    pub(super) place: AtomicU32,
    /// The inode of the socket's file; 0 until it has a file.
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
    /// The address that the socket is connected to. If there is none, the unspecified address and
    /// port 0.
    pub remote: InetAddress,
    /// The socket's state.
    pub state: TcpState,
    /// Bytes that wait to be received, or connections to be accepted.
    pub received: usize,
    /// Largest number of connections that may wait.
    pub backlog: usize,
}

impl Socket {
    /// Records the inode of the socket's file, and the user that owns it.
    pub(super) fn note_file(&self, inode: u64, owner: u32) {
        self.listed.owner.store(owner, Ordering::Relaxed);
        self.listed.inode.store(inode, Ordering::Relaxed);
    }

    /// Returns the inode of the socket's file; 0 for a connection that was not accepted.
    pub fn inode(&self) -> u64 {
        self.listed.inode.load(Ordering::Relaxed)
    }

    /// Returns the network namespace of the process that made the socket.
    pub fn network(&self) -> &NetworkNamespace {
        &self.network
    }

    /// Returns the user that owns the socket.
    pub fn owner(&self) -> u32 {
        self.listed.owner.load(Ordering::Relaxed)
    }

    /// Whether the socket has an address.
    pub fn is_bound(&self) -> bool {
        self.state.lock().address.is_some()
    }

    /// Returns the state of a TCP or UDP socket.
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

    /// Returns the view of a TCP or UDP socket. Returns `None` for a socket that Linux does not
    /// list by address: an unbound one, or a closed TCP socket.
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

    /// Returns the number of bytes that were sent over an AF_UNIX connection and that the peer did
    /// not receive (SIOCOUTQ). TCP reports unacknowledged bytes, of which there are none: sent
    /// bytes are already at their receiver.
    pub fn unreceived(&self) -> usize {
        if self.family() != Family::Unix || self.kind() == SocketKind::Datagram {
            return 0;
        }
        let peer = self.state.lock().peer.as_ref().map(|peer| peer.channel.clone());
        peer.map_or(0, |channel| channel.bytes())
    }

    /// Whether the socket is connected, as lists of AF_UNIX sockets show it.
    pub fn has_peer(&self) -> bool {
        self.peer_address().is_ok()
    }

    /// Returns the directions that have ended: bit 0 for receiving, bit 1 for sending.
    pub fn shut_down(&self) -> u8 {
        let is_connected = self.kind() == SocketKind::Datagram || self.has_peer();
        let no_sender = is_connected && !(self.channel().has_sender() && self.channel().has_reader());
        u8::from(no_sender) | u8::from(self.has_ended()) << 1
    }

    /// Returns the kind of a packet socket, and the protocol and device that it is bound to.
    pub fn packet_view(&self) -> Option<(PacketKind, (u16, u32))> {
        self.packet.as_ref().map(|packet| (packet.kind(), packet.bound()))
    }

    /// Whether the socket is for IPv6 only.
    pub fn is_v6_alone(&self) -> bool {
        self.is_v6() && self.is_only_v6()
    }

    /// Whether the socket appears in lists of IPv6 sockets.
    pub fn is_v6(&self) -> bool {
        self.family() == Family::Inet6
    }
}
