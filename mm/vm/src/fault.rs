//! Page faults.
//!
//! The order of checks: the area; its protection; whether the page is present; the owner of its
//! frame. A fault that finds nothing to do is no error: another thread has handled it, or the TLB
//! granted less than the tables.

use core::ops::Range;

use freehold_machine::{Access, PAGE_SHIFT, VirtAddr};
use freehold_paging::Memory;

use crate::area::Area;
use crate::error::{FaultError, FaultKind, SegvCode};
use crate::request::{AreaFlags, Limits, Protection};
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

/// The access for which pages are made present before they are touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Populate {
    /// As their areas allow: for writing if they are private and writable. Areas that allow nothing
    /// are skipped (MAP_POPULATE, mlock).
    AsAllowed,
    /// For reading (MADV_POPULATE_READ).
    Read,
    /// For writing (MADV_POPULATE_WRITE).
    Write,
    /// Not at all: merged pages get frames of their own (MADV_UNMERGEABLE).
    Unmerge,
}

impl Populate {
    /// Returns the access that a page of `area` is made present for; `None` to pass it over.
    fn want<S: Memory>(self, area: &Area<S>) -> Result<Option<Want>, VmError> {
        // Memory that can be written can be read on this machine, but the area's protection counts.
        let (want, needs) = match self {
            Self::AsAllowed if area.protection.is_empty() || area.is_secret() => return Ok(None),
            Self::AsAllowed if !area.is_shared() && area.protection.allows(Access::Write) => {
                return Ok(Some(Want::Write));
            }
            Self::AsAllowed => return Ok(Some(Want::Read)),
            Self::Read | Self::Unmerge => (Want::Read, Protection::READ),
            Self::Write => (Want::Write, Protection::WRITE),
        };
        let can_be_had = area.protection.contains(needs) && !area.is_secret();
        if can_be_had { Ok(Some(want)) } else { Err(VmError::Invalid) }
    }
}

impl<S: Memory> AddressSpace<S> {
    /// Handles a fault: makes a translation for an access of the process to `addr`.
    ///
    /// # Errors
    /// The signal for the process, or [`FaultError::OutOfMemory`].
    pub fn fault(
        &mut self,
        addr: VirtAddr,
        access: Access,
        limits: &Limits,
    ) -> Result<FaultKind, FaultError> {
        self.fault_within(addr, access, || *limits)
    }

    /// As [`AddressSpace::fault`], but calls `limits` only where a stack may grow.
    ///
    /// # Errors
    /// As [`AddressSpace::fault`].
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
        let kind = self.resident.fault_or_ask(area, page, access.into())?;
        match kind {
            FaultKind::Minor => self.minor_faults += 1,
            FaultKind::Major => self.major_faults += 1,
        }
        Ok(kind)
    }

    /// Makes all pages of `start..start + len` present for `access`.
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

    /// Make up to `most` pages of `range` present; returns the address at which to continue, the
    /// end of `range` when all is done. Holes are skipped.
    ///
    /// The caller gives the space's lock back between two such steps, since a program chooses how
    /// long a range is.
    ///
    /// # Errors
    /// [`VmError::Invalid`] for an area that does not allow what `populate` says; else as
    /// [`AddressSpace::fault`], for the first page that cannot be made present.
    pub fn populate_some(
        &mut self,
        range: Range<VirtAddr>,
        populate: Populate,
        most: u64,
    ) -> Result<VirtAddr, VmError> {
        if populate == Populate::Unmerge {
            return self.unmerge_some(range, most);
        }
        let Self { areas, resident, .. } = self;
        let mut left = most;
        for (area, part) in areas.parts(range.clone()) {
            let Some(want) = populate.want(area)? else { continue };
            let mut page = part.start;
            while page < part.end {
                if left == 0 {
                    return Ok(page);
                }
                resident.fault_or_ask(area, page, want)?;
                let end = resident.leaf_end(page);
                left = left.saturating_sub((end.0 - page.0) >> PAGE_SHIFT);
                page = end;
            }
        }
        Ok(range.end)
    }

    /// Takes the addresses whose pages are to be made present after the last call, if any. The
    /// caller passes them to [`AddressSpace::populate_some`], since that may take long.
    #[must_use]
    pub fn take_due(&mut self) -> Option<Range<VirtAddr>> {
        self.due.take()
    }

    /// Notes that the pages of `start..end` are to be made present after the call.
    pub(crate) fn owe(&mut self, start: VirtAddr, end: VirtAddr) {
        self.due = Some(start..end);
    }

    pub(crate) fn is_locked_now(flags: AreaFlags) -> bool {
        flags.contains(AreaFlags::LOCKED) && !flags.contains(AreaFlags::LOCK_ON_FAULT)
    }
}
