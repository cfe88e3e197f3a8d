//! [`Hal`] of the crate `virtio-drivers` over the DMA API: drivers of that crate, which know
//! nothing of bounce memory, run on it, and their devices can access no other memory.
//!
//! May use `unsafe`: the trait is unsafe, and its buffers are pointers.
//!
//! **Invariant.** Each address given to a device lies in memory that the DMA API gave to this
//! device, or is [`NOWHERE`]. A buffer is copied when it is shared and when it is unshared, so a
//! device that writes later does not change the driver's buffer. It may still write into memory
//! that another transfer of the same device gets next: memory of a device stays with that device
//! ([`freehold_bounce`]: residue).
//!
//! **Residue.** The trait does not tell how many bytes the device wrote, so the whole buffer is
//! copied back. Buffers of all directions are first filled with the driver's own bytes, so bytes
//! that the device did not write are as before.
//!
//! **Waiting.** In the trait, sharing cannot fail. If memory is short, the caller waits
//! ([`Place::wait`]). If the transfer is never possible, or the place gives up, the device gets the
//! address [`NOWHERE`], where there is no memory, with or without an IOMMU. So the driver sees an
//! error of the device, and no bytes are accessed. A buffer is in one piece. Buffers of up to
//! [`LONGEST`] bytes are possible as long as the device's rules leave room for them.
//!
//! **Context.** Tasks, as with all of the DMA API. Two spin locks are held for a few instructions,
//! and not across calls of the DMA API; no lock order applies to them.
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![no_std]
#![allow(unsafe_code)]

extern crate alloc;

use alloc::vec::Vec;
use core::marker::PhantomData;
use core::ptr::NonNull;

use freehold_bounce::{
    Alignment, Coherent, Constraint, Device, Direction, DmaAddr, DmaError, DmaMapping, DmaSource, Transfer,
};
use freehold_machine::{PAGE_SIZE, Pfn};
use spin::Mutex;
use virtio_drivers::{BufferDirection, Hal, PhysAddr};

/// Address that a device gets when no memory could be mapped for it. It and the bytes after it are
/// far beyond the 52 bits that any x86-64 processor can address. Linux' nearest relative is
/// `DMA_MAPPING_ERROR`.
pub const NOWHERE: DmaAddr = DmaAddr(1 << 63);

/// The longest buffer that is in one piece however fragmented memory is: a segment of the DMA API.
pub const LONGEST: usize = 256 << 10;

/// Whether sharing is tried again after it found no memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// The share is tried again.
    Again,
    /// The device gets [`NOWHERE`].
    GiveUp,
}

/// Type that stands for one device's DMA memory: the HAL's functions have no `self`.
///
/// # Safety
/// [`Place::pointer`] is called for frames of rings, and returns the address of the frame's bytes.
/// The bytes of the next frames in its block follow them. While the DMA API has the frame, the
/// bytes are valid, aligned to a page, and used by no other code.
pub unsafe trait Place: 'static {
    /// The page allocator under the DMA API.
    type Source: DmaSource;
    /// Returns the memory that the device has borrowed.
    fn lent() -> &'static Lent<Self::Source>;
    /// See the trait's head.
    fn pointer(frame: Pfn) -> NonNull<u8>;
    /// Called when no memory was found for the `tries`-th time: lets other tasks run, which may
    /// free some.
    fn wait(tries: usize) -> Patience;
}

/// Memory that one device has borrowed from the DMA API through this crate.
pub struct Lent<S: DmaSource> {
    device: Device<S>,
    rings: Mutex<Vec<Coherent<S>>>,
    shared: Mutex<Vec<(DmaAddr, DmaMapping<S>)>>,
}

impl<S: DmaSource> Lent<S> {
    /// A device that has borrowed no memory yet.
    pub const fn new(device: Device<S>) -> Self {
        Self { device, rings: Mutex::new(Vec::new()), shared: Mutex::new(Vec::new()) }
    }

    /// The device.
    pub const fn device(&self) -> Device<S> {
        self.device
    }

    /// Takes all memory of the device out of use for ever, because the device does not confirm a
    /// reset and may write at any time. Returns the number of bytes. Call it after the driver was
    /// passed to `mem::forget`: memory that is unshared later is not found.
    pub fn lose(&self) -> usize {
        let (rings, shared) =
            (core::mem::take(&mut *self.rings.lock()), core::mem::take(&mut *self.shared.lock()));
        let rings: usize = rings.into_iter().map(Coherent::lose).sum();
        rings + shared.iter().map(|(_, mapping)| mapping.lose()).sum::<usize>()
    }

    fn add_rings(&self, pages: usize) -> Option<(DmaAddr, Pfn)> {
        let frames = self.device.coherent(pages.checked_mul(PAGE_SIZE)?).ok()?;
        let place = (frames.address(), frames.pfn());
        let mut rings = self.rings.lock();
        if rings.try_reserve(1).is_err() {
            drop(rings);
            return None;
        }
        rings.push(frames);
        Some(place)
    }

