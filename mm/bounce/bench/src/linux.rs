//! Linux' algorithm for bounce slots (SWIOTLB with a pool of fixed size), written from descriptions
//! of it.
//!
//! Facts, from Documentation/core-api/swiotlb.rst and the patch series "Allow dynamic allocation of
//! software IO TLB bounce buffers": slots of 2 KiB; segments of 128 slots, which a buffer never
//! leaves; areas with a lock each, chosen by the CPU; for each slot the number of free slots from
//! it to the end of its segment, 0 if the slot is taken; for each area the index where the next
//! search begins; a buffer of a page or more begins at a page; slots remember the original's
//! address and how much of it is left; one counter for the used slots, and another for their
//! high-water mark. The model disables no interrupts and looks up no pool, which favours Linux.

use std::sync::atomic::{AtomicU64, Ordering};

use spin::Mutex;

use crate::Allocator;

const SLOT: usize = 2048;
const SEGMENT: usize = 128;
const PAGE_SLOTS: usize = 2;
const NO_ADDRESS: u64 = u64::MAX;

#[derive(Clone, Copy)]
#[expect(dead_code, reason = "what a copy would need is stored, as on Linux, and nothing is copied")]
struct PoolSlot {
    /// Free slots from here to the end of the segment; 0: taken.
    free: u32,
    left: u64,
    original: u64,
}

struct Area {
    index: usize,
    used: usize,
    slots: Vec<PoolSlot>,
}

/// A pool. See the module's head.
pub struct Linux {
    areas: Vec<Mutex<Area>>,
    used: AtomicU64,
    most: AtomicU64,
}

/// Adjacent slots that are taken.
pub struct Slots {
    area: usize,
    first: usize,
    bytes: usize,
}

impl Area {
    fn new(segments: usize) -> Self {
        let slot = |number: usize| PoolSlot {
            free: (SEGMENT - number % SEGMENT) as u32,
            left: 0,
            original: NO_ADDRESS,
        };
        Self { index: 0, used: 0, slots: (0..segments * SEGMENT).map(slot).collect() }
    }

    fn wrapped(&self, index: usize) -> usize {
        if index >= self.slots.len() { 0 } else { index }
    }

    fn find(&self, count: usize, stride: usize) -> Option<usize> {
        if count > self.slots.len() - self.used {
            return None;
        }
        let (mut index, mut looked) = (self.index, 0);
        while looked < self.slots.len() {
            if !index.is_multiple_of(stride) {
                index = self.wrapped(index + 1);
                looked += 1;
                continue;
            }
            if self.slots[index].free >= count as u32 {
                return Some(index);
            }
            index = self.wrapped(index + stride);
            looked += stride;
        }
        None
    }

    fn take(&mut self, bytes: usize, original: u64) -> Option<usize> {
        let count = bytes.div_ceil(SLOT);
        let stride = if bytes >= SLOT * PAGE_SLOTS { PAGE_SLOTS } else { 1 };
        let first = self.find(count, stride)?;
        for (number, slot) in self.slots[first..first + count].iter_mut().enumerate() {
            let before = (number * SLOT) as u64;
            *slot = PoolSlot {
                free: 0,
                left: bytes as u64 - before.min(bytes as u64),
                original: original + before,
            };
        }
        self.renumber(first, 0);
        self.index = self.wrapped(first + count);
        self.used += count;
        Some(first)
    }

    /// Updates the counts of the run of free slots that ends before `end`. A slot's count is the
    /// number of free slots from it on; `free` slots are free from `end` on.
    fn renumber(&mut self, end: usize, free: u32) {
        let start = end - end % SEGMENT;
        let before = self.slots[start..end].iter_mut().rev().take_while(|slot| slot.free > 0);
        before.zip(free + 1..).for_each(|(slot, free)| slot.free = free);
    }

    fn give(&mut self, first: usize, bytes: usize) {
        let count = bytes.div_ceil(SLOT);
        let end = first + count;
        let mut free = if end.is_multiple_of(SEGMENT) { 0 } else { self.slots[end].free };
        for slot in self.slots[first..end].iter_mut().rev() {
            free += 1;
            *slot = PoolSlot { free, left: 0, original: NO_ADDRESS };
        }
        self.renumber(first, free);
        self.used -= count;
    }
}

impl Linux {
    pub fn new(areas: usize, segments: usize) -> Self {
        let area = |_| Mutex::new(Area::new(segments.div_ceil(areas)));
        Self { areas: (0..areas).map(area).collect(), used: AtomicU64::new(0), most: AtomicU64::new(0) }
    }
}

impl Allocator for Linux {
    type Held = Slots;

    fn take(&self, cpu: usize, bytes: usize) -> Option<Slots> {
        let all = self.areas.len();
        let found = (0..all).map(|step| (cpu + step) % all).find_map(|area| {
            let first = self.areas[area].lock().take(bytes, 0x1000)?;
            Some(Slots { area, first, bytes })
        })?;
        let count = bytes.div_ceil(SLOT) as u64;
        let used = self.used.fetch_add(count, Ordering::Relaxed) + count;
        if used > self.most.load(Ordering::Relaxed) {
            self.most.fetch_max(used, Ordering::Relaxed);
        }
        Some(found)
    }

    fn give(&self, held: Slots) {
        self.areas[held.area].lock().give(held.first, held.bytes);
        self.used.fetch_sub(held.bytes.div_ceil(SLOT) as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;

    #[test]
    fn no_slot_is_given_twice_no_buffer_leaves_its_segment_and_all_come_back() {
        let (pool, mut rng) = (Linux::new(2, 8), Rng(1));
        let (mut held, mut taken) = (Vec::<Slots>::new(), vec![false; 8 * SEGMENT]);
        let places = |slots: &Slots| {
            let first = slots.area * 4 * SEGMENT + slots.first;
            first..first + slots.bytes.div_ceil(SLOT)
        };
        for _ in 0..20_000 {
            if rng.below(2) == 0 && !held.is_empty() {
                let slots = held.swap_remove(rng.below(held.len()));
                taken[places(&slots)].fill(false);
                pool.give(slots);
            } else if let Some(slots) = pool.take(rng.below(2), 1 + rng.below(SEGMENT * SLOT)) {
                assert_eq!(slots.first / SEGMENT, (slots.first + slots.bytes.div_ceil(SLOT) - 1) / SEGMENT);
                assert!(taken[places(&slots)].iter().all(|&taken| !taken));
                taken[places(&slots)].fill(true);
                held.push(slots);
            }
        }
        held.into_iter().for_each(|slots| pool.give(slots));
        let whole: Vec<_> = (0..8).map_while(|_| pool.take(0, SEGMENT * SLOT)).collect();
        assert_eq!((whole.len(), pool.take(0, 1).is_none()), (8, true));
    }
}
