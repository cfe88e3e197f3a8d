//! The vDSO in address spaces: pages of the kernel that programs have mapped (Linux:
//! `vm_special_mapping`).
//!
//! Two parts, each an area of its own: the **image** and the pages of **time**. A program may get
//! its own copy of the image, as with any private mapping (a debugger sets breakpoints in it). Only
//! the kernel ever writes a page of time, and it is never pinned. The frames are the same in all
//! spaces, stay as long as the kernel runs, and their leaves are not counted: fork, exec and exit
//! of a program access no shared word for them.
//!
//! The part of time has two pages. The second one is the clock. The first one has the offsets of
//! the program's time namespace; the space holds its frame, and the clock is then another frame,
//! which makes the image look at the first page (Linux: `find_timens_vvar_page`). A space without
//! offsets has the clock in both pages, and its image never looks at the first.

use alloc::sync::Arc;

use arrayvec::ArrayVec;
use freehold_frame::{Anon, Frame, Held, HeldFrame, LeafMapping, PageCache as CacheKind, Time};
use freehold_machine::{PAGE_SHIFT, Pfn, VirtAddr};
use freehold_paging::{Backing, Entry, Marks, Memory, Slot};

use crate::AddressSpace;
use crate::area::{Area, AreaContent};
use crate::error::{FaultError, FaultKind, SegvCode};
use crate::resident::{LeafKind, Resident, Want, leaf};

/// Part of the vDSO that an area shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VdsoPart {
    /// The ELF image: `[vdso]`.
    Image,
    /// The two pages of time: `[vvar]`.
    Time,
}

/// The frames of both parts.
#[derive(Debug)]
pub struct Vdso<S: Memory> {
    image: ArrayVec<Frame<CacheKind, S>, IMAGE_PAGES>,
    /// The clock, and the clock of spaces with offsets.
    time: [Frame<Time, S>; 2],
}

/// Number of pages of [`VdsoPart::Time`].
pub const TIME_PAGES: u64 = 2;

/// Largest number of pages of an image.
const IMAGE_PAGES: usize = 4;

impl<S: Memory> Vdso<S> {
    /// Pages of time without an image: the clock, and the clock of spaces with offsets.
    pub const fn new(time: [Frame<Time, S>; 2]) -> Self {
        Self { image: ArrayVec::new_const(), time }
    }
    /// Append a page to the image.
    ///
    /// # Panics
    /// For an image of more than four.
    pub fn push(&mut self, page: Frame<CacheKind, S>) {
        self.image.push(page);
    }
    /// The clock, and the clock of spaces with offsets.
    pub fn time(&self) -> [HeldFrame<'_>; 2] {
        self.time.each_ref().map(Held::held)
    }
    /// `frame`, if it is one of these.
    pub(crate) fn held(&self, frame: Pfn) -> Option<HeldFrame<'_>> {
        self.image.iter().map(Held::held).chain(self.time()).find(|held| held.pfn() == frame)
    }
}

impl<S: Memory> Area<S> {
    /// The part at `addr`, and the number of its page there.
    pub(crate) fn vdso_page(&self, addr: VirtAddr) -> Option<(VdsoPart, u64)> {
        let AreaContent::Vdso(part, offset) = self.content else { return None };
        Some((part, (offset + (addr.page_start().0 - self.start.0)) >> PAGE_SHIFT))
    }
    /// Whether the area maps pages of time, which only the program itself accesses, and only for
    /// reading.
    pub(crate) fn is_time(&self) -> bool {
        matches!(self.content, AreaContent::Vdso(VdsoPart::Time, _))
    }
}

impl<S: Memory> AddressSpace<S> {
    /// Returns the frame that [`AddressSpace::set_time_offsets`] set.
    pub const fn time_offsets(&self) -> Option<&Arc<Frame<Time, S>>> {
        self.resident.offsets.as_ref()
    }

    /// Makes `offsets` the first page of time of the program, or takes its page away. No other
    /// task runs in the space.
    pub fn set_time_offsets(&mut self, offsets: Option<Arc<Frame<Time, S>>>) {
        let Self { areas, resident, .. } = self;
        let mut batch = resident.tables.batch();
        for area in areas.iter().filter(|area| area.is_time()) {
            resident.zap(area, area.start..area.end, &mut batch);
        }
        // No CPU reaches the old frame any more before it is given back.
        drop(batch);
        resident.offsets = offsets;
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
            slot.fill(leaf(copy, area.rights(), Marks::Dirty));
            area.copied.set();
            self.count(area, LeafKind::Anon);
            return Ok(FaultKind::Minor);
        }
        let commons = self.commons.clone();
        let vdso = commons.vdso.get().ok_or(FaultError::Bus)?;
        let frame = match area.vdso_page(addr) {
            Some((VdsoPart::Image, page)) => vdso.image.get(page as usize).map(|frame| frame.pfn()),
            Some((VdsoPart::Time, page)) if page < TIME_PAGES => Some(match &self.offsets {
                Some(offsets) if page == 0 => offsets.pfn(),
                offsets => vdso.time[usize::from(offsets.is_some())].pfn(),
            }),
            _ => None,
        };
        let frame = frame.ok_or(FaultError::Bus)?;
        slot.fill(Entry::leaf(frame, area.shared_frame_rights(), Marks::Accessed, Backing::Uncounted));
        Ok(FaultKind::Minor)
    }

    /// A copy of the image's page at `addr`, which only this space uses.
    ///
    /// # Errors
    /// As [`Resident::fill_vdso`]; an access error for a page of time.
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
