//! Frames that a device and its driver use at the same time: rings.

use core::fmt;
use core::sync::atomic::Ordering;

use freehold_frame::{Frame, Order, Owner, Request, Ring};
use freehold_machine::{PAGE_SIZE, Pfn};

use crate::device::Amount;
use crate::pool::Taker;
use crate::runs::FrameRuns;
use crate::{Device, DmaAddr, DmaError, DmaSource};

impl<S: DmaSource> Device<S> {
    /// Whole zeroed frames that device and driver use at the same time: rings. A device with
    /// restricted memory has that much less of it meanwhile.
    ///
    /// # Errors
    /// [`DmaError`].
    pub fn coherent(self, bytes: usize) -> Result<Coherent<S>, DmaError> {
        if bytes == 0 {
            return Err(DmaError::Empty);
        }
        let order = Order::holding(bytes.div_ceil(PAGE_SIZE) as u64).ok_or(DmaError::TooLong)?;
        if order.bytes() > self.room() {
            return Err(DmaError::Quota);
        }
        let set_aside = match self.account().restricted {
            Some(_) => self.pages(Taker::ANYONE, order.frames() as usize, Amount::All)?,
            None => FrameRuns::new(),
        };
        match self.ring_frames(order) {
            Ok(frames) => {
                self.account().coherent.fetch_add(order.bytes(), Ordering::Relaxed);
                self.dma().coherent_frames.fetch_add(order.frames() as usize, Ordering::Relaxed);
                Ok(Coherent { device: self, frames: Some(frames), set_aside, order })
            }
            Err(error) => {
                self.give_pages(&set_aside);
                Err(error)
            }
        }
    }

    /// Allocates frames that the device can access.
    fn ring_frames(self, order: Order) -> Result<Frame<Ring, S>, DmaError> {
        let request = Request::new(Owner::Ring).order(order).zeroed();
        let frames = Frame::allocate_with(self.dma().source(), request)?;
        if frames.pfn().start().0 + order.bytes() as u64 - 1 > self.rules().reach.0 {
            return Err(DmaError::OutOfReach);
        }
        let dma = self.dma();
        dma.published.publish(dma.source(), &frames)?;
        if let Err(error) = dma.join(self.number(), frames.frames()) {
            self.hide(frames);
            return Err(error);
        }
        self.name(&frames, Some(self.number()));
        Ok(frames)
    }

    fn name(self, block: &Frame<Ring, S>, device: Option<u8>) {
        if let Some(means) = self.dma().means() {
            means.name(block.frames(), device);
        }
    }

    /// Frees a block to which the device has no access, after the host has no access to it either.
    fn hide(self, block: Frame<Ring, S>) {
        if self.dma().published.withdraw(&block).is_err() {
            self.lose(block);
        }
    }

    fn lose(self, block: Frame<Ring, S>) {
        self.count_lost(block.order().bytes());
        block.into_raw();
    }
}

/// Frames that a device and its driver share until this is dropped.
#[must_use = "dropping it takes the memory from the device"]
pub struct Coherent<S: DmaSource> {
    device: Device<S>,
    /// `None` only while it is dropped.
    frames: Option<Frame<Ring, S>>,
    /// As many pages of a device's restricted memory as there are frames; they are unused
    /// meanwhile. The frames come from elsewhere, because restricted memory is outside the kernel's
    /// map and the kernel has pointers into rings.
    set_aside: FrameRuns,
    order: Order,
}

impl<S: DmaSource> Coherent<S> {
    /// Returns the bus address for the device.
    pub fn address(&self) -> DmaAddr {
        DmaAddr(self.pfn().start().0)
    }
    /// The first of the adjacent frames.
    pub fn pfn(&self) -> Pfn {
        self.frames.as_ref().expect("held until dropped").pfn()
    }
    /// The order of the number of frames: 2^order.
    pub const fn order(&self) -> Order {
        self.order
    }
    /// Takes the frames out of use for ever, as [`DmaMapping::lose`](crate::DmaMapping::lose) does.
    /// Returns the bytes lost.
    pub fn lose(self) -> usize {
        let bytes = self.order.bytes();
        self.device.count_lost(bytes);
        core::mem::forget(self);
        bytes
    }
}

impl<S: DmaSource> Drop for Coherent<S> {
    fn drop(&mut self) {
        let (device, dma) = (self.device, self.device.dma());
        dma.coherent_frames.fetch_sub(self.order.frames() as usize, Ordering::Relaxed);
        let Some(frames) = self.frames.take() else { return };
        if dma.leave(device.number(), frames.frames()) {
            device.name(&frames, None);
            device.hide(frames);
        } else {
            device.lose(frames);
        }
        device.give_pages(&self.set_aside);
        // The memory counts as held until it has left the device's domain. After that the domain
        // may be removed.
        device.account().coherent.fetch_sub(self.order.bytes(), Ordering::Release);
    }
}

impl<S: DmaSource> fmt::Debug for Coherent<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Coherent({:?}, order {})", self.address(), self.order.log2())
    }
}
