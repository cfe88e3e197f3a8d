//! A direct-mapped memory-side cache in front of one node's memory.
//!
//! Slot = physical address mod size (the size need not be a power of two). Each miss is one of three:
//! *cold* (the line was never used), *capacity* (a fully associative cache of the same size misses too), *conflict*
//! (only the mapping is to blame): the classes of Hill, 1987. Conflicts are what placement can avoid.

use std::collections::HashMap;

use crate::cache::{Geometry, GeometryError};
use crate::{Access, LruShadow};

/// Why a line was not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Miss {
    /// It was never used before.
    Cold,
    /// Any cache of this size would have lost it.
    Capacity,
    /// Another line's use of its slot drove it out.
    Conflict {
        /// First byte of the line that was in the slot.
        evicted: u64,
    },
}

/// What an access met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The line was there.
    Hit,
    /// It was not, and now is.
    Miss(Miss),
}

/// Counts since the start or the last [`NearCache::take_statistics`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NearStatistics {
    /// All accesses.
    pub accesses: u64,
    /// First uses.
    pub cold: u64,
    /// Misses for want of room.
    pub capacity: u64,
    /// Misses for want of a better place.
    pub conflict: u64,
    /// Dirty lines written back to memory.
    pub written_back: u64,
}

impl NearStatistics {
    /// Conflicts per access, 0..=1; 0 without accesses.
    pub fn conflict_share(&self) -> f64 {
        if self.accesses == 0 { 0.0 } else { self.conflict as f64 / self.accesses as f64 }
    }
    /// Misses of all sorts.
    pub const fn misses(&self) -> u64 {
        self.cold + self.capacity + self.conflict
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Line number + 1; 0 is empty.
    line: u64,
    dirty: bool,
}

/// The cache, with its shadow and its history.
#[derive(Debug)]
pub struct NearCache {
    base: u64,
    line_shift: u32,
    lines: u64,
    slots: Vec<Slot>,
    shadow: LruShadow,
    /// One bit a line of memory: whether it was ever used.
    seen: Vec<u64>,
    /// Conflicts by region of slots, for the report's map of the cache.
    region_conflicts: Vec<u64>,
    region_accesses: Vec<u64>,
    /// Conflicts by the pair of frames that collided (the one that left, the one that came).
    pairs: HashMap<(u64, u64), u64>,
    statistics: NearStatistics,
}

/// Regions that the cache is divided into for reports.
const REGIONS: usize = 256;
/// Pairs of colliding frames that are remembered at the most; further ones only count.
const MAX_PAIRS: usize = 1 << 16;

impl NearCache {
    /// A cache of `size` bytes with lines of `line` bytes, for memory that begins at `base`. Slots are counted from physical
    /// address 0, as hardware does, so nodes at equal offsets collide or not as their addresses say.
    ///
    /// # Errors
    /// [`GeometryError`] where the line is no power of two or the size no multiple of it.
    pub fn new(base: u64, size: u64, line: u64) -> Result<Self, GeometryError> {
        let lines = Geometry { size, ways: 1, line }.sets()?;
        Ok(Self {
            base,
            line_shift: line.trailing_zeros(),
            lines,
            slots: vec![Slot::default(); lines as usize],
            shadow: LruShadow::new(lines as usize),
            seen: Vec::new(),
            region_conflicts: vec![0; REGIONS],
            region_accesses: vec![0; REGIONS],
            pairs: HashMap::new(),
            statistics: NearStatistics::default(),
        })
    }

    /// Access the line that holds the physical byte `address`.
    pub fn access(&mut self, address: u64, access: Access) -> Outcome {
        self.statistics.accesses += 1;
        let line = address >> self.line_shift;
        let index = if self.lines.is_power_of_two() { line & (self.lines - 1) } else { line % self.lines };
        let region = (index * REGIONS as u64 / self.lines) as usize;
        self.region_accesses[region] += 1;
        let in_shadow = self.shadow.touch(line);
        let slot = &mut self.slots[index as usize];
        if slot.line == line + 1 {
            slot.dirty |= access == Access::Write;
            return Outcome::Hit;
        }
        let old = core::mem::replace(slot, Slot { line: line + 1, dirty: access == Access::Write });
        if old.dirty {
            self.statistics.written_back += 1;
        }
        let miss = if self.first_use(line) {
            self.statistics.cold += 1;
            Miss::Cold
        } else if in_shadow {
            self.statistics.conflict += 1;
            self.region_conflicts[region] += 1;
            let evicted = old.line.saturating_sub(1) << self.line_shift;
            self.remember_pair(evicted >> 12, address >> 12);
            Miss::Conflict { evicted }
        } else {
            self.statistics.capacity += 1;
            Miss::Capacity
        };
        Outcome::Miss(miss)
    }

