//! The split pageblocks from which one CPU takes frames: lists by owner and by number of free
//! frames, and a lock for them.
//!
//! **Protocol.** Every pageblock that is not free belongs to one arena of its zone, which its state
//! word names. Only the holder of that arena's lock writes its state, bitmap and links. A CPU that
//! frees a frame reads the state without a lock, locks the arena that the state names, and reads
//! the state again. If the pageblock belongs to another arena by now, the CPU begins anew. A
//! pageblock cannot become free while one of its frames is in use, so this ends.
//! - A free pageblock is added (*opened*), and is removed when its last frame is freed, under the
//!   arena's lock and inside it the zone's.
//! - A CPU whose arena has nothing left *adopts* split pageblocks of another arena, the fullest
//!   first, if that arena has more than it needs. Both locks are held; the second is only taken if
//!   it is free. So fragmentation stays low although each CPU has its own pageblocks.
//! - When no arena has anything to spare, frames are taken directly from other arenas' pageblocks,
//!   under one arena's lock at a time.
//!
//! In front of a memory-side cache a zone has one arena, whose lock also orders the counts of
//! [`place`](crate::place).

use core::cell::Cell;
use core::ops::Deref;
use core::sync::atomic::AtomicU64;

use freehold_frame::{Owner, Side};
use freehold_machine::{Cpus, Pinned};

use crate::block::{BUCKETS, BlockId, BlockState, Blocks, link, unlink};
use crate::take::{CANDIDATES, Effort, TakeRequest};
use crate::word::{Held, LINE, Lock, Plain};
use crate::zone::Zone;

/// Number of words for an owner: the heads of its lists, the mask of non-empty lists, the orders
/// that each list may have, and the number of listed pageblocks.
const OWNER_WORDS: usize = BUCKETS + 3;
/// Words of an arena: its lock's line, and those of its owners.
pub(crate) const ARENA_WORDS: usize = LINE + Owner::COUNT * OWNER_WORDS;

/// An arena of a zone. See the module's head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arena {
    /// The arena's number in the zone.
    pub(crate) id: u8,
    words: &'static [AtomicU64; ARENA_WORDS],
    blocks: Blocks,
}

/// An arena whose lock is held.
#[derive(Debug)]
pub(crate) struct HeldArena<'a, C: Cpus> {
    arena: Arena,
    zone: &'a Zone,
    /// For the locks that are taken inside this one.
    pub(crate) pinned: &'a Pinned<C>,
    pub(crate) cpus: C,
    /// Changes that are added to the zone's counts when the lock is released: frames that became
    /// free, and additional split pageblocks.
    freed: Cell<u64>,
    split: Cell<u64>,
    _held: Held<'a>,
}

impl<C: Cpus> Drop for HeldArena<'_, C> {
    fn drop(&mut self) {
        self.zone.gain(self.freed.get());
        self.zone.count_split(self.split.get());
    }
}

impl<C: Cpus> Deref for HeldArena<'_, C> {
    type Target = Arena;
    fn deref(&self) -> &Arena {
        &self.arena
    }
}

impl<C: Cpus> HeldArena<'_, C> {
    /// Free frames in the kernel's pageblocks.
    pub(crate) fn free_of_kernel(&self) -> u64 {
        let owners =
            Owner::ALL.into_iter().filter(|owner| owner.side() == Side::Kernel && self.listed(*owner) > 0);
        let heads = owners.flat_map(|owner| (0..BUCKETS).map(move |bucket| self.first_of(owner, bucket)));
        let lists = heads.flat_map(|head| core::iter::successors(head, |&block| self.blocks.links(block).0));
        lists.map(|block| self.blocks.state(block).free()).sum()
    }
}

impl Arena {
    pub(crate) const fn new(id: u8, words: &'static [AtomicU64; ARENA_WORDS], blocks: Blocks) -> Self {
        Self { id, words, blocks }
    }
    pub(crate) const fn lock_word(self) -> Lock {
        Lock::new(&self.words[0])
    }

