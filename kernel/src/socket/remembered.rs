//! Options that are stored: programs set them and read them back. Most of them are about packets,
//! which do not exist here. The others have an effect where they are read ([`inet`](super::inet)).

use freehold_collections::Vec;
use linux_raw_sys::net as c;

use super::beside::wishes::{GRO, UDP};
use super::beside::{IP, IPV6, PACKET};
use super::endpoint::Socket;
use super::family::Family;
use super::netlink;
use super::ports::Protocol;
use crate::{Errno, Result};

/// IPPROTO_TCP, a level of setsockopt(2).
pub(super) const TCP: u32 = Protocol::Tcp as u32;

/// IPPROTO_UDPLITE, a level of setsockopt(2).
const UDP_LITE: u32 = Protocol::UdpLite as u32;

/// Values that an option may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Values {
    /// 0 or 1; any other number is 1.
    Flag,
    /// From the first number to the last.
    Range(i32, i32),
    /// From the first number to the last; -1 sets the initial value.
    RangeOrInitial(i32, i32),
    /// Any number; its lowest byte is used.
    Byte,
    /// Bytes that a checksum covers: 0 for all, else from 8 to 65,535.
    Coverage,
    /// From 1 on: 0 becomes 1, and a negative number becomes the largest.
    Least,
}

use Values::{Byte, Coverage, Flag, Least, Range, RangeOrInitial};

/// Any number.
const ANY: Values = Range(i32::MIN, i32::MAX);
/// Any number from 0 on.
const NATURAL: Values = Range(0, i32::MAX);

/// An option: its level, number, permitted values, and initial value.
struct Known(u32, u32, Values, i32);

/// The options of linux/tcp.h in order: TCP_NODELAY, TCP_MAXSEG, TCP_CORK, TCP_KEEPIDLE,
/// TCP_KEEPINTVL, TCP_KEEPCNT, TCP_SYNCNT, TCP_LINGER2, TCP_DEFER_ACCEPT, TCP_WINDOW_CLAMP,
/// TCP_QUICKACK, TCP_USER_TIMEOUT, TCP_FASTOPEN, TCP_NOTSENT_LOWAT, TCP_FASTOPEN_CONNECT,
/// TCP_FASTOPEN_NO_COOKIE. Those of linux/udp.h: UDPLITE_SEND_CSCOV, UDPLITE_RECV_CSCOV. The
/// options of linux/netlink.h: NETLINK_PKTINFO, NETLINK_BROADCAST_ERROR, NETLINK_NO_ENOBUFS,
/// NETLINK_CAP_ACK, NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK.
const KNOWN: [Known; 63] = [
    Known(c::SOL_SOCKET, c::SO_DEBUG, Flag, 0),
    Known(c::SOL_SOCKET, c::SO_REUSEADDR, Flag, 0),
    Known(c::SOL_SOCKET, c::SO_REUSEPORT, Flag, 0),
    Known(c::SOL_SOCKET, c::SO_DONTROUTE, Flag, 0),
    Known(c::SOL_SOCKET, c::SO_BROADCAST, Flag, 0),
    Known(c::SOL_SOCKET, c::SO_KEEPALIVE, Flag, 0),
    Known(c::SOL_SOCKET, c::SO_OOBINLINE, Flag, 0),
    Known(c::SOL_SOCKET, c::SO_PRIORITY, ANY, 0),
    Known(c::SOL_SOCKET, c::SO_MARK, ANY, 0),
    Known(c::SOL_SOCKET, c::SO_RCVLOWAT, Least, 1),
    Known(c::SOL_SOCKET, c::SO_INCOMING_CPU, ANY, -1),
    Known(c::SOL_SOCKET, c::SO_BUSY_POLL, NATURAL, 0),
    Known(c::SOL_SOCKET, c::SO_MAX_PACING_RATE, ANY, -1),
    Known(c::SOL_SOCKET, c::SO_NO_CHECK, Flag, 0),
    Known(c::SOL_SOCKET, c::SO_PASSSEC, Flag, 0),
    Known(c::SOL_SOCKET, c::SO_SELECT_ERR_QUEUE, Flag, 0),
    Known(c::SOL_SOCKET, c::SO_PREFER_BUSY_POLL, Flag, 0),
    Known(UDP, GRO, Flag, 0),
    Known(UDP_LITE, 10, Coverage, 0),
    Known(UDP_LITE, 11, Coverage, 0),
    Known(TCP, 1, Flag, 0),
    Known(TCP, 2, Range(88, 32767), 536),
    Known(TCP, 3, Flag, 0),
    Known(TCP, 4, Range(1, 32767), 7200),
    Known(TCP, 5, Range(1, 32767), 75),
    Known(TCP, 6, Range(1, 127), 9),
    Known(TCP, 7, Range(1, 127), 6),
    Known(TCP, 8, Range(-1, i32::MAX), 60),
    Known(TCP, 9, NATURAL, 0),
    Known(TCP, 10, NATURAL, 0),
    Known(TCP, 12, Flag, 1),
    Known(TCP, 18, NATURAL, 0),
    Known(TCP, 23, NATURAL, 0),
    Known(TCP, 25, ANY, 0),
    Known(TCP, 30, Range(0, 1), 0),
    Known(TCP, 34, Range(0, 1), 0),
    Known(IP, c::IP_TOS, Byte, 0),
    Known(IP, c::IP_TTL, RangeOrInitial(1, 255), 64),
    Known(IP, c::IP_MTU_DISCOVER, Range(0, 5), 1),
    Known(IP, c::IP_FREEBIND, Flag, 0),
    Known(IP, c::IP_TRANSPARENT, Flag, 0),
    Known(IP, c::IP_BIND_ADDRESS_NO_PORT, Flag, 0),
    Known(IP, c::IP_MULTICAST_TTL, RangeOrInitial(0, 255), 1),
    Known(IP, c::IP_MULTICAST_LOOP, Flag, 1),
    Known(IP, c::IP_MULTICAST_ALL, Range(0, 1), 1),
    Known(IPV6, c::IPV6_UNICAST_HOPS, RangeOrInitial(0, 255), 64),
    Known(IPV6, c::IPV6_MULTICAST_HOPS, RangeOrInitial(0, 255), 1),
    Known(IPV6, c::IPV6_MULTICAST_LOOP, Range(0, 1), 1),
    Known(IPV6, c::IPV6_MULTICAST_ALL, Flag, 1),
    Known(IPV6, c::IPV6_MTU_DISCOVER, Range(0, 5), 1),
    Known(IPV6, c::IPV6_V6ONLY, Flag, 0),
    Known(IPV6, c::IPV6_DONTFRAG, Flag, 0),
    Known(IPV6, c::IPV6_RECVPATHMTU, Flag, 0),
    Known(IPV6, c::IPV6_AUTOFLOWLABEL, Flag, 1),
    Known(IPV6, c::IPV6_FREEBIND, Flag, 0),
    Known(IPV6, c::IPV6_MTU, Range(1280, i32::MAX), 1280),
    Known(IPV6, c::IPV6_TCLASS, RangeOrInitial(0, 255), 0),
    Known(netlink::LEVEL, 3, Flag, 0),
    Known(netlink::LEVEL, 4, Flag, 0),
    Known(netlink::LEVEL, 5, Flag, 0),
    Known(netlink::LEVEL, 10, Flag, 0),
    Known(netlink::LEVEL, 11, Flag, 0),
    Known(netlink::LEVEL, 12, Flag, 0),
];

