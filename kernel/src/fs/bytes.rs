//! The kernel's own memory as [`Sink`] and [`Source`], and the transfer of a source's bytes through
//! a kernel buffer.

use freehold_collections::{Vec, WipedChunk};

use crate::Result;
use crate::user::{Sink, Source, so_far};

/// Bytes that [`send_in_chunks`] moves at a time.
const CHUNK: usize = 1024;

/// Passes all bytes of `source` to `send`, which returns how many bytes it took. `room` waits until
/// `send` can take some. `room` is called before each chunk, because a source gives its bytes only
/// once. Returns the number of bytes sent.
///
/// # Errors
/// Those of the source and of `room`, if nothing was sent before.
pub fn send_in_chunks(
    source: &mut dyn Source,
    mut room: impl FnMut() -> Result<()>,
    mut send: impl FnMut(&[u8]) -> usize,
) -> Result<usize> {
    let mut chunk = WipedChunk::<CHUNK>::new();
    let mut done = 0;
    while source.remaining() > 0 {
        let chunk = chunk.part(source.remaining());
        let mut rest = match room().and_then(|()| source.take(chunk)) {
            Ok(count) => &chunk[..count],
            Err(error) => return so_far(done, error),
        };
        while !rest.is_empty() {
            let sent = send(rest);
            done += sent;
            rest = &rest[sent..];
            if !rest.is_empty()
                && let Err(error) = room()
            {
                return so_far(done, error);
            }
        }
    }
    Ok(done)
}

/// A sink that fills a slice.
#[derive(Debug)]
pub struct SliceSink<'a> {
    slice: &'a mut [u8],
    filled: usize,
}

impl<'a> SliceSink<'a> {
    /// Makes an empty sink over `slice`.
    pub fn new(slice: &'a mut [u8]) -> Self {
        Self { slice, filled: 0 }
    }
}

impl Sink for SliceSink<'_> {
    fn remaining(&self) -> usize {
        self.slice.len() - self.filled
    }

    fn put_without_fault(&mut self, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.remaining());
        self.slice[self.filled..self.filled + n].copy_from_slice(&bytes[..n]);
        self.filled += n;
        n
    }
}

/// A sink that appends to a list up to the list's capacity. Nothing is cleared before, and nothing
/// is allocated.
#[derive(Debug)]
pub struct VecSink<'a> {
    list: &'a mut Vec<u8>,
    left: usize,
}

impl<'a> VecSink<'a> {
    /// Makes a sink of `most` bytes, or of as many as `list` has capacity for.
    pub fn new(list: &'a mut Vec<u8>, most: usize) -> Self {
        let left = most.min(list.capacity() - list.len());
        Self { list, left }
    }
}

impl Sink for VecSink<'_> {
    fn remaining(&self) -> usize {
        self.left
    }

    fn put_without_fault(&mut self, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.left);
        match self.list.try_extend_from_slice(&bytes[..n]) {
            Ok(()) => {
                self.left -= n;
                n
            }
            Err(_) => 0,
        }
    }
}

/// A source that reads from a slice.
#[derive(Debug)]
pub struct SliceSource<'a> {
    rest: &'a [u8],
}

impl<'a> SliceSource<'a> {
    /// Makes a source with all of `slice` left.
    pub fn new(slice: &'a [u8]) -> Self {
        Self { rest: slice }
    }
}

impl Source for SliceSource<'_> {
    fn remaining(&self) -> usize {
        self.rest.len()
    }

    fn take(&mut self, bytes: &mut [u8]) -> Result<usize> {
        Ok(self.take_without_fault(bytes))
    }

    fn take_without_fault(&mut self, bytes: &mut [u8]) -> usize {
        let n = bytes.len().min(self.rest.len());
        let (now, later) = self.rest.split_at(n);
        bytes[..n].copy_from_slice(now);
        self.rest = later;
        n
    }

    fn fault_in(&mut self) -> Result<()> {
        Ok(())
    }
}
