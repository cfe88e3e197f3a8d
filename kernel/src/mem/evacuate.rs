//! Emptying memory: for memory that goes ([`hotplug`](super::hotplug)), for blocks that an
//! administrator takes out ([`set_block`]), and for whole pageblocks out of half-used ones: many at
//! a time ([`compact`]), or one that a task waits for ([`reclaim`](super::reclaim)).
//!
//! **Protocol.** The page allocator isolates the range (`Buddy::unplug`: nothing of it is handed
//! out from then on), so pages that move out of it land elsewhere. Then all address spaces are
//! visited, one lock at a time, and the pages that they map in the range get other frames; then the
//! page caches, which are found from the frames' records. A frame that is pinned, in a pipe, or the
//! kernel's stays, and so does its pageblock: the range is given back to use (`Buddy::plug`) and
//! the caller tries another.
//!
//! Frames that wait in CPUs' lists, or [in transit](transit), are brought home before and after; a
//! list may have handed one out just before, so a second pass looks again.
//!
//! **Locks.** [`super::hotplug::changing`] is held from isolation to the end: the task that
//! isolates a pageblock also decides whether it comes back. No address space is locked by the
//! caller.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use freehold_collections::{TryCollect, Vec};
use freehold_frame::NodePolicy;
use freehold_machine::{NodeId, PAGEBLOCK_FRAMES, PAGEBLOCK_ORDER, Pfn, PfnRange, Topology, VirtAddr};
use freehold_vm::{Locking, Migration, SharedPages};

use super::{commons, frames, hotplug, transit};
use crate::sync::WaitQueue;
use crate::{Errno, Result, fs, sched, time};

/// How long other CPUs get to bring back what their lists hold.
const DRAIN: u64 = 2 * time::SECOND / 1000;
/// How often a range is gone through.
const PASSES: usize = 2;
/// Every address.
const ALL: Range<VirtAddr> = VirtAddr(0)..VirtAddr(u64::MAX);

/// Have all CPUs give back the frames in their lists: each of those keeps its pageblock.
pub(crate) fn drain_lists() {
    transit::drain();
    frames().drain_local();
    frames().request_drain();
    sched::wake_idle();
    WaitQueue::new().wait_uninterruptible_until(time::now() + DRAIN, || None::<()>);
}

/// Move what can be moved out of `ranges`, which are isolated and sorted, to memory near to `node`.
/// Less, where the current task is to end.
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
        // With it go the references to old frames.
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

/// The node of a range of memory.
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

/// Takes `memory`, whole pageblocks of one node that are there for ever, out of use or back into
/// it.
///
/// # Errors
/// `EBUSY` where something in it cannot be moved: the kernel's frames, pinned ones. `EINTR`.
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
    /// Frames in use that it wanted to move.
    pub scanned: u64,
    /// Frames that it moved.
    pub moved: u64,
    /// Runs that made a whole pageblock.
    pub succeeded: u64,
    /// Runs that made none.
    pub failed: u64,
}

static SCANNED: AtomicU64 = AtomicU64::new(0);
static MOVED: AtomicU64 = AtomicU64::new(0);
static RUNS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// A run moved so many of the frames that it wanted to, and made so many pageblocks whole.
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

/// Pageblocks that one run empties at most.
const BLOCKS: usize = 16;
/// A pageblock with more frames in use than this is not worth its moves.
const MOST_USED: u64 = PAGEBLOCK_FRAMES * 3 / 4;

/// Empty half-used pageblocks of every node into others, `runs` times at most or until nothing
/// comes of it. How many whole ones that made.
pub fn compact(runs: usize) -> u64 {
    let Some(topology) = topology() else { return 0 };
    let mut made = 0;
    for node in (0..topology.node_count()).map(|node| NodeId(node as u8)) {
        let runs = (0..runs).take_while(|_| sched::checkpoint().is_ok());
        made += runs.map(|_| compact_node(topology, node)).take_while(|&made| made > 0).sum::<u64>();
    }
    made
}

fn compact_node(topology: &Topology, node: NodeId) -> u64 {
    let Ok(_changing) = hotplug::changing() else { return 0 };
    drain_lists();
    let whole_before = frames().free_pageblocks(node);
    let mut chosen = choose(topology, node);
    // A pageblock with a part of the kernel's stays.
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
    // Moved pages may have taken other pageblocks, and others may have come and gone: only the
    // final number counts.
    let made = frames().free_pageblocks(node).saturating_sub(whole_before);
    count_run(before, moved, made);
    made
}

/// Pageblocks of a node that are in use, but for no more than `most` frames each; the emptiest
/// first. All that there is memory to list.
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
                // One that cannot be listed is left where it is.
                let _ = parts.try_push((used, block));
            }
        }
    }
    parts.sort_unstable_by_key(|(used, block)| (*used, block.start));
    parts
}

/// The pageblocks of a node that are most easily emptied, but for what the kernel has there; with
/// how many of their frames are in use.
pub(super) fn emptiest(node: NodeId) -> impl Iterator<Item = (u64, PfnRange)> {
    topology().map(|topology| in_use(topology, node, PAGEBLOCK_FRAMES)).unwrap_or_default().into_iter()
}

/// The emptiest pageblocks of a node, as many as fit twice into what the others have free; sorted
/// by address. None where there is no memory to list them.
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