    fn word(self, owner: Owner, which: usize) -> &'static AtomicU64 {
        &self.words[LINE + owner as usize * OWNER_WORDS + which]
    }
    /// The first pageblock of a list.
    pub(crate) fn first_of(self, owner: Owner, bucket: usize) -> Option<BlockId> {
        unlink(self.word(owner, bucket).get())
    }
    /// The buckets of `owner` that are not empty, as a mask.
    fn buckets(self, owner: Owner) -> &'static AtomicU64 {
        self.word(owner, BUCKETS)
    }
    /// A byte for each order 1 to 8: the buckets of `owner` in which a block may have a run of that
    /// order. Blocks in the other buckets have none.
    fn fits(self, owner: Owner) -> &'static AtomicU64 {
        self.word(owner, BUCKETS + 1)
    }
    /// Number of blocks of `owner` that have free frames. A hint without the lock.
    pub(crate) fn listed(self, owner: Owner) -> u64 {
        self.word(owner, BUCKETS + 2).get()
    }
    /// A block on the list `bucket` may have runs of up to the order `hint`.
    fn note_fits(self, owner: Owner, bucket: usize, hint: u32) {
        // Whole bytes for the orders up to the hint, the bucket's bit in each.
        let orders = if hint >= 8 { u64::MAX } else { (1 << (8 * hint)) - 1 };
        let fits = self.fits(owner);
        fits.set(fits.get() | (orders & 0x0101_0101_0101_0101) << bucket);
    }
    fn enlist(self, block: BlockId, owner: Owner, bucket: usize) {
        let head = self.word(owner, bucket);
        let next = unlink(head.get());
        if let Some(next) = next {
            self.blocks.set_links(next, self.blocks.links(next).0, Some(block));
        }
        self.blocks.set_links(block, next, None);
        head.set(link(Some(block)));
        let mask = self.buckets(owner);
        mask.set(mask.get() | 1 << bucket);
        self.word(owner, BUCKETS + 2).add(1);
    }
    fn delist(self, block: BlockId, owner: Owner, bucket: usize) {
        let (next, previous) = self.blocks.links(block);
        if let Some(next) = next {
            self.blocks.set_links(next, self.blocks.links(next).0, previous);
        }
        if let Some(previous) = previous {
            self.blocks.set_links(previous, next, self.blocks.links(previous).1);
        } else {
            self.word(owner, bucket).set(link(next));
            if next.is_none() {
                let mask = self.buckets(owner);
                mask.set(mask.get() & !(1 << bucket));
            }
        }
        self.word(owner, BUCKETS + 2).sub(1);
    }
    /// Adds a split block with free frames to the list that its state names, or removes it.
    pub(crate) fn list(self, block: BlockId, state: BlockState) {
        if state.free() > 0 {
            self.enlist(block, state.owner(), state.bucket());
            self.note_fits(state.owner(), state.bucket(), state.hint());
        }
    }
    pub(crate) fn unlist(self, block: BlockId, state: BlockState) {
        if state.free() > 0 {
            self.delist(block, state.owner(), state.bucket());
        }
    }
    /// Writes a split block's new state and moves the block to the right list if necessary.
    pub(crate) fn update(self, block: BlockId, old: BlockState, new: BlockState) {
        self.blocks.set_state(block, new);
        // The free count minus 1, rounded: -1 for a block that is on no list.
        let (was, is) = ((old.free() as i64 - 1) >> 6, (new.free() as i64 - 1) >> 6);
        if was != is || old.owner() != new.owner() {
            if was >= 0 {
                self.delist(block, old.owner(), was as usize);
            }
            if is >= 0 {
                self.enlist(block, new.owner(), is as usize);
            }
        } else if is < 0 || new.hint() <= old.hint() {
            return;
        }
        if is >= 0 {
            self.note_fits(new.owner(), is as usize, new.hint());
        }
    }
    /// Whether a split block is on the list that its state names, or on no list if it has no free
    /// frame.
    pub(crate) fn is_listed(self, block: BlockId) -> bool {
        let state = self.blocks.state(block);
        if state.free() == 0 || state.is_leaving() {
            return true;
        }
        let mut next = self.first_of(state.owner(), state.bucket());
        while let Some(listed) = next {
            if listed == block {
                return true;
            }
            next = self.blocks.links(listed).0;
        }
        false
    }
}

