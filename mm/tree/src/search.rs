//! Searches that pass over whole subtrees by their summaries.

use crate::arena::NONE;
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

    fn up<R>(
        &self,
        slot: u32,
        from: Option<&K>,
        passes: &mut impl FnMut(&S) -> bool,
        visit: &mut impl FnMut(&K, &V) -> Option<R>,
    ) -> Option<R> {
        if slot == NONE {
            return None;
        }
        let node = self.arena.node(slot);
        if from.is_some_and(|from| node.key < *from) {
            return self.up(node.right, from, passes, visit);
        }
        // With no bound the subtree is whole.
        if from.is_none() && passes(&node.summary) {
            return None;
        }
        if let Some(found) = self.up(node.left, from, passes, visit) {
            return Some(found);
        }
        if let Some(found) = node.value.as_ref().and_then(|value| visit(&node.key, value)) {
            return Some(found);
        }
        self.up(node.right, None, passes, visit)
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

    fn down<R>(
        &self,
        slot: u32,
        below: Option<&K>,
        passes: &mut impl FnMut(&S) -> bool,
        visit: &mut impl FnMut(&K, &V) -> Option<R>,
    ) -> Option<R> {
        if slot == NONE {
            return None;
        }
        let node = self.arena.node(slot);
        if below.is_some_and(|below| node.key >= *below) {
            return self.down(node.left, below, passes, visit);
        }
        if below.is_none() && passes(&node.summary) {
            return None;
        }
        if let Some(found) = self.down(node.right, below, passes, visit) {
            return Some(found);
        }
        if let Some(found) = node.value.as_ref().and_then(|value| visit(&node.key, value)) {
            return Some(found);
        }
        self.down(node.left, None, passes, visit)
    }
}
