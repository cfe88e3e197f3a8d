//! One queue.

use alloc::sync::Arc;
use core::fmt;
use core::ops::Range;
use core::slice;

use freehold_bounce::{DmaSource, Mapping};
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::Transport;

use crate::memory::{Memory, pointer};

/// The most parts of a chain.
pub const MAX_PARTS: usize = 4;

/// What a device is allowed to do with a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    Read,
    Write,
}

/// Some bytes of a mapping, not none, that a device reads or writes.
pub struct Part<S: DmaSource> {
    memory: Arc<Mapping<S>>,
    range: Range<usize>,
    access: Use,
}

impl<S: DmaSource> Part<S> {
    /// Bytes for the device to read; `None` where the range is empty or not within the mapping.
    pub fn readable(memory: Arc<Mapping<S>>, range: Range<usize>) -> Option<Self> {
        Self::new(memory, range, Use::Read)
    }
    /// Bytes for the device to write; `None` where the range is empty or not within the mapping.
    pub fn writable(memory: Arc<Mapping<S>>, range: Range<usize>) -> Option<Self> {
        Self::new(memory, range, Use::Write)
    }
    fn new(memory: Arc<Mapping<S>>, range: Range<usize>, access: Use) -> Option<Self> {
        let fits = range.start < range.end && range.end <= memory.len();
        fits.then_some(Self { memory, range, access })
    }
    /// The mapping it is of.
    pub const fn memory(&self) -> &Arc<Mapping<S>> {
        &self.memory
    }
    fn start(&self) -> *mut u8 {
        let (frame, offset) = self.memory.place();
        pointer(frame).as_ptr().wrapping_add(offset + self.range.start)
    }
}

/// What a device gets in one go: parts to read, then parts to write.
pub struct Chain<S: DmaSource> {
    parts: [Option<Part<S>>; MAX_PARTS],
    tag: usize,
}

impl<S: DmaSource> Chain<S> {
    /// A chain that the driver knows by `tag`. `None` where a part to be read comes after one to be written,
    /// or there is no part.
    pub fn new<const N: usize>(tag: usize, parts: [Part<S>; N]) -> Option<Self> {
        const { assert!(N <= MAX_PARTS, "a chain has at most MAX_PARTS parts") };
        if N == 0 || !parts.is_sorted_by_key(|part| part.access == Use::Write) {
            return None;
        }
        let mut chain = Self { parts: [const { None }; MAX_PARTS], tag };
        for (place, part) in chain.parts.iter_mut().zip(parts) {
            *place = Some(part);
        }
        Some(chain)
    }
    /// The driver's tag.
    pub const fn tag(&self) -> usize {
        self.tag
    }
    fn of(&self, access: Use) -> impl Iterator<Item = &Part<S>> {
        self.parts.iter().flatten().filter(move |part| part.access == access)
    }
    /// Bytes that the device may write.
    fn writable_bytes(&self) -> usize {
        self.of(Use::Write).map(|part| part.range.len()).sum()
    }

    /// Call `f` with the parts as the crate wants them.
    fn with_slices<R>(&self, f: impl for<'a> FnOnce(&'a [&'a [u8]], &'a mut [&'a mut [u8]]) -> R) -> R {
        let mut inputs: [&[u8]; MAX_PARTS] = [&[]; MAX_PARTS];
        let mut outputs: [&mut [u8]; MAX_PARTS] = Default::default();
        let (mut reads, mut writes) = (0, 0);
        for part in self.of(Use::Read) {
            // SAFETY: the range lies in the mapping, whose bytes are in the direct map, valid and initialised while
            // the chain holds it; the driver writes a mapping only before it submits it.
            inputs[reads] = unsafe { slice::from_raw_parts(part.start(), part.range.len()) };
            reads += 1;
        }
        for part in self.of(Use::Write) {
            // SAFETY: as above; the only reference of ours that lives now, since `Mapping` copies bytes through
            // short-lived windows and the driver waits for the chain to complete before it looks.
            outputs[writes] = unsafe { slice::from_raw_parts_mut(part.start(), part.range.len()) };
            writes += 1;
        }
        f(&inputs[..reads], &mut outputs[..writes])
    }
}

/// A chain that the device is done with.
#[derive(Debug)]
pub struct Completion<S: DmaSource> {
    /// The chain, the driver's again.
    pub chain: Chain<S>,
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
    ring: VirtQueue<Memory, SIZE>,
    /// By the chain's first descriptor.
    in_flight: [Option<Chain<S>>; SIZE],
    flying: usize,
    broken: bool,
}

impl<S: DmaSource, const SIZE: usize> Queue<S, SIZE> {
    /// Set up queue number `index` of a device that is being initialised.
    ///
    /// # Errors
    /// The device's queue is too small or in use, or there is no memory for the ring.
    pub fn new<T: Transport>(transport: &mut T, index: u16) -> virtio_drivers::Result<Self> {
        let ring = VirtQueue::new(transport, index, false, false)?;
        Ok(Self { ring, in_flight: [const { None }; SIZE], flying: 0, broken: false })
    }

    /// Lend a chain to the device. The device may have to be notified: see [`Queue::wants_notice`].
    ///
    /// # Errors
    /// [`Full`].
    pub fn submit(&mut self, chain: Chain<S>) -> Result<(), Full> {
        if self.broken {
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
        Ok(())
    }

    /// The next chain that the device gave back, if there is one.
    ///
    /// # Errors
    /// [`Broken`] if it gave back what it did not have; then and ever after.
    pub fn complete(&mut self) -> Result<Option<Completion<S>>, Broken> {
        if self.broken {
            return Err(Broken);
        }
        let Some(token) = self.ring.peek_used() else { return Ok(None) };
        let place = self.in_flight.get_mut(usize::from(token));
        let Some((place, chain)) = place.and_then(|place| place.take().map(|chain| (place, chain))) else {
            self.broken = true;
            return Err(Broken);
        };
        let popped = chain.with_slices(|inputs, outputs| {
            // SAFETY: `in_flight[token]` is the chain for which `add` returned this token.
            unsafe { self.ring.pop_used(token, inputs, outputs) }
        });
        let Ok(written) = popped else {
            // The entry changed between two looks. The device still has the chain.
            *place = Some(chain);
            self.broken = true;
            return Err(Broken);
        };
        self.flying -= 1;
        let written = (written as usize).min(chain.writable_bytes());
        Ok(Some(Completion { chain, written }))
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
    /// Chains that the device has.
    pub const fn in_flight(&self) -> usize {
        self.flying
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
