//! Reclaim: frees the least used frames, first page-cache pages of disks, then anonymous memory.
//!
//! **Callers.** Each node with memory has one task, *kswapd*. The page allocator wakes it when a
//! request finds the node below its low watermark, and it works until the node is above the high
//! one ([`kswapd`]). A task that finds no frame at all reclaims by itself: *direct* reclaim
//! ([`free_some`]) is slower for that task, but allocations cannot outrun it. kswapd runs only if
//! something can be reclaimed.
//!
//! Freed frames lie in programs' pageblocks. If the kernel's own requests find nothing, pageblocks
//! are made whole for them ([`blocks`]).
//!
//! **Locks of callers.** A caller holds no spin lock and no address space: reclaim locks spaces (by
//! trying, one at a time) and sleeps for devices. A fault that finds no frame releases its space's
//! lock first, reclaims, and starts again. Inode locks may be held: reclaim takes none.
//!
//! **No waiting for memory.** A task that reclaims may use the reserve: below the lowest watermark
//! only reclaiming tasks are served, for the kernel's own requests ([`is_under_way`],
//! [`freehold_frame::Pressure::Reserve`]), and user memory is not allocated on this path. So
//! writing pages out always completes, which ends the shortage of memory.
//!
//! **No premature kills.** One task reclaims directly at a time. The others wait for it, and check
//! whether their request can be served now before they reclaim themselves. A task reports that
//! nothing is left only if it found nothing while no other reclaim was under way: pages that are
//! being written to a disk will become free, so they are no reason to kill. If evicted pages are
//! read again at once ([`thrash`]), reclaim also counts as having found nothing. A task that is
//! being killed does not wait for any of this.

mod balance;
pub(super) mod blocks;
pub mod caches;
mod kswapd;
mod marks;
mod thrash;

use core::ops::AddAssign;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use freehold_charge::Below;
use freehold_vm::{Age, EvictWish, Eviction, FrameChoice, Laundry, SwapEvicted};
use spin::Once;

pub use balance::{set_swappiness, swappiness};
pub use blocks::stalls as compact_stalls;
pub use kswapd::{runs, start, wake};
pub use marks::{min_free_kib, set_min_free_kib};
pub use thrash::is_in_vain;

use super::{ForeignWindows, commons, frames, transit};
use crate::sched::{self, thread};
use crate::sync::{Mutex, WaitQueue};
use balance::{ChargedPages, ReclaimShare};

/// Number of frames that are reclaimed at a time: Linux' SWAP_CLUSTER_MAX.
pub const BATCH: u64 = 32;
/// The first pass visits one page in 2^12, the last one all pages.
const GENTLEST: u32 = 12;
/// How often in a row pages may be written without a frame becoming free, before that counts as no
/// progress: Linux' MAX_RECLAIM_RETRIES.
const PATIENCE: u32 = 16;

/// The caller of a reclaim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// A node's own task.
    Kswapd,
    /// A task that cannot continue without memory.
    Direct,
}

/// The kinds of page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageKind {
    /// Programs' own memory.
    Anonymous,
    /// Pages of disks.
    File,
}

/// The kinds of page that direct reclaim evicts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sources {
    /// Both kinds, by their costs.
    All,
    /// Anonymous and shared memory only, if the swap has room.
    Programs,
}

/// Counts of reclaim since boot.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReclaimCounts {
    /// Number of pages visited.
    pub scanned: u64,
    /// Number of frames freed.
    pub stolen: u64,
}

/// Numbers of pages visited and of frames freed, by [`Who`] and [`PageKind`].
static SCANNED: [[AtomicU64; 2]; 2] = [const { [const { AtomicU64::new(0) }; 2] }; 2];
static STOLEN: [[AtomicU64; 2]; 2] = [const { [const { AtomicU64::new(0) }; 2] }; 2];
/// How often memory became free by other means, namely in pageblocks that were returned.
static OTHERS: AtomicU64 = AtomicU64::new(0);
/// Number of successive direct passes that wrote pages and freed none.
static IN_VAIN: AtomicU32 = AtomicU32::new(0);

