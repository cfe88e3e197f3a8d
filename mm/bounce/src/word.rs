//! Which pages of a segment are free, and which segments may have a free page: words that change by
//! compare-exchange.
//!
//! **Pages.** A segment has up to 64 pages and one word: a set bit is a free page. A page belongs
//! to the thread that cleared its bit until that thread sets it again. Taking is an acquire and
//! freeing a release, so a holder sees all stores of earlier holders. [`FreePages::retire`] takes
//! all pages of an idle segment at once: then its memory has no other holder and can be removed;
//! [`FreePages::install`] puts new memory there. A stale read of the word does no harm: the
//! compare-exchange decides, and the pages' data is read after it.
//!
//! **Index.** One bit per segment, set if the segment may have a free page, and one bit per word of
//! such bits. A search follows set bits only, so it does not get longer with the number of full
//! segments. Bits are cleared late, by a search that finds the segment full, so that a segment that
//! repeatedly fills and empties costs no stores. Clearing reads the segment's word again
//! afterwards, and freeing reads the index bit after it has set the page's bit. All are
//! sequentially consistent accesses with a single order. So at least one of the two sees the
//! other's store, and no free page is forgotten.
//!
//! `tests/loom.rs` tries the interleavings of this file, and broken variants of it.

use crate::atomic::{AtomicU64, Ordering};

/// Pages in a segment.
pub const SEGMENT_PAGES: u32 = u64::BITS;
/// Words of the index.
const WORDS: usize = 64;
/// Largest number of segments.
pub const MAX_SEGMENTS: usize = WORDS * 64;

/// Adjacent pages of one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The first.
    pub first: u32,
    /// Number of pages; 1..=64.
    pub count: u32,
}

impl Span {
    /// Its bits.
    pub const fn mask(self) -> u64 {
        (u64::MAX >> (u64::BITS - self.count)) << self.first
    }
    /// The pages after `part`, which begins at the same page as this span.
    pub const fn after(self, part: Self) -> Self {
        Self { first: self.first + part.count, count: self.count - part.count }
    }
    /// The runs of the set bits of `pages`, upwards.
    pub fn runs(mut pages: u64) -> impl Iterator<Item = Self> {
        core::iter::from_fn(move || {
            let first = pages.trailing_zeros();
            let count = pages.checked_shr(first)?.trailing_ones();
            let run = Self { first, count };
            pages &= !run.mask();
            Some(run)
        })
    }
}

/// Kind of run that a search looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    /// All pages in one run.
    Whole,
    /// As [`Fit::Longest`], but no fewer pages than this.
    AtLeast(u32),
    /// The longest free run, rounded down to a power of two, but no more than requested.
    Longest,
}

/// The free pages of a segment.
pub struct FreePages(AtomicU64);

