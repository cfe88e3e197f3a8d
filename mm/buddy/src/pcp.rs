//! A CPU's own lists of free blocks (pcp, as Linux calls its per-CPU page lists): array stacks that
//! only that CPU accesses.
//!
//! A hit costs no lock, no atomic read-modify-write, and only this CPU's cache lines (and the
//! block's record). With shuffle on, a hit takes the block at a random place of the list instead of
//! the top. So neither the order of frees nor the last freed block determines the next block.
//! Without shuffle the same code runs with a range of one.
//!
//! **The floor.** A hit reads the CPU's number, the address of its [`Pcp`], the list's line, the
//! place that is drawn and the last one, and the block's record. It writes the state of the draw,
//! the place, the line's count, and the record. A free reads the record, the line and (where
//! pageblocks are [sparse](Pcp::set_sparse)) the pageblock's state. It writes the place, the count
//! and the record. Each is one load or store, and none of them is atomic.
//!
//! The state of a list is one cache line ([`ListLine`]): everything that a hit reads or writes
//! except the block itself. Each list has the same places in every pcp ([`BASES`]).
//! So if a caller's owner and order are constants, line and places are at constant distances from
//! the pcp. All lists have their entries in one array of [`PLACES`]: a masked index is inside it,
//! so no bounds check is compiled in, and for the lists of single frames not even the mask.
//! Processors forward a stored word to the next load without delay if both address it by one
//! register and a constant, but not if an index is added (Golden Cove: 2 cycles, not 7). A hit and
//! the free after it change the same words.
//!
//! A free tells the [likely](crate::Buddy::release_of) owner, and the block's record confirms it.
//! So a free knows the list before it has read the record.
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
use crate::shape::{BASES, Draws, HOME, HOMEWARD, LINES, LISTS, PLACES, SERVES, Shapes, owner_and_order};
use crate::word::{LINE, Plain};

/// In a block's entry in the list [`HOME`], the lowest bit of the tag.
const TAG_SHIFT: u32 = 48;
/// No pageblock is sparse: see [`Pcp::set_sparse`].
const NONE_SPARSE: u64 = u64::MAX;

/// One CPU's lists. The caller of [`Buddy::new`](crate::Buddy::new) provides one per CPU; that CPU
/// alone changes it from then on. See the module's head.
#[derive(Debug, FromZeros)]
#[repr(C, align(128))]
pub struct Pcp {
    /// Random seed for the draw of a single block. Each search of the zones leaves a new one.
    key: AtomicU64,
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
    /// The number of blocks of each list's next refill, 16 bits per list.
    batches: [AtomicU64; LISTS.div_ceil(4)],
    /// Number of blocks that owners got from each list and that [`ListLine::next`] does not count.
    taken: [AtomicU64; LISTS],
    /// Numbers with which the count of blocks that owners freed is computed from `taken`: see
    /// [`Pcp::given`].
    passed: [AtomicU64; LISTS],
    drain: DrainFlag,
    lists: [ListLine; LINES],
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
    /// Below bit [`COUNT`]: the number of blocks in the list. From that bit on: the number of
    /// blocks that owners got from the list. One store changes both.
    next: AtomicU64,
    /// A request hits if the list has more blocks than this: 0, or [`PLACES`] if no request may hit
    /// ([`Pcp::serve_nobody`]).
    bottom: AtomicU64,
    /// The list accepts freed blocks while it has fewer than this: [`ListLine::room`], or 0 while
    /// the [pageblocks](Pcp::set_sparse) of freed blocks are looked at.
    end: AtomicU64,
    /// The [`Tag`] of the list's blocks, or [`NO_LABEL`].
    label: AtomicU64,
    /// The state of a multiplicative congruential generator, which is odd. Where the list hands out
    /// the last added block first, the state and the multiplier never change what is drawn.
    random: AtomicU64,
    /// The generator's multiplier: [`MULTIPLIER`], or 1 for [`LAST_FIRST`].
    multiplier: AtomicU64,
    /// Largest number of blocks in the list.
    room: AtomicU64,
    /// The [`Trace`] in the record of a block while it is in the list.
    trace: AtomicU64,
}

