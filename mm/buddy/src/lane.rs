//! A CPU's own lists of free blocks: array stacks that only that CPU touches.
//!
//! A hit costs no lock, no atomic read-modify-write, and only this CPU's cache lines (and the block's record). With shuffle on, a hit
//! takes the block at a random place of the list instead of the top, so that neither the order in which blocks were put in nor the last
//! free says what comes out; without, the same code runs with a range of one.
//!
//! A list is one cache line: everything that a hit reads or writes but the block itself. Which list takes a block back is *guessed* from
//! its order (the list that took the last one) and then confirmed by the block's record, so that a free need not wait for the record before it
//! knows where to put the block.
//!
//! A block goes back into the list it came from only if its pageblock is well used. One of a sparse pageblock, and one of another
//! node, waits in the list [`HOME`] instead until many go home at once: so memory does not stay in pieces because its pieces are at hand.
//!
//! **Who may call.** The CPU itself, pinned; interrupt handlers never do. Other CPUs may read the lengths, as hints, and raise
//! the drain flag, which the owner serves when it next passes [`Buddy::poll`](crate::Buddy::poll) or runs out.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_frame::{Order, Owner, Tag, Trace};
use freehold_machine::{CpuId, NodeId, PAGEBLOCK_FRAMES, PAGEBLOCK_ORDER, Pfn};

use crate::block::BlockState;
use crate::word::Plain;

/// Lists of one CPU that hand out blocks.
pub(crate) const LISTS: usize = SINGLES + 2 * PAGEBLOCK_ORDER as usize;
/// Lists for single frames, which come first; then two for each order.
const SINGLES: usize = 4;
/// The list of blocks that wait to go home; each with its tag.
pub(crate) const HOME: usize = LISTS;
/// What "serves" the blocks that no list does: always empty and always full.
const NOWHERE: usize = LISTS + 1;
/// Room for blocks that wait to go home.
const HOMEWARD: u64 = 256;
/// Where a block that waits to go home has its tag.
const TAG_SHIFT: u32 = 48;

/// Lines in a lane's head: its scalars, then one for each list.
const LINES: usize = 32;
/// Words in a lane's head.
pub(crate) const HEAD: usize = LINES * 8;
const RANDOM: usize = 0;
const SPARSE: usize = 2;
const NODE: usize = 3;
/// Blocks that passed by the lists, and frames of them by owner: handed out less given back.
const PASSED_OUT: usize = 4;
const PASSED_BACK: usize = 5;
const REFILLS: usize = 6;
const PASSED_FRAMES: usize = 8;
/// For each order, up to the largest that a caller may name, the line of the list that took the last block of it.
const GUESS: usize = PASSED_FRAMES + Owner::COUNT;
const GUESSES: usize = 32;
/// The one word that other CPUs write has two lines of its own.
const DRAIN: usize = GUESS + GUESSES;
/// The line of the first list.
const TABLE: usize = DRAIN / 8 + 2;

/// A list's words: where its next block goes, its first place, one past its last; the tag of its blocks, and above it what the record of a block
/// in it says; how many blocks it handed out and took back, ever; how much a refill gets; and all ones if blocks are drawn at random,
/// 0 if the one that was put in last comes first.
const NEXT: usize = 0;
const FIRST: usize = 1;
const END: usize = 2;
const LABEL: usize = 3;
const TAKEN: usize = 4;
const GIVEN: usize = 5;
const BATCH: usize = 6;
const SPREAD: usize = 7;

/// The line of the list that serves the blocks of a [`Tag`], by its key.
const SERVES: [u8; Tag::KEYS] = {
    let mut serves = [(TABLE + NOWHERE) as u8; Tag::KEYS];
    let mut list = 0;
    while list < LISTS {
        let (owner, log2) = owner_and_order(list);
        let Some(order) = Order::new(log2) else { panic!("lists hold small orders") };
        serves[Tag::new(owner, order, NodeId(0)).key()] = (TABLE + list) as u8;
        list += 1;
    }
    serves
};

