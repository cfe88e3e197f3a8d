//! A binary heap whose elements know their positions, so that any of them can be removed.
//!
//! It orders run queues (by virtual runtime) and timer queues (by deadline). Both are changed under
//! interrupt-safe locks, where nothing may be allocated. So the memory is allocated beforehand, in
//! a buffer that is [given](IndexedHeap::give_room) to the heap, and each element contains its
//! position.

use core::sync::atomic::{AtomicUsize, Ordering};

use freehold_collections::Vec;

/// An element that stores its position.
pub trait Positioned {
    /// Stores `position`; `None` if the element is no longer in the heap.
    fn set_position(&self, position: Option<usize>);
    /// Returns the stored position.
    fn position(&self) -> Option<usize>;
}

/// A position stored in an element of a higher layer: 0, or the position plus one.
#[derive(Debug, Default)]
pub struct Position(AtomicUsize);

impl Position {
    /// Returns the position; `None` if the element is in no heap.
    pub fn get(&self) -> Option<usize> {
        self.0.load(Ordering::Relaxed).checked_sub(1)
    }
}

/// An element, and which of its fields has its position: an object may be in several heaps.
#[derive(Debug)]
pub struct Placed<T> {
    /// The element.
    pub value: T,
    /// Selects the field with its position.
    pub position: fn(&T) -> &Position,
}

impl<T> Positioned for Placed<T> {
    fn set_position(&self, position: Option<usize>) {
        (self.position)(&self.value).0.store(position.map_or(0, |at| at + 1), Ordering::Relaxed);
    }
    fn position(&self) -> Option<usize> {
        (self.position)(&self.value).get()
    }
}

/// The heap. The smallest key is on top; among equal keys the element that was inserted first.
#[derive(Debug)]
pub struct IndexedHeap<V> {
    entries: Vec<(u64, u64, V)>,
    /// Counts insertions upwards, to keep equal keys in order of arrival.
    arrivals: u64,
    /// Counts insertions before all equal keys downwards.
    precedences: u64,
}

/// Initial value of the counts of insertions.
const FIRST_ARRIVAL: u64 = 1 << 63;

impl<V: Positioned> IndexedHeap<V> {
    /// Makes an empty heap without room.
    pub const fn new() -> Self {
        Self { entries: Vec::new(), arrivals: FIRST_ARRIVAL, precedences: FIRST_ARRIVAL }
    }
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
    /// Whether the heap is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
    /// Returns the number of elements that fit.
    pub fn room(&self) -> usize {
        self.entries.capacity()
    }
    /// Replaces the buffer with `buffer`, if that is larger. Returns the smaller one, to be freed
    /// elsewhere.
    #[must_use]
    pub fn give_room(&mut self, buffer: Vec<(u64, u64, V)>) -> Vec<(u64, u64, V)> {
        self.entries.move_to(buffer)
    }
    /// Inserts `value` with `key`. Returns it if there is no room.
    pub fn insert(&mut self, key: u64, value: V) -> Result<(), V> {
        self.arrivals += 1;
        self.insert_as(key, self.arrivals, value)
    }
    /// As [`insert`](Self::insert), but before the elements with the same key.
    pub fn insert_first(&mut self, key: u64, value: V) -> Result<(), V> {
        self.precedences -= 1;
        self.insert_as(key, self.precedences, value)
    }
    #[inline]
    fn insert_as(&mut self, key: u64, arrival: u64, value: V) -> Result<(), V> {
        if self.entries.len() == self.entries.capacity() {
            return Err(value);
        }
        let at = self.entries.len();
        self.entries.push_reserved((key, arrival, value));
        self.rise(at);
        Ok(())
    }
    /// Changes the keys of all elements. Equal ones stay in order of arrival.
    pub fn change_keys(&mut self, change: impl Fn(u64, &V) -> u64) {
        for (key, _, value) in &mut self.entries {
            *key = change(*key, value);
        }
        for at in (0..self.entries.len() / 2).rev() {
            self.sink(at);
        }
    }
    /// Returns the smallest key and its element.
    pub fn first(&self) -> Option<(u64, &V)> {
        self.entries.first().map(|(key, _, value)| (*key, value))
    }
    /// Removes the element with the smallest key.
    pub fn pop(&mut self) -> Option<(u64, V)> {
        if self.is_empty() { None } else { Some(self.take(0)) }
    }
    /// Removes the element at `position`.
    pub fn remove(&mut self, position: usize) -> Option<(u64, V)> {
        (position < self.entries.len()).then(|| self.take(position))
    }
    /// Returns the elements, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &V> {
        self.entries.iter().map(|(_, _, value)| value)
    }

    /// Returns the position of an element that suits, of `most` that are looked at. The first one
    /// is at `from`, or what is left of it after whole laps; behind the last comes the first.
    pub fn find_some(&self, from: usize, most: usize, suits: impl Fn(&V) -> bool) -> Option<usize> {
        let count = self.entries.len();
        let start = from.checked_rem(count)?;
        let at = |step: usize| (start + step) % count;
        (0..count.min(most)).map(at).find(|&at| suits(&self.entries[at].2))
    }

    fn take(&mut self, at: usize) -> (u64, V) {
        let (key, _, value) = self.entries.swap_remove(at);
        value.set_position(None);
        if at < self.entries.len() {
            let at = self.rise(at);
            self.sink(at);
        }
        (key, value)
    }

    fn order(&self, at: usize) -> (u64, u64) {
        let (key, arrival, _) = &self.entries[at];
        (*key, *arrival)
    }

    fn rise(&mut self, mut at: usize) -> usize {
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.order(parent) <= self.order(at) {
                break;
            }
            self.entries.swap(at, parent);
            self.entries[at].2.set_position(Some(at));
            at = parent;
        }
        self.entries[at].2.set_position(Some(at));
        at
    }

    fn sink(&mut self, mut at: usize) {
        loop {
            let mut least = at;
            for child in [2 * at + 1, 2 * at + 2] {
                if child < self.entries.len() && self.order(child) < self.order(least) {
                    least = child;
                }
            }
            if least == at {
                break;
            }
            self.entries.swap(at, least);
            self.entries[at].2.set_position(Some(at));
            at = least;
        }
        self.entries[at].2.set_position(Some(at));
    }
}

