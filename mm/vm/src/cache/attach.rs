//! The list of address spaces that map a cache.
//!
//! A space is in the cache's list, under the cache's lock, as long as one of its areas is attached;
//! areas are attached before they have pages. So a task that removes pages finds every leaf, if it
//! removes them from the index first. A child's space is not accessible between fork and its first
//! run. Afterwards it is notified that it has missed something.
//!
//! **Stores through mappings.** Areas of a shared mapping that may store are counted, as by Linux'
//! i_mmap_writable: while there are none, they can be denied for good (F_SEAL_WRITE); while there
//! are some, denying is refused, and while they are denied, new ones are refused.
//!
//! **Locks.** Spaces are visited one at a time with no lock of the cache held; the lock is taken
//! again for the next spaces.

use alloc::sync::{Arc, Weak};
use core::ops::Range;

use arrayvec::ArrayVec;
use freehold_paging::Memory;

use super::PageCache;
use crate::VmError;
use crate::registry::{Locking, SpaceHandle};
use crate::request::SharedWrite;
use crate::swap::Age;

/// Up to 64 pages of a cache: bit `n` of `mask` is the page `first + n`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageSet {
    /// The page of bit 0.
    pub(crate) first: u64,
    /// The pages, as bits.
    pub(crate) mask: u64,
}

impl PageSet {
    /// The range from the first to the last page.
    pub(crate) const fn span(self) -> Range<u64> {
        let (from, to) = (self.mask.trailing_zeros() as u64, 64 - self.mask.leading_zeros() as u64);
        self.first + from..self.first + to
    }
    /// Whether `page` is one of them.
    pub(crate) const fn contains(self, page: u64) -> bool {
        page >= self.first && page < self.first + 64 && self.mask & 1 << (page - self.first) != 0
    }
}

pub(super) struct Mapper<S: Memory> {
    areas: usize,
    handle: Option<Weak<dyn SpaceHandle<S>>>,
    /// Whether pages were removed while the handle was not known yet (between fork and the child's
    /// first run).
    missed: bool,
}

/// Mappers that are looked up in one hold of the lock.
const AT_ONCE: usize = 32;

/// Treatment of an address space that is not accessible yet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unready {
    /// The space unmaps all that it inherited, as soon as it is accessible.
    Misses,
    /// The space is skipped this time.
    Waits,
}

/// Areas that may store to a cache through shared mappings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Writers {
    /// The number of such areas.
    Areas(u64),
    /// No area may store, or gain the right to.
    Denied,
}

/// One area's entry in its cache's list of mappers.
pub(crate) struct Attachment<S: Memory> {
    cache: Arc<PageCache<S>>,
    space: u64,
    stores: SharedWrite,
}

impl<S: Memory> Attachment<S> {
    /// The attachment of an area of `space`; `stores` is for a shared mapping that may store, or
    /// may gain the right to.
    ///
    /// # Errors
    /// [`VmError::Permission`] where such mappings are denied; [`VmError::Busy`] where pages have
    /// mirrors, which fall first ([`PageCache::expect_stores`]).
    pub(crate) fn new(cache: &Arc<PageCache<S>>, space: u64, stores: SharedWrite) -> Result<Self, VmError> {
        let mut inner = cache.inner.lock();
        if stores == SharedWrite::Allowed {
            if !inner.index.mirrors.is_empty() {
                return Err(VmError::Busy);
            }
            match &mut inner.writers {
                Writers::Areas(areas) => *areas += 1,
                Writers::Denied => return Err(VmError::Permission),
            }
        }
        inner.mappers.entry(space).or_insert(Mapper { areas: 0, handle: None, missed: false }).areas += 1;
        drop(inner);
        Ok(Self { cache: cache.clone(), space, stores })
    }
    pub(crate) fn for_space(&self, space: u64) -> Self {
        Self::new(&self.cache, space, self.stores)
            .expect("while one area may store, no second one is denied it")
    }
    pub(crate) const fn cache(&self) -> &Arc<PageCache<S>> {
        &self.cache
    }
    pub(crate) const fn stores(&self) -> SharedWrite {
        self.stores
    }
    /// Sets the handle by which the space is accessed. Returns whether pages were removed since it
    /// was attached; it then unmaps all of them.
    #[must_use]
    pub(crate) fn set_handle(&self, handle: &Weak<dyn SpaceHandle<S>>) -> bool {
        let mut inner = self.cache.inner.lock();
        let Some(mapper) = inner.mappers.get_mut(&self.space) else { return false };
        if mapper.handle.is_none() {
            mapper.handle = Some(handle.clone());
        }
        mapper.missed
    }
}

