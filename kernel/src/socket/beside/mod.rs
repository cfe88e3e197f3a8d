//! Ancillary data. A receiver sets options to get facts about a packet as control messages of
//! recvmsg(2). A sender passes requests in control messages of sendmsg(2).
//!
//! All sockets share this code. The flags of the options are one word of the receiver's channel. A
//! sender loads it once per message, and makes [`Notes`] only where a flag is set. The notes are
//! queued with the message, in a separate list, so that messages without notes cost nothing. If
//! there is no memory for its notes, a message has none.
//!
//! A message that arrived before the option was set has no notes. As on Linux, the receiver then
//! gets the time of the receive, and no other fact.
//!
//! Sources: ip(7), ipv6(7), socket(7), RFC 3542, `__sock_recv_cmsgs` in net/socket.c,
//! `ip_cmsg_recv_offset` in net/ipv4/ip_sockglue.c, `ip6_datagram_recv_ctl` in net/ipv6/datagram.c.

pub mod controls;
pub(super) mod wishes;

use core::net::Ipv6Addr;

use linux_raw_sys::net as c;
use zerocopy::IntoBytes;

use self::controls::Controls;
use crate::time::{self, TimeSpec, TimeVal};
use crate::user::{self, UserPtr};
use crate::{Errno, Result};

/// Levels: IPPROTO_IP, IPPROTO_TCP, IPPROTO_IPV6.
pub(super) const IP: u32 = 0;
const TCP: u32 = 6;
pub(super) const IPV6: u32 = 41;
/// Options and control messages of IPPROTO_IPV6: IPV6_2292PKTINFO, IPV6_2292HOPLIMIT, IPV6_RECVERR,
/// IPV6_RECVPKTINFO, IPV6_PKTINFO, IPV6_RECVHOPLIMIT, IPV6_HOPLIMIT, IPV6_RECVTCLASS, IPV6_TCLASS,
/// IPV6_RECVORIGDSTADDR.
const OLD_PKTINFO: u32 = 2;
const OLD_HOPLIMIT: u32 = 8;
const RECVERR_V6: u32 = 25;
const RECVPKTINFO: u32 = 49;
const PKTINFO_V6: u32 = 50;
const RECVHOPLIMIT: u32 = 51;
const HOPLIMIT: u32 = 52;
const RECVTCLASS: u32 = 66;
const TCLASS: u32 = 67;
const RECVORIGDSTADDR_V6: u32 = 74;
/// TCP_INQ of IPPROTO_TCP, an option and a control message.
const INQ: u32 = 36;
/// SOL_PACKET, and PACKET_AUXDATA, an option and a control message.
pub(super) const PACKET: u32 = 263;
const AUXDATA: u32 = 8;
/// The time to live and the type of service of a packet whose sender set none.
pub(super) const TTL: u8 = 64;
pub(super) const TOS: u8 = 0;

bitflags::bitflags! {
    /// Options of a receiving socket that are on or off. Most of them request ancillary data.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Told: u32 {
        /// SO_TIMESTAMP.
        const TIME = 1;
        /// SO_TIMESTAMPNS.
        const TIME_NS = 1 << 1;
        /// SO_TIMESTAMP_NEW.
        const TIME_NEW = 1 << 2;
        /// SO_TIMESTAMPNS_NEW.
        const TIME_NS_NEW = 1 << 3;
        /// IP_PKTINFO.
        const INTERFACE = 1 << 4;
        /// IP_RECVTTL.
        const TTL = 1 << 5;
        /// IP_RECVTOS.
        const TOS = 1 << 6;
        /// IP_RECVORIGDSTADDR.
        const TARGET = 1 << 7;
        /// IPV6_RECVPKTINFO.
        const INTERFACE_V6 = 1 << 8;
        /// IPV6_RECVHOPLIMIT.
        const HOPS = 1 << 9;
        /// IPV6_RECVTCLASS.
        const CLASS = 1 << 10;
        /// IPV6_RECVORIGDSTADDR.
        const TARGET_V6 = 1 << 11;
        /// IPV6_2292PKTINFO.
        const OLD_INTERFACE_V6 = 1 << 12;
        /// IPV6_2292HOPLIMIT.
        const OLD_HOPS = 1 << 13;
        /// SO_RXQ_OVFL.
        const LOST = 1 << 14;
        /// IP_RECVERR, IPV6_RECVERR: reports all errors, even if the socket is not connected.
        const ERRORS = 1 << 15;
        /// SO_REUSEADDR of a raw socket. It has no effect: raw sockets always share addresses and
        /// identifiers.
        const SHARES = 1 << 16;
        /// SO_RCVLOWAT is more than a byte.
        const LEAST = 1 << 17;
        /// TCP_INQ: requests the number of bytes left to read.
        const LEFT = 1 << 18;
        /// PACKET_AUXDATA: requests facts about a frame.
        const AUXILIARY = 1 << 19;
    }
}

