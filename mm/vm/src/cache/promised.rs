//! The part of a cache in the sum of promised memory (the crate's module `promise`): its size, if
//! all of that was promised; else its pages, in memory or in the swap, if memory is their only
//! place.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use freehold_frame::Frame;
use freehold_machine::{CpuId, Cpus as _};
use freehold_paging::Memory;

use super::{CacheInner, CacheKind, ListedAt, PAGE, PageCache};
use crate::VmError;

/// The pages that one cache has added. Changes under the cache's lock only.
#[derive(Default)]
pub(super) struct CachePromise {
    pages: AtomicU64,
    /// The whole size was promised.
    is_sized: AtomicBool,
}

impl<S: Memory> PageCache<S> {
    /// Promises the present size, whatever pages there will be. Called once, when the cache is new.
    ///
    /// # Errors
    /// [`VmError::NoMemory`].
    pub fn promise_size(&self) -> Result<(), VmError> {
        let Some(listed) = self.listed.get() else { return Ok(()) };
        let _inner = self.inner.lock();
        let pages = self.size().div_ceil(PAGE);
        let added = listed.promises.ask(self.cpu(), pages)?;
        listed.promises.change(self.cpu(), added, pages);
        self.promised.pages.store(pages, Ordering::Relaxed);
        self.promised.is_sized.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Adds a page that is neither read from a store nor from the swap.
    ///
    /// # Errors
    /// [`VmError::NoSpace`] if it may not be promised; [`VmError::NoMemory`].
    #[inline]
    pub(super) fn add_page(
        &self,
        inner: &mut CacheInner<S>,
        index: u64,
        frame: Frame<CacheKind, S>,
    ) -> Result<(), VmError> {
        if let Some(listed) = self.listed.get()
            && listed.promises.has_limit()
        {
            self.promise_page(listed)?;
        }
        let done = inner.index.insert(index, frame);
        self.settle(inner);
        Ok(done?)
    }
    #[cold]
    fn promise_page(&self, listed: &ListedAt<S>) -> Result<(), VmError> {
        let is_exempt =
            self.store.is_some() || self.is_secret() || self.promised.is_sized.load(Ordering::Relaxed);
        if !is_exempt {
            let added = listed.promises.ask(self.cpu(), 1).map_err(|_| VmError::NoSpace)?;
            self.promised.pages.fetch_add(added, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Adds the pages that there are by now, and takes back those that there were.
    #[inline]
    pub(super) fn settle(&self, inner: &CacheInner<S>) {
        if self.store.is_none() {
            self.settle_at(inner.index.pages() + inner.index.swapped());
        }
    }
    /// Takes back all that the cache has promised: it is gone.
    pub(super) fn take_back_promise(&self) {
        self.promised.is_sized.store(false, Ordering::Relaxed);
        self.settle_at(0);
    }
    #[inline]
    fn settle_at(&self, pages: u64) {
        let Some(listed) = self.listed.get() else { return };
        if self.is_secret() || self.promised.is_sized.load(Ordering::Relaxed) {
            return;
        }
        let before = self.promised.pages.load(Ordering::Relaxed);
        self.promised.pages.store(pages, Ordering::Relaxed);
        listed.promises.change(self.cpu(), before, pages);
    }
    fn cpu(&self) -> CpuId {
        self.source.machine().current_cpu()
    }
}
