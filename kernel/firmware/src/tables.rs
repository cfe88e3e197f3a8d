//! Finding tables: RSDP, then XSDT or RSDT, then a table by its signature (ACPI 6.5, 5.2.5 to
//! 5.2.8).
//!
//! A table counts only if its signature, its length and its checksum are right; any other is
//! reported and skipped. So each parser gets a table that is as long as its header says, and no
//! longer than the mapping.

use freehold_machine::PhysAddr;

use crate::Warning;
use crate::bytes::{array, sums_to_zero, u8_at, u32_at, u64_at};

/// Bytes in the header that every table starts with.
pub const HEADER: usize = 36;
/// The longest valid table: 1 MiB.
const MAX_LENGTH: usize = 1 << 20;
/// Largest number of tables that are read.
const MAX_TABLES: usize = 256;

/// Reads physical memory in which firmware left its tables.
///
/// In the kernel this is a read-only mapping; on the host, a test's byte image.
pub trait PhysicalMemory {
    /// The `length` bytes at `address`, or `None` where there is no memory that may be read.
    fn bytes(&self, address: PhysAddr, length: usize) -> Option<&[u8]>;
}

impl<F: Fn(PhysAddr, usize) -> Option<&'static [u8]>> PhysicalMemory for F {
    fn bytes(&self, address: PhysAddr, length: usize) -> Option<&[u8]> {
        self(address, length)
    }
}

/// The root table: the list of the others.
pub struct Tables<'a, M> {
    memory: &'a M,
    /// The entries of the XSDT or RSDT, without its header.
    entries: &'a [u8],
    /// Bytes in an entry: 8 in an XSDT, 4 in an RSDT.
    entry_size: usize,
}

impl<'a, M: PhysicalMemory> Tables<'a, M> {
    /// Read the root pointer at `rsdp` and the list of tables that it leads to.
    pub fn new(memory: &'a M, rsdp: PhysAddr, warn: &mut dyn FnMut(Warning)) -> Option<Self> {
        let Some(pointer) = root_pointer(memory, rsdp) else {
            warn(Warning::NoRootPointer(rsdp));
            return None;
        };
        let revision = u8_at(pointer, 15)?;
        let xsdt = if revision >= 2 { u64_at(pointer, 24)? } else { 0 };
        if xsdt != 0
            && let Some(table) = table_at(memory, PhysAddr(xsdt), *b"XSDT", warn)
        {
            return Some(Self { memory, entries: table.get(HEADER..)?, entry_size: 8 });
        }
        let table = table_at(memory, PhysAddr(u32_at(pointer, 16)?.into()), *b"RSDT", warn)?;
        Some(Self { memory, entries: table.get(HEADER..)?, entry_size: 4 })
    }

    /// Returns the first valid table of each of these signatures, with its header. It takes one
    /// pass, since mapping tables is expensive.
    pub fn find<const N: usize>(
        &self,
        signatures: [[u8; 4]; N],
        warn: &mut dyn FnMut(Warning),
    ) -> [Option<&'a [u8]>; N] {
        let mut found = [None; N];
        for entry in self.entries.chunks_exact(self.entry_size).take(MAX_TABLES) {
            let address =
                if self.entry_size == 8 { u64_at(entry, 0) } else { u32_at(entry, 0).map(u64::from) };
            let Some(address) = address.map(PhysAddr) else { continue };
            let Some(header) = self.memory.bytes(address, HEADER) else { continue };
            let wanted = signatures.iter().position(|signature| header.starts_with(signature));
            if let Some(number) = wanted
                && found[number].is_none()
            {
                found[number] = table_at(self.memory, address, signatures[number], warn);
            }
        }
        found
    }
}

/// The root pointer's bytes: 20 of revision 0, 36 of revision 2.
fn root_pointer<M: PhysicalMemory>(memory: &M, address: PhysAddr) -> Option<&[u8]> {
    let first = memory.bytes(address, 20)?;
    if array(first, 0)? != *b"RSD PTR " || !sums_to_zero(first) {
        return None;
    }
    if u8_at(first, 15)? < 2 {
        return Some(first);
    }
    let all = memory.bytes(address, 36)?;
    sums_to_zero(all).then_some(all)
}

/// Returns the table at `address`, if it is valid.
fn table_at<'a, M: PhysicalMemory>(
    memory: &'a M,
    address: PhysAddr,
    wanted: [u8; 4],
    warn: &mut dyn FnMut(Warning),
) -> Option<&'a [u8]> {
    let header = memory.bytes(address, HEADER)?;
    let signature: [u8; 4] = array(header, 0)?;
    if wanted != signature {
        return None;
    }
    let length = usize::try_from(u32_at(header, 4)?).ok()?;
    if !(HEADER..=MAX_LENGTH).contains(&length) {
        warn(Warning::BadLength(signature));
        return None;
    }
    let Some(table) = memory.bytes(address, length) else {
        warn(Warning::BadLength(signature));
        return None;
    };
    if !sums_to_zero(table) {
        warn(Warning::BadChecksum(signature));
        return None;
    }
    Some(table)
}
