//! Pageblocks: 512 frames, a bitmap of the free ones in one cache line, and a state word in the
//! next line.
//!
//! **Invariant.** A pageblock is completely inside or outside the direct map: its side.
//! [`Fill::Free`] blocks are in their side's [`FreeSet`](crate::set::FreeSet) and their bitmaps
//! mean nothing. [`Fill::Split`] blocks have one owner, `free` is the number of ones in the bitmap,
//! and they are on the owner's list `bucket` exactly when `free` is not 0. All zeroes means free on
//! the user's side, so zeroed metadata is valid without initialisation.
//!
//! A block that is not free belongs to an [arena](crate::arena), whose lock orders access to all of
//! its words. The zone's lock orders access to the words of a free, moving or offline block, and
//! always to the free set's position word.

use core::sync::atomic::AtomicU64;

use freehold_frame::{Owner, Side};
use freehold_machine::{PAGEBLOCK_FRAMES, PAGEBLOCK_ORDER, Pfn};

use crate::word::Plain;

/// Words in a pageblock's bitmap.
pub(crate) const BITMAP_WORDS: usize = 8;
/// Words of metadata per pageblock: its bitmap, and a line for its state, so that two CPUs at work
/// in two pageblocks share no line.
pub(crate) const BLOCK_WORDS: usize = 2 * BITMAP_WORDS;
const STATE: usize = BITMAP_WORDS;
const LINKS: usize = BITMAP_WORDS + 1;
const POSITION: usize = BITMAP_WORDS + 2;
/// Number of lists of split blocks per owner, by free frames: 1–64, 65–128, … 449–512.
pub(crate) const BUCKETS: usize = 8;

/// A pageblock's number: frame number / 512.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct BlockId(pub(crate) u64);

impl BlockId {
    pub(crate) const fn of(frame: Pfn) -> Self {
        Self(frame.0 >> PAGEBLOCK_ORDER)
    }
    pub(crate) const fn start(self) -> Pfn {
        Pfn(self.0 << PAGEBLOCK_ORDER)
    }
}

/// Use of a pageblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fill {
    /// All frames are free; the block is in the free set of this side.
    Free(Side),
    /// Its frames are handed out one by one to one owner.
    Split,
    /// Handed out as a whole, alone or as a part of a larger block.
    Whole,
    /// Taken out of its free set by a CPU that changes its side or gathers a larger block.
    Moving,
    /// No memory, or memory taken offline.
    Offline,
}

/// A pageblock's state word, lowest bits first: fill (3), owner (5), hint (4), leaving (1), residue
/// (1), from bit 16 on the arena (6), and from bit 32 on the free frames, so that words compare as
/// the free frames do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockState(pub(crate) u64);

const OWNER: u32 = 3;
const HINT: u32 = 8;
const LEAVING: u64 = 1 << 12;
const RESIDUE: u64 = 1 << 13;
const ARENA: u32 = 16;
const FREE: u32 = 32;

