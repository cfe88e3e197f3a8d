//! Devices that are removed, and others that take their slots.
//!
//! Devices are plugged into and out of a slot. The slot's account, and its domain behind an IOMMU,
//! are made once. While the slot is empty, the account is *detached*: it holds nothing, owns no
//! page, its domain has no tables, and no list names it. The next device continues its counts.
//! (Linux makes and frees a device's record each time. There, removing a device that holds memory
//! is a driver's bug, which `CONFIG_DMA_API_DEBUG` reports.)
//!
//! **Protocol.** The caller makes sure that no task takes memory for the device any more: the
//! driver has given up, and no task runs in it. So the memory that the device holds only decreases,
//! and stays 0 once it is 0. But other threads may hold pages whose last owner was the device: a
//! take of another device, and reclaim, remove such a page from the departing device's domain. So
//! the domain is removed last. First the idle pages leave it, run by run; they are zeroed and get
//! no owner. So neither another device nor the next one in the same slot sees their bytes. While
//! another thread has a page that still names the device, that thread may use the domain. Then
//! [`Device::detach`] reports that memory is held, and is tried again. Once no page names the
//! device, no thread uses its domain, and none will (`owners.rs` says why). Only then are the
//! domain and its tables freed.
//!
//! A ring, and frames in their places, count as held until they have left the domain.

use core::fmt;
use core::sync::atomic::{Ordering, fence};

use freehold_machine::{PAGE_SIZE, Unconfirmed};

use crate::runs::FrameRuns;
use crate::{Device, DmaError, DmaSource};

/// Reasons why the account of a removed device stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DetachError {
    /// This many bytes are held: by a task that will soon free them or give them to another device,
    /// or for ever.
    Held(usize),
    /// The IOMMU does not confirm that the device has lost access, so the device keeps the pages.
    Unconfirmed,
}

impl fmt::Display for DetachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held(bytes) => write!(f, "it holds {bytes} bytes"),
            Self::Unconfirmed => f.write_str("the IOMMU does not answer"),
        }
    }
}

impl core::error::Error for DetachError {}

impl From<Unconfirmed> for DetachError {
    fn from(_: Unconfirmed) -> Self {
        Self::Unconfirmed
    }
}

impl<S: DmaSource> Device<S> {
    /// Empties the account of a removed device. No task takes memory for it any more. Its pages
    /// lose their owner, and its domain's tables are freed. Until [`Device::reattach`] no list
    /// names it. Later calls do nothing.
    ///
    /// # Errors
    /// [`DetachError`]; after [`DetachError::Held`] the call may be repeated.
    pub fn detach(self) -> Result<(), DetachError> {
        let account = self.account();
        if self.is_detached() {
            return Ok(());
        }
        match self.held() {
            0 => {}
            held => return Err(DetachError::Held(held)),
        }
        // Memory that is no longer held has left the domain.
        fence(Ordering::Acquire);
        while let Some(page) = account.cells.remove_idle() {
            self.give_pages(&FrameRuns::one(page));
        }
        let Some(means) = self.dma().means() else { return Ok(()) };
        match self.pool().disown(means, self.number()) {
            0 => {}
            pages => return Err(DetachError::Held(pages * PAGE_SIZE)),
        }
        self.dma().domains().detach(self.number())?;
        account.is_detached.store(true, Ordering::Release);
        Ok(())
    }

    /// Uses the account for another device in the slot of the removed one.
    ///
    /// # Errors
    /// [`DmaError::OutOfMemory`]: no tables for its domain. The slot stays empty.
    pub fn reattach(self) -> Result<(), DmaError> {
        if !self.is_detached() {
            return Ok(());
        }
        self.dma().domains().reattach(self.number()).map_err(|_| DmaError::OutOfMemory)?;
        self.account().is_detached.store(false, Ordering::Release);
        Ok(())
    }

    /// Whether the slot is empty.
    pub fn is_detached(self) -> bool {
        self.account().is_detached.load(Ordering::Acquire)
    }
}
