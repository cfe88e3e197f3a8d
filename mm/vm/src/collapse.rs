//! Collapse: a large page replaces small pages.
//!
//! It has two callers: a program for its own memory (MADV_COLLAPSE), and a task that scans all
//! address spaces (Linux' khugepaged) with [`AddressSpace::collapse_step`], which gives the space's
//! lock back after each large page it tried to make.
//!
//! If the 512 frames already are one block, in order, their leaves become one leaf and no byte
//! moves, even if frames are pinned or shared. Otherwise the bytes are copied to a new block. First
//! each frame's word is changed so that it cannot be pinned, its leaf is removed, and every CPU
//! forgets it. Only then is the copy made (`freehold_frame::transition`), so no store is lost. If a
//! frame is pinned by then, all frames stay where they are.
//!
//! **Failure** leaves the small pages as they were.

use alloc::vec::Vec;
use core::mem::ManuallyDrop;
use core::ops::Range;

use freehold_frame::{Anon, Belongs, Frame, Held, LargeMapping, LeafMapping, Owner, Payer, Request};
use freehold_machine::{PAGE, PAGEBLOCK_FRAMES, Pfn, VirtAddr};
use freehold_paging::{Backing, Entry, FlushBatch, Marks, Memory, PageSize, Rights};
use freehold_xpfo::Windows;

use crate::AddressSpace;
use crate::area::Area;
use crate::error::VmError;
use crate::events::Event;
use crate::huge::{HugeMode, LARGE, blocks_in, large_leaf};
use crate::resident::Resident;

/// Limits on the 512 small pages that are made one large page without a request, as counts of pages
/// (Linux: /sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_*).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CollapseLimits {
    /// Never written: they would cost memory.
    pub none: u64,
    /// Mapped elsewhere too: they would be copied.
    pub shared: u64,
    /// In swap areas: they would be read.
    pub swapped: u64,
}

/// Result of a step of [`AddressSpace::collapse_step`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CollapseStep {
    /// Where the next step begins; `None` when this space has been looked through.
    pub next: Option<VirtAddr>,
    /// Number of scanned pages.
    pub pages: u64,
    /// The result for the large page that was tried, if any.
    pub tried: Option<Result<(), VmError>>,
}

/// Pages that are mapped in 2 MiB.
#[derive(Default)]
struct Survey {
    /// Pages with a frame of their own.
    present: u64,
    /// The pages among these that are mapped elsewhere, too.
    shared: u64,
    /// The pages among these that are pinned.
    pinned: u64,
    /// The pages among these that were used since the last scan.
    used: u64,
    /// Pages in swap areas.
    swapped: u64,
    /// The first frame.
    first: Option<Pfn>,
    /// Pages whose next store is to be reported.
    watched: u64,
    /// The start of the block that would contain the first frame.
    head: Option<Pfn>,
    /// Whether a frame is outside that block, or not in order.
    apart: bool,
}

impl Survey {
    /// The block that already contains all frames in order.
    fn block(&self) -> Option<Pfn> {
        self.head.filter(|head| !self.apart && self.present == PAGEBLOCK_FRAMES && head.is_aligned(9))
    }
}

/// A page whose leaf was removed: its frame, if it has its own, cannot be pinned.
struct Gone<S: Memory> {
    addr: VirtAddr,
    old: Entry,
    held: Option<(Frame<Anon, S>, Belongs)>,
}

impl<S: Memory> Resident<S> {
    /// Look at the small pages of the 2 MiB from `start` on; `None` where there is a large page, or
    /// nothing.
    fn survey(&self, start: VirtAddr) -> Option<Survey> {
        let entry = self.tables.find_large(start)?.load();
        if entry.is_empty() || entry.is_large() {
            return None;
        }
        let mut survey = Survey::default();
        self.tables.visit_all(start..VirtAddr(start.0 + LARGE), |addr, _, entry, _| {
            survey.swapped += u64::from(!entry.is_leaf());
            survey.watched += u64::from(entry.is_watched());
            if !entry.is_leaf() || entry.backing() != Backing::Counted {
                return;
            }
            let counts = self.source().table().get(entry.frame()).map(|record| record.counts().load());
            let index = (addr.0 - start.0) / PAGE;
            survey.first.get_or_insert(entry.frame());
            let head = *survey.head.get_or_insert(Pfn(entry.frame().0.wrapping_sub(index)));
            survey.apart |= head.0.wrapping_add(index) != entry.frame().0;
            survey.present += 1;
            survey.shared += u64::from(counts.is_some_and(|counts| counts.mappings > 1));
            survey.pinned += u64::from(counts.is_some_and(|counts| counts.pins > 0));
            survey.used += u64::from(entry.is_accessed());
        });
        Some(survey)
    }

