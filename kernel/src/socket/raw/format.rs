//! Headers of IP and ICMP (RFC 791, 792, 4443, 8200): reading them as hostile input, and making
//! them.

use core::net::{IpAddr, Ipv6Addr};

use freehold_collections::Vec;

use crate::{Errno, Result, user};

/// Bytes of an IPv4 header without options, and of an IPv6 header.
pub(super) const V4_HEADER: usize = 20;
pub(super) const V6_HEADER: usize = 40;
/// Bytes of an ICMP header, and of UDP's.
pub(super) const ICMP_HEADER: usize = 8;
const UDP_HEADER: usize = 8;
/// Bytes of the longest IPv4 packet.
pub(super) const MOST_PACKET: usize = 65_535;

/// IPPROTO_ICMP, IPPROTO_UDP, IPPROTO_ICMPV6.
pub(super) const ICMP: u8 = 1;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const ICMPV6: u8 = 58;

/// Types of ICMP: echo reply, destination unreachable, echo request.
pub(super) const ECHO_REPLY: u8 = 0;
pub(super) const UNREACHABLE: u8 = 3;
pub(super) const ECHO: u8 = 8;
/// Types of ICMPv6: destination unreachable, echo request, echo reply, and the last type that is an
/// error.
pub(super) const UNREACHABLE_V6: u8 = 1;
pub(super) const ECHO_V6: u8 = 128;
pub(super) const ECHO_REPLY_V6: u8 = 129;
const LAST_ERROR_V6: u8 = 127;
/// Codes of destination unreachable: the protocol and the port; the port for ICMPv6.
pub(super) const NO_PROTOCOL: u8 = 2;
pub(super) const NO_PORT: u8 = 3;
pub(super) const NO_PORT_V6: u8 = 4;
/// Code of an ICMPv6 parameter problem (type 4): the next header is unknown.
const PARAMETER_V6: u8 = 4;
const UNKNOWN_HEADER_V6: u8 = 1;
/// Type of service of errors (RFC 1812, section 4.3.2.5).
const INTERNET_CONTROL: u8 = 0xc0;
/// Number of bytes of a packet that an error quotes, with the error's own headers (RFC 1812, 4443).
const MOST_ERROR_V4: usize = 576;
const MOST_ERROR_V6: usize = 1280;

/// A version of IP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Version {
    /// Version 4.
    V4,
    /// Version 6.
    V6,
}

/// The header fields that programs can choose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) from: Ipv6Addr,
    pub(super) to: Ipv6Addr,
    pub(super) protocol: u8,
    /// Time to live, or the hop limit.
    pub(super) ttl: u8,
    /// Type of service, or the traffic class.
    pub(super) tos: u8,
}

impl Head {
    /// Whether both addresses are IPv4. The two addresses of a packet always have the same version.
    pub(super) fn is_v4(&self) -> bool {
        self.from.to_ipv4_mapped().is_some() && self.to.to_ipv4_mapped().is_some()
    }

    /// Returns the head of an answer.
    pub(super) const fn reversed(self, protocol: u8) -> Self {
        Self { from: self.to, to: self.from, protocol, ttl: 64, tos: 0 }
    }
}

/// A packet: its head, and the offset of its payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'a> {
    pub(super) head: Head,
    pub(super) whole: &'a [u8],
    payload_at: usize,
}

/// The part of a packet that must be present.
#[derive(Clone, Copy)]
enum Needed {
    Whole,
    /// Its headers.
    Beginning,
}

impl Needed {
    fn of(self, bytes: &[u8], length: usize) -> Option<&[u8]> {
        match self {
            Self::Whole => bytes.get(..length),
            Self::Beginning => bytes.get(..length.min(bytes.len())),
        }
    }
}

