//! A fully associative cache with exact least-recently-used replacement.
//!
//! It tells a conflict from a lack of room: what misses here too would miss in any cache of this size.
//! A hash table finds a line's slot, a doubly linked list through the slots keeps the order of use.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Line numbers are hashed by one multiplication (Knuth, vol. 3, 6.4): they are no attacker's.
#[derive(Default, Debug, Clone)]
pub struct LineHasher(u64);

impl Hasher for LineHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u64(&mut self, value: u64) {
        let product = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Slot {
    line: u64,
    newer: u32,
    older: u32,
}

/// The last `capacity` different lines, by use.
#[derive(Debug)]
pub struct LruShadow {
    capacity: usize,
    slots: Vec<Slot>,
    index: HashMap<u64, u32, BuildHasherDefault<LineHasher>>,
    newest: u32,
    oldest: u32,
}

impl LruShadow {
    /// Room for `capacity` lines: at least 1, at most 2^32 - 2.
    ///
    /// # Panics
    /// Outside that range.
    pub fn new(capacity: usize) -> Self {
        assert!((1..NONE as usize).contains(&capacity), "a shadow of {capacity} lines");
        Self { capacity, slots: Vec::new(), index: HashMap::default(), newest: NONE, oldest: NONE }
    }

    /// Use `line`; whether it was among the last `capacity` lines.
    pub fn touch(&mut self, line: u64) -> bool {
        if let Some(&slot) = self.index.get(&line) {
            if slot != self.newest {
                self.unlink(slot);
                self.link_newest(slot);
            }
            return true;
        }
        let slot = if self.slots.len() < self.capacity {
            self.slots.push(Slot { line, newer: NONE, older: NONE });
            (self.slots.len() - 1) as u32
        } else {
            let slot = self.oldest;
            self.unlink(slot);
            let old = self.slots[slot as usize].line;
            self.index.remove(&old);
            self.slots[slot as usize].line = line;
            slot
        };
        self.link_newest(slot);
        self.index.insert(line, slot);
        false
    }

    fn unlink(&mut self, slot: u32) {
        let Slot { newer, older, .. } = self.slots[slot as usize];
        if newer == NONE {
            self.newest = older
        } else {
            self.slots[newer as usize].older = older
        }
        if older == NONE { self.oldest = newer } else { self.slots[older as usize].newer = newer }
    }

    fn link_newest(&mut self, slot: u32) {
        let older = self.newest;
        self.slots[slot as usize].newer = NONE;
        self.slots[slot as usize].older = older;
        if older == NONE {
            self.oldest = slot
        } else {
            self.slots[older as usize].newer = slot
        }
        self.newest = slot;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_behaves_as_a_list_by_use(capacity in 1usize..20, lines in prop::collection::vec(0u64..40, 1..400)) {
            let mut shadow = LruShadow::new(capacity);
            let mut naive: Vec<u64> = Vec::new();
            for line in lines {
                let known = naive.contains(&line);
                naive.retain(|&l| l != line);
                naive.insert(0, line);
                naive.truncate(capacity);
                prop_assert_eq!(shadow.touch(line), known);
            }
        }
    }
}
