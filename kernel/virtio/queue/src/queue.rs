//! One queue.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::Range;
use core::slice;
use core::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use freehold_bounce::{Device, DmaAddr, DmaSource, MAX_MAPPING, MAX_RUNS, Mapping};
use freehold_machine::{PAGE_SHIFT, PAGE_SIZE, Pfn};
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::Transport;

use crate::memory::{Memory, lose, pointer, with_ring_device};
use crate::placement::{Noting, RingPlace};
use crate::reset::DeviceReset;

/// The most parts of a chain.
pub const MAX_PARTS: usize = 4;
/// The most descriptors of a chain. A chain whose parts lie in more pieces is refused as too long for the queue.
pub const MAX_DESCRIPTORS: usize = MAX_RUNS + MAX_PARTS;

/// What a device is allowed to do with a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    Read,
    Write,
}

/// Some bytes of a mapping, not none, that a device reads or writes.
pub struct Part<S: DmaSource> {
    memory: Arc<Mapping<S>>,
    /// Bytes before it, and its own: at most [`MAX_MAPPING`].
    start: u32,
    length: u32,
    access: Use,
    /// The most bytes of a descriptor.
    segment: u32,
    /// Where its first byte is, if all of them are known to be one piece, or [`NOT_ONE`]: a mapping's pieces never
    /// change, and a chain is looked through more than once. A word, since parts are moved for each transfer.
    only: u64,
}

/// No byte's place.
const NOT_ONE: u64 = u64::MAX;

impl<S: DmaSource> Part<S> {
    /// Bytes for the device to read; `None` where the range is empty or not within the mapping.
    #[inline]
    pub fn readable(memory: Arc<Mapping<S>>, range: Range<usize>) -> Option<Self> {
        Self::new(memory, range, Use::Read)
    }
    /// Bytes for the device to write; `None` where the range is empty or not within the mapping.
    #[inline]
    pub fn writable(memory: Arc<Mapping<S>>, range: Range<usize>) -> Option<Self> {
        Self::new(memory, range, Use::Write)
    }
    #[inline]
    fn new(memory: Arc<Mapping<S>>, range: Range<usize>, access: Use) -> Option<Self> {
        const { assert!(MAX_MAPPING < u32::MAX as usize) };
        let fits = range.start < range.end && range.end <= memory.len();
        let (start, length) = (range.start as u32, range.len() as u32);
        let only =
            memory.one_piece(range).map_or(NOT_ONE, |piece| piece.frame.start().0 + piece.offset as u64);
        fits.then_some(Self { memory, start, length, access, segment: u32::MAX, only })
    }
    /// The mapping it is of.
    pub const fn memory(&self) -> &Arc<Mapping<S>> {
        &self.memory
    }
    /// The same in descriptors of at most `most` bytes, 1 at least.
    pub fn in_segments(self, most: usize) -> Self {
        Self { segment: u32::try_from(most).unwrap_or(u32::MAX).max(1), ..self }
    }
    /// What of the mapping it is.
    const fn range(&self) -> Range<usize> {
        self.start as usize..self.start as usize + self.length as usize
    }
    /// Calls `f` with each of the pieces that its bytes are in: where it begins, and how many bytes it has.
    fn each_piece(&self, mut f: impl FnMut(*mut u8, usize)) {
        if let Some(start) = self.only_descriptor() {
            return f(start, self.length as usize);
        }
        for piece in self.memory.pieces(self.range()) {
            let start = pointer(piece.frame).as_ptr().wrapping_add(piece.offset);
            let mut at = 0;
            while at < piece.length {
                let length = (self.segment as usize).min(piece.length - at);
                f(start.wrapping_add(at), length);
                at += length;
            }
        }
    }
    /// Where its bytes begin, if one descriptor is known to do for them.
    fn only_descriptor(&self) -> Option<*mut u8> {
        if self.only == NOT_ONE || self.length > self.segment {
            return None;
        }
        let frame = pointer(Pfn(self.only >> PAGE_SHIFT));
        Some(frame.as_ptr().wrapping_add(self.only as usize % PAGE_SIZE))
    }
    /// How many pieces those are.
    #[inline]
    fn descriptors(&self) -> usize {
        if self.only_descriptor().is_some() { 1 } else { self.count_descriptors() }
    }
    #[cold]
    fn count_descriptors(&self) -> usize {
        let (mut count, most) = (0, self.segment as usize);
        for piece in self.memory.pieces(self.range()) {
            count += if piece.length <= most { 1 } else { piece.length.div_ceil(most) };
        }
        count
    }
}

