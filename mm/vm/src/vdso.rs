//! The vDSO in address spaces: pages of the kernel that programs have mapped (Linux:
//! `vm_special_mapping`).
//!
//! Two parts, each an area of its own: the **image** and the page of **time**. A program may get
//! its own copy of the image, as with any private mapping (a debugger sets breakpoints in it). Only
//! the kernel ever writes the page of time, and it is never pinned. The frames are the same in all
//! spaces, stay as long as the kernel runs, and their leaves are not counted: fork, exec and exit
//! of a program access no shared word for them.

use arrayvec::ArrayVec;
use freehold_frame::{Anon, Frame, Held, HeldFrame, LeafMapping, PageCache as CacheKind, Time};
use freehold_machine::{PAGE_SHIFT, Pfn, VirtAddr};
use freehold_paging::{Backing, Entry, Marks, Memory, Slot};

use crate::area::{Area, AreaContent};
use crate::error::{FaultError, FaultKind, SegvCode};
use crate::resident::{LeafKind, Resident, Want, leaf};

/// Part of the vDSO that an area shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VdsoPart {
    /// The ELF image: `[vdso]`.
    Image,
    /// The page of time: `[vvar]`.
    Time,
}

/// The frames of both parts.
#[derive(Debug)]
pub struct Vdso<S: Memory> {
    image: ArrayVec<Frame<CacheKind, S>, IMAGE_PAGES>,
    time: Frame<Time, S>,
}

/// Largest number of pages of an image.
const IMAGE_PAGES: usize = 4;

impl<S: Memory> Vdso<S> {
    /// A page of time without an image.
    pub const fn new(time: Frame<Time, S>) -> Self {
        Self { image: ArrayVec::new_const(), time }
    }
    /// Append a page to the image.
    ///
    /// # Panics
    /// For an image of more than four.
    pub fn push(&mut self, page: Frame<CacheKind, S>) {
        self.image.push(page);
    }
    /// The page of time.
    pub fn time(&self) -> HeldFrame<'_> {
        self.time.held()
    }
    /// `frame`, if it is one of these.
    pub(crate) fn held(&self, frame: Pfn) -> Option<HeldFrame<'_>> {
        self.image.iter().map(Held::held).chain([self.time.held()]).find(|held| held.pfn() == frame)
    }
}

impl<S: Memory> Area<S> {
    /// The part at `addr`, and the number of its page there.
    pub(crate) fn vdso_page(&self, addr: VirtAddr) -> Option<(VdsoPart, u64)> {
        let AreaContent::Vdso(part, offset) = self.content else { return None };
        Some((part, (offset + (addr.page_start().0 - self.start.0)) >> PAGE_SHIFT))
    }
    /// Whether the area maps the page of time, which only the program itself accesses, and only for
    /// reading.
    pub(crate) fn is_time(&self) -> bool {
        matches!(self.content, AreaContent::Vdso(VdsoPart::Time, _))
    }
}

impl<S: Memory> Resident<S> {
    /// Fill the absent page at `addr`, which is `page` of `part`.
    ///
    /// # Errors
    /// [`FaultError::Bus`] past the part's end: a program made the area longer.
    #[cold]
    #[inline(never)]
    pub(crate) fn fill_vdso(
        &mut self,
        area: &Area<S>,
        addr: VirtAddr,
        slot: Slot<S::Machine>,
        want: Want,
    ) -> Result<FaultKind, FaultError> {
        if want == Want::Write {
            let copy = self.copy_of_vdso(area, addr)?;
            slot.fill(leaf(copy, area.protection.rights(), Marks::Dirty));
            area.copied.set();
            self.count(area, LeafKind::Anon);
            return Ok(FaultKind::Minor);
        }
        let commons = self.commons.clone();
        let vdso = commons.vdso.get().ok_or(FaultError::Bus)?;
        let frame = match area.vdso_page(addr) {
            Some((VdsoPart::Image, page)) => vdso.image.get(page as usize).map(|frame| frame.pfn()),
            Some((VdsoPart::Time, 0)) => Some(vdso.time.pfn()),
            _ => None,
        };
        let frame = frame.ok_or(FaultError::Bus)?;
        slot.fill(Entry::leaf(frame, area.shared_frame_rights(), Marks::Accessed, Backing::Uncounted));
        Ok(FaultKind::Minor)
    }

    /// A copy of the image's page at `addr`, which only this space uses.
    ///
    /// # Errors
    /// As [`Resident::fill_vdso`]; an access error for the page of time.
    pub(crate) fn copy_of_vdso(
        &self,
        area: &Area<S>,
        addr: VirtAddr,
    ) -> Result<LeafMapping<Anon, S>, FaultError> {
        let page = match area.vdso_page(addr) {
            Some((VdsoPart::Image, page)) => page,
            _ => return Err(FaultError::Segv(SegvCode::AccErr)),
        };
        let frame =
            self.commons.vdso.get().and_then(|vdso| vdso.image.get(page as usize)).ok_or(FaultError::Bus)?;
        Ok(self.copy_of(frame.into(), self.place(area, addr))?)
    }
}
