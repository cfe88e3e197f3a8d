//! Growing, cutting, punching, and giving memory back.
//!
//! **Removed pages.** The steps have this order. First the size (if the file is cut) and the index
//! change, under the cache's lock. Then every mapper's leaves are removed, with no lock of the
//! cache held. Then the frames are released. A fault that read the old state has its leaf removed;
//! a later fault finds the new state. The step that may fail (reading the page that is cut in two)
//! comes before the size changes.

use alloc::vec::Vec;
use core::ops::{ControlFlow, Range};
use core::sync::atomic::Ordering;

use freehold_frame::{Frame, NodePolicy, Owner, Request};
use freehold_paging::{Memory, SwapPlace};
use freehold_xpfo::Windows;

use super::mirrors::is_idle;
use super::{CacheInner, CacheKind, PAGE, PageCache};
use crate::VmError;

/// Number of batches of pages that are removed before their mappers are visited.
const UNMAPPED_AT_ONCE: usize = 64;

/// Whether a step of long work was the last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Batch {
    /// There is more to do.
    More,
    /// All is done.
    Last,
}

/// Progress of an allocation of frames for a range of pages: see [`PageCache::allocate_some`].
#[derive(Debug)]
pub struct Allocation {
    next: u64,
    end: u64,
    /// Runs of pages that were absent before, in order.
    made: Vec<Range<u64>>,
}

impl Allocation {
    /// Returns an allocation that has not begun, for the pages that `range` (bytes) touches.
    pub const fn new(range: Range<u64>) -> Self {
        Self { next: range.start / PAGE, end: range.end.div_ceil(PAGE), made: Vec::new() }
    }
}

impl<S: Memory> PageCache<S> {
    /// Sets the size. Pages that are cut off are unmapped everywhere and removed; new bytes are a
    /// hole. The caller holds no address space's lock, and other tasks may run in between.
    ///
    /// # Errors
    /// [`VmError::Overflow`] past the largest offset; the store's error, where the last page must
    /// be read.
    pub fn truncate(&self, size: u64) -> Result<(), VmError> {
        if size > i64::MAX as u64 {
            return Err(VmError::Overflow);
        }
        // While its frame is held the last page stays where it is: nothing can fail when the size
        // has changed.
        let last =
            if size.is_multiple_of(PAGE) || size >= self.size() { None } else { self.readable(size / PAGE)? };
        let inner = self.inner.lock();
        let old = self.size.swap(size, Ordering::AcqRel);
        drop(inner);
        let mut outcome = Ok(());
        if size < old {
            outcome = self.zero_part(size..size.next_multiple_of(PAGE));
            self.remove(size.div_ceil(PAGE)..u64::MAX);
        }
        drop(last);
        outcome
    }

    /// Adopts the store's new size. Pages beyond it are unmapped everywhere and removed; no page is
    /// read or changed. The caller holds no address space's lock, and other tasks may run in
    /// between.
    pub fn resized(&self, size: u64) {
        let inner = self.inner.lock();
        let old = self.size.swap(size, Ordering::AcqRel);
        drop(inner);
        if size < old {
            self.remove(size.div_ceil(PAGE)..u64::MAX);
        }
    }

    /// Makes the bytes of `range` zeroes, and frees the frames of pages that are completely inside;
    /// the size stays. The caller holds no address space's lock, and other tasks may run in
    /// between.
    ///
    /// # Errors
    /// [`VmError::Invalid`] for an empty range; the store's error.
    pub fn punch_hole(&self, range: Range<u64>) -> Result<(), VmError> {
        if range.is_empty() {
            return Err(VmError::Invalid);
        }
        let (first, last) = (range.start.div_ceil(PAGE), range.end / PAGE);
        if first > last {
            return self.zero_part(range);
        }
        self.zero_part(range.start..first * PAGE)?;
        self.zero_part(last * PAGE..range.end)?;
        if self.store.is_none() {
            self.remove(first..last);
            return Ok(());
        }
        (first..last.min(self.size().div_ceil(PAGE))).try_for_each(|page| {
            self.source.rest();
            self.zero_part(page * PAGE..(page + 1) * PAGE)
        })
    }

    /// Zeroes a part of one page. Without a store, only if the page is present.
    fn zero_part(&self, range: Range<u64>) -> Result<(), VmError> {
        if range.is_empty() {
            return Ok(());
        }
        let index = range.start / PAGE;
        let frame = match self.readable(index)? {
            Some(frame) => frame,
            None => return Ok(()),
        };
        let _change = self.change(index..index + 1);
        let start = (range.start % PAGE) as usize;
        let end = start + (range.end - range.start) as usize;
        self.source.machine().with_bytes(&frame, |bytes| bytes[start..end].fill(0));
        self.keep_written(index, &frame, start..end);
        Ok(())
    }

