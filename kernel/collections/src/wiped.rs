//! A program's bytes that the kernel holds for a while and then wipes.

use alloc::vec::Vec;
use core::hint::black_box;
use core::ops::Deref;

use crate::AllocError;
use crate::heap_use::fallibly;

/// Smallest capacity: enough for the arguments of most programs.
const LEAST_ROOM: usize = 256;

fn with_room(bytes: usize) -> Result<Vec<u8>, AllocError> {
    let mut list = Vec::new();
    fallibly(|| list.try_reserve_exact(bytes))?;
    Ok(list)
}

/// Bytes that are overwritten with zeroes before their memory goes back to the heap, which is in
/// the kernel's map: when they are dropped, and when they move to larger memory.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct WipedBytes(Vec<u8>);

impl WipedBytes {
    /// None, which need no memory.
    pub const fn new() -> Self {
        Self(Vec::new())
    }
    /// A copy of `bytes`.
    ///
    /// # Errors
    /// [`AllocError`].
    pub fn try_from_slice(bytes: &[u8]) -> Result<Self, AllocError> {
        let mut copy = Self(with_room(bytes.len())?);
        copy.0.extend_from_slice(bytes);
        Ok(copy)
    }
    /// Adds `bytes` at the end.
    ///
    /// # Errors
    /// [`AllocError`]; the old bytes stay as they were.
    pub fn try_extend(&mut self, bytes: &[u8]) -> Result<(), AllocError> {
        self.try_reserve(bytes.len())?;
        self.0.extend_from_slice(bytes);
        Ok(())
    }
    /// Makes room for `more` bytes. If the bytes have to move, makes room for as many again.
    ///
    /// # Errors
    /// [`AllocError`]; the bytes stay where they are.
    pub fn try_reserve(&mut self, more: usize) -> Result<(), AllocError> {
        if self.0.capacity() - self.0.len() >= more {
            return Ok(());
        }
        let wanted = self.0.len().checked_add(more).ok_or(AllocError)?;
        let mut larger = with_room(wanted.max(self.0.capacity().saturating_mul(2)).max(LEAST_ROOM))?;
        larger.extend_from_slice(&self.0);
        // The smaller one is wiped as it is dropped.
        *self = Self(larger);
        Ok(())
    }
}

impl From<crate::Vec<u8>> for WipedBytes {
    /// The bytes of a list, whose memory is wiped in the end.
    fn from(bytes: crate::Vec<u8>) -> Self {
        Self(bytes.into_inner())
    }
}

impl Deref for WipedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for WipedBytes {
    fn drop(&mut self) {
        // All of its memory: bytes that the list no longer counts may be a program's, too.
        self.0.clear();
        self.0.resize(self.0.capacity(), 0);
        // The compiler believes that the bytes are read, so the stores stay.
        black_box(self.0.as_slice());
    }
}

/// A buffer on the stack through which a program's bytes pass. When it is dropped, the part that
/// was in use is overwritten with zeroes.
#[derive(Debug)]
pub struct WipedChunk<const N: usize> {
    bytes: [u8; N],
    /// The end of the largest part that was in use.
    used: usize,
}

impl<const N: usize> WipedChunk<N> {
    /// A buffer of zeroes.
    pub const fn new() -> Self {
        Self { bytes: [0; N], used: 0 }
    }
    /// The first `length` bytes, at most `N`, to be filled and read.
    pub fn part(&mut self, length: usize) -> &mut [u8] {
        let part = &mut self.bytes[..length.min(N)];
        self.used = self.used.max(part.len());
        part
    }
    fn wipe(&mut self) {
        self.bytes[..self.used].fill(0);
        // The compiler believes that the bytes are read, so the stores stay.
        black_box(&self.bytes);
    }
}

impl<const N: usize> Default for WipedChunk<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Drop for WipedChunk<N> {
    fn drop(&mut self) {
        self.wipe();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_leaves_zeroes_where_bytes_were() {
        let mut chunk = WipedChunk::<64>::new();
        chunk.part(40).fill(7);
        chunk.part(8).fill(9);
        let sum = |chunk: &WipedChunk<64>| chunk.bytes.iter().map(|&byte| u32::from(byte)).sum::<u32>();
        assert_eq!(sum(&chunk), 8 * 9 + 32 * 7);
        chunk.wipe();
        assert_eq!(sum(&chunk), 0);
        assert_eq!(chunk.part(100).len(), 64);
    }
}
