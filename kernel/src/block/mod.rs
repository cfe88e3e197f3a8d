//! Disks as files: /dev/vda, /dev/vdb and so on, read and written through the page cache.
//!
//! Each disk has one cache for all who open it. Pages are read when they are first touched and
//! written back by fsync(2), sync(2), the last close, the [flusher](flush), and before the machine
//! stops ([`sync_all`]). When memory is short, the least used pages are evicted ([`evict`]). The
//! size is the device's and never changes: writes after the end are `ENOSPC`. Opened with O_DIRECT,
//! a disk is read and written without the cache ([`direct`]). Disks in slots are plugged in and out
//! while the machine runs ([`plug`]).

mod counted;
mod direct;
mod flush;
mod frame_bytes;
mod held;
mod objects;
mod places;
mod plug;
mod write_backs;

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use counted::CountedDisk;
pub use frame_bytes::{clear_frames, copy_to_frames};
use freehold_bounce::{FrameBytes, FrameList, HeldBytes, HeldFrames, Original, OriginalMut};
use freehold_collections::{Arc, TryCollect, Vec, reserve};
use freehold_frame::{Frame, Held, HeldFrame, PageCache as CacheKind};
use freehold_machine::PAGE_SIZE;
use freehold_virtio::{BlockDevice, BlockError, SECTOR_SIZE, Sleep};
use freehold_vm::{Age, BackingStore, ErrorsTold, Evicted, Eviction, FrameChoice, Laundry, VmError};
pub use held::{HeldDisk, was_ever_held};
pub use objects::{Shortage, ensure_objects};
pub use places::{counts_of, disk_of, list, most, name_of, number_of, size_of};
use places::{each, find, known, sum};

use crate::fs::device::{register_block, register_sync, split_device};
use crate::fs::root::add_device;
use crate::fs::{Blocking, File, FileContent, MmapContent, Node, NodeKind, OpenFlags, Punch, Seekable};
use crate::host::{self, Disk};
use crate::hw::Hardware;
use crate::mem::reclaim::caches::{self, Cached, Caches};
use crate::mem::{CacheContent, Frames, PageCache, frames, hotplug, reclaim};
use crate::user::{Sink, Source, UserPtr, so_far};
use crate::{Errno, Result, sched};
use write_backs::WriteBacks;

/// The major number of virtio disks, as Linux usually gives it.
pub const MAJOR: u32 = 254;
/// Minors that belong to one disk: itself and 15 partitions.
pub const MINORS: u32 = 16;
/// Bytes that are copied before the cache's size is checked again.
const STEP: usize = 256 << 10;
/// Number of pages that are evicted at a time to keep the machine from growing only for the cache.
const RELIEF: u64 = 512;
/// The machine would grow if less than one frame in this many is free.
const RESERVE: u64 = 8;
/// Sectors in a page.
const PAGE_SECTORS: u64 = (PAGE_SIZE / SECTOR_SIZE) as u64;

/// ioctl requests of block devices (linux/fs.h).
mod request {
    pub const BLKROGET: u32 = 0x125e;
    pub const BLKGETSIZE: u32 = 0x1260;
    pub const BLKFLSBUF: u32 = 0x1261;
    pub const BLKSSZGET: u32 = 0x1268;
    pub const BLKPBSZGET: u32 = 0x127b;
    pub const BLKBSZGET: u32 = 0x8008_1270;
    pub const BLKGETSIZE64: u32 = 0x8008_1272;
}

/// How long disks may take for one request, in milliseconds; 0: the driver's default.
static IO_TIMEOUT_MS: AtomicU32 = AtomicU32::new(0);
/// Pages that are being written back.
static UNDER_WAY: AtomicU64 = AtomicU64::new(0);
/// See [`traffic`].
static TRAFFIC: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Sets how long each disk that is registered from now on may take for one request, in
/// milliseconds.
pub fn set_io_timeout(limit_ms: u32) {
    IO_TIMEOUT_MS.store(limit_ms, Ordering::Relaxed);
}

