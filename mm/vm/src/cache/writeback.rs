//! Writing back: pages that changed go to the store.
//!
//! **Clean when taken.** A page counts as clean from the moment it is taken to be written, unless a
//! leaf or a pin may still write it. Bytes that come later make it dirty again.
//!
//! **One write of a page at a time.** A device may complete requests in any order, so with two
//! concurrent writes of one page, the older one may be the last. Each taken page is marked
//! [`Mark::Writeback`] (Linux: PG_writeback) until the store has completed the write, and passes
//! skip such pages: they stay dirty, and eviction keeps them. No pass waits for another one, since
//! tasks that free memory run passes too. [`PageCache::sync`], whose caller needs to know that the
//! bytes are stored, waits and checks a second time.

use alloc::vec::Vec;
use core::ops::Range;
use core::slice;
use core::sync::atomic::Ordering;

use freehold_frame::Frame;
use freehold_paging::Memory;

use super::{BackingStore, CacheKind, MAX_RUN, Mark, PAGE, PageCache};
use crate::VmError;

/// Whether the next pages of some kind begin within `range` (bytes).
fn is_within(next: Option<Range<u64>>, range: &Range<u64>) -> bool {
    next.is_some_and(|pages| pages.start < range.end.div_ceil(PAGE))
}

impl<S: Memory> PageCache<S> {
    /// Store the pages of `range` (bytes) that changed, except those that are being stored already.
    /// Does nothing without a store.
    ///
    /// # Errors
    /// The first error of the store; the other pages are still tried. A page that was refused for
    /// good ([`VmError::Io`]) is clean from now on, and the error
    /// [remembered](PageCache::tell_errors). One that failed for another reason stays dirty.
    pub fn write_back(&self, range: Range<u64>) -> Result<(), VmError> {
        let Some(store) = &self.store else { return Ok(()) };
        // Most often nothing has changed: a pass would take memory, and others would wait for it.
        let next = self.inner.lock().index.next_to_store(range.start / PAGE);
        if !is_within(next, &range) {
            return Ok(());
        }
        let mut outcome = Ok(());
        store.write_pass(&mut || outcome = self.write_dirty(&**store, range.clone()));
        outcome
    }

    /// Store the pages of `range` (bytes) that changed, and waits for pages that other tasks are
    /// storing: afterwards the store has all bytes that were written before the call. May sleep,
    /// for as long as the store needs.
    ///
    /// # Errors
    /// As [`PageCache::write_back`]; the store's error of [waiting](BackingStore::wait_for_passes).
    pub fn sync(&self, range: Range<u64>) -> Result<(), VmError> {
        let Some(store) = &self.store else { return Ok(()) };
        let others = is_within(self.inner.lock().index.next_in_writeback(range.start / PAGE), &range);
        let left_dirty = self.left_dirty.load(Ordering::Acquire);
        let mut outcome = self.write_back(range.clone());
        store.wait_for_passes()?;
        if others || outcome.is_ok() && self.left_dirty.load(Ordering::Acquire) != left_dirty {
            // A page that was being stored may have changed meanwhile, or have failed. The same
            // holds for a page that another pass took after the call began, and that this pass
            // skipped.
            outcome = outcome.and(self.write_back(range));
            store.wait_for_passes()?;
        }
        outcome
    }

    /// One pass of [`PageCache::write_back`].
    fn write_dirty(&self, store: &dyn BackingStore<S>, range: Range<u64>) -> Result<(), VmError> {
        let mut outcome = Ok(());
        let mut run = Vec::new();
        run.try_reserve_exact(MAX_RUN).map_err(|_| VmError::NoMemory)?;
        let mut next = range.start / PAGE;
        let end = range.end.div_ceil(PAGE);
        while let Some(first) = self.take_dirty(next..end, &mut run) {
            // At least one further: a page that cannot be referenced once more is left dirty.
            next = first + (run.len() as u64).max(1);
            let stored = self.write_run(store, first, &run);
            outcome = outcome.and(stored);
            run.clear();
        }
        outcome
    }

    /// Store the pages from `first` on, whose frames are `run`. Afterwards other tasks may store
    /// them again.
    fn write_run(
        &self,
        store: &dyn BackingStore<S>,
        first: u64,
        run: &[Frame<CacheKind, S>],
    ) -> Result<(), VmError> {
        let all = store.write_back(first, run);
        if all.is_ok() {
            let mut inner = self.inner.lock();
            (first..).zip(run).for_each(|(page, _)| inner.index.unmark(page, Mark::Writeback));
            return all;
        }
        let mut outcome = Ok(());
        for (page, frame) in (first..).zip(run) {
            // Page by page, to lose no more pages than necessary; a run of one page has already
            // been tried.
            let alone = if run.len() == 1 { all } else { store.write_back(page, slice::from_ref(frame)) };
            if alone == Err(VmError::Io) {
                self.errors.note();
            }
            let mut inner = self.inner.lock();
            inner.index.unmark(page, Mark::Writeback);
            if !matches!(alone, Ok(()) | Err(VmError::Io)) {
                inner.index.mark(page, Mark::Dirty);
                self.left_dirty.fetch_add(1, Ordering::AcqRel);
            }
            outcome = outcome.and(alone);
        }
        outcome
    }

    /// Takes the next adjacent pages of `range` that are dirty and not being stored, at most
    /// [`MAX_RUN`]; returns the first one's number. They count as clean from now on, unless they
    /// are mapped or pinned.
    fn take_dirty(&self, range: Range<u64>, run: &mut Vec<Frame<CacheKind, S>>) -> Option<u64> {
        let mut inner = self.inner.lock();
        let first = inner.index.next_to_store(range.start).filter(|pages| pages.start < range.end)?.start;
        for page in (first..range.end).take(MAX_RUN) {
            if !inner.index.is_to_store(page) {
                break;
            }
            let Some(Ok(frame)) = inner.index.with(page, Frame::try_clone) else { break };
            inner.index.unmark(page, Mark::Dirty);
            inner.index.mark(page, Mark::Writeback);
            // A device may still write through a pin.
            let holders = frame.record().counts().load();
            if holders.mappings == 0 && holders.pins == 0 {
                inner.index.unmark(page, Mark::Writable);
            }
            run.push(frame);
        }
        Some(first)
    }

    /// Stores changed pages, also mapped ones, and makes the next store through a mapping fault. So
    /// afterwards all pages are clean, unlike after [`PageCache::write_back`]. The caller holds no
    /// address space.
    ///
    /// # Errors
    /// As [`PageCache::write_back`].
    pub fn launder(&self) -> Result<(), VmError> {
        let mut next = 0;
        loop {
            let dirty = self.inner.lock().index.next_writable(next);
            let Some(run) = dirty else { break };
            next = run.end;
            self.zap_everywhere(&run);
        }
        self.write_back(0..u64::MAX)
    }
}
