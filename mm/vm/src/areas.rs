//! The areas of one address space: disjoint, sorted by start. Neighbours that can be joined are one
//! area.
//!
//! Each subtree knows the widest gap between its areas ([`Ground`]), so a hole is found in O(log n)
//! steps. Repeated searches find their hole in a few steps, however many areas there are: the tree
//! remembers the last used position, and the address above which no hole is left ([`Full`]). A
//! caller that adds or splits areas makes room for them first ([`Areas::make_room`]), so that no
//! step fails half way.

use core::cell::Cell;
use core::ops::Range;

use freehold_machine::VirtAddr;
use freehold_paging::Memory;
use freehold_tree::{AtomicSlot, Slot, Summary, Tree};

use crate::VmError;
use crate::area::{Area, AreaUse};
use crate::request::{AreaFlags, LOW, Layout};

/// The room that stays free below an area that grows downwards, so that a stack does not run into
/// other memory unnoticed (Linux: `stack_guard_gap`, 256 pages).
pub(crate) const STACK_GAP: u64 = 256 << 12;

/// Number of areas that are checked one by one before the tree is searched for a hole.
const NEAR: usize = 4;

/// A fact about holes: no hole of `len` bytes or more, below the layout's base for mmap, ends above
/// `edge`. [`Full::UNKNOWN`] is always true.
///
/// The fact stays true when an area is added. A removal raises `edge` to the end of the hole that
/// it makes. An area that grows downwards keeps a gap below it that this calculation ignores. So
/// once such an area was below the base, the fact is not used ([`Areas::highest_hole`]).
#[derive(Clone, Copy)]
struct Full {
    len: u64,
    edge: VirtAddr,
}

/// Number of areas that are summed up before other tasks may run.
const SUMMED_AT_ONCE: usize = 4096;

impl Full {
    const UNKNOWN: Self = Self { len: u64::MAX, edge: VirtAddr(u64::MAX) };
}

/// The range and the gaps of a subtree of areas.
#[derive(Clone, PartialEq, Debug)]
struct Ground {
    /// Start of the first area, less the gap that it must keep.
    start: VirtAddr,
    /// End of the last area.
    end: VirtAddr,
    /// The bytes of the widest gap between two of its areas.
    widest: u64,
}

impl<S: Memory> Summary<VirtAddr, Area<S>> for Ground {
    fn of(_start: &VirtAddr, area: &Area<S>) -> Self {
        Self { start: reserved_start(area), end: area.end, widest: 0 }
    }
    fn join(&self, next: &Self) -> Self {
        let between = next.start.0.saturating_sub(self.end.0);
        Self { start: self.start, end: next.end, widest: between.max(self.widest).max(next.widest) }
    }
}

/// Pages of all areas, by use (Linux: `data_vm`, `exec_vm`, `stack_vm` and `locked_vm` of the mm),
/// and of promised ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PageSums {
    by_use: [u64; AreaUse::COUNT],
    /// Of locked areas.
    pub locked: u64,
    /// Of areas that are promised.
    pub accounted: u64,
}

impl PageSums {
    /// Returns the pages of areas with this use.
    pub(crate) const fn of(&self, area_use: AreaUse) -> u64 {
        self.by_use[area_use as usize]
    }
    #[inline]
    fn add<S: Memory>(&mut self, area: &Area<S>) {
        self.change(area, u64::wrapping_add);
    }
    #[inline]
    fn remove<S: Memory>(&mut self, area: &Area<S>) {
        self.change(area, u64::wrapping_sub);
    }
    #[inline]
    fn change<S: Memory>(&mut self, area: &Area<S>, by: impl Fn(u64, u64) -> u64) {
        let pages = area.pages();
        let sum = &mut self.by_use[area.area_use() as usize];
        *sum = by(*sum, pages);
        if area.flags.contains(AreaFlags::LOCKED) {
            self.locked = by(self.locked, pages);
        }
        if area.flags.contains(AreaFlags::ACCOUNT) {
            self.accounted = by(self.accounted, pages);
        }
    }
    /// Applies `change` to an area that is counted here, and updates the counts.
    #[inline]
    fn recount<S: Memory>(&mut self, area: &mut Area<S>, change: impl FnOnce(&mut Area<S>)) {
        self.remove(area);
        change(area);
        self.add(area);
    }
}