/// Registers the host's disks as block devices, with their nodes in /dev. Called once, after
/// [`host::init`] and when /dev exists.
///
/// # Errors
/// `ENOMEM`.
#[cold]
pub fn init(frames: Frames) -> Result<()> {
    let disks = host::disks().iter().map(|disk| reserve::arc(DiskContent::new(frames, disk.clone())));
    places::begin(disks.try_collect_vec()?);
    caches::register(&DiskCaches);
    // vda to vdz.
    register_block(MAJOR, 0..=26 * MINORS - 1, "virtblk", open)?;
    // sync(2) reports no error; fsync(2) does.
    register_sync(|| _ = sync_all())?;
    (0..known()).filter_map(find).for_each(|(place, disk)| show(place, disk.size()));
    let started = || -> Result<()> {
        reclaim::start()?;
        flush::start()?;
        host::start_worker()?;
        plug::start(frames)
    };
    if most() > 0
        && let Err(error) = started()
    {
        log::error!("no memory for the tasks that look after disks: {error:?}");
    }
    Ok(())
}

/// Logs a disk, and makes its node in /dev.
fn show(place: usize, size: u64) {
    let (name, number) = (name_of(place), split_device(number_of(place)));
    log::info!("/dev/{}: {} sectors", name.escape_ascii(), size / SECTOR_SIZE as u64);
    if let Err(error) = add_device(&name, NodeKind::BlockDevice, 0o660, number) {
        log::error!("/dev/{}: {error:?}", name.escape_ascii());
    }
}

/// Writes the changes of every disk back, and makes the devices store them. Tries all disks, then
/// returns the first error.
///
/// # Errors
/// `EIO`, `ENOMEM`.
pub fn sync_all() -> Result<()> {
    (0..known()).filter_map(find).map(|(_, disk)| disk.sync()).fold(Ok(()), Result::and)
}

/// Evicts frames of the disks' caches as `wish` says, from one disk after the other.
pub fn evict(wish: Eviction) -> Evicted {
    /// The disk to begin with, so that each disk has its turn.
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let mut done = Evicted::default();
    let first = NEXT.fetch_add(1, Ordering::Relaxed) % known().max(1);
    for (_, disk) in (first..known()).chain(0..first).filter_map(find) {
        done += disk.cached.cache().evict(wish.after(done));
    }
    done
}

/// Drops all clean pages that no program maps.
pub fn drop_clean() {
    each(|disk| _ = disk.cached.cache().shrink(u64::MAX));
}

/// The disks' caches, as reclaim sees them.
struct DiskCaches;

impl Caches for DiskCaches {
    fn pages(&self) -> u64 {
        sum(|disk| disk.cached.cache().pages())
    }
    fn counts(&self) -> Cached {
        let sum = |of: fn(&PageCache) -> u64| sum(|disk| of(disk.cached.cache()));
        let under_way = UNDER_WAY.load(Ordering::Relaxed);
        let (pages, dirty) = (sum(PageCache::pages), sum(PageCache::dirty_pages));
        Cached { pages, dirty, under_way, active: sum(PageCache::active_pages) }
    }
    fn evict(&self, request: Eviction) -> Evicted {
        evict(request)
    }
    fn bytes_read(&self) -> u64 {
        traffic()[0]
    }
}

/// Bytes read from disks into their caches, and bytes written from the caches to disks, since boot.
pub fn traffic() -> [u64; 2] {
    TRAFFIC.each_ref().map(|bytes| bytes.load(Ordering::Relaxed))
}