const fn owner_and_order(list: usize) -> (Owner, u32) {
    match list {
        0 => (Owner::Kernel, 0),
        1 => (Owner::PageTable, 0),
        2 => (Owner::Anon, 0),
        3 => (Owner::PageCache, 0),
        _ if list.is_multiple_of(2) => (Owner::Kernel, ((list - SINGLES) / 2 + 1) as u32),
        _ => (Owner::Anon, ((list - SINGLES) / 2 + 1) as u32),
    }
}

/// The line of the list for blocks of an owner and order; [`NOWHERE`]'s where there is none.
#[inline]
const fn line_serving(tag: Tag) -> usize {
    SERVES[tag.key()] as usize
}

/// What a list holds and how much.
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
}

impl Shapes {
    /// Lists for a machine with `frames` of memory and `cpus`: at most `most` single frames in a batch, and 1/128 of a CPU's share.
    pub(crate) fn of(frames: u64, cpus: usize, most: u64) -> Self {
        let share = frames / cpus.max(1) as u64;
        let singles = (share / 128).clamp(8, most);
        let shapes = core::array::from_fn(|list| {
            let (class, order) = owner_and_order(list);
            let batch = match order {
                0 => singles,
                PAGEBLOCK_ORDER => (share / PAGEBLOCK_FRAMES / 64).min(8),
                // A few blocks each of the middling orders, 1/256 of a CPU's share at most.
                4.. => ((share / 256) >> order).min(singles >> 5),
                _ => singles >> (order + 1),
            };
            Shape { class, order, batch, room: 2 * batch }
        });
        let words = HOMEWARD as usize + shapes.iter().map(|shape| shape.room as usize).sum::<usize>();
        Self { shapes, words: words.next_multiple_of(16) }
    }
    /// The list for blocks of an owner and order, if this machine has one.
    #[inline]
    pub(crate) fn serving(&self, tag: Tag) -> Option<usize> {
        let list = line_serving(tag) - TABLE;
        (list < LISTS && self.shapes[list].room > 0).then_some(list)
    }
    /// Write into the head of CPU number `cpu` where its stacks are, the node whose blocks they hold, and how blocks are drawn. Without
    /// `fast` ways, a block is never put into a list but by the slow one.
    pub(crate) fn lay_out(
        &self,
        head: &[AtomicU64; HEAD],
        cpu: CpuId,
        node: NodeId,
        fast: Fast,
        draws: Draws,
    ) {
        let mut at = u64::from(cpu.0) * self.words as u64;
        head[NODE].set(u64::from(node.0));
        for (list, words) in head.as_chunks::<8>().0[TABLE..].iter().enumerate() {
            let (owner, log2) = if list < LISTS { owner_and_order(list) } else { (Owner::Free, 0) };
            let room = match list {
                HOME => HOMEWARD,
                0..LISTS => self.shapes[list].room,
                // Lines that round the head up.
                _ => 0,
            };
            words[NEXT].set(at);
            words[FIRST].set(at);
            at += room;
            words[END].set(at);
            let tag = Tag::new(owner, Order::new(log2).unwrap_or(Order::FRAME), node);
            let label = match (fast, list) {
                (Fast::Yes, 0..LISTS) => tag.bits(),
                // No record says that.
                _ => u32::MAX,
            };
            words[LABEL].set(u64::from(label) | u64::from(tag.trace(cpu).bits()) << 32);
            words[SPREAD].set(if draws.any(log2) { u64::MAX } else { 0 });
        }
        head[GUESS..GUESS + GUESSES].iter().for_each(|guess| guess.set((TABLE + NOWHERE) as u64));
    }
    #[inline]
    pub(crate) fn shape(&self, list: usize) -> &Shape {
        &self.shapes[list]
    }
}

/// Which lists draw their blocks at random.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Draws {
    /// Those of this order and above.
    From(u32),
    None,
}

impl Draws {
    fn any(self, order: u32) -> bool {
        matches!(self, Self::From(least) if order >= least)
    }
}

/// Whether blocks may go in and out without anything done to their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fast {
    Yes,
    No,
}

