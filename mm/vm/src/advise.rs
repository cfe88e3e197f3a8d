//! madvise, mincore, msync.

use alloc::sync::Arc;
use core::ops::Range;

use freehold_machine::{PAGE, VirtAddr};
use freehold_paging::{EntryAt, Leaves, Memory, PageSize, Reached};

use crate::AddressSpace;
use crate::area::{Area, AreaContent};
use crate::error::VmError;
use crate::map::{page_range, whole_pages};
use crate::refs::ClearRefs;
use crate::request::{AreaFlags, MappedFile};
use crate::resident::Resident;

/// A call of msync, which proceeds from area to area ([`AddressSpace::next_to_sync`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SyncCall {
    /// The part that has not been checked yet.
    rest: Range<VirtAddr>,
    /// Whether there was a hole before that part.
    holes: bool,
    mode: SyncMode,
    others: OtherCopies,
}

impl SyncCall {
    /// Makes a call for `start..start + len`, in whole pages.
    ///
    /// # Errors
    /// [`VmError::Invalid`] if `start` is not page-aligned; [`VmError::NoMemory`] for a range
    /// beyond all addresses.
    pub fn new(start: VirtAddr, len: u64, mode: SyncMode, others: OtherCopies) -> Result<Self, VmError> {
        Ok(Self { rest: page_range(start, whole_pages(len))?, holes: false, mode, others })
    }
}

/// A process' advice about its use of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// No particular pattern of accesses.
    Normal,
    /// Accesses in random order: neighbours are not needed together.
    Random,
    /// Accesses from front to back.
    Sequential,
    /// The pages are needed soon.
    WillNeed,
    /// Discard the pages; private ones read as zeroes (or the file's bytes) again.
    DontNeed,
    /// As `DontNeed`, locked pages too.
    DontNeedLocked,
    /// The contents may be discarded when memory is short, until they are written again.
    Free,
    /// A child does not get the area.
    DontFork,
    /// A child gets the area again.
    DoFork,
    /// Leave the area out of core dumps.
    DontDump,
    /// Include the area in core dumps again.
    DoDump,
    /// A child gets the area empty.
    WipeOnFork,
    /// A child gets the pages again.
    KeepOnFork,
    /// The pages are not needed soon.
    Cold,
    /// The pages are not needed for long: [`Commons::page_out`](crate::Commons::page_out) evicts
    /// them, which this only allows.
    PageOut,
    /// All pages are [due](AddressSpace::take_due) for reading.
    PopulateRead,
    /// All pages are due for writing.
    PopulateWrite,
    /// Prefer larger pages.
    HugePage,
    /// Avoid larger pages.
    NoHugePage,
    /// Make large pages of the present pages, now.
    Collapse,
    /// Pages with equal bytes may get one frame.
    Mergeable,
    /// They get frames of their own again: all pages are [due](AddressSpace::take_due) for
    /// [`Populate::Unmerge`](crate::Populate::Unmerge).
    Unmergeable,
}

impl Advice {
    /// Returns the advice with Linux' number (`MADV_`); `None` for an unknown number.
    pub const fn from_linux(number: i32) -> Option<Self> {
        Some(match number {
            0 => Self::Normal,
            1 => Self::Random,
            2 => Self::Sequential,
            3 => Self::WillNeed,
            4 => Self::DontNeed,
            8 => Self::Free,
            10 => Self::DontFork,
            11 => Self::DoFork,
            12 => Self::Mergeable,
            13 => Self::Unmergeable,
            14 => Self::HugePage,
            15 => Self::NoHugePage,
            16 => Self::DontDump,
            17 => Self::DoDump,
            18 => Self::WipeOnFork,
            19 => Self::KeepOnFork,
            20 => Self::Cold,
            21 => Self::PageOut,
            22 => Self::PopulateRead,
            23 => Self::PopulateWrite,
            24 => Self::DontNeedLocked,
            25 => Self::Collapse,
            _ => return None,
        })
    }

