//! The flusher: it writes back pages that have been dirty for long, and pages above the limits.
//!
//! One task checks all disks every five seconds while one is open, as Linux' does
//! (`dirty_writeback_centisecs`), and at once when writers ask it to. It stores a disk's changes
//! when they are half a minute old (`dirty_expire_centisecs`), or when a tenth of the memory that
//! can hold dirty pages is dirty. A writer that finds a fifth dirty stores its disk's changes
//! itself before it continues. Pages that become dirty through mappings do not count against the
//! writer: when memory is short, reclaim stores them.
//!
//! A page that a disk refuses is clean afterwards and its bytes are lost, as on Linux; each open
//! file is told once, by fsync(2). Such a page delays no writer. If the request could not be made
//! (no memory), the page stays dirty and the flusher tries again.

use core::sync::atomic::{AtomicBool, Ordering};

use super::{DiskContent, each, sum};
use crate::mem::frames;
use crate::sync::WaitQueue;
use crate::{Result, sched, time};

/// Interval between two checks.
const SCAN_INTERVAL: u64 = 5 * time::SECOND;
/// How long a change may stay only in memory.
const EXPIRE: u64 = 30 * time::SECOND;
/// When this percentage of the pages that can be dirty is dirty, the flusher writes them back.
const BACKGROUND: u64 = 10;
/// At this percentage, the writers store dirty pages themselves.
const MOST: u64 = 20;

static WORK_PENDING: AtomicBool = AtomicBool::new(false);
static WORK_QUEUE: WaitQueue = WaitQueue::new();

/// Whether there are too many dirty pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Excess {
    /// There are few enough.
    None,
    /// The flusher must store some.
    Some,
    /// Writers must store them before they continue.
    Much,
}

/// Compares the number of dirty pages with the memory that can hold them.
pub(super) fn excess() -> Excess {
    let (mut dirty, mut pages) = (0, 0);
    each(|disk| {
        dirty += disk.cached.cache().dirty_pages();
        pages += disk.cached.cache().pages();
    });
    let room = frames().free_frames() + pages;
    match dirty * 100 {
        share if share > room * MOST => Excess::Much,
        share if share > room * BACKGROUND => Excess::Some,
        _ => Excess::None,
    }
}

/// Makes the flusher check the disks now. Task context.
pub(super) fn wake() {
    if !WORK_PENDING.swap(true, Ordering::AcqRel) {
        WORK_QUEUE.wake_all();
    }
}

/// Starts the task.
///
/// # Errors
/// `ENOMEM`.
pub(super) fn start() -> Result<()> {
    sched::spawn_kernel("flush", run).map(drop)
}

fn run() {
    let pending = || WORK_PENDING.swap(false, Ordering::AcqRel).then_some(());
    loop {
        if sum(|disk| disk.openers.load(Ordering::Relaxed) as u64) > 0 {
            let _ = WORK_QUEUE.wait_uninterruptible_until(time::now() + SCAN_INTERVAL, pending);
        } else {
            WORK_QUEUE.wait_uninterruptible(pending);
        }
        let now = time::now();
        each(|disk| disk.flush_old(now));
    }
}

impl DiskContent {
    /// Stores the disk's changes if they are old enough or too many.
    fn flush_old(&self, now: u64) {
        let cache = self.cached.cache();
        if cache.dirty_pages() == 0 {
            return self.dirty_since.store(0, Ordering::Relaxed);
        }
        let since = self.dirty_since.load(Ordering::Relaxed);
        if since == 0 {
            self.dirty_since.store(now, Ordering::Relaxed);
        }
        if excess() != Excess::None || (since > 0 && now >= since + EXPIRE) {
            let outcome = cache.launder();
            self.dirty_since.store(if outcome.is_ok() { 0 } else { now }, Ordering::Relaxed);
        }
    }
}
