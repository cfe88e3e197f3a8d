//! khugepaged: a task that makes large pages of small ones. Its settings have the names of
//! Documentation/admin-guide/mm/transhuge.rst.
//!
//! It visits the address spaces by their numbers, a few pages at a time, and rests in between. It
//! waits for a locked space, so that a complete scan has visited all of them. It locks a space for
//! one large page at a time. It is started when large pages are first used, so a small machine has
//! neither the task nor its stack.
//!
//! **Room.** A fault uses only a free pageblock and waits for none; so does this task. If `defrag`
//! allows it for an area that found no pageblock, this task frees pure caches before its next pass,
//! so that pageblocks can become whole.
//!
//! **Locks.** [`Khugepaged::working`] > a space. Wake-ups take interrupt-safe locks only.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use freehold_machine::VirtAddr;
use freehold_vm::{BlockWish, CollapseLimits, HugeMode, Locking, VmError};

use super::{AddressSpace, commons, evacuate, reclaim};
use crate::sync::{Mutex, MutexGuard, WaitQueue};
use crate::{Errno, Result, sched, time};

/// Number of pages of disks that are evicted at a time to make room.
const ROOM: u64 = 1024;

/// A numeric setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Knob {
    /// Whether to make room if there is no free pageblock.
    Defrag,
    /// Largest number of pages that were never written in a new large page.
    MaxPtesNone,
    /// Largest number of pages to read from swap for a large page.
    MaxPtesSwap,
    /// Largest number of shared pages to copy for a large page.
    MaxPtesShared,
    /// Number of pages to visit before a rest.
    PagesToScan,
    /// Length of the rest.
    ScanSleep,
    /// Length of the rest if there was no free pageblock.
    AllocSleep,
}

impl Knob {
    /// All settings, with the names of their files.
    pub const ALL: [(&'static str, Self); 7] = [
        ("defrag", Self::Defrag),
        ("max_ptes_none", Self::MaxPtesNone),
        ("max_ptes_swap", Self::MaxPtesSwap),
        ("max_ptes_shared", Self::MaxPtesShared),
        ("pages_to_scan", Self::PagesToScan),
        ("scan_sleep_millisecs", Self::ScanSleep),
        ("alloc_sleep_millisecs", Self::AllocSleep),
    ];

    /// Returns the current value.
    pub fn get(self) -> u64 {
        KHUGEPAGED.values[self as usize].load(Ordering::Relaxed)
    }

    /// Sets the value.
    ///
    /// # Errors
    /// `EINVAL` for an invalid value.
    pub fn set(self, value: u64) -> Result<()> {
        let range = match self {
            Self::Defrag => 0..=1,
            Self::MaxPtesNone | Self::MaxPtesSwap | Self::MaxPtesShared => 0..=511,
            Self::PagesToScan => 1..=u64::from(u32::MAX),
            Self::ScanSleep | Self::AllocSleep => 0..=u64::from(u32::MAX),
        };
        if !range.contains(&value) {
            return Err(Errno::EINVAL);
        }
        KHUGEPAGED.values[self as usize].store(value, Ordering::Relaxed);
        wake();
        Ok(())
    }
}

/// The task, its settings and its counts.
struct Khugepaged {
    /// The values, indexed by [`Knob`].
    values: [AtomicU64; 7],
    /// The value of [`Defrag`].
    defrag: AtomicU64,
    collapsed: AtomicU64,
    full_scans: AtomicU64,
    has_started: AtomicBool,
    /// Whether the machine shuts down: then no space is visited any more.
    has_ended: AtomicBool,
    /// Whether a setting has changed.
    has_changed: AtomicBool,
    changes: WaitQueue,
    /// Held while it visits spaces.
    working: Mutex<()>,
}

/// The initial settings are Linux' defaults.
static KHUGEPAGED: Khugepaged = Khugepaged {
    values: [
        AtomicU64::new(1),
        AtomicU64::new(511),
        AtomicU64::new(64),
        AtomicU64::new(256),
        AtomicU64::new(8 * 512),
        AtomicU64::new(10_000),
        AtomicU64::new(60_000),
    ],
    defrag: AtomicU64::new(Defrag::Advised as u64),
    collapsed: AtomicU64::new(0),
    full_scans: AtomicU64::new(0),
    has_started: AtomicBool::new(false),
    has_ended: AtomicBool::new(false),
    has_changed: AtomicBool::new(false),
    changes: WaitQueue::new(),
    working: Mutex::new(()),
};

/// The areas for which room is made after a fault found no pageblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Defrag {
    /// For none.
    Never,
    /// For areas with advice for large pages.
    Advised,
    /// For all areas.
    Everybody,
}

