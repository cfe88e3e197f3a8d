//! Families of sockets.

use linux_raw_sys::net::{AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, AF_UNIX};

use crate::{Errno, Result};

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
