//! Frames that a device and its driver use at the same time: rings.

use core::fmt;
use core::sync::atomic::Ordering;

use freehold_frame::{Bounce, Frame, Order, Owner, Request};
use freehold_machine::{PAGE_SIZE, Pfn, PhysicalBytes};

use crate::device::Amount;
use crate::pool::Taker;
use crate::runs::FrameRuns;
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
        let request = Request::new(Owner::Bounce).order(order).zeroed();
        let frame = Frame::allocate_with(self.dma().source(), request)?;
        if frame.pfn().start().0 + order.bytes() as u64 - 1 > self.rules().reach.0 {
            return Err(DmaError::OutOfReach);
        }
        let dma = self.dma();
        dma.published.publish(dma.source(), &frame)?;
        if let Err(error) = dma.join(self.number(), frame.frames()) {
            self.hide(frame);
            return Err(error);
        }
        self.account().coherent.fetch_add(order.bytes(), Ordering::Relaxed);
        self.dma().coherent_frames.fetch_add(order.frames() as usize, Ordering::Relaxed);
        Ok(Coherent { device: self, memory: Some(CoherentMemory::Block(frame)), order })
    }

    /// Gives a block that the device does not reach back to the page allocator, once the host does
    /// not see it.
    fn hide(self, block: Frame<Bounce, S>) {
        if self.dma().published.withdraw(&block).is_err() {
            self.lose(block);
        }
    }

    fn lose(self, block: Frame<Bounce, S>) {
        self.count_lost(block.order().bytes());
        block.into_raw();
    }

    /// Frames of the device's own memory.
    fn restricted_coherent(self, order: Order) -> Result<Coherent<S>, DmaError> {
        let pages = order.frames() as usize;
        if pages > SEGMENT_PAGES as usize {
            return Err(DmaError::TooLong);
        }
        let taker = Taker { device: self.number(), reach: self.rules().reach, step: pages as u32 };
        let runs = self.pages(taker, pages, Amount::All)?;
        self.dma().bytes().zero_run(runs.first().pfn, order.frames());
        self.account().coherent.fetch_add(order.bytes(), Ordering::Relaxed);
        Ok(Coherent { device: self, memory: Some(CoherentMemory::Pages(runs)), order })
    }
}

/// Frames that a device and its driver share until this is dropped.
#[must_use = "dropping it takes the memory from the device"]
pub struct Coherent<S: DmaSource> {
    device: Device<S>,
    /// `None` only while it is dropped.
    memory: Option<CoherentMemory<S>>,
    order: Order,
}

/// Where coherent frames are from.
enum CoherentMemory<S: DmaSource> {
    /// The page allocator.
    Block(Frame<Bounce, S>),
    /// One run of the memory of a device that has its own.
    Pages(FrameRuns),
}

impl<S: DmaSource> Coherent<S> {
    /// Returns the bus address for the device.
    pub fn address(&self) -> DmaAddr {
        DmaAddr(self.pfn().start().0)
    }
    /// The first of the frames, which follow each other.
    pub fn pfn(&self) -> Pfn {
        match self.memory.as_ref().expect("held until dropped") {
            CoherentMemory::Block(frame) => frame.pfn(),
            CoherentMemory::Pages(runs) => runs.first().pfn,
        }
    }
    /// How many frames: 2^order.
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
        match self.memory.take() {
            Some(CoherentMemory::Pages(runs)) => self.device.give_pages(&runs),
            Some(CoherentMemory::Block(frame)) => {
                let dma = self.device.dma();
                dma.coherent_frames.fetch_sub(self.order.frames() as usize, Ordering::Relaxed);
                if dma.leave(self.device.number(), frame.frames()) {
                    self.device.hide(frame);
                } else {
                    self.device.lose(frame);
                }
            }
            None => {}
        }
        // It counts as held until it has left the device's domain, which may go then.
        self.device.account().coherent.fetch_sub(self.order.bytes(), Ordering::Release);
    }
}

impl<S: DmaSource> fmt::Debug for Coherent<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Coherent({:?}, order {})", self.address(), self.order.log2())
    }
}
