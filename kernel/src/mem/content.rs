//! File bytes in the page cache.
//!
//! The frames are user-side: the kernel can access their bytes only through a window, in which no
//! fault may happen. So each copy runs in the window without faults. If it stops early, the
//! program's page is faulted in without the window, and the copy continues (the page may have been
//! removed again in between). A write faults in first, because a copy that stops early would leave
//! an empty new page in the cache.
//!
//! **Long work.** A program chooses how many bytes a call moves, and a copy of present pages never
//! sleeps. So all work is done in steps of [`STEP`] bytes. Between two steps other tasks may run,
//! and a task that is being killed stops.

use core::any::Any;
use core::ops::Range;

use freehold_collections::{Arc, reserve};
use freehold_machine::PAGE_SIZE;
use freehold_vm::{Allocation, Batch, VmError};

use super::hotplug::{self, GrowthOutcome};
use super::huge_content::HugeContent;
use super::{Frames, PageCache, find_more, oom};
use crate::fs::{ContentSource, FileContent, Punch};
use crate::sync::WaitQueue;
use crate::user::{Sink, Source, so_far};
use crate::{Errno, Result, sched, time};

/// Number of bytes that are copied, or get frames, between two checkpoints.
const STEP: usize = 256 << 10;

/// The same number, in pages.
const STEP_PAGES: u64 = (STEP / PAGE_SIZE) as u64;
/// Nanoseconds to wait after each check for pins: as in Linux' memfd_wait_for_pins.
const PIN_WAITS: [u64; 4] = [10 * MILLISECOND, 20 * MILLISECOND, 40 * MILLISECOND, 80 * MILLISECOND];
const MILLISECOND: u64 = time::SECOND / 1000;

/// A file's content whose frames are the page cache.
pub struct CacheContent {
    cache: Arc<PageCache>,
}

impl CacheContent {
    /// Makes content over `cache`, and registers its pages so that they can be found by their
    /// frames.
    pub fn new(cache: Arc<PageCache>) -> Self {
        super::commons().list(&cache);
        Self { cache }
    }
    /// `EBUSY` if a page is pinned.
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
    /// Returns the page cache.
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
        // The target of a copy is nearly always present, so it is faulted in only after a copy
        // stopped early.
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
            // No search could ever find so much memory.
            return Err(Errno::ENOMEM);
        }
        let mut allocation = Allocation::new(range);
        let outcome = self.allocate_in_steps(&mut allocation);
        if outcome.is_err() {
            while self.cache.take_back_some(&mut allocation, STEP_PAGES) == Batch::More {
                sched::cond_resched();
            }
            // The steps have already searched for memory. Reclaim has freed some since, which is no
            // reason to repeat the whole call.
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

    fn promise_size(&self) -> Result<()> {
        Ok(self.cache.promise_size()?)
    }

    fn deny_writers(&self) -> Result<()> {
        deny_writers(&self.cache, || self.check_unpinned())
    }

    fn held(&self) -> u64 {
        (self.cache.pages() + self.cache.swapped_pages()) * freehold_machine::PAGE_SIZE as u64
    }

    fn sync(&self) -> Result<()> {
        Ok(self.cache.sync(0..u64::MAX)?)
    }
}

/// Denies mappings of `cache` that may store, if `check` then finds no page pinned.
pub(super) fn deny_writers(cache: &PageCache, check: impl Fn() -> Result<()>) -> Result<()> {
    cache.deny_writers()?;
    let outcome = wait_for_pins(check);
    if outcome.is_err() {
        cache.admit_writers();
    }
    outcome
}

/// Waits a short while until `check` finds no page pinned. A pin that was taken through a mapping
/// may outlive it. Such a pin ends soon or never. `EBUSY` if one remains.
fn wait_for_pins(check: impl Fn() -> Result<()>) -> Result<()> {
    for wait in PIN_WAITS {
        match check() {
            Err(Errno::EBUSY) => {}
            outcome => return outcome,
        }
        WaitQueue::new().wait_killable_until(time::now() + wait, || None::<()>)?;
    }
    check()
}

/// Returns the cache of mappable content: of the page cache, or of huge pages.
pub fn cache_of(content: &dyn FileContent) -> Option<&Arc<PageCache>> {
    let any: &dyn Any = content;
    let huge = || any.downcast_ref::<HugeContent>().map(HugeContent::cache);
    any.downcast_ref::<CacheContent>().map(CacheContent::cache).or_else(huge)
}

/// Makes contents that are stored only in memory.
pub struct CacheSource {
    frames: Frames,
}

impl CacheSource {
    /// Makes contents of `frames`.
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
        // Programs' files may also use memory that the host can add.
        if hotplug::grow() == GrowthOutcome::Grown { Ok(()) } else { Err(Errno::ENOSPC) }
    }
}