impl<'a> Packet<'a> {
    /// Parses `bytes` as a complete packet that is no fragment.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        Self::parse_to(bytes, Needed::Whole)
    }

    /// Parses `bytes` as the beginning of a packet, which is all that an error quotes.
    pub(super) fn parse_shown(bytes: &'a [u8]) -> Option<Self> {
        Self::parse_to(bytes, Needed::Beginning)
    }

    fn parse_to(bytes: &'a [u8], extent: Needed) -> Option<Self> {
        match bytes.first()? >> 4 {
            4 => Self::parse_v4(bytes, extent),
            6 => Self::parse_v6(bytes, extent),
            _ => None,
        }
    }

    fn parse_v4(bytes: &'a [u8], extent: Needed) -> Option<Self> {
        let header: &[u8; V4_HEADER] = bytes.first_chunk()?;
        let payload_at = usize::from(header[0] & 0xf) * 4;
        let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
        if payload_at < V4_HEADER || length < payload_at || bytes.len() < payload_at || is_fragment {
            return None;
        }
        let whole = extent.of(bytes, length)?;
        let head = Head {
            from: v4_at(header, 12),
            to: v4_at(header, 16),
            protocol: header[9],
            ttl: header[8],
            tos: header[1],
        };
        Some(Self { head, whole, payload_at })
    }

    /// Extension headers are part of the payload.
    fn parse_v6(bytes: &'a [u8], extent: Needed) -> Option<Self> {
        let header: &[u8; V6_HEADER] = bytes.first_chunk()?;
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let whole = extent.of(bytes, V6_HEADER + length)?;
        let address = |at: usize| <[u8; 16]>::try_from(&header[at..at + 16]).map(Ipv6Addr::from).ok();
        let head = Head {
            from: address(8)?,
            to: address(24)?,
            protocol: header[6],
            ttl: header[7],
            tos: header[0] << 4 | header[1] >> 4,
        };
        // Mapped addresses are for programs only, and occur in no packet (RFC 4291, section
        // 2.5.5.2).
        let is_mapped = head.from.to_ipv4_mapped().or(head.to.to_ipv4_mapped()).is_some();
        (!is_mapped).then_some(Self { head, whole, payload_at: V6_HEADER })
    }

    pub(super) fn payload(&self) -> &'a [u8] {
        &self.whole[self.payload_at..]
    }

    /// Returns the offset of the upper-layer payload.
    pub(super) fn innermost_at(&self) -> usize {
        let header = match (self.head.protocol, self.payload().get(12)) {
            (TCP, Some(&offset)) => (usize::from(offset >> 4) * 4).max(20),
            (UDP | ICMP | ICMPV6, _) => ICMP_HEADER,
            _ => 0,
        };
        self.payload_at + header
    }

    /// Returns the packet's ICMP or ICMPv6 message.
    pub(super) fn icmp(&self) -> Option<&'a [u8]> {
        let expected = if self.head.is_v4() { ICMP } else { ICMPV6 };
        let whole = self.payload().len() >= ICMP_HEADER && self.is_intact();
        (self.head.protocol == expected && whole).then(|| self.payload())
    }

    /// Whether the checksum of the ICMP message is right.
    pub(super) fn is_intact(&self) -> bool {
        let pseudo = if self.head.is_v4() { 0 } else { pseudo_sum(&self.head, self.payload().len()) };
        checksum(pseudo, self.payload()) == 0
    }

    /// Returns the ports and the payload of the packet's UDP datagram.
    pub(super) fn udp(&self) -> Option<([u16; 2], &'a [u8])> {
        let payload = self.payload();
        let header: &[u8; UDP_HEADER] = payload.first_chunk()?;
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let bytes = payload.get(UDP_HEADER..length).filter(|_| self.head.protocol == UDP)?;
        Some(([be16(payload, 0), be16(payload, 2)], bytes))
    }

    /// Whether the UDP checksum is right, or absent where it is optional.
    pub(super) fn has_right_udp_checksum(&self) -> bool {
        let payload = self.payload();
        let length = usize::from(be16(payload, 4)).min(payload.len());
        match be16(payload, 6) {
            0 => self.head.is_v4(),
            _ => checksum(pseudo_sum(&self.head, length), &payload[..length]) == 0,
        }
    }

    /// Whether an error about the packet may be sent: the packet is no error itself (RFC 1122,
    /// section 3.2.2).
    pub(super) fn may_be_refused(&self) -> bool {
        match (self.head.protocol, self.payload().first()) {
            (ICMP, Some(&kind)) => [ECHO, ECHO_REPLY].contains(&kind),
            (ICMPV6, Some(&kind)) => kind > LAST_ERROR_V6,
            (ICMP | ICMPV6, None) => false,
            _ => true,
        }
    }
}

