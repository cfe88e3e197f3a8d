//! mlock and its family.
//!
//! The flag is recorded, counted against the limit, shown, and the pages are faulted in; reclaim passes locked areas by.

use bitflags::bitflags;
use freehold_machine::{PAGE_SHIFT, VirtAddr};
use freehold_paging::Memory;

use crate::AddressSpace;
use crate::error::VmError;
use crate::map::page_range;
use crate::request::{AreaFlags, Limits};
use crate::space::MAX_AREAS;

/// Whether locking faults pages in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockMode {
    /// All at once.
    Now,
    /// As they are touched (MLOCK_ONFAULT).
    OnFault,
}

bitflags! {
    /// What mlockall locks.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct LockAll: u32 {
        /// The areas there are (MCL_CURRENT).
        const CURRENT = 1;
        /// The areas to come (MCL_FUTURE).
        const FUTURE = 2;
        /// As they are touched (MCL_ONFAULT).
        const ON_FAULT = 4;
    }
}

const LOCK_FLAGS: AreaFlags = AreaFlags::LOCKED.union(AreaFlags::LOCK_ON_FAULT);

impl LockMode {
    const fn flags(self) -> AreaFlags {
        match self {
            Self::Now => AreaFlags::LOCKED,
            Self::OnFault => LOCK_FLAGS,
        }
    }
}

impl<S: Memory> AddressSpace<S> {
    /// Whether `pages` more pages may be locked, if `flags` say so.
    pub(crate) fn check_lock(&self, pages: u64, flags: AreaFlags, limits: &Limits) -> Result<(), VmError> {
        if !flags.contains(AreaFlags::LOCKED) || limits.memlock == u64::MAX {
            return Ok(());
        }
        let locked = self.locked_pages().saturating_add(pages);
        if locked > limits.memlock >> PAGE_SHIFT { Err(VmError::Again) } else { Ok(()) }
    }

    /// Lock the pages of `start..start + len`.
    ///
    /// # Errors
    /// [`VmError::Permission`] where the limit is 0; [`VmError::NoMemory`] above the limit, for a hole, or where a page cannot be had;
    /// [`VmError::Invalid`].
    pub fn lock(
        &mut self,
        start: VirtAddr,
        len: u64,
        mode: LockMode,
        limits: &Limits,
    ) -> Result<(), VmError> {
        if limits.memlock == 0 {
            return Err(VmError::Permission);
        }
        let range = page_range(start, len).map_err(|_| VmError::Invalid)?;
        if range.is_empty() {
            return Ok(());
        }
        // Whatever the range has counts, holes too, but for what is locked already.
        let locked: u64 = self
            .areas
            .parts(range.clone())
            .filter(|(area, _)| area.flags.contains(AreaFlags::LOCKED))
            .map(|(_, part)| part.end.0 - part.start.0)
            .sum();
        let fresh = (range.end.0 - range.start.0 - locked) >> PAGE_SHIFT;
        self.check_lock(fresh, AreaFlags::LOCKED, limits).map_err(|_| VmError::NoMemory)?;
        self.set_lock(range.start, range.end, mode.flags())?;
        if mode == LockMode::OnFault {
            return Ok(());
        }
        // As on Linux whatever cannot be had is a lack of memory.
        self.populate(range.start, range.end).map_err(|_| VmError::NoMemory)?;
        let all = self.areas.overlapping(range).all(|area| !area.protection.is_empty());
        if all { Ok(()) } else { Err(VmError::NoMemory) }
    }

    /// Unlock the pages of `start..start + len`.
    ///
    /// # Errors
    /// [`VmError::NoMemory`] for a hole; [`VmError::Invalid`].
    pub fn unlock(&mut self, start: VirtAddr, len: u64) -> Result<(), VmError> {
        let range = page_range(start, len).map_err(|_| VmError::Invalid)?;
        self.set_lock(range.start, range.end, AreaFlags::empty())
    }

    fn set_lock(&mut self, start: VirtAddr, end: VirtAddr, flags: AreaFlags) -> Result<(), VmError> {
        if self.areas.count() + 2 > MAX_AREAS {
            return Err(VmError::NoMemory);
        }
        let (reached, outcome) = self.reach(start..end, |_| Ok(()));
        self.split_borders(&(start..reached))?;
        self.areas.change(start..reached, |area| area.flags = area.flags.difference(LOCK_FLAGS) | flags);
        outcome
    }

    /// Lock everything that there is, or will be.
    ///
    /// # Errors
    /// [`VmError::Permission`] where the limit is 0; [`VmError::NoMemory`] above the limit.
    pub fn lock_all(&mut self, what: LockAll, limits: &Limits) -> Result<(), VmError> {
        if limits.memlock == 0 {
            return Err(VmError::Permission);
        }
        if what.contains(LockAll::CURRENT)
            && limits.memlock != u64::MAX
            && self.total > limits.memlock >> PAGE_SHIFT
        {
            return Err(VmError::NoMemory);
        }
        let flags = if what.contains(LockAll::ON_FAULT) { LOCK_FLAGS } else { AreaFlags::LOCKED };
        self.future = if what.contains(LockAll::FUTURE) { flags } else { AreaFlags::empty() };
        if what.contains(LockAll::CURRENT) {
            self.areas.change_all(|area| area.flags = area.flags.difference(LOCK_FLAGS) | flags);
            if Self::is_locked_now(flags) {
                self.populate_if_possible(self.layout.lowest, self.layout.end);
            }
        }
        Ok(())
    }

    /// Unlock everything, and what will be.
    pub fn unlock_all(&mut self) {
        self.future = AreaFlags::empty();
        self.areas.change_all(|area| area.flags.remove(LOCK_FLAGS));
    }
}
