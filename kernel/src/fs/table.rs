//! Descriptors: small numbers for open files (shared by CLONE_FILES).
//!
//! The table's spin lock is held only for a lookup or a change. Files are taken out of the table
//! first and dropped after the lock is released: dropping the last reference may flush, wake and
//! sleep.
//!
//! A call with side effects that cannot be undone (open(2) may make a file, accept(2) takes a
//! connection) reserves its descriptor first. No other call gets that number; for other calls the
//! descriptor is not open.

use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use freehold_collections::{Arc, Vec, reserve};

use super::flags::OpenFlags;
use super::locks::{self, Owner};
use super::open_file::OpenFile;
use crate::sync::{SpinLock, SpinLockGuard};
use crate::{Errno, Result};

/// Effect of execve on a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnExec {
    /// The new program keeps the descriptor.
    Keep,
    /// The descriptor is closed (FD_CLOEXEC).
    Close,
}

impl OnExec {
    /// Returns the effect that the flags of an open file request.
    pub fn asked_by(flags: OpenFlags) -> Self {
        if flags.contains(OpenFlags::CLOEXEC) { Self::Close } else { Self::Keep }
    }
}

#[derive(Clone)]
struct Opened {
    file: Arc<OpenFile>,
    on_exec: OnExec,
}

enum DescriptorSlot {
    Free,
    /// Reserved by a [`Promise`].
    Promised,
    Open(Opened),
}

impl DescriptorSlot {
    const fn opened(&self) -> Option<&Opened> {
        if let Self::Open(opened) = self { Some(opened) } else { None }
    }

    const fn opened_mut(&mut self) -> Option<&mut Opened> {
        if let Self::Open(opened) = self { Some(opened) } else { None }
    }
}

#[derive(Default)]
struct Slots {
    slots: Vec<DescriptorSlot>,
    /// No descriptor below this is free.
    first_free: usize,
}

/// A table of descriptors.
pub struct FileTable {
    inner: SpinLock<Slots>,
    /// Number as owner of record locks; never reused.
    id: u64,
    /// Whether a record lock was requested through this table, so that a close must search for
    /// locks.
    locks: AtomicBool,
}

/// A view of a table. The table does not change while the view exists.
pub struct TableView<'a>(SpinLockGuard<'a, Slots>);

impl TableView<'_> {
    /// The open file with descriptor `fd`; `EBADF` if there is none.
    pub fn get(&self, fd: i32) -> Result<&Arc<OpenFile>> {
        self.0.get(fd).map(|opened| &opened.file)
    }
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Slots {
    fn get(&self, fd: i32) -> Result<&Opened> {
        usize::try_from(fd).ok().and_then(|i| self.slots.get(i)?.opened()).ok_or(Errno::EBADF)
    }

    fn get_mut(&mut self, fd: i32) -> Result<&mut Opened> {
        usize::try_from(fd).ok().and_then(|i| self.slots.get_mut(i)?.opened_mut()).ok_or(Errno::EBADF)
    }

    /// Returns the lowest free number from `least` on, and makes room for it.
    fn reserve(&mut self, least: usize, limit: usize) -> Result<usize> {
        let from = least.max(self.first_free);
        let free = |&i: &usize| matches!(self.slots[i], DescriptorSlot::Free);
        let index = (from..self.slots.len()).find(free).unwrap_or(from.max(self.slots.len()));
        if index >= limit {
            return Err(Errno::EMFILE);
        }
        self.make_room(index)?;
        if least <= self.first_free {
            self.first_free = index;
        }
        Ok(index)
    }

    fn make_room(&mut self, index: usize) -> Result<()> {
        if index >= self.slots.len() {
            let more = index + 1 - self.slots.len();
            self.slots.try_extend(core::iter::repeat_with(|| DescriptorSlot::Free).take(more))?;
        }
        Ok(())
    }

    fn remove(&mut self, index: usize) -> Option<Opened> {
        let slot = self.slots.get_mut(index).filter(|slot| slot.opened().is_some())?;
        let DescriptorSlot::Open(opened) = core::mem::replace(slot, DescriptorSlot::Free) else {
            return None;
        };
        self.first_free = self.first_free.min(index);
        Some(opened)
    }
}

/// Number of descriptors that are closed, or checked for that, before the CPU is yielded: a power
/// of two.
const CLOSED_AT_ONCE: usize = 64;

impl FileTable {
    /// Makes an empty table.
    pub fn new() -> Arc<Self> {
        Self::with_slots(Slots::default())
    }

