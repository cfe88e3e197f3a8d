//! One queue.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use freehold_bounce::{Device, DmaMapping, DmaSource, InPlace, MAX_MAPPING, MAX_RUNS};
use virtio_drivers::transport::Transport;

use crate::reset::DeviceReset;
use crate::ring::{Descriptor, DescriptorAccess, Interrupts, Ring};

/// Largest number of parts of a chain: a header, data, and an answer. Chains are moved, so each
/// part costs stores.
pub const MAX_PARTS: usize = 3;
/// Largest number of descriptors of a chain. A chain whose parts are in more pieces is refused as
/// too long for the queue.
pub const MAX_DESCRIPTORS: usize = MAX_RUNS + MAX_PARTS;

/// Memory of a chain's parts.
pub enum PartMemory<S: DmaSource> {
    /// Bounce memory of the DMA API.
    Bounced(Arc<DmaMapping<S>>),
    /// Frames of other owners, accessed directly.
    InPlace(Arc<InPlace<S>>),
}

impl<S: DmaSource> Clone for PartMemory<S> {
    fn clone(&self) -> Self {
        match self {
            Self::Bounced(mapping) => Self::Bounced(mapping.clone()),
            Self::InPlace(frames) => Self::InPlace(frames.clone()),
        }
    }
}

impl<S: DmaSource> From<Arc<DmaMapping<S>>> for PartMemory<S> {
    fn from(mapping: Arc<DmaMapping<S>>) -> Self {
        Self::Bounced(mapping)
    }
}

impl<S: DmaSource> PartMemory<S> {
    /// Returns the number of bytes.
    fn len(&self) -> usize {
        match self {
            Self::Bounced(mapping) => mapping.len(),
            Self::InPlace(frames) => frames.len(),
        }
    }
    /// Returns the device's address of the bytes of `range`, which are inside, if they are known to
    /// be one piece.
    fn one_address(&self, range: Range<usize>) -> Option<u64> {
        match self {
            Self::Bounced(mapping) => {
                let piece = mapping.one_piece(range)?;
                Some(piece.frame.start().0 + piece.offset as u64)
            }
            Self::InPlace(frames) => Some(frames.address().0 + range.start as u64),
        }
    }
    /// Calls `f` with the address and the length of each piece of `range`.
    fn each_piece(&self, range: Range<usize>, f: &mut dyn FnMut(u64, usize)) {
        match self {
            Self::Bounced(mapping) => mapping.pieces(range).for_each(|piece| {
                f(piece.frame.start().0 + piece.offset as u64, piece.length);
            }),
            Self::InPlace(frames) => f(frames.address().0 + range.start as u64, range.len()),
        }
    }
    fn lose(&self) -> usize {
        match self {
            Self::Bounced(mapping) => mapping.lose(),
            Self::InPlace(frames) => frames.lose(),
        }
    }
}

/// A non-empty range of a mapping's bytes that a device reads or writes.
pub struct Part<S: DmaSource> {
    memory: PartMemory<S>,
    /// Bytes before the range, and bytes in the range: at most [`MAX_MAPPING`].
    start: u32,
    length: u32,
    access: DescriptorAccess,
    /// Largest number of bytes of a descriptor.
    segment: u32,
    /// Address of its first byte, if all of them are known to be one piece, else [`NOT_ONE`]. A
    /// mapping's pieces never change, and a chain is walked more than once. It is one word, since
    /// parts are moved for each transfer.
    only: u64,
}

/// An address that no byte has.
const NOT_ONE: u64 = u64::MAX;

