//! PCI functions: where they are, their capabilities, BARs and MSI-X (PCI Local Bus 3.0, chapter
//! 6).
//!
//! Firmware has placed the BARs; bus 0 is scanned, and bridges are crossed to what is plugged into
//! their slots only (`port.rs`).

use freehold_machine::PhysAddr;

use crate::SetupError;
use crate::platform::{Function, MsiMessage, Notify, Platform, Registers};

/// Capability ids of MSI and MSI-X.
const MSI: u8 = 0x05;
const MSIX: u8 = 0x11;
/// Largest number of capabilities in a list: the list has to end, whatever the device says.
const MAX_CAPABILITIES: usize = 48;
/// Bytes in an entry of the MSI-X table.
const MSIX_ENTRY: usize = 16;

/// The functions of bus 0 with their vendor and device id, by device number.
pub fn functions<P: Platform>(platform: &P) -> impl Iterator<Item = (Function, u16, u16)> {
    (0..32u8).flat_map(move |device| {
        let first = Function { bus: 0, device, function: 0 };
        // Bit 23 of the word with the header type: more functions than one.
        let count = match platform.read_config(first, 0) {
            u32::MAX => 0,
            _ if platform.read_config(first, 0x0c) & (1 << 23) != 0 => 8,
            _ => 1,
        };
        (0..count).filter_map(move |function| {
            let function = Function { function, ..first };
            let id = platform.read_config(function, 0);
            (id != u32::MAX).then_some((function, id as u16, (id >> 16) as u16))
        })
    })
}

/// The capabilities of a function: where each starts and its first word (id in the low byte).
pub fn capabilities<P: Platform>(platform: &P, function: Function) -> impl Iterator<Item = (u8, u32)> {
    // Bit 20 of the command and status word: there is a list.
    let listed = platform.read_config(function, 4) & (1 << 20) != 0;
    let mut next = if listed { platform.read_config(function, 0x34) as u8 & 0xfc } else { 0 };
    core::iter::from_fn(move || {
        if next < 0x40 {
            return None;
        }
        let at = next;
        let word = platform.read_config(function, at);
        next = (word >> 8) as u8 & 0xfc;
        Some((at, word))
    })
    .take(MAX_CAPABILITIES)
}

/// The address in memory BAR `number`, which firmware placed; `None` for I/O, absent and unplaced
/// ones.
fn memory_bar<P: Platform>(platform: &P, function: Function, number: u8) -> Option<u64> {
    if number > 5 {
        return None;
    }
    let register = 0x10 + 4 * number;
    let low = platform.read_config(function, register);
    if low & 1 != 0 {
        return None;
    }
    let high = match low >> 1 & 3 {
        0 => 0,
        2 if number < 5 => platform.read_config(function, register + 4),
        _ => return None,
    };
    let address = u64::from(high) << 32 | u64::from(low & !0xf);
    (address != 0).then_some(address)
}

/// Map `length` bytes at `offset` in a BAR.
pub(crate) fn map_bar<P: Platform>(
    platform: &P,
    function: Function,
    bar: u8,
    offset: u32,
    length: usize,
) -> Option<P::Registers> {
    let address = memory_bar(platform, function, bar)?.checked_add(offset.into())?;
    address.checked_add(length as u64)?;
    platform.map(PhysAddr(address), length)
}

/// Let the function answer to memory accesses and be a bus master, without INTx.
pub fn enable<P: Platform>(platform: &P, function: Function) {
    // The upper half is the status, whose bits are cleared by writing ones: write zeroes.
    let command = platform.read_config(function, 4) & 0xffff;
    platform.write_config(function, 4, command | 1 << 1 | 1 << 2 | 1 << 10);
}

/// Let the function answer to memory accesses.
pub(crate) fn enable_registers<P: Platform>(platform: &P, function: Function) {
    let command = platform.read_config(function, 4) & 0xffff;
    platform.write_config(function, 4, command | 1 << 1);
}

/// Stop a function from touching memory.
pub fn disable<P: Platform>(platform: &P, function: Function) {
    let command = platform.read_config(function, 4) & 0xffff;
    platform.write_config(function, 4, command & !(1 << 2));
}

/// Send the function's MSI-X vector 0 to `handler`; the others stay masked.
pub(crate) fn route_interrupt<P: Platform>(
    platform: &P,
    function: Function,
    handler: &'static dyn Notify,
) -> Result<(), SetupError> {
    let found = capabilities(platform, function).find(|(_, word)| *word as u8 == MSIX);
    let (at, word) = found.ok_or(SetupError::NoInterrupt)?;
    // The table's place is in the next word; both have to be inside the space.
    let place = at.checked_add(4).ok_or(SetupError::NoInterrupt)?;
    let table = platform.read_config(function, place);
    let entry = map_bar(platform, function, table as u8 & 7, table & !7, MSIX_ENTRY)
        .ok_or(SetupError::NoRegisters("MSI-X table"))?;
    let MsiMessage { address, data } =
        platform.interrupt(function, handler).ok_or(SetupError::NoInterrupt)?;
    entry.write32(0, address as u32);
    entry.write32(4, (address >> 32) as u32);
    entry.write32(8, data);
    entry.write32(12, 0); // not masked
    // Bit 15 of the control word enables, bit 14 masks all; the id and the next pointer are
    // read-only.
    platform.write_config(function, at, (word | 1 << 31) & !(1 << 30));
    Ok(())
}

/// Send the function's only message to `handler`, by MSI-X or else by MSI.
pub(crate) fn route_message<P: Platform>(
    platform: &P,
    function: Function,
    handler: &'static dyn Notify,
) -> Result<(), SetupError> {
    if capabilities(platform, function).any(|(_, word)| word as u8 == MSIX) {
        return route_interrupt(platform, function, handler);
    }
    let found = capabilities(platform, function).find(|(_, word)| *word as u8 == MSI);
    let (at, word) = found.filter(|&(at, _)| at <= u8::MAX - 16).ok_or(SetupError::NoInterrupt)?;
    let MsiMessage { address, data } =
        platform.interrupt(function, handler).ok_or(SetupError::NoInterrupt)?;
    platform.write_config(function, at + 4, address as u32);
    // Bit 7 of the control word: addresses of 64 bits, which move the data.
    let is_wide = word >> 23 & 1 != 0;
    if is_wide {
        platform.write_config(function, at + 8, (address >> 32) as u32);
    } else if address >> 32 != 0 {
        return Err(SetupError::NoInterrupt);
    }
    platform.write_config16(function, if is_wide { at + 12 } else { at + 8 }, data as u16);
    // One message (bits 4 to 6), enabled.
    platform.write_config16(function, at + 2, (word >> 16) as u16 & !0x70 | 1);
    Ok(())
}
