//! Counts of allocations by requested node and actual node, and of memory handed out. Counting
//! costs the fast path nothing.
//!
//! A block from a CPU's list is a hit on the list's node, and that list counts it already. Only
//! blocks that the lists do not serve are counted here, on the slow path. The reported figure is
//! the sum of both. Each event counts once, as in Linux (Documentation/admin-guide/numastat.rst).

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_frame::{NodePolicy, NodeSet, Owner, Request};
use freehold_machine::{CpuId, Machine, NodeId, PhysicalBytes};

use crate::Buddy;
use crate::buddy::NONE;

/// Outcomes of allocations for a node, in blocks, as Linux counts them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NumaStats {
    /// Requested on this node, and allocated there.
    pub hit: u64,
    /// Allocated on this node, requested on another.
    pub miss: u64,
    /// Requested on this node, allocated on another.
    pub foreign: u64,
    /// The hits that an interleaving policy requested here.
    pub interleave_hit: u64,
    /// Allocated on this node by its own CPUs.
    pub local: u64,
    /// Allocated on this node by CPUs of other nodes.
    pub other: u64,
}

/// Frames handed out and freed since boot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Handed out.
    pub taken: u64,
    /// Given back.
    pub given: u64,
}

/// A node's counts of blocks that bypassed the lists.
#[derive(Debug, Default)]
pub(crate) struct NumaCounts {
    hit: AtomicU64,
    miss: AtomicU64,
    foreign: AtomicU64,
    interleave_hit: AtomicU64,
    local: AtomicU64,
    other: AtomicU64,
    /// Blocks for CPUs of this node that have a list but bypassed it.
    past: AtomicU64,
    /// Frames for CPUs of this node in blocks that no list serves.
    unlisted: AtomicU64,
}

fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// A block that bypassed the lists of a CPU.
pub(crate) struct Passed {
    pub(crate) cpu: CpuId,
    /// The node whose blocks the CPU's lists hold.
    pub(crate) home: NodeId,
    /// The first requested node, and the allowed nodes.
    pub(crate) wanted: (u8, NodeSet),
    pub(crate) got: NodeId,
    /// Whether a list serves such blocks.
    pub(crate) listed: Listed,
}

/// Whether a list serves a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Listed {
    Yes,
    No,
}

impl<M: Machine + PhysicalBytes> Buddy<M> {
    pub(crate) fn count_passed(&self, passed: &Passed, request: Request) {
        let zone = |node: NodeId| &self.zone(node).numa;
        let at_home = zone(passed.home);
        match passed.listed {
            Listed::Yes => count(&at_home.past, 1),
            Listed::No => count(&at_home.unlisted, request.order.frames()),
        }
        let (first, allowed) = passed.wanted;
        let mut by_distance = self.nearest[usize::from(first)].into_iter().take_while(|node| *node != NONE);
        let wanted = by_distance.find(|node| allowed.contains(NodeId(*node))).map_or(passed.got, NodeId);
        let got = zone(passed.got);
        if wanted == passed.got {
            count(&got.hit, 1);
            if matches!(request.policy, NodePolicy::Interleave(..)) {
                count(&got.interleave_hit, 1);
            }
        } else {
            count(&got.miss, 1);
            count(&zone(wanted).foreign, 1);
        }
        let is_local = self.machine.node_of_cpu(passed.cpu) == passed.got;
        count(if is_local { &got.local } else { &got.other }, 1);
    }

    /// Returns the outcomes of allocations on and for `node`: zeroes for a node that never has
    /// memory.
    pub fn numa_stats(&self, node: NodeId) -> NumaStats {
        let Some(zone) = self.zones.get(usize::from(node.0)).and_then(Option::as_ref) else {
            return NumaStats::default();
        };
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let numa = &zone.numa;
        let mut stats = NumaStats {
            hit: load(&numa.hit),
            miss: load(&numa.miss),
            foreign: load(&numa.foreign),
            interleave_hit: load(&numa.interleave_hit),
            local: load(&numa.local),
            other: load(&numa.other),
        };
        // Blocks from lists, by CPUs of the node and by CPUs whose own node has no memory.
        let (mut local, mut other) = (0u64, 0u64);
        for cpu in (0..self.cpus).map(|cpu| CpuId(cpu as u16)) {
            let pcp = self.pcp(cpu);
            if pcp.node() == node {
                let listed = pcp.listed();
                if self.machine.node_of_cpu(cpu) == node { local += listed } else { other += listed }
            }
        }
        // Blocks that bypassed the lists of this node's CPUs are also in the counts of those lists.
        let past = load(&numa.past);
        let hits = (local + other).saturating_sub(past);
        other = other.min(hits);
        stats.hit += hits;
        stats.other += other;
        stats.local += hits - other;
        stats
    }

    /// Frames handed out and freed since boot, on all CPUs.
    pub fn traffic(&self) -> Traffic {
        let unlisted =
            self.zones.iter().flatten().map(|zone| zone.numa.unlisted.load(Ordering::Relaxed)).sum::<u64>();
        let pcps = (0..self.cpus).map(|cpu| self.pcp(CpuId(cpu as u16)));
        let taken = unlisted + pcps.map(|pcp| pcp.listed_frames(&self.shapes)).sum::<u64>();
        let held: u64 = Owner::ALL[2..].iter().map(|owner| self.frames_of(*owner)).fold(0, u64::wrapping_add);
        Traffic { taken, given: taken.saturating_sub(held) }
    }
}
