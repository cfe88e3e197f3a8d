//! Memory that a device holds.

use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use freehold_machine::{Cpus, PAGE_SIZE, PhysicalBytes};
use freehold_tracepoints::table::SwiotlbBounced;
use freehold_tracepoints::{Comm, TraceEvent};

use crate::cells::Cell;
use crate::constraint::Boundary;
use crate::runs::FrameRuns;
use crate::{Device, Direction, DmaAddr, DmaSource, Original, OriginalMut, Piece, Scrub};

/// The memory of a mapping.
pub(crate) struct MappedMemory {
    pub runs: FrameRuns,
    /// Set if the bytes are only a part of the first page.
    pub cell: Option<Cell>,
    /// Number of bytes of the runs, or of the cell, before the mapping's first byte.
    pub start: usize,
}

/// Bytes that a device may access until this is dropped. Dropping copies nothing back
/// ([`DmaMapping::unmap`] does).
///
/// A driver that hands the address to a device keeps the mapping until the device has given the
/// buffer back or was reset. It moves the mapping into its table of requests in flight.
#[must_use = "dropping it takes the memory from the device"]
pub struct DmaMapping<S: DmaSource> {
    device: Device<S>,
    memory: MappedMemory,
    length: usize,
    boundary: Option<Boundary>,
    direction: Direction,
    /// Set once and never cleared.
    is_lost: AtomicBool,
}

/// Direction in which bytes are copied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Copied {
    ToDevice,
    FromDevice,
}

impl<S: DmaSource> DmaMapping<S> {
    pub(crate) fn new(
        device: Device<S>,
        memory: MappedMemory,
        (length, boundary): (usize, Option<Boundary>),
        direction: Direction,
    ) -> Self {
        Self { device, memory, length, boundary, direction, is_lost: AtomicBool::new(false) }
    }

