//! Connections that may have news: a set of numbers that any CPU adds to and that one task empties.
//!
//! **Protocol.** A CPU that adds a number sets the number's bit, then its word's bit in the
//! summary. The task takes a summary word, then the words that it names. If the number's bit was
//! set before its word was taken, the number is among those taken. If it was set later, the summary
//! is set later, too, and the next pass finds the number. An empty word that the summary names does
//! no harm. Adding needs no lock and no memory, so it is possible wherever waiters are woken.

use core::sync::atomic::{AtomicU64, Ordering};

/// Number of words of the kernel's set, and of its summary.
const WORDS: usize = 1024;
const SUMMARY: usize = WORDS / 64;
/// Number of possible members: from 0 to one less than this.
pub const MOST: usize = WORDS * 64;

/// Bits that any CPU sets and one task takes.
pub trait Bits {
    /// No bits.
    const NONE: Self;
    /// Sets `bits`.
    fn set(&self, bits: u64);
    /// Takes and clears all bits.
    fn take(&self) -> u64;
    /// Whether no bit is set.
    fn is_empty(&self) -> bool;
}

impl Bits for AtomicU64 {
    const NONE: Self = Self::new(0);
    fn set(&self, bits: u64) {
        self.fetch_or(bits, Ordering::SeqCst);
    }
    fn take(&self) -> u64 {
        self.swap(0, Ordering::SeqCst)
    }
    fn is_empty(&self) -> bool {
        self.load(Ordering::SeqCst) == 0
    }
}

/// See the module's head.
pub struct Due<B: Bits = AtomicU64, const W: usize = WORDS, const S: usize = SUMMARY> {
    words: [B; W],
    summary: [B; S],
}

impl<B: Bits, const W: usize, const S: usize> Due<B, W, S> {
    /// Makes an empty set.
    pub const fn new() -> Self {
        Self { words: [const { B::NONE }; W], summary: [const { B::NONE }; S] }
    }

    /// Adds `number`, which is below 64 times the number of words.
    pub fn add(&self, number: usize) {
        let word = number / 64;
        self.words[word].set(1 << (number % 64));
        self.summary[word / 64].set(1 << (word % 64));
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.summary.iter().all(B::is_empty)
    }

    /// Removes all numbers, and calls `each` with them.
    pub fn take(&self, mut each: impl FnMut(usize)) {
        for (at, summary) in self.summary.iter().enumerate() {
            for word in bits(summary.take()) {
                let word = at * 64 + word;
                bits(self.words[word].take()).for_each(|bit| each(word * 64 + bit));
            }
        }
    }
}

/// Returns the positions of the bits that are set.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let bit = word.trailing_zeros();
        word &= word.wrapping_sub(1);
        (bit < 64).then_some(bit as usize)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;

    type Explored = shuttle::sync::atomic::AtomicU64;
    type Small = Due<Explored, 128, 2>;

    impl Bits for Explored {
        const NONE: Self = Self::new(0);
        fn set(&self, bits: u64) {
            self.fetch_or(bits, Ordering::SeqCst);
        }
        fn take(&self) -> u64 {
            self.swap(0, Ordering::SeqCst)
        }
        fn is_empty(&self) -> bool {
            self.load(Ordering::SeqCst) == 0
        }
    }

    /// Two threads add numbers with `add`, while a third takes numbers. It takes them once more at
    /// the end. It got all numbers, and no others.
    fn explore(add: fn(&Small, usize)) {
        shuttle::check_random(
            move || {
                let due = Arc::new(Small::new());
                let adders = [[1, 65, 4097], [1, 66, 8191]].map(|numbers| {
                    let due = due.clone();
                    shuttle::thread::spawn(move || numbers.iter().for_each(|&number| add(&due, number)))
                });
                let mut taken = BTreeSet::new();
                for _ in 0..3 {
                    due.take(|number| taken.extend([number]));
                    shuttle::thread::yield_now();
                }
                adders.into_iter().for_each(|adder| adder.join().unwrap());
                due.take(|number| taken.extend([number]));
                assert!(due.is_empty());
                assert_eq!(taken, BTreeSet::from([1, 65, 66, 4097, 8191]));
            },
            2000,
        );
    }

    #[test]
    fn what_was_added_is_taken() {
        explore(Small::add);
    }

    #[test]
    #[should_panic(expected = "left == right")]
    fn a_summary_that_is_set_first_loses_numbers() {
        explore(|due, number| {
            due.summary[number / 4096].set(1 << (number / 64 % 64));
            due.words[number / 64].set(1 << (number % 64));
        });
    }
}
