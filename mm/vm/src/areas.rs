//! The areas of one address space: disjoint, sorted by start, neighbours that can be one are one.
//!
//! Each subtree knows the widest gap between its areas ([`Ground`]), so a hole is found in O(log n)
//! steps. Whoever adds or cuts areas makes room for them first ([`Areas::make_room`]): then nothing
//! fails half way.

use core::cell::Cell;
use core::ops::Range;

use freehold_machine::VirtAddr;
use freehold_paging::Memory;
use freehold_tree::{Slot, Summary, Tree};

use crate::VmError;
use crate::area::Area;
use crate::request::{AreaFlags, Layout};
use crate::space::MAX_AREAS;

/// The room that stays free below an area that grows downwards, so that a stack runs into nothing unseen
/// (Linux: `stack_guard_gap`, 256 pages).
pub(crate) const STACK_GAP: u64 = 256 << 12;

/// What a subtree of areas covers.
#[derive(Clone, PartialEq, Debug)]
struct Ground {
    /// Where its first area begins, with the gap that it must keep.
    start: VirtAddr,
    /// Where its last area ends.
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

pub(crate) struct Areas<S: Memory> {
    tree: Tree<VirtAddr, Area<S>, Ground>,
    /// The area that was found last, if it is still there: faults come in runs.
    last: Cell<Slot>,
}

impl<S: Memory> Areas<S> {
    pub(crate) const fn new() -> Self {
        Self { tree: Tree::new(), last: Cell::new(Slot::NONE) }
    }
    pub(crate) fn count(&self) -> usize {
        self.tree.len()
    }
    /// Make room for `more` areas: adding and cutting as many does not fail. Twice as many places
    /// are there, since what is cut to be taken out needs some for a moment.
    ///
    /// # Errors
    /// [`VmError::NoMemory`], also where there would be more than [`MAX_AREAS`].
    pub(crate) fn make_room(&mut self, more: usize) -> Result<(), VmError> {
        if self.count() + more > MAX_AREAS {
            return Err(VmError::NoMemory);
        }
        Ok(self.tree.reserve(2 * more)?)
    }
    /// What a child has.
    pub(crate) fn inherited(&self) -> impl Iterator<Item = &Area<S>> {
        self.iter().filter(|area| !area.flags.contains(AreaFlags::DONTFORK))
    }
    /// A twin of each area that a child has.
    ///
    /// # Errors
    /// [`VmError::NoMemory`], and what `twin` returns.
    pub(crate) fn twins(
        &self,
        mut twin: impl FnMut(&Area<S>) -> Result<Area<S>, VmError>,
    ) -> Result<Self, VmError> {
        let twins = self.inherited().map(|area| twin(area).map(|twin| (area.start, twin)));
        let tree = Tree::try_from_sorted(self.count(), twins)?;
        Ok(Self { tree, last: Cell::new(Slot::NONE) })
    }
    /// Make room for what cutting `range` out needs: nothing, where its ends are borders already.
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
    /// Change all areas where they are: neither starts nor ends.
    pub(crate) fn for_each_mut(&mut self, mut f: impl FnMut(&mut Area<S>)) {
        self.tree.update_range(.., |_, area| f(area));
    }
    /// The area that `addr` is in. Every page fault asks.
    #[inline(always)]
    pub(crate) fn at(&self, addr: VirtAddr) -> Option<&Area<S>> {
        let contains = |area: &&Area<S>| area.start <= addr && addr < area.end;
        match self.tree.at_slot(self.last.get()).filter(contains) {
            Some(area) => Some(area),
            None => self.find(addr),
        }
    }
    fn find(&self, addr: VirtAddr) -> Option<&Area<S>> {
        let (slot, _, area) = self.tree.floor(&addr)?;
        self.last.set(slot);
        (addr < area.end).then_some(area)
    }
    /// Make the area that starts at `start` end at `end`.
    pub(crate) fn set_end(&mut self, start: VirtAddr, end: VirtAddr) {
        self.tree.update(&start, |area| area.end = end);
    }
    /// The first area that starts above `addr`.
    pub(crate) fn above(&self, addr: VirtAddr) -> Option<&Area<S>> {
        self.tree.after(&addr).map(|(_, _, area)| area)
    }
    /// The last area that starts below `addr`.
    pub(crate) fn below(&self, addr: VirtAddr) -> Option<&Area<S>> {
        self.tree.floor(&VirtAddr(addr.0.checked_sub(1)?)).map(|(_, _, area)| area)
    }
    /// The areas with an address in `range`, upwards.
    pub(crate) fn overlapping(&self, range: Range<VirtAddr>) -> impl Iterator<Item = &Area<S>> {
        let first = if range.is_empty() { Slot::NONE } else { self.first_from(range.start) };
        // The end is met on the way: to search for it costs more.
        self.tree.from_slot(first).map(|(_, area)| area).take_while(move |area| area.start < range.end)
    }
    /// The place of the first area that ends above `addr`.
    fn first_from(&self, addr: VirtAddr) -> Slot {
        let last = self.last.get();
        if self.tree.at_slot(last).is_some_and(|area| area.start <= addr && addr < area.end) {
            return last;
        }
        let Some((slot, _, area)) = self.tree.floor(&addr) else {
            return self.tree.first().map_or(Slot::NONE, |(slot, ..)| slot);
        };
        self.last.set(slot);
        if addr < area.end { slot } else { self.tree.slot_after(slot) }
    }
    /// The same, each with the part of it that is in `range`.
    pub(crate) fn parts(&self, range: Range<VirtAddr>) -> impl Iterator<Item = (&Area<S>, Range<VirtAddr>)> {
        let part = move |area: &Area<S>| area.start.max(range.start)..area.end.min(range.end);
        self.overlapping(range.clone()).map(move |area| (area, part(area)))
    }
    /// Whether nothing is mapped in `range`.
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
    /// Add an area where nothing is, in room that was made, and join it with its neighbours.
    pub(crate) fn add(&mut self, area: Area<S>) {
        debug_assert!(area.start < area.end && self.is_free(area.start..area.end));
        let (below, above) = self.tree.around(&area.start);
        let below = below.filter(|below| below.joins(&area)).map(|below| below.start);
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
        self.tree.insert(area.start, area).expect("the caller made room");
    }
    /// Make `at` a border between areas, if it is inside one.
    pub(crate) fn split_at(&mut self, at: VirtAddr) {
        let Some(start) = self.at(at).map(|area| area.start).filter(|&start| start < at) else { return };
        if let Some(upper) = self.tree.update(&start, |area| area.split_off(at)) {
            self.put(upper);
        }
    }
    /// Take the first area out that starts in `range`, whose ends are borders. There may be any
    /// number: no list is made.
    pub(crate) fn take_first(&mut self, range: &Range<VirtAddr>) -> Option<Area<S>> {
        let (_, &start, _) = self.tree.ceiling(&range.start)?;
        if start < range.end { self.tree.remove(&start) } else { None }
    }
    /// Change the areas in `range`, which are cut to fit, then join what can be one. There is room
    /// for two more.
    pub(crate) fn change(&mut self, range: Range<VirtAddr>, mut f: impl FnMut(&mut Area<S>)) {
        // Most often it is just one.
        if self.at(range.start).is_some_and(|area| area.start == range.start && area.end == range.end) {
            self.tree.update(&range.start, f);
        } else {
            self.split_at(range.start);
            self.split_at(range.end);
            self.tree.update_range(range.clone(), |_, area| f(area));
        }
        self.join(range);
    }
    /// Change every area, and join those that are alike by then.
    pub(crate) fn change_all(&mut self, mut f: impl FnMut(&mut Area<S>)) {
        self.for_each_mut(&mut f);
        self.join(VirtAddr(0)..VirtAddr(u64::MAX));
    }
    /// Join neighbours from just below `range` to just above.
    pub(crate) fn join(&mut self, range: Range<VirtAddr>) {
        // From the top down, and on from where two became one: what lies above was looked at and joins no less for it. So a range of many
        // areas is walked once.
        let mut top = range.end;
        while let Some((key, next)) = self.joinable(range.start, top) {
            top = key;
            let Some(gone) = self.tree.remove(&next) else { return };
            self.tree.update(&key, |area| area.absorb(&gone));
        }
    }
    /// The starts of two neighbours that can be one: the highest from just below `bottom` to what begins at `top`.
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
    /// Move an area's start (growth of a stack, and nothing else). `from` is its present start.
    pub(crate) fn move_start(&mut self, from: VirtAddr, to: VirtAddr) {
        self.tree.rekey(&from, to, |area| area.start = to);
    }