fn v4_at(bytes: &[u8], at: usize) -> Ipv6Addr {
    core::net::Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]).to_ipv6_mapped()
}

/// Returns the 16 bits at `at`, which is inside `bytes`.
pub(super) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Returns the sum of 16-bit words, without folding the carries.
fn sum(bytes: &[u8]) -> u64 {
    let pairs = bytes.chunks_exact(2);
    let rest = pairs.remainder().first().map_or(0, |&byte| u64::from(byte) << 8);
    rest + pairs.map(|pair| u64::from(be16(pair, 0))).sum::<u64>()
}

/// Returns the checksum of RFC 1071 over `bytes`, after words with the sum `before`.
pub(in crate::socket) fn checksum(before: u64, bytes: &[u8]) -> u16 {
    let mut folded = before + sum(bytes);
    while folded > 0xffff {
        folded = (folded & 0xffff) + (folded >> 16);
    }
    !(folded as u16)
}

/// Returns the sum of the pseudo-header that a checksum of the upper layer includes.
pub(super) fn pseudo_sum(head: &Head, length: usize) -> u64 {
    let addresses = match (IpAddr::V6(head.from).to_canonical(), IpAddr::V6(head.to).to_canonical()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => sum(&from.octets()) + sum(&to.octets()),
        _ => sum(&head.from.octets()) + sum(&head.to.octets()),
    };
    addresses + u64::from(head.protocol) + length as u64
}

/// Returns the number of bytes before the payload of a packet with `head`.
pub(super) fn header_bytes(head: &Head) -> usize {
    if head.is_v4() { V4_HEADER } else { V6_HEADER }
}

/// Makes a packet with `length` bytes of payload, all 0.
///
/// # Errors
/// `EMSGSIZE` if that is too long, `ENOMEM`.
pub(super) fn packet(head: &Head, length: usize) -> Result<Vec<u8>> {
    let before = header_bytes(head);
    let counted = if head.is_v4() { before + length } else { length };
    let counted = u16::try_from(counted).map_err(|_| Errno::EMSGSIZE)?.to_be_bytes();
    let mut bytes = user::zeroed(before + length)?;
    match (head.from.to_ipv4_mapped(), head.to.to_ipv4_mapped()) {
        (Some(from), Some(to)) => {
            // The packet is no fragment and must not be fragmented.
            bytes[..V4_HEADER].copy_from_slice(&[
                0x45,
                head.tos,
                counted[0],
                counted[1],
                0,
                0,
                0x40,
                0,
                head.ttl,
                head.protocol,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
            ]);
            bytes[12..16].copy_from_slice(&from.octets());
            bytes[16..20].copy_from_slice(&to.octets());
            fill_header_checksum(&mut bytes);
        }
        _ => {
            bytes[0] = 0x60 | head.tos >> 4;
            bytes[1] = head.tos << 4;
            bytes[4..6].copy_from_slice(&counted);
            (bytes[6], bytes[7]) = (head.protocol, head.ttl);
            bytes[8..24].copy_from_slice(&head.from.octets());
            bytes[24..40].copy_from_slice(&head.to.octets());
        }
    }
    Ok(bytes)
}

