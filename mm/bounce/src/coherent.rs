//! Frames that a device and its driver use at the same time: rings. They are in the kernel's map; slots are not.

use core::fmt;
use core::sync::atomic::Ordering;

use freehold_frame::{Bounce, Frame, Order, Owner, Request};
use freehold_machine::{PAGE_SIZE, Pfn, PfnRange};

use crate::device::Amount;
use crate::pool::Taker;
use crate::runs::Runs;
use crate::word::SEGMENT_PAGES;
use crate::{Device, DmaAddr, DmaError, DmaSource};

impl<S: DmaSource> Device<S> {
    /// Whole zeroed frames that device and driver use at the same time: rings.
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
        if self.account().restricted.is_some() {
            return self.restricted_coherent(order);
        }
        let frame = self.block(order)?;
        Ok(self.coherent_of(frame, None))
    }

    /// Zeroed frames that the device reaches.
    fn block(self, order: Order) -> Result<Frame<Bounce, S>, DmaError> {
        let request = Request::new(Owner::Bounce).order(order).zeroed();
        let frame = Frame::allocate_with(self.dma().source(), request)?;
        if frame.pfn().start().0 + order.bytes() as u64 - 1 > self.rules().reach.0 {
            return Err(DmaError::OutOfReach);
        }
        self.dma().join(self.number(), frames_of(&frame))?;
        Ok(frame)
    }

    fn coherent_of(self, frame: Frame<Bounce, S>, instead: Option<Runs>) -> Coherent<S> {
        let order = frame.order();
        self.account().coherent.fetch_add(order.bytes(), Ordering::Relaxed);
        self.dma().coherent_frames.fetch_add(order.frames() as usize, Ordering::Relaxed);
        Coherent { device: self, frame: Some(frame), instead, order }
    }

    /// Frames for a device whose memory does not grow: as many of its own are out of use meanwhile, because those are not in
    /// the kernel's map.
    fn restricted_coherent(self, order: Order) -> Result<Coherent<S>, DmaError> {
        let pages = order.frames() as usize;
        if pages > SEGMENT_PAGES as usize {
            return Err(DmaError::TooLong);
        }
        let taker = Taker { device: self.number(), reach: self.rules().reach, step: pages as u32 };
        let runs = self.pages(taker, pages, Amount::All)?;
        match self.block(order) {
            Ok(frame) => Ok(self.coherent_of(frame, Some(runs))),
            Err(error) => {
                self.give_pages(&runs);
                Err(error)
            }
        }
    }
}

/// Frames that a device and its driver share until this is dropped.
#[must_use = "dropping it takes the memory from the device"]
pub struct Coherent<S: DmaSource> {
    device: Device<S>,
    /// `None` only while it is dropped.
    frame: Option<Frame<Bounce, S>>,
    /// Pages of a restricted device that are out of use for it.
    instead: Option<Runs>,
    order: Order,
}

fn frames_of<S: DmaSource>(frame: &Frame<Bounce, S>) -> PfnRange {
    PfnRange::new(frame.pfn(), frame.pfn().offset(frame.order().frames()))
}

impl<S: DmaSource> Coherent<S> {
    /// What to tell the device.
    pub fn address(&self) -> DmaAddr {
        DmaAddr(self.pfn().start().0)
    }
    /// The first of the frames, which follow each other.
    pub fn pfn(&self) -> Pfn {
        self.frame.as_ref().expect("held until dropped").pfn()
    }
    /// How many frames: 2^order.
    pub const fn order(&self) -> Order {
        self.order
    }
    /// Takes the frames out of use for ever, as [`Mapping::lose`] does. Returns the bytes lost.
    pub fn lose(self) -> usize {
        let bytes = self.order.bytes();
        self.device.count_lost(bytes);
        core::mem::forget(self);
        bytes
    }
}

impl<S: DmaSource> Drop for Coherent<S> {
    fn drop(&mut self) {
        self.device.account().coherent.fetch_sub(self.order.bytes(), Ordering::Relaxed);
        let Some(frame) = self.frame.take() else { return };
        let dma = self.device.dma();
        dma.coherent_frames.fetch_sub(self.order.frames() as usize, Ordering::Relaxed);
        if !dma.leave(self.device.number(), frames_of(&frame)) {
            self.device.count_lost(self.order.bytes());
            frame.into_raw();
            return;
        }
        if let Some(runs) = &self.instead {
            self.device.give_pages(runs);
        }
    }
}

impl<S: DmaSource> fmt::Debug for Coherent<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Coherent({:?}, order {})", self.address(), self.order.log2())
    }
}
