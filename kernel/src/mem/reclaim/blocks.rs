//! Whole pageblocks, for the kernel.
//!
//! Reclaim frees single frames, which are in programs' pageblocks. The kernel takes its frames from
//! pageblocks on its side of the direct map, and a pageblock changes sides only when all of it is
//! free. So if the kernel has no frames left, freeing programs' pages does not help: a pageblock
//! must be made whole. kswapd does that in advance. A task that finds no frame after all other
//! steps also does it ([`make`]).
//!
//! **Protocol.** First as many frames as a pageblock has are reclaimed on the node, above the low
//! watermark. So isolated frames do not cause a shortage, and pages that are moved out find room.
//! If the node cannot free that many, nothing is isolated. Then the pageblock with the fewest
//! frames in use is isolated and emptied ([`evacuate::empty`]). If a frame cannot move (pinned, in
//! a pipe), its pageblock stays, and the next one is tried.
//!
//! **Locks.** [`hotplug::changing`] > the locks of reclaim and of moving. One task makes a
//! pageblock at a time. A task that waited for another first checks whether there is a free
//! pageblock now. The caller holds the locks that [`reclaim`](super) allows. A task that makes a
//! pageblock counts as reclaiming, so others wait for the outcome before any process is killed.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_frame::NodeSet;
use freehold_machine::topology::MAX_NODES;
use freehold_machine::{NodeId, PAGEBLOCK_FRAMES, PfnRange};
use freehold_vm::FrameChoice;

use super::{BATCH, ReclaimOutcome, Sources, UnderWay, Who, is_under_way, note_progress, shrink};
use crate::mem::{evacuate, frames, hotplug};
use crate::{hw, sched};

/// Number of pageblocks that are tried.
const TRIES: usize = 4;
/// How often other tasks may take the frames reclaimed for a pageblock's pages before the attempt
/// ends.
const PATIENCE: usize = 64;

/// Number of times that a task without a frame made a pageblock whole, or tried to:
/// `compact_stall`.
static STALLS: AtomicU64 = AtomicU64::new(0);

/// Returns how often a task waited for a pageblock to be made whole.
pub fn stalls() -> u64 {
    STALLS.load(Ordering::Relaxed)
}

fn nodes() -> impl Iterator<Item = NodeId> {
    (0..MAX_NODES).map(|node| NodeId(node as u8)).filter(|&node| frames().level(node).is_some())
}

/// Whether no node has a completely free pageblock.
pub(in crate::mem) fn is_none_whole() -> bool {
    nodes().all(|node| frames().free_pageblocks(node) == 0)
}

/// Whether the kernel can take hardly any frames for itself, on any node.
pub(in crate::mem) fn is_kernel_short() -> bool {
    nodes().all(|node| frames().is_kernel_short(node))
}

/// Makes a pageblock whole, near this CPU if possible. See the module's head.
pub(in crate::mem) fn make() -> ReclaimOutcome {
    if is_under_way() {
        return ReclaimOutcome::Nothing;
    }
    STALLS.fetch_add(1, Ordering::Relaxed);
    let Ok(_changing) = hotplug::changing() else { return ReclaimOutcome::Nothing };
    if !is_none_whole() {
        return ReclaimOutcome::Freed;
    }
    let here = hw::node_of(hw::current_cpu());
    let others = nodes().filter(|&node| node != here);
    let made =
        core::iter::once(here).chain(others).any(|node| make_on(node, Who::Direct) == ReclaimOutcome::Freed);
    if made { ReclaimOutcome::Freed } else { ReclaimOutcome::Nothing }
}

/// Ensures that the kernel can get frames on `node` when it needs them.
pub(super) fn provide(node: NodeId) -> ReclaimOutcome {
    let Some(_changing) = hotplug::changing_now() else { return ReclaimOutcome::Nothing };
    if frames().is_kernel_short(node) { make_on(node, Who::Kswapd) } else { ReclaimOutcome::Freed }
}

/// Makes a pageblock whole on `node`. The caller holds [`hotplug::changing`].
fn make_on(node: NodeId, who: Who) -> ReclaimOutcome {
    let Some(_under_way) = UnderWay::begin() else { return ReclaimOutcome::Nothing };
    if make_room(node, PAGEBLOCK_FRAMES, who) == ReclaimOutcome::Nothing {
        return ReclaimOutcome::Nothing;
    }
    evacuate::drain_lists();
    // A pageblock that is partly used by the kernel cannot be isolated, and does not count.
    let mut isolated = evacuate::emptiest(node).filter(|(_, block)| frames().unplug(*block).is_ok());
    let made = isolated.by_ref().take(TRIES).any(|(used, block)| {
        let moved = empty(node, block, who);
        let is_whole = frames().is_out(block);
        frames().plug(block).expect("it was unplugged a moment ago");
        evacuate::count_run(used, moved, is_whole.into());
        is_whole
    });
    note_progress();
    if made { ReclaimOutcome::Freed } else { ReclaimOutcome::Nothing }
}

/// Reclaims until `node` has `want` frames more than its low watermark.
/// [`ReclaimOutcome::Nothing`]: that is impossible.
fn make_room(node: NodeId, want: u64, who: Who) -> ReclaimOutcome {
    for _ in 0..PATIENCE {
        let Some((free, marks)) = frames().level(node) else { return ReclaimOutcome::Nothing };
        let missing = (marks.low + want).saturating_sub(free);
        if missing == 0 {
            break;
        }
        if shrink(missing.max(BATCH), FrameChoice::on(NodeSet::single(node)), Sources::All, who).freed == 0 {
            return ReclaimOutcome::Nothing;
        }
        frames().drain_local();
        if sched::checkpoint().is_err() {
            return ReclaimOutcome::Nothing;
        }
    }
    ReclaimOutcome::Freed
}

/// Moves all movable pages out of `block`, which is isolated. Returns the number of frames moved.
fn empty(node: NodeId, block: PfnRange, who: Who) -> u64 {
    let before = frames().still_used(block);
    let mut used = before;
    while used > 0 {
        evacuate::empty(&[block], node);
        let left = frames().still_used(block);
        // Other tasks may have taken the room that it needs: try once more, if there is any.
        if left == used || make_room(node, left, who) == ReclaimOutcome::Nothing {
            used = left;
            break;
        }
        used = left;
    }
    before.saturating_sub(used)
}
