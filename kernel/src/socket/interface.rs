//! The network devices: `lo`, and `eth0` if the machine has a network (netdevice(7)).
//!
//! No packet passes through `lo`, since a connection's bytes go from socket to socket. So its
//! counters are 0. Neither device can be changed, except that `lo` of a new network namespace can
//! be set up or down. A request to set an unchanged value succeeds; any other is `EOPNOTSUPP`.

use freehold_virtio::FrameCounts;
use linux_raw_sys::ioctl as c;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::attachment::attachment;
use super::family::Family;
use crate::task::namespaces::network::{LinkState, NetworkNamespace};
use crate::task::{self, Capability};
use crate::user::UserPtr;
use crate::{Errno, Result};

/// Length of the transmit queue that is reported.
pub const QUEUE_LENGTH: u32 = 1000;

/// A network device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Its name.
    pub name: &'static str,
    /// Its number.
    pub index: u32,
    /// IFF_*.
    pub flags: u32,
    /// Bytes of the longest packet.
    pub mtu: u32,
    /// ARPHRD_*.
    pub hardware: u16,
    /// The device's hardware address, and the broadcast address.
    pub hardware_addresses: [[u8; 6]; 2],
    /// The device's IPv4 address, in network byte order.
    pub address: [u8; 4],
    /// Length of the network prefix of that address.
    pub prefix: u8,
    /// The router to all other networks, if the interface leads there.
    pub gateway: Option<[u8; 4]>,
}

/// The loopback device: IFF_UP, IFF_LOOPBACK and IFF_RUNNING, ARPHRD_LOOPBACK.
pub const LO: Interface = Interface {
    name: "lo",
    index: 1,
    flags: 0x1 | 0x8 | 0x40,
    mtu: NetworkNamespace::LOOPBACK_MTU,
    hardware: 772,
    hardware_addresses: [[0; 6]; 2],
    address: [127, 0, 0, 1],
    prefix: 8,
    gateway: None,
};

/// IFF_UP, IFF_BROADCAST, IFF_RUNNING and IFF_MULTICAST.
const ETHERNET_FLAGS: u32 = 0x1 | 0x2 | 0x40 | 0x1000;
/// The number of `eth0`.
pub const ETHERNET_INDEX: u32 = 2;
/// The hardware address of all machines in a network.
pub const ALL_MACHINES: [u8; 6] = [0xff; 6];
/// ARPHRD_ETHER.
pub const ETHERNET: u16 = 1;

/// IFF_UP and IFF_RUNNING, together.
const RUNS: u32 = 0x1 | 0x40;

/// The devices of a network namespace, in the order of their numbers.
pub fn all(network: &NetworkNamespace) -> impl Iterator<Item = Interface> + use<> {
    let ethernet = attachment().filter(|_| network.is_initial()).map(|attachment| {
        let device = &attachment.device;
        Interface {
            name: "eth0",
            index: ETHERNET_INDEX,
            flags: ETHERNET_FLAGS,
            mtu: device.mtu() as u32,
            hardware: ETHERNET,
            hardware_addresses: [device.address(), ALL_MACHINES],
            address: attachment.address.octets(),
            prefix: attachment.prefix,
            gateway: Some(attachment.gateway.octets()),
        }
    });
    let flags = if network.is_up() { LO.flags } else { LO.flags & !RUNS };
    [Interface { flags, mtu: network.loopback_mtu(), ..LO }].into_iter().chain(ethernet)
}

impl Interface {
    /// Whether the device is up (IFF_UP).
    pub const fn is_up(&self) -> bool {
        self.flags & 0x1 != 0
    }
    /// Returns the network mask of the device's address.
    pub fn mask(&self) -> [u8; 4] {
        u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0).to_be_bytes()
    }
    /// Returns the address of the device's network, and the network's broadcast address.
    pub fn network(&self) -> ([u8; 4], [u8; 4]) {
        let (address, mask) = (u32::from_be_bytes(self.address), u32::from_be_bytes(self.mask()));
        ((address & mask).to_be_bytes(), (address | !mask).to_be_bytes())
    }
    /// Returns the counts of frames that went through the interface.
    pub fn counts(&self) -> FrameCounts {
        let attachment = attachment().filter(|_| self.index != LO.index);
        attachment.map_or_else(FrameCounts::default, |attachment| attachment.device.counts())
    }
}

