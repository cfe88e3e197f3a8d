//! The memory of a ring: single pages, so that a large ring needs no large contiguous block.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_collections::Vec;
use freehold_tracepoints::HEAD_WORDS;
use freehold_tracepoints::ring::{Ends, RingPlace, Words};

use crate::Result;

/// Words per page; more than the longest record has.
const CHUNK: usize = 512;

/// A ring with its memory.
pub struct Ring {
    /// The positions of the oldest record and of the end.
    pub ends: Ends,
    /// The number of the next record that was not consumed, for callers that check whether there is
    /// one.
    pub(super) consumed: AtomicU64,
    /// The pages; their number is a power of two.
    chunks: Vec<Vec<AtomicU64>>,
}

impl Ring {
    /// Makes a ring of `kib` KiB, a power of two from 8 on. `step` is called between two pages.
    ///
    /// # Errors
    /// `ENOMEM`; those of `step`.
    pub(super) fn new(kib: u64, step: &mut dyn FnMut() -> Result<()>) -> Result<Self> {
        let count = (kib / 4).next_power_of_two() as usize;
        let mut chunks = Vec::try_with_capacity(count)?;
        for _ in 0..count {
            step()?;
            let mut chunk = Vec::try_with_capacity(CHUNK)?;
            (0..CHUNK).for_each(|_| chunk.push_reserved(AtomicU64::new(0)));
            chunks.push_reserved(chunk);
        }
        Ok(Self { ends: Ends::new(), consumed: AtomicU64::new(0), chunks })
    }

    /// Returns the position of the oldest record that is not before `from`, and its time in ticks.
    pub(super) fn oldest(&self, from: RingPlace) -> Option<(RingPlace, u64)> {
        let mut words = [0; 2];
        let found = self.ends.read(self, from, None, &mut words)?;
        let position = found.next.position - found.length as u64;
        Some((RingPlace { position, number: found.next.number - 1 }, words[1]))
    }

    fn chunk(&self, position: u64) -> (&[AtomicU64], usize) {
        let place = (position as usize / CHUNK) & (self.chunks.len() - 1);
        (&self.chunks[place], position as usize % CHUNK)
    }
}

impl Words for Ring {
    const PAGE: u64 = CHUNK as u64;
    fn pages(&self) -> u64 {
        self.chunks.len() as u64
    }
    #[inline(always)]
    fn word(&self, position: u64) -> &AtomicU64 {
        let (chunk, at) = self.chunk(position);
        &chunk[at]
    }
    #[inline(always)]
    fn store(&self, position: u64, first: &[u64; HEAD_WORDS], payload: &[u64]) {
        let (chunk, at) = self.chunk(position);
        let places = &chunk[at..at + HEAD_WORDS + payload.len()];
        let (head, mut rest) = places.split_at(HEAD_WORDS);
        head.iter().zip(first).for_each(|(place, &value)| place.store(value, Ordering::Relaxed));
        // Four words at a time: copying the fields is most of an event's cost.
        let mut four = payload.chunks_exact(4);
        for values in &mut four {
            let (places, more) = rest.split_at(4);
            for at in 0..4 {
                places[at].store(values[at], Ordering::Relaxed);
            }
            rest = more;
        }
        rest.iter().zip(four.remainder()).for_each(|(place, &value)| place.store(value, Ordering::Relaxed));
    }
}
