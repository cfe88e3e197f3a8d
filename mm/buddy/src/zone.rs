//! A node's memory: split pageblocks by class, free pageblocks by side, one lock.
//!
//! | frames wanted | taken from, in this order |
//! |---|---|
//! | orders 0–8 | the fullest split block of the class that has such a run; a free block of the class's side |
//! | order 9 | a free block of the side |
//! | both, then | free blocks of the other side, which change sides (see [`Zone::begin_move`]); another class's split block of the same side |
//!
//! Taking from the fullest block first is what keeps memory whole: blocks that empty are left alone until they are free.
//!
//! **Locks.** Every function that takes a [`Held`] runs under the zone's lock, with the CPU pinned.

use core::sync::atomic::AtomicU64;

use freehold_frame::{Owner, Side};
use freehold_machine::{Cpus, NodeId, PAGEBLOCK_FRAMES, PAGEBLOCK_ORDER, Pfn, Pinned};

use crate::block::{self, BITMAP_WORDS, BUCKETS, BlockId, BlockState, Blocks, Fill, link, unlink};
use crate::numa::NumaCounts;
use crate::place::Bins;
use crate::rng::Rng;
use crate::runs::Runs;
use crate::set::FreeSet;
use crate::take::Reach;
use crate::word::{Held, Lock, Plain};

/// Words of a zone's own lists.
pub(crate) const LIST_WORDS: usize = Owner::COUNT * CLASS_WORDS;
/// A class's words: the heads of its lists, the mask of lists in use, and which lists may hold which orders.
const CLASS_WORDS: usize = BUCKETS + 2;
/// Most pageblocks that change sides at once.
pub(crate) const MOVE_BATCH: usize = 16;
/// Frames of a zone at which something is done about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Watermarks {
    /// Below this no user memory is handed out, and below half of it only what asks for the reserve
    /// ([`Pressure::Reserve`](freehold_frame::Pressure)).
    pub min: u64,
    /// Below this the other CPUs are asked for the frames in their lists.
    pub low: u64,
    /// Above this there is no pressure.
    pub high: u64,
}

impl Watermarks {
    /// The lowest: 4·√KiB of memory in KiB as Linux has it, but at most 1/128 of memory.
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
    lock: Lock,
    pub(crate) node: NodeId,
    blocks: Blocks,
    runs: Runs,
    lists: &'static [AtomicU64],
    pub(crate) bins: Option<Bins>,
    user: FreeSet,
    kernel: FreeSet,
    /// Free frames: those of both sets, of split blocks, and of blocks on the move.
    pub(crate) free: AtomicU64,
    /// Frames that the allocator hands out, free or not.
    pub(crate) managed: AtomicU64,
    /// Frames of pageblocks that are unplugged, or leaving.
    pub(crate) leaving: AtomicU64,
    /// Split pageblocks.
    split: AtomicU64,
    /// Blocks that someone is moving, who will put them back without fail.
    pub(crate) moving: AtomicU64,
    /// The block handed out last: its other half may be next.
    last: AtomicU64,
    /// Frames that are there, reserved ones too; and the lowest watermark, which follows from it.
    present: AtomicU64,
    min: AtomicU64,
    /// The lowest pageblock that can be unplugged.
    pluggable_from: Option<BlockId>,
    /// log2 of the frames that are used one after the other (`page_alloc.shuffle_order`).
    pub(crate) grain: u32,
    /// Touched on the slow path, without the lock.
    pub(crate) numa: NumaCounts,
}

/// What a zone is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) blocks: Blocks,
    pub(crate) runs: Runs,
    pub(crate) lists: &'static [AtomicU64],
    pub(crate) bins: Option<Bins>,
    /// The slots of the user's and of the kernel's free set.
    pub(crate) sets: (&'static [AtomicU64], &'static [AtomicU64]),
    /// Frames that are there at boot, reserved ones too.
    pub(crate) frames: u64,
    /// Frames that can be plugged in.
    pub(crate) absent: u64,
    /// The lowest pageblock of those.
    pub(crate) pluggable_from: Option<BlockId>,
}

/// A frame that was put back is free already, or its pageblock does not hand out frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NotTaken;

