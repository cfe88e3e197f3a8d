//! Addresses of sockets, of all families. [`names`](super::names) finds the owners of AF_UNIX
//! addresses.
//!
//! | module | concept |
//! |---|---|
//! | [`inet`] | IP addresses with ports |
//! | [`link`] | addresses of packet sockets |
//! | [`netlink`] | ports of AF_NETLINK |

pub mod inet;
pub mod link;
pub mod netlink;

use core::net::Ipv6Addr;

use freehold_collections::{Arc, Vec, reserve};
use linux_raw_sys::net::{AF_NETLINK, AF_UNIX, AF_UNSPEC};

use self::inet::InetAddress;
use self::link::LinkAddress;
use self::netlink::NetlinkAddress;
use super::family::Family;
use crate::mem::{OwnMemory, ProgramMemory};
use crate::user::{self, UserPtr};
use crate::{Errno, Result};

/// Bytes of sun_path.
pub(super) const PATH_BYTES: usize = 108;
/// Bytes of the family, which precedes the path.
const FAMILY_BYTES: usize = 2;

/// Bytes of `struct sockaddr_in`, and the least of `struct sockaddr_in6`, whose last member (the
/// scope) may be missing.
const INET_BYTES: usize = 16;
const INET6_BYTES: usize = 28;
const INET6_LEAST_BYTES: usize = 24;
/// Bytes of `struct sockaddr_nl`.
const NETLINK_BYTES: usize = 12;
/// Offset of the IP address in `struct sockaddr_in6`.
const INET6_IP: usize = 8;
/// Length of the longest sockaddr (`struct sockaddr_storage`).
const MOST_BYTES: usize = 128;

/// Address that a socket can be bound to.
///
/// An AF_UNIX address has at most 108 bytes. They are copied once, when the address arrives from a
/// program, and shared from then on.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Address {
    /// A path, as the program gave it.
    Path(Arc<[u8]>),
    /// A name without a file. It has exactly the given bytes, including NULs.
    Abstract(Arc<[u8]>),
    /// An IP address and a port.
    Inet(InetAddress),
    /// A port of netlink.
    Netlink(NetlinkAddress),
    /// A network device, and an address there.
    Link(LinkAddress),
}

impl Address {
    /// Reads a sockaddr of `family`. Returns `None` for an AF_UNIX sockaddr with only the family,
    /// and for AF_UNSPEC on an IP socket.
    ///
    /// # Errors
    /// `EINVAL` for an invalid length, `EAFNOSUPPORT` (`EINVAL` for AF_UNIX) for another family,
    /// `EFAULT`.
    pub fn read(family: Family, address: u64, length: usize) -> Result<Option<Self>> {
        match family {
            Family::Unix => Self::read_unix(address, length),
            Family::Netlink => Self::read_netlink(address, length),
            Family::Packet => LinkAddress::read(address, length).map(|link| Some(Self::Link(link))),
            _ => Self::read_inet(family, address, length),
        }
    }

    /// Whether a sockaddr has the family AF_UNSPEC.
    ///
    /// # Errors
    /// `EINVAL` if it is too short for a family, `EFAULT`.
    pub fn is_unspecified(address: u64, length: usize) -> Result<bool> {
        if length < FAMILY_BYTES {
            return Err(Errno::EINVAL);
        }
        let mut family = [0; FAMILY_BYTES];
        user::read_exact(address, &mut family)?;
        Ok(u32::from(u16::from_le_bytes(family)) == AF_UNSPEC)
    }