    /// A hole of `len` bytes: the highest below `mmap_base`, else the lowest above.
    pub(crate) fn find_hole(&mut self, len: u64, layout: &Layout) -> Option<VirtAddr> {
        self.highest_hole(len, layout).or_else(|| self.lowest_hole_above(len, layout))
    }

    fn highest_hole(&mut self, len: u64, layout: &Layout) -> Option<VirtAddr> {
        // Where what was passed so far begins.
        let ceiling = Cell::new(layout.mmap_base);
        let fits = |end: VirtAddr| end.0.saturating_add(len) <= ceiling.get().0;
        let lower = |start: VirtAddr| ceiling.set(ceiling.get().min(start));
        let passes = |ground: &Ground| {
            let passes = ground.widest < len && !fits(ground.end);
            if passes {
                lower(ground.start);
            }
            passes
        };
        let found = self.tree.find_down(&layout.mmap_base, passes, |_, area| {
            let found = fits(area.end).then(|| VirtAddr(ceiling.get().0 - len));
            lower(reserved_start(area));
            found
        });
        found.or_else(|| fits(layout.lowest).then(|| VirtAddr(ceiling.get().0 - len)))
    }

    fn lowest_hole_above(&mut self, len: u64, layout: &Layout) -> Option<VirtAddr> {
        let below = self.below(layout.mmap_base).map_or(layout.mmap_base, |area| area.end);
        let floor = Cell::new(layout.mmap_base.max(below));
        let fits = |start: VirtAddr| floor.get().0.saturating_add(len) <= start.0;
        let raise = |end: VirtAddr| floor.set(floor.get().max(end));
        let passes = |ground: &Ground| {
            let passes = ground.widest < len && !fits(ground.start);
            if passes {
                raise(ground.end);
            }
            passes
        };
        let found = self.tree.find_up(&layout.mmap_base, passes, |_, area| {
            let found = fits(reserved_start(area)).then(|| floor.get());
            raise(area.end);
            found
        });
        found.or_else(|| fits(layout.end).then(|| floor.get()))
    }

