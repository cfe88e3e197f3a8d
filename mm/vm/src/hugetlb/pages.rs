//! The huge pages of a file or of a shared mapping, by number.
//!
//! **Reservations.** A number is *accounted* if it has a page or a reservation. A mapping accounts
//! all its numbers; a page that is made without a reservation accounts its own. Reservations stay
//! when mappings go: they belong to the file, until it is cut or gone (Linux: the `resv_map` of the
//! inode). A hole that is punched takes the pages' accounts along, but no reservation.
//!
//! **Two tasks that make one page.** The first one marks the number; the second one waits, since
//! the pool may have only one page for both.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::ops::Range;

use freehold_frame::{LargeMapping, NodePolicy};
use freehold_machine::PAGEBLOCK_FRAMES;
use freehold_paging::Memory;

use super::runs::Runs;
use super::{Claim, HugeBudget, Reserve};
use crate::{Commons, VmError};

/// The pages. Each has the hold of this list, and one of each leaf.
pub(crate) struct HugePages<S: Memory> {
    commons: Arc<Commons<S>>,
    /// That of the file's mount.
    budget: Option<Arc<HugeBudget<S>>>,
    index: spin::Mutex<HugeIndex<S>>,
}

struct HugeIndex<S: Memory> {
    pages: BTreeMap<u64, HugeSlot<S>>,
    accounted: Runs,
    /// Accounted numbers without a page.
    reserved: u64,
}

enum HugeSlot<S: Memory> {
    /// A task makes the page.
    Making,
    Present(LargeMapping<S>),
}

/// The state of a number for a task that wants its page.
enum HugeLookup<S: Memory> {
    /// A further hold of the page, if it can have one.
    Page(Option<LargeMapping<S>>),
    /// Another task makes the page.
    Making,
    /// The caller makes it.
    Absent(PageSource),
}

/// The page that a new page of a file is taken from.
#[derive(Clone, Copy)]
enum PageSource {
    /// One that the file has reserved.
    Own,
    /// One that the mount keeps.
    Kept,
    /// A free one.
    Pool,
}

impl PageSource {
    const fn claim(self) -> Claim {
        match self {
            Self::Own | Self::Kept => Claim::Reserved,
            Self::Pool => Claim::Free,
        }
    }
}

impl<S: Memory> HugePages<S> {
    pub(super) fn new(commons: &Arc<Commons<S>>, budget: Option<Arc<HugeBudget<S>>>) -> Arc<Self> {
        let index = HugeIndex { pages: BTreeMap::new(), accounted: Runs::new(), reserved: 0 };
        Arc::new(Self { commons: commons.clone(), budget, index: spin::Mutex::new(index) })
    }

    /// Reserves `count` pages, which are the caller's to account for: those of a private mapping.
    ///
    /// # Errors
    /// [`VmError::NoHugePage`].
    pub(super) fn promise(&self, count: u64) -> Result<(), VmError> {
        let of_pool = self.budget.as_ref().map_or(Ok(count), |budget| budget.take(count))?;
        self.commons.reserve_huge(of_pool).inspect_err(|_| self.release(count, count - of_pool))
    }

    /// Takes back `count` pages of the budget, `reserved` of which are reserved.
    pub(super) fn release(&self, count: u64, reserved: u64) {
        let freed = self.budget.as_ref().map_or(reserved, |budget| budget.give_back(count, reserved));
        self.commons.unreserve_huge(freed);
    }

    /// Reserves those pages of `range` that are not accounted.
    ///
    /// # Errors
    /// [`VmError::NoHugePage`], [`VmError::NoMemory`].
    pub(super) fn reserve(&self, range: Range<u64>) -> Result<(), VmError> {
        if range.is_empty() {
            return Ok(());
        }
        loop {
            self.commons.source.ensure_objects()?;
            let missing = |index: &HugeIndex<S>| range.end - range.start - index.accounted.count(&range);
            let wanted = missing(&self.index.lock());
            self.promise(wanted)?;
            let mut index = self.index.lock();
            if missing(&index) == wanted {
                index.accounted.add(range);
                index.reserved += wanted;
                return Ok(());
            }
            // Another task has reserved or removed pages meanwhile.
            drop(index);
            self.release(wanted, wanted);
        }
    }

    /// A further hold of page `number`, which is made if need be; `None` without a free page.
    pub(super) fn page(&self, number: u64, place: NodePolicy) -> Option<LargeMapping<S>> {
        loop {
            self.commons.source.ensure_objects().ok()?;
            match self.begin(number) {
                HugeLookup::Page(hold) => return hold,
                HugeLookup::Making => self.commons.source.rest(),
                HugeLookup::Absent(source) => {
                    let made = self.commons.new_huge(place, source.claim());
                    return self.finish(number, source, made);
                }
            }
        }
    }

    /// A further hold of page `number`; `None` for a hole.
    pub(super) fn present(&self, number: u64) -> Option<LargeMapping<S>> {
        loop {
            match self.index.lock().pages.get(&number)? {
                HugeSlot::Present(page) => return page.share().ok(),
                HugeSlot::Making => {}
            }
            self.commons.source.rest();
        }
    }

