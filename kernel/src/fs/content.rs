//! The bytes of a regular file.
//!
//! A [`FileContent`] stores a file's bytes: frames of the page cache in the kernel, plain memory in
//! host tests. Holes read as zeroes. Implementations lock for themselves, and copy inside per-CPU
//! windows with the protocol of [`crate::user`]; so calls may sleep (to fault in a program's page)
//! and callers hold no spin lock. Two writers of one range may interleave page by page: a file
//! system that needs whole writes (tmpfs) excludes them with a sleeping lock.

use core::any::Any;
use core::ops::Range;

use freehold_collections::Arc;

use crate::hw::PAGE;
use crate::user::{Sink, Source};
use crate::{Errno, Result};

/// Operation of fallocate(2) on a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Punch {
    /// Make it a hole; later reads give zeroes.
    Hole,
    /// Make it zeroes with memory allocated for them.
    Zeroes,
}

/// The bytes of a regular file or a block device.
pub trait FileContent: Any + Send + Sync {
    /// Bytes of its pages. Content of huge pages is written through mappings only.
    fn unit(&self) -> u64 {
        PAGE
    }
    /// Length in bytes.
    fn size(&self) -> u64;
    /// Copies bytes from `offset` on until the sink is full or the content ends. Returns how many
    /// bytes were copied.
    fn read_at(&self, offset: u64, sink: &mut dyn Sink) -> Result<usize>;
    /// Writes bytes until the source is empty; grows the content. Fails only if nothing was
    /// written.
    fn write_at(&self, offset: u64, source: &mut dyn Source) -> Result<usize>;
    /// Cuts the content, or lengthens it with a hole. Mappings of the cut part are removed when it
    /// returns.
    fn resize(&self, size: u64) -> Result<()>;
    /// Replaces the bytes of `range`; never changes the size.
    fn punch(&self, range: Range<u64>, how: Punch) -> Result<()>;
    /// Allocates memory for `range`, so that later writes there cannot fail; never changes the
    /// size.
    fn allocate(&self, range: Range<u64>) -> Result<()>;
    /// Returns the first byte at or after `offset` that has memory allocated, if any before the
    /// end.
    fn seek_data(&self, offset: u64) -> Option<u64>;
    /// Returns the first byte at or after `offset` that has no memory. The end of the content is a
    /// hole.
    fn seek_hole(&self, offset: u64) -> u64;
    /// Bytes of memory in use.
    fn held(&self) -> u64;
    /// Promises memory for the whole present size, instead of for each page as it is made. Called
    /// once, before there are pages. `ENOMEM` if there is not that much.
    fn promise_size(&self) -> Result<()> {
        Ok(())
    }
    /// Denies shared mappings that may store, permanently (F_SEAL_WRITE). `EBUSY` while there is
    /// such a mapping, and while a page stays pinned: a device may write it. May sleep.
    fn deny_writers(&self) -> Result<()> {
        Ok(())
    }
    /// Waits until changes are on the device. Content in memory needs nothing.
    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

/// Makes contents of files for a file system in memory.
pub trait ContentSource: Send + Sync {
    /// Bytes of the contents' pages.
    fn unit(&self) -> u64 {
        PAGE
    }
    /// Makes empty content; `ENOMEM` if there is no memory for its bookkeeping.
    fn empty(&self) -> Result<Arc<dyn FileContent>>;
    /// Bytes that all contents may hold together (the default limit of a tmpfs).
    fn capacity(&self) -> u64;
    /// Makes the capacity grow, if possible; may sleep. `ENOSPC` if it cannot grow.
    fn grow(&self) -> Result<()> {
        Err(Errno::ENOSPC)
    }
}