    /// The flags that areas lose and gain.
    const fn flags(self) -> Option<(AreaFlags, AreaFlags)> {
        const NONE: AreaFlags = AreaFlags::empty();
        const PATTERN: AreaFlags = AreaFlags::RANDOM.union(AreaFlags::SEQUENTIAL);
        Some(match self {
            Self::Normal => (PATTERN, NONE),
            Self::Random => (PATTERN, AreaFlags::RANDOM),
            Self::Sequential => (PATTERN, AreaFlags::SEQUENTIAL),
            Self::DontFork => (NONE, AreaFlags::DONTFORK),
            Self::DoFork => (AreaFlags::DONTFORK, NONE),
            Self::DontDump => (NONE, AreaFlags::DONTDUMP),
            Self::DoDump => (AreaFlags::DONTDUMP, NONE),
            Self::WipeOnFork => (NONE, AreaFlags::WIPEONFORK),
            Self::KeepOnFork => (AreaFlags::WIPEONFORK, NONE),
            Self::HugePage => (AreaFlags::NOHUGEPAGE, AreaFlags::HUGEPAGE),
            Self::NoHugePage => (AreaFlags::HUGEPAGE, AreaFlags::NOHUGEPAGE),
            Self::Mergeable => (NONE, AreaFlags::MERGEABLE),
            Self::Unmergeable => (AreaFlags::MERGEABLE, NONE),
            _ => return None,
        })
    }

    fn check<S: Memory>(self, area: &Area<S>) -> Result<(), VmError> {
        let anonymous = matches!(area.content, AreaContent::Anonymous);
        let locked = area.flags.contains(AreaFlags::LOCKED);
        let fits = match self {
            Self::Free => anonymous && !locked,
            Self::WipeOnFork => anonymous,
            Self::Cold | Self::PageOut => !locked && area.huge_view().is_none(),
            Self::Collapse => area.huge_view().is_none(),
            Self::DontNeed => !locked,
            _ => true,
        };
        if fits { Ok(()) } else { Err(VmError::Invalid) }
    }
}

/// How msync waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncMode {
    /// Only check whether all addresses are mapped.
    Check,
    /// Begin (MS_ASYNC): dirty pages are known already, so nothing is left to do.
    Start,
    /// Return when the store has everything (MS_SYNC).
    Wait,
}

/// The claim of msync about other mappings of the same file. These mappings have the same frames,
/// so nothing has to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OtherCopies {
    /// No claim.
    Good,
    /// They are out of date (MS_INVALIDATE), which is an error if memory is locked.
    Invalid,
}

impl<S: Memory> AddressSpace<S> {
    /// Takes advice about `start..start + len`. Every part that can follow the advice does so
    /// before an error is returned.
    ///
    /// # Errors
    /// [`VmError::Invalid`]; [`VmError::NoMemory`] for a hole, or if there is no memory for a
    /// collapse.
    pub fn advise(&mut self, start: VirtAddr, len: u64, advice: Advice) -> Result<(), VmError> {
        let range = page_range(start, len).map_err(|_| VmError::Invalid)?;
        if range.is_empty() {
            return Ok(());
        }
        if range.end > self.layout.end {
            return Err(VmError::NoMemory);
        }
        if advice.flags().is_some() {
            self.make_room(2)?;
        }
        // Holes do not stop the advice, they are only reported (madvise(2)); a refused area does.
        let holes = if self.areas.covers(range.clone()) { Ok(()) } else { Err(VmError::NoMemory) };
        let refusal = self
            .areas
            .overlapping(range.clone())
            .find_map(|area| advice.check(area).err().map(|error| (area.start.max(range.start), error)));
        let (range, outcome) = match refusal {
            Some((at, error)) => (self.fitted(range.start..at, advice)?, Err(error)),
            None => (self.fitted(range, advice)?, holes),
        };
        if range.is_empty() {
            return outcome;
        }
        let cuts = matches!(advice, Advice::DontNeed | Advice::DontNeedLocked | Advice::Free);
        if cuts || advice.flags().is_some() {
            self.split_borders(&range)?;
        }
        if let Some((lose, get)) = advice.flags() {
            if advice == Advice::Unmergeable {
                self.owe(range.start, range.end);
            }
            self.areas.change(range, |area| area.flags = area.flags.difference(lose) | area.accepted(get));
            return outcome;
        }
        match advice {
            Advice::DontNeed | Advice::DontNeedLocked => self.discard(range),
            Advice::Free => self.in_areas(range, |resident, _, range| resident.give_up(range)),
            Advice::Cold => {
                let mut batch = self.resident.tables.batch();
                self.in_areas(range, |resident, _, range| {
                    resident.make_old(range, ClearRefs::All, &mut batch)
                });
            }
            Advice::WillNeed => self.in_areas(range, |resident, area, range| {
                if let Some((cache, first)) = area.cache_page(range.start) {
                    let pages = first..first + (range.end.0 - range.start.0) / PAGE;
                    cache.bring_in(pages, resident.place(area, range.start));
                }
                resident.read_ahead(area, range);
            }),
            Advice::Collapse => {
                outcome?;
                self.collapse(range)?;
            }
            Advice::PopulateRead | Advice::PopulateWrite => self.owe(range.start, range.end),
            _ => {}
        }
        outcome
    }

