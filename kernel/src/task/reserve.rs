//! Bytes that a task draws from the heap's reserve, summed and asserted.
//!
//! At its beginning a system call reserves [`heap::CALL_RESERVE`] bytes of the heap
//! ([`heap::ensure`]). So allocations of fixed-size objects ([`freehold_collections::reserve`])
//! cannot fail in the middle of the call. A long call refills the reserve between its steps
//! ([`crate::sched::checkpoint`]). This guarantee holds only while the sum of such objects since
//! then stays below the reserve. If the heap is checked ([`heap::CHECKED`], the QUICK kernel), each
//! infallibly made object of up to 2048 bytes is added to its task's sum. A sum that exceeds the
//! reserve makes the kernel panic. An object counts with the bytes that the heap spends, rounded up
//! to its size classes. The sum is an upper bound. Objects that are freed meanwhile still count,
//! and so do short lists of the mm crates, which handle an allocation failure but do not declare
//! it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::hw::heap;
use crate::hw::memory::OutOfMemory;

/// The largest sum since boot.
static LARGEST: AtomicU64 = AtomicU64::new(0);

/// Sum of a task's allocations since its reserve was filled.
#[derive(Debug, Default)]
pub struct Drawn(AtomicU32);

impl Drawn {
    /// Adds an object of `bytes` bytes.
    pub fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u32, Ordering::Relaxed);
    }
    /// Ends the use of a reserve, or refills it: the sum starts from zero again.
    ///
    /// # Panics
    /// If the sum is larger than the reserve.
    pub fn settle(&self) {
        let drawn = self.0.swap(0, Ordering::Relaxed);
        LARGEST.fetch_max(drawn.into(), Ordering::Relaxed);
        assert!(
            drawn as usize <= heap::CALL_RESERVE,
            "{drawn} bytes of small objects are more than a call's reserve"
        );
    }
}

/// Runs a system call with a filled reserve. `drawn` is its task's sum.
///
/// # Errors
/// If the reserve could not be filled; `call` did not run.
#[inline]
pub fn with<R>(drawn: &Drawn, call: impl FnOnce() -> R) -> Result<R, OutOfMemory> {
    // Discard the sum of objects that the task made outside of calls, without a reserve.
    if heap::CHECKED {
        drawn.0.store(0, Ordering::Relaxed);
    }
    heap::ensure(heap::CALL_RESERVE)?;
    let result = call();
    if heap::CHECKED {
        drawn.settle();
    }
    Ok(result)
}

/// Returns the largest sum since boot, in bytes; 0 if the heap is not checked.
pub fn largest() -> u64 {
    LARGEST.load(Ordering::Relaxed)
}
