//! Frames on their way through a network device, and the sockets that they are shown to.
//!
//! A socket of all protocols is shown each frame, also those that this machine sends; one of a
//! single protocol is shown those that arrive (Linux: `dev_queue_xmit_nit`, `packet_rcv`). On the
//! loopback device each packet is sent and arrives.

use freehold_bpf::{HasLink, PacketData};
use freehold_collections::{Arc, Vec};

use super::address::LinkAddress;
use super::{HEARERS, PacketKind, PacketSocket};
use crate::fs::bytes::SliceSource;
use crate::socket::address::Address;
use crate::socket::beside::FrameFacts;
use crate::socket::channel::{Ancillary, Channel, MessageOrigin, Patience};
use crate::socket::interface;
use crate::socket::registry::{self, Hears};
use crate::task::namespaces::network::NetworkNamespace;
use crate::{Errno, Result};

/// Bytes of an Ethernet header: receiver, sender, and the protocol's number.
pub(in crate::socket) const HEADER: usize = 14;
/// Numbers from here on are protocols; below, they are lengths (IEEE 802.3).
const FIRST_PROTOCOL: u16 = 0x600;
/// ETH_P_802_2: a frame with a length.
const WITH_LENGTH: u16 = 4;
/// ETH_P_IP, ETH_P_IPV6.
pub(in crate::socket) const PROTOCOL_V4: u16 = 0x800;
pub(in crate::socket) const PROTOCOL_V6: u16 = 0x86dd;

/// Delivers a message to a channel. Without room the message is lost.
pub(in crate::socket) type Deliver<'a> = &'a mut dyn FnMut(&Arc<Channel>, &[u8], MessageOrigin);

/// PACKET_*: a frame's receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(in crate::socket) enum Bound {
    /// This machine.
    Host = 0,
    /// All machines.
    Broadcast = 1,
    /// A group.
    Multicast = 2,
    /// Another machine.
    Other = 3,
    /// This machine sends the frame.
    Outgoing = 4,
}

/// A frame.
#[derive(Clone, Copy, Debug)]
pub(in crate::socket) struct LinkFrame<'a> {
    /// Its bytes from the header on, at least [`HEADER`] of them.
    pub bytes: &'a [u8],
    pub device: LinkDevice,
    pub bound: Bound,
}

/// The device that a frame passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::socket) struct LinkDevice {
    /// Its number.
    pub index: u32,
    /// ARPHRD_*.
    pub hardware: u16,
    /// Its address, and the one of all machines.
    pub addresses: [[u8; 6]; 2],
}

impl<'a> LinkFrame<'a> {
    /// Makes the frame that has arrived at a device.
    pub(in crate::socket) fn arrived(bytes: &'a [u8], device: LinkDevice) -> Option<Self> {
        let [own, all] = device.addresses;
        let bound = match *bytes.first_chunk::<6>()? {
            to if to == own => Bound::Host,
            to if to == all => Bound::Broadcast,
            [first, ..] if first & 1 != 0 => Bound::Multicast,
            _ => Bound::Other,
        };
        Self { bytes, device, bound }.checked()
    }

    /// Makes the frame that a device sends.
    pub(in crate::socket) fn sent(bytes: &'a [u8], device: LinkDevice) -> Option<Self> {
        Self { bytes, device, bound: Bound::Outgoing }.checked()
    }

    fn checked(self) -> Option<Self> {
        (self.bytes.len() >= HEADER).then_some(self)
    }

    /// Returns the number of its protocol (ETH_P_*).
    pub(in crate::socket) fn protocol(&self) -> u16 {
        match u16::from_be_bytes([self.bytes[12], self.bytes[13]]) {
            length if length < FIRST_PROTOCOL => WITH_LENGTH,
            protocol => protocol,
        }
    }

    /// Returns the packet in it.
    pub(in crate::socket) fn packet(&self) -> &'a [u8] {
        &self.bytes[HEADER..]
    }

    fn sender(&self) -> [u8; 6] {
        let [a, b, c, d, e, f] = [6, 7, 8, 9, 10, 11].map(|at| self.bytes[at]);
        [a, b, c, d, e, f]
    }

    fn data(&self, kind: PacketKind) -> PacketData<'a> {
        let (bytes, has_link) = match kind {
            PacketKind::Raw => (self.bytes, HasLink::Yes),
            PacketKind::Cooked => (self.packet(), HasLink::No),
        };
        PacketData {
            bytes,
            network: self.packet(),
            payload_at: 0,
            has_link,
            protocol: self.protocol(),
            kind: self.bound as u8,
            interface: self.device.index,
            hardware: self.device.hardware,
            random: 0,
        }
    }
}

/// Shows a frame of `network` to the sockets that receive such frames, except to its sender.
pub(in crate::socket) fn show(
    network: u64,
    frame: &LinkFrame<'_>,
    sender: Option<&PacketSocket>,
    deliver: Deliver<'_>,
) {
    let mut offer = |socket: &Arc<PacketSocket>| {
        if !sender.is_some_and(|sender| core::ptr::eq(sender, &raw const **socket)) {
            socket.take(frame, deliver);
        }
    };
    HEARERS.each(network, Hears::AllFrames, &mut offer);
    if frame.bound != Bound::Outgoing {
        HEARERS.each(network, Hears::Frames(frame.protocol()), &mut offer);
    }
}

