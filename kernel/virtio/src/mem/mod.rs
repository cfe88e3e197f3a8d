//! A device that plugs memory in (virtio 1.2, 5.15).
//!
//! The device owns a *region* of physical addresses, in blocks. It tells the size that the host
//! requests ([`Sizes::requested`]). The driver plugs blocks in and unplugs them, one request at a
//! time, until the plugged size is equal. Only blocks that are plugged in are memory.
//!
//! | module | what |
//! |---|---|
//! | [`region`] | the device's configuration, checked |
//! | [`request`] | requests and answers as bytes |
//! | [`resize`] | [`Resizer`]: from the plugged size to the requested one |
//!
//! **Hostile devices.** The region and its block size are checked once and fixed from then on;
//! sizes are limited to the region each time they are read. A device whose answer is invalid, or
//! late, is reset and [`Failed`] from then on. A reset unplugs nothing (QEMU, and Linux'
//! `virtio_mem_remove`, which resets with memory still plugged in), so plugged blocks stay in use.
//! The driver's own list of plugged blocks counts, not the device's: a device can refuse, but
//! cannot make the kernel use memory that it did not acknowledge.

pub mod region;
pub mod request;
pub mod resize;
#[cfg(test)]
mod tests;

use alloc::sync::Arc;

use freehold_bounce::{Device, Direction, DmaMapping, DmaSource};
use freehold_machine::PfnRange;
use freehold_virtqueue::{Chain, Part, Queue, Transport};
use spin::Mutex;

pub use region::{BadRegion, Domain, Region, Sizes};
pub use request::{Answer, ResizeRequest};
pub use resize::{Onliner, ResizeOutcome, Resizer};

use crate::link::{Link, Why};
use crate::platform::{Sleep, Wait};
use crate::transport::{Features, negotiate};
use crate::{Failed, SetupError};
use request::{REQUEST_BYTES, RESPONSE_BYTES};

/// Descriptors in the ring: one request of two parts is with the device at a time.
const RING: usize = 4;
/// Time for an answer: a host may have to find the memory first.
const PATIENCE_NS: u64 = 60_000_000_000;
/// Where the answer is in the buffer.
const RESPONSE: usize = 32;

/// The device. See the module's head.
pub struct Mem<S: DmaSource, T: Transport> {
    /// Taken by tasks only, while the ring is changed. Orders with no other lock.
    inner: Mutex<MemInner<S, T>>,
    /// The wait for an interrupt: an answer has come, or the host requests another size.
    wait: &'static dyn Wait,
    region: Region,
}

struct MemInner<S: DmaSource, T: Transport> {
    link: Link<S, T, Queue<S, RING>>,
    buffer: Arc<DmaMapping<S>>,
    busy: bool,
}

impl<S: DmaSource, T: Transport> Mem<S, T> {
    /// Starts the device. Its transport notifies `wait` of its queue and its configuration, if it
    /// can; otherwise `wait` polls. `found` is the region that was found at start-up, for which the
    /// kernel has made room.
    ///
    /// # Errors
    /// [`SetupError`]; also if the device now has another region than `found`.
    pub fn new(
        mut transport: T,
        device: Device<S>,
        wait: &'static dyn Wait,
        found: Region,
    ) -> Result<Self, SetupError> {
        let wanted = Features::MEM_ACPI_PXM | Features::MEM_UNPLUGGED_INACCESSIBLE;
        let features = negotiate(&mut transport, wanted)?;
        let region = Region::check(&region::read(&transport)?, Domain::of(features))?;
        if region != found {
            return Err(SetupError::Nonsense("region"));
        }
        // Before the device knows of any memory: from here to the end nothing fails.
        let buffer = Arc::new(device.buffer(RESPONSE + RESPONSE_BYTES, Direction::Bidirectional)?);
        let queue = Queue::new(&mut transport, 0, device)?;
        transport.finish_init();
        let inner = MemInner { link: Link::new(transport, device, queue), buffer, busy: false };
        Ok(Self { inner: Mutex::new(inner), wait, region })
    }

    /// The device's region.
    pub const fn region(&self) -> &Region {
        &self.region
    }

