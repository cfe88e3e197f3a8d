//! Bytes that a task draws from the heap's reserve, summed and asserted.
//!
//! At its beginning a system call has the heap set [`heap::CALL_RESERVE`] bytes aside
//! ([`heap::ensure`]), so that objects of fixed size ([`freehold_collections::reserve`]) cannot
//! fail in the middle of it; a long call does so again between its steps
//! ([`crate::sched::checkpoint`]). That holds only while the sum of such objects since then stays
//! below the reserve. Where the heap is checked ([`heap::CHECKED`], the QUICK kernel), each
//! infallibly made object of up to 2048 bytes is added to its task's sum. A sum that exceeds the
//! reserve ends the kernel. An object counts with the bytes that the heap spends, rounded up to its
//! sizes. The sum is an upper bound. Objects that are freed meanwhile still count, and so do short
//! lists of the mm crates, which handle a failure without declaring it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::hw::heap;
use crate::hw::memory::OutOfMemory;

/// The largest sum since boot.
static LARGEST: AtomicU64 = AtomicU64::new(0);

/// A task's sum since the reserve was set aside for it.
#[derive(Debug, Default)]
pub struct Drawn(AtomicU32);

impl Drawn {
    /// Adds an object of so many bytes.
    pub fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u32, Ordering::Relaxed);
    }
    /// The reserve is full, or its use over: the sum begins anew.
    ///
    /// # Panics
    /// When it was more than was set aside.
    pub fn settle(&self) {
        let drawn = self.0.swap(0, Ordering::Relaxed);
        LARGEST.fetch_max(drawn.into(), Ordering::Relaxed);
        assert!(
            drawn as usize <= heap::CALL_RESERVE,
            "{drawn} bytes of small objects are more than a call's reserve"
        );
    }
}

/// Runs a system call with its reserve set aside; `drawn` is its task's.
///
/// # Errors
/// Where nothing could be set aside; `call` did not run.
#[inline]
pub fn with<R>(drawn: &Drawn, call: impl FnOnce() -> R) -> Result<R, OutOfMemory> {
    // Objects that the task made outside of calls had no reserve.
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

/// The largest sum since boot, in bytes; 0 where the heap is not checked.
pub fn largest() -> u64 {
    LARGEST.load(Ordering::Relaxed)
}
