//! Slabs: naturally aligned blocks of frames, each cut into objects of one size.
//!
//! A block starts with its [`SlabHeader`]; free objects hold the list of free objects. Per class, the blocks
//! with a free object are on a doubly linked list; full ones are on none. Blocks come from and go to the
//! caller, so that the whole lives under one lock without calling out.

use core::alloc::Layout;
use core::ptr::{self, NonNull};

use freehold_machine::PAGE_SIZE;

/// Objects of one size.
#[derive(Clone, Copy)]
pub(super) struct Class {
    /// Bytes of an object.
    pub size: usize,
    /// Order of a block.
    pub order: u32,
}

const fn class(size: usize, order: u32) -> Class {
    Class { size, order }
}

/// The sizes, upwards.
pub(super) const CLASSES: [Class; 14] = [
    class(16, 0),
    class(32, 0),
    class(48, 0),
    class(64, 0),
    class(96, 0),
    class(128, 0),
    class(192, 0),
    class(256, 0),
    class(384, 0),
    class(512, 0),
    class(768, 0),
    class(1024, 1),
    class(1536, 1),
    class(2048, 2),
];

/// The smallest class for a size, by the number of 16 bytes that it needs.
const BY_SIZE: [u8; MAX_SIZE / 16 + 1] = {
    let mut table = [0; MAX_SIZE / 16 + 1];
    let (mut units, mut class) = (0, 0);
    while units < table.len() {
        if units * 16 > CLASSES[class].size {
            class += 1;
        }
        table[units] = class as u8;
        units += 1;
    }
    table
};

/// The largest size that has a class.
const MAX_SIZE: usize = CLASSES[CLASSES.len() - 1].size;

/// The class for a layout; `None` where whole frames serve.
#[inline]
pub(super) fn class_for(layout: Layout) -> Option<usize> {
    let mut size = layout.size();
    if layout.align() > 16 {
        // Only objects whose size is a power of two are aligned to more than 16 bytes.
        size = size.max(layout.align()).next_power_of_two();
    }
    BY_SIZE.get(size.div_ceil(16)).map(|&class| usize::from(class))
}

struct Free {
    next: *mut Free,
}

#[repr(C)]
struct SlabHeader {
    next: *mut SlabHeader,
    prev: *mut SlabHeader,
    free: *mut Free,
    used: usize,
}

/// The blocks of all classes.
pub(super) struct Slabs {
    /// The blocks with a free object; none while they are [hidden](Slabs::hide).
    partial: [*mut SlabHeader; CLASSES.len()],
    /// The blocks with a free object while they are hidden.
    hidden: [*mut SlabHeader; CLASSES.len()],
    is_hiding: bool,
    /// Objects that are not free.
    used: [usize; CLASSES.len()],
}

// SAFETY: the pointers lead to blocks that only this structure uses, whichever CPU holds it.
unsafe impl Send for Slabs {}

/// Where the first object of a block is: behind the header, aligned as far as the size is.
const fn first_offset(size: usize) -> usize {
    let align = 1 << size.trailing_zeros();
    let header = size_of::<SlabHeader>();
    if header > align { header.next_multiple_of(align) } else { align }
}

impl Slabs {
    pub(super) const fn new() -> Self {
        let none = [ptr::null_mut(); CLASSES.len()];
        Self { partial: none, hidden: none, is_hiding: false, used: [0; CLASSES.len()] }
    }

    /// From now on only [`Slabs::take_hidden`] finds objects: so who takes one in a hurry need not ask whether it may.
    pub(super) fn hide(&mut self) {
        self.is_hiding = true;
        self.hidden = core::mem::replace(&mut self.partial, [ptr::null_mut(); CLASSES.len()]);
    }

    /// Bytes of the objects that are not free.
    pub(super) fn allocated_bytes(&self) -> usize {
        self.used.iter().zip(&CLASSES).map(|(used, class)| used * class.size).sum()
    }

