//! Options of raw and ping sockets.

use linux_raw_sys::net as c;
use zerocopy::IntoBytes;

use super::format::{ICMP, ICMPV6, Version};
use crate::socket::beside::{IP, IPV6, OptionRoom, TTL, number};
use crate::user::{self, UserPtr};
use crate::{Errno, Result};

/// Levels: SOL_RAW, SOL_ICMPV6.
const RAW: u32 = 255;
const LEVEL_ICMPV6: u32 = 58;
/// ICMP_FILTER of SOL_RAW and ICMPV6_FILTER of SOL_ICMPV6.
const FILTER: u32 = 1;
/// IPV6_CHECKSUM, IPV6_UNICAST_HOPS, IPV6_HDRINCL, IPV6_TCLASS.
const CHECKSUM: u32 = 7;
const UNICAST_HOPS: u32 = 16;
const HDRINCL_V6: u32 = 36;
const TCLASS: u32 = 67;
/// IPPROTO_RAW: the sender makes the header.
const IPPROTO_RAW: u8 = 255;
/// Bytes of an ICMPv6 filter.
const FILTER_BYTES: usize = size_of::<[u32; 8]>();
/// Offset of ICMPv6's checksum.
const ICMP_CHECKSUM_AT: u16 = 2;

/// Whether a program sees whole packets, or echo replies only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RawKind {
    /// SOCK_RAW: all packets of a protocol.
    Raw,
    /// SOCK_DGRAM of ICMP: answers to the socket's own echo requests.
    Ping,
}

/// Values of options.
#[derive(Clone, Copy)]
pub(super) struct RawSettings {
    version: Version,
    /// Types of ICMP that are filtered out, as bits.
    icmp: u32,
    /// Types of ICMPv6 that are filtered out, as bits.
    icmpv6: [u32; 8],
    /// IP_HDRINCL, IPV6_HDRINCL.
    pub(super) makes_header: bool,
    /// IPV6_CHECKSUM: the offset in a payload where the kernel writes and checks the checksum.
    pub(super) checksum_at: Option<u16>,
    pub(super) ttl: u8,
    pub(super) tos: u8,
}

impl RawSettings {
    pub(super) fn new(version: Version, protocol: u8) -> Self {
        let is_icmpv6 = version == Version::V6 && protocol == ICMPV6;
        Self {
            version,
            icmp: 0,
            icmpv6: [0; 8],
            makes_header: protocol == IPPROTO_RAW,
            checksum_at: is_icmpv6.then_some(ICMP_CHECKSUM_AT),
            ttl: TTL,
            tos: 0,
        }
    }

    /// Sets an option.
    pub(super) fn apply(&mut self, change: Change) {
        match change {
            Change::Filter(bytes, count) if count <= size_of::<u32>() && self.version == Version::V4 => {
                self.icmp.as_mut_bytes()[..count].copy_from_slice(&bytes[..count]);
            }
            Change::Filter(bytes, count) => {
                self.icmpv6.as_mut_bytes()[..count].copy_from_slice(&bytes[..count]);
            }
            Change::ChecksumAt(at) => self.checksum_at = at,
            Change::MakesHeader(on) => self.makes_header = on != 0,
            Change::Ttl(ttl) => self.ttl = ttl,
            Change::Tos(tos) => self.tos = tos,
        }
    }

    /// Whether ICMP messages of `kind` are filtered out.
    pub(super) fn filters(&self, kind: u8) -> bool {
        match self.version {
            Version::V4 => kind < 32 && self.icmp >> kind & 1 != 0,
            _ => self.icmpv6[usize::from(kind) / 32] >> (kind % 32) & 1 != 0,
        }
    }
}

/// The properties of a socket that determine which options it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RawNature {
    pub(super) version: Version,
    pub(super) protocol: u8,
    pub(super) kind: RawKind,
}

/// An option that a program sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// The first bytes of the filter of ICMP or of ICMPv6, and their number; the rest is unchanged.
    Filter([u8; FILTER_BYTES], usize),
    ChecksumAt(Option<u16>),
    MakesHeader(i32),
    Ttl(u8),
    Tos(u8),
}

impl RawNature {
    const fn is_v4(&self) -> bool {
        matches!(self.version, Version::V4)
    }

