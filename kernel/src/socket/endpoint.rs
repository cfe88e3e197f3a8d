//! Sockets: unix(7), and tcp(7) and udp(7) within one machine ([`inet`](super::inet)).
//!
//! A connected stream (or seqpacket) socket receives from its own [`Channel`] and sends into its
//! peer's. The two sockets share nothing else, so there is no reference cycle. A listening socket
//! keeps complete connections until they are accepted. A datagram socket sends into the channel
//! that the destination address selects. A TCP connection over loopback works in the same way:
//! bytes do not pass through packets, as with Solaris' TCP fusion.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use freehold_collections::{Arc, Box, Receiver, VecDeque};

use super::address::Address;
use super::address::inet::InetAddress;
use super::beside::wishes::Wishes;
use super::beside::{Nature, Told};
use super::channel::{Ancillary, Channel, Manner, MessageOrigin, Patience, Received};
use super::cork::Cork;
use super::family::Family;
use super::memory::SocketAccount;
use super::netlink::Netlink;
use super::options::{Credentials, Options};
use super::packet::PacketSocket;
use super::ports::EntryKey;
use super::raw::RawSocket;
use super::table;
use super::view::ListEntry;
use crate::sync::{News, SpinLock, WaitQueue};
use crate::task;
use crate::task::credentials::Groups;
use crate::task::namespaces::network::NetworkNamespace;
use crate::user::{Sink, Source};
use crate::{Errno, Result};

/// The types of sockets, with their SOCK_* values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum SocketKind {
    /// SOCK_STREAM.
    Stream = 1,
    /// SOCK_DGRAM.
    Datagram = 2,
    /// SOCK_SEQPACKET.
    Packets = 5,
}

/// Largest backlog of listen(2) (net.core.somaxconn).
const MOST_WAITING: usize = 4096;

/// The other end of a connection.
#[derive(Clone)]
pub(super) struct Peer {
    /// The channel that this socket sends into.
    pub(super) channel: Arc<Channel>,
    pub(super) address: Option<Address>,
    credentials: Credentials,
    groups: Groups,
}

impl Peer {
    /// Makes a peer without known credentials.
    fn nameless(channel: Arc<Channel>, address: Option<Address>) -> Self {
        Self { channel, address, credentials: Credentials::NOBODY, groups: Groups::default() }
    }
}

/// Returns the caller's supplementary groups; none outside a task.
fn current_groups() -> Groups {
    task::try_with_current(|task| task.with_credentials(|own| own.groups.clone())).unwrap_or_default()
}

/// The destination of a message.
#[derive(Clone, Copy, Default)]
pub struct SendTarget<'a> {
    /// The address; `None` for the peer.
    pub address: Option<&'a Address>,
    /// The sender's requests for this message, if any.
    pub(super) wishes: Option<&'a Wishes>,
}

/// Connections that wait to be accepted.
struct Listener {
    waiting: VecDeque<Arc<Socket>>,
    most: usize,
}

#[derive(Default)]
pub(super) struct SocketState {
    pub(super) address: Option<Address>,
    pub(super) peer: Option<Peer>,
    listener: Option<Listener>,
    /// The socket's entry in the map of ports.
    pub(super) port: Option<EntryKey>,
    /// The address that a UDP socket is connected to.
    pub(super) remote: Option<InetAddress>,
    /// The credentials that a connecting peer will see: the listener's at listen(2).
    listen_credentials: Credentials,
    listen_groups: Groups,
}

impl SocketState {
    pub(super) const fn is_listening(&self) -> bool {
        self.listener.is_some()
    }
}

/// A socket.
pub struct Socket {
    family: Family,
    kind: SocketKind,
    pub(super) network: Arc<NetworkNamespace>,
    /// The channel that this socket receives from.
    channel: Arc<Channel>,
    pub(super) state: SpinLock<SocketState>,
    pub(super) options: SpinLock<Options>,
    /// The number of the network device that the socket is bound to; 0 for none.
    pub(super) device: AtomicU32,
    /// SHUT_WR.
    send_ended: AtomicBool,
    /// Woken when a connection waits or was accepted.
    connections: Arc<WaitQueue>,
    /// The socket's entry in lists of sockets.
    pub(super) listed: ListEntry,
    /// State of a socket of AF_NETLINK.
    pub(super) netlink: Option<Box<Netlink>>,
    /// Whether it is a socket of UDP-Lite.
    pub(super) is_lite: bool,
    /// State of a raw socket or a ping socket.
    pub(super) raw: Option<Arc<RawSocket>>,
    /// State of a packet socket.
    pub(super) packet: Option<Arc<PacketSocket>>,
    /// The datagram of a UDP socket that is not complete.
    pub(super) cork: Cork,
}

