//! Frames that a device reaches in their places, for one transfer: nothing is copied.
//!
//! **The rule** holds: the device reaches the frames in its domain, and only a device behind an
//! IOMMU has a domain.
//!
//! **Invariant.** The frames have a holder, and an [`InPlace`] holds it until the device has
//! forgotten them: dropping one closes its window, waits for the IOMMU's answer, and lets the
//! holder go after it. So the next owner of a frame gets one that no device reaches. Without an
//! answer, and where the device does not confirm a reset, the holder is *kept*: it is never
//! dropped, the frames stay out of use and count as lost, and [`Dma::kept`](crate::Dma::kept) shows
//! their device. There is room for a holder for each window; those of an IOMMU that lies about more
//! are leaked unseen. The frames count as held ([`Device::held`]) until the device has forgotten
//! them, and kept ones for ever, so that the domain of a device that goes has no window open.
//!
//! **Opening windows.** A driver opens a window by the number of its request's place. No other
//! request has a place that the device still has, nor its window.
//!
//! **Context.** As with mappings. A drop may wait for the IOMMU, without sleeping. It may happen
//! under a driver's lock. That lock comes before the IOMMU's and the page allocator's, to which the
//! holder returns frames.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use freehold_machine::{DeviceAccess, DeviceDomain, MAX_WINDOWS, PAGE_SIZE, WINDOW_PAGES};
use spin::Once;

use crate::{Device, Direction, DmaAddr, DmaSource, HeldFrames};

/// Holders that are never dropped, by the windows of their frames: such a window is never opened
/// again.
pub(crate) struct Kept([Once<Arc<dyn HeldFrames>>; MAX_WINDOWS]);

impl Kept {
    /// Makes a device's list, where its domain has windows. Made at attach, since nothing can be
    /// allocated when a device is lost.
    pub fn of(domain: Option<&'static dyn DeviceDomain>) -> Option<Box<Self>> {
        domain.filter(|domain| domain.windows() > 0)?;
        Some(Box::new(Self([const { Once::new() }; MAX_WINDOWS])))
    }
    /// Keeps a holder for ever: in the window's place, in another one where that has a holder
    /// already, or without one.
    fn keep(&self, window: usize, holder: Arc<dyn HeldFrames>) {
        let (before, after) = self.0.split_at(window.min(MAX_WINDOWS));
        let mut is_shown = false;
        for place in after.iter().chain(before) {
            place.call_once(|| {
                is_shown = true;
                holder.clone()
            });
            if is_shown {
                break;
            }
        }
        core::mem::forget(holder);
    }
    /// Returns the holders of the frames of all windows.
    pub fn holders(&self) -> impl Iterator<Item = &Arc<dyn HeldFrames>> {
        self.0.iter().filter_map(Once::get)
    }
}

/// Frames of others that a device reaches until this is dropped.
#[must_use = "dropping it takes the frames from the device"]
pub struct InPlace<S: DmaSource> {
    device: Device<S>,
    domain: &'static dyn DeviceDomain,
    window: usize,
    pages: usize,
    address: DmaAddr,
    /// `None` only while this is dropped.
    holder: Option<Arc<dyn HeldFrames>>,
    /// Whether the frames are lost; never cleared.
    is_lost: AtomicBool,
}

impl<S: DmaSource> Device<S> {
    /// Returns the pages that the device can have in their places at once, for one transfer: none
    /// without an IOMMU, or where that is not wanted.
    pub fn pages_in_place(self) -> usize {
        self.rules().domain.map_or(0, |domain| if domain.windows() > 0 { WINDOW_PAGES } else { 0 })
    }

    /// Lets the device reach some of the holder's frames in their places, through a window that is
    /// not open. Returns `None` if the device cannot reach them so now.
    pub fn in_place(
        self,
        window: usize,
        holder: Arc<dyn HeldFrames>,
        frames: Range<usize>,
        direction: Direction,
    ) -> Option<InPlace<S>> {
        let domain = self.rules().domain.filter(|domain| window < domain.windows())?;
        let pages = frames.len();
        if pages == 0 || pages > WINDOW_PAGES || frames.end > holder.count() {
            return None;
        }
        let access = match direction {
            Direction::ToDevice => DeviceAccess::Read,
            Direction::FromDevice => DeviceAccess::Write,
            Direction::Bidirectional => DeviceAccess::ReadWrite,
        };
        let address = domain.open(window, &mut frames.map(|index| holder.frame(index).pfn()), access).ok()?;
        self.account().in_place.fetch_add(pages * PAGE_SIZE, Ordering::Relaxed);
        Some(InPlace {
            device: self,
            domain,
            window,
            pages,
            address: DmaAddr(address),
            holder: Some(holder),
            is_lost: AtomicBool::new(false),
        })
    }
}

impl<S: DmaSource> InPlace<S> {
    /// Returns the device's address of the first byte; the others follow it.
    pub const fn address(&self) -> DmaAddr {
        self.address
    }
    /// Bytes: whole pages, one at least.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub const fn len(&self) -> usize {
        self.pages * PAGE_SIZE
    }
    /// Takes the frames out of use for ever: the device does not confirm that it lets go of them.
    /// Returns how many bytes this call lost: 0 if they were lost before.
    pub fn lose(&self) -> usize {
        if self.is_lost.swap(true, Ordering::AcqRel) {
            return 0;
        }
        self.device.count_lost(self.len());
        self.len()
    }
}

impl<S: DmaSource> Drop for InPlace<S> {
    fn drop(&mut self) {
        if !*self.is_lost.get_mut() && self.domain.close(self.window, self.pages).is_ok() {
            // No other CPU has seen a frame before the answer. The domain may go after it.
            self.device.account().in_place.fetch_sub(self.len(), Ordering::Release);
            self.holder = None;
            return;
        }
        self.lose();
        match (&self.device.account().kept, self.holder.take()) {
            (Some(kept), Some(holder)) => kept.keep(self.window, holder),
            (_, holder) => core::mem::forget(holder),
        }
    }
}

impl<S: DmaSource> fmt::Debug for InPlace<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InPlace({:?}, {} pages)", self.address, self.pages)
    }
}
