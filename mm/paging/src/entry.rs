//! Entries of translation tables. Only this module knows the meaning of user entries' bits; the
//! hardware's are in [`freehold_machine::entry`].
//!
//! A leaf keeps its frame also while it grants no rights at all (`PROT_NONE`): the hardware then
//! sees an absent entry.
//!
//! An absent entry that is neither a leaf nor empty has the location of a page that is not in
//! memory ([`SwapPlace`]). It is stored inverted, so that a CPU that speculates despite the clear
//! bit 0 finds no memory at that address (the L1TF errata).

use freehold_machine::entry::{
    ACCESSED, DIRTY, FRAME, KEY, KEY_SHIFT, LARGE, NO_EXECUTE, PRESENT, USER, WRITABLE,
};
use freehold_machine::{PAGE_SHIFT, Pfn, ProtectionKey, TABLE_ENTRIES, VirtAddr};

/// In an absent entry: a leaf that grants nothing. (In a present one the bit means "global".)
const WITHHELD: u64 = 1 << 8;
/// Ignored by hardware: the frame's counts do not include this leaf.
const UNCOUNTED: u64 = 1 << 9;
/// In an absent entry without [`WITHHELD`]: the page is swapped out. (In a present one the bit is
/// [`WRITABLE`].)
const SWAPPED: u64 = 1 << 1;
/// Ignored by hardware: the next store is to be reported to a monitor (userfaultfd's
/// write-protection). No leaf with it grants writing.
const WATCHED: u64 = 1 << 10;
/// Ignored by hardware: the page was written through this leaf since the mark was last cleared.
const SOFT_DIRTY: u64 = 1 << 11;
/// Ignored by hardware: the bytes may be discarded while [`DIRTY`] is clear (MADV_FREE).
const LAZY: u64 = 1 << 52;
/// Ignored by hardware: only the program may access the page's bytes (memfd_secret).
const SECRET: u64 = 1 << 53;
/// Ignored by hardware: the leaf of a private mapping that shows the huge page of a file.
const OF_FILE: u64 = 1 << 54;

/// Rights that a leaf grants to user code. The hardware cannot withhold reading from a page that
/// may be written or executed. The page's protection key is part of them; a leaf that grants
/// nothing has none.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Rights(u8);

/// In [`Rights`]: the accesses that are granted.
const GRANTED: u8 = 7;
/// In [`Rights`]: the place of the protection key.
const RIGHTS_KEY_SHIFT: u32 = 4;

impl Rights {
    /// No rights.
    pub const NONE: Self = Self(0);
    /// Load.
    pub const READ: Self = Self(1);
    /// Store.
    pub const WRITE: Self = Self(2);
    /// Fetch instructions.
    pub const EXECUTE: Self = Self(4);

    /// Returns the rights of both.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// Returns the rights in this set that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
    /// Returns the rights with another protection key.
    #[must_use]
    pub const fn with_key(self, key: ProtectionKey) -> Self {
        Self(self.0 & GRANTED | key.number() << RIGHTS_KEY_SHIFT)
    }
    /// Returns the protection key.
    pub const fn key(self) -> ProtectionKey {
        ProtectionKey::new((self.0 >> RIGHTS_KEY_SHIFT) as u64).unwrap()
    }
    /// Whether all of `other` is granted. The protection key does not matter.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 & GRANTED == other.0 & GRANTED
    }
    /// Whether a TLB that has a leaf with `old` rights must forget it before these rights hold: it
    /// would grant more, or have another protection key.
    pub const fn restrict(self, old: Self) -> bool {
        !self.contains(old) || !old.is_none() && (self.0 ^ old.0) & !GRANTED != 0
    }
    /// Whether nothing is granted.
    pub const fn is_none(self) -> bool {
        self.0 & GRANTED == 0
    }
}

