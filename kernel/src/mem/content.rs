//! File bytes in the page cache.
//!
//! The frames are user-side: their bytes exist for the kernel only inside a window, where nothing may fault. So
//! each copy first faults in the program's page, then copies inside the window without faults, and goes on
//! where that fell short (the page may have been taken away again in between).

use alloc::sync::Arc;
use core::ops::Range;

use freehold_vm::VmError;

use super::hotplug::Growth;
use super::{Frames, PageCache, find_more};
use crate::fs::{Content, ContentSource, Punch};
use crate::user::{Sink, Source, so_far};
use crate::{Errno, Result};

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
    /// The frames.
    pub fn cache(&self) -> &Arc<PageCache> {
        &self.cache
    }
}

impl Content for CacheContent {
    fn size(&self) -> u64 {
        self.cache.size()
    }

    fn read_at(&self, offset: u64, sink: &mut dyn Sink) -> Result<usize> {
        let mut done = 0;
        loop {
            let want = sink.remaining();
            if want == 0 || offset + done as u64 >= self.cache.size() {
                return Ok(done);
            }
            if let Err(error) = sink.fault_in() {
                return so_far(done, error);
            }
            match self.cache.read_at(offset + done as u64, want, |bytes| sink.put_without_fault(bytes)) {
                Ok(n) => done += n,
                Err(VmError::NoMemory) if find_more() == Growth::Grown => {}
                Err(error) => return so_far(done, error.into()),
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
                Ok(self.cache.write_at(at, want, |bytes| source.take_without_fault(bytes))?)
            });
            match step {
                Ok(n) => done += n,
                Err(Errno::ENOMEM) if find_more() == Growth::Grown => {}
                Err(error) => return so_far(done, error),
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
        Ok(self.cache.allocate(range)?)
    }

    fn seek_data(&self, offset: u64) -> Option<u64> {
        self.cache.seek_data(offset)
    }

    fn seek_hole(&self, offset: u64) -> u64 {
        self.cache.seek_hole(offset)
    }

    fn held(&self) -> u64 {
        (self.cache.pages() + self.cache.swapped_pages()) * freehold_machine::PAGE_SIZE as u64
    }

    fn sync(&self) -> Result<()> {
        Ok(self.cache.write_back(0..u64::MAX)?)
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
    fn empty(&self) -> Result<Arc<dyn Content>> {
        Ok(Arc::new(CacheContent::new(PageCache::new(self.frames))))
    }

    fn capacity(&self) -> u64 {
        super::stats::total_bytes() / 2
    }
}
