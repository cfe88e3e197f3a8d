//! A virtio disk, as a [`BlockDevice`] (virtio 1.2, 5.2).
//!
//! Up to [`DEPTH`] requests are with the device at once, from as many tasks; each sleeps until an interrupt
//! wakes it and the ring says that its request is done. Every transfer goes through slots of the DMA API. A
//! request that the device does not answer in time is given up but stays the device's, memory and all, until
//! it answers.

use alloc::sync::Arc;

use freehold_bounce::{Device, Direction, DmaSource, Mapping, Original, OriginalMut};
use freehold_virtqueue::{Chain, DeviceStatus, Part, Queue, Transport};
use spin::Mutex;

use crate::platform::Wait;
use crate::transport::{Features, negotiate};
use crate::{BlockDevice, BlockError, SECTOR_SIZE, SetupError};

/// Requests that may be with the device at once.
pub const DEPTH: usize = 16;
/// Descriptors in the ring: three for each request, and a power of two.
const RING: usize = 64;
/// The longest transfer in one request.
const MAX_TRANSFER: usize = 128 << 10;
/// How long a device may take for one request: 2 minutes, since hosts slow disks down on purpose.
const PATIENCE_NS: u64 = 120_000_000_000;

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
}

struct Inner<S: DmaSource, T: Transport> {
    transport: T,
    queue: Queue<S, RING>,
    headers: Arc<Mapping<S>>,
    requests: [State; DEPTH],
    failed: bool,
}

impl<S: DmaSource, T: Transport> Block<S, T> {
    /// Start the disk, whose transport's interrupt notifies `wait`.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn new(mut transport: T, device: Device<S>, wait: &'static dyn Wait) -> Result<Self, SetupError> {
        let features = negotiate(&mut transport, Features::BLOCK_READ_ONLY | Features::BLOCK_FLUSH)?;
        let sectors = transport.read_consistent(|| {
            let low: u32 = transport.read_config_space(0)?;
            let high: u32 = transport.read_config_space(4)?;
            Ok(u64::from(high) << 32 | u64::from(low))
        })?;
        if sectors > u64::MAX / SECTOR_SIZE as u64 {
            return Err(SetupError::Nonsense("size"));
        }
        let queue = Queue::new(&mut transport, 0)?;
        let headers = Arc::new(device.buffer(DEPTH * HEADER, Direction::Bidirectional)?);
        transport.finish_init();
        let inner = Inner { transport, queue, headers, requests: [State::Free; DEPTH], failed: false };
        Ok(Self {
            inner: Mutex::new(inner),
            wait,
            device,
            sectors,
            read_only: features.contains(Features::BLOCK_READ_ONLY),
            has_cache: features.contains(Features::BLOCK_FLUSH),
        })
    }

    /// Send one request and sleep until it is done. Returns how many bytes the device wrote into `data`.
    fn request(&self, kind: Kind, sector: u64, data: Option<Arc<Mapping<S>>>) -> Result<usize, BlockError> {
        let mut sent = Ok(None);
        self.wait.wait_until(PATIENCE_NS, &mut || {
            sent = self.inner.lock().send(kind, sector, data.clone());
            !matches!(sent, Ok(None))
        });
        let number = sent?.ok_or(BlockError::TimedOut)?;
        let mut done = None;
        self.wait.wait_until(PATIENCE_NS, &mut || {
            done = self.inner.lock().finished(number);
            done.is_some()
        });
        let Some(done) = done else {
            self.inner.lock().requests[number] = State::Abandoned;
            return Err(BlockError::TimedOut);
        };
        // A place in the table is free: another task may wait for one.
        self.wait.notify();
        let (written, status) = done?;
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

impl<S: DmaSource, T: Transport> Inner<S, T> {
    /// Give a request to the device: its number, or `None` where there is no room now.
    fn send(
        &mut self,
        kind: Kind,
        sector: u64,
        data: Option<Arc<Mapping<S>>>,
    ) -> Result<Option<usize>, BlockError> {
        self.reap()?;
        let Some(number) = self.requests.iter().position(|&state| state == State::Free) else {
            return Ok(None);
        };
        let at = number * HEADER;
        let mut header = [0; STATUS + 1];
        header[..4].copy_from_slice(&(kind as u32).to_le_bytes());
        header[8..16].copy_from_slice(&sector.to_le_bytes());
        header[STATUS] = NO_STATUS;
        self.headers.write(at, &header);
        let chain = self.chain(kind, number, data).ok_or(BlockError::OutOfRange)?;
        if self.queue.submit(chain).is_err() {
            // Three descriptors for each of DEPTH requests fit in the ring.
            self.fail();
            return Err(BlockError::Failed);
        }
        self.requests[number] = State::Pending;
        if self.queue.wants_notice() {
            self.transport.notify(0);
        }
        Ok(Some(number))
    }

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

    /// Gather what the device has given back.
    fn reap(&mut self) -> Result<(), BlockError> {
        while !self.failed {
            match self.queue.complete() {
                Ok(None) => return Ok(()),
                Ok(Some(done)) => {
                    let number = done.chain.tag();
                    let mut status = [NO_STATUS];
                    self.headers.read(number * HEADER + STATUS, &mut status);
                    self.requests[number] = match self.requests[number] {
                        State::Pending => State::Done(done.written, status[0]),
                        _ => State::Free,
                    };
                }
                Err(_) => self.fail(),
            }
        }
        Err(BlockError::Failed)
    }

    /// Give the device up, and tell it.
    fn fail(&mut self) {
        self.failed = true;
        self.transport.set_status(DeviceStatus::FAILED);
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