    /// The first of the blocks of a class with a free object.
    fn first(&mut self, class: usize) -> &mut *mut SlabHeader {
        if self.is_hiding { &mut self.hidden[class] } else { &mut self.partial[class] }
    }

    /// An object, where a block of the class has a free one in view.
    #[inline]
    pub(super) fn take(&mut self, class: usize) -> Option<NonNull<u8>> {
        self.take_from(class, self.partial[class])
    }

    /// An object, where a block of the class has a free one, hidden or not.
    pub(super) fn take_hidden(&mut self, class: usize) -> Option<NonNull<u8>> {
        let block = *self.first(class);
        self.take_from(class, block)
    }

    #[inline]
    fn take_from(&mut self, class: usize, block: *mut SlabHeader) -> Option<NonNull<u8>> {
        // SAFETY: blocks on the list are valid and only reached through `self`, which is borrowed mutably.
        let header = unsafe { block.as_mut() }?;
        // SAFETY: a block on the list has a free object.
        let object = unsafe { NonNull::new_unchecked(header.free) };
        // SAFETY: a free object holds the next one's address.
        let next = unsafe { object.as_ref() }.next;
        header.free = next;
        header.used += 1;
        self.used[class] += 1;
        if next.is_null() {
            self.unlink(class, block);
        }
        Some(object.cast())
    }

    /// Cut a block into objects.
    ///
    /// # Safety
    /// `block` is 2^order frames of the class, aligned to their size, that nobody else uses until
    /// [`Slabs::give`] returns them.
    pub(super) unsafe fn add(&mut self, class: usize, block: *mut u8) {
        let Class { size, order } = CLASSES[class];
        let end = PAGE_SIZE << order;
        let mut free: *mut Free = ptr::null_mut();
        let first = first_offset(size);
        let count = (end - first) / size;
        for index in (0..count).rev() {
            let object = block.wrapping_add(first + index * size).cast::<Free>();
            // SAFETY: inside the block, aligned to 16 bytes, and behind the header.
            unsafe { object.write(Free { next: free }) };
            free = object;
        }
        let header = block.cast::<SlabHeader>();
        // SAFETY: the block begins with room for the header and is aligned to a page.
        unsafe { header.write(SlabHeader { next: ptr::null_mut(), prev: ptr::null_mut(), free, used: 0 }) };
        self.link(class, header);
    }

    /// Take an object back. Returns its block when that became empty and the class has others: it is no
    /// longer this structure's then.
    ///
    /// # Safety
    /// `object` came from [`Slabs::take`] for the same class and is not used any more.
    pub(super) unsafe fn give(&mut self, class: usize, object: *mut u8) -> Option<*mut u8> {
        let block = (object as usize & !((PAGE_SIZE << CLASSES[class].order) - 1)) as *mut SlabHeader;
        // SAFETY: an object's block starts at the next lower multiple of the block size, with its header.
        let header = unsafe { &mut *block };
        let was_full = header.free.is_null();
        let free = object.cast::<Free>();
        // SAFETY: the object is at least 16 bytes, aligned, and the caller's promise makes it free.
        unsafe { free.write(Free { next: header.free }) };
        header.free = free;
        header.used -= 1;
        self.used[class] -= 1;
        let empty = header.used == 0;
        if was_full {
            self.link(class, block);
        }
        if empty && !self.only(class, block) {
            self.unlink(class, block);
            return Some(block.cast());
        }
        None
    }

    /// Whether `block` is the only one on the class's list.
    fn only(&mut self, class: usize, block: *mut SlabHeader) -> bool {
        // SAFETY: `block` is on the list, so it is valid.
        *self.first(class) == block && unsafe { (*block).next.is_null() }
    }