    fn with_slots(slots: Slots) -> Arc<Self> {
        reserve::arc(Self {
            inner: SpinLock::new(slots),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            locks: AtomicBool::new(false),
        })
    }

    /// Returns the owner of record locks that were set through this table.
    pub fn lock_owner(&self) -> Owner {
        self.locks.store(true, Ordering::Relaxed);
        Owner::Process(self.id)
    }

    /// Makes a new table with the same open files (fork without CLONE_FILES, unshare).
    pub fn duplicate(&self) -> Result<Arc<Self>> {
        // Memory is allocated outside the lock; the table may grow meanwhile.
        let mut copy = Vec::new();
        let mut first_free;
        loop {
            let needed = self.inner.lock().slots.len();
            copy.try_reserve(needed)?;
            let inner = self.inner.lock();
            if inner.slots.len() <= copy.capacity() {
                first_free = inner.first_free;
                for (index, slot) in inner.slots.iter().enumerate() {
                    copy.push_reserved(match slot {
                        DescriptorSlot::Open(opened) => DescriptorSlot::Open(opened.clone()),
                        // The number is reserved in the other table only.
                        DescriptorSlot::Promised | DescriptorSlot::Free => {
                            first_free = first_free.min(index);
                            DescriptorSlot::Free
                        }
                    });
                }
                break;
            }
        }
        Ok(Self::with_slots(Slots { slots: copy, first_free }))
    }

    /// The open file with descriptor `fd`; `EBADF` if there is none.
    pub fn get(&self, fd: i32) -> Result<Arc<OpenFile>> {
        self.inner.lock().get(fd).map(|slot| slot.file.clone())
    }