/// Bytes of an interface's name, with the NUL.
const NAME_BYTES: usize = 16;
/// Request of ethtool(8).
const SIOCETHTOOL: u32 = 0x8946;
/// `SIOCGIFPFLAGS` and `SIOCSIFPFLAGS`, which no IP device supports.
const PRIVATE_FLAGS: [u32; 2] = [c::SIOCGIFPFLAGS, c::SIOCSIFPFLAGS];

/// `struct ifreq`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct Request {
    name: [u8; NAME_BYTES],
    value: [u8; 24],
}

/// `struct ifconf`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct InterfaceList {
    length: i32,
    padding: u32,
    requests: u64,
}

impl Request {
    fn put(&mut self, bytes: &[u8]) {
        self.value[..bytes.len()].copy_from_slice(bytes);
    }

    fn put_address(&mut self, address: [u8; 4]) {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&Family::Inet.number().to_ne_bytes());
        bytes[4..8].copy_from_slice(&address);
        self.put(&bytes);
    }

    fn begins_with(&self, bytes: &[u8]) -> bool {
        self.value.starts_with(bytes)
    }

    /// Returns the interface's name, and the part after a colon: the label of one of its addresses.
    fn names(&self) -> (&[u8], Option<&[u8]>) {
        let end = self.name.iter().take(NAME_BYTES - 1).position(|&byte| byte == 0);
        let name = &self.name[..end.unwrap_or(NAME_BYTES - 1)];
        match name.iter().position(|&byte| byte == b':') {
            Some(colon) => (&name[..colon], Some(&name[colon + 1..])),
            None => (name, None),
        }
    }

    fn set_name(&mut self, name: &str) {
        self.name = [0; NAME_BYTES];
        self.name[..name.len()].copy_from_slice(name.as_bytes());
    }

    fn device(&self, network: &NetworkNamespace) -> Result<Interface> {
        all(network).find(|device| device.name.as_bytes() == self.names().0).ok_or(Errno::ENODEV)
    }

    /// Answers a request that sockets of every family support.
    fn answer(&mut self, network: &NetworkNamespace, request: u32) -> Result<()> {
        if request == c::SIOCGIFNAME {
            let named = all(network).find(|device| self.begins_with(&device.index.to_ne_bytes()));
            self.set_name(named.ok_or(Errno::ENODEV)?.name);
            return Ok(());
        }
        let device = self.device(network)?;
        match request {
            c::SIOCGIFINDEX => self.put(&device.index.to_ne_bytes()),
            c::SIOCGIFFLAGS => self.put(&(device.flags as u16).to_ne_bytes()),
            c::SIOCGIFMTU => self.put(&device.mtu.to_ne_bytes()),
            c::SIOCGIFTXQLEN => self.put(&QUEUE_LENGTH.to_ne_bytes()),
            c::SIOCGIFMETRIC => self.put(&[0; 4]),
            // Two addresses of 8 bytes, one of 2, and three numbers of a byte.
            c::SIOCGIFMAP => self.put(&[0; 21]),
            c::SIOCGIFHWADDR => {
                self.put(&device.hardware.to_ne_bytes());
                self.value[2..8].copy_from_slice(&device.hardware_addresses[0]);
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    /// Answers a request about IPv4 addresses.
    fn answer_address(&mut self, network: &NetworkNamespace, request: u32) -> Result<()> {
        let device = self.device(network)?;
        if self.names().1.is_some() || !device.is_up() {
            return Err(Errno::EADDRNOTAVAIL);
        }
        self.put_address(match request {
            c::SIOCGIFNETMASK => device.mask(),
            c::SIOCGIFBRDADDR if device.index == LO.index => [0; 4],
            c::SIOCGIFBRDADDR => device.network().1,
            _ => device.address,
        });
        Ok(())
    }

    /// Returns whether `request` would set the present value.
    fn is_so(&self, device: &Interface, request: u32) -> bool {
        match request {
            c::SIOCSIFFLAGS => (self.value[0] & 1 == 1) == device.is_up(),
            c::SIOCSIFMTU => self.begins_with(&device.mtu.to_ne_bytes()),
            c::SIOCSIFTXQLEN => self.begins_with(&QUEUE_LENGTH.to_ne_bytes()),
            _ => {
                let mut same = *self;
                same.put_address(if request == c::SIOCSIFNETMASK { device.mask() } else { device.address });
                let is_address = matches!(request, c::SIOCSIFADDR | c::SIOCSIFDSTADDR | c::SIOCSIFNETMASK);
                is_address && same.value[4..8] == self.value[4..8] && same.value[..2] == self.value[..2]
            }
        }
    }
}

/// Requires `CAP_NET_ADMIN` over a network namespace, else `EPERM`.
pub fn check_administrator(network: &NetworkNamespace) -> Result<()> {
    if task::may_in(network.head().owner(), Capability::NetAdmin) { Ok(()) } else { Err(Errno::EPERM) }
}

/// SIOCGIFCONF: lists the interfaces with an IPv4 address.
fn list(network: &NetworkNamespace, at: u64) -> Result<()> {
    let at = UserPtr::<InterfaceList>::new(at);
    let mut list = at.read()?;
    let each = size_of::<Request>();
    if list.requests == 0 {
        list.length = (all(network).filter(Interface::is_up).count() * each) as i32;
        return at.write(&list);
    }
    let room = list.length.max(0) as usize / each;
    let mut length = 0;
    for device in all(network).filter(Interface::is_up).take(room) {
        let mut request = Request { name: [0; NAME_BYTES], value: [0; 24] };
        request.set_name(device.name);
        request.put_address(device.address);
        UserPtr::new(list.requests.wrapping_add(length as u64)).write(&request)?;
        length += each;
    }
    list.length = length as i32;
    at.write(&list)
}

/// An ioctl about interfaces or routes, on a socket of `family` in `network`.
///
/// # Errors
/// `ENOTTY` if it is none of these ioctls, or is another family's; `ENODEV`, `EADDRNOTAVAIL`,
/// `EPERM` without CAP_NET_ADMIN, `EOPNOTSUPP`, `EINVAL`, `EFAULT`.
pub fn ioctl(network: &NetworkNamespace, family: Family, request: u32, argument: u64) -> Result<()> {
    let at = UserPtr::<Request>::new(argument);
    let answered = |answer: fn(&mut Request, &NetworkNamespace, u32) -> Result<()>| {
        let mut asked = at.read()?;
        answer(&mut asked, network, request)?;
        at.write(&asked)
    };
    // Packet sockets pass these requests on to IPv4 (`packet_ioctl`).
    let is_v4 = matches!(family, Family::Inet | Family::Packet);
    match request {
        c::SIOCGIFCONF => list(network, argument),
        c::SIOCGIFNAME
        | c::SIOCGIFFLAGS
        | c::SIOCGIFMETRIC
        | c::SIOCGIFMTU
        | c::SIOCGIFHWADDR
        | c::SIOCGIFSLAVE
        | c::SIOCGIFINDEX
        | c::SIOCGIFTXQLEN
        | c::SIOCGIFMAP => answered(Request::answer),
        c::SIOCGIFADDR | c::SIOCGIFDSTADDR | c::SIOCGIFBRDADDR | c::SIOCGIFNETMASK if is_v4 => {
            answered(Request::answer_address)
        }
        _ if is_v4 && PRIVATE_FLAGS.contains(&request) => Err(Errno::EINVAL),
        SIOCETHTOOL => at.read()?.device(network).and(Err(Errno::EOPNOTSUPP)),
        c::SIOCSIFADDR
        | c::SIOCSIFDSTADDR
        | c::SIOCSIFBRDADDR
        | c::SIOCSIFNETMASK
        | c::SIOCADDRT
        | c::SIOCDELRT
            if !is_v4 =>
        {
            Err(Errno::ENOTTY)
        }
        c::SIOCADDRT | c::SIOCDELRT => check_administrator(network).and(Err(Errno::EOPNOTSUPP)),
        c::SIOCSIFFLAGS
        | c::SIOCSIFADDR
        | c::SIOCSIFDSTADDR
        | c::SIOCSIFBRDADDR
        | c::SIOCSIFNETMASK
        | c::SIOCSIFMETRIC
        | c::SIOCSIFMTU
        | c::SIOCSIFNAME
        | c::SIOCSIFHWADDR
        | c::SIOCADDMULTI
        | c::SIOCDELMULTI
        | c::SIOCSIFTXQLEN
        | c::SIOCSIFMAP => set(network, &at.read()?, request),
        _ => Err(Errno::ENOTTY),
    }
}

fn set(network: &NetworkNamespace, wanted: &Request, request: u32) -> Result<()> {
    check_administrator(network)?;
    let device = wanted.device(network)?;
    if request == c::SIOCSIFFLAGS && !network.is_initial() {
        network.set_link(if wanted.value[0] & 1 == 1 { LinkState::Up } else { LinkState::Down });
        return Ok(());
    }
    // Without IPv6 below 1280, and without IPv4 below 68, Linux' loopback device would be another.
    let mtu = u32::from_ne_bytes([wanted.value[0], wanted.value[1], wanted.value[2], wanted.value[3]]);
    if request == c::SIOCSIFMTU && device.index == LO.index && (1280..=LO.mtu).contains(&mtu) {
        network.set_loopback_mtu(mtu);
        return Ok(());
    }
    if wanted.is_so(&device, request) { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn named(name: &[u8]) -> Request {
        let mut request = Request { name: [0; NAME_BYTES], value: [0x11; 24] };
        request.name[..name.len()].copy_from_slice(name);
        request
    }

    #[test]
    fn lo_is_what_linux_says_of_it() {
        let answer = |request| {
            let mut asked = named(b"lo");
            asked.answer(NetworkNamespace::initial(), request).map(|()| asked.value)
        };
        assert_eq!(answer(c::SIOCGIFFLAGS).unwrap()[..4], [0x49, 0, 0x11, 0x11]);
        assert_eq!(answer(c::SIOCGIFMTU).unwrap()[..5], [0, 0, 1, 0, 0x11]);
        assert_eq!(answer(c::SIOCGIFHWADDR).unwrap()[..9], [4, 3, 0, 0, 0, 0, 0, 0, 0x11]);
        assert_eq!(answer(c::SIOCGIFSLAVE), Err(Errno::EINVAL));
        let mut asked = named(b"lo");
        asked.answer_address(NetworkNamespace::initial(), c::SIOCGIFNETMASK).unwrap();
        assert_eq!(asked.value[..8], [2, 0, 0, 0, 255, 0, 0, 0]);
        assert_eq!(
            named(b"lo:1").answer_address(NetworkNamespace::initial(), c::SIOCGIFADDR),
            Err(Errno::EADDRNOTAVAIL)
        );
        assert_eq!(named(b"lo:1").answer(NetworkNamespace::initial(), c::SIOCGIFINDEX), Ok(()));
        assert_eq!(named(b"eth0").answer(NetworkNamespace::initial(), c::SIOCGIFINDEX), Err(Errno::ENODEV));
        let mut by_number = named(b"what was there");
        by_number.put(&LO.index.to_ne_bytes());
        by_number.answer(NetworkNamespace::initial(), c::SIOCGIFNAME).unwrap();
        assert_eq!(&by_number.name, b"lo\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    }

    proptest! {
        /// A name of random bytes names `lo` or no device.
        #[test]
        fn any_name_is_los_or_nobodys(mut name: [u8; NAME_BYTES], as_lo: bool) {
            if as_lo {
                name[..2].copy_from_slice(b"lo");
            }
            let text = name.split(|&byte| byte == 0 || byte == b':').next().unwrap_or_default();
            let mut asked = Request { name, value: [0; 24] };
            let answer = asked.answer(NetworkNamespace::initial(), c::SIOCGIFINDEX);
            prop_assert_eq!(answer, if text == b"lo" { Ok(()) } else { Err(Errno::ENODEV) });
        }
    }
}
