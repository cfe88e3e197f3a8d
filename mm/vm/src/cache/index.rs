//! Maps page numbers to frames, or to swap slots.
//!
//! Pages come in chunks of 64, so that a file of a few pages costs half a KiB, and a sparse one in
//! proportion to its pages. The index holds one reference to each frame, and one entry of each
//! slot.
//!
//! Each subtree of chunks knows whether it has a page that the store has not seen ([`ChunkMarks`];
//! Linux: the tag PAGECACHE_TAG_DIRTY), and whether one is in the swap. The cost of writing back
//! depends on the number of pages to write, not on the number of cached pages, and marking a page
//! needs no memory.

use alloc::boxed::Box;
use core::cell::Cell;
use core::ops::{ControlFlow, Range};

use freehold_frame::{Frame, PageCache};
use freehold_machine::{Cpus, Pfn};
use freehold_paging::{Memory, SwapPlace};
use freehold_tree::{Slot, Summary, Tree};

use super::mirrors::Mirrors;
use crate::VmError;

const PAGES: u64 = 64;

/// Number of chunks that are visited in one hold of the cache's lock.
const LOOKED_AT_ONCE: u64 = 64;

/// No page. Frame numbers are physical addresses / 4096, so no frame has this number.
const NONE: u64 = u64::MAX;
/// Not a frame's number but a [`SwapPlace`]'s.
const SWAPPED: u64 = 1 << 63;

fn frame_of(word: u64) -> Option<Pfn> {
    (word & SWAPPED == 0).then_some(Pfn(word))
}

fn place_of(word: u64) -> Option<SwapPlace> {
    (word != NONE && word & SWAPPED != 0).then(|| SwapPlace::from_number(word & !SWAPPED))
}

struct Chunk {
    frames: [u64; PAGES as usize],
    /// The number of entries in `frames` that are not [`NONE`].
    count: u32,
    /// Pages that are in the swap.
    swapped: u64,
    /// Pages that changed since the store last saw them.
    dirty: u64,
    /// Pages to which a leaf may have granted writing, so that the bytes may change at any moment.
    writable: u64,
    /// Pages that are being written to the store, which has not completed yet.
    writeback: u64,
    /// Pages that changed at any time since the frame was added: they may have been written to the
    /// store.
    changed: u64,
    /// Pages that were read or written since the frame was added.
    once: u64,
    /// Pages that were used again, since the clock's hand last passed.
    again: u64,
    /// Pages that are being swapped out, and whose frame no caller has got since.
    leaving: u64,
    /// Pages that were made ahead of their use (fallocate), whose frame no caller has got yet.
    ahead: u64,
}

impl Chunk {
    const EMPTY: Self = Self {
        frames: [NONE; PAGES as usize],
        count: 0,
        swapped: 0,
        dirty: 0,
        writable: 0,
        writeback: 0,
        changed: 0,
        once: 0,
        again: 0,
        leaving: 0,
        ahead: 0,
    };

    /// 1 for a page that is dirty or writable, which has a frame here; else 0.
    const fn is_dirty(&self, page: u64) -> u64 {
        (self.dirty | self.writable) >> (page % PAGES) & 1
    }
    /// Notes that callers get the frames of these pages.
    const fn hand_out(&mut self, pages: u64) {
        self.leaving &= !pages;
        self.ahead &= !pages;
    }
    const fn is_unsaved(&self) -> bool {
        self.dirty | self.writable | self.writeback != 0
    }
    /// Pages that a write-back pass may take.
    const fn to_store(&self) -> u64 {
        (self.dirty | self.writable) & !self.writeback
    }
    const fn marks(&mut self, mark: Mark) -> &mut u64 {
        match mark {
            Mark::Dirty => &mut self.dirty,
            Mark::Writable => &mut self.writable,
            Mark::Writeback => &mut self.writeback,
        }
    }
}

/// Facts about a subtree of chunks.
#[derive(Clone, PartialEq, Debug)]
struct ChunkMarks {
    /// Whether it has a page that is dirty or writable, or is being stored.
    unsaved: bool,
    /// Whether it has a page that is in the swap.
    swapped: bool,
}