impl FreePages {
    /// A segment without memory.
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }
    /// Adds `count` pages, all free. Only this caller installs or retires.
    pub fn install(&self, count: u32) {
        self.0.store(Span { first: 0, count }.mask(), Ordering::SeqCst);
    }
    /// Takes all `count` pages if all of them are free.
    pub fn retire(&self, count: u32) -> bool {
        let all = Span { first: 0, count }.mask();
        self.0.compare_exchange(all, 0, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
    /// The bits; they may be out of date.
    pub fn bits(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
    /// Takes up to `wanted` adjacent pages. Their start, their number and `wanted` are multiples of
    /// `step`, a power of two up to 64.
    pub fn take(&self, wanted: u32, step: u32, fit: Fit) -> Option<Span> {
        self.race(wanted, step, fit).0
    }
    /// As [`FreePages::take`]. Also returns how often another thread changed the word first.
    pub fn race(&self, wanted: u32, step: u32, fit: Fit) -> (Option<Span>, u32) {
        let (mut free, mut races) = (self.0.load(Ordering::Relaxed), 0);
        loop {
            let Some(span) = find(free, wanted, step, fit) else { return (None, races) };
            let left = free & !span.mask();
            match self.0.compare_exchange_weak(free, left, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return (Some(span), races),
                Err(now) => (free, races) = (now, races + 1),
            }
        }
    }
    /// Takes the free pages among `wanted`; returns them.
    pub fn claim(&self, wanted: u64) -> u64 {
        let mut free = self.0.load(Ordering::Relaxed);
        loop {
            let claimed = free & wanted;
            if claimed == 0 {
                return 0;
            }
            match self.0.compare_exchange_weak(free, free & !wanted, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return claimed,
                Err(now) => free = now,
            }
        }
    }
    /// Frees pages that [`FreePages::take`] returned, or a part of them.
    pub fn give(&self, span: Span) {
        let before = self.0.fetch_or(span.mask(), Ordering::SeqCst);
        debug_assert_eq!(before & span.mask(), 0, "pages are given back once");
    }
}

/// The bits whose numbers are multiples of `step`.
const fn multiples(step: u32) -> u64 {
    if step == u64::BITS { 1 } else { u64::MAX / ((1 << step) - 1) }
}

/// Finds adjacent pages among the set bits of `free`; see [`FreePages::take`].
fn find(free: u64, wanted: u32, step: u32, fit: Fit) -> Option<Span> {
    let run_of = |count: u32| {
        // Bit i of `starts`: pages i..i+have are free. Zeroes shifted in from the top keep runs
        // inside.
        let (mut starts, mut have) = (free, 1);
        while have < count && starts != 0 {
            let step = have.min(count - have);
            starts &= starts >> step;
            have += step;
        }
        starts &= multiples(step);
        (starts != 0).then(|| Span { first: starts.trailing_zeros(), count })
    };
    let mut count = wanted.min(SEGMENT_PAGES);
    loop {
        let span = run_of(count);
        if span.is_some() || fit == Fit::Whole || count == step {
            return span;
        }
        count = if count.is_power_of_two() { count / 2 } else { 1 << count.ilog2() };
        if matches!(fit, Fit::AtLeast(least) if count < least) {
            return None;
        }
    }
}

/// Which segments may have a free page. See the module's head.
pub struct Index {
    words: [AtomicU64; WORDS],
    top: AtomicU64,
}

impl Index {
    /// Returns an index in which no segment has a free page.
    pub fn new() -> Self {
        Self { words: core::array::from_fn(|_| AtomicU64::new(0)), top: AtomicU64::new(0) }
    }

    /// A page of `segment` has become free: its bit in the segment's word is set.
    #[inline]
    pub fn note_free(&self, segment: usize) {
        let (word, bit) = (segment / 64, 1 << (segment % 64));
        if self.words[word].load(Ordering::SeqCst) & bit == 0 {
            self.words[word].fetch_or(bit, Ordering::SeqCst);
            self.note_word(word);
        }
    }

    fn note_word(&self, word: usize) {
        if self.top.load(Ordering::SeqCst) & 1 << word == 0 {
            self.top.fetch_or(1 << word, Ordering::SeqCst);
        }
    }

    /// A search found no free page in `segment`, whose word is `pages`.
    pub fn note_full(&self, segment: usize, pages: &FreePages) {
        let (word, bit) = (segment / 64, 1 << (segment % 64));
        let before = self.words[word].fetch_and(!bit, Ordering::SeqCst);
        if pages.bits() != 0 {
            self.note_free(segment);
        } else if before & !bit == 0 {
            self.top.fetch_and(!(1 << word), Ordering::SeqCst);
            if self.words[word].load(Ordering::SeqCst) != 0 {
                self.note_word(word);
            }
        }
    }

    /// The first segment from `start` on that may have a free page; `None` after the last.
    pub fn next(&self, start: usize) -> Option<usize> {
        let word = start / 64;
        if word >= WORDS {
            return None;
        }
        let here = self.words[word].load(Ordering::SeqCst) & (u64::MAX << (start % 64));
        if here != 0 {
            return Some(word * 64 + here.trailing_zeros() as usize);
        }
        let mut later = self.top.load(Ordering::SeqCst) & (u64::MAX << word) & !(1 << word);
        while later != 0 {
            let word = later.trailing_zeros() as usize;
            let bits = self.words[word].load(Ordering::SeqCst);
            if bits != 0 {
                return Some(word * 64 + bits.trailing_zeros() as usize);
            }
            later &= later - 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition: try every run.
    fn slowly(free: u64, wanted: u32, step: u32) -> Option<Span> {
        let spans = (0..64).step_by(step as usize).filter(|first| first + wanted <= 64);
        let mut spans = spans.map(|first| Span { first, count: wanted });
        spans.find(|span| free & span.mask() == span.mask())
    }

    #[test]
    fn runs_have_all_bits_once_upwards() {
        let mut bits = 0x9e37_79b9_7f4a_7c15_u64;
        for round in 0..2000u32 {
            bits = bits.rotate_left(7).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            for bits in [bits, bits | bits << 1 | bits << 3, u64::MAX << (round % 64), !0 >> (round % 64), 0]
            {
                let (mut all, mut end) = (0, None);
                for run in Span::runs(bits) {
                    assert!(end.is_none_or(|end| run.first > end) && run.count > 0);
                    (all, end) = (all | run.mask(), Some(run.first + run.count));
                }
                assert_eq!(all, bits);
            }
        }
    }

    #[test]
    fn a_search_finds_the_first_run_of_every_length_and_alignment() {
        let mut free = 0x9e37_79b9_7f4a_7c15_u64;
        for round in 0..2000 {
            free = free.rotate_left(7).wrapping_mul(0xbf58_476d_1ce4_e5b9) | u64::MAX << (round % 64);
            for step in (0..=6).map(|log2| 1 << log2) {
                for wanted in (step..=64).step_by(step as usize) {
                    let found = find(free, wanted, step, Fit::Whole);
                    assert_eq!(found, slowly(free, wanted, step), "{free:#x} {wanted} {step}");
                    let longest = find(free, wanted, step, Fit::Longest);
                    assert_eq!(longest.is_some(), slowly(free, step, step).is_some());
                    assert!(longest.is_none_or(|span| span.first % step == 0 && span.count % step == 0));
                    let long = find(free, wanted, step, Fit::AtLeast(5));
                    assert_eq!(long, longest.filter(|span| span.count >= wanted.min(5)));
                }
            }
        }
    }
}
