//! An ordered map whose insertion can fail.
//!
//! It is a B-tree (Knuth, The Art of Computer Programming, volume 3, section 6.2.4). A node has
//! [`MIN`] to [`CAPACITY`] entries, the root 0 to [`CAPACITY`], and an inner node one child more
//! than entries. Nodes keep their entries in lists with room for all that they may hold, so only a
//! new node needs memory. A search, an insertion and a removal take a number of steps logarithmic
//! in the number of entries, and recurse as deep as the tree is high: 13 for 2^32 entries.
//!
//! **An insertion that fails changes no entry.** On its way down it splits each full node, so that
//! a node has a place for the entry that moves up when its child is split. Each split allocates its
//! memory before it changes anything, and leaves a valid tree. A removal never allocates: it moves
//! entries between neighbours, or joins two small ones where both have room for the other's.
//!
//! **Keys that ascend**, as numbers of descriptors, processes and timers do, would leave all nodes
//! half full. So if a node splits for a key that is greater than all of its own, it keeps as many
//! entries as it can.

use alloc::vec::Vec;
use core::borrow::Borrow;
use core::cmp::Ordering;
use core::ops::Bound;
use core::{fmt, iter, mem};

use crate::AllocError;
use crate::heap_use::fallibly;

mod visit;

pub use visit::{Iter, Keys, Range, Values};

/// Smallest number of entries of a node other than the root.
const MIN: usize = 5;
/// Largest number of entries of a node.
const CAPACITY: usize = 3 * MIN;
/// Entries that a map's first node has room for at first.
const FIRST: usize = 4;
/// The greatest height: 2 * 6^15 entries, which no machine has.
const HEIGHT: usize = 16;

pub(super) struct MapNode<K, V> {
    entries: Vec<(K, V)>,
    /// The nodes below; a leaf has none.
    children: Vec<MapNode<K, V>>,
}

fn with_room<T>(count: usize) -> Result<Vec<T>, AllocError> {
    let mut list = Vec::new();
    fallibly(|| list.try_reserve_exact(count))?;
    Ok(list)
}

impl<K, V> MapNode<K, V> {
    const EMPTY: Self = Self { entries: Vec::new(), children: Vec::new() };

