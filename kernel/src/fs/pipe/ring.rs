//! The bytes in a pipe: a queue of pages.
//!
//! Invariant: no chunk is empty, and there are at most `limit` chunks. A write of at most a page
//! (PIPE_BUF) is put into one chunk completely or not at all, so it is atomic. The pipe's sleeping
//! lock protects the queue, since accesses to user bytes may fault.

use core::ops::Range;

use freehold_collections::{Short, VecDeque};
use freehold_machine::PAGE_SIZE;

use super::page::{BytePage, Holding};
use crate::user::{Sink, Source, so_far};
use crate::{Errno, Result};

/// Whether the next write may be added to a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Boundary {
    /// The next write may be added: bytes are a stream.
    Stream,
    /// The next write starts a new chunk, and a read ends with the chunk (O_DIRECT's packets).
    Packet,
}

/// Bytes of one page.
pub struct Chunk {
    page: BytePage,
    start: usize,
    end: usize,
    boundary: Boundary,
}

impl Chunk {
    /// Number of bytes.
    pub const fn len(&self) -> usize {
        self.end - self.start
    }
}

/// Bytes of a source that are gathered before the ring is locked: a fault on the source may take
/// any time.
pub struct Gathered(Short<Chunk, 1>);

impl Gathered {
    /// Takes all bytes of `source`.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    pub fn from_source(source: &mut dyn Source) -> Result<Self> {
        let mut chunks = Short::try_with_capacity(source.remaining().div_ceil(PAGE_SIZE))?;
        while source.remaining() > 0 {
            let page = BytePage::allocate()?;
            let end = source.remaining().min(PAGE_SIZE);
            if page.fill(0..end, source)? < end {
                return Err(Errno::EFAULT);
            }
            chunks.push_reserved(Chunk { page, start: 0, end, boundary: Boundary::Stream });
        }
        Ok(Self(chunks))
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.0.len()
    }
}

/// The queue.
pub struct PipeRing {
    chunks: VecDeque<Chunk>,
    limit: usize,
}

impl PipeRing {
    /// Makes an empty queue of up to `limit` pages. Memory for entries is allocated on use.
    pub const fn new(limit: usize) -> Self {
        Self { chunks: VecDeque::new(), limit }
    }

    /// Number of pages in use.
    pub fn pages(&self) -> usize {
        self.chunks.len()
    }

    /// Whether another chunk fits.
    pub fn has_room(&self) -> bool {
        self.chunks.len() < self.limit
    }

    /// Number of bytes in the queue (FIONREAD).
    pub fn bytes(&self) -> usize {
        self.chunks.iter().map(Chunk::len).sum()
    }

    /// Changes the limit.
    ///
    /// # Errors
    /// `EBUSY` if more pages are in use.
    pub fn set_limit(&mut self, limit: usize) -> Result<()> {
        if limit < self.chunks.len() {
            return Err(Errno::EBUSY);
        }
        self.limit = limit;
        Ok(())
    }

    /// Drops all bytes.
    pub fn clear(&mut self) {
        self.chunks.clear();
    }

    /// Appends the part of the write that exceeds whole pages to the last page, if all of that part
    /// fits there.
    ///
    /// # Errors
    /// `EFAULT`.
    pub fn merge(&mut self, source: &mut dyn Source) -> Result<usize> {
        let odd = source.remaining() % PAGE_SIZE;
        match self.chunks.back_mut() {
            Some(last)
                if last.boundary == Boundary::Stream
                    && last.page.holding() == Holding::Own
                    && odd > 0
                    && last.end + odd <= PAGE_SIZE =>
            {
                let count = last.page.fill(last.end..last.end + odd, source)?;
                last.end += count;
                Ok(count)
            }
            _ => Ok(0),
        }
    }

