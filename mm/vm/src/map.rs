//! mmap, munmap, mprotect.
//!
//! Each call first checks arguments and limits, then does the steps that may fail because there is
//! no memory for a table, then changes the areas, and then the leaves. The leaves' batch is flushed
//! before the call returns, so afterwards no CPU can do what the areas forbid.

use alloc::sync::Arc;
use core::ops::Range;

use arrayvec::ArrayVec;
use freehold_machine::{PAGE, ProtectionKey, VirtAddr};
use freehold_paging::{FlushBatch, Memory};

use crate::area::{Area, AreaContent, AreaUse, Copied};
use crate::error::VmError;
use crate::huge::{HugeMode, LARGE};
use crate::lock::LOCK_FLAGS;
use crate::request::{
    AreaFlags, AreaPlace, Backing, LOW, Limits, MapRequest, Protect, ProtectExtent, Protection, SharedWrite,
};
use crate::{AddressSpace, PageCache, Sharing, Translation, VdsoPart};

/// How many areas are unmapped with one batch of flushes.
const REMOVED_AT_ONCE: usize = 8;

/// Areas that were unmapped last, and the flush that is due for them: see
/// [`AddressSpace::unmap_first`].
pub struct Unmapped<S: Memory> {
    // The areas must outlive the batch, which holds their pages: fields are dropped in this order.
    batch: FlushBatch<S>,
    removed: ArrayVec<Area<S>, REMOVED_AT_ONCE>,
}

impl<S: Memory> Unmapped<S> {
    /// Returns an empty list for the space with `roots`.
    #[inline]
    pub fn new(roots: &Arc<Translation<S>>) -> Self {
        Self { batch: FlushBatch::new(roots), removed: ArrayVec::new() }
    }
    /// Flushes the CPUs' TLBs and releases the areas' pages. (Done in place: dropping the value by
    /// name would copy it.)
    #[inline]
    pub fn finish(&mut self) {
        self.batch.flush();
        self.removed.clear();
    }
}

impl<S: Memory> core::fmt::Debug for Unmapped<S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Unmapped({} areas, {:?})", self.removed.len(), self.batch)
    }
}

/// `len` bytes rounded up to whole pages, as Linux computes it: a length close to the largest
/// number becomes 0.
pub const fn whole_pages(len: u64) -> u64 {
    len.wrapping_add(PAGE - 1) & !(PAGE - 1)
}

/// `start..start + len` in whole pages. `start` must be page-aligned.
pub(crate) fn page_range(start: VirtAddr, len: u64) -> Result<Range<VirtAddr>, VmError> {
    if start.page_offset() != 0 {
        return Err(VmError::Invalid);
    }
    let end = len.checked_next_multiple_of(PAGE).and_then(|len| start.0.checked_add(len));
    Ok(start..VirtAddr(end.ok_or(VmError::NoMemory)?))
}

impl<S: Memory> AddressSpace<S> {
    /// Makes the mapping of `request`; returns its start.
    ///
    /// # Errors
    /// [`VmError::Invalid`] for a length of 0 or an address that is not page-aligned;
    /// [`VmError::NoMemory`] if there is no room or no frame, or a limit is reached;
    /// [`VmError::Exists`]; [`VmError::Access`]; [`VmError::Permission`] where the file denies
    /// stores through mappings; [`VmError::Again`] for too much locked memory;
    /// [`VmError::Overflow`] for a file offset past the largest.
    pub fn map(&mut self, request: MapRequest<S>, limits: &Limits) -> Result<VirtAddr, VmError> {
        let MapRequest { place, len, protection, backing, flags, .. } = request;
        if len == 0 {
            return Err(VmError::Invalid);
        }
        let is_huge = backing.is_huge();
        let len = len
            .checked_next_multiple_of(if is_huge { LARGE } else { PAGE })
            .filter(|&len| len <= self.layout.end.0)
            .ok_or(VmError::NoMemory)?;
        let start = match backing {
            Backing::Anonymous if place == AreaPlace::Anywhere => self.find_hole_for_large(len)?,
            _ if is_huge => self.choose_for_huge(place, len)?,
            _ => self.choose(place, len)?,
        };
        let range = start..VirtAddr(start.0 + len);
        let populate = flags.contains(AreaFlags::POPULATE);
        let mut flags = flags.difference(AreaFlags::POPULATE) | AreaFlags::SOFTDIRTY | self.future;
        if self.resident.commons.has_promise_limit() && !is_huge {
            flags.remove(AreaFlags::NORESERVE);
        }
        let pages = len / PAGE;
        self.check_lock(pages, flags, limits)?;
        let populate = populate || Self::is_locked_now(flags);
        flags.remove(if is_huge { LOCK_FLAGS } else { AreaFlags::empty() });
        let mut area = Area {
            start,
            end: range.end,
            protection,
            key: ProtectionKey::DEFAULT,
            flags,
            policy: None,
            content: self.content(backing, protection, len, flags)?,
            copied: Copied::default(),
            monitor: None,
        };
        self.mark_new(&mut area);
        let replaced: u64 =
            if matches!(place, AreaPlace::Fixed(_)) { self.mapped_pages(range.clone()) } else { 0 };
        self.check_limits(pages.saturating_sub(replaced), area.area_use(), limits)?;
        self.promise_new(&mut area)?;
        // One for the area, two for areas that it may split.
        let mut is_clear = self.make_room(3);
        if matches!(place, AreaPlace::Fixed(_)) {
            // A part of a huge page cannot be unmapped, which Linux reports so.
            let unmap = |()| self.unmap_range(range.clone()).map_err(|_| VmError::NoMemory);
            is_clear = is_clear.and_then(unmap);
        }
        is_clear = is_clear.and_then(|()| self.reserve_huge(&area));
        if is_clear.is_ok() {
            self.areas.add(area);
        }
        self.settle();
        is_clear?;
        self.count_in(pages);
        if populate {
            self.owe(range.start, range.end);
        }
        Ok(start)
    }

