//! The place of the guest's memory: which backend of QEMU holds which guest-physical addresses.
//!
//! Memory that can be plugged in has backends of its own, after those of the nodes. Its addresses
//! are chosen, not found: each device's distance from the beginning of the devices' addresses
//! (`devices_start`) equals the distance of its backend's bytes from the first backend's. So QEMU's
//! answers that count an offset twice ([`HwAddress::OffsetTwice`]) still mean one address each.

use serde::{Deserialize, Serialize};

const GIB: u64 = 1 << 30;
/// q35 keeps memory below this address when all of it fits there …
const LOW_END: u64 = 0xb000_0000;
/// … and else below this one; the rest begins at 4 GiB.
const LOW_END_OF_MORE: u64 = 2 * GIB;
/// QEMU gives a backend a place among all backends' bytes at a multiple of this; memory devices
/// want multiples of 2 MiB.
const PLACE: u64 = 256 << 10;
const DEVICE_PLACE: u64 = 2 << 20;

/// One memory backend: one node's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Backend {
    /// Bytes.
    pub bytes: u64,
}

/// Memory that can be plugged into a node while the machine runs: one backend, one memory device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PluggableMemory {
    /// The node that it belongs to.
    pub node: usize,
    /// Bytes.
    pub bytes: u64,
}

/// A run of guest-physical addresses in one backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BackendRange {
    /// First address.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
    /// Index into [`MemoryBackends::backends`] and then [`MemoryBackends::growth`]:
    /// [`MemoryBackends::node_of`] tells the node.
    pub backend: usize,
    /// Offset of the first address in the backend.
    pub offset: u64,
}

/// The meaning of a result of QEMU's `qemu_plugin_hwaddr_phys_addr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HwAddress {
    /// Before QEMU 8.2: the backend's offset among all backends, counted twice, plus the offset
    /// inside.
    OffsetTwice,
    /// From QEMU 8.2 on: the guest-physical address.
    GuestPhysical,
}

/// The guest's memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemoryBackends {
    /// The backends in the order in which QEMU makes them: backend n is node n.
    pub backends: Vec<Backend>,
    /// Memory that can be plugged in, in the order in which QEMU makes its backends, after all
    /// others.
    #[serde(default)]
    pub growth: Vec<PluggableMemory>,
    /// The address ranges, in order.
    pub ranges: Vec<BackendRange>,
    /// The meaning of QEMU's physical addresses.
    pub hw_address: HwAddress,
}