impl core::ops::BitOr for Rights {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl core::fmt::Debug for Rights {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for (right, letter) in [(Self::READ, "r"), (Self::WRITE, "w"), (Self::EXECUTE, "x")] {
            f.write_str(if self.contains(right) { letter } else { "-" })?;
        }
        match self.key() {
            ProtectionKey::DEFAULT => Ok(()),
            key => write!(f, " key {}", key.number()),
        }
    }
}

/// Whether a leaf is one of its frame's mappings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    /// The leaf is the holder of one mapping of the frame.
    Counted,
    /// The frame belongs to the system (the zero page): it is never freed through a leaf.
    Uncounted,
}

/// The first marks of a new leaf: the use of its page so far. Setting a mark here is cheaper than
/// letting the hardware's walk set it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Marks {
    /// The page has not been accessed (a neighbour of a faulting page).
    Untouched,
    /// The page was read, or will be read next.
    Accessed,
    /// The page was written, or will be written next.
    Dirty,
}

/// The place of a page that is not in memory: a slot of a swap area.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SwapPlace {
    /// The area's number, below 32.
    pub area: u8,
    /// The slot's number, below 2^35.
    pub slot: u64,
}

impl SwapPlace {
    /// The page is lost: it could not be read when its swap area was switched off.
    pub const LOST: Self = Self { area: 31, slot: 0 };
    /// One more than the largest slot that an entry can name.
    pub const SLOTS: u64 = 1 << Self::SLOT_BITS;
    const SLOT_BITS: u32 = 35;

    /// Area and slot as one number below 2^40.
    pub const fn number(self) -> u64 {
        (self.area as u64) << Self::SLOT_BITS | self.slot
    }
    /// The place that has this [`SwapPlace::number`].
    pub const fn from_number(number: u64) -> Self {
        Self { area: (number >> Self::SLOT_BITS) as u8, slot: number & (Self::SLOTS - 1) }
    }
}

/// One entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entry(u64);

impl Entry {
    /// Maps nothing.
    pub const EMPTY: Self = Self(0);