/// A list of a lane: its line.
#[derive(Clone, Copy, Debug)]
struct List<'a>(&'a [AtomicU64; 8]);

impl List<'_> {
    #[inline]
    fn len(self) -> u64 {
        self.0[NEXT].get() - self.0[FIRST].get()
    }
    #[inline]
    fn tag(self) -> Tag {
        Tag::of_bits(self.0[LABEL].get() as u32)
    }
}

/// One CPU's lists. See the module's head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lane<'a> {
    head: &'a [AtomicU64; HEAD],
    /// The stacks of all lanes.
    stacks: &'a [AtomicU64],
}

/// The list that takes a block back, if its guess was right: see [`Lane::guess`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guess<'a>(List<'a>);

impl Guess<'_> {
    /// What the record of a block for this list says.
    #[inline]
    pub(crate) fn tag(&self) -> Tag {
        self.0.tag()
    }
    /// What its record says while it is in the list.
    #[inline]
    pub(crate) fn trace(&self) -> Trace {
        Trace::of_bits((self.0.0[LABEL].get() >> 32) as u32)
    }
}

/// A linear congruential step (Knuth's MMIX) from a state keyed anew at every trip through the slow path; only the high bits
/// are used, and the multiply-high leaves a bias below 2^-53 for lists of at most 1,024.
#[inline]
const fn step(random: u64) -> u64 {
    random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f)
}

#[inline]
fn below(random: u64, bound: u64) -> u64 {
    ((u128::from(random) * u128::from(bound)) >> 64) as u64
}

/// A block that waits to go home, and its tag.
#[inline]
pub(crate) fn homeward(entry: &AtomicU64) -> (Pfn, Tag) {
    let entry = entry.get();
    (Pfn(entry & ((1 << TAG_SHIFT) - 1)), Tag::of_bits((entry >> TAG_SHIFT) as u32))
}

