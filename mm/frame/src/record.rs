//! The record of one frame: one atomic word of 64 bits with its owner and its holders; all zeroes
//! for a frame that never had an owner. The frame's page is found by its
//! [`ReverseKey`](crate::ReverseKey).
//!
//! Layout, lowest bits first. Owned: the [`Tag`], which is owner (4), order (5) and node (4), and
//! above it the [`Counts`]. Free: 0 (4), then the [`Trace`] of its last owner: owner (4), order
//! (5), CPU (6); all zero if there never was an owner. So the word of an owned block without a
//! holder is its tag, and the page allocator reads only one word to free the block.
//!
//! The record of a frame that a device can access, anywhere in a block of [`Owner::Bounce`] or
//! [`Owner::Ring`], also names that [device](FrameRecord::device), in the bits of a user frame's
//! pins. Such a block is not freed while its first frame names one.

use core::sync::atomic::Ordering;

use freehold_machine::{BLOCK_ORDER_MASK, BLOCK_ORDER_SHIFT, CpuId, NodeId, PAGEBLOCK_ORDER};

use crate::counts::TAG;
use crate::{Counts, Holders, Order, Owner};

/// State of a frame: owned or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameState {
    /// Free, not the first frame of its block, or no memory.
    Unowned(Option<Freed>),
    /// The first frame of an owned block.
    Owned {
        /// The owner of the block; never [`Owner::Free`].
        owner: Owner,
        /// The block's size.
        order: Order,
        /// The node of the block's memory.
        node: NodeId,
    },
}

/// Last owner of a free block, and the CPU that freed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Freed {
    /// The last owner.
    pub owner: Owner,
    /// The size in which it was freed.
    pub order: Order,
    /// The CPU that freed it.
    pub cpu: CpuId,
}

/// Owner, order and node of an owned block, as its record has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag(u64);

/// Shifts of the order and of the node in a tag.
const ORDER: u32 = 4;
const NODE: u32 = 9;
// The machine crate uses the same position for the order.
const _: () = assert!(ORDER == BLOCK_ORDER_SHIFT && (1 << (NODE - ORDER)) - 1 == BLOCK_ORDER_MASK);
/// Shifts of the last owner, the order and the CPU in a free frame's word.
const LAST: u32 = 4;
const LAST_ORDER: u32 = 8;
const LAST_CPU: u32 = 13;
/// Shift and mask of the device's number, plus one, in the word of a frame that a device can
/// access.
const DEVICE: u32 = 49;
const DEVICE_MASK: u64 = 0x7f;

impl Tag {
    /// Number of bits of a tag in a record.
    pub const BITS: u32 = 13;
    /// The bits of the owner.
    pub(crate) const OWNER: u64 = (1 << ORDER) - 1;
    /// The bits of owner and order.
    const KEY: u64 = (1 << NODE) - 1;
    /// How many different [`Tag::key`]s there are.
    pub const KEYS: usize = Self::KEY as usize + 1;

    /// The tag of a block of `order` that `owner` has on `node`.
    #[inline]
    pub const fn new(owner: Owner, order: Order, node: NodeId) -> Self {
        Self(owner as u64 | (order.log2() as u64) << ORDER | (node.0 as u64 & 15) << NODE)
    }
    /// The tag in an owned frame's word.
    #[inline]
    const fn of_word(word: u64) -> Self {
        Self(word & TAG)
    }
    /// Returns the word of an owned block, changed to a block of one frame.
    pub(crate) const fn of_one_frame(word: u64) -> u64 {
        word & !(Self::KEY - Self::OWNER)
    }
    /// Returns the word of a block of one frame, changed to a whole pageblock.
    pub(crate) const fn of_pageblock(word: u64) -> u64 {
        word | (PAGEBLOCK_ORDER as u64) << ORDER
    }
    /// Owner and order as one small number, below [`Tag::KEYS`].
    #[inline]
    pub const fn key(self) -> usize {
        (self.0 & Self::KEY) as usize
    }
    /// The owner.
    pub const fn owner(self) -> Owner {
        Owner::from_bits(self.0 as u32)
    }
    /// The size.
    pub const fn order(self) -> Order {
        Order::from_bits((self.0 >> ORDER) as u32)
    }
    /// The node.
    #[inline]
    pub const fn node(self) -> NodeId {
        NodeId((self.0 >> NODE & 15) as u8)
    }
    /// Returns the tag as a number of [`Tag::BITS`] bits, for an allocator that keeps it in its own
    /// memory.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }
    /// The tag with these [`Tag::bits`]. Higher bits are kept, and make a tag that no record has.
    #[inline]
    pub const fn of_bits(bits: u64) -> Self {
        Self(bits)
    }
    /// Returns the trace of this tag for the record of a block that was freed on `cpu`.
    #[inline]
    pub const fn trace(self, cpu: CpuId) -> Trace {
        // Owner and order are shifted by the same distance: the layout of a free frame's word.
        Trace((self.0 & Self::KEY) << LAST | (cpu.0 as u64 & 63) << LAST_CPU)
    }
}

