//! A CPU's own lists of free blocks (pcp, as Linux calls its per-CPU page lists): array stacks that
//! only that CPU accesses.
//!
//! A hit costs no lock, no atomic read-modify-write, and only this CPU's cache lines (and the
//! block's record). With shuffle on, a hit takes the block at a random place of the list instead of
//! the top. So neither the order of frees nor the last freed block determines the next block.
//! Without shuffle the same code runs with a range of one.
//!
//! The state of a list is one cache line ([`ListLine`]): everything that a hit reads or writes
//! except the block itself. A free *guesses* the list from the order (the list that got the last
//! block of that order), and the block's record confirms the guess. So a free knows the list before
//! it has read the record. All lists have their entries in one array of [`PLACES`]: a masked index
//! is inside it, so no bounds check is compiled in.
//!
//! A hit finds its list's line by a reference ([`ListLines`]) and not by its index in the [`Pcp`].
//! Processors forward a stored word to the next load without delay if both address it by one
//! register and a constant, but not if an index is added (Golden Cove: 2 cycles, not 7). A hit and
//! the free after it change the same words.
//!
//! A block goes back into the list it came from only if its pageblock is well used. A block of a
//! sparse pageblock, or of another node, waits in the list [`HOME`] until many such blocks are
//! returned to their pageblocks at once. Otherwise memory would stay fragmented because its pieces
//! are always reused from the lists.
//!
//! **Callers.** The CPU itself, pinned; interrupt handlers never do. Other CPUs may read the
//! lengths, as hints, and raise the drain flag, which the owner serves when it next passes
//! [`Buddy::poll`](crate::Buddy::poll) or runs out.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_frame::{Order, Owner, Tag, Trace};
use freehold_machine::{CpuId, MAX_CPUS, NodeId, Pfn};
use zerocopy::FromZeros;

use crate::block::{BlockState, Blocks};
use crate::rng::Rng;
use crate::shape::{Draws, LISTS, NOWHERE, SERVES, Shapes, owner_and_order};
use crate::word::{LINE, Plain};

/// The list of blocks, each with its tag, that wait to be returned to their pageblocks.
pub(crate) const HOME: usize = LISTS;
/// Number of blocks that can wait to be returned.
pub(crate) const HOMEWARD: u64 = 256;
/// In a block's entry in the list [`HOME`], the lowest bit of the tag.
const TAG_SHIFT: u32 = 48;

/// Number of entries in all lists of a pcp. A power of two, for the mask.
pub(crate) const PLACES: usize = 4096;
/// Words for guesses: more than there are orders, and a power of two, for the mask.
const GUESSES: usize = 32;
/// No pageblock is sparse: see [`Pcp::set_sparse`].
const NONE_SPARSE: u64 = u64::MAX;

/// One CPU's lists. The caller of [`Buddy::new`](crate::Buddy::new) provides one per CPU; that CPU
/// alone changes it from then on. See the module's head.
#[derive(Debug, FromZeros)]
#[repr(C, align(128))]
pub struct Pcp {
    /// Random seed for the draw of a single block. Each search of the zones leaves a new one.
    key: AtomicU64,
    /// The index of this CPU's first line among all [`ListLines`].
    first_line: AtomicU64,
    /// A pageblock whose state word is above this is sparse.
    sparse: AtomicU64,
    /// The node whose blocks the lists hold.
    node: AtomicU64,
    /// Numbers of blocks that no list serves: handed out, and freed.
    passed_out: AtomicU64,
    passed_back: AtomicU64,
    /// Refills since [`Pcp::refills`] was last called.
    refills: AtomicU64,
    /// See [`Pcp::pause`].
    pause: AtomicU64,
    /// Frames of the blocks that no list serves, by owner: handed out minus freed.
    passed_frames: [AtomicU64; Owner::COUNT],
    /// For each order, the line of the list that took the last block of that order.
    guesses: [AtomicU64; GUESSES],
    /// The number of blocks of each list's next refill, 16 bits per list.
    batches: [AtomicU64; LISTS.div_ceil(4)],
    /// The first place of each list.
    firsts: [AtomicU64; NOWHERE + 1],
    drain: DrainFlag,
    lists: [ListLine; NOWHERE + 1],
    /// The entries of all lists, one list after the other.
    places: [AtomicU64; PLACES],
}

