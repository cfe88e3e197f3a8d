//! Packets for this machine: copies for raw and ping sockets, answers to echo requests, and errors
//! for packets without a receiver.
//!
//! A packet that a program sends to this machine arrives before its send returns ([`arrive`]). Then
//! its answer arrives, in a loop; an answer is never answered. The task `net` passes packets from
//! the network to sockets ([`show`]); the stack answers them.

use core::net::Ipv6Addr;

use freehold_bpf::{HasLink, PacketData};
use freehold_collections::{Arc, Vec};
use freehold_net::Marks;

use super::format::{
    self, ECHO, ECHO_REPLY, ECHO_REPLY_V6, ECHO_V6, Head, ICMP, ICMP_HEADER, ICMPV6, Packet, Refused, TCP,
    UDP,
};
use super::{HEARERS, RawKind, RawSocket};
use crate::socket::address::Address;
use crate::socket::address::inet::InetAddress;
use crate::socket::beside::{PacketFacts, Told};
use crate::socket::channel::MessageOrigin;
use crate::socket::family::Family;
use crate::socket::interface;
use crate::socket::packet::frame::{Bound, PROTOCOL_V4, PROTOCOL_V6};
use crate::socket::packet::show::{self as frames, Deliver, put};
use crate::socket::ports::{self, Protocol};
use crate::socket::registry::Hears;
use crate::task::namespaces::network::NetworkNamespace;
use crate::{Errno, Result};

/// Whether a packet found a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::socket) enum Found {
    /// It did.
    Some,
    /// It did not.
    None,
}

/// Sends the packet in `bytes` through the loopback device of `network`.
pub(in crate::socket) fn arrive(network: &NetworkNamespace, bytes: Vec<u8>) {
    frames::show_on_loopback(network, &bytes);
    process(network, bytes);
}

/// Processes the packet in `bytes`, which has arrived in `network` from the same network.
pub(in crate::socket) fn process(network: &NetworkNamespace, bytes: Vec<u8>) {
    let mut next = Some(bytes);
    while let Some(bytes) = next.take() {
        let Some(packet) = Packet::parse(&bytes) else { return };
        if !is_own(network, packet.head.to) || !is_own(network, packet.head.from) {
            return;
        }
        let found = show(network, &bytes, interface::LO.index, &mut put);
        // If there is no memory for the answer, it is lost.
        next = answer(network, &packet, found).ok().flatten();
        next.iter().for_each(|answer| frames::show_on_loopback(network, answer));
    }
}

/// Whether `ip` is an address of `network`.
fn is_own(network: &NetworkNamespace, ip: Ipv6Addr) -> bool {
    let address = InetAddress { ip, port: 0 };
    !address.is_any() && address.is_local(network)
}

/// Returns the answer to a packet, which is addressed to this machine.
fn answer(network: &NetworkNamespace, packet: &Packet<'_>, found: Found) -> Result<Option<Vec<u8>>> {
    let refused = |why| match packet.may_be_refused() {
        true => format::refusal(packet, why).map(Some),
        false => Ok(None),
    };
    match (packet.head.protocol, packet.icmp()) {
        (ICMP, Some([ECHO, ..])) | (ICMPV6, Some([ECHO_V6, ..])) => format::echo_reply(packet).map(Some),
        // TCP between sockets of this machine uses no packets.
        (ICMP | ICMPV6 | TCP, _) => Ok(None),
        (UDP, _) if hand_over(network, packet) == Found::None => refused(Refused::Port),
        (UDP, _) => Ok(None),
        _ if found == Found::None => refused(Refused::Protocol),
        _ => Ok(None),
    }
}

/// Gives a datagram to its socket. A corrupted one is lost.
fn hand_over(network: &NetworkNamespace, packet: &Packet<'_>) -> Found {
    let Some(([from, to], bytes)) = packet.udp() else { return Found::Some };
    let from = InetAddress { ip: packet.head.from, port: from };
    let to = InetAddress { ip: packet.head.to, port: to };
    if !packet.has_right_udp_checksum() {
        return Found::Some;
    }
    let Some(socket) = ports::find((network.number(), interface::LO.index), Protocol::Udp, to, Some(from))
    else {
        return Found::None;
    };
    let Head { ttl, tos, .. } = packet.head;
    let facts = PacketFacts { to: (to.ip, to.port), interface: interface::LO.index, ttl, tos };
    let notes = socket.channel().notes(|| Some(facts.into()));
    put(socket.channel(), bytes, MessageOrigin { name: Some(Address::Inet(from)), notes });
    Found::Some
}

