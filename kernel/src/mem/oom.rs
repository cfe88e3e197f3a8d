//! Out of memory. The order of the steps is: free pure caches, get more memory from the host, evict
//! the least used pages, make room for the kernel, kill the largest process (`task::oom`).
//!
//! The host's memory has priority over a disk. If the machine may grow ([`hotplug`]), its user has
//! permitted that use, and the memory is added within milliseconds. A page that is swapped out has
//! to be read again, through a device, before its next use. Killing comes last, when there is
//! nothing left to reclaim ([`reclaim`] defines this).

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_frame::{AccountId, Request};
use freehold_machine::NodeId;
use freehold_machine::topology::MAX_NODES;

use super::charge;
use super::frames;
use super::hotplug::{self, GrowthOutcome};
use super::reclaim::{self, ReclaimOutcome, Sources, blocks};
use crate::sched::thread;
use crate::{Errno, Result, sched};

static STALLS: AtomicU64 = AtomicU64::new(0);

/// Returns how often a task had to find memory before it could continue.
pub fn stalls() -> u64 {
    STALLS.load(Ordering::Relaxed)
}

/// Number of pages of disks that are evicted before any other step: 4 MiB.
const IDLE: u64 = 1024;

/// Finds memory without killing a process. (If an account is at its limit, its own processes may be
/// killed.) May sleep, for the host and for disks; the caller holds no address space and no spin
/// lock.
pub fn find_more() -> GrowthOutcome {
    if thread::current_was_injected() {
        // No request was denied: the caller must report its failure.
        return GrowthOutcome::None;
    }
    STALLS.fetch_add(1, Ordering::Relaxed);
    if thread::is_current_dying() {
        // A task that is being killed needs little memory to end, and other tasks wait for its
        // memory.
        return GrowthOutcome::None;
    }
    if let Some(account) = charge::take_refusal() {
        return charge::find_room(account);
    }
    // If files' pages are read again at once, programs' own memory can still be swapped out.
    let sources = if reclaim::is_in_vain() { Sources::Programs } else { Sources::All };
    let found = sources == Sources::All && reclaim::free_idle(IDLE) > 0
        || hotplug::grow() == GrowthOutcome::Grown
        || reclaim::free_some(sources) == ReclaimOutcome::Freed;
    // The freed frames belong to programs and may be useless for the kernel.
    let made = blocks::is_kernel_short() && blocks::make() == ReclaimOutcome::Freed;
    if found || made { GrowthOutcome::Grown } else { GrowthOutcome::None }
}

/// Returns whether memory may be short for a task.
fn is_scarce() -> bool {
    let nodes = (0..MAX_NODES).filter_map(|node| frames().level(NodeId(node as u8)));
    nodes.into_iter().any(|(free, marks)| free < marks.high) || blocks::is_none_whole()
}

/// A contiguous block of more than 2^this frames may be unavailable even if much memory is free:
/// its caller has a fallback. Linux' PAGE_ALLOC_COSTLY_ORDER.
const COSTLY: u32 = 3;
/// Largest number of attempts of a call that can also fail. Other tasks may take newly freed memory
/// first each time, but not always.
const TRIES: usize = 64;

/// Records that the page allocator has denied a request of the current task.
pub(super) fn note_denial(request: &Request) {
    if request.order.log2() <= COSTLY {
        thread::with_current(|task| {
            task.was_denied.store(true, Ordering::Relaxed);
            task.injection.note_denial();
        });
    }
}

/// Records that `account` is at its limit, and refused a block of `frames` frames of the current
/// task.
pub(super) fn note_refusal(frames: u64, account: AccountId) {
    if frames <= 1 << COSTLY {
        thread::with_current(|task| {
            task.was_denied.store(true, Ordering::Relaxed);
            task.refused_by.store(account, Ordering::Relaxed);
        });
    }
}

/// Returns whether the current task was denied memory since the last call. Otherwise `ENOMEM` comes
/// from a limit, and more memory would not help.
fn was_denied() -> bool {
    thread::with_current(|task| task.was_denied.swap(false, Ordering::Relaxed)).unwrap_or(false)
}

/// Records that the current task's search for memory has failed: an `ENOMEM` from now on is
/// returned to its program. For calls that search for memory between their steps, so that they are
/// not repeated as a whole.
pub fn forget_denial() {
    was_denied();
}

/// Calls `attempt`, again as long as the page allocator denied it memory and memory is found. So no
/// system call fails for lack of memory that others could free. A failed attempt has no effects,
/// and the caller holds no lock that [`find_more`] takes.
///
/// # Errors
/// The last attempt's.
#[inline]
pub fn with_memory_found<T>(mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    match attempt() {
        Err(error) if error.is_want_of_memory() && was_denied() => insist(&mut attempt),
        outcome => outcome,
    }
}

/// Repeats an attempt. If it fails after memory was found, it needs a larger block, or memory for
/// the kernel: then a pageblock is made whole.
#[cold]
fn insist<T>(attempt: &mut dyn FnMut() -> Result<T>) -> Result<T> {
    for round in 0..TRIES {
        let made = round > 0 && blocks::is_none_whole() && blocks::make() == ReclaimOutcome::Freed;
        if thread::is_current_dying() {
            break;
        }
        // If memory is not scarce now, some has been freed since.
        if !made && (charge::is_refused() || is_scarce()) && find_more() == GrowthOutcome::None {
            break;
        }
        sched::yield_now();
        match attempt() {
            Err(error) if error.is_want_of_memory() && was_denied() => {}
            outcome => return outcome,
        }
    }
    if thread::is_current_dying() { Err(Errno::ENOMEM) } else { attempt() }
}