pub(crate) struct Areas<S: Memory> {
    source: S,
    tree: Tree<VirtAddr, Area<S>, Ground>,
    sums: PageSums,
    /// The area that was found or added last, or the one before the last removed area, if it still
    /// exists: faults are often near each other, and mapped memory is often unmapped next.
    last: AtomicSlot,
    full: Full,
    /// The lowest start that an area which grows downwards ever had.
    lowest_growing: VirtAddr,
}

impl<S: Memory> Areas<S> {
    pub(crate) const fn new(source: S) -> Self {
        Self::of(source, Tree::new())
    }
    const fn of(source: S, tree: Tree<VirtAddr, Area<S>, Ground>) -> Self {
        let nowhere = VirtAddr(u64::MAX);
        let (last, full) = (AtomicSlot::new(Slot::NONE), Full::UNKNOWN);
        let sums = PageSums { by_use: [0; AreaUse::COUNT], locked: 0, accounted: 0 };
        Self { source, tree, sums, last, full, lowest_growing: nowhere }
    }
    /// Returns the pages of all areas.
    pub(crate) const fn sums(&self) -> &PageSums {
        &self.sums
    }
    pub(crate) fn count(&self) -> usize {
        self.tree.len()
    }
    /// Makes room for `more` areas: adding and splitting as many does not fail. There is room for
    /// twice as many, since areas that are split for removal need some for a moment.
    ///
    /// # Errors
    /// [`VmError::NoMemory`], also if there are more than `most` areas: as on Linux, one area more
    /// than `most` can exist.
    pub(crate) fn make_room(&mut self, more: usize, most: usize) -> Result<(), VmError> {
        if self.count() > most {
            return Err(VmError::NoMemory);
        }
        Ok(self.tree.reserve(2 * more)?)
    }
    /// Returns the areas that a child inherits.
    pub(crate) fn inherited(&self) -> impl Iterator<Item = &Area<S>> {
        self.iter().filter(|area| !area.flags.contains(AreaFlags::DONTFORK))
    }
    /// Returns a twin of each area that a child inherits.
    ///
    /// # Errors
    /// [`VmError::NoMemory`], and the errors of `twin`.
    pub(crate) fn twins(
        &self,
        mut twin: impl FnMut(&Area<S>) -> Result<Area<S>, VmError>,
    ) -> Result<Self, VmError> {
        let mut sums = PageSums::default();
        let twins = self.inherited().map(|area| {
            self.source.rest();
            let twin = twin(area)?;
            sums.add(&twin);
            Ok::<_, VmError>((area.start, twin))
        });
        let tree = Tree::try_from_sorted(self.count(), twins)?;
        Ok(Self { sums, lowest_growing: self.lowest_growing, ..Self::of(self.source, tree) })
    }
    /// Makes room for removing `range`: none is needed if its ends are already borders.
    ///
    /// # Errors
    /// [`VmError::NoMemory`].
    pub(crate) fn make_room_to_cut(&mut self, range: &Range<VirtAddr>) -> Result<(), VmError> {
        let is_inside = |at| usize::from(self.at(at).is_some_and(|area| area.start < at));
        let pieces = is_inside(range.start) + is_inside(range.end);
        Ok(self.tree.reserve(pieces)?)
    }
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Area<S>> {
        self.tree.values()
    }
    /// Changes all areas in place, but not their starts and ends, nor anything that is counted.
    pub(crate) fn for_each_mut(&mut self, mut f: impl FnMut(&mut Area<S>)) {
        self.tree.update_range(.., |_, area| f(area));
    }
    /// Changes the area that contains `addr` in place, but not its start and end, nor anything that
    /// is counted.
    pub(crate) fn update_at(&mut self, addr: VirtAddr, f: impl FnOnce(&mut Area<S>)) {
        let Some(start) = self.at(addr).map(|area| area.start) else { return };
        self.tree.update(&start, f);
    }
    /// The area that contains `addr`. Hot path: every page fault calls this.
    #[inline(always)]
    pub(crate) fn at(&self, addr: VirtAddr) -> Option<&Area<S>> {
        let contains = |area: &&Area<S>| area.start <= addr && addr < area.end;
        match self.tree.at_slot(self.last.get()).filter(contains) {
            Some(area) => Some(area),
            None => self.find(addr),
        }
    }
    /// As [`Areas::at`], for many CPUs at once: nothing is remembered, so no cache line is written.
    pub(crate) fn at_shared(&self, addr: VirtAddr) -> Option<&Area<S>> {
        let (_, _, area) = self.tree.floor(&addr)?;
        (addr < area.end).then_some(area)
    }
    fn find(&self, addr: VirtAddr) -> Option<&Area<S>> {
        let (slot, _, area) = self.tree.floor(&addr)?;
        self.last.set(slot);
        (addr < area.end).then_some(area)
    }
    /// Make the area that starts at `start` end at `end`.
    pub(crate) fn set_end(&mut self, start: VirtAddr, end: VirtAddr) {
        let sums = &mut self.sums;
        self.tree.update(&start, |area| sums.recount(area, |area| area.end = end));
    }
    /// The place of the last area that starts at or below `addr`.
    #[inline]
    fn floor(&self, addr: VirtAddr) -> Slot {
        self.tree.floor_near(self.last.get(), &addr)
    }
    /// The first area that starts above `addr`.
    pub(crate) fn above(&self, addr: VirtAddr) -> Option<&Area<S>> {
        self.tree.at_slot(self.tree.slot_following(self.floor(addr)))
    }
    /// The last area that starts below `addr`.
    pub(crate) fn below(&self, addr: VirtAddr) -> Option<&Area<S>> {
        self.tree.at_slot(self.floor(VirtAddr(addr.0.checked_sub(1)?)))
    }
    /// The areas with an address in `range`, upwards.
    pub(crate) fn overlapping(&self, range: Range<VirtAddr>) -> impl Iterator<Item = &Area<S>> {
        let first = if range.is_empty() { Slot::NONE } else { self.first_from(range.start) };
        // The iterator stops at the end of `range` itself: searching for the last area would cost
        // more.
        self.tree.from_slot(first).map(|(_, area)| area).take_while(move |area| area.start < range.end)
    }
    /// The place of the first area that ends above `addr`.
    fn first_from(&self, addr: VirtAddr) -> Slot {
        let last = self.last.get();
        if self.tree.at_slot(last).is_some_and(|area| area.start <= addr && addr < area.end) {
            return last;
        }
        let slot = self.floor(addr);
        let Some(area) = self.tree.at_slot(slot) else { return self.tree.slot_following(Slot::NONE) };
        self.last.set(slot);
        if addr < area.end { slot } else { self.tree.slot_after(slot) }
    }
    /// As [`Areas::overlapping`], each with the part of it that is in `range`.
    pub(crate) fn parts(&self, range: Range<VirtAddr>) -> impl Iterator<Item = (&Area<S>, Range<VirtAddr>)> {
        let part = move |area: &Area<S>| area.start.max(range.start)..area.end.min(range.end);
        self.overlapping(range.clone()).map(move |area| (area, part(area)))
    }
    /// Whether nothing is mapped in `range`.
    #[inline]
    pub(crate) fn is_free(&self, range: Range<VirtAddr>) -> bool {
        self.overlapping(range).next().is_none()
    }
    /// Whether every address of `range` is mapped.
    pub(crate) fn covers(&self, range: Range<VirtAddr>) -> bool {
        let mut next = range.start;
        for area in self.overlapping(range.clone()) {
            if area.start > next {
                return false;
            }
            next = area.end;
        }
        next >= range.end
    }
    /// Adds an area at free addresses, in reserved room, and joins it with its neighbours.
    pub(crate) fn add(&mut self, area: Area<S>) {
        debug_assert!(area.start < area.end && self.is_free(area.start..area.end));
        if area.flags.contains(AreaFlags::GROWSDOWN) {
            self.lowest_growing = self.lowest_growing.min(area.start);
        }
        self.sums.add(&area);
        let floor = self.floor(area.start);
        let below = self.tree.at_slot(floor).filter(|below| below.joins(&area)).map(|below| below.start);
        let above = self.tree.at_slot(self.tree.slot_following(floor));
        let above = above.filter(|above| area.joins(above)).map(|above| above.start);
        match (below, above) {
            (None, None) => self.put(area),
            (Some(below), None) => drop(self.tree.update(&below, |below| below.absorb(&area))),
            (below, Some(above)) => {
                let start = area.start;
                self.tree.rekey(&above, start, |above| {
                    let gone = core::mem::replace(above, area);
                    above.absorb(&gone);
                });
                if let Some(below) = below
                    && let Some(gone) = self.tree.remove(&start)
                {
                    self.tree.update(&below, |below| below.absorb(&gone));
                }
            }
        }
    }
    fn put(&mut self, area: Area<S>) {
        let slot = self.tree.add(area.start, area).expect("the caller made room");
        self.last.set(slot);
    }
    /// Makes `at` a border between areas, if it is inside one.
    pub(crate) fn split_at(&mut self, at: VirtAddr) {
        let Some(start) = self.at(at).map(|area| area.start).filter(|&start| start < at) else { return };
        if let Some(upper) = self.tree.update(&start, |area| area.split_off(at)) {
            self.put(upper);
        }
    }
    /// Removes and returns the first area that starts in `range`, whose ends are borders. A caller
    /// that removes many areas needs no list of them.
    pub(crate) fn take_first(&mut self, range: &Range<VirtAddr>) -> Option<Area<S>> {
        let slot = self.first_from(range.start);
        let start = self.tree.at_slot(slot)?.start;
        if start >= range.end {
            return None;
        }
        let next = self.tree.at_slot(self.tree.slot_after(slot));
        self.full.edge = self.full.edge.max(next.map_or(VirtAddr(u64::MAX), |next| next.start));
        self.last.set(self.tree.slot_before(slot));
        let gone = self.tree.remove(&start)?;
        self.sums.remove(&gone);
        Some(gone)
    }
    /// Changes the areas in `range`, which are split at its ends, then joins those that can be
    /// joined. There is room for two more.
    pub(crate) fn change(&mut self, range: Range<VirtAddr>, mut f: impl FnMut(&mut Area<S>)) {
        // Usually it is just one area.
        if self.at(range.start).is_some_and(|area| area.start == range.start && area.end == range.end) {
            let sums = &mut self.sums;
            self.tree.update(&range.start, |area| sums.recount(area, f));
        } else {
            self.split_at(range.start);
            self.split_at(range.end);
            let (source, sums) = (self.source, &mut self.sums);
            self.tree.update_range(range.clone(), |_, area| {
                source.rest();
                sums.recount(area, &mut f);
            });
        }
        self.join(range);
    }
    /// Change every area, and join those that are alike by then.
    pub(crate) fn change_all(&mut self, mut f: impl FnMut(&mut Area<S>)) {
        let sums = &mut self.sums;
        self.tree.update_range(.., |_, area| sums.recount(area, &mut f));
        self.join(VirtAddr(0)..VirtAddr(u64::MAX));
    }
    /// Join neighbours from just below `range` to just above.
    pub(crate) fn join(&mut self, range: Range<VirtAddr>) {
        // From the top down, continuing from each joined pair: the areas above were already
        // checked, and a join does not change that. So a range of many areas is walked once.
        let mut top = range.end;
        while let Some((key, next)) = self.joinable(range.start, top) {
            top = key;
            self.source.rest();
            let Some(gone) = self.tree.remove(&next) else { return };
            self.tree.update(&key, |area| area.absorb(&gone));
        }
    }
    /// The starts of two neighbours that can be one: the highest pair between just below `bottom`
    /// and the area that begins at `top`.
    fn joinable(&self, bottom: VirtAddr, top: VirtAddr) -> Option<(VirtAddr, VirtAddr)> {
        let mut above: Option<&Area<S>> = None;
        for (&start, area) in self.tree.range(..=top).rev() {
            if let Some(next) = above.filter(|next| area.joins(next)) {
                return Some((start, next.start));
            }
            if start < bottom {
                return None;
            }
            above = Some(area);
        }
        None
    }
    /// Moves an area's start (growth of a stack, and nothing else). `from` is its present start.
    pub(crate) fn move_start(&mut self, from: VirtAddr, to: VirtAddr) {
        let sums = &mut self.sums;
        self.tree.rekey(&from, to, |area| sums.recount(area, |area| area.start = to));
        self.lowest_growing = self.lowest_growing.min(to);
    }

