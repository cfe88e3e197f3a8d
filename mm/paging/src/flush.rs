//! Batches of TLB flushes: frames and tables that were removed from the tables are held until no
//! TLB has their translations.
//!
//! Protocol: change the entry, report it to the batch ([`FlushBatch::unmapped`],
//! [`FlushBatch::restricted`], [`FlushBatch::freed_table`]), and continue. The batch flushes when
//! it is full and when it is dropped, and only then releases frames and tables. A leaf whose
//! accessed bit never was set is in no TLB (SDM 4.10.2.3: only translations with the bit set are
//! cached), so it needs no flush.
//!
//! **Flushes that may wait, and for how long.** A stale entry that grants writing acts like a pin:
//! its CPU continues to store to the frame. Other kernels must therefore flush whenever a page
//! loses its write right, since the next fault may copy the frame. Here an exclusive frame is never
//! copied, so the entry does no harm until code relies on the change:
//!
//! | change | stale entries | the flush waits until |
//! |---|---|---|
//! | more rights; a store that keeps its frame | grant too little: a fault that finds nothing to do | for ever |
//! | a leaf that was never used goes | there are none | for ever; its frame is released at once |
//! | less rights (mprotect, clear_refs), marks cleared | store where the call says no more stores happen, or unnoticed | the call returns, once for all of it |
//! | shared by fork | store to bytes that the child must not see | fork returns, once for all of it |
//! | a page goes (unmap, truncation) | load and store in a frame that has no other owner yet | the batch is full, or the call returns: the batch holds the frames |
//! | a page leaves with its bytes (swap-out, migration) | store to bytes that are being copied | the run is complete: before the first byte is copied |
//! | a shared page is copied for a store | load the old bytes after the store | the fault returns; the copy itself needs none, no entry grants writing |
//! | a table moves to other addresses | load and store in the old frames, through a table that is still this space's | the call returns, once for all of it, lazy CPUs too |
//! | the mark of use cleared | hide that the page is used | the batch ends: "no mark, no entry" is relied upon above |
//!
//! Ends of a batch, and of a fault that gave a page another frame
//! ([`Space::forget`](crate::Space::forget)), are the only places where other CPUs are interrupted.

use alloc::sync::Arc;
use core::ops::Range;

use arrayvec::ArrayVec;
use freehold_frame::{Frame, LargeMapping, LeafMapping, PageTable, User, UserKind};
use freehold_machine::{Flush, PAGE_SIZE, TABLE_ENTRIES, VirtAddr};

use crate::roots::Reach;
use crate::{Entry, Memory, Roots};

/// Ranges of more pages than this are flushed as a whole: flushing page by page would cost more
/// than the TLB refills.
pub const FULL_FLUSH_PAGES: u64 = 32;

/// Frames that one batch holds before it flushes.
const FRAMES: usize = 64;
/// Tables that one batch holds before it flushes.
const TABLES: usize = 16;
/// Blocks of 2 MiB pages that one batch holds before it flushes.
const BLOCKS: usize = 8;

/// Collected changes of one address space. See the module's head.
#[must_use = "dropping it flushes"]
pub struct FlushBatch<S: Memory> {
    roots: Arc<Roots<S>>,
    /// First address to flush; above `end` while there is none.
    start: VirtAddr,
    /// One past the last address to flush.
    end: VirtAddr,
    reach: Reach,
    frames: ArrayVec<LeafMapping<User, S>, FRAMES>,
    tables: ArrayVec<Frame<PageTable, S>, TABLES>,
    blocks: ArrayVec<LargeMapping<S>, BLOCKS>,
}

impl<S: Memory> FlushBatch<S> {
    /// An empty batch.
    pub fn new(roots: &Arc<Roots<S>>) -> Self {
        Self {
            roots: roots.clone(),
            start: VirtAddr(u64::MAX),
            end: VirtAddr(0),
            reach: Reach::Active,
            frames: ArrayVec::new(),
            tables: ArrayVec::new(),
            blocks: ArrayVec::new(),
        }
    }

