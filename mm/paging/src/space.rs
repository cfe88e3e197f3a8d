//! The editor of one address space's tables.
//!
//! Levels are numbered as in the manual: 4 is a root, 1 holds 4 KiB leaves, and level 2 may hold 2
//! MiB leaves. Empty tables stay linked until [`Space::free_tables`] or the space's end.

mod descent;

use alloc::sync::Arc;
use core::ops::Range;

use freehold_frame::transition::Leaf;
use freehold_frame::{Frame, LeafMapping, OutOfMemory, PageTable, UserKind};
use freehold_machine::{Cpus, PAGE_SHIFT, PAGE_SIZE, Pfn, TABLE_ENTRIES, Tables, VirtAddr};

use self::descent::{Descent, covered};
use crate::flush::forget_one;
use crate::roots::{make_table, take_table};
use crate::{Entry, FlushBatch, KernelRoots, Memory, Roots, USER_END};

const INDEX_BITS: u32 = 9;
const ROOT_LEVEL: u32 = 4;

/// log2 of the bytes under one entry of a table of `level`.
pub(crate) const fn shift(level: u32) -> u32 {
    PAGE_SHIFT + INDEX_BITS * (level - 1)
}

const fn index(addr: VirtAddr, level: u32) -> usize {
    (addr.0 >> shift(level)) as usize & (TABLE_ENTRIES - 1)
}

/// Number of bytes that one leaf maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageSize {
    /// 4 KiB.
    Small,
    /// 2 MiB.
    Large,
}

impl PageSize {
    /// Returns the size in bytes.
    pub const fn bytes(self) -> u64 {
        1 << shift(self.level())
    }
    const fn level(self) -> u32 {
        match self {
            Self::Small => 1,
            Self::Large => 2,
        }
    }
}

/// The place of a leaf in a table. Valid while its space is borrowed.
#[derive(Clone, Copy, Debug)]
pub struct Slot<M> {
    machine: M,
    table: Pfn,
    index: usize,
}

impl<M: Tables> Slot<M> {
    /// The entry now.
    #[inline]
    pub fn load(self) -> Entry {
        Entry::from_bits(self.machine.load_entry(self.table, self.index))
    }
    /// Fill an empty slot (the walker changes no absent entry).
    #[inline]
    pub fn fill(self, entry: Entry) {
        debug_assert!(self.load().is_empty());
        self.machine.store_entry(self.table, self.index, entry.bits());
    }
    /// Fills the slot if it is empty, while others may do the same.
    ///
    /// # Errors
    /// The slot is not empty: `entry` still belongs to the caller.
    #[inline]
    pub fn try_fill(self, entry: Entry) -> Result<(), Entry> {
        let empty = Entry::EMPTY.bits();
        let filled = self.machine.compare_exchange_entry(self.table, self.index, empty, entry.bits());
        filled.map(|_| ()).map_err(|_| entry)
    }
    /// The slot that is `count` entries after this one, in the same table.
    ///
    /// # Panics
    /// If the table ends before that slot.
    #[inline]
    pub fn beyond(self, count: usize) -> Self {
        assert!(self.index + count < TABLE_ENTRIES, "a slot past its table");
        Self { index: self.index + count, ..self }
    }
    /// The next slot; `None` at the end of the table.
    #[inline]
    pub fn next(self) -> Option<Self> {
        (self.index + 1 < TABLE_ENTRIES).then_some(Self { index: self.index + 1, ..self })
    }
    /// Replaces the entry. Returns the old one, with the marks that the walker set until now.
    #[inline]
    pub fn replace(self, entry: Entry) -> Entry {
        Entry::from_bits(self.machine.swap_entry(self.table, self.index, entry.bits()))
    }
    /// Changes the entry without losing the walker's marks. Returns the old one.
    pub fn update(self, change: impl Fn(Entry) -> Entry) -> Entry {
        self.update_from(self.load(), change)
    }
    /// As [`Slot::update`]; the caller has just read the entry `now`.
    #[inline]
    pub fn update_from(self, mut now: Entry, change: impl Fn(Entry) -> Entry) -> Entry {
        loop {
            let new = change(now);
            match self.machine.compare_exchange_entry(self.table, self.index, now.bits(), new.bits()) {
                Ok(_) => return now,
                Err(other) => now = Entry::from_bits(other),
            }
        }
    }
}

