//! The disk under a mounted file system.

use freehold_collections::Arc;
use freehold_ext4::{BlockSource, Ext4Inode};
use freehold_frame::{Frame, PageCache as CacheKind};
use freehold_machine::PAGE_SIZE;
use freehold_vm::{BackingStore, VmError};

use super::{MountedDisk, failed};
use crate::block::{HeldDisk, clear_frames};
use crate::mem::Frames;
use crate::stored::{BYTES_READ, vm_error};
use crate::{Errno, Result, sched};

use core::sync::atomic::Ordering;

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
pub(super) struct FileStore {
    pub disk: Arc<MountedDisk>,
    pub inode: Ext4Inode,
}

impl BackingStore<Frames> for FileStore {
    fn fill(&self, first: u64, frames: &[Frame<CacheKind, Frames>]) -> core::result::Result<(), VmError> {
        let (volume, most) = (&self.disk.volume, frames.len() * PAGE_SIZE);
        let size = u64::from(volume.block_size());
        let start = first.checked_mul(PAGE_SIZE as u64).ok_or(VmError::Io)?;
        let left = self.inode.size.saturating_sub(start);
        let length = usize::try_from(left).map_or(most, |left| left.min(most));
        let mut done = 0;
        while done < length {
            let at = start + done as u64;
            let run = volume.map(&self.inode, at / size);
            let run = run.map_err(|error| vm_error(failed(self.disk.device, error)))?;
            // Whole blocks, since the disk is read by sectors. Bytes past the end are cleared.
            let bytes = run.blocks.saturating_mul(size) - at % size;
            let end = usize::try_from(bytes).map_or(most, |bytes| most.min(done.saturating_add(bytes)));
            match run.start {
                Some(block) => {
                    let from = block * size + at % size;
                    volume.source().0.read_frames(from, frames, done..end)?;
                    BYTES_READ.fetch_add((end - done) as u64, Ordering::Relaxed);
                }
                None => clear_frames(frames, done..end),
            }
            done = end;
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
