//! The guest's memory: its bytes, its nodes, and its translation tables.

use freehold_scope_model::PageSize;
use freehold_scope_record::MemoryBackends;

/// The guest's bytes. They may change during a read; a read returns the value at its moment.
pub trait GuestMemory: Send + Sync {
    /// Loads the 8 bytes at a guest-physical address that is a multiple of 8; `None` outside
    /// memory.
    fn load(&self, address: u64) -> Option<u64>;
}

/// The node number of addresses without memory.
pub const NOWHERE: usize = MAX_NODES;
/// Largest number of nodes; ACPI allows more, QEMU's machines do not.
pub const MAX_NODES: usize = 16;

/// The node of each part of memory. Nodes begin and end at multiples of 2 MiB.
#[derive(Debug)]
pub struct Nodes {
    by_block: Vec<u8>,
}

const BLOCK_SHIFT: u32 = 21;

impl Nodes {
    pub fn new(memory: &MemoryBackends) -> Self {
        let mut by_block = vec![NOWHERE as u8; (memory.end() >> BLOCK_SHIFT) as usize + 1];
        for range in &memory.ranges {
            let (first, end) =
                (range.start >> BLOCK_SHIFT, (range.start + range.bytes).div_ceil(1 << BLOCK_SHIFT));
            by_block[first as usize..end as usize].fill(memory.node_of(range.backend) as u8);
        }
        Self { by_block }
    }
    /// Returns the node of a guest-physical address, or [`NOWHERE`].
    #[inline]
    pub fn of(&self, address: u64) -> usize {
        self.by_block.get((address >> BLOCK_SHIFT) as usize).map_or(NOWHERE, |&node| usize::from(node))
    }
}

/// The entry of the translation tables for an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// Guest-physical address of the 4 KiB page that holds the address.
    pub page: u64,
    /// The size of the page that the leaf maps.
    pub size: PageSize,
    /// Whether the translation survives a write to CR3.
    pub global: bool,
}

pub const PRESENT: u64 = 1;
pub const WRITABLE: u64 = 1 << 1;
pub const LARGE: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
pub const FRAME: u64 = 0x000f_ffff_ffff_f000;

/// Walks four levels of tables from `root` (Intel SDM, volume 3, 4.5); `None` for an unmapped
/// address.
pub fn walk(memory: &dyn GuestMemory, root: u64, address: u64) -> Option<Leaf> {
    let mut table = root & FRAME;
    for (shift, size) in [(39, None), (30, Some(PageSize::Giant)), (21, Some(PageSize::Large)), (12, None)] {
        let entry = memory.load(table + (address >> shift & 511) * 8)?;
        if entry & PRESENT == 0 {
            return None;
        }
        let size = match size {
            _ if shift == 12 => PageSize::Small,
            Some(size) if entry & LARGE != 0 => size,
            _ => {
                table = entry & FRAME;
                continue;
            }
        };
        let mask = (1 << size.shift()) - 1;
        let page = ((entry & FRAME & !mask) | (address & mask)) & !0xfff;
        return Some(Leaf { page, size, global: entry & GLOBAL != 0 });
    }
    None
}

/// Calls `found` with virtual and physical address of each page of 4 KiB that the user half of the
/// tables at `root` maps. Tables that change meanwhile give any answer, but an end.
pub fn user_pages(memory: &dyn GuestMemory, root: u64, found: &mut impl FnMut(u64, u64)) {
    below(memory, (root & FRAME, 39), 0, 256, found);
}

