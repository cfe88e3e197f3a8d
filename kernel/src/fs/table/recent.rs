//! The files that threads used last, so that each finds its own without the table's lock.
//!
//! A table that threads share has [`ENTRIES`] entries, each on a cache line of its own. The lowest
//! bits of a descriptor choose the entry. Threads that use different descriptors mostly lock
//! different entries.
//!
//! **Protocol.** An entry gets another file under the table's lock only, and one that is in the
//! table. A caller that takes a file out of the table clears its entry before it unlocks the table.
//! So a lookup that begins after close(2) has returned does not find the closed file. An entry's
//! reference is never the last one. Lock order: table, then entry. `recent_model.rs` explores this.
//! Linux needs no lock here (`__fget_files_rcu`).

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use freehold_collections::{AllocError, Arc, Vec};

use crate::fs::open_file::OpenFile;
use crate::sync::SpinLock;

/// Number of entries of a table.
const ENTRIES: usize = 16;
/// Lookups of other descriptors until an entry changes to the next one. Two descriptors that are
/// used in turn do not change it each time.
const PATIENCE: u32 = 8;
/// The descriptor of an empty entry.
const NONE: i32 = -1;

#[repr(align(64))]
struct RecentEntry {
    /// Changes under both locks.
    fd: AtomicI32,
    /// Lookups of other descriptors since the last change; under the table's lock.
    missed: AtomicU32,
    file: SpinLock<Option<Arc<OpenFile>>>,
}

/// See the module's documentation.
pub(super) struct RecentFiles {
    /// [`ENTRIES`] entries.
    entries: Vec<RecentEntry>,
}

impl RecentFiles {
    pub fn new() -> Result<Self, AllocError> {
        let mut entries = Vec::try_with_capacity(ENTRIES)?;
        for _ in 0..ENTRIES {
            entries.push_reserved(RecentEntry {
                fd: AtomicI32::new(NONE),
                missed: AtomicU32::new(PATIENCE),
                file: SpinLock::new(None),
            });
        }
        Ok(Self { entries })
    }

    fn entry(&self, fd: i32) -> &RecentEntry {
        &self.entries[fd as usize % ENTRIES]
    }

    /// Returns the file of `fd` if it is here.
    #[inline]
    pub fn find(&self, fd: i32) -> Option<Arc<OpenFile>> {
        let entry = self.entry(fd);
        if entry.fd.load(Ordering::Relaxed) != fd {
            return None;
        }
        let file = entry.file.lock();
        // It may have changed before the lock was taken.
        if entry.fd.load(Ordering::Relaxed) == fd { file.clone() } else { None }
    }

    /// Notes that `fd` leads to `file`. The caller holds the table's lock.
    pub fn note(&self, fd: i32, file: &Arc<OpenFile>) {
        let entry = self.entry(fd);
        let missed = entry.missed.load(Ordering::Relaxed);
        if missed < PATIENCE {
            return entry.missed.store(missed + 1, Ordering::Relaxed);
        }
        let mut place = entry.file.lock();
        *place = Some(file.clone());
        entry.fd.store(fd, Ordering::Relaxed);
        entry.missed.store(0, Ordering::Relaxed);
    }

    /// Forgets `fd`, which leaves the table or changes its file. The caller holds the table's lock.
    #[inline]
    pub fn forget(&self, fd: usize) {
        let entry = self.entry(fd as i32);
        if entry.fd.load(Ordering::Relaxed) != fd as i32 {
            return;
        }
        let mut place = entry.file.lock();
        *place = None;
        entry.fd.store(NONE, Ordering::Relaxed);
        entry.missed.store(PATIENCE, Ordering::Relaxed);
    }
}