impl<V: Positioned> Default for IndexedHeap<V> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;
    use std::rc::Rc;
    use std::vec::Vec as List;

    use proptest::prelude::*;

    use super::*;

    struct Item {
        at: Cell<Option<usize>>,
        id: usize,
    }
    impl Positioned for Rc<Item> {
        fn set_position(&self, position: Option<usize>) {
            self.at.set(position);
        }
        fn position(&self) -> Option<usize> {
            self.at.get()
        }
    }

    /// As many elements are looked at as asked for, and all in turn.
    #[test]
    fn a_search_for_some_element_is_short_and_goes_round() {
        let mut heap = IndexedHeap::new();
        assert_eq!(heap.find_some(7, 4, |_: &Rc<Item>| true), None);
        drop(heap.give_room(Vec::try_with_capacity(10).unwrap()));
        for id in 0..10 {
            assert!(heap.insert(id as u64, Rc::new(Item { at: Cell::new(None), id })).is_ok());
        }
        let looked = Cell::new(0);
        let search = |from| {
            heap.find_some(from, 4, |item| {
                looked.set(looked.get() + 1);
                item.id == 9
            })
        };
        let found: List<Option<usize>> = [0, 4, 8, 12, 16].map(search).to_vec();
        let there = heap.iter().position(|item| item.id == 9);
        assert_eq!(found, [None, None, there, None, there]);
        assert_eq!(looked.get(), 4 + 4 + 2 + 4 + 4);
    }

    proptest! {
        /// After any change of keys, elements are removed in the order of the new ones, and know
        /// their positions.
        #[test]
        fn changed_keys_order_the_elements_anew(keys in prop::collection::vec(0u64..20, 1..60), bound in 0u64..20) {
            let mut heap = IndexedHeap::new();
            drop(heap.give_room(Vec::try_with_capacity(64).unwrap()));
            for (id, &key) in keys.iter().enumerate() {
                let item = Rc::new(Item { at: Cell::new(None), id });
                assert!(if id % 3 == 0 { heap.insert_first(key, item) } else { heap.insert(key, item) }.is_ok());
            }
            heap.change_keys(|key, _| if key < bound { key + 100 } else { key });
            assert!(heap.iter().enumerate().all(|(at, item)| item.position() == Some(at)));
            let mut left: List<_> = (0..keys.len()).map(|id| {
                let key = if keys[id] < bound { keys[id] + 100 } else { keys[id] };
                (key, if id % 3 == 0 { -(id as i64) - 1 } else { id as i64 }, id)
            }).collect();
            left.sort_unstable();
            let out: List<usize> = core::iter::from_fn(|| heap.pop()).map(|(_, item)| item.id).collect();
            assert_eq!(out, left.into_iter().map(|(_, _, id)| id).collect::<List<_>>());
        }

        /// After any insertions and removals by position, the remaining elements are removed by
        /// key, then by arrival.
        #[test]
        fn elements_leave_in_order_of_key_then_arrival(
            keys in prop::collection::vec(0u64..20, 1..60),
            removals in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let mut heap = IndexedHeap::new();
            assert!(heap.insert(0, Rc::new(Item { at: Cell::new(None), id: 0 })).is_err());
            let spare = heap.give_room(Vec::try_with_capacity(64).unwrap());
            assert_eq!(spare.capacity(), 0);
            let items: List<_> = (0..keys.len()).map(|id| Rc::new(Item { at: Cell::new(None), id })).collect();
            for (key, item) in keys.iter().zip(&items) {
                assert!(heap.insert(*key, item.clone()).is_ok());
            }
            let mut left: List<usize> = (0..keys.len()).collect();
            for index in removals {
                let item = index.get(&items);
                if let Some(at) = item.position() {
                    let (key, removed) = heap.remove(at).unwrap();
                    assert_eq!((key, removed.id), (keys[item.id], item.id));
                    left.retain(|&id| id != item.id);
                }
            }
            left.sort_by_key(|&id| (keys[id], id));
            let out: List<usize> = core::iter::from_fn(|| heap.pop()).map(|(_, item)| item.id).collect();
            assert_eq!(out, left);
            assert!(items.iter().all(|item| item.position().is_none()));
        }
    }
}
