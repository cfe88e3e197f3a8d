//! A heap for a kernel without one: the crates that allocate (paging and bounce) need it before
//! there is a page allocator.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};

/// `BYTES` bytes of the kernel's image, handed out from the first to the last: the kernel's
/// `#[global_allocator]`. It takes back the block that was handed out last, and no other, so it is
/// for objects that live for ever and for a few small ones. May be used from any CPU and any
/// context.
pub struct EarlyHeap<const BYTES: usize> {
    bytes: UnsafeCell<[u8; BYTES]>,
    used: AtomicUsize,
}

impl<const BYTES: usize> EarlyHeap<BYTES> {
    /// Makes a heap of which nothing is used: zeroes, so that it takes no room in an image's file.
    pub const fn new() -> Self {
        Self { bytes: UnsafeCell::new([0; BYTES]), used: AtomicUsize::new(0) }
    }

    /// Returns the bytes that are handed out, with the gaps before aligned blocks.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn start(&self) -> *mut u8 {
        self.bytes.get().cast()
    }

    /// The offset of the first block of this layout behind `used` bytes; `None` if none fits.
    fn place(&self, used: usize, layout: Layout) -> Option<usize> {
        let start = self.start().addr();
        let offset = (start + used).checked_next_multiple_of(layout.align())? - start;
        (offset.checked_add(layout.size())? <= BYTES).then_some(offset)
    }
}

// SAFETY: each byte is handed out to one owner at a time, by atomic changes of `used`.
unsafe impl<const BYTES: usize> Sync for EarlyHeap<BYTES> {}

// SAFETY: blocks are aligned, inside the bytes, and behind all blocks in use.
unsafe impl<const BYTES: usize> GlobalAlloc for EarlyHeap<BYTES> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let end = |used| self.place(used, layout).map(|offset| offset + layout.size());
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, end) {
            Ok(used) => {
                let offset = self.place(used, layout).expect("it was found above");
                self.start().wrapping_add(offset)
            }
            Err(_) => null_mut(),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let offset = block.addr() - self.start().addr();
        // An error means that the block is not the last one: it stays in use.
        let _ =
            self.used.compare_exchange(offset + layout.size(), offset, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).expect("a power of two")
    }

    #[test]
    fn blocks_are_aligned_apart_and_inside_until_none_fits() {
        static HEAP: EarlyHeap<{ 1 << 16 }> = EarlyHeap::new();
        let mut end = HEAP.start().addr();
        for (size, align) in [(1, 1), (3, 64), (100, 8), (1, 4096), (4096, 4096)] {
            // SAFETY: no layout is empty.
            let block = unsafe { HEAP.alloc(layout(size, align)) }.addr();
            assert!(block >= end && block.is_multiple_of(align), "{size} bytes aligned to {align}");
            end = block + size;
        }
        assert!(HEAP.used() < 1 << 16 && end == HEAP.start().addr() + HEAP.used());
        for size in [1 << 16, isize::MAX as usize] {
            // SAFETY: as above.
            assert!(unsafe { HEAP.alloc(layout(size, 1)) }.is_null(), "{size} bytes do not fit");
        }
    }

    #[test]
    fn the_last_block_is_taken_back_and_no_other() {
        static HEAP: EarlyHeap<256> = EarlyHeap::new();
        // SAFETY: as above.
        let [first, second] = [(); 2].map(|()| unsafe { HEAP.alloc(layout(64, 1)) });
        // SAFETY: the block, by its layout.
        unsafe { HEAP.dealloc(first, layout(64, 1)) };
        assert_eq!(HEAP.used(), 128);
        // SAFETY: as above.
        unsafe { HEAP.dealloc(second, layout(64, 1)) };
        assert_eq!(HEAP.used(), 64);
    }
}