    /// Returns the entry with these bits.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
    /// Returns the entry's bits, as the hardware reads them.
    pub const fn bits(self) -> u64 {
        self.0
    }
    /// Returns an entry that points to the next level's table; only the leaf restricts rights.
    pub const fn table(table: Pfn) -> Self {
        Self(table.0 << PAGE_SHIFT | PRESENT | WRITABLE | USER | ACCESSED)
    }
    /// A 4 KiB leaf.
    pub const fn leaf(frame: Pfn, rights: Rights, marks: Marks, backing: Backing) -> Self {
        let marks = match marks {
            Marks::Untouched => 0,
            Marks::Accessed => ACCESSED,
            Marks::Dirty => ACCESSED | DIRTY | SOFT_DIRTY,
        };
        let backing = match backing {
            Backing::Counted => 0,
            Backing::Uncounted => UNCOUNTED,
        };
        Self(frame.0 << PAGE_SHIFT | marks | backing | WITHHELD).with_rights(rights)
    }
    /// Returns the entry of a page at `place`. The slot counts its entries, and so tells whether
    /// the page is exclusive.
    pub const fn swapped(place: SwapPlace) -> Self {
        Self(!(place.number() << PAGE_SHIFT) & FRAME | SWAPPED)
    }
    /// The same leaf for a 2 MiB page, whose frame is a pageblock's first.
    #[must_use]
    pub const fn large(self) -> Self {
        Self(self.0 | LARGE)
    }
    /// The same leaf for a 4 KiB page at another frame: a piece of a 2 MiB page.
    #[must_use]
    pub const fn piece(self, frame: Pfn) -> Self {
        Self(self.0 & !LARGE & !FRAME | frame.0 << PAGE_SHIFT)
    }
    /// The piece of this 2 MiB page's leaf that maps `addr`.
    #[must_use]
    pub const fn piece_at(self, addr: VirtAddr) -> Self {
        self.piece(self.frame().offset(addr.0 >> PAGE_SHIFT & (TABLE_ENTRIES as u64 - 1)))
    }
    /// Whether it is a 2 MiB page's leaf.
    pub const fn is_large(self) -> bool {
        self.0 & LARGE != 0
    }
    /// The same leaf with other rights.
    #[must_use]
    pub const fn with_rights(self, rights: Rights) -> Self {
        let kept = self.0 & !(PRESENT | WRITABLE | USER | WITHHELD | NO_EXECUTE | KEY);
        if rights.is_none() {
            return Self(kept | WITHHELD);
        }
        let write = if rights.contains(Rights::WRITE) { WRITABLE } else { 0 };
        let execute = if rights.contains(Rights::EXECUTE) { 0 } else { NO_EXECUTE };
        let key = (rights.key().number() as u64) << KEY_SHIFT;
        Self(kept | PRESENT | USER | write | execute | key)
    }
    /// The same leaf without the right to write.
    #[must_use]
    pub const fn write_protected(self) -> Self {
        Self(self.0 & !WRITABLE)
    }
    /// The same leaf in a child's table: without the right to write, marked as written, not used
    /// there yet, and not watched.
    #[must_use]
    pub const fn inherited(self) -> Self {
        Self(self.0 & !(WRITABLE | ACCESSED | LAZY | WATCHED) | DIRTY)
    }
    /// The same leaf, written and accessed.
    #[must_use]
    pub const fn marked_dirty(self) -> Self {
        Self(self.0 & !LAZY | ACCESSED | DIRTY | SOFT_DIRTY)
    }
    /// The same leaf, unused and clean, whose bytes may be discarded until it is written
    /// (MADV_FREE).
    #[must_use]
    pub const fn marked_lazy(self) -> Self {
        Self(self.0 & !(ACCESSED | DIRTY) | LAZY)
    }
    /// The same leaf, marked as not written since the last clearing; the hardware's dirty bit
    /// stays, for write-back.
    #[must_use]
    pub const fn marked_unwritten(self) -> Self {
        Self(self.0 & !SOFT_DIRTY)
    }
    /// The same leaf with the soft-dirty mark, but no other mark, of `other`; watched if `other`
    /// is.
    #[must_use]
    pub const fn with_soft_dirty_of(self, other: Self) -> Self {
        Self(self.0 & !(SOFT_DIRTY | WATCHED) | other.0 & (SOFT_DIRTY | WATCHED))
    }
    /// The same leaf or swap entry, watched: without the right to write, and the next store is to
    /// be reported.
    #[must_use]
    pub const fn watched(self) -> Self {
        let kept = if self.is_leaf() { self.0 & !WRITABLE } else { self.0 };
        Self(kept | WATCHED)
    }
    /// The same leaf or swap entry, not watched any more; a leaf still grants no writing.
    #[must_use]
    pub const fn unwatched(self) -> Self {
        Self(self.0 & !WATCHED)
    }
    /// Whether the next store is to be reported.
    pub const fn is_watched(self) -> bool {
        self.0 & WATCHED != 0
    }
    /// The same leaf with the accessed bit clear.
    #[must_use]
    pub const fn marked_old(self) -> Self {
        Self(self.0 & !ACCESSED)
    }

    /// The same leaf of a page whose bytes only the program may access: such a page is not pinned.
    #[must_use]
    pub const fn marked_secret(self) -> Self {
        Self(self.0 | SECRET)
    }

    /// The same leaf of a private mapping, which shows the huge page of a file.
    #[must_use]
    pub const fn marked_of_file(self) -> Self {
        Self(self.0 | OF_FILE)
    }
    /// Whether it is the leaf of a private mapping that shows the huge page of a file.
    pub const fn is_of_file(self) -> bool {
        self.0 & OF_FILE != 0
    }

