//! Coverage: which code of a kernel ran, and nothing else. This is the second way to observe a
//! guest. The guest runs at nearly full speed.

use serde::{Deserialize, Serialize};

/// Half-open ranges of addresses in order, no two of which touch.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Ranges(Vec<(u64, u64)>);

impl FromIterator<(u64, u64)> for Ranges {
    /// Joins ranges in any order, which may overlap. Empty ones are left out.
    fn from_iter<I: IntoIterator<Item = (u64, u64)>>(all: I) -> Self {
        let mut all: Vec<(u64, u64)> = all.into_iter().filter(|(start, end)| start < end).collect();
        all.sort_unstable();
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (start, end) in all {
            match ranges.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => ranges.push((start, end)),
            }
        }
        Self(ranges)
    }
}

impl Ranges {
    /// Returns the ranges.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().copied()
    }
    /// Returns the ranges that are in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.iter().chain(other.iter()).collect()
    }
    /// Returns the number of bytes in all ranges.
    pub fn bytes(&self) -> u64 {
        self.iter().map(|(start, end)| end - start).sum()
    }
    /// Returns the number of bytes of the ranges inside `start..end`.
    pub fn bytes_in(&self, start: u64, end: u64) -> u64 {
        let first = self.0.partition_point(|&(_, last)| last <= start);
        let inside = self.0[first..].iter().take_while(|&&(begin, _)| begin < end);
        inside.map(|&(begin, last)| last.min(end) - begin.max(start)).sum()
    }
    /// Returns the ranges with each address moved down by `distance` (modulo 2^64: up, for a
    /// negative one in two's complement).
    #[must_use]
    pub fn moved_down(&self, distance: u64) -> Self {
        self.iter().map(|(start, end)| (start.wrapping_sub(distance), end.wrapping_sub(distance))).collect()
    }
}

/// Code that ran at least once, by virtual address. A block that an exception ended early counts
/// whole.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Executed {
    /// [`VERSION`](crate::VERSION).
    pub version: u32,
    /// Code in the kernel's half.
    pub kernel: Ranges,
    /// Code in the other half, before our kernel published itself: firmware, and the kernel's
    /// entry, which runs at its physical address.
    pub early: Ranges,
    /// Distance of our kernel's image from its link address; `None` if the kernel never published
    /// it.
    pub slide: Option<u64>,
}

crate::in_a_file!(Executed);

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(all: &[(u64, u64)]) -> Ranges {
        all.iter().copied().collect()
    }

    #[test]
    fn ranges_that_touch_are_one() {
        assert_eq!(ranges(&[(8, 12), (0, 4), (4, 8), (20, 20), (30, 40), (32, 34)]).0, [(0, 12), (30, 40)]);
        assert_eq!(ranges(&[(0, 4)]).union(&ranges(&[(2, 6), (9, 10)])).bytes(), 7);
    }

    #[test]
    fn bytes_of_a_part_are_those_inside_it() {
        let all = ranges(&[(10, 20), (30, 40), (50, 60)]);
        for (start, end, bytes) in
            [(0, 100, 30), (15, 35, 10), (20, 30, 0), (12, 14, 2), (60, 70, 0), (59, 70, 1)]
        {
            assert_eq!(all.bytes_in(start, end), bytes, "{start}..{end}");
        }
    }

    #[test]
    fn addresses_move_in_either_direction() {
        assert_eq!(ranges(&[(0x30, 0x40)]).moved_down(0x10).0, [(0x20, 0x30)]);
        assert_eq!(ranges(&[(0x30, 0x40)]).moved_down(0u64.wrapping_sub(0x10)).0, [(0x40, 0x50)]);
    }
}
