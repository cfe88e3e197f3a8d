//! All sockets of programs, by class, for /proc/net.
//!
//! A socket is entered when it is made, before any task can refer to it, and is removed when it
//! ends. Its place does not change in between. So a list that is read in pieces shows each socket
//! that exists all the time exactly once, and continues at its position with one look-up. The costs
//! of entry and removal do not depend on the number of sockets.
//!
//! **Locks.** A table's lock is a spin lock, taken with no other lock of a socket held. No socket
//! is dropped under it.

use core::sync::atomic::Ordering;

use freehold_collections::{Arc, Vec, Weak, reserve::ArcMethods};

use super::endpoint::Socket;
use super::family::Family;
use super::ports::Protocol;
use super::raw::RawKind;
use crate::Result;
use crate::sync::SpinLock;
use crate::task::namespaces::network::SOCKET_CLASSES;

/// Class of sockets that a table lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocketClass {
    /// TCP over IPv4.
    Tcp,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over IPv4.
    Udp,
    /// UDP over IPv6.
    Udp6,
    /// UDP-Lite over IPv4.
    UdpLite,
    /// UDP-Lite over IPv6.
    UdpLite6,
    /// IPv4 raw sockets.
    Raw,
    /// IPv6 raw sockets.
    Raw6,
    /// ICMP ping sockets.
    Icmp,
    /// ICMPv6 ping sockets.
    Icmp6,
    /// AF_UNIX.
    Unix,
    /// AF_NETLINK.
    Netlink,
    /// AF_PACKET.
    Packet,
}

impl SocketClass {
    /// All classes.
    pub const ALL: [Self; SOCKET_CLASSES] = [
        Self::Tcp,
        Self::Tcp6,
        Self::Udp,
        Self::Udp6,
        Self::UdpLite,
        Self::UdpLite6,
        Self::Raw,
        Self::Raw6,
        Self::Icmp,
        Self::Icmp6,
        Self::Unix,
        Self::Netlink,
        Self::Packet,
    ];

    /// Returns the class of `socket`.
    pub(super) fn of(socket: &Socket) -> Self {
        let raw = socket.raw.as_ref().map(|raw| (raw.kind(), raw.family()));
        match raw {
            None => Self::new(socket.family(), socket.protocol()),
            Some((RawKind::Raw, Family::Inet)) => Self::Raw,
            Some((RawKind::Raw, _)) => Self::Raw6,
            Some((RawKind::Ping, Family::Inet)) => Self::Icmp,
            Some((RawKind::Ping, _)) => Self::Icmp6,
        }
    }

    /// Returns the class of sockets of a family. For IP it depends on the protocol.
    pub(super) const fn new(family: Family, protocol: Protocol) -> Self {
        match (family, protocol) {
            (Family::Unix, _) => Self::Unix,
            (Family::Netlink, _) => Self::Netlink,
            (Family::Packet, _) => Self::Packet,
            (Family::Inet, Protocol::Tcp) => Self::Tcp,
            (Family::Inet, Protocol::Udp) => Self::Udp,
            (Family::Inet, Protocol::UdpLite) => Self::UdpLite,
            (Family::Inet6, Protocol::UdpLite) => Self::UdpLite6,
            (Family::Inet6, Protocol::Tcp) => Self::Tcp6,
            (Family::Inet6, Protocol::Udp) => Self::Udp6,
        }
    }
}

/// A place of a table.
enum TableSlot {
    /// A free place, with the next free one, or [`NOWHERE`].
    Free(u32),
    Used(Weak<Socket>),
}

/// No place.
pub(super) const NOWHERE: u32 = u32::MAX;
/// Number of places that are visited per acquisition of a table's lock.
const LOOKS: usize = 64;

struct Sockets {
    slots: Vec<TableSlot>,
    free: u32,
    used: usize,
}

static TABLES: [SpinLock<Sockets>; SocketClass::ALL.len()] =
    [const { SpinLock::new(Sockets { slots: Vec::new(), free: NOWHERE, used: 0 }) }; SocketClass::ALL.len()];

