//! Kernel frames as bytes.

use core::ops::{Deref, DerefMut};

use freehold_machine::{PAGE_SIZE, Pfn, PhysAddr};

use super::{direct, tables};

/// The owner of 2^order kernel-side frames, with their bytes through the direct map.
///
/// The frames that it is made from belong to it: no other code uses them until
/// [`KernelPages::into_frames`]. Dropping it without that call loses the frames.
#[derive(Debug)]
pub struct KernelPages {
    first: Pfn,
    order: u32,
}

impl KernelPages {
    /// Makes the owner of 2^`order` frames from `first` on, which belong to the caller.
    ///
    /// # Panics
    /// If one of the frames is not in the direct map.
    pub fn from_frames(first: Pfn, order: u32) -> Self {
        for index in 0..1u64 << order {
            let frame = first.offset(index);
            assert!(
                super::is_within_memory(frame) && direct::contains(frame),
                "{frame:?} is not kernel-side"
            );
        }
        Self { first, order }
    }
    /// Returns the frames.
    pub fn into_frames(self) -> (Pfn, u32) {
        (self.first, self.order)
    }
    /// The physical address of the first byte.
    pub fn phys(&self) -> PhysAddr {
        self.first.start()
    }
    /// Returns the address of the bytes in the direct map.
    pub fn as_ptr(&self) -> *mut u8 {
        tables::frame_ptr(self.first)
    }
}

impl Deref for KernelPages {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the frames are mapped side by side in the direct map for as long as this owner
        // has them (checked when it was made; a pageblock leaves only when none of its frames is in
        // use).
        unsafe { core::slice::from_raw_parts(self.as_ptr(), PAGE_SIZE << self.order) }
    }
}

impl DerefMut for KernelPages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and this owner is borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.as_ptr(), PAGE_SIZE << self.order) }
    }
}
