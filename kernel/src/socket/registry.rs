//! Sockets that receive copies of packets, by network namespace and by the kind of packets.
//!
//! While there is no such socket, a packet costs one check of their number ([`any`]).
//! Sockets of the same kind are adjacent, in the order of their registration. So only the sockets
//! of its namespace are visited for a packet. Only one socket at a time is kept alive for that.
//!
//! **Locks.** The map's lock is a spin lock, taken with no other lock of a socket held. No socket
//! is dropped under it.

use core::ops::Bound;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use freehold_collections::{Arc, Map, Weak, reserve::ArcMethods};

use crate::sync::SpinLock;
use crate::{Errno, Result};

/// The packets that a socket receives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Hears {
    /// All packets of an IPv4 protocol.
    V4(u8),
    /// All packets of an IPv6 protocol.
    V6(u8),
    /// ICMP echo replies with this identifier.
    Ping4(u16),
    /// ICMPv6 echo replies with this identifier.
    Ping6(u16),
    /// Frames of this protocol (ETH_P_*).
    Frames(u16),
    /// All frames, also those that this machine sends.
    AllFrames,
}

/// The network namespace, the kind of packets, and a unique number.
pub(super) type HearerKey = (u64, Hears, u64);

static NEXT: AtomicU64 = AtomicU64::new(0);
/// The next identifier to try for a socket that requests any.
static NEXT_IDENTIFIER: AtomicU64 = AtomicU64::new(0);

/// The number of registered sockets of all kinds.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether any socket receives packets, in any namespace.
#[inline]
pub(super) fn any() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// See the module's head.
pub(super) struct Hearers<S: 'static> {
    entries: SpinLock<Map<HearerKey, Weak<S>>>,
}

impl<S> Hearers<S> {
    pub(super) const fn new() -> Self {
        Self { entries: SpinLock::new(Map::new()) }
    }

    /// Whether no socket is registered.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.lock().is_empty()
    }

    /// Registers `socket` of `network` for these packets.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn enter(&self, network: u64, hears: Hears, socket: &Arc<S>) -> Result<HearerKey> {
        let key = (network, hears, NEXT.fetch_add(1, Ordering::Relaxed));
        self.entries.lock().try_insert(key, socket.downgrade())?;
        COUNT.fetch_add(1, Ordering::Relaxed);
        Ok(key)
    }

    /// Gives `socket` the identifier `wanted`, which other sockets may share. If that is 0, gives
    /// it an unused one.
    ///
    /// # Errors
    /// `EADDRINUSE` if all are in use; `ENOMEM`, `ERESTARTSYS`.
    pub(super) fn enter_identified(
        &self,
        network: u64,
        wanted: u16,
        hears: fn(u16) -> Hears,
        socket: &Arc<S>,
    ) -> Result<(u16, HearerKey)> {
        if wanted != 0 {
            return self.enter(network, hears(wanted), socket).map(|key| (wanted, key));
        }
        for step in 0..=u32::from(u16::MAX) {
            let identifier = NEXT_IDENTIFIER.fetch_add(1, Ordering::Relaxed) as u16;
            let hears = hears(identifier);
            let key = (network, hears, NEXT.fetch_add(1, Ordering::Relaxed));
            let mut entries = self.entries.lock();
            if identifier != 0 && first::<S>(&entries, (network, hears, 0)).is_none() {
                entries.try_insert(key, socket.downgrade())?;
                COUNT.fetch_add(1, Ordering::Relaxed);
                return Ok((identifier, key));
            }
            drop(entries);
            if step % 256 == 255 {
                crate::sched::checkpoint()?;
            }
        }
        Err(Errno::EADDRINUSE)
    }

    /// Removes the entry of a socket that ends.
    pub(super) fn leave(&self, key: &HearerKey) {
        let left = self.entries.lock().remove(key);
        if left.is_some() {
            COUNT.fetch_sub(1, Ordering::Relaxed);
        }
        drop(left);
    }

    /// Calls `visit` with each socket of `network` that is registered for `hears`.
    pub(super) fn each(&self, network: u64, hears: Hears, mut visit: impl FnMut(&Arc<S>)) {
        let mut from = (network, hears, 0);
        // Sockets that are registered meanwhile have higher numbers. Without this limit they would
        // prolong the walk.
        let end = NEXT.load(Ordering::Relaxed);
        loop {
            let found = first::<S>(&self.entries.lock(), from).map(|(key, weak)| (key, weak.upgrade()));
            let Some((key, socket)) = found.filter(|(key, _)| key.2 < end) else { return };
            if let Some(socket) = socket {
                visit(&socket);
            }
            from.2 = key.2 + 1;
            // A task that is being killed stops here. One without memory continues: the rest may
            // need none.
            if crate::sched::checkpoint() == Err(Errno::EINTR) {
                return;
            }
        }
    }
}

/// Returns the first entry from `from` on with the same kind of packets.
fn first<S>(hearers: &Map<HearerKey, Weak<S>>, from: HearerKey) -> Option<(HearerKey, &Weak<S>)> {
    let (key, weak) = hearers.iter_from(Bound::Included(&from)).next()?;
    ((key.0, key.1) == (from.0, from.1)).then_some((*key, weak))
}
