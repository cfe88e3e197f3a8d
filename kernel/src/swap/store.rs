//! A disk as the store of swapped pages.
//!
//! Requests are sent directly to the device, not through its page cache. Writing is necessary to
//! free memory, so it must not depend on free memory. If there is none, a disk transfers through
//! its own memory (`freehold_virtio::block`), and the small objects of the driver come from the
//! reserve. If even that is empty, a write waits until other writes have completed. Reading happens
//! under a faulting space's lock, so it does not wait for memory: the fault releases the lock and
//! reclaims.

use freehold_bounce::FrameBytes;
use freehold_frame::HeldFrame;
use freehold_machine::PAGE_SIZE;
use freehold_virtio::{SECTOR_SIZE, Sleep};
use freehold_vm::{SwapStore, VmError};

use crate::block::{HeldDisk, Shortage, ensure_objects};
use crate::hw::Hardware;

pub(super) struct DiskStore {
    held: HeldDisk,
}

impl DiskStore {
    pub(super) const fn new(held: HeldDisk) -> Self {
        Self { held }
    }
}

const fn sector(page: u64) -> u64 {
    page * (PAGE_SIZE / SECTOR_SIZE) as u64
}

impl SwapStore for DiskStore {
    fn read(&self, first: u64, frames: &[HeldFrame<'_>]) -> Result<(), VmError> {
        ensure_objects(Shortage::Fail)?;
        let mut bytes = FrameBytes::new(Hardware, frames);
        self.held.disk().read(sector(first), &mut bytes, Sleep::Uninterruptible).map_err(|_| VmError::Io)
    }

    fn write(&self, first: u64, frames: &[HeldFrame<'_>]) -> Result<(), VmError> {
        ensure_objects(Shortage::Wait)?;
        let bytes = FrameBytes::new(Hardware, frames);
        self.held.disk().write(sector(first), &bytes, Sleep::Uninterruptible).map_err(|_| VmError::Io)
    }
}
