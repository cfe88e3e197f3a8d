//! The memory of a split virtqueue (virtio 1.2, 2.7), and the driver's writes and reads of it.
//!
//! **Invariant.** Words that a device may change are read by atomic loads, once each time. The
//! driver bases no decision on values that it stored there before: it keeps its own record of which
//! descriptors follow each other, and which are free.
//!
//! The rings of the crate `virtio-drivers` require references to the buffers. A frame that a device
//! accesses directly has no address in the kernel, so there can be no reference to it. Therefore
//! the rings are our own code; the crate's types for transports are used. Linux' nearest relative
//! is the split half of drivers/virtio/virtio_ring.c.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use freehold_bounce::{Coherent, Device, DmaSource};
use freehold_machine::Pfn;
use virtio_drivers::transport::Transport;
use virtio_drivers::{Error, Result};

use crate::memory::pointer;

/// Flags of a descriptor.
const NEXT: u64 = 1;
const WRITE: u64 = 2;
/// Bytes in a descriptor, and in an entry of the used ring.
const DESCRIPTOR: usize = 16;
const USED: usize = 8;
/// Where a ring's index and its first entry are.
const INDEX: usize = 2;
const ENTRIES: usize = 4;
/// The device needs no notice of new chains; the driver needs no interrupts.
const NO_NOTICE: u16 = 1;

/// A piece of memory, as a descriptor describes it to a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Descriptor {
    /// The device's address of the piece. The first descriptor of the chain, according to the
    /// device.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// Whether the device writes.
    pub access: DescriptorAccess,
}

/// The accesses that a device may make to a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DescriptorAccess {
    Read,
    Write,
}

/// An entry of the used ring, as the device wrote it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UsedEntry {
    /// The chain's first descriptor, it says.
    pub id: u32,
    /// Number of bytes written, according to the device.
    pub written: u32,
}

/// See the module's head.
pub(crate) struct Ring<S: DmaSource, const SIZE: usize> {
    /// Descriptors, then the available ring.
    driver: Coherent<S>,
    /// The used ring.
    device: Coherent<S>,
    /// The addresses of the two blocks, used for each access.
    frames: [Pfn; 2],
    /// The descriptor that follows each one, in a chain or in the free list. `SIZE` of them.
    next: Vec<u16>,
    free: u16,
    /// Chains made available so far, and used entries taken, modulo 2^16.
    added: u16,
    taken: u16,
}

impl<S: DmaSource, const SIZE: usize> Ring<S, SIZE> {
    /// Offset of the available ring.
    const AVAILABLE: usize = DESCRIPTOR * SIZE;
    /// Sizes of the two blocks in bytes. The last word of each ring is not used: it belongs to
    /// another method of notices.
    const DRIVER_BYTES: usize = Self::AVAILABLE + ENTRIES + 2 * SIZE + 2;
    const USED_BYTES: usize = ENTRIES + USED * SIZE + 2;

    /// Sets up queue number `index` of a device that is being initialised.
    pub fn new<T: Transport>(transport: &mut T, index: u16, device: Device<S>) -> Result<Self> {
        const { assert!(SIZE.is_power_of_two() && SIZE <= 1 << 15) };
        if transport.queue_used(index) {
            return Err(Error::AlreadyUsed);
        }
        if transport.max_queue_size(index) < SIZE as u32 {
            return Err(Error::InvalidParam);
        }
        let mut next = Vec::new();
        next.try_reserve_exact(SIZE).map_err(|_| Error::DmaError)?;
        next.extend((1..=SIZE).map(|next| (next % SIZE) as u16));
        let coherent = |bytes| device.coherent(bytes).map_err(|_| Error::DmaError);
        let driver = coherent(Self::DRIVER_BYTES)?;
        let device = coherent(Self::USED_BYTES)?;
        let frames = [driver.pfn(), device.pfn()];
        let ring = Self { driver, device, frames, next, free: 0, added: 0, taken: 0 };
        let (driver, device) = (ring.driver.address().0, ring.device.address().0);
        transport.queue_set(index, SIZE as u32, driver, driver + Self::AVAILABLE as u64, device);
        Ok(ring)
    }

    /// Takes the ring out of use for ever: the device may still write to it. Returns its number of
    /// bytes.
    pub fn lose(self) -> usize {
        self.driver.lose() + self.device.lose()
    }

