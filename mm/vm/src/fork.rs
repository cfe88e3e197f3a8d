//! fork: the child shares frames that can be shared and gets copies of the others.
//!
//! Per anonymous frame, one atomic step decides: *share* fails exactly if there is a pin, and then
//! the child gets a copy at once while the parent keeps its frame, its rights and its pin. The
//! parent's writable leaves become read-only and are flushed before this returns, so nothing that
//! the parent writes from then on is seen by the child.
//!
//! File pages are not copied: the child faults them in again, many at a time, from the page cache
//! that holds them anyway.

use core::ops::Range;

use freehold_frame::{Anon, LeafMapping, OutOfMemory};
use freehold_machine::{PAGEBLOCK_FRAMES, VirtAddr};
use freehold_paging::{
    Backing, Entry, EntryAt, FlushBatch, Leaves, Marks, Memory, PageSize, Reached, Slot, SwapPlace,
};

use crate::area::Area;
use crate::request::AreaFlags;
use crate::resident::{Resident, leaf};
use crate::{AddressSpace, VmError};

impl<S: Memory> AddressSpace<S> {
    /// Makes a copy-on-write twin. Locks on memory, and areas with advice against inheritance, are
    /// not inherited.
    ///
    /// # Errors
    /// [`VmError::NoMemory`]; this space is unchanged, except that fewer pages are writable without
    /// a fault.
    pub fn fork(&mut self) -> Result<Self, VmError> {
        let mut child = Self::new(&self.resident.commons, self.layout)?;
        child.brk_base = self.brk_base;
        child.brk = self.brk;
        child.merges_all = self.merges_all;
        child.keys = self.keys;
        child.resident.huge = self.resident.huge;
        child.resident.offsets = self.resident.offsets.clone();
        let Self { areas, resident, .. } = self;
        let mut is_monitored = false;
        // Areas are copied before their pages: if the fork fails half way, the child frees its
        // pages by its areas.
        child.areas = areas.twins(|area| {
            // One area's objects are few; there may be 65,530 areas.
            resident.source().ensure_objects()?;
            let (content, copied) = (area.content.attached_to(child.id), area.copied.clone());
            is_monitored |= area.is_monitored();
            let left = AreaFlags::LOCKED | AreaFlags::LOCK_ON_FAULT | AreaFlags::MONITORED;
            let flags = area.flags.difference(left);
            Ok(Area { content, copied, flags, monitor: None, ..*area })
        })?;
        child.promise_areas()?;
        let mut batch = resident.tables.batch();
        for area in areas.inherited() {
            resident.source().rest();
            child.count_in(area.pages());
            let has_pages = area.may_have_own_frames() && !area.flags.contains(AreaFlags::WIPEONFORK);
            if has_pages {
                resident.fork_pages(area, &mut child.resident, &mut batch)?;
            } else if area.huge_view().is_some_and(|view| view.shared.is_none()) {
                resident.fork_huge(area, &mut child.resident, &mut batch)?;
            }
        }
        drop(batch);
        if is_monitored {
            // Areas that differed only by their monitor no longer differ.
            child.areas.join(VirtAddr(0)..VirtAddr(u64::MAX));
        }
        child.resident.note_peak();
        Ok(child)
    }
}

impl<S: Memory> Resident<S> {
    /// Give the child the private pages of `area`.
    fn fork_pages(
        &mut self,
        area: &Area<S>,
        child: &mut Self,
        batch: &mut FlushBatch<S>,
    ) -> Result<(), OutOfMemory> {
        let mut from = area.start;
        while let Some(at) = (Fork { parent: self, area, batch }).run(from..area.end, child)? {
            // A piece of the large page there is pinned: the others are shared, it is copied.
            self.split(at, batch)?;
            from = at;
        }
        Ok(())
    }
}

/// State of copying the pages of `area` to a child. Rights that the parent's leaves lose go to
/// `batch`.
struct Fork<'a, S: Memory> {
    parent: &'a Resident<S>,
    area: &'a Area<S>,
    batch: &'a mut FlushBatch<S>,
}

