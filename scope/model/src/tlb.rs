//! The translation caches of one CPU, which remember how long each entry lived, and what ended it.
//!
//! Two levels as in current x86 processors: small first levels for data and for instructions, whose evictions cost little,
//! and a second level for both that decides how long a translation really stays reachable. The second level includes the
//! first: what leaves it is gone. A lifetime is counted from the fill to the second level's loss of the entry, in the
//! caller's unit of time (instructions, usually). Entries are tagged by address space (PCID); global ones match any.
//!
//! Replacement is by least recent use, with a stamp for each entry and not a list: a hit then writes one number whatever
//! the ways, and the caller's [`Hint`] finds the entry without a search. Only misses look through a set.

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
    /// All sizes, the smallest first.
    pub const ALL: [Self; 3] = [Self::Small, Self::Large, Self::Giant];

    /// log2 of the bytes.
    pub const fn shift(self) -> u32 {
        match self {
            Self::Small => 12,
            Self::Large => 21,
            Self::Giant => 30,
        }
    }
}

/// In which address spaces a translation holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scope {
    /// In all: it survives a change of address space.
    Global,
    /// In the one with this PCID (0 to 4095).
    Space(u16),
}

/// Which page of which address spaces, in one word: what a look-up compares. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key(u64);

/// Page numbers of 57-bit addresses.
const NUMBER: u64 = (1 << 45) - 1;
const SIZE_SHIFT: u32 = 45;
const SPACE_SHIFT: u32 = 48;
const GLOBAL: u64 = 1 << 60;
const VALID: u64 = 1 << 61;

impl Key {
    /// The key of the page that holds `address`.
    #[inline]
    pub const fn new(address: u64, size: PageSize, scope: Scope) -> Self {
        let scope = match scope {
            Scope::Global => GLOBAL,
            Scope::Space(space) => (space as u64 & 0xfff) << SPACE_SHIFT,
        };
        Self(
            VALID
                | scope
                | (size as u64) << SIZE_SHIFT
                | (address >> size.shift()) & NUMBER >> (size.shift() - 12),
        )
    }
    const fn number(self) -> u64 {
        self.0 & NUMBER
    }
    /// The page's size.
    pub const fn size(self) -> PageSize {
        PageSize::ALL[(self.0 >> SIZE_SHIFT & 3) as usize]
    }
    /// All keys under which `address` may be found in space 0 or globally.
    pub fn all_of(address: u64) -> impl Iterator<Item = Self> {
        let scopes = [Scope::Global, Scope::Space(0)];
        PageSize::ALL.into_iter().flat_map(move |size| scopes.map(|scope| Self::new(address, size, scope)))
    }
    const fn is_global(self) -> bool {
        self.0 & GLOBAL != 0
    }
    const fn space(self) -> u16 {
        (self.0 >> SPACE_SHIFT & 0xfff) as u16
    }
    /// Whether the page is of the upper half of addresses.
    const fn is_upper(self) -> bool {
        self.number() >> (SIZE_SHIFT - 1 - (self.size().shift() - 12)) & 1 != 0
    }
    /// Kind of entry, for its statistics: half and size.
    const fn group(self) -> usize {
        self.is_upper() as usize * 3 + (self.0 >> SIZE_SHIFT & 3) as usize
    }
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

impl Death {
    /// All causes.
    pub const ALL: [Self; 4] = [Self::Capacity, Self::Page, Self::Space, Self::All];
}

/// Entries and ways of one level; the sets are a power of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LevelShape {
    /// Entries.
    pub entries: usize,
    /// Ways; divides the entries.
    pub ways: usize,
}

/// Shape of all levels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TlbShape {
    /// First level, data.
    pub data: LevelShape,
    /// First level, instructions.
    pub fetch: LevelShape,
    /// Second level.
    pub second: LevelShape,
}

impl LevelShape {
    /// Whether there is a power of two of sets.
    pub const fn is_valid(self) -> bool {
        self.ways > 0
            && self.entries > 0
            && self.entries.is_multiple_of(self.ways)
            && (self.entries / self.ways).is_power_of_two()
    }
}

