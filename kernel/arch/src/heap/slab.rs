//! Slabs: naturally aligned blocks of frames, each cut into objects of one size.
//!
//! A block starts with its [`SlabHeader`] and the payer of each object ([`super::charge`]); free
//! objects hold the list of free objects. Per class, the blocks with a free object are on a doubly
//! linked list; full ones are on none. The caller supplies blocks and gets them back, so one lock
//! covers all of this and no function here calls the page allocator.
//!
//! A new block's objects are handed out in random order, so that neighbouring objects cannot be
//! predicted. Each class has one order, drawn once; each block begins at a random place of it (as
//! Linux' `CONFIG_SLAB_FREELIST_RANDOM`).

use core::alloc::Layout;
use core::ptr::{self, NonNull};
use core::sync::atomic::AtomicU16;

use freehold_machine::PAGE_SIZE;

use super::magazine::Chain;

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

/// The smallest class for a size, indexed by the size in units of 16 bytes.
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

/// Returns the class for a layout; `None` if it takes whole frames.
#[inline]
pub(super) fn class_for(layout: Layout) -> Option<usize> {
    let mut size = layout.size();
    if layout.align() > 16 {
        // Only objects whose size is a power of two are aligned to more than 16 bytes.
        size = size.max(layout.align()).next_power_of_two();
    }
    BY_SIZE.get(size.div_ceil(16)).map(|&class| usize::from(class))
}

/// An object that is free.
pub(super) struct Free {
    /// The next free one of the same list.
    pub next: *mut Free,
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
    /// The blocks with a free object.
    partial: [*mut SlabHeader; CLASSES.len()],
    /// Number of objects that are in use.
    used: [usize; CLASSES.len()],
    /// Order in which a new block's objects are handed out, one class after another.
    orders: [u8; PLACES],
    random: u64,
}

// SAFETY: the pointers lead to blocks that only this structure uses, whichever CPU holds it.
unsafe impl Send for Slabs {}

/// The block that an object of a class is in.
fn block_of(class: usize, object: *mut u8) -> *mut u8 {
    object.with_addr(object.addr() & !((PAGE_SIZE << CLASSES[class].order) - 1))
}

/// Smallest distance of two objects, as a power of two: each has its own place in the block's table
/// of payers.
const fn payer_shift(class: Class) -> u32 {
    class.size.ilog2()
}

/// Bytes of a block's table of payers, which is after the header.
const fn payer_bytes(class: Class) -> usize {
    ((PAGE_SIZE << class.order) >> payer_shift(class)) * size_of::<AtomicU16>()
}

/// Returns the payer of an object. It is 0 for new objects, until one is charged, and for free
/// objects.
///
/// # Safety
/// `object` is an object of the class that came from [`Slabs`] and was not given back.
pub(super) unsafe fn payer<'a>(class: usize, object: *mut u8) -> &'a AtomicU16 {
    let block = block_of(class, object);
    let place = (object.addr() - block.addr()) >> payer_shift(CLASSES[class]);
    let payers = block.wrapping_add(size_of::<SlabHeader>()).cast::<AtomicU16>();
    // SAFETY: the place is within the table, which `Slabs::add` has set to zeroes, and no object
    // covers it; the block stays while its object has an owner.
    unsafe { &*payers.wrapping_add(place) }
}

/// Offset of a block's first object: after the header and the payers, aligned as the size is.
const fn first_offset(class: Class) -> usize {
    let align = 1 << class.size.trailing_zeros();
    let header = size_of::<SlabHeader>() + payer_bytes(class);
    if header > align { header.next_multiple_of(align) } else { align }
}

/// Number of objects in a block of each class.
pub(super) const OBJECTS: [u32; CLASSES.len()] = {
    let mut objects = [0; CLASSES.len()];
    let mut class = 0;
    while class < objects.len() {
        let Class { size, order } = CLASSES[class];
        objects[class] = (((PAGE_SIZE << order) - first_offset(CLASSES[class])) / size) as u32;
        class += 1;
    }
    objects
};

/// Where each class's order begins in the table of all orders, and its length.
const ORDERS: ([usize; CLASSES.len()], usize) = {
    let mut starts = [0; CLASSES.len()];
    let (mut class, mut next) = (0, 0);
    while class < starts.len() {
        starts[class] = next;
        next += OBJECTS[class] as usize;
        class += 1;
    }
    (starts, next)
};

