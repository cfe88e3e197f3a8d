//! Memory that is promised: how much programs may still ask for, and how much they may use by now
//! without asking again (Linux: vm.overcommit_memory and Committed_AS).
//!
//! Promised are
//! - private areas that are, or once were, writable ([`AreaFlags::ACCOUNT`]), by their pages;
//! - shared anonymous memory, and other memory whose whole size was
//!   [promised](crate::PageCache::promise_size), by its size;
//! - pages of other files that are only in memory, each from when it is made.
//!
//! Memory for which no promise was asked for ([`AreaFlags::NORESERVE`]) is not promised, unless the
//! sum has a limit.
//!
//! **Settling.** A space and a cache know what they have added to the sum. At the end of a change
//! they add the difference to what they promise by then ([`AddressSpace::settle`]). If the sum has
//! a limit, a change asks first, which adds what it will need; settling then takes back what was
//! not needed. So two changes at the same time are never both allowed by the same free memory, and
//! both may be refused by it. A limit that is set, or lowered, below the sum takes nothing back.
//!
//! The sum is kept per CPU, so a change stores to no cache line that other CPUs use.
//!
//! [`AreaFlags::ACCOUNT`]: crate::AreaFlags::ACCOUNT
//! [`AreaFlags::NORESERVE`]: crate::AreaFlags::NORESERVE

use core::sync::atomic::{AtomicU64, Ordering, fence};

use freehold_machine::{CpuId, Cpus as _, PAGE_SHIFT, Tally};
use freehold_paging::Memory;

use crate::{AddressSpace, Commons, VmError};

/// The memory that programs may be promised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PromiseLimit {
    /// Everything.
    None,
    /// One request may have so many bytes; the sum is not limited.
    Request(u64),
    /// The sum may have so many pages.
    Sum(u64),
}

/// The sum of all promises, and what limits it.
pub(crate) struct Promises {
    /// Pages. One CPU's part may be negative.
    sum: Tally<1>,
    /// Bytes of one request.
    request: AtomicU64,
    /// Pages of the sum.
    most: AtomicU64,
}

impl Promises {
    pub(crate) const fn new() -> Self {
        Self { sum: Tally::new(), request: AtomicU64::new(u64::MAX), most: AtomicU64::new(u64::MAX) }
    }
    fn set(&self, limit: PromiseLimit) {
        let (request, most) = match limit {
            PromiseLimit::None => (u64::MAX, u64::MAX),
            PromiseLimit::Request(bytes) => (bytes, u64::MAX),
            PromiseLimit::Sum(pages) => (u64::MAX, pages),
        };
        self.request.store(request, Ordering::Relaxed);
        self.most.store(most, Ordering::Relaxed);
    }
    pub(crate) fn has_limit(&self) -> bool {
        self.most.load(Ordering::Relaxed) != u64::MAX
    }
    /// Pages. Parts of other CPUs are read one after the other, so the sum may be a little off
    /// while they change, and even below 0.
    fn sum(&self) -> u64 {
        u64::try_from(self.sum.sum(0).cast_signed()).unwrap_or(0)
    }
    /// Replaces `before` by `now` in the sum.
    #[inline]
    pub(crate) fn change(&self, cpu: CpuId, before: u64, now: u64) {
        if before != now {
            self.sum.add(cpu, 0, now.wrapping_sub(before));
        }
    }
    /// Asks for `pages` more. Returns how many were added to the sum: none, unless it has a limit.
    ///
    /// # Errors
    /// [`VmError::NoMemory`].
    #[inline]
    pub(crate) fn ask(&self, cpu: CpuId, pages: u64) -> Result<u64, VmError> {
        if pages > self.request.load(Ordering::Relaxed) >> PAGE_SHIFT {
            return Err(VmError::NoMemory);
        }
        self.ask_again(cpu, pages)
    }
    /// As [`ask`](Self::ask), for what was asked for once, in one or several requests.
    #[inline]
    fn ask_again(&self, cpu: CpuId, pages: u64) -> Result<u64, VmError> {
        if self.has_limit() { self.ask_of_sum(cpu, pages) } else { Ok(0) }
    }
    #[cold]
    fn ask_of_sum(&self, cpu: CpuId, pages: u64) -> Result<u64, VmError> {
        self.change(cpu, 0, pages);
        // Of two CPUs that ask at the same time, one at least sees what the other adds.
        fence(Ordering::SeqCst);
        if self.sum() <= self.most.load(Ordering::Relaxed) {
            return Ok(pages);
        }
        self.change(cpu, pages, 0);
        Err(VmError::NoMemory)
    }
}

impl<S: Memory> Commons<S> {
    /// Sets what programs may be promised from now on; [`PromiseLimit::None`] at first.
    pub fn set_promise_limit(&self, limit: PromiseLimit) {
        self.promises.set(limit);
    }
    /// Whether the sum of all promises has a limit.
    pub fn has_promise_limit(&self) -> bool {
        self.promises.has_limit()
    }
    /// Returns the sum of all promises, in pages. Between the parts of a change that is up to that
    /// change's pages more.
    pub fn promised_pages(&self) -> u64 {
        self.promises.sum()
    }
}

impl<S: Memory> AddressSpace<S> {
    /// Asks for `pages` more, which a change will add to areas. The change ends with
    /// [`settle`](Self::settle), also when it fails.
    ///
    /// # Errors
    /// [`VmError::NoMemory`].
    #[inline]
    pub(crate) fn promise(&self, pages: u64) -> Result<(), VmError> {
        let added = self.resident.commons.promises.ask(self.cpu(), pages)?;
        if added > 0 {
            self.promised.fetch_add(added, Ordering::Relaxed);
        }
        Ok(())
    }
    /// Asks for what the areas promise, which are a fork's and new.
    ///
    /// # Errors
    /// [`VmError::NoMemory`].
    pub(crate) fn promise_areas(&mut self) -> Result<(), VmError> {
        let pages = self.areas.sums().accounted;
        *self.promised.get_mut() = self.resident.commons.promises.ask_again(self.cpu(), pages)?;
        self.settle();
        Ok(())
    }
    /// Adds to the sum what the areas promise, and takes back what they promised before.
    #[inline]
    pub(crate) fn settle(&mut self) {
        let now = self.areas.sums().accounted;
        let before = core::mem::replace(self.promised.get_mut(), now);
        self.resident.commons.promises.change(self.cpu(), before, now);
    }
    /// Takes back all that the space has promised.
    pub(crate) fn take_back_promise(&mut self) {
        let before = core::mem::take(self.promised.get_mut());
        self.resident.commons.promises.change(self.cpu(), before, 0);
    }
    /// Checks that all changes have settled.
    #[cfg(test)]
    pub(crate) fn validate_promise(&mut self) {
        assert_eq!(*self.promised.get_mut(), self.areas.sums().accounted, "pages that are promised");
    }
    fn cpu(&self) -> CpuId {
        self.resident.source().machine().current_cpu()
    }
}
