//! A driver's hold on its device: the registers, and the memory lent to the device.
//!
//! **Invariant.** Memory that was lent to a device is freed only after the device has confirmed a
//! reset. A [`Link`] ends in one of four ways. The first three reset the device first:
//! [`Link::fail`] when it broke the protocol, [`Link::remove`] when it leaves its slot, and
//! dropping a link that is being set up or detached. The fourth is that it never ends. If the
//! device does not confirm, its memory is lost on purpose: the DMA API counts it, and the log says
//! how much. A device that failed stays out of use until the next boot, also after a confirmed
//! reset: it has shown that its answers cannot be trusted. (Linux does the same for a broken
//! virtqueue: `virtio_break_device`.)
//!
//! **Context.** Tasks and start-up, under the driver's lock. A reset that is not confirmed spins
//! for up to a second, once in a device's life.

use alloc::sync::Arc;
use alloc::vec::Vec;

use freehold_bounce::{Device, DmaMapping, DmaSource};
use freehold_virtqueue::{Broken, DeviceReset, DeviceStatus, PowerSlot, Queue, Transport, reset, unplugged};

use crate::Failed;

/// Memory that a driver lends to its device: its queues, and the buffers in flight in them.
pub(crate) trait Lent {
    /// Lets everything be freed when it is dropped next: the device has confirmed a reset.
    fn reclaim(&mut self, proof: &DeviceReset);
    /// Takes everything that the device may still write to out of use for ever. Returns how many
    /// bytes that is.
    fn lose(&mut self) -> usize;
}

impl<S: DmaSource, const SIZE: usize> Lent for Queue<S, SIZE> {
    fn reclaim(&mut self, proof: &DeviceReset) {
        Queue::reclaim(self, proof);
    }
    fn lose(&mut self) -> usize {
        Queue::lose(self)
    }
}

impl<L: Lent> Lent for Option<L> {
    fn reclaim(&mut self, proof: &DeviceReset) {
        if let Some(lent) = self {
            lent.reclaim(proof);
        }
    }
    fn lose(&mut self) -> usize {
        self.as_mut().map_or(0, Lent::lose)
    }
}

/// The two queues of a device that gives and takes, and their buffers.
pub(crate) struct TwoWays<S: DmaSource, R, const SIZE: usize> {
    /// The queue that the host fills.
    pub receive: R,
    /// The queue that the host empties.
    pub transmit: Queue<S, SIZE>,
    /// All buffers, also those that the host does not have: first those for receiving.
    pub buffers: Vec<Arc<DmaMapping<S>>>,
}

impl<S: DmaSource, R: Lent, const SIZE: usize> Lent for TwoWays<S, R, SIZE> {
    fn reclaim(&mut self, proof: &DeviceReset) {
        self.receive.reclaim(proof);
        Lent::reclaim(&mut self.transmit, proof);
    }
    fn lose(&mut self) -> usize {
        self.receive.lose() + Lent::lose(&mut self.transmit)
    }
}

impl<S: DmaSource, R, const SIZE: usize> TwoWays<S, R, SIZE> {
    /// Gathers in `free` the numbers of the buffers that the host has emptied. The number of bytes
    /// that the host claims to have written there is ignored.
    pub fn gather_sent(&mut self, free: &mut Vec<usize>) -> Result<(), Broken> {
        while let Some(done) = self.transmit.complete()? {
            free.push(done.tag);
        }
        Ok(())
    }
}

/// See the module's head.
pub(crate) struct Link<S: DmaSource, T: Transport, L: Lent> {
    pub transport: T,
    /// `None` once the device was given up.
    lent: Option<L>,
    device: Device<S>,
    /// Whether the device that was given up has confirmed a reset.
    is_reset: bool,
}

/// The reason why a driver gives its device up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    /// The device broke the protocol.
    BrokeTheProtocol,
    /// The device did not answer in time, and the driver needs the answer.
    Silent,
    /// The driver ends, or does not start.
    Detached,
}

impl<S: DmaSource, T: Transport, L: Lent> Link<S, T, L> {
    /// Makes the link of a device that knows of `lent`.
    pub fn new(transport: T, device: Device<S>, lent: L) -> Self {
        Self { transport, lent: Some(lent), device, is_reset: false }
    }

    /// Returns the memory that was lent to the device, and the device's registers.
    ///
    /// # Errors
    /// [`Failed`]: the device was given up.
    pub fn lent(&mut self) -> Result<(&mut L, &mut T), Failed> {
        self.lent.as_mut().map(|lent| (lent, &mut self.transport)).ok_or(Failed)
    }

    /// The same for reading only.
    pub fn look(&self) -> Option<&L> {
        self.lent.as_ref()
    }

    /// Whether the device was given up.
    pub fn is_failed(&self) -> bool {
        self.lent.is_none()
    }

    /// Whether the device was given up and has confirmed a reset: it does nothing more of its
    /// requests.
    pub fn is_reset(&self) -> bool {
        self.is_reset
    }

    /// Gives a device up that leaves its slot. Later calls do nothing.
    ///
    /// # Errors
    /// [`Failed`]: it has power and does not confirm a reset. It keeps what it has for now.
    pub fn remove(&mut self, slot: &dyn PowerSlot) -> Result<(), Failed> {
        let Some(lent) = &mut self.lent else { return Ok(()) };
        let proof = unplugged(slot).or_else(|| reset(&mut self.transport)).ok_or(Failed)?;
        lent.reclaim(&proof);
        self.is_reset = true;
        self.lent = None;
        Ok(())
    }

    /// Gives the device up. Later calls do nothing.
    pub fn fail(&mut self, why: Why) {
        // Done in place: the lent memory is too large for a kernel stack.
        let Some(lent) = &mut self.lent else { return };
        let name = self.device.rules().name;
        let what = match why {
            Why::BrokeTheProtocol => "broke the protocol",
            Why::Silent => "does not answer",
            Why::Detached => "was detached",
        };
        match reset(&mut self.transport) {
            Some(proof) => {
                lent.reclaim(&proof);
                self.is_reset = true;
                if why != Why::Detached {
                    log::error!("{name}: the device {what}: it was reset and is not used again");
                }
            }
            None => {
                let lost = lent.lose();
                log::error!(
                    "{name}: the device {what} and does not confirm a reset: {lost} bytes that it may write to stay out of use"
                );
            }
        }
        self.lent = None;
        if why != Why::Detached {
            self.transport.set_status(DeviceStatus::FAILED);
        }
    }
}

impl<S: DmaSource, T: Transport, L: Lent> Drop for Link<S, T, L> {
    fn drop(&mut self) {
        self.fail(Why::Detached);
    }
}
