//! Frames to packets and back. The formats and their checksums are smoltcp's; this module decides
//! which packets are accepted.
//!
//! A frame that is cut short, has a wrong checksum or has another protocol is ignored. Fragments
//! are dropped: TCP sends none (it has the path's MTU), and no datagram that is longer than the MTU
//! is sent or taken.

use core::net::{Ipv4Addr, SocketAddrV4};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, Icmpv4Message,
    Icmpv4Packet, IpAddress, IpProtocol, Ipv4Packet, Ipv4Repr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber,
    UdpPacket, UdpRepr,
};

use crate::seq::Seq;
use crate::table::Ends;

/// Bytes of the longest frame.
pub const MOST_FRAME: usize = ETHERNET + 1500;
const ETHERNET: usize = 14;
const IPV4: usize = 20;
const UDP: usize = 8;
/// Bytes of a datagram before its payload.
pub const DATAGRAM_HEADERS: usize = IPV4 + UDP;
const ICMP: usize = 8;
const ARP: usize = 28;
/// Bytes of an original packet's payload that an error shows (RFC 792).
const SHOWN: usize = 8;
const TIME_TO_LIVE: u8 = 64;
/// Port unreachable.
const NO_PORT: u8 = 3;

/// A segment's purpose other than its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    /// The segment carries bytes only.
    None,
    /// The stream begins.
    Syn,
    /// The stream ends.
    Fin,
    /// The connection is broken off.
    Reset,
}

/// A segment of TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpSegment<'a> {
    /// The sequence number of its first byte.
    pub seq: Seq,
    /// The sequence number that its sender expects next.
    pub ack: Option<Seq>,
    /// SYN, FIN or RST.
    pub control: Control,
    /// The window as in the header.
    pub window: u16,
    /// The longest segment that its sender takes (bytes).
    pub mss: Option<u16>,
    /// The shift of windows.
    pub scale: Option<u8>,
    /// Its bytes, in two parts.
    pub payload: (&'a [u8], &'a [u8]),
}

impl TcpSegment<'_> {
    /// Returns how many bytes it carries.
    pub const fn bytes(&self) -> usize {
        self.payload.0.len() + self.payload.1.len()
    }
    /// Returns how many sequence numbers it uses.
    pub const fn len(&self) -> usize {
        self.bytes() + matches!(self.control, Control::Syn | Control::Fin) as usize
    }
}

/// An ARP packet's sender, and whether it asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resolution {
    /// The sender's address.
    pub ip: Ipv4Addr,
    /// The address of the sender's device.
    pub hardware: EthernetAddress,
    /// The address that the sender asks for.
    pub asks_for: Option<Ipv4Addr>,
}

/// Content of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packet<'a> {
    /// ARP.
    Arp(Resolution),
    /// TCP.
    Tcp(Ends, TcpSegment<'a>),
    /// UDP: the ends, the bytes, and the packet from its IP header on.
    Udp(Ends, &'a [u8], &'a [u8]),
    /// An echo request: its sender, and the ICMP packet.
    Echo(Ipv4Addr, &'a [u8]),
    /// A packet that was sent did not arrive.
    Unreachable(IpProtocol, Ends),
}

/// The part of a packet's header that its sender chooses, beside the ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marks {
    /// Time to live: largest number of routers that the packet may pass.
    pub ttl: u8,
    /// Type of service.
    pub tos: u8,
}

impl Marks {
    /// Marks of packets whose sender chose none.
    pub const USUAL: Self = Self { ttl: TIME_TO_LIVE, tos: 0 };

    /// Returns the marks of a packet, header included.
    pub(crate) fn of(packet: &[u8]) -> Self {
        Self { ttl: packet[8], tos: packet[1] }
    }
}

/// The device's address and the machine's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Own {
    /// The device's.
    pub hardware: EthernetAddress,
    /// The machine's.
    pub ip: Ipv4Addr,
}

