//! ksmd: a task that merges equal pages of areas that are marked for it. Its settings have the
//! names of Documentation/admin-guide/mm/ksm.rst; the mechanism is [`freehold_vm::MergeScan`]'s.
//!
//! The task is started when merging is first switched on, and waits without a timer while it is
//! off. It holds the scan for one step of at most 32 pages, and one space within it.
//!
//! **Locks.** [`Ksm::scan`] > a space. Wake-ups take interrupt-safe locks only.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use freehold_machine::{PAGE, VirtAddr};
use freehold_vm::{
    Locking, MergeCursor, MergeFigures, MergeRules, MergeScan, MergeSums, MergeWish, MergedPages, Populate,
    VmError,
};

use super::hotplug::GrowthOutcome;
use super::populate::and_populate;
use super::{AddressSpace, ProcessSpace, commons, find_more};
use crate::hw::user::USER_END;
use crate::sync::{Mutex, MutexGuard, WaitQueue};
use crate::{Errno, Result, sched, time};

/// Most mappings of a merged frame: half of what its count can hold, since forks add to them.
const MAX_SHARING: u64 = 1 << 17;
/// Pages that are unmerged per acquisition of a space's lock.
const UNMERGED_AT_ONCE: u64 = 256;
/// Milliseconds between two looks for marked areas while there are none.
const IDLE_REST: u64 = 1000;

/// The end of all spaces.
const END: VirtAddr = VirtAddr(USER_END);

/// State of the file `run`.
const STOPPED: u64 = 0;
const RUNNING: u64 = 1;
const UNMERGED: u64 = 2;

/// A numeric setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Knob {
    /// Number of pages to scan before a rest.
    PagesToScan,
    /// Length of the rest.
    SleepMillisecs,
    /// Whether pages of different nodes are merged.
    MergeAcrossNodes,
    /// Whether pages of zeroes get the page of zeroes.
    UseZeroPages,
    /// Most mappings of a merged frame.
    MaxPageSharing,
    /// Whether pages that were scanned in vain are scanned less often.
    SmartScan,
}

impl Knob {
    /// All settings, with the names of their files.
    pub const ALL: [(&'static str, Self); 6] = [
        ("pages_to_scan", Self::PagesToScan),
        ("sleep_millisecs", Self::SleepMillisecs),
        ("merge_across_nodes", Self::MergeAcrossNodes),
        ("use_zero_pages", Self::UseZeroPages),
        ("max_page_sharing", Self::MaxPageSharing),
        ("smart_scan", Self::SmartScan),
    ];

    /// Returns the current value.
    pub fn get(self) -> u64 {
        KSM.values[self as usize].load(Ordering::Relaxed)
    }

    /// Sets the value.
    ///
    /// # Errors
    /// `EINVAL` for an invalid value; `EBUSY` for a change that needs that no page is merged.
    pub fn set(self, value: u64) -> Result<()> {
        let range = match self {
            Self::PagesToScan | Self::SleepMillisecs => 0..=u64::from(u32::MAX),
            Self::MergeAcrossNodes | Self::UseZeroPages | Self::SmartScan => 0..=1,
            Self::MaxPageSharing => 2..=i32::MAX as u64,
        };
        if !range.contains(&value) {
            return Err(Errno::EINVAL);
        }
        let is_fixed = matches!(self, Self::MergeAcrossNodes | Self::MaxPageSharing);
        if is_fixed && value != self.get() && sums()?.shared > 0 {
            return Err(Errno::EBUSY);
        }
        KSM.values[self as usize].store(value, Ordering::Relaxed);
        wake();
        Ok(())
    }
}

/// The task, its settings and its scan.
struct Ksm {
    /// The values, indexed by [`Knob`].
    values: [AtomicU64; 6],
    run: AtomicU64,
    has_started: AtomicBool,
    /// Whether the machine shuts down: then no space is visited any more.
    has_ended: AtomicBool,
    /// Whether a setting has changed.
    has_changed: AtomicBool,
    changes: WaitQueue,
    scan: Mutex<MergeScan>,
}

/// The initial settings are Linux' defaults.
static KSM: Ksm = Ksm {
    values: [
        AtomicU64::new(100),
        AtomicU64::new(20),
        AtomicU64::new(1),
        AtomicU64::new(0),
        AtomicU64::new(256),
        AtomicU64::new(1),
    ],
    run: AtomicU64::new(STOPPED),
    has_started: AtomicBool::new(false),
    has_ended: AtomicBool::new(false),
    has_changed: AtomicBool::new(false),
    changes: WaitQueue::new(),
    scan: Mutex::new(MergeScan::new()),
};

/// Returns the state: 0 stopped, 1 running, 2 stopped and unmerged.
pub fn state() -> u64 {
    KSM.run.load(Ordering::Acquire)
}

fn is_running() -> bool {
    state() == RUNNING && !KSM.has_ended.load(Ordering::Acquire)
}

/// Changes the state. State 2 gives all merged pages frames of their own before this returns.
///
/// # Errors
/// `EINVAL` for another number; `ENOMEM`, after which the scan is stopped; `EINTR`.
pub fn set_state(value: u64) -> Result<()> {
    if value > UNMERGED {
        return Err(Errno::EINVAL);
    }
    if value == RUNNING && !KSM.has_started.swap(true, Ordering::AcqRel) {
        let started = sched::spawn_kernel("ksmd", run);
        if let Err(error) = started {
            KSM.has_started.store(false, Ordering::Release);
            return Err(error);
        }
    }
    let before = KSM.run.swap(value, Ordering::AcqRel);
    if value == UNMERGED && before != UNMERGED {
        let outcome = unmerge_all();
        if outcome.is_err() {
            let _ = KSM.run.compare_exchange(UNMERGED, STOPPED, Ordering::AcqRel, Ordering::Acquire);
        }
        return outcome;
    }
    wake();
    Ok(())
}

fn wake() {
    KSM.has_changed.store(true, Ordering::Release);
    KSM.changes.wake_all();
}

/// Stops the scan: from now on no space is visited and no frame is held.
pub fn stop() -> MutexGuard<'static, MergeScan> {
    KSM.has_ended.store(true, Ordering::Release);
    KSM.scan.lock()
}