fn open(node: Arc<dyn Node>, minor: u32, flags: OpenFlags) -> Result<Arc<dyn File>> {
    let number = if minor.is_multiple_of(MINORS) { (minor / MINORS) as usize } else { usize::MAX };
    let (_, content) = find(number).ok_or(Errno::ENXIO)?;
    if flags.contains(OpenFlags::EXCL) && content.is_held() {
        return Err(Errno::EBUSY);
    }
    content.openers.fetch_add(1, Ordering::Relaxed);
    flush::wake();
    let direct = AtomicBool::new(flags.contains(OpenFlags::DIRECT));
    let writes = if flags.contains(OpenFlags::DSYNC) { Writes::Stored } else { Writes::Cached };
    let told = content.cached.cache().errors_told();
    Ok(reserve::arc(DiskFile { node, content, direct, writes, told }))
}

impl From<BlockError> for Errno {
    fn from(error: BlockError) -> Self {
        match error {
            BlockError::ReadOnly => Self::EPERM,
            BlockError::Killed => Self::EINTR,
            BlockError::Unsupported => Self::EOPNOTSUPP,
            BlockError::OutOfRange => Self::ENOSPC,
            BlockError::Io | BlockError::TimedOut | BlockError::Failed => Self::EIO,
        }
    }
}

/// The device under a cache.
struct Store {
    disk: Disk,
    write_backs: WriteBacks,
}

impl Store {
    /// How many bytes of the `pages` pages from `first` on are on the disk.
    fn length(&self, first: u64, pages: usize) -> usize {
        let left = self.disk.sectors().saturating_sub(first.saturating_mul(PAGE_SECTORS));
        usize::try_from(left)
            .map_or(usize::MAX, |left| left.saturating_mul(SECTOR_SIZE))
            .min(pages * PAGE_SIZE)
    }
}

/// Frames of a run that a device accesses directly: if a transfer is abandoned while the device has
/// the frames, it does not free them.
struct HeldRun(Vec<Frame<CacheKind, Frames>>);

impl FrameList for HeldRun {
    fn count(&self) -> usize {
        self.0.len()
    }
    fn frame(&self, index: usize) -> HeldFrame<'_> {
        self.0[index].held()
    }
}

/// Holds the frames of a run for a device. `None` if no device accesses them directly, or there is
/// no memory for the record.
fn hold(frames: &[Frame<CacheKind, Frames>]) -> Option<Arc<dyn HeldFrames>> {
    if !crate::mem::are_frames_offered() {
        return None;
    }
    let mut held = Vec::try_with_capacity(frames.len()).ok()?;
    for frame in frames {
        held.push_reserved(frame.try_clone().ok()?);
    }
    Some(reserve::arc(HeldRun(held)))
}

/// Reads a disk from `sector` on into the bytes `range` of a run of frames.
fn read_frames(
    disk: &dyn BlockDevice,
    sector: u64,
    frames: &[Frame<CacheKind, Frames>],
    range: Range<usize>,
) -> core::result::Result<(), VmError> {
    ensure_objects(Shortage::Fail)?;
    let read = |bytes: &mut dyn OriginalMut| {
        disk.read(sector, bytes, Sleep::Uninterruptible).map_err(|_| VmError::Io)
    };
    match hold(frames) {
        Some(holder) => read(&mut HeldBytes::new(Hardware, &holder, range.start, range.len())),
        None => read(&mut FrameBytes::new(Hardware, frames).starting_at(range.start).truncated(range.len())),
    }
}

impl BackingStore<Frames> for Store {
    fn fill(&self, first: u64, frames: &[Frame<CacheKind, Frames>]) -> core::result::Result<(), VmError> {
        let length = self.length(first, frames.len());
        if length > 0 {
            read_frames(&*self.disk, first * PAGE_SECTORS, frames, 0..length)?;
            TRAFFIC[0].fetch_add(length as u64, Ordering::Relaxed);
        }
        clear_frames(frames, length..frames.len() * PAGE_SIZE);
        Ok(())
    }

    fn may_retry(&self) -> core::result::Result<(), VmError> {
        if sched::is_current_dying() { Err(VmError::Interrupted) } else { Ok(()) }
    }

    fn write_pass(&self, pass: &mut dyn FnMut()) {
        self.write_backs.count(pass);
    }