impl<S: DmaSource> Part<S> {
    /// Makes a part for the device to read; `None` if the range is empty or not within the mapping.
    #[inline]
    pub fn readable(memory: impl Into<PartMemory<S>>, range: Range<usize>) -> Option<Self> {
        Self::new(memory.into(), range, DescriptorAccess::Read)
    }
    /// Makes a part for the device to write; `None` if the range is empty or not within the
    /// mapping.
    #[inline]
    pub fn writable(memory: impl Into<PartMemory<S>>, range: Range<usize>) -> Option<Self> {
        Self::new(memory.into(), range, DescriptorAccess::Write)
    }
    #[inline]
    fn new(memory: PartMemory<S>, range: Range<usize>, access: DescriptorAccess) -> Option<Self> {
        const { assert!(MAX_MAPPING < u32::MAX as usize) };
        let fits = range.start < range.end && range.end <= memory.len();
        let (start, length) = (range.start as u32, range.len() as u32);
        let only = if fits { memory.one_address(range) } else { None };
        let only = only.unwrap_or(NOT_ONE);
        fits.then_some(Self { memory, start, length, access, segment: u32::MAX, only })
    }
    /// Returns the part's mapping.
    pub const fn memory(&self) -> &PartMemory<S> {
        &self.memory
    }
    /// Returns the same part in descriptors of at most `most` bytes, 1 at least.
    pub fn in_segments(self, most: usize) -> Self {
        Self { segment: u32::try_from(most).unwrap_or(u32::MAX).max(1), ..self }
    }
    /// Returns the bytes of the mapping that the part covers.
    const fn range(&self) -> Range<usize> {
        self.start as usize..self.start as usize + self.length as usize
    }
    /// Calls `f` with a descriptor for each piece of the part.
    fn each_descriptor(&self, f: &mut dyn FnMut(Descriptor)) {
        let access = self.access;
        if let Some(address) = self.only_descriptor() {
            return f(Descriptor { address, length: self.length, access });
        }
        self.memory.each_piece(self.range(), &mut |start, bytes| {
            let mut at = 0;
            while at < bytes {
                let length = (self.segment as usize).min(bytes - at);
                f(Descriptor { address: start + at as u64, length: length as u32, access });
                at += length;
            }
        });
    }
    /// Returns the address of the part, if one descriptor is known to suffice.
    fn only_descriptor(&self) -> Option<u64> {
        (self.only != NOT_ONE && self.length <= self.segment).then_some(self.only)
    }
    /// Returns the number of pieces.
    #[inline]
    fn descriptors(&self) -> usize {
        if self.only_descriptor().is_some() { 1 } else { self.count_descriptors() }
    }
    #[cold]
    fn count_descriptors(&self) -> usize {
        let (mut count, most) = (0, self.segment as usize);
        self.memory.each_piece(self.range(), &mut |_, bytes| {
            count += if bytes <= most { 1 } else { bytes.div_ceil(most) };
        });
        count
    }
}

/// A chain that a device gets as a whole: parts to read, then parts to write.
pub struct Chain<S: DmaSource> {
    parts: [Option<Part<S>>; MAX_PARTS],
    tag: usize,
    /// Number of pieces of all parts. A mapping's pieces never change.
    descriptors: usize,
}

impl<S: DmaSource> Chain<S> {
    /// Makes a chain that the driver identifies by `tag`. `None` if a part to be read comes after
    /// one to be written, or there is no part.
    #[inline(always)]
    pub fn new<const N: usize>(tag: usize, parts: [Part<S>; N]) -> Option<Self> {
        const { assert!(N <= MAX_PARTS, "a chain has at most MAX_PARTS parts") };
        if N == 0 || !parts.is_sorted_by_key(|part| part.access == DescriptorAccess::Write) {
            return None;
        }
        let descriptors = parts.iter().map(Part::descriptors).sum();
        let mut parts = parts.into_iter();
        Some(Self { parts: core::array::from_fn(|_| parts.next()), tag, descriptors })
    }
    /// The driver's tag.
    pub const fn tag(&self) -> usize {
        self.tag
    }
    /// Returns the number of bytes that the device may write.
    fn writable_bytes(&self) -> usize {
        let writable = self.parts.iter().flatten().filter(|part| part.access == DescriptorAccess::Write);
        writable.map(|part| part.length as usize).sum()
    }

    /// Returns the number of descriptors that it takes.
    pub const fn descriptors(&self) -> usize {
        self.descriptors
    }
}

/// A chain that the device has finished; it no longer belongs to the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The driver's tag of the chain.
    pub tag: usize,
    /// Number of bytes that the device says it wrote, limited to the bytes that it was allowed to
    /// write.
    pub written: usize,
    /// The device's claim, unchecked.
    pub claimed: u32,
}

/// The queue has no room for the chain, or is broken; the chain is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

/// The device violated the protocol: it returned a chain that it did not have. It must not be used
/// again without a reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken;

/// A split virtqueue of `SIZE` descriptors, a power of two.
pub struct Queue<S: DmaSource, const SIZE: usize> {
    /// `None` once the ring was lost.
    ring: Option<Ring<S, SIZE>>,
    /// Chains in flight by their first descriptor: `SIZE` places. On the heap, since queues are
    /// moved and stacks are short.
    in_flight: Vec<Option<Chain<S>>>,
    flying: usize,
    /// Number of descriptors that the device does not have.
    room: usize,
    broken: bool,
    /// The device has confirmed that it no longer uses this queue.
    is_reset: bool,
}

