//! Blocks larger than a pageblock, up to 1 GiB: combined from free pageblocks that happen to be
//! adjacent.

use freehold_machine::{Machine, PAGEBLOCK_ORDER, PhysicalBytes};

use crate::Buddy;
use crate::block::BlockId;
use crate::find::Trip;
use crate::output::OutputSlice;
use crate::take::TakeRequest;

impl<M: Machine + PhysicalBytes> Buddy<M> {
    /// Takes one block of the requested order, which is above a pageblock's, if there is one.
    pub(crate) fn gather(&self, trip: &Trip<'_, M>, out: &mut OutputSlice<'_>) {
        let &Trip { pinned, zone, wanted: TakeRequest { owner, order, .. }, .. } = trip;
        let side = owner.side();
        let count = 1u64 << (order - PAGEBLOCK_ORDER);
        let held = zone.lock(pinned, self.machine);
        if trip.reserve(1).is_none() {
            return;
        }
        let Some(first) = zone.find_neighbours(&held, count) else { return zone.gain(1 << order) };
        zone.begin_gather(&held, first, count);
        drop(held);
        // No other CPU has the blocks now; those on the wrong side are moved without the lock.
        for id in first.0..first.0 + count {
            let block = BlockId(id);
            if zone.gathered_from(block) != side {
                self.change_side(&mut [block], side);
            }
        }
        let arena = self.arena(pinned, zone);
        zone.finish_gather(&zone.lock_arena(arena, pinned, self.machine), first, count, side);
        out.push(first.start());
    }
}