    fn wait_for_passes(&self) -> core::result::Result<(), VmError> {
        self.write_backs.wait().map_err(|_| VmError::Interrupted)
    }

    fn write_back(
        &self,
        first: u64,
        frames: &[Frame<CacheKind, Frames>],
    ) -> core::result::Result<(), VmError> {
        let length = self.length(first, frames.len());
        if length == 0 {
            return Ok(());
        }
        ensure_objects(Shortage::Wait)?;
        UNDER_WAY.fetch_add(frames.len() as u64, Ordering::Relaxed);
        let write = |bytes: &dyn Original| {
            self.disk.write(first * PAGE_SECTORS, bytes, Sleep::Uninterruptible).map_err(|_| VmError::Io)
        };
        let written = if let Some(holder) = hold(frames) {
            write(&HeldBytes::new(Hardware, &holder, 0, length))
        } else {
            write(&FrameBytes::new(Hardware, frames).truncated(length))
        };
        UNDER_WAY.fetch_sub(frames.len() as u64, Ordering::Relaxed);
        TRAFFIC[1].fetch_add(length as u64, Ordering::Relaxed);
        written
    }
}

/// A disk's bytes.
struct DiskContent {
    disk: Arc<CountedDisk>,
    size: u64,
    cached: Arc<CacheContent>,
    openers: AtomicUsize,
    /// Time at which the flusher first saw dirty pages; 0 if there are none.
    dirty_since: AtomicU64,
    /// Whether a [`HeldDisk`] holds the whole disk.
    held: AtomicBool,
    /// Whether the disk was plugged out ([`plug`]).
    is_gone: AtomicBool,
}

impl DiskContent {
    fn new(frames: Frames, disk: Disk) -> Self {
        let disk = reserve::arc(CountedDisk::new(disk));
        let size = disk.sectors() * SECTOR_SIZE as u64;
        match IO_TIMEOUT_MS.load(Ordering::Relaxed) {
            0 => {}
            limit => disk.set_timeout_ms(limit),
        }
        let store = Store { disk: disk.clone(), write_backs: WriteBacks::default() };
        let cache = PageCache::with_store(frames, reserve::arc(store));
        cache.set_size_grow(size);
        let cached = reserve::arc(CacheContent::new(cache));
        Self {
            disk,
            size,
            cached,
            openers: AtomicUsize::new(0),
            dirty_since: AtomicU64::new(0),
            held: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
        }
    }

    /// Keeps writers from filling memory with data that is not yet on a disk, and keeps the cache
    /// from making the machine grow.
    fn trim(&self) {
        match flush::excess() {
            flush::Excess::None => {}
            flush::Excess::Some => flush::wake(),
            flush::Excess::Much => {
                // The flusher stores the other disks' pages. If this disk refuses a page, this
                // write does not fail: fsync reports it.
                flush::wake();
                let _ = self.cached.cache().launder();
            }
        }
        let frames = frames();
        if hotplug::may_grow() && frames.free_frames() < frames.total_frames() / RESERVE {
            evict(Eviction {
                want: RELIEF,
                most: DiskCaches.pages(),
                frames: FrameChoice::ALL,
                laundry: Laundry::Leave,
                age: Age::Respect,
            });
        }
    }

    /// Calls `step` with how many of `left` bytes to copy, until it copies fewer or no bytes are
    /// left; trims in between. An error counts only if nothing was copied.
    fn in_steps(&self, left: usize, mut step: impl FnMut(usize, usize) -> Result<usize>) -> Result<usize> {
        let mut done = 0;
        while done < left {
            if done > 0
                && let Err(error) = sched::checkpoint()
            {
                return so_far(done, error);
            }
            let count = STEP.min(left - done);
            self.trim();
            match step(done, count) {
                Ok(copied) if copied < count => return Ok(done + copied),
                Ok(copied) => done += copied,
                Err(error) => return so_far(done, error),
            }
        }
        Ok(done)
    }
}

