//! Options of packet sockets (linux/if_packet.h).

use core::sync::atomic::Ordering;

use freehold_collections::Receiver;
use linux_raw_sys::net as c;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::ring::{Direction, Request, Version, handover};
use super::{PacketKind, PacketSocket};
use crate::socket::beside::{OptionRoom, PACKET as LEVEL, number};
use crate::user::{self, UserPtr};
use crate::{Errno, Result};

/// PACKET_*.
const ADD_MEMBERSHIP: u32 = 1;
const DROP_MEMBERSHIP: u32 = 2;
const RX_RING: u32 = 5;
const STATISTICS: u32 = 6;
const COPY_THRESH: u32 = 7;
const ORIGDEV: u32 = 9;
const VERSION: u32 = 10;
const HDRLEN: u32 = 11;
const RESERVE: u32 = 12;
const TX_RING: u32 = 13;
const LOSS: u32 = 14;
const VNET_HDR: u32 = 15;
const TIMESTAMP: u32 = 17;
const TX_HAS_OFF: u32 = 19;
const QDISC_BYPASS: u32 = 20;
const IGNORE_OUTGOING: u32 = 23;
/// PACKET_MR_MULTICAST, PACKET_MR_UNICAST: the memberships that name an address.
const MULTICAST: u16 = 0;
const UNICAST: u16 = 3;
/// Bytes of a device's address.
const HARDWARE_BYTES: u16 = 6;

/// `struct packet_mreq`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Membership {
    interface: u32,
    kind: u16,
    length: u16,
    address: [u8; 8],
}

