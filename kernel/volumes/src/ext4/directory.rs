//! Directories: lists of names, block by block. The blocks that index a large directory by hashes
//! look like blocks without names, so all are read in the same way.

use super::blocks::BlockRun;
use super::incompat::FILETYPE;
use super::{Ext4, Ext4Inode};
use crate::volume::{is_name, kind_of};
use crate::{BlockSource, DiskEntry, Listing, VolumeError, le16, le32};

/// Bytes of an entry before its name.
const HEADER: usize = 8;
/// Bytes of the shortest entry.
const SHORTEST: usize = 12;

impl<B: BlockSource> Ext4<B> {
    /// See [`Volume::entries`](crate::Volume::entries).
    pub(super) fn list(
        &self,
        directory: &Ext4Inode,
        Listing { from, room, show }: Listing<'_>,
    ) -> Result<(), VolumeError<B::Error>> {
        let corrupt = VolumeError::Corrupt("directory");
        let size = u64::from(self.block_size);
        let room =
            room.get_mut(..self.block_size as usize).ok_or(VolumeError::Unsupported("a small buffer"))?;
        let mut run = BlockRun { start: None, blocks: 0 };
        for block in from / size..directory.facts.size.div_ceil(size) {
            if run.blocks == 0 {
                run = self.map_block(directory, block)?;
            }
            let place = run.start.ok_or(corrupt)?;
            run = BlockRun { start: Some(place + 1), blocks: run.blocks - 1 };
            self.source.read(place * size, room)?;
            let mut at = 0;
            while let Some(entry) = room.get(at..).filter(|rest| !rest.is_empty()) {
                let length = entry_length(le16(entry, 4), room.len());
                let inode = le32(entry, 0);
                let name_length = usize::from(entry.get(6).copied().unwrap_or(0));
                if length < SHORTEST || length % 4 != 0 || length > entry.len() {
                    return Err(corrupt);
                }
                let next = block * size + (at + length) as u64;
                if inode != 0 && block * size + at as u64 >= from {
                    let name = entry[..length].get(HEADER..HEADER + name_length).ok_or(corrupt)?;
                    if !is_name(name) || inode > self.inodes {
                        return Err(corrupt);
                    }
                    let has_kind = self.incompat & FILETYPE != 0;
                    let kind = if has_kind { kind_of(entry[7]) } else { 0 };
                    if !show(DiskEntry { name, inode: inode.into(), kind, next }) {
                        return Ok(());
                    }
                }
                at += length;
            }
        }
        Ok(())
    }
}

/// Decodes an entry's length: in blocks of 64 KiB it needs more than 16 bits (Linux:
/// `ext4_rec_len_from_disk`).
fn entry_length(told: u16, block: usize) -> usize {
    let told = usize::from(told);
    match told {
        0 | 0xffff if block > 0xffff => block,
        _ if block > 0xffff => (told & 0xfffc) | (told & 3) << 16,
        _ => told,
    }
}
