//! A translation cache that remembers how long each entry lived, and what ended it.
//!
//! Two levels as in current x86 processors: a small first level whose evictions cost little, and a second level that decides
//! how long a translation really stays reachable. A lifetime is counted from the fill to the last level's loss of the entry, in
//! the caller's unit of time (instructions, usually). Entries are tagged by address space (PCID); global ones match any.

/// The size of the page that an entry translates.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum PageSize {
    /// 4 KiB.
    Small,
    /// 2 MiB.
    Large,
    /// 1 GiB.
    Giant,
}

impl PageSize {
    /// log2 of the bytes.
    pub const fn shift(self) -> u32 {
        match self {
            Self::Small => 12,
            Self::Large => 21,
            Self::Giant => 30,
        }
    }
}

/// What an entry says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Translation {
    /// Virtual address of the page's first byte.
    pub page: u64,
    /// Physical address of the page's first byte.
    pub frame: u64,
    /// The page's size.
    pub size: PageSize,
    /// Whether it survives a change of address space.
    pub global: bool,
    /// The address space it was made in; ignored for global ones.
    pub space: u16,
}

/// What ended an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Death {
    /// Another entry needed its place.
    Capacity,
    /// It was flushed by its address (INVLPG, INVPCID type 0).
    Page,
    /// Everything that is not global was flushed (a write to CR3, INVPCID type 1 or 3).
    Space,
    /// Everything was flushed (a change of CR4.PGE, INVPCID type 2).
    All,
}

/// Sets and ways of both levels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TlbGeometry {
    /// First level: entries.
    pub l1_entries: usize,
    /// First level: ways; divides the entries.
    pub l1_ways: usize,
    /// Second level: entries.
    pub l2_entries: usize,
    /// Second level: ways; divides the entries.
    pub l2_ways: usize,
}

impl TlbGeometry {
    /// Intel Skylake-SP: 64 entries in 4 ways, second level 1,536 in 12 (Optimization Reference Manual, table 2-14).
    pub const SKYLAKE_SP: Self = Self { l1_entries: 64, l1_ways: 4, l2_entries: 1536, l2_ways: 12 };
    /// AMD Zen 4: 72 entries fully associative, second level 3,072 in 24 ways (Software Optimization Guide 57647).
    pub const ZEN4: Self = Self { l1_entries: 72, l1_ways: 72, l2_entries: 3072, l2_ways: 24 };

    /// A geometry by its preset's name.
    pub fn preset(name: &str) -> Option<Self> {
        match name {
            "skylake-sp" => Some(Self::SKYLAKE_SP),
            "zen4" => Some(Self::ZEN4),
            _ => None,
        }
    }

    /// Whether both levels have at least one set and ways that divide the entries.
    pub const fn is_valid(self) -> bool {
        self.l1_ways > 0
            && self.l2_ways > 0
            && self.l1_entries >= self.l1_ways
            && self.l2_entries >= self.l2_ways
            && self.l1_entries % self.l1_ways == 0
            && self.l2_entries % self.l2_ways == 0
    }
}

/// Lifetimes of dead entries in powers of two, by cause of death.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lifetimes {
    /// `buckets[cause][n]`: entries that lived 2^n to 2^(n+1) - 1 units (bucket 0: less than 2).
    pub buckets: [[u64; 64]; 4],
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self { buckets: [[0; 64]; 4] }
    }
}

impl Lifetimes {
    fn record(&mut self, lived: u64, death: Death) {
        self.buckets[death as usize][(63 - lived.max(1).leading_zeros()) as usize] += 1;
    }
    /// Entries that died of `death`.
    pub fn deaths(&self, death: Death) -> u64 {
        self.buckets[death as usize].iter().sum()
    }
    /// The share of dead entries that lived at least 2^`n` units, for each n; empty where none died.
    pub fn survival(&self) -> Vec<f64> {
        let by_length: Vec<u64> = (0..64).map(|n| self.buckets.iter().map(|b| b[n]).sum()).collect();
        let total: u64 = by_length.iter().sum();
        if total == 0 {
            return Vec::new();
        }
        let mut left = total;
        by_length
            .iter()
            .map(|&died| {
                let share = left as f64 / total as f64;
                left -= died;
                share
            })
            .collect()
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    translation: Translation,
    born: u64,
}

#[derive(Debug)]
struct Level {
    sets: usize,
    ways: usize,
    /// Most recently used first within a set.
    entries: Vec<Option<Entry>>,
}

impl Level {
    fn new(entries: usize, ways: usize) -> Self {
        Self { sets: entries / ways, ways, entries: vec![None; entries] }
    }

