//! The record of one frame: 16 bytes, all atomics, all zeroes for a frame that never had an owner. Where its page is found is said beside it: [`Home`](crate::Home).

use core::sync::atomic::{AtomicU32, Ordering};

use freehold_machine::{CpuId, NodeId};

use crate::{Counts, Order, Owner};

/// What a record's first word says.
///
/// Word layout, lowest bits first. Owned: owner (4), order (5), node (4). Free: 0 (4), then who had it last: owner (4),
/// order (5), CPU (6); all zero if nobody ever did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Free, not the first frame of its block, or no memory.
    Unowned(Option<Freed>),
    /// The first frame of an owned block.
    Owned {
        /// Who owns the block; never [`Owner::Free`].
        owner: Owner,
        /// The block's size.
        order: Order,
        /// The node whose memory it is.
        node: NodeId,
    },
}

/// Who gave a free block back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Freed {
    /// Who owned it.
    pub owner: Owner,
    /// The size in which it was given back.
    pub order: Order,
    /// The CPU that gave it back.
    pub cpu: CpuId,
}

/// Owner, order and node of an owned block in one word, as its record has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag(u32);

impl Tag {
    /// The bits of owner and order.
    const KEY: u32 = 0x1ff;
    /// How many different [`Tag::key`]s there are.
    pub const KEYS: usize = Self::KEY as usize + 1;

    /// The tag of a block of `order` that `owner` has on `node`.
    #[inline]
    pub const fn new(owner: Owner, order: Order, node: NodeId) -> Self {
        Self(owner as u32 | order.log2() << 4 | (node.0 as u32 & 15) << 9)
    }
    /// Whether the owner is `owner`, who is not nobody.
    #[inline]
    const fn is(self, owner: Owner) -> bool {
        self.0 & 15 == owner as u32
    }
    /// Owner and order as one small number, below [`Tag::KEYS`].
    #[inline]
    pub const fn key(self) -> usize {
        (self.0 & Self::KEY) as usize
    }
    /// The owner.
    pub const fn owner(self) -> Owner {
        Owner::from_bits(self.0)
    }
    /// The size.
    pub const fn order(self) -> Order {
        Order::from_bits(self.0 >> 4)
    }
    /// The node.
    #[inline]
    pub const fn node(self) -> NodeId {
        NodeId((self.0 >> 9 & 15) as u8)
    }
    /// As a number of 13 bits, for an allocator that keeps it in its own memory.
    #[inline]
    pub const fn bits(self) -> u32 {
        self.0
    }
    /// The tag whose [`Tag::bits`] these are; more bits than those stay, and make a tag that no record has.
    #[inline]
    pub const fn of_bits(bits: u32) -> Self {
        Self(bits)
    }
    /// What is left of the tag in the record of a block that was given back on `cpu`.
    #[inline]
    pub const fn trace(self, cpu: CpuId) -> Trace {
        // Owner and order move up by four bits: the layout of a freed block.
        Trace((self.0 & Self::KEY) << 4 | (cpu.0 as u32 & 63) << 13)
    }
}

/// Who had a free block last, in one word, as its record has it: see [`Tag::trace`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trace(u32);

impl Trace {
    /// As a number of 19 bits, for an allocator that keeps it in its own memory.
    #[inline]
    pub const fn bits(self) -> u32 {
        self.0
    }
    /// The trace whose [`Trace::bits`] these are.
    #[inline]
    pub const fn of_bits(bits: u32) -> Self {
        Self(bits)
    }
}

/// Why a block was not taken back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotGiven {
    /// No block of this size starts here, or it is reserved.
    NotOwned,
    /// Somebody maps, references or pins it.
    Held,
}

impl State {
    #[inline]
    const fn to_bits(self) -> u32 {
        match self {
            Self::Unowned(None) => 0,
            Self::Unowned(Some(Freed { owner, order, cpu })) => {
                (owner as u32) << 4 | order.log2() << 8 | (cpu.0 as u32 & 63) << 13
            }
            Self::Owned { owner, order, node } => Tag::new(owner, order, node).0,
        }
    }
    const fn from_bits(bits: u32) -> Self {
        if bits == 0 {
            Self::Unowned(None)
        } else if bits & 15 == 0 {
            let owner = Owner::from_bits(bits >> 4);
            Self::Unowned(Some(Freed {
                owner,
                order: Order::from_bits(bits >> 8),
                cpu: CpuId((bits >> 13 & 63) as u16),
            }))
        } else {
            let tag = Tag(bits);
            Self::Owned { owner: tag.owner(), order: tag.order(), node: tag.node() }
        }
    }
    /// The owner; [`Owner::Free`] where there is none.
    pub const fn owner(self) -> Owner {
        match self {
            Self::Unowned(_) => Owner::Free,
            Self::Owned { owner, .. } => owner,
        }
    }
}

/// One frame's record.
///
/// All zeroes is the state of a frame that never had an owner, so a table in fresh zero memory is ready for use, and
/// the records of address-space holes can share one read-only page of zeroes.
///
/// Only a frame's owner writes its record (the page allocator, for a free frame); [`Counts`] excepted, which
/// its holders change.
#[derive(Debug, zerocopy::FromZeros)]
#[repr(C)]
pub struct FrameRecord {
    state: AtomicU32,
    private: AtomicU32,
    counts: Counts,
}

const _: () = assert!(size_of::<FrameRecord>() == 16);

