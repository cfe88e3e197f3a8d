//! Pages of shared memory and of files in memory that are in the swap.
//!
//! The index has a slot instead of a frame, and holds the slot's only entry. An access to the page
//! reads it into a new frame, and the slot is free again. So there is no swap cache of such pages:
//! a page is in one place only.
//!
//! | step | under which locks | page |
//! |---|---|---|
//! | unmap | each space in turn | was not used since the last look; its frame has the index' reference only |
//! | begin | the cache | *leaving*; this call holds a reference more |
//! | write | none | a lookup meanwhile gets the frame as ever, and the page is leaving no more |
//! | end | the cache | still leaving, so the frame has no other holder: the index names the slot, the frame is free; else it stays, and the slot is free |
//! | in: enter | the cache, swap | in its slot, which cannot be used for others: this call has an entry more |
//! | read | a space's, where it faulted (and the device) | |
//! | put | the cache | if it is still in that slot: the frame is the index' |
//!
//! *Leaving* decides whether the written bytes are the page's last ones. Every store to the page
//! got its frame from the index, or from a mapping, which also got it there. A caller that gets the
//! frame clears *leaving*, even if the caller releases the frame before the end. This includes pins
//! and references of devices. Truncation removes the frame or slot from the index; the end then
//! finds neither.
//!
//! A page that cannot be written stays in memory; the next attempt uses another slot. A page that
//! cannot be read causes an error (a bus error through a mapping), and stays in the swap; when its
//! area is switched off, the page is lost.
//!
//! **Locks.** The cache's, then the swap's. Stores are called with neither.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::{ControlFlow, Range};
use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use freehold_frame::{AccountId, Frame, NodePolicy, Owner, PageCache as CacheKind, Request};
use freehold_machine::{Pfn, VirtAddr};
use freehold_paging::{Memory, SwapPlace};

use super::index::ChunkPages;
use super::{FoundFrame, MAX_RUN, PAGE, PageCache};
use crate::error::{FaultKind, VmError};
use crate::events::Event;
use crate::registry::{Locking, SpaceHandle, once_around};
use crate::resident::LeafKind;
use crate::swap::{Age, EvictWish, SWAP_RUN, SwapArea, SwapEvicted, Wrote, read_frames};
use crate::{AddressSpace, Commons, FrameChoice};

/// Number of pages that one scan covers.
const CHUNK: u64 = 64;
/// Smallest number of pages of one cache that a visit scans.
const LEAST: u64 = CHUNK;

/// Pages that are being swapped out: their destination, and for each its number and a reference to
/// its frame.
struct Outgoing<S: Memory> {
    places: ArrayVec<(SwapPlace, Pfn), SWAP_RUN>,
    pages: ArrayVec<(u64, Frame<CacheKind, S>), SWAP_RUN>,
}

impl<S: Memory> Default for Outgoing<S> {
    fn default() -> Self {
        Self { places: ArrayVec::new(), pages: ArrayVec::new() }
    }
}

impl<S: Memory> Commons<S> {
    /// Frees frames by writing pages of shared memory and of files in memory to the swap. As
    /// [`Commons::evict`]; `wish` means the same, with caches instead of spaces.
    pub fn evict_shared(&self, wish: &EvictWish) -> SwapEvicted {
        let mut done = SwapEvicted::default();
        let visit = |cache: Arc<PageCache<S>>| {
            if !done.falls_short(wish) || self.swap.usage().free == 0 {
                return ControlFlow::Break(());
            }
            if cache.may_be_swapped() {
                let most = (cache.pages() >> wish.effort.min(63)) + LEAST;
                cache.evict_to_swap(self, wish, most, &mut done);
            }
            ControlFlow::Continue(())
        };
        once_around(&self.caches.hand, |after| self.caches.next(after), visit);
        done
    }

    /// Swaps out pages of shared memory in `range` that only this space maps (MADV_PAGEOUT). The
    /// caller has no space locked.
    pub(crate) fn page_out_shared(
        &self,
        handle: &dyn SpaceHandle<S>,
        range: Range<VirtAddr>,
        done: &mut SwapEvicted,
    ) {
        let (age, frames) = (Age::Ignore, FrameChoice::ALL);
        let wish = EvictWish { pages: u64::MAX, age, frames, effort: 0 };
        let mut next = range.start;
        while next < range.end && done.failed == 0 {
            let mut found = None;
            handle.with(Locking::Wait, &mut |space| found = space.shared_alone(next..range.end));
            let Some((cache, look, end)) = found else { break };
            if cache.may_be_swapped() {
                done.scanned += u64::from(look.present.count_ones());
                cache.evict_look(self, look, &wish, done);
            }
            next = end;
        }
    }

