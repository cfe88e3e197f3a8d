//! File bytes in huge pages: hugetlbfs, and memfd and shared memory of that kind (Linux:
//! fs/hugetlbfs).
//!
//! Programs store to such a file through mappings only. Its pages come from the pool, not from the
//! page allocator, so no search for memory helps.

use core::ops::Range;

use freehold_collections::{Arc, reserve};

use super::content::deny_writers;
use super::hugetlb::{HUGE_PAGE, HugeBudget};
use super::{PageCache, commons};
use crate::fs::{ContentSource, FileContent, Punch};
use crate::user::{Sink, Source, so_far};
use crate::{Errno, Result, sched};

/// Number of bytes that are read between two checkpoints.
const STEP: usize = 256 << 10;

/// A file's content whose frames are huge pages.
pub struct HugeContent {
    cache: Arc<PageCache>,
}

impl HugeContent {
    /// Returns the file.
    pub const fn cache(&self) -> &Arc<PageCache> {
        &self.cache
    }
    fn check_unpinned(&self) -> Result<()> {
        let mut from = 0;
        while let Some(next) = self.cache.check_huge_unpinned(from)? {
            sched::checkpoint()?;
            from = next;
        }
        Ok(())
    }
}

impl FileContent for HugeContent {
    fn unit(&self) -> u64 {
        HUGE_PAGE
    }

    fn size(&self) -> u64 {
        self.cache.size()
    }

    fn read_at(&self, offset: u64, sink: &mut dyn Sink) -> Result<usize> {
        let mut done = 0;
        loop {
            let want = sink.remaining().min(STEP);
            if want == 0 || offset + done as u64 >= self.cache.size() {
                return Ok(done);
            }
            if let Err(error) = sink.fault_in().and_then(|()| sched::checkpoint()) {
                return so_far(done, error);
            }
            done += self.cache.read_huge(offset + done as u64, want, |bytes| sink.put_without_fault(bytes));
        }
    }

    fn write_at(&self, _offset: u64, _source: &mut dyn Source) -> Result<usize> {
        Err(Errno::EINVAL)
    }

    fn resize(&self, size: u64) -> Result<()> {
        self.cache.resize_huge(size);
        Ok(())
    }

    fn punch(&self, range: Range<u64>, how: Punch) -> Result<()> {
        match how {
            Punch::Hole => {
                self.cache.punch_huge(range);
                Ok(())
            }
            Punch::Zeroes => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Pages that were made before an error stay, as on Linux.
    fn allocate(&self, range: Range<u64>) -> Result<()> {
        (range.start / HUGE_PAGE..range.end.div_ceil(HUGE_PAGE)).try_for_each(|number| {
            sched::checkpoint()?;
            Ok(self.cache.fill_huge(number)?)
        })
    }

    /// Linux does not look for holes here.
    fn seek_data(&self, offset: u64) -> Option<u64> {
        (offset < self.cache.size()).then_some(offset)
    }

    fn seek_hole(&self, _offset: u64) -> u64 {
        self.cache.size()
    }

    fn promise_size(&self) -> Result<()> {
        Ok(self.cache.reserve_huge()?)
    }

    fn held(&self) -> u64 {
        self.cache.huge_count() * HUGE_PAGE
    }

    fn deny_writers(&self) -> Result<()> {
        deny_writers(&self.cache, || self.check_unpinned())
    }
}

/// Makes contents of huge pages for one file system.
pub struct HugeSource {
    budget: Option<Arc<HugeBudget>>,
}

impl HugeSource {
    /// Makes contents within this budget.
    pub const fn new(budget: Option<Arc<HugeBudget>>) -> Self {
        Self { budget }
    }
}

impl ContentSource for HugeSource {
    fn unit(&self) -> u64 {
        HUGE_PAGE
    }

    fn empty(&self) -> Result<Arc<dyn FileContent>> {
        Ok(reserve::arc(HugeContent { cache: PageCache::huge(commons(), self.budget.clone()) }))
    }

    fn capacity(&self) -> u64 {
        super::stats::total_bytes()
    }
}
