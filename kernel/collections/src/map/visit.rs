//! Visits to a map's entries.

use core::borrow::Borrow;
use core::ops::Bound;
use core::slice;

use super::{HEIGHT, Map, MapNode, lies_before, lies_inside};

/// Visits all entries by key; [`Map::iter`].
pub struct Iter<'a, K, V> {
    /// Inner nodes that are not finished, from the root on, with the next entry of each.
    above: [Option<(&'a MapNode<K, V>, usize)>; HEIGHT],
    depth: usize,
    /// The rest of the leaf below them.
    leaf: slice::Iter<'a, (K, V)>,
}

impl<'a, K, V> Iter<'a, K, V> {
    pub(super) fn new(root: &'a MapNode<K, V>) -> Self {
        Self::from(root, |_| false)
    }
    /// Starts at the first entry whose key is in the range or behind it.
    pub(super) fn from(root: &'a MapNode<K, V>, lies_before: impl Fn(&K) -> bool) -> Self {
        let mut iter = Self { above: [None; HEIGHT], depth: 0, leaf: [].iter() };
        iter.descend(root, lies_before);
        iter
    }
    fn descend(&mut self, mut node: &'a MapNode<K, V>, lies_before: impl Fn(&K) -> bool) {
        loop {
            let at = node.entries.partition_point(|(key, _)| lies_before(key));
            let Some(child) = node.children.get(at) else {
                self.leaf = node.entries[at..].iter();
                return;
            };
            self.above[self.depth] = Some((node, at));
            self.depth += 1;
            node = child;
        }
    }
    /// Goes to the first entry below `node`.
    fn descend_first(&mut self, mut node: &'a MapNode<K, V>) {
        while let Some(first) = node.children.first() {
            self.above[self.depth] = Some((node, 0));
            self.depth += 1;
            node = first;
        }
        self.leaf = node.entries.iter();
    }
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<(&'a K, &'a V)> {
        loop {
            if let Some((key, value)) = self.leaf.next() {
                return Some((key, value));
            }
            let (node, at) = self.above[self.depth.checked_sub(1)?]?;
            self.depth -= 1;
            if let Some((key, value)) = node.entries.get(at) {
                self.above[self.depth] = Some((node, at + 1));
                self.depth += 1;
                self.descend_first(&node.children[at + 1]);
                return Some((key, value));
            }
        }
    }
}

/// Visits all keys in order; [`Map::keys`].
pub struct Keys<'a, K, V>(pub(super) Iter<'a, K, V>);

impl<'a, K, V> Iterator for Keys<'a, K, V> {
    type Item = &'a K;

    fn next(&mut self) -> Option<&'a K> {
        self.0.next().map(|(key, _)| key)
    }
}

/// Visits all values by key; [`Map::values`].
pub struct Values<'a, K, V>(pub(super) Iter<'a, K, V>);

impl<'a, K, V> Iterator for Values<'a, K, V> {
    type Item = &'a V;

    fn next(&mut self) -> Option<&'a V> {
        self.0.next().map(|(_, value)| value)
    }
}

/// Visits the entries in a range from either side; [`Map::range`].
pub struct Range<'a, K, V, Q: ?Sized> {
    map: &'a Map<K, V>,
    first: Bound<&'a Q>,
    end: Bound<&'a Q>,
}

impl<'a, K: Ord + Borrow<Q>, V, Q: Ord + ?Sized> Range<'a, K, V, Q> {
    pub(super) fn new(map: &'a Map<K, V>, first: Bound<&'a Q>, end: Bound<&'a Q>) -> Self {
        Self { map, first, end }
    }
}

impl<'a, K: Ord + Borrow<Q>, V, Q: Ord + ?Sized> Iterator for Range<'a, K, V, Q> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<(&'a K, &'a V)> {
        let (key, value) = self.map.first_from(self.first)?;
        let is_inside = lies_inside(key.borrow(), self.end);
        self.first = Bound::Excluded(key.borrow());
        is_inside.then_some((key, value))
    }
}

impl<'a, K: Ord + Borrow<Q>, V, Q: Ord + ?Sized> DoubleEndedIterator for Range<'a, K, V, Q> {
    fn next_back(&mut self) -> Option<(&'a K, &'a V)> {
        let (key, value) = self.map.last_until(self.end)?;
        let is_inside = !lies_before(key.borrow(), self.first);
        self.end = Bound::Excluded(key.borrow());
        is_inside.then_some((key, value))
    }
}
