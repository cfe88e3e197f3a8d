//! Frames that a device accesses in place for one transfer, without a copy.
//!
//! **The rule** holds: the device accesses only frames in its domain, and only a device behind an
//! IOMMU has a domain.
//!
//! **Invariant.** The frames have a holder, and an [`InPlace`] keeps it until the device can no
//! longer access them. Dropping an `InPlace` closes its window, waits for the IOMMU's answer, and
//! then drops the holder. So no device can access a frame when its next owner gets it. Without an
//! answer, and if the device does not confirm a reset, the holder is *kept*: it is never dropped,
//! the frames stay out of use and count as lost, and [`Dma::kept`](crate::Dma::kept) shows their
//! device. Each window has room for one kept holder. If an IOMMU fails more often than that,
//! further holders are leaked without a record. The frames count as held ([`Device::held`]) until
//! the device can no longer access them, and kept ones for ever. So the domain of a removed device
//! has no open window.
//!
//! **Opening windows.** A driver opens the window with the number of its request's slot in the
//! queue. While the device has a slot, no other request uses that slot or its window.
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

/// Holders that are never dropped, indexed by the windows of their frames. Such a window is never
/// opened again.
pub(crate) struct Kept([Once<Arc<dyn HeldFrames>>; MAX_WINDOWS]);

impl Kept {
    /// Makes a device's list if its domain has windows. This is done at attach, since nothing can
    /// be allocated when a device is lost.
    pub fn of(domain: Option<&'static dyn DeviceDomain>) -> Option<Box<Self>> {
        domain.filter(|domain| domain.windows() > 0)?;
        Some(Box::new(Self([const { Once::new() }; MAX_WINDOWS])))
    }
    /// Keeps a holder for ever: at the window's index, at another index if that one is in use, or
    /// leaked if the list is full.
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

/// Frames of other owners that a device accesses until this is dropped.
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
    /// Returns the number of pages that the device can access in place for one transfer: 0 without
    /// an IOMMU, or if the feature is off.
    pub fn pages_in_place(self) -> usize {
        self.rules().domain.map_or(0, |domain| if domain.windows() > 0 { WINDOW_PAGES } else { 0 })
    }

    /// Lets the device access some of the holder's frames in place, through a closed window.
    /// Returns `None` if that is not possible now.
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
    /// Length in bytes: whole pages, at least one.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub const fn len(&self) -> usize {
        self.pages * PAGE_SIZE
    }
    /// Takes the frames out of use for ever: the device does not confirm that it no longer uses
    /// them. Returns the number of bytes that this call lost: 0 if they were lost before.
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
            // No other CPU gets a frame before the answer. After this store the domain may be
            // removed.
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