/// Number of tasks that are reclaiming now.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);
/// Woken when a task ends its reclaim.
static ENDED: WaitQueue = WaitQueue::new();
/// Held by the task that reclaims directly.
static TURN: Mutex<()> = Mutex::new(());

/// See [`ReclaimCounts`].
pub fn counts(who: Who, kind: PageKind) -> ReclaimCounts {
    let of = |counts: &[[AtomicU64; 2]; 2]| counts[who as usize][kind as usize].load(Ordering::Relaxed);
    ReclaimCounts { scanned: of(&SCANNED), stolen: of(&STOLEN) }
}

fn count(who: Who, kind: PageKind, scanned: u64, freed: u64) {
    SCANNED[who as usize][kind as usize].fetch_add(scanned, Ordering::Relaxed);
    STOLEN[who as usize][kind as usize].fetch_add(freed, Ordering::SeqCst);
}

/// Largest number of pages that were in swap at a time.
static PEAK_SWAPPED: AtomicU64 = AtomicU64::new(0);

/// Updates the largest number of pages in swap.
pub fn note_swapped_pages() {
    let usage = commons().swap().usage();
    PEAK_SWAPPED.fetch_max(usage.slots - usage.free, Ordering::Relaxed);
}

/// Returns the largest number of pages that were in swap at a time.
pub fn peak_swapped() -> u64 {
    PEAK_SWAPPED.load(Ordering::Relaxed)
}

fn stolen_by_all() -> u64 {
    STOLEN.iter().flatten().chain([&OTHERS]).map(|count| count.load(Ordering::SeqCst)).sum()
}

/// Records that memory has become available to other tasks.
fn note_progress() {
    OTHERS.fetch_add(1, Ordering::SeqCst);
}

/// Result of a pass.
#[derive(Clone, Copy, Default)]
struct PassResult {
    /// Number of free frames.
    freed: u64,
    /// Number of pages that were written, whether their frames were freed or were used again.
    written: u64,
}

impl AddAssign for PassResult {
    fn add_assign(&mut self, other: Self) {
        self.freed += other.freed;
        self.written += other.written;
    }
}

/// Whether the current task is reclaiming.
pub fn is_under_way() -> bool {
    thread::with_current(|task| task.reclaims.load(Ordering::Relaxed)).unwrap_or(false)
}

/// While this exists, the current task is reclaiming.
struct UnderWay {
    _foreign: ForeignWindows,
}

impl UnderWay {
    /// `None` if it is reclaiming already: allocations of reclaim do not cause reclaim.
    fn begin() -> Option<Self> {
        let was = thread::with_current(|task| task.reclaims.swap(true, Ordering::Relaxed)).unwrap_or(false);
        (!was).then(|| {
            ACTIVE.fetch_add(1, Ordering::SeqCst);
            Self { _foreign: ForeignWindows::begin() }
        })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        thread::with_current(|task| task.reclaims.store(false, Ordering::Relaxed));
        ACTIVE.fetch_sub(1, Ordering::SeqCst);
        ENDED.wake_all();
    }
}

/// Frees memory that its owner keeps for reuse. Returns the number of frames freed. May take spin
/// locks; does not sleep.
pub type Idle = fn() -> u64;

static KEPT: Once<Idle> = Once::new();

/// Registers `idle`, which is called when memory is short. Once.
pub fn register_idle(idle: Idle) {
    KEPT.call_once(|| idle);
}

/// Frees memory that costs least: frames in CPUs' lists, pages that CPUs keep for pipes and
/// sockets, idle slots of devices, and unused clean pages of disks. Returns the number of frames.
pub fn free_idle(most: u64) -> u64 {
    let before = frames().cached_frames();
    let in_transit = transit::drain();
    frames().drain_local();
    frames().request_drain();
    let kept = KEPT.get().map_or(0, |idle| idle());
    let listed = before.saturating_sub(frames().cached_frames()) + in_transit + kept;
    let Some(_under_way) = UnderWay::begin() else { return listed };
    let all = caches::pages();
    let (laundry, age) = (Laundry::Leave, Age::Respect);
    let wish = Eviction { want: most, most: all, frames: FrameChoice::ALL, laundry, age };
    listed + evict(wish, Who::Direct).freed
}

