//! The kernel's worker, which adds and frees memory.

use core::sync::atomic::Ordering;

use freehold_machine::PAGE_SIZE;

use crate::{Dma, DmaSource};

/// Is notified that slots were added, or are short. Then the kernel's worker calls [`Dma::tick`]
/// each second while [`Dma::wants_ticks`].
pub trait Worker: Sync {
    /// Called in a task that holds no locks of the DMA API.
    fn wake(&self);
}

impl<S: DmaSource> Dma<S> {
    /// Whether [`Dma::tick`] has something to do.
    pub fn wants_ticks(&self) -> bool {
        self.pool.has_grown() || self.pool.is_crowded() || self.is_tight.load(Ordering::Relaxed)
    }

    /// The worker's scan, once a second: adds memory if little is free, and frees segments that
    /// were idle for five scans. Returns the number of bytes freed.
    pub fn tick(&self) -> usize {
        self.is_tight.store(false, Ordering::Relaxed);
        let Some(means) = self.means() else { return 0 };
        self.pool.tick(self.used_pages(), means) * PAGE_SIZE
    }

    /// Whether memory was added in pieces of less than 256 KiB for want of larger ones. Then the
    /// worker asks the page allocator for a whole pageblock, and calls [`Dma::mend`].
    pub fn is_fragmented(&self) -> bool {
        self.pool.is_fragmented()
    }
    /// Adds memory in one piece in place of such small ones, which are freed once they are idle.
    /// Returns whether that failed since the page allocator has no piece of 256 KiB or more.
    pub fn mend(&self) -> bool {
        self.means().is_some_and(|means| self.pool.mend(means))
    }

    /// Frees idle memory, because memory is short. Returns the number of bytes freed.
    pub fn shrink(&self) -> usize {
        self.means().map_or(0, |means| self.pool.shrink(means)) * PAGE_SIZE
    }
}
