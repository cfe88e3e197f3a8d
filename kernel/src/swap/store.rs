//! A disk as the place of swapped pages.
//!
//! Requests go to the device at once, past its page cache. Writing is how memory is found, so it
//! must get along without: a disk transfers with memory of its own where there is no other
//! (`freehold_virtio::block`), and the small objects of the driver come from the reserve. Where
//! even that is empty, a write waits for others to be done. Reading, under a faulting space's lock,
//! does not wait for memory: the fault gives the lock back and reclaims.

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