/// Last owner of a free block in one word, as the block's record has it: see [`Tag::trace`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trace(u64);

impl Trace {
    /// Number of bits of a trace in a record.
    const BITS: u32 = 19;
    /// Returns the trace as a number of 19 bits, for an allocator that keeps it in its own memory.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }
    /// The trace whose [`Trace::bits`] these are.
    #[inline]
    pub const fn of_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// Reasons why a block was not freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotGiven {
    /// No block of this size starts here, or it is reserved.
    NotOwned,
    /// The frame is mapped, referenced or pinned.
    Held,
}

impl FrameState {
    #[inline]
    const fn to_word(self) -> u64 {
        match self {
            Self::Unowned(None) => 0,
            Self::Unowned(Some(Freed { owner, order, cpu })) => {
                Tag::new(owner, order, NodeId(0)).trace(cpu).0
            }
            Self::Owned { owner, order, node } => Tag::new(owner, order, node).0,
        }
    }
    const fn from_word(word: u64) -> Self {
        let bits = word as u32;
        if word & !(DEVICE_MASK << DEVICE) == 0 {
            Self::Unowned(None)
        } else if word & Tag::OWNER == 0 {
            Self::Unowned(Some(Freed {
                owner: Owner::from_bits(bits >> LAST),
                order: Order::from_bits(bits >> LAST_ORDER),
                cpu: CpuId((bits >> LAST_CPU & 63) as u16),
            }))
        } else {
            let tag = Tag::of_word(word);
            Self::Owned { owner: tag.owner(), order: tag.order(), node: tag.node() }
        }
    }
    /// The owner; [`Owner::Free`] if there is none.
    pub const fn owner(self) -> Owner {
        match self {
            Self::Unowned(_) => Owner::Free,
            Self::Owned { owner, .. } => owner,
        }
    }
}

/// One frame's record.
///
/// All zeroes is the state of a frame that never had an owner, so a table in fresh zero memory is
/// ready for use, and the records of address-space holes can share one read-only page of zeroes.
///
/// Only a frame's owner writes its tag, while the frame has no holder; for a free frame this is the
/// page allocator. The holders change the [`Counts`].
#[derive(Debug, Default, zerocopy::FromBytes)]
#[repr(transparent)]
pub struct FrameRecord(Counts);

const _: () = assert!(size_of::<FrameRecord>() == 8);

/// Describes to an observer outside the kernel how to find the owner of a block in the record of
/// its first frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordLayout {
    /// Bytes of a record.
    pub bytes: u64,
    /// Offset of the state in the record: 32 bits, the lower half of the word.
    pub state_offset: u64,
    /// Mask of the owner's number in the state.
    pub owner_mask: u64,
    /// In an owned block's state, the shift of log2 of its frames.
    pub order_shift: u64,
    /// Mask of that field, after the shift.
    pub order_mask: u64,
}

impl FrameRecord {
    /// The layout of a record.
    pub const LAYOUT: RecordLayout = RecordLayout {
        bytes: size_of::<Self>() as u64,
        state_offset: 0,
        owner_mask: Tag::OWNER,
        order_shift: ORDER as u64,
        order_mask: Tag::KEY >> ORDER,
    };

    /// The record of a frame that never had an owner.
    #[allow(clippy::declare_interior_mutable_const, reason = "a value to build tables from, never borrowed")]
    pub const EMPTY: Self = Self(Counts::NONE);