impl BlockState {
    pub(crate) const fn plain(fill: Fill) -> Self {
        Self(match fill {
            Fill::Free(Side::User) => 0,
            Fill::Free(Side::Kernel) => 1,
            Fill::Split => 2,
            Fill::Whole => 3,
            Fill::Moving => 4,
            Fill::Offline => 5,
        })
    }
    /// The highest state word of a block with so many free frames.
    pub(crate) const fn most(free: u64) -> Self {
        Self(((free + 1) << FREE) - 1)
    }
    pub(crate) const fn split(owner: Owner, free: u64) -> Self {
        Self::plain(Fill::Split).with_owner(owner).with_free(free).with_hint(PAGEBLOCK_ORDER)
    }
    /// The state of a block that is handed out as a whole.
    pub(crate) const fn whole(side: Side) -> Self {
        Self::plain(Fill::Whole).with_owner(whole_class(side))
    }
    pub(crate) const fn fill(self) -> Fill {
        match self.0 & 7 {
            0 => Fill::Free(Side::User),
            1 => Fill::Free(Side::Kernel),
            2 => Fill::Split,
            3 => Fill::Whole,
            4 => Fill::Moving,
            _ => Fill::Offline,
        }
    }
    pub(crate) const fn is_split(self) -> bool {
        self.0 & 7 == 2
    }
    /// Returns the word of a [plain](BlockState::plainly_more) block of an arena, without its owner
    /// and count.
    pub(crate) const fn plain_of(arena: u8) -> Self {
        Self::plain(Fill::Split).with_hint(PAGEBLOCK_ORDER).with_arena(arena)
    }
    /// The state with one more free frame. `None` if a larger run than the block is known to have
    /// may result, or if the block is not split, is leaving, or is not [of the
    /// arena](BlockState::plain_of).
    #[inline(always)]
    const fn plainly_more(self, plain: Self) -> Option<Self> {
        const LOOK: u64 = 7 | LEAVING | 15 << HINT | 63 << ARENA;
        if self.0 & LOOK == plain.0 { Some(Self(self.0 + (1 << FREE))) } else { None }
    }
    /// Whether a block whose frame was just freed may be whole, or belong on another list: true for
    /// two of 64 counts.
    #[inline(always)]
    const fn may_move(self) -> bool {
        self.0 & 62 << FREE == 0
    }
    /// The owner of a split block; for whole and moving blocks an owner that represents the side.
    pub(crate) const fn owner(self) -> Owner {
        Owner::from_bits((self.0 >> OWNER) as u32)
    }
    /// The number of free frames of a split block.
    pub(crate) const fn free(self) -> u64 {
        self.0 >> FREE
    }
    /// For split blocks: there is no free run of a larger order than this.
    pub(crate) const fn hint(self) -> u32 {
        (self.0 >> HINT & 15) as u32
    }
    pub(crate) const fn with_owner(self, owner: Owner) -> Self {
        Self(self.0 & !(31 << OWNER) | (owner as u64) << OWNER)
    }
    pub(crate) const fn with_free(self, free: u64) -> Self {
        Self(self.0 & ((1 << FREE) - 1) | free << FREE)
    }
    /// The arena of a block that is not free.
    pub(crate) const fn arena(self) -> u8 {
        (self.0 >> ARENA & 63) as u8
    }
    pub(crate) const fn with_arena(self, arena: u8) -> Self {
        Self(self.0 & !(63 << ARENA) | (arena as u64 & 63) << ARENA)
    }
    pub(crate) const fn with_hint(self, hint: u32) -> Self {
        Self(self.0 & !(15 << HINT) | (hint as u64) << HINT)
    }
    /// Whether the block goes offline when the last of its frames is freed; it is on no list then.
    pub(crate) const fn is_leaving(self) -> bool {
        self.0 & LEAVING != 0
    }
    pub(crate) const fn leaving(self) -> Self {
        Self(self.0 | LEAVING)
    }
    pub(crate) const fn staying(self) -> Self {
        Self(self.0 & !LEAVING)
    }
    /// Whether a free or moving block may hold bytes of programs, which the kernel's map must not
    /// show.
    pub(crate) const fn has_residue(self) -> bool {
        self.0 & RESIDUE != 0
    }
    pub(crate) const fn with_residue(self) -> Self {
        Self(self.0 | RESIDUE)
    }
    /// This state with the residue bit of `other`.
    pub(crate) const fn with_residue_of(self, other: Self) -> Self {
        Self(self.0 | other.0 & RESIDUE)
    }
    /// A free block whose last frames were of `side`.
    pub(crate) const fn freed(side: Side) -> Self {
        match side {
            Side::Kernel => Self::plain(Fill::Free(side)),
            Side::User => Self::plain(Fill::Free(side)).with_residue(),
        }
    }
    /// The list a split block with free frames is on.
    pub(crate) const fn bucket(self) -> usize {
        (self.free() as usize - 1) / 64
    }
}

/// Returns the owner under which a block that is handed out as a whole counts.
pub(crate) const fn whole_class(side: Side) -> Owner {
    match side {
        Side::Kernel => Owner::Kernel,
        Side::User => Owner::Anon,
    }
}

/// Result of the fast path for freeing a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PutPlain {
    Yes,
    /// The frame was freed; the caller has to update the pageblock's state, which may move it to
    /// another list.
    Moves {
        from: BlockState,
        to: BlockState,
    },
    /// The fast path does not apply, and nothing has changed.
    No,
}