/// Lifetimes of the entries of one kind, in powers of two.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lifetimes {
    /// Entries made.
    pub fills: u64,
    /// `dead[cause][n]`: entries that died of `cause` having lived 2^n to 2^(n+1) - 1 units (n = 0: less than 2).
    pub dead: [[u64; 64]; 4],
}

impl Lifetimes {
    const NONE: Self = Self { fills: 0, dead: [[0; 64]; 4] };

    /// Entries that died of `death`.
    pub fn deaths(&self, death: Death) -> u64 {
        self.dead[death as usize].iter().sum()
    }
}

/// What a cached translation says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cached {
    /// The frame's number.
    pub frame: u64,
    /// The caller's note at the time of the fill.
    pub note: u32,
    /// When it was filled.
    pub born: u64,
    /// The same on another clock of the caller's.
    pub moment: u64,
}

/// What a walk of the tables found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Walked {
    /// The frame's number.
    pub frame: u64,
    /// Anything that the caller wants to find again.
    pub note: u32,
    /// When this is on the caller's other clock.
    pub moment: u64,
}

#[derive(Debug)]
struct Level {
    ways: usize,
    set_mask: usize,
    /// By set; 0 is an empty place.
    keys: Vec<u64>,
    stamps: Vec<u64>,
}

impl Level {
    fn new(shape: LevelShape) -> Self {
        assert!(shape.is_valid(), "{shape:?}");
        Self {
            ways: shape.ways,
            set_mask: shape.entries / shape.ways - 1,
            keys: vec![0; shape.entries],
            stamps: vec![0; shape.entries],
        }
    }
    fn set(&self, key: u64) -> core::ops::Range<usize> {
        let first = (key & NUMBER) as usize & self.set_mask;
        first * self.ways..(first + 1) * self.ways
    }
    fn find(&self, key: u64) -> Option<usize> {
        let set = self.set(key);
        self.keys[set.clone()].iter().position(|&other| other == key).map(|way| set.start + way)
    }
    /// The place that a new entry for `key` takes: an empty one or the least recently used.
    fn victim(&self, key: u64) -> usize {
        self.set(key).min_by_key(|&at| if self.keys[at] == 0 { 0 } else { self.stamps[at] }).unwrap_or(0)
    }
    fn forget(&mut self, key: u64) {
        if let Some(at) = self.find(key) {
            self.keys[at] = 0;
        }
    }
    fn retain(&mut self, keeps: impl Fn(u64) -> bool) {
        for key in &mut self.keys {
            if *key != 0 && !keeps(*key) {
                *key = 0;
            }
        }
    }
}

/// Whose first level is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Loads and stores.
    Data,
    /// Instructions.
    Fetch,
}

/// Where a look-up found its entry last time: the next one looks there first. Any value is right, most are slow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hint(u32);

impl Hint {
    /// Of what was never found.
    pub const NONE: Self = Self(u32::MAX);
}

/// What a look-up that the first level missed found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missed {
    /// The second level had it.
    First(Cached),
    /// Neither had it: it is there now.
    Both,
}

/// The translation caches of one CPU.
#[derive(Debug)]
pub struct Tlb {
    first: [Level; 2],
    second: Level,
    cached: Vec<Cached>,
    clock: u64,
    lifetimes: [Lifetimes; 6],
}

const NOTHING: Cached = Cached { frame: 0, note: 0, born: 0, moment: 0 };

impl Tlb {
    /// Empty caches.
    ///
    /// # Panics
    /// Where a level is not [valid](LevelShape::is_valid).
    pub fn new(shape: TlbShape) -> Self {
        Self {
            first: [Level::new(shape.data), Level::new(shape.fetch)],
            second: Level::new(shape.second),
            cached: vec![NOTHING; shape.second.entries],
            clock: 0,
            lifetimes: [Lifetimes::NONE; 6],
        }
    }

    /// Whether the first level of `side` has `key` where `hint` says; it is the most recently used then.
    #[inline]
    pub fn touch(&mut self, side: Side, key: Key, hint: Hint) -> bool {
        let level = &mut self.first[side as usize];
        let hit = level.keys.get(hint.0 as usize) == Some(&key.0);
        if hit && let Some(stamp) = level.stamps.get_mut(hint.0 as usize) {
            self.clock += 1;
            *stamp = self.clock;
        }
        hit
    }

