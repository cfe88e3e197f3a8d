//! Taking blocks of orders 0 to 8 out of split pageblocks: which pageblock, and which of its
//! frames.
//!
//! Everything here happens under an arena's lock.

use core::sync::atomic::AtomicU64;

use freehold_frame::{Owner, Pressure};
use freehold_machine::{Cpus, PAGEBLOCK_FRAMES, PAGEBLOCK_ORDER};

use crate::arena::{Arena, HeldArena};
use crate::block::{self, BITMAP_WORDS, BlockId, BlockState};
use crate::output::{Draw, OutputSlice};
use crate::place::wants_balance;
use crate::rng::Rng;
use crate::word::Plain;
use crate::zone::Zone;

/// Number of split blocks of one bucket that are searched for a run of order 1 to 8 before a new
/// block is opened.
pub(crate) const CANDIDATES: usize = 6;

/// How far to look for a run in split blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effort {
    /// A few candidates: opening a new block is cheap.
    Near,
    /// Every block: the alternative is failure.
    Far,
}

/// Request for blocks out of split pageblocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakeRequest {
    /// The owner whose pageblocks are searched.
    pub(crate) owner: Owner,
    /// The order of the blocks: 0 to 8.
    pub(crate) order: u32,
    /// The number of blocks.
    pub(crate) want: u64,
    pub(crate) effort: Effort,
    /// Whether the reserve may be used.
    pub(crate) pressure: Pressure,
}

impl Zone {
    /// Takes the requested blocks out of an arena's split pageblocks, the fullest first. Returns
    /// their number; their frames have been reserved.
    pub(crate) fn take<C: Cpus>(
        &self,
        held: &HeldArena<'_, C>,
        wanted: TakeRequest,
        draw: &mut Draw<'_, '_>,
    ) -> u64 {
        let TakeRequest { owner, order, want, effort, .. } = wanted;
        if let Some(bins) = self.bins.as_ref().filter(|_| wants_balance(&wanted)) {
            let taken = self.take_balanced(held, bins, wanted, draw);
            if taken > 0 {
                return taken;
            }
        }
        // A refill that has nearly all its blocks does not search one more pageblock.
        let enough = want - want / 8;
        let mut taken = 0;
        while taken < enough {
            let Some(block) = held.candidate(owner, order, effort) else { break };
            let old = self.blocks().state(block);
            let bitmap = self.blocks().bitmap(block);
            let (before, asked) = (draw.out.len(), want - taken);
            if order == 0 {
                self.take_frames(block, old.free(), asked, draw);
            } else {
                block::take_runs(bitmap, order, asked, |index| draw.out.push(block.start().offset(index)));
            }
            if let Some(bins) = &self.bins {
                draw.out.since(before).for_each(|frame| bins.add(old.owner(), frame, order));
            }
            let got = draw.out.len() - before;
            let new = old.with_free(old.free() - (got << order));
            // For single frames this does not follow: some may be left.
            let none_left = order > 0 && got < asked;
            held.update(block, old, if none_left { new.with_hint(order - 1) } else { new });
            taken += got;
        }
        taken
    }
    /// Number of single frames that are taken together.
    pub(crate) fn group(&self) -> u64 {
        if self.has_groups() { 1 << self.grain } else { 1 }
    }
    /// Whether frames are drawn by groups inside a pageblock.
    pub(crate) fn has_groups(&self) -> bool {
        (1..PAGEBLOCK_ORDER).contains(&self.grain)
    }
    /// Takes `want` of the `free` frames of a split block; with `rng` about that many, at least 1
    /// and never more.
    ///
    /// Without `rng` the lowest are taken. With it, every free frame has the same probability or,
    /// with a coarser grain, every group of neighbours. A list hands out its last entry first. So
    /// to get frames in order of addresses, they are added from the highest to the lowest.
    fn take_frames(&self, block: BlockId, free: u64, want: u64, draw: &mut Draw<'_, '_>) {
        let Draw { rng, out } = draw;
        let (bitmap, end) = (self.blocks().bitmap(block), out.len() + want);
        let mut frames = FramesByOrder { block, bitmap, end, out };
        match rng {
            Some(rng) if self.grain == 0 && free > want => frames.take_some(free, rng),
            Some(rng) if self.has_groups() => frames.take_groups(self.grain, rng),
            _ => frames.take_lowest(),
        }
    }
}

impl Arena {
    /// Notes that `frames` of a split block were handed out.
    pub(crate) fn note_taken(self, block: BlockId, old: BlockState, frames: u64) {
        self.update(block, old, old.with_free(old.free() - frames));
    }
}

/// Free frames of a split block that are being taken until the output has `end`.
struct FramesByOrder<'a, 'p> {
    block: BlockId,
    bitmap: &'a [AtomicU64; BITMAP_WORDS],
    end: u64,
    out: &'a mut OutputSlice<'p>,
}

impl FramesByOrder<'_, '_> {
    fn take_lowest(&mut self) {
        for index in 0..BITMAP_WORDS {
            self.emit(index, self.bitmap[index].get());
        }
    }

