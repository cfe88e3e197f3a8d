//! Handing over blocks that are not full, some time after their first frame.
//!
//! A kernel task sleeps until the first block is due. It cannot be a timer's expiry, because an
//! interrupt may not open a window on a ring's pages.
//!
//! [`NEXT`] is the time at which the first block is due. A socket sets its block's time first,
//! under its lock, and then lowers [`NEXT`]. The task resets [`NEXT`] first, and then asks each
//! socket. So it sees a time that was set before the reset, or is woken for one that was set after
//! it. `handover_model.rs` explores the orders.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use freehold_collections::Arc;

use super::{LOSING, Receiving};
use crate::socket::packet::PacketSocket;
use crate::sync::{News, WaitQueue, WeakRegistry};
use crate::{Result, sched, time};

/// The sockets that had blocks at any time.
static SOCKETS: WeakRegistry<PacketSocket> = WeakRegistry::new();
/// Nanoseconds since boot; `u64::MAX` for never.
static NEXT: AtomicU64 = AtomicU64::new(u64::MAX);
static CHANGED: WaitQueue = WaitQueue::new();
static HAS_STARTED: AtomicBool = AtomicBool::new(false);

/// Hands over the blocks of `socket` from now on. The caller holds the lock of its rings' settings.
///
/// # Errors
/// `ENOMEM`.
pub fn enter(socket: &Arc<PacketSocket>) -> Result<()> {
    if !HAS_STARTED.swap(true, Ordering::AcqRel) {
        sched::spawn_kernel("packets", run).inspect_err(|_| HAS_STARTED.store(false, Ordering::Release))?;
    }
    // A socket may get many rings, one after the other, and is entered once.
    if socket.rings.is_listed.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    SOCKETS.enter(socket).inspect_err(|_| socket.rings.is_listed.store(false, Ordering::Release))
}

/// Notes that a block is due at this time.
pub fn expect(due: u64) {
    if NEXT.fetch_min(due, Ordering::SeqCst) > due {
        CHANGED.wake_all();
    }
}

#[cold]
fn run() {
    loop {
        let next = NEXT.load(Ordering::SeqCst);
        let is_earlier = || (NEXT.load(Ordering::SeqCst) < next).then_some(());
        if next == u64::MAX {
            CHANGED.wait_uninterruptible(is_earlier);
        } else if time::now() < next {
            CHANGED.wait_uninterruptible_until(next, is_earlier);
        } else {
            NEXT.store(u64::MAX, Ordering::SeqCst);
            let now = time::now();
            let entries = SOCKETS.entries();
            let sockets = entries.iter().flat_map(|entries| entries.iter());
            sockets.filter_map(|socket| socket.upgrade()).for_each(|socket| socket.hand_over(now));
        }
    }
}

impl PacketSocket {
    /// Hands over a block whose time has come.
    fn hand_over(&self, now: u64) {
        let losing = if self.has_lost() { LOSING } else { 0 };
        let (is_ready, due) = match &mut self.rings.state.lock().receiving {
            Some(Receiving::Blocks(blocks)) => (blocks.hand_over(now, losing), blocks.due()),
            _ => return,
        };
        if is_ready {
            self.channel.readable.announce(News::Input);
        }
        if let Some(due) = due {
            expect(due);
        }
    }
}
