//! The tables of locks, one per file that has locks.
//!
//! **Protocol.** A table is found by its file in one of [`Identity::STRIPES`] maps. A map's lock is
//! held for one search, insertion or removal. A table is removed when the last lock of a file is
//! released by the end of its owner's use of the file: a program that locks and unlocks an open
//! file keeps the table. The removal marks the table with the table's own lock held. So a task that
//! found the table before the removal sees the mark, and looks again before it adds anything. A
//! table with a wait is not empty, so it stays.

use core::ops::Bound;

use freehold_collections::{Arc, Map, reserve};

use super::LockSpace;
use super::set::LockSet;
use crate::Result;
use crate::fs::node::Identity;
use crate::sync::{Mutex, SpinLock};

/// The locks of one file, and the waits for them.
pub(super) type FileLocks = Mutex<FileTable>;

/// The content of [`FileLocks`].
pub(super) struct FileTable {
    flock: LockSet,
    record: LockSet,
    /// The table is no longer found: nothing is added to it.
    is_removed: bool,
}

static STRIPES: [SpinLock<Map<Identity, Arc<FileLocks>>>; Identity::STRIPES] =
    [const { SpinLock::new(Map::new()) }; Identity::STRIPES];

impl FileTable {
    const fn new() -> Self {
        Self {
            flock: LockSet::new(LockSpace::Flock),
            record: LockSet::new(LockSpace::Record),
            is_removed: false,
        }
    }

    /// Returns the locks of a kind.
    pub const fn of(&self, space: LockSpace) -> &LockSet {
        match space {
            LockSpace::Flock => &self.flock,
            LockSpace::Record => &self.record,
        }
    }

    /// Returns the locks of a kind, to be changed.
    pub const fn of_mut(&mut self, space: LockSpace) -> &mut LockSet {
        match space {
            LockSpace::Flock => &mut self.flock,
            LockSpace::Record => &mut self.record,
        }
    }
}

/// Returns the table of `file`, if it has one.
pub(super) fn find(file: Identity) -> Option<Arc<FileLocks>> {
    STRIPES[file.stripe()].lock().get(&file).cloned()
}

/// Returns the table of `file`; makes it if there is none.
///
/// # Errors
/// [`LockSpace::no_memory`].
fn find_or_make(file: Identity, space: LockSpace) -> Result<Arc<FileLocks>> {
    let mut stripe = STRIPES[file.stripe()].lock();
    if let Some(locks) = stripe.get(&file) {
        return Ok(locks.clone());
    }
    let locks = reserve::arc(FileLocks::new(FileTable::new()));
    stripe.try_insert(file, locks.clone()).map_err(|_| space.no_memory())?;
    Ok(locks)
}

/// Calls `f` with the locks of `file` in `space`. The table is made if there is none, and is not
/// removed meanwhile.
///
/// # Errors
/// [`LockSpace::no_memory`], `EINTR` if the caller is killed, and those of `f`.
pub(super) fn with_made<R>(
    file: Identity,
    space: LockSpace,
    f: impl FnOnce(&Arc<FileLocks>, &mut LockSet) -> Result<R>,
) -> Result<R> {
    loop {
        let locks = find_or_make(file, space)?;
        let mut table = locks.lock_killable()?;
        if !table.is_removed {
            return f(&locks, table.of_mut(space));
        }
    }
}

/// Removes the table if it has neither locks nor waits. The caller has its lock.
pub(super) fn remove_if_empty(file: Identity, table: &mut FileTable) {
    if table.is_removed || !table.flock.is_empty() || !table.record.is_empty() {
        return;
    }
    table.is_removed = true;
    // The caller has another reference, so nothing is freed here.
    STRIPES[file.stripe()].lock().remove(&file);
}

/// Returns the next file with a table after `last`, or the first one, in the order of stripes.
pub(super) fn after(last: Option<Identity>) -> Option<Identity> {
    let mut from = last.map_or(Bound::Unbounded, Bound::Excluded);
    let first = last.map_or(0, Identity::stripe);
    STRIPES[first..].iter().find_map(|stripe| {
        let from = core::mem::replace(&mut from, Bound::Unbounded);
        stripe.lock().first_from(from.as_ref()).map(|(&file, _)| file)
    })
}
