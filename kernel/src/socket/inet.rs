//! TCP and UDP: ip(7), tcp(7), udp(7).
//!
//! A TCP connection between two sockets of this machine consists of two channels, like an AF_UNIX
//! connection. Segments, acknowledgements and retransmission are not needed where no byte is lost.
//! The parts of TCP that programs see are implemented: ports, listen queues, resets, the options,
//! and their names. A UDP datagram is put into the channel of the socket that its address selects,
//! or dropped if there is no room. [`wire`] handles traffic with other machines.

use freehold_collections::{Arc, Receiver};

use super::address::Address;
use super::address::inet::InetAddress;
use super::attachment::source_for;
use super::channel::{Channel, Patience};
use super::endpoint::{Socket, SocketKind};
use super::family::Family;
use super::interface::{ETHERNET_INDEX, LO};
use super::memory::SocketAccount;
use super::options::Credentials;
use super::ports::{self, Claim, EntryKey, Protocol};
use super::wire::{self, Wire};
use crate::sync::News;
use crate::task::Capability;
use crate::{Errno, Result, hw, task};

/// Number of local ports that are tried for a connection.
const TRIES: usize = 64;

impl Socket {
    /// Returns the protocol that the socket's ports belong to.
    pub(super) const fn protocol(&self) -> Protocol {
        match self.kind() {
            SocketKind::Datagram if self.is_lite => Protocol::UdpLite,
            SocketKind::Datagram => Protocol::Udp,
            _ => Protocol::Tcp,
        }
    }

    /// SO_PROTOCOL.
    pub fn protocol_number(&self) -> i32 {
        if let Some(netlink) = &self.netlink {
            return netlink.protocol();
        }
        if let Some(raw) = &self.raw {
            return raw.protocol().into();
        }
        match self.family() {
            Family::Inet | Family::Inet6 => self.protocol() as i32,
            Family::Unix | Family::Netlink | Family::Packet => 0,
        }
    }

    /// bind(2) to a port.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if the address is not this machine's, `EACCES`, `EADDRINUSE`, `EINVAL` if
    /// the socket is bound already, `ENOMEM`.
    pub(super) fn bind_port(self: &Receiver<Self>, wanted: InetAddress) -> Result<()> {
        if !self.reaches(wanted) && !(self.binds_freely() && self.has_version(wanted)) {
            return Err(Errno::EADDRNOTAVAIL);
        }
        let privileged = (1..self.network().first_free_port()).contains(&wanted.port.into());
        let owner = self.network().head().owner();
        if privileged && !task::may_in(owner, Capability::NetBindService) {
            return Err(Errno::EACCES);
        }
        self.take_port(wanted).map(|_| ())
    }

    /// Binds the socket, unless it is bound. Returns its address.
    fn take_port(self: &Receiver<Self>, wanted: InetAddress) -> Result<InetAddress> {
        let claim = Claim {
            address: wanted,
            device: self.device(),
            user: Credentials::current_user(),
            only_v6: self.is_only_v6(),
            reuses_address: self.reuses_address(),
            reuses_port: self.reuses_port(),
        };
        let (address, key) = ports::bind(self, self.protocol(), claim)?;
        let mut state = self.state.lock();
        if state.port.is_some() {
            // Another thread has bound the socket first.
            drop(state);
            ports::release(&key);
            return Err(Errno::EINVAL);
        }
        state.port = Some(key);
        state.address = Some(Address::Inet(address));
        Ok(address)
    }

    /// Returns the address that the socket is bound to. An unbound socket is first bound to a free
    /// port of `wanted`.
    pub(super) fn own_port(self: &Receiver<Self>, wanted: InetAddress) -> Result<InetAddress> {
        let bound = self.state.lock().address.as_ref().and_then(Address::inet);
        bound.map_or_else(|| self.take_port(wanted), Ok)
    }

    fn entry(&self) -> Result<EntryKey> {
        self.state.lock().port.ok_or(Errno::EINVAL)
    }

    /// Checks and prepares the port for listen(2).
    ///
    /// # Errors
    /// `EADDRINUSE`, `EINVAL` if the socket is connected, `ENOMEM`, `ERESTARTSYS`.
    pub(super) fn listen_on_port(self: &Receiver<Self>) -> Result<()> {
        if self.state.lock().peer.is_some() {
            return Err(Errno::EINVAL);
        }
        self.own_port(self.any())?;
        ports::listen(&self.entry()?)
    }

