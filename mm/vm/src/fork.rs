//! fork: the child shares what can be shared and gets copies of what cannot.
//!
//! Per anonymous frame, one atomic step decides: *share* fails exactly where a pin is live, and then the child gets a copy at once while
//! the parent keeps its frame, its rights and its pin. The parent's writable leaves become read-only and are
//! flushed before this returns, so nothing that the parent writes from then on is seen by the child.
//!
//! File pages are not copied: the child faults them in again, many at a time, from the page cache that holds them anyway.

use core::ops::Range;

use freehold_frame::{Anon, Mapping, OutOfMemory};
use freehold_machine::{PAGEBLOCK_FRAMES, VirtAddr};
use freehold_paging::{Backing, Cursor, Entry, FlushBatch, Marks, Memory, PageSize, Rights, Slot, SwapPlace};

use crate::area::Area;
use crate::request::AreaFlags;
use crate::resident::{Resident, leaf};
use crate::{AddressSpace, VmError};

impl<S: Memory> AddressSpace<S> {
    /// A copy-on-write twin. Locks on memory and what was advised against inheriting stay behind.
    ///
    /// # Errors
    /// [`VmError::NoMemory`]; this space is as before, if with fewer pages writable at once.
    pub fn fork(&mut self) -> Result<Self, VmError> {
        let mut child = Self::new(&self.resident.commons, self.layout)?;
        child.brk_base = self.brk_base;
        child.brk = self.brk;
        child.commit_limit = self.commit_limit;
        child.resident.huge = self.resident.huge;
        let Self { areas, resident, .. } = self;
        let mut batch = resident.tables.batch();
        for area in areas.iter().filter(|area| !area.flags.contains(AreaFlags::DONTFORK)) {
            let (content, copied) = (area.content.attached_to(child.id), area.copied.clone());
            let mut twin = Area { content, copied, ..*area };
            twin.flags.remove(AreaFlags::LOCKED | AreaFlags::LOCK_ON_FAULT);
            child.count_in(twin.pages());
            // Before its pages: a child that is given up half way finds them by its areas.
            child.areas.insert(twin);
            let inherits = area.may_have_own_frames() && !area.flags.contains(AreaFlags::WIPEONFORK);
            if inherits {
                resident.fork_pages(area, &mut child.resident, &mut batch)?;
            }
        }
        drop(batch);
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
        while let Some(at) = self.fork_run(area, from..area.end, child, batch)? {
            // A piece of the large page there is pinned: the others are shared, it is copied.
            self.split(at, batch)?;
            from = at;
        }
        Ok(())
    }

    /// As [`Resident::fork_pages`], up to the first large page that cannot be shared as one: where that is.
    fn fork_run(
        &self,
        area: &Area<S>,
        range: Range<VirtAddr>,
        child: &mut Self,
        batch: &mut FlushBatch<S>,
    ) -> Result<Option<VirtAddr>, OutOfMemory> {
        let mut outcome = Ok(());
        let mut stopped = None;
        let (mut anonymous, mut large, mut swapped) = (0, 0, 0);
        let mut cursor = child.tables.cursor();
        self.tables.visit_all(range, |addr, slot, entry, size| {
            if outcome.is_err() || stopped.is_some() {
                return;
            }
            if let Some(place) = entry.swap_place() {
                match self.fork_swapped(place, entry, cursor.make(addr)) {
                    Ok(()) => swapped += 1,
                    Err(error) => outcome = Err(error),
                }
            } else if size == PageSize::Small {
                match self.fork_page(area, addr, slot, entry, &mut cursor, batch) {
                    Ok(pages) => anonymous += pages,
                    Err(error) => outcome = Err(error),
                }
            } else {
                match cursor.make_large(addr).map(|to| self.fork_large(addr, slot, entry, to, batch)) {
                    Ok(Some(pages)) => {
                        anonymous += pages;
                        large += 1;
                    }
                    Ok(None) => stopped = Some(addr),
                    Err(error) => outcome = Err(error),
                }
            }
        });
        child.rss.anon += anonymous;
        child.large += large;
        child.swapped += swapped;
        outcome.map(|()| stopped)
    }

    /// Give the child the large page at `addr`; how many anonymous pages that are. `None` where it cannot be shared as one.
    fn fork_large(
        &self,
        addr: VirtAddr,
        slot: Slot<S::Machine>,
        entry: Entry,
        to: Slot<S::Machine>,
        batch: &mut FlushBatch<S>,
    ) -> Option<u64> {
        let Some(block) = self.block_of(entry) else {
            to.fill(entry);
            return Some(0);
        };
        let twin = block.share().ok()?;
        let read_only = entry.rights().without(Rights::WRITE);
        if entry.is_writable() {
            batch.restricted(addr, slot.update_from(entry, |entry| entry.with_rights(read_only)));
        }
        let twin = Entry::leaf(twin.into_leaf(), read_only, Marks::Dirty, Backing::Counted).large();
        to.fill(twin.with_soft_dirty_of(entry));
        self.count_leaves(1);
        Some(PAGEBLOCK_FRAMES)
    }

    /// Give the child the page that is at `place`, which `entry` says: the slot's count has it no longer this space's alone.
    fn fork_swapped(
        &self,
        place: SwapPlace,
        entry: Entry,
        to: Result<Slot<S::Machine>, OutOfMemory>,
    ) -> Result<(), OutOfMemory> {
        let to = to?;
        self.commons.swap.enter(place)?;
        to.fill(entry);
        Ok(())
    }

    /// Give the child the page at `addr`, unless that is a file's; how many anonymous pages that are.
    #[inline]
    fn fork_page(
        &self,
        area: &Area<S>,
        addr: VirtAddr,
        slot: Slot<S::Machine>,
        entry: Entry,
        cursor: &mut Cursor<'_, S>,
        batch: &mut FlushBatch<S>,
    ) -> Result<u64, OutOfMemory> {
        if entry.backing() == Backing::Uncounted {
            cursor.make(addr)?.fill(entry);
            return Ok(0);
        }
        let Ok(mapping) = Mapping::<Anon, S>::borrow_leaf(self.source(), entry.frame()) else { return Ok(0) };
        let to = cursor.make(addr)?;
        let twin = match mapping.share() {
            Ok(twin) => twin,
            Err(pinned) => {
                let copy = self.copy_of(pinned, self.place(area, addr))?;
                to.fill(leaf(copy, area.protection.rights(), Marks::Dirty));
                return Ok(1);
            }
        };
        let read_only = entry.rights().without(Rights::WRITE);
        to.fill(leaf(twin, read_only, Marks::Dirty).with_soft_dirty_of(entry));
        if entry.is_writable() {
            batch.restricted(addr, slot.update_from(entry, |entry| entry.with_rights(read_only)));
        }
        Ok(1)
    }
}