    /// Finds a hole of `len` bytes: the highest below `mmap_base`, else the lowest above.
    pub(crate) fn find_hole(&mut self, len: u64, layout: &Layout) -> Option<VirtAddr> {
        self.highest_hole(len, layout).or_else(|| self.lowest_hole_above(len, layout))
    }

    fn highest_hole(&mut self, len: u64, layout: &Layout) -> Option<VirtAddr> {
        let base = layout.mmap_base;
        let is_known = len >= self.full.len && self.lowest_growing >= base;
        let top = if is_known { self.full.edge.min(base) } else { base };
        let found = self.hole_near(top, len).or_else(|| {
            self.sum_up();
            self.search_hole(top, len, layout)
        });
        // A fact recorded for holes of one length also holds for longer ones. A longer request
        // keeps it.
        if len <= self.full.len {
            let edge = found.map_or(layout.lowest, |start| VirtAddr(start.0 + len));
            self.full = Full { len, edge };
        }
        found
    }

    /// Makes the tree ready for a search: after a fork all areas have to be summed up, and other
    /// tasks may run meanwhile.
    fn sum_up(&mut self) {
        while !self.tree.sum_up_some(SUMMED_AT_ONCE) {
            self.source.rest();
        }
    }

    /// The highest hole that ends at or below `top`, if it is next to one of the first few areas.
    fn hole_near(&self, top: VirtAddr, len: u64) -> Option<VirtAddr> {
        let mut ceiling = top;
        let mut slot = self.floor(VirtAddr(top.0.checked_sub(1)?));
        for _ in 0..NEAR {
            let area = self.tree.at_slot(slot)?;
            if area.end.0.saturating_add(len) <= ceiling.0 {
                return Some(VirtAddr(ceiling.0 - len));
            }
            ceiling = reserved_start(area);
            slot = self.tree.slot_before(slot);
        }
        None
    }