    /// Look `key` up after [`Tlb::touch`] has missed; what neither level has is filled with what `walk` says. `None`: the
    /// first level had it in another place than the hint's.
    pub fn look_up(
        &mut self,
        side: Side,
        key: Key,
        hint: &mut Hint,
        now: u64,
        walk: impl FnOnce() -> Walked,
    ) -> Option<Missed> {
        self.clock += 1;
        let first = &mut self.first[side as usize];
        if let Some(at) = first.find(key.0) {
            first.stamps[at] = self.clock;
            *hint = Hint(at as u32);
            return None;
        }
        let at = first.victim(key.0);
        first.keys[at] = key.0;
        first.stamps[at] = self.clock;
        *hint = Hint(at as u32);
        if let Some(at) = self.second.find(key.0) {
            self.second.stamps[at] = self.clock;
            return Some(Missed::First(self.cached[at]));
        }
        let at = self.second.victim(key.0);
        let old = self.second.keys[at];
        if old != 0 {
            for first in &mut self.first {
                first.forget(old);
            }
            bury(&mut self.lifetimes, old, &self.cached[at], now, Death::Capacity);
        }
        let Walked { frame, note, moment } = walk();
        self.second.keys[at] = key.0;
        self.second.stamps[at] = self.clock;
        self.cached[at] = Cached { frame, note, born: now, moment };
        self.lifetimes[key.group()].fills += 1;
        Some(Missed::Both)
    }

    /// What is cached for `key`. No use of it: the order stays.
    pub fn peek(&self, key: Key) -> Option<&Cached> {
        self.second.find(key.0).map(|at| &self.cached[at])
    }

    /// Change the caller's note of what is cached for `key`.
    pub fn note(&mut self, key: Key, note: u32) {
        if let Some(at) = self.second.find(key.0) {
            self.cached[at].note = note;
        }
    }

    /// INVLPG: the entries of all sizes of `address`, in `space` or global.
    pub fn flush_page(&mut self, address: u64, space: u16, now: u64) {
        for size in PageSize::ALL {
            for scope in [Scope::Global, Scope::Space(space)] {
                self.flush_key(Key::new(address, size, scope), now);
            }
        }
    }
    /// One entry, if it is there.
    pub fn flush_key(&mut self, key: Key, now: u64) {
        for first in &mut self.first {
            first.forget(key.0);
        }
        if let Some(at) = self.second.find(key.0) {
            self.second.keys[at] = 0;
            bury(&mut self.lifetimes, key.0, &self.cached[at], now, Death::Page);
        }
    }
    /// All of `space` that is not global.
    pub fn flush_space(&mut self, space: u16, now: u64) {
        self.flush(now, Death::Space, |key| key.is_global() || key.space() != space);
    }
    /// Everything that is not global.
    pub fn flush_non_global(&mut self, now: u64) {
        self.flush(now, Death::Space, Key::is_global);
    }
    /// Everything.
    pub fn flush_all(&mut self, now: u64) {
        self.flush(now, Death::All, |_| false);
    }

    fn flush(&mut self, now: u64, death: Death, keeps: impl Fn(Key) -> bool) {
        for first in &mut self.first {
            first.retain(|key| keeps(Key(key)));
        }
        for (key, cached) in self.second.keys.iter_mut().zip(&self.cached) {
            if *key != 0 && !keeps(Key(*key)) {
                bury(&mut self.lifetimes, *key, cached, now, death);
                *key = 0;
            }
        }
    }

    /// What is cached now: (upper half or not, size, when it was filled).
    pub fn entries(&self) -> impl Iterator<Item = (bool, PageSize, u64)> {
        let present = self.second.keys.iter().zip(&self.cached).filter(|(key, _)| **key != 0);
        present.map(|(key, cached)| (Key(*key).is_upper(), Key(*key).size(), cached.born))
    }
    /// Lifetimes of the dead: (upper half or not, size, lifetimes).
    pub fn lifetimes(&self) -> impl Iterator<Item = (bool, PageSize, &Lifetimes)> {
        self.lifetimes.iter().enumerate().map(|(n, lifetimes)| (n >= 3, PageSize::ALL[n % 3], lifetimes))
    }
}

