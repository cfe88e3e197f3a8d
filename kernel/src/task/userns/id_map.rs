//! A map between the IDs of a user namespace and the kernel's.
//!
//! **Invariant.** The ranges of a map do not overlap, by inside IDs or by outside IDs, and none
//! contains the ID -1. A map is made once and never changes. Both directions are sorted, so a
//! look-up takes few steps even with the largest number of ranges.
//!
//! Callers: [`super::UserNs`], any context.

use freehold_collections::Vec;

use crate::{Errno, Result};

/// Largest number of lines of a map (UID_GID_MAP_MAX_EXTENTS).
pub const MOST_LINES: usize = 340;

/// A line of a map: `count` IDs from `first` on inside map to those from `outside` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdRange {
    /// The first ID inside the namespace.
    pub first: u32,
    /// The corresponding ID outside.
    pub outside: u32,
    /// The number of IDs.
    pub count: u32,
}

/// A map. The default maps nothing.
#[derive(Debug, Default)]
pub struct IdMap {
    /// Sorted by the first ID inside.
    by_first: Vec<IdRange>,
    /// Sorted by the first ID outside.
    by_outside: Vec<IdRange>,
}

/// Returns the next number of `text`, and the text after it. As on Linux, a missing number is 0
/// (simple_strtoul).
fn number(text: &[u8]) -> Result<(u32, &[u8])> {
    let text = text.trim_ascii_start();
    let (digits, rest) = text.split_at(text.iter().take_while(|byte| byte.is_ascii_digit()).count());
    let digit = |value: u64, byte: &u8| (value * 10 + u64::from(byte - b'0')).min(1 << 32);
    let value = digits.iter().fold(0, digit);
    Ok((u32::try_from(value).map_err(|_| Errno::EINVAL)?, rest))
}

fn line(text: &[u8]) -> Result<IdRange> {
    let ends = |rest: &[u8]| rest.first().is_some_and(u8::is_ascii_whitespace);
    let (first, rest) = number(text)?;
    let (outside, behind) = if ends(rest) { number(rest)? } else { return Err(Errno::EINVAL) };
    let (count, behind) = if ends(behind) { number(behind)? } else { return Err(Errno::EINVAL) };
    let is_whole = |first: u32| first.checked_add(count).is_some_and(|end| end > first);
    if !behind.trim_ascii().is_empty() || !is_whole(first) || !is_whole(outside) {
        return Err(Errno::EINVAL);
    }
    Ok(IdRange { first, outside, count })
}

/// Parses the lines of a map in the format that programs write.
///
/// # Errors
/// `EINVAL` for no line or more than [`MOST_LINES`], a line that is not three numbers, an empty
/// range, or one that contains -1; `ENOMEM`.
pub fn parse(text: &[u8]) -> Result<Vec<IdRange>> {
    let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let mut ranges = Vec::new();
    for part in text.split(|&byte| byte == b'\n') {
        if ranges.len() == MOST_LINES {
            return Err(Errno::EINVAL);
        }
        ranges.try_push(line(part)?)?;
    }
    Ok(ranges)
}

/// Returns the range of `sorted` that contains `id`, if any: the one with the last `start` that is
/// not above `id`.
fn find(sorted: &[IdRange], id: u32, start: fn(&IdRange) -> u32) -> Option<&IdRange> {
    let at = sorted.partition_point(|range| start(range) <= id);
    let range = sorted.get(at.checked_sub(1)?)?;
    (id - start(range) < range.count).then_some(range)
}

impl IdMap {
    /// Makes a map of these ranges.
    ///
    /// # Errors
    /// `EINVAL` for ranges that overlap; `ENOMEM`.
    pub fn new(ranges: &[IdRange]) -> Result<Self> {
        let sorted = |start: fn(&IdRange) -> u32| -> Result<Vec<IdRange>> {
            let mut sorted = Vec::try_from_slice(ranges)?;
            sorted.sort_unstable_by_key(start);
            let overlaps = |pair: &[IdRange]| start(&pair[1]) - start(&pair[0]) < pair[0].count;
            if sorted.windows(2).any(overlaps) { Err(Errno::EINVAL) } else { Ok(sorted) }
        };
        Ok(Self { by_first: sorted(|range| range.first)?, by_outside: sorted(|range| range.outside)? })
    }

