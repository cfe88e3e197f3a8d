//! ext2, ext3 and ext4.
//!
//! | module | concept |
//! |---|---|
//! | here | the superblock, group descriptors, features |
//! | [`inode`] | inodes, texts of symbolic links |
//! | [`blocks`] | the blocks of a file: extents and block pointers |
//! | [`directory`] | names |
//!
//! (Facts: Linux' Documentation/filesystems/ext4, fs/ext4/ext4.h.)
//!
//! Trees are at most six levels deep. Checksums (`metadata_csum`) of the superblock, of group
//! descriptors and of inodes are compared; those of other blocks are not. Directories of every form
//! are searched block by block: the hashes of large ones are not used.

mod blocks;
mod directory;
mod inode;

pub use inode::Ext4Inode;

use crate::checksum::crc32c;
use crate::volume::{SUPERBLOCK, superblock};
use crate::{BlockSource, DiskRun, Listing, MAX_LINK, Volume, VolumeError, VolumeStats, halves, le16, le32};

/// Bytes of the superblock.
const SUPERBLOCK_BYTES: usize = 1024;
const MAGIC: u16 = 0xef53;
/// The largest logarithm of a block's KiB: 64 KiB.
const MAX_LOG: u32 = 6;
/// The largest group descriptor, in bytes.
const MAX_DESCRIPTOR: usize = 1024;

/// Bits of features that change how the disk is read. The rest of `incompat` is in [`INCOMPAT`].
pub(crate) mod incompat {
    pub const FILETYPE: u32 = 2;
    pub const RECOVER: u32 = 4;
    pub const META_BG: u32 = 0x10;
    pub const SIXTY_FOUR: u32 = 0x80;
    pub const CSUM_SEED: u32 = 0x2000;
    pub const LARGEDIR: u32 = 0x4000;
}
const COMPAT_JOURNAL: u32 = 4;
const COMPAT_SPARSE2: u32 = 0x200;
pub(crate) const RO_HUGE_FILE: u32 = 8;
const RO_SPARSE: u32 = 1;
const RO_CHECKSUMS: u32 = 0x400;

/// Features of `incompat` by bit: a name is that of one that is not supported. Bits that are not
/// here are unknown. Those of multiple mounts, of places of inode tables and of large extended
/// attributes do not matter to a reader of files.
const INCOMPAT: [(u32, Option<&str>); 17] = [
    (0x1, Some("compression")),
    (incompat::FILETYPE, None),
    (incompat::RECOVER, None),
    (0x8, Some("journal_dev")),
    (incompat::META_BG, None),
    (0x40, None), // extents
    (incompat::SIXTY_FOUR, None),
    (0x100, None), // mmp
    (0x200, None), // flex_bg
    (0x400, None), // ea_inode
    (0x1000, Some("dirdata")),
    (incompat::CSUM_SEED, None),
    (incompat::LARGEDIR, None),
    (0x8000, Some("inline_data")),
    (0x1_0000, Some("encrypt")),
    (0x2_0000, Some("casefold")),
    (0xfffc_0020 | 0x800, Some("an unknown feature")),
];

/// Treatment of a journal with changes that were not applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JournalUse {
    /// They are missing, so the disk is refused.
    Required,
    /// The disk is read without them (the mount option `noload`).
    Ignored,
}

/// The name by which a disk is mounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flavour {
    /// No journal is needed, and no extents are allowed.
    Ext2,
    /// There is a journal, and no extents.
    Ext3,
    /// Everything that is supported.
    Ext4,
}

/// Number of the root directory's inode.
const ROOT: u32 = 2;

/// ext2, ext3 or ext4 on a disk. Its [figures](VolumeStats) are those of its last unmount.
pub struct Ext4<B> {
    pub(crate) source: B,
    pub(crate) block_size: u32,
    pub(crate) blocks: u64,
    pub(crate) inodes: u32,
    pub(crate) first_inode: u32,
    pub(crate) inode_size: u16,
    pub(crate) incompat: u32,
    pub(crate) ro_compat: u32,
    /// First sum of checksums; `None` if there are none.
    pub(crate) seed: Option<u32>,
    compat: u32,
    first_block: u32,
    blocks_per_group: u32,
    inodes_per_group: u32,
    descriptor_size: u16,
    first_meta_group: u32,
    /// The two groups with a copy of the superblock, if COMPAT_SPARSE2 is set.
    backups: [u32; 2],
    stats: VolumeStats,
}

