//! A virtio disk, as a [`BlockDevice`] (virtio 1.2, 5.2).
//!
//! Up to [`DEPTH`] requests are with the device at once, from as many tasks; each sleeps until an
//! interrupt wakes it and the ring says that its request is done. Every transfer goes through the
//! DMA API.
//!
//! **Waiting.** No request fails for lack of room or of memory. A task takes a place among the
//! [`DEPTH`] first (`requests.rs`: the queue), memory second. If there is less memory than the
//! transfer needs, it is split; if there is none, the task waits for the disk's own spare buffer,
//! which was taken at start-up. So a disk waits only for itself, never for another device and never
//! for memory: swap and write-back can rely on this. A request that fits the spare buffer begins
//! with it if no other request uses it, and takes no other memory. A killed task leaves at once if
//! it allowed that ([`Sleep::Killable`]); the device then keeps the request's memory until it
//! answers.
//!
//! **In place.** Behind an IOMMU that has windows, whole pages of an original whose frames are held
//! are not copied: the device gets them through the window of the request's place, and the request
//! keeps the holder until the device has answered and its translations are flushed. The task waits
//! for that, killed or not, up to the time-out. Parts that do not fill a page are bounced, and so
//! are all where there is no window.
//!
//! **Time-outs.** A request that the device does not answer in time ends in an error, but the
//! device keeps the request and its memory until it answers or confirms a reset, also frames that
//! it accesses in place: a late read may still change them, and no other owner gets them before. So
//! no task waits for ever, not even the flusher or a task that reclaims memory. If the device
//! answered nothing at all in that time, it is *silent*: until it answers something, further
//! requests fail at once, so that a program that makes many requests does not wait many times. A
//! task that waits for a place waits for as long as the device answers others. A late answer ends
//! the silence, since hosts stall and recover. (Linux' virtio-blk has no time-out: its requests
//! wait for ever.)
//!
//! **Flushes** that have no effect are not sent: see `write_cache.rs`.
//!
//! **Unplugging.** A disk that leaves its slot fails all requests at once, also those of tasks that
//! cannot be killed ([`VirtioBlock::remove`]).
//!
//! **Protocol violations.** A device that gives back a chain that it does not have is reset and
//! stays out of use: see `link.rs`.

#[cfg(test)]
mod place_tests;
mod requests;
mod write_cache;

use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

use freehold_bounce::{Device, Direction, DmaSource, HeldFrames, MAX_RUNS, Original, OriginalMut};
use freehold_machine::PAGE_SIZE;
use freehold_virtqueue::{PartMemory, PowerSlot, Transport};
use requests::{Buffer, Requests, SPARE, Segments, Wakes};
use spin::Mutex;

use crate::platform::{Lines, Sleep, Wait, Waited};
use crate::transport::{Features, negotiate, read_consistent};
use crate::{BlockDevice, BlockError, Failed, SECTOR_SIZE, SetupError};

/// Largest number of requests that are with the device at once.
pub const DEPTH: usize = 16;
/// Descriptors in the ring, a power of two: a request of 1 MiB takes six, and 18 where its memory
/// is in pieces.
const RING: usize = 64;
/// The longest transfer in one request, in bytes.
pub const MAX_TRANSFER: usize = 1 << 20;
/// Places of the device's limits: bytes of a descriptor, and descriptors of a request (virtio 1.2,
/// 5.2.4).
const SIZE_MAX_OFFSET: usize = 8;
const SEG_MAX_OFFSET: usize = 12;
/// Time for one request unless set otherwise: 2 minutes, since hosts slow disks down on purpose.
const TIMEOUT_MS: u32 = 120_000;
const NS_PER_MS: u64 = 1_000_000;
/// Largest number of sectors: positions in files are signed numbers of bytes in 64 bits.
const MAX_SECTORS: u64 = i64::MAX as u64 / SECTOR_SIZE as u64;