    /// Show all listed caches.
    #[cfg(test)]
    pub(crate) fn for_each_cache(&self, mut f: impl FnMut(&PageCache<S>)) {
        let mut last = 0;
        while let Some((id, cache)) = self.caches.next(last) {
            last = id;
            f(&cache);
        }
    }

    /// Reads back all pages of files in memory and of shared memory that are in `area`.
    ///
    /// # Errors
    /// [`VmError::NoMemory`]; [`VmError::Again`] if `go_on` returns false.
    pub(crate) fn bring_back_shared(
        &self,
        area: SwapArea,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(), VmError> {
        let mut last = 0;
        while let Some((id, cache)) = self.caches.next(last) {
            last = id;
            let mut next = 0;
            while let Some((page, place)) = cache.next_swapped(next..u64::MAX) {
                next = page + 1;
                if place.area != area.number() {
                    continue;
                }
                match cache.find(page, NodePolicy::Local) {
                    Err(VmError::NoMemory) => return Err(VmError::NoMemory),
                    Err(_) => cache.lose(page, place, self),
                    Ok(_) => {}
                }
                if go_on().is_break() {
                    return Err(VmError::Again);
                }
            }
        }
        Ok(())
    }
}

impl<S: Memory> AddressSpace<S> {
    /// The first pages of shared memory in `range` that only this space maps, as far as one scan
    /// goes, and the address at which to continue.
    fn shared_alone(&self, range: Range<VirtAddr>) -> Option<(Arc<PageCache<S>>, ChunkPages, VirtAddr)> {
        let (area, part) = self.areas.parts(range).find(|(area, _)| area.is_shared())?;
        let last = part.end;
        let tables = &self.resident.tables;
        let start = tables.next_populated(part).unwrap_or(last);
        let (cache, page) = area.cache_page(start)?;
        let first = page / CHUNK * CHUNK;
        let end = last.min(VirtAddr(start.0 + (first + CHUNK - page) * PAGE));
        let mut present = 0;
        tables.visit(start..end, |addr, _, entry, _| {
            let record = self.resident.source().table().get(entry.frame());
            let alone = record.is_some_and(|record| record.counts().load().mappings == 1);
            if addr >= start && alone && self.resident.kind_of(entry) == LeafKind::Cache {
                present |= 1 << (page - first + (addr.0 - start.0) / PAGE);
            }
        });
        Some((cache.clone(), ChunkPages { first, present, cold: present }, end))
    }
}

impl<S: Memory> PageCache<S> {
    fn may_be_swapped(&self) -> bool {
        self.is_memory() && !self.stays.load(Ordering::Acquire)
    }

    fn next_swapped(&self, pages: Range<u64>) -> Option<(u64, SwapPlace)> {
        self.inner.lock().index.next_swapped(pages)
    }

    /// How many of `pages` are in the swap and `counts`. `counts` must not sleep or call the cache.
    pub(crate) fn count_swapped(&self, pages: Range<u64>, counts: impl Fn(u64) -> bool) -> u64 {
        let (mut count, mut next) = (0, pages.start);
        // One page under one hold of the lock: a program chooses the number of pages.
        while let Some((page, _)) = self.next_swapped(next..pages.end) {
            count += u64::from(counts(page));
            next = page + 1;
        }
        count
    }

    /// Drops an entry of the index for `place`.
    pub(super) fn leave_slot(&self, place: SwapPlace) {
        if place != SwapPlace::LOST
            && let Some(commons) = self.commons()
        {
            commons.swap.leave(place);
        }
    }

    /// Swaps pages out as `wish` requests; scans up to `most` pages, and none twice.
    fn evict_to_swap(&self, commons: &Commons<S>, wish: &EvictWish, most: u64, done: &mut SwapEvicted) {
        let (mut left, mut began) = (most, None);
        while left > 0 && done.falls_short(wish) {
            let Some(mut look) = self.advance().filter(|look| Some(look.first) != began) else { break };
            began = began.or(Some(look.first));
            let present = u64::from(look.present.count_ones());
            done.scanned += present;
            // A chunk whose pages have all left costs something, too.
            left = left.saturating_sub(present.max(1));
            if wish.age == Age::Ignore {
                look.cold = look.present;
            }
            self.evict_look(commons, look, wish, done);
        }
    }