impl Summary<u64, Box<Chunk>> for ChunkMarks {
    fn of(_number: &u64, chunk: &Box<Chunk>) -> Self {
        Self { unsaved: chunk.is_unsaved(), swapped: chunk.swapped != 0 }
    }
    fn join(&self, next: &Self) -> Self {
        Self { unsaved: self.unsaved || next.unsaved, swapped: self.swapped || next.swapped }
    }
}

/// The lowest bit of `marks`, those of chunk `number`, of a page from `from` on.
fn first_bit(number: u64, marks: u64, from: u64) -> Option<u32> {
    let below = from.saturating_sub(number * PAGES).min(PAGES) as u32;
    let marks = marks & u64::MAX.checked_shl(below).unwrap_or(0);
    (marks != 0).then(|| marks.trailing_zeros())
}

/// Pages of one chunk: bit `n` is the page `first + n`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct ChunkPages {
    pub first: u64,
    /// The pages that have a frame.
    pub present: u64,
    /// The pages of `present` that were not used again since the hand last passed.
    pub cold: u64,
}

/// State that must be known before the page is written back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mark {
    Dirty,
    Writable,
    /// The page is being stored: no other task stores it.
    Writeback,
}

pub(super) struct Index<S: Memory> {
    source: S,
    /// The cache's number.
    cache: u64,
    chunks: Tree<u64, Box<Chunk>, ChunkMarks>,
    /// The slot of the chunk that was found last: the next search is often for the same one.
    last: Cell<Slot>,
    pages: u64,
    /// Pages that are in the swap.
    swapped: u64,
    /// Pages that are dirty or writable.
    dirty: u64,
    /// Pages that were used again since the clock's hand passed.
    active: u64,
    /// Copies of pages on other nodes. A page without a frame has none.
    pub(super) mirrors: Mirrors<S>,
}

const fn bit(page: u64) -> u64 {
    1 << (page % PAGES)
}

impl<S: Memory> Index<S> {
    pub(super) const fn new(source: S, cache: u64) -> Self {
        Self {
            source,
            cache,
            chunks: Tree::new(),
            last: Cell::new(Slot::NONE),
            pages: 0,
            swapped: 0,
            dirty: 0,
            active: 0,
            mirrors: Mirrors::new(),
        }
    }
    /// Pages that have a frame.
    pub(super) const fn pages(&self) -> u64 {
        self.pages
    }
    /// Pages that are in the swap.
    pub(super) const fn swapped(&self) -> u64 {
        self.swapped
    }

    /// The place of the chunk of `page`.
    #[inline]
    fn slot(&self, page: u64) -> Slot {
        let (number, last) = (page / PAGES, self.last.get());
        if self.chunks.is_at(last, &number) {
            return last;
        }
        let slot = self.chunks.find(&number);
        self.last.set(slot);
        slot
    }
    #[inline]
    fn chunk(&self, page: u64) -> Option<&Chunk> {
        self.chunks.at_slot(self.slot(page)).map(|chunk| &**chunk)
    }

    fn word(&self, page: u64) -> u64 {
        self.chunk(page).map_or(NONE, |chunk| chunk.frames[(page % PAGES) as usize])
    }
    fn pfn(&self, page: u64) -> Option<Pfn> {
        frame_of(self.word(page))
    }
    /// Whether `page` has a frame, or is in the swap.
    pub(super) fn has(&self, page: u64) -> bool {
        self.word(page) != NONE
    }
    /// Where in the swap `page` is.
    pub(super) fn swap_place(&self, page: u64) -> Option<SwapPlace> {
        if self.swapped == 0 { None } else { place_of(self.word(page)) }
    }

    /// The chunk of `page`, to be changed. Its dirty marks may only be changed by
    /// [`Index::remark`].
    #[inline]
    fn chunk_mut(&mut self, page: u64) -> Option<&mut Chunk> {
        let slot = self.slot(page);
        self.chunks.at_slot_mut(slot).map(|chunk| &mut **chunk)
    }

    /// Changes the marks of `page` and the counts that depend on them.
    fn remark(&mut self, page: u64, change: impl FnOnce(&mut Chunk)) {
        let slot = self.slot(page);
        let Some(chunk) = self.chunks.at_slot_mut(slot) else { return };
        let counts = |chunk: &Chunk| (chunk.is_dirty(page), chunk.again >> (page % PAGES) & 1);
        let ((dirty, again), had) = (counts(chunk), chunk.is_unsaved());
        change(chunk);
        let (now, has) = (counts(chunk), chunk.is_unsaved());
        self.dirty = self.dirty + now.0 - dirty;
        self.active = self.active + now.1 - again;
        if had != has {
            self.chunks.summary_changed(&(page / PAGES));
        }
    }

