//! Open file descriptions, which dup and fork share.
//!
//! A sleeping mutex protects the offset of a seekable file. read, write and lseek hold it
//! throughout, since POSIX requires that they are atomic with respect to each other. Streams never
//! take it. A task that must end does not wait for it.

use core::any::Any;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use freehold_collections::{Arc, Box, Map, Weak, reserve};

use super::file::{Allocate, Blocking, DirEntry, File, Ready, Seekable};
use super::flags::OpenFlags;
use super::leases;
use super::locks::{self, Owner};
use super::mount::Mount;
use super::node::{Node, NodeKind};
use super::notify::{self, Events};
use super::path::Path;
use super::text::{Permit, Purpose};
use crate::sync::{Mutex, PollWaiter, SpinLock, UniqueNumbers};
use crate::user::{Sink, Source};
use crate::{Errno, Result};

/// Largest count of one read or write (Linux' MAX_RW_COUNT).
pub const MAX_COUNT: usize = 0x7fff_f000;

/// The position from which a seek counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whence {
    /// The beginning.
    Set,
    /// The description's offset.
    Current,
    /// The end.
    End,
    /// The next byte that is not in a hole.
    Data,
    /// The next hole; the end of the file is one.
    Hole,
}

/// Whether signals report a file's events (O_ASYNC).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signalling {
    /// Signals report events.
    On,
    /// Signals do not report events.
    Off,
}

/// An open file description.
pub struct OpenFile {
    file: Arc<dyn File>,
    path: Option<Path>,
    /// Access mode and status flags, as F_GETFL shows them.
    flags: AtomicU32,
    offset: Mutex<u64>,
    /// State of signal-driven I/O, once a program has asked for any.
    signalling: SpinLock<Option<Arc<dyn Any + Send + Sync>>>,
    /// Number as owner of locks; never reused.
    id: u64,
    /// Whether a lock was requested through this description.
    locked: AtomicBool,
    /// Whether the description had a lease.
    leased: AtomicBool,
    /// The watchers of the description, until it is closed.
    watchers: SpinLock<Watchers>,
    /// Held while the file may be written, or a program runs from it.
    _permit: Option<Permit>,
}

/// Returns the counter of a file that is opened by `path` with these flags, if the file is only
/// read and has a counter.
#[inline(always)]
fn read_only_use(path: Option<&Path>, flags: OpenFlags) -> Option<&super::text::TextUse> {
    if flags.reads() && !flags.writes() { path?.node.text_use() } else { None }
}

/// The mount that a description can write through.
#[inline]
fn written_mount(path: Option<&Path>, flags: OpenFlags) -> Option<&Arc<Mount>> {
    path.filter(|path| flags.writes() && path.node.kind() == NodeKind::Regular).map(|path| &*path.mount)
}

static IDS: UniqueNumbers = UniqueNumbers::new();

impl OpenFile {
    /// Makes a description of `file`, opened by `path` if it has one.
    ///
    /// # Errors
    /// `ETXTBSY` for writing if a program runs from the file; `EROFS` if the mount became read-only
    /// meanwhile.
    pub fn new(file: Arc<dyn File>, path: Option<Path>, flags: OpenFlags) -> Result<Arc<Self>> {
        let permit = if flags.writes() { Permit::new(&file.node(), Purpose::Write)? } else { None };
        let opened = Self::with_permit(file, path, flags, permit);
        if let Some(mount) = written_mount(opened.path(), flags) {
            // The writer is counted before this check: see `Mount::set_flags`.
            mount.writable()?;
        }
        notify::file(&opened, Events::OPEN);
        Ok(opened)
    }

    /// Makes a description from which a program runs.
    ///
    /// # Errors
    /// `ETXTBSY` if the file is open for writing.
    pub fn of_program(file: Arc<dyn File>, path: Option<Path>) -> Result<Arc<Self>> {
        if let Some(path) = &path {
            notify::before_open(path, Events::OPEN | Events::OPENED_TO_RUN)?;
        }
        let permit = Permit::new(&file.node(), Purpose::Run)?;
        let opened = Self::with_permit(file, path, OpenFlags::empty(), permit);
        if leases::are_there() {
            leases::before_open(&*opened.node(), OpenFlags::empty())?;
        }
        notify::file(&opened, Events::OPEN | Events::OPENED_TO_RUN);
        Ok(opened)
    }