impl<B: BlockSource> Ext4<B> {
    /// Reads and checks the superblock.
    ///
    /// # Errors
    /// [`VolumeError`].
    pub fn open(source: B, journal: JournalUse) -> Result<Self, VolumeError<B::Error>> {
        let raw: [u8; SUPERBLOCK_BYTES] = superblock(&source)?;
        let bytes = source.bytes();
        let word = |at| le32(&raw, at);
        if le16(&raw, 56) != MAGIC {
            return Err(VolumeError::Other);
        }
        let is_old = word(76) == 0;
        let [compat, incompat, ro_compat] = [92, 96, 100].map(|at| if is_old { 0 } else { word(at) });
        check_features(incompat)?;
        let seed = if ro_compat & RO_CHECKSUMS != 0 { Some(seed_of(&raw, incompat)?) } else { None };
        if incompat & incompat::RECOVER != 0 && journal == JournalUse::Required {
            return Err(VolumeError::NeedsRecovery);
        }
        let log = word(24);
        if log > MAX_LOG {
            return Err(VolumeError::Corrupt("superblock: block size"));
        }
        let block_size = 1024_u32 << log;
        let is_large = incompat & incompat::SIXTY_FOUR != 0;
        let count = |low, high| if is_large { halves(&raw, low, high) } else { word(low).into() };
        let (blocks, free_blocks, overhead) = (count(4, 336), count(12, 344), u64::from(word(584)));
        let volume = Self {
            block_size,
            blocks,
            inodes: word(0),
            first_inode: if is_old { 11 } else { word(84) },
            inode_size: if is_old { 128 } else { le16(&raw, 88) },
            incompat,
            ro_compat,
            seed,
            compat,
            first_block: word(20),
            blocks_per_group: word(32),
            inodes_per_group: word(40),
            descriptor_size: if is_large { le16(&raw, 254) } else { 32 },
            first_meta_group: word(260),
            backups: [588, 592].map(word),
            stats: VolumeStats {
                blocks: blocks.saturating_sub(overhead),
                free_blocks: free_blocks.min(blocks),
                inodes: word(0).into(),
                free_inodes: word(16).into(),
            },
            source,
        };
        volume.check(bytes).map(|()| volume)
    }

    /// Checks the superblock's numbers against each other and against the disk's size.
    fn check(&self, bytes: u64) -> Result<(), VolumeError<B::Error>> {
        let size = u32::from(self.inode_size);
        let is_inode_size = size.is_power_of_two() && (128..=self.block_size).contains(&size);
        let most = MAX_DESCRIPTOR as u16;
        let is_descriptor_size =
            self.descriptor_size.is_power_of_two() && (32..=most).contains(&self.descriptor_size);
        let has_blocks = self
            .blocks
            .checked_mul(self.block_size.into())
            .is_some_and(|all| all <= bytes && u64::from(self.first_block) < self.blocks);
        if !has_blocks {
            return Err(VolumeError::Corrupt("superblock: more blocks than the disk has"));
        }
        // Figures per group are limited by one block of bits; clusters have up to 2^16 blocks.
        let has_groups = self.blocks_per_group > 0
            && self.inodes_per_group > 0
            && self.inodes_per_group <= self.block_size * 8
            && u64::from(self.inodes) <= self.groups() * u64::from(self.inodes_per_group);
        if !(is_inode_size && is_descriptor_size && has_groups) {
            return Err(VolumeError::Corrupt("superblock: sizes"));
        }
        Ok(())
    }

    fn groups(&self) -> u64 {
        (self.blocks - u64::from(self.first_block)).div_ceil(self.blocks_per_group.into())
    }

    /// Whether the features are those of this flavour (Linux: `ext2_feature_set_ok`,
    /// `ext3_feature_set_ok`).
    pub const fn fits(&self, flavour: Flavour) -> bool {
        let simple = incompat::FILETYPE | incompat::META_BG;
        match flavour {
            Flavour::Ext2 => self.incompat & !simple == 0,
            Flavour::Ext3 => {
                self.incompat & !(simple | incompat::RECOVER) == 0 && self.compat & COMPAT_JOURNAL != 0
            }
            Flavour::Ext4 => true,
        }
    }

