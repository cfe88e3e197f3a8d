//! Removal of pages together with their bytes: for swap-out and migration.
//!
//! The order is `freehold_frame::transition`'s, and the types keep it: only a [`Detach`] returns a
//! [`Settled`] page, after its flush; a pinned frame is never in one. A settled page's leaf is
//! empty until the caller sets it.

use arrayvec::ArrayVec;
use freehold_frame::{Anon, Belongs, CountError, Frame, LeafMapping};
use freehold_machine::VirtAddr;
use freehold_paging::{Backing, Entry, FlushBatch, Memory, Slot, Space};

/// Pages of one run.
pub(crate) const RUN: usize = 32;

/// Pages whose leaves are removed but may still be in TLBs. They belong to one space, whose lock
/// the caller has.
pub(crate) struct Detach<S: Memory> {
    batch: FlushBatch<S>,
    pages: ArrayVec<Settled<S>, RUN>,
}

impl<S: Memory> Detach<S> {
    /// Returns an empty set for the space with these tables.
    pub(crate) fn new(tables: &Space<S>) -> Self {
        Self { batch: tables.batch(), pages: ArrayVec::new() }
    }
    /// Whether there is no room for another.
    pub(crate) fn is_full(&self) -> bool {
        self.pages.is_full()
    }
    /// Takes the page at `addr`, whose 4 KiB leaf `entry` in `slot` maps an anonymous frame.
    ///
    /// # Errors
    /// The page stays: [`CountError::Pinned`]; [`CountError::Held`] where the kernel holds the
    /// exclusive frame; where a run is full or the leaf is no such.
    pub(crate) fn take(
        &mut self,
        source: S,
        addr: VirtAddr,
        slot: Slot<S::Machine>,
        entry: Entry,
    ) -> Result<(), CountError> {
        if self.is_full() || entry.backing() == Backing::Uncounted {
            return Err(CountError::Overflow);
        }
        let mapping = LeafMapping::from_leaf(source, entry.frame()).map_err(|_| CountError::NotExclusive)?;
        let (frame, belongs) = mapping.vacate().map_err(|(mapping, why)| {
            // The leaf still holds the frame.
            mapping.into_leaf();
            why
        })?;
        let old = slot.replace(Entry::EMPTY);
        self.batch.restricted(addr, old);
        self.pages.push(Settled { addr, slot, old, belongs, frame });
        Ok(())
    }
    /// For other changes of the same space's leaves, to be flushed together with these.
    pub(crate) const fn batch(&mut self) -> &mut FlushBatch<S> {
        &mut self.batch
    }
    /// Flushes all TLBs: from now on no CPU stores to the frames. In place, since a run is more
    /// than a kernel's stack should copy; then there is room for another.
    pub(crate) fn settle(&mut self) -> impl Iterator<Item = Settled<S>> {
        self.batch.flush();
        self.pages.drain(..)
    }
}

/// A page without a leaf, whose bytes no longer change. If it is dropped before its leaf is set,
/// the page is lost.
#[must_use = "the page's leaf is empty"]
pub(crate) struct Settled<S: Memory> {
    addr: VirtAddr,
    slot: Slot<S::Machine>,
    old: Entry,
    belongs: Belongs,
    frame: Frame<Anon, S>,
}

impl<S: Memory> Settled<S> {
    /// Its address.
    pub(crate) const fn addr(&self) -> VirtAddr {
        self.addr
    }
    /// Returns the old leaf, with all marks of the hardware.
    pub(crate) const fn old(&self) -> Entry {
        self.old
    }
    /// Whether the frame was exclusive to its space.
    #[cfg(test)]
    pub(crate) const fn belongs(&self) -> Belongs {
        self.belongs
    }
    /// Returns its frame, which cannot be pinned. Only leaves of spaces that share it map it.
    pub(crate) const fn frame(&self) -> &Frame<Anon, S> {
        &self.frame
    }
    /// Put `entry` in its leaf's place: a swap entry, or the leaf of another frame. The caller gets
    /// the reference to this frame.
    pub(crate) fn replace_by(self, entry: Entry) -> Frame<Anon, S> {
        self.slot.fill(entry);
        self.frame
    }
    /// Puts the page back at its old address.
    pub(crate) fn put_back(self) {
        // The count was taken a moment ago, so it fits in its place.
        if let Ok(mapping) = self.frame.into_mapping_as(self.belongs) {
            mapping.into_leaf();
            self.slot.fill(self.old);
        }
    }
}
