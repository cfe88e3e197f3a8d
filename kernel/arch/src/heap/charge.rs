//! Objects that are charged to accounts: memory that is allocated on behalf of one process.
//!
//! A *payer* is the number of an account, 0 for none. The payer of a slab's object is in its
//! block's table ([`slab::payer`]); the [`ObjectLedger`] records the payer of a block of whole
//! frames. So an object is returned to the account that was charged for it, whichever thread frees
//! it. Every allocation of a thread is charged, even if others use the object: a thread that makes
//! a table of the kernel grow pays for it.
//!
//! **Protocol.** Until charges [begin](begin) nothing here runs, and no object has a payer. From
//! then on no CPU gets objects into its first magazine, as with injected failures. So this module
//! sees each allocation and each release, and free objects are in a second magazine. Objects that
//! were in the first magazine before are handed out without a charge: at most a magazine per CPU.
//!
//! Linux' nearest relative is the vector of `obj_cgroup`s of a slab (mm/memcontrol.c).

use core::alloc::Layout;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

use freehold_machine::{PAGE_SIZE, Pfn};

use super::slab::{self, CLASSES};
use super::{RESERVE, frame_at, heap_use, order_for, this_use};
use crate::sync::Once;

/// Whether an allocation may be refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectNeed {
    /// The allocation may fail: the caller handles a failure.
    MayFail,
    /// The allocation may not fail: the reserve has memory for it.
    MustBe,
}

/// Charges objects. No function allocates or sleeps; spin locks may be held.
#[derive(Clone, Copy, Debug)]
pub struct ObjectLedger {
    /// Charges `bytes` bytes for the running thread. Returns the payer, or `None` if the payer is
    /// at its limit.
    pub charge: fn(usize, ObjectNeed) -> Option<u16>,
    /// Returns `bytes` bytes to the payer.
    pub uncharge: fn(u16, usize),
    /// Records the payer of a block of frames, by the block's first frame.
    pub set_block_payer: fn(Pfn, u16),
    /// Returns the payer of a block and forgets it.
    pub take_block_payer: fn(Pfn) -> u16,
}

static BEGUN: AtomicBool = AtomicBool::new(false);
static LEDGER: Once<ObjectLedger> = Once::new();

/// Whether objects are charged.
pub(super) fn has_begun() -> bool {
    BEGUN.load(Ordering::Relaxed)
}

/// Turns charges on from now on. One caller at a time; the first ledger stays.
pub fn begin(ledger: ObjectLedger) {
    if !has_begun() {
        // The sizes come first, so that no object with a payer enters the first magazine.
        super::empty_magazines();
        LEDGER.set(ledger);
        BEGUN.store(true, Ordering::Release);
    }
}

/// Returns the bytes of memory that a layout takes.
fn bytes_for(layout: Layout) -> usize {
    slab::class_for(layout).map_or_else(|| PAGE_SIZE << order_for(layout), |class| CLASSES[class].size)
}

/// Makes an allocation that is charged. Returns null on failure.
pub(super) fn allocate(layout: Layout) -> *mut u8 {
    let Some(ledger) = LEDGER.get() else { return super::find(layout) };
    let class = slab::class_for(layout);
    let is_reserved = order_for(layout) < RESERVE.len() as u32;
    let need = match this_use().load(Ordering::Relaxed) {
        purpose if purpose != heap_use::FALLIBLE && is_reserved => ObjectNeed::MustBe,
        _ => ObjectNeed::MayFail,
    };
    let Some(payer) = (ledger.charge)(bytes_for(layout), need) else { return ptr::null_mut() };
    let object = super::find(layout);
    if payer == 0 {
        return object;
    }
    match class {
        _ if object.is_null() => (ledger.uncharge)(payer, bytes_for(layout)),
        // SAFETY: the object was handed out just now, for this class.
        Some(class) => unsafe { slab::payer(class, object) }.store(payer, Ordering::Relaxed),
        None => (ledger.set_block_payer)(frame_at(object), payer),
    }
    object
}

/// Called before an object of a slab is freed.
///
/// # Safety
/// The object is of the class and still the caller's.
pub(super) unsafe fn uncharge_object(class: usize, object: *mut u8) {
    // SAFETY: the caller's promise.
    let slot = unsafe { slab::payer(class, object) };
    let payer = slot.load(Ordering::Relaxed);
    if payer != 0
        && let Some(ledger) = LEDGER.get()
    {
        slot.store(0, Ordering::Relaxed);
        (ledger.uncharge)(payer, CLASSES[class].size);
    }
}

/// Called before a block of frames for `layout` is freed.
#[cold]
pub(super) fn uncharge_block(first: Pfn, layout: Layout) {
    if let Some(ledger) = LEDGER.get() {
        let payer = (ledger.take_block_payer)(first);
        if payer != 0 {
            (ledger.uncharge)(payer, bytes_for(layout));
        }
    }
}
