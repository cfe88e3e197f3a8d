//! The bytes of a file.

use super::Erofs;
use super::inode::{ErofsInode, Layout};
use crate::{BlockSource, DiskRun, VolumeError, le32};

/// In a file's word about its chunks: the logarithm of a chunk's blocks, and whether the list has
/// entries of eight bytes instead of four.
const CHUNK_BITS: u32 = 0x1f;
const CHUNK_INDEXES: u32 = 0x20;
/// The place of a chunk of zeroes.
const HOLE: u32 = !0;
/// Blocks have 32-bit numbers, so no chunk is larger than this logarithm of bytes.
const MOST_BITS: u32 = 47;

impl<B: BlockSource> Erofs<B> {
    /// See [`Volume::map`](crate::Volume::map). Bytes past the file's end are 0.
    pub(super) fn map_byte(&self, inode: &ErofsInode, at: u64) -> Result<DiskRun, VolumeError<B::Error>> {
        let size = inode.facts.size;
        if at >= size {
            return Ok(DiskRun { start: None, bytes: (u64::MAX - at).max(1) });
        }
        match inode.layout {
            Layout::Blocks(first) => self.in_blocks(first, size, at),
            Layout::Tail(first) => {
                let whole = size >> self.bits << self.bits;
                if at < whole { self.in_blocks(first, whole, at) } else { self.in_tail(inode, whole, at) }
            }
            Layout::Chunks(form) => self.in_chunks(inode, form, at),
            Layout::Compressed => {
                Err(VolumeError::Unsupported("a compressed file; make the image without -z"))
            }
        }
    }

    /// The byte `at` of `size` bytes in adjacent blocks.
    fn in_blocks(&self, first: u32, size: u64, at: u64) -> Result<DiskRun, VolumeError<B::Error>> {
        let start = u64::from(first) << self.bits;
        self.check_bytes(start, size, "place of a file's blocks")?;
        Ok(DiskRun { start: Some(start + at), bytes: size - at })
    }

    /// The byte `at` of the part beside the inode, which begins with the byte `whole` and is in one
    /// block.
    fn in_tail(&self, inode: &ErofsInode, whole: u64, at: u64) -> Result<DiskRun, VolumeError<B::Error>> {
        let structure = "part of a file beside its inode";
        let (block, length) = (1_u64 << self.bits, inode.facts.size - whole);
        if inode.end % block + length > block {
            return Err(VolumeError::Corrupt(structure));
        }
        self.check_bytes(inode.end, length, structure)?;
        Ok(DiskRun { start: Some(inode.end + (at - whole)), bytes: inode.facts.size - at })
    }

    /// The byte `at` of a file in chunks, whose list is behind the inode.
    fn in_chunks(&self, inode: &ErofsInode, form: u32, at: u64) -> Result<DiskRun, VolumeError<B::Error>> {
        let corrupt = VolumeError::Corrupt("list of chunks");
        let bits = u32::from(self.bits) + (form & CHUNK_BITS);
        if form & !(CHUNK_BITS | CHUNK_INDEXES) != 0 || bits > MOST_BITS {
            return Err(VolumeError::Unsupported("a form of chunks"));
        }
        let unit = if form & CHUNK_INDEXES != 0 { 8_u64 } else { 4 };
        let list = inode.end.next_multiple_of(unit);
        let entry = (at >> bits).checked_mul(unit).and_then(|offset| list.checked_add(offset));
        let entry = entry.ok_or(corrupt)?;
        self.check_bytes(entry, unit, "list of chunks")?;
        let mut raw = [0; 8];
        self.source.read(entry, &mut raw[..unit as usize])?;
        if unit == 8 && raw[2..4] != [0, 0] {
            return Err(VolumeError::Unsupported("more than one device"));
        }
        let place = le32(&raw, unit as usize - 4);
        let offset = at % (1 << bits);
        let bytes = ((1 << bits) - offset).min(inode.facts.size - at);
        if place == HOLE {
            return Ok(DiskRun { start: None, bytes });
        }
        let start = (u64::from(place) << self.bits) + offset;
        self.check_bytes(start, bytes, "place of a chunk")?;
        Ok(DiskRun { start: Some(start), bytes })
    }
}
