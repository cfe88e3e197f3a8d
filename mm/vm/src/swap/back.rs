//! Bringing pages back: faults, read-ahead, swapoff.
//!
//! **Read-ahead.** Neighbouring pages are evicted together and get neighbouring slots. When a page
//! is needed, its neighbours with adjacent slots are read together with it into the swap cache.
//! Their number depends on how many of the earlier read-ahead pages were used.
//!
//! **swapoff** takes the area out of use for new pages and brings every page back, space by space;
//! a page that cannot be read is lost for its processes only, which get a bus error on access.

use arrayvec::ArrayVec;
use core::ops::{ControlFlow, Range};

use freehold_frame::{Anon, Belongs, Frame, Held, OutOfMemory, Owner, Request};
use freehold_machine::{PAGE, VirtAddr};
use freehold_paging::{Entry, EntryAt, Marks, Memory, PageSize, Rights, SwapPlace};

use super::{AreaState, SWAP_RUN, Swap, SwapArea, SwapStore, UnmappedPage, area_of, read_frames};
use crate::area::Area;
use crate::error::{FaultError, FaultKind, VmError};
use crate::events::Event;
use crate::registry::Locking;
use crate::resident::{LeafKind, Resident, Want, leaf};
use crate::{AddressSpace, Commons};

/// A page that is not in memory: its address, and the place that has its bytes.
#[derive(Clone, Copy)]
struct Away {
    addr: VirtAddr,
    place: SwapPlace,
}

impl<S: Memory> Resident<S> {
    /// Brings the page at `addr` back from the swap place in `entry`.
    pub(crate) fn swap_in(
        &mut self,
        area: &Area<S>,
        EntryAt { addr, slot, entry }: EntryAt<S::Machine>,
        want: Want,
    ) -> Result<FaultKind, FaultError> {
        let place = entry.swap_place().filter(|&place| place != SwapPlace::LOST).ok_or(FaultError::Bus)?;
        let (frame, kind) = match self.commons.swap.find(place)? {
            UnmappedPage::Cached(frame) => (frame, FaultKind::Minor),
            UnmappedPage::ReadAhead(frame) => {
                self.commons.count(Event::SwapAheadHit);
                (frame, FaultKind::Minor)
            }
            UnmappedPage::Stored(store) => {
                let window = self.commons.swap.ahead.window(place.slot);
                (self.read_in(area, Away { addr, place }, window.into(), &*store)?, FaultKind::Major)
            }
        };
        let (mapping, belongs) = self.commons.swap.redeem(place, frame)?;
        let own = belongs == Belongs::Exclusive;
        let full = area.rights();
        let noticed = want == Want::Write || entry.is_soft_dirty() || !area.tracks_stores();
        // The next store is first reported to the monitor.
        let may_write = own && noticed && !entry.is_watched();
        let rights = if may_write { full } else { full.without(Rights::WRITE) };
        let new = leaf(mapping, rights, Marks::Dirty);
        slot.replace(if own && want == Want::Write { new } else { new.with_soft_dirty_of(entry) });
        self.swapped -= 1;
        self.count(area, LeafKind::Anon);
        if want == Want::Write && !own {
            self.fault_write(area, EntryAt { addr, slot, entry: slot.load() })?;
        }
        Ok(kind)
    }

    /// Reads the page `away`, and up to `window` pages around it; these are added to the swap
    /// cache.
    fn read_in(
        &self,
        area: &Area<S>,
        away: Away,
        window: u64,
        store: &dyn SwapStore,
    ) -> Result<Frame<Anon, S>, FaultError> {
        let Away { addr, place } = away;
        let (before, after) = self.neighbours(area, away, window);
        let commons = &self.commons;
        let new = |slot: u64| {
            let request = Request::new(Owner::Anon).policy(self.place(area, addr));
            let payer = commons.swap.payer_of(SwapPlace { slot, ..place });
            Frame::<Anon, S>::allocate_for(self.source(), payer, request)
        };
        let mut wanted = new(place.slot)?;
        let mut frames = ArrayVec::<Frame<Anon, S>, SWAP_RUN>::new();
        let others = (place.slot - before..=place.slot + after).filter(|&slot| slot != place.slot);
        frames.extend(others.map_while(|slot| new(slot).ok()));
        if frames.len() as u64 == before + after && !frames.is_empty() {
            let first = place.slot - before;
            frames.insert(before as usize, wanted);
            let (read, count) = (read_frames(store, first, &frames), frames.len() as u64);
            wanted = frames.remove(before as usize);
            if read.is_ok() {
                commons.count_many(Event::SwapIn, count);
                commons.count_many(Event::SwapAhead, frames.len() as u64);
                let slots = (first..).filter(|&slot| slot != place.slot);
                for (slot, frame) in slots.zip(frames) {
                    commons.swap.keep_for_later(SwapPlace { slot, ..place }, frame);
                }
                return Ok(wanted);
            }
        }
        // The unreadable page may be one of those read ahead.
        store.read(place.slot, &[wanted.held()])?;
        commons.count_many(Event::SwapIn, 1);
        Ok(wanted)
    }

