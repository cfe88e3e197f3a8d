//! Slots for nodes: one block for a small tree, a list of further blocks for a large one. Unused
//! slots are linked.

use alloc::vec::Vec;

/// No slot.
pub(crate) const NONE: u32 = u32::MAX;
/// Largest number of bytes of slots that are allocated at a time: a frame.
const BLOCK_BYTES: usize = 4096;
/// Number of free entries for which removals keep room.
pub const SPARE: usize = 16;

/// There was no memory for an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoMemory;

pub(crate) struct ArenaNode<K, V, S> {
    pub key: K,
    /// `None` in an unused slot.
    pub value: Option<V>,
    /// The summary of the subtree, if [`ArenaNode::is_summed`].
    pub summary: S,
    pub left: u32,
    pub right: u32,
    pub prev: u32,
    /// The next entry in order; for an unused slot, the next unused one.
    pub next: u32,
    pub height: u8,
    /// Whether `summary` is up to date for the subtree. If not, those of the nodes above are not
    /// either.
    pub is_summed: bool,
}

impl<K, V, S> ArenaNode<K, V, S> {
    pub(crate) const fn new(key: K, value: V, summary: S) -> Self {
        Self {
            key,
            value: Some(value),
            summary,
            left: NONE,
            right: NONE,
            prev: NONE,
            next: NONE,
            height: 1,
            is_summed: true,
        }
    }
}

pub(crate) struct Arena<K, V, S> {
    /// Room for up to [`Arena::BLOCK`] slots.
    first: Vec<ArenaNode<K, V, S>>,
    /// Blocks with room for [`Arena::BLOCK`] slots each, filled in order after the first one.
    more: Vec<Vec<ArenaNode<K, V, S>>>,
    /// The first unused slot.
    unused: u32,
    /// Number of slots with an entry, of all slots, and of slots for which there is room.
    used: usize,
    slots: usize,
    room: usize,
}

impl<K, V, S> Arena<K, V, S> {
    /// The slots of a block: a power of two.
    const BLOCK: usize = {
        let fit = BLOCK_BYTES / size_of::<ArenaNode<K, V, S>>();
        if fit < 4 { 4 } else { 1 << fit.ilog2() }
    };

    pub(crate) const fn new() -> Self {
        Self { first: Vec::new(), more: Vec::new(), unused: NONE, used: 0, slots: 0, room: 0 }
    }

    pub(crate) const fn used(&self) -> usize {
        self.used
    }

    /// Whether three quarters of a large arena are unused.
    pub(crate) const fn is_sparse(&self) -> bool {
        self.slots > 8 * SPARE && self.used < self.slots / 4
    }

    #[inline]
    pub(crate) fn reserve(&mut self, more: usize) -> Result<(), NoMemory> {
        if self.room - self.used >= more { Ok(()) } else { self.grow(self.used + more) }
    }

    #[cold]
    fn grow(&mut self, wanted: usize) -> Result<(), NoMemory> {
        while self.room < wanted {
            let (in_first, missing) = (self.room, wanted - self.room);
            if in_first < Self::BLOCK {
                let room = (in_first * 2).max(4).max(in_first + missing).min(Self::BLOCK);
                let more = room - self.first.len();
                self.first.try_reserve_exact(more).map_err(|_| NoMemory)?;
                self.room = room;
            } else {
                let mut block = Vec::new();
                block.try_reserve_exact(Self::BLOCK).map_err(|_| NoMemory)?;
                self.more.try_reserve(1).map_err(|_| NoMemory)?;
                self.more.push(block);
                self.room += Self::BLOCK;
            }
        }
        Ok(())
    }

    /// Puts a node into a slot.
    pub(crate) fn put(&mut self, node: ArenaNode<K, V, S>) -> Result<u32, NoMemory> {
        self.reserve(1)?;
        let slot = if self.unused == NONE {
            match (self.slots / Self::BLOCK).checked_sub(1) {
                None => self.first.push(node),
                Some(block) => self.more[block].push(node),
            }
            self.slots += 1;
            self.slots - 1
        } else {
            let slot = self.unused as usize;
            self.unused = self.node(self.unused).next;
            *self.node_mut(slot as u32) = node;
            slot
        };
        self.used += 1;
        Ok(slot as u32)
    }

    /// Removes the entry of `slot`; its links are kept until the slot is used again.
    pub(crate) fn take(&mut self, slot: u32) -> Option<V> {
        let unused = self.unused;
        let node = self.node_mut(slot);
        let value = node.value.take();
        node.next = unused;
        self.unused = slot;
        self.used -= 1;
        value
    }

    #[inline(always)]
    pub(crate) fn node(&self, slot: u32) -> &ArenaNode<K, V, S> {
        self.get(slot).expect("links lead to nodes")
    }

    #[inline(always)]
    pub(crate) fn node_mut(&mut self, slot: u32) -> &mut ArenaNode<K, V, S> {
        self.get_mut(slot).expect("links lead to nodes")
    }

    /// The node of `slot`, if it has one.
    #[inline(always)]
    pub(crate) fn get(&self, slot: u32) -> Option<&ArenaNode<K, V, S>> {
        let slot = slot as usize;
        if slot < Self::BLOCK {
            return self.first.get(slot);
        }
        self.more.get(slot / Self::BLOCK - 1)?.get(slot % Self::BLOCK)
    }

    #[inline(always)]
    fn get_mut(&mut self, slot: u32) -> Option<&mut ArenaNode<K, V, S>> {
        let slot = slot as usize;
        if slot < Self::BLOCK {
            return self.first.get_mut(slot);
        }
        self.more.get_mut(slot / Self::BLOCK - 1)?.get_mut(slot % Self::BLOCK)
    }

    #[inline(always)]
    pub(crate) fn value(&self, slot: u32) -> Option<&V> {
        self.get(slot)?.value.as_ref()
    }

    #[inline(always)]
    pub(crate) fn value_mut(&mut self, slot: u32) -> Option<&mut V> {
        self.get_mut(slot)?.value.as_mut()
    }

    #[cfg(test)]
    pub(crate) const fn room(&self) -> usize {
        self.room
    }
}
