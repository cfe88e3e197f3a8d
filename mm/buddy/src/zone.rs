//! A node's memory: free pageblocks by side, and the arenas that split pageblocks belong to.
//!
//! | frames wanted | taken from, in this order |
//! |---|---|
//! | orders 0–8 | the fullest split block of the owner in the CPU's own [arena](crate::arena) that has such a run; blocks that other arenas can spare; a free block of the owner's side |
//! | order 9 | a free block of the side |
//! | both, then | free blocks of the other side, which change sides (see [`Zone::begin_move`]); any arena's split block of the owner, or of another owner of the same side |
//!
//! Taking from the fullest block first keeps fragmentation low: blocks that become emptier are not
//! used until they are free.
//!
//! **Locks.** Free, moving and offline pageblocks belong to the zone: a function that takes a
//! [`Held`] runs under the zone's lock. Split and whole blocks belong to an arena: a function that
//! takes a [`HeldArena`] runs under that arena's lock. Inside it, it takes the zone's lock when a
//! block is added or removed. Free frames are counted for the whole zone with atomic steps: a CPU
//! that is about to take some [reserves](Zone::reserve) them first.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_frame::{FrameTable, Owner, Pressure, Side};
use freehold_machine::{Cpus, NodeId, PAGEBLOCK_FRAMES, PAGEBLOCK_ORDER, Pfn, Pinned};

use crate::arena::{ARENA_WORDS, Arena, HeldArena};
use crate::block::{self, BITMAP_WORDS, BlockId, BlockState, Blocks, Fill, link, unlink, whole_class};
use crate::numa::NumaCounts;
use crate::output::Draw;
use crate::place::Bins;
use crate::rng::Rng;
use crate::runs::BlockRuns;
use crate::set::FreeSet;
use crate::take::{Effort, TakeRequest};
use crate::word::{Held, LINE, Lock, Plain};

/// Words of a zone: a line for its lock, and one for the count of free frames.
pub(crate) const ZONE_WORDS: usize = 2 * LINE;
/// Largest number of pageblocks that change sides at once.
pub(crate) const MOVE_BATCH: usize = 16;
/// Free frames of split pageblocks are gathered if they are at least this part of memory.
const WORTHWHILE: u64 = 128;
/// Numbers of free frames at which the allocator acts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Watermarks {
    /// Below this no user memory is handed out. Below half of it, only requests for the reserve
    /// succeed ([`Pressure::Reserve`](freehold_frame::Pressure)).
    pub min: u64,
    /// Below this the other CPUs are asked to return the frames in their lists.
    pub low: u64,
    /// Above this there is no pressure.
    pub high: u64,
}

impl Watermarks {
    /// The lowest watermark: 4·√KiB of memory, in KiB, as on Linux, but at most 1/128 of memory.
    fn least(frames: u64) -> u64 {
        (frames * 4).isqrt().min(frames / 128)
    }
    const fn above(min: u64) -> Self {
        Self { min, low: min + min / 4, high: min + min / 2 }
    }
}

/// One node's memory. See the module's head.
#[derive(Debug)]
pub(crate) struct Zone {
    pub(crate) node: NodeId,
    blocks: Blocks,
    table: FrameTable,
    runs: BlockRuns,
    words: &'static [AtomicU64; ZONE_WORDS],
    arenas: &'static [[AtomicU64; ARENA_WORDS]],
    pub(crate) bins: Option<Bins>,
    user: FreeSet,
    kernel: FreeSet,
    /// Frames that the allocator hands out, free or not.
    pub(crate) managed: AtomicU64,
    /// Frames of pageblocks that are unplugged, or leaving.
    pub(crate) leaving: AtomicU64,
    /// Split pageblocks. Changed with atomic steps.
    split: AtomicU64,
    /// Free frames in split pageblocks of the kernel's side, when they were last counted.
    of_kernel: AtomicU64,
    /// Blocks that a CPU is moving from one side to the other. The CPU is certain to put them back.
    pub(crate) moving: AtomicU64,
    /// The block that was handed out last: the other half of its pair may be next.
    last: AtomicU64,
    /// Present frames, including reserved ones. The lowest watermark is computed from it.
    present: AtomicU64,
    min: AtomicU64,
    /// The lowest watermark that an administrator asked for; a smaller one than `min` has no
    /// effect.
    wish: AtomicU64,
    /// The lowest pageblock that can be unplugged.
    pluggable_from: Option<BlockId>,
    /// log2 of the frames that are used one after the other (`page_alloc.shuffle_order`).
    pub(crate) grain: u32,
    /// Changed on the slow path, without the lock.
    pub(crate) numa: NumaCounts,
}