/// Does so for the first `entries` entries of a table whose entries have 1 << `shift` bytes each,
/// from virtual address `start` on.
fn below(
    memory: &dyn GuestMemory,
    (table, shift): (u64, u32),
    start: u64,
    entries: u64,
    found: &mut impl FnMut(u64, u64),
) {
    for index in 0..entries {
        let Some(entry) = memory.load(table + 8 * index).filter(|entry| entry & PRESENT != 0) else {
            continue;
        };
        let address = start + (index << shift);
        if shift == 12 || shift < 39 && entry & LARGE != 0 {
            let first = entry & FRAME & !((1 << shift) - 1);
            (0..1u64 << shift).step_by(4096).for_each(|at| found(address + at, first + at));
        } else {
            below(memory, (entry & FRAME, shift - 9), address, 512, found);
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use freehold_scope_record::HwAddress;
    use std::collections::HashMap;
    use std::sync::Mutex;

    /// Memory that is all zeroes except for stored words.
    #[derive(Default, Debug)]
    pub struct Words(pub Mutex<HashMap<u64, u64>>);

    impl Words {
        pub fn store(&self, address: u64, value: u64) {
            self.0.lock().unwrap().insert(address, value);
        }
        /// Maps a page in the tables at `root`, whose lower tables are in the frames after it.
        pub fn map(&self, root: u64, address: u64, physical: u64, size: PageSize, flags: u64) {
            let mut table = root;
            for shift in [39, 30, 21, 12] {
                let slot = table + (address >> shift & 511) * 8;
                if shift == size.shift() {
                    let large = if shift == 12 { 0 } else { LARGE };
                    return self.store(slot, physical | flags | large | PRESENT);
                }
                let next = match self.load(slot) {
                    Some(entry) if entry != 0 => entry & FRAME,
                    _ => {
                        let mut words = self.0.lock().unwrap();
                        let fresh = words.entry(root - 8).or_insert(root);
                        *fresh += 0x1000;
                        *fresh
                    }
                };
                self.store(slot, next | PRESENT);
                table = next;
            }
        }
    }

    impl GuestMemory for Words {
        fn load(&self, address: u64) -> Option<u64> {
            (address < 1 << 40).then(|| self.0.lock().unwrap().get(&address).copied().unwrap_or(0))
        }
    }

    impl GuestMemory for std::sync::Arc<Words> {
        fn load(&self, address: u64) -> Option<u64> {
            Words::load(self, address)
        }
    }

    #[test]
    fn tables_are_walked_to_leaves_of_every_size() {
        let words = Words::default();
        let upper = 0xffff_8000_0000_0000;
        words.map(0x10_0000, upper, 0x4000_0000, PageSize::Giant, GLOBAL);
        words.map(0x10_0000, upper + (1 << 30), 0x60_0000, PageSize::Large, 0);
        words.map(0x10_0000, 0x40_1000, 0x7000, PageSize::Small, 0);
        let found = |address| walk(&words, 0x10_0000, address);
        let leaf = |page, size, global| Some(Leaf { page, size, global });
        assert_eq!(found(upper + 0x12_3456), leaf(0x4012_3000, PageSize::Giant, true));
        assert_eq!(found(upper + (1 << 30) + 0x1f_ffff), leaf(0x7f_f000, PageSize::Large, false));
        assert_eq!(found(0x40_1abc), leaf(0x7000, PageSize::Small, false));
        assert_eq!(found(0x40_2000), None);
        assert_eq!(walk(&words, 1 << 41, 0), None, "a root outside memory");
    }

    #[test]
    fn pages_of_the_user_half_are_found_with_their_addresses() {
        let words = Words::default();
        words.map(0x10_0000, 0xffff_8000_0000_0000, 0x60_0000, PageSize::Large, 0);
        words.map(0x10_0000, 0x40_1000, 0x7000, PageSize::Small, 0);
        words.map(0x10_0000, 0x7f00_0020_0000, 0x80_0000, PageSize::Large, 0);
        let mut pages = Vec::new();
        user_pages(&words, 0x10_0000, &mut |address, frame| pages.push((address, frame)));
        assert_eq!(pages.len(), 1 + 512);
        assert_eq!(pages[..2], [(0x40_1000, 0x7000), (0x7f00_0020_0000, 0x80_0000)]);
        assert_eq!(pages[512], (0x7f00_003f_f000, 0x9f_f000));
    }

    #[test]
    fn every_address_has_its_node() {
        let gib = 1 << 30;
        let nodes = Nodes::new(&MemoryBackends::q35(&[gib, 3 * gib], HwAddress::GuestPhysical));
        assert_eq!((nodes.of(0), nodes.of(gib - 1), nodes.of(gib)), (0, 0, 1));
        assert_eq!((nodes.of(3 * gib), nodes.of(4 * gib), nodes.of(7 * gib)), (NOWHERE, 1, NOWHERE));
        assert_eq!(nodes.of(u64::MAX), NOWHERE);
    }
}