    /// Returns how many pages before and after `away`, in the `window` around it, have adjacent
    /// slots in the same order and are not in the swap cache.
    fn neighbours(&self, area: &Area<S>, away: Away, window: u64) -> (u64, u64) {
        let Away { addr, place } = away;
        let bytes = window.clamp(1, SWAP_RUN as u64).next_power_of_two() * PAGE;
        let start = VirtAddr(addr.0 & !(bytes - 1));
        let before = (addr.0 - start.max(area.start).0) / PAGE;
        let after = (VirtAddr(start.0 + bytes).min(area.end).0 - addr.0) / PAGE - 1;
        let beside = |at: u64, slot: Option<u64>| {
            let wanted = slot.map(|slot| SwapPlace { slot, ..place });
            wanted.is_some_and(|wanted| {
                self.tables.entry(VirtAddr(at)).swap_place() == Some(wanted)
                    && !self.commons.swap.is_cached(wanted)
            })
        };
        let below = (1..=before).take_while(|n| beside(addr.0 - n * PAGE, place.slot.checked_sub(*n)));
        let above = (1..=after).take_while(|n| beside(addr.0 + n * PAGE, Some(place.slot + n)));
        (below.count() as u64, above.count() as u64)
    }

    /// Some of the pages of `range` that are in `area`, or in any, in order, and the address at
    /// which to continue.
    fn swapped_pages(
        &self,
        range: Range<VirtAddr>,
        area: Option<SwapArea>,
    ) -> (ArrayVec<(VirtAddr, Entry, SwapPlace), SWAP_RUN>, VirtAddr) {
        let mut found = ArrayVec::new();
        let Some(at) = self.tables.next_populated(range.clone()) else { return (found, range.end) };
        let mut next = VirtAddr((at.0 | (PageSize::Large.bytes() - 1)) + 1).min(range.end);
        self.tables.visit_all(at..next, |addr, _, entry, _| {
            let Some(place) = entry.swap_place().filter(|&place| place != SwapPlace::LOST) else { return };
            if area.is_none_or(|area| area.0 == place.area)
                && addr < next
                && found.try_push((addr, entry, place)).is_err()
            {
                next = addr;
            }
        });
        (found, next)
    }

    /// Maps again the pages of `range`, which is part of `area` and of one table, that no store has
    /// accepted. Afterwards they are ordinary pages.
    pub(super) fn take_dirty_back(&mut self, area: &Area<S>, range: Range<VirtAddr>) {
        let mut next = range.start;
        while next < range.end {
            let (pages, resume) = self.swapped_pages(next..range.end, None);
            for (addr, _, place) in pages {
                if self.commons.swap.is_dirty(place) {
                    // Their frames are there, and a page that cannot be mapped now waits for the
                    // next walk.
                    let _ = self.fault(area, addr, Want::Read);
                }
            }
            next = resume;
        }
    }

    /// Bring all pages of `range`, which is part of `area`, back.
    pub(crate) fn bring_in(&mut self, area: &Area<S>, range: Range<VirtAddr>) -> Result<(), FaultError> {
        let mut next = range.start;
        while self.swapped > 0 && next < range.end {
            let (pages, resume) = self.swapped_pages(next..range.end, None);
            for (addr, ..) in pages {
                self.fault(area, addr, Want::Read)?;
            }
            next = resume;
        }
        Ok(())
    }

    /// Read the pages of `range`, which is part of `area`, into the swap cache, as long as there is
    /// memory.
    pub(crate) fn read_ahead(&self, area: &Area<S>, range: Range<VirtAddr>) {
        let mut next = range.start;
        while self.swapped > 0 && next < range.end {
            let (pages, resume) = self.swapped_pages(next..range.end, None);
            for (addr, _, place) in pages {
                let Ok(UnmappedPage::Stored(store)) = self.commons.swap.find(place) else { continue };
                let Ok(frame) = self.read_in(area, Away { addr, place }, SWAP_RUN as u64, &*store) else {
                    return;
                };
                self.commons.swap.keep_for_later(place, frame);
            }
            next = resume;
        }
    }
}

