//! Notes to the heap on the allocations of this crate.

use alloc::collections::TryReserveError;

use crate::AllocError;

#[cfg(target_os = "none")]
#[allow(unsafe_code)]
// SAFETY: `kernel/arch/src/heap` defines the function with this signature.
unsafe extern "Rust" {
    /// Declares the purpose of this CPU's allocations from now on. Returns the purpose before.
    safe fn freehold_heap_use(purpose: u8) -> u8;
}

/// The caller takes a failure as a value; `heap_use::FALLIBLE` of the heap.
const FALLIBLE: u8 = 1;

#[cfg(all(not(target_os = "none"), not(test)))]
fn freehold_heap_use(_purpose: u8) -> u8 {
    0
}

#[cfg(test)]
use crate::tests::freehold_heap_use;

/// Allocates inside of `body`, which takes a failure as a value and does not sleep.
///
/// # Errors
/// [`AllocError`] where `body` has no memory or, on the host, a test asked for it.
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
