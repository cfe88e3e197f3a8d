//! EROFS, the enhanced read-only file system, without compression.
//!
//! | module | concept |
//! |---|---|
//! | here | the superblock, and what is not supported |
//! | [`inode`] | inodes |
//! | [`data`] | the bytes of a file: in blocks, beside the inode, or in chunks |
//! | [`directory`] | names |
//!
//! (Facts: Linux' Documentation/filesystems/erofs.rst, fs/erofs/erofs_fs.h.)
//!
//! A compressed file has its inode and its name, but its bytes are
//! [`VolumeError::Unsupported`]. The superblock's checksum is compared; nothing else has one.

mod data;
mod directory;
mod inode;

pub use inode::ErofsInode;

use crate::checksum::crc32c;
use crate::volume::{SUPERBLOCK, superblock};
use crate::{BlockSource, DiskRun, DiskTime, Listing, Volume, VolumeError, VolumeStats, halves, le16, le32};

/// Bytes of the superblock.
const SUPERBLOCK_BYTES: usize = 128;
const MAGIC: u32 = 0xe0f5_e1e2;
/// The logarithms of a block's bytes.
const BLOCK_BITS: core::ops::RangeInclusive<u8> = 9..=16;
/// Bytes of the checksum's blocks that are read at once.
const PART: usize = 256;

const COMPAT_CHECKSUM: u32 = 1;
/// Features of `incompat` that matter for compressed files only, and chunks.
const HARMLESS: u32 = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x20 | 0x40;

/// EROFS on a disk.
pub struct Erofs<B> {
    source: B,
    /// Logarithm of a block's bytes.
    bits: u8,
    blocks: u64,
    /// Where inode 0 would be, in bytes.
    inodes_at: u64,
    root: u64,
    inodes: u64,
    /// The time of all files whose inodes have none.
    built: DiskTime,
}

impl<B: BlockSource> Erofs<B> {
    /// Reads and checks the superblock.
    ///
    /// # Errors
    /// [`VolumeError`].
    pub fn open(source: B) -> Result<Self, VolumeError<B::Error>> {
        let raw: [u8; SUPERBLOCK_BYTES] = superblock(&source)?;
        let word = |at| le32(&raw, at);
        if word(0) != MAGIC {
            return Err(VolumeError::Other);
        }
        if word(80) & !HARMLESS != 0 {
            return Err(VolumeError::Unsupported("an unknown feature"));
        }
        if le16(&raw, 86) != 0 {
            return Err(VolumeError::Unsupported("more than one device"));
        }
        let [bits, directory_bits] = [12, 90].map(|at: usize| raw[at]);
        if !BLOCK_BITS.contains(&bits) || directory_bits != 0 {
            return Err(VolumeError::Corrupt("superblock: block size"));
        }
        let volume = Self {
            bits,
            blocks: word(36).into(),
            inodes_at: u64::from(word(40)) << bits,
            root: le16(&raw, 14).into(),
            inodes: halves(&raw, 16, 20),
            built: (halves(&raw, 24, 28).cast_signed(), word(32).min(999_999_999)),
            source,
        };
        if volume.blocks << bits > volume.source.bytes() {
            return Err(VolumeError::Corrupt("superblock: more blocks than the disk has"));
        }
        if word(8) & COMPAT_CHECKSUM != 0 {
            volume.check_sum(word(4))?;
        }
        Ok(volume)
    }

    /// Compares the checksum of the block that holds the superblock, from the superblock on.
    fn check_sum(&self, told: u32) -> Result<(), VolumeError<B::Error>> {
        let block = 1_u64 << self.bits;
        let end = if block > SUPERBLOCK { block } else { SUPERBLOCK + block };
        let mut sum = !0;
        let end = end.min(self.source.bytes());
        for at in (SUPERBLOCK..end).step_by(PART) {
            let mut room = [0; PART];
            let part = &mut room[..(end - at).min(PART as u64) as usize];
            self.source.read(at, part)?;
            if at == SUPERBLOCK {
                part[4..8].fill(0);
            }
            sum = crc32c(sum, part);
        }
        if sum == told { Ok(()) } else { Err(VolumeError::Corrupt("superblock's checksum")) }
    }

    /// Checks that `count` bytes from `start` on are in the file system's blocks.
    fn check_bytes(
        &self,
        start: u64,
        count: u64,
        structure: &'static str,
    ) -> Result<(), VolumeError<B::Error>> {
        let is_inside = start.checked_add(count).is_some_and(|end| end <= self.blocks << self.bits);
        if is_inside { Ok(()) } else { Err(VolumeError::Corrupt(structure)) }
    }
}

impl<B: BlockSource> Volume for Erofs<B> {
    type Source = B;
    type Inode = ErofsInode;

    fn source(&self) -> &B {
        &self.source
    }
    fn root(&self) -> u64 {
        self.root
    }
    fn block_size(&self) -> u32 {
        1 << self.bits
    }
    /// Nothing is free, as on Linux.
    fn stats(&self) -> VolumeStats {
        VolumeStats {
            blocks: self.blocks,
            free_blocks: 0,
            inodes: u64::MAX,
            free_inodes: u64::MAX - self.inodes,
        }
    }
    fn inode(&self, number: u64) -> Result<ErofsInode, VolumeError<B::Error>> {
        self.read_inode(number)
    }
    fn map(&self, inode: &ErofsInode, at: u64) -> Result<DiskRun, VolumeError<B::Error>> {
        self.map_byte(inode, at)
    }
    fn entries(&self, directory: &ErofsInode, listing: Listing<'_>) -> Result<(), VolumeError<B::Error>> {
        self.list(directory, listing)
    }
    fn lookup(
        &self,
        directory: &ErofsInode,
        name: &[u8],
        room: &mut [u8],
    ) -> Result<Option<u64>, VolumeError<B::Error>> {
        self.find(directory, name, room)
    }
}