    /// Takes up to a page from the source into a new chunk. The caller has checked that there is
    /// room.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    pub fn push(&mut self, source: &mut dyn Source, boundary: Boundary) -> Result<usize> {
        self.chunks.try_reserve(1)?;
        let page = BytePage::allocate()?;
        let count = page.fill(0..PAGE_SIZE, source)?;
        if count > 0 {
            self.chunks.push_back_reserved(Chunk { page, start: 0, end: count, boundary });
        }
        Ok(count)
    }

    /// Puts the bytes of `page` at `range` into a new chunk. The caller has checked that there is
    /// room.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn push_page(&mut self, page: BytePage, range: Range<usize>) -> Result<()> {
        self.chunks.try_reserve(1)?;
        let (start, end, boundary) = (range.start, range.end, Boundary::Stream);
        self.chunks.push_back_reserved(Chunk { page, start, end, boundary });
        Ok(())
    }

    /// Moves bytes from the front to the sink: all that fit, or the rest of one packet.
    ///
    /// # Errors
    /// `EFAULT` only if no byte could be stored.
    pub fn pop(&mut self, sink: &mut dyn Sink) -> Result<usize> {
        let mut all = usize::MAX;
        self.pop_of(&mut all, sink)
    }

    /// Like [`Ring::pop`], but only from the first `chunks` chunks. Reduces `chunks` by the number
    /// of chunks that are used up.
    ///
    /// # Errors
    /// `EFAULT` only if no byte could be stored.
    pub fn pop_of(&mut self, chunks: &mut usize, sink: &mut dyn Sink) -> Result<usize> {
        let mut done = 0;
        while *chunks > 0 && sink.remaining() > 0 {
            let Some(front) = self.chunks.front_mut() else { break };
            match front.page.drain(front.start..front.end, sink) {
                Ok(count) => {
                    front.start += count;
                    done += count;
                }
                Err(error) => return so_far(done, error),
            }
            let packet = front.boundary == Boundary::Packet;
            // If the buffer has no room for the rest of a packet, that rest is lost.
            if !packet && front.len() > 0 {
                break;
            }
            drop(self.chunks.pop_front());
            *chunks -= 1;
            if packet {
                break;
            }
        }
        Ok(done)
    }

    /// Copies the bytes of the chunks with these indexes into the sink; the chunks stay.
    ///
    /// # Errors
    /// `EFAULT` only if no byte could be stored.
    ///
    /// # Panics
    /// If there are fewer chunks.
    pub fn peek(&self, chunks: Range<usize>, sink: &mut dyn Sink) -> Result<usize> {
        let mut done = 0;
        for chunk in chunks.map(|at| &self.chunks[at]) {
            match chunk.page.drain(chunk.start..chunk.end, sink) {
                Ok(count) => done += count,
                Err(error) => return so_far(done, error),
            }
            if sink.remaining() == 0 {
                break;
            }
        }
        Ok(done)
    }

    /// Drops the first `chunks` chunks.
    pub fn discard(&mut self, chunks: usize) {
        (0..chunks).for_each(|_| drop(self.chunks.pop_front()));
    }

    /// Appends all of `gathered`, or nothing. The caller has checked that there is room.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn append(&mut self, gathered: Gathered) -> Result<()> {
        self.chunks.try_reserve(gathered.pages())?;
        gathered.0.into_iter().for_each(|chunk| self.chunks.push_back_reserved(chunk));
        Ok(())
    }

    /// Passes the first chunk's bytes, up to `limit`, to `take`, which returns how many it took.
    ///
    /// # Errors
    /// Those of `take`.
    pub fn pop_with(
        &mut self,
        limit: usize,
        take: &mut dyn FnMut(&mut dyn Source) -> Result<usize>,
    ) -> Result<usize> {
        let Some(front) = self.chunks.front_mut() else { return Ok(0) };
        let end = front.end.min(front.start + limit);
        let count = take(&mut PageSource { page: &front.page, at: front.start, end })?;
        front.start += count.min(end - front.start);
        if front.len() == 0 {
            drop(self.chunks.pop_front());
        }
        Ok(count)
    }

    /// Moves the first chunk to the end of `other`, which has room, if the chunk has at most
    /// `limit` bytes. Otherwise copies `limit` bytes of it.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn give(&mut self, other: &mut PipeRing, limit: usize) -> Result<usize> {
        other.chunks.try_reserve(1)?;
        match self.chunks.front() {
            Some(front) if front.len() <= limit => {
                let count = front.len();
                self.chunks.pop_front().into_iter().for_each(|front| other.chunks.push_back_reserved(front));
                Ok(count)
            }
            _ => self.pop_with(limit, &mut |source| other.push(source, Boundary::Stream)),
        }
    }

    /// Copies up to `limit` bytes of the chunk at `index` to the end of `other`, which has room
    /// (tee).
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn copy(&self, index: usize, other: &mut PipeRing, limit: usize) -> Result<usize> {
        let Some(chunk) = self.chunks.get(index) else { return Ok(0) };
        let end = chunk.end.min(chunk.start + limit);
        other.push(&mut PageSource { page: &chunk.page, at: chunk.start, end }, chunk.boundary)
    }

    /// Lets `give` put up to `limit` bytes into a new chunk. The caller has checked that there is
    /// room.
    ///
    /// # Errors
    /// Those of `give`, `ENOMEM`.
    pub fn push_with(
        &mut self,
        limit: usize,
        give: &mut dyn FnMut(&mut dyn Sink) -> Result<usize>,
    ) -> Result<usize> {
        self.chunks.try_reserve(1)?;
        let page = BytePage::allocate()?;
        let mut sink = PageSink { page: &page, at: 0, end: limit.min(PAGE_SIZE) };
        let result = give(&mut sink);
        let end = sink.at;
        if end > 0 {
            self.chunks.push_back_reserved(Chunk { page, start: 0, end, boundary: Boundary::Stream });
        }
        result
    }
}

/// Part of a page as a source.
struct PageSource<'a> {
    page: &'a BytePage,
    at: usize,
    end: usize,
}

impl Source for PageSource<'_> {
    fn remaining(&self) -> usize {
        self.end - self.at
    }
    fn take(&mut self, bytes: &mut [u8]) -> Result<usize> {
        Ok(self.take_without_fault(bytes))
    }
    fn take_without_fault(&mut self, bytes: &mut [u8]) -> usize {
        let count = bytes.len().min(self.remaining());
        let from = self.at..self.at + count;
        self.page.read_bytes(|page| bytes[..count].copy_from_slice(&page[from]));
        self.at += count;
        count
    }
    fn fault_in(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Part of a page as a sink.
struct PageSink<'a> {
    page: &'a BytePage,
    at: usize,
    end: usize,
}

impl Sink for PageSink<'_> {
    fn remaining(&self) -> usize {
        self.end - self.at
    }
    fn put(&mut self, bytes: &[u8]) -> Result<usize> {
        Ok(self.put_without_fault(bytes))
    }
    fn put_without_fault(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.remaining());
        let to = self.at..self.at + count;
        self.page.with_bytes(|page| page[to].copy_from_slice(&bytes[..count]));
        self.at += count;
        count
    }
    fn fault_in(&mut self) -> Result<()> {
        Ok(())
    }
}