/// Parts of a zone.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) blocks: Blocks,
    pub(crate) table: FrameTable,
    pub(crate) runs: BlockRuns,
    pub(crate) words: &'static [AtomicU64; ZONE_WORDS],
    pub(crate) arenas: &'static [[AtomicU64; ARENA_WORDS]],
    pub(crate) bins: Option<Bins>,
    /// The slots of the user's and of the kernel's free set.
    pub(crate) sets: (&'static [AtomicU64], &'static [AtomicU64]),
    /// Frames that exist at boot, reserved ones too.
    pub(crate) frames: u64,
    /// Frames that can be plugged in.
    pub(crate) absent: u64,
    /// The lowest pageblock of the frames that can be plugged in.
    pub(crate) pluggable_from: Option<BlockId>,
}

/// The reason why a frame was not freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotTaken {
    /// The frame is free already, or its pageblock does not hand out such blocks.
    Misuse,
    /// The frame's pageblock belongs to another arena by now.
    Elsewhere,
}

/// All locks of a zone: no other CPU is at work in it.
#[derive(Debug)]
pub(crate) struct HeldAll<'a> {
    zone: &'a Zone,
    /// The zone's own lock.
    pub(crate) sets: Held<'a>,
}

impl Drop for HeldAll<'_> {
    fn drop(&mut self) {
        self.zone.arenas().for_each(|arena| arena.lock_word().release());
    }
}

