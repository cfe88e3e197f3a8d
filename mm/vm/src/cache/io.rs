//! Reading and writing bytes through closures.
//!
//! The kernel accesses a frame's bytes through a window, and inside it nothing may fault or sleep.
//! So the caller copies from or to user memory: a closure gets at most a page of bytes at a time
//! and returns how many it copied. If that is fewer, the call ends; the caller then faults its own
//! memory in and continues from there.

use core::ops::Range;

use freehold_frame::{Frame, NodePolicy, PageCache as CacheKind};
use freehold_machine::PAGE_SIZE;
use freehold_paging::Memory;
use freehold_xpfo::Windows;

use super::{Mark, PAGE, PageCache};
use crate::VmError;

/// Bytes that a hole reads as.
static ZEROES: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

impl<S: Memory> PageCache<S> {
    /// Calls `f` with up to `len` bytes from `offset` on, up to the end of the file. Returns the
    /// number of bytes that `f` handled.
    ///
    /// # Errors
    /// [`VmError::NoMemory`], or the store's error, if no byte could be read.
    pub fn read_at(
        &self,
        offset: u64,
        len: usize,
        mut f: impl FnMut(&[u8]) -> usize,
    ) -> Result<usize, VmError> {
        debug_assert!(!self.is_secret(), "the kernel reads secret memory");
        let left = self.size().saturating_sub(offset);
        let len = len.min(usize::try_from(left).unwrap_or(usize::MAX));
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let start = (at % PAGE) as usize;
            let end = PAGE_SIZE.min(start + (len - done));
            let shown = match self.readable(at / PAGE) {
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
                Ok(None) => f(&ZEROES[start..end]),
                Ok(Some(frame)) => self.source.machine().read_bytes(&frame, |bytes| f(&bytes[start..end])),
            };
            done += shown.min(end - start);
            if shown < end - start {
                break;
            }
        }
        Ok(done)
    }

    /// The frame of page `index`, read from the store or the swap if necessary; `None` for a hole.
    pub(super) fn readable(&self, index: u64) -> Result<Option<Frame<CacheKind, S>>, VmError> {
        match self.get(index)? {
            None if self.store.is_some() => Ok(Some(self.get_or_fill(index, NodePolicy::Local)?.0)),
            None => Ok(self.find(index, NodePolicy::Local)?.map(|(frame, _)| frame)),
            frame => Ok(frame),
        }
    }

    /// Lets `f` write up to `len` bytes from `offset` on; the file grows if necessary. Returns the
    /// number of bytes that `f` wrote.
    ///
    /// # Errors
    /// [`VmError::NoMemory`], or the store's error, if no byte could be written;
    /// [`VmError::Overflow`] past the largest offset.
    pub fn write_at(
        &self,
        offset: u64,
        len: usize,
        mut f: impl FnMut(&mut [u8]) -> usize,
    ) -> Result<usize, VmError> {
        debug_assert!(!self.is_secret(), "the kernel writes secret memory");
        let end = offset.checked_add(len as u64).filter(|&end| end <= i64::MAX as u64);
        let end = end.ok_or(VmError::Overflow)?;
        let _change = self.change(offset / PAGE..end.div_ceil(PAGE));
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let start = (at % PAGE) as usize;
            let end = PAGE_SIZE.min(start + (len - done));
            let written = match self.write_page(at / PAGE, start, end, &mut f) {
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
                Ok(written) => written,
            };
            done += written;
            self.set_size_grow_if(at + written as u64, written);
            if written < end - start {
                break;
            }
        }
        Ok(done)
    }

    fn set_size_grow_if(&self, size: u64, written: usize) {
        if written > 0 && self.size() < size {
            self.set_size_grow(size);
        }
    }

    fn write_page(
        &self,
        index: u64,
        start: usize,
        end: usize,
        f: &mut impl FnMut(&mut [u8]) -> usize,
    ) -> Result<usize, VmError> {
        let machine = self.source.machine();
        let whole = start == 0 && end == PAGE_SIZE;
        let frame = match self.get(index)? {
            Some(frame) => frame,
            None if whole => return self.write_new_page(index, f),
            None => self.get_or_fill(index, NodePolicy::Local)?.0,
        };
        let written = machine.with_bytes(&frame, |bytes| f(&mut bytes[start..end])).min(end - start);
        self.keep_written(index, &frame, start..start + written);
        Ok(written)
    }

    /// A page that is about to be overwritten whole is neither zeroed nor read first.
    fn write_new_page(&self, index: u64, f: &mut impl FnMut(&mut [u8]) -> usize) -> Result<usize, VmError> {
        let machine = self.source.machine();
        let frame = Frame::<CacheKind, S>::allocate(self.source)?;
        let written = machine.with_bytes(&frame, |bytes| {
            // If the copy is short, the frame's old bytes must not be visible.
            let written = f(&mut bytes[..]).min(PAGE_SIZE);
            bytes[written..].fill(0);
            written
        });
        if written == 0 {
            return Ok(0);
        }
        let now = if written < PAGE_SIZE && self.store.is_some() {
            let (old, _) = self.get_or_fill(index, NodePolicy::Local)?;
            self.copy_part(&frame, &old, 0..written);
            old
        } else {
            let pfn = frame.pfn();
            // Another task may have made the page meanwhile, and mapped it, or it is in the swap:
            // then the bytes are written to that page.
            let mine = frame.try_clone().map_err(|_| VmError::NoMemory)?;
            let now = match self.insert(index, frame)? {
                Some(now) => now,
                None => self.get_or_fill(index, NodePolicy::Local)?.0,
            };
            if now.pfn() != pfn {
                self.copy_part(&mine, &now, 0..written);
            }
            now
        };
        // The frame is held until then: a clean page without a holder may be evicted.
        self.keep_written(index, &now, 0..written);
        Ok(written)
    }

    fn copy_part(&self, from: &Frame<CacheKind, S>, to: &Frame<CacheKind, S>, part: Range<usize>) {
        let copy = |to: &mut [u8; PAGE_SIZE], from: &[u8; PAGE_SIZE]| {
            to[part.clone()].copy_from_slice(&from[part]);
        };
        self.source.machine().with_two(to, from, copy);
    }

    /// Makes sure that the store gets the bytes `part` of page `index`, which were written to
    /// `frame`. If the page has left the cache meanwhile, the bytes are copied to its present
    /// frame. If it can get no frame, they are lost, and the loss is
    /// [reported](PageCache::tell_errors) to the file's holders.
    pub(super) fn keep_written(&self, index: u64, frame: &Frame<CacheKind, S>, part: Range<usize>) {
        if self.store.is_none() || part.is_empty() || self.mark_frame(index, frame.pfn(), Mark::Dirty) {
            return;
        }
        if self.write_again(index, frame, part).is_err() {
            self.errors.note();
        }
    }

    #[cold]
    #[inline(never)]
    fn write_again(
        &self,
        index: u64,
        frame: &Frame<CacheKind, S>,
        part: Range<usize>,
    ) -> Result<(), VmError> {
        loop {
            let (now, _) = self.get_or_fill(index, NodePolicy::Local)?;
            self.copy_part(frame, &now, part.clone());
            if self.mark_frame(index, now.pfn(), Mark::Dirty) {
                return Ok(());
            }
        }
    }
}