    fn set(&mut self, page: u64, size: PageSize) -> &mut [Option<Entry>] {
        let set = ((page >> size.shift()) as usize) % self.sets;
        &mut self.entries[set * self.ways..(set + 1) * self.ways]
    }

    fn find(&mut self, address: u64, space: u16, size: PageSize) -> Option<Entry> {
        let page = address >> size.shift() << size.shift();
        let set = self.set(page, size);
        let way = set.iter().position(|entry| {
            entry.is_some_and(|e| {
                let t = e.translation;
                t.page == page && t.size == size && (t.global || t.space == space)
            })
        })?;
        let found = set[way];
        set.copy_within(..way, 1);
        set[0] = found;
        found
    }

    /// Insert as most recent; the entry that had to leave.
    fn insert(&mut self, entry: Entry) -> Option<Entry> {
        let ways = self.ways;
        let set = self.set(entry.translation.page, entry.translation.size);
        let victim = match set.iter().position(Option::is_none) {
            Some(free) => {
                set.copy_within(..free, 1);
                None
            }
            None => {
                let victim = set[ways - 1];
                set.copy_within(..ways - 1, 1);
                victim
            }
        };
        set[0] = Some(entry);
        victim
    }

    fn remove(&mut self, mut dies: impl FnMut(&Translation) -> bool, mut dead: impl FnMut(Entry)) {
        for slot in &mut self.entries {
            if let Some(entry) = slot.take_if(|entry| dies(&entry.translation)) {
                dead(entry);
            }
        }
    }
}

/// A two-level translation cache of one CPU.
#[derive(Debug)]
pub struct Tlb {
    l1: Level,
    l2: Level,
    /// Sizes that were ever filled: others need no look-up.
    sizes: Vec<PageSize>,
    lifetimes: Lifetimes,
    l1_misses: u64,
    walks: u64,
}

impl Tlb {
    /// An empty cache.
    ///
    /// # Panics
    /// Where the geometry is not [valid](TlbGeometry::is_valid).
    pub fn new(geometry: TlbGeometry) -> Self {
        assert!(geometry.is_valid(), "{geometry:?}");
        Self {
            l1: Level::new(geometry.l1_entries, geometry.l1_ways),
            l2: Level::new(geometry.l2_entries, geometry.l2_ways),
            sizes: Vec::new(),
            lifetimes: Lifetimes::default(),
            l1_misses: 0,
            walks: 0,
        }
    }

    /// Translate `address` in `space`; on a miss of both levels `walk` says what the tables say (or nothing: a fault).
    pub fn access(
        &mut self,
        address: u64,
        space: u16,
        now: u64,
        walk: impl FnOnce() -> Option<Translation>,
    ) -> Option<Translation> {
        for i in 0..self.sizes.len() {
            if let Some(entry) = self.l1.find(address, space, self.sizes[i]) {
                return Some(entry.translation);
            }
        }
        self.l1_misses += 1;
        for i in 0..self.sizes.len() {
            if let Some(entry) = self.l2.find(address, space, self.sizes[i]) {
                self.l1.insert(entry);
                return Some(entry.translation);
            }
        }
        self.walks += 1;
        let translation = walk()?;
        if !self.sizes.contains(&translation.size) {
            self.sizes.push(translation.size);
        }
        let entry = Entry { translation, born: now };
        self.l1.insert(entry);
        if let Some(victim) = self.l2.insert(entry) {
            // The second level includes the first: what leaves here is gone altogether.
            let t = victim.translation;
            self.l1.remove(|other| *other == t, |_| {});
            self.lifetimes.record(now.saturating_sub(victim.born), Death::Capacity);
        }
        Some(translation)
    }

    /// INVLPG: the entry of `address`, in `space` or global.
    pub fn flush_page(&mut self, address: u64, space: u16, now: u64) {
        self.flush(now, Death::Page, |t| {
            (t.global || t.space == space) && address >> t.size.shift() == t.page >> t.size.shift()
        });
    }
    /// All of `space` that is not global.
    pub fn flush_space(&mut self, space: u16, now: u64) {
        self.flush(now, Death::Space, |t| !t.global && t.space == space);
    }
    /// Everything that is not global.
    pub fn flush_non_global(&mut self, now: u64) {
        self.flush(now, Death::Space, |t| !t.global);
    }
    /// Everything.
    pub fn flush_all(&mut self, now: u64) {
        self.flush(now, Death::All, |_| true);
    }