    fn take_rings(&self, address: DmaAddr) -> Option<Coherent<S>> {
        let mut rings = self.rings.lock();
        let place = rings.iter().position(|frames| frames.address() == address)?;
        Some(rings.swap_remove(place))
    }

    /// Returns memory in one piece with a copy of `original`.
    fn bounce(&self, original: &[u8], direction: Direction) -> Result<DmaMapping<S>, DmaError> {
        let plain = self.device.buffer(original.len(), direction);
        let is_whole = |mapping: &DmaMapping<S>| mapping.one_piece(0..original.len()).is_some();
        // A mapping in pieces is freed first: it may be all memory that the device can have.
        let mapping = match plain.ok().filter(is_whole) {
            Some(mapping) => mapping,
            None => self.in_one_piece(original.len(), direction)?,
        };
        // The original is written for every direction: see the module's head.
        mapping.write(0, original);
        Ok(mapping)
    }

    /// Runs begin at multiples of their alignment and are no shorter, so an alignment to the length
    /// makes one of them.
    fn in_one_piece(&self, length: usize, direction: Direction) -> Result<DmaMapping<S>, DmaError> {
        let pages = length.next_multiple_of(PAGE_SIZE).checked_next_power_of_two();
        let align = pages.and_then(Alignment::new).ok_or(DmaError::TooLong)?;
        let constraint = Constraint { align, ..Constraint::NONE };
        self.device.bounce(Transfer { length, origin: 0, constraint }, direction)
    }

    fn share_once(&self, original: &[u8], direction: Direction) -> Result<DmaAddr, DmaError> {
        let mapping = self.bounce(original, direction)?;
        let address = mapping.address();
        let mut shared = self.shared.lock();
        if shared.try_reserve(1).is_err() {
            drop(shared);
            return Err(DmaError::OutOfMemory);
        }
        shared.push((address, mapping));
        Ok(address)
    }

    fn share(&self, original: &[u8], direction: Direction, wait: impl Fn(usize) -> Patience) -> DmaAddr {
        let mut tries = 0;
        loop {
            match self.share_once(original, direction) {
                Ok(address) => return address,
                // Waiting does not help: the transfer stays too long.
                Err(DmaError::Empty | DmaError::TooLong) => return NOWHERE,
                Err(_) => {}
            }
            tries += 1;
            if wait(tries) == Patience::GiveUp {
                return NOWHERE;
            }
        }
    }

    fn take_back(&self, address: DmaAddr) -> Option<DmaMapping<S>> {
        let mut shared = self.shared.lock();
        // Drivers unshare in the order in which they shared, so it is usually the first.
        let place = shared.iter().position(|(of, _)| *of == address)?;
        Some(shared.remove(place).1)
    }
}

const fn direction(of: BufferDirection) -> Direction {
    match of {
        BufferDirection::DriverToDevice => Direction::ToDevice,
        BufferDirection::DeviceToDriver => Direction::FromDevice,
        BufferDirection::Both => Direction::Bidirectional,
    }
}

/// The [`Hal`] of the drivers of one device.
pub struct BounceHal<P: Place>(PhantomData<P>);

// SAFETY: `dma_alloc` returns zeroed frames of the ring kind, page-aligned at the address that
// `Place::pointer` returns, that are kept from every other use until `dma_dealloc`; `share` returns
// an address of a copy, or of no memory.
unsafe impl<P: Place> Hal for BounceHal<P> {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        match P::lent().add_rings(pages) {
            Some((address, frame)) => (address.0, P::pointer(frame)),
            // Address 0 is the crate's sign of failure.
            None => (0, NonNull::dangling()),
        }
    }

    unsafe fn dma_dealloc(address: PhysAddr, _: NonNull<u8>, _: usize) -> i32 {
        if P::lent().take_rings(DmaAddr(address)).is_some() { 0 } else { -1 }
    }

    unsafe fn mmio_phys_to_virt(_: PhysAddr, _: usize) -> NonNull<u8> {
        // Only the crate's own PCI transport calls this, and that transport trusts values from a
        // device.
        panic!("registers are not mapped through the memory of buffers")
    }

    unsafe fn share(buffer: NonNull<[u8]>, way: BufferDirection) -> PhysAddr {
        // SAFETY: the caller says that the buffer is valid, and that no other code accesses it
        // during the call.
        let original = unsafe { buffer.as_ref() };
        P::lent().share(original, direction(way), P::wait).0
    }

    unsafe fn unshare(address: PhysAddr, mut buffer: NonNull<[u8]>, way: BufferDirection) {
        let Some(mapping) = P::lent().take_back(DmaAddr(address)) else { return };
        if direction(way).is_from_device() {
            // SAFETY: the caller says that the buffer is valid, and that no other code accesses it
            // during the call. The driver may write a buffer that a device writes.
            let original = unsafe { buffer.as_mut() };
            mapping.read(0, original);
        }
    }
}
