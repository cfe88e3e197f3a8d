//! Searches that pass over whole subtrees by their summaries.

use crate::arena::Node;
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
        self.up(self.arena.get(self.root)?, Some(from), &mut passes, &mut visit)
    }

    /// In the subtree of `node`, which was entered: nothing below `from`, where that is given.
    fn up<'a, R>(
        &'a self,
        mut node: &'a Node<K, V, S>,
        mut from: Option<&K>,
        passes: &mut impl FnMut(&S) -> bool,
        visit: &mut impl FnMut(&K, &V) -> Option<R>,
    ) -> Option<R> {
        loop {
            if from.is_some_and(|from| node.key < *from) {
                node = self.arena.get(node.right)?;
                continue;
            }
            if let Some(left) = self.entered(node.left, from, passes)
                && let Some(found) = self.up(left, from, passes, visit)
            {
                return Some(found);
            }
            if let Some(found) = node.value.as_ref().and_then(|value| visit(&node.key, value)) {
                return Some(found);
            }
            (node, from) = (self.entered(node.right, None, passes)?, None);
        }
    }

    /// The node of `slot`, if a search goes into its subtree. With no bound that is whole, and may be passed over.
    #[inline]
    fn entered(
        &self,
        slot: u32,
        bound: Option<&K>,
        passes: &mut impl FnMut(&S) -> bool,
    ) -> Option<&Node<K, V, S>> {
        self.arena.get(slot).filter(|node| bound.is_some() || !passes(&node.summary))
    }

    /// As [`Tree::find_up`], downwards, for entries before `below`.
    pub fn find_down<R>(
        &mut self,
        below: &K,
        mut passes: impl FnMut(&S) -> bool,
        mut visit: impl FnMut(&K, &V) -> Option<R>,
    ) -> Option<R> {
        self.sum_up();
        self.down(self.arena.get(self.root)?, Some(below), &mut passes, &mut visit)
    }

    /// In the subtree of `node`, which was entered: nothing from `below` on, where that is given.
    fn down<'a, R>(
        &'a self,
        mut node: &'a Node<K, V, S>,
        mut below: Option<&K>,
        passes: &mut impl FnMut(&S) -> bool,
        visit: &mut impl FnMut(&K, &V) -> Option<R>,
    ) -> Option<R> {
        loop {
            if below.is_some_and(|below| node.key >= *below) {
                node = self.arena.get(node.left)?;
                continue;
            }
            if let Some(right) = self.entered(node.right, below, passes)
                && let Some(found) = self.down(right, below, passes, visit)
            {
                return Some(found);
            }
            if let Some(found) = node.value.as_ref().and_then(|value| visit(&node.key, value)) {
                return Some(found);
            }
            (node, below) = (self.entered(node.left, None, passes)?, None);
        }
    }
}
