//! A direct-mapped memory-side cache in front of one node's memory.
//!
//! Slot = physical address mod size. Each miss is one of three: *cold* (the line was never used),
//! *capacity* (a fully associative cache of the same size misses too), *conflict* (only the mapping
//! causes it): the classes of Hill, 1987. Placement can avoid conflicts.

use std::collections::HashMap;

use crate::cache::{Geometry, GeometryError};
use crate::{AccessKind, LruShadow};

/// The reason why a line was not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Miss {
    /// The line was never used before.
    Cold,
    /// Any cache of this size would have lost it.
    Capacity,
    /// Another line's use of its slot drove it out.
    Conflict {
        /// First byte of the line that was in the slot.
        evicted: u64,
    },
}

/// The result of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessOutcome {
    /// The line was there.
    Hit,
    /// The line was not there, and now is.
    Miss(Miss),
}

/// Counts since the start or the last [`NearCache::take_statistics`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NearStatistics {
    /// All accesses.
    pub accesses: u64,
    /// First uses.
    pub cold: u64,
    /// Misses because the cache is too small.
    pub capacity: u64,
    /// Misses because of the line's place.
    pub conflict: u64,
    /// Dirty lines written back to memory.
    pub written_back: u64,
}

impl NearStatistics {
    /// Returns conflicts per access, 0..=1; 0 without accesses.
    pub fn conflict_share(&self) -> f64 {
        if self.accesses == 0 { 0.0 } else { self.conflict as f64 / self.accesses as f64 }
    }
    /// Returns the number of all misses.
    pub const fn misses(&self) -> u64 {
        self.cold + self.capacity + self.conflict
    }
}

/// Marks a slot whose line was written.
const DIRTY: u32 = 1 << 31;

/// The cache, with its shadow and its history.
#[derive(Debug)]
pub struct NearCache {
    base: u64,
    line_shift: u32,
    lines: u64,
    /// Line number + 1, and [`DIRTY`]; 0 is empty.
    slots: Vec<u32>,
    shadow: LruShadow,
    /// One bit per line of memory: whether it was ever used.
    seen: Vec<u64>,
    /// Accesses and conflicts by part of the slots, for the report's map of the cache.
    buckets: Vec<(u64, u64)>,
    bucket_shift: u32,
    /// Conflicts by the pair of frames that collided (the one that left, the one that came).
    pairs: HashMap<(u64, u64), u64>,
    statistics: NearStatistics,
}

/// Largest number of parts into which reports divide the cache.
const BUCKETS: u64 = 1024;
/// Largest number of pairs of colliding frames that are remembered; further ones are only counted.
const MAX_PAIRS: usize = 1 << 16;

impl NearCache {
    /// Makes a cache of `size` bytes with lines of `line` bytes, for memory of the addresses `base`
    /// to `end`. Slots are counted from physical address 0, as in hardware. So addresses at equal
    /// offsets of two nodes collide only if their physical addresses do.
    ///
    /// # Errors
    /// [`GeometryError`] if the size is no power of two of lines.
    ///
    /// # Panics
    /// When there is no memory, or 2^31 - 1 lines of it or more.
    pub fn new(base: u64, end: u64, size: u64, line: u64) -> Result<Self, GeometryError> {
        let lines = Geometry { size, ways: 1, line }.sets()?;
        if !lines.is_power_of_two() {
            return Err(GeometryError::Size(size));
        }
        let memory = ((end - base) / line) as usize;
        assert!(memory < (DIRTY - 1) as usize, "a memory of {memory} lines");
        Ok(Self {
            base,
            line_shift: line.trailing_zeros(),
            lines,
            slots: vec![0; lines as usize],
            shadow: LruShadow::new(lines as usize, memory),
            seen: vec![0; memory.div_ceil(64)],
            buckets: vec![(0, 0); lines.min(BUCKETS) as usize],
            bucket_shift: (lines / lines.min(BUCKETS)).trailing_zeros(),
            pairs: HashMap::new(),
            statistics: NearStatistics::default(),
        })
    }

    /// Accesses the line that holds the physical byte `address`.
    ///
    /// # Panics
    /// When the address is not in this memory.
    pub fn access(&mut self, address: u64, access: AccessKind) -> AccessOutcome {
        self.statistics.accesses += 1;
        // Lines are numbered from the memory's base; the base is a multiple of a line, but slots
        // count from address 0.
        let line = ((address - self.base) >> self.line_shift) as u32;
        let index = (address >> self.line_shift & (self.lines - 1)) as usize;
        let bucket = index >> self.bucket_shift;
        self.buckets[bucket].0 += 1;
        let in_shadow = self.shadow.touch(line);
        let dirty = if access == AccessKind::Write { DIRTY } else { 0 };
        let slot = &mut self.slots[index];
        if *slot & !DIRTY == line + 1 {
            *slot |= dirty;
            return AccessOutcome::Hit;
        }
        let old = core::mem::replace(slot, (line + 1) | dirty);
        if old & DIRTY != 0 {
            self.statistics.written_back += 1;
        }
        let miss = if self.first_use(line) {
            self.statistics.cold += 1;
            Miss::Cold
        } else if in_shadow {
            self.statistics.conflict += 1;
            self.buckets[bucket].1 += 1;
            // A line that was used before has lost its slot to another line, so the slot is not
            // empty.
            let evicted = self.base + (u64::from((old & !DIRTY).saturating_sub(1)) << self.line_shift);
            self.remember_pair(evicted >> 12, address >> 12);
            Miss::Conflict { evicted }
        } else {
            self.statistics.capacity += 1;
            Miss::Capacity
        };
        AccessOutcome::Miss(miss)
    }

