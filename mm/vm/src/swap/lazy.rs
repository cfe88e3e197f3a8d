//! Discardable pages (MADV_FREE): reclaim may discard their bytes as long as they are not written
//! again.
//!
//! The mark is in the leaf: lazy, unused and clean. Every write sets the leaf's dirty bit, and then
//! the bytes must be kept. A CPU sets it before it stores, and the kernel with the leaf; a device
//! needs a pin for writing, which keeps the leaf dirty. A pin that is being taken without a lock
//! just now is treated as by clear_refs (`freehold_frame::transition`): the leaf changes first,
//! then writers are looked for, and where there is one it changes back.
//!
//! A page that is shared since a fork does not change: discarding it would free nothing. A page in
//! a swap area is discarded at once.

use core::ops::Range;

use freehold_frame::transition;
use freehold_machine::VirtAddr;
use freehold_paging::{Entry, Memory, PageSize};

use crate::events::Event;
use crate::resident::{LeafKind, Resident};

impl<S: Memory> Resident<S> {
    /// Marks the pages of `range`, which splits no large page, as discardable.
    pub(crate) fn give_up(&mut self, range: Range<VirtAddr>) {
        let mut batch = self.tables.batch();
        let mut gone = 0;
        self.tables.visit_all(range, |addr, slot, entry, size| {
            if let Some(place) = entry.swap_place() {
                slot.replace(Entry::EMPTY);
                self.commons.swap.leave(place);
                gone += 1;
                return;
            }
            if self.kind_of(entry) != LeafKind::Anon || !self.is_exclusive(entry) {
                return;
            }
            let undo = |entry: Entry, _| entry.marked_dirty();
            let is_written = || self.is_written_by_device(entry, size);
            let before = transition::forget_written(&slot, entry, Entry::marked_lazy, undo, is_written);
            if let Some(before) = before {
                batch.restricted(addr, before);
                self.commons.count_many(Event::LazyFree, size.bytes() / PageSize::Small.bytes());
            }
        });
        self.swapped -= gone;
    }
}
