//! Headers of frames in rings.

use arrayvec::ArrayVec;
use zerocopy::IntoBytes;

use crate::mem::HeldRegion;
use crate::socket::address::link::LinkAddress;
use crate::socket::packet::PacketKind;
use crate::socket::packet::offload::OFFLOAD_BYTES;

/// TPACKET_ALIGNMENT: headers and packets begin at multiples of it.
pub const ALIGNMENT: usize = 16;
/// The smallest room for a device's header.
const LEAST_LINK: usize = 16;
/// Bytes of `struct sockaddr_ll`, which follows a header.
const NAME_BYTES: usize = 20;
/// Bytes of the longest header with its name.
const MOST: usize = 48 + NAME_BYTES;

/// TPACKET_V*: the form of rings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum Version {
    #[default]
    V1 = 0,
    V2 = 1,
    V3 = 2,
}

impl Version {
    /// All, by number.
    pub const ALL: [Self; 3] = [Self::V1, Self::V2, Self::V3];

    /// Returns the bytes of a header (`struct tpacket_hdr`, `tpacket2_hdr`, `tpacket3_hdr`).
    pub const fn header_bytes(self) -> usize {
        match self {
            Self::V1 | Self::V2 => 32,
            Self::V3 => 48,
        }
    }

    /// Returns the bytes of a header with the name after it (TPACKET*_HDRLEN).
    pub const fn head_bytes(self) -> usize {
        self.header_bytes() + NAME_BYTES
    }

    /// Returns where in a header the status is. In version 1 it has 8 bytes.
    pub const fn status_at(self) -> usize {
        match self {
            Self::V1 | Self::V2 => 0,
            Self::V3 => 20,
        }
    }
}

/// A frame for a ring.
pub struct Shown<'a> {
    /// The part that the socket's filter passes, with the device's header if the socket shows it.
    pub bytes: &'a [u8],
    /// Bytes of all of it.
    pub length: u32,
    /// Bytes of the device's header in `bytes`.
    pub link_bytes: usize,
    pub name: LinkAddress,
    /// Time of arrival, in nanoseconds since 1970.
    pub time: u64,
    /// Status bits that the frame has besides [`USER`](super::USER).
    pub status: u32,
    /// Whether the socket's queue has room for all of it.
    pub has_room: bool,
}

impl Shown<'_> {
    /// Returns a hash of the packet's addresses and ports, the same in both directions; 0 if it has
    /// none.
    pub fn flow_hash(&self) -> u32 {
        /// TCP and UDP, which begin with two ports.
        const WITH_PORTS: [u8; 2] = [6, 17];
        let packet = self.bytes.get(self.link_bytes..).unwrap_or_default();
        let (addresses, protocol, ports_at) = match packet {
            [first, ..] if first >> 4 == 4 => {
                (packet.get(12..20), packet.get(9), usize::from(first & 15) * 4)
            }
            [first, ..] if first >> 4 == 6 => (packet.get(8..40), packet.get(6), 40),
            _ => return 0,
        };
        let (Some(addresses), Some(protocol)) = (addresses, protocol) else { return 0 };
        let ports = packet.get(ports_at..ports_at + 4).filter(|_| WITH_PORTS.contains(protocol));
        let both = |pair: &[u8]| {
            let (one, other) = pair.split_at(pair.len() / 2);
            one.iter().zip(other).fold(u32::from(*protocol), |hash, (one, other)| {
                (hash ^ u32::from(one ^ other)).wrapping_mul(0x0100_0193)
            })
        };
        both(addresses).rotate_left(16) ^ ports.map_or(0, both)
    }
}

/// Where in its place a frame lies: the device's header, and the network's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FramePlace {
    pub link: u16,
    pub network: u16,
    /// Bytes of the header of virtio_net before the frame; 0 without one.
    pub offload: u16,
}

impl FramePlace {
    /// Writes the header of virtio_net, if there is one: all of it is 0.
    pub fn put_offload_header(&self, region: &HeldRegion, at: usize) {
        let count = usize::from(self.offload);
        region.put(at + usize::from(self.link) - count, &[0; OFFLOAD_BYTES][..count]);
    }
}

/// Returns where a frame lies, after a header of `offload` bytes and what is reserved. `None` if a
/// header's 16 bits cannot tell.
pub fn place_of(
    version: Version,
    kind: PacketKind,
    link: usize,
    (offload, reserve): (usize, u32),
) -> Option<FramePlace> {
    let head = version.head_bytes();
    let before = match kind {
        PacketKind::Cooked => head.next_multiple_of(ALIGNMENT) + LEAST_LINK,
        PacketKind::Raw => (head + link.max(LEAST_LINK)).next_multiple_of(ALIGNMENT),
    };
    let network = u16::try_from((before + offload) as u64 + u64::from(reserve)).ok()?;
    let link = network - if kind == PacketKind::Raw { link as u16 } else { 0 };
    Some(FramePlace { link, network, offload: offload as u16 })
}

