//! A virtio disk, as a [`BlockDevice`] (virtio 1.2, 5.2).
//!
//! Up to [`DEPTH`] requests are with the device at once, from as many tasks; each sleeps until an interrupt
//! wakes it and the ring says that its request is done. Every transfer goes through slots of the DMA API.
//!
//! **Time-outs.** A request that the device does not answer in time ends in an error but stays the device's, memory and
//! all, until the device answers or confirms a reset. If the device answered nothing at all in that time, it is *silent*:
//! until it answers something, further requests fail at once instead of waiting too, so that a program that makes many
//! does not wait many times. A late answer ends the silence, since hosts stall and recover. (Linux' virtio-blk has no
//! time-out: its requests wait for ever.)
//!
//! **Lies.** A device that gives back what it does not have is reset and stays out of use: see `link.rs`.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use freehold_bounce::{Device, Direction, DmaSource, Mapping, Original, OriginalMut};
use freehold_virtqueue::{Chain, DeviceReset, Part, Queue, Transport};
use spin::Mutex;

use crate::link::{Lent, Link, Why};
use crate::platform::Wait;
use crate::transport::{Features, negotiate, read_consistent};
use crate::{BlockDevice, BlockError, SECTOR_SIZE, SetupError};

/// Requests that may be with the device at once.
pub const DEPTH: usize = 16;
/// Descriptors in the ring: three for each request, and a power of two.
const RING: usize = 64;
/// The longest transfer in one request.
const MAX_TRANSFER: usize = 128 << 10;
/// How long a device may take for one request unless told otherwise: 2 minutes, since hosts slow disks down on purpose.
const TIMEOUT_MS: u32 = 120_000;
const NS_PER_MS: u64 = 1_000_000;
/// The most sectors: positions in files are signed numbers of bytes in 64 bits.
const MAX_SECTORS: u64 = i64::MAX as u64 / SECTOR_SIZE as u64;

/// A request's place in the table of headers: 16 bytes for the device to read, 1 for it to write.
const HEADER: usize = 32;
const STATUS: usize = 16;
/// The status before the device has written one.
const NO_STATUS: u8 = 0xff;

/// What a request does, with virtio's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
enum Kind {
    In = 0,
    Out = 1,
    Flush = 4,
}

/// How far the request with this number is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Nobody's.
    Free,
    /// With the device; a task waits for it.
    Pending,
    /// With the device; nobody waits any more.
    Abandoned,
    /// Back from the device; bytes that it wrote, and its status.
    Done(usize, u8),
}

/// A disk.
pub struct Block<S: DmaSource, T: Transport> {
    /// Taken by tasks only, for as long as the ring is changed. Orders with no other lock.
    inner: Mutex<Inner<S, T>>,
    /// What the interrupt notifies and tasks sleep on.
    wait: &'static dyn Wait,
    device: Device<S>,
    sectors: u64,
    read_only: bool,
    has_cache: bool,
    timeout_ms: AtomicU32,
}

struct Inner<S: DmaSource, T: Transport> {
    link: Link<S, T, Rings<S>>,
    name: &'static str,
    requests: [State; DEPTH],
    /// Requests that the device has answered, late ones too.
    answers: u64,
    /// It has answered nothing for the length of a time-out.
    is_silent: bool,
}

/// What the device has.
struct Rings<S: DmaSource> {
    queue: Queue<S, RING>,
    headers: Arc<Mapping<S>>,
}

impl<S: DmaSource> Lent for Rings<S> {
    fn reclaim(&mut self, proof: &DeviceReset) {
        self.queue.reclaim(proof);
    }
    fn lose(&mut self) -> usize {
        // The headers are part of what is in flight.
        self.queue.lose()
    }
}

