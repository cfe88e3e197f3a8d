//! Options of packet sockets (linux/if_packet.h).

use core::sync::atomic::Ordering;

use linux_raw_sys::net as c;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::PacketSocket;
use crate::socket::beside::{OptionRoom, PACKET as LEVEL, number};
use crate::user::{self, UserPtr};
use crate::{Errno, Result};

/// PACKET_ADD_MEMBERSHIP, PACKET_DROP_MEMBERSHIP, PACKET_STATISTICS, PACKET_QDISC_BYPASS,
/// PACKET_IGNORE_OUTGOING.
const ADD_MEMBERSHIP: u32 = 1;
const DROP_MEMBERSHIP: u32 = 2;
const STATISTICS: u32 = 6;
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
        &self,
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
        let numbers = match (level, name) {
            // struct tpacket_stats. Reading sets both to 0.
            (LEVEL, STATISTICS) => self.counts.each_ref().map(|count| count.swap(0, Ordering::Relaxed)),
            (LEVEL, QDISC_BYPASS) => [settings.bypasses_queue.into(), 0],
            (LEVEL, IGNORE_OUTGOING) => [settings.ignores_outgoing.into(), 0],
            _ => return Ok(false),
        };
        let whole = if name == STATISTICS { size_of_val(&numbers) } else { size_of::<u32>() };
        OptionRoom::read(value, length)?.put(&numbers.as_bytes()[..whole]).map(|()| true)
    }
}
