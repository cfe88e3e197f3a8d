//! The bytes that firmware left in memory: ACPI tables.

use freehold_machine::PhysAddr;

use crate::boot;
use crate::memory::tables::READ_ONLY;
use crate::vmap;

/// Returns `len` bytes of firmware's memory at `phys`, read-only, for ever. Returns an empty slice
/// if the range cannot be mapped, or touches usable memory: a table with such an address is
/// invalid.
pub fn map(phys: PhysAddr, len: usize) -> &'static [u8] {
    if len == 0 || boot::info().touches_memory(phys, len as u64) {
        return &[];
    }
    match vmap::map_range(phys, len as u64, READ_ONLY) {
        // SAFETY: the range was just mapped for reading, for ever; it is no Rust object's memory,
        // and firmware no longer writes it.
        Ok(address) => unsafe { core::slice::from_raw_parts(address.0 as *const u8, len) },
        Err(_) => &[],
    }
}
