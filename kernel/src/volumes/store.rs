//! The disk under a mounted file system.

use core::ops::Range;
use core::sync::atomic::Ordering;

use freehold_collections::Arc;
use freehold_frame::{Frame, PageCache as CacheKind};
use freehold_machine::PAGE_SIZE;
use freehold_virtio::SECTOR_SIZE;
use freehold_vm::{BackingStore, VmError};
use freehold_volumes::BlockSource;

use super::{DiskVolume, MountedDisk};
use crate::block::{HeldDisk, clear_frames, copy_to_frames};
use crate::mem::Frames;
use crate::stored::{BYTES_READ, vm_error};
use crate::{Errno, Result, sched};

/// The disk's bytes, through its page cache.
pub(super) struct DiskBytes(pub HeldDisk);

impl BlockSource for DiskBytes {
    type Error = Errno;
    fn bytes(&self) -> u64 {
        self.0.size()
    }
    /// A task that must end stops here.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        sched::checkpoint()?;
        self.0.read_cached(at, into)
    }
}

/// A file as the store of its page cache.
pub(super) struct FileStore<V: DiskVolume> {
    pub disk: Arc<MountedDisk<V>>,
    pub inode: V::Inode,
}

impl<V: DiskVolume> BackingStore<Frames> for FileStore<V> {
    fn fill(&self, first: u64, frames: &[Frame<CacheKind, Frames>]) -> core::result::Result<(), VmError> {
        let (volume, most) = (&self.disk.volume, frames.len() * PAGE_SIZE);
        let start = first.checked_mul(PAGE_SIZE as u64).ok_or(VmError::Io)?;
        let left = self.inode.as_ref().size.saturating_sub(start);
        let length = usize::try_from(left).map_or(most, |left| left.min(most));
        let mut done = 0;
        while done < length {
            let run = volume.map(&self.inode, start + done as u64);
            let run = run.map_err(|error| vm_error(self.disk.failed(error)))?;
            let bytes = usize::try_from(run.bytes).map_or(most - done, |bytes| bytes.min(most - done));
            let Some(from) = run.start else {
                clear_frames(frames, done..done + bytes);
                done += bytes;
                continue;
            };
            let is_whole = from % SECTOR_SIZE as u64 == 0 && done % SECTOR_SIZE == 0;
            if is_whole {
                // Whole sectors: a run that ends in one is a file's last, and what follows is
                // cleared.
                let end = done + bytes.next_multiple_of(SECTOR_SIZE);
                volume.source().0.read_frames(from, frames, done..end)?;
            } else {
                self.copy(from, frames, done..done + bytes).map_err(vm_error)?;
            }
            BYTES_READ.fetch_add(bytes as u64, Ordering::Relaxed);
            done += bytes;
        }
        clear_frames(frames, length..most);
        Ok(())
    }

    fn may_retry(&self) -> core::result::Result<(), VmError> {
        if sched::is_current_dying() { Err(VmError::Interrupted) } else { Ok(()) }
    }

    /// No page is ever dirty: nothing can be written.
    fn write_back(
        &self,
        _first: u64,
        _frames: &[Frame<CacheKind, Frames>],
    ) -> core::result::Result<(), VmError> {
        Err(VmError::Io)
    }
}

impl<V: DiskVolume> FileStore<V> {
    /// Reads bytes that begin within a sector, through the disk's cache.
    fn copy(&self, from: u64, frames: &[Frame<CacheKind, Frames>], range: Range<usize>) -> Result<()> {
        for start in range.clone().step_by(SECTOR_SIZE) {
            let mut room = [0; SECTOR_SIZE];
            let part = &mut room[..SECTOR_SIZE.min(range.end - start)];
            self.disk.volume.source().read(from + (start - range.start) as u64, part)?;
            copy_to_frames(frames, start, part);
        }
        Ok(())
    }
}
