//! khugepaged: a task that makes large pages of small ones
//! (Documentation/admin-guide/mm/transhuge.rst, by whose names its settings go).
//!
//! It goes through the address spaces by their numbers, a few pages at a time, and rests in
//! between. It waits for a locked space, so that a scan that is counted has seen all of them. It
//! locks a space for one large page at a time. It is started when large pages are first wanted, so
//! a small machine has neither the task nor its stack.
//!
//! **Room.** A fault takes a pageblock that is free and waits for none; nor does this task. Where
//! `defrag` allows it for an area that wanted one, this task gives back memory that is only kept
//! for speed before its next look, so that pageblocks can become whole.
//!
//! **Locks.** [`Khugepaged::working`] > a space. Wake-ups take interrupt-safe locks only.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use freehold_machine::VirtAddr;
use freehold_vm::{BlockWish, CollapseLimits, HugeMode, Locking, VmError};

use super::{AddressSpace, commons, evacuate, reclaim};
use crate::sync::{Mutex, MutexGuard, WaitQueue};
use crate::{Errno, Result, sched, time};

/// Pages of disks that are given back at a time to make room.
const ROOM: u64 = 1024;

/// A setting that is a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Knob {
    /// Whether to make room where there is no pageblock.
    Defrag,
    /// Pages never written that a large one may have.
    MaxPtesNone,
    /// Pages to read from swap for a large one.
    MaxPtesSwap,
    /// Pages to copy for a large one because others have them too.
    MaxPtesShared,
    /// Pages to look at before a rest.
    PagesToScan,
    /// The rest.
    ScanSleep,
    /// The rest after there was no pageblock.
    AllocSleep,
}

impl Knob {
    /// All, with their files' names.
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

    /// Set it.
    ///
    /// # Errors
    /// `EINVAL` for what it cannot be.
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
    /// By [`Knob`].
    values: [AtomicU64; 7],
    /// A [`Defrag`].
    defrag: AtomicU64,
    collapsed: AtomicU64,
    full_scans: AtomicU64,
    has_started: AtomicBool,
    /// The machine ends: nothing is looked at any more.
    has_ended: AtomicBool,
    /// A setting has changed.
    has_changed: AtomicBool,
    changes: WaitQueue,
    /// Held while it looks at spaces.
    working: Mutex<()>,
}

/// With Linux' defaults.
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

/// For whom room is made after a fault found no pageblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Defrag {
    /// For none.
    Never,
    /// For areas that large pages are advised for.
    Advised,
    /// For all.
    Everybody,
}

/// Say for whom room is made.
pub fn set_defrag(defrag: Defrag) {
    KHUGEPAGED.defrag.store(defrag as u64, Ordering::Relaxed);
}

/// Large pages that it made.
pub fn collapsed() -> u64 {
    KHUGEPAGED.collapsed.load(Ordering::Relaxed)
}
/// How often it has been through all address spaces.
pub fn full_scans() -> u64 {
    KHUGEPAGED.full_scans.load(Ordering::Relaxed)
}

fn is_wanted() -> bool {
    commons().huge_mode() != HugeMode::Never && !KHUGEPAGED.has_ended.load(Ordering::Acquire)
}

/// A setting has changed.
fn wake() {
    KHUGEPAGED.has_changed.store(true, Ordering::Release);
    KHUGEPAGED.changes.wake_all();
}

/// Which anonymous memory gets large pages is known or has changed: start the task where some does.
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

/// Stops the scan: from now on no space is looked at or held.
pub fn stop() -> MutexGuard<'static, ()> {
    KHUGEPAGED.has_ended.store(true, Ordering::Release);
    KHUGEPAGED.working.lock()
}

/// The task's place in its scan.
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

    /// Look at some pages; the setting that says how long to rest.
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
                // Read once the space is locked: limits that were set before memory was mapped hold
                // for it.
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
            // A space costs something even where nothing in it can be large.
            budget = budget.saturating_sub(step.map_or(0, |step| step.pages).max(1));
            match step.and_then(|step| step.tried) {
                Some(Ok(())) => _ = KHUGEPAGED.collapsed.fetch_add(1, Ordering::Relaxed),
                Some(Err(VmError::NoMemory)) => {
                    if Knob::Defrag.get() != 0 {
                        reclaim::free_idle(ROOM);
                        evacuate::compact(1);
                    }
                    return Knob::AllocSleep;
                }
                _ => {}
            }
            sched::cond_resched();
        }
        Knob::ScanSleep
    }

    /// Makes room for areas that found none at a fault.
    fn make_room(&self) {
        let least = match KHUGEPAGED.defrag.load(Ordering::Relaxed) {
            all if all == Defrag::Everybody as u64 => BlockWish::Ordinary,
            advised if advised == Defrag::Advised as u64 => BlockWish::Advised,
            _ => return,
        };
        if commons().take_block_wish() >= least {
            reclaim::free_idle(ROOM);
            evacuate::compact(1);
        }
    }
}