    /// Makes a description whose use is no event.
    ///
    /// # Errors
    /// Those of [`OpenFile::new`].
    #[cold]
    pub fn unnotified(file: Arc<dyn File>, path: Path, flags: OpenFlags) -> Result<Arc<Self>> {
        let permit = if flags.writes() { Permit::new(&file.node(), Purpose::Write)? } else { None };
        let opened = Self::with_permit(file, Some(path), flags, permit);
        opened.flags.fetch_or(OpenFlags::UNNOTIFIED.bits(), Ordering::Relaxed);
        if let Some(mount) = written_mount(opened.path(), flags) {
            mount.writable()?;
        }
        Ok(opened)
    }

    #[inline(always)]
    fn with_permit(
        file: Arc<dyn File>,
        path: Option<Path>,
        flags: OpenFlags,
        permit: Option<Permit>,
    ) -> Arc<Self> {
        if let Some(text) = read_only_use(path.as_ref(), flags) {
            text.add_reader();
        }
        if let Some(mount) = written_mount(path.as_ref(), flags) {
            mount.add_writer();
        }
        reserve::arc(Self {
            file,
            path,
            flags: AtomicU32::new((flags & OpenFlags::KEPT).bits()),
            offset: Mutex::new(0),
            signalling: SpinLock::new(None),
            id: IDS.next(),
            locked: AtomicBool::new(false),
            leased: AtomicBool::new(false),
            watchers: SpinLock::new(Watchers::None),
            _permit: permit,
        })
    }

    /// Returns the owner of locks that belong to the description (flock, OFD locks).
    pub fn lock_owner(&self) -> Owner {
        self.locked.store(true, Ordering::Relaxed);
        Owner::Description(self.id)
    }

    /// Number as owner of locks and leases; never reused.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Notes that the description has a lease, which ends with the description.
    pub fn note_lease(&self) {
        self.leased.store(true, Ordering::Relaxed);
    }

    /// Calls the file's `flush` after a descriptor was closed. Its result becomes close(2)'s
    /// result.
    pub fn flush(&self) -> Result<()> {
        self.file.flush()
    }