    /// Check the tree, and that holes of some sizes are found where a walk over all areas finds
    /// them.
    #[cfg(test)]
    pub(crate) fn validate(&mut self, layout: &Layout) {
        self.tree.validate();
        for pages in [1, 2, 3, 16, 512, 1 << 20, 1 << 34] {
            let len = pages << 12;
            assert_eq!(self.find_hole(len, layout), self.walk_to_hole(len, layout), "{pages} pages");
        }
    }

    #[cfg(test)]
    fn walk_to_hole(&self, len: u64, layout: &Layout) -> Option<VirtAddr> {
        let (mut ceiling, mut floor) = (layout.mmap_base, layout.mmap_base);
        for area in self.iter().rev().skip_while(|area| area.start >= layout.mmap_base) {
            if area.end.0.saturating_add(len) <= ceiling.0 {
                return Some(VirtAddr(ceiling.0 - len));
            }
            floor = floor.max(area.end);
            ceiling = ceiling.min(reserved_start(area));
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

/// Where an area's ground begins, with the gap that it must keep.
fn reserved_start<S: Memory>(area: &Area<S>) -> VirtAddr {
    let gap = if area.flags.contains(AreaFlags::GROWSDOWN) { STACK_GAP } else { 0 };
    VirtAddr(area.start.0.saturating_sub(gap))
}