/// The metadata of all pageblocks, by number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    words: &'static [[AtomicU64; BLOCK_WORDS]],
}

impl Blocks {
    pub(crate) const fn new(words: &'static [[AtomicU64; BLOCK_WORDS]]) -> Self {
        Self { words }
    }
    pub(crate) const fn count(self) -> u64 {
        self.words.len() as u64
    }
    fn word(self, block: BlockId, which: usize) -> &'static AtomicU64 {
        &self.words[block.0 as usize][which]
    }
    pub(crate) fn state(self, block: BlockId) -> BlockState {
        BlockState(self.word(block, STATE).get())
    }
    pub(crate) fn set_state(self, block: BlockId, state: BlockState) {
        self.word(block, STATE).set(state.0);
    }
    /// The state of `frame`'s pageblock: a hint without the lock.
    #[inline]
    pub(crate) fn state_hint(self, frame: Pfn) -> BlockState {
        BlockState(self.words.get(BlockId::of(frame).0 as usize).map_or(0, |words| words[STATE].get()))
    }
    /// Frees a single frame of a pageblock of the arena whose [plain](BlockState::plain_of) blocks
    /// have the word `plain`. Applies only if nothing else changes than its bit, its pageblock's
    /// count, and maybe its list.
    #[inline]
    #[must_use]
    pub(crate) fn put_plain(self, frame: Pfn, plain: BlockState) -> PutPlain {
        let Some(words) = self.words.get(BlockId::of(frame).0 as usize) else { return PutPlain::No };
        let word = &words[(frame.0 / 64) as usize % BITMAP_WORDS];
        let (bits, bit) = (word.get(), 1 << (frame.0 % 64));
        let old = BlockState(words[STATE].get());
        match old.plainly_more(plain) {
            Some(more) if bits & bit == 0 => {
                if more.may_move() {
                    if more.free() == PAGEBLOCK_FRAMES {
                        return PutPlain::No;
                    }
                    word.set(bits | bit);
                    return PutPlain::Moves { from: old, to: more };
                }
                word.set(bits | bit);
                words[STATE].set(more.0);
                PutPlain::Yes
            }
            _ => PutPlain::No,
        }
    }
    /// The next and the previous block in the block's list.
    pub(crate) fn links(self, block: BlockId) -> (Option<BlockId>, Option<BlockId>) {
        let bits = self.word(block, LINKS).get();
        (unlink(bits & u64::from(u32::MAX)), unlink(bits >> 32))
    }
    pub(crate) fn set_links(self, block: BlockId, next: Option<BlockId>, previous: Option<BlockId>) {
        self.word(block, LINKS).set(link(next) | link(previous) << 32);
    }
    /// The word in which a free set stores the block's position in the set.
    pub(crate) fn position(self, block: BlockId) -> &'static AtomicU64 {
        self.word(block, POSITION)
    }
    pub(crate) fn bitmap(self, block: BlockId) -> &'static [AtomicU64; BITMAP_WORDS] {
        self.words[block.0 as usize].first_chunk().expect("a pageblock's words begin with its bitmap")
    }
}

/// A block number in a list word: 0 is none.
pub(crate) const fn link(block: Option<BlockId>) -> u64 {
    match block {
        Some(block) => block.0 + 1,
        None => 0,
    }
}

pub(crate) const fn unlink(bits: u64) -> Option<BlockId> {
    if bits == 0 { None } else { Some(BlockId(bits - 1)) }
}

/// Ones at the multiples of 2^order, for orders 0 to 6.
const ALIGNED: [u64; 7] = [
    u64::MAX,
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
    1,
];

/// Returns a word with a one where an aligned run of 2^`order` ones starts in `word`; `order` is
/// below 6.
fn runs(word: u64, order: usize) -> u64 {
    starts(word, order) & ALIGNED[order]
}

/// Returns a word with a one where a run of 2^`order` ones starts, aligned or not; `order` is below
/// 6.
fn starts(word: u64, order: usize) -> u64 {
    (0..order).fold(word, |found, step| found & found >> (1 << step))
}