    /// Takes at least one and about as many of the `free` frames as requested, which is fewer than
    /// all, each with the same probability.
    fn take_some(&mut self, free: u64, rng: &mut Rng) {
        let (before, start) = (self.out.len(), rng.next() as usize);
        let chance = Chance::of(self.end - before, free);
        for step in 0..BITMAP_WORDS {
            let index = (start + step) % BITMAP_WORDS;
            let drawn = self.bitmap[index].get() & chance.draw(rng);
            self.emit(index, some_of(drawn, self.end - self.out.len(), rng));
        }
        if self.out.len() > before {
            return;
        }
        // No frame was chosen: takes one, again with equal probability.
        let mut skip = rng.below(free);
        for (index, word) in self.bitmap.iter().enumerate() {
            let ones = u64::from(word.get().count_ones());
            if skip < ones {
                self.end = before + 1;
                return self.emit(index, (0..skip).fold(word.get(), |bits, _| bits & (bits - 1)));
            }
            skip -= ones;
        }
    }

    /// Takes aligned groups of 2^`grain` (1 to 8), in random order (Fisher and Yates).
    fn take_groups(&mut self, grain: u32, rng: &mut Rng) {
        let mut groups: [u8; PAGEBLOCK_FRAMES as usize / 2] = core::array::from_fn(|n| n as u8);
        let count = (PAGEBLOCK_FRAMES >> grain) as usize;
        for left in (1..=count).rev() {
            let drawn = rng.below(left as u64) as usize;
            groups.swap(drawn, left - 1);
            let first = u64::from(groups[left - 1]) << grain;
            for index in (first..first + (1 << grain)).rev() {
                let (word, bit) = (&self.bitmap[index as usize / 64], 1 << (index % 64));
                if word.get() & bit != 0 && self.out.len() < self.end {
                    word.set(word.get() & !bit);
                    self.out.push(self.block.start().offset(index));
                }
            }
        }
    }

    /// Takes the frames of `bits`, which are free, out of word `index`.
    fn emit(&mut self, index: usize, bits: u64) {
        let word = &self.bitmap[index];
        let first = self.block.start().offset(index as u64 * 64);
        let left = self.out.push_bits(first, bits, self.end - self.out.len());
        word.set(word.get() & !(bits ^ left));
    }
}

/// A probability: a number of sixteenths (9 to 16), halved a number of times.
#[derive(Clone, Copy)]
struct Chance {
    sixteenths: u64,
    halvings: u32,
}

impl Chance {
    /// The lowest probability with which the expected number is at least `want` of `free`, which is
    /// larger. Never 1: the frames that stay would be neighbours.
    fn of(want: u64, free: u64) -> Self {
        let halvings = (free / want).ilog2();
        let sixteenths = (want << (4 + halvings)).div_ceil(free);
        Self { sixteenths: if halvings == 0 { sixteenths.min(15) } else { sixteenths }, halvings }
    }
    /// Returns a word in which each bit is 1 with this probability. Uses one random word per digit
    /// of the binary fraction, from the last digit to the first.
    fn draw(self, rng: &mut Rng) -> u64 {
        let start = if self.sixteenths == 16 { u64::MAX } else { 0 };
        let digits = self.sixteenths.trailing_zeros()..4;
        let drawn = digits.fold(start, |bits, digit| match self.sixteenths >> digit & 1 {
            0 => bits & rng.next(),
            _ => bits | rng.next(),
        });
        (0..self.halvings).fold(drawn, |bits, _| bits & rng.next())
    }
}

/// At most `most` of the ones of a word, each with the same probability.
fn some_of(bits: u64, most: u64, rng: &mut Rng) -> u64 {
    if u64::from(bits.count_ones()) <= most {
        return bits;
    }
    // Takes the first ones from a random bit on, with wrap-around.
    let turn = (rng.next() >> 58) as u32;
    let turned = bits.rotate_right(turn);
    let rest = (0..most).fold(turned, |rest, _| rest & (rest - 1));
    (turned & !rest).rotate_left(turn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_drawn_with_the_chance_that_gives_as_many_as_are_wanted() {
        let mut rng = Rng::new(11);
        for (want, free) in
            [(1, 2), (1, 512), (7, 500), (64, 512), (100, 299), (255, 511), (300, 512), (511, 512)]
        {
            let chance = Chance::of(want, free);
            let exact = (chance.sixteenths as f64 / 16.0) * 0.5f64.powi(chance.halvings as i32);
            let asked = want as f64 / free as f64;
            // A sixteenth more at most, and never all.
            assert!(
                exact >= asked.min(15.0 / 16.0) && exact < asked * 9.0 / 8.0 && exact < 1.0,
                "{want} of {free}"
            );
            let words = 20_000;
            let ones: u32 = (0..words).map(|_| chance.draw(&mut rng).count_ones()).sum();
            let bits = f64::from(words) * 64.0;
            let z = (f64::from(ones) - bits * exact) / (bits * exact * (1.0 - exact)).sqrt();
            assert!(z.abs() < 3.29, "{want} of {free}: z = {z}");
        }
    }
}