    fn link(&mut self, class: usize, block: *mut SlabHeader) {
        let first = self.first(class);
        let old = core::mem::replace(first, block);
        // SAFETY: `block` is a valid block that is on no list; nothing else refers to its header now.
        let header = unsafe { &mut *block };
        header.next = old;
        header.prev = ptr::null_mut();
        if !old.is_null() {
            // SAFETY: the head of the list is a valid block.
            unsafe { (*old).prev = block };
        }
    }

    fn unlink(&mut self, class: usize, block: *mut SlabHeader) {
        // SAFETY: `block` is on the list, so it is valid.
        let &SlabHeader { next, prev, .. } = unsafe { &*block };
        if prev.is_null() {
            *self.first(class) = next;
        } else {
            // SAFETY: neighbours on the list are valid blocks.
            unsafe { (*prev).next = next };
        }
        if !next.is_null() {
            // SAFETY: as above.
            unsafe { (*next).prev = prev };
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    #[test]
    fn every_layout_gets_the_smallest_class_that_fits_and_aligns() {
        for size in 0..=2048 {
            for align in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048] {
                let class = class_for(Layout::from_size_align(size, align).unwrap()).unwrap();
                assert!(CLASSES[class].size >= size);
                assert_eq!(first_offset(CLASSES[class].size) % align.min(CLASSES[class].size), 0);
                assert!(align <= 16 || CLASSES[class].size.is_multiple_of(align));
                assert!(align > 16 || class == 0 || CLASSES[class - 1].size < size.max(1));
            }
        }
        assert_eq!(class_for(Layout::from_size_align(2049, 1).unwrap()), None);
        assert_eq!(class_for(Layout::from_size_align(8, 4096).unwrap()), None);
    }

    fn block_layout(class: &Class) -> Layout {
        Layout::from_size_align(PAGE_SIZE << class.order, PAGE_SIZE << class.order).unwrap()
    }

    #[test]
    fn objects_never_overlap_and_empty_blocks_come_back() {
        exercise(Slabs::new());
    }

    #[test]
    fn hidden_blocks_serve_who_asks_for_them_and_nobody_else() {
        let mut slabs = Slabs::new();
        slabs.hide();
        exercise(slabs);
    }

    fn exercise(mut slabs: Slabs) {
        let mut blocks = 0;
        for (class, kind) in CLASSES.iter().enumerate() {
            let mut live = BTreeMap::new();
            for _ in 0..1000 {
                let object = loop {
                    let seen = if slabs.is_hiding { None } else { slabs.take(class) };
                    if let Some(object) = seen.or_else(|| slabs.take_hidden(class)) {
                        break object.as_ptr();
                    }
                    // SAFETY: the layout is not empty.
                    let block = unsafe { std::alloc::alloc(block_layout(kind)) };
                    // SAFETY: a fresh block of the class's size and alignment.
                    unsafe { slabs.add(class, block) };
                    blocks += 1;
                };
                let address = object as usize;
                if let Some((below, _)) = live.range(..=address).next_back() {
                    assert!(below + kind.size <= address);
                }
                live.insert(address, object);
                // SAFETY: an object has its class's size.
                unsafe { object.write_bytes(0xa5, kind.size) };
            }
            assert_eq!(slabs.allocated_bytes(), 1000 * kind.size);
            assert!(!slabs.is_hiding || slabs.take(class).is_none());
            let mut objects: Vec<_> = live.into_values().collect();
            objects.rotate_left(313);
            for object in objects {
                // SAFETY: taken above, for this class, and not used any more.
                if let Some(block) = unsafe { slabs.give(class, object) } {
                    // SAFETY: allocated above with this layout.
                    unsafe { std::alloc::dealloc(block, block_layout(kind)) };
                    blocks -= 1;
                }
            }
        }
        assert_eq!(blocks, CLASSES.len(), "one empty block per class is kept");
        for (class, kind) in CLASSES.iter().enumerate() {
            // SAFETY: allocated above with this layout, and all its objects are back.
            unsafe { std::alloc::dealloc((*slabs.first(class)).cast(), block_layout(kind)) };
        }
    }
}