    fn first_use(&mut self, line: u64) -> bool {
        let offset = line.saturating_sub(self.base >> self.line_shift) as usize;
        let (word, bit) = (offset / 64, 1 << (offset % 64));
        if word >= self.seen.len() {
            self.seen.resize((word + 1).next_power_of_two(), 0);
        }
        let first = self.seen[word] & bit == 0;
        self.seen[word] |= bit;
        first
    }

    fn remember_pair(&mut self, left: u64, came: u64) {
        let room = self.pairs.len() < MAX_PAIRS;
        match self.pairs.get_mut(&(left, came)) {
            Some(count) => *count += 1,
            None if room => {
                self.pairs.insert((left, came), 1);
            }
            None => {}
        }
    }

    /// Counts since the last call; the cache's content stays.
    pub fn take_statistics(&mut self) -> NearStatistics {
        core::mem::take(&mut self.statistics)
    }
    /// Counts since the last [`NearCache::take_statistics`].
    pub const fn statistics(&self) -> NearStatistics {
        self.statistics
    }
    /// (accesses, conflicts) for each 1/256 of the slots.
    pub fn regions(&self) -> impl Iterator<Item = (u64, u64)> {
        self.region_accesses.iter().copied().zip(self.region_conflicts.iter().copied())
    }
    /// Colliding frames (the one that left, the one that came) and how often, the most frequent first, `count` at the most.
    pub fn worst_pairs(&self, count: usize) -> Vec<((u64, u64), u64)> {
        let mut pairs: Vec<_> = self.pairs.iter().map(|(&pair, &n)| (pair, n)).collect();
        pairs.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        pairs.truncate(count);
        pairs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_addresses_a_cache_apart_conflict_and_neighbours_do_not() {
        let mut cache = NearCache::new(0, 1 << 20, 64).unwrap();
        for _ in 0..10 {
            cache.access(0, Access::Read);
            cache.access(1 << 20, Access::Read);
            cache.access(64, Access::Read);
        }
        let statistics = cache.take_statistics();
        assert_eq!((statistics.cold, statistics.conflict, statistics.capacity), (3, 18, 0));
        assert_eq!(cache.worst_pairs(1)[0].1, 9);
    }

    #[test]
    fn a_sweep_over_twice_the_cache_lacks_room_and_does_not_conflict() {
        let mut cache = NearCache::new(0, 1 << 16, 64).unwrap();
        for _ in 0..3 {
            for line in 0..2048 {
                cache.access(line * 64, Access::Write);
            }
        }
        let statistics = cache.statistics();
        assert_eq!((statistics.cold, statistics.capacity, statistics.conflict), (2048, 4096, 0));
        assert_eq!(statistics.written_back, 2048 * 3 - 1024);
    }

    #[test]
    fn a_cache_of_three_quarters_of_a_power_of_two_uses_all_its_slots() {
        let mut cache = NearCache::new(0, 3 << 18, 64).unwrap();
        let lines = (3 << 18) / 64;
        for _ in 0..2 {
            for line in 0..lines {
                cache.access(line * 64, Access::Read);
            }
        }
        assert_eq!(cache.statistics().misses(), lines, "the second sweep hits everywhere");
    }

    #[test]
    fn random_placement_misses_as_the_formula_says() {
        // λ = 1: 1 - (1 - e^-1) = 36.8% of uniform references to n = m pages at random frames miss in the long run.
        let (pages, slots) = (4096u64, 4096u64);
        let mut state = 88_172_645_463_325_252u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let frames: Vec<u64> = (0..pages).map(|_| random() % (slots * 1024)).collect();
        let mut cache = NearCache::new(0, slots * 64, 64).unwrap();
        for _ in 0..20 * pages {
            cache.access(frames[(random() % pages) as usize] * 64, Access::Read);
        }
        cache.take_statistics();
        for _ in 0..100 * pages {
            cache.access(frames[(random() % pages) as usize] * 64, Access::Read);
        }
        let statistics = cache.take_statistics();
        let share = statistics.misses() as f64 / statistics.accesses as f64;
        assert!((share - 0.368).abs() < 0.02, "{share}");
        assert_eq!(statistics.capacity, 0, "they would all fit");
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_map_of_slots(lines in prop::collection::vec(0u64..64, 1..300)) {
            let mut cache = NearCache::new(0, 64 * 7, 64).unwrap();
            let mut slots = [None; 7];
            for line in lines {
                let hit = slots[(line % 7) as usize] == Some(line);
                slots[(line % 7) as usize] = Some(line);
                prop_assert_eq!(cache.access(line * 64, Access::Read) == Outcome::Hit, hit);
            }
        }
    }
}
