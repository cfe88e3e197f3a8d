//! The bytes of free frames: zeroed (`init_on_free=1`) or filled with a pattern that is checked
//! (`page_alloc.check=fill`).

use core::sync::atomic::Ordering;
use freehold_frame::{FrameState, Freed, Order};

use freehold_machine::{Machine, PAGEBLOCK_FRAMES, Pfn, PfnRange, PhysicalBytes};

use crate::Buddy;
use crate::block::{BlockId, BlockState};
use crate::misuse::Misuse;
use crate::options::{Check, Wipe};

/// Byte with which free frames are filled: the well-known one of Linux' page poisoning.
const PATTERN: u8 = 0xaa;

impl<M: Machine + PhysicalBytes> Buddy<M> {
    /// Overwrites a block that is about to be freed.
    #[cold]
    pub(crate) fn scrub(&self, block: Pfn, freed: Freed) {
        // Zeroes can serve as the pattern.
        let byte = if self.options.init_on_free == Wipe::Always { 0 } else { PATTERN };
        for frame in PfnRange::new(block, block.offset(freed.order.frames())).iter() {
            self.machine.with_bytes(frame, |bytes| bytes.fill(byte));
            // Every frame's record, not only the first's, notes that it was filled.
            if frame != block
                && self.options.check == Check::Fill
                && let Some(record) = self.table.get(frame)
            {
                record.set_state(FrameState::Unowned(Some(freed)));
            }
        }
    }
    /// Overwrites programs' bytes in a free pageblock that is about to enter the direct map. The
    /// block is moving: no other CPU has it. A block whose frames were overwritten when they were
    /// freed has no such bytes.
    pub(crate) fn wipe_residue(&self, block: BlockId) {
        let state: BlockState = self.blocks.state(block);
        let scrubbed = self.options.init_on_free == Wipe::Always || self.options.check == Check::Fill;
        if self.options.wipe_on_enter == Wipe::Always && state.has_residue() && !scrubbed {
            self.machine.zero_run(block.start(), PAGEBLOCK_FRAMES);
            self.wiped.fetch_add(1, Ordering::Relaxed);
        }
    }
    /// Returns the number of pageblocks that were wiped before they entered the direct map.
    pub fn wiped_pageblocks(&self) -> u64 {
        self.wiped.load(Ordering::Relaxed)
    }
    /// Checks that a free block was not written to.
    #[cold]
    pub(crate) fn verify(&self, block: Pfn, order: Order) {
        if self.options.check != Check::Fill {
            return;
        }
        let byte = if self.options.init_on_free == Wipe::Always { 0 } else { PATTERN };
        for frame in PfnRange::new(block, block.offset(order.frames())).iter() {
            let FrameState::Unowned(Some(before)) = self.table.state(frame) else { continue };
            if before.owner == freehold_frame::Owner::Reserved {
                continue;
            }
            let changed = self.machine.read_bytes(frame, |bytes| {
                bytes.iter().position(|found| *found != byte).map(|offset| (offset, bytes[offset]))
            });
            if let Some((offset, found)) = changed {
                self.report(Misuse::WrittenWhileFree { frame, offset, found, before });
            }
        }
    }
}