    /// Whether the entry is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// Whether the entry maps a frame, with or without rights.
    pub const fn is_leaf(self) -> bool {
        self.0 & (PRESENT | WITHHELD) != 0
    }
    /// The page's location, if it is not in memory.
    pub const fn swap_place(self) -> Option<SwapPlace> {
        if self.0 & (PRESENT | WITHHELD | SWAPPED) != SWAPPED {
            return None;
        }
        Some(SwapPlace::from_number((!self.0 & FRAME) >> PAGE_SHIFT))
    }
    /// Whether the leaf's bytes may be discarded: the program has released them, and has not
    /// written since.
    pub const fn is_lazy(self) -> bool {
        self.0 & (LAZY | DIRTY) == LAZY
    }
    /// Above level 1: whether it points to a table (and not to a 2 MiB page or nothing).
    pub const fn is_table(self) -> bool {
        self.0 & (PRESENT | LARGE) == PRESENT
    }
    /// The frame (or table) of the entry. Meaningless for an empty entry.
    pub const fn frame(self) -> Pfn {
        Pfn((self.0 & FRAME) >> PAGE_SHIFT)
    }
    /// Returns the rights that the leaf grants.
    pub const fn rights(self) -> Rights {
        if self.0 & PRESENT == 0 {
            return Rights::NONE;
        }
        let write = if self.0 & WRITABLE != 0 { Rights::WRITE } else { Rights::NONE };
        let execute = if self.0 & NO_EXECUTE == 0 { Rights::EXECUTE } else { Rights::NONE };
        Rights::READ.union(write).union(execute).with_key(self.key())
    }
    /// Returns the leaf's protection key; the default one for a leaf that grants nothing.
    pub const fn key(self) -> ProtectionKey {
        ProtectionKey::new((self.0 & KEY) >> KEY_SHIFT).unwrap()
    }
    /// Whether stores are allowed.
    pub const fn is_writable(self) -> bool {
        self.0 & (PRESENT | WRITABLE) == PRESENT | WRITABLE
    }
    /// Whether the leaf has the accessed bit, set by hardware or by the kernel. A leaf that never
    /// had it is in no TLB.
    pub const fn is_accessed(self) -> bool {
        self.0 & ACCESSED != 0
    }
    /// Whether the page was written through this leaf.
    pub const fn is_dirty(self) -> bool {
        self.0 & DIRTY != 0
    }
    /// Whether the page was written through this leaf since the mark was last cleared; this is the
    /// kernel's mark, not the hardware's.
    pub const fn is_soft_dirty(self) -> bool {
        self.0 & SOFT_DIRTY != 0
    }
    /// Whether a TLB may have the entry: present and used.
    pub const fn may_be_cached(self) -> bool {
        self.0 & (PRESENT | ACCESSED) == PRESENT | ACCESSED
    }
    /// Whether its page may be pinned: the leaf is one of its frame's mappings, and the page is not
    /// secret memory.
    pub const fn may_be_pinned(self) -> bool {
        self.0 & (UNCOUNTED | SECRET) == 0
    }
    /// Whether the leaf is one of its frame's mappings.
    pub const fn backing(self) -> Backing {
        if self.0 & UNCOUNTED == 0 { Backing::Counted } else { Backing::Uncounted }
    }
}

