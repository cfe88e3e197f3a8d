//! Descriptors: small numbers for open files (shared by CLONE_FILES).
//!
//! The table's spin lock is held for a look or a change only (threads of one process find the files
//! that they use without it: [`recent`]), which costs nothing for descriptors
//! that are not open ([`bits`]): only a copy of the table has a slot for each number below the
//! highest one that is open. Files leave the table before they are
//! dropped, and are dropped after the lock: the last reference may flush, wake and sleep.
//!
//! A call with side effects that cannot be undone (open(2) may make a file, accept(2) takes a
//! connection) reserves its descriptor first. No other call gets that number; for other calls the
//! descriptor is not open.

mod bits;
mod recent;
#[cfg(test)]
mod recent_model;

use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use freehold_collections::{
    Arc, Vec,
    reserve::{self, ArcMethods as _},
};
use spin::Once;

use self::bits::NumberBits;
use self::recent::RecentFiles;
use super::flags::OpenFlags;
use super::locks::{self, Owner};
use super::notify::dnotify;
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

// The fields that each open and each close change are the first ones. So they are on one cache line
// with the lock, which is before them: see `FileTable`.
#[derive(Default)]
#[repr(C)]
struct Slots {
    /// No descriptor below is free.
    first_free: usize,
    /// The numbers that are not free. One without an open file is reserved by a [`Promise`].
    taken: NumberBits,
    slots: Vec<Option<Opened>>,
}

/// A table of descriptors.
#[repr(C)]
pub struct FileTable {
    inner: SpinLock<Slots>,
    /// The files that threads used last, once the table is shared.
    recent: Once<RecentFiles>,
    /// Number as owner of record locks and of watches (F_NOTIFY); never reused.
    id: u64,
    /// Whether a record lock or a watch was requested through this table, so that a close must
    /// search for them.
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

/// One more than the highest descriptor of a table.
static NR_OPEN: AtomicUsize = AtomicUsize::new(1 << 20);

/// Returns the number of descriptors that a process can have at most (/proc/sys/fs/nr_open), and
/// the highest RLIMIT_NOFILE.
pub fn most() -> u64 {
    NR_OPEN.load(Ordering::Relaxed) as u64
}

/// Sets [`most`]. Higher descriptors that are open stay.
///
/// # Errors
/// `EINVAL` below 64, and for a number that is no descriptor.
pub fn set_most(most: u64) -> Result<()> {
    if !(WORD as u64..=(i32::MAX as u64 + 1) - WORD as u64).contains(&most) {
        return Err(Errno::EINVAL);
    }
    NR_OPEN.store(most as usize, Ordering::Relaxed);
    Ok(())
}

/// Linux counts the descriptors of a table in groups of this size.
const WORD: usize = 64;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Slots {
    fn get(&self, fd: i32) -> Result<&Opened> {
        usize::try_from(fd).ok().and_then(|i| self.slots.get(i)?.as_ref()).ok_or(Errno::EBADF)
    }

    fn get_mut(&mut self, fd: i32) -> Result<&mut Opened> {
        usize::try_from(fd).ok().and_then(|i| self.slots.get_mut(i)?.as_mut()).ok_or(Errno::EBADF)
    }

    /// Takes the lowest free number from `least` on, for a slot that the caller fills.
    fn reserve(&mut self, least: usize, limit: usize) -> Result<usize> {
        let index = self.taken.first_free(least.max(self.first_free));
        if index >= limit.min(NR_OPEN.load(Ordering::Relaxed)) {
            return Err(Errno::EMFILE);
        }
        self.make_room(index)?;
        self.taken.take(index);
        if least <= self.first_free {
            self.first_free = index + 1;
        }
        Ok(index)
    }

    fn make_room(&mut self, index: usize) -> Result<()> {
        if index >= self.slots.len() {
            let more = index + 1 - self.slots.len();
            self.slots.try_extend(core::iter::repeat_with(|| None).take(more))?;
        }
        if !self.taken.has_room(index + 1) {
            self.taken.make_room(self.slots.len())?;
        }
        Ok(())
    }

    fn remove(&mut self, index: usize) -> Option<Opened> {
        let opened = self.slots.get_mut(index)?.take()?;
        self.free(index);
        Some(opened)
    }

    /// Lets a number without an open file be taken.
    fn free(&mut self, index: usize) {
        self.taken.free(index);
        self.first_free = self.first_free.min(index);
    }

    /// Copies open descriptors into an empty table that has room for them. A number that is
    /// promised here is free there.
    fn copy_to(&self, copy: &mut Self) {
        copy.first_free = self.first_free;
        for (index, slot) in self.slots[..self.taken.end()].iter().enumerate() {
            copy.slots.push_reserved(slot.clone());
            if slot.is_some() {
                copy.taken.take(index);
            } else {
                copy.first_free = copy.first_free.min(index);
            }
        }
    }

    /// The first descriptor in use from `from` on.
    fn next_open(&self, mut from: usize) -> Option<(usize, &Opened)> {
        loop {
            let index = self.taken.first_taken(from)?;
            if let Some(opened) = &self.slots[index] {
                return Some((index, opened));
            }
            from = index + 1;
        }
    }
}

/// Descriptors that are closed, or looked at for that, before others may run.
const CLOSED_AT_ONCE: usize = 64;

impl FileTable {
    /// Makes an empty table.
    pub fn new() -> Arc<Self> {
        Self::with_slots(Slots::default())
    }

