//! A CPU's own lists of free blocks (pcp, as Linux calls its per-CPU page lists): array stacks that only that CPU touches.
//!
//! A hit costs no lock, no atomic read-modify-write, and only this CPU's cache lines (and the block's record). With shuffle on, a hit
//! takes the block at a random place of the list instead of the top, so that neither the order in which blocks were put in nor the last
//! free says what comes out; without, the same code runs with a range of one.
//!
//! A list is one cache line: everything that a hit reads or writes but the block itself. Which list takes a block back is *guessed* from
//! its order (the list that took the last one) and then confirmed by the block's record, so that a free need not wait for the record before it
//! knows where to put the block. Head and stacks are one array of a size that the compiler knows, so that a masked index is inside it without a look.
//!
//! A hit finds its list's line by a reference ([`ListLines`]) and not by its place in the head: processors pass a word from a store to the next load of it without
//! delay where both name it by one register and a constant, and not where an index is added (Golden Cove: 2 cycles, not 7). A hit and the free after it
//! change the same words.
//!
//! A block goes back into the list it came from only if its pageblock is well used. One of a sparse pageblock, and one of another
//! node, waits in the list [`HOME`] instead until many go home at once: so memory does not stay in pieces because its pieces are at hand.
//!
//! **Who may call.** The CPU itself, pinned; interrupt handlers never do. Other CPUs may read the lengths, as hints, and raise
//! the drain flag, which the owner serves when it next passes [`Buddy::poll`](crate::Buddy::poll) or runs out.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_frame::{Order, Owner, Tag, Trace};
use freehold_machine::{CpuId, MAX_CPUS, NodeId, Pfn};

use crate::block::{BlockState, Blocks};
use crate::rng::Rng;
use crate::shape::{Draws, LISTS, NOWHERE, SERVES, Shapes, owner_and_order};
use crate::word::{LINE, Plain};

/// The list of blocks that wait to go home; each with its tag.
pub(crate) const HOME: usize = LISTS;
/// Room for blocks that wait to go home.
pub(crate) const HOMEWARD: u64 = 256;
/// Where a block that waits to go home has its tag.
const TAG_SHIFT: u32 = 48;

/// Words of a pcp: its head, then the places of its lists. A power of two, for the mask.
pub(crate) const PCP_WORDS: usize = 4096;
/// Words in a pcp's head: its scalars, then a line for each list.
pub(crate) const HEAD: usize = 33 * LINE;
const KEY: usize = 0;
/// The number of this CPU's first list line.
const FIRST_LINE: usize = 1;
const SPARSE: usize = 2;
const NONE_SPARSE: u64 = u64::MAX;
const NODE: usize = 3;
/// Blocks that passed by the lists, and frames of them by owner: handed out less given back.
const PASSED_OUT: usize = 4;
const PASSED_BACK: usize = 5;
const REFILLS: usize = 6;
const PASSED_FRAMES: usize = LINE;
/// For each order that a caller may name, the number of the line of the list that took the last block of it.
const GUESS: usize = (PASSED_FRAMES + Owner::COUNT).next_multiple_of(LINE);
const GUESSES: usize = 32;
/// How much a refill gets: 16 bits for each list. In the words of orders that there are not.
const BATCHES: usize = GUESS + Order::MAX.log2() as usize + 1;
/// The one word that other CPUs write has two lines of its own.
const DRAIN: usize = GUESS + GUESSES;
/// The line of the first list.
const TABLE: usize = DRAIN + 2 * LINE;

/// A list's words: where its next block goes, and above that how many came out of it on the way to an owner (one step changes both), see [`TAKEN`]; its first
/// place, one past the last that it may use; the tag of its blocks, and what the record of a block in it says.
const NEXT: usize = 0;
const COUNT: u32 = 16;
const FIRST: usize = 1;
const END: usize = 2;
const LABEL: usize = 3;
/// No record says so.
const NO_LABEL: u64 = u64::MAX;
/// A multiplicative congruential generator: its state, which is odd; 0, and so for ever, where the block that was put in last comes first.
const RANDOM: usize = 4;
/// Blocks that came out of it on the way to an owner and are not counted above [`NEXT`]; and what makes those that owners gave back: see [`List::given`].
const TAKEN: usize = 5;
const PASSED: usize = 6;
const TRACE: usize = 7;