/// An entry that a walk or a fault reached. It is valid as long as its slot.
#[derive(Clone, Copy, Debug)]
pub struct EntryAt<M> {
    /// The address.
    pub addr: VirtAddr,
    /// The place of its entry.
    pub slot: Slot<M>,
    /// The entry when it was read.
    pub entry: Entry,
}

/// Returns the place of the leaf for `addr` under the table `root`: see [`Space::find`].
#[inline]
pub(crate) fn find<M: Tables>(machine: M, root: Pfn, addr: VirtAddr) -> Option<(Slot<M>, PageSize)> {
    let mut table = root;
    for level in (2..=ROOT_LEVEL).rev() {
        let slot = Slot { machine, table, index: index(addr, level) };
        let entry = slot.load();
        if !entry.is_table() {
            return (level == 2 && !entry.is_empty()).then_some((slot, PageSize::Large));
        }
        table = entry.frame();
    }
    Some((Slot { machine, table, index: index(addr, 1) }, PageSize::Small))
}

/// Returns the slot of the entry of `level`, which is below the root's, for `addr` under the table
/// `root`; `None` if the tables above are missing.
#[inline]
pub(crate) fn find_at<M: Tables>(machine: M, root: Pfn, addr: VirtAddr, level: u32) -> Option<Slot<M>> {
    let mut table = root;
    for above in (level + 1..=ROOT_LEVEL).rev() {
        let entry = Slot { machine, table, index: index(addr, above) }.load();
        if !entry.is_table() {
            return None;
        }
        table = entry.frame();
    }
    Some(Slot { machine, table, index: index(addr, level) })
}

impl<M: Tables> Leaf for Slot<M> {
    type Entry = Entry;
    #[inline]
    fn load(&self) -> Entry {
        Slot::load(*self)
    }
    #[inline]
    fn change(&self, now: Entry, change: impl Fn(Entry) -> Entry) -> Entry {
        self.update_from(now, change)
    }
}

/// Part of the tables that a walk has come to.
pub enum Reached<M> {
    /// A table of 4 KiB leaves.
    Leaves(Leaves<M>),
    /// A 2 MiB entry, with its first address.
    Large(EntryAt<M>),
}

/// A part of a table of 4 KiB leaves. Valid while its space is borrowed.
pub struct Leaves<M> {
    machine: M,
    table: Pfn,
    base: VirtAddr,
    range: Range<usize>,
}

impl<M: Tables> Leaves<M> {
    /// Returns the address that entry `index` maps.
    #[inline]
    pub const fn addr(&self, index: usize) -> VirtAddr {
        VirtAddr(self.base.0 + ((index as u64) << PAGE_SHIFT))
    }
    /// The slot of entry `index`.
    #[inline]
    pub const fn slot(&self, index: usize) -> Slot<M> {
        Slot { machine: self.machine, table: self.table, index }
    }
    /// Calls `f` for the entries that are not empty, upwards, with their indices.
    #[inline]
    pub fn each(&self, mut f: impl FnMut(usize, Entry)) {
        self.machine
            .each_entry(self.table, self.range.clone(), |index, entry| f(index, Entry::from_bits(entry)));
    }
}

impl<M> core::fmt::Debug for Leaves<M> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Leaves({:?} at {:?})", self.table, self.base)
    }
}

/// The one editor of an address space's tables. See the crate's head.
pub struct Space<S: Memory> {
    source: S,
    roots: Arc<Roots<S>>,
    /// Number of tables below the roots.
    tables: u64,
}

