//! A walk over everything that must agree: free sets, lists, bitmaps, per-CPU lists, frame records,
//! totals.

use freehold_frame::{Audit, Contradiction, Owner};
use freehold_machine::topology::Presence;
use freehold_machine::{CpuId, Machine, NodeId, PAGEBLOCK_FRAMES, Pfn, PfnRange, PhysicalBytes};

use crate::Buddy;
use crate::block::{BlockId, Fill};
use crate::pcp::homeward;
use crate::shape::LISTS;
use crate::word::Plain;
use crate::zone::Zone;

/// Two statements of the allocator that cannot both be true.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocatorFault {
    /// The frame table contradicts itself.
    Table(Contradiction),
    /// A pageblock, named by its first frame, does not agree with its state.
    Pageblock(Pfn, Disagreement),
    /// A zone's total of free frames: its own count, and the sum.
    ZoneTotal(u64, u64),
    /// A frame in a per-CPU list that has an owner, or is free in its pageblock too.
    Listed(Pfn),
    /// Number of frames without an owner in the table, and of free frames in the allocator. The
    /// difference has leaked or is owned twice.
    Leak(u64, u64),
}

/// Fault of a pageblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disagreement {
    /// The pageblock is free, and in no free set.
    NotInItsSet,
    /// The pageblock is split, and its bitmap has another number of free frames than its state.
    FreeCount,
    /// The pageblock is split, and all of its frames are free: it should be in a free set.
    SplitButFree,
    /// The pageblock is split with free frames, and not on its arena's list.
    NotOnItsList,
    /// The pageblock is in use, and its frames have no records.
    NoRecords,
}

impl<M: Machine + PhysicalBytes> Buddy<M> {
    /// Checks everything; `found` is called for each fault. Returns the memory by owner and the
    /// number of faults.
    ///
    /// The result is exact only while no CPU allocates or frees: a fault is real if
    /// [`Buddy::activity`] is the same before and after. Takes time in proportion to memory.
    pub fn validate(&self, mut found: impl FnMut(AllocatorFault)) -> (Audit, u64) {
        let mut faults = 0;
        let mut tell = |fault| {
            faults += 1;
            found(fault);
        };
        let audit =
            self.table.audit(self.present_runs().map(|(run, _)| run), |c| tell(AllocatorFault::Table(c)));
        let mut free = 0;
        for zone in self.zones.iter().flatten() {
            free += self.validate_zone(zone, &mut tell);
        }
        for cpu in 0..self.cpus {
            let pcp = self.pcp(CpuId(cpu as u16));
            for list in 0..LISTS {
                let order = self.shapes.shape(list).order;
                pcp.iter(list)
                    .filter(|block| !self.is_listed_rightly(*block, order))
                    .for_each(|b| tell(AllocatorFault::Listed(b)));
            }
            pcp.homeward()
                .iter()
                .map(homeward)
                .filter(|(block, tag)| !self.is_listed_rightly(*block, tag.order().log2()))
                .for_each(|(b, _)| tell(AllocatorFault::Listed(b)));
            free += pcp.frames(&self.shapes);
        }
        let out = self.unplugged_frames();
        if audit.frames(Owner::Free) != free + out {
            tell(AllocatorFault::Leak(audit.frames(Owner::Free), free + out));
        }
        (audit, faults)
    }

    /// Memory with valid records, and its node: all memory that is never unplugged, and the
    /// pageblocks that are plugged in.
    pub(crate) fn present_runs(&self) -> impl Iterator<Item = (PfnRange, NodeId)> {
        self.topology.ranges().iter().flat_map(move |range| {
            let mut rest = range.frames;
            core::iter::from_fn(move || {
                if range.presence == Presence::Always {
                    return (!rest.is_empty()).then(|| (core::mem::take(&mut rest), range.node));
                }
                let blocks = move || (BlockId::of(rest.start).0..BlockId::of(rest.end).0).map(BlockId);
                let is_out = |block: &BlockId| self.blocks.state(*block).fill() == Fill::Offline;
                let first = blocks().find(|block| !is_out(block))?;
                let end = blocks().find(|block| *block > first && is_out(block));
                let run = PfnRange::new(first.start(), end.map_or(rest.end, BlockId::start));
                rest.start = run.end;
                Some((run, range.node))
            })
        })
    }
    /// Frames without an owner, in memory that [`Self::present_runs`] names, that are unplugged or
    /// leaving.
    fn unplugged_frames(&self) -> u64 {
        let out = self.zones.iter().flatten().flat_map(|zone| {
            self.blocks_on(zone.node).map(|block| {
                match (self.blocks.state(block), zone.is_pluggable(block)) {
                    (state, false) if state.fill() == Fill::Offline => PAGEBLOCK_FRAMES,
                    (state, _) if state.is_split() && state.is_leaving() => state.free(),
                    _ => 0,
                }
            })
        });
        out.sum()
    }
    /// Checks a zone and returns the number of its free frames, counted one by one.
    fn validate_zone(&self, zone: &Zone, tell: &mut impl FnMut(AllocatorFault)) -> u64 {
        let pinned = self.machine.pin();
        let held = zone.lock_all(&pinned, self.machine);
        let mut free = zone.moving(&held.sets) * PAGEBLOCK_FRAMES;
        for block in self.blocks_on(zone.node) {
            let state = self.blocks.state(block);
            if matches!(state.fill(), Fill::Split | Fill::Whole) && !self.table.is_ready(block.start()) {
                tell(AllocatorFault::Pageblock(block.start(), Disagreement::NoRecords));
            }
            match state.fill() {
                Fill::Free(_) if zone.is_free(block) => free += PAGEBLOCK_FRAMES,
                Fill::Free(_) => tell(AllocatorFault::Pageblock(block.start(), Disagreement::NotInItsSet)),
                Fill::Split => {
                    let ones: u64 =
                        self.blocks.bitmap(block).iter().map(|word| u64::from(word.get().count_ones())).sum();
                    let wrong = match ones {
                        _ if ones != state.free() => Some(Disagreement::FreeCount),
                        PAGEBLOCK_FRAMES => Some(Disagreement::SplitButFree),
                        _ if !zone.arena_of(block).is_listed(block) => Some(Disagreement::NotOnItsList),
                        _ => None,
                    };
                    wrong.into_iter().for_each(|wrong| tell(AllocatorFault::Pageblock(block.start(), wrong)));
                    free += if state.is_leaving() { 0 } else { ones };
                }
                Fill::Whole | Fill::Moving | Fill::Offline => {}
            }
        }
        if free != zone.free() {
            tell(AllocatorFault::ZoneTotal(zone.free(), free));
        }
        free
    }

    /// Whether a listed block has no owner and is not free in its pageblock.
    fn is_listed_rightly(&self, block: Pfn, order: u32) -> bool {
        let id = BlockId::of(block);
        let state = self.blocks.state(id);
        let index = (block.0 - id.start().0) as usize;
        let taken = match state.fill() {
            Fill::Split => self.blocks.bitmap(id)[index / 64].get() & (1 << (index % 64)) == 0,
            Fill::Whole => order >= 9,
            _ => false,
        };
        taken && self.table.state(block).owner() == Owner::Free && block.is_aligned(order)
    }
}