/// Values that were set, by their index in [`KNOWN`].
#[derive(Debug, Default)]
pub struct Remembered(Vec<(u8, i32)>);

impl Remembered {
    /// Copies the values.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn try_clone(&self) -> Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }

    /// Whether no option was set.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn get(&self, at: usize) -> i32 {
        let set = self.0.iter().find(|entry| usize::from(entry.0) == at);
        set.map_or(KNOWN[at].3, |entry| entry.1)
    }

    fn set(&mut self, at: usize, value: i32) -> Result<()> {
        let value = match KNOWN[at].2 {
            Flag => i32::from(value != 0),
            Range(first, last) if (first..=last).contains(&value) => value,
            RangeOrInitial(..) if value == -1 => KNOWN[at].3,
            RangeOrInitial(first, last) if (first..=last).contains(&value) => value,
            Byte => value & 0xff,
            Coverage if value == 0 => 0,
            Coverage => value.clamp(8, 65_535),
            Least if value < 0 => i32::MAX,
            Least => value.max(1),
            Range(..) | RangeOrInitial(..) => return Err(Errno::EINVAL),
        };
        match self.0.iter_mut().find(|entry| usize::from(entry.0) == at) {
            Some(entry) => entry.1 = value,
            None => self.0.try_push((at as u8, value))?,
        }
        Ok(())
    }
}

/// Returns the index of the option in [`KNOWN`].
fn place(level: u32, name: u32) -> Option<usize> {
    KNOWN.iter().position(|known| (known.0, known.1) == (level, name))
}

impl Socket {
    /// Whether the socket has options of `level` at all.
    pub(super) fn has_level(&self, level: u32) -> bool {
        match level {
            c::SOL_SOCKET => true,
            IP => self.family().is_ip(),
            IPV6 => self.family() == Family::Inet6,
            netlink::LEVEL => self.family() == Family::Netlink,
            PACKET => self.family() == Family::Packet,
            TCP => self.is_tcp(),
            UDP => self.is_udp(),
            UDP_LITE => self.is_lite,
            _ => false,
        }
    }

    /// Stores an option's value.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for an unknown option, `EINVAL` for an invalid value, `ENOMEM`.
    pub(super) fn remember(&self, level: u32, name: u32, value: i32) -> Result<()> {
        let at = place(level, name).ok_or(Errno::ENOPROTOOPT)?;
        self.options.lock().remembered.set(at, value)
    }

    /// Returns the value of an option: the one that was set, or the initial one.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for an unknown option.
    pub(super) fn remembered(&self, level: u32, name: u32) -> Result<i32> {
        let at = place(level, name).ok_or(Errno::ENOPROTOOPT)?;
        Ok(self.options.lock().remembered.get(at))
    }

    fn flag(&self, level: u32, name: u32) -> bool {
        self.remembered(level, name) == Ok(1)
    }

    /// SO_REUSEADDR.
    pub(super) fn reuses_address(&self) -> bool {
        self.flag(c::SOL_SOCKET, c::SO_REUSEADDR)
    }

    /// SO_REUSEPORT.
    pub(super) fn reuses_port(&self) -> bool {
        self.flag(c::SOL_SOCKET, c::SO_REUSEPORT)
    }

    /// IP_FREEBIND, IPV6_FREEBIND: the socket may be bound to an address that is not the machine's.
    pub(super) fn binds_freely(&self) -> bool {
        self.flag(IP, c::IP_FREEBIND) || self.flag(IPV6, c::IPV6_FREEBIND)
    }

    /// IPV6_V6ONLY.
    pub(super) fn is_only_v6(&self) -> bool {
        self.flag(IPV6, c::IPV6_V6ONLY)
    }
}
