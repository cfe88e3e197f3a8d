//! A set of numbers as runs: the pages of a file that are reserved or present.

use alloc::collections::BTreeMap;
use core::ops::Range;

/// Runs that do not touch, by their starts: the ends.
#[derive(Default)]
pub(super) struct Runs(BTreeMap<u64, u64>);

impl Runs {
    pub(super) const fn new() -> Self {
        Self(BTreeMap::new())
    }
    pub(super) fn contains(&self, number: u64) -> bool {
        self.0.range(..=number).next_back().is_some_and(|(_, &end)| number < end)
    }
    /// How many numbers of `range` are in the set.
    pub(super) fn count(&self, range: &Range<u64>) -> u64 {
        let before = self.0.range(..range.start).next_back();
        let before = before.map_or(0, |(_, &end)| end.min(range.end).saturating_sub(range.start));
        before + self.0.range(range.clone()).map(|(&start, &end)| end.min(range.end) - start).sum::<u64>()
    }
    /// Adds the numbers of `range`, which is not empty. Needs memory for one run.
    pub(super) fn add(&mut self, range: Range<u64>) {
        let Range { mut start, mut end } = range;
        if let Some((&first, &last)) = self.0.range(..start).next_back()
            && last >= start
        {
            start = first;
        }
        while let Some((&first, &last)) = self.0.range(start..=end).next() {
            end = end.max(last);
            self.0.remove(&first);
        }
        self.0.insert(start, end);
    }
    /// Removes the numbers of `range`. Needs memory for one run.
    pub(super) fn remove(&mut self, range: Range<u64>) {
        if let Some((_, last)) = self.0.range_mut(..range.start).next_back()
            && *last > range.start
        {
            let end = core::mem::replace(last, range.start);
            if end > range.end {
                self.0.insert(range.end, end);
            }
        }
        while let Some((&first, &end)) = self.0.range(range.clone()).next() {
            self.0.remove(&first);
            if end > range.end {
                self.0.insert(range.end, end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Runs;

    #[test]
    fn a_set_of_runs_has_the_numbers_that_were_added_and_not_removed() {
        let mut random = 7u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        let (mut runs, mut plain) = (Runs::new(), [false; 64]);
        for _ in 0..5000 {
            let start = next(63);
            let range = start..start + 1 + next(64 - start);
            if next(2) == 0 {
                runs.add(range.clone());
                plain[range.start as usize..range.end.min(64) as usize].fill(true);
            } else {
                runs.remove(range.clone());
                plain[range.start as usize..range.end.min(64) as usize].fill(false);
            }
            runs.remove(64..u64::MAX);
            assert!((0..64).all(|number| runs.contains(number) == plain[number as usize]));
            let part = next(32)..32 + next(33);
            let expected =
                plain[part.start as usize..part.end as usize].iter().filter(|&&is_in| is_in).count();
            assert_eq!(runs.count(&part), expected as u64);
            let ends = runs.0.values().zip(runs.0.keys().skip(1));
            assert!(ends.clone().all(|(end, start)| end < start), "runs that touch");
        }
    }
}
