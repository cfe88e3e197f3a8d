//! A run of a program's bytes that a device may use: pinned, page by page.
//!
//! Invariant: while a [`PinnedRun`] lives, the frames under it are the pages' frames. Forks copy, reclaim and the
//! write-protecting calls pass by, and an unmapped page's frame lives on until the pins are gone.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use freehold_arch::X86;
use freehold_bounce::{FrameBytes, Original, OriginalMut};
use freehold_machine::{PAGE_SIZE, Pfn, VirtAddr};
use freehold_vm::{FaultError, OfFile, PinAccess, PinnedPage};

use super::{Frames, Space};
use crate::user::{Iovecs, MemoryRuns, Sink, Source};
use crate::{Errno, Result};

static ACQUIRED: AtomicU64 = AtomicU64::new(0);
static RELEASED: AtomicU64 = AtomicU64::new(0);

/// One pinned page.
pub struct PinnedOne(PinnedPage<Frames>);

impl PinnedOne {
    /// Pin the page at `address`. Faults it in and may sleep; the caller holds no lock of `space`'s.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    pub fn new(space: &Space, address: VirtAddr, access: PinAccess) -> Result<Self> {
        let pinned = space.lock().pin(address, access)?;
        ACQUIRED.fetch_add(1, Ordering::Relaxed);
        Ok(Self(pinned))
    }
    /// Whether it is of truly shared memory.
    pub const fn of_file(&self) -> OfFile {
        self.0.of_file()
    }
    /// The frame.
    pub const fn pfn(&self) -> Pfn {
        self.0.pfn()
    }
}

