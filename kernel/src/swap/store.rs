//! A disk as the place of swapped pages.
//!
//! Requests go to the device at once, past its page cache. Writing is how memory is found, so it must get along without: the slots of
//! the DMA API that it needs are there because the area holds one of their segment for as long as it lives; where others use them all at
//! the moment, fewer pages are sent at a time, and then it waits for theirs to be done. Reading, under a faulting space's lock, does not
//! wait: the fault gives the lock back and reclaims.

use freehold_arch::{X86, heap};
use freehold_bounce::{Device, DeviceRules, Direction, DmaAddr, FrameBytes, Mapping};
use freehold_machine::{PAGE_SIZE, Pfn};
use freehold_virtio::{BlockError, SECTOR_SIZE};
use freehold_vm::{SwapStore, VmError};
use spin::Once;

use crate::block::Held;
use crate::mem::Frames;
use crate::sync::WaitQueue;
use crate::{Errno, Result, host, time};

/// How often a write that finds no slot for a single page is tried again, a millisecond apart.
const TRIES: u32 = 1000;
/// Small objects of the driver for one request, and more.
const OBJECTS: usize = 4096;

pub(super) struct DiskStore {
    held: Held,
    /// Keeps a segment of slots.
    _slot: Mapping<Frames>,
}

/// What to do where there is no memory for a request.
enum Shortage {
    Wait,
    Fail,
}

impl DiskStore {
    pub(super) fn new(held: Held) -> Result<Self> {
        static DEVICE: Once<Option<Device<Frames>>> = Once::new();
        let rules = DeviceRules { name: "swap", reach: DmaAddr(u64::MAX), quota: 64 * PAGE_SIZE };
        let device = DEVICE.call_once(|| host::dma()?.attach(rules).ok()).ok_or(Errno::ENOMEM)?;
        let slot = device.buffer(SECTOR_SIZE, Direction::ToDevice).map_err(|_| Errno::ENOMEM)?;
        Ok(Self { held, _slot: slot })
    }

    /// Have `send` transfer the frames to or from the pages from `first` on, as many at a time as there is room for.
    fn transfer(
        &self,
        first: u64,
        frames: &[Pfn],
        shortage: &Shortage,
        send: impl Fn(u64, &[Pfn]) -> core::result::Result<(), BlockError>,
    ) -> core::result::Result<(), VmError> {
        let (mut done, mut run, mut tries) = (0, frames.len(), 0);
        while done < frames.len() {
            let part = &frames[done..(done + run).min(frames.len())];
            let sector = (first + done as u64) * (PAGE_SIZE / SECTOR_SIZE) as u64;
            let sent = match heap::ensure(OBJECTS) {
                Ok(()) => send(sector, part).map_err(Some),
                Err(_) => Err(None),
            };
            match sent {
                Ok(()) => done += part.len(),
                Err(Some(BlockError::Memory(_)) | None) if run > 1 => run /= 2,
                Err(Some(BlockError::Memory(_)) | None) => match shortage {
                    Shortage::Wait if tries < TRIES => {
                        tries += 1;
                        let soon = time::now() + time::SECOND / 1000;
                        let _ = WaitQueue::new().wait_uninterruptible_until(soon, || None::<()>);
                    }
                    _ => return Err(VmError::NoMemory),
                },
                Err(Some(_)) => return Err(VmError::Io),
            }
        }
        Ok(())
    }
}

impl SwapStore for DiskStore {
    fn read(&self, first: u64, frames: &[Pfn]) -> core::result::Result<(), VmError> {
        let disk = self.held.disk();
        self.transfer(first, frames, &Shortage::Fail, |sector, part| {
            disk.read(sector, &mut FrameBytes::new(X86, part))
        })
    }

    fn write(&self, first: u64, frames: &[Pfn]) -> core::result::Result<(), VmError> {
        let disk = self.held.disk();
        self.transfer(first, frames, &Shortage::Wait, |sector, part| {
            disk.write(sector, &FrameBytes::new(X86, part))
        })
    }
}