/// Puts the checksum into a complete IPv4 header.
pub(super) fn fill_header_checksum(bytes: &mut [u8]) {
    let length = (usize::from(bytes[0] & 0xf) * 4).min(bytes.len());
    bytes[10..12].fill(0);
    let sum = checksum(0, &bytes[..length]);
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Puts the checksum of `payload` at its byte `at`. For ICMPv6 and UDP it includes the
/// pseudo-header, for ICMP it does not.
pub(super) fn fill_checksum(head: &Head, payload: &mut [u8], at: usize) {
    payload[at..at + 2].fill(0);
    let is_alone = head.is_v4() && head.protocol == ICMP;
    let before = if is_alone { 0 } else { pseudo_sum(head, payload.len()) };
    let sum = match checksum(before, payload) {
        // 0 would mean that there is no checksum.
        0 if head.protocol == UDP => 0xffff,
        sum => sum,
    };
    payload[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Returns the answer to an echo request, with the request's data.
///
/// # Errors
/// `ENOMEM`.
pub(super) fn echo_reply(request: &Packet<'_>) -> Result<Vec<u8>> {
    let head = request.head.reversed(request.head.protocol);
    let mut bytes = packet(&head, request.payload().len())?;
    let payload = &mut bytes[header_bytes(&head)..];
    payload.copy_from_slice(request.payload());
    payload[0] = if head.is_v4() { ECHO_REPLY } else { ECHO_REPLY_V6 };
    fill_checksum(&head, payload, 2);
    Ok(bytes)
}

/// The reason why a packet has no receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    Port,
    Protocol,
}

/// Returns the error for the sender of `original`.
///
/// # Errors
/// `ENOMEM`.
pub(super) fn refusal(original: &Packet<'_>, why: Refused) -> Result<Vec<u8>> {
    let is_v4 = original.head.is_v4();
    let mut head = original.head.reversed(if is_v4 { ICMP } else { ICMPV6 });
    if is_v4 {
        head.tos = INTERNET_CONTROL;
    }
    let most = if is_v4 { MOST_ERROR_V4 - V4_HEADER } else { MOST_ERROR_V6 - V6_HEADER } - ICMP_HEADER;
    let shown = &original.whole[..original.whole.len().min(most)];
    let mut bytes = packet(&head, ICMP_HEADER + shown.len())?;
    let payload = &mut bytes[header_bytes(&head)..];
    (payload[0], payload[1]) = match (is_v4, why) {
        (true, Refused::Port) => (UNREACHABLE, NO_PORT),
        (true, Refused::Protocol) => (UNREACHABLE, NO_PROTOCOL),
        (false, Refused::Port) => (UNREACHABLE_V6, NO_PORT_V6),
        (false, Refused::Protocol) => (PARAMETER_V6, UNKNOWN_HEADER_V6),
    };
    if (is_v4, why) == (false, Refused::Protocol) {
        // The offset of the unknown number.
        payload[7] = 6;
    }
    payload[ICMP_HEADER..].copy_from_slice(shown);
    fill_checksum(&head, payload, 2);
    Ok(bytes)
}

/// Makes a UDP datagram.
///
/// # Errors
/// `EMSGSIZE`, `ENOMEM`.
pub(super) fn datagram(mut head: Head, ports: [u16; 2], payload: &[u8]) -> Result<Vec<u8>> {
    head.protocol = UDP;
    let length = UDP_HEADER + payload.len();
    let mut bytes = packet(&head, length)?;
    let udp = &mut bytes[header_bytes(&head)..];
    udp[..2].copy_from_slice(&ports[0].to_be_bytes());
    udp[2..4].copy_from_slice(&ports[1].to_be_bytes());
    udp[4..6].copy_from_slice(&(length as u16).to_be_bytes());
    udp[UDP_HEADER..].copy_from_slice(payload);
    fill_checksum(&head, udp, 6);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::vec;

    use proptest::prelude::*;

    use super::*;

    fn head(is_v4: bool, protocol: u8) -> Head {
        let [from, to] = if is_v4 { ["::ffff:127.0.0.1", "::ffff:127.0.0.9"] } else { ["::1", "::2"] };
        Head { from: from.parse().unwrap(), to: to.parse().unwrap(), protocol, ttl: 9, tos: 0x13 }
    }

    #[test]
    fn a_length_that_is_less_than_the_header_is_no_packets() {
        let mut bytes = packet(&head(true, UDP), 30).unwrap();
        for length in 0..V4_HEADER as u16 {
            bytes[2..4].copy_from_slice(&length.to_be_bytes());
            assert!(Packet::parse(&bytes).is_none() && Packet::parse_shown(&bytes).is_none());
        }
        bytes[2..4].copy_from_slice(&50_u16.to_be_bytes());
        for shown in 0..bytes.len() {
            let packet = Packet::parse_shown(&bytes[..shown]);
            assert_eq!(packet.map(|packet| packet.payload().len()), shown.checked_sub(V4_HEADER));
        }
    }

    /// The example of RFC 1071.
    #[test]
    fn a_checksum_is_the_one_of_its_rfc() {
        assert_eq!(checksum(0, &[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    }

    proptest! {
        #[test]
        fn a_packet_is_read_as_it_was_made(is_v4: bool, payload in prop::collection::vec(any::<u8>(), 8..600)) {
            let head = head(is_v4, if is_v4 { ICMP } else { ICMPV6 });
            let mut bytes = packet(&head, payload.len()).unwrap();
            let inside = &mut bytes[header_bytes(&head)..];
            inside.copy_from_slice(&payload);
            inside[0] = if is_v4 { ECHO } else { ECHO_V6 };
            fill_checksum(&head, inside, 2);
            let read = Packet::parse(&bytes).unwrap();
            prop_assert_eq!(read.head, head);
            prop_assert_eq!(&read.icmp().unwrap()[4..], &payload[4..]);
            let reply = echo_reply(&read).unwrap();
            let reply = Packet::parse(&reply).unwrap();
            prop_assert_eq!((reply.head.from, reply.head.to), (head.to, head.from));
            prop_assert_eq!(reply.icmp().unwrap()[0], if is_v4 { ECHO_REPLY } else { ECHO_REPLY_V6 });
            prop_assert_eq!(&reply.icmp().unwrap()[4..], &payload[4..]);
            let error = refusal(&read, Refused::Protocol).unwrap();
            prop_assert!(Packet::parse(&error).unwrap().icmp().is_some());
            prop_assert!(!Packet::parse(&error).unwrap().may_be_refused());
            for bit in 0..8 {
                let mut damaged = bytes.to_vec();
                *damaged.last_mut().unwrap() ^= 1 << bit;
                prop_assert!(Packet::parse(&damaged).unwrap().icmp().is_none());
            }
        }

        #[test]
        fn any_bytes_are_a_packet_inside_them_or_none(bytes in prop::collection::vec(any::<u8>(), 0..120), first in 0x40..0x70_u8) {
            let mut bytes = bytes;
            bytes.iter_mut().take(1).for_each(|byte| *byte = first);
            if let Some(packet) = Packet::parse(&bytes) {
                prop_assert!(packet.whole.len() <= bytes.len());
                let _ = (packet.icmp(), packet.udp(), packet.may_be_refused());
                prop_assert!(refusal(&packet, Refused::Port).is_ok());
            }
        }

        #[test]
        fn no_packet_of_version_6_has_an_address_of_version_4(at in prop::sample::select(vec![8, 24]), length in 0..40_usize) {
            let mut bytes = packet(&head(false, ICMPV6), length).unwrap();
            prop_assert!(Packet::parse(&bytes).is_some());
            let mapped: Ipv6Addr = "::ffff:127.0.0.1".parse().unwrap();
            bytes[at..at + 16].copy_from_slice(&mapped.octets());
            prop_assert!(Packet::parse(&bytes).is_none() && Packet::parse_shown(&bytes).is_none());
        }

        #[test]
        fn a_datagram_is_one(is_v4: bool, ports: [u16; 2], payload in prop::collection::vec(any::<u8>(), 0..99)) {
            let bytes = datagram(head(is_v4, 0), ports, &payload).unwrap();
            let read = Packet::parse(&bytes).unwrap();
            prop_assert_eq!(read.udp(), Some((ports, &payload[..])));
            prop_assert_eq!(checksum(pseudo_sum(&read.head, read.payload().len()), read.payload()), 0);
        }
    }
}