    /// Locks the table for lookups of a few descriptors. The holder may not sleep.
    pub fn look(&self) -> TableView<'_> {
        TableView(self.inner.lock())
    }

    /// Gives `file` the lowest free descriptor. `limit` is RLIMIT_NOFILE: `EMFILE` if no descriptor
    /// below it is free.
    pub fn insert(&self, file: Arc<OpenFile>, on_exec: OnExec, limit: usize) -> Result<i32> {
        self.insert_from(0, file, on_exec, limit)
    }

    /// Gives `file` the lowest free descriptor from `least` on (F_DUPFD).
    pub fn insert_from(
        &self,
        least: usize,
        file: Arc<OpenFile>,
        on_exec: OnExec,
        limit: usize,
    ) -> Result<i32> {
        let mut inner = self.inner.lock();
        let index = inner.reserve(least, limit)?;
        inner.slots[index] = DescriptorSlot::Open(Opened { file, on_exec });
        Ok(index as i32)
    }

    /// Reserves the lowest free descriptor for a file that the caller does not have yet. `limit` is
    /// RLIMIT_NOFILE.
    ///
    /// # Errors
    /// `EMFILE`, `ENOMEM`.
    pub fn promise(&self, limit: usize) -> Result<Promise<'_>> {
        let mut inner = self.inner.lock();
        let index = inner.reserve(0, limit)?;
        inner.slots[index] = DescriptorSlot::Promised;
        Ok(Promise { table: self, index: Some(index) })
    }

    /// Puts `file` at exactly `fd` (dup2, dup3). Returns the previous file, which the caller
    /// closes. `EBUSY` if `fd` is reserved.
    pub fn replace(
        &self,
        fd: i32,
        file: Arc<OpenFile>,
        on_exec: OnExec,
        limit: usize,
    ) -> Result<Option<Arc<OpenFile>>> {
        let index = usize::try_from(fd).ok().filter(|&i| i < limit).ok_or(Errno::EBADF)?;
        let mut inner = self.inner.lock();
        inner.make_room(index)?;
        let slot = &mut inner.slots[index];
        if matches!(slot, DescriptorSlot::Promised) {
            return Err(Errno::EBUSY);
        }
        let old = core::mem::replace(slot, DescriptorSlot::Open(Opened { file, on_exec }));
        Ok(if let DescriptorSlot::Open(old) = old { Some(old.file) } else { None })
    }

    /// Takes `fd` out of the table.
    pub fn take(&self, fd: i32) -> Result<Arc<OpenFile>> {
        let index = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        self.inner.lock().remove(index).map(|slot| slot.file).ok_or(Errno::EBADF)
    }

    /// Closes `fd` as close(2) does. This also releases the process' record locks on the file,
    /// including those that were set through other descriptors.
    pub fn close(&self, fd: i32) -> Result<()> {
        let file = self.take(fd)?;
        self.leave(&file);
        file.flush()
    }

    /// Handles the file of a descriptor that was taken out of the table. The file's error at
    /// closing is ignored.
    pub fn closed(&self, file: &OpenFile) {
        self.leave(file);
        // As on Linux, only close(2) reports this error.
        let _ = file.flush();
    }

    fn leave(&self, file: &OpenFile) {
        if self.locks.load(Ordering::Relaxed) {
            locks::release(file.node().identity(), Owner::Process(self.id));
        }
    }

    /// Closes all of `fds`.
    pub fn close_range(&self, fds: RangeInclusive<u32>) {
        for index in *fds.start() as usize..=*fds.end() as usize {
            let mut inner = self.inner.lock();
            if index >= inner.slots.len() {
                return;
            }
            let slot = inner.remove(index);
            drop(inner);
            if let Some(slot) = slot {
                self.closed(&slot.file);
            }
            if index % CLOSED_AT_ONCE == 0 {
                crate::sched::rest();
            }
        }
    }

    /// Whether messages to one of the open files can carry files.
    pub fn receives_files(&self) -> bool {
        let mut from = 0;
        while let Some((index, file)) = self.next_open(from) {
            if file.file().receives_files() {
                return true;
            }
            from = index + 1;
        }
        false
    }

    /// Returns the effect that execve will have on `fd`.
    pub fn on_exec(&self, fd: i32) -> Result<OnExec> {
        self.inner.lock().get(fd).map(|slot| slot.on_exec)
    }

    /// Sets the effect that execve will have on `fd`.
    pub fn set_on_exec(&self, fd: i32, on_exec: OnExec) -> Result<()> {
        self.inner.lock().get_mut(fd).map(|slot| slot.on_exec = on_exec)
    }

    /// Sets the effect that execve will have on all of `fds` (close_range with
    /// CLOSE_RANGE_CLOEXEC).
    pub fn set_on_exec_range(&self, fds: RangeInclusive<u32>, on_exec: OnExec) {
        let mut inner = self.inner.lock();
        let end = inner.slots.len().min(*fds.end() as usize + 1);
        let start = (*fds.start() as usize).min(end);
        for slot in inner.slots[start..end].iter_mut().filter_map(DescriptorSlot::opened_mut) {
            slot.on_exec = on_exec;
        }
    }

    /// Closes the descriptors that are marked for it, after an execve.
    pub fn close_on_exec(&self) {
        let len = self.inner.lock().slots.len();
        for index in 0..len {
            let mut inner = self.inner.lock();
            let slot = inner.slots.get(index).and_then(DescriptorSlot::opened);
            let marked = slot.is_some_and(|slot| slot.on_exec == OnExec::Close);
            let slot = if marked { inner.remove(index) } else { None };
            drop(inner);
            if let Some(slot) = slot {
                self.closed(&slot.file);
            }
            if index % CLOSED_AT_ONCE == 0 {
                crate::sched::rest();
            }
        }
    }

    /// Returns the first descriptor in use from `from` on, and its file.
    pub fn next_open(&self, from: usize) -> Option<(usize, Arc<OpenFile>)> {
        let inner = self.inner.lock();
        let slots = inner.slots.get(from..)?;
        slots.iter().enumerate().find_map(|(i, slot)| Some((from + i, slot.opened()?.file.clone())))
    }

    /// Returns the number of slots (FDSize in /proc/PID/status).
    pub fn size(&self) -> usize {
        self.inner.lock().slots.len()
    }
}

/// A reserved descriptor that its holder will open. Dropping this frees the number.
#[must_use]
pub struct Promise<'a> {
    table: &'a FileTable,
    /// The number, until it is kept.
    index: Option<usize>,
}

impl Promise<'_> {
    /// Opens the descriptor: from now on it belongs to `file`.
    pub fn keep(mut self, file: Arc<OpenFile>, on_exec: OnExec) -> i32 {
        let index = self.index.take().expect("it is taken here alone, where the promise ends");
        self.table.inner.lock().slots[index] = DescriptorSlot::Open(Opened { file, on_exec });
        index as i32
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        if let Some(index) = self.index {
            let mut inner = self.table.inner.lock();
            inner.slots[index] = DescriptorSlot::Free;
            inner.first_free = inner.first_free.min(index);
        }
    }
}

impl Drop for FileTable {
    fn drop(&mut self) {
        if *self.locks.get_mut() {
            locks::release_all(Owner::Process(self.id));
        }
    }
}
