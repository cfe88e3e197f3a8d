//! `embedded-dma`'s buffers in memory of the DMA API.

use core::ptr::NonNull;

use embedded_dma::{ReadBuffer, Word, WriteBuffer};
use freehold_bounce::{Coherent, DmaAddr, DmaSource};
use freehold_machine::PAGE_SIZE;

/// A buffer that a device and its driver use at the same time. The device reaches these pages and
/// nothing beside them. They go back when the buffer is dropped, and with an IOMMU the device then
/// reaches them no more.
///
/// Drivers that are written to `embedded-dma` take a buffer's pointer for the address that they
/// tell the device. So the two must be equal on the machine ([`DmaBuffer::new`]).
#[derive(Debug)]
pub struct DmaBuffer<S: DmaSource, W: Word> {
    memory: Coherent<S>,
    start: NonNull<W>,
    words: usize,
}

// SAFETY: the memory belongs to this value, as that of a Box does.
unsafe impl<S: DmaSource, W: Word + Send> Send for DmaBuffer<S, W> {}

impl<S: DmaSource, W: Word> DmaBuffer<S, W> {
    /// Makes a buffer of all words of `bytes` bytes of `memory`.
    ///
    /// # Safety
    /// `start` is the address of the memory's first byte. It is valid for as long as `memory`
    /// lives, and no other code uses the bytes. If a driver passes the pointer to its device, the
    /// device reaches the bytes by the same address ([`DmaBuffer::address`]).
    ///
    /// # Panics
    /// If the memory is shorter than `bytes`, or `start` is not the beginning of a page.
    pub unsafe fn new(memory: Coherent<S>, start: NonNull<u8>, bytes: usize) -> Self {
        let room = memory.order().bytes();
        assert!(bytes <= room, "{bytes} bytes, of which there are {room}");
        assert!(start.addr().get().is_multiple_of(PAGE_SIZE), "{start:?} does not begin a page");
        Self { memory, start: start.cast(), words: bytes / size_of::<W>() }
    }

    /// Address by which the device reaches the first word.
    pub fn address(&self) -> DmaAddr {
        self.memory.address()
    }
}

// SAFETY: the memory stays where it is until the value is dropped.
unsafe impl<S: DmaSource, W: Word> ReadBuffer for DmaBuffer<S, W> {
    type Word = W;

    unsafe fn read_buffer(&self) -> (*const W, usize) {
        (self.start.as_ptr().cast_const(), self.words)
    }
}

// SAFETY: as above; a Word is valid for every pattern of bytes.
unsafe impl<S: DmaSource, W: Word> WriteBuffer for DmaBuffer<S, W> {
    type Word = W;

    unsafe fn write_buffer(&mut self) -> (*mut W, usize) {
        (self.start.as_ptr(), self.words)
    }
}
