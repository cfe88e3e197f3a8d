//! The kernel half of the address space, according to its translation tables: all mappings, used or
//! not.
//!
//! The engine checks every store to a table that is linked below a published root, and every change
//! of a frame's owner. [`Frames`](crate::frames::Frames) judges by this invariant: outside the
//! windows no leaf maps a frame whose owner has to stay outside, no writable leaf maps the image's
//! text or read-only data, and each table is linked once. Two kinds of table may be linked more
//! often. Roots of several nodes share tables of the third level. A table whose small pages are all
//! read-only is the same wherever it is linked (our kernel's records of absent memory are one page
//! of zeroes).
//!
//! One lock guards all of this (`Frames::changing`), and is also held while marks change. So a
//! frame is either found mapped when its owner changes, or found owned when its leaf is stored.

use std::collections::HashMap;

use crate::guest::{FRAME, GuestMemory, LARGE, PRESENT, WRITABLE};

const ENTRIES: usize = 512;
/// First entry of a root that belongs to the kernel half.
const UPPER: usize = ENTRIES / 2;
/// Bits above the 48 that four levels translate.
const CANONICAL: u64 = 0xffff << 48;

/// A leaf of the kernel half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapped {
    /// The first address that it maps.
    pub address: u64,
    /// Its first frame.
    pub frame: u64,
    /// How many frames it maps.
    pub frames: u64,
    /// Whether it allows stores.
    pub writable: bool,
}

/// The effect of a change of the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// A leaf was added.
    Came(Mapped),
    /// A leaf was removed.
    Went(Mapped),
    /// A table in this frame is now part of the kernel half.
    Linked(u64),
    /// The table in this frame is no longer part of the kernel half.
    Unlinked(u64),
    /// A table in frame `.0` was linked at address `.1` although it is linked elsewhere.
    Twice(u64, u64),
}

struct KnownTable {
    /// 4 for a root; 1 holds 4 KiB leaves.
    level: u32,
    /// The first address that it translates.
    base: u64,
    /// Entries that lead to it.
    links: u32,
    entries: Box<[u64; ENTRIES]>,
}

impl KnownTable {
    /// Returns whether the table maps small pages only, none of them writable.
    fn is_read_only(&self) -> bool {
        self.level == 1 && self.entries.iter().all(|entry| entry & (PRESENT | WRITABLE) != PRESENT | WRITABLE)
    }
}

/// All tables of the kernel half, as far as stores were seen.
#[derive(Default)]
pub struct KernelHalf {
    /// By frame.
    tables: HashMap<u64, KnownTable>,
}

/// An entry, or a table whose entries are of this level.
#[derive(Clone, Copy)]
struct TablePlace {
    /// 1 to 4; 1 holds or is an entry of 4 KiB.
    level: u32,
    /// The first address that it translates.
    address: u64,
}

fn leaf(level: u32, address: u64, entry: u64) -> Mapped {
    let frames = 1 << (9 * (level - 1));
    let frame = ((entry & FRAME) >> 12) & !(frames - 1);
    Mapped { address, frame, frames, writable: entry & WRITABLE != 0 }
}

const fn is_leaf(level: u32, entry: u64) -> bool {
    level == 1 || (level < 4 && entry & LARGE != 0)
}

impl KernelHalf {
    /// Takes a root over, with everything below its upper half.
    pub fn adopt(&mut self, memory: &dyn GuestMemory, root: u64, tell: &mut dyn FnMut(Change)) {
        let frame = root >> 12;
        if !self.tables.contains_key(&frame) {
            self.link(memory, frame, TablePlace { level: 4, address: CANONICAL }, tell);
        }
    }

    /// Compares the entry at a guest-physical address, in a table of the kernel half, with the
    /// known one.
    pub fn stored(&mut self, memory: &dyn GuestMemory, physical: u64, tell: &mut dyn FnMut(Change)) {
        let (frame, index) = (physical >> 12, (physical & 0xfff) as usize / 8);
        let Some(table) = self.tables.get_mut(&frame) else { return };
        if table.level == 4 && index < UPPER {
            return;
        }
        let now = memory.load(physical & !7).unwrap_or(0);
        let before = core::mem::replace(&mut table.entries[index], now);
        let (level, base) = (table.level, table.base);
        if level == 1 && table.links > 1 && now & (PRESENT | WRITABLE) == PRESENT | WRITABLE {
            tell(Change::Twice(frame, base));
        }
        // The bits that only the CPU or software uses change no mapping.
        if (before ^ now) & (PRESENT | WRITABLE | LARGE | FRAME) != 0 {
            let address = base | (index as u64) << (12 + 9 * (level - 1));
            self.remove(level, address, before, tell);
            self.add(memory, TablePlace { level, address }, now, tell);
        }
    }