    /// Returns the change that setsockopt(2) requests. `None` if the option is a number that every
    /// socket stores.
    ///
    /// # Errors
    /// `EINVAL`, `ENOPROTOOPT`, `EOPNOTSUPP` for another protocol, `EFAULT`.
    pub(super) fn change(&self, level: u32, name: u32, value: u64, length: usize) -> Result<Option<Change>> {
        let is_v4 = self.is_v4();
        let is_ping = self.kind == RawKind::Ping;
        let read = || number(level, value, length);
        Ok(Some(match (level, name) {
            (RAW | LEVEL_ICMPV6, _) if is_ping => return Err(Errno::ENOPROTOOPT),
            (RAW, FILTER) if is_v4 => self.filter(ICMP, value, length)?,
            (LEVEL_ICMPV6, FILTER) if !is_v4 => self.filter(ICMPV6, value, length)?,
            (RAW | IPV6, CHECKSUM) if !is_v4 => self.checksum(level, read()?)?,
            (RAW | LEVEL_ICMPV6, _) => return Err(Errno::ENOPROTOOPT),
            (IP, c::IP_HDRINCL) if is_v4 && is_ping => return Err(Errno::ENOPROTOOPT),
            (IPV6, HDRINCL_V6) if !is_v4 && is_ping => return Err(Errno::ENOPROTOOPT),
            (IP, c::IP_HDRINCL) if is_v4 => Change::MakesHeader(read()?),
            (IPV6, HDRINCL_V6) if !is_v4 => Change::MakesHeader(read()?),
            (IP, c::IP_TTL) if is_v4 => Change::Ttl(byte(read()?, 1, TTL)?),
            (IPV6, UNICAST_HOPS) if !is_v4 => Change::Ttl(byte(read()?, 0, TTL)?),
            (IP, c::IP_TOS) if is_v4 => Change::Tos(read()? as u8),
            (IPV6, TCLASS) if !is_v4 => Change::Tos(byte(read()?, 0, 0)?),
            _ => return Ok(None),
        }))
    }

    fn filter(&self, protocol: u8, value: u64, length: usize) -> Result<Change> {
        if self.protocol != protocol {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut bytes = [0; FILTER_BYTES];
        let count = length.min(if protocol == ICMP { size_of::<u32>() } else { FILTER_BYTES });
        user::read_exact(value, &mut bytes[..count])?;
        Ok(Change::Filter(bytes, count))
    }

    fn checksum(&self, level: u32, at: i32) -> Result<Change> {
        if self.kind == RawKind::Ping {
            return Err(Errno::ENOPROTOOPT);
        }
        // ICMPv6 always has a checksum (RFC 3542, section 3.1).
        if self.protocol == ICMPV6 && level == IPV6 || at > 0 && at % 2 != 0 {
            return Err(Errno::EINVAL);
        }
        let at = if at < 0 { None } else { Some(u16::try_from(at).map_err(|_| Errno::EINVAL)?) };
        Ok(Change::ChecksumAt(at))
    }

    /// Writes the value of an option with `settings` to `value`, cut to `length`, for
    /// getsockopt(2). Returns whether `name` is one of these options.
    ///
    /// # Errors
    /// `ENOPROTOOPT`, `EOPNOTSUPP`, `EINVAL`, `EFAULT`.
    pub(super) fn write_option(
        &self,
        settings: &RawSettings,
        (level, name): (u32, u32),
        value: u64,
        length: UserPtr<i32>,
    ) -> Result<bool> {
        let is_v4 = self.is_v4();
        let put = |bytes: &[u8]| OptionRoom::read(value, length)?.put(bytes).map(|()| true);
        let is_raw = self.kind == RawKind::Raw;
        let number = match (level, name) {
            (RAW, FILTER) if is_v4 && is_raw && self.protocol == ICMP => {
                return put(settings.icmp.as_bytes());
            }
            (LEVEL_ICMPV6, FILTER) if !is_v4 && is_raw && self.protocol == ICMPV6 => {
                return put(settings.icmpv6.as_bytes());
            }
            (RAW, FILTER) if is_v4 && is_raw => return Err(Errno::EOPNOTSUPP),
            (LEVEL_ICMPV6, FILTER) if !is_v4 && is_raw => return Err(Errno::EOPNOTSUPP),
            (RAW | IPV6, CHECKSUM) if !is_v4 && is_raw => settings.checksum_at.map_or(-1, i32::from),
            (RAW | LEVEL_ICMPV6, _) => return Err(Errno::ENOPROTOOPT),
            (IP, c::IP_HDRINCL) if is_v4 => i32::from(settings.makes_header),
            (IPV6, HDRINCL_V6) if !is_v4 => i32::from(settings.makes_header),
            (IP, c::IP_TTL) if is_v4 => settings.ttl.into(),
            (IPV6, UNICAST_HOPS) if !is_v4 => settings.ttl.into(),
            (IP, c::IP_TOS) if is_v4 => settings.tos.into(),
            (IPV6, TCLASS) if !is_v4 => settings.tos.into(),
            _ => return Ok(false),
        };
        put(number.as_bytes())
    }
}

/// Returns a number from `least` to 255. For -1 it is `initial`.
fn byte(value: i32, least: i32, initial: u8) -> Result<u8> {
    match value {
        -1 => Ok(initial),
        value if (least..=255).contains(&value) => Ok(value as u8),
        _ => Err(Errno::EINVAL),
    }
}
