//! Facts about a socket that getsockopt(2) reports in addition to its settings.

use freehold_machine::PAGE_SIZE;
use linux_raw_sys::net as c;
use zerocopy::IntoBytes;

use super::address::Address;
use super::beside::wishes::UDP;
use super::beside::{IP, IPV6};
use super::endpoint::Socket;
use super::family::Family;
use super::interface::{self, LO};
use super::memory::QueueEnd;
use super::options::Credentials;
use super::remembered::TCP;
use crate::user::{self, UserPtr};
use crate::{Errno, Result, task, time};

/// SO_SNDLOWAT of SOL_SOCKET, and IPV6_MTU of IPPROTO_IPV6.
const SNDLOWAT: u32 = 19;
const MTU_V6: u32 = 24;
/// TCP_TIMESTAMP and TCP_CC_INFO of IPPROTO_TCP.
const TIMESTAMP: u32 = 24;
const CC_INFO: u32 = 26;
/// The longest packet that an IPv4 header can describe (IP_MAX_MTU).
const MOST_MTU: u32 = 65_535;
/// Number of extensions of BPF programs (SKF_AD_MAX), for SO_BPF_EXTENSIONS.
const BPF_EXTENSIONS: i32 = 64;

/// The value of an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fact {
    Number(i32),
    Long(u64),
    /// SO_MEMINFO: waiting bytes and their limit, for both directions; the last element is the
    /// number of lost messages.
    Memory([u32; 9]),
    /// An option without any data.
    Empty,
}

impl Fact {
    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Number(number) => number.as_bytes(),
            Self::Long(number) => number.as_bytes(),
            Self::Memory(numbers) => numbers.as_bytes(),
            Self::Empty => &[],
        }
    }
}

impl Socket {
    /// Returns the fact that an option names, for a program with `room` bytes. `None` if the option
    /// names no fact.
    ///
    /// # Errors
    /// `EINVAL` if there is too little room, `ENOTCONN`.
    pub(super) fn fact(&self, (level, name): (u32, u32), room: usize) -> Result<Option<Fact>> {
        let is_tcp = self.is_tcp();
        Ok(Some(match (level, name) {
            (c::SOL_SOCKET, c::SO_COOKIE) if room < size_of::<u64>() => return Err(Errno::EINVAL),
            // The same number that sock_diag(7) reports.
            (c::SOL_SOCKET, c::SO_COOKIE) => Fact::Long(self.inode()),
            (c::SOL_SOCKET, c::SO_MEMINFO) => Fact::Memory(self.memory_facts()),
            (c::SOL_SOCKET, SNDLOWAT) => Fact::Number(1),
            // All sends copy, and none reports zero copy: setting the option is refused.
            (c::SOL_SOCKET, c::SO_ZEROCOPY) => Fact::Number(0),
            (c::SOL_SOCKET, c::SO_BPF_EXTENSIONS) => Fact::Number(BPF_EXTENSIONS),
            // No packet of a program has options.
            (IP, c::IP_OPTIONS) => Fact::Empty,
            (IP, c::IP_MTU) => Fact::Number(self.path_mtu()?.min(MOST_MTU) as i32),
            (IPV6, MTU_V6) => Fact::Number(self.path_mtu()? as i32),
            (UDP, name) if self.is_udp() => return Ok(self.udp_option(name).map(Fact::Number)),
            (TCP, TIMESTAMP) if is_tcp => Fact::Number((time::now() / 1_000_000) as i32),
            // The congestion controls have no information to report.
            (TCP, CC_INFO) if is_tcp => Fact::Empty,
            _ => return Ok(None),
        }))
    }

    /// Returns the values of SO_MEMINFO.
    pub(super) fn memory_facts(&self) -> [u32; 9] {
        let channel = self.channel();
        let waiting = channel.pages() * PAGE_SIZE;
        let [sent, received] = [QueueEnd::Sender, QueueEnd::Receiver].map(|end| self.buffer_bytes(end));
        [waiting as u32, received, 0, sent, 0, 0, 0, 0, channel.lost()]
    }

    /// Returns the bytes of the longest packet to the peer.
    ///
    /// # Errors
    /// `ENOTCONN`.
    fn path_mtu(&self) -> Result<u32> {
        let peer = self.peer_address()?;
        let to = peer.as_ref().and_then(Address::inet).ok_or(Errno::ENOTCONN)?;
        let index = if to.is_local(self.network()) { LO.index } else { interface::ETHERNET_INDEX };
        let mut devices = interface::all(self.network());
        devices.find(|device| device.index == index).map(|device| device.mtu).ok_or(Errno::ENOTCONN)
    }

    /// Writes SO_PEERGROUPS: the supplementary groups of the peer that connected or accepted.
    ///
    /// # Errors
    /// `ENODATA` without such a peer; `ERANGE` if there is too little room (`length` then gets the
    /// needed size); `EFAULT`.
    pub(super) fn write_peer_groups(&self, value: u64, length: UserPtr<i32>) -> Result<()> {
        let (ids, groups) = self.peer_identity();
        if self.family() != Family::Unix || ids == Credentials::NOBODY {
            return Err(Errno::ENODATA);
        }
        let room = usize::try_from(length.read()?).map_err(|_| Errno::EINVAL)?;
        let needed = size_of_val(&groups[..]);
        length.write(&(needed as i32))?;
        if room < needed {
            return Err(Errno::ERANGE);
        }
        for (at, &group) in groups.iter().enumerate() {
            let shown = task::shown_ids(0, group).1;
            user::write_exact(value + (at * size_of::<u32>()) as u64, shown.as_bytes())?;
        }
        Ok(())
    }
}