/// The lowest bit of the count in [`ListLine::next`].
const COUNT: u32 = 16;
/// More than a list has blocks, and a power of two, for the mask.
const LEVELS: u64 = 2048;
/// A label that no record has.
const NO_LABEL: u64 = u64::MAX;
/// A multiplier of Steele and Vigna (2021).
const MULTIPLIER: u64 = 0xf135_7aea_2e62_a9c5;
/// The state of a generator with which the last block is drawn.
const LAST_FIRST: u64 = u64::MAX;

impl ListLine {
    const fn empty() -> Self {
        Self {
            next: AtomicU64::new(0),
            bottom: AtomicU64::new(0),
            end: AtomicU64::new(0),
            label: AtomicU64::new(NO_LABEL),
            random: AtomicU64::new(LAST_FIRST),
            multiplier: AtomicU64::new(1),
            room: AtomicU64::new(0),
            trace: AtomicU64::new(0),
        }
    }
    /// Number of blocks in the list.
    #[inline(always)]
    fn len(&self) -> u64 {
        self.next.get() % LEVELS
    }
    /// Returns a random word and makes the next. Only the high bits are used, the state is seeded
    /// anew in every run of the slow path, and the multiply-high leaves a bias below 2^-53 for
    /// lists of at most 1,024.
    #[inline(always)]
    fn step(&self) -> u64 {
        let random = self.random.get();
        self.random.set(random.wrapping_mul(self.multiplier.get()));
        random
    }
}

/// For each CPU, its lists. Of [`MAX_CPUS`], so that a masked number is inside.
pub(crate) type CpuLists = [&'static Pcp; MAX_CPUS];

/// The list that hands out a block, or gets a freed one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hit<'a> {
    pcp: &'a Pcp,
    list: usize,
}

impl<'a> Hit<'a> {
    /// The list of a CPU's pcp that serves this owner and order; if there is none, a list that is
    /// always empty and full, and whose tag no record has.
    #[inline(always)]
    pub(crate) fn serving(pcp: &'a Pcp, owner: Owner, order: Order) -> Self {
        Self { pcp, list: SERVES[Tag::new(owner, order, NodeId(0)).key()].into() }
    }
    #[inline(always)]
    fn line(self) -> &'a ListLine {
        self.pcp.line(self.list)
    }
    /// The tag in the record of a block of this list while the block is handed out.
    #[inline(always)]
    pub(crate) fn tag(self) -> Tag {
        Tag::of_bits(self.line().label.get())
    }
    /// The trace in the block's record while the block is in the list.
    #[inline(always)]
    pub(crate) fn trace(self) -> Trace {
        Trace::of_bits(self.line().trace.get())
    }
    /// Takes a block.
    #[inline(always)]
    pub(crate) fn pop(self) -> Option<Pfn> {
        self.pcp.pop_above(self.list, self.line().bottom.get())
    }
    /// Adds a freed block to the list or, if its pageblock is sparse, to the list [`HOME`]. `false`
    /// if there is no room.
    #[inline(always)]
    #[must_use]
    pub(crate) fn push(self, block: Pfn, blocks: &Blocks) -> bool {
        let (pcp, line) = (self.pcp, self.line());
        let len = line.len();
        if len < line.end.get() || (len < line.room.get() && !pcp.is_sparse(block, *blocks)) {
            pcp.push_at(self.list, len, block);
            return true;
        }
        pcp.push_sparse(self.list, block, *blocks)
    }
}

/// Blocks that will be removed from a list: a range of its places.
#[derive(Debug)]
pub(crate) struct Leavers<'a> {
    pub(crate) places: &'a [AtomicU64],
    first: usize,
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
    /// Whether requests and frees may use the lists without the slow path.
    pub(crate) hits: Hits,
}

