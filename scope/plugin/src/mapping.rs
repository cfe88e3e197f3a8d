//! Finds the guest's memory in QEMU's own: the mappings of the backends that the command made, by
//! name.

use std::sync::atomic::{AtomicU64, Ordering};

use freehold_scope_engine::GuestMemory;
use freehold_scope_record::MemoryBackends;

/// One backend's bytes in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackendMapping {
    start: usize,
    bytes: u64,
}

/// The guest's memory, mapped.
#[derive(Clone, Debug)]
pub struct Mapped {
    memory: MemoryBackends,
    /// By backend.
    mappings: Vec<BackendMapping>,
}

/// Returns the backend's number in a mapping's path: the file's name is `freehold-mN`, in any
/// folder or none (`/memfd:`).
fn backend_of(path: &str) -> Option<usize> {
    let path = path.trim_end_matches(" (deleted)");
    let name = path.rsplit(['/', ':']).next()?;
    name.strip_prefix("freehold-m")?.parse().ok()
}

/// Finds the backends' mappings in the text of /proc/self/maps.
///
/// # Errors
/// A mapping is missing or has an unexpected size.
fn find(maps: &str, memory: &MemoryBackends) -> Result<Vec<BackendMapping>, String> {
    let mut found: Vec<Option<BackendMapping>> = vec![None; memory.sizes().count()];
    for line in maps.lines() {
        let mut fields = line.splitn(6, ' ');
        let (Some(range), Some(path)) = (fields.next(), fields.nth(4)) else { continue };
        let Some(number) = backend_of(path.trim()) else { continue };
        let ends = range
            .split_once('-')
            .map(|(start, end)| (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16)));
        let (Some((Ok(start), Ok(end))), Some(slot)) = (ends, found.get_mut(number)) else { continue };
        let bytes = (end - start) as u64;
        // The kernel may show one mapping in several parts, one after the other.
        match slot {
            Some(known) if known.start + known.bytes as usize == start => known.bytes += bytes,
            Some(_) => return Err(format!("memory {number} is mapped twice")),
            None => *slot = Some(BackendMapping { start, bytes }),
        }
    }
    let check = |((number, mapping), expected): ((usize, Option<BackendMapping>), u64)| match mapping {
        Some(mapping) if mapping.bytes == expected => Ok(mapping),
        Some(mapping) => {
            Err(format!("memory {number} has {} bytes, but {expected} were expected", mapping.bytes))
        }
        // A node that begins without memory has no backend.
        None if expected == 0 => Ok(BackendMapping { start: 0, bytes: 0 }),
        None => Err(format!(
            "memory {number} is not mapped: its backend's file has to be named freehold-m{number}"
        )),
    };
    found.into_iter().enumerate().zip(memory.sizes()).map(check).collect()
}

impl Mapped {
    /// Finds the mappings in this process.
    ///
    /// # Errors
    /// A mapping is missing or has an unexpected size.
    pub fn find(memory: &MemoryBackends) -> Result<Self, String> {
        let maps = std::fs::read_to_string("/proc/self/maps")
            .map_err(|error| format!("/proc/self/maps: {error}"))?;
        Ok(Self { memory: memory.clone(), mappings: find(&maps, memory)? })
    }
    /// Returns the guest-physical address of a byte in this process; `None` outside the guest's
    /// memory.
    pub fn guest_address(&self, host: usize) -> Option<u64> {
        let mut backends = self.mappings.iter().enumerate();
        let inside = |mapping: &BackendMapping| (host.wrapping_sub(mapping.start) as u64) < mapping.bytes;
        let (number, mapping) = backends.find(|(_, mapping)| inside(mapping))?;
        self.memory.address_of(number, (host - mapping.start) as u64)
    }
    /// Returns the guest-physical address for QEMU's answer.
    pub fn read_hw_address(&self, answer: u64) -> Option<u64> {
        self.memory.from_hw_address(answer)
    }
}