    fn is_leaf(&self) -> bool {
        self.children.is_empty()
    }
    fn is_full(&self) -> bool {
        self.entries.len() == CAPACITY
    }
    /// An empty node with room for all that a leaf or an inner node may have.
    fn new(is_leaf: bool) -> Result<Self, AllocError> {
        let children = if is_leaf { Vec::new() } else { with_room(CAPACITY + 1)? };
        Ok(Self { entries: with_room(CAPACITY)?, children })
    }
    /// Returns the position of `key` among the entries, or the index of the child that leads to it.
    #[inline]
    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        if mem::needs_drop::<K>() {
            // Such a key is a name: the cost is the number of names compared.
            return self.entries.binary_search_by(|(there, _)| there.borrow().cmp(key));
        }
        // From the end: the largest numbers are the newest, which are used most.
        for (at, (there, _)) in self.entries.iter().enumerate().rev() {
            match there.borrow().cmp(key) {
                Ordering::Less => return Err(at + 1),
                Ordering::Equal => return Ok(at),
                Ordering::Greater => {}
            }
        }
        Err(0)
    }

    /// Whether `key` is greater than the keys of all entries.
    fn ends_before(&self, key: &K) -> bool
    where
        K: Ord,
    {
        self.entries.last().is_some_and(|(last, _)| last < key)
    }
    /// Splits a full node: `stay` entries stay, the next one is returned, and all after it move to
    /// `right`.
    fn split(&mut self, stay: usize, right: &mut Self) -> (K, V) {
        right.entries.extend(self.entries.drain(stay + 1..));
        if !self.is_leaf() {
            right.children.extend(self.children.drain(stay + 1..));
        }
        self.entries.pop().expect("a full node has more than stay")
    }
    /// Splits the full child `at` in two, of which the first keeps `stay` entries. There is room
    /// for another child.
    fn split_child(&mut self, at: usize, stay: usize, mut right: Self) {
        let between = self.children[at].split(stay, &mut right);
        self.entries.insert(at, between);
        self.children.insert(at + 1, right);
    }

    fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<(K, V)>
    where
        K: Borrow<Q>,
    {
        let found = self.find(key);
        if self.is_leaf() {
            return found.ok().map(|at| self.entries.remove(at));
        }
        let (Ok(at) | Err(at)) = found;
        let mut removed = match found {
            Ok(_) => self.children[at].pop_last(),
            Err(_) => self.children[at].remove(key),
        };
        if let (Ok(_), Some(before)) = (found, &mut removed) {
            mem::swap(&mut self.entries[at], before);
        }
        self.mend(at);
        removed
    }
    fn pop_last(&mut self) -> Option<(K, V)> {
        let Some(child) = self.children.last_mut() else { return self.entries.pop() };
        let last = child.pop_last();
        self.mend(self.children.len() - 1);
        last
    }
    fn pop_first(&mut self) -> Option<(K, V)> {
        let Some(child) = self.children.first_mut() else {
            return if self.entries.is_empty() { None } else { Some(self.entries.remove(0)) };
        };
        let first = child.pop_first();
        self.mend(0);
        first
    }

    /// If the child `at` has too few entries, gives it one from a neighbour, or joins both.
    #[inline]
    fn mend(&mut self, at: usize) {
        if self.children[at].entries.len() < MIN {
            self.fill(at);
        }
    }
    #[cold]
    fn fill(&mut self, at: usize) {
        let spares = |child: Option<&Self>| child.is_some_and(|child| child.entries.len() > MIN);
        if at > 0 && spares(self.children.get(at - 1)) {
            self.move_right(at - 1);
        } else if spares(self.children.get(at + 1)) {
            self.move_left(at);
        } else {
            self.join(at.saturating_sub(1));
        }
    }
    /// The last entry of the child `at` moves up; the entry between moves down to the next child.
    fn move_right(&mut self, at: usize) {
        let [left, right] = &mut self.children[at..at + 2] else { return };
        if let Some(last) = left.entries.pop() {
            right.entries.insert(0, mem::replace(&mut self.entries[at], last));
        }
        if let Some(child) = left.children.pop() {
            right.children.insert(0, child);
        }
    }
    /// The first entry of the child after `at` moves up; the entry between moves down to the child
    /// `at`.
    fn move_left(&mut self, at: usize) {
        let [left, right] = &mut self.children[at..at + 2] else { return };
        let first = right.entries.remove(0);
        left.entries.push(mem::replace(&mut self.entries[at], first));
        if !right.is_leaf() {
            left.children.push(right.children.remove(0));
        }
    }
    /// Joins the child `at`, the child after it, and the entry between them: together they have at
    /// most `CAPACITY` entries.
    fn join(&mut self, at: usize) {
        let between = self.entries.remove(at);
        let mut right = self.children.remove(at + 1);
        let left = &mut self.children[at];
        left.entries.push(between);
        left.entries.append(&mut right.entries);
        left.children.append(&mut right.children);
    }
}

/// An ordered map. See the module's head.
pub struct Map<K, V> {
    root: MapNode<K, V>,
    len: usize,
    /// Empty nodes of either kind for later insertions.
    spares: Vec<MapNode<K, V>>,
}

