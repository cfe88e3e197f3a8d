//! Pages that the kernel holds for repeated access.

use freehold_frame::{Frame, NodePolicy, PageCache as CacheKind};
use freehold_machine::PAGE_SIZE;
use freehold_paging::Memory;
use freehold_xpfo::Windows;

use super::PageCache;
use crate::VmError;

/// A page of a cache, held in its frame: it is neither moved nor freed, and found without a search.
///
/// A write through a held page marks nothing as changed, so it is for caches that are [kept in
/// memory](PageCache::keep_in_memory). If a program removes the page from the file meanwhile, only
/// the holder still has it.
#[derive(Debug)]
pub struct HeldPage<S: Memory> {
    frame: Frame<CacheKind, S>,
    machine: S::Machine,
}

impl<S: Memory> PageCache<S> {
    /// Holds page `index`. A hole gets a frame first.
    ///
    /// # Errors
    /// [`VmError::NoMemory`], [`VmError::TooManyHolders`], the store's error.
    ///
    /// # Panics
    /// For a secret file, whose bytes the kernel may not read.
    pub fn hold(&self, index: u64) -> Result<HeldPage<S>, VmError> {
        assert!(!self.is_secret(), "the kernel holds secret memory");
        let _change = self.change(index..index + 1);
        let (frame, _) = self.get_or_fill(index, NodePolicy::Local)?;
        Ok(HeldPage { frame, machine: self.source.machine() })
    }
}

impl<S: Memory> HeldPage<S> {
    /// Run `f` on its bytes, which programs that map it may change at any moment. Inside, nothing
    /// may fault or sleep.
    #[inline]
    pub fn with_bytes<R>(&self, f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R) -> R {
        self.machine.with_bytes(&self.frame, f)
    }
    /// As [`with_bytes`](Self::with_bytes), for bytes that are only read.
    #[inline]
    pub fn read_bytes<R>(&self, f: impl FnOnce(&[u8; PAGE_SIZE]) -> R) -> R {
        self.machine.read_bytes(&self.frame, f)
    }
}