    /// Returns the unspecified address of the socket's family.
    pub(super) fn any(&self) -> InetAddress {
        let ip = match self.family() {
            Family::Inet6 => core::net::Ipv6Addr::UNSPECIFIED,
            _ => core::net::Ipv4Addr::UNSPECIFIED.to_ipv6_mapped(),
        };
        InetAddress { ip, port: 0 }
    }

    /// Whether the address is this machine's, and of an IP version that the socket supports.
    fn reaches(&self, address: InetAddress) -> bool {
        address.is_local(self.network()) && self.has_version(address)
    }

    /// Whether the address is of an IP version that the socket supports.
    fn has_version(&self, address: InetAddress) -> bool {
        !(address.is_v4() && self.is_v6_alone())
    }

    /// Returns the destination address of a packet to `to`, and the network that leads there if it
    /// is on another machine.
    pub(super) fn route(&self, to: InetAddress) -> Result<(InetAddress, Option<&'static Wire>)> {
        if !self.network().is_up() {
            return Err(Errno::ENETUNREACH);
        }
        let device = self.device();
        if self.reaches(to) && [0, LO.index].contains(&device) {
            return Ok((to.concrete(), None));
        }
        let leads = self.has_version(to)
            && self.network().is_initial()
            && [0, ETHERNET_INDEX].contains(&device)
            && !self.reaches(to)
            && !self.is_lite
            && source_for(to.ip).is_some();
        wire::wire().filter(|_| leads).map(|wire| (to, Some(wire))).ok_or(Errno::ENETUNREACH)
    }

    /// connect(2) to a port.
    ///
    /// # Errors
    /// `ENETUNREACH` if there is no route to the address, `ECONNREFUSED`, `EISCONN`, `EAGAIN`,
    /// `ERESTARTSYS`, `ENOMEM`; for another machine also `EINPROGRESS`, `EALREADY`, `ETIMEDOUT`,
    /// `EHOSTUNREACH`.
    pub(super) fn connect_to_port(self: &Receiver<Self>, to: InetAddress, patience: Patience) -> Result<()> {
        let (to, wire) = self.route(to)?;
        let source = InetAddress { ip: to.source(self.network()), port: 0 };
        if self.kind() == SocketKind::Datagram {
            let own = self.own_port(source)?;
            let key = self.entry()?;
            ports::set_remote(&key, Some(to))?;
            let mut state = self.state.lock();
            state.remote = Some(to);
            state.address = Some(Address::Inet(self.sent_from(own, to)));
            return Ok(());
        }
        let called = self.state.lock().peer.as_ref().map(|peer| peer.channel.clone());
        if called.as_ref().is_some_and(|out| out.take_answer()) {
            return Ok(());
        }
        if let Some(out) = called.filter(|out| out.is_opening()) {
            if out.has_receiver() {
                return self.wait_for_answer(&out, patience, Errno::EALREADY);
            }
            // The call failed, and the program may have got the error already. The next connect(2)
            // is a new call.
            self.set_peer(None);
            return Err(self.channel().take_error().unwrap_or(Errno::ECONNABORTED));
        }
        if self.is_listening() || self.state.lock().peer.is_some() {
            return Err(Errno::EISCONN);
        }
        if let Some(wire) = wire {
            let out = self.call(wire, (source, to))?;
            // As on Linux, a caller that does not wait gets no immediate success.
            if patience == Patience::Never {
                return Err(Errno::EINPROGRESS);
            }
            return self.wait_for_answer(&out, patience, Errno::EINPROGRESS);
        }
        let joined = self.join_port((source, to), patience);
        if patience != Patience::Never {
            return joined;
        }
        // The answer has arrived, but as on Linux a caller that does not wait gets it later.
        match joined {
            Ok(()) => self.state.lock().peer.iter().for_each(|peer| peer.channel.note_answer()),
            Err(Errno::ECONNREFUSED) => self.note_refusal(to),
            Err(error) => return Err(error),
        }
        Err(Errno::EINPROGRESS)
    }

