//! A fully associative cache with exact least-recently-used replacement.
//!
//! The shadow tells a conflict from a lack of room: an access that misses here too would miss in
//! any cache of this size. A table by line number finds a line's slot, a doubly linked list through
//! the slots keeps the order of use. The table has four bytes for each line of memory, but the host
//! allocates them only where the guest uses its own memory. A hash table is smaller and several
//! times slower, and every access that leaves the processor's caches uses this table.

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct ShadowSlot {
    line: u32,
    newer: u32,
    older: u32,
}

/// The last `capacity` different lines, by use.
#[derive(Debug)]
pub struct LruShadow {
    capacity: usize,
    slots: Vec<ShadowSlot>,
    /// Slot + 1 of each line; 0: none.
    index: Vec<u32>,
    newest: u32,
    oldest: u32,
}

impl LruShadow {
    /// Makes room for `capacity` of the lines 0 to `lines` - 1.
    ///
    /// # Panics
    /// If either is 0 or above 2^32 - 2.
    pub fn new(capacity: usize, lines: usize) -> Self {
        assert!((1..NONE as usize).contains(&capacity), "a shadow of {capacity} lines");
        assert!((1..NONE as usize).contains(&lines), "a memory of {lines} lines");
        Self { capacity, slots: Vec::new(), index: vec![0; lines], newest: NONE, oldest: NONE }
    }

    /// Uses `line`; returns whether it was among the last `capacity` lines.
    ///
    /// # Panics
    /// When there is no such line.
    pub fn touch(&mut self, line: u32) -> bool {
        if let Some(slot) = self.index[line as usize].checked_sub(1) {
            if slot != self.newest {
                self.unlink(slot);
                self.link_newest(slot);
            }
            return true;
        }
        let slot = if self.slots.len() < self.capacity {
            self.slots.push(ShadowSlot { line, newer: NONE, older: NONE });
            (self.slots.len() - 1) as u32
        } else {
            let slot = self.oldest;
            self.unlink(slot);
            let old = self.slots[slot as usize].line;
            self.index[old as usize] = 0;
            self.slots[slot as usize].line = line;
            slot
        };
        self.link_newest(slot);
        self.index[line as usize] = slot + 1;
        false
    }

    fn unlink(&mut self, slot: u32) {
        let ShadowSlot { newer, older, .. } = self.slots[slot as usize];
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
        fn it_behaves_as_a_list_by_use(capacity in 1usize..20, lines in prop::collection::vec(0u32..40, 1..400)) {
            let mut shadow = LruShadow::new(capacity, 40);
            let mut naive: Vec<u32> = Vec::new();
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