    /// Makes one large page of the pages that are mapped in the 2 MiB from `start` on, which `area`
    /// covers. Large pages need not be enabled.
    ///
    /// # Errors
    /// [`VmError::Invalid`] if nothing is mapped; [`VmError::Again`] if a frame is held;
    /// [`VmError::Fault`] if a page cannot be read from its swap area; [`VmError::NoMemory`].
    fn collapse(&mut self, area: &Area<S>, start: VirtAddr) -> Result<(), VmError> {
        if self.tables.find_large(start).is_some_and(|slot| slot.load().is_large()) {
            return Ok(());
        }
        let range = start..VirtAddr(start.0 + LARGE);
        self.bring_in(area, range.clone())?;
        // The area's monitor provides missing pages.
        let least = if area.is_monitored() { PAGEBLOCK_FRAMES } else { 1 };
        let survey = self
            .survey(start)
            .filter(|survey| survey.present >= least && survey.watched == 0)
            .ok_or(VmError::Invalid)?;
        let mut batch = self.tables.batch();
        let in_place = survey.block().and_then(|head| LargeMapping::borrow_leaf(self.source(), head));
        let block = match in_place {
            Some(block) => {
                // If this space is the only holder, the block becomes whole again; if it is shared,
                // its pieces keep separate counts.
                let _: Result<(), _> = block.gather();
                self.tables.visit(range, |_, slot, _, _| {
                    slot.replace(Entry::EMPTY);
                });
                batch.range(start, PAGEBLOCK_FRAMES);
                ManuallyDrop::into_inner(block)
            }
            None if survey.pinned > 0 => return Err(VmError::Again),
            None => {
                let payer = survey.first.map_or(self.payer(), Payer::SameAs);
                let block = self.collapse_copy(area, start, payer, &mut batch)?;
                self.rss.anon += PAGEBLOCK_FRAMES - survey.present;
                block
            }
        };
        let full = area.rights();
        let may_write = block.belongs() == Belongs::Exclusive;
        let rights = if may_write { full } else { full.without(Rights::WRITE) };
        self.tables.join(start, large_leaf(block, rights, Marks::Dirty), &mut batch);
        self.large += 1;
        self.count_leaves(1);
        self.commons.count(Event::HugeCollapseAlloc);
        Ok(())
    }

    /// A new block with the bytes of the 2 MiB from `start` on, whose leaves were removed; `payer`
    /// is charged for the whole block.
    fn collapse_copy(
        &mut self,
        area: &Area<S>,
        start: VirtAddr,
        payer: Payer,
        batch: &mut FlushBatch<S>,
    ) -> Result<LargeMapping<S>, VmError> {
        let mut gone = Vec::new();
        let room = gone.try_reserve_exact(PAGEBLOCK_FRAMES as usize).is_ok();
        let request = Request::new(Owner::Anon).policy(self.place_large(area, start));
        let new = LargeMapping::allocate_for(self.source(), payer, request);
        let (true, Ok(block)) = (room, new) else {
            self.commons.count(Event::HugeCollapseFailed);
            return Err(VmError::NoMemory);
        };
        // Noted even if pages are put back: the tables then agree with entries that TLBs still
        // have.
        batch.range(start, PAGEBLOCK_FRAMES);
        let outcome = self.take_leaves(start, &mut gone);
        // No CPU stores to the old frames any more once this is done.
        batch.flush();
        if let Err(error) = outcome {
            gone.into_iter().for_each(|page| self.put_back(page));
            return Err(error);
        }
        let machine = self.source().machine();
        let mut next = 0;
        for page in gone {
            let index = (page.addr.0 - start.0) / PAGE;
            (next..index).for_each(|gap| machine.zero(&block.held_at(gap)));
            match page.held {
                Some((old, _)) => machine.copy(&old, &block.held_at(index)),
                // The leaf mapped the page of zeroes.
                None => machine.zero(&block.held_at(index)),
            }
            next = index + 1;
        }
        (next..PAGEBLOCK_FRAMES).for_each(|gap| machine.zero(&block.held_at(gap)));
        Ok(block)
    }

