//! From page numbers to frames.
//!
//! Pages come in chunks of 64, so that a file of a few pages costs half a KiB and a sparse one only what it holds. The
//! index is the holder of one reference to each frame.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::ops::Range;

use freehold_frame::{Frame, PageCache};
use freehold_machine::Pfn;
use freehold_paging::Memory;

const PAGES: u64 = 64;

/// No frame. Frame numbers are physical addresses / 4096, so this is none.
const NONE: u64 = u64::MAX;

struct Chunk {
    frames: [u64; PAGES as usize],
    /// How many of them there are.
    count: u32,
    /// Changed since the store last saw them.
    dirty: u64,
    /// Some leaf may have granted writing, so the bytes may change at any moment.
    writable: u64,
}

/// What a page's owner must know before it writes it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mark {
    Dirty,
    Writable,
}

pub(super) struct Index<S: Memory> {
    source: S,
    chunks: BTreeMap<u64, Box<Chunk>>,
    pages: u64,
}

const fn bit(page: u64) -> u64 {
    1 << (page % PAGES)
}

impl<S: Memory> Index<S> {
    pub(super) const fn new(source: S) -> Self {
        Self { source, chunks: BTreeMap::new(), pages: 0 }
    }
    pub(super) const fn pages(&self) -> u64 {
        self.pages
    }

    fn pfn(&self, page: u64) -> Option<Pfn> {
        let frame = self.chunks.get(&(page / PAGES))?.frames[(page % PAGES) as usize];
        (frame != NONE).then_some(Pfn(frame))
    }

    /// Look at the frame of `page` in place.
    pub(super) fn with<R>(&self, page: u64, f: impl FnOnce(&Frame<PageCache, S>) -> R) -> Option<R> {
        self.pfn(page).map(|pfn| self.look(pfn, f))
    }

    fn look<R>(&self, pfn: Pfn, f: impl FnOnce(&Frame<PageCache, S>) -> R) -> R {
        let frame = Frame::from_raw(self.source, pfn).expect("the index holds frames of the page cache");
        let result = f(&frame);
        frame.into_raw();
        result
    }

    /// Put a frame where none is.
    pub(super) fn insert(&mut self, page: u64, frame: Frame<PageCache, S>) {
        let empty = || Box::new(Chunk { frames: [NONE; PAGES as usize], count: 0, dirty: 0, writable: 0 });
        let chunk = self.chunks.entry(page / PAGES).or_insert_with(empty);
        let slot = &mut chunk.frames[(page % PAGES) as usize];
        debug_assert_eq!(*slot, NONE);
        *slot = frame.into_raw().0;
        chunk.count += 1;
        self.pages += 1;
    }

    pub(super) fn remove(&mut self, page: u64) -> Option<Frame<PageCache, S>> {
        let chunk = self.chunks.get_mut(&(page / PAGES))?;
        let slot = core::mem::replace(&mut chunk.frames[(page % PAGES) as usize], NONE);
        if slot == NONE {
            return None;
        }
        chunk.dirty &= !bit(page);
        chunk.writable &= !bit(page);
        chunk.count -= 1;
        if chunk.count == 0 {
            self.chunks.remove(&(page / PAGES));
        }
        self.pages -= 1;
        Some(Frame::from_raw(self.source, Pfn(slot)).expect("the index holds frames of the page cache"))
    }

    /// The first page in `range` that has a frame.
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

    /// The first page from `page` on that has none.
    pub(super) fn next_hole(&self, mut page: u64) -> u64 {
        while self.pfn(page).is_some() {
            page += 1;
        }
        page
    }

    /// Show each frame of `range`, upwards.
    pub(super) fn visit(&self, range: Range<u64>, mut f: impl FnMut(u64, &Frame<PageCache, S>)) {
        let mut page = range.start;
        while page < range.end {
            let chunk_end = (page / PAGES + 1) * PAGES;
            if let Some(chunk) = self.chunks.get(&(page / PAGES)) {
                for page in page..chunk_end.min(range.end) {
                    let frame = chunk.frames[(page % PAGES) as usize];
                    if frame != NONE {
                        self.look(Pfn(frame), |frame| f(page, frame));
                    }
                }
                page = chunk_end;
            } else {
                let next = self.chunks.range(page / PAGES..).next();
                page = next.map_or(range.end, |(&number, _)| number * PAGES);
            }
        }
    }

    pub(super) fn mark(&mut self, page: u64, mark: Mark) {
        if let Some(chunk) = self.chunks.get_mut(&(page / PAGES)) {
            match mark {
                Mark::Dirty => chunk.dirty |= bit(page),
                Mark::Writable => chunk.writable |= bit(page),
            }
        }
    }
    pub(super) fn unmark(&mut self, page: u64, mark: Mark) {
        if let Some(chunk) = self.chunks.get_mut(&(page / PAGES)) {
            match mark {
                Mark::Dirty => chunk.dirty &= !bit(page),
                Mark::Writable => chunk.writable &= !bit(page),
            }
        }
    }
    /// Whether the page is (or may be) newer than the store's.
    pub(super) fn is_dirty(&self, page: u64) -> bool {
        self.chunks.get(&(page / PAGES)).is_some_and(|chunk| (chunk.dirty | chunk.writable) & bit(page) != 0)
    }
    pub(super) fn dirty_pages(&self) -> u64 {
        self.chunks.values().map(|chunk| u64::from((chunk.dirty | chunk.writable).count_ones())).sum()
    }
}

impl<S: Memory> Drop for Index<S> {
    fn drop(&mut self) {
        while let Some(page) = self.next(0..u64::MAX) {
            drop(self.remove(page));
        }
    }
}