    /// Drops a hold of a page.
    pub(super) fn give_back(&self, hold: LargeMapping<S>) {
        self.commons.put_huge(hold, Reserve::None);
    }

    fn begin(&self, number: u64) -> HugeLookup<S> {
        let mut index = self.index.lock();
        match index.pages.get(&number) {
            Some(HugeSlot::Present(page)) => return HugeLookup::Page(page.share().ok()),
            Some(HugeSlot::Making) => return HugeLookup::Making,
            None => {}
        }
        let source = if index.accounted.contains(number) {
            index.reserved -= 1;
            PageSource::Own
        } else {
            let of_pool = match self.budget.as_ref().map_or(Ok(1), |budget| budget.take(1)) {
                Ok(of_pool) => of_pool,
                Err(_) => return HugeLookup::Page(None),
            };
            index.accounted.add(number..number + 1);
            if of_pool == 0 { PageSource::Kept } else { PageSource::Pool }
        };
        index.pages.insert(number, HugeSlot::Making);
        HugeLookup::Absent(source)
    }

    fn finish(
        &self,
        number: u64,
        source: PageSource,
        made: Option<LargeMapping<S>>,
    ) -> Option<LargeMapping<S>> {
        let mut index = self.index.lock();
        let Some(page) = made else {
            index.pages.remove(&number);
            if matches!(source, PageSource::Own) {
                index.reserved += 1;
            } else {
                index.accounted.remove(number..number + 1);
                drop(index);
                self.release(1, u64::from(matches!(source, PageSource::Kept)));
            }
            return None;
        };
        let hold = page.share().ok();
        index.pages.insert(number, HugeSlot::Present(page));
        hold
    }

    /// Takes the first page of `range` out: its number keeps a reservation, or is accounted no
    /// more, as `left` says. Returns the number.
    fn take_out(&self, range: Range<u64>, left: Reserve) -> Option<u64> {
        let mut index = self.index.lock();
        let is_page = |slot: &HugeSlot<S>| matches!(slot, HugeSlot::Present(_));
        let number = index.pages.range(range).find(|(_, slot)| is_page(slot)).map(|(&number, _)| number)?;
        let Some(HugeSlot::Present(page)) = index.pages.remove(&number) else { return None };
        if left == Reserve::Own {
            index.reserved += 1;
        } else {
            index.accounted.remove(number..number + 1);
        }
        drop(index);
        // As a reserved one, until the budget has decided.
        self.commons.put_huge(page, Reserve::Own);
        if left != Reserve::Own {
            self.release(1, 1);
        }
        Some(number)
    }

    /// Removes all pages and reservations from number `from` on, where no task makes a page.
    /// Returns whether there were pages.
    pub(super) fn cut(&self, from: u64) -> bool {
        let mut had_pages = false;
        while self.take_out(from..u64::MAX, Reserve::Own).is_some() {
            had_pages = true;
            self.commons.source.rest();
        }
        let mut index = self.index.lock();
        let gone = index.accounted.count(&(from..u64::MAX));
        index.accounted.remove(from..u64::MAX);
        index.reserved -= gone;
        drop(index);
        self.release(gone, gone);
        had_pages
    }

    /// Removes the pages of `range`; their numbers are accounted no more.
    pub(super) fn punch(&self, range: Range<u64>) {
        let mut next = range.start;
        loop {
            // Without memory for a shorter run, the page leaves a reservation.
            let is_short = self.commons.source.ensure_objects().is_err();
            let left = if is_short { Reserve::Own } else { Reserve::None };
            let Some(gone) = self.take_out(next..range.end, left) else { return };
            next = gone + 1;
            self.commons.source.rest();
        }
    }

    /// The number of pages.
    pub(super) fn count(&self) -> u64 {
        self.index.lock().pages.len() as u64
    }

    /// Checks that no frame of the first page from number `from` on is referenced or pinned.
    /// Returns the number to continue with, `None` at the end.
    ///
    /// # Errors
    /// [`VmError::Busy`].
    pub(super) fn check_unpinned(&self, from: u64) -> Result<Option<u64>, VmError> {
        let index = self.index.lock();
        let Some((&number, slot)) = index.pages.range(from..).next() else { return Ok(None) };
        let HugeSlot::Present(page) = slot else { return Ok(Some(number + 1)) };
        let is_held = |frame| {
            let holders = page.holders(frame);
            holders.references > 0 || holders.pins > 0
        };
        // All frames of a whole page have the same holders, its leaves.
        let is_busy = !page.holders(0).whole && (0..PAGEBLOCK_FRAMES).any(is_held);
        if is_busy { Err(VmError::Busy) } else { Ok(Some(number + 1)) }
    }
}

impl<S: Memory> Drop for HugePages<S> {
    fn drop(&mut self) {
        let index = self.index.get_mut();
        let mut gone = index.reserved;
        while let Some((_, slot)) = index.pages.pop_first() {
            if let HugeSlot::Present(page) = slot {
                self.commons.put_huge(page, Reserve::Own);
                gone += 1;
            }
        }
        self.release(gone, gone);
    }
}
