//! Tells the heap the purpose of this crate's allocations.

use alloc::collections::TryReserveError;

use crate::AllocError;

#[cfg(target_os = "none")]
#[allow(unsafe_code)]
// SAFETY: `kernel/arch/src/heap` defines the function with this signature.
unsafe extern "Rust" {
    /// Declares the purpose of this CPU's allocations from now on. Returns the purpose before.
    safe fn freehold_heap_use(purpose: u8) -> u8;
}

/// The caller handles a failure; `heap_use::FALLIBLE` of the heap.
const FALLIBLE: u8 = 1;

#[cfg(all(not(target_os = "none"), not(test)))]
fn freehold_heap_use(_purpose: u8) -> u8 {
    0
}

#[cfg(test)]
use crate::tests::freehold_heap_use;

/// Allocates inside of `body`, which handles a failure and does not sleep.
///
/// # Errors
/// [`AllocError`] if `body` has no memory or, on the host, a test requested a failure.
#[inline]
pub fn fallibly(body: impl FnOnce() -> Result<(), TryReserveError>) -> Result<(), AllocError> {
    #[cfg(feature = "inject")]
    if crate::inject::fails() {
        return Err(AllocError);
    }
    let before = freehold_heap_use(FALLIBLE);
    let result = body();
    freehold_heap_use(before);
    result.map_err(|_| AllocError)
}
