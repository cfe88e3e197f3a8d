//! AVL: the heights of two siblings differ by one at most. Georgy Adelson-Velsky and Evgenii
//! Landis, 1962.

use core::ops::Range;

use arrayvec::ArrayVec;

use crate::arena::{ArenaNode, NONE, NoMemory};
use crate::{Summary, Tree};

/// An upper bound for the height of a tree of 2^32 entries: 1.44 × 32.
const MOST_HEIGHT: usize = 48;

/// The slots from the root down to a place.
#[derive(Default)]
pub(crate) struct Path(ArrayVec<u32, MOST_HEIGHT>);

impl Path {
    fn push(&mut self, slot: u32) {
        self.0.push(slot);
    }
    fn pop(&mut self) -> Option<u32> {
        self.0.pop()
    }
    fn last(&self) -> u32 {
        self.0.last().map_or(NONE, |&slot| slot)
    }
    fn depth(&self) -> usize {
        self.0.len()
    }
    /// The slots from the lowest up.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().rev().copied()
    }
}

impl<K: Ord + Copy, V, S: Summary<K, V>> Tree<K, V, S> {
    /// Returns the slot of `key`, and puts the slots above it into `path`. [`NONE`] if there is no
    /// such entry; a new one would be attached below the last slot of `path`.
    pub(crate) fn path_to(&self, key: &K, path: &mut Path) -> u32 {
        let mut at = self.root;
        while at != NONE {
            let node = self.arena.node(at);
            let next = match key.cmp(&node.key) {
                core::cmp::Ordering::Less => node.left,
                core::cmp::Ordering::Greater => node.right,
                core::cmp::Ordering::Equal => return at,
            };
            path.push(at);
            at = next;
        }
        NONE
    }

    #[inline]
    fn height(&self, slot: u32) -> u8 {
        self.arena.get(slot).map_or(0, |node| node.height)
    }

    /// Notes that the value in `slot` changed; `before` was its own summary.
    pub(crate) fn note_change(&mut self, slot: u32, before: &S, path: &Path) {
        if self.own_summary(slot).is_none_or(|own| own != *before) {
            self.note_due(slot, path);
        }
    }

    /// Marks the summaries of `slot` and of all of `path` above it as out of date.
    pub(crate) fn note_due(&mut self, slot: u32, path: &Path) {
        for at in core::iter::once(slot).chain(path.iter()) {
            if !core::mem::take(&mut self.arena.node_mut(at).is_summed) {
                break;
            }
        }
    }

    /// Returns the summary of the entry in `slot` alone.
    pub(crate) fn own_summary(&self, slot: u32) -> Option<S> {
        let node = self.arena.get(slot)?;
        node.value.as_ref().map(|value| S::of(&node.key, value))
    }

    /// Whether there is a node whose summary is out of date.
    pub(crate) fn is_due(&self, slot: u32) -> bool {
        self.arena.get(slot).is_some_and(|node| !node.is_summed)
    }

    /// Sums up the changes since the last time, in at most `steps` steps. Returns whether that is
    /// all. Searches do this themselves, in as many steps as they need.
    pub fn sum_up_some(&mut self, steps: usize) -> bool {
        let mut path = Path::default();
        let mut at = self.root;
        if !self.is_due(at) {
            return true;
        }
        // Nodes with outdated summaries are connected to the root. The walk goes down to one whose
        // children are up to date, and from there up to the next with another outdated child.
        for _ in 0..steps {
            match self.summary_of(at) {
                Err(due) => {
                    path.push(at);
                    at = due;
                }
                Ok(summary) => {
                    let node = self.arena.node_mut(at);
                    (node.summary, node.is_summed) = (summary, true);
                    let Some(above) = path.pop() else { return true };
                    at = above;
                }
            }
        }
        false
    }

    /// Sums up all that changed since the last time.
    pub(crate) fn sum_up(&mut self) {
        while !self.sum_up_some(usize::MAX) {}
    }

    /// The summary of the subtree at `slot`, from those of its children; `Err` is a child whose
    /// summary must be updated first.
    #[inline]
    fn summary_of(&self, slot: u32) -> Result<S, u32> {
        let node = self.arena.node(slot);
        let (left, right) = (self.arena.get(node.left), self.arena.get(node.right));
        let is_due = |child: Option<&ArenaNode<K, V, S>>| child.is_some_and(|child| !child.is_summed);
        if is_due(left) {
            return Err(node.left);
        }
        if is_due(right) {
            return Err(node.right);
        }
        let value = node.value.as_ref().expect("a node of the tree has an entry");
        let mut summary = S::of(&node.key, value);
        if let Some(left) = left {
            summary = left.summary.join(&summary);
        }
        if let Some(right) = right {
            summary = summary.join(&right.summary);
        }
        Ok(summary)
    }

