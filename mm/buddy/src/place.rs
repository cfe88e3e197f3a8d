//! Placement by near-cache bin: which frames does a direct-mapped memory-side cache keep apart?
//!
//! In such a cache a frame has exactly one slot, its *bin*: frame number mod frames of cache. Two
//! frames of one bin that are in use together evict each other again and again, even if the rest of
//! the cache is empty. So for user memory the zone counts, for each bin, the frames of each owner,
//! and hands out frames of the bins with the fewest, drawn at random among equals. While an owner
//! fits the cache no two of its frames share a bin, at any age of memory; beyond that every bin
//! holds the same number, or one more.
//!
//! Beyond the cache, memory is taken in *laps* over all bins. Frames taken one after the other are
//! often used together, and a hot set may span the end of a lap. So the draw is among those of the
//! emptiest bins that were last opened half a lap ago or longer. Then a set of up to half the
//! cache, taken in a row, has no two frames in one bin.
//!
//! Counts are bytes, 1 per frame of cache and owner, plus a sum and a date per pageblock of cache:
//! 2.06 bytes per 4 KiB of cache in all. Prior art: page colouring (Kessler and Hill 1992),
//! zonesort, the static policy of Johnny Cache (OSDI 2023), which all work on coarser bins, in
//! address order, or by moving pages afterwards.
//!
//! A frame counts for the owner of its pageblock, even if another owner takes it because nothing
//! else is left. So in a small machine whose memory was full, the bins of some hundred frames may
//! stay unused. Then 0.1 to 6.6% of a heap as large as the cache share a bin (32 MiB before 256
//! MiB); with 256 MiB before 2 GiB it is 0.02%.
//!
//! A zone with bins has one [arena](crate::arena), and everything here happens under its lock.

use core::sync::atomic::AtomicU64;

use freehold_frame::{Owner, Side};
use freehold_machine::topology::Indexing;
use freehold_machine::{Cpus, NodeId, PAGE_SIZE, PAGEBLOCK_FRAMES, PAGEBLOCK_ORDER, Pfn, Topology};

use crate::arena::HeldArena;
use crate::block::{BITMAP_WORDS, BUCKETS, BlockId, Fill};
use crate::options::Options;
use crate::output::Draw;
use crate::rng::Rng;
use crate::take::{Effort, TakeRequest};
use crate::word::Plain;
use crate::zone::Zone;