    /// Calls a function for the part of each area that is in `range`.
    fn in_areas(
        &mut self,
        range: Range<VirtAddr>,
        mut f: impl FnMut(&mut Resident<S>, &Area<S>, Range<VirtAddr>),
    ) {
        let Self { areas, resident, .. } = self;
        for (area, part) in areas.parts(range) {
            resident.source().rest();
            f(resident, area, part);
        }
    }

    fn discard(&mut self, range: Range<VirtAddr>) {
        let mut batch = self.resident.tables.batch();
        self.in_areas(range, |resident, area, part| resident.zap(area, part, &mut batch));
    }

    /// Tells for the pages from `start` (page-aligned) on whether they are in memory: for as many
    /// of `pages` as are in one area. Returns their number.
    ///
    /// # Errors
    /// [`VmError::NoMemory`] if nothing is mapped at `start`.
    pub fn residency(&self, start: VirtAddr, pages: &mut [bool]) -> Result<usize, VmError> {
        let area = self.areas.at(start).ok_or(VmError::NoMemory)?;
        let count = pages.len().min(((area.end.0 - start.0) / PAGE) as usize);
        let pages = &mut pages[..count];
        pages.fill(false);
        if let Some((cache, first)) = area.cache_page(start) {
            cache.residency(first, pages);
        }
        // The entry of a table takes precedence over the state of the cache.
        let range = start..VirtAddr(start.0 + count as u64 * PAGE);
        self.resident.tables.visit_tables(range.clone(), |reached| match reached {
            Reached::Leaves(leaves) => self.residency_of(&leaves, start, pages),
            Reached::Large(EntryAt { addr, entry, .. }) => {
                if entry.is_leaf() {
                    let end = VirtAddr(addr.0 + PageSize::Large.bytes()).min(range.end);
                    let index = |addr: VirtAddr| ((addr.0 - start.0) / PAGE) as usize;
                    pages[index(addr.max(start))..index(end)].fill(true);
                }
            }
        });
        Ok(count)
    }

    /// As [`AddressSpace::residency`], for the pages of one table. **Cost.** One load, two tests
    /// and one store for each present page.
    fn residency_of(&self, leaves: &Leaves<S::Machine>, start: VirtAddr, pages: &mut [bool]) {
        // The table may begin before `start`, but its visited entries do not.
        let first = (leaves.addr(0).0 as i64 - start.0 as i64) / PAGE as i64;
        leaves.each(|index, entry| {
            let is_resident = entry.is_leaf()
                || match entry.swap_place() {
                    Some(place) => self.resident.commons.swap.is_cached(place),
                    None => return,
                };
            if let Some(page) = pages.get_mut((first + index as i64) as usize) {
                *page = is_resident;
            }
        });
    }

    /// Returns the next file that `call` has to store, and `None` at its end. The lock may be
    /// released between two calls; areas that were unmapped meanwhile are holes.
    ///
    /// # Errors
    /// [`VmError::Busy`] for locked memory whose other copies are declared out of date.
    /// [`VmError::NoMemory`] for a hole, after all files were returned.
    pub fn next_to_sync(&self, call: &mut SyncCall) -> Result<Option<Arc<dyn MappedFile<S>>>, VmError> {
        for area in self.areas.overlapping(call.rest.clone()) {
            call.holes |= area.start > call.rest.start;
            if call.others == OtherCopies::Invalid && area.flags.contains(AreaFlags::LOCKED) {
                return Err(VmError::Busy);
            }
            call.rest.start = area.end.min(call.rest.end);
            if call.mode == SyncMode::Wait
                && let AreaContent::SharedFile(view, ..) = &area.content
            {
                return Ok(Some(view.file.clone()));
            }
        }
        if call.holes || !call.rest.is_empty() { Err(VmError::NoMemory) } else { Ok(None) }
    }
}