/// Returns the IPv4 packet in `frame`, header included, if it is whole and for `own`.
pub fn packet(frame: &[u8], own: Own) -> Option<&[u8]> {
    let frame = EthernetFrame::new_checked(frame).ok()?;
    if frame.dst_addr() != own.hardware || frame.ethertype() != EthernetProtocol::Ipv4 {
        return None;
    }
    let bytes = frame.payload();
    let packet = Ipv4Packet::new_checked(bytes).ok()?;
    let from = packet.src_addr();
    let is_nobody = from.is_unspecified() || from.is_multicast() || from.is_broadcast() || from.is_loopback();
    let is_whole = packet.version() == 4
        && packet.verify_checksum()
        && !packet.more_frags()
        && packet.frag_offset() == 0;
    let is_ours = packet.dst_addr() == own.ip && from != own.ip && !is_nobody;
    (is_whole && is_ours).then(|| &bytes[..usize::from(packet.total_len())])
}

/// The packet in `frame`, if it is for `own`.
pub fn parse(frame: &[u8], own: Own) -> Option<Packet<'_>> {
    let frame = EthernetFrame::new_checked(frame).ok()?;
    let to = frame.dst_addr();
    if to != own.hardware && !to.is_broadcast() {
        return None;
    }
    match frame.ethertype() {
        EthernetProtocol::Arp => arp(frame.payload(), own),
        // A broadcast packet belongs to no connection and gets no answer.
        EthernetProtocol::Ipv4 if !to.is_broadcast() => ipv4(frame.payload(), own),
        _ => None,
    }
}

fn arp(bytes: &[u8], own: Own) -> Option<Packet<'_>> {
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: hardware,
        source_protocol_addr: ip,
        target_protocol_addr: target,
        ..
    } = ArpRepr::parse(&ArpPacket::new_checked(bytes).ok()?).ok()?
    else {
        return None;
    };
    if !hardware.is_unicast() || ip.is_unspecified() || ip == own.ip || target != own.ip {
        return None;
    }
    let asks_for = (operation == ArpOperation::Request).then_some(target);
    Some(Packet::Arp(Resolution { ip, hardware, asks_for }))
}

fn ipv4(bytes: &[u8], own: Own) -> Option<Packet<'_>> {
    let packet = Ipv4Packet::new_checked(bytes).ok()?;
    let header = Ipv4Repr::parse(&packet, &ChecksumCapabilities::default()).ok()?;
    let from = header.src_addr;
    let is_nobody = from.is_unspecified() || from.is_multicast() || from.is_broadcast() || from.is_loopback();
    if header.dst_addr != own.ip || is_nobody || from == own.ip {
        return None;
    }
    let (payload, whole) = (packet.payload(), &bytes[..usize::from(packet.total_len())]);
    match header.next_header {
        IpProtocol::Tcp => tcp(payload, from, own.ip),
        IpProtocol::Udp => udp(payload, whole, from, own.ip),
        IpProtocol::Icmp => icmp(payload, from, own.ip),
        _ => None,
    }
}

fn ends(local: (Ipv4Addr, u16), remote: (Ipv4Addr, u16)) -> Ends {
    Ends { local: SocketAddrV4::new(local.0, local.1), remote: SocketAddrV4::new(remote.0, remote.1) }
}

fn tcp(bytes: &[u8], from: Ipv4Addr, own: Ipv4Addr) -> Option<Packet<'_>> {
    let packet = TcpPacket::new_checked(bytes).ok()?;
    let (source, target) = (IpAddress::Ipv4(from), IpAddress::Ipv4(own));
    let read = TcpRepr::parse(&packet, &source, &target, &ChecksumCapabilities::default()).ok()?;
    let segment = TcpSegment {
        seq: Seq(read.seq_number.0 as u32),
        ack: read.ack_number.map(|ack| Seq(ack.0 as u32)),
        control: match read.control {
            TcpControl::None | TcpControl::Psh => Control::None,
            TcpControl::Syn => Control::Syn,
            TcpControl::Fin => Control::Fin,
            TcpControl::Rst => Control::Reset,
        },
        window: read.window_len,
        mss: read.max_seg_size,
        scale: read.window_scale,
        payload: (read.payload, &[]),
    };
    Some(Packet::Tcp(ends((own, read.dst_port), (from, read.src_port)), segment))
}

fn udp<'a>(bytes: &'a [u8], whole: &'a [u8], from: Ipv4Addr, own: Ipv4Addr) -> Option<Packet<'a>> {
    let packet = UdpPacket::new_checked(bytes).ok()?;
    let (source, target) = (IpAddress::Ipv4(from), IpAddress::Ipv4(own));
    let read = UdpRepr::parse(&packet, &source, &target, &ChecksumCapabilities::default()).ok()?;
    Some(Packet::Udp(ends((own, read.dst_port), (from, read.src_port)), packet.payload(), whole))
}

