//! Where the guest's memory is: which backend of QEMU holds which guest-physical addresses.

use serde::{Deserialize, Serialize};

const GIB: u64 = 1 << 30;
/// q35 keeps memory below this address when all of it fits there …
const LOW_END: u64 = 0xb000_0000;
/// … and else below this one; the rest begins at 4 GiB.
const LOW_END_OF_MORE: u64 = 2 * GIB;

/// One memory backend: one node's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Backend {
    /// Bytes.
    pub bytes: u64,
}

/// A run of guest-physical addresses in one backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Range {
    /// First address.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
    /// Index into [`Memory::backends`]: the node.
    pub backend: usize,
    /// Offset of the first address in the backend.
    pub offset: u64,
}

/// What QEMU's `qemu_plugin_hwaddr_phys_addr` returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HwAddress {
    /// Before QEMU 8.2: the backend's offset among all backends, counted twice, plus the offset inside.
    OffsetTwice,
    /// From QEMU 8.2 on: the guest-physical address.
    GuestPhysical,
}

/// The guest's memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Memory {
    /// The backends in the order in which QEMU makes them: backend n is node n.
    pub backends: Vec<Backend>,
    /// Where they are, by address.
    pub ranges: Vec<Range>,
    /// How to read QEMU's physical addresses.
    pub hw_address: HwAddress,
}

impl Memory {
    /// The memory of QEMU's machine q35, with one backend of these sizes for each node.
    pub fn q35(nodes: &[u64], hw_address: HwAddress) -> Self {
        let total: u64 = nodes.iter().sum();
        let low_end = if total >= LOW_END { LOW_END_OF_MORE } else { LOW_END };
        let mut ranges = Vec::new();
        let mut at = 0;
        for (backend, &bytes) in nodes.iter().enumerate() {
            let low = low_end.saturating_sub(at).min(bytes);
            if low > 0 {
                ranges.push(Range { start: at, bytes: low, backend, offset: 0 });
            }
            if bytes > low {
                let start = 4 * GIB + (at + low - low_end);
                ranges.push(Range { start, bytes: bytes - low, backend, offset: low });
            }
            at += bytes;
        }
        ranges.sort_unstable_by_key(|range| range.start);
        Self { backends: nodes.iter().map(|&bytes| Backend { bytes }).collect(), ranges, hw_address }
    }
    /// One past the highest address of memory.
    pub fn end(&self) -> u64 {
        self.ranges.iter().map(|range| range.start + range.bytes).max().unwrap_or(0)
    }
    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.backends.iter().map(|backend| backend.bytes).sum()
    }
    /// The range that holds a guest-physical address.
    pub fn range_of(&self, address: u64) -> Option<&Range> {
        self.ranges.iter().find(|range| address.wrapping_sub(range.start) < range.bytes)
    }
    /// The guest-physical address of a byte of a backend.
    pub fn address_of(&self, backend: usize, offset: u64) -> Option<u64> {
        let range = self
            .ranges
            .iter()
            .find(|range| range.backend == backend && offset.wrapping_sub(range.offset) < range.bytes)?;
        Some(range.start + (offset - range.offset))
    }
    /// The guest-physical address that QEMU's answer means; `None` for what is not memory.
    pub fn from_hw_address(&self, answer: u64) -> Option<u64> {
        match self.hw_address {
            HwAddress::GuestPhysical => self.range_of(answer).map(|_| answer),
            HwAddress::OffsetTwice => {
                let mut before = 0;
                for (backend, Backend { bytes }) in self.backends.iter().enumerate() {
                    let offset = answer.wrapping_sub(2 * before);
                    if offset < *bytes {
                        return self.address_of(backend, offset);
                    }
                    before += bytes;
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    const MIB: u64 = 1 << 20;

    #[test]
    fn memory_above_the_hole_is_the_last_nodes() {
        let memory = Memory::q35(&[GIB, 3 * GIB], HwAddress::GuestPhysical);
        let ranges: Vec<_> = memory.ranges.iter().map(|r| (r.start, r.bytes, r.backend, r.offset)).collect();
        assert_eq!(ranges, [(0, GIB, 0, 0), (GIB, GIB, 1, 0), (4 * GIB, 2 * GIB, 1, GIB)]);
        assert_eq!((memory.end(), memory.bytes()), (6 * GIB, 4 * GIB));
        assert_eq!(memory.range_of(3 * GIB), None, "the hole");
        assert_eq!(memory.address_of(1, GIB + 5), Some(4 * GIB + 5));
        assert_eq!(memory.address_of(0, GIB), None);
    }

    #[test]
    fn little_memory_has_no_hole() {
        let memory = Memory::q35(&[128 * MIB, 128 * MIB], HwAddress::OffsetTwice);
        assert_eq!(memory.ranges.len(), 2);
        assert_eq!(memory.end(), 256 * MIB);
    }

    #[test]
    fn an_offset_that_is_counted_twice_is_read_as_it_was_meant() {
        let memory = Memory::q35(&[GIB, GIB, GIB], HwAddress::OffsetTwice);
        assert_eq!(memory.from_hw_address(7), Some(7));
        // Measured: the second node of 1 GiB is reported at 2 to 3 GiB instead of 1 to 2.
        assert_eq!(memory.from_hw_address(2 * GIB + 7), Some(GIB + 7));
        assert_eq!(memory.from_hw_address(4 * GIB + 7), Some(4 * GIB + 7), "the third is above the hole");
        assert_eq!(memory.from_hw_address(GIB + 7), None);
        let honest = Memory::q35(&[GIB, GIB], HwAddress::GuestPhysical);
        assert_eq!(honest.from_hw_address(GIB + 7), Some(GIB + 7));
        assert_eq!(honest.from_hw_address(3 * GIB), None);
    }
}
