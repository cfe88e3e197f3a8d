//! Areas whose faults a program serves (userfaultfd(2)).
//!
//! An area may have a [`Monitor`] and flags that say which of its faults go there
//! ([`AreaFlags::MONITORED`]). A fault of theirs changes nothing: it ends as
//! [`FaultError::Monitored`], and the space keeps what is wanted of whom until
//! [`AddressSpace::take_wanted`]. Whoever can wait notes that with the monitor before it gives the
//! space's lock back, and sleeps then; whoever cannot, fails.
//!
//! **What is never filled behind the monitor's back.** A page that is missing: not in the table
//! nor in swap, and of shared memory, not in its cache either (Linux: mm/shmem.c). So a fault fills
//! no large page, and a large page is made only of pages that are all there. The bytes come by
//! [`AddressSpace::fill_page`], which puts a page nowhere else than where none is.
//!
//! **Protocol** of a page's bytes, which may be copied from memory that is itself not there:
//! 1. With the space locked, [`AddressSpace::new_page_for`] looks whether a page may go there and
//!    gives a frame that nobody else knows.
//! 2. Without the lock the caller writes all of its bytes.
//! 3. With the lock, [`AddressSpace::fill_page`] looks again, and puts it there or gives it up.
//!
//! What happened between 1 and 3 counts: an area that went is [`VmError::Missing`], a page that
//! came is [`VmError::Exists`].

use alloc::sync::Arc;
use core::any::Any;
use core::ops::Range;

use freehold_frame::{Anon, Frame, LeafMapping, Owner, PageCache as CacheKind, Request};
use freehold_machine::{Access, Pfn, PhysicalBytes, VirtAddr};
use freehold_paging::{Backing, Entry, Marks, Memory, PageSize, Slot};

use crate::AddressSpace;
use crate::area::{Area, AreaContent};
use crate::cache::Holes;
use crate::error::{FaultError, VmError};
use crate::request::{AreaFlags, Protection};
use crate::resident::{LeafKind, Resident, Want, leaf};

/// Who serves the faults of areas. What it is, is the kernel's affair.
pub trait Monitor: Any + Send + Sync {}

/// Why a page is wanted of a monitor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lack {
    /// There is none.
    Missing,
}

/// A page that a fault wanted and that its area's monitor has to provide.
pub struct Wanted {
    /// Who.
    pub monitor: Arc<dyn Monitor>,
    /// The page's first address.
    pub page: VirtAddr,
    /// What for: [`Access::Read`] or [`Access::Write`].
    pub access: Access,
    /// What is wrong.
    pub lack: Lack,
}

impl core::fmt::Debug for Wanted {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Wanted({:?}, {:?}, {:?})", self.page, self.access, self.lack)
    }
}

/// A frame for one page, which nobody else knows: [`AddressSpace::new_page_for`].
pub struct NewPage<S: Memory>(NewFrame<S>);

enum NewFrame<S: Memory> {
    Anon(LeafMapping<Anon, S>),
    Cached(Frame<CacheKind, S>),
}

impl<S: Memory> NewPage<S> {
    /// The frame, whose bytes are anybody's until the holder has written them all.
    pub fn pfn(&self) -> Pfn {
        match &self.0 {
            NewFrame::Anon(page) => page.pfn(),
            NewFrame::Cached(frame) => frame.pfn(),
        }
    }
}

impl<S: Memory> core::fmt::Debug for NewPage<S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "NewPage({:?})", self.pfn())
    }
}

impl<S: Memory> Area<S> {
    /// Whether any of its faults goes to a monitor.
    #[inline(always)]
    pub(crate) fn is_monitored(&self) -> bool {
        self.flags.intersects(AreaFlags::MONITORED)
    }
    /// What a fault does where the cache behind it has no page.
    #[inline(always)]
    pub(crate) fn holes(&self) -> Holes {
        if self.flags.contains(AreaFlags::MONITOR_MISSING) { Holes::Monitored } else { Holes::Filled }
    }
    /// No monitor's from now on.
    pub(crate) fn leave_monitor(&mut self) {
        self.flags.remove(AreaFlags::MONITORED);
        self.monitor = None;
    }
    /// Whether its monitor is this one.
    fn is_monitored_by(&self, monitor: &Arc<dyn Monitor>) -> bool {
        self.monitor.as_ref().is_some_and(|own| is_same(own, monitor))
    }
    /// Whether both have the same monitor, or none.
    pub(crate) fn has_monitor_of(&self, other: &Self) -> bool {
        match (&self.monitor, &other.monitor) {
            (None, None) => true,
            (Some(own), Some(other)) => is_same(own, other),
            _ => false,
        }
    }
    /// Whether a program may serve its faults, as it is mapped.
    fn check_monitor(&self, monitor: &Arc<dyn Monitor>) -> Result<(), VmError> {
        let is_memory = match &self.content {
            AreaContent::Anonymous => true,
            AreaContent::Vdso(..) => false,
            _ => self.attachment().is_some_and(|at| at.cache().is_memory() && !at.cache().is_secret()),
        };
        if !is_memory {
            return Err(VmError::Invalid);
        }
        // Who fills a hole writes to what is mapped.
        self.check_protection(Protection::WRITE).map_err(|_| VmError::Permission)?;
        if self.monitor.is_some() && !self.is_monitored_by(monitor) { Err(VmError::Busy) } else { Ok(()) }
    }
    /// [`VmError::Fault`] where `page` is past the end of what is mapped.
    fn check_end(&self, page: VirtAddr) -> Result<(), VmError> {
        let is_past = self.cache_page(page).is_some_and(|(cache, index)| cache.is_past_end(index));
        if is_past { Err(VmError::Fault) } else { Ok(()) }
    }
}

