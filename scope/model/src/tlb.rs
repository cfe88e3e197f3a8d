//! The translation caches of one CPU, which record how long each entry lived, and what ended it.
//!
//! There are two levels, as in current x86 processors: small first levels for data and for
//! instructions, whose evictions cost little, and a second level for both, which decides how long a
//! translation stays reachable. The second level includes the first: an entry that leaves the
//! second level is gone. A lifetime is counted from the fill to the second level's loss of the
//! entry, in the caller's unit of time (usually instructions). Entries are tagged by address space
//! (PCID); global ones match any.
//!
//! Replacement is by least recent use, with a stamp for each entry instead of a list. So a hit
//! writes one number, however many ways there are, and the caller's [`Hint`] finds the entry
//! without a search. Only misses search a set.

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

    /// Returns log2 of the bytes.
    pub const fn shift(self) -> u32 {
        match self {
            Self::Small => 12,
            Self::Large => 21,
            Self::Giant => 30,
        }
    }
}

/// The address spaces in which a translation is valid.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scope {
    /// In all spaces: the translation survives a change of address space.
    Global,
    /// In the space with this PCID (0 to 4095).
    Space(u16),
}

/// A page and its address spaces, in one word that look-ups compare. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TlbKey(u64);

/// Page numbers of 57-bit addresses.
const NUMBER: u64 = (1 << 45) - 1;
const SIZE_SHIFT: u32 = 45;
const SPACE_SHIFT: u32 = 48;
const GLOBAL: u64 = 1 << 60;
const VALID: u64 = 1 << 61;

impl TlbKey {
    /// Returns the key of the page that holds `address`.
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
    /// Returns the page's first address.
    pub const fn address(self) -> u64 {
        let upper = if self.is_upper() { !0 << 57 } else { 0 };
        upper | self.number() << self.size().shift()
    }
    /// Returns the page's size.
    pub const fn size(self) -> PageSize {
        PageSize::ALL[(self.0 >> SIZE_SHIFT & 3) as usize]
    }
    /// Returns all keys under which `address` may be found in space 0 or globally.
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
    /// Returns whether the page is in the upper half of addresses.
    const fn is_upper(self) -> bool {
        self.number() >> (SIZE_SHIFT - 1 - (self.size().shift() - 12)) & 1 != 0
    }
    /// Returns the kind of the entry, for its statistics: half and size.
    const fn group(self) -> usize {
        self.is_upper() as usize * 3 + (self.0 >> SIZE_SHIFT & 3) as usize
    }
}

/// The cause of an entry's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Death {
    /// Another entry needed its place.
    Capacity,
    /// The entry was flushed by its address (INVLPG, INVPCID type 0).
    Page,
    /// All entries that are not global were flushed (a write to CR3, INVPCID type 1 or 3).
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
    /// Replacement in the second level; the first levels replace the least recently used entry.
    pub replacement: Replacement,
}

impl LevelShape {
    /// Returns whether the number of sets is a power of two.
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
    /// `dead[cause][n]`: entries that died of `cause` after 2^n to 2^(n+1) - 1 units (n = 0: less
    /// than 2).
    pub dead: [[u64; 64]; 4],
}

impl Lifetimes {
    const NONE: Self = Self { fills: 0, dead: [[0; 64]; 4] };

    /// Returns the number of entries that died of `death`.
    pub fn deaths(&self, death: Death) -> u64 {
        self.dead[death as usize].iter().sum()
    }
}

/// A cached translation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cached {
    /// The frame's number.
    pub frame: u64,
    /// The caller's note at the time of the fill.
    pub note: u32,
    /// Time of the fill.
    pub born: u64,
    /// The same time on another clock of the caller.
    pub moment: u64,
}

/// The result of a walk of the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Walked {
    /// The frame's number.
    pub frame: u64,
    /// Anything that the caller wants to find again.
    pub note: u32,
    /// The present time on the caller's other clock.
    pub moment: u64,
}

/// Rule for the entry of a set that makes room.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Replacement {
    /// The least recently used one.
    #[default]
    Lru,
    /// Pseudo-LRU by one bit for each way: the first way that was not used since all others were.
    PseudoLru,
}

/// A bit of an entry's note: its end is [told](Tlb::take_told).
pub const TOLD: u32 = 1 << 31;

