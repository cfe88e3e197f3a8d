//! vmsplice: a program's pages in a pipe, without a copy.
//!
//! A page is pinned for reading, so its frame is the program's own and stays the page's: the reader
//! sees what the program stores meanwhile, and never what a child or parent stores after a fork
//! (the way in which references to shared frames leaked). Pages of truly shared memory are copied:
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

/// The runs of a program's memory that are on their way into a pipe.
pub struct Lender<'a> {
    space: Arc<ProcessSpace>,
    runs: &'a Iovecs,
    /// Which run, and how far in it.
    run: usize,
    done: usize,
    remaining: usize,
}

impl<'a> Lender<'a> {
    /// All of `runs`, of the current process.
    pub fn new(runs: &'a Iovecs) -> Self {
        let remaining = runs.slices().iter().map(|slice| slice.place().1).sum();
        Self { space: crate::task::current().process().space(), runs, run: 0, done: 0, remaining }
    }

    /// Bytes to come.
    pub const fn remaining(&self) -> usize {
        self.remaining
    }

    /// Put what is left of the next page into a new chunk of `ring`, which has room; how many
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
