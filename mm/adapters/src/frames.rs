//! `x86_64`'s frame allocator over any source of frames.

use core::marker::PhantomData;

use freehold_frame::{Frame, FrameKind, FrameSource, Order, Request};
use freehold_machine::{PAGE_SHIFT, Pfn};
use x86_64::PhysAddr;
use x86_64::structures::paging::{FrameAllocator, FrameDeallocator, PageSize, PhysFrame, Size2MiB, Size4KiB};

/// Frames of kind `K`, as `x86_64` passes them: 4 KiB and 2 MiB, zeroed.
///
/// A frame's record says that it is of kind `K` until it is given back.
#[derive(Debug)]
pub struct TypedFrames<K: FrameKind, S: FrameSource> {
    source: S,
    kind: PhantomData<K>,
}

impl<K: FrameKind, S: FrameSource> TypedFrames<K, S> {
    /// Takes frames from `source`.
    pub const fn new(source: S) -> Self {
        Self { source, kind: PhantomData }
    }

    fn allocate<P: PageSize>(&self) -> Option<PhysFrame<P>> {
        let request = Request::new(K::OWNER).order(order::<P>()).zeroed();
        let frame = Frame::<K, S>::allocate_with(self.source, request).ok()?;
        Some(to_x86_64(frame.into_raw()))
    }

    fn give_back<P: PageSize>(&self, frame: PhysFrame<P>) {
        match Frame::<K, S>::from_raw(self.source, to_pfn(frame)) {
            Ok(block) if block.order() == order::<P>() => drop(block),
            Ok(block) => {
                let order = block.into_raw();
                panic!("{order:?} does not begin a block of {} bytes", P::SIZE)
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn order<P: PageSize>() -> Order {
    Order::holding(P::SIZE >> PAGE_SHIFT).expect("a page size of the processor is a block")
}

pub(crate) fn to_x86_64<P: PageSize>(frame: Pfn) -> PhysFrame<P> {
    PhysFrame::containing_address(PhysAddr::new(frame.0 << PAGE_SHIFT))
}

pub(crate) fn to_pfn<P: PageSize>(frame: PhysFrame<P>) -> Pfn {
    Pfn(frame.start_address().as_u64() >> PAGE_SHIFT)
}

// SAFETY: a source hands each frame out once until it is released.
unsafe impl<K: FrameKind, S: FrameSource> FrameAllocator<Size4KiB> for TypedFrames<K, S> {
    fn allocate_frame(&mut self) -> Option<PhysFrame<Size4KiB>> {
        self.allocate()
    }
}

// SAFETY: as above.
unsafe impl<K: FrameKind, S: FrameSource> FrameAllocator<Size2MiB> for TypedFrames<K, S> {
    fn allocate_frame(&mut self) -> Option<PhysFrame<Size2MiB>> {
        self.allocate()
    }
}

/// # Panics
/// If the frame is not one of kind `K` and of this size that is in use.
impl<K: FrameKind, S: FrameSource> FrameDeallocator<Size4KiB> for TypedFrames<K, S> {
    unsafe fn deallocate_frame(&mut self, frame: PhysFrame<Size4KiB>) {
        self.give_back(frame);
    }
}

/// # Panics
/// If the frame is not one of kind `K` and of this size that is in use.
impl<K: FrameKind, S: FrameSource> FrameDeallocator<Size2MiB> for TypedFrames<K, S> {
    unsafe fn deallocate_frame(&mut self, frame: PhysFrame<Size2MiB>) {
        self.give_back(frame);
    }
}