    /// Connects to a port of this machine.
    fn join_port(
        self: &Receiver<Self>,
        (source, to): (InetAddress, InetAddress),
        patience: Patience,
    ) -> Result<()> {
        // Which of several listeners it is does not depend on the port that this socket gets.
        let mut port = [0; 2];
        hw::fill_random(&mut port);
        let from = InetAddress { port: u16::from_ne_bytes(port), ..source };
        let target = ports::find((self.network().number(), LO.index), Protocol::Tcp, to, Some(from))
            .ok_or(Errno::ECONNREFUSED)?;
        let own = self.own_port(source)?;
        self.state.lock().address = Some(Address::Inet(self.sent_from(own, to)));
        self.channel().renew();
        self.join(&target, &Some(Address::Inet(to)), patience)
    }

    /// Puts the socket into the state after a refused call to another machine: the next call, or
    /// SO_ERROR, reports the error.
    fn note_refusal(&self, to: InetAddress) {
        let out = Channel::new(SocketAccount::Tcp);
        out.hold();
        out.close_receiver();
        self.channel().renew();
        self.set_peer(Some((out, to)));
        self.channel().end_by(Errno::ECONNREFUSED);
        self.channel().readable.announce(News::Error);
        self.channel().writable.wake_all();
    }

    /// Calls `to` on another machine. Returns the channel to send into once `to` has answered. If
    /// the program did not choose the port, another one is tried while an old connection with the
    /// same ends is not over.
    fn call(
        self: &Receiver<Self>,
        wire: &'static Wire,
        (source, to): (InetAddress, InetAddress),
    ) -> Result<Arc<Channel>> {
        let is_bound = self.state.lock().port.is_some();
        for _ in 0..TRIES {
            let local = self.sent_from(self.own_port(source)?, to);
            self.state.lock().address = Some(Address::Inet(local));
            let out = Channel::new(SocketAccount::Tcp);
            out.hold();
            out.set_sender(self.channel());
            self.channel().renew();
            self.set_peer(Some((out.clone(), to)));
            let Err(error) = wire.call((local, to), self.channel(), &out) else { return Ok(out) };
            self.set_peer(None);
            if is_bound || error != Errno::EADDRNOTAVAIL {
                return Err(error);
            }
            let port = {
                let mut state = self.state.lock();
                state.address = None;
                state.port.take()
            };
            port.iter().for_each(ports::release);
            crate::sched::checkpoint()?;
        }
        Err(Errno::EADDRNOTAVAIL)
    }

    /// Waits for the answer to a call whose data is sent into `out`.
    ///
    /// # Errors
    /// `pending` if the caller does not wait long enough; the reason of a failure; `ERESTARTSYS`.
    fn wait_for_answer(&self, out: &Arc<Channel>, patience: Patience, pending: Errno) -> Result<()> {
        let is_known = || (!out.is_opening() || self.channel().has_error()).then_some(());
        if let (None, Patience::Until(deadline)) = (is_known(), patience) {
            out.writable.wait_until_deadline(deadline, is_known)?;
        }
        if let Some(error) = self.channel().take_error() {
            self.set_peer(None);
            return Err(error);
        }
        out.take_answer();
        if out.is_opening() { Err(pending) } else { Ok(()) }
    }

    /// Whether this is a UDP socket that receives from `remote` only.
    pub(super) fn is_connected_to(&self, remote: InetAddress) -> bool {
        self.state.lock().remote == Some(remote)
    }

    /// connect(2) to AF_UNSPEC: a datagram socket has no peer any more, and receives from all
    /// senders again.
    ///
    /// # Errors
    /// `EINVAL` for other sockets; `ENOMEM`.
    pub fn disconnect(&self) -> Result<()> {
        if let Some(netlink) = &self.netlink {
            return netlink.connect(None, self.network());
        }
        if let Some(raw) = &self.raw {
            return raw.connect(None);
        }
        if self.kind() != SocketKind::Datagram {
            return Err(Errno::EINVAL);
        }
        if self.family() == Family::Unix {
            self.leave_peer();
            return Ok(());
        }
        let key = self.state.lock().port;
        key.map_or(Ok(()), |key| ports::set_remote(&key, None))?;
        self.state.lock().remote = None;
        Ok(())
    }

    /// Returns the source address of a packet to `to`, for a socket that is bound to `own`.
    pub(super) fn sent_from(&self, own: InetAddress, to: InetAddress) -> InetAddress {
        if own.is_any() { InetAddress { ip: to.source(self.network()), port: own.port } } else { own }
    }
}
