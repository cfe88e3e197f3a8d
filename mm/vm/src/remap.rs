//! mremap: shrink, grow in place, move. remap_file_pages: other pages of shared memory.
//!
//! A move transfers the leaves with their frames, so nothing is copied and pins stay valid. If both
//! ranges have the same offset in 2 MiB or 1 GiB, whole tables are moved. Tables at the destination
//! are made first: if memory runs out, nothing has moved. A move has steps of at most 512 leaves.
//! If the task has to end, the move stops between two steps: the first part has moved, and the rest
//! has not.

use core::ops::Range;

use freehold_machine::{PAGE, VirtAddr};
use freehold_paging::{Memory, Prepared};

use crate::AddressSpace;
use crate::area::Area;
use crate::error::VmError;
use crate::huge::LARGE;
use crate::map::{page_range, whole_pages};
use crate::request::{AreaFlags, Limits};
use crate::resident::Resident;

/// Where a resized area may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemapPlace {
    /// At its present address.
    InPlace,
    /// Anywhere, if it cannot stay.
    MayMove,
    /// At this address; existing mappings there are removed.
    Fixed(VirtAddr),
}

/// The fate of the old range when an area moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemapSource {
    /// Unmapped.
    Unmap,
    /// Stays mapped, without its pages (MREMAP_DONTUNMAP).
    Keep,
}

/// Called between the steps of long work: other tasks may run, and an error ends the work.
pub type Pause<'a> = dyn FnMut() -> Result<(), VmError> + 'a;

/// A request for mremap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remap {
    /// The start of the range, page-aligned.
    pub old: VirtAddr,
    /// The range's bytes; 0 for shared memory requests a second mapping of it.
    pub old_len: u64,
    /// The bytes that the range shall have.
    pub new_len: u64,
    /// The new place.
    pub place: RemapPlace,
    /// The fate of the old range.
    pub source: RemapSource,
}

impl Remap {
    /// Returns the old and the new length in huge pages on request.
    ///
    /// # Errors
    /// [`VmError::Invalid`]: reservations cannot grow (Linux: `mremap`), the old range cannot stay
    /// mapped, and addresses are those of huge pages.
    fn huge_lengths(self) -> Result<(u64, u64), VmError> {
        let round = |len: u64| len.checked_next_multiple_of(LARGE).ok_or(VmError::Invalid);
        let (old_len, new_len) = (round(self.old_len)?, round(self.new_len)?);
        let to = if let RemapPlace::Fixed(to) = self.place { to } else { VirtAddr(0) };
        let fits = (self.old.0 | to.0).is_multiple_of(LARGE) && new_len <= old_len;
        if fits && self.source == RemapSource::Unmap { Ok((old_len, new_len)) } else { Err(VmError::Invalid) }
    }
}

impl<S: Memory> AddressSpace<S> {
    /// Resizes or moves a range of one area. Returns its start afterwards.
    ///
    /// # Errors
    /// [`VmError::Invalid`]; [`VmError::Fault`] where the range is not mapped or not one area;
    /// [`VmError::NoMemory`] where it can not grow in place, there is no room, or a limit;
    /// [`VmError::Again`] for too much locked memory; the error of `pause`, which is called between
    /// the steps of a move. The move then stops: the first part has moved.
    pub fn remap(
        &mut self,
        remap: Remap,
        limits: &Limits,
        pause: &mut Pause<'_>,
    ) -> Result<VirtAddr, VmError> {
        let outcome = self.resize_or_move(remap, limits, pause);
        self.settle();
        outcome
    }

    fn resize_or_move(
        &mut self,
        remap: Remap,
        limits: &Limits,
        pause: &mut Pause<'_>,
    ) -> Result<VirtAddr, VmError> {
        let Remap { old, old_len, new_len, place, source } = remap;
        if old.page_offset() != 0 || (source == RemapSource::Keep && new_len != old_len) {
            return Err(VmError::Invalid);
        }
        let (mut old_len, mut new_len) = (whole_pages(old_len), whole_pages(new_len));
        if new_len == 0 {
            return Err(VmError::Invalid);
        }
        let area = self.areas.at(old).ok_or(VmError::Fault)?;
        if area.huge_view().is_some() {
            (old_len, new_len) = (Remap { old_len, new_len, ..remap }).huge_lengths()?;
        }
        // The part that is cut off must lie below the programs' end of the layout; only the part
        // that stays must lie in one area.
        if old_len > new_len && old_len > self.layout.end.0 - old.0 {
            return Err(VmError::Invalid);
        }
        let from = old..VirtAddr(old.0.saturating_add(old_len));
        if (matches!(place, RemapPlace::Fixed(_)) || source == RemapSource::Keep)
            && new_len > self.layout.end.0
        {
            return Err(VmError::Invalid);
        }
        if let RemapPlace::Fixed(to) = place {
            let to = page_range(to, new_len).map_err(|_| VmError::Invalid)?;
            let apart = to.end <= from.start || from.end <= to.start;
            if to.end > self.layout.end || to.start < self.layout.lowest || !apart {
                return Err(VmError::Invalid);
            }
        } else if new_len <= old_len && source == RemapSource::Unmap {
            // Shrinking may span areas; growing may not.
            if new_len < old_len {
                self.unmap_range(VirtAddr(from.start.0 + new_len)..from.end)?;
            }
            return Ok(from.start);
        }
        let source = if old_len == 0 { RemapSource::Keep } else { source };
        let moved = Remap { old_len, new_len, source, ..remap };
        self.check_resize(area, &moved, limits)?;
        if !matches!(place, RemapPlace::Fixed(_))
            && source == RemapSource::Unmap
            && self.grow_in_place(&from, new_len)?
        {
            return Ok(from.start);
        }
        if place == RemapPlace::InPlace {
            return Err(VmError::NoMemory);
        }
        self.move_range(&from, moved, limits, pause)
    }

