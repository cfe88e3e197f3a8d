//! Packets as programs of sockets read them.
//!
//! A load names a place in the packet, in network byte order; or, from [`NETWORK`] or [`LINK`] on,
//! a place relative to the network's or the device's header; or, from [`ANCILLARY`] on, a fact
//! about the packet (linux/filter.h, SKF_*). A load outside of these ends the program with 0.

use crate::engine::{Loads, Width};

/// SKF_AD_OFF, SKF_NET_OFF, SKF_LL_OFF.
pub(crate) const ANCILLARY: u32 = 0xffff_f000;
const NETWORK: u32 = 0xfff0_0000;
const LINK: u32 = 0xffe0_0000;

/// Facts, as places after [`ANCILLARY`] (SKF_AD_*).
mod fact {
    pub const PROTOCOL: u32 = 0;
    pub const KIND: u32 = 4;
    pub const INTERFACE: u32 = 8;
    pub const ATTRIBUTE: u32 = 12;
    pub const NESTED_ATTRIBUTE: u32 = 16;
    pub const MARK: u32 = 20;
    pub const QUEUE: u32 = 24;
    pub const HARDWARE: u32 = 28;
    pub const HASH: u32 = 32;
    pub const CPU: u32 = 36;
    pub const XOR_X: u32 = 40;
    pub const TAG: u32 = 44;
    pub const HAS_TAG: u32 = 48;
    pub const PAYLOAD_AT: u32 = 52;
    pub const RANDOM: u32 = 56;
    pub const TAG_PROTOCOL: u32 = 60;
}

/// Whether there is a fact at this place.
pub(crate) const fn is_fact(at: u32) -> bool {
    let fact = at.wrapping_sub(ANCILLARY);
    fact <= fact::TAG_PROTOCOL && fact.is_multiple_of(4)
}

/// A packet and the facts about it.
#[derive(Clone, Copy, Debug)]
pub struct PacketData<'a> {
    /// The packet's bytes, from the first one that its socket can read.
    pub bytes: &'a [u8],
    /// The packet from the network's header on.
    pub network: &'a [u8],
    /// Where in the bytes the payload of its protocols begins.
    pub payload_at: u32,
    /// Whether the device's header is among the bytes: then it is the first.
    pub has_link: HasLink,
    /// Its protocol (ETH_P_*).
    pub protocol: u16,
    /// PACKET_*.
    pub kind: u8,
    /// The number of the interface.
    pub interface: u32,
    /// ARPHRD_*.
    pub hardware: u16,
    /// A random number, for programs that sample packets.
    pub random: u32,
}

/// Whether a packet's bytes begin with the device's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HasLink {
    /// They do.
    Yes,
    /// The bytes do not begin with it.
    No,
}

/// Largest number of attributes that one load visits. The longest program visits some 260,000, and
/// no netlink message reaches these sockets.
const MOST_ATTRIBUTES: usize = 64;

/// The number at `at`.
fn number(bytes: &[u8], at: u32, width: Width) -> Option<u32> {
    let at = at as usize;
    let bytes = bytes.get(at..at.checked_add(width as usize)?)?;
    Some(bytes.iter().fold(0, |value, &byte| value << 8 | u32::from(byte)))
}

impl PacketData<'_> {
    /// The place of an attribute of netlink of kind `kind` in `bytes` from `from` to `end`; 0 where
    /// there is none.
    fn attribute(&self, mut from: usize, end: usize, kind: u32) -> u32 {
        const HEADER: usize = 4;
        for _ in 0..MOST_ATTRIBUTES {
            let header = self.bytes.get(from..from + HEADER).filter(|_| from + HEADER <= end);
            let Some(header) = header else { return 0 };
            let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
            if length < HEADER || from + length > end {
                return 0;
            }
            if u32::from(u16::from_ne_bytes([header[2], header[3]]) & 0x3fff) == kind {
                return from as u32;
            }
            from += length.next_multiple_of(4);
        }
        0
    }

    fn nested_attribute(&self, at: usize, kind: u32) -> u32 {
        let Some(header) = at.checked_add(4).and_then(|end| self.bytes.get(at..end)) else { return 0 };
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        if length < 4 || length > self.bytes.len() - at {
            return 0;
        }
        self.attribute(at + 4, at + length, kind)
    }

    fn fact(&self, fact: u32, a: u32, x: u32) -> u32 {
        match fact {
            fact::PROTOCOL => self.protocol.into(),
            fact::KIND => self.kind.into(),
            fact::INTERFACE => self.interface,
            fact::HARDWARE => self.hardware.into(),
            fact::XOR_X => a ^ x,
            fact::RANDOM => self.random,
            fact::PAYLOAD_AT => self.payload_at,
            fact::ATTRIBUTE if (a as usize) < self.bytes.len() => {
                self.attribute(a as usize, self.bytes.len(), x)
            }
            fact::NESTED_ATTRIBUTE => self.nested_attribute(a as usize, x),
            // No marks, tags, hashes, or more than one queue; of CPUs it is all one.
            fact::MARK | fact::QUEUE | fact::HASH | fact::CPU | fact::TAG | fact::HAS_TAG => 0,
            _ => 0,
        }
    }
}

impl Loads for PacketData<'_> {
    fn length(&self) -> u32 {
        self.bytes.len() as u32
    }

    fn load(&self, at: u32, width: Width, (a, x): (u32, u32)) -> Option<u32> {
        match at {
            ANCILLARY.. => is_fact(at).then(|| self.fact(at - ANCILLARY, a, x)),
            NETWORK.. => number(self.network, at - NETWORK, width),
            LINK.. if self.has_link == HasLink::Yes => number(self.bytes, at - LINK, width),
            LINK.. => None,
            at => number(self.bytes, at, width),
        }
    }
}