impl Socket {
    /// Returns the family of the socket's addresses.
    pub const fn family(&self) -> Family {
        self.family
    }

    /// Returns the socket's type.
    pub const fn kind(&self) -> SocketKind {
        self.kind
    }

    pub(super) fn nature(&self) -> Nature {
        let (is_raw, has_v6) = (self.raw.is_some(), matches!(self.family, Family::Inet6));
        let has_v4 = matches!(self.family, Family::Inet) || has_v6 && !is_raw;
        let is_tcp = self.is_tcp();
        Nature { has_v4, has_v6, is_raw, is_tcp, is_packet: self.packet.is_some() }
    }

    fn is_unix_stream(&self) -> bool {
        self.family == Family::Unix && self.kind == SocketKind::Stream
    }

    /// Returns the channel from which the socket receives.
    pub fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    /// Runs `f` on each channel that can be received from only through this socket's file: its own,
    /// and those of connections that wait to be accepted. `f` runs under a spin lock.
    pub(super) fn for_each_channel(&self, mut f: impl FnMut(&Arc<Channel>)) {
        f(&self.channel);
        if let Some(listener) = &self.state.lock().listener {
            listener.waiting.iter().for_each(|socket| f(&socket.channel));
        }
    }

    /// Returns the address that the socket is bound to.
    pub fn address(&self) -> Option<Address> {
        if let Some(netlink) = &self.netlink {
            return Some(Address::Netlink(netlink.own()));
        }
        if let Some(raw) = &self.raw {
            return Some(Address::Inet(raw.own()));
        }
        if let Some(packet) = &self.packet {
            return Some(Address::Link(packet.own()));
        }
        self.state.lock().address.clone()
    }

    /// Returns the address that the peer is bound to.
    ///
    /// # Errors
    /// `ENOTCONN`; `EOPNOTSUPP` for packet sockets.
    pub fn peer_address(&self) -> Result<Option<Address>> {
        if self.packet.is_some() {
            return Err(Errno::EOPNOTSUPP);
        }
        if let Some(netlink) = &self.netlink {
            return Ok(Some(Address::Netlink(netlink.destination())));
        }
        if let Some(raw) = &self.raw {
            // As on Linux, a remote port of 0 means that there is no peer.
            let named = raw.remote().filter(|remote| remote.port != 0);
            return named.map(|remote| Some(Address::Inet(remote))).ok_or(Errno::ENOTCONN);
        }
        let state = self.state.lock();
        if let Some(remote) = state.remote {
            return Ok(Some(Address::Inet(remote)));
        }
        let is_reset = self.is_tcp() && self.channel.has_failed();
        let peer = state.peer.as_ref().filter(|peer| !peer.channel.is_opening() && !is_reset);
        peer.map(|peer| peer.address.clone()).ok_or(Errno::ENOTCONN)
    }

    /// Returns the credentials of the peer that connected or accepted.
    pub fn peer_credentials(&self) -> Credentials {
        self.peer_identity().0
    }

    /// Returns the credentials and the supplementary groups of the peer.
    pub(super) fn peer_identity(&self) -> (Credentials, Groups) {
        let state = self.state.lock();
        let of_peer = |peer: &Peer| (peer.credentials, peer.groups.clone());
        state.peer.as_ref().map_or((Credentials::NOBODY, Groups::default()), of_peer)
    }

    /// Whether the socket listens.
    pub fn is_listening(&self) -> bool {
        self.state.lock().is_listening()
    }

    /// Returns the number of connections that wait to be accepted, and its limit. `None` if the
    /// socket does not listen.
    pub fn backlog(&self) -> Option<(usize, usize)> {
        let state = self.state.lock();
        state.listener.as_ref().map(|listener| (listener.waiting.len(), listener.most - 1))
    }

    /// Whether the sending direction was shut down (SHUT_WR).
    pub(super) fn has_ended(&self) -> bool {
        self.send_ended.load(Ordering::SeqCst)
    }

