//! Write-back errors, which are reported once to every open file: Linux' `errseq_t` (lib/errseq.c,
//! Documentation/core-api/errseq.rst).
//!
//! A page that its store refuses is clean afterwards, as on Linux. Otherwise the write would be
//! retried for ever, writers that wait because of too many dirty pages would never continue, and
//! the page's memory could never be freed. So the loss is reported instead: fsync(2) fails on each
//! open file that has not reported it yet or, if none has, on the next one that is opened.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_paging::Memory;

use super::PageCache;
use crate::VmError;

/// The latest error was reported to a file. The bits above count errors; several errors before a
/// report count as one.
const TOLD: u64 = 1;

/// Write errors that the pages of a cache have met.
#[derive(Debug, Default)]
pub(super) struct WriteErrors(AtomicU64);

/// Errors that were reported to one open file.
#[derive(Debug)]
pub struct ErrorsTold(AtomicU64);

impl WriteErrors {
    /// Notes that the store has refused a page.
    pub(super) fn note(&self) {
        let next = |now: u64| (now == 0 || now & TOLD != 0).then(|| (now | TOLD) + 1);
        // Nothing changes if the previous error was not reported to any file.
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
    }
}

impl<S: Memory> PageCache<S> {
    /// Returns the state for a file that is opened now: later errors will be reported to it, and an
    /// earlier one that was not reported to any file.
    pub fn errors_told(&self) -> ErrorsTold {
        let now = self.errors.0.load(Ordering::Acquire);
        ErrorsTold(AtomicU64::new(if now & TOLD != 0 { now } else { 0 }))
    }

    /// Reports errors to an open file that were not reported to it yet.
    ///
    /// # Errors
    /// [`VmError::Io`], once, if the store has refused pages since the file was opened or since the
    /// last report.
    pub fn tell_errors(&self, told: &ErrorsTold) -> Result<(), VmError> {
        if self.errors.0.load(Ordering::Acquire) == told.0.load(Ordering::Acquire) {
            return Ok(());
        }
        let now = self.errors.0.fetch_or(TOLD, Ordering::AcqRel) | TOLD;
        // If two tasks call this for one file at once, only one gets the error.
        if told.0.swap(now, Ordering::AcqRel) == now { Ok(()) } else { Err(VmError::Io) }
    }
}
