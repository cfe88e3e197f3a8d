//! The waiters of one bucket, by the word that they wait for and then by when they came.
//!
//! A wake looks at waiters of its word only, and stops at its limit. A waiter that leaves is found
//! by its place. So neither depends on how many wait for other words of the bucket.

use freehold_collections::{AllocError, Map};

use super::id::FutexId;

/// The place of a waiter in its bucket: its word, and a number that grows with each arrival.
pub(super) type WaiterPlace = (FutexId, u64);

/// Number of waiters that are visited at once: under the bucket's lock others wait.
pub(super) const AT_ONCE: usize = 64;

/// A walk over the waiters for one word that were there when it began. The lock may be released on
/// the way.
pub(super) struct WaiterWalk {
    next: WaiterPlace,
    /// The number of the first waiter that came later.
    end: u64,
}

/// Whether a walk has more to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum More {
    Yes,
    No,
}

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

    /// Begins a walk over the present waiters for `word`.
    pub const fn walk(&self, word: FutexId) -> WaiterWalk {
        WaiterWalk { next: (word, 0), end: self.next }
    }

    /// Takes the next waiter of a walk out.
    pub fn pop(&mut self, walk: &mut WaiterWalk) -> Option<W> {
        let (place, _) = self.next_of(walk)?;
        self.remove(place)
    }

    /// Takes waiters out that suit, first come first served: up to `limit` of the next [`AT_ONCE`]
    /// of a walk.
    #[inline(always)]
    pub fn take(
        &mut self,
        walk: &mut WaiterWalk,
        limit: usize,
        suits: impl Fn(&W) -> bool,
        mut gets: impl FnMut(W),
    ) -> More {
        let mut taken = 0;
        for _ in 0..AT_ONCE {
            if taken == limit {
                return More::No;
            }
            let Some((place, waiter)) = self.next_of(walk) else { return More::No };
            if suits(waiter) {
                self.remove(place).into_iter().for_each(&mut gets);
                taken += 1;
            }
        }
        More::Yes
    }

    /// Returns the number of waiters for `word`, or `limit` where there are more.
    pub fn count(&self, word: FutexId, limit: usize) -> usize {
        let all = self.waiters.iter_from(core::ops::Bound::Included(&(word, 0)));
        all.take(limit).take_while(|(place, _)| place.0 == word).count()
    }

    /// Takes a step of a walk.
    #[inline(always)]
    fn next_of(&self, walk: &mut WaiterWalk) -> Option<(WaiterPlace, &W)> {
        let (&place, waiter) = self.waiters.first_from(core::ops::Bound::Included(&walk.next))?;
        if place.0 != walk.next.0 || place.1 >= walk.end {
            return None;
        }
        walk.next.1 = place.1 + 1;
        Some((place, waiter))
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
                    assert_eq!(bucket.pop(&mut bucket.walk(at)), first.map(|(_, waiter)| waiter));
                }
                6 if at != other => {
                    let mut walk = bucket.walk(at);
                    while let Some(waiter) = bucket.pop(&mut walk) {
                        let index = list.iter().position(|(place, _)| place.0 == at).unwrap();
                        assert_eq!(list.remove(index).1, waiter);
                        list.push((bucket.push(other, waiter).unwrap(), waiter));
                    }
                }
                _ => {
                    let (limit, odd) = (draw(4) as usize, draw(2) as u32);
                    let (mut taken, mut wanted) = (Vec::new(), Vec::new());
                    let mut walk = bucket.walk(at);
                    let mut left = limit;
                    while bucket.take(
                        &mut walk,
                        left,
                        |waiter| waiter % 2 == odd,
                        |waiter| taken.push(waiter),
                    ) == More::Yes
                    {
                        left = limit - taken.len();
                    }
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