/// A request's place in the table of headers: 16 bytes for the device to read, 1 for it to write.
const HEADER: usize = 32;
const STATUS: usize = 16;
/// The status before the device has written one.
const NO_STATUS: u8 = 0xff;
/// The greatest status that a device may write: "unsupported" (virtio 1.2, 5.2.6).
const LAST_STATUS: u8 = 2;

/// The operation of a request, with virtio's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
enum RequestKind {
    In = 0,
    Out = 1,
    Flush = 4,
}

/// A disk.
pub struct VirtioBlock<S: DmaSource, T: Transport> {
    /// Taken by tasks only, for as long as the ring is changed. Orders with no other lock.
    requests: Mutex<Requests<S, T>>,
    lines: Lines,
    device: Device<S>,
    segments: Segments,
    sectors: u64,
    read_only: bool,
    has_cache: bool,
    timeout_ms: AtomicU32,
}

/// Returns the device's limits for descriptors. A device without a limit accepts any number. A
/// limit below a descriptor of one sector is raised to that, as in Linux.
fn segments<T: Transport>(transport: &T, features: Features) -> Result<Segments, SetupError> {
    let limit = |feature, offset| {
        if !features.contains(feature) {
            return Ok(usize::MAX);
        }
        let limit = read_consistent(transport, |transport| transport.read_config_space::<u32>(offset))?;
        Ok::<_, SetupError>(limit as usize)
    };
    let most = limit(Features::BLOCK_SEG_MAX, SEG_MAX_OFFSET)?.clamp(1, MAX_RUNS);
    let length = limit(Features::BLOCK_SIZE_MAX, SIZE_MAX_OFFSET)?.max(SECTOR_SIZE);
    Ok(Segments { most, length: length / SECTOR_SIZE * SECTOR_SIZE })
}

/// The holder of frames, and the first byte's place in the first one.
type FrameHolder = (Arc<dyn HeldFrames>, usize);

/// The way in which the next bytes of a transfer are done.
enum Portion {
    /// This many are copied, or fewer.
    Bounced(usize),
    /// The device gets these of the held frames.
    InPlace(Range<usize>),
}

/// A task's place in the table of requests.
struct RequestPlace<'a, S: DmaSource, T: Transport> {
    disk: &'a VirtioBlock<S, T>,
    number: usize,
}

impl<S: DmaSource, T: Transport> Drop for RequestPlace<'_, S, T> {
    fn drop(&mut self) {
        self.disk.with(|requests| requests.release(self.number));
    }
}

