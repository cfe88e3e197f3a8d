//! The free pageblocks of one side of a zone: a Fisher–Yates shuffle that never has to run.
//!
//! Positions 0 to `len` - 1 hold the free blocks. Taking the block at a uniformly drawn position and moving the last one into its
//! place is one step of Fisher–Yates with the partner drawn from what remains, so every order in which the blocks can come
//! out is equally likely, at boot as after years of frees, and no pass over memory is ever needed. A set that starts
//! full costs nothing to build: a position whose word is still 0 holds the block that belongs there by address.
//!
//! Without shuffle the last position is taken, which gives blocks by address, lowest first, and then the last freed first.
//!
//! Everything here happens under the zone's lock.

use core::sync::atomic::AtomicU64;

use crate::block::{BlockId, Blocks, link, unlink};
use crate::rng::Rng;
use crate::word::Plain;

/// Free pageblocks at boot: runs of them that follow each other by position.
pub(crate) trait Initial {
    /// The block that starts at `position`.
    fn block_at(&self, position: u64) -> BlockId;
    /// Where `block` starts.
    fn position_of(&self, block: BlockId) -> u64;
}

/// A set of free pageblocks. See the module's head.
#[derive(Debug)]
pub(crate) struct FreeSet {
    slots: &'static [AtomicU64],
    len: AtomicU64,
}

impl FreeSet {
    /// A set with room for `slots.len()` blocks that holds the first `len` of the initial ones.
    pub(crate) const fn new(slots: &'static [AtomicU64], len: u64) -> Self {
        Self { slots, len: AtomicU64::new(len) }
    }
    pub(crate) fn len(&self) -> u64 {
        self.len.get()
    }
    pub(crate) fn at(&self, position: u64, initial: &impl Initial) -> BlockId {
        unlink(self.slots[position as usize].get()).unwrap_or_else(|| initial.block_at(position))
    }
    fn place(&self, position: u64, block: BlockId, blocks: Blocks) {
        self.slots[position as usize].set(link(Some(block)));
        blocks.position(block).set(position + 1);
    }
    /// Where `block`, a member, is.
    pub(crate) fn position_of(&self, block: BlockId, blocks: Blocks, initial: &impl Initial) -> u64 {
        match blocks.position(block).get() {
            0 => initial.position_of(block),
            position => position - 1,
        }
    }
    /// A position whose every value is equally likely, or the last.
    pub(crate) fn draw(&self, rng: Option<&mut Rng>) -> Option<u64> {
        let last = self.len().checked_sub(1)?;
        Some(rng.map_or(last, |rng| rng.below(last + 1)))
    }
    /// Take out the block at `position`, which is below the length.
    pub(crate) fn take_at(&self, position: u64, blocks: Blocks, initial: &impl Initial) -> BlockId {
        let block = self.at(position, initial);
        let last = self.len() - 1;
        if position != last {
            self.place(position, self.at(last, initial), blocks);
        }
        self.len.set(last);
        block
    }
    /// Add a block that is in no set.
    pub(crate) fn insert(&self, block: BlockId, blocks: Blocks) {
        let len = self.len();
        self.place(len, block, blocks);
        self.len.set(len + 1);
    }
}
