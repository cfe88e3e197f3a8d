//! The initial pageblocks of a zone's free set: computed, not stored.

use core::sync::atomic::AtomicU64;

use crate::block::BlockId;
use crate::set::Initial;
use crate::word::Plain;

/// Runs of pageblocks that are free at boot, two words each: first block, blocks in the runs
/// before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockRuns {
    words: &'static [AtomicU64],
    pub(crate) total: u64,
}

impl BlockRuns {
    pub(crate) const fn new(words: &'static [AtomicU64], total: u64) -> Self {
        Self { words, total }
    }
    pub(crate) fn contains(self, block: BlockId) -> bool {
        let run = self.iter().rev().find(|&(first, _)| first <= block.0);
        let Some((first, before)) = run else { return false };
        let after = self.iter().map(|(_, before)| before).find(|next| *next > before).unwrap_or(self.total);
        block.0 - first < after - before
    }
    fn iter(self) -> impl DoubleEndedIterator<Item = (u64, u64)> {
        self.words.chunks_exact(2).map(|pair| (pair[0].get(), pair[1].get()))
    }
}

// The last position is the lowest block, so that taking from the end goes upwards through memory.
impl Initial for BlockRuns {
    fn block_at(&self, position: u64) -> BlockId {
        let rank = self.total - 1 - position;
        let run = self.iter().rev().find(|&(_, before)| before <= rank);
        let (first, before) = run.expect("positions at boot are below the runs' total");
        BlockId(first + (rank - before))
    }
    fn position_of(&self, block: BlockId) -> u64 {
        let run = self.iter().rev().find(|&(first, _)| first <= block.0);
        let (first, before) = run.expect("a block without a position word was free at boot");
        self.total - 1 - (before + (block.0 - first))
    }
}
