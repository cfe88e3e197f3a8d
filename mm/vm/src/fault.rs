//! Page faults.
//!
//! The order of decisions: which area; may it do that; is the page there; whose frame is it. A fault that finds nothing to
//! do is no error: another thread mended it, or the CPU remembered less than the tables grant.

use freehold_machine::{Access, PAGE_SHIFT, VirtAddr};
use freehold_paging::Memory;

use crate::error::{FaultError, FaultKind, SegvCode};
use crate::request::{AreaFlags, Limits};
use crate::resident::Want;
use crate::{AddressSpace, VmError};

impl From<Access> for Want {
    fn from(access: Access) -> Self {
        match access {
            Access::Read | Access::Execute => Self::Read,
            Access::Write => Self::Write,
        }
    }
}

impl<S: Memory> AddressSpace<S> {
    /// The process accessed `addr` and its CPU found no translation that allows it: make one.
    ///
    /// # Errors
    /// The signal that the process gets, or that there is no frame.
    pub fn fault(
        &mut self,
        addr: VirtAddr,
        access: Access,
        limits: &Limits,
    ) -> Result<FaultKind, FaultError> {
        self.fault_within(addr, access, || *limits)
    }

    /// As [`AddressSpace::fault`], with `limits` that are asked for only where they matter: where a stack may grow.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn fault_within(
        &mut self,
        addr: VirtAddr,
        access: Access,
        limits: impl FnOnce() -> Limits,
    ) -> Result<FaultKind, FaultError> {
        let page = addr.page_start();
        let area = match self.areas.at(addr) {
            Some(area) => area,
            None => {
                self.grow_stack(page, &limits())?;
                self.areas.at(addr).ok_or(FaultError::Segv(SegvCode::MapErr))?
            }
        };
        if !area.protection.allows(access) {
            return Err(FaultError::Segv(SegvCode::AccErr));
        }
        let kind = self.resident.fault(area, page, access.into())?;
        match kind {
            FaultKind::Minor => self.minor_faults += 1,
            FaultKind::Major => self.major_faults += 1,
        }
        Ok(kind)
    }

    /// Make all pages of `start..start + len` present for `access`.
    ///
    /// # Errors
    /// As [`AddressSpace::fault`], for the first page that cannot be.
    pub fn fault_in(
        &mut self,
        start: VirtAddr,
        len: u64,
        access: Access,
        limits: &Limits,
    ) -> Result<(), FaultError> {
        if len == 0 {
            return Ok(());
        }
        let end = start.checked_add(len - 1).ok_or(FaultError::Segv(SegvCode::MapErr))?;
        for page in start.0 >> PAGE_SHIFT..=end.0 >> PAGE_SHIFT {
            self.fault(VirtAddr(page << PAGE_SHIFT), access, limits)?;
        }
        Ok(())
    }

    /// Make the pages of `start..end` present as their areas allow: for writing where they are private and writable.
    /// Stops at the first that cannot be had.
    pub(crate) fn populate(&mut self, start: VirtAddr, end: VirtAddr) -> Result<(), FaultError> {
        let Self { areas, resident, .. } = self;
        for (area, part) in areas.parts(start..end) {
            if area.protection.is_empty() {
                continue;
            }
            let want = if !area.is_shared() && area.protection.allows(Access::Write) {
                Want::Write
            } else {
                Want::Read
            };
            resident.populate(area, part, want)?;
        }
        Ok(())
    }

    /// As [`AddressSpace::populate`] for a call that succeeds where that does not.
    pub(crate) fn populate_if_possible(&mut self, start: VirtAddr, end: VirtAddr) {
        // Linux' mmap likewise: what is missing is faulted in later, or fails then.
        let _: Result<(), VmError> = self.populate(start, end).map_err(VmError::from);
    }

    pub(crate) fn is_locked_now(flags: AreaFlags) -> bool {
        flags.contains(AreaFlags::LOCKED) && !flags.contains(AreaFlags::LOCK_ON_FAULT)
    }
}
