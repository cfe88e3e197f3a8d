//! The file systems ext2, ext3 and ext4 as bytes of a disk, for reading.
//!
//! | module | concept |
//! |---|---|
//! | [`volume`] | the superblock, group descriptors, features |
//! | [`inode`] | inodes, texts of symbolic links |
//! | [`blocks`] | the blocks of a file: extents and block pointers |
//! | [`directory`] | names |
//! | [`checksum`] | CRC-32C |
//!
//! (Facts: Linux' Documentation/filesystems/ext4, fs/ext4/ext4.h.)
//!
//! **Hostile disks.** Each number is checked where it is used. A value that does not fit is
//! [`Ext4Error::Corrupt`]. No index comes from the disk unchecked, no loop depends on the disk
//! alone: trees are at most six levels deep, and between the blocks of a directory the
//! [`BlockSource`] may stop the caller. Checksums (`metadata_csum`) of the superblock, of group
//! descriptors and of inodes are compared; those of other blocks are not.
//!
//! Nothing here allocates, and nothing is kept but the superblock's numbers. Directories of every
//! form are searched block by block: the hashes of large ones are not used.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod blocks;
mod checksum;
mod directory;
mod inode;
#[cfg(test)]
mod tests;
mod volume;

pub use blocks::BlockRun;
pub use directory::Ext4Entry;
pub use inode::{DiskTime, Ext4Inode};
pub use volume::{Ext4Stats, Flavour, JournalUse, Volume};

/// Number of the root directory's inode.
pub const ROOT: u32 = 2;
/// Largest number of bytes of a symbolic link's text.
pub const MAX_LINK: usize = 4095;

/// The disk.
pub trait BlockSource {
    /// Error of the disk, or of a caller that is to end.
    type Error: Copy;
    /// Number of bytes.
    fn bytes(&self) -> u64;
    /// Reads the bytes from `at` on, which are all on the disk. May stop a long work with an error.
    ///
    /// # Errors
    /// The disk's.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Self::Error>;
}

/// The reason why something cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ext4Error<E> {
    /// The disk's error.
    Device(E),
    /// The disk has no file system of this kind.
    NotExt4,
    /// The disk's bytes contradict each other. The text names the structure.
    Corrupt(&'static str),
    /// The text names a feature that is not supported.
    Unsupported(&'static str),
    /// The journal has changes that were not applied.
    NeedsRecovery,
}

impl<E> From<E> for Ext4Error<E> {
    fn from(error: E) -> Self {
        Self::Device(error)
    }
}

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