    /// Calls `f` with the frame of `page` in place.
    pub(super) fn with<R>(&self, page: u64, f: impl FnOnce(&Frame<PageCache, S>) -> R) -> Option<R> {
        self.pfn(page).map(|pfn| Self::show(self.source, pfn, f))
    }

    // Inlined, because it runs for each page that is read, and a call costs ten instructions.
    #[inline(always)]
    fn show<R>(source: S, pfn: Pfn, f: impl FnOnce(&Frame<PageCache, S>) -> R) -> R {
        let frame = Frame::from_raw(source, pfn).expect("the index holds frames of the page cache");
        let result = f(&frame);
        frame.into_raw();
        result
    }

    /// Returns the frame of `page`, for a holder that may write to it; `None` where it has none.
    ///
    /// # Errors
    /// [`VmError::TooManyHolders`].
    pub(super) fn hand_out(&mut self, page: u64) -> Result<Option<Frame<PageCache, S>>, VmError> {
        let Some(chunk) = self.chunk_mut(page) else { return Ok(None) };
        chunk.hand_out(bit(page));
        let Some(pfn) = frame_of(chunk.frames[(page % PAGES) as usize]) else { return Ok(None) };
        Self::show(self.source, pfn, Frame::try_clone).map(Some).map_err(|_| VmError::TooManyHolders)
    }

    /// Adds a frame for a page that has none.
    ///
    /// # Errors
    /// [`VmError::NoMemory`]; the frame is dropped.
    pub(super) fn insert(&mut self, page: u64, frame: Frame<PageCache, S>) -> Result<(), VmError> {
        if self.chunk_mut(page).is_none() {
            self.chunks.reserve(1)?;
            // One system call may add any number of pages.
            self.source.ensure_objects()?;
            let chunk = Box::new(Chunk::EMPTY);
            self.chunks.insert(page / PAGES, chunk)?;
        }
        frame.set_reverse_key(self.cache, page);
        let chunk = self.chunk_mut(page).ok_or(VmError::NoMemory)?;
        let slot = &mut chunk.frames[(page % PAGES) as usize];
        debug_assert_eq!(*slot, NONE);
        *slot = frame.into_raw().0;
        chunk.count += 1;
        self.pages += 1;
        Ok(())
    }

    /// Replaces the frame of `page`, and returns the old one; the page's marks stay.
    pub(super) fn exchange(&mut self, page: u64, frame: Frame<PageCache, S>) -> Option<Frame<PageCache, S>> {
        self.forget_mirrors(page);
        let cache = self.cache;
        let slot = &mut self.chunk_mut(page)?.frames[(page % PAGES) as usize];
        debug_assert_ne!(*slot, NONE);
        frame.set_reverse_key(cache, page);
        let old = core::mem::replace(slot, frame.into_raw().0);
        Some(Frame::from_raw(self.source, Pfn(old)).expect("the index holds frames of the page cache"))
    }

    /// The frame of `page` was made ahead of its use, and no caller has got it.
    pub(super) fn note_ahead(&mut self, page: u64) {
        if let Some(chunk) = self.chunk_mut(page) {
            chunk.ahead |= bit(page);
        }
    }
    /// Whether the frame of `page` was made ahead and no caller has got it yet.
    pub(super) fn is_ahead(&self, page: u64) -> bool {
        self.chunk(page).is_some_and(|chunk| chunk.ahead & bit(page) != 0)
    }

    /// Removes the frame of `page`, if it has one.
    pub(super) fn remove(&mut self, page: u64) -> Option<Frame<PageCache, S>> {
        let chunk = self.chunk_mut(page)?;
        let slot = &mut chunk.frames[(page % PAGES) as usize];
        let frame = frame_of(*slot)?;
        *slot = NONE;
        self.forget_marks(page);
        self.drop_count(page);
        self.forget_mirrors(page);
        self.pages -= 1;
        Some(Frame::from_raw(self.source, frame).expect("the index holds frames of the page cache"))
    }

    fn forget_mirrors(&mut self, page: u64) {
        if self.source.machine().mirrors_text() {
            self.mirrors.forget(page);
        }
    }

