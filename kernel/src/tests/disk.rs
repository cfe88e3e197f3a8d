//! A disk in the test's memory, and streams that discard all bytes.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::vec;
use std::vec::Vec;

use freehold_bounce::{Device, Direction, Original, OriginalMut};
use freehold_virtio::{BlockDevice, BlockError, ByteStream, Failed, SECTOR_SIZE, Sleep};

use crate::mem::Frames;

/// A disk.
pub struct MemoryDisk {
    bytes: Mutex<Vec<u8>>,
    timeout: AtomicU32,
    /// Whether each write fails.
    pub broken: AtomicBool,
    /// Number of writes so far.
    pub writes: AtomicUsize,
    /// The DMA API's device, if the disk accesses frames directly. Then it never releases a frame.
    pub keeps: OnceLock<Device<Frames>>,
    /// Whether the disk does not report the frames that it keeps: a leak.
    pub leaks: AtomicBool,
}

impl MemoryDisk {
    /// Makes a disk of `pages` pages of zeroes.
    pub fn new(pages: usize) -> Self {
        Self {
            bytes: Mutex::new(vec![0; pages * 4096]),
            timeout: AtomicU32::new(30_000),
            broken: AtomicBool::new(false),
            writes: AtomicUsize::new(0),
            keeps: OnceLock::new(),
            leaks: AtomicBool::new(false),
        }
    }
    /// Whether the request fails because the disk is lost. A lost disk keeps the frames of a
    /// request in the window of its number.
    fn keep(&self, bytes: &dyn Original, direction: Direction) -> bool {
        static REQUESTS: AtomicUsize = AtomicUsize::new(0);
        let (Some(device), Some((holder, _))) = (self.keeps.get(), bytes.held()) else { return false };
        if self.leaks.load(Ordering::Relaxed) {
            core::mem::forget(holder);
            return true;
        }
        let (window, count) = (REQUESTS.fetch_add(1, Ordering::Relaxed), holder.count());
        device.in_place(window, holder, 0..count, direction).unwrap().lose();
        true
    }
    /// Runs `f` on the disk's bytes.
    pub fn with<R>(&self, f: impl FnOnce(&mut [u8]) -> R) -> R {
        f(&mut self.bytes.lock().unwrap())
    }
}

/// For a static reference, because kernel and test share the disk.
impl BlockDevice for &'static MemoryDisk {
    fn timeout_ms(&self) -> u32 {
        self.timeout.load(Ordering::Relaxed)
    }
    fn set_timeout_ms(&self, limit: u32) {
        self.timeout.store(limit, Ordering::Relaxed);
    }
    fn sectors(&self) -> u64 {
        self.with(|bytes| (bytes.len() / SECTOR_SIZE) as u64)
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read(&self, sector: u64, to: &mut dyn OriginalMut, _sleep: Sleep) -> Result<(), BlockError> {
        if self.keep(to, Direction::FromDevice) {
            return Err(BlockError::Failed);
        }
        self.with(|bytes| to.copy_from(0, &bytes[sector as usize * SECTOR_SIZE..][..to.length()]));
        Ok(())
    }
    fn write(&self, sector: u64, from: &dyn Original, _sleep: Sleep) -> Result<(), BlockError> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        if self.keep(from, Direction::ToDevice) {
            return Err(BlockError::Failed);
        }
        if self.broken.load(Ordering::Relaxed) {
            return Err(BlockError::Io);
        }
        self.with(|bytes| from.copy_to(0, &mut bytes[sector as usize * SECTOR_SIZE..][..from.length()]));
        Ok(())
    }
    fn flush(&self, _sleep: Sleep) -> Result<(), BlockError> {
        if self.broken.load(Ordering::Relaxed) { Err(BlockError::Io) } else { Ok(()) }
    }
}

/// A stream without a reader.
pub struct Nowhere;

impl ByteStream for Nowhere {
    fn try_read(&self, _bytes: &mut [u8]) -> Result<usize, Failed> {
        Ok(0)
    }
    fn try_write(&self, bytes: &[u8]) -> Result<usize, Failed> {
        Ok(bytes.len())
    }
    fn is_readable(&self) -> bool {
        false
    }
    fn is_writable(&self) -> bool {
        true
    }
    fn is_drained(&self) -> bool {
        true
    }
    fn settle(&self, _looks: usize) -> bool {
        true
    }
    fn emergency_write(&self, _byte: u8) -> bool {
        false
    }
}