fn is_same(a: &Arc<dyn Monitor>, b: &Arc<dyn Monitor>) -> bool {
    core::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
}

impl<S: Memory> AddressSpace<S> {
    /// Have `monitor` serve the faults of `range` (page-aligned, not empty) that `modes` name, part
    /// of [`AreaFlags::MONITORED`]. Holes are passed over.
    ///
    /// # Errors
    /// Nothing has changed. [`VmError::Invalid`] where nothing is mapped, or something that is
    /// neither anonymous nor shared memory; [`VmError::Permission`] for what can never be written;
    /// [`VmError::Busy`] for another's; [`VmError::NoMemory`].
    pub fn set_monitor(
        &mut self,
        range: Range<VirtAddr>,
        monitor: &Arc<dyn Monitor>,
        modes: AreaFlags,
    ) -> Result<(), VmError> {
        let modes = modes & AreaFlags::MONITORED;
        self.areas.overlapping(range.clone()).next().ok_or(VmError::Invalid)?;
        for area in self.areas.overlapping(range.clone()) {
            self.resident.source().rest();
            area.check_monitor(monitor)?;
        }
        self.areas.make_room(2)?;
        self.split_borders(&range)?;
        self.areas.change(range, |area| {
            // What has all of it and more keeps that, as on Linux.
            if area.monitor.is_none() || !area.flags.contains(modes) {
                area.flags = area.flags.difference(AreaFlags::MONITORED) | modes;
                area.monitor = Some(monitor.clone());
            }
        });
        Ok(())
    }

    /// The faults of `range` (page-aligned, not empty) are nobody's any more.
    ///
    /// # Errors
    /// Nothing has changed. [`VmError::Invalid`] where nothing is mapped, or something that is
    /// neither anonymous nor shared memory, or another's; [`VmError::NoMemory`].
    pub fn end_monitor(&mut self, range: Range<VirtAddr>, monitor: &Arc<dyn Monitor>) -> Result<(), VmError> {
        self.areas.overlapping(range.clone()).next().ok_or(VmError::Invalid)?;
        for area in self.areas.overlapping(range.clone()) {
            self.resident.source().rest();
            match area.check_monitor(monitor) {
                Ok(()) | Err(VmError::Permission) => {}
                Err(_) => return Err(VmError::Invalid),
            }
        }
        self.areas.make_room(2)?;
        self.split_borders(&range)?;
        self.areas.change(range, Area::leave_monitor);
        Ok(())
    }

    /// No fault goes to `monitor` any more.
    pub fn forget_monitor(&mut self, monitor: &Arc<dyn Monitor>) {
        self.areas.change_all(|area| {
            if area.is_monitored_by(monitor) {
                area.leave_monitor();
            }
        });
    }

    /// What the last fault wanted of a monitor: after [`FaultError::Monitored`] or
    /// [`VmError::Monitored`], once.
    pub fn take_wanted(&mut self) -> Option<Wanted> {
        self.resident.wanted.take()
    }

    /// The area that a page at `page`, part of `whole`, can be filled in.
    fn area_to_fill(&self, page: VirtAddr, whole: &Range<VirtAddr>) -> Result<&Area<S>, VmError> {
        let area = self.areas.at(page).filter(|area| area.monitor.is_some() && whole.end <= area.end);
        area.ok_or(VmError::Missing)
    }

    /// A frame for the page at `page`, where none is. `whole` is all that the call fills, from
    /// `page` on: it must lie in one area that has a monitor.
    ///
    /// # Errors
    /// [`VmError::Missing`] where it does not; [`VmError::Exists`] where there is a page;
    /// [`VmError::Fault`] past the end of shared memory; [`VmError::NoMemory`].
    pub fn new_page_for(&self, page: VirtAddr, whole: &Range<VirtAddr>) -> Result<NewPage<S>, VmError> {
        let area = self.area_to_fill(page, whole)?;
        self.resident.new_page_for(area, page)
    }