fn bury(lifetimes: &mut [Lifetimes; 6], key: u64, cached: &Cached, now: u64, death: Death) {
    let lived = now.saturating_sub(cached.born);
    lifetimes[Key(key).group()].dead[death as usize][(63 - (lived | 1).leading_zeros()) as usize] += 1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn level(entries: usize, ways: usize) -> LevelShape {
        LevelShape { entries, ways }
    }
    const TINY: TlbShape = TlbShape { data: level(2, 2), fetch: level(2, 1), second: level(4, 4) };
    const SPACE: Scope = Scope::Space(0);

    fn walked(frame: u64, note: u32) -> Walked {
        Walked { frame, note, moment: 9 }
    }
    /// Use an address as the engine does; what the look-up met.
    fn access(tlb: &mut Tlb, address: u64, scope: Scope, now: u64) -> Option<Missed> {
        let key = Key::new(address, PageSize::Small, scope);
        let mut hint = Hint::default();
        if tlb.touch(Side::Data, key, hint) {
            return None;
        }
        tlb.look_up(Side::Data, key, &mut hint, now, || walked(address >> 12, 0))
    }
    fn deaths(tlb: &Tlb, death: Death) -> u64 {
        tlb.lifetimes().map(|(_, _, lifetimes)| lifetimes.deaths(death)).sum()
    }
    fn holds(tlb: &Tlb, address: u64, scope: Scope) -> bool {
        tlb.peek(Key::new(address, PageSize::Small, scope)).is_some()
    }

    #[test]
    fn a_change_of_space_keeps_global_entries_only() {
        let mut tlb = Tlb::new(TINY);
        access(&mut tlb, 0x1000, SPACE, 0);
        access(&mut tlb, 0x2000, Scope::Global, 0);
        tlb.flush_non_global(10);
        assert_eq!((holds(&tlb, 0x1000, SPACE), holds(&tlb, 0x2000, Scope::Global)), (false, true));
        assert_eq!(deaths(&tlb, Death::Space), 1);
        tlb.flush_all(11);
        assert_eq!((tlb.entries().count(), deaths(&tlb, Death::All)), (0, 1));
    }

    #[test]
    fn spaces_do_not_see_each_others_entries() {
        let mut tlb = Tlb::new(TINY);
        access(&mut tlb, 0x1000, Scope::Space(1), 0);
        assert_eq!(access(&mut tlb, 0x1000, Scope::Space(2), 1), Some(Missed::Both));
        tlb.flush_page(0x1000, 2, 2);
        assert!(holds(&tlb, 0x1000, Scope::Space(1)), "a flush in another space leaves it");
        tlb.flush_space(1, 3);
        assert_eq!(tlb.entries().count(), 0);
    }

    #[test]
    fn a_large_page_is_flushed_by_any_of_its_addresses() {
        let mut tlb = Tlb::new(TINY);
        let key = |address| Key::new(address, PageSize::Large, SPACE);
        assert_eq!(key(0x20_1234), key(0x3f_ffff));
        assert_ne!(key(0x20_0000), Key::new(0x20_0000, PageSize::Small, SPACE));
        tlb.look_up(Side::Data, key(0x20_1234), &mut Hint::default(), 5, || walked(0x200, 7));
        assert_eq!(tlb.peek(key(0x3f_ffff)), Some(&Cached { frame: 0x200, note: 7, born: 5, moment: 9 }));
        tlb.flush_page(0x3f_f000, 0, 7);
        assert_eq!(tlb.peek(key(0x20_0000)), None);
    }

    #[test]
    fn halves_and_sizes_are_told_apart() {
        let mut tlb = Tlb::new(TINY);
        let upper = 0xffff_ffff_8020_0000;
        let mut fill = |address, size| {
            tlb.look_up(Side::Fetch, Key::new(address, size, Scope::Global), &mut Hint::default(), 0, || {
                walked(0, 0)
            });
        };
        fill(upper, PageSize::Large);
        fill(upper, PageSize::Giant);
        fill(0x7fff_ffff_f000, PageSize::Small);
        let mut kinds: Vec<_> = tlb.entries().map(|(upper, size, _)| (upper, size)).collect();
        kinds.sort_unstable();
        assert_eq!(kinds, [(false, PageSize::Small), (true, PageSize::Large), (true, PageSize::Giant)]);
    }

    #[test]
    fn lifetimes_fall_into_powers_of_two_by_cause() {
        let mut tlb = Tlb::new(TINY);
        for (page, death) in [(0x1000, 1), (0x2000, 4), (0x3000, 7), (0x4000, 1000)] {
            access(&mut tlb, page, SPACE, 0);
            tlb.flush_page(page, 0, death);
        }
        let (_, _, lifetimes) = tlb.lifetimes().next().unwrap();
        let lived = &lifetimes.dead[Death::Page as usize];
        assert_eq!((lived[0], lived[2], lived[9], lifetimes.fills), (1, 2, 1, 4));
    }

    #[test]
    fn the_first_level_is_smaller_and_costs_no_walk() {
        let mut tlb = Tlb::new(TINY);
        let touch = |tlb: &mut Tlb| (1..=3).map(|page| access(tlb, page << 12, SPACE, 0)).collect::<Vec<_>>();
        assert_eq!(touch(&mut tlb), [Some(Missed::Both); 3]);
        assert!(touch(&mut tlb).iter().all(|met| matches!(met, Some(Missed::First(_)))));
    }

    #[test]
    fn what_leaves_the_second_level_leaves_the_first_too() {
        let mut tlb = Tlb::new(TINY);
        let kept = Key::new(0x1000, PageSize::Small, SPACE);
        let mut hint = Hint::NONE;
        tlb.look_up(Side::Data, kept, &mut hint, 0, || walked(1, 0));
        for page in 2..=5 {
            assert!(tlb.touch(Side::Data, kept, hint), "hits in the first level do not reach the second");
            access(&mut tlb, page << 12, SPACE, 0);
        }
        assert!(!tlb.touch(Side::Data, kept, hint) && !holds(&tlb, 0x1000, SPACE));
        assert_eq!(deaths(&tlb, Death::Capacity), 1);
    }

    #[test]
    fn a_hint_is_never_believed_blindly() {
        let mut tlb = Tlb::new(TINY);
        let (one, two) = (Key::new(0x1000, PageSize::Small, SPACE), Key::new(0x2000, PageSize::Small, SPACE));
        let mut hint = Hint::default();
        tlb.look_up(Side::Data, one, &mut hint, 0, || walked(1, 0));
        assert!(tlb.touch(Side::Data, one, hint));
        assert!(!tlb.touch(Side::Data, two, hint));
        assert!(!tlb.touch(Side::Data, one, Hint(999)));
        tlb.flush_page(0x1000, 0, 1);
        assert!(!tlb.touch(Side::Data, one, hint));
    }

    proptest! {
        /// A fully associative second level against a list by use.
        #[test]
        fn it_behaves_as_a_list_by_use(steps in prop::collection::vec((0u64..8, 0u8..10), 1..200)) {
            let shape = TlbShape { data: level(1, 1), fetch: level(1, 1), second: level(4, 4) };
            let mut tlb = Tlb::new(shape);
            let mut list: Vec<u64> = Vec::new();
            let mut last = None;
            for (now, (page, what)) in steps.into_iter().enumerate() {
                let address = page << 12;
                if what == 0 {
                    tlb.flush_page(address, 0, now as u64);
                    list.retain(|&other| other != page);
                    last = last.filter(|&other| other != page);
                } else {
                    let met = access(&mut tlb, address, SPACE, now as u64);
                    prop_assert_eq!(met.is_none(), last == Some(page));
                    prop_assert_eq!(met == Some(Missed::Both), !list.contains(&page));
                    // The second level sees what the first misses.
                    if met.is_some() {
                        list.retain(|&other| other != page);
                        list.insert(0, page);
                        list.truncate(4);
                    }
                    last = Some(page);
                }
                for page in 0..8 {
                    prop_assert_eq!(holds(&tlb, page << 12, SPACE), list.contains(&page));
                }
            }
        }
    }
}