    #[inline]
    pub(crate) fn load(&self, order: Ordering) -> u64 {
        self.0.word().load(order)
    }
    #[inline]
    fn store(&self, word: u64) {
        self.0.word().store(word, Ordering::Release);
    }
    /// Makes the record that of a frame that never had an owner.
    pub(crate) fn clear(&self) {
        self.0.word().store(0, Ordering::Relaxed);
    }
    /// Returns the owner of the block that starts here, and the block's size and node.
    #[inline]
    pub fn state(&self) -> FrameState {
        FrameState::from_word(self.load(Ordering::Acquire))
    }
    /// Whether a block starts here whose owner has a bit in `owners`.
    #[inline]
    pub(crate) fn has_owner_of(&self, owners: u64) -> bool {
        owners >> (self.load(Ordering::Acquire) & Tag::OWNER) & 1 != 0
    }
    /// Returns the place and the tag of the first among `records` where an owned block starts.
    pub(crate) fn first_owned(records: &[Self]) -> Option<(usize, Tag)> {
        let tags = records.iter().map(|record| Tag::of_word(record.load(Ordering::Acquire)));
        tags.enumerate().find(|(_, tag)| tag.0 & Tag::OWNER != 0)
    }
    /// Whether a block of `owner`, which is not [`Owner::Free`], starts here.
    #[inline]
    pub fn is_owned_by(&self, owner: Owner) -> bool {
        Tag::of_word(self.load(Ordering::Acquire)).owner() == owner
    }
    /// Sets the owner of the block that starts here, which has no holder. Only the present owner
    /// calls this.
    #[inline]
    pub fn set_state(&self, state: FrameState) {
        self.store(state.to_word());
    }
    /// Gives the unowned block that starts here a new owner. For the page allocator.
    ///
    /// # Errors
    /// The present owner.
    #[inline]
    pub fn hand_out(&self, tag: Tag) -> Result<(), Owner> {
        let word = self.load(Ordering::Acquire);
        if word & Tag::OWNER != 0 {
            return Err(Tag::of_word(word).owner());
        }
        self.store(tag.0);
        Ok(())
    }
    /// Returns the tag of the block that starts here, if it is an owned block of 2^`order` frames
    /// without a mapping, reference or pin.
    ///
    /// # Errors
    /// The reason why it may not be freed.
    #[inline]
    pub fn freeable(&self, order: Order) -> Result<Tag, NotGiven> {
        let word = self.load(Ordering::Acquire);
        let tag = Tag::of_word(word);
        if tag.order() != order || tag.owner() <= Owner::Reserved {
            return Err(NotGiven::NotOwned);
        }
        if word & !TAG != 0 {
            return Err(NotGiven::Held);
        }
        Ok(tag)
    }
    /// Whether the block that starts here is owned just as `tag` says and has no mapping, reference
    /// or pin: then it may be freed.
    #[inline]
    pub fn is_freeable_as(&self, tag: Tag) -> bool {
        self.load(Ordering::Acquire) == tag.0
    }
    /// Takes the block from the owner that [`FrameRecord::freeable`] named. For the page allocator.
    #[inline]
    pub fn take_back(&self, trace: Trace) {
        self.store(trace.0);
    }
    /// The highest number of a device.
    pub const LAST_DEVICE: u8 = DEVICE_MASK as u8 - 1;

