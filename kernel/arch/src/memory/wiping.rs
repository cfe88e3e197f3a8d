//! The code that wipes free frames.

use core::ops::Range;

#[cfg(target_os = "none")]
use freehold_machine::{PAGE, PAGEBLOCK_FRAMES};

// This is the only code that stores to free frames, which it wipes; an observer is told its
// address.
#[cfg(target_os = "none")]
core::arch::global_asm!(
    ".section .text.freehold_wipe_block, \"ax\"",
    ".globl freehold_wipe_block",
    "freehold_wipe_block:",
    "mov ecx, {words}",
    "xor eax, eax",
    "rep stosq",
    "ret",
    ".globl freehold_wipe_block_end",
    "freehold_wipe_block_end:",
    ".text",
    words = const PAGEBLOCK_FRAMES * PAGE / 8,
);

#[cfg(target_os = "none")]
unsafe extern "C" {
    /// Zero 2 MiB from `start` on.
    fn freehold_wipe_block(start: *mut u8);
    static freehold_wipe_block_end: u8;
}

#[cfg(not(target_os = "none"))]
unsafe fn freehold_wipe_block(_start: *mut u8) {
    unreachable!("frames are wiped on the machine only")
}

/// The addresses of the code that wipes free frames.
#[cfg(target_os = "none")]
pub(crate) fn wiping_code() -> Range<u64> {
    freehold_wipe_block as *const () as u64..&raw const freehold_wipe_block_end as u64
}
#[cfg(not(target_os = "none"))]
pub(crate) fn wiping_code() -> Range<u64> {
    0..0
}

/// Zeroes 2 MiB from `start` on.
///
/// # Safety
/// The bytes are writable and belong to the caller.
pub(super) unsafe fn wipe_block(start: *mut u8) {
    // SAFETY: as above.
    unsafe { freehold_wipe_block(start) };
}
