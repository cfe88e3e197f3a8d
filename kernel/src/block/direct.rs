//! O_DIRECT: a disk's bytes to and from the program's own frames, past the page cache.
//!
//! The frames are pinned while the device has the request: the device's bytes stay the program's
//! memory, even if fork, mprotect or reclaim act meanwhile. A reader through the cache sees bytes
//! that were written directly, and the other way round: before a transfer the cache's changes in
//! the range are stored, and a write takes the range's pages out of the cache before and after.
//! Where a page cannot be taken out (a pin may write it, or a program changes it again and again
//! through a mapping), the write goes through the cache and is stored at once.

use core::ops::Range;

use freehold_bounce::{Original, OriginalMut};
use freehold_virtio::{BlockDevice, SECTOR_SIZE, Sleep};

use super::{DiskContent, Shortage, ensure_objects};
use crate::user::{Direct, Sink, Source, so_far};
use crate::{Errno, Result, sched};

/// Largest number of bytes that are pinned for one request.
const MAX_RUN: usize = 1 << 20;

impl DiskContent {
    /// Reads into the program's frames. `None` if the sink is not the program's memory.
    pub(super) fn read_direct(&self, offset: u64, sink: &mut dyn Sink) -> Option<Result<usize>> {
        let is_aligned = is_aligned(offset, sink.direct(SECTOR_SIZE))?;
        Some(is_aligned.and_then(|()| self.check()).and_then(|()| {
            if offset >= self.size {
                return Ok(0);
            }
            let range = self.range(offset, sink.remaining());
            self.cached.cache().sync(range.clone())?;
            Self::transfer(range, |sector, most| {
                let read =
                    &mut |bytes: &mut dyn OriginalMut| Ok(self.disk.read(sector, bytes, Sleep::Killable)?);
                sink.fill_direct(most, SECTOR_SIZE, read)
            })
        }))
    }

    /// Writes from the program's frames. `None` if the data must go through the cache.
    pub(super) fn write_direct(&self, offset: u64, source: &mut dyn Source) -> Option<Result<usize>> {
        if self.disk.is_read_only() {
            return Some(Err(Errno::EPERM));
        }
        if let Err(error) = is_aligned(offset, source.direct(SECTOR_SIZE))?.and_then(|()| self.check()) {
            return Some(Err(error));
        }
        if source.remaining() == 0 {
            return Some(Ok(0));
        }
        if offset >= self.size {
            return Some(Err(Errno::ENOSPC));
        }
        let range = self.range(offset, source.remaining());
        match self.cached.cache().forget(range.clone()) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => return Some(Err(error.into())),
        }
        let result = Self::transfer(range.clone(), |sector, most| {
            let write = &mut |bytes: &dyn Original| Ok(self.disk.write(sector, bytes, Sleep::Killable)?);
            source.drain_direct(most, SECTOR_SIZE, write)
        });
        // A page that was read during the transfer has old bytes.
        let after = self.forget_cached(range);
        Some(result.and_then(|count| after.map(|()| count)))
    }

    /// Takes the pages of `range` out of the cache after the disk was written directly. A page that
    /// stays was changed during the write, or may be changed through a pin or a mapping: the order
    /// of the two writes is then undefined.
    fn forget_cached(&self, range: Range<u64>) -> Result<()> {
        let cache = self.cached.cache();
        if !cache.forget(range.clone())? {
            // A page that was being stored is clean after this.
            cache.sync(range.clone())?;
            cache.forget(range)?;
        }
        Ok(())
    }

    /// The `length` bytes from `offset` on, as far as the disk has them.
    fn range(&self, offset: u64, length: usize) -> Range<u64> {
        offset..offset.saturating_add(length as u64).min(self.size)
    }

    /// Lets `run` move the bytes of `range`, as many as can be moved. `run` gets a sector and the
    /// largest number of bytes. An error counts only if nothing was moved before it.
    fn transfer(range: Range<u64>, mut run: impl FnMut(u64, usize) -> Result<usize>) -> Result<usize> {
        let mut done = 0;
        loop {
            let at = range.start + done as u64;
            let left = usize::try_from(range.end.saturating_sub(at)).unwrap_or(usize::MAX);
            if left == 0 {
                return Ok(done);
            }
            if done > 0 {
                let ready = sched::checkpoint().and_then(|()| Ok(ensure_objects(Shortage::Fail)?));
                if let Err(error) = ready {
                    return so_far(done, error);
                }
            }
            match run(at / SECTOR_SIZE as u64, left.min(MAX_RUN)) {
                Ok(0) => return Ok(done),
                Ok(count) => done += count,
                Err(error) => return so_far(done, error),
            }
        }
    }
}

/// `EINVAL` unless everything lies on sector borders; `None` if the memory is not a program's.
fn is_aligned(offset: u64, memory: Direct) -> Option<Result<()>> {
    match memory {
        Direct::No => None,
        Direct::Aligned if offset.is_multiple_of(SECTOR_SIZE as u64) => Some(Ok(())),
        Direct::Aligned | Direct::Unaligned => Some(Err(Errno::EINVAL)),
    }
}
