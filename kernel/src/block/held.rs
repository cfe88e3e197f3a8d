//! A disk that one holder has as a whole: swap.
//!
//! While a [`HeldDisk`] exists, its owner sends requests to the device directly, without the page
//! cache. No other program writes to the disk (`ETXTBSY`; a shared mapping that may store is
//! `EPERM`) or holds it (`EBUSY`); a reader may see any bytes.

use core::sync::atomic::{AtomicBool, Ordering};

use freehold_collections::Arc;
use freehold_virtio::BlockDevice;

use super::{DiskContent, MAJOR, MINORS, find};
use crate::fs::OpenFile;
use crate::fs::device::split_device;
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
        let (major, minor) = split_device(file.node().metadata().rdev);
        let is_whole = major == MAJOR && minor % MINORS == 0;
        let (_, disk) = find((minor / MINORS) as usize).filter(|_| is_whole).ok_or(Errno::EINVAL)?;
        if disk.disk.is_read_only() {
            return Err(Errno::EACCES);
        }
        if disk.held.swap(true, Ordering::AcqRel) {
            return Err(Errno::EBUSY);
        }
        EVER.store(true, Ordering::Relaxed);
        Ok(Self(disk))
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
