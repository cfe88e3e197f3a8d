//! The bytes of a regular file.
//!
//! A [`FileContent`] is where a file's bytes are: frames of the page cache in the kernel, plain
//! memory in host tests. Holes read as zeroes. Implementations lock for themselves, and copy inside
//! per-CPU windows with the protocol of [`crate::user`]; so calls may sleep (to fault in a
//! program's page) and callers hold no spin lock. Two writers of one range may interleave page by
//! page: a file system that needs whole writes (tmpfs) excludes them with a sleeping lock.

use core::any::Any;
use core::ops::Range;

use freehold_collections::Arc;

use crate::user::{Sink, Source};
use crate::{Errno, Result};

/// Operation of fallocate(2) on a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Punch {
    /// Make it a hole; later reads give zeroes.
    Hole,
    /// Make it zeroes that have memory behind them.
    Zeroes,
}

/// The bytes of a regular file or a block device.
pub trait FileContent: Any + Send + Sync {
    /// Length in bytes.
    fn size(&self) -> u64;
    /// Copy bytes from `offset` on until the sink is full or the content ends; returns how many.
    fn read_at(&self, offset: u64, sink: &mut dyn Sink) -> Result<usize>;
    /// Take bytes until the source is empty; grows the content. Errors only if nothing was written.
    fn write_at(&self, offset: u64, source: &mut dyn Source) -> Result<usize>;
    /// Cut or lengthen (with a hole). Mappings of what is cut are gone when it returns.
    fn resize(&self, size: u64) -> Result<()>;
    /// Replace the bytes of `range`; never changes the size.
    fn punch(&self, range: Range<u64>, how: Punch) -> Result<()>;
    /// Give `range` memory, so that later writes there cannot fail; never changes the size.
    fn allocate(&self, range: Range<u64>) -> Result<()>;
    /// First byte at or after `offset` that has memory behind it, if any before the end.
    fn seek_data(&self, offset: u64) -> Option<u64>;
    /// First byte at or after `offset` that has none; the end of the content is a hole.
    fn seek_hole(&self, offset: u64) -> u64;
    /// Bytes of memory held.
    fn held(&self) -> u64;
    /// Deny shared mappings that may store, for good (F_SEAL_WRITE). `EBUSY` while there is one,
    /// and where a page stays pinned: a device may write it. May sleep.
    fn deny_writers(&self) -> Result<()> {
        Ok(())
    }
    /// Wait until changes are on the device; memory needs nothing.
    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

/// Makes contents for a file system that keeps its files in memory.
pub trait ContentSource: Send + Sync {
    /// Empty content; `ENOMEM` where there is no memory for its bookkeeping.
    fn empty(&self) -> Result<Arc<dyn FileContent>>;
    /// Bytes that all contents may hold together (the default limit of a tmpfs).
    fn capacity(&self) -> u64;
    /// Have the capacity grow, where it can; may sleep. `ENOSPC` where it cannot.
    fn grow(&self) -> Result<()> {
        Err(Errno::ENOSPC)
    }
}