impl Drop for PinnedOne {
    fn drop(&mut self) {
        RELEASED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Pinned bytes of a program.
pub struct PinnedRun {
    /// Held for the pins in them.
    _pages: Vec<PinnedPage<Frames>>,
    places: Vec<Pfn>,
    address: u64,
    /// The first byte's place in the first frame.
    start: usize,
    length: usize,
}

impl PinnedRun {
    /// Pin the bytes from `address` on: `length` of them, or fewer where something ends before. Faults
    /// pages in and may sleep; the caller holds no lock of `space`'s.
    ///
    /// # Errors
    /// `EFAULT` if not the first page can be pinned, `ENOMEM`.
    pub fn new(space: &Space, address: u64, length: usize, access: PinAccess) -> Result<Self> {
        let start = address as usize % PAGE_SIZE;
        let count = (start + length).div_ceil(PAGE_SIZE);
        let (mut pages, mut places) = (Vec::new(), Vec::new());
        pages.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
        places.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
        let first = VirtAddr(address).page_start();
        for page in 0..count as u64 {
            let at = first.checked_add(page * PAGE_SIZE as u64).ok_or(Errno::EFAULT);
            let pinned = at.and_then(|at| space.lock().pin(at, access).map_err(Errno::from));
            match pinned {
                Ok(pinned) => {
                    places.push(pinned.pfn());
                    pages.push(pinned);
                }
                Err(error) if pages.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        let length = length.min(pages.len() * PAGE_SIZE - start);
        ACQUIRED.fetch_add(pages.len() as u64, Ordering::Relaxed);
        Ok(Self { _pages: pages, places, address, start, length })
    }

    /// Pages that were pinned and unpinned since boot: `nr_foll_pin_acquired` and `nr_foll_pin_released`.
    pub fn totals() -> [u64; 2] {
        [&ACQUIRED, &RELEASED].map(|count| count.load(Ordering::Relaxed))
    }

    /// Where the bytes were when they were pinned.
    pub const fn address(&self) -> u64 {
        self.address
    }
    /// How many pages are pinned.
    pub const fn pages(&self) -> usize {
        self.places.len()
    }
    /// How many bytes are pinned.
    #[expect(clippy::len_without_is_empty, reason = "at least one page is pinned")]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// `length` of the bytes from `offset` on, for the DMA API.
    pub fn bytes(&self, offset: usize, length: usize) -> FrameBytes<'_, X86> {
        let first = self.start + offset;
        FrameBytes::new(X86, &self.places).starting_at(first).truncated(length.min(self.length - offset))
    }
}

impl Drop for PinnedRun {
    fn drop(&mut self) {
        RELEASED.fetch_add(self.places.len() as u64, Ordering::Relaxed);
    }
}

/// Pinned bytes that any task can fill or take from, in any address space: a [`Sink`] and a [`Source`].
#[derive(Clone)]
pub struct PinnedBytes {
    /// What is left: a range of each run's bytes, none empty.
    parts: Vec<(Arc<PinnedRun>, Range<usize>)>,
    /// The first part that is not used up.
    current: usize,
    left: usize,
}

impl PinnedBytes {
    /// The bytes `range` of `run`.
    ///
    /// # Errors
    /// `EFAULT` where the run has fewer, `ENOMEM`.
    pub fn part(run: Arc<PinnedRun>, range: Range<usize>) -> Result<Self> {
        let mut bytes = Self { parts: Vec::new(), current: 0, left: 0 };
        bytes.push(run, range)?;
        Ok(bytes)
    }

    /// Pin all runs of a program. Where a page cannot be pinned the bytes end.
    ///
    /// # Errors
    /// As [`PinnedRun::new`].
    pub fn pin(space: &Space, runs: &Iovecs, access: PinAccess) -> Result<Self> {
        let mut bytes = Self { parts: Vec::new(), current: 0, left: 0 };
        for (address, length) in runs.slices().iter().map(|slice| slice.place()).filter(|place| place.1 > 0) {
            match PinnedRun::new(space, address, length, access) {
                Ok(run) => {
                    let count = run.len();
                    bytes.push(Arc::new(run), 0..count)?;
                    if count < length {
                        break;
                    }
                }
                Err(error) if bytes.left == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(bytes)
    }

    fn push(&mut self, run: Arc<PinnedRun>, range: Range<usize>) -> Result<()> {
        if range.end > run.len() {
            return Err(Errno::EFAULT);
        }
        if !range.is_empty() {
            self.left += range.len();
            self.parts.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            self.parts.push((run, range));
        }
        Ok(())
    }

    /// Have `transfer` move bytes of the first part, at most `most`.
    fn next(
        &mut self,
        most: usize,
        transfer: impl FnOnce(&mut FrameBytes<'_, X86>) -> Result<()>,
    ) -> Result<usize> {
        let Some((run, range)) = self.parts.get_mut(self.current) else { return Ok(0) };
        let count = most.min(range.len());
        transfer(&mut run.bytes(range.start, count))?;
        range.start += count;
        self.left -= count;
        self.current += usize::from(range.start == range.end);
        Ok(count)
    }

    fn fill(&mut self, bytes: &[u8]) -> usize {
        let mut done = 0;
        while let rest = &bytes[done..]
            && !rest.is_empty()
        {
            let copied = self.next(rest.len(), |to| {
                to.copy_from(0, &rest[..to.length()]);
                Ok(())
            });
            match copied {
                Ok(count) if count > 0 => done += count,
                _ => break,
            }
        }
        done
    }

    fn drain(&mut self, bytes: &mut [u8]) -> usize {
        let mut done = 0;
        while let rest = &mut bytes[done..]
            && !rest.is_empty()
        {
            let most = rest.len();
            let copied = self.next(most, |from| {
                let count = from.length();
                from.copy_to(0, &mut rest[..count]);
                Ok(())
            });
            match copied {
                Ok(count) if count > 0 => done += count,
                _ => break,
            }
        }
        done
    }
}

impl MemoryRuns for PinnedBytes {
    fn left(&self) -> usize {
        self.left
    }
    fn is_aligned_to(&self, unit: usize) -> bool {
        self.parts[self.current..].iter().all(|(run, range)| {
            (run.start + range.start).is_multiple_of(unit) && range.len().is_multiple_of(unit)
        })
    }
    fn with_pinned(
        &mut self,
        most: usize,
        _unit: usize,
        _access: PinAccess,
        transfer: &mut dyn FnMut(&mut dyn OriginalMut) -> Result<()>,
    ) -> Result<usize> {
        self.next(most, |bytes| transfer(bytes))
    }
}

impl Sink for PinnedBytes {
    fn remaining(&self) -> usize {
        self.left
    }
    fn put(&mut self, bytes: &[u8]) -> Result<usize> {
        Ok(self.fill(bytes))
    }
    fn put_without_fault(&mut self, bytes: &[u8]) -> usize {
        self.fill(bytes)
    }
    fn fault_in(&mut self) -> Result<()> {
        Ok(())
    }
    fn memory(&mut self) -> Option<&mut dyn MemoryRuns> {
        Some(self)
    }
}

impl Source for PinnedBytes {
    fn remaining(&self) -> usize {
        self.left
    }
    fn take(&mut self, bytes: &mut [u8]) -> Result<usize> {
        Ok(self.drain(bytes))
    }
    fn take_without_fault(&mut self, bytes: &mut [u8]) -> usize {
        self.drain(bytes)
    }
    fn fault_in(&mut self) -> Result<()> {
        Ok(())
    }
    fn memory(&mut self) -> Option<&mut dyn MemoryRuns> {
        Some(self)
    }
}

impl From<FaultError> for Errno {
    fn from(error: FaultError) -> Self {
        match error {
            FaultError::Segv(_) | FaultError::Bus => Self::EFAULT,
            FaultError::OutOfMemory => Self::ENOMEM,
        }
    }
}
