//! Out of memory: first give back what costs nothing, then get more from the host, then take the
//! least used pages, then make room for the kernel, then kill the largest (`task::oom`).
//!
//! Memory of the host comes before a disk: where the machine may grow ([`hotplug`]) its user has
//! said that the memory is there for it, and it comes within milliseconds. A page that is swapped
//! out instead has to be read again, through a device, before each next use. Killing comes last,
//! when there is nothing left to reclaim ([`reclaim`] says when that is so).

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

/// Returns how often a task had to find memory before going on.
pub fn stalls() -> u64 {
    STALLS.load(Ordering::Relaxed)
}

/// Pages of disks that are given back before anything else is tried: 4 MiB.
const IDLE: u64 = 1024;

/// Finds memory without killing a process, except where an account is at its limit: then its own
/// processes may be killed. May sleep, for the host and for disks; the caller holds no address
/// space and no spin lock.
pub fn find_more() -> GrowthOutcome {
    if thread::current_was_injected() {
        // Nothing is missing: the failure is the caller's to tell.
        return GrowthOutcome::None;
    }
    STALLS.fetch_add(1, Ordering::Relaxed);
    if thread::is_current_dying() {
        // It needs no more memory than it takes to end, and others wait for what it has.
        return GrowthOutcome::None;
    }
    if let Some(account) = charge::take_refusal() {
        return charge::find_room(account);
    }
    // Where files' pages come back at once, programs' own memory can still go to the swap.
    let sources = if reclaim::is_in_vain() { Sources::Programs } else { Sources::All };
    let found = sources == Sources::All && reclaim::free_idle(IDLE) > 0
        || hotplug::grow() == GrowthOutcome::Grown
        || reclaim::free_some(sources) == ReclaimOutcome::Freed;
    // The freed frames are programs' and may be of no use to the kernel.
    let made = blocks::is_kernel_short() && blocks::make() == ReclaimOutcome::Freed;
    if found || made { GrowthOutcome::Grown } else { GrowthOutcome::None }
}

/// Returns whether memory may be short for a task.
fn is_scarce() -> bool {
    let nodes = (0..MAX_NODES).filter_map(|node| frames().level(NodeId(node as u8)));
    nodes.into_iter().any(|(free, marks)| free < marks.high) || blocks::is_none_whole()
}

/// A piece of memory of more than 2^this frames may well be missing though there is much: its
/// caller does without. Linux' PAGE_ALLOC_COSTLY_ORDER.
const COSTLY: u32 = 3;
/// The most attempts of a call that can also fail. Other tasks may be faster each time there is
/// memory again, but not always.
const TRIES: usize = 64;

/// The page allocator has nothing for the current task.
pub(super) fn note_denial(request: &Request) {
    if request.order.log2() <= COSTLY {
        thread::with_current(|task| {
            task.was_denied.store(true, Ordering::Relaxed);
            task.injection.note_denial();
        });
    }
}

/// `account` has all it may: no room for a block of so many frames of the current task's.
pub(super) fn note_refusal(frames: u64, account: AccountId) {
    if frames <= 1 << COSTLY {
        thread::with_current(|task| {
            task.was_denied.store(true, Ordering::Relaxed);
            task.refused_by.store(account, Ordering::Relaxed);
        });
    }
}

/// Returns whether the current task was denied memory since the last call. Another `ENOMEM` comes
/// from a limit, which no memory mends.
fn was_denied() -> bool {
    thread::with_current(|task| task.was_denied.swap(false, Ordering::Relaxed)).unwrap_or(false)
}

/// Notes that the current task's search is over and came to nothing: an `ENOMEM` from now on is
/// told to its program. For calls that look for memory between their steps, so that they are not
/// made again from their beginning.
pub fn forget_denial() {
    was_denied();
}

/// Make `attempt`, again while it fails because the page allocator had nothing for it and memory is
/// found: so no system call fails for want of memory that others could give. It leaves nothing
/// behind where it fails, and holds nothing that [`find_more`] must not meet.
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

/// Repeats an attempt. If it fails after memory was found, it needs a larger piece of memory, or
/// the kernel's: then a pageblock is made whole.
#[cold]
fn insist<T>(attempt: &mut dyn FnMut() -> Result<T>) -> Result<T> {
    for round in 0..TRIES {
        let made = round > 0 && blocks::is_none_whole() && blocks::make() == ReclaimOutcome::Freed;
        if thread::is_current_dying() {
            break;
        }
        // Memory that is not scarce now has become free since.
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
