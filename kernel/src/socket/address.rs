//! Addresses of sockets, and the owners of AF_UNIX addresses.
//!
//! A socket is found by the inode that it was bound to, or by its abstract name. The maps hold weak
//! references to sockets. An abstract name ends with its socket. A path stays, and connections to
//! it are refused.

use core::net::Ipv6Addr;
use freehold_collections::{
    Arc, Map, Vec, Weak,
    reserve::{self, ArcMethods},
    try_format,
};

use linux_raw_sys::net::{AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, AF_UNIX, AF_UNSPEC};

use super::endpoint::Socket;
use super::netlink::NetlinkAddress;
use super::packet::address::LinkAddress;
use super::ports::InetAddress;
use crate::fs::{self, Final, Identity, NodeKind, PathWalk};
use crate::sync::{SpinLock, WeakMap};
use crate::task::namespaces::network::NetworkNamespace;
use crate::user::{self, UserPtr};
use crate::{Errno, Result, task};

/// Bytes of sun_path.
const PATH_BYTES: usize = 108;
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

/// Address family of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// AF_UNIX.
    Unix,
    /// AF_INET.
    Inet,
    /// AF_INET6.
    Inet6,
    /// AF_NETLINK.
    Netlink,
    /// AF_PACKET.
    Packet,
}

impl Family {
    /// Returns the family with this number.
    ///
    /// # Errors
    /// `EAFNOSUPPORT`.
    pub const fn from_number(number: u32) -> Result<Self> {
        match number {
            AF_UNIX => Ok(Self::Unix),
            AF_INET => Ok(Self::Inet),
            AF_INET6 => Ok(Self::Inet6),
            AF_NETLINK => Ok(Self::Netlink),
            AF_PACKET => Ok(Self::Packet),
            _ => Err(Errno::EAFNOSUPPORT),
        }
    }
    /// Returns the family's AF_* number.
    pub const fn number(self) -> u16 {
        match self {
            Self::Unix => AF_UNIX as u16,
            Self::Inet => AF_INET as u16,
            Self::Inet6 => AF_INET6 as u16,
            Self::Netlink => AF_NETLINK as u16,
            Self::Packet => AF_PACKET as u16,
        }
    }

    /// Whether the family is AF_INET or AF_INET6.
    pub const fn is_ip(self) -> bool {
        matches!(self, Self::Inet | Self::Inet6)
    }
}

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

/// Sockets by the number of their network namespace, in eight bytes, followed by the name.
static BY_NAME: SpinLock<Map<Arc<[u8]>, Weak<Socket>>> = SpinLock::new(Map::new());
static BY_INODE: SpinLock<WeakMap<Identity, Socket>> = SpinLock::new(WeakMap::new());

/// A key of [`BY_NAME`] that needs no allocation, for use when a socket ends.
struct KeyBytes([u8; 8 + PATH_BYTES], usize);

impl KeyBytes {
    fn of(network: &NetworkNamespace, name: &[u8]) -> Self {
        let mut bytes = [0; 8 + PATH_BYTES];
        bytes[..8].copy_from_slice(&network.number().to_ne_bytes());
        bytes[8..8 + name.len()].copy_from_slice(name);
        Self(bytes, 8 + name.len())
    }
    fn bytes(&self) -> &[u8] {
        &self.0[..self.1]
    }
}

