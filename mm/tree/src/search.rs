//! Searches that pass over whole subtrees by their summaries.

use crate::{Summary, Tree};

impl<K: Ord + Copy, V, S: Summary<K, V>> Tree<K, V, S> {
    /// The first result of `visit`, called for entries from `from` on, upwards. `passes` is asked
    /// about subtrees, in order, each before the entries in it; where it says yes nothing of the
    /// subtree is visited.
    ///
    /// Takes O(log n) steps where `passes` says no only about subtrees with a result, or for a
    /// bounded number of others; and first, a step for each node above what changed since the last
    /// search.
    pub fn find_up<R>(
        &mut self,
        from: &K,
        mut passes: impl FnMut(&S) -> bool,
        mut visit: impl FnMut(&K, &V) -> Option<R>,
    ) -> Option<R> {
        self.sum_up();
        self.up(self.root, Some(from), &mut passes, &mut visit)
    }

    /// From `slot` on, which was entered: nothing below `from`, where that is given.
    fn up<R>(
        &self,
        mut slot: u32,
        mut from: Option<&K>,
        passes: &mut impl FnMut(&S) -> bool,
        visit: &mut impl FnMut(&K, &V) -> Option<R>,
    ) -> Option<R> {
        loop {
            let node = self.arena.get(slot)?;
            if from.is_some_and(|from| node.key < *from) {
                slot = node.right;
                continue;
            }
            if self.enters(node.left, from, passes)
                && let Some(found) = self.up(node.left, from, passes, visit)
            {
                return Some(found);
            }
            if let Some(found) = node.value.as_ref().and_then(|value| visit(&node.key, value)) {
                return Some(found);
            }
            if !self.enters(node.right, None, passes) {
                return None;
            }
            (slot, from) = (node.right, None);
        }
    }

    /// Whether a search goes into the subtree at `slot`. With no bound the subtree is whole, and may be passed over.
    #[inline]
    fn enters(&self, slot: u32, bound: Option<&K>, passes: &mut impl FnMut(&S) -> bool) -> bool {
        self.arena.get(slot).is_some_and(|node| bound.is_some() || !passes(&node.summary))
    }

    /// As [`Tree::find_up`], downwards, for entries before `below`.
    pub fn find_down<R>(
        &mut self,
        below: &K,
        mut passes: impl FnMut(&S) -> bool,
        mut visit: impl FnMut(&K, &V) -> Option<R>,
    ) -> Option<R> {
        self.sum_up();
        self.down(self.root, Some(below), &mut passes, &mut visit)
    }

    /// From `slot` on, which was entered: nothing from `below` on, where that is given.
    fn down<R>(
        &self,
        mut slot: u32,
        mut below: Option<&K>,
        passes: &mut impl FnMut(&S) -> bool,
        visit: &mut impl FnMut(&K, &V) -> Option<R>,
    ) -> Option<R> {
        loop {
            let node = self.arena.get(slot)?;
            if below.is_some_and(|below| node.key >= *below) {
                slot = node.left;
                continue;
            }
            if self.enters(node.right, below, passes)
                && let Some(found) = self.down(node.right, below, passes, visit)
            {
                return Some(found);
            }
            if let Some(found) = node.value.as_ref().and_then(|value| visit(&node.key, value)) {
                return Some(found);
            }
            if !self.enters(node.left, None, passes) {
                return None;
            }
            (slot, below) = (node.left, None);
        }
    }
}