impl<'a, C: Cpus> HeldArena<'a, C> {
    pub(crate) fn new(zone: &'a Zone, arena: Arena, pinned: &'a Pinned<C>, cpus: C) -> Self {
        cpus.about_to_lock();
        let held = arena.lock_word().lock(pinned, cpus);
        Self { arena, zone, pinned, cpus, freed: Cell::new(0), split: Cell::new(0), _held: held }
    }
    /// Locks another arena of the zone in addition to this one; `None` if its lock is held.
    pub(crate) fn try_other(&self, arena: Arena) -> Option<Self> {
        let Self { zone, pinned, cpus, .. } = *self;
        let held = arena.lock_word().try_lock(pinned)?;
        Some(Self { arena, zone, pinned, cpus, freed: Cell::new(0), split: Cell::new(0), _held: held })
    }
    /// Counts so many more free frames.
    pub(crate) fn gain(&self, frames: u64) {
        self.freed.set(self.freed.get() + frames);
    }
    /// Counts that a pageblock is split, or no longer split.
    pub(crate) fn begin_split(&self) {
        self.split.set(self.split.get().wrapping_add(1));
    }
    pub(crate) fn end_split(&self) {
        self.split.set(self.split.get().wrapping_sub(1));
    }
    /// The fullest split block of `owner` that may have a run of `order`.
    pub(crate) fn candidate(&self, owner: Owner, order: u32, effort: Effort) -> Option<BlockId> {
        let mut mask = self.buckets(owner).get();
        if order > 0 {
            mask &= self.fits(owner).get() >> (8 * (order - 1)) & 255;
        }
        while mask != 0 {
            let bucket = mask.trailing_zeros() as usize;
            let mut next = self.first_of(owner, bucket);
            let mut looked = 0;
            while let Some(block) = next
                && (effort == Effort::Far || looked < CANDIDATES)
            {
                if order == 0 || self.blocks.state(block).hint() >= order {
                    return Some(block);
                }
                looked += 1;
                next = self.blocks.links(block).0;
            }
            if next.is_none() {
                let fits = self.fits(owner);
                fits.set(fits.get() & !(1 << (8 * (order - 1) + bucket as u32)));
            }
            mask &= mask - 1;
        }
        None
    }
    /// Moves pageblocks that may contain the wanted blocks from another arena, the fullest first.
    /// Stops when `frames` are free in them, or the giver has only `keep` left. Returns whether any
    /// was moved.
    pub(crate) fn adopt_from(&self, giver: &Self, wanted: TakeRequest, frames: u64, keep: u64) -> bool {
        let TakeRequest { owner, order, .. } = wanted;
        let mut got = 0;
        while got < frames
            && giver.listed(owner) > keep
            && let Some(block) = giver.candidate(owner, order, Effort::Near)
        {
            let state = self.blocks.state(block);
            giver.unlist(block, state);
            let mine = state.with_arena(self.id);
            self.blocks.set_state(block, mine);
            self.list(block, mine);
            got += state.free();
        }
        got > 0
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::boxed::Box;
    use std::thread;
    use std::time::Duration;
    use std::vec::Vec;

    use freehold_frame::{FrameRecord, FrameTable, Order, Request, Tag};
    use freehold_machine::model::{Config, Model};
    use freehold_machine::{CpuId, NodeId, Pfn};

    use super::*;
    use crate::{Buddy, Managed, Options, Pcp};

    /// Two CPUs and four pageblocks.
    fn two_cpus() -> &'static Buddy<Model> {
        let machine = Model::new(Config { cpus: 2, frames: 4 * 512, ..Config::default() });
        let records: Vec<_> = (0..4 * 512).map(|_| FrameRecord::EMPTY).collect();
        let words = Buddy::<Model>::metadata_words(machine.topology(), 2, &Options::default());
        let metadata: Vec<_> = (0..words).map(|_| AtomicU64::new(0)).collect();
        let (table, metadata) = (FrameTable::new(records.leak()), metadata.leak());
        let pcps = Vec::from_iter((0..2).map(|_| Pcp::new())).leak();
        let managed = Managed { topology: machine.topology(), reserved: &[], table, metadata, pcps };
        let buddy = Buddy::new(machine, managed, Options::default());
        Box::leak(Box::new(buddy.unwrap()))
    }
    /// A pageblock in the first CPU's arena: one of its 512 frames is in use.
    fn one_in_use() -> (&'static Buddy<Model>, BlockId) {
        let buddy = two_cpus();
        let frame = take(buddy, 0);
        buddy.drain_local();
        (buddy, BlockId::of(frame))
    }
    fn take(buddy: &Buddy<Model>, cpu: u16) -> Pfn {
        buddy.machine.on_cpu(CpuId(cpu), || buddy.allocate(Request::new(Owner::Anon)).unwrap())
    }

