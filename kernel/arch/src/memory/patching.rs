//! The patching window: the only place where text is ever mapped writable, each time for a single
//! store.
//!
//! It is a page in the windows' area that belongs to no CPU. [`crate::watch`] tells the observer of
//! the machine its address and which code stores there. The patching CPU holds the right to all
//! copies of text ([`freehold_replica::Replicas::patch`]), so one CPU at a time uses the window.
//! Other CPUs may cache its translation although none of them uses it, so the protocol flushes it
//! there after each phase.

use core::ops::Range;
use core::sync::atomic::Ordering;

use freehold_machine::{Cpus, Flush, PAGE_SIZE, Pfn, Tlb, VirtAddr};

use super::tables::{self, ACCESSED, DIRTY, NO_EXECUTE, PRESENT, WRITABLE};
use super::{OutOfMemory, direct, layout};
use crate::{X86, cpu, registers};

const OPEN: u64 = PRESENT | WRITABLE | ACCESSED | DIRTY | NO_EXECUTE;

/// Address of the window: after the windows of 4 KiB of all CPUs.
pub(crate) fn window() -> VirtAddr {
    VirtAddr(layout().windows + super::layout::WINDOWS_SPAN / 4)
}

/// Makes the window's table, if it does not exist yet.
///
/// # Errors
/// If there is no memory for it.
pub(crate) fn prepare() -> Result<(), OutOfMemory> {
    tables::table_at(window(), 1, &mut || super::alloc_frames(0)).map(|_| ())
}

/// Stores `bytes` to a frame of text, from `offset` on. [`prepare`] was called.
pub(crate) fn store(frame: Pfn, offset: usize, bytes: &[u8]) {
    // SAFETY: these are the bytes of a slice.
    unsafe { copy(frame, offset, bytes.as_ptr(), bytes.len()) };
}

/// Copies `count` bytes at `from` to a frame of text or read-only data, from `offset` on.
/// [`prepare`] was called.
///
/// # Safety
/// There are `count` bytes at `from`.
pub(super) unsafe fn copy(frame: Pfn, offset: usize, from: *const u8, count: usize) {
    assert!(offset + count <= PAGE_SIZE && !direct::contains(frame), "{frame:?} is no frame of text");
    let entry = tables::find_entry::<1>(window()).expect("the patching window has its table");
    let pinned = X86.pin();
    entry.store(tables::leaf(frame, OPEN), Ordering::Release);
    let to = (window().0 + offset as u64) as *mut u8;
    // SAFETY: the window was just opened on the frame, whose copy of text the caller changes; this
    // CPU flushed the window when it last closed. The caller's protocol covers CPUs that run the
    // bytes. The caller says that the bytes exist.
    unsafe { freehold_patch_text(to, from, count) };
    entry.store(0, Ordering::Release);
    registers::invlpg(window().0);
    drop(pinned);
}

/// Flushes the window on every CPU. INVLPG is a serialising instruction (Intel SDM volume 3A, 9.3;
/// AMD APM volume 2, 7.6.4), and so is the IRET from the interrupt that requests the flush.
pub(super) fn synchronise() {
    X86.flush_on(cpu::online(), Flush::Range { start: window(), pages: 1 });
}

// This is the only code that stores to text; an observer is told its address.
#[cfg(target_os = "none")]
core::arch::global_asm!(
    ".section .text.freehold_patch_text, \"ax\"",
    ".globl freehold_patch_text",
    "freehold_patch_text:",
    "mov rcx, rdx",
    "rep movsb",
    "ret",
    ".globl freehold_patch_text_end",
    "freehold_patch_text_end:",
    ".text",
);

#[cfg(target_os = "none")]
unsafe extern "C" {
    /// Copies `count` bytes.
    fn freehold_patch_text(to: *mut u8, from: *const u8, count: usize);
    static freehold_patch_text_end: u8;
}

#[cfg(not(target_os = "none"))]
unsafe fn freehold_patch_text(_to: *mut u8, _from: *const u8, _count: usize) {
    unreachable!("text is patched on the machine only")
}

/// The addresses of the code that stores to text.
#[cfg(target_os = "none")]
pub(crate) fn storing_code() -> Range<u64> {
    freehold_patch_text as *const () as u64..&raw const freehold_patch_text_end as u64
}
#[cfg(not(target_os = "none"))]
pub(crate) fn storing_code() -> Range<u64> {
    0..0
}
