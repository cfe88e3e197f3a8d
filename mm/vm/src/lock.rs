//! mlock and its family.
//!
//! The flag is recorded, counted against the limit and shown, and the pages are due to be faulted
//! in. Reclaim skips locked areas.

use core::ops::Range;

use bitflags::bitflags;
use freehold_machine::{PAGE_SHIFT, VirtAddr};
use freehold_paging::Memory;

use crate::AddressSpace;
use crate::area::Area;
use crate::error::VmError;
use crate::map::whole_pages;
use crate::request::{AreaFlags, Limits};

/// Whether locking faults pages in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockMode {
    /// All at once.
    Now,
    /// As they are touched (MLOCK_ONFAULT).
    OnFault,
}

bitflags! {
    /// The areas that mlockall locks, and when.
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

pub(crate) const LOCK_FLAGS: AreaFlags = AreaFlags::LOCKED.union(AreaFlags::LOCK_ON_FAULT);

impl LockMode {
    const fn flags(self) -> AreaFlags {
        match self {
            Self::Now => AreaFlags::LOCKED,
            Self::OnFault => LOCK_FLAGS,
        }
    }
}

/// The first page that `start..start + len` touches, and the bytes of all of them.
const fn touched(start: VirtAddr, len: u64) -> (VirtAddr, u64) {
    (start.page_start(), whole_pages(len.wrapping_add(start.page_offset() as u64)))
}

impl<S: Memory> Area<S> {
    /// Sets the lock flags of the area to `flags`. Secret memory stays as it was mapped, and huge
    /// pages on request are not marked (mm/mlock.c, `mlock_fixup`).
    fn lock_as(&mut self, flags: AreaFlags) {
        if !self.is_secret() && self.huge_view().is_none() {
            self.flags = self.flags.difference(LOCK_FLAGS) | flags;
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

    /// Lock the pages that `start..start + len` touches. They are [due](AddressSpace::take_due)
    /// after that, even where the call fails because an area allows no access.
    ///
    /// # Errors
    /// [`VmError::Permission`] where the limit is 0; [`VmError::NoMemory`] above the limit, for a
    /// hole, or for an area that allows no access or is secret; [`VmError::Invalid`] for a range
    /// that wraps around.
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
        let (start, len) = touched(start, len);
        // The whole range counts, holes too, except pages that are locked already.
        let locked: u64 = self
            .areas
            .parts(start..VirtAddr(start.0.saturating_add(len)))
            .filter(|(area, _)| area.flags.contains(AreaFlags::LOCKED))
            .map(|(_, part)| part.end.0 - part.start.0)
            .sum();
        self.check_lock((len - locked) >> PAGE_SHIFT, AreaFlags::LOCKED, limits)
            .map_err(|_| VmError::NoMemory)?;
        let range = self.set_lock(start, len, mode.flags())?;
        if range.is_empty() || mode == LockMode::OnFault {
            return Ok(());
        }
        // Only the programs' own accesses make pages of secret memory present.
        let can_be_had = |area: &Area<S>| !area.protection.is_empty() && !area.is_secret();
        let all = self.areas.overlapping(range.clone()).all(can_be_had);
        self.owe(range.start, range.end);
        if all { Ok(()) } else { Err(VmError::NoMemory) }
    }

    /// Unlock the pages that `start..start + len` touches.
    ///
    /// # Errors
    /// [`VmError::NoMemory`] for a hole; [`VmError::Invalid`] for a range that wraps around.
    pub fn unlock(&mut self, start: VirtAddr, len: u64) -> Result<(), VmError> {
        let (start, len) = touched(start, len);
        self.set_lock(start, len, AreaFlags::empty()).map(drop)
    }

    /// Sets the lock flags of a range; returns its pages.
    fn set_lock(&mut self, start: VirtAddr, len: u64, flags: AreaFlags) -> Result<Range<VirtAddr>, VmError> {
        let range = start..start.checked_add(len).ok_or(VmError::Invalid)?;
        if range.is_empty() {
            return Ok(range);
        }
        self.make_room(2)?;
        let (reached, outcome) = self.reach(range.clone(), |_| Ok(()));
        let inside = self.outside_huge(start)..self.outside_huge(reached);
        self.split_borders(&inside)?;
        self.areas.change(inside, |area| area.lock_as(flags));
        outcome.map(|()| range)
    }

    /// Locks all present or future areas.
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
            self.areas.change_all(|area| area.lock_as(flags));
            if Self::is_locked_now(flags) {
                self.owe(self.layout.lowest, self.layout.end);
            }
        }
        Ok(())
    }

    /// Unlocks all present and future areas.
    pub fn unlock_all(&mut self) {
        self.future = AreaFlags::empty();
        self.areas.change_all(|area| area.lock_as(AreaFlags::empty()));
    }
}