    /// bind(2).
    ///
    /// # Errors
    /// `EINVAL` if the socket is bound already; `EADDRINUSE`.
    pub fn bind(self: &Receiver<Self>, address: Option<Address>) -> Result<()> {
        if let Some(netlink) = &self.netlink {
            return netlink.bind(address.as_ref().and_then(Address::netlink).ok_or(Errno::EINVAL)?);
        }
        if let Some(raw) = &self.raw {
            return raw.bind(address.as_ref().and_then(Address::inet).ok_or(Errno::EAFNOSUPPORT)?);
        }
        if let Some(packet) = &self.packet {
            return packet.bind(address.as_ref().and_then(Address::link).ok_or(Errno::EINVAL)?);
        }
        if self.state.lock().address.is_some() {
            // A bind without a name succeeds if the socket already has one.
            let is_content = address.is_none() && self.family == Family::Unix;
            return if is_content { Ok(()) } else { Err(Errno::EINVAL) };
        }
        let address = match address {
            Some(Address::Inet(address)) => return self.bind_port(address),
            None if self.family != Family::Unix => return Err(Errno::EAFNOSUPPORT),
            Some(address) => {
                address.bind(self)?;
                address
            }
            None => Address::bind_to_any(self)?,
        };
        self.state.lock().address = Some(address);
        Ok(())
    }

    /// listen(2).
    ///
    /// # Errors
    /// `EOPNOTSUPP` for datagrams, `EINVAL` if the socket is not bound or is connected.
    pub fn listen(self: &Receiver<Self>, backlog: usize) -> Result<()> {
        if self.kind == SocketKind::Datagram {
            return Err(Errno::EOPNOTSUPP);
        }
        if self.family != Family::Unix {
            self.listen_on_port()?;
        }
        let mut state = self.state.lock();
        if state.address.is_none() || state.peer.is_some() {
            return Err(Errno::EINVAL);
        }
        let most = backlog.min(MOST_WAITING) + 1;
        state.listen_credentials = Credentials::current();
        state.listen_groups = current_groups();
        match &mut state.listener {
            Some(listener) => listener.most = most,
            None => state.listener = Some(Listener { waiting: VecDeque::new(), most }),
        }
        drop(state);
        self.connections.wake_all();
        Ok(())
    }

    /// connect(2).
    ///
    /// # Errors
    /// `ECONNREFUSED`, `EPROTOTYPE`, `EISCONN`, `EAGAIN`, `ERESTARTSYS`; `ENETUNREACH`.
    pub fn connect(self: &Receiver<Self>, address: &Address, patience: Patience) -> Result<()> {
        if self.packet.is_some() {
            return Err(Errno::EOPNOTSUPP);
        }
        if let Some(raw) = &self.raw {
            return raw.connect(address.inet());
        }
        if let Some(to) = address.inet() {
            return self.connect_to_port(to, patience);
        }
        if let Some(netlink) = &self.netlink {
            return netlink.connect(address.netlink(), &self.network);
        }
        let target = address.find(&self.network)?;
        if target.kind != self.kind {
            return Err(Errno::EPROTOTYPE);
        }
        if self.kind == SocketKind::Datagram {
            self.state.lock().peer = Some(Peer::nameless(target.channel.clone(), target.address()));
            return Ok(());
        }
        self.join(&target, &target.address(), patience)
    }

    /// Whether it is a datagram socket of AF_UNIX.
    pub fn is_unix_datagram(&self) -> bool {
        self.family == Family::Unix && self.kind == SocketKind::Datagram
    }

    /// Ends the connection of a datagram socket of AF_UNIX.
    pub(super) fn leave_peer(&self) {
        let peer = self.state.lock().peer.take();
        drop(peer);
    }

    /// Connects to `target`, which listens. `at` is the address that was called.
    pub(super) fn join(&self, target: &Self, at: &Option<Address>, patience: Patience) -> Result<()> {
        let served = Self::make(target.family, target.kind, Special::None, target.network.clone());
        served.name_early_senders();
        served.inherit(target)?;
        served.device.store(target.device(), Ordering::Relaxed);
        table::enter(&served)?;
        loop {
            target.wait_for_place(patience)?;
            let own_address = {
                let state = self.state.lock();
                if state.peer.is_some() {
                    return Err(Errno::EISCONN);
                }
                if state.listener.is_some() {
                    return Err(Errno::EINVAL);
                }
                state.address.clone()
            };
            *served.state.lock() = SocketState {
                address: at.clone(),
                peer: Some(Peer {
                    channel: self.channel.clone(),
                    address: own_address,
                    credentials: Credentials::current(),
                    groups: current_groups(),
                }),
                ..SocketState::default()
            };
            let (credentials, groups) = {
                let mut state = target.state.lock();
                let credentials = (state.listen_credentials, state.listen_groups.clone());
                let listener = state.listener.as_mut().ok_or(Errno::ECONNREFUSED)?;
                if listener.waiting.len() >= target.most_waiting(listener, patience) {
                    continue;
                }
                listener.waiting.try_push_back(served.clone())?;
                credentials
            };
            let peer = Peer { channel: served.channel.clone(), address: at.clone(), credentials, groups };
            served.channel.set_sender(&self.channel);
            self.channel.set_sender(&served.channel);
            self.state.lock().peer = Some(peer);
            self.publish_buffers();
            served.publish_buffers();
            target.connections.announce(News::Input);
            if self.family != Family::Unix {
                self.channel.readable.announce(News::Room);
            }
            return Ok(());
        }
    }

