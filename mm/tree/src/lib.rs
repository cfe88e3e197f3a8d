//! An ordered map that knows a [`Summary`] of each subtree, so that the next entry of a kind is
//! found without visiting the others: the next gap that is wide enough, the next dirty chunk.
//! Linux' nearest relatives are the maple tree's gaps and the tags of its xarray.
//!
//! An AVL tree in an arena of slots. Finding, inserting and removing take O(log n) steps; the
//! entries are also linked in their order, so that neighbours and ranges cost a step per entry.
//! Inserting is fallible and changes nothing when it fails: a caller that cannot handle an error
//! later makes room first ([`Tree::reserve`]). The arena grows by blocks of at most 4 KiB, so a
//! large tree needs no large allocation, and shrinks when three quarters of it are unused.
//!
//! Not synchronised; the owner's lock covers it. Nothing here calls back into the owner except
//! [`Summary`] and the closures of searches, which must not panic.
#![doc = "\n"]
#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod arena;
mod balance;
mod iter;
mod search;
#[cfg(test)]
mod tests;

use core::ops::Bound;
use core::sync::atomic::{AtomicU32, Ordering};

use arena::{Arena, ArenaNode, NONE};
pub use arena::{NoMemory, SPARE};
pub use iter::Range;

/// Summary that a tree keeps of each of its subtrees.
///
/// Sums are made when a search asks for them. A change only marks sums as out of date, up to the
/// first node that is already marked. So each sum is computed once for all changes since the last
/// search, and never for a tree without searches (for example that of a child that soon calls
/// execve).
pub trait Summary<K, V>: Clone + PartialEq {
    /// Returns the summary of one entry.
    fn of(key: &K, value: &V) -> Self;
    /// Returns the summary of the entries of `self` and those of `next`, which follow them.
    fn join(&self, next: &Self) -> Self;
}

/// No summary: for a map that is never searched by one.
impl<K, V> Summary<K, V> for () {
    fn of(_key: &K, _value: &V) -> Self {}
    fn join(&self, _next: &Self) -> Self {}
}

/// An entry's place, valid until that entry is removed or the tree [shrinks](Tree::remove).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot(u32);

impl Slot {
    /// The value for no entry.
    pub const NONE: Self = Self(NONE);
}

/// A slot that users of a tree remember together. Loads and stores are relaxed: a remembered slot
/// is checked again before it is used ([`Tree::at_slot`]).
#[derive(Debug)]
pub struct AtomicSlot(AtomicU32);

impl AtomicSlot {
    /// Remembers `slot`.
    pub const fn new(slot: Slot) -> Self {
        Self(AtomicU32::new(slot.0))
    }
    /// Returns the remembered slot.
    #[inline]
    pub fn get(&self) -> Slot {
        Slot(self.0.load(Ordering::Relaxed))
    }
    /// Remember `slot`.
    #[inline]
    pub fn set(&self, slot: Slot) {
        self.0.store(slot.0, Ordering::Relaxed);
    }
}

/// An ordered map with summaries. See the [crate's description](crate).
pub struct Tree<K, V, S = ()> {
    arena: Arena<K, V, S>,
    root: u32,
    first: u32,
    last: u32,
}

impl<K: Ord + Copy, V, S: Summary<K, V>> Default for Tree<K, V, S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Ord + Copy, V, S: Summary<K, V>> Tree<K, V, S> {
    /// An empty tree; allocates nothing.
    pub const fn new() -> Self {
        Self { arena: Arena::new(), root: NONE, first: NONE, last: NONE }
    }

    /// Makes a tree of `entries`, whose keys are ascending, in O(n) steps. Room for `room` entries
    /// is made first.
    ///
    /// # Errors
    /// The first error of `entries`, and [`NoMemory`]; the entries before it are dropped.
    pub fn try_from_sorted<E: From<NoMemory>>(
        room: usize,
        entries: impl Iterator<Item = Result<(K, V), E>>,
    ) -> Result<Self, E> {
        let mut tree = Self::new();
        tree.reserve(room)?;
        for entry in entries {
            let (key, value) = entry?;
            tree.append(key, value)?;
        }
        tree.build();
        Ok(tree)
    }

    /// The number of entries.
    pub const fn len(&self) -> usize {
        self.arena.used()
    }

    /// Whether there is no entry.
    pub const fn is_empty(&self) -> bool {
        self.root == NONE
    }