    fn flush(&mut self, now: u64, death: Death, dies: impl Fn(&Translation) -> bool) {
        self.l1.remove(&dies, |_| {});
        let lifetimes = &mut self.lifetimes;
        self.l2.remove(&dies, |entry| lifetimes.record(now.saturating_sub(entry.born), death));
    }

    /// What is cached now, with the time of each fill.
    pub fn entries(&self) -> impl Iterator<Item = (Translation, u64)> {
        self.l2.entries.iter().flatten().map(|entry| (entry.translation, entry.born))
    }
    /// How long the dead lived.
    pub const fn lifetimes(&self) -> &Lifetimes {
        &self.lifetimes
    }
    /// Look-ups that the first level missed.
    pub const fn l1_misses(&self) -> u64 {
        self.l1_misses
    }
    /// Look-ups that both missed.
    pub const fn walks(&self) -> u64 {
        self.walks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TINY: TlbGeometry = TlbGeometry { l1_entries: 2, l1_ways: 2, l2_entries: 4, l2_ways: 4 };

    fn user(page: u64, space: u16) -> Option<Translation> {
        Some(Translation { page, frame: page + 0x1_0000_0000, size: PageSize::Small, global: false, space })
    }

    #[test]
    fn a_change_of_space_keeps_global_entries_only() {
        let mut tlb = Tlb::new(TINY);
        tlb.access(0x1000, 1, 0, || user(0x1000, 1));
        tlb.access(0x2000, 1, 0, || Some(Translation { global: true, ..user(0x2000, 1).unwrap() }));
        tlb.flush_non_global(10);
        assert_eq!(tlb.entries().map(|(t, _)| t.page).collect::<Vec<_>>(), [0x2000]);
        assert_eq!(tlb.lifetimes().deaths(Death::Space), 1);
    }

    #[test]
    fn spaces_do_not_see_each_others_entries() {
        let mut tlb = Tlb::new(TINY);
        tlb.access(0x1000, 1, 0, || user(0x1000, 1));
        assert_eq!(tlb.access(0x1000, 2, 1, || None), None);
        tlb.flush_page(0x1000, 2, 2);
        assert_eq!(tlb.entries().count(), 1, "a flush in another space leaves it");
    }

    #[test]
    fn a_large_page_is_flushed_by_any_of_its_addresses() {
        let mut tlb = Tlb::new(TINY);
        let large = Translation { page: 0x20_0000, frame: 0, size: PageSize::Large, global: false, space: 0 };
        tlb.access(0x20_1234, 0, 5, || Some(large));
        assert_eq!(tlb.access(0x3f_ffff, 0, 6, || None), Some(large));
        tlb.flush_page(0x3f_f000, 0, 7);
        assert_eq!(tlb.access(0x20_1234, 0, 8, || None), None);
    }

    #[test]
    fn survival_counts_those_that_lived_as_long() {
        let mut tlb = Tlb::new(TINY);
        for (page, death) in [(0x1000, 1), (0x2000, 4), (0x3000, 4), (0x4000, 1000)] {
            tlb.access(page, 0, 0, || user(page, 0));
            tlb.flush_page(page, 0, death);
        }
        let survival = tlb.lifetimes().survival();
        assert_eq!(
            (survival[0], survival[2], survival[3], survival[9], survival[10]),
            (1.0, 0.75, 0.25, 0.25, 0.0)
        );
    }

    proptest! {
        #[test]
        fn it_walks_exactly_for_what_it_does_not_hold(steps in prop::collection::vec((0u64..8, 0u8..10), 1..200)) {
            let mut tlb = Tlb::new(TINY);
            let holds = |tlb: &Tlb, address| tlb.entries().any(|(t, _)| t.page == address);
            for (now, (page, what)) in steps.into_iter().enumerate() {
                let address = page << 12;
                let held = holds(&tlb, address);
                if what == 0 {
                    tlb.flush_page(address, 0, now as u64);
                    prop_assert!(!holds(&tlb, address));
                } else {
                    let mut walked = false;
                    tlb.access(address, 0, now as u64, || { walked = true; user(address, 0) });
                    prop_assert_eq!(walked, !held);
                    prop_assert!(holds(&tlb, address));
                }
                prop_assert!(tlb.entries().count() <= 4);
            }
        }
    }
}
