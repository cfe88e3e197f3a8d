//! Figures of the allocator's memory, for /proc and for reports.

use core::ops::RangeInclusive;

use freehold_frame::{Owner, Side};
use freehold_machine::{CpuId, Machine, NodeId, PAGEBLOCK_FRAMES, PfnRange, PhysicalBytes};

use crate::block::{BlockId, Fill, count_runs};
use crate::zone::{Watermarks, Zone};
use crate::{Buddy, Options};

/// Number of orders in [`ZoneBlocks::free_blocks`]: 0 to 10, as in /proc/buddyinfo.
pub const ORDERS: usize = 11;

/// A node's memory at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ZoneInfo {
    /// The node.
    pub node: NodeId,
    /// Frames from the node's first to its last, including holes and other nodes' frames.
    pub spanned: u64,
    /// Frames of memory, reserved ones too.
    pub present: u64,
    /// Frames that the allocator hands out, free or not.
    pub managed: u64,
    /// Free frames, without those in per-CPU lists.
    pub free: u64,
    /// The watermarks.
    pub watermarks: Watermarks,
}

/// The blocks of a node's memory at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ZoneBlocks {
    /// Free blocks by order.
    pub free_blocks: [u64; ORDERS],
    /// Free blocks by owner and order: those in pageblocks that are split for the owner. Wholly
    /// free pageblocks count for [`Owner::Free`].
    pub free_by_owner: [[u64; ORDERS]; Owner::COUNT],
    /// Pageblocks by owner; wholly free ones as [`Owner::Free`].
    pub pageblocks: [u64; Owner::COUNT],
    /// Wholly free pageblocks that are in the direct map.
    pub free_kernel_side: u64,
}

impl ZoneBlocks {
    /// Share of free memory, in thousandths, that is in blocks too small for `order` (Linux:
    /// `unusable_index`).
    pub fn unusable_index(&self, order: usize) -> u64 {
        let frames = |from: usize| -> u64 { (from..ORDERS).map(|o| self.free_blocks[o] << o).sum() };
        let free = frames(0);
        ((free - frames(order.min(ORDERS))) * 1000).checked_div(free).unwrap_or(1000)
    }
    /// Whether a failing request of `order` fails because of too little memory (towards 0) or
    /// because of fragmentation (towards 1000); -1000 if it would not fail (Linux:
    /// `extfrag_index`).
    pub fn fragmentation_index(&self, order: usize) -> i64 {
        let blocks: u64 = self.free_blocks.iter().sum();
        if blocks == 0 {
            return 0;
        }
        if self.free_blocks[order.min(ORDERS)..].iter().any(|count| *count > 0) {
            return -1000;
        }
        let free: u64 = (0..ORDERS).map(|o| self.free_blocks[o] << o).sum();
        1000 - ((1000 + ((free * 1000) >> order)) / blocks) as i64
    }
}

/// A CPU's lists at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PcpInfo {
    /// The node whose frames the lists hold.
    pub node: NodeId,
    /// Frames in the lists.
    pub frames: u64,
    /// Largest number of frames that the lists may hold.
    pub high: u64,
    /// Frames that one refill of the list for single frames gets at most.
    pub batch: u64,
    /// Number of blocks handed out by this CPU.
    pub taken: u64,
    /// Number of blocks freed on this CPU.
    pub given: u64,
}

/// Activity of the allocator since boot. Two values differ if, in between, a block was handed out
/// or given back, or moved between a per-CPU list and its pageblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Activity {
    /// Number of blocks handed out and freed since boot. Both only grow, so nothing that happens in
    /// between cancels out: lists are refilled only for a block that is handed out.
    taken: u64,
    given: u64,
    /// Frames in per-CPU lists and in zones.
    listed: u64,
    free: u64,
}