    /// Returns the ranges, sorted by their first ID inside.
    pub fn ranges(&self) -> &[IdRange] {
        &self.by_first
    }

    /// Returns the ID outside for `id` inside.
    pub fn outside(&self, id: u32) -> Option<u32> {
        find(&self.by_first, id, |range| range.first).map(|range| range.outside + (id - range.first))
    }

    /// Returns the ID inside for `id` outside.
    pub fn inside(&self, id: u32) -> Option<u32> {
        find(&self.by_outside, id, |range| range.outside).map(|range| range.first + (id - range.outside))
    }

    /// Returns the first ID outside for a range inside, if one line maps the whole range.
    pub fn outside_of_all(&self, first: u32, count: u32) -> Option<u32> {
        let range = find(&self.by_first, first, |range| range.first)?;
        let offset = first - range.first;
        (count <= range.count - offset).then_some(range.outside + offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_map_is_lines_of_three_numbers() {
        let range = |first, outside, count| IdRange { first, outside, count };
        assert_eq!(&parse(b"0 1000 1").unwrap()[..], [range(0, 1000, 1)]);
        let two = parse(b"  0\t1000 1 \n1 100000 65536\n").unwrap();
        assert_eq!(&two[..], [range(0, 1000, 1), range(1, 100_000, 65_536)]);
        assert_eq!(&parse(b"0 0 4294967295").unwrap()[..], [range(0, 0, u32::MAX)]);
        for wrong in [
            &b""[..],
            b"\n",
            b"0",
            b"0 0",
            b"0 0 0",
            b"0 0 1 1",
            b"a 0 1",
            b"0 -1 1",
            b"0 0 1x",
            b"0 0 1\n\n1 1 1",
            b"4294967295 0 1",
            b"0 4294967295 1",
            b"1 0 4294967295",
            b"4294967296 0 1",
        ] {
            assert_eq!(parse(wrong), Err(Errno::EINVAL), "{wrong:?}");
        }
    }

    #[test]
    fn a_map_has_340_lines_at_most() {
        let lines = |count: usize| {
            let mut text = Vec::new();
            for at in 0..count {
                let line = freehold_collections::try_format!("{at} {at} 1\n").unwrap();
                text.try_extend_from_slice(line.as_bytes()).unwrap();
            }
            parse(&text).map(|ranges| ranges.len())
        };
        assert_eq!(lines(MOST_LINES), Ok(MOST_LINES));
        assert_eq!(lines(MOST_LINES + 1), Err(Errno::EINVAL));
    }

    proptest! {
        /// Compared with a map that is searched line by line.
        #[test]
        fn both_directions_are_those_of_the_lines(
            lines in prop::collection::vec((0u32..60, 0u32..60, 1u32..9), 1..8),
            high in any::<bool>(),
        ) {
            let base = if high { u32::MAX - 80 } else { 0 };
            let ranges = lines.iter().map(|&(first, outside, count)| IdRange {
                first: base + first, outside: base + outside, count,
            });
            let ranges: std::vec::Vec<IdRange> = ranges.collect();
            let all = |start: fn(&IdRange) -> u32| {
                let mut all: std::vec::Vec<u32> =
                    ranges.iter().flat_map(|range| start(range)..start(range) + range.count).collect();
                let count = all.len();
                all.sort_unstable();
                all.dedup();
                (all.len() == count).then_some(all)
            };
            let distinct = all(|range| range.first).is_some() && all(|range| range.outside).is_some();
            let map = IdMap::new(&ranges);
            prop_assert_eq!(map.is_ok(), distinct);
            if let Ok(map) = map {
                for id in base..base + 80 {
                    let naive = ranges.iter().find(|range| (range.first..range.first + range.count).contains(&id));
                    prop_assert_eq!(map.outside(id), naive.map(|range| range.outside + (id - range.first)));
                    let back = ranges.iter().find(|range| (range.outside..range.outside + range.count).contains(&id));
                    prop_assert_eq!(map.inside(id), back.map(|range| range.first + (id - range.outside)));
                    for count in 1..12 {
                        let whole = naive.filter(|range| id - range.first + count <= range.count);
                        prop_assert_eq!(map.outside_of_all(id, count), whole.and(map.outside(id)));
                    }
                }
                prop_assert_eq!(map.outside(u32::MAX), None);
            }
        }
    }
}
