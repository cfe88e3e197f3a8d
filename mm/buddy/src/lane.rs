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
use freehold_machine::{CpuId, NodeId, Pfn};

use crate::block::BlockState;
use crate::rng::Rng;
use crate::shape::{Draws, LISTS, NOWHERE, SERVES, Shapes, owner_and_order};
use crate::word::{LINE, Plain};

/// The list of blocks that wait to go home; each with its tag.
pub(crate) const HOME: usize = LISTS;
/// Room for blocks that wait to go home.
pub(crate) const HOMEWARD: u64 = 256;
/// Where a block that waits to go home has its tag.
const TAG_SHIFT: u32 = 48;

/// Words in a lane's head: its scalars, then a line for each list.
pub(crate) const HEAD: usize = 32 * LINE;
const KEY: usize = 0;
const SPARSE: usize = 2;
const NODE: usize = 3;
/// Blocks that passed by the lists, and frames of them by owner: handed out less given back.
const PASSED_OUT: usize = 4;
const PASSED_BACK: usize = 5;
const REFILLS: usize = 6;
const PASSED_FRAMES: usize = LINE;
/// For each order that a caller may name, the list that took the last block of it.
const GUESS: usize = PASSED_FRAMES + Owner::COUNT;
const GUESSES: usize = 32;
/// How much a refill gets: 16 bits for each list. In the words of orders that there are not.
const BATCHES: usize = GUESS + Order::MAX.log2() as usize + 1;
/// The one word that other CPUs write has two lines of its own.
const DRAIN: usize = GUESS + GUESSES;
/// The line of the first list.
const TABLE: usize = DRAIN + 2 * LINE;

/// A list's words: where its next block goes, its first place, one past its last; the tag of its blocks, and above it what the record of a block in it
/// says.
const NEXT: usize = 0;
const FIRST: usize = 1;
const END: usize = 2;
const LABEL: usize = 3;
/// A linear congruential generator: its state, and what it adds. Both are 0 where the block that was put in last comes first.
const RANDOM: usize = 4;
const INCREMENT: usize = 5;
/// Blocks that came out of it on the way to an owner, ever; and what makes those that owners gave back of that: see [`List::given`].
const TAKEN: usize = 6;
const PASSED: usize = 7;

/// The head of a CPU that has no lists: always empty and always full.
pub(crate) static NO_LISTS: [AtomicU64; HEAD] = [const { AtomicU64::new(0) }; HEAD];

/// A list of a lane: its line in the head.
#[derive(Clone, Copy, Debug)]
struct List<'a> {
    head: &'a [AtomicU64; HEAD],
    stacks: &'a [AtomicU64],
    at: usize,
}

impl<'a> List<'a> {
    /// A word of its line. The mask says that the line is inside the head.
    #[inline(always)]
    fn word(self, which: usize) -> &'a AtomicU64 {
        &self.head[(self.at & (HEAD - LINE)) + which % LINE]
    }
    #[inline(always)]
    fn get(self, which: usize) -> u64 {
        self.word(which).get()
    }
    #[inline]
    fn len(self) -> u64 {
        self.get(NEXT) - self.get(FIRST)
    }
    #[inline(always)]
    fn pop(self) -> Option<Pfn> {
        let next = self.get(NEXT);
        let len = next - self.get(FIRST);
        if len == 0 {
            return None;
        }
        let random = step(self.get(RANDOM), self.get(INCREMENT));
        self.word(RANDOM).set(random);
        let top = next - 1;
        let last = &self.stacks[top as usize];
        let place = &self.stacks[(top - below(random, len)) as usize];
        let block = place.get();
        place.set(last.get());
        self.word(NEXT).set(top);
        self.word(TAKEN).add(1);
        Some(Pfn(block))
    }
    /// Put an entry in. `false` if there is no room.
    #[inline(always)]
    fn push(self, entry: u64) -> bool {
        let next = self.get(NEXT);
        if next < self.get(END)
            && let Some(place) = self.stacks.get(next as usize)
        {
            place.set(entry);
            self.word(NEXT).set(next + 1);
            return true;
        }
        false
    }
    /// The places that hold blocks.
    fn places(self) -> &'a [AtomicU64] {
        &self.stacks[self.get(FIRST) as usize..self.get(NEXT) as usize]
    }
    /// Blocks for this list that owners gave back on this CPU, ever. Those that went into the list are not counted one by one: they are in it, or came
    /// out of it as [`TAKEN`] says or past owners.
    fn given(self) -> u64 {
        self.len().wrapping_add(self.get(TAKEN)).wrapping_add(self.get(PASSED))
    }
}

