//! How often each page was touched, over time.

use std::collections::BTreeMap;

/// Touches by interval and page.
#[derive(Debug)]
pub struct Heat {
    interval: u64,
    current: u64,
    pages: BTreeMap<u64, u32>,
    past: Vec<(u64, BTreeMap<u64, u32>)>,
}

impl Heat {
    /// Nothing touched yet; time is cut into pieces of `interval` (instructions, or whatever unit the caller counts in).
    ///
    /// # Panics
    /// If `interval` is 0.
    pub fn new(interval: u64) -> Self {
        assert!(interval > 0, "an interval of no time");
        Self { interval, current: 0, pages: BTreeMap::new(), past: Vec::new() }
    }
    /// The page was touched at `time`, which never goes back.
    pub fn touch(&mut self, time: u64, page: u64) {
        let interval = time / self.interval;
        if interval != self.current {
            let pages = core::mem::take(&mut self.pages);
            if !pages.is_empty() {
                self.past.push((self.current, pages));
            }
            self.current = interval;
        }
        let count = self.pages.entry(page).or_default();
        *count = count.saturating_add(1);
    }
    /// (interval number, page → touches), in order of time; the running interval last.
    pub fn intervals(&self) -> impl Iterator<Item = (u64, &BTreeMap<u64, u32>)> {
        let running = (!self.pages.is_empty()).then_some((self.current, &self.pages));
        self.past.iter().map(|(number, pages)| (*number, pages)).chain(running)
    }
    /// How long an interval is.
    pub const fn interval(&self) -> u64 {
        self.interval
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touches_fall_into_their_interval() {
        let mut heat = Heat::new(10);
        for (time, page) in [(0, 7), (9, 7), (10, 7), (35, 8)] {
            heat.touch(time, page);
        }
        let seen: Vec<_> = heat.intervals().map(|(n, pages)| (n, pages.values().sum::<u32>())).collect();
        assert_eq!(seen, [(0, 2), (1, 1), (3, 1)]);
    }
}