    /// Makes the socket that serves a call from another machine to this address. The remote end has
    /// completed the handshake. `far` makes the remote end from the two channels that the socket
    /// receives from and sends into.
    ///
    /// # Errors
    /// `EAGAIN` if the backlog is full, `EINVAL` if this socket does not listen, `ENOMEM`.
    pub(super) fn answer_call<T>(
        &self,
        (local, remote): (InetAddress, InetAddress),
        far: impl FnOnce(Arc<Channel>, Arc<Channel>) -> Result<T>,
    ) -> Result<T> {
        let has_place = |listener: &Listener| listener.waiting.len() < listener.most;
        if !self.state.lock().listener.as_ref().is_none_or(has_place) {
            return Err(Errno::EAGAIN);
        }
        let served = Self::make(self.family, self.kind, Special::None, self.network.clone());
        served.inherit(self)?;
        served.device.store(self.device(), Ordering::Relaxed);
        table::enter(&served)?;
        let out = Channel::new(SocketAccount::Tcp);
        out.set_sender(&served.channel);
        let far = far(served.channel.clone(), out.clone())?;
        let peer = Peer::nameless(out, Some(Address::Inet(remote)));
        *served.state.lock() =
            SocketState { address: Some(Address::Inet(local)), peer: Some(peer), ..SocketState::default() };
        served.publish_buffers();
        let mut state = self.state.lock();
        let listener = state.listener.as_mut().ok_or(Errno::EINVAL)?;
        if !has_place(listener) {
            return Err(Errno::EAGAIN);
        }
        listener.waiting.try_push_back(served.clone())?;
        drop(state);
        self.connections.announce(News::Input);
        Ok(far)
    }

    /// Sets the channel that the socket sends into, or none.
    pub(super) fn set_peer(&self, out: Option<(Arc<Channel>, InetAddress)>) {
        let peer = out.map(|(channel, address)| Peer::nameless(channel, Some(Address::Inet(address))));
        let old = core::mem::replace(&mut self.state.lock().peer, peer);
        drop(old);
        self.publish_buffers();
    }

    /// Returns the number of connections that may wait when a caller with this patience arrives. A
    /// TCP connect(2) that does not wait returns before the connection is made. So it fails only at
    /// the largest possible backlog.
    fn most_waiting(&self, listener: &Listener, patience: Patience) -> usize {
        match patience {
            Patience::Never if self.family != Family::Unix => MOST_WAITING,
            _ => listener.most,
        }
    }

    fn wait_for_place(&self, patience: Patience) -> Result<()> {
        let look = || match &self.state.lock().listener {
            None => Some(Err(Errno::ECONNREFUSED)),
            Some(_) if self.is_deaf() => Some(Err(Errno::ECONNREFUSED)),
            Some(listener) if listener.waiting.len() < self.most_waiting(listener, patience) => Some(Ok(())),
            Some(_) => None,
        };
        self.wait_for_connections(patience, look)
    }

    fn wait_for_connections<T>(
        &self,
        patience: Patience,
        mut look: impl FnMut() -> Option<Result<T>>,
    ) -> Result<T> {
        match (look(), patience) {
            (Some(result), _) => result,
            (None, Patience::Never) => Err(Errno::EAGAIN),
            (None, Patience::Until(deadline)) => {
                self.connections.wait_until_deadline(deadline, look)?.ok_or(Errno::EAGAIN)?
            }
        }
    }

