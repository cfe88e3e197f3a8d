//! /proc/PID/clear_refs: clears the marks of pages that were used, or written, until now
//! (Documentation/admin-guide/mm/soft-dirty.rst).
//!
//! **Soft-dirty.** A leaf is soft-dirty when its page was written through it since the marks were
//! last cleared, and so is every page of an area that is newer than that
//! ([`AreaFlags::SOFTDIRTY`]). Where an area's marks were cleared, a leaf grants writing only while
//! it has its mark, so that the first store faults and sets it. A page that a device may write
//! through a pin changes without a fault: such a page keeps its mark and its rights. (Linux keeps
//! it under any pin, read-only ones too.)

use core::ops::Range;

use freehold_frame::{ReverseKey, transition};
use freehold_machine::VirtAddr;
use freehold_paging::{Backing, Entry, FlushBatch, Memory, PageSize, Rights};

use crate::AddressSpace;
use crate::area::Area;
use crate::request::AreaFlags;
use crate::resident::{LeafKind, Resident};

/// Marks to forget; the numbers are those that programs write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClearRefs {
    /// The marks that pages were used (1).
    All,
    /// The marks that anonymous pages were used (2).
    Anonymous,
    /// The marks that pages of files were used (3).
    File,
    /// The marks that pages were written (4).
    SoftDirty,
    /// The peak of used memory, which then counts from the present use (5).
    Peak,
}

impl ClearRefs {
    /// The one with Linux' number.
    pub const fn from_linux(number: u64) -> Option<Self> {
        Some(match number {
            1 => Self::All,
            2 => Self::Anonymous,
            3 => Self::File,
            4 => Self::SoftDirty,
            5 => Self::Peak,
            _ => return None,
        })
    }
}

impl<S: Memory> Area<S> {
    /// Whether stores are to be noticed page by page.
    pub(crate) fn tracks_stores(&self) -> bool {
        !self.flags.contains(AreaFlags::SOFTDIRTY)
    }
}

impl<S: Memory> AddressSpace<S> {
    /// Clears the marks that `what` names.
    pub fn clear_references(&mut self, what: ClearRefs) {
        let Self { areas, resident, .. } = self;
        // One flush for all areas, before the call returns.
        let mut batch = resident.tables.batch();
        match what {
            ClearRefs::Peak => resident.peak = resident.rss.total(),
            ClearRefs::SoftDirty => {
                areas.for_each_mut(|area| area.flags.remove(AreaFlags::SOFTDIRTY));
                areas.iter().for_each(|area| resident.clear_soft_dirty(area, &mut batch));
            }
            ClearRefs::All | ClearRefs::Anonymous | ClearRefs::File => {
                areas.iter().for_each(|area| resident.make_old(area.start..area.end, what, &mut batch));
            }
        }
    }
}

impl<S: Memory> Resident<S> {
    fn clear_soft_dirty(&self, area: &Area<S>, batch: &mut FlushBatch<S>) {
        self.tables.visit_all(area.start..area.end, |addr, slot, entry, size| {
            if entry.swap_place().is_some() {
                slot.replace(entry.marked_unwritten());
                return;
            }
            if !(entry.is_soft_dirty() || entry.is_writable()) {
                return;
            }
            let forget =
                |entry: Entry| entry.marked_unwritten().with_rights(entry.rights().without(Rights::WRITE));
            let undo = |entry: Entry, old: Entry| entry.with_rights(old.rights()).with_soft_dirty_of(old);
            let is_written = || self.is_written_by_device(entry, size);
            if let Some(old) = transition::forget_written(&slot, entry, forget, undo, is_written)
                && old.is_writable()
            {
                batch.restricted(addr, old);
            }
        });
    }

    /// Whether a leaf in `range` has its mark.
    pub(crate) fn has_soft_dirty(&self, range: &Range<VirtAddr>) -> bool {
        let mut marked = false;
        self.tables.visit(range.clone(), |_, _, entry, _| marked |= entry.is_soft_dirty());
        marked
    }

    /// Returns whether a device may write the page, or a piece of it, without a leaf.
    pub(crate) fn is_written_by_device(&self, entry: Entry, size: PageSize) -> bool {
        if entry.backing() == Backing::Uncounted {
            return false;
        }
        let table = self.source().table();
        let frames = size.bytes() / PageSize::Small.bytes();
        (0..frames)
            .any(|index| table.reverse_key(entry.frame().offset(index)).is_some_and(ReverseKey::has_writers))
    }

    /// Clear the marks of use. A leaf without a mark must be in no TLB, so all TLBs are flushed.
    pub(crate) fn make_old(&self, range: Range<VirtAddr>, what: ClearRefs, batch: &mut FlushBatch<S>) {
        self.tables.visit(range, |addr, slot, entry, _| {
            let concerned = match (what, self.kind_of(entry)) {
                (ClearRefs::Anonymous, kind) => kind == LeafKind::Anon,
                (ClearRefs::File, kind) => kind == LeafKind::Cache,
                _ => true,
            };
            if concerned && entry.is_accessed() {
                batch.restricted(addr, slot.update_from(entry, Entry::marked_old));
            }
        });
    }
}
