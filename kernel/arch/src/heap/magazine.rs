//! Magazines: the free objects that one CPU keeps, a list for each size.
//!
//! **Protocol.** Only its CPU takes from a magazine and adds to it, in task context. The kernel is
//! not preemptible and interrupt handlers do not use the heap, so no other code runs between two
//! steps. A hit writes no line that another CPU writes. Others read the counts only, for
//! [statistics](super::stats). An empty magazine takes objects from the slabs under their lock: all
//! free objects of one block at a time, so that objects that share a line are one CPU's. Surplus
//! objects go back there. Linux' nearest relatives are a CPU's slab in mm/slub.c, and the magazines
//! of Bonwick and Adams, "Magazines and Vmem" (USENIX 2001).
//!
//! **Bounds.** A magazine has at most the objects of one block, or [`LEAST_ROOM`] where these are
//! fewer: all of a CPU's together hold about 80 KiB.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use super::slab::{CLASSES, Free, OBJECTS};

/// Size of a magazine, in objects, if a block has fewer.
const LEAST_ROOM: u32 = 8;

/// Number of objects of each class that fit a magazine.
pub(super) const ROOM: [u32; CLASSES.len()] = {
    let mut room = [0; CLASSES.len()];
    let mut class = 0;
    while class < room.len() {
        room[class] = if OBJECTS[class] < LEAST_ROOM { LEAST_ROOM } else { OBJECTS[class] };
        class += 1;
    }
    room
};

/// One CPU's free objects.
pub(crate) struct Magazines {
    free: [AtomicPtr<Free>; CLASSES.len()],
    counts: [AtomicU32; CLASSES.len()],
}

/// A list of free objects without a user.
pub(super) struct Chain {
    first: *mut Free,
    count: u32,
}

impl Magazines {
    /// A magazine without objects.
    pub(crate) const fn new() -> Self {
        Self {
            free: [const { AtomicPtr::new(ptr::null_mut()) }; CLASSES.len()],
            counts: [const { AtomicU32::new(0) }; CLASSES.len()],
        }
    }

    /// Takes an object, if there is one. Called on its CPU only.
    #[inline]
    pub(super) fn take(&self, class: usize) -> Option<NonNull<u8>> {
        let object = NonNull::new(self.free[class].load(Ordering::Relaxed))?;
        // SAFETY: objects on the list are free and hold the next one's address; only this CPU uses
        // the list.
        let next = unsafe { object.as_ref() }.next;
        self.free[class].store(next, Ordering::Relaxed);
        self.add_to_count(class, -1);
        Some(object.cast())
    }

    /// Whether the magazine has fewer than `room` objects.
    #[inline]
    pub(super) fn has_room(&self, class: usize, room: u32) -> bool {
        self.counts[class].load(Ordering::Relaxed) < room
    }

    /// Adds an object. Called on its CPU only.
    ///
    /// # Safety
    /// `object` is of the class and is no longer used.
    #[inline]
    pub(super) unsafe fn give(&self, class: usize, object: *mut u8) {
        let free = object.cast::<Free>();
        // SAFETY: an object is at least 16 bytes, aligned, and by the caller's promise free.
        unsafe { free.write(Free { next: self.free[class].load(Ordering::Relaxed) }) };
        self.free[class].store(free, Ordering::Relaxed);
        self.add_to_count(class, 1);
    }

    #[inline]
    fn add_to_count(&self, class: usize, change: i32) {
        let count = &self.counts[class];
        // One writer: a load and a store lose nothing.
        count.store(count.load(Ordering::Relaxed).wrapping_add_signed(change), Ordering::Relaxed);
    }

    /// Fills the empty magazine with the objects of `chain`. Called on its CPU only.
    pub(super) fn load(&self, class: usize, chain: Chain) {
        debug_assert!(
            self.free[class].load(Ordering::Relaxed).is_null(),
            "a magazine is loaded when it is empty"
        );
        self.free[class].store(chain.first, Ordering::Relaxed);
        self.counts[class].store(chain.count, Ordering::Relaxed);
    }

    /// Keeps the `keep` objects that were added last, and returns the others. Called on its CPU
    /// only.
    pub(super) fn cut(&self, class: usize, keep: u32) -> Chain {
        let count = self.counts[class].load(Ordering::Relaxed);
        let keep = keep.min(count);
        let first = self.free[class].load(Ordering::Relaxed);
        let rest = if keep == 0 {
            self.free[class].swap(ptr::null_mut(), Ordering::Relaxed)
        } else {
            let mut last = first;
            for _ in 1..keep {
                // SAFETY: the list has `count` objects, which are free and this CPU's; fewer are
                // passed.
                last = unsafe { (*last).next };
            }
            // SAFETY: as above.
            core::mem::replace(unsafe { &mut (*last).next }, ptr::null_mut())
        };
        self.counts[class].store(keep, Ordering::Relaxed);
        Chain { first: rest, count: count - keep }
    }

    /// Returns the bytes of the objects in the magazine.
    pub(super) fn bytes(&self) -> usize {
        let sizes = CLASSES.iter().map(|class| class.size);
        self.counts.iter().zip(sizes).map(|(count, size)| count.load(Ordering::Relaxed) as usize * size).sum()
    }
}

impl Chain {
    /// The `count` objects from `first` on.
    ///
    /// # Safety
    /// Each holds the next one's address, the last one null; they are of one class and not in use.
    pub(super) const unsafe fn new(first: *mut Free, count: u32) -> Self {
        Self { first, count }
    }

    /// A single object.
    ///
    /// # Safety
    /// `object` is the heap's and is no longer used.
    pub(super) unsafe fn of(object: *mut u8) -> Self {
        let first = object.cast::<Free>();
        // SAFETY: an object is at least 16 bytes, aligned, and by the caller's promise free.
        unsafe { first.write(Free { next: ptr::null_mut() }) };
        Self { first, count: 1 }
    }

    /// Takes the first object off the chain.
    pub(super) fn next(&mut self) -> Option<NonNull<u8>> {
        let object = NonNull::new(self.first)?;
        // SAFETY: the objects of a chain have no user and hold the next one's address.
        self.first = unsafe { object.as_ref() }.next;
        self.count -= 1;
        Some(object.cast())
    }
}