fn icmp(bytes: &[u8], from: Ipv4Addr, own: Ipv4Addr) -> Option<Packet<'_>> {
    let packet = Icmpv4Packet::new_checked(bytes).ok()?;
    if !packet.verify_checksum() {
        return None;
    }
    match packet.msg_type() {
        Icmpv4Message::EchoRequest => Some(Packet::Echo(from, bytes)),
        Icmpv4Message::DstUnreachable => unreachable(packet.data(), own),
        _ => None,
    }
}

/// Returns the packet that an error is about; eight bytes of its payload may be all there is.
fn unreachable(original: &[u8], own: Ipv4Addr) -> Option<Packet<'_>> {
    let header = usize::from(original.first()? & 0xf) * 4;
    let ports = original.get(header..header + SHOWN)?;
    if original[0] >> 4 != 4 || header < IPV4 {
        return None;
    }
    let packet = Ipv4Packet::new_unchecked(original);
    let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
    let ends = ends((packet.src_addr(), port(0)), (packet.dst_addr(), port(2)));
    (*ends.local.ip() == own).then_some(Packet::Unreachable(packet.next_header(), ends))
}

/// A frame that is being built.
pub struct Outgoing {
    bytes: [u8; MOST_FRAME],
    length: usize,
}

impl Outgoing {
    /// Makes an empty frame.
    pub const fn new() -> Self {
        Self { bytes: [0; MOST_FRAME], length: 0 }
    }
    /// Returns the bytes of the frame, once it is made.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Makes the frame one to `to` of this protocol, with `length` bytes after the header. Returns
    /// those bytes.
    fn begin(&mut self, own: Own, to: EthernetAddress, kind: EthernetProtocol, length: usize) -> &mut [u8] {
        self.length = ETHERNET + length;
        let mut frame = EthernetFrame::new_unchecked(&mut self.bytes[..self.length]);
        frame.set_src_addr(own.hardware);
        frame.set_dst_addr(to);
        frame.set_ethertype(kind);
        &mut self.bytes[ETHERNET..self.length]
    }

    fn ipv4(&mut self, own: Own, to: Ipv4Addr, kind: IpProtocol, length: usize) -> &mut [u8] {
        self.ipv4_marked(own, to, (kind, Marks::USUAL), length)
    }

    fn ipv4_marked(
        &mut self,
        own: Own,
        to: Ipv4Addr,
        (kind, marks): (IpProtocol, Marks),
        length: usize,
    ) -> &mut [u8] {
        // The device's address is filled in when the frame is sent.
        let bytes = self.begin(own, EthernetAddress::BROADCAST, EthernetProtocol::Ipv4, IPV4 + length);
        let header = Ipv4Repr {
            src_addr: own.ip,
            dst_addr: to,
            next_header: kind,
            payload_len: length,
            hop_limit: marks.ttl,
        };
        let mut packet = Ipv4Packet::new_unchecked(&mut *bytes);
        header.emit(&mut packet, &ChecksumCapabilities::default());
        if marks.tos != 0 {
            packet.set_dscp(marks.tos >> 2);
            packet.set_ecn(marks.tos & 3);
            packet.fill_checksum();
        }
        &mut bytes[IPV4..]
    }

    /// Makes the frame carry this IPv4 packet, which is not longer than a frame can carry.
    pub fn packet(&mut self, own: Own, packet: &[u8]) {
        self.begin(own, EthernetAddress::BROADCAST, EthernetProtocol::Ipv4, packet.len())
            .copy_from_slice(packet);
    }

    /// Makes the frame a copy of an earlier one.
    pub fn copy(&mut self, bytes: &[u8]) {
        self.bytes[..bytes.len()].copy_from_slice(bytes);
        self.length = bytes.len();
    }

    /// Its receiver's device.
    pub fn address_to(&mut self, hardware: EthernetAddress) {
        EthernetFrame::new_unchecked(&mut self.bytes[..self.length]).set_dst_addr(hardware);
    }