const PLACES: usize = ORDERS.1;

/// The part of the table that has a class's order.
fn places(class: usize) -> core::ops::Range<usize> {
    let start = ORDERS.0[class];
    start..start + OBJECTS[class] as usize
}

impl Slabs {
    pub(super) const fn new() -> Self {
        let mut orders = [0; PLACES];
        let mut class = 0;
        while class < CLASSES.len() {
            let mut index = 0;
            while index < OBJECTS[class] as usize {
                orders[ORDERS.0[class] + index] = index as u8;
                index += 1;
            }
            class += 1;
        }
        Self { partial: [ptr::null_mut(); CLASSES.len()], used: [0; CLASSES.len()], orders, random: 1 }
    }

    /// Draws the orders in which objects are handed out; `seed` is random.
    pub(super) fn shuffle(&mut self, seed: u64) {
        self.random = seed | 1;
        for class in 0..CLASSES.len() {
            let places = places(class);
            for left in (2..=places.len()).rev() {
                let drawn = self.below(left);
                self.orders[places.clone()].swap(left - 1, drawn);
            }
        }
    }

    /// A number below `bound`, which is small (Marsaglia, "Xorshift RNGs", 2003; a multiplication
    /// draws from its upper half).
    fn below(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (((self.random >> 32) * bound as u64) >> 32) as usize
    }

    /// Bytes of the objects that are not free.
    pub(super) fn allocated_bytes(&self) -> usize {
        self.used.iter().zip(&CLASSES).map(|(used, class)| used * class.size).sum()
    }