/// Sets the areas for which room is made.
pub fn set_defrag(defrag: Defrag) {
    KHUGEPAGED.defrag.store(defrag as u64, Ordering::Relaxed);
}

/// Returns the number of large pages that it made.
pub fn collapsed() -> u64 {
    KHUGEPAGED.collapsed.load(Ordering::Relaxed)
}
/// Returns how often it has visited all address spaces.
pub fn full_scans() -> u64 {
    KHUGEPAGED.full_scans.load(Ordering::Relaxed)
}

fn is_wanted() -> bool {
    commons().huge_mode() != HugeMode::Never && !KHUGEPAGED.has_ended.load(Ordering::Acquire)
}

/// Wakes the task after a setting has changed.
fn wake() {
    KHUGEPAGED.has_changed.store(true, Ordering::Release);
    KHUGEPAGED.changes.wake_all();
}

/// Called when it is known, or has changed, which anonymous memory gets large pages. Starts the
/// task if any does.
///
/// # Errors
/// `ENOMEM`.
pub fn mode_changed() -> Result<()> {
    if is_wanted() && !KHUGEPAGED.has_started.swap(true, Ordering::AcqRel) {
        let started = sched::spawn_kernel("khugepaged", || Scan::default().run());
        if let Err(error) = started {
            KHUGEPAGED.has_started.store(false, Ordering::Release);
            return Err(error);
        }
    }
    wake();
    Ok(())
}

/// Stops the scan: from now on no space is visited or kept.
pub fn stop() -> MutexGuard<'static, ()> {
    KHUGEPAGED.has_ended.store(true, Ordering::Release);
    KHUGEPAGED.working.lock()
}

/// The position of the task in its scan.
#[derive(Default)]
struct Scan {
    /// The last space that the scan has finished.
    after: u64,
    /// The space that the scan is in.
    inside: u64,
    /// The address at which the scan continues in that space.
    addr: u64,
}

impl Scan {
    fn run(mut self) {
        loop {
            let rest = self.look();
            let changed = || KHUGEPAGED.has_changed.swap(false, Ordering::AcqRel).then_some(());
            if is_wanted() {
                let until = time::now() + rest.get() * (time::SECOND / 1000);
                KHUGEPAGED.changes.wait_uninterruptible_until(until, changed);
            } else {
                KHUGEPAGED.changes.wait_uninterruptible(changed);
            }
        }
    }

    /// Visits some pages. Returns the setting that determines the length of the rest.
    fn look(&mut self) -> Knob {
        let _working = KHUGEPAGED.working.lock();
        self.make_room();
        let mut budget = Knob::PagesToScan.get();
        while budget > 0 && is_wanted() {
            let Some((id, space)) = commons().next_space(self.after) else {
                KHUGEPAGED.full_scans.fetch_add(1, Ordering::Relaxed);
                *self = Self::default();
                break;
            };
            let from = if id == self.inside { self.addr } else { 0 };
            let mut step = None;
            let mut look = |areas: &mut AddressSpace| {
                // Read while the space is locked: limits that were set before memory was mapped
                // apply to it.
                let limits = CollapseLimits {
                    none: Knob::MaxPtesNone.get(),
                    shared: Knob::MaxPtesShared.get(),
                    swapped: Knob::MaxPtesSwap.get(),
                };
                step = Some(areas.collapse_step(VirtAddr(from), budget, &limits));
            };
            // The holder of the lock waits for a device at most, never for memory or for this task.
            let _ = space.with(Locking::Wait, &mut look);
            drop(space);
            match step.and_then(|step| step.next) {
                Some(next) => (self.inside, self.addr) = (id, next.0),
                None => self.after = id,
            }
            // A visit has a cost, even if nothing in the space can become large.
            budget = budget.saturating_sub(step.map_or(0, |step| step.pages).max(1));
            match step.and_then(|step| step.tried) {
                Some(Ok(())) => _ = KHUGEPAGED.collapsed.fetch_add(1, Ordering::Relaxed),
                Some(Err(VmError::NoMemory)) => {
                    if Knob::Defrag.get() != 0 {
                        reclaim::free_idle(ROOM);
                        evacuate::compact_once();
                    }
                    return Knob::AllocSleep;
                }
                _ => {}
            }
            sched::cond_resched();
        }
        Knob::ScanSleep
    }

    /// Makes room for areas whose faults found none.
    fn make_room(&self) {
        let least = match KHUGEPAGED.defrag.load(Ordering::Relaxed) {
            all if all == Defrag::Everybody as u64 => BlockWish::Ordinary,
            advised if advised == Defrag::Advised as u64 => BlockWish::Advised,
            _ => return,
        };
        if commons().take_block_wish() >= least {
            reclaim::free_idle(ROOM);
            evacuate::compact_once();
        }
    }
}
