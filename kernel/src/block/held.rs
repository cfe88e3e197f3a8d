//! A disk that one holder has as a whole: swap, or a file system.
//!
//! While a [`HeldDisk`] exists, its owner sends requests to the device directly, without the page
//! cache. A file system reads its metadata through the cache. No other program writes to the disk
//! (`ETXTBSY`; a shared mapping that may store is `EPERM`) or holds it (`EBUSY`); a reader may see
//! any bytes.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use freehold_collections::Arc;
use freehold_frame::{Frame, PageCache as CacheKind};
use freehold_virtio::{BlockDevice, SECTOR_SIZE};
use freehold_vm::VmError;

use super::{DiskContent, MAJOR, MINORS, find, read_frames};
use crate::fs::bytes::SliceSink;
use crate::fs::device::split_device;
use crate::fs::{FileContent, OpenFile};
use crate::mem::Frames;
use crate::{Errno, Result};

static EVER: AtomicBool = AtomicBool::new(false);

/// Whether any disk was ever held.
pub fn was_ever_held() -> bool {
    EVER.load(Ordering::Relaxed)
}

/// The proof that a disk is held; dropping it releases the disk.
pub struct HeldDisk(Arc<DiskContent>);

impl HeldDisk {
    /// Holds the disk that `file` is open on, for writing.
    ///
    /// # Errors
    /// `EINVAL` if it is no disk; `EACCES` if the disk is read-only; `EBUSY` while the disk is
    /// held.
    pub fn new(file: &OpenFile) -> Result<Self> {
        let disk = disk_at(file.node().metadata().rdev).ok_or(Errno::EINVAL)?;
        if disk.disk.is_read_only() {
            return Err(Errno::EACCES);
        }
        let held = Self::hold(disk)?;
        EVER.store(true, Ordering::Relaxed);
        Ok(held)
    }

    /// Holds the disk with this device number, for reading. Its changes are stored first.
    ///
    /// # Errors
    /// `ENXIO` if there is no such disk; `EBUSY` while it is held, and if a shared mapping may
    /// store to it; `EIO`.
    pub fn for_mount(device: u64) -> Result<Self> {
        let held = Self::hold(disk_at(device).ok_or(Errno::ENXIO)?)?;
        held.0.cached.cache().deny_writers()?;
        held.0.sync()?;
        Ok(held)
    }

    fn hold(disk: Arc<DiskContent>) -> Result<Self> {
        if disk.held.swap(true, Ordering::AcqRel) { Err(Errno::EBUSY) } else { Ok(Self(disk)) }
    }

    /// Returns the disk's size in bytes.
    pub fn size(&self) -> u64 {
        self.0.size
    }

    /// Reads bytes through the disk's page cache.
    ///
    /// # Errors
    /// `EIO` at the disk's end, too; `EINTR`, `ENOMEM`.
    pub fn read_cached(&self, at: u64, into: &mut [u8]) -> Result<()> {
        let count = self.0.read_at(at, &mut SliceSink::new(into))?;
        if count == into.len() { Ok(()) } else { Err(Errno::EIO) }
    }

    /// Reads whole sectors from the byte `at` on, past the disk's page cache, into the bytes
    /// `range` of a run of frames.
    ///
    /// # Errors
    /// [`VmError::Io`], [`VmError::NoMemory`].
    pub fn read_frames(
        &self,
        at: u64,
        frames: &[Frame<CacheKind, Frames>],
        range: Range<usize>,
    ) -> core::result::Result<(), VmError> {
        read_frames(&*self.0.disk, at / SECTOR_SIZE as u64, frames, range)
    }

    /// The device.
    pub fn disk(&self) -> &dyn BlockDevice {
        &*self.0.disk
    }

    /// Stores the changes in the disk's cache and empties it: from now on only the device has the
    /// bytes, and no mapping may store to the disk.
    ///
    /// # Errors
    /// `EBUSY` if a shared mapping may store to the disk, or a device to pages of the disk's cache;
    /// `EIO`.
    pub fn take_over(&self) -> Result<()> {
        self.0.cached.cache().deny_writers()?;
        if self.0.cached.cache().forget(0..u64::MAX)? { Ok(()) } else { Err(Errno::EBUSY) }
    }
}

/// Returns the disk with this device number.
fn disk_at(device: u64) -> Option<Arc<DiskContent>> {
    let (major, minor) = split_device(device);
    let is_whole = major == MAJOR && minor % MINORS == 0;
    find((minor / MINORS) as usize).filter(|_| is_whole).map(|(_, disk)| disk)
}

impl Drop for HeldDisk {
    fn drop(&mut self) {
        let cache = self.0.cached.cache();
        // Pages that were read while the disk was held are out of date. None was changed, so there
        // is nothing to store.
        let _ = cache.forget(0..u64::MAX);
        cache.admit_writers();
        self.0.held.store(false, Ordering::Release);
    }
}

impl DiskContent {
    pub(super) fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }
}