    /// The device that can access the frame, in a block that devices see; `None` for other frames.
    #[inline]
    pub fn device(&self) -> Option<u8> {
        let word = self.load(Ordering::Acquire);
        let owner = Tag::of_word(word).owner();
        let is_seen = owner.is_seen_by_devices() || matches!(owner, Owner::Free);
        let device = (word >> DEVICE & DEVICE_MASK) as u8;
        if is_seen { device.checked_sub(1) } else { None }
    }
    /// Sets the device that can access the frame. Only the holder of a frame in a block that
    /// devices see calls this; a number above [`FrameRecord::LAST_DEVICE`] counts as none.
    ///
    /// The record of a frame inside the block loses the trace of an earlier, smaller block: stored
    /// again, it would tell an observer that the frame is freed now.
    #[inline]
    pub fn set_device(&self, device: Option<u8>) {
        let number = device.filter(|&device| device <= Self::LAST_DEVICE).map_or(0, |device| device + 1);
        let word = self.load(Ordering::Relaxed);
        let others = if word & Tag::OWNER == 0 { 0 } else { word & !(DEVICE_MASK << DEVICE) };
        self.store(others | u64::from(number) << DEVICE);
    }
    /// The holders of the block of `owner` that starts here. Frames that devices see have no
    /// counts.
    pub(crate) fn holders(&self, owner: Owner) -> Holders {
        if owner.is_seen_by_devices() { Holders::default() } else { self.0.load() }
    }
    /// Whether the word names no owner and has more bits than a trace: the frame has no owner, but
    /// its counts have changed. A small number of mappings is not detected.
    pub(crate) fn is_free_but_held(&self) -> bool {
        let word = self.load(Ordering::Relaxed);
        word & Tag::OWNER == 0 && word >> Trace::BITS != 0
    }
    /// Mappings, references, pins, exclusive mark.
    #[inline]
    pub const fn counts(&self) -> &Counts {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_taken_back_says_who_had_it() {
        let record = FrameRecord::EMPTY;
        let order = Order::PAGEBLOCK;
        assert_eq!(record.freeable(order), Err(NotGiven::NotOwned));
        for owner in &Owner::ALL[2..] {
            let tag = Tag::new(*owner, order, NodeId(11));
            record.hand_out(tag).unwrap();
            assert_eq!(record.hand_out(tag), Err(*owner));
            assert_eq!(record.freeable(Order::FRAME), Err(NotGiven::NotOwned));
            record.counts().map().unwrap();
            assert_eq!(record.freeable(order), Err(NotGiven::Held));
            assert!(record.counts().unmap());
            assert_eq!(record.freeable(order), Ok(tag));
            assert!(
                record.is_freeable_as(tag) && !record.is_freeable_as(Tag::new(*owner, order, NodeId(12)))
            );
            record.counts().map().unwrap();
            assert!(!record.is_freeable_as(tag), "somebody maps it");
            assert!(record.counts().unmap());
            assert_eq!(Tag::of_bits(tag.bits()), tag);
            let trace = tag.trace(CpuId(63));
            assert_eq!(Trace::of_bits(trace.bits()), trace);
            record.take_back(trace);
            assert_eq!(
                record.state(),
                FrameState::Unowned(Some(Freed { owner: *owner, order, cpu: CpuId(63) }))
            );
        }
    }

    #[test]
    fn a_frame_that_a_device_reaches_names_it_and_its_block_is_not_freed() {
        for owner in [Owner::Bounce, Owner::Ring] {
            let (head, tail) = (FrameRecord::EMPTY, FrameRecord::EMPTY);
            let tag = Tag::new(owner, Order::new(1).unwrap(), NodeId(0));
            head.hand_out(tag).unwrap();
            for record in [&head, &tail] {
                let before = record.state();
                assert_eq!(record.device(), None);
                for device in [0, 31, FrameRecord::LAST_DEVICE] {
                    record.set_device(Some(device));
                    assert_eq!((record.device(), record.state()), (Some(device), before));
                }
                assert!(record.holders(owner).is_none());
            }
            let once_freed = FrameRecord::EMPTY;
            once_freed.take_back(Tag::new(Owner::Anon, Order::FRAME, NodeId(0)).trace(CpuId(3)));
            for device in [Some(5), None] {
                once_freed.set_device(device);
                assert_eq!((once_freed.device(), once_freed.state()), (device, FrameState::Unowned(None)));
                assert_eq!(once_freed.load(Ordering::Relaxed) as u32, 0, "an observer reads this half");
            }
            assert_eq!(head.freeable(tag.order()), Err(NotGiven::Held));
            assert!(!head.is_freeable_as(tag));
            head.set_device(None);
            assert_eq!((head.device(), head.freeable(tag.order())), (None, Ok(tag)));
        }
        let pinned = FrameRecord::EMPTY;
        pinned.hand_out(Tag::new(Owner::Anon, Order::FRAME, NodeId(0))).unwrap();
        pinned.counts().start_mapped();
        pinned.counts().pin_exclusive().unwrap();
        assert_eq!(pinned.device(), None);
    }

    #[test]
    fn every_state_survives_its_word() {
        let orders = [0, 1, 9, 18].map(|o| Order::new(o).unwrap());
        for owner in &Owner::ALL[1..] {
            for order in orders {
                for n in [0, 1, 15] {
                    let owned = FrameState::Owned { owner: *owner, order, node: NodeId(n) };
                    let (bits, layout) = (owned.to_word(), FrameRecord::LAYOUT);
                    assert_eq!(bits & layout.owner_mask, *owner as u64);
                    assert_eq!(bits >> layout.order_shift & layout.order_mask, u64::from(order.log2()));
                    assert_eq!(FrameState::from_word(owned.to_word()), owned);
                    let freed =
                        FrameState::Unowned(Some(Freed { owner: *owner, order, cpu: CpuId(n.into()) }));
                    assert_eq!(FrameState::from_word(freed.to_word()), freed);
                }
            }
        }
        assert_eq!(FrameState::from_word(0), FrameState::Unowned(None));
        let empty = FrameRecord::EMPTY;
        assert_eq!(empty.state(), FrameState::Unowned(None));
    }
}
