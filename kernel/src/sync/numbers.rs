//! Numbers of which no two are equal, given out by several CPUs.
//!
//! **Protocol.** A CPU takes [`BATCH`] numbers at once from what all share, and gives them out from
//! a word of its own, so that a number seldom is a store to a line that another CPU stores to. The
//! word holds the next number. A multiple of the batch says that the batch is used up, since the
//! task that fetches a batch gives out its first number. All steps are compare-and-exchange: a task
//! that moves to another CPU between two of them, or shares it with another task, takes nothing
//! twice, and a batch that is fetched in vain is left out. As Linux' `get_next_ino` (fs/inode.c).

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_machine::MAX_CPUS;

use crate::hw;

/// Numbers that a CPU takes at once.
const BATCH: u64 = 1024;

/// A CPU's word, on a line of its own.
#[repr(align(64))]
struct NextNumber(AtomicU64);

/// A source of numbers.
pub struct UniqueNumbers {
    batches: AtomicU64,
    own: [NextNumber; MAX_CPUS],
}

impl UniqueNumbers {
    /// Numbers from [`BATCH`] on.
    pub const fn new() -> Self {
        Self { batches: AtomicU64::new(BATCH), own: [const { NextNumber(AtomicU64::new(0)) }; MAX_CPUS] }
    }

    /// Returns a number that no other caller gets.
    #[inline]
    pub fn next(&self) -> u64 {
        self.next_on(usize::from(hw::current_cpu().0))
    }

    #[inline]
    fn next_on(&self, cpu: usize) -> u64 {
        let own = &self.own[cpu].0;
        loop {
            let next = own.load(Ordering::Relaxed);
            let number = if next.is_multiple_of(BATCH) {
                self.batches.fetch_add(BATCH, Ordering::Relaxed)
            } else {
                next
            };
            if own.compare_exchange(next, number + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    #[test]
    fn no_number_is_given_out_twice() {
        static NUMBERS: UniqueNumbers = UniqueNumbers::new();
        // Two threads on each of two CPUs: as bad as it can be.
        let taken: Vec<Vec<u64>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|thread| scope.spawn(move || (0..50_000).map(|_| NUMBERS.next_on(thread % 2)).collect()))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let all: BTreeSet<u64> = taken.iter().flatten().copied().collect();
        assert_eq!(all.len(), 200_000);
        assert!(all.first().is_some_and(|&least| least == BATCH), "{:?}", all.first());
        assert!(all.last().is_some_and(|&most| most < 300 * BATCH), "few batches are lost: {:?}", all.last());
    }
}