    /// Computes the height of `slot` from those of its children, and marks its summary as out of
    /// date. Returns whether either changes anything for the nodes above.
    fn settle(&mut self, slot: u32, low: u8, high: u8) -> bool {
        let height = 1 + low.max(high);
        let node = self.arena.node_mut(slot);
        let is_news = node.height != height || node.is_summed;
        (node.height, node.is_summed) = (height, false);
        is_news
    }

    /// The heights of the children of `slot`.
    #[inline]
    fn heights_below(&self, slot: u32) -> (u8, u8) {
        let node = self.arena.node(slot);
        (self.height(node.left), self.height(node.right))
    }

    /// Attaches the new node `slot` below the end of `path`.
    pub(crate) fn hang(&mut self, slot: u32, path: &mut Path) {
        let parent = path.last();
        let key = self.arena.node(slot).key;
        let (prev, next) = if parent == NONE {
            (NONE, NONE)
        } else if key < self.arena.node(parent).key {
            (self.arena.node(parent).prev, parent)
        } else {
            (parent, self.arena.node(parent).next)
        };
        self.link(prev, slot);
        self.link(slot, next);
        if parent == NONE {
            self.root = slot;
        } else if prev == parent {
            self.arena.node_mut(parent).right = slot;
        } else {
            self.arena.node_mut(parent).left = slot;
        }
        self.rebalance(path, usize::MAX);
    }

    /// Appends an entry to the order, but not yet to the tree: the caller calls [`Tree::build`]
    /// later. No entry was removed before.
    pub(crate) fn append(&mut self, key: K, value: V) -> Result<(), NoMemory> {
        let last = self.last;
        debug_assert!(self.arena.get(last).is_none_or(|node| node.key < key), "keys rise");
        let summary = S::of(&key, &value);
        let slot = self.arena.put(ArenaNode { prev: last, ..ArenaNode::new(key, value, summary) })?;
        self.link(last, slot);
        self.last = slot;
        Ok(())
    }

    /// Makes a tree of the appended nodes, which are in the slots in the tree's order.
    pub(crate) fn build(&mut self) {
        self.root = self.build_of(0..self.len() as u32);
    }

    /// The root of a tree of `slots`, whose halves differ by one entry at most: as deep as there
    /// are bits in their number.
    fn build_of(&mut self, slots: Range<u32>) -> u32 {
        if slots.is_empty() {
            return NONE;
        }
        let middle = slots.start.midpoint(slots.end);
        // The summary of a single node was computed when the node was made.
        if slots.len() > 1 {
            let left = self.build_of(slots.start..middle);
            let right = self.build_of(middle + 1..slots.end);
            let (low, high) = (self.height(left), self.height(right));
            let node = self.arena.node_mut(middle);
            (node.left, node.right) = (left, right);
            self.settle(middle, low, high);
        }
        middle
    }

    /// Makes `next` the entry after `prev`; either may be [`NONE`].
    fn link(&mut self, prev: u32, next: u32) {
        if prev == NONE {
            self.first = next;
        } else {
            self.arena.node_mut(prev).next = next;
        }
        if next == NONE {
            self.last = prev;
        } else {
            self.arena.node_mut(next).prev = prev;
        }
    }

    /// Removes `slot`, which is attached below `path`, from the tree and the order.
    pub(crate) fn unhang(&mut self, slot: u32, path: &mut Path) {
        let &ArenaNode { left, right, prev, next, .. } = self.arena.node(slot);
        self.link(prev, next);
        if left == NONE || right == NONE {
            let child = if left == NONE { right } else { left };
            self.replace_child(path.last(), slot, child);
            self.rebalance(path, usize::MAX);
            return;
        }
        // The entry after it, which has no left child, takes its place.
        let place = path.depth();
        path.push(slot);
        let mut at = right;
        while self.arena.node(at).left != NONE {
            path.push(at);
            at = self.arena.node(at).left;
        }
        let rest = self.arena.node(at).right;
        self.replace_child(path.last(), at, rest);
        let right = self.arena.node(slot).right;
        let node = self.arena.node_mut(at);
        (node.left, node.right) = (left, right);
        let above = place.checked_sub(1).map_or(NONE, |above| path.0[above]);
        self.replace_child(above, slot, at);
        path.0[place] = at;
        self.rebalance(path, place);
    }

