//! The marks of areas, pages that get frames of their own again, and counts of merged pages.

use core::mem::ManuallyDrop;
use core::ops::Range;

use freehold_frame::{Anon, LeafMapping, OutOfMemory};
use freehold_machine::{PAGE_SIZE, VirtAddr};
use freehold_paging::{Backing, Entry, Marks, Memory, PageSize};
use freehold_xpfo::Windows;

use crate::area::{Area, AreaContent};
use crate::events::Event;
use crate::request::AreaFlags;
use crate::resident::{Resident, leaf};
use crate::{AddressSpace, VmError};

/// Merged pages of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MergedPages {
    /// Leaves of merged frames (ksm_merging_pages).
    pub merged: u64,
    /// Leaves of the page of zeroes that took the place of written pages (ksm_zero_pages).
    pub zeroes: u64,
}

impl<S: Memory> Area<S> {
    /// Whether the area's pages may be merged: it is private, and not the kernel's own (Linux:
    /// `vma_ksm_compatible`).
    pub(crate) fn is_ksm_compatible(&self) -> bool {
        matches!(self.content, AreaContent::Anonymous | AreaContent::PrivateFile(..))
    }
    /// Returns those of the new `flags` that fit the area: other areas pass over
    /// [`AreaFlags::MERGEABLE`].
    pub(crate) fn accepted(&self, flags: AreaFlags) -> AreaFlags {
        if self.is_ksm_compatible() { flags } else { flags.difference(AreaFlags::MERGEABLE) }
    }
    /// Marks the area, if it is such an area.
    pub(crate) fn mark_mergeable(&mut self) {
        self.flags.set(AreaFlags::MERGEABLE, self.is_ksm_compatible());
    }
}

impl<S: Memory> AddressSpace<S> {
    /// Whether all areas of the process are marked, new ones too (PR_GET_MEMORY_MERGE).
    pub const fn merges_all(&self) -> bool {
        self.merges_all
    }
    /// Marks all areas, those that are made later too; children inherit this.
    pub fn merge_all(&mut self) {
        self.merges_all = true;
        self.areas.change_all(Area::mark_mergeable);
    }
    /// Marks a new area, if all are marked.
    pub(crate) fn mark_new(&self, area: &mut Area<S>) {
        if self.merges_all {
            area.mark_mergeable();
        }
    }
    /// Removes all marks. All pages are [due](Self::take_due) for
    /// [`Populate::Unmerge`](crate::Populate::Unmerge).
    pub fn merge_none(&mut self) {
        self.merges_all = false;
        self.areas.change_all(|area| area.flags.remove(AreaFlags::MERGEABLE));
        self.owe(self.layout.lowest, self.layout.end);
    }

    /// Gives up to `most` merged pages of `range` frames of their own. Returns the address at which
    /// to continue.
    ///
    /// # Errors
    /// [`VmError::NoMemory`]; pages before it are unmerged.
    pub(crate) fn unmerge_some(&mut self, range: Range<VirtAddr>, most: u64) -> Result<VirtAddr, VmError> {
        let Self { areas, resident, .. } = self;
        let mut left = most;
        for (area, Range { start: mut next, end }) in areas.parts(range.clone()) {
            if !area.is_ksm_compatible() {
                continue;
            }
            while let Some(at) = resident.tables.next_populated(next..end) {
                if left == 0 {
                    return Ok(at);
                }
                next = VirtAddr((at.0 | (PageSize::Large.bytes() - 1)) + 1).min(end);
                for addr in (at.0..next.0).step_by(PAGE_SIZE).map(VirtAddr) {
                    if left == 0 {
                        return Ok(addr);
                    }
                    left -= u64::from(resident.unmerge(area, addr)?);
                }
                // A table without merged pages costs as much as a few copies.
                left = left.saturating_sub(4);
            }
        }
        Ok(range.end)
    }

    /// Adds the merged pages of `range` to `sum`, of one table at a time; returns the address at
    /// which to continue.
    pub fn count_merged(&self, range: Range<VirtAddr>, sum: &mut MergedPages) -> VirtAddr {
        for (area, part) in self.areas.parts(range.clone()) {
            if !area.flags.contains(AreaFlags::MERGEABLE) {
                continue;
            }
            let Some(at) = self.resident.tables.next_populated(part.clone()) else { continue };
            let end = VirtAddr((at.0 | (PageSize::Large.bytes() - 1)) + 1).min(part.end);
            self.resident.tables.visit(at..end, |_, _, entry, size| {
                sum.zeroes += u64::from(self.resident.is_merged_zero(entry));
                sum.merged += u64::from(size == PageSize::Small && self.resident.is_merged(entry));
            });
            return end;
        }
        range.end
    }
}

impl<S: Memory> Resident<S> {
    /// Whether the leaf `entry` maps the page of zeroes in place of a page that was merged with it.
    pub(crate) fn is_merged_zero(&self, entry: Entry) -> bool {
        entry.backing() == Backing::Uncounted && entry.is_dirty() && entry.frame() == self.commons.zero_page()
    }

    /// Gives the page at `addr` a frame of its own, if it is merged. Returns whether it was. Its
    /// leaf keeps its marks, and grants writing only after the next store's fault.
    fn unmerge(&mut self, area: &Area<S>, addr: VirtAddr) -> Result<bool, OutOfMemory> {
        let Some((slot, PageSize::Small)) = self.tables.find(addr) else { return Ok(false) };
        let entry = slot.load();
        if !entry.is_leaf() {
            return Ok(false);
        }
        let place = self.place(area, addr);
        if self.is_merged_zero(entry) {
            let page = self.new_page(place)?;
            self.source().machine().zero(&page);
            let new = leaf(page, area.shared_frame_rights(), Marks::Dirty).with_soft_dirty_of(entry);
            self.tables.forget::<Anon>(addr, slot.replace(new), None);
            self.rss.anon += 1;
            return Ok(true);
        }
        let Ok(mapping) = LeafMapping::<Anon, S>::borrow_leaf(self.source(), entry.frame()) else {
            return Ok(false);
        };
        if !self.is_merged(entry) {
            return Ok(false);
        }
        let Err(shared) = mapping.reuse() else { return Ok(false) };
        let frame = self.copy_of(shared, place)?.into_leaf();
        let old = slot.update_from(entry, |entry| entry.piece(frame));
        self.tables.forget(addr, old, Some(ManuallyDrop::into_inner(mapping)));
        self.commons.count(Event::CowKsm);
        Ok(true)
    }
}