/// Whether another CPU requested the blocks. It is the only word that other CPUs write, so it has
/// two separate cache lines.
#[derive(Debug, FromZeros)]
#[repr(align(128))]
struct DrainFlag(AtomicU64);

/// The state of one list.
#[derive(Debug, FromZeros)]
#[repr(C, align(64))]
struct ListLine {
    /// Below bit [`COUNT`]: the place for the list's next block. From that bit on: the number of
    /// blocks that owners got from the list. One store changes both.
    next: AtomicU64,
    /// The list's first place for hits: a request hits if the next place is above this one. It is
    /// [`PLACES`] if no request may hit ([`Pcp::serve_nobody`]); no next place is above that.
    bottom: AtomicU64,
    /// One past the last place that the list may use.
    end: AtomicU64,
    /// The [`Tag`] of the list's blocks, or [`NO_LABEL`].
    label: AtomicU64,
    /// The state of a multiplicative congruential generator, which is odd. It is 0, and stays 0, if
    /// the list hands out the last added block first.
    random: AtomicU64,
    /// Number of blocks that owners got from the list and that `next` does not count.
    taken: AtomicU64,
    /// Number with which the count of blocks that owners freed is computed from `taken`: see
    /// [`Pcp::given`].
    passed: AtomicU64,
    /// The [`Trace`] in the record of a block while it is in the list.
    trace: AtomicU64,
}

/// The lowest bit of the count in [`ListLine::next`].
const COUNT: u32 = 16;
/// A label that no record has.
const NO_LABEL: u64 = u64::MAX;

impl ListLine {
    const fn empty() -> Self {
        Self {
            next: AtomicU64::new(0),
            bottom: AtomicU64::new(0),
            end: AtomicU64::new(0),
            label: AtomicU64::new(NO_LABEL),
            random: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            trace: AtomicU64::new(0),
        }
    }
}

/// A list that is always empty and always full, and whose label no record has.
static NO_LIST: ListLine = ListLine::empty();

/// For each CPU, references to its lists for hits. Lengths are powers of two, so that a masked
/// index is inside.
#[derive(Debug)]
pub(crate) struct ListLines {
    pcps: [&'static Pcp; MAX_CPUS],
    lines: [&'static ListLine; MAX_CPUS * LINES_PER_CPU],
}

/// Number of lines per CPU: at least the number of its lists.
const LINES_PER_CPU: usize = 32;

impl ListLines {
    /// Returns references with which no request hits; `any` is never written to.
    pub(crate) const fn shut(any: &'static Pcp) -> Self {
        Self { pcps: [any; MAX_CPUS], lines: [&NO_LIST; MAX_CPUS * LINES_PER_CPU] }
    }
    /// From now on CPU number `cpu` finds its lists.
    pub(crate) fn open(&mut self, cpu: usize, pcp: &'static Pcp) {
        self.pcps[cpu] = pcp;
        for (found, line) in self.lines[cpu * LINES_PER_CPU..].iter_mut().zip(&pcp.lists[..NOWHERE]) {
            *found = line;
        }
    }
    #[inline(always)]
    fn hit(&self, cpu: usize, number: usize) -> Hit<'_> {
        let line = self.lines[number % (MAX_CPUS * LINES_PER_CPU)];
        let (tag, trace) = (Tag::of_bits(line.label.get()), Trace::of_bits(line.trace.get()));
        Hit { list: List { pcp: self.pcps[cpu], line }, tag, trace }
    }
    /// The list that serves this owner and order; if there is none, a list that is always empty.
    #[inline(always)]
    pub(crate) fn serving(&self, cpu: CpuId, owner: Owner, order: Order) -> Hit<'_> {
        let cpu = usize::from(cpu.0) % MAX_CPUS;
        let list = SERVES[Tag::new(owner, order, NodeId(0)).key()];
        self.hit(cpu, cpu * LINES_PER_CPU + usize::from(list) % LINES_PER_CPU)
    }
    /// The list that got the last block of this order. It is likely the right one for the next; its
    /// tag tells which blocks it accepts.
    #[inline(always)]
    pub(crate) fn guess(&self, cpu: CpuId, order: Order) -> Hit<'_> {
        let cpu = usize::from(cpu.0) % MAX_CPUS;
        let number = self.pcps[cpu].guesses[order.log2() as usize % GUESSES].get();
        self.hit(cpu, number as usize)
    }
}

