//! Which connections may have something new: a set of numbers that anybody adds to and one task empties.
//!
//! **Protocol.** Who adds sets the number's bit, then its word's bit in the summary. The task takes a summary word, then the words
//! that it names. A number whose bit was set before its word was taken is in what was taken; one whose bit was set later sets
//! the summary later, too, and is found by the next look. An empty word that the summary names does no harm. Adding takes
//! no lock and no memory, so that it may be done wherever something is woken.

#[cfg(not(test))]
use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(test)]
use shuttle::sync::atomic::{AtomicU64, Ordering};

/// Words of the set: its numbers are below 64 times as many.
#[cfg(not(test))]
const WORDS: usize = 1024;
#[cfg(test)]
const WORDS: usize = 128;

/// Numbers that it can have: 0 to one less.
pub const MOST: usize = WORDS * 64;

/// See the module's head.
pub struct Due {
    words: [AtomicU64; WORDS],
    summary: [AtomicU64; WORDS / 64],
}

impl Due {
    /// An empty one.
    pub const fn new() -> Self {
        Self {
            words: [const { AtomicU64::new(0) }; WORDS],
            summary: [const { AtomicU64::new(0) }; WORDS / 64],
        }
    }

    /// Adds `number`, which is below [`MOST`].
    pub fn add(&self, number: usize) {
        let word = number / 64;
        self.words[word].fetch_or(1 << (number % 64), Ordering::SeqCst);
        self.summary[word / 64].fetch_or(1 << (word % 64), Ordering::SeqCst);
    }

    /// Whether nothing was added since it was emptied.
    pub fn is_empty(&self) -> bool {
        self.summary.iter().all(|word| word.load(Ordering::SeqCst) == 0)
    }

    /// Takes out all numbers.
    pub fn take(&self, mut each: impl FnMut(usize)) {
        for (at, summary) in self.summary.iter().enumerate() {
            for word in bits(summary.swap(0, Ordering::SeqCst)) {
                let word = at * 64 + word;
                bits(self.words[word].swap(0, Ordering::SeqCst)).for_each(|bit| each(word * 64 + bit));
            }
        }
    }
}

/// The bits that are set.
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

    /// Adds numbers in two threads, with `add`, while a third takes them, and once more at the end: all were taken, and none else.
    fn explore(add: fn(&Due, usize)) {
        shuttle::check_random(
            move || {
                let due = Arc::new(Due::new());
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
        explore(Due::add);
    }

    #[test]
    #[should_panic(expected = "left == right")]
    fn a_summary_that_is_set_first_loses_numbers() {
        explore(|due, number| {
            due.summary[number / 4096].fetch_or(1 << (number / 64 % 64), Ordering::SeqCst);
            due.words[number / 64].fetch_or(1 << (number % 64), Ordering::SeqCst);
        });
    }
}