    fn evict_look(&self, commons: &Commons<S>, look: ChunkPages, wish: &EvictWish, done: &mut SwapEvicted) {
        let (cold, mapped, _) = self.judge(look, wish.frames);
        let cold = self.unmap_cold(look.first, cold, mapped, wish.age);
        self.write_out(commons, look.first, cold, done);
    }

    /// The account that page `index` is charged to.
    fn payer_of(&self, index: u64) -> AccountId {
        let frame = self.inner.lock().index.with(index, |frame| frame.pfn());
        frame.map_or(AccountId::ROOT, |frame| self.source.table().account(frame))
    }

    /// Writes out those pages `first + n`, of the bits `n` of `mask`, that have no holder.
    fn write_out(&self, commons: &Commons<S>, first: u64, mask: u64, done: &mut SwapEvicted) {
        let mut out = Outgoing::<S>::default();
        for page in (0..64).filter(|bit| mask & 1 << bit != 0).map(|bit| first + bit) {
            let Some(place) = commons.swap.reserve(self.payer_of(page)) else { break };
            let Some(frame) = self.begin_leaving(page) else {
                commons.swap.finish(place, Wrote::Abandoned);
                commons.swap.leave(place);
                continue;
            };
            out.places.push((place, frame.pfn()));
            out.pages.push((page, frame));
            if out.pages.is_full() {
                self.write_batch(commons, &mut out, done);
            }
        }
        self.write_batch(commons, &mut out, done);
    }

    /// Writes pages, with one request for adjacent slots.
    fn write_batch(&self, commons: &Commons<S>, out: &mut Outgoing<S>, done: &mut SwapEvicted) {
        while !out.places.is_empty() {
            let wrote = commons.write_front(&out.places);
            let places = out.places.drain(..wrote.len());
            for ((how, (place, _)), (page, frame)) in
                wrote.iter().zip(places).zip(out.pages.drain(..wrote.len()))
            {
                commons.swap.finish(place, *how);
                done.note(*how);
                if *how == Wrote::Stored && self.end_leaving(page, place, frame) {
                    done.freed += 1;
                } else {
                    commons.swap.leave(place);
                }
            }
        }
    }

    /// Begins to take `page` out of memory, if it is unused. Returns a reference to its frame.
    pub(crate) fn begin_leaving(&self, page: u64) -> Option<Frame<CacheKind, S>> {
        let mut inner = self.inner.lock();
        let holders = inner.index.with(page, |frame| frame.record().counts().load())?;
        if holders.mappings > 0 || holders.references > 1 || holders.pins > 0 {
            return None;
        }
        if !inner.index.mirrors.are_idle(page) {
            return None;
        }
        let frame = inner.index.hand_out(page).ok().flatten()?;
        inner.index.begin_leaving(page);
        Some(frame)
    }

    /// The bytes of `page`, which were those of `frame`, are in `place`. Returns whether the page
    /// is there from now on.
    pub(crate) fn end_leaving(&self, page: u64, place: SwapPlace, frame: Frame<CacheKind, S>) -> bool {
        let mut inner = self.inner.lock();
        // Another frame may be leaving as this page by now.
        let same = inner.index.with(page, |now| now.pfn() == frame.pfn()) == Some(true);
        if !same || !inner.index.end_leaving(page) {
            return false;
        }
        // There may be short pins: a CPU that read a leaf before it was removed may try a pin and
        // drop it unused.
        debug_assert!(
            inner.index.with(page, |now| now.record().counts().load()).is_some_and(|holders| {
                // The two references are the index' and this call's.
                holders.mappings == 0 && holders.references == 2
            }),
            "who holds a frame was given it"
        );
        let old = inner.index.swap_out(page, place);
        drop(inner);
        drop((old, frame));
        true
    }

    /// Reads those of `pages` that are in the swap, as long as there is memory. May sleep for the
    /// device.
    pub(crate) fn bring_in(&self, pages: Range<u64>, place: NodePolicy) {
        let mut next = pages.start;
        while let Some((page, _)) = self.next_swapped(next..pages.end) {
            next = page + 1;
            // A page that cannot be read fails for the task that needs it.
            if matches!(self.find(page, place), Err(VmError::NoMemory)) {
                return;
            }
        }
    }