    fn forget_marks(&mut self, page: u64) {
        self.remark(page, |chunk| {
            let marks = [&mut chunk.dirty, &mut chunk.writable, &mut chunk.writeback, &mut chunk.changed];
            marks
                .into_iter()
                .chain([&mut chunk.once, &mut chunk.again, &mut chunk.leaving, &mut chunk.ahead])
                .for_each(|marks| *marks &= !bit(page));
        });
    }

    fn drop_count(&mut self, page: u64) {
        if let Some(chunk) = self.chunk_mut(page) {
            chunk.count -= 1;
            if chunk.count == 0 {
                self.chunks.remove(&(page / PAGES));
            }
        }
    }

    /// Removes the swap place of `page`, if it is in the swap. The caller owns the slot's entry.
    pub(super) fn remove_swapped(&mut self, page: u64) -> Option<SwapPlace> {
        let place = self.swap_place(page)?;
        let slot = &mut self.chunk_mut(page)?.frames[(page % PAGES) as usize];
        *slot = NONE;
        self.mark_swapped(page, false);
        self.drop_count(page);
        self.swapped -= 1;
        Some(place)
    }

    /// Notes that the frame of `page` is being swapped out.
    pub(super) fn begin_leaving(&mut self, page: u64) {
        if let Some(chunk) = self.chunk_mut(page) {
            chunk.leaving |= bit(page);
        }
    }

    /// Ends the swap-out of `page`. Returns whether no caller got the frame meanwhile.
    pub(super) fn end_leaving(&mut self, page: u64) -> bool {
        let Some(chunk) = self.chunk_mut(page) else { return false };
        let stayed = chunk.leaving & bit(page) != 0;
        chunk.leaving &= !bit(page);
        stayed
    }

    /// Replaces the frame of `page` by `place`, and returns the frame.
    pub(super) fn swap_out(&mut self, page: u64, place: SwapPlace) -> Option<Frame<PageCache, S>> {
        self.forget_marks(page);
        self.forget_mirrors(page);
        let slot = &mut self.chunk_mut(page)?.frames[(page % PAGES) as usize];
        let frame = frame_of(*slot)?;
        *slot = SWAPPED | place.number();
        self.mark_swapped(page, true);
        self.pages -= 1;
        self.swapped += 1;
        Some(Frame::from_raw(self.source, frame).expect("the index holds frames of the page cache"))
    }

    /// Gives `page`, which is in the swap, the frame `frame`. The caller owns the slot's entry.
    pub(super) fn swap_in(&mut self, page: u64, frame: Frame<PageCache, S>) {
        frame.set_reverse_key(self.cache, page);
        if let Some(chunk) = self.chunk_mut(page) {
            chunk.frames[(page % PAGES) as usize] = frame.into_raw().0;
            self.mark_swapped(page, false);
            self.swapped -= 1;
            self.pages += 1;
        }
    }

    /// Notes whether `page`, whose entry has just changed, is in the swap.
    fn mark_swapped(&mut self, page: u64, is_there: bool) {
        let Some(chunk) = self.chunk_mut(page) else { return };
        let had = chunk.swapped != 0;
        chunk.swapped = chunk.swapped & !bit(page) | u64::from(is_there) << (page % PAGES);
        if had != (chunk.swapped != 0) {
            self.chunks.summary_changed(&(page / PAGES));
        }
    }

    /// Marks `page`, which is in the swap, as lost for good. The caller owns the slot's entry.
    pub(super) fn lose(&mut self, page: u64) {
        if let Some(chunk) = self.chunk_mut(page) {
            chunk.frames[(page % PAGES) as usize] = SWAPPED | SwapPlace::LOST.number();
        }
    }

    /// The first page of `range` that is in the swap.
    pub(super) fn next_swapped(&mut self, range: Range<u64>) -> Option<(u64, SwapPlace)> {
        if self.swapped == 0 {
            return None;
        }
        let in_chunk = |number: u64, chunk: &Chunk| {
            let bit = first_bit(number, chunk.swapped, range.start)?;
            // The first one is returned, even if it is past the end.
            Some((number * PAGES + u64::from(bit), place_of(chunk.frames[bit as usize])?))
        };
        let passes = |marks: &ChunkMarks| !marks.swapped;
        let found =
            self.chunks.find_up(&(range.start / PAGES), passes, |&number, chunk| in_chunk(number, chunk));
        found.filter(|(page, _)| *page < range.end)
    }

