//! Errors of writing back, which every open file is told once: Linux' `errseq_t` (lib/errseq.c,
//! Documentation/core-api/errseq.rst).
//!
//! A page that its store refuses is clean afterwards, as on Linux: it would be tried again for
//! ever, writers that are held up for too many dirty pages would never go on, and its memory would
//! never be free again. So the loss is told instead: fsync(2) fails on each open file that has not
//! been told of it, and on the next one that is opened if none was.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_paging::Memory;

use super::PageCache;
use crate::VmError;

/// A file has been told of the latest error. The bits above count errors; errors that come before
/// any file was told of one count as one.
const TOLD: u64 = 1;

/// Write errors that the pages of a cache have met.
#[derive(Debug, Default)]
pub(super) struct WriteErrors(AtomicU64);

/// Errors that one open file has been told of.
#[derive(Debug)]
pub struct ErrorsTold(AtomicU64);

impl WriteErrors {
    /// The store has refused a page.
    pub(super) fn note(&self) {
        let next = |now: u64| (now == 0 || now & TOLD != 0).then(|| (now | TOLD) + 1);
        // Nothing to do where no file was told of the one before.
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
    }
}

impl<S: Memory> PageCache<S> {
    /// For a file that is opened now: it will be told of later errors, and of an earlier one that
    /// no file was told of.
    pub fn errors_told(&self) -> ErrorsTold {
        let now = self.errors.0.load(Ordering::Acquire);
        ErrorsTold(AtomicU64::new(if now & TOLD != 0 { now } else { 0 }))
    }

    /// Tell an open file of errors that it has not been told of.
    ///
    /// # Errors
    /// [`VmError::Io`], once, where the store has refused pages since the file was opened or last
    /// told.
    pub fn tell_errors(&self, told: &ErrorsTold) -> Result<(), VmError> {
        if self.errors.0.load(Ordering::Acquire) == told.0.load(Ordering::Acquire) {
            return Ok(());
        }
        let now = self.errors.0.fetch_or(TOLD, Ordering::AcqRel) | TOLD;
        // Of two tasks that ask for one file at once, one is told.
        if told.0.swap(now, Ordering::AcqRel) == now { Ok(()) } else { Err(VmError::Io) }
    }
}
