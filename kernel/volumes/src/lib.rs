//! File systems as bytes of a disk, for reading.
//!
//! | module | concept |
//! |---|---|
//! | [`ext4`] | ext2, ext3 and ext4 |
//! | [`erofs`] | EROFS |
//! | [`volume`] | the parts that all of them have: the trait [`Volume`], inodes, names, runs of bytes |
//! | [`checksum`] | CRC-32C |
//!
//! **Hostile disks.** Each number is checked where it is used. A value that does not fit is
//! [`VolumeError::Corrupt`]. No index comes from the disk unchecked, and no loop depends on the
//! disk alone: between the blocks of a directory the [`BlockSource`] may stop the caller.
//!
//! Nothing here allocates, nothing recurses, and nothing is kept but the superblock's numbers.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod checksum;
mod erofs;
mod ext4;
#[cfg(test)]
mod tests;
mod volume;

pub use erofs::{Erofs, ErofsInode};
pub use ext4::{Ext4, Ext4Inode, Flavour, JournalUse};
pub use volume::{
    BlockSource, DiskEntry, DiskRun, DiskTime, InodeFacts, Listing, MAX_LINK, Volume, VolumeError,
    VolumeStats,
};

/// Returns a little-endian number; 0 past the end of `bytes`.
fn le16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u16::from_le_bytes(*bytes))
}

/// Returns a little-endian number; 0 past the end of `bytes`.
fn le32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// Returns a number whose halves are at two places.
fn halves(bytes: &[u8], low: usize, high: usize) -> u64 {
    u64::from(le32(bytes, low)) | u64::from(le32(bytes, high)) << 32
}

/// Major and minor number in the form that Linux' `new_encode_dev` makes.
fn new_device(number: u32) -> (u32, u32) {
    (number >> 8 & 0xfff, (number & 0xff) | (number >> 12 & 0xf_ff00))
}
