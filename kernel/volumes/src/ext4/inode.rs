//! Inodes.

use super::incompat::LARGEDIR;
use super::{Ext4, RO_HUGE_FILE, ROOT};
use crate::checksum::crc32c;
use crate::volume::{link_end, link_room};
use crate::{BlockSource, InodeFacts, MAX_LINK, Volume, VolumeError, le16, le32, new_device};

/// Bytes of an inode that are read here: up to the time of creation.
const KNOWN: usize = 160;
/// Bytes of the first edition's inode.
const BASE: usize = 128;
/// Bytes of an inode that are read at once.
const PART: usize = 256;
/// Kinds of files in a mode.
const KIND: u16 = 0o170_000;
const DIRECTORY: u16 = 0o040_000;
const REGULAR: u16 = 0o100_000;
const SYMLINK: u16 = 0o120_000;

/// Flags that change how a file is read.
pub(crate) mod flag {
    pub const ENCRYPTED: u32 = 0x800;
    pub const HUGE_FILE: u32 = 0x4_0000;
    pub const EXTENTS: u32 = 0x8_0000;
    pub const INLINE: u32 = 0x1000_0000;
}

/// An inode.
#[derive(Clone, Copy, Debug)]
pub struct Ext4Inode {
    pub(super) facts: InodeFacts,
    pub(crate) flags: u32,
    /// Block pointers, the root of the tree of extents, or a link's text.
    pub(crate) root: [u8; 60],
    /// Whether the link's text is in `root`.
    is_fast: bool,
}

impl AsRef<InodeFacts> for Ext4Inode {
    fn as_ref(&self) -> &InodeFacts {
        &self.facts
    }
}

impl<B: BlockSource> Ext4<B> {
    /// See [`Volume::inode`]. An inode without a name is corrupt.
    pub(super) fn read_inode(&self, number: u32) -> Result<Ext4Inode, VolumeError<B::Error>> {
        let corrupt = VolumeError::Corrupt("inode's number");
        if number != ROOT && number < self.first_inode {
            return Err(corrupt);
        }
        let (group, index) = self.place_of(number).ok_or(corrupt)?;
        let at = self.inode_table(group)? + u64::from(index) * u64::from(self.inode_size);
        let raw = self.checked_inode(at, number)?;
        let word = |at| le32(&raw, at);
        let half = |at| u32::from(le16(&raw, at));
        let (mode, flags) = (le16(&raw, 0), word(32));
        let extra = usize::from(le16(&raw, BASE));
        if extra % 4 != 0 || BASE + extra > usize::from(self.inode_size).max(BASE) {
            return Err(VolumeError::Corrupt("inode: size of its second part"));
        }
        self.check_flags(flags)?;
        let links = half(26);
        if links == 0 {
            return Err(VolumeError::Corrupt("inode: a name leads to a removed file"));
        }
        let kind = mode & KIND;
        let has_high = kind == REGULAR || (kind == DIRECTORY && self.incompat & LARGEDIR != 0);
        let size = u64::from(word(4)) | if has_high { u64::from(word(108)) << 32 } else { 0 };
        if size > i64::MAX as u64 {
            return Err(VolumeError::Corrupt("inode: size"));
        }
        let is_huge = self.ro_compat & RO_HUGE_FILE != 0;
        let count = u64::from(word(28)) | if is_huge { u64::from(half(116)) << 32 } else { 0 };
        let in_blocks = is_huge && flags & flag::HUGE_FILE != 0;
        let sectors = if in_blocks { count * u64::from(self.block_size / 512) } else { count };
        // A link's only block may be that of its attributes (Linux: `ext4_inode_is_fast_symlink`).
        let attributes = if word(104) == 0 && half(118) == 0 { 0 } else { u64::from(self.block_size / 512) };
        let is_fast = kind == SYMLINK && sectors == attributes && flags & flag::EXTENTS == 0;
        let time = |at: usize, more: usize| {
            let extra = if BASE + extra >= more + 4 { word(more) } else { 0 };
            let seconds = i64::from(word(at).cast_signed()) + (i64::from(extra & 3) << 32);
            // Fewer than 2^30, and a disk may have more than a second's.
            (seconds, (extra >> 2).min(999_999_999))
        };
        let mut root = [0; 60];
        root.copy_from_slice(&raw[40..100]);
        let facts = InodeFacts {
            number: number.into(),
            mode: mode.into(),
            uid: half(2) | half(120) << 16,
            gid: half(24) | half(122) << 16,
            links,
            size,
            sectors,
            device: device(&root),
            accessed: time(8, 140),
            changed: time(12, 132),
            modified: time(16, 136),
            born: (BASE + extra >= 148).then(|| time(144, 148)),
        };
        Ok(Ext4Inode { facts, flags, root, is_fast })
    }

    /// Refuses a file whose bytes have a form that is not supported.
    fn check_flags(&self, flags: u32) -> Result<(), VolumeError<B::Error>> {
        let unsupported = [(flag::ENCRYPTED, "an encrypted file"), (flag::INLINE, "a file with inline data")];
        let found = unsupported.into_iter().find(|(bit, _)| flags & bit != 0);
        found.map_or(Ok(()), |(_, name)| Err(VolumeError::Unsupported(name)))
    }

    /// Reads the first bytes of an inode and compares its checksum.
    fn checked_inode(&self, at: u64, number: u32) -> Result<[u8; KNOWN], VolumeError<B::Error>> {
        let mut raw = [0; KNOWN];
        let mut told = 0;
        let mut sum = self.seed.map(|seed| crc32c(seed, &number.to_le_bytes()));
        let mut mask = 0xffff;
        let size = usize::from(self.inode_size);
        for start in (0..size).step_by(PART) {
            let mut room = [0; PART];
            let part = &mut room[..PART.min(size - start)];
            self.source.read(at + start as u64, part)?;
            if start == 0 {
                let known = part.len().min(KNOWN);
                raw[..known].copy_from_slice(&part[..known]);
                sum = sum.map(|sum| crc32c(sum, &raw[100..104]));
                told = u32::from(le16(part, 124));
                part[124..126].fill(0);
                if part.len() > BASE && le16(part, BASE) >= 4 {
                    told |= u32::from(le16(part, 130)) << 16;
                    mask = !0;
                    part[130..132].fill(0);
                }
            }
            let Some(before) = sum else { return Ok(raw) };
            sum = Some(crc32c(before, part));
        }
        let is_right = sum.is_none_or(|sum| sum & mask == told);
        if is_right { Ok(raw) } else { Err(VolumeError::Corrupt("inode's checksum")) }
    }

    /// See [`Volume::link`].
    pub(super) fn read_link(
        &self,
        inode: &Ext4Inode,
        into: &mut [u8; MAX_LINK],
    ) -> Result<usize, VolumeError<B::Error>> {
        let most = if inode.is_fast { inode.root.len() - 1 } else { MAX_LINK };
        let text = link_room(&inode.facts, into, most)?;
        if inode.is_fast {
            text.copy_from_slice(&inode.root[..text.len()]);
        } else {
            self.read_at(inode, 0, text)?;
        }
        Ok(link_end(text))
    }
}

/// Major and minor number of a device node: in the first word the old form, else in the second the
/// new one.
fn device(root: &[u8; 60]) -> (u32, u32) {
    match (le32(root, 0), le32(root, 4)) {
        (0, new) => new_device(new),
        (old, _) => (old >> 8 & 0xff, old & 0xff),
    }
}