/// Whether requests and frees use a list directly, or by the slow path only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hits {
    Served,
    Refused,
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
            sparse: AtomicU64::new(0),
            node: AtomicU64::new(0),
            passed_out: AtomicU64::new(0),
            passed_back: AtomicU64::new(0),
            refills: AtomicU64::new(0),
            pause: AtomicU64::new(0),
            passed_frames: [const { AtomicU64::new(0) }; Owner::COUNT],
            batches: [const { AtomicU64::new(0) }; LISTS.div_ceil(4)],
            taken: [const { AtomicU64::new(0) }; LISTS],
            passed: [const { AtomicU64::new(0) }; LISTS],
            drain: DrainFlag(AtomicU64::new(0)),
            lists: [const { ListLine::empty() }; LINES],
            places: [const { AtomicU64::new(0) }; PLACES],
        }
    }
    /// Makes the lists empty and sets their limits, CPU and node; their old contents do not matter.
    pub(crate) fn lay_out(&self, shapes: &Shapes, plan: Plan, seed: u64) {
        let Plan { cpu, node, draws, hits } = plan;
        let mut rng = Rng::new(seed);
        self.clear();
        self.key.set(rng.next());
        self.node.set(u64::from(node.0));
        for (number, line) in self.lists.iter().enumerate() {
            let (owner, log2) = if number < LISTS { owner_and_order(number) } else { (Owner::Free, 0) };
            let room = match number {
                HOME => HOMEWARD,
                _ if number < LISTS => shapes.shape(number).room,
                _ => 0,
            };
            line.room.set(room);
            line.end.set(0);
            let tag = Tag::new(owner, Order::new(log2).unwrap_or(Order::FRAME), node);
            let served = number < LISTS && hits == Hits::Served;
            line.bottom.set(if served { 0 } else { PLACES as u64 });
            line.label.set(if served { tag.bits() } else { NO_LABEL });
            line.trace.set(tag.trace(cpu).bits());
            let (random, multiplier) =
                if draws.any(log2) { (rng.next() | 1, MULTIPLIER) } else { (LAST_FIRST, 1) };
            line.random.set(random);
            line.multiplier.set(multiplier);
        }
    }
    /// Resets counts, drain requests and the sparse limit.
    fn clear(&self) {
        let scalars =
            [&self.sparse, &self.passed_out, &self.passed_back, &self.refills, &self.pause, &self.drain.0];
        let lists = self.lists.iter().map(|line| &line.next);
        let arrays = self.passed_frames.iter().chain(&self.batches).chain(&self.taken).chain(&self.passed);
        scalars.into_iter().chain(arrays).chain(lists).for_each(|word| word.set(0));
    }
    #[inline(always)]
    fn line(&self, list: usize) -> &ListLine {
        &self.lists[list % LINES]
    }
    /// The place of a list's block number `n`, counted from 1. The mask says that the place is
    /// inside the pcp.
    #[inline(always)]
    fn place(&self, list: usize, n: u64) -> &AtomicU64 {
        &self.places[(BASES[list % LINES] + n as usize) % PLACES]
    }
    /// Takes a block if the list has more than `bottom`.
    #[inline(always)]
    fn pop_above(&self, list: usize, bottom: u64) -> Option<Pfn> {
        let line = self.line(list);
        let len = line.len();
        if len <= bottom {
            return None;
        }
        let last = self.place(list, len).get();
        let place = self.place(list, below(line.step(), len) + 1);
        let block = place.get();
        place.set(last);
        // Decrements the length and increments the count of taken blocks. Loaded again, so that it
        // is one instruction.
        line.next.add((1 << COUNT) - 1);
        Some(Pfn(block))
    }
    /// Whether blocks of the list are drawn at random.
    pub(crate) fn is_random(&self, list: usize) -> bool {
        self.line(list).multiplier.get() != 1
    }
    #[inline]
    pub(crate) fn len(&self, list: usize) -> u64 {
        self.line(list).len()
    }
    /// The places of a list from its block number `from` on, counted from 0, up to number `to`.
    fn places(&self, list: usize, from: u64, to: u64) -> &[AtomicU64] {
        let first = BASES[list] + 1;
        &self.places[first + from as usize..first + to as usize]
    }
    /// The places of a list that hold blocks.
    fn used(&self, list: usize) -> &[AtomicU64] {
        self.places(list, 0, self.len(list))
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
    /// Takes a block.
    pub(crate) fn pop(&self, list: usize) -> Option<Pfn> {
        self.pop_above(list, 0)
    }
    /// Returns places for up to `most` blocks, after those of the list's blocks. A call of
    /// [`Pcp::fill`] tells how many were used.
    pub(crate) fn room(&self, list: usize, most: u64) -> &[AtomicU64] {
        let len = self.len(list);
        self.places(list, len, (len + most).min(self.line(list).room.get()))
    }
    /// From now on the list accepts freed blocks until it has `room` blocks, which is at most its
    /// shape's limit.
    pub(crate) fn set_room(&self, list: usize, room: u64) {
        self.line(list).room.set(room);
        self.line(list).end.set(if self.sparse.get() == NONE_SPARSE { room } else { 0 });
    }
    /// Notes that the first `count` places of [`Pcp::room`] now hold blocks.
    pub(crate) fn fill(&self, list: usize, count: u64) {
        let line = self.line(list);
        line.next.add(count);
        self.passed[list].sub(count);
        // The count in `next` must not overflow: it is moved to `taken` first. A CPU that reads
        // both words meanwhile sees too low a sum.
        let next = line.next.get();
        if next.leading_zeros() == 0 {
            line.next.set(line.len());
            self.taken[list].add(next >> COUNT);
        }
    }
    /// Adds a freed block. `false` if there is no room.
    #[must_use]
    pub(crate) fn push(&self, list: usize, block: Pfn) -> bool {
        let line = self.line(list);
        let len = line.len();
        let room = len < line.room.get();
        if room {
            self.push_at(list, len, block);
        }
        room
    }
    /// Adds a block to a list that has `len` and room for one more.
    #[inline(always)]
    fn push_at(&self, list: usize, len: u64, block: Pfn) {
        self.place(list, len + 1).set(block.0);
        self.line(list).next.add(1);
    }
    /// Adds a freed block whose record says that it belongs to the list to [`HOME`] if its
    /// pageblock is sparse and there is room. Returns whether that is so.
    #[cold]
    #[inline(never)]
    fn push_sparse(&self, list: usize, block: Pfn, blocks: Blocks) -> bool {
        let kept = self.is_sparse(block, blocks)
            && self.push_homeward(block, Tag::of_bits(self.line(list).label.get()));
        if kept {
            self.count_given(list);
        }
        kept
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
        let most = free.map_or(NONE_SPARSE, |free| BlockState::most(free).0);
        let before = self.sparse.get();
        self.sparse.set(most);
        if (before == NONE_SPARSE) != (most == NONE_SPARSE) {
            (0..LISTS).for_each(|list| self.set_room(list, self.line(list).room.get()));
        }
    }
    /// Returns up to `count` blocks that are to be removed without being handed out. With shuffle
    /// on, these are the blocks from a random place of the list on, else the oldest ones. They stay
    /// in the list until [`Pcp::forget`].
    pub(crate) fn leavers(&self, list: usize, count: u64) -> Leavers<'_> {
        let places = self.used(list);
        let count = count.min(places.len() as u64) as usize;
        let rest = (places.len() - count) as u64;
        let first = if self.is_random(list) { below(self.line(list).step(), rest + 1) as usize } else { 0 };
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
        self.passed[list].add(count as u64);
    }
    /// Counts a freed block that belongs to this list and bypasses it.
    pub(crate) fn count_given(&self, list: usize) {
        self.passed[list].add(1);
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
        self.taken[list].add(1);
        self.passed[list].sub(1);
    }
    /// Blocks of a list that this CPU has handed out since boot.
    fn taken(&self, list: usize) -> u64 {
        self.taken[list].get().wrapping_add(self.lists[list].next.get() >> COUNT)
    }
    /// Blocks that owners got from this list minus those that they freed to it. Only the sum over
    /// all CPUs is meaningful.
    fn away(&self, list: usize) -> u64 {
        self.len(list).wrapping_add(self.passed[list].get()).wrapping_neg()
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
        self.push(HOME, Pfn(block.0 | tag.bits() << TAG_SHIFT))
    }
    /// Returns the blocks that wait to be returned to their pageblocks: see [`homeward`].
    pub(crate) fn homeward(&self) -> &[AtomicU64] {
        self.used(HOME)
    }
    /// Empties the list of blocks that wait to be returned.
    pub(crate) fn clear_homeward(&self) {
        self.lists[HOME].next.set(0);
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

// A hit accesses only one line of its list, and the flag shares no line with data that the CPU
// itself uses.
const _: () = assert!(size_of::<ListLine>() == LINE * 8 && size_of::<DrainFlag>() == 2 * LINE * 8);

#[cfg(test)]
mod tests;