impl Zone {
    pub(crate) fn new(node: NodeId, parts: Parts, grain: u32) -> Self {
        let Parts { blocks, runs, lists, bins, sets, frames, absent, pluggable_from } = parts;
        let free = runs.total * PAGEBLOCK_FRAMES;
        Self {
            lock: Lock::default(),
            node,
            blocks,
            runs,
            lists,
            bins,
            user: FreeSet::new(sets.0, runs.total),
            kernel: FreeSet::new(sets.1, 0),
            free: AtomicU64::new(free),
            managed: AtomicU64::new(free),
            leaving: AtomicU64::new(absent),
            split: AtomicU64::new(0),
            moving: AtomicU64::new(0),
            last: AtomicU64::new(0),
            present: AtomicU64::new(frames),
            min: AtomicU64::new(Watermarks::least(frames)),
            pluggable_from,
            grain,
            numa: NumaCounts::default(),
        }
    }
    pub(crate) fn lock<'a, C: Cpus>(&'a self, pinned: &'a Pinned<C>, cpus: C) -> Held<'a> {
        self.lock.lock(pinned, cpus)
    }
    /// Free frames of the zone itself; those in per-CPU lists are not among them. A hint without the lock.
    pub(crate) fn free(&self) -> u64 {
        self.free.get()
    }
    pub(crate) fn managed(&self) -> u64 {
        self.managed.get()
    }
    /// The watermarks of what is there now.
    pub(crate) fn marks(&self) -> Watermarks {
        Watermarks::above(self.min.get())
    }
    /// Count memory that comes, or goes.
    pub(crate) fn change_present(&self, _held: &Held, change: fn(&AtomicU64, u64)) {
        change(&self.present, PAGEBLOCK_FRAMES);
        self.min.set(Watermarks::least(self.present.get()));
        change(&self.managed, PAGEBLOCK_FRAMES);
    }
    /// Whether a pageblock can be unplugged: such blocks are the last that the kernel takes for itself.
    pub(crate) fn is_pluggable(&self, block: BlockId) -> bool {
        self.pluggable_from.is_some_and(|first| block >= first)
    }
    pub(crate) fn moving(&self, _held: &Held) -> u64 {
        self.moving.get()
    }
    /// The mean of free frames in split pageblocks, but at least an eighth of one: above it a pageblock is sparse. A hint without the lock.
    pub(crate) fn sparse(&self) -> u64 {
        let whole = (self.user.len() + self.kernel.len() + self.moving.get()) * PAGEBLOCK_FRAMES;
        let free = self.free.get().saturating_sub(whole);
        (free / self.split.get().max(1)).clamp(PAGEBLOCK_FRAMES / 8, PAGEBLOCK_FRAMES)
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
    pub(crate) const fn runs(&self) -> &Runs {
        &self.runs
    }
    /// The first block of a list.
    pub(crate) fn first_of(&self, class: Owner, bucket: usize) -> Option<BlockId> {
        unlink(self.head(class, bucket).get())
    }
    /// Where a free block is in its set.
    pub(crate) fn position_of(&self, side: Side, block: BlockId) -> u64 {
        self.set(side).position_of(block, self.blocks, &self.runs)
    }
    fn head(&self, class: Owner, bucket: usize) -> &AtomicU64 {
        &self.lists[class as usize * CLASS_WORDS + bucket]
    }
    /// The buckets of `class` that are not empty, as a mask.
    pub(crate) fn buckets(&self, class: Owner) -> &AtomicU64 {
        &self.lists[class as usize * CLASS_WORDS + BUCKETS]
    }
    /// For each order 1 to 8 a byte: the buckets of `class` in which a block may have such a run. The other buckets have none.
    pub(crate) fn fits(&self, class: Owner) -> &AtomicU64 {
        &self.lists[class as usize * CLASS_WORDS + BUCKETS + 1]
    }
    /// A block on the list `bucket` may have runs of up to the order `hint`.
    fn note_fits(&self, class: Owner, bucket: usize, hint: u32) {
        // Whole bytes for the orders up to the hint, the bucket's bit in each.
        let orders = if hint >= 8 { u64::MAX } else { (1 << (8 * hint)) - 1 };
        let fits = self.fits(class);
        fits.set(fits.get() | (orders & 0x0101_0101_0101_0101) << bucket);
    }
    fn enlist(&self, block: BlockId, class: Owner, bucket: usize) {
        let head = self.head(class, bucket);
        let next = unlink(head.get());
        if let Some(next) = next {
            self.blocks.set_links(next, self.blocks.links(next).0, Some(block));
        }
        self.blocks.set_links(block, next, None);
        head.set(link(Some(block)));
        let mask = self.buckets(class);
        mask.set(mask.get() | 1 << bucket);
    }
    fn delist(&self, block: BlockId, class: Owner, bucket: usize) {
        let (next, previous) = self.blocks.links(block);
        if let Some(next) = next {
            self.blocks.set_links(next, self.blocks.links(next).0, previous);
        }
        if let Some(previous) = previous {
            self.blocks.set_links(previous, next, self.blocks.links(previous).1);
        } else {
            self.head(class, bucket).set(link(next));
            if next.is_none() {
                let mask = self.buckets(class);
                mask.set(mask.get() & !(1 << bucket));
            }
        }
    }
    /// Write a split block's new state and keep it on the list it belongs on.
    pub(crate) fn update(&self, block: BlockId, old: BlockState, new: BlockState) {
        self.blocks.set_state(block, new);
        // The free count minus 1, rounded: -1 for a block that is on no list.
        let (was, is) = ((old.free() as i64 - 1) >> 6, (new.free() as i64 - 1) >> 6);
        if was != is || old.class() != new.class() {
            if was >= 0 {
                self.delist(block, old.class(), was as usize);
            }
            if is >= 0 {
                self.enlist(block, new.class(), is as usize);
            }
        } else if is < 0 || new.hint() <= old.hint() {
            return;
        }
        if is >= 0 {
            self.note_fits(new.class(), is as usize, new.hint());
        }
    }

    /// Give a free block of the class's side to `class`.
    pub(crate) fn open(&self, held: &Held, class: Owner, rng: Option<&mut Rng>) -> Option<BlockId> {
        let block = self.take_block(held, class.side(), class, rng)?;
        block::fill(self.blocks.bitmap(block));
        self.blocks.set_state(block, BlockState::split(class, PAGEBLOCK_FRAMES));
        self.enlist(block, class, BUCKETS - 1);
        self.note_fits(class, BUCKETS - 1, PAGEBLOCK_ORDER);
        self.split.add(1);
        self.free.add(PAGEBLOCK_FRAMES);
        Some(block)
    }
    /// Hand out a whole free block of a side. One of the user's side counts as split with nothing free: its owner may give it back
    /// as a whole or, once its records say so, frame by frame.
    pub(crate) fn take_whole(&self, held: &Held, side: Side, rng: Option<&mut Rng>) -> Option<BlockId> {
        let class = whole_class(side);
        let block = self.take_block(held, side, class, rng)?;
        self.count_whole(block, side, Bins::add);
        self.blocks.set_state(
            block,
            match side {
                Side::Kernel => BlockState::plain(Fill::Whole).with_class(class),
                Side::User => {
                    self.blocks.bitmap(block).iter().for_each(|word| word.set(0));
                    self.split.add(1);
                    BlockState::split(class, 0).with_hint(0)
                }
            },
        );
        Some(block)
    }
    fn take_block(
        &self,
        _held: &Held,
        side: Side,
        class: Owner,
        mut rng: Option<&mut Rng>,
    ) -> Option<BlockId> {
        let set = self.set(side);
        let position = self
            .bins
            .as_ref()
            .and_then(|bins| self.draw_balanced(bins, side, class, rng.as_deref_mut()))
            .or_else(|| self.partner(side))
            .or_else(|| set.draw(rng))?;
        let block = set.take_at(position, self.blocks, &self.runs);
        self.last.set(link(Some(block)));
        self.free.sub(PAGEBLOCK_FRAMES);
        Some(block)
    }
    /// The other half of the 4 MiB block that was begun last, if halves go together and it is free on this side.
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
    /// Make a split block of another class on the same side `class`'s own, if half of it or more is free; else say whose
    /// frames may be taken. `None` where the side has no split block with a run of `order`.
    pub(crate) fn steal(&self, held: &Held, class: Owner, order: u32) -> Option<Owner> {
        let others =
            Owner::ALL.into_iter().filter(|o| *o != class && *o != Owner::Free && o.side() == class.side());
        let (other, block) = others
            .filter_map(|o| Some((o, self.candidate(held, o, order, Reach::Far)?)))
            .max_by_key(|(_, block)| self.blocks.state(*block).free())?;
        let old = self.blocks.state(block);
        if old.free() < PAGEBLOCK_FRAMES / 2 {
            return Some(other);
        }
        if let Some(bins) = &self.bins {
            self.recount(bins, block, old.class(), class);
        }
        self.update(block, old, old.with_class(class));
        Some(class)
    }

    /// Put single frames back; one that was not taken, if there is one.
    pub(crate) fn put_singles(&self, held: &Held, frames: impl Iterator<Item = Pfn>) -> Option<Pfn> {
        let (mut plain, mut refused) = (0, None);
        for frame in frames {
            if self.bins.is_none() && self.blocks.put_plain(frame) {
                plain += 1;
            } else if self.put(held, frame, 0).is_err() {
                refused = Some(frame);
            }
        }
        self.free.add(plain);
        refused
    }
    /// Put a run of order 0 to 8 back.
    #[inline(never)]
    pub(crate) fn put(&self, _held: &Held, frame: Pfn, order: u32) -> Result<(), NotTaken> {
        let block = BlockId::of(frame);
        let old = self.blocks.state(block);
        let index = frame.0 - block.start().0;
        if !old.is_split() {
            return Err(NotTaken);
        }
        let merged = block::put_run(self.blocks.bitmap(block), index, order).ok_or(NotTaken)?;
        if let Some(bins) = &self.bins {
            bins.sub(old.class(), frame, order);
        }
        let free = old.free() + (1 << order);
        if old.is_leaving() {
            self.note_leaving(block, old, free);
            return Ok(());
        }
        self.free.add(1 << order);
        if free < PAGEBLOCK_FRAMES {
            self.update(block, old, old.with_free(free).with_hint(old.hint().max(merged)));
        } else {
            if old.free() > 0 {
                self.delist(block, old.class(), old.bucket());
            }
            self.split.sub(1);
            self.insert(block, old.class().side());
        }
        Ok(())
    }
    /// Put a whole block back.
    pub(crate) fn put_whole(&self, _held: &Held, block: BlockId, side: Side) -> Result<(), NotTaken> {
        let old = self.blocks.state(block);
        let of_frames = old.is_split() && old.free() == 0;
        if old.fill() != Fill::Whole && !of_frames {
            return Err(NotTaken);
        }
        if of_frames {
            self.split.sub(1);
        }
        if let Some(bins) = &self.bins {
            let class = if of_frames { old.class() } else { whole_class(side) };
            bins.sub(class, block.start(), PAGEBLOCK_ORDER);
        }
        if old.is_leaving() {
            self.blocks.set_state(block, BlockState::plain(Fill::Offline));
            return Ok(());
        }
        self.free.add(PAGEBLOCK_FRAMES);
        self.insert(block, side);
        Ok(())
    }
    /// Frames of a leaving block came back: it is out with the last of them.
    fn note_leaving(&self, block: BlockId, old: BlockState, free: u64) {
        let out = free == PAGEBLOCK_FRAMES;
        if out {
            self.split.sub(1);
        }
        self.blocks.set_state(
            block,
            if out {
                BlockState::plain(Fill::Offline)
            } else {
                old.with_free(free).with_hint(PAGEBLOCK_ORDER)
            },
        );
    }
    /// Take a split block off its list, or put it on: it leaves, or stays after all.
    pub(crate) fn unlist(&self, _held: &Held, block: BlockId, state: BlockState) {
        if state.free() > 0 {
            self.delist(block, state.class(), state.bucket());
        }
    }
    pub(crate) fn list(&self, _held: &Held, block: BlockId, state: BlockState) {
        if state.free() > 0 {
            self.enlist(block, state.class(), state.bucket());
            self.note_fits(state.class(), state.bucket(), state.hint());
        }
    }
    pub(crate) fn count_whole(&self, block: BlockId, side: Side, change: fn(&Bins, Owner, Pfn, u32)) {
        if let Some(bins) = &self.bins {
            change(bins, whole_class(side), block.start(), PAGEBLOCK_ORDER);
        }
    }
    pub(crate) fn insert(&self, block: BlockId, side: Side) {
        self.blocks.set_state(block, BlockState::plain(Fill::Free(side)));
        self.set(side).insert(block, self.blocks);
    }
    /// Begin to manage a block of which `free` says which frames are free; the others never come back, or one by one.
    pub(crate) fn adopt(&self, held: &Held, block: BlockId, class: Owner, free: [u64; BITMAP_WORDS]) {
        let count: u64 = free.iter().map(|word| u64::from(word.count_ones())).sum();
        self.blocks.bitmap(block).iter().zip(free).for_each(|(word, bits)| word.set(bits));
        self.blocks.set_state(block, BlockState::split(class, count));
        if count > 0 {
            self.list(held, block, BlockState::split(class, count));
        }
        self.split.add(1);
        self.free.add(count);
        self.managed.add(count);
    }
    /// Begin to manage a block that is wholly free, on the user's side.
    pub(crate) fn adopt_whole(&self, _held: &Held, block: BlockId) {
        self.insert(block, Side::User);
        self.free.add(PAGEBLOCK_FRAMES);
        self.managed.add(PAGEBLOCK_FRAMES);
    }
    /// Whether a split block is on the list that its state names, or on none with nothing free.
    pub(crate) fn is_listed(&self, _held: &Held, block: BlockId) -> bool {
        let state = self.blocks.state(block);
        if state.free() == 0 || state.is_leaving() {
            return true;
        }
        let mut next = unlink(self.head(state.class(), state.bucket()).get());
        while let Some(listed) = next {
            if listed == block {
                return true;
            }
            next = self.blocks.links(listed).0;
        }
        false
    }
    /// Frames that were reserved are now the allocator's to hand out.
    pub(crate) fn manage(&self, _held: &Held, frames: u64) {
        self.managed.add(frames);
    }
}

/// For whom a block that is handed out as a whole counts.
pub(crate) const fn whole_class(side: Side) -> Owner {
    match side {
        Side::Kernel => Owner::Kernel,
        Side::User => Owner::Anon,
    }
}
