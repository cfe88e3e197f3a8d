//! Areas whose faults a program serves (userfaultfd(2)).
//!
//! An area may have a [`Monitor`] and flags that tell which of its faults the monitor serves
//! ([`AreaFlags::MONITORED`]). Such a fault changes nothing: it ends as [`FaultError::Monitored`],
//! and the space keeps the request and its monitor until [`AddressSpace::take_wanted`]. A caller
//! that can wait notes the request with the monitor before it gives the space's lock back, and then
//! sleeps; a caller that cannot wait fails.
//!
//! **Pages that are never filled without the monitor.** A page that is missing: not in the table
//! nor in swap, and of shared memory, not in its cache either (Linux: mm/shmem.c). So a fault fills
//! no large page, and a large page is made only of pages that are all present. The bytes come by
//! [`AddressSpace::fill_page`], which maps a page only where none is.
//!
//! **Stores.** A page of private anonymous memory may be *watched* ([`AddressSpace::watch`]): its
//! leaf does not grant writing. A mark in the leaf records this, since the frame's owner does not.
//! So a store to a watched page that is shared after a fork is first reported and then copies the
//! page. The page keeps the mark in swap, in another frame, and when a large page is split. A child
//! does not inherit it, and mremap removes it. Existing pins continue to write unnoticed; a new pin
//! for writing is a store. Invariant: marks are only where areas have
//! [`AreaFlags::MONITOR_STORES`].
//!
//! **Protocol** of a page's bytes, which may be copied from memory that is itself absent:
//! 1. With the space locked, [`AddressSpace::new_page_for`] checks whether a page is allowed there
//!    and returns a frame that no other code knows.
//! 2. Without the lock the caller writes all of its bytes.
//! 3. With the lock, [`AddressSpace::fill_page`] checks again, and maps the frame or frees it.
//!
//! The caller of step 3 learns of changes between 1 and 3: a removed area is [`VmError::Missing`],
//! a new page is [`VmError::Exists`].

use alloc::sync::Arc;
use core::any::Any;
use core::ops::Range;

use freehold_frame::{Anon, Frame, Held, HeldFrame, LeafMapping, Owner, PageCache as CacheKind, Request};
use freehold_machine::{Access, VirtAddr};
use freehold_paging::{Backing, Entry, FlushBatch, Marks, Memory, PageSize, Slot};
use freehold_xpfo::Windows;

use crate::AddressSpace;
use crate::area::{Area, AreaContent};
use crate::error::{FaultError, FaultKind, VmError};
use crate::request::{AreaFlags, Protection};
use crate::resident::{LeafKind, Resident, Want, leaf};

/// The server of areas' faults; the kernel defines its type.
pub trait Monitor: Any + Send + Sync {}

/// The reason why a monitor has to provide a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lack {
    /// There is no page.
    Missing,
    /// The page is watched, and about to be written.
    Watched,
    /// The page is present, and not mapped.
    Minor,
}

/// A page that a fault needs and that its area's monitor has to provide.
pub struct Wanted {
    /// The monitor.
    pub monitor: Arc<dyn Monitor>,
    /// The page's first address.
    pub page: VirtAddr,
    /// The access: [`Access::Read`] or [`Access::Write`].
    pub access: Access,
    /// The lack.
    pub lack: Lack,
}

impl core::fmt::Debug for Wanted {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Wanted({:?}, {:?}, {:?})", self.page, self.access, self.lack)
    }
}

/// Whether pages are watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Watching {
    /// Pages are watched.
    On,
    /// Pages are not watched.
    Off,
}

/// A frame for one page, which no other code knows: [`AddressSpace::new_page_for`].
pub struct NewPage<S: Memory>(NewFrame<S>);

enum NewFrame<S: Memory> {
    Anon(LeafMapping<Anon, S>),
    Cached(Frame<CacheKind, S>),
}

impl<S: Memory> NewPage<S> {
    /// Returns the frame. Its bytes are undefined until the holder has written them all.
    pub fn held(&self) -> HeldFrame<'_> {
        match &self.0 {
            NewFrame::Anon(page) => page.held(),
            NewFrame::Cached(frame) => frame.held(),
        }
    }
}