    /// Returns how much is plugged in and how much the host requests, according to the device now.
    ///
    /// # Errors
    /// [`Failed`].
    pub fn sizes(&self) -> Result<Sizes, Failed> {
        let mut inner = self.inner.lock();
        let config = {
            let (_, transport) = inner.link.lent()?;
            region::read(transport)
        };
        // The configuration changes all the time, or is too short by now.
        let config = config.map_err(|_| {
            inner.link.fail(Why::BrokeTheProtocol);
            Failed
        })?;
        Ok(self.region.sizes(&config))
    }

    /// Plugs in `frames`, whole units of the region that are not plugged in.
    ///
    /// # Errors
    /// [`Failed`].
    pub fn plug(&self, frames: PfnRange) -> Result<Answer, Failed> {
        self.request(ResizeRequest::Plug(frames))
    }
    /// Unplugs `frames`, whole unused units of the region.
    ///
    /// # Errors
    /// [`Failed`].
    pub fn unplug(&self, frames: PfnRange) -> Result<Answer, Failed> {
        self.request(ResizeRequest::Unplug(frames))
    }
    /// Unplugs everything that was plugged in before this kernel started.
    ///
    /// # Errors
    /// [`Failed`].
    pub fn unplug_all(&self) -> Result<Answer, Failed> {
        self.request(ResizeRequest::UnplugAll)
    }

    /// Send one request and sleep until it is answered.
    fn request(&self, request: ResizeRequest) -> Result<Answer, Failed> {
        let bytes = request.encode(&self.region);
        let mut sent = Ok(false);
        self.wait.wait_until(PATIENCE_NS, Sleep::Uninterruptible, &mut || {
            sent = self.inner.lock().send(&bytes);
            !matches!(sent, Ok(false))
        });
        if !sent? {
            return Err(Failed);
        }
        let mut answer = None;
        self.wait.wait_until(PATIENCE_NS, Sleep::Uninterruptible, &mut || {
            answer = self.inner.lock().answer();
            answer.is_some()
        });
        // A task that waits for the buffer may go on.
        self.wait.notify();
        answer.unwrap_or_else(|| self.inner.lock().give_up())
    }
}

impl<S: DmaSource, T: Transport> MemInner<S, T> {
    /// Gives a request to the device; `false` if the device has one.
    fn send(&mut self, request: &[u8; REQUEST_BYTES]) -> Result<bool, Failed> {
        let (queue, transport) = self.link.lent()?;
        if self.busy {
            return Ok(false);
        }
        self.buffer.write(0, request);
        self.buffer.write(RESPONSE, &[0xff; RESPONSE_BYTES]);
        let parts = Part::readable(self.buffer.clone(), 0..REQUEST_BYTES)
            .zip(Part::writable(self.buffer.clone(), RESPONSE..RESPONSE + RESPONSE_BYTES));
        let chain = parts.and_then(|(request, response)| Chain::new(0, [request, response]));
        if chain.is_none_or(|chain| queue.submit(chain).is_err()) {
            self.link.fail(Why::BrokeTheProtocol);
            return Err(Failed);
        }
        self.busy = true;
        if queue.wants_notice() {
            transport.notify(0);
        }
        Ok(true)
    }

    /// Returns the answer to the request; `None` while the device has it.
    fn answer(&mut self) -> Option<Result<Answer, Failed>> {
        let queue = match self.link.lent() {
            Ok((queue, _)) => queue,
            Err(failed) => return Some(Err(failed)),
        };
        let answer = match queue.complete() {
            Ok(None) => return None,
            Ok(Some(done)) => {
                let mut response = [0; RESPONSE_BYTES];
                self.buffer.read(RESPONSE, &mut response);
                Answer::decode(&response, done.written)
            }
            Err(_) => None,
        };
        self.busy = false;
        if answer.is_none() {
            self.link.fail(Why::BrokeTheProtocol);
        }
        Some(answer.ok_or(Failed))
    }

    /// Returns the answer that came at the last moment, or gives the device up.
    fn give_up(&mut self) -> Result<Answer, Failed> {
        self.answer().unwrap_or_else(|| {
            self.link.fail(Why::Silent);
            Err(Failed)
        })
    }
}