    fn replace_child(&mut self, parent: u32, old: u32, new: u32) {
        if parent == NONE {
            self.root = new;
            return;
        }
        let node = self.arena.node_mut(parent);
        if node.left == old {
            node.left = new;
        } else {
            node.right = new;
        }
    }

    /// Balances `path`, from its end up: at least to the depth `least`, and further as long as
    /// something changes. Marks the summaries of visited nodes as out of date.
    fn rebalance(&mut self, path: &mut Path, least: usize) {
        while let Some(slot) = path.pop() {
            let (low, high) = self.heights_below(slot);
            let top = if low > high + 1 {
                let left = self.arena.node(slot).left;
                let (outer, inner) = self.heights_below(left);
                if inner > outer {
                    let lifted = self.rotate_left(left);
                    self.arena.node_mut(slot).left = lifted;
                }
                self.rotate_right(slot)
            } else if high > low + 1 {
                let right = self.arena.node(slot).right;
                let (inner, outer) = self.heights_below(right);
                if inner > outer {
                    let lifted = self.rotate_right(right);
                    self.arena.node_mut(slot).right = lifted;
                }
                self.rotate_left(slot)
            } else if self.settle(slot, low, high) || (least != usize::MAX && path.depth() >= least) {
                continue;
            } else {
                return;
            };
            self.replace_child(path.last(), slot, top);
        }
    }

    /// Lifts the right child of `slot` above it; returns it.
    fn rotate_left(&mut self, slot: u32) -> u32 {
        let top = self.arena.node(slot).right;
        self.arena.node_mut(slot).right = self.arena.node(top).left;
        self.arena.node_mut(top).left = slot;
        self.settle_both(slot, top);
        top
    }

    /// Lifts the left child of `slot` above it; returns it.
    fn rotate_right(&mut self, slot: u32) -> u32 {
        let top = self.arena.node(slot).left;
        self.arena.node_mut(slot).left = self.arena.node(top).right;
        self.arena.node_mut(top).right = slot;
        self.settle_both(slot, top);
        top
    }

    /// Settle a node and the one that was lifted above it.
    fn settle_both(&mut self, slot: u32, top: u32) {
        for at in [slot, top] {
            let (low, high) = self.heights_below(at);
            self.settle(at, low, high);
        }
    }
}

pub(crate) fn validate<K, V, S>(tree: &Tree<K, V, S>)
where
    K: Ord + Copy,
    S: Summary<K, V> + core::fmt::Debug,
{
    let mut before = NONE;
    let count = validate_below(tree, tree.root, &mut before);
    assert_eq!(count, tree.len(), "every used slot is in the tree");
    assert_eq!(before, tree.last, "the last entry is the last of the order");
    assert_eq!(tree.arena.get(before).map_or(NONE, |node| node.next), NONE, "nothing follows it");
}

/// Returns the number of entries at and below `slot`. `before` is the entry before the first of
/// them, and becomes the last of them.
fn validate_below<K, V, S>(tree: &Tree<K, V, S>, slot: u32, before: &mut u32) -> usize
where
    K: Ord + Copy,
    S: Summary<K, V> + core::fmt::Debug,
{
    let Some(node) = tree.arena.get(slot) else { return 0 };
    let left = validate_below(tree, node.left, before);
    assert_eq!(node.prev, *before, "each entry is linked to the one before it");
    match tree.arena.get(*before) {
        None => assert_eq!(tree.first, slot, "the first entry is the first of the order"),
        Some(prev) => {
            assert!(prev.key < node.key, "keys rise");
            assert_eq!(prev.next, slot, "each entry is linked to the one after it");
        }
    }
    *before = slot;
    let right = validate_below(tree, node.right, before);
    let (low, high) = (tree.height(node.left), tree.height(node.right));
    assert!(low.abs_diff(high) <= 1, "siblings differ by one level at most");
    assert_eq!(node.height, 1 + low.max(high));
    assert!(node.value.is_some(), "a slot of the tree is used");
    if node.is_summed {
        let below = [node.left, node.right].map(|child| tree.arena.get(child));
        assert!(below.iter().flatten().all(|child| child.is_summed), "what is summed stands on what is");
        assert_eq!(
            node.summary,
            tree.summary_of(slot).expect("the children are summed"),
            "it is that of the subtree"
        );
    }
    left + 1 + right
}