    /// Reports that the leaf `old` of a 4 KiB page at `addr` was removed from its table; `mapping`
    /// is its hold.
    #[inline(always)]
    pub fn unmapped(&mut self, addr: VirtAddr, old: Entry, mapping: Option<LeafMapping<User, S>>) {
        if !old.may_be_cached() {
            // No CPU has cached the leaf, so its hold can be released at once.
            return mapping.map_or((), LeafMapping::release);
        }
        self.range(addr, 1);
        if let Some(mapping) = mapping {
            self.frames.push(mapping);
            if self.frames.is_full() {
                self.flush();
            }
        }
    }

    /// Reports that the leaf `old` of the 2 MiB page at `addr` was removed from its table; `block`
    /// is its hold.
    pub fn unmapped_large(&mut self, addr: VirtAddr, old: Entry, block: Option<LargeMapping<S>>) {
        if old.may_be_cached() {
            self.range(addr, TABLE_ENTRIES as u64);
        }
        if let Some(block) = block {
            self.blocks.push(block);
            if self.blocks.is_full() {
                self.flush();
            }
        }
    }

    /// Reports that the leaf `old` of the page at `addr` was replaced by one that grants less, has
    /// fewer marks, or maps another frame. A 2 MiB page needs one flush: flushing any of its
    /// addresses flushes the whole page (SDM 4.10.4.1).
    pub fn restricted(&mut self, addr: VirtAddr, old: Entry) {
        if old.may_be_cached() {
            self.range(addr, 1);
        }
    }

    /// Adds `pages` pages of 4 KiB from `start` on to the flush.
    pub fn range(&mut self, start: VirtAddr, pages: u64) {
        self.start = self.start.min(start);
        self.end = self.end.max(VirtAddr(start.0 + pages * PAGE_SIZE as u64));
    }

    /// Reports that the table that translated `range` now translates other addresses.
    pub(crate) fn moved_table(&mut self, range: &Range<VirtAddr>) {
        self.range(range.start, (range.end.0 - range.start.0) / PAGE_SIZE as u64);
        self.reach = Reach::All;
    }

    /// Reports that `table`, which translated addresses from `addr` on, is no longer linked.
    pub(crate) fn freed_table(&mut self, addr: VirtAddr, table: Frame<PageTable, S>) {
        // One page is enough: flushing any page drops all cached upper-level entries.
        self.range(addr, 1);
        self.reach = Reach::All;
        self.tables.push(table);
        if self.tables.is_full() {
            self.flush();
        }
    }

    /// Flushes the CPUs' TLBs, then releases the batch's holds.
    #[inline]
    pub fn flush(&mut self) {
        let holds = !self.frames.is_empty() || !self.tables.is_empty() || !self.blocks.is_empty();
        if self.start < self.end || holds {
            self.flush_now();
        }
    }

    fn flush_now(&mut self) {
        if self.start < self.end {
            let pages = (self.end.0 - self.start.0) / PAGE_SIZE as u64;
            let range = Flush::Range { start: self.start, pages };
            let what = if pages > FULL_FLUSH_PAGES { Flush::NonGlobal } else { range };
            self.roots.flush(what, self.reach);
            (self.start, self.end, self.reach) = (VirtAddr(u64::MAX), VirtAddr(0), Reach::Active);
        }
        self.frames.drain(..).for_each(LeafMapping::release);
        self.tables.clear();
        self.blocks.clear();
    }
}

/// Flushes the leaf `old` of the 4 KiB page at `addr`, which was removed from its table: like a
/// batch of one page, but cheaper. Returns when no CPU has the translation, and releases `held`,
/// its hold.
#[inline]
pub(crate) fn forget_one<S: Memory, K: UserKind>(
    roots: &Roots<S>,
    addr: VirtAddr,
    old: Entry,
    held: Option<LeafMapping<K, S>>,
) {
    if old.may_be_cached() {
        roots.flush(Flush::Range { start: addr, pages: 1 }, Reach::Active);
    }
    drop(held);
}

impl<S: Memory> Drop for FlushBatch<S> {
    fn drop(&mut self) {
        self.flush();
    }
}

impl<S: Memory> core::fmt::Debug for FlushBatch<S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "FlushBatch({:?}..{:?}, {} frames)", self.start, self.end, self.frames.len())
    }
}