impl Told {
    /// The time options. A socket has at most one of them.
    pub(super) const TIMES: Self =
        Self::TIME.union(Self::TIME_NS).union(Self::TIME_NEW).union(Self::TIME_NS_NEW);
    /// The options for which messages need notes.
    const NOTED: Self =
        Self::all().difference(Self::ERRORS.union(Self::SHARES)).difference(Self::LEAST.union(Self::LEFT));

    /// Returns the flag that an option of a socket sets, if the option has one.
    pub(super) fn of(level: u32, name: u32, nature: Nature) -> Option<Self> {
        Some(match (level, name) {
            (c::SOL_SOCKET, c::SO_TIMESTAMP_OLD) => Self::TIME,
            (c::SOL_SOCKET, c::SO_TIMESTAMPNS_OLD) => Self::TIME_NS,
            (c::SOL_SOCKET, c::SO_TIMESTAMP_NEW) => Self::TIME_NEW,
            (c::SOL_SOCKET, c::SO_TIMESTAMPNS_NEW) => Self::TIME_NS_NEW,
            (c::SOL_SOCKET, c::SO_RXQ_OVFL) => Self::LOST,
            (c::SOL_SOCKET, c::SO_REUSEADDR) if nature.is_raw => Self::SHARES,
            (TCP, INQ) if nature.is_tcp => Self::LEFT,
            (PACKET, AUXDATA) if nature.is_packet => Self::AUXILIARY,
            (IP, name) if nature.has_v4 => match name {
                c::IP_PKTINFO => Self::INTERFACE,
                c::IP_RECVTTL => Self::TTL,
                c::IP_RECVTOS => Self::TOS,
                c::IP_RECVORIGDSTADDR => Self::TARGET,
                c::IP_RECVERR => Self::ERRORS,
                _ => return None,
            },
            (IPV6, name) if nature.has_v6 => match name {
                RECVPKTINFO => Self::INTERFACE_V6,
                RECVHOPLIMIT => Self::HOPS,
                RECVTCLASS => Self::CLASS,
                RECVORIGDSTADDR_V6 => Self::TARGET_V6,
                OLD_PKTINFO => Self::OLD_INTERFACE_V6,
                OLD_HOPLIMIT => Self::OLD_HOPS,
                RECVERR_V6 => Self::ERRORS,
                _ => return None,
            },
            _ => return None,
        })
    }

    /// Whether messages need notes.
    #[inline]
    pub(super) fn wants_notes(self) -> bool {
        self.intersects(Self::NOTED)
    }

    /// Returns the control messages for a message with these notes, or without notes. `None` if the
    /// socket requested none.
    #[inline]
    pub(super) fn controls(self, notes: Option<&Notes>) -> Option<Controls> {
        if self.wants_notes() { Some(self.make_controls(notes)) } else { None }
    }

