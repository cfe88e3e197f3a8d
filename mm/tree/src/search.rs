//! Searches that skip whole subtrees by their summaries.

use crate::arena::ArenaNode;
use crate::{Summary, Tree};

impl<K: Ord + Copy, V, S: Summary<K, V>> Tree<K, V, S> {
    /// The first result of `visit`, called for entries from `from` on, upwards. `passes` is called
    /// for subtrees, in order, each before its entries. If it returns true, the subtree is skipped.
    ///
    /// Takes O(log n) steps if `passes` returns false only for subtrees with a result and a bounded
    /// number of others. Before that, takes a step for each node above a change since the last
    /// search.
    pub fn find_up<R>(
        &mut self,
        from: &K,
        mut passes: impl FnMut(&S) -> bool,
        mut visit: impl FnMut(&K, &V) -> Option<R>,
    ) -> Option<R> {
        self.sum_up();
        self.search::<true, R>(self.arena.get(self.root)?, Some(from), &mut passes, &mut visit)
    }

    /// As [`Tree::find_up`], downwards, for entries before `below`.
    pub fn find_down<R>(
        &mut self,
        below: &K,
        mut passes: impl FnMut(&S) -> bool,
        mut visit: impl FnMut(&K, &V) -> Option<R>,
    ) -> Option<R> {
        self.sum_up();
        self.search::<false, R>(self.arena.get(self.root)?, Some(below), &mut passes, &mut visit)
    }

    /// Searches the subtree of `node`, which was entered. If `bound` is given, an upward search
    /// skips entries below it, and a downward one skips entries from it on.
    fn search<'a, const UP: bool, R>(
        &'a self,
        mut node: &'a ArenaNode<K, V, S>,
        mut bound: Option<&K>,
        passes: &mut impl FnMut(&S) -> bool,
        visit: &mut impl FnMut(&K, &V) -> Option<R>,
    ) -> Option<R> {
        loop {
            let (near, far) = if UP { (node.left, node.right) } else { (node.right, node.left) };
            if bound.is_some_and(|bound| (node.key < *bound) == UP) {
                node = self.arena.get(far)?;
                continue;
            }
            if let Some(child) = self.entered(near, bound, passes)
                && let Some(found) = self.search::<UP, R>(child, bound, passes, visit)
            {
                return Some(found);
            }
            if let Some(found) = node.value.as_ref().and_then(|value| visit(&node.key, value)) {
                return Some(found);
            }
            (node, bound) = (self.entered(far, None, passes)?, None);
        }
    }

    /// The node of `slot`, if a search enters its subtree. Without a bound the whole subtree is
    /// considered, and may be skipped.
    #[inline]
    fn entered(
        &self,
        slot: u32,
        bound: Option<&K>,
        passes: &mut impl FnMut(&S) -> bool,
    ) -> Option<&ArenaNode<K, V, S>> {
        self.arena.get(slot).filter(|node| bound.is_some() || !passes(&node.summary))
    }
}
