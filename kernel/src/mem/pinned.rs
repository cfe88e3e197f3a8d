//! A run of a program's bytes that a device may use: pinned, page by page.
//!
//! Invariant: while a [`PinnedRun`] lives, the frames under it are the pages' frames. Forks copy, reclaim and the
//! write-protecting calls pass by, and an unmapped page's frame lives on until the pins are gone.

use alloc::vec::Vec;

use freehold_arch::X86;
use freehold_bounce::FrameBytes;
use freehold_machine::{PAGE_SIZE, Pfn, VirtAddr};
use freehold_vm::{FaultError, PinAccess, PinnedPage};

use super::{Frames, Space};
use crate::{Errno, Result};

/// The most bytes that one run has.
pub const MAX_RUN: usize = 128 << 10;

/// Pinned bytes of a program.
pub struct PinnedRun {
    /// Held for the pins in them.
    _pages: Vec<PinnedPage<Frames>>,
    places: Vec<Pfn>,
    /// The first byte's place in the first frame.
    start: usize,
    length: usize,
}

impl PinnedRun {
    /// Pin the bytes from `address` on: `length` of them, or fewer where something ends before, at most [`MAX_RUN`].
    /// Faults pages in and may sleep; the caller holds no lock of `space`'s.
    ///
    /// # Errors
    /// `EFAULT` if not the first page can be pinned, `ENOMEM`.
    pub fn new(space: &Space, address: u64, length: usize, access: PinAccess) -> Result<Self> {
        let start = address as usize % PAGE_SIZE;
        let length = length.min(MAX_RUN);
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
        Ok(Self { _pages: pages, places, start, length })
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

impl From<FaultError> for Errno {
    fn from(error: FaultError) -> Self {
        match error {
            FaultError::Segv(_) | FaultError::Bus => Self::EFAULT,
            FaultError::OutOfMemory => Self::ENOMEM,
        }
    }
}
