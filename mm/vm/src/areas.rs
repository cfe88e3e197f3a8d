//! The areas of one address space: disjoint, sorted by start, neighbours that can be one are one.

use alloc::collections::BTreeMap;
use core::cell::Cell;
use core::ops::{Bound, Range};

use freehold_machine::VirtAddr;
use freehold_paging::Memory;

use crate::area::Area;
use crate::request::{AreaFlags, Layout};

/// The room that stays free below an area that grows downwards, so that a stack runs into nothing unseen
/// (Linux: `stack_guard_gap`, 256 pages).
pub(crate) const STACK_GAP: u64 = 256 << 12;

pub(crate) struct Areas<S: Memory> {
    tree: BTreeMap<VirtAddr, Area<S>>,
    /// Where the area starts that was found last, if it is still there: faults come in runs, and one key is found in half the time that a
    /// range takes.
    last: Cell<VirtAddr>,
}

impl<S: Memory> Areas<S> {
    pub(crate) const fn new() -> Self {
        Self { tree: BTreeMap::new(), last: Cell::new(VirtAddr(0)) }
    }
    pub(crate) fn count(&self) -> usize {
        self.tree.len()
    }
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Area<S>> {
        self.tree.values()
    }
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Area<S>> {
        self.tree.values_mut()
    }
    /// The area that `addr` is in. Every page fault asks.
    #[inline(always)]
    pub(crate) fn at(&self, addr: VirtAddr) -> Option<&Area<S>> {
        let contains = |area: &&Area<S>| area.start <= addr && addr < area.end;
        match self.tree.get(&self.last.get()).filter(contains) {
            Some(area) => Some(area),
            None => self.find(addr),
        }
    }
    fn find(&self, addr: VirtAddr) -> Option<&Area<S>> {
        let (&start, area) = self.tree.range(..=addr).next_back()?;
        self.last.set(start);
        (addr < area.end).then_some(area)
    }
    pub(crate) fn at_mut(&mut self, addr: VirtAddr) -> Option<&mut Area<S>> {
        let (_, area) = self.tree.range_mut(..=addr).next_back()?;
        (addr < area.end).then_some(area)
    }
    /// The first area that starts above `addr`.
    pub(crate) fn above(&self, addr: VirtAddr) -> Option<&Area<S>> {
        self.tree.range((Bound::Excluded(addr), Bound::Unbounded)).next().map(|(_, area)| area)
    }
    /// The last area that starts below `addr`.
    pub(crate) fn below(&self, addr: VirtAddr) -> Option<&Area<S>> {
        self.tree.range(..addr).next_back().map(|(_, area)| area)
    }
    /// The areas with an address in `range`, upwards.
    pub(crate) fn overlapping(&self, range: Range<VirtAddr>) -> impl Iterator<Item = &Area<S>> {
        let within = if range.is_empty() { None } else { self.at(range.start) };
        let first = within.map_or(range.start, |area| area.start);
        self.tree.range(first..range.end.max(first)).map(|(_, area)| area)
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
    /// Add an area where nothing is.
    pub(crate) fn insert(&mut self, area: Area<S>) {
        debug_assert!(area.start < area.end && self.is_free(area.start..area.end));
        self.tree.insert(area.start, area);
    }
    /// Make `at` a border between areas, if it is inside one.
    pub(crate) fn split_at(&mut self, at: VirtAddr) {
        if let Some(area) = self.at_mut(at)
            && area.start < at
        {
            let upper = area.split_off(at);
            self.tree.insert(at, upper);
        }
    }
    /// Take the first area out that starts in `range`, whose ends are borders. There may be any
    /// number: no list is made.
    pub(crate) fn take_first(&mut self, range: &Range<VirtAddr>) -> Option<Area<S>> {
        let (&start, _) = self.tree.range(range.clone()).next()?;
        self.tree.remove(&start)
    }
    /// Change the areas in `range`, which are cut to fit, then join what can be one.
    pub(crate) fn change(&mut self, range: Range<VirtAddr>, mut f: impl FnMut(&mut Area<S>)) {
        match self.tree.get_mut(&range.start) {
            // Most often it is just one.
            Some(area) if area.end == range.end => f(area),
            _ => {
                self.split_at(range.start);
                self.split_at(range.end);
                self.tree.range_mut(range.clone()).for_each(|(_, area)| f(area));
            }
        }
        self.join(range);
    }
    /// Change every area, and join those that are alike by then.
    pub(crate) fn change_all(&mut self, mut f: impl FnMut(&mut Area<S>)) {
        self.tree.values_mut().for_each(&mut f);
        self.join(VirtAddr(0)..VirtAddr(u64::MAX));
    }
    /// Join neighbours from just below `range` to just above.
    pub(crate) fn join(&mut self, range: Range<VirtAddr>) {
        // From the top down, and on from where two became one: what lies above was looked at and joins no less for it. So a range of many
        // areas is walked once.
        let mut top = range.end;
        while let Some((key, next)) = self.joinable(range.start, top) {
            top = key;
            if let Some(gone) = self.tree.remove(&next)
                && let Some(area) = self.tree.get_mut(&key)
            {
                area.end = gone.end;
                area.copied.set(area.copied.get() || gone.copied.get());
                // Rather said to be written than not, and rather asked again than not at all.
                area.flags |= gone.flags & AreaFlags::SOFTDIRTY;
                area.flags &= gone.flags | !AreaFlags::ACCOUNT;
            }
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
        if let Some(mut area) = self.tree.remove(&from) {
            area.start = to;
            self.tree.insert(to, area);
        }
    }

    /// A hole of `len` bytes: the highest below `mmap_base`, else the lowest above.
    pub(crate) fn find_hole(&self, len: u64, layout: &Layout) -> Option<VirtAddr> {
        let mut ceiling = layout.mmap_base;
        let mut floor_of_rest = layout.mmap_base;
        for (_, area) in self.tree.range(..layout.mmap_base).rev() {
            if area.end.0.saturating_add(len) <= ceiling.0 {
                return Some(VirtAddr(ceiling.0 - len));
            }
            floor_of_rest = floor_of_rest.max(area.end);
            ceiling = ceiling.min(reserved_start(area));
        }
        if layout.lowest.0.saturating_add(len) <= ceiling.0 {
            return Some(VirtAddr(ceiling.0 - len));
        }
        let mut floor = floor_of_rest;
        for (_, area) in self.tree.range(layout.mmap_base..) {
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
