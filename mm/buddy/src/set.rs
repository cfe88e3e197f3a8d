//! The free pageblocks of one side of a zone, handed out in random order without a pass that
//! shuffles them.
//!
//! Positions 0 to `len` - 1 hold the free blocks. Each take draws a position uniformly, takes its
//! block, and moves the last block there. This is one step of Fisher–Yates with the partner drawn
//! from the rest. So every order of the blocks is equally likely, at boot and after years of frees,
//! and no pass over memory is ever needed. A set that starts full costs nothing to build: a
//! position whose word is still 0 holds the block that belongs there by address.
//!
//! Without shuffle the last position is taken, which gives blocks by address, lowest first, and
//! then the last freed first.
//!
//! Everything here happens under the zone's lock.

use core::sync::atomic::AtomicU64;

use crate::block::{BlockId, Blocks, link, unlink};
use crate::rng::Rng;
use crate::word::Plain;

/// Free pageblocks at boot: runs with consecutive positions.
pub(crate) trait Initial {
    /// The block that starts at `position`.
    fn block_at(&self, position: u64) -> BlockId;
    /// The initial position of `block`.
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
    /// The position of `block`, which is a member.
    pub(crate) fn position_of(&self, block: BlockId, blocks: Blocks, initial: &impl Initial) -> u64 {
        match blocks.position(block).get() {
            0 => initial.position_of(block),
            position => position - 1,
        }
    }
    /// A uniformly drawn position, or the last one without a generator.
    pub(crate) fn draw(&self, rng: Option<&mut Rng>) -> Option<u64> {
        let last = self.len().checked_sub(1)?;
        Some(rng.map_or(last, |rng| rng.below(last + 1)))
    }
    /// Removes the block at `position`, which is below the length.
    #[inline(always)]
    pub(crate) fn take_at(&self, position: u64, blocks: Blocks, initial: &impl Initial) -> BlockId {
        let block = self.at(position, initial);
        let last = self.len() - 1;
        if position != last {
            self.place(position, self.at(last, initial), blocks);
        }
        self.len.set(last);
        block
    }
    /// Adds a block that is in no set.
    #[inline]
    pub(crate) fn insert(&self, block: BlockId, blocks: Blocks) {
        let len = self.len();
        self.place(len, block, blocks);
        self.len.set(len + 1);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    struct Upwards;
    impl Initial for Upwards {
        fn block_at(&self, position: u64) -> BlockId {
            BlockId(position)
        }
        fn position_of(&self, block: BlockId) -> u64 {
            block.0
        }
    }

    fn words(count: usize) -> &'static [AtomicU64] {
        (0..count).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak()
    }

    /// χ² of rank × position over 10⁵ boots, as a standard normal (Wilson and Hilferty 1931).
    fn chi_squared(mut draw: impl FnMut(&FreeSet, &mut Rng, u64) -> u64) -> f64 {
        const N: usize = 8;
        const BOOTS: u64 = 100_000;
        let (slots, meta) = (words(N), words(N * crate::block::BLOCK_WORDS));
        let blocks = Blocks::new(meta.as_chunks().0);
        let mut cells = [[0u64; N]; N];
        for boot in 0..BOOTS {
            slots.iter().chain(meta).for_each(|word| word.set(0));
            let set = FreeSet::new(slots, N as u64);
            let mut rng = Rng::new(boot.wrapping_mul(0x2545_f491_4f6c_dd1d));
            for (row, step) in cells.iter_mut().zip(0..) {
                let position = draw(&set, &mut rng, step);
                row[set.take_at(position, blocks, &Upwards).0 as usize] += 1;
            }
        }
        let expected = BOOTS as f64 / N as f64;
        let chi: f64 = cells.iter().flatten().map(|c| (*c as f64 - expected).powi(2) / expected).sum();
        let (chi, freedom) = (chi * (N as f64 - 1.0) / N as f64, ((N - 1) * (N - 1)) as f64);
        let spread = 2.0 / (9.0 * freedom);
        ((chi / freedom).cbrt() - (1.0 - spread)) / spread.sqrt()
    }

    #[test]
    fn draws_over_a_hundred_thousand_boots_are_uniform_and_a_biased_draw_is_seen() {
        let z = chi_squared(|set, rng, _| set.draw(Some(rng)).unwrap());
        assert!(z.abs() < 3.29, "z = {z}");
        // One position in 64 drawn by modulo, as a careless generator would do: the bias is far too
        // small to be visible.
        let z = chi_squared(|set, rng, _| (rng.next() % 64) % set.len());
        assert!(z > 3.29, "z = {z}: the test has no power");
    }

    #[test]
    fn a_set_holds_what_was_put_in_and_nothing_else() {
        let (slots, meta) = (words(100), words(100 * crate::block::BLOCK_WORDS));
        let (set, blocks) = (FreeSet::new(slots, 60), Blocks::new(meta.as_chunks().0));
        let mut inside: Vec<u64> = (0..60).collect();
        let mut outside: Vec<u64> = (60..100).collect();
        let mut rng = Rng::new(3);
        for _ in 0..20_000 {
            if rng.below(2) == 0 && !inside.is_empty() {
                let block = match rng.below(3) {
                    0 => set.take_at(set.draw(None).unwrap(), blocks, &Upwards),
                    1 => set.take_at(set.draw(Some(&mut rng)).unwrap(), blocks, &Upwards),
                    // Takes a specific block, as when blocks are gathered into a larger one.
                    _ => {
                        let block = BlockId(inside[rng.below(inside.len() as u64) as usize]);
                        set.take_at(set.position_of(block, blocks, &Upwards), blocks, &Upwards)
                    }
                };
                let at = inside.iter().position(|b| *b == block.0).expect("only members come out");
                outside.push(inside.swap_remove(at));
            } else if !outside.is_empty() {
                let block = outside.swap_remove(rng.below(outside.len() as u64) as usize);
                set.insert(BlockId(block), blocks);
                inside.push(block);
            }
            assert_eq!(set.len(), inside.len() as u64);
        }
    }
}
