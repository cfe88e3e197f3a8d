//! A CPU's own lists of free blocks: array stacks that only that CPU touches.
//!
//! A hit costs no lock, no atomic read-modify-write, and only this CPU's cache lines (and the block's record). With shuffle on, a hit
//! takes the block at a random place of the list instead of the top, so that neither the order in which blocks were put in nor the last
//! free says what comes out; without, the same code runs with a range of one.
//!
//! A frame goes back into the list it came from only if its pageblock is well used. One of a sparse pageblock, and one of another
//! node, goes home instead, a few at a time: so memory does not stay in pieces because its pieces are at hand.
//!
//! **Who may call.** The CPU itself, pinned; interrupt handlers never do. Other CPUs may read the lengths, as hints, and raise
//! the drain flag, which the owner serves when it next passes [`Buddy::poll`](crate::Buddy::poll) or runs out.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_frame::{Order, Owner, Tag};
use freehold_machine::{NodeId, PAGEBLOCK_FRAMES, Pfn};

use crate::word::Plain;

/// Lists of one CPU.
pub(crate) const LISTS: usize = 12;
/// Lists for single frames, which come first.
const SINGLES: usize = 4;
/// Blocks that wait to go home.
pub(crate) const HOMEWARD: usize = 64;

/// Words in a lane's head: its scalars, then eight words for each list.
pub(crate) const HEAD: usize = TABLE + 8 * LIST_CHUNKS;
const RANDOM: usize = 0;
const DRAIN: usize = 1;
const SPARSE: usize = 2;
const NODE: usize = 3;
const REFILLS: usize = 4;
const HOMEWARD_AT: usize = 5;
const HOMEWARD_LEN: usize = 6;
/// Blocks that passed by the lists, and frames of them by owner: handed out less given back.
const PASSED_OUT: usize = 7;
const PASSED_BACK: usize = 8;
const PASSED_FRAMES: usize = 16;
const TABLE: usize = PASSED_FRAMES + Owner::COUNT;
/// `LISTS`, rounded up so that a masked index needs no check.
const LIST_CHUNKS: usize = 16;
/// A list's words: where its next block goes, its first place, one past its last, how much a refill gets, and how many blocks it
/// handed out and took back, ever.
const NEXT: usize = 0;
const FIRST: usize = 1;
const END: usize = 2;
const BATCH: usize = 3;
const TAKEN: usize = 4;
const GIVEN: usize = 5;

/// What a list holds and where it is in a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) class: Owner,
    pub(crate) order: u32,
    /// Most blocks in one refill.
    pub(crate) batch: u64,
    /// Room; twice the batch. 0: not used on this machine.
    pub(crate) room: u64,
}

/// The shapes of all lanes of a machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shapes {
    shapes: [Shape; LISTS],
    /// Words in the stacks of a lane.
    pub(crate) words: usize,
    /// Which list serves a [`Tag`]'s owner and order; `NO_LIST`: none.
    serves: [u8; Tag::KEYS],
}

const NO_LIST: u8 = u8::MAX;

impl Shapes {
    /// Lists for a machine with `frames` of memory and `cpus`: at most `most` single frames in a batch, and 1/128 of a CPU's share.
    pub(crate) fn of(frames: u64, cpus: usize, most: u64) -> Self {
        let share = frames / cpus.max(1) as u64;
        let singles = (share / 128).clamp(8, most);
        let shapes = core::array::from_fn(|index| {
            let (class, order) = match index {
                0 => (Owner::Kernel, 0),
                1 => (Owner::PageTable, 0),
                2 => (Owner::Anon, 0),
                3 => (Owner::PageCache, 0),
                _ => (
                    if index % 2 == 0 { Owner::Kernel } else { Owner::Anon },
                    [1, 2, 3, 9][(index - SINGLES) / 2],
                ),
            };
            let batch = match order {
                0 => singles,
                9 => (share / PAGEBLOCK_FRAMES / 64).min(8),
                _ => singles >> (order + 1),
            };
            Shape { class, order, batch, room: 2 * batch }
        });
        let mut serves = [NO_LIST; Tag::KEYS];
        let mut serve = |list: usize, owner, order| {
            let order = Order::new(order).expect("lists hold small orders");
            serves[Tag::new(owner, order, NodeId(0)).key()] = list as u8;
        };
        for (list, shape) in shapes.iter().enumerate().filter(|(_, shape)| shape.room > 0) {
            serve(list, shape.class, shape.order);
        }
        let words = HOMEWARD + shapes.iter().map(|shape| shape.room as usize).sum::<usize>();
        Self { shapes, words: words.next_multiple_of(8), serves }
    }
    /// The list for blocks of an owner and order.
    #[inline]
    pub(crate) fn serving(&self, tag: Tag) -> Option<usize> {
        let list = self.serves[tag.key()];
        (list != NO_LIST).then_some(usize::from(list))
    }
    /// Write into the head of CPU number `cpu` where its stacks are, and the node whose blocks they hold.
    pub(crate) fn lay_out(&self, head: &[AtomicU64; HEAD], cpu: usize, node: NodeId) {
        let mut at = (cpu * self.words) as u64;
        head[NODE].set(u64::from(node.0));
        head[HOMEWARD_AT].set(at);
        at += HOMEWARD as u64;
        for (list, shape) in self.shapes.iter().enumerate() {
            let words = &head[TABLE + 8 * list..];
            words[NEXT].set(at);
            words[FIRST].set(at);
            at += shape.room;
            words[END].set(at);
        }
    }
    #[inline]
    pub(crate) fn shape(&self, list: usize) -> &Shape {
        &self.shapes[list]
    }
}