    /// The device's address of the first byte. For the others see [`DmaMapping::pieces`].
    pub fn address(&self) -> DmaAddr {
        let first = self.pieces(0..1).next().expect("a mapping has a byte at least");
        DmaAddr(first.frame.start().0 + first.offset as u64)
    }
    /// Length in bytes; at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub const fn len(&self) -> usize {
        self.length
    }
    /// The direction of the transfer.
    pub const fn direction(&self) -> Direction {
        self.direction
    }
    /// The device that uses the mapping.
    pub const fn device(&self) -> Device<S> {
        self.device
    }
    /// The bytes of `range` as pieces, each contiguous in physical memory. At most [`MAX_RUNS`]
    /// pieces, or more if a [`Boundary`] splits them.
    ///
    /// [`MAX_RUNS`]: crate::MAX_RUNS
    pub fn pieces(&self, range: Range<usize>) -> impl Iterator<Item = Piece> {
        let range = range.start..range.end.min(self.length);
        self.memory.runs.pieces(self.offset(), range, self.boundary)
    }
    /// The bytes of `range`, which is inside the mapping, as one piece, which is the usual case.
    /// With `None` they may be one piece or several.
    #[inline]
    pub fn one_piece(&self, range: Range<usize>) -> Option<Piece> {
        let start = self.offset();
        let plain = self.boundary.is_none();
        plain.then(|| self.memory.runs.in_first(start + range.start..start + range.end)).flatten()
    }
    /// Bytes of memory of the mapping, padding included.
    fn bytes(&self) -> usize {
        self.memory.cell.map_or(self.memory.runs.pages() * PAGE_SIZE, Cell::bytes)
    }
    /// The first byte's offset from the start of the first page; may be beyond that page.
    fn offset(&self) -> usize {
        self.memory.cell.map_or(0, Cell::offset) + self.memory.start
    }

    /// Puts `bytes` at `offset` for the device to read; bytes that do not fit are left out. Returns
    /// the number of bytes that fit.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.length.saturating_sub(offset));
        self.each_part(offset, count, |part, range| part.copy_from_slice(&bytes[range]));
        count
    }
    /// Fetches the bytes at `offset` that the device wrote. Returns their number. The device may
    /// change them at any moment: read a value once, then check it.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> usize {
        let count = bytes.len().min(self.length.saturating_sub(offset));
        self.each_read(offset, count, |part, range| bytes[range].copy_from_slice(part));
        count
    }

    /// Copies `length` of the original's bytes from `offset` on to the device's memory. Does
    /// nothing for a device that only writes.
    pub fn sync_for_device<O: Original + ?Sized>(&self, original: &O, offset: usize, length: usize) {
        self.sync_part_for_device(original, offset, offset, length);
    }
    /// As [`DmaMapping::sync_for_device`], from another offset `from` of the original.
    pub fn sync_part_for_device<O: Original + ?Sized>(
        &self,
        original: &O,
        from: usize,
        offset: usize,
        length: usize,
    ) {
        if self.direction.is_to_device() {
            self.copy_part_in(original, from, offset, length);
        }
    }
    /// Copies `length` bytes from `offset` on, which the device wrote, to the original. Does
    /// nothing for a device that only reads.
    pub fn sync_for_cpu<O: OriginalMut + ?Sized>(&self, original: &mut O, offset: usize, length: usize) {
        self.sync_part_for_cpu(original, offset, offset, length);
    }
    /// As [`DmaMapping::sync_for_cpu`], to another offset `to` of the original.
    pub fn sync_part_for_cpu<O: OriginalMut + ?Sized>(
        &self,
        original: &mut O,
        to: usize,
        offset: usize,
        length: usize,
    ) {
        if self.direction.is_from_device() {
            let length = self.common(original, to, offset, length);
            self.trace_copy(offset, length, Copied::FromDevice);
            self.each_read(offset, length, |part, range| original.copy_from(to + range.start, part));
        }
    }
    /// Takes the memory from the device, after copying the device's bytes to the original.
    pub fn unmap<O: OriginalMut + ?Sized>(self, original: &mut O) {
        self.sync_for_cpu(original, 0, self.length);
    }

    /// Uses the same memory for another transfer, which is counted. Under [`Scrub::Always`] the
    /// memory is zeroed first.
    pub fn begin_again(&self) {
        self.scrub();
        self.device.count_again(self.bytes());
    }

    /// Zeroes all of the memory under [`Scrub::Always`].
    fn scrub(&self) {
        if self.device.dma().scrub() == Scrub::Always {
            let first = self.memory.cell.map_or(0, Cell::offset);
            self.each_from(first, self.bytes(), |part, _| part.fill(0));
        }
    }

    /// Takes the memory out of use for ever: the device does not confirm that it no longer uses it,
    /// and may write to it at any time. Dropping the mapping then frees nothing. The bytes stay
    /// counted as held, and count as lost. Returns the number of bytes that this call lost: 0 if
    /// they were lost before.
    pub fn lose(&self) -> usize {
        if self.is_lost.swap(true, Ordering::AcqRel) {
            return 0;
        }
        let bytes = self.bytes();
        self.device.count_lost(bytes);
        bytes
    }

    /// Copies the original's bytes in, for every direction: if a device writes less than it may,
    /// the rest must be the original's bytes.
    pub(crate) fn copy_in<O: Original + ?Sized>(&self, original: &O, offset: usize, length: usize) {
        self.copy_part_in(original, offset, offset, length);
    }
    fn copy_part_in<O: Original + ?Sized>(&self, original: &O, from: usize, offset: usize, length: usize) {
        let length = self.common(original, from, offset, length);
        self.trace_copy(offset, length, Copied::ToDevice);
        self.each_part(offset, length, |part, range| original.copy_to(from + range.start, part));
    }
    /// The tracepoint of a copy.
    #[inline(always)]
    fn trace_copy(&self, offset: usize, size: usize, copied: Copied) {
        if self.device.dma().bytes().is_traced::<{ SwiotlbBounced::NUMBER }>() {
            self.record_copy(offset, size, copied);
        }
    }
    #[cold]
    #[inline(never)]
    fn record_copy(&self, offset: usize, size: usize, copied: Copied) {
        let event = SwiotlbBounced {
            dev_name: Comm::of(self.device.rules().name.as_bytes()),
            dev_addr: self.address().0 + offset as u64,
            size: size as u64,
            from_device: copied == Copied::FromDevice,
        };
        self.device.dma().bytes().record_event(SwiotlbBounced::NUMBER, &event.words());
    }
    /// Returns how many of `length` bytes both ranges have: the original from `start` on, the
    /// mapping from `offset` on.
    fn common<O: Original + ?Sized>(
        &self,
        original: &O,
        start: usize,
        offset: usize,
        length: usize,
    ) -> usize {
        length.min(self.length.saturating_sub(offset)).min(original.length().saturating_sub(start))
    }

    /// Calls a function for the bytes from `offset` on, part by part, with the part's range in the
    /// whole.
    fn each_part(&self, offset: usize, length: usize, part: impl FnMut(&mut [u8], Range<usize>)) {
        self.each_from(self.offset() + offset, length, part);
    }

    /// The same, from byte `first` of the first page on.
    fn each_from(&self, first: usize, length: usize, mut part: impl FnMut(&mut [u8], Range<usize>)) {
        self.each_piece(first, length, |piece, range, done| {
            self.device.dma().bytes().with_run(piece.frame, range, |before, bytes| {
                let start = done + before;
                part(bytes, start..start + bytes.len());
            });
        });
    }

    /// As [`DmaMapping::each_part`], for bytes that are only read.
    fn each_read(&self, offset: usize, length: usize, mut part: impl FnMut(&[u8], Range<usize>)) {
        self.each_piece(self.offset() + offset, length, |piece, range, done| {
            self.device.dma().bytes().read_run(piece.frame, range, |before, bytes| {
                let start = done + before;
                part(bytes, start..start + bytes.len());
            });
        });
    }

    /// The pieces of `length` bytes from byte `first` of the first page on: the frames, the range
    /// of their bytes, and the number of bytes before the piece.
    fn each_piece(&self, first: usize, length: usize, mut show: impl FnMut(Piece, Range<usize>, usize)) {
        let runs = &self.memory.runs;
        let only = runs.in_first(first..first + length).filter(|_| length > 0);
        let mut each =
            |piece: Piece, done: usize| show(piece, piece.offset..piece.offset + piece.length, done);
        // Usually all bytes are contiguous.
        if let Some(piece) = only {
            return each(piece, 0);
        }
        let mut done = 0;
        for piece in runs.pieces(first, 0..length, None) {
            each(piece, done);
            done += piece.length;
        }
    }
}

impl<S: DmaSource> Drop for DmaMapping<S> {
    fn drop(&mut self) {
        if *self.is_lost.get_mut() {
            return;
        }
        self.scrub();
        self.device.give_back(&self.memory);
    }
}

impl<S: DmaSource> fmt::Debug for DmaMapping<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({:?}, {} bytes, {:?})", self.address(), self.length, self.direction)
    }
}