impl<S: Memory> core::fmt::Debug for NewPage<S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "NewPage({:?})", self.held().pfn())
    }
}

impl<S: Memory> Area<S> {
    /// Returns whether any of the area's faults goes to a monitor.
    #[inline(always)]
    pub(crate) fn is_monitored(&self) -> bool {
        self.flags.intersects(AreaFlags::MONITORED)
    }
    /// Returns whether the area's monitor provides pages that its cache does not have.
    #[inline(always)]
    pub(crate) fn has_monitored_holes(&self) -> bool {
        self.flags.contains(AreaFlags::MONITOR_MISSING)
    }
    /// From now on the area has no monitor.
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
    /// Checks whether a program may serve faults of the area.
    fn check_monitor(&self, monitor: &Arc<dyn Monitor>, modes: AreaFlags) -> Result<(), VmError> {
        let is_anonymous = matches!(self.content, AreaContent::Anonymous);
        let is_memory = match &self.content {
            AreaContent::Anonymous => true,
            AreaContent::Vdso(..) => false,
            _ => self.attachment().is_some_and(|at| at.cache().is_memory() && !at.cache().is_secret()),
        };
        let is_wrong = (modes.contains(AreaFlags::MONITOR_STORES) && !is_anonymous)
            || (modes.contains(AreaFlags::MONITOR_MINOR) && is_anonymous);
        if !is_memory || is_wrong {
            return Err(VmError::Invalid);
        }
        // The monitor's stores fill holes, so the area must permit stores.
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
            area.check_monitor(monitor, modes)?;
        }
        self.make_room(2)?;
        self.split_borders(&range)?;
        if !modes.contains(AreaFlags::MONITOR_STORES) {
            let has_less =
                |area: &&Area<S>| area.flags.intersects(AreaFlags::MONITORED) && !area.flags.contains(modes);
            let parts = self.areas.parts(range.clone()).filter(|(area, _)| has_less(area));
            parts.for_each(|(_, part)| self.resident.unwatch(&part));
        }
        self.areas.change(range, |area| {
            // An area that has all the modes, and perhaps more, keeps its monitor, as on Linux.
            if area.monitor.is_none() || !area.flags.contains(modes) {
                area.flags = area.flags.difference(AreaFlags::MONITORED) | modes;
                area.monitor = Some(monitor.clone());
            }
        });
        Ok(())
    }

    /// Ends the monitoring of `range` (page-aligned, not empty).
    ///
    /// # Errors
    /// Nothing has changed. [`VmError::Invalid`] where nothing is mapped, or something that is
    /// neither anonymous nor shared memory, or another's; [`VmError::NoMemory`].
    pub fn end_monitor(&mut self, range: Range<VirtAddr>, monitor: &Arc<dyn Monitor>) -> Result<(), VmError> {
        self.areas.overlapping(range.clone()).next().ok_or(VmError::Invalid)?;
        for area in self.areas.overlapping(range.clone()) {
            self.resident.source().rest();
            match area.check_monitor(monitor, AreaFlags::empty()) {
                Ok(()) | Err(VmError::Permission) => {}
                Err(_) => return Err(VmError::Invalid),
            }
        }
        self.make_room(2)?;
        self.split_borders(&range)?;
        self.unwatch_part(&range);
        self.areas.change(range, Area::leave_monitor);
        Ok(())
    }

    /// From now on `monitor` gets no more faults.
    pub fn forget_monitor(&mut self, monitor: &Arc<dyn Monitor>) {
        let own = self.areas.iter().filter(|area| area.is_monitored_by(monitor));
        own.for_each(|area| {
            self.resident.source().rest();
            self.resident.unwatch(&(area.start..area.end));
        });
        self.areas.change_all(|area| {
            if area.is_monitored_by(monitor) {
                area.leave_monitor();
            }
        });
    }

    /// Stops watching pages of `range`, whose ends are not inside large pages.
    pub(crate) fn unwatch_part(&mut self, range: &Range<VirtAddr>) {
        for (area, part) in self.areas.parts(range.clone()) {
            if area.flags.contains(AreaFlags::MONITOR_STORES) {
                self.resident.unwatch(&part);
            }
        }
    }

    /// Starts or stops watching the present pages of `range`, area by area. The next store to a
    /// watched page is reported to its monitor.
    ///
    /// # Errors
    /// [`VmError::Missing`] at the first area without [`AreaFlags::MONITOR_STORES`], and where
    /// there is none; [`VmError::NoMemory`].
    pub fn watch(&mut self, range: Range<VirtAddr>, watching: Watching) -> Result<(), VmError> {
        self.split_borders(&range)?;
        let mut outcome = Err(VmError::Missing);
        let mut batch = self.resident.tables.batch();
        for (area, part) in self.areas.parts(range) {
            if !area.flags.contains(AreaFlags::MONITOR_STORES) {
                return Err(VmError::Missing);
            }
            self.resident.source().rest();
            match watching {
                Watching::On => self.resident.watch(&part, &mut batch),
                Watching::Off => self.resident.unwatch(&part),
            }
            outcome = Ok(());
        }
        outcome
    }

    /// Maps the page at `page`, part of `whole`, which is present in its cache.
    ///
    /// # Errors
    /// As [`AddressSpace::fill_page`]; [`VmError::Invalid`] where no cache is shown, and past its
    /// end; [`VmError::Fault`] where it has no page there.
    pub fn map_cached(&mut self, page: VirtAddr, whole: &Range<VirtAddr>) -> Result<(), VmError> {
        self.area_to_fill(page, whole)?;
        let Self { areas, resident, .. } = self;
        let area = areas.at(page).ok_or(VmError::Missing)?;
        let (cache, index) = area.cache_page(page).ok_or(VmError::Invalid)?;
        if cache.is_past_end(index) {
            return Err(VmError::Invalid);
        }
        let slot = resident.empty_slot(page)?;
        let found = cache.fault_on_monitored(index, resident.place(area, page));
        let (frame, _) = found.map_err(|error| match error {
            FaultError::OutOfMemory => VmError::NoMemory,
            _ => VmError::Fault,
        })?;
        let rights = if area.is_shared() { area.rights() } else { area.shared_frame_rights() };
        let mapping = frame.map().map_err(|_| VmError::TooManyHolders)?;
        slot.fill(leaf(mapping, rights, Marks::Dirty));
        resident.count(area, LeafKind::Cache);
        resident.note_peak();
        Ok(())
    }

    /// Takes the last fault's request for a monitor: after [`FaultError::Monitored`] or
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
    /// [`VmError::Fault`] past the end of shared memory; [`VmError::Invalid`] to watch what can not
    /// be; [`VmError::NoMemory`].
    pub fn new_page_for(
        &self,
        page: VirtAddr,
        whole: &Range<VirtAddr>,
        watching: Watching,
    ) -> Result<NewPage<S>, VmError> {
        let area = self.area_to_fill(page, whole)?;
        if watching == Watching::On && !area.flags.contains(AreaFlags::MONITOR_STORES) {
            return Err(VmError::Invalid);
        }
        self.resident.new_page_for(area, page)
    }

    /// Maps `new`, whose bytes are all written, at `page`, watched or not; `whole` as before.
    ///
    /// # Errors
    /// As [`AddressSpace::new_page_for`], for the present state. [`VmError::Again`] where other
    /// memory is mapped there by now.
    pub fn fill_page(
        &mut self,
        page: VirtAddr,
        whole: &Range<VirtAddr>,
        new: NewPage<S>,
        watching: Watching,
    ) -> Result<(), VmError> {
        self.area_to_fill(page, whole)?;
        let Self { areas, resident, .. } = self;
        let area = areas.at(page).ok_or(VmError::Missing)?;
        resident.fill_page(area, page, new, watching)
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
            return resident.fill_page(area, page, new, Watching::Off);
        }
        let slot = resident.empty_slot(page)?;
        let (zero, rights) = (resident.commons.zero_page(), area.shared_frame_rights());
        slot.fill(Entry::leaf(zero, rights, Marks::Accessed, Backing::Uncounted));
        Ok(())
    }
}

