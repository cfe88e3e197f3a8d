//! Helpers for callers that scan an address space piece by piece and skip empty parts.

use core::ops::Range;

use freehold_machine::VirtAddr;
use freehold_paging::{Memory, PageSize};

use crate::AddressSpace;

impl<S: Memory> AddressSpace<S> {
    /// The first address of `range` in whose 2 MiB something may be mapped; nothing is before it.
    pub fn next_populated(&self, range: Range<VirtAddr>) -> Option<VirtAddr> {
        self.resident.tables.next_populated(range)
    }

    /// The size of the leaf that maps `addr`; small if there is none.
    pub fn leaf_size(&self, addr: VirtAddr) -> PageSize {
        self.resident.tables.find(addr).map_or(PageSize::Small, |(_, size)| size)
    }
}