/// The bits of a run of 2^`order` frames inside one word; `order` is below 6.
const fn mask(order: u32) -> u64 {
    (1 << (1u32 << order)) - 1
}

/// Whether taking a run breaks a larger one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fit {
    Exact,
    Loose,
}

/// Takes at most `most` aligned runs of 2^`order` set bits out of `word`. `fit` tells whether a run
/// may be part of a larger one. Returns the rest of the word and the number of runs. `each` gets
/// each run's position.
fn take_of(word: u64, order: usize, fit: Fit, most: u64, mut each: impl FnMut(u64)) -> (u64, u64) {
    let starts = starts(word, order);
    let found = starts & ALIGNED[order];
    let mut chosen = match fit {
        Fit::Loose => found,
        Fit::Exact => {
            let larger = starts & starts >> (1u32 << order) & ALIGNED[order + 1];
            found & !(larger | larger << (1u32 << order))
        }
    };
    let (mut rest, mut taken) = (word, 0);
    while chosen != 0 && taken < most {
        let at = chosen.trailing_zeros();
        rest &= !(mask(order as u32) << at);
        chosen &= chosen - 1;
        each(u64::from(at));
        taken += 1;
    }
    (rest, taken)
}

/// Takes at most `most` aligned runs of 2^`order` ones out of a bitmap, for orders up to 8; first
/// those that are not part of a larger run. If fewer are taken, there are no more. `each` gets each
/// run's index in frames.
pub(crate) fn take_runs(
    bitmap: &[AtomicU64; BITMAP_WORDS],
    order: u32,
    most: u64,
    mut each: impl FnMut(u64),
) -> u64 {
    let mut taken = 0;
    if order >= 6 {
        // The same search as below, with one bit per word.
        let mut full =
            bitmap.iter().rev().fold(0, |full, word| full << 1 | u64::from(word.get() == u64::MAX));
        for fit in [Fit::Exact, Fit::Loose] {
            let (rest, got) = take_of(full, order as usize - 6, fit, most - taken, |first| {
                bitmap[first as usize..][..1 << (order - 6)].iter().for_each(|word| word.set(0));
                each(first * 64);
            });
            (full, taken) = (rest, taken + got);
        }
        return taken;
    }
    for fit in [Fit::Exact, Fit::Loose] {
        for (index, word) in (0..).zip(bitmap) {
            if taken == most {
                return taken;
            }
            let bits = word.get();
            if bits != 0 {
                let (rest, got) =
                    take_of(bits, order as usize, fit, most - taken, |at| each(index * 64 + at));
                word.set(rest);
                taken += got;
            }
        }
    }
    taken
}

/// Frees a run. Returns the order of the largest aligned run that contains it now; `None`, without
/// a change, if one of its frames was free already.
#[must_use]
pub(crate) fn put_run(bitmap: &[AtomicU64; BITMAP_WORDS], index: u64, order: u32) -> Option<u32> {
    let (first, at) = (index as usize / 64, index % 64);
    if order >= 6 {
        let words = &bitmap[first..][..1 << (order - 6)];
        if words.iter().any(|word| word.get() != 0) {
            return None;
        }
        words.iter().for_each(|word| word.set(u64::MAX));
        return Some(merged_words(bitmap, first, order));
    }
    let (bits, run) = (bitmap[first].get(), mask(order) << at);
    if bits & run != 0 {
        return None;
    }
    let bits = bits | run;
    bitmap[first].set(bits);
    let mut merged = order;
    while merged < 6 {
        let buddy = mask(merged) << (at & !(mask_of_index(merged)) ^ 1 << merged);
        if bits & buddy != buddy {
            return Some(merged);
        }
        merged += 1;
    }
    Some(merged_words(bitmap, first, merged))
}

/// The bits of an index inside a run of 2^`order`.
const fn mask_of_index(order: u32) -> u64 {
    (1 << order) - 1
}

