//! A map of weak references. Entries of ended objects are removed when the map has twice as many
//! entries as after the last removal. So the average cost of an entry is constant, however many
//! there are.

use freehold_collections::reserve::ArcMethods;
use freehold_collections::{Arc, Map, Weak};

use crate::Result;

/// Up to this number of entries none is removed.
const FEW: usize = 16;

/// See the module's head.
pub struct WeakMap<K, T> {
    entries: Map<K, Weak<T>>,
    /// At this number of entries, those of ended objects are removed.
    purged_at: usize,
}

impl<K: Ord + Copy, T> WeakMap<K, T> {
    /// Makes an empty map.
    pub const fn new() -> Self {
        Self { entries: Map::new(), purged_at: FEW }
    }

    /// Returns the object at `key`, if it still exists.
    pub fn get(&self, key: &K) -> Option<Arc<T>> {
        self.entries.get(key)?.upgrade()
    }

    /// Puts `thing` at `key`, and replaces the previous entry.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn try_insert(&mut self, key: K, thing: &Arc<T>) -> Result<()> {
        if self.entries.len() >= self.purged_at {
            self.entries.retain(|_, entry| entry.strong_count() > 0);
            self.purged_at = (2 * self.entries.len()).max(FEW);
        }
        self.entries.try_insert(key, thing.downgrade())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use freehold_collections::reserve;

    use super::*;

    #[test]
    fn ended_things_are_not_found_and_take_no_more_places_than_living_ones() {
        let mut map = WeakMap::<u32, u32>::new();
        let mut alive = std::collections::VecDeque::new();
        for number in 0..10_000_u32 {
            let thing = reserve::arc(number);
            map.try_insert(number, &thing).unwrap();
            alive.push_back(thing);
            if alive.len() > 100 {
                alive.pop_front();
            }
            assert!(map.entries.len() <= 2 * alive.len().max(FEW) + 1);
            assert_eq!(map.get(&number).as_deref(), Some(&number));
            assert_eq!(map.get(&number.saturating_sub(50)).as_deref(), Some(&number.saturating_sub(50)));
            assert!(number < 200 || map.get(&(number - 101)).is_none());
        }
    }
}