/// One CPU's lists. See the module's head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lane<'a> {
    head: &'a [AtomicU64; HEAD],
    /// The stacks of all lanes.
    stacks: &'a [AtomicU64],
}

/// The list that hands a block out, or takes one back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hit<'a> {
    list: List<'a>,
    /// What the record of a block of this list says while somebody has it.
    pub(crate) tag: Tag,
    /// What its record says while it is in the list.
    pub(crate) trace: Trace,
}

impl<'a> Hit<'a> {
    #[inline(always)]
    fn new(list: List<'a>) -> Self {
        let label = list.get(LABEL);
        Self { list, tag: Tag::of_bits(label as u32), trace: Trace::of_bits((label >> 32) as u32) }
    }
    /// Take a block.
    #[inline(always)]
    pub(crate) fn pop(self) -> Option<Pfn> {
        self.list.pop()
    }
}

/// Blocks that are about to leave a list: a window of its places.
#[derive(Debug)]
pub(crate) struct Leavers<'a> {
    pub(crate) places: &'a [AtomicU64],
    first: usize,
}

/// A linear congruential step with the multiplier of Knuth's MMIX, from a state keyed anew at every trip through the slow path; only the high bits
/// are used, and the multiply-high leaves a bias below 2^-53 for lists of at most 1,024.
#[inline(always)]
const fn step(random: u64, increment: u64) -> u64 {
    random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(increment)
}