/// The words of a pcp, and those of a list's line.
pub(crate) type Words = [AtomicU64; PCP_WORDS];
type Line = [AtomicU64; LINE];

/// A list that is always empty and always full, and no record says what its label does.
static NO_LIST: Line = {
    let mut line = [const { AtomicU64::new(0) }; LINE];
    line[LABEL] = AtomicU64::new(NO_LABEL);
    line
};

/// Where each CPU finds its lists for a hit. Powers of two, so that a masked number is inside.
#[derive(Debug)]
pub(crate) struct ListLines {
    pcps: [&'static Words; MAX_CPUS],
    lines: [&'static Line; MAX_CPUS * LINES_PER_CPU],
}

/// Lists and more: of each CPU so many lines.
const LINES_PER_CPU: usize = 32;

impl ListLines {
    /// Nothing hits; `any` is never written to.
    pub(crate) const fn shut(any: &'static Words) -> Self {
        Self { pcps: [any; MAX_CPUS], lines: [&NO_LIST; MAX_CPUS * LINES_PER_CPU] }
    }
    /// From now on CPU number `cpu` finds its lists.
    pub(crate) fn open(&mut self, cpu: usize, words: &'static Words) {
        self.pcps[cpu] = words;
        for (number, line) in self.lines[cpu * LINES_PER_CPU..].iter_mut().enumerate().take(NOWHERE) {
            *line = Pcp::new(words).list(number).line;
        }
    }
    #[inline(always)]
    fn hit(&self, cpu: usize, number: usize) -> Hit<'_> {
        let line = self.lines[number % (MAX_CPUS * LINES_PER_CPU)];
        let (tag, trace) = (Tag::of_bits(line[LABEL].get()), Trace::of_bits(line[TRACE].get()));
        Hit { list: List { words: self.pcps[cpu], line }, tag, trace }
    }
    /// The list that serves this owner and order; one that is always empty, where none does.
    #[inline(always)]
    pub(crate) fn serving(&self, cpu: CpuId, owner: Owner, order: Order) -> Hit<'_> {
        let cpu = usize::from(cpu.0) % MAX_CPUS;
        let list = SERVES[Tag::new(owner, order, NodeId(0)).key()];
        self.hit(cpu, cpu * LINES_PER_CPU + usize::from(list) % LINES_PER_CPU)
    }
    /// The list that took the last block of this order: likely to be the one for the next. Its tag says for which blocks it is.
    #[inline(always)]
    pub(crate) fn guess(&self, cpu: CpuId, order: Order) -> Hit<'_> {
        let cpu = usize::from(cpu.0) % MAX_CPUS;
        let number = self.pcps[cpu][GUESS + order.log2() as usize % GUESSES].get();
        self.hit(cpu, number as usize)
    }
}

/// A list of a pcp: its line in the head.
#[derive(Clone, Copy, Debug)]
struct List<'a> {
    words: &'a Words,
    line: &'a Line,
}

impl<'a> List<'a> {
    #[inline(always)]
    fn word(self, which: usize) -> &'a AtomicU64 {
        &self.line[which % LINE]
    }
    /// One of its places. The mask says that the place is inside the pcp.
    #[inline(always)]
    fn place(self, at: u64) -> &'a AtomicU64 {
        &self.words[at as usize % PCP_WORDS]
    }
    #[inline(always)]
    fn get(self, which: usize) -> u64 {
        self.word(which).get()
    }
    #[inline]
    fn len(self) -> u64 {
        self.next() - self.get(FIRST)
    }
    /// Where its next block goes.
    #[inline(always)]
    fn next(self) -> u64 {
        self.get(NEXT) % PCP_WORDS as u64
    }
    /// Blocks that came out of it on the way to an owner, ever.
    fn taken(self) -> u64 {
        self.get(TAKEN).wrapping_add(self.get(NEXT) >> COUNT)
    }
    #[inline(always)]
    fn pop(self) -> Option<Pfn> {
        let next = self.get(NEXT);
        let len = next % PCP_WORDS as u64 - self.get(FIRST);
        if len == 0 {
            return None;
        }
        let random = step(self.get(RANDOM));
        self.word(RANDOM).set(random);
        // One place less, and one more taken.
        let top = next.wrapping_add((1 << COUNT) - 1);
        let place = self.place(top.wrapping_sub(below(random, len)));
        let block = place.get();
        place.set(self.place(top).get());
        self.word(NEXT).set(top);
        Some(Pfn(block))
    }
    /// Put an entry in. `false` if there is no room.
    #[inline(always)]
    fn push(self, entry: u64) -> bool {
        let next = self.get(NEXT);
        let room = next % (PCP_WORDS as u64) < self.get(END);
        if room {
            self.place(next).set(entry);
            self.word(NEXT).set(next + 1);
        }
        room
    }
    /// The places that hold blocks.
    fn places(self) -> &'a [AtomicU64] {
        &self.words[self.get(FIRST) as usize..self.next() as usize]
    }
    /// Blocks for this list that owners gave back on this CPU, ever. Those that went into the list are not counted one by one: they are in it, or came
    /// out of it as [`TAKEN`] says or past owners.
    fn given(self) -> u64 {
        self.taken().wrapping_sub(self.away())
    }
    /// Blocks that owners got from this list and have not given back to it: means something only summed over all CPUs.
    fn away(self) -> u64 {
        self.len().wrapping_add(self.get(PASSED)).wrapping_neg()
    }
}

