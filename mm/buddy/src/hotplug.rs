//! Hotplug of memory: whole pageblocks are plugged and unplugged (virtio-mem), within the range of
//! the frame table.
//!
//! **Protocol.** [`Buddy::unplug`] removes every free pageblock of a range at once and marks the
//! others *leaving*: none of their frames is handed out again, and when the last frame is freed,
//! the pageblock is removed. The caller moves, or waits for, the frames that [`Buddy::still_used`]
//! counts. [`Buddy::plug`] adds a range (again), with its pageblocks in any state. A plugged
//! pageblock joins its free set. From that moment it is shuffled and placed like every other.
//!
//! Only programs' memory can be unplugged. A pageblock on the kernel's side cannot, and neither can
//! one on the user's side that has a frame of another owner (a kernel stack), since such frames
//! cannot be moved. So pageblocks for them are taken from memory that is never unplugged, as long
//! as it has free ones.
//!
//! Ranges of the topology that are [`Pluggable`](freehold_machine::topology::Presence::Pluggable)
//! begin as if they had been unplugged. Their frame records are not accessed while they are
//! unplugged: a kernel may have no memory for the records then.

use freehold_frame::{FrameState, Side};
use freehold_machine::{Machine, NodeId, PAGEBLOCK_FRAMES, PAGEBLOCK_ORDER, PfnRange, PhysicalBytes};

use crate::Buddy;
use crate::block::{BlockId, BlockState, Fill};
use crate::word::{Held, Plain};
use crate::zone::{HeldAll, Zone};

/// Why a range cannot be plugged or unplugged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlugError {
    /// Not whole pageblocks of memory of one node.
    NotPageblocks,
    /// The kernel has frames there, or they are reserved.
    KernelMemory,
}

impl<M: Machine + PhysicalBytes> Buddy<M> {
    /// Removes the free part of `range` and keeps the rest from being handed out again. Returns the
    /// number of frames still in use.
    ///
    /// # Errors
    /// [`PlugError`]; nothing has changed then.
    pub fn unplug(&self, range: PfnRange) -> Result<u64, PlugError> {
        let zone = self.zone_of_blocks(range)?;
        // Frames in lists are free, but only their CPUs can give them back: this one now, the
        // others when they poll.
        self.drain_local();
        self.request_drain();
        let pinned = self.machine.pin();
        let held = zone.lock_all(&pinned, self.machine);
        if blocks_of(range).any(|block| !zone.may_leave(block) || self.holds_fixed(block)) {
            return Err(PlugError::KernelMemory);
        }
        blocks_of(range).for_each(|block| zone.begin_leave(&held, block));
        drop(held);
        // The free memory of the kernel's side that was just removed is still in the direct map.
        for block in blocks_of(range) {
            if self.blocks.state(block).fill() == Fill::Moving {
                self.change_side(&mut [block], Side::User);
                zone.finish_leave(&zone.lock(&pinned, self.machine), block);
            }
        }
        drop(pinned);
        Ok(self.still_used(range))
    }
    /// Whether a split pageblock of programs has a frame of another owner: a frame that was taken
    /// when no other was free.
    fn holds_fixed(&self, block: BlockId) -> bool {
        let end = block.start().offset(PAGEBLOCK_FRAMES);
        let mut frame = block.start();
        while self.blocks.state(block).is_split() && frame < end {
            frame = match self.table.look(frame) {
                FrameState::Owned { owner, .. } if !owner.is_user() => return true,
                FrameState::Owned { order, .. } => frame.offset(order.frames()),
                FrameState::Unowned(_) => frame.offset(1),
            };
        }
        false
    }
    /// Whether all of `range` is free or unplugged: then [`Buddy::unplug`] finds nothing in use.
    /// Approximate while other CPUs allocate; frames in per-CPU lists are not free.
    pub fn is_free(&self, range: PfnRange) -> bool {
        blocks_of(range).all(|block| matches!(self.blocks.state(block).fill(), Fill::Free(_) | Fill::Offline))
    }
    /// Whether all of `range` is unplugged.
    pub fn is_out(&self, range: PfnRange) -> bool {
        blocks_of(range).all(|block| self.blocks.state(block).fill() == Fill::Offline)
    }
    /// Frames of `range` that have not been freed since [`Buddy::unplug`].
    pub fn still_used(&self, range: PfnRange) -> u64 {
        let used = |block| match self.blocks.state(block) {
            state if state.fill() == Fill::Offline => 0,
            state if state.is_split() => PAGEBLOCK_FRAMES - state.free(),
            _ => PAGEBLOCK_FRAMES,
        };
        blocks_of(range).map(used).sum()
    }
    /// Adds `range`: memory that was unplugged, or is being unplugged.
    ///
    /// # Errors
    /// [`PlugError::NotPageblocks`].
    pub fn plug(&self, range: PfnRange) -> Result<(), PlugError> {
        let zone = self.zone_of_blocks(range)?;
        let pinned = self.machine.pin();
        let held = zone.lock_all(&pinned, self.machine);
        blocks_of(range).for_each(|block| zone.stay(&held, block));
        Ok(())
    }
    fn zone_of_blocks(&self, range: PfnRange) -> Result<&Zone, PlugError> {
        let whole = range.start.is_aligned(PAGEBLOCK_ORDER)
            && range.end.is_aligned(PAGEBLOCK_ORDER)
            && !range.is_empty();
        let inside = self.topology.ranges().iter().find(|memory| memory.frames.intersection(range) == range);
        let node: Option<NodeId> = inside.filter(|_| whole).map(|memory| memory.node);
        node.map(|node| self.zone(node)).ok_or(PlugError::NotPageblocks)
    }
}

