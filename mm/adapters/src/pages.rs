//! `axallocator`'s page allocator over the buddy allocator.

use axallocator::{AllocError, AllocResult, BaseAllocator, PageAllocator};
use freehold_buddy::Buddy;
use freehold_frame::{Frame, FrameSource, Kernel, Order, Owner, Request};
use freehold_machine::{Machine, PAGE_SHIFT, PAGE_SIZE, Pfn, PfnRange, PhysicalBytes};

/// Pages of a [`Buddy`] by their addresses in the kernel's direct map.
///
/// Pages come in blocks of a power of two, at most 1,024 pages (4 MiB), aligned to their size. A
/// request for another number takes the next larger block, and gives it back as a whole. Frames are
/// the kernel's ([`Kernel`]).
#[derive(Debug)]
pub struct BuddyPages<M: Machine + PhysicalBytes> {
    buddy: &'static Buddy<M>,
    direct_map: usize,
}

impl<M: Machine + PhysicalBytes> BuddyPages<M> {
    /// Takes pages from `buddy`; the address of frame 0 is `direct_map`, a multiple of the largest
    /// alignment that is asked for.
    pub const fn new(buddy: &'static Buddy<M>, direct_map: usize) -> Self {
        Self { buddy, direct_map }
    }

    fn pfn(&self, address: usize) -> Option<Pfn> {
        let offset = address.checked_sub(self.direct_map)?;
        offset.is_multiple_of(PAGE_SIZE).then_some(Pfn(offset as u64 >> PAGE_SHIFT))
    }

    fn range(&self, start: usize, size: usize) -> Option<PfnRange> {
        Some(PfnRange { start: self.pfn(start)?, end: self.pfn(start.checked_add(size)?)? })
    }
}

impl<M: Machine + PhysicalBytes> BaseAllocator for BuddyPages<M> {
    /// The allocator has its memory from its topology.
    ///
    /// # Panics
    /// If the region is not memory of the allocator.
    fn init(&mut self, start: usize, size: usize) {
        let range = self.range(start, size).expect("a region of whole pages in the direct map");
        let inside = |frame| self.buddy.table().get(frame).is_some();
        let is_memory = range.is_empty() || inside(range.start) && inside(Pfn(range.end.0 - 1));
        assert!(is_memory, "{range:?} is not memory of the allocator");
    }

    /// Brings in memory that the topology has and that is not in use: whole pageblocks of 2 MiB of
    /// one node. Memory that is in use already stays so.
    fn add_memory(&mut self, start: usize, size: usize) -> AllocResult {
        let range = self.range(start, size).ok_or(AllocError::InvalidParam)?;
        self.buddy.plug(range).map_err(|_| AllocError::InvalidParam)
    }
}

impl<M: Machine + PhysicalBytes> PageAllocator for BuddyPages<M> {
    const PAGE_SIZE: usize = PAGE_SIZE;

    fn alloc_pages(&mut self, num_pages: usize, align_pow2: usize) -> AllocResult<usize> {
        if num_pages == 0 || !align_pow2.is_power_of_two() || !align_pow2.is_multiple_of(PAGE_SIZE) {
            return Err(AllocError::InvalidParam);
        }
        let frames = num_pages.max(align_pow2 / PAGE_SIZE) as u64;
        let order = Order::holding(frames).ok_or(AllocError::NoMemory)?;
        let request = Request::new(Owner::Kernel).order(order);
        let block =
            Frame::<Kernel, _>::allocate_with(self.buddy, request).map_err(|_| AllocError::NoMemory)?;
        Ok(self.direct_map + (block.into_raw().0 << PAGE_SHIFT) as usize)
    }

    /// # Panics
    /// If `pos` is not the beginning of pages that [`PageAllocator::alloc_pages`] gave, or there
    /// are fewer than `num_pages` of them.
    fn dealloc_pages(&mut self, pos: usize, num_pages: usize) {
        let first = self.pfn(pos).unwrap_or_else(|| panic!("{pos:#x} is no page of the direct map"));
        match Frame::<Kernel, _>::from_raw(self.buddy, first) {
            Ok(block) if num_pages as u64 <= block.order().frames() => drop(block),
            Ok(block) => {
                let frames = block.order().frames();
                let _in_use = block.into_raw();
                panic!("{num_pages} pages at {pos:#x}, of which {frames} were allocated")
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Always [`AllocError::InvalidParam`]: this allocator chooses the frames that it hands out.
    fn alloc_pages_at(&mut self, _base: usize, _pages: usize, _align: usize) -> AllocResult<usize> {
        Err(AllocError::InvalidParam)
    }

    fn total_pages(&self) -> usize {
        self.buddy.total_frames() as usize
    }

    fn used_pages(&self) -> usize {
        self.total_pages() - self.available_pages()
    }

    fn available_pages(&self) -> usize {
        self.buddy.free_frames() as usize
    }
}