    /// Returns the file behind the description.
    pub fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    /// The place at which the file was opened; `None` for pipes, sockets and the like.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_ref()
    }

    /// The inode behind it.
    pub fn node(&self) -> Arc<dyn Node> {
        match &self.path {
            Some(path) => path.node.clone(),
            None => self.file.node(),
        }
    }

    /// Access mode and status flags.
    pub fn flags(&self) -> OpenFlags {
        OpenFlags::from_bits_retain(self.flags.load(Ordering::Relaxed))
    }

    /// F_SETFL: changes the flags that may be changed.
    pub fn set_status(&self, flags: OpenFlags) {
        self.change_flags(OpenFlags::SETTABLE, flags);
    }

    /// FIONBIO: sets whether calls wait.
    pub fn set_blocking(&self, blocking: Blocking) {
        self.set_flag(OpenFlags::NONBLOCK, blocking == Blocking::Never);
    }

    fn set_flag(&self, flag: OpenFlags, is_on: bool) {
        self.change_flags(flag, if is_on { flag } else { OpenFlags::empty() });
    }

    /// Takes the flags in `which` from `new`. Concurrent changes of other flags are kept.
    fn change_flags(&self, which: OpenFlags, new: OpenFlags) {
        let changed = |flags: u32| Some(flags & !which.bits() | (new & which).bits());
        let _ = self.flags.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
        self.file.flags_changed(self.flags());
    }

    /// Whether calls on the description wait.
    pub fn blocking(&self) -> Blocking {
        if self.flags().contains(OpenFlags::NONBLOCK) { Blocking::Never } else { Blocking::Wait }
    }

    /// Sets whether F_GETFL shows O_ASYNC.
    pub fn show_async(&self, is_on: Signalling) {
        self.set_flag(OpenFlags::ASYNC, is_on == Signalling::On);
    }

    /// Returns the state of signal-driven I/O that [`set_signalling`](Self::set_signalling) stored.
    pub fn signalling<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let state = self.signalling.lock().clone();
        reserve::downcast(state?).ok()
    }

    /// Stores `state` for the lifetime of the description. The first call wins.
    pub fn set_signalling<T: Any + Send + Sync>(&self, state: Arc<T>) {
        self.signalling.lock().get_or_insert(state);
    }

    /// `EBADF` unless the description was opened for reading.
    pub fn check_readable(&self) -> Result<()> {
        if self.flags().reads() { Ok(()) } else { Err(Errno::EBADF) }
    }

    /// `EBADF` unless the description was opened for writing.
    pub fn check_writable(&self) -> Result<()> {
        if self.flags().writes() { Ok(()) } else { Err(Errno::EBADF) }
    }

    /// `EBADF` for an O_PATH description, which only identifies a place.
    pub fn check_not_path(&self) -> Result<()> {
        if self.flags().contains(OpenFlags::PATH) { Err(Errno::EBADF) } else { Ok(()) }
    }

    /// Asks whether the file may be read. Code that reads through the [`File`] itself calls this.
    ///
    /// # Errors
    /// `EPERM` if a fanotify group denies it; `EINTR` if the caller is killed.
    #[inline]
    pub fn will_read(&self) -> Result<()> {
        notify::before_read(self)
    }

    /// Notifies watches that `count` bytes were read. Code that reads through the [`File`] itself
    /// calls this.
    #[inline]
    pub fn has_read(&self, count: usize) {
        if count > 0 {
            notify::file(self, Events::ACCESS);
        }
    }

    /// Notifies watches that `count` bytes were written; see [`OpenFile::has_read`].
    #[inline]
    pub fn has_written(&self, count: usize) {
        if count > 0 {
            notify::file(self, Events::MODIFY);
        }
    }

    /// read(2).
    pub fn read(&self, sink: &mut dyn Sink) -> Result<usize> {
        self.read_untold(sink).inspect(|&count| self.has_read(count))
    }

    #[inline]
    fn read_untold(&self, sink: &mut dyn Sink) -> Result<usize> {
        self.check_readable()?;
        notify::before_read(self)?;
        if self.file.seekable() == Seekable::Stream {
            return self.file.read_at(0, sink, self.blocking());
        }
        let mut offset = self.offset.lock_killable()?;
        let n = self.file.read_at(*offset, sink, self.blocking())?;
        *offset += n as u64;
        Ok(n)
    }

    /// Prepares a write. A write without bytes changes nothing.
    #[inline]
    fn before_write(&self, source: &dyn Source) -> Result<()> {
        if source.remaining() > 0 { self.file.drop_rights() } else { Ok(()) }
    }

    /// write(2).
    pub fn write(&self, source: &mut dyn Source) -> Result<usize> {
        self.write_untold(source).inspect(|&count| self.has_written(count))
    }

    #[inline]
    fn write_untold(&self, source: &mut dyn Source) -> Result<usize> {
        self.check_writable()?;
        if self.file.seekable() == Seekable::Stream {
            return self.file.write_at(0, source, self.blocking());
        }
        self.before_write(source)?;
        let mut offset = self.offset.lock_killable()?;
        if self.flags().contains(OpenFlags::APPEND) {
            let (n, at) = self.file.append(source, self.blocking())?;
            *offset = at + n as u64;
            return Ok(n);
        }
        let n = self.file.write_at(*offset, source, self.blocking())?;
        *offset += n as u64;
        Ok(n)
    }

    /// pread64(2): the description's offset is neither used nor changed.
    pub fn read_at(&self, offset: u64, sink: &mut dyn Sink) -> Result<usize> {
        self.check_readable()?;
        self.check_seekable()?;
        notify::before_read(self)?;
        self.file.read_at(offset, sink, self.blocking()).inspect(|&count| self.has_read(count))
    }

    /// pwrite64(2). With O_APPEND it appends whatever the offset is, as on Linux.
    pub fn write_at(&self, offset: u64, source: &mut dyn Source) -> Result<usize> {
        self.check_writable()?;
        self.check_seekable()?;
        if self.flags().contains(OpenFlags::APPEND) {
            return self.append(source);
        }
        self.before_write(source)?;
        self.file.write_at(offset, source, self.blocking()).inspect(|&count| self.has_written(count))
    }

    /// Appends, even without O_APPEND. Returns the number of bytes.
    pub fn append(&self, source: &mut dyn Source) -> Result<usize> {
        self.before_write(source)?;
        let (count, _) = self.file.append(source, self.blocking())?;
        self.has_written(count);
        Ok(count)
    }

    /// fallocate(2).
    pub fn allocate(&self, range: Range<u64>, how: Allocate) -> Result<()> {
        self.file.drop_rights()?;
        self.file.allocate(range, how)?;
        notify::file(self, Events::MODIFY);
        Ok(())
    }

    /// `ESPIPE` for streams.
    pub fn check_seekable(&self) -> Result<()> {
        match self.file.seekable() {
            Seekable::Offset => Ok(()),
            Seekable::Stream => Err(Errno::ESPIPE),
        }
    }

    /// Fills `bytes` from `offset` on for the kernel itself. Returns how many bytes were read.
    pub fn read_kernel(&self, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        notify::before_read(self)?;
        let mut done = 0;
        while done < bytes.len() {
            let mut sink = super::bytes::SliceSink::new(&mut bytes[done..]);
            match self.file.read_at(offset + done as u64, &mut sink, Blocking::Wait)? {
                0 => break,
                n => done += n,
            }
        }
        self.has_read(done);
        Ok(done)
    }

    /// lseek(2).
    pub fn seek(&self, offset: i64, whence: Whence) -> Result<u64> {
        self.check_not_path()?;
        self.check_seekable()?;
        let mut current = self.offset.lock_killable()?;
        let base = match whence {
            Whence::Set => 0,
            Whence::Current => *current,
            Whence::End => self.file.end()?,
            Whence::Data | Whence::Hole => {
                *current = self.seek_data(offset, whence)?;
                return Ok(*current);
            }
        };
        let target = i64::try_from(base).ok().and_then(|b| b.checked_add(offset)).ok_or(Errno::EOVERFLOW)?;
        *current = u64::try_from(target).map_err(|_| Errno::EINVAL)?;
        Ok(*current)
    }

    fn seek_data(&self, offset: i64, whence: Whence) -> Result<u64> {
        let content = self.file.content().ok_or(Errno::EINVAL)?;
        let from = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        if from >= content.size() {
            return Err(Errno::ENXIO);
        }
        match whence {
            Whence::Data => content.seek_data(from).ok_or(Errno::ENXIO),
            _ => Ok(content.seek_hole(from)),
        }
    }

    /// The present offset (fdinfo).
    ///
    /// # Errors
    /// `EINTR` if the task must end.
    pub fn position(&self) -> Result<u64> {
        Ok(*self.offset.lock_killable()?)
    }

    /// Uses and changes the offset atomically (sendfile and copy_file_range without an offset of
    /// the caller).
    pub fn with_offset<R>(&self, f: impl FnOnce(&mut u64) -> R) -> R {
        f(&mut self.offset.lock())
    }

    /// Emits directory entries from the description's position on, until `emit` returns `false`.
    /// The position is moved after the last accepted entry.
    pub fn read_dir(&self, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.check_not_path()?;
        notify::before_read(self)?;
        let mut offset = self.offset.lock_killable()?;
        let mut reached = *offset;
        let result = self.file.read_dir(*offset, &mut |entry| {
            let next = entry.next;
            let taken = emit(entry);
            if taken {
                reached = next;
            }
            taken
        });
        *offset = reached;
        drop(offset);
        if result.is_ok() {
            notify::file(self, Events::ACCESS);
        }
        result
    }

    /// Returns the events that are ready now; see [`File::poll`].
    pub fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        let ready = self.file.poll(waiter);
        let is_error = ready.contains(Ready::IF_NONBLOCKING) && !self.flags().contains(OpenFlags::NONBLOCK);
        if is_error { Ready::ERR } else { ready.difference(Ready::IF_NONBLOCKING) }
    }
}