fn blocks_of(range: PfnRange) -> impl Iterator<Item = BlockId> {
    (BlockId::of(range.start).0..BlockId::of(range.end).0).map(BlockId)
}

impl Zone {
    fn may_leave(&self, block: BlockId) -> bool {
        let state = self.blocks().state(block);
        match state.fill() {
            Fill::Free(_) | Fill::Offline => true,
            Fill::Split => state.owner().is_user(),
            Fill::Whole => state.owner().side() == Side::User,
            Fill::Moving => false,
        }
    }
    fn begin_leave(&self, held: &HeldAll<'_>, block: BlockId) {
        let state = self.blocks().state(block);
        if state.is_leaving() || state.fill() == Fill::Offline {
            return;
        }
        self.change_present(held, Plain::sub);
        self.leaving.add(PAGEBLOCK_FRAMES);
        match state.fill() {
            Fill::Free(side) => {
                let position = self.position_of(side, block);
                self.set(side).take_at(position, self.blocks(), self.runs());
                self.lose(held, PAGEBLOCK_FRAMES);
                let fill = if side == Side::Kernel { Fill::Moving } else { Fill::Offline };
                self.blocks().set_state(block, BlockState::plain(fill));
            }
            Fill::Split => {
                self.arena_of(block).unlist(block, state);
                self.lose(held, state.free());
                self.blocks().set_state(block, state.leaving());
            }
            Fill::Whole => self.blocks().set_state(block, state.leaving()),
            Fill::Moving | Fill::Offline => {}
        }
    }
    fn finish_leave(&self, _held: &Held, block: BlockId) {
        self.blocks().set_state(block, BlockState::plain(Fill::Offline));
    }
    fn stay(&self, held: &HeldAll<'_>, block: BlockId) {
        let state = self.blocks().state(block);
        if state.fill() == Fill::Offline {
            // The block's contents are unknown: memory that was taken offline by hand kept its
            // bytes.
            self.insert(&held.sets, block, BlockState::freed(Side::User));
            self.gain(PAGEBLOCK_FRAMES);
        } else if state.is_leaving() {
            self.blocks().set_state(block, state.staying());
            if state.is_split() {
                self.arena_of(block).list(block, state.staying());
                self.gain(state.free());
            }
        } else {
            return;
        }
        self.change_present(held, Plain::add);
        self.leaving.sub(PAGEBLOCK_FRAMES);
    }
    /// Frames of pageblocks that are unplugged, or being unplugged.
    pub(crate) fn leaving(&self) -> u64 {
        self.leaving.get()
    }
}