    fn with_slots(slots: Slots) -> Arc<Self> {
        reserve::arc(Self {
            inner: SpinLock::new(slots),
            recent: Once::new(),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            locks: AtomicBool::new(false),
        })
    }

    /// Releases record locks and the watch that were set on `file` while `fd` was closed, which
    /// nothing else would release (Linux: fcntl_setlk).
    ///
    /// # Errors
    /// `EBADF` where it was closed.
    pub fn check_still_open(&self, fd: i32, file: &Arc<OpenFile>) -> Result<i64> {
        if self.look().get(fd).is_ok_and(|open| open.is_same(file)) {
            return Ok(0);
        }
        self.leave(file);
        Err(Errno::EBADF)
    }

    /// Returns the owner of record locks that were set through this table.
    pub fn lock_owner(&self) -> Owner {
        Owner::Process(self.owner())
    }

    /// Returns the table's number, for locks and watches that end when it closes their file.
    pub fn owner(&self) -> u64 {
        self.locks.store(true, Ordering::Relaxed);
        self.id
    }

    /// Makes a new table with the same open files (fork without CLONE_FILES, unshare).
    ///
    /// # Errors
    /// `EMFILE` if a descriptor is above [`most`]; `ENOMEM`.
    pub fn duplicate(&self) -> Result<Arc<Self>> {
        // Room is found outside the lock; the table may have grown meanwhile.
        let mut copy = Slots::default();
        loop {
            let needed = self.inner.lock().taken.end();
            let most = NR_OPEN.load(Ordering::Relaxed).next_multiple_of(WORD);
            if needed > most {
                return Err(Errno::EMFILE);
            }
            copy.slots.try_reserve(needed)?;
            copy.taken.make_room(needed)?;
            let inner = self.inner.lock();
            if inner.taken.end() <= copy.slots.capacity() && copy.taken.has_room(inner.taken.end()) {
                inner.copy_to(&mut copy);
                break;
            }
        }
        Ok(Self::with_slots(copy))
    }

    /// Prepares for use by several threads, so that most of their lookups do not take the table's
    /// lock. Without memory all of them do.
    pub fn share(&self) {
        let _ = self.recent.try_call_once(RecentFiles::new);
    }

    /// The open file with descriptor `fd`; `EBADF` if there is none.
    #[inline]
    pub fn get(&self, fd: i32) -> Result<Arc<OpenFile>> {
        match self.recent.get() {
            None => self.inner.lock().get(fd).map(|slot| slot.file.clone()),
            Some(recent) => recent.find(fd).map_or_else(|| self.get_and_note(fd, recent), Ok),
        }
    }

    #[cold]
    fn get_and_note(&self, fd: i32, recent: &RecentFiles) -> Result<Arc<OpenFile>> {
        let inner = self.inner.lock();
        let file = &inner.get(fd)?.file;
        recent.note(fd, file);
        Ok(file.clone())
    }