    /// Maps the pages from byte `offset` on of the shared memory that `start..start + len` shows,
    /// instead of those that are there (remap_file_pages). The range keeps its protection. With
    /// [`AreaFlags::POPULATE`] in `flags`, the pages are made present.
    ///
    /// # Errors
    /// [`VmError::Invalid`] unless the whole range shows one shared object that may be stored to,
    /// with one protection; [`VmError::Overflow`] for an offset past the largest;
    /// [`VmError::NoMemory`], also for too many areas.
    pub fn show_pages(
        &mut self,
        start: VirtAddr,
        len: u64,
        offset: u64,
        flags: AreaFlags,
    ) -> Result<(), VmError> {
        let range = page_range(start, len).map_err(|_| VmError::Invalid)?;
        let mut area = self.areas.at(start).ok_or(VmError::Invalid)?.clone();
        let (_, outcome) = self.reach(range.clone(), |next| {
            self.resident.source().rest();
            let is_alike = next.protection == area.protection
                && (next.flags ^ area.flags).difference(AreaFlags::SOFTDIRTY).is_empty()
                && next.content.is_same_shared(&area.content);
            if is_alike { Ok(()) } else { Err(VmError::Invalid) }
        });
        outcome.map_err(|_| VmError::Invalid)?;
        if offset.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
            return Err(VmError::Overflow);
        }
        self.make_room(3)?;
        self.unmap_range(range.clone())?;
        area.content.set_offset(offset);
        area.policy = None;
        let kept = self.insert_moved(area, &range);
        if flags.contains(AreaFlags::POPULATE) || Self::is_locked_now(kept) {
            self.owe(range.start, range.end);
        }
        Ok(())
    }

    /// Whether the range of `remap`, which starts in `area`, may have its new length. The lengths
    /// are of whole pages.
    fn check_resize(&self, area: &Area<S>, remap: &Remap, limits: &Limits) -> Result<(), VmError> {
        let Remap { old, old_len, new_len, .. } = *remap;
        // A length of 0 asks for a second mapping of shared memory.
        if old_len == 0 && !area.is_shared() {
            return Err(VmError::Invalid);
        }
        if old_len.min(new_len) > area.end.0 - old.0 {
            return Err(VmError::Fault);
        }
        let growth = new_len.saturating_sub(old_len) / PAGE;
        if growth > 0 {
            self.check_lock(growth, area.flags, limits)?;
            self.check_limits(growth, area.area_use(), limits)?;
        }
        if new_len > self.layout.end.0 { Err(VmError::NoMemory) } else { Ok(()) }
    }

    /// Grows the range, if that is allowed and possible, in place; returns whether it did.
    fn grow_in_place(&mut self, from: &Range<VirtAddr>, new_len: u64) -> Result<bool, VmError> {
        let end = VirtAddr(from.start.0.saturating_add(new_len));
        let area = self.areas.at(from.start).ok_or(VmError::Fault)?;
        if area.end != from.end || end > self.layout.end || !self.areas.is_usable(from.end..end) {
            return Ok(false);
        }
        let flags = area.flags;
        self.promise_growth(flags, end.0 - from.end.0)?;
        let start = area.start;
        self.areas.set_end(start, end);
        self.areas.join(from.start..end);
        self.count_in((end.0 - from.end.0) / PAGE);
        if Self::is_locked_now(flags) {
            self.owe(from.end, end);
        }
        Ok(true)
    }

    fn promise_growth(&self, flags: AreaFlags, bytes: u64) -> Result<(), VmError> {
        if flags.contains(AreaFlags::ACCOUNT) { self.promise(bytes / PAGE) } else { Ok(()) }
    }

    /// Move `from`, which `remap` names and which was checked.
    fn move_range(
        &mut self,
        from: &Range<VirtAddr>,
        remap: Remap,
        limits: &Limits,
        pause: &mut Pause<'_>,
    ) -> Result<VirtAddr, VmError> {
        let Remap { old_len, new_len, place, source, .. } = remap;
        self.make_room(4)?;
        let area = self.areas.at(from.start).ok_or(VmError::Fault)?;
        // The limits were checked for a longer area, but not for a second one.
        let added = match source {
            RemapSource::Keep => {
                self.check_limits(old_len / PAGE, area.area_use(), limits)?;
                new_len
            }
            RemapSource::Unmap => new_len.saturating_sub(old_len),
        };
        self.promise_growth(area.flags, added)?;
        let mut moved = area.clone();
        if moved.start < from.start {
            moved = moved.split_off(from.start);
        }
        let to = match place {
            RemapPlace::Fixed(to) => {
                self.unmap_range(to..VirtAddr(to.0 + new_len))?;
                to
            }
            _ => self.find_hole(new_len)?,
        };
        let to = to..VirtAddr(to.0 + new_len);
        let kept = from.start..VirtAddr(from.start.0 + old_len.min(new_len));
        self.split_borders(&kept)?;
        // A move of huge pages is short, and its reservations move as a whole.
        let is_huge = moved.huge_view().is_some();
        let whole: &mut Pause<'_> = &mut || Ok(());
        let pause = if is_huge { whole } else { pause };
        if let Err(error) = self.resident.prepare_move(&kept, to.start, pause) {
            // Tables outside areas are freed: no code would find them later.
            let span = self.room_around(to.clone());
            let mut batch = self.resident.tables.batch();
            self.resident.tables.free_tables(to, span, &mut batch);
            return Err(error);
        }
        // The monitor is not notified of the move, so it could not handle reports of stores there.
        self.unwatch_part(&kept);
        let flags = self.insert_moved(moved, &to);
        if is_huge {
            self.leave_reservations(kept.clone());
        }
        let reached = self.resident.move_pages(&kept, to.start, pause);
        if reached < kept.end {
            return self.end_move_at(reached, from, to, source);
        }
        self.leave_range(from, source)?;
        if Self::is_locked_now(flags) {
            self.owe(to.start, to.end);
        }
        Ok(to.start)
    }

    /// Does with the range `from`, whose pages have moved, what `source` says.
    fn leave_range(&mut self, from: &Range<VirtAddr>, source: RemapSource) -> Result<(), VmError> {
        match source {
            RemapSource::Unmap => self.unmap_range(from.clone())?,
            RemapSource::Keep => self.areas.change(from.clone(), |area| {
                area.flags.remove(AreaFlags::LOCKED | AreaFlags::LOCK_ON_FAULT);
            }),
        }
        Ok(())
    }

    /// Moves `area` to `to`. Returns its flags there.
    fn insert_moved(&mut self, mut area: Area<S>, to: &Range<VirtAddr>) -> AreaFlags {
        (area.start, area.end) = (to.start, to.end);
        // At another address, memory of the old break or stack is no longer break or stack.
        area.flags.remove(AreaFlags::HEAP | AreaFlags::STACK | AreaFlags::GROWSDOWN);
        area.leave_monitor();
        // For a program that tracks stores, these bytes are new here.
        area.flags.insert(AreaFlags::SOFTDIRTY);
        let flags = area.flags;
        self.areas.add(area);
        self.count_in((to.end.0 - to.start.0) / PAGE);
        flags
    }

    /// A move was interrupted at `reached`: the part before it has moved, the rest has not.
    fn end_move_at(
        &mut self,
        reached: VirtAddr,
        from: &Range<VirtAddr>,
        to: Range<VirtAddr>,
        source: RemapSource,
    ) -> Result<VirtAddr, VmError> {
        self.unmap_range(VirtAddr(to.start.0 + (reached.0 - from.start.0))..to.end)?;
        if source == RemapSource::Unmap {
            self.unmap_range(from.start..reached)?;
        }
        Err(VmError::Interrupted)
    }
}