    /// Returns the first address outside the range at which a leaf maps a frame.
    pub fn find(&self, frame: u64, except: core::ops::Range<u64>) -> Option<u64> {
        let leaves = self.tables.values().flat_map(|table| {
            let first = if table.level == 4 { UPPER } else { 0 };
            let entries = table.entries.iter().enumerate().skip(first);
            entries.filter(|&(_, &entry)| entry & PRESENT != 0 && is_leaf(table.level, entry)).map(
                |(index, &entry)| {
                    leaf(table.level, table.base | (index as u64) << (12 + 9 * (table.level - 1)), entry)
                },
            )
        });
        leaves
            .filter(|leaf| frame.wrapping_sub(leaf.frame) < leaf.frames && !except.contains(&leaf.address))
            .map(|leaf| leaf.address + ((frame - leaf.frame) << 12))
            .min()
    }

    /// Returns the number of linked tables.
    pub fn tables(&self) -> u64 {
        self.tables.len() as u64
    }

    fn add(&mut self, memory: &dyn GuestMemory, at: TablePlace, entry: u64, tell: &mut dyn FnMut(Change)) {
        let TablePlace { level, address } = at;
        if entry & PRESENT == 0 {
            return;
        }
        if is_leaf(level, entry) {
            return tell(Change::Came(leaf(level, address, entry)));
        }
        let frame = (entry & FRAME) >> 12;
        match self.tables.get_mut(&frame) {
            Some(known) if level == 4 && (known.level, known.base) == (3, address) => known.links += 1,
            Some(known) if level == 2 && known.is_read_only() => known.links += 1,
            Some(known) => {
                known.links += 1;
                tell(Change::Twice(frame, address));
            }
            None => self.link(memory, frame, TablePlace { level: level - 1, address }, tell),
        }
    }

    fn link(&mut self, memory: &dyn GuestMemory, frame: u64, at: TablePlace, tell: &mut dyn FnMut(Change)) {
        let TablePlace { level, address: base } = at;
        let load = |index: usize| memory.load((frame << 12) + 8 * index as u64).unwrap_or(0);
        let entries: Box<[u64; ENTRIES]> = Box::new(core::array::from_fn(load));
        let first = if level == 4 { UPPER } else { 0 };
        self.tables.insert(frame, KnownTable { level, base, links: 1, entries: entries.clone() });
        tell(Change::Linked(frame));
        for (index, &entry) in entries.iter().enumerate().skip(first) {
            let address = base | (index as u64) << (12 + 9 * (level - 1));
            self.add(memory, TablePlace { level, address }, entry, tell);
        }
    }