/// Result of direct reclaim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReclaimOutcome {
    /// Some frames were freed, by this task or another, or pages were written that may soon be
    /// free.
    Freed,
    /// There is nothing to reclaim.
    Nothing,
}

/// Finds frames for a task that has none, and waits for devices if necessary. See the module's
/// head.
pub fn free_some(sources: Sources) -> ReclaimOutcome {
    let before = stolen_by_all();
    let Ok(_turn) = TURN.lock_killable() else { return ReclaimOutcome::Nothing };
    if stolen_by_all() > before {
        return ReclaimOutcome::Freed;
    }
    let Some(under_way) = UnderWay::begin() else { return ReclaimOutcome::Nothing };
    let found = shrink(BATCH, FrameChoice::ALL, sources, Who::Direct);
    drop(under_way);
    frames().drain_local();
    if found.freed > 0 {
        IN_VAIN.store(0, Ordering::Relaxed);
        return ReclaimOutcome::Freed;
    }
    // Pages that were written and used again at once will be left alone for some time. If this is
    // repeated too often, it counts as no progress.
    if found.written > 0 && IN_VAIN.fetch_add(1, Ordering::Relaxed) < PATIENCE {
        return ReclaimOutcome::Freed;
    }
    // Frames being written to a disk cannot be freed now, but will be.
    let outcome = ENDED.wait_killable(|| match stolen_by_all() > before {
        true => Some(ReclaimOutcome::Freed),
        false => (ACTIVE.load(Ordering::SeqCst) == 0).then_some(ReclaimOutcome::Nothing),
    });
    outcome.unwrap_or(ReclaimOutcome::Nothing)
}

/// Frees frames that are charged to accounts of `below`, for a task that one of these refused.
/// Returns the number of frames. Several tasks may do this at once.
pub fn free_charged(below: Below) -> u64 {
    let Some(under_way) = UnderWay::begin() else { return 0 };
    let mut freed = 0;
    for _ in 0..PATIENCE {
        let found = shrink(BATCH, FrameChoice::charged_to(below), Sources::All, Who::Direct);
        freed += found.freed;
        // Pages that were written and used again at once will be left alone for some time.
        if found.freed > 0 || found.written == 0 || thread::is_current_dying() {
            break;
        }
    }
    drop(under_way);
    freed
}

/// Frees `want` of `frames`, or as many as possible: first pages that were not used for long,
/// finally all pages.
fn shrink(want: u64, frames: FrameChoice, sources: Sources, who: Who) -> PassResult {
    // Copies of pages that stay cost least.
    let mut found = PassResult { freed: commons().shed_mirrors(want, frames), written: 0 };
    count(who, PageKind::File, found.freed, found.freed);
    if found.freed >= want {
        return found;
    }
    let charged = frames.charged.map(ChargedPages::count);
    for shift in (0..=GENTLEST).rev() {
        let share = ReclaimShare::now(want - found.freed, charged);
        let share = if sources == Sources::Programs { share.without_files() } else { share };
        let (share, age) = match shift {
            0 => (share.of_either_kind(), Age::Ignore),
            _ => (share, Age::Respect),
        };
        if share.files > 0 {
            let most = (caches::pages() >> shift).max(BATCH);
            let wish = Eviction { want: share.files, most, frames, laundry: Laundry::Store, age };
            found += evict(wish, who);
        }
        let wish = |pages| EvictWish { pages, age, frames, effort: shift };
        if share.private > 0 {
            found += note_swapped(commons().evict(&wish(share.private)), who);
        }
        if share.shared > 0 {
            found += note_swapped(commons().evict_shared(&wish(share.shared)), who);
        }
        // A task that is being killed needs no memory. kswapd is never killed.
        if found.freed >= want || sched::checkpoint().is_err() {
            break;
        }
    }
    found
}

fn evict(wish: Eviction, who: Who) -> PassResult {
    let done = caches::evict(wish);
    count(who, PageKind::File, done.scanned, done.freed);
    PassResult { freed: done.freed, written: done.written }
}

fn note_swapped(done: SwapEvicted, who: Who) -> PassResult {
    note_swapped_pages();
    count(who, PageKind::Anonymous, done.scanned, done.freed);
    PassResult { freed: done.freed, written: done.written }
}