    fn read_unix(address: u64, length: usize) -> Result<Option<Self>> {
        if !(FAMILY_BYTES..=FAMILY_BYTES + PATH_BYTES).contains(&length) {
            return Err(Errno::EINVAL);
        }
        let bytes = user::read_vec(address, length)?;
        if u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) != AF_UNIX {
            return Err(Errno::EINVAL);
        }
        let path = &bytes[FAMILY_BYTES..];
        Ok(match path.first() {
            None => None,
            Some(0) => Some(Self::Abstract(reserve::slice(&path[1..]))),
            Some(_) => {
                let end = path.iter().position(|&byte| byte == 0).unwrap_or(path.len());
                Some(Self::Path(reserve::slice(&path[..end])))
            }
        })
    }

    fn read_netlink(address: u64, length: usize) -> Result<Option<Self>> {
        if !(FAMILY_BYTES..=MOST_BYTES).contains(&length) {
            return Err(Errno::EINVAL);
        }
        let mut bytes = [0; NETLINK_BYTES];
        user::read_exact(address, &mut bytes[..length.min(NETLINK_BYTES)])?;
        let [a, b, _, _, port @ .., c, d, e, f] = bytes;
        match u32::from(u16::from_le_bytes([a, b])) {
            AF_UNSPEC => Ok(None),
            AF_NETLINK if length >= NETLINK_BYTES => Ok(Some(Self::Netlink(NetlinkAddress {
                port: u32::from_le_bytes(port),
                groups: u32::from_le_bytes([c, d, e, f]),
            }))),
            _ => Err(Errno::EINVAL),
        }
    }

    fn read_inet(family: Family, address: u64, length: usize) -> Result<Option<Self>> {
        if !(FAMILY_BYTES..=MOST_BYTES).contains(&length) {
            return Err(Errno::EINVAL);
        }
        let mut bytes = [0; INET6_BYTES];
        let count = length.min(INET6_BYTES);
        user::read_exact(address, &mut bytes[..count])?;
        let named = u16::from_le_bytes([bytes[0], bytes[1]]);
        if u32::from(named) == AF_UNSPEC {
            return Ok(None);
        }
        let least = if family == Family::Inet { INET_BYTES } else { INET6_LEAST_BYTES };
        if length < least {
            return Err(Errno::EINVAL);
        }
        if named != family.number() {
            return Err(Errno::EAFNOSUPPORT);
        }
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        let ip = if family == Family::Inet {
            core::net::Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]).to_ipv6_mapped()
        } else {
            let mut octets = [0; 16];
            octets.copy_from_slice(&bytes[INET6_IP..INET6_LEAST_BYTES]);
            Ipv6Addr::from(octets)
        };
        Ok(Some(Self::Inet(InetAddress { ip, port })))
    }

    /// Returns the sockaddr bytes of an address, for a socket of `family`. Without an address: the
    /// family alone, or the unspecified address.
    fn encode(address: Option<&Self>, family: Family) -> Result<Vec<u8>> {
        let mut bytes = Vec::try_with_capacity(FAMILY_BYTES + PATH_BYTES + 1)?;
        if let Some(Self::Link(link)) = address {
            bytes.try_extend_from_slice(link.bytes())?;
            return Ok(bytes);
        }
        bytes.try_extend_from_slice(&family.number().to_le_bytes())?;
        match (address, family) {
            (Some(Self::Path(path)), _) => {
                bytes.try_extend_from_slice(path)?;
                bytes.try_push(0)?;
            }
            (Some(Self::Abstract(name)), _) => {
                bytes.try_push(0)?;
                bytes.try_extend_from_slice(name)?;
            }
            (None, Family::Unix | Family::Packet) => {}
            (address, Family::Netlink) => {
                let netlink = address.and_then(Self::netlink).unwrap_or_default();
                bytes.try_extend_from_slice(&[0; 2])?;
                bytes.try_extend_from_slice(&netlink.port.to_le_bytes())?;
                bytes.try_extend_from_slice(&netlink.groups.to_le_bytes())?;
            }
            (address, family) => {
                let inet = address.and_then(Self::inet);
                let (ip, port) = inet.map_or((Ipv6Addr::UNSPECIFIED, 0), |inet| (inet.ip, inet.port));
                bytes.try_extend_from_slice(&port.to_be_bytes())?;
                if family == Family::Inet {
                    let octets = ip.to_ipv4_mapped().map_or([0; 4], |ip| ip.octets());
                    bytes.try_extend_from_slice(&octets)?;
                    bytes.try_resize(INET_BYTES, 0)?;
                } else {
                    // After the flow label, which is always zero.
                    bytes.try_resize(INET6_IP, 0)?;
                    bytes.try_extend_from_slice(&ip.octets())?;
                    bytes.try_resize(INET6_BYTES, 0)?;
                }
            }
        }
        Ok(bytes)
    }

    /// Returns the IP address and port, for an IP address.
    pub const fn inet(&self) -> Option<InetAddress> {
        match self {
            Self::Inet(address) => Some(*address),
            _ => None,
        }
    }

    /// Returns the port of netlink, for a netlink address.
    pub const fn netlink(&self) -> Option<NetlinkAddress> {
        match self {
            Self::Netlink(address) => Some(*address),
            _ => None,
        }
    }

    /// Returns the device and the address there, for an address of AF_PACKET.
    pub const fn link(&self) -> Option<LinkAddress> {
        match self {
            Self::Link(address) => Some(*address),
            _ => None,
        }
    }

    /// Writes a sockaddr to `to`, cut to the length that `length` points to. Stores the full length
    /// in `length`.
    ///
    /// # Errors
    /// `EINVAL` for a negative length, `EFAULT`, `ENOMEM`.
    pub fn write(address: Option<&Self>, family: Family, to: u64, length: UserPtr<i32>) -> Result<()> {
        let room = usize::try_from(length.read()?).map_err(|_| Errno::EINVAL)?;
        let full = Self::write_bounded(address, family, (to, room), &OwnMemory)?;
        length.write(&(full as i32))
    }

    /// Writes a sockaddr to the address `to` of `memory`, cut to `room` bytes. Returns its full
    /// length.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    pub fn write_bounded(
        address: Option<&Self>,
        family: Family,
        (to, room): (u64, usize),
        memory: &impl ProgramMemory,
    ) -> Result<u32> {
        let bytes = Self::encode(address, family)?;
        memory.write_exact(to, &bytes[..room.min(bytes.len())])?;
        Ok(bytes.len() as u32)
    }
}