fn key_of(network: &NetworkNamespace, name: &[u8]) -> Arc<[u8]> {
    reserve::slice(KeyBytes::of(network, name).bytes())
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
        let bytes = Self::encode(address, family)?;
        user::write_exact(to, &bytes[..room.min(bytes.len())])?;
        length.write(&(bytes.len() as i32))
    }

    /// Writes a sockaddr to `to`, cut to `room` bytes. Returns its full length.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    pub fn write_bounded(address: Option<&Self>, family: Family, to: u64, room: usize) -> Result<u32> {
        let bytes = Self::encode(address, family)?;
        user::write_exact(to, &bytes[..room.min(bytes.len())])?;
        Ok(bytes.len() as u32)
    }

    /// Binds `socket` to this address.
    ///
    /// # Errors
    /// `EADDRINUSE`; the errors of creating a file.
    pub fn bind(&self, socket: &Arc<Socket>) -> Result<()> {
        match self {
            Self::Abstract(name) => {
                let key = key_of(socket.network(), name);
                let mut names = BY_NAME.lock();
                if names.get(&key[..]).is_some_and(|other| other.strong_count() > 0) {
                    return Err(Errno::EADDRINUSE);
                }
                names.try_insert(key, socket.downgrade())?;
            }
            // These are bound by what their sockets receive.
            Self::Inet(_) | Self::Netlink(_) | Self::Link(_) => return Err(Errno::EINVAL),
            Self::Path(path) => {
                let identity = with_walk(|walk, umask| {
                    let mode = 0o777 & !umask;
                    let made = fs::names::make_node(walk, path, NodeKind::Socket, mode, 0);
                    made.map_err(|error| if error == Errno::EEXIST { Errno::EADDRINUSE } else { error })
                })?
                .node
                .identity();
                if BY_INODE.lock().try_insert(identity, socket).is_err() {
                    // Remove the file, since no task could connect to it. Another file may have its
                    // name by now.
                    let found = with_walk(|walk, _| walk.find(path, Final::Stop))?;
                    if found.node.identity() == identity {
                        with_walk(|walk, _| fs::names::unlink(walk, path))?;
                    }
                    return Err(Errno::ENOMEM);
                }
            }
        }
        Ok(())
    }

    /// Returns the socket that is bound to this address, for a socket of `network`.
    ///
    /// # Errors
    /// `ECONNREFUSED` if there is none; the errors of following a path.
    pub fn find(&self, network: &NetworkNamespace) -> Result<Arc<Socket>> {
        let found = match self {
            Self::Inet(_) | Self::Netlink(_) | Self::Link(_) => None,
            Self::Abstract(name) => {
                let key = KeyBytes::of(network, name);
                BY_NAME.lock().get(key.bytes()).and_then(|weak| weak.upgrade())
            }
            Self::Path(path) => {
                let place = with_walk(|walk, _| walk.find(path, Final::Follow))?;
                let caller = task::current().process().credentials();
                caller.caller().may(&place.node.metadata(), fs::Access::WRITE)?;
                if place.node.kind() != NodeKind::Socket {
                    return Err(Errno::ECONNREFUSED);
                }
                BY_INODE.lock().get(&place.node.identity())
            }
        };
        found.ok_or(Errno::ECONNREFUSED)
    }

    /// Removes an abstract name. Its socket, which was in `network`, has ended.
    pub fn release(&self, network: &NetworkNamespace) {
        if let Self::Abstract(name) = self {
            let key = KeyBytes::of(network, name);
            let mut names = BY_NAME.lock();
            if names.get(key.bytes()).is_some_and(|socket| socket.strong_count() == 0) {
                names.remove(key.bytes());
            }
        }
    }

    /// Binds `socket` to a free abstract name (for a bind without a name).
    ///
    /// # Errors
    /// `EADDRINUSE` if all names are taken, `ENOMEM`.
    pub fn bind_to_any(socket: &Arc<Socket>) -> Result<Self> {
        for number in 0..0x10_0000u32 {
            let text = try_format!("{number:05x}")?;
            let name = Self::Abstract(reserve::slice(text.as_bytes()));
            match name.bind(socket) {
                Err(Errno::EADDRINUSE) => {}
                bound => return bound.map(|()| name),
            }
        }
        Err(Errno::EADDRINUSE)
    }
}

/// Runs `f` with the walk that resolves paths for the caller, and its umask.
fn with_walk<R>(f: impl FnOnce(&PathWalk<'_>, u32) -> Result<R>) -> Result<R> {
    let process = task::current().process().clone();
    let context = process.fs();
    let credentials = process.credentials();
    let (root, start) = (context.root(), context.cwd());
    f(&PathWalk::new(&root, &start, &credentials.caller()), context.umask())
}
