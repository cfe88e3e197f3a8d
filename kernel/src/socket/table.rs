//! All sockets of programs, by their class, for /proc/net.
//!
//! A socket enters when it is made, before any task can refer to it, and leaves by ending. It keeps
//! its place meanwhile. So a list that is read in pieces shows each socket that is there all the
//! time exactly once, and goes on where it was at the cost of a look. Entering and leaving cost the
//! same with any number of sockets.
//!
//! **Locks.** A table's lock is a spin lock, taken with no other lock of a socket held. No socket
//! ends under it.

use core::sync::atomic::Ordering;

use freehold_collections::{Arc, Vec, Weak, reserve::ArcMethods};

use super::address::Family;
use super::endpoint::Socket;
use super::ports::Protocol;
use super::raw::RawKind;
use crate::Result;
use crate::sync::SpinLock;

/// Class of sockets that a table lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocketClass {
    /// TCP over version 4.
    Tcp,
    /// TCP over version 6.
    Tcp6,
    /// UDP over version 4.
    Udp,
    /// UDP over version 6.
    Udp6,
    /// Raw sockets of version 4.
    Raw,
    /// Raw sockets of version 6.
    Raw6,
    /// Ping sockets of version 4.
    Icmp,
    /// Ping sockets of version 6.
    Icmp6,
    /// AF_UNIX.
    Unix,
    /// AF_NETLINK.
    Netlink,
}

impl SocketClass {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Tcp,
        Self::Tcp6,
        Self::Udp,
        Self::Udp6,
        Self::Raw,
        Self::Raw6,
        Self::Icmp,
        Self::Icmp6,
        Self::Unix,
        Self::Netlink,
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

    /// Returns the class of sockets of a family and, of IP, a protocol.
    pub(super) const fn new(family: Family, protocol: Protocol) -> Self {
        match (family, protocol) {
            (Family::Unix, _) => Self::Unix,
            (Family::Netlink, _) => Self::Netlink,
            (Family::Inet, Protocol::Tcp) => Self::Tcp,
            (Family::Inet, Protocol::Udp) => Self::Udp,
            (Family::Inet6, Protocol::Tcp) => Self::Tcp6,
            (Family::Inet6, Protocol::Udp) => Self::Udp6,
        }
    }
}

/// A place of a table.
enum TableSlot {
    /// A free place, with the next one of these, or [`NOWHERE`].
    Free(u32),
    Used(Weak<Socket>),
}

/// No place.
pub(super) const NOWHERE: u32 = u32::MAX;
/// Places that are looked at under one hold of a table's lock.
const LOOKS: usize = 64;

struct Sockets {
    slots: Vec<TableSlot>,
    free: u32,
    used: usize,
}

static TABLES: [SpinLock<Sockets>; SocketClass::ALL.len()] =
    [const { SpinLock::new(Sockets { slots: Vec::new(), free: NOWHERE, used: 0 }) }; SocketClass::ALL.len()];

/// Lists `socket` from now on.
///
/// # Errors
/// `ENOMEM`.
pub fn enter(socket: &Arc<Socket>) -> Result<()> {
    let weak = socket.downgrade();
    let mut table = TABLES[SocketClass::of(socket) as usize].lock();
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
    Ok(())
}

/// A socket's end.
pub(super) fn leave(socket: &Socket) {
    let place = socket.listed.place.load(Ordering::Relaxed);
    if place == NOWHERE {
        return;
    }
    let mut table = TABLES[SocketClass::of(socket) as usize].lock();
    table.used -= 1;
    let emptied = if table.used == 0 {
        table.free = NOWHERE;
        core::mem::replace(&mut table.slots, Vec::new())
    } else {
        let free = core::mem::replace(&mut table.free, place);
        table.slots[place as usize] = TableSlot::Free(free);
        Vec::new()
    };
    drop(table);
    // Memory is given back with no lock held.
    drop(emptied);
}

/// The first socket at place `from` or behind, and its place.
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

/// How many sockets there are.
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
