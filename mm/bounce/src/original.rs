//! The original bytes of a mapping.

use alloc::sync::Arc;

use freehold_frame::{Held, HeldFrame};
use freehold_machine::PAGE_SIZE;
use freehold_xpfo::Windows;

/// Bytes that a device is to read. The functions run inside a window: they must not sleep or fault.
pub trait Original {
    /// The number of bytes.
    fn length(&self) -> usize;
    /// Fills `to` with the bytes from `offset` on; the caller stays within [`Original::length`].
    fn copy_to(&self, offset: usize, to: &mut [u8]);
    /// Returns the holder of the frames that contain the bytes, in order, and the offset of the
    /// first byte in the first frame. A device behind an IOMMU can use these frames in place.
    /// `None`: the bytes are copied.
    fn held(&self) -> Option<(Arc<dyn HeldFrames>, usize)> {
        None
    }
}

/// Bytes that a device is to write.
pub trait OriginalMut: Original {
    /// Replaces the bytes from `offset` on by `from`; the caller stays within [`Original::length`].
    fn copy_from(&mut self, offset: usize, from: &[u8]);
}

impl Original for [u8] {
    fn length(&self) -> usize {
        self.len()
    }
    fn copy_to(&self, offset: usize, to: &mut [u8]) {
        to.copy_from_slice(&self[offset..offset + to.len()]);
    }
}

impl OriginalMut for [u8] {
    fn copy_from(&mut self, offset: usize, from: &[u8]) {
        self[offset..offset + from.len()].copy_from_slice(from);
    }
}

/// A slice as an original that can be a trait object.
impl Original for &[u8] {
    fn length(&self) -> usize {
        (**self).length()
    }
    fn copy_to(&self, offset: usize, to: &mut [u8]) {
        (**self).copy_to(offset, to);
    }
}

impl Original for &mut [u8] {
    fn length(&self) -> usize {
        self.len()
    }
    fn copy_to(&self, offset: usize, to: &mut [u8]) {
        (**self).copy_to(offset, to);
    }
}

impl OriginalMut for &mut [u8] {
    fn copy_from(&mut self, offset: usize, from: &[u8]) {
        (**self).copy_from(offset, from);
    }
}

/// An ordered list that holds frames.
pub trait FrameList {
    /// The number of frames.
    fn count(&self) -> usize;
    /// Frame number `index`, which the list holds; the caller stays below [`FrameList::count`].
    fn frame(&self, index: usize) -> HeldFrame<'_>;
}

impl<F: Held> FrameList for [F] {
    fn count(&self) -> usize {
        self.len()
    }
    fn frame(&self, index: usize) -> HeldFrame<'_> {
        self[index].held()
    }
}

/// Frames that keep their identity and their bytes while this lives: pinned frames, for instance.
/// Code that writes their bytes at the same time as a device races with that device only.
pub trait HeldFrames: FrameList + Send + Sync {}

impl<F: FrameList + Send + Sync> HeldFrames for F {}

/// The bytes of frames that a device can access in place. Otherwise they are copied as those of
/// [`FrameBytes`] are.
pub struct HeldBytes<'a, B> {
    holder: &'a Arc<dyn HeldFrames>,
    bytes: FrameBytes<'a, B, dyn HeldFrames>,
}

impl<'a, B: Windows> HeldBytes<'a, B> {
    /// The `length` bytes from `start` on of the holder's frames. If they are copied, `bytes` gives
    /// access to them.
    pub fn new(bytes: B, holder: &'a Arc<dyn HeldFrames>, start: usize, length: usize) -> Self {
        Self { holder, bytes: FrameBytes::new(bytes, &**holder).starting_at(start).truncated(length) }
    }
}

impl<B: Windows> Original for HeldBytes<'_, B> {
    fn length(&self) -> usize {
        self.bytes.length()
    }
    fn copy_to(&self, offset: usize, to: &mut [u8]) {
        self.bytes.copy_to(offset, to);
    }
    fn held(&self) -> Option<(Arc<dyn HeldFrames>, usize)> {
        Some((self.holder.clone(), self.bytes.start))
    }
}

impl<B: Windows> OriginalMut for HeldBytes<'_, B> {
    fn copy_from(&mut self, offset: usize, from: &[u8]) {
        self.bytes.copy_from(offset, from);
    }
}

/// The bytes of whole frames, one after the other, wherever the frames are: page-cache pages, for
/// instance.
#[derive(Debug)]
pub struct FrameBytes<'a, B, F: ?Sized> {
    bytes: B,
    frames: &'a F,
    /// Number of bytes at the beginning of the first frame that are not part of the original.
    start: usize,
    length: usize,
}

impl<'a, B: Windows, F: FrameList + ?Sized> FrameBytes<'a, B, F> {
    /// The bytes of `frames`, to which `bytes` gives access.
    pub fn new(bytes: B, frames: &'a F) -> Self {
        Self { bytes, frames, start: 0, length: frames.count() * PAGE_SIZE }
    }
    /// Omits the first `start` bytes.
    pub fn starting_at(self, start: usize) -> Self {
        Self { start: self.start + start, length: self.length.saturating_sub(start), ..self }
    }
    /// Keeps only the first `length` bytes, or all if there are fewer.
    pub fn truncated(self, length: usize) -> Self {
        Self { length: self.length.min(length), ..self }
    }
}

impl<B: Windows, F: FrameList + ?Sized> Original for FrameBytes<'_, B, F> {
    fn length(&self) -> usize {
        self.length
    }
    fn copy_to(&self, offset: usize, mut to: &mut [u8]) {
        let mut at = self.start + offset;
        while !to.is_empty() {
            let first = at % PAGE_SIZE;
            let (part, rest) = to.split_at_mut(to.len().min(PAGE_SIZE - first));
            let frame = self.frames.frame(at / PAGE_SIZE);
            self.bytes.read_bytes(&frame, |page| part.copy_from_slice(&page[first..first + part.len()]));
            at += part.len();
            to = rest;
        }
    }
}

impl<B: Windows, F: FrameList + ?Sized> OriginalMut for FrameBytes<'_, B, F> {
    fn copy_from(&mut self, offset: usize, mut from: &[u8]) {
        let mut at = self.start + offset;
        while !from.is_empty() {
            let first = at % PAGE_SIZE;
            let (part, rest) = from.split_at(from.len().min(PAGE_SIZE - first));
            let frame = self.frames.frame(at / PAGE_SIZE);
            self.bytes.with_bytes(&frame, |page| page[first..first + part.len()].copy_from_slice(part));
            at += part.len();
            from = rest;
        }
    }
}
