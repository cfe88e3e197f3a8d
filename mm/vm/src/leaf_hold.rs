//! The hold of a leaf, borrowed in place.

use core::mem::ManuallyDrop;

use freehold_frame::{Held, HeldFrame, LargeMapping, LeafMapping, User};
use freehold_machine::{PAGE_SHIFT, PAGEBLOCK_FRAMES, VirtAddr};
use freehold_paging::{Backing, Memory, PageSize};

use crate::resident::Resident;

/// The hold of a present page's leaf. The leaf stays the holder: no other code can change it while
/// the space is borrowed.
pub(crate) enum LeafHold<'a, S: Memory> {
    /// The hold of a 4 KiB page.
    Page(ManuallyDrop<LeafMapping<User, S>>),
    /// The hold of a large page, and the index of one of its frames.
    Block(ManuallyDrop<LargeMapping<S>>, u64),
    /// No hold: the frame belongs to the system.
    Uncounted(HeldFrame<'a>),
}

impl<S: Memory> LeafHold<'_, S> {
    /// The page's frame.
    pub(crate) fn held(&self) -> HeldFrame<'_> {
        match self {
            Self::Page(mapping) => mapping.held(),
            Self::Block(block, index) => block.held_at(*index),
            Self::Uncounted(frame) => *frame,
        }
    }
}

impl<S: Memory> Resident<S> {
    /// The hold of the page at `page`; `None` where none is present.
    pub(crate) fn hold_of(&self, page: VirtAddr) -> Option<LeafHold<'_, S>> {
        let (slot, size) = self.tables.find(page)?;
        let entry = Some(slot.load()).filter(|entry| entry.is_leaf())?;
        let piece = match size {
            PageSize::Small => entry,
            PageSize::Large => entry.piece_at(page),
        };
        match (entry.backing(), size) {
            (Backing::Uncounted, _) => self.commons.uncounted(piece.frame()).map(LeafHold::Uncounted),
            (Backing::Counted, PageSize::Small) => {
                LeafMapping::borrow_leaf(self.source(), entry.frame()).ok().map(LeafHold::Page)
            }
            (Backing::Counted, PageSize::Large) => {
                let index = page.0 >> PAGE_SHIFT & (PAGEBLOCK_FRAMES - 1);
                self.block_of(entry).map(|block| LeafHold::Block(block, index))
            }
        }
    }
}
