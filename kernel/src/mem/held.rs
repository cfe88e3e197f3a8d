//! A part of a file in memory that the kernel and programs access at the same time: the rings of
//! io_uring and of packet sockets.
//!
//! The frames are page cache, held as long as the region exists. The kernel accesses them through
//! windows: one for each run of bytes within a page. A program may write anything at any time, so
//! each word is read once, by one atomic access.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

use freehold_collections::{Arc, Vec, reserve};
use freehold_machine::PAGE_SIZE;
use zerocopy::FromBytes;

use super::{CacheContent, HeldPage, PageCache, frames};
use crate::fs::FileContent;
use crate::{Result, sched};

/// Pages that are held before the task checks whether it must end.
const STEP: usize = 256;

/// See the module's head. Positions are in bytes from the region's beginning; those of words are
/// multiples of 4.
pub struct HeldRegion(Vec<HeldPage>);

impl HeldRegion {
    /// Makes an empty file for regions. Its pages stay in memory, because the kernel accesses them
    /// where it cannot wait.
    pub fn file() -> Arc<CacheContent> {
        let cache = PageCache::new(frames());
        cache.keep_in_memory();
        reserve::arc(CacheContent::new(cache))
    }

    /// Makes the region of `range` in `file`, in whole pages, and holds its pages.
    ///
    /// # Errors
    /// `ENOMEM`, `EINTR`.
    pub fn make(file: &CacheContent, range: Range<u64>) -> Result<Self> {
        let page = PAGE_SIZE as u64;
        let range = range.start..range.end.next_multiple_of(page);
        let indices = range.start / page..range.end / page;
        let mut pages = Vec::try_with_capacity((indices.end - indices.start) as usize)?;
        file.cache().set_size_grow(range.end);
        file.allocate(range)?;
        for index in indices {
            pages.push_reserved(file.cache().hold(index)?);
            if pages.len() % STEP == 0 {
                sched::checkpoint()?;
            }
        }
        Ok(Self(pages))
    }

    /// Returns the bytes of its pages.
    pub fn bytes(&self) -> u64 {
        (self.0.len() * PAGE_SIZE) as u64
    }
    /// Returns the page of the byte at `at`, and the byte's offset in it.
    fn page(&self, at: usize) -> (&HeldPage, usize) {
        (&self.0[at / PAGE_SIZE], at % PAGE_SIZE)
    }
    /// Runs `f` on the bytes from `at` to the end of the page.
    pub fn write<R>(&self, at: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let (page, start) = self.page(at);
        page.with_bytes(|bytes| f(&mut bytes[start..]))
    }
    /// As [`write`](Self::write), for bytes that are only read.
    pub fn read<R>(&self, at: usize, f: impl FnOnce(&[u8]) -> R) -> R {
        let (page, start) = self.page(at);
        page.read_bytes(|bytes| f(&bytes[start..]))
    }
    /// Writes all of `bytes` at `at`.
    pub fn put(&self, mut at: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let written = self.write(at, |into| {
                let count = into.len().min(bytes.len());
                into[..count].copy_from_slice(&bytes[..count]);
                count
            });
            bytes = &bytes[written..];
            at += written;
        }
    }
    /// Fills `into` with the bytes at `at`.
    pub fn get(&self, mut at: usize, mut into: &mut [u8]) {
        while !into.is_empty() {
            let read = self.read(at, |bytes| {
                let count = into.len().min(bytes.len());
                into[..count].copy_from_slice(&bytes[..count]);
                count
            });
            into = &mut into[read..];
            at += read;
        }
    }
    /// Runs `f` on the word at `at`.
    pub fn word<R>(&self, at: usize, f: impl FnOnce(&AtomicU32) -> R) -> R {
        self.write(at, |bytes| f(word_in(bytes, 0)))
    }
    /// Loads the word at `at`; later accesses see what was stored before it.
    pub fn load(&self, at: usize) -> u32 {
        self.word(at, |word| word.load(Ordering::Acquire))
    }
    /// Stores the word at `at`, after everything that was stored earlier.
    pub fn store(&self, at: usize, value: u32) {
        self.word(at, |word| word.store(value, Ordering::Release));
    }
}

/// Returns the word at `at` in bytes of a region.
pub fn word_in(bytes: &mut [u8], at: usize) -> &AtomicU32 {
    AtomicU32::mut_from_bytes(&mut bytes[at..at + 4]).expect("offsets are multiples of 4")
}