/// The end of an entry that had [`TOLD`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// The entry's key.
    pub key: TlbKey,
    /// The cached translation.
    pub cached: Cached,
    /// When it ended, on the clock of [`Cached::born`].
    pub now: u64,
}

#[derive(Debug)]
struct Level {
    replacement: Replacement,
    ways: usize,
    set_mask: usize,
    /// By set; 0 is an empty place.
    keys: Vec<u64>,
    stamps: Vec<u64>,
}

impl Level {
    fn new(shape: LevelShape, replacement: Replacement) -> Self {
        assert!(shape.is_valid(), "{shape:?}");
        Self {
            replacement,
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
    /// Returns the place that a new entry for `key` takes: an empty one or the least recently used.
    fn victim(&self, key: u64) -> usize {
        self.set(key).min_by_key(|&at| if self.keys[at] == 0 { 0 } else { self.stamps[at] }).unwrap_or(0)
    }
    /// Notes that the entry at a place was used.
    fn used(&mut self, key: u64, at: usize, clock: u64) {
        if self.replacement == Replacement::Lru {
            self.stamps[at] = clock;
            return;
        }
        self.stamps[at] = 1;
        let set = self.set(key);
        if self.stamps[set.clone()].iter().all(|&stamp| stamp == 1) {
            self.stamps[set].fill(0);
            self.stamps[at] = 1;
        }
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

/// The first level that a look-up asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FirstLevel {
    /// Loads and stores.
    Data,
    /// Instructions.
    Fetch,
}

/// The place where a look-up found its entry last time: the next look-up tries it first. Any value
/// is correct, but most values are slow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hint(u32);

impl Hint {
    /// The hint for a key that was never found.
    pub const NONE: Self = Self(u32::MAX);
}

/// The result of a look-up that the first level missed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missed {
    /// The second level had the translation.
    First(Cached),
    /// Neither level had the translation. Both have it now.
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
    told: Vec<Ended>,
}

const NOTHING: Cached = Cached { frame: 0, note: 0, born: 0, moment: 0 };

impl Tlb {
    /// Makes empty caches.
    ///
    /// # Panics
    /// If a level is not [valid](LevelShape::is_valid).
    pub fn new(shape: TlbShape) -> Self {
        let first = [shape.data, shape.fetch].map(|level| Level::new(level, Replacement::Lru));
        Self {
            first,
            second: Level::new(shape.second, shape.replacement),
            cached: vec![NOTHING; shape.second.entries],
            clock: 0,
            lifetimes: [Lifetimes::NONE; 6],
            told: Vec::new(),
        }
    }

    /// Returns the ends, since the last call, of entries whose note had [`TOLD`].
    pub fn take_told(&mut self) -> Vec<Ended> {
        core::mem::take(&mut self.told)
    }
    /// Returns whether there are such ends.
    pub fn has_told(&self) -> bool {
        !self.told.is_empty()
    }
    /// Returns the cached translations that have [`TOLD`].
    pub fn to_tell(&self) -> impl Iterator<Item = (TlbKey, Cached)> {
        let present = self.second.keys.iter().zip(&self.cached).filter(|(key, _)| **key != 0);
        present.filter(|(_, cached)| cached.note & TOLD != 0).map(|(key, cached)| (TlbKey(*key), *cached))
    }

    /// Returns whether the first level of `side` has `key` at `hint`; the entry is then the most
    /// recently used.
    #[inline]
    pub fn touch(&mut self, side: FirstLevel, key: TlbKey, hint: Hint) -> bool {
        let level = &mut self.first[side as usize];
        let hit = level.keys.get(hint.0 as usize) == Some(&key.0);
        if hit && let Some(stamp) = level.stamps.get_mut(hint.0 as usize) {
            self.clock += 1;
            *stamp = self.clock;
        }
        hit
    }

    /// Looks `key` up after [`Tlb::touch`] has missed; if neither level has it, fills both with the
    /// result of `walk`. `None`: the first level had it in another place than the hint's.
    pub fn look_up(
        &mut self,
        side: FirstLevel,
        key: TlbKey,
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
            self.second.used(key.0, at, self.clock);
            return Some(Missed::First(self.cached[at]));
        }
        let at = self.second.victim(key.0);
        let old = self.second.keys[at];
        if old != 0 {
            for first in &mut self.first {
                first.forget(old);
            }
            let mut graves = Graves { lifetimes: &mut self.lifetimes, told: &mut self.told };
            graves.bury(old, &self.cached[at], now, Death::Capacity);
        }
        let Walked { frame, note, moment } = walk();
        self.second.keys[at] = key.0;
        self.second.used(key.0, at, self.clock);
        self.cached[at] = Cached { frame, note, born: now, moment };
        self.lifetimes[key.group()].fills += 1;
        Some(Missed::Both)
    }

    /// Returns the cached translation for `key`. The look-up does not count as a use: the order
    /// stays.
    pub fn peek(&self, key: TlbKey) -> Option<&Cached> {
        self.second.find(key.0).map(|at| &self.cached[at])
    }

    /// Changes the caller's note of the cached translation for `key`.
    pub fn note(&mut self, key: TlbKey, note: u32) {
        if let Some(at) = self.second.find(key.0) {
            self.cached[at].note = note & !TOLD | self.cached[at].note & TOLD;
        }
    }

    /// Flushes as INVLPG does: the entries of all sizes of `address`, in `space` or global.
    pub fn flush_page(&mut self, address: u64, space: u16, now: u64) {
        for size in PageSize::ALL {
            for scope in [Scope::Global, Scope::Space(space)] {
                self.flush_key(TlbKey::new(address, size, scope), now);
            }
        }
    }
    /// Flushes one entry, if it is there.
    pub fn flush_key(&mut self, key: TlbKey, now: u64) {
        for first in &mut self.first {
            first.forget(key.0);
        }
        if let Some(at) = self.second.find(key.0) {
            self.second.keys[at] = 0;
            let mut graves = Graves { lifetimes: &mut self.lifetimes, told: &mut self.told };
            graves.bury(key.0, &self.cached[at], now, Death::Page);
        }
    }
    /// Flushes all entries of `space` that are not global.
    pub fn flush_space(&mut self, space: u16, now: u64) {
        self.flush(now, Death::Space, |key| key.is_global() || key.space() != space);
    }
    /// Flushes all entries that are not global.
    pub fn flush_non_global(&mut self, now: u64) {
        self.flush(now, Death::Space, TlbKey::is_global);
    }
    /// Flushes all entries.
    pub fn flush_all(&mut self, now: u64) {
        self.flush(now, Death::All, |_| false);
    }

    fn flush(&mut self, now: u64, death: Death, keeps: impl Fn(TlbKey) -> bool) {
        for first in &mut self.first {
            first.retain(|key| keeps(TlbKey(key)));
        }
        let mut graves = Graves { lifetimes: &mut self.lifetimes, told: &mut self.told };
        for (key, cached) in self.second.keys.iter_mut().zip(&self.cached) {
            if *key != 0 && !keeps(TlbKey(*key)) {
                graves.bury(*key, cached, now, death);
                *key = 0;
            }
        }
    }

    /// Returns the cached entries: (upper half or not, size, when it was filled).
    pub fn entries(&self) -> impl Iterator<Item = (bool, PageSize, u64)> {
        let present = self.second.keys.iter().zip(&self.cached).filter(|(key, _)| **key != 0);
        present.map(|(key, cached)| (TlbKey(*key).is_upper(), TlbKey(*key).size(), cached.born))
    }
    /// Returns lifetimes of the dead: (upper half or not, size, lifetimes).
    pub fn lifetimes(&self) -> impl Iterator<Item = (bool, PageSize, &Lifetimes)> {
        self.lifetimes.iter().enumerate().map(|(n, lifetimes)| (n >= 3, PageSize::ALL[n % 3], lifetimes))
    }
}

/// Statistics of ended entries.
struct Graves<'a> {
    lifetimes: &'a mut [Lifetimes; 6],
    told: &'a mut Vec<Ended>,
}

impl Graves<'_> {
    fn bury(&mut self, key: u64, cached: &Cached, now: u64, death: Death) {
        let lived = now.saturating_sub(cached.born);
        let bucket = (63 - (lived | 1).leading_zeros()) as usize;
        self.lifetimes[TlbKey(key).group()].dead[death as usize][bucket] += 1;
        if cached.note & TOLD != 0 {
            self.told.push(Ended { key: TlbKey(key), cached: *cached, now });
        }
    }
}

#[cfg(test)]
mod tests;