    /// Adds the number of bytes left in a stream, which `left` returns, if the socket requested
    /// that.
    #[inline]
    pub(super) fn add_left(self, controls: &mut Option<Controls>, left: impl FnOnce() -> usize) {
        if self.contains(Self::LEFT) {
            let left = i32::try_from(left()).unwrap_or(i32::MAX);
            controls.get_or_insert_with(Controls::new).push(TCP, INQ, &[&left.to_ne_bytes()]);
        }
    }

    #[cold]
    fn make_controls(self, notes: Option<&Notes>) -> Controls {
        let mut all = Controls::new();
        let time = notes.map_or_else(time::wall_nanoseconds, |notes| notes.time);
        self.put_time(u64::try_from(time).unwrap_or(0), &mut all);
        let Some(notes) = notes else { return all };
        if self.contains(Self::LOST) && notes.lost > 0 {
            all.push(c::SOL_SOCKET, c::SO_RXQ_OVFL, &[&notes.lost.to_ne_bytes()]);
        }
        match &notes.facts {
            Some(Facts::Packet(facts)) => {
                facts.put_interface(self, &mut all);
                if facts.is_v4() { facts.put_v4(self, &mut all) } else { facts.put_v6(self, &mut all) }
            }
            Some(Facts::Frame(facts)) if self.contains(Self::AUXILIARY) => facts.put(&mut all),
            Some(Facts::Frame(_)) | None => {}
        }
        all
    }

    fn put_time(self, time: u64, all: &mut Controls) {
        let (seconds, nanoseconds) = (TimeVal::from_nanoseconds(time), TimeSpec::from_nanoseconds(time));
        let (kind, data) = match self & Self::TIMES {
            Self::TIME => (c::SO_TIMESTAMP_OLD, seconds.as_bytes()),
            Self::TIME_NEW => (c::SO_TIMESTAMP_NEW, seconds.as_bytes()),
            Self::TIME_NS => (c::SO_TIMESTAMPNS_OLD, nanoseconds.as_bytes()),
            Self::TIME_NS_NEW => (c::SO_TIMESTAMPNS_NEW, nanoseconds.as_bytes()),
            _ => return,
        };
        all.push(c::SOL_SOCKET, kind, &[data]);
    }
}

/// The properties of a socket that determine which options it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Nature {
    /// Whether the socket has the IPv4 options. IPv6 sockets that also accept IPv4 have both kinds.
    pub(super) has_v4: bool,
    /// Whether the socket has the IPv6 options.
    pub(super) has_v6: bool,
    /// Whether the socket is a raw socket or a ping socket.
    pub(super) is_raw: bool,
    pub(super) is_tcp: bool,
    /// Whether the socket is of AF_PACKET.
    pub(super) is_packet: bool,
}

/// Facts about a packet, from its header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketFacts {
    /// The destination's address and port. For IPv4 the address is a mapped one.
    pub to: (Ipv6Addr, u16),
    /// The number of the interface that received the packet.
    pub interface: u32,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Type of service, or traffic class.
    pub tos: u8,
}

/// Facts about a frame for a packet socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameFacts {
    /// Bytes of the frame, or of the packet in it.
    pub length: u32,
    /// Bytes of the message, which is the beginning.
    pub shown: u32,
    /// Where in these bytes the network's header begins.
    pub network_at: u16,
}

/// Facts about a message's origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Facts {
    /// From an IP packet.
    Packet(PacketFacts),
    /// From a frame.
    Frame(FrameFacts),
}

impl From<PacketFacts> for Facts {
    fn from(facts: PacketFacts) -> Self {
        Self::Packet(facts)
    }
}

impl From<FrameFacts> for Facts {
    fn from(facts: FrameFacts) -> Self {
        Self::Frame(facts)
    }
}

/// Facts about a message that a receiver can request in addition to its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notes {
    /// Time of arrival, in nanoseconds since 1970.
    time: i64,
    /// Number of messages that were lost before this one (modulo 2^32).
    lost: u32,
    /// `None` if the message is neither an IP packet nor a frame.
    facts: Option<Facts>,
}

