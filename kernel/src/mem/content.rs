//! File bytes in the page cache.
//!
//! The frames are user-side: their bytes exist for the kernel only inside a window, where nothing
//! may fault. So each copy runs inside the window without faults; where it falls short the
//! program's page is faulted in outside, and the copy goes on (the page may have been taken away
//! again in between). A write faults in first: a copy that falls short would leave a new page
//! without bytes in the cache.
//!
//! **Long work.** A program chooses how many bytes a call moves, and pages that are there do not
//! stop a copy. So everything goes in steps of [`STEP`] bytes. Between two, others run, and a task
//! that is to end stops.

use core::ops::Range;

use freehold_collections::{Arc, reserve};
use freehold_machine::PAGE_SIZE;
use freehold_vm::{Allocation, Batch, VmError};

use super::hotplug::{self, GrowthOutcome};
use super::{Frames, PageCache, find_more, oom};
use crate::fs::{ContentSource, FileContent, Punch};
use crate::sync::WaitQueue;
use crate::user::{Sink, Source, so_far};
use crate::{Errno, Result, sched, time};

/// Bytes that are moved, or given frames, between two looks at what else there is to do.
const STEP: usize = 256 << 10;

/// The same in pages.
const STEP_PAGES: u64 = (STEP / PAGE_SIZE) as u64;
/// How long to wait after each look for pins (nanoseconds): as Linux' memfd_wait_for_pins.
const PIN_WAITS: [u64; 4] = [10 * MILLISECOND, 20 * MILLISECOND, 40 * MILLISECOND, 80 * MILLISECOND];
const MILLISECOND: u64 = time::SECOND / 1000;

/// A file's content whose frames are the page cache.
pub struct CacheContent {
    cache: Arc<PageCache>,
}

impl CacheContent {
    /// Content over `cache`, whose pages can be found by their frames from now on.
    pub fn new(cache: Arc<PageCache>) -> Self {
        super::commons().list(&cache);
        Self { cache }
    }
    /// Wait a short while until no page is pinned. A pin that was taken through a mapping may
    /// outlive it; it ends soon or never. `EBUSY` where one stays.
    fn wait_for_pins(&self) -> Result<()> {
        for wait in PIN_WAITS {
            match self.check_unpinned() {
                Err(Errno::EBUSY) => {}
                outcome => return outcome,
            }
            WaitQueue::new().wait_killable_until(time::now() + wait, || None::<()>)?;
        }
        self.check_unpinned()
    }
    /// `EBUSY` where a page is pinned.
    fn check_unpinned(&self) -> Result<()> {
        let mut from = 0;
        while let Some(next) = self.cache.check_unpinned(from, STEP_PAGES as usize)? {
            sched::checkpoint()?;
            from = next;
        }
        Ok(())
    }
    fn allocate_in_steps(&self, allocation: &mut Allocation) -> Result<()> {
        loop {
            match self.cache.allocate_some(allocation, STEP_PAGES) {
                Ok(Batch::Last) => return Ok(()),
                Ok(Batch::More) => {}
                Err(VmError::NoMemory) if find_more() == GrowthOutcome::Grown => {}
                Err(error) => return Err(error.into()),
            }
            sched::checkpoint()?;
        }
    }
    /// The frames.
    pub fn cache(&self) -> &Arc<PageCache> {
        &self.cache
    }
}

impl FileContent for CacheContent {
    fn size(&self) -> u64 {
        self.cache.size()
    }

    fn read_at(&self, offset: u64, sink: &mut dyn Sink) -> Result<usize> {
        let mut done = 0;
        // Where a copy goes to is there nearly always: it is looked for only after a copy fell
        // short.
        let mut fell_short = false;
        loop {
            let want = sink.remaining();
            if want == 0 || offset + done as u64 >= self.cache.size() {
                return Ok(done);
            }
            if fell_short && let Err(error) = sink.fault_in() {
                return so_far(done, error);
            }
            let step = want.min(STEP);
            match self.cache.read_at(offset + done as u64, step, |bytes| sink.put_without_fault(bytes)) {
                Ok(n) => {
                    done += n;
                    fell_short = n < step;
                }
                Err(VmError::NoMemory) if find_more() == GrowthOutcome::Grown => {}
                Err(error) => return so_far(done, error.into()),
            }
            if want > STEP
                && let Err(error) = sched::checkpoint()
            {
                return so_far(done, error);
            }
        }
    }