    /// Promises the memory of an area that is to be mapped.
    fn promise_new(&self, area: &mut Area<S>) -> Result<(), VmError> {
        if area.is_new_promise_as(area.protection) {
            self.promise(area.pages())?;
            area.flags.insert(AreaFlags::ACCOUNT);
        } else if let AreaContent::SharedAnonymous(_, at) = &area.content
            && !area.flags.contains(AreaFlags::NORESERVE)
        {
            // New memory is promised when it is mapped, with any protection.
            at.cache().promise_size()?;
        }
        Ok(())
    }

    fn choose(&mut self, place: AreaPlace, len: u64) -> Result<VirtAddr, VmError> {
        let fixed = |start: VirtAddr| {
            if start.page_offset() != 0 {
                return Err(VmError::Invalid);
            }
            if start < self.layout.lowest {
                return Err(VmError::Permission);
            }
            let end =
                start.checked_add(len).filter(|&end| end <= self.layout.end).ok_or(VmError::NoMemory)?;
            Ok(start..end)
        };
        match place {
            AreaPlace::Fixed(start) => fixed(start).map(|range| range.start),
            AreaPlace::FixedNoReplace(start) => {
                let range = fixed(start)?;
                if self.areas.is_free(range) { Ok(start) } else { Err(VmError::Exists) }
            }
            AreaPlace::Hint(hint) => match fixed(hint.page_start()) {
                Ok(range) if self.areas.is_usable(range.clone()) => Ok(range.start),
                _ => self.find_hole(len),
            },
            AreaPlace::Anywhere => self.find_hole(len),
            AreaPlace::Low(hint) => {
                let hinted = hint.and_then(|hint| fixed(hint.page_start()).ok());
                match hinted.filter(|range| range.end <= LOW.end && self.areas.is_usable(range.clone())) {
                    Some(range) => Ok(range.start),
                    None => self.areas.find_low_hole(len).ok_or(VmError::NoMemory),
                }
            }
        }
    }

    /// The place of an area of huge pages on request (Linux: `hugetlb_get_unmapped_area`).
    fn choose_for_huge(&mut self, place: AreaPlace, len: u64) -> Result<VirtAddr, VmError> {
        let is_border = |at: VirtAddr| at.0.is_multiple_of(LARGE);
        let place = match place {
            AreaPlace::Fixed(at) | AreaPlace::FixedNoReplace(at) if !is_border(at) => {
                return Err(VmError::Invalid);
            }
            AreaPlace::Fixed(_) | AreaPlace::FixedNoReplace(_) => return self.choose(place, len),
            AreaPlace::Hint(at) => AreaPlace::Hint(VirtAddr(at.0.next_multiple_of(LARGE))),
            place => place,
        };
        let roomy = len.checked_add(LARGE - PAGE).ok_or(VmError::NoMemory)?;
        match self.choose(place, len) {
            Ok(start) if is_border(start) => Ok(start),
            _ => Ok(VirtAddr(self.choose(AreaPlace::without_hint(place), roomy)?.0.next_multiple_of(LARGE))),
        }
    }

    pub(crate) fn find_hole(&mut self, len: u64) -> Result<VirtAddr, VmError> {
        self.areas.find_hole(len, &self.layout).ok_or(VmError::NoMemory)
    }

    /// Finds a hole that begins at the border of a large page, if large pages are enabled and the
    /// mapping is suitable (Linux since 6.7).
    fn find_hole_for_large(&mut self, len: u64) -> Result<VirtAddr, VmError> {
        let wanted = self.resident.commons.huge_mode() != HugeMode::Never && len.is_multiple_of(LARGE);
        let roomy = || self.find_hole(len.checked_add(LARGE - PAGE).ok_or(VmError::NoMemory)?);
        match wanted.then(roomy) {
            Some(Ok(start)) => Ok(VirtAddr(start.0.next_multiple_of(LARGE))),
            _ => self.find_hole(len),
        }
    }

