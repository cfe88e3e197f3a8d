//! Pages that leave their place with their bytes: for swap-out and migration.
//!
//! The order is `freehold_frame::transition`'s, and the types keep it: a [`Settled`] page is had
//! from a [`Detach`] only, after its flush; a frame that is pinned never gets into one. A settled
//! page's leaf is empty until the caller says what stands there.

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
    /// None yet, of the space with these tables.
    pub(crate) fn new(tables: &Space<S>) -> Self {
        Self { batch: tables.batch(), pages: ArrayVec::new() }
    }
    /// Whether there is no room for another.
    pub(crate) fn is_full(&self) -> bool {
        self.pages.is_full()
    }
    /// Take the page at `addr`, whose leaf of 4 KiB in `slot` is `entry` and leads to an anonymous
    /// frame.
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
            // The leaf is the holder still.
            mapping.into_leaf();
            why
        })?;
        let old = slot.replace(Entry::EMPTY);
        self.batch.restricted(addr, old);
        self.pages.push(Settled { addr, slot, old, belongs, frame });
        Ok(())
    }
    /// For other changes of the same space's leaves, to be forgotten with these.
    pub(crate) const fn batch(&mut self) -> &mut FlushBatch<S> {
        &mut self.batch
    }
    /// Makes all TLBs forget: from now on no CPU stores to the frames. In place, since a run is
    /// more than a kernel's stack should copy; then there is room for another.
    pub(crate) fn settle(&mut self) -> impl Iterator<Item = Settled<S>> {
        self.batch.flush();
        self.pages.drain(..)
    }
}

/// A page without a leaf, whose bytes stand still. Dropped without a word about its leaf, it is
/// lost.
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
    /// Whether it was its space's alone.
    #[cfg(test)]
    pub(crate) const fn belongs(&self) -> Belongs {
        self.belongs
    }
    /// Returns its frame, which cannot be pinned. Only sharers' leaves lead to it.
    pub(crate) const fn frame(&self) -> &Frame<Anon, S> {
        &self.frame
    }
    /// Put `entry` in its leaf's place: a swap entry, or the leaf of another frame. The reference
    /// to this one is the caller's.
    pub(crate) fn replace_by(self, entry: Entry) -> Frame<Anon, S> {
        self.slot.fill(entry);
        self.frame
    }
    /// Have it stay where it was.
    pub(crate) fn put_back(self) {
        // The count was taken a moment ago, so it fits in its place.
        if let Ok(mapping) = self.frame.into_mapping_as(self.belongs) {
            mapping.into_leaf();
            self.slot.fill(self.old);
        }
    }
}
