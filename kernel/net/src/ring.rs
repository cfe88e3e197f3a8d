//! Bytes of a stream that wait: in order from the front, and ahead of that bytes that came too
//! early.

use freehold_collections::{AllocError, Vec};

/// Smallest memory of a ring that has any.
const LEAST: usize = 2048;

/// Limit for all rings of a stack together (bytes).
#[derive(Debug)]
pub struct Budget {
    used: usize,
    limit: usize,
}

impl Budget {
    /// None is used.
    pub const fn new(limit: usize) -> Self {
        Self { used: 0, limit }
    }
    /// Number of bytes that rings have.
    pub const fn used(&self) -> usize {
        self.used
    }
    /// Whether more than half is used: then a ring that can work with less takes less.
    pub const fn is_tight(&self) -> bool {
        self.used > self.limit / 2
    }
    /// Counts the memory of a ring that grows from `old` to `new` bytes. The last quarter is for
    /// rings of the least memory: a connection moves on, if slowly, while others have all the rest.
    ///
    /// # Errors
    /// There are not so many left.
    fn take(&mut self, old: usize, new: usize) -> Result<(), AllocError> {
        let limit = if new <= LEAST { self.limit } else { self.limit / 4 * 3 };
        let bytes = new - old;
        if bytes > limit.saturating_sub(self.used) {
            return Err(AllocError);
        }
        self.used += bytes;
        Ok(())
    }
    /// Subtracts `bytes` from the bytes in use.
    pub const fn give_back(&mut self, bytes: usize) {
        self.used -= bytes;
    }
}

/// A ring of bytes. It has memory while it holds some, in powers of two.
#[derive(Debug, Default)]
pub struct Ring {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Ring {
    /// Bytes from the front on that [`write`](Self::write) reached.
    pub const fn len(&self) -> usize {
        self.length
    }
    /// Its memory (bytes).
    #[cfg(test)]
    pub fn memory(&self) -> usize {
        self.memory.len()
    }

    /// Makes the ring hold `bytes` after the first `at`; bytes between its end and `at` are
    /// undefined.
    ///
    /// # Errors
    /// No memory, or no budget: the ring is unchanged.
    pub fn write(&mut self, at: usize, bytes: &[u8], budget: &mut Budget) -> Result<(), AllocError> {
        let end = at + bytes.len();
        self.reserve(end, budget)?;
        let (first, second) = self.parts_mut(at, bytes.len());
        let (head, tail) = bytes.split_at(first.len());
        first.copy_from_slice(head);
        second.copy_from_slice(tail);
        self.length = self.length.max(end);
        Ok(())
    }

    /// Adds up to `count` bytes at the end: `fill` fills buffers from their front and returns how
    /// many bytes it wrote, until that is less than the buffer. Memory grows as it is filled.
    ///
    /// # Errors
    /// No memory, or no budget, for the first of them.
    pub fn append(
        &mut self,
        count: usize,
        budget: &mut Budget,
        mut fill: impl FnMut(&mut [u8]) -> usize,
    ) -> Result<usize, AllocError> {
        let mut done = 0;
        while done < count {
            let free = self.memory.len() - self.length;
            let step = (count - done).min(if free > 0 { free } else { self.memory.len().max(LEAST) });
            match self.reserve(self.length + step, budget) {
                Err(error) if done == 0 => return Err(error),
                Err(AllocError) => break,
                Ok(()) => {}
            }
            let (first, second) = self.parts_mut(self.length, step);
            let mut filled = fill(first);
            if filled == first.len() && !second.is_empty() {
                filled += fill(second);
            }
            self.length += filled;
            done += filled;
            if filled < step {
                break;
            }
        }
        if self.length == 0 {
            self.free(budget);
        }
        Ok(done)
    }

    /// The bytes `at..at + count`, in two parts.
    pub fn parts(&self, at: usize, count: usize) -> (&[u8], &[u8]) {
        if count == 0 {
            return (&[], &[]);
        }
        let from = (self.start + at) & (self.memory.len() - 1);
        let first = count.min(self.memory.len() - from);
        (&self.memory[from..from + first], &self.memory[..count - first])
    }

