//! UDP datagrams that programs send.

use freehold_collections::{Arc, Receiver};
use freehold_net::Marks;
use linux_raw_sys::net as c;

use super::address::Address;
use super::address::inet::InetAddress;
use super::beside::wishes::Wishes;
use super::beside::{IP, IPV6, PacketFacts, TOS, TTL};
use super::channel::{Ancillary, MessageOrigin, Patience};
use super::cork::MOST_DATAGRAM_BYTES;
use super::endpoint::Socket;
use super::interface;
use super::ports;
use super::raw::{self, arrive::Found};
use super::registry;
use crate::fs::bytes::SliceSource;
use crate::user::{Source, read_all, take_all};
use crate::{Errno, Result};

/// The two ends of a datagram, and the sender's requests.
#[derive(Clone, Copy)]
struct Outgoing<'a> {
    from: InetAddress,
    to: InetAddress,
    wishes: Option<&'a Wishes>,
}

impl Socket {
    /// Sends a datagram to a port, or to the port that the socket is connected to.
    ///
    /// # Errors
    /// `EDESTADDRREQ`, `ENETUNREACH`, `EMSGSIZE`, `EFAULT`, `ENOMEM`, `ERESTARTSYS`; `EINVAL` if
    /// the requested source is not an address of this machine, `ENODEV` if there is no such
    /// interface.
    pub(super) fn send_datagram(
        self: &Receiver<Self>,
        source: &mut dyn Source,
        ancillary: Ancillary,
        to: Option<InetAddress>,
        wishes: Option<&Wishes>,
    ) -> Result<usize> {
        let destination = || {
            if to.is_some_and(|to| to.port == 0) {
                return Err(Errno::EINVAL);
            }
            let remote = self.state.lock().remote;
            to.or(remote).ok_or(Errno::EDESTADDRREQ)
        };
        if self.cork.concerns(wishes) {
            let reached = || destination().and_then(|to| self.route(to).map(|_| to));
            return self.send_corked(source, reached, wishes);
        }
        self.send_one_datagram(source, ancillary, destination()?, wishes)
    }

    /// Sends one datagram to `to`.
    ///
    /// # Errors
    /// As [`Socket::send_datagram`].
    pub(super) fn send_one_datagram(
        self: &Receiver<Self>,
        source: &mut dyn Source,
        ancillary: Ancillary,
        to: InetAddress,
        wishes: Option<&Wishes>,
    ) -> Result<usize> {
        let (to, wire) = self.route(to)?;
        let length = source.remaining();
        if length > MOST_DATAGRAM_BYTES {
            return Err(Errno::EMSGSIZE);
        }
        let mut from = self.sent_from(self.own_port(self.any())?, to);
        if let Some(wishes) = wishes {
            from = self.wished_source(from, to, wishes)?;
        }
        if let Some(wire) = wire {
            return wire.send_datagram((from, to), self.marks(to, wishes), source);
        }
        let here = (self.network().number(), interface::LO.index);
        let found = ports::find(here, self.protocol(), to, Some(from));
        let outgoing = Outgoing { from, to, wishes };
        if registry::any() && !self.is_lite {
            return self.send_shown(outgoing, source, (ancillary, found));
        }
        self.hand_over(outgoing, source, (ancillary, found))
    }

    /// Returns the source address of a packet from `own`, after the sender's requests.
    #[cold]
    fn wished_source(&self, own: InetAddress, to: InetAddress, wishes: &Wishes) -> Result<InetAddress> {
        let is_there = |index| interface::all(self.network()).any(|device| device.index == index);
        if wishes.interface != 0 && !is_there(wishes.interface) {
            return Err(Errno::ENODEV);
        }
        let Some(ip) = wishes.source else { return Ok(own) };
        let wished = InetAddress { ip, ..own };
        if wished.is_v4() != to.is_v4() || !wished.is_local(self.network()) {
            return Err(Errno::EINVAL);
        }
        Ok(wished)
    }

    /// Returns the time to live and the type of service of a packet to `to`.
    fn marks(&self, to: InetAddress, wishes: Option<&Wishes>) -> Marks {
        let names = match to.is_v4() {
            true => [(IP, c::IP_TTL), (IP, c::IP_TOS)],
            false => [(IPV6, c::IPV6_UNICAST_HOPS), (IPV6, c::IPV6_TCLASS)],
        };
        let [ttl, tos] = if self.options.lock().remembered.is_empty() {
            [TTL, TOS]
        } else {
            names.map(|(level, name)| self.remembered(level, name).unwrap_or(0) as u8)
        };
        let wished = wishes.copied().unwrap_or_default();
        Marks { ttl: wished.ttl.unwrap_or(ttl), tos: wished.tos.unwrap_or(tos) }
    }

    /// As [`hand_over`](Self::hand_over), for a packet that a raw socket may also receive.
    #[cold]
    fn send_shown(
        &self,
        outgoing: Outgoing<'_>,
        source: &mut dyn Source,
        (ancillary, found): (Ancillary, Option<Arc<Self>>),
    ) -> Result<usize> {
        let bytes = read_all(source)?;
        let is_found = if found.is_some() { Found::Some } else { Found::None };
        let marks = self.marks(outgoing.to, outgoing.wishes);
        raw::arrive::show_datagram(self.network(), (outgoing.from, outgoing.to, marks), &bytes, is_found)?;
        self.hand_over(outgoing, &mut SliceSource::new(&bytes), (ancillary, found))
    }

    /// Gives a datagram to its destination socket, if there is one.
    #[inline]
    fn hand_over(
        &self,
        Outgoing { from, to, wishes }: Outgoing<'_>,
        source: &mut dyn Source,
        (ancillary, found): (Ancillary, Option<Arc<Self>>),
    ) -> Result<usize> {
        let length = source.remaining();
        let Some(target) = found else {
            if self.is_connected_to(to) {
                // ICMP reports the failure, and the next call returns it.
                self.channel().fail(Errno::ECONNREFUSED);
            }
            // The bytes of a datagram without a receiver are read nevertheless.
            return take_all(source, length);
        };
        let notes = target.channel().notes(|| Some(self.facts(to, wishes).into()));
        let origin = MessageOrigin { name: Some(Address::Inet(from)), notes };
        match target.channel().send_message(source, ancillary, origin, Patience::Never) {
            // No room, or the socket has ended: the datagram is lost.
            Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::ECONNREFUSED) => {
                target.channel().note_loss();
                Ok(length)
            }
            sent => sent,
        }
    }

    /// Returns the facts about a datagram to `to`, which stays on this machine.
    fn facts(&self, to: InetAddress, wishes: Option<&Wishes>) -> PacketFacts {
        let Marks { ttl, tos } = self.marks(to, wishes);
        PacketFacts { to: (to.ip, to.port), interface: interface::LO.index, ttl, tos }
    }
}
