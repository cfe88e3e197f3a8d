//! The network device: `lo`, and nothing beside it (netdevice(7)).
//!
//! No packet passes through it, since a connection's bytes go from socket to socket: it is up, it
//! has 127.0.0.1/8 and ::1/128, its counters are 0, and nothing of it can be changed. A request to
//! set what is so already succeeds; any other is `EOPNOTSUPP`.

use linux_raw_sys::ioctl as c;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::address::Family;
use crate::task::{self, Capability};
use crate::user::UserPtr;
use crate::{Errno, Result};

/// Its name.
pub const NAME: &[u8] = b"lo";
/// Its number.
pub const INDEX: u32 = 1;
/// IFF_UP, IFF_LOOPBACK and IFF_RUNNING.
pub const FLAGS: u32 = 0x1 | 0x8 | 0x40;
/// Bytes of the longest packet that Linux' would take.
pub const MTU: u32 = 65_536;
/// ARPHRD_LOOPBACK.
pub const HARDWARE: u16 = 772;
/// Packets that would wait.
pub const QUEUE_LENGTH: u32 = 1000;
/// Its address, network byte order.
pub const ADDRESS: [u8; 4] = [127, 0, 0, 1];
/// The bits of [`ADDRESS`] that name the network.
pub const MASK: [u8; 4] = [255, 0, 0, 0];