    /// Removes pages from the index, unmaps them everywhere, and releases them: in batches, since
    /// there may be many.
    ///
    /// Mappers are visited once for [`UNMAPPED_AT_ONCE`] batches and not for each: a program
    /// chooses how many areas they have.
    fn remove(&self, pages: Range<u64>) {
        let mut next = pages.start;
        loop {
            let first = next;
            let is_last = (0..UNMAPPED_AT_ONCE).any(|_| {
                let is_last = self.remove_batch(&mut next, pages.end) == Batch::Last;
                self.source.rest();
                is_last
            });
            // The last round covers all that is left: pages that were mapped before they left the
            // index. For a truncated file it covers everything past the end, since private copies
            // there are removed, too, but not those of single pages.
            let from = if is_last && pages.end == u64::MAX { pages.start } else { first };
            self.zap_everywhere(&(from..if is_last { pages.end } else { next }));
            if is_last {
                return;
            }
        }
    }

    /// Removes the next pages of `next..end` from the index; moves `next` past them. Frames that
    /// are still mapped must outlive their TLB entries: each mapping holds its frame, which ensures
    /// that.
    fn remove_batch(&self, next: &mut u64, end: u64) -> Batch {
        let first = *next;
        let mut batch: [(Option<Frame<_, S>>, Option<SwapPlace>); 32] = [const { (None, None) }; 32];
        let mut inner = self.inner.lock();
        for (frame, place) in &mut batch {
            let Some(page) = inner.index.next(*next..end) else { break };
            *frame = inner.index.remove(page);
            *place = inner.index.remove_swapped(page);
            *next = page + 1;
        }
        self.settle(&inner);
        let is_last = batch.iter().any(|(frame, place)| frame.is_none() && place.is_none());
        inner.fills.spoil(first..if is_last { end } else { *next });
        drop(inner);
        batch.iter().filter_map(|(_, place)| *place).for_each(|place| self.leave_slot(place));
        if is_last { Batch::Last } else { Batch::More }
    }