impl<S: DmaSource, T: Transport> Block<S, T> {
    /// Start the disk, whose transport's interrupt notifies `wait`.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn new(mut transport: T, device: Device<S>, wait: &'static dyn Wait) -> Result<Self, SetupError> {
        let features = negotiate(&mut transport, Features::BLOCK_READ_ONLY | Features::BLOCK_FLUSH)?;
        let sectors = read_consistent(&transport, |transport| {
            let low: u32 = transport.read_config_space(0)?;
            let high: u32 = transport.read_config_space(4)?;
            Ok(u64::from(high) << 32 | u64::from(low))
        })?;
        if sectors > MAX_SECTORS {
            return Err(SetupError::Nonsense("size"));
        }
        // Before the device knows of any memory: from here to the end nothing fails.
        let headers = Arc::new(device.buffer(DEPTH * HEADER, Direction::Bidirectional)?);
        let queue = Queue::new(&mut transport, 0)?;
        transport.finish_init();
        let inner = Inner {
            link: Link::new(transport, device, Rings { queue, headers }),
            name: device.rules().name,
            requests: [State::Free; DEPTH],
            answers: 0,
            is_silent: false,
        };
        Ok(Self {
            inner: Mutex::new(inner),
            wait,
            device,
            sectors,
            read_only: features.contains(Features::BLOCK_READ_ONLY),
            has_cache: features.contains(Features::BLOCK_FLUSH),
            timeout_ms: AtomicU32::new(TIMEOUT_MS),
        })
    }

    /// Send one request and sleep until it is done. Returns how many bytes the device wrote into `data`.
    fn request(&self, kind: Kind, sector: u64, data: Option<Arc<Mapping<S>>>) -> Result<usize, BlockError> {
        let done = self.exchange(kind, sector, data);
        // A place in the table is free, or the device has failed: other tasks may wait for either.
        self.wait.notify();
        let (written, status) = done?;
        match status {
            0 => Ok(written.saturating_sub(1)), // the status byte counts
            2 => Err(BlockError::Unsupported),
            _ => Err(BlockError::Io),
        }
    }

    /// Send one request and sleep until it is done or late.
    fn exchange(
        &self,
        kind: Kind,
        sector: u64,
        data: Option<Arc<Mapping<S>>>,
    ) -> Result<(usize, u8), BlockError> {
        let limit = u64::from(self.timeout_ms.load(Ordering::Relaxed)) * NS_PER_MS;
        // Answers before the wait that is under way.
        let (mut sent, mut before) = (Ok(None), None);
        self.wait.wait_until(limit, &mut || {
            let mut inner = self.inner.lock();
            sent = inner.send(kind, sector, data.clone());
            match sent {
                Ok(None) => before = before.or(Some(inner.answers)),
                _ => before = Some(inner.answers),
            }
            !matches!(sent, Ok(None))
        });
        let Some(number) = sent? else {
            self.inner.lock().late(before);
            return Err(BlockError::TimedOut);
        };
        let mut done = None;
        self.wait.wait_until(limit, &mut || {
            done = self.inner.lock().finished(number);
            done.is_some()
        });
        done.unwrap_or_else(|| self.inner.lock().give_up(number, before))
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

impl<S: DmaSource, T: Transport> Inner<S, T> {
    /// Give a request to the device: its number, or `None` where there is no room now.
    fn send(
        &mut self,
        kind: Kind,
        sector: u64,
        data: Option<Arc<Mapping<S>>>,
    ) -> Result<Option<usize>, BlockError> {
        self.reap()?;
        if self.is_silent {
            // It may have missed a notice.
            self.link.transport.notify(0);
            return Err(BlockError::TimedOut);
        }
        let Some(number) = self.requests.iter().position(|&state| state == State::Free) else {
            return Ok(None);
        };
        let (rings, transport) = self.link.lent()?;
        let at = number * HEADER;
        let mut header = [0; STATUS + 1];
        header[..4].copy_from_slice(&(kind as u32).to_le_bytes());
        header[8..16].copy_from_slice(&sector.to_le_bytes());
        header[STATUS] = NO_STATUS;
        rings.headers.write(at, &header);
        let chain = rings.chain(kind, number, data).ok_or(BlockError::OutOfRange)?;
        if rings.queue.submit(chain).is_err() {
            // Three descriptors for each of DEPTH requests fit in the ring.
            self.link.fail(Why::BrokeTheProtocol);
            return Err(BlockError::Failed);
        }
        if rings.queue.wants_notice() {
            transport.notify(0);
        }
        self.requests[number] = State::Pending;
        Ok(Some(number))
    }

    /// Gather what the device has given back.
    fn reap(&mut self) -> Result<(), BlockError> {
        loop {
            let (rings, _) = self.link.lent()?;
            match rings.queue.complete() {
                Ok(None) => return Ok(()),
                Ok(Some(done)) => {
                    let number = done.chain.tag();
                    let mut status = [NO_STATUS];
                    rings.headers.read(number * HEADER + STATUS, &mut status);
                    self.requests[number] = match self.requests[number] {
                        State::Pending => State::Done(done.written, status[0]),
                        _ => State::Free,
                    };
                    self.answers += 1;
                    if self.is_silent {
                        self.is_silent = false;
                        log::warn!("{}: the device answers again", self.name);
                    }
                }
                Err(_) => {
                    self.link.fail(Why::BrokeTheProtocol);
                    return Err(BlockError::Failed);
                }
            }
        }
    }

    /// The outcome of a request that a task waits for; `None` while it is with the device.
    fn finished(&mut self, number: usize) -> Option<Result<(usize, u8), BlockError>> {
        let reaped = self.reap();
        match (self.requests[number], reaped) {
            (State::Done(written, status), _) => {
                self.requests[number] = State::Free;
                Some(Ok((written, status)))
            }
            (_, Err(error)) => Some(Err(error)),
            _ => None,
        }
    }

    /// The outcome of a request that no task waits for any more. It may be done at the last moment; otherwise its place
    /// and its memory stay the device's until it answers.
    fn give_up(&mut self, number: usize, before: Option<u64>) -> Result<(usize, u8), BlockError> {
        if let Some(done) = self.finished(number) {
            return done;
        }
        self.requests[number] = State::Abandoned;
        self.late(before);
        Err(BlockError::TimedOut)
    }

    /// Notes that a task waited in vain. `before`: answers when it began to wait.
    fn late(&mut self, before: Option<u64>) {
        if before == Some(self.answers) && !self.is_silent {
            self.is_silent = true;
            log::error!("{}: the device does not answer: requests fail until it does", self.name);
        }
    }
}

impl<S: DmaSource> Rings<S> {
    fn chain(&self, kind: Kind, number: usize, data: Option<Arc<Mapping<S>>>) -> Option<Chain<S>> {
        let at = number * HEADER;
        let header = Part::readable(self.headers.clone(), at..at + STATUS)?;
        let status = Part::writable(self.headers.clone(), at + STATUS..at + STATUS + 1)?;
        let Some(data) = data else { return Chain::new(number, [header, status]) };
        let length = data.len();
        let data = match kind {
            Kind::In => Part::writable(data, 0..length)?,
            _ => Part::readable(data, 0..length)?,
        };
        Chain::new(number, [header, data, status])
    }
}

#[cfg(test)]
impl<S: DmaSource, T: Transport> Block<S, T> {
    /// Places for requests that are free.
    pub(crate) fn free_places(&self) -> usize {
        self.inner.lock().requests.iter().filter(|&&state| state == State::Free).count()
    }
    /// What another task does that comes by.
    pub(crate) fn inner_looks(&self) {
        let _ = self.inner.lock().reap();
    }
}

/// An original's bytes from `start` on.
struct Tail<O> {
    whole: O,
    start: usize,
}

impl Original for Tail<&dyn Original> {
    fn length(&self) -> usize {
        self.whole.length() - self.start
    }
    fn copy_to(&self, offset: usize, to: &mut [u8]) {
        self.whole.copy_to(self.start + offset, to);
    }
}

impl<'a> Original for Tail<&mut (dyn OriginalMut + 'a)> {
    fn length(&self) -> usize {
        self.whole.length() - self.start
    }
    fn copy_to(&self, offset: usize, to: &mut [u8]) {
        self.whole.copy_to(self.start + offset, to);
    }
}

