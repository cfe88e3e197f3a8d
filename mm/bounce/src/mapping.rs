//! A run of slots that a device holds.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use freehold_machine::{PAGE_SIZE, Pfn, PhysicalBytes};

use crate::original::each_page;
use crate::pool::Run;
use crate::{Device, Direction, DmaAddr, DmaSource, Original, OriginalMut, SLOT_SIZE};

/// Bytes that a device may reach until this is dropped; dropping scrubs them and copies nothing back
/// ([`Mapping::unmap`] does).
///
/// Whoever hands the address to a device keeps the mapping until the device has given the buffer back or
/// was reset: a driver moves it into its table of requests in flight.
#[must_use = "dropping it takes the memory from the device"]
pub struct Mapping<S: DmaSource> {
    pub(crate) device: Device<S>,
    /// Which pool the slots are of.
    pub(crate) pool: usize,
    pub(crate) run: Run,
    /// The first slot's frame, and the offset of the first byte in it.
    pub(crate) frame: Pfn,
    pub(crate) offset: usize,
    pub(crate) length: usize,
    pub(crate) direction: Direction,
    /// Set once and never cleared.
    pub(crate) is_lost: AtomicBool,
}

impl<S: DmaSource> Mapping<S> {
    /// What to tell the device.
    pub fn address(&self) -> DmaAddr {
        DmaAddr(self.frame.start().0 + self.offset as u64)
    }
    /// Bytes; at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub const fn len(&self) -> usize {
        self.length
    }
    /// Which way the bytes go.
    pub const fn direction(&self) -> Direction {
        self.direction
    }
    /// The device it is for.
    pub const fn device(&self) -> Device<S> {
        self.device
    }
    /// The frame of the first byte, and the byte's offset in it. The following bytes are physically contiguous.
    pub const fn place(&self) -> (Pfn, usize) {
        (self.frame, self.offset)
    }

    /// Put `bytes` at `offset` for the device to read; what does not fit is left out. Returns how many bytes fit.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.length.saturating_sub(offset));
        self.each_page(offset, count, |page, range| page.copy_from_slice(&bytes[range]));
        count
    }
    /// Fetch the bytes at `offset` that the device wrote. Returns how many there were.
    /// The device may change them at any moment: read a value once, then check it.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> usize {
        let count = bytes.len().min(self.length.saturating_sub(offset));
        self.each_page(offset, count, |page, range| bytes[range].copy_from_slice(page));
        count
    }

    /// Copy `length` of the original's bytes from `offset` on to where the device reads them. Nothing
    /// happens for a device that only writes.
    pub fn sync_for_device<O: Original + ?Sized>(&self, original: &O, offset: usize, length: usize) {
        if self.direction.is_to_device() {
            self.copy_in(original, offset, length);
        }
    }
    /// Copy `length` bytes from `offset` on, that the device wrote, to the original. Nothing happens for a
    /// device that only reads.
    pub fn sync_for_cpu<O: OriginalMut + ?Sized>(&self, original: &mut O, offset: usize, length: usize) {
        if self.direction.is_from_device() {
            let length = length.min(self.length.min(original.length()).saturating_sub(offset));
            self.each_page(offset, length, |page, range| original.copy_from(offset + range.start, page));
        }
    }
    /// Take the memory from the device, after copying to the original what the device wrote.
    pub fn unmap<O: OriginalMut + ?Sized>(self, original: &mut O) {
        self.sync_for_cpu(original, 0, self.length);
    }

    /// Takes the memory out of use for ever: the device does not confirm that it lets go of it, and may write to it at
    /// any time. Dropping the mapping then frees nothing. The bytes stay counted as held, and count as lost.
    /// Returns how many bytes this call lost: 0 if they were lost before.
    pub fn lose(&self) -> usize {
        if self.is_lost.swap(true, Ordering::AcqRel) {
            return 0;
        }
        let bytes = self.run.count as usize * SLOT_SIZE;
        self.device.count_lost(bytes);
        bytes
    }

    /// The original's bytes, whatever the direction: a device that writes less than it may must not leave
    /// anything but the original behind.
    pub(crate) fn copy_in<O: Original + ?Sized>(&self, original: &O, offset: usize, length: usize) {
        let length = length.min(self.length.min(original.length()).saturating_sub(offset));
        self.each_page(offset, length, |page, range| original.copy_to(offset + range.start, page));
    }

    /// The slots' bytes from `offset` on, page by page, with the range of the whole that each piece is.
    fn each_page(
        &self,
        offset: usize,
        length: usize,
        mut piece: impl FnMut(&mut [u8], core::ops::Range<usize>),
    ) {
        let bytes = self.device.dma().bytes();
        each_page(self.offset + offset, length, |page, at, range| {
            let count = range.len();
            bytes.with_bytes(self.frame.offset(page as u64), |b| piece(&mut b[at..at + count], range));
        });
    }

    /// Zero all slots, padding included.
    fn scrub(&self) {
        let bytes = self.device.dma().bytes();
        each_page(self.offset, self.run.count as usize * SLOT_SIZE, |page, at, range| {
            let frame = self.frame.offset(page as u64);
            if range.len() == PAGE_SIZE {
                bytes.zero(frame);
            } else {
                bytes.with_bytes(frame, |b| b[at..at + range.len()].fill(0));
            }
        });
    }
}

impl<S: DmaSource> Drop for Mapping<S> {
    fn drop(&mut self) {
        if *self.is_lost.get_mut() {
            return;
        }
        self.scrub();
        self.device.give_back(self.pool, self.run);
    }
}

impl<S: DmaSource> fmt::Debug for Mapping<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({:?}, {} bytes, {:?})", self.address(), self.length, self.direction)
    }
}