    /// The highest hole that ends at or below `top`.
    fn search_hole(&mut self, top: VirtAddr, len: u64, layout: &Layout) -> Option<VirtAddr> {
        // Start of the last skipped area. As on Linux an area keeps its gap only from its
        // neighbour.
        let ceiling = Cell::new(top);
        let fits = |end: VirtAddr| end.0.saturating_add(len) <= ceiling.get().0;
        let passes = |ground: &Ground| {
            let passes = ground.widest < len && !fits(ground.end);
            if passes {
                ceiling.set(ground.start);
            }
            passes
        };
        let found = self.tree.find_down(&top, passes, |_, area| {
            let found = fits(area.end).then(|| VirtAddr(ceiling.get().0 - len));
            ceiling.set(reserved_start(area));
            found
        });
        found.or_else(|| fits(layout.lowest).then(|| VirtAddr(ceiling.get().0 - len)))
    }

    fn lowest_hole_above(&mut self, len: u64, layout: &Layout) -> Option<VirtAddr> {
        self.lowest_hole(layout.mmap_base..layout.end, len)
    }

    /// The lowest hole of `len` bytes within a range; the areas are summed up.
    fn lowest_hole(&mut self, within: Range<VirtAddr>, len: u64) -> Option<VirtAddr> {
        let below = self.below(within.start).map_or(within.start, |area| area.end);
        let floor = Cell::new(within.start.max(below));
        let fits = |start: VirtAddr| floor.get().0.saturating_add(len) <= start.0;
        let raise = |end: VirtAddr| floor.set(floor.get().max(end));
        let passes = |ground: &Ground| {
            let passes = ground.widest < len && !fits(ground.start);
            if passes {
                raise(ground.end);
            }
            passes
        };
        let found = self.tree.find_up(&within.start, passes, |_, area| {
            let found = fits(reserved_start(area)).then(|| floor.get());
            raise(area.end);
            found
        });
        let found = found.or_else(|| fits(within.end).then(|| floor.get()));
        found.filter(|start| start.0.saturating_add(len) <= within.end.0)
    }