impl<S: DmaSource, T: Transport> VirtioBlock<S, T> {
    /// Start the disk, whose transport's interrupt notifies `lines`.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn new(mut transport: T, device: Device<S>, lines: Lines) -> Result<Self, SetupError> {
        let limits = Features::BLOCK_SIZE_MAX | Features::BLOCK_SEG_MAX;
        let features = negotiate(&mut transport, Features::BLOCK_READ_ONLY | Features::BLOCK_FLUSH | limits)?;
        let sectors = read_consistent(&transport, |transport| {
            let low: u32 = transport.read_config_space(0)?;
            let high: u32 = transport.read_config_space(4)?;
            Ok(u64::from(high) << 32 | u64::from(low))
        })?;
        if sectors > MAX_SECTORS {
            return Err(SetupError::Nonsense("size"));
        }
        let segments = segments(&transport, features)?;
        Ok(Self {
            requests: Mutex::new(Requests::new(transport, device, segments)?),
            lines,
            device,
            segments,
            sectors,
            read_only: features.contains(Features::BLOCK_READ_ONLY),
            has_cache: features.contains(Features::BLOCK_FLUSH),
            timeout_ms: AtomicU32::new(TIMEOUT_MS),
        })
    }

    /// Takes the disk out of use, which leaves its slot: from now on each request fails, also those
    /// that are with the device. Later calls do nothing.
    ///
    /// # Errors
    /// [`Failed`]: the device does not confirm a reset and its slot has power. Nothing has changed.
    pub fn remove(&self, slot: &dyn PowerSlot) -> Result<(), Failed> {
        self.with(|requests| requests.remove(slot))
    }

    /// Whether the disk has left its slot, and no task has, or will take, memory of it.
    pub fn is_quiet(&self) -> bool {
        self.with(|requests| requests.is_quiet())
    }

    /// Calls `f` with the lock held. After it is released, wakes the tasks that `f` returns.
    fn with<R>(&self, f: impl FnOnce(&mut Requests<S, T>) -> R) -> R {
        let (result, wakes) = {
            let mut requests = self.requests.lock();
            (f(&mut requests), requests.take_wakes())
        };
        if let Some(wakes) = wakes {
            self.wake(wakes);
        }
        result
    }

    #[inline(never)]
    fn wake(&self, Wakes { turns, memory, all }: Wakes) {
        if all {
            self.lines.turns.notify();
        } else {
            (0..turns).for_each(|_| self.lines.turns.notify_one());
        }
        if all || memory {
            self.lines.answers.notify();
        }
    }

    fn limit_ns(&self) -> u64 {
        u64::from(self.timeout_ms.load(Ordering::Relaxed)) * NS_PER_MS
    }

    /// Waits on `line` until `condition` gives a value, for as long as the device answers requests
    /// at all.
    fn wait<R>(
        &self,
        line: &'static dyn Wait,
        sleep: Sleep,
        mut condition: impl FnMut(&mut Requests<S, T>) -> Result<Option<R>, BlockError>,
    ) -> Result<R, BlockError> {
        self.wait_unlocked(line, sleep, || self.with(&mut condition))
    }

    /// As [`Self::wait`]; `condition` is called without the lock.
    fn wait_unlocked<R>(
        &self,
        line: &'static dyn Wait,
        sleep: Sleep,
        mut condition: impl FnMut() -> Result<Option<R>, BlockError>,
    ) -> Result<R, BlockError> {
        if let Some(value) = condition()? {
            return Ok(value);
        }
        loop {
            let before = self.with(|requests| requests.answers());
            let mut result = Ok(None);
            let waited = line.wait_until(self.limit_ns(), sleep, &mut || {
                result = condition();
                !matches!(result, Ok(None))
            });
            if let Some(value) = result? {
                return Ok(value);
            }
            // This task may have been woken, after its last check, by an answer that no other task
            // was told of.
            let _ = self.with(Requests::reap);
            match waited {
                Waited::Killed => return Err(BlockError::Killed),
                _ if self.with(|requests| requests.late(before)) => {}
                _ => return Err(BlockError::TimedOut),
            }
        }
    }

    /// Waits for a place, after the tasks that came earlier. The place comes with the spare buffer
    /// if `length` bytes fit it and no request uses it.
    fn place(
        &self,
        length: usize,
        sleep: Sleep,
    ) -> Result<(RequestPlace<'_, S, T>, Option<Buffer<S>>), BlockError> {
        let (mut is_queued, mut has_queued) = (false, false);
        let taken = self.wait(self.lines.turns, sleep, |requests| {
            let number = requests.take_place(&mut is_queued)?;
            has_queued |= is_queued;
            Ok(number.map(|number| {
                let fits = (1..=SPARE).contains(&length);
                (number, if fits { requests.idle_spare(length) } else { None })
            }))
        });
        if has_queued {
            self.with(|requests| requests.leave(&mut is_queued));
        }
        let (number, spare) = taken?;
        Ok((RequestPlace { disk: self, number }, spare))
    }

    /// Waits for memory for at most `length` bytes: as much as is available, or the spare buffer
    /// once it is free.
    fn buffer(&self, length: usize, direction: Direction, sleep: Sleep) -> Result<Buffer<S>, BlockError> {
        let length = length.min(MAX_TRANSFER);
        if let Some(buffer) = self.allocate(length, direction) {
            return Ok(buffer);
        }
        self.device.count_wait();
        self.with(|requests| requests.begin_starving());
        let found = self.wait_unlocked(self.lines.answers, sleep, || {
            let spare = self.with(|requests| requests.spare(length))?;
            // Without the lock, since new memory is zeroed.
            Ok(spare.or_else(|| self.allocate(length, direction)))
        });
        self.with(|requests| requests.end_starving());
        found
    }

    /// Returns the holder of an original whose frames the device can access directly.
    fn held<O: Original + ?Sized>(&self, original: &O) -> Option<FrameHolder> {
        if self.device.pages_in_place() == 0 { None } else { original.held() }
    }

    /// Decides how the next bytes of a transfer are done, of which `left` remain. Heads and tails
    /// that do not fill a page are bounced, since an IOMMU separates whole pages.
    fn portion(&self, held: Option<&FrameHolder>, left: Range<usize>) -> Portion {
        let Some((_, first)) = held else { return Portion::Bounced(left.len()) };
        let at = first + left.start;
        let most = (self.device.pages_in_place() * PAGE_SIZE).min(self.segments.in_place());
        let whole = left.len().min(most) / PAGE_SIZE;
        match at % PAGE_SIZE {
            0 if whole > 0 => Portion::InPlace(at / PAGE_SIZE..at / PAGE_SIZE + whole),
            offset if offset.is_multiple_of(SECTOR_SIZE) => {
                Portion::Bounced(left.len().min(PAGE_SIZE - offset))
            }
            _ => Portion::Bounced(left.len()),
        }
    }

    /// A place, and memory for a portion.
    fn take(
        &self,
        portion: &Portion,
        held: Option<&FrameHolder>,
        direction: Direction,
        sleep: Sleep,
    ) -> Result<(RequestPlace<'_, S, T>, Buffer<S>), BlockError> {
        let (length, frames) = match portion {
            Portion::Bounced(length) => (*length, None),
            Portion::InPlace(frames) => (frames.len() * PAGE_SIZE, Some(frames)),
        };
        let (place, spare) = self.place(if frames.is_some() { 0 } else { length }, sleep)?;
        let in_place = frames.zip(held).and_then(|(frames, (holder, _))| {
            // The place's own window: its earlier requests have been answered.
            self.device.in_place(place.number, holder.clone(), frames.clone(), direction)
        });
        let data = match (in_place, spare) {
            (Some(frames), _) => Buffer { memory: PartMemory::InPlace(Arc::new(frames)), length },
            (None, Some(spare)) => spare,
            (None, None) => self.buffer(length, direction, sleep)?,
        };
        Ok((place, data))
    }

    fn allocate(&self, length: usize, direction: Direction) -> Option<Buffer<S>> {
        let mapping = self.device.buffer_up_to(length, direction).ok()?;
        let length = self.segments.fit(&mapping);
        Some(Buffer { memory: Arc::new(mapping).into(), length })
    }

    /// Sends the request of a place and sleeps until it is done. Returns how many bytes the device
    /// wrote into the data.
    fn request(
        &self,
        place: &RequestPlace<'_, S, T>,
        (kind, sector): (RequestKind, u64),
        data: Option<&Buffer<S>>,
        sleep: Sleep,
    ) -> Result<usize, BlockError> {
        let number = place.number;
        let before = self.wait(self.lines.answers, sleep, |requests| {
            let sent = requests.send(number, kind, sector, data)?;
            Ok(sent.then_some(requests.answers()))
        })?;
        let in_place = data.is_some_and(|data| data.bounced().is_none());
        let sleep = if in_place { Sleep::Uninterruptible } else { sleep };
        let (mut done, mut looks) = (None, 0);
        let waited = self.lines.answers.wait_until(self.limit_ns(), sleep, &mut || {
            // The wait checks before the task joins the line, and after. The first check is
            // skipped, since the request was sent a moment ago.
            looks += 1;
            if looks == 1 {
                return false;
            }
            done = self.with(|requests| requests.finished(number));
            done.is_some()
        });
        let (written, status) = match (done, waited) {
            (Some(done), _) => done,
            (None, Waited::Killed) => self.with(|requests| requests.abandon(number, BlockError::Killed)),
            (None, _) => self.with(|requests| {
                requests.abandon(number, BlockError::TimedOut).inspect_err(|_| _ = requests.late(before))
            }),
        }?;
        match status {
            0 => Ok(written.saturating_sub(1)), // the status byte counts
            2 => Err(BlockError::Unsupported),
            _ => Err(BlockError::Io),
        }
    }

    fn check(&self, sector: u64, length: usize) -> Result<(), BlockError> {
        let sectors = (length / SECTOR_SIZE) as u64;
        let end = sector.checked_add(sectors).ok_or(BlockError::OutOfRange)?;
        if length.is_multiple_of(SECTOR_SIZE) && end <= self.sectors {
            Ok(())
        } else {
            Err(BlockError::OutOfRange)
        }
    }
}

