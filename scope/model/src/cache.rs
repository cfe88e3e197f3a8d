//! A set-associative cache with least-recently-used replacement.
//!
//! Tags of a set are in order of use, most recent first: a hit moves its tag to the front, a miss
//! drops the last. For the few ways of a cache, shifting words is faster than a list.

use crate::AccessKind;

/// The shape of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Bytes.
    pub size: u64,
    /// Lines per set.
    pub ways: usize,
    /// Bytes in a line, a power of two.
    pub line: u64,
}

/// Reason why a shape is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GeometryError {
    /// A line's size has to be a power of two of at least 8 bytes.
    Line(u64),
    /// The size has to be a multiple of line × ways, with at least one set.
    Size(u64),
}

impl core::fmt::Display for GeometryError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Line(line) => {
                write!(f, "a cache line of {line} bytes: it has to be a power of two, 8 or more")
            }
            Self::Size(size) => {
                write!(f, "a cache of {size} bytes: it has to be a multiple of line size x ways")
            }
        }
    }
}

impl std::error::Error for GeometryError {}

impl Geometry {
    /// Returns the number of sets.
    ///
    /// # Errors
    /// [`GeometryError`] if the figures do not fit each other.
    pub fn sets(&self) -> Result<u64, GeometryError> {
        if !self.line.is_power_of_two() || self.line < 8 {
            return Err(GeometryError::Line(self.line));
        }
        let per_set = self.line * self.ways as u64;
        if per_set == 0 || self.size < per_set || !self.size.is_multiple_of(per_set) {
            return Err(GeometryError::Size(self.size));
        }
        Ok(self.size / per_set)
    }
}

/// The result of a look-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// The line was there.
    Hit,
    /// The line was not there and now is; a dirty line was written back to make room, if any.
    Miss {
        /// First byte of the dirty line that was written back.
        written_back: Option<u64>,
    },
}

const DIRTY: u64 = 1 << 63;
const EMPTY: u64 = u64::MAX;

/// A write-back, write-allocate cache.
#[derive(Debug)]
pub struct SetAssociative {
    line_shift: u32,
    sets: u64,
    ways: usize,
    tags: Vec<u64>,
    hits: u64,
    misses: u64,
}

impl SetAssociative {
    /// Makes an empty cache.
    ///
    /// # Errors
    /// [`GeometryError`] if the figures do not fit each other.
    pub fn new(geometry: Geometry) -> Result<Self, GeometryError> {
        let sets = geometry.sets()?;
        Ok(Self {
            line_shift: geometry.line.trailing_zeros(),
            sets,
            ways: geometry.ways,
            tags: vec![EMPTY; sets as usize * geometry.ways],
            hits: 0,
            misses: 0,
        })
    }

    /// Looks up an address, and fills on a miss.
    pub fn access(&mut self, address: u64, access: AccessKind) -> Lookup {
        let line = address >> self.line_shift;
        let set = if self.sets.is_power_of_two() { line & (self.sets - 1) } else { line % self.sets };
        let dirty = if access == AccessKind::Write { DIRTY } else { 0 };
        let start = set as usize * self.ways;
        let tags = &mut self.tags[start..start + self.ways];
        if let Some(way) = tags.iter().position(|&tag| tag & !DIRTY == line && tag != EMPTY) {
            let tag = tags[way] | dirty;
            tags.copy_within(..way, 1);
            tags[0] = tag;
            self.hits += 1;
            return Lookup::Hit;
        }
        self.misses += 1;
        let victim = tags[self.ways - 1];
        tags.copy_within(..self.ways - 1, 1);
        tags[0] = line | dirty;
        let written_back =
            (victim != EMPTY && victim & DIRTY != 0).then(|| (victim & !DIRTY) << self.line_shift);
        Lookup::Miss { written_back }
    }

    /// Returns the number of look-ups that hit.
    pub const fn hits(&self) -> u64 {
        self.hits
    }
    /// Returns the number of look-ups that missed.
    pub const fn misses(&self) -> u64 {
        self.misses
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cache(size: u64, ways: usize) -> SetAssociative {
        SetAssociative::new(Geometry { size, ways, line: 64 }).unwrap()
    }

    #[test]
    fn two_lines_of_one_set_fit_two_ways_but_not_one() {
        for (ways, hits) in [(1, 0), (2, 8)] {
            let mut cache = cache(1024, ways);
            for _ in 0..5 {
                cache.access(0, AccessKind::Read);
                cache.access(1024, AccessKind::Read);
            }
            assert_eq!(cache.hits(), hits, "{ways} ways");
        }
    }

    #[test]
    fn the_least_recently_used_line_leaves() {
        let mut cache = cache(256, 4);
        for line in [0, 1, 2, 3, 0, 4] {
            cache.access(line * 64, AccessKind::Read);
        }
        assert_eq!(cache.access(0, AccessKind::Read), Lookup::Hit, "line 0 was used again");
        assert!(matches!(cache.access(64, AccessKind::Read), Lookup::Miss { .. }), "line 1 was the oldest");
    }

    #[test]
    fn a_dirty_line_is_written_back_once() {
        let mut cache = cache(64, 1);
        cache.access(0, AccessKind::Write);
        assert_eq!(cache.access(64, AccessKind::Read), Lookup::Miss { written_back: Some(0) });
        assert_eq!(cache.access(128, AccessKind::Read), Lookup::Miss { written_back: None });
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        assert!(SetAssociative::new(Geometry { size: 1000, ways: 1, line: 64 }).is_err());
        assert!(SetAssociative::new(Geometry { size: 1024, ways: 1, line: 48 }).is_err());
        assert!(SetAssociative::new(Geometry { size: 1024, ways: 0, line: 64 }).is_err());
        assert!(SetAssociative::new(Geometry { size: 192, ways: 1, line: 64 }).is_ok(), "three sets");
    }

    proptest! {
        #[test]
        fn one_set_behaves_as_a_list_by_use(lines in prop::collection::vec(0u64..12, 1..200)) {
            let mut cache = cache(64 * 8, 8);
            let mut naive: Vec<u64> = Vec::new();
            for line in lines {
                let hit = naive.contains(&line);
                naive.retain(|&l| l != line);
                naive.insert(0, line);
                naive.truncate(8);
                // All lines fall into the one set that 8 ways of 8 lines make.
                prop_assert_eq!(cache.access(line * 64, AccessKind::Read) == Lookup::Hit, hit);
            }
        }
    }
}
