//! Walks down an address space's tables.

use core::ops::Range;

use freehold_machine::{Pfn, TABLE_ENTRIES, Tables, VirtAddr};

use super::{EntryAt, Leaves, PageSize, ROOT_LEVEL, Reached, Slot, shift};
use crate::roots::USER_ENTRIES;
use crate::{Entry, Memory};

/// Number of large leaves that are visited before other tasks may run.
const LARGE_AT_ONCE: usize = 64;

/// A walk down the tables that translate `range`, with functions for the entries found there. Each
/// function takes a table, its level, and the first address that it translates.
///
/// Other tasks may run between two tables
/// ([`FrameSource::rest`](freehold_frame::FrameSource::rest)), since a program chooses the number
/// of tables.
pub(super) struct Descent<S, F> {
    source: S,
    range: Range<VirtAddr>,
    f: F,
    /// Whether a table was reached.
    has_begun: bool,
}

impl<S: Memory, F> Descent<S, F> {
    pub(super) const fn new(source: S, range: Range<VirtAddr>, f: F) -> Self {
        Self { source, range, f, has_begun: false }
    }

    /// Called when the walk reaches the next table, or the next part of one with large leaves.
    #[inline]
    fn next_table(&mut self) {
        if core::mem::replace(&mut self.has_begun, true) {
            self.source.rest();
        }
    }
}

impl<S: Memory, F: FnMut(Reached<S::Machine>)> Descent<S, F> {
    /// See [`Space::visit_tables`].
    pub(super) fn visit_below(&mut self, table: Pfn, level: u32, base: VirtAddr) {
        let machine = self.source.machine();
        machine.each_entry(table, covered(base, level, &self.range), |index, entry| {
            let addr = VirtAddr(base.0 + ((index as u64) << shift(level)));
            match Entry::from_bits(entry) {
                entry if !entry.is_table() => {
                    if index % LARGE_AT_ONCE == 0 {
                        self.next_table();
                    }
                    (self.f)(Reached::Large(EntryAt { addr, slot: Slot { machine, table, index }, entry }));
                }
                entry if level > 2 => self.visit_below(entry.frame(), level - 1, addr),
                entry => {
                    self.next_table();
                    let range = covered(addr, 1, &self.range);
                    (self.f)(Reached::Leaves(Leaves { machine, table: entry.frame(), base: addr, range }));
                }
            }
        });
    }
}

impl<S: Memory, F: FnMut(VirtAddr, Entry, PageSize)> Descent<S, F> {
    /// See [`Space::take_all`].
    pub(super) fn take_below(&mut self, table: Pfn, level: u32, base: VirtAddr) {
        let machine = self.source.machine();
        let indices = covered(base, level, &self.range);
        if level == 1 {
            self.next_table();
            return self.take_leaves(table, level, base, indices);
        }
        // Adjacent large leaves that were found and will be handled together.
        let mut leaves = indices.start..indices.start;
        machine.each_entry(table, indices, |index, entry| {
            let entry = Entry::from_bits(entry);
            if !entry.is_table() && index == leaves.end {
                leaves.end += 1;
                return;
            }
            if !leaves.is_empty() {
                self.next_table();
                self.take_leaves(table, level, base, leaves.clone());
            }
            if entry.is_table() {
                self.take_below(
                    entry.frame(),
                    level - 1,
                    VirtAddr(base.0 + ((index as u64) << shift(level))),
                );
                leaves = index + 1..index + 1;
            } else {
                leaves = index..index + 1;
            }
        });
        if !leaves.is_empty() {
            self.next_table();
            self.take_leaves(table, level, base, leaves);
        }
    }

    /// Handles the leaves at `indices` of a table.
    ///
    /// `f` is called in one place only, so it is inlined there. With two places, or if this
    /// function were copied, each page would cost a call.
    #[inline(never)]
    fn take_leaves(&mut self, table: Pfn, level: u32, base: VirtAddr, indices: Range<usize>) {
        let size = if level == 1 { PageSize::Small } else { PageSize::Large };
        self.source.machine().take_entries(table, indices, |index, entry| {
            let addr = VirtAddr(base.0 + ((index as u64) << shift(level)));
            (self.f)(addr, Entry::from_bits(entry), size);
        });
    }
}

impl<S: Memory, F: FnMut(EntryAt<S::Machine>, u32)> Descent<S, F> {
    /// Visits entries that point to tables, with their level, from the lowest level up.
    pub(super) fn tables_below(&mut self, table: Pfn, level: u32, base: VirtAddr) {
        let machine = self.source.machine();
        let mut rest = covered(base, level, &self.range);
        while let Some((index, entry)) = machine.next_entry(table, rest.clone()) {
            rest.start = index + 1;
            let entry = Entry::from_bits(entry);
            if !entry.is_table() {
                continue;
            }
            let addr = VirtAddr(base.0 + ((index as u64) << shift(level)));
            if level > 2 {
                self.tables_below(entry.frame(), level - 1, addr);
            }
            self.next_table();
            (self.f)(EntryAt { addr, slot: Slot { machine, table, index }, entry }, level);
        }
    }
}

/// The indices that overlap `range`, in a table of `level` whose first entry translates `base`.
pub(super) fn covered(base: VirtAddr, level: u32, range: &Range<VirtAddr>) -> Range<usize> {
    let end = base.0 + ((TABLE_ENTRIES as u64) << shift(level));
    let from = range.start.0.max(base.0);
    let to = range.end.0.min(end);
    if from >= to {
        return 0..0;
    }
    let last = ((to - 1 - base.0) >> shift(level)) as usize;
    let limit = if level == ROOT_LEVEL { USER_ENTRIES } else { TABLE_ENTRIES };
    ((from - base.0) >> shift(level)) as usize..(last + 1).min(limit)
}