    /// The lowest hole of `len` bytes within [`LOW`].
    pub(crate) fn find_low_hole(&mut self, len: u64) -> Option<VirtAddr> {
        self.sum_up();
        self.lowest_hole(LOW, len)
    }

    /// Check the tree, the sums, and that the search for holes of some sizes finds the same holes
    /// as a walk over all areas.
    #[cfg(test)]
    pub(crate) fn validate(&mut self, layout: &Layout) {
        self.tree.validate();
        let mut sums = PageSums::default();
        self.iter().for_each(|area| sums.add(area));
        assert_eq!(self.sums, sums, "pages by use");
        for pages in [1, 2, 3, 16, 512, 1 << 20, 1 << 34] {
            let len = pages << 12;
            assert_eq!(self.find_hole(len, layout), self.walk_to_hole(len, layout), "{pages} pages");
        }
    }

    #[cfg(test)]
    pub(crate) fn walk_to_hole(&self, len: u64, layout: &Layout) -> Option<VirtAddr> {
        let (mut ceiling, mut floor) = (layout.mmap_base, layout.mmap_base);
        for area in self.iter().rev().skip_while(|area| area.start >= layout.mmap_base) {
            if area.end.0.saturating_add(len) <= ceiling.0 {
                return Some(VirtAddr(ceiling.0 - len));
            }
            floor = floor.max(area.end);
            ceiling = reserved_start(area);
        }
        if layout.lowest.0.saturating_add(len) <= ceiling.0 {
            return Some(VirtAddr(ceiling.0 - len));
        }
        for area in self.iter().skip_while(|area| area.start < layout.mmap_base) {
            if floor.0.saturating_add(len) <= reserved_start(area).0 {
                return Some(floor);
            }
            floor = floor.max(area.end);
        }
        (floor.0.saturating_add(len) <= layout.end.0).then_some(floor)
    }

    /// Whether `range` is free and leaves the gap below a stack.
    pub(crate) fn is_usable(&self, range: Range<VirtAddr>) -> bool {
        let clear = self.above(range.start).is_none_or(|area| range.end <= reserved_start(area));
        clear && self.is_free(range)
    }
}

/// Start of an area's reserved range, which includes the gap that it must keep.
fn reserved_start<S: Memory>(area: &Area<S>) -> VirtAddr {
    let gap = if area.flags.contains(AreaFlags::GROWSDOWN) { STACK_GAP } else { 0 };
    VirtAddr(area.start.0.saturating_sub(gap))
}