    /// The first page in `range` that has a frame or is in the swap.
    pub(super) fn next(&self, range: Range<u64>) -> Option<u64> {
        if range.is_empty() {
            return None;
        }
        let chunks = self.chunks.range(range.start / PAGES..=(range.end - 1) / PAGES);
        chunks
            .flat_map(|(&number, chunk)| {
                (0..PAGES).filter(|&i| chunk.frames[i as usize] != NONE).map(move |i| number * PAGES + i)
            })
            .find(|page| range.contains(page))
    }

    /// The pages of `range` that have a frame, upwards.
    pub(super) fn present(&self, range: Range<u64>) -> impl Iterator<Item = u64> {
        let chunks = self.chunks.range(range.start / PAGES..range.end.div_ceil(PAGES));
        let pages = chunks.flat_map(|(&number, chunk)| {
            let present = (0..PAGES).filter(|&i| frame_of(chunk.frames[i as usize]).is_some());
            present.map(move |i| number * PAGES + i)
        });
        pages.filter(move |page| range.contains(page))
    }

    /// The first page from `page` on that has no frame and is not in the swap; or the page at which
    /// to continue after [`LOOKED_AT_ONCE`] chunks without such a page.
    pub(super) fn next_hole(&self, page: u64) -> ControlFlow<u64, u64> {
        let (first, mut next) = (page / PAGES, page);
        for (&number, chunk) in self.chunks.range(first..first + LOOKED_AT_ONCE) {
            if number != next / PAGES {
                break;
            }
            let is_hole = |page: &u64| chunk.frames[(page % PAGES) as usize] == NONE;
            let end = (number + 1) * PAGES;
            if u64::from(chunk.count) < PAGES
                && let Some(hole) = (next..end).find(is_hole)
            {
                return ControlFlow::Break(hole);
            }
            next = end;
        }
        let is_over = next / PAGES < first + LOOKED_AT_ONCE;
        if is_over { ControlFlow::Break(next) } else { ControlFlow::Continue(next) }
    }

    /// Calls `f` with each frame of `range`, upwards.
    #[inline]
    pub(super) fn visit(&mut self, range: Range<u64>, mut f: impl FnMut(u64, &Frame<PageCache, S>)) {
        let (source, mut page) = (self.source, range.start);
        while page < range.end {
            let end = ((page / PAGES + 1) * PAGES).min(range.end);
            if let Some(chunk) = self.chunk_mut(page) {
                let first = (page % PAGES) as usize;
                let count = (end - page) as usize;
                chunk.hand_out(u64::MAX >> (PAGES as usize - count) << first);
                for (page, &frame) in (page..end).zip(&chunk.frames[first..first + count]) {
                    if let Some(frame) = frame_of(frame) {
                        Self::show(source, frame, |frame| f(page, frame));
                    }
                }
                page = end;
            } else {
                let next = self.chunks.range(page / PAGES..).next();
                page = next.map_or(range.end, |(&number, _)| number * PAGES);
            }
        }
    }