impl PacketSocket {
    /// setsockopt(2) of options that not every socket stores as a number. Returns whether `name` is
    /// one of them.
    ///
    /// # Errors
    /// `EINVAL`, `ENODEV`, `EFAULT`; those of the filter.
    pub(in crate::socket) fn set_option(
        self: &Receiver<Self>,
        level: u32,
        name: u32,
        value: u64,
        length: usize,
    ) -> Result<bool> {
        if level == c::SOL_SOCKET {
            return self.filter.set_option(name, value, length);
        }
        match (level, name) {
            (LEVEL, ADD_MEMBERSHIP | DROP_MEMBERSHIP) => self.check_membership(name, value, length)?,
            (LEVEL, RX_RING) => self.set_ring(Direction::Receive, value, length)?,
            (LEVEL, TX_RING) => self.set_ring(Direction::Send, value, length)?,
            (LEVEL, COPY_THRESH | VERSION | RESERVE | LOSS | TX_HAS_OFF) => {
                self.set_ring_setting(name, exactly(value, length)?)?;
            }
            (LEVEL, VNET_HDR) if self.kind == PacketKind::Raw => {
                self.set_ring_setting(name, number(level, value, length)? as u32)?;
            }
            (LEVEL, VNET_HDR) => return Err(Errno::EINVAL),
            (LEVEL, ORIGDEV) => {
                let wanted = number(level, value, length)?;
                self.state.lock().settings.names_origin = wanted != 0;
            }
            (LEVEL, TIMESTAMP) => {
                let wanted = exactly(value, length)?;
                self.state.lock().settings.timestamps = wanted;
            }
            (LEVEL, QDISC_BYPASS) => {
                let wanted = number(level, value, length)?;
                self.state.lock().settings.bypasses_queue = wanted != 0;
            }
            (LEVEL, IGNORE_OUTGOING) => {
                let wanted = number(level, value, length)?;
                if !(0..=1).contains(&wanted) {
                    return Err(Errno::EINVAL);
                }
                self.state.lock().settings.ignores_outgoing = wanted != 0;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn set_ring(self: &Receiver<Self>, direction: Direction, value: u64, length: usize) -> Result<()> {
        // As on Linux, a request that cannot be read is a wrong one.
        let (least, whole) = (Request::length(Version::V1), Request::length(Version::V3));
        if length < least {
            return Err(Errno::EINVAL);
        }
        let mut request = Request::default();
        let (first, rest) = request.as_mut_bytes().split_at_mut(least);
        user::read_exact(value, first).map_err(|_| Errno::EINVAL)?;
        let is_whole = length >= whole && user::read_exact(value + least as u64, rest).is_ok();
        let of_version = |version| {
            if version == Version::V3 && !is_whole { Err(Errno::EINVAL) } else { Ok(request) }
        };
        self.rings.set(direction, of_version, || handover::enter(self))
    }

    fn set_ring_setting(&self, name: u32, wanted: u32) -> Result<()> {
        let version = Version::ALL.get(wanted as usize);
        // A ring that is being made relies on them.
        let _one_at_a_time = self.rings.setting.lock();
        let mut state = self.rings.state.lock();
        if name == VERSION && version.is_none() || name == RESERVE && wanted > i32::MAX as u32 {
            return Err(Errno::EINVAL);
        }
        // A threshold may change at any time.
        if name != COPY_THRESH && state.is_used() {
            return Err(Errno::EBUSY);
        }
        let settings = &mut state.settings;
        match (name, version) {
            (VERSION, Some(&version)) => settings.version = version,
            (RESERVE, _) => settings.reserve = wanted,
            (VNET_HDR, _) => settings.has_offload_header = wanted != 0,
            (LOSS, _) => settings.skips_wrong = wanted != 0,
            (TX_HAS_OFF, _) => settings.has_offsets = wanted != 0,
            _ => settings.copy_threshold = wanted,
        }
        Ok(())
    }

    /// Checks a membership. It changes nothing: the devices pass on each frame that they receive.
    fn check_membership(&self, name: u32, value: u64, length: usize) -> Result<()> {
        if length < size_of::<Membership>() {
            return Err(Errno::EINVAL);
        }
        let mut wanted = Membership { interface: 0, kind: 0, length: 0, address: [0; 8] };
        user::read_exact(value, wanted.as_mut_bytes())?;
        if name == DROP_MEMBERSHIP {
            return Ok(());
        }
        self.device(wanted.interface).ok_or(Errno::ENODEV)?;
        let names_address = [MULTICAST, UNICAST].contains(&wanted.kind);
        if wanted.length > HARDWARE_BYTES || names_address && wanted.length != HARDWARE_BYTES {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    /// getsockopt(2) of the same options.
    ///
    /// # Errors
    /// `EINVAL`, `EFAULT`.
    pub(in crate::socket) fn option(
        &self,
        level: u32,
        name: u32,
        value: u64,
        length: UserPtr<i32>,
    ) -> Result<bool> {
        if (level, name) == (c::SOL_SOCKET, c::SO_LOCK_FILTER) {
            return self.filter.write_lock(value, length).map(|()| true);
        }
        let settings = self.state.lock().settings;
        let ring = self.rings.state.lock().settings;
        let value_of = |value: u32| ([value, 0, 0], size_of::<u32>());
        let room = OptionRoom::read(value, length)?;
        let (numbers, whole) = match (level, name) {
            // struct tpacket_stats, tpacket_stats_v3. Reading sets all to 0.
            (LEVEL, STATISTICS) => {
                let [frames, lost] = self.counts.each_ref().map(|count| count.swap(0, Ordering::Relaxed));
                let freezes = self.rings.state.lock().take_freezes();
                let count = if ring.version == Version::V3 { 3 } else { 2 };
                ([frames, lost, freezes], count * size_of::<u32>())
            }
            (LEVEL, VERSION) => value_of(ring.version as u32),
            (LEVEL, HDRLEN) => value_of(header_length(value, room.bytes)?),
            (LEVEL, RESERVE) => value_of(ring.reserve),
            (LEVEL, VNET_HDR) => value_of(ring.has_offload_header.into()),
            (LEVEL, LOSS) => value_of(ring.skips_wrong.into()),
            (LEVEL, TX_HAS_OFF) => value_of(ring.has_offsets.into()),
            (LEVEL, ORIGDEV) => value_of(settings.names_origin.into()),
            (LEVEL, TIMESTAMP) => value_of(settings.timestamps),
            (LEVEL, QDISC_BYPASS) => value_of(settings.bypasses_queue.into()),
            (LEVEL, IGNORE_OUTGOING) => value_of(settings.ignores_outgoing.into()),
            _ => return Ok(false),
        };
        room.put(&numbers.as_bytes()[..whole]).map(|()| true)
    }
}

/// Reads the value of an option that has exactly 4 bytes.
fn exactly(value: u64, length: usize) -> Result<u32> {
    if length == size_of::<u32>() { UserPtr::new(value).read() } else { Err(Errno::EINVAL) }
}

/// PACKET_HDRLEN: returns the bytes of a header of the version in the program's value.
fn header_length(value: u64, room: usize) -> Result<u32> {
    if room < size_of::<u32>() {
        return Err(Errno::EINVAL);
    }
    let version: u32 = UserPtr::new(value).read()?;
    let version = Version::ALL.get(version as usize).ok_or(Errno::EINVAL)?;
    Ok(version.header_bytes() as u32)
}