    fn parts_mut(&mut self, at: usize, count: usize) -> (&mut [u8], &mut [u8]) {
        if count == 0 {
            return (&mut [], &mut []);
        }
        let from = (self.start + at) & (self.memory.len() - 1);
        let first = count.min(self.memory.len() - from);
        let (low, high) = self.memory.split_at_mut(from);
        (&mut high[..first], &mut low[..count - first])
    }

    /// Removes the first `count` bytes. If none are left, the memory is freed, too.
    pub fn advance(&mut self, count: usize, budget: &mut Budget) {
        self.length = self.length.saturating_sub(count);
        if self.length == 0 {
            self.free(budget);
        } else {
            self.start = (self.start + count) & (self.memory.len() - 1);
        }
    }

    /// Gives its memory back.
    pub fn free(&mut self, budget: &mut Budget) {
        budget.give_back(self.memory.len());
        *self = Self::default();
    }

    fn reserve(&mut self, end: usize, budget: &mut Budget) -> Result<(), AllocError> {
        let old = self.memory.len();
        if end <= old {
            return Ok(());
        }
        let new = end.next_power_of_two().max(LEAST);
        budget.take(old, new)?;
        let Ok(mut memory) = Vec::try_filled(0_u8, new) else {
            budget.give_back(new - old);
            return Err(AllocError);
        };
        let (first, second) = self.parts(0, self.length);
        memory[..first.len()].copy_from_slice(first);
        memory[first.len()..self.length].copy_from_slice(second);
        self.memory = memory;
        self.start = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::vec;

    use super::*;

    /// Whether a ring of `bytes` fits a budget of 16 KiB, whose last quarter is not for its growth.
    fn fits(bytes: usize) -> bool {
        bytes.next_power_of_two().max(LEAST) <= 8192
    }

    #[test]
    fn the_last_quarter_of_a_budget_is_for_rings_of_the_least_memory() {
        let mut budget = Budget::new(8 * LEAST);
        assert!(budget.take(0, 2 * LEAST).is_ok() && budget.take(2 * LEAST, 6 * LEAST).is_ok());
        assert_eq!(budget.take(LEAST, 2 * LEAST), Err(AllocError));
        assert!(budget.take(0, LEAST).is_ok() && budget.take(0, LEAST).is_ok());
        assert_eq!(budget.take(0, LEAST), Err(AllocError));
    }

    proptest! {
        /// Against a queue of the standard library.
        #[test]
        fn a_ring_is_a_queue(steps in prop::collection::vec((0..4_u8, 1..3000_usize), 1..60)) {
            let (mut ring, mut model, mut budget) = (Ring::default(), VecDeque::new(), Budget::new(16_384));
            for (step, (kind, count)) in steps.into_iter().enumerate() {
                let bytes = vec![step as u8; count];
                match kind {
                    0 => {
                        let written = ring.write(model.len(), &bytes, &mut budget);
                        prop_assert_eq!(written.is_ok(), fits(model.len() + count));
                        if written.is_ok() { model.extend(&bytes) }
                    }
                    1 => {
                        let mut left = count / 2;
                        let appended = ring.append(count, &mut budget, |room| {
                            let some = room.len().min(left);
                            room[..some].fill(step as u8);
                            left -= some;
                            some
                        });
                        if let Ok(done) = appended {
                            let all = model.len() + count / 2;
                            prop_assert!(done == count / 2 || !fits(all) && done < count / 2);
                            model.extend(&bytes[..done]);
                        }
                    }
                    _ => {
                        ring.advance(count, &mut budget);
                        model.drain(..count.min(model.len()));
                    }
                }
                prop_assert_eq!(ring.len(), model.len());
                prop_assert_eq!(budget.used(), ring.memory());
                prop_assert!(model.is_empty() == (ring.memory() == 0));
                let (first, second) = ring.parts(0, ring.len());
                prop_assert!(first.iter().chain(second).eq(model.iter()));
            }
        }
    }
}
