//! Memory that is added and removed while the machine runs: requests for it, and its state.
//!
//! The task that plugs it in and unplugs it is `host::hotplug`. It gets a request for **more**
//! memory when little is left ([`tick`], well above the watermarks), or when there is none
//! ([`grow`], before any process is killed).
//!
//! **Locks.** [`Hotplug::working`] is held while memory changes; under it the page allocator's. The
//! wake-ups take interrupt-safe locks only.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use freehold_machine::PAGE_SHIFT;

use super::frames;
use crate::sync::{Mutex, MutexGuard, WaitQueue};
use crate::{hw, time};

/// How long a task waits for the host's memory before it counts as unavailable.
pub(crate) const PATIENCE: u64 = 10 * time::SECOND;

/// State that the hotplug task, the tasks that need memory and the shutdown share.
pub(crate) struct Hotplug {
    /// Whether there is work for the hotplug task.
    pub event: AtomicBool,
    pub events: WaitQueue,
    /// Woken when memory was added.
    pub grown: WaitQueue,
    /// Whether a request may succeed: there are devices, they have room, and no wait for the host
    /// has timed out.
    pub is_hopeful: AtomicBool,
    /// A task's wait for memory from the host has timed out since memory last was added or removed.
    pub is_silent: AtomicBool,
    /// Whether the machine shuts down: then no task waits for memory any more.
    pub has_ended: AtomicBool,
    /// The node that needs memory, plus 1.
    pub wanted: AtomicU64,
    /// Whether there are devices that can provide memory.
    pub has_devices: AtomicBool,
    /// Largest number of frames so far.
    pub peak: AtomicU64,
    /// Largest number of bytes of memory that is possible.
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

/// Notifies the hotplug task that a device needs attention. Any context.
pub fn wake() {
    HOTPLUG.event.store(true, Ordering::Release);
    HOTPLUG.events.wake_all();
}

/// Requests memory before there is none left. Called on the way back to a program after a tick.
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

/// Whether memory was added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GrowthOutcome {
    /// There is more memory than before.
    Grown,
    /// No more memory is available.
    None,
}

/// Gets memory from the host, because none is left. May sleep.
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
    // A task that is being killed has not waited for the full time.
    let Ok(grown) = grown else { return GrowthOutcome::None };
    if grown.is_none() && !HOTPLUG.is_silent.swap(true, Ordering::AcqRel) {
        HOTPLUG.is_hopeful.store(false, Ordering::Release);
        log::warn!("hotplug: the host gives no more memory");
    }
    if grown == Some(true) { GrowthOutcome::Grown } else { GrowthOutcome::None }
}

/// Gets memory from the host, however long it takes. May sleep.
///
/// # Errors
/// `ENOMEM` if there is no device for it.
pub(super) fn grow_or_wait() -> crate::Result<()> {
    if !HOTPLUG.has_devices.load(Ordering::Relaxed) {
        return Err(crate::Errno::ENOMEM);
    }
    let before = frames().total_frames();
    want();
    HOTPLUG.grown.wait_uninterruptible(|| (frames().total_frames() > before).then_some(()));
    Ok(())
}

/// Records the shutdown. From now on no task gets more memory, and none is added or removed while
/// the result exists.
pub fn stop() -> MutexGuard<'static, ()> {
    HOTPLUG.has_ended.store(true, Ordering::Release);
    HOTPLUG.grown.wake_all();
    HOTPLUG.working.lock()
}

/// Whether the machine shuts down: a slow device must not delay that.
pub fn has_ended() -> bool {
    HOTPLUG.has_ended.load(Ordering::Acquire)
}

/// As [`changing`]; `None` if memory is being added or removed. For a task on which all others
/// depend, and which must not wait for a device.
pub(super) fn changing_now() -> Option<MutexGuard<'static, ()>> {
    HOTPLUG.working.try_lock()
}

/// Prevents addition and removal of memory, and isolation of pageblocks by other tasks, while the
/// result exists. May sleep until a memory device answers.
///
/// # Errors
/// `EINTR` if the current task is killed.
pub(super) fn changing() -> crate::Result<MutexGuard<'static, ()>> {
    HOTPLUG.working.lock_killable()
}

/// Returns the largest number of bytes of memory so far; `None` if memory does not change.
pub fn peak() -> Option<u64> {
    HOTPLUG.has_devices.load(Ordering::Relaxed).then(|| HOTPLUG.peak.load(Ordering::Relaxed) << PAGE_SHIFT)
}

/// Returns the largest possible number of bytes of memory.
pub(super) fn ceiling() -> u64 {
    HOTPLUG.ceiling.load(Ordering::Relaxed)
}
