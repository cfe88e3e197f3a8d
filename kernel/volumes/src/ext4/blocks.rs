//! The blocks of a file: a tree of extents (ext4), or pointers of up to three levels (ext2, ext3).

use super::inode::flag::EXTENTS;
use super::{Ext4, Ext4Inode};
use crate::{BlockSource, DiskRun, VolumeError, le16, le32};

const MAGIC: u16 = 0xf30a;
/// Bytes of an extent, of an index and of the header before them.
const ENTRY: usize = 12;
/// Levels below the root of a tree.
const MAX_DEPTH: u16 = 5;
/// Longest extent; a larger length is that of one that was not written yet, and this more.
const MAX_LENGTH: u32 = 1 << 15;
/// Blocks that a file with extents can have.
const MAX_BLOCKS: u64 = 1 << 32;
/// Pointers in the inode that lead to data.
const DIRECT: u64 = 12;
/// Bytes of pointers that are read at once.
const POINTERS: usize = 256;

/// Adjacent blocks of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BlockRun {
    /// The first block on the disk; `None` for blocks of zeroes.
    pub start: Option<u64>,
    /// How many; at least 1.
    pub blocks: u64,
}

impl<B: BlockSource> Ext4<B> {
    /// Returns where the block `block` of a file is, and how many blocks follow it in the same way.
    pub(super) fn map_block(&self, inode: &Ext4Inode, block: u64) -> Result<BlockRun, VolumeError<B::Error>> {
        if inode.flags & EXTENTS != 0 {
            self.map_extents(inode, block)
        } else {
            self.map_pointers(inode, block)
        }
    }

    /// The same for the byte `at`.
    pub(super) fn map_byte(&self, inode: &Ext4Inode, at: u64) -> Result<DiskRun, VolumeError<B::Error>> {
        let size = u64::from(self.block_size);
        let run = self.map_block(inode, at / size)?;
        let start = run.start.map(|start| start * size + at % size);
        Ok(DiskRun { start, bytes: run.blocks.saturating_mul(size) - at % size })
    }

    /// Searches the tree of extents, one node per level, by halving.
    fn map_extents(&self, inode: &Ext4Inode, block: u64) -> Result<BlockRun, VolumeError<B::Error>> {
        let corrupt = VolumeError::Corrupt("extents");
        if block >= MAX_BLOCKS {
            return Err(corrupt);
        }
        // The next extent begins there or later.
        let mut end = MAX_BLOCKS;
        // Where the node is on the disk; the root is in the inode.
        let mut node = None;
        let mut level = MAX_DEPTH + 1;
        loop {
            let entry = |index: usize| -> Result<[u8; ENTRY], VolumeError<B::Error>> {
                let (mut bytes, at) = ([0; ENTRY], index * ENTRY);
                match node {
                    Some(node) => self.source.read(node + at as u64, &mut bytes)?,
                    None => bytes.copy_from_slice(inode.root.get(at..at + ENTRY).ok_or(corrupt)?),
                }
                Ok(bytes)
            };
            let header = entry(0)?;
            let [count, most] = [2, 4].map(|at| usize::from(le16(&header, at)));
            let (above, room) =
                (level, if node.is_some() { self.block_size as usize } else { inode.root.len() });
            level = le16(&header, 6);
            let is_next = if node.is_some() { level + 1 == above } else { level < above };
            if le16(&header, 0) != MAGIC || count > most || ENTRY * (most + 1) > room || !is_next {
                return Err(corrupt);
            }
            let (mut low, mut high, mut found) = (0, count, None);
            while low < high {
                let middle = low.midpoint(high);
                let probe = entry(middle + 1)?;
                let first = u64::from(le32(&probe, 0));
                if first <= block {
                    (low, found) = (middle + 1, Some((first, probe)));
                } else {
                    (high, end) = (middle, end.min(first));
                }
            }
            let Some((first, found)) = found else {
                return Ok(BlockRun { start: None, blocks: end - block });
            };
            if level > 0 {
                let child = u64::from(le32(&found, 4)) | u64::from(le16(&found, 8)) << 32;
                self.check_blocks(child, 1, "extents")?;
                node = Some(child * u64::from(self.block_size));
                continue;
            }
            return self.run_in(first, &found, block, end);
        }
    }

    /// Returns the run of an extent that begins at `first`, or the hole behind it up to `end`.
    fn run_in(
        &self,
        first: u64,
        extent: &[u8; ENTRY],
        block: u64,
        end: u64,
    ) -> Result<BlockRun, VolumeError<B::Error>> {
        let told = u32::from(le16(extent, 4));
        let start = u64::from(le32(extent, 8)) | u64::from(le16(extent, 6)) << 32;
        let is_written = told <= MAX_LENGTH;
        let length = u64::from(if is_written { told } else { told - MAX_LENGTH });
        if length == 0 {
            return Err(VolumeError::Corrupt("extents"));
        }
        self.check_blocks(start, length, "extents")?;
        let offset = block - first;
        Ok(if offset < length {
            let blocks = (length - offset).min(end - block);
            BlockRun { start: is_written.then_some(start + offset), blocks }
        } else {
            BlockRun { start: None, blocks: end - block }
        })
    }

    /// Follows the block pointers. A pointer of 0 leads to zeroes, for all that is below it.
    fn map_pointers(&self, inode: &Ext4Inode, block: u64) -> Result<BlockRun, VolumeError<B::Error>> {
        if block < DIRECT {
            return self.run_of(&inode.root[block as usize * 4..DIRECT as usize * 4]);
        }
        let size = u64::from(self.block_size);
        let per_block = size / 4;
        // The index below the pointer of its level in the inode, and the blocks below that pointer.
        let (mut index, mut slot, mut span) = (block - DIRECT, DIRECT as usize, per_block);
        while index >= span {
            index -= span;
            (slot, span) = (slot + 1, span * per_block);
            if slot > 14 {
                return Err(VolumeError::Corrupt("file larger than its pointers can be"));
            }
        }
        let mut pointer = le32(&inode.root, slot * 4);
        loop {
            if pointer == 0 {
                return Ok(BlockRun { start: None, blocks: span - index });
            }
            self.check_blocks(pointer.into(), 1, "block pointer")?;
            span /= per_block;
            let at = index / span * 4;
            index %= span;
            let mut room = [0; POINTERS];
            let most = if span == 1 { (size - at).min(POINTERS as u64) } else { 4 };
            let pointers = &mut room[..most as usize];
            self.source.read(u64::from(pointer) * size + at, pointers)?;
            if span == 1 {
                return self.run_of(pointers);
            }
            pointer = le32(pointers, 0);
        }
    }

    /// Returns the run with which a list of pointers to data begins.
    fn run_of(&self, pointers: &[u8]) -> Result<BlockRun, VolumeError<B::Error>> {
        let first = le32(pointers, 0);
        let step = u32::from(first != 0);
        let mut blocks = 0;
        let mut expected = first;
        for at in (0..pointers.len()).step_by(4) {
            if le32(pointers, at) != expected {
                break;
            }
            blocks += 1;
            let Some(next) = expected.checked_add(step) else { break };
            expected = next;
        }
        if first != 0 {
            self.check_blocks(first.into(), blocks, "block pointer")?;
        }
        Ok(BlockRun { start: (first != 0).then_some(first.into()), blocks })
    }
}