    /// The frame of page `index` of a cache without a store: there, or brought in from the swap;
    /// `None` for a hole.
    ///
    /// # Errors
    /// [`VmError::Io`] where it cannot be read; [`VmError::NoMemory`].
    pub(super) fn find(&self, index: u64, place: NodePolicy) -> Result<Option<FoundFrame<S>>, VmError> {
        loop {
            if let Some(frame) = self.get(index)? {
                return Ok(Some((frame, FaultKind::Minor)));
            }
            let Some(commons) = self.commons() else { return Ok(None) };
            let run = self.enter(index, &commons)?;
            let Some(&first) = run.first() else {
                // A hole, unless another task has just brought it in.
                if self.inner.lock().index.has(index) {
                    continue;
                }
                return Ok(None);
            };
            let read = self.read_in(index, &run, place, &commons);
            let outcome = read.map(|frames| self.put(index, first, frames, &commons));
            run.iter().for_each(|&place| commons.swap.leave(place));
            outcome?;
        }
    }

    /// Returns entries of the swap places of page `index` and of following pages that are in the
    /// following slots, which will be read together.
    pub(crate) fn enter(
        &self,
        index: u64,
        commons: &Arc<Commons<S>>,
    ) -> Result<ArrayVec<SwapPlace, MAX_RUN>, VmError> {
        let most = self.ahead.run_at(index).min(1 << commons.swap.ahead());
        let mut run = ArrayVec::new();
        let inner = self.inner.lock();
        for page in index..index + most as u64 {
            let Some(place) = inner.index.swap_place(page) else { break };
            if place == SwapPlace::LOST && page == index {
                return Err(VmError::Io);
            }
            let follows = run.first().is_none_or(|&first: &SwapPlace| {
                place == SwapPlace { slot: first.slot + run.len() as u64, ..first }
            });
            if !follows || commons.swap.enter(place).is_err() {
                break;
            }
            run.push(place);
        }
        Ok(run)
    }

    /// Frames with the bytes of `run`, the places of the pages from `index` on, or of the first one
    /// only.
    pub(crate) fn read_in(
        &self,
        index: u64,
        run: &[SwapPlace],
        place: NodePolicy,
        commons: &Commons<S>,
    ) -> Result<Vec<Frame<CacheKind, S>>, VmError> {
        let &[first, ..] = run else { return Ok(Vec::new()) };
        let store = commons.swap.store_of(first).ok_or(VmError::Io)?;
        let mut frames = Vec::new();
        frames.try_reserve_exact(run.len()).map_err(|_| VmError::NoMemory)?;
        let request = Request::new(Owner::PageCache).policy(place);
        let new = |&from| Frame::allocate_for(self.source, commons.swap.payer_of(from), request);
        frames.push(new(&first)?);
        frames.extend(run[1..].iter().map_while(|from| new(from).ok()));
        if read_frames(&*store, first.slot, &frames).is_err() {
            // The page that cannot be read may be one of those read ahead.
            frames.truncate(1);
            read_frames(&*store, first.slot, &frames)?;
        }
        self.ahead.note(index, frames.len());
        commons.count_many(Event::SwapIn, frames.len() as u64);
        commons.count_many(Event::SwapAhead, frames.len() as u64 - 1);
        Ok(frames)
    }

    /// Put `frames`, which have the bytes of the slots from `first` on, into the index as the pages
    /// from `index` on, if these are still in those slots.
    pub(crate) fn put(
        &self,
        index: u64,
        first: SwapPlace,
        frames: Vec<Frame<CacheKind, S>>,
        commons: &Commons<S>,
    ) {
        for (n, frame) in (0..).zip(frames) {
            let (page, place) = (index + n, SwapPlace { slot: first.slot + n, ..first });
            let mut inner = self.inner.lock();
            if inner.index.swap_place(page) != Some(place) {
                drop(inner);
                drop(frame);
                continue;
            }
            inner.index.swap_in(page, frame);
            drop(inner);
            commons.swap.leave(place);
        }
    }

    /// Where in the swap page `index` is.
    #[cfg(test)]
    pub(crate) fn swap_place(&self, index: u64) -> Option<SwapPlace> {
        self.inner.lock().index.swap_place(index)
    }

    /// Number of slots that the index holds.
    #[cfg(test)]
    pub(crate) fn slots(&self) -> u64 {
        let (mut slots, mut next) = (0, 0);
        while let Some((page, place)) = self.next_swapped(next..u64::MAX) {
            slots += u64::from(place != SwapPlace::LOST);
            next = page + 1;
        }
        slots
    }

    /// Marks `page` as lost: it cannot be read from `place`, whose area is switched off.
    fn lose(&self, page: u64, place: SwapPlace, commons: &Commons<S>) {
        let mut inner = self.inner.lock();
        if inner.index.swap_place(page) == Some(place) {
            inner.index.lose(page);
            drop(inner);
            commons.swap.leave(place);
        }
    }
}