    #[test]
    fn what_a_cpu_can_spare_another_adopts_and_gives_back_where_it_is_now() {
        let (buddy, block) = one_in_use();
        assert_eq!(buddy.blocks.state(block).arena(), 0);
        let frame = take(buddy, 1);
        assert_eq!((BlockId::of(frame), buddy.blocks.state(block).arena()), (block, 1));
        let zone = buddy.zone(NodeId(0));
        assert_eq!([0, 1].map(|id| zone.arena(id).listed(Owner::Anon)), [0, 1]);
        // The first CPU frees into the other's arena.
        buddy.release(frame, Order::FRAME);
        buddy.drain_local();
        buddy.machine.on_cpu(CpuId(1), || buddy.drain_local());
        assert_eq!(buddy.blocks.state(block).free(), 511);
    }

    #[test]
    fn a_cpu_keeps_little_of_what_another_took() {
        let buddy = two_cpus();
        let others: Vec<_> = (0..1500).map(|_| take(buddy, 0)).collect();
        let mut own: Vec<_> = (0..200).map(|_| take(buddy, 1)).collect();
        let list = buddy.shapes.serving(Tag::new(Owner::Anon, Order::FRAME, NodeId(0))).unwrap();
        let half = buddy.shapes.shape(list).batch / 2;
        // The largest number of frames that the second CPU has available while it frees these.
        let most = |frames: &[Pfn]| {
            let give = |frame: &Pfn| {
                // This test is not about sparse pageblocks.
                buddy.pcp(CpuId(1)).set_sparse(None);
                buddy.machine.on_cpu(CpuId(1), || buddy.release(*frame, Order::FRAME));
                buddy.pcp(CpuId(1)).len(list)
            };
            frames.iter().map(give).max().unwrap()
        };
        assert!(most(&own.split_off(100)) > half);
        most(&others[..100]);
        assert!(most(&others[100..200]) <= half);
        // The small limit lasts until the CPU needs blocks itself.
        let refilled = (0..100).map(|_| (own.push(take(buddy, 1)), buddy.pcp(CpuId(1)).len(list)).1).max();
        assert!(refilled > Some(half) && most(&own) > half);
        assert_eq!(buddy.misuses(), 0);
    }

    #[test]
    fn a_cpu_opens_a_pageblock_rather_than_wait_for_another() {
        let (buddy, block) = one_in_use();
        let zone = buddy.zone(NodeId(0));
        let pinned = buddy.machine.pin();
        // The first CPU is at work in its arena all the while.
        let held = zone.lock_arena(zone.arena(0), &pinned, buddy.machine);
        let frame = thread::scope(|scope| scope.spawn(|| take(buddy, 1)).join().unwrap());
        assert_ne!(BlockId::of(frame), block);
        // And it did not release a lock that it did not get.
        let other = zone.lock_arena(zone.arena(1), &pinned, buddy.machine);
        assert!(other.try_other(zone.arena(0)).is_none());
        assert!(other.try_other(zone.arena(0)).is_none());
        drop((other, held));
    }

    #[test]
    fn memory_is_not_said_to_be_short_while_another_cpu_has_reserved_what_it_will_not_take() {
        let (buddy, _) = one_in_use();
        let zone = buddy.zone(NodeId(0));
        let pinned = buddy.machine.pin();
        let held = zone.lock_arena(zone.arena(0), &pinned, buddy.machine);
        let reserved = zone.reserve(u64::MAX, 0, 0).unwrap();
        thread::scope(|scope| {
            let other = scope.spawn(|| take(buddy, 1));
            // Enough time for a CPU that does not wait to give up.
            thread::sleep(Duration::from_millis(50));
            held.gain(reserved);
            drop(held);
            other.join().unwrap();
        });
    }
}
