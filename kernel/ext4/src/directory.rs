//! Directories: lists of names, block by block. The blocks that index a large directory by hashes
//! look like blocks without names, so all are read in the same way.

use crate::volume::incompat::FILETYPE;
use crate::{BlockRun, BlockSource, Ext4Error, Ext4Inode, Volume, le16, le32};

/// Bytes of an entry before its name.
const HEADER: usize = 8;
/// Bytes of the shortest entry.
const SHORTEST: usize = 12;
/// st_mode's kind of file, by the kind in an entry, in units of 2^12 (DT_* of getdents(2)).
const KINDS: [u8; 8] = [0, 8, 4, 2, 6, 1, 12, 10];

/// A name in a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ext4Entry<'a> {
    /// The name: 1 to 255 bytes without NUL and slash.
    pub name: &'a [u8],
    /// The inode's number.
    pub inode: u32,
    /// DT_* of getdents(2); 0 if the entry does not say it.
    pub kind: u8,
    /// The position behind the entry.
    pub next: u64,
}

impl<B: BlockSource> Volume<B> {
    /// Shows the entries of a directory from the position `from` on, `.` and `..` among them, until
    /// `show` returns `false`. A position is 0, or one that an entry told; from another one on, the
    /// next entry is the first. `room` has at least a block's bytes.
    ///
    /// # Errors
    /// [`Ext4Error`].
    pub fn entries(
        &self,
        directory: &Ext4Inode,
        from: u64,
        room: &mut [u8],
        show: &mut dyn FnMut(Ext4Entry<'_>) -> bool,
    ) -> Result<(), Ext4Error<B::Error>> {
        let corrupt = Ext4Error::Corrupt("directory");
        let size = u64::from(self.block_size);
        let room =
            room.get_mut(..self.block_size as usize).ok_or(Ext4Error::Unsupported("a small buffer"))?;
        let mut run = BlockRun { start: None, blocks: 0 };
        for block in from / size..directory.size.div_ceil(size) {
            if run.blocks == 0 {
                run = self.map(directory, block)?;
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
                    let is_name = !name.is_empty() && !name.iter().any(|byte| matches!(byte, 0 | b'/'));
                    if !is_name || inode > self.inodes {
                        return Err(corrupt);
                    }
                    let has_kind = self.incompat & FILETYPE != 0;
                    let kind = if has_kind { KINDS[usize::from(entry[7] & 7)] } else { 0 };
                    if !show(Ext4Entry { name, inode, kind, next }) {
                        return Ok(());
                    }
                }
                at += length;
            }
        }
        Ok(())
    }

    /// Returns the number of the inode with this name in a directory. `room` has at least a block's
    /// bytes.
    ///
    /// # Errors
    /// [`Ext4Error`].
    pub fn lookup(
        &self,
        directory: &Ext4Inode,
        name: &[u8],
        room: &mut [u8],
    ) -> Result<Option<u32>, Ext4Error<B::Error>> {
        let mut found = None;
        self.entries(directory, 0, room, &mut |entry| {
            found = (entry.name == name).then_some(entry.inode);
            found.is_none()
        })?;
        Ok(found)
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