    fn content(
        &self,
        backing: Backing<S>,
        protection: Protection,
        len: u64,
        flags: AreaFlags,
    ) -> Result<AreaContent<S>, VmError> {
        let check = |offset: u64| {
            let end = offset.checked_add(len).filter(|&end| end <= i64::MAX as u64);
            if !offset.is_multiple_of(PAGE) { Err(VmError::Invalid) } else { end.ok_or(VmError::Overflow) }
        };
        Ok(match backing {
            Backing::Anonymous => AreaContent::Anonymous,
            Backing::Huge(offset) => self.huge_content(Sharing::Private, flags, offset),
            Backing::SharedHuge(offset) => self.huge_content(Sharing::Shared, flags, offset),
            Backing::Vdso(VdsoPart::Time) if protection.contains(Protection::WRITE) => {
                return Err(VmError::Access);
            }
            Backing::Vdso(part) => AreaContent::Vdso(part, 0),
            Backing::SharedAnonymous => {
                let cache = PageCache::new(self.resident.source());
                cache.set_size_grow(len);
                self.resident.commons.list(&cache);
                // No other space knows this cache, so attaching cannot be denied.
                AreaContent::SharedAnonymous(0, self.attach(&cache, SharedWrite::Denied)?)
            }
            Backing::PrivateFile(view) if view.file.cache().is_huge() => {
                check(view.offset)?;
                self.huge_file_content(view, Sharing::Private, SharedWrite::Denied, flags)?
            }
            Backing::PrivateFile(view) => {
                check(view.offset)?;
                let attachment = self.attach(view.file.cache(), SharedWrite::Denied)?;
                AreaContent::PrivateFile(view, attachment)
            }
            Backing::SharedFile(view, write) => {
                check(view.offset)?;
                if write == SharedWrite::Denied && protection.contains(Protection::WRITE) {
                    return Err(VmError::Access);
                }
                if view.file.cache().is_huge() {
                    return self.huge_file_content(view, Sharing::Shared, write, flags);
                }
                let attachment = self.attach(view.file.cache(), write)?;
                AreaContent::SharedFile(view, write, attachment)
            }
        })
    }

    /// How many pages of `range` are in areas.
    fn mapped_pages(&self, range: Range<VirtAddr>) -> u64 {
        self.areas.parts(range).map(|(_, part)| part.end.0 - part.start.0).sum::<u64>() / PAGE
    }

    /// Unmap `start..start + len`; holes in it are fine.
    ///
    /// # Errors
    /// [`VmError::Invalid`] for a range that is empty, not page-aligned or not a user's;
    /// [`VmError::NoMemory`] if an area would be split and there are too many areas.
    pub fn unmap(&mut self, start: VirtAddr, len: u64) -> Result<(), VmError> {
        let mut unmapped = Unmapped::new(self.translation());
        self.unmap_first(start, len, &mut unmapped)
    }

    /// As [`AddressSpace::unmap`], but CPUs may have the old translations, and frames are held,
    /// until `unmapped` is [finished](Unmapped::finish) or dropped. The caller lets no other task
    /// change the space until then. Faults may be served meanwhile
    /// ([`AddressSpace::fault_shared`]): pages outside areas are not filled.
    ///
    /// # Errors
    /// As there.
    pub fn unmap_first(
        &mut self,
        start: VirtAddr,
        len: u64,
        unmapped: &mut Unmapped<S>,
    ) -> Result<(), VmError> {
        let range = page_range(start, len).map_err(|_| VmError::Invalid)?;
        if range.is_empty() || range.end > self.layout.end {
            return Err(VmError::Invalid);
        }
        let outcome = self.unmap_range_first(range, unmapped);
        self.settle();
        outcome
    }

    /// The caller [settles](AddressSpace::settle).
    pub(crate) fn unmap_range(&mut self, range: Range<VirtAddr>) -> Result<(), VmError> {
        let mut unmapped = Unmapped::new(self.translation());
        self.unmap_range_first(range, &mut unmapped)
    }

