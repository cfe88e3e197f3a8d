//! Pages of a file that a process has not used lately, and their removal from its tables: the page
//! cache does this before it frees a frame.
//!
//! The CPU sets a leaf's mark of use, and each scan clears it: a page without a mark was not used
//! since the last scan. A leaf without the mark is in no TLB, so clearing it needs a flush too; one
//! flush serves the whole scan.

use alloc::sync::Arc;

use freehold_paging::{Entry, FlushBatch, Memory, PageSize};

use crate::AddressSpace;
use crate::area::Area;
use crate::cache::{PageCache, PageSet};
use crate::request::AreaFlags;
use crate::resident::{LeafKind, Resident};
use crate::swap::Age;

impl<S: Memory> AddressSpace<S> {
    /// Unmaps those of `pages` of `cache` that were not used through this space since the last
    /// call, or all of them, depending on `age`. Returns the others (bits as in `pages`), which
    /// count as not used from now on. Locked pages are always in use.
    pub(crate) fn unmap_idle(&mut self, cache: &PageCache<S>, pages: PageSet, age: Age) -> u64 {
        let Self { areas, resident, .. } = self;
        let mut batch = resident.tables.batch();
        let mut used = 0;
        for area in areas.iter() {
            let attachment = area.attachment().filter(|at| core::ptr::eq(Arc::as_ptr(at.cache()), cache));
            if attachment.is_some() {
                used |= resident.unmap_idle(area, pages, age, &mut batch);
            }
        }
        used
    }
}

impl<S: Memory> Resident<S> {
    fn unmap_idle(&mut self, area: &Area<S>, pages: PageSet, age: Age, batch: &mut FlushBatch<S>) -> u64 {
        let span = pages.span();
        let Some(range) = area.addresses_of(span.start, span.end) else { return 0 };
        self.note_peak();
        let is_locked = area.flags.contains(AreaFlags::LOCKED);
        let (mut used, mut unmapped) = (0, 0);
        let this = &*self;
        this.tables.visit(range, |addr, slot, entry, size| {
            let Some((_, page)) = area.cache_page(addr).filter(|(_, page)| pages.contains(*page)) else {
                return;
            };
            if size == PageSize::Large || this.kind_of(entry) != LeafKind::Cache {
                return;
            }
            if is_locked || (entry.is_accessed() && age == Age::Respect) {
                used |= 1 << (page - pages.first);
                batch.restricted(addr, slot.update_from(entry, Entry::marked_old));
                return;
            }
            let old = slot.replace(Entry::EMPTY);
            batch.unmapped(addr, old, this.mapping_of(old));
            unmapped += 1;
        });
        self.uncount_pages(area, LeafKind::Cache, unmapped);
        used
    }
}
