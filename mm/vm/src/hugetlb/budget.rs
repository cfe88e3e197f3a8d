//! The limit of a mount of huge pages, and the pages that it keeps for its files (Linux: `struct
//! hugepage_subpool`).
//!
//! A page counts as used from its reservation on, or from the fault that makes it without one, to
//! its end. The pages of a private mapping count as long as it is mapped, if it has reserved them.
//! The first pages are taken from those that the mount keeps, which stay reserved in the pool.

use alloc::sync::Arc;

use freehold_paging::Memory;

use crate::{Commons, VmError};

/// A limit, and pages that are kept.
pub struct HugeBudget<S: Memory> {
    commons: Arc<Commons<S>>,
    /// Largest number of used pages.
    most: u64,
    /// At least so many pages are used or kept at any time.
    least: u64,
    sums: spin::Mutex<BudgetSums>,
}

#[derive(Clone, Copy)]
struct BudgetSums {
    used: u64,
    /// Reservations of the pool that no file has yet.
    kept: u64,
}

impl<S: Memory> HugeBudget<S> {
    /// Makes a budget of at most `most` pages, and reserves `least`.
    ///
    /// # Errors
    /// [`VmError::NoHugePage`].
    pub fn new(commons: &Arc<Commons<S>>, most: u64, least: u64) -> Result<Arc<Self>, VmError> {
        commons.reserve_huge(least)?;
        let sums = spin::Mutex::new(BudgetSums { used: 0, kept: least });
        Ok(Arc::new(Self { commons: commons.clone(), most, least, sums }))
    }
    /// The largest number of used pages.
    pub const fn most(&self) -> u64 {
        self.most
    }
    /// How many pages are used or kept at least.
    pub const fn least(&self) -> u64 {
        self.least
    }
    /// The number of used pages.
    pub fn used(&self) -> u64 {
        self.sums.lock().used
    }

    /// Counts `count` pages more as used. Returns how many of them the pool has to reserve or give;
    /// the others were kept.
    ///
    /// # Errors
    /// [`VmError::NoHugePage`] beyond the limit.
    pub(super) fn take(&self, count: u64) -> Result<u64, VmError> {
        let mut sums = self.sums.lock();
        let used = sums.used.checked_add(count).filter(|&used| used <= self.most);
        sums.used = used.ok_or(VmError::NoHugePage)?;
        let from_kept = sums.kept.min(count);
        sums.kept -= from_kept;
        Ok(count - from_kept)
    }

    /// Counts `count` pages, `reserved` of which are reserved, as used no more. Returns how many
    /// reservations the pool gets back; the others are kept.
    pub(super) fn give_back(&self, count: u64, reserved: u64) -> u64 {
        let mut sums = self.sums.lock();
        sums.used -= count;
        // As on Linux, all of them are kept where too few are used.
        let room = if sums.used < self.least { self.least - sums.kept } else { 0 };
        let wanted = room.min(reserved);
        sums.kept += wanted;
        reserved - wanted
    }
}

impl<S: Memory> Drop for HugeBudget<S> {
    fn drop(&mut self) {
        self.commons.unreserve_huge(self.sums.get_mut().kept);
    }
}