    /// Makes room for `more` entries: that many insertions do not fail. Removals in between keep
    /// room for up to [`SPARE`] of them.
    ///
    /// # Errors
    /// [`NoMemory`]; the tree is as it was.
    #[inline]
    pub fn reserve(&mut self, more: usize) -> Result<(), NoMemory> {
        self.arena.reserve(more)
    }

    fn slot_of(&self, key: &K) -> u32 {
        let mut at = self.root;
        while at != NONE {
            let node = self.arena.node(at);
            at = match key.cmp(&node.key) {
                core::cmp::Ordering::Less => node.left,
                core::cmp::Ordering::Greater => node.right,
                core::cmp::Ordering::Equal => return at,
            };
        }
        NONE
    }

    /// The last entry at or before `key`.
    fn floor_slot(&self, key: &K) -> u32 {
        let (mut at, mut best) = (self.root, NONE);
        while at != NONE {
            let node = self.arena.node(at);
            if node.key <= *key {
                best = at;
                at = node.right;
            } else {
                at = node.left;
            }
        }
        best
    }

    /// The first entry at or after `key` (after it, if `key` itself is excluded).
    fn ceiling_slot(&self, key: Bound<&K>) -> u32 {
        let passes = |other: &K| match key {
            Bound::Included(key) => other >= key,
            Bound::Excluded(key) => other > key,
            Bound::Unbounded => true,
        };
        let (mut at, mut best) = (self.root, NONE);
        while at != NONE {
            let node = self.arena.node(at);
            if passes(&node.key) {
                best = at;
                at = node.left;
            } else {
                at = node.right;
            }
        }
        best
    }