/// A sink of which only the first `left` bytes are filled.
struct LimitedSink<'a> {
    sink: &'a mut dyn Sink,
    left: usize,
}

impl LimitedSink<'_> {
    fn count(&mut self, put: usize) -> usize {
        self.left -= put;
        put
    }
}

impl Sink for LimitedSink<'_> {
    fn remaining(&self) -> usize {
        self.sink.remaining().min(self.left)
    }
    fn put(&mut self, bytes: &[u8]) -> Result<usize> {
        let fits = bytes.len().min(self.left);
        let put = self.sink.put(&bytes[..fits])?;
        Ok(self.count(put))
    }
    fn put_without_fault(&mut self, bytes: &[u8]) -> usize {
        let fits = bytes.len().min(self.left);
        let put = self.sink.put_without_fault(&bytes[..fits]);
        self.count(put)
    }
    fn fault_in(&mut self) -> Result<()> {
        self.sink.fault_in()
    }
}

/// A source of which only the first `left` bytes can be read.
struct LimitedSource<'a> {
    source: &'a mut dyn Source,
    left: usize,
}

impl LimitedSource<'_> {
    fn count(&mut self, taken: usize) -> usize {
        self.left -= taken;
        taken
    }
}

impl Source for LimitedSource<'_> {
    fn remaining(&self) -> usize {
        self.source.remaining().min(self.left)
    }
    fn take(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let fits = bytes.len().min(self.left);
        let taken = self.source.take(&mut bytes[..fits])?;
        Ok(self.count(taken))
    }
    fn take_without_fault(&mut self, bytes: &mut [u8]) -> usize {
        let fits = bytes.len().min(self.left);
        let taken = self.source.take_without_fault(&mut bytes[..fits]);
        self.count(taken)
    }
    fn fault_in(&mut self) -> Result<()> {
        self.source.fault_in()
    }
}

impl FileContent for DiskContent {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, sink: &mut dyn Sink) -> Result<usize> {
        self.check()?;
        self.in_steps(sink.remaining(), |done, left| {
            self.cached
                .read_at(offset.saturating_add(done as u64), &mut LimitedSink { sink: &mut *sink, left })
        })
    }

    fn write_at(&self, offset: u64, source: &mut dyn Source) -> Result<usize> {
        self.check()?;
        if self.disk.is_read_only() {
            return Err(Errno::EPERM);
        }
        if source.remaining() == 0 {
            return Ok(0);
        }
        if offset >= self.size {
            return Err(Errno::ENOSPC);
        }
        let left = usize::try_from(self.size - offset).unwrap_or(usize::MAX).min(source.remaining());
        self.in_steps(left, |done, left| {
            self.cached.write_at(offset + done as u64, &mut LimitedSource { source: &mut *source, left })
        })
    }

    fn resize(&self, _size: u64) -> Result<()> {
        Err(Errno::EINVAL)
    }
    fn punch(&self, _range: Range<u64>, _how: Punch) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }
    fn allocate(&self, _range: Range<u64>) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }
    fn seek_data(&self, offset: u64) -> Option<u64> {
        (offset < self.size).then_some(offset)
    }
    fn seek_hole(&self, _offset: u64) -> u64 {
        self.size
    }
    fn held(&self) -> u64 {
        self.cached.held()
    }
    fn sync(&self) -> Result<()> {
        self.check()?;
        self.cached.cache().sync(0..u64::MAX)?;
        Ok(self.disk.flush(Sleep::Killable)?)
    }
}

/// An open disk.
struct DiskFile {
    node: Arc<dyn Node>,
    content: Arc<DiskContent>,
    /// O_DIRECT, which fcntl may change.
    direct: AtomicBool,
    writes: Writes,
    /// Refused pages that were already reported to this file.
    told: ErrorsTold,
}

/// The point at which a write is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Writes {
    /// When its bytes are in the page cache.
    Cached,
    /// When the device has stored them (O_SYNC, O_DSYNC).
    Stored,
}