/// Shows a packet that goes through the loopback device: sent, then arrived.
pub(in crate::socket) fn show_on_loopback(network: &NetworkNamespace, packet: &[u8]) {
    if !registry::any() || HEARERS.is_empty() {
        return;
    }
    // Without memory nothing is shown.
    if let Ok(bytes) = framed(packet)
        && let Some(frame) = LinkFrame::arrived(&bytes, LOOPBACK)
    {
        show(network.number(), &LinkFrame { bound: Bound::Outgoing, ..frame }, None, &mut put);
        show(network.number(), &frame, None, &mut put);
    }
}

/// The loopback device, for frames.
pub(in crate::socket) const LOOPBACK: LinkDevice = LinkDevice {
    index: interface::LO.index,
    hardware: interface::LO.hardware,
    addresses: interface::LO.hardware_addresses,
};

fn framed(packet: &[u8]) -> Result<Vec<u8>> {
    let protocol =
        if packet.first().is_some_and(|first| first >> 4 == 6) { PROTOCOL_V6 } else { PROTOCOL_V4 };
    let mut bytes = Vec::try_with_capacity(HEADER + packet.len())?;
    bytes.try_resize(HEADER - 2, 0)?;
    bytes.try_extend_from_slice(&protocol.to_be_bytes())?;
    bytes.try_extend_from_slice(packet)?;
    Ok(bytes)
}

/// Delivers a message, which is lost without room or receiver.
pub(in crate::socket) fn put(channel: &Arc<Channel>, bytes: &[u8], origin: MessageOrigin) {
    let (source, ancillary) = (&mut SliceSource::new(bytes), Ancillary::default());
    if channel.send_message(source, ancillary, origin, Patience::Never) == Err(Errno::EAGAIN) {
        channel.note_loss();
    }
}

impl PacketSocket {
    /// Takes the part of a frame that the socket's filter passes, if the socket hears its device.
    fn take(&self, frame: &LinkFrame<'_>, deliver: Deliver<'_>) {
        if !self.hears(frame) {
            return;
        }
        let data = frame.data(self.kind);
        let part = self.filter.part(|| data);
        if part == 0 {
            return;
        }
        let shown = &data.bytes[..data.bytes.len().min(part)];
        if !self.count(self.channel.has_room()) {
            return self.channel.note_loss();
        }
        let LinkDevice { index, hardware, .. } = frame.device;
        let name = LinkAddress::new(data.protocol, index).at_device(hardware, frame.sender());
        let facts = FrameFacts {
            length: data.bytes.len() as u32,
            shown: shown.len() as u32,
            network_at: (data.bytes.len() - data.network.len()) as u16,
        };
        let origin = MessageOrigin {
            name: Some(Address::Link(name.of_frame(frame.bound as u8))),
            notes: self.channel.notes(|| Some(facts.into())),
        };
        deliver(&self.channel, shown, origin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: LinkDevice = LinkDevice {
        index: interface::ETHERNET_INDEX,
        hardware: interface::ETHERNET,
        addresses: [[2, 0, 0, 0, 0, 1], interface::ALL_MACHINES],
    };

    fn frame_to(to: [u8; 6]) -> std::vec::Vec<u8> {
        [&to[..], &[2, 0, 0, 0, 0, 9], &PROTOCOL_V4.to_be_bytes(), b"packet"].concat()
    }

    #[test]
    fn a_frame_is_for_the_machine_of_its_first_address() {
        let bound = |to| LinkFrame::arrived(&frame_to(to), DEVICE).map(|frame| frame.bound);
        assert_eq!(bound(DEVICE.addresses[0]), Some(Bound::Host));
        assert_eq!(bound([0xff; 6]), Some(Bound::Broadcast));
        assert_eq!(bound([1, 0, 0x5e, 0, 0, 1]), Some(Bound::Multicast));
        assert_eq!(bound([2, 0, 0, 0, 0, 2]), Some(Bound::Other));
    }

    #[test]
    fn a_frame_of_the_loopback_device_has_zeros_for_both_addresses() {
        let bytes = framed(&[0x60, 1, 2]).unwrap();
        let frame = LinkFrame::arrived(&bytes, LOOPBACK).unwrap();
        assert_eq!(
            (frame.bound, frame.protocol(), frame.packet()),
            (Bound::Host, PROTOCOL_V6, &[0x60, 1, 2][..])
        );
        assert_eq!(frame.sender(), [0; 6]);
    }

    #[test]
    fn what_is_shorter_than_a_header_is_no_frame() {
        for length in 0..HEADER {
            assert!(LinkFrame::arrived(&frame_to([0; 6])[..length], DEVICE).is_none());
            assert!(LinkFrame::sent(&frame_to([0; 6])[..length], DEVICE).is_none());
        }
    }

    #[test]
    fn small_numbers_are_lengths() {
        let mut bytes = frame_to([0; 6]);
        bytes[12..14].copy_from_slice(&[5, 0xff]);
        assert_eq!(LinkFrame::sent(&bytes, DEVICE).unwrap().protocol(), WITH_LENGTH);
    }
}