/// The order of the largest aligned run of free words around word `first`, which is in one of
/// 2^`order` frames (6 or more).
fn merged_words(bitmap: &[AtomicU64; BITMAP_WORDS], first: usize, order: u32) -> u32 {
    let grows = |order: &u32| {
        let words = 1 << (order - 6);
        let buddy = ((first / words) ^ 1) * words;
        *order < PAGEBLOCK_ORDER && bitmap[buddy..][..words].iter().all(|word| word.get() == u64::MAX)
    };
    (order..=PAGEBLOCK_ORDER).find(|order| !grows(order)).unwrap_or(PAGEBLOCK_ORDER)
}

/// Returns the number of aligned runs of each order 0 to 9 in the bitmap, counted as buddies: each
/// free frame counts once, in the largest aligned run it is in.
pub(crate) fn count_runs(bitmap: &[AtomicU64; BITMAP_WORDS]) -> [u64; 10] {
    let mut counts = [0; 10];
    let mut full = 0u64;
    for (index, word) in bitmap.iter().enumerate() {
        let bits = word.get();
        if bits == u64::MAX {
            full |= 1 << index;
            continue;
        }
        let mut left = bits;
        for order in (0..6).rev() {
            let mut found = runs(left, order);
            counts[order] += u64::from(found.count_ones());
            while found != 0 {
                left &= !(mask(order as u32) << found.trailing_zeros());
                found &= found - 1;
            }
        }
    }
    for order in (0..4).rev() {
        let group = (1u64 << (1 << order)) - 1;
        for at in (0..8).step_by(1 << order) {
            if full >> at & group == group {
                counts[6 + order] += 1;
                full &= !(group << at);
            }
        }
    }
    counts
}

/// Make a bitmap all free.
pub(crate) fn fill(bitmap: &[AtomicU64; BITMAP_WORDS]) {
    bitmap.iter().for_each(|word| word.set(u64::MAX));
}

const _: () = assert!(BITMAP_WORDS * 64 == PAGEBLOCK_FRAMES as usize);

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::rng::Rng;

    /// The largest order whose aligned run around `index` is free, computed frame by frame.
    fn largest(bitmap: &[AtomicU64; BITMAP_WORDS], index: u64) -> u32 {
        let free = |n: u64| bitmap[n as usize / 64].get() & 1 << (n % 64) != 0;
        let whole =
            |order: &u32| (index >> order << order..(index >> order << order) + (1 << order)).all(free);
        (0..=PAGEBLOCK_ORDER).rev().find(whole).unwrap_or(0)
    }

    #[test]
    fn runs_come_out_aligned_and_whole_and_merge_again() {
        let bitmap = [const { AtomicU64::new(u64::MAX) }; BITMAP_WORDS];
        let mut rng = Rng::new(5);
        let mut held = std::vec::Vec::new();
        for _ in 0..100_000 {
            if rng.below(2) == 0 {
                let (order, most) = (rng.below(9) as u32, 1 + rng.below(3));
                let counts = count_runs(&bitmap);
                let larger = counts.iter().enumerate().skip(order as usize + 1);
                let had = counts[order as usize] + larger.map(|(o, n)| n << (o as u32 - order)).sum::<u64>();
                let before = held.len();
                let taken = take_runs(&bitmap, order, most, |index| held.push((index, order)));
                assert_eq!(
                    (taken, held.len() - before),
                    (had.min(most), had.min(most) as usize),
                    "order {order}"
                );
                assert!(held[before..].iter().all(|(index, _)| index % (1 << order) == 0));
                // No larger run may be broken while there are enough runs of this size.
                let broken =
                    counts[order as usize + 1..].iter().ne(&count_runs(&bitmap)[order as usize + 1..]);
                assert_eq!(broken, taken > counts[order as usize], "order {order}");
            } else if !held.is_empty() {
                let (index, order) = held.swap_remove(rng.below(held.len() as u64) as usize);
                assert_eq!(
                    put_run(&bitmap, index, order),
                    Some(largest(&bitmap, index)),
                    "{index} order {order}"
                );
                assert_eq!(put_run(&bitmap, index, order), None, "twice");
            }
            let counted: u64 =
                count_runs(&bitmap).iter().enumerate().map(|(order, count)| count << order).sum();
            assert_eq!(counted + held.iter().map(|(_, order)| 1 << order).sum::<u64>(), 512);
        }
    }
}