#[inline(always)]
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
    #[inline(always)]
    pub(crate) fn new(head: &'a [AtomicU64; HEAD], stacks: &'a [AtomicU64]) -> Self {
        Self { head, stacks }
    }
    /// Write into the head, which is CPU number `cpu`'s, where its stacks are, the node whose blocks they hold, and how blocks are drawn.
    pub(crate) fn lay_out(&self, shapes: &Shapes, cpu: CpuId, node: NodeId, draws: Draws, seed: u64) {
        let mut rng = Rng::new(seed);
        let mut at = u64::from(cpu.0) * shapes.words as u64;
        self.head[KEY].set(rng.next());
        self.head[NODE].set(u64::from(node.0));
        for number in 0..=NOWHERE {
            let list = self.list(number);
            let (owner, log2) = if number < LISTS { owner_and_order(number) } else { (Owner::Free, 0) };
            let room = match number {
                HOME => HOMEWARD,
                NOWHERE => 0,
                _ => shapes.shape(number).room,
            };
            list.word(NEXT).set(at);
            list.word(FIRST).set(at);
            at += room;
            list.word(END).set(at);
            let tag = Tag::new(owner, Order::new(log2).unwrap_or(Order::FRAME), node);
            // No record says what the label of the last two does.
            let label = if number < LISTS { tag.bits() } else { u32::MAX };
            list.word(LABEL).set(u64::from(label) | u64::from(tag.trace(cpu).bits()) << 32);
            if draws.any(log2) {
                list.word(INCREMENT).set(1);
                self.key_list(number, &mut rng);
            }
        }
        self.head[GUESS..BATCHES].iter().for_each(|guess| guess.set(Self::line(NOWHERE) as u64));
    }
    /// Where the line of a list begins.
    const fn line(list: usize) -> usize {
        TABLE + list * LINE
    }
    #[inline(always)]
    fn list(&self, list: usize) -> List<'a> {
        List { head: self.head, stacks: self.stacks, at: Self::line(list) }
    }
    /// Whether blocks of the list are drawn at random.
    pub(crate) fn is_random(&self, list: usize) -> bool {
        self.list(list).get(INCREMENT) != 0
    }
    #[inline]
    pub(crate) fn len(&self, list: usize) -> u64 {
        self.list(list).len()
    }
    /// The node whose blocks the lists hold.
    #[inline]
    pub(crate) fn node(&self) -> NodeId {
        NodeId(self.head[NODE].get() as u8)
    }
    /// The list that serves this owner and order; one that is always empty, where none does.
    #[inline(always)]
    pub(crate) fn serving(&self, owner: Owner, order: Order) -> Hit<'a> {
        let list = SERVES[Tag::new(owner, order, NodeId(0)).key()];
        Hit::new(self.list(usize::from(list)))
    }
    /// The list that took the last block of this order: likely to be the one for the next. Its tag says for which blocks it is.
    #[inline(always)]
    pub(crate) fn guess(&self, order: Order) -> Hit<'a> {
        let guess = self.head[GUESS + order.log2() as usize % GUESSES].get();
        Hit::new(List { head: self.head, stacks: self.stacks, at: guess as usize })
    }
    /// The next block of this order is likely to be for `list`.
    pub(crate) fn set_guess(&self, list: usize) {
        let (_, order) = owner_and_order(list);
        self.head[GUESS + order as usize % GUESSES].set(Self::line(list) as u64);
    }
    /// Put a block that was given back into the list that was rightly guessed, or, if its pageblock's `state` is sparse, among those that
    /// go home. `false` if there is no room.
    #[inline(always)]
    #[must_use]
    pub(crate) fn push_guessed(&self, hit: Hit<'a>, block: Pfn, state: BlockState) -> bool {
        if self.is_sparse(state) {
            let kept = self.push_homeward(block, hit.tag);
            if kept {
                hit.list.word(PASSED).add(1);
            }
            return kept;
        }
        hit.list.push(block.0)
    }
    /// Take a block.
    pub(crate) fn pop(&self, list: usize) -> Option<Pfn> {
        self.list(list).pop()
    }
    /// Places for up to `most` blocks, above those that the list holds. [`Lane::fill`] says how many were used.
    pub(crate) fn room(&self, list: usize, most: u64) -> &'a [AtomicU64] {
        let list = self.list(list);
        let (next, end) = (list.get(NEXT), list.get(END));
        &self.stacks[next as usize..(next + most).min(end) as usize]
    }
    /// So many places of [`Lane::room`] now hold blocks.
    pub(crate) fn fill(&self, list: usize, count: u64) {
        self.list(list).word(NEXT).add(count);
        self.list(list).word(PASSED).sub(count);
    }
    /// Put a block in that was given back. `false` if there is no room.
    #[must_use]
    pub(crate) fn push(&self, list: usize, block: Pfn) -> bool {
        self.list(list).push(block.0)
    }
    /// Whether a pageblock has more free frames than [`Lane::set_sparse`] said: what is given back of it goes home.
    #[inline(always)]
    pub(crate) fn is_sparse(&self, state: BlockState) -> bool {
        state.0 > self.head[SPARSE].get()
    }
    pub(crate) fn set_sparse(&self, free: u64) {
        self.head[SPARSE].set(BlockState::most(free).0);
    }
    /// Up to `count` blocks that are to leave the list without being used: with shuffle on, those from a random place of the list on, else those that have
    /// been in longest. They are still in it until [`Lane::forget`].
    pub(crate) fn leavers(&self, list: usize, count: u64) -> Leavers<'a> {
        let list = self.list(list);
        let places = list.places();
        let count = count.min(places.len() as u64) as usize;
        let random = step(list.get(RANDOM), list.get(INCREMENT));
        list.word(RANDOM).set(random);
        let first = below(random, (places.len() - count) as u64 + 1) as usize;
        Leavers { places: &places[first..first + count], first }
    }
    /// They have left.
    pub(crate) fn forget(&self, list: usize, leavers: &Leavers<'_>) {
        let places = self.list(list).places();
        let (first, count) = (leavers.first, leavers.places.len());
        let end = first + count;
        // Where the order says nothing, the last ones fill the gap; else all above move down.
        let from = if self.is_random(list) { end.max(places.len() - count) } else { end };
        for (to, from) in places[first..].iter().zip(&places[from..]) {
            to.set(from.get());
        }
        self.list(list).word(NEXT).sub(count as u64);
        self.list(list).word(PASSED).add(count as u64);
    }
    /// A block was given back that belongs to this list, and goes past it.
    pub(crate) fn count_given(&self, list: usize) {
        self.list(list).word(PASSED).add(1);
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
        self.list(list).word(TAKEN).add(1);
        self.list(list).word(PASSED).sub(1);
    }
    fn lists(&self) -> impl Iterator<Item = List<'a>> {
        let lane = *self;
        (0..LISTS).map(move |list| lane.list(list))
    }
    /// Blocks handed out on this CPU, ever, that a list serves.
    pub(crate) fn listed(&self) -> u64 {
        self.lists().map(|list| list.get(TAKEN)).fold(0, u64::wrapping_add)
    }
    /// Frames of them.
    pub(crate) fn listed_frames(&self, shapes: &Shapes) -> u64 {
        let frames = (0..LISTS).map(|list| self.list(list).get(TAKEN) << shapes.shape(list).order);
        frames.fold(0, u64::wrapping_add)
    }
    /// Blocks handed out and given back on this CPU, ever.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        let given = self.lists().map(List::given).fold(0, u64::wrapping_add);
        let (out, back) = (self.head[PASSED_OUT].get(), self.head[PASSED_BACK].get());
        (self.listed().wrapping_add(out), given.wrapping_add(back))
    }
    /// Frames of `owner` handed out on this CPU less those given back on it: means something only summed over all CPUs.
    pub(crate) fn frames_of(&self, owner: Owner, shapes: &Shapes) -> u64 {
        let lists = (0..LISTS).filter(|list| shapes.shape(*list).class == owner);
        let frames = lists.map(|number| {
            let list = self.list(number);
            list.get(TAKEN).wrapping_sub(list.given()) << shapes.shape(number).order
        });
        frames.fold(self.head[PASSED_FRAMES + owner as usize].get(), u64::wrapping_add)
    }
    /// What the last refill left for the draw of a single block.
    pub(crate) fn key(&self) -> u64 {
        self.head[KEY].get()
    }
    pub(crate) fn set_key(&self, key: u64) {
        self.head[KEY].set(key);
    }
    /// Key the draws of a list anew.
    pub(crate) fn key_list(&self, list: usize, rng: &mut Rng) {
        if self.is_random(list) {
            self.list(list).word(RANDOM).set(rng.next());
            self.list(list).word(INCREMENT).set(rng.next() | 1);
        }
    }
    fn batch(&self, list: usize) -> u64 {
        self.head[BATCHES + list / 4].get() >> (16 * (list % 4)) & 0xffff
    }
    fn set_batch(&self, list: usize, batch: u64) {
        let (word, shift) = (&self.head[BATCHES + list / 4], 16 * (list % 4));
        word.set(word.get() & !(0xffff << shift) | batch << shift);
    }
    /// How many blocks to get now: doubles with each refill that no drain came before.
    pub(crate) fn grow(&self, list: usize, most: u64) -> u64 {
        self.head[REFILLS].add(1);
        let now = self.batch(list).clamp(most.min(8), most);
        self.set_batch(list, (now * 2).min(most));
        now
    }
    /// Ask for less next time.
    pub(crate) fn shrink(&self, list: usize) {
        self.set_batch(list, self.batch(list) / 2);
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
    pub(crate) fn push_homeward(&self, block: Pfn, tag: Tag) -> bool {
        self.list(HOME).push(block.0 | u64::from(tag.bits()) << TAG_SHIFT)
    }
    /// Blocks that wait to go home: see [`homeward`].
    pub(crate) fn homeward(&self) -> &'a [AtomicU64] {
        self.list(HOME).places()
    }
    /// They all went home.
    pub(crate) fn clear_homeward(&self) {
        let home = self.list(HOME);
        home.word(NEXT).set(home.get(FIRST));
    }
    /// The blocks of a list.
    pub(crate) fn iter(&self, list: usize) -> impl Iterator<Item = Pfn> + use<'a> {
        self.list(list).places().iter().map(|place| Pfn(place.get()))
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

const _: () = assert!(TABLE + (NOWHERE + 1) * LINE <= HEAD && BATCHES + LISTS.div_ceil(4) <= GUESS + GUESSES);