/// What a device gets in one go: parts to read, then parts to write.
pub struct Chain<S: DmaSource> {
    parts: [Option<Part<S>>; MAX_PARTS],
    tag: usize,
    /// Of all parts. A mapping's pieces never change.
    descriptors: usize,
}

impl<S: DmaSource> Chain<S> {
    /// A chain that the driver knows by `tag`. `None` where a part to be read comes after one to be written,
    /// or there is no part.
    #[inline(always)]
    pub fn new<const N: usize>(tag: usize, parts: [Part<S>; N]) -> Option<Self> {
        const { assert!(N <= MAX_PARTS, "a chain has at most MAX_PARTS parts") };
        if N == 0 || !parts.is_sorted_by_key(|part| part.access == Use::Write) {
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
    /// Bytes that the device may write.
    fn writable_bytes(&self) -> usize {
        let writable = self.parts.iter().flatten().filter(|part| part.access == Use::Write);
        writable.map(|part| part.length as usize).sum()
    }

    /// How many descriptors it takes.
    pub const fn descriptors(&self) -> usize {
        self.descriptors
    }

    /// Calls `f` with the parts as the crate wants them. The chain has at most [`MAX_DESCRIPTORS`] pieces.
    fn with_slices<R>(&self, f: impl for<'a> FnOnce(&'a [&'a [u8]], &'a mut [&'a mut [u8]]) -> R) -> R {
        // Most chains are short, and arrays for long ones take long to fill.
        if self.descriptors <= MAX_PARTS {
            self.with_slices_in::<MAX_PARTS, R>(f)
        } else {
            self.with_slices_in::<MAX_DESCRIPTORS, R>(f)
        }
    }

    /// The same, for at most `N` pieces.
    fn with_slices_in<const N: usize, R>(
        &self,
        f: impl for<'a> FnOnce(&'a [&'a [u8]], &'a mut [&'a mut [u8]]) -> R,
    ) -> R {
        let mut inputs: [&[u8]; N] = [&[]; N];
        let mut outputs: [&mut [u8]; N] = core::array::from_fn(|_| Default::default());
        let (mut reads, mut writes) = (0, 0);
        for part in self.parts.iter().flatten() {
            match part.access {
                Use::Read => part.each_piece(|start, length| {
                    // SAFETY: the piece lies in the mapping, whose bytes are in the direct map, valid and initialised
                    // while the chain holds it; the driver writes a mapping only before it submits it.
                    inputs[reads] = unsafe { slice::from_raw_parts(start, length) };
                    reads += 1;
                }),
                Use::Write => part.each_piece(|start, length| {
                    // SAFETY: as above; the only reference of ours that lives now, since `Mapping` copies bytes through
                    // short-lived windows and the driver waits for the chain to complete before it looks.
                    outputs[writes] = unsafe { slice::from_raw_parts_mut(start, length) };
                    writes += 1;
                }),
            }
        }
        f(&inputs[..reads], &mut outputs[..writes])
    }
}

/// A chain that the device is done with: the queue has let go of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The driver's tag of the chain.
    pub tag: usize,
    /// Bytes that the device says it wrote, at most what it was allowed to.
    pub written: usize,
}

/// The queue has no room for the chain, or is broken; the chain is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

/// The device said what it cannot: it gave back what it did not have. It must not be used again without a reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken;

/// A split virtqueue of `SIZE` descriptors, a power of two.
pub struct Queue<S: DmaSource, const SIZE: usize> {
    ring: ManuallyDrop<VirtQueue<Memory, SIZE>>,
    place: RingPlace,
    /// By the chain's first descriptor: `SIZE` places. On the heap, since queues are moved and stacks are short.
    in_flight: Vec<Option<Chain<S>>>,
    flying: usize,
    /// Descriptors that the device does not have.
    room: usize,
    /// Used entries taken so far, as the device counts them.
    taken: u16,
    broken: bool,
    /// The device has confirmed that it uses this queue no more.
    is_reset: bool,
}

impl<S: DmaSource, const SIZE: usize> Queue<S, SIZE> {
    /// Set up queue number `index` of a device that is being initialised, in memory of `device`.
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
        let mut noting = Noting { transport, place: RingPlace::default() };
        let ring = with_ring_device(device, || VirtQueue::new(&mut noting, index, false, false));
        let ring = ManuallyDrop::new(ring?);
        Ok(Self {
            ring,
            place: noting.place,
            in_flight,
            flying: 0,
            room: SIZE,
            taken: 0,
            broken: false,
            is_reset: false,
        })
    }

    /// Lets the ring and all that is in flight go with the queue: the device has confirmed a reset. Drop the queue next; it
    /// is [`Broken`]. (It is large: moving it would take much of a kernel stack.)
    pub fn reclaim(&mut self, _: &DeviceReset) {
        (self.broken, self.is_reset) = (true, true);
    }

    /// Takes the ring and all that is in flight out of use for ever: the device may still write to it. Returns how many
    /// bytes that is; the queue is [`Broken`]. Dropping it does the same.
    pub fn lose(&mut self) -> usize {
        self.broken = true;
        self.lose_all()
    }

    fn lose_all(&mut self) -> usize {
        let parts = self.in_flight.iter().flatten().flat_map(|chain| chain.parts.iter().flatten());
        let lent: usize = parts.map(|part| part.memory.lose()).sum();
        // Once only: what starts at 0 is nobody's.
        let RingPlace { driver, device } = core::mem::take(&mut self.place);
        lent + lose(DmaAddr(driver)) + lose(DmaAddr(device))
    }

    /// Where the used ring's bytes from `offset` on are.
    fn used(&self, offset: usize) -> *mut u8 {
        let first = pointer(Pfn(self.place.device >> PAGE_SHIFT));
        first.as_ptr().wrapping_add(offset)
    }

    /// How many entries the device has added to the used ring, modulo 2^16 (virtio 1.2, 2.7.8).
    fn used_index(&self) -> u16 {
        // SAFETY: the used ring is a block of whole frames in the direct map that the queue holds; its bytes 2 and 3 are
        // the index, aligned. The device may write it at any moment, and all reads of it in the kernel are atomic.
        unsafe { AtomicU16::from_ptr(self.used(2).cast()) }.load(Ordering::Acquire)
    }

    /// The id in the next entry to be taken.
    fn next_used_id(&self) -> u32 {
        let offset = 4 + 8 * (usize::from(self.taken) % SIZE);
        // SAFETY: as above; entries of 8 bytes begin at byte 4, and `SIZE` of them are in the block.
        unsafe { AtomicU32::from_ptr(self.used(offset).cast()) }.load(Ordering::Relaxed)
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
        let token = chain.with_slices(|inputs, outputs| {
            // SAFETY: the chain moves into `in_flight` and so stays valid, and nobody but the device accesses its
            // bytes, until `complete` has popped this token.
            unsafe { self.ring.add(inputs, outputs) }
        });
        let token = token.map_err(|_| Full)?;
        self.in_flight[usize::from(token)] = Some(chain);
        self.flying += 1;
        self.room -= descriptors;
        Ok(())
    }

    /// The next chain that the device gave back, if there is one.
    ///
    /// # Errors
    /// [`Broken`] if it gave back what it did not have; then and ever after.
    pub fn complete(&mut self) -> Result<Option<Completion>, Broken> {
        if self.broken {
            return Err(Broken);
        }
        let ahead = self.used_index().wrapping_sub(self.taken);
        if ahead == 0 {
            return Ok(None);
        }
        // An index that went back looks like one that is far ahead.
        let id = self.next_used_id() as usize;
        let place = self.in_flight.get_mut(id).filter(|_| usize::from(ahead) <= self.flying);
        // All indices of `in_flight` fit.
        let token = id as u16;
        let popped = place.and_then(|place| {
            let chain = place.as_ref()?;
            let written = chain.with_slices(|inputs, outputs| {
                // SAFETY: `in_flight[token]` is the chain for which `add` returned this token.
                unsafe { self.ring.pop_used(token, inputs, outputs) }
            });
            // Where the entry changed between two looks the device still has the chain.
            let written = (written.ok()? as usize).min(chain.writable_bytes());
            let (tag, descriptors) = (chain.tag, chain.descriptors);
            *place = None;
            Some((Completion { tag, written }, descriptors))
        });
        let Some((completion, descriptors)) = popped else {
            self.broken = true;
            return Err(Broken);
        };
        self.flying -= 1;
        self.room += descriptors;
        self.taken = self.taken.wrapping_add(1);
        Ok(Some(completion))
    }

    /// Whether the device wants to be told of new chains.
    pub fn wants_notice(&self) -> bool {
        self.ring.should_notify()
    }
    /// Ask for interrupts on completions. Look for completions once more afterwards: one may just have come.
    pub fn enable_interrupts(&mut self) {
        self.ring.set_dev_notify(true);
    }
    /// Do without interrupts; a few may still come.
    pub fn disable_interrupts(&mut self) {
        self.ring.set_dev_notify(false);
    }
    /// Descriptors that a chain can have now.
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
            self.lose_all();
            return;
        }
        // SAFETY: the ring is dropped here and nowhere else, and the queue is not used again. No device reads or writes
        // its frames: it has confirmed a reset.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
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