/// One CPU's lists. See the module's head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pcp<'a> {
    words: &'a Words,
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

impl Hit<'_> {
    /// Take a block.
    #[inline(always)]
    pub(crate) fn pop(self) -> Option<Pfn> {
        self.list.pop()
    }
    /// Put a block in that was given back, or, if its pageblock is sparse, among those that go home. `false` if there is no room.
    #[inline(always)]
    #[must_use]
    pub(crate) fn push(self, block: Pfn, blocks: Blocks) -> bool {
        let pcp = Pcp::new(self.list.words);
        if pcp.is_sparse(block, blocks) {
            let kept = pcp.push_homeward(block, self.tag);
            if kept {
                self.list.word(PASSED).add(1);
            }
            return kept;
        }
        self.list.push(block.0)
    }
}

/// Blocks that are about to leave a list: a window of its places.
#[derive(Debug)]
pub(crate) struct Leavers<'a> {
    pub(crate) places: &'a [AtomicU64],
    first: usize,
}

/// A multiplicative congruential step with a multiplier of Steele and Vigna (2021), from a state keyed anew at every trip through the slow path; only the
/// high bits are used, and the multiply-high leaves a bias below 2^-53 for lists of at most 1,024.
#[inline(always)]
const fn step(random: u64) -> u64 {
    random.wrapping_mul(0xf135_7aea_2e62_a9c5)
}

#[inline(always)]
fn below(random: u64, bound: u64) -> u64 {
    ((u128::from(random) * u128::from(bound)) >> 64) as u64
}

/// A block that waits to go home, and its tag.
#[inline]
pub(crate) fn homeward(entry: &AtomicU64) -> (Pfn, Tag) {
    let entry = entry.get();
    (Pfn(entry & ((1 << TAG_SHIFT) - 1)), Tag::of_bits(entry >> TAG_SHIFT))
}

/// Whose lists they are.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    /// The CPU that takes from them.
    pub(crate) cpu: CpuId,
    /// The node whose blocks they hold.
    pub(crate) node: NodeId,
    /// Which of them draw at random.
    pub(crate) draws: Draws,
}

