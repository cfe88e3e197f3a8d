//! A CPU's window of 2 MiB, for a whole pageblock. It is forgotten as it closes.

use core::sync::atomic::Ordering;

use freehold_machine::{
    Cpus, PAGE_SIZE, PAGEBLOCK_FRAMES, PAGEBLOCK_ORDER, PfnRange, PhysicalBytes, VirtAddr,
};

use super::tables::{self, LARGE};
use super::windows::{WINDOW, is_off, may_open};
use super::{direct, layout, pluggable, wiping};
use crate::{X86, boot, cpu, registers};

const BLOCK_BYTES: u64 = PAGEBLOCK_FRAMES * PAGE_SIZE as u64;

/// The window of 2 MiB of a CPU: in the upper half of the area.
pub(super) fn large_base(cpu: usize) -> VirtAddr {
    VirtAddr(super::layout().windows + layout::WINDOWS_SPAN / 2 + cpu as u64 * BLOCK_BYTES)
}

/// Shows `f` the bytes of a whole pageblock that is outside the direct map, in a window of 2 MiB.
/// Returns `false`, and does nothing, if a part of the block is not accessible memory, or this CPU
/// has no windows yet. The caller owns the block.
fn with_block(block: PfnRange, f: impl FnOnce(*mut u8)) -> bool {
    let is_memory = boot::info().is_plain_run(block) || pluggable::is_plugged(block.start);
    if is_memory && is_off() {
        f(tables::frame_ptr(block.start));
        return true;
    }
    if !is_memory || direct::touches(block) {
        return false;
    }
    let pinned = X86.pin();
    let per_cpu = cpu::this();
    let entry = per_cpu.windows.large.load(Ordering::Relaxed);
    assert!(may_open(), "a window in an interrupt");
    // SAFETY: null, or the entry of this CPU in a table that is never freed.
    let Some(entry) = (unsafe { entry.as_ref() }) else { return false };
    entry.store(tables::leaf(block.start, WINDOW | LARGE), Ordering::Release);
    let address = large_base(pinned.cpu().0.into()).0;
    // The window was flushed when it last closed. No other user of it can interrupt this code,
    // since interrupts open no windows.
    f(address as *mut u8);
    entry.store(0, Ordering::Relaxed);
    registers::invlpg(address);
    drop(pinned);
    true
}

/// Whether these frames are a whole pageblock.
pub(super) fn is_block(frames: PfnRange) -> bool {
    frames.len() == PAGEBLOCK_FRAMES && frames.start.is_aligned(PAGEBLOCK_ORDER)
}

/// Zeroes a pageblock; `false`, and nothing done, as [`with_block`].
pub(super) fn zero_block(block: PfnRange) -> bool {
    // SAFETY: the 2 MiB that are shown belong to the caller.
    with_block(block, |bytes| unsafe { wiping::wipe_block(bytes) })
}

/// Copies `bytes`, a page for each frame, to frames that the caller owns: a whole pageblock in one
/// window, others in a window each.
pub(super) fn fill(frames: PfnRange, bytes: &[u8]) {
    assert!(bytes.len() == frames.len() as usize * PAGE_SIZE);
    // SAFETY: `bytes` has as many bytes as the frames, which are shown for stores, and which the
    // caller owns: nothing else refers to them.
    let copy = |to: *mut u8| unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    if is_block(frames) && with_block(frames, copy) {
        return;
    }
    for (frame, page) in frames.iter().zip(bytes.as_chunks::<PAGE_SIZE>().0) {
        X86.with_bytes(frame, |to| to.copy_from_slice(page));
    }
}