impl GuestMemory for Mapped {
    fn load(&self, address: u64) -> Option<u64> {
        let range = self.memory.range_of(address)?;
        let mapping = self.mappings[range.backend];
        let offset = range.offset + (address - range.start);
        if !address.is_multiple_of(8) || offset + 8 > mapping.bytes {
            return None;
        }
        let host = (mapping.start + offset as usize) as *const AtomicU64;
        // SAFETY: the 8 bytes are inside a mapping that QEMU keeps as long as the machine lives,
        // and aligned. The guest and devices change them meanwhile, which an atomic load allows
        // for.
        Some(unsafe { &*host }.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use freehold_scope_record::{HwAddress, PluggableMemory};

    const MAPS: &str = "\
55d0a0000000-55d0a0100000 r-xp 00000000 08:01 42                         /usr/bin/qemu-system-x86_64
7f0000000000-7f0008000000 rw-s 00000000 00:01 2051                       /memfd:freehold-m1 (deleted)
7f0010000000-7f0014000000 rw-s 00000000 00:01 1030                       /dev/shm/x y/freehold-m0
7f0014000000-7f0018000000 rw-s 04000000 00:01 1030                       /dev/shm/x y/freehold-m0
7f0020000000-7f0020001000 rw-p 00000000 00:00 0 
";
    const SIZE: u64 = 128 << 20;

    #[test]
    fn backends_are_found_by_name_in_whatever_order_and_parts() {
        let memory = MemoryBackends::q35(&[SIZE, SIZE], HwAddress::OffsetTwice);
        let mappings = find(MAPS, &memory).unwrap();
        let mapped = Mapped { memory, mappings };
        assert_eq!(mapped.guest_address(0x7f00_1000_0005), Some(5));
        assert_eq!(mapped.guest_address(0x7f00_1400_0000), Some(SIZE / 2));
        assert_eq!(mapped.guest_address(0x7f00_0000_1000), Some(SIZE + 0x1000));
        assert_eq!(mapped.guest_address(0x7f00_2000_0000), None);
    }

    #[test]
    fn what_is_missing_or_of_another_size_is_named() {
        let missing = find(MAPS, &MemoryBackends::q35(&[SIZE; 3], HwAddress::OffsetTwice)).unwrap_err();
        assert!(missing.contains("memory 2 is not mapped"), "{missing}");
        let wrong = find(MAPS, &MemoryBackends::q35(&[SIZE, 2 * SIZE], HwAddress::OffsetTwice)).unwrap_err();
        assert!(wrong.contains("memory 1 has 134217728 bytes"), "{wrong}");
        let doubled = MAPS.replace("7f0014000000-7f0018000000", "7f0024000000-7f0028000000");
        let twice = find(&doubled, &MemoryBackends::q35(&[SIZE, SIZE], HwAddress::OffsetTwice)).unwrap_err();
        assert!(twice.contains("memory 0 is mapped twice"), "{twice}");
    }

    #[test]
    fn a_node_without_memory_has_no_mapping_and_what_is_plugged_in_there_has_one() {
        let growth = vec![PluggableMemory { node: 1, bytes: SIZE }];
        let memory = MemoryBackends::q35(&[SIZE, 0], HwAddress::OffsetTwice).with_growth(growth);
        let maps = MAPS.replace("freehold-m1", "freehold-m2");
        let mapped = Mapped { mappings: find(&maps, &memory).unwrap(), memory };
        assert_eq!(mapped.guest_address(0x7f00_0000_1000), Some((4 << 30) + SIZE + 0x1000));
        assert_eq!(mapped.load(SIZE), None, "between what is there and the devices is nothing");
    }

    #[test]
    fn bytes_are_read_where_the_guest_has_them() {
        let words: Vec<u64> = (0..1024).collect();
        let memory = MemoryBackends::q35(&[8192], HwAddress::OffsetTwice);
        let mapped =
            Mapped { memory, mappings: vec![BackendMapping { start: words.as_ptr() as usize, bytes: 8192 }] };
        assert_eq!((mapped.load(8 * 77), mapped.load(8191), mapped.load(8192)), (Some(77), None, None));
    }
}
