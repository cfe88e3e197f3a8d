//! Proofs that a frame keeps its owner: to open a window on a frame's bytes, the caller passes a
//! value that holds the frame.
//!
//! A frame number proves nothing: between two instructions its frame may be freed and get another
//! owner. Only values that keep the frame from being freed or handed on implement [`Held`]; no
//! other crate can implement it. The proof is borrowed from such a value ([`HeldFrame`]), so while
//! it is used, its holder can be neither dropped nor moved. Another crate's type that contains such
//! a value can lend its proof.
//!
//! | value | keeps the frame by |
//! |---|---|
//! | [`Frame<K, S>`], kernel kind | being its only owner |
//! | [`Frame<K, S>`], user kind | one reference |
//! | [`KeptFrame<K, S>`] | the same, as a word |
//! | [`LeafMapping<K, S>`], [`LargeMapping<S>`] | the leaf's mapping |
//! | [`Pin<K, S>`] | one pin |
//! | [`HeldFrame`] | the value that it is borrowed from |
//!
//! A [`Handle`](crate::Handle) holds nothing: it is only a number with a kind.
//!
//! **Numbers become holders** in [`Frame::from_raw`] and [`LeafMapping::from_leaf`] (also
//! [`Frame::borrow_raw`], [`LeafMapping::borrow_leaf`] and the large leaf's). They trust a
//! structure that keeps holds as bare numbers: a page table, an index. They compare the owner, and
//! their caller has that structure's lock.

use core::marker::PhantomData;

use freehold_machine::Pfn;

use crate::{Frame, FrameKind, FrameSource, KeptFrame, LargeMapping, LeafMapping, Pin, UserKind};

mod sealed {
    pub trait Sealed {}
}

/// A value that holds frames. See the module's head.
pub trait Held: sealed::Sealed {
    /// Its frames.
    fn held_run(&self) -> HeldRun<'_>;
    /// Its first frame.
    #[inline(always)]
    fn held(&self) -> HeldFrame<'_> {
        self.held_run().first()
    }
    /// Frame `index` of its block.
    ///
    /// # Panics
    /// If the block has no such frame.
    #[inline(always)]
    fn held_at(&self, index: u64) -> HeldFrame<'_> {
        self.held_run().frame(index)
    }
}

/// A frame whose holder is borrowed for `'a`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldFrame<'a> {
    frame: Pfn,
    holder: PhantomData<&'a ()>,
}

impl HeldFrame<'_> {
    /// The frame.
    #[inline(always)]
    pub const fn pfn(self) -> Pfn {
        self.frame
    }
}

/// Adjacent frames whose holder is borrowed for `'a`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldRun<'a> {
    first: HeldFrame<'a>,
    count: u64,
}

impl<'a> HeldRun<'a> {
    #[inline(always)]
    const fn new(first: Pfn, count: u64) -> Self {
        Self { first: HeldFrame { frame: first, holder: PhantomData }, count }
    }
    /// The first frame.
    #[inline(always)]
    pub const fn first(self) -> HeldFrame<'a> {
        self.first
    }
    /// How many frames there are: 1 or more.
    #[inline(always)]
    pub const fn count(self) -> u64 {
        self.count
    }
    /// Frame `index`.
    ///
    /// # Panics
    /// If there is no such frame.
    #[inline(always)]
    pub fn frame(self, index: u64) -> HeldFrame<'a> {
        assert!(index < self.count, "the holder has no frame {index}");
        HeldFrame { frame: self.first.frame.offset(index), holder: PhantomData }
    }
}

impl<K: FrameKind, S: FrameSource> sealed::Sealed for Frame<K, S> {}
impl<K: FrameKind, S: FrameSource> Held for Frame<K, S> {
    #[inline(always)]
    fn held_run(&self) -> HeldRun<'_> {
        HeldRun::new(self.pfn(), self.order().frames())
    }
    #[inline(always)]
    fn held(&self) -> HeldFrame<'_> {
        HeldFrame { frame: self.pfn(), holder: PhantomData }
    }
}

impl<K: FrameKind, S: FrameSource> sealed::Sealed for KeptFrame<K, S> {}
impl<K: FrameKind, S: FrameSource> Held for KeptFrame<K, S> {
    /// The frame; after it was taken out, a number that no frame has.
    #[inline(always)]
    fn held_run(&self) -> HeldRun<'_> {
        HeldRun::new(self.pfn(), 1)
    }
}

impl<K: UserKind, S: FrameSource> sealed::Sealed for LeafMapping<K, S> {}
impl<K: UserKind, S: FrameSource> Held for LeafMapping<K, S> {
    #[inline(always)]
    fn held_run(&self) -> HeldRun<'_> {
        HeldRun::new(self.pfn(), 1)
    }
}

impl<K: UserKind, S: FrameSource> sealed::Sealed for Pin<K, S> {}
impl<K: UserKind, S: FrameSource> Held for Pin<K, S> {
    #[inline(always)]
    fn held_run(&self) -> HeldRun<'_> {
        HeldRun::new(self.pfn(), 1)
    }
}

impl<S: FrameSource> sealed::Sealed for LargeMapping<S> {}
impl<S: FrameSource> Held for LargeMapping<S> {
    #[inline(always)]
    fn held_run(&self) -> HeldRun<'_> {
        HeldRun::new(self.pfn(), freehold_machine::PAGEBLOCK_FRAMES)
    }
}

impl sealed::Sealed for HeldFrame<'_> {}
impl Held for HeldFrame<'_> {
    #[inline(always)]
    fn held_run(&self) -> HeldRun<'_> {
        HeldRun { first: *self, count: 1 }
    }
}
