//! The controller `pids`: how many tasks a group and the groups below it may have.
//!
//! The controller limits [`Group::tasks`](super::Group), which is maintained whether the controller
//! acts or not. Only a fork is refused; a move into a group may exceed its limit, as on Linux
//! (`kernel/cgroup/pids.c`).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::control::{ControlFile, Controller, ControllerSet, OnRoot, parse_limit, write_limit};
use super::group::{Group, Notice};
use super::tree;
use crate::{Errno, Result};

/// "max": above any number that Linux takes (PID_MAX_LIMIT).
const NO_LIMIT: u32 = 4 * 1024 * 1024 + 1;
/// The controller's index in the arrays of a group.
const PLACE: usize = ControllerSet::PIDS.bits().trailing_zeros() as usize;

/// The controller.
pub struct PidsController;

/// The controller's state in a group.
#[derive(Default)]
pub struct Pids {
    /// The epoch of the other fields: how often the controller had been turned on.
    epoch: AtomicU32,
    /// The limit, stored as [`NO_LIMIT`] minus the limit.
    below_max: AtomicU32,
    peak: AtomicU32,
    /// Forks that were refused because of the limit of this group or of a group below.
    events: AtomicU64,
    /// Forks that were refused because of this group's limit.
    local: AtomicU64,
}

impl Group {
    /// The controller's state if it acts; reset if it was turned on again. Under the tree's lock.
    fn pids(&self) -> Option<&Pids> {
        let parent = self.parent().filter(|parent| parent.passes_on().contains(ControllerSet::PIDS))?;
        let (pids, epoch) = (&self.pids, parent.epochs[PLACE].load(Ordering::Relaxed));
        if pids.epoch.swap(epoch, Ordering::Relaxed) != epoch {
            pids.below_max.store(0, Ordering::Relaxed);
            pids.peak.store(self.tasks.load(Ordering::Relaxed), Ordering::Relaxed);
            pids.events.store(0, Ordering::Relaxed);
            pids.local.store(0, Ordering::Relaxed);
        }
        Some(pids)
    }
}

impl Pids {
    fn max(&self) -> u32 {
        NO_LIMIT - self.below_max.load(Ordering::Relaxed)
    }
}

impl Controller for PidsController {
    fn name(&self) -> &'static str {
        "pids"
    }

    fn files(&self) -> &'static [ControlFile] {
        &FILES
    }

    fn may_fork(&self, group: &Group) -> Result<()> {
        let is_full = |group: &&Group| {
            group.pids().is_some_and(|pids| group.tasks.load(Ordering::Relaxed) >= pids.max())
        };
        let Some(full) = group.counted().find(is_full) else { return Ok(()) };
        if let Some(pids) = full.pids() {
            pids.local.fetch_add(1, Ordering::Relaxed);
            full.note(Notice::PidsLocal);
        }
        for above in full.counted() {
            if let Some(pids) = above.pids() {
                pids.events.fetch_add(1, Ordering::Relaxed);
                above.note(Notice::Pids);
            }
        }
        Err(Errno::EAGAIN)
    }

    fn came(&self, group: &Group) {
        for above in group.counted() {
            if let Some(pids) = above.pids() {
                pids.peak.fetch_max(above.tasks.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
    }
}

/// Reads a number of the controller's state.
fn read(group: &Group, of: impl FnOnce(&Pids) -> u64) -> u64 {
    let _tree = tree::lock();
    group.pids().map_or(0, of)
}

static FILES: [ControlFile; 5] = [
    ControlFile {
        name: "pids.current",
        mode: 0o444,
        on_root: OnRoot::No,
        notice: None,
        show: |group, out| writeln!(out, "{}", group.tasks.load(Ordering::Relaxed)),
        store: None,
    },
    ControlFile {
        name: "pids.events",
        mode: 0o444,
        on_root: OnRoot::No,
        notice: Some(Notice::Pids),
        show: |group, out| writeln!(out, "max {}", read(group, |pids| pids.events.load(Ordering::Relaxed))),
        store: None,
    },
    ControlFile {
        name: "pids.events.local",
        mode: 0o444,
        on_root: OnRoot::No,
        notice: Some(Notice::PidsLocal),
        show: |group, out| writeln!(out, "max {}", read(group, |pids| pids.local.load(Ordering::Relaxed))),
        store: None,
    },
    ControlFile {
        name: "pids.max",
        mode: 0o644,
        on_root: OnRoot::No,
        notice: None,
        show: |group, out| write_limit(read(group, |pids| pids.max().into()) as u32, NO_LIMIT, out),
        store: Some(store_max),
    },
    ControlFile {
        name: "pids.peak",
        mode: 0o444,
        on_root: OnRoot::No,
        notice: None,
        show: |group, out| writeln!(out, "{}", read(group, |pids| pids.peak.load(Ordering::Relaxed).into())),
        store: None,
    },
];

fn store_max(group: &Group, text: &[u8]) -> Result<()> {
    let limit = parse_limit(text, NO_LIMIT).map_err(|_| Errno::EINVAL)?;
    let _tree = tree::lock();
    let pids = group.pids().filter(|_| !group.is_removed()).ok_or(Errno::ENODEV)?;
    pids.below_max.store(NO_LIMIT - limit, Ordering::Relaxed);
    Ok(())
}