/// Bytes of an interface's name, with the NUL.
const NAME_BYTES: usize = 16;
/// What ethtool(8) asks.
const SIOCETHTOOL: u32 = 0x8946;
/// `SIOCGIFPFLAGS` and `SIOCSIFPFLAGS`, which no device of IP has.
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

    /// The interface's name, and what is after a colon: the name of an address of it.
    fn names(&self) -> (&[u8], Option<&[u8]>) {
        let end = self.name.iter().take(NAME_BYTES - 1).position(|&byte| byte == 0);
        let name = &self.name[..end.unwrap_or(NAME_BYTES - 1)];
        match name.iter().position(|&byte| byte == b':') {
            Some(colon) => (&name[..colon], Some(&name[colon + 1..])),
            None => (name, None),
        }
    }

    fn check_device(&self) -> Result<()> {
        if self.names().0 == NAME { Ok(()) } else { Err(Errno::ENODEV) }
    }

    /// Answers a question that sockets of every family take.
    fn answer(&mut self, request: u32) -> Result<()> {
        if request == c::SIOCGIFNAME {
            if !self.begins_with(&INDEX.to_ne_bytes()) {
                return Err(Errno::ENODEV);
            }
            self.name = [0; NAME_BYTES];
            self.name[..NAME.len()].copy_from_slice(NAME);
            return Ok(());
        }
        self.check_device()?;
        match request {
            c::SIOCGIFINDEX => self.put(&INDEX.to_ne_bytes()),
            c::SIOCGIFFLAGS => self.put(&(FLAGS as u16).to_ne_bytes()),
            c::SIOCGIFMTU => self.put(&MTU.to_ne_bytes()),
            c::SIOCGIFTXQLEN => self.put(&QUEUE_LENGTH.to_ne_bytes()),
            c::SIOCGIFMETRIC => self.put(&[0; 4]),
            // Two addresses of 8 bytes, one of 2, and three numbers of a byte.
            c::SIOCGIFMAP => self.put(&[0; 21]),
            c::SIOCGIFHWADDR => {
                self.put(&HARDWARE.to_ne_bytes());
                self.value[2..8].fill(0);
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    /// Answers a question about addresses of version 4.
    fn answer_address(&mut self, request: u32) -> Result<()> {
        self.check_device()?;
        if self.names().1.is_some() {
            return Err(Errno::EADDRNOTAVAIL);
        }
        self.put_address(match request {
            c::SIOCGIFNETMASK => MASK,
            c::SIOCGIFBRDADDR => [0; 4],
            _ => ADDRESS,
        });
        Ok(())
    }

    /// Whether the setting `request` asks for what is so.
    fn is_so(&self, request: u32) -> bool {
        match request {
            c::SIOCSIFFLAGS => self.value[0] & 1 == 1,
            c::SIOCSIFMTU => self.begins_with(&MTU.to_ne_bytes()),
            c::SIOCSIFTXQLEN => self.begins_with(&QUEUE_LENGTH.to_ne_bytes()),
            _ => {
                let mut same = *self;
                same.put_address(if request == c::SIOCSIFNETMASK { MASK } else { ADDRESS });
                let is_address = matches!(request, c::SIOCSIFADDR | c::SIOCSIFDSTADDR | c::SIOCSIFNETMASK);
                is_address && same.value[4..8] == self.value[4..8] && same.value[..2] == self.value[..2]
            }
        }
    }
}

/// `CAP_NET_ADMIN`, or `EPERM`.
pub fn check_administrator() -> Result<()> {
    if task::may(Capability::NetAdmin) { Ok(()) } else { Err(Errno::EPERM) }
}

/// SIOCGIFCONF: the interfaces with an address of version 4.
fn list(at: u64) -> Result<()> {
    let at = UserPtr::<InterfaceList>::new(at);
    let mut list = at.read()?;
    let whole = size_of::<Request>() as i32;
    if list.requests == 0 {
        list.length = whole;
        return at.write(&list);
    }
    list.length = if list.length < whole { 0 } else { whole };
    if list.length > 0 {
        let mut request = Request { name: [0; NAME_BYTES], value: [0; 24] };
        request.name[..NAME.len()].copy_from_slice(NAME);
        request.put_address(ADDRESS);
        UserPtr::new(list.requests).write(&request)?;
    }
    at.write(&list)
}

/// An ioctl about interfaces or routes of a socket of `family`.
///
/// # Errors
/// `ENOTTY` where it is none of these, or of another family's; `ENODEV`, `EADDRNOTAVAIL`, `EPERM`
/// without CAP_NET_ADMIN, `EOPNOTSUPP`, `EINVAL`, `EFAULT`.
pub fn ioctl(family: Family, request: u32, argument: u64) -> Result<()> {
    let at = UserPtr::<Request>::new(argument);
    let answered = |answer: fn(&mut Request, u32) -> Result<()>| {
        let mut asked = at.read()?;
        answer(&mut asked, request)?;
        at.write(&asked)
    };
    let is_v4 = family == Family::Inet;
    match request {
        c::SIOCGIFCONF => list(argument),
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
        SIOCETHTOOL => at.read()?.check_device().and(Err(Errno::EOPNOTSUPP)),
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
        c::SIOCADDRT | c::SIOCDELRT => check_administrator().and(Err(Errno::EOPNOTSUPP)),
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
        | c::SIOCSIFMAP => set(&at.read()?, request),
        _ => Err(Errno::ENOTTY),
    }
}

fn set(wanted: &Request, request: u32) -> Result<()> {
    check_administrator()?;
    wanted.check_device()?;
    if wanted.is_so(request) { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
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
            asked.answer(request).map(|()| asked.value)
        };
        assert_eq!(answer(c::SIOCGIFFLAGS).unwrap()[..4], [0x49, 0, 0x11, 0x11]);
        assert_eq!(answer(c::SIOCGIFMTU).unwrap()[..5], [0, 0, 1, 0, 0x11]);
        assert_eq!(answer(c::SIOCGIFHWADDR).unwrap()[..9], [4, 3, 0, 0, 0, 0, 0, 0, 0x11]);
        assert_eq!(answer(c::SIOCGIFSLAVE), Err(Errno::EINVAL));
        let mut asked = named(b"lo");
        asked.answer_address(c::SIOCGIFNETMASK).unwrap();
        assert_eq!(asked.value[..8], [2, 0, 0, 0, 255, 0, 0, 0]);
        assert_eq!(named(b"lo:1").answer_address(c::SIOCGIFADDR), Err(Errno::EADDRNOTAVAIL));
        assert_eq!(named(b"lo:1").answer(c::SIOCGIFINDEX), Ok(()));
        assert_eq!(named(b"eth0").answer(c::SIOCGIFINDEX), Err(Errno::ENODEV));
        let mut by_number = named(b"what was there");
        by_number.put(&INDEX.to_ne_bytes());
        by_number.answer(c::SIOCGIFNAME).unwrap();
        assert_eq!(&by_number.name, b"lo\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    }

    proptest! {
        /// A name of any bytes is `lo` or no device.
        #[test]
        fn any_name_is_los_or_nobodys(mut name: [u8; NAME_BYTES], as_lo: bool) {
            if as_lo {
                name[..2].copy_from_slice(NAME);
            }
            let text = name.split(|&byte| byte == 0 || byte == b':').next().unwrap_or_default();
            let mut asked = Request { name, value: [0; 24] };
            let answer = asked.answer(c::SIOCGIFINDEX);
            prop_assert_eq!(answer, if text == NAME { Ok(()) } else { Err(Errno::ENODEV) });
        }
    }
}
