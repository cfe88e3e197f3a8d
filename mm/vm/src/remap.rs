//! mremap: shrink, grow in place, move.
//!
//! A move carries the leaves over with their frames, so nothing is copied and pins stay what they are. Tables at the
//! destination are made before anything moves: a move that runs out of memory has not begun.

use core::ops::Range;

use freehold_frame::OutOfMemory;
use freehold_machine::{PAGE_SIZE, VirtAddr};
use freehold_paging::{Entry, FlushBatch, Memory, PageSize};

use crate::AddressSpace;
use crate::error::VmError;
use crate::huge::block_start;
use crate::map::{page_range, whole_pages};
use crate::request::{AreaFlags, Limits};
use crate::resident::Resident;
use crate::space::{DataKind, MAX_AREAS};

const PAGE: u64 = PAGE_SIZE as u64;

/// Where a resized area may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemapPlace {
    /// Where it is.
    InPlace,
    /// Anywhere, if it cannot stay.
    MayMove,
    /// There; what is there is unmapped.
    Fixed(VirtAddr),
}

/// What becomes of the old range when an area moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemapSource {
    /// Unmapped.
    Unmap,
    /// Stays mapped, without its pages (MREMAP_DONTUNMAP).
    Keep,
}

/// A wish for mremap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remap {
    /// Where the range starts, page-aligned.
    pub old: VirtAddr,
    /// Its bytes; 0 of shared memory asks for a second mapping of it.
    pub old_len: u64,
    /// Bytes it shall have.
    pub new_len: u64,
    /// Where.
    pub place: RemapPlace,
    /// What becomes of the old range.
    pub source: RemapSource,
}

impl<S: Memory> AddressSpace<S> {
    /// Resize or move a range of one area. Where it starts afterwards.
    ///
    /// # Errors
    /// [`VmError::Invalid`]; [`VmError::Fault`] where the range is not mapped or not one area; [`VmError::NoMemory`] where it can
    /// not grow in place, there is no room, or a limit; [`VmError::Again`] for too much locked memory.
    pub fn remap(&mut self, remap: Remap, limits: &Limits) -> Result<VirtAddr, VmError> {
        let Remap { old, old_len, new_len, place, source } = remap;
        if old.page_offset() != 0 || (source == RemapSource::Keep && new_len != old_len) {
            return Err(VmError::Invalid);
        }
        let (old_len, new_len) = (whole_pages(old_len), whole_pages(new_len));
        if new_len == 0 {
            return Err(VmError::Invalid);
        }
        let area = self.areas.at(old).ok_or(VmError::Fault)?;
        // What is cut off must be where a program can have something, and only what stays must lie in one area.
        if old_len > new_len && old_len > self.layout.end.0 - old.0 {
            return Err(VmError::Invalid);
        }
        let fits = old_len.min(new_len) <= area.end.0 - old.0;
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
        // A length of 0 asks for a second mapping of shared memory.
        if old_len == 0 && !area.is_shared() {
            return Err(VmError::Invalid);
        }
        if !fits {
            return Err(VmError::Fault);
        }
        let growth = new_len.saturating_sub(old_len) / PAGE;
        if growth > 0 {
            self.check_lock(growth, area.flags, limits)?;
            self.check_limits(growth, DataKind::of(area), limits)?;
        }
        if new_len > self.layout.end.0 {
            return Err(VmError::NoMemory);
        }
        let source = if old_len == 0 { RemapSource::Keep } else { source };
        if !matches!(place, RemapPlace::Fixed(_))
            && source == RemapSource::Unmap
            && self.grow_in_place(&from, new_len)?
        {
            return Ok(from.start);
        }
        if place == RemapPlace::InPlace {
            return Err(VmError::NoMemory);
        }
        self.move_range(from, new_len, place, source, limits)
    }

    /// Whether the range, which may grow, could be made longer where it is.
    fn grow_in_place(&mut self, from: &Range<VirtAddr>, new_len: u64) -> Result<bool, VmError> {
        let end = VirtAddr(from.start.0.saturating_add(new_len));
        let area = self.areas.at(from.start).ok_or(VmError::Fault)?;
        if area.end != from.end || end > self.layout.end || !self.areas.is_usable(from.end..end) {
            return Ok(false);
        }
        let flags = area.flags;
        self.check_growth_promise(flags, end.0 - from.end.0)?;
        if let Some(area) = self.areas.at_mut(from.start) {
            area.end = end;
        }
        self.areas.join(from.start..end);
        self.count_in((end.0 - from.end.0) / PAGE);
        if Self::is_locked_now(flags) {
            self.owe(from.end, end);
        }
        Ok(true)
    }

    fn check_growth_promise(&self, flags: AreaFlags, bytes: u64) -> Result<(), VmError> {
        if flags.contains(AreaFlags::ACCOUNT) { self.check_promise(bytes) } else { Ok(()) }
    }