/// A list of a pcp.
#[derive(Clone, Copy, Debug)]
struct List<'a> {
    pcp: &'a Pcp,
    line: &'a ListLine,
}

impl<'a> List<'a> {
    /// One of the list's places. The mask says that the place is inside the pcp.
    #[inline(always)]
    fn place(self, at: u64) -> &'a AtomicU64 {
        &self.pcp.places[at as usize % PLACES]
    }
    /// The place for the list's next block.
    #[inline(always)]
    fn next(self) -> u64 {
        self.line.next.get() % PLACES as u64
    }
    /// Takes a block from the places above `bottom`, if there is one.
    #[inline(always)]
    fn pop(self, bottom: u64) -> Option<Pfn> {
        let next = self.line.next.get();
        if next % PLACES as u64 <= bottom {
            return None;
        }
        let len = next % PLACES as u64 - bottom;
        let random = step(self.line.random.get());
        self.line.random.set(random);
        // Decrements the place and increments the count of taken blocks.
        let top = next.wrapping_add((1 << COUNT) - 1);
        let place = self.place(top.wrapping_sub(below(random, len)));
        let block = place.get();
        place.set(self.place(top).get());
        self.line.next.set(top);
        Some(Pfn(block))
    }
    /// Adds an entry. `false` if there is no room.
    #[inline(always)]
    fn push(self, entry: u64) -> bool {
        let next = self.line.next.get();
        let room = next % (PLACES as u64) < self.line.end.get();
        if room {
            self.place(next).set(entry);
            self.line.next.set(next + 1);
        }
        room
    }
}

/// The list that hands out a block, or gets a freed one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hit<'a> {
    list: List<'a>,
    /// The tag in the record of a block of this list while the block is handed out.
    pub(crate) tag: Tag,
    /// The trace in the block's record while the block is in the list.
    pub(crate) trace: Trace,
}

impl Hit<'_> {
    /// Takes a block.
    #[inline(always)]
    pub(crate) fn pop(self) -> Option<Pfn> {
        self.list.pop(self.list.line.bottom.get())
    }
    /// Adds a freed block to the list or, if its pageblock is sparse, to the list [`HOME`]. `false`
    /// if there is no room.
    #[inline(always)]
    #[must_use]
    pub(crate) fn push(self, block: Pfn, blocks: Blocks) -> bool {
        let pcp = self.list.pcp;
        if pcp.is_sparse(block, blocks) {
            let kept = pcp.push_homeward(block, self.tag);
            if kept {
                self.list.line.passed.add(1);
            }
            return kept;
        }
        self.list.push(block.0)
    }
}

/// Blocks that will be removed from a list: a range of its places.
#[derive(Debug)]
pub(crate) struct Leavers<'a> {
    pub(crate) places: &'a [AtomicU64],
    first: usize,
}

/// A multiplicative congruential step with a multiplier of Steele and Vigna (2021), from a state
/// that is seeded anew in every run of the slow path; only the high bits are used, and the
/// multiply-high leaves a bias below 2^-53 for lists of at most 1,024.
#[inline(always)]
const fn step(random: u64) -> u64 {
    random.wrapping_mul(0xf135_7aea_2e62_a9c5)
}