    /// A word of the block that begins with `frame` and has `bytes` bytes in use.
    #[inline(always)]
    fn place<W>(frame: Pfn, bytes: usize, offset: usize) -> *mut W {
        assert!(offset.is_multiple_of(size_of::<W>()) && offset + size_of::<W>() <= bytes);
        pointer(frame).as_ptr().wrapping_add(offset).cast()
    }
    #[inline(always)]
    fn driver16(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: an aligned word in a block of whole frames in the direct map that the ring holds;
        // the device may write it at any moment, and all accesses of the kernel are atomic.
        unsafe { AtomicU16::from_ptr(Self::place(self.frames[0], Self::DRIVER_BYTES, offset)) }
    }
    #[inline(always)]
    fn driver64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(Self::place(self.frames[0], Self::DRIVER_BYTES, offset)) }
    }
    #[inline(always)]
    fn device16(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: as above.
        unsafe { AtomicU16::from_ptr(Self::place(self.frames[1], Self::USED_BYTES, offset)) }
    }
    #[inline(always)]
    fn device32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(Self::place(self.frames[1], Self::USED_BYTES, offset)) }
    }

    /// Makes a chain of `count` descriptors, all of which are free, available to the device.
    /// Returns the first's number.
    pub fn add(&mut self, count: usize, descriptors: impl FnOnce(&mut dyn FnMut(Descriptor))) -> u16 {
        let (head, mut at, mut left) = (self.free, self.free, count);
        descriptors(&mut |Descriptor { address, length, access }| {
            let next = self.next[usize::from(at)];
            left -= 1;
            let write = if access == DescriptorAccess::Write { WRITE } else { 0 };
            let more = if left > 0 { NEXT } else { 0 };
            let place = usize::from(at) * DESCRIPTOR;
            self.driver64(place).store(address, Ordering::Relaxed);
            let rest = u64::from(length) | (write | more) << 32 | u64::from(next) << 48;
            self.driver64(place + 8).store(rest, Ordering::Relaxed);
            at = next;
        });
        self.free = at;
        let slot = usize::from(self.added) % SIZE;
        let entry = Self::AVAILABLE + ENTRIES + 2 * slot;
        self.driver16(entry).store(head, Ordering::Relaxed);
        self.added = self.added.wrapping_add(1);
        // A device that sees the index sees the entry and the descriptors.
        self.driver16(Self::AVAILABLE + INDEX).store(self.added, Ordering::Release);
        head
    }

    /// Makes the `count` descriptors of a chain free that begins with `head`.
    pub fn free(&mut self, head: u16, count: usize) {
        let last = (1..count).fold(head, |at, _| self.next[usize::from(at)]);
        self.next[usize::from(last)] = self.free;
        self.free = head;
    }

    /// Returns how many entries the device has added to the used ring beyond those taken. An index
    /// that went back looks like one that is far ahead.
    #[inline]
    pub fn ahead(&self) -> u16 {
        self.device16(INDEX).load(Ordering::Acquire).wrapping_sub(self.taken)
    }

    /// Returns the next entry, which exists.
    pub fn next_used(&self) -> UsedEntry {
        let entry = ENTRIES + USED * (usize::from(self.taken) % SIZE);
        let word = |offset| self.device32(entry + offset).load(Ordering::Relaxed);
        UsedEntry { id: word(0), written: word(4) }
    }

    /// Marks the next entry as taken.
    pub fn take(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }

    /// Whether the device needs a notice of new chains.
    pub fn wants_notice(&self) -> bool {
        // The index is visible before the flag is read, or both sides could miss the other
        // (2.7.13.4).
        fence(Ordering::SeqCst);
        self.device16(0).load(Ordering::Relaxed) & NO_NOTICE == 0
    }
    /// Turns interrupts on completions on or off.
    pub fn set_interrupts(&mut self, wanted: Interrupts) {
        let flags = if wanted == Interrupts::Wanted { 0 } else { NO_NOTICE };
        self.driver16(Self::AVAILABLE).store(flags, Ordering::Release);
        if wanted == Interrupts::Wanted {
            // The flag is visible before the index is read once more, or both sides could miss the
            // other (2.7.7.1).
            fence(Ordering::SeqCst);
        }
    }
}

/// Whether the device interrupts when it has given a chain back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Interrupts {
    Wanted,
    Unwanted,
}
