//! One segment's slots.

use freehold_frame::{Bounce, Frame, FrameSource};
use freehold_machine::{PAGE_SIZE, Pfn};

use crate::{SEGMENT_SLOTS, SLOT_SIZE};

/// Slots in a frame.
const FRAME_SLOTS: usize = PAGE_SIZE / SLOT_SIZE;

/// Slots in a row: the first, and how many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub first: u32,
    pub count: u32,
}

impl Run {
    fn mask(self) -> u128 {
        let ones = if self.count as usize >= SEGMENT_SLOTS { u128::MAX } else { (1 << self.count) - 1 };
        ones << self.first
    }
}

/// A block of frames for bouncing and which of its slots are taken: a segment, or less where memory is short.
pub(crate) struct Pool<S: FrameSource> {
    block: Frame<Bounce, S>,
    /// One bit a slot; those beyond the block are never free.
    busy: u128,
}

impl<S: FrameSource> Pool<S> {
    /// A pool without mappings on a block of at most [`SEGMENT_SLOTS`] slots.
    pub fn new(block: Frame<Bounce, S>) -> Self {
        let count = (block.order().frames() as usize * FRAME_SLOTS).min(SEGMENT_SLOTS) as u32;
        Self { block, busy: !Run { first: 0, count }.mask() }
    }
    /// Slots in all.
    pub fn slots(&self) -> usize {
        (self.block.order().frames() as usize * FRAME_SLOTS).min(SEGMENT_SLOTS)
    }
    /// The first frame.
    pub fn pfn(&self) -> Pfn {
        self.block.pfn()
    }
    /// Whether no slot is taken.
    pub fn is_idle(&self) -> bool {
        let count = self.slots() as u32;
        self.busy == !Run { first: 0, count }.mask()
    }
    /// Take `count` free slots in a row, page-aligned where they fill a page.
    pub fn take(&mut self, count: u32) -> Option<Run> {
        // Bit i of `starts`: slots i..i+have are free. Zeroes shifted in from the top keep runs inside.
        let mut starts = !self.busy;
        let mut have = 1;
        while have < count {
            let step = have.min(count - have);
            starts &= starts >> step;
            have += step;
        }
        if count as usize >= FRAME_SLOTS {
            starts &= u128::MAX / 3; // even slots: 0b…0101
        }
        if starts == 0 {
            return None;
        }
        let run = Run { first: starts.trailing_zeros(), count };
        self.busy |= run.mask();
        Some(run)
    }
    /// Give slots back that [`Pool::take`] gave out.
    pub fn give_back(&mut self, run: Run) {
        debug_assert_eq!(self.busy & run.mask(), run.mask(), "slots are given back once");
        self.busy &= !run.mask();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::source;
    use freehold_frame::{Order, Owner, Request};

    fn pool(order: u32) -> Pool<crate::tests::Source> {
        let request = Request::new(Owner::Bounce).order(Order::new(order).unwrap());
        Pool::new(Frame::allocate_with(source(1 << order), request).unwrap())
    }

    #[test]
    fn runs_never_share_a_slot_and_fill_the_segment() {
        let mut pool = pool(6);
        let mut seen = 0u128;
        let mut taken = 0;
        for count in [1, 2, 5, 64, 3, 1, 7, 16, 8, 4, 4, 2, 2, 2, 1, 1] {
            if let Some(run) = pool.take(count) {
                assert_eq!(seen & run.mask(), 0);
                seen |= run.mask();
                taken += count;
            }
        }
        while let Some(run) = pool.take(1) {
            assert_eq!(seen & run.mask(), 0);
            seen |= run.mask();
            taken += 1;
        }
        assert_eq!((seen, taken), (u128::MAX, 128));
    }

    #[test]
    fn a_whole_segment_can_be_one_run_and_a_small_pool_ends_where_its_block_ends() {
        let mut whole = pool(6);
        let run = whole.take(128).unwrap();
        assert!(whole.take(1).is_none());
        whole.give_back(run);
        assert!(whole.is_idle());
        let mut small = pool(1);
        assert_eq!(small.slots(), 4);
        assert!(small.take(5).is_none());
        assert_eq!(small.take(4), Some(Run { first: 0, count: 4 }));
        assert!(small.take(1).is_none());
    }

    #[test]
    fn runs_of_a_page_or_more_start_on_a_page() {
        let mut pool = pool(6);
        assert_eq!(pool.take(1).unwrap().first, 0);
        assert_eq!(pool.take(3).unwrap().first, 2);
        assert_eq!(pool.take(1).unwrap().first, 1);
    }
}
