//! Requests of a sender for one packet: control messages of sendmsg(2) that override the socket's
//! own settings.
//!
//! Sources: `ip_cmsg_send` in net/ipv4/ip_sockglue.c, `ip6_datagram_send_ctl` in
//! net/ipv6/datagram.c.

use core::net::{Ipv4Addr, Ipv6Addr};

use linux_raw_sys::net as c;

use super::{HOPLIMIT, IP, IPV6, OLD_HOPLIMIT, OLD_PKTINFO, PKTINFO_V6, TCLASS};
use crate::{Errno, Result};

/// IPPROTO_UDP, a level of options and control messages.
pub(in crate::socket) const UDP: u32 = 17;
/// UDP_SEGMENT.
pub(in crate::socket) const SEGMENT: u32 = 103;
/// UDP_GRO: a receive may return several datagrams, which none does.
pub(in crate::socket) const GRO: u32 = 104;
/// IPV6_DONTFRAG.
const DONTFRAG: u32 = 62;

/// The versions of IP whose control messages a socket accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Versions {
    /// Version 4.
    V4,
    /// Version 6, and version 4 for mapped addresses.
    Both,
}

/// Whether more bytes of the datagram follow (MSG_MORE).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Follows {
    /// The datagram ends with this send.
    #[default]
    Nothing,
    /// The next send adds to it.
    More,
}

/// See the module's head.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wishes {
    /// The source address of the packet.
    pub(in crate::socket) source: Option<Ipv6Addr>,
    /// The number of the outgoing interface; 0 for any.
    pub(in crate::socket) interface: u32,
    pub(in crate::socket) ttl: Option<u8>,
    pub(in crate::socket) tos: Option<u8>,
    /// UDP_SEGMENT: bytes of each datagram that the send consists of; 0 for one datagram.
    pub(in crate::socket) segment: Option<u16>,
    /// Whether more bytes of the datagram follow.
    pub(in crate::socket) follows: Follows,
}

/// Returns the number that `data` consists of.
fn number(data: &[u8]) -> Result<i32> {
    data.try_into().map(i32::from_ne_bytes).map_err(|_| Errno::EINVAL)
}

/// Returns a number from `least` to 255.
fn byte(data: &[u8], least: i32) -> Result<u8> {
    let number = number(data)?;
    if (least..=255).contains(&number) { Ok(number as u8) } else { Err(Errno::EINVAL) }
}

/// Like [`byte`], but -1 selects the socket's own setting.
fn byte_or_own(data: &[u8]) -> Result<Option<u8>> {
    if number(data)? == -1 { Ok(None) } else { byte(data, 0).map(Some) }
}

impl Wishes {
    /// Adds the request of a control message. Control messages of other levels have no effect.
    ///
    /// # Errors
    /// `EINVAL` for an invalid length or value, and for unknown types.
    pub(in crate::socket) fn read(
        &mut self,
        versions: Versions,
        (level, kind): (u32, u32),
        data: &[u8],
    ) -> Result<()> {
        match (level, kind) {
            (IP, c::IP_PKTINFO) => self.read_interface(data)?,
            (IP, c::IP_TTL) => self.ttl = Some(byte(data, 1)?),
            (IP, c::IP_TOS) if data.len() == 1 => self.tos = Some(data[0]),
            (IP, c::IP_TOS) => self.tos = Some(byte(data, 0)?),
            (IPV6, PKTINFO_V6 | OLD_PKTINFO) if versions == Versions::Both => self.read_interface_v6(data)?,
            (IPV6, HOPLIMIT | OLD_HOPLIMIT) if versions == Versions::Both => self.ttl = byte_or_own(data)?,
            (IPV6, TCLASS) if versions == Versions::Both => self.tos = byte_or_own(data)?,
            (IPV6, DONTFRAG) if versions == Versions::Both && (0..=1).contains(&number(data)?) => {}
            (UDP, SEGMENT) => {
                let segment = data.try_into().map_err(|_| Errno::EINVAL)?;
                self.segment = Some(u16::from_ne_bytes(segment));
            }
            (IP | UDP, _) => return Err(Errno::EINVAL),
            (IPV6, _) if versions == Versions::Both => return Err(Errno::EINVAL),
            _ => {}
        }
        Ok(())
    }

