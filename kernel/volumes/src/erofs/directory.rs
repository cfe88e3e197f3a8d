//! Directories: in each block a table of entries, and behind it their names, in order over all
//! blocks.

use core::cmp::Ordering;

use super::{Erofs, ErofsInode};
use crate::volume::{is_name, kind_of};
use crate::{BlockSource, DiskEntry, Listing, Volume, VolumeError, halves, le16};

/// Bytes of an entry.
const ENTRY: usize = 12;
const CORRUPT: &str = "directory";

/// A block of a directory.
struct DirectoryBlock<'a> {
    bytes: &'a [u8],
    /// Its position in the directory.
    at: u64,
    /// Number of entries; at least 1.
    count: usize,
}

impl<'a> DirectoryBlock<'a> {
    fn new<E: Copy>(bytes: &'a [u8], at: u64) -> Result<Self, VolumeError<E>> {
        // The first name is behind the last entry.
        let table = usize::from(le16(bytes, 8));
        if table == 0 || table % ENTRY != 0 || table >= bytes.len() {
            return Err(VolumeError::Corrupt(CORRUPT));
        }
        Ok(Self { bytes, at, count: table / ENTRY })
    }

    /// Returns the entry `index`, which is below the count.
    fn get<E: Copy>(&self, index: usize) -> Result<DiskEntry<'a>, VolumeError<E>> {
        let corrupt = VolumeError::Corrupt(CORRUPT);
        let name_at = |index: usize| usize::from(le16(self.bytes, index * ENTRY + 8));
        let (start, is_last) = (name_at(index), index + 1 == self.count);
        let end = if is_last { self.bytes.len() } else { name_at(index + 1) };
        let name = self.bytes.get(start.max(self.count * ENTRY)..end).ok_or(corrupt)?;
        // The last name ends with the block, or with a NUL.
        let length = name.iter().position(|&byte| is_last && byte == 0).unwrap_or(name.len());
        let (name, entry) = (&name[..length], &self.bytes[index * ENTRY..][..ENTRY]);
        if !is_name(name) {
            return Err(corrupt);
        }
        let next = self.at + ((index + 1) * ENTRY) as u64;
        Ok(DiskEntry { name, inode: halves(entry, 0, 4), kind: kind_of(entry[10]), next })
    }
}

impl<B: BlockSource> Erofs<B> {
    /// Reads the block `block` of a directory into `room`.
    fn names<'a>(
        &self,
        directory: &ErofsInode,
        block: u64,
        room: &'a mut [u8],
    ) -> Result<DirectoryBlock<'a>, VolumeError<B::Error>> {
        let at = block << self.bits;
        let length = (directory.facts.size - at).min(1 << self.bits) as usize;
        let bytes = room.get_mut(..length).ok_or(VolumeError::Unsupported("a small buffer"))?;
        self.read_at(directory, at, bytes)?;
        DirectoryBlock::new(bytes, at)
    }

    /// See [`Volume::entries`].
    pub(super) fn list(
        &self,
        directory: &ErofsInode,
        Listing { from, room, show }: Listing<'_>,
    ) -> Result<(), VolumeError<B::Error>> {
        for block in from >> self.bits..directory.facts.size.div_ceil(1 << self.bits) {
            let names = self.names(directory, block, room)?;
            let passed = (from.saturating_sub(names.at) / ENTRY as u64).min(names.count as u64);
            for index in passed as usize..names.count {
                if !show(names.get(index)?) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// See [`Volume::lookup`]. The names are in order, so blocks and entries are searched by
    /// halving.
    pub(super) fn find(
        &self,
        directory: &ErofsInode,
        name: &[u8],
        room: &mut [u8],
    ) -> Result<Option<u64>, VolumeError<B::Error>> {
        let (mut low, mut high) = (0, directory.facts.size.div_ceil(1 << self.bits));
        while low < high {
            let middle = low.midpoint(high);
            let names = self.names(directory, middle, room)?;
            if name < names.get(0)?.name {
                high = middle;
            } else if name > names.get(names.count - 1)?.name {
                low = middle + 1;
            } else {
                return names.find(name);
            }
        }
        Ok(None)
    }
}

impl DirectoryBlock<'_> {
    fn find<E: Copy>(&self, name: &[u8]) -> Result<Option<u64>, VolumeError<E>> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.midpoint(high);
            let entry = self.get(middle)?;
            match name.cmp(entry.name) {
                Ordering::Less => high = middle,
                Ordering::Greater => low = middle + 1,
                Ordering::Equal => return Ok(Some(entry.inode)),
            }
        }
        Ok(None)
    }
}
