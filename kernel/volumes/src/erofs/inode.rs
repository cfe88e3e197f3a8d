//! Inodes. An inode's number is its place, in units of 32 bytes.

use super::Erofs;
use crate::{BlockSource, InodeFacts, VolumeError, halves, le16, le32, new_device};

/// Bytes of the units in which inodes are counted, and of the short form.
const SHORT: usize = 32;
/// Bytes of the long form.
const LONG: usize = 64;
/// Bytes of the header of extended attributes; each further unit has four.
const ATTRIBUTES: u64 = 12;

/// Kinds of files in a mode.
const KIND: u32 = 0o170_000;
const CHAR_DEVICE: u32 = 0o020_000;
const BLOCK_DEVICE: u32 = 0o060_000;

/// Where a file's bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Layout {
    /// In blocks from this one on.
    Blocks(u32),
    /// The same, but the last part that fills no block is beside the inode.
    Tail(u32),
    /// In chunks; the word says how large they are and what their list looks like.
    Chunks(u32),
    Compressed,
}

/// An inode.
#[derive(Clone, Copy, Debug)]
pub struct ErofsInode {
    pub(super) facts: InodeFacts,
    pub(super) layout: Layout,
    /// Where inode and extended attributes end, in bytes of the disk.
    pub(super) end: u64,
}

impl AsRef<InodeFacts> for ErofsInode {
    fn as_ref(&self) -> &InodeFacts {
        &self.facts
    }
}

impl<B: BlockSource> Erofs<B> {
    /// See [`Volume::inode`](crate::Volume::inode).
    pub(super) fn read_inode(&self, number: u64) -> Result<ErofsInode, VolumeError<B::Error>> {
        let outside = VolumeError::Corrupt("inode's number");
        let offset = number.checked_mul(SHORT as u64).ok_or(outside)?;
        let at = self.inodes_at.checked_add(offset).ok_or(outside)?;
        let mut raw = [0; LONG];
        self.check_bytes(at, SHORT as u64, "inode's number")?;
        self.source.read(at, &mut raw[..SHORT])?;
        let format = le16(&raw, 0);
        let is_long = format & 1 != 0;
        if is_long {
            self.check_bytes(at, LONG as u64, "inode's number")?;
            self.source.read(at + SHORT as u64, &mut raw[SHORT..])?;
        }
        let word = |at| le32(&raw, at);
        let half = |at| u32::from(le16(&raw, at));
        let (mode, place) = (half(4), word(16));
        let layout = match format >> 1 & 7 {
            0 => Layout::Blocks(place),
            2 => Layout::Tail(place),
            1 | 3 => Layout::Compressed,
            4 => Layout::Chunks(place),
            _ => return Err(VolumeError::Corrupt("inode: layout")),
        };
        if format >> 4 != 0 {
            return Err(VolumeError::Unsupported("a form of inodes"));
        }
        let (size, uid, gid, links, modified) = if is_long {
            let time = (halves(&raw, 32, 36).cast_signed(), word(40).min(999_999_999));
            (halves(&raw, 8, 12), word(24), word(28), word(44), time)
        } else {
            (word(8).into(), half(24), half(26), half(6), self.built)
        };
        if size > i64::MAX as u64 {
            return Err(VolumeError::Corrupt("inode: size"));
        }
        if links == 0 {
            return Err(VolumeError::Corrupt("inode: a name leads to a removed file"));
        }
        let blocks = match layout {
            Layout::Compressed => u64::from(place),
            _ => size.div_ceil(1 << self.bits),
        };
        let is_device = matches!(mode & KIND, CHAR_DEVICE | BLOCK_DEVICE);
        let attributes = u64::from(half(2)).checked_sub(1).map_or(0, |more| ATTRIBUTES + 4 * more);
        let facts = InodeFacts {
            number,
            mode,
            uid,
            gid,
            links,
            size,
            sectors: blocks << (self.bits - 9),
            device: if is_device { new_device(place) } else { (0, 0) },
            accessed: modified,
            modified,
            changed: modified,
            born: None,
        };
        Ok(ErofsInode { facts, layout, end: at + if is_long { LONG } else { SHORT } as u64 + attributes })
    }
}