fn run() {
    let changed = || KSM.has_changed.swap(false, Ordering::AcqRel).then_some(());
    loop {
        if is_running() {
            let least = if scan_some() { 0 } else { IDLE_REST };
            let rest = Knob::SleepMillisecs.get().max(least);
            KSM.changes.wait_uninterruptible_until(time::now() + rest * (time::SECOND / 1000), changed);
        } else {
            KSM.changes.wait_uninterruptible(changed);
        }
        sched::cond_resched();
    }
}

/// Scans up to `pages_to_scan` pages, and no more than one pass. Returns whether there are marked
/// areas.
fn scan_some() -> bool {
    let mut budget = Knob::PagesToScan.get();
    while budget > 0 && is_running() {
        let mut scan = KSM.scan.lock();
        let passes = scan.figures().passes;
        let Some(pages) = commons().merge_step(&mut scan, &wish(budget)) else {
            return scan.figures().passes > passes;
        };
        drop(scan);
        budget -= pages;
        sched::cond_resched();
    }
    true
}

fn wish(pages: u64) -> MergeWish {
    let mut rules = MergeRules::empty();
    rules.set(MergeRules::ZEROES, Knob::UseZeroPages.get() != 0);
    rules.set(MergeRules::NODES_APART, Knob::MergeAcrossNodes.get() == 0);
    rules.set(MergeRules::SMART, Knob::SmartScan.get() != 0);
    MergeWish { pages, sharing: Knob::MaxPageSharing.get().min(MAX_SHARING) as u32, rules }
}

/// Calls `step` for every space, locked, from the address on that its last call returned.
fn walk_spaces(
    mut step: impl FnMut(&mut AddressSpace, VirtAddr) -> core::result::Result<VirtAddr, VmError>,
) -> Result<()> {
    let mut last = 0;
    while let Some((id, space)) = commons().next_space(last) {
        let mut next = VirtAddr(0);
        while next < END {
            sched::checkpoint()?;
            let mut outcome = Ok(END);
            space.with(Locking::Wait, &mut |areas| outcome = step(areas, next));
            match outcome {
                Ok(reached) => next = reached,
                Err(VmError::NoMemory) if find_more() == GrowthOutcome::Grown => {}
                Err(error) => return Err(error.into()),
            }
        }
        last = id;
    }
    Ok(())
}

fn unmerge_all() -> Result<()> {
    // A step that has begun ends before this gets the lock.
    drop(KSM.scan.lock());
    walk_spaces(|areas, from| areas.populate_some(from..END, Populate::Unmerge, UNMERGED_AT_ONCE))?;
    while state() == UNMERGED && KSM.scan.lock().clear_some() {
        sched::checkpoint()?;
    }
    Ok(())
}

/// Returns the counts of the scan.
pub fn figures() -> MergeFigures {
    KSM.scan.lock().figures()
}

/// Sums up the merged frames.
///
/// # Errors
/// `EINTR`.
pub fn sums() -> Result<MergeSums> {
    let (mut cursor, mut sums) = (MergeCursor::default(), MergeSums::default());
    while KSM.scan.lock().sum_up(commons(), &mut cursor, &mut sums) {
        sched::checkpoint()?;
    }
    Ok(sums)
}

/// Counts the merged pages of all processes.
///
/// # Errors
/// `EINTR`.
pub fn pages_of_all() -> Result<MergedPages> {
    let mut sum = MergedPages::default();
    walk_spaces(|areas, from| Ok(areas.count_merged(from..END, &mut sum)))?;
    Ok(sum)
}

/// Returns the bytes that merging saves. The scan's own memory is not subtracted.
///
/// # Errors
/// `EINTR`.
pub fn general_profit() -> Result<u64> {
    Ok((sums()?.sharing + pages_of_all()?.zeroes) * PAGE)
}

/// Counts the merged pages of one process.
///
/// # Errors
/// `EINTR`.
pub fn pages_of(space: &ProcessSpace) -> Result<MergedPages> {
    let (mut sum, mut next) = (MergedPages::default(), VirtAddr(0));
    while next < END {
        sched::checkpoint()?;
        next = space.lock().count_merged(next..END, &mut sum);
    }
    Ok(sum)
}

/// Marks all areas of a process, or none (PR_SET_MEMORY_MERGE).
///
/// # Errors
/// `ENOMEM` if a merged page gets no frame of its own.
pub fn set_for_process(space: &ProcessSpace, marked: u64) -> Result<()> {
    if marked != 0 {
        space.lock().merge_all();
        return Ok(());
    }
    and_populate(space, Populate::Unmerge, |areas| {
        if areas.merges_all() {
            areas.merge_none();
        }
        Ok(())
    })
}