    pub(super) fn mark(&mut self, page: u64, mark: Mark) {
        self.remark(page, |chunk| {
            chunk.changed |= bit(page);
            *chunk.marks(mark) |= bit(page);
        });
    }
    pub(super) fn unmark(&mut self, page: u64, mark: Mark) {
        self.remark(page, |chunk| *chunk.marks(mark) &= !bit(page));
    }
    /// Whether the page is (or may be) newer than the store's.
    pub(super) fn is_dirty(&self, page: u64) -> bool {
        self.chunk(page).is_some_and(|chunk| chunk.is_dirty(page) == 1)
    }
    /// Whether the store has the bytes of `page`: the page is not newer, and is not being stored.
    pub(super) fn is_stored(&self, page: u64) -> bool {
        self.chunk(page).is_none_or(|chunk| (chunk.dirty | chunk.writable | chunk.writeback) & bit(page) == 0)
    }
    /// Whether the store may have been written for the page since its frame was added.
    pub(super) fn has_changed(&self, page: u64) -> bool {
        self.chunk(page).is_some_and(|chunk| chunk.changed & bit(page) != 0)
    }
    /// Notes that the present page `page` is read or written.
    pub(super) fn touch(&mut self, page: u64) {
        if let Some(chunk) = self.chunk_mut(page) {
            let again = chunk.once & !chunk.again & bit(page);
            chunk.again |= again;
            chunk.once |= bit(page);
            self.active += again >> (page % PAGES);
        }
    }
    /// Moves the clock's hand past the first chunk from page `from` on that has a frame: pages that
    /// were used again count as used once from now on.
    pub(super) fn look(&mut self, from: u64) -> Option<ChunkPages> {
        let (_, &number, _) = self.chunks.ceiling(&from.div_ceil(PAGES))?;
        let chunk = self.chunk_mut(number * PAGES)?;
        let present = (0..PAGES)
            .filter(|&i| frame_of(chunk.frames[i as usize]).is_some())
            .fold(0, |set, i| set | 1 << i);
        let used = core::mem::take(&mut chunk.again);
        self.active -= u64::from(used.count_ones());
        Some(ChunkPages { first: number * PAGES, present, cold: present & !used })
    }
    /// The first pages from `from` on, adjacent and in one chunk, to which some leaf may have
    /// granted writing.
    pub(super) fn next_writable(&mut self, from: u64) -> Option<Range<u64>> {
        self.next_marked(from, |chunk| chunk.writable)
    }
    /// The first pages from `from` on, adjacent and in one chunk, that are (or may be) newer than
    /// the store's and are not being stored.
    pub(super) fn next_to_store(&mut self, from: u64) -> Option<Range<u64>> {
        self.next_marked(from, Chunk::to_store)
    }
    /// Whether [`Index::next_to_store`] may return the page.
    pub(super) fn is_to_store(&self, page: u64) -> bool {
        self.chunk(page).is_some_and(|chunk| chunk.to_store() & bit(page) != 0)
    }
    /// The first pages from `from` on, adjacent and in one chunk, that are being stored.
    pub(super) fn next_in_writeback(&mut self, from: u64) -> Option<Range<u64>> {
        self.next_marked(from, |chunk| chunk.writeback)
    }
    #[expect(clippy::borrowed_box, reason = "it is what the tree keeps")]
    fn next_marked(&mut self, from: u64, marks_of: impl Fn(&Chunk) -> u64) -> Option<Range<u64>> {
        let in_chunk = |&number: &u64, chunk: &Box<Chunk>| {
            let (first, marks) = (number * PAGES, marks_of(chunk));
            let start = first_bit(number, marks, from)?;
            let count = (marks >> start).trailing_ones();
            Some(first + u64::from(start)..first + u64::from(start + count))
        };
        self.chunks.find_up(&(from / PAGES), |marks| !marks.unsaved, in_chunk)
    }
    /// Pages that are (or may be) newer than the store's.
    pub(super) const fn dirty_pages(&self) -> u64 {
        self.dirty
    }
    /// Pages that were used again since the clock's hand passed.
    pub(super) const fn active_pages(&self) -> u64 {
        self.active
    }

    /// Count everything again.
    ///
    /// # Panics
    /// If counts or marks do not agree.
    #[cfg(test)]
    pub(super) fn validate(&self) {
        self.chunks.validate();
        let sum = |count: fn(&Chunk) -> u32| self.chunks.values().map(|chunk| u64::from(count(chunk))).sum();
        assert_eq!(self.dirty, sum(|chunk| (chunk.dirty | chunk.writable).count_ones()), "dirty pages");
        assert_eq!(self.active, sum(|chunk| chunk.again.count_ones()), "pages used again");
        let swapped = |chunk: &Chunk| {
            (0..PAGES)
                .filter(|&i| place_of(chunk.frames[i as usize]).is_some())
                .fold(0, |set, i| set | 1 << i)
        };
        assert!(self.chunks.values().all(|chunk| chunk.swapped == swapped(chunk)), "marks of swapped pages");
        assert_eq!(self.swapped, sum(|chunk| chunk.swapped.count_ones()), "swapped pages");
    }
}

impl<S: Memory> Drop for Index<S> {
    fn drop(&mut self) {
        while let Some(page) = self.next(0..u64::MAX) {
            self.source.rest();
            if self.remove(page).is_none() {
                // Code with access to the swap has already freed the slot, or the swap no longer
                // exists.
                self.remove_swapped(page);
            }
        }
    }
}
