//! Memory that comes and goes while the machine runs: requests for it, and its state.
//!
//! The task that plugs it in and unplugs it is `host::hotplug`. It is asked for **more** when
//! little is left ([`tick`], well above the watermarks) or when there is none ([`grow`], before any
//! process is killed).
//!
//! **Locks.** [`Hotplug::working`] is held while memory changes; under it the page allocator's. The
//! wake-ups take interrupt-safe locks only.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use freehold_machine::PAGE_SHIFT;

use super::frames;
use crate::sync::{Mutex, MutexGuard, WaitQueue};
use crate::{hw, time};

/// How long the host may take to give memory before there is none.
pub(crate) const PATIENCE: u64 = 10 * time::SECOND;

/// State that the hotplug task, the tasks that want memory and the end of the machine share.
pub(crate) struct Hotplug {
    /// There is something to do.
    pub event: AtomicBool,
    pub events: WaitQueue,
    /// Woken when memory has come.
    pub grown: WaitQueue,
    /// Whether asking for more may help: there are devices, they have room, and the host has not
    /// let us wait in vain.
    pub is_hopeful: AtomicBool,
    /// The host has let a task wait in vain since memory last came or went.
    pub is_silent: AtomicBool,
    /// The machine ends: no task waits for memory any more.
    pub has_ended: AtomicBool,
    /// The node that wants memory, plus 1.
    pub wanted: AtomicU64,
    /// Whether there are devices that memory can come from.
    pub has_devices: AtomicBool,
    /// The most frames that there ever were.
    pub peak: AtomicU64,
    /// Bytes of memory that there will be at most.
    pub ceiling: AtomicU64,
    /// Held while memory changes.
    pub working: Mutex<()>,
}

pub(crate) static HOTPLUG: Hotplug = Hotplug {
    event: AtomicBool::new(false),
    events: WaitQueue::new(),
    grown: WaitQueue::new(),
    is_hopeful: AtomicBool::new(false),
    is_silent: AtomicBool::new(false),
    has_ended: AtomicBool::new(false),
    wanted: AtomicU64::new(0),
    has_devices: AtomicBool::new(false),
    peak: AtomicU64::new(0),
    ceiling: AtomicU64::new(0),
    working: Mutex::new(()),
};

/// A device has something to say. Any context.
pub fn wake() {
    HOTPLUG.event.store(true, Ordering::Release);
    HOTPLUG.events.wake_all();
}

/// On the way back to a program after a tick: ask for memory before there is none.
pub fn tick() {
    if HOTPLUG.is_hopeful.load(Ordering::Relaxed) && frames().free_frames() < 4 * frames().watermarks().high {
        want();
    }
}

fn want() {
    let node = hw::node_of(hw::current_cpu());
    HOTPLUG.wanted.store(u64::from(node.0) + 1, Ordering::Release);
    wake();
}

/// Whether the host may give more memory.
pub fn may_grow() -> bool {
    HOTPLUG.is_hopeful.load(Ordering::Acquire) && !HOTPLUG.has_ended.load(Ordering::Acquire)
}

/// Whether memory has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GrowthOutcome {
    /// There is more than before.
    Grown,
    /// There is no more to come.
    None,
}

/// There is no memory left: get some from the host. May sleep.
pub fn grow() -> GrowthOutcome {
    if !may_grow() {
        return GrowthOutcome::None;
    }
    let before = frames().total_frames();
    want();
    let grown = HOTPLUG.grown.wait_killable_until(time::now() + PATIENCE, || {
        let has_grown = frames().total_frames() > before;
        (has_grown || !may_grow()).then_some(has_grown)
    });
    // A task that is to end has not waited in vain.
    let Ok(grown) = grown else { return GrowthOutcome::None };
    if grown.is_none() && !HOTPLUG.is_silent.swap(true, Ordering::AcqRel) {
        HOTPLUG.is_hopeful.store(false, Ordering::Release);
        log::warn!("hotplug: the host gives no more memory");
    }
    if grown == Some(true) { GrowthOutcome::Grown } else { GrowthOutcome::None }
}

/// Get some memory from the host, however long it takes. May sleep.
///
/// # Errors
/// `ENOMEM` where there is no device for it.
pub(super) fn grow_or_wait() -> crate::Result<()> {
    if !HOTPLUG.has_devices.load(Ordering::Relaxed) {
        return Err(crate::Errno::ENOMEM);
    }
    let before = frames().total_frames();
    want();
    HOTPLUG.grown.wait_uninterruptible(|| (frames().total_frames() > before).then_some(()));
    Ok(())
}

/// Notes that the end is near: no task gets more memory from now on, and none comes or goes while
/// the result lives.
pub fn stop() -> MutexGuard<'static, ()> {
    HOTPLUG.has_ended.store(true, Ordering::Release);
    HOTPLUG.grown.wake_all();
    HOTPLUG.working.lock()
}

/// Whether the end is near: a device that takes its time must not delay it.
pub fn has_ended() -> bool {
    HOTPLUG.has_ended.load(Ordering::Acquire)
}

/// As [`changing`]; `None` if memory is coming or going, for a task that all others depend on and
/// that must not wait for a device.
pub(super) fn changing_now() -> Option<MutexGuard<'static, ()>> {
    HOTPLUG.working.try_lock()
}

/// Keeps memory from coming and going, and other tasks from isolating pageblocks, while the result
/// lives. May sleep, as long as a memory device takes to answer.
///
/// # Errors
/// `EINTR` where the current task is to end.
pub(super) fn changing() -> crate::Result<MutexGuard<'static, ()>> {
    HOTPLUG.working.lock_killable()
}

/// The most bytes of memory that there were at a time; `None` where memory does not change.
pub fn peak() -> Option<u64> {
    HOTPLUG.has_devices.load(Ordering::Relaxed).then(|| HOTPLUG.peak.load(Ordering::Relaxed) << PAGE_SHIFT)
}

/// The most bytes of memory that there will be at a time.
pub(super) fn ceiling() -> u64 {
    HOTPLUG.ceiling.load(Ordering::Relaxed)
}