impl Notes {
    /// Returns the number of messages that were lost before this one.
    #[cfg(test)]
    pub(super) const fn lost(self) -> u32 {
        self.lost
    }

    /// Returns the notes of a message that arrives now, after `lost` lost messages.
    pub(super) fn now(lost: u32, facts: Option<Facts>) -> Self {
        Self { time: time::wall_nanoseconds(), lost, facts }
    }
}

/// Reads an option's new value from a program. The value of an IPv4 option may have only one byte,
/// or none.
///
/// # Errors
/// `EINVAL` if it is too short, `EFAULT`.
pub(super) fn number(level: u32, value: u64, length: usize) -> Result<i32> {
    match length {
        0 if level == IP => Ok(0),
        1..4 if level == IP => UserPtr::<u8>::new(value).read().map(i32::from),
        0..4 => Err(Errno::EINVAL),
        _ => UserPtr::<i32>::new(value).read(),
    }
}

/// The place where getsockopt(2) writes a value.
#[derive(Clone, Copy, Debug)]
pub(super) struct OptionRoom {
    value: u64,
    length: UserPtr<i32>,
    /// Number of bytes there.
    pub(super) bytes: usize,
}

impl OptionRoom {
    /// Reads the number of bytes at `value`, which `length` points to.
    ///
    /// # Errors
    /// `EINVAL` if it is negative, `EFAULT`.
    pub(super) fn read(value: u64, length: UserPtr<i32>) -> Result<Self> {
        let bytes = usize::try_from(length.read()?).map_err(|_| Errno::EINVAL)?;
        Ok(Self { value, length, bytes })
    }

    /// Writes a value, cut to the room, and the number of bytes written.
    ///
    /// # Errors
    /// `EFAULT`.
    pub(super) fn put(&self, value: &[u8]) -> Result<()> {
        let count = self.bytes.min(value.len());
        user::write_exact(self.value, &value[..count])?;
        self.length.write(&(count as i32))
    }
}

/// Returns the four bytes of an IPv4 address.
fn v4_bytes(ip: Ipv6Addr) -> [u8; 4] {
    let [.., a, b, c, d] = ip.octets();
    [a, b, c, d]
}

impl FrameFacts {
    /// Adds `struct tpacket_auxdata`: no frame has the tag of a virtual network apart from its
    /// bytes.
    fn put(&self, all: &mut Controls) {
        /// TP_STATUS_USER.
        const TAKEN: u32 = 1;
        let numbers = [TAKEN, self.length, self.shown];
        let places = [0, self.network_at, 0, 0];
        all.push(PACKET, AUXDATA, &[numbers.as_bytes(), places.as_bytes()]);
    }
}

impl PacketFacts {
    fn is_v4(&self) -> bool {
        self.to.0.to_ipv4_mapped().is_some()
    }

    /// Adds IPV6_PKTINFO, which IPv6 sockets get with packets of both versions, or IP_PKTINFO.
    fn put_interface(&self, told: Told, all: &mut Controls) {
        let (octets, index) = (self.to.0.octets(), self.interface.to_ne_bytes());
        if told.contains(Told::INTERFACE_V6) {
            all.push(IPV6, PKTINFO_V6, &[&octets, &index]);
        }
        if told.contains(Told::INTERFACE) && self.is_v4() {
            let own = v4_bytes(self.to.0);
            all.push(IP, c::IP_PKTINFO, &[&index, &own, &own]);
        }
    }

    fn put_v4(&self, told: Told, all: &mut Controls) {
        if told.contains(Told::TTL) {
            all.push(IP, c::IP_TTL, &[&u32::from(self.ttl).to_ne_bytes()]);
        }
        if told.contains(Told::TOS) {
            all.push(IP, c::IP_TOS, &[&[self.tos]]);
        }
        if told.contains(Told::TARGET) {
            let (family, port) = ((c::AF_INET as u16).to_ne_bytes(), self.to.1.to_be_bytes());
            let name: [&[u8]; 4] = [&family, &port, &v4_bytes(self.to.0), &[0; 8]];
            all.push(IP, c::IP_RECVORIGDSTADDR, &name);
        }
    }