    fn write_at(&self, offset: u64, source: &mut dyn Source) -> Result<usize> {
        let mut done = 0;
        loop {
            let want = source.remaining();
            if want == 0 {
                return Ok(done);
            }
            let at = offset.checked_add(done as u64).ok_or(Errno::EFBIG)?;
            let step = source.fault_in().and_then(|()| {
                Ok(self.cache.write_at(at, want.min(STEP), |bytes| source.take_without_fault(bytes))?)
            });
            match step {
                Ok(n) => done += n,
                Err(Errno::ENOMEM) if find_more() == GrowthOutcome::Grown => {}
                Err(error) => return so_far(done, error),
            }
            if want > STEP
                && let Err(error) = sched::checkpoint()
            {
                return so_far(done, error);
            }
        }
    }

    fn resize(&self, size: u64) -> Result<()> {
        Ok(self.cache.truncate(size)?)
    }

    fn punch(&self, range: Range<u64>, how: Punch) -> Result<()> {
        self.cache.punch_hole(range.clone())?;
        match how {
            Punch::Hole => Ok(()),
            Punch::Zeroes => self.allocate(range),
        }
    }

    fn allocate(&self, range: Range<u64>) -> Result<()> {
        let pages = range.end.div_ceil(PAGE_SIZE as u64) - range.start / PAGE_SIZE as u64;
        let missing = pages.saturating_sub(self.cache.pages() + self.cache.swapped_pages());
        if missing > super::stats::all_there_can_be() {
            // No search would ever find so much.
            return Err(Errno::ENOMEM);
        }
        let mut allocation = Allocation::new(range);
        let outcome = self.allocate_in_steps(&mut allocation);
        if outcome.is_err() {
            while self.cache.take_back_some(&mut allocation, STEP_PAGES) == Batch::More {
                sched::cond_resched();
            }
            // Memory was searched for between the steps. With what was taken back there is some
            // again, which is no reason to try all of it once more.
            oom::forget_denial();
        }
        outcome
    }

    fn seek_data(&self, offset: u64) -> Option<u64> {
        self.cache.seek_data(offset)
    }

    fn seek_hole(&self, offset: u64) -> u64 {
        self.cache.seek_hole(offset)
    }

    fn deny_writers(&self) -> Result<()> {
        self.cache.deny_writers()?;
        let outcome = self.wait_for_pins();
        if outcome.is_err() {
            self.cache.admit_writers();
        }
        outcome
    }

    fn held(&self) -> u64 {
        (self.cache.pages() + self.cache.swapped_pages()) * freehold_machine::PAGE_SIZE as u64
    }

    fn sync(&self) -> Result<()> {
        Ok(self.cache.sync(0..u64::MAX)?)
    }
}

/// Makes contents whose only store is memory.
pub struct CacheSource {
    frames: Frames,
}

impl CacheSource {
    /// Contents made of `frames`.
    pub const fn new(frames: Frames) -> Self {
        Self { frames }
    }
}

impl ContentSource for CacheSource {
    fn empty(&self) -> Result<Arc<dyn FileContent>> {
        Ok(reserve::arc(CacheContent::new(PageCache::new(self.frames))))
    }

    fn capacity(&self) -> u64 {
        super::stats::total_bytes() / 2
    }

    fn grow(&self) -> Result<()> {
        // Memory that the host would give is there for programs' files, too.
        if hotplug::grow() == GrowthOutcome::Grown { Ok(()) } else { Err(Errno::ENOSPC) }
    }
}
