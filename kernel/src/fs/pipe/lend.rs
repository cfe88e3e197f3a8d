//! vmsplice: a program's pages in a pipe, without a copy.
//!
//! A page is pinned for reading, so its frame belongs to this program alone and stays mapped there.
//! The reader sees what the program stores meanwhile, but never what a child or parent stores after
//! a fork (references to shared frames could leak that). Pages of truly shared memory are copied:
//! their frames are file pages, whose bytes the reader may be about to write.

use freehold_collections::Arc;
use freehold_machine::{PAGE_SIZE, VirtAddr};
use freehold_vm::OfFile;
use freehold_xpfo::Windows;

use super::page::BytePage;
use super::ring::PipeRing;
use crate::Result;
use crate::hw::Hardware;
use crate::mem::{PinnedOne, ProcessSpace};
use crate::user::Iovecs;

/// The runs of a program's memory that are being put into a pipe.
pub struct Lender<'a> {
    space: Arc<ProcessSpace>,
    runs: &'a Iovecs,
    /// The current run, and the offset in it.
    run: usize,
    done: usize,
    remaining: usize,
}

impl<'a> Lender<'a> {
    /// Makes a lender of all of `runs`, which belong to the current process.
    pub fn new(runs: &'a Iovecs) -> Self {
        let remaining = runs.slices().iter().map(|slice| slice.place().1).sum();
        Self { space: crate::task::current().process().space(), runs, run: 0, done: 0, remaining }
    }

    /// Number of bytes that are left.
    pub const fn remaining(&self) -> usize {
        self.remaining
    }

    /// Puts the rest of the next page into a new chunk of `ring`, which has room. Returns how many
    /// bytes.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    pub fn push(&mut self, ring: &mut PipeRing) -> Result<usize> {
        let (address, length) = loop {
            let Some(slice) = self.runs.slices().get(self.run) else { return Ok(0) };
            let (address, length) = slice.place();
            if self.done < length {
                break (address.wrapping_add(self.done as u64), length - self.done);
            }
            (self.run, self.done) = (self.run + 1, 0);
        };
        let start = address as usize % PAGE_SIZE;
        let count = length.min(PAGE_SIZE - start);
        let pinned = PinnedOne::new(&self.space, VirtAddr(address))?;
        let page = match pinned.of_file() {
            OfFile::No => BytePage::lent(pinned),
            OfFile::Yes => {
                let copy = BytePage::allocate()?;
                Hardware.copy(&pinned.held(), &copy.held());
                copy
            }
        };
        ring.push_page(page, start..start + count)?;
        self.done += count;
        self.remaining -= count;
        Ok(count)
    }
}
