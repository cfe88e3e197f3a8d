//! Pageblocks in transition: they move from one side of the direct map to the other, or are
//! gathered into a larger block.
//!
//! The zone's lock is not held while the direct map changes. Meanwhile the blocks are
//! [`Fill::Moving`]: they are in no set, so no CPU finds them. Blocks that change sides are certain
//! to be in a set again. A CPU that needs one waits until [`Zone::moving`] decreases.

use freehold_frame::Side;
use freehold_machine::Cpus;

use crate::arena::HeldArena;
use crate::block::{BlockId, BlockState, Fill, whole_class};
use crate::place::Bins;
use crate::rng::Rng;
use crate::word::{Held, Plain};
use crate::zone::{MOVE_BATCH, Zone};

/// Pageblocks that change sides together.
pub(crate) struct Moving {
    blocks: [BlockId; MOVE_BATCH],
    count: usize,
}

impl Moving {
    pub(crate) const NONE: Self = Self { blocks: [BlockId(0); MOVE_BATCH], count: 0 };

    pub(crate) fn blocks(&mut self) -> &mut [BlockId] {
        &mut self.blocks[..self.count]
    }
}

impl Zone {
    /// Takes free blocks out of one side, to be moved to the other without the lock. The caller
    /// calls [`Zone::finish_move`] for all of them, also after a failure; meanwhile they count as
    /// free and as moving.
    pub(crate) fn begin_move(&self, _held: &Held, from: Side, mut rng: Option<&mut Rng>) -> Moving {
        let set = self.set(from);
        let most = match from {
            // The kernel takes pageblocks from the user one at a time: entering the direct map
            // costs no flush.
            Side::User => 1,
            // The kernel returns pageblocks in batches, with one flush for all.
            Side::Kernel => MOVE_BATCH,
        };
        let mut moving = Moving::NONE;
        while moving.count < most
            && let Some(drawn) = set.draw(rng.as_deref_mut())
        {
            let position = self.one_that_stays(from, drawn);
            let block = set.take_at(position, self.blocks(), self.runs());
            let before = self.blocks().state(block);
            self.blocks().set_state(block, BlockState::plain(Fill::Moving).with_residue_of(before));
            moving.blocks[moving.count] = block;
            moving.count += 1;
        }
        self.moving.add(moving.count as u64);
        moving
    }
    /// Chooses a pageblock for frames that cannot be moved: the first block, from the drawn
    /// position of the user's set on, that can never be unplugged. If there is none, the drawn
    /// block.
    pub(crate) fn one_that_stays(&self, from: Side, drawn: u64) -> u64 {
        let set = self.set(from);
        let at = |position| set.at(position, self.runs());
        if from == Side::Kernel || !self.is_pluggable(at(drawn)) {
            return drawn;
        }
        (drawn + 1..set.len())
            .chain(0..drawn)
            .find(|&position| !self.is_pluggable(at(position)))
            .unwrap_or(drawn)
    }
    /// Puts blocks that changed sides into their new set.
    pub(crate) fn finish_move(&self, held: &Held, to: Side, moved: &[BlockId]) {
        let free = BlockState::plain(Fill::Free(to));
        moved.iter().for_each(|&block| self.insert(held, block, free));
        self.moving.sub(moved.len() as u64);
    }

    /// The lowest aligned run of `count` (a power of two) free pageblocks, on any side.
    pub(crate) fn find_neighbours(&self, _held: &Held, count: u64) -> Option<BlockId> {
        let mut first = 0;
        while first + count <= self.blocks().count() {
            // Searched from the top down: the next candidate begins after the highest block that is
            // not free.
            let Some(taken) = (first..first + count).rev().find(|id| !self.is_free(BlockId(*id))) else {
                return Some(BlockId(first));
            };
            first = (taken + 1).next_multiple_of(count);
        }
        None
    }
    /// Whether a pageblock is in one of this zone's free sets. A hole's state word also means free,
    /// so the set itself is checked.
    pub(crate) fn is_free(&self, block: BlockId) -> bool {
        let Fill::Free(side) = self.blocks().state(block).fill() else { return false };
        let set = self.set(side);
        if self.blocks().position(block).get() == 0 && !self.runs().contains(block) {
            return false;
        }
        let position = set.position_of(block, self.blocks(), self.runs());
        position < set.len() && set.at(position, self.runs()) == block
    }
    /// Takes `count` free blocks from `first` on, whose frames are reserved, out of their sets;
    /// each block's state keeps its side.
    pub(crate) fn begin_gather(&self, _held: &Held, first: BlockId, count: u64) {
        for id in first.0..first.0 + count {
            let block = BlockId(id);
            let before = self.blocks().state(block);
            let Fill::Free(side) = before.fill() else {
                unreachable!("the run was found free under this lock")
            };
            self.prepare(block);
            let set = self.set(side);
            set.take_at(set.position_of(block, self.blocks(), self.runs()), self.blocks(), self.runs());
            let moving = BlockState::plain(Fill::Moving).with_owner(whole_class(side));
            self.blocks().set_state(block, moving.with_residue_of(before));
        }
    }
    /// The original side of a block that is being gathered. Only the gathering CPU calls this, with
    /// or without the lock.
    pub(crate) fn gathered_from(&self, block: BlockId) -> Side {
        self.blocks().state(block).owner().side()
    }
    /// Hands out the gathered blocks.
    pub(crate) fn finish_gather<C: Cpus>(
        &self,
        held: &HeldArena<'_, C>,
        first: BlockId,
        count: u64,
        side: Side,
    ) {
        let _sets = self.lock_inside(held);
        for id in first.0..first.0 + count {
            self.blocks().set_state(BlockId(id), BlockState::whole(side).with_arena(held.id));
            self.count_whole(BlockId(id), side, Bins::add);
        }
    }
}
