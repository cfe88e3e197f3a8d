//! Getting frames back from those who use them least: page-cache pages of disks, then anonymous memory.
//!
//! **Who.** One task for each node with memory, *kswapd*, which the page allocator wakes when a request finds the node below its low
//! watermark and which works until it is above the high one ([`kswapd`]). And whoever finds no frame at all: *direct* reclaim
//! ([`free_some`]), which is slower for the asker but cannot be outrun. kswapd is there only where something can be reclaimed.
//!
//! **What may be held.** Nothing that spins, and no address space: reclaim locks spaces (by trying, one at a time) and sleeps for devices.
//! A fault that finds no frame gives its space's lock back first, reclaims, and starts again. Inode locks may be held: reclaim takes none.
//!
//! **No waiting for memory.** A task that reclaims may use what others must leave: below the lowest watermark the kernel's own
//! requests of reclaiming tasks are served alone ([`is_under_way`], [`freehold_frame::Pressure::Reserve`]), and user memory is not
//! asked for on this path. So writing out always ends, and with it the shortage.
//!
//! **No race to the bottom.** One task reclaims directly at a time; the others wait for it, and look whether their request can be served now
//! before they reclaim themselves. "There is nothing left" is said only by one who found nothing while nobody else was under way:
//! what another one has on its way to a disk is memory to be waited for and no reason to kill.

mod kswapd;

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use freehold_frame::NodeSet;
use freehold_vm::{Eviction, Laundry};

pub use kswapd::{runs, start, wake};

use super::frames;
use crate::sync::{Mutex, WaitQueue};
use crate::{block, hw, task};

/// Frames that are looked for at a time: Linux' SWAP_CLUSTER_MAX.
pub const BATCH: u64 = 32;
/// A first look sees one page of so many (2^12), the last one all.
const GENTLEST: u32 = 12;

/// On whose behalf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// A node's own task.
    Kswapd,
    /// Somebody who cannot go on.
    Direct,
}

/// Pages that were looked at and frames that were given back, by [`Who`].
static SCANNED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static STOLEN: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Tasks that reclaim now.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);
/// Woken when one of them ends.
static ENDED: WaitQueue = WaitQueue::new();
/// Held by the one that reclaims directly.
static TURN: Mutex<()> = Mutex::new(());

/// What reclaim did since boot.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Pages that were looked at.
    pub scanned: u64,
    /// Frames that were given back.
    pub stolen: u64,
}

/// See [`Counts`].
pub fn counts(who: Who) -> Counts {
    let of = |counts: &[AtomicU64; 2]| counts[who as usize].load(Ordering::Relaxed);
    Counts { scanned: of(&SCANNED), stolen: of(&STOLEN) }
}

fn stolen_by_all() -> u64 {
    STOLEN.iter().map(|count| count.load(Ordering::SeqCst)).sum()
}

/// Whether the current task is reclaiming.
pub fn is_under_way() -> bool {
    hw::thread::with_current(|task: &alloc::sync::Arc<task::Task>| task.reclaims.load(Ordering::Relaxed))
        .unwrap_or(false)
}

/// The current task reclaims while this lives.
struct UnderWay(());

impl UnderWay {
    /// `None` where it does already: what reclaim needs is not reclaimed.
    fn begin() -> Option<Self> {
        let was = task::with_current(|task| task.reclaims.swap(true, Ordering::Relaxed));
        (!was).then(|| {
            ACTIVE.fetch_add(1, Ordering::SeqCst);
            Self(())
        })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        task::with_current(|task| task.reclaims.store(false, Ordering::Relaxed));
        ACTIVE.fetch_sub(1, Ordering::SeqCst);
        ENDED.wake_all();
    }
}

/// Free what costs least: frames in CPUs' lists, and pages of disks that nobody uses and that the disk has. How many it were.
pub fn free_idle(most: u64) -> u64 {
    let before = frames().cached_frames();
    frames().drain_local();
    frames().request_drain();
    let listed = before.saturating_sub(frames().cached_frames());
    let Some(_under_way) = UnderWay::begin() else { return listed };
    let all = block::cached_pages();
    let wish = Eviction { want: most, most: all, nodes: NodeSet::ALL, laundry: Laundry::Leave };
    listed + evict(wish, Who::Direct)
}

/// Whether direct reclaim came to anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// There is more than before, by whomever.
    Freed,
    /// Nothing can be had from anybody.
    Nothing,
}

/// Find frames for somebody who has none, by waiting for devices if need be. See the module's head.
pub fn free_some() -> Outcome {
    let before = stolen_by_all();
    let _turn = TURN.lock();
    if stolen_by_all() > before {
        return Outcome::Freed;
    }
    let Some(under_way) = UnderWay::begin() else { return Outcome::Nothing };
    let freed = shrink(BATCH, NodeSet::ALL, Who::Direct);
    drop(under_way);
    frames().drain_local();
    if freed > 0 {
        return Outcome::Freed;
    }
    // Frames on their way to a disk are nobody's to take, and will be free.
    ENDED.wait_uninterruptible(|| match stolen_by_all() > before {
        true => Some(Outcome::Freed),
        false => (ACTIVE.load(Ordering::SeqCst) == 0).then_some(Outcome::Nothing),
    })
}

/// Free `want` frames of `nodes`, or what can be had; at first from what was not used for long, in the end from all. How many it were.
fn shrink(want: u64, nodes: NodeSet, who: Who) -> u64 {
    let mut freed = 0;
    for shift in (0..=GENTLEST).rev() {
        let most = (block::cached_pages() >> shift).max(BATCH);
        freed += evict(Eviction { want: want - freed, most, nodes, laundry: Laundry::Store }, who);
        if freed >= want {
            break;
        }
    }
    freed
}

fn evict(wish: Eviction, who: Who) -> u64 {
    let done = block::evict(wish);
    SCANNED[who as usize].fetch_add(done.scanned, Ordering::Relaxed);
    STOLEN[who as usize].fetch_add(done.freed, Ordering::SeqCst);
    done.freed
}