impl<K, V> Map<K, V> {
    /// Creates an empty map, which needs no memory.
    pub const fn new() -> Self {
        Self { root: MapNode::EMPTY, len: 0, spares: Vec::new() }
    }
    /// The number of entries.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Visits all entries by key.
    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter::new(&self.root)
    }
    /// Visits all keys in order.
    pub fn keys(&self) -> Keys<'_, K, V> {
        Keys(self.iter())
    }
    /// Visits all values by key.
    pub fn values(&self) -> Values<'_, K, V> {
        Values(self.iter())
    }
    /// Removes the entry with the smallest key.
    pub fn pop_first(&mut self) -> Option<(K, V)> {
        let first = self.root.pop_first()?;
        self.removed();
        Some(first)
    }
    /// Removes the entry with the greatest key.
    pub fn pop_last(&mut self) -> Option<(K, V)> {
        let last = self.root.pop_last()?;
        self.removed();
        Some(last)
    }

    fn removed(&mut self) {
        self.len -= 1;
        // A root that lost its last entry has one child.
        if self.root.entries.is_empty()
            && let Some(child) = self.root.children.pop()
        {
            self.root = child;
        }
    }
    /// Makes room for one entry in the root: more in its list, or a new root above it.
    #[cold]
    fn grow_root(&mut self, key: &K) -> Result<(), AllocError>
    where
        K: Ord,
    {
        let root = &mut self.root;
        if !root.is_full() {
            let room = if root.entries.is_empty() { FIRST } else { CAPACITY - root.entries.len() };
            return fallibly(|| root.entries.try_reserve_exact(room));
        }
        let above = take_node(&mut self.spares, false)?;
        let mut right = take_node(&mut self.spares, root.is_leaf())?;
        let between = root.split(stay_for(root, key), &mut right);
        let left = mem::replace(root, above);
        root.entries.push(between);
        root.children.push(left);
        root.children.push(right);
        Ok(())
    }
    /// Makes room for `count` insertions of any keys by [`Map::insert_reserved`], for a change that
    /// must not stop half-way. Removals in between are allowed, other insertions are not.
    ///
    /// # Errors
    /// [`AllocError`]; the map is as it was.
    pub fn try_reserve(&mut self, count: usize) -> Result<(), AllocError> {
        let root = &mut self.root;
        let wanted = root.entries.len() + count;
        // A root without children is not split while it has places.
        if root.is_leaf() && wanted <= CAPACITY {
            let room = if wanted <= FIRST { FIRST } else { CAPACITY } - root.entries.len();
            return fallibly(|| root.entries.try_reserve_exact(room));
        }
        // An insertion splits at most one node at each level, and makes three nodes of the root.
        // When the tree grows by one level, it is one level higher for the next insertion.
        let need = count * (self.height() + 1 + count);
        let root = &mut self.root;
        let room = CAPACITY - root.entries.len();
        fallibly(|| root.entries.try_reserve_exact(room))?;
        let missing = need.saturating_sub(self.spares.len());
        fallibly(|| self.spares.try_reserve(missing))?;
        for _ in 0..missing {
            self.spares.push(MapNode::new(false)?);
        }
        Ok(())
    }
    /// Removes all entries, in one step per node. The room from [`Map::try_reserve`] stays.
    pub fn clear(&mut self) {
        self.root.children.clear();
        self.root.entries.clear();
        self.len = 0;
    }
    /// Frees what [`Map::try_reserve`] set aside and no insertion needed.
    pub fn release_room(&mut self) {
        self.spares = Vec::new();
    }
    fn height(&self) -> usize {
        iter::successors(Some(&self.root), |node| node.children.first()).count()
    }
}

/// A spare node, or a new one.
fn take_node<K, V>(spares: &mut Vec<MapNode<K, V>>, is_leaf: bool) -> Result<MapNode<K, V>, AllocError> {
    match spares.pop() {
        Some(spare) => Ok(spare),
        None => MapNode::new(is_leaf),
    }
}

/// How many entries a full node keeps when it splits for `key`.
fn stay_for<K: Ord, V>(node: &MapNode<K, V>, key: &K) -> usize {
    if node.ends_before(key) { CAPACITY - 1 - MIN } else { CAPACITY / 2 }
}

