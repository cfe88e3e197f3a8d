//! Frames on their way through a network device.

use freehold_bpf::{HasLink, PacketData};
use freehold_collections::Vec;

use crate::Result;
use crate::socket::interface;

/// Bytes of an Ethernet header: receiver, sender, and the protocol's number.
pub(in crate::socket) const HEADER: usize = 14;
/// Numbers from here on are protocols; below, they are lengths (IEEE 802.3).
const FIRST_PROTOCOL: u16 = 0x600;
/// ETH_P_802_2: a frame with a length.
const WITH_LENGTH: u16 = 4;
/// ETH_P_IP, ETH_P_IPV6.
pub(in crate::socket) const PROTOCOL_V4: u16 = 0x800;
pub(in crate::socket) const PROTOCOL_V6: u16 = 0x86dd;

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

/// Whether programs see the device's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum PacketKind {
    /// SOCK_DGRAM: they do not.
    Cooked = 2,
    /// SOCK_RAW: they do.
    Raw = 3,
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

    /// Returns the sender's address.
    pub(super) fn sender(&self) -> [u8; 6] {
        let [a, b, c, d, e, f] = [6, 7, 8, 9, 10, 11].map(|at| self.bytes[at]);
        [a, b, c, d, e, f]
    }

    /// Returns the part that a socket of this kind reads, for its filter.
    pub(super) fn data(&self, kind: PacketKind) -> PacketData<'a> {
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

/// The loopback device, for frames.
pub(in crate::socket) const LOOPBACK: LinkDevice = LinkDevice {
    index: interface::LO.index,
    hardware: interface::LO.hardware,
    addresses: interface::LO.hardware_addresses,
};

/// Returns a packet with the loopback device's header.
///
/// # Errors
/// `ENOMEM`.
pub(super) fn framed(packet: &[u8]) -> Result<Vec<u8>> {
    let protocol =
        if packet.first().is_some_and(|first| first >> 4 == 6) { PROTOCOL_V6 } else { PROTOCOL_V4 };
    let mut bytes = Vec::try_with_capacity(HEADER + packet.len())?;
    bytes.try_resize(HEADER - 2, 0)?;
    bytes.try_extend_from_slice(&protocol.to_be_bytes())?;
    bytes.try_extend_from_slice(packet)?;
    Ok(bytes)
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