impl<'a> Lane<'a> {
    #[inline]
    pub(crate) fn new(head: &'a [AtomicU64; HEAD], stacks: &'a [AtomicU64]) -> Self {
        Self { head, stacks }
    }
    #[inline]
    fn line(&self, line: usize) -> List<'a> {
        List(&self.head.as_chunks().0[line % LINES])
    }
    #[inline]
    fn list(&self, list: usize) -> List<'a> {
        self.line(TABLE + list)
    }
    /// Whether blocks of the list are drawn at random.
    pub(crate) fn is_random(&self, list: usize) -> bool {
        self.list(list).0[SPREAD].get() != 0
    }
    #[inline]
    pub(crate) fn len(&self, list: usize) -> u64 {
        self.list(list).len()
    }
    /// The places that hold blocks.
    fn places(&self, list: usize) -> &'a [AtomicU64] {
        let List(words) = self.list(list);
        &self.stacks[words[FIRST].get() as usize..words[NEXT].get() as usize]
    }
    /// The node whose blocks the lists hold.
    #[inline]
    pub(crate) fn node(&self) -> NodeId {
        NodeId(self.head[NODE].get() as u8)
    }
    /// Take a block with this owner and order from the list that serves it.
    #[inline]
    pub(crate) fn pop_for(&self, owner: Owner, order: Order) -> Option<(Pfn, Tag)> {
        let list = self.line(line_serving(Tag::new(owner, order, NodeId(0))));
        Some((self.pop_from(list)?, list.tag()))
    }
    /// Take a block.
    pub(crate) fn pop(&self, list: usize) -> Option<Pfn> {
        self.pop_from(self.list(list))
    }
    #[inline]
    fn pop_from(&self, List(words): List<'a>) -> Option<Pfn> {
        let next = words[NEXT].get();
        let len = next - words[FIRST].get();
        if len == 0 {
            return None;
        }
        let random = step(self.head[RANDOM].get());
        self.head[RANDOM].set(random);
        let back = below(random & words[SPREAD].get(), len);
        let last = &self.stacks[next as usize - 1];
        let place = &self.stacks[next as usize - 1 - back as usize];
        let block = place.get();
        place.set(last.get());
        words[NEXT].set(next - 1);
        words[TAKEN].add(1);
        Some(Pfn(block))
    }
    /// The list that took the last block of this order: likely to be the one for the next. Its tag says for which blocks it is.
    #[inline]
    pub(crate) fn guess(&self, order: Order) -> Guess<'a> {
        let guess = self.head[GUESS + order.log2() as usize % GUESSES].get();
        Guess(self.line(guess as usize))
    }
    /// The next block of this order is likely to be for `list`.
    pub(crate) fn set_guess(&self, list: usize) {
        let (_, order) = owner_and_order(list);
        self.head[GUESS + order as usize % GUESSES].set((TABLE + list) as u64);
    }
    /// Put a block that was given back into the list that was rightly guessed, or, if its pageblock's `state` is sparse, among those that
    /// go home. `false` if there is no room.
    #[inline]
    #[must_use]
    pub(crate) fn push_guessed(&self, Guess(list): Guess<'a>, block: Pfn, state: BlockState) -> bool {
        let kept = if self.is_sparse(state) {
            self.push_to(self.list(HOME), block.0 | u64::from(list.tag().bits()) << TAG_SHIFT)
        } else {
            self.push_to(list, block.0)
        };
        if kept {
            list.0[GIVEN].add(1);
        }
        kept
    }
    #[inline]
    fn push_to(&self, List(words): List<'a>, entry: u64) -> bool {
        let next = words[NEXT].get();
        if next >= words[END].get() {
            return false;
        }
        self.stacks[next as usize].set(entry);
        words[NEXT].set(next + 1);
        true
    }
    /// Places for up to `most` blocks, above those that the list holds. [`Lane::fill`] says how many were used.
    pub(crate) fn room(&self, list: usize, most: u64) -> &'a [AtomicU64] {
        let List(words) = self.list(list);
        let (next, end) = (words[NEXT].get(), words[END].get());
        &self.stacks[next as usize..(next + most).min(end) as usize]
    }
    /// So many places of [`Lane::room`] now hold blocks.
    pub(crate) fn fill(&self, list: usize, count: u64) {
        self.list(list).0[NEXT].add(count);
    }
    /// Put a block in. `false` if there is no room.
    #[inline]
    #[must_use]
    pub(crate) fn push(&self, list: usize, block: Pfn) -> bool {
        self.push_to(self.list(list), block.0)
    }
    /// Whether a pageblock has more free frames than [`Lane::set_sparse`] said: what is given back of it goes home.
    #[inline]
    pub(crate) fn is_sparse(&self, state: BlockState) -> bool {
        state.0 > self.head[SPARSE].get()
    }
    pub(crate) fn set_sparse(&self, free: u64) {
        self.head[SPARSE].set(BlockState::most(free).0);
    }
    /// Up to `count` blocks that are to leave the list without being used: any with shuffle on, else those that have been in longest. They are
    /// still in it until [`Lane::forget`].
    pub(crate) fn leavers(&self, list: usize, count: u64) -> &'a [AtomicU64] {
        let places = self.places(list);
        let rest = places.len() - count.min(places.len() as u64) as usize;
        if !self.is_random(list) {
            return &places[..places.len() - rest];
        }
        // Fisher and Yates, from the top down to where those begin that stay.
        let mut random = self.head[RANDOM].get();
        for top in (rest..places.len()).rev() {
            random = step(random);
            let (top, other) = (&places[top], &places[below(random, top as u64 + 1) as usize]);
            let block = other.get();
            other.set(top.get());
            top.set(block);
        }
        self.head[RANDOM].set(random);
        &places[rest..]
    }
    /// The blocks that [`Lane::leavers`] named, so many of them, have left.
    pub(crate) fn forget(&self, list: usize, count: usize) {
        let places = self.places(list);
        if !self.is_random(list) {
            for (to, from) in places.iter().zip(&places[count..]) {
                to.set(from.get());
            }
        }
        self.list(list).0[NEXT].sub(count as u64);
    }
    /// A block was given back that belongs to this list, into it or past it.
    pub(crate) fn count_given(&self, list: usize) {
        self.list(list).0[GIVEN].add(1);
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
        self.list(list).0[TAKEN].add(1);
    }
    /// Blocks handed out on this CPU, ever, that a list serves.
    pub(crate) fn listed(&self) -> u64 {
        (0..LISTS).map(|list| self.list(list).0[TAKEN].get()).fold(0, u64::wrapping_add)
    }
    /// Frames of them.
    pub(crate) fn listed_frames(&self, shapes: &Shapes) -> u64 {
        (0..LISTS)
            .map(|list| self.list(list).0[TAKEN].get() << shapes.shape(list).order)
            .fold(0, u64::wrapping_add)
    }
    /// Blocks handed out and given back on this CPU, ever.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        let lists = |which: usize| {
            (0..LISTS).map(|list| self.list(list).0[which].get()).fold(0u64, u64::wrapping_add)
        };
        let taken = lists(TAKEN).wrapping_add(self.head[PASSED_OUT].get());
        (taken, lists(GIVEN).wrapping_add(self.head[PASSED_BACK].get()))
    }
    /// Frames of `owner` handed out on this CPU less those given back on it: means something only summed over all CPUs.
    pub(crate) fn frames_of(&self, owner: Owner, shapes: &Shapes) -> u64 {
        let lists = (0..LISTS).filter(|list| shapes.shape(*list).class == owner);
        let frames = lists.map(|list| {
            let List(words) = self.list(list);
            words[TAKEN].get().wrapping_sub(words[GIVEN].get()) << shapes.shape(list).order
        });
        frames.fold(self.head[PASSED_FRAMES + owner as usize].get(), u64::wrapping_add)
    }
    pub(crate) fn key(&self) -> u64 {
        self.head[RANDOM].get()
    }
    /// Key the draws anew.
    pub(crate) fn set_key(&self, key: u64) {
        self.head[RANDOM].set(key);
    }
    /// How many blocks to get now: doubles with each refill that no drain came before.
    pub(crate) fn grow(&self, list: usize, most: u64) -> u64 {
        self.head[REFILLS].add(1);
        let word = &self.list(list).0[BATCH];
        let now = word.get().clamp(most.min(8), most);
        word.set((now * 2).min(most));
        now
    }
    /// Ask for less next time.
    pub(crate) fn shrink(&self, list: usize) {
        let word = &self.list(list).0[BATCH];
        word.set(word.get() / 2);
    }
    /// Refills since the last call.
    pub(crate) fn refills(&self) -> u64 {
        let count = self.head[REFILLS].get();
        self.head[REFILLS].set(0);
        count
    }
    /// Put away a block that is to go home. `false` if there is no room.
    #[must_use]
    pub(crate) fn push_homeward(&self, block: Pfn, tag: Tag) -> bool {
        self.push_to(self.list(HOME), block.0 | u64::from(tag.bits()) << TAG_SHIFT)
    }
    /// Blocks that wait to go home: see [`homeward`].
    pub(crate) fn homeward(&self) -> &'a [AtomicU64] {
        self.places(HOME)
    }
    /// They all went home.
    pub(crate) fn clear_homeward(&self) {
        let List(words) = self.list(HOME);
        words[NEXT].set(words[FIRST].get());
    }
    /// The blocks of a list.
    pub(crate) fn iter(&self, list: usize) -> impl Iterator<Item = Pfn> + use<'a> {
        self.places(list).iter().map(|place| Pfn(place.get()))
    }
    /// Frames in this lane.
    pub(crate) fn frames(&self, shapes: &Shapes) -> u64 {
        let lists: u64 = (0..LISTS).map(|list| self.len(list) << shapes.shape(list).order).sum();
        lists + self.homeward().iter().map(|entry| homeward(entry).1.order().frames()).sum::<u64>()
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

const _: () = assert!(TABLE + NOWHERE < LINES && GUESSES > Order::MAX.log2() as usize);