impl<S: Memory> Space<S> {
    /// A space that maps nothing, with a root for this CPU's node.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(source: S, kernel: KernelRoots) -> Result<Self, OutOfMemory> {
        Ok(Self { source, roots: Arc::new(Roots::new(source, kernel)?), tables: 0 })
    }
    /// The source of its frames.
    pub const fn source(&self) -> S {
        self.source
    }
    /// Returns the roots that CPUs load.
    pub const fn roots(&self) -> &Arc<Roots<S>> {
        &self.roots
    }
    /// Bytes of translation tables, roots included.
    pub fn table_bytes(&self) -> u64 {
        (self.tables + self.roots.count() as u64) * PAGE_SIZE as u64
    }
    /// An empty batch for changes of this space.
    pub fn batch(&self) -> FlushBatch<S> {
        FlushBatch::new(&self.roots)
    }

    /// Flushes the leaf `old` of the 4 KiB page at `addr`, which was removed from its table: a
    /// batch of one page. Returns when no CPU has the translation, and releases `held`, its hold.
    #[inline]
    pub fn forget<K: UserKind>(&self, addr: VirtAddr, old: Entry, held: Option<LeafMapping<K, S>>) {
        forget_one(&self.roots, addr, old, held);
    }

    /// Returns the slot of the leaf for `addr`, and the size that it maps; `None` if a table is
    /// missing. The entry may be empty.
    #[inline]
    pub fn find(&self, addr: VirtAddr) -> Option<(Slot<S::Machine>, PageSize)> {
        find(self.source.machine(), self.roots.first(), addr)
    }

    /// The entry of the leaf for `addr`, empty if there is none. For a 2 MiB page, the piece at
    /// `addr`.
    pub fn entry(&self, addr: VirtAddr) -> Entry {
        match self.find(addr) {
            None => Entry::EMPTY,
            Some((slot, PageSize::Small)) => slot.load(),
            Some((slot, PageSize::Large)) => slot.load().piece_at(addr),
        }
    }

    /// The slot for a leaf of the 2 MiB page around `addr`: its entry may be empty, large, or a
    /// table. `None` if the tables above are missing.
    pub fn find_large(&self, addr: VirtAddr) -> Option<Slot<S::Machine>> {
        find_at(self.source.machine(), self.roots.first(), addr, 2)
    }

    /// The table of the 4 KiB leaves around `addr`, if there is one.
    pub(crate) fn leaves(&self, addr: VirtAddr) -> Option<Pfn> {
        find_at(self.source.machine(), self.roots.first(), addr, 1).map(|slot| slot.table)
    }

    /// Returns the slot for a leaf of `size` for `addr`; missing tables are made. `addr` is below
    /// [`USER_END`].
    ///
    /// # Errors
    /// [`OutOfMemory`]; tables made on the way stay and are freed with the space.
    ///
    /// # Panics
    /// If a 2 MiB page is in the way: the caller splits it first.
    #[inline]
    pub fn make(&mut self, addr: VirtAddr, size: PageSize) -> Result<Slot<S::Machine>, OutOfMemory> {
        self.make_at(addr, size.level())
    }

    /// As [`Space::make`], for the entry of `bottom`, below the root's level.
    pub(crate) fn make_at(&mut self, addr: VirtAddr, bottom: u32) -> Result<Slot<S::Machine>, OutOfMemory> {
        assert!(addr < USER_END, "{addr:?} is not a user address");
        let machine = self.source.machine();
        let mut table = self.roots.first();
        for level in (bottom + 1..=ROOT_LEVEL).rev() {
            let slot = Slot { machine, table, index: index(addr, level) };
            let entry = slot.load();
            table = if entry.is_table() {
                entry.frame()
            } else {
                assert!(entry.is_empty(), "a 2 MiB page at {addr:?} where a table is wanted");
                let new = make_table(self.source, machine.node_of_cpu(machine.current_cpu()))?.into_raw();
                self.tables += 1;
                self.link(slot, level, Entry::table(new));
                new
            };
        }
        Ok(Slot { machine, table, index: index(addr, bottom) })
    }

    fn link(&self, slot: Slot<S::Machine>, level: u32, entry: Entry) {
        if level == ROOT_LEVEL {
            self.roots.write_top(slot.index, entry);
        } else {
            slot.machine.store_entry(slot.table, slot.index, entry.bits());
        }
    }

    /// For making many neighbouring leaves with one walk per table.
    pub fn cursor(&mut self) -> Cursor<'_, S> {
        Cursor { space: self, region: u64::MAX, table: Pfn(0) }
    }

    /// Calls a function for every leaf that maps something in `range`, upwards. A large leaf has
    /// its first address, which may be below the range. The function may change its slot.
    pub fn visit(
        &self,
        range: Range<VirtAddr>,
        mut f: impl FnMut(VirtAddr, Slot<S::Machine>, Entry, PageSize),
    ) {
        self.visit_all(range, |addr, slot, entry, size| {
            if entry.is_leaf() {
                f(addr, slot, entry, size);
            }
        });
    }

    /// The first address of `range` in a 2 MiB area that has a leaf, or a table that may have
    /// leaves. For walks that pause now and then.
    pub fn next_populated(&self, range: Range<VirtAddr>) -> Option<VirtAddr> {
        let range = range.start..range.end.min(USER_END);
        self.populated_below(self.roots.first(), ROOT_LEVEL, VirtAddr(0), &range)
    }

    fn populated_below(
        &self,
        table: Pfn,
        level: u32,
        base: VirtAddr,
        range: &Range<VirtAddr>,
    ) -> Option<VirtAddr> {
        let machine = self.source.machine();
        let mut rest = covered(base, level, range);
        while let Some((index, entry)) = machine.next_entry(table, rest.clone()) {
            rest.start = index + 1;
            let entry = Entry::from_bits(entry);
            let addr = VirtAddr(base.0 + ((index as u64) << shift(level)));
            let found = if level == 2 || !entry.is_table() {
                Some(addr.max(range.start))
            } else {
                self.populated_below(entry.frame(), level - 1, addr, range)
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// As [`Space::visit`], and also calls the function for swapped pages.
    pub fn visit_all(
        &self,
        range: Range<VirtAddr>,
        mut f: impl FnMut(VirtAddr, Slot<S::Machine>, Entry, PageSize),
    ) {
        self.visit_tables(range, |reached| match reached {
            Reached::Leaves(leaves) => {
                leaves.each(|index, entry| f(leaves.addr(index), leaves.slot(index), entry, PageSize::Small));
            }
            Reached::Large(EntryAt { addr, slot, entry }) => f(addr, slot, entry, PageSize::Large),
        });
    }

    /// Shows the entries of `range` that are not empty, upwards, a table of 4 KiB leaves at a time:
    /// for callers that do much work per page.
    pub fn visit_tables(&self, range: Range<VirtAddr>, f: impl FnMut(Reached<S::Machine>)) {
        let range = range.start..range.end.min(USER_END);
        if range.start < range.end {
            let mut descent = Descent::new(self.source, range, f);
            descent.visit_below(self.roots.first(), ROOT_LEVEL, VirtAddr(0));
        }
    }

    /// The table of 4 KiB leaves around `addr`; it is made if it is missing.
    ///
    /// # Errors
    /// As [`Space::make`].
    pub fn make_leaves(&mut self, addr: VirtAddr) -> Result<Leaves<S::Machine>, OutOfMemory> {
        let Slot { machine, table, .. } = self.make(addr, PageSize::Small)?;
        let base = VirtAddr(addr.0 & !(PageSize::Large.bytes() - 1));
        Ok(Leaves { machine, table, base, range: 0..TABLE_ENTRIES })
    }

    /// Empties all of `range`, upwards, and calls `f` for the old entries: leaves, with the marks
    /// that the walker has set, and locations of swapped pages. `range` splits no large page.
    pub fn take_all(&self, range: Range<VirtAddr>, f: impl FnMut(VirtAddr, Entry, PageSize)) {
        let range = range.start..range.end.min(USER_END);
        if range.start < range.end {
            let mut descent = Descent::new(self.source, range, f);
            descent.take_below(self.roots.first(), ROOT_LEVEL, VirtAddr(0));
        }
    }

    /// Replace a 2 MiB leaf by 512 leaves of 4 KiB with the same rights, marks and frames.
    ///
    /// # Errors
    /// [`OutOfMemory`]; nothing has changed.
    pub fn split(&mut self, addr: VirtAddr, batch: &mut FlushBatch<S>) -> Result<(), OutOfMemory> {
        let Some((slot, PageSize::Large)) = self.find(addr) else { return Ok(()) };
        let machine = self.source.machine();
        let table = make_table(self.source, machine.node_of_cpu(machine.current_cpu()))?.into_raw();
        self.tables += 1;
        let old = slot.load();
        for index in 0..TABLE_ENTRIES {
            machine.store_entry(table, index, old.piece(old.frame().offset(index as u64)).bits());
        }
        // Marks that the walker set since the copy would be lost, so they are copied, too.
        let last = slot.replace(Entry::table(table));
        if last.is_dirty() && !old.is_dirty() {
            for index in 0..TABLE_ENTRIES {
                Slot { machine, table, index }.update(Entry::marked_dirty);
            }
        }
        batch.range(VirtAddr(addr.0 & !(PageSize::Large.bytes() - 1)), TABLE_ENTRIES as u64);
        Ok(())
    }

    /// Put the 2 MiB leaf `leaf` where a table of empty leaves is, around `addr`; the table goes to
    /// `batch`.
    ///
    /// # Panics
    /// If there is no table.
    pub fn join(&mut self, addr: VirtAddr, leaf: Entry, batch: &mut FlushBatch<S>) {
        let slot = self.find_large(addr).filter(|slot| slot.load().is_table());
        let table = slot.expect("a table is to be replaced").replace(leaf.large()).frame();
        self.tables -= 1;
        batch.freed_table(addr, self.emptied(table, addr));
    }

    /// Unlinks and frees every table that translates an address of `range` and nothing outside
    /// `span`, which contains it. All leaves in `span` are empty.
    pub fn free_tables(&mut self, range: Range<VirtAddr>, span: Range<VirtAddr>, batch: &mut FlushBatch<S>) {
        let mut freed = 0;
        let free = |EntryAt { addr, slot, entry }, level| {
            if span.start <= addr && addr.0 + (1 << shift(level)) <= span.end.0 {
                self.link(slot, level, Entry::EMPTY);
                batch.freed_table(addr, self.emptied(entry.frame(), addr));
                freed += 1;
            }
        };
        let mut descent = Descent::new(self.source, range, free);
        descent.tables_below(self.roots.first(), ROOT_LEVEL, VirtAddr(0));
        self.tables -= freed;
    }

    fn emptied(&self, table: Pfn, addr: VirtAddr) -> Frame<PageTable, S> {
        let machine = self.source.machine();
        let left = || machine.next_entry(table, 0..TABLE_ENTRIES);
        debug_assert_eq!(left(), None, "a table with leaves is freed at {addr:?}");
        take_table(self.source, table)
    }
}

impl<S: Memory> Drop for Space<S> {
    /// Frees all tables except the roots, which CPUs may still have loaded. All leaves are empty.
    fn drop(&mut self) {
        if self.tables > 0 {
            let mut batch = self.batch();
            let all = VirtAddr(0)..VirtAddr(1 << 47);
            self.free_tables(all.clone(), all, &mut batch);
            debug_assert_eq!(self.tables, 0);
        }
    }
}

impl<S: Memory> core::fmt::Debug for Space<S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Space({:?}, {} tables)", self.roots, self.tables)
    }
}

/// Remembers the table of the last leaf, for runs of neighbours.
pub struct Cursor<'a, S: Memory> {
    space: &'a mut Space<S>,
    region: u64,
    table: Pfn,
}

impl<S: Memory> Cursor<'_, S> {
    /// As [`Space::make`] for 4 KiB leaves.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    #[inline]
    pub fn make(&mut self, addr: VirtAddr) -> Result<Slot<S::Machine>, OutOfMemory> {
        let region = addr.0 >> shift(2);
        if region != self.region {
            let slot = self.space.make(addr, PageSize::Small)?;
            (self.region, self.table) = (region, slot.table);
        }
        Ok(Slot { machine: self.space.source.machine(), table: self.table, index: index(addr, 1) })
    }
}

impl<S: Memory> core::fmt::Debug for Cursor<'_, S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Cursor({:?})", self.space)
    }
}