#[inline(always)]
fn below(random: u64, bound: u64) -> u64 {
    ((u128::from(random) * u128::from(bound)) >> 64) as u64
}

/// A block that waits to be returned, and its tag.
#[inline]
pub(crate) fn homeward(entry: &AtomicU64) -> (Pfn, Tag) {
    let entry = entry.get();
    (Pfn(entry & ((1 << TAG_SHIFT) - 1)), Tag::of_bits(entry >> TAG_SHIFT))
}

/// CPU, node and random draws of a CPU's lists.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    /// The CPU of the lists.
    pub(crate) cpu: CpuId,
    /// The node whose blocks they hold.
    pub(crate) node: NodeId,
    /// The lists that draw at random.
    pub(crate) draws: Draws,
}

impl Default for Pcp {
    fn default() -> Self {
        Self::new()
    }
}

impl Pcp {
    /// Returns empty lists that belong to no CPU yet.
    pub const fn new() -> Self {
        Self {
            key: AtomicU64::new(0),
            first_line: AtomicU64::new(0),
            sparse: AtomicU64::new(0),
            node: AtomicU64::new(0),
            passed_out: AtomicU64::new(0),
            passed_back: AtomicU64::new(0),
            refills: AtomicU64::new(0),
            pause: AtomicU64::new(0),
            passed_frames: [const { AtomicU64::new(0) }; Owner::COUNT],
            guesses: [const { AtomicU64::new(0) }; GUESSES],
            batches: [const { AtomicU64::new(0) }; LISTS.div_ceil(4)],
            firsts: [const { AtomicU64::new(0) }; NOWHERE + 1],
            drain: DrainFlag(AtomicU64::new(0)),
            lists: [const { ListLine::empty() }; NOWHERE + 1],
            places: [const { AtomicU64::new(0) }; PLACES],
        }
    }
    /// Makes the lists empty and sets their places, CPU and node; their old contents do not matter.
    pub(crate) fn lay_out(&self, shapes: &Shapes, plan: Plan, seed: u64) {
        let Plan { cpu, node, draws } = plan;
        let mut rng = Rng::new(seed);
        self.clear();
        self.key.set(rng.next());
        self.node.set(u64::from(node.0));
        let mut at = 0;
        for (number, line) in self.lists.iter().enumerate() {
            let (owner, log2) = if number < LISTS { owner_and_order(number) } else { (Owner::Free, 0) };
            let room = match number {
                HOME => HOMEWARD,
                NOWHERE => 0,
                _ => shapes.shape(number).room,
            };
            line.next.set(at);
            line.bottom.set(at);
            self.firsts[number].set(at);
            at += room;
            line.end.set(at);
            let tag = Tag::new(owner, Order::new(log2).unwrap_or(Order::FRAME), node);
            line.label.set(if number < LISTS { tag.bits() } else { NO_LABEL });
            line.trace.set(tag.trace(cpu).bits());
            line.random.set(if draws.any(log2) { rng.next() | 1 } else { 0 });
        }
        let number = usize::from(cpu.0) % MAX_CPUS * LINES_PER_CPU;
        self.first_line.set(number as u64);
        self.guesses.iter().for_each(|guess| guess.set((number + NOWHERE) as u64));
    }
    /// Resets counts, drain requests and the sparse limit.
    fn clear(&self) {
        let scalars =
            [&self.sparse, &self.passed_out, &self.passed_back, &self.refills, &self.pause, &self.drain.0];
        let lists = self.lists.iter().flat_map(|line| [&line.taken, &line.passed]);
        let words = scalars.into_iter().chain(&self.passed_frames).chain(&self.batches).chain(lists);
        words.for_each(|word| word.set(0));
    }
    #[inline(always)]
    fn list(&self, list: usize) -> List<'_> {
        List { pcp: self, line: &self.lists[list] }
    }
    /// Whether blocks of the list are drawn at random.
    pub(crate) fn is_random(&self, list: usize) -> bool {
        self.list(list).line.random.get() != 0
    }
    #[inline]
    pub(crate) fn len(&self, list: usize) -> u64 {
        self.list(list).next() - self.firsts[list].get()
    }
    /// The places of a list that hold blocks.
    fn used(&self, list: usize) -> &[AtomicU64] {
        &self.places[self.firsts[list].get() as usize..self.list(list).next() as usize]
    }
    /// From now on no hit finds a block. Any CPU may call this: nothing else changes these words
    /// after the lists are laid out.
    pub(crate) fn serve_nobody(&self) {
        self.lists.iter().for_each(|line| line.bottom.set(PLACES as u64));
    }
    /// The node whose blocks the lists hold.
    #[inline]
    pub(crate) fn node(&self) -> NodeId {
        NodeId(self.node.get() as u8)
    }
    /// Notes that the next block of this order will likely belong to `list`.
    pub(crate) fn set_guess(&self, list: usize) {
        let (_, order) = owner_and_order(list);
        let number = self.first_line.get() + list as u64;
        self.guesses[order as usize % GUESSES].set(number);
    }
    /// Takes a block.
    pub(crate) fn pop(&self, list: usize) -> Option<Pfn> {
        self.list(list).pop(self.firsts[list].get())
    }
    /// Returns places for up to `most` blocks, after those of the list's blocks. A call of
    /// [`Pcp::fill`] tells how many were used.
    pub(crate) fn room(&self, list: usize, most: u64) -> &[AtomicU64] {
        let list = self.list(list);
        let (next, end) = (list.next(), list.line.end.get());
        &self.places[next as usize..(next + most).min(end) as usize]
    }
    /// From now on the list accepts freed blocks until it has `room` blocks, which is at most its
    /// shape's limit.
    pub(crate) fn set_room(&self, list: usize, room: u64) {
        self.lists[list].end.set(self.firsts[list].get() + room);
    }
    /// Notes that the first `count` places of [`Pcp::room`] now hold blocks.
    pub(crate) fn fill(&self, list: usize, count: u64) {
        let list = self.list(list);
        list.line.next.add(count);
        list.line.passed.sub(count);
        // The count in `next` must not overflow: it is moved to `taken` first. A CPU that reads
        // both words meanwhile sees too low a sum.
        let next = list.line.next.get();
        if next.leading_zeros() == 0 {
            list.line.next.set(list.next());
            list.line.taken.add(next >> COUNT);
        }
    }
    /// Adds a freed block. `false` if there is no room.
    #[must_use]
    pub(crate) fn push(&self, list: usize, block: Pfn) -> bool {
        self.list(list).push(block.0)
    }
    /// Whether a block's pageblock has more free frames than the limit of [`Pcp::set_sparse`]: its
    /// freed blocks are then returned to it. If no pageblock is sparse, the state word is not read.
    #[inline(always)]
    pub(crate) fn is_sparse(&self, block: Pfn, blocks: Blocks) -> bool {
        let most = self.sparse.get();
        most != NONE_SPARSE && blocks.state_hint(block).0 > most
    }
    /// Sets the number of free frames above which a pageblock is sparse; `None`: no pageblock is
    /// sparse.
    pub(crate) fn set_sparse(&self, free: Option<u64>) {
        self.sparse.set(free.map_or(NONE_SPARSE, |free| BlockState::most(free).0));
    }
    /// Returns up to `count` blocks that are to be removed without being handed out. With shuffle
    /// on, these are the blocks from a random place of the list on, else the oldest ones. They stay
    /// in the list until [`Pcp::forget`].
    pub(crate) fn leavers(&self, list: usize, count: u64) -> Leavers<'_> {
        let (places, state) = (self.used(list), &self.lists[list].random);
        let count = count.min(places.len() as u64) as usize;
        let random = step(state.get());
        state.set(random);
        let first = below(random, (places.len() - count) as u64 + 1) as usize;
        Leavers { places: &places[first..first + count], first }
    }
    /// Removes `leavers` from the list.
    pub(crate) fn forget(&self, list: usize, leavers: &Leavers<'_>) {
        let places = self.used(list);
        let (first, count) = (leavers.first, leavers.places.len());
        let end = first + count;
        // If the order does not matter, the last blocks fill the gap; else all blocks above move
        // down.
        let from = if self.is_random(list) { end.max(places.len() - count) } else { end };
        for (to, from) in places[first..].iter().zip(&places[from..]) {
            to.set(from.get());
        }
        self.lists[list].next.sub(count as u64);
        self.lists[list].passed.add(count as u64);
    }
    /// Counts a freed block that belongs to this list and bypasses it.
    pub(crate) fn count_given(&self, list: usize) {
        self.lists[list].passed.add(1);
    }
    /// Counts a block without a list that was handed out.
    pub(crate) fn count_passed_out(&self, owner: Owner, frames: u64) {
        self.passed_out.add(1);
        self.passed_frames[owner as usize].add(frames);
    }
    /// Counts a block without a list that was freed.
    pub(crate) fn count_passed_back(&self, owner: Owner, frames: u64) {
        self.passed_back.add(1);
        self.passed_frames[owner as usize].sub(frames);
    }
    /// Counts a block that has a list but was handed out without it.
    pub(crate) fn count_taken(&self, list: usize) {
        self.lists[list].taken.add(1);
        self.lists[list].passed.sub(1);
    }
    /// Blocks of a list that this CPU has handed out since boot.
    fn taken(&self, list: usize) -> u64 {
        let line = &self.lists[list];
        line.taken.get().wrapping_add(line.next.get() >> COUNT)
    }
    /// Blocks that owners got from this list minus those that they freed to it. Only the sum over
    /// all CPUs is meaningful.
    fn away(&self, list: usize) -> u64 {
        self.len(list).wrapping_add(self.lists[list].passed.get()).wrapping_neg()
    }
    /// Blocks for this list that owners have freed on this CPU since boot. Blocks that were added
    /// to the list are not counted one by one. They are still in it, or were handed out
    /// ([`Pcp::taken`]), or were removed in another way.
    fn given(&self, list: usize) -> u64 {
        self.taken(list).wrapping_sub(self.away(list))
    }
    /// Number of blocks of the lists' shapes that this CPU has handed out since boot.
    pub(crate) fn listed(&self) -> u64 {
        (0..LISTS).map(|list| self.taken(list)).fold(0, u64::wrapping_add)
    }
    /// Number of frames in those blocks.
    pub(crate) fn listed_frames(&self, shapes: &Shapes) -> u64 {
        let frames = (0..LISTS).map(|list| self.taken(list) << shapes.shape(list).order);
        frames.fold(0, u64::wrapping_add)
    }
    /// Blocks handed out and freed on this CPU since boot.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        let given = (0..LISTS).map(|list| self.given(list)).fold(0, u64::wrapping_add);
        let (out, back) = (self.passed_out.get(), self.passed_back.get());
        (self.listed().wrapping_add(out), given.wrapping_add(back))
    }
    /// Frames of `owner` handed out on this CPU minus those freed on it. Only the sum over all CPUs
    /// is meaningful.
    pub(crate) fn frames_of(&self, owner: Owner, shapes: &Shapes) -> u64 {
        let lists = (0..LISTS).filter(|list| shapes.shape(*list).owner == owner);
        let frames = lists.map(|list| self.away(list).wrapping_shl(shapes.shape(list).order));
        frames.fold(self.passed_frames[owner as usize].get(), u64::wrapping_add)
    }
    /// Returns the random seed for the draw of a single block.
    pub(crate) fn key(&self) -> u64 {
        self.key.get()
    }
    pub(crate) fn set_key(&self, key: u64) {
        self.key.set(key);
    }
    /// Seeds the random draws of a list anew.
    pub(crate) fn key_list(&self, list: usize, rng: &mut Rng) {
        if self.is_random(list) {
            self.lists[list].random.set(rng.next() | 1);
        }
    }
    fn batch(&self, list: usize) -> u64 {
        self.batches[list / 4].get() >> (16 * (list % 4)) & 0xffff
    }
    fn set_batch(&self, list: usize, batch: u64) {
        let (word, shift) = (&self.batches[list / 4], 16 * (list % 4));
        word.set(word.get() & !(0xffff << shift) | batch << shift);
    }
    /// Number of blocks for this refill: it doubles with each refill without a drain in between.
    pub(crate) fn grow(&self, list: usize, most: u64) -> u64 {
        self.refills.add(1);
        let now = self.batch(list).clamp(most.min(8), most);
        self.set_batch(list, (now * 2).min(most));
        now
    }
    /// Halves the next refill of each list. Returns 0 if no list will be refilled with more than
    /// one block.
    pub(crate) fn shrink_all(&self) -> usize {
        let mut shrunk = 0;
        for four in &self.batches {
            let batches = four.get();
            if batches != 0 {
                four.set(batches >> 1 & 0x7fff_7fff_7fff_7fff);
                shrunk += 1;
            }
        }
        shrunk
    }
    /// Number of further idle periods in which the lists are not checked.
    pub(crate) fn pause(&self) -> u64 {
        self.pause.get()
    }
    pub(crate) fn set_pause(&self, idles: u64) {
        self.pause.set(idles);
    }
    /// Refills since the last call.
    pub(crate) fn refills(&self) -> u64 {
        let count = self.refills.get();
        self.refills.set(0);
        count
    }
    /// Adds a block to those that are to be returned. `false` if there is no room.
    #[inline]
    #[must_use]
    pub(crate) fn push_homeward(&self, block: Pfn, tag: Tag) -> bool {
        self.list(HOME).push(block.0 | tag.bits() << TAG_SHIFT)
    }
    /// Returns the blocks that wait to be returned to their pageblocks: see [`homeward`].
    pub(crate) fn homeward(&self) -> &[AtomicU64] {
        self.used(HOME)
    }
    /// Empties the list of blocks that wait to be returned.
    pub(crate) fn clear_homeward(&self) {
        self.lists[HOME].next.set(self.firsts[HOME].get());
    }
    /// Returns the blocks of a list.
    pub(crate) fn iter(&self, list: usize) -> impl Iterator<Item = Pfn> {
        self.used(list).iter().map(|place| Pfn(place.get()))
    }
    /// Frames in this pcp.
    pub(crate) fn frames(&self, shapes: &Shapes) -> u64 {
        let lists: u64 = (0..LISTS).map(|list| self.len(list) << shapes.shape(list).order).sum();
        lists + self.homeward().iter().map(|entry| homeward(entry).1.order().frames()).sum::<u64>()
    }
    /// Requests that the CPU returns its blocks. Any CPU may call this.
    pub(crate) fn request_drain(&self) {
        self.drain.0.store(1, Ordering::Relaxed);
    }
    /// Whether a drain was requested since the last call.
    pub(crate) fn drain_requested(&self) -> bool {
        self.drain.0.get() != 0 && self.drain.0.swap(0, Ordering::Relaxed) != 0
    }
}

const _: () = assert!(NOWHERE < LINES_PER_CPU && (Order::MAX.log2() as usize) < GUESSES);
// A hit accesses only one line of its list, and the flag shares no line with data that the CPU
// itself uses.
const _: () = assert!(size_of::<ListLine>() == LINE * 8 && size_of::<DrainFlag>() == 2 * LINE * 8);

#[cfg(test)]
mod tests;