    fn put_v6(&self, told: Told, all: &mut Controls) {
        let (octets, index) = (self.to.0.octets(), self.interface.to_ne_bytes());
        let (hops, class) = (u32::from(self.ttl).to_ne_bytes(), u32::from(self.tos).to_ne_bytes());
        if told.contains(Told::HOPS) {
            all.push(IPV6, HOPLIMIT, &[&hops]);
        }
        if told.contains(Told::CLASS) {
            all.push(IPV6, TCLASS, &[&class]);
        }
        if told.contains(Told::OLD_INTERFACE_V6) {
            all.push(IPV6, OLD_PKTINFO, &[&octets, &index]);
        }
        if told.contains(Told::OLD_HOPS) {
            all.push(IPV6, OLD_HOPLIMIT, &[&hops]);
        }
        if told.contains(Told::TARGET_V6) {
            let (family, port) = ((c::AF_INET6 as u16).to_ne_bytes(), self.to.1.to_be_bytes());
            let name: [&[u8]; 5] = [&family, &port, &[0; 4], &octets, &[0; 4]];
            all.push(IPV6, RECVORIGDSTADDR_V6, &name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::wishes::Wishes;
    use super::*;
    use crate::fs::bytes::{SliceSink, SliceSource};
    use crate::socket::address::Address;
    use crate::socket::address::inet::InetAddress;
    use crate::socket::channel::{Ancillary, Manner, Patience, Received};
    use crate::socket::endpoint::{SendTarget, Socket, SocketKind};
    use crate::socket::family::Family;

    fn at(ip: [u8; 4], port: u16) -> InetAddress {
        InetAddress { ip: core::net::Ipv4Addr::from(ip).to_ipv6_mapped(), port }
    }

    #[test]
    fn a_datagram_brings_the_facts_that_its_receiver_asked_for() {
        let [server, client] = [0, 1].map(|_: u8| Socket::new(Family::Inet, SocketKind::Datagram));
        let to = Address::Inet(at([127, 0, 0, 1], 20_040));
        server.bind(Some(to.clone())).unwrap();
        let wishes = Wishes { source: Some(at([127, 0, 0, 2], 0).ip), ttl: Some(9), ..Wishes::default() };
        let send = || {
            let target = SendTarget { address: Some(&to), wishes: Some(&wishes) };
            client.send(&mut SliceSource::new(b"x"), Ancillary::default(), target, Patience::Never).unwrap();
        };
        let receive = || {
            let (mut buffer, mut received) = ([0; 4], Received::default());
            let sink = &mut SliceSink::new(&mut buffer);
            server.receive(sink, Manner::take(Patience::Never), &mut received).unwrap();
            received
        };
        send();
        assert!(server.channel().told().controls(receive().notes.as_ref()).is_none(), "none was asked for");
        send();
        server.channel().tell(Told::TTL | Told::INTERFACE | Told::TIME, Told::empty());
        send();
        let came = || {
            let received = receive();
            let controls = server.channel().told().controls(received.notes.as_ref()).unwrap();
            let all = controls.iter().map(|control| (control.level, control.kind, control.data().to_vec()));
            (received.from, all.collect::<Vec<_>>())
        };
        let (_, early) = came();
        assert_eq!(early.len(), 1, "it came before the options, and has the time of the receive");
        let (from, facts) = came();
        assert!(matches!(from, Some(Address::Inet(InetAddress { ip, .. })) if Some(ip) == wishes.source));
        assert_eq!((facts[0].0, facts[0].1), (c::SOL_SOCKET, c::SO_TIMESTAMP_OLD));
        let info = [1, 0, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1].to_vec();
        assert_eq!(facts[1..], [(IP, c::IP_PKTINFO, info), (IP, c::IP_TTL, [9, 0, 0, 0].to_vec())]);
    }
}
