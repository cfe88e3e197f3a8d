//! Where a user frame's page is found: 16 bytes beside the record, in a table of their own.
//!
//! Whoever allocates, maps, shares or frees a frame reads its record and not this. So the records lie as closely as they can: four to a cache line.

use core::sync::atomic::{AtomicU64, Ordering};

/// An object's number, and the page's index in it. What that means is the owner's affair; the page allocator leaves it as it is.
#[derive(Debug, zerocopy::FromZeros)]
#[repr(C)]
pub struct Home {
    object: AtomicU64,
    index: AtomicU64,
}

const _: () = assert!(size_of::<Home>() == 16);

impl Home {
    /// That of a frame that never had an owner.
    #[allow(clippy::declare_interior_mutable_const, reason = "a value to build tables from, never borrowed")]
    pub const EMPTY: Self = Self { object: AtomicU64::new(0), index: AtomicU64::new(0) };

    /// The object's number and the page's index.
    pub fn get(&self) -> (u64, u64) {
        (self.object.load(Ordering::Acquire), self.index.load(Ordering::Relaxed))
    }
    /// Only the frame's owner calls this, before others can find the frame.
    pub fn set(&self, object: u64, index: u64) {
        self.index.store(index, Ordering::Relaxed);
        self.object.store(object, Ordering::Release);
    }
}