/// Number of owners that are counted.
const CLASSES: usize = 2;
/// Words of counts for a pageblock of cache: a byte for each frame.
const COUNT_WORDS: usize = PAGEBLOCK_FRAMES as usize / 8;
/// Number of bins that are searched for those with the fewest frames.
const LOOK: u64 = 4096;
/// Number of bins with the fewest frames from which one is drawn.
const DRAWN_FROM: u64 = 64;
/// Number of split pageblocks that are tried before a new one is opened.
const SHORTLIST: usize = 16;
/// Largest ratio of memory to cache: beyond it a count might not fit its byte.
const MOST_ALIASES: u64 = 200;
/// A refill tries this many levels of use, from the lowest up. Then it ignores balance.
const SLACK: u64 = 2;

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// The bins of one zone.
#[derive(Debug)]
pub(crate) struct Bins {
    /// Size of the cache in pageblocks.
    blocks: u64,
    counts: [&'static [AtomicU64]; CLASSES],
    loads: [&'static [AtomicU64]; CLASSES],
    /// For each pageblock of cache, when its bin was last opened: the number of pageblocks opened
    /// until then.
    dates: [&'static [AtomicU64]; CLASSES],
    openings: [AtomicU64; CLASSES],
    totals: [AtomicU64; CLASSES],
    /// For each owner, the pageblock that was opened last.
    opened: [AtomicU64; CLASSES],
}

/// The index of an owner's counts.
const fn counted(owner: Owner) -> Option<usize> {
    match owner {
        Owner::Anon => Some(0),
        Owner::PageCache => Some(1),
        _ => None,
    }
}

impl Bins {
    /// Size in pageblocks of the direct-mapped cache in front of `node`. 0 if placement does not
    /// apply: there is no such cache, `options` turn it off, or the cache is not a whole number of
    /// pageblocks or is far smaller than memory.
    pub(crate) fn cache_blocks(topology: &Topology, node: NodeId, options: &Options) -> u64 {
        if !options.balances() {
            return 0;
        }
        let bytes = (PAGE_SIZE as u64) << PAGEBLOCK_ORDER;
        let direct = topology.near_caches(node).find(|cache| cache.indexing == Indexing::Direct);
        let ranges = topology.ranges().iter().filter(|range| range.node == node);
        let memory: u64 = ranges.map(|range| range.frames.len()).sum::<u64>() / PAGEBLOCK_FRAMES;
        direct
            .filter(|cache| cache.size.is_multiple_of(bytes) && memory <= cache.size / bytes * MOST_ALIASES)
            .map_or(0, |cache| cache.size / bytes)
    }
    /// Words of metadata for bins of so many pageblocks of cache.
    pub(crate) const fn words(cache_blocks: u64) -> usize {
        CLASSES * cache_blocks as usize * (COUNT_WORDS + 2)
    }
    pub(crate) fn new(cache_blocks: u64, words: &'static [AtomicU64]) -> Option<Self> {
        let (loads, words) = words.split_at(CLASSES * cache_blocks as usize);
        let (dates, counts) = words.split_at(CLASSES * cache_blocks as usize);
        let half = |words: &'static [AtomicU64]| {
            let (first, second) = words.split_at(words.len() / CLASSES);
            [first, second]
        };
        (cache_blocks > 0).then(|| Self {
            blocks: cache_blocks,
            counts: half(counts),
            loads: half(loads),
            dates: half(dates),
            openings: Default::default(),
            totals: Default::default(),
            opened: Default::default(),
        })
    }
    fn bin(&self, block: BlockId) -> usize {
        (block.0 % self.blocks) as usize
    }
    /// The words with an owner's counts for the bins of a pageblock.
    fn counts(&self, which: usize, block: BlockId) -> &[AtomicU64] {
        &self.counts[which][self.bin(block) * COUNT_WORDS..][..COUNT_WORDS]
    }
    fn load(&self, which: usize, bin: usize) -> u64 {
        self.loads[which][bin].get()
    }
    /// Number of pageblocks opened since the last one in this bin.
    fn age(&self, which: usize, bin: usize) -> u64 {
        match self.dates[which][bin].get() {
            0 => u64::MAX,
            date => self.openings[which].get() - date,
        }
    }
    /// Notes that a pageblock is opened for an owner.
    pub(crate) fn note_opened(&self, owner: Owner, block: BlockId) {
        let Some(which) = counted(owner) else { return };
        self.openings[which].add(1);
        self.dates[which][self.bin(block)].set(self.openings[which].get());
    }
    /// Counts that `owner` has got, or freed, a run of 2^`order` frames (up to a pageblock).
    fn change(&self, owner: Owner, frame: Pfn, order: u32, change: fn(&AtomicU64, u64)) {
        let Some(which) = counted(owner) else { return };
        let block = BlockId::of(frame);
        let index = (frame.0 - block.start().0) as usize;
        let words = &self.counts(which, block)[index / 8..];
        if order < 3 {
            let run = ONES >> (64 - (8 << order));
            change(&words[0], run << (8 * (index % 8)));
        } else {
            words[..1 << (order - 3)].iter().for_each(|word| change(word, ONES));
        }
        change(&self.loads[which][self.bin(block)], 1 << order);
        change(&self.totals[which], 1 << order);
    }
    pub(crate) fn add(&self, owner: Owner, frame: Pfn, order: u32) {
        self.change(owner, frame, order, Plain::add);
    }
    pub(crate) fn sub(&self, owner: Owner, frame: Pfn, order: u32) {
        self.change(owner, frame, order, Plain::sub);
    }
    /// Whether a pageblock that is wholly free has a frame whose bin holds at most `level` frames
    /// of the owner.
    fn has_room(&self, which: usize, block: BlockId, level: u64) -> bool {
        (0..BITMAP_WORDS).any(|word| self.eligible(which, block, word, level.min(127)) != 0)
    }
    /// The frames, among the 64 from `word` * 64 on, whose bins hold at most `level` frames of the
    /// owner; `level` is below 128.
    fn eligible(&self, which: usize, block: BlockId, word: usize, level: u64) -> u64 {
        let counts = &self.counts(which, block)[word * 8..][..8];
        counts.iter().enumerate().fold(0, |mask, (byte, counts)| {
            let counts = counts.get();
            // A byte's high bit stays set in the difference if the byte is above the level.
            let above = (((counts | HIGH) - ONES * (level + 1)) | counts) & HIGH;
            let fits = !above & HIGH;
            // Gather the eight high bits into one byte.
            mask | (((fits >> 7).wrapping_mul(0x0102_0408_1020_4080)) >> 56) << (8 * byte)
        })
    }
}

/// Bins that hold at most so many frames of an owner.
struct Level<'a, 'h, C: Cpus> {
    held: &'a HeldArena<'h, C>,
    bins: &'a Bins,
    /// The owner, by its counts.
    which: usize,
    level: u64,
}

impl Zone {
    /// A free pageblock of a side in a bin where `owner` has the fewest frames and which was not
    /// opened for half a lap, drawn at random among such ones.
    pub(crate) fn draw_balanced(
        &self,
        bins: &Bins,
        side: Side,
        owner: Owner,
        mut rng: Option<&mut Rng>,
    ) -> Option<BlockId> {
        let which = counted(owner)?;
        if self.set(side).len() == 0 {
            return None;
        }
        let aliases = self.blocks().count().div_ceil(bins.blocks);
        let (first_bin, first_alias) =
            rng.as_deref_mut().map_or((0, 0), |rng| (rng.below(bins.blocks), rng.below(aliases)));
        let window = || (0..bins.blocks.min(LOOK)).map(|step| (first_bin + step) % bins.blocks);
        let free = |bin: u64| {
            (0..aliases).map(|n| BlockId(bin + (first_alias + n) % aliases * bins.blocks)).find(|block| {
                block.0 < self.blocks().count()
                    && self.blocks().state(*block).fill() == Fill::Free(side)
                    && self.is_free(*block)
            })
        };
        let mut least = u64::MAX;
        for bin in window() {
            let load = bins.load(which, bin as usize);
            if load < least && free(bin).is_some() {
                least = load;
            }
        }
        let (mut drawn, mut count) = (None, 0);
        // The one opened longest ago is used if none is old enough.
        let mut oldest: Option<(u64, BlockId)> = None;
        for bin in window().filter(|bin| bins.load(which, *bin as usize) == least) {
            let Some(block) = free(bin) else { continue };
            let age = bins.age(which, bin as usize);
            if oldest.is_none_or(|(most, _)| most < age) {
                oldest = Some((age, block));
            }
            if age > bins.blocks / 2 {
                count += 1;
                if rng.as_deref_mut().map_or(count == 1, |rng| rng.below(count) == 0) {
                    drawn = Some(block);
                }
            }
            if count == DRAWN_FROM {
                break;
            }
        }
        drawn.or(oldest.map(|(_, block)| block))
    }

    /// Takes single frames whose bins hold the fewest of the owner. Returns 0 if no bin is
    /// suitable; then the caller takes any frame.
    pub(crate) fn take_balanced<C: Cpus>(
        &self,
        held: &HeldArena<'_, C>,
        bins: &Bins,
        wanted: TakeRequest,
        draw: &mut Draw<'_, '_>,
    ) -> u64 {
        let TakeRequest { owner, want, .. } = wanted;
        let Some(which) = counted(owner) else { return 0 };
        let floor = bins.totals[which].get() / (bins.blocks * PAGEBLOCK_FRAMES);
        for level in floor..floor + SLACK {
            let at = Level { held, bins, which, level };
            let mut taken = 0;
            for block in self.shortlist(held, bins, which, owner).into_iter().flatten() {
                taken += self.take_at_level(&at, block, want - taken, draw);
                if taken * 4 >= want {
                    return taken;
                }
            }
            // A new pageblock in the emptiest bin, if that bin has room at this level.
            while taken * 4 < want
                && self.may_open(&wanted)
                && let Some(block) = self.open_at_level(&at, owner, draw.rng.as_deref_mut())
            {
                bins.opened[which].set(block.0 + 1);
                taken += self.take_at_level(&at, block, want - taken, draw);
            }
            if taken > 0 {
                return taken;
            }
        }
        0
    }
    /// Opens a pageblock that has a frame at the level. Returns `None` without a change if the
    /// drawn pageblock has no such frame: it would stay split with no frame in use.
    fn open_at_level<C: Cpus>(
        &self,
        at: &Level<'_, '_, C>,
        owner: Owner,
        rng: Option<&mut Rng>,
    ) -> Option<BlockId> {
        let sets = self.lock_inside(at.held);
        let block = self.draw_balanced(at.bins, owner.side(), owner, rng)?;
        if !at.bins.has_room(at.which, block, at.level) {
            return None;
        }
        at.bins.note_opened(owner, block);
        self.take_at(&sets, owner.side(), self.position_of(owner.side(), block));
        self.begin_split(at.held, sets, block, owner);
        Some(block)
    }
    /// The pageblock opened last, then the fullest ones. Leaving pageblocks are excluded, since
    /// their frames are no longer handed out.
    fn shortlist<C: Cpus>(
        &self,
        held: &HeldArena<'_, C>,
        bins: &Bins,
        which: usize,
        owner: Owner,
    ) -> [Option<BlockId>; SHORTLIST] {
        let mut list = [None; SHORTLIST];
        let opened = bins.opened[which].get().checked_sub(1).map(BlockId).filter(|block| {
            let state = self.blocks().state(*block);
            state.is_split() && !state.is_leaving() && state.owner() == owner && state.free() > 0
        });
        list[0] = opened;
        let mut len = 1;
        for bucket in 0..BUCKETS {
            let mut next = held.first_of(owner, bucket);
            while let Some(block) = next
                && len < SHORTLIST
            {
                if opened != Some(block) {
                    list[len] = Some(block);
                    len += 1;
                }
                next = self.blocks().links(block).0;
            }
        }
        list
    }
    /// Takes up to `want` frames of a split pageblock whose bins are at the level or below.
    fn take_at_level<C: Cpus>(
        &self,
        at: &Level<'_, '_, C>,
        block: BlockId,
        want: u64,
        draw: &mut Draw<'_, '_>,
    ) -> u64 {
        let &Level { held, bins, which, level } = at;
        let old = self.blocks().state(block);
        let bitmap = self.blocks().bitmap(block);
        let start = draw.rng.as_deref_mut().map_or(0, |rng| rng.below(BITMAP_WORDS as u64) as usize);
        let mut taken = 0;
        for step in 0..BITMAP_WORDS {
            let index = (start + step) % BITMAP_WORDS;
            let mut left = bitmap[index].get();
            let mut fit = left & bins.eligible(which, block, index, level.min(127));
            while fit != 0 && taken < want {
                let at = fit.trailing_zeros();
                let frame = block.start().offset(index as u64 * 64 + u64::from(at));
                bins.add(old.owner(), frame, 0);
                draw.out.push(frame);
                left &= !(1 << at);
                fit &= fit - 1;
                taken += 1;
            }
            bitmap[index].set(left);
        }
        held.note_taken(block, old, taken);
        taken
    }
    /// Counts a split pageblock's used frames for its new owner.
    pub(crate) fn recount(&self, bins: &Bins, block: BlockId, from: Owner, to: Owner) {
        for (index, word) in self.blocks().bitmap(block).iter().enumerate() {
            let mut used = !word.get();
            while used != 0 {
                let frame = block.start().offset(index as u64 * 64 + u64::from(used.trailing_zeros()));
                bins.sub(from, frame, 0);
                bins.add(to, frame, 0);
                used &= used - 1;
            }
        }
    }
}

/// Whether a request is served with balance: it is for single frames, and not for the last
/// reserves.
pub(crate) const fn wants_balance(wanted: &TakeRequest) -> bool {
    wanted.order == 0 && matches!(wanted.effort, Effort::Near) && counted(wanted.owner).is_some()
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn eligible_frames_are_those_at_or_below_the_level() {
        let words: Vec<_> = (0..Bins::words(2)).map(|_| AtomicU64::new(0)).collect();
        let bins = Bins::new(2, words.leak()).unwrap();
        let block = BlockId(5); // Bin 1.
        for n in 0..64 {
            (0..n % 5).for_each(|_| bins.add(Owner::Anon, block.start().offset(128 + n), 0));
        }
        for level in 0..6 {
            let expected = (0..64).filter(|n| n % 5 <= level).fold(0u64, |mask, n| mask | 1 << n);
            assert_eq!(bins.eligible(0, BlockId(3), 2, level), expected, "level {level}");
            assert_eq!(bins.eligible(1, BlockId(3), 2, level), u64::MAX, "the other owner has none");
        }
        // Runs of every order count once per frame, and their counts are removed completely.
        for order in 0..=9 {
            bins.add(Owner::PageCache, BlockId(4).start(), order);
            assert_eq!(bins.load(1, 0), 1 << order);
            let fits: u32 = (0..8).map(|word| bins.eligible(1, BlockId(4), word, 0).count_ones()).sum();
            assert_eq!(fits, 512 - (1 << order));
            bins.sub(Owner::PageCache, BlockId(4).start(), order);
        }
        assert!(bins.counts[1].iter().all(|word| word.get() == 0));
    }
}