impl DiskFile {
    fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    /// Makes the device store the changes in a range of bytes. Pages that it refuses, now or since
    /// the last report to this file, are reported to the file once (Linux:
    /// `file_check_and_advance_wb_err`).
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`.
    fn store(&self, range: Range<u64>) -> Result<()> {
        self.content.check()?;
        let cache = self.content.cached.cache();
        match cache.sync(range) {
            Ok(()) | Err(VmError::Io) => cache.tell_errors(&self.told)?,
            Err(error) => return Err(error.into()),
        }
        Ok(self.content.disk.flush(Sleep::Killable)?)
    }

    /// Writes through the cache and, if `writes` requires it, to the device.
    fn write_cached(&self, offset: u64, source: &mut dyn Source, writes: Writes) -> Result<usize> {
        let count = self.content.write_at(offset, source)?;
        if writes == Writes::Stored && count > 0 {
            self.store(offset..offset + count as u64)?;
        }
        Ok(count)
    }
}

impl File for DiskFile {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }
    fn seekable(&self) -> Seekable {
        Seekable::Offset
    }
    fn flags_changed(&self, flags: OpenFlags) {
        self.direct.store(flags.contains(OpenFlags::DIRECT), Ordering::Relaxed);
    }
    fn read_at(&self, offset: u64, sink: &mut dyn Sink, _blocking: Blocking) -> Result<usize> {
        if self.is_direct()
            && let Some(result) = self.content.read_direct(offset, sink)
        {
            return result;
        }
        self.content.read_at(offset, sink)
    }
    fn write_at(&self, offset: u64, source: &mut dyn Source, _blocking: Blocking) -> Result<usize> {
        if self.content.is_held() {
            return Err(Errno::ETXTBSY);
        }
        if !self.is_direct() {
            return self.write_cached(offset, source, self.writes);
        }
        match self.content.write_direct(offset, source) {
            Some(Ok(count)) if self.writes == Writes::Stored && count > 0 => {
                self.content.disk.flush(Sleep::Killable)?;
                Ok(count)
            }
            Some(result) => result,
            None => self.write_cached(offset, source, Writes::Stored),
        }
    }
    fn append(&self, source: &mut dyn Source, _blocking: Blocking) -> Result<(usize, u64)> {
        self.content.write_at(self.content.size, source).map(|written| (written, self.content.size))
    }
    fn end(&self) -> Result<u64> {
        Ok(self.content.size)
    }
    fn content(&self) -> Option<Arc<dyn FileContent>> {
        Some(self.content.clone())
    }
    fn mapping(&self) -> Result<MmapContent> {
        Ok(MmapContent::Content(self.content.cached.clone()))
    }
    fn sync(&self) -> Result<()> {
        self.store(0..u64::MAX)
    }
    fn ioctl(&self, request: u32, argument: u64) -> Result<i64> {
        // As on Linux, a disk that was plugged out has no bytes.
        let size = self.content.check().map_or(0, |()| self.content.size);
        match request {
            request::BLKGETSIZE64 => UserPtr::new(argument).write(&size)?,
            request::BLKGETSIZE => UserPtr::new(argument).write(&(size / SECTOR_SIZE as u64))?,
            request::BLKSSZGET | request::BLKPBSZGET => {
                UserPtr::new(argument).write(&(SECTOR_SIZE as u32))?;
            }
            request::BLKBSZGET => UserPtr::new(argument).write(&(PAGE_SIZE as u32))?,
            request::BLKROGET => {
                UserPtr::new(argument).write(&u32::from(self.content.disk.is_read_only()))?;
            }
            request::BLKFLSBUF => self.content.sync()?,
            _ => return Err(Errno::ENOTTY),
        }
        Ok(0)
    }
    fn release(&self) {
        // The last close writes back, as on Linux. No caller can be told of an error.
        if self.content.openers.fetch_sub(1, Ordering::Relaxed) == 1 {
            let _ = self.content.sync();
        }
    }
}