    /// Allocates frames for the pages of `range` (bytes); the size stays. All or nothing: if the
    /// attempt fails, its pages are freed again, so that a request that is too large does not take
    /// all memory.
    ///
    /// # Errors
    /// [`VmError::NoMemory`]; the store's error.
    pub fn allocate(&self, range: Range<u64>) -> Result<(), VmError> {
        let mut allocation = Allocation::new(range);
        let outcome = loop {
            match self.allocate_some(&mut allocation, u64::MAX) {
                Ok(Batch::More) => {}
                Ok(Batch::Last) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        if outcome.is_err() {
            while self.take_back_some(&mut allocation, u64::MAX) == Batch::More {}
        }
        outcome
    }

    /// Continues `allocation`: allocates frames for the next `most` of its pages. After an error it
    /// can be continued from the page that failed, or be [taken back](PageCache::take_back_some).
    ///
    /// # Errors
    /// As [`PageCache::allocate`].
    pub fn allocate_some(&self, allocation: &mut Allocation, most: u64) -> Result<Batch, VmError> {
        let stop = allocation.end.min(allocation.next.saturating_add(most));
        while allocation.next < stop {
            let page = allocation.next;
            if !self.inner.lock().index.has(page) {
                let is_new_run = allocation.made.last().is_none_or(|run| run.end != page);
                if is_new_run {
                    allocation.made.try_reserve(1).map_err(|_| VmError::NoMemory)?;
                }
                match allocation.made.last_mut() {
                    _ if !self.make_ahead(page)? => {}
                    Some(run) if !is_new_run => run.end += 1,
                    _ => allocation.made.push(page..page + 1),
                }
            }
            allocation.next += 1;
        }
        Ok(if stop == allocation.end { Batch::Last } else { Batch::More })
    }

    /// Gives page `page` a frame before it is used. Returns whether it had none; then it may be
    /// [taken back](PageCache::take_back_some) until a caller gets its frame.
    fn make_ahead(&self, page: u64) -> Result<bool, VmError> {
        if !self.is_memory() {
            return self.get_or_fill(page, NodePolicy::Local).map(|_| false);
        }
        debug_assert!(!self.is_secret(), "pages of secret memory are made where they are touched");
        let frame = Frame::allocate_with(self.source, Request::new(Owner::PageCache).zeroed())?;
        let mut inner = self.inner.lock();
        let is_hole = !inner.index.has(page);
        if is_hole {
            self.add_page(&mut inner, page, frame)?;
            inner.index.note_ahead(page);
        }
        Ok(is_hole)
    }

    /// Removes up to `most` of the pages that `allocation` has made. Pages that a mapping, or a
    /// task that reads or writes, has got since then stay: there may have been stores to them.
    pub fn take_back_some(&self, allocation: &mut Allocation, most: u64) -> Batch {
        let mut left = most;
        while let Some(run) = allocation.made.last_mut() {
            while run.start < run.end {
                if left == 0 {
                    return Batch::More;
                }
                left -= 1;
                run.end -= 1;
                self.forget_ahead(run.end);
            }
            allocation.made.pop();
        }
        Batch::Last
    }

    fn forget_ahead(&self, page: u64) {
        let inner = self.inner.lock();
        if inner.index.is_ahead(page) {
            self.drop_from(inner, page);
        }
    }

    /// Removes page `index` from the cache and from all mappings.
    pub(super) fn drop_page(&self, index: u64) {
        self.drop_from(self.inner.lock(), index);
    }
    fn drop_from(&self, mut inner: spin::MutexGuard<'_, CacheInner<S>>, index: u64) {
        let (frame, place) = (inner.index.remove(index), inner.index.remove_swapped(index));
        self.settle(&inner);
        drop(inner);
        drop(frame);
        place.into_iter().for_each(|place| self.leave_slot(place));
    }

    /// The first byte from `offset` on that is not in a hole; `None` past the last.
    pub fn seek_data(&self, offset: u64) -> Option<u64> {
        let size = self.size();
        if offset >= size {
            return None;
        }
        if self.store.is_some() {
            return Some(offset);
        }
        let page = self.inner.lock().index.next(offset / PAGE..size.div_ceil(PAGE))?;
        Some(offset.max(page * PAGE))
    }

    /// The first byte from `offset` on that is in a hole; the end of the file is one.
    pub fn seek_hole(&self, offset: u64) -> u64 {
        let size = self.size();
        if offset >= size || self.store.is_some() {
            return size;
        }
        let mut page = offset / PAGE;
        let hole = loop {
            // A file may have as many pages as there is memory: so they are not all visited under
            // one hold of the lock.
            match self.inner.lock().index.next_hole(page) {
                ControlFlow::Break(hole) => break hole,
                ControlFlow::Continue(next) => page = next,
            }
            self.source.rest();
        };
        offset.max(hole * PAGE).min(size)
    }

    /// Gives back up to `count` unused frames whose bytes the store has. Returns their number.
    pub fn shrink(&self, count: u64) -> u64 {
        self.give_back(0..u64::MAX, count)
    }

    /// Stores the changed pages that `range` (bytes) touches, and removes all its pages from the
    /// cache and from every mapping: later readers read the store. A task that holds a page's
    /// frame, or a pin that reads it, keeps the frame. Returns whether no page is left. Pages stay
    /// that a pin may write, that are being stored, or that changed again. Without a store nothing
    /// can be removed. The caller holds no address space.
    ///
    /// # Errors
    /// As [`PageCache::write_back`].
    pub fn forget(&self, range: Range<u64>) -> Result<bool, VmError> {
        let pages = range.start / PAGE..range.end.div_ceil(PAGE);
        let mut inner = self.inner.lock();
        // The caller may be about to change the store itself, or has: pages that are being read
        // from it now must not come in.
        inner.fills.spoil(pages.clone());
        if inner.index.next(pages.clone()).is_none() {
            return Ok(true);
        }
        drop(inner);
        self.zap_everywhere(&pages);
        self.write_back(range)?;
        self.remove_stored(&pages);
        Ok(self.inner.lock().index.next(pages).is_none())
    }

    /// Removes those of `pages` whose bytes the store has, whatever holds them, and then their
    /// leaves. This includes leaves that a concurrent fault makes with a frame that it found
    /// before.
    fn remove_stored(&self, pages: &Range<u64>) {
        if self.store.is_none() {
            return;
        }
        let (mut next, mut were_held) = (pages.start, false);
        loop {
            let mut inner = self.inner.lock();
            let Some(page) = inner.index.next(next..pages.end) else { break };
            next = page + 1;
            if !inner.index.is_stored(page) {
                continue;
            }
            if inner.index.has_changed(page) {
                inner.fills.spoil(page..page + 1);
            }
            were_held |= !inner.index.mirrors.are_idle(page);
            let gone = inner.index.remove(page);
            drop(inner);
            were_held |= gone.is_some_and(|frame| {
                let holders = frame.record().counts().load();
                holders.mappings > 0 || holders.references > 1 || holders.pins > 0
            });
        }
        if were_held {
            self.zap_everywhere(pages);
        }
    }

    /// Gives back up to `count` unused frames of `pages` whose bytes the store has. Returns their
    /// number.
    fn give_back(&self, pages: Range<u64>, count: u64) -> u64 {
        if self.store.is_none() {
            return 0;
        }
        let (mut freed, mut next) = (0, pages.start);
        while freed < count {
            let Some(page) = self.inner.lock().index.next(next..pages.end) else { break };
            next = page + 1;
            freed += u64::from(self.take_idle(page).is_some());
        }
        freed
    }

    /// Takes the frame of `page` out if it is unused and the store has its bytes.
    pub(super) fn take_idle(&self, page: u64) -> Option<Frame<CacheKind, S>> {
        let mut inner = self.inner.lock();
        // New holders get the frame from the index, under this lock, or from mappings, and there
        // are none.
        let is_idle = inner.index.with(page, |frame| is_idle(frame.record()))?;
        if !is_idle || !inner.index.mirrors.are_idle(page) || inner.index.is_dirty(page) {
            return None;
        }
        if inner.index.has_changed(page) {
            inner.fills.spoil(page..page + 1);
        }
        inner.index.remove(page)
    }
}