impl<S: Memory> Fork<'_, S> {
    /// Gives the child the pages of `range`, up to the first large page that cannot be shared as a
    /// whole; returns its address.
    fn run(
        &mut self,
        range: Range<VirtAddr>,
        child: &mut Resident<S>,
    ) -> Result<Option<VirtAddr>, OutOfMemory> {
        let mut outcome = Ok(());
        let mut stopped = None;
        self.parent.tables.visit_tables(range, |reached| {
            if outcome.is_err() || stopped.is_some() {
                return;
            }
            match reached {
                Reached::Leaves(leaves) => outcome = self.leaves(&leaves, child),
                Reached::Large(from) => match child.tables.make(from.addr, PageSize::Large) {
                    Ok(to) => match self.large(from, to) {
                        Some(pages) => {
                            child.rss.anon += pages;
                            child.large += 1;
                        }
                        None => stopped = Some(from.addr),
                    },
                    Err(error) => outcome = Err(error),
                },
            }
        });
        outcome.map(|()| stopped)
    }

    /// Give the child the private pages of one table, in memory or not.
    fn leaves(&mut self, from: &Leaves<S::Machine>, child: &mut Resident<S>) -> Result<(), OutOfMemory> {
        let mut outcome = Ok(());
        let (mut anonymous, mut swapped) = (0, 0);
        // Made for the first page that the child gets: it gets no pages of files.
        let mut table = None;
        from.each(|index, entry| {
            if outcome.is_err() {
                return;
            }
            let mut to = || match &table {
                Some(table) => Ok(Leaves::slot(table, index)),
                None => {
                    let made = child.tables.make_leaves(from.addr(index))?;
                    Ok(table.insert(made).slot(index))
                }
            };
            let done = match entry.swap_place() {
                None => self.page(from, index, entry, &mut to).map(|pages| anonymous += pages),
                Some(place) => self.swapped(place, entry, to()).map(|()| swapped += 1),
            };
            if let Err(error) = done {
                outcome = Err(error);
            }
        });
        child.rss.anon += anonymous;
        child.swapped += swapped;
        outcome
    }

    /// Gives the child the large page `from`; returns the number of its anonymous pages. `None` if
    /// it cannot be shared as a whole.
    fn large(&mut self, from: EntryAt<S::Machine>, to: Slot<S::Machine>) -> Option<u64> {
        let EntryAt { addr, slot, entry } = from;
        let Some(block) = self.parent.block_of(entry) else {
            to.fill(entry.unwatched());
            return Some(0);
        };
        let twin = block.share().ok()?;
        if entry.is_writable() {
            self.batch.restricted(addr, slot.update_from(entry, Entry::write_protected));
        }
        twin.into_leaf();
        to.fill(entry.inherited());
        self.parent.count_leaves(1);
        Some(PAGEBLOCK_FRAMES)
    }

    /// Gives the child the swapped page of `entry` at `place`: the slot's count then shows that
    /// this space is not the only user.
    fn swapped(
        &self,
        place: SwapPlace,
        entry: Entry,
        to: Result<Slot<S::Machine>, OutOfMemory>,
    ) -> Result<(), OutOfMemory> {
        let to = to?;
        self.parent.commons.swap.enter(place)?;
        to.fill(entry.unwatched());
        Ok(())
    }

    /// Give the child the page whose leaf is entry `index` of `from`, unless it is a file's page;
    /// returns the number of anonymous pages.
    #[inline]
    fn page(
        &mut self,
        from: &Leaves<S::Machine>,
        index: usize,
        entry: Entry,
        to: &mut impl FnMut() -> Result<Slot<S::Machine>, OutOfMemory>,
    ) -> Result<u64, OutOfMemory> {
        if entry.backing() == Backing::Uncounted {
            to()?.fill(entry.unwatched());
            return Ok(0);
        }
        let parent = self.parent;
        let Ok(mapping) = LeafMapping::<Anon, S>::borrow_leaf(parent.source(), entry.frame()) else {
            return Ok(0);
        };
        let to = to()?;
        match mapping.share() {
            Ok(twin) => {
                twin.into_leaf();
                to.fill(entry.inherited());
            }
            Err(pinned) => {
                let copy = parent.copy_of(pinned, parent.place(self.area, from.addr(index)))?;
                to.fill(leaf(copy, self.area.rights(), Marks::Dirty));
                return Ok(1);
            }
        }
        if entry.is_writable() {
            self.batch
                .restricted(from.addr(index), from.slot(index).update_from(entry, Entry::write_protected));
        }
        Ok(1)
    }
}
