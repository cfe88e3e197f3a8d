//! Little-endian fields out of a byte slice. Nothing here panics: a field outside the slice is
//! `None`.

/// The `N` bytes at `offset`.
pub fn array<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset.checked_add(N)?)?.try_into().ok()
}

/// The byte at `offset`.
pub fn u8_at(bytes: &[u8], offset: usize) -> Option<u8> {
    bytes.get(offset).copied()
}

/// The 16-bit field at `offset`.
pub fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    array(bytes, offset).map(u16::from_le_bytes)
}

/// The 32-bit field at `offset`.
pub fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    array(bytes, offset).map(u32::from_le_bytes)
}

/// The 64-bit field at `offset`.
pub fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    array(bytes, offset).map(u64::from_le_bytes)
}

/// Whether the bytes add up to 0 modulo 256, as every ACPI table's must (ACPI 6.5, 5.2.6).
pub fn sums_to_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0u8, |sum, &byte| sum.wrapping_add(byte)) == 0
}

/// Returns the structures of a table whose entries start with a type byte and a length byte (MADT,
/// SRAT). Ends at the first entry with an impossible length.
pub fn short_entries(bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = bytes;
    core::iter::from_fn(move || {
        let (kind, length) = (u8_at(rest, 0)?, usize::from(u8_at(rest, 1)?));
        if length < 2 {
            return None;
        }
        let (entry, after) = rest.split_at_checked(length)?;
        rest = after;
        Some((kind, entry))
    })
}

/// Returns the structures of a table whose entries start with a 16-bit type, two reserved bytes and
/// a 32-bit length (HMAT). Ends at the first entry with an impossible length.
pub fn long_entries(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    core::iter::from_fn(move || {
        let (kind, length) = (u16_at(rest, 0)?, usize::try_from(u32_at(rest, 4)?).ok()?);
        if length < 8 {
            return None;
        }
        let (entry, after) = rest.split_at_checked(length)?;
        rest = after;
        Some((kind, entry))
    })
}
