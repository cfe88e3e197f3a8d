//! Evacuation of memory ranges. It is used for memory that is unplugged
//! ([`hotplug`](super::hotplug)), for blocks that an administrator takes offline ([`set_block`]),
//! and to get whole pageblocks from half-used ones: many at a time ([`compact_all`]), or one that a
//! task waits for ([`reclaim`](super::reclaim)).
//!
//! **Protocol.** The page allocator isolates the range (`Buddy::unplug`: from then on no frame of
//! it is handed out), so pages that are moved out of it get frames elsewhere. Then all address
//! spaces are visited, one lock at a time, and the pages that they map in the range get other
//! frames. Then follow the page caches, which are found from the frames' records. A frame that is
//! pinned, in a pipe, or the kernel's stays, and so does its pageblock: the range is returned to
//! the allocator (`Buddy::plug`) and the caller tries another.
//!
//! Free frames in CPUs' lists, or [in transit](transit), are returned to the allocator before and
//! after. A list may have handed one out just before, so a second pass repeats the work.
//!
//! **Locks.** [`super::hotplug::changing`] is held from isolation to the end: the task that
//! isolates a pageblock also decides whether it is returned. The caller has no address space
//! locked.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use freehold_collections::{TryCollect, Vec};
use freehold_frame::NodePolicy;
use freehold_machine::{NodeId, PAGEBLOCK_FRAMES, PAGEBLOCK_ORDER, Pfn, PfnRange, Topology, VirtAddr};
use freehold_vm::{Locking, Migration, SharedPages};

use super::{commons, frames, hotplug, transit};
use crate::sync::{MutexGuard, WaitQueue};
use crate::{Errno, Result, fs, sched, time};

/// Time that other CPUs get to return the frames in their lists.
const DRAIN: u64 = 2 * time::SECOND / 1000;
/// Number of passes over a range.
const PASSES: usize = 2;
/// Every address.
const ALL: Range<VirtAddr> = VirtAddr(0)..VirtAddr(u64::MAX);

/// Makes all CPUs return the frames in their lists, because each of those blocks its pageblock.
pub(crate) fn drain_lists() {
    transit::drain();
    frames().drain_local();
    frames().request_drain();
    sched::wake_idle();
    WaitQueue::new().wait_uninterruptible_until(time::now() + DRAIN, || None::<()>);
}

/// Moves all movable pages out of `ranges`, which are isolated and sorted, to memory near `node`.
/// Moves fewer if the current task is being killed.
pub(crate) fn empty(ranges: &[PfnRange], node: NodeId) {
    let place = NodePolicy::Preferred(node);
    let inside = |frame: Pfn| {
        let at = ranges.partition_point(|range| range.end <= frame);
        ranges.get(at).is_some_and(|range| range.contains(frame))
    };
    for _ in 0..PASSES {
        if ranges.iter().all(|&range| frames().still_used(range) == 0) {
            return;
        }
        let mut migration = Migration::new(SharedPages::Move);
        let mut last = 0;
        while let Some((id, space)) = commons().next_space(last) {
            space.with(Locking::Wait, &mut |space| {
                let wish = |_, frame| inside(frame).then_some(place);
                space.migrate(ALL, &mut migration, wish, |_, _| {});
            });
            last = id;
            if sched::checkpoint().is_err() {
                return;
            }
        }
        // This also drops the references to old frames.
        drop(migration);
        for &range in ranges {
            commons().evacuate_caches(range, place);
            if sched::checkpoint().is_err() {
                return;
            }
        }
        drain_lists();
    }
}

fn topology() -> Option<&'static Topology> {
    fs::machine::get().map(|machine| &machine.firmware.topology)
}

/// Returns the node of a range of memory.
pub(crate) fn node_of(range: PfnRange) -> NodeId {
    topology().and_then(|topology| topology.node_of(range.start)).unwrap_or(NodeId(0))
}

/// Whether memory is to be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// The memory is to be used.
    Online,
    /// The memory is not to be used.
    Offline,
}

/// Takes `memory` offline or back online. It consists of whole pageblocks of one node that cannot
/// be unplugged.
///
/// # Errors
/// `EBUSY` if some frame cannot be moved: the kernel's frames, pinned ones. `EINTR`.
pub fn set_block(memory: PfnRange, to: Use) -> Result<()> {
    let _changing = hotplug::changing()?;
    if to == Use::Online {
        return frames().plug(memory).map_err(|_| Errno::EBUSY);
    }
    if frames().is_out(memory) {
        return Ok(());
    }
    drain_lists();
    frames().unplug(memory).map_err(|_| Errno::EBUSY)?;
    empty(&[memory], node_of(memory));
    if frames().is_out(memory) {
        return Ok(());
    }
    frames().plug(memory).expect("it was unplugged a moment ago");
    Err(Errno::EBUSY)
}

/// Counts of compaction since boot.
#[derive(Clone, Copy, Debug, Default)]
pub struct Compaction {
    /// Number of frames in use that it tried to move.
    pub scanned: u64,
    /// Frames that it moved.
    pub moved: u64,
    /// Number of runs that made a whole pageblock.
    pub succeeded: u64,
    /// Number of runs that made no whole pageblock.
    pub failed: u64,
}