impl core::fmt::Debug for Entry {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.is_empty() {
            return f.write_str("empty");
        }
        if let Some(place) = self.swap_place() {
            return write!(f, "{place:?}");
        }
        write!(f, "{:?} {:?} ({:#x})", self.frame(), self.rights(), self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_gives_back_what_it_was_made_of() {
        let pfn = Pfn(0xf_ffff_ffff & 0x1234_5678);
        for bits in 0..8u8 {
            let rights = Rights(bits);
            for (marks, backing) in [(Marks::Untouched, Backing::Counted), (Marks::Dirty, Backing::Uncounted)]
            {
                let leaf = Entry::leaf(pfn, rights, marks, backing);
                // A page that may be written or executed may be read.
                let expected = if rights.is_none() { rights } else { rights | Rights::READ };
                assert_eq!((leaf.frame(), leaf.rights(), leaf.backing()), (pfn, expected, backing));
                assert_eq!(leaf.is_dirty(), marks == Marks::Dirty);
                assert!(!leaf.is_empty());
                assert_eq!(leaf.with_rights(Rights::NONE).with_rights(expected), leaf);
            }
        }
    }

    #[test]
    fn a_leaf_keeps_its_protection_key_until_it_gets_other_rights() {
        let key = |number| ProtectionKey::new(number).unwrap();
        let full = Rights::READ | Rights::WRITE | Rights::EXECUTE;
        for number in 0..16 {
            let rights = full.with_key(key(number));
            let leaf = Entry::leaf(Pfn(0xf_ffff_ffff), rights, Marks::Dirty, Backing::Counted);
            assert_eq!((leaf.rights(), leaf.key(), leaf.frame()), (rights, key(number), Pfn(0xf_ffff_ffff)));
            let changes: [fn(Entry) -> Entry; 8] = [
                Entry::write_protected,
                Entry::inherited,
                Entry::large,
                Entry::marked_lazy,
                Entry::marked_old,
                Entry::watched,
                Entry::marked_secret,
                |leaf| leaf.piece(Pfn(1)),
            ];
            assert!(changes.iter().all(|change| change(leaf).key() == key(number)));
            assert_eq!(leaf.with_rights(Rights::READ).key(), ProtectionKey::DEFAULT);
            assert_eq!(leaf.with_rights(Rights::NONE.with_key(key(number))).bits() & KEY, 0);
            assert_eq!(rights.without(Rights::WRITE).key(), key(number));
        }
        // More rights need no flush; fewer, and another key, do.
        assert!(!full.restrict(Rights::READ) && Rights::READ.restrict(full));
        assert!(full.with_key(key(3)).restrict(Rights::READ.with_key(key(1))));
        assert!(!full.with_key(key(3)).restrict(Rights::NONE));
    }

    #[test]
    fn a_swap_entry_gives_back_what_it_was_made_of_and_is_no_leaf() {
        let ends = [0, 1, 77, SwapPlace::SLOTS - 1];
        for place in (0..32).flat_map(|area| ends.map(|slot| SwapPlace { area, slot })) {
            let entry = Entry::swapped(place);
            assert_eq!(entry.swap_place(), Some(place));
            assert!(!entry.is_empty() && !entry.is_leaf() && !entry.is_large() && !entry.is_table());
            assert!(!entry.is_writable() && !entry.may_be_cached() && !entry.is_soft_dirty());
            let dirty = Entry::leaf(Pfn(7), Rights::READ, Marks::Dirty, Backing::Counted);
            let written = entry.with_soft_dirty_of(dirty);
            assert!(written.is_soft_dirty() && written.marked_unwritten() == entry);
            assert_eq!(written.swap_place(), Some(place));
        }
        for rights in [Rights::NONE, Rights::READ, Rights::READ | Rights::WRITE] {
            let leaf = Entry::leaf(Pfn(7), rights, Marks::Dirty, Backing::Counted);
            assert!(leaf.is_leaf() && leaf.swap_place().is_none());
        }
    }

    #[test]
    fn bytes_given_up_are_wanted_again_when_they_are_written() {
        let leaf = Entry::leaf(Pfn(7), Rights::READ | Rights::WRITE, Marks::Dirty, Backing::Counted);
        let lazy = leaf.marked_lazy();
        assert!(lazy.is_lazy() && !lazy.may_be_cached() && lazy.is_writable() && lazy.is_soft_dirty());
        // The hardware's own mark is enough.
        assert!(!Entry::from_bits(lazy.bits() | DIRTY | ACCESSED).is_lazy());
        assert_eq!(lazy.marked_dirty(), leaf);
        assert!(!leaf.is_lazy());
    }

    #[test]
    fn no_rights_means_absent_for_the_hardware() {
        let leaf = Entry::leaf(Pfn(7), Rights::NONE, Marks::Accessed, Backing::Counted);
        assert_eq!(leaf.bits() & PRESENT, 0);
        assert!(!leaf.may_be_cached());
        assert!(!leaf.is_table());
        assert!(!leaf.large().is_table());
    }
}