/// Where an observer outside of the kernel finds who owns a block: all in the record of its first frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordLayout {
    /// Bytes of a record.
    pub bytes: u64,
    /// Where in it the state is: 32 bits.
    pub state_offset: u64,
    /// The owner's number in the state.
    pub owner_mask: u64,
    /// Where in an owned block's state log2 of its frames is.
    pub order_shift: u64,
    /// Its bits, after the shift.
    pub order_mask: u64,
}

impl FrameRecord {
    /// Where things are in a record.
    pub const LAYOUT: RecordLayout = RecordLayout {
        bytes: size_of::<Self>() as u64,
        state_offset: core::mem::offset_of!(Self, state) as u64,
        owner_mask: 15,
        order_shift: 4,
        order_mask: 31,
    };

    /// The record of a frame that never had an owner.
    #[allow(clippy::declare_interior_mutable_const, reason = "a value to build tables from, never borrowed")]
    pub const EMPTY: Self =
        Self { state: AtomicU32::new(0), private: AtomicU32::new(0), counts: Counts::NONE };

    /// Who owns the block that starts here.
    #[inline]
    pub fn state(&self) -> State {
        State::from_bits(self.state.load(Ordering::Acquire))
    }
    #[inline]
    pub(crate) fn state_bits(&self) -> u32 {
        self.state.load(Ordering::Relaxed)
    }
    /// Whether a block of `owner` starts here.
    #[inline]
    pub fn is_owned_by(&self, owner: Owner) -> bool {
        Tag(self.state.load(Ordering::Acquire)).is(owner)
    }
    /// Say who owns the block that starts here. Only the present owner calls this.
    #[inline]
    pub fn set_state(&self, state: State) {
        self.state.store(state.to_bits(), Ordering::Release);
    }
    /// Give the unowned block that starts here a new owner. For the page allocator.
    ///
    /// # Errors
    /// Who owns it already.
    #[inline]
    pub fn hand_out(&self, tag: Tag) -> Result<(), Owner> {
        let bits = self.state.load(Ordering::Acquire);
        if bits & 15 != 0 {
            return Err(Owner::from_bits(bits));
        }
        self.private.store(0, Ordering::Relaxed);
        self.state.store(tag.0, Ordering::Release);
        Ok(())
    }
    /// The tag of the block that starts here, if it is an owned block of 2^`order` frames that nobody maps, references or pins.
    ///
    /// # Errors
    /// Why it may not be freed.
    #[inline]
    pub fn freeable(&self, order: Order) -> Result<Tag, NotGiven> {
        let bits = self.state.load(Ordering::Acquire);
        if (bits ^ order.log2() << 4) & 0x1f0 != 0 || bits & 15 <= Owner::Reserved as u32 {
            return Err(NotGiven::NotOwned);
        }
        if !self.counts.is_zero() {
            return Err(NotGiven::Held);
        }
        Ok(Tag(bits))
    }
    /// Whether the block that starts here is owned just as `tag` says, and nobody maps, references or pins it: then it may be freed.
    #[inline]
    pub fn is_freeable_as(&self, tag: Tag) -> bool {
        self.state.load(Ordering::Acquire) == tag.0 && self.counts.is_zero()
    }
    /// Take the block from the owner that [`FrameRecord::freeable`] named. For the page allocator.
    #[inline]
    pub fn take_back(&self, trace: Trace) {
        self.state.store(trace.0, Ordering::Release);
    }
    /// Mappings, references, pins, exclusive mark.
    #[inline]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }
    /// Someone will write the user frame without a leaf, through a pin, until [`FrameRecord::remove_writer`].
    pub fn add_writer(&self) {
        self.private.fetch_add(1, Ordering::AcqRel);
    }
    /// They are done: before the pin is let go of.
    pub fn remove_writer(&self) {
        self.private.fetch_sub(1, Ordering::AcqRel);
    }
    /// Whether someone may be writing the user frame through a pin.
    pub fn has_writers(&self) -> bool {
        self.private.load(Ordering::Acquire) != 0
    }
    /// Thirty-two bits for the owner's own use: 0 when the frame is handed out. User frames count writers here.
    pub const fn private(&self) -> &AtomicU32 {
        &self.private
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
            assert_eq!(record.state(), State::Unowned(Some(Freed { owner: *owner, order, cpu: CpuId(63) })));
        }
    }

    #[test]
    fn every_state_survives_its_word() {
        let orders = [0, 1, 9, 18].map(|o| Order::new(o).unwrap());
        for owner in &Owner::ALL[1..] {
            for order in orders {
                for n in [0, 1, 15] {
                    let owned = State::Owned { owner: *owner, order, node: NodeId(n) };
                    let (bits, layout) = (u64::from(owned.to_bits()), FrameRecord::LAYOUT);
                    assert_eq!(bits & layout.owner_mask, *owner as u64);
                    assert_eq!(bits >> layout.order_shift & layout.order_mask, u64::from(order.log2()));
                    assert_eq!(State::from_bits(owned.to_bits()), owned);
                    let freed = State::Unowned(Some(Freed { owner: *owner, order, cpu: CpuId(n.into()) }));
                    assert_eq!(State::from_bits(freed.to_bits()), freed);
                }
            }
        }
        assert_eq!(State::from_bits(0), State::Unowned(None));
        let empty = FrameRecord::EMPTY;
        assert_eq!(empty.state(), State::Unowned(None));
    }
}