    fn unmap_range_first(
        &mut self,
        range: Range<VirtAddr>,
        unmapped: &mut Unmapped<S>,
    ) -> Result<(), VmError> {
        // Most often it is just one area.
        if !self.areas.at(range.start).is_some_and(|area| area.start == range.start && area.end == range.end)
        {
            self.cut_out(&range)?;
        }
        loop {
            // A few at a time, without a list: unmapping needs no memory.
            if !unmapped.removed.is_empty() {
                unmapped.finish();
            }
            let Unmapped { batch, removed } = unmapped;
            let mut reached = range.start;
            while !removed.is_full()
                && reached < range.end
                && let Some(area) = self.areas.take_first(&range)
            {
                reached = area.end;
                removed.push(area);
            }
            if removed.is_empty() {
                return Ok(());
            }
            self.resident.source().rest();
            for area in &*removed {
                self.resident.zap_area(area, batch);
                self.total -= area.pages();
            }
            let is_last = reached == range.end || !removed.is_full();
            if is_last || self.areas.overlapping(range.clone()).next().is_none() {
                let span = self.room_around(range.clone());
                self.resident.tables.free_tables(range, span, batch);
                return Ok(());
            }
        }
    }

    /// Makes the ends of `range` borders between areas.
    fn cut_out(&mut self, range: &Range<VirtAddr>) -> Result<(), VmError> {
        let cuts =
            self.areas.at(range.start).is_some_and(|area| area.start < range.start && range.end < area.end);
        if cuts && self.areas.count() >= self.resident.commons.max_areas() {
            return Err(VmError::NoMemory);
        }
        self.areas.make_room_to_cut(range)?;
        self.split_borders(range)?;
        self.areas.split_at(range.start);
        self.areas.split_at(range.end);
        Ok(())
    }

    /// Returns the addresses between the neighbours of `range`, which is unmapped.
    pub(crate) fn room_around(&self, range: Range<VirtAddr>) -> Range<VirtAddr> {
        let floor = self.areas.below(range.start).map_or(VirtAddr(0), |area| area.end);
        let ceiling = self.areas.above(range.start).map_or(VirtAddr(1 << 47), |area| area.start);
        floor..ceiling
    }

    /// Change what may be done in a range, all of which is mapped. `data_limit` ([`Limits::data`])
    /// is called if something becomes private writable memory.
    ///
    /// # Errors
    /// [`VmError::Invalid`]; [`VmError::NoMemory`] for a hole or at a limit (areas before it have
    /// been changed), or too many areas; [`VmError::Access`] for writing to a file that was not
    /// opened for it.
    pub fn protect(&mut self, wish: Protect, data_limit: impl Fn() -> u64) -> Result<(), VmError> {
        let Protect { start, len, protection, extent, key } = wish;
        let mut range = page_range(start, len)?;
        if range.is_empty() {
            return Ok(());
        }
        match extent {
            ProtectExtent::Exact => {}
            ProtectExtent::GrowsDown => {
                let area = self.areas.overlapping(range.clone()).next().ok_or(VmError::NoMemory)?;
                if !area.flags.contains(AreaFlags::GROWSDOWN) {
                    return Err(VmError::Invalid);
                }
                range.start = area.start;
            }
            ProtectExtent::GrowsUp => {
                self.areas.at(range.start).ok_or(VmError::NoMemory)?;
                return Err(VmError::Invalid);
            }
        }
        self.make_room(2)?;
        let mut data = 0;
        let (end, outcome) = self.reach(range.clone(), |area| {
            self.resident.source().rest();
            area.check_protection(protection)?;
            let bytes = area.end.min(range.end).0 - area.start.max(range.start).0;
            if area.use_as(protection) == AreaUse::Data && area.area_use() != AreaUse::Data {
                data += bytes / PAGE;
                self.check_data(data, data_limit())?;
            }
            if area.is_new_promise_as(protection) { self.promise(bytes / PAGE) } else { Ok(()) }
        });
        let range = range.start..end;
        let split = self.split_borders(&range);
        if split.is_err() {
            self.settle();
        }
        split?;
        let executed = self.keys.execute_only();
        self.areas.change(range.clone(), |area| {
            if area.is_new_promise_as(protection) {
                area.flags.insert(AreaFlags::ACCOUNT);
            }
            area.key = key.of(area, executed);
            area.protection = protection;
        });
        self.settle();
        let Self { areas, resident, .. } = self;
        let mut batch = resident.tables.batch();
        for (area, part) in areas.parts(range) {
            resident.source().rest();
            resident.protect(area, part, &mut batch);
        }
        outcome
    }

    /// Returns how far `range` can be handled, up to the first hole or the first area that `check`
    /// refuses, and the error there.
    pub(crate) fn reach(
        &self,
        range: Range<VirtAddr>,
        mut check: impl FnMut(&Area<S>) -> Result<(), VmError>,
    ) -> (VirtAddr, Result<(), VmError>) {
        let mut next = range.start;
        for area in self.areas.overlapping(range.clone()) {
            if area.start > next {
                break;
            }
            if let Err(error) = check(area) {
                return (next, Err(error));
            }
            next = area.end;
        }
        if next >= range.end { (range.end, Ok(())) } else { (next, Err(VmError::NoMemory)) }
    }
}