    /// Takes an object, if a block of the class has a free one.
    pub(super) fn take(&mut self, class: usize) -> Option<NonNull<u8>> {
        let block = self.partial[class];
        // SAFETY: blocks on the list are valid and only reached through `self`, which is borrowed
        // mutably.
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

    /// Takes all free objects of one block, if there is one.
    pub(super) fn take_block(&mut self, class: usize) -> Option<Chain> {
        let block = self.partial[class];
        // SAFETY: blocks on the list are valid and only reached through `self`, which is borrowed
        // mutably.
        let header = unsafe { block.as_mut() }?;
        let count = OBJECTS[class] as usize - header.used;
        let first = core::mem::replace(&mut header.free, ptr::null_mut());
        header.used += count;
        self.used[class] += count;
        self.unlink(class, block);
        // SAFETY: a block's free objects are `count`, each holds the next one's address, and the
        // block no longer refers to them.
        Some(unsafe { Chain::new(first, count as u32) })
    }

    /// Cut a block into objects.
    ///
    /// # Safety
    /// `block` is 2^order frames of the class, aligned to their size, that no other code uses until
    /// [`Slabs::give`] returns them.
    pub(super) unsafe fn add(&mut self, class: usize, block: *mut u8) {
        let size = CLASSES[class].size;
        let first = block.wrapping_add(first_offset(CLASSES[class]));
        let start = self.below(OBJECTS[class] as usize);
        let (before, after) = self.orders[places(class)].split_at(start);
        let mut free: *mut Free = ptr::null_mut();
        for &index in before.iter().rev().chain(after.iter().rev()) {
            let object = first.wrapping_add(usize::from(index) * size).cast::<Free>();
            // SAFETY: inside the block, aligned to 16 bytes, and after the header.
            unsafe { object.write(Free { next: free }) };
            free = object;
        }
        let header = block.cast::<SlabHeader>();
        // SAFETY: the block begins with room for the header and is aligned to a page.
        unsafe { header.write(SlabHeader { next: ptr::null_mut(), prev: ptr::null_mut(), free, used: 0 }) };
        let payers = block.wrapping_add(size_of::<SlabHeader>());
        // SAFETY: the payers are between the header and the first object; zeroes are payers.
        unsafe { payers.write_bytes(0, payer_bytes(CLASSES[class])) };
        self.link(class, header);
    }

    /// Takes an object back. Returns its block if the block became empty and the class has others.
    /// Such a block no longer belongs to this structure.
    ///
    /// # Safety
    /// `object` came from here for the same class and is not used any more.
    pub(super) unsafe fn give(&mut self, class: usize, object: *mut u8) -> Option<*mut u8> {
        let block = block_of(class, object).cast::<SlabHeader>();
        // SAFETY: an object's block starts at the next lower multiple of the block size, with its
        // header.
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
    fn only(&self, class: usize, block: *mut SlabHeader) -> bool {
        // SAFETY: `block` is on the list, so it is valid.
        self.partial[class] == block && unsafe { (*block).next.is_null() }
    }

    fn link(&mut self, class: usize, block: *mut SlabHeader) {
        let old = core::mem::replace(&mut self.partial[class], block);
        // SAFETY: `block` is a valid block that is on no list; nothing else refers to its header
        // now.
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
            self.partial[class] = next;
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
    use super::super::magazine::{Magazines, ROOM};
    use super::*;
    use core::sync::atomic::Ordering::Relaxed;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    #[test]
    fn every_layout_gets_the_smallest_class_that_fits_and_aligns() {
        for size in 0..=2048 {
            for align in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048] {
                let class = class_for(Layout::from_size_align(size, align).unwrap()).unwrap();
                assert!(CLASSES[class].size >= size);
                assert_eq!(first_offset(CLASSES[class]) % align.min(CLASSES[class].size), 0);
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
        let mut slabs = Slabs::new();
        slabs.shuffle(7);
        let mut blocks = 0;
        for (class, kind) in CLASSES.iter().enumerate() {
            let mut live = BTreeMap::new();
            for _ in 0..1000 {
                let object = loop {
                    if let Some(object) = slabs.take(class) {
                        break object.as_ptr();
                    }
                    add_block(&mut slabs, class);
                    blocks += 1;
                };
                note_object(&mut live, object, kind.size);
            }
            assert_eq!(slabs.allocated_bytes(), 1000 * kind.size);
            let mut objects: Vec<_> = live.into_values().collect();
            objects.rotate_left(313);
            for object in objects {
                // SAFETY: taken above, for this class, and not used any more.
                if let Some(block) = unsafe { slabs.give(class, object) } {
                    free_block(class, block);
                    blocks -= 1;
                }
            }
        }
        assert_eq!(blocks, CLASSES.len(), "one empty block per class is kept");
        free_kept(&slabs);
    }

    #[test]
    fn a_block_is_handed_out_in_an_order_of_its_own() {
        let mut orders = Vec::new();
        for seed in 0..4 {
            let mut slabs = Slabs::new();
            slabs.shuffle(0x9e37_79b9_7f4a_7c15 << seed);
            for (class, kind) in CLASSES.iter().enumerate() {
                add_block(&mut slabs, class);
                let mut chain = slabs.take_block(class).unwrap();
                let objects: Vec<_> = core::iter::from_fn(|| chain.next()).collect();
                assert_eq!(objects.len(), OBJECTS[class] as usize);
                assert!(slabs.take(class).is_none() && slabs.take_block(class).is_none());
                let block = objects[0].as_ptr() as usize & !((PAGE_SIZE << kind.order) - 1);
                let places: Vec<_> = objects.iter().map(|object| object.as_ptr() as usize - block).collect();
                let mut sorted = places.clone();
                sorted.sort_unstable();
                let all = (0..objects.len()).map(|index| first_offset(*kind) + index * kind.size);
                assert!(all.eq(sorted.iter().copied()), "each object once: {places:?}");
                if class == 0 {
                    let behind = places.windows(2).filter(|pair| pair[0] + kind.size == pair[1]).count();
                    assert!(behind < 10, "{behind} of 222 objects follow their neighbour");
                    orders.push(places);
                }
                for object in objects {
                    // SAFETY: taken above, for this class, and not used.
                    assert!(unsafe { slabs.give(class, object.as_ptr()) }.is_none());
                }
            }
            free_kept(&slabs);
        }
        orders.dedup();
        assert_eq!(orders.len(), 4, "each start has orders of its own");
    }

    #[test]
    fn magazines_of_several_cpus_hand_out_each_object_once_and_give_all_back() {
        const CPUS: usize = 3;
        let magazines = [const { Magazines::new() }; CPUS];
        let mut slabs = Slabs::new();
        let mut random = 88_172_645_463_325_252u64;
        let mut draw = |bound: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 33) as usize % bound
        };
        let mut give_all = |slabs: &mut Slabs, class, mut chain: Chain| {
            while let Some(object) = chain.next() {
                // SAFETY: it came from these slabs and is free.
                if let Some(block) = unsafe { slabs.give(class, object.as_ptr()) } {
                    free_block(class, block);
                }
            }
        };
        for (class, kind) in CLASSES.iter().enumerate() {
            let mut live = BTreeMap::new();
            for round in 0..6000 {
                let mine = &magazines[draw(CPUS)];
                // The load grows, then shrinks: other CPUs free the objects than those that
                // allocated them.
                if live.is_empty() || draw(6000) > round {
                    let object = loop {
                        if let Some(object) = mine.take(class) {
                            break object.as_ptr();
                        }
                        match slabs.take_block(class) {
                            Some(chain) => mine.load(class, chain),
                            None => add_block(&mut slabs, class),
                        }
                    };
                    note_object(&mut live, object, kind.size);
                } else {
                    let address = *live.keys().nth(draw(live.len())).unwrap();
                    let object = live.remove(&address).unwrap();
                    if !mine.has_room(class, ROOM[class]) {
                        let rest = mine.cut(class, ROOM[class] / 2);
                        give_all(&mut slabs, class, rest);
                    }
                    // SAFETY: taken above, for this class, and not used any more.
                    unsafe { mine.give(class, object) };
                }
                let at_hand: usize = magazines.iter().map(Magazines::bytes).sum();
                assert_eq!(slabs.allocated_bytes() - at_hand, live.len() * kind.size);
            }
            for object in live.into_values() {
                // SAFETY: taken above, for this class, and not used any more.
                if let Some(block) = unsafe { slabs.give(class, object) } {
                    free_block(class, block);
                }
            }
            for magazine in &magazines {
                let rest = magazine.cut(class, 0);
                give_all(&mut slabs, class, rest);
            }
            assert_eq!(slabs.allocated_bytes(), 0);
        }
        free_kept(&slabs);
    }

    #[test]
    fn each_object_has_a_payer_of_its_own_outside_of_all_objects() {
        let mut slabs = Slabs::new();
        for (class, kind) in CLASSES.iter().enumerate() {
            add_block(&mut slabs, class);
            let mut chain = slabs.take_block(class).unwrap();
            let objects: Vec<_> = core::iter::from_fn(|| chain.next()).map(NonNull::as_ptr).collect();
            // SAFETY: taken above, for this class.
            let payer = |object: &*mut u8| unsafe { super::payer(class, *object) };
            assert!(objects.iter().all(|object| payer(object).load(Relaxed) == 0));
            for (object, number) in objects.iter().zip(1..) {
                payer(object).store(number, Relaxed);
            }
            for object in &objects {
                // SAFETY: an object has its class's size.
                unsafe { object.write_bytes(0xa5, kind.size) };
            }
            for (object, number) in objects.iter().zip(1..) {
                assert_eq!(payer(object).swap(0, Relaxed), number);
            }
            for object in objects {
                // SAFETY: taken above, for this class, and not used any more.
                assert!(unsafe { slabs.give(class, object) }.is_none());
            }
        }
        free_kept(&slabs);
    }

    fn note_object(live: &mut BTreeMap<usize, *mut u8>, object: *mut u8, size: usize) {
        let address = object as usize;
        if let Some((below, _)) = live.range(..address + size).next_back() {
            assert!(below + size <= address, "two objects overlap");
        }
        live.insert(address, object);
        // SAFETY: an object has its class's size.
        unsafe { object.write_bytes(0xa5, size) };
    }

    fn add_block(slabs: &mut Slabs, class: usize) {
        // SAFETY: the layout is not empty.
        let block = unsafe { std::alloc::alloc(block_layout(&CLASSES[class])) };
        // SAFETY: a fresh block of the class's size and alignment.
        unsafe { slabs.add(class, block) };
    }

    fn free_block(class: usize, block: *mut u8) {
        // SAFETY: allocated by `add_block`, and all its objects are back.
        unsafe { std::alloc::dealloc(block, block_layout(&CLASSES[class])) };
    }

    /// The empty block that each class keeps.
    fn free_kept(slabs: &Slabs) {
        for class in 0..CLASSES.len() {
            free_block(class, slabs.partial[class].cast());
        }
    }
}
