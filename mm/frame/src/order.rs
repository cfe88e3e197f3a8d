//! Block sizes as powers of two.

use freehold_machine::PAGE_SIZE;

/// log2 of the frames in a block: 0 is one frame of 4 KiB, 9 a pageblock of 2 MiB, 18 is 1 GiB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct Order(u8);

impl Order {
    /// One frame.
    pub const FRAME: Self = Self(0);
    /// One pageblock, 2 MiB.
    pub const PAGEBLOCK: Self = Self(9);
    /// The largest block, 1 GiB.
    pub const MAX: Self = Self(18);

    /// The order `log2`; `None` above [`Order::MAX`].
    pub const fn new(log2: u32) -> Option<Self> {
        if log2 <= Self::MAX.0 as u32 { Some(Self(log2 as u8)) } else { None }
    }
    /// The smallest order whose block has at least `frames` frames; `None` if none is large enough.
    pub const fn holding(frames: u64) -> Option<Self> {
        if frames > Self::MAX.frames() {
            return None;
        }
        Self::new(if frames <= 1 { 0 } else { 64 - (frames - 1).leading_zeros() })
    }
    /// log2 of the frames: 0..=18.
    pub const fn log2(self) -> u32 {
        self.0 as u32
    }
    /// Frames in a block.
    pub const fn frames(self) -> u64 {
        1 << self.0
    }
    /// Bytes in a block.
    pub const fn bytes(self) -> usize {
        PAGE_SIZE << self.0
    }
    pub(crate) const fn from_bits(bits: u32) -> Self {
        Self((bits & 31) as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holding_is_the_smallest_order_that_fits() {
        for frames in 0..=5000 {
            let order = Order::holding(frames).unwrap();
            assert!(order.frames() >= frames);
            assert!(order == Order::FRAME || Order::new(order.log2() - 1).unwrap().frames() < frames);
        }
        assert_eq!(Order::holding(Order::MAX.frames()), Some(Order::MAX));
        assert_eq!(Order::holding(Order::MAX.frames() + 1), None);
    }
}
