//! Memory that comes and goes while the machine runs: who asks for it, and what is known of it.
//!
//! The task that plugs it in and unplugs it is `host::hotplug`. It is asked for **more** when little is left ([`tick`], well
//! above the watermarks) or when there is none ([`grow`], before anybody is killed).
//!
//! **Locks.** [`WORKING`] is held while memory changes; under it the page allocator's. The wake-ups take interrupt-safe locks only.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use freehold_machine::PAGE_SHIFT;

use super::frames;
use crate::sync::{Mutex, MutexGuard, WaitQueue};
use crate::{hw, time};

/// How long the host may take to give memory before there is none.
pub(crate) const PATIENCE: u64 = 10 * time::SECOND;
/// There is something to do.
pub(crate) static EVENT: AtomicBool = AtomicBool::new(false);
pub(crate) static EVENTS: WaitQueue = WaitQueue::new();
/// Woken when memory has come.
pub(crate) static GROWN: WaitQueue = WaitQueue::new();
/// Whether asking for more may help: there are devices, they have room, and the host has not let us wait in vain.
pub(crate) static HOPEFUL: AtomicBool = AtomicBool::new(false);
/// The host has let somebody wait in vain since memory last came or went.
pub(crate) static SILENT: AtomicBool = AtomicBool::new(false);
/// Nobody is to wait for memory any more.
pub(crate) static ENDED: AtomicBool = AtomicBool::new(false);
/// The node that wants memory, plus 1.
pub(crate) static WANTED: AtomicU64 = AtomicU64::new(0);
/// Whether there are devices that memory can come from.
pub(crate) static HAS_DEVICES: AtomicBool = AtomicBool::new(false);
/// The most frames that there ever were.
pub(crate) static PEAK: AtomicU64 = AtomicU64::new(0);
/// Bytes of memory that there will be at most.
pub(crate) static CEILING: AtomicU64 = AtomicU64::new(0);
pub(crate) static WORKING: Mutex<()> = Mutex::new(());

/// A device has something to say. Any context.
pub fn wake() {
    EVENT.store(true, Ordering::Release);
    EVENTS.wake_all();
}

/// On the way back to a program after a tick: ask for memory before there is none.
pub fn tick() {
    if HOPEFUL.load(Ordering::Relaxed) && frames().free_frames() < 4 * frames().watermarks().high {
        want();
    }
}

fn want() {
    let node = hw::node_of(hw::current_cpu());
    WANTED.store(u64::from(node.0) + 1, Ordering::Release);
    wake();
}

/// Whether the host may give more memory.
pub fn may_grow() -> bool {
    HOPEFUL.load(Ordering::Acquire) && !ENDED.load(Ordering::Acquire)
}

/// Whether memory has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Growth {
    /// There is more than before.
    Grown,
    /// There is no more to come.
    None,
}

/// There is no memory left: get some from the host. May sleep.
pub fn grow() -> Growth {
    if !may_grow() {
        return Growth::None;
    }
    let before = frames().total_frames();
    want();
    let grown = GROWN.wait_killable_until(time::now() + PATIENCE, || {
        let has_grown = frames().total_frames() > before;
        (has_grown || !may_grow()).then_some(has_grown)
    });
    // A task that is to end has not waited in vain.
    let Ok(grown) = grown else { return Growth::None };
    if grown.is_none() && !SILENT.swap(true, Ordering::AcqRel) {
        HOPEFUL.store(false, Ordering::Release);
        log::warn!("hotplug: the host gives no more memory");
    }
    if grown == Some(true) { Growth::Grown } else { Growth::None }
}

/// Get some memory from the host, however long it takes. May sleep.
///
/// # Errors
/// `ENOMEM` where there is no device for it.
pub(super) fn grow_or_wait() -> crate::Result<()> {
    if !HAS_DEVICES.load(Ordering::Relaxed) {
        return Err(crate::Errno::ENOMEM);
    }
    let before = frames().total_frames();
    want();
    GROWN.wait_uninterruptible(|| (frames().total_frames() > before).then_some(()));
    Ok(())
}

/// The end is near: nobody gets more memory from now on, and none comes or goes while the result lives.
pub fn stop() -> MutexGuard<'static, ()> {
    ENDED.store(true, Ordering::Release);
    GROWN.wake_all();
    WORKING.lock()
}

/// Whether the end is near: a device that takes its time must not delay it.
pub fn has_ended() -> bool {
    ENDED.load(Ordering::Acquire)
}

/// No memory comes or goes, and no pageblock is isolated by anyone else, while the result lives. May sleep.
pub(super) fn changing() -> MutexGuard<'static, ()> {
    WORKING.lock()
}

/// As [`changing`].
///
/// # Errors
/// `EINTR` where the current task is to end.
pub(super) fn changing_killable() -> crate::Result<MutexGuard<'static, ()>> {
    WORKING.lock_killable()
}

/// The most bytes of memory that there were at a time; `None` where memory does not change.
pub fn peak() -> Option<u64> {
    HAS_DEVICES.load(Ordering::Relaxed).then(|| PEAK.load(Ordering::Relaxed) << PAGE_SHIFT)
}

/// The most bytes of memory that there will be at a time.
pub(super) fn ceiling() -> u64 {
    CEILING.load(Ordering::Relaxed)
}