impl MemoryBackends {
    /// Returns the memory of QEMU's machine q35, with one backend of these sizes for each node.
    pub fn q35(nodes: &[u64], hw_address: HwAddress) -> Self {
        let total: u64 = nodes.iter().sum();
        let low_end = if total >= LOW_END { LOW_END_OF_MORE } else { LOW_END };
        let mut ranges = Vec::new();
        let mut at = 0;
        for (backend, &bytes) in nodes.iter().enumerate() {
            let low = low_end.saturating_sub(at).min(bytes);
            if low > 0 {
                ranges.push(BackendRange { start: at, bytes: low, backend, offset: 0 });
            }
            if bytes > low {
                let start = 4 * GIB + (at + low - low_end);
                ranges.push(BackendRange { start, bytes: bytes - low, backend, offset: low });
            }
            at += bytes;
        }
        ranges.sort_unstable_by_key(|range| range.start);
        let backends = nodes.iter().map(|&bytes| Backend { bytes }).collect();
        Self { backends, growth: Vec::new(), ranges, hw_address }
    }
    /// Adds memory that can be plugged in.
    pub fn with_growth(mut self, growth: Vec<PluggableMemory>) -> Self {
        let (first, base) = (self.backends.len(), self.devices_start());
        self.growth = growth;
        for (number, &PluggableMemory { bytes, .. }) in self.growth.iter().enumerate() {
            let start = base + self.offset_of(first + number);
            self.ranges.push(BackendRange { start, bytes, backend: first + number, offset: 0 });
        }
        self
    }
    /// Returns the address where QEMU's machine begins to place memory devices: the first multiple
    /// of 1 GiB behind memory, from 4 GiB on.
    fn devices_start(&self) -> u64 {
        let nodes = self.ranges.iter().filter(|range| range.backend < self.backends.len());
        let end = nodes.map(|range| range.start + range.bytes).max().unwrap_or(0);
        end.max(4 * GIB).next_multiple_of(GIB)
    }
    /// Returns guest-physical addresses of pluggable memory, in the order of
    /// [`growth`](Self::growth).
    pub fn growth_starts(&self) -> Vec<u64> {
        let pluggable = self.ranges.iter().filter(|range| range.backend >= self.backends.len());
        pluggable.map(|range| range.start).collect()
    }
    /// Returns the bytes of addresses that memory devices take, from the first that they may have.
    pub fn devices_span(&self) -> u64 {
        if self.growth.is_empty() { 0 } else { self.end() - self.devices_start() }
    }
    /// Returns the sizes of all backends, in the order in which QEMU makes them.
    pub fn sizes(&self) -> impl Iterator<Item = u64> {
        let nodes = self.backends.iter().map(|backend| backend.bytes);
        nodes.chain(self.growth.iter().map(|growth| growth.bytes))
    }
    /// Returns the node of a backend's memory.
    pub fn node_of(&self, backend: usize) -> usize {
        backend.checked_sub(self.backends.len()).map_or(backend, |number| self.growth[number].node)
    }
    /// Returns the place of a backend's bytes among all backends'.
    fn place_of(&self, backend: usize) -> u64 {
        self.sizes().take(backend).map(|bytes| bytes.next_multiple_of(PLACE)).sum()
    }
    /// Returns the place of a memory device among the addresses for devices.
    fn offset_of(&self, backend: usize) -> u64 {
        self.place_of(backend).next_multiple_of(DEVICE_PLACE)
    }
    /// Returns one past the highest address of memory.
    pub fn end(&self) -> u64 {
        self.ranges.iter().map(|range| range.start + range.bytes).max().unwrap_or(0)
    }
    /// Returns the number of bytes that are there from the start.
    pub fn bytes(&self) -> u64 {
        self.backends.iter().map(|backend| backend.bytes).sum()
    }
    /// Returns the range that holds a guest-physical address.
    pub fn range_of(&self, address: u64) -> Option<&BackendRange> {
        self.ranges.iter().find(|range| address.wrapping_sub(range.start) < range.bytes)
    }
    /// Returns the guest-physical address of a byte of a backend.
    pub fn address_of(&self, backend: usize, offset: u64) -> Option<u64> {
        let range = self
            .ranges
            .iter()
            .find(|range| range.backend == backend && offset.wrapping_sub(range.offset) < range.bytes)?;
        Some(range.start + (offset - range.offset))
    }
    /// Returns the guest-physical address for QEMU's answer; `None` outside memory.
    pub fn from_hw_address(&self, answer: u64) -> Option<u64> {
        match self.hw_address {
            HwAddress::GuestPhysical => self.range_of(answer).map(|_| answer),
            HwAddress::OffsetTwice => {
                // The backend's place among all backends, plus its offset inside the nodes' memory
                // or the devices'.
                let inside = |(backend, bytes)| {
                    let within = if backend < self.backends.len() {
                        self.sizes().take(backend).sum()
                    } else {
                        self.offset_of(backend)
                    };
                    let offset = answer.wrapping_sub(self.place_of(backend) + within);
                    (offset < bytes).then(|| self.address_of(backend, offset))
                };
                self.sizes().enumerate().find_map(inside).flatten()
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
        let memory = MemoryBackends::q35(&[GIB, 3 * GIB], HwAddress::GuestPhysical);
        let ranges: Vec<_> = memory.ranges.iter().map(|r| (r.start, r.bytes, r.backend, r.offset)).collect();
        assert_eq!(ranges, [(0, GIB, 0, 0), (GIB, GIB, 1, 0), (4 * GIB, 2 * GIB, 1, GIB)]);
        assert_eq!((memory.end(), memory.bytes()), (6 * GIB, 4 * GIB));
        assert_eq!(memory.range_of(3 * GIB), None, "the hole");
        assert_eq!(memory.address_of(1, GIB + 5), Some(4 * GIB + 5));
        assert_eq!(memory.address_of(0, GIB), None);
    }

    #[test]
    fn little_memory_has_no_hole() {
        let memory = MemoryBackends::q35(&[128 * MIB, 128 * MIB], HwAddress::OffsetTwice);
        assert_eq!(memory.ranges.len(), 2);
        assert_eq!(memory.end(), 256 * MIB);
    }

    #[test]
    fn memory_that_is_plugged_in_answers_with_addresses_of_its_own() {
        let growth = |node, bytes| PluggableMemory { node, bytes };
        let memory = MemoryBackends::q35(&[64 * MIB, 64 * MIB], HwAddress::OffsetTwice)
            .with_growth(vec![growth(0, GIB), growth(1, 512 * MIB)]);
        let starts = [4 * GIB + 128 * MIB, 5 * GIB + 128 * MIB];
        assert_eq!(memory.growth_starts(), starts);
        assert_eq!((memory.end(), memory.bytes()), (5 * GIB + 640 * MIB, 128 * MIB));
        assert_eq!(memory.devices_span(), GIB + 640 * MIB);
        assert_eq!([0, 1, 2, 3].map(|backend| memory.node_of(backend)), [0, 1, 0, 1]);
        // Twice the offset, as for nodes: no two backends have the same answer.
        assert_eq!(memory.from_hw_address(2 * 64 * MIB + 5), Some(64 * MIB + 5));
        assert_eq!(memory.from_hw_address(2 * 128 * MIB + 5), Some(starts[0] + 5));
        assert_eq!(memory.from_hw_address(2 * (GIB + 128 * MIB) + 5), Some(starts[1] + 5));
        assert_eq!(memory.from_hw_address(64 * MIB), None);
        assert_eq!(memory.from_hw_address(2 * 128 * MIB + GIB), None);
    }

    #[test]
    fn sizes_that_are_not_round_are_placed_as_qemu_places_them() {
        let memory = MemoryBackends::q35(&[64 * MIB + 4096, 64 * MIB], HwAddress::OffsetTwice)
            .with_growth(vec![PluggableMemory { node: 0, bytes: GIB }]);
        let second = 64 * MIB + 4096;
        assert_eq!(memory.from_hw_address(64 * MIB + 256 * 1024 + second), Some(second));
        assert_eq!(memory.growth_starts(), [4 * GIB + 130 * MIB]);
        assert_eq!(memory.from_hw_address(128 * MIB + 256 * 1024 + 130 * MIB), Some(4 * GIB + 130 * MIB));
    }

    #[test]
    fn an_offset_that_is_counted_twice_is_read_as_it_was_meant() {
        let memory = MemoryBackends::q35(&[GIB, GIB, GIB], HwAddress::OffsetTwice);
        assert_eq!(memory.from_hw_address(7), Some(7));
        // Measured: the second node of 1 GiB is reported at 2 to 3 GiB instead of 1 to 2.
        assert_eq!(memory.from_hw_address(2 * GIB + 7), Some(GIB + 7));
        assert_eq!(memory.from_hw_address(4 * GIB + 7), Some(4 * GIB + 7), "the third is above the hole");
        assert_eq!(memory.from_hw_address(GIB + 7), None);
        let honest = MemoryBackends::q35(&[GIB, GIB], HwAddress::GuestPhysical);
        assert_eq!(honest.from_hw_address(GIB + 7), Some(GIB + 7));
        assert_eq!(honest.from_hw_address(3 * GIB), None);
    }
}