/// Adds `socket` to its list.
///
/// # Errors
/// `ENOMEM`.
pub fn enter(socket: &Arc<Socket>) -> Result<()> {
    let weak = socket.downgrade();
    let class = SocketClass::of(socket) as usize;
    let mut table = TABLES[class].lock();
    let place = table.free;
    if place == NOWHERE {
        table.slots.try_push(TableSlot::Used(weak))?;
        socket.listed.place.store(table.slots.len() as u32 - 1, Ordering::Relaxed);
    } else {
        let was = core::mem::replace(&mut table.slots[place as usize], TableSlot::Used(weak));
        if let TableSlot::Free(next) = was {
            table.free = next;
        }
        socket.listed.place.store(place, Ordering::Relaxed);
    }
    table.used += 1;
    socket.network.counts[class].fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Removes a socket that ends.
pub(super) fn leave(socket: &Socket) {
    let place = socket.listed.place.load(Ordering::Relaxed);
    if place == NOWHERE {
        return;
    }
    let class = SocketClass::of(socket) as usize;
    let mut table = TABLES[class].lock();
    table.used -= 1;
    socket.network.counts[class].fetch_sub(1, Ordering::Relaxed);
    let emptied = if table.used == 0 {
        table.free = NOWHERE;
        core::mem::replace(&mut table.slots, Vec::new())
    } else {
        let free = core::mem::replace(&mut table.free, place);
        table.slots[place as usize] = TableSlot::Free(free);
        Vec::new()
    };
    drop(table);
    // Memory is freed with no lock held.
    drop(emptied);
}

/// Returns the first socket at place `from` or after it, and its place.
pub fn next(class: SocketClass, mut from: usize) -> Option<(usize, Arc<Socket>)> {
    loop {
        let table = TABLES[class as usize].lock();
        let rest = table.slots.get(from..).filter(|rest| !rest.is_empty())?;
        let lives = |slot: &TableSlot| match slot {
            TableSlot::Used(weak) => weak.upgrade(),
            TableSlot::Free(_) => None,
        };
        for (at, slot) in rest.iter().take(LOOKS).enumerate() {
            if let Some(socket) = lives(slot) {
                return Some((from + at, socket));
            }
        }
        drop(table);
        from += LOOKS;
    }
}

/// Returns the number of sockets.
pub fn count(class: SocketClass) -> usize {
    TABLES[class as usize].lock().used
}

#[cfg(test)]
mod tests {
    use std::vec::Vec as Model;

    use proptest::prelude::*;

    use super::super::endpoint::SocketKind;
    use super::*;

    /// No other test has sockets of this class in the table.
    fn places() -> Model<usize> {
        let mut from = 0;
        let step = || {
            let (place, _) = next(SocketClass::Udp6, from)?;
            from = place + 1;
            Some(place)
        };
        core::iter::from_fn(step).collect()
    }

    proptest! {
        #[test]
        fn each_socket_keeps_its_place_and_is_listed_once(steps in prop::collection::vec(0..90_usize, 1..200)) {
            let (mut model, mut most): (Model<Arc<Socket>>, usize) = (Model::new(), 0);
            for step in steps {
                if step < 45 || model.is_empty() {
                    let socket = Socket::new(Family::Inet6, SocketKind::Datagram);
                    enter(&socket).unwrap();
                    model.push(socket);
                } else {
                    model.swap_remove(step % model.len());
                }
                let mut own: Model<usize> =
                    model.iter().map(|socket| socket.listed.place.load(Ordering::Relaxed) as usize).collect();
                own.sort_unstable();
                prop_assert_eq!(places(), own);
                prop_assert_eq!(count(SocketClass::Udp6), model.len());
                most = most.max(model.len());
                prop_assert!(TABLES[SocketClass::Udp6 as usize].lock().slots.len() <= most);
            }
            drop(model);
            prop_assert_eq!(TABLES[SocketClass::Udp6 as usize].lock().slots.capacity(), 0);
        }
    }
}