    /// Put `new`, whose bytes are all written, at `page`; `whole` as before.
    ///
    /// # Errors
    /// As [`AddressSpace::new_page_for`]: what is wrong now. [`VmError::Again`] where other memory
    /// is mapped there by now.
    pub fn fill_page(
        &mut self,
        page: VirtAddr,
        whole: &Range<VirtAddr>,
        new: NewPage<S>,
    ) -> Result<(), VmError> {
        self.area_to_fill(page, whole)?;
        let Self { areas, resident, .. } = self;
        let area = areas.at(page).ok_or(VmError::Missing)?;
        resident.fill_page(area, page, new)
    }

    /// Put zeroes at `page`, where none is, part of `whole`.
    ///
    /// # Errors
    /// As [`AddressSpace::fill_page`].
    pub fn fill_zeroes(&mut self, page: VirtAddr, whole: &Range<VirtAddr>) -> Result<(), VmError> {
        self.area_to_fill(page, whole)?;
        let Self { areas, resident, .. } = self;
        let area = areas.at(page).ok_or(VmError::Missing)?;
        if area.is_shared() {
            let new = resident.new_page_for(area, page)?;
            resident.zero(&new);
            return resident.fill_page(area, page, new);
        }
        let slot = resident.empty_slot(page)?;
        let (zero, rights) = (resident.commons.zero_page(), area.shared_frame_rights());
        slot.fill(Entry::leaf(zero, rights, Marks::Accessed, Backing::Uncounted));
        Ok(())
    }
}

impl<S: Memory> Resident<S> {
    /// The absent page at `addr` is about to be filled: ask whether that is the monitor's affair.
    ///
    /// # Errors
    /// [`FaultError::Monitored`] where it is. What shows a cache is not judged here, since pages
    /// come and go there: the cache says so where it finds a hole ([`Area::holes`]).
    #[cold]
    #[inline(never)]
    pub(crate) fn ask_monitor(
        &mut self,
        area: &Area<S>,
        addr: VirtAddr,
        want: Want,
    ) -> Result<(), FaultError> {
        if !area.flags.contains(AreaFlags::MONITOR_MISSING) {
            return Ok(());
        }
        let error = self.want(area, addr, want, Lack::Missing);
        if area.attachment().is_some() { Ok(()) } else { Err(error) }
    }

    /// The page at `addr` is its monitor's to provide: say so.
    fn want(&mut self, area: &Area<S>, addr: VirtAddr, want: Want, lack: Lack) -> FaultError {
        let access = if want == Want::Write { Access::Write } else { Access::Read };
        let monitor = area.monitor.clone();
        self.wanted = monitor.map(|monitor| Wanted { monitor, page: addr.page_start(), access, lack });
        FaultError::Monitored
    }

    /// The entry for a page at `page`, which has none.
    fn empty_slot(&mut self, page: VirtAddr) -> Result<Slot<S::Machine>, VmError> {
        let slot = match self.tables.find(page) {
            Some((slot, PageSize::Small)) => slot,
            Some((_, PageSize::Large)) => return Err(VmError::Exists),
            None => self.tables.make(page, PageSize::Small)?,
        };
        if slot.load().is_empty() { Ok(slot) } else { Err(VmError::Exists) }
    }

    fn new_page_for(&self, area: &Area<S>, page: VirtAddr) -> Result<NewPage<S>, VmError> {
        if !self.tables.entry(page).is_empty() {
            return Err(VmError::Exists);
        }
        let place = self.place(area, page);
        area.check_end(page)?;
        if !area.is_shared() {
            return Ok(NewPage(NewFrame::Anon(self.new_page(place)?)));
        }
        let (cache, index) = area.cache_page(page).ok_or(VmError::Invalid)?;
        cache.check_hole(index)?;
        let request = Request::new(Owner::PageCache).policy(place);
        Ok(NewPage(NewFrame::Cached(Frame::allocate_with(self.source(), request)?)))
    }

    fn zero(&self, page: &NewPage<S>) {
        self.source().machine().zero(page.pfn());
    }

    fn fill_page(&mut self, area: &Area<S>, page: VirtAddr, new: NewPage<S>) -> Result<(), VmError> {
        let slot = self.empty_slot(page)?;
        let rights = area.protection.rights();
        area.check_end(page)?;
        match (new.0, area.is_shared()) {
            (NewFrame::Anon(new), false) => {
                area.copied.set();
                slot.fill(leaf(new, rights, Marks::Dirty));
                self.count(area, LeafKind::Anon);
            }
            (NewFrame::Cached(new), true) => {
                let (cache, index) = area.cache_page(page).ok_or(VmError::Again)?;
                let held = cache.insert_in_hole(index, new)?;
                // Without room for one more leaf the next touch finds it in the cache.
                if let Ok(mapping) = held.map() {
                    slot.fill(leaf(mapping, rights, Marks::Dirty));
                    self.count(area, LeafKind::Cache);
                }
            }
            _ => return Err(VmError::Again),
        }
        self.note_peak();
        Ok(())
    }
}