impl<S: Memory> Resident<S> {
    /// As [`Resident::fault`], where the page may be its area's monitor's to provide.
    ///
    /// # Errors
    /// As there; [`FaultError::Monitored`].
    #[inline(always)]
    pub(crate) fn fault_or_ask(
        &mut self,
        area: &Area<S>,
        addr: VirtAddr,
        want: Want,
    ) -> Result<FaultKind, FaultError> {
        if area.is_monitored() {
            self.ask_monitor(area, addr, want)?;
        }
        self.fault(area, addr, want)
    }

    /// Checks whether the page at `addr`, of an area with a monitor, has to be provided by the
    /// monitor.
    ///
    /// # Errors
    /// [`FaultError::Monitored`] where it is. Whether a page of a cache is missing is not judged
    /// here, since pages come and go there: the cache says so where it finds a hole
    /// (`PageCache::fault_on_monitored`).
    #[cold]
    #[inline(never)]
    fn ask_monitor(&mut self, area: &Area<S>, addr: VirtAddr, want: Want) -> Result<(), FaultError> {
        let entry = self.tables.entry(addr);
        if !entry.is_empty() {
            let is_told = want == Want::Write && entry.is_watched();
            return if is_told { Err(self.want(area, addr, want, Lack::Watched)) } else { Ok(()) };
        }
        if area.flags.contains(AreaFlags::MONITOR_MINOR)
            && let Some((cache, index)) = area.cache_page(addr)
            && cache.check_hole(index) == Err(VmError::Exists)
        {
            return Err(self.want(area, addr, want, Lack::Minor));
        }
        if !area.flags.contains(AreaFlags::MONITOR_MISSING) {
            return Ok(());
        }
        let error = self.want(area, addr, want, Lack::Missing);
        if area.attachment().is_some() { Ok(()) } else { Err(error) }
    }

