//! The memory of a ring: single pages, so that a large ring needs no large contiguous block.

use core::sync::atomic::AtomicU64;

use freehold_collections::{Box, Vec};
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
    chunks: Vec<Box<[AtomicU64; CHUNK]>>,
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
            chunks.push_reserved(chunk.into_inner().try_into().expect("a page of words"));
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
}

impl Words for Ring {
    const PAGE: u64 = CHUNK as u64;
    fn pages(&self) -> u64 {
        self.chunks.len() as u64
    }
    #[inline(always)]
    fn page(&self, position: u64) -> &[AtomicU64] {
        &self.chunks[(position as usize / CHUNK) & (self.chunks.len() - 1)][..]
    }
}
