//! Bits that tell which pageblocks have records: one per pageblock, set once.
//!
//! A table is made without access to its memory, so that the cost of starting a machine does not
//! depend on its memory. The records of a pageblock are written when it is handed out for the first
//! time ([`FrameTable::prepare`](crate::FrameTable::prepare)); before that they have the memory's
//! old contents, the frames are free, and no CPU reads the records.
//!
//! **Protocol.** A CPU that prepares a pageblock has exclusive access to it (it was taken out of a
//! free set under its lock). The CPU writes the records, and then sets the bit (release). Other
//! CPUs may prepare neighbours whose bits are in the same word, so this is a compare-exchange. A
//! reader of a frame that is not known to be handed out tests the bit first (acquire).
//! `tests/ready.rs` has every interleaving, and shows the effect of a plain store and of the other
//! order.

use core::sync::atomic::Ordering;

use freehold_machine::{PAGEBLOCK_ORDER, Pfn};

use crate::AtomicWord;

/// log2 of the pageblocks of a word.
const PER_WORD: u32 = 6;

/// The bits, pageblock n's at bit n % 64 of word n / 64.
#[derive(Debug)]
pub struct Ready<'a, W>(&'a [W]);

impl<W> Clone for Ready<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<W> Copy for Ready<'_, W> {}

impl<'a, W: AtomicWord> Ready<'a, W> {
    /// The bits in `words`: those of a new table are all zero.
    pub const fn new(words: &'a [W]) -> Self {
        Self(words)
    }
    fn place(self, frame: Pfn) -> Option<(&'a W, u64)> {
        let block = frame.0 >> PAGEBLOCK_ORDER;
        let word = self.0.get(usize::try_from(block >> PER_WORD).ok()?)?;
        Some((word, 1 << (block % (1 << PER_WORD))))
    }
    /// Whether `frame`'s pageblock has records; past the end it has none.
    pub fn has(self, frame: Pfn) -> bool {
        self.place(frame).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
    }
    /// Notes that `frame`'s pageblock has records from now on: a CPU that finds it
    /// [ready](Ready::has) sees the earlier stores.
    pub fn set(self, frame: Pfn) {
        let Some((word, bit)) = self.place(frame) else { return };
        let mut now = word.load(Ordering::Relaxed);
        while let Err(other) =
            word.compare_exchange_weak(now, now | bit, Ordering::Release, Ordering::Relaxed)
        {
            now = other;
            word.relax();
        }
    }
}

/// How many words of bits a table of `records` records has.
pub const fn words(records: usize) -> usize {
    records.div_ceil(1 << (PAGEBLOCK_ORDER + PER_WORD))
}
