//! Unique numbers that several CPUs hand out.
//!
//! **Protocol.** A CPU takes a batch of [`BATCH`] numbers at once from a shared counter, and hands
//! them out from its own word. So a number seldom needs a store to a cache line that another CPU
//! writes. The word holds the next number. A multiple of the batch size means that the batch is
//! used up, since the task that fetches a batch hands out its first number. All steps are
//! compare-and-exchange operations. If a task moves to another CPU between two of them, or competes
//! with another task, no number is handed out twice. A batch that is fetched but not needed is
//! skipped. As Linux' `get_next_ino` (fs/inode.c).

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_machine::MAX_CPUS;

use crate::hw;

/// Number of numbers that a CPU takes at once.
const BATCH: u64 = 1024;

/// A CPU's word, on its own cache line.
#[repr(align(64))]
struct NextNumber(AtomicU64);

/// A source of numbers.
pub struct UniqueNumbers {
    batches: AtomicU64,
    own: [NextNumber; MAX_CPUS],
}

impl UniqueNumbers {
    /// Makes a source of numbers from [`BATCH`] on.
    pub const fn new() -> Self {
        Self { batches: AtomicU64::new(BATCH), own: [const { NextNumber(AtomicU64::new(0)) }; MAX_CPUS] }
    }

    /// Returns a unique number.
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
        // Two threads share each of two CPUs: the worst case.
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
