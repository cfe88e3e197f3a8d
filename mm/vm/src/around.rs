//! Faults that map more than one page of a file, and the choice of a near copy of each.

use freehold_frame::{Frame, PageCache as CacheKind};
use freehold_machine::{Cpus, Machine, PAGE, VirtAddr};
use freehold_paging::{Marks, Memory, PageSize, Rights, Slot};

use crate::area::{Area, AreaContent};
use crate::request::{AreaFlags, Protection};
use crate::resident::{LeafKind, Resident, leaf};

/// Number of pages that a read fault on a file page maps together, if they are in memory: an
/// aligned run (Linux: `fault_around_bytes`, 64 KiB).
const AROUND: u64 = 16;

impl<S: Memory> Area<S> {
    /// Whether its pages are a private file's that may be executed and not written, on no nodes
    /// that a policy names.
    fn shows_text(&self) -> bool {
        let rights = self.protection & (Protection::EXEC | Protection::WRITE);
        matches!(self.content, AreaContent::PrivateFile(..))
            && rights == Protection::EXEC
            && self.policy.is_none()
            && !self.flags.intersects(AreaFlags::MONITORED)
    }
}

impl<S: Memory> Resident<S> {
    /// Whether leaves of `area` may lead to mirrors. One no-op where no mirrors are made.
    #[inline(always)]
    pub(crate) fn takes_mirrors(&self, area: &Area<S>) -> bool {
        self.source().machine().mirrors_text() && self.acting.is_none() && area.shows_text()
    }

    /// Map the neighbours of a file page that are in memory.
    pub(crate) fn fill_around(&mut self, area: &Area<S>, addr: VirtAddr) {
        let first = VirtAddr(addr.0 & !(AROUND * PAGE - 1)).max(area.start);
        let last = VirtAddr((addr.0 | (AROUND * PAGE - 1)) + 1).min(area.end);
        let Some((cache, index)) = area.cache_page(first) else { return };
        let rights = if area.is_shared() && cache.maps_writable_at_once() && !area.tracks_stores() {
            area.rights()
        } else {
            area.shared_frame_rights()
        };
        let mut mapped = 0;
        // The run is in one existing table: nothing is allocated under the cache's lock.
        let Some((start, PageSize::Small)) = self.tables.find(first) else { return };
        let pages = index..index + (last.0 - first.0) / PAGE;
        if self.takes_mirrors(area) {
            self.fill_around_near(area, start, pages, rights);
            return;
        }
        cache.visit_resident(pages, |page, frame| {
            let slot = start.beyond((page - index) as usize);
            if slot.load().is_empty()
                && let Ok(mapping) = frame.map()
            {
                slot.fill(leaf(mapping, rights, Marks::Untouched));
                mapped += 1;
            }
        });
        self.count_cached(area, mapped);
    }

    /// As [`Resident::fill_around`], for `pages` whose leaves begin at `start`: leaves lead to
    /// frames on this CPU's node as far as there are any.
    #[cold]
    #[inline(never)]
    fn fill_around_near(
        &mut self,
        area: &Area<S>,
        start: Slot<S::Machine>,
        pages: core::ops::Range<u64>,
        rights: Rights,
    ) {
        let Some(cache) = area.attachment().map(|at| at.cache()) else { return };
        let (node, first, mut mapped) = (self.source().machine().current_node(), pages.start, 0);
        let slot = |page: u64| start.beyond((page - first) as usize);
        let mut map = |page: u64, frame: &Frame<CacheKind, S>| {
            if slot(page).load().is_empty()
                && let Ok(mapping) = frame.map()
            {
                slot(page).fill(leaf(mapping, rights, Marks::Untouched));
                mapped += 1;
            }
        };
        let far = cache.visit_near(pages.clone(), node, &self.commons, &mut map);
        for page in pages.filter(|page| far >> (page - first) & 1 != 0 && slot(*page).load().is_empty()) {
            // A page past the end by now is unmapped as soon as this space is unlocked.
            if let Some(frame) = cache.resident_near(page, &self.commons) {
                map(page, &frame);
            }
        }
        self.count_cached(area, mapped);
    }

    fn count_cached(&mut self, area: &Area<S>, pages: u64) {
        if let Some(count) = self.rss.of(area, LeafKind::Cache) {
            *count += pages;
        }
    }
}