impl<K: Ord, V> Map<K, V> {
    /// The value of `key`.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let mut node = &self.root;
        loop {
            match node.find(key) {
                Ok(at) => return Some(&node.entries[at].1),
                Err(at) => node = node.children.get(at)?,
            }
        }
    }
    /// The value of `key`, to be changed.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let mut node = &mut self.root;
        loop {
            match node.find(key) {
                Ok(at) => return Some(&mut node.entries[at].1),
                Err(at) => node = node.children.get_mut(at)?,
            }
        }
    }
    /// Whether there is an entry with `key`.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }
    /// Returns the first entry whose key is beyond `bound`.
    pub fn first_from<Q: Ord + ?Sized>(&self, bound: Bound<&Q>) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        let (mut node, mut found) = (&self.root, None);
        loop {
            let at = node.entries.partition_point(|(key, _)| lies_before(key.borrow(), bound));
            found = node.entries.get(at).or(found);
            let Some(child) = node.children.get(at) else { break };
            node = child;
        }
        found.map(|(key, value)| (key, value))
    }
    /// Returns the last entry whose key is before `bound`.
    pub fn last_until<Q: Ord + ?Sized>(&self, bound: Bound<&Q>) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        let (mut node, mut found) = (&self.root, None);
        loop {
            let at = node.entries.partition_point(|(key, _)| lies_inside(key.borrow(), bound));
            found = at.checked_sub(1).map(|before| &node.entries[before]).or(found);
            let Some(child) = node.children.get(at) else { break };
            node = child;
        }
        found.map(|(key, value)| (key, value))
    }
    /// Visits the entries with keys from `first` up to `end`, from either side. Each step is a
    /// search of its own; to visit all entries [`Map::iter`] is faster.
    pub fn range<'a, Q: Ord + ?Sized>(&'a self, first: Bound<&'a Q>, end: Bound<&'a Q>) -> Range<'a, K, V, Q>
    where
        K: Borrow<Q>,
    {
        Range::new(self, first, end)
    }

    /// Sets the value of `key`. Returns its former value.
    ///
    /// # Errors
    /// [`AllocError`]; `key` and `value` are dropped, no entry is changed.
    pub fn try_insert(&mut self, key: K, value: V) -> Result<Option<V>, AllocError> {
        // An inner root has room for the largest number of entries.
        if self.root.is_full() || self.root.entries.len() == self.root.entries.capacity() {
            self.grow_root(&key)?;
        }
        let mut node = &mut self.root;
        loop {
            let mut at = match node.find(&key) {
                Ok(at) => return Ok(Some(mem::replace(&mut node.entries[at].1, value))),
                Err(at) => at,
            };
            if node.is_leaf() {
                node.entries.insert(at, (key, value));
                self.len += 1;
                return Ok(None);
            }
            if node.children[at].is_full() {
                let right = take_node(&mut self.spares, node.children[at].is_leaf())?;
                let stay = stay_for(&node.children[at], &key);
                node.split_child(at, stay, right);
                match key.cmp(&node.entries[at].0) {
                    Ordering::Less => {}
                    Ordering::Equal => return Ok(Some(mem::replace(&mut node.entries[at].1, value))),
                    Ordering::Greater => at += 1,
                }
            }
            node = &mut node.children[at];
        }
    }
    /// Sets the value of `key`, with room from [`Map::try_reserve`]. Returns its former value.
    ///
    /// # Panics
    /// If there is no such room.
    pub fn insert_reserved(&mut self, key: K, value: V) -> Option<V> {
        self.try_insert(key, value).expect("room was reserved")
    }
    /// Visits all entries whose keys lie behind `bound`, by key.
    pub fn iter_from<Q: Ord + ?Sized>(&self, bound: Bound<&Q>) -> Iter<'_, K, V>
    where
        K: Borrow<Q>,
    {
        Iter::from(&self.root, |key| lies_before(key.borrow(), bound))
    }
    /// Removes the entries for which `stays` is false.
    pub fn retain(&mut self, mut stays: impl FnMut(&K, &V) -> bool)
    where
        K: Copy,
    {
        let mut from = Bound::Unbounded;
        loop {
            let mut rest = self.iter_from(from.as_ref());
            let Some(goes) = rest.find(|(key, value)| !stays(key, value)).map(|(key, _)| *key) else { break };
            self.remove(&goes);
            from = Bound::Excluded(goes);
        }
    }
    /// Removes the entry of `key`. Returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let (_, value) = self.root.remove(key)?;
        self.removed();
        Some(value)
    }

    /// Checks that the tree is valid.
    ///
    /// # Panics
    /// If it is not.
    pub fn validate(&self) {
        assert!(self.root.is_leaf() || !self.root.entries.is_empty(), "an inner root has an entry");
        let (entries, _) = validate_node(&self.root, true);
        assert_eq!(entries, self.len, "the number of entries");
        assert!(self.keys().zip(self.keys().skip(1)).all(|(one, next)| one < next), "keys ascend");
    }
}

/// Whether a range that begins at `bound` begins behind `key`.
fn lies_before<Q: Ord + ?Sized>(key: &Q, bound: Bound<&Q>) -> bool {
    match bound {
        Bound::Unbounded => false,
        Bound::Included(first) => key < first,
        Bound::Excluded(before) => key <= before,
    }
}

/// Whether a range that ends at `bound` ends behind `key`.
fn lies_inside<Q: Ord + ?Sized>(key: &Q, bound: Bound<&Q>) -> bool {
    match bound {
        Bound::Unbounded => true,
        Bound::Included(last) => key <= last,
        Bound::Excluded(end) => key < end,
    }
}

/// The number of entries below `node`, and its height.
fn validate_node<K, V>(node: &MapNode<K, V>, is_root: bool) -> (usize, usize) {
    assert!(is_root || node.entries.len() >= MIN, "a node has a third of its entries");
    assert!(node.entries.len() <= CAPACITY && (is_root || node.entries.capacity() >= CAPACITY));
    if node.is_leaf() {
        return (node.entries.len(), 1);
    }
    assert_eq!(node.children.len(), node.entries.len() + 1, "a child more than entries");
    assert!(node.children.capacity() > CAPACITY);
    let mut below = node.children.iter().map(|child| validate_node(child, false));
    let (first, height) = below.next().expect("an inner node has children");
    let rest: usize =
        below.inspect(|&(_, other)| assert_eq!(other, height)).map(|(entries, _)| entries).sum();
    (node.entries.len() + first + rest, height + 1)
}

impl<K, V> Default for Map<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Map<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