impl<M: Machine + PhysicalBytes> Buddy<M> {
    /// Returns the activity of the allocator. If two values are equal, nothing happened in between.
    /// A CPU that was stopped in the middle of a step all the while is not noticed.
    pub fn activity(&self) -> Activity {
        let pcps = || (0..self.cpus).map(|cpu| self.pcp(CpuId(cpu as u16)));
        let sum = |(taken, given): (u64, u64), (t, g)| (taken.wrapping_add(t), given.wrapping_add(g));
        let (taken, given) = pcps().map(|pcp| pcp.traffic()).fold((0, 0), sum);
        let free = self.zones.iter().flatten().map(Zone::free).sum();
        Activity { taken, given, listed: self.cached_frames(), free }
    }
    /// Frames that are free, in zones and in per-CPU lists. Approximate while other CPUs allocate.
    pub fn free_frames(&self) -> u64 {
        let zones: u64 = self.zones.iter().flatten().map(|zone| zone.free()).sum();
        zones + self.cached_frames()
    }
    /// Frames in per-CPU lists. Approximate while other CPUs allocate.
    pub fn cached_frames(&self) -> u64 {
        (0..self.cpus).map(|cpu| self.pcp(CpuId(cpu as u16)).frames(&self.shapes)).sum()
    }
    /// Frames that the allocator hands out, free or not.
    pub fn managed_frames(&self) -> u64 {
        self.zones.iter().flatten().map(|zone| zone.managed()).sum()
    }
    /// Returns the frames that `owner` has: exact while no CPU allocates or frees, and cheap at any
    /// time. Frames reserved at boot are those of [`Buddy::total_frames`] that are not in
    /// [`Buddy::managed_frames`].
    pub fn frames_of(&self, owner: Owner) -> u64 {
        match owner {
            Owner::Free => self.free_frames(),
            Owner::Reserved => self.total_frames() - self.managed_frames(),
            _ => {
                let pcps =
                    (0..self.cpus).map(|cpu| self.pcp(CpuId(cpu as u16)).frames_of(owner, &self.shapes));
                pcps.fold(0, u64::wrapping_add)
            }
        }
    }
    /// Frames of memory, reserved ones too; unplugged ones not.
    pub fn total_frames(&self) -> u64 {
        self.topology.frames() - self.zones.iter().flatten().map(Zone::leaving).sum::<u64>()
    }
    /// The watermarks of all nodes together.
    pub fn watermarks(&self) -> Watermarks {
        self.zones.iter().flatten().map(Zone::marks).fold(Watermarks::default(), |sum, marks| Watermarks {
            min: sum.min + marks.min,
            low: sum.low + marks.low,
            high: sum.high + marks.high,
        })
    }
    /// Makes `frames` the sum of the nodes' lowest watermarks, in proportion to their memory. They
    /// are never below those that are computed from the amount of memory. One caller at a time.
    ///
    /// # Errors
    /// The sums that are possible: from the computed one to half of memory.
    pub fn set_min_free(&self, frames: u64) -> Result<(), RangeInclusive<u64>> {
        let zones = || self.zones.iter().flatten();
        let (present, least) =
            zones().map(Zone::present_and_least).fold((0, 0), |sum, zone| (sum.0 + zone.0, sum.1 + zone.1));
        let possible = least..=(present / 2).max(least);
        if !possible.contains(&frames) {
            return Err(possible);
        }
        // Parts of what is above the computed sum. Their ends are rounded, so that none is lost.
        let end_of =
            |before: u64| u128::from(frames - least) * u128::from(before) / u128::from(present.max(1));
        let mut before = 0;
        for zone in zones() {
            let (present, least) = zone.present_and_least();
            let part = end_of(before + present) - end_of(before);
            before += present;
            zone.wish(least + part as u64);
        }
        Ok(())
    }
    /// Free frames of `node` that programs can get, without those in per-CPU lists, and its
    /// watermarks; `None` for a node without memory.
    pub fn level(&self, node: NodeId) -> Option<(u64, Watermarks)> {
        let zone = self.zones.get(usize::from(node.0))?.as_ref()?;
        Some((self.free_for_programs(&self.machine.pin(), zone), zone.marks()))
    }
    /// Pageblocks of `node` that are wholly free. Approximate while other CPUs allocate.
    pub fn free_pageblocks(&self, node: NodeId) -> u64 {
        let zone = self.zones.get(usize::from(node.0)).and_then(Option::as_ref);
        zone.map_or(0, Zone::free_pageblocks)
    }
    /// Whether `node` has no pageblock that is wholly free, and little free in those of the
    /// kernel's side (less than half the lowest watermark). Scattered free frames on the programs'
    /// side do not help the kernel: a pageblock must be made whole first.
    pub fn is_kernel_short(&self, node: NodeId) -> bool {
        let zone = self.zones.get(usize::from(node.0)).and_then(Option::as_ref);
        zone.is_some_and(|zone| {
            self.free_for_programs(&self.machine.pin(), zone);
            zone.leaves_kernel_nothing()
        })
    }
    /// Whether the allocator shuffles: the value of /sys/module/page_alloc/parameters/shuffle.
    pub fn shuffles(&self) -> bool {
        self.shuffled
    }
    /// The allocator's options.
    pub const fn options(&self) -> &Options {
        &self.options
    }
    /// A CPU's lists; `None` for a CPU that does not exist.
    pub fn pcp_info(&self, cpu: CpuId) -> Option<PcpInfo> {
        (usize::from(cpu.0) < self.cpus).then(|| {
            let pcp = self.pcp(cpu);
            let (taken, given) = pcp.traffic();
            let high =
                (0..crate::shape::LISTS).map(|list| self.shapes.shape(list)).map(|s| s.room << s.order).sum();
            PcpInfo {
                node: pcp.node(),
                frames: pcp.frames(&self.shapes),
                high,
                batch: self.shapes.shape(0).batch,
                taken,
                given,
            }
        })
    }
    /// Returns the frames of `node` by owner: exact while no CPU allocates or frees there. With
    /// memory on one node these are the sums that CPUs keep; with more, they are read from the
    /// frames' records, which takes time in proportion to the node's memory.
    pub fn owned_on(&self, node: NodeId) -> [u64; Owner::COUNT] {
        if self.zones.iter().flatten().all(|zone| zone.node == node) {
            return core::array::from_fn(|owner| self.frames_of(Owner::ALL[owner]));
        }
        let runs = self.present_runs().filter(|(_, of)| *of == node).map(|(run, _)| run);
        let audit = self.table.audit(runs, |_| {});
        core::array::from_fn(|owner| audit.frames(Owner::ALL[owner]))
    }
    /// The state of each node's memory.
    pub fn zone_info(&self) -> impl Iterator<Item = ZoneInfo> {
        self.zones.iter().flatten().map(|zone| {
            let ranges = || self.topology.ranges().iter().filter(|range| range.node == zone.node);
            let runs = self.present_runs().filter(|(_, node)| *node == zone.node).map(|(run, _)| run);
            let span = runs.reduce(|all, run| PfnRange::new(all.start.min(run.start), all.end.max(run.end)));
            ZoneInfo {
                node: zone.node,
                spanned: span.map_or(0, PfnRange::len),
                present: ranges().map(|range| range.frames.len()).sum::<u64>() - zone.leaving(),
                managed: zone.managed(),
                free: zone.free(),
                watermarks: zone.marks(),
            }
        })
    }
    /// The blocks of a node's memory, pageblock by pageblock; none for a node without memory. Takes
    /// the zone's lock for a pageblock at a time; free frames of a split one are counted without
    /// its arena's lock and may change meanwhile.
    pub fn zone_blocks(&self, node: NodeId) -> ZoneBlocks {
        let mut blocks = ZoneBlocks::default();
        let Some(zone) = self.zones.iter().flatten().find(|zone| zone.node == node) else { return blocks };
        self.blocks_on(node).for_each(|block| self.count_block(zone, block, &mut blocks));
        for order in 0..ORDERS {
            let split: u64 = blocks.free_by_owner[1..].iter().map(|owner| owner[order]).sum();
            blocks.free_by_owner[Owner::Free as usize][order] = blocks.free_blocks[order] - split;
        }
        blocks
    }
    /// The pageblocks of a zone. A pageblock with memory of two nodes belongs to the lower node.
    pub(crate) fn blocks_on(&self, node: NodeId) -> impl Iterator<Item = BlockId> {
        let ranges = self.topology.ranges();
        let mut next = 0;
        ranges.iter().flat_map(move |range| {
            let first = BlockId::of(range.frames.start).0.max(next);
            next = range.frames.end.0.div_ceil(PAGEBLOCK_FRAMES);
            let mine = range.node == node;
            (first..if mine { next } else { first }).map(BlockId)
        })
    }
    fn count_block(&self, zone: &Zone, block: BlockId, info: &mut ZoneBlocks) {
        let pinned = self.machine.pin();
        let _held = zone.lock(&pinned, self.machine);
        let state = self.blocks.state(block);
        match state.fill() {
            Fill::Free(side) => {
                info.pageblocks[Owner::Free as usize] += 1;
                info.free_kernel_side += u64::from(side == Side::Kernel);
                // Two free neighbours are one block of order 10, as buddyinfo counts.
                let lower = BlockId(block.0 ^ 1);
                if block.0 & 1 == 1
                    && info.free_blocks[9] > 0
                    && zone.is_free(lower)
                    && self.blocks.state(lower).fill() == state.fill()
                {
                    info.free_blocks[9] -= 1;
                    info.free_blocks[10] += 1;
                } else {
                    info.free_blocks[9] += 1;
                }
            }
            Fill::Split => {
                info.pageblocks[state.owner() as usize] += 1;
                let by_owner = &mut info.free_by_owner[state.owner() as usize];
                for (order, count) in count_runs(self.blocks.bitmap(block)).into_iter().enumerate() {
                    info.free_blocks[order] += count;
                    by_owner[order] += count;
                }
            }
            Fill::Whole | Fill::Moving => {
                let owner = self.table.owner(block.start());
                info.pageblocks[owner as usize] += 1;
            }
            Fill::Offline => {}
        }
    }
}
