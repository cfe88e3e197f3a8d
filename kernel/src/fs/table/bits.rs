//! Which numbers of a table are taken: a bit for each, and for each word of 64 a bit that says that
//! it is full, and one that says that it is not empty.
//!
//! So the next free number, the next taken one and the last one are found in a 4096th of the steps
//! that a walk over all numbers takes (Linux: `open_fds` and `full_fds_bits`).

use freehold_collections::{AllocError, Vec};

/// How many numbers a word of the bitmap stands for.
const WORD: usize = 64;

/// A set of the numbers below a limit that grows. The first 64 need no memory.
#[derive(Default)]
#[repr(C)]
pub(super) struct NumberBits {
    /// The first field: see [`super::Slots`].
    first: u64,
    /// The words after the first.
    taken: Vec<u64>,
    /// Words with all bits set, the first one not among them.
    full: Vec<u64>,
    /// Words with any bit set, the first one not among them.
    used: Vec<u64>,
}

/// The first bit from `from` on, in the words that `word` returns, up to word `end`.
fn first_bit(from: usize, end: usize, word: impl Fn(usize) -> u64) -> Option<usize> {
    let mut mask = u64::MAX << (from % WORD);
    for at in from / WORD..end {
        let found = word(at) & mask;
        if found != 0 {
            return Some(at * WORD + found.trailing_zeros() as usize);
        }
        mask = u64::MAX;
    }
    None
}

impl NumberBits {
    /// Lets the numbers below `limit` be put in.
    ///
    /// # Errors
    /// [`AllocError`]; the set is as it was.
    pub fn make_room(&mut self, limit: usize) -> Result<(), AllocError> {
        let words = limit.div_ceil(WORD);
        if words < 2 {
            return Ok(());
        }
        let summary = words.div_ceil(WORD);
        for (list, length) in
            [(&mut self.full, summary), (&mut self.used, summary), (&mut self.taken, words - 1)]
        {
            let more = length.saturating_sub(list.len());
            list.try_extend(core::iter::repeat_n(0, more))?;
        }
        Ok(())
    }

    /// Returns the number of words.
    fn len(&self) -> usize {
        self.taken.len() + 1
    }

    #[inline]
    fn word(&self, at: usize) -> u64 {
        if at == 0 { self.first } else { self.taken[at - 1] }
    }

    /// Whether the numbers below `limit` can be put in.
    pub fn has_room(&self, limit: usize) -> bool {
        limit <= self.len() * WORD
    }

    /// Whether `number`, for which there is room, is in the set.
    pub fn contains(&self, number: usize) -> bool {
        self.word(number / WORD) & 1 << (number % WORD) != 0
    }

    /// Puts `number` in.
    #[inline]
    pub fn take(&mut self, number: usize) {
        let (at, bit) = (number / WORD, 1 << (number % WORD));
        if at == 0 {
            self.first |= bit;
            return;
        }
        self.taken[at - 1] |= bit;
        self.used[at / WORD] |= 1 << (at % WORD);
        if self.taken[at - 1] == u64::MAX {
            self.full[at / WORD] |= 1 << (at % WORD);
        }
    }

    /// Takes `number` out.
    #[inline]
    pub fn free(&mut self, number: usize) {
        let (at, bit) = (number / WORD, 1 << (number % WORD));
        if at == 0 {
            self.first &= !bit;
            return;
        }
        self.taken[at - 1] &= !bit;
        self.full[at / WORD] &= !(1 << (at % WORD));
        if self.taken[at - 1] == 0 {
            self.used[at / WORD] &= !(1 << (at % WORD));
        }
    }

    /// Returns the first number from `from` on that is not in the set.
    pub fn first_free(&self, from: usize) -> usize {
        let words = self.len();
        let free = |at: usize| !self.word(at);
        let here = from / WORD;
        if let Some(number) = first_bit(from, words.min(here + 1), free) {
            return number;
        }
        let part = first_bit(here + 1, self.full.len(), |at| !self.full[at]);
        match part {
            Some(at) if at < words => at * WORD + free(at).trailing_zeros() as usize,
            _ => from.max(words * WORD),
        }
    }

    /// Returns the first number from `from` on that is in the set.
    #[inline]
    pub fn first_taken(&self, from: usize) -> Option<usize> {
        let here = from / WORD;
        let found = first_bit(from, self.len().min(here + 1), |at| self.word(at));
        found.or_else(|| {
            let at = first_bit(here + 1, self.used.len(), |at| self.used[at])?;
            Some(at * WORD + self.word(at).trailing_zeros() as usize)
        })
    }

    /// Returns a number above all that are in the set: the lowest one.
    pub fn end(&self) -> usize {
        let end_of = |at: usize, word: u64| (at + 1) * WORD - word.leading_zeros() as usize;
        let last = self.used.iter().enumerate().rfind(|(_, words)| **words != 0);
        let at = last.map_or(0, |(at, &words)| end_of(at, words) - 1);
        if self.word(at) == 0 { 0 } else { end_of(at, self.word(at)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn numbers_are_found_as_in_an_ordered_set() {
        const MOST: usize = 3 * WORD * WORD;
        let (mut bits, mut model) = (NumberBits::default(), BTreeSet::new());
        let mut seed = 1u64;
        let mut draw = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        let mut limit = 0;
        for round in 0..1000 {
            if round % 100 == 0 {
                limit += MOST / 10;
                assert!(!bits.has_room(limit + WORD));
                bits.make_room(limit).unwrap();
                assert!(bits.has_room(limit));
            }
            let (start, length) = (draw(limit), [1, 1, 5, WORD, 40 * WORD][draw(5)]);
            for number in start..(start + length).min(limit) {
                if round % 3 == 2 {
                    bits.free(number);
                    model.remove(&number);
                } else {
                    bits.take(number);
                    model.insert(number);
                }
            }
            for from in [0, start, draw(limit), limit, limit + draw(MOST)] {
                let free = (from..).find(|number| !model.contains(number)).unwrap();
                assert_eq!(bits.first_free(from), free);
                assert_eq!(bits.first_taken(from), model.range(from..).next().copied());
            }
            assert_eq!(bits.end(), model.last().map_or(0, |last| last + 1));
        }
    }

    #[test]
    fn without_memory_the_set_is_as_it_was() {
        use freehold_collections::inject::each_fails;
        let mut bits = NumberBits::default();
        bits.make_room(64).unwrap();
        (0..64).for_each(|number| bits.take(number));
        let (outcome, failures) = each_fails(|| {
            let made = bits.make_room(5000);
            assert!(made.is_ok() || (bits.first_free(0), bits.end()) == (64, 64));
            made
        });
        assert!(outcome.is_ok() && failures > 0);
        assert_eq!((bits.first_free(0), bits.first_free(4999)), (64, 4999));
    }
}