    /// Returns where the inodes of a group begin, in bytes.
    ///
    /// # Errors
    /// [`VolumeError`].
    pub(crate) fn inode_table(&self, group: u32) -> Result<u64, VolumeError<B::Error>> {
        let corrupt = VolumeError::Corrupt("group descriptor");
        if u64::from(group) >= self.groups() {
            return Err(corrupt);
        }
        let size = usize::from(self.descriptor_size);
        let per_block = self.block_size / size as u32;
        let (table, index) = (group / per_block, group % per_block);
        let has_own = self.incompat & incompat::META_BG != 0 && table >= self.first_meta_group;
        let block = if has_own {
            let first = u64::from(table) * u64::from(per_block);
            let start = u64::from(self.first_block) + first * u64::from(self.blocks_per_group);
            // A superblock in block 0 whose group begins there takes the first KiB of two.
            let is_shifted = self.block_size == 1024 && table == 0 && self.first_block == 0;
            start + u64::from(self.has_copy(first)) + u64::from(is_shifted)
        } else {
            let superblock = SUPERBLOCK / u64::from(self.block_size);
            superblock + 1 + u64::from(table)
        };
        self.check_blocks(block, 1, "group descriptor")?;
        let mut room = [0; MAX_DESCRIPTOR];
        let raw = room.get_mut(..size).ok_or(corrupt)?;
        self.source.read(block * u64::from(self.block_size) + u64::from(index) * size as u64, raw)?;
        if let Some(seed) = self.seed {
            let told = le16(raw, 30);
            if let Some(place) = raw.get_mut(30..32) {
                place.fill(0);
            }
            let sum = crc32c(crc32c(seed, &group.to_le_bytes()), raw);
            if sum as u16 != told {
                return Err(VolumeError::Corrupt("group descriptor's checksum"));
            }
        }
        let start = if size >= 64 { halves(raw, 8, 40) } else { le32(raw, 8).into() };
        let bytes = u64::from(self.inodes_per_group) * u64::from(self.inode_size);
        self.check_blocks(start, bytes.div_ceil(self.block_size.into()), "group descriptor")?;
        Ok(start * u64::from(self.block_size))
    }

    /// Whether a group begins with a copy of the superblock (Linux: `ext4_bg_has_super`).
    fn has_copy(&self, group: u64) -> bool {
        let is_power_of = |base: u64| {
            let mut power = base;
            while power < group {
                power *= base;
            }
            power == group
        };
        if group == 0 {
            true
        } else if self.compat & COMPAT_SPARSE2 != 0 {
            self.backups.iter().any(|&backup| u64::from(backup) == group)
        } else {
            self.ro_compat & RO_SPARSE == 0 || group == 1 || [3, 5, 7].into_iter().any(is_power_of)
        }
    }

    /// Returns group and index of an inode. `None` if there is no such inode.
    pub(crate) fn place_of(&self, inode: u32) -> Option<(u32, u32)> {
        let index = inode.checked_sub(1).filter(|_| inode <= self.inodes)?;
        Some((index / self.inodes_per_group, index % self.inodes_per_group))
    }

    /// Checks that `count` blocks from `start` on exist, and are not the superblock's.
    pub(crate) fn check_blocks(
        &self,
        start: u64,
        count: u64,
        structure: &'static str,
    ) -> Result<(), VolumeError<B::Error>> {
        let is_inside = start > u64::from(self.first_block)
            && start.checked_add(count).is_some_and(|end| end <= self.blocks);
        if is_inside { Ok(()) } else { Err(VolumeError::Corrupt(structure)) }
    }
}

impl<B: BlockSource> Volume for Ext4<B> {
    type Source = B;
    type Inode = Ext4Inode;

    fn source(&self) -> &B {
        &self.source
    }
    fn root(&self) -> u64 {
        ROOT.into()
    }
    fn block_size(&self) -> u32 {
        self.block_size
    }
    fn stats(&self) -> VolumeStats {
        self.stats
    }
    fn inode(&self, number: u64) -> Result<Ext4Inode, VolumeError<B::Error>> {
        self.read_inode(number.try_into().unwrap_or(0))
    }
    fn map(&self, inode: &Ext4Inode, at: u64) -> Result<DiskRun, VolumeError<B::Error>> {
        self.map_byte(inode, at)
    }
    fn entries(&self, directory: &Ext4Inode, listing: Listing<'_>) -> Result<(), VolumeError<B::Error>> {
        self.list(directory, listing)
    }
    fn link(&self, inode: &Ext4Inode, into: &mut [u8; MAX_LINK]) -> Result<usize, VolumeError<B::Error>> {
        self.read_link(inode, into)
    }
}

/// Refuses features that are not supported.
fn check_features<E>(incompat: u32) -> Result<(), VolumeError<E>> {
    let named = INCOMPAT.into_iter().filter(|(bits, _)| incompat & bits != 0).find_map(|(_, name)| name);
    named.map_or(Ok(()), |name| Err(VolumeError::Unsupported(name)))
}

/// Compares the superblock's checksum, and returns the first sum of all others.
fn seed_of<E>(raw: &[u8; SUPERBLOCK_BYTES], incompat: u32) -> Result<u32, VolumeError<E>> {
    if raw[373] != 1 {
        return Err(VolumeError::Unsupported("the kind of checksums"));
    }
    if crc32c(!0, &raw[..1020]) != le32(raw, 1020) {
        return Err(VolumeError::Corrupt("superblock's checksum"));
    }
    let has_seed = incompat & incompat::CSUM_SEED != 0;
    Ok(if has_seed { le32(raw, 624) } else { crc32c(!0, &raw[104..120]) })
}