    fn first_use(&mut self, line: u32) -> bool {
        let word = &mut self.seen[line as usize / 64];
        let bit = 1 << (line % 64);
        let first = *word & bit == 0;
        *word |= bit;
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

    /// Returns the counts since the last call; the cache's content stays.
    pub fn take_statistics(&mut self) -> NearStatistics {
        core::mem::take(&mut self.statistics)
    }
    /// Returns the counts since the last [`NearCache::take_statistics`].
    pub const fn statistics(&self) -> NearStatistics {
        self.statistics
    }
    /// Returns (accesses, conflicts, slots that hold a line) of each of at most 1,024 equal parts
    /// of the slots, in order.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let occupied = self.slots.chunks(1 << self.bucket_shift);
        let occupied = occupied.map(|slots| slots.iter().filter(|&&slot| slot != 0).count() as u64);
        self.buckets
            .iter()
            .zip(occupied)
            .map(|(&(accesses, conflicts), occupied)| (accesses, conflicts, occupied))
    }
    /// Returns the number of slots.
    pub const fn lines(&self) -> u64 {
        self.lines
    }
    /// Returns colliding frames (the one that left, the one that came) and how often, the most
    /// frequent first, at most `count`.
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
        let mut cache = NearCache::new(0, 1 << 30, 1 << 20, 64).unwrap();
        for _ in 0..10 {
            cache.access(0, AccessKind::Read);
            cache.access(1 << 20, AccessKind::Read);
            cache.access(64, AccessKind::Read);
        }
        let statistics = cache.take_statistics();
        assert_eq!((statistics.cold, statistics.conflict, statistics.capacity), (3, 18, 0));
        assert_eq!(cache.worst_pairs(1)[0].1, 9);
    }

    #[test]
    fn a_sweep_over_twice_the_cache_lacks_room_and_does_not_conflict() {
        let mut cache = NearCache::new(0, 1 << 30, 1 << 16, 64).unwrap();
        for _ in 0..3 {
            for line in 0..2048 {
                cache.access(line * 64, AccessKind::Write);
            }
        }
        let statistics = cache.statistics();
        assert_eq!((statistics.cold, statistics.capacity, statistics.conflict), (2048, 4096, 0));
        assert_eq!(statistics.written_back, 2048 * 3 - 1024);
    }

    #[test]
    fn sizes_that_are_no_power_of_two_are_refused() {
        assert_eq!(NearCache::new(0, 1 << 30, 3 << 18, 64).unwrap_err(), GeometryError::Size(3 << 18));
    }

    #[test]
    fn slots_count_from_address_zero_whatever_the_base() {
        let base = (1 << 20) + (1 << 15);
        let mut cache = NearCache::new(base, 1 << 22, 1 << 16, 64).unwrap();
        cache.access(base, AccessKind::Read);
        let used: Vec<_> =
            cache.buckets().map(|(accesses, _, occupied)| (accesses, occupied)).enumerate().collect();
        assert_eq!(used.len(), 1024);
        assert!(used.iter().all(|&(n, counts)| counts == if n == 512 { (1, 1) } else { (0, 0) }));
    }

    #[test]
    fn what_was_driven_out_is_named_and_its_bucket_counts() {
        let base = 1 << 24;
        let mut cache = NearCache::new(base, 1 << 26, 1 << 20, 64).unwrap();
        cache.access(base + 64, AccessKind::Write);
        cache.access(base + (1 << 20) + 64, AccessKind::Read);
        let evicted = base + (1 << 20) + 64;
        assert_eq!(
            cache.access(base + 64, AccessKind::Read),
            AccessOutcome::Miss(Miss::Conflict { evicted })
        );
        assert_eq!(cache.statistics().written_back, 1);
        // Written after it had come: it has to be written back too.
        cache.access(base + 64, AccessKind::Write);
        cache.access(base + (1 << 20) + 64, AccessKind::Read);
        assert_eq!(cache.statistics().written_back, 2);
        assert_eq!(cache.buckets().map(|(_, conflicts, _)| conflicts).sum::<u64>(), 2);
    }

    #[test]
    fn random_placement_misses_as_the_formula_says() {
        // λ = 1: 1 - (1 - e^-1) = 36.8% of uniform references to n = m pages at random frames miss
        // in the long run.
        let (pages, slots) = (4096u64, 4096u64);
        let mut state = 88_172_645_463_325_252u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let frames: Vec<u64> = (0..pages).map(|_| random() % (slots * 1024)).collect();
        let mut cache = NearCache::new(0, slots * 1024 * 64, slots * 64, 64).unwrap();
        for _ in 0..20 * pages {
            cache.access(frames[(random() % pages) as usize] * 64, AccessKind::Read);
        }
        cache.take_statistics();
        for _ in 0..100 * pages {
            cache.access(frames[(random() % pages) as usize] * 64, AccessKind::Read);
        }
        let statistics = cache.take_statistics();
        let share = statistics.misses() as f64 / statistics.accesses as f64;
        assert!((share - 0.368).abs() < 0.02, "{share}");
        assert_eq!(statistics.capacity, 0, "they would all fit");
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_map_of_slots(lines in prop::collection::vec(0u64..64, 1..300)) {
            let mut cache = NearCache::new(0, 64 * 64, 64 * 8, 64).unwrap();
            let mut slots = [None; 8];
            for line in lines {
                let hit = slots[(line % 8) as usize] == Some(line);
                slots[(line % 8) as usize] = Some(line);
                prop_assert_eq!(cache.access(line * 64, AccessKind::Read) == AccessOutcome::Hit, hit);
            }
        }
    }
}
