//! Bytes of consecutive frames: through windows on the pages of a transfer, or through the direct
//! map.
//!
//! **Proof.** A window opens on a page of a block whose record says that it is memory for devices'
//! transfers. One check covers all pages of a block: only the record of its first frame names the
//! owner.
//!
//! **Nesting.** While such a window is open, its CPU can open others on programs' frames as usual,
//! since no frame belongs to a program and to a transfer at once. A copy needs both windows. So
//! windows on transfers count in the preemption count's fourth byte. There is one at a time.

use core::ops::Range;
use core::ptr::slice_from_raw_parts_mut;

use freehold_machine::{
    BLOCK_ORDER_MASK, BLOCK_ORDER_SHIFT, BOUNCE_ORDER, BOUNCE_OWNER, PAGE_SIZE, Pfn, PfnRange, page_by_page,
};

use super::windows::{self, INTERRUPTS, OPEN, READING, Reached, TRANSFER, WINDOW, record};
use super::{direct, tables};
use crate::{X86, boot, cpu};

/// Returns the end of the block with this frame, if it is memory for transfers and outside the
/// direct map. Most blocks have the largest size, so that size is tried first.
fn end_of_transfers(frame: Pfn) -> Option<Pfn> {
    if windows::is_off() {
        return None;
    }
    (0..=BOUNCE_ORDER).rev().find_map(|order| {
        let head = Pfn(frame.0 >> order << order);
        let word = record(head);
        let end = head.offset(1 << (word >> BLOCK_ORDER_SHIFT & BLOCK_ORDER_MASK));
        (word & 15 == BOUNCE_OWNER && frame < end).then_some(end)
    })
}

/// Opens a window on a page of a transfer.
///
/// # Panics
/// In an interrupt; if this CPU has such a window already, or has no windows yet.
#[inline(always)]
fn reach<const BITS: u64>(frame: Pfn) -> Reached<TRANSFER> {
    cpu::count_up::<TRANSFER>();
    // No interrupt is being served, and no other such window is open.
    let count = cpu::preemption_count();
    if count & (INTERRUPTS | u32::MAX << 25) != 0 {
        refuse();
    }
    match windows::take_slot() {
        Some(slot) => windows::show(slot, frame, BITS),
        None => reach_slowly(frame, BITS, count),
    }
}

/// Opens a window in another run of slots; `count` is the preemption count.
#[cold]
#[inline(never)]
fn reach_slowly(frame: Pfn, bits: u64, count: u32) -> Reached<TRANSFER> {
    let windows = &cpu::this().windows;
    let slot = windows.take(|| {
        assert!(windows.exist(), "no windows on this CPU yet");
        // The first window after the CPU idled comes here, and reading all entries costs as much
        // as the copy of a page.
        if count & (TRANSFER - 1) < OPEN { 0 } else { windows.open() }
    });
    windows.begin_run(slot, frame, bits)
}

#[cold]
#[inline(never)]
fn refuse() -> ! {
    assert!(windows::may_open(), "a window in an interrupt");
    panic!("two windows on pages of transfers");
}

/// Calls `f` with the bytes `range`, counted from the first byte of `first`, up to the first byte
/// that is not memory for transfers. Returns the position of that byte.
#[inline]
fn each_page<const BITS: u64>(first: Pfn, range: Range<usize>, mut f: impl FnMut(usize, *mut [u8])) -> usize {
    let mut at = range.start;
    while at < range.end
        && let Some(end) = end_of_transfers(first.offset((at / PAGE_SIZE) as u64))
    {
        let end = range.end.min((end.0 - first.0) as usize * PAGE_SIZE);
        while at < end {
            let offset = at % PAGE_SIZE;
            let length = (PAGE_SIZE - offset).min(end - at);
            let reached = reach::<BITS>(first.offset((at / PAGE_SIZE) as u64));
            let start = reached.bytes.cast::<u8>().wrapping_add(offset);
            f(at - range.start, slice_from_raw_parts_mut(start, length));
            at += length;
        }
    }
    at
}

/// [`PhysicalBytes::with_run`](freehold_machine::PhysicalBytes::with_run).
pub(super) fn with_run(first: Pfn, range: Range<usize>, mut f: impl FnMut(usize, &mut [u8])) {
    let at = each_page::<WINDOW>(first, range.clone(), |before, bytes| {
        // SAFETY: during the call the window shows this page of a transfer, no other window of this
        // CPU does, and the callers of the trait own the frames that they name.
        f(before, unsafe { &mut *bytes });
    });
    directly(first, range, at, f);
}

/// [`PhysicalBytes::read_run`](freehold_machine::PhysicalBytes::read_run).
pub(super) fn read_run(first: Pfn, range: Range<usize>, mut f: impl FnMut(usize, &[u8])) {
    let at = each_page::<READING>(first, range.clone(), |before, bytes| {
        // SAFETY: as in `with_run`.
        f(before, unsafe { &*bytes });
    });
    directly(first, range, at, |before, bytes| f(before, bytes));
}

/// Calls `f` with the bytes `range` from byte `at` on: all at once if the direct map holds them,
/// else page by page.
fn directly(first: Pfn, range: Range<usize>, at: usize, mut f: impl FnMut(usize, &mut [u8])) {
    if at == range.end {
        return;
    }
    let (before, left) = (at - range.start, at..range.end);
    let pages = |bytes: usize| first.offset((bytes / PAGE_SIZE) as u64);
    let frames = PfnRange::new(pages(left.start), pages(left.end + PAGE_SIZE - 1));
    if !boot::info().is_plain_run(frames) || !direct::holds(frames) {
        return page_by_page(X86, first, left, |more, bytes| f(before + more, bytes));
    }
    let start = tables::frame_ptr(first).wrapping_add(left.start);
    // SAFETY: the direct map holds all of the frames side by side, as long as they are the
    // kernel's: the callers of the trait own the frames that they name.
    f(before, unsafe { core::slice::from_raw_parts_mut(start, left.len()) });
}