impl<S: Memory> Resident<S> {
    /// Makes the tables at `to` for the mappings in `from`, and splits large pages that cannot be
    /// moved as a whole.
    fn prepare_move(
        &mut self,
        from: &Range<VirtAddr>,
        to: VirtAddr,
        pause: &mut Pause<'_>,
    ) -> Result<(), VmError> {
        let distance = to.0.wrapping_sub(from.start.0);
        let mut batch = self.tables.batch();
        let mut next = from.start;
        loop {
            match self.tables.prepare_shift(&(next..from.end), distance)? {
                Prepared::UpTo(reached) if reached < from.end => next = reached,
                Prepared::Cut(at) => self.split(at, &mut batch)?,
                Prepared::UpTo(_) | Prepared::Empty => return Ok(()),
            }
            pause()?;
        }
    }

    /// Moves the mappings in `from` to `to`; returns the address that was reached: the end, unless
    /// a pause ended the move.
    fn move_pages(&mut self, from: &Range<VirtAddr>, to: VirtAddr, pause: &mut Pause<'_>) -> VirtAddr {
        let distance = to.0.wrapping_sub(from.start.0);
        let mut batch = self.tables.batch();
        let mut next = from.start;
        while let Some(reached) = self.tables.shift(&(next..from.end), distance, &mut batch) {
            next = reached;
            if next < from.end && pause().is_err() {
                return next;
            }
        }
        from.end
    }
}
