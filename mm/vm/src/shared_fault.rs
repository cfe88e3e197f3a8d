//! Faults that many CPUs handle at once in one address space.
//!
//! **Protocol.** Threads that touch anonymous memory for the first time do not depend on each
//! other: each fills an entry that no other CPU has filled. So the space's owner may let several
//! CPUs in with `&AddressSpace`, as long as no CPU has `&mut AddressSpace` (a reader-writer lock).
//! Shared state changes in these ways:
//! - an entry goes from empty to a leaf by compare-exchange; the CPU that loses frees its page and
//!   has nothing more to do, since the page is there;
//! - a leaf is only given more rights, by compare-exchange, if its frame is exclusive. No leaf is
//!   removed or gets another frame, so no flush is needed;
//! - tables are neither made nor freed;
//! - pages and faults are added to a number of the caller's, such as one per CPU. The next caller
//!   with `&mut` takes these numbers back and adds them to the other counts
//!   ([`AddressSpace::add_filled`]).
//!
//! Everything else is left to [`AddressSpace::fault`].

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_frame::{Anon, LeafMapping};
use freehold_machine::{Access, VirtAddr};
use freehold_paging::{Backing, Entry, EntryAt, Marks, Memory, PageSize};
use freehold_xpfo::Windows;

use crate::AddressSpace;
use crate::area::{Area, AreaContent};
use crate::error::FaultKind;
use crate::policy::TaskPolicy;
use crate::resident::{LeafKind, Resident, Want, leaf};

/// In the caller's number: a fault, in the upper half, and a page that it filled, in the lower.
const FAULT: u64 = 1 << 32;
const PAGE: u64 = 1;

impl<S: Memory> AddressSpace<S> {
    /// As [`AddressSpace::fault`], for a task with the policy `acting`, while other CPUs do the
    /// same. `None`, without a change, if [`AddressSpace::fault`] has to handle it. Neither sleeps
    /// nor waits for another CPU. The caller stays on its CPU. Counts are added to `filled`.
    pub fn fault_shared(
        &self,
        (addr, access): (VirtAddr, Access),
        acting: Option<&TaskPolicy>,
        filled: &AtomicU64,
    ) -> Option<FaultKind> {
        let area = self.areas.at_shared(addr)?;
        if !area.protection.allows(access)
            || !matches!(area.content, AreaContent::Anonymous)
            || area.is_monitored()
        {
            return None;
        }
        let pages = self.resident.fault_shared(area, addr.page_start(), access.into(), acting)?;
        filled.fetch_add(FAULT + pages, Ordering::Relaxed);
        Some(FaultKind::Minor)
    }

    /// Adds the changes of faults that were served without the space's lock to the counts: the sum
    /// of the numbers that such faults were added to. Each task that takes the lock calls this
    /// first, and the space's owner before the end.
    #[inline]
    pub const fn add_filled(&mut self, filled: u64) {
        self.minor_faults += filled / FAULT;
        self.resident.rss.anon += filled % FAULT;
    }
}

impl<S: Memory> Resident<S> {
    /// Serves the fault. Returns the number of pages that it filled.
    fn fault_shared(
        &self,
        area: &Area<S>,
        addr: VirtAddr,
        want: Want,
        acting: Option<&TaskPolicy>,
    ) -> Option<u64> {
        let Some((slot, PageSize::Small)) = self.tables.find(addr) else { return None };
        let entry = slot.load();
        if entry.is_leaf() {
            // Another CPU was faster, or this CPU's TLB had fewer rights than the tables grant.
            let is_granted = want == Want::Read || entry.is_writable();
            return if is_granted { Some(0) } else { self.grant_shared(area, EntryAt { addr, slot, entry }) };
        }
        if !entry.is_empty() {
            return None;
        }
        if want == Want::Read {
            let (zero, rights) = (self.commons.zero_page(), area.shared_frame_rights());
            // If another CPU was faster, the page is present.
            let _ = slot.try_fill(Entry::leaf(zero, rights, Marks::Accessed, Backing::Uncounted));
            return Some(0);
        }
        let page = self.new_page(self.place_for(area, addr, acting)).ok()?;
        self.source().machine().zero(&page);
        match slot.try_fill(leaf(page, area.rights(), Marks::Dirty)) {
            Ok(()) => Some(PAGE),
            Err(unused) => {
                drop(self.mapping_of(unused));
                Some(0)
            }
        }
    }

    /// Lets an anonymous page be written if its frame is its own; `None` if not.
    fn grant_shared(&self, area: &Area<S>, at: EntryAt<S::Machine>) -> Option<u64> {
        if self.kind_of(at.entry) != LeafKind::Anon {
            return None;
        }
        let held = LeafMapping::<Anon, S>::borrow_leaf(self.source(), at.entry.frame()).ok()?;
        self.reuse(&held).ok()?;
        self.grant(at, area.rights());
        Some(0)
    }
}
