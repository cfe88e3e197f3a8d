//! Entries in order, from either end.

use core::ops::{Bound, RangeBounds};

use crate::arena::NONE;
use crate::{Slot, Summary, Tree};

/// The entries of a range, in order.
pub struct Range<'a, K, V, S> {
    tree: &'a Tree<K, V, S>,
    /// The next entries from the front and from the back; [`NONE`] when no entry is left.
    front: u32,
    back: u32,
}

impl<K: Ord + Copy, V, S: Summary<K, V>> Tree<K, V, S> {
    /// All entries, in order.
    pub fn iter(&self) -> Range<'_, K, V, S> {
        Range { tree: self, front: self.first, back: self.last }
    }

    /// The entries from the one in `slot` on, in order; empty if the slot has no entry.
    pub fn from_slot(&self, slot: Slot) -> Range<'_, K, V, S> {
        let is_used = self.at_slot(slot).is_some();
        let (front, back) = if is_used { (slot.0, self.last) } else { (NONE, NONE) };
        Range { tree: self, front, back }
    }

    /// All values, in order.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// The entries of `range`, in order.
    pub fn range(&self, range: impl RangeBounds<K>) -> Range<'_, K, V, S> {
        let front = match range.start_bound() {
            Bound::Unbounded => self.first,
            start => self.ceiling_slot(start),
        };
        let past = match range.end_bound() {
            Bound::Unbounded => NONE,
            Bound::Included(end) => self.ceiling_slot(Bound::Excluded(end)),
            Bound::Excluded(end) => self.ceiling_slot(Bound::Included(end)),
        };
        let back = if past == NONE { self.last } else { self.arena.node(past).prev };
        let key = |slot: u32| self.arena.get(slot).map(|node| node.key);
        let is_empty = front == NONE || back == NONE || key(front) > key(back);
        let (front, back) = if is_empty { (NONE, NONE) } else { (front, back) };
        Range { tree: self, front, back }
    }

    /// Changes the values of `range`, in order.
    pub fn update_range(&mut self, range: impl RangeBounds<K>, mut f: impl FnMut(&K, &mut V)) {
        self.update_below(self.root, &range, &mut f);
    }

    fn update_below(&mut self, slot: u32, range: &impl RangeBounds<K>, f: &mut impl FnMut(&K, &mut V)) {
        if slot == NONE {
            return;
        }
        let node = self.arena.node(slot);
        let (key, left, right) = (node.key, node.left, node.right);
        let is_above_start = match range.start_bound() {
            Bound::Included(start) => key >= *start,
            Bound::Excluded(start) => key > *start,
            Bound::Unbounded => true,
        };
        let is_below_end = match range.end_bound() {
            Bound::Included(end) => key <= *end,
            Bound::Excluded(end) => key < *end,
            Bound::Unbounded => true,
        };
        if is_above_start {
            self.update_below(left, range, f);
        }
        let mut is_due = false;
        if is_above_start
            && is_below_end
            && let Some(value) = self.arena.value_mut(slot)
        {
            let before = S::of(&key, value);
            f(&key, value);
            is_due = before != S::of(&key, value);
        }
        if is_below_end {
            self.update_below(right, range, f);
        }
        if is_due || self.is_due(left) || self.is_due(right) {
            self.arena.node_mut(slot).is_summed = false;
        }
    }
}

impl<'a, K: Ord + Copy, V, S: Summary<K, V>> Range<'a, K, V, S> {
    fn take(&mut self, slot: u32, forwards: bool) -> Option<(&'a K, &'a V)> {
        let node = self.tree.arena.get(slot)?;
        if self.front == self.back {
            (self.front, self.back) = (NONE, NONE);
        } else if forwards {
            self.front = node.next;
        } else {
            self.back = node.prev;
        }
        Some((&node.key, node.value.as_ref()?))
    }
}

impl<'a, K: Ord + Copy, V, S: Summary<K, V>> Iterator for Range<'a, K, V, S> {
    type Item = (&'a K, &'a V);
    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.take(self.front, true)
    }
}

impl<K: Ord + Copy, V, S: Summary<K, V>> DoubleEndedIterator for Range<'_, K, V, S> {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        self.take(self.back, false)
    }
}