impl<S: DmaSource, const SIZE: usize> Queue<S, SIZE> {
    /// Sets up queue number `index` of a device that is being initialised, in memory of `device`.
    ///
    /// # Errors
    /// The device's queue is too small or in use, or there is no memory for the ring.
    pub fn new<T: Transport>(
        transport: &mut T,
        index: u16,
        device: Device<S>,
    ) -> virtio_drivers::Result<Self> {
        let mut in_flight = Vec::new();
        in_flight.try_reserve_exact(SIZE).map_err(|_| virtio_drivers::Error::DmaError)?;
        in_flight.resize_with(SIZE, || None);
        let ring = Some(Ring::new(transport, index, device)?);
        Ok(Self { ring, in_flight, flying: 0, room: SIZE, broken: false, is_reset: false })
    }

    /// Marks the ring and all chains in flight to be freed with the queue: the device has confirmed
    /// a reset. Drop the queue next; it is [`Broken`]. (It is large: moving it would take much of a
    /// kernel stack.)
    pub fn reclaim(&mut self, _: &DeviceReset) {
        (self.broken, self.is_reset) = (true, true);
    }

    /// Takes the ring and all chains in flight out of use for ever, since the device may still
    /// write to them. Returns their number of bytes; the queue is [`Broken`]. Dropping the queue
    /// does the same.
    pub fn lose(&mut self) -> usize {
        self.broken = true;
        let parts = self.in_flight.iter().flatten().flat_map(|chain| chain.parts.iter().flatten());
        let lent: usize = parts.map(|part| part.memory.lose()).sum();
        lent + self.ring.take().map_or(0, Ring::lose)
    }

    /// Lend a chain to the device. The device may have to be notified: see [`Queue::wants_notice`].
    ///
    /// # Errors
    /// [`Full`].
    pub fn submit(&mut self, chain: Chain<S>) -> Result<(), Full> {
        let descriptors = chain.descriptors;
        if self.broken || descriptors > self.room.min(MAX_DESCRIPTORS) {
            return Err(Full);
        }
        let ring = self.ring.as_mut().ok_or(Full)?;
        let head = ring.add(descriptors, |add| {
            chain.parts.iter().flatten().for_each(|part| part.each_descriptor(add));
        });
        self.in_flight[usize::from(head)] = Some(chain);
        self.flying += 1;
        self.room -= descriptors;
        Ok(())
    }

    /// Returns the next chain that the device gave back, if there is one.
    ///
    /// # Errors
    /// [`Broken`] if the device gave back a chain that it did not have, and in all later calls.
    #[inline]
    pub fn complete(&mut self) -> Result<Option<Completion>, Broken> {
        let ring = self.ring.as_mut().filter(|_| !self.broken).ok_or(Broken)?;
        let ahead = ring.ahead();
        if ahead == 0 {
            return Ok(None);
        }
        let used = ring.next_used();
        let is_sane = usize::from(ahead) <= self.flying;
        let place = self.in_flight.get_mut(used.id as usize).filter(|_| is_sane);
        let Some(place) = place.filter(|place| place.is_some()) else {
            self.broken = true;
            return Err(Broken);
        };
        let (tag, descriptors, most) =
            place.as_ref().map_or((0, 0, 0), |chain| (chain.tag, chain.descriptors, chain.writable_bytes()));
        *place = None;
        ring.take();
        // `in_flight` has an entry for each index.
        ring.free(used.id as u16, descriptors);
        self.flying -= 1;
        self.room += descriptors;
        Ok(Some(Completion { tag, written: (used.written as usize).min(most), claimed: used.written }))
    }

    /// Whether the device needs a notice of new chains.
    pub fn wants_notice(&self) -> bool {
        self.ring.as_ref().is_some_and(Ring::wants_notice)
    }
    /// Turns on interrupts on completions. Check for completions once more afterwards: one may just
    /// have come.
    pub fn enable_interrupts(&mut self) {
        self.set_interrupts(Interrupts::Wanted);
    }
    /// Do without interrupts; a few may still come.
    pub fn disable_interrupts(&mut self) {
        self.set_interrupts(Interrupts::Unwanted);
    }
    fn set_interrupts(&mut self, wanted: Interrupts) {
        if let Some(ring) = &mut self.ring {
            ring.set_interrupts(wanted);
        }
    }
    /// Returns the number of descriptors that a chain can have now.
    pub const fn room(&self) -> usize {
        self.room
    }
    /// Chains that the device has.
    pub const fn in_flight(&self) -> usize {
        self.flying
    }
}

impl<S: DmaSource, const SIZE: usize> Drop for Queue<S, SIZE> {
    fn drop(&mut self) {
        if !self.is_reset {
            self.lose();
        }
    }
}

impl<S: DmaSource> fmt::Debug for Chain<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chain({})", self.tag)
    }
}

impl<S: DmaSource, const SIZE: usize> fmt::Debug for Queue<S, SIZE> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({} of {SIZE} in flight)", self.flying)
    }
}