    fn remove(&mut self, level: u32, address: u64, entry: u64, tell: &mut dyn FnMut(Change)) {
        if entry & PRESENT == 0 {
            return;
        }
        if is_leaf(level, entry) {
            return tell(Change::Went(leaf(level, address, entry)));
        }
        let frame = (entry & FRAME) >> 12;
        let Some(table) = self.tables.get_mut(&frame) else { return };
        table.links -= 1;
        if table.links > 0 {
            return;
        }
        let Some(table) = self.tables.remove(&frame) else { return };
        tell(Change::Unlinked(frame));
        for (index, &entry) in table.entries.iter().enumerate() {
            let address = table.base | (index as u64) << (12 + 9 * (table.level - 1));
            self.remove(table.level, address, entry, tell);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::tests::Words;
    use freehold_scope_model::PageSize;

    const ROOT: u64 = 0x10_0000;
    const ADDRESS: u64 = 0xffff_c000_0020_0000;

    fn adopted(words: &Words) -> (KernelHalf, Vec<Change>) {
        let (mut half, mut changes) = (KernelHalf::default(), Vec::new());
        half.adopt(words, ROOT, &mut |change| changes.push(change));
        (half, changes)
    }
    /// Returns the physical address of the entry of `level` for an address.
    fn entry(words: &Words, address: u64, level: u32) -> u64 {
        let slot = |table: u64, level: u32| table + (address >> (12 + 9 * (level - 1)) & 511) * 8;
        (level + 1..=4).rev().fold(ROOT, |table, above| words.load(slot(table, above)).unwrap() & FRAME)
            + (address >> (12 + 9 * (level - 1)) & 511) * 8
    }

    #[test]
    fn leaves_of_the_upper_half_are_found_and_those_of_programs_are_not() {
        let words = Words::default();
        words.map(ROOT, ADDRESS, 0x20_0000, PageSize::Large, WRITABLE);
        words.map(ROOT, 0x40_0000, 0x7000, PageSize::Small, WRITABLE);
        let (half, changes) = adopted(&words);
        let came: Vec<_> = changes.iter().filter(|change| matches!(change, Change::Came(_))).collect();
        let leaf = Mapped { address: ADDRESS, frame: 0x200, frames: 512, writable: true };
        assert_eq!(came, [&Change::Came(leaf)]);
        assert_eq!(half.find(0x3ff, 0..0), Some(ADDRESS + 0x1f_f000));
        assert_eq!((half.find(0x400, 0..0), half.find(7, 0..0)), (None, None));
        assert_eq!(half.find(0x3ff, ADDRESS..ADDRESS + 1), None, "left out");
        assert_eq!(half.tables(), 3, "the root, and two below");
    }

    #[test]
    fn a_store_is_a_leaf_that_goes_and_one_that_comes() {
        let words = Words::default();
        words.map(ROOT, ADDRESS, 0x5000, PageSize::Small, 0);
        let (mut half, _) = adopted(&words);
        let place = entry(&words, ADDRESS, 1);
        let mut store = |value: u64| {
            let mut changes = Vec::new();
            words.store(place, value);
            half.stored(&words, place, &mut |change| changes.push(change));
            changes
        };
        let leaf = |frame, writable| Mapped { address: ADDRESS, frame, frames: 1, writable };
        assert_eq!(store(0x5000 | PRESENT | 0x20), [], "the accessed bit");
        let changed = [Change::Went(leaf(5, false)), Change::Came(leaf(6, true))];
        assert_eq!(store(0x6000 | PRESENT | WRITABLE), changed);
        assert_eq!(store(0), [Change::Went(leaf(6, true))]);
        assert_eq!(half.find(6, 0..0), None);
    }

    #[test]
    fn a_table_that_is_linked_is_read_whole_and_one_that_is_cut_off_goes_whole() {
        let words = Words::default();
        words.map(ROOT, ADDRESS, 0x5000, PageSize::Small, 0);
        words.map(ROOT, ADDRESS + 0x1000, 0x6000, PageSize::Small, 0);
        let (mut half, _) = adopted(&words);
        let place = entry(&words, ADDRESS, 2);
        let link = words.load(place).unwrap();
        let mut store = |value: u64| {
            let mut changes = Vec::new();
            words.store(place, value);
            half.stored(&words, place, &mut |change| changes.push(change));
            (changes.len(), half.find(6, 0..0))
        };
        assert_eq!(store(0), (3, None));
        assert_eq!(store(link), (3, Some(ADDRESS + 0x1000)));
    }

    #[test]
    fn a_table_linked_twice_is_told_unless_roots_share_it() {
        let words = Words::default();
        words.map(ROOT, ADDRESS, 0x5000, PageSize::Small, WRITABLE);
        let (mut half, _) = adopted(&words);
        let (third, second) = (entry(&words, ADDRESS, 4), entry(&words, ADDRESS, 2));
        // Another node's root, with the same table of the third level.
        let other = 0x50_0000;
        words.store(other + (third & 0xfff), words.load(third).unwrap());
        let mut changes = Vec::new();
        half.adopt(&words, other, &mut |change| changes.push(change));
        assert_eq!(changes, [Change::Linked(other >> 12)]);
        let table = words.load(second).unwrap();
        words.store(second + 8, table);
        changes.clear();
        half.stored(&words, second + 8, &mut |change| changes.push(change));
        assert_eq!(changes, [Change::Twice((table & FRAME) >> 12, ADDRESS + (2 << 20))]);
    }

    #[test]
    fn a_table_of_read_only_pages_is_shared_until_one_of_them_allows_stores() {
        let words = Words::default();
        words.map(ROOT, ADDRESS, 0x5000, PageSize::Small, 0);
        let (mut half, _) = adopted(&words);
        let (second, first) = (entry(&words, ADDRESS, 2), entry(&words, ADDRESS, 1));
        let mut store = |place: u64, value: u64| {
            let mut told = Vec::new();
            words.store(place, value);
            half.stored(&words, place, &mut |change| told.push(change));
            told.into_iter().filter(|change| matches!(change, Change::Twice(..))).count()
        };
        assert_eq!(store(second + 8, words.load(second).unwrap()), 0);
        assert_eq!(store(first + 8, 0x6000 | PRESENT), 0);
        assert_eq!(store(first + 8, 0x6000 | PRESENT | WRITABLE), 1);
        assert_eq!(store(second + 16, words.load(second).unwrap()), 1, "it is not read-only any more");
    }
}
