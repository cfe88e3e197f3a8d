//! Reading the PVH start info while the first GiB is identity-mapped.
//! Source: Xen's public/arch-x86/hvm/start_info.h.

use freehold_machine::{Pfn, PfnRange, PhysAddr};

use super::{BootInfo, MAX_COMMAND_LINE, MAX_PLAIN, MAX_REGIONS, MemoryKind, MemoryRegion};

const MAGIC: u32 = 0x336e_c578;
const IDENTITY_END: u64 = 1 << 30;

/// Little-endian fields of a structure at a physical address.
#[derive(Clone, Copy)]
struct Low(u64);

impl Low {
    fn byte(self, offset: u64) -> u8 {
        let address = self.0 + offset;
        if address == 0 || address >= IDENTITY_END {
            return 0;
        }
        // SAFETY: the address is in the identity map of the first GiB, where the loader left its
        // data and nothing of Rust's is written meanwhile; any byte is valid.
        unsafe { (address as *const u8).read_volatile() }
    }
    fn u32(self, offset: u64) -> u32 {
        u32::from_le_bytes(core::array::from_fn(|i| self.byte(offset + i as u64)))
    }
    fn u64(self, offset: u64) -> u64 {
        u64::from_le_bytes(core::array::from_fn(|i| self.byte(offset + i as u64)))
    }
}

/// Whether the command line has the parameter `nokaslr`. Called before the relocations are applied,
/// so it uses only the loader's memory. `start_info` is 0 if there is none.
pub(super) fn has_nokaslr(start_info: u64) -> bool {
    // "nokaslr" as a number: constants in memory cannot be used yet.
    const WORD: u64 = 0x0072_6c73_616b_6f6e;
    if start_info == 0 {
        return false;
    }
    let text = Low(Low(start_info).u64(24));
    let (mut word, mut length) = (0u64, 0u64);
    let mut at = 0;
    while text.0 != 0 && at < MAX_COMMAND_LINE as u64 {
        let byte = text.byte(at);
        if byte == 0 || byte == b' ' {
            if length == 7 && word == WORD {
                return true;
            }
            if byte == 0 {
                return false;
            }
            (word, length) = (0, 0);
        } else {
            word |= if length < 8 { u64::from(byte) << (8 * length) } else { 0 };
            length += 1;
        }
        at += 1;
    }
    false
}

/// Copies the loader's data.
///
/// # Panics
/// If the start info is invalid, or describes no usable memory.
#[cold]
pub(super) fn read(start_info: PhysAddr, slide: u64, entry_tsc: u64) -> BootInfo {
    let info = Low(start_info.0);
    assert!(info.u32(0) == MAGIC && info.u32(4) >= 1, "the loader gave no PVH start info with a memory map");
    let none = MemoryRegion { start: PhysAddr(0), len: 0, kind: MemoryKind::Reserved };
    let mut boot = BootInfo {
        command_line: [0; MAX_COMMAND_LINE],
        command_line_len: 0,
        regions: [none; MAX_REGIONS],
        region_count: 0,
        plain: [PfnRange::default(); MAX_PLAIN],
        memory_end: Pfn(0),
        initrd: None,
        rsdp: Some(PhysAddr(info.u64(32))).filter(|address| address.0 != 0),
        slide,
        image: PfnRange::default(),
        entry_tsc,
    };

    let text = Low(info.u64(24));
    while text.0 != 0 && boot.command_line_len < MAX_COMMAND_LINE - 1 {
        let byte = text.byte(boot.command_line_len as u64);
        if byte == 0 {
            break;
        }
        boot.command_line[boot.command_line_len] = byte;
        boot.command_line_len += 1;
    }

    if info.u32(12) > 0 {
        let module = Low(info.u64(16));
        let (start, len) = (module.u64(0), module.u64(8));
        boot.initrd = (len > 0).then_some((PhysAddr(start), len));
    }

    let map = info.u64(40);
    for index in 0..u64::from(info.u32(48)).min(MAX_REGIONS as u64) {
        let entry = Low(map + index * 24);
        let kind = match entry.u32(16) {
            1 => MemoryKind::Usable,
            3 => MemoryKind::AcpiReclaimable,
            _ => MemoryKind::Reserved,
        };
        let region = MemoryRegion { start: PhysAddr(entry.u64(0)), len: entry.u64(8), kind };
        boot.regions[boot.region_count] = region;
        boot.region_count += 1;
        if kind == MemoryKind::Usable {
            boot.memory_end = boot.memory_end.max(region.frames().end);
        }
    }
    boot.regions[..boot.region_count].sort_unstable_by_key(|region| region.start);
    assert!(boot.memory_end > Pfn(0), "the loader's memory map has no usable memory");
    boot.place_image();
    boot.find_plain_memory();
    boot
}
