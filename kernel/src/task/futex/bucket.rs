//! The waiters of one bucket, by the word that they wait for and then by when they came.
//!
//! A wake looks at waiters of its word only, and stops at its limit. A waiter that leaves is found
//! by its place. So neither depends on how many wait for other words of the bucket.

use freehold_collections::{AllocError, Map};

use super::id::FutexId;

/// The place of a waiter in its bucket: its word, and a number that grows with each arrival.
pub(super) type WaiterPlace = (FutexId, u64);

/// Waiters of words that share a bucket.
pub(super) struct Bucket<W> {
    waiters: Map<WaiterPlace, W>,
    next: u64,
}

impl<W> Bucket<W> {
    pub const fn new() -> Self {
        Self { waiters: Map::new(), next: 0 }
    }

    /// Puts `waiter` behind all that wait for `word`. Returns its place.
    ///
    /// # Errors
    /// [`AllocError`]; the waiter is dropped.
    pub fn push(&mut self, word: FutexId, waiter: W) -> Result<WaiterPlace, AllocError> {
        let place = (word, self.next);
        self.waiters.try_insert(place, waiter)?;
        self.next += 1;
        Ok(place)
    }

    /// Takes the waiter out that has this place.
    pub fn remove(&mut self, place: WaiterPlace) -> Option<W> {
        self.waiters.remove(&place)
    }

    /// Takes the first waiter for `word` out.
    pub fn pop(&mut self, word: FutexId) -> Option<W> {
        let (place, _) = self.next_from((word, 0))?;
        self.remove(place)
    }

    /// Takes up to `limit` waiters for `word` out that suit, first come first served.
    pub fn take(&mut self, word: FutexId, limit: usize, suits: impl Fn(&W) -> bool, mut gets: impl FnMut(W)) {
        let (mut taken, mut from) = (0, (word, 0));
        while taken < limit
            && let Some((place, waiter)) = self.next_from(from)
        {
            from = (word, place.1 + 1);
            if suits(waiter) {
                self.remove(place).into_iter().for_each(&mut gets);
                taken += 1;
            }
        }
    }

    /// Returns the number of waiters for `word`, or `limit` where there are more.
    pub fn count(&self, word: FutexId, limit: usize) -> usize {
        let all = self.waiters.iter_from(core::ops::Bound::Included(&(word, 0)));
        all.take(limit).take_while(|(place, _)| place.0 == word).count()
    }

    /// The first waiter at `from` or behind it that waits for the same word.
    fn next_from(&self, from: WaiterPlace) -> Option<(WaiterPlace, &W)> {
        let (&place, waiter) = self.waiters.first_from(core::ops::Bound::Included(&from))?;
        (place.0 == from.0).then_some((place, waiter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn word(number: u64) -> FutexId {
        FutexId::Private { space: 1, address: 4 * number }
    }

    /// One list of all waiters in the order of their arrival does the same.
    #[test]
    fn waiters_are_served_as_from_one_list() {
        let (mut bucket, mut list) = (Bucket::new(), Vec::<(WaiterPlace, u32)>::new());
        let mut seed = 1u64;
        let mut draw = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for number in 0..20_000u32 {
            let (at, other) = (word(draw(3)), word(draw(3)));
            match draw(8) {
                0..=3 => {
                    let place = bucket.push(at, number).unwrap();
                    list.push((place, number));
                }
                4 if !list.is_empty() => {
                    let (place, waiter) = list.remove(draw(list.len() as u64) as usize);
                    assert_eq!((bucket.remove(place), bucket.remove(place)), (Some(waiter), None));
                }
                5 => {
                    let first =
                        list.iter().position(|(place, _)| place.0 == at).map(|index| list.remove(index));
                    assert_eq!(bucket.pop(at), first.map(|(_, waiter)| waiter));
                }
                6 if at != other => {
                    while let Some(waiter) = bucket.pop(at) {
                        let index = list.iter().position(|(place, _)| place.0 == at).unwrap();
                        assert_eq!(list.remove(index).1, waiter);
                        list.push((bucket.push(other, waiter).unwrap(), waiter));
                    }
                }
                _ => {
                    let (limit, odd) = (draw(4) as usize, draw(2) as u32);
                    let (mut taken, mut wanted) = (Vec::new(), Vec::new());
                    bucket.take(at, limit, |waiter| waiter % 2 == odd, |waiter| taken.push(waiter));
                    list.retain(|&(place, waiter)| {
                        let goes = place.0 == at && waiter % 2 == odd && wanted.len() < limit;
                        wanted.extend(goes.then_some(waiter));
                        !goes
                    });
                    assert_eq!(taken, wanted);
                }
            }
            let waiting = list.iter().filter(|(place, _)| place.0 == at).count();
            assert_eq!((bucket.count(at, usize::MAX), bucket.count(at, 2)), (waiting, waiting.min(2)));
        }
        assert!(list.len() > 5, "{}", list.len());
    }
}