    /// Makes it a question for the device address of `ip`, or the answer to one.
    pub fn arp(&mut self, own: Own, ip: Ipv4Addr, answer_to: Option<EthernetAddress>) {
        let to = answer_to.unwrap_or(EthernetAddress::BROADCAST);
        let bytes = self.begin(own, to, EthernetProtocol::Arp, ARP);
        let packet = ArpRepr::EthernetIpv4 {
            operation: if answer_to.is_some() { ArpOperation::Reply } else { ArpOperation::Request },
            source_hardware_addr: own.hardware,
            source_protocol_addr: own.ip,
            target_hardware_addr: answer_to.unwrap_or(EthernetAddress([0; 6])),
            target_protocol_addr: ip,
        };
        packet.emit(&mut ArpPacket::new_unchecked(bytes));
    }

    /// Makes it a segment. A payload longer than a frame is cut off: the caller keeps to the MSS.
    pub fn tcp(&mut self, own: Own, ends: Ends, segment: &TcpSegment<'_>) {
        let header = TcpRepr {
            src_port: ends.local.port(),
            dst_port: ends.remote.port(),
            control: match segment.control {
                Control::None if segment.bytes() > 0 => TcpControl::Psh,
                Control::None => TcpControl::None,
                Control::Syn => TcpControl::Syn,
                Control::Fin => TcpControl::Fin,
                Control::Reset => TcpControl::Rst,
            },
            seq_number: TcpSeqNumber(segment.seq.0 as i32),
            ack_number: segment.ack.map(|ack| TcpSeqNumber(ack.0 as i32)),
            window_len: segment.window,
            window_scale: segment.scale,
            max_seg_size: segment.mss,
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload: &[],
        };
        let (first, second) = segment.payload;
        let to = *ends.remote.ip();
        let bytes = self.ipv4(own, to, IpProtocol::Tcp, header.header_len() + segment.bytes());
        let (source, target) = (IpAddress::Ipv4(own.ip), IpAddress::Ipv4(to));
        let mut packet = TcpPacket::new_unchecked(bytes);
        header.emit(&mut packet, &source, &target, &ChecksumCapabilities::ignored());
        let payload = packet.payload_mut();
        payload[..first.len()].copy_from_slice(first);
        payload[first.len()..].copy_from_slice(second);
        packet.fill_checksum(&source, &target);
    }

    /// Makes it a datagram, whose payload is not longer than a frame takes.
    pub fn udp(&mut self, own: Own, ends: Ends, marks: Marks, payload: &[u8]) {
        let to = *ends.remote.ip();
        let bytes = self.ipv4_marked(own, to, (IpProtocol::Udp, marks), UDP + payload.len());
        let header = UdpRepr { src_port: ends.local.port(), dst_port: ends.remote.port() };
        header.emit(
            &mut UdpPacket::new_unchecked(bytes),
            &IpAddress::Ipv4(own.ip),
            &IpAddress::Ipv4(to),
            payload.len(),
            |room| room.copy_from_slice(payload),
            &ChecksumCapabilities::default(),
        );
    }

    /// Makes it the answer to an echo request.
    pub fn echo(&mut self, own: Own, to: Ipv4Addr, request: &[u8]) {
        let bytes = self.ipv4(own, to, IpProtocol::Icmp, request.len());
        bytes.copy_from_slice(request);
        let mut packet = Icmpv4Packet::new_unchecked(bytes);
        packet.set_msg_type(Icmpv4Message::EchoReply);
        packet.set_msg_code(0);
        packet.fill_checksum();
    }

    /// Makes it an error for the sender of `original`: the port has no socket.
    pub fn no_port(&mut self, own: Own, to: Ipv4Addr, original: &[u8]) {
        let header = usize::from(original[0] & 0xf) * 4;
        let shown = &original[..original.len().min(header + SHOWN)];
        let bytes = self.ipv4(own, to, IpProtocol::Icmp, ICMP + shown.len());
        bytes[..ICMP].fill(0);
        bytes[ICMP..].copy_from_slice(shown);
        let mut packet = Icmpv4Packet::new_unchecked(bytes);
        packet.set_msg_type(Icmpv4Message::DstUnreachable);
        packet.set_msg_code(NO_PORT);
        packet.fill_checksum();
    }
}