    /// Removes all leaves of the 2 MiB from `start` on; `gone` has room for them.
    ///
    /// # Errors
    /// [`VmError::Again`] if a frame is held, by a new pin or by the kernel; the leaves before it
    /// have been removed.
    fn take_leaves(&self, start: VirtAddr, gone: &mut Vec<Gone<S>>) -> Result<(), VmError> {
        let mut outcome = Ok(());
        self.tables.visit(start..VirtAddr(start.0 + LARGE), |addr, slot, entry, _| {
            if outcome.is_err() {
                return;
            }
            let mapping = match entry.backing() {
                Backing::Counted => LeafMapping::from_leaf(self.source(), entry.frame()).ok(),
                Backing::Uncounted => None,
            };
            let held = match mapping.map(LeafMapping::vacate) {
                None => None,
                Some(Ok(held)) => Some(held),
                Some(Err((mapping, _))) => {
                    // The leaf is the holder still.
                    mapping.into_leaf();
                    outcome = Err(VmError::Again);
                    return;
                }
            };
            gone.push(Gone { addr, old: slot.replace(Entry::EMPTY), held });
        });
        outcome
    }

    fn put_back(&self, page: Gone<S>) {
        // The count was taken a moment ago, so it fits in its place.
        if let Some((frame, belongs)) = page.held
            && let Ok(mapping) = frame.into_mapping_as(belongs)
        {
            mapping.into_leaf();
        }
        if let Some((slot, PageSize::Small)) = self.tables.find(page.addr) {
            slot.fill(page.old);
        }
    }

    /// Whether the pages in the 2 MiB from `start` on are worth a large page without a request.
    fn is_worth_collapsing(&self, start: VirtAddr, limits: &CollapseLimits) -> bool {
        let Some(survey) = self.survey(start) else { return false };
        let none = PAGEBLOCK_FRAMES - survey.present - survey.swapped;
        let limits = [
            (none, limits.none, Event::HugeScanNone),
            (survey.swapped, limits.swapped, Event::HugeScanSwapped),
            (survey.shared, limits.shared, Event::HugeScanShared),
        ];
        if let Some((.., event)) = limits.into_iter().find(|(pages, most, _)| pages > most) {
            self.commons.count(event);
            return false;
        }
        survey.used > 0 && (survey.pinned == 0 || survey.block().is_some())
    }
}

impl<S: Memory> AddressSpace<S> {
    /// Make large pages of `range` where areas allow it (MADV_COLLAPSE), as many as can be.
    ///
    /// # Errors
    /// [`VmError::Invalid`] where an area may have none, or is too small for one, or nothing is
    /// mapped; else the last error of a large page.
    pub(crate) fn collapse(&mut self, range: Range<VirtAddr>) -> Result<(), VmError> {
        let Self { areas, resident, .. } = self;
        let mut outcome = Ok(());
        for (area, part) in areas.parts(range) {
            let has_room = blocks_in(&(area.start..area.end)).next().is_some();
            if !has_room || !resident.may_be_large(area, HugeMode::Always) {
                return Err(VmError::Invalid);
            }
            for start in blocks_in(&part) {
                resident.source().rest();
                match resident.collapse(area, start) {
                    Ok(()) => {}
                    Err(VmError::NoMemory) => return Err(VmError::NoMemory),
                    Err(error) => outcome = Err(error),
                }
            }
        }
        outcome
    }

    /// Looks at up to `budget` pages from `from` on, in areas that want large pages under the
    /// present settings. Makes the first large page that is worth it. With any `limits`, pages that
    /// were not used since [`clear_references`](Self::clear_references) are not collapsed.
    pub fn collapse_step(&mut self, from: VirtAddr, budget: u64, limits: &CollapseLimits) -> CollapseStep {
        let Self { areas, resident, layout, .. } = self;
        let mut pages = 0;
        for (area, part) in areas.parts(from..layout.end) {
            for start in blocks_in(&part) {
                if resident.block_for(area, start).is_none() {
                    break;
                }
                if pages >= budget {
                    return CollapseStep { next: Some(start), pages, tried: None };
                }
                pages += PAGEBLOCK_FRAMES;
                if resident.is_worth_collapsing(start, limits) {
                    let tried = Some(resident.collapse(area, start));
                    return CollapseStep { next: Some(VirtAddr(start.0 + LARGE)), pages, tried };
                }
            }
        }
        CollapseStep { next: None, pages, tried: None }
    }
}