/// Shows a datagram as a packet to raw sockets, and the answer to it. The datagram was sent between
/// sockets of `network` without a packet; `found` tells whether it reached its socket.
///
/// # Errors
/// `ENOMEM`.
pub(in crate::socket) fn show_datagram(
    network: &NetworkNamespace,
    (from, to, marks): (InetAddress, InetAddress, Marks),
    payload: &[u8],
    found: Found,
) -> Result<()> {
    let head = Head { from: from.ip, to: to.ip, protocol: UDP, ttl: marks.ttl, tos: marks.tos };
    if from.is_v4() != to.is_v4() {
        return Ok(());
    }
    let bytes = format::datagram(head, [from.port, to.port], payload)?;
    frames::show_on_loopback(network, &bytes);
    show(network, &bytes, interface::LO.index, &mut put);
    if let (Found::None, Some(packet)) = (found, Packet::parse(&bytes)) {
        let refusal = format::refusal(&packet, Refused::Port)?;
        frames::show_on_loopback(network, &refusal);
        show(network, &refusal, interface::LO.index, &mut put);
    }
    Ok(())
}

/// Gives `socket` a packet that `interface` received: the part that its filter passes. An IPv4 raw
/// socket gets the header, too.
fn give(socket: &RawSocket, packet: &Packet<'_>, interface: u32, deliver: Deliver<'_>) {
    let with_header = socket.kind() == RawKind::Raw && socket.is_v4();
    let bytes = if with_header { packet.whole } else { packet.payload() };
    let hardware =
        if interface == interface::LO.index { interface::LO.hardware } else { interface::ETHERNET };
    let part = socket.filter.part(|| PacketData {
        bytes,
        network: packet.whole,
        payload_at: packet.innermost_at().saturating_sub(packet.whole.len() - bytes.len()) as u32,
        has_link: HasLink::No,
        protocol: if packet.head.is_v4() { PROTOCOL_V4 } else { PROTOCOL_V6 },
        kind: Bound::Host as u8,
        interface,
        hardware,
        random: 0,
    });
    if part == 0 {
        return;
    }
    let Head { from, to, ttl, tos, .. } = packet.head;
    let facts = PacketFacts { to: (to, 0), interface, ttl, tos };
    let name = Some(Address::Inet(InetAddress { ip: from, port: 0 }));
    let origin = MessageOrigin { name, notes: socket.channel().notes(|| Some(facts.into())) };
    deliver(socket.channel(), &bytes[..bytes.len().min(part)], origin);
}

/// Shows a packet to the sockets of `network` that receive such packets.
fn show(network: &NetworkNamespace, bytes: &[u8], interface: u32, deliver: Deliver<'_>) -> Found {
    let Some(packet) = Packet::parse(bytes) else { return Found::None };
    let (number, protocol) = (network.number(), packet.head.protocol);
    let mut found = Found::None;
    let mut offer = |socket: &Arc<RawSocket>| {
        if socket.wants(&packet) && socket.hears_device(interface) {
            found = Found::Some;
            if socket.channel().has_room() {
                give(socket, &packet, interface, deliver);
            } else {
                socket.channel().note_loss();
            }
        }
    };
    let is_v4 = packet.head.is_v4();
    HEARERS.each(number, if is_v4 { Hears::V4(protocol) } else { Hears::V6(protocol) }, &mut offer);
    if let Some(message) = packet.icmp() {
        let identifier = format::be16(message, 4);
        match (is_v4, message[0]) {
            (true, ECHO_REPLY) => last(number, Hears::Ping4(identifier), &packet).iter().for_each(&mut offer),
            (false, ECHO_REPLY_V6) => {
                last(number, Hears::Ping6(identifier), &packet).iter().for_each(&mut offer);
            }
            _ => tell_error(number, &packet, message),
        }
    }
    found
}

