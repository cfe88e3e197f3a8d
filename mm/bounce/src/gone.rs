//! Devices that go, and others that come in their places.
//!
//! A place is a slot that devices are plugged into and out of. Its account, and its domain behind
//! an IOMMU, are made once; while the slot is empty the account is *detached*: it holds nothing, no
//! page is its own, its domain has no tables, and no list names it. The next device continues its
//! counts. (Linux makes and frees a device's record each time; a device there that goes while it
//! holds memory is a driver's bug, which `CONFIG_DMA_API_DEBUG` tells of.)
//!
//! **Protocol.** The caller has made sure that no task takes memory for the device any more: the
//! driver has given up, and no task is in it. So what the device holds only falls, and once it is
//! nothing, it stays so. But others may have pages in their hands that the device had last: a take
//! of another device, and reclaim, take such a page from the departing device's domain. So the
//! domain goes last. First the pages that lie idle leave it, one run after the other, are zeroed
//! and get no owner, so that neither another device nor the next one in the same place sees their
//! bytes. While another thread has a page that still names the device, that thread may be in the
//! domain: then [`Device::detach`] says that memory is held, and is tried again. Once no page names
//! the device, no thread is in its domain, and none comes (`owners.rs` says why): only then the
//! domain goes, and with it the tables that a call would have walked.
//!
//! A ring, and frames in their places, count as held until they have left the domain.

use core::fmt;
use core::sync::atomic::{Ordering, fence};

use freehold_machine::{PAGE_SIZE, Unconfirmed};

use crate::runs::FrameRuns;
use crate::{Device, DmaError, DmaSource};

/// Reasons for which the account of a device that is gone stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DetachError {
    /// This many bytes are held: by a task that is about to let go of them, or to give them to
    /// another device, or for ever.
    Held(usize),
    /// The IOMMU does not confirm that the device reaches nothing: its pages stay its own.
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
    /// Empties the account of a device that is gone, for which no task takes memory any more. Its
    /// pages lose their owner, and its domain's tables are freed. Until [`Device::reattach`] no
    /// list names it. Later calls do nothing.
    ///
    /// # Errors
    /// [`DetachError`]; after [`DetachError::Held`] it may be tried again.
    pub fn detach(self) -> Result<(), DetachError> {
        let account = self.account();
        if self.is_detached() {
            return Ok(());
        }
        match self.held() {
            0 => {}
            held => return Err(DetachError::Held(held)),
        }
        // Memory that is held no more has left the domain.
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

    /// Takes the account into use for another device in the place of the one that went.
    ///
    /// # Errors
    /// [`DmaError::OutOfMemory`]: no tables for its domain. The place stays empty.
    pub fn reattach(self) -> Result<(), DmaError> {
        if !self.is_detached() {
            return Ok(());
        }
        self.dma().domains().reattach(self.number()).map_err(|_| DmaError::OutOfMemory)?;
        self.account().is_detached.store(false, Ordering::Release);
        Ok(())
    }

    /// Whether no device is in its place.
    pub fn is_detached(self) -> bool {
        self.account().is_detached.load(Ordering::Acquire)
    }
}
