//! Making of sockets.

use core::sync::atomic::{AtomicBool, AtomicU32};

use freehold_collections::{Arc, Box, reserve};

use super::{Peer, Socket, SocketKind, SocketState, current_groups};
use crate::Result;
use crate::socket::attachment::network_of_caller;
use crate::socket::channel::Channel;
use crate::socket::cork::Cork;
use crate::socket::family::Family;
use crate::socket::memory::SocketAccount;
use crate::socket::netlink::Netlink;
use crate::socket::options::{Credentials, Options};
use crate::socket::packet::{PacketKind, PacketSocket};
use crate::socket::raw::{RawKind, RawSocket};
use crate::socket::view::ListEntry;
use crate::sync::{SpinLock, WaitQueue};
use crate::task::namespaces::network::NetworkNamespace;

/// State of a socket of a special kind, in addition to the common state.
pub(super) enum Special {
    None,
    /// UDP-Lite.
    Lite,
    Netlink(Box<Netlink>),
    Raw(Arc<RawSocket>),
    Packet(Arc<PacketSocket>),
}

impl Socket {
    /// Makes an unbound, unconnected socket.
    pub fn new(family: Family, kind: SocketKind) -> Arc<Self> {
        Self::make(family, kind, Special::None, network_of_caller())
    }

    /// Makes an unbound socket of UDP-Lite.
    pub fn new_lite(family: Family) -> Arc<Self> {
        Self::make(family, SocketKind::Datagram, Special::Lite, network_of_caller())
    }

    /// Makes a raw socket or a ping socket.
    ///
    /// # Errors
    /// As [`RawSocket::open`].
    pub fn new_raw(family: Family, kind: RawKind, protocol: i32) -> Result<Arc<Self>> {
        let network = network_of_caller();
        let raw = RawSocket::open(family, kind, protocol, network.clone())?;
        Ok(Self::make(family, SocketKind::Datagram, Special::Raw(raw), network))
    }

    /// Makes a packet socket.
    ///
    /// # Errors
    /// As [`PacketSocket::open`].
    pub fn new_packet(kind: PacketKind, protocol: i32) -> Result<Arc<Self>> {
        let network = network_of_caller();
        let packet = PacketSocket::open(kind, protocol, network.clone())?;
        Ok(Self::make(Family::Packet, SocketKind::Datagram, Special::Packet(packet), network))
    }

    /// Makes a socket of AF_NETLINK.
    pub fn new_netlink(netlink: Box<Netlink>) -> Arc<Self> {
        Self::make(Family::Netlink, SocketKind::Datagram, Special::Netlink(netlink), network_of_caller())
    }

    pub(super) fn make(
        family: Family,
        kind: SocketKind,
        special: Special,
        network: Arc<NetworkNamespace>,
    ) -> Arc<Self> {
        let is_lite = matches!(special, Special::Lite);
        let (mut netlink, mut raw, mut packet) = (None, None, None);
        let mut channel = None;
        match special {
            Special::None | Special::Lite => {}
            Special::Netlink(special) => netlink = Some(special),
            Special::Raw(special) => {
                channel = Some(special.channel().clone());
                raw = Some(special);
            }
            Special::Packet(special) => {
                channel = Some(special.channel().clone());
                packet = Some(special);
            }
        }
        let account = match (family, kind) {
            (Family::Inet | Family::Inet6, SocketKind::Stream) => SocketAccount::Tcp,
            (Family::Inet | Family::Inet6, _) => SocketAccount::Udp,
            (Family::Unix | Family::Netlink | Family::Packet, _) => SocketAccount::Other,
        };
        reserve::arc(Self {
            family,
            kind,
            network,
            channel: channel.unwrap_or_else(|| Channel::new(account)),
            state: SpinLock::new(SocketState::default()),
            options: SpinLock::new(Options::default()),
            device: AtomicU32::new(0),
            send_ended: AtomicBool::new(false),
            connections: reserve::arc(WaitQueue::new()),
            listed: ListEntry::new(),
            netlink,
            is_lite,
            raw,
            packet,
            cork: Cork::new(),
        })
    }

    /// Makes two sockets of AF_UNIX, connected to each other.
    pub fn pair(kind: SocketKind) -> (Arc<Self>, Arc<Self>) {
        let (one, other) = (Self::new(Family::Unix, kind), Self::new(Family::Unix, kind));
        let credentials = Credentials::current();
        let groups = current_groups();
        let peer = |of: &Self| {
            Some(Peer { channel: of.channel.clone(), address: None, credentials, groups: groups.clone() })
        };
        one.state.lock().peer = peer(&other);
        other.state.lock().peer = peer(&one);
        one.channel.set_sender(&other.channel);
        other.channel.set_sender(&one.channel);
        (one, other)
    }
}