/// One CPU's lists. See the module's head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lane<'a> {
    head: &'a [AtomicU64; HEAD],
    /// The stacks of all lanes.
    stacks: &'a [AtomicU64],
    /// All ones: take at random. Less: take the top.
    spread: u64,
}

impl<'a> Lane<'a> {
    #[inline]
    pub(crate) fn new(head: &'a [AtomicU64; HEAD], stacks: &'a [AtomicU64], spread: u64) -> Self {
        Self { head, stacks, spread }
    }
    /// The words of a list.
    #[inline]
    fn list(&self, list: usize) -> &'a [AtomicU64; 8] {
        &self.head.as_chunks().0[list % LIST_CHUNKS + TABLE / 8]
    }
    #[inline]
    fn word(&self, list: usize, which: usize) -> &'a AtomicU64 {
        &self.list(list)[which]
    }
    #[inline]
    pub(crate) fn len(&self, list: usize) -> u64 {
        self.word(list, NEXT).get() - self.word(list, FIRST).get()
    }
    fn slot(&self, list: usize, index: u64) -> &'a AtomicU64 {
        &self.stacks[(self.word(list, FIRST).get() + index) as usize]
    }
    /// The node whose blocks the lists hold.
    #[inline]
    pub(crate) fn node(&self) -> NodeId {
        NodeId(self.head[NODE].get() as u8)
    }
    /// Take a block.
    #[inline]
    pub(crate) fn pop(&self, list: usize) -> Option<Pfn> {
        let words = self.list(list);
        let next = words[NEXT].get();
        let len = next - words[FIRST].get();
        if len == 0 {
            return None;
        }
        // A linear congruential step (Knuth's MMIX) from a state keyed anew at every trip through the slow path; only the high bits
        // are used, and the multiply-high leaves a bias below 2^-53 for lists of at most 1,024.
        let random =
            self.head[RANDOM].get().wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        self.head[RANDOM].set(random);
        let back = (u128::from(random & self.spread) * u128::from(len)) >> 64;
        let last = &self.stacks[next as usize - 1];
        let slot = &self.stacks[next as usize - 1 - back as usize];
        let block = slot.get();
        slot.set(last.get());
        words[NEXT].set(next - 1);
        words[TAKEN].add(1);
        Some(Pfn(block))
    }
    /// Put a block in. `false` if there is no room.
    #[inline]
    #[must_use]
    pub(crate) fn push(&self, list: usize, block: Pfn) -> bool {
        let words = self.list(list);
        let next = words[NEXT].get();
        if next >= words[END].get() {
            return false;
        }
        self.stacks[next as usize].set(block.0);
        words[NEXT].set(next + 1);
        true
    }
    /// Whether a pageblock with so many free frames is sparse: what is given back of it goes home.
    #[inline]
    pub(crate) fn is_sparse(&self, free: u64) -> bool {
        free > self.head[SPARSE].get()
    }
    pub(crate) fn set_sparse(&self, free: u64) {
        self.head[SPARSE].set(free);
    }
    /// Take the blocks that have been in longest, or any with shuffle on: for those that leave the list without being used.
    pub(crate) fn evict(&self, list: usize, count: u64, mut out: impl FnMut(Pfn)) {
        let count = count.min(self.len(list));
        if self.spread == u64::MAX {
            for _ in 0..count {
                self.pop(list).into_iter().for_each(&mut out);
            }
            self.word(list, TAKEN).sub(count);
            return;
        }
        let rest = self.len(list) - count;
        (0..count).for_each(|index| out(Pfn(self.slot(list, index).get())));
        (0..rest).for_each(|index| self.slot(list, index).set(self.slot(list, index + count).get()));
        self.word(list, NEXT).set(self.word(list, FIRST).get() + rest);
    }
    /// A block was given back that belongs to this list, into it or past it.
    #[inline]
    pub(crate) fn count_given(&self, list: usize) {
        self.list(list)[GIVEN].add(1);
    }
    /// A block that no list serves was handed out.
    pub(crate) fn count_passed_out(&self, owner: Owner, frames: u64) {
        self.head[PASSED_OUT].add(1);
        self.head[PASSED_FRAMES + owner as usize].add(frames);
    }
    /// A block that no list serves was given back.
    pub(crate) fn count_passed_back(&self, owner: Owner, frames: u64) {
        self.head[PASSED_BACK].add(1);
        self.head[PASSED_FRAMES + owner as usize].sub(frames);
    }
    /// A block that a list serves was handed out past it.
    pub(crate) fn count_taken(&self, list: usize) {
        self.word(list, TAKEN).add(1);
    }
    /// Blocks handed out and given back on this CPU, ever.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        let lists = |which| (0..LISTS).map(|list| self.word(list, which).get()).fold(0u64, u64::wrapping_add);
        let taken = lists(TAKEN).wrapping_add(self.head[PASSED_OUT].get());
        (taken, lists(GIVEN).wrapping_add(self.head[PASSED_BACK].get()))
    }
    /// Frames of `owner` handed out on this CPU less those given back on it: means something only summed over all CPUs.
    pub(crate) fn frames_of(&self, owner: Owner, shapes: &Shapes) -> u64 {
        let lists = (0..LISTS).filter(|list| shapes.shape(*list).class == owner);
        let frames = lists.map(|list| {
            self.word(list, TAKEN).get().wrapping_sub(self.word(list, GIVEN).get())
                << shapes.shape(list).order
        });
        frames.fold(self.head[PASSED_FRAMES + owner as usize].get(), u64::wrapping_add)
    }
    pub(crate) fn key(&self) -> u64 {
        self.head[RANDOM].get()
    }
    pub(crate) fn set_key(&self, key: u64) {
        self.head[RANDOM].set(key);
    }
    /// How many blocks to get now: doubles with each refill that no drain came before.
    pub(crate) fn grow(&self, list: usize, most: u64) -> u64 {
        self.head[REFILLS].add(1);
        let word = self.word(list, BATCH);
        let now = word.get().clamp(most.min(8), most);
        word.set((now * 2).min(most));
        now
    }
    /// Ask for less next time.
    pub(crate) fn shrink(&self, list: usize) {
        let word = self.word(list, BATCH);
        word.set(word.get() / 2);
    }
    /// Refills since the last call.
    pub(crate) fn refills(&self) -> u64 {
        let count = self.head[REFILLS].get();
        self.head[REFILLS].set(0);
        count
    }
    /// Put away a block that is to go home. `false` if there is no room.
    #[inline]
    #[must_use]
    pub(crate) fn push_homeward(&self, block: Pfn, order: u32, node: NodeId) -> bool {
        let len = self.head[HOMEWARD_LEN].get();
        if len >= HOMEWARD as u64 {
            return false;
        }
        self.stacks[(self.head[HOMEWARD_AT].get() + len) as usize]
            .set(block.0 << 9 | u64::from(node.0) << 5 | u64::from(order));
        self.head[HOMEWARD_LEN].set(len + 1);
        true
    }
    /// Blocks that wait to go home, with their orders and nodes.
    pub(crate) fn homeward(&self) -> impl Iterator<Item = (Pfn, u32, NodeId)> + use<'a> {
        let entries =
            &self.stacks[self.head[HOMEWARD_AT].get() as usize..][..self.head[HOMEWARD_LEN].get() as usize];
        entries
            .iter()
            .map(Plain::get)
            .map(|bits| (Pfn(bits >> 9), (bits & 31) as u32, NodeId((bits >> 5 & 15) as u8)))
    }
    /// They all went home.
    pub(crate) fn clear_homeward(&self) {
        self.head[HOMEWARD_LEN].set(0);
    }
    /// The blocks of a list.
    pub(crate) fn iter(&self, list: usize) -> impl Iterator<Item = Pfn> + use<'_> {
        (0..self.len(list)).map(move |index| Pfn(self.slot(list, index).get()))
    }
    /// Frames in this lane.
    pub(crate) fn frames(&self, shapes: &Shapes) -> u64 {
        let lists: u64 = (0..LISTS).map(|list| self.len(list) << shapes.shape(list).order).sum();
        lists + self.homeward().map(|(_, order, _)| 1 << order).sum::<u64>()
    }
    /// Ask the CPU to give its blocks back. Any CPU calls this.
    pub(crate) fn request_drain(&self) {
        self.head[DRAIN].store(1, Ordering::Relaxed);
    }
    /// Whether it was asked, since the last call.
    pub(crate) fn drain_requested(&self) -> bool {
        self.head[DRAIN].get() != 0 && self.head[DRAIN].swap(0, Ordering::Relaxed) != 0
    }
}
