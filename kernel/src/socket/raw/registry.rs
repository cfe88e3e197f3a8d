//! Sockets that hear copies of packets, by their network namespace and what they hear.
//!
//! While there is none, a packet costs a look at their number ([`Hearers::any`]). Sockets of one
//! kind stand beside each other, in the order in which they came, so that a packet is shown to
//! those of its namespace alone, and one socket at a time is kept alive for that.
//!
//! **Locks.** The map's lock is a spin lock, taken with no other lock of a socket held. No socket
//! ends under it.

use core::ops::Bound;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use freehold_collections::{Arc, Map, Weak, reserve::ArcMethods};

use crate::sync::SpinLock;
use crate::{Errno, Result};

/// Packets that a socket hears.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Hears {
    /// All of a protocol of version 4.
    V4(u8),
    /// All of a protocol of version 6.
    V6(u8),
    /// Echo replies of version 4 with this identifier.
    Ping4(u16),
    /// Echo replies of version 6 with this identifier.
    Ping6(u16),
}

/// The network namespace, what it hears, and a number of its own.
pub(super) type HearerKey = (u64, Hears, u64);

static NEXT: AtomicU64 = AtomicU64::new(0);
/// The identifier that is tried next for a socket that wants any.
static NEXT_IDENTIFIER: AtomicU64 = AtomicU64::new(0);

/// See the module's head.
pub(super) struct Hearers<S: 'static> {
    entries: SpinLock<Map<HearerKey, Weak<S>>>,
    /// How many these are.
    count: AtomicUsize,
}

impl<S> Hearers<S> {
    pub(super) const fn new() -> Self {
        Self { entries: SpinLock::new(Map::new()), count: AtomicUsize::new(0) }
    }

    /// Whether some socket hears packets, in any namespace.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// `socket` of `network` hears these from now on.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn enter(&self, network: u64, hears: Hears, socket: &Arc<S>) -> Result<HearerKey> {
        let key = (network, hears, NEXT.fetch_add(1, Ordering::Relaxed));
        self.entries.lock().try_insert(key, socket.downgrade())?;
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(key)
    }

    /// Gives `socket` the identifier `wanted`, which others may have, too, or where that is 0 one
    /// that no other has.
    ///
    /// # Errors
    /// `EADDRINUSE` where all are taken; `ENOMEM`, `ERESTARTSYS`.
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
                self.count.fetch_add(1, Ordering::Relaxed);
                return Ok((identifier, key));
            }
            drop(entries);
            if step % 256 == 255 {
                crate::sched::checkpoint()?;
            }
        }
        Err(Errno::EADDRINUSE)
    }

    /// A socket's end.
    pub(super) fn leave(&self, key: &HearerKey) {
        let left = self.entries.lock().remove(key);
        if left.is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        drop(left);
    }

    /// Shows each socket of `network` that `hears` this to `visit`.
    pub(super) fn each(&self, network: u64, hears: Hears, mut visit: impl FnMut(&Arc<S>)) {
        let mut from = (network, hears, 0);
        // Sockets that come meanwhile have higher numbers, and would make the walk longer.
        let end = NEXT.load(Ordering::Relaxed);
        loop {
            let found = first::<S>(&self.entries.lock(), from).map(|(key, weak)| (key, weak.upgrade()));
            let Some((key, socket)) = found.filter(|(key, _)| key.2 < end) else { return };
            if let Some(socket) = socket {
                visit(&socket);
            }
            from.2 = key.2 + 1;
            // A task that must end has no more to show. One without memory may not need any.
            if crate::sched::checkpoint() == Err(Errno::EINTR) {
                return;
            }
        }
    }
}

/// The first entry from `from` on that hears the same.
fn first<S>(hearers: &Map<HearerKey, Weak<S>>, from: HearerKey) -> Option<(HearerKey, &Weak<S>)> {
    let (key, weak) = hearers.iter_from(Bound::Included(&from)).next()?;
    ((key.0, key.1) == (from.0, from.1)).then_some((*key, weak))
}