    /// As [`Resident::fault_or_ask`], for a pin that is used for `access`: a pin that only loads
    /// may need the page's own frame, and that is not a store.
    #[cold]
    #[inline(never)]
    pub(crate) fn fault_to_pin(
        &mut self,
        area: &Area<S>,
        page: VirtAddr,
        want: Want,
        access: Access,
    ) -> Result<(), FaultError> {
        self.ask_monitor(area, page, access.into())?;
        if !self.tables.entry(page).is_watched() {
            return self.fault(area, page, want).map(drop);
        }
        // The page gets its frame without a right to write, so no store comes in between.
        let mut batch = self.tables.batch();
        self.split(page, &mut batch)?;
        drop(batch);
        let protection = area.protection.difference(Protection::WRITE);
        let outcome = self.fault(&Area { protection, ..area.clone() }, page, want);
        let (slot, _) = self.tables.find(page).ok_or(FaultError::Bus)?;
        slot.update(Entry::watched);
        outcome.map(drop)
    }

    /// Watch the pages of `range` that are there.
    fn watch(&self, range: &Range<VirtAddr>, batch: &mut FlushBatch<S>) {
        self.tables.visit_all(range.clone(), |addr, slot, entry, _| {
            let old = slot.update_from(entry, Entry::watched);
            if old.is_writable() {
                batch.restricted(addr, old);
            }
        });
    }

    /// Stops watching pages of `range`. As after a fork, the next store faults, and the fault
    /// checks the owner of the frame.
    pub(crate) fn unwatch(&self, range: &Range<VirtAddr>) {
        self.tables.visit_all(range.clone(), |_, slot, entry, _| {
            if entry.is_watched() {
                slot.update_from(entry, Entry::unwatched);
            }
        });
    }

    /// Records that the monitor has to provide the page at `addr`.
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
        Ok(NewPage(NewFrame::Cached(Frame::allocate_for(self.source(), self.payer(), request)?)))
    }

    fn zero(&self, page: &NewPage<S>) {
        self.source().machine().zero(&page.held());
    }

    fn fill_page(
        &mut self,
        area: &Area<S>,
        page: VirtAddr,
        new: NewPage<S>,
        watching: Watching,
    ) -> Result<(), VmError> {
        let slot = self.empty_slot(page)?;
        let rights = area.rights();
        area.check_end(page)?;
        match (new.0, area.is_shared()) {
            (NewFrame::Anon(new), false) => {
                area.copied.set();
                let entry = leaf(new, rights, Marks::Dirty);
                slot.fill(if watching == Watching::On { entry.watched() } else { entry });
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