    /// `struct in_pktinfo`: the interface, the source, and an address that is not used for sending.
    fn read_interface(&mut self, data: &[u8]) -> Result<()> {
        let data: &[u8; 12] = data.try_into().map_err(|_| Errno::EINVAL)?;
        let [i0, i1, i2, i3, a, b, c, d, ..] = *data;
        self.interface = u32::from_ne_bytes([i0, i1, i2, i3]);
        let source = Ipv4Addr::new(a, b, c, d);
        self.source = (!source.is_unspecified()).then(|| source.to_ipv6_mapped());
        Ok(())
    }

    /// `struct in6_pktinfo`: the source, and the interface.
    fn read_interface_v6(&mut self, data: &[u8]) -> Result<()> {
        let (source, rest) = data.split_first_chunk::<16>().ok_or(Errno::EINVAL)?;
        let interface = rest.first_chunk::<4>().ok_or(Errno::EINVAL)?;
        self.interface = u32::from_ne_bytes(*interface);
        let source = Ipv6Addr::from(*source);
        let is_any = source.is_unspecified() || source == Ipv4Addr::UNSPECIFIED.to_ipv6_mapped();
        self.source = (!is_any).then_some(source);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(versions: Versions, kind: (u32, u32), data: &[u8]) -> Result<Wishes> {
        let mut wishes = Wishes::default();
        wishes.read(versions, kind, data).map(|()| wishes)
    }

    #[test]
    fn numbers_have_their_length_and_their_range() {
        let int = |value: i32| value.to_ne_bytes();
        let ttl = |data: &[u8]| read(Versions::V4, (IP, c::IP_TTL), data).map(|wishes| wishes.ttl);
        assert_eq!((ttl(&int(1)), ttl(&int(255))), (Ok(Some(1)), Ok(Some(255))));
        for refused in [&int(0)[..], &int(256), &int(-1), &[9], &[0; 8]] {
            assert_eq!(ttl(refused), Err(Errno::EINVAL));
        }
        let tos = |data: &[u8]| read(Versions::V4, (IP, c::IP_TOS), data).map(|wishes| wishes.tos);
        assert_eq!((tos(&[0x28]), tos(&int(0x28))), (Ok(Some(0x28)), Ok(Some(0x28))));
        let hops = |data: &[u8]| read(Versions::Both, (IPV6, HOPLIMIT), data).map(|wishes| wishes.ttl);
        assert_eq!(
            (hops(&int(-1)), hops(&int(0)), hops(&int(-2))),
            (Ok(None), Ok(Some(0)), Err(Errno::EINVAL))
        );
    }

    #[test]
    fn a_source_is_read_from_either_form() {
        let mut v4 = [0; 12];
        v4[4..8].copy_from_slice(&[127, 0, 0, 2]);
        let wishes = read(Versions::V4, (IP, c::IP_PKTINFO), &v4).unwrap();
        assert_eq!(wishes.source, Some(Ipv4Addr::new(127, 0, 0, 2).to_ipv6_mapped()));
        assert_eq!(read(Versions::V4, (IP, c::IP_PKTINFO), &v4[..11]), Err(Errno::EINVAL));
        let mut v6 = [0; 20];
        v6[15] = 1;
        v6[16..].copy_from_slice(&7_u32.to_ne_bytes());
        let wishes = read(Versions::Both, (IPV6, PKTINFO_V6), &v6).unwrap();
        assert_eq!((wishes.source, wishes.interface), (Some(Ipv6Addr::LOCALHOST), 7));
        let segment = |data: &[u8]| read(Versions::V4, (UDP, SEGMENT), data).map(|wishes| wishes.segment);
        assert_eq!((segment(&9_u16.to_ne_bytes()), segment(&[9])), (Ok(Some(9)), Err(Errno::EINVAL)));
        // A control message of another family is skipped unread.
        assert_eq!(read(Versions::V4, (IPV6, PKTINFO_V6), &[]), Ok(Wishes::default()));
        assert_eq!(read(Versions::V4, (IP, 99), &[]), Err(Errno::EINVAL));
    }
}
