//! The bits of a translation-table entry that x86-64's hardware knows (Intel SDM volume 3A, 4.5).

/// The entry is valid: it has a frame or a table.
pub const PRESENT: u64 = 1;
/// Stores are allowed.
pub const WRITABLE: u64 = 1 << 1;
/// User mode is allowed.
pub const USER: u64 = 1 << 2;
/// Stores go to memory at once.
pub const WRITE_THROUGH: u64 = 1 << 3;
/// No cache keeps the bytes.
pub const UNCACHED: u64 = 1 << 4;
/// The CPU used the entry.
pub const ACCESSED: u64 = 1 << 5;
/// The CPU stored through the leaf.
pub const DIRTY: u64 = 1 << 6;
/// The entry is a leaf above the lowest level.
pub const LARGE: u64 = 1 << 7;
/// The translation stays cached when the root changes.
pub const GLOBAL: u64 = 1 << 8;
/// In a leaf of a user page: its protection key.
pub const KEY: u64 = 0xf << KEY_SHIFT;
/// Place of the protection key.
pub const KEY_SHIFT: u32 = 59;
/// Instruction fetches are not allowed.
pub const NO_EXECUTE: u64 = 1 << 63;
/// The address of the frame or table that the entry leads to.
pub const FRAME: u64 = 0x000f_ffff_ffff_f000;
