//! Files of huge pages (Linux: fs/hugetlbfs): the size, holes, and the bytes.
//!
//! Such a file is a [`PageCache`] without frames of its own: it has the size and the list of
//! address spaces that map it. Its pages are the [`HugePages`]. The size may be in the middle of a
//! page. A fault makes whole pages before it; any page that is present can be touched.
//!
//! **Removed pages.** If the file is cut, the size changes first, and all leaves are removed: so no
//! fault makes a page any more. Then the pages go, and then the leaves of faults that have found
//! one of them meanwhile. Where a hole is made, the pages go first, and then the leaves that show
//! them. A private mapping keeps its copies there.

use alloc::sync::Arc;
use core::ops::Range;

use freehold_frame::{Held as _, LargeMapping, NodePolicy};
use freehold_machine::{PAGE, PAGE_SIZE};
use freehold_paging::Memory;
use freehold_xpfo::Windows;

use super::{HugeBudget, HugePages};
use crate::huge::LARGE;
use crate::{Commons, PageCache, VmError};

/// Bytes that a hole reads as.
static ZEROES: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

/// Small pages of a huge one.
const PAGES: u64 = LARGE / PAGE;

impl<S: Memory> PageCache<S> {
    /// An empty file of huge pages, whose mount has the `budget`. The [huge](Self::is_huge)
    /// functions are for such files, and no other reads, writes or allocates pages of it.
    pub fn huge(commons: &Arc<Commons<S>>, budget: Option<Arc<HugeBudget<S>>>) -> Arc<Self> {
        let cache = Self::build(commons.source, None, None, Some(HugePages::new(commons, budget)));
        commons.list(&cache);
        cache
    }
    /// Whether it is a file of huge pages.
    pub const fn is_huge(&self) -> bool {
        self.huge.is_some()
    }
    /// The pages of a file of huge pages.
    pub(crate) const fn huge_pages(&self) -> Option<&Arc<HugePages<S>>> {
        self.huge.as_ref()
    }
    /// The end of the last page, huge or not, in small pages.
    pub(crate) fn end(&self) -> u64 {
        self.size().next_multiple_of(if self.is_huge() { LARGE } else { PAGE }) / PAGE
    }
    /// The number of huge pages that can be touched.
    pub(super) fn huge_end(&self) -> u64 {
        self.size() / LARGE
    }
    /// The number of huge pages that it has.
    pub fn huge_count(&self) -> u64 {
        self.huge.as_ref().map_or(0, |pages| pages.count())
    }

    /// Reserves all pages of a file of huge pages, up to its size.
    ///
    /// # Errors
    /// [`VmError::NoHugePage`], [`VmError::NoMemory`].
    pub fn reserve_huge(&self) -> Result<(), VmError> {
        self.huge.as_ref().map_or(Ok(()), |pages| pages.reserve(0..self.huge_end()))
    }

    /// Sets the size of a file of huge pages, of whole pages if it shrinks. As
    /// [`PageCache::truncate`].
    pub fn resize_huge(&self, size: u64) {
        if let Some(pages) = self.huge.as_ref().filter(|_| size < self.size()) {
            self.resized(size);
            if pages.cut(size / LARGE) {
                self.zap_everywhere(&(size / PAGE..u64::MAX));
            }
        } else {
            self.set_size_grow(size);
        }
    }

    /// Makes a hole in a file of huge pages: zeroes bytes of pages that are only partly in `range`.
    /// As [`PageCache::punch_hole`].
    pub fn punch_huge(&self, range: Range<u64>) {
        let Some(pages) = &self.huge else { return };
        let (first, last) = (range.start.div_ceil(LARGE), range.end / LARGE);
        if first > last {
            return self.zero_huge(range);
        }
        self.zero_huge(range.start..first * LARGE);
        self.zero_huge(last * LARGE..range.end);
        if first < last {
            pages.punch(first..last);
            self.zap_everywhere(&(first * PAGES..last * PAGES));
        }
    }

    /// Makes page `number` of a file of huge pages present.
    ///
    /// # Errors
    /// [`VmError::NoSpace`] without a free page.
    pub fn fill_huge(&self, number: u64) -> Result<(), VmError> {
        let pages = self.huge.as_ref().ok_or(VmError::Invalid)?;
        let hold = pages.page(number, NodePolicy::Local).ok_or(VmError::NoSpace)?;
        pages.give_back(hold);
        Ok(())
    }

    /// As [`PageCache::read_at`], for a file of huge pages.
    pub fn read_huge(&self, offset: u64, len: usize, mut f: impl FnMut(&[u8]) -> usize) -> usize {
        let left = usize::try_from(self.size().saturating_sub(offset)).unwrap_or(usize::MAX);
        let (len, mut done) = (len.min(left), 0);
        while done < len {
            let at = offset + done as u64;
            let start = (at % PAGE) as usize;
            let end = PAGE_SIZE.min(start + (len - done));
            let shown = self.with_huge(at, |hold| match hold {
                Some(hold) => {
                    let frame = hold.held_at(at % LARGE / PAGE);
                    self.source.machine().read_bytes(&frame, |bytes| f(&bytes[start..end]))
                }
                None => f(&ZEROES[start..end]),
            });
            done += shown.min(end - start);
            if shown < end - start {
                break;
            }
        }
        done
    }

    /// Calls `f` with a hold of the page at byte `at`, `None` for a hole.
    fn with_huge<R>(&self, at: u64, f: impl FnOnce(Option<&LargeMapping<S>>) -> R) -> R {
        let found = self.huge.as_ref().and_then(|pages| Some((pages, pages.present(at / LARGE)?)));
        let Some((pages, hold)) = found else { return f(None) };
        let result = f(Some(&hold));
        pages.give_back(hold);
        result
    }

    /// Zeroes a part of one page, if it is present.
    fn zero_huge(&self, range: Range<u64>) {
        self.with_huge(range.start, |hold| {
            let mut at = range.start;
            while let Some(hold) = hold.filter(|_| at < range.end) {
                let end = range.end.min((at / PAGE + 1) * PAGE);
                let part = (at % PAGE) as usize..((end - 1) % PAGE + 1) as usize;
                let frame = hold.held_at(at % LARGE / PAGE);
                self.source.machine().with_bytes(&frame, |bytes| bytes[part].fill(0));
                at = end;
            }
        });
    }

    /// Checks that no frame of the first huge page from number `from` on is pinned. Returns the
    /// number at which to continue, `None` at the end.
    ///
    /// # Errors
    /// [`VmError::Busy`] if a frame is pinned.
    pub fn check_huge_unpinned(&self, from: u64) -> Result<Option<u64>, VmError> {
        self.huge.as_ref().map_or(Ok(None), |pages| pages.check_unpinned(from))
    }
}

impl<S: Memory> Commons<S> {
    /// Removes the pages of all files of huge pages, and the reservations of mounts, when no
    /// program is left.
    pub fn empty_huge_files(&self) {
        let mut last = 0;
        while let Some((id, cache)) = self.caches.next(last) {
            last = id;
            if cache.is_huge() {
                cache.resize_huge(0);
            }
        }
        self.forget_reservations();
    }
}