impl<'a> Pcp<'a> {
    #[inline(always)]
    pub(crate) fn new(words: &'a Words) -> Self {
        Self { words }
    }
    /// Writes into the head where its stacks are, and whose they are.
    pub(crate) fn lay_out(&self, shapes: &Shapes, plan: Plan, seed: u64) {
        let Plan { cpu, node, draws } = plan;
        let mut rng = Rng::new(seed);
        let mut at = HEAD as u64;
        self.words[KEY].set(rng.next());
        self.words[NODE].set(u64::from(node.0));
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
            list.word(LABEL).set(if number < LISTS { tag.bits() } else { NO_LABEL });
            list.word(TRACE).set(tag.trace(cpu).bits());
            if draws.any(log2) {
                list.word(RANDOM).set(rng.next() | 1);
            }
        }
        let number = usize::from(cpu.0) % MAX_CPUS * LINES_PER_CPU;
        self.words[FIRST_LINE].set(number as u64);
        self.words[GUESS..BATCHES].iter().for_each(|guess| guess.set((number + NOWHERE) as u64));
    }
    #[inline(always)]
    fn list(&self, list: usize) -> List<'a> {
        let line = self.words[TABLE + list * LINE..].first_chunk();
        List { words: self.words, line: line.expect("a list's line is inside the head") }
    }
    /// Whether blocks of the list are drawn at random.
    pub(crate) fn is_random(&self, list: usize) -> bool {
        self.list(list).get(RANDOM) != 0
    }
    #[inline]
    pub(crate) fn len(&self, list: usize) -> u64 {
        self.list(list).len()
    }
    /// The node whose blocks the lists hold.
    #[inline]
    pub(crate) fn node(&self) -> NodeId {
        NodeId(self.words[NODE].get() as u8)
    }
    /// The next block of this order is likely to be for `list`.
    pub(crate) fn set_guess(&self, list: usize) {
        let (_, order) = owner_and_order(list);
        let number = self.words[FIRST_LINE].get() + list as u64;
        self.words[GUESS + order as usize % GUESSES].set(number);
    }
    /// Take a block.
    pub(crate) fn pop(&self, list: usize) -> Option<Pfn> {
        self.list(list).pop()
    }
    /// Places for up to `most` blocks, above those that the list holds. [`Pcp::fill`] says how many were used.
    pub(crate) fn room(&self, list: usize, most: u64) -> &'a [AtomicU64] {
        let list = self.list(list);
        let (next, end) = (list.next(), list.get(END));
        &self.words[next as usize..(next + most).min(end) as usize]
    }
    /// From now on the list takes blocks back until it has so many: no more than its shape says.
    pub(crate) fn set_room(&self, list: usize, room: u64) {
        let list = self.list(list);
        list.word(END).set(list.get(FIRST) + room);
    }
    /// So many places of [`Pcp::room`] now hold blocks.
    pub(crate) fn fill(&self, list: usize, count: u64) {
        let list = self.list(list);
        list.word(NEXT).add(count);
        list.word(PASSED).sub(count);
        // Before the count above the place is full: who reads both words meanwhile reads too little.
        let next = list.get(NEXT);
        if next.leading_zeros() == 0 {
            list.word(NEXT).set(list.next());
            list.word(TAKEN).add(next >> COUNT);
        }
    }
    /// Put a block in that was given back. `false` if there is no room.
    #[must_use]
    pub(crate) fn push(&self, list: usize, block: Pfn) -> bool {
        self.list(list).push(block.0)
    }
    /// Whether a block's pageblock has more free frames than [`Pcp::set_sparse`] said: what is given back of it goes home. Where none is sparse, the
    /// pageblock's state is not looked at.
    #[inline(always)]
    pub(crate) fn is_sparse(&self, block: Pfn, blocks: Blocks) -> bool {
        let most = self.words[SPARSE].get();
        most != NONE_SPARSE && blocks.state_hint(block).0 > most
    }
    /// A pageblock with more free frames is sparse; `None`: no pageblock is.
    pub(crate) fn set_sparse(&self, free: Option<u64>) {
        self.words[SPARSE].set(free.map_or(NONE_SPARSE, |free| BlockState::most(free).0));
    }
    /// Up to `count` blocks that are to leave the list without being used: with shuffle on, those from a random place of the list on, else those that have
    /// been in longest. They are still in it until [`Pcp::forget`].
    pub(crate) fn leavers(&self, list: usize, count: u64) -> Leavers<'a> {
        let list = self.list(list);
        let places = list.places();
        let count = count.min(places.len() as u64) as usize;
        let random = step(list.get(RANDOM));
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
        self.words[PASSED_OUT].add(1);
        self.words[PASSED_FRAMES + owner as usize].add(frames);
    }
    /// A block that no list serves was given back.
    pub(crate) fn count_passed_back(&self, owner: Owner, frames: u64) {
        self.words[PASSED_BACK].add(1);
        self.words[PASSED_FRAMES + owner as usize].sub(frames);
    }
    /// A block that a list serves was handed out past it.
    pub(crate) fn count_taken(&self, list: usize) {
        self.list(list).word(TAKEN).add(1);
        self.list(list).word(PASSED).sub(1);
    }
    fn lists(&self) -> impl Iterator<Item = List<'a>> {
        let pcp = *self;
        (0..LISTS).map(move |list| pcp.list(list))
    }
    /// Blocks handed out on this CPU, ever, that a list serves.
    pub(crate) fn listed(&self) -> u64 {
        self.lists().map(|list| list.taken()).fold(0, u64::wrapping_add)
    }
    /// Frames of them.
    pub(crate) fn listed_frames(&self, shapes: &Shapes) -> u64 {
        let frames = (0..LISTS).map(|list| self.list(list).taken() << shapes.shape(list).order);
        frames.fold(0, u64::wrapping_add)
    }
    /// Blocks handed out and given back on this CPU, ever.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        let given = self.lists().map(List::given).fold(0, u64::wrapping_add);
        let (out, back) = (self.words[PASSED_OUT].get(), self.words[PASSED_BACK].get());
        (self.listed().wrapping_add(out), given.wrapping_add(back))
    }
    /// Frames of `owner` handed out on this CPU less those given back on it: means something only summed over all CPUs.
    pub(crate) fn frames_of(&self, owner: Owner, shapes: &Shapes) -> u64 {
        let lists = (0..LISTS).filter(|list| shapes.shape(*list).owner == owner);
        let frames = lists.map(|number| self.list(number).away().wrapping_shl(shapes.shape(number).order));
        frames.fold(self.words[PASSED_FRAMES + owner as usize].get(), u64::wrapping_add)
    }
    /// What the last refill left for the draw of a single block.
    pub(crate) fn key(&self) -> u64 {
        self.words[KEY].get()
    }
    pub(crate) fn set_key(&self, key: u64) {
        self.words[KEY].set(key);
    }
    /// Key the draws of a list anew.
    pub(crate) fn key_list(&self, list: usize, rng: &mut Rng) {
        if self.is_random(list) {
            self.list(list).word(RANDOM).set(rng.next() | 1);
        }
    }
    fn batch(&self, list: usize) -> u64 {
        self.words[BATCHES + list / 4].get() >> (16 * (list % 4)) & 0xffff
    }
    fn set_batch(&self, list: usize, batch: u64) {
        let (word, shift) = (&self.words[BATCHES + list / 4], 16 * (list % 4));
        word.set(word.get() & !(0xffff << shift) | batch << shift);
    }
    /// How many blocks to get now: doubles with each refill that no drain came before.
    pub(crate) fn grow(&self, list: usize, most: u64) -> u64 {
        self.words[REFILLS].add(1);
        let now = self.batch(list).clamp(most.min(8), most);
        self.set_batch(list, (now * 2).min(most));
        now
    }
    /// Ask for half next time, from each list.
    pub(crate) fn shrink_all(&self) {
        for four in &self.words[BATCHES..BATCHES + LISTS.div_ceil(4)] {
            let batches = four.get();
            if batches != 0 {
                four.set(batches >> 1 & 0x7fff_7fff_7fff_7fff);
            }
        }
    }
    /// Refills since the last call.
    pub(crate) fn refills(&self) -> u64 {
        let count = self.words[REFILLS].get();
        self.words[REFILLS].set(0);
        count
    }
    /// Put away a block that is to go home. `false` if there is no room.
    #[inline]
    #[must_use]
    pub(crate) fn push_homeward(&self, block: Pfn, tag: Tag) -> bool {
        self.list(HOME).push(block.0 | tag.bits() << TAG_SHIFT)
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
    /// Frames in this pcp.
    pub(crate) fn frames(&self, shapes: &Shapes) -> u64 {
        let lists: u64 = (0..LISTS).map(|list| self.len(list) << shapes.shape(list).order).sum();
        lists + self.homeward().iter().map(|entry| homeward(entry).1.order().frames()).sum::<u64>()
    }
    /// Ask the CPU to give its blocks back. Any CPU calls this.
    pub(crate) fn request_drain(&self) {
        self.words[DRAIN].store(1, Ordering::Relaxed);
    }
    /// Whether it was asked, since the last call.
    pub(crate) fn drain_requested(&self) -> bool {
        self.words[DRAIN].get() != 0 && self.words[DRAIN].swap(0, Ordering::Relaxed) != 0
    }
}

const _: () = assert!(TABLE + (NOWHERE + 1) * LINE <= HEAD && BATCHES + LISTS.div_ceil(4) <= GUESS + GUESSES);