static SCANNED: AtomicU64 = AtomicU64::new(0);
static MOVED: AtomicU64 = AtomicU64::new(0);
static RUNS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Counts a run that moved `moved` of `wanted` frames and made `made` pageblocks whole.
pub(super) fn count_run(wanted: u64, moved: u64, made: u64) {
    SCANNED.fetch_add(wanted, Ordering::Relaxed);
    MOVED.fetch_add(moved, Ordering::Relaxed);
    RUNS[usize::from(made > 0)].fetch_add(1, Ordering::Relaxed);
}

/// See [`Compaction`].
pub fn compaction() -> Compaction {
    let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
    Compaction {
        scanned: load(&SCANNED),
        moved: load(&MOVED),
        succeeded: load(&RUNS[1]),
        failed: load(&RUNS[0]),
    }
}

/// Largest number of pageblocks that one run empties.
const BLOCKS: usize = 16;
/// A pageblock with more frames in use than this is not worth emptying.
const MOST_USED: u64 = PAGEBLOCK_FRAMES * 3 / 4;

/// Empties half-used pageblocks of every node into others until a run makes none whole.
pub fn compact_all() {
    each_node(|topology, node| {
        while sched::checkpoint().is_ok()
            && let Ok(changing) = hotplug::changing()
            && compact_node(topology, node, &changing) > 0
        {}
    });
}

/// Does one run of [`compact_all`] on each node, for a kernel task: it does not wait for a memory
/// device, and does nothing while one adds or removes memory. Returns the number of whole
/// pageblocks that were made.
pub fn compact_once() -> u64 {
    let mut made = 0;
    each_node(|topology, node| {
        made += hotplug::changing_now().map_or(0, |changing| compact_node(topology, node, &changing));
    });
    made
}

fn each_node(mut f: impl FnMut(&Topology, NodeId)) {
    let Some(topology) = topology() else { return };
    (0..topology.node_count()).for_each(|node| f(topology, NodeId(node as u8)));
}

fn compact_node(topology: &Topology, node: NodeId, _changing: &MutexGuard<'_, ()>) -> u64 {
    drain_lists();
    let whole_before = frames().free_pageblocks(node);
    let mut chosen = choose(topology, node);
    // A pageblock that is partly used by the kernel cannot be isolated.
    chosen.retain(|block| frames().unplug(*block).is_ok());
    if chosen.is_empty() {
        return 0;
    }
    let used = || chosen.iter().map(|&block| frames().still_used(block)).sum::<u64>();
    let before = used();
    empty(&chosen, node);
    let moved = before.saturating_sub(used());
    for &block in &chosen {
        frames().plug(block).expect("it was unplugged a moment ago");
    }
    // Moved pages may have used other pageblocks, and other tasks may have allocated and freed
    // some: only the final number counts.
    let made = frames().free_pageblocks(node).saturating_sub(whole_before);
    count_run(before, moved, made);
    made
}

/// Returns pageblocks of a node that are in use, with at most `most` frames in use each, the
/// emptiest first. The list is as long as memory permits.
fn in_use(topology: &Topology, node: NodeId, most: u64) -> Vec<(u64, PfnRange)> {
    let mut parts: Vec<(u64, PfnRange)> = Vec::new();
    for range in topology.ranges().iter().filter(|range| range.node == node) {
        let first = range.frames.start.0.next_multiple_of(PAGEBLOCK_FRAMES) >> PAGEBLOCK_ORDER;
        for block in first..range.frames.end.0 >> PAGEBLOCK_ORDER {
            let start = Pfn(block << PAGEBLOCK_ORDER);
            let block = PfnRange::new(start, start.offset(PAGEBLOCK_FRAMES));
            if frames().is_free(block) {
                continue;
            }
            let used = frames().still_used(block);
            if used <= most {
                // A pageblock that cannot be listed is skipped.
                let _ = parts.try_push((used, block));
            }
        }
    }
    parts.sort_unstable_by_key(|(used, block)| (*used, block.start));
    parts
}

/// Returns the emptiest pageblocks of a node, without those used by the kernel, and the number of
/// frames in use in each.
pub(super) fn emptiest(node: NodeId) -> impl Iterator<Item = (u64, PfnRange)> {
    topology().map(|topology| in_use(topology, node, PAGEBLOCK_FRAMES)).unwrap_or_default().into_iter()
}

/// Returns the emptiest pageblocks of a node, as many as fit twice into the free frames of the
/// others, sorted by address. Returns none if there is no memory for the list.
fn choose(topology: &Topology, node: NodeId) -> Vec<PfnRange> {
    let mut parts = in_use(topology, node, MOST_USED);
    let mut room: u64 = parts.iter().map(|(used, _)| PAGEBLOCK_FRAMES - used).sum();
    let mut to_move = 0;
    let fit = parts.iter().take(BLOCKS).take_while(|(used, _)| {
        room -= PAGEBLOCK_FRAMES - used;
        to_move += used;
        2 * to_move <= room
    });
    let count = fit.count();
    parts.truncate(count);
    parts.sort_unstable_by_key(|(_, block)| block.start);
    parts.into_iter().map(|(_, block)| block).try_collect_vec().unwrap_or_default()
}