    /// The value at `key`.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.arena.value(self.slot_of(key))
    }

    /// The place of `key`.
    pub fn find(&self, key: &K) -> Slot {
        Slot(self.slot_of(key))
    }

    /// The value in `slot`, if one is there. It may be another one than when the slot was
    /// remembered.
    #[inline(always)]
    pub fn at_slot(&self, slot: Slot) -> Option<&V> {
        self.arena.value(slot.0)
    }

    /// Whether `slot` is the place of `key`.
    #[inline(always)]
    pub fn is_at(&self, slot: Slot, key: &K) -> bool {
        self.arena.get(slot.0).is_some_and(|node| node.value.is_some() && node.key == *key)
    }

    /// The value in `slot`, to be changed; if its [`Summary`] changes, the caller calls
    /// [`Tree::summary_changed`] afterwards.
    #[inline(always)]
    pub fn at_slot_mut(&mut self, slot: Slot) -> Option<&mut V> {
        self.arena.value_mut(slot.0)
    }

    /// Notes that the value at `key` was changed in place, and that its [`Summary`] changed, too.
    pub fn summary_changed(&mut self, key: &K) {
        let mut path = balance::Path::default();
        let slot = self.path_to(key, &mut path);
        if slot != NONE {
            self.note_due(slot, &path);
        }
    }

    /// The place of the entry after the one in `slot`.
    pub fn slot_after(&self, slot: Slot) -> Slot {
        let next = |node: &ArenaNode<K, V, S>| if node.value.is_some() { node.next } else { NONE };
        Slot(self.arena.get(slot.0).map_or(NONE, next))
    }

    /// The place of the entry before the one in `slot`.
    pub fn slot_before(&self, slot: Slot) -> Slot {
        let prev = |node: &ArenaNode<K, V, S>| if node.value.is_some() { node.prev } else { NONE };
        Slot(self.arena.get(slot.0).map_or(NONE, prev))
    }

    /// The place of the last entry at or before `key`. If that is the entry in `near`, which may be
    /// any slot, the tree is not searched.
    #[inline]
    pub fn floor_near(&self, near: Slot, key: &K) -> Slot {
        let is_it = |node: &ArenaNode<K, V, S>| {
            node.value.is_some()
                && node.key <= *key
                && self.arena.get(node.next).is_none_or(|next| next.key > *key)
        };
        if self.arena.get(near.0).is_some_and(is_it) { near } else { Slot(self.floor_slot(key)) }
    }

    /// The place of the entry that follows `before`; of the first one if that is [`Slot::NONE`].
    pub fn slot_following(&self, before: Slot) -> Slot {
        if before == Slot::NONE { Slot(self.first) } else { self.slot_after(before) }
    }

    /// Gives the entry at `key` the key `new`, which is between the same neighbours, and changes
    /// its value.
    pub fn rekey(&mut self, key: &K, new: K, f: impl FnOnce(&mut V)) {
        let mut path = balance::Path::default();
        let slot = self.path_to(key, &mut path);
        let Some(before) = self.own_summary(slot) else { return };
        let node = self.arena.node_mut(slot);
        node.key = new;
        if let Some(value) = &mut node.value {
            f(value);
        }
        self.note_change(slot, &before, &path);
    }

    /// Changes the value at `key`.
    pub fn update<R>(&mut self, key: &K, f: impl FnOnce(&mut V) -> R) -> Option<R> {
        let mut path = balance::Path::default();
        let slot = self.path_to(key, &mut path);
        let before = self.own_summary(slot)?;
        let result = self.arena.value_mut(slot).map(f);
        self.note_change(slot, &before, &path);
        result
    }

    /// The last entry at or before `key`.
    pub fn floor(&self, key: &K) -> Option<(Slot, &K, &V)> {
        self.entry(self.floor_slot(key))
    }

    /// The first entry at or after `key`.
    pub fn ceiling(&self, key: &K) -> Option<(Slot, &K, &V)> {
        self.entry(self.ceiling_slot(Bound::Included(key)))
    }

    /// The first entry after `key`.
    pub fn after(&self, key: &K) -> Option<(Slot, &K, &V)> {
        self.entry(self.ceiling_slot(Bound::Excluded(key)))
    }

    fn entry(&self, slot: u32) -> Option<(Slot, &K, &V)> {
        let node = self.arena.get(slot)?;
        Some((Slot(slot), &node.key, node.value.as_ref()?))
    }

    /// The first entry.
    pub fn first(&self) -> Option<(Slot, &K, &V)> {
        self.entry(self.first)
    }

    /// The last entry.
    pub fn last(&self) -> Option<(Slot, &K, &V)> {
        self.entry(self.last)
    }

    /// Stores `value` at `key`, and returns the previous value.
    ///
    /// # Errors
    /// [`NoMemory`]; the tree is as it was, and `value` is dropped. Never if [`Tree::reserve`] has
    /// made room.
    pub fn insert(&mut self, key: K, value: V) -> Result<Option<V>, NoMemory> {
        let mut path = balance::Path::default();
        let slot = self.path_to(&key, &mut path);
        if let Some(before) = self.own_summary(slot) {
            let old = self.arena.node_mut(slot).value.replace(value);
            self.note_change(slot, &before, &path);
            return Ok(old);
        }
        let summary = S::of(&key, &value);
        let new = self.arena.put(ArenaNode::new(key, value, summary))?;
        self.hang(new, &mut path);
        Ok(None)
    }

    /// Stores `value` at `key`, which has none, and returns its slot.
    ///
    /// # Errors
    /// As [`Tree::insert`].
    pub fn add(&mut self, key: K, value: V) -> Result<Slot, NoMemory> {
        let mut path = balance::Path::default();
        let slot = self.path_to(&key, &mut path);
        debug_assert_eq!(slot, NONE, "the key has no entry");
        let summary = S::of(&key, &value);
        let new = self.arena.put(ArenaNode::new(key, value, summary))?;
        self.hang(new, &mut path);
        Ok(Slot(new))
    }

    /// Removes the entry at `key`. If the tree shrinks, other entries' slots may change.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let mut path = balance::Path::default();
        let slot = self.path_to(key, &mut path);
        if slot == NONE {
            return None;
        }
        self.unhang(slot, &mut path);
        let value = self.arena.take(slot);
        if self.arena.is_sparse() {
            self.shrink();
        }
        value
    }

    /// Removes the first entry.
    pub fn pop_first(&mut self) -> Option<(K, V)> {
        let key = self.arena.get(self.first)?.key;
        self.remove(&key).map(|value| (key, value))
    }

    /// Builds the tree anew in a smaller arena, with the room that [`Tree::reserve`] promised, if
    /// there is memory for one.
    fn shrink(&mut self) {
        let mut smaller = Self::new();
        if smaller.reserve(self.len() + SPARE).is_err() {
            return;
        }
        let mut at = self.first;
        while at != NONE {
            let (key, next) = (self.arena.node(at).key, self.arena.node(at).next);
            if let Some(value) = self.arena.take(at) {
                // Room was made for all of them.
                let _ = smaller.append(key, value);
            }
            at = next;
        }
        smaller.build();
        *self = smaller;
    }

    /// Checks order, links, balance and summaries.
    ///
    /// # Panics
    /// If one of them is wrong.
    pub fn validate(&self)
    where
        S: core::fmt::Debug,
    {
        balance::validate(self);
    }
}