    fn move_range(
        &mut self,
        from: Range<VirtAddr>,
        new_len: u64,
        place: RemapPlace,
        source: RemapSource,
        limits: &Limits,
    ) -> Result<VirtAddr, VmError> {
        let old_len = from.end.0 - from.start.0;
        if self.areas.count() + 4 > MAX_AREAS {
            return Err(VmError::NoMemory);
        }
        let area = self.areas.at(from.start).ok_or(VmError::Fault)?;
        // That it can be longer was checked, but not that it can be twice.
        let added = match source {
            RemapSource::Keep => {
                self.check_limits(old_len / PAGE, DataKind::of(area), limits)?;
                new_len
            }
            RemapSource::Unmap => new_len.saturating_sub(old_len),
        };
        self.check_growth_promise(area.flags, added)?;
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
        let kept = from.start..VirtAddr(from.start.0 + old_len.min(new_len));
        self.split_borders(&kept)?;
        if let Err(error) = self.resident.make_tables(kept.clone(), to) {
            // No table stays where there is no area: nobody would find it again.
            let range = to..VirtAddr(to.0 + new_len);
            let span = self.room_around(range.clone());
            let mut batch = self.resident.tables.batch();
            self.resident.tables.free_tables(range, span, &mut batch);
            return Err(error.into());
        }
        moved.start = to;
        moved.end = VirtAddr(to.0 + new_len);
        // The room of the old break or stack is not a break or stack elsewhere.
        moved.flags.remove(AreaFlags::HEAP | AreaFlags::STACK | AreaFlags::GROWSDOWN);
        // Who tracks stores has not seen these bytes here.
        moved.flags.insert(AreaFlags::SOFTDIRTY);
        let flags = moved.flags;
        self.areas.insert(moved);
        self.areas.join(to..VirtAddr(to.0 + new_len));
        self.count_in(new_len / PAGE);
        let mut batch = self.resident.tables.batch();
        self.resident.move_leaves(kept, to, &mut batch);
        drop(batch);
        match source {
            RemapSource::Unmap => self.unmap_range(from)?,
            RemapSource::Keep => self.areas.change(from, |area| {
                area.flags.remove(AreaFlags::LOCKED | AreaFlags::LOCK_ON_FAULT);
            }),
        }
        if Self::is_locked_now(flags) {
            self.owe(to, VirtAddr(to.0 + new_len));
        }
        Ok(to)
    }
}

impl<S: Memory> Resident<S> {
    /// Make the tables that the leaves of `from` need at `to`.
    fn make_tables(&mut self, from: Range<VirtAddr>, to: VirtAddr) -> Result<(), OutOfMemory> {
        self.split_what_cannot_move(&from, to)?;
        let mut outcome = Ok(());
        let mut last = u64::MAX;
        let mut wanted = [None; 64];
        let mut next = from.start;
        // Leaves are visited with the tables borrowed, so a round gathers regions and then makes them.
        while next < from.end && outcome.is_ok() {
            let mut count = 0;
            let mut resume = from.end;
            self.tables.visit_all(next..from.end, |addr, _, _, size| {
                let dest = to.0 + (addr.0 - from.start.0);
                let region = dest / PageSize::Large.bytes();
                if region == last || addr >= resume {
                    return;
                }
                if count == wanted.len() {
                    resume = addr;
                    return;
                }
                wanted[count] = Some((VirtAddr(dest), size));
                count += 1;
                last = region;
            });
            for (addr, size) in wanted[..count].iter_mut().filter_map(Option::take) {
                outcome = outcome.and(self.tables.make(addr, size).map(drop));
            }
            next = resume;
        }
        outcome
    }

    /// A large page moves as one between places that are alike, where no table is in its way.
    fn split_what_cannot_move(&mut self, from: &Range<VirtAddr>, to: VirtAddr) -> Result<(), OutOfMemory> {
        if self.large == 0 {
            return Ok(());
        }
        if !to.0.wrapping_sub(from.start.0).is_multiple_of(PageSize::Large.bytes()) {
            return self.split_all(from.clone());
        }
        let mut next = from.start;
        while next < from.end {
            let dest = self.tables.find_large(VirtAddr(to.0 + (next.0 - from.start.0)));
            if dest.is_some_and(|dest| !dest.load().is_empty()) {
                let mut batch = self.tables.batch();
                self.split(next, &mut batch)?;
            }
            next = VirtAddr(block_start(next).0 + PageSize::Large.bytes());
        }
        Ok(())
    }

    fn move_leaves(&mut self, from: Range<VirtAddr>, to: VirtAddr, batch: &mut FlushBatch<S>) {
        self.tables.visit_all(from.clone(), |addr, slot, _, size| {
            let dest = VirtAddr(to.0 + (addr.0 - from.start.0));
            let dest = match size {
                PageSize::Small => self.tables.find(dest).map(|(slot, _)| slot),
                PageSize::Large => self.tables.find_large(dest),
            };
            let dest = dest.expect("the tables were made before");
            let old = slot.replace(Entry::EMPTY);
            match size {
                PageSize::Small => batch.restricted(addr, old),
                PageSize::Large => batch.unmapped_large(addr, old, None),
            }
            dest.fill(old);
        });
    }
}