impl<'a> OriginalMut for Tail<&mut (dyn OriginalMut + 'a)> {
    fn copy_from(&mut self, offset: usize, from: &[u8]) {
        self.whole.copy_from(self.start + offset, from);
    }
}

impl<S, T> BlockDevice for Block<S, T>
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

    fn read(&self, sector: u64, to: &mut dyn OriginalMut) -> Result<(), BlockError> {
        let total = to.length();
        self.check(sector, total)?;
        let mut start = 0;
        while start < total {
            let length = (total - start).min(MAX_TRANSFER);
            // The slots start as zeroes and the device has to fill them all: the old bytes are not copied in.
            let data = Arc::new(self.device.buffer(length, Direction::FromDevice)?);
            let at = sector + (start / SECTOR_SIZE) as u64;
            if self.request(Kind::In, at, Some(data.clone()))? < length {
                return Err(BlockError::Io);
            }
            data.sync_for_cpu(&mut Tail { whole: &mut *to, start }, 0, length);
            start += length;
        }
        Ok(())
    }

    fn write(&self, sector: u64, from: &dyn Original) -> Result<(), BlockError> {
        let total = from.length();
        self.check(sector, total)?;
        if self.read_only {
            return Err(BlockError::ReadOnly);
        }
        let mut start = 0;
        while start < total {
            let length = (total - start).min(MAX_TRANSFER);
            let data = self.device.buffer(length, Direction::ToDevice)?;
            data.sync_for_device(&Tail { whole: from, start }, 0, length);
            let at = sector + (start / SECTOR_SIZE) as u64;
            self.request(Kind::Out, at, Some(Arc::new(data)))?;
            start += length;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), BlockError> {
        if self.has_cache { self.request(Kind::Flush, 0, None).map(|_| ()) } else { Ok(()) }
    }
}
