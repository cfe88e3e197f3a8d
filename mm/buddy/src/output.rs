//! The destination of blocks that are taken out of a zone: a list of the requesting CPU, or one
//! place for a single block.

use core::sync::atomic::AtomicU64;

use freehold_machine::Pfn;

use crate::rng::Rng;
use crate::word::Plain;

/// The way in which blocks of one search are drawn, and their destination.
pub(crate) struct Draw<'a, 'p> {
    /// `None` if blocks are taken in order of addresses.
    pub(crate) rng: Option<&'a mut Rng>,
    pub(crate) out: OutputSlice<'p>,
}

/// Room for the requested number of blocks.
#[derive(Debug)]
pub(crate) struct OutputSlice<'a> {
    places: &'a [AtomicU64],
    len: usize,
}

impl<'a> OutputSlice<'a> {
    pub(crate) const fn new(places: &'a [AtomicU64]) -> Self {
        Self { places, len: 0 }
    }
    /// Number of blocks in the slice.
    pub(crate) const fn len(&self) -> u64 {
        self.len as u64
    }
    /// Number of blocks still to be added.
    pub(crate) const fn room(&self) -> u64 {
        (self.places.len() - self.len) as u64
    }
    /// Adds a block if there is room.
    pub(crate) fn push(&mut self, block: Pfn) {
        self.push_all(core::iter::once(block));
    }
    /// Adds blocks until there is no more room.
    #[inline]
    pub(crate) fn push_all(&mut self, blocks: impl Iterator<Item = Pfn>) {
        let pairs = self.places[self.len..].iter().zip(blocks);
        // Counted once, at the end.
        self.len += pairs.map(|(place, block)| place.set(block.0)).count();
    }
    /// Adds the frames of `bits`, counted from `first` on, until there is no more room. Returns the
    /// bits of the other frames.
    #[inline]
    pub(crate) fn push_bits(&mut self, first: Pfn, mut bits: u64, most: u64) -> u64 {
        let places = &self.places[self.len..];
        let places = &places[..places.len().min(most as usize)];
        let mut pushed = 0;
        for place in places {
            if bits == 0 {
                break;
            }
            place.set(first.0 + u64::from(bits.trailing_zeros()));
            bits &= bits - 1;
            pushed += 1;
        }
        self.len += pushed;
        bits
    }
    /// Reverses the order of the blocks.
    pub(crate) fn reverse(&self) {
        let (low, high) = self.places[..self.len].split_at(self.len / 2);
        for (a, b) in low.iter().zip(high.iter().rev()) {
            let block = a.get();
            a.set(b.get());
            b.set(block);
        }
    }
    /// The blocks that were added after the first `len`.
    pub(crate) fn since(&self, len: u64) -> impl Iterator<Item = Pfn> {
        self.places[len as usize..self.len].iter().map(|place| Pfn(place.get()))
    }
}