impl<S: Memory> Clone for Attachment<S> {
    fn clone(&self) -> Self {
        self.for_space(self.space)
    }
}

impl<S: Memory> Drop for Attachment<S> {
    fn drop(&mut self) {
        let mut inner = self.cache.inner.lock();
        if self.stores == SharedWrite::Allowed
            && let Writers::Areas(areas) = &mut inner.writers
        {
            *areas -= 1;
        }
        if let Some(mapper) = inner.mappers.get_mut(&self.space) {
            mapper.areas -= 1;
            if mapper.areas == 0 {
                // The handle's last weak count may free memory: so it is not dropped under the
                // lock.
                let gone = inner.mappers.remove(&self.space);
                drop(inner);
                drop(gone);
            }
        }
    }
}

impl<S: Memory> PageCache<S> {
    /// From now on denies shared mappings that may store.
    ///
    /// # Errors
    /// [`VmError::Busy`] while there is such a mapping.
    pub fn deny_writers(&self) -> Result<(), VmError> {
        let mut inner = self.inner.lock();
        match inner.writers {
            Writers::Areas(1..) => Err(VmError::Busy),
            _ => {
                inner.writers = Writers::Denied;
                Ok(())
            }
        }
    }

    /// How many areas of all address spaces show it.
    pub fn mapped_areas(&self) -> u64 {
        self.inner.lock().mappers.values().map(|mapper| mapper.areas as u64).sum()
    }

    /// Undoes [`PageCache::deny_writers`].
    pub fn admit_writers(&self) {
        let mut inner = self.inner.lock();
        if inner.writers == Writers::Denied {
            inner.writers = Writers::Areas(0);
        }
    }

    /// Checks that no page from number `from` on is pinned, for up to `most` present pages. Returns
    /// the page at which to continue, `None` at the end.
    ///
    /// # Errors
    /// [`VmError::Busy`] if a page is pinned.
    pub fn check_unpinned(&self, from: u64, most: usize) -> Result<Option<u64>, VmError> {
        let inner = self.inner.lock();
        let mut next = from;
        for _ in 0..most {
            let Some(page) = inner.index.next(next..u64::MAX) else { return Ok(None) };
            let pins = inner.index.with(page, |frame| frame.record().counts().load().pins);
            if pins.is_some_and(|pins| pins > 0) {
                return Err(VmError::Busy);
            }
            next = page + 1;
        }
        Ok(Some(next))
    }

    /// Makes every address space unmap `pages`. The caller holds no address space's lock.
    pub(crate) fn zap_everywhere(&self, pages: &Range<u64>) {
        self.for_each_mapper(Unready::Misses, |space| {
            space.with(Locking::Wait, &mut |space| space.zap_cache(self, pages.clone()));
        });
    }

    /// Makes every address space unmap those of `pages` that it has not used since the last such
    /// call, or all of them, depending on `age`. Returns the pages that stay mapped somewhere. The
    /// caller holds no address space's lock.
    pub(super) fn unmap_idle_everywhere(&self, mut pages: PageSet, age: Age) -> u64 {
        let mut stay = 0;
        let how = match age {
            Age::Respect => Locking::Try,
            Age::Ignore => Locking::Wait,
        };
        self.for_each_mapper(Unready::Waits, |space| {
            if pages.mask != 0 {
                let mut used = pages.mask;
                // A space that is busy counts as using all of the pages.
                space.with(how, &mut |space| used = space.unmap_idle(self, pages, age));
                stay |= used;
                // Pages that one space uses may stay mapped in other spaces, too.
                pages.mask &= !used;
            }
        });
        stay
    }

    /// Show every address space that maps the cache, with no lock held.
    pub(super) fn for_each_mapper(&self, unready: Unready, mut f: impl FnMut(&dyn SpaceHandle<S>)) {
        // On the stack, since reclaim also calls this.
        let mut handles = ArrayVec::<_, AT_ONCE>::new();
        let mut inner = self.inner.lock();
        // The list may change between two holds of the lock: mappers are visited by number.
        let mut next = 0;
        loop {
            for (&space, mapper) in inner.mappers.range_mut(next..).take(AT_ONCE) {
                next = space + 1;
                match &mapper.handle {
                    Some(handle) => handles.push(handle.clone()),
                    None if unready == Unready::Misses => mapper.missed = true,
                    None => {}
                }
            }
            drop(inner);
            handles.drain(..).filter_map(|handle| handle.upgrade()).for_each(|handle| f(&*handle));
            inner = self.inner.lock();
            if inner.mappers.range(next..).next().is_none() {
                return;
            }
        }
    }
}