#[cfg(test)]
impl<S: DmaSource, T: Transport> VirtioBlock<S, T> {
    /// Places for requests that are free, and tasks that wait for one.
    pub(crate) fn places(&self) -> (usize, usize) {
        let requests = self.requests.lock();
        requests.validate();
        (requests.free_places(), requests.waiting())
    }
    /// Whether the lock is free.
    pub(crate) fn is_unlocked(&self) -> bool {
        self.requests.try_lock().is_some()
    }
    /// A hook: does the work of another task that runs at this point.
    pub(crate) fn look(&self) {
        let _ = self.with(Requests::reap);
    }
}

impl<S, T> BlockDevice for VirtioBlock<S, T>
where
    S: DmaSource,
    T: Transport + Send,
{
    fn timeout_ms(&self) -> u32 {
        self.timeout_ms.load(Ordering::Relaxed)
    }
    fn set_timeout_ms(&self, limit: u32) {
        self.timeout_ms.store(limit, Ordering::Relaxed);
    }
    fn sectors(&self) -> u64 {
        self.sectors
    }
    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn read(&self, sector: u64, to: &mut dyn OriginalMut, sleep: Sleep) -> Result<(), BlockError> {
        let total = to.length();
        self.check(sector, total)?;
        let held = self.held(to);
        let mut start = 0;
        while start < total {
            let portion = self.portion(held.as_ref(), start..total);
            let (place, data) = self.take(&portion, held.as_ref(), Direction::FromDevice, sleep)?;
            let at = sector + (start / SECTOR_SIZE) as u64;
            // The device must fill all of them: the old bytes are not copied in.
            if self.request(&place, (RequestKind::In, at), Some(&data), sleep)? < data.length {
                return Err(BlockError::Io);
            }
            if let Some(mapping) = data.bounced() {
                mapping.sync_part_for_cpu(to, start, 0, data.length);
            }
            start += data.length;
        }
        Ok(())
    }

    fn write(&self, sector: u64, from: &dyn Original, sleep: Sleep) -> Result<(), BlockError> {
        let total = from.length();
        self.check(sector, total)?;
        if self.read_only {
            return Err(BlockError::ReadOnly);
        }
        let held = self.held(from);
        let mut start = 0;
        while start < total {
            let portion = self.portion(held.as_ref(), start..total);
            let (place, data) = self.take(&portion, held.as_ref(), Direction::ToDevice, sleep)?;
            if let Some(mapping) = data.bounced() {
                mapping.sync_part_for_device(from, start, 0, data.length);
            }
            let at = sector + (start / SECTOR_SIZE) as u64;
            self.request(&place, (RequestKind::Out, at), Some(&data), sleep)?;
            start += data.length;
        }
        Ok(())
    }

    fn flush(&self, sleep: Sleep) -> Result<(), BlockError> {
        if !self.has_cache {
            return Ok(());
        }
        let uncovered = |requests: &mut Requests<S, T>| requests.check().map(|()| requests.cache.uncovered());
        if self.with(uncovered)?.is_none() {
            return Ok(());
        }
        let (place, _) = self.place(0, sleep)?;
        // Another task's flush may have covered these writes meanwhile.
        let Some(covered) = self.with(uncovered)? else { return Ok(()) };
        self.request(&place, (RequestKind::Flush, 0), None, sleep)?;
        self.with(|requests| requests.cache.flushed(covered));
        Ok(())
    }
}