/// Returns the header of a frame with its name, without its status. `snap` is the bytes of it that
/// are in the ring. In version 3, `next` is the distance to the next frame's header, and `hash` a
/// hash of its flow.
pub fn header(
    version: Version,
    shown: &Shown<'_>,
    place: FramePlace,
    snap: usize,
    [next, hash]: [u32; 2],
) -> ArrayVec<u8, MOST> {
    let seconds = (shown.time / 1_000_000_000) as u32;
    let nanoseconds = (shown.time % 1_000_000_000) as u32;
    let (length, snap) = (shown.length, snap as u32);
    let places = [place.link, place.network];
    let places = u32::from(places[0]) | u32::from(places[1]) << 16;
    let words: [u32; 12] = match version {
        Version::V1 => [0, 0, length, snap, places, seconds, nanoseconds / 1000, 0, 0, 0, 0, 0],
        Version::V2 => [0, length, snap, places, seconds, nanoseconds, 0, 0, 0, 0, 0, 0],
        Version::V3 => [next, seconds, nanoseconds, snap, length, 0, places, hash, 0, 0, 0, 0],
    };
    let mut bytes = ArrayVec::new();
    bytes.extend(words.as_bytes()[..version.header_bytes()].iter().copied());
    bytes.extend(shown.name.bytes().iter().copied());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_aligned_and_the_devices_header_is_before_them() {
        let place = |version, kind| place_of(version, kind, 14, (0, 0)).unwrap();
        assert_eq!(place(Version::V1, PacketKind::Raw), FramePlace { link: 66, network: 80, offload: 0 });
        assert_eq!(place(Version::V2, PacketKind::Cooked), FramePlace { link: 80, network: 80, offload: 0 });
        assert_eq!(place(Version::V3, PacketKind::Raw), FramePlace { link: 82, network: 96, offload: 0 });
        let reserved = |bytes| place_of(Version::V2, PacketKind::Raw, 14, (0, bytes));
        assert_eq!(reserved(4), Some(FramePlace { link: 70, network: 84, offload: 0 }));
        assert_eq!(reserved(65455), Some(FramePlace { link: 65521, network: 65535, offload: 0 }));
        assert_eq!(reserved(65456), None);
        assert_eq!(reserved(u32::MAX), None);
        let offload = |reserve| place_of(Version::V2, PacketKind::Raw, 14, (OFFLOAD_BYTES, reserve));
        assert_eq!(offload(0), Some(FramePlace { link: 76, network: 90, offload: 10 }));
        assert_eq!(offload(65446), None);
    }

    #[test]
    fn both_directions_of_a_flow_have_one_hash() {
        let packet = |from: u8, to: u8, ports: [u16; 2]| {
            let mut bytes = std::vec![0; 14 + 28];
            bytes[14] = 0x45;
            bytes[14 + 9] = 17;
            (bytes[14 + 12], bytes[14 + 16]) = (from, to);
            bytes[14 + 20..14 + 22].copy_from_slice(&ports[0].to_be_bytes());
            bytes[14 + 22..14 + 24].copy_from_slice(&ports[1].to_be_bytes());
            bytes
        };
        let hash = |bytes: &[u8]| {
            let name = LinkAddress::new(0x800, 1);
            Shown { bytes, length: 0, link_bytes: 14, name, time: 0, status: 0, has_room: true }.flow_hash()
        };
        let there = hash(&packet(1, 2, [1000, 53]));
        assert_eq!(there, hash(&packet(2, 1, [53, 1000])));
        assert!(there != hash(&packet(1, 2, [1001, 53])) && there != hash(&packet(1, 3, [1000, 53])));
        assert_eq!((hash(&[]), hash(&[0; 60]), hash(&packet(1, 2, [1, 2])[..30])), (0, 0, 0));
    }

    #[test]
    fn headers_have_the_fields_of_their_version() {
        let name = LinkAddress::new(0x800, 1).of_frame(4);
        let shown = Shown {
            bytes: b"frame",
            length: 0x55,
            link_bytes: 14,
            name,
            time: 3_000_004_999,
            status: 0,
            has_room: true,
        };
        let place = FramePlace { link: 0x42, network: 0x50, offload: 0 };
        for version in Version::ALL {
            let bytes = header(version, &shown, place, 5, [64, 7]);
            assert_eq!(bytes.len(), version.head_bytes());
            let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
            let (length, snap, places, seconds, rest, rest_is) = match version {
                Version::V1 => (8, 12, 16, 20, 24, 4),
                Version::V2 => (4, 8, 12, 16, 20, 4999),
                Version::V3 => (16, 12, 24, 4, 8, 4999),
            };
            assert_eq!([length, snap, places, seconds, rest].map(word), [0x55, 5, 0x50_0042, 3, rest_is]);
            assert_eq!(word(version.status_at()), 0);
            assert!(version != Version::V3 || (word(0), word(28)) == (64, 7));
            assert_eq!(bytes[version.header_bytes()..], *name.bytes());
        }
    }
}