    /// accept(2).
    ///
    /// # Errors
    /// `EINVAL` if the socket does not listen, `EOPNOTSUPP` for datagrams, `EAGAIN`, `ERESTARTSYS`.
    pub fn accept(&self, patience: Patience) -> Result<Arc<Self>> {
        if self.kind == SocketKind::Datagram {
            return Err(Errno::EOPNOTSUPP);
        }
        let look = || match &mut self.state.lock().listener {
            None => Some(Err(Errno::EINVAL)),
            Some(listener) if listener.waiting.is_empty() && self.is_deaf() => Some(Err(Errno::EINVAL)),
            Some(listener) => listener.waiting.pop_front().map(Ok),
        };
        let accepted = self.wait_for_connections(patience, look)?;
        self.connections.wake_all();
        accepted.channel.name_senders(self.channel.names_senders());
        let told = self.channel.told();
        if !told.is_empty() {
            accepted.channel.tell(told, Told::empty());
        }
        Ok(accepted)
    }

    /// Sends to `target`.
    ///
    /// # Errors
    /// `EPIPE`, `ENOTCONN`, `EDESTADDRREQ`, `EISCONN`, `ECONNREFUSED`, `EMSGSIZE`, `EAGAIN`,
    /// `ERESTARTSYS`, …
    pub fn send(
        self: &Receiver<Self>,
        source: &mut dyn Source,
        mut ancillary: Ancillary,
        target: SendTarget<'_>,
        patience: Patience,
    ) -> Result<usize> {
        let to = target.address;
        if let Some(netlink) = &self.netlink {
            return self.send_netlink(netlink, source, to);
        }
        // As on Linux, an AF_UNIX stream reports `EPIPE` first; its stored error is for receivers.
        if !self.is_unix_stream()
            && let Some(error) = self.channel.take_error()
        {
            return Err(error);
        }
        if self.send_ended.load(Ordering::SeqCst) {
            return Err(Errno::EPIPE);
        }
        if self.family != Family::Unix {
            // Files travel between AF_UNIX sockets only; the sender gets no error, as on Linux.
            drop(core::mem::take(&mut ancillary.files));
            if let Some(raw) = &self.raw {
                return raw.send(source, to.and_then(Address::inet), target.wishes);
            }
            if let Some(packet) = &self.packet {
                return packet.send(source, to.and_then(Address::link));
            }
            if self.kind == SocketKind::Datagram {
                let to = to.and_then(Address::inet);
                return self.send_datagram(source, ancillary, to, target.wishes);
            }
        }
        let channel = self.destination(to)?;
        if self.family == Family::Unix {
            if self.kind != SocketKind::Stream && source.remaining() > self.most_sent() {
                return Err(Errno::EMSGSIZE);
            }
            self.sign(&mut ancillary, &channel);
        }
        match self.kind {
            SocketKind::Stream if self.is_tcp() => self.send_tcp(&channel, source, ancillary, patience),
            SocketKind::Stream => channel.send_stream(source, ancillary, patience),
            SocketKind::Datagram => {
                let origin = MessageOrigin { name: self.address(), notes: channel.notes(|| None) };
                channel.send_message(source, ancillary, origin, patience)
            }
            SocketKind::Packets => {
                let origin = MessageOrigin { name: None, notes: channel.notes(|| None) };
                let sent = channel.send_message(source, ancillary, origin, patience);
                sent.map_err(|error| if error == Errno::ECONNREFUSED { Errno::EPIPE } else { error })
            }
        }
    }

    /// Receives. The result goes to `received`, which is empty before.
    ///
    /// # Errors
    /// `ENOTCONN`, `EINVAL` for a listening socket, `EAGAIN`, `ERESTARTSYS`, `EFAULT`.
    pub fn receive(&self, sink: &mut dyn Sink, manner: Manner, received: &mut Received) -> Result<()> {
        if self.kind != SocketKind::Datagram && self.state.lock().peer.is_none() {
            return Err(if self.is_unix_stream() { Errno::EINVAL } else { Errno::ENOTCONN });
        }
        match self.kind {
            SocketKind::Stream => {
                self.channel.receive_stream(sink, manner, received)?;
                if self.channel.told().contains(Told::LEAST) {
                    self.receive_least(sink, manner, received);
                }
                Ok(())
            }
            _ => {
                let result = self.channel.receive_message(sink, manner, received);
                self.netlink.iter().for_each(|netlink| self.go_on(netlink));
                match result {
                    // After SHUT_RD, the end of a connection is found without waiting.
                    Err(Errno::EAGAIN) if self.kind == SocketKind::Packets && !self.channel.has_reader() => {
                        Ok(())
                    }
                    result => result,
                }
            }
        }
    }
}

mod ending;
mod making;
mod polling;
mod sending;
pub use ending::Shutdown;
use making::Special;
#[cfg(test)]
mod tests;