/// Observer of the final close of a description.
pub trait Watcher: Any + Send + Sync {
    /// The description was closed: it has no descriptor any more. May not sleep.
    fn closed(&self);
}

/// The watchers of a description: nearly always at most one, which needs no memory.
enum Watchers {
    None,
    One(Weak<dyn Watcher>),
    /// Watchers by address.
    Many(Box<Map<usize, Weak<dyn Watcher>>>),
}

impl Watchers {
    fn add(&mut self, watcher: Weak<dyn Watcher>) -> Result<()> {
        *self = match core::mem::replace(self, Self::None) {
            Self::None => Self::One(watcher),
            Self::One(first) => {
                let mut all = Map::new();
                let added = all.try_insert(address_of(&watcher), watcher);
                if let Err(error) = added.and_then(|_| all.try_insert(address_of(&first), first.clone())) {
                    *self = Self::One(first);
                    return Err(error.into());
                }
                Self::Many(reserve::boxed(all))
            }
            Self::Many(mut all) => {
                let added = all.try_insert(address_of(&watcher), watcher);
                *self = Self::Many(all);
                return added.map(drop).map_err(Into::into);
            }
        };
        Ok(())
    }

    fn remove(&mut self, watcher: &Weak<dyn Watcher>) -> Option<Weak<dyn Watcher>> {
        match self {
            Self::One(first) if address_of(first) == address_of(watcher) => {
                let Self::One(first) = core::mem::replace(self, Self::None) else { return None };
                Some(first)
            }
            Self::None | Self::One(_) => None,
            Self::Many(all) => all.remove(&address_of(watcher)),
        }
    }