/// Returns the ping socket that receives a reply. If several share the identifier, it is the last
/// one, as on Linux.
fn last(network: u64, hears: Hears, packet: &Packet<'_>) -> Option<Arc<RawSocket>> {
    let mut last = None;
    HEARERS.each(network, hears, |socket| {
        if socket.wants(packet) {
            last = Some(socket.clone());
        }
    });
    last
}

/// Shows a packet from the network, for the machine's own address.
pub(in crate::socket) fn show_from_wire(bytes: &[u8], deliver: Deliver<'_>) {
    show(NetworkNamespace::initial(), bytes, interface::ETHERNET_INDEX, deliver);
}

/// Returns the errno of an ICMP error, and whether it is permanent.
fn error_of(is_v4: bool, kind: u8, code: u8) -> Option<(Errno, Lasting)> {
    use Lasting::{No, Yes};
    Some(match (is_v4, kind, code) {
        (true, 3, 0 | 11) => (Errno::ENETUNREACH, No),
        (true, 3, 1 | 12) => (Errno::EHOSTUNREACH, No),
        (true, 3, 2) => (Errno::ENOPROTOOPT, Yes),
        (true, 3, 3) | (false, 1, 4) => (Errno::ECONNREFUSED, Yes),
        (true, 3, 4) | (false, 2, _) => (Errno::EMSGSIZE, No),
        (true, 3, 5) => (Errno::EOPNOTSUPP, No),
        (true, 3, 6 | 9) => (Errno::ENETUNREACH, Yes),
        (true, 3, _) => (Errno::EHOSTUNREACH, Yes),
        (true, 11, _) | (false, 3, _) => (Errno::EHOSTUNREACH, No),
        (true, 12, _) | (false, 4, _) => (Errno::EPROTO, Yes),
        (false, 1, 0) => (Errno::ENETUNREACH, No),
        (false, 1, 1 | 5 | 6) => (Errno::EACCES, Yes),
        (false, 1, _) => (Errno::EHOSTUNREACH, No),
        _ => return None,
    })
}

/// Whether a retry may succeed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lasting {
    Yes,
    No,
}

/// Reports the error `message` to the sockets that may have sent the packet that it quotes.
fn tell_error(network: u64, packet: &Packet<'_>, message: &[u8]) {
    let is_v4 = packet.head.is_v4();
    let Some((error, lasting)) = error_of(is_v4, message[0], message[1]) else { return };
    let Some(about) = Packet::parse_shown(&message[ICMP_HEADER..]) else { return };
    let protocol = about.head.protocol;
    let mut tell = |socket: &Arc<RawSocket>| {
        let state = *socket.state.lock();
        let is_its = state.local.is_none_or(|own| own == about.head.from)
            && state.remote.is_none_or(|remote| remote.ip == about.head.to);
        let hears = lasting == Lasting::Yes && state.remote.is_some()
            || socket.channel().told().contains(Told::ERRORS);
        if is_its && hears {
            socket.channel().fail(error);
        }
    };
    HEARERS.each(network, if is_v4 { Hears::V4(protocol) } else { Hears::V6(protocol) }, &mut tell);
    let shown = about.payload();
    if shown.len() >= ICMP_HEADER && [(ICMP, ECHO), (ICMPV6, ECHO_V6)].contains(&(protocol, shown[0])) {
        let identifier = format::be16(shown, 4);
        let hears = if is_v4 { Hears::Ping4(identifier) } else { Hears::Ping6(identifier) };
        HEARERS.each(network, hears, &mut tell);
    }
}

impl RawSocket {
    /// Whether the socket receives this packet, which is of its protocol.
    fn wants(&self, packet: &Packet<'_>) -> bool {
        let state = *self.state.lock();
        let head = &packet.head;
        // As on Linux, a ping socket receives answers from any address.
        let from_remote =
            self.kind() == RawKind::Ping || state.remote.is_none_or(|remote| remote.ip == head.from);
        if !from_remote || state.local.is_some_and(|own| own != head.to) {
            return false;
        }
        let payload = packet.payload();
        let is_icmp = head.protocol == if self.is_v4() { ICMP } else { ICMPV6 };
        if is_icmp && self.kind() == RawKind::Raw {
            let Some(&kind) = payload.first() else { return false };
            if state.settings.filters(kind) {
                return false;
            }
        }
        self.family() == Family::Inet || state.settings.checksum_at.is_none() || packet.is_intact()
    }
}
