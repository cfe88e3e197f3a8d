//! Out of memory: first give back what nobody needs, then get more from the host, then kill the largest.

use core::sync::atomic::{AtomicU64, Ordering};

use super::{frames, hotplug};
use crate::{sched, task};

static KILLS: AtomicU64 = AtomicU64::new(0);

/// How many processes were killed for want of memory.
pub fn kills() -> u64 {
    KILLS.load(Ordering::Relaxed)
}

/// How often somebody had to find memory before going on, and frames of disks that were given back for it.
static STALLS: AtomicU64 = AtomicU64::new(0);
static STOLEN: AtomicU64 = AtomicU64::new(0);

/// See [`STALLS`].
pub fn stalls() -> u64 {
    STALLS.load(Ordering::Relaxed)
}
/// See [`STOLEN`].
pub fn stolen() -> u64 {
    STOLEN.load(Ordering::Relaxed)
}

/// Frames of disks that are given back at a time: 4 MiB.
const DISK_RELIEF: u64 = 1024;

/// Give back what costs little to lose: the free frames in this CPU's lists at once, those of other CPUs when they next
/// look, and pages of disks that can be read again. Returns how many frames that freed.
pub fn relieve() -> u64 {
    let before = frames().cached_frames();
    frames().drain_local();
    frames().request_drain();
    let stolen = crate::block::relieve(DISK_RELIEF);
    STOLEN.fetch_add(stolen, Ordering::Relaxed);
    before.saturating_sub(frames().cached_frames()) + stolen
}

/// Find memory without hurting anybody: relieve, else get more from the host. May sleep; holds up whoever waits for the caller's locks.
pub fn find_more() -> hotplug::Growth {
    STALLS.fetch_add(1, Ordering::Relaxed);
    if relieve() > 0 { hotplug::Growth::Grown } else { hotplug::grow() }
}

/// There is no frame left for the current task, whatever it was `doing`: relieve, else grow, else kill, then let others run.
///
/// Returns to a caller that tries again. The victim may be the current task; it dies before it is back in user mode.
pub fn out_of_memory(doing: &'static str) {
    if find_more() == hotplug::Growth::None && task::oom_kill(doing) == task::OomKill::Killed {
        KILLS.fetch_add(1, Ordering::Relaxed);
    }
    sched::yield_now();
}