    /// Takes the descriptor `index` out of the locked table.
    fn remove(&self, inner: &mut Slots, index: usize) -> Option<Opened> {
        let opened = inner.remove(index)?;
        self.forget(index);
        Some(opened)
    }

    /// Forgets what threads know of `index`, whose file changes. The table is locked.
    fn forget(&self, index: usize) {
        if let Some(recent) = self.recent.get() {
            recent.forget(index);
        }
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
        inner.slots[index] = Some(Opened { file, on_exec });
        Ok(index as i32)
    }

    /// Reserves the lowest free descriptor for a file that the caller does not have yet. `limit` is
    /// RLIMIT_NOFILE.
    ///
    /// # Errors
    /// `EMFILE`, `ENOMEM`.
    pub fn promise(&self, limit: usize) -> Result<Promise<'_>> {
        let index = self.inner.lock().reserve(0, limit)?;
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
        let limit = limit.min(NR_OPEN.load(Ordering::Relaxed));
        let index = usize::try_from(fd).ok().filter(|&i| i < limit).ok_or(Errno::EBADF)?;
        let mut inner = self.inner.lock();
        inner.make_room(index)?;
        if inner.taken.contains(index) && inner.slots[index].is_none() {
            return Err(Errno::EBUSY);
        }
        let old = inner.slots[index].replace(Opened { file, on_exec });
        self.forget(index);
        inner.taken.take(index);
        Ok(old.map(|old| old.file))
    }

    /// Takes `fd` out of the table.
    fn take(&self, fd: i32) -> Result<Arc<OpenFile>> {
        let index = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        let taken = self.remove(&mut self.inner.lock(), index);
        taken.map(|slot| slot.file).ok_or(Errno::EBADF)
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
            dnotify::end(file, self.id);
        }
    }

    /// Closes all of `fds`.
    pub fn close_range(&self, fds: RangeInclusive<u32>) {
        let (mut next, end) = (*fds.start() as usize, *fds.end() as usize);
        let is_inside = |open: &(usize, &Opened)| open.0 <= end;
        let mut closed: usize = 0;
        loop {
            let mut inner = self.inner.lock();
            let found = inner.next_open(next).filter(is_inside).map(|(index, _)| index);
            let slot = found.and_then(|index| self.remove(&mut inner, index));
            drop(inner);
            let (Some(index), Some(slot)) = (found, slot) else { return };
            self.closed(&slot.file);
            next = index + 1;
            closed += 1;
            if closed.is_multiple_of(CLOSED_AT_ONCE) {
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
        let mut next = *fds.start() as usize;
        while let Some((index, _)) = inner.next_open(next) {
            if index > *fds.end() as usize {
                break;
            }
            if let Some(opened) = &mut inner.slots[index] {
                opened.on_exec = on_exec;
            }
            next = index + 1;
        }
    }

    /// Closes the descriptors that are marked for it, after an execve.
    pub fn close_on_exec(&self) {
        let (mut next, mut seen): (usize, usize) = (0, 0);
        loop {
            let mut inner = self.inner.lock();
            let Some((index, opened)) = inner.next_open(next) else { return };
            let marked = opened.on_exec == OnExec::Close;
            let slot = if marked { self.remove(&mut inner, index) } else { None };
            drop(inner);
            if let Some(slot) = slot {
                self.closed(&slot.file);
            }
            next = index + 1;
            seen += 1;
            if seen.is_multiple_of(CLOSED_AT_ONCE) {
                crate::sched::rest();
            }
        }
    }

    /// Returns the first descriptor in use from `from` on, and its file.
    pub fn next_open(&self, from: usize) -> Option<(usize, Arc<OpenFile>)> {
        self.inner.lock().next_open(from).map(|(index, opened)| (index, opened.file.clone()))
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
        self.table.inner.lock().slots[index] = Some(Opened { file, on_exec });
        index as i32
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        if let Some(index) = self.index {
            self.table.inner.lock().free(index);
        }
    }
}

impl Drop for FileTable {
    fn drop(&mut self) {
        // Locks are on files that are open here: the rest went when they were closed.
        if *self.locks.get_mut() {
            let mut next = 0;
            while let Some((index, file)) = self.next_open(next) {
                self.leave(&file);
                next = index + 1;
            }
        }
    }
}