    /// Tells all watchers that the description was closed.
    fn tell(&self) {
        let tell = |watcher: &Weak<dyn Watcher>| {
            if let Some(watcher) = watcher.upgrade() {
                watcher.closed();
            }
        };
        match self {
            Self::None => {}
            Self::One(first) => tell(first),
            Self::Many(all) => all.values().for_each(tell),
        }
    }
}

fn address_of(watcher: &Weak<dyn Watcher>) -> usize {
    watcher.as_ptr().cast::<()>().addr()
}

impl OpenFile {
    /// Registers `watcher`, which is told when this description is closed for good.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add_watcher(&self, watcher: Weak<dyn Watcher>) -> Result<()> {
        self.watchers.lock().add(watcher)
    }

    /// The watcher, if there is exactly one and it is a `T`.
    pub fn sole_watcher<T: Watcher>(&self) -> Option<Arc<T>> {
        // The reference may be the watcher's last one, so it must not be dropped under the lock.
        let watcher = match &*self.watchers.lock() {
            Watchers::One(watcher) => watcher.clone(),
            Watchers::None | Watchers::Many(_) => return None,
        };
        let any: Arc<dyn Any + Send + Sync> = watcher.upgrade()?;
        any.downcast().ok()
    }

    /// The opposite of [`OpenFile::add_watcher`].
    pub fn remove_watcher(&self, watcher: &Weak<dyn Watcher>) {
        let removed = self.watchers.lock().remove(watcher);
        drop(removed);
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if *self.leased.get_mut() {
            let _had_none = leases::release(self);
        }
        if let Some(text) = read_only_use(self.path.as_ref(), self.flags()) {
            text.remove_reader();
        }
        if let Some(mount) = written_mount(self.path.as_ref(), self.flags()) {
            mount.remove_writer();
        }
        // Dropped before the file ends, since that may be an event.
        self.signalling.get_mut().take();
        notify::closed(self);
        self.watchers.get_mut().tell();
        if *self.locked.get_mut() {
            locks::release(self.node().identity(), Owner::Description(self.id));
        }
        self.file.release();
    }
}