impl Zone {
    pub(crate) fn new(node: NodeId, parts: Parts, grain: u32) -> Self {
        let Parts { blocks, table, runs, words, arenas, bins, sets, frames, absent, pluggable_from } = parts;
        let free = runs.total * PAGEBLOCK_FRAMES;
        let zone = Self {
            node,
            blocks,
            table,
            runs,
            words,
            arenas,
            bins,
            user: FreeSet::new(sets.0, runs.total),
            kernel: FreeSet::new(sets.1, 0),
            managed: AtomicU64::new(free),
            leaving: AtomicU64::new(absent),
            split: AtomicU64::new(0),
            moving: AtomicU64::new(0),
            of_kernel: AtomicU64::new(u64::MAX),
            last: AtomicU64::new(0),
            present: AtomicU64::new(frames),
            min: AtomicU64::new(Watermarks::least(frames)),
            wish: AtomicU64::new(0),
            pluggable_from,
            grain,
            numa: NumaCounts::default(),
        };
        zone.gain(free);
        zone
    }
    /// Takes the zone's lock: for free pageblocks and all data that belongs to no arena.
    pub(crate) fn lock<'a, C: Cpus>(&self, pinned: &'a Pinned<C>, cpus: C) -> Held<'a> {
        cpus.about_to_lock();
        self.lock_word().lock(pinned, cpus)
    }
    /// The same, inside an arena's lock.
    pub(crate) fn lock_inside<'a, C: Cpus>(&self, held: &HeldArena<'a, C>) -> Held<'a> {
        self.lock_word().lock(held.pinned, held.cpus)
    }
    fn lock_word(&self) -> Lock {
        Lock::new(&self.words[0])
    }
    /// Locks an arena and its data.
    pub(crate) fn lock_arena<'a, C: Cpus>(
        &'a self,
        arena: Arena,
        pinned: &'a Pinned<C>,
        cpus: C,
    ) -> HeldArena<'a, C> {
        HeldArena::new(self, arena, pinned, cpus)
    }
    /// Everything.
    pub(crate) fn lock_all<'a, C: Cpus>(&'a self, pinned: &'a Pinned<C>, cpus: C) -> HeldAll<'a> {
        cpus.about_to_lock();
        self.arenas().for_each(|arena| arena.lock_word().acquire(cpus));
        HeldAll { zone: self, sets: self.lock_word().lock(pinned, cpus) }
    }
    /// Waits until all CPUs have counted their freed frames and released their reservations. Called
    /// before a request fails because no memory is left.
    pub(crate) fn settle<C: Cpus>(&self, pinned: &Pinned<C>, cpus: C) {
        self.arenas().for_each(|arena| drop(self.lock_arena(arena, pinned, cpus)));
    }
    pub(crate) fn arenas(&self) -> impl DoubleEndedIterator<Item = Arena> + ExactSizeIterator {
        let blocks = self.blocks;
        self.arenas.iter().enumerate().map(move |(id, words)| Arena::new(id as u8, words, blocks))
    }
    /// Arena number `id`, modulo the number of arenas.
    pub(crate) fn arena(&self, id: usize) -> Arena {
        let id = id % self.arenas.len();
        Arena::new(id as u8, &self.arenas[id], self.blocks)
    }
    /// The arena that a block belongs to; some arena, for a block that belongs to none. A hint
    /// without the lock.
    pub(crate) fn arena_of(&self, block: BlockId) -> Arena {
        self.arena(self.blocks.state(block).arena().into())
    }

    /// Free frames of the zone itself: those of both sets, of split blocks, and of moving blocks,
    /// minus reserved ones. Frames in per-CPU lists are not included.
    pub(crate) fn free(&self) -> u64 {
        self.words[LINE].get()
    }
    /// Sets free frames aside for at most `most` blocks of `order`, so that `floor` frames remain.
    /// Returns how many blocks may be taken, or `None` if there are not enough frames for one. The
    /// caller [returns](Zone::gain) frames that it does not take, under the same hold of a lock.
    pub(crate) fn reserve(&self, most: u64, order: u32, floor: u64) -> Option<u64> {
        let mut blocks = 0;
        let step = self.words[LINE].fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| {
            blocks = most.min(free.checked_sub(floor)? >> order);
            (blocks > 0).then(|| free - (blocks << order))
        });
        step.is_ok().then_some(blocks)
    }
    /// Adds `frames` free frames.
    pub(crate) fn gain(&self, frames: u64) {
        if frames > 0 {
            self.words[LINE].fetch_add(frames, Ordering::Relaxed);
        }
    }
    pub(crate) fn count_split(&self, more: u64) {
        if more != 0 {
            self.split.fetch_add(more, Ordering::Relaxed);
        }
    }
    /// Subtracts frames that were free and not reserved; under all locks, so that no CPU has
    /// reserved them.
    pub(crate) fn lose(&self, _held: &HeldAll<'_>, frames: u64) {
        self.words[LINE].sub(frames);
    }
    /// Notes the number of frames that are free in split pageblocks of the kernel's side.
    pub(crate) fn note_free_of_kernel(&self, frames: u64) {
        self.of_kernel.store(frames, Ordering::Relaxed);
    }
    /// Whether programs may open another pageblock: one more is left for the kernel, or its own
    /// pageblocks have the lowest watermark free. Uses the last noted figure, which each refill
    /// updates while memory is becoming short.
    pub(crate) fn leaves_kernel_enough(&self) -> bool {
        self.user.len() + self.kernel.len() > 1 || self.of_kernel.load(Ordering::Relaxed) >= self.min.get()
    }
    /// Pageblocks that are wholly free, or soon will be again: those that change sides.
    pub(crate) fn free_pageblocks(&self) -> u64 {
        self.user.len() + self.kernel.len() + self.moving.get()
    }
    /// Whether the kernel has neither a pageblock to take nor half the lowest watermark in those
    /// that it has. Uses the last noted figure.
    pub(crate) fn leaves_kernel_nothing(&self) -> bool {
        self.free_pageblocks() == 0 && self.of_kernel.load(Ordering::Relaxed) < self.min.get() / 2
    }
    pub(crate) fn managed(&self) -> u64 {
        self.managed.get()
    }
    /// Returns the watermarks for the present memory.
    pub(crate) fn marks(&self) -> Watermarks {
        Watermarks::above(self.min.get().max(self.wish.get()))
    }
    /// Asks for a lowest watermark.
    pub(crate) fn wish(&self, min: u64) {
        self.wish.set(min);
    }
    /// Present frames, and the lowest watermark that is computed from them.
    pub(crate) fn present_and_least(&self) -> (u64, u64) {
        (self.present.get(), self.min.get())
    }
    /// Counts memory that is plugged or unplugged.
    pub(crate) fn change_present(&self, _held: &HeldAll<'_>, change: fn(&AtomicU64, u64)) {
        change(&self.present, PAGEBLOCK_FRAMES);
        self.min.set(Watermarks::least(self.present.get()));
        change(&self.managed, PAGEBLOCK_FRAMES);
    }
    /// Whether a pageblock can be unplugged: the kernel takes such blocks only if there are no
    /// others.
    pub(crate) fn is_pluggable(&self, block: BlockId) -> bool {
        self.pluggable_from.is_some_and(|first| block >= first)
    }
    pub(crate) fn moving(&self, _held: &Held) -> u64 {
        self.moving.get()
    }
    /// The mean of free frames in split pageblocks, but at least an eighth of one: above it a
    /// pageblock is sparse. `None` if no pageblock is: all of these frames together are less than
    /// 1/[`WORTHWHILE`] of memory, so there is nothing to gain. A hint without the lock.
    pub(crate) fn sparse(&self) -> Option<u64> {
        let whole = (self.user.len() + self.kernel.len() + self.moving.get()) * PAGEBLOCK_FRAMES;
        let free = self.free().saturating_sub(whole);
        let mean = free / self.split.get().max(1);
        (free >= self.managed() / WORTHWHILE).then(|| mean.clamp(PAGEBLOCK_FRAMES / 8, PAGEBLOCK_FRAMES))
    }
    pub(crate) fn set(&self, side: Side) -> &FreeSet {
        match side {
            Side::User => &self.user,
            Side::Kernel => &self.kernel,
        }
    }

    /// Whether user frames are placed by near-cache bin.
    pub(crate) const fn is_balanced(&self) -> bool {
        self.bins.is_some()
    }
    pub(crate) const fn blocks(&self) -> Blocks {
        self.blocks
    }
    pub(crate) const fn runs(&self) -> &BlockRuns {
        &self.runs
    }
    /// The position of a free block in its set.
    pub(crate) fn position_of(&self, side: Side, block: BlockId) -> u64 {
        self.set(side).position_of(block, self.blocks, &self.runs)
    }

    /// Gives a free block of the owner's side to `owner`. The caller takes a frame out of it under
    /// the same hold of the arena's lock: a split block with nothing in use would never become free
    /// again, since only freeing a frame can do that.
    pub(crate) fn open<C: Cpus>(
        &self,
        held: &HeldArena<'_, C>,
        owner: Owner,
        rng: Option<&mut Rng>,
    ) -> Option<BlockId> {
        let sets = self.lock_inside(held);
        let block = self.take_block(&sets, owner.side(), owner, rng)?;
        self.begin_split(held, sets, block, owner);
        Some(block)
    }
    /// Gives a block that was just taken out of its free set to `owner`, to be split.
    pub(crate) fn begin_split<C: Cpus>(
        &self,
        held: &HeldArena<'_, C>,
        sets: Held<'_>,
        block: BlockId,
        owner: Owner,
    ) {
        let state = BlockState::split(owner, PAGEBLOCK_FRAMES).with_arena(held.id);
        self.blocks.set_state(block, state);
        drop(sets);
        block::fill(self.blocks.bitmap(block));
        held.list(block, state);
        held.begin_split();
    }
    /// Whether a request may open another pageblock. Programs' pageblocks have scattered free
    /// frames that the kernel cannot use, so one pageblock is left for the kernel.
    pub(crate) fn may_open(&self, wanted: &TakeRequest) -> bool {
        !wanted.owner.is_user() || wanted.pressure == Pressure::Reserve || self.leaves_kernel_enough()
    }
    /// Hands out up to `most` whole free blocks of a side. A block of the user's side counts as
    /// split without free frames: its owner may free it as a whole or, once its records are split,
    /// frame by frame.
    pub(crate) fn take_whole<C: Cpus>(
        &self,
        held: &HeldArena<'_, C>,
        side: Side,
        most: u64,
        draw: &mut Draw<'_, '_>,
    ) -> u64 {
        let owner = whole_class(side);
        let sets = self.lock_inside(held);
        let blocks = core::iter::from_fn(|| self.take_block(&sets, side, owner, draw.rng.as_deref_mut()));
        let taken = blocks.take(most as usize).map(|block| {
            let state = match side {
                Side::Kernel => BlockState::whole(side),
                Side::User => {
                    self.blocks.bitmap(block).iter().for_each(|word| word.set(0));
                    held.begin_split();
                    BlockState::split(owner, 0).with_hint(0)
                }
            };
            self.blocks.set_state(block, state.with_arena(held.id));
            self.count_whole(block, side, Bins::add);
            draw.out.push(block.start());
        });
        taken.count() as u64
    }
    fn take_block(
        &self,
        held: &Held,
        side: Side,
        owner: Owner,
        mut rng: Option<&mut Rng>,
    ) -> Option<BlockId> {
        let drawn = self.bins.as_ref().and_then(|bins| {
            let block = self.draw_balanced(bins, side, owner, rng.as_deref_mut())?;
            bins.note_opened(owner, block);
            Some(block)
        });
        let position = match drawn {
            Some(block) => self.position_of(side, block),
            None => self.partner(side).or_else(|| self.set(side).draw(rng))?,
        };
        // Only programs' frames can be moved.
        let position = if owner.is_user() { position } else { self.one_that_stays(side, position) };
        Some(self.take_at(held, side, position))
    }
    /// Takes the block at a position, below the length, out of its free set to hand it out. From
    /// now on it has records.
    #[inline]
    pub(crate) fn take_at(&self, _held: &Held, side: Side, position: u64) -> BlockId {
        let block = self.set(side).take_at(position, self.blocks, &self.runs);
        self.prepare(block);
        self.last.set(link(Some(block)));
        block
    }
    /// Gives records to a block that no other CPU can get.
    #[inline]
    pub(crate) fn prepare(&self, block: BlockId) {
        self.table.prepare(block.start());
    }
    /// The other half of the last used 4 MiB block, if halves are used together and it is free on
    /// this side.
    fn partner(&self, side: Side) -> Option<u64> {
        if self.grain <= PAGEBLOCK_ORDER {
            return None;
        }
        let other = BlockId(unlink(self.last.get())?.0 ^ 1);
        let free = other.0 < self.blocks.count()
            && self.is_free(other)
            && self.blocks.state(other).fill() == Fill::Free(side);
        free.then(|| self.set(side).position_of(other, self.blocks, &self.runs))
    }
    /// Gives a split block of another owner on the same side to `owner` if at least half of it is
    /// free. Else returns the other owner, whose frames may be taken. `None` if the side has no
    /// split block with a run of `order`.
    ///
    /// Frames that move and frames that do not (kernel stacks) share a block only if there is no
    /// other: a block with an immovable frame cannot be emptied.
    pub(crate) fn steal<C: Cpus>(&self, held: &HeldArena<'_, C>, wanted: TakeRequest) -> Option<Owner> {
        let TakeRequest { owner, order, effort, .. } = wanted;
        let may_share = |o: &Owner| effort == Effort::Far || o.is_user() == owner.is_user();
        let others = Owner::ALL
            .into_iter()
            .filter(|o| *o != owner && *o != Owner::Free && o.side() == owner.side())
            .filter(may_share);
        let (other, block) = others
            .filter_map(|o| Some((o, held.candidate(o, order, Effort::Far)?)))
            .max_by_key(|(_, block)| self.blocks.state(*block).free())?;
        let old = self.blocks.state(block);
        if old.free() < PAGEBLOCK_FRAMES / 2 || (owner.is_user() && !other.is_user()) {
            return Some(other);
        }
        if let Some(bins) = &self.bins {
            self.recount(bins, block, old.owner(), owner);
        }
        held.update(block, old, old.with_owner(owner));
        Some(owner)
    }

    /// Frees a run of order 0 to 8.
    #[inline(never)]
    pub(crate) fn put<C: Cpus>(
        &self,
        held: &HeldArena<'_, C>,
        frame: Pfn,
        order: u32,
    ) -> Result<(), NotTaken> {
        let block = BlockId::of(frame);
        let old = self.state_in(held, block)?;
        if !old.is_split() {
            return Err(NotTaken::Misuse);
        }
        let index = frame.0 - block.start().0;
        let merged = block::put_run(self.blocks.bitmap(block), index, order).ok_or(NotTaken::Misuse)?;
        if let Some(bins) = &self.bins {
            bins.sub(old.owner(), frame, order);
        }
        let free = old.free() + (1 << order);
        let new = old.with_free(free).with_hint(old.hint().max(merged));
        match (old.is_leaving(), free == PAGEBLOCK_FRAMES) {
            (true, false) => self.blocks.set_state(block, new),
            (true, true) => self.end(held, &self.lock_inside(held), block, old),
            (false, whole) => {
                held.gain(1 << order);
                if whole {
                    held.unlist(block, old);
                    self.end(held, &self.lock_inside(held), block, old);
                } else {
                    held.update(block, old, new);
                }
            }
        }
        Ok(())
    }
    /// Frees a whole block.
    pub(crate) fn put_whole<C: Cpus>(
        &self,
        held: &HeldArena<'_, C>,
        sets: &Held,
        block: BlockId,
    ) -> Result<(), NotTaken> {
        let old = self.state_in(held, block)?;
        if old.fill() != Fill::Whole && !(old.is_split() && old.free() == 0) {
            return Err(NotTaken::Misuse);
        }
        if let Some(bins) = &self.bins {
            bins.sub(old.owner(), block.start(), PAGEBLOCK_ORDER);
        }
        if !old.is_leaving() {
            held.gain(PAGEBLOCK_FRAMES);
        }
        self.end(held, sets, block, old);
        Ok(())
    }
    /// The state of a block in use that belongs to the arena.
    fn state_in<C: Cpus>(&self, held: &HeldArena<'_, C>, block: BlockId) -> Result<BlockState, NotTaken> {
        if block.0 >= self.blocks.count() {
            return Err(NotTaken::Misuse);
        }
        let state = self.blocks.state(block);
        match state.fill() {
            Fill::Split | Fill::Whole if state.arena() != held.id => Err(NotTaken::Elsewhere),
            Fill::Split | Fill::Whole => Ok(state),
            Fill::Free(_) | Fill::Moving | Fill::Offline => Err(NotTaken::Misuse),
        }
    }
    /// Removes a block whose frames are all free from its arena and, if it is leaving, from the
    /// zone.
    fn end<C: Cpus>(&self, held: &HeldArena<'_, C>, sets: &Held, block: BlockId, old: BlockState) {
        if old.is_split() {
            held.end_split();
        }
        if old.is_leaving() {
            self.blocks.set_state(block, BlockState::plain(Fill::Offline));
        } else {
            self.insert(sets, block, BlockState::freed(old.owner().side()));
        }
    }
    #[inline]
    pub(crate) fn count_whole(&self, block: BlockId, side: Side, change: fn(&Bins, Owner, Pfn, u32)) {
        if let Some(bins) = &self.bins {
            change(bins, whole_class(side), block.start(), PAGEBLOCK_ORDER);
        }
    }
    /// Puts a block into the free set that `free`, its new state, names.
    #[inline]
    pub(crate) fn insert(&self, _held: &Held, block: BlockId, free: BlockState) {
        let Fill::Free(side) = free.fill() else { unreachable!("{free:?} is not free") };
        self.blocks.set_state(block, free);
        self.set(side).insert(block, self.blocks);
    }
    /// Begins to manage a block. `free` tells which of its frames are free. The others come back
    /// one by one, or never.
    pub(crate) fn adopt<C: Cpus>(
        &self,
        held: &HeldArena<'_, C>,
        block: BlockId,
        owner: Owner,
        free: [u64; BITMAP_WORDS],
    ) {
        self.prepare(block);
        let count: u64 = free.iter().map(|word| u64::from(word.count_ones())).sum();
        let state = BlockState::split(owner, count).with_arena(held.id);
        self.blocks.bitmap(block).iter().zip(free).for_each(|(word, bits)| word.set(bits));
        self.blocks.set_state(block, state);
        held.list(block, state);
        held.begin_split();
        held.gain(count);
        self.managed.add(count);
    }
    /// Begins to manage a block that is wholly free, on the user's side.
    pub(crate) fn adopt_whole<C: Cpus>(&self, held: &HeldArena<'_, C>, block: BlockId) {
        self.insert(&self.lock_inside(held), block, BlockState::plain(Fill::Free(Side::User)));
        held.gain(PAGEBLOCK_FRAMES);
        self.managed.add(PAGEBLOCK_FRAMES);
    }
    /// Counts frames that were reserved and that the allocator may now hand out.
    pub(crate) fn manage(&self, _held: &Held, frames: u64) {
        self.managed.add(frames);
    }
}
