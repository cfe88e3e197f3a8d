//! The bytes that a mapping stands for.

use freehold_machine::{PAGE_SIZE, Pfn, PhysicalBytes};

/// Bytes that a device shall read. The functions run inside a window: they must not sleep or fault.
pub trait Original {
    /// How many bytes there are.
    fn length(&self) -> usize;
    /// Fill `to` with the bytes from `offset` on; the caller stays within [`Original::length`].
    fn copy_to(&self, offset: usize, to: &mut [u8]);
}

/// Bytes that a device shall write.
pub trait OriginalMut: Original {
    /// Replace the bytes from `offset` on by `from`; the caller stays within [`Original::length`].
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

/// The bytes of whole frames, one after the other, wherever the frames are: page-cache pages, for instance.
/// Whoever makes one keeps the frames held.
#[derive(Debug)]
pub struct FrameBytes<'a, B> {
    bytes: B,
    frames: &'a [Pfn],
    /// Bytes of the first frame that do not belong to it.
    start: usize,
    length: usize,
}

impl<'a, B: PhysicalBytes> FrameBytes<'a, B> {
    /// The bytes of `frames`, reached through `bytes`.
    pub const fn new(bytes: B, frames: &'a [Pfn]) -> Self {
        Self { bytes, frames, start: 0, length: frames.len() * PAGE_SIZE }
    }
    /// Without the first `start` of them.
    pub fn starting_at(self, start: usize) -> Self {
        Self { start: self.start + start, length: self.length.saturating_sub(start), ..self }
    }
    /// Only the first `length` of them, or all where there are fewer.
    pub fn truncated(self, length: usize) -> Self {
        Self { length: self.length.min(length), ..self }
    }
}

impl<B: PhysicalBytes> Original for FrameBytes<'_, B> {
    fn length(&self) -> usize {
        self.length
    }
    fn copy_to(&self, offset: usize, to: &mut [u8]) {
        let frame = |page: usize| self.frames[page];
        each_page(self.start + offset, to.len(), |page, at, range| {
            self.bytes
                .with_bytes(frame(page), |b| to[range.clone()].copy_from_slice(&b[at..at + range.len()]));
        });
    }
}

impl<B: PhysicalBytes> OriginalMut for FrameBytes<'_, B> {
    fn copy_from(&mut self, offset: usize, from: &[u8]) {
        each_page(self.start + offset, from.len(), |page, at, range| {
            let part = &from[range];
            self.bytes.with_bytes(self.frames[page], |b| b[at..at + part.len()].copy_from_slice(part));
        });
    }
}

/// Cut `length` bytes from `offset` on at page borders: page, offset in it, range of the whole.
pub(crate) fn each_page(
    offset: usize,
    length: usize,
    mut piece: impl FnMut(usize, usize, core::ops::Range<usize>),
) {
    let mut done = 0;
    while done < length {
        let at = (offset + done) % PAGE_SIZE;
        let count = (PAGE_SIZE - at).min(length - done);
        piece((offset + done) / PAGE_SIZE, at, done..done + count);
        done += count;
    }
}