impl<S: Memory> AddressSpace<S> {
    /// Brings back some pages that are in `swap`, from `from` on; returns the address at which to
    /// continue, `None` at the end.
    fn bring_back(&mut self, swap: SwapArea, from: VirtAddr) -> Result<Option<VirtAddr>, OutOfMemory> {
        let Self { areas, resident, layout, .. } = self;
        if resident.swapped == 0 || from >= layout.end {
            return Ok(None);
        }
        let (pages, next) = resident.swapped_pages(from..layout.end, Some(swap));
        for (addr, entry, place) in pages {
            let Some(area) = areas.at(addr) else { continue };
            match resident.fault(area, addr, Want::Read) {
                Err(FaultError::OutOfMemory) => return Err(OutOfMemory),
                Err(_) => resident.lose(addr, entry, place),
                Ok(_) => {}
            }
        }
        Ok(Some(next))
    }
}

impl<S: Memory> Resident<S> {
    /// Marks the page at `addr` as lost: it cannot be read, and its area is switched off.
    fn lose(&mut self, addr: VirtAddr, entry: Entry, place: SwapPlace) {
        if let Some((slot, PageSize::Small)) = self.tables.find(addr) {
            slot.replace(Entry::swapped(SwapPlace::LOST).with_soft_dirty_of(entry));
            self.commons.swap.leave(place);
        }
    }
}

impl<S: Memory> Commons<S> {
    /// Brings back all pages that are in `area`, and stops using it. `go_on` is called between
    /// steps, while no lock is held. `find` is called to free memory when it runs out. Meanwhile no
    /// page is swapped out to the area, so the number of its pages only decreases.
    ///
    /// # Errors
    /// [`VmError::Invalid`] where there is no such area, or another task does this already;
    /// [`VmError::NoMemory`] (if `find` found none) and [`VmError::Again`] (if `go_on` returned
    /// false): the area is in use as before.
    pub fn swap_off(
        &self,
        area: SwapArea,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
        find: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(), VmError> {
        self.swap.change_state(area, AreaState::On, AreaState::Leaving)?;
        let outcome = loop {
            match self.empty_area(area, go_on) {
                Err(VmError::NoMemory) if find().is_continue() => {}
                outcome => break outcome,
            }
        };
        if outcome.is_err() {
            self.swap.change_state(area, AreaState::Leaving, AreaState::On)?;
        }
        outcome
    }

    fn empty_area(&self, area: SwapArea, go_on: &mut dyn FnMut() -> ControlFlow<()>) -> Result<(), VmError> {
        // More than one round only for pages that are being written, and for children that are not
        // in the list of spaces yet.
        while !self.swap.remove_if_empty(area) {
            let mut last = 0;
            while let Some((id, handle)) = self.next_space(last) {
                let mut step = Ok(Some(VirtAddr(0)));
                while let Ok(Some(from)) = step {
                    handle.with(Locking::Wait, &mut |space| step = space.bring_back(area, from));
                    if go_on().is_break() {
                        return Err(VmError::Again);
                    }
                }
                step?;
                last = id;
            }
            self.bring_back_shared(area, go_on)?;
            if go_on().is_break() {
                return Err(VmError::Again);
            }
        }
        Ok(())
    }
}

impl<S: Memory> Swap<S> {
    fn change_state(&self, area: SwapArea, from: AreaState, to: AreaState) -> Result<(), VmError> {
        let mut areas = self.areas.lock();
        let area = area_of(&mut areas, SwapPlace { area: area.0, slot: 0 });
        let area = area.filter(|area| area.state == from).ok_or(VmError::Invalid)?;
        area.state = to;
        Ok(())
    }

    /// Removes the area if it has no pages; returns whether it did.
    fn remove_if_empty(&self, area: SwapArea) -> bool {
        let mut areas = self.areas.lock();
        let place = &mut areas[usize::from(area.0)];
        let gone = place.take_if(|area| area.slots.free() == area.slots.usable());
        drop(areas);
        if gone.is_some() {
            self.count.fetch_sub(1, core::sync::atomic::Ordering::Release);
        }
        gone.is_some()
    }
}
